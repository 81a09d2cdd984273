"""What may change: bounds over a budget, in words and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from riskband.report.charts import Chart, over_budgets
from riskband.report.words import LABELS, about_measured, capital, percent, upper
from riskband.wording import TRAINERS_ANSWERED, confidence, down_to_digits, exactly
from riskband.worst_cases.divergences import DIVERGENCES, binary_worst_case, resolve_divergence
from riskband.worst_cases.reweighting import breakdown, worst_case_cdf, worst_case_mean

if TYPE_CHECKING:
    from riskband.bands.band import Band
    from riskband.certificate import Certificate
    from riskband.search import Bracket
    from riskband.worst_cases.requirements import Gate

    Certificates = Mapping[str, Certificate]

KINDS = (0.01, 0.1, 0.3)  # shares of clients of which the page says what may become of them
_NUM_BUDGETS, _NUM_PUBLIC_BUDGETS = 41, 11
_OF_ATTACKS = " They are estimates of an attack: a movement of examples that it did not find may be worse."
_USUAL_DIVERGENCE, _USUAL_BUDGET = "chi2", 0.25


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
    chart: Chart  # the same as a figure
    breaks: tuple[str, ...] = ()  # where a limit is no longer certified
    together: str = ""  # what holds at once with what


def divergence_shift(
    certificates: Certificates,
    band: Band,
    gate: Gate | None,
    *,
    threshold: float | None,
    breaks: Sequence[str],
    public: bool,
    together: str,
) -> tuple[tuple[Shift, ...], dict[str, Certificate]]:
    """What may change if kinds of clients become more frequent, and the certificates that this was made of.

    They are read off a band with a lower side, for the divergences and budgets that the evaluation, with its gate, was
    about: χ² if it was about none. From a risk of `threshold` on a client fails. In public one divergence and few
    budgets must do, since every exact bound tells something of the losses.
    """
    asked = list(_asked_divergences(certificates, gate).items())[: 1 if public else None]
    shifts: list[Shift] = []
    everything: dict[str, Certificate] = {}
    for divergence, given in asked:
        grid = _grid(given, _NUM_PUBLIC_BUDGETS if public else _NUM_BUDGETS)
        shift, made = _one_shift(band, divergence, given, grid, threshold=threshold)
        unit = f"{shift.unit}: " if len(asked) > 1 else ""
        broken = (*(unit + line for line in _breaks(band, divergence, gate)), *(() if shifts else breaks))
        shifts.append(replace(shift, breaks=broken, together=together))
        everything |= {f"{what}, {shift.unit}" if unit else what: each for what, each in made.items()}
    return tuple(shifts), everything


def _one_shift(
    band: Band, divergence: str, given: Sequence[float], grid: np.ndarray[Any, Any], *, threshold: float | None
) -> tuple[Shift, dict[str, Certificate]]:
    """What may change within budgets of one divergence, of which the table has some and those that were given."""
    budgets, is_measured = grid.tolist(), band.local == "observed"
    made = {"largest mean risk of a network": worst_case_mean(band, divergence=divergence, budget=grid)}
    if threshold is not None:
        share = worst_case_cdf(band, divergence=divergence, budget=grid, thresholds=threshold)
        made[about_measured(f"largest share of clients with a risk of {threshold:g} or more", is_measured)] = share
    bounds = {what: np.asarray(each.value) for what, each in made.items()}
    kinds = binary_worst_case(np.array(KINDS)[:, None], divergence=divergence, budget=grid)
    unit = resolve_divergence(divergence).title
    shift = Shift(
        kind="divergence",
        unit=unit,
        label=LABELS[next(iter(made.values())).validity],
        kinds=tuple(map(percent, KINDS)),
        steps=tuple(
            Step(exactly(budget), tuple(map(percent, kinds[:, at])), tuple(upper(each[at]) for each in bounds.values()))
            for at, budget in enumerate(budgets)
        ),
        shown=tuple(at for at, budget in enumerate(budgets) if budget in given or at % (len(budgets) // 5) == 0),
        columns=tuple(map(capital, made)),
        chart=over_budgets(
            budgets,
            tuple(bounds.items()),
            title="Bounds over the budget",
            description=f"Upper bounds, which rise with the budget in {unit}; the table has the same numbers.",
            x_label=f"budget ({unit})",
            y_label="upper bound",
        ),
    )
    return shift, made


def _asked_divergences(certificates: Certificates, gate: Gate | None) -> dict[str, list[float]]:
    """The divergences that the evaluation was about, with their budgets: of the certificates, then of requirements."""
    recipes = (each.recipe["arguments"] for each in certificates.values())
    asked: list[Any] = [
        (each["divergence"], each["budget"]) for each in recipes if each.get("divergence") in DIVERGENCES
    ]
    asked += [each.requirement.number.shift for each in (() if gate is None else gate.verdicts)]
    found: dict[str, list[float]] = {}
    for divergence, budgets in filter(None, asked):
        found.setdefault(divergence, []).extend(np.ravel(budgets).tolist())
    return found or {_USUAL_DIVERGENCE: []}


def _grid(given: Sequence[float], num_points: int) -> np.ndarray[Any, Any]:
    top = 2.0 * max([*given, _USUAL_BUDGET])
    return np.unique(np.round([*np.linspace(0.0, top, num_points), *given], 9))


def _breaks(band: Band, divergence: str, gate: Gate | None) -> Iterator[str]:
    """Sentences on the largest budget at which a limit for the mean, or for a share, is still certified."""
    for verdict in () if gate is None else gate.verdicts:
        requirement, number = verdict.requirement, verdict.requirement.number
        at, is_of_mean = number.threshold, number.name == "mean" or number.shift is not None
        if requirement.relation == "<=" and (is_of_mean or at is not None):
            found = breakdown(band, divergence=divergence, target=requirement.limit, threshold=at)
            what = "the mean risk" if at is None else f"the share of clients with a risk of {at:g} or more"
            what = about_measured(what, band.local == "observed")
            yield _break(
                found, f"{what} is at most {requirement.limit:g}", is_estimate=TRAINERS_ANSWERED in band.assumptions
            )


def _break(found: Bracket, goal: str, *, is_estimate: bool) -> str:
    if found.lower < 0.0:
        return (
            "The band, which bounds every budget at once and so none as sharply as section 1 its one number, "
            f"does not show that {goal}, not even without a shift."
        )
    budget = down_to_digits(found.lower)
    if is_estimate:
        return f"By an estimate, {goal} up to budget {budget}."
    if np.isinf(found.upper):
        return f"Up to budget {budget}, and possibly beyond, it is certified that {goal}."
    return f"Up to budget {budget} it is certified that {goal}. Beyond, the band certifies it no more."


def cost_shift(certificates: Certificates, breaks: Sequence[str]) -> tuple[Shift, ...]:
    """What may change if examples move, at the cost budgets of the certificates; nothing if they have none."""
    mean = next((each for each in certificates.values() if tuple(each.axes) == ("cost_budget",)), None)
    if mean is None:
        return ()
    budgets, curves = mean.axes["cost_budget"], _cost_curves(mean, certificates)
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
    sure = f", with probability at least {confidence(mean.delta)}, by itself" if mean.validity == "certificate" else ""
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
        chart=chart,
        breaks=tuple(breaks),
        together=(
            f"The means are for every cost at once{sure}; the shares too, for every cost and risk. Between two costs "
            f"read the bound at the larger one.{_OF_ATTACKS if is_attack else ''}"
        ),
    )
    return (shift,)


def _cost_curves(mean: Certificate, certificates: Certificates) -> dict[str, np.ndarray[Any, Any]]:
    """The certified means, and the shares at the same costs, by what they are of."""
    curves = {"largest mean risk of a network": np.asarray(mean.value)}
    shares = next((each for each in certificates.values() if tuple(each.axes) == ("cost_budget", "threshold")), None)
    if shares is not None and np.array_equal(shares.axes["cost_budget"], mean.axes["cost_budget"]):
        for index, point in enumerate(shares.axes["threshold"].tolist()):
            name = f"largest share of clients with a risk of {point:g} or more"
            curves[name] = np.asarray(shares.value)[:, index]
    return curves
