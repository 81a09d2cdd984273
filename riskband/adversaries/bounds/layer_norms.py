"""Proved upper bounds of what one layer does to a distance, in float64 (math §6.4).

A layer is known by its exact type: a subclass, or a layer with hooks, may compute anything. Two things are said of
each: how far each output can move when each input moves by at most so much (`spread`), and an upper bound of its
Lipschitz constant in l2 (`spectral`). Both hold for the layer as its weights define it, in exact arithmetic.

Power iteration is not used: it converges to a spectral norm from below, so wherever it is stopped it proves nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as hooks_of_all

from riskband.adversaries.bounds import parts
from riskband.checks import RefusedError
from riskband.models.evaluation import PRECISIONS
from riskband.models.group_sort import GroupSort

# Up to here a matrix has its singular values computed (about a second); larger ones get a bound from Gram iteration.
_LARGEST_SVD_SIDE = 1024
_LARGEST_UNROLLED = 2**18
_NUM_SQUARINGS = 8


@dataclass(frozen=True)
class LayerRule:
    """What is proved about a kind of layer, which the functions are given.

    `spread`: (layer, moves) -> how far outputs move at most when inputs move by at most `moves` >= 0, entry by entry;
    batches of float64 in both. `spectral`: (layer, input shape) -> an upper bound of its Lipschitz constant from l2 to
    l2. `is_linear`: whether the layer is affine. `keeps_channels`: whether it treats all channels (entries along the
    first axis of an input) alike, each by itself.
    """

    spread: Callable[[Any, Tensor], Tensor]
    spectral: Callable[[Any, tuple[int, ...]], float]
    is_linear: bool
    keeps_channels: bool = False


def svd_norm(matrix: Tensor) -> float:
    """Return the largest singular value of a float64 matrix, to rounding."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def gram_bound(matrix: Tensor, *, num_squarings: int = _NUM_SQUARINGS) -> float:
    """Return an upper bound of the spectral norm by Gram iteration (Delattre et al. 2023).

    With G_0 = A Aᵀ and G_{i+1} = G_i G_iᵀ, the norm is at most ||G_k||_F^(1/2^(k+1)), whatever k: the bound comes down
    to the norm from above, and is too large by a factor of at most rank^(1/2^(k+2)).
    """
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    log_scale = 0.0  # G_k divided by exp(log_scale): the powers would overflow
    for _ in range(num_squarings):
        size = float(torch.linalg.matrix_norm(gram))
        if size == 0.0:
            return 0.0
        gram, log_scale = gram / size, 2.0 * (log_scale + math.log(size))
        gram = gram @ gram.T
    return math.exp((log_scale + math.log(float(torch.linalg.matrix_norm(gram)))) / 2.0 ** (num_squarings + 1))


def mixed_bound(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """Return sqrt(||J||_1 ||J||_inf), an upper bound of ||J||_2, for any layer whose `spread` is linear."""
    ones = torch.ones(1, *shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        rows = RULES[type(layer)].spread(layer, ones)
        (columns,) = torch.autograd.grad(rows.sum(), ones)
    return float((rows.amax() * columns.amax()).detach().sqrt())


def matrix_bound(matrix: Tensor) -> float:
    """Return the spectral norm of a float64 matrix if it is small, else a proved upper bound."""
    return svd_norm(matrix) if min(matrix.shape) <= _LARGEST_SVD_SIDE else gram_bound(matrix)


def unrolled(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return the matrix of an affine layer, float64, shape (num_outputs, num_inputs); inputs flattened."""
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return _linear_part(layer, basis).flatten(1).T


def transposed(layer: nn.Module, shape: tuple[int, ...], rows: Tensor) -> Tensor:
    """Return rows @ J for an affine layer; rows (num_rows, *output shape) in, (num_rows, *shape) out."""
    x = torch.zeros(len(rows), *shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (products,) = torch.autograd.grad(_linear_part(layer, x), x, grad_outputs=rows)
    return products


def torus_bound(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, shape: tuple[int, ...]) -> float:
    """Return an upper bound of a convolution's spectral norm: that of the convolution on a torus around its input.

    Padding embeds the input in the torus, and the outputs are some of the torus's: both have norm 1. On the torus the
    Fourier transform splits the operator into one small matrix per frequency; a stride s folds s^d frequencies into
    one, over s^(d/2), in d axes.
    """
    weight = layer.weight.detach().double()
    axes, stride = range(weight.dim() - 2), layer.stride
    # Larger than the padded input, so that strides divide it and no kernel is wrapped onto itself.
    sizes = []
    for axis in axes:
        reach = layer.dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        if isinstance(layer.padding, str):
            padding = reach - 1 if layer.padding == "same" else 0
        else:
            padding = 2 * layer.padding[axis]
        sizes.append(-(-max(shape[1 + axis] + padding, reach) // stride[axis]) * stride[axis])
    kernel = weight.new_zeros(*weight.shape[:2], *sizes)
    taps = [slice(0, (weight.shape[2 + axis] - 1) * layer.dilation[axis] + 1, layer.dilation[axis]) for axis in axes]
    kernel[(slice(None), slice(None), *taps)] = weight
    folds = [part for axis in axes for part in (stride[axis], sizes[axis] // stride[axis])]
    spectrum = torch.fft.fftn(kernel, dim=[2 + axis for axis in axes])
    spectrum = spectrum.reshape(layer.groups, -1, weight.shape[1], *folds)
    frequencies, folded = [4 + 2 * axis for axis in axes], [3 + 2 * axis for axis in axes]
    per_frequency = spectrum.permute(0, *frequencies, 1, 2, *folded).flatten(2 + len(axes))
    return float(torch.linalg.matrix_norm(per_frequency, ord=2).amax()) / math.sqrt(math.prod(stride))


def scale_of(layer: Any) -> Tensor:
    """Return by what a batch norm multiplies each channel, float64."""
    assert layer.running_var is not None  # layers without it are refused
    scale: Tensor = (layer.running_var.double() + layer.eps).rsqrt()
    return scale if layer.weight is None else layer.weight.detach().double() * scale


def _linear_part(layer: Any, x: Tensor, *, is_absolute: bool = False) -> Tensor:
    """Apply an affine layer without its offset; with absolute weights if so asked."""
    if isinstance(layer, BATCH_NORMS):
        weight = scale_of(layer)
        return x * (weight.abs() if is_absolute else weight).reshape(1, -1, *[1] * (x.dim() - 2))
    if isinstance(layer, parts.Scale):
        return x * (layer.constant.double().abs() if is_absolute else layer.constant.double())
    if isinstance(layer, parts.Shift):
        return x
    if type(layer) in (nn.Linear, *CONVOLUTIONS):
        weight = layer.weight.detach().double()
        return _weighted(layer, weight.abs() if is_absolute else weight, x)
    result: Tensor = layer(x)
    return result


def added(layer: parts.Sum, x: Tensor, step: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
    """Take x through each branch of a sum, in steps of one layer, and return the sum."""
    ends = []
    for chain in layer.chains:
        ends.append(x)
        for part in chain:
            ends[-1] = step(part, ends[-1])
    return torch.stack(ends).sum(dim=0)


def _weighted(layer: Any, weight: Tensor, x: Tensor) -> Tensor:
    """Apply a Linear layer or a convolution with this weight and without its bias."""
    if isinstance(layer, nn.Linear):
        return functional.linear(x, weight)
    settings = {key: getattr(layer, key) for key in ("stride", "padding", "dilation", "groups")}
    result: Tensor = getattr(functional, f"conv{x.dim() - 2}d")(x, weight, **settings)
    return result


def _absolute(layer: nn.Module, moves: Tensor) -> Tensor:
    return _linear_part(layer, moves, is_absolute=True)


def _conv_spectral(layer: Any, shape: tuple[int, ...]) -> float:
    if math.prod(shape_behind(layer, shape)) * math.prod(shape) <= _LARGEST_UNROLLED:
        return matrix_bound(unrolled(layer, shape))
    return min(mixed_bound(layer, shape), torus_bound(layer, shape))


def shape_behind(layer: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what a layer makes of one example."""
    return tuple(RULES[type(layer)].spread(layer, torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])


def _spread(layer: nn.Module, moves: Tensor) -> Tensor:
    return RULES[type(layer)].spread(layer, moves)


def chain_spectral(chain: Iterable[nn.Module], shape: tuple[int, ...]) -> float:
    """Return the product of the norms of layers in a row."""
    bound = 1.0
    for layer in chain:
        bound, shape = bound * RULES[type(layer)].spectral(layer, shape), shape_behind(layer, shape)
    return bound


def in_groups(layer: Any, x: Tensor) -> Tensor:
    """Return features as a normalisation sees them, (num_examples, num_groups, size): each group has one scale."""
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        if x.shape[1:][-len(layer.normalized_shape) :] != tuple(layer.normalized_shape):
            raise ValueError(f"features must end with {tuple(layer.normalized_shape)}, got {tuple(x.shape[1:])}")
        return x.reshape(len(x), -1, math.prod(layer.normalized_shape))
    num_channels = layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.num_features
    if x.shape[1] != num_channels:
        raise ValueError(f"features must have {num_channels} channels, got {x.shape[1]}")
    return x.reshape(len(x), layer.num_groups if isinstance(layer, nn.GroupNorm) else num_channels, -1)


def group_weights(layer: Any, size: int) -> Tensor:
    """Return the sizes of a normalisation's weights, float64, (1 or num_groups, size)."""
    if layer.weight is None:
        return torch.ones(1, size, dtype=torch.float64)
    weight: Tensor = layer.weight.detach().double().abs()
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return weight.reshape(1, size)
    num_groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else len(weight)
    return weight.repeat_interleave(num_groups * size // len(weight)).reshape(num_groups, size)


def _normalised_spread(layer: Any, moves: Tensor) -> Tensor:
    groups = in_groups(layer, moves)
    lengths = torch.linalg.vector_norm(groups, dim=2, keepdim=True) / math.sqrt(float(layer.eps or 0.0))
    spread: Tensor = group_weights(layer, groups.shape[2]) * lengths
    return spread.reshape(moves.shape)


def _normalised_spectral(layer: Any, _: tuple[int, ...]) -> float:
    largest = 1.0 if layer.weight is None else float(layer.weight.detach().double().abs().amax())
    return largest / math.sqrt(float(layer.eps or 0.0))


def _average_spectral(layer: nn.Module, shape: tuple[int, ...]) -> float:
    channel = (1, *shape[1:])  # every channel is treated alike
    num_outputs = layer(torch.zeros(1, *channel)).numel()
    if num_outputs * math.prod(channel) <= _LARGEST_UNROLLED:
        return matrix_bound(unrolled(layer, channel))
    return mixed_bound(layer, channel)


def _max_pool_spectral(layer: Any, shape: tuple[int, ...]) -> float:
    """Return the root of the largest number of windows that share an entry: a window moves by at most its maximum."""
    # Along each axis by itself: a window is a product of intervals.
    settings = [as_many(setting, len(shape) - 1) for setting in (layer.kernel_size, layer.stride, layer.padding)]
    most = 1.0
    for size, number, kernel, stride, padding in zip(shape[1:], shape_behind(layer, shape)[1:], *settings, strict=True):
        starts, places = torch.arange(number) * stride - padding, torch.arange(size)[:, None]
        most *= float(((starts <= places) & (places < starts + kernel)).sum(dim=1).amax())
    return math.sqrt(most)


def as_many(setting: int | Sequence[int], number: int) -> tuple[int, ...]:
    """Return a setting of a layer for each axis."""
    settings = (setting,) if isinstance(setting, int) else tuple(setting)
    return settings * number if len(settings) == 1 else settings


def _adaptive_max_spectral(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """The same: window i of o covers floor(in / o) to ceil((i + 1)n / o), so an entry is in at most ceil(o / n) + 1."""
    sizes = zip(shape[1:], shape_behind(layer, shape)[1:], strict=True)
    return math.sqrt(math.prod(1 if size % number == 0 else -(-number // size) + 1 for size, number in sizes))


def _soft_moves(rate: float) -> Callable[[Any, Tensor], Tensor]:
    return lambda layer, moves: rate * (moves + moves.amax(dim=layer.dim, keepdim=True))


def _sorted_moves(layer: GroupSort, moves: Tensor) -> Tensor:
    """Return for each channel the largest move in its group: each order statistic moves by no more."""
    groups: Tensor = torch.unflatten(moves, 1, (layer.group_size, -1))
    return groups.amax(dim=1, keepdim=True).expand_as(groups).flatten(1, 2)


def _elementwise(rate: Callable[[Any], float] | float) -> LayerRule:
    """Of layers whose slopes are at most a number, or what a function makes of the layer."""
    largest = rate if callable(rate) else lambda _: rate
    return LayerRule(lambda layer, moves: moves * largest(layer), lambda layer, _: largest(layer), False, True)


def _linear(spectral: Callable[[Any, tuple[int, ...]], float], *, keeps_channels: bool = False) -> LayerRule:
    return LayerRule(_absolute, spectral, is_linear=True, keeps_channels=keeps_channels)


def leaky_slope(layer: nn.Module) -> float:
    """Return the slope of a ReLU or LeakyReLU below 0."""
    return float(layer.negative_slope) if isinstance(layer, nn.LeakyReLU) else 0.0


# The largest slope of GELU, at sqrt 2: Phi + sqrt 2 phi there. That of SiLU, s + x s (1 - s), is 1.09984 near 2.4.
_GELU_SLOPE = 0.5 * (1.0 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)
_SILU_SLOPE = 1.0999
_SELU_SLOPE = 1.7580994  # its scale times its alpha, just below 0
_MISH_SLOPE = 1.0885  # 1.08850 near 1.49 is below; so is 1.5 at 3 of hardswish, where it is reached from one side


def _with_axes(*names: str) -> tuple[Any, ...]:
    """Return layers that torch has for one, two and three axes."""
    return tuple(getattr(nn, f"{name}{axes}d") for name in names for axes in (1, 2, 3))


CONVOLUTIONS, BATCH_NORMS, MAX_POOLS = map(_with_axes, ("Conv", "BatchNorm", "MaxPool"))
NORMALISATIONS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, *_with_axes("InstanceNorm"))
"""Layers that divide groups of features by their own deviation, or root mean square."""

SOFT = (nn.Softmax, nn.Softmin, nn.LogSoftmax)
_ADAPTIVE_MAX = _with_axes("AdaptiveMaxPool")
_OF_EACH_CHANNEL = _with_axes("AvgPool", "AdaptiveAvgPool", "ReflectionPad", "ReplicationPad", "CircularPad")

_SHAPE = LayerRule(lambda layer, moves: layer(moves), lambda *_: 1.0, is_linear=True)
IDENTITY = LayerRule(lambda _, moves: moves, lambda *_: 1.0, is_linear=True)
"""Of layers that do nothing in eval mode."""

RULES: dict[type[nn.Module], LayerRule] = {
    **dict.fromkeys((nn.Identity, nn.Dropout, *_with_axes("Dropout")), IDENTITY),
    **dict.fromkeys((nn.AlphaDropout, nn.FeatureAlphaDropout), IDENTITY),
    **dict.fromkeys((nn.Flatten, nn.Unflatten, *_with_axes("ZeroPad")), _SHAPE),
    **dict.fromkeys((nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle), _SHAPE),
    nn.Linear: _linear(lambda layer, _: matrix_bound(layer.weight.detach().double())),
    **dict.fromkeys(CONVOLUTIONS, _linear(_conv_spectral)),
    **dict.fromkeys(BATCH_NORMS, _linear(lambda layer, _: float(scale_of(layer).abs().amax()))),
    **dict.fromkeys(_OF_EACH_CHANNEL, _linear(_average_spectral, keeps_channels=True)),
    **dict.fromkeys(MAX_POOLS, LayerRule(lambda layer, moves: layer(moves), _max_pool_spectral, False, True)),
    **dict.fromkeys(_ADAPTIVE_MAX, LayerRule(lambda layer, moves: layer(moves), _adaptive_max_spectral, False, True)),
    **dict.fromkeys((nn.Softmax, nn.Softmin), LayerRule(_soft_moves(0.25), lambda *_: 0.5, is_linear=False)),
    nn.LogSoftmax: LayerRule(
        _soft_moves(1.0), lambda layer, shape: math.sqrt(shape[layer.dim % (1 + len(shape)) - 1]), False
    ),
    GroupSort: LayerRule(_sorted_moves, lambda *_: 1.0, is_linear=False),
    nn.ReLU: _elementwise(1.0),
    nn.LeakyReLU: _elementwise(lambda layer: max(1.0, abs(leaky_slope(layer)))),
    nn.RReLU: _elementwise(lambda layer: max(1.0, abs(layer.lower + layer.upper) / 2.0)),  # in eval mode
    nn.Tanh: _elementwise(1.0),
    nn.Sigmoid: _elementwise(0.25),
    nn.ELU: _elementwise(lambda layer: max(1.0, abs(float(layer.alpha)))),
    nn.GELU: _elementwise(_GELU_SLOPE),
    nn.SiLU: _elementwise(_SILU_SLOPE),
    nn.Mish: _elementwise(_MISH_SLOPE),
    nn.Hardswish: _elementwise(1.5),
    nn.Hardsigmoid: _elementwise(1.0 / 6.0),
    **dict.fromkeys((nn.Hardtanh, nn.ReLU6, nn.CELU), _elementwise(1.0)),
    nn.SELU: _elementwise(_SELU_SLOPE),
    nn.PReLU: _elementwise(lambda layer: max(1.0, float(layer.weight.detach().double().abs().amax()))),
    **dict.fromkeys((nn.Softsign, nn.Softshrink, nn.Tanhshrink, nn.LogSigmoid), _elementwise(1.0)),
    **dict.fromkeys(NORMALISATIONS, LayerRule(_normalised_spread, _normalised_spectral, is_linear=False)),
    parts.Sum: LayerRule(
        lambda layer, moves: added(layer, moves, _spread),
        lambda layer, shape: math.fsum(chain_spectral(branch, shape) for branch in layer.chains),
        is_linear=False,
    ),
    parts.Shift: LayerRule(lambda _, moves: moves, lambda *_: 1.0, is_linear=True),
    parts.Scale: _linear(lambda layer, _: float(layer.constant.abs().amax())),
    **dict.fromkeys((parts.Reshaped, parts.Permuted), _SHAPE),
    parts.Mean: _linear(lambda layer, shape: 1.0 / math.sqrt(math.prod(shape[axis - 1] for axis in layer.axes))),
}
"""By exact type. A new kind of layer is an entry here."""

NUM_AXES: dict[type[nn.Module], int] = {
    **{kind: 1 + int(kind.__name__[-2]) for kind in RULES if kind.__name__[-2:] in ("1d", "2d", "3d")},
    **dict.fromkeys((nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle), 3),
    **dict.fromkeys((nn.BatchNorm1d, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), 0),
}
"""How many axes an example must have; 0: any. With one less, torch takes the examples for the channels of one image."""
BOUNDED = (nn.Tanh, nn.Sigmoid)
"""Activations whose values are bounded."""
LIKE_RELU = (nn.ELU, nn.GELU, nn.SiLU)
"""Smooth activations that differ from ReLU by no more than a constant."""


# As torch defines them: a class may have been changed since.
_FORWARDS = {kind: getattr(kind, "forward", None) for kind in (nn.Sequential, *RULES)}


def has_hooks(layer: nn.Module) -> bool:
    """Return whether a module may compute something else, or have other gradients, than its type shows."""
    kinds = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    hooks = (getattr(of, f"{start}_{kind}") for of, start in ((layer, ""), (hooks_of_all, "_global")) for kind in kinds)
    # What an instance has of its own comes before what its class says: a forward, a compiled call, a _conv_forward.
    has_own = any(hasattr(type(layer), name) for name in vars(layer))
    forward = getattr(type(layer), "forward", None)
    return any(hooks) or has_own or _FORWARDS.get(type(layer), forward) is not forward


def check_layer(name: str, layer: nn.Module) -> None:
    """Check that something is proved about a layer.

    Raises RefusedError if its type is not in `RULES`, it or all modules have hooks, it does what its type does not
    show, or its weights are not finite numbers of float32 or float64 that torch knows of.
    """
    if has_hooks(layer):
        raise RefusedError(
            f"layers must compute what their weights say, got {name!r} with hooks or a forward of its own; remove them "
            "(fold weight or spectral normalisation into the weights), also those of all modules "
            "(register_module_forward_hook)"
        )
    if type(layer) not in RULES:
        known = ", ".join(kind.__name__ for kind in RULES if not kind.__module__.endswith(".parts"))
        raise RefusedError(
            f"every layer must be one of {known}, got {type(layer).__name__} at "
            f"{name!r}; for any other nothing is proved: use an attack, which needs no proof"
        )
    _check_settings(name, layer)
    _check_weights(name, layer)
    if isinstance(layer, nn.GELU) and layer.approximate != "none":
        raise RefusedError(f"GELU must be exact, got approximate={layer.approximate!r} at {name!r}; use 'none'")
    if isinstance(layer, BATCH_NORMS) and layer.running_var is None:
        raise RefusedError(f"batch norms must track running statistics, got {name!r} without; it mixes the examples")
    if isinstance(layer, NORMALISATIONS):
        _check_normalisation(name, layer)
    if isinstance(layer, nn.CELU) and not layer.alpha > 0.0:
        raise RefusedError(f"CELU must have alpha > 0, got another at {name!r}; it has no largest slope")
    if isinstance(layer, SOFT) and type(layer.dim) is not int:
        raise RefusedError(f"softmax must be told its axis, got dim={layer.dim!r} at {name!r}; say dim=1")
    if isinstance(layer, GroupSort) and type(layer.group_size) is not int:
        raise RefusedError(f"group_size must be a whole number, got {layer.group_size!r} at {name!r}; 2 is MaxMin")
    divisor = getattr(layer, "divisor_override", None)
    if divisor is not None and divisor <= 0:
        raise RefusedError(f"average pools must divide by a number > 0, got {divisor} at {name!r}")
    if isinstance(layer, CONVOLUTIONS) and layer.padding_mode != "zeros":
        raise RefusedError(f"convolutions must pad with zeros, got padding_mode={layer.padding_mode!r} at {name!r}")
    if set(as_many(getattr(layer, "dilation", 1), 1)) != {1} and isinstance(layer, MAX_POOLS):
        raise RefusedError(f"max pooling must have dilation 1, got another at {name!r}")
    if getattr(layer, "return_indices", False):
        raise RefusedError(f"max pooling must return values only, got another at {name!r}")


def _check_normalisation(name: str, layer: Any) -> None:
    """Check that a normalisation looks at one example, and divides by more than 0; raises RefusedError."""
    kind = type(layer).__name__
    if layer.eps is None or not layer.eps > 0.0:
        raise RefusedError(f"{kind} must have eps > 0, got {layer.eps!r} at {name!r}; without it there is no constant")
    if getattr(layer, "track_running_stats", False):
        raise RefusedError(f"{kind} must not track running statistics, got one at {name!r} that does; use BatchNorm")


def _check_settings(name: str, layer: nn.Module) -> None:
    """Check that a layer has no more than parameters, buffers and plain settings; raises RefusedError."""
    of_torch = {*vars(nn.Module()), "_reversed_padding_repeated_twice"}
    strange = [key for key, value in vars(layer).items() if key not in of_torch and not _is_plain(value)]
    if strange:
        raise RefusedError(
            f"what a layer has must be parameters, buffers and plain settings that are not NaN, got another "
            f"{strange[0]!r} at {name!r}; assign weights as torch.nn.Parameter"
        )


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(part) for part in value)
    is_number = isinstance(value, int | float | np.generic)
    return value is None or isinstance(value, str) or (is_number and value == value)


def _check_weights(name: str, layer: nn.Module) -> None:
    """Check the tensors of a layer, by name; raises RefusedError."""
    for key, value in {**layer._parameters, **layer._buffers}.items():
        if value is None:
            continue
        is_usual = type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
        if not is_usual or value.device.type != "cpu":
            raise RefusedError(f"weights must be dense tensors on the CPU, got another {key!r} at {name!r}; move them")
        if value.dtype not in PRECISIONS and (value.is_floating_point() or value.is_complex()):
            kind = str(value.dtype).removeprefix("torch.")
            raise RefusedError(f"weights must be float32 or float64, got {kind} at {name!r}; convert: model.float()")
        if not bool(torch.isfinite(value).all()):
            raise RefusedError(f"weights must be finite, got NaN or infinity at {name!r}; train the model again")
    if isinstance(layer, BATCH_NORMS) and layer.running_var is not None:
        scales = layer.running_var.double() + layer.eps
        if not bool((scales > 0.0).all()):
            raise RefusedError(f"running variances must be above -eps, got another at {name!r}; train the model again")


# What the first layers do to a distance, at most, in l2 norms with weights: measure a move of features by
# ||T move||_2, T > 0 diagonal with one weight per channel. Activations and max pools act alike in it, and a batch norm
# only changes the weights. What is left are linear maps W between such spaces, of norm ||T_out W T_in^-1||_2. Every
# choice of weights proves a bound. Without them one large scale of a batch norm counts in full, although the next layer
# may hardly look at that channel.
Body = tuple[tuple[nn.Module, tuple[int, ...]], ...]


def cut_at_bends(body: Body) -> list[tuple[Body, tuple[nn.Module, tuple[int, ...]] | None]]:
    """Return affine layers in a row, with the layer behind them that is not affine; the last ones have None there."""
    bends = [index for index, (layer, _) in enumerate(body) if not RULES[type(layer)].is_linear]
    starts = [0, *(index + 1 for index in bends)]
    ends = [(body[index], index) for index in bends]
    found = [(body[start:index], bend) for start, (bend, index) in zip(starts, ends, strict=False)]
    return [*found, (body[starts[-1] :], None)]


class Prefix(NamedTuple):
    """Moving an input by a distance t in l2 moves the features by a vector v with ||weights * v||_2 <= bound * t."""

    bound: float
    weights: Tensor


def plain_prefixes(body: Body) -> list[Prefix]:
    """Return a bound before each layer and after the last, with all weights 1: products of spectral norms."""
    found, one = [Prefix(1.0, torch.ones(()).double())], torch.ones(()).double()
    for layer, shape in body:
        found.append(Prefix(found[-1].bound * RULES[type(layer)].spectral(layer, shape), one))
    return found


def balanced_prefixes(body: Body, head: Tensor) -> list[Prefix]:
    """Return the same with weights that make each channel's rows, before it, as long as its columns, behind it.

    The head, shape (num_classes, num_features), is what follows the body.
    """
    asked = _column_lengths(body, head)
    num_channels = body[0][1][0] if body else 1
    bound, weights = 1.0, torch.ones(num_channels, dtype=torch.float64)
    found = []
    for (layer, shape), columns in zip(body, asked, strict=True):
        found.append(Prefix(bound, _shaped(weights, shape)))
        if _has_channels(layer, shape):
            scaled = _scaled(layer, 1.0 / weights, axis=1)
            rows = scaled.weight.detach().flatten(1).norm(dim=1)
            ratio = (
                (columns / rows).sqrt() if columns is not None and len(columns) == len(rows) else torch.ones_like(rows)
            )
            weights = torch.where(torch.isfinite(ratio) & (ratio > 0.0), ratio, 1.0)
            scaled = _scaled(scaled, weights, axis=0)
            bound *= RULES[type(layer)].spectral(scaled, shape)
        elif isinstance(layer, BATCH_NORMS):
            scale = scale_of(layer).abs()
            weights = torch.where(scale > 0.0, weights / scale, weights)  # behind a scale of 0 nothing moves
        elif _is_plain_flatten(layer):
            weights = _shaped(weights, shape).expand(shape).flatten()
        elif RULES[type(layer)].keeps_channels:
            bound *= RULES[type(layer)].spectral(layer, shape)
        else:
            bound *= RULES[type(layer)].spectral(layer, shape) / float(weights.amin())
            weights = torch.ones(1, dtype=torch.float64)
    last = (
        weights if len(weights) in (1, head.shape[1]) else torch.full((1,), float(weights.amin()), dtype=torch.float64)
    )
    return [*found, Prefix(bound, last)]


def _column_lengths(body: Body, head: Tensor) -> list[Tensor | None]:
    """Return, for each layer, how long the next linear layer's columns are that belong to each channel it returns."""
    columns: Tensor | None = (head - head.mean(dim=0)).norm(dim=0)
    found: list[Tensor | None] = []
    for layer, shape in reversed(body):
        found.append(columns)
        if _has_channels(layer, shape):
            columns = layer.weight.detach().double().transpose(0, 1).flatten(1).norm(dim=1)
        elif columns is not None and isinstance(layer, BATCH_NORMS):
            columns = columns * scale_of(layer).abs()
        elif columns is not None and _is_plain_flatten(layer):
            columns = columns.reshape(shape[0], -1).norm(dim=1)
        elif not RULES[type(layer)].keeps_channels:
            columns = None
    return found[::-1]


def _has_channels(layer: nn.Module, shape: tuple[int, ...]) -> TypeGuard[nn.Conv2d | nn.Linear]:
    """Whether a layer's weight has one row for each channel it returns and one column for each that it takes."""
    if isinstance(layer, CONVOLUTIONS):
        return bool(layer.groups == 1)
    return isinstance(layer, nn.Linear) and len(shape) == 1


def _is_plain_flatten(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)


def _scaled(layer: nn.Conv2d | nn.Linear, factors: Tensor, *, axis: int) -> nn.Conv2d | nn.Linear:
    """Return a copy of a linear layer, in float64, with rows (axis 0) or columns (axis 1) of its weight multiplied."""
    scaled = copy.deepcopy(layer).double()
    shape = [-1 if number == axis else 1 for number in range(scaled.weight.dim())]
    with torch.no_grad():
        scaled.weight.mul_(factors.reshape(shape))
    return scaled


def _shaped(weights: Tensor, shape: tuple[int, ...]) -> Tensor:
    return weights.reshape(-1, *[1] * (len(shape) - 1))
