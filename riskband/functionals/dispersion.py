"""How unequal are the risks of clients that nobody has measured: two-sided bounds on every common measure (math §5).

All are functionals of one two-sided band, so they hold on the same event of probability 1 - delta: with each other, and
with every other certificate of that band. The functions named after a measure are `bound` with that measure, whose
formula is at its name in `riskband.functionals.functional`; they raise the same errors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riskband.answers.risks import ClientRisks, check_risks
from riskband.bands.band import Band
from riskband.certificate import Certificate
from riskband.checks import FloatArray, check_choice, check_shares
from riskband.functionals.distributions import QuantileLimits, RiskDistribution
from riskband.functionals.functional import (
    BOUND_METHODS,
    MEASURES,
    ExtremalDistributions,
    Functional,
    Given,
    Interval,
    bound,
    certificate_of_band,
    measured_limits,
    resolve,
    top_share_functional,
)


def dispersion_interval(band: Band, measure: Given, *, method: str = "sharp") -> Interval:
    """`bound` by its earlier name: for a `band`, of a `measure`, by a `method`; it raises the same errors."""
    return bound(band, resolve(measure, called="measure"), method=method)


def extremal_distributions(band: Band, measure: str | Functional) -> ExtremalDistributions:
    """Explicit members of a band at which a measure is smallest and largest: the ends of the sharp interval.

    Parameters
    ----------
    band, measure :
        As for `bound`, the band with both sides.

    Returns
    -------
    ExtremalDistributions
        The distributions; the value of each is the end of the interval, up to rounding (those of mean and CVaR may be
        sharper).

    Raises
    ------
    ValueError
        If the measure is unknown or the band has one side only.
    """
    return resolve(measure, called="measure").extremes(QuantileLimits.of_band(band))


def measured_dispersion(risks: ClientRisks, measure: str | Functional) -> float:
    """Return the measure of the risks that the clients in `risks` measured: no bound, and noise in them adds to it."""
    check_risks(risks)
    return resolve(measure, called="measure").value(RiskDistribution.of_values(risks.shown_values))


def dispersion_certificate(band: Band, measure: Given, *, method: str = "sharp") -> Certificate:
    """Certificate from both sides for a measure of dispersion, or another functional, of the risk of unseen clients.

    Parameters
    ----------
    band, measure, method :
        As for `bound`, but no function of your own as measure: `verify` could not find it.

    Returns
    -------
    Certificate
        Both ends; `details["measured"]` is the value for the measured risks.
        Where the band allows so many risks of 0 that nothing better holds, `method` says so.

    Raises
    ------
    ValueError
        As for `bound`; also if the band leaves the measure unbounded, since a certificate is finite.
    """
    chosen, method = resolve(measure, called="measure"), check_choice("method", method, BOUND_METHODS)
    measured = measured_dispersion(band.risks, chosen) if isinstance(band, Band) else np.nan
    lower, upper = bound(band, chosen, method=method)
    reason = _why_trivial(chosen.limits(band), chosen)
    if not np.isfinite(upper):
        raise ValueError(
            f"{chosen.quantity} cannot be bounded: {reason or 'the plug-in formula gives infinity'}; take a measure "
            "that is bounded, such as gini or atkinson with an aversion below 1"
        )
    return certificate_of_band(
        band,
        "dispersion_certificate",
        {"measure": chosen.name, "method": method},
        quantity=f"{chosen.quantity} of {band.subject}",
        value=upper,
        lower=float(lower),
        method=f"{method} bound from the {band.method} band" + (f"; {reason}" if reason else ""),
        details={"measured": np.array(measured)},
    )


def _why_trivial(limits: QuantileLimits, measure: Functional) -> str:
    if limits.allow_only_zero or not measure.is_relative:
        return ""
    if limits.allow_all_zero:
        return "the band allows all clients but an ever smaller share to have risk 0"
    if limits.allow_zero and measure.value(limits.most_unequal(float(limits.levels[0]) / 2)) >= measure.range[1]:
        return "the band allows clients of risk 0, which make this measure as large as it can be"
    return ""


def gini(band: Band, *, method: str = "sharp") -> Interval:
    """Gini coefficient from a two-sided `band` by a `method` of `bound`: in [0, 1]."""
    return bound(band, "gini", method=method)


def extended_gini(band: Band, *, aversion: float = 3.0, method: str = "sharp") -> Interval:
    """Extended Gini coefficient (`aversion` > 1) from a two-sided `band` by a `method` of `bound`: in [0, 1]."""
    return bound(band, MEASURES["extended_gini"](aversion), method=method)


def atkinson(band: Band, *, aversion: float = 0.5, method: str = "sharp") -> Interval:
    """Atkinson index (`aversion` >= 0) from a two-sided `band` by a `method` of `bound`: in [0, 1]."""
    return bound(band, MEASURES["atkinson"](aversion), method=method)


def generalised_entropy(band: Band, *, order: float = 2.0, method: str = "sharp") -> Interval:
    """Generalised entropy of an `order` from a two-sided `band` by a `method` of `bound`: >= 0, or `inf`."""
    return bound(band, MEASURES["generalised_entropy"](order), method=method)


def theil(band: Band, *, method: str = "sharp") -> Interval:
    """Theil index, E (R/m) log(R/m), from a two-sided `band` by a `method` of `bound`: >= 0, or `inf`."""
    return bound(band, "theil", method=method)


def mean_log_deviation(band: Band, *, method: str = "sharp") -> Interval:
    """Mean log deviation, E log(m/R), from a two-sided `band` by a `method` of `bound`: >= 0, or `inf`."""
    return bound(band, "mean_log_deviation", method=method)


def hoover(band: Band, *, method: str = "sharp") -> Interval:
    """Hoover index from a two-sided `band` by a `method` of `bound`: in [0, 1]."""
    return bound(band, "hoover", method=method)


def coefficient_of_variation(band: Band, *, method: str = "sharp") -> Interval:
    """Standard deviation over mean from a two-sided `band` by a `method` of `bound`: >= 0, or `inf`."""
    return bound(band, "coefficient_of_variation", method=method)


def top_share(band: Band, *, share: float = 0.1, method: str = "sharp") -> Interval:
    """Part of all risk on the worst-off `share` of clients, from a two-sided `band` by a `method`: in [share, 1]."""
    return bound(band, top_share_functional(share), method=method)


def quantile_ratio(band: Band, *, low: float = 0.1, high: float = 0.9, method: str = "sharp") -> Interval:
    """Quantile at `high` over that at `low`, from a two-sided `band` by a `method`: >= 1, or `inf`; 1 if both are 0."""
    return bound(band, MEASURES["quantile_ratio"](low, high), method=method)


def quantile_range(band: Band, *, low: float = 0.25, high: float = 0.75, method: str = "sharp") -> Interval:
    """Quantile at `high` minus that at `low`, from a two-sided `band` by a `method` of `bound`: in [0, 1]."""
    return bound(band, MEASURES["quantile_range"](low, high), method=method)


def mean_range(band: Band, *, num_clients: int, method: str = "sharp") -> Interval:
    """Mean of largest minus smallest risk of `num_clients` >= 2 new clients, from a `band` by a `method`: in [0, 1]."""
    return bound(band, MEASURES["mean_range"](num_clients), method=method)


def lorenz(band: Band, *, shares: npt.ArrayLike = 101, method: str = "sharp") -> Interval:
    """Bounds on the Lorenz curve: the part of all risk that the best-off `shares` of the unseen clients bear.

    Parameters
    ----------
    band, method :
        As for `bound`, the band with both sides.
    shares : int or array_like, shape (num_shares,)
        Shares of clients in [0, 1], or how many to space evenly, at least 2. All hold at once.

    Returns
    -------
    Interval
        Arrays of shape (num_shares,). Source: [DC] definition 5; math §5.1.

    Raises
    ------
    ValueError
        As for `bound`.
    """
    points = check_shares(shares)
    method = check_choice("method", method, BOUND_METHODS)
    limits, measured = QuantileLimits.of_band(band), measured_limits(band, top_share_functional(0.5), method)
    ends = np.stack([points, points])
    for index in np.flatnonzero((points > 0.0) & (points < 1.0)):
        beyond = top_share_functional(float(1.0 - points[index]))
        found = beyond.interval(limits, is_plug_in=method == "plugin", measured=measured)
        ends[:, index] = 1.0 - found.upper, 1.0 - found.lower
    return Interval(ends[0], ends[1])


def lorenz_certificate(band: Band, *, shares: npt.ArrayLike = 101, method: str = "sharp") -> Certificate:
    """Certificate for the Lorenz curve: the part of all risk that the best-off `shares` of the unseen clients bear.

    Parameters
    ----------
    band, shares, method :
        As for `lorenz`.

    Returns
    -------
    Certificate
        Both ends over the axis "share"; `details["measured"]` is the curve of the measured risks. Source: `lorenz`.

    Raises
    ------
    ValueError
        As for `lorenz`.
    """
    points, method = check_shares(shares), check_choice("method", method, BOUND_METHODS)
    lower, upper = lorenz(band, shares=points, method=method)
    return certificate_of_band(
        band,
        "lorenz_certificate",
        {"shares": points, "method": method},
        quantity=f"the Lorenz curve of {band.subject}",
        value=np.asarray(upper),
        lower=np.asarray(lower),
        axes={"share": points},
        method=f"{method} bound from the {band.method} band",
        details={"measured": lorenz_of_distribution(RiskDistribution.of_values(band.risks.shown_values), points)},
    )


def lorenz_of_distribution(law: RiskDistribution, shares: npt.ArrayLike) -> FloatArray:
    """Lorenz curve of a known distribution at shares of clients in [0, 1]: the share itself if all risks are 0."""
    points = np.asarray(shares, dtype=np.float64)
    if law.mean == 0.0:
        return points.copy()
    borne = np.cumsum(law.weights * law.risks)
    return np.asarray(np.interp(points, np.append(0.0, law.levels), np.append(0.0, borne / borne[-1])))
