"""Exact gradient of a boundary-crossing probability: what moving each boundary point would cost (math §2.3).

Raising the lower boundary a_i loses exactly the paths on which the i-th order statistic is at a_i and all others keep
to the corridor. Such a path is one inside the corridor before a_i, a jump there, and one inside it after, so the
derivative is a product of two crossing probabilities ([DC] A.2.2). A forward and a backward pass give all of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
from scipy.special import gammaln

from riskband.bands.crossing import _corridor, _log_poisson, _poisson_window, _prune
from riskband.checks import FloatArray, IntArray


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
    """Crossing probability of uniform order statistics with its exact gradient.

    Parameters
    ----------
    lower : ndarray, shape (n,)
        Nondecreasing lower boundaries in [0, 1); not checked.
    upper : ndarray, shape (n,), optional
        Nondecreasing upper boundaries in (0, 1], at least `lower`; none by default.

    Returns
    -------
    CrossingGradient
        The probability and its derivatives. Source: [DC] appendix A.2.2; math §2.3.
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
def _corridor_gradient(
    points: FloatArray, most: IntArray, least: IntArray, n: int, log_factorial_shifted: FloatArray
) -> tuple[float, FloatArray, FloatArray]:  # pragma: no cover - compiled
    """P(least <= N(points) <= most), and the densities of a jump out of `most`, and into `least`, at each point."""
    log_total = -n + n * math.log(n) - log_factorial_shifted[n + 1]
    num_points = points.size
    below_most, below_least = np.zeros(num_points), np.zeros(num_points)  # states before the jump
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
            return 0.0, below_most, below_least
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
    # Backward: rest[m] = P(corridor after the point, N(1) = n | N(point) = m), divided by P(N(1) = n).
    rest, later = np.zeros(n + 2), np.zeros(n + 2)
    last_low, last_high = lows[num_points - 1], highs[num_points - 1]
    remaining = n * (1.0 - points[num_points - 1])
    probability = 0.0
    for m in range(last_low, min(last_high + 1, n) + 1):
        rest[m] = math.exp(_log_poisson(n - m, remaining, log_factorial_shifted) - log_total)
        if m <= last_high:
            probability += state[m] * rest[m]
    for j in range(num_points - 1, -1, -1):
        if j < num_points - 1:
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
