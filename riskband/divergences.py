"""f-divergences as data (math §4).

A divergence is D_f(target || source) = E_source f(density ratio), with f convex and f(1) = 0. Every generator here is
normalised to have its minimum at 1 (adding c·(t - 1) to f changes no divergence), so it is >= 0.

To add one: write its generator, its slope at infinity and the inverse of its derivative. Closed forms of the two worst
cases are optional and only make it faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from riskband.checks import FloatArray, check_budget, check_callable, check_fraction, check_number, check_numbers
from riskband.risks import binary_kl
from riskband.search import bisect

RobustMean = tuple[float, FloatArray]
"""Worst-case mean, and the weights of the worst case, which sum to 1."""


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
    binary_inverse : callable, optional
        (p, budget) -> worst case for an event of probability p, in closed form.
    robust_mean : callable, optional
        (values, weights, budget) -> worst-case mean of a discrete law and its worst-case weights.
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

    def _part(self, target: FloatArray, source: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):  # 0/0 and 0·inf are decided by the two conditions
            new_mass = np.where(target > 0.0, target * self.slope_at_infinity, 0.0)
            return np.where(
                source > 0.0, source * self.generator(target / np.where(source > 0.0, source, 1.0)), new_mass
            )


def custom_divergence(
    name: str,
    generator: Callable[[FloatArray], FloatArray],
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
        Convex f with f(1) = 0, vectorised over arrays of t >= 0.
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
        If the name is that of a built-in divergence, f(1) is not 0, f is not convex on a grid, or the slope
        contradicts f.
    """
    if not isinstance(name, str) or name in DIVERGENCES:
        raise ValueError(f"name must not be that of a built-in divergence, got {name!r}; reports would confuse the two")
    check_callable("generator", generator, remedy="give f as a function of an array, for example numpy.square")
    slope_at_infinity = check_number("slope_at_infinity", slope_at_infinity, remedy="numpy.inf if there is no limit")
    grid = np.concatenate([np.linspace(0.0, 3.0, 601), np.geomspace(3.1, 1e3, 200)])
    with np.errstate(divide="ignore", invalid="ignore"):  # f(0) may be infinite
        values = np.asarray(generator(grid), dtype=np.float64)
    at_one = float(np.asarray(generator(np.array([1.0])))[0])
    if abs(at_one) > 1e-9:
        raise ValueError(f"generator of {name!r} must be 0 at t = 1, got {at_one:g}; subtract it")
    slopes = np.diff(values[1:]) / np.diff(grid[1:])
    if not np.all(np.isfinite(slopes)) or np.any(np.diff(slopes) < -1e-9 * (1.0 + np.abs(slopes[1:]))):
        raise ValueError(f"generator of {name!r} must be finite and convex on t > 0; D_f is no divergence otherwise")
    _check_slope(name, generator, slope_at_infinity)
    step = 1e-6
    ends = np.asarray(generator(np.array([1.0 - step, 1.0 + step])), dtype=np.float64)
    tilt = float((ends[1] - ends[0]) / (2.0 * step))  # a subgradient at 1, also where f has a kink

    def normalised(t: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return np.asarray(generator(t), dtype=np.float64) - tilt * (t - 1.0)

    return FDivergence(
        name=name,
        title=name,
        generator=normalised,
        slope_at_infinity=slope_at_infinity - tilt,
        best_ratio=lambda s: _numeric_best_ratio(normalised, s),
        cvxpy_generator=None if cvxpy_generator is None else lambda cp, t: cvxpy_generator(cp, t) - tilt * (t - 1.0),
    )


def _check_slope(name: str, generator: Callable[[FloatArray], FloatArray], slope_at_infinity: float) -> None:
    """Compare the stated slope at infinity with what the generator does far out."""
    values = np.asarray(generator(np.array([1e6, 2e6, 1e9, 2e9])), dtype=np.float64)
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


def _numeric_best_ratio(generator: Callable[[FloatArray], FloatArray], slope: FloatArray) -> FloatArray:
    """Maximise the concave s·t - f(t) by ternary search over u = t / (1 + t)."""
    low, high = np.zeros_like(slope), np.full_like(slope, 1.0 - 1e-9)

    def gain(u: FloatArray) -> FloatArray:
        t = u / (1.0 - u)
        return slope * t - generator(t)

    for _ in range(90):
        left, right = (2.0 * low + high) / 3.0, (low + 2.0 * high) / 3.0
        is_rising = gain(left) < gain(right)
        low, high = np.where(is_rising, left, low), np.where(is_rising, high, right)
    middle = 0.5 * (low + high)
    return np.asarray(middle / (1.0 - middle))


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
        Reweighting inside and outside the event only is optimal (data processing). Source: math §4.

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
    """Worst-case mean of a discrete law over the divergence ball, and the weights that attain it.

    Parameters
    ----------
    values, weights : ndarray, shape (num_atoms,)
        Risks in [0, 1] and their probabilities; the largest risk must be what a new client could have at worst.
    divergence : FDivergence
        The divergence.
    budget : float
        Size of the ball, >= 0.

    Returns
    -------
    value : float
        From the dual, so it is never below the true worst case by more than rounding.
    worst : ndarray, shape (num_atoms,)
        Weights of the worst case, with sum 1.

    Notes
    -----
    For any multiplier > 0 and shift: E_target R <= multiplier·budget + shift + multiplier·E f*((R - shift)/multiplier).
    Source: math §4.
    """
    if budget == 0.0:
        return float(values @ weights), weights
    if divergence.robust_mean is not None:
        value, worst = divergence.robust_mean(values, weights, budget)
    else:
        value, worst = _dual_robust_mean(values, weights, divergence, budget)
    return min(value, float(values.max())), worst


def _dual_robust_mean(values: FloatArray, weights: FloatArray, divergence: FDivergence, budget: float) -> RobustMean:
    """Two-dimensional dual: the shift by bisection on E ratio = 1, the multiplier by a bounded scalar search."""
    levels, atom_of = np.unique(values, return_inverse=True)  # ties are solved once
    masses, top = np.bincount(atom_of, weights), float(levels[-1])

    def ratio(shift: float, multiplier: float) -> FloatArray:
        with np.errstate(over="ignore"):  # an infinite ratio only says that the shift is too low
            return np.where(masses > 0.0, divergence.best_ratio((levels - shift) / multiplier), 0.0)

    def best_shift(multiplier: float) -> float:
        def is_too_low(shift: FloatArray) -> npt.NDArray[np.bool_]:
            beyond_slope = (top - shift) / multiplier > divergence.slope_at_infinity
            return np.asarray(beyond_slope or masses @ ratio(float(shift), multiplier) > 1.0)

        return float(bisect(is_too_low, low=levels[0], high=top)[1])

    def dual(log_multiplier: float) -> float:
        multiplier = float(np.exp(log_multiplier))
        shift = best_shift(multiplier)
        best = ratio(shift, multiplier)
        conjugate = (levels - shift) / multiplier * best - divergence.generator(best)
        return float(multiplier * (budget + masses @ np.where(masses > 0.0, conjugate, 0.0)) + shift)

    log_multiplier, value = _smallest(dual, -14.0, np.log(10.0 * (1.0 + 1.0 / np.sqrt(budget))))
    multiplier = float(np.exp(log_multiplier))
    worst = weights * ratio(best_shift(multiplier), multiplier)[atom_of]
    worst[np.argmax(atom_of)] += max(1.0 - worst.sum(), 0.0)  # on clients the source never shows, for a finite slope
    return value, worst / worst.sum()


def _smallest(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return the argument and value of the minimum of a unimodal function; any value found is a valid dual bound."""
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return float(found.x), float(found.fun)


def _kl_robust_mean(values: FloatArray, weights: FloatArray, budget: float) -> RobustMean:
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


def _chi2_robust_mean(values: FloatArray, weights: FloatArray, budget: float) -> RobustMean:
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


def _tv_robust_mean(values: FloatArray, weights: FloatArray, budget: float) -> RobustMean:
    """Move the budget from the lowest risks to the largest."""
    moved = min(budget, 1.0)
    order = np.argsort(values, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    kept = np.empty_like(weights)
    kept[order] = np.clip(before + weights[order] - moved, 0.0, weights[order])
    kept[order[-1]] += 1.0 - kept.sum()
    return float(kept @ values), kept


def _kl_binary_inverse(p: FloatArray, budget: FloatArray) -> FloatArray:
    worst = bisect(lambda q: binary_kl(q, p) <= budget, low=p, high=np.ones_like(p))[1]
    with np.errstate(divide="ignore"):
        is_whole = -np.log(p) <= budget
    return np.where(p == 0.0, 0.0, np.where(is_whole, 1.0, worst))


def _hellinger_binary_inverse(p: FloatArray, budget: FloatArray) -> FloatArray:
    """With p = sin² a, the divergence of sin² b is 2 - 2 cos(b - a)."""
    turn = np.arccos(np.clip(1.0 - budget / 2.0, -1.0, 1.0))
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
    robust_mean=_kl_robust_mean,
    cvxpy_generator=lambda cp, t: cp.kl_div(t, 1.0),
)
CHI2 = FDivergence(
    name="chi2",
    title="χ² divergence",
    generator=lambda t: np.square(t - 1.0),
    slope_at_infinity=np.inf,
    best_ratio=lambda s: np.maximum(1.0 + s / 2.0, 0.0),
    binary_inverse=lambda p, budget: p + np.sqrt(budget * p * (1.0 - p)),
    robust_mean=_chi2_robust_mean,
    cvxpy_generator=lambda cp, t: cp.square(t - 1.0),
)
TV = FDivergence(
    name="tv",
    title="total variation",
    generator=lambda t: np.abs(t - 1.0) / 2.0,
    slope_at_infinity=0.5,
    best_ratio=lambda s: np.where(s > 0.5, np.inf, np.where(s < -0.5, 0.0, 1.0)),
    binary_inverse=lambda p, budget: p + budget,
    robust_mean=_tv_robust_mean,
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
    if not isinstance(divergence, str) or divergence not in DIVERGENCES:
        known = ", ".join(sorted(DIVERGENCES))
        raise ValueError(f"divergence must be one of {known} or an FDivergence, got {divergence!r:.80}")
    return DIVERGENCES[divergence]
