"""From the distribution of what clients measured to the distribution of their true risks (math §2.4).

Each step takes levels for the sorted values of K independent clients and turns them into knots of a bound for the CDF
of true risks. `marginal` rests on one inequality. Let U be a client's upper limit at error level eta. Whatever the
client's risk R is, U fails with probability at most eta, so P(U > x) >= (1 - eta) P(R > x), and the CDF G of U gives
1 - F <= (1 - G) / (1 - eta): sharper than F >= G - eta, and for every eta at once where one event covers them all.

Answers that may be missing or wrong (math §7.1) shift the levels before any step sees them: `levels_of_answers`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincc

from riskband.answers.concave_curves import upper_hull
from riskband.answers.risks import EQUAL_BY_DESIGN, ETA_GRID, ClientRisks, default_eta
from riskband.bands.closed_form import Knots, MeasuredBand
from riskband.bands.levels import Levels
from riskband.checks import FloatArray, IntArray, in_decimals

RANDOM_SIZES = "a client's number of examples is drawn together with the client"
KNOWN_SIZES = "which numbers of examples clients can have was known before any of them answered"
EQUAL_SIZES = "the same number of examples was planned for all clients, also those whose answers are missing or wrong"
OBSERVED_SIZES = "the new client measures on as many examples as the clients here (or draws their number as they did)"

LevelsOf = Callable[[int, float, str], Levels]

_LEAST_DELTA = 1e-9  # of levels that are calibrated exactly

EVERY_ETA, GRID_OF_ETAS = "every", "grid"
"""Error levels of the local limits in words: all of (0, 1), and `ETA_GRID` alone."""


class ClientAtoms(NamedTuple):
    """A discrete distribution of risks: one atom for each client that answered, and one at the top for the rest.

    The top is risk 1; where noisy answers stand for risks, it is the largest number that they can be. Missing clients
    that count as worst are part of that last atom. With contamination b, the b smallest answers weigh nothing: these
    are the ones whose being wrong would hide most.
    """

    risks: FloatArray  # nondecreasing, the last being the top; shape (num_clients + 1,), or more per client
    weights: FloatArray  # their probabilities
    clients: IntArray  # client of each atom but the last; every client is among them

    @classmethod
    def from_levels(
        cls, values: FloatArray, levels: FloatArray, *, num_wrong: int = 0, top: float = 1.0
    ) -> ClientAtoms:
        """Stochastically largest one with F >= levels at the sorted values; the first `num_wrong` levels are lost."""
        order = np.argsort(values, kind="stable")
        kept = _shifted(levels, num_wrong)
        return cls(np.append(values[order], top), np.diff(kept, prepend=0.0, append=1.0), order)

    def per_client(self, weights: FloatArray) -> FloatArray:
        """Weights of the atoms, of the shape of `risks`, as weights of the clients in their own order."""
        return np.asarray(np.bincount(self.clients, weights[:-1]), dtype=np.float64)

    def excess(self, risk: FloatArray) -> FloatArray:
        """Mean of what exceeds a risk, E(x - risk)_+, at risks of any shape."""
        later = np.searchsorted(self.risks, risk, side="right")
        return np.asarray(sums_from(self.weights * self.risks)[later] - risk * sums_from(self.weights)[later])

    def smaller(self, other: ClientAtoms) -> ClientAtoms:
        """Largest one on [0, 1] that is below both in increasing convex order: what is below both is below it.

        Its mean excess is the largest convex function that exceeds that of neither. Each client has two atoms, and
        those that are no corner of this function weigh nothing. Source: math §2.5.
        """
        risks = np.concatenate([self.risks[:-1], other.risks[:-1]])
        order = np.argsort(risks, kind="stable")
        risks, clients = risks[order], np.concatenate([self.clients, other.clients])[order]
        points = np.unique(np.concatenate([[0.0], risks, [1.0]]))
        corners, excess = upper_hull(points, -np.minimum(self.excess(points), other.excess(points)))
        cdf = np.maximum.accumulate(np.clip(1.0 - np.diff(excess) / np.diff(corners), 0.0, 1.0))
        atoms = np.maximum(np.searchsorted(risks, corners, side="right") - 1, 0)
        atoms[-1] = risks.size
        weights = np.bincount(atoms, np.diff(cdf, prepend=0.0, append=1.0), risks.size + 1)
        return ClientAtoms(np.append(risks, 1.0), np.asarray(weights, dtype=np.float64), clients)


def sums_from(values: FloatArray) -> FloatArray:
    """Sums of all values from each on, shape (num_values + 1,)."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])


def levels_of_answers(risks: ClientRisks, *, delta: float, sides: str, levels_of: LevelsOf) -> Levels:
    """Levels at the sorted answers, where some clients may be missing and some answers wrong, shape (num_clients,).

    With m missing clients that count as worst and b wrong answers, the i-th smallest number of all K + m clients is at
    most the (i + b)-th answer, and at least the (i - m - b)-th. From `levels_of` independent values; 0 and 1 where
    nothing is known. Source: math §7.1.
    """
    levels, wrong = levels_of(risks.num_counted, delta, sides), risks.contamination
    lower = None if levels.lower is None else _shifted(levels.lower[: risks.num_clients], wrong)
    upper = levels.upper
    if upper is not None:
        upper = np.append(upper[risks.num_missing_worst + wrong :], np.ones(wrong))
    return Levels(lower, upper)


def _shifted(lower: FloatArray, num_wrong: int) -> FloatArray:
    return np.append(np.zeros(num_wrong), lower[: lower.size - num_wrong])


@dataclass(frozen=True)
class LocalStep:
    """What the horizontal step makes of the levels: bounds for the CDF of true risks."""

    lower: tuple[Knots, ...]
    upper: tuple[Knots, ...]
    mean_distribution: ClientAtoms | None
    eta: float | str | None = None
    uses_limits: bool = False  # exact binomial limits, if the loss is binary
    assumptions: tuple[str, ...] = ()
    spare_delta: float = 0.0  # probability that the step leaves over, for levels of the measured risks


def with_measured_means(step: LocalStep, risks: ClientRisks, levels_of: LevelsOf) -> LocalStep:
    """The step with measured risks too behind its means, where these are alike and it leaves probability over for them.

    With equal numbers of examples, measured risks are independent draws from one distribution, whose mean and tail
    means under any weights of clients are not below those of the true risks: no limit is needed. Both distributions
    hold at once, so what is below both in increasing convex order does. Source: math §2.5.
    """
    are_alike = risks.has_equal_sizes and risks.are_as_measured
    if step.mean_distribution is None or step.spare_delta < _LEAST_DELTA or not are_alike:
        return step
    levels = levels_of(risks.num_clients, step.spare_delta, "lower").of_one_side
    measured = ClientAtoms.from_levels(risks.values, levels)
    return replace(step, mean_distribution=step.mean_distribution.smaller(measured))


def _marginal(
    risks: ClientRisks, *, delta: float, sides: str, levels_of: LevelsOf, eta: float | str | None
) -> LocalStep:
    """P(limit > x) >= (1 - eta) P(R > x), since a limit fails with probability eta whatever the client's risk is."""
    eta = marginal_eta(risks, eta)
    if risks.has_equal_sizes:
        # The limits of every eta are functions of the empirical risk: one band for the latter serves them all.
        levels = observed = levels_of_answers(risks, delta=delta, sides=sides, levels_of=levels_of)
        sizes: tuple[str, ...] = () if risks.are_answers_certain else (EQUAL_SIZES,)
    else:
        levels, observed = _separate_levels(risks, delta, sides, levels_of)
        sizes = (RANDOM_SIZES,)
    lower, upper = _closed_form(risks, levels) if eta == EVERY_ETA else _at_etas(risks, levels, etas_of(eta))
    return LocalStep(
        lower=lower,
        upper=upper,
        mean_distribution=_distribution_for_means(risks, observed.lower),
        eta=eta,
        uses_limits=True,
        assumptions=sizes,
    )


def marginal_eta(risks: ClientRisks, eta: float | str | None) -> float | str:
    """Return the error level, or levels, that the step "marginal" uses where `eta` was asked for.

    Every one where numbers of examples are equal and nothing is added to the answers; with noise those of a grid; one
    where numbers differ. Raises ValueError for more than there can be.
    """
    if not risks.has_equal_sizes:
        return default_eta(risks.num_counted) if eta is None else require_one_eta(eta, "unequal numbers of examples")
    if eta == EVERY_ETA and risks.noise is not None:
        raise ValueError(f"eta={EVERY_ETA!r} is for answers without noise; leave eta out, or say eta={GRID_OF_ETAS!r}")
    if eta is None:
        return EVERY_ETA if risks.noise is None else GRID_OF_ETAS
    return eta


def assumed_of_sizes(risks: ClientRisks) -> str:
    """What is assumed of the numbers of examples where something is chosen by them."""
    if not risks.has_equal_sizes:
        return RANDOM_SIZES
    # Whether they are equal must be no chance, and no choice of those whose answers are missing or wrong.
    return EQUAL_BY_DESIGN if risks.are_answers_certain else EQUAL_SIZES


def require_one_eta(eta: float | str, what: str) -> float:
    """Return `eta` if it is a number; raises ValueError for the words that mean several."""
    if isinstance(eta, str):
        raise ValueError(f"{what} allow for one error level, got eta={eta!r}; leave eta out, or give a number")
    return eta


def etas_of(eta: float | str) -> tuple[float, ...]:
    """Error levels at which limits are computed."""
    return ETA_GRID if isinstance(eta, str) else (eta,)


def _at_etas(
    risks: ClientRisks, levels: Levels, etas: tuple[float, ...]
) -> tuple[tuple[Knots, ...], tuple[Knots, ...]]:
    low, high = levels
    # 1 - F <= (1 - level) / (1 - eta), and F <= level / (1 - eta).
    lower = () if low is None else tuple((risks.upper_limits(e), np.maximum((low - e) / (1.0 - e), 0.0)) for e in etas)
    upper = () if high is None else tuple((risks.lower_limits(e), np.minimum(high / (1.0 - e), 1.0)) for e in etas)
    return lower, upper


def _closed_form(risks: ClientRisks, levels: Levels) -> tuple[tuple[Knots, ...], tuple[Knots, ...]]:
    low, high = levels
    measured = partial(MeasuredBand.of_answers, num_examples=int(risks.num_examples[0]), is_binary=risks.binary)
    lower = () if low is None else measured(risks.values, low).lower_knots()
    # The upper side is the lower one of one minus the loss.
    reflected = () if high is None else measured(in_decimals(1.0 - risks.values), 1.0 - high[::-1]).lower_knots()
    return lower, tuple((in_decimals(1.0 - points[::-1]), 1.0 - found[::-1]) for points, found in reflected)


def _counted(
    risks: ClientRisks, *, delta: float, sides: str, levels_of: LevelsOf, eta: float | str | None
) -> LocalStep:
    """At most `num_wrong` limits fail, so the i-th true risk lies below the (i + num_wrong)-th upper limit."""
    eta = default_eta(risks.num_counted) if eta is None else require_one_eta(eta, "counted limits")
    count_delta = delta / 10
    per_side = count_delta / (2 if sides == "two" else 1)
    # Of all clients that count: who chose the missing ones may have left us with every limit that fails.
    num_wrong = min(_binomial_quantile(1.0 - per_side, risks.num_counted, eta), risks.num_clients)
    levels = levels_of_answers(risks, delta=delta - count_delta, sides=sides, levels_of=levels_of)
    step = _step(risks.upper_limits(eta), risks.lower_limits(eta), levels, num_wrong=num_wrong)
    # Given the clients, their limits fail independently, whatever the levels do: the probabilities multiply.
    too_many = betainc(num_wrong + 1.0, risks.num_counted - num_wrong, eta) if num_wrong < risks.num_counted else 0.0
    hold = (1.0 - delta + count_delta) * (1.0 - too_many * (2 if sides == "two" else 1))
    return replace(step, eta=eta, uses_limits=True, spare_delta=float(hold - (1.0 - delta)))


def _binomial_quantile(level: float, size: int, share: float) -> int:
    """Return the least k with P(Binomial(size, share) <= k) >= level, as scipy.stats has it, which is slow to load."""
    return bisect_left(range(size), level, key=lambda k: float(betaincc(k + 1.0, size - k, share)))


def _union(risks: ClientRisks, *, delta: float, sides: str, levels_of: LevelsOf, eta: float | str | None) -> LocalStep:
    """All limits hold at once: delta is shared by the clients and twice by the band, as in [RE] Theorem 4.1."""
    if eta is not None:
        raise ValueError("local='union' has no eta: its error level per client is delta / (num_clients + 2)")
    share = delta / (risks.num_counted + 2)
    per_side = share / (2 if sides == "two" else 1)
    risks.require_no_noise("local='union'", "local='marginal'")
    half_width = np.sqrt(np.log(1.0 / per_side) / (2.0 * risks.num_examples))
    upper_limits = np.minimum(risks.values + half_width, 1.0)
    levels = levels_of_answers(risks, delta=2.0 * share, sides=sides, levels_of=levels_of)
    step = _step(upper_limits, np.maximum(risks.values - half_width, 0.0), levels)
    hold = (1.0 - 2.0 * share) * (1.0 - share) ** risks.num_counted  # independent given the clients, as above
    return replace(step, spare_delta=hold - (1.0 - delta))


def _observed(
    risks: ClientRisks, *, delta: float, sides: str, levels_of: LevelsOf, eta: float | str | None
) -> LocalStep:
    """No step: the distribution is that of empirical risks."""
    if eta is not None:
        raise ValueError("local='observed' has no eta: it takes no step from empirical to true risks")
    risks.require_no_noise("local='observed'", "local='marginal'")
    levels = levels_of_answers(risks, delta=delta, sides=sides, levels_of=levels_of)
    return replace(_step(risks.values, risks.values, levels), assumptions=(OBSERVED_SIZES,))


def _step(upper_limits: FloatArray, lower_limits: FloatArray, levels: Levels, *, num_wrong: int = 0) -> LocalStep:
    """Each sorted true risk lies between these limits, but for `num_wrong` of them on each side."""
    kept = upper_limits.size - num_wrong
    below, above = levels.lower, levels.upper
    return LocalStep(
        lower=() if below is None else ((np.sort(upper_limits)[num_wrong:], below[:kept]),),
        upper=() if above is None else ((np.sort(lower_limits)[:kept], above[num_wrong:]),),
        mean_distribution=None if below is None else ClientAtoms.from_levels(upper_limits, below, num_wrong=num_wrong),
    )


def _distribution_for_means(risks: ClientRisks, levels: FloatArray | None) -> ClientAtoms | None:
    """Reweighting clients leaves the mean of what they measured, noise and all, equal to that of their true risks."""
    bounded = risks.bounded(risks.values)
    return None if levels is None else ClientAtoms.from_levels(bounded.values, levels, top=bounded.high)


def _separate_levels(risks: ClientRisks, delta: float, sides: str, levels_of: LevelsOf) -> tuple[Levels, Levels]:
    """Levels for limits, and for empirical risks, whose orders differ: every side of each takes its part of delta."""
    part = delta / {"lower": 2, "upper": 1, "two": 3}[sides]
    of_side = partial(levels_of_answers, risks, delta=part, levels_of=levels_of)
    lower = None if sides == "upper" else of_side(sides="lower").lower
    upper = None if sides == "lower" else of_side(sides="upper").upper
    if _could_be_equal(risks):  # then no wrong answer may gain anything by making equal numbers look unequal
        equal = levels_of_answers(risks, delta=delta, sides=sides, levels_of=levels_of)
        lower = None if lower is None or equal.lower is None else np.minimum(lower, equal.lower)
        upper = None if upper is None or equal.upper is None else np.maximum(upper, equal.upper)
    return Levels(lower, upper), Levels(lower, None)


def _could_be_equal(risks: ClientRisks) -> bool:
    """Whether all numbers of examples are equal but those in answers that may be wrong."""
    _, counts = np.unique(risks.num_examples, return_counts=True)
    return bool(counts.max() >= risks.num_clients - risks.contamination)


def lower_envelope(families: tuple[Knots, ...]) -> Knots:
    """Running maximum of the lower levels over all knots; knots that raise nothing are dropped."""
    points, levels = _sorted_knots(families)
    best = np.maximum.accumulate(levels)
    is_step = np.diff(best, prepend=0.0) > 0.0
    return points[is_step], best[is_step]


def upper_envelope(families: tuple[Knots, ...]) -> Knots:
    """Running minimum from the right of the upper levels over all knots; knots that lower nothing are dropped."""
    points, levels = _sorted_knots(families)
    best = np.minimum.accumulate(levels[::-1])[::-1]
    is_step = np.diff(best, append=1.0) > 0.0
    return points[is_step], best[is_step]


def _sorted_knots(families: tuple[Knots, ...]) -> Knots:
    if not families:
        return np.empty(0), np.empty(0)
    # Within a family, both limits and levels are sorted: the i-th level belongs to the i-th smallest limit.
    points = np.concatenate([np.sort(limits) for limits, _ in families])
    levels = np.concatenate([levels for _, levels in families])
    order = np.argsort(points, kind="stable")
    return points[order], levels[order]


LOCAL_STEPS: Mapping[str, Callable[..., LocalStep]] = {
    "marginal": _marginal,
    "counted": _counted,
    "union": _union,
    "observed": _observed,
}
