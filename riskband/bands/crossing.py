"""Exact probabilities that uniform order statistics stay between two boundaries (math §2.2).

Let U_(1) <= ... <= U_(n) be the order statistics of n uniform variables and N(t) the number of them that are <= t.
U_(i) >= a_i says N(a_i) <= i - 1, and U_(i) <= b_i says N(b_i) >= i, so the event is that N stays inside a corridor
at the sorted boundary points. N is a Poisson process conditioned on N(1) = n ([MN] Moscovich & Nadler 2017): one
forward pass convolves the state with Poisson probabilities from point to point.

Only states that can matter are kept: a state whose bridge probability (be here now, and end at n) is below 1e-30 is
dropped. That makes the cost O(n^1.5) instead of O(n²), loses less than n · 1e-27, and always on the low side, so a
band calibrated with it stays valid.

Raising the lower boundary a_i loses exactly the paths on which the i-th order statistic is at a_i and all others keep
to the corridor. Such a path is one inside the corridor before a_i, a jump there, and one inside it after, so the
derivative is a product of two crossing probabilities ([DC] A.2.2). A forward and a backward pass give all of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from riskband.checks import FloatArray, IntArray, check_numbers

_UNIT = 8.0 * 2.0**-53  # of a term of a sum: its weight, its products and its additions


def crossing_probability(lower: npt.ArrayLike, upper: npt.ArrayLike | None = None) -> float:
    """Probability that `lower[i] <= U_(i) <= upper[i]` for all i, for uniform order statistics.

    Parameters
    ----------
    lower : array_like, shape (n,)
        Nondecreasing lower boundaries in [0, 1].
    upper : array_like, shape (n,), optional
        Nondecreasing upper boundaries in [0, 1]; none by default.

    Returns
    -------
    float
        The probability, in [0, 1], exact to about 1e-12 and never too large by more than rounding.

    Raises
    ------
    ValueError
        If a boundary is empty, decreasing, NaN or outside [0, 1], or the shapes differ.

    Notes
    -----
    Source: math §2.2, after [MN] Moscovich & Nadler 2017, "Fast calculation of boundary crossing probabilities for
    Poisson processes"; the pruning of states is ours.

    Examples
    --------
    >>> round(crossing_probability([0, 0], [0.5, 1]), 6)
    0.75
    """
    lower_boundary = _checked_boundary("lower", lower)
    n = lower_boundary.size
    upper_boundary = np.ones(n) if upper is None else _checked_boundary("upper", upper)
    if upper_boundary.size != n:
        raise ValueError(f"lower and upper must have the same length, got {n} and {upper_boundary.size}")
    if np.any(lower_boundary > upper_boundary) or lower_boundary[-1] >= 1.0 or upper_boundary[0] <= 0.0:
        return 0.0  # no uniform variable reaches 1 from above, or 0 from below
    from riskband.bands.crossing_loops import corridor_probability  # loads numba

    points, most, least = _corridor(lower_boundary, upper_boundary)
    probability, _ = corridor_probability(points, most, least, n, _log_factorials(n))
    return float(min(max(probability, 0.0), 1.0))


class RankLevels(NamedTuple):
    """Boundaries for some order statistics only: increasing ranks from 1, and nondecreasing levels in [0, 1]."""

    ranks: IntArray
    levels: FloatArray


def crossing_probability_at(num_values: int, lower: RankLevels, upper: RankLevels | None = None) -> float:
    """Probability that some of `num_values` uniform order statistics keep to their boundaries, rounded down.

    As `crossing_probability`, but the time depends on the number of boundaries, and what is returned is not above the
    exact number: a bound for all rounding errors is subtracted (math §2.2). Arguments are not checked.
    """
    from riskband.bands.crossing_loops import corridor_probability  # loads numba

    n = num_values
    upper = RankLevels(np.empty(0, dtype=np.int64), np.empty(0)) if upper is None else upper
    points = np.concatenate([lower.levels, upper.levels])
    most = np.concatenate([lower.ranks - 1, np.full(upper.ranks.size, n)])
    least = np.concatenate([np.zeros(lower.ranks.size, dtype=np.int64), upper.ranks])
    order = np.argsort(points, kind="stable")
    # N never falls, so each bound holds at the points on one side of it too.
    most, least = np.minimum.accumulate(most[order][::-1])[::-1], np.maximum.accumulate(least[order])
    points, inside = points[order], (points[order] > 0.0) & (points[order] < 1.0)
    if np.any(most < least) or np.any(most[points >= 1.0] < n) or np.any(least[points <= 0.0] > 0):
        return 0.0
    if not np.any(inside):
        return 1.0
    points = points[inside]
    found, num_terms = corridor_probability(points, most[inside], least[inside], n, _log_factorials(n))
    num_rounded = num_terms + (n * (1.0 - points[-1]) + 1.0) * np.log(n + 1.0)
    return float(np.clip(found * (1.0 - _UNIT * num_rounded), 0.0, 1.0))


@lru_cache(maxsize=2)
def _log_factorials(n: int) -> FloatArray:
    return np.asarray(gammaln(np.arange(n + 2.0)))


def _checked_boundary(name: str, values: npt.ArrayLike) -> FloatArray:
    boundary = check_numbers(name, values, remedy="it bounds uniform variables")
    if boundary.ndim != 1 or boundary.size == 0:
        raise ValueError(f"{name} must have shape (n,) with n >= 1, got {boundary.shape}")
    if not np.all((boundary >= 0.0) & (boundary <= 1.0)):
        raise ValueError(
            f"{name} must lie in [0, 1], got {boundary.min():g} to {boundary.max():g}; it bounds uniform variables"
        )
    if np.any(np.diff(boundary) < 0.0):
        raise ValueError(f"{name} must be nondecreasing, as order statistics are; take a running maximum first")
    return boundary


def _corridor(lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Points in (0, 1), and the most and the least that N may be there."""
    n = lower.size
    points = np.unique(np.concatenate([lower, upper]))
    points = points[(points > 0.0) & (points < 1.0)]
    most = np.searchsorted(lower, points, side="left").astype(np.int64)  # N(a_i) <= i - 1, first i of a tie
    is_lower = np.isin(points, lower)
    most[~is_lower] = n
    least = np.searchsorted(upper, points, side="right").astype(np.int64)  # N(t) >= #{i : b_i <= t}
    return points, most, least


class CrossingGradient(NamedTuple):
    """A crossing probability and its derivatives, shape (n,) each, from `crossing_gradient`.

    Where boundaries are tied, the point that binds (the first of lower ones, the last of upper ones) carries the
    derivative and the others have 0.
    """

    probability: float
    lower: FloatArray  # derivatives by the lower boundaries, <= 0
    upper: FloatArray  # and by the upper ones, >= 0


def crossing_gradient(lower: FloatArray, upper: FloatArray | None = None) -> CrossingGradient:
    """Crossing probability of uniform order statistics with its exact gradient. Source: [DC] A.2.2; math §2.2.

    Parameters as for `crossing_probability`, not checked, with lower < 1, upper > 0 and lower <= upper.
    """
    from riskband.bands.crossing_loops import corridor_gradient  # loads numba

    n = lower.size
    upper = np.ones(n) if upper is None else upper
    points, most, least = _corridor(lower, upper)
    if points.size == 0:  # nothing is constrained
        return CrossingGradient(1.0, np.zeros(n), np.zeros(n))
    probability, at_most, at_least = corridor_gradient(points, most, least, n, _log_factorials(n))
    by_lower, by_upper = np.zeros(n), np.zeros(n)
    is_lower, is_upper = np.isin(points, lower), np.isin(points, upper)
    by_lower[most[is_lower]] = -at_most[is_lower]  # `most` is the index of the first of a tie
    by_upper[least[is_upper] - 1] = at_least[is_upper]
    return CrossingGradient(probability, by_lower, by_upper)
