"""How unequal are the risks of clients that nobody has measured: two-sided bounds on every common measure (math §5).

All are functionals of one two-sided band, so they hold on the same event of probability 1 - delta: with each other, and
with every other certificate of that band.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from riskband.answers.risks import ClientRisks, check_risks
from riskband.bands.band import Band
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_shares
from riskband.functionals.laws import QuantileLimits, RiskLaw
from riskband.functionals.measures import DispersionMeasure, resolve_measure, top_share_measure

DISPERSION_METHODS = ("sharp", "plugin", "convex_order")


class Interval(NamedTuple):
    """Bounds from both sides for one quantity, or for a curve.

    Attributes
    ----------
    lower, upper : float or ndarray
        With probability at least 1 - delta the truth lies between them. `inf` means that nothing bounds it.
    """

    lower: float | FloatArray
    upper: float | FloatArray


class ExtremalLaws(NamedTuple):
    """Members of a band at which a measure is smallest and largest.

    Attributes
    ----------
    most_equal : RiskLaw
        Attains the lower end of the sharp interval.
    most_unequal : RiskLaw or None
        Attains the upper end; `None` where it is only approached, by laws whose mean goes to 0.
    """

    most_equal: RiskLaw
    most_unequal: RiskLaw | None


def dispersion_interval(band: Band, measure: str | DispersionMeasure, *, method: str = "sharp") -> Interval:
    """Bounds on a measure of the dispersion of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With both sides.
    measure : str or DispersionMeasure
        A name in `MEASURES` with its parameters, such as "gini" or "atkinson:0.5".
    method : {"sharp", "plugin", "convex_order"}
        `sharp`: smallest and largest value among all members of the band. `plugin`: every integral at its own worst
        side, as published in [DC], with errata corrected, clipped to the range of the measure. `convex_order`: as
        `sharp`, but the upper end may also come from the band of measured risks; see Notes.

    Returns
    -------
    Interval
        Numbers. Source: math §5.1.

    Raises
    ------
    ValueError
        If an argument is unknown or out of range, the band has one side only, or `convex_order` does not apply.

    Notes
    -----
    A client's measured risk is its true risk plus noise of mean 0, so the measured risks are larger in convex order,
    and a measure that grows in convex order is not larger for the true risks. Bands with `local="marginal"` and equal
    numbers of examples rest on a band for measured risks that holds on the same event. `convex_order` takes the
    smaller of the two upper ends, which then need not be attained by a member of `band`.
    """
    method = check_choice("method", method, DISPERSION_METHODS)
    chosen = resolve_measure(measure)
    return _interval(chosen, method, QuantileLimits.of_band(band), _measured_limits(band, chosen, method))


def extremal_laws(band: Band, measure: str | DispersionMeasure) -> ExtremalLaws:
    """Explicit members of a band that attain both ends of the sharp interval.

    Parameters
    ----------
    band : Band
        With both sides.
    measure : str or DispersionMeasure
        As for `dispersion_interval`.

    Returns
    -------
    ExtremalLaws
        The laws; `measure.of_law` of each is the end of the interval, up to rounding.

    Raises
    ------
    ValueError
        If the measure is unknown or the band has one side only.
    """
    return _extremal_laws(QuantileLimits.of_band(band), resolve_measure(measure))


def measured_dispersion(risks: ClientRisks, measure: str | DispersionMeasure) -> float:
    """Return the measure of the risks that the clients in `risks` measured: no bound, and noise in them adds to it."""
    check_risks(risks)
    return resolve_measure(measure).of_law(RiskLaw.of_values(risks.shown_values))


def dispersion_certificate(band: Band, measure: str | DispersionMeasure, *, method: str = "sharp") -> Certificate:
    """Certificate for a measure of the dispersion of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With both sides.
    measure : str or DispersionMeasure
        As for `dispersion_interval`.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Certificate
        Both ends; `details["measured"]` is the value for the measured risks.
        Where the band allows so many risks of 0 that nothing better holds, `method` says so.

    Raises
    ------
    ValueError
        As for `dispersion_interval`; also if the band leaves the measure unbounded, since a certificate is finite.
    """
    chosen, method = resolve_measure(measure), check_choice("method", method, DISPERSION_METHODS)
    lower, upper = dispersion_interval(band, chosen, method=method)
    reason = _why_trivial(QuantileLimits.of_band(band), chosen)
    if not np.isfinite(upper):
        raise ValueError(
            f"{chosen.quantity} cannot be bounded: {reason or 'the plug-in formula gives infinity'}; take a measure "
            "that is bounded, such as gini or atkinson with an aversion below 1"
        )
    return Certificate(
        quantity=f"{chosen.quantity} of {band.subject}",
        value=float(upper),
        lower=float(lower),
        delta=band.delta,
        method=f"{method} bound from the {band.method} band" + (f"; {reason}" if reason else ""),
        assumptions=band.assumptions,
        details={"measured": np.array(measured_dispersion(band.risks, chosen))},
        recipe=recipe("dispersion_certificate", {"measure": chosen.name, "method": method}, band.risks, band),
    )


def _interval(
    measure: DispersionMeasure, method: str, limits: QuantileLimits, measured: QuantileLimits | None
) -> Interval:
    if method == "plugin":
        return Interval(*_plugin(limits, measure))
    lower, upper = _sharp(limits, measure)
    return Interval(lower, upper if measured is None else min(upper, _sharp(measured, measure)[1]))


def _measured_limits(band: Band, measure: DispersionMeasure, method: str) -> QuantileLimits | None:
    if method != "convex_order":
        return None
    measured = QuantileLimits.of_measured_risks(band) if measure.grows_in_convex_order else None
    if measured is None:
        raise ValueError(
            "method='convex_order' needs a band with local='marginal', equal numbers of examples, and a measure that "
            f"grows in convex order; got local={band.local!r} and {measure.name}; use method='sharp'"
        )
    return measured


def _sharp(limits: QuantileLimits, measure: DispersionMeasure) -> tuple[float, float]:
    most_equal, most_unequal = _extremal_laws(limits, measure)
    upper = measure.range[1] if most_unequal is None else measure.of_law(most_unequal)
    return _within(measure.of_law(most_equal), measure), _within(upper, measure)


def _extremal_laws(limits: QuantileLimits, measure: DispersionMeasure) -> ExtremalLaws:
    most_equal = limits.equal_law(measure.centre(limits))
    most_unequal = limits.unequal_law(measure.cut(limits))
    is_approached = measure.is_relative and limits.allow_all_zero and not limits.allow_only_zero
    if is_approached and measure.of_law(most_unequal) < measure.range[1]:
        return ExtremalLaws(most_equal, None)
    return ExtremalLaws(most_equal, most_unequal)


def _plugin(limits: QuantileLimits, measure: DispersionMeasure) -> tuple[float, float]:
    low, high = measure.range
    if measure.is_relative and limits.allow_all_zero:
        return low, low if limits.allow_only_zero else high
    lower, upper = measure.plug_in(limits)
    return _within(lower, measure), _within(upper, measure)


def _within(value: float, measure: DispersionMeasure) -> float:
    low, high = measure.range
    return min(max(value, low), high)


def _why_trivial(limits: QuantileLimits, measure: DispersionMeasure) -> str:
    if limits.allow_only_zero or not measure.is_relative:
        return ""
    if limits.allow_all_zero:
        return "the band allows all clients but an ever smaller share to have risk 0"
    if limits.allow_zero and measure.of_law(limits.unequal_law(float(limits.levels[0]) / 2)) >= measure.range[1]:
        return "the band allows clients of risk 0, which make this measure as large as it can be"
    return ""


def lorenz(band: Band, *, shares: npt.ArrayLike = 101, method: str = "sharp") -> Interval:
    """Bounds on the Lorenz curve: the part of all risk that the best-off `shares` of the unseen clients bear.

    Parameters
    ----------
    band : Band
        With both sides.
    shares : int or array_like, shape (num_shares,)
        Shares of clients in [0, 1], or how many to space evenly, at least 2. All hold at once.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`, at every share.

    Returns
    -------
    Interval
        Arrays of shape (num_shares,). Source: [DC] definition 5; math §5.1.

    Raises
    ------
    ValueError
        As for `dispersion_interval`.
    """
    points = check_shares(shares)
    method = check_choice("method", method, DISPERSION_METHODS)
    limits, measured = QuantileLimits.of_band(band), _measured_limits(band, top_share_measure(0.5), method)
    ends = np.stack([points, points])
    for index in np.flatnonzero((points > 0.0) & (points < 1.0)):
        found = _interval(top_share_measure(float(1.0 - points[index])), method, limits, measured)
        ends[:, index] = 1.0 - found.upper, 1.0 - found.lower
    return Interval(ends[0], ends[1])
