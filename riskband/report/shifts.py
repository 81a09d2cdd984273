"""What may change: bounds over a budget, in words and as a chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from riskband.report.charts import Chart, over_budgets
from riskband.report.findings import Findings
from riskband.report.words import LABELS, about_measured, capital, measured, percent, upper
from riskband.wording import confidence, exactly
from riskband.worst_cases.divergences import binary_worst_case, resolve_divergence

if TYPE_CHECKING:
    from riskband.certificate import Certificate

    Certificates = Mapping[str, Certificate]

KINDS = (0.01, 0.1, 0.3)  # shares of clients of which the page says what may become of them
_OF_ATTACKS = " They are estimates of an attack: a movement of examples that it did not find may be worse."


class Step(NamedTuple):
    """What may change at one budget, in words: what kinds of clients may become, and the bounds."""

    budget: str
    kinds: tuple[str, ...]
    bounds: tuple[str, ...]


@dataclass(frozen=True)
class Shift:
    """What may change: bounds over a budget."""

    kind: str  # "divergence" or "cost": whether the shares of kinds of clients change, or the clients' examples move
    unit: str  # what the budget is measured in
    label: str  # what kind of bounds they are
    # Today's shares of the kinds of clients of which the steps say what they may become; none for a cost.
    kinds: tuple[str, ...]
    steps: tuple[Step, ...]  # one for each budget
    columns: tuple[str, ...]  # what is bounded
    measured: tuple[str, ...]  # the same without a shift, on the clients that answered
    chart: Chart | None  # the same as a figure, if there are three budgets or more
    together: str = ""  # what holds at once with what


def divergence_shift(found: Findings, *, threshold: float | None, public: bool) -> tuple[Shift, ...]:
    """What may change if kinds of clients become more frequent: the certified bounds, at their budgets.

    It is said for the divergences that the certificates are about. From a risk of `threshold` on a client fails. In
    public one divergence must do, since every exact bound tells something of the losses.
    """
    points = [None] if threshold is None else [None, threshold]
    shifts = [_one_shift(found, divergence, points) for divergence in found.divergences]
    return tuple(filter(None, shifts))[: 1 if public else None]


def _measured(answers: Mapping[str, Any], points: Iterable[float | None]) -> tuple[str, ...]:
    """The mean risk, and the shares of clients with at least some risks, as measured."""
    return tuple(measured("mean" if point is None else f"share:{exactly(point)}", answers) for point in points)


def _column(threshold: float | None, found: Findings) -> str:
    if threshold is None:
        return "largest mean risk of a network"
    is_measured = found.band is not None and found.band.local == "observed"
    return about_measured(f"largest share of clients with a risk of {threshold:g} or more", is_measured)


def _one_shift(found: Findings, divergence: str, points: Sequence[float | None]) -> Shift | None:
    """What may change within budgets of one divergence; nothing if only a network without a shift is bounded.

    What is said of a larger budget holds, too.
    """
    known = {point: found.over_budgets(divergence, point) for point in points}
    known = {point: bounds for point, bounds in known.items() if any(bounds)}
    budgets = sorted({size for bounds in known.values() for size in bounds})
    if not budgets:
        return None
    columns = {_column(point, found): np.array([_at(bounds, b) for b in budgets]) for point, bounds in known.items()}
    kinds = binary_worst_case(np.array(KINDS)[:, None], divergence=divergence, budget=np.array(budgets))
    unit = resolve_divergence(divergence).title
    return Shift(
        kind="divergence",
        unit=unit,
        label=LABELS[found.validity],
        kinds=tuple(map(percent, KINDS)),
        steps=tuple(
            Step(
                exactly(budget), tuple(map(percent, kinds[:, at])), tuple(upper(each[at]) for each in columns.values())
            )
            for at, budget in enumerate(budgets)
        ),
        columns=tuple(map(capital, columns)),
        measured=_measured(found.answers, known),
        chart=over_budgets(
            budgets,
            tuple(columns.items()),
            title="Bounds over the budget",
            description=f"Upper bounds, which rise with the budget in {unit}; the table has the same numbers.",
            x_label=f"budget ({unit})",
            y_label="upper bound",
        ),
        together="Between two budgets read the bound at the larger one.",
    )


def _at(bounds: Mapping[float, float], budget: float) -> float:
    return min((bound for size, bound in bounds.items() if size >= budget), default=1.0)


def cost_shift(certificates: Certificates) -> tuple[Shift, ...]:
    """What may change if examples move, at the cost budgets of the certificates; nothing if they have none."""
    mean = next((each for each in certificates.values() if tuple(each.axes) == ("cost_budget",)), None)
    if mean is None:
        return ()
    budgets, (curves, thresholds) = mean.axes["cost_budget"], _cost_curves(mean, certificates)
    steps = tuple(
        Step(exactly(budget), (), tuple(upper(bounds[index]) for bounds in curves.values()))
        for index, budget in enumerate(budgets.tolist())
    )
    chart = over_budgets(
        budgets.tolist(),
        tuple(curves.items()),
        title="Bounds over the cost",
        description="Upper bounds, which rise with the mean cost of moving examples; the table has the same numbers.",
        x_label="mean cost of moving a client's examples",
        y_label="upper bound",
    )
    sure = f", with probability at least {confidence(mean.delta)}" if mean.validity == "certificate" else ""
    answers = mean.recipe["answers"]
    is_attack = answers.get("guarantee") == "lower"
    shift = Shift(
        kind="cost",
        unit=answers.get("cost", "transport cost"),
        label=LABELS[mean.validity],
        kinds=(),
        steps=steps,
        columns=tuple(map(capital, curves)),
        measured=_measured(answers, thresholds),
        chart=chart,
        together=(
            f"The means are for every cost at once{sure}; the shares too, for every cost and risk. Between two costs "
            f"read the bound at the larger one.{_OF_ATTACKS if is_attack else ''}"
        ),
    )
    return (shift,)


def _cost_curves(
    mean: Certificate, certificates: Certificates
) -> tuple[dict[str, np.ndarray[Any, Any]], list[float | None]]:
    """The certified means, and the shares at the same costs, by what they are of; and the risks of the shares."""
    thresholds: list[float | None] = [None]
    curves = {"largest mean risk of a network": np.asarray(mean.value)}
    shares = next((each for each in certificates.values() if tuple(each.axes) == ("cost_budget", "threshold")), None)
    if shares is not None and np.array_equal(shares.axes["cost_budget"], mean.axes["cost_budget"]):
        for index, point in enumerate(shares.axes["threshold"].tolist()):
            name = f"largest share of clients with a risk of {point:g} or more"
            curves[name] = np.asarray(shares.value)[:, index]
            thresholds.append(point)
    return curves, thresholds
