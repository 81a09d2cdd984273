"""Berk-Jones levels at few of very many order statistics, still calibrated exactly (math §2.1).

Levels for all of K order statistics cost O(K^1.5), which ends being affordable near K = 100,000. But neighbours say
nearly the same: with a constraint at every fifth of a standard deviation of an order statistic, and at every one of
the first and last, less than 5 % of the distance to the empirical CDF is lost, and 10^6 values take seconds.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import betaincinv

from riskband.bands.crossing import RankLevels, crossing_probability_at
from riskband.bands.levels import Levels, constant_at, kept_ranks, largest_valid, log_hazard
from riskband.checks import FloatArray, IntArray

_SPACING, _MANY = 0.2, 100_000  # standard deviations between two ranks; beyond so many values it grows slowly
_SMALLER = 2_000, 20_000  # networks whose constants say where to look for that of a larger one
_TOLERANCE, _ROUNDING = 1e-7, 1e-10  # of delta, and in all: what the calibration may leave, on the safe side
_MIN_DELTA = 1e-8


def sparse_levels(num_values: int, delta: float, sides: str, *, low: float = 0.0, high: float = 1.0) -> Levels:
    """Berk-Jones levels at `sparse_ranks`, calibrated exactly; every other rank has the level of the one before it.

    A lower level at x_(i) holds at all larger values too, so it may be carried to the ranks above, and never to those
    below. `low` and `high` as for `truncated_levels`. Source: math §2.1. Raises ValueError if the range holds no order
    statistic of a wanted side, or delta is below 1e-8.
    """
    if delta < _MIN_DELTA:
        raise ValueError(
            f"sparse levels need delta >= {_MIN_DELTA:g}, got {delta:g}: rounding might decide; use method='dkw'"
        )
    wanted = tuple((kept.start + 1, kept.stop) for kept in kept_ranks(num_values, sides, low, high))
    spacing = _SPACING * max(1.0, num_values / _MANY) ** 0.25
    constant = constant_at(_point(num_values, delta, wanted, spacing))
    carried = [_carried(_constraints(num_values, constant, kept, spacing), num_values) for kept in wanted]
    return Levels(carried[0] if sides != "upper" else None, 1.0 - carried[-1][::-1] if sides != "lower" else None)


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


def _constraints(num_values: int, constant: float, kept: tuple[int, int], spacing: float) -> RankLevels:
    ranks = sparse_ranks(num_values, *kept, spacing=spacing)
    return RankLevels(ranks, np.asarray(betaincinv(ranks, num_values - ranks + 1.0, constant), dtype=np.float64))


def _carried(constraints: RankLevels, num_values: int) -> FloatArray:
    """Levels of all ranks: that of the last constrained rank at or below, 0 below the first."""
    lengths = np.diff(constraints.ranks, append=num_values + 1)
    return np.append(np.zeros(constraints.ranks[0] - 1), np.repeat(constraints.levels, lengths))


def coverage_at(num_values: int, constant: float, wanted: tuple[tuple[int, int], ...], *, spacing: float) -> float:
    """Probability, rounded down, that the constrained order statistics keep to the levels of a constant.

    `wanted` has the first and the last rank of one side, or of the lower side and of the reflected upper one.
    """
    sides = [_constraints(num_values, constant, kept, spacing) for kept in wanted]
    reflected = [RankLevels(num_values + 1 - s.ranks[::-1], 1.0 - s.levels[::-1]) for s in sides[1:]]
    return crossing_probability_at(num_values, sides[0], *reflected)


@lru_cache(maxsize=1024)
def _point(num_values: int, delta: float, wanted: tuple[tuple[int, int], ...], spacing: float) -> float:
    """Where `constant_at` is the largest constant that is valid."""

    def coverage(point: float) -> float:
        return coverage_at(num_values, constant_at(point), wanted, spacing=spacing)

    start, slope = log_hazard(1.0 - delta) - 3.0 - np.log(len(wanted)), 1.0
    if num_values > 2 * _SMALLER[-1]:  # in the logarithm of log K the points lie nearly on a line
        few, more = (_point(size, delta, _scaled(wanted, size / num_values), spacing) for size in _SMALLER)
        rise = np.diff(np.log(np.log([*_SMALLER, num_values])))
        start = more + (more - few) * rise[1] / rise[0]
        few_wanted = _scaled(wanted, _SMALLER[0] / num_values)
        moved = [coverage_at(_SMALLER[0], constant_at(few + by), few_wanted, spacing=spacing) for by in (0.0, 0.01)]
        slope = (log_hazard(moved[1]) - log_hazard(moved[0])) / 0.01
    return largest_valid(coverage, delta, float(start), slope=slope, allowance=_TOLERANCE * delta + _ROUNDING)


def _scaled(wanted: tuple[tuple[int, int], ...], share: float) -> tuple[tuple[int, int], ...]:
    """Nearly the same part of a smaller network; a search starts there, so nearly is enough."""
    return tuple((max(1, round(first * share)), max(1, round(last * share))) for first, last in wanted)
