"""f-divergences from a user's own convex function (math §3.3).

The function is read once, at about 170,000 points, and replaced by a convex polygon that lies nowhere above it.
The ball of the polygon holds that of the function, so a worst case over it is a valid bound, and no budget needs
another call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskband.checks import FloatArray, check_callable, check_number
from riskband.worst_cases.divergences import DIVERGENCES, FDivergence
from riskband.worst_cases.robust_means import RobustMean, dual_robust_mean

Generator = Callable[[FloatArray], FloatArray]

_STEP = 5e-4  # between neighbouring points, relative to the distance from 0 and from 1
_FINEST = 1e-6  # absolute, next to 1: the differences of f over shorter steps are rounding
_ROUNDING = 1e-14  # the polygon is lowered by so much, relative to t and f


def custom_divergence(
    name: str,
    generator: Generator,
    *,
    slope_at_infinity: float,
    cvxpy_generator: Callable[[Any, Any], Any] | None = None,
) -> FDivergence:
    """Divergence from a user's own convex function; everything else is computed numerically.

    Parameters
    ----------
    name : str
        For reports.
    generator : callable
        Convex f with f(1) = 0, vectorised over flat arrays of t >= 0.
    slope_at_infinity : float
        Limit of f(t)/t as t grows; `numpy.inf` if there is none.
    cvxpy_generator : callable, optional
        (cvxpy, expression) -> f(expression), for `method="reference"`.

    Returns
    -------
    FDivergence
        Ready for every function that takes a divergence.

    Raises
    ------
    ValueError
        If the name is that of a built-in divergence, the generator does not give one real number for each number of an
        array, f(1) is not 0, f is not convex on a grid, or the slope contradicts f.
    """
    if not isinstance(name, str) or name in DIVERGENCES:
        raise ValueError(f"name must not be that of a built-in divergence, got {name!r}; reports would confuse the two")
    check_callable("generator", generator, remedy="give f as a function of an array, for example numpy.square")
    slope_at_infinity = check_number("slope_at_infinity", slope_at_infinity, remedy="numpy.inf if there is no limit")
    if cvxpy_generator is not None:
        check_callable("cvxpy_generator", cvxpy_generator, remedy="leave it out, or write f with functions of cvxpy")

    def checked(t: FloatArray) -> FloatArray:
        return _generated(name, generator, t)

    _check_convex(name, checked)
    _check_slope(name, checked, slope_at_infinity)
    below, above = checked(np.array([1.0 - _FINEST, 1.0 + _FINEST]))
    tilt = float((above - below) / (2.0 * _FINEST))  # a subgradient at 1, also where f has a kink

    def normalised(t: FloatArray) -> FloatArray:
        return checked(t) - tilt * (t - 1.0)

    polygon = outer_polygon(normalised)

    def robust_mean(values: FloatArray, weights: FloatArray, budget: float) -> RobustMean:
        # The last side of the polygon has a finite slope also where f has none, and new clients cannot appear.
        possible = weights > 0.0 if np.isinf(slope_at_infinity) else np.ones_like(weights, dtype=bool)
        worst = np.zeros_like(weights)
        value, worst[possible] = dual_robust_mean(
            values[possible],
            weights[possible],
            budget,
            generator=polygon.height,
            best_ratio=polygon.best_ratio,
            slope_at_infinity=float(polygon.slopes[-1]),
        )
        return value, worst

    return FDivergence(
        name=name,
        title=name,
        generator=normalised,
        slope_at_infinity=slope_at_infinity - tilt,
        best_ratio=polygon.best_ratio,
        robust_mean=robust_mean,
        cvxpy_generator=None if cvxpy_generator is None else lambda cp, t: cvxpy_generator(cp, t) - tilt * (t - 1.0),
    )


@dataclass(frozen=True)
class Polygon:
    """A convex function of t >= 0 that is linear between its corners, and beyond the last one.

    Attributes
    ----------
    corners : ndarray, shape (num_corners,)
        Increasing, the first is 0.
    heights : ndarray, shape (num_corners,)
        The function there.
    slopes : ndarray, shape (num_corners,)
        To the right of each corner; nondecreasing.
    """

    corners: FloatArray
    heights: FloatArray
    slopes: FloatArray

    def height(self, t: FloatArray) -> FloatArray:
        """Return the function, elementwise."""
        with np.errstate(invalid="ignore"):  # inf - inf at t = inf
            beyond = self.heights[-1] + self.slopes[-1] * (t - self.corners[-1])
        return np.where(t > self.corners[-1], beyond, np.interp(t, self.corners, self.heights))

    def best_ratio(self, slope: FloatArray) -> FloatArray:
        """Return the corner at which slope·t - f(t) is largest; `inf` where it grows without limit."""
        index = np.searchsorted(self.slopes, slope)
        return np.where(index == self.corners.size, np.inf, self.corners[np.minimum(index, self.corners.size - 1)])


def outer_polygon(generator: Generator) -> Polygon:
    """Return a convex polygon that is nowhere above a convex function, and hardly below it.

    Parameters
    ----------
    generator : callable
        Convex f with f >= 0 = f(1); called once.

    Notes
    -----
    Beyond its ends, the line through two points of a convex function is nowhere above it. Between neighbouring points
    of the grid, the lines through the two points to the left and through the two to the right hold it from below;
    where they meet is a corner. Before the second and after the last but one point only one of them is left.
    """
    t = _grid()
    f = generator(t)
    is_finite = np.isfinite(f)
    t, f = t[is_finite], f[is_finite]  # a power of a large t may be beyond floats
    steps = np.diff(t)
    chords = np.diff(f) / steps
    before, here, after, step = chords[:-2], chords[1:-1], chords[2:], steps[1:-1]
    with np.errstate(divide="ignore", invalid="ignore"):  # the two lines are one
        share = np.where(after > before, (after - here) / (after - before), 0.5)
    way = np.clip(share, 0.01, 0.99) * step  # never two corners at one place
    heights = np.minimum(f[1:-2] + before * way, f[2:-1] - after * (step - way))  # equal but for clipping and rounding
    corners = np.concatenate([[0.0], t[1:-2] + way])
    heights = np.concatenate([[f[1] - chords[1] * t[1]], heights])
    heights = heights - _ROUNDING * (1.0 + corners + np.abs(heights))
    return _convex_hull(corners, heights, last_slope=float(chords[-2]))


def _grid() -> FloatArray:
    """Points from 1e-12 to 1e12, dense around 1, where small budgets look, and ever less so towards 0 and infinity."""
    near = np.arange(1, 2001) * _FINEST
    aside = near[-1] * np.exp(_STEP * np.arange(1, int(np.log(0.5 / near[-1]) / _STEP)))
    below_half = np.exp(np.linspace(np.log(1e-12), np.log(0.5), int(np.log(0.5e12) / _STEP)))
    above_half = np.exp(np.linspace(np.log(1.5), np.log(1e12), int(np.log(1e12) / _STEP)))
    return np.concatenate([below_half, 1.0 - aside[::-1], 1.0 - near[::-1], [1.0], 1.0 + near, 1.0 + aside, above_half])


def _convex_hull(corners: FloatArray, heights: FloatArray, *, last_slope: float) -> Polygon:
    """Leave out corners above the line through their neighbours, which rounding makes, until there is none."""
    while True:
        slopes = np.append(np.diff(heights) / np.diff(corners), last_slope)
        is_convex = np.append(True, slopes[1:] >= slopes[:-1])
        if is_convex.all():
            return Polygon(corners, heights, slopes)
        corners, heights = corners[is_convex], heights[is_convex]


def _generated(name: str, generator: Generator, t: FloatArray) -> FloatArray:
    """Call a user's generator with a flat array of its own, and say what is wrong with what it returns."""
    remedy = "write it with functions of numpy, such as numpy.log and numpy.where"
    rule = (
        f"generator of {name!r} must take an array and return one of the same shape, with a real number for each entry"
    )
    try:
        with np.errstate(all="ignore"):  # f(0) may be infinite
            values = np.asarray(generator(np.array(t, dtype=np.float64).ravel()))
    except Exception as error:
        raise ValueError(f"{rule}, got {type(error).__name__} ({error}); {remedy}") from error
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{rule}, got {values.ravel()[:1].tolist()!r:.80}; {remedy}")
    if values.shape != (np.size(t),):
        raise ValueError(f"{rule}, got shape {values.shape} for shape {(np.size(t),)}; {remedy}")
    return values.astype(np.float64).reshape(np.shape(t))


def _check_convex(name: str, generator: Generator) -> None:
    grid = np.concatenate([np.linspace(0.0, 3.0, 601), np.geomspace(3.1, 1e3, 200)])
    values, at_one = generator(grid), float(generator(np.array([1.0]))[0])
    if not abs(at_one) <= 1e-9:
        raise ValueError(f"generator of {name!r} must be 0 at t = 1, got {at_one:g}; subtract it")
    if np.isnan(values[0]):
        raise ValueError(
            f"generator of {name!r} must have a value at t = 0, which may be inf, got nan; for t log t use "
            "scipy.special.xlogy(t, t)"
        )
    slopes = np.diff(values[1:]) / np.diff(grid[1:])
    if not np.all(np.isfinite(slopes)) or np.any(np.diff(slopes) < -1e-9 * (1.0 + np.abs(slopes[1:]))):
        raise ValueError(f"generator of {name!r} must be finite and convex on t > 0; D_f is no divergence otherwise")


def _check_slope(name: str, generator: Generator, slope_at_infinity: float) -> None:
    """Compare the stated slope at infinity with what the generator does far out."""
    values = generator(np.array([1e6, 2e6, 1e9, 2e9]))
    if np.isinf(values[-1]):  # beyond floats: steeper than any number
        near_slope, far_slope = 0.0, float(np.finfo(np.float64).max)
    else:
        near_slope, far_slope = (values[1] - values[0]) / 1e6, (values[3] - values[2]) / 1e9
    allowance = 0.01 * (1.0 + abs(far_slope))
    is_levelling = far_slope - near_slope < allowance
    if (
        np.isnan(slope_at_infinity)
        or far_slope > slope_at_infinity + allowance
        or (is_levelling and slope_at_infinity > far_slope + allowance)
    ):
        raise ValueError(
            f"slope_at_infinity of {name!r} must be the limit of f(t)/t, got {slope_at_infinity:g} while f grows with "
            f"slope {far_slope:g} near t = 1e9; with a wrong one, the mass on new clients would be wrong"
        )
