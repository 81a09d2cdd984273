"""Concave curves of adversarial risk over the transport budget, and how a network shares a budget (math §4.2).

Q_k(rho), the largest risk of client k's distribution within a Wasserstein ball of cost budget rho, is nondecreasing and
concave in rho. The adversary of a network moves every client at once: it maximises the mean of Q_k(rho_k) while the
mean of rho_k stays within the budget. Curves here are piecewise linear, so that problem is solved exactly by spending
on the steepest slopes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from riskband.checks import SMALLEST_COST, FloatArray, digit_rounding, float_rounding

TOLERANCE = 1e-9
"""How far values may be from nondecreasing and concave: rounding, not a lie."""

NOT_CONCAVE = (
    "values of a curve must be nondecreasing and concave in the budget; give rounded ones with four places or more"
)

LARGEST_ROUNDING = 5e-5
"""How far values of fewer digits may be from a concave curve: half a unit of the fourth place after the point."""

# What rounding may do to the difference of two values that count as exact: that of float64; over a short way, where it
# is a slope that its extension shows, that of a model in float32. (Means are float64 whatever the model was.)
_ROUNDING, _SINGLE_ROUNDING = 1e-13, 2.0 * float(np.finfo(np.float32).eps)
_SHORT = 1e-3  # in units of the larger of 1 and the largest radius


@dataclass(frozen=True, eq=False)
class ConcaveCurve:
    """A nondecreasing concave piecewise-linear function on [0, inf), constant after its last knot."""

    budgets: FloatArray  # increasing from 0, in units of the transport cost; shape (num_knots,)
    values: FloatArray

    def __post_init__(self) -> None:
        x, y = self.budgets, self.values
        if x.size == 0 or x.shape != y.shape or not (np.all(np.isfinite(x)) and np.all(np.isfinite(y))):
            raise ValueError(f"a curve needs finite values at finite budgets, one each, got {y.size} for {x.size}")
        if x[0] != 0.0 or not np.all(np.diff(x) > 0.0):
            raise ValueError("budgets of a curve must increase strictly from 0")
        if not is_concave(x, y):
            raise ValueError(NOT_CONCAVE)

    def __call__(self, budget: npt.ArrayLike) -> FloatArray:
        """Values at the given budgets, any shape."""
        return np.asarray(np.interp(np.asarray(budget, dtype=np.float64), self.budgets, self.values))

    def conjugate(self, multiplier: npt.ArrayLike) -> FloatArray:
        """Largest `value - multiplier * budget`, for multipliers >= 0 of any shape."""
        price = np.asarray(multiplier, dtype=np.float64)[..., None]
        return np.asarray(np.max(self.values - price * self.budgets, axis=-1))

    def inverse(self, value: npt.ArrayLike) -> FloatArray:
        """Smallest budget at which the curve reaches the value; `inf` where it never does."""
        return np.asarray(np.interp(np.asarray(value, dtype=np.float64), *self._rises, left=0.0, right=np.inf))

    @cached_property
    def _rises(self) -> tuple[FloatArray, FloatArray]:
        """Values that increase strictly, and the smallest budgets at which they are reached; read many times."""
        keep = np.concatenate([[True], np.diff(self.values) > 0.0])
        return self.values[keep], self.budgets[keep]


def is_concave(x: FloatArray, y: FloatArray) -> bool:
    """Whether finite values over increasing points are nondecreasing and concave, up to `TOLERANCE`."""
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    chords = (1.0 - share) * y[:-2] + share * y[2:]
    # Against the largest value before, not the last one: many small steps down are one large step.
    return bool(np.all(y >= np.maximum.accumulate(y) - TOLERANCE) and np.all(y[1:-1] >= chords - TOLERANCE))


def rounding_of_curve(radii: FloatArray, values: FloatArray) -> float | None:
    """How far values at increasing radii are from the nondecreasing concave curve that they were rounded from, at most.

    0 if they are nondecreasing and concave as they are, up to `TOLERANCE`. Else what their float type or their digits
    explain, at most `LARGEST_ROUNDING`; None if there is no curve so near.
    """
    if is_concave(radii, values):
        return 0.0
    rounding = _format_rounding(values)
    # A curve within the rounding has values at or above the hull of the values, less the rounding; and that is one.
    gaps = np.interp(radii, *upper_hull(radii, values)) - values
    return rounding if np.all(gaps <= 2.0 * rounding + TOLERANCE) else None


def rounding_of_curves(radii: FloatArray, rows: FloatArray) -> FloatArray:
    """How far each row of values, shape (num_clients, num_radii), is from its curve; 0 where all are concave as is.

    If a row shows its rounding, rows that are concave by chance are taken to be rounded no less than their own float
    type or digits explain, and no more than the rows that show it. Raises ValueError if a row is not nondecreasing and
    concave, up to rounding.
    """
    found = [rounding_of_curve(radii, row) for row in rows]
    if any(rounding is None for rounding in found):
        raise ValueError(NOT_CONCAVE)
    shown = max((rounding or 0.0 for rounding in found), default=0.0)
    return np.array([min(_format_rounding(row), shown) for row in rows]) if shown else np.zeros(len(rows))


def _format_rounding(values: FloatArray) -> float:
    """What the float type of a row, or the digits of its values, may have taken away, at most `LARGEST_ROUNDING`."""
    return float(min(max(float_rounding(values).min(), digit_rounding(values).max()), LARGEST_ROUNDING))


def knapsack_curve(costs: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> ConcaveCurve:
    """Adversarial 0-1 risk over all budgets: spend on the cheapest examples first, on the last one in part.

    `costs`, shape (num_examples,), are those >= 0 of the cheapest misclassified point for each example: 0 if it is
    wrong already, `inf` if no change makes it wrong. `weights` are the examples' probabilities, 1/num_examples by
    default. The curve is Q(rho) for every rho, exact if the costs are; raises ValueError for costs or weights that are
    none. Source: math §4.1 (fractional knapsack).
    """
    distance = np.asarray(costs, dtype=np.float64)
    if distance.ndim != 1 or distance.size == 0 or not np.all(distance >= 0.0):
        raise ValueError(
            "costs must be numbers >= 0 (inf where nothing makes the example wrong), at least one, in one row"
        )
    mass = np.full(distance.size, 1.0 / distance.size) if weights is None else np.asarray(weights, dtype=np.float64)
    if mass.shape != distance.shape:
        raise ValueError(f"weights must have one entry per cost, got {mass.size} for {distance.size}")
    if not np.all(np.isfinite(mass) & (mass >= 0.0)) or mass.sum() > 1.0 + TOLERANCE:
        raise ValueError(f"weights must be finite, >= 0 and sum to at most 1, got a sum of {mass.sum():g}")
    distance = np.where(distance < SMALLEST_COST, 0.0, distance)  # a slope over so short a way is no number
    prices, member = np.unique(distance, return_inverse=True)
    masses = np.bincount(member, mass)
    is_reached = np.isfinite(prices) & (prices > 0.0)
    start = float(masses[prices == 0.0].sum())
    spent = np.cumsum(prices[is_reached] * masses[is_reached])
    risks = np.concatenate([[start], start + np.cumsum(masses[is_reached])])
    if weights is None and np.all(np.isfinite(prices)):
        risks[-1] = 1.0  # every example becomes wrong; the sum of so many 1/n may miss it
    budgets = np.concatenate([[0.0], spent])
    last = np.append(np.diff(budgets) > 0.0, True)  # where a cost is too small to be seen in the sum, it is no cost
    return ConcaveCurve(budgets[last], np.minimum(risks, 1.0)[last])  # a sum may exceed 1 by rounding


def inner_curve(radii: FloatArray, values: FloatArray, *, rounding: float = 0.0) -> ConcaveCurve:
    """Largest curve known to lie below a concave function: its chords, constant after the last point.

    Arguments and errors as for `outer_curve`. Equal to the function at the radii but for rounding.
    """
    x, y = np.asarray(radii, dtype=np.float64), np.asarray(values, dtype=np.float64)
    return ConcaveCurve(*upper_hull(x, np.maximum(y - rounding, 0.0))) if rounding else ConcaveCurve(x, y)


def outer_curve(radii: FloatArray, values: FloatArray, *, rounding: float = 0.0) -> ConcaveCurve:
    """Smallest concave curve above every concave function in [0, 1] through the points: extended chords, and 1.

    Between two points a concave function lies below the chord before them, extended, and the chord after them, extended
    back. The curve is the concave hull of these bounds, since its conjugate is what a network's budget is spent by.

    Radii and values have shape (num_radii,); radii increase strictly from 0, at least two. `rounding` is how far the
    values may be from those of the function, see `rounding_of_curve`: the points are then lifted by it, and chords are
    as steep as it allows before them, and as flat after them. Raises ValueError if the points are not those of a
    nondecreasing concave function. Source: math §4.2.
    """
    x, y = np.asarray(radii, dtype=np.float64), np.minimum(values, 1.0)
    if not rounding:
        ConcaveCurve(x, y)  # checks the points
    if x.size < 2:
        return ConcaveCurve(np.zeros(1), np.ones(1))
    # A slope over a short interval is mostly rounding, and extending it would magnify that: lean to the safe side.
    width, rise = np.diff(x), np.diff(y)
    is_short = width < _SHORT * max(1.0, x[-1])
    doubt = np.maximum(2.0 * rounding, np.where(is_short, _SINGLE_ROUNDING, _ROUNDING))
    steepest, flattest = np.maximum(rise + doubt, 0.0) / width, np.maximum(rise - doubt, 0.0) / width
    y = np.minimum(y + rounding, 1.0)
    rise = np.diff(y)
    before = np.concatenate([[np.inf], steepest[:-1]])
    after = np.append(flattest[1:], 0.0)  # a nondecreasing function stays below its value at the end of the interval
    bend = np.maximum(before - after, np.finfo(float).tiny)
    shift = np.clip((rise - after * width) / bend, 0.0, width)
    corners = x[:-1] + shift, y[1:] - after * (width - shift)
    may_rise = rise[-1] > 0.0 or rounding > 0.0 or is_short[-1]
    tail = ([x[-1] + (1.0 - y[-1]) / steepest[-1]], [1.0]) if may_rise and steepest[-1] > 0.0 else ([], [])
    return ConcaveCurve(*upper_hull(*(np.concatenate(parts) for parts in zip((x, y), corners, tail, strict=True))))


def outer_curves(radii: FloatArray, rows: FloatArray, roundings: FloatArray) -> tuple[ConcaveCurve, ...]:
    """`outer_curve` of each row of values, shape (num_clients, num_radii)."""
    return tuple(outer_curve(radii, row, rounding=each) for row, each in zip(rows, roundings.tolist(), strict=True))


def network_curve(curves: Sequence[ConcaveCurve]) -> ConcaveCurve:
    """Best mean value of a network over its mean budget: every client's curve, steepest slopes first.

    It is max of mean Q_k(rho_k) over mean rho_k <= budget, exact, in O(KR log KR). Source: math §4.2, [RE] eq. 15.
    """
    if not curves:
        raise ValueError("a network needs at least one curve")
    steps = np.concatenate([np.diff(curve.budgets) for curve in curves])
    rises = np.concatenate([np.diff(curve.values) for curve in curves])
    start = float(np.mean([curve.values[0] for curve in curves]))
    rising = rises > 0.0
    steps, rises = steps[rising], rises[rising]
    order = np.argsort(-rises / steps, kind="stable")
    budgets = np.concatenate([[0.0], np.cumsum(steps[order]) / len(curves)])
    values = np.concatenate([[0.0], np.cumsum(rises[order]) / len(curves)]) + start
    last = np.append(np.diff(budgets) > 0.0, True)  # a step too small to be seen in the sum costs nothing
    return ConcaveCurve(budgets[last], np.maximum.accumulate(values)[last])


def upper_hull(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Corners of the upper hull of points, nondecreasing in x (Andrew's monotone chain)."""
    order = np.lexsort((-y, x))
    xs: list[float] = []
    ys: list[float] = []
    for x_last, y_last in zip(x[order].tolist(), y[order].tolist(), strict=True):
        if xs and x_last <= xs[-1]:
            continue
        while len(xs) > 1:
            width, rise = x_last - xs[-2], y_last - ys[-2]
            if (ys[-1] - ys[-2]) * width - rise * (xs[-1] - xs[-2]) > 0.0:
                break  # the last corner is above the line from the one before it to this point
            xs.pop()
            ys.pop()
        xs.append(x_last)
        ys.append(y_last)
    return np.array(xs), np.maximum.accumulate(ys)
