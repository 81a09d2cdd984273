"""Worst-case means of a discrete distribution over a divergence ball, from their duals (math §3.2).

Each takes the risks and probabilities of the atoms, shape (num_atoms,), and the size of the ball, > 0. What it returns
comes from the dual, whose every point is an upper bound, so a search that ends early costs sharpness, never validity.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy  # loads its modules on use

from riskband.checks import FloatArray

RobustMean = tuple[float, FloatArray]
"""Worst-case mean, and the weights of the worst case, which sum to 1."""

_LEAST_COST = 2e-9  # multipliers whose budget costs less add nothing that could be seen
_SHIFT_TOLERANCE = 1e-12  # the dual is flat around its best shift: its error is of second order


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
        with np.errstate(invalid="ignore"):  # inf - inf at an infinite ratio
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
