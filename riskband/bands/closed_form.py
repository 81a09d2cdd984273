"""The sharpest bound for the CDF of true risks that a band for measured risks implies (math §2.4).

Let x be what a client measures on n examples. It is stochastically larger the larger the client's risk R is, so
P(x > v) >= P(R > t) P(x > v | R = t). A lower band P(x <= v) >= level for the measured risks therefore bounds the share
of clients above *every* risk t, by every v at once: 1 - F(t) <= (1 - level) / P(x > v | R = t), at no cost in delta.
For 0-1 losses no bound that follows from the band is smaller. It is `marginal` with every eta = P(x <= v | R = t).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import betainc

from riskband.answers.risks import ETA_GRID, upper_limit
from riskband.checks import FloatArray, IntArray

Knots = tuple[FloatArray, FloatArray]
"""Points and levels, shape (num_knots,) each: F >= level from the point on, or F <= level before it."""

# Every multiple of 1/400, so that quantiles of such levels lose nothing, and steps of 1 % of the share above a risk.
_TAIL = np.geomspace(0.25, 1e-7, 1_460)
_LEVELS = np.unique(np.concatenate([np.geomspace(1e-7, 2.5e-3, 40), np.arange(1, 400) / 400, 1.0 - _TAIL]))
# Not every order statistic is needed: with so many, the next one is as good.
_MOST_VALUES, _MOST_COMPARED, _MOST_JUMPS = 16_384, 2_048, 256
_BELOW = 1e-12
_LEAST_ETA = 1e-9  # next to a risk of 0 or 1 no limit need fail
_STRIDES = (64, 16, 4, 1)


@dataclass(frozen=True, eq=False)
class MeasuredBand:
    """One side of a band for the risks that clients measure: P(measured <= values[i]) >= levels[i]."""

    values: FloatArray  # increasing, in [0, 1], shape (num_values,); the levels too
    levels: FloatArray
    num_examples: int  # on which every client measures
    is_binary: bool  # whether every example's loss is 0 or 1; otherwise it lies in [0, 1]

    @classmethod
    def of_answers(cls, values: FloatArray, levels: FloatArray, *, num_examples: int, is_binary: bool) -> Self:
        """From levels at the sorted values, shape (num_clients,): of each tie the largest; what adds nothing goes."""
        ordered, best = np.sort(values), np.maximum.accumulate(levels)
        is_last = np.append(ordered[1:] > ordered[:-1], True)
        ordered, best = ordered[is_last], best[is_last]
        is_step = np.diff(best, prepend=0.0) > 0.0
        return cls(ordered[is_step], best[is_step], num_examples, is_binary)

    def thinned(self, num_values: int) -> Self:
        """Only so many of the values at most: a quarter at either end, the others evenly between."""
        size, quarter = self.values.size, num_values // 4
        if size <= num_values:
            return self
        inner = np.linspace(quarter, size - quarter - 1, num_values - 2 * quarter).astype(np.intp)
        kept = np.unique(np.concatenate([np.arange(quarter), inner, np.arange(size - quarter, size)]))
        return replace(self, values=self.values[kept], levels=self.levels[kept])

    def lower_knots(self) -> tuple[Knots, ...]:
        """Knots of lower bounds for the CDF of true risks: the values at each eta of the grid, and the best of all."""
        if self.levels.size == 0:
            return ()
        used, etas = self.thinned(_MOST_VALUES), np.array([_LEAST_ETA, *ETA_GRID])[:, None]
        points = used._limits(*np.broadcast_arrays(used.values, etas))
        levels = np.maximum((used.levels - etas) / (1.0 - etas), 0.0)
        of_grid = tuple(zip(points, levels, strict=True))
        compared = self.thinned(_MOST_COMPARED)
        return (*of_grid, compared._best_knots(), *((compared._knots_below_values(),) if self.is_binary else ()))

    def _best_knots(self) -> Knots:
        """For each level of a fixed grid, the smallest risk from which on any value gives it.

        No value gives it before its own measured risk. So clients that measure their risk exactly cannot break the
        bound either, and the sides of a band cannot cross: it contains the band for measured risks.

        The larger the risk, the larger the value that bounds best there: P(x > v' | R = t) / P(x > v | R = t) grows in
        t for v' > v. So the best value of a level lies between those of the levels around it.
        """
        levels = _LEVELS[: np.searchsorted(_LEVELS, self.levels[-1])]
        least = np.searchsorted(self.levels, levels, side="right")  # the first value whose own level is above
        best, risks = np.full(levels.size + 1, self.levels.size - 1), np.ones(levels.size)
        for stride in _STRIDES:
            outer = _STRIDES[0] if stride == _STRIDES[0] else 4 * stride
            new = np.arange(0, levels.size, stride)
            new = new if stride == outer else new[new % outer > 0]
            before, after = new - new % outer, np.minimum(new - new % outer + outer, levels.size)
            low = least[new] if stride == outer else np.maximum(least[new], best[before])
            high = np.full(new.size, best[-1]) if stride == outer else np.maximum(best[after], low)
            best[new], risks[new] = self._best_of(low, high, levels[new])
        return risks, levels

    def _knots_below_values(self) -> Knots:
        """Just below each value, which gives no level there itself yet: for clients that sample it may be used.

        Let a share a of clients be above the risk t and sample, and a share b be above it and measure exactly. The
        values give a <= A = min (1 - level) / P(x > v | t), and those that are at most t give a P(x > v | t) + b <=
        1 - level. So a + b <= 1 - level + A P(x <= v | t). Source: math §2.4.
        """
        inner = self.thinned(_MOST_JUMPS)
        risks = (inner.values[inner.values > _BELOW] - _BELOW)[:, None]
        counts = np.rint(inner.values * self.num_examples)
        above = betainc(counts + 1.0, np.maximum(self.num_examples - counts, 1e-300), risks)
        beyond = 1.0 - inner.levels
        most = np.min(beyond / np.maximum(above, 1e-300), axis=1, initial=1.0, keepdims=True)
        shares = np.where(inner.values <= risks, beyond + most * (1.0 - above), 1.0)
        return risks[:, 0], np.maximum(1.0 - np.min(shares, axis=1), 0.0)

    def _best_of(self, low: IntArray, high: IntArray, levels: FloatArray) -> tuple[IntArray, FloatArray]:
        """For each level the best value among those from `low` to `high`, and the risk from which on it gives it."""
        num = high - low + 1
        start = np.cumsum(num) - num
        index = np.arange(num.sum()) - np.repeat(start - low, num)
        values, wanted = self.values[index], np.repeat(levels, num)
        found = np.maximum(self._limits(values, (self.levels[index] - wanted) / (1.0 - wanted)), values)
        risks = np.minimum.reduceat(found, start)
        is_best = np.flatnonzero(found == np.repeat(risks, num))
        return index[is_best[np.searchsorted(is_best, start)]], risks

    def _limits(self, values: FloatArray, eta: FloatArray) -> FloatArray:
        return upper_limit(values, np.asarray(self.num_examples), eta=eta, binary=self.is_binary)
