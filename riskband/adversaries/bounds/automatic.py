"""What "auto" means where nothing is exact: a proved bound above the strongest attack, or that attack alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from torch import nn

from riskband.adversaries.attacks.wda import WdaKnapsack
from riskband.adversaries.base import Adversary, Batch, Evidence
from riskband.adversaries.bounds.lipschitz import SequentialLayers
from riskband.adversaries.bounds.sandwich import LipschitzAdversary, SandwichAdversary, is_bounded_loss
from riskband.adversaries.curves import AdversarialCurves
from riskband.adversaries.problem import RefusedError, TransportProblem


class AutomaticAdversary(Adversary):
    """The sandwich of `WdaKnapsack` and `LipschitzAdversary` where a bound is known, else `WdaKnapsack` alone.

    Loss, model and shape of the inputs decide, never the examples: all clients of a run choose the same.

    Parameters
    ----------
    model, problem :
        See `InputAdversary`.
    """

    def __init__(self, model: nn.Module, problem: TransportProblem) -> None:
        self.model, self.problem = model, problem

    def curves(self, batches: Iterable[Batch]) -> AdversarialCurves:
        """Return the curves of a client; see `Adversary.curves`."""
        remaining = iter(batches)
        first = next(remaining, None)
        if first is None:
            return super().curves(())  # refuses it in the words of all adversaries
        return self.chosen(tuple(first.x.shape[1:])).curves(chain([first], remaining))

    def examine(self, batch: Batch) -> Evidence:
        """Return the evidence of the chosen adversary."""
        return self.chosen(tuple(batch.x.shape[1:])).examine(batch)

    def chosen(self, x_shape: Sequence[int]) -> Adversary:
        """Return the adversary for inputs of this shape."""
        attack = WdaKnapsack(self.model, self.problem)
        if not (is_bounded_loss(self.problem.loss) and is_understood(self.model, x_shape)):
            return attack
        return SandwichAdversary(attack, LipschitzAdversary(self.model, self.problem))


def is_understood(model: nn.Module, x_shape: Sequence[int]) -> bool:
    """Return whether Lipschitz bounds are known for all layers of the model, given the shape of one input."""
    try:
        SequentialLayers(model, x_shape)
    except RefusedError:
        return False
    return True
