"""How far a loss can rise within a distance, whatever the direction: proven bounds for a linear head (math §6).

Write m_j = logit_j - logit_label for the margins of the wrong classes. With logits Wz + b, moving z by a distance t in
the ground norm raises m_j by at most t * s_j, where s_j = ||w_j - w_label|| in the dual norm; for each j alone some
direction attains it. A loss that is bounded by a function of the margins that grows in each of them is therefore, at
distance t, at most that function of m_j + t * s_j.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from client.adversaries.curves import Points
from client.losses import CROSS_ENTROPY_CAP

DUAL_NORMS = {"l1": math.inf, "l2": 2.0, "linf": 1.0}
"""Exponent of the dual of each ground norm."""

_NUM_HALVINGS = 60
_BRIER_SATURATION = 10.0


@dataclass(frozen=True)
class Growth:
    """How a loss in [0, 1] grows with the margins.

    Attributes
    ----------
    pooled : callable
        Margins (num_examples, num_classes), `-inf` at the label, -> one number k per example, convex and nondecreasing
        in each margin.
    bound : callable
        k -> a bound of the loss, nondecreasing, at most 1.
    saturation : float
        The k from which on the loss counts as 1.
    slope : float
        The loss changes by at most `slope` times the largest change of a margin.
    inflection : float
        bound is convex in k below this k; equal to `saturation` if it is convex all the way.
    bend : float
        bound has second derivative at least -bend in k.
    curvature : float or None
        The loss (before any cap) has Hessian at most `curvature` in the logits; None: no such bound.
    num_steps : int
        Pieces in which the convex part of a curve over the distance is resolved, and the rest of it.
    is_tight : bool
        The loss is bound(pooled(margins)), and pooled is their maximum: then the bound is attained.
    """

    pooled: Callable[[Tensor], Tensor]
    bound: Callable[[Tensor], Tensor]
    saturation: float
    slope: float
    inflection: float
    bend: float
    curvature: float | None
    num_steps: int
    is_tight: bool


def _largest(margins: Tensor) -> Tensor:
    return margins.amax(dim=1)


def _log_odds(margins: Tensor) -> Tensor:
    return margins.logsumexp(dim=1)


# Derivations are in docs/adversaries.md; tests compare each constant with numerical derivatives.
GROWTHS = {
    "margin": Growth(
        pooled=_largest,
        bound=lambda k: ((1.0 + k) / 2.0).clamp(0.0, 1.0),
        saturation=1.0,
        slope=0.5,
        inflection=1.0,
        bend=0.0,
        curvature=None,
        num_steps=64,
        is_tight=True,
    ),
    "cross_entropy": Growth(
        pooled=_log_odds,
        bound=lambda k: (torch.nn.functional.softplus(k) / CROSS_ENTROPY_CAP).clamp(max=1.0),
        saturation=math.log(math.expm1(CROSS_ENTROPY_CAP)),
        slope=1.0 / CROSS_ENTROPY_CAP,
        inflection=math.log(math.expm1(CROSS_ENTROPY_CAP)),
        bend=0.0,
        curvature=0.5 / CROSS_ENTROPY_CAP,
        num_steps=64,
        is_tight=False,
    ),
    "brier": Growth(
        pooled=_log_odds,
        bound=lambda k: k.sigmoid().square(),
        saturation=_BRIER_SATURATION,
        slope=8.0 / 27.0,
        inflection=math.log(2.0),
        bend=0.1203,
        curvature=9.0 / 16.0,
        num_steps=64,
        is_tight=False,
    ),
}


def reach(margins: Tensor, speeds: Tensor, growth: Growth, level: float) -> Tensor:
    """Return the distance at which margins that grow at these speeds reach a level, to rounding and from below.

    Parameters
    ----------
    margins, speeds : Tensor, shape (num_examples, num_classes)
        `-inf` and 0 at the label.
    growth : Growth
        Which loss.
    level : float
        Of the pooled margins.

    Returns
    -------
    Tensor, shape (num_examples,)
        `inf` where no margin grows enough, 0 where the level is reached already.
    """
    missing = (level - margins).clamp(min=0.0)
    alone = torch.where(missing == 0.0, 0.0, torch.where(speeds > 0.0, missing / speeds, torch.inf)).amin(dim=1)
    is_reached = torch.isfinite(alone)
    high = torch.where(is_reached, alone, 0.0)
    low = high if growth.is_tight else torch.zeros_like(high)
    # Convex in the distance and below the level at 0: it crosses the level once, in between.
    for _ in range(0 if growth.is_tight else _NUM_HALVINGS):
        middle = 0.5 * (low + high)
        is_beyond = growth.pooled(margins + middle[:, None] * speeds) >= level
        low, high = torch.where(is_beyond, low, middle), torch.where(is_beyond, middle, high)
    return torch.where(is_reached, low, torch.inf)


def radial_profile(growth: Growth, margins: Tensor, speeds: Tensor, distances: Tensor) -> Tensor:
    """Return the bound of the loss within each distance, shape (num_examples, num_distances).

    Parameters
    ----------
    growth : Growth
        Which loss.
    margins, speeds : Tensor, shape (num_examples, num_classes)
        See `reach`.
    distances : Tensor, shape (num_examples, num_distances)
        In the ground norm; finite.
    """
    columns = [growth.bound(growth.pooled(margins + distance[:, None] * speeds)) for distance in distances.T]
    return torch.stack(columns, dim=1)


def distance_grid(growth: Growth, margins: Tensor, speeds: Tensor, *, order: int) -> Tensor:
    """Return distances from 0 to where the loss saturates, shape (num_examples, num_distances).

    They are all `inf` for an example that never saturates. The grid is closer near 0, where the square root of a cost
    is steep. It has no points within if the cost is the distance and the loss convex in it: only the ends can matter.

    Parameters
    ----------
    growth, margins, speeds :
        See `radial_profile`.
    order : int
        The cost of a distance t is t**order.
    """
    num_steps = 1 if order == 1 and growth.bend == 0.0 else growth.num_steps
    convex_end = reach(margins, speeds, growth, growth.inflection)[:, None]
    convex = convex_end * (torch.arange(num_steps + 1, dtype=torch.float64) / num_steps).square()
    convex = torch.where(torch.isfinite(convex_end), convex, torch.inf)
    if growth.bend == 0.0:
        return convex
    end = reach(margins, speeds, growth, growth.saturation)[:, None]
    shares = torch.arange(1, growth.num_steps + 1, dtype=torch.float64) / growth.num_steps
    rest = torch.where(torch.isfinite(end), convex_end + (end - convex_end) * shares, torch.inf)
    return torch.cat([convex, rest], dim=1)


def bounding_points(growth: Growth, margins: Tensor, speeds: Tensor, losses: Tensor, *, order: int) -> Points:
    """Return points whose concave hull with (0, loss) is proven to lie above every transport of the example.

    Parameters
    ----------
    growth : Growth
        Which loss.
    margins, speeds : Tensor, shape (num_examples, num_classes)
        See `reach`.
    losses : Tensor, shape (num_examples,)
        Losses of the unperturbed examples.
    order : int
        The cost of a distance t is t**order.
    """
    distances = distance_grid(growth, margins, speeds, order=order)
    can_saturate = torch.isfinite(distances[:, -1:])
    distances = torch.where(can_saturate, distances, 0.0)
    heights = torch.where(can_saturate, _above(growth, margins, speeds, losses, distances), losses[:, None])
    if order == 1:
        return Points(distances, heights)
    # Between grid points the bound is linear in the distance, a square root of the cost: concave, so its tangents lie
    # above it. Those at t_1 and t_2 meet at cost t_1 * t_2, in the middle of the heights.
    meeting = Points(distances[:, :-1] * distances[:, 1:], (heights[:, :-1] + heights[:, 1:]) / 2.0)
    return Points(torch.cat([distances.square(), meeting.costs], dim=1), torch.cat([heights, meeting.losses], dim=1))


def _above(growth: Growth, margins: Tensor, speeds: Tensor, losses: Tensor, distances: Tensor) -> Tensor:
    """Heights at the distances between which straight lines lie above the loss within each distance."""
    heights = radial_profile(growth, margins, speeds, distances)
    if growth.bend > 0.0:
        width = distances[:, -1:] - distances[:, -2:-1]
        # The pooled margins are convex in the distance, so nowhere steeper than at the end. A chord may run below a
        # function with second derivative -c by c * width^2 / 8.
        steepest = ((margins + distances[:, -1:] * speeds).softmax(dim=1) * speeds).sum(dim=1, keepdim=True)
        heights[:, -1 - growth.num_steps :] += growth.bend * (steepest * width).square() / 8.0
        # The bound may start above the loss; then the Lipschitz constant knows more, up to where the two cross. The
        # line is kept for one point more, so that it covers the step with the crossing.
        line = losses[:, None] + growth.slope * speeds.amax(dim=1, keepdim=True) * distances
        is_line = torch.cat([torch.ones_like(width, dtype=torch.bool), line[:, :-1] <= heights[:, :-1]], dim=1)
        heights = torch.where(is_line, line, heights)
    # Heights above 1 stay: cutting them here would pull the chord before them down.
    heights[:, -1] = heights[:, -1].clamp(min=1.0)
    return heights
