"""Projected gradient ascent (PGD; Madry et al. 2018) within balls around the examples, from the smallest on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from client.adversaries.inputs import InputAdversary, InputProblem
from client.adversaries.norms import project, steepest
from client.adversaries.witness import OBJECTIVES, Witness
from client.losses import LOSSES

# For l1: a step moves one coordinate at first, later up to this share of them (after Tramer and Boneh, 2019).
_LARGEST_SHARE = 0.1


class Pgd(InputAdversary):
    """Steepest ascent, projected, with steps that shrink; each ball starts from the best point of the one before.

    Parameters
    ----------
    model, problem :
        See `InputAdversary`.
    objective : str or None
        What is raised: "margin" or "cross_entropy"; None: the one that fits the loss.
    num_steps : int
        Steps in each ball, at least 1.
    num_restarts : int
        Further starts, at random points of the first ball, at least 0.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """

    def __init__(
        self,
        model: nn.Module,
        problem: InputProblem,
        *,
        objective: str | None = None,
        num_steps: int = 10,
        num_restarts: int = 1,
    ) -> None:
        super().__init__(model, problem)
        name = objective or ("cross_entropy" if problem.loss in ("cross_entropy", "brier") else "margin")
        if name not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
        self.objective = OBJECTIVES[name]
        self.num_steps = checked_count("num_steps", num_steps, minimum=1)
        self.num_restarts = checked_count("num_restarts", num_restarts, minimum=0)

    def perturb(self, witness: Witness) -> None:
        """Climb in every ball of the ladder."""
        moves = torch.zeros(1, *witness.x.shape, dtype=witness.x.dtype)
        noise = self.noise(witness, self.num_restarts)
        for number, radii in enumerate(self.ladder(witness)):
            if number == 0:
                starts = noise * radii[:, None].to(noise.dtype)
                moves = torch.cat([moves, project(starts, radii, self.problem.norm, room=witness.room(starts))])
            moves = self._climb(witness, moves, radii)

    def _climb(self, witness: Witness, moves: Tensor, radii: Tensor) -> Tensor:
        best, best_values = moves, torch.full(moves.shape[:-1], -math.inf, dtype=torch.float64)
        for step in range(self.num_steps + 1):
            values, gradients = witness.climb(witness.x + moves, self.objective)
            is_better = values > best_values
            best = torch.where(is_better[..., None], moves, best)
            best_values = torch.where(is_better, values, best_values)
            done = step / self.num_steps
            # The first step crosses the ball: where the model is linear, it ends at the best point.
            size = radii * (1.0 + math.cos(math.pi * done))
            num_coordinates = max(1, round(_LARGEST_SHARE * done * moves.shape[-1]))
            open_slopes = witness.open_slopes(witness.x + moves, gradients)
            direction = steepest(open_slopes, self.problem.norm, num_coordinates=num_coordinates)
            moves = moves + size[:, None].to(moves.dtype) * direction
            moves = project(moves, radii, self.problem.norm, room=witness.room(moves))
        return best


def checked_count(name: str, value: int, *, minimum: int) -> int:
    """Return a whole number that is at least `minimum`.

    Raises
    ------
    ValueError
        If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    return value


def has_slopes(loss: str) -> bool:
    """Return whether gradients of the loss itself lead anywhere: not where it is flat and jumps."""
    return loss in LOSSES and not LOSSES[loss].binary
