"""What is read off a band, as one type with one grammar: "mean", "cvar:0.9", "gini", "atkinson:0.5" (math §5).

A functional has a value for every distribution of client risks, and is smallest and largest in two families of members
of the band that have one parameter each (`riskband.functionals.extremal_distributions`). What grows with every risk,
such as a mean or a quantile, is so at the two sides of the band; the measures of dispersion, but for those of two
quantiles, grow in convex order at a given mean ("Lorenz-consistent", the mean range included). 0/0 is read as "no
inequality".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.risks import ClientRisks, shared_assumptions
from riskband.bands.band import Band, band_alone, own_delta, subject_of
from riskband.bands.band import band as band_of
from riskband.betting import check_betting
from riskband.certificate import Certificate, check_ends, recipe
from riskband.checks import (
    FloatArray,
    IntArray,
    as_spelled,
    check_choice,
    check_count,
    check_number,
    check_single,
    in_decimals,
    spelled,
)
from riskband.functionals import bets, weights
from riskband.functionals import extremal_distributions as extremal
from riskband.functionals.distributions import QuantileLimits, RiskDistribution, has_measured_limits
from riskband.functionals.extremal_distributions import Curve, MomentRule, PlugIn, linear_plug_in
from riskband.functionals.weights import QuantileWeight
from riskband.wording import exactly, in_full

_ROUNDING = 1e-12  # of sums over clients: a lower limit so near to the end of the range says nothing
BOUND_METHODS = ("sharp", "plugin", "convex_order")
"""How a functional is read off a band; from answers it is bounded by "betting"."""


OfAnswers = Callable[[ClientRisks, float], bets.DirectBounds | None]


class Interval(NamedTuple):
    """Bounds from both sides for one quantity, or for a curve.

    Attributes
    ----------
    lower, upper : float or ndarray
        With probability at least 1 - delta the truth lies between them. `inf` means that nothing bounds it.
    """

    lower: float | FloatArray
    upper: float | FloatArray


class ExtremalDistributions(NamedTuple):
    """Members of a band at which a functional is smallest and largest.

    Attributes
    ----------
    most_equal : RiskDistribution
        Attains the lower end of the sharp interval.
    most_unequal : RiskDistribution or None
        Attains the upper end; `None` where it is only approached, by distributions whose mean goes to 0.
    """

    most_equal: RiskDistribution
    most_unequal: RiskDistribution | None


def _at_zero(limits: QuantileLimits) -> float:
    return 0.0


@dataclass(frozen=True)
class Functional:
    """A number that a distribution of client risks has, and how a band bounds it.

    Attributes
    ----------
    name : str
        Name and parameters, separated by colons, as `bound` reads them: "atkinson:0.5". Empty for a function of
        the user.
    quantity : str
        What it is called in a sentence.
    sentence : str
        How it is said of a risk, with "{quantity}" and "{subject}" left open.
    counts_examples : bool
        Whether each client counts with its number of examples: then only answers say it.
    knows_draws : bool
        Whether `of_answers` knows clients that are no independent draws; see `riskband.duals`.
    of_distribution : callable or None
        Its value for a `RiskDistribution`, if known.
    range : tuple of float
        Smallest and largest value of any distribution on [0, 1].
    plug_in : callable or None
        Published bounds from `QuantileLimits`, not clipped to the range; `None` if they are the sharp ones.
    cut, centre : callable
        From `QuantileLimits`, the parameters of its members `most_unequal` and `most_equal`: there it is largest and
        smallest.
    is_relative : bool
        Whether it stays the same when all risks are multiplied by one number. Then its supremum is the end of its
        range as soon as the band allows all clients but an ever smaller share to have risk 0.
    grows_in_convex_order : bool
        Whether noise that leaves the mean alone can only increase it.
    grows_with_risk : bool
        Whether it grows with the risk of every client. Then each side of a band gives one end.
    weight : QuantileWeight or None
        If it is an integral of quantiles, the weight.
    bounds : callable or None
        Bounds from a `Band`, in place of those of the members of the band.
    of_answers : callable or None
        From answers and an error level, limits that each have this level, if any are known; see
        `riskband.functionals.bets`.
    """

    name: str
    quantity: str
    of_distribution: Callable[[RiskDistribution], float] | None
    range: tuple[float, float] = (0.0, 1.0)
    plug_in: PlugIn | None = None
    cut: Callable[[QuantileLimits], float] = _at_zero
    centre: Callable[[QuantileLimits], float] = _at_zero
    is_relative: bool = True
    grows_in_convex_order: bool = True
    grows_with_risk: bool = False
    weight: QuantileWeight | None = None
    bounds: Callable[[Band], Interval] | None = None
    of_answers: OfAnswers | None = None
    sentence: str = "{quantity} of {subject}"
    counts_examples: bool = False
    knows_draws: bool = False

    def of(self, subject: str) -> str:
        """Return what is bounded, such as "the Gini coefficient of the risk of an unseen client"."""
        is_of_any = "{subject}" in self.sentence or subject == subject_of("marginal")
        sentence = self.sentence if is_of_any else "{quantity} of {subject}"
        return sentence.format(quantity=self.quantity, subject=subject)

    def value(self, distribution: RiskDistribution) -> float:
        """Value for a distribution of risks; raises ValueError if it is not known by risks alone."""
        if self.counts_examples:
            raise ValueError(
                f"{self.quantity} needs answers and a delta: neither a band nor a distribution of risks says how many "
                "examples each client has; ask for it alone, of answers without noise or doubt, or take the mean"
            )
        if self.of_distribution is None:
            raise ValueError(
                f"{self.quantity} is known for bands only; use the name of a functional, or a QuantileWeight"
            )
        return self.of_distribution(distribution)

    def measured(self, values: FloatArray, num_examples: IntArray) -> float:
        """Value for what clients measured, shape (num_clients,) each; raises ValueError as `value`."""
        if self.counts_examples:
            return float(np.average(values, weights=num_examples))
        return self.value(RiskDistribution.of_values(values))

    def limits(self, band: Band) -> QuantileLimits:
        """Limits of a band with the sides that the functional needs; raises ValueError if it lacks one."""
        return QuantileLimits.of_band(band, one_side=self.grows_with_risk)

    def extremes(self, limits: QuantileLimits) -> ExtremalDistributions:
        """Members of a band at which the functional is smallest and largest."""
        most_equal = limits.most_equal(self.centre(limits))
        most_unequal = limits.most_unequal(self.cut(limits))
        is_largest = self.value(most_unequal) >= self.range[1]
        is_approached = self.is_relative and limits.allow_all_zero and not limits.allow_only_zero and not is_largest
        return ExtremalDistributions(most_equal, None if is_approached else most_unequal)

    def interval(
        self, limits: QuantileLimits, *, is_plug_in: bool = False, measured: QuantileLimits | None = None
    ) -> Interval:
        """Sharp or published bounds for all members of a band, within the range; the upper one also from `measured`."""
        low, high = self.range
        if not is_plug_in or self.plug_in is None:
            most_equal, most_unequal = self.extremes(limits)
            ends = self.value(most_equal), high if most_unequal is None else self.value(most_unequal)
        elif self.is_relative and limits.allow_all_zero:
            ends = low, low if limits.allow_only_zero else high
        else:
            ends = self.plug_in(limits)
        lower, upper = (min(max(end, low), high) for end in ends)
        lower = lower if lower > low + _ROUNDING else low
        return Interval(lower, upper if measured is None else min(upper, self.interval(measured).upper))


Given = str | Functional | QuantileWeight | Callable[[Band], Interval]


def interval_of(
    source: Band | ClientRisks, functional: Given, *, method: str | None = None, delta: float | None = None
) -> Interval:
    """Bounds on a functional of the distribution of the risk of unseen clients.

    Parameters
    ----------
    source : Band or ClientRisks
        A band with both sides: all bounds from it hold together. For what grows with every risk (means, quantiles,
        shares) one side is enough: it gives its end, and the other end is that of the range. Or answers: this one
        number then has the given delta for itself, which is sharper.
    functional : str, Functional, QuantileWeight or callable
        A name with its parameters, such as "mean", "share:0.3", "cvar:0.9", "gini" or "atkinson:0.5"; a weight on
        quantiles; or your own function from a `Band` to an `Interval`. With answers, fixed before any was seen.
    method : {"sharp", "plugin", "convex_order", "betting"}
        With a band: `sharp` (default): smallest and largest value among all its members; mean and CVaR also use the
        one for means of the band. `plugin`: every integral at its own worst side, as published in [DC], with errata
        corrected, clipped to the range. `convex_order`: as `sharp`, but the upper end may also come from the band of
        measured risks; see Notes. With answers: `betting`, delta/2 for each end. What no bets are known for is
        read off a band of these answers with the same delta; `dispersion_certificate` says so in its method.
    delta : float, optional
        With answers: probability that the bounds fail, in (0, 1).

    Returns
    -------
    Interval
        Numbers. Source: math §2.8 and math §5; from answers math §2.9, math §2.10 and math §5.6.

    Raises
    ------
    ValueError
        If an argument is unknown or out of range, the band lacks a side, or `convex_order` does not apply; if delta is
        given with a band or not with answers; for answers with noise, contamination or missing="worst"; for a client
        of more examples than "example_mean:2000" allows, or a band for it.

    Notes
    -----
    A client's measured risk is its true risk plus noise of mean 0, so the measured risks are larger in convex order,
    and a measure that grows in convex order is not larger for the true risks. Bands with `local="marginal"` and equal
    numbers of examples rest on a band for measured risks that holds on the same event. `convex_order` takes the
    smaller of the two upper ends, which then need not be attained by a member of `band`.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = rb.ClientRisks([0.02, 0.05, 0.10, 0.04], num_examples=100)
    >>> from riskband.functionals.functional import interval_of
    >>> lower, upper = interval_of(rb.band(answers, delta=0.1), "mean")
    >>> 0.0 <= lower <= upper <= 1.0
    True
    """
    chosen = resolve(functional)
    if isinstance(source, ClientRisks):
        return bound_of_answers(source, chosen, method=method, delta=delta).interval
    return _bound_of_band(source, chosen, check_band_method(source, method, delta))


def check_band_method(band: object, method: str | None, delta: float | None) -> str:
    """Return the method by which a band is read, "sharp" by default; raises ValueError for a delta or no band."""
    band_alone(band, delta=delta)
    return check_choice("method", "sharp" if method is None else method, BOUND_METHODS)


def _bound_of_band(band: Band, chosen: Functional, method: str) -> Interval:
    measured = measured_limits(band, chosen, method)
    if chosen.bounds is not None:
        found = chosen.bounds(band)
    else:
        found = chosen.interval(chosen.limits(band), is_plug_in=method == "plugin", measured=measured)
    check_ends(chosen.quantity, *found, assumptions=band.assumptions)
    return found


class BoundOfAnswers(NamedTuple):
    """An interval from answers alone, how it was made, and what that assumes beyond what all certificates do."""

    interval: Interval
    method: str
    delta: float
    assumptions: tuple[str, ...]


def bound_of_answers(
    risks: ClientRisks, chosen: Functional, *, method: str | None, delta: float | None
) -> BoundOfAnswers:
    """`interval_of` answers; raises its errors. Each end fails with probability at most delta/2."""
    delta = own_delta(delta)
    check_betting(method)
    remedy = "the mean over clients" if chosen.counts_examples else "a band, rb.band(answers, delta=...)"
    what = "a bound from answers" if risks.are_independent else chosen.quantity
    risks.require_certain_answers(what, remedy, knows_draws=chosen.knows_draws)
    risks.responses.require_fixed_number(what)
    risks = risks.in_order_of_names()
    fewest, of_answers = risks.below, chosen.of_answers
    if fewest is not risks and not chosen.grows_with_risk:
        of_answers = None  # more errors may make it larger, or smaller: a band allows for both
    found = None if of_answers is None else of_answers(risks, delta / 2)
    if found and of_answers and fewest is not risks and (below := of_answers(fewest, delta / 2)):
        found = found._replace(lower=below.lower)
    read, assumed = Interval(*chosen.range), tuple[str, ...]()
    words = "" if found is None else found.method
    if found is None or (None in found and risks.are_independent):  # of other clients there is no band
        band = band_of(risks, delta=delta if found is None else delta / 2)
        reading = method_that_applies("convex_order", band, chosen)
        read, assumed = _bound_of_band(band, chosen, reading), band.assumptions
        of_band = f"{reading} bound from the {band.method} band"
        if found is None:
            return BoundOfAnswers(read, of_band, delta, assumed)
        words = f"{words} below, {of_band} above" if found.upper is None else f"{words} above, {of_band} below"
    lower = read.lower if found.lower is None else found.lower
    upper = read.upper if found.upper is None else found.upper
    (low, high), own = chosen.range, (*found.assumptions, *assumed)
    lower, upper = float(lower) + 0.0 if lower > low + _ROUNDING else low, min(float(upper), high)
    shared = shared_assumptions(risks, knows_draws=chosen.knows_draws)
    check_ends(chosen.quantity, lower, upper, assumptions=(*shared, *own))
    return BoundOfAnswers(Interval(min(lower, upper), upper), words, delta, own)


def certificate_of_band(
    band: Band, function: str, arguments: Mapping[str, Any], *, quantity: str, value: float | FloatArray, **rest: Any
) -> Certificate:
    """Certificate that `function` reads off a band with these arguments; it holds together with all others of it."""
    return Certificate(
        quantity=quantity,
        value=value,
        delta=band.delta,
        assumptions=band.assumptions,
        recipe=recipe(function, arguments, band),
        **{"method": f"{band.method} band", **rest},
    )


def method_that_applies(method: str, band: Band, functional: Functional) -> str:
    """The method of `bound`, but "sharp" where "convex_order" does not apply."""
    applies = method != "convex_order" or (functional.grows_in_convex_order and has_measured_limits(band))
    return method if applies else "sharp"


def measured_limits(band: Band, functional: Functional, method: str) -> QuantileLimits | None:
    """Limits for measured risks if the method is `convex_order`; raises ValueError if it does not apply."""
    if method != "convex_order":
        return None
    measured = QuantileLimits.of_measured_risks(band) if functional.grows_in_convex_order else None
    if measured is None:
        raise ValueError(
            "method='convex_order' needs a band with local='marginal', equal numbers of examples, and a measure that "
            f"grows in convex order; got local={band.local!r} and {functional.name}; use method='sharp'"
        )
    return measured


def _growing(
    name: str, quantity: str, of_distribution: Callable[[RiskDistribution], float] | None, **rest: Any
) -> Functional:
    """What grows with every risk, in [0, 1]: with cut and centre 0 the extreme members are the sides of the band."""
    kind: dict[str, Any] = {"is_relative": False, "grows_in_convex_order": False, "grows_with_risk": True}
    return Functional(name, quantity, of_distribution, **kind, **rest)


def _integral(distribution: RiskDistribution, cumulative: Curve) -> float:
    return float(np.sum(distribution.risks * np.diff(cumulative(np.concatenate([[0.0], distribution.levels])))))


def _weighted(weight: QuantileWeight, quantity: str = "") -> Functional:
    quantity = quantity or f"the quantile integral {weight.name!r}"
    of_distribution = partial(_integral, cumulative=weight.cumulative)
    return _growing(weight.name, quantity, of_distribution, weight=weight)


def _tail(weight: QuantileWeight, quantity: str, of_answers: OfAnswers, sentence: str) -> Functional:
    """Mean of the worst clients, which the distribution for means of the band serves as well as its lower side."""
    plain = _weighted(weight, quantity)

    def bounds(band: Band) -> Interval:
        lower, upper = plain.interval(plain.limits(band))
        if weight is weights.MEAN and band.sides != "lower":  # measured risks have the same mean as true ones
            measured = QuantileLimits.of_measured_risks(band)
            lower = lower if measured is None else max(lower, measured.integral(measured.lower))
        return Interval(lower, upper if band.sides == "upper" else min(upper, weights.tail_mean(band, weight)))

    return replace(plain, bounds=bounds, of_answers=of_answers, sentence=sentence, knows_draws=True)


def _cvar(level: float) -> Functional:
    worst, of_answers = exactly(1.0 - level), partial(bets.cvar, level=level)
    sentence = f"the mean risk of the worst {worst} of unseen clients"
    return _tail(weights.tail_weight(level), f"the mean of the worst {worst}", of_answers, sentence)


def _quantile(level: float) -> Functional:
    level = check_single("level", level)
    quantile = _growing(
        f"quantile:{in_full(level)}",
        f"the {exactly(level)} quantile",
        lambda distribution: float(distribution.quantile(level)),
        of_answers=partial(bets.quantile, level=level),
        knows_draws=True,
    )
    # At level 0 the smallest x >= 0 with F(x) >= 0 is 0 for every distribution.
    return quantile if level > 0.0 else replace(quantile, bounds=lambda band: Interval(0.0, 0.0))


def _share(threshold: float) -> Functional:
    """Share of the clients whose risk is at least a threshold."""
    threshold = check_single("threshold", threshold)
    return _growing(
        f"share:{in_full(threshold)}",
        f"the survival function at {exactly(threshold)}",
        lambda distribution: float(np.sum(distribution.weights[distribution.risks >= threshold])),
        of_answers=partial(bets.share, threshold=threshold),
        knows_draws=True,
        sentence=f"the probability that {{subject}} is at least {exactly(threshold)}",
    )


def _linear_measure(
    name: str,
    quantity: str,
    *,
    cumulative: Curve,
    cut_at: Callable[[float], float],
    plug_in: PlugIn,
    range: tuple[float, float] = (0.0, 1.0),
    is_relative: bool = True,
    of_answers: OfAnswers | None = None,
) -> Functional:
    """∫wq, over the mean if relative; `cumulative` integrates w from 0, `cut_at` says where w passes a value."""

    def of_distribution(distribution: RiskDistribution) -> float:
        total = _integral(distribution, cumulative)
        if not is_relative:
            return total
        return total / distribution.mean if distribution.mean > 0.0 else float(cumulative(np.array([0.0, 1.0]))[-1])

    return Functional(
        name,
        quantity,
        of_distribution,
        range,
        plug_in,
        cut=lambda limits: extremal.linear_cut(limits, of_distribution, cut_at),
        centre=lambda limits: extremal.linear_centre(limits, cumulative, is_relative=is_relative),
        is_relative=is_relative,
        of_answers=of_answers,
    )


def _moment_measure(
    name: str, quantity: str, rule: MomentRule, of_answers: OfAnswers, *, range: tuple[float, float] = (0.0, np.inf)
) -> Functional:
    return Functional(
        name,
        quantity,
        rule.of_distribution,
        range,
        extremal.moment_plug_in(rule),
        cut=lambda limits: extremal.moment_cut(limits, rule),
        centre=lambda limits: extremal.moment_centre(limits, rule),
        of_answers=of_answers,
    )


def _gini() -> Functional:
    """E|R - R'|/(2 E R): 0 if all risks are equal, 1 if one client bears it all. [DC] definition 2."""
    return _linear_measure(
        "gini",
        "the Gini coefficient",
        cumulative=lambda p: p**2 - p,
        cut_at=lambda value: (1.0 + value) / 2.0,
        plug_in=linear_plug_in(lambda p: p**2, lambda low, high, least, most: (low / most - 1.0, high / least - 1.0)),
        of_answers=bets.gini,
    )


def _extended_gini(aversion: float) -> Functional:
    """1 - ν∫(1-p)^{ν-1}q(p)dp / mean, ν = `aversion` > 1; ν = 2 is Gini. [DC] definition 6, appendix B.1."""
    called = "the aversion of an extended Gini coefficient"
    aversion = check_number(called, aversion, remedy="2 is the Gini coefficient")
    if not 1.0 < aversion < np.inf:
        raise ValueError(
            f"{called} must be > 1, got {aversion:g}; 2 is the Gini coefficient, and at 1 or below it would not grow "
            "with inequality"
        )
    return _linear_measure(
        f"extended_gini:{in_full(aversion)}",
        f"the extended Gini coefficient (aversion {aversion:g})",
        cumulative=lambda p: p - 1.0 + (1.0 - p) ** aversion,
        cut_at=lambda value: 1.0 - float(((1.0 - value) / aversion) ** (1.0 / (aversion - 1.0))),
        plug_in=linear_plug_in(
            lambda p: 1.0 - (1.0 - p) ** aversion, lambda low, high, least, most: (1.0 - high / least, 1.0 - low / most)
        ),
    )


def top_share_functional(share: float) -> Functional:
    """Part of all risk that the worst-off `share` of the clients bears, 0 < share < 1: 1 - Lorenz(1 - share)."""
    share = check_number("share", share, remedy="0.1 is the worst-off tenth of the clients")
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be in (0, 1), got {share:g}; 0.1 is the worst-off tenth of the clients")
    level = 1.0 - share
    return _linear_measure(
        f"top_share:{in_full(share)}",
        f"the top share (worst-off {share:g} of clients)",
        cumulative=lambda p: np.maximum(p - level, 0.0),
        cut_at=lambda value: level,
        range=(share, 1.0),
        # One minus the bounds ∫_0^t l/∫u and A/(A + B) of the Lorenz curve, A = ∫_0^t u, B = ∫_t^1 l. [DC] definition 5
        plug_in=linear_plug_in(
            lambda p: np.minimum(p, level),
            lambda low, high, least, most: (1.0 - high / (high + least - low), 1.0 - low / most),
        ),
        of_answers=partial(bets.top_share, share=share),
    )


def _mean_range(num_clients: int) -> Functional:
    """E(max - min) of the risks of `num_clients` >= 2 new clients: k∫q(p)[p^{k-1} - (1-p)^{k-1}]dp."""
    num_clients = check_count("num_clients of a mean range", num_clients, minimum=2, remedy="it counts new clients")
    return _linear_measure(
        f"mean_range:{num_clients}",
        f"the mean range over {num_clients} clients",
        cumulative=lambda p: p**num_clients + (1.0 - p) ** num_clients - 1.0,
        cut_at=lambda value: 0.5,
        plug_in=extremal.mean_range_plug_in(num_clients),
        is_relative=False,
    )


def _atkinson(aversion: float) -> Functional:
    """1 - (E R^{1-ε})^{1/(1-ε)} / mean, ε = `aversion` >= 0; 1 - exp(E log R) / mean at ε = 1. [DC] definition 3.

    The part of the mean risk that equality would save. From 1 on it is 1 as soon as any clients may have risk 0.
    """
    aversion = check_number("the aversion of an Atkinson index", aversion, remedy="0.5 is usual")
    if not 0.0 <= aversion < np.inf:
        raise ValueError(f"the aversion of an Atkinson index must be >= 0 and finite, got {aversion:g}")
    order = np.float64(1.0 - aversion)  # numpy's: at order 1 (aversion 0) divisions by zero are harmless
    if order == 0.0:
        rule = extremal.log_rule(lambda total, mean: 1.0 - np.exp(total) / mean)
    else:
        rule = extremal.power_rule(order, lambda total, mean: 1.0 - total ** (1.0 / order) / mean)
    return _moment_measure(
        f"atkinson:{in_full(aversion)}",
        f"the Atkinson index (aversion {aversion:g})",
        rule,
        partial(bets.atkinson, aversion=aversion),
        range=(0.0, 0.0 if aversion == 0.0 else 1.0),
    )


def _generalised_entropy(order: float) -> Functional:
    """E[(R/m)^α - 1] / (α(α-1)), α = `order`; Theil at 1, mean log deviation at 0. [DC] appendix B.2.

    2 is half the squared coefficient of variation. Up to 0 it is infinite as soon as any clients may have risk 0.
    """
    order = check_number("the order of a generalised entropy", order, remedy="1 is the Theil index")
    if not np.isfinite(order):
        raise ValueError(f"the order of a generalised entropy must be finite, got {order:g}")
    factor = order * (order - 1.0)
    quantity = {0.0: "the mean log deviation", 1.0: "the Theil index"}.get(order)
    if order == 0.0:
        rule = extremal.log_rule(lambda total, mean: np.log(mean) - total)
    elif order == 1.0:
        rule = extremal.THEIL_RULE
    else:
        rule = extremal.power_rule(order, lambda total, mean: (total / mean**order - 1.0) / factor)
    return _moment_measure(
        f"generalised_entropy:{in_full(order)}",
        quantity or f"the generalised entropy (order {order:g})",
        rule,
        partial(bets.generalised_entropy, order=order),
        range=(0.0, -1.0 / factor if 0.0 < order < 1.0 else np.inf),
    )


def _over_mean(distribution: RiskDistribution, number: float) -> float:
    return float(number) / distribution.mean if distribution.mean else 0.0


def _coefficient_of_variation() -> Functional:
    def of_distribution(distribution: RiskDistribution) -> float:
        """Standard deviation over mean, centred first: E R² - m² would lose half of the digits near equality."""
        deviations = distribution.risks - distribution.mean
        return _over_mean(distribution, np.sqrt(np.sum(distribution.weights * deviations**2)))

    rule = extremal.power_rule(2.0, lambda total, mean: np.sqrt(np.maximum(total / mean**2 - 1.0, 0.0)))
    name, quantity = "coefficient_of_variation", "the coefficient of variation"
    measure = _moment_measure(name, quantity, rule, bets.coefficient_of_variation)
    return replace(measure, of_distribution=of_distribution)


def _hoover() -> Functional:
    """E|R - m|/(2m): the part of all risk that would have to move to make the risks equal. [DC] definition 7."""

    def of_distribution(distribution: RiskDistribution) -> float:
        shortfalls = np.maximum(distribution.mean - distribution.risks, 0.0)
        return _over_mean(distribution, np.sum(distribution.weights * shortfalls))

    searches = extremal.hoover_plug_in, extremal.hoover_cut, extremal.hoover_centre
    return Functional("hoover", "the Hoover index", of_distribution, (0.0, 1.0), *searches)


def _of_two_quantiles(
    name: str, quantity: str, low: float, high: float, compare: Callable[[float, float], float], **kind: Any
) -> Functional:
    """A function of two quantiles, 0 < low < high <= 1, that rises in the upper and falls in the lower one."""
    remedy = "0.9 is the risk that nine tenths do not exceed"
    low, high = (check_number("a level of quantiles", level, remedy=remedy) for level in (low, high))
    if not 0.0 < low < high <= 1.0:
        raise ValueError(f"levels of quantiles need 0 < low < high <= 1, got {low:g} and {high:g}")

    def at(limits: QuantileLimits, values: FloatArray, level: float) -> float:
        return float(values[np.searchsorted(limits.levels, level, side="left")])

    return Functional(
        f"{name}:{in_full(low)}:{in_full(high)}",
        quantity.format(low=f"{low:g}", high=f"{high:g}"),
        lambda distribution: compare(float(distribution.quantile(low)), float(distribution.quantile(high))),
        plug_in=None,  # each at its own worst side: that is sharp
        cut=lambda limits: low,
        # Between the largest lower and the smallest upper quantile, whichever is larger, each is nearest to the other.
        centre=lambda limits: 0.5 * (at(limits, limits.upper, low) + at(limits, limits.lower, high)),
        grows_in_convex_order=False,
        **kind,
    )


def _quantile_ratio(low: float, high: float) -> Functional:
    def ratio(first: float, second: float) -> float:
        if second == 0.0:
            return 1.0
        return second / first if first > 0.0 else np.inf

    return _of_two_quantiles(
        "quantile_ratio", "the ratio of the {high} to the {low} quantile", low, high, ratio, range=(1.0, np.inf)
    )


def _quantile_range(low: float, high: float) -> Functional:
    return _of_two_quantiles(
        "quantile_range",
        "the distance from the {low} to the {high} quantile",
        low,
        high,
        lambda first, second: float(in_decimals(second - first)),
        range=(0.0, 1.0),
        is_relative=False,
    )


def _example_mean(most_examples: int) -> Functional:
    """E[n R] / E[n]: the mean risk of an example, whosever it is; no client can have more than `most_examples`."""
    remedy = "it is the largest number of examples that a client can have"
    most = check_count("the number of an example mean", most_examples, minimum=1, remedy=remedy)
    return _growing(
        f"example_mean:{most}",
        "the example-weighted mean",
        None,
        of_answers=partial(bets.example_mean, most=most),
        sentence="the mean risk per example, not per client (large clients count more), of unseen clients",
        counts_examples=True,
    )


Table = Mapping[str, Callable[..., Functional]]

WEIGHTS: Table = {
    "mean": lambda: _tail(weights.MEAN, "the mean", bets.mean, "the mean risk over unseen clients"),
    "cvar": _cvar,
    "interval": lambda low, high: _weighted(weights.interval_weight(low, high)),
    "linear": lambda: _weighted(weights.LINEAR),
    "smoothed_median": lambda width=0.01: _weighted(weights.smoothed_median_weight(width), "the smoothed median"),
    "maximum": lambda num_clients: _weighted(weights.maximum_weight(num_clients)),
    "minimum": lambda num_clients: _weighted(weights.minimum_weight(num_clients)),
}
"""Integrals of quantiles: what the levels of a band can be tuned for."""

MEASURES: Table = {
    "gini": _gini,
    "extended_gini": _extended_gini,
    "atkinson": _atkinson,
    "generalised_entropy": _generalised_entropy,
    "theil": lambda: _generalised_entropy(1.0),
    "mean_log_deviation": lambda: _generalised_entropy(0.0),
    "hoover": _hoover,
    "coefficient_of_variation": _coefficient_of_variation,
    "top_share": top_share_functional,
    "quantile_ratio": _quantile_ratio,
    "quantile_range": _quantile_range,
    "mean_range": _mean_range,
}
"""Measures of dispersion."""

OF_RISKS: Table = {**WEIGHTS, "quantile": _quantile, "share": _share, **MEASURES}
"""By name, a function of the parameters that follow after colons: what a distribution of risks, or a band, says."""

FUNCTIONALS: Table = {**OF_RISKS, "example_mean": _example_mean}
"""The same with what only answers say."""


def resolve_weight(given: str | QuantileWeight, *, called: str) -> QuantileWeight:
    """The weight of a name; raises ValueError if its parameters are out of range, or it is not one of `WEIGHTS`."""
    weight = resolve(given, called=called, among=WEIGHTS).weight
    if weight is None:
        raise ValueError(f"{called} must be one of {', '.join(sorted(WEIGHTS))} or a QuantileWeight, got {given!r:.80}")
    return weight


_SPREAD = "'coefficient_of_variation', the standard deviation over the mean"
_MEANT = dict.fromkeys(("std", "sd", "stdev", "standard_deviation", "variance", "var", "cv"), _SPREAD)
_MEANT |= {"median": "quantile:0.5", "iqr": "quantile_range:0.25:0.75", "average": "mean", "max": "maximum"}


def resolve(given: object, *, called: str = "functional", among: Table = FUNCTIONALS) -> Functional:
    """Return the `Functional` that `given` stands for: a name, a weight or a function as in `bound`, or one itself.

    With only some names allowed, and with another word for it in errors (always ValueError).
    """
    if isinstance(given, Functional):
        return given
    if isinstance(given, QuantileWeight):
        return _weighted(given)
    if callable(given):
        return _own(given)
    name, *parameters = given.split(":") if isinstance(given, str) else ("",)
    found = as_spelled(name, among)
    if found is None:
        kinds = "" if isinstance(given, str) else "it must be a name, a QuantileWeight or a function of a band; "
        close = (_MEANT.get(spelled(name)), *get_close_matches(name, among, n=1), "'cvar:0.9'")
        meant = next(each if "'" in each else repr(each) for each in close if each)
        raise ValueError(f"{called} must be one of {', '.join(sorted(among))}, got {given!r:.80}; {kinds}say {meant}")
    try:
        numbers = [float(parameter) for parameter in parameters]
    except ValueError as error:
        raise ValueError(f"parameters of {called} {given!r} must be numbers, as in 'cvar:0.9'") from error
    try:
        return among[found](*numbers)
    except TypeError as error:
        known = ":".join([found, *inspect.signature(among[found]).parameters])
        problem = f"it has too few or too many parameters; write {known!r}"
        raise ValueError(f"{called} {given!r} cannot be read: {problem}") from error
    except ValueError as error:
        raise ValueError(f"{called} {given!r} cannot be read: {error}") from error


def _own(function: Callable[[Band], Any]) -> Functional:
    quantity = f"your functional {getattr(function, '__name__', 'T')!r}"

    def bounds(band: Band) -> Interval:
        found = function(band)
        try:
            lower, upper = float(found[0]), float(found[1])
        except (TypeError, ValueError, IndexError):
            lower, upper = np.nan, np.nan
        if not lower <= upper:
            raise ValueError(
                f"your functional must return an Interval of two numbers, lower <= upper, got {found!r}; check it"
            )
        return Interval(lower, upper)

    plain = _growing("", quantity, lambda distribution: np.nan)
    return replace(plain, of_distribution=None, range=(-np.inf, np.inf), grows_with_risk=False, bounds=bounds)
