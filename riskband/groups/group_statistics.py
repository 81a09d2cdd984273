"""Smallest and largest value of a statistic of groups when each group's number lies in its own interval.

The intervals are a box, and every end here is that of the statistic over the whole box: exact, but for the largest
variance and the largest CVaR deviation of more than `MAX_VERTEX_GROUPS` groups, which are bounded from above.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from riskband.checks import FloatArray

MAX_VERTEX_GROUPS = 16
"""Up to so many groups all 2^G corners of the box are tried. The largest variance over a box is NP-hard in general."""

Ends = tuple[float, float]


def gap_ends(lower: FloatArray, upper: FloatArray) -> Ends:
    """|T_1 - T_2| of two groups: 0 where their intervals overlap; arrays of shape (2,)."""
    least = max(lower[0] - upper[1], lower[1] - upper[0], 0.0)
    return float(least), float(max(upper[0] - lower[1], upper[1] - lower[0]))


def largest_gap_ends(lower: FloatArray, upper: FloatArray) -> Ends:
    """max_{g,g'} |T_g - T_g'|, over pairs of different groups; arrays of shape (num_groups,), at least 2.

    The smallest value is reached by clip(c, lower, upper) for any c between the smallest upper and largest lower end.
    """
    least = max(float(np.max(lower) - np.min(upper)), 0.0)
    gaps = upper[:, None] - lower[None, :]
    np.fill_diagonal(gaps, -np.inf)
    return least, float(np.max(gaps))


def maximum_ends(lower: FloatArray, upper: FloatArray) -> Ends:
    """max_g T_g."""
    return float(np.max(lower)), float(np.max(upper))


def mean_ends(lower: FloatArray, upper: FloatArray, weights: FloatArray) -> Ends:
    """Σ w_g T_g for weights >= 0."""
    return float(weights @ lower), float(weights @ upper)


def variance_ends(lower: FloatArray, upper: FloatArray, weights: FloatArray) -> Ends:
    """Σ w_g (T_g - Σ w T)² for weights that sum to 1.

    The variance is min_c Σ w_g (T_g - c)², so its minimum is that of Σ w_g dist(c, [l_g, u_g])² over c: convex, and
    between two ends of intervals a parabola.
    """
    knots = np.unique(np.concatenate([lower, upper]))
    middles = (knots[:-1] + knots[1:]) / 2.0
    nearest = np.clip(middles[:, None], lower, upper)
    masses = np.where(nearest != middles[:, None], weights, 0.0)
    totals = masses.sum(axis=1)
    vertices = np.divide((masses * nearest).sum(axis=1), totals, out=middles.copy(), where=totals > 0.0)
    centres = np.concatenate([knots, np.clip(vertices, knots[:-1], knots[1:])])
    distances = np.clip(centres[:, None], lower, upper) - centres[:, None]
    least = float(np.min(distances**2 @ weights))
    if lower.size <= MAX_VERTEX_GROUPS:
        return least, max(least, _corner_maximum(lower, upper, lambda corners: _variances(corners, weights)))
    return least, max(least, _variance_relaxation(lower, upper, weights))


def cvar_deviation_ends(lower: FloatArray, upper: FloatArray, weights: FloatArray, *, level: float) -> Ends:
    """min_ρ {ρ + Σ w_g (T_g - ρ)_+ / (1 - level)} - Σ w_g T_g for weights that sum to 1, level in [0, 1).

    At a fixed ρ a group adds w_g (T_g - ρ)_+ / (1 - level) - w_g T_g, which falls up to ρ and does not fall beyond: it
    is smallest at clip(ρ, l_g, u_g). The sum is piecewise linear and convex in ρ, so an end of an interval is best.
    """
    knots = np.concatenate([lower, upper])[:, None]
    nearest = np.clip(knots, lower, upper)
    least = float(np.min(knots[:, 0] + (np.maximum(nearest - knots, 0.0) / (1.0 - level) - nearest) @ weights))
    least = max(least, 0.0)
    if lower.size <= MAX_VERTEX_GROUPS:
        corners = _corner_maximum(lower, upper, lambda values: cvar_deviations(values, weights, level=level))
        return least, max(least, corners)
    # max_v Σ (v_g - w_g) T_g over 0 <= v_g <= w_g / (1 - level), Σ v = 1: each term's largest value is convex in v_g.
    # Its chord from v_g = 0 to the cap lies above it and is linear, which leaves one CVaR.
    chord = cvar_deviations((level * upper + (1.0 - level) * lower)[None, :], weights, level=level)
    slack = weights @ (level * (upper - lower))
    return least, max(least, float(chord[0] + slack))


def cvar_deviations(values: FloatArray, weights: FloatArray, *, level: float) -> FloatArray:
    """CVaR minus mean of each row; values of shape (num_rows, num_groups), weights that sum to 1."""
    order = np.argsort(-values, axis=1, kind="stable")
    sorted_weights = weights[order]
    before = np.cumsum(sorted_weights, axis=1) - sorted_weights
    in_tail = np.clip(1.0 - level - before, 0.0, sorted_weights)
    tail = np.sum(in_tail * np.take_along_axis(values, order, axis=1), axis=1) / np.sum(in_tail, axis=1)
    return np.asarray(np.maximum(tail - values @ weights, 0.0))


def _variances(values: FloatArray, weights: FloatArray) -> FloatArray:
    deviations = values - (values @ weights)[:, None]
    return np.asarray(deviations**2 @ weights)


def _corner_maximum(lower: FloatArray, upper: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> float:
    """Largest value at a corner of the box: that over the whole box, for a convex statistic."""
    bits = (np.arange(2**lower.size)[:, None] >> np.arange(lower.size)) & 1
    return float(np.max(statistic(np.where(bits == 1, upper, lower))))


def _variance_relaxation(lower: FloatArray, upper: FloatArray, weights: FloatArray) -> float:
    """Maximum over the box of Σ w_g ((l_g + u_g) T_g - l_g u_g) - m², m = Σ w T, which is not below the variance.

    T_g² lies below its chord, and both agree at the ends. The maximum is concave in T: groups whose centre is above m
    are at their upper end, those below at their lower one, and at most the groups with centre m lie between.
    """
    order = np.argsort(-(lower + upper), kind="stable")
    w, low, high = weights[order], lower[order], upper[order]
    # Raise the groups to their upper ends one after the other, from the highest centre on; m grows from Σwl to Σwu.
    steps = w * (high - low)
    means = w @ low + np.concatenate([[0.0], np.cumsum(steps)])
    second = w @ low**2 + np.concatenate([[0.0], np.cumsum(steps * (low + high))])
    stop = np.clip((low + high) / 2.0, means[:-1], means[1:])
    inside = second[:-1] + (low + high) * (stop - means[:-1]) - stop**2
    return float(max(np.max(inside), np.max(second - means**2)))
