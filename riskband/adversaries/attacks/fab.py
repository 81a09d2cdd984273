"""The nearest misclassified input of each example: the fast adaptive boundary attack (FAB; Croce and Hein, 2020).

The margins of the nearest few rivals are linearised where the search stands; the next point lies between the
projections of that point and of the example onto the linearised boundary, so that the search runs along the boundary
towards the example. With one step this is DeepFool (Moosavi-Dezfooli et al. 2016). Exact for linear models, with or
without a box. For a loss that goes on growing beyond the boundary, the search is repeated for where it saturates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from riskband.adversaries.attacks.base import InputAdversary
from riskband.adversaries.attacks.witness import Objective, Witness, margin_of
from riskband.adversaries.norms import lengths, shortest_move

# The published constants: weight of the example at most, overshoot, and the step back after a flip.
_LARGEST_PULL, _OVERSHOOT, _STEP_BACK = 0.1, 1.05, 0.9
# The last steps aim closer to the boundary: what overshoots leaves the shortest direction where a box cuts it.
_LAST_OVERSHOOT, _NUM_LAST_STEPS = 1.0 + 1e-5, 3


class MinNorm(InputAdversary):
    """FAB towards the nearest few rivals of each example: those whose linearised boundary is nearest."""

    num_steps = 20  # for each of them
    num_targets = 3

    def perturb(self, witness: Witness) -> None:
        """Walk along the boundaries."""
        self._walk(witness, 0.0)
        if witness.level > 0.0:
            self._walk(witness, witness.level)

    def _walk(self, witness: Witness, level: float) -> None:
        num_targets = min(self.num_targets, len(witness.rivals))
        nearest = witness.linear_distances(level).topk(num_targets, dim=0, largest=False).indices
        objective = margin_of(witness.rivals.gather(0, nearest).flatten(), level)
        points = witness.x.expand(num_targets, *witness.x.shape)
        for step in range(self.num_steps):
            is_last = step + _NUM_LAST_STEPS >= self.num_steps
            overshoot = _LAST_OVERSHOOT if is_last else _OVERSHOOT
            points = self._step(witness, points, objective, level=level, overshoot=overshoot)

    def _step(
        self, witness: Witness, points: Tensor, objective: Objective, *, level: float, overshoot: float
    ) -> Tensor:
        margins, slopes = witness.climb(points, objective)
        way_back = witness.x - points
        at_example = margins + (slopes.double() * way_back.double()).sum(dim=-1)
        moves = [
            shortest_move(slopes, -margin, witness.norm, low=witness.low(origin), high=witness.high(origin))
            for margin, origin in ((margins, points), (at_example, witness.x))
        ]
        near, far = (lengths(move, witness.norm) for move in moves)
        pull = torch.where(near + far > 0.0, near / (near + far), 0.0).clamp(max=_LARGEST_PULL)
        pull = pull[..., None].to(points.dtype)
        ahead = (1.0 - pull) * (points + overshoot * moves[0]) + pull * (witness.x + overshoot * moves[1])
        ahead = ahead if witness.box is None else ahead.clamp(*witness.box)
        is_beyond = witness.margins(witness(ahead)) > level
        return torch.where(is_beyond[..., None], witness.x + _STEP_BACK * (ahead - witness.x), ahead)
