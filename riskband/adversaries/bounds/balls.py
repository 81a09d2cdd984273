"""How far features move when an input moves within a ball around one example: layer by layer (math §6.11).

Some layers have small constants where they are used and large ones elsewhere: a normalisation divides by the
deviation of its own input. So the features of an example are carried along with two bounds of their moves: entry by
entry, and in l2 all together. Each layer makes the next two of them, from what it can do on that ball; layers that are
not in `_LOCAL`, from their rules for the whole space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from riskband.adversaries.bounds.layer_norms import (
    CONVOLUTIONS,
    NORMALISATIONS,
    RULES,
    group_weights,
    in_groups,
    shape_behind,
)
from riskband.adversaries.bounds.lipschitz import NUM_REMEMBERED, ROUNDING, SequentialLayers
from riskband.adversaries.bounds.parts import Sum
from riskband.adversaries.curves import Points
from riskband.adversaries.kept import kept
from riskband.adversaries.representation.growth import Growth

_NUM_HALVINGS = 12
_SMALLEST_RADIUS, _LARGEST_RADIUS = 2.0**-30, 2.0**30
_NUM_STEPS = 24
# Of the largest number on the way to the features of an example: far more than float64 loses on the way to it.
_SLACK = 1e-12

# Where every loss is 1; infinity would become NaN on the way.
_ANY_MARGIN = 1e100


class Moves(NamedTuple):
    """How far the features of examples move at most: each of them, (num_examples, *shape), and all together in l2.

    `largest` is the largest number on the way to the features: what they were rounded to is a share of it. It has, as
    the lengths, shape (num_examples,).
    """

    entries: Tensor
    lengths: Tensor
    largest: Tensor


def has_local_rules(layers: SequentialLayers) -> bool:
    """Return whether some layer of a model does less around an example than its constant says, or is a sum."""
    kinds = {type(part) for layer, _ in layers.body for part in layer.modules()}
    return not kinds.isdisjoint((*NORMALISATIONS, Sum))


class Balls:
    """Balls of a norm around a few examples, float64, (num_examples, *x_shape), and bounds of the margins on them.

    `margins` are bounds of those of the examples, (num_examples, num_classes), `-inf` at the label. They are raised by
    a share `rounding` of how far the logits move.
    """

    def __init__(
        self, layers: SequentialLayers, x: Tensor, labels: Tensor, *, norm: str, margins: Tensor, rounding: float
    ) -> None:
        self.layers, self.x, self.margins = layers, x, margins
        self.scale = math.sqrt(math.prod(layers.x_shape)) if norm == "linf" else 1.0  # of l2 over this norm
        self.pulls = (layers.head[None] - layers.head[labels][:, None]).abs()
        sizes = layers.head.norm(dim=1)
        self.drifts = rounding * (sizes[None] + sizes[labels][:, None])
        self.norms = _norms(layers)

    def rises(self, radii: Tensor) -> Tensor:
        """Return by how much each margin grows on the balls, (num_examples, num_classes); one radius per example."""
        entries = radii.reshape(-1, *[1] * (self.x.dim() - 1)).expand_as(self.x)
        start = Moves(entries, self.scale * radii, torch.zeros_like(radii))
        with torch.no_grad():
            _, moves = propagated((layer for layer, _ in self.layers.body), self.x, start, iter(self.norms))
        by_entries = (self.pulls @ moves.entries.flatten(1)[:, :, None]).squeeze(2)
        length = moves.lengths[:, None]
        around = (1.0 + ROUNDING) * by_entries.minimum(self.pulls.norm(dim=2) * length) + self.drifts * length
        return torch.nan_to_num(around, nan=_ANY_MARGIN, posinf=_ANY_MARGIN)

    def largest(self, holds: Callable[[Tensor], Tensor]) -> Tensor:
        """Return radii at which `holds` was true of `rises`, about the largest, or 0."""
        best = torch.zeros(len(self.x), dtype=torch.float64)
        near, far = torch.full_like(best, _SMALLEST_RADIUS), torch.full_like(best, _LARGEST_RADIUS)
        for _ in range(_NUM_HALVINGS):
            radii = (near * far).sqrt()
            is_held = holds(self.rises(radii))
            best = torch.where(is_held, best.maximum(radii), best)
            near, far = torch.where(is_held, radii, near), torch.where(is_held, far, radii)
        return best

    def safe_distances(self) -> Tensor:
        """Return distances within which no example is misclassified, shape (num_examples,)."""
        return self.largest(lambda rises: (self.margins + rises < 0.0).all(dim=1))

    def bounding_points(self, growth: Growth, losses: Tensor, *, order: int) -> Points:
        """Return points whose concave hull lies above the loss, of examples that have these losses where they are.

        Between two radii the loss is at most what it is at the larger one, and beyond the last one at most 1. A move by
        t costs t**order.
        """

        def heights(rises: Tensor) -> Tensor:
            return growth.bound(self.margins + rises).minimum(losses + growth.slope * rises.amax(dim=1))

        end = self.largest(lambda rises: heights(rises) < 1.0)
        shares = (torch.arange(_NUM_STEPS + 1, dtype=torch.float64) / _NUM_STEPS).square()
        radii = end[:, None] * shares
        within = [heights(self.rises(column)) for column in radii[:, 1:].T]
        return Points(radii.pow(order), torch.stack([*within, torch.ones_like(end)], dim=1).cummax(dim=1).values)


@lru_cache(maxsize=NUM_REMEMBERED)
def _norms(layers: SequentialLayers) -> Sequence[float]:
    ruled = list(_by_rules((layer for layer, _ in layers.body), layers.x_shape))
    name = f"norms {layers.fingerprint}"
    return kept(name, len(ruled), lambda: [RULES[type(layer)].spectral(layer, shape) for layer, shape in ruled])


def _by_rules(chain: Iterable[nn.Module], shape: tuple[int, ...]) -> Iterator[tuple[nn.Module, tuple[int, ...]]]:
    """Yield the layers whose norms `propagated` takes from their rules, in its order, and the shapes before them."""
    for layer in chain:
        if isinstance(layer, Sum):
            for branch in layer.chains:
                yield from _by_rules(branch, shape)
        elif type(layer) not in _LOCAL:
            yield layer, shape
        shape = shape_behind(layer, shape)


def propagated(chain: Iterable[nn.Module], x: Tensor, moves: Moves, norms: Iterator[float]) -> tuple[Tensor, Moves]:
    """Return the features behind layers in a row, and how far they move if those before, x, do by at most `moves`."""
    for layer in chain:
        if isinstance(layer, Sum):
            x, moves = _added([propagated(branch, x, moves, norms) for branch in layer.chains])
        else:
            moves = moves._replace(largest=_largest_number(layer, x).maximum(moves.largest))
            rule = _LOCAL.get(type(layer))
            moved = _by_rule(layer, moves, next(norms)) if rule is None else rule(layer, x, moves)
            x, moves = layer(x), moved._replace(largest=moves.largest)
    return x, moves


def _largest_number(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the largest feature before a layer, or the largest sum of sizes that the layer makes of them."""
    is_sum = isinstance(layer, (nn.Linear, *CONVOLUTIONS))
    return _size(x).maximum(_size(RULES[type(layer)].spread(layer, x.abs()))) if is_sum else _size(x)


def _size(x: Tensor) -> Tensor:
    return x.flatten(1).abs().amax(dim=1)


def _tightened(entries: Tensor, lengths: Tensor) -> Moves:
    """No entry moves further than all of them together, and these no further than their moves add up to."""
    lengths = lengths.minimum(torch.linalg.vector_norm(entries.flatten(1), dim=1))
    return Moves(entries.minimum(_beside(lengths, entries)), lengths, torch.zeros_like(lengths))


def _beside(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.dim() - 1))


def _added(parts: list[tuple[Tensor, Moves]]) -> tuple[Tensor, Moves]:
    largest = torch.stack([_size(x).maximum(moves.largest) for x, moves in parts]).amax(dim=0)
    entries, lengths = (torch.stack(each).sum(dim=0) for each in zip(*(moves[:2] for _, moves in parts), strict=True))
    return torch.stack([x for x, _ in parts]).sum(dim=0), _tightened(entries, lengths)._replace(largest=largest)


def _by_rule(layer: nn.Module, moves: Moves, norm: float) -> Moves:
    entries = RULES[type(layer)].spread(layer, moves.entries)
    if isinstance(layer, nn.Linear):
        rows = layer.weight.norm(dim=1)
        # How far each vector along the last axis moves.
        vectors = torch.linalg.vector_norm(moves.entries, dim=-1)
        entries = entries.minimum(rows * vectors.minimum(_beside(moves.lengths, vectors))[..., None])
    elif isinstance(layer, CONVOLUTIONS):
        rows = layer.weight.flatten(1).norm(dim=1).reshape(1, -1, *[1] * (entries.dim() - 2))
        entries = entries.minimum(rows * _beside(moves.lengths, entries))
    return _tightened(entries, norm * moves.lengths)


def _relu(_: nn.Module, x: Tensor, moves: Moves) -> Moves:
    """A unit that cannot become active does not move; one that is not active moves by what it is beyond 0 at most."""
    slack = _beside(_SLACK * moves.largest, x)
    return _tightened(moves.entries.minimum((x + moves.entries + slack).clamp(min=0.0)), moves.lengths)


def _normalised(layer: Any, x: Tensor, moves: Moves) -> Moves:
    """On the ball the deviation, which has constant 1 / sqrt(size), is at least what is left of it."""
    groups = in_groups(layer, x)
    size = groups.shape[2]
    if not isinstance(layer, nn.RMSNorm):
        groups = groups - groups.mean(dim=2, keepdim=True)
    # What the features were rounded to is a move as well: it is divided by the deviation too.
    slack = _SLACK * moves.largest[:, None]
    asked = in_groups(layer, moves.entries).norm(dim=2).minimum(moves.lengths[:, None]) + math.sqrt(size) * slack
    together = moves.lengths + math.sqrt(x[0].numel()) * slack.squeeze(1)
    deviation = groups.norm(dim=2) / math.sqrt(size)
    least = (deviation - asked / math.sqrt(size)).clamp(min=0.0)
    rates = (least.square() + layer.eps).rsqrt()
    # What is normalised has length at most sqrt(size), wherever it goes.
    moved = (rates * asked).clamp(max=2.0 * math.sqrt(size))
    weights = group_weights(layer, size)
    largest = weights.amax(dim=1)
    lengths = (largest * moved).norm(dim=1).minimum((largest * rates).amax(dim=1) * together)
    return _tightened((weights * moved[:, :, None]).reshape(x.shape), lengths)


_LOCAL: dict[type[nn.Module], Callable[[Any, Tensor, Moves], Moves]] = {
    nn.ReLU: _relu,
    **dict.fromkeys(NORMALISATIONS, _normalised),
}
