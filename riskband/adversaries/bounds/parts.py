"""What a model does between its layers, as layers: sums of branches, shifts, reshapes, self-attention.

A model that is read from its forward (`reading`) is a chain of torch's own layers and of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Branched(nn.Module):
    """Several chains with one input; an empty one is the identity."""

    def __init__(self, branches: Sequence[Sequence[nn.Module]]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)

    @property
    def chains(self) -> list[list[nn.Module]]:
        """The layers of each branch; one that a branch uses twice is there twice, which `children` would pass over."""
        return [list(cast(nn.Sequential, branch)) for branch in self.branches]


class Sum(Branched):
    """The sum of what the branches return: a residual connection."""

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape of what each branch returns."""
        return torch.stack([branch(x) for branch in self.branches]).sum(dim=0)


class Concatenation(Branched):
    """What the branches return side by side, along an axis behind that of the examples."""

    def __init__(self, branches: Sequence[Sequence[nn.Module]], axis: int) -> None:
        super().__init__(branches)
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return features; all axes but one are as long as those of each branch."""
        return torch.cat([branch(x) for branch in self.branches], dim=self.axis)


class Attention(Branched):
    """Queries, keys and values that three branches return, attending: `functional.scaled_dot_product_attention`.

    Each is (num_examples, …, num_tokens, size), without masks, and all with the same axes at "…"; scores are queries @
    keys times `scale`.
    """

    def __init__(self, branches: Sequence[Sequence[nn.Module]], scale: float) -> None:
        super().__init__(branches)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of the values, (num_examples, …, num_tokens, size of the values)."""
        return self.mixed(*(branch(x) for branch in self.branches))

    def shares(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return how much each token attends to each."""
        return functional.softmax(self.scale * (queries @ keys.transpose(-2, -1)), dim=-1)

    def mixed(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the values, mixed by these shares."""
        return self.shares(queries, keys) @ values


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


class Constant(WithConstant):
    """Returns the constant, whatever it is given: a class token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the constant, for each example."""
        return self.constant.expand(len(x), *self.constant.shape[1:])


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


class Selected(nn.Module):
    """Some of the features: for each axis behind the examples' a number, or the start, stop and step of a slice."""

    def __init__(self, index: Sequence[int | tuple[int | None, int | None, int | None]]) -> None:
        super().__init__()
        self.index = tuple(index)

    def forward(self, x: Tensor) -> Tensor:
        """Return x[:, index]."""
        behind = [slice(*part) if isinstance(part, tuple) else part for part in self.index]
        return x[(slice(None), *behind)]


class Mean(nn.Module):
    """The mean over some axes behind that of the examples."""

    def __init__(self, axes: Sequence[int], *, is_kept: bool) -> None:
        super().__init__()
        self.axes, self.is_kept = tuple(axes), is_kept

    def forward(self, x: Tensor) -> Tensor:
        """Return x.mean(axes)."""
        return x.mean(dim=self.axes, keepdim=self.is_kept)


class Heads(NamedTuple):
    """Queries, keys or values of each head; shape (num_examples, num_heads, num_tokens, head_size)."""

    queries: Tensor
    keys: Tensor
    values: Tensor


class SelfAttention(nn.Module):
    """What `nn.MultiheadAttention` makes of a sequence that attends to itself, (num_examples, num_tokens, size).

    Examples come first, all have one size, and there are no masks: see `reading`.
    """

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads = layer.num_heads
        self.head_size = layer.embed_dim // layer.num_heads
        self.into = nn.Linear(layer.embed_dim, 3 * layer.embed_dim)
        self.out = nn.Linear(layer.embed_dim, layer.embed_dim)
        for mine, weight, bias in (
            (self.into, layer.in_proj_weight, layer.in_proj_bias),
            (self.out, layer.out_proj.weight, layer.out_proj.bias),
        ):
            mine.weight = nn.Parameter(weight.detach().clone())
            mine.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def heads(self, x: Tensor) -> Heads:
        """Return queries, keys and values."""
        parts = self.into(x).reshape(*x.shape[:2], 3, self.num_heads, self.head_size)
        return Heads(*parts.permute(2, 0, 3, 1, 4))

    def shares(self, heads: Heads) -> Tensor:
        """Return softmax(queries @ keys^T / sqrt(head_size)): how much each token attends to each."""
        scores = heads.queries @ heads.keys.transpose(2, 3) / self.head_size**0.5
        return functional.softmax(scores, dim=3)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape of x."""
        heads = self.heads(x)
        mixed = self.shares(heads) @ heads.values
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result
