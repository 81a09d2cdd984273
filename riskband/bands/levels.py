"""Levels of confidence bands: how far the CDF may be from the ranks of K independent values (math §2.1).

With x_(1) <= ... <= x_(K) the sorted values, lower levels L mean F(x_(i)) >= L_i for all i, upper levels U mean
F(x_(i) -) <= U_i for all i; each function makes its event hold with probability at least 1 - delta in (0, 1), for the
sides "lower", "upper" or "two". Ties and discrete distributions only help.

Levels for all of K order statistics cost O(K^1.5), which ends being affordable near K = 100,000. But neighbours say
nearly the same: with a constraint at every fifth of a standard deviation of an order statistic, and at every one of
the first and last (`sparse_levels`), less than 5 % of the distance to the empirical CDF is lost, and 10^6 values take
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv

from riskband.bands.crossing import RankLevels, crossing_probability, crossing_probability_at
from riskband.checks import FloatArray, IntArray

# Of sparse levels.
_SPACING, _MANY = 0.2, 100_000  # standard deviations between two ranks; beyond so many values it grows slowly
_SMALLER = 2_000, 20_000  # networks whose constants say where to look for that of a larger one
_TOLERANCE, _ROUNDING = 1e-7, 1e-10  # of delta, and in all: what the calibration may leave, on the safe side
_LEAST_DELTA = 1e-8
STITCHED, _FIRST_CHECKPOINT = "stitched", 16  # with fewer clients a band says next to nothing


class Levels(NamedTuple):
    """Lower and upper levels at the sorted values, each of shape (num_values,) or absent."""

    lower: FloatArray | None
    upper: FloatArray | None

    @classmethod
    def of_lower(cls, lower: Sequence[FloatArray] | FloatArray, sides: str) -> Levels:
        """Levels from lower ones: the first are of the lower side, the last of the reflected upper side."""
        return cls(lower[0] if sides != "upper" else None, 1.0 - lower[-1][::-1] if sides != "lower" else None)

    @property
    def coverage(self) -> float:
        """Probability that sorted uniform values keep to the levels."""
        return crossing_probability(np.zeros_like(self.upper) if self.lower is None else self.lower, self.upper)

    @property
    def of_one_side(self) -> FloatArray:
        """The levels of the only side that there is."""
        (levels,) = (side for side in self if side is not None)
        return levels


Ranks = tuple[int, int]
"""The first and the last of neighbouring order statistics, from 1."""


def dkw_levels(num_values: int, delta: float, sides: str) -> Levels:
    """Dvoretzky-Kiefer-Wolfowitz levels with Massart's constant.

    They are i/K minus, and (i - 1)/K plus, sqrt(log(c/delta) / (2 K)) for c = 1 or 2 sides. Massart's one-sided
    inequality needs delta <= 1/2; for larger delta the band of 1/2 is returned, which is wider. Source: Massart 1990;
    math §2.1.
    """
    num_sides = 2 if sides == "two" else 1
    return _even_levels(num_values, min(delta / num_sides, 0.5), sides)


def kolmogorov_levels(num_values: int, delta: float, sides: str) -> Levels:
    """Levels at one distance from the ranks, as `dkw_levels`, which is calibrated exactly: Kolmogorov's statistic.

    One-sided they are the band that [DC] call KS. Source: Smirnov 1944; math §2.1. Raises ValueError for a `delta`
    below 1e-9.
    """
    return _even_levels(num_values, _kolmogorov_constant(num_values, delta, is_two_sided=sides == "two"), sides)


@lru_cache(maxsize=1024)
def _kolmogorov_constant(num_values: int, delta: float, *, is_two_sided: bool) -> float:
    check_calibrated_delta(delta)

    def coverage(point: float) -> float:
        return _even_levels(num_values, constant_at(point), "two" if is_two_sided else "lower").coverage

    return constant_at(largest_valid(coverage, delta, log_hazard(1.0 - delta)))


def _even_levels(num_values: int, constant: float, sides: str) -> Levels:
    half_width = np.sqrt(np.log(1.0 / constant) / (2.0 * num_values))
    lower = np.clip(np.arange(1, num_values + 1) / num_values - half_width, 0.0, 1.0)
    return Levels.of_lower([lower], sides)


def berk_jones_levels(num_values: int, delta: float, sides: str) -> Levels:
    """Berk-Jones levels: the same tail probability at every order statistic, calibrated exactly; two sides jointly.

    They are L_i = Beta^{-1}(c; i, K - i + 1) and U_i = 1 - L_{K + 1 - i}, with c from `berk_jones_constant`. Source:
    math §2.1; [DC] states that two one-sided bounds hold jointly at the same delta, which is false.
    """
    lower = _berk_jones_lower(num_values, berk_jones_constant(num_values, delta, is_two_sided=sides == "two"))
    return Levels.of_lower([lower], sides)


@lru_cache(maxsize=1024)
def berk_jones_constant(num_values: int, delta: float, *, is_two_sided: bool) -> float:
    """Largest c in (0, delta], up to rounding, whose Berk-Jones boundary is crossed with probability at most `delta`.

    It is from the safe end of the search: the crossing probability of the boundary is verified to be at least
    1 - delta. Kept for the life of the process. Raises ValueError for a `delta` below 1e-9: rounding would decide.
    """
    check_calibrated_delta(delta)
    start = log_hazard(1.0 - delta) - 2.0 * np.log(np.log(num_values + 2.0)) - (np.log(2.0) if is_two_sided else 0.0)

    def coverage(point: float) -> float:
        lower = _berk_jones_lower(num_values, constant_at(point))
        return Levels.of_lower([lower], "two" if is_two_sided else "lower").coverage

    return constant_at(largest_valid(coverage, delta, start))


def checkpoint(num_clients: int) -> int:
    """Largest of 16, 32, 64, … that is no more than the number of clients; 0 below 16."""
    return 2 ** (num_clients.bit_length() - 1) if num_clients >= _FIRST_CHECKPOINT else 0


def stitched_levels(num_values: int, delta: float, sides: str) -> Levels:
    """Berk-Jones levels that hold at one number of first clients from 16 on, one from 32, … with probability 1 - delta.

    At the j-th of them with 6·delta / (pi·j)², which sums to delta; which they are is settled before any answer.
    Source: math §17.3. Raises ValueError below 16.
    """
    if num_values < _FIRST_CHECKPOINT:
        raise ValueError(f"a {STITCHED} band is of 16 clients or more, got {num_values}; take Sequence(...).band")
    epoch = (num_values // _FIRST_CHECKPOINT).bit_length()
    part = 6.0 * delta / (np.pi * epoch) ** 2
    return (berk_jones_levels if num_values <= _SMALLER[1] else sparse_levels)(num_values, part, sides)


def truncated_levels(num_values: int, delta: float, sides: str, *, low: float, high: float) -> Levels:
    """Berk-Jones levels that reach from one end of a range of the CDF to the other, calibrated exactly.

    Kept are the order statistics from the first with a lower level of at least `low` to the first with one of at least
    `high`, or to the last; outside, levels are constant. Upper levels are reflected. With low = 0 and high = 1, they
    are `berk_jones_levels`. Source: [DC] and its code; math §2.1. Raises ValueError if delta is below 1e-9.
    """
    check_calibrated_delta(delta)
    wanted = _reaching_ranks(num_values, delta, sides, (low, high), spacing=0.0)
    if all(kept == (1, num_values) for kept in wanted):
        return berk_jones_levels(num_values, delta, sides)
    constant = _truncated_constant(num_values, delta, wanted)
    return Levels.of_lower([_kept_levels(num_values, constant, kept) for kept in wanted], sides)


@lru_cache(maxsize=1024)
def _truncated_constant(num_values: int, delta: float, wanted: tuple[Ranks, ...]) -> float:
    def coverage(point: float) -> float:
        lower = [_kept_levels(num_values, constant_at(point), kept) for kept in wanted]
        return Levels.of_lower(lower, "two" if len(wanted) == 2 else "lower").coverage

    return constant_at(largest_valid(coverage, delta, log_hazard(1.0 - delta) - 1.0))


def _kept_levels(num_values: int, constant: float, kept: Ranks) -> FloatArray:
    first, last = kept
    levels, rank = np.zeros(num_values), np.arange(first, last + 1.0)
    levels[first - 1 : last] = betaincinv(rank, num_values - rank + 1.0, constant)
    return np.asarray(np.maximum.accumulate(levels))


@lru_cache(maxsize=1024)
def _reaching_ranks(
    num_values: int, delta: float, sides: str, window: tuple[float, float], *, spacing: float
) -> tuple[Ranks, ...]:
    """Order statistics whose levels reach through a window, of the lower side and of the reflected upper one.

    Which ones depends on the constant, and the constant on which they are. The search ends at a constant that is valid
    for its own ranks; the calibrated one of these is at least as large, so that their levels reach at least as far.
    """
    reflected = (1.0 - window[1], 1.0 - window[0])
    windows = {"lower": (window,), "upper": (reflected,), "two": (window, reflected)}[sides]
    rank = np.arange(1.0, num_values + 1.0)
    # From which constant on the level of each order statistic reaches an end of a window.
    least = betainc(rank, num_values - rank + 1.0, np.expand_dims(windows, -1))

    def ranks_at(point: float) -> tuple[Ranks, ...]:
        too_low = np.sum(least > constant_at(point), axis=-1)
        return tuple((first, last) for first, last in np.minimum(too_low + 1, num_values).tolist())

    def is_valid(point: float) -> bool:
        return coverage_at(num_values, constant_at(point), ranks_at(point), spacing=spacing) >= 1.0 - delta

    low, high = log_hazard(1.0 - delta / (2 * num_values)), log_hazard(1.0 - delta)  # by the union bound
    for _ in range(8 if ranks_at(low) != ranks_at(high) else 0):  # to some per cent of the constant: ranks are coarse
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_valid(middle) else (low, middle)
    return ranks_at(low)


def check_calibrated_delta(delta: float) -> None:
    """Raise ValueError if delta is too small for an exact calibration."""
    if delta < 1e-9:
        raise ValueError(
            f"calibrated levels need delta >= 1e-9, got {delta:g}: below it rounding would decide; use method='dkw'"
        )


def largest_valid(
    coverage: Callable[[float], float],
    delta: float,
    start: float = 0.0,
    *,
    slope: float = 1.0,
    allowance: float | None = None,
) -> float:
    """Largest point, up to rounding and from the safe side, at which a coverage is at least 1 - delta.

    The coverage is nonincreasing and continuous, from above 1 - delta to below; delta is in [1e-9, 1). At the point it
    is verified to be in [1 - delta, 1 - delta + allowance], by default 1e-9 delta + 1e-12. The search begins at
    `start`, where the `slope` of its logarithmic hazard is a guess. Raises RuntimeError if it does not converge, which
    no valid input is known to cause.
    """
    if allowance is None:
        allowance = 1e-9 * delta + 1e-12  # far above rounding, far below anything visible in the band
    target = log_hazard(1.0 - delta + allowance / 2)
    low, high = -np.inf, np.inf  # where the boundary is crossed too rarely, and too often
    point, previous, reach = start, None, 1.0
    for _ in range(100):
        found = coverage(point)
        if 0.0 <= found - (1.0 - delta) <= allowance:
            return point
        error = log_hazard(found) - target
        low, high = (point, high) if error < 0.0 else (low, point)
        if previous is not None and point != previous[0]:  # secant on axes where the curve is nearly straight
            slope = (error - previous[1]) / (point - previous[0])
        previous = (point, error)
        step = point - error / slope if slope > 0.0 else np.nan
        if low < step < high:
            point = step
        else:
            point = 0.5 * (max(low, point - reach) + min(high, point + reach))
            reach *= 2.0
    raise RuntimeError(f"calibration at delta={delta} did not converge")


def constant_at(point: float) -> float:
    """Error level of one constraint at a point of the search: the logarithm of its hazard."""
    return float(-np.expm1(-np.exp(point)))


def log_hazard(coverage: float) -> float:
    """Logarithm of the hazard -log(coverage), in which coverages of many constraints are nearly straight."""
    return float(np.log(-np.log(min(max(coverage, 1e-300), 1.0 - 1e-16))))


def _berk_jones_lower(num_values: int, c: float) -> FloatArray:
    rank = np.arange(1.0, num_values + 1.0)
    return np.asarray(betaincinv(rank, num_values - rank + 1.0, c), dtype=np.float64)


def sparse_levels(num_values: int, delta: float, sides: str, *, low: float = 0.0, high: float = 1.0) -> Levels:
    """Berk-Jones levels at `sparse_ranks`, calibrated exactly; every other rank has the level of the one before it.

    A lower level at x_(i) holds at all larger values too, so it may be carried to the ranks above, and never to those
    below. `low` and `high` as for `truncated_levels`. Source: math §2.1. Raises ValueError if the range holds no order
    statistic of a wanted side, or delta is below 1e-8.
    """
    if delta < _LEAST_DELTA:
        raise ValueError(
            f"sparse levels need delta >= {_LEAST_DELTA:g}, got {delta:g}: rounding might decide; use method='dkw'"
        )
    spacing = _SPACING * max(1.0, num_values / _MANY) ** 0.25
    wanted = _reaching_ranks(num_values, delta, sides, (low, high), spacing=spacing)
    constant = constant_at(_sparse_point(num_values, delta, wanted, spacing))
    return Levels.of_lower(
        [_carried(_constraints(num_values, constant, kept, spacing), num_values) for kept in wanted], sides
    )


def sparse_ranks(num_values: int, first: int, last: int, *, spacing: float) -> IntArray:
    """Ranks from `first` to `last`, at most `spacing` standard deviations of a count apart, and never more than needed.

    They depend on numbers that are known before any answer. The standard deviation is sqrt(i (1 - i/K)), so both ends
    are dense.
    """
    ranks, rank = [], first
    while rank <= last:
        ranks.append(rank)
        rank += max(1, int(spacing * np.sqrt(rank * (1.0 - rank / num_values))))
    return np.array(ranks, dtype=np.int64)


def _constraints(num_values: int, constant: float, kept: Ranks, spacing: float) -> RankLevels:
    ranks = sparse_ranks(num_values, *kept, spacing=spacing)
    return RankLevels(ranks, np.asarray(betaincinv(ranks, num_values - ranks + 1.0, constant), dtype=np.float64))


def _carried(constraints: RankLevels, num_values: int) -> FloatArray:
    """Levels of all ranks: that of the last constrained rank at or below, 0 below the first."""
    lengths = np.diff(constraints.ranks, append=num_values + 1)
    return np.append(np.zeros(constraints.ranks[0] - 1), np.repeat(constraints.levels, lengths))


def coverage_at(num_values: int, constant: float, wanted: tuple[Ranks, ...], *, spacing: float) -> float:
    """Probability, rounded down, that the constrained order statistics keep to the levels of a constant.

    `wanted` has the ranks of one side, or of the lower side and of the reflected upper one.
    """
    sides = [_constraints(num_values, constant, kept, spacing) for kept in wanted]
    reflected = [RankLevels(num_values + 1 - s.ranks[::-1], 1.0 - s.levels[::-1]) for s in sides[1:]]
    return crossing_probability_at(num_values, sides[0], *reflected)


@lru_cache(maxsize=1024)
def _sparse_point(num_values: int, delta: float, wanted: tuple[Ranks, ...], spacing: float) -> float:
    """Where `constant_at` is the largest constant that is valid."""

    def coverage(point: float) -> float:
        return coverage_at(num_values, constant_at(point), wanted, spacing=spacing)

    start, slope = log_hazard(1.0 - delta) - 3.0 - np.log(len(wanted)), 1.0
    if num_values > 2 * _SMALLER[-1]:  # in the logarithm of log K the points lie nearly on a line
        few, more = (_sparse_point(size, delta, _scaled(wanted, size / num_values), spacing) for size in _SMALLER)
        rise = np.diff(np.log(np.log([*_SMALLER, num_values])))
        start = more + (more - few) * rise[1] / rise[0]
        few_wanted = _scaled(wanted, _SMALLER[0] / num_values)
        moved = [coverage_at(_SMALLER[0], constant_at(few + by), few_wanted, spacing=spacing) for by in (0.0, 0.01)]
        slope = (log_hazard(moved[1]) - log_hazard(moved[0])) / 0.01
    return largest_valid(coverage, delta, float(start), slope=slope, allowance=_TOLERANCE * delta + _ROUNDING)


def _scaled(wanted: tuple[Ranks, ...], share: float) -> tuple[Ranks, ...]:
    """Nearly the same part of a smaller network; a search starts there, so nearly is enough."""
    return tuple((max(1, round(first * share)), max(1, round(last * share))) for first, last in wanted)
