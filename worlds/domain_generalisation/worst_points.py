"""The game of DR-DG: representations moved to where the loss is high, within a mean squared distance (Algorithm 2).

The radius is a factor F times the distance from the source to the nearest distribution that is wholly misclassified,
which is exact before a linear head: the mean squared distance to the nearest boundary, of each example by itself.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from riskband.adversaries.attacks.base import frozen
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves


def adversarial_distance(model: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    """Return ρ_adv ≥ 0, the 2-Wasserstein distance to the nearest distribution that the model gets wholly wrong.

    In the space before the last linear layer, labels held fixed. Each example moves to its nearest misclassified point,
    and no plan is cheaper; examples that are wrong already stay.
    """
    curves = adversarial_curves(model, x, y, TransportProblem(loss="zero_one", order=2))
    return float(np.sqrt(curves.adversarial_unit))


class WorstPoints:
    """One moved representation for each training example, which ascends a little at each batch.

    They start at the features, (num_examples, num_features); their mean squared distance from the representations is
    steered to ρ², with the radius ρ ≥ 0.
    """

    num_steps, step_size = 20, 0.01
    price_step, price_range = 0.1, (1e-3, 1e3)

    def __init__(self, features: Tensor, *, radius: float) -> None:
        self.points = features.detach().clone()
        self.radius, self.price = radius, 1.0

    def climb(self, index: NDArray[np.intp], features: Tensor, y: Tensor, head: nn.Linear) -> Tensor:
        """Move the points of a batch and return them, (num_examples, num_features), as data without gradients.

        They climb loss − price · squared distance from `features`; after each step the price follows the distance. The
        head is not changed.
        """
        target = features.detach()
        points = self.points[index].requires_grad_()
        optimizer = torch.optim.Adam([points], lr=self.step_size, betas=(0.5, 0.999))
        with frozen(head):
            for _ in range(self.num_steps):
                optimizer.zero_grad()
                squares = (points - target).square().sum(dim=1)
                gain = cross_entropy(head(points), y, reduction="none") - self.price * squares
                (-gain.sum()).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                moved = (points.detach() - target).square().sum(dim=1).mean().item()
                self.price = float(np.clip(self.price - self.price_step * (self.radius**2 - moved), *self.price_range))
        self.points[index] = points.detach()
        return points.detach()
