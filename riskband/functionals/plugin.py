"""Dispersion bounds as [DC] publishes them: every integral takes its own worst side of the band (math §5.4).

They are valid, but no single law has both worst sides, so they can be far too wide; `method="sharp"` is never wider.
Errata of [DC] that are corrected here: the upper bound of a Lorenz curve is A/(A + B), never above 1; the mean range is
k∫q(p)[p^{k-1} - (1-p)^{k-1}]dp (example 8 is wrong). The lower bounds, and what the paper leaves to the reader (entropy
of orders up to 1, top share, quantiles), are made in the same way. Nothing here is clipped to the range of the measure,
and all but the last two kinds need limits that do not allow every risk to be 0 (∫l > 0).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from riskband.checks import FloatArray
from riskband.functionals.extremal import Curve, MomentRule
from riskband.functionals.laws import QuantileLimits

PlugIn = Callable[[QuantileLimits], tuple[float, float]]


def gini_plug_in(limits: QuantileLimits) -> tuple[float, float]:
    """2∫pl/∫u - 1 and 2∫pu/∫l - 1. [DC] examples 1 and 3."""
    low, high = _means(limits)
    low_part, high_part = _integrals(limits, lambda p: p**2)
    return low_part / high - 1.0, high_part / low - 1.0


def extended_gini_plug_in(aversion: float) -> PlugIn:
    """1 - ν∫(1-p)^{ν-1}u/∫l and 1 - ν∫(1-p)^{ν-1}l/∫u. [DC] appendix B.1."""

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        low, high = _means(limits)
        low_part, high_part = _integrals(limits, lambda p: 1.0 - (1.0 - p) ** aversion)
        return 1.0 - high_part / low, 1.0 - low_part / high

    return plug_in


def lorenz_plug_in(limits: QuantileLimits, level: float) -> tuple[float, float]:
    """∫_0^t l/∫u and A/(A + B), A = ∫_0^t u, B = ∫_t^1 l. [DC] definition 5, with its erratum corrected."""
    low, high = _means(limits)
    low_start, high_start = _integrals(limits, lambda p: np.minimum(p, level))
    return low_start / high, high_start / (high_start + low - low_start)


def top_share_plug_in(level: float) -> PlugIn:
    """One minus the Lorenz curve at `level`."""

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        low, high = lorenz_plug_in(limits, level)
        return 1.0 - high, 1.0 - low

    return plug_in


def atkinson_plug_in(rule: MomentRule, order: float) -> PlugIn:
    """1 - M(u)/∫l and 1 - M(l)/∫u, M the power mean of the order (geometric at 0). [DC] example 4."""

    def power_mean(side: FloatArray, limits: QuantileLimits) -> float:
        with np.errstate(divide="ignore", over="ignore"):
            total = np.float64(limits.integral(rule.moment(side)))
            return float(np.exp(total) if order == 0.0 else total ** (1.0 / order))

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        low, high = _means(limits)
        return 1.0 - power_mean(limits.upper, limits) / low, 1.0 - power_mean(limits.lower, limits) / high

    return plug_in


def entropy_plug_in(rule: MomentRule, order: float) -> PlugIn:
    """Extremes over all pairs of a mean and a moment between their bounds. [DC] appendix B.2."""

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        low, high = _means(limits)
        with np.errstate(divide="ignore", over="ignore"):
            totals = _moment_bounds(limits, rule.moment, turns=order == 1.0)
            # Monotone in the moment, and in the mean too, except that Theil's M/m - log m peaks at m = -M.
            means = np.array([[low, high, np.clip(-total, low, high)] for total in totals])
            corners = rule.value(totals[:, None], means)
        return float(np.min(corners)), float(np.max(corners))

    return plug_in


def variation_plug_in(limits: QuantileLimits) -> tuple[float, float]:
    """sqrt(∫l²/(∫u)² - 1) and sqrt(∫u²/(∫l)² - 1): as the entropy of order 2."""
    low, high = _means(limits)
    ratios = np.array([limits.integral(limits.lower**2) / high**2, limits.integral(limits.upper**2) / low**2])
    lower, upper = np.sqrt(np.maximum(ratios - 1.0, 0.0))
    return float(lower), float(upper)


def hoover_plug_in(limits: QuantileLimits) -> tuple[float, float]:
    """∫|q - m|/(2m), both ends of the absolute value and of m taken apart. [DC] appendix B.3."""
    low, high = _means(limits)
    most = np.maximum(np.abs(limits.upper - low), np.abs(limits.lower - high))
    least = np.maximum(np.maximum(limits.lower - high, low - limits.upper), 0.0)
    return limits.integral(least) / (2.0 * high), limits.integral(most) / (2.0 * low)


def mean_range_plug_in(num_clients: int) -> PlugIn:
    """E max and E min apart: k∫lp^{k-1} - k∫u(1-p)^{k-1}, and with the sides exchanged. [DC] example 8, corrected."""

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        low_max, high_max = _integrals(limits, lambda p: p**num_clients)
        low_min, high_min = _integrals(limits, lambda p: 1.0 - (1.0 - p) ** num_clients)
        return low_max - high_min, high_max - low_min

    return plug_in


def quantile_plug_in(low: float, high: float, compare: Callable[[float, float], float]) -> PlugIn:
    """A function that falls in the lower and rises in the upper quantile, each at its own worst side."""

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        first, second = (np.searchsorted(limits.levels, level, side="left") for level in (low, high))
        least = compare(float(limits.upper[first]), float(limits.lower[second]))
        return least, compare(float(limits.lower[first]), float(limits.upper[second]))

    return plug_in


def _means(limits: QuantileLimits) -> tuple[float, float]:
    return limits.integral(limits.lower), limits.integral(limits.upper)


def _integrals(limits: QuantileLimits, cumulative: Curve) -> tuple[float, float]:
    """∫wl and ∫wu for a weight w >= 0 with the given integral from 0 to p."""
    masses = np.diff(cumulative(limits.edges))
    return float(np.sum(masses * limits.lower)), float(np.sum(masses * limits.upper))


def _moment_bounds(limits: QuantileLimits, moment: Curve, *, turns: bool) -> FloatArray:
    """Smallest and largest integral of g between the sides; g is monotone, or x log x, which turns at 1/e."""
    at_lower, at_upper = moment(limits.lower), moment(limits.upper)
    least = np.minimum(at_lower, at_upper)
    if turns:
        least = np.where((limits.lower < np.exp(-1.0)) & (np.exp(-1.0) < limits.upper), -np.exp(-1.0), least)
    return np.array([limits.integral(least), limits.integral(np.maximum(at_lower, at_upper))])
