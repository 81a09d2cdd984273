"""The cells on which a small ReLU model is affine (math §6.6; Jordan and Dimakis 2020).

A cell belongs to a pattern: which units are active. Patterns are built unit by unit. Each that is kept has a point
inside it, or is at least not known to be empty; each that is dropped is empty by an exact proof in rational numbers. So
no cell is missed, whatever a solver's tolerance, and a bound that looks at all of them holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import scipy  # loads its modules on use
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from riskband.adversaries.bounds.layer_norms import Body, cut_at_bends, leaky_slope, unrolled

MAX_UNITS = 16
"""Up to 2**16 patterns, some minutes."""

# A sign is sure if the sum exceeds this share of the sum of its terms' sizes; float64 loses far less.
_SURE = 1e-9
_SUPPORT = 1e-9
# Larger offsets, of rows of length 1, are as good as infinite.
_HUGE = Fraction(10) ** 300

FloatArray = NDArray[np.floating]
# Arrays of Fraction.
ExactArray = NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Cell:
    """A polyhedron {x : rows @ x + offsets > 0} on which the model is affine; inputs flattened.

    `jacobian`, float64 (num_features, num_inputs), is that of the model's body on the cell. Rows, (num_constraints,
    num_inputs), have length 1 in l2. `point` lies inside; None: the cell was not proved empty, and none was found.
    """

    jacobian: Tensor
    rows: FloatArray
    offsets: FloatArray
    point: FloatArray | None


@dataclass(frozen=True, eq=False)
class _HalfSpaces:
    """The constraints of a cell, rounded and exact, and a point inside."""

    rows: FloatArray
    offsets: FloatArray
    exact_rows: ExactArray
    exact_offsets: ExactArray
    point: FloatArray | None

    def cut(self, row: ExactArray, offset: Fraction) -> _HalfSpaces | None:
        """Return what is left where row @ x + offset > 0; None if that is proved empty."""
        largest = max(abs(value) for value in row)  # exact: what is rounded next can neither vanish nor overflow
        floats = (row / largest).astype(np.float64)
        length = float(np.linalg.norm(floats))
        cut = _HalfSpaces(
            np.vstack([self.rows, floats / length]),
            np.append(self.offsets, float(max(-_HUGE, min(_HUGE, offset / largest))) / length),
            np.vstack([self.exact_rows, row]),
            np.append(self.exact_offsets, _exact([offset])),
            None,
        )
        if self.point is not None and cut.surely_contains(self.point):
            return replace(cut, point=self.point)
        if len(cut.rows) <= cut.rows.shape[1]:  # often independent: then any values can be had
            point = np.linalg.lstsq(cut.rows, 1.0 - cut.offsets)[0]
            if cut.surely_contains(point):
                return replace(cut, point=point)
        return cut.searched()

    def surely_contains(self, point: FloatArray) -> bool:
        """Return whether a point lies inside by more than rounding can change."""
        sizes = np.abs(self.rows) @ np.abs(point) + np.abs(self.offsets)
        return bool(np.all(self.rows @ point + self.offsets > _SURE * sizes))

    def searched(self) -> _HalfSpaces | None:
        """Return the same with the point deepest inside, if the linear program finds one; None if proved empty."""
        num_rows, num_inputs = self.rows.shape
        solution = scipy.optimize.linprog(
            np.append(np.zeros(num_inputs), -1.0),
            A_ub=np.hstack([-self.rows, np.ones((num_rows, 1))]),
            b_ub=self.offsets,
            bounds=[(None, None)] * num_inputs + [(None, 1.0)],
            method="highs-ds",  # a vertex: its multipliers have the small support that the proof needs
        )
        if solution.x is None:
            return self
        point = solution.x[:-1]
        if self.surely_contains(point):
            return replace(self, point=point)
        support = np.flatnonzero(-solution.ineqlin.marginals > _SUPPORT)
        return None if is_proved_empty(self.exact_rows[support], self.exact_offsets[support]) else self


def is_proved_empty(rows: ExactArray, offsets: ExactArray) -> bool:
    """Return whether half-spaces are disjoint by an exact proof (Motzkin's alternative); arrays of Fraction.

    Multipliers v >= 0, not all 0, with v @ rows = 0 and v @ offsets <= 0 contradict rows @ x + offsets > 0. Only the
    case of one such v up to scale is decided; False means: not proved.
    """
    multipliers = _one_relation(rows)
    if multipliers is None:
        return False
    if min(multipliers) < 0:
        multipliers = [-value for value in multipliers]
    total = sum((value * offset for value, offset in zip(multipliers, offsets, strict=True)), Fraction(0))
    return min(multipliers) >= 0 and total <= 0


def _one_relation(rows: ExactArray) -> list[Fraction] | None:
    """Return v != 0 with v @ rows = 0 if it is unique up to scale, by exact elimination; else None."""
    columns = [list(column) for column in rows.T]  # one equation per input
    num_unknowns = len(rows)
    pivots: list[int] = []
    for unknown in range(num_unknowns):
        rank = len(pivots)
        lead = next((i for i in range(rank, len(columns)) if columns[i][unknown] != 0), None)
        if lead is None:
            continue
        columns[rank], columns[lead] = columns[lead], columns[rank]
        columns[rank] = [value / columns[rank][unknown] for value in columns[rank]]
        for i, column in enumerate(columns):
            if i != rank and column[unknown] != 0:
                columns[i] = [a - column[unknown] * b for a, b in zip(column, columns[rank], strict=True)]
        pivots.append(unknown)
    free = [unknown for unknown in range(num_unknowns) if unknown not in pivots]
    if len(free) != 1:
        return None
    relation = [Fraction(0)] * num_unknowns
    relation[free[0]] = Fraction(1)
    for column, pivot in zip(columns, pivots, strict=False):
        relation[pivot] = -column[free[0]]
    return relation


def hidden_units(body: Body) -> int | None:
    """Return the number of ReLU units of a chain of layers; None if it is more than affine layers and (leaky) ReLU."""
    bends = [bend for _, bend in cut_at_bends(body) if bend is not None]
    if not all(isinstance(layer, nn.ReLU | nn.LeakyReLU) for layer, _ in bends):
        return None
    return sum(math.prod(shape) for _, shape in bends)


def relu_cells(body: Body, x_shape: tuple[int, ...]) -> Iterator[Cell]:
    """Yield the cells of a chain of affine layers and (leaky) ReLU; see the head of this file.

    The body has at most `MAX_UNITS` units in all. Affine layers in a row are multiplied in float64 first.
    """
    width = num_inputs = math.prod(x_shape)
    *hidden, (ending, _) = cut_at_bends(body)
    blocks = []
    for affine, bend in hidden:
        assert bend is not None
        matrix, offset = composed(affine, width)
        blocks.append((_exact(matrix.numpy()), _exact(offset.numpy()), Fraction(leaky_slope(bend[0]))))
        width = len(matrix)
    last, _ = composed(ending, width)
    everywhere = _HalfSpaces(
        np.zeros((0, num_inputs)), np.zeros(0), _exact(np.zeros((0, num_inputs))), _exact(np.zeros(0)),
        np.zeros(num_inputs),
    )  # fmt: skip
    if not blocks:
        yield Cell(last, everywhere.rows, everywhere.offsets, everywhere.point)
        return
    for cell, jacobian in _patterns(everywhere, blocks[0][0], blocks[0][1], blocks):
        yield Cell(last @ torch.from_numpy(jacobian.astype(np.float64)), cell.rows, cell.offsets, cell.point)


Block = tuple[ExactArray, ExactArray, Fraction]


def _patterns(
    cell: _HalfSpaces, matrix: ExactArray, offset: ExactArray, blocks: Sequence[Block]
) -> Iterator[tuple[_HalfSpaces, ExactArray]]:
    """Yield cells within a cell where the first block's units are matrix @ x + offset, and the last units' slopes."""
    slope = blocks[0][2]
    for part, rates in _signs(cell, matrix, offset, slope):
        active, shift = rates[:, None] * matrix, rates * offset
        if len(blocks) == 1:
            yield part, active
        else:
            following, bias, _ = blocks[1]
            yield from _patterns(part, following.dot(active), following.dot(shift) + bias, blocks[1:])


def _signs(
    cell: _HalfSpaces, matrix: ExactArray, offset: ExactArray, slope: Fraction
) -> Iterator[tuple[_HalfSpaces, ExactArray]]:
    """Yield cells within a cell on which no unit changes its sign, and the units' slopes there, 1 or `slope`."""
    if not len(matrix):
        yield cell, _exact(np.zeros(0))
        return
    for sign, rate in ((1, Fraction(1)), (-1, slope)):
        if any(matrix[0]):
            part = cell.cut(sign * matrix[0], sign * offset[0])
        else:  # the unit is constant: one sign everywhere, and at 0 both are the same
            part = cell if (sign > 0) == (offset[0] > 0) else None
        if part is not None:
            for inner, rates in _signs(part, matrix[1:], offset[1:], slope):
                yield inner, np.append(_exact([rate]), rates)


def composed(layers: Body, num_inputs: int) -> tuple[Tensor, Tensor]:
    """Return affine layers in a row as one matrix (num_outputs, num_inputs) and offset, float64; none: the identity."""
    matrix, offset = torch.eye(num_inputs, dtype=torch.float64), torch.zeros(num_inputs, dtype=torch.float64)
    for layer, shape in layers:
        factor = unrolled(layer, shape)
        at_zero = deepcopy(layer).double().eval()(torch.zeros(1, *shape, dtype=torch.float64)).detach().flatten()
        matrix, offset = factor @ matrix, factor @ offset + at_zero
    return matrix, offset


def _exact(values: Sequence[object] | FloatArray) -> ExactArray:
    array = np.asarray(values)
    return np.array([Fraction(value) for value in array.ravel().tolist()], dtype=object).reshape(array.shape)
