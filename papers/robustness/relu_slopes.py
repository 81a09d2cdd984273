"""How fast the worst mean loss of a small model grows with the budget: between two slopes (math §6.7).

For the losses of the WDA paper (theorem 3.1), cross-entropy in nats or the largest margin, neither scaled nor capped,
and order-1 costs: mean loss + lower * budget <= worst mean loss <= mean loss + upper * budget, for every budget, if
some example has the label of `ray`. The upper slope is a Lipschitz constant; the lower one is reached far out, on cells
that a straight line never leaves. Smooth activations need no cells of their own: one that is bounded lets no margin
grow for ever, and one that differs from ReLU by at most a constant lets it grow as with ReLU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads its modules on use
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from riskband.adversaries.bounds.layer_norms import BOUNDED, LIKE_RELU
from riskband.adversaries.bounds.lipschitz import (
    ROUNDING,
    SequentialLayers,
    check_enumerable,
    check_norm,
    margin_constants,
)
from riskband.adversaries.bounds.relu_cells import Cell, relu_cells
from riskband.adversaries.norms import DUAL_EXPONENTS
from riskband.checks import RefusedError

FloatArray = NDArray[np.floating]

_LARGEST_NUM_CLASSES = 16  # the published constant for linf looks at all signs of the logits
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Ray:
    """A line on which the margin of a class, the rival, over a label grows at a constant rate for ever.

    It begins at a point, flattened, and its direction has norm at most 1; both have shape (num_inputs,).
    """

    label: int
    rival: int
    start: FloatArray
    direction: FloatArray


@dataclass(frozen=True, eq=False)
class GrowthSlopes:
    """Slopes of the worst mean loss over the budget; see the head of this file."""

    lower: float
    upper: float
    """In units of the loss per unit of distance. The upper one is raised by `ROUNDING`; the lower one holds to the
    tolerance of a linear program."""
    ray: Ray | None
    """Where the lower slope is reached; None if it is 0."""
    is_aligned: bool
    """The sufficient condition for lower = upper: on a cell with the largest gradient of a margin, the direction in
    which that margin grows fastest never leaves the cell. Not decided, and False, for smooth activations."""


def growth_slopes(model: nn.Module, x_shape: Sequence[int], *, norm: str, method: str = "sharp") -> GrowthSlopes:
    """Return both slopes of theorem 3.1 for a small ReLU model, or one with smooth activations.

    With an activation in `layer_norms.BOUNDED` the lower slope is 0. With those in `LIKE_RELU` it is that of the
    model with ReLU in their place, from which all logits differ by at most a constant: along a ray that is nothing.
    The upper slope is then the largest of `margin_constants`, which need not be the smallest Lipschitz constant.

    For model, shape and norm see `riskband.adversaries.bounds.lipschitz.margin_constants`; there are at most 16 units,
    unless one is bounded. The method is that of the upper slope: "sharp", the largest constant of a difference of two
    logits; or "published", 2^(1/s) max ||J||_{r->s} as printed. That one proves nothing: the factor must be 2^(1/r)
    (math §6.7). Raises RefusedError as `margin_constants` does for "exact", if the method is unknown, or has too many
    classes ("published", linf), or is "published" and an activation smooth.
    """
    check_norm(norm)
    if method not in ("sharp", "published"):
        raise RefusedError(f"method must be 'sharp' or 'published', got {method!r}")
    layers = SequentialLayers(model, x_shape)
    kinds = [type(layer) for layer, _ in layers.body]
    if any(kind in BOUNDED + LIKE_RELU for kind in kinds):
        if method == "published":
            raise RefusedError("the published slope is for affine layers and (leaky) ReLU, got another; use 'sharp'")
        return _smooth_slopes(model, layers, norm=norm)
    check_enumerable(layers)
    if method == "published" and norm == "linf" and len(layers.head) > _LARGEST_NUM_CLASSES:
        raise RefusedError(
            f"the published slope for 'linf' needs at most {_LARGEST_NUM_CLASSES} classes, got {len(layers.head)}; "
            "use 'sharp'"
        )
    sharp, lower, published, ray, is_aligned = 0.0, 0.0, 0.0, None, False
    for cell in relu_cells(layers.body, layers.x_shape):
        published = max(published, _published_norm(layers.head @ cell.jacobian, norm))
        gradients = (layers.pulls.flatten(0, 1) @ cell.jacobian).numpy()
        sizes = np.linalg.norm(gradients, ord=DUAL_EXPONENTS[norm], axis=1)
        for index in np.flatnonzero(sizes > 0.0):
            size, gradient = float(sizes[index]), gradients[index]
            if size > sharp * (1.0 - _TOLERANCE):
                aligned = _is_steepest_inside(cell, gradient, norm)
                is_aligned = aligned or (is_aligned and size <= sharp * (1.0 + _TOLERANCE))
                sharp = max(sharp, size)
            if size > lower and cell.point is not None:
                direction = steepest_recession(cell, gradient, norm=norm)
                if gradient @ direction > lower:
                    rival, label = divmod(int(index), len(layers.head))
                    lower, ray = float(gradient @ direction), Ray(label, rival, cell.point, direction)
    upper = published if method == "published" else sharp * (1.0 + ROUNDING)
    return GrowthSlopes(lower=lower, upper=upper, ray=ray, is_aligned=is_aligned)


def _smooth_slopes(model: nn.Module, layers: SequentialLayers, *, norm: str) -> GrowthSlopes:
    upper = float(margin_constants(model, layers.x_shape, norm=norm, method="product").max())
    if any(isinstance(layer, BOUNDED) for layer, _ in layers.body):
        return GrowthSlopes(lower=0.0, upper=upper, ray=None, is_aligned=False)
    twin = growth_slopes(layers.with_relu(), layers.x_shape, norm=norm)
    return GrowthSlopes(lower=twin.lower, upper=upper, ray=twin.ray, is_aligned=False)


def steepest_recession(cell: Cell, gradient: FloatArray, *, norm: str) -> FloatArray:
    """Return the direction of norm at most 1 in which a linear function grows fastest and that never leaves a cell.

    In l2 it is the projection of the gradient onto the cone rows @ u >= 0, up to length: what remains of it after the
    best fit by minus the rows with weights >= 0 (Moreau). In l1 and linf a linear program finds it.
    """
    if norm == "l2":
        rest = gradient.copy()
        if len(cell.rows):
            weights, _ = scipy.optimize.nnls(-cell.rows.T, gradient)
            rest = gradient + weights @ cell.rows
        length = np.linalg.norm(rest)
        return rest / length if length > _TOLERANCE * np.linalg.norm(gradient) else np.zeros_like(rest)
    num_inputs = len(gradient)
    if norm == "linf":
        solution = scipy.optimize.linprog(-gradient, A_ub=-cell.rows, b_ub=np.zeros(len(cell.rows)), bounds=(-1.0, 1.0))
        return np.zeros(num_inputs) if solution.x is None else solution.x
    solution = scipy.optimize.linprog(
        np.concatenate([-gradient, gradient]),
        A_ub=np.vstack([np.hstack([-cell.rows, cell.rows]), np.ones((1, 2 * num_inputs))]),
        b_ub=np.append(np.zeros(len(cell.rows)), 1.0),
    )
    return np.zeros(num_inputs) if solution.x is None else solution.x[:num_inputs] - solution.x[num_inputs:]


def _is_steepest_inside(cell: Cell, gradient: FloatArray, norm: str) -> bool:
    """Whether the maximiser of gradient @ u over ||u|| <= 1 lies in the cell's recession cone."""
    if norm == "l2":
        steepest = gradient / np.linalg.norm(gradient)
    elif norm == "linf":
        steepest = np.sign(gradient)
    else:
        steepest = np.where(np.arange(len(gradient)) == np.abs(gradient).argmax(), np.sign(gradient), 0.0)
    return cell.point is not None and bool(np.all(cell.rows @ steepest >= -_TOLERANCE))


def _published_norm(jacobian: Tensor, norm: str) -> float:
    """2^(1/s) ||J||_{r->s} with 1/r + 1/s = 1.

    For r = 1 the largest entry, for r = 2 sqrt 2 times the spectral norm, for r = inf twice the largest sum of |v @ J|
    over vectors v of signs (the dual form of the norm).
    """
    if norm == "l1":
        return float(jacobian.abs().amax())
    if norm == "l2":
        return math.sqrt(2.0) * float(torch.linalg.matrix_norm(jacobian, ord=2))
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=len(jacobian))), dtype=torch.float64)
    return 2.0 * float((signs @ jacobian).abs().sum(dim=1).amax())
