"""Bounds that may be looked at after every client: always valid, by bets in the order of the clients (math §17).

A gambler bets on one client after the other with constant stakes that share the capital, so whatever is bounded, there
is one process: `_log_peak`, the largest capital so far. If the number has the value that is tested, it ever reaches
1/delta with probability at most delta (Ville), however long clients keep coming and whenever anybody looks. So a bound
holds at all times at once, also when one stops because of it.

What is bet on are outcomes in [0, 1] of one client, which nothing but its own answer and those before it determine:

* a mean: what the client measured;
* a share, and by inversion a quantile: whether the client's limit is beyond the threshold;
* a worst mean or a tail mean: the dual that promised most by the clients before it (`_by_the_past`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from riskband import wording
from riskband.answers.responses import INDEPENDENT_CLIENTS, UNTIL_DECIDED
from riskband.answers.risks import ClientRisks, shared_assumptions
from riskband.answers.scaled import RISK, ClientChanges, ClientScores, ScaledAnswers, beyond
from riskband.bands.local_steps import OBSERVED_SIZES
from riskband.betting import LARGEST_SHARE_OF_TAILS, NUM_STEPS, TIE, Dual, are_in_order, come_sorted, looks_at_the_past
from riskband.certificate import Certificate, CrossingError, recipe
from riskband.checks import FloatArray, IntArray, check_choice, check_delta, in_decimals
from riskband.duals import tail_duals
from riskband.functionals.quantiles import SINGLE_LOCAL
from riskband.search import bisect_number
from riskband.wording import ORDER_TELLS_NOTHING, chosen_before
from riskband.worst_cases.divergences import FDivergence, binary_worst_case
from riskband.worst_cases.number import SHIFTED, UNSEEN, Number, least_share
from riskband.worst_cases.reweighting import duals_within, within
from riskband.worst_cases.scaled import SIDES, assumptions_of, limits_of

ORDERS = {
    "arrival": (
        f"the clients come in an order that {ORDER_TELLS_NOTHING}: each is a further independent draw, "
        "whatever those before it answered"
    ),
    "committed": "the order in which clients are asked was settled before any of them answered",
}
"""Where the order of the clients comes from, with what is assumed of it."""

IN_BATCHES = (
    f"{wording.IN_BATCHES}, whose sizes no answer has influenced: each is a further draw from one network, "
    "whatever those before it answered; within one, clients may be drawn without replacement and come in any order"
)

DIRECT = ("mean", "share", "quantile", "cvar")
"""Functionals that have bets of their own, the first three also of shifted networks; others are read off a band."""

# From those of the best for ten thousand clients of the widest spread to those for ten that hardly differ. Twelve share
# the capital: fewer miss some networks, and more pay for stakes that none needs.
_STAKES = np.geomspace(0.02, 30.0, 12)
# Error levels of limits of single clients, which share the capital: small ones are best where clients have thousands of
# examples or risks are far below the threshold, large ones where both is not so.
ETAS = (0.05, 0.2, 0.5)
_CHANGED = "or the network has changed since the first clients: begin again"
_LOOKS = 1.01  # ratio of the numbers of clients at which a dual is chosen again
_ENOUGH = 1e100  # what capital is above it is given away: no float overflows


def always_valid(
    answers: ClientRisks | ScaledAnswers,
    number: str | Number,
    *,
    delta: float,
    sides: str = "two",
    order: str = "arrival",
    local: str = "marginal",
    batches: Sequence[int] | None = None,
) -> Certificate:
    """Bound that holds for all numbers of clients at once, as more and more of them answer.

    Parameters
    ----------
    answers : ClientRisks, ClientChanges or ClientScores
        Those that have come so far, in the order in which they came. What was certified of fewer of them still holds.
    number : str or Number
        A mean, share or quantile, also of a shifted network; of risks also "cvar:LEVEL". Fixed before any answer was
        seen.
    delta : float
        Probability that the bound fails at any time, in (0, 1).
    sides : {"two", "worse"}
        Whether it is bounded from both sides at delta/2 each, or from its bad end only; a tail mean or a worst case
        only from its bad end.
    order : {"arrival", "committed"}
        Where their order comes from.
    local : {"marginal", "observed"}
        Of a share or a quantile: whether it is about true risks (or changes), or about what clients measure. Scores
        are measured.
    batches : sequence of int, optional
        How many clients came together each time, in any order, as for `monitor`; in place of what the order assumes.

    Returns
    -------
    Certificate
        A number, for the clients so far. Source: math §17.1; Ville's inequality as in [WSR].

    Raises
    ------
    ValueError
        If an argument is out of range or unknown, or the answers have noise, or may be wrong, or missing as the worst;
        or, as a `CrossingError`, if their order tells of them, or limits cross, or exclude what was measured.
    """
    sizes = batch_sizes(batches, num_clients=len(answers))
    delta, sides = check_delta(delta), check_choice("sides", sides, SIDES)
    order, local = check_choice("order", order, ORDERS), check_choice("local", local, SINGLE_LOCAL)
    answers.require_certain_answers("an always valid bound", "answers that are right, and missing='ignore'")
    asked = _Asked.of(Number.of(number), answers, local)
    check_order(answers, sizes)
    is_from_both = sides == "two" and asked.shift is None and asked.kind != "tail"
    part = delta / 2.0 if is_from_both else delta
    bad = _bad_end(asked, answers, part, sizes)
    near = 1.0 - _bad_end(asked.mirrored, answers.mirrored, part, sizes) if is_from_both else bad
    scale = RISK if isinstance(answers, ClientRisks) else answers.scale
    ends = np.array([near, bad, _measured(asked, answers, near if is_from_both else 0.0)])
    if isinstance(answers, ScaledAnswers) and asked.kind != "share":
        ends = answers.from_unit(ends)
    low, high, measured = ends[[1, 0, 2] if scale.is_higher_better and asked.kind != "share" else [0, 1, 2]].tolist()
    is_from_below = scale.is_higher_better and asked.kind != "share"
    assumed: Any = assumptions_of if isinstance(answers, ScaledAnswers) else shared_assumptions
    given = {"number": asked.name, "delta": delta, "sides": sides, "order": order, "local": local}
    given |= {} if batches is None else {"batches": sizes}
    shared = assumed(answers, needs_binary=any(asked.etas), at_all_times=True)
    is_measured = asked.etas == (0.0,) and not isinstance(answers, ClientScores)
    return Certificate(
        quantity=asked.quantity,
        value=scale.high if is_from_below and not is_from_both else high,
        lower=low if is_from_below or is_from_both else None,
        delta=delta,
        method="betting, always valid",
        assumptions=(
            *(line for line in shared if batches is None or line != INDEPENDENT_CLIENTS),
            *answers.own_assumptions,
            ORDERS[order] if batches is None else IN_BATCHES,
            *((OBSERVED_SIZES,) if is_measured else ()),
            *(() if asked.shift is None else (within(asked.shift[0]),)),
            *chosen_before(bound_on=(f"{asked.name}{' from both sides' if is_from_both else ''}", None)),
            *chosen_before(local=(local, "marginal")),
        ),
        recipe=recipe("always_valid", given, answers),
        measured=measured,
    )


class _Asked(NamedTuple):
    """What is bounded, from one end."""

    name: str
    quantity: str
    kind: str  # "mean", "share", "quantile", "tail" or "worst"
    point: float  # threshold, or level from the bad end
    shift: tuple[FDivergence, float] | None
    etas: tuple[float, ...] = ()  # error levels of limits of single clients; 0 for what they measured
    is_mirrored: bool = False

    @classmethod
    def of(cls, number: Number, answers: ClientRisks | ScaledAnswers, local: str) -> _Asked:
        """Take a number apart; raises ValueError if these answers have none of it at all times."""
        scale = RISK if isinstance(answers, ClientRisks) else answers.scale
        number.check(scale)
        if not is_direct(number):
            raise ValueError(
                f"an always valid bound must be on one of {', '.join(DIRECT)} of unseen clients, or on one of these "
                f"but cvar of a shifted network, got '{number}'; a Sequence reads other functionals off its band"
            )
        quantity, point, shift = number.quantity(scale, local=local), number.point, number.shift
        if scale is RISK and local != "marginal":
            quantity = f"{number.quantity()}, as clients measure risks"
        if number.family == "quantile":
            point = 1.0 - point if scale.is_higher_better else point
            point = point if shift is None else 1.0 - float(least_share(1.0 - point, *shift))
        kind = {"cvar": "tail", "mean": "mean" if shift is None else "worst"}.get(number.family, number.family)
        etas = (0.0,) if local == "observed" or isinstance(answers, ClientScores) else ETAS
        return cls(str(number), quantity, kind, point, shift, etas if kind in ("share", "quantile") else ())

    @property
    def mirrored(self) -> _Asked:
        """The same of mirrored answers, from the other end."""
        return self._replace(is_mirrored=True, point=1.0 - self.point if self.kind == "quantile" else self.point)


def is_direct(number: Number) -> bool:
    """Whether a number has bets of its own, as of shifted networks all but a tail mean."""
    return number.family in DIRECT and (number.where == UNSEEN or (number.where == SHIFTED and number.family != "cvar"))


def batch_sizes(batches: Sequence[int] | None, *, num_clients: int, ask: str = "all") -> IntArray:
    """Return how many clients came together each time: one, unless it is said.

    Raises ValueError if not all did, or if answers said how many were to be of a batch.
    """
    sizes = np.ones(num_clients, dtype=np.int64) if batches is None else np.array(batches)
    if sizes.ndim != 1 or sizes.dtype.kind != "i" or np.any(sizes < 1) or sizes.sum() != num_clients:
        raise ValueError(f"batches must be numbers of clients, {num_clients} in all, got {batches!r:.80}; count them")
    if ask == UNTIL_DECIDED and np.any(sizes > 1):
        raise ValueError(
            f"batches must be of sizes that no answer has influenced, got ask={ask!r}: a batch of such clients "
            "ends where they decide; leave batches out, and let them come one by one in the order of asking"
        )
    return sizes


def check_order(answers: ClientRisks | ScaledAnswers, sizes: IntArray) -> None:
    """Raise CrossingError if clients that came one by one come sorted by their answers, as no draws do."""
    if np.all(sizes == 1) and come_sorted(answers.values):
        raise CrossingError(
            f"clients that are looked at one by one must come in an order that says nothing about their answers, got "
            f"{len(answers)} whose answers grow or fall with their place: they were sorted, {_CHANGED}, or say that "
            "they came together: batches=[…]"
        )


def look_sorted(answers: ClientRisks | ScaledAnswers) -> bool:
    """Whether answers are sorted; of two values alone, sorted ones may be a network that broke."""
    return np.unique(answers.values).size > 2 and are_in_order(answers.values)


def _measured(asked: _Asked, answers: ClientRisks | ScaledAnswers, near: float) -> float:
    """What the clients measured of the mean, share or quantile, on [0, 1], where 1 is bad.

    No bound may exclude it. After one batch none can; what held of the first clients long ago may. Of a quantile any
    number between two clients is one: the nearest to the lower limit.
    """
    unit = answers if isinstance(answers, ClientRisks) else answers.unit
    if asked.kind == "share":
        return float(np.mean(_are_beyond(asked, answers, 0.0)))
    if asked.kind == "quantile":
        least, most = (float(np.quantile(unit.values, asked.point, method=m)) for m in ("inverted_cdf", "higher"))
        return min(max(near, least), most)
    return float(np.mean(unit.values))


def _bad_end(asked: _Asked, answers: ClientRisks | ScaledAnswers, delta: float, sizes: IntArray) -> float:
    """Upper limit on [0, 1], where 1 is bad, at all times at once: after each of the batches."""
    unit, needed = answers if isinstance(answers, ClientRisks) else answers.unit, np.log(1.0 / delta)

    def is_refuted(gains: FloatArray, largest_losses: FloatArray | float) -> bool:
        return bool(_log_peak(gains, largest_losses, sizes) >= needed)

    if asked.kind == "mean":
        return _smallest(lambda value: is_refuted(value - unit.values[None], 1.0 - value))
    kept = 1.0 - np.array(asked.etas)[:, None]
    if asked.kind == "share":
        counted = np.array([_are_beyond(asked, answers, eta) for eta in asked.etas])
        share = _smallest(lambda value: is_refuted(value * kept - counted, 1.0 - value * kept))
        if asked.shift is None:
            return share
        return float(binary_worst_case(share, divergence=asked.shift[0], budget=asked.shift[1]))
    if asked.kind == "quantile":
        limits, value = np.array([_limits(answers, eta) for eta in asked.etas]), (1.0 - asked.point) * kept
        candidates = np.unique(limits)
        # The largest capital grows with the threshold: beyond a rejected one, all are.
        first = bisect_left(candidates, True, key=lambda at: is_refuted(value - (limits > at), 1.0 - value))
        return float(candidates[first]) if first < candidates.size else 1.0
    # By Jensen's inequality, whatever the numbers of examples: what is bet on a client depends on no other client.
    plain = ClientRisks(unit.values, unit.num_examples, binary=False)
    if asked.shift is None:
        duals = tail_duals(plain, asked.point)
    else:
        divergence, budget = asked.shift
        if budget == 0.0:
            return _bad_end(asked._replace(kind="mean", shift=None), answers, delta, sizes)
        duals = duals_within(plain, divergence, budget)
    chosen = _by_the_past(duals, delta, sizes)[None]
    if sizes[0] > 1:  # before a first batch nothing is known: all duals share the capital
        chosen = np.repeat(chosen, len(duals), axis=0)
        chosen[:, : sizes[0]] = np.arange(len(duals))[:, None]
    outcomes = np.array([dual.outcomes for dual in duals])[chosen, np.arange(answers.num_clients)]

    def is_rejected(value: float) -> bool:
        means = np.clip([dual.least_mean(value) for dual in duals], 0.0, 1.0)[chosen]
        return is_refuted(means - outcomes, 1.0 - means)

    return _smallest(is_rejected)


def _smallest(is_rejected: Callable[[float], bool]) -> float:
    return bisect_number(lambda value: not is_rejected(value), low=0.0, high=1.0, num_steps=NUM_STEPS).upper


def _log_peak(gains: FloatArray, largest_losses: FloatArray | float, sizes: IntArray) -> float:
    """Logarithm of the largest capital after any batch, of bets on gains that come in batches of these sizes.

    `gains`, shape (num_kinds, num_clients), have means of at most 0, given the batches before, and none is below
    minus the largest loss, of a shape that fits. Every kind with every stake has the same part of the capital.
    """
    largest_bets = LARGEST_SHARE_OF_TAILS / np.maximum(largest_losses, 1e-300)
    ends = np.cumsum(sizes) - 1
    total = np.full(ends.size, -np.inf)
    for stake in _STAKES.tolist():
        grown = np.cumsum(np.log1p(np.minimum(stake, largest_bets) * gains), axis=1)
        total = np.logaddexp(total, np.logaddexp.reduce(grown[:, ends], axis=0))
    return float(total.max() - np.log(_STAKES.size * len(gains)))


def capital_with_late_bets(gains: FloatArray, largest_losses: FloatArray, sizes: IntArray) -> FloatArray:
    """Return what bets have made of a capital of 1 after each batch of clients, shape (num_batches,).

    `gains`, shape (num_kinds, num_clients), have means of at most 0, given the batches before, and are at least minus
    the largest loss, shape (num_kinds,). Every kind with every stake has the same part. Of each part 1/(1 + log(1 + b))
    is still kept after batch b, whatever has come, and the rest is played: slowly enough for a change after long.
    """
    bets = np.minimum(_STAKES, LARGEST_SHARE_OF_TAILS / np.maximum(largest_losses, 1e-300)[:, None])
    played, total, seen, kept = np.zeros(bets.shape), np.empty(sizes.size), 0, kept_capital(sizes.size)
    for b, size in enumerate(sizes.tolist(), start=1):
        grown = np.log1p(bets[:, :, None] * gains[:, None, seen : seen + size]).sum(axis=2)
        grown = np.exp(np.minimum(grown, np.log(_ENOUGH)))
        played, seen = np.minimum((played + kept[b - 1] - kept[b]) * grown, _ENOUGH), seen + size
        total[b - 1] = np.mean(played) + kept[b]
    return total


def kept_capital(num_batches: int) -> FloatArray:
    """Share of the capital that bets have not yet begun with, before the first batch and after each."""
    return np.asarray(1.0 / (1.0 + np.log1p(np.arange(num_batches + 1))))


def _by_the_past(duals: Sequence[Dual], delta: float, sizes: IntArray) -> IntArray:
    """For each client, the dual that promises most by the mean outcomes before its batch and the slack of bets."""
    looks, of_client = looks_at_the_past(duals[0].outcomes.size, ratio=_LOOKS)
    best, chosen = np.full(looks.size, np.inf), np.zeros(looks.size, dtype=np.intp)
    rate = np.log(1.0 / delta) / np.maximum(looks, 1)
    for index, dual in enumerate(duals):
        sums, squares = (np.append(0.0, np.cumsum(dual.outcomes**power))[looks] for power in (1, 2))
        promise, _ = dual.promise(sums, squares, looks, rate=rate)
        is_better = promise < best - TIE
        best[is_better], chosen[is_better] = promise[is_better], index
    return chosen[of_client[np.repeat(np.cumsum(sizes) - sizes, sizes)]]


def _limits(answers: ClientRisks | ScaledAnswers, eta: float) -> FloatArray:
    """Upper limits of the clients' true numbers on [0, 1], or at 0 what they measured."""
    if isinstance(answers, ClientRisks):
        return answers.upper_limits(eta) if eta else answers.values
    return answers.scale.to_unit(limits_of(answers, eta))


def _are_beyond(asked: _Asked, answers: ClientRisks | ScaledAnswers, eta: float) -> npt.NDArray[np.bool_]:
    """Which clients count for a share; of mirrored answers, which count for the share of the others."""
    if isinstance(answers, ClientRisks):
        limits = _limits(answers, eta)
        return limits > in_decimals(1.0 - asked.point) if asked.is_mirrored else limits >= asked.point
    limits = limits_of(answers, eta)
    if not asked.is_mirrored:
        return beyond(answers, limits, asked.point)
    return ~beyond(answers.mirrored, -limits if isinstance(answers, ClientChanges) else limits, asked.point)
