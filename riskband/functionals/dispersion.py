"""How unequal are the risks of clients that nobody has measured: two-sided bounds on every common measure (math §5).

`bound` certifies a measure, whose formula is at its name in `riskband.functionals.functional`. Read off one
two-sided band they hold on the same event of probability 1 - delta: with each other, and with every other certificate
of that band. From answers and a delta, one of them has that delta for itself, and is sharper.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riskband.answers.risks import ClientRisks, check_risks, shared_assumptions
from riskband.bands.band import Band, subject_of
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_shares
from riskband.functionals import functional
from riskband.functionals.distributions import QuantileLimits, RiskDistribution
from riskband.functionals.functional import Functional, measured_limits, resolve, top_share_functional
from riskband.wording import CHOSEN_BEFORE, chosen_before

Source = Band | ClientRisks


class UnboundedError(ValueError):
    """Nothing bounds a measure from above, so that there is no certificate of it."""


def extremal_distributions(band: Band, measure: str | Functional) -> functional.ExtremalDistributions:
    """Members of a `band` with both sides at which a `measure` is smallest and largest, as in its sharp interval."""
    return resolve(measure, called="measure").extremes(QuantileLimits.of_band(band))


def measured_dispersion(risks: ClientRisks, measure: str | Functional) -> float:
    """Return the measure of the risks that the clients in `risks` measured: no bound, and noise in them adds to it."""
    check_risks(risks)
    return resolve(measure, called="measure").measured(risks.shown_values, risks.num_examples)


def dispersion_certificate(
    source: Source, measure: functional.Given, *, method: str | None = None, delta: float | None = None
) -> Certificate:
    """Certificate from both sides for a measure of dispersion, or another functional, of the risk of unseen clients.

    Parameters
    ----------
    source : Band or ClientRisks
        A band, of which all bounds hold together: with both sides, but for what grows with every risk. Or answers: this
        one number then has delta for itself, which is sharper.
    measure : str, Functional or QuantileWeight
        A name such as "gini" or "atkinson:0.5", or a weight on quantiles; no function of your own, which `verify` could
        not find.
    method : {"sharp", "plugin", "convex_order", "betting"}
        With a band: `sharp` (default): smallest and largest value among all its members. `plugin`: every integral at
        its own worst side, as published in [DC], with errata corrected. `convex_order`: as `sharp`, but the upper end
        may also come from the band of measured risks (math §5.3). With answers: `betting`, delta/2 for each end.
    delta : float, optional
        With answers: probability that the bounds fail, in (0, 1).

    Returns
    -------
    Certificate
        Both ends; `details["measured"]` is the value for the measured risks. `method` says how each end was found, and
        where a band allows so many risks of 0 that nothing better holds.

    Raises
    ------
    ValueError
        If an argument is unknown or out of range, the band lacks a side, or answers have noise, contamination or
        missing="worst"; also, as `UnboundedError`, if nothing bounds the measure, since a certificate is finite.
    """
    chosen = resolve(measure, called="measure")
    if isinstance(source, ClientRisks):
        return _certificate_of_answers(source, chosen, method, delta)
    band, method = source, functional.check_band_method(source, method, delta)
    measured = measured_dispersion(band.risks, chosen)
    lower, upper = functional.interval_of(band, chosen, method=method)
    reason = _why_trivial(chosen.limits(band), chosen)
    if not np.isfinite(upper):
        raise _no_certificate(chosen, reason or f"its {method} bound is infinite")
    return functional.certificate_of_band(
        band,
        "dispersion_certificate",
        {"measure": chosen.name, "method": method},
        quantity=chosen.of(band.subject),
        value=upper,
        lower=float(lower),
        method=f"{method} bound from the {band.method} band" + (f"; {reason}" if reason else ""),
        details={"measured": np.array(measured)},
    )


def _certificate_of_answers(
    risks: ClientRisks, chosen: Functional, method: str | None, delta: float | None
) -> Certificate:
    risks = risks.in_order_of_names()  # so the certificate stores them
    measured = measured_dispersion(risks, chosen)
    found = functional.bound_of_answers(risks, chosen, method=method, delta=delta)
    if not np.isfinite(found.interval.upper):
        raise _no_certificate(chosen, "clients of risk 0 make it as large as can be")
    own = (
        *shared_assumptions(risks, needs_binary=True, knows_draws=chosen.knows_draws),
        *found.assumptions,
        *chosen_before(measure=(chosen.name, None)),
    )
    return Certificate(
        quantity=chosen.of(subject_of("marginal")),
        value=float(found.interval.upper),
        lower=float(found.interval.lower),
        delta=found.delta,
        method=found.method,
        # delta is said by the certificate, and not that of the band, which is a part of it
        assumptions=tuple(dict.fromkeys(line for line in own if not line.startswith(f"{CHOSEN_BEFORE}delta"))),
        details={"measured": np.array(measured)},
        recipe=recipe(
            "dispersion_certificate", {"measure": chosen.name, "method": "betting", "delta": found.delta}, risks
        ),
    )


def _no_certificate(chosen: Functional, reason: str) -> UnboundedError:
    return UnboundedError(
        f"{chosen.quantity} cannot be bounded: {reason}; take a measure that is bounded, such as gini or atkinson with "
        "an aversion below 1"
    )


def _why_trivial(limits: QuantileLimits, measure: Functional) -> str:
    if limits.allow_only_zero or not measure.is_relative:
        return ""
    if limits.allow_all_zero:
        return "the band allows all clients but an ever smaller share to have risk 0"
    if limits.allow_zero and measure.value(limits.most_unequal(float(limits.levels[0]) / 2)) >= measure.range[1]:
        return "the band allows clients of risk 0, which make this measure as large as it can be"
    return ""


def lorenz_certificate(band: Band, *, shares: npt.ArrayLike = 101, method: str = "sharp") -> Certificate:
    """Certificate for the Lorenz curve: the part of all risk that the best-off `shares` of the unseen clients bear.

    Parameters
    ----------
    band, method :
        As for `dispersion_certificate`, with its errors; the band with both sides.
    shares : int or array_like, shape (num_shares,)
        Shares of clients in [0, 1], or how many to space evenly, at least 2. All hold at once.

    Returns
    -------
    Certificate
        Both ends at each of `axes["share"]`; `details["measured"]` is the measured curve. Source: [DC] definition 5;
        math §5.1.
    """
    points, method = check_shares(shares), check_choice("method", method, functional.BOUND_METHODS)
    limits, measured = QuantileLimits.of_band(band), measured_limits(band, top_share_functional(0.5), method)
    ends = np.stack([points, points])
    for index in np.flatnonzero((points > 0.0) & (points < 1.0)):
        beyond = top_share_functional(float(1.0 - points[index]))
        found = beyond.interval(limits, is_plug_in=method == "plugin", measured=measured)
        ends[:, index] = 1.0 - found.upper, 1.0 - found.lower
    return functional.certificate_of_band(
        band,
        "lorenz_certificate",
        {"shares": points, "method": method},
        quantity=f"the Lorenz curve of {band.subject}",
        value=ends[1],
        lower=ends[0],
        axes={"share": points},
        method=f"{method} bound from the {band.method} band",
        details={"measured": lorenz_of_distribution(RiskDistribution.of_values(band.risks.shown_values), points)},
    )


def lorenz_of_distribution(distribution: RiskDistribution, shares: npt.ArrayLike) -> FloatArray:
    """Lorenz curve of a known distribution at shares of clients in [0, 1]: the share itself if all risks are 0."""
    points = np.asarray(shares, dtype=np.float64)
    if distribution.mean == 0.0:
        return points.copy()
    borne = np.cumsum(distribution.weights * distribution.risks)
    return np.asarray(np.interp(points, np.append(0.0, distribution.levels), np.append(0.0, borne / borne[-1])))
