"""Adversaries that move inputs: an author writes `InputAdversary.perturb`, and the rest is here and in `Witness`.

An attack proves nothing about what it did not find, so its guarantee is "lower" (math §6.1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from riskband.adversaries.attacks.witness import Witness
from riskband.adversaries.base import Adversary, Batch, Evidence
from riskband.adversaries.curves import AdversarialCurves
from riskband.adversaries.norms import lengths
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.spaces import point_batches
from riskband.checks import RefusedError, check_count
from riskband.models.evaluation import in_eval_mode, is_steady

# Distances at which attacks look, in units of `Witness.units`.
_FACTORS_OF_FLIPS = (1.001, 1.5, 2.5)  # the first just beyond where a linear model flips, whatever the rounding
_FACTORS_OF_SLOPES = (0.2, 0.5, 1.0, 1.5, 2.5)
# Rounding of single precision must not lead out of a ball.
INSIDE = 1.0 - 1e-6


class InputAdversary(Adversary):
    """Base of attacks that perturb inputs; a subclass writes `perturb`.

    The model, differentiable in its inputs, is left as it was. `counts` are settings: numbers >= 1 that are attributes
    of the attack's class, which holds the defaults. Raises ValueError if one is no whole number, too small, or none of
    the attack's.
    """

    parts: Sequence[InputAdversary] = ()
    """Attacks that this one consists of."""
    follows_gradients = True
    """Whether what it finds depends on the model's gradients; then examples that have none are counted."""
    num_steps = 1

    def __init__(self, model: nn.Module, problem: TransportProblem, **counts: int) -> None:
        self.model = model
        self.problem = problem
        for name, count in counts.items():
            if not name.startswith("num_") or not hasattr(type(self), name):
                raise ValueError(f"{type(self).__name__} has no setting {name!r}; see its class")
            minimum = 0 if name in ("num_restarts", "num_refinements") else 1
            setattr(self, name, check_count(name, count, minimum=minimum, remedy="it decides how long is searched"))
        self.restart()

    def balls(self, witness: Witness) -> Iterator[tuple[Tensor, Witness, Tensor]]:
        """Yield, in every ball of the ladder that is open, rows of the examples, a witness of them, and their radii.

        What that witness was shown meanwhile counts.
        """
        for radii in self.ladder(witness):
            rows = witness.is_open(radii).nonzero().squeeze(1)
            if len(rows) > 0:
                part = witness.select(rows)
                yield rows, part, radii[rows]
                witness.absorb(part, rows)

    def restart(self) -> None:
        """Draw from the seed anew, also in every part."""
        self.rng = np.random.default_rng(self.problem.seed)
        for part in self.parts:
            part.restart()

    @abstractmethod
    def perturb(self, witness: Witness) -> None:
        """Show the witness inputs that may be costly: ``witness(points)``. Nothing is returned; what it saw counts."""

    def examine(self, batch: Batch) -> Evidence:
        """Return what was attained; nothing is proven."""
        problem = self.problem
        with frozen(self.model):
            witness = Witness(self.model, batch, problem)
            self.perturb(witness)
            witness.shorten()
            without_gradient = witness.is_blind | witness.is_misled if self.follows_gradients else None
        return Evidence(
            attained=witness.points(),
            bounding=None,
            flip_costs=problem.costs(witness.distances),
            without_gradient=without_gradient,
        )

    def ladder(self, witness: Witness) -> Iterator[Tensor]:
        """Yield increasing distances, shape (num_examples,), to look at: the problem's, or multiples of the units."""
        if self.problem.distances:
            yield from (torch.full_like(witness.distances, distance * INSIDE) for distance in self.problem.distances)
        else:
            factors = _FACTORS_OF_FLIPS if self.problem.loss == "zero_one" else _FACTORS_OF_SLOPES
            yield from (witness.units * factor for factor in factors)

    def noise(self, witness: Witness, num_copies: int) -> Tensor:
        """Return random directions of length 1, shape (num_copies, num_examples, num_features).

        They do not depend on how the examples are cut into batches.
        """
        num_examples, num_features = witness.x.shape
        drawn = self.rng.standard_normal((num_examples, num_copies, num_features), dtype=np.float32)
        directions = torch.from_numpy(drawn).transpose(0, 1)
        return (directions / lengths(directions, self.problem.norm)[..., None]).to(witness.x.dtype)


def check_within_balls(problem: TransportProblem, name: str) -> None:
    """Check that an attack within balls knows their radii; raises RefusedError."""
    if not problem.distances:
        raise RefusedError(f"distances must be given for {name!r}, got none; it attacks within a ball")


def client_curves(
    adversary: Adversary,
    model: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    *,
    loss: str,
    batch_size: int = 512,
    layer: str | None = None,
) -> AdversarialCurves:
    """Return the curves of a client from its arrays; see `steadied` and `evaluation.example_losses`.

    The adversary moves inputs, or what the layer of this name returns: then its model is the rest of `model`, from
    `spaces.split_at`.
    """
    found = adversary.curves(point_batches(model, x, y, loss=loss, batch_size=batch_size, layer=layer))
    return steadied(found, model, x)


def steadied(curves: AdversarialCurves, model: nn.Module, x: np.ndarray) -> AdversarialCurves:
    """Return curves that say whether the model is unsteady; raises RefusedError if it is, and they prove something."""
    if is_steady(model, x):
        return curves
    if curves.guarantee == "lower":
        return replace(curves, is_unsteady=True)
    raise RefusedError(
        "what is proved is proved of a model with the same logits for an example alone, in any batch, and whenever it "
        "is asked, and this one has others, or fails; write it without randomness, with running statistics and in full "
        "precision, or use an attack, which needs no proof"
    )


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode, without gradients of its parameters; restore both."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with in_eval_mode(model):
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
