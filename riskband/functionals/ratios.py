"""Limits by betting for measures that are min over a of E A_a(R) / E B(R), one client after the other (math §5.6).

Every A_a is convex in the risk, and B is the risk itself, or 1. Atkinson indices, entropies, the coefficient of
variation and top shares have this form, with a the power mean, the mean, or a quantile of the risks.

*Above.* If the ratio is at least v, then E[v·B - A_a] <= 0 for every a: a gambler may bet on v·B - A_a with the a that
the clients before suggest. *Below.* If the ratio is at most v, then E[A_a - v·B] <= 0 for one a, which nobody knows.
For each a there is a gambler who bets on that; v is rejected where all of them win, which is computed by cells of a.

The Gini coefficient is such a minimum, too, over all distributions in the place of a: above only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from math import comb, factorial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, gammaln, xlogy

from riskband.answers.counts import BoolArray
from riskband.answers.risks import ClientRisks
from riskband.betting import LARGEST_SHARE_OF_TAILS, before, log_average_excess, looks_at_the_past
from riskband.checks import FloatArray, IntArray
from riskband.duals import late_excesses
from riskband.search import bisect_number

_POINTS = np.geomspace(1e-4, 1.0, 97)
_CUTS = tuple(_POINTS[1::2].tolist())
_PRIOR = 0.05  # variance of the gains before any was seen
_HIGHEST = 1e4  # what ratios are looked for
_DEPTH = 6  # how often a cell of a is halved
_AHEAD = 1.3  # bets are cut for ratios so much farther from the smallest one than the past suggests
_MOST_COUNTS = 2_000
_UNSEEN, _FORESEEN = 0.75, 0.7
_FEW_WRONG = 4.0  # wrong examples, from which on the order of a Taylor polynomial is 3
_ENOUGH = 10  # examples, from which on three are set aside
_SERIES = (10, 2_000)  # examples between which power series serve in place of Taylor polynomials
_DEGREE, _AGAIN = 256, 1.1  # of the polynomials of the Gini coefficient; ratio of clients seen when one is chosen again
_ASIDE, _LEAST_ASIDE = 4, 8  # examples set aside for quartic polynomials, and of how many at least
_MOST_FOR_QUARTICS = 100_000  # examples: with more, noise is too small to matter
_TOUCH, _WIDTH = 1.5, 1.7  # in standard deviations of noise: where they touch |d|, and up to where they serve
_START = 0.3  # clients of any risk, uniformly, that are taken to come before all others


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
    """A measure that is a function of min over a of E A_a(R) / E B(R), a ratio in [low, high]."""

    low: float
    high: float
    above: Callable[[float, FloatArray], FloatArray]  # from a and measured risks to A_a of them
    below: Callable[[Counts], Callable[[float, float], Cell]]  # from the counts, then the ends of a cell of a
    of_risk: bool = True  # whether B is the risk; otherwise it is 1
    # How large the mean can be where the minimum is at a: "a", "a / (1 - ratio)", or not known (None; a may be 0).
    largest_mean: str | None = "a"
    is_quadratic: bool = False  # whether A_a is R²/(2a) + a/2, which can be estimated without bias
    # From counts of a 0-1 loss, then a, to numbers whose expectation is at least A_a(R) and nearer to it than that of
    # A_a of the measured risk, if any are known.
    of_counts: Callable[[Counts], Callable[[float], FloatArray]] | None = None
    has_jumps: bool = False  # whether numbers of `of_counts`, or of `below` mid-cell, are not convex in the count

    @property
    def points(self) -> FloatArray:
        """Edges of the cells of a, increasing; below the first one, if it is not 0, the mean is small."""
        return np.append(0.0, _POINTS) if self.largest_mean is None else _POINTS

    def base(self, risks: FloatArray) -> FloatArray:
        """B, from measured risks."""
        return risks if self.of_risk else np.ones_like(risks)


def ratio_upper_limit(ratio: Ratio, risks: ClientRisks, orders: IntArray, *, delta: float) -> float:
    """Upper confidence limit for a ratio, infinite if there is none; orders of shape (num_orders, num_clients).

    A_a is convex, so measured risks serve (Jensen). Where it is quadratic or a power series and the loss is 0-1, what
    the examples of a client add to it is taken off.
    """
    if risks.binary and ratio.of_counts is not None:
        numbers_at = ratio.of_counts(Counts.of(risks))
    else:
        numbers_at = lambda point: ratio.above(point, risks.values)  # noqa: E731
    losses_at = _largest_losses(ratio, risks) if ratio.has_jumps and risks.binary else None
    base = ratio.base(risks.values)[orders]
    best = np.full(base.shape, np.inf)
    foreseen, outcomes, bets = np.zeros(base.shape), np.zeros(base.shape), np.zeros(base.shape)
    # So many clients cannot exclude that a few in all, not seen yet, have risk 1: the choice of a has to expect them.
    unseen = _UNSEEN * np.log(1.0 / delta) * np.arange(base.shape[1]) / base.shape[1]
    for point in ratio.points[::2]:
        found = numbers_at(point)[orders]
        at_ends = ratio.above(point, np.array([0.0, 0.1, 1.0]))
        past = _Past.of(found, base, float(at_ends[1]), 0.1)
        sums = before(np.cumsum(base, axis=1), 0.0) + 0.002
        expected = (past.ratio * sums + unseen * at_ends[2]) / (sums + unseen)
        reference = past.ratio + _FORESEEN * np.maximum(expected - past.ratio, 0.0)
        is_better = expected < best
        best[is_better], foreseen[is_better] = expected[is_better], reference[is_better]
        outcomes[is_better] = found[is_better]
        if losses_at is None:
            largest_loss = np.maximum(at_ends[0], at_ends[2] - reference)
        else:
            largest_loss = losses_at(point, reference)
        bets[is_better] = _bets(past.variance, largest_loss, delta)[is_better]
    return _first_rejected(_Bets(base, outcomes, bets, foreseen), ratio.low, ratio.high, delta)


def _largest_losses(ratio: Ratio, risks: ClientRisks) -> Callable[[float, FloatArray], FloatArray] | None:
    """How much a client may lose at a point and values, over all counts; None where measured risks serve."""
    if ratio.of_counts is None:
        return None
    possible = _possible_counts(risks)
    numbers_at, base, values = ratio.of_counts(possible), ratio.base(possible.risks), np.linspace(0.0, 1.0, 65)

    def losses_at(point: float, reference: FloatArray) -> FloatArray:
        losses = numbers_at(point)[:, None] - values * base[:, None]
        # Convex in the value: chords are above it.
        return np.asarray(np.interp(reference, values, losses.max(axis=0)))

    return losses_at


class _Bets(NamedTuple):
    """Bets on value·base - outcome, made for values from those foreseen on; shape (num_orders, num_clients) each."""

    base: FloatArray
    outcomes: FloatArray
    sizes: FloatArray
    foreseen: FloatArray


def _first_rejected(bets: _Bets, low: float, high: float, delta: float) -> float:
    """Smallest value that is found to be rejected, infinite beyond what is looked for."""

    def survives(value: float) -> bool:
        gains = bets.sizes * (value * bets.base - bets.outcomes)
        return not _reaches(gains, value >= bets.foreseen, delta)

    limit = bisect_number(survives, low=low, high=min(high, _HIGHEST), num_steps=50).upper
    return limit if limit < _HIGHEST else np.inf


def gini_upper_limit(risks: ClientRisks, orders: IntArray, *, delta: float) -> float:
    """Upper confidence limit for the Gini coefficient from counts of 0-1 losses on equally many examples.

    G = min over distributions D of E a_D(R) / E R, with a_D(r) = E|r - Y| - E|Y - Y'|/2 for Y, Y' drawn from D. For
    mixtures of Beta(k + 1, d - 1 - k) a_D is a polynomial of degree d, whose coefficients in Bernstein's basis are
    numbers from d examples with exactly this mean. D is made of the clients before. Source: math §5.6.
    """
    game = _Tangents.of(risks)
    times, look = looks_at_the_past(risks.num_clients, ratio=_AGAIN)
    num_looks, num_kinds = times.size, game.kinds.size
    outcomes, sizes, foreseen = np.empty(orders.shape), np.empty(orders.shape), np.empty(orders.shape)
    for row, order in enumerate(orders):
        kind = game.of_client[order]
        at = game.at(_seen_before(look, kind, (num_looks, num_kinds)), risks.num_clients, delta)
        outcomes[row], sizes[row], foreseen[row] = at.numbers[look, kind], at.sizes[look], at.foreseen[look]
    return _first_rejected(_Bets(risks.values[orders], outcomes, sizes, foreseen), 0.0, 1.0, delta)


def _seen_before(look: IntArray, kind: IntArray, shape: tuple[int, int]) -> IntArray:
    """How many clients of each kind came before the first of every look."""
    counts = np.bincount(look * shape[1] + kind, minlength=shape[0] * shape[1]).reshape(shape)
    return np.asarray(np.cumsum(counts, axis=0) - counts)


class _Tangent(NamedTuple):
    """What is bet at every look: numbers of shape (num_looks, num_kinds), and of shape (num_looks,) the rest."""

    numbers: FloatArray
    sizes: FloatArray
    foreseen: FloatArray


class _Tangents(NamedTuple):
    """Clients that measured the same are of one kind; `nodes` and `weights` integrate polynomials of degree 2d."""

    kinds: FloatArray  # measured risks, shape (num_kinds,)
    of_client: IntArray
    subsamples: FloatArray  # P(so many of d examples are wrong | kind), shape (num_kinds, d + 1)
    weights: FloatArray
    components: FloatArray  # CDF of Beta(k + 1, d - 1 - k) at the nodes, shape (d - 1, num_nodes)

    @classmethod
    def of(cls, risks: ClientRisks) -> _Tangents:
        kinds, of_client = np.unique(risks.values, return_inverse=True)
        size = int(risks.num_examples[0])
        degree = min(size, _DEGREE)
        nodes, weights = np.polynomial.legendre.leggauss(degree + 1)
        which = np.arange(1.0, degree)[:, None]
        components = np.asarray(betainc(which, degree - which, 0.5 * (nodes + 1.0)), dtype=np.float64)
        subsamples = _subsamples(np.rint(kinds * size), size, degree)
        return cls(kinds, of_client.ravel(), subsamples, 0.5 * weights, components)

    def at(self, seen: IntArray, num_clients: int, delta: float) -> _Tangent:
        """From how many clients of each kind were seen before every look, shape (num_looks, num_kinds)."""
        degree = self.subsamples.shape[1] - 1
        total = _START + seen.sum(axis=1)
        mean = (_START / 2.0 + seen @ self.kinds) / total
        mixture = self._mixture(seen, total, mean)
        cdf = mixture @ self.components
        # a_D(0) and a_D(1), and in between second differences 2/d times the mixture.
        first, last = np.square(1.0 - cdf) @ self.weights, np.square(cdf) @ self.weights
        coefficients = np.zeros((len(seen), degree + 1))
        coefficients[:, 2:] = np.cumsum(np.cumsum(2.0 / degree * mixture, axis=1), axis=1)
        step = (last - first - coefficients[:, -1]) / degree
        coefficients += first[:, None] + step[:, None] * np.arange(degree + 1)
        numbers = coefficients @ self.subsamples.T
        sums = _START * coefficients.mean(axis=1) + np.sum(seen * numbers, axis=1)
        ratio = sums / (total * mean)
        squares = np.sum(seen * np.square(numbers - ratio[:, None] * self.kinds), axis=1)
        variance = (0.01 + squares) / (total + 1.0)
        unseen = 0.3 * np.log(1.0 / delta) * (total - _START) / num_clients
        expected = (sums + unseen * last) / (total * mean + unseen)
        foreseen = ratio + _FORESEEN * np.maximum(expected - ratio, 0.0)
        sharpest = np.sqrt(2.0 * np.log(1.0 / delta) / (num_clients * variance))
        largest_loss = np.maximum(np.maximum(first, last - foreseen), 1e-9)
        return _Tangent(numbers, np.minimum(sharpest, LARGEST_SHARE_OF_TAILS / largest_loss), foreseen)

    def _mixture(self, seen: IntArray, total: FloatArray, mean: FloatArray) -> FloatArray:
        """Weights of the components, shape (num_looks, d - 1): measured risks, drawn together towards their mean.

        So far that the mixture, whose components spread as examples do, has the variance of the true risks, about.
        """
        degree = self.subsamples.shape[1] - 1
        variance = (_START / 3.0 + seen @ self.kinds**2) / total - mean**2
        noise = mean * (1.0 - mean) / degree
        shrinkage = np.sqrt(np.clip(1.0 - 2.0 * noise / np.maximum(variance, 1e-12), 0.0, 1.0))
        risks = mean[:, None] + shrinkage[:, None] * (self.kinds - mean[:, None])
        place = np.clip(risks * degree - 1.0, 0.0, degree - 2.0)
        below = np.minimum(place.astype(np.intp), max(degree - 3, 0))
        above = np.minimum(below + 1, degree - 2)
        part, shares = place - below, seen / total[:, None]
        rows = np.arange(len(seen))[:, None] * (degree - 1)
        mixture = np.bincount((rows + below).ravel(), ((1.0 - part) * shares).ravel(), len(seen) * (degree - 1))
        mixture += np.bincount((rows + above).ravel(), (part * shares).ravel(), len(seen) * (degree - 1))
        return np.asarray(mixture.reshape(len(seen), degree - 1) + (_START / (degree - 1) / total)[:, None])


def _subsamples(wrong: FloatArray, size: int, degree: int) -> FloatArray:
    """P(k of `degree` examples are wrong), of `size` examples of which so many are; shape (num_kinds, degree + 1)."""
    if degree == size:
        return np.eye(size + 1)[wrong.astype(np.intp)]
    taken, x = np.arange(degree + 1.0), wrong[:, None]

    def log_ways(all_of: FloatArray, some: FloatArray) -> FloatArray:
        rest = np.maximum(all_of - some, 0.0)
        ways = gammaln(all_of + 1.0) - gammaln(some + 1.0) - gammaln(rest + 1.0)
        return np.where(some <= all_of, ways, -np.inf)

    all_ways = log_ways(np.array(float(size)), np.array(float(degree)))
    found = np.exp(log_ways(x, taken) + log_ways(size - x, degree - taken) - all_ways)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def ratio_lower_limit(ratio: Ratio, risks: ClientRisks, orders: IntArray, *, delta: float) -> float:
    """Lower confidence limit for a ratio, from counts; orders of shape (num_orders, num_clients)."""
    game = _Below(ratio, risks, orders, delta)
    high = max(ratio.low, min(game.measured, ratio.high))  # limits beyond what was measured are of no interest
    return bisect_number(game.are_all_rejected, low=ratio.low, high=high, num_steps=16).lower


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
    return np.asarray(np.minimum(sharpest, LARGEST_SHARE_OF_TAILS / np.maximum(largest_loss, 1e-9)))


def _reaches(gains: FloatArray, is_foreseen: BoolArray, delta: float) -> bool:
    """Whether the average of the final capitals reaches 1/delta.

    A bet was cut so that it cannot lose everything for the values that it foresaw; for others it may not gain.
    """
    factors = 1.0 + np.where(is_foreseen, gains, np.clip(gains, -1.0, 0.0))
    with np.errstate(divide="ignore"):
        return log_average_excess(np.sum(np.log(factors), axis=1), delta) >= 0.0


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
        self.cell, self.possible = ratio.below(Counts.of(risks)), _possible_counts(risks)
        self.possible_cell = ratio.below(self.possible)
        self.measured = np.inf
        self.gamblers = [self._gambler(low, high) for low, high in pairwise(ratio.points.tolist())]
        self.won: dict[tuple[float, float], float] = {}  # by ends of a cell, the largest value found to be rejected

    def _gambler(self, low: float, high: float) -> _Gambler:
        cell, middle = self.cell(low, high), 0.5 * (low + high)
        numbers = cell.at_least(middle, middle)[self.orders]
        self.measured = min(self.measured, float(np.sum(numbers[0]) / max(np.sum(self.base[0]), 1e-12)))
        past = _Past.of(numbers, self.base, 0.1 + self.ratio.low * 0.1, 0.1)
        values = self.ratio.low + np.append(0.0, np.geomspace(1e-3, 20.0, 40))
        foreseen = np.minimum(self.ratio.low + _AHEAD * np.maximum(past.ratio - self.ratio.low, 0.0) + 0.02, values[-1])
        possible, possible_cell = self.possible, self.possible_cell
        if self.ratio.has_jumps:
            possible = _with_all_near(possible, middle)
            possible_cell = self.ratio.below(possible)
        least = possible_cell(low, high).at_least(low, high)
        base = self.ratio.base(possible.risks)
        losses = [np.max(value * base - least) for value in values]  # convex in the value: chords are above it
        bets = _bets(past.variance, np.interp(foreseen, values, losses), self.delta)
        return _Gambler(low, high, cell, bets, foreseen)

    def are_all_rejected(self, value: float) -> bool:
        """Whether all gamblers win; the one who failed is asked first the next time."""
        if not self._is_mean_large(value):
            return False
        for index, gambler in enumerate(self.gamblers):
            if not self._wins(gambler, gambler.low, gambler.high, value, _DEPTH):
                self.gamblers.insert(0, self.gamblers.pop(index))
                return False
        return True

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
        return _reaches(0.5 * (part * self.risks / self.ratio.points[0] - 1.0), np.asarray(True), self.delta)


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


def _with_all_near(possible: Counts, risk: float) -> Counts:
    """Also all counts at which other examples may say that a client is next to a risk, of numbers that lack some."""
    found = [np.stack(possible)]
    for total in np.unique(possible.total[possible.total > _MOST_COUNTS]).tolist():
        width = np.ceil(0.5 * _WIDTH * np.sqrt(min(total, _MOST_FOR_QUARTICS))) + 2.0 * _ASIDE
        wrong = np.clip(np.rint(total * risk) + np.arange(-width, width + 1.0), 0.0, total)
        found.append(np.stack([wrong, np.full(wrong.size, total)]))
    return Counts(*np.concatenate(found, axis=1))


@dataclass(frozen=True)
class _Moment:
    """A_a(r) = u(r) f(a) + r g(a) + e(a) with u convex, f >= 0, and f, g, e monotone; u by itself and its derivatives.

    `has_fourth` says that the fourth derivative of u is nowhere negative: then the Taylor polynomial of order 3 is
    nowhere above u, as that of order 1 is. `series` gives the first so many coefficients of u as a power series in
    1 - r; from the third on none is negative.
    """

    derivatives: Sequence[Callable[[FloatArray], FloatArray]]
    factors: Sequence[Callable[[float], float]]
    has_fourth: bool = True
    is_quadratic: bool = False
    series: Callable[[int], FloatArray] | None = None

    def above(self, point: float, risks: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return self._of(self.derivatives[0](risks), point, risks)

    def of_counts(self, counts: Counts) -> Callable[[float], FloatArray]:
        """From a to numbers whose expectation is at least A_a(R)."""
        numbers = self.derivatives[0](counts.risks)
        if self.is_quadratic:
            numbers = numbers - counts.risks * (1.0 - counts.risks) / np.maximum(counts.total - 1.0, 1.0)
        elif self.series is not None:
            found, is_known = _sums_of_series(self.series, counts, whole=float(self.derivatives[0](np.zeros(1))[0]))
            numbers = np.where(is_known, found, numbers)
        return lambda point: self._of(numbers, point, counts.risks)

    def below(self, counts: Counts) -> Callable[[float, float], _MomentCell]:
        """The numbers of all cells are the same."""
        if self.is_quadratic:
            numbers = _square_at_most(counts)
        else:
            numbers = _at_most(self.derivatives, counts, self.has_fourth)
            if self.series is not None:
                found, is_known = _sums_of_series(self.series, counts)
                numbers = np.where(is_known, found, numbers)
        cell = _MomentCell(numbers, counts.risks, self.factors)
        return lambda low, high: cell

    def _of(self, numbers: FloatArray, point: float, risks: FloatArray) -> FloatArray:
        f, g, e = (factor(point) for factor in self.factors)
        return np.asarray(numbers * f + risks * g + e)

    def ratio(self, low: float, high: float, **rest: Any) -> Ratio:
        """The measure that these functions make."""
        of_counts = self.of_counts if self.is_quadratic or self.series is not None else None
        return Ratio(low, high, self.above, self.below, **{"of_counts": of_counts, **rest})


class _MomentCell(NamedTuple):
    numbers: FloatArray
    risks: FloatArray
    factors: Sequence[Callable[[float], float]]

    def at_least(self, low: float, high: float) -> FloatArray:
        (f, f_high), (g, g_high), (e, e_high) = ((each(low), each(high)) for each in self.factors)
        least = np.minimum(self.numbers * f, self.numbers * f_high)
        return np.asarray(least + self.risks * min(g, g_high) + min(e, e_high))


def _sums_of_series(
    series: Callable[[int], FloatArray], counts: Counts, *, whole: float | None = None
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Numbers from counts of a 0-1 loss for a power series in 1 - R, and for which clients it serves.

    With Y right of n, Y(Y-1)…(Y-j+1) / (n(n-1)…(n-j+1)) has mean (1 - R)^j for j <= n. The powers beyond n are left
    out, and the mean is at most the sum of the series; or, with the `whole` sum at R = 0, taken for the n-th, and the
    mean is at least that. Source: math §2.9.
    """
    kinds, of_client = np.unique(np.stack(counts), axis=1, return_inverse=True)
    x, n = kinds
    is_known = (_SERIES[0] <= n) & (n <= _SERIES[1])
    found = np.zeros(n.size)
    for total in np.unique(n[is_known]).tolist():
        some = n == total
        coefficients = series(int(total) + 1)
        if whole is not None:
            coefficients[-1] += max(whole - coefficients.sum(), 0.0)
        right, used = total - x[some, None], np.arange(total)
        powers = np.cumprod(np.maximum(right - used, 0.0) / (total - used), axis=1)
        found[some] = coefficients[0] + powers @ coefficients[1:]
    return found[of_client.ravel()], is_known[of_client.ravel()]


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
        series=partial(_binomial_series, order, 1.0) if order < 2.0 else None,
    )
    return moment.ratio(1.0, np.inf, is_quadratic=order == 2.0)


def root_ratio(order: float) -> Ratio:
    """1 - (E R^p)^{1/p} / m for 0 < p < 1: A_a = R - R^p a^{1-p}/p + (1/p - 1) a."""
    moment = _Moment(
        _powers(order, -1.0),
        (lambda a: a ** (1.0 - order) / order, lambda a: 1.0, lambda a: (1.0 / order - 1.0) * a),
        series=partial(_binomial_series, order, -1.0),
    )
    return moment.ratio(0.0, 1.0, largest_mean="a / (1 - ratio)")


def _powers(order: float, sign: float) -> list[Callable[[FloatArray], FloatArray]]:
    """±r^order and three derivatives."""
    factors = sign * np.cumprod([1.0, order, order - 1.0, order - 2.0])

    def derivative(number: int) -> Callable[[FloatArray], FloatArray]:
        return lambda r: np.asarray(factors[number] * r ** (order - number))

    return [derivative(number) for number in range(4)]


def _binomial_series(order: float, sign: float, size: int) -> FloatArray:
    """First coefficients of ±(1 - q)^order."""
    j = np.arange(1.0, size)
    return np.asarray(sign * np.cumprod(np.append(1.0, (j - 1.0 - order) / j)))


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
        series=lambda size: np.append([0.0, -1.0], 1.0 / (np.arange(2.0, size) * np.arange(1.0, size - 1.0))),
    )
    return moment.ratio(0.0, np.inf)


def log_ratio() -> Ratio:
    """E log(m/R), over 1: A_a = R/a - 1 + log a - log R. Infinite above where a risk is 0."""
    moment = _Moment(
        (lambda r: -np.log(r), lambda r: -1.0 / r, lambda r: 1.0 / r**2, lambda r: -2.0 / r**3),
        (lambda a: 1.0, lambda a: 1.0 / a, lambda a: float(np.log(a)) - 1.0),
        series=lambda size: np.append(0.0, 1.0 / np.arange(1.0, size)),
    )
    return moment.ratio(0.0, np.inf, of_risk=False, of_counts=None)


def quartic_weights(distance: FloatArray, deviation: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How much of a bet on a distance is one on the quartic below it, by what other examples say; and its scale."""
    part = np.clip(distance / (_WIDTH * deviation), -1.0, 1.0)
    return 0.5 + 0.5 * np.cos(np.pi * part), _TOUCH * deviation


def distances_aside(wrong: int, powers: Sequence[float]) -> list[float]:
    """Estimates without bias of the powers of R + y, from so many wrong examples of R set aside and `powers` of y."""
    risk = [comb(wrong, power) / comb(_ASIDE, power) for power in range(_ASIDE + 1)]
    return [sum(comb(k, j) * risk[j] * powers[k - j] for j in range(k + 1)) for k in range(_ASIDE + 1)]


def surely_apart(size: int) -> FloatArray:
    """Numbers of two clients by their counts of wrong examples, whose expectation is at most |R - R'|.

    Four examples of each are set aside. The others say whether R - R', R' - R, or a quartic polynomial of the distance
    is taken, of which those set aside give estimates without bias; averaged over all choices of them. Where the others
    are far apart that is the distance of the measured risks. Shape (size + 1, size + 1). Source: math §5.6.
    """
    count = np.arange(size + 1.0)
    numbers, rest = np.abs(count[:, None] - count) / size, size - float(_ASIDE)
    first, second = np.nonzero(numbers * size <= _WIDTH * np.sqrt(0.5 * rest) + 2.0 * _ASIDE)
    found, aside = np.zeros(first.size), range(_ASIDE + 1)
    ways = [_hypergeometric(wrong, _ASIDE, count, np.full(count.size, float(size))) for wrong in aside]
    for wrong, other in product(aside, aside):
        x, y = first - float(wrong), second - float(other)
        mean = np.clip((x + y + 1.0) / (2.0 * rest + 2.0), 0.5 / (rest + 1.0), 1.0 - 0.5 / (rest + 1.0))
        weight, scale = quartic_weights((x - y) / rest, np.sqrt(2.0 * mean * (1.0 - mean) / rest))
        minus = [comb(other, power) / comb(_ASIDE, power) * (-1.0) ** power for power in aside]
        _, difference, square, _, fourth = distances_aside(wrong, minus)
        below = square / scale - 4.0 / 27.0 * fourth / scale**3
        number = weight * below + (1.0 - weight) * np.sign(x - y) * difference
        found += ways[wrong][first] * ways[other][second] * number
    numbers[first, second] = found
    return numbers


def tail_ratio(share: float, *, has_late: bool = True) -> Ratio:
    """Top share: A_a = (R - a)_+ + share·a; with `late_excesses` above, if the loss is 0-1 and all n are equal."""

    def above(point: float, risks: FloatArray) -> FloatArray:
        return np.asarray(np.maximum(risks - point, 0.0) + share * point)

    def below(counts: Counts) -> Callable[[float, float], Cell]:
        x, n = counts
        if np.min(n) >= _LEAST_ASIDE and np.max(n) <= _MOST_FOR_QUARTICS:
            return lambda low, high: _QuarticTailCell.of(low, high, counts, share)

        def cell(low: float, high: float) -> Cell:
            if_wrong, if_right = (((x - k + 0.5) / n > 0.5 * (low + high)) * 1.0 for k in (1.0, 0.0))
            p = x / n
            return _TailCell(p * if_wrong, share - p * if_wrong - (1.0 - p) * if_right)

        return cell

    def of_counts(counts: Counts) -> Callable[[float], FloatArray]:
        x, n = counts
        if np.any(n != n[0]) or n[0] > _SERIES[1]:
            return lambda point: above(point, counts.risks)
        late = {cut: (first, least) for cut, first, least in late_excesses(int(n[0]), _CUTS)}

        def numbers_at(point: float) -> FloatArray:
            if point not in late:
                return above(point, counts.risks)
            first, least = late[point]
            return np.where(x < first, 0.0, np.maximum(counts.risks - point, least)) + share * point

        return numbers_at

    return Ratio(share, 1.0, above, below, largest_mean=None, of_counts=of_counts if has_late else None, has_jumps=True)


class _TailCell(NamedTuple):
    """One example is set aside: w·(its loss - a), w whether the others' risk is above the middle of the cell."""

    fixed: FloatArray
    slope: FloatArray

    def at_least(self, low: float, high: float) -> FloatArray:
        return np.asarray(self.fixed + np.minimum(self.slope * low, self.slope * high))


class _QuarticTailCell(NamedTuple):
    """As `surely_apart`, for (R - a)_+ = ½(R - a) + ½|R - a|: polynomials of degree 4 in a - middle."""

    middle: float
    coefficients: FloatArray  # shape (5, num_clients)
    curvature: FloatArray  # not less than the second derivative anywhere

    @classmethod
    def of(cls, low: float, high: float, counts: Counts, share: float) -> _QuarticTailCell:
        x, n = counts
        middle, rest = 0.5 * (low + high), n - float(_ASIDE)
        spread = np.clip(middle, 0.5 / (rest + 1.0), 1.0 - 0.5 / (rest + 1.0))
        coefficients = np.zeros((5, x.size))
        coefficients[:2] = [[share * middle], [share]]
        for wrong in range(_ASIDE + 1):
            ways, beyond = _hypergeometric(wrong, _ASIDE, x, n), (x - wrong) / rest - middle
            weight, scale = quartic_weights(beyond, np.sqrt(spread * (1.0 - spread) / rest))
            of_tail, half = ways * ((1.0 - weight) * (beyond > 0.0) + 0.5 * weight), 0.5 * ways * weight
            second, fourth = half / scale, 4.0 / 27.0 * half / scale**3
            _, e1, e2, e3, e4 = distances_aside(wrong, [(-middle) ** power for power in range(_ASIDE + 1)])
            coefficients[0] += of_tail * e1 + second * e2 - fourth * e4
            coefficients[1] += 4.0 * fourth * e3 - 2.0 * second * e1 - of_tail
            coefficients[2] += second - 6.0 * fourth * e2
            coefficients[3] += 4.0 * fourth * e1
            coefficients[4] -= fourth
        _, _, square, cube, fourth = coefficients
        highest = 2.0 * square + 0.75 * cube**2 / np.maximum(-fourth, 1e-300)  # second derivatives are parabolas
        return cls(middle, coefficients, np.maximum(highest, 0.0))

    def at_least(self, low: float, high: float) -> FloatArray:
        left, right = (
            np.asarray(np.polynomial.polynomial.polyval(a - self.middle, self.coefficients)) for a in (low, high)
        )
        return np.asarray(np.minimum(left, right) - self.curvature * (high - low) ** 2 / 8.0)
