"""Functions of bounded variation, with their Jordan decomposition ([DC] theorem 2 and proposition 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy  # loads its modules on use
from numpy.polynomial import Polynomial

from riskband.bands.band import Band
from riskband.checks import (
    FloatArray,
    check_callable,
    check_choice,
    check_kind,
    check_num_points,
    check_number,
    check_numbers,
)
from riskband.functionals.distributions import QuantileLimits
from riskband.functionals.functional import Interval, resolve_weight
from riskband.functionals.weights import QuantileWeight


@dataclass(frozen=True, eq=False)
class Transform:
    """A function of bounded variation on [0, 1], through the points at which it turns.

    Attributes
    ----------
    name : str
        For reports.
    function : callable
        ξ, vectorised over [0, 1]; monotone between neighbouring turning points.
    turning_points : ndarray, shape (num_points,)
        Increasing, inside (0, 1). More than needed do no harm.
    coefficients : tuple of float
        Of a polynomial, from the constant on; empty for other functions.
    """

    name: str
    function: Callable[[FloatArray], FloatArray]
    turning_points: FloatArray
    coefficients: tuple[float, ...] = ()

    @cached_property
    def _pieces(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        starts = np.concatenate([[0.0], self.turning_points])
        values = self.function(starts)
        return starts, values, np.concatenate([[0.0], np.cumsum(np.abs(np.diff(values)))])

    def variation(self, points: npt.ArrayLike) -> FloatArray:
        """Total variation of ξ from 0 to each point: the rising half of its Jordan decomposition ξ = V - (V - ξ)."""
        x = np.asarray(points, dtype=np.float64)
        starts, values, before = self._pieces
        piece = np.searchsorted(starts, x, side="right") - 1
        return np.asarray(before[piece] + np.abs(self.function(x) - values[piece]))

    def extremes(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Smallest and largest value of ξ on each [lower, upper], of the shape of `lower`."""
        ends = np.stack([self.function(lower), self.function(upper)])
        least, most = ends.min(axis=0), ends.max(axis=0)
        for point, value in zip(self.turning_points, self.function(self.turning_points), strict=True):
            is_inside = (lower < point) & (point < upper)
            least = np.where(is_inside, np.minimum(least, value), least)
            most = np.where(is_inside, np.maximum(most, value), most)
        return least, most


def polynomial_transform(polynomial: Polynomial, *, name: str = "polynomial") -> Transform:
    """Transform s -> polynomial(s) of a numpy `polynomial` with a `name`, turning at the roots of its derivative."""
    check_kind("polynomial", polynomial, Polynomial, remedy="for example numpy.polynomial.Polynomial([0, 0, 1])")
    power = polynomial.convert()
    roots = np.atleast_1d(power.deriv().roots()) if power.degree() > 0 else np.empty(0)
    real = np.unique(roots[np.abs(roots.imag) < 1e-4].real)  # near-real ones may be real and double: they do no harm
    return Transform(
        name,
        lambda s: np.asarray(power(s), dtype=np.float64),
        real[(real > 0.0) & (real < 1.0)],
        tuple(float(coefficient) for coefficient in power.coef),
    )


def resolve_transform(transform: Transform | Sequence[float]) -> Transform:
    """Return a transform as it is, or that of a polynomial's coefficients; raises ValueError for anything else."""
    if isinstance(transform, Transform):
        return transform
    remedy = "give a Transform or finite coefficients of a polynomial: [0, 0, 1] is the square"
    numbers = check_numbers("transform", transform, remedy=remedy)
    if numbers.ndim != 1 or numbers.size == 0 or not np.all(np.isfinite(numbers)):
        raise ValueError(f"transform must be finite, in one row and not empty, got {transform!r:.80}; {remedy}")
    return polynomial_transform(Polynomial(numbers))


def absolute_transform(centre: float) -> Transform:
    """Transform s -> |s - centre|, for a centre in [0, 1]."""
    centre = check_number("centre", centre, remedy="it is a risk")
    if not 0.0 <= centre <= 1.0:
        raise ValueError(f"centre must be in [0, 1], got {centre:g}; it is a risk")
    points = np.array([centre]) if 0.0 < centre < 1.0 else np.empty(0)
    return Transform(f"absolute:{centre:g}", lambda s: np.abs(s - centre), points)


def smooth_transform(
    function: Callable[[FloatArray], FloatArray],
    derivative: Callable[[FloatArray], FloatArray],
    *,
    name: str,
    num_points: int = 4096,
) -> Transform:
    """Transform from a continuously differentiable function and its derivative ([DC] theorem 2).

    Parameters
    ----------
    function, derivative : callable
        ξ and ξ', vectorised over [0, 1].
    name : str
        For reports.
    num_points : int
        Steps of [0, 1] on which the derivative is searched for changes of sign; each is then located exactly.

    Returns
    -------
    Transform
        The function with its turning points.

    Raises
    ------
    ValueError
        If the integral of |derivative| differs from the variation so found: then the derivative is not that of the
        function, or it changes sign twice within one step.
    """
    for role, given in (("function", function), ("derivative", derivative)):
        check_callable(role, given, remedy="for example numpy.sin and numpy.cos")
    num_points = check_num_points("num_points", num_points, minimum=1, remedy="4096 steps are usual")
    grid = np.linspace(0.0, 1.0, num_points + 1)
    slopes = np.broadcast_to(derivative(grid), grid.shape)
    changes = np.flatnonzero(slopes[:-1] * slopes[1:] < 0.0)
    roots = [
        float(scipy.optimize.brentq(lambda s: float(derivative(np.asarray(s))), grid[i], grid[i + 1])) for i in changes
    ]
    flat = grid[1:-1][slopes[1:-1] == 0.0]
    found = Transform(name, function, np.unique(np.concatenate([roots, flat])))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    inside = grid[:-1, None] + (nodes + 1.0) / (2.0 * num_points)
    total = float(np.sum(np.abs(derivative(inside)) @ weights) / (2.0 * num_points))
    variation = float(found.variation(1.0))
    if not abs(total - variation) <= 1e-6 * max(total, 1.0):
        raise ValueError(
            f"derivative of {name!r} does not fit: its absolute value integrates to {total:g}, but the function varies "
            f"by {variation:g}; check both, or raise num_points if the function oscillates quickly"
        )
    return found


TRANSFORM_METHODS = ("pointwise", "jordan", "monomials")


def transformed_quantile_interval(
    band: Band,
    transform: Transform | Sequence[float],
    *,
    weight: str | QuantileWeight | Transform = "mean",
    method: str = "pointwise",
) -> Interval:
    """Bounds on ∫ψ(p)ξ(q(p))dp, with q the quantile function of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With both sides.
    transform : Transform or sequence of float
        ξ on [0, 1]: coefficients of a polynomial, from the constant on, or `absolute_transform` or `smooth_transform`.
    weight : str, QuantileWeight or Transform
        ψ >= 0, as for `weighted_quantile`, or a transform of p that is the integral of a ψ of any sign from 0; it is
        split by its own Jordan decomposition. Default: the mean of ξ(R).
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
    transform = resolve_transform(transform)
    if not isinstance(weight, Transform):
        weight = resolve_weight(weight, called="weight")
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
    ends = positive * least - negative * most, positive * most - negative * least
    return Interval(*(float(np.sum(end)) for end in ends))


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
