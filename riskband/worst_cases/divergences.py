"""f-divergences as data (math §3).

A divergence is D_f(target || source) = E_source f(density ratio), with f convex and f(1) = 0. Every generator here is
normalised to have its minimum at 1 (adding c·(t - 1) to f changes no divergence), so it is >= 0.

To add one: write its generator, its slope at infinity and the inverse of its derivative. Closed forms of the two worst
cases are optional and only make it faster. A user's own needs none of this, see `custom_divergence` (math §3.3): its
function is read once, at about 170,000 points, and replaced by a convex polygon that lies nowhere above it. The ball of
the polygon holds that of the function, so a worst case over it is a valid bound, and no budget needs another call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its modules on use
from scipy.special import xlog1py, xlogy

from riskband.checks import (
    FloatArray,
    as_spelled,
    check_budget,
    check_callable,
    check_fraction,
    check_number,
    check_numbers,
)
from riskband.search import bisect

Generator = Callable[[FloatArray], FloatArray]
RobustMean = tuple[float, FloatArray]
"""Worst-case mean, and the weights of the worst case, which sum to 1."""

_STEP = 5e-4  # between neighbouring points, relative to the distance from 0 and from 1
_FINEST = 1e-6  # absolute, next to 1: the differences of f over shorter steps are rounding
_LEAST_COST = 2e-9  # multipliers whose budget costs less add nothing that could be seen
_SHIFT_TOLERANCE = 1e-12  # the dual is flat around its best shift: its error is of second order
_ROUNDING = 1e-14  # the polygon is lowered by so much, relative to t and f


@dataclass(frozen=True, eq=False)
class FDivergence:
    """An f-divergence.

    Attributes
    ----------
    name : str
        What the user types, and what recipes store.
    title : str
        For reports.
    generator : callable
        f, vectorised over t >= 0, with f >= 0 = f(1).
    slope_at_infinity : float
        Limit of f(t)/t; finite when the target may hold clients that the source never shows (then mass up to
        budget / slope may sit there), `inf` when it may not.
    best_ratio : callable
        s -> argmax over t >= 0 of s·t - f(t), vectorised: the inverse of f'. `inf` where there is no maximum.
        Only `dual_robust_mean` reads it, so for a divergence with its own `robust_mean` an approximation will do.
    binary_inverse : callable, optional
        (p, budget) -> worst case for an event of probability p, in closed form.
    robust_mean : callable, optional
        (values, weights, budget) -> worst-case mean of a discrete distribution and its worst-case weights.
    cvxpy_generator : callable, optional
        (cvxpy, expression) -> f(expression), for the reference solver. The module is an argument so that cvxpy is
        loaded only where it is used.
    """

    name: str
    title: str
    generator: Callable[[FloatArray], FloatArray]
    slope_at_infinity: float
    best_ratio: Callable[[FloatArray], FloatArray]
    binary_inverse: Callable[[FloatArray, FloatArray], FloatArray] | None = None
    robust_mean: Callable[[FloatArray, FloatArray, float], RobustMean] | None = None
    cvxpy_generator: Callable[[Any, Any], Any] | None = None

    def binary(self, target: FloatArray, source: FloatArray) -> FloatArray:
        """Divergence of Bernoulli(target) from Bernoulli(source), elementwise."""
        return self._part(target, source) + self._part(1.0 - target, 1.0 - source)

    def between(self, target: FloatArray, source: FloatArray) -> FloatArray:
        """Divergence of one discrete distribution from another, over the last axis of their probabilities."""
        return np.asarray(self._part(target, source).sum(axis=-1))

    def _part(self, target: FloatArray, source: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):  # 0/0 and 0·inf are decided by the two conditions
            new_mass = np.where(target > 0.0, target * self.slope_at_infinity, 0.0)
            return np.where(
                source > 0.0, source * self.generator(target / np.where(source > 0.0, source, 1.0)), new_mass
            )


def binary_worst_case(p: npt.ArrayLike, *, divergence: str | FDivergence, budget: npt.ArrayLike) -> FloatArray:
    """Largest probability an event can have on a target network within the budget: inv_f(p, budget).

    Parameters
    ----------
    p : array_like
        Probability of the event on the source network, in [0, 1].
    divergence : str or FDivergence
        A name in `DIVERGENCES`, or your own.
    budget : array_like
        Size of the ball, >= 0; broadcast against `p`.

    Returns
    -------
    ndarray
        max{q >= p : p f(q/p) + (1 - p) f((1 - q)/(1 - p)) <= budget}, in [p, 1], from the safe end of the search.
        Reweighting inside and outside the event only is optimal (data processing). Source: math §3.1.

    Raises
    ------
    ValueError
        If `p` or `budget` is out of range, or the divergence is unknown.
    """
    probability = check_fraction("p", p)
    size = check_numbers("budget", budget, remedy="0 means no shift")
    check_budget(size.ravel())
    probability, size = np.broadcast_arrays(probability, size)
    f = resolve_divergence(divergence)
    if f.binary_inverse is not None:
        worst = f.binary_inverse(probability, size)
    else:
        worst = bisect(lambda q: f.binary(q, probability) <= size, low=probability, high=np.ones_like(probability))[1]
    return np.where(size == 0.0, probability, np.clip(worst, probability, 1.0))


def robust_mean(values: FloatArray, weights: FloatArray, *, divergence: FDivergence, budget: float) -> RobustMean:
    """Worst-case mean of a discrete distribution over the divergence ball, and the weights that attain it.

    `values` are risks in [0, 1], shape (num_atoms,), the largest being what a new client could have at worst; `weights`
    are their probabilities; budget >= 0. The value comes from the dual, so it is never below the true worst case by
    more than rounding, also where a search ends early: for any multiplier > 0 and shift,
    E_target R <= multiplier·budget + shift + multiplier·E f*((R - shift)/multiplier). Source: math §3.2.
    """
    if budget == 0.0:
        return float(values @ weights), weights
    if divergence.robust_mean is not None:
        value, worst = divergence.robust_mean(values, weights, budget)
    else:
        value, worst = dual_robust_mean(
            values,
            weights,
            budget,
            generator=divergence.generator,
            best_ratio=divergence.best_ratio,
            slope_at_infinity=divergence.slope_at_infinity,
        )
    return min(value, float(values.max())), worst


def robust_tail_mean(
    values: FloatArray, weights: FloatArray, *, level: float, divergence: FDivergence, budget: float
) -> float:
    """Worst-case mean of the worst 1 - level of a distribution; arguments as for `robust_mean`, level in [0, 1).

    A tail mean is the least over t of t + E (R - t)_+ / (1 - level), and so is the largest of those within the budget,
    with the worst-case mean in place of E, by Sion's minimax theorem; each t bounds it.
    """

    def bound_at(cut: float) -> float:
        excesses = np.maximum(values - cut, 0.0)
        return cut + robust_mean(excesses, weights, divergence=divergence, budget=budget)[0] / (1.0 - level)

    top = float(values.max())
    return min(_smallest(bound_at, 0.0, top)[1], bound_at(0.0), top)


def dual_robust_mean(
    values: FloatArray,
    weights: FloatArray,
    budget: float,
    *,
    generator: Callable[[FloatArray], FloatArray],
    best_ratio: Callable[[FloatArray], FloatArray],
    slope_at_infinity: float,
) -> RobustMean:
    """Two-dimensional dual: the shift by Brent's method on E ratio = 1, the multiplier by a bounded scalar search.

    The functions and the slope are those of an `FDivergence`; the bound is valid only if `best_ratio` attains its
    maximum. Returns the smallest multiplier·budget + shift + multiplier·E f*((R - shift)/multiplier) found.
    """
    levels, atom_of = np.unique(values, return_inverse=True)  # ties are solved once
    masses = np.bincount(atom_of, weights).astype(np.float64)
    top = float(levels[-1])

    def ratio(shift: float, multiplier: float) -> FloatArray:
        with np.errstate(over="ignore"):  # an infinite ratio only says that the shift is too low
            return np.where(masses > 0.0, best_ratio((levels - shift) / multiplier), 0.0)

    def least_shift(multiplier: float) -> float:
        return max(float(levels[0]), top - multiplier * slope_at_infinity)

    def best_shift(multiplier: float) -> float:
        def log_mean_ratio(shift: float) -> float:  # of a far smaller range than the mean itself
            return float(np.log(np.clip(masses @ ratio(shift, multiplier), 1e-300, 1e300)))

        low = least_shift(multiplier)
        if log_mean_ratio(low) <= 0.0:  # the rest of the mass is on clients that the source never shows
            return low
        if log_mean_ratio(top) >= 0.0:
            return top
        return float(scipy.optimize.brentq(log_mean_ratio, low, top, xtol=_SHIFT_TOLERANCE, disp=False))

    def dual(log_multiplier: float) -> float:
        multiplier = float(np.exp(log_multiplier))
        shift = best_shift(multiplier)
        best = ratio(shift, multiplier)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf at an infinite ratio
            conjugate = (levels - shift) / multiplier * best - generator(best)
        value = float(multiplier * (budget + masses @ np.where(masses > 0.0, conjugate, 0.0)) + shift)
        return value if np.isfinite(value) else np.inf

    def worst_weights(multiplier: float) -> FloatArray:
        shift, step = best_shift(multiplier), max(1e-9 * multiplier, 4.0 * _SHIFT_TOLERANCE)
        above, below = (  # f may have corners, where the ratio jumps
            np.minimum(ratio(at, multiplier), 1.0 / np.maximum(masses, 1e-300))  # no client can weigh more than 1
            for at in (max(shift - step, least_shift(multiplier)), shift + step)
        )
        mixed = np.multiply(weights, _between(above, below, masses, 1.0)[atom_of])
        mixed[np.argmax(atom_of)] += max(1.0 - mixed.sum(), 0.0)  # on clients that the source never shows
        return np.asarray(mixed / mixed.sum())

    least, largest = _LEAST_COST / max(budget, 1.0), 10.0 * (1.0 + 1.0 / np.sqrt(budget))
    log_multiplier, value = _smallest(dual, float(np.log(least)), float(np.log(largest)))
    looser, tighter = (worst_weights(float(np.exp(log_multiplier + step))) for step in (-1e-8, 1e-8))
    return value, _between(looser, tighter, values, value)


def _between(larger: FloatArray, smaller: FloatArray, weights: FloatArray, goal: float) -> FloatArray:
    """Mix two vectors so that the weighted sum comes as close to the goal as it can."""
    high, low = float(weights @ larger), float(weights @ smaller)
    share = min(max((goal - low) / max(high - low, 1e-300), 0.0), 1.0)
    return share * larger + (1.0 - share) * smaller


def kl_robust_mean(values: FloatArray, weights: FloatArray, budget: float) -> RobustMean:
    """Inf over multipliers of multiplier·budget + multiplier·log E exp(R/multiplier)."""
    top = values[weights > 0.0].max()
    top_weights = np.where(values == top, weights, 0.0)
    if -np.log(top_weights.sum()) <= budget:  # all mass fits on the largest risk
        return float(top), top_weights / top_weights.sum()
    mean = float(values @ weights)
    centred = np.where(weights > 0.0, values - mean, 0.0)
    largest = float(centred.max())

    def dual(log_multiplier: float) -> float:
        multiplier = np.exp(log_multiplier)
        scaled = centred / multiplier
        if largest < multiplier:  # without cancellation when the multiplier is large
            log_mean = np.log1p(weights @ np.expm1(scaled))
        else:
            log_mean = scaled.max() + np.log(weights @ np.exp(scaled - scaled.max()))
        return float(multiplier * (budget + log_mean))

    log_multiplier, excess = _smallest(dual, -14.0, np.log(10.0 * (1.0 + 1.0 / np.sqrt(budget))))
    worst = weights * np.exp((centred - largest) / np.exp(log_multiplier))
    return mean + excess, worst / worst.sum()


def chi2_robust_mean(values: FloatArray, weights: FloatArray, budget: float) -> RobustMean:
    """Inf over shifts of shift + sqrt(1 + budget)·sqrt(E (R - shift)_+^2)."""
    mean = float(values @ weights)
    deviation = float(np.sqrt(weights @ (values - mean) ** 2))
    least, top = (float(values[weights > 0.0].min()), float(values[weights > 0.0].max()))
    if np.sqrt(budget) * (mean - least) <= deviation:  # no weight reaches 0: closed form, exact for small budgets
        tilt = np.sqrt(budget) / deviation * (values - mean) if deviation > 0.0 else 0.0
        return mean + float(np.sqrt(budget)) * deviation, weights * (1.0 + tilt)

    def dual(shift: float) -> float:
        excess = np.maximum(values - shift, 0.0)
        return float(shift + np.sqrt((1.0 + budget) * (weights @ excess**2)))

    shift, value = _smallest(dual, least, top)
    worst = weights * np.maximum(values - shift, 0.0)
    return value, worst / worst.sum()


def tv_robust_mean(values: FloatArray, weights: FloatArray, budget: float) -> RobustMean:
    """Move the budget from the lowest risks to the largest."""
    moved = min(budget, 1.0)
    order = np.argsort(values, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    kept = np.empty_like(weights)
    kept[order] = np.clip(before + weights[order] - moved, 0.0, weights[order])
    kept[order[-1]] += 1.0 - kept.sum()
    return float(kept @ values), kept


def _smallest(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return the argument and value of the minimum of a unimodal function; any value found is a valid dual bound."""
    found = scipy.optimize.minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return float(found.x), float(found.fun)


def _kl_binary_inverse(p: FloatArray, budget: FloatArray) -> FloatArray:
    def of_moved(q: FloatArray) -> FloatArray:
        # By relative changes: from the logarithms of q and p themselves a small budget cannot be seen.
        return np.asarray(xlog1py(q, (q - p) / p) + xlog1py(1.0 - q, (p - q) / (1.0 - p)))

    with np.errstate(divide="ignore", invalid="ignore"):  # where p is 0 or 1
        worst = bisect(lambda q: of_moved(q) <= budget, low=p, high=np.ones_like(p))[1]
    return np.where(p == 0.0, 0.0, worst)


def _hellinger_binary_inverse(p: FloatArray, budget: FloatArray) -> FloatArray:
    """With p = sin² a, the divergence of sin² b is 2 - 2 cos(b - a) = 4 sin²((b - a)/2)."""
    turn = 2.0 * np.arcsin(np.minimum(np.sqrt(budget) / 2.0, 1.0))  # not by the cosine, which loses small budgets
    return np.asarray(np.sin(np.minimum(np.arcsin(np.sqrt(p)) + turn, np.pi / 2)) ** 2)


def _hellinger_best_ratio(slope: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.where(slope < 1.0, 1.0 / np.square(1.0 - np.minimum(slope, 1.0)), np.inf)


KL = FDivergence(
    name="kl",
    title="KL divergence",
    generator=lambda t: xlogy(t, t) - t + 1.0,
    slope_at_infinity=np.inf,
    best_ratio=np.exp,
    binary_inverse=_kl_binary_inverse,
    robust_mean=kl_robust_mean,
    cvxpy_generator=lambda cp, t: cp.kl_div(t, 1.0),
)
CHI2 = FDivergence(
    name="chi2",
    title="χ² divergence",
    generator=lambda t: np.square(t - 1.0),
    slope_at_infinity=np.inf,
    best_ratio=lambda s: np.maximum(1.0 + s / 2.0, 0.0),
    binary_inverse=lambda p, budget: p + np.sqrt(budget * p * (1.0 - p)),
    robust_mean=chi2_robust_mean,
    cvxpy_generator=lambda cp, t: cp.square(t - 1.0),
)
TV = FDivergence(
    name="tv",
    title="total variation",
    generator=lambda t: np.abs(t - 1.0) / 2.0,
    slope_at_infinity=0.5,
    best_ratio=lambda s: np.where(s > 0.5, np.inf, np.where(s < -0.5, 0.0, 1.0)),
    binary_inverse=lambda p, budget: p + budget,
    robust_mean=tv_robust_mean,
    cvxpy_generator=lambda cp, t: cp.abs(t - 1.0) / 2.0,
)
HELLINGER2 = FDivergence(
    name="hellinger2",
    title="squared Hellinger distance",
    generator=lambda t: np.square(np.sqrt(t) - 1.0),
    slope_at_infinity=1.0,
    best_ratio=_hellinger_best_ratio,
    binary_inverse=_hellinger_binary_inverse,
    cvxpy_generator=lambda cp, t: t + 1.0 - 2.0 * cp.sqrt(t),
)

DIVERGENCES: Mapping[str, FDivergence] = {f.name: f for f in (KL, CHI2, TV, HELLINGER2)}
"""The built-in divergences by name."""


def resolve_divergence(divergence: str | FDivergence) -> FDivergence:
    """Return the divergence of that name, or the one given; raises ValueError for an unknown name."""
    if isinstance(divergence, FDivergence):
        return divergence
    name = as_spelled(divergence, DIVERGENCES)
    if name is None:
        known = ", ".join(sorted(DIVERGENCES))
        raise ValueError(f"divergence must be one of {known} or an FDivergence, got {divergence!r:.80}")
    return DIVERGENCES[name]


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
    """A convex function of t >= 0 that is linear between its corners, and beyond the last one."""

    corners: FloatArray  # increasing, the first is 0; shape (num_corners,), as all
    heights: FloatArray  # the function there
    slopes: FloatArray  # to the right of each corner; nondecreasing

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
    """Return a convex polygon that is nowhere above a convex f with f >= 0 = f(1), called once, and hardly below it.

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
