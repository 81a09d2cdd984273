"""Lagrangian ascent of inputs, or activations: WC-DG (Mehra et al. 2022, Algorithm 1), raise loss - multiplier * cost.

The published algorithm moves one multiplier for all examples by stochastic steps to suit one radius. Here the ascent
runs at a few multipliers of each example's own; the points that it passes are shared out exactly by the base class,
which is the minimum over the multiplier, at every radius at once. No question decides the multipliers: the answers to
several questions are of one curve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from riskband.adversaries.attacks.base import InputAdversary
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.pgd import has_slopes
from riskband.adversaries.attacks.witness import Objective, Witness, wrong_margin
from riskband.adversaries.norms import DUALS, lengths, shrink, steepest
from riskband.models.losses import get_loss

# Multipliers in units of 1 / cost of `Witness.units`: a gain of 1 for that cost.
_FACTORS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 10.0, 40.0)
# A step, in units of that distance.
_STEP = 0.5
# Slope of the modified hinge loss where the margin loss is 0, in units of its slope elsewhere: the paper's 0.1.
_LEAK = 0.1


class WcDg(InputAdversary):
    """Proximal ascent of loss - multiplier * cost, from small multipliers to large ones.

    Each multiplier starts where the smaller one before it ended; the first, where the loss of a linear model would
    saturate: at the example itself the slope of a loss may have faded. The 0-1 loss needs the nearest flips alone (the
    paper's equation 4).
    """

    num_steps = 15  # at each multiplier

    def perturb(self, witness: Witness) -> None:
        """Climb at every multiplier, or look for the nearest misclassified points."""
        if not has_slopes(self.problem.loss):
            MinNorm(self.model, self.problem).perturb(witness)
            return
        _, slopes = witness.climb(witness.x, wrong_margin)
        moves = witness.inside(witness.units[:, None].to(slopes.dtype) * steepest(slopes, self.problem.norm))
        unit_costs = witness.units.pow(self.problem.order)
        for factor in _FACTORS:
            moves = self._climb(witness, moves, torch.where(unit_costs > 0.0, factor / unit_costs, 0.0))

    def _climb(self, witness: Witness, moves: Tensor, prices: Tensor) -> Tensor:
        objective = surrogate(self.problem.loss)
        norm, order, units = self.problem.norm, self.problem.order, witness.units
        # The slope of the cost at a distance of one unit; it must be able to pull back where the loss has none.
        cost_slopes = prices if order == 1 else 2.0 * prices * units
        spread = moves.shape[-1] if norm == "linf" else 1  # a step along a gradient is short in the largest entry
        for step in range(self.num_steps):
            _, slopes = witness.climb(witness.x + moves, objective)
            steepness = lengths(slopes, DUALS[norm])
            size = _STEP * spread * units * (1.0 - step / self.num_steps)
            rates = torch.where(units > 0.0, size / steepness.maximum(cost_slopes), 0.0)
            rates = torch.nan_to_num(rates, posinf=0.0)
            ahead = moves + rates[:, None].to(moves.dtype) * slopes
            if order == 2:
                ahead = ahead / (1.0 + 2.0 * rates * prices)[:, None].to(moves.dtype)
            else:
                ahead = shrink(ahead, rates * prices, norm)
            moves = witness.inside(ahead)
        witness(witness.x + moves)
        return moves


def surrogate(loss: str) -> Objective:
    """Return what is climbed for a loss: itself, but for "margin" the modified hinge, which leaks where that is 0."""
    if loss == "margin":

        def leaking(logits: Tensor, labels: Tensor) -> Tensor:
            value = (1.0 + wrong_margin(logits, labels)) / 2.0
            return torch.where(value < 0.0, _LEAK * value, value).clamp(max=1.0)

        return leaking
    return get_loss(loss).per_example
