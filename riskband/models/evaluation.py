"""The loss of a model on a client's examples: a plain function, no Flower.

A model may be on any device. Only what it computes is computed there (`computed`): examples, attacks and proofs stay on
the CPU, where the same numbers are drawn and the same sums made, whatever the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from riskband.checks import RefusedError
from riskband.models.losses import get_loss

DEVICES = ("auto", "cpu", "cuda")
"""Where a model computes, by name; "auto" is a GPU if there is one."""

PRECISIONS = (torch.float32, torch.float64)
"""Of the weights of a model that is evaluated; examples are shown to it in the same."""


# A model of fewer weights is shown as many examples as are asked for; of a larger one, attacks hold this many numbers,
# 4 GB, with so many copies of an example: one for each rival, and itself.
_LARGE_MODEL, _ANY_BATCH = 2_000_000, 10**9
_NUMBERS_AT_ONCE, _COPIES = 1e9, 10

_FEWEST_CLASSES = 2
# So many examples tell whether logits are steady. What a batch decides is in those of any, and calls cost more than
# examples, so two are shown alone; noise may be rare, such as dropout, so a few are shown in a batch twice.
_NUM_TRIED, _NUM_ALONE = 8, 2
# Logits are the same if they differ by no more than so many roundings of the largest: in batches of another size torch
# adds up in another order. A deep net in float32 loses about ten.
_NUM_ROUNDINGS = 1000


def example_losses(model: nn.Module, x: np.ndarray, y: np.ndarray, *, loss: str, batch_size: int = 512) -> np.ndarray:
    """Return the loss of every example, float64 in [0, 1], (num_examples,).

    Raises ValueError if the loss is unknown, there are no examples, x and y differ in length, a label is outside the
    model's classes, a logit is not finite or a parameter is neither float32 nor float64. The texts carry no data
    values: on a client they travel to the server.

    Parameters
    ----------
    model : Module
        Maps a batch (batch, *x_shape) to logits (batch, num_classes). The batch is float64 if all
        its parameters are, else float32. Evaluated in eval mode; its previous mode is restored.
    x, y : ndarray, shapes (num_examples, *x_shape) and (num_examples,)
        Examples, and labels in 0..num_classes - 1.
    loss : str
        A name in `riskband.models.losses.LOSSES`.
    batch_size : int
        Examples per forward pass, fewer for a large model (`largest_batch`); bounds the memory, does not change the
        result beyond rounding.
    """
    per_example = get_loss(loss).per_example
    return torch.cat([per_example(logits, ys) for _, ys, logits in logit_batches(model, x, y, batch_size)]).numpy()


def mean_loss(model: nn.Module, x: np.ndarray, y: np.ndarray, *, loss: str, batch_size: int = 512) -> tuple[float, int]:
    """Return the empirical risk, in [0, 1], and the number of examples behind it.

    Parameters and errors are those of `example_losses`. For a binary loss the risk times the number
    of examples is a whole number up to one rounding, which the server checks.
    """
    losses = example_losses(model, x, y, loss=loss, batch_size=batch_size)
    return float(losses.mean()), len(losses)


def mean_losses(
    model: nn.Module, x: np.ndarray, y: np.ndarray, *, losses: Collection[str], batch_size: int = 512
) -> dict[str, float]:
    """Return the empirical risk of each of several losses, by name, from one pass; each bit for bit as `mean_loss`."""
    functions = {name: get_loss(name).per_example for name in losses}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in functions}
    for _, ys, logits in logit_batches(model, x, y, batch_size):
        for name, per_example in functions.items():
            found[name].append(per_example(logits, ys))
    return {name: float(torch.cat(parts).numpy().mean()) for name, parts in found.items()}


def logit_batches(
    model: nn.Module, x: np.ndarray, y: np.ndarray, batch_size: int = 512
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield inputs, labels and logits (float64, no gradients), one batch of examples at a time.

    Parameters and errors are those of `example_losses`, the loss apart.
    """
    if len(x) == 0:
        raise ValueError("there must be at least one example to evaluate, got none")
    if len(x) != len(y):
        raise ValueError(f"x and y must have the same length, got {len(x)} and {len(y)}")
    inputs = _as_inputs(model, x)
    labels = torch.from_numpy(np.array(y, dtype=np.int64))
    with in_eval_mode(model):
        batch_size = min(batch_size, largest_batch(model, inputs[:1]))
        for xs, ys in zip(torch.split(inputs, batch_size), torch.split(labels, batch_size), strict=True):
            with torch.no_grad():
                logits = checked_logits(model, xs.clone(), ys)  # what is yielded stays as it was
            yield xs, ys, logits


def is_steady(model: nn.Module, x: np.ndarray) -> bool:
    """Return whether a model, in eval mode, has the same logits for an example alone, in a batch, and asked again.

    The first `_NUM_TRIED` examples of x are tried, (num_examples, *x_shape). A model that fails is not steady, as a
    batch norm without running statistics may for one example.
    """
    tried = _as_inputs(model, x[:_NUM_TRIED])
    # Another input before them, so that also a single example has company, and is elsewhere than alone.
    batch = torch.cat([tried[:1].flatten().flip(0).reshape(tried[:1].shape) / 2.0, tried])
    with in_eval_mode(model), torch.no_grad():
        try:
            first, again = (computed(model, batch.clone()) for _ in range(2))
            alone = [computed(model, row.clone()) for row in torch.split(tried[:_NUM_ALONE], 1)]
            allowed = _NUM_ROUNDINGS * torch.finfo(tried.dtype).eps * float(first.abs().amax())
            other = torch.cat([again, *alone])
            same = torch.cat([first, first[1 : 1 + len(alone)]])
            return torch.allclose(same, other, rtol=0.0, atol=allowed, equal_nan=True)
        except Exception:  # a model of somebody else's may raise anything; where it is asked for an answer it is said
            return False


def _as_inputs(model: nn.Module, x: np.ndarray) -> torch.Tensor:
    """Return examples as a model is shown them: copies, for arrays may be read-only, and a model may work in place."""
    return torch.from_numpy(np.array(x, dtype=np.float64 if input_dtype(model) is torch.float64 else np.float32))


def chosen_device(name: str) -> torch.device:
    """Return the device of a name in `DEVICES`.

    On a GPU, torch is told for the whole process to multiply in full single precision, as the CPU does, and to choose
    its ways of computing a convolution without trying them out. Raises ValueError if there is no such name, or no GPU.
    """
    if name not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {name!r}; auto is a GPU if there is one")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and torch sees no GPU here; use auto or cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    return torch.device("cuda")


def device_of(model: nn.Module) -> torch.device:
    """Return where a model computes: where its first parameter or buffer is; the CPU if it has none."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def computed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return what a model, on whatever device, computes of inputs on the CPU: on the CPU, differentiable in them."""
    device = device_of(model)
    if device.type == "cpu":
        with nullcontext() if torch.is_grad_enabled() else _QuickPools():
            found: torch.Tensor = model(x)
    else:
        with full_precision():
            found = model(x.to(device)).cpu()
    return found


class _QuickPools(TorchFunctionMode):
    """Takes largest values of squares of 2 x 2 by comparing rows, then columns: the same numbers, bit for bit.

    Torch's own loop over images takes some ten times as long, most of what a small net needs. Not where gradients are
    wanted: of equal values torch passes the gradient to the first.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or do what it does."""
        if func is functional.max_pool2d and args and _halves(*args, **(kwargs or {})):
            x = args[0]
            rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
            return torch.maximum(rows[..., ::2], rows[..., 1::2])
        return func(*args, **(kwargs or {}))


def _halves(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether a call of max_pool2d takes squares of 2 x 2, side by side, of images whose sides are even."""
    asked = zip((kernel_size, 2 if stride is None else stride, padding, dilation), (2, 2, 0, 1), strict=True)
    is_plain = all(value in (usual, (usual, usual)) for value, usual in asked) and not return_indices
    return is_plain and x.is_floating_point() and all(size > 0 and size % 2 == 0 for size in x.shape[-2:])


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply in full single precision, as proofs need it; what a process has chosen for GPUs (TF32) is restored."""
    kinds: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [kind.allow_tf32 for kind in kinds]
    try:
        for kind in kinds:
            kind.allow_tf32 = False
        yield
    finally:
        for kind, was_allowed in zip(kinds, before, strict=True):
            kind.allow_tf32 = was_allowed


def on_cpu(model: nn.Module) -> nn.Module:
    """Return the model, or if it is on another device a copy on the CPU, where proofs are made."""
    return model if device_of(model).type == "cpu" else copy.deepcopy(model).cpu()


def largest_batch(model: nn.Module, x: torch.Tensor) -> int:
    """Return how many examples an attack may move at once, by what one of them, x, takes in the model's layers.

    The model alone decides, and not what memory is free: so answers do not depend on the machine.
    """
    if sum(value.numel() for value in model.parameters()) < _LARGE_MODEL:
        return _ANY_BATCH
    sizes: list[int] = []

    def note(_: nn.Module, __: object, found: object) -> None:
        sizes.append(found.numel() if isinstance(found, torch.Tensor) else 0)

    hooks = [layer.register_forward_hook(note) for layer in model.modules() if next(layer.children(), None) is None]
    try:
        with torch.no_grad():
            computed(model, x.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return max(1, int(_NUMBERS_AT_ONCE / max(1, _COPIES * sum(sizes))))


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode, and restore the modes of its modules, each its own: a layer may have been frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def checked_logits(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the logits of a batch in float64; errors are those of `example_losses`."""
    # float64 before the loss: a softmax in float32 would cost digits that the mean shows.
    try:
        logits: torch.Tensor = computed(model, x).double()
    except RuntimeError as error:
        if len({value.dtype for value in model.parameters() if value.is_floating_point()}) < 2:
            raise
        raise RefusedError(
            "a model must run on float32 examples, or have float64 parameters only, and this one has both and fails; "
            "convert it: model.float()"
        ) from error
    if logits.dim() != 2 or len(logits) != len(x) or logits.shape[1] < _FEWEST_CLASSES:
        raise RefusedError(
            f"a model must return a row of at least {_FEWEST_CLASSES} logits for each example, got the shape "
            f"{tuple(logits.shape)} for {len(x)}; of one logit z return (0, z)"
        )
    if not torch.isfinite(logits).all():
        raise ValueError("the model must return finite logits, got NaN or infinity")
    if y.min() < 0 or y.max() >= logits.shape[1]:
        raise ValueError(f"labels must lie in 0..{logits.shape[1] - 1}, the classes of the model")
    return logits


def input_dtype(model: nn.Module) -> torch.dtype:
    """Return in which precision a model is shown examples: float64 if all its parameters are, else float32.

    Raises RefusedError if a parameter is a number of another precision: its losses would be rounded too coarsely to say
    much.
    """
    found = {value.dtype for value in model.parameters() if value.is_floating_point() or value.is_complex()}
    other = sorted(str(dtype).removeprefix("torch.") for dtype in found - set(PRECISIONS))
    if other:
        raise RefusedError(f"a model's parameters must be float32 or float64, got {other[0]}; convert: model.float()")
    return torch.float64 if found == {torch.float64} else torch.float32
