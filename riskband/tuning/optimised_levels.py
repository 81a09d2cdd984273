"""Levels tuned for what will be read off the band: tighter where it matters, valid for everything ([DC] §4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.answers.risks import ClientRisks
from riskband.bands.band import SIDES
from riskband.bands.levels import Levels, berk_jones_levels
from riskband.bands.methods import level_key, tuned_name, tuned_recipe
from riskband.bands.pilots import Pilot
from riskband.checks import (
    FloatArray,
    as_spelled,
    check_choice,
    check_delta,
    check_num_points,
    check_number,
    check_numbers,
)
from riskband.functionals.laws import RiskLaw
from riskband.functionals.quantile_measures import LINEAR, maximum_weight, minimum_weight, smoothed_median_weight
from riskband.functionals.quantiles import MEAN, QuantileWeight, interval_weight, tail_weight
from riskband.tuning.level_search import LevelProblem

OBJECTIVES: Mapping[str, Callable[..., QuantileWeight]] = {
    "mean": lambda: MEAN,
    "cvar": tail_weight,
    "interval": interval_weight,
    "linear": lambda: LINEAR,
    "smoothed_median": smoothed_median_weight,
    "maximum": maximum_weight,
    "minimum": minimum_weight,
}
"""Weights by name; parameters follow after colons."""

SHARE_OF_MEAN = 0.01
"""Weight of the mean beside the objectives, so that the band stays useful where they do not look."""

Objectives = str | QuantileWeight | Sequence[str | QuantileWeight] | Mapping[str | QuantileWeight, float]


@dataclass(frozen=True, eq=False, init=False)
class OptimisedLevels:
    """Band method with levels tuned on a pilot; give it to `band` as `method`.

    The levels minimise the upper bounds on the objectives (for a band with both sides, the widths of their intervals;
    for an upper side alone, they maximise the lower bounds) that are to be expected for clients like those of the
    pilot. Each objective is measured in units of what Berk-Jones levels lose on it. Whatever the pilot is, the band
    holds with probability 1 - delta for clients that are not in it; a pilot unlike them only makes it wider.

    Parameters
    ----------
    pilot : ClientRisks, RiskLaw or array_like, shape (num_pilot_clients,)
        Risks that other clients measured (see `split_clients`), or a law that was fixed before.
    objectives : str, QuantileWeight, or several
        What will be read off the band: "mean", "cvar:0.9", "interval:0.5:0.9", "linear", "smoothed_median:0.01",
        "maximum:10", "minimum:10" or your own weights. A mapping gives each a factor > 0.

    Attributes
    ----------
    pilot : Pilot
        What the levels are tuned on.
    weights : tuple of (QuantileWeight, float)
        The objectives with their factors.

    Raises
    ------
    ValueError
        If the pilot is not valid risks, or an objective is unknown, there twice, or has a factor that is not > 0.

    Notes
    -----
    Levels are computed once for each number of values, delta and sides: a second for 100 values, some ten for 500,
    minutes for some thousands. A certificate stores them, so nothing is tuned again to verify it.
    """

    pilot: Pilot
    weights: tuple[tuple[QuantileWeight, float], ...]

    def __init__(self, pilot: ClientRisks | RiskLaw | npt.ArrayLike, objectives: Objectives) -> None:
        object.__setattr__(self, "pilot", _as_pilot(pilot))
        object.__setattr__(self, "weights", _as_weights(objectives))

    @property
    def name(self) -> str:
        """For certificates: the objectives and their factors."""
        return tuned_name(self._factors)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """That the pilot's clients are not among those certified."""
        return self.pilot.assumptions

    def levels(self, num_values: int, delta: float, sides: str) -> Levels:
        """Tuned levels for the sorted values of independent clients.

        Parameters
        ----------
        num_values : int
            Number of values.
        delta : float
            Probability that they fail, in [1e-9, 1).
        sides : {"lower", "upper", "two"}
            Which sides hold; `two` jointly.

        Returns
        -------
        Levels
            Their crossing probability is verified to be at least 1 - delta. Source: [DC] §4.3; math §2.3.

        Raises
        ------
        ValueError
            If an argument is out of its range or unknown.
        """
        check_num_points("num_values", num_values, minimum=1, remedy="it counts clients")
        sides = check_choice("sides", sides, SIDES)
        delta = check_delta(delta)
        key = level_key(num_values, delta, sides)
        if key not in self._known:
            expected = self.pilot.expected_values(num_values)
            gaps = {"lower": np.diff(expected, append=1.0), "upper": np.diff(expected, prepend=0.0)[::-1]}
            rows = np.stack([gaps[side] for side in ("lower", "upper") if sides in (side, "two")])
            start = berk_jones_levels(num_values, delta, sides)
            cumulative = self._combined(rows, start, sides)
            self._known[key] = (
                start if cumulative is None else LevelProblem(rows, cumulative, delta, sides).best_levels()
            )
        return self._known[key]

    def check_risks(self, risks: ClientRisks) -> None:
        """Raise ValueError if the pilot is visibly among these answers; see the documentation for what is not seen."""
        self.pilot.refuse_if_certified(risks)

    def recipe(self, used: Mapping[str, Levels]) -> dict[str, Any]:
        """Plain data: objectives by name, the pilot's values, and the levels that were used."""
        return tuned_recipe(self._factors, self.pilot, used)

    @cached_property
    def _known(self) -> dict[str, Levels]:
        """Levels that were computed before, by `level_key`."""
        return {}

    @property
    def _factors(self) -> dict[str, float]:
        return {weight.name: factor for weight, factor in self.weights}

    def _combined(self, gaps: FloatArray, start: Levels, sides: str) -> Callable[[FloatArray], FloatArray] | None:
        """Sum of the objectives, each over what the levels of Berk-Jones lose on it; None if they lose nothing."""
        ranks = np.arange(1, gaps.shape[1] + 1) / gaps.shape[1]
        terms: list[tuple[QuantileWeight, float]] = []
        for weight, factor in (*self.weights, (MEAN, SHARE_OF_MEAN * sum(factor for _, factor in self.weights))):
            lost = 0.0
            if start.lower is not None:
                lost += float(gaps[0] @ (weight.cumulative(ranks) - weight.cumulative(start.lower)))
            if start.upper is not None:
                before = weight.cumulative(np.append(0.0, ranks[:-1]))
                lost += float(gaps[-1][::-1] @ (weight.cumulative(start.upper) - before))
            if lost > 1e-12:
                terms.append((weight, factor / lost))
        if not terms:
            return None
        return lambda p: np.asarray(sum(scale * weight.cumulative(p) for weight, scale in terms))


def resolve_objective(objective: str | QuantileWeight) -> QuantileWeight:
    """Return the weight of that name; a weight is returned as it is.

    Parameters
    ----------
    objective : str or QuantileWeight
        For example "cvar:0.9"; see `OptimisedLevels`.

    Returns
    -------
    QuantileWeight
        The weight.

    Raises
    ------
    ValueError
        If the name is unknown, or its parameters are missing, too many, or out of range.
    """
    if isinstance(objective, QuantileWeight):
        return objective
    name, *parameters = objective.split(":") if isinstance(objective, str) else ("",)
    name = as_spelled(name, OBJECTIVES) or ""
    if not name:
        raise ValueError(
            f"an objective must be one of {', '.join(sorted(OBJECTIVES))} or a QuantileWeight, got {objective!r}"
        )
    try:
        return OBJECTIVES[name](*[int(text) if text.isdigit() else float(text) for text in parameters])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"objective {objective!r} must have the parameters of its weight, as in interval:0.5:0.9: {error}"
        ) from error


def _as_pilot(pilot: ClientRisks | RiskLaw | npt.ArrayLike) -> Pilot:
    if isinstance(pilot, Pilot):
        return pilot
    if isinstance(pilot, ClientRisks):
        return Pilot.of_risks(pilot)
    if isinstance(pilot, RiskLaw):
        return Pilot.of_law(pilot.risks, pilot.levels)
    return Pilot.of_values(check_numbers("a pilot", pilot, remedy="give ClientRisks, a RiskLaw or an array of risks"))


def _as_weights(objectives: Objectives) -> tuple[tuple[QuantileWeight, float], ...]:
    if isinstance(objectives, (str, QuantileWeight)):
        objectives = (objectives,)
    try:
        pairs = objectives.items() if isinstance(objectives, Mapping) else [(one, 1.0) for one in objectives]
        remedy = "1 is usual"
        found = tuple(
            (resolve_objective(one), check_number("a factor of an objective", factor, remedy=remedy))
            for one, factor in pairs
        )
    except TypeError as error:
        raise ValueError(f"objectives must be names or weights, got {objectives!r:.80}") from error
    names = [weight.name for weight, _ in found]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"objectives must be at least one, each once, got {', '.join(names) or 'none'}")
    if not all(0.0 < factor < np.inf for _, factor in found):
        raise ValueError(f"factors of objectives must be finite and > 0, got {[factor for _, factor in found]}")
    return found
