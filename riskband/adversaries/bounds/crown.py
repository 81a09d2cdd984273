"""How far around one example a small model provably keeps its decision: linear bounds of its margins (math §6.5).

On the ball ||x' - x|| <= radius every unit of a layer lies between two affine functions of the units before it, and so,
substituted back to the input, does every margin (CROWN: Zhang et al. 2018; zonotopes: Singh et al. 2018). An affine
function is at most its value at x plus the radius times its dual norm. A radius is certified if the bounds of all
margins are below zero there: whatever way the radii are chosen, each one that is returned was checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from riskband.adversaries.bounds.layer_norms import (
    MAX_POOLS,
    RULES,
    Body,
    as_many,
    cut_at_bends,
    leaky_slope,
    shape_behind,
)
from riskband.adversaries.bounds.lipschitz import SequentialLayers, check_norm
from riskband.adversaries.bounds.relu_cells import composed
from riskband.adversaries.norms import DUAL_EXPONENTS
from riskband.checks import RefusedError

MAX_ENTRIES = 2**22
"""Of the matrix of affine layers in a row."""
MAX_INPUTS = 4096
"""Of such layers, and of the model: its unit vectors are a matrix, too."""
AUTO_WORK = 2**25
"""Multiplications per example and radius up to which local bounds are cheap: 100 examples take about two seconds."""

# Layers whose units take no more than this many multiplications have their bounds substituted back to the input; others
# are bounded on the way forward, with one slope per unit, which is looser and much cheaper.
_REFINED_WORK = 2**24
# Every sum here adds terms whose sizes add up to at most the magnitude that is carried along; float64 loses less.
_SLACK = 1e-11
_NUM_HALVINGS = 6
_LARGEST_RATIO = 1000.0
# Numbers in the largest array of a chunk of examples: what fits into a cache is several times as fast.
_CHUNK_NUMBERS = 2**18


RELAXED = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, *MAX_POOLS)
"""Layers that are bounded here."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """What is known of each unit of a layer when its inputs z lie in a box.

    It lies between ``lower * z + lower_offset`` and ``upper * z + upper_offset``, within `error` of
    ``slope * z + center``, and between `low` and `high`. Weights of the inputs have shape (num_examples, num_units,
    width), all others (num_examples, num_units). `sources`, (num_units, width), are the inputs of each unit, -1 for
    none; None: unit i has input i. `rate` is the Lipschitz constant of a unit, at least 1.
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

        Weights such as `slope` have shape (num_examples, num_units, width), inputs (num_examples or 1, num_inputs, n).
        """
        if self.sources is None:
            return weights * inputs
        return sum(
            (weights[:, :, q, None] * inputs[:, self.sources[:, q]] for q in range(self.sources.shape[1])),
            start=torch.zeros(()),
        )

    def pulled_back(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows' and c, such that rows @ outputs <= rows' @ inputs + c on the box.

        Rows have shape (num_examples or 1, num_rows, num_units); those returned (num_examples, num_rows, num_inputs),
        and c (num_examples, num_rows).
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
    """Return bounds of a layer in `RELAXED` on the boxes [low, high], both float64 of shape (num_examples, num_inputs).

    The sources are `pool_windows` of a max pool, None for an activation.
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


def pool_windows(layer: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the flat indices of the inputs of each output of a max pool, (num_outputs, width), -1 for the padding."""
    settings = [as_many(setting, len(shape) - 1) for setting in (layer.kernel_size, layer.stride, layer.padding)]
    windows, is_inside = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool)
    for size, number, kernel, stride, padding in zip(shape[1:], shape_behind(layer, shape)[1:], *settings, strict=True):
        places = torch.arange(number)[:, None] * stride - padding + torch.arange(kernel)
        windows = (windows[:, None, :, None] * size + places[None, :, None]).flatten(2).flatten(0, 1)
        is_here = ((places >= 0) & (places < size))[None, :, None]
        is_inside = (is_inside[:, None, :, None] & is_here).flatten(2).flatten(0, 1)
    planes = torch.arange(shape[0])[:, None, None] * math.prod(shape[1:])
    return torch.where(is_inside, windows + planes, -1).flatten(0, 1)


class Stage(NamedTuple):
    """An affine map (matrix None: the identity) and the bend behind it (None: the end).

    `terms` and `offset_terms` are matrix and offset with the terms of all sums that led to them made positive: where
    these cancel, the entries are small and what was rounded is not. `sources` as in `Relaxation`.
    """

    matrix: Tensor | None
    offset: Tensor
    terms: Tensor | None
    offset_terms: Tensor
    bend: nn.Module | None
    sources: Tensor | None


@dataclass(frozen=True, eq=False)
class LocalNetwork:
    """A model as affine maps with bends between them, in float64; the last stage, and no other, has no bend.

    `is_refined` says of each stage whether the bounds of its units are substituted back to the input; `work` is the
    number of multiplications per example and radius, about.
    """

    stages: tuple[Stage, ...]
    is_refined: tuple[bool, ...]
    num_inputs: int
    work: int


class _Block(NamedTuple):
    """Affine layers in a row, and the bend behind them with the shape of its input (None: the last layer is next)."""

    affine: Body
    num_inputs: int
    num_outputs: int
    bend: tuple[nn.Module, tuple[int, ...]] | None


def local_network(layers: SequentialLayers) -> LocalNetwork:
    """Return a chain of layers as affine maps and bends.

    Raises RefusedError if a layer has no linear bounds here, or the affine maps are too large to be written as
    matrices.
    """
    blocks = _blocks(layers)
    sizes, num_inputs = _matrix_sizes(layers, blocks), math.prod(layers.x_shape)
    return LocalNetwork(
        stages=tuple(_stage(layers, block) for block in blocks),
        is_refined=tuple(0 < _back_work(sizes, index) <= _REFINED_WORK for index in range(len(sizes))),
        num_inputs=num_inputs,
        work=_work(sizes, num_inputs),
    )


def is_cheap(layers: SequentialLayers) -> bool:
    """Return whether a model has local bounds of at most `AUTO_WORK`; from its sizes, before any is done."""
    try:
        sizes = _matrix_sizes(layers, _blocks(layers))
    except RefusedError:
        return False
    return _work(sizes, math.prod(layers.x_shape)) <= AUTO_WORK


def _blocks(layers: SequentialLayers) -> list[_Block]:
    """Cut a chain behind its bends; raises RefusedError if a layer or its size is not for here."""
    blocks = []
    for affine, bend in cut_at_bends(layers.body):
        _check_bend(bend)
        here = [*affine, *([bend] if bend else [])]
        num_features = layers.head.shape[1]
        sizes = math.prod(here[0][1]) if here else num_features, math.prod(bend[1]) if bend else num_features
        blocks.append(_Block(affine, *sizes, bend))
    largest = max(_largest_matrix(block) for block in blocks)
    if largest > MAX_ENTRIES:
        raise RefusedError(
            f"local bounds are for affine layers of at most {MAX_ENTRIES} weights when unrolled, got {largest}; use "
            "the method 'auto' or 'product'"
        )
    widest = max(math.prod(shape) for shape in (layers.x_shape, *(s for block in blocks for _, s in block.affine)))
    if widest > MAX_INPUTS:
        raise RefusedError(
            f"local bounds are for at most {MAX_INPUTS} inputs of the network and its affine layers, got {widest}; use "
            "the method 'auto' or 'product'"
        )
    return blocks


def _check_bend(bend: tuple[nn.Module, tuple[int, ...]] | None) -> None:
    """Check that there are linear bounds of this layer; raises RefusedError."""
    if bend is not None and not isinstance(bend[0], RELAXED):
        names = ", ".join(kind.__name__ for kind in RELAXED)
        raise RefusedError(
            f"local bounds are known for affine layers, {names}, got {type(bend[0]).__name__}; use the method 'auto' "
            "or 'product'"
        )


def _largest_matrix(block: _Block) -> int:
    """Entries of the largest matrix on the way to a block's: of one layer, or of all up to it."""
    ends = [*(math.prod(shape) for _, shape in block.affine), block.num_outputs]
    return max((max(before, block.num_inputs) * after for before, after in pairwise(ends)), default=0)


def _matrix_sizes(layers: SequentialLayers, blocks: Sequence[_Block]) -> list[tuple[int, int]]:
    """Return rows and columns of the stages' matrices; 0 of the identity."""
    hidden = [(block.num_outputs, block.num_inputs) if block.affine else (0, 0) for block in blocks[:-1]]
    return [*hidden, (len(layers.head), blocks[-1].num_inputs)]


def _work(sizes: Sequence[tuple[int, int]], num_inputs: int) -> int:
    forward = sum(rows * columns * num_inputs for rows, columns in sizes[1:-1])
    refined = (_back_work(sizes, index) for index in range(len(sizes) - 1))
    return forward + sum(work for work in refined if work <= _REFINED_WORK) + _back_work(sizes, len(sizes) - 1)


def _back_work(sizes: Sequence[tuple[int, int]], index: int) -> int:
    """Multiplications that bound the units of a stage from both sides, substituted back to the input."""
    return 2 * sizes[index][0] * sum(rows * columns for rows, columns in sizes[:index])


def _stage(layers: SequentialLayers, block: _Block) -> Stage:
    matrix: Tensor | None = None
    terms: Tensor | None = None
    offset = offset_terms = torch.zeros(block.num_inputs, dtype=torch.float64)
    if block.affine:
        matrix, offset = composed(block.affine, block.num_inputs)
        terms, offset_terms = _composed_terms(block.affine, block.num_inputs)
    if block.bend is not None:
        layer, shape = block.bend
        sources = pool_windows(layer, shape) if isinstance(layer, MAX_POOLS) else None
        return Stage(matrix, offset, terms, offset_terms, layer, sources)
    head, size = layers.head, layers.head.abs()
    return Stage(
        matrix=head if matrix is None else head @ matrix,
        offset=head @ offset + layers.head_offset,
        terms=size if terms is None else size @ terms,
        offset_terms=size @ offset_terms + layers.head_offset.abs(),
        bend=None,
        sources=None,
    )


def _composed_terms(affine: Body, num_inputs: int) -> tuple[Tensor, Tensor]:
    """Return the product of the layers' matrices with entries made positive, and what it makes of their offsets."""
    terms = torch.eye(num_inputs, dtype=torch.float64).reshape(-1, *affine[0][1])
    offset_terms = torch.zeros(1, *affine[0][1], dtype=torch.float64)
    for layer, _ in affine:
        at_zero = deepcopy(layer).double().eval()(torch.zeros_like(offset_terms)).detach()
        spread = RULES[type(layer)].spread
        terms, offset_terms = spread(layer, terms), spread(layer, offset_terms) + at_zero.abs()
    return terms.flatten(1).T, offset_terms.flatten()


def local_distances(
    network: LocalNetwork, x: Tensor, labels: Tensor, *, norm: str, slack: Tensor, drift: Tensor, reach: Tensor
) -> Tensor:
    """Return distances in a norm below which no example is misclassified, (num_examples,).

    They are at least the smallest reach, and otherwise radii at which the bounds of the margins were found below zero.
    Examples x are flattened, (num_examples, num_inputs). A margin counts as below zero if it is so by more than the
    slack, (num_examples, 1), and by the drift, (num_examples, num_classes), more per distance from the example. The
    reach, of the same shape, has distances below which a class is known not to catch up, such as margin over Lipschitz
    constant; `inf` at the label.
    """
    check_norm(norm)
    widest = max(len(stage.offset) for stage in network.stages)
    distances: Tensor = reach.amin(dim=1)
    open_cases = torch.nonzero((distances > 0.0) & torch.isfinite(distances)).squeeze(1)
    for rows in torch.split(open_cases, max(1, _CHUNK_NUMBERS // (widest * network.num_inputs))):
        ball = _Balls(network, x[rows].double(), labels[rows], norm)
        distances[rows] = ball.largest_safe(slack[rows], drift[rows], reach[rows])
    return distances


class _Balls:
    """Balls around a few examples."""

    def __init__(self, network: LocalNetwork, x: Tensor, labels: Tensor, norm: str) -> None:
        self.network, self.x, self.labels = network, x, labels
        self.dual = DUAL_EXPONENTS[norm]

    def largest_safe(self, slack: Tensor, drift: Tensor, reach: Tensor) -> Tensor:
        """Return the largest of the radii that were checked, or the smallest reach; see `local_distances`."""
        best = reach.amin(dim=1)
        margins, speeds = self.margin_bounds(torch.zeros_like(best))
        rising = speeds + drift
        linear = torch.where(rising > 0.0, -(margins + slack) / rising, torch.inf).amin(dim=1)
        # Where the model is flat at an example, its slopes do not say where to look.
        far = torch.where(torch.isfinite(linear), linear, best * _LARGEST_RATIO)
        near = best.maximum(far / _LARGEST_RATIO)
        for _ in range(_NUM_HALVINGS):
            radii = (near * far.maximum(near)).sqrt()
            margins, speeds = self.margin_bounds(radii)
            highest = margins + slack + radii[:, None] * (speeds + drift)
            is_safe = ((highest < 0.0) | (reach >= radii[:, None])).all(dim=1)
            best = torch.where(is_safe, best.maximum(radii), best)
            near, far = torch.where(is_safe, radii, near), torch.where(is_safe, far, radii)
        return best

    def margin_bounds(self, radii: Tensor) -> tuple[Tensor, Tensor]:
        """Return (a, s), shapes (num_examples, num_classes): on the ball of radius t no margin exceeds a + s * t.

        At the label a is `-inf`. Both depend on the radii, and hold for smaller balls as well.
        """
        relaxations, magnitudes = self._relaxations(radii)
        last = self.network.stages[-1]
        assert last.matrix is not None
        assert last.terms is not None
        label = last.matrix[self.labels][:, None]
        values, speeds = self._substituted(last.matrix[None] - label, relaxations)
        errors = magnitudes @ last.terms.T + last.offset_terms
        values = values + last.offset - last.offset[self.labels][:, None]
        values = values + _SLACK * (errors + errors.gather(1, self.labels[:, None]))
        return values.scatter(1, self.labels[:, None], -torch.inf), speeds

    def _relaxations(self, radii: Tensor) -> tuple[list[Relaxation], Tensor]:
        """Return linear bounds of all bends on the balls, and magnitudes of what comes out of the last one.

        On the way forward a unit is an affine function of the input (jacobian, center) up to an error; its interval is
        the smaller of what that and the interval before say, and, where it costs little, what substitution says.
        """
        x, reached = self.x, radii[:, None]
        low, high = x - reached, x + reached  # in every norm no entry moves further than the whole
        magnitude = x.abs() + reached
        jacobian = torch.eye(self.network.num_inputs, dtype=torch.float64)[None]
        center, error = torch.zeros_like(x), torch.zeros_like(x)
        found: list[Relaxation] = []
        stages = zip(self.network.stages[:-1], self.network.is_refined, strict=False)
        for (matrix, offset, terms, offset_terms, bend, sources), is_refined in stages:
            assert bend is not None
            if matrix is not None and terms is not None:
                size = matrix.abs().T
                jacobian, center, error = matrix @ jacobian, center @ matrix.T + offset, error @ size
                middle, width = (low + high) / 2.0 @ matrix.T + offset, (high - low) / 2.0 @ size
                low, high, magnitude = middle - width, middle + width, magnitude @ terms.T + offset_terms
            value = (jacobian @ x[:, :, None]).squeeze(2) + center
            swing = reached * torch.linalg.vector_norm(jacobian, ord=self.dual, dim=2) + error
            low, high = low.maximum(value - swing), high.minimum(value + swing)
            if matrix is not None and is_refined and bool(radii.any()):  # at the examples the first bounds are exact
                values, speeds = self._substituted(torch.cat([matrix, -matrix])[None], found)
                above, below = (values + reached * speeds).chunk(2, dim=1)
                low, high = low.maximum(offset - below), high.minimum(offset + above)
            low, high = low - _SLACK * magnitude, high + _SLACK * magnitude
            step = relaxed(bend, sources, low, high)
            jacobian = step.passed(step.slope, jacobian)
            center = step.passed(step.slope, center[:, :, None]).squeeze(2) + step.center
            error = step.passed(step.slope.abs(), error[:, :, None]).squeeze(2) + step.error
            low, high, magnitude = step.low, step.high, step.magnitude(magnitude)
            found.append(step)
        return found, magnitude

    def _substituted(self, rows: Tensor, relaxations: Sequence[Relaxation]) -> tuple[Tensor, Tensor]:
        """Return (a, s): rows @ (outputs of the last bend) is at most a + s * t on the ball of radius t."""
        constant: Tensor | float = 0.0
        for stage, relaxation in zip(
            reversed(self.network.stages[: len(relaxations)]), reversed(relaxations), strict=True
        ):
            rows, gained = relaxation.pulled_back(rows)
            constant = constant + gained + (rows @ stage.offset if stage.matrix is not None else 0.0)
            rows = rows if stage.matrix is None else rows @ stage.matrix
        at_x = (rows @ self.x[:, :, None]).squeeze(2) + constant
        return at_x, torch.linalg.vector_norm(rows, ord=self.dual, dim=2).expand_as(at_x)
