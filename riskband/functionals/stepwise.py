"""One share, or one quantile, of unseen clients: exact binomial limits, tried from the largest bound down (math §2.10).

Many limits bound the same number. If one of them is fixed beforehand for every value that the number can have, the one
for its true value fails with probability delta, whatever the others do. So the values are gone through from the top, a
range that shares a limit at a time, and the first limit that does not exclude its own range is the bound: it is chosen
by the answers, and nothing is paid for that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple, Self

import numpy as np
from scipy.special import bdtr, betaincc, betaincinv, expit, ndtri

from riskband.answers.counts import BoolArray
from riskband.answers.risks import ClientRisks, clopper_pearson
from riskband.checks import FloatArray, IntArray
from riskband.duals import upper_mean, upper_quantile

USUAL_NUM_EXAMPLES = 100
MIN_ETA, MAX_ETA = 1e-9, 0.5

# Usual distributions of risks: Beta, of all means and of these concentrations. They choose limits, and prove nothing.
# With the part of delta that the limits have that are best for them, and whether there may be an upper cut.
_USUAL = ((12.0, 0.85, True), (3.0, 0.05, True), (48.0, 0.05, True), (1.0, 0.05, False))
_USUAL_FOR_QUANTILES = ((24.0, 0.9), (8.0, 0.05), (3.0, 0.05))
# Where few clients count, only the first of these is used: the rest of delta is worth more.
_FEW, _FEW_BEYOND = 300, 30
_MEANS = expit(np.linspace(-12.0, 5.0, 80))
_LARGEST_PLANNED = 0.95  # beyond it, limits are worth nothing for usual distributions: the first one below does
_CUTS = np.linspace(0.0, 4.0, 17)  # below the threshold, in standard deviations of what a client of that risk measures
_UPPER_CUTS = (0.3, 0.8, 1.3, 2.0, 3.0)  # above it
_DOUBT = 0.25  # that the count of the clients above the upper cut, each counted in part, is larger than it is taken for
_MOST_RANKS = 200
_ETA_OF_DESIGNS = 0.1  # for quantiles of clients that are no independent draws: within a tenth of the best, if few, too
_ROUNDING = 1e-12  # of a binomial probability


class Limit(NamedTuple):
    """A limit for the number that is asked for, which fails with probability at most delta."""

    delta: float
    eta: float  # error level of the limits of single clients
    rank: int = 0  # of the order statistic, for a quantile
    level: float = 1.0  # for a share: of what a client at the threshold measures, that beyond which it counts in part


class Range(NamedTuple):
    """The limits that are used for values in (low, high] that the number may have, `high` being the `low` before."""

    low: float
    limits: tuple[Limit, ...]  # fail together with probability at most delta


def stepwise(ranges: Sequence[Range], value_of: Callable[[Limit], float]) -> float:
    """Upper bound on a number in [0, 1]: the limits of the first range that they do not exclude.

    The ranges fall, the last begins at 0, and they are fixed before any answer. If the limits of each range alone fail
    with probability at most delta, so does the bound. Source: math §2.10.
    """
    high, value_of = 1.0, cache(value_of)
    for low, limits in ranges:
        value = min(value_of(limit) for limit in limits)
        if value >= low:
            return min(value, high)
        high = low
    return high


def observed_share(risks: ClientRisks, threshold: float, *, delta: float) -> float:
    """Upper bound on the share of clients that would measure a risk of at least a threshold."""
    is_above = risks.values >= threshold
    if not risks.are_independent:
        return upper_mean(risks, is_above.astype(np.float64), delta=delta, is_share=True)
    return float(clopper_pearson(counted(risks, is_above), risks.num_counted, delta))


def planned_size(risks: ClientRisks) -> tuple[int, bool]:
    """Number of examples that limits are chosen for, and whether all clients have it."""
    # Of sizes that answers may choose, nothing may depend.
    is_sure = risks.has_equal_sizes and risks.contamination == 0
    return (int(risks.num_examples[0]) if is_sure else USUAL_NUM_EXAMPLES), is_sure


def true_share(risks: ClientRisks, threshold: float, *, delta: float) -> float:
    """Upper bound on the share of clients whose true risk is at least a threshold in [0, 1]."""
    if threshold == 0.0:
        return 1.0
    num_examples, is_sure = planned_size(risks)
    is_exact = is_sure and risks.binary and risks.noise is None  # then there may be an upper cut
    num_draws = risks.num_counted if risks.design is None else risks.design.num_units
    ranges = share_ranges(num_draws, threshold, delta, num_examples, is_exact)
    clients = Clients.of(risks, threshold)
    return stepwise(ranges, lambda limit: _share_limit(clients, limit))


class Clients(NamedTuple):
    """Which clients may have a risk at or above a threshold."""

    risks: ClientRisks
    threshold: float
    no_more: FloatArray | None  # probability that a client of this risk measures no more, for plain 0-1 losses

    @classmethod
    def of(cls, risks: ClientRisks, threshold: float) -> Self:
        """The clients of these answers, at a threshold."""
        if not risks.binary or risks.noise is not None:
            return cls(risks, threshold, None)
        num_wrong = np.rint(risks.values * risks.num_examples)
        return cls(risks, threshold, np.asarray(bdtr(num_wrong, risks.num_examples, threshold)))

    def above(self, eta: float) -> BoolArray:
        """Clients that a risk at or above the threshold makes count, each with probability 1 - eta or more.

        Who measured it counts in any case: then clients that measure their risk exactly cannot break the bound.
        """
        if self.risks.noise is not None:
            return np.asarray(self.risks.upper_limits(eta) >= self.threshold)
        is_possible = self.risks.upper_limits(eta) >= self.threshold if self.no_more is None else self.no_more > eta
        return np.asarray(is_possible | (self.risks.values >= self.threshold))

    def in_part(self, level: float) -> BoolArray:
        """Clients that measured more than those of the threshold do with probability `level`."""
        if level == 1.0 or self.no_more is None:
            return np.zeros(self.risks.num_clients, dtype=bool)
        return np.asarray(self.no_more > level + _ROUNDING)


def _share_limit(clients: Clients, limit: Limit) -> float:
    """Limit for S(threshold) <= E h: h is `height` above the lower cut, and 1 above the upper one, if there is one.

    A client that counts with 1 instead of the height counts as a whole one with probability 1 / height: of these there
    are so many as with probability 1 - _DOUBT at most, for a part of delta.
    """
    height, delta = limit.level / (limit.level - limit.eta), limit.delta
    is_above, is_in_part = clients.above(limit.eta), clients.in_part(limit.level)
    if not clients.risks.are_independent:  # h / height is an outcome in [0, 1]
        outcomes = np.where(is_in_part, 1.0 / height, is_above)
        return height * upper_mean(clients.risks, outcomes, delta=delta, is_share=True)
    num_above, num_in_part = counted(clients.risks, is_above), int(np.sum(is_in_part))
    if limit.level < 1.0:
        num_whole = bisect_left(range(num_in_part), 1.0 - _DOUBT, key=lambda k: float(bdtr(k, num_in_part, 1 / height)))
        num_above, delta = num_above - num_in_part + num_whole, delta * (1.0 - _DOUBT)
    return float(height * clopper_pearson(num_above, clients.risks.num_counted, delta))


def counted(risks: ClientRisks, is_above: np.ndarray) -> int:
    """Number of clients above, with all those of which nothing is known."""
    num_unknown = risks.num_missing_worst + risks.contamination
    return min(int(np.sum(is_above)) + num_unknown, risks.num_counted)


def true_quantile(risks: ClientRisks, level: float, *, delta: float) -> float:
    """Upper bound on the quantile of the true risks at a level in [0, 1]: an order statistic of limits, or 1."""
    if not risks.are_independent:
        tail = (1.0 - level) * (1.0 - _ETA_OF_DESIGNS)
        return upper_quantile(risks, risks.upper_limits(_ETA_OF_DESIGNS), tail=tail, delta=delta)

    def value_of(limit: Limit) -> float:
        return order_statistic(risks, risks.upper_limits(limit.eta), limit.rank)

    ranges = quantile_ranges(risks.num_counted, level, delta, planned_size(risks)[0])
    return stepwise(ranges, value_of) if ranges else 1.0


def order_statistic(risks: ClientRisks, values: FloatArray, rank: int) -> float:
    """The value of this rank, from 1, even if as many answers as may be wrong should be larger; 1 if there is none."""
    position = rank - 1 + risks.contamination
    return float(np.sort(values)[position]) if position < risks.num_clients else 1.0


@lru_cache(maxsize=64)
def share_ranges(
    num_clients: int, threshold: float, delta: float, num_examples: int, is_exact: bool
) -> tuple[Range, ...]:
    """Limits for the share at a threshold in (0, 1], by the bound that they give for usual distributions of risks."""
    low, high = _pairs_of_cuts(threshold, num_examples, is_exact)
    etas = np.clip(bdtr(low, num_examples, threshold), MIN_ETA, 1.0 - MIN_ETA)  # a limit holds at every level
    levels = np.where(high < num_examples, bdtr(high, num_examples, threshold), 1.0)
    heights, is_whole = levels / (levels - etas), levels == 1.0

    def plan(concentration: float, part: float, may_be_cut: bool) -> _Plan:
        shapes = _usual_shapes(concentration, num_examples)
        above, in_part = (num_clients * _above(cut, num_examples, shapes) for cut in (low, high))
        spread = np.sqrt(in_part * (1.0 - 1.0 / heights) / heights)
        num_whole = np.where(is_whole, 0.0, in_part / heights + ndtri(1.0 - _DOUBT) * spread + 0.5)
        deltas = np.where(is_whole, part * delta, part * delta * (1.0 - _DOUBT))
        expected = heights * clopper_pearson(above - in_part + num_whole, num_clients, deltas)
        if not may_be_cut:
            expected = np.where(is_whole, expected, np.inf)
        pairs = zip(etas.tolist(), levels.tolist(), strict=True)
        return _planned(expected, [Limit(part * delta, eta, level=level) for eta, level in pairs])

    usual = ((_USUAL[0][0], 1.0, True),) if num_clients < _FEW else _USUAL
    return _merged([plan(*one) for one in usual])


def _pairs_of_cuts(threshold: float, num_examples: int, is_exact: bool) -> tuple[FloatArray, FloatArray]:
    """Counts: each below the threshold with each above it, and with that of all examples."""
    spread = np.sqrt(threshold * (1.0 - threshold) * num_examples)
    low = np.unique(np.ceil(num_examples * threshold - _CUTS * spread) - 1.0)
    high = np.ceil(num_examples * threshold + np.array(_UPPER_CUTS if is_exact else ()) * spread)
    high = np.unique(np.append(np.minimum(high, num_examples), num_examples))
    pairs = np.meshgrid(low[low >= 0.0], high, indexing="ij")
    return pairs[0].ravel(), pairs[1].ravel()


def _above(counts: FloatArray, num_examples: int, shapes: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Probability that a usual client measures more, shape (num_distributions, num_counts)."""
    shares = np.where(counts < num_examples, (counts + 0.5) / num_examples, 1.0)
    return np.asarray(betaincc(*shapes, np.minimum(shares, 1.0)))


@lru_cache(maxsize=64)
def quantile_ranges(num_clients: int, level: float, delta: float, num_examples: int) -> tuple[Range, ...]:
    """Ranks of sorted limits, and their error levels, for a quantile; empty if there are too few clients."""

    def plan(concentration: float, part: float) -> _Plan | None:
        ranks, etas = ranks_and_etas(num_clients, level=level, delta=part * delta)
        if ranks.size == 0:
            return None
        first, second = _usual_shapes(concentration, num_examples)
        usual = num_examples * betaincinv(first, second, ranks / (num_clients + 1.0))
        expected = np.asarray(betaincinv(usual + 1.0, num_examples - usual, 1.0 - etas), dtype=np.float64)
        pairs = zip(etas.tolist(), ranks.tolist(), strict=True)
        return _planned(expected, [Limit(part * delta, eta, rank) for eta, rank in pairs])

    if level == 1.0:
        return ()
    is_few = num_clients * (1.0 - level) < _FEW_BEYOND
    usual = ((_USUAL_FOR_QUANTILES[0][0], 1.0),) if is_few else _USUAL_FOR_QUANTILES
    return _merged([found for one in usual if (found := plan(*one)) is not None])


def ranks_and_etas(num_clients: int, *, level: float, delta: float) -> tuple[IntArray, FloatArray]:
    """Ranks of order statistics of limits that bound a quantile, and the largest error levels of these limits.

    With probability 1 - delta at least a share b(i) of all clients, the delta-quantile of Beta(i, K - i + 1), is at or
    below the i-th smallest of K; if limits at error level eta are sorted, at least (b(i) - eta) / (1 - eta) of the true
    risks are. Of many ranks, some are returned.
    """
    largest = int((1.0 - level) * num_clients) + 1
    from_top = np.unique(np.rint(np.linspace(1.0, largest, _MOST_RANKS)).astype(np.intp))
    ranks = num_clients + 1 - from_top[from_top <= num_clients][::-1]
    shares = betaincinv(ranks, num_clients - ranks + 1.0, delta)
    etas = (shares - level) / (1.0 - level)
    # Of the ranks that would allow more than the largest eta, the smallest is the best.
    is_useful = (etas >= MIN_ETA) & (np.cumsum(etas >= MAX_ETA) <= 1)
    return ranks[is_useful], np.minimum(etas[is_useful], MAX_ETA)


def _usual_shapes(concentration: float, num_examples: int) -> tuple[FloatArray, FloatArray]:
    """Parameters of Beta distributions with the means and variances of what usual clients measure."""
    measured = num_examples * (concentration + 1.0) / (num_examples + concentration) - 1.0
    means, measured = _MEANS[:, None], max(measured, 0.1)
    return means * measured, (1.0 - means) * measured


class _Plan(NamedTuple):
    lows: FloatArray  # rising, from 0
    limits: list[Limit]  # for values above each


def _planned(expected: FloatArray, limits: list[Limit]) -> _Plan:
    """The best limit for each value, by bounds expected for usual risks, shape (num_distributions, num_limits)."""
    best = np.argmin(expected, axis=1)
    bounds = np.maximum.accumulate(np.min(expected, axis=1))
    best = best[: max(int(np.sum(bounds < _LARGEST_PLANNED)), 1)]
    changes = np.flatnonzero(np.diff(best)) + 1
    lows = np.append(0.0, 0.5 * (bounds[changes - 1] + bounds[changes]))
    return _Plan(lows, [limits[index] for index in best[np.append(0, changes)]])


def _merged(plans: Sequence[_Plan]) -> tuple[Range, ...]:
    lows = np.unique(np.concatenate([plan.lows for plan in plans])) if plans else np.empty(0)
    places = [np.searchsorted(plan.lows, lows, side="right") - 1 for plan in plans]
    return tuple(
        Range(low, tuple(plan.limits[place[index]] for plan, place in zip(plans, places, strict=True)))
        for index, low in reversed(list(enumerate(lows.tolist())))
    )
