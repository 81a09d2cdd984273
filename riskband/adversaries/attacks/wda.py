"""The Wasserstein distributional attack (WDA, Algorithm 1), and its points with mass shared out optimally."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from riskband.adversaries.attacks.apgd import Apgd
from riskband.adversaries.attacks.base import InputAdversary, client_curves
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.pgd import Pgd, has_slopes
from riskband.adversaries.attacks.square import Square
from riskband.adversaries.attacks.wc_dg import WcDg
from riskband.adversaries.attacks.witness import Witness, margin_of, wrong_margin
from riskband.adversaries.curves import Points
from riskband.adversaries.norms import steepest
from riskband.adversaries.problem import TransportProblem

# A step, in units of the ball: that of the paper's strongest l2 attack (0.2 in a ball of 0.5).
_STEP = 0.4
# Random search seldom comes nearer than attacks that follow a gradient which leads where it points: by a tenth of the
# cost, or with a tenth more loss, is more than luck.
_CLEARLY_CHEAPER, _CLEARLY_MORE = 0.9, 0.1


class Wda(InputAdversary):
    """WDA's ascent: every rival is tried at every step of a probe, then the one that leads is pursued alone.

    The ascent runs in balls of radius kappa * epsilon. A curve over all cost budgets holds the attack for every kappa:
    moving a share 1/kappa of each example to such a distance is one way to spend a mean cost of epsilon.

    `step` is the length of a step in units of the ball, above 0.
    """

    num_steps, num_probes = 30, 10  # in all, and of the probe, as published

    def __init__(self, model: nn.Module, problem: TransportProblem, *, step: float = _STEP, **counts: int) -> None:
        super().__init__(model, problem, **counts)
        if not 0.0 < step < float("inf"):
            raise ValueError(f"step must be finite and > 0, got {step}; it is in units of the ball")
        self.step = step
        if self.num_probes > self.num_steps:
            sizes = f"{self.num_probes} of {self.num_steps}"
            raise ValueError(f"num_probes must be at most num_steps, got {sizes}; raise num_steps")

    def perturb(self, witness: Witness) -> None:
        """Attack in every ball of the ladder. All iterates count, so the best one is kept."""
        for _, part, radii in self.balls(witness):
            self._ascend(part, radii)

    def _ascend(self, witness: Witness, radii: Tensor) -> None:
        points, rivals = witness.x, witness.rivals[0]
        for step in range(self.num_steps):
            is_probe = step < self.num_probes
            if is_probe:
                _, slopes = witness.rival_slopes(points)
            else:
                _, slope = witness.climb(points, margin_of(rivals))
                slopes = slope[None]
            points, logits = self._step(witness, points, slopes, radii)
            tried = witness.rivals if is_probe else rivals[None]
            leader = logits.gather(-1, tried[..., None]).squeeze(-1).argmax(dim=0, keepdim=True)
            rivals = tried.gather(0, leader).squeeze(0)
            points = points.gather(0, leader[..., None].expand(1, *witness.x.shape)).squeeze(0)

    def _step(self, witness: Witness, points: Tensor, slopes: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
        sizes = (self.step * radii)[:, None].to(points.dtype)
        moves = points + sizes * steepest(witness.open_slopes(points, slopes), self.problem.norm) - witness.x
        ahead = witness.x + witness.within(moves, radii)
        return ahead, witness(ahead)


class WdaKnapsack(InputAdversary):
    """The closest misclassified, or worst, points of all attacks here: min-norm, PGD, WDA, WC-DG where it adds some.

    Mass is shared out optimally, as for every adversary. All points of every part are among the choices, and WDA's way
    of sharing is one way: so this is never weaker than any of them at the same budget, and than WDA for any kappa.

    For the 0-1 loss Auto-PGD comes last: in the balls of the problem's distances, for examples in which no part found a
    flip, and in balls that end just before the nearest flips of all examples.

    Where the model shows no gradient (`Witness.is_blind`), all these are blind: there `Square` takes over. It also
    watches the first examples; where it clearly finds more, gradients are there and mislead, and it searches all.
    """

    num_watched = 8

    def __init__(self, model: nn.Module, problem: TransportProblem) -> None:
        kinds = (MinNorm, Pgd, Wda, WcDg) if has_slopes(problem.loss) else (MinNorm, Pgd, Wda)
        self._alone = [kind(model, problem) for kind in kinds]
        self._auto_pgd = Apgd(model, problem)
        # Two, so that what they draw for an example does not depend on the batches. A third of the search is enough to
        # see whether there is more: of small nets whose gradients pointed back it saw as many as all of it did.
        self._watching = Square(model, problem, num_steps=50, num_refinements=6)
        self._square = Square(model, problem)
        self.parts = [*self._alone, self._auto_pgd, self._watching, self._square]
        super().__init__(model, problem)

    def restart(self) -> None:
        """Draw from the seed anew, and watch the first examples again."""
        super().restart()
        self._num_left, self._are_misleading = self.num_watched, False

    def perturb(self, witness: Witness) -> None:
        """Run all parts, each as if it were alone; then look nearer than they did, and where they saw nothing."""
        if witness.is_differentiable:
            self._follow_gradients(witness)
        is_open = wrong_margin(witness.logits, witness.labels) < witness.level
        seen = (is_open & ~witness.is_blind).nonzero().squeeze(1)
        watched, others = seen[: self._num_left], seen[self._num_left :]
        self._num_left -= len(watched)
        self._search(self._watching, witness, watched)
        self._are_misleading |= bool(witness.is_misled.any())
        blind = witness.is_blind.nonzero().squeeze(1)
        rows = torch.cat([blind, others]).sort().values if self._are_misleading else blind
        self._search(self._square, witness, rows)

    @staticmethod
    def _search(square: Square, witness: Witness, rows: Tensor) -> None:
        """Search at these examples, and note where that clearly finds more than was found before."""
        if len(rows) == 0:
            return
        before, part = witness.points(), witness.select(rows)
        square.perturb(part)
        part.shorten()
        before = Points(before.costs[rows], before.losses[rows])
        witness.is_misled[rows] = _is_beaten(before, part.points(), part.losses)
        witness.absorb(part, rows)

    def _follow_gradients(self, witness: Witness) -> None:
        for part in self._alone:
            own = witness.fresh()
            part.perturb(own)
            own.shorten()
            witness.absorb(own)
        if self.problem.loss == "zero_one":
            if self.problem.distances:
                self._auto_pgd.perturb(witness)
            self._auto_pgd.refine(witness)


def _is_beaten(reached: Points, found: Points, losses: Tensor) -> Tensor:
    """Return where a found point has clearly more loss than was reached at a cost that is not clearly larger.

    Shape (num_examples,), as of the losses without a move.
    """
    best = losses[:, None].expand_as(found.losses)
    for costs, reached_losses in zip(reached.costs.T, reached.losses.T, strict=True):
        is_near = _CLEARLY_CHEAPER * costs[:, None] <= found.costs
        best = torch.where(is_near, best.maximum(reached_losses[:, None]), best)
    return (torch.isfinite(found.costs) & (found.losses > best + _CLEARLY_MORE)).any(dim=1)


@dataclass(frozen=True)
class WdaResult:
    """What WDA attained with one budget: shares of examples that are classified rightly.

    As they are, within a distance kappa * radius, and, `wda_accuracy` of both, the published figure: on a distribution
    within W_1 distance `radius`.
    """

    clean_accuracy: float
    attacked_accuracy: float
    accuracy: float
    is_unsteady: bool = False
    """As of `AdversarialCurves`: the model has no accuracy of its own."""


def wda_attack(
    model: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    *,
    norm: str,
    radius: float,
    kappa: float = 2.0,
    box: tuple[float, float] | None = None,
) -> WdaResult:
    """Return WDA's accuracy with a W_1 budget, as published; raises ValueError if an argument breaks its rule.

    For model and examples see `riskband.models.evaluation.example_losses`.

    Parameters
    ----------
    norm : str
        Ground norm: "l1", "l2" or "linf".
    radius : float
        The budget epsilon > 0: mean distance by which mass moves.
    kappa : float
        At least 1: a share 1/kappa of every example moves, up to kappa * radius. 1 is a pointwise attack.
    box : (float, float) or None
        See `TransportProblem`.
    """
    wda_accuracy(1.0, 1.0, kappa=kappa)
    if not 0.0 < radius < float("inf"):
        raise ValueError(f"radius must be finite and > 0, got {radius}; it is a mean distance")
    problem = TransportProblem("zero_one", 1, norm, "input", box=box, distances=(kappa * radius,))
    curves = client_curves(Wda(model, problem), model, x, y, loss="zero_one")
    clean, attacked = 1.0 - curves.clean_risk, max(0.0, 1.0 - float(curves.lower.values[-1]))
    return WdaResult(clean, attacked, wda_accuracy(clean, attacked, kappa=kappa), curves.is_unsteady)


def wda_accuracy(clean_accuracy: float, attacked_accuracy: float, *, kappa: float) -> float:
    """Return (1 - 1/kappa) * clean + (1/kappa) * attacked: the accuracy on WDA's distribution (WDA, equation 10).

    Raises ValueError if an accuracy is not in [0, 1], or kappa is not finite and at least 1.
    """
    for name, accuracy in (("clean_accuracy", clean_accuracy), ("attacked_accuracy", attacked_accuracy)):
        if not 0.0 <= accuracy <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {accuracy}; it is a share of the examples")
    if not 1.0 <= kappa < float("inf"):
        raise ValueError(f"kappa must be finite and at least 1, got {kappa}; a share 1/kappa of the mass moves")
    return (1.0 - 1.0 / kappa) * clean_accuracy + attacked_accuracy / kappa
