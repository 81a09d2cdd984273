"""Exact probabilities that uniform order statistics stay between two boundaries, and their gradients (math §2).

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

import math
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from riskband.checks import FloatArray, IntArray, check_numbers

_LOG_NEGLIGIBLE = math.log(1e-30)


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
    Source: math §2, after [MN] Moscovich & Nadler 2017, "Fast calculation of boundary crossing probabilities for
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
    points, most, least = _corridor(lower_boundary, upper_boundary)
    probability = _corridor_probability(points, most, least, n, gammaln(np.arange(n + 2.0)))
    return float(min(max(probability, 0.0), 1.0))


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
    """A crossing probability and its derivatives, from `crossing_gradient`.

    Attributes
    ----------
    probability : float
        As from `crossing_probability`.
    lower, upper : ndarray, shape (n,)
        Derivatives by the lower boundaries, <= 0, and by the upper ones, >= 0. Where boundaries are tied, the point
        that binds (the first of lower ones, the last of upper ones) carries the derivative and the others have 0.
    """

    probability: float
    lower: FloatArray
    upper: FloatArray


def crossing_gradient(lower: FloatArray, upper: FloatArray | None = None) -> CrossingGradient:
    """Crossing probability of uniform order statistics with its exact gradient. Source: [DC] appendix A.2.2; math §2.

    Parameters as for `crossing_probability`, not checked, with lower < 1, upper > 0 and lower <= upper.
    """
    n = lower.size
    upper = np.ones(n) if upper is None else upper
    points, most, least = _corridor(lower, upper)
    if points.size == 0:  # nothing is constrained
        return CrossingGradient(1.0, np.zeros(n), np.zeros(n))
    probability, at_most, at_least = _corridor_gradient(points, most, least, n, gammaln(np.arange(n + 2.0)))
    by_lower, by_upper = np.zeros(n), np.zeros(n)
    is_lower, is_upper = np.isin(points, lower), np.isin(points, upper)
    by_lower[most[is_lower]] = -at_most[is_lower]  # `most` is the index of the first of a tie
    by_upper[least[is_upper] - 1] = at_least[is_upper]
    return CrossingGradient(probability, by_lower, by_upper)


@numba.njit(cache=True)
def _forward(
    points: FloatArray, most: IntArray, least: IntArray, n: int, log_factorial_shifted: FloatArray
) -> tuple[FloatArray, IntArray, IntArray, FloatArray, FloatArray]:  # pragma: no cover - compiled
    """Follow the Poisson process of rate n through the corridor; `log_factorial_shifted[k + 1]` is log k!.

    Returns state[m] = P(corridor so far, N = m) at the last point; for each point the lowest and the highest state that
    is kept (the last highest is -1 if there is none); and the states before a jump out of `most`, and into `least`.
    """
    log_total = -n + n * math.log(n) - log_factorial_shifted[n + 1]  # log P(Poisson(n) = n)
    num_points = points.size
    below_most, below_least = np.zeros(num_points), np.zeros(num_points)
    lows, highs = np.zeros(num_points, np.int64), np.zeros(num_points, np.int64)
    state, fresh, step = np.zeros(n + 2), np.zeros(n + 2), np.zeros(n + 2)
    state[0] = 1.0
    low, high, now = 0, 0, 0.0
    for j in range(num_points):
        mean = n * (points[j] - now)
        now = points[j]
        first, last = _poisson_window(mean, n, log_factorial_shifted, step)
        new_low = max(least[j], low + first)
        new_high = min(most[j], min(high + last, n))
        new_low, new_high = _prune(new_low, new_high, n, now, n * (1.0 - now), log_total, log_factorial_shifted)
        if new_low > new_high:
            highs[num_points - 1] = -1
            break
        for m in range(max(new_low - 1, 0), new_high + 1):
            total = 0.0
            for k in range(max(first, m - high), min(last, m - low) + 1):
                total += state[m - k] * step[k]
            fresh[m] = total
        if new_high == most[j]:
            below_most[j] = fresh[new_high]
        if new_low == least[j] and new_low > 0:
            below_least[j] = fresh[new_low - 1]
        state, fresh = fresh, state
        low, high = new_low, new_high
        lows[j], highs[j] = low, high
    return state, lows, highs, below_most, below_least


@numba.njit(cache=True)
def _corridor_probability(
    points: FloatArray, most: IntArray, least: IntArray, n: int, log_factorial_shifted: FloatArray
) -> float:  # pragma: no cover - compiled
    """P(least <= N(points) <= most) given N(1) = n."""
    if points.size == 0:
        return 1.0
    state, lows, highs, _, _ = _forward(points, most, least, n, log_factorial_shifted)
    log_total = -n + n * math.log(n) - log_factorial_shifted[n + 1]
    remaining = n * (1.0 - points[-1])
    probability = 0.0
    for m in range(lows[-1], highs[-1] + 1):
        if state[m] > 0.0:
            log_rest = _log_poisson(n - m, remaining, log_factorial_shifted)
            probability += math.exp(math.log(state[m]) + log_rest - log_total)
    return probability


@numba.njit(cache=True)
def _corridor_gradient(
    points: FloatArray, most: IntArray, least: IntArray, n: int, log_factorial_shifted: FloatArray
) -> tuple[float, FloatArray, FloatArray]:  # pragma: no cover - compiled
    """P(least <= N(points) <= most), and the densities of a jump out of `most`, and into `least`, at each point."""
    state, lows, highs, below_most, below_least = _forward(points, most, least, n, log_factorial_shifted)
    if highs[-1] < 0:
        return 0.0, below_most, below_least
    log_total = -n + n * math.log(n) - log_factorial_shifted[n + 1]
    # Backward: rest[m] = P(corridor after the point, N(1) = n | N(point) = m), divided by P(N(1) = n).
    rest, later, step = np.zeros(n + 2), np.zeros(n + 2), np.zeros(n + 2)
    remaining = n * (1.0 - points[-1])
    probability = 0.0
    for m in range(lows[-1], min(highs[-1] + 1, n) + 1):
        rest[m] = math.exp(_log_poisson(n - m, remaining, log_factorial_shifted) - log_total)
        if m <= highs[-1]:
            probability += state[m] * rest[m]
    for j in range(points.size - 1, -1, -1):
        if j < points.size - 1:
            rest, later = later, rest
            first, last = _poisson_window(n * (points[j + 1] - points[j]), n, log_factorial_shifted, step)
            for m in range(lows[j], min(highs[j] + 1, n) + 1):
                total = 0.0
                for k in range(max(first, lows[j + 1] - m), min(last, highs[j + 1] - m) + 1):
                    total += later[m + k] * step[k]
                rest[m] = total
        if below_most[j] > 0.0:
            below_most[j] *= n * rest[highs[j] + 1]
        if below_least[j] > 0.0:
            below_least[j] *= n * rest[lows[j]]
    return probability, below_most, below_least


@numba.njit(cache=True)
def _log_poisson(k: int, mean: float, log_factorial_shifted: FloatArray) -> float:  # pragma: no cover - compiled
    if mean <= 0.0:
        return 0.0 if k == 0 else -np.inf
    return float(k * math.log(mean) - mean - log_factorial_shifted[k + 1])


@numba.njit(cache=True)
def _poisson_window(
    mean: float, n: int, log_factorial_shifted: FloatArray, step: FloatArray
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Fill `step[k]` with Poisson(mean) probabilities around the mode; return the first and last k that matter."""
    mode = min(int(mean), n)
    step[mode] = math.exp(_log_poisson(mode, mean, log_factorial_shifted))
    floor = step[mode] * 1e-32
    first = mode
    while first > 0 and step[first] > floor:
        step[first - 1] = step[first] * first / mean
        first -= 1
    last = mode
    while last < n and step[last] > floor:
        step[last + 1] = step[last] * mean / (last + 1)
        last += 1
    return first, last


@numba.njit(cache=True)
def _prune(
    low: int,
    high: int,
    n: int,
    now: float,
    remaining: float,
    log_total: float,
    log_factorial_shifted: FloatArray,
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Drop states m at both ends with P(N(now) = m | N(1) = n) < 1e-30: the corridor only makes them rarer."""
    mean = n * now
    while low <= high and low < mean:
        log_bridge = _log_poisson(low, mean, log_factorial_shifted) + _log_poisson(
            n - low, remaining, log_factorial_shifted
        )
        if log_bridge - log_total >= _LOG_NEGLIGIBLE:
            break
        low += 1
    while high >= low and high > mean:
        log_bridge = _log_poisson(high, mean, log_factorial_shifted) + _log_poisson(
            n - high, remaining, log_factorial_shifted
        )
        if log_bridge - log_total >= _LOG_NEGLIGIBLE:
            break
        high -= 1
    return low, high
