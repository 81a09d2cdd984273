"""Certificates for whole curves of client risks: the Lorenz curve and the quantile function, from both sides."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riskband.bands.band import Band
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_points, check_shares
from riskband.functionals.dispersion import DISPERSION_METHODS, lorenz
from riskband.functionals.laws import RiskLaw
from riskband.functionals.quantile_measures import quantile_interval


def lorenz_certificate(band: Band, *, shares: npt.ArrayLike = 101, method: str = "sharp") -> Certificate:
    """Certificate for the Lorenz curve: the part of all risk that the best-off `shares` of the unseen clients bear.

    Parameters
    ----------
    band : Band
        With both sides.
    shares : int or array_like, shape (num_shares,)
        Shares of clients in [0, 1], or how many to space evenly, at least 2.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`, at every share.

    Returns
    -------
    Certificate
        Both ends over the axis "share"; `details["measured"]` is the curve of the measured risks. Source: `lorenz`.

    Raises
    ------
    ValueError
        As for `lorenz`.
    """
    points, method = check_shares(shares), check_choice("method", method, DISPERSION_METHODS)
    lower, upper = lorenz(band, shares=points, method=method)
    return Certificate(
        quantity=f"the Lorenz curve of {band.subject}",
        value=np.asarray(upper),
        lower=np.asarray(lower),
        axes={"share": points},
        delta=band.delta,
        method=f"{method} bound from the {band.method} band",
        assumptions=band.assumptions,
        details={"measured": lorenz_of_law(RiskLaw.of_values(band.risks.shown_values), points)},
        recipe=recipe("lorenz_certificate", {"shares": points, "method": method}, band.risks, band),
    )


def quantile_certificate(band: Band, *, level: npt.ArrayLike) -> Certificate:
    """Certificate for the quantile function of the risk of unseen clients, from both sides.

    Parameters
    ----------
    band : Band
        With both sides; for an upper bound alone `quantile` needs only the lower one.
    level : array_like, shape (num_levels,)
        Probabilities in [0, 1].

    Returns
    -------
    Certificate
        Both ends over the axis "level"; `details["measured"]` has the quantiles of the measured risks. Source: [DC]
        proposition 1.

    Raises
    ------
    ValueError
        If a level is out of range or the band has only one side.
    """
    levels = np.atleast_1d(check_points("level", level))
    lower, upper = quantile_interval(band, level=levels)
    return Certificate(
        quantity=f"the quantile function of {band.subject}",
        value=np.asarray(upper),
        lower=np.asarray(lower),
        axes={"level": levels},
        delta=band.delta,
        method=f"{band.method} band",
        assumptions=band.assumptions,
        details={"measured": RiskLaw.of_values(band.risks.shown_values).quantile(levels)},
        recipe=recipe("quantile_certificate", {"level": levels}, band.risks, band),
    )


def lorenz_of_law(law: RiskLaw, shares: npt.ArrayLike) -> FloatArray:
    """Lorenz curve of a known law.

    Parameters
    ----------
    law : RiskLaw
        For example `RiskLaw.of_values(risks)`.
    shares : array_like, shape (num_shares,)
        Shares of clients in [0, 1].

    Returns
    -------
    ndarray, shape (num_shares,)
        Part of all risk on the best-off; the share itself if all risks are 0.
    """
    points = np.asarray(shares, dtype=np.float64)
    if law.mean == 0.0:
        return points.copy()
    borne = np.cumsum(law.weights * law.risks)
    return np.asarray(np.interp(points, np.append(0.0, law.levels), np.append(0.0, borne / borne[-1])))
