"""What a model does between its layers, as layers: sums of branches, shifts, reshapes.

A model that is read from its forward (`reading`) is a chain of torch's own layers and of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class Sum(nn.Module):
    """The sum of what several chains make of one input: a residual connection; an empty chain is the identity."""

    def __init__(self, branches: Sequence[Sequence[nn.Module]]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)

    @property
    def chains(self) -> list[list[nn.Module]]:
        """The layers of each branch; one that a branch uses twice is there twice, which `children` would pass over."""
        return [list(cast(nn.Sequential, branch)) for branch in self.branches]

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape of what each branch returns."""
        return torch.stack([branch(x) for branch in self.branches]).sum(dim=0)


class WithConstant(nn.Module):
    """Has a tensor that broadcasts to the features of one example, or is them."""

    constant: Tensor

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.register_buffer("constant", constant)


class Shift(WithConstant):
    """Adds the constant."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x + constant."""
        return x + self.constant


class Scale(WithConstant):
    """Multiplies by the constant."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x * constant."""
        return x * self.constant


class Reshaped(nn.Module):
    """The same features in another shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return x as (num_examples, *shape)."""
        return x.reshape(len(x), *self.shape)


class Permuted(nn.Module):
    """The same features with their axes in another order; the first stays."""

    def __init__(self, axes: Sequence[int]) -> None:
        super().__init__()
        self.axes = tuple(axes)

    def forward(self, x: Tensor) -> Tensor:
        """Return x.permute(axes)."""
        return x.permute(self.axes)


class Mean(nn.Module):
    """The mean over some axes behind that of the examples."""

    def __init__(self, axes: Sequence[int], *, is_kept: bool) -> None:
        super().__init__()
        self.axes, self.is_kept = tuple(axes), is_kept

    def forward(self, x: Tensor) -> Tensor:
        """Return x.mean(axes)."""
        return x.mean(dim=self.axes, keepdim=self.is_kept)
