"""Weights on the levels of the quantile function: means, tails, maxima and medians are integrals against one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # loads its modules on use
from numpy.polynomial import Polynomial
from scipy.special import erf

from riskband.bands.band import Band
from riskband.checks import FloatArray, check_callable, check_count, check_number
from riskband.wording import in_full


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

        Raises ValueError if the density is negative somewhere or does not integrate to 1.
        """
        if isinstance(density, Polynomial):
            integral = density.integ(lbnd=0)
            return cls(name, lambda p: np.asarray(integral(p), dtype=np.float64))
        check_callable("density", density, remedy="give a function of the level, or a numpy Polynomial")
        return cls(
            name, np.vectorize(lambda p: scipy.integrate.quad(density, 0.0, p, limit=200)[0], otypes=[np.float64])
        )


MEAN = QuantileWeight("mean", lambda p: p)

LINEAR = QuantileWeight("linear", lambda p: p**2)
"""Weight 2p: [DC]'s ψ(p) = p, which integrates to 1/2, scaled so that constant risks keep their value."""


def tail_weight(level: float) -> QuantileWeight:
    """Weight of the conditional value at risk: the mean of the worst 1 - level; level in [0, 1)."""
    level = check_tail_level(level)
    return QuantileWeight(f"cvar:{in_full(level)}", lambda p: np.maximum(p - level, 0.0) / (1.0 - level))


def interval_weight(low: float, high: float) -> QuantileWeight:
    """Weight of the mean of the quantiles between two levels, 0 <= low < high <= 1."""
    low, high = (check_number("an end of an interval of levels", end, remedy="0.9 is a level") for end in (low, high))
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(f"an interval of levels needs 0 <= low < high <= 1, got {low} and {high}")
    return QuantileWeight(
        f"interval:{in_full(low)}:{in_full(high)}", lambda p: (np.clip(p, low, high) - low) / (high - low)
    )


def smoothed_median_weight(width: float = 0.01) -> QuantileWeight:
    """Gaussian weight around the median, exp(-((p - 1/2)/width)²), scaled to integrate to 1; `width` > 0 and finite."""
    width = check_number("width of a smoothed median", width, remedy="0.01 is that of [DC]")
    if not 0.0 < width < np.inf:
        raise ValueError(f"width of a smoothed median must be finite and > 0, got {width:g}; 0.01 is that of [DC]")
    half = erf(0.5 / width)  # the same width on both sides of the median (erratum of [DC])
    return QuantileWeight(f"smoothed_median:{in_full(width)}", lambda p: 0.5 + 0.5 * erf((p - 0.5) / width) / half)


def maximum_weight(num_clients: int) -> QuantileWeight:
    """Weight whose integral is the expected largest risk among `num_clients` >= 1 new clients."""
    count = check_count("num_clients", num_clients, minimum=1, remedy="it counts new clients")
    return QuantileWeight(f"maximum:{count}", lambda p: p**count)


def minimum_weight(num_clients: int) -> QuantileWeight:
    """Weight whose integral is the expected smallest risk among `num_clients` >= 1 new clients."""
    count = check_count("num_clients", num_clients, minimum=1, remedy="it counts new clients")
    return QuantileWeight(f"minimum:{count}", lambda p: 1.0 - (1.0 - p) ** count)


def check_tail_level(level: float) -> float:
    """Return `level` as a float if it is one number in [0, 1); raises ValueError."""
    remedy = "0.9 means the worst tenth of the clients"
    number = check_number("level", level, remedy=remedy)
    if not 0.0 <= number < 1.0:
        raise ValueError(f"level must be one number in [0, 1), got {number}; {remedy}")
    return number


def step_integral(risks: FloatArray, levels: FloatArray, weight: QuantileWeight) -> float:
    """Integral of a quantile function that is risks[i] up to levels[i]; both of shape (num_steps,)."""
    sums = weight.cumulative(np.concatenate([[0.0], np.minimum(levels[:-1], 1.0), [1.0]]))
    return float(risks @ np.diff(sums))


def tail_mean(band: Band, weight: QuantileWeight) -> float:
    """Upper bound for a nondecreasing weight, by a band's distribution for means: monotone in convex order."""
    atoms = band.distribution_for_means
    value = step_integral(atoms.risks, np.cumsum(atoms.weights), weight)
    return float(np.clip(value, 0.0, 1.0))  # noisy answers may lie outside
