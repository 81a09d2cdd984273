"""Geometry of the ground norms: lengths, steepest directions, projections, the nearest point of a half-space.

All functions work on the last dimension and take everything before it as a batch. Where there is a box, `room` says how
far each coordinate may move in the direction in which it is asked to move; `inf` where nothing is in the way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EXPONENTS = {"l1": 1.0, "l2": 2.0, "linf": math.inf}
"""Exponent of each ground norm."""
DUALS = {"l1": "linf", "l2": "l2", "linf": "l1"}
"""Dual of each ground norm."""
DUAL_EXPONENTS = {norm: EXPONENTS[dual] for norm, dual in DUALS.items()}
"""Exponent of the dual of each ground norm."""

_NUM_HALVINGS = 50
_NUM_NEWTON_STEPS = 12


def lengths(vectors: Tensor, norm: str) -> Tensor:
    """Return the norms of vectors (..., num_features), in double precision, shape (...)."""
    length: Tensor = torch.linalg.vector_norm(vectors.double(), ord=EXPONENTS[norm], dim=-1)
    return length


def steepest(gradients: Tensor, norm: str, *, num_coordinates: int = 1) -> Tensor:
    """Return the vectors of norm 1 (0 where the gradient is 0) with the largest product with the gradients.

    For "l1" only, the step is shared equally among so many coordinates with the largest slopes: more than 1 is no
    longer the steepest, but sees more of a curved function.
    """
    if norm == "linf":
        return gradients.sign()
    if norm == "l2":
        scale = lengths(gradients, "l2")[..., None]
        return torch.where(scale > 0.0, gradients / scale, 0.0).to(gradients.dtype)
    top = gradients.abs().topk(num_coordinates, dim=-1).indices
    return torch.zeros_like(gradients).scatter(-1, top, gradients.gather(-1, top).sign() / num_coordinates)


def project(vectors: Tensor, radius: Tensor, norm: str, *, room: Tensor) -> Tensor:
    """Return vectors within the ball of this radius and the box; the nearest such ones but for "l2" with a box.

    For "l2" the box cuts what the ball has scaled: within both, in one step, but not always the nearest point. Vectors,
    moves away from an example, have shape (..., num_features), radii >= 0 (...); the room says how far each coordinate
    may move towards the sign of its vector.
    """
    sizes, limit = vectors.abs(), radius.to(vectors.dtype)[..., None]
    if norm == "linf":
        sizes = sizes.minimum(limit)
    elif norm == "l2":
        length = lengths(vectors, "l2")[..., None]
        sizes = (sizes * torch.where(length > limit, limit / length, 1.0)).to(vectors.dtype)
    else:
        sizes = _shrunk(sizes, limit, room)
    return vectors.sign() * sizes.minimum(room)


def _shrunk(sizes: Tensor, limit: Tensor, room: Tensor) -> Tensor:
    """Sizes less a common threshold, cut to the room: the projection on the l1 ball. Falls in the threshold: bisect."""
    low, high = torch.zeros_like(limit), sizes.amax(dim=-1, keepdim=True)
    fits = sizes.minimum(room).sum(dim=-1, keepdim=True) <= limit
    for _ in range(_NUM_HALVINGS):
        middle = 0.5 * (low + high)
        is_within = (sizes - middle).clamp(min=0.0).minimum(room).sum(dim=-1, keepdim=True) <= limit
        low, high = torch.where(is_within, low, middle), torch.where(is_within, middle, high)
    return (sizes - torch.where(fits, 0.0, high)).clamp(min=0.0)


def shrink(vectors: Tensor, thresholds: Tensor, norm: str) -> Tensor:
    """Return the minimisers d of |d - v|_2^2 / 2 + threshold * |d|: v less its projection on the dual ball (Moreau).

    The v have shape (..., num_features), the thresholds >= 0 (...).
    """
    return vectors - project(vectors, thresholds, DUALS[norm], room=torch.full_like(vectors, math.inf))


def shortest_move(gradients: Tensor, gains: Tensor, norm: str, *, low: Tensor, high: Tensor) -> Tensor:
    """Return the shortest moves d, low <= d <= high, with <gradient, d> = gain; the best the box allows if none does.

    It is min(multiplier * slope, room) in size, slope being |gradient| ("l2") or 1 ("linf"); "l1" spends the gain on
    the steepest coordinates first. The projection of FAB (Croce and Hein, 2020), with the multiplier by Newton's method
    on a concave piecewise linear function, which rises to its root from below. Gradients (..., num_features) are
    normals of half-spaces; the move is 0 where one is 0. Gains (...) have any sign; low <= 0 <= high is the box, seen
    from the point.
    """
    gains = gains.double()[..., None]  # squares of small slopes vanish in single precision
    directions = gradients.sign().double() * gains.sign()
    rates, wanted = gradients.double().abs(), gains.abs()
    room = torch.where(directions > 0.0, high, -low).double()
    # No coordinate needs to go further than where it gains all alone; that also makes room finite.
    room = torch.where(rates > 0.0, room.minimum(wanted / rates), 0.0)
    room = torch.nan_to_num(room, nan=0.0, posinf=torch.finfo(room.dtype).max)
    if norm == "l1":
        order = rates.argsort(dim=-1, descending=True)
        spent = (rates * room).gather(-1, order)
        left = (wanted - (spent.cumsum(dim=-1) - spent)).clamp(min=0.0)
        ranked = rates.gather(-1, order)
        sizes = torch.where(ranked > 0.0, left / ranked, 0.0).minimum(room.gather(-1, order))
        return (directions * torch.zeros_like(rates).scatter(-1, order, sizes)).to(gradients.dtype)
    slopes = rates if norm == "l2" else torch.where(rates > 0.0, 1.0, 0.0).to(rates.dtype)
    sizes = torch.zeros_like(rates)
    is_free = torch.ones_like(rates, dtype=torch.bool)
    for _ in range(_NUM_NEWTON_STEPS):
        missing = wanted - torch.where(is_free, 0.0, rates * room).sum(dim=-1, keepdim=True)
        growth = torch.where(is_free, rates * slopes, 0.0).sum(dim=-1, keepdim=True)
        multiplier = torch.where(growth > 0.0, missing.clamp(min=0.0) / growth, 0.0)
        sizes = torch.where(is_free, multiplier * slopes, room).minimum(room)
        still_free = is_free & (multiplier * slopes < room)
        if bool((still_free == is_free).all()):
            break
        is_free = still_free
    return (directions * sizes).to(gradients.dtype)
