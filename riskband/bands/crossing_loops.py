"""The compiled loops of crossing.py, apart from it so that numba is loaded on use only."""

import math
from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

from riskband.checks import FloatArray, IntArray

_Function = TypeVar("_Function", bound=Callable[..., object])
_SMALL = 20_000  # values; up to here every bit is as it has always been, so that certificates verify
_NEGLIGIBLE, _NEGLIGIBLE_OF_MANY = 1e-30, 1e-22  # probabilities of a state, with few and with many values
_PAD = 4  # zeros on both sides of a state, so that four shifts of it can be added at once


def _compiled(function: _Function) -> _Function:
    """Compile on the first call, and keep the machine code for the next process where a folder can be written."""
    try:
        return cast(_Function, numba.njit(cache=True)(function))
    except RuntimeError:  # neither __pycache__ nor the user's own cache can be written
        return cast(_Function, numba.njit(function))


@_compiled
def _forward(
    points: FloatArray, most: IntArray, least: IntArray, n: int, log_factorial_shifted: FloatArray
) -> tuple[FloatArray, IntArray, IntArray, FloatArray, FloatArray, int]:  # pragma: no cover - compiled
    """Follow the Poisson process of rate n through the corridor; `log_factorial_shifted[k + 1]` is log k!.

    Returns state[m] = P(corridor so far, N = m) at the last point; for each point the lowest and the highest state that
    is kept (the last highest is -1 if there is none); the states before a jump out of `most`, and into `least`; and the
    number of terms of all sums for one state, of which the rounding errors consist.
    """
    log_total = _log_of_total(n, log_factorial_shifted)
    num_points, num_terms = points.size, 0
    below_most, below_least = np.zeros(num_points), np.zeros(num_points)
    lows, highs = np.zeros(num_points, np.int64), np.zeros(num_points, np.int64)
    state, fresh, step = np.zeros(n + 2 + 2 * _PAD), np.zeros(n + 2 + 2 * _PAD), np.zeros(n + 2)
    state[_PAD] = 1.0
    low, high, now = 0, 0, 0.0
    for j in range(num_points):
        mean = n * (points[j] - now)
        now = points[j]
        first, last = _poisson_window(mean, n, log_factorial_shifted, step)
        new_low = max(least[j], low + first)
        new_high = min(most[j], min(high + last, n))
        new_low, new_high = _prune(new_low, new_high, n, now, log_total, log_factorial_shifted)
        if new_low > new_high:
            highs[num_points - 1] = -1
            break
        _convolve(state, low, high, step, first, last, fresh, max(new_low - 1, 0), new_high)
        num_terms += last - first + 1
        if new_high == most[j]:
            below_most[j] = fresh[_PAD + new_high]
        if new_low == least[j] and new_low > 0:
            below_least[j] = fresh[_PAD + new_low - 1]
        state, fresh = fresh, state
        low, high = new_low, new_high
        lows[j], highs[j] = low, high
    return state[_PAD:], lows, highs, below_most, below_least, num_terms


@_compiled
def _convolve(
    state: FloatArray,
    low: int,
    high: int,
    step: FloatArray,
    first: int,
    last: int,
    fresh: FloatArray,
    new_low: int,
    new_high: int,
) -> None:  # pragma: no cover - compiled
    """fresh[m] = sum of state[m - k] step[k], for m in [new_low, new_high]; states have `_PAD` numbers before 0.

    Four steps move all states at once: loops of this form become vector instructions, and every sum still runs over k
    from the least to the largest.
    """
    for i in range(1, _PAD):
        state[_PAD + low - i] = 0.0
        state[_PAD + high + i] = 0.0
    for m in range(new_low, new_high + 1):
        fresh[_PAD + m] = 0.0
    k = first
    while k + 3 <= last:
        from_state = max(new_low, low + k)
        size = min(new_high, high + k + 3) - from_state + 1
        if size > 0:
            start = _PAD + from_state - k
            target = fresh[start + k : start + k + size]
            zero, one = state[start : start + size], state[start - 1 : start - 1 + size]
            two, three = state[start - 2 : start - 2 + size], state[start - 3 : start - 3 + size]
            p, q, r, s = step[k], step[k + 1], step[k + 2], step[k + 3]
            for i in range(size):
                target[i] = target[i] + p * zero[i] + q * one[i] + r * two[i] + s * three[i]
        k += 4
    while k <= last:
        for m in range(max(new_low, low + k), min(new_high, high + k) + 1):
            fresh[_PAD + m] += step[k] * state[_PAD + m - k]
        k += 1


@_compiled
def corridor_probability(
    points: FloatArray, most: IntArray, least: IntArray, n: int, log_factorial_shifted: FloatArray
) -> tuple[float, int]:  # pragma: no cover - compiled
    """P(least <= N(points) <= most) given N(1) = n, and the number of terms of `_forward`."""
    if points.size == 0:
        return 1.0, 0
    state, lows, highs, _, _, num_terms = _forward(points, most, least, n, log_factorial_shifted)
    log_total = _log_of_total(n, log_factorial_shifted)
    remaining = n * (1.0 - points[-1])
    probability = 0.0
    for m in range(lows[-1], highs[-1] + 1):
        if state[m] > 0.0:
            log_rest = _log_poisson(n - m, remaining, log_factorial_shifted)
            probability += math.exp(math.log(state[m]) + log_rest - log_total)
    return probability, num_terms


@_compiled
def corridor_gradient(
    points: FloatArray, most: IntArray, least: IntArray, n: int, log_factorial_shifted: FloatArray
) -> tuple[float, FloatArray, FloatArray]:  # pragma: no cover - compiled
    """P(least <= N(points) <= most), and the densities of a jump out of `most`, and into `least`, at each point."""
    state, lows, highs, below_most, below_least, _ = _forward(points, most, least, n, log_factorial_shifted)
    if highs[-1] < 0:
        return 0.0, below_most, below_least
    log_total = _log_of_total(n, log_factorial_shifted)
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


@_compiled
def _log_of_total(n: int, log_factorial_shifted: FloatArray) -> float:  # pragma: no cover - compiled
    """Log P(Poisson(n) = n); by Stirling's series for a large n, of which the formula would cancel most digits."""
    if n <= _SMALL:
        return float(-n + n * math.log(n) - log_factorial_shifted[n + 1])
    return float(-0.5 * math.log(2.0 * math.pi * n) - (1.0 / 12.0 - 1.0 / (360.0 * n * n)) / n)


@_compiled
def _log_poisson(k: int, mean: float, log_factorial_shifted: FloatArray) -> float:  # pragma: no cover - compiled
    if mean <= 0.0:
        return 0.0 if k == 0 else -np.inf
    return float(k * math.log(mean) - mean - log_factorial_shifted[k + 1])


@_compiled
def _poisson_window(
    mean: float, n: int, log_factorial_shifted: FloatArray, step: FloatArray
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Fill `step[k]` with Poisson(mean) probabilities around the mode; return the first and last k that matter.

    Of many values, they are divided by their sum, which is 1 but for rounding: so the error of the logarithm at the
    mode, which is the same in all of them, does not add up over the points.
    """
    mode = min(int(mean), n)
    step[mode] = math.exp(_log_poisson(mode, mean, log_factorial_shifted))
    floor = step[mode] * (1e-32 if n <= _SMALL else 1e-24)
    first = mode
    while first > 0 and step[first] > floor:
        step[first - 1] = step[first] * first / mean
        first -= 1
    last = mode
    while last < n and step[last] > floor:
        step[last + 1] = step[last] * mean / (last + 1)
        last += 1
    if n > _SMALL and last < n:
        total = 0.0
        for k in range(first, last + 1):
            total += step[k]
        for k in range(first, last + 1):
            step[k] /= total
    return first, last


@_compiled
def _prune(
    low: int, high: int, n: int, now: float, log_total: float, log_factorial_shifted: FloatArray
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Drop states m at both ends with a negligible P(N(now) = m | N(1) = n): the corridor only makes them rarer."""
    least = math.log(_NEGLIGIBLE if n <= _SMALL else _NEGLIGIBLE_OF_MANY)
    while low <= high and low < n * now and _log_bridge(low, n, now, log_factorial_shifted) - log_total < least:
        low += 1
    while high >= low and high > n * now and _log_bridge(high, n, now, log_factorial_shifted) - log_total < least:
        high -= 1
    return low, high


@_compiled
def _log_bridge(
    state: int, n: int, now: float, log_factorial_shifted: FloatArray
) -> float:  # pragma: no cover - compiled
    """Log P(N(now) = state, N(1) = n)."""
    so_far = _log_poisson(state, n * now, log_factorial_shifted)
    return so_far + _log_poisson(n - state, n * (1.0 - now), log_factorial_shifted)
