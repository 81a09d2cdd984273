"""Exact probabilities that uniform order statistics stay between two boundaries (math §2.2).

Let U_(1) <= ... <= U_(n) be the order statistics of n uniform variables and N(t) the number of them that are <= t.
U_(i) >= a_i says N(a_i) <= i - 1, and U_(i) <= b_i says N(b_i) >= i, so the event is that N stays inside a corridor
at the sorted boundary points. N is a Poisson process conditioned on N(1) = n ([MN] Moscovich & Nadler 2017): one
forward pass convolves the state with Poisson probabilities from point to point.

Only states that can matter are kept: given N(1) = n, those dropped at a point have together a probability below 2e-30.
That makes the cost O(n^1.5) instead of O(n²), loses less than n · 1e-29, and always on the low side, so a band
calibrated with it stays valid.

Raising the lower boundary a_i loses exactly the paths on which the i-th order statistic is at a_i and all others keep
to the corridor. Such a path is one inside the corridor before a_i, a jump there, and one inside it after, so the
derivative is a product of two crossing probabilities ([DC] A.2.2). A forward and a backward pass give all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

from riskband.checks import FloatArray, IntArray, check_numbers

_UNIT = 8.0 * 2.0**-53  # of a term of a sum: its weight, its products and its additions
_NEGLIGIBLE = 1e-30  # probability of what is dropped at one side of a point, or of a step
_CELLS = 2**18  # probabilities that are computed at once
_STIRLING = 50  # from here on three terms of Stirling's series are exact to rounding


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
    return float(np.clip(_probability(*_corridor(lower_boundary, upper_boundary), n), 0.0, 1.0))


class RankLevels(NamedTuple):
    """Boundaries for some order statistics only: increasing ranks from 1, and nondecreasing levels in [0, 1]."""

    ranks: IntArray
    levels: FloatArray


def crossing_probability_at(num_values: int, lower: RankLevels, upper: RankLevels | None = None) -> float:
    """Probability that some of `num_values` uniform order statistics keep to their boundaries, rounded down.

    As `crossing_probability`, but the time depends on the number of boundaries, and what is returned is not above the
    exact number: a bound for all rounding errors is subtracted (math §2.2). Arguments are not checked.
    """
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
    found = _probability(points, most[inside], least[inside], n)
    num_terms = np.sum(2.0 * _reach(n * np.diff(points, prepend=0.0)) + 3.0)  # as many as a step has at most
    num_rounded = num_terms + (n * (1.0 - points[-1]) + 1.0) * np.log(n + 1.0)
    return float(np.clip(found * (1.0 - _UNIT * num_rounded), 0.0, 1.0))


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
    n = lower.size
    upper = np.ones(n) if upper is None else upper
    points, most, least = _corridor(lower, upper)
    if points.size == 0:  # nothing is constrained
        return CrossingGradient(1.0, np.zeros(n), np.zeros(n))
    probability, at_most, at_least = _gradient(points, most, least, n)
    by_lower, by_upper = np.zeros(n), np.zeros(n)
    is_lower, is_upper = np.isin(points, lower), np.isin(points, upper)
    by_lower[most[is_lower]] = -at_most[is_lower]  # `most` is the index of the first of a tie
    by_upper[least[is_upper] - 1] = at_least[is_upper]
    return CrossingGradient(probability, by_lower, by_upper)


def _probability(points: FloatArray, most: IntArray, least: IntArray, n: int) -> float:
    """P(least <= N(points) <= most) given N(1) = n."""
    if points.size == 0:
        return 1.0
    passed = _forward(points, most, least, n, _poisson_steps(points, n))
    start, found, low, high = deque(passed, maxlen=1).pop()
    return float(found[low - start : high + 1 - start] @ _rest(low, high, points, n)) if low <= high else 0.0


def _gradient(points: FloatArray, most: IntArray, least: IntArray, n: int) -> tuple[float, FloatArray, FloatArray]:
    """The same probability, and the densities of a jump out of `most`, and into `least`, at each point."""
    steps = list(_poisson_steps(points, n))
    at_most, at_least, kept = np.zeros(points.size), np.zeros(points.size), []
    for j, (start, found, low, high) in enumerate(_forward(points, most, least, n, steps)):
        if low > high:
            return 0.0, at_most, at_least
        at_most[j] = found[high - start] if high == most[j] else 0.0
        at_least[j] = found[low - 1 - start] if low == least[j] and low > start else 0.0
        kept.append((low, high))
    # Backward: rest[m - low] = P(corridor after the point, N(1) = n | N(point) = m) / P(N(1) = n), up to high + 1.
    rest = _rest(low, high + 1, points, n)
    probability = float(found[low - start : high + 1 - start] @ rest[:-1])
    for j in range(points.size - 1, -1, -1):
        at_most[j] *= n * rest[-1]
        at_least[j] *= n * rest[0]
        if j > 0:
            first, step = steps[j]
            start = kept[j][0] - first - step.size + 1
            low, high = kept[j - 1]
            rest = _between(start, np.convolve(rest[:-1], step[::-1]), low, high + 1)
    return probability, at_most, at_least


def _forward(
    points: FloatArray, most: IntArray, least: IntArray, n: int, steps: Iterable[tuple[int, FloatArray]]
) -> Iterator[tuple[int, FloatArray, int, int]]:
    """Follow the Poisson process of rate n through the corridor, from point to point.

    Yields for each point a start, P(corridor before the point, N = m) for the states m from there on, and the lowest
    and the highest state that is kept. If these have crossed, none is, and there are no further points.
    """
    reach = _reach(n * points * (1.0 - points))
    lows = np.maximum(least, np.floor(n * points - reach)).astype(np.int64)
    highs = np.minimum(most, np.ceil(n * points + reach)).astype(np.int64)
    state, low = np.ones(1), 0
    for (first, step), least_kept, most_kept in zip(steps, lows.tolist(), highs.tolist(), strict=True):
        found, start = np.convolve(state, step), low + first
        low, high = max(least_kept, start), min(most_kept, start + found.size - 1)
        yield start, found, low, high
        if low > high:
            return
        state = found[low - start : high + 1 - start]


def _poisson_steps(points: FloatArray, n: int) -> Iterator[tuple[int, FloatArray]]:
    """For each point, the probabilities of the numbers of values since the one before, from a first number on.

    Each is its neighbour times a ratio, and they are divided by their sum, which is 1 but for what is dropped: so no
    error of a logarithm adds up over the points.
    """
    means = n * np.diff(points, prepend=0.0)
    reach = _reach(means)
    firsts = np.maximum(np.floor(means - reach), 0.0)
    sizes = (np.ceil(means + reach) - firsts).astype(np.int64) + 1
    for some in _blocks(sizes):
        ratios = means[some, None] / (firsts[some, None] + np.arange(1.0, sizes[some].max()))
        steps = np.cumprod(np.insert(ratios, 0, 1.0, axis=1), axis=1)
        kept = steps > _NEGLIGIBLE * steps.max(axis=1, keepdims=True)
        steps /= steps.sum(axis=1, keepdims=True)
        dropped, sizes_kept = kept.argmax(axis=1).tolist(), kept.sum(axis=1).tolist()
        for first, step, start, size in zip(firsts[some].tolist(), steps, dropped, sizes_kept, strict=True):
            yield int(first) + start, step[start : start + size]


def _blocks(sizes: IntArray) -> Iterator[slice]:
    """Neighbours that together, each as wide as the widest, have at most `_CELLS` numbers, or are alone."""
    start, widest = 0, 0
    for j, size in enumerate(sizes.tolist()):
        if j > start and (j + 1 - start) * max(widest, size) > _CELLS:
            yield slice(start, j)
            start, widest = j, 0
        widest = max(widest, size)
    yield slice(start, sizes.size)


def _reach(variance: FloatArray) -> FloatArray:
    """Distance from its mean that a sum of independent indicators exceeds with probability `_NEGLIGIBLE` at most.

    Bernstein's inequality; by passing to the limit it holds for Poisson variables too.
    """
    log = -np.log(_NEGLIGIBLE)
    return np.asarray(log / 3.0 + np.sqrt((log / 3.0) ** 2 + 2.0 * log * variance))


def _rest(low: int, high: int, points: FloatArray, n: int) -> FloatArray:
    """P(N(1) = n | N(last point) = m) / P(N(1) = n) for m from low to high."""
    left, mean = n - np.arange(low, high + 1.0), n * (1.0 - points[-1])
    return np.asarray(np.exp(xlogy(left, mean) - mean - gammaln(left + 1.0) - _log_of_total(n)))


def _log_of_total(n: int) -> float:
    """Log P(Poisson(n) = n); by Stirling's series for a large n, of which the formula would cancel most digits."""
    if n < _STIRLING:
        return float(n * np.log(n) - n - gammaln(n + 1.0))
    return float(-0.5 * np.log(2.0 * np.pi * n) - (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / (1260.0 * n * n)) / (n * n)) / n)


def _between(start: int, values: FloatArray, low: int, high: int) -> FloatArray:
    """Numbers for the states from low to high, of those for the states from `start` on, and 0 beyond these."""
    first, end = max(start, low), max(min(start + values.size, high + 1), start, low)
    found = np.zeros(high + 1 - low)
    found[first - low : end - low] = values[first - start : end - start]
    return found
