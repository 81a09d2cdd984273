"""Measures of dispersion straight from the clients' answers, by betting: no band in between (math §5.6).

A gambler doubts that a measure is above a value, or below it. All pairs of clients are bet against at once with
constant stakes; or clients one after the other, each before it is seen, with what those before it showed: the final
capitals in many fixed orders of the clients as they come are averaged. Where they come sorted by their risks there is
no such order, and bands serve. Values that are rejected are an interval, since every capital is monotone in the value.

The functions named after measures take answers as they were measured, the error level of each limit, and a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from riskband import betting
from riskband.answers.risks import ClientRisks
from riskband.bands.local_steps import KNOWN_SIZES, RANDOM_SIZES, assumed_of_sizes
from riskband.betting import CONSTANT_STAKES, ORDER_IS_UNINFORMATIVE, constant_stakes_upper_mean
from riskband.checks import FloatArray, IntArray
from riskband.duals import dual_upper_limit, excess_assumptions, tail_duals, upper_mean
from riskband.functionals import ratios
from riskband.functionals.pairs import Pairs
from riskband.functionals.ratios import Ratio, log_ratio, power_ratio, root_ratio, tail_ratio, theil_ratio
from riskband.functionals.stepwise import true_quantile, true_share
from riskband.search import bisect_number

OWN_SIZES = "the number of examples of each client is that of all its own, and not the size of a sample of them"

# Parameters beyond which a band is sharper: ratios next to 1, and tails of which few clients tell.
_POWERS_BELOW_1, _POWERS_ABOVE_1, _SHARES = (0.05, 0.9), (1.1, 10.0), (0.01, 0.95)
_MOST_EXAMPLES = 100_000  # for which all counts are tried; with more, they make no difference
_NUM_ORDERS = 20  # for the tangents of the Gini coefficient: more hardly change it
_FEW_PER_EXAMPLE, _ENOUGH_CLIENTS = 3, 300  # clients from which on these are taken
_MOST_FOR_TANGENTS = 5_000  # examples up to which they are: with more, noise is too small to matter
_FOR_QUARTICS = (8, 2_000)  # examples between which quartic polynomials say who is apart
_NUM_CELLS = 64  # of values, in each of which a bet has one largest size


class DirectBounds(NamedTuple):
    """Confidence limits for a measure, each at its own error level; None where answers alone give none.

    `assumptions` are those beyond what all certificates from the answers assume.
    """

    lower: float | None
    upper: float | None
    method: str = "betting"
    assumptions: tuple[str, ...] = ()


def has_no_order(risks: ClientRisks) -> bool:
    """Return whether bets can rely on no order of these clients: they have no names, and come sorted by risk."""
    return risks.names is None and betting.come_sorted(risks.values)


def played_orders(risks: ClientRisks, *, num_played: int, most: int) -> IntArray | None:
    """Fixed orders of the clients as they come, of `num_played` clients in all, about; None if they come sorted."""
    return betting.client_orders(risks.values, num_orders=int(np.clip(num_played // risks.num_clients, 2, most)))


def gini(risks: ClientRisks, delta: float) -> DirectBounds | None:
    """E|R - R'| against G·E(R + R'), by pairs of clients; above also by one client after the other."""
    pairs = Pairs.of(risks.values, risks.num_examples)
    if pairs is None:
        return None
    orders = played_orders(risks, num_played=1_000_000, most=_NUM_ORDERS) if _is_noise_large(risks) else None
    sums = risks.values[pairs.first] + risks.values[pairs.second]
    if orders is None:
        upper = _upper_ratio(pairs, np.abs(risks.values[pairs.first] - risks.values[pairs.second]), sums, delta)
    else:
        upper = ratios.gini_upper_limit(risks, orders, delta=delta)
    has_order = orders is not None or not pairs.is_complete
    assumptions = (assumed_of_sizes(risks), *((ORDER_IS_UNINFORMATIVE,) if has_order else ()))
    if not risks.binary:
        return DirectBounds(None, upper, assumptions=assumptions)
    if risks.has_equal_sizes and _FOR_QUARTICS[0] <= risks.num_examples[0] <= _FOR_QUARTICS[1]:
        numbers = ratios.surely_apart(int(risks.num_examples[0]))
        wrong = np.rint(risks.values * risks.num_examples).astype(int)
        apart, limit = numbers[wrong[pairs.first], wrong[pairs.second]], _limit_of_table(numbers)
    else:
        apart, limit = _surely_apart(risks, pairs.first, pairs.second), _apart_limit(risks)
    return DirectBounds(_lower_ratio(pairs, apart, sums, limit, delta), upper, assumptions=assumptions)


def _is_noise_large(risks: ClientRisks) -> bool:
    """Whether what Jensen's inequality costs pairs, which falls with n, weighs more than what tangents have to learn.

    By numbers of clients and examples alone.
    """
    if not (risks.binary and risks.has_equal_sizes):
        return False
    size = float(risks.num_examples[0])
    return 1.0 < size <= _MOST_FOR_TANGENTS and risks.num_clients >= min(_FEW_PER_EXAMPLE * size, _ENOUGH_CLIENTS)


def _surely_apart(risks: ClientRisks, first: IntArray, second: IntArray) -> FloatArray:
    """Numbers of pairs whose expectation is at most |R - R'|, from counts.

    One example of each client is set aside. The others say which client has the larger risk, and the two that were set
    aside are compared in that sense: (R - R') times a sign that does not depend on them. It is averaged over all
    choices of the two.
    """
    p, q = risks.values[first], risks.values[second]
    wrong_out, right_out = _without_one(risks)
    if_first = np.sign(wrong_out[first] - right_out[second])  # the example of the first is wrong, the other's is right
    if_second = np.sign(right_out[first] - wrong_out[second])
    return np.asarray(p * (1.0 - q) * if_first - (1.0 - p) * q * if_second)


def _without_one(risks: ClientRisks) -> tuple[FloatArray, FloatArray]:
    """Risks on all examples but one, if that one is wrong and if it is right; 1/2 where no other is left."""
    rest = risks.num_examples - 1.0
    wrong = np.rint(risks.values * risks.num_examples)
    has_rest = rest > 0.0
    safe = np.where(has_rest, rest, 1.0)
    return np.where(has_rest, (wrong - 1.0) / safe, 0.5), np.where(has_rest, wrong / safe, 0.5)


def _apart_limit(risks: ClientRisks) -> Callable[[float], float]:
    """Of a value, the largest that value·(r̂ + r̂') minus the number of `_surely_apart` can be."""
    if not risks.has_equal_sizes or risks.num_examples[0] > _MOST_EXAMPLES:
        return lambda value: 1.0 + value  # the number is at least 2pq - p - q
    p = np.arange(risks.num_examples[0] + 1) / risks.num_examples[0]
    losses = 2.0 * p * (1.0 - p), np.append((1.0 - p[1:]) * p[:-1], 0.0)  # for equal counts, and for neighbours
    sums = 2.0 * p, np.append(p[1:] + p[:-1], 0.0)
    return lambda value: float(max(np.max(value * s + loss) for s, loss in zip(sums, losses, strict=True)))


def _limit_of_table(numbers: FloatArray) -> Callable[[float], float]:
    """As `_apart_limit`, of numbers for all pairs of counts."""
    size = len(numbers) - 1
    least = np.array([np.flipud(numbers).diagonal(total - size).min() for total in range(2 * size + 1)])
    sums = np.arange(2.0 * size + 1.0) / size
    return lambda value: float(np.max(value * sums - least))


def _upper_ratio(pairs: Pairs, parts: FloatArray, sums: FloatArray, delta: float) -> float:
    """Upper limit for E part / E sum, both of pairs, part <= sum, part - value·sum <= 1 - value.

    In units of the most that a bet may lose, every gain grows with the value.
    """

    def survives(value: float) -> bool:
        return pairs.log_excess(value * sums - parts, largest_loss=1.0 - value, delta=delta) < 0.0

    return bisect_number(survives, low=0.0, high=1.0, num_steps=36).upper


def _lower_ratio(
    pairs: Pairs, parts: FloatArray, sums: FloatArray, limit: Callable[[float], float], delta: float
) -> float:
    """Lower limit for E part / E sum; `limit` says how large value·sum - part can be, and grows with the value.

    Within each cell of values the stakes are the same, and the gains fall with the value.
    """
    cells = np.linspace(0.0, 1.0, _NUM_CELLS + 1)

    def is_rejected(largest_loss: float, value: float) -> bool:
        return pairs.log_excess(parts - value * sums, largest_loss=largest_loss, delta=delta) >= 0.0

    for low, high in pairwise(cells.tolist()):
        if not is_rejected(limit(high), high):
            return bisect_number(partial(is_rejected, limit(high)), low=low, high=high, num_steps=30).lower
    return 1.0


def _ratio_bounds(
    risks: ClientRisks, delta: float, ratio: Ratio, measure: Callable[[float], float] = float, *, has_upper: bool = True
) -> DirectBounds | None:
    """Limits for a measure that grows with a ratio."""
    orders = played_orders(risks, num_played=20_000, most=50)
    if orders is None:
        return None
    upper = measure(ratios.ratio_upper_limit(ratio, risks, orders, delta=delta)) if has_upper else None
    if not (risks.binary or ratio.is_quadratic):
        return None if upper is None else DirectBounds(None, upper, assumptions=(ORDER_IS_UNINFORMATIVE,))
    lower = measure(ratios.ratio_lower_limit(ratio, risks, orders, delta=delta))
    known = () if risks.has_equal_sizes else (KNOWN_SIZES,)  # the largest bet is that for all counts which can occur
    return DirectBounds(lower, upper, assumptions=(assumed_of_sizes(risks), *known, ORDER_IS_UNINFORMATIVE))


def atkinson(risks: ClientRisks, delta: float, aversion: float) -> DirectBounds | None:
    """Atkinson index of an aversion from 0.1 to 0.95, and the lower limit at 1."""
    if aversion == 1.0:
        of_ratio = lambda ratio: 1.0 - float(np.exp(-ratio))  # noqa: E731
        return _ratio_bounds(risks, delta, log_ratio(), of_ratio, has_upper=False)
    is_usual = _is_between(1.0 - aversion, _POWERS_BELOW_1)
    return _ratio_bounds(risks, delta, root_ratio(1.0 - aversion)) if is_usual else None


def generalised_entropy(risks: ClientRisks, delta: float, order: float) -> DirectBounds | None:
    """Generalised entropy of order 1, of orders from 0.05 to 0.9 and from 1.1 to 10, and the lower limit at 0."""
    if order == 0.0:
        return _ratio_bounds(risks, delta, log_ratio(), has_upper=False)
    if order == 1.0:
        return _ratio_bounds(risks, delta, theil_ratio())
    factor = order * (order - 1.0)
    if _is_between(order, _POWERS_ABOVE_1):
        return _ratio_bounds(risks, delta, power_ratio(order), lambda ratio: (ratio**order - 1.0) / factor)
    if _is_between(order, _POWERS_BELOW_1):
        return _ratio_bounds(risks, delta, root_ratio(order), lambda ratio: ((1.0 - ratio) ** order - 1.0) / factor)
    return None


def coefficient_of_variation(risks: ClientRisks, delta: float) -> DirectBounds | None:
    """Standard deviation over mean."""
    return _ratio_bounds(risks, delta, power_ratio(2.0), lambda ratio: float(np.sqrt(max(ratio**2 - 1.0, 0.0))))


def mean(risks: ClientRisks, delta: float) -> DirectBounds:
    """Mean risk, of clients that count alike or by their design."""
    of_losses, of_gains = (upper_mean(risks, values, delta=delta) for values in (risks.values, 1.0 - risks.values))
    return DirectBounds(1.0 - of_gains, of_losses, CONSTANT_STAKES)


def example_mean(risks: ClientRisks, delta: float, most: int) -> DirectBounds:
    """Mean risk, of clients that count with their numbers of examples, of which none can have more than `most`."""
    largest = int(risks.num_examples.max())
    if largest > most:
        raise ValueError(
            f"example_mean:{most} needs clients of at most {most} examples, got one of {largest}; name a number that "
            "no client can exceed, whoever answers, and settle it before any answer is seen"
        )
    known = f"no client can have more than {most} examples, which was known before any of them answered"
    of_losses, of_gains = (
        constant_stakes_upper_mean(values, delta=delta, weights=risks.num_examples / most)
        for values in (risks.values, 1.0 - risks.values)
    )
    return DirectBounds(1.0 - of_gains, of_losses, CONSTANT_STAKES, (RANDOM_SIZES, OWN_SIZES, known))


def cvar(risks: ClientRisks, delta: float, level: float) -> DirectBounds:
    """Mean risk of the clients beyond the quantile at a level, from above (math §2.9)."""
    upper, name, assumed = dual_upper_limit(risks, tail_duals(risks, level), delta=delta, seed=None)
    return DirectBounds(None, upper, name, (*excess_assumptions(risks), *assumed))


def share(risks: ClientRisks, delta: float, threshold: float) -> DirectBounds:
    """Share of the clients at or above a threshold, from above; not by betting (math §2.10).

    By designs also from below: there no band is.
    """
    return _stepwise(true_share, risks, delta, threshold, max(float(np.nextafter(1.0 - threshold, 0.0)), 0.0))


def quantile(risks: ClientRisks, delta: float, level: float) -> DirectBounds:
    """Quantile, from above; not by betting (math §2.10). By designs also from below, as a share is."""
    return _stepwise(true_quantile, risks, delta, level, min(float(np.nextafter(1.0 - level, 2.0)), 1.0))


def _stepwise(
    bound: Callable[..., float], risks: ClientRisks, delta: float, point: float, mirrored: float
) -> DirectBounds:
    """Bounds of risks at a point, and by designs of the mirrored risks at theirs."""
    lower = None if risks.are_independent else 1.0 - bound(risks.mirrored, mirrored, delta=delta)
    return DirectBounds(lower, bound(risks, point, delta=delta), "stepwise", (assumed_of_sizes(risks),))


def top_share(risks: ClientRisks, delta: float, share: float) -> DirectBounds | None:
    """Part of all risk on the worst-off share of the clients, from 0.01 to 0.95."""
    ratio = tail_ratio(share, has_late=risks.num_clients >= _ENOUGH_CLIENTS)
    return _ratio_bounds(risks, delta, ratio) if _is_between(share, _SHARES) else None


def _is_between(parameter: float, ends: tuple[float, float]) -> bool:
    """With the ends, of which rounding may take a little."""
    return ends[0] - 1e-9 <= parameter <= ends[1] + 1e-9
