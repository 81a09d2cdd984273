"""What every adversary shares: an author writes `Adversary.examine`; pooling, checks and the guarantee are here.

An adversary looks at single examples. It reports points (cost, loss) that it attains, and, where it can prove them,
points whose concave hull lies above everything any transport of the example can do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from riskband.adversaries.curves import AdversarialCurves, Points, Pool
from riskband.answers.concave_curves import ConcaveCurve


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples as an adversary gets them."""

    x: Tensor
    """Inputs, (num_examples, *x_shape)."""
    labels: Tensor
    """Whole numbers, (num_examples,)."""
    logits: Tensor
    """Of the model, float64, (num_examples, num_classes)."""
    losses: Tensor
    """Of the logits, float64 in [0, 1], (num_examples,)."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What an adversary found out about a batch."""

    attained: Points
    """Perturbed examples that exist, at most this expensive, with at least this loss (or limits of such)."""
    bounding: Points | None
    """Together with the unperturbed example, their concave hull is proven to lie above q. None: nothing is proven. The
    same object as `attained`: the hull is q."""
    flip_costs: Tensor
    """Cost of the cheapest misclassified point, (num_examples,): 0 if the example is misclassified, `inf` if there is
    none."""
    suprema: Mapping[float, Tensor] = field(default_factory=dict)
    """Multipliers at which more is proven, the same for every batch: upper bounds, (num_examples,), of sup over c of
    q(c) - multiplier * c."""
    asked_suprema: Mapping[float, Tensor] = field(default_factory=dict)
    """The same, for the conjugates only: whatever multipliers are asked for, the values at the radii are those of one
    curve, so that answers to several questions belong together."""
    unmoved: Tensor | None = None
    """With bounding points: upper bounds of the losses at cost 0, (num_examples,), at most the bounds nearby. None: the
    losses of the batch, which the model computed, are that."""
    without_gradient: Tensor | None = None
    """Whether the model showed an attack no gradient to follow, or one that misled it, (num_examples,). None: no
    gradient was needed."""
    is_expected: bool = False
    """Whether the bounding points lie above in the mean over noise that the adversary drew, and not always."""

    @property
    def guarantee(self) -> str:
        """One of `GUARANTEES`."""
        if self.bounding is None:
            return "lower"
        if self.is_expected:
            return "upper in expectation"
        return "exact" if self.bounding is self.attained else "upper"


class Adversary(ABC):
    """Base of adversaries that move a client's examples; a subclass writes `examine`, the rest is done here."""

    @abstractmethod
    def examine(self, batch: Batch) -> Evidence:
        """Return what can be said about each example of a batch; no loop over examples is needed."""

    def restart(self) -> None:  # noqa: B027 - most have nothing to forget
        """Begin anew, as for every client: what is random is drawn from the seed again, nothing is remembered."""

    def curves(self, batches: Iterable[Batch]) -> AdversarialCurves:
        """Return the curves of a client from its examples, at least one in all.

        One batch at a time is held; of a batch only the pieces of its hulls are kept. Raises RuntimeError if the
        evidence contradicts itself: the adversary is wrong.
        """
        self.restart()
        lower, upper = Pool(), Pool()
        kinds: set[tuple[str, tuple[float, ...]]] = set()
        clean, flips = [], []
        unmoved: list[Tensor] = []
        without_gradient: list[Tensor | None] = []
        suprema: dict[float, float] = {}
        asked_suprema: dict[float, float] = {}
        for batch in batches:
            evidence = self.examine(batch)
            kinds.add((evidence.guarantee, (*evidence.suprema, *evidence.asked_suprema)))
            clean.append(batch.losses)
            flips.append(evidence.flip_costs)
            unmoved.append(batch.losses if evidence.unmoved is None else evidence.unmoved.maximum(batch.losses))
            without_gradient.append(evidence.without_gradient)
            lower.add(batch.losses, _checked(evidence.attained, largest=1.0))
            if evidence.bounding is not None and evidence.guarantee != "exact":
                upper.add(unmoved[-1], _checked(evidence.bounding))
            _add_sums(suprema, evidence.suprema)
            _add_sums(asked_suprema, evidence.asked_suprema)
        if len(kinds) != 1:
            raise RuntimeError("an adversary must give one guarantee, at the same multipliers, for all examples")
        guarantee, _ = kinds.pop()
        below = lower.curve(round_up=False)
        above = upper.curve(round_up=True) if upper.pieces else ConcaveCurve(np.zeros(1), np.ones(1))
        losses, costs = torch.cat(clean), torch.cat(flips)
        costs = costs[torch.isfinite(costs)]
        return AdversarialCurves(
            clean_risk=float(losses.numpy().mean()),
            num_examples=len(losses),
            adversarial_unit=float(costs.mean()) if len(costs) else 0.0,
            guarantee=guarantee,
            lower=below,
            upper=below if guarantee == "exact" else above,
            lines=_mean_lines(suprema, len(losses)),
            asked_lines=_mean_lines(asked_suprema, len(losses)),
            unmoved_risk=float(torch.cat(unmoved).numpy().mean()),
            num_without_gradient=_count(without_gradient),
        )


def _add_sums(sums: dict[float, float], bounds_by_multiplier: Mapping[float, Tensor]) -> None:
    for multiplier, bounds in bounds_by_multiplier.items():
        sums[multiplier] = sums.get(multiplier, 0.0) + float(bounds.sum())


def _count(parts: Iterable[Tensor | None]) -> int | None:
    known = [int(part.sum()) for part in parts if part is not None]
    return sum(known) if known else None


def _mean_lines(sums: Mapping[float, float], num_examples: int) -> tuple[tuple[float, float], ...]:
    return tuple((multiplier, total / num_examples) for multiplier, total in sorted(sums.items()))


def _checked(points: Points, *, largest: float = np.inf) -> Points:
    costs, losses = points.costs, points.losses
    is_in_range = (losses >= 0.0) & (losses <= largest) & torch.isfinite(losses)
    if costs.shape != losses.shape or not bool(((costs >= 0.0) & is_in_range).all()):
        raise RuntimeError(
            "an adversary must report costs >= 0 and as many finite losses >= 0, attained ones at most 1"
        )
    return points
