"""Adversaries that move inputs: an author writes `InputAdversary.perturb`, and the rest is here and in `Witness`.

An attack proves nothing about what it did not find, so its guarantee is "lower" (math §6.1).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from riskband.adversaries.attacks.witness import Witness
from riskband.adversaries.base import Adversary, Batch, Evidence
from riskband.adversaries.curves import AdversarialCurves
from riskband.adversaries.evaluation import logit_batches
from riskband.adversaries.losses import get_loss
from riskband.adversaries.norms import lengths
from riskband.adversaries.problem import checked_box
from riskband.adversaries.spaces import points_at, split_at

# Distances at which attacks look, in units of `Witness.units`.
_FACTORS_OF_FLIPS = (1.001, 1.5, 2.5)  # the first just beyond where a linear model flips, whatever the rounding
_FACTORS_OF_SLOPES = (0.2, 0.5, 1.0, 1.5, 2.5)
# Rounding of single precision must not lead out of a ball.
INSIDE = 1.0 - 1e-6


@dataclass(frozen=True)
class InputProblem:
    """What an adversary in input space is asked.

    Attributes
    ----------
    loss : str
        A name in `riskband.adversaries.losses.LOSSES`.
    order : int
        1 or 2: the cost of moving by a distance t is t**order.
    norm : str
        Ground norm of the distance: "l1", "l2" or "linf".
    box : (float, float) or None
        Smallest and largest value that an entry of an input may have; None: any.
    distances : tuple of float
        Distances, > 0, at which attacks within a ball look; none: they choose them for each example.
    seed : int
        Of random starts.

    Raises
    ------
    ValueError
        If the box is empty or not finite, a distance is no such number, or the seed is none.
    """

    loss: str
    order: int
    norm: str
    box: tuple[float, float] | None = None
    distances: tuple[float, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.box is not None:
            object.__setattr__(self, "box", checked_box(self.box))
        object.__setattr__(self, "distances", _checked_distances(self.distances))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise ValueError(f"seed must be a whole number >= 0, got {self.seed!r}; it decides random starts")


class InputAdversary(Adversary):
    """Whoever perturbs inputs. An author writes `perturb`.

    Parameters
    ----------
    model : Module
        Differentiable in its inputs. It is left as it was.
    problem : InputProblem
        What is asked.

    Attributes
    ----------
    follows_gradients : bool
        Whether what it finds depends on the model's gradients; then examples that have none are counted.
    """

    follows_gradients = True

    def __init__(self, model: nn.Module, problem: InputProblem) -> None:
        self.model = model
        self.problem = problem
        self.restart()

    def restart(self) -> None:
        """Draw from the seed anew."""
        self.rng = np.random.default_rng(self.problem.seed)

    @abstractmethod
    def perturb(self, witness: Witness) -> None:
        """Show the witness inputs that may be costly: ``witness(points)``. Nothing is returned; what it saw counts."""

    def examine(self, batch: Batch) -> Evidence:
        """Return what was attained; nothing is proven."""
        problem = self.problem
        with frozen(self.model):
            witness = Witness(
                self.model, batch, loss=problem.loss, order=problem.order, norm=problem.norm, box=problem.box
            )
            self.perturb(witness)
            witness.shorten()
            without_gradient = witness.is_blind if self.follows_gradients else None
        return Evidence(
            attained=witness.points(),
            bounding=None,
            flip_costs=witness.distances.pow(problem.order),
            without_gradient=without_gradient,
        )

    def curves(self, batches: Iterable[Batch]) -> AdversarialCurves:
        """Return the curves of a client, as `Adversary.curves`; the random starts are those of the seed, every time."""
        self.restart()
        return super().curves(batches)

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
    """Return the curves of a client from its arrays.

    Parameters
    ----------
    adversary : Adversary
        Moves inputs, or what a layer returns: then its model is the rest of `model`, from `layers.split_at`.
    model, x, y, loss, batch_size :
        See `riskband.adversaries.evaluation.example_losses`, also for errors.
    layer : str, optional
        At the output of which layer examples move; None: they are the inputs.
    """
    per_example = get_loss(loss).per_example
    front, _ = split_at(model, layer)
    return adversary.curves(
        Batch(x=points_at(front, xs), labels=ys, logits=logits, losses=per_example(logits, ys))
        for xs, ys, logits in logit_batches(model, x, y, batch_size=batch_size)
    )


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode, without gradients of its parameters; restore both."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _checked_distances(values: Sequence[float]) -> tuple[float, ...]:
    try:
        distances = tuple(sorted(float(value) for value in values))
    except (TypeError, ValueError):
        raise ValueError(f"distances must be a list of numbers, finite and > 0, got {values!r}") from None
    if not all(0.0 < distance < math.inf for distance in distances):
        raise ValueError(f"distances must be finite and > 0, got {', '.join(f'{d:g}' for d in distances)}")
    return distances
