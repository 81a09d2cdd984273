"""Limits by betting for measures that are min over a of E A_a(R) / E B(R), one client after the other (math §5.6).

Every A_a is convex in the risk, and B is the risk itself, or 1. Atkinson indices, entropies, the coefficient of
variation and top shares have this form, with a the power mean, the mean, or a quantile of the risks.

*Above.* If the ratio is at least v, then E[v·B - A_a] <= 0 for every a: a gambler may bet on v·B - A_a with the a that
the clients before suggest. *Below.* If the ratio is at most v, then E[A_a - v·B] <= 0 for one a, which nobody knows.
For each a there is a gambler who bets on that; v is rejected where all of them win, which is computed by cells of a.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb, factorial
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import xlogy

from riskband.answers.risks import ClientRisks
from riskband.betting import LARGEST_SHARE, before, log_average_excess
from riskband.checks import FloatArray, IntArray
from riskband.duals import variance_of_examples
from riskband.search import bisect

_POINTS = np.geomspace(1e-4, 1.0, 97)
_PRIOR = 0.05  # variance of the gains before any was seen
_HIGHEST = 1e4  # what ratios are looked for
_DEPTH = 6  # how often a cell of a is halved
_AHEAD = 1.3  # bets are cut for ratios so much farther from the smallest one than the past suggests
_MOST_COUNTS = 2_000
_UNSEEN, _FORESEEN = 0.75, 0.7
_FEW_WRONG = 4.0  # wrong examples, from which on the order of a Taylor polynomial is 3
_ENOUGH = 10  # examples, from which on three are set aside


class Counts(NamedTuple):
    """Numbers of wrong examples (sums of losses), and of all, of which a function of one client's answer is made."""

    wrong: FloatArray
    total: FloatArray

    @classmethod
    def of(cls, risks: ClientRisks) -> Counts:
        """Those of all clients."""
        sums = risks.values * risks.num_examples
        return cls(np.rint(sums) if risks.binary else sums, risks.num_examples.astype(np.float64))

    @property
    def risks(self) -> FloatArray:
        """Measured risks."""
        return self.wrong / self.total


class Cell(Protocol):
    """Numbers for all a in a cell, from counts: their expectation is at most A_a(R)."""

    def at_least(self, low: float, high: float) -> FloatArray:
        """Smallest of them for a in [low, high], within the cell."""


@dataclass(frozen=True)
class Ratio:
    """A measure that is a function of min over a of E A_a(R) / E B(R).

    Attributes
    ----------
    low, high : float
        Smallest and largest value of the ratio.
    above : callable
        From a and an array of measured risks, A_a of them.
    below : callable
        From the ends of a cell of a and `Counts`, the `Cell`.
    of_risk : bool
        Whether B is the risk; otherwise it is 1.
    largest_mean : {"a", "a / (1 - ratio)", None}
        How large the mean can be where the minimum is at a; None if nothing is known, and a may be 0.
    is_quadratic : bool
        Whether A_a is R²/(2a) + a/2, which can be estimated without bias.
    """

    low: float
    high: float
    above: Callable[[float, FloatArray], FloatArray]
    below: Callable[[float, float, Counts], Cell]
    of_risk: bool = True
    largest_mean: str | None = "a"
    is_quadratic: bool = False

    @property
    def points(self) -> FloatArray:
        """Edges of the cells of a, increasing; below the first one, if it is not 0, the mean is small."""
        return np.append(0.0, _POINTS) if self.largest_mean is None else _POINTS

    def base(self, risks: FloatArray) -> FloatArray:
        """B, from measured risks."""
        return risks if self.of_risk else np.ones_like(risks)


def ratio_upper_limit(ratio: Ratio, risks: ClientRisks, orders: IntArray, *, delta: float) -> float:
    """Upper confidence limit for a ratio, infinite if there is none; orders of shape (num_orders, num_clients).

    A_a is convex, so measured risks serve (Jensen). Where it is quadratic and the loss is 0-1, what the examples of a
    client add to it is taken off.
    """
    base = ratio.base(risks.values)[orders]
    best = np.full(base.shape, np.inf)
    foreseen, outcomes, bets = np.zeros(base.shape), np.zeros(base.shape), np.zeros(base.shape)
    # So many clients cannot exclude that a few in all, not seen yet, have risk 1: the choice of a has to expect them.
    unseen = _UNSEEN * np.log(1.0 / delta) * np.arange(base.shape[1]) / base.shape[1]
    for point in ratio.points[::2]:
        numbers = ratio.above(point, risks.values)
        if ratio.is_quadratic and risks.binary:
            numbers = numbers - variance_of_examples(risks) / (2.0 * point)
        found = numbers[orders]
        at_ends = ratio.above(point, np.array([0.0, 0.1, 1.0]))
        past = _Past.of(found, base, float(at_ends[1]), 0.1)
        sums = before(np.cumsum(base, axis=1), 0.0) + 0.002
        expected = (past.ratio * sums + unseen * at_ends[2]) / (sums + unseen)
        reference = past.ratio + _FORESEEN * np.maximum(expected - past.ratio, 0.0)
        is_better = expected < best
        best[is_better], foreseen[is_better] = expected[is_better], reference[is_better]
        outcomes[is_better] = found[is_better]
        largest_loss = np.maximum(at_ends[0], at_ends[2] - reference)
        bets[is_better] = _bets(past.variance, largest_loss, delta)[is_better]

    def survives(value: FloatArray) -> np.ndarray:
        gains = bets * (value * base - outcomes)
        return np.asarray(np.logical_not(_reaches(gains, value >= foreseen, delta)))

    limit = float(bisect(survives, low=ratio.low, high=min(ratio.high, _HIGHEST), num_steps=50)[1])
    return limit if limit < _HIGHEST else np.inf


def ratio_lower_limit(ratio: Ratio, risks: ClientRisks, orders: IntArray, *, delta: float) -> float:
    """Lower confidence limit for a ratio, from counts; orders of shape (num_orders, num_clients)."""
    game = _Below(ratio, risks, orders, delta)
    high = max(ratio.low, min(game.measured, ratio.high))  # limits beyond what was measured are of no interest
    return float(bisect(game.are_all_rejected, low=ratio.low, high=high, num_steps=16)[0])


class _Past(NamedTuple):
    """What the clients before show: ratio of sums, and variance of outcome - ratio·base."""

    ratio: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, outcomes: FloatArray, base: FloatArray, first_outcome: float, first_base: float) -> _Past:
        """A client with the first two numbers is taken to come before all others, with a small weight."""
        weight = 0.02
        sums = np.cumsum(base, axis=1) + weight * first_base
        ratio = (np.cumsum(outcomes, axis=1) + weight * first_outcome) / sums
        squares = np.cumsum(outcomes**2, axis=1) + ratio * (
            ratio * np.cumsum(base**2, axis=1) - 2.0 * np.cumsum(outcomes * base, axis=1)
        )
        variance = (_PRIOR + np.maximum(squares, 0.0)) / (np.arange(base.shape[1]) + 2.0)
        return cls(before(ratio, first_outcome / first_base), before(variance, _PRIOR))


def _bets(variance: FloatArray, largest_loss: FloatArray, delta: float) -> FloatArray:
    sharpest = np.sqrt(2.0 * np.log(1.0 / delta) / (variance.shape[1] * variance))
    return np.asarray(np.minimum(sharpest, LARGEST_SHARE / np.maximum(largest_loss, 1e-9)))


def _reaches(gains: FloatArray, is_foreseen: np.ndarray, delta: float) -> np.ndarray:
    """Whether the average of the final capitals reaches 1/delta.

    A bet was cut so that it cannot lose everything for the values that it foresaw; for others it may not gain.
    """
    factors = 1.0 + np.where(is_foreseen, gains, np.clip(gains, -1.0, 0.0))
    with np.errstate(divide="ignore"):
        return np.asarray(log_average_excess(np.sum(np.log(factors), axis=1), delta) >= 0.0)


class _Gambler(NamedTuple):
    """Who bets for all a in one cell: the same sizes of bets, up to the same foreseen values."""

    low: float
    high: float
    cell: Cell
    bets: FloatArray
    foreseen: FloatArray


class _Below:
    """Gamblers for all a, each of whom doubts that the ratio is at most a value and that it is attained at this a."""

    def __init__(self, ratio: Ratio, risks: ClientRisks, orders: IntArray, delta: float) -> None:
        self.ratio, self.orders, self.delta = ratio, orders, delta
        self.risks = risks.values[orders]
        self.base = ratio.base(self.risks)
        counts, possible = Counts.of(risks), _possible_counts(risks)
        self.measured = np.inf
        self.gamblers = [self._gambler(low, high, counts, possible) for low, high in pairwise(ratio.points.tolist())]
        self.won: dict[tuple[float, float], float] = {}  # by ends of a cell, the largest value found to be rejected

    def _gambler(self, low: float, high: float, counts: Counts, possible: Counts) -> _Gambler:
        cell, middle = self.ratio.below(low, high, counts), 0.5 * (low + high)
        numbers = cell.at_least(middle, middle)[self.orders]
        self.measured = min(self.measured, float(np.sum(numbers[0]) / max(np.sum(self.base[0]), 1e-12)))
        past = _Past.of(numbers, self.base, 0.1 + self.ratio.low * 0.1, 0.1)
        values = self.ratio.low + np.append(0.0, np.geomspace(1e-3, 20.0, 40))
        foreseen = np.minimum(self.ratio.low + _AHEAD * np.maximum(past.ratio - self.ratio.low, 0.0) + 0.02, values[-1])
        least = self.ratio.below(low, high, possible).at_least(low, high)
        base = self.ratio.base(possible.risks)
        losses = [np.max(value * base - least) for value in values]  # convex in the value: chords are above it
        return _Gambler(
            low, high, cell, _bets(past.variance, np.interp(foreseen, values, losses), self.delta), foreseen
        )

    def are_all_rejected(self, value: FloatArray) -> np.ndarray:
        """Whether all gamblers win; the one who failed is asked first the next time."""
        if not self._is_mean_large(float(value)):
            return np.asarray(False)
        for index, gambler in enumerate(self.gamblers):
            if not self._wins(gambler, gambler.low, gambler.high, float(value), _DEPTH):
                self.gamblers.insert(0, self.gamblers.pop(index))
                return np.asarray(False)
        return np.asarray(True)

    def _wins(self, gambler: _Gambler, low: float, high: float, value: float, depth: int) -> bool:
        if value <= self.won.get((low, high), -np.inf):
            return True
        gains = gambler.bets * (gambler.cell.at_least(low, high)[self.orders] - value * self.base)
        if _reaches(gains, value <= gambler.foreseen, self.delta):
            self.won[low, high] = value
            return True
        middle = 0.5 * (low + high)
        return depth > 0 and all(
            self._wins(gambler, *ends, value, depth - 1) for ends in ((low, middle), (middle, high))
        )

    def _is_mean_large(self, value: float) -> bool:
        """Whether a below all cells is rejected: the mean would be at most that, or that over 1 - value."""
        if self.ratio.largest_mean is None:
            return True
        part = 1.0 if self.ratio.largest_mean == "a" else 1.0 - value
        return bool(_reaches(0.5 * (part * self.risks / self.ratio.points[0] - 1.0), np.asarray(True), self.delta))


def _possible_counts(risks: ClientRisks) -> Counts:
    """All counts that clients with these numbers of examples can have; of many, so many that the rest lie between."""
    found = []
    for total in np.unique(risks.num_examples).tolist():
        if risks.binary and total <= _MOST_COUNTS:
            wrong = np.arange(total + 1.0)
        else:
            spaced = np.linspace(0.0, total, _MOST_COUNTS)
            ends = np.minimum(np.arange(100.0), total)
            wrong = np.unique(np.concatenate([ends, np.rint(spaced) if risks.binary else spaced, total - ends]))
        found.append(np.stack([wrong, np.full(wrong.size, float(total))]))
    wrong, totals = np.concatenate(found, axis=1)
    return Counts(wrong, totals)


@dataclass(frozen=True)
class _Moment:
    """A_a(r) = u(r) f(a) + r g(a) + e(a) with u convex, f >= 0, and f, g, e monotone; u by itself and its derivatives.

    `has_fourth` says that the fourth derivative of u is nowhere negative: then the Taylor polynomial of order 3 is
    nowhere above u, as that of order 1 is.
    """

    derivatives: Sequence[Callable[[FloatArray], FloatArray]]
    factors: Sequence[Callable[[float], float]]
    has_fourth: bool = True
    is_quadratic: bool = False

    def above(self, point: float, risks: FloatArray) -> FloatArray:
        f, g, e = (factor(point) for factor in self.factors)
        with np.errstate(divide="ignore"):
            return np.asarray(self.derivatives[0](risks) * f + risks * g + e)

    def below(self, low: float, high: float, counts: Counts) -> _MomentCell:
        if self.is_quadratic:
            return _MomentCell(_square_at_most(counts), counts.risks, self.factors)
        return _MomentCell(_at_most(self.derivatives, counts, self.has_fourth), counts.risks, self.factors)


class _MomentCell(NamedTuple):
    numbers: FloatArray
    risks: FloatArray
    factors: Sequence[Callable[[float], float]]

    def at_least(self, low: float, high: float) -> FloatArray:
        (f, f_high), (g, g_high), (e, e_high) = ((each(low), each(high)) for each in self.factors)
        least = np.minimum(self.numbers * f, self.numbers * f_high)
        return np.asarray(least + self.risks * min(g, g_high) + min(e, e_high))


def _square_at_most(counts: Counts) -> FloatArray:
    """Numbers with expectation R² for a 0-1 loss, and at most that for any; 2r/2 - 1/4 where there is one example."""
    x, n = counts
    return np.where(n > 1.0, x * (x - 1.0) / (n * np.maximum(n - 1.0, 1.0)), x / n - 0.25)


def _at_most(derivatives: Sequence[Callable[[FloatArray], FloatArray]], counts: Counts, has_fourth: bool) -> FloatArray:
    """Numbers from counts of a 0-1 loss with expectation at most u(R).

    A few examples are set aside; the others say at which risk the Taylor polynomial of u is taken, and of which order:
    that for the powers of R minus this risk, products over the examples set aside are estimates without bias.
    Averaged over the choice of those.
    """
    x, n = counts
    total = np.zeros_like(x)
    for num_aside in (1, 3):
        has_this = (n >= _ENOUGH) == (num_aside == 3)
        for wrong in range(num_aside + 1):
            rest = np.maximum(x - wrong, 0.0)
            at = (rest + 0.75) / (np.maximum(n - num_aside, 0.0) + 1.5)
            weight = has_this * _hypergeometric(wrong, num_aside, x, n)
            # Means over the examples set aside of the products of k of their losses.
            means = [comb(wrong, k) / comb(num_aside, k) for k in range(num_aside + 1)]
            is_far = (rest >= _FEW_WRONG) * float(has_fourth)
            for order, derivative in enumerate(derivatives[: num_aside + 1]):
                power = sum(comb(order, k) * (-at) ** (order - k) * means[k] for k in range(order + 1))
                total += weight * derivative(at) * power / factorial(order) * (is_far if order > 1 else 1.0)
    return total


def _hypergeometric(wrong: int, num_aside: int, x: FloatArray, n: FloatArray) -> FloatArray:
    """Probability that so many of the examples set aside are wrong, if x of n are; 0 if there are fewer examples."""
    ways = np.full(x.shape, float(comb(num_aside, wrong)))
    for index in range(num_aside):
        left = x - index if index < wrong else n - x - (index - wrong)
        ways *= np.maximum(left, 0.0) / np.maximum(n - index, 1.0)
    return ways


def power_ratio(order: float) -> Ratio:
    """(E R^α)^{1/α} / m for α > 1: A_a = R^α a^{1-α}/α + (1 - 1/α) a."""
    moment = _Moment(
        _powers(order, 1.0),
        (lambda a: a ** (1.0 - order) / order, lambda a: 0.0, lambda a: (1.0 - 1.0 / order) * a),
        has_fourth=not 2.0 < order < 3.0,
        is_quadratic=order == 2.0,
    )
    return Ratio(1.0, np.inf, moment.above, moment.below, is_quadratic=order == 2.0)


def root_ratio(order: float) -> Ratio:
    """1 - (E R^p)^{1/p} / m for 0 < p < 1: A_a = R - R^p a^{1-p}/p + (1/p - 1) a."""
    moment = _Moment(
        _powers(order, -1.0),
        (lambda a: a ** (1.0 - order) / order, lambda a: 1.0, lambda a: (1.0 / order - 1.0) * a),
    )
    return Ratio(0.0, 1.0, moment.above, moment.below, largest_mean="a / (1 - ratio)")


def _powers(order: float, sign: float) -> list[Callable[[FloatArray], FloatArray]]:
    """±r^order and three derivatives."""
    factors = sign * np.cumprod([1.0, order, order - 1.0, order - 2.0])

    def derivative(number: int) -> Callable[[FloatArray], FloatArray]:
        return lambda r: np.asarray(factors[number] * r ** (order - number))

    return [derivative(number) for number in range(4)]


def theil_ratio() -> Ratio:
    """E R log(R/m) / m: A_a = R log(R/a) - R + a."""
    moment = _Moment(
        (
            lambda r: np.asarray(xlogy(r, r)),
            lambda r: np.asarray(1.0 + np.log(r)),
            lambda r: 1.0 / r,
            lambda r: -1.0 / r**2,
        ),
        (lambda a: 1.0, lambda a: -1.0 - float(np.log(a)), lambda a: a),
    )
    return Ratio(0.0, np.inf, moment.above, moment.below)


def log_ratio() -> Ratio:
    """E log(m/R), over 1: A_a = R/a - 1 + log a - log R. Infinite above where a risk is 0."""
    moment = _Moment(
        (lambda r: -np.log(r), lambda r: -1.0 / r, lambda r: 1.0 / r**2, lambda r: -2.0 / r**3),
        (lambda a: 1.0, lambda a: 1.0 / a, lambda a: float(np.log(a)) - 1.0),
    )
    return Ratio(0.0, np.inf, moment.above, moment.below, of_risk=False)


def tail_ratio(share: float) -> Ratio:
    """Top share: A_a = (R - a)_+ + share·a."""

    def above(point: float, risks: FloatArray) -> FloatArray:
        return np.asarray(np.maximum(risks - point, 0.0) + share * point)

    def below(low: float, high: float, counts: Counts) -> _TailCell:
        x, n = counts
        if_wrong, if_right = (((x - k + 0.5) / n > 0.5 * (low + high)) * 1.0 for k in (1.0, 0.0))
        p = x / n
        return _TailCell(p * if_wrong, share - p * if_wrong - (1.0 - p) * if_right)

    return Ratio(share, 1.0, above, below, largest_mean=None)


class _TailCell(NamedTuple):
    """One example is set aside: w·(its loss - a), w whether the others' risk is above the middle of the cell."""

    fixed: FloatArray
    slope: FloatArray

    def at_least(self, low: float, high: float) -> FloatArray:
        return np.asarray(self.fixed + np.minimum(self.slope * low, self.slope * high))
