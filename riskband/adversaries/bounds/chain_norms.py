"""What the first layers of a network do to a distance, at most, in l2 norms with weights (math §6.4).

Measure a move of features by ||T move||_2, T > 0 diagonal with one weight per channel. Activations and max pools act
alike in it, and a batch norm only changes the weights. What is left are linear maps W between such spaces, of norm
||T_out W T_in^-1||_2. Every choice of weights proves a bound. Without them one large scale of a batch norm counts in
full, although the next layer may hardly look at that channel.
"""

from __future__ import annotations

import copy
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from riskband.adversaries.bounds.layer_norms import RULES, scale_of

Body = tuple[tuple[nn.Module, tuple[int, ...]], ...]


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

    Parameters
    ----------
    body : tuple of (Module, shape of its input)
        The layers, as `SequentialLayers` has them.
    head : Tensor of float64, shape (num_classes, num_features)
        What follows them.
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
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
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
        elif columns is not None and isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            columns = columns * scale_of(layer).abs()
        elif columns is not None and _is_plain_flatten(layer):
            columns = columns.reshape(shape[0], -1).norm(dim=1)
        elif not RULES[type(layer)].keeps_channels:
            columns = None
    return found[::-1]


def _has_channels(layer: nn.Module, shape: tuple[int, ...]) -> TypeGuard[nn.Conv2d | nn.Linear]:
    """Whether a layer's weight has one row for each channel it returns and one column for each that it takes."""
    return (isinstance(layer, nn.Conv2d) and layer.groups == 1) or (isinstance(layer, nn.Linear) and len(shape) == 1)


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
