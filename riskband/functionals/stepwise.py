"""One share, or one quantile, of unseen clients: exact binomial limits, tried from the largest bound down (math §2.10).

Many limits bound the same number. If one of them is fixed beforehand for every value that the number can have, the one
for its true value fails with probability delta, whatever the others do. So the values are gone through from the top, a
range that shares a limit at a time, and the first limit that does not exclude its own range is the bound: it is chosen
by the answers, and nothing is paid for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, betaincc, betaincinv, expit

from riskband.answers.risks import ClientRisks
from riskband.checks import FloatArray, IntArray

USUAL_NUM_EXAMPLES = 100
MIN_ETA, MAX_ETA = 1e-9, 0.5

# Usual laws of risks: Beta distributions of all means, and of these concentrations, with the part of delta that the
# limits have that are best for them. They choose limits, and prove nothing.
_USUAL = ((12.0, 0.9), (3.0, 0.05), (48.0, 0.05))
_FEW = 300  # clients, for which only the first of these is used: the rest of delta is worth more
_MEANS = expit(np.linspace(-12.0, 5.0, 160))
_LARGEST_PLANNED = 0.95  # beyond it, limits are worth nothing for usual laws: the first one below does
_CUTS = np.linspace(0.0, 5.0, 41)  # in standard deviations of what a client at the threshold measures
_MOST_RANKS = 200


class Limit(NamedTuple):
    """A limit for the number that is asked for, which fails with probability at most delta."""

    delta: float
    eta: float  # error level of the limits of single clients
    rank: int  # of the order statistic; 0 for a share


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


def binomial_limit(num_successes: int, num_trials: int, *, delta: float) -> float:
    """Upper confidence limit for a probability, exact (Clopper-Pearson)."""
    return float(_binomial_limit(np.asarray(num_successes), num_trials, delta))


def _binomial_limit(num_successes: FloatArray, num_trials: int, delta: float) -> FloatArray:
    rest = np.maximum(num_trials - num_successes, 1e-9)
    return np.where(num_successes < num_trials, betaincinv(num_successes + 1.0, rest, 1.0 - delta), 1.0)


def observed_share(risks: ClientRisks, threshold: float, *, delta: float) -> float:
    """Upper bound on the share of clients that would measure a risk of at least a threshold."""
    return binomial_limit(_counted(risks, risks.values >= threshold), risks.num_counted, delta=delta)


def true_share(risks: ClientRisks, threshold: float, *, delta: float, num_examples: int) -> float:
    """Upper bound on the share of clients whose true risk is at least a threshold.

    If a client's limit at error level eta reaches the threshold with probability 1 - eta or more for every client of
    such a risk, then P(limit >= threshold) >= (1 - eta) S. `num_examples` is what the choice of eta is made for.
    """

    def value_of(limit: Limit) -> float:
        num_above = _counted(risks, _may_reach(risks, threshold, limit.eta))
        return binomial_limit(num_above, risks.num_counted, delta=limit.delta) / (1.0 - limit.eta)

    if threshold == 0.0:
        return 1.0
    return stepwise(share_ranges(risks.num_counted, threshold, delta, num_examples), value_of)


def _counted(risks: ClientRisks, is_above: np.ndarray) -> int:
    """Number of clients above, with all those of which nothing is known."""
    num_unknown = risks.num_missing_worst + risks.contamination
    return min(int(np.sum(is_above)) + num_unknown, risks.num_counted)


def _may_reach(risks: ClientRisks, threshold: float, eta: float) -> np.ndarray:
    """Clients that a risk at or above the threshold makes count, each with probability 1 - eta or more.

    Who measured it counts in any case: then clients that measure their risk exactly cannot break the bound.
    """
    if risks.noise is not None:
        return np.asarray(risks.upper_limits(eta) >= threshold)
    if risks.binary:
        num_wrong = np.rint(risks.values * risks.num_examples)
        is_possible = bdtr(num_wrong, risks.num_examples, threshold) > eta
    else:
        is_possible = risks.upper_limits(eta) >= threshold
    return np.asarray(is_possible | (risks.values >= threshold))


def true_quantile(risks: ClientRisks, level: float, *, delta: float, num_examples: int) -> float:
    """Upper bound on the quantile of the true risks at a level in [0, 1]: an order statistic of limits, or 1."""

    def value_of(limit: Limit) -> float:
        position = limit.rank - 1 + risks.contamination
        return float(np.sort(_own_limits(risks, limit.eta))[position]) if position < risks.num_clients else 1.0

    ranges = quantile_ranges(risks.num_counted, level, delta, num_examples)
    return stepwise(ranges, value_of) if ranges else 1.0


def _own_limits(risks: ClientRisks, eta: float) -> FloatArray:
    limits = risks.upper_limits(eta)
    return limits if risks.noise is not None else np.maximum(limits, risks.values)


@lru_cache(maxsize=64)
def share_ranges(num_clients: int, threshold: float, delta: float, num_examples: int) -> tuple[Range, ...]:
    """Error levels for the share at a threshold in (0, 1], by the bound that they give for usual laws of risks."""
    spread = np.sqrt(threshold * (1.0 - threshold) / num_examples)
    cuts = np.unique(np.ceil(num_examples * (threshold - _CUTS * spread)) - 1.0)
    cuts = cuts[cuts >= 0.0]
    etas = bdtr(cuts, num_examples, threshold)

    def plan(concentration: float, part: float) -> _Plan:
        first, second = _usual_shapes(concentration, num_examples)
        measured = betaincc(first, second, np.minimum((cuts + 0.5) / num_examples, 1.0))
        expected = _binomial_limit(num_clients * measured, num_clients, part * delta) / (1.0 - etas)
        return _planned(expected, [Limit(part * delta, eta, 0) for eta in etas.tolist()])

    return _merged([plan(*usual) for usual in _usual(num_clients)])


@lru_cache(maxsize=64)
def quantile_ranges(num_clients: int, level: float, delta: float, num_examples: int) -> tuple[Range, ...]:
    """Ranks of sorted limits, and their error levels, for a quantile; empty if there are too few clients."""

    def plan(concentration: float, part: float) -> _Plan | None:
        ranks, etas = ranks_and_etas(num_clients, level=level, delta=part * delta)
        if ranks.size == 0:
            return None
        first, second = _usual_shapes(concentration, num_examples)
        usual = num_examples * betaincinv(first, second, ranks / (num_clients + 1.0))
        expected = betaincinv(usual + 1.0, num_examples - usual, 1.0 - etas)
        pairs = zip(etas.tolist(), ranks.tolist(), strict=True)
        return _planned(expected, [Limit(part * delta, eta, rank) for eta, rank in pairs])

    if level == 1.0:
        return ()
    return _merged([found for usual in _usual(num_clients) if (found := plan(*usual)) is not None])


def ranks_and_etas(num_clients: int, *, level: float, delta: float) -> tuple[IntArray, FloatArray]:
    """Ranks of order statistics of limits that bound a quantile, and the largest error levels of these limits.

    With probability 1 - delta at least a share b(i) of all clients, the delta-quantile of Beta(i, K - i + 1), is at or
    below the i-th smallest of K; if limits at error level eta are sorted, at least (b(i) - eta) / (1 - eta) of the true
    risks are. Of many ranks, some are returned.
    """
    largest = int((1.0 - level) * num_clients) + 1
    from_top = np.unique(np.rint(np.geomspace(1.0, largest, _MOST_RANKS)).astype(np.intp))
    ranks = num_clients + 1 - from_top[from_top <= num_clients][::-1]
    shares = betaincinv(ranks, num_clients - ranks + 1.0, delta)
    etas = np.minimum((shares - level) / (1.0 - level), MAX_ETA)
    return ranks[etas >= MIN_ETA], etas[etas >= MIN_ETA]


def _usual(num_clients: int) -> tuple[tuple[float, float], ...]:
    return _USUAL if num_clients >= _FEW else ((_USUAL[0][0], 1.0),)


def _usual_shapes(concentration: float, num_examples: int) -> tuple[FloatArray, FloatArray]:
    """Parameters of Beta distributions with the means and variances of what usual clients measure."""
    measured = num_examples * (concentration + 1.0) / (num_examples + concentration) - 1.0
    means, measured = _MEANS[:, None], max(measured, 0.1)
    return means * measured, (1.0 - means) * measured


class _Plan(NamedTuple):
    lows: FloatArray  # rising, from 0
    limits: list[Limit]  # for values above each


def _planned(expected: FloatArray, limits: list[Limit]) -> _Plan:
    """The best limit for each value, by the bounds to be expected with usual laws, shape (num_laws, num_limits)."""
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
