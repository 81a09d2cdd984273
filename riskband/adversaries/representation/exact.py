"""The space before the last linear layer: which layer that is, and what is exact there (math §6.2).

There an example is its representation z, the last linear layer's input, and the logits are Wz + b. A transport may move
z anywhere (as in Mehra et al. 2022); what lies before the last linear layer only decides where z starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from riskband.adversaries.base import Adversary, Batch, Evidence
from riskband.adversaries.curves import Points
from riskband.adversaries.norms import DUAL_EXPONENTS
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.representation.growth import GROWTHS, reach
from riskband.checks import RefusedError
from riskband.models.evaluation import logit_batches
from riskband.models.losses import get_loss

# The model may compute in float32, the check is in float64: shares of what the logits say (their differences), and of
# the terms that are summed, which may cancel.
_HEAD_TOLERANCE, _ROUNDING_OF_SUMS = 1e-5, 2e-6


class LinearHead:
    """The linear layer whose output is the model's logits; a context manager that watches the model, and leaves it.

    It is the layer of this name in ``model.named_modules()``, or the last one that fits. Hooks are added on entry and
    removed on exit. Raises RefusedError if the model has no `nn.Linear` of that name, or none at all.
    """

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        linear = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
        if name is not None and name not in linear:
            raise RefusedError(
                f"head must name an nn.Linear of the model, got {name!r}; its linear layers are {', '.join(linear)}"
            )
        self._model = model
        self._layers = list(linear.values()) if name is None else [linear[name]]
        if not self._layers:
            raise RefusedError("the model must have an nn.Linear that returns its logits, got a model without any")
        self._inputs: dict[nn.Linear, Tensor] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._found: nn.Linear | None = None

    def __enter__(self) -> LinearHead:
        self._hooks = [layer.register_forward_hook(self._note) for layer in self._layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._inputs.clear()

    def check(self, logits: Tensor) -> Tensor:
        """Check that the logits of the last forward pass came out of the last linear layer; find it at the first call.

        Returns what that layer was given, (num_examples, num_features): the examples in representation space. Raises
        RefusedError if they did not, to single precision.
        """
        called = [layer for layer in reversed(self._inputs) if self._found in (None, layer)]
        self._found = next((layer for layer in called if self._explains(layer, logits)), None)
        inputs = dict(self._inputs)
        self._inputs.clear()
        if self._found is None:
            raise RefusedError(
                "the model's logits must be the output of one nn.Linear, W z + b, and they are not; return that "
                "layer's output unchanged (no softmax), or name the layer as head"
            )
        return inputs[self._found]

    def batches(self, x: np.ndarray, y: np.ndarray, *, loss: str, batch_size: int = 512) -> Iterator[Batch]:
        """Yield checked batches of what the last linear layer is given; see `evaluation.logit_batches` and `check`."""
        per_example = get_loss(loss).per_example
        for _, labels, logits in logit_batches(self._model, x, y, batch_size):
            yield Batch(x=self.check(logits), labels=labels, logits=logits, losses=per_example(logits, labels))

    @cached_property
    def weight(self) -> Tensor:
        """W, float64, shape (num_classes, num_features); known after the first `check`."""
        if self._found is None:
            raise RuntimeError("the head is only known after a forward pass was checked")
        return self._found.weight.detach().cpu().double()

    def dual_distances(self, norm: str) -> Tensor:
        """Return the norms dual to `norm` of all w_j - w_k, shape (num_classes, num_classes)."""
        exact = "donot_use_mm_for_euclid_dist"  # the fast way loses digits where rows are close
        return torch.cdist(self.weight, self.weight, p=DUAL_EXPONENTS[norm], compute_mode=exact)

    def _note(self, layer: nn.Linear, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        self._inputs.pop(layer, None)  # a layer that is called twice counts as called last
        self._inputs[layer] = inputs[0].detach().cpu()

    def _explains(self, layer: nn.Linear, logits: Tensor) -> bool:
        z, weight = self._inputs[layer].double(), layer.weight.detach().cpu().double()
        if z.shape != (len(logits), weight.shape[1]) or logits.shape[1] != len(weight):
            return False
        bias = torch.zeros(len(weight)).double() if layer.bias is None else layer.bias.detach().cpu().double()
        error = (z @ weight.T + bias - logits).abs()
        said = (logits - logits.mean(dim=1, keepdim=True)).abs().max()
        summed = z.abs() @ weight.abs().T + bias.abs()
        return bool((error <= _HEAD_TOLERANCE * said + _ROUNDING_OF_SUMS * summed).all())


class RepresentationAdversary(Adversary):
    """What every adversary before the last linear layer needs, for the loss and cost of a problem.

    The head has checked the logits of every batch before it is examined. Good conjugates are wanted at the multipliers
    >= 0; the values at the radii do not depend on them.
    """

    def __init__(self, head: LinearHead, problem: TransportProblem, multipliers: Sequence[float] = ()) -> None:
        self.head, self.multipliers = head, multipliers
        self.loss, self.order, self.norm, self.costs = problem.loss, problem.order, problem.norm, problem.costs

    @cached_property
    def _distances(self) -> Tensor:
        return self.head.dual_distances(self.norm)

    def geometry(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return margins and the largest speeds at which they grow, shapes (num_examples, num_classes).

        At the label the margin is `-inf` and the speed 0.
        """
        margins = batch.logits - batch.logits.gather(1, batch.labels[:, None])
        return margins.scatter(1, batch.labels[:, None], -torch.inf), self._distances[batch.labels]

    def flip_costs(self, batch: Batch) -> Tensor:
        """Return the exact cost of the cheapest misclassified point, shape (num_examples,); see `Evidence`.

        The distance to the nearest boundary between the label and another class is margin / ||w_label - w_j|| in the
        dual norm. On the boundary the loss jumps; the cost is that of points just beyond.
        """
        margins, speeds = self.geometry(batch)
        distances = torch.where(speeds > 0.0, (-margins).clamp(min=0.0) / speeds, torch.inf)
        distances = distances.scatter(1, batch.labels[:, None], torch.inf).amin(dim=1)
        is_wrong = batch.logits.argmax(dim=1) != batch.labels
        return self.costs(torch.where(is_wrong, 0.0, distances))


class ExactAdversary(RepresentationAdversary):
    """The worst case itself, where each example has one price for loss 1: see `names.is_exact`."""

    def examine(self, batch: Batch) -> Evidence:
        """Return for each example the one point (cost, loss 1) that an adversary can want."""
        flip_costs = self.flip_costs(batch)
        costs = flip_costs
        if self.loss != "zero_one":
            growth = GROWTHS[self.loss]
            costs = reach(*self.geometry(batch), growth, growth.saturation)
        points = Points(costs[:, None], torch.ones_like(costs)[:, None])
        return Evidence(attained=points, bounding=points, flip_costs=flip_costs)
