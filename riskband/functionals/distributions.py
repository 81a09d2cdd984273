"""What a two-sided band says of the quantile function of client risks, and its members."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from riskband.bands.band import Band, band, check_band
from riskband.bands.local_steps import sums_from
from riskband.checks import FloatArray, IntArray, check_fraction, check_points

SMALLEST_MEAN = 1e-9
"""A band that allows a mean risk below this is read as allowing the mean 0, which only widens it.

Otherwise the most unequal distribution could put a mass beyond the resolution of a level, 1e-16, on the largest risk.
"""


class RiskDistribution(NamedTuple):
    """A discrete distribution of risks, as the steps of its quantile function.

    Attributes
    ----------
    risks : ndarray, shape (num_atoms,)
        Nondecreasing risks in [0, 1].
    levels : ndarray, shape (num_atoms,)
        P(risk <= risks[i]) where the risks differ; increasing, the last is 1. The quantile function is `risks[i]` on
        (levels[i - 1], levels[i]].
    """

    risks: FloatArray
    levels: FloatArray

    @classmethod
    def of_values(cls, values: npt.ArrayLike) -> RiskDistribution:
        """Empirical distribution of some risks in [0, 1], shape (num_values,); raises ValueError for anything else."""
        risks = np.sort(np.atleast_1d(check_points("risks", values)))
        return cls(risks, np.arange(1, risks.size + 1) / risks.size)

    @property
    def weights(self) -> FloatArray:
        """Probabilities of the atoms, shape (num_atoms,)."""
        return np.diff(self.levels, prepend=0.0)

    @property
    def mean(self) -> float:
        """Mean risk."""
        return float(np.sum(self.weights * self.risks))

    def quantile(self, level: npt.ArrayLike) -> FloatArray:
        """Smallest risk whose CDF reaches the level; levels in [0, 1], any shape."""
        return np.asarray(self.risks[np.searchsorted(self.levels, check_fraction("level", level), side="left")])


@dataclass(frozen=True, eq=False)
class QuantileLimits:
    """The quantile functions between which a band holds the distribution of client risks, on their common steps."""

    levels: FloatArray  # right ends of the steps, increasing, the last is 1; shape (num_steps,), as all
    lower: FloatArray  # smallest quantile on each step, nondecreasing
    upper: FloatArray  # largest quantile on each step

    @classmethod
    def of_band(cls, source: Band, *, one_side: bool = False) -> QuantileLimits:
        """Limits of a band; raises ValueError if it has only one side, unless that is allowed, or is no band.

        Of a missing side a risk in [0, 1] is all that is known.
        """
        check_band(source)
        if not one_side:
            source.require("lower")
            source.require("upper")
        knots = np.concatenate([source.lower_levels, source.upper_levels, [1.0]])
        levels = np.unique(knots[knots > 0.0])
        lower = np.zeros_like(levels) if source.sides == "lower" else source.quantile_lower(levels)
        upper = np.ones_like(levels) if source.sides == "upper" else source.quantile_upper(levels)
        if np.sum(np.diff(levels, prepend=0.0) * lower) < SMALLEST_MEAN:
            lower = np.zeros_like(lower)
        return cls(levels, lower, upper)

    @classmethod
    def of_measured_risks(cls, source: Band) -> QuantileLimits | None:
        """Limits for the measured risks that hold on the same event as the band; `None` if there are none.

        With `local="marginal"` and equal numbers of examples, both are made from the same levels.
        """
        if not has_measured_limits(source):
            return None
        measured = band(source.answers, **{**source.recipe(), "local": "observed", "eta": None})
        return cls.of_band(measured, one_side=True)

    @cached_property
    def edges(self) -> FloatArray:
        """Ends of all steps, shape (num_steps + 1,), from 0 to 1."""
        return np.concatenate([[0.0], self.levels])

    @cached_property
    def widths(self) -> FloatArray:
        """Widths of the steps, shape (num_steps,)."""
        return np.diff(self.edges)

    @cached_property
    def centres(self) -> CentreIntervals:
        """Where the steps of clip(centre, l, u) lie, for every centre."""
        low = np.unique(np.concatenate([self.lower, self.upper]))
        first = np.searchsorted(self.upper, low, side="right")
        last = np.searchsorted(self.lower, low, side="right")
        width = self.edges[last] - self.edges[first]
        at_ends = sums_before(self.widths * self.upper)[first] + sums_from(self.widths * self.lower)[last]
        return CentreIntervals(low, np.append(low[1:], low[-1]), first, last, width, at_ends + width * low)

    @property
    def allow_only_zero(self) -> bool:
        """Whether every member has risk 0 almost surely."""
        return bool(self.upper[-1] == 0.0)

    @property
    def allow_all_zero(self) -> bool:
        """Whether the distribution of risk 0 is a member."""
        return bool(self.lower[-1] == 0.0)

    @property
    def allow_zero(self) -> bool:
        """Whether a member has clients of risk 0."""
        return bool(self.lower[0] == 0.0)

    def most_unequal(self, cut: float) -> RiskDistribution:
        """Member with the smallest quantiles up to the level `cut` and the largest above it; cut in [0, 1]."""
        step = int(np.searchsorted(self.levels, cut, side="left"))
        levels = np.concatenate([self.levels[:step], [cut], self.levels[step:]])
        risks = np.concatenate([self.lower[: step + 1], self.upper[step:]])
        is_step = np.diff(levels, prepend=0.0) > 0.0
        return RiskDistribution(risks[is_step], levels[is_step])

    def most_equal(self, centre: float) -> RiskDistribution:
        """Member whose quantiles are as near to the risk `centre` as the limits allow."""
        return RiskDistribution(np.clip(centre, self.lower, self.upper), self.levels)

    def integral(self, values: FloatArray) -> float:
        """Integral of a function that is constant on each step; values of shape (num_steps,)."""
        return float(np.sum(self.widths * values))


def has_measured_limits(source: Band) -> bool:
    """Whether the band rests on levels that hold for measured risks too, on the same event."""
    return source.local == "marginal" and source.risks.has_equal_sizes and source.risks.noise is None


@dataclass(frozen=True, eq=False)
class CentreIntervals:
    """Between two neighbouring knots, clip(centre, l, u) has u on the first steps, l on the last, `centre` between.

    Steps [0, first) are at u, [first, last) at the centre, [last, num_steps) at l. Arrays have shape (num_knots,).
    """

    low: FloatArray  # ends of the intervals of the centre
    high: FloatArray  # the last interval is a single point
    first: IntArray
    last: IntArray
    width: FloatArray  # mass at the centre
    means: FloatArray  # of the distributions at `low`

    def rest(self, at_lower: FloatArray, at_upper: FloatArray) -> FloatArray:
        """Sums of `at_upper` over the steps at u and of `at_lower` over those at l, shape (num_knots,)."""
        return np.asarray(sums_before(at_upper)[self.first] + sums_from(at_lower)[self.last])


def sums_before(values: FloatArray) -> FloatArray:
    """Sums of all values before each end of a step, shape (num_steps + 1,)."""
    return np.concatenate([[0.0], np.cumsum(values)])
