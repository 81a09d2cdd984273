"""Confidence limits by betting: for one mean, and for a number that is a minimum over a dual variable (math §2.9).

A gambler doubts that a number is at least `v`, and bets on each client's outcome. If the number is at least `v`, the
capital has mean at most 1, so it ends at 1/delta or above with probability at most delta; the `v` that are not rejected
end at one point. There are two kinds of gamblers (math §2.6):

* with *constant stakes*, fixed before any client is seen: the capital is symmetric in the clients, whose order is of no
  consequence (`log_capital`). Several stakes share the capital.
* with stakes from the past, *in an order* that no answer has chosen (`client_orders`): one order by a seed that was
  committed before the answers, or the average of the final capitals in many fixed orders of the clients as they come.
  Where the clients come sorted by their risks, there is no such order, and stakes are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import log1p, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaln, gammaln

from riskband.checks import FloatArray, IntArray
from riskband.search import bisect_number, root_from_above
from riskband.wording import ORDER_TELLS_NOTHING, chosen_before

ORDER_IS_UNINFORMATIVE = f"the order of the clients in the input, or of their names, {ORDER_TELLS_NOTHING}"

CONSTANT_STAKES = "betting with constant stakes"
AVERAGED_BETS = "betting averaged over fixed orders"
SORTED_CLIENTS = f"{CONSTANT_STAKES}, since the clients come sorted by their risks"
# The constant stakes are the best ones, about, for outcomes of these standard deviations: from those of risks that are
# nearly equal to that of coins. More of them share the capital and gain less than that costs.
_DEVIATIONS = np.geomspace(0.03, 0.5, 6)
# As many orders as cost little time; beyond some twenty of them the limit hardly changes.
_NUM_ORDERS, _NUM_PLAYED, _ORDERS_KEY = (20, 200), 20_000, 20_240
_MOST_PLAYED, _LEAST_ORDERS = 400_000, 5  # the same on duals: more clients take memory, and 5 orders do then
# Independent clients come sorted, or in ranks so far from random, in less than one of a million networks.
_MANY_ARRANGEMENTS, _FAR_FROM_RANDOM = 2e6, 5.0  # the second in standard deviations
LARGEST_SHARE = 0.9  # of the capital that one client may cost: more is sharper, but one bad client ruins it
LARGEST_SHARE_OF_TAILS = 0.99  # the same where outcomes are mostly small, stakes share the capital, or bets aim anew
_ALWAYS_CHOSEN, _CHOSEN_AGAIN = 200, 1.01  # clients; beyond, the ratio of their numbers at which a dual is chosen
_WEIGHT_OF_START = 0.3  # in clients
KEPT_OF_FIRST = 0.2  # of two gamblers' capital: so much the second, should it have nothing to say, can cost the first
_KEPT_OF_OTHER = 0.1  # less gains next to nothing
_MANY, NUM_STEPS = 20_000, 36  # clients for whom a limit is not found by so many halvings, but in fewer tries
_MOST_AT_ONCE = 1_000_000  # numbers of one kind in the memory beyond what is kept
_MOST_IN_CACHE = 20_000  # numbers to compute with at once; of fewer, calling numpy is what takes time
_USUAL_MEAN = 0.25  # of losses: where it is theirs, stakes on the mean of others are the sharpest
# An integral whose logarithm is concave, to eight digits: up to 12 standard deviations around the largest term.
_NUM_NEWTON, _STEP_OF_TIME, _NUM_TIMES = 3, 1.0 / 3.0, 36
TIE = 1e-12  # what promises no more than so much more than another dual, by rounding perhaps, is not chosen for it
_MOST_COUNTED = 2e7  # numbers of equal answers in memory


@dataclass(frozen=True, eq=False)
class Dual:
    """One point of a dual: a number is at most `bound` of the mean outcome of an unseen client."""

    outcomes: FloatArray  # in [0, 1], shape (num_clients,); their expectation is the mean outcome, or is not below it
    bound: Callable[[FloatArray], FloatArray]  # from mean outcomes of any shape to the number; nondecreasing
    least_mean: Callable[[float], float]  # its inverse, nondecreasing; what lies outside [0, 1] is cut to it
    start: float = 0.5  # what the mean is taken for before the first client: of no consequence for validity

    @classmethod
    def of_range(
        cls,
        outcomes: FloatArray,
        *,
        low: float,
        high: float,
        bound: Callable[[FloatArray], FloatArray],
        least_mean: Callable[[float], float],
        start: float | None = None,
    ) -> Dual:
        """From outcomes in [low, high], low < high, known before any answer; all else is of their mean."""
        width = high - low
        return cls(
            np.clip((outcomes - low) / width, 0.0, 1.0),
            lambda mean: bound(low + width * mean),
            lambda value: (least_mean(value) - low) / width,
            0.5 if start is None else float(np.clip((start - low) / width, 0.0, 1.0)),
        )

    def promise(
        self, sums: FloatArray, squares: FloatArray, num_clients: IntArray, *, rate: FloatArray | float
    ) -> tuple[FloatArray, FloatArray]:
        """What it promises after so many clients, by the sums of their outcomes and of the squares; and the variance.

        It is its bound at their mean outcome and the slack that bets will leave above that, of which `rate` is
        log(1/delta) for each client. Without the slack it would often be a dual whose outcomes are mostly next to 0,
        sharp at their mean and far from it.
        """
        mean, square = (
            (_WEIGHT_OF_START * start + total) / (_WEIGHT_OF_START + num_clients)
            for total, start in ((sums, self.start), (squares, self.start**2))
        )
        variance = np.maximum(square - mean**2, 0.0)
        slack = np.maximum(np.sqrt(2.0 * rate * variance), rate)
        return np.asarray(self.bound(np.minimum(mean + slack, 1.0))), variance


class Played(NamedTuple):
    """What a gambler did in some orders, shape (num_orders, num_clients) each."""

    chosen: IntArray  # the dual against whose outcome it bet
    outcomes: FloatArray
    bets: FloatArray


def betting_upper_bound(
    duals: Sequence[Dual],
    answers: Sequence[FloatArray | IntArray],
    *,
    delta: float,
    seed: int | None,
    beside: Callable[[float], float] | None = None,
) -> tuple[float, str]:
    """Upper confidence limit for a number in [0, 1] that each dual bounds, and the name of the method.

    If the number is `v`, the mean outcome of *every* dual is at least what `v` needs of it. So the gambler may bet
    against another dual at every client, if the clients before it alone say which: the one that bounds the number best
    by their mean. Nothing is paid for the number of duals. The choice does not depend on `v`: every factor of the
    capital grows with `v`, and what is rejected is an interval. Source: math §2.9.

    The duals are fixed before any answer was seen. `answers`, of shape (num_clients,) each, are what the outcomes are
    functions of, measured risks first. `seed` is that of the one order in which clients are seen; None: the final
    capitals in many fixed orders are averaged. Where the clients come sorted, constant stakes on every dual share the
    capital. `beside` is what an independent gambler makes of the same doubt, see `with_another`.
    """
    size = answers[0].size
    guess = min(float(dual.bound(np.array(np.mean(dual.outcomes)))) for dual in duals)
    if seed is None:
        num_orders = min(int(np.clip(_NUM_PLAYED // size, *_NUM_ORDERS)), max(_MOST_PLAYED // size, _LEAST_ORDERS))
        orders = client_orders(np.asarray(answers[0], dtype=np.float64), num_orders=num_orders)
        if orders is None:
            return constant_stakes_upper_bound(duals, delta=delta, guess=guess, beside=beside), SORTED_CLIENTS
    else:
        orders = np.random.default_rng(seed).permutation(size)[None]
    kinds = _Kinds.of(answers)
    played = [_play(duals, kinds, some, delta) for some in _in_blocks(orders)]

    def log_excess(value: float) -> float:
        needed = np.clip([dual.least_mean(value) for dual in duals], 0.0, 1.0)
        growths = (log_growth(needed[p.chosen], p.outcomes, p.bets, LARGEST_SHARE_OF_TAILS) for p in played)
        if seed is not None:
            return float(np.cumsum(next(growths)[0]).max() - np.log(1.0 / delta))
        return log_average_excess(np.concatenate([growth.sum(axis=1) for growth in growths]), delta)

    value = _first_rejected(with_another(log_excess, beside, delta), size, guess=guess)
    return value, AVERAGED_BETS if seed is None else "betting"


def constant_stakes_upper_bound(
    duals: Sequence[Dual],
    *,
    delta: float,
    guess: float = 0.5,
    beside: Callable[[float], float] | None = None,
    weights: FloatArray | float = 1.0,
    spread: float = 1.0,
) -> float:
    """The same with equal parts of the capital on every dual, for clients in any order.

    Weights and `spread` as of `constant_stakes_upper_mean`: then for mean outcomes E[weight·outcome] / E[weight].
    """
    size = duals[0].outcomes.size
    stakes, num_at_once = sharpest_stakes(size, delta) / spread, max(1, _MOST_IN_CACHE // size)
    blocks = [slice(first, first + num_at_once) for first in range(0, len(duals), num_at_once)]

    def log_excess(value: float) -> float:
        needed = np.clip([dual.least_mean(value) for dual in duals], 0.0, 1.0)
        earned = np.zeros(len(duals))
        for some in blocks:
            gains = weights * (needed[some, None] - [dual.outcomes for dual in duals[some]])
            earned[some] = log_capital(gains, stakes, num_bets=size, largest_loss=1.0 - needed[some])
        return log_average_excess(earned, delta)

    return _first_rejected(with_another(log_excess, beside, delta), size, guess=guess)


class _Kinds(NamedTuple):
    """Clients that gave one answer are of one kind, and all outcomes of a kind are the same."""

    first: IntArray  # the first client of each kind
    of_client: IntArray

    @classmethod
    def of(cls, answers: Sequence[FloatArray | IntArray]) -> _Kinds:
        _, first, kind = np.unique(np.column_stack(answers), axis=0, return_index=True, return_inverse=True)
        return cls(first, kind.ravel())


def _play(duals: Sequence[Dual], kinds: _Kinds, orders: IntArray, delta: float) -> Played:
    if len(duals) == 1:
        outcomes = duals[0].outcomes[orders]
        return Played(np.zeros(orders.shape, dtype=np.intp), outcomes, adaptive_bets(outcomes, delta))
    chosen, bets = _best_by_the_past(duals, kinds, orders, delta)
    outcomes = np.zeros(orders.shape)
    for index in np.unique(chosen).tolist():
        is_chosen = chosen == index
        outcomes[is_chosen] = duals[index].outcomes[orders[is_chosen]]
    return Played(chosen, outcomes, bets)


def _best_by_the_past(
    duals: Sequence[Dual], kinds: _Kinds, orders: IntArray, delta: float
) -> tuple[IntArray, FloatArray]:
    """For each client the dual that promises most by the clients before it, or by a few clients less, and the bet."""
    times, rate = _times_of_choice(orders.shape[1]), np.log(1.0 / delta) / orders.shape[1]
    summed = _summing(kinds, orders, times)
    best, bets = np.full((len(orders), times.size), np.inf), np.zeros((len(orders), times.size))
    chosen = np.zeros(best.shape, dtype=np.intp)
    sums = zip(summed(dual.outcomes for dual in duals), summed(np.square(dual.outcomes) for dual in duals), strict=True)
    for index, (dual, of_both) in enumerate(zip(duals, sums, strict=True)):
        promise, variance = dual.promise(*of_both, times, rate=rate)
        is_better = promise < best - TIE
        best[is_better], chosen[is_better] = promise[is_better], index
        bets[is_better] = np.sqrt(2.0 * rate * (times + 1) / (0.25 + times * variance))[is_better]
    lengths = np.diff(times, append=orders.shape[1])
    return np.repeat(chosen, lengths, axis=1), np.repeat(bets, lengths, axis=1)


def _summing(
    kinds: _Kinds, orders: IntArray, times: IntArray
) -> Callable[[Iterable[FloatArray]], Iterable[FloatArray]]:
    """From numbers of each client, functions of its answers, to their sums over so many first clients of each order.

    Each of several sets of numbers, shape (num_clients,), becomes sums of shape (num_orders, num_times).
    """
    before = np.zeros((len(orders), times.size, kinds.first.size))
    if before.size > _MOST_COUNTED:

        def summed(numbers: FloatArray) -> FloatArray:
            sums = np.zeros((len(orders), times.size))
            sums[:, 1:] = np.cumsum(np.add.reduceat(numbers[orders], times, axis=1), axis=1)[:, :-1]
            return sums

        return partial(map, summed)
    segment = np.repeat(np.arange(times.size) * kinds.first.size, np.diff(times, append=orders.shape[1]))
    for row, order in zip(before, orders, strict=True):
        counts = np.bincount(segment + kinds.of_client[order], minlength=row.size).reshape(row.shape)
        row[1:] = np.cumsum(counts, axis=0)[:-1]

    def counted(sets: Iterable[FloatArray]) -> FloatArray:
        # All at once: the counts are much larger than what they are multiplied by.
        return np.moveaxis(before @ np.stack([numbers[kinds.first] for numbers in sets], axis=1), 2, 0)

    return counted


def _times_of_choice(num_clients: int) -> IntArray:
    """Numbers of clients seen at which a dual is chosen: all up to 200, then one in a hundred."""
    num_late = 1 + int(np.log(max(num_clients / _ALWAYS_CHOSEN, 1.0)) / np.log(_CHOSEN_AGAIN))
    late = np.geomspace(_ALWAYS_CHOSEN, max(num_clients, _ALWAYS_CHOSEN), num_late)
    times = np.unique(np.concatenate([np.arange(_ALWAYS_CHOSEN), late.astype(np.int64)]))
    return times[times < num_clients]


def looks_at_the_past(num_clients: int, *, ratio: float) -> tuple[IntArray, IntArray]:
    """Numbers of clients seen at which bets are made anew: every one at first, then a ratio apart; and each client's.

    The second, of shape (num_clients,), is the index of the last look before each client.
    """
    looks = [0]
    while (following := max(looks[-1] + 1, int(ratio * looks[-1]))) < num_clients:
        looks.append(following)
    return np.array(looks), np.searchsorted(looks, np.arange(num_clients), side="right") - 1


def betting_upper_means(columns: Sequence[FloatArray], *, delta: float, seed: int | None) -> tuple[list[float], str]:
    """Upper confidence limits for several means over the same clients, each by betting with this delta, and a name.

    For each mean there is a column of one number in [0, 1] from every client. `seed` is that of the order in which one
    gambler sees the clients; None: constant stakes.
    """
    if seed is None:
        return [constant_stakes_upper_mean(values, delta=delta) for values in columns], CONSTANT_STAKES
    order = np.random.default_rng(seed).permutation(columns[0].size)
    return [betting_upper_mean(values[order], delta=delta) for values in columns], "betting"


def check_betting(method: str | None) -> None:
    """Raise ValueError unless the method asked of answers is betting, or none."""
    if method not in (None, "betting"):
        raise ValueError(f"method must be 'betting' with answers, got {method!r:.80}; make a band of them for others")


def betting_assumptions(name: str, seed: int | None) -> tuple[str, ...]:
    """Return what a limit by bets of that name assumes beyond the independence of the clients."""
    has_seed = name == "betting"
    in_order = (ORDER_IS_UNINFORMATIVE,) if has_seed or name == AVERAGED_BETS else ()
    return (*in_order, *chosen_before(seed=(seed if has_seed else None, None)))


def constant_stakes_upper_mean(
    values: FloatArray, *, delta: float, weights: FloatArray | float = 1.0, **how: Any
) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1]: exact, the same for every order of them.

    It grows with every value, so it stays valid if any value is replaced by a larger one. Source: math §2.6. With a
    weight in [0, 1] of each value, drawn with it, the limit is for E[weight·value] / E[weight]: math §2.12. For more
    see `doubt_of_mean`.
    """
    doubt = doubt_of_mean(values, delta=delta, weights=weights, **how)
    guess = float(np.average(values, weights=np.broadcast_to(weights, values.shape)))
    return _first_rejected(lambda mean: doubt(mean) + float(np.log(delta)), values.size, guess=guess)


def doubt_of_mean(
    values: FloatArray,
    *,
    delta: float,
    weights: FloatArray | float = 1.0,
    spread: float = 1.0,
    odds: float = 1.0,
    is_share: bool = False,
) -> Callable[[float], float]:
    """Return, by the mean, the logarithm of the capital that `constant_stakes_upper_mean` compares with 1/delta.

    Of weights that no answer has to do with, the root mean square may be given as `spread`: stakes are larger then.
    With `odds` > 1 it is about the mean of any law whose density to that of the values varies by at most this factor:
    math §7.6. Of a share, of values 0 and 1, there is one stake for each candidate: that of a coin.
    """
    deviations, scale = np.ones(1) if is_share else _DEVIATIONS, float(np.sqrt(odds))
    stakes_of_one = sharpest_stakes(values.size, delta, deviations) / spread

    def log_earned(mean: float) -> float:
        stakes = stakes_of_one / np.sqrt(max(mean * (1.0 - mean), 1e-12)) if is_share else stakes_of_one
        gains = weights * (mean - values) / scale
        gains = np.where(gains < 0.0, odds * gains, gains)
        return float(log_capital(gains, stakes, num_bets=values.size, largest_loss=scale * (1.0 - mean)))

    return log_earned


def others_upper_mean(values: FloatArray, *, num_others: int, delta: float) -> float:
    """Upper confidence limit for the mean of so many others, where any set of clients was as likely the one seen.

    `values`, in [0, 1], are what those seen measured, and the limit is for what the others would, or for their true
    risks. Exact, the same for every order of the values, and it grows with each. Source: math §3.9.
    """
    kinds, counts = np.unique(values, return_counts=True)
    seen = values.size / (values.size + num_others)
    # The sharpest ones where the others differ as much as those seen; (c - x) / (c - mean) has stake 1 / (c - mean).
    stakes = sharpest_stakes(values.size, delta) * seen / (-np.log1p(-seen) * np.sqrt(1.0 - seen))
    # The mean depends on who was seen, so that unlike stakes on the mean of all, c must not depend on the candidate.
    tops = np.maximum(1.0 / stakes + _USUAL_MEAN, 1.0 / LARGEST_SHARE_OF_TAILS).tolist()

    def log_excess(candidate: float) -> float:
        ratios = [log_ratio_of_drawing((c - kinds) / (c - candidate), counts, num_others) for c in tops]
        return log_average_excess(np.array(ratios), delta)

    return _first_rejected(log_excess, values.size, guess=float(values.mean()))


def log_ratio_of_drawing(rates: FloatArray, counts: IntArray, num_others: int) -> float:
    """Logarithm of how much likelier it is that clients are drawn before all others at their rates than at random.

    `counts` says how many clients have each rate, above 0; the others have rate 1 in the mean. The integral, over the
    logarithm of the time at which the first of the others is drawn, is a sum around its largest term; what is left out
    would make it larger.
    """
    num_seen = int(counts.sum())
    mean = float(rates @ counts) / num_seen
    time = np.log1p(num_seen * mean / num_others) / mean  # before the largest term: Newton's steps do not overshoot it
    for _ in range(_NUM_NEWTON):
        passed = rates * time
        rises = -passed * np.exp(-passed) / np.expm1(-passed)
        curvature = num_others * time - counts @ (rises * (1.0 - passed - rises))
        time *= 1.0 + (1.0 - num_others * time + counts @ rises) / curvature
    step = _STEP_OF_TIME / np.sqrt(curvature)
    times = time * np.exp(step * np.arange(-_NUM_TIMES, _NUM_TIMES + 1))
    terms = np.log(times) - num_others * times + np.log(-np.expm1(-np.outer(times, rates))) @ counts
    return float(np.logaddexp.reduce(terms) + np.log(step) - betaln(num_others, num_seen + 1.0))


def sharpest_stakes(num_bets: int, delta: float, deviations: FloatArray = _DEVIATIONS) -> FloatArray:
    """Constant stakes on so many bets, each the best one for gains of a deviation; `log_capital` cuts them."""
    return np.asarray(np.sqrt(2.0 * np.log(1.0 / delta) / num_bets) / deviations)


def log_capital(
    gains: FloatArray, stakes: FloatArray, *, num_bets: int, largest_loss: Any, weights: FloatArray | None = None
) -> FloatArray:
    """Logarithm of the capital that constant stakes, which share it, make of so many bets: mean at most 1.

    `gains`, none below -`largest_loss` and of mean at most 0, are those of all clients, or of all pairs of clients. For
    these it is exp(num_bets · mean log(1 + stake·gain)), by concavity at most the average over all ways to pair the
    clients, whose capitals have mean at most 1. `weights` say how often each gain occurs. Of several gamblers, gains
    of shape (..., num_gains), there are as many largest losses and capitals. Source: math §2.6.
    """
    cut = np.minimum(stakes, LARGEST_SHARE_OF_TAILS / np.maximum(largest_loss, 1e-300)[..., None])
    num_at_once = max(1, _MOST_IN_CACHE // gains.size)
    blocks = (cut[..., first : first + num_at_once, None] for first in range(0, stakes.size, num_at_once))
    grown = [np.average(np.log1p(block * gains[..., None, :]), axis=-1, weights=weights) for block in blocks]
    return np.asarray(np.logaddexp.reduce(num_bets * np.concatenate(grown, axis=-1), axis=-1) - np.log(stakes.size))


def _in_blocks(orders: IntArray) -> Iterator[IntArray]:
    """As many orders at a time as are worth it: of a million clients, one."""
    num_rows = max(1, _MOST_AT_ONCE // orders.shape[1])
    return (orders[first : first + num_rows] for first in range(0, len(orders), num_rows))


def log_average_excess(log_capitals: FloatArray, delta: float) -> float:
    """By how much the logarithm of the average of final capitals exceeds that of 1/delta: what it rejects is >= 0."""
    return float(np.logaddexp.reduce(log_capitals) - np.log(log_capitals.size / delta))


def with_another(
    log_excess: Callable[[float], float], beside: Callable[[float], float] | None, delta: float
) -> Callable[[float], float]:
    """By how much a gambler and an independent one together exceed 1/delta, by the number that they doubt.

    The first alone exceeds it by `log_excess`, and `beside` is the logarithm of the other's capital. Where the number
    is right both have mean at most 1, and so has their product, which is worth most where both are right to doubt. A
    part of the capital is kept for each alone: never is the limit above that of either with this share of delta.
    Source: math §3.6.
    """
    if beside is None:
        return log_excess

    def together(value: float) -> float:
        first, other = log_excess(value), beside(value)
        both, own, alone = np.log([1.0 - KEPT_OF_FIRST - _KEPT_OF_OTHER, KEPT_OF_FIRST, _KEPT_OF_OTHER])
        return float(np.logaddexp.reduce([both + first + other, own + first, alone + other + np.log(delta)]))

    return together


def _first_rejected(log_excess: Callable[[float], float], num_clients: int, *, guess: float) -> float:
    """Smallest number in [0, 1] found at which a nondecreasing function is not negative: the rejected end."""
    if num_clients > _MANY:
        return root_from_above(log_excess, low=0.0, high=1.0, guess=min(guess, 1.0), tolerance=2.0**-NUM_STEPS)
    return bisect_number(lambda value: not log_excess(value) >= 0.0, low=0.0, high=1.0, num_steps=NUM_STEPS).upper


@lru_cache(maxsize=8)
def fixed_orders(num_values: int, *, num_orders: int) -> IntArray:
    """Orders in which values are played through, shape (num_orders, num_values).

    Drawn once, for everybody, from a stream of bits that is the same on every machine and in every version of numpy:
    independent of all answers, and nothing that a user could choose. Of independent clients as they come each order
    keeps the gambler's capital fair, and so does the average. Of *sorted* answers no fixed order does: only the average
    over all of them would.
    """
    bits = np.random.Philox(key=_ORDERS_KEY)
    orders = np.stack([np.argsort(bits.random_raw(num_values), kind="stable") for _ in range(num_orders)])
    orders.flags.writeable = False
    return orders


def client_orders(risks: FloatArray, *, num_orders: int) -> IntArray | None:
    """`fixed_orders` of the clients as they come, shape (num_orders, num_clients); None if they come sorted by risk.

    To look whether they do costs nothing: of independent clients the order is independent of whatever does not depend
    on it, such as capitals with constant stakes. Source: math §2.6.
    """
    return None if come_sorted(risks) else fixed_orders(risks.size, num_orders=num_orders)


def come_sorted(values: FloatArray) -> bool:
    """Whether independent numbers, shape (num_clients,), would hardly come in this order: it tells of their size."""
    kinds, ranks = np.unique(values, return_inverse=True)
    if kinds.size == 1:
        return False
    correlation = float(np.corrcoef(ranks, np.arange(values.size))[0, 1])
    return are_in_order(values) or abs(correlation) * np.sqrt(values.size - 1.0) > _FAR_FROM_RANDOM


def are_in_order(values: FloatArray) -> bool:
    """Whether numbers are sorted, up or down, and would hardly be by chance, shape (num_clients,)."""
    steps, counts = np.diff(values), np.unique(values, return_counts=True)[1]
    log_arrangements = gammaln(values.size + 1.0) - gammaln(counts + 1.0).sum()
    is_sorted = np.all(steps >= 0.0) or np.all(steps <= 0.0)
    return bool(is_sorted and log_arrangements > np.log(_MANY_ARRANGEMENTS))


def betting_upper_mean(values: FloatArray, *, delta: float) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1], by betting.

    A gambler who doubts the mean `m` bets on `values < m`, and aims anew at every value. If `m` is the mean, the
    capital is a nonnegative martingale and reaches 1/delta with probability at most delta. The means at which it does
    begin at one point, found by halving; the rejected end of the bracket is returned. The order of the values must not
    depend on them. Source: math §2.6.
    """
    bets = adaptive_bets(values, delta)

    def survives(candidate: float) -> bool:
        return not reaches_target(np.full(values.size, candidate), values, bets, delta=delta)

    return bisect_number(survives, low=0.0, high=1.0, num_steps=NUM_STEPS).upper


def reaches_target(
    means: FloatArray,
    outcomes: FloatArray,
    bets: FloatArray,
    *,
    delta: float,
    largest_share: float = LARGEST_SHARE_OF_TAILS,
) -> bool:
    """Whether the capital gets from 1 to 1/delta, shape (num_clients,) each, if the gambler aims anew at every client.

    `bets` are those of a gambler who has won nothing yet and has all clients before it. They are raised or cut to what
    is still lacking and to the clients that are left; at 1/delta it stops. Whatever is reached is reached with larger
    means, too. Source: math §2.6, [VO].
    """
    size, target = outcomes.size, float(np.log(1.0 / delta))
    largest, lacking = largest_share / np.maximum(1.0 - means, 1e-300), target
    clients = zip(means.tolist(), outcomes.tolist(), bets.tolist(), largest.tolist(), range(size, 0, -1), strict=True)
    for mean, outcome, bet, most, num_left in clients:
        stake = min(bet * sqrt(lacking / target * size / num_left), most)
        lacking -= log1p(stake * (mean - outcome))
        if lacking <= 0.0:
            return True
    return False


def adaptive_bets(values: FloatArray, delta: float) -> FloatArray:
    """Bet on each value, by the variance of those before it in its row, shape (..., num_clients)."""
    count = np.arange(1, values.shape[-1] + 1)
    mean = (0.5 + np.cumsum(values, axis=-1)) / (count + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2, axis=-1)) / (count + 1)
    return np.asarray(np.sqrt(2.0 * np.log(1.0 / delta) / (values.shape[-1] * before(variance, 0.25))))


def before(values: FloatArray, first: float) -> FloatArray:
    """What was known before each client, from what is known with it, shape (..., num_clients): bets look at no more."""
    shifted = np.full(values.shape, first)
    shifted[..., 1:] = values[..., :-1]
    return shifted


def log_growth(
    candidate: float | FloatArray, values: FloatArray, bets: FloatArray, largest_share: float = LARGEST_SHARE
) -> FloatArray:
    """Logarithms of the factors of the capital: bets on values below the candidate mean, cut to what may be lost."""
    largest_bet = largest_share / np.maximum(1.0 - candidate, 1e-300)
    return np.asarray(np.log1p(np.minimum(bets, largest_bet) * (candidate - values)))
