"""Two-sided bounds on any weighted integral of quantiles, and of functions of quantiles ([DC] §4.2; math §5.5).

`functionals` bounds what grows with every risk from above. Here both sides of the band are used: intervals for the same
functionals, signed weights, and ∫ψ(p)ξ(q(p))dp for a function ξ of bounded variation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial
from scipy.special import erf

from riskband.bands.band import Band, check_band
from riskband.checks import FloatArray, check_choice, check_count, check_kind, check_number
from riskband.functionals import quantiles as functionals
from riskband.functionals.dispersion import Interval
from riskband.functionals.laws import QuantileLimits
from riskband.functionals.quantiles import MEAN, QuantileWeight, check_weight, tail_weight
from riskband.functionals.transforms import Transform

TRANSFORM_METHODS = ("pointwise", "jordan", "monomials")

LINEAR = QuantileWeight("linear", lambda p: p**2)
"""Weight 2p: [DC]'s ψ(p) = p, which integrates to 1/2, scaled so that constant risks keep their value."""


def smoothed_median_weight(width: float = 0.01) -> QuantileWeight:
    """Gaussian weight around the median, exp(-((p - 1/2)/width)²), scaled to integrate to 1 over [0, 1].

    Parameters
    ----------
    width : float
        > 0; the same on both sides of the median (erratum of [DC]).

    Returns
    -------
    QuantileWeight
        The weight.

    Raises
    ------
    ValueError
        If the width is not finite and > 0.
    """
    width = check_number("width of a smoothed median", width, remedy="0.01 is that of [DC]")
    if not 0.0 < width < np.inf:
        raise ValueError(f"width of a smoothed median must be finite and > 0, got {width:g}; 0.01 is that of [DC]")
    half = erf(0.5 / width)
    return QuantileWeight(f"smoothed_median:{width:g}", lambda p: 0.5 + 0.5 * erf((p - 0.5) / width) / half)


def maximum_weight(num_clients: int) -> QuantileWeight:
    """Weight whose integral is the expected largest risk among `num_clients` >= 1 new clients."""
    check_num_clients(num_clients)
    return QuantileWeight(f"maximum:{num_clients}", lambda p: p**num_clients)


def minimum_weight(num_clients: int) -> QuantileWeight:
    """Weight whose integral is the expected smallest risk among `num_clients` >= 1 new clients."""
    check_num_clients(num_clients)
    return QuantileWeight(f"minimum:{num_clients}", lambda p: 1.0 - (1.0 - p) ** num_clients)


def check_num_clients(num_clients: int) -> None:
    """Raise ValueError unless `num_clients` is a whole number >= 1."""
    check_count("num_clients", num_clients, minimum=1, remedy="it counts new clients")


def quantile_interval(band: Band, *, level: npt.ArrayLike) -> Interval:
    """Bounds on quantiles (value at risk) of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With both sides.
    level : float or array_like
        Probabilities in [0, 1], any shape. The largest of k new clients has its β quantile at the level β^{1/k}, the
        smallest at 1 - (1 - β)^{1/k} ([DC] example 7).

    Returns
    -------
    Interval
        Of the shape of `level`; all hold at once. Source: [DC] proposition 1.

    Raises
    ------
    ValueError
        If a level is out of range or the band has only one side.
    """
    check_band(band)
    lower, upper = band.quantile_lower(level), band.quantile_upper(level)
    return Interval(lower, upper) if np.ndim(level) else Interval(float(lower), float(upper))


def weighted_quantile_interval(band: Band, weight: QuantileWeight) -> Interval:
    """Bounds on a weighted integral of the quantile function of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With both sides.
    weight : QuantileWeight
        For example `interval_weight(0.5, 0.9)`, `LINEAR`, `smoothed_median_weight()` or `maximum_weight(10)`.

    Returns
    -------
    Interval
        The integrals of both sides of the band, exact on every step. Source: math §5.5, after [DC].

    Raises
    ------
    ValueError
        If the band has only one side.
    """
    check_weight(weight)
    limits = QuantileLimits.of_band(band)
    masses = np.diff(weight.cumulative(limits.edges))
    return Interval(float(np.sum(masses * limits.lower)), float(np.sum(masses * limits.upper)))


def mean_interval(band: Band) -> Interval:
    """Bounds on the mean risk of unseen clients.

    Measured risks have the same mean as true ones, so where the band rests on one for measured risks, both ends use it.

    Parameters
    ----------
    band : Band
        With both sides.

    Returns
    -------
    Interval
        Numbers. `mean_bound` has a sharper upper end. Source: math §5.5.

    Raises
    ------
    ValueError
        If the band has only one side.
    """
    lower, upper = weighted_quantile_interval(band, MEAN)
    measured = QuantileLimits.of_measured_risks(band)
    if measured is not None:
        lower = max(float(lower), measured.integral(measured.lower))
    return Interval(lower, min(float(upper), float(functionals.mean(band).value)))


def cvar_interval(band: Band, *, level: float) -> Interval:
    """Bounds on the mean risk of the worst `1 - level` of the unseen clients (conditional value at risk).

    Parameters
    ----------
    band : Band
        With both sides.
    level : float
        In [0, 1).

    Returns
    -------
    Interval
        Numbers. Source: math §5.5.

    Raises
    ------
    ValueError
        If the level is out of range or the band has only one side.
    """
    lower, upper = weighted_quantile_interval(band, tail_weight(level))
    return Interval(lower, min(float(upper), float(functionals.cvar(band, level=level).value)))


def transformed_quantile_interval(
    band: Band, transform: Transform, *, weight: QuantileWeight | Transform = MEAN, method: str = "pointwise"
) -> Interval:
    """Bounds on ∫ψ(p)ξ(q(p))dp, with q the quantile function of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With both sides.
    transform : Transform
        ξ: `polynomial_transform`, `absolute_transform` or `smooth_transform`.
    weight : QuantileWeight or Transform
        ψ >= 0, or a transform of p that is the integral of a ψ of any sign from 0; it is split by its own Jordan
        decomposition. Default: the mean of ξ(R).
    method : {"pointwise", "jordan", "monomials"}
        `pointwise`: smallest and largest ξ between the sides of the band at every level; attained by a member of the
        band if ψ >= 0 and ξ turns at most once. `jordan`: V(u) - V(l) + ξ(l), [DC] theorem 2. `monomials`: every power
        of a polynomial on its own, [DC] proposition 3. Never tighter than the first.

    Returns
    -------
    Interval
        Numbers. Source: [DC] theorems 1 and 2, proposition 3.

    Raises
    ------
    ValueError
        If the method is unknown or needs a polynomial, or the band has only one side.
    """
    method = check_choice("method", method, TRANSFORM_METHODS)
    check_kind("transform", transform, Transform, remedy="for example absolute_transform(0.5)")
    if not isinstance(weight, Transform):
        check_weight(weight)
    limits = QuantileLimits.of_band(band)
    if method == "pointwise":
        least, most = transform.extremes(limits.lower, limits.upper)
    elif method == "jordan":
        start = transform.function(limits.lower)
        gain = transform.variation(limits.upper) - transform.variation(limits.lower)
        least, most = start - gain, start + gain
    else:
        least, most = _monomial_bounds(transform, limits)
    positive, negative = _masses(weight, limits.edges)
    return Interval(
        float(np.sum(positive * least - negative * most)), float(np.sum(positive * most - negative * least))
    )


def _monomial_bounds(transform: Transform, limits: QuantileLimits) -> tuple[FloatArray, FloatArray]:
    if not transform.coefficients:
        raise ValueError(f"method='monomials' needs a polynomial, got {transform.name!r}; use method='jordan'")
    rising = Polynomial(np.maximum(transform.coefficients, 0.0))
    falling = Polynomial(np.minimum(transform.coefficients, 0.0))
    return rising(limits.lower) + falling(limits.upper), rising(limits.upper) + falling(limits.lower)


def _masses(weight: QuantileWeight | Transform, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Integrals of the positive and of the negative part of the weight over each step."""
    if isinstance(weight, QuantileWeight):
        return np.diff(weight.cumulative(edges)), np.zeros(edges.size - 1)
    change, variation = np.diff(weight.function(edges)), np.diff(weight.variation(edges))
    return (variation + change) / 2.0, (variation - change) / 2.0
