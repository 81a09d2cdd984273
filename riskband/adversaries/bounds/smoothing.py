"""Randomised smoothing: what is proved of any model once Gaussian noise is added to its inputs (math §6.9).

The smoothed model predicts what the model predicts at x + noise, anew each time, so its 0-1 loss at x is the
probability of an error. Moved by an l2 distance t, a probability g becomes at most Phi(Phi^{-1}(g) + t / sigma) (Cohen
et al. 2019; Salman et al. 2019; Levine and Feizi 2020 for Wasserstein balls). It is not known, but counted on noise
samples; with one error more than was counted the bound holds in the mean over the noise, and certificates need no more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor, nn
from torch.nn import functional

from riskband.adversaries.base import Adversary, Batch, Evidence
from riskband.adversaries.curves import AdversarialCurves, Points
from riskband.adversaries.problem import TransportProblem
from riskband.checks import FloatArray, RefusedError
from riskband.models.evaluation import checked_logits, in_eval_mode

EXTRA_ERRORS = 1.0
"""So many more errors than were counted make the bound hold in the mean. Fewer than 0.8 do not."""
LARGEST_SCORE = 2.0
"""A bound above Phi of this, 0.977, counts as 1: one that held there too would need more extra errors."""

_NUM_STEPS = 48
_LARGEST_CURVATURE = 0.242  # of the normal distribution function: |x| exp(-x^2 / 2) / sqrt(2 pi) at x = 1
_INSIDE, _SMALLEST_SLOPE = 1.0 - 1e-6, 1e-30
_MAX_NUMBERS = 2**22  # of the inputs that the model is shown at once


# The attack on the smoothed model, of a published kind (Salman et al. 2019, SmoothAdv): steps along the gradient of the
# mean over a few noise samples, in balls of these radii if none are given, in units of the noise's deviation.
_ATTACKED_RADII = (0.5, 1.0, 2.0)
_NUM_ATTACK_STEPS, _NUM_ATTACK_SAMPLES = 8, 8


@dataclass(frozen=True, eq=False)
class SmoothedBatch(Batch):
    """Examples whose losses are the shares of noise samples on which the model errs."""

    reached: Tensor
    """The same shares, of other samples, where the attack led within each radius: (num_examples, num_radii)."""


class SmoothingAdversary(Adversary):
    """Proves from above, in the mean over its noise, what no movement does to the smoothed model.

    It attacks nothing, or the smoothed model, if the problem asks for a sandwich. The model may be any with logits for
    each example by itself, and is left as it was. The problem has 0-1 loss, norm "l2" and inputs; its adversary names
    the noise, else RefusedError is raised, and its seed decides it.
    """

    def __init__(self, model: nn.Module, problem: TransportProblem) -> None:
        if problem.smoothing is None:
            raise RefusedError(
                f"the adversary must be 'smoothing:SIGMA', got {problem.adversary!r}; such as smoothing:0.25"
            )
        self.model, self.noise = model, problem.smoothing
        self.order, self.seed = problem.order, problem.seed
        distances = problem.distances or tuple(radius * problem.smoothing.sigma for radius in _ATTACKED_RADII)
        self.radii = distances if problem.smoothing.is_attacked else ()

    def curves(self, batches: Iterable[Batch]) -> AdversarialCurves:
        """Return the curves of a client; the noise is decided by the seed and all its examples, not by the batches."""
        held = list(batches)
        source = _digest(held)
        return super().curves(self._smoothed(held, source))

    def examine(self, batch: Batch) -> Evidence:
        """Return bounding points; what is attained is the measured loss, and what an attack reached, if there was one.

        Both are counted on samples, so an attack may seem to reach more than was proved: such points are lowered.
        """
        if not isinstance(batch, SmoothedBatch):
            raise RefusedError("smoothing needs all examples of a client at once; use its method curves")
        counts, rows = np.unique(np.rint(batch.losses.numpy() * self.noise.num_samples), return_inverse=True)
        bounds = [bounding_curve(count, self.noise.num_samples, self.order) for count in counts.tolist()]
        costs, losses = (torch.from_numpy(np.array(column))[rows] for column in zip(*bounds, strict=True))
        reached = torch.tensor(self.radii, dtype=torch.float64).expand(len(batch.losses), -1)
        shares = (batch.losses + EXTRA_ERRORS / self.noise.num_samples).clamp(max=1.0)
        largest = torch.special.ndtr(torch.special.ndtri(shares)[:, None] + reached / self.noise.sigma)
        return Evidence(
            attained=Points(
                torch.cat([torch.zeros_like(shares)[:, None], reached.pow(self.order)], dim=1),
                torch.cat([batch.losses[:, None], batch.reached.minimum(largest)], dim=1),
            ),
            bounding=Points(costs * self.noise.sigma**self.order, losses),
            flip_costs=torch.full_like(batch.losses, torch.inf),
            is_expected=True,
        )

    def _smoothed(self, batches: Iterable[Batch], source: int) -> Iterator[SmoothedBatch]:
        """Batches with measured losses. Each example has noise of its own, whatever batch it is in."""
        position = 0
        for batch in batches:
            shares, reached = [], []
            for x, label in zip(batch.x, batch.labels, strict=True):
                sequence = np.random.SeedSequence([self.seed, source], spawn_key=(position,))
                rng = np.random.default_rng(sequence)
                # The attack's noise comes after, so that the losses are the same with an attack and without.
                points = [x, *self._attacked(x, label, sequence)]
                errors = [self._num_errors(point, label, rng) for point in points]
                shares.append(errors[0] / self.noise.num_samples)
                reached.append([count / self.noise.num_samples for count in errors[1:]])
                position += 1
            yield SmoothedBatch(
                x=batch.x,
                labels=batch.labels,
                logits=batch.logits,
                losses=torch.tensor(shares, dtype=torch.float64),
                reached=torch.tensor(reached, dtype=torch.float64).reshape(len(shares), -1),
            )

    def _attacked(self, x: Tensor, label: Tensor, sequence: np.random.SeedSequence) -> Iterator[Tensor]:
        """Yield the inputs to which the attack leads within each radius; its noise is its own."""
        rng = np.random.default_rng(sequence.spawn(1)[0])
        noise = torch.from_numpy(self.noise.sigma * rng.standard_normal((_NUM_ATTACK_SAMPLES, *x.shape))).to(x.dtype)
        labels, move = label.expand(_NUM_ATTACK_SAMPLES), torch.zeros_like(x)
        for radius in self.radii:
            for _ in range(_NUM_ATTACK_STEPS):
                at = move.clone().requires_grad_()
                with in_eval_mode(self.model), torch.enable_grad():
                    loss = functional.cross_entropy(checked_logits(self.model, x + at + noise, labels), labels)
                    (slope,) = torch.autograd.grad(loss, at)
                move = move + 2.5 * radius / _NUM_ATTACK_STEPS * slope / slope.norm().clamp(min=_SMALLEST_SLOPE)
                move = move * (radius * _INSIDE / move.norm().clamp(min=_SMALLEST_SLOPE)).clamp(max=1.0)
            yield x + move

    def _num_errors(self, x: Tensor, label: Tensor, rng: np.random.Generator) -> int:
        """How many noise samples are misclassified. Noise is added in float64: only then is the input rounded."""
        start, num_errors = x.double().numpy(), 0
        # Of a size that the input alone decides: how the model rounds must not depend on the batches.
        largest = max(1, _MAX_NUMBERS // max(1, x.numel()))
        with in_eval_mode(self.model), torch.no_grad():
            for first in range(0, self.noise.num_samples, largest):
                size = min(largest, self.noise.num_samples - first)
                noisy = start + self.noise.sigma * rng.standard_normal((size, *start.shape))
                labels = label.expand(size)
                logits = checked_logits(self.model, torch.from_numpy(noisy).to(x.dtype), labels)
                num_errors += int((logits.argmax(dim=1) != labels).sum())
        return num_errors


def bounding_curve(num_errors: float, num_samples: int, order: int) -> tuple[FloatArray, FloatArray]:
    """Return points whose concave hull lies above the bound of an example, for noise of standard deviation 1.

    The bound of the loss after a move by t is Phi(score + t) up to `LARGEST_SCORE`, and 1 beyond, where Phi(score) is
    the share of errors with `EXTRA_ERRORS`. Its mean over the noise is at least the loss: math §6.9. So many of the
    noise samples were misclassified; the cost of a move is t**order, 1 or 2. Costs and losses, (num_points,), are as
    many for all counts.
    """
    share = (num_errors + EXTRA_ERRORS) / num_samples
    score = float(ndtri(share)) if share < 1.0 else np.inf
    if score >= LARGEST_SCORE:
        return np.zeros(2 * _NUM_STEPS + 2), np.ones(2 * _NUM_STEPS + 2)
    # Closer near 0, where the square root of a cost is steep.
    distances = (LARGEST_SCORE - score) * np.linspace(0.0, 1.0, _NUM_STEPS + 1) ** 2
    # A chord may run below a function of this bend by so much; lifted, its ends are above.
    lifts = _LARGEST_CURVATURE * np.diff(distances) ** 2 / 8.0
    heights = ndtr(score + distances) + np.append(lifts, lifts[-1])  # a step is longer than the one before
    # Linear in the distance is concave in its square: tangents at the ends of a step meet in the middle (math §6.3).
    # For order 1 that point is on the chord, where it changes nothing.
    middles = (distances[1:] + distances[:-1]) / 2.0 if order == 1 else distances[1:] * distances[:-1]
    costs = np.concatenate([distances**order, middles, [distances[-1] ** order]])
    losses = np.concatenate([heights, (heights[1:] + heights[:-1]) / 2.0, [1.0]])
    return costs, losses


def _digest(batches: Iterable[Batch]) -> int:
    """A number that is another one for other examples: clients that hold different ones have independent noise."""
    digest = hashlib.sha256()
    for batch in batches:
        for x, label in zip(batch.x, batch.labels, strict=True):
            digest.update(np.ascontiguousarray(x.numpy()).tobytes() + int(label).to_bytes(8, "big", signed=True))
    return int.from_bytes(digest.digest(), "big")
