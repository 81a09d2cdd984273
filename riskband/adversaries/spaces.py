"""The space at a layer: the model up to there says where an example starts, the rest is what is attacked (math §6.8).

At the output of a named layer of a chain the examples are its activations, and the logits are the tail's: whatever is
known of attacks on inputs, and of Lipschitz bounds, holds for the tail (Mehra et al. 2022, equation 2).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from riskband.adversaries.base import Batch
from riskband.adversaries.bounds.layer_norms import has_hooks
from riskband.checks import RefusedError
from riskband.models.evaluation import computed, logit_batches
from riskband.models.losses import get_loss


def split_at(model: nn.Module, name: str | None) -> tuple[nn.Module, nn.Module]:
    """Return a model in two, front and tail, which share its layers: ``tail(front(x))`` are its logits.

    The front, an `nn.Sequential`, possibly of such, at least around the layer, ends with the layer of this name, such
    as "2", or "features.3" in a chain within a chain. None: the inputs themselves are what moves, and the front is the
    identity. Raises RefusedError if the model is no chain around a layer of this name.
    """
    return (nn.Identity(), model) if name is None else _halves(model, name, whole=name)


def points_at(front: nn.Module, x: Tensor) -> Tensor:
    """Return where examples start to move, (num_examples, *point_shape); the front is that of `split_at`, in eval mode.

    Raises RefusedError if the front does not return finite features, a row for each example.
    """
    with torch.no_grad():
        points: Tensor = computed(front, x.clone())  # a copy: a layer may work in place
    is_tensor = isinstance(points, Tensor) and points.is_floating_point()
    if not is_tensor or points.dim() < 2 or len(points) != len(x) or not bool(torch.isfinite(points).all()):
        raise RefusedError(
            "the layer at which examples move must return one tensor with a row of finite features for each, and does "
            "not; name another layer"
        )
    return points


def point_batches(
    model: nn.Module, x: np.ndarray, y: np.ndarray, *, loss: str, batch_size: int = 512, layer: str | None = None
) -> Iterator[Batch]:
    """Yield batches of examples as the points that move: what a layer returns, or the inputs where that is None.

    Arguments and errors are those of `riskband.models.evaluation.example_losses` and `split_at`.
    """
    per_example = get_loss(loss).per_example
    front, _ = split_at(model, layer)
    for xs, ys, logits in logit_batches(model, x, y, batch_size=batch_size):
        yield Batch(x=points_at(front, xs), labels=ys, logits=logits, losses=per_example(logits, ys))


def _halves(model: nn.Module, name: str, *, whole: str) -> tuple[nn.Sequential, nn.Sequential]:
    """Cut a chain behind the layer of this name; layers keep their names, by which refusals call them."""
    if type(model) is not nn.Sequential or has_hooks(model):
        raise RefusedError(
            f"the space 'layer:{whole}' needs a model that is a chain around that layer (an nn.Sequential, possibly of "
            f"such, without hooks), got {type(model).__name__}; write the model as one, or use another space"
        )
    layers = [(key, layer) for key, layer in model._modules.items() if layer is not None]  # also one that comes twice
    keys = [key for key, _ in layers]
    first, _, rest = name.partition(".")
    if first not in keys:
        raise RefusedError(
            f"the space 'layer:{whole}' must name a layer of the model, and there is no {first!r}; there are "
            f"{', '.join(keys)}"
        )
    index = keys.index(first)
    if not rest:
        return _chain(layers[: index + 1]), _chain(layers[index + 1 :])
    front, tail = _halves(layers[index][1], rest, whole=whole)
    return _chain([*layers[:index], (first, front)]), _chain([(first, tail), *layers[index + 1 :]])


def _chain(layers: Sequence[tuple[str, nn.Module]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))
