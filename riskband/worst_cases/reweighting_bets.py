"""One worst-case mean within a divergence budget, straight from the answers, by betting on its dual (math §2.9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from riskband.answers.risks import ClientRisks
from riskband.betting import Dual, betting_upper_bound, betting_upper_means
from riskband.checks import FloatArray
from riskband.duals import CUTS, UNIFORM, excess_duals, exponential_duals, pole_duals, square_duals
from riskband.worst_cases.divergences import DIVERGENCES, FDivergence, Polygon, outer_polygon

_NUM_MULTIPLIERS = 16
_SHIFTS = CUTS[::2]  # near the best one the dual is flat
_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-3, 1e4


def direct_worst_case_means(
    risks: ClientRisks, *, divergence: FDivergence, budgets: FloatArray, delta: float, seed: int | None
) -> tuple[FloatArray, str]:
    """Upper bounds on the worst-case mean at each budget, each failing with probability `delta` at most, and a name.

    `budgets` has shape (num_budgets,); 0 is the mean. Answers must be certain and without noise.
    """
    is_built_in = DIVERGENCES.get(divergence.name) is divergence  # a name alone says nothing of one's own
    duals_of = BUILT_IN[divergence.name] if is_built_in else custom_duals(divergence)
    found, name = [], ""
    for budget in budgets.tolist():
        if budget == 0.0:
            (value,), name = betting_upper_means([risks.values], delta=delta, seed=seed, is_fixed=False)
        else:
            answers = (risks.values, risks.num_examples)
            value, name = betting_upper_bound(duals_of(risks, budget), answers, delta=delta, seed=seed)
        found.append(value)
    return np.array(found), name


def variation_duals(risks: ClientRisks, budget: float) -> list[Dual]:
    """Total variation: (1 - cut)·budget + cut + E (R - cut)_+ ."""
    return excess_duals(risks, offset=lambda cut: cut + (1.0 - cut) * min(budget, 1.0), slope=1.0)


BUILT_IN: Mapping[str, Callable[[ClientRisks, float], list[Dual]]] = {
    "chi2": square_duals,
    "kl": exponential_duals,
    "tv": variation_duals,
    "hellinger2": pole_duals,
}
"""For the divergences whose dual has one variable, from answers and a budget > 0 to duals."""


def custom_duals(divergence: FDivergence) -> Callable[[ClientRisks, float], list[Dual]]:
    """The same for any divergence: λ·budget + κ + λ·E f*((R - κ)/λ), with a polygon below f in its place."""
    polygon = outer_polygon(divergence.generator)
    steepest = float(polygon.slopes[-1])

    def duals_of(risks: ClientRisks, budget: float) -> list[Dual]:
        usual = 1.0 / np.sqrt(budget)
        least, most = np.clip([1e-3 * usual, 2.0 * usual], [_LEAST_MULTIPLIER, 0.3], [0.03, _LARGEST_MULTIPLIER])
        multipliers = np.geomspace(least, most, _NUM_MULTIPLIERS)
        pairs = [(multiplier, shift) for multiplier in multipliers.tolist() for shift in _SHIFTS.tolist()]
        # The conjugate must be finite at every risk that clients may have, seen or not.
        pairs = [(multiplier, shift) for multiplier, shift in pairs if 1.0 - shift <= multiplier * steepest]
        if np.isfinite(divergence.slope_at_infinity):  # and new clients make the least such shift the best one
            pairs += [((1.0 - shift) / steepest, shift) for shift in CUTS.tolist()]
        return [_conjugate_dual(risks, polygon, budget, *pair) for pair in pairs]

    return duals_of


def _conjugate_dual(risks: ClientRisks, polygon: Polygon, budget: float, multiplier: float, shift: float) -> Dual:
    def conjugate(risk: FloatArray) -> FloatArray:
        slope = (risk - shift) / multiplier
        ratio = np.minimum(polygon.best_ratio(slope), polygon.corners[-1])  # at the last slope every ratio is best
        return np.asarray(multiplier * (slope * ratio - polygon.height(ratio)))

    low, high = conjugate(np.array([0.0, 1.0])).tolist()
    start = multiplier * budget + shift
    return Dual.of_range(
        conjugate(risks.values),
        low=low,
        high=high,
        bound=lambda mean: start + mean,
        least_mean=lambda value: value - start,
        start=float(np.mean(conjugate(UNIFORM))),
    )
