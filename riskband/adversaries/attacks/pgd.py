"""Projected gradient ascent (PGD; Madry et al. 2018) within balls around the examples, from the smallest on."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from riskband.adversaries.attacks.base import InputAdversary
from riskband.adversaries.attacks.witness import OBJECTIVES, Witness
from riskband.adversaries.norms import steepest
from riskband.adversaries.problem import TransportProblem
from riskband.models.losses import LOSSES

# For l1: a step moves one coordinate at first, later up to this share of them (after Tramer and Boneh, 2019).
_LARGEST_SHARE = 0.1


class Pgd(InputAdversary):
    """Steepest ascent, projected, with steps that shrink; each ball starts from the best point of the one before.

    The objective, what is raised, is a name in `OBJECTIVES`: "margin", "cross_entropy" or "dlr"; None: the one that
    fits the loss.
    """

    num_steps = 10  # in each ball
    num_restarts = 1  # further starts, at random points of the first ball

    def __init__(
        self, model: nn.Module, problem: TransportProblem, *, objective: str | None = None, **counts: int
    ) -> None:
        super().__init__(model, problem, **counts)
        self.objective = OBJECTIVES[checked_objective(objective, fitting_objective(problem.loss), OBJECTIVES)]

    def perturb(self, witness: Witness) -> None:
        """Climb in every ball of the ladder."""
        smallest = next(self.ladder(witness))
        starts = self.noise(witness, self.num_restarts) * smallest[:, None].to(witness.x.dtype)
        moves = torch.cat([torch.zeros_like(witness.x)[None], witness.within(starts, smallest)])
        for rows, part, radii in self.balls(witness):
            moves[:, rows] = self._climb(part, moves[:, rows], radii)

    def _climb(self, witness: Witness, moves: Tensor, radii: Tensor) -> Tensor:
        best, best_values = moves, torch.full(moves.shape[:-1], -math.inf, dtype=torch.float64)
        for step in range(self.num_steps + 1):
            values, gradients = witness.climb(witness.x + moves, self.objective)
            is_better = values > best_values
            best = torch.where(is_better[..., None], moves, best)
            best_values = torch.where(is_better, values, best_values)
            done = step / self.num_steps
            # The first step crosses the ball: where the model is linear, it ends at the best point.
            moves = stepped(witness, moves, gradients, falling(2.0, 0.0, done=done) * radii, radii, done=done)
        return best


def falling(first: float, last: float, *, done: float) -> float:
    """Return what falls from the first number to the last like a cosine, when this share of the steps is done."""
    return last + (first - last) * (1.0 + math.cos(math.pi * done)) / 2.0


def stepped(witness: Witness, moves: Tensor, slopes: Tensor, sizes: Tensor, radii: Tensor, *, done: float) -> Tensor:
    """Return moves after a step of these sizes along `climbing_direction`, cut to the balls of the radii and the box.

    Sizes have shape (..., num_examples), radii (num_examples,); the rest is as there.
    """
    direction = climbing_direction(witness, moves, slopes, done=done)
    return witness.within(moves + sizes[..., None].to(moves.dtype) * direction, radii)


def climbing_direction(witness: Witness, moves: Tensor, gradients: Tensor, *, done: float) -> Tensor:
    """Return steepest directions of length 1 that the box leaves open; for l1 less sparse as more of the climb is done.

    Moves, from the examples to where the climb stands, and the gradients there have shape (..., num_examples,
    num_features); `done` is the share of the climb, in [0, 1].
    """
    open_slopes = witness.open_slopes(witness.x + moves, gradients)
    num_coordinates = max(1, round(_LARGEST_SHARE * done * moves.shape[-1]))
    return steepest(open_slopes, witness.norm, num_coordinates=num_coordinates)


def fitting_objective(loss: str) -> str:
    """Return the name of the objective that orders inputs as the loss does, or nearly."""
    return "cross_entropy" if loss in ("cross_entropy", "brier") else "margin"


def checked_objective(name: str | None, default: str, choices: Collection[str]) -> str:
    """Return the name of an objective, or the default if there is none; raises ValueError if it is no choice."""
    chosen = default if name is None else name
    if chosen not in choices:
        raise ValueError(f"objective must be one of {', '.join(choices)}, got {name!r}")
    return chosen


def has_slopes(loss: str) -> bool:
    """Return whether gradients of the loss itself lead anywhere: not where it is flat and jumps."""
    return loss in LOSSES and not LOSSES[loss].binary
