"""Certificates and intervals for means, quantiles, shares, and integrals over quantiles (math §2.8 and math §5.5).

What grows with the risk of every client is largest at the largest member of the band, and its upper bound needs
the lower side only. All bounds from one band hold together, and together with every worst case of that band.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from riskband.answers.risks import ClientRisks, shared_assumptions
from riskband.bands.band import Band, band_alone, check_band, own_delta, subject_of
from riskband.bands.band import band as band_of
from riskband.bands.local_steps import OBSERVED_SIZES, assumed_of_sizes
from riskband.bands.methods import default_method
from riskband.betting import CONSTANT_STAKES
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_delta, check_optional_seed, check_points, check_single
from riskband.duals import dual_upper_limit, excess_assumptions, tail_duals, upper_quantile
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import certificate_of_band, resolve_weight
from riskband.functionals.stepwise import observed_share, order_statistic, true_quantile, true_share
from riskband.functionals.weights import MEAN, QuantileWeight, check_tail_level, step_integral, tail_mean, tail_weight
from riskband.wording import chosen_before, exactly, in_short

SINGLE_LOCAL = ("marginal", "observed")


def mean(band: Band) -> Certificate:
    """Upper bound on the mean risk of unseen clients, from the lower side of a `band` (math §2.8); see `mean_bound`."""
    check_band(band)
    quantity = "the mean risk over unseen clients"
    return certificate_of_band(band, "mean", {}, quantity=quantity, value=tail_mean(band, MEAN))


def cvar(
    source: Band | ClientRisks,
    level: float,
    *,
    delta: float | None = None,
    method: str | None = None,
    seed: int | None = None,
) -> Certificate:
    """Upper bound on the conditional value at risk: the mean risk of the worst `1 - level` of the unseen clients.

    Parameters
    ----------
    source : Band or ClientRisks
        A band with a lower side; the bound then holds together with all else that is read off it. Or answers: the bound
        stands alone, and is sharper.
    level : float
        In [0, 1), fixed before any answer was seen if the bound stands alone.
    delta : float, optional
        With answers: probability that the bound fails, in (0, 1).
    method : {"betting", "band"}, optional
        With answers: `betting`, see math §2.9 (default), or a `band` for this tail, "truncated:LEVEL:1", the default
        for answers with noise, and for those that may be wrong or count as the worst. For 0-1 losses bets rely on
        independent examples: for clients that measure their risk exactly, take a band or say `binary=False`.
    seed : int, optional
        With answers and bets: of the one order in which they see the clients, as for `mean_bound`.

    Returns
    -------
    Certificate
        A number. Source: math §2.9, and math §2.8 for a band.

    Raises
    ------
    ValueError
        If an argument is out of range, the band has no lower side, delta is given with a band or not with answers, a
        seed is given without bets, or the answers are not what the method can use.
    """
    level = check_tail_level(level)
    quantity = f"the mean risk of the worst {exactly(1.0 - level)} of unseen clients"
    if isinstance(source, ClientRisks):
        delta, usual = own_delta(delta), "betting" if source.are_as_measured else "band"
        method = check_choice("method", usual if method is None else method, ("betting", "band"))
        if method == "betting":
            return _direct_cvar(source, level, quantity, delta=delta, seed=check_optional_seed(seed))
        if seed is not None:
            raise ValueError(f"seed must be left out with method='band', got {seed!r:.80}; only bets have an order")
        tail = default_method(source.num_counted, f"truncated:{exactly(level)}:1")
        band = band_of(source, delta=delta, method=tail, sides="lower")
    else:
        band = band_alone(source, delta=delta, seed=seed, method=method)
    value = tail_mean(band, tail_weight(level))
    return certificate_of_band(band, "cvar", {"level": level}, quantity=quantity, value=value)


def _direct_cvar(risks: ClientRisks, level: float, quantity: str, *, delta: float, seed: int | None) -> Certificate:
    risks.require_certain_answers("method='betting'", "method='band'", knows_draws=True)
    risks = risks.in_order_of_names() if seed is None else risks
    value, name, assumed = dual_upper_limit(risks, tail_duals(risks, level), delta=delta, seed=seed)
    return Certificate(
        quantity=quantity,
        value=value,
        delta=delta,
        method=name,
        assumptions=(
            *shared_assumptions(risks, needs_binary=True, knows_draws=True),
            *excess_assumptions(risks),
            *assumed,
            *chosen_before(level=(level, None)),
        ),
        recipe=recipe("cvar", {"level": level, "delta": delta, "method": "betting", "seed": seed}, risks),
    )


def quantile(
    source: Band | ClientRisks, level: npt.ArrayLike, *, delta: float | None = None, local: str = "marginal"
) -> Certificate:
    """Upper bound on quantiles (value at risk) of the risk of unseen clients.

    Parameters
    ----------
    source : Band or ClientRisks
        A band with a lower side; all its quantiles then hold at once, with all else that is read off it. Or answers:
        one quantile stands alone, bounded by an order statistic, which is sharper and needs fewer clients.
    level : float or array_like, shape (num_levels,)
        Probabilities in [0, 1]; with answers a single one, fixed before any answer was seen.
    delta : float, optional
        As for `cvar`, with the same errors.
    local : {"marginal", "observed"}
        With answers: whether it is about the true risk of an unseen client, or about the one that it would measure; as
        for `riskband.band`.

    Returns
    -------
    Certificate
        A number, or a curve over `level`. 1 where no number of the answers bounds the quantile; `num_clients_needed`
        says how many clients would. Source: math §2.8, for one quantile math §2.7 and math §2.10.
    """
    if isinstance(source, ClientRisks):
        single = check_single("level", level)
        return _single_quantile(source, single, delta=own_delta(delta), local=local)
    band = band_alone(source, delta=delta)
    levels = check_points("level", level)
    quantity = f"the {'' if levels.ndim else f'{exactly(float(levels))} '}quantile of {band.subject}"
    axes, value = {"level": levels}, band.quantile_upper(levels)
    return certificate_of_band(band, "quantile", {"level": levels}, quantity=quantity, value=value, axes=axes)


def _single_quantile(risks: ClientRisks, level: float, *, delta: float, local: str) -> Certificate:
    local = check_choice("local", local, SINGLE_LOCAL)
    if local == "observed":
        risks.require_no_noise("local='observed'", "local='marginal'")
        value = observed_quantile(risks, level, delta=delta)
    else:
        value = true_quantile(risks, level, delta=delta)
    return _standing_alone(
        risks,
        "quantile",
        {"level": level, "delta": delta, "local": local},
        quantity=f"the {exactly(level)} quantile of {subject_of(local)}",
        exact="order statistic",
        value=value,
        chosen=chosen_before(level=(level, None), local=(local, "marginal")),
    )


def _standing_alone(
    risks: ClientRisks, function: str, arguments: dict[str, Any], *, exact: str, chosen: tuple[str, ...], **rest: Any
) -> Certificate:
    """Certificate from answers by an exact binomial bound, of `arguments` with delta and local."""
    is_true = arguments["local"] == "marginal"
    sizes = assumed_of_sizes(risks) if is_true else OBSERVED_SIZES
    return Certificate(
        delta=arguments["delta"],
        method="stepwise" if is_true else exact if risks.are_independent else CONSTANT_STAKES,
        assumptions=(
            *shared_assumptions(risks, needs_binary=is_true, knows_draws=True),
            sizes,
            *chosen,
        ),
        recipe=recipe(function, arguments, risks),
        **rest,
    )


def observed_quantile(risks: ClientRisks, level: float, *, delta: float) -> float:
    """Upper bound on the quantile of the risks that clients would measure."""
    if not risks.are_independent:
        return upper_quantile(risks, risks.values, tail=1.0 - level, delta=delta)
    return order_statistic(risks, risks.values, quantile_rank(risks.num_counted, level=level, delta=delta))


def quantile_rank(num_clients: int, *, level: float, delta: float) -> int:
    """Rank (K + 1 if there is none) of the order statistic of K measured risks that bounds a quantile of theirs."""
    ranks = np.arange(1, num_clients + 1)
    return int(np.sum(betaincinv(ranks, num_clients - ranks + 1.0, _delta_at_ties(delta)) < level)) + 1


def _delta_at_ties(delta: float) -> float:
    """Chances such as 0.9**2 often are delta, and no processor is to decide whether they are above it."""
    return min(delta * (1.0 + 1e-9), 1.0)


def num_clients_needed(level: float, *, delta: float) -> int:
    """Number of clients from which on `quantile` bounds a single quantile at this level below 1.

    Parameters
    ----------
    level, delta : float
        In [0, 1) and in (0, 1).

    Returns
    -------
    int
        The least K with level**K <= delta: with fewer, all of them may be below the quantile. At least 2. The mean of
        the clients beyond the level, `cvar`, needs a few more.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    level, delta = check_tail_level(level), check_delta(delta)
    return 2 if level == 0.0 else max(2, int(np.ceil(np.log(_delta_at_ties(delta)) / np.log(level))))


def survival(
    source: Band | ClientRisks, *, thresholds: npt.ArrayLike, delta: float | None = None, local: str = "marginal"
) -> Certificate:
    """Upper bound on the share of unseen clients whose risk is at least a threshold.

    Parameters
    ----------
    source : Band or ClientRisks
        A band with a lower side; the bounds then hold for all thresholds at once, with all else that is read off it. Or
        answers: the bound stands alone, and is sharper.
    thresholds : float or array_like, shape (num_thresholds,)
        Risks in [0, 1]; with answers fixed before any answer was seen. Several share delta equally and hold at once, so
        a band is better for many.
    delta, local :
        As for `quantile`.

    Returns
    -------
    Certificate
        A number, or a curve over `threshold`. From answers, for measured risks, the exact binomial limit; for true
        risks the same for counts of clients above cuts, which are chosen by the range that the share turns out to lie
        in. Numbers of examples that differ, losses other than 0-1, noise, and answers that are missing or wrong are
        allowed for, at the price of a larger bound. Source: math §2.8, from answers math §2.10.

    Raises
    ------
    ValueError
        If a threshold is out of range, the band has no lower side, delta is given with a band or not with answers, or
        answers with noise are to be read as measured risks.
    """
    points = check_points("thresholds", thresholds)
    name = "the threshold" if points.ndim else exactly(float(points))
    if isinstance(source, ClientRisks):
        local, delta = check_choice("local", local, SINGLE_LOCAL), own_delta(delta)
        return _standing_alone(
            source,
            "survival",
            {"thresholds": points, "delta": delta, "local": local},
            quantity=f"the probability that {subject_of(local)} is at least {name}",
            value=_shares(source, points, delta=delta, local=local),
            axes={"threshold": points},
            exact="exact binomial",
            chosen=chosen_before(thresholds=(in_short(points), None), local=(local, "marginal")),
        )
    band = band_alone(source, delta=delta)
    quantity = f"the probability that {band.subject} is at least {name}"
    axes, value = {"threshold": points}, 1.0 - band.lower_left_limit(points)
    return certificate_of_band(band, "survival", {"thresholds": points}, quantity=quantity, value=value, axes=axes)


def _shares(risks: ClientRisks, thresholds: FloatArray, *, delta: float, local: str) -> FloatArray:
    """Bounds on the shares above the thresholds, each with its part of delta; a share is none above a smaller one's."""
    part = delta / thresholds.size
    if local == "observed":
        risks.require_no_noise("local='observed'", "local='marginal'")
    bound_at = partial(observed_share if local == "observed" else true_share, risks, delta=part)
    order = np.argsort(thresholds.ravel(), kind="stable")
    found = np.empty(order.size)
    found[order] = np.minimum.accumulate([bound_at(at) for at in thresholds.ravel()[order].tolist()])
    return found.reshape(thresholds.shape)


def weighted_quantile(band: Band, weight: str | QuantileWeight) -> Certificate:
    """Upper bound on the integral of the quantile function against a weight, exact on each step of a band.

    Parameters
    ----------
    band : Band
        With a lower side.
    weight : str or QuantileWeight
        "linear", "interval:0.5:0.9", "maximum:10", "smoothed_median:0.01", ..., or your own.

    Returns
    -------
    Certificate
        A number. `verify` needs a weight of your own as an argument.
    """
    check_band(band)
    weight = resolve_weight(weight, called="weight")
    quantity = f"the quantile integral {weight.name!r} of {band.subject}"
    band.require("lower")
    value = step_integral(np.append(band.lower_points, 1.0), np.append(band.lower_levels, 1.0), weight)
    return certificate_of_band(band, "weighted_quantile", {"weight": weight.name}, quantity=quantity, value=value)


def quantile_certificate(band: Band, *, level: npt.ArrayLike) -> Certificate:
    """Certificate from both sides for quantiles (value at risk) of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With both sides.
    level : float or array_like
        Probabilities in [0, 1]; all hold at once. The largest of k new clients has its β quantile at the level β^{1/k},
        the smallest at 1 - (1 - β)^{1/k} ([DC] example 7).

    Returns
    -------
    Certificate
        Both ends at each of `axes["level"]`; `details["measured"]` has the measured quantiles. Source: [DC]
        proposition 1.

    Raises
    ------
    ValueError
        If a level is out of range or the band has only one side.
    """
    check_band(band)
    levels = np.atleast_1d(check_points("level", level))
    return certificate_of_band(
        band,
        "quantile_certificate",
        {"level": levels},
        quantity=f"the quantile function of {band.subject}",
        value=band.quantile_upper(levels),
        lower=band.quantile_lower(levels),
        axes={"level": levels},
        details={"measured": RiskDistribution.of_values(band.risks.shown_values).quantile(levels)},
    )
