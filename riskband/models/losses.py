"""Losses of single examples, scaled to [0, 1] as every certificate needs them.

To add one: a function (logits, labels) -> losses in [0, 1] and an entry in `LOSSES`; for a loss with a parameter, a
function of the parameter that returns a `LossFunction` and an entry in `FAMILIES`. They are made of the methods of
tensors: who only asks whether a loss is binary, as servers do, need not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CROSS_ENTROPY_CAP = 10.0
"""Log-loss in nats that counts as loss 1; a cross-entropy needs a cap to be bounded at all."""

ABSTENTION_COST = 0.25
"""Loss of an example on which the model abstains, whatever its label; a wrong prediction costs 1."""


@dataclass(frozen=True)
class LossFunction:
    """A loss as data: (logits (num_examples, num_classes), labels (num_examples,)) -> losses (num_examples,) in [0, 1].

    It is differentiable in the logits almost everywhere, or binary, always 0 or 1: then a client's risk is a whole
    number of errors out of its examples, and exact binomial limits apply.
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
    one_hot = logits.new_zeros(logits.shape).scatter(1, labels[:, None], 1.0)
    # Rounding may pass 1 by an ulp when all the mass is on a wrong class.
    return ((probabilities - one_hot).square().sum(dim=1) / 2).clamp(max=1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return min(-log p(label), cap) / cap with the cap `CROSS_ENTROPY_CAP`, natural logarithm."""
    nats = -logits.log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
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


def abstention(threshold: float) -> LossFunction:
    """Return the loss of a model that may abstain (reject option): "abstain:THRESHOLD".

    Where the largest predicted probability is below the threshold the loss is `ABSTENTION_COST`, elsewhere it is 0 or
    1 for a right or wrong prediction. At 0 the model never abstains. Raises ValueError if the threshold is not in [0,
    1].
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"the threshold of 'abstain' must be in [0, 1], got {threshold:g}; it is a probability")

    def per_example(logits: Tensor, labels: Tensor) -> Tensor:
        is_sure = logits.softmax(dim=1).amax(dim=1) >= threshold
        return zero_one(logits, labels).where(is_sure, logits.new_tensor(ABSTENTION_COST))

    return LossFunction(f"abstain:{float(threshold)!r}", per_example, binary=False)


FAMILIES: Mapping[str, Callable[[float], LossFunction]] = {"abstain": abstention}
"""Losses with a parameter, which follows the name and a colon: "abstain:0.8"."""


def _unknown(logits: Tensor, labels: Tensor) -> Tensor:
    raise ValueError(f"the loss {OWN!r} is only known to who measured it; no model can be judged by it")


OWN = "own"
"""The name of a loss that clients compute by functions of their own: any number in [0, 1] for each example."""

_OWN_LOSS = LossFunction(OWN, _unknown, binary=False)


def get_loss(name: str) -> LossFunction:
    """Return the loss of this name, such as "zero_one" or "abstain:0.8"; of `OWN` all but how it is computed.

    Raises ValueError if there is none; the message lists the known names.
    """
    if name in LOSSES:
        return LOSSES[name]
    if name == OWN:
        return _OWN_LOSS
    family, _, parameter = name.partition(":")
    if family not in FAMILIES:
        raise ValueError(f"loss must be one of {', '.join(sorted(LOSSES))}, got {name!r}; or write 'abstain:0.8'")
    try:
        number = float(parameter)
    except ValueError:
        raise ValueError(f"the loss {family!r} needs a number, as in 'abstain:0.8', got {name!r}") from None
    return FAMILIES[family](number)
