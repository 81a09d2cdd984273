"""Auto-PGD (Croce and Hein 2020): ascent with momentum, whose steps halve by themselves, towards one rival or any.

Where several rivals are aimed at, each ball begins with a few steps towards every one of them; a third of them, those
who come furthest, get three times as many steps, and so on until one is left (sequential halving, Karnin et al. 2013,
with thirds). Every round takes the same number of steps in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from riskband.adversaries.attacks.base import InputAdversary
from riskband.adversaries.attacks.pgd import checked_objective, climbing_direction, fitting_objective, has_slopes
from riskband.adversaries.attacks.witness import OBJECTIVES, TARGETED_OBJECTIVES, Objective, Witness
from riskband.adversaries.problem import TransportProblem

# The published constants. Shares of the steps: of the first check, by how much the next ones come sooner, and of the
# shortest way between two. A step halves unless this share of those since the last check went up.
_FIRST_CHECK, _SOONER, _SHORTEST = 0.22, 0.03, 0.06
_SHARE_OF_RISES = 0.75
# Weight of the new direction; the rest is the direction of the last step.
_MOMENTUM = 0.75
# Each round of a search keeps one rival in three.
_KEPT = 3
# Refinements look in balls of these radii, in units of the distance of the nearest flip.
_NEARER = (0.97, 0.995)


class Apgd(InputAdversary):
    """Auto-PGD in balls around the examples, from the smallest on; each starts from the best points of the one before.

    For the 0-1 loss an example is left alone in balls in which a flip was found.

    The published algorithm is for l2 and linf; for l1 the directions are those of `Pgd`. The objective, what is raised,
    is a name in `OBJECTIVES` or `TARGETED_OBJECTIVES`; None: "targeted_margin" for a loss without slopes, else the one
    that fits the loss. The targeted ones aim at each of `Witness.rivals`.
    """

    num_steps = 36  # in each round in each ball; a search among nine rivals has three rounds

    def __init__(
        self, model: nn.Module, problem: TransportProblem, *, objective: str | None = None, **counts: int
    ) -> None:
        super().__init__(model, problem, **counts)
        fitting = fitting_objective(problem.loss) if has_slopes(problem.loss) else "targeted_margin"
        self.objective = checked_objective(objective, fitting, [*OBJECTIVES, *TARGETED_OBJECTIVES])

    def perturb(self, witness: Witness) -> None:
        """Climb in every ball of the ladder."""
        moves = witness.x.new_zeros(self._num_candidates(witness), *witness.x.shape)
        for radii in self.ladder(witness):
            self._search(witness, moves, radii)

    def refine(self, witness: Witness) -> None:
        """Look for misclassified points a little nearer than the nearest that the witness knows, twice."""
        for share in _NEARER:
            radii = torch.where(torch.isfinite(witness.distances), share * witness.distances, 0.0)
            starts = share * (witness.closest - witness.x)
            self._search(witness, starts.repeat(self._num_candidates(witness), 1, 1), radii)
            witness.shorten()

    def _num_candidates(self, witness: Witness) -> int:
        return len(witness.rivals) if self.objective in TARGETED_OBJECTIVES else 1

    def _search(self, witness: Witness, moves: Tensor, radii: Tensor) -> None:
        """Climb from the moves (num_candidates, num_examples, num_features); those are replaced by the best found."""
        values = self._preferences(witness, len(moves))
        is_open = witness.is_open(radii)
        for num_candidates in _sizes_of_rounds(len(moves)):
            for candidates in values.topk(num_candidates, dim=0).indices:
                rows = is_open.nonzero().squeeze(1)
                if len(rows) == 0:
                    return
                chosen = candidates[rows]
                part = witness.select(rows)
                objective = self._objective(witness.rivals[chosen, rows])
                moves[chosen, rows], values[chosen, rows] = auto_pgd(
                    part, objective, moves[chosen, rows], radii[rows], num_steps=-(-self.num_steps // num_candidates)
                )
                witness.absorb(part, rows)
                if self.problem.loss == "zero_one":
                    is_open[rows] = torch.isinf(part.distances)

    def _preferences(self, witness: Witness, num_candidates: int) -> Tensor:
        """Who is tried first: the rival that is nearest if the model were linear, or has the largest logit."""
        if not self.problem.distances:  # the ladder has asked for the slopes
            return -witness.linear_distances(0.0)[:num_candidates]
        return -torch.arange(num_candidates).double()[:, None].repeat(1, len(witness.x))

    def _objective(self, rivals: Tensor) -> Objective:
        if self.objective in TARGETED_OBJECTIVES:
            return TARGETED_OBJECTIVES[self.objective](rivals)
        return OBJECTIVES[self.objective]


def _sizes_of_rounds(num_candidates: int) -> Iterator[int]:
    yield num_candidates
    while num_candidates > 1:
        num_candidates = -(-num_candidates // _KEPT)
        yield num_candidates


def auto_pgd(
    witness: Witness, objective: Objective, moves: Tensor, radii: Tensor, *, num_steps: int
) -> tuple[Tensor, Tensor]:
    """Climb in balls from given points (Croce and Hein 2020, Algorithm 1); return the best moves, and the values there.

    Moves lead from the examples to where the climb starts, within ball and box, shape (num_examples, num_features); the
    radii (num_examples,) are > 0, in the witness's norm. The values, of the objective, are never below those at the
    start.
    """
    values, slopes = witness.climb(witness.x + moves, objective)
    best = _Best(moves, values, slopes)
    sizes, previous = 2.0 * radii, moves
    num_rises, is_halved, at_last_check = torch.zeros_like(values), torch.zeros_like(values, dtype=torch.bool), values
    since, checks = 0, set(_checks(num_steps))
    for step in range(num_steps):
        direction = climbing_direction(witness, moves, slopes, done=step / num_steps)
        ahead = witness.within(moves + sizes[:, None].to(moves.dtype) * direction, radii)
        if step > 0:
            ahead = _MOMENTUM * ahead + (1.0 - _MOMENTUM) * (2.0 * moves - previous)
            ahead = witness.within(ahead, radii)
        previous, moves = moves, ahead
        before, (values, slopes) = values, witness.climb(witness.x + moves, objective)
        best = best.or_better(_Best(moves, values, slopes))
        num_rises, since = num_rises + (values > before), since + 1
        if step + 1 in checks:
            is_stuck = (num_rises < _SHARE_OF_RISES * since) | (~is_halved & (best.values <= at_last_check))
            sizes = torch.where(is_stuck, sizes / 2.0, sizes)
            moves = torch.where(is_stuck[:, None], best.moves, moves)
            slopes = torch.where(is_stuck[:, None], best.slopes, slopes)
            is_halved, at_last_check, num_rises, since = is_stuck, best.values, torch.zeros_like(num_rises), 0
    return best.moves, best.values


@dataclass(frozen=True)
class _Best:
    """The highest points so far: moves, objective, and its gradients."""

    moves: Tensor
    values: Tensor
    slopes: Tensor

    def or_better(self, other: _Best) -> _Best:
        is_better = other.values > self.values
        return _Best(
            torch.where(is_better[:, None], other.moves, self.moves),
            torch.where(is_better, other.values, self.values),
            torch.where(is_better[:, None], other.slopes, self.slopes),
        )


def _checks(num_steps: int) -> Iterator[int]:
    """After which steps it is asked whether the climb is stuck."""
    share, gap = _FIRST_CHECK, _FIRST_CHECK
    while share < 1.0:
        yield math.ceil(share * num_steps - 1e-9)  # shares are sums of decimals
        gap = max(gap - _SOONER, _SHORTEST)
        share += gap
