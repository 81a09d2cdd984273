"""Upper bounds read off the lower side of a band: survival, quantiles, and weighted quantile integrals (math §3).

Each grows with the risk of every client, so it is largest at the largest law of the band. They all hold together, and
together with every worst case of the same band.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial
from scipy.integrate import quad

from riskband.bands import Band, check_band
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_callable, check_kind, check_number, check_points
from riskband.wording import exactly


@dataclass(frozen=True)
class QuantileWeight:
    """A weight on the levels of the quantile function: the functional is the integral of F^-(p) against it.

    Attributes
    ----------
    name : str
        For reports.
    cumulative : callable
        Integral of the weight from 0 to p, vectorised over p in [0, 1]; nondecreasing from 0 to 1.
    """

    name: str
    cumulative: Callable[[FloatArray], FloatArray]

    def __post_init__(self) -> None:
        check_callable(f"cumulative of weight {self.name!r}", self.cumulative, remedy="it integrates the weight from 0")
        sums = np.asarray(self.cumulative(np.linspace(0.0, 1.0, 1001)), dtype=np.float64)
        if sums.shape != (1001,) or not np.all(np.isfinite(sums)) or np.any(np.diff(sums) < -1e-9):
            raise ValueError(f"weight {self.name!r} must be >= 0 on [0, 1]: its cumulative must not decrease")
        if abs(sums[0]) > 1e-6 or abs(sums[-1] - 1.0) > 1e-6:
            raise ValueError(
                f"weight {self.name!r} must integrate to 1 over [0, 1], got {sums[-1] - sums[0]:g}; divide it by that"
            )

    @classmethod
    def from_density(cls, density: Callable[[float], float] | Polynomial, *, name: str) -> QuantileWeight:
        """Weight with the given density: a numpy `Polynomial` is integrated exactly, a function by quadrature.

        Raises
        ------
        ValueError
            If the density is negative somewhere or does not integrate to 1.
        """
        if isinstance(density, Polynomial):
            integral = density.integ(lbnd=0)
            return cls(name, lambda p: np.asarray(integral(p), dtype=np.float64))
        check_callable("density", density, remedy="give a function of the level, or a numpy Polynomial")
        return cls(name, np.vectorize(lambda p: quad(density, 0.0, p, limit=200)[0], otypes=[np.float64]))


MEAN = QuantileWeight("mean", lambda p: p)


def tail_weight(level: float) -> QuantileWeight:
    """Weight of the conditional value at risk: the mean of the worst 1 - level; level in [0, 1)."""
    level = check_tail_level(level)
    return QuantileWeight(f"cvar:{level:g}", lambda p: np.maximum(p - level, 0.0) / (1.0 - level))


def interval_weight(low: float, high: float) -> QuantileWeight:
    """Weight of the mean of the quantiles between two levels, 0 <= low < high <= 1."""
    low, high = (check_number("an end of an interval of levels", end, remedy="0.9 is a level") for end in (low, high))
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(f"an interval of levels needs 0 <= low < high <= 1, got {low} and {high}")
    return QuantileWeight(f"interval:{low:g}:{high:g}", lambda p: (np.clip(p, low, high) - low) / (high - low))


def check_tail_level(level: float) -> float:
    """Return `level` as a float if it is one number in [0, 1); raises ValueError."""
    remedy = "0.9 means the worst tenth of the clients"
    number = check_number("level", level, remedy=remedy)
    if not 0.0 <= number < 1.0:
        raise ValueError(f"level must be one number in [0, 1), got {number}; {remedy}")
    return number


def check_weight(weight: object) -> None:
    """Raise ValueError unless it is a `QuantileWeight`."""
    remedy = "for example interval_weight(0.8, 0.95); a stored certificate needs your own as an argument of verify"
    check_kind("weight", weight, QuantileWeight, remedy=remedy)


def mean(band: Band) -> Certificate:
    """Upper bound on the mean risk of unseen clients, from the band; see `mean_bound` for a sharper one.

    Parameters
    ----------
    band : Band
        With a lower side.

    Returns
    -------
    Certificate
        A number. Source: math §3.
    """
    return _certificate(band, "mean", {}, "the mean risk over unseen clients", _spectral(band, MEAN))


def cvar(band: Band, *, level: float) -> Certificate:
    """Upper bound on the conditional value at risk: the mean risk of the worst `1 - level` of the unseen clients.

    Parameters
    ----------
    band : Band
        With a lower side.
    level : float
        In [0, 1).

    Returns
    -------
    Certificate
        A number. Source: math §3.

    Raises
    ------
    ValueError
        If the level is out of range or the band has no lower side.
    """
    level = check_tail_level(level)
    quantity = f"the mean risk of the worst {exactly(1.0 - level)} of unseen clients"
    return _certificate(band, "cvar", {"level": level}, quantity, _spectral(band, tail_weight(level)))


def quantile(band: Band, *, level: npt.ArrayLike) -> Certificate:
    """Upper bound on quantiles (value at risk) of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With a lower side.
    level : float or array_like, shape (num_levels,)
        Probabilities in [0, 1].

    Returns
    -------
    Certificate
        A number, or a curve over `level`. Source: math §3.

    Raises
    ------
    ValueError
        If a level is out of range or the band has no lower side.
    """
    check_band(band)
    levels = check_points("level", level)
    name = "" if levels.ndim else f" at level {exactly(float(levels))}"
    quantity = f"the quantile{name} of {band.subject}"
    axes = {"level": levels} if levels.ndim else {}
    return _certificate(band, "quantile", {"level": levels}, quantity, band.quantile_upper(levels), axes)


def survival(band: Band, *, thresholds: npt.ArrayLike) -> Certificate:
    """Upper bound on the share of unseen clients whose risk is at least a threshold.

    Parameters
    ----------
    band : Band
        With a lower side.
    thresholds : float or array_like, shape (num_thresholds,)
        Risks in [0, 1].

    Returns
    -------
    Certificate
        A number, or a curve over `threshold`. Source: math §3.

    Raises
    ------
    ValueError
        If a threshold is out of range or the band has no lower side.
    """
    check_band(band)
    points = check_points("thresholds", thresholds)
    name = "the threshold" if points.ndim else exactly(float(points))
    quantity = f"the probability that {band.subject} is at least {name}"
    axes = {"threshold": points} if points.ndim else {}
    return _certificate(band, "survival", {"thresholds": points}, quantity, 1.0 - band.lower_left_limit(points), axes)


def weighted_quantile(band: Band, weight: QuantileWeight) -> Certificate:
    """Upper bound on a weighted integral of the quantile function of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With a lower side.
    weight : QuantileWeight
        For example `interval_weight(0.8, 0.95)` or `QuantileWeight.from_density(lambda p: 2 * p, name="linear")`.

    Returns
    -------
    Certificate
        A number. The integral over each step of the band is exact. Source: math §3, after [DC].
    """
    check_band(band)
    check_weight(weight)
    quantity = f"the quantile integral {weight.name!r} of {band.subject}"
    band.require("lower")
    value = _integral(np.append(band.lower_points, 1.0), np.append(band.lower_levels, 1.0), weight)
    return _certificate(band, "weighted_quantile", {"weight": weight.name}, quantity, value)


def _spectral(band: Band, weight: QuantileWeight) -> float:
    """Integral for a nondecreasing weight, which the law for means may serve: it is monotone in convex order."""
    check_band(band)
    law = band.law_for_means
    value = _integral(law.risks, np.cumsum(law.weights), weight)
    return float(np.clip(value, 0.0, 1.0))  # noisy answers may lie outside


def _integral(risks: FloatArray, levels: FloatArray, weight: QuantileWeight) -> float:
    sums = weight.cumulative(np.concatenate([[0.0], np.minimum(levels[:-1], 1.0), [1.0]]))
    return float(risks @ np.diff(sums))


def _certificate(
    band: Band,
    function: str,
    arguments: dict[str, Any],
    quantity: str,
    value: float | FloatArray,
    axes: dict[str, FloatArray] | None = None,
) -> Certificate:
    return Certificate(
        quantity=quantity,
        value=value if np.ndim(value) else float(value),
        delta=band.delta,
        method=f"{band.method} band",
        assumptions=band.assumptions,
        axes=axes or {},
        recipe=recipe(function, arguments, band.risks, band),
    )
