"""Worst mean losses outside [0, 1]: cross-entropy in nats and the modified hinge, before a linear head. Estimates.

No certificate is about them: confidence bounds need losses that are bounded. WC-DG (Mehra et al. 2022, equation 2 and
Algorithm 1) takes the largest mean loss of a *sample* within a 2-Wasserstein distance in representation space. Here an
example ascends loss - price * squared distance at a grid of prices, and the points reached are shared out exactly (math
§6.1): the minimum over the price, at every distance at once. What is returned is attained by a distribution within the
distance. For the hinge the ascent has a closed form; for the cross-entropy it starts towards every class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from riskband.adversaries.attacks.witness import wrong_margin
from riskband.adversaries.curves import Points, Pool
from riskband.adversaries.representation.ascent import GRADIENTS, ascend, squared_lengths
from riskband.adversaries.representation.exact import LinearHead
from riskband.checks import FloatArray
from riskband.models.losses import CROSS_ENTROPY_CAP

HINGE_LEAK = 0.1
"""Slope of the modified hinge where the margin is above 1: the paper's."""
_NUM_PRICES = 80
_NUM_STEPS = 15


@dataclass(frozen=True)
class UnboundedLoss:
    """A loss of examples, in units of its own, from logits (num_examples, num_classes) and labels (num_examples,).

    `best_pull`: (logits, labels, price, gram) -> the pull on the logits that maximises loss - price * squared distance,
    as far as is known, (num_examples, num_classes); see `ascent.ascend`.
    """

    per_example: Callable[[Tensor, Tensor], Tensor]
    best_pull: Callable[[Tensor, Tensor, float, Tensor], Tensor]


def nats(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy in nats, >= 0, without a cap."""
    return cross_entropy(logits, labels, reduction="none")


def hinge(logits: Tensor, labels: Tensor) -> Tensor:
    """Return max(0, 1 - t) - 0.1 max(0, t - 1) for t, the label's logit less the largest other one."""
    missing = 1.0 + wrong_margin(logits, labels)
    return missing.maximum(HINGE_LEAK * missing)


def worst_mean_losses(
    model: nn.Module, x: np.ndarray, y: np.ndarray, *, loss: str, distances: npt.ArrayLike, batch_size: int = 512
) -> FloatArray:
    """Return the largest mean loss that was reached within each distance, as the module says: an estimate from below.

    Model and examples are as of `riskband.models.evaluation.example_losses`; the logits must be the output of an
    `nn.Linear`. The loss is a name in `UNBOUNDED_LOSSES`; distances, (num_distances,), are 2-Wasserstein distances >= 0
    in the space before the last linear layer; labels do not move. The losses, of that shape, do not fall with the
    distance; at 0 stands the mean loss as it is. Raises ValueError if the loss is unknown, a distance is no number >=
    0, or as `adversarial_curves` does.
    """
    if loss not in UNBOUNDED_LOSSES:
        raise ValueError(f"loss must be one of {', '.join(UNBOUNDED_LOSSES)}, got {loss!r}; others lie in [0, 1]")
    asked = np.asarray(distances, dtype=np.float64)
    if asked.ndim != 1 or not np.all(np.isfinite(asked) & (asked >= 0.0)):
        raise ValueError("distances must be finite numbers >= 0 in one row; give for example [0, 0.5, 1]")
    rule = UNBOUNDED_LOSSES[loss]
    clean, reached = [], []
    with LinearHead(model) as head:
        for batch in head.batches(x, y, loss="zero_one", batch_size=batch_size):
            gram = head.weight @ head.weight.T
            prices = _prices(asked, speed=float(head.dual_distances("l2").max()))
            clean.append(rule.per_example(batch.logits, batch.labels))
            reached.append(_climbed(rule, batch.logits, batch.labels, gram, prices))
    return _shared_out(torch.cat(clean), reached, asked)


def _climbed(rule: UnboundedLoss, logits: Tensor, labels: Tensor, gram: Tensor, prices: FloatArray) -> Points:
    costs, losses = [], []
    for price in prices:
        pull = rule.best_pull(logits, labels, float(price), gram)
        costs.append(squared_lengths(pull, gram) / (4.0 * price**2))
        losses.append(rule.per_example(logits + pull @ gram / (2.0 * price), labels))
    if not costs:
        return Points(logits.new_zeros((len(labels), 1)), rule.per_example(logits, labels)[:, None])
    return Points(torch.stack(costs, dim=1), torch.stack(losses, dim=1))


def _prices(distances: FloatArray, *, speed: float) -> FloatArray:
    """At a price of speed / (2 distance) an example whose loss has all its slope moves by the distance."""
    positive = distances[distances > 0.0]
    if positive.size == 0 or speed == 0.0:
        return np.empty(0)
    # Few examples may move far, and many a little where their loss has hardly any slope yet.
    return np.geomspace(speed / (100.0 * positive.max()), 4.0 * speed / positive.min(), _NUM_PRICES)


def _shared_out(clean: Tensor, reached: list[Points], distances: FloatArray) -> FloatArray:
    """Spend each mean squared distance where it raises the loss most, on losses that are scaled to [0, 1] for it."""
    losses = torch.cat([points.losses for points in reached])
    low, high = float(clean.min()), float(torch.maximum(clean.max(), losses.max()))
    span = max(high - low, 1e-300)
    pool = Pool()
    pool.add((clean - low) / span, Points(torch.cat([each.costs for each in reached]), (losses - low) / span))
    return low + span * pool.curve(round_up=False)(distances**2)


def _pull_of_nats(logits: Tensor, labels: Tensor, price: float, gram: Tensor) -> Tensor:
    """The best of the ascents from here, and from where a pull towards each class alone would lead."""
    num_examples, num_classes = logits.shape
    label = one_hot(labels, num_classes).to(logits.dtype)
    starts = torch.eye(num_classes, dtype=logits.dtype).repeat(num_examples, 1)
    own = labels.repeat_interleave(num_classes)
    rows = logits.repeat_interleave(num_classes, dim=0)
    targets = torch.where((starts.argmax(dim=1) == own)[:, None], rows.softmax(dim=1), starts)
    first = targets - label.repeat_interleave(num_classes, dim=0)
    there, pull, _ = ascend(_gradient_of_nats, rows, own, pull=first, price=price, gram=gram, num_steps=_NUM_STEPS)
    values = nats(there, own) - squared_lengths(pull, gram) / (4.0 * price)
    best = values.reshape(num_examples, num_classes).argmax(dim=1)
    return pull.reshape(num_examples, num_classes, -1)[torch.arange(num_examples), best]


def _gradient_of_nats(logits: Tensor, labels: Tensor) -> Tensor:
    return CROSS_ENTROPY_CAP * GRADIENTS["cross_entropy"](logits, labels)


def _pull_of_hinge(logits: Tensor, labels: Tensor, price: float, gram: Tensor) -> Tensor:
    """The loss is the largest of affine functions a(1 + m_k), whose best points are known: a s_k / (2 price) away.

    For the margins m_k of the wrong classes, which grow at most with the speeds s_k, and the slopes a, 1 and the leak.
    """
    label = one_hot(labels, logits.shape[1]).to(logits.dtype)
    margins = logits - logits.gather(1, labels[:, None])
    margins = margins.scatter(1, labels[:, None], -torch.inf)
    lengths = gram.diagonal()
    squares = lengths[labels][:, None] + lengths[None, :] - 2.0 * gram[labels]
    slopes = torch.tensor([1.0, HINGE_LEAK], dtype=logits.dtype)[:, None, None]
    values = slopes * (1.0 + margins) + slopes.square() * squares / (4.0 * price)  # (2, num_examples, num_classes)
    best, target = values.max(dim=2)
    chosen = best.argmax(dim=0)
    targets = target.gather(0, chosen[None]).squeeze(0)
    slope = slopes.flatten()[chosen]
    return slope[:, None] * (one_hot(targets, logits.shape[1]).to(logits.dtype) - label)


UNBOUNDED_LOSSES = {"nats": UnboundedLoss(nats, _pull_of_nats), "hinge": UnboundedLoss(hinge, _pull_of_hinge)}
"""By name."""
