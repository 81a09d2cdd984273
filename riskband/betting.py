"""Confidence limits by betting: for one mean, and for a number that is a minimum over a dual variable (math §2.9).

A gambler doubts that a number is at least `v`: each client's outcome is bet against before it is seen, with what the
clients before it showed. If the number is at least `v`, the capital is a nonnegative supermartingale of mean at most 1,
so it ends at 1/delta or above with probability at most delta; the `v` that are not rejected end at one point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from riskband.checks import FloatArray, IntArray
from riskband.search import bisect_number, root_from_above
from riskband.wording import chosen_before

ORDER_IS_UNINFORMATIVE = (
    "the order of the clients in the input, after a permutation by the seed, says nothing about their risks"
)

NEWEST = 3
"""Edition of the bets. Earlier ones are kept for the certificates that were made with them (math §2.6)."""

FIXED_BETS = "betting with fixed bets"
AVERAGED_BETS = "betting averaged over fixed orders"
# As many orders as cost little time; beyond some twenty of them the limit hardly changes.
_NUM_ORDERS, _NUM_PLAYED, _ORDERS_KEY = (20, 200), 20_000, 20_240
_MOST_PLAYED, _LEAST_ORDERS = 400_000, 5  # the same on duals: more clients take memory, and 5 orders do then
LARGEST_SHARE = 0.9  # of the capital that one client may cost: more is sharper, but one bad client ruins it
_LARGEST_SHARE_OF_DUALS = 0.99  # the same where the outcomes are mostly small, as those of tails are
# By edition, for ratios and worst means of moved networks.
SHARES = {1: LARGEST_SHARE, 2: _LARGEST_SHARE_OF_DUALS, NEWEST: _LARGEST_SHARE_OF_DUALS}
_LARGE, _DOUBTED = 0.5, 20.0  # values, and clients: see `_largest_shares`
_ALWAYS_CHOSEN, _CHOSEN_AGAIN = 200, 1.01  # clients; beyond, the ratio of their numbers at which a dual is chosen
_WEIGHT_OF_START = 0.3  # in clients
_MANY, _NUM_STEPS = 20_000, 36  # clients for whom a limit is not found by so many halvings, but in fewer tries
_MOST_AT_ONCE = 1_000_000  # numbers of one kind in the memory beyond what is kept
_TIE = 1e-12  # what promises no more than so much more than another dual, by rounding perhaps, is not chosen for it
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
) -> tuple[float, str]:
    """Upper confidence limit for a number in [0, 1] that each dual bounds, and the name of the method.

    If the number is `v`, the mean outcome of *every* dual is at least what `v` needs of it. So the gambler may bet
    against another dual at every client, if the clients before it alone say which: the one that bounds the number best
    by their mean. Nothing is paid for the number of duals. The choice does not depend on `v`: every factor of the
    capital grows with `v`, and what is rejected is an interval. Source: math §2.9.

    The duals are fixed before any answer was seen. `answers`, of shape (num_clients,) each, are what the outcomes are
    functions of: sorted by them, the clients have an order that no input can choose. `seed` is that of the one order in
    which clients are seen; None: the final capitals in many fixed orders are averaged.
    """
    if seed is None:
        size = answers[0].size
        num_orders = min(_num_orders(size), max(_MOST_PLAYED // size, _LEAST_ORDERS))
        orders = sorted_orders(answers, num_orders=num_orders)
    else:
        orders = np.random.default_rng(seed).permutation(answers[0].size)[None]
    kinds = _Kinds.of(answers)
    played = [_play(duals, kinds, some, delta) for some in _in_blocks(orders)]

    def log_excess(value: float) -> float:
        needed = np.clip([dual.least_mean(value) for dual in duals], 0.0, 1.0)
        growths = (log_growth(needed[p.chosen], p.outcomes, p.bets, _LARGEST_SHARE_OF_DUALS) for p in played)
        if seed is not None:
            return float(np.cumsum(next(growths)[0]).max() - np.log(1.0 / delta))
        return log_average_excess(np.concatenate([growth.sum(axis=1) for growth in growths]), delta)

    guess = min(float(dual.bound(np.array(np.mean(dual.outcomes)))) for dual in duals)
    value = _first_rejected(log_excess, orders.shape[1], guess=guess)
    return value, AVERAGED_BETS if seed is None else "betting"


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
    """For each client the dual that promises most by the clients before it, or by a few clients less, and the bet.

    What it promises is its bound at their mean outcome and the slack that bets will leave above that. Without the slack
    it would often be a dual whose outcomes are mostly next to 0, sharp at their mean and far from it.
    """
    times, rate = _times_of_choice(orders.shape[1]), np.log(1.0 / delta) / orders.shape[1]
    summed = _summing(kinds, orders, times)
    best, bets = np.full((len(orders), times.size), np.inf), np.zeros((len(orders), times.size))
    chosen = np.zeros(best.shape, dtype=np.intp)
    sums = zip(summed(dual.outcomes for dual in duals), summed(np.square(dual.outcomes) for dual in duals), strict=True)
    for index, (dual, of_both) in enumerate(zip(duals, sums, strict=True)):
        mean, square = (
            (_WEIGHT_OF_START * start + total) / (_WEIGHT_OF_START + times)
            for total, start in zip(of_both, (dual.start, dual.start**2), strict=True)
        )
        variance = np.maximum(square - mean**2, 0.0)
        slack = np.maximum(np.sqrt(2.0 * rate * variance), rate)
        promise = np.asarray(dual.bound(np.minimum(mean + slack, 1.0)))
        is_better = promise < best - _TIE
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


def betting_upper_means(
    columns: Sequence[FloatArray], *, delta: float, seed: int | None, is_fixed: bool, edition: int = NEWEST
) -> tuple[list[float], str]:
    """Upper confidence limits for several means over the same clients, each by betting with this delta, and a name.

    For each mean there is a column of one number in [0, 1] from every client. `seed` is that of the order in which one
    gambler sees the clients; None: the average over fixed orders. With `is_fixed`, the limits fall with no value: see
    `fixed_bets_upper_mean`.
    """
    if is_fixed:
        return [fixed_bets_upper_mean(values, delta=delta) for values in columns], FIXED_BETS
    if seed is None:
        return [averaged_betting_upper_mean(values, delta=delta, edition=edition) for values in columns], AVERAGED_BETS
    order = np.random.default_rng(seed).permutation(columns[0].size)
    return [betting_upper_mean(values[order], delta=delta) for values in columns], "betting"


def check_betting(method: str | None) -> None:
    """Raise ValueError unless the method asked of answers is betting, or none."""
    if method not in (None, "betting"):
        raise ValueError(f"method must be 'betting' with answers, got {method!r:.80}; make a band of them for others")


def check_edition(edition: object) -> int:
    """Return the edition of the bets; raises ValueError if there is none of this number."""
    if isinstance(edition, bool) or edition not in tuple(SHARES):
        raise ValueError(f"edition must be from 1 to {NEWEST}, got {edition!r:.80}; the last is the sharpest")
    return int(edition)


def betting_assumptions(name: str, seed: int | None) -> tuple[str, ...]:
    """Return what a limit of `betting_upper_means` assumes beyond the independence of the clients."""
    return (ORDER_IS_UNINFORMATIVE, *chosen_before(seed=(seed, None))) if name == "betting" else ()


def averaged_betting_upper_mean(values: FloatArray, *, delta: float, edition: int = NEWEST) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1]: the same for every order of the values.

    The gambler of `betting_upper_mean` plays the sorted values through in many fixed orders. In each, the final capital
    has mean at most 1 if the candidate is the mean, so the average of them has; it is tested once, by Markov's
    inequality. (The largest capital on the way has no such mean: averages of it are not valid.) Source: [WSR];
    math §2.6.
    """
    orders = fixed_orders(values.size, num_orders=_num_orders(values.size))
    ordered, blocks = np.sort(values), list(_in_blocks(orders))
    bets = [adaptive_bets(ordered[some], delta) for some in blocks]
    shares = [_largest_shares(ordered[some]) if edition > 2 else LARGEST_SHARE for some in blocks]

    def log_excess(candidate: float) -> float:
        growths = (
            log_growth(candidate, ordered[some], bet, share)
            for some, bet, share in zip(blocks, bets, shares, strict=True)
        )
        return log_average_excess(np.concatenate([growth.sum(axis=1) for growth in growths]), delta)

    return _first_rejected(log_excess, values.size, guess=float(np.mean(values)))


def _largest_shares(values: FloatArray) -> FloatArray:
    """Of the capital, what each client may cost: the more, the more clients before it of whom none had a large value.

    After t such clients one with a large value comes with a probability of about 1/t, and ruins who bet too much.
    """
    largest = before(np.maximum.accumulate(values, axis=1), 0.0)
    shares = np.clip(
        1.0 - _DOUBTED / np.maximum(np.arange(values.shape[1]), 1.0), LARGEST_SHARE, _LARGEST_SHARE_OF_DUALS
    )
    return np.where(largest < _LARGE, shares, LARGEST_SHARE)


def _in_blocks(orders: IntArray) -> Iterator[IntArray]:
    """As many orders at a time as are worth it: of a million clients, one."""
    num_rows = max(1, _MOST_AT_ONCE // orders.shape[1])
    return (orders[first : first + num_rows] for first in range(0, len(orders), num_rows))


def log_average_excess(log_capitals: FloatArray, delta: float) -> float:
    """By how much the logarithm of the average of final capitals exceeds that of 1/delta: what it rejects is >= 0."""
    return float(np.logaddexp.reduce(log_capitals) - np.log(log_capitals.size / delta))


def _first_rejected(log_excess: Callable[[float], float], num_clients: int, *, guess: float) -> float:
    """Smallest number in [0, 1] found at which a nondecreasing function is not negative: the rejected end."""
    if num_clients > _MANY:
        return root_from_above(log_excess, low=0.0, high=1.0, guess=min(guess, 1.0), tolerance=2.0**-_NUM_STEPS)
    return bisect_number(lambda value: log_excess(value) < 0.0, low=0.0, high=1.0, num_steps=_NUM_STEPS).upper


def _num_orders(num_values: int) -> int:
    return int(np.clip(_NUM_PLAYED // num_values, *_NUM_ORDERS))


@lru_cache(maxsize=8)
def fixed_orders(num_values: int, *, num_orders: int) -> IntArray:
    """Orders in which sorted values are played through, shape (num_orders, num_values).

    Drawn once, for everybody, from a stream of bits that is the same on every machine and in every version of numpy:
    independent of all answers, and nothing that a user could choose. Sorted answers in a random order are what
    independent clients give, so each order on its own keeps the gambler's capital fair.
    """
    bits = np.random.Philox(key=_ORDERS_KEY)
    orders = np.stack([np.argsort(bits.random_raw(num_values), kind="stable") for _ in range(num_orders)])
    orders.flags.writeable = False
    return orders


def sorted_orders(answers: Sequence[FloatArray | IntArray], *, num_orders: int) -> IntArray:
    """`fixed_orders` of the clients sorted by their answers, shape (num_orders, num_clients), for any order of input.

    `answers` are arrays of shape (num_clients,); ties of the first are broken by the next.
    """
    by_answers = np.lexsort(tuple(answers)[::-1])
    return np.asarray(by_answers[fixed_orders(by_answers.size, num_orders=num_orders)])


def betting_upper_mean(values: FloatArray, *, delta: float) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1], by betting.

    A gambler who doubts the mean `m` bets on `values < m`; if `m` is the mean, the capital is a nonnegative
    martingale and reaches 1/delta with probability at most delta. Every factor grows with `m`, so the means that are
    not rejected end at one point, found by bisection; the rejected end of the bracket is returned. The order of the
    values must not depend on them. Source: [WSR] §4, predictable plug-in bets for a fixed sample size.
    """
    bets = adaptive_bets(values, delta)

    def survives(candidate: float) -> bool:
        return bool(np.cumsum(log_growth(candidate, values, bets)).max() < np.log(1.0 / delta))

    return bisect_number(survives, low=0.0, high=1.0).upper


def largest_log_capital(values: FloatArray, candidate: float, *, delta: float) -> float:
    """Logarithm of the largest capital on the way of the gambler of `betting_upper_mean` against one candidate."""
    return float(np.cumsum(log_growth(candidate, values, adaptive_bets(values, delta))).max())


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
    candidate: float | FloatArray,
    values: FloatArray,
    bets: FloatArray,
    largest_share: float | FloatArray = LARGEST_SHARE,
) -> FloatArray:
    """Logarithms of the factors of the capital: bets on values below the candidate mean, cut to what may be lost."""
    largest_bet = largest_share / np.maximum(1.0 - candidate, 1e-300)
    return np.asarray(np.log1p(np.minimum(bets, largest_bet) * (candidate - values)))


def fixed_bets_upper_mean(values: FloatArray, *, delta: float) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1] that falls with no value.

    As `betting_upper_mean`, but every gambler bets one share of the capital on all values, so their order is of no
    consequence and the limit grows with every value: it stays valid if any value is replaced by a larger one. Several
    gamblers start with equal parts of the capital; their sum is tested once, by Markov's inequality. Source:
    math §7.4.
    """
    # From the best share for the largest variance of a mean of 1/2, doubled up to the largest.
    smallest = min(float(np.sqrt(2.0 * np.log(1.0 / delta) / values.size)), LARGEST_SHARE)
    num_bets = 1 + int(np.ceil(np.log2(LARGEST_SHARE / smallest)))
    shares = np.geomspace(smallest, LARGEST_SHARE, num_bets)[:, None]

    def survives(candidate: float) -> bool:
        odds = (1.0 - values) / max(1.0 - candidate, 1e-300)  # of mean 1 if the candidate is the mean
        return log_average_excess(np.sum(np.log1p(shares * (odds - 1.0)), axis=1), delta) < 0.0

    return bisect_number(survives, low=0.0, high=1.0).upper
