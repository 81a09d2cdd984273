"""The most equal and the most unequal members of a band, exactly, and [DC]'s plug-in bounds (math §5.1 and math §5.4).

A two-sided band says l(p) <= q(p) <= u(p) for the quantile function q of the client risks, with step functions l, u.
Among its members of one mean, `l below a level, u above it` is the largest in convex order and `clip(centre, l, u)` the
smallest. So a measure that grows in convex order has its extremes in these two families of one parameter each. Between
two knots every measure here is a ratio of simple functions of the parameter, and its stationary points are in closed
form: the searches look at all knots and all stationary points, never at a grid. Proofs: math §5.1 and math §5.2.

The plug-in bounds are those that [DC] publishes: every integral takes its own worst side of the band. They are valid,
but no single distribution has both worst sides, so they can be far too wide. Corrected errata: the upper bound of a
Lorenz curve is A/(A + B), never above 1; the mean range is k∫q(p)[p^{k-1} - (1-p)^{k-1}]dp (example 8 is wrong). The
lower bounds, and what the paper leaves to the reader (entropy of orders up to 1, top share, quantiles), are made in the
same way. Nothing is clipped to the range of the measure, and all but those of the mean range and of quantiles need
limits that do not allow every risk to be 0 (∫l > 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from riskband.bands.local_steps import sums_from
from riskband.checks import FloatArray
from riskband.functionals.distributions import QuantileLimits, RiskDistribution, sums_before

Curve = Callable[[FloatArray], FloatArray]
PlugIn = Callable[[QuantileLimits], tuple[float, float]]


def linear_cut(
    limits: QuantileLimits, of_distribution: Callable[[RiskDistribution], float], cut_at: Callable[[float], float]
) -> float:
    """Cut of the most unequal member for ∫wq, over the mean m if relative, by Dinkelbach's iteration; a few steps.

    `cut_at` is the level at which the nondecreasing weight w passes a value. A value v can be exceeded exactly if some
    member has ∫(w - v)q > 0; the integral is largest for the cut where w passes v. From any start this climbs to the
    supremum.
    """
    cut = cut_at(0.0)
    if limits.allow_all_zero:  # the iteration would creep towards the cut 1, where the mean is 0
        return cut
    value = of_distribution(limits.most_unequal(cut))
    while True:
        next_cut = cut_at(value)
        next_value = of_distribution(limits.most_unequal(next_cut))
        if next_value <= value:
            return cut
        cut, value = next_cut, next_value


def linear_centre(limits: QuantileLimits, cumulative: Curve, *, is_relative: bool) -> float:
    """Centre of the most equal member for ∫wq (over the mean, if relative), w with the given integral from 0 to p.

    Between two knots both integrals are linear in the centre and their ratio is monotone, so a knot is best.
    """
    intervals = limits.centres
    sums = cumulative(limits.edges)
    masses = np.diff(sums)
    total = intervals.rest(masses * limits.lower, masses * limits.upper)
    total += intervals.low * (sums[intervals.last] - sums[intervals.first])
    if is_relative:
        total = _relative(total, intervals.means, at_zero=float(sums[-1]))
    return float(intervals.low[np.argmin(total)])


@dataclass(frozen=True)
class MomentRule:
    """A relative measure that is a function of the mean m and of one other moment M = E g(R), and how to search it.

    `moment` is g, vectorised; `value` the measure from arrays (M, m), where m > 0. The measure is stationary at
    (M + s·dM, m + s·dm) for s = `stationary_step` of (M, m, dM, dm), and at (M + w·g(c), m + w·c) for
    c = `stationary_centre` of (M, m, w); either is any number if there is no such point.
    """

    moment: Curve
    value: Callable[[FloatArray, FloatArray], FloatArray]
    stationary_step: Callable[[FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]
    stationary_centre: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]

    def of_distribution(self, distribution: RiskDistribution) -> float:
        """Measure of a distribution, scaled to mean 1, where no power overflows; 0 for the distribution of risk 0."""
        if distribution.mean == 0.0:
            return 0.0
        with np.errstate(divide="ignore", over="ignore"):
            moment = np.sum(distribution.weights * self.moment(distribution.risks / distribution.mean))
            return float(self.value(np.asarray(moment), np.asarray(1.0)))

    def guarded_value(self, moment: FloatArray, mean: FloatArray) -> FloatArray:
        """`value`, and 0 where the mean is 0."""
        return np.where(mean > 0.0, self.value(moment, np.where(mean > 0.0, mean, 1.0)), 0.0)


def power_rule(order: float, value: Callable[[FloatArray, FloatArray], FloatArray]) -> MomentRule:
    """Measures that are functions of E R^a / m^a, a = `order`, neither 0 nor 1."""
    return MomentRule(
        moment=lambda x: x**order,
        value=value,
        stationary_step=lambda total, mean, d_total, d_mean: (
            (d_total * mean - order * d_mean * total) / ((order - 1.0) * d_total * d_mean)
        ),
        stationary_centre=lambda total, mean, mass: (total / mean) ** (1.0 / (order - 1.0)),
    )


def log_rule(value: Callable[[FloatArray, FloatArray], FloatArray]) -> MomentRule:
    """Measures that are functions of log m - E log R."""
    return MomentRule(
        moment=np.log,
        value=value,
        stationary_step=lambda total, mean, d_total, d_mean: 1.0 / d_total - mean / d_mean,
        stationary_centre=lambda total, mean, mass: mean / (1.0 - mass),
    )


THEIL_RULE = MomentRule(
    moment=lambda x: np.where(x > 0.0, x * np.log(np.where(x > 0.0, x, 1.0)), 0.0),
    value=lambda total, mean: total / mean - np.log(mean),
    stationary_step=lambda total, mean, d_total, d_mean: (d_total * mean - total * d_mean - mean * d_mean) / d_mean**2,
    stationary_centre=lambda total, mean, mass: np.exp(total / mean),
)


def moment_cut(limits: QuantileLimits, rule: MomentRule) -> float:
    """Cut of the most unequal member: the best of all ends of steps and all stationary points inside them."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        at_lower, at_upper = rule.moment(limits.lower), rule.moment(limits.upper)
        if not np.isfinite(at_lower[0]):  # risk 0 makes the measure as large as can be
            return float(limits.levels[0] / 2)
        moment = sums_before(limits.widths * at_lower) + sums_from(limits.widths * at_upper)
        mean = sums_before(limits.widths * limits.lower) + sums_from(limits.widths * limits.upper)
        d_moment, d_mean = at_lower - at_upper, limits.lower - limits.upper
        step = rule.stationary_step(moment[:-1], mean[:-1], d_moment, d_mean)
        step = _inside(step, np.zeros_like(step), limits.widths)
        inside = rule.guarded_value(moment[:-1] + step * d_moment, mean[:-1] + step * d_mean)
        values = np.concatenate([rule.guarded_value(moment, mean), inside])
    cuts = np.concatenate([limits.edges, limits.edges[:-1] + step])
    return float(min(cuts[np.nanargmax(values)], 1.0))


def moment_centre(limits: QuantileLimits, rule: MomentRule) -> float:
    """Centre of the most equal member: where all risks may be equal, also all 0, one that makes them so."""
    centre = _best_centre(limits, rule)
    least, most = float(limits.lower[-1]), float(limits.upper[0])
    return min(max(centre, least), most) if least <= most else centre


def _best_centre(limits: QuantileLimits, rule: MomentRule) -> float:
    """The best of all knots and all stationary points between them, up to rounding."""
    intervals = limits.centres
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        at_lower, at_upper = rule.moment(limits.lower), rule.moment(limits.upper)
        if not np.isfinite(at_upper[0]):  # every member has clients of risk 0
            return float(limits.upper[-1])
        moment = intervals.rest(limits.widths * at_lower, limits.widths * at_upper)
        mean = intervals.means - intervals.width * intervals.low
        between = _inside(rule.stationary_centre(moment, mean, intervals.width), intervals.low, intervals.high)
        centres = np.stack([intervals.low, between])
        mass = np.where(intervals.width > 0.0, intervals.width * rule.moment(centres), 0.0)
        values = rule.guarded_value(moment + mass, mean + intervals.width * centres)
    return float(centres.ravel()[np.nanargmin(values)])


def hoover_cut(limits: QuantileLimits) -> float:
    """Cut t with the largest distance t - A/(A + B) from equality, A = ∫_0^t l and B = ∫_t^1 u, inside steps too."""
    below = sums_before(limits.widths * limits.lower)
    total = below + sums_from(limits.widths * limits.upper)
    gap = limits.upper - limits.lower
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        best_total = np.sqrt(limits.lower * total[:-1] + gap * below[:-1])
        step = _inside((total[:-1] - best_total) / gap, np.zeros_like(gap), limits.widths)
    cuts = np.concatenate([limits.edges, limits.edges[:-1] + step])
    under = np.concatenate([below, below[:-1] + step * limits.lower])
    all_of_it = np.concatenate([total, total[:-1] - step * gap])
    shares = _relative(under, all_of_it, at_zero=1.0)
    return float(min(cuts[np.argmax(cuts - shares)], 1.0))


def hoover_centre(limits: QuantileLimits) -> float:
    """Centre that is the mean of its own distribution: there E(m - u)_+ rises through E(l - m)_+."""
    intervals = limits.centres
    excess = intervals.means - intervals.low  # falls, from >= 0 to <= 0
    at = max(int(np.searchsorted(-excess, 0.0, side="right")) - 1, 0)
    rest = 1.0 - intervals.width[at]
    if rest <= 0.0:
        return float(intervals.low[at])
    return float(np.clip(intervals.low[at] + excess[at] / rest, intervals.low[at], intervals.high[at]))


def _inside(points: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    return np.clip(np.where(np.isnan(points), low, points), low, high)


def _relative(part: FloatArray, whole: FloatArray, *, at_zero: float) -> FloatArray:
    return np.where(whole > 0.0, part / np.where(whole > 0.0, whole, 1.0), at_zero)


def linear_plug_in(cumulative: Curve, ends: Callable[[float, float, float, float], tuple[float, float]]) -> PlugIn:
    """`ends` of ∫wl, ∫wu, ∫l and ∫u, for a weight w >= 0 with the given integral from 0 to p."""
    return lambda limits: ends(*_integrals(limits, cumulative), *_means(limits))


def mean_range_plug_in(num_clients: int) -> PlugIn:
    """E max and E min apart: k∫lp^{k-1} - k∫u(1-p)^{k-1}, and with the sides exchanged. [DC] example 8, corrected."""

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        low_max, high_max = _integrals(limits, lambda p: p**num_clients)
        low_min, high_min = _integrals(limits, lambda p: 1.0 - (1.0 - p) ** num_clients)
        return low_max - high_min, high_max - low_min

    return plug_in


def moment_plug_in(rule: MomentRule) -> PlugIn:
    """Extremes over all pairs of a mean and a moment between their bounds. [DC] example 4, appendix B.2."""

    def plug_in(limits: QuantileLimits) -> tuple[float, float]:
        low, high = _means(limits)
        with np.errstate(divide="ignore", over="ignore"):
            totals = _moment_bounds(limits, rule)
            # Monotone in the moment, and in the mean too, except that Theil's M/m - log m peaks at m = -M.
            means = np.array([[low, high, np.clip(-total, low, high)] for total in totals])
            corners = rule.value(totals[:, None], means)
        return float(np.min(corners)), float(np.max(corners))

    return plug_in


def hoover_plug_in(limits: QuantileLimits) -> tuple[float, float]:
    """∫|q - m|/(2m), both ends of the absolute value and of m taken apart. [DC] appendix B.3."""
    low, high = _means(limits)
    most = np.maximum(np.abs(limits.upper - low), np.abs(limits.lower - high))
    least = np.maximum(np.maximum(limits.lower - high, low - limits.upper), 0.0)
    return limits.integral(least) / (2.0 * high), limits.integral(most) / (2.0 * low)


def _means(limits: QuantileLimits) -> tuple[float, float]:
    return limits.integral(limits.lower), limits.integral(limits.upper)


def _integrals(limits: QuantileLimits, cumulative: Curve) -> tuple[float, float]:
    masses = np.diff(cumulative(limits.edges))
    return float(np.sum(masses * limits.lower)), float(np.sum(masses * limits.upper))


def _moment_bounds(limits: QuantileLimits, rule: MomentRule) -> FloatArray:
    """Smallest and largest integral of g between the sides; g is monotone, or x log x, which turns at 1/e."""
    at_lower, at_upper = rule.moment(limits.lower), rule.moment(limits.upper)
    least = np.minimum(at_lower, at_upper)
    if rule is THEIL_RULE:
        least = np.where((limits.lower < np.exp(-1.0)) & (np.exp(-1.0) < limits.upper), -np.exp(-1.0), least)
    return np.array([limits.integral(least), limits.integral(np.maximum(at_lower, at_upper))])
