"""How fast the margins of a model can grow with its input: proved Lipschitz constants (math §6.4).

For logits z and classes j, k let L[j, k] bound |(z_j - z_k)(x') - (z_j - z_k)(x)| / ||x' - x||. Differences of logits
and not logits: with them the constant of a linear model is exact, and no factor for the loss is lost.
"""

from __future__ import annotations

import copy
import hashlib
import math
import operator
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from riskband.adversaries.bounds.layer_norms import (
    IDENTITY,
    LIKE_RELU,
    NUM_AXES,
    RULES,
    SOFT,
    Prefix,
    balanced_prefixes,
    check_layer,
    leaky_slope,
    plain_prefixes,
    transposed,
)
from riskband.adversaries.bounds.parts import Sum
from riskband.adversaries.bounds.reading import flat, is_layer, traced
from riskband.adversaries.bounds.relu_cells import MAX_UNITS, hidden_units, relu_cells
from riskband.adversaries.kept import kept
from riskband.adversaries.norms import DUAL_EXPONENTS
from riskband.checks import RefusedError, kind_of
from riskband.models.evaluation import input_dtype

METHODS = ("auto", "product", "exact")
"""How constants are found."""

ROUNDING = 1e-6
"""All constants are raised by this share, far more than float64 can lose on the way to them."""

# Networks up to this size are enumerated by "auto": at most some thousand cells, or a few seconds.
_AUTO_UNITS = 8
_CHUNK = 256
NUM_REMEMBERED = 16
"""Of how many models, and of their constants of how many norms and methods, a process remembers what was proved."""

# Of one example it could not be seen that a layer mixes them.
_TWO_EXAMPLES = 2
# Of a model and what was read of it, as a share of each logit; another number of points than those of `reading`.
_LARGEST_DIFFERENCE, _NUM_PROBES = 1e-8, 5
# Of the same in the model's own precision, as a share of the largest logit: float32 loses less than a thirtieth of it,
# and float16 ten times as much.
_LARGEST_ROUNDING = 3e-5
_EXAMPLES = {
    2: "sequences (channels, length)",
    3: "images (channels, height, width)",
    4: "volumes (channels, depth, height, width)",
}


class SequentialLayers:
    """A model as a chain of layers of known kinds, with a linear last layer.

    The model is an `nn.Sequential` (possibly of such) of the layers in `layer_norms.RULES`, one of these layers, or any
    module whose forward `reading` can follow: what it adds up is a layer then, of branches that are chains. It is read,
    not changed: the layers here are copies in float64 and in eval mode. Raises RefusedError if a layer is of another
    kind (the message names it) or refused by `layer_norms.check_layer`, does not fit the shapes, or mixes examples, or
    if what was read of a forward does not compute what the model does.

    `body` has all layers before the last linear layer, each with the shape of its input; `x_shape` is that of one
    input. `head` and `head_offset` are weight and bias of the last layer, float64, (num_classes, num_features) and
    (num_classes,); the identity and 0 if that is not linear.
    """

    def __init__(self, model: nn.Module, x_shape: Sequence[int]) -> None:
        if not isinstance(model, nn.Module):
            raise RefusedError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.x_shape = _checked_shape(x_shape)
        try:
            self._read(model)
        except RefusedError:
            raise
        except Exception as error:  # what a model, or torch for it, raises for the reader's questions may be anything
            raise RefusedError(
                f"a model must be one that can be read, and reading this one failed with {kind_of(error)}; give "
                "the shape of one input, or use an attack, which needs no proof"
            ) from error

    def _read(self, model: nn.Module) -> None:
        named = list(flat("", model))
        self.is_traced = not all(is_layer(layer) for _, layer in named)
        if self.is_traced:
            named = traced(model, self.x_shape)
        else:
            for name, layer in named:
                check_layer(name, layer)
        # Copies: whatever happens to the model later, this and what is remembered of it stay about the same weights.
        named = [(name, _copied(layer)) for name, layer in named if RULES[type(layer)] is not IDENTITY]
        last = named[-1][1] if named else None
        head = last if isinstance(last, nn.Linear) else None
        moves, body = torch.zeros(_TWO_EXAMPLES, *self.x_shape, dtype=torch.float64), []
        for name, layer in named[:-1] if head is not None else named:
            body.append((layer, tuple(moves.shape[1:])))
            moves = _moves_behind(name, layer, moves)
        self.body = tuple(body)
        num_features = moves.shape[1] if moves.dim() == 2 else -1
        if num_features < 0 or (head is not None and head.in_features != num_features):
            raise RefusedError(
                f"x_shape must fit the model, got features of shape {tuple(moves.shape[1:])} before the logits; "
                "flatten them, or give the shape of one input"
            )
        self.head = torch.eye(num_features, dtype=torch.float64) if head is None else head.weight.detach().double()
        bias = None if head is None else head.bias
        self.head_offset = torch.zeros(len(self.head)).double() if bias is None else bias.detach().double()
        self._layers = [layer for _, layer in named]
        if self.is_traced:
            self._check_probes(model)

    def _check_probes(self, model: nn.Module) -> None:
        """Compare what was read with the model, at points that do not depend on any example.

        In its own precision too: in float64 it may leave out what it does else, such as to compute in half precision.
        """
        own, precision = copy.deepcopy(model).eval(), input_dtype(model)
        twin = copy.deepcopy(model).double().eval()
        probes = torch.randn(_NUM_PROBES, *self.x_shape, generator=torch.Generator().manual_seed(0))
        for size in (0.3, 10.0):
            x = (size * probes).to(precision)
            with torch.no_grad():
                # Copies: a model may work in place.
                self.check_same(x.double(), twin(x.to(torch.float64, copy=True)))
                self.check_same(x.double(), own(x.clone()).double(), is_rounded=True)

    def check_same(self, x: Tensor, logits: Tensor, *, is_rounded: bool = False) -> None:
        """Check that what was read has each of these logits, all float64; a large one hides no other."""
        with torch.no_grad():
            mine = nn.Sequential(*self._layers)(x.clone())
        if mine.shape != logits.shape or not bool(_is_close(mine, logits, is_rounded=is_rounded).all()):
            raise RefusedError(
                "the model must compute what torch.fx shows of its forward, and has other logits, or some that are NaN "
                "or infinite; write it without randomness, without choices in Python and without autocast, or use an "
                "attack, which needs no proof"
            )

    def spread(self, moves: Tensor) -> Tensor:
        """Return how far the last layer's features move at most, entry by entry, if the inputs move by `moves`."""
        for layer, _ in self.body:
            moves = RULES[type(layer)].spread(layer, moves)
        return moves

    def with_relu(self) -> nn.Sequential:
        """Return the model with ReLU in place of the activations in `layer_norms.LIKE_RELU`."""
        return nn.Sequential(*(nn.ReLU() if isinstance(layer, LIKE_RELU) else layer for layer in self._layers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequentialLayers) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides a bound: the input's shape, and kinds, settings and weights of the layers."""
        digest = hashlib.sha256(repr(self.x_shape).encode())
        parts = (part for layer in self._layers for part in layer.named_modules(remove_duplicate=False))
        for name, layer in parts:
            settings = {key: value for key, value in vars(layer).items() if key[0] != "_"}
            digest.update(repr((name, type(layer), sorted(settings.items()))).encode())
            # Not the state dict: it leaves out buffers that are not persistent, and hooks may change it.
            tensors = {**layer._parameters, **layer._buffers}
            for key, tensor in sorted(tensors.items()):
                if tensor is not None:
                    digest.update(repr((key, tensor.dtype, tuple(tensor.shape))).encode())
                    digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        return digest.hexdigest()

    @property
    def is_affine(self) -> bool:
        """Whether all layers are."""
        return all(RULES[type(layer)].is_linear for layer, _ in self.body)

    @property
    def pulls(self) -> Tensor:
        """w_j - w_k of the last linear layer, shape (num_classes, num_classes, num_features)."""
        return self.head[:, None] - self.head[None]

    @cached_property
    def prefixes(self) -> tuple[list[Prefix], list[Prefix]]:
        """What the first layers do to a distance in l2, without weights and with them; see `layer_norms`."""
        return plain_prefixes(self.body), balanced_prefixes(self.body, self.head)


class Constants(NamedTuple):
    """Proved Lipschitz constants of a model, float64, each raised by `ROUNDING`.

    `margins`, (num_classes, num_classes), are those of the differences of logits: symmetric, 0 on the diagonal;
    `logits`, (num_classes,), those of the logits themselves, not as tight.
    """

    margins: Tensor
    logits: Tensor


def margin_constants(model: nn.Module, x_shape: Sequence[int], *, norm: str, method: str = "auto") -> Tensor:
    """Return proved Lipschitz constants of all differences of logits, float64, (num_classes, num_classes).

    They are those of the model in eval mode, see `SequentialLayers`, in exact arithmetic: symmetric, 0 on the diagonal,
    each raised by `ROUNDING`. Raises RefusedError if an argument is unknown, the model is not of the kind that is
    understood, or too large for "exact".

    Parameters
    ----------
    norm : str
        Ground norm of the distance between inputs: "l1", "l2" or "linf".
    method : str
        "product": the smallest of the bounds in `product_constants`. "exact": the largest gradient over the cells on
        which a small ReLU model is affine (`relu_cells`). "auto": exact for models of at most 8 hidden units.
    """
    return lipschitz_constants(SequentialLayers(model, x_shape), norm=norm, method=method).margins


def lipschitz_constants(layers: SequentialLayers, *, norm: str, method: str = "auto") -> Constants:
    """Return proved Lipschitz constants; a process finds those of a model once, if it is not `kept`.

    Parameters, and what is raised, are those of `margin_constants`.
    """
    check_norm(norm)
    check_choice_of_method(method, METHODS)
    if method == "exact":
        check_enumerable(layers)
    found = _constants(layers, norm, method)
    return Constants(found.margins.clone(), found.logits.clone())


@lru_cache(maxsize=NUM_REMEMBERED)
def _constants(layers: SequentialLayers, norm: str, method: str) -> Constants:
    num_classes, name = len(layers.head), f"constants {norm} {method} {layers.fingerprint}"
    numbers = kept(name, num_classes * (num_classes + 1), lambda: _computed(layers, norm, method))
    rows = torch.tensor(numbers, dtype=torch.float64).reshape(num_classes + 1, num_classes)
    return Constants(rows[:-1], rows[-1])


def _computed(layers: SequentialLayers, norm: str, method: str) -> list[float]:
    """Return the rows of `Constants.margins`, and behind them `Constants.logits`."""
    num_units = hidden_units(layers.body)
    if method == "product" or num_units is None or (method == "auto" and num_units > _AUTO_UNITS):
        margins = product_constants(layers, norm=norm)
    else:
        margins = enumerated_constants(layers, norm=norm)
    logits = [half_masked_bounds(layers, rows, norm=norm) for rows in torch.split(layers.head, _CHUNK)]
    found = torch.cat([margins.flatten(), *logits])
    if not bool((torch.isfinite(found) & (found >= 0.0)).all()):
        raise RefusedError("constants must be finite and >= 0, got others; the weights of the model are too large")
    numbers: list[float] = (found * (1.0 + ROUNDING)).tolist()
    return numbers


def check_norm(norm: str) -> None:
    """Check that this is a ground norm; raises RefusedError."""
    if norm not in DUAL_EXPONENTS:
        raise RefusedError(f"norm must be one of {', '.join(DUAL_EXPONENTS)}, got {norm!r}")


def check_choice_of_method(method: str, methods: Sequence[str]) -> None:
    """Check that this is one of the methods; raises RefusedError."""
    if method not in methods:
        raise RefusedError(f"method must be one of {', '.join(methods)}, got {method!r}")


def check_enumerable(layers: SequentialLayers) -> None:
    """Check that the cells of a model can be enumerated; raises RefusedError."""
    num_units = hidden_units(layers.body)
    if num_units is None:
        raise RefusedError(
            "cells can be enumerated for affine layers and (leaky) ReLU only, got another layer; use the method "
            "'product' or 'auto'"
        )
    if num_units > MAX_UNITS:
        raise RefusedError(
            f"cells can be enumerated for at most {MAX_UNITS} hidden units, got {num_units}; use the method 'product' "
            "or 'auto'"
        )


def product_constants(layers: SequentialLayers, *, norm: str) -> Tensor:
    """Return upper bounds without enumeration, before rounding: for each pair of classes the smallest of three.

    * Paths: moving input i alone by t moves feature f by at most t * M[i, f], where M is `spread` of unit moves, so
      |d(z_j - z_k)/dx_i| <= sum over f of |w_j - w_k|_f M[i, f], and the constant is the dual norm of that vector.
      Exact for linear models.
    * For linf, `spread` of a move of 1 everywhere; for l1 and linf at most the product of the layers' norms.
    * Spectral norms: `half_masked_constants`.
    """
    num_inputs = math.prod(layers.x_shape)
    pulls = layers.pulls.abs()
    spectral = half_masked_constants(layers, norm=norm)
    if norm == "linf":
        return torch.minimum(spectral, pulls @ layers.spread(torch.ones(1, *layers.x_shape).double())[0])
    paths = torch.zeros_like(spectral)
    for indices in torch.split(torch.arange(num_inputs), _CHUNK):
        moves = torch.zeros(len(indices), num_inputs, dtype=torch.float64)
        moves.scatter_(1, indices[:, None], 1.0)
        slopes = pulls @ layers.spread(moves.reshape(-1, *layers.x_shape)).T  # (num_classes, num_classes, num_moves)
        paths = torch.maximum(paths, slopes.amax(dim=2)) if norm == "l1" else paths + slopes.square().sum(dim=2)
    return torch.minimum(spectral, paths if norm == "l1" else paths.sqrt())


def half_masked_constants(layers: SequentialLayers, *, norm: str) -> Tensor:
    """Return `half_masked_bounds` of all differences of logits, shape (num_classes, num_classes)."""
    first, second = torch.triu_indices(len(layers.head), len(layers.head), offset=1)
    constants = torch.zeros(len(layers.head), len(layers.head), dtype=torch.float64)
    for chunk in torch.split(torch.arange(len(first)), _CHUNK):
        j, k = first[chunk], second[chunk]
        constants[j, k] = constants[k, j] = half_masked_bounds(layers, layers.head[j] - layers.head[k], norm=norm)
    return constants


def half_masked_bounds(layers: SequentialLayers, rows: Tensor, *, norm: str) -> Tensor:
    """Return Lipschitz constants of rows v @ features, at most ||v||_2 times the layers' spectral norms, (num_rows,).

    The slopes D of ReLU units are (I + S) / 2 with |S| <= 1. So a row v that is pulled back through it is v / 2, for
    which the layers before are taken as they are, and a rest of length at most ||v|| / 2, for which their norms are,
    with or without weights (`layer_norms`). A distance in l1 is at least that in l2; one in linf at least that over the
    root of the number of inputs. Rows are float64, shape (num_rows, num_features).
    """
    scale = math.sqrt(math.prod(layers.x_shape)) if norm == "linf" else 1.0

    def constant_of(rows: Tensor, index: int) -> Tensor:
        """Of rows @ (features before layer `index`)."""
        before = [chain[index] for chain in layers.prefixes]
        ends = [bound * (rows / weights).flatten(1).norm(dim=1) for bound, weights in before]
        return scale * torch.stack(ends).amin(dim=0)

    bounds: Tensor = torch.zeros(len(rows), dtype=torch.float64)
    share = 1.0
    for index in reversed(range(len(layers.body))):
        layer, shape = layers.body[index]
        if RULES[type(layer)].is_linear:
            rows = transposed(layer, shape, rows)
            continue
        if not isinstance(layer, nn.ReLU | nn.LeakyReLU):
            bounds += share * constant_of(rows, index + 1)
            return bounds
        slope = leaky_slope(layer)
        bounds += share * abs(1.0 - slope) / 2.0 * constant_of(rows, index)
        share *= abs(1.0 + slope) / 2.0
    bounds += share * torch.linalg.vector_norm(rows.flatten(1), ord=DUAL_EXPONENTS[norm], dim=1)
    return bounds


def enumerated_constants(layers: SequentialLayers, *, norm: str) -> Tensor:
    """Return the largest dual norm of the gradient of each margin over all cells, before rounding.

    A continuous function that is affine on finitely many polyhedra has, on the whole space, no other Lipschitz
    constant. Cells that were neither entered nor proved empty count too: the answer may be too large, not too small.
    """
    largest = torch.zeros(len(layers.head), len(layers.head), dtype=torch.float64)
    for cell in relu_cells(layers.body, layers.x_shape):
        gradients = (layers.pulls.flatten(0, 1) @ cell.jacobian).reshape(*largest.shape, -1)
        largest = torch.maximum(largest, torch.linalg.vector_norm(gradients, ord=DUAL_EXPONENTS[norm], dim=2))
    return largest


def _is_close(mine: Tensor, logits: Tensor, *, is_rounded: bool) -> Tensor:
    """Return for each logit whether it is close to the other, and both are finite."""
    sizes = mine.abs()
    allowed = _LARGEST_ROUNDING * sizes.amax() if is_rounded else _LARGEST_DIFFERENCE * (1.0 + sizes)
    return torch.isfinite(mine) & torch.isfinite(logits) & ((mine - logits).abs() <= allowed)


def _moves_behind(name: str, layer: nn.Module, moves: Tensor) -> Tensor:
    """Return how far what a layer returns moves; raises RefusedError if it does not fit the shape or mixes examples."""
    shape = tuple(moves.shape[1:])
    if isinstance(layer, Sum):
        for branch in layer.chains:
            inside = moves
            for part in branch:
                inside = _moves_behind(name, part, inside)
    num_axes = NUM_AXES.get(type(layer), 0)
    if num_axes not in (0, len(shape)):
        raise RefusedError(
            f"{type(layer).__name__} must get {_EXAMPLES[num_axes]}, got features of shape {shape} at "
            f"{name!r}: they may be mixed up with the examples; add the missing axis in x_shape or by nn.Unflatten"
        )
    if isinstance(layer, SOFT) and layer.dim in (0, -moves.dim()):
        raise RefusedError(f"softmax must be within one example, got dim={layer.dim} at {name!r}; say dim=1")
    try:
        moved = RULES[type(layer)].spread(layer, moves)
    except (RuntimeError, IndexError, ValueError) as error:
        what = f"got an input of shape {shape} at {name!r}, which fails with {kind_of(error)}"
        raise RefusedError(f"x_shape must fit the model, {what}; change it, or the settings of the layer") from error
    if len(moved) != _TWO_EXAMPLES:
        raise RefusedError(
            f"layers must leave the first axis to the examples, got {type(layer).__name__} at {name!r}, which does "
            "not; flatten from axis 1 on"
        )
    return moved


def _checked_shape(x_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(size) for size in x_shape)
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise RefusedError(f"x_shape must be the sizes of one input, whole numbers >= 1, got {x_shape!r}")
    return shape


def _copied(layer: nn.Module) -> nn.Module:
    twin = copy.deepcopy(layer).double().eval().requires_grad_(False)
    for part in twin.modules():
        if getattr(part, "inplace", False):
            part.__dict__["inplace"] = False  # what goes into a layer may be needed again
    return twin
