"""Affine functions below and above an activation or a max pool on a box (CROWN: Zhang et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from riskband.adversaries.bounds.layer_norms import leaky_slope

RELAXED = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.MaxPool2d)
"""Layers that are bounded here."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """What is known of each unit of a layer when its inputs z lie in a box.

    It lies between ``lower * z + lower_offset`` and ``upper * z + upper_offset``, within `error` of
    ``slope * z + center``, and between `low` and `high`.

    Attributes
    ----------
    sources : Tensor of int, shape (num_units, width), or None
        The inputs of each unit, -1 for none; None: unit i has input i.
    lower, upper, slope : Tensor, shape (num_examples, num_units, width)
        Weights of the inputs.
    lower_offset, upper_offset, center, error, low, high : Tensor, shape (num_examples, num_units)
        See above.
    num_inputs : int
        Of the layer.
    rate : float
        The Lipschitz constant of a unit, at least 1.
    """

    sources: Tensor | None
    lower: Tensor
    lower_offset: Tensor
    upper: Tensor
    upper_offset: Tensor
    slope: Tensor
    center: Tensor
    error: Tensor
    low: Tensor
    high: Tensor
    num_inputs: int
    rate: float = 1.0

    def passed(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Return weighted sums of each unit's inputs, shape (num_examples, num_units, n).

        Parameters
        ----------
        weights : Tensor, shape (num_examples, num_units, width)
            Such as `slope`.
        inputs : Tensor, shape (num_examples or 1, num_inputs, n)
            Numbers for every input.
        """
        if self.sources is None:
            return weights * inputs
        return sum(
            (weights[:, :, q, None] * inputs[:, self.sources[:, q]] for q in range(self.sources.shape[1])),
            start=torch.zeros(()),
        )

    def pulled_back(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows' and c, such that rows @ outputs <= rows' @ inputs + c on the box.

        Parameters
        ----------
        rows : Tensor, shape (num_examples or 1, num_rows, num_units)
            Any.

        Returns
        -------
        rows : Tensor, shape (num_examples, num_rows, num_inputs)
        constant : Tensor, shape (num_examples, num_rows)
        """
        above = rows.clamp(min=0.0)  # upper bounds count for these; lower ones for the rest, rows - above
        gap, offset_gap = self.upper - self.lower, self.upper_offset - self.lower_offset
        constant = (above @ offset_gap[:, :, None] + rows @ self.lower_offset[:, :, None]).squeeze(2)
        if self.sources is None:
            return torch.addcmul(rows * self.lower[:, None, :, 0], above, gap[:, None, :, 0]), constant
        pulled = torch.zeros(*constant.shape, self.num_inputs, dtype=torch.float64)
        for q in range(self.sources.shape[1]):
            weighted = torch.addcmul(rows * self.lower[:, None, :, q], above, gap[:, None, :, q])
            pulled.index_add_(2, self.sources[:, q].clamp(min=0), weighted)  # weights of absent inputs are 0
        return pulled, constant

    def magnitude(self, inputs: Tensor) -> Tensor:
        """Return a bound of the sizes of all terms above, from one of the inputs' sizes (num_examples, num_inputs)."""
        if self.sources is not None:
            inputs = torch.where(self.sources >= 0, inputs[:, self.sources], 0.0).sum(dim=2)
        return 2.0 * self.rate * inputs + 0.5


def relaxed(layer: nn.Module, sources: Tensor | None, low: Tensor, high: Tensor) -> Relaxation:
    """Return bounds of a layer in `RELAXED` on the boxes [low, high].

    Parameters
    ----------
    layer : Module
        The activation, or the max pool.
    sources : Tensor of int, shape (num_units, width), or None
        `pool_windows` of a max pool, None for an activation.
    low, high : Tensor of float64, shape (num_examples, num_inputs)
        Ends of the boxes.
    """
    if sources is not None:
        return _pool(sources, low, high)
    if isinstance(layer, nn.ReLU | nn.LeakyReLU):
        return _leaky(leaky_slope(layer), low, high)
    return _s_shaped(layer, low, high)


def _leaky(leak: float, low: Tensor, high: Tensor) -> Relaxation:
    """On one side of the kink nothing is lost; across it the chord is one bound, and a line through 0 the other."""
    is_bent = (low < 0.0) & (high > 0.0)
    one = torch.ones_like(low)  # where both are numbers, torch would choose float32
    side = torch.where(low >= 0.0, one, leak)
    chord = torch.where(is_bent, (high - leak * low) / (high - low), side)
    rise = torch.where(is_bent, high * (1.0 - chord), 0.0)
    touching = torch.where(is_bent, torch.where(high > -low, one, leak), side)
    zero = torch.zeros_like(rise)
    is_convex = leak <= 1.0
    ends = torch.stack([torch.where(low < 0.0, leak * low, low), torch.where(high < 0.0, leak * high, high), zero])
    through_zero = is_bent[None] | torch.tensor([True, True, False])[:, None, None]
    return Relaxation(
        None,
        (touching if is_convex else chord)[:, :, None],
        zero if is_convex else rise,
        (chord if is_convex else touching)[:, :, None],
        rise if is_convex else zero,
        chord[:, :, None],
        rise / 2.0,
        rise.abs() / 2.0,
        torch.where(through_zero, ends, torch.inf).amin(dim=0),
        torch.where(through_zero, ends, -torch.inf).amax(dim=0),
        low.shape[1],
        max(1.0, abs(leak)),
    )


def _s_shaped(layer: nn.Module, low: Tensor, high: Tensor) -> Relaxation:
    """Less its smallest slope on the interval, which is at one end, a tanh or sigmoid still rises: two parallels."""
    if isinstance(layer, nn.Tanh):
        first, last = torch.tanh(low), torch.tanh(high)
        slope = torch.minimum(1.0 - first.square(), 1.0 - last.square())
    else:
        first, last = torch.sigmoid(low), torch.sigmoid(high)
        slope = torch.minimum(first * (1.0 - first), last * (1.0 - last))
    below, above = first - slope * low, last - slope * high
    weights = slope[:, :, None]
    center, error = (below + above) / 2.0, (above - below) / 2.0
    return Relaxation(None, weights, below, weights, above, weights, center, error, first, last, low.shape[1])


def _pool(sources: Tensor, low: Tensor, high: Tensor) -> Relaxation:
    """The largest input is at least the one with the largest lower end, m, and at most that plus (z_j - m)_+ of others.

    Each of these is at most its chord on [low_j, high_j]. Where it is lower in the middle of the box, the largest upper
    end is taken instead.
    """
    absent = sources < 0
    lows = torch.where(absent, -torch.inf, low[:, sources])
    highs = torch.where(absent, -torch.inf, high[:, sources])
    floor, best = lows.max(dim=2, keepdim=True)
    chosen = torch.zeros_like(lows).scatter(2, best, 1.0)
    is_rival = (highs > floor) & (chosen == 0.0)
    chords = torch.where(is_rival, (highs - floor) / (highs - lows), 0.0)
    upper, upper_offset = chosen + chords, -torch.where(is_rival, chords * lows, 0.0).sum(dim=2)
    top = highs.amax(dim=2)
    in_the_middle = torch.where(upper > 0.0, upper * (lows + highs) / 2.0, 0.0).sum(dim=2) + upper_offset
    is_flat = (top < in_the_middle) & is_rival.any(dim=2)
    gap = torch.where(is_rival, highs - floor, 0.0).amax(dim=2)
    return Relaxation(
        sources,
        chosen,
        torch.zeros_like(top),
        torch.where(is_flat[:, :, None], 0.0, upper),
        torch.where(is_flat, top, upper_offset),
        chosen,
        gap / 2.0,
        gap / 2.0,
        floor.squeeze(2),
        top,
        low.shape[1],
    )


def pool_windows(layer: nn.MaxPool2d, shape: tuple[int, ...]) -> Tensor:
    """Return the flat indices of the inputs of each output of a max pool, (num_outputs, width), -1 for the padding."""
    (channels, height, width), pairs = shape, []
    rows, columns = layer(torch.zeros(1, 1, height, width)).shape[2:]
    for setting in (layer.kernel_size, layer.stride, layer.padding):
        pairs.append(setting if isinstance(setting, tuple) else (setting, setting))
    kernel, stride, padding = pairs

    def covered(axis: int, number: int) -> Tensor:
        return torch.arange(number)[:, None] * stride[axis] - padding[axis] + torch.arange(kernel[axis])

    row = covered(0, rows)[:, None, :, None]
    column = covered(1, columns)[None, :, None, :]
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    window = torch.where(is_inside, row * width + column, -1).reshape(rows * columns, math.prod(kernel))
    planes = torch.arange(channels)[:, None, None] * height * width
    return torch.where(window >= 0, window + planes, -1).reshape(-1, math.prod(kernel))
