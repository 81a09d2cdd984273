"""Losses of single examples, scaled to [0, 1] as every certificate needs them.

To add one: a function (logits, labels) -> losses in [0, 1] and an entry in `LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

CROSS_ENTROPY_CAP = 10.0
"""Log-loss in nats that counts as loss 1; a cross-entropy needs a cap to be bounded at all."""


@dataclass(frozen=True)
class LossFunction:
    """A loss as data.

    Attributes
    ----------
    name : str
        Its key in `LOSSES`.
    per_example : callable
        (logits (num_examples, num_classes), labels (num_examples,)) -> losses (num_examples,) in
        [0, 1]; differentiable in the logits almost everywhere unless `binary`.
    binary : bool
        True if a loss is always 0 or 1, so that a client's risk is a whole number of errors out of
        its examples and exact binomial limits apply.
    """

    name: str
    per_example: Callable[[Tensor, Tensor], Tensor]
    binary: bool


def zero_one(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the largest logit is not the label's, else 0."""
    return (logits.argmax(dim=1) != labels).to(logits.dtype)


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """Return half the squared distance of the predicted probabilities from the one-hot label.

    Half, because the largest squared distance of two probability vectors is 2 (Brier, 1950).
    """
    probabilities = logits.softmax(dim=1)
    one_hot = functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
    # Rounding may pass 1 by an ulp when all the mass is on a wrong class.
    return ((probabilities - one_hot).square().sum(dim=1) / 2).clamp(max=1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return min(-log p(label), cap) / cap with the cap `CROSS_ENTROPY_CAP`, natural logarithm."""
    nats = functional.cross_entropy(logits, labels, reduction="none")
    return nats.clamp(min=0, max=CROSS_ENTROPY_CAP) / CROSS_ENTROPY_CAP


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (1 + the largest wrong logit - the label's logit) / 2, cut to [0, 1].

    At most 0.5 exactly where the prediction is right; a hinge that saturates on both sides.
    """
    label = labels[:, None]
    largest_wrong = logits.scatter(1, label, float("-inf")).amax(dim=1)
    return ((1 + largest_wrong - logits.gather(1, label).squeeze(1)) / 2).clamp(0, 1)


LOSSES: dict[str, LossFunction] = {
    loss.name: loss
    for loss in (
        LossFunction("zero_one", zero_one, binary=True),
        LossFunction("brier", brier, binary=False),
        LossFunction("cross_entropy", cross_entropy, binary=False),
        LossFunction("margin", margin, binary=False),
    )
}


def get_loss(name: str) -> LossFunction:
    """Return the loss of this name.

    Raises
    ------
    ValueError
        If there is none; the message lists the known names.
    """
    if name not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(sorted(LOSSES))}, got {name!r}")
    return LOSSES[name]
