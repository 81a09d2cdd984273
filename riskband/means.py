"""Upper bounds on the mean risk of unseen clients that need no band (math §2.6).

The expected empirical risk of a fresh client equals the mean risk over clients exactly, so the mean of the answers
needs no step from empirical to true risks: the examples of a client only add to the spread that we see.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from riskband.answers.histogram import Histogram, PlainAnswers
from riskband.answers.risks import ClientRisks, check_risks, shared_assumptions
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, IntArray, check_choice, check_delta, check_own_seed
from riskband.search import bisect
from riskband.wording import chosen_before

ORDER_IS_UNINFORMATIVE = (
    "the order of the clients in the input, after a permutation by the seed, says nothing about their risks"
)


def mean_bound(risks: PlainAnswers, *, delta: float, method: str = "betting", seed: int | None = None) -> Certificate:
    """Upper bound on the mean risk over unseen clients.

    Parameters
    ----------
    risks : ClientRisks, HistogramRisks or HistogramLimits
        The clients' answers, or counts of clients in bins.
    delta : float
        Probability that the bound fails, in (0, 1).
    method : {"betting", "hoeffding", "empirical_bernstein", "published"}
        `betting` (default) is the sharpest; `published` is [RE] Theorem 4.1. Only the first two know clients that are
        missing="worst", contamination and counts (betting then takes fixed bets, see `fixed_bets_upper_mean`), and
        noisy answers: they cut these to a range, and add what that may take away from the mean.
    seed : int, optional
        Adaptive bets look at clients one after the other. By default many fixed orders are averaged, so that the bound
        depends neither on a seed nor on the order of the answers. A seed takes one order, which is sharper where there
        are many clients, but only valid if the seed was fixed before any answer was seen: that becomes an assumption.

    Returns
    -------
    Certificate
        A single number. Sources: `betting` [WSR] Waudby-Smith & Ramdas 2024, `empirical_bernstein` Maurer & Pontil
        2009, `published` [RE] Theorem 4.1; math §2.6.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the method is unknown, or does not know missing, wrong or noisy
        answers or counts.
    """
    answers, is_counted = risks, isinstance(risks, Histogram)
    if not is_counted:
        check_risks(risks)
    risks = answers.above
    delta, seed = check_delta(delta), check_own_seed(seed)
    method = check_choice("method", method, (*MEAN_BOUNDS, "betting"))
    if method in ("empirical_bernstein", "published"):
        risks.require_certain_answers(f"method={method!r}", "method='betting' or method='hoeffding'")
        if is_counted:
            raise ValueError(f"method must be 'betting' or 'hoeffding' for counts, got {method!r}; use betting")
    name = method
    if method == "betting":
        bounded = risks.bounded(risks.values)
        # Adaptive bets need every answer as it was given; counts in bins are no answers.
        is_fixed = is_counted or not risks.are_answers_certain
        completed = risks.worst_completion(bounded.in_unit)
        (found,), name = betting_upper_means([completed], delta=delta, seed=seed, is_fixed=is_fixed)
        value = bounded.from_unit(found)
    else:
        value = MEAN_BOUNDS[method](risks, delta)
    return Certificate(
        quantity="the mean risk over unseen clients",
        value=float(np.clip(value, 0.0, 1.0)),
        delta=delta,
        method=name,
        assumptions=(
            *shared_assumptions(risks),
            *answers.own_assumptions,
            *betting_assumptions(name, seed),
            *chosen_before(method=(method, "betting")),
        ),
        recipe=recipe("mean_bound", {"delta": delta, "method": method, "seed": seed}, answers),
    )


def betting_upper_means(
    columns: Sequence[FloatArray], *, delta: float, seed: int | None, is_fixed: bool
) -> tuple[list[float], str]:
    """Upper confidence limits for several means over the same clients, each by betting with this delta, and a name.

    For each mean there is a column of one number in [0, 1] from every client. `seed` is that of the order in which one
    gambler sees the clients; None: the average over fixed orders. With `is_fixed`, the limits fall with no value: see
    `fixed_bets_upper_mean`.
    """
    if is_fixed:
        return [fixed_bets_upper_mean(values, delta=delta) for values in columns], FIXED_BETS
    if seed is None:
        return [averaged_betting_upper_mean(values, delta=delta) for values in columns], AVERAGED_BETS
    order = np.random.default_rng(seed).permutation(columns[0].size)
    return [betting_upper_mean(values[order], delta=delta) for values in columns], "betting"


def betting_assumptions(name: str, seed: int | None) -> tuple[str, ...]:
    """Return what a limit of `betting_upper_means` assumes beyond the independence of the clients."""
    return (ORDER_IS_UNINFORMATIVE, *chosen_before(seed=(seed, None))) if name == "betting" else ()


def averaged_betting_upper_mean(values: FloatArray, *, delta: float) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1]: the same for every order of the values.

    The gambler of `betting_upper_mean` plays the sorted values through in many fixed orders. In each, the final capital
    has mean at most 1 if the candidate is the mean, so the average of them has; it is tested once, by Markov's
    inequality. (The largest capital on the way has no such mean: averages of it are not valid.) Source: [WSR];
    math §2.6.
    """
    orders = fixed_orders(values.size, num_orders=int(np.clip(_NUM_PLAYED // values.size, *_NUM_ORDERS)))
    played = np.sort(values)[orders]
    bets = np.stack([_adaptive_bets(row, delta) for row in played])

    def survives(candidate: FloatArray) -> np.ndarray:
        capitals = np.sum(_log_growth(candidate, played, bets), axis=1)
        return np.asarray(np.logaddexp.reduce(capitals) < np.log(len(orders) / delta))

    return float(bisect(survives, low=0.0, high=1.0, num_steps=36)[1])


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


def betting_upper_mean(values: FloatArray, *, delta: float) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1], by betting.

    A gambler who doubts the mean `m` bets on `values < m`; if `m` is the mean, the capital is a nonnegative
    martingale and reaches 1/delta with probability at most delta. Every factor grows with `m`, so the means that are
    not rejected end at one point, found by bisection; the rejected end of the bracket is returned. The order of the
    values must not depend on them. Source: [WSR] §4, predictable plug-in bets for a fixed sample size.
    """
    bets = _adaptive_bets(values, delta)

    def survives(candidate: FloatArray) -> np.ndarray:
        return np.asarray(np.cumsum(_log_growth(candidate, values, bets)).max() < np.log(1.0 / delta))

    return float(bisect(survives, low=0.0, high=1.0)[1])


def largest_log_capital(values: FloatArray, candidate: float, *, delta: float) -> float:
    """Logarithm of the largest capital on the way of the gambler of `betting_upper_mean` against one candidate."""
    return float(np.cumsum(_log_growth(np.asarray(candidate), values, _adaptive_bets(values, delta))).max())


def _adaptive_bets(values: FloatArray, delta: float) -> FloatArray:
    """Bet on each value, by the variance of those before it."""
    count = np.arange(1, values.size + 1)
    mean = (0.5 + np.cumsum(values)) / (count + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (count + 1)
    variance_before = np.concatenate([[0.25], variance[:-1]])  # a bet may only look at the past
    return np.asarray(np.sqrt(2.0 * np.log(1.0 / delta) / (values.size * variance_before)))


def _log_growth(candidate: FloatArray, values: FloatArray, bets: FloatArray) -> FloatArray:
    largest_bet = _LARGEST_SHARE / np.maximum(1.0 - candidate, 1e-300)
    return np.asarray(np.log1p(np.minimum(bets, largest_bet) * (candidate - values)))


def fixed_bets_upper_mean(values: FloatArray, *, delta: float) -> float:
    """Upper confidence limit for the mean of independent values in [0, 1] that falls with no value.

    As `betting_upper_mean`, but every gambler bets one share of the capital on all values, so their order is of no
    consequence and the limit grows with every value: it stays valid if any value is replaced by a larger one. Several
    gamblers start with equal parts of the capital; their sum is tested once, by Markov's inequality. Source:
    math §7.4.
    """
    # From the best share for the largest variance of a mean of 1/2, doubled up to the largest.
    smallest = min(float(np.sqrt(2.0 * np.log(1.0 / delta) / values.size)), _LARGEST_SHARE)
    num_bets = 1 + int(np.ceil(np.log2(_LARGEST_SHARE / smallest)))
    shares = np.geomspace(smallest, _LARGEST_SHARE, num_bets)[:, None]

    def survives(candidate: FloatArray) -> np.ndarray:
        odds = (1.0 - values) / np.maximum(1.0 - candidate, 1e-300)  # of mean 1 if the candidate is the mean
        capitals = np.sum(np.log1p(shares * (odds - 1.0)), axis=1)
        return np.asarray(np.logaddexp.reduce(capitals) < np.log(num_bets / delta))

    return float(bisect(survives, low=0.0, high=1.0)[1])


FIXED_BETS = "betting with fixed bets"
AVERAGED_BETS = "betting averaged over fixed orders"
# As many orders as cost little time; beyond some twenty of them the limit hardly changes.
_NUM_ORDERS, _NUM_PLAYED, _ORDERS_KEY = (20, 200), 20_000, 20_240
_LARGEST_SHARE = 0.9  # of the capital that one client may cost: more is sharper, but one bad client ruins it


def _hoeffding(risks: ClientRisks, delta: float) -> float:
    bounded = risks.bounded(risks.values)
    values = risks.worst_completion(bounded.in_unit)
    return bounded.from_unit(float(values.mean() + np.sqrt(np.log(1.0 / delta) / (2.0 * values.size))))


def _empirical_bernstein(risks: ClientRisks, delta: float) -> float:
    num_clients, log_term = risks.num_clients, np.log(2.0 / delta)
    variance = risks.values.var(ddof=1)
    slack = np.sqrt(2.0 * variance * log_term / num_clients) + 7.0 * log_term / (3.0 * (num_clients - 1))
    return float(risks.values.mean() + slack)


def _published(risks: ClientRisks, delta: float) -> float:
    log_term = np.log((risks.num_clients + 1) / delta)
    between = np.sqrt(log_term / (2.0 * risks.num_clients))
    within = np.sqrt(log_term / (2.0 * risks.num_examples)).mean()
    return float(risks.values.mean() + between + within)


MEAN_BOUNDS: Mapping[str, Callable[[ClientRisks, float], float]] = {
    "hoeffding": _hoeffding,
    "empirical_bernstein": _empirical_bernstein,
    "published": _published,
}
