"""The nearest misclassified input of each example, first by linear steps to the boundary, then by sliding along it.

The fast adaptive boundary attack (FAB; Croce and Hein 2020) linearises the margins of the nearest few rivals where the
search stands; the next point lies between the projections of that point and of the example onto the linearised
boundary, so that the search runs along the boundary towards the example. With one step this is DeepFool
(Moosavi-Dezfooli et al. 2016). Exact for linear models, with or without a box.

Where the boundary is curved, long steps with decoupled direction and norm (DDN; Rony et al. 2019) get further: each
raises the margin within a ball that shrinks after a misclassified point and grows after any other. Here in every norm,
and from the point that FAB found. For a loss that goes on growing beyond the boundary, the search is repeated for where
it saturates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from riskband.adversaries.attacks.base import InputAdversary
from riskband.adversaries.attacks.pgd import falling, stepped
from riskband.adversaries.attacks.witness import Objective, Witness, margin_of
from riskband.adversaries.norms import lengths, shortest_move

# The published constants: weight of the example at most, overshoot, and the step back after a flip.
_LARGEST_PULL, _OVERSHOOT, _STEP_BACK = 0.1, 1.05, 0.9
# The last steps aim closer to the boundary: what overshoots leaves the shortest direction where a box cuts it.
_LAST_OVERSHOOT, _NUM_LAST_STEPS = 1.0 + 1e-5, 3
# Of DDN, falling like a cosine: steps in units of the distance that FAB found, and the share by which a ball changes.
_SLIDES, _CHANGES = (1.0, 0.01), (0.05, 0.001)


class MinNorm(InputAdversary):
    """FAB and DDN towards the nearest few rivals of each example: those whose linearised boundary is nearest."""

    num_steps = 10  # of FAB, for each of them
    num_slides = 20  # of DDN
    num_targets = 3

    def perturb(self, witness: Witness) -> None:
        """Walk to the boundaries and slide along them."""
        self._search(witness, 0.0)
        if witness.level > 0.0:
            self._search(witness, witness.level)

    def _search(self, witness: Witness, level: float) -> None:
        num_targets = min(self.num_targets, len(witness.rivals))
        nearest = witness.linear_distances(level).topk(num_targets, dim=0, largest=False).indices
        objective = margin_of(witness.rivals.gather(0, nearest).flatten(), level)
        points = witness.x.expand(num_targets, *witness.x.shape)
        moves, distances = torch.zeros_like(points), torch.full(points.shape[:-1], math.inf).double()
        for step in range(self.num_steps):
            is_last = step + _NUM_LAST_STEPS >= self.num_steps
            ahead = self._step(witness, points, objective, overshoot=_LAST_OVERSHOOT if is_last else _OVERSHOOT)
            is_beyond = witness.margins(witness(ahead)) > level
            reached = torch.where(is_beyond, lengths(ahead - witness.x, witness.norm), math.inf)
            moves = torch.where((reached < distances)[..., None], ahead - witness.x, moves)
            distances = distances.minimum(reached)
            points = torch.where(is_beyond[..., None], witness.x + _STEP_BACK * (ahead - witness.x), ahead)
        self._slide(witness, moves, torch.where(torch.isfinite(distances), distances, 0.0), objective)

    def _slide(self, witness: Witness, moves: Tensor, distances: Tensor, objective: Objective) -> None:
        """Shorten moves of these lengths, (num_targets, num_examples, num_features), to where the objective is > 0."""
        units, radii = distances, (1.0 - _CHANGES[0]) * distances
        moves = (1.0 - _CHANGES[0]) * moves
        for step in range(self.num_slides):
            done = step / self.num_slides
            values, slopes = witness.climb(witness.x + moves, objective)
            is_beyond, change = values > 0.0, falling(*_CHANGES, done=done)
            distances = torch.where(is_beyond, distances.minimum(lengths(moves, witness.norm)), distances)
            radii = torch.where(is_beyond, (1.0 - change) * radii, (1.0 + change) * radii)
            radii = radii.minimum((1.0 - change) * distances)
            moves = stepped(witness, moves, slopes, falling(*_SLIDES, done=done) * units, radii, done=done)
        witness(witness.x + moves)

    def _step(self, witness: Witness, points: Tensor, objective: Objective, *, overshoot: float) -> Tensor:
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
        return ahead if witness.box is None else ahead.clamp(*witness.box)
