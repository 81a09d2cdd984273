"""Losses without a closed form, before the last linear layer: what ascent attains, and proven bounds (math §6.3).

Attained: along straight lines in directions that ascent found, and, for order-2 costs, at the maximiser of
loss - multiplier * cost. Proven: the loss within each distance (`growth.bounding_points`), and, for order-2 costs, the
strong concavity of loss - multiplier * cost once twice the multiplier exceeds the curvature of the loss: with modulus
m, the supremum is at most the value reached plus |gradient|^2 / (2m), however far the ascent came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from riskband.adversaries.base import Batch, Evidence
from riskband.adversaries.curves import Points
from riskband.adversaries.norms import steepest
from riskband.adversaries.representation.exact import RepresentationAdversary
from riskband.adversaries.representation.growth import (
    GROWTHS,
    Growth,
    bounding_points,
    distance_grid,
    radial_profile,
    reach,
)
from riskband.models.losses import CROSS_ENTROPY_CAP, get_loss

# Multipliers of our own, in units of the one above which ascent is certified: a radius needs a price near its own.
_CERTIFIED = (1.02, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 256.0, 1024.0)
_UNCERTIFIED = (0.9, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05)
_NUM_STEPS = 40
_NUM_TURNS = 8
# Where a line is tried after the loss's bound has saturated, in units of that distance.
_BEYOND = torch.tensor([1.25, 1.5, 2.0, 4.0], dtype=torch.float64)


class AscentAdversary(RepresentationAdversary):
    """Ascent from each example, for the losses in `growth.GROWTHS`; parameters as of `RepresentationAdversary`."""

    @cached_property
    def growth(self) -> Growth:
        """Of the loss."""
        return GROWTHS[self.loss]

    def examine(self, batch: Batch) -> Evidence:
        """Return attained points, proven points and proven suprema."""
        margins, speeds = self.geometry(batch)
        bounding = bounding_points(self.growth, margins, speeds, batch.losses, order=self.order)
        climbs = {price: self._climb(batch, price) for price in self._own_prices}
        return Evidence(
            attained=_joined([self._along_lines(batch, margins, speeds), *(reached for reached, _ in climbs.values())]),
            bounding=bounding,
            flip_costs=self.flip_costs(batch),
            suprema={price: bound for price, (_, bound) in climbs.items()},
            asked_suprema={price: self._climb(batch, price)[1] for price in self._asked_prices},
        )

    def _along_lines(self, batch: Batch, margins: Tensor, speeds: Tensor) -> Points:
        """Points towards saturation of the loss."""
        if self.growth.is_tight or batch.logits.shape[1] == 2:  # one margin rules: some direction attains the bound
            distances = self._finite_grid(margins, speeds)
            return Points(distances.pow(self.order), radial_profile(self.growth, margins, speeds, distances))
        lines = [self._points_on_line(batch, margins, rates) for rates in self._lines(batch.labels, margins, speeds)]
        return _joined(lines)

    def _points_on_line(self, batch: Batch, margins: Tensor, rates: Tensor) -> Points:
        distances = self._finite_grid(margins, rates)
        distances = torch.cat([distances, distances[:, -1:] * _BEYOND], dim=1)
        logits = margins.scatter(1, batch.labels[:, None], 0.0)
        per_example = get_loss(self.loss).per_example
        losses = [per_example(logits + distance[:, None] * rates, batch.labels) for distance in distances.T]
        return Points(distances.pow(self.order), torch.stack(losses, dim=1))

    def _finite_grid(self, margins: Tensor, speeds: Tensor) -> Tensor:
        distances = distance_grid(self.growth, margins, speeds, order=self.order)
        return torch.where(torch.isfinite(distances), distances, 0.0)

    def _lines(self, labels: Tensor, margins: Tensor, speeds: Tensor) -> list[Tensor]:
        """Return lines on which the loss saturates, as rates of the logits over the label's.

        One runs towards the class that can saturate the loss soonest alone, one towards the next. The last is the
        first, turned to the steepest ascent at its own end as long as it gets shorter (linearise and maximise: each
        turn is an ascent of a convex function over a ball). On it, wrong classes may come to share the label's loss.
        """
        label = functional.one_hot(labels, margins.shape[1]).double()
        missing = torch.where(speeds > 0.0, (self.growth.saturation - margins).clamp(min=0.0) / speeds, torch.inf)
        targets = functional.one_hot(missing.topk(2, dim=1, largest=False).indices, margins.shape[1]).double()
        best_rates, best_ends = first, _ = self._line(targets[:, 0] - label, labels, margins)
        second, _ = self._line(targets[:, 1] - label, labels, margins)
        for _ in range(_NUM_TURNS):
            at_end = margins + torch.where(torch.isfinite(best_ends), best_ends, 0.0)[:, None] * best_rates
            rates, ends = self._line(at_end.softmax(dim=1) - label, labels, margins)
            is_better = ends < best_ends
            best_ends = torch.where(is_better, ends, best_ends)
            best_rates = torch.where(is_better[:, None], rates, best_rates)
        return [first, second, best_rates]

    def _line(self, pull: Tensor, labels: Tensor, margins: Tensor) -> tuple[Tensor, Tensor]:
        """Return rates of the logits over the label's along the unit vector that follows a pull on the logits best.

        And the distance at which the loss saturates there.
        """
        rates = steepest(pull @ self.head.weight, self.norm) @ self.head.weight.T
        rates = rates - rates.gather(1, labels[:, None])
        return rates, reach(margins, rates, self.growth, self.growth.saturation)

    @cached_property
    def _gram(self) -> Tensor:
        return self.head.weight @ self.head.weight.T

    @cached_property
    def _curvature(self) -> float | None:
        """A bound on the second derivative of the loss along any unit vector of z; None if there is none."""
        if self.growth.curvature is None or self.order != 2:
            return None
        centred = self.head.weight - self.head.weight.mean(dim=0)  # losses do not see a shift of all logits
        spread = float(torch.linalg.eigvalsh(centred @ centred.T)[-1])
        return self.growth.curvature * max(spread, 0.0) * (1.0 + 1e-9)

    @cached_property
    def _own_prices(self) -> list[float]:
        """Multipliers to ascend at, whatever is asked."""
        certain = (self._curvature or 0.0) / 2.0  # above it, ascent is certified
        return sorted(certain * factor for factor in _CERTIFIED + _UNCERTIFIED) if certain else []

    @cached_property
    def _asked_prices(self) -> list[float]:
        """Multipliers that are asked, but for those too small for ascent to prove anything."""
        return [price for price in self.multipliers if self._curvature and 2.0 * price > self._curvature]

    def _climb(self, batch: Batch, price: float) -> tuple[Points, Tensor]:
        """Ascend loss - price * cost (order 2) and return the points reached, and a bound of each supremum.

        See `ascend`.
        """
        gradient = GRADIENTS[self.loss]
        pull = gradient(batch.logits, batch.labels)
        logits, last, pull = ascend(
            gradient, batch.logits, batch.labels, pull=pull, price=price, gram=self._gram, num_steps=_NUM_STEPS
        )
        cost = squared_lengths(last, self._gram) / (4.0 * price**2)
        loss = get_loss(self.loss).per_example(logits, batch.labels)
        reached = Points(cost[:, None], loss[:, None])
        modulus = 2.0 * price - (self._curvature or 0.0)
        if modulus <= 0.0:
            return reached, torch.ones_like(cost)
        value = _uncapped(self.loss, logits, batch.labels) - price * cost
        supremum = value + squared_lengths(pull - last, self._gram) / (2.0 * modulus)
        return reached, supremum.clamp(max=1.0)


Gradient = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) -> the gradient of a loss in the logits, (num_examples, num_classes)."""


def ascend(
    gradient: Gradient, logits: Tensor, labels: Tensor, *, pull: Tensor, price: float, gram: Tensor, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Ascend loss - price * squared distance before a linear head, from a first pull on the logits.

    A gradient step of length 1/(2 price) lands at gradient/(2 price) from the example, whatever it started from, so all
    can be done on the logits: a pull p on them moves z by W'p / (2 price), and the logits by WW'p / (2 price). `gram`
    is WW', the price > 0, and `pull` a gradient in the logits of the examples as they are, (num_examples, num_classes).

    Returns the logits reached, the pull that led there, and the gradient there; all of that shape.
    """
    for _ in range(num_steps):
        last = pull
        reached = logits + last @ gram / (2.0 * price)
        pull = gradient(reached, labels)
    return reached, last, pull


def squared_lengths(pull: Tensor, gram: Tensor) -> Tensor:
    """Return |W'p|^2 for pulls p on the logits, shape (num_examples,); the gram matrix is that of `ascend`."""
    return ((pull @ gram) * pull).sum(dim=1).clamp(min=0.0)


def _joined(points: Sequence[Points]) -> Points:
    return Points(
        costs=torch.cat([part.costs for part in points], dim=1),
        losses=torch.cat([part.losses for part in points], dim=1),
    )


def _uncapped(loss: str, logits: Tensor, labels: Tensor) -> Tensor:
    if loss == "cross_entropy":
        return functional.cross_entropy(logits, labels, reduction="none") / CROSS_ENTROPY_CAP
    return get_loss(loss).per_example(logits, labels)


def _cross_entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.softmax(dim=1) - functional.one_hot(labels, logits.shape[1])) / CROSS_ENTROPY_CAP


def _brier_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    probabilities = logits.softmax(dim=1)
    residual = probabilities - functional.one_hot(labels, logits.shape[1])
    return probabilities * (residual - (probabilities * residual).sum(dim=1, keepdim=True))


GRADIENTS: dict[str, Gradient] = {"cross_entropy": _cross_entropy_gradient, "brier": _brier_gradient}
