"""From points of single examples to the curves of a client (math §6.1).

For one example, let q(c) be the largest mean loss that a transport of cost c can give it: nondecreasing and concave,
since a transport may split an example's mass. The client's adversarial risk Q(radius) is the best way to share a mean
cost among its examples: spend on the steepest pieces first. One sort answers every radius and every multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from riskband.adversaries.problem import CurveNumbers
from riskband.answers.concave_curves import ConcaveCurve, knapsack_curve

FloatArray = npt.NDArray[np.float64]

# Gains below this cannot be seen in a sum of masses; they are rounded to the safe side.
_NEGLIGIBLE_GAIN = 1e-14
_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Points:
    """For each example, points (cost, loss): float64, (num_examples, num_points).

    Costs are >= 0, in units of the transport cost, and `inf` for a point that does not exist.
    """

    costs: Tensor
    losses: Tensor


@dataclass(frozen=True, eq=False)
class AdversarialCurves:
    """A client's adversarial risk over all radii and all multipliers.

    Attributes
    ----------
    clean_risk : float
        Mean loss without an adversary, in [0, 1].
    num_examples : int
        Number of examples behind the means.
    adversarial_unit : float
        Mean cost of the cheapest misclassified point over the examples that have one (rho_adv of Mehra et al. 2022,
        squared if the order is 2); 0 if none has. Radii may be reported as multiples of it.
    guarantee : str
        One of `riskband.answers.adversarial.GUARANTEES`.
    lower, upper : ConcaveCurve
        Q lies between them.
    lines, asked_lines : tuple of (float, float)
        Pairs (multiplier, bound): Q(radius) <= multiplier * radius + bound. The conjugates use both, the values only
        `lines`, so that they do not depend on the multipliers that were asked.
    unmoved_risk : float
        Upper bound of the mean loss without an adversary, where more is proved than attained: of the model in exact
        arithmetic, if that is what its bounds are about.
    num_without_gradient : int or None
        Examples at which an attack found no gradient to follow, or one that misled it: what it reached of them says
        little. None: no attack, or one that needs no gradients.
    is_unsteady : bool
        Whether the model has other logits for an example in another batch, or when asked again: an attack reached the
        losses of single passes, and those of no function of the example. Nothing is proved then.
    """

    clean_risk: float
    num_examples: int
    adversarial_unit: float
    guarantee: str
    lower: ConcaveCurve
    upper: ConcaveCurve
    lines: tuple[tuple[float, float], ...]
    asked_lines: tuple[tuple[float, float], ...] = ()
    unmoved_risk: float = 0.0
    num_without_gradient: int | None = None
    is_unsteady: bool = False

    def at(self, radii: npt.ArrayLike, multipliers: npt.ArrayLike) -> CurveNumbers:
        """Return the numbers at radii, shape (num_radii,), and at multipliers, shape (num_multipliers,)."""
        names = ("values_lower", "values_upper", "conjugates_lower", "conjugates_upper")
        ends = zip(names, (*self.values(radii), *self.conjugates(multipliers)), strict=True)
        found: dict[str, Any] = {name: tuple(end.tolist()) for name, end in ends}
        same = {each.name for each in fields(CurveNumbers)} - found.keys()
        return CurveNumbers(**found, **{name: getattr(self, name) for name in same})

    def values(self, radii: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds of Q at the radii, (num_radii,), cost budgets >= 0.

        Both are in [0, 1], nondecreasing and concave in the radius; equal if the guarantee is "exact".
        """
        budgets = np.asarray(radii, dtype=np.float64)
        lower, upper = np.minimum(self.lower(budgets), 1.0), np.minimum(self.upper(budgets), 1.0)
        for multiplier, bound in self.lines:
            upper = np.minimum(upper, multiplier * budgets + bound)
        if self.guarantee.startswith("upper"):  # without any budget nothing moves
            upper = np.where(budgets == 0.0, np.maximum(lower, self.unmoved_risk), upper)
        return lower, _not_below(lower, upper)

    def conjugates(self, multipliers: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds of the mean over examples of sup over c of q(c) - multiplier * c.

        Multipliers, (num_multipliers,), are prices >= 0 of a unit of transport cost, increasing. Both bounds are in
        [0, 1] and nonincreasing; equal if the guarantee is "exact".
        """
        prices = np.asarray(multipliers, dtype=np.float64)
        # One at a time: all at once would need memory for num_multipliers * num_examples numbers.
        lower = np.array([float(self.lower.conjugate(price)) for price in prices])
        upper = np.array([float(self.upper.conjugate(price)) for price in prices])
        for multiplier, bound in self.lines + self.asked_lines:  # a bound at one multiplier holds at every larger one
            upper = np.where(prices >= multiplier, np.minimum(upper, bound), upper)
        lower, upper = np.minimum(lower, 1.0), np.minimum(upper, 1.0)
        return lower, _not_below(lower, upper)


class Pool:
    """The pieces of many examples' concave hulls, to be sorted by slope."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, losses: Tensor, points: Points) -> None:
        """Add the hulls of a batch; see `concave_pieces`."""
        self.pieces.append(concave_pieces(losses, points))

    def curve(self, *, round_up: bool) -> ConcaveCurve:
        """Return the curve over the mean cost; what is too small to be seen is dropped, or added at cost 0."""
        starts, runs, rises = (torch.cat(parts).numpy() for parts in zip(*self.pieces, strict=True))
        gains = rises / len(starts)
        seen = gains > _NEGLIGIBLE_GAIN
        start = starts.mean() + (gains[~seen].sum() if round_up else 0.0)
        # An example that gains a rise for a run is to the knapsack an item of that mass, run/rise per unit.
        prices = np.concatenate([[0.0], runs[seen] / rises[seen]])
        return knapsack_curve(prices, np.concatenate([[start], gains[seen]]))


def concave_pieces(losses: Tensor, points: Points) -> tuple[Tensor, Tensor, Tensor]:
    """Return the concave hulls of each example's points and of (0, its loss), cut at 1, as pieces with falling slopes.

    The losses, of the unperturbed examples, have shape (num_examples,), and so has what is returned first: the value of
    each hull at cost 0. Then come width and height > 0 of the rising pieces of all examples, (num_pieces,) (gift
    wrapping: from each corner to the point in steepest sight).
    """
    costs, values = points.costs, points.losses
    start = torch.maximum(losses, torch.where(costs == 0.0, values, -torch.inf).amax(dim=1)).clamp(max=1.0)
    here, value = torch.zeros_like(start), start
    runs, rises = [], []
    for _ in range(costs.shape[1]):
        run, rise = costs - here[:, None], values - value[:, None]
        is_ahead = (run > 0.0) & (rise > 0.0) & (value < 1.0)[:, None]
        slope, corner = torch.where(is_ahead, rise / run, 0.0).max(dim=1, keepdim=True)
        rows = (slope > 0.0).squeeze(1)
        costs, values, value, corner = costs[rows], values[rows], value[rows], corner[rows]
        if not len(costs):
            break
        here, top = costs.gather(1, corner).squeeze(1), values.gather(1, corner).squeeze(1)
        run, rise = run[rows].gather(1, corner).squeeze(1), top - value
        share = ((1.0 - value) / rise).clamp(max=1.0)
        runs.append(share * run)
        rises.append(share * rise)
        value = top
    if not runs:
        return start, start[:0], start[:0]
    return start, torch.cat(runs), torch.cat(rises)


def _not_below(lower: FloatArray, upper: FloatArray) -> FloatArray:
    if np.any(upper < lower - _TOLERANCE):
        raise RuntimeError("an adversary's upper bound lies below what it attained: the bound is wrong")
    return np.maximum(lower, upper)
