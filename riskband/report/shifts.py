"""What may change: bounds over a budget, in words and as a chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from riskband.report.charts import Chart, over_budgets
from riskband.report.findings import Findings, bound_at
from riskband.report.words import LABELS, about_measured, capital, measured, percent, upper
from riskband.wording import confidence, exactly
from riskband.worst_cases.divergences import binary_worst_case, resolve_divergence
from riskband.worst_cases.reweighting import worst_case_cdf, worst_case_mean

if TYPE_CHECKING:
    from riskband.certificate import Certificate

    Certificates = Mapping[str, Certificate]

KINDS = (0.01, 0.1, 0.3)  # shares of clients of which the page says what may become of them
_NUM_BUDGETS, _NUM_PUBLIC_BUDGETS = 41, 11
_OF_ATTACKS = " They are estimates of an attack: a movement of examples that it did not find may be worse."
_USUAL_BUDGET = 0.25  # in chi2 a tenth of the clients may become a quarter of them


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
    shown: tuple[int, ...]  # which of them the table has
    columns: tuple[str, ...]  # what is bounded
    measured: tuple[str, ...]  # the same without a shift, on the clients that answered
    chart: Chart  # the same as a figure
    breaks: tuple[str, ...] = ()  # where a limit is no longer certified
    together: str = ""  # what holds at once with what


def divergence_shift(
    found: Findings, *, threshold: float | None, public: bool
) -> tuple[tuple[Shift, ...], dict[str, Certificate]]:
    """What may change if kinds of clients become more frequent, and the certificates that were made for it.

    It is said for the divergences that the certificates are about, and for χ² if there is only a band. Where a worst
    mean is certified by itself, the budgets are those of the certificates; otherwise they are many, read off the band,
    but for what is certified already. From a risk of `threshold` on a client fails. In public one divergence and few
    budgets must do, since every exact bound tells something of the losses.
    """
    asked = found.divergences
    shifts: list[Shift] = []
    everything: dict[str, Certificate] = {}
    for divergence, given in list(asked.items())[: 1 if public else None]:
        unit = resolve_divergence(divergence).title
        means = found.over_budgets(divergence)
        is_own = any(means) and found.band_over_budgets(divergence) is None
        grid = sorted(means) if is_own else _grid(given, _NUM_PUBLIC_BUDGETS if public else _NUM_BUDGETS).tolist()
        columns: dict[str, list[float]] = {}
        made: dict[str, Certificate] = {}
        points = [None] if threshold is None else [None, threshold]
        for point in points:
            what = _column(point, found)
            columns[what], extra = _bounds(found, divergence, grid, point)
            made |= {f"{what}, {unit}" if len(asked) > 1 else what: each for each in extra}
        said = [line for each in shifts for line in each.breaks]  # that nothing is certified is said once
        broken = [each.statement for each in found.breakdowns if each.divergence == divergence]
        broken = [line for line in broken if line not in said]
        shift = _one_shift(found, divergence, grid, columns, points=points, shows_all=is_own, given=given)
        shifts.append(replace(shift, breaks=tuple(broken)))
        everything |= made
    return tuple(shifts), everything


def _measured(answers: Mapping[str, Any], points: Iterable[float | None]) -> tuple[str, ...]:
    """The mean risk, and the shares of clients with at least some risks, as measured."""
    return tuple(measured("mean" if point is None else f"share:{exactly(point)}", answers) for point in points)


def _column(threshold: float | None, found: Findings) -> str:
    if threshold is None:
        return "largest mean risk of a network"
    is_measured = found.band is not None and found.band.local == "observed"
    return about_measured(f"largest share of clients with a risk of {threshold:g} or more", is_measured)


def _bounds(
    found: Findings, divergence: str, grid: Sequence[float], threshold: float | None
) -> tuple[list[float], list[Certificate]]:
    """Bounds at budgets: as certified, else off the band, else as certified at the next larger budget, else 1."""
    known = found.over_budgets(divergence, threshold)
    bounds = {budget: bound_at(each, budget) for budget, each in known.items()}
    left, made = [budget for budget in grid if budget not in bounds], []
    band = found.band_over_budgets(divergence, threshold)
    if left and band is not None:
        if threshold is None:
            made = [worst_case_mean(band, divergence=divergence, budget=left)]
        else:
            made = [worst_case_cdf(band, divergence=divergence, budget=left, thresholds=threshold)]
        bounds |= dict(zip(left, np.asarray(made[0].value).tolist(), strict=True))
    larger = [min((bound for size, bound in bounds.items() if size >= budget), default=1.0) for budget in grid]
    return [bounds.get(budget, other) for budget, other in zip(grid, larger, strict=True)], made


def _one_shift(
    found: Findings,
    divergence: str,
    budgets: Sequence[float],
    bounds: Mapping[str, Sequence[float]],
    *,
    points: Sequence[float | None],
    shows_all: bool,
    given: Sequence[float],
) -> Shift:
    """What may change within budgets of one divergence, of which the table has some and those that were given."""
    kinds = binary_worst_case(np.array(KINDS)[:, None], divergence=divergence, budget=np.array(budgets))
    unit, every = resolve_divergence(divergence).title, 1 if shows_all else max(len(budgets) // 5, 1)
    return Shift(
        kind="divergence",
        unit=unit,
        label=LABELS[found.validity],
        kinds=tuple(map(percent, KINDS)),
        steps=tuple(
            Step(exactly(budget), tuple(map(percent, kinds[:, at])), tuple(upper(each[at]) for each in bounds.values()))
            for at, budget in enumerate(budgets)
        ),
        shown=tuple(at for at, budget in enumerate(budgets) if budget in given or at % every == 0),
        columns=tuple(map(capital, bounds)),
        measured=_measured(found.answers, points),
        chart=over_budgets(
            budgets,
            tuple((what, np.array(values)) for what, values in bounds.items()),
            title="Bounds over the budget",
            description=f"Upper bounds, which rise with the budget in {unit}; the table has the same numbers.",
            x_label=f"budget ({unit})",
            y_label="upper bound",
        ),
        together="Between two budgets read the bound at the larger one." if shows_all else "",
    )


def _grid(given: Sequence[float], num_points: int) -> np.ndarray[Any, Any]:
    top = 2.0 * max([*given, _USUAL_BUDGET])
    return np.unique(np.round([*np.linspace(0.0, top, num_points), *given], 9))


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
        shown=tuple(range(len(steps))),
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
