"""What a few clients of a target network add to what its source network certifies within a budget (math §3.6).

The answers of both networks are independent, so what each says against a candidate for the number can be joined: for a
mean the capitals of two gamblers, for a share and a quantile two counts of clients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.special import bdtr, bdtrik, logit

from riskband import duals
from riskband.answers.responses import check_others
from riskband.answers.risks import ClientRisks, shared_assumptions
from riskband.bands.local_steps import assumed_of_sizes
from riskband.betting import KEPT_OF_FIRST, constant_stakes_upper_mean, doubt_of_mean
from riskband.certificate import Certificate, recipe
from riskband.checks import check_delta, check_kind
from riskband.functionals.dispersion import dispersion_certificate
from riskband.functionals.stepwise import (
    Clients,
    planned_size,
    quantile_ranges,
    share_ranges,
    true_quantile,
    true_share,
)
from riskband.wording import chosen_before
from riskband.worst_cases.divergence_bounds import BOTH_NETWORKS
from riskband.worst_cases.divergences import binary_worst_case
from riskband.worst_cases.number import Number, least_share
from riskband.worst_cases.reweighting import assumed_of_duals, duals_within, within, worst_case_mean

OTHER_CLIENTS = "clients of the target network must not be those of the source network"
_FROM_BELOW = 0.1  # of delta, for the lower bound: what a FAIL needs costs a PASS next to nothing
_SHARES = np.geomspace(1.0, 1e-3, 400)[1:]  # tried from the top, so a bound is at most 1.7 % above where it could be
_ETA = 0.1  # error level of the limits of single clients where the source alone plans none


def target_bound(source: ClientRisks, target: ClientRisks, number: Number, *, delta: float) -> Certificate:
    """Bounds on the mean risk, a share or a quantile of a target network of which a few clients answered, too.

    Parameters
    ----------
    source, target : ClientRisks
        Answers of clients of the source network, and of others of the target network.
    number : Number
        "mean@target:chi2:0.1", "share:0.3@target:chi2:0.1" (of the clients with a true risk of at least .3) or
        "quantile:0.9@target:chi2:0.1": with the divergence, and the budget >= 0 within which the target is assumed.
    delta : float
        Probability that a bound fails, in (0, 1). A tenth of it is for the bound from below, by the target alone.

    Returns
    -------
    Certificate
        A number with both ends. Whatever the target's clients answer, it is not above what the source alone gives in
        the same way with 18 % of delta; `details["source_alone"]` is what it gives with all of it, to compare with: no
        certificate beside this one. Source: math §3.6.

    Raises
    ------
    ValueError
        If the number cannot be read, or delta is out of range, or answers have noise, a design or a population, or some
        may be wrong or count as the worst, or a client of one name is in both networks and repeats are not draws; also,
        as `CrossingError`, if the answers contradict the budget.
    """
    f, budget = number.ball.values()
    for name, answers in (("source", source), ("target", target)):
        check_kind(name, answers, ClientRisks, remedy="make them with ClientRisks(values, num_examples)")
        answers.require_certain_answers("a bound with clients of a target network", "make a band of each network")
    check_others(source.names or (), target, rule=OTHER_CLIENTS)
    source, part = source.in_order_of_names(), (1.0 - _FROM_BELOW) * check_delta(delta)
    if number.family == "mean":
        chosen, beside = duals_within(source, f, budget), doubt_of_mean(target.values, delta=part)
        found = duals.dual_upper_limit(source, chosen, delta=part, seed=None, beside=beside)
        upper, method, assumptions = found.value, found.method, (*assumed_of_duals(source, f), *found.assumptions)
        lower = 1.0 - constant_stakes_upper_mean(1.0 - target.below.values, delta=_FROM_BELOW * delta)
    else:
        joined = _share if number.family == "share" else _quantile
        upper, method = joined(source, target, number, part), "weighted counts"
        assumptions = (assumed_of_sizes(source), assumed_of_sizes(target))  # limits were chosen by them
        lower = float(dispersion_certificate(target, number.functional, delta=_FROM_BELOW * delta).lower or 0.0)
    lines = [line for each in (source, target) for line in shared_assumptions(each, needs_binary=each is source)]
    return Certificate(
        quantity=number.quantity(),
        value=upper,
        lower=lower,
        delta=delta,
        method=method,
        assumptions=(
            *dict.fromkeys((*lines, *assumptions)),
            BOTH_NETWORKS,
            *chosen_before(number=(str(number), None)),
            within(f),
        ),
        details={"source_alone": np.array(_source_alone(source, number, delta))},
        recipe=recipe("bound", {}, source),
    )


def adds_nothing(certificate: Certificate) -> bool:
    """Whether a bound with clients of a target network is not below what the source network alone gives."""
    alone = certificate.details.get("source_alone")
    return alone is not None and bool(certificate.value >= alone)


def _source_alone(source: ClientRisks, number: Number, delta: float) -> float:
    """What the source bounds of a target within the budget of which nobody answered."""
    if number.family == "mean":
        return float(worst_case_mean(source, **number.ball, delta=delta).value)
    if number.family == "share":
        return float(binary_worst_case(true_share(source, number.point, delta=delta), **number.ball))
    return true_quantile(source, 1.0 - float(least_share(1.0 - number.point, **number.ball)), delta=delta)


def _share(source: ClientRisks, target: ClientRisks, number: Number, delta: float) -> float:
    """Upper bound on the share of the target's clients with a risk of at least a threshold."""
    if (threshold := number.point) == 0.0:
        return 1.0
    both, high = [Clients.of(each, threshold) for each in (source, target)], 1.0
    sizes = source.num_clients, target.num_clients
    ranges = share_ranges(source.num_clients, threshold, delta, planned_size(source)[0], False)

    @cache
    def counts_at(eta: float) -> list[int]:
        return [int(each.above(eta).sum()) for each in both]

    for share, least in zip(_SHARES.tolist(), least_share(_SHARES, **number.ball).tolist(), strict=True):
        eta = next(each.limits[0].eta for each in ranges if share > each.low)
        if chance_of_so_few(counts_at(eta), sizes, [(1.0 - eta) * least, (1.0 - eta) * share], delta=delta) > delta:
            break
        high = share
    return high


def _quantile(source: ClientRisks, target: ClientRisks, number: Number, delta: float) -> float:
    """Upper bound on a quantile of the target's risks: a limit of a client of either network, or 1."""
    share = 1.0 - number.point
    least = float(least_share(share, **number.ball))
    planned = quantile_ranges(source.num_clients, 1.0 - least, delta, planned_size(source)[0])
    eta = planned[0].limits[0].eta if planned else _ETA
    limits, sizes = [each.upper_limits(eta) for each in (source, target)], (source.num_clients, target.num_clients)
    points = np.unique(np.concatenate(limits))

    def is_enough(point: float) -> bool:
        beyond = [int(np.sum(each > point)) for each in limits]
        return chance_of_so_few(beyond, sizes, [(1.0 - eta) * least, (1.0 - eta) * share], delta=delta) <= delta

    place = bisect_left(points, True, key=is_enough)
    return float(points[place]) if place < points.size else 1.0


def chance_of_so_few(counts: Sequence[int], sizes: Sequence[int], least: Sequence[float], *, delta: float) -> float:
    """Return the largest probability of counts of two networks whose weighted sum is no larger than that of these.

    Each client counts with a probability of at least `least`, by its network, whichever others do. The weights are
    those of the likelihood ratio to one probability in both, which the first network could just tell from its least
    one; they have nothing to do with the counts, so under the least probabilities it fails at most with delta. Counts
    of the first network that are rarer than a part of delta are as small as any, whatever the second one says.
    """
    sure = np.clip(least, 1e-9, 1.0 - 1e-9)
    usual = min(max(np.floor(bdtrik(delta, sizes[0], sure[0])), 0.5) / sizes[0], 0.99 * sure[0])
    first, second = logit(sure) - logit(usual)
    of_first = np.arange(sizes[0] + 1.0)
    rarest = int(np.sum(bdtr(of_first, sizes[0], least[0]) <= KEPT_OF_FIRST * delta)) - 1
    others = np.arange(sizes[1] + 1.0)
    rest = np.floor((first * counts[0] + second * (counts[1] - others)) / first + 1e-9)  # a tie counts as no larger
    rest = np.full_like(rest, rarest) if counts[0] <= rarest else np.maximum(rest, rarest)
    so_few = np.where(rest >= 0.0, bdtr(np.clip(rest, 0.0, sizes[0]), sizes[0], least[0]), 0.0)
    return float(np.diff(bdtr(others, sizes[1], least[1]), prepend=0.0) @ so_few)
