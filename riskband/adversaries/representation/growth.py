"""How far a loss can rise within a distance, in any direction: proven bounds for a last linear layer (math §6.3).

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
from torch.nn import functional

from riskband.adversaries.curves import Points
from riskband.models.losses import CROSS_ENTROPY_CAP

_NUM_HALVINGS = 60
_NUM_STEPS = 64  # pieces in which a curve over the distance is resolved up to the inflection, and the rest of it
_BRIER_SATURATION = 10.0


@dataclass(frozen=True)
class Growth:
    """How a loss in [0, 1] grows with the margins."""

    pooled: Callable[[Tensor], Tensor]
    """Margins (num_examples, num_classes), `-inf` at the label, -> one number k per example, convex and nondecreasing
    in each margin."""
    bound: Callable[[Tensor], Tensor]
    """Margins -> a bound of the loss wherever no margin is larger, shape (num_examples,); at most 1."""
    saturation: float
    """The k from which on the loss counts as 1."""
    slope: float
    """The loss changes by at most `slope` times the largest change of a margin."""
    inflection: float
    """The k up to which the grid over the distance is closer near 0; beyond, its points are equally far apart."""
    bend: float = 0.0
    """If the margins grow at constant speeds, the bound is the largest of functions with second derivatives at least
    -bend times the variance of the speeds under the predicted probabilities, 0 for the label. 0: it is convex up to the
    saturation."""
    curvature: float | None = None
    """The loss (before any cap) has Hessian at most `curvature` in the logits; None: no such bound."""
    is_tight: bool = False
    """The loss is the bound, and depends on the largest margin only: then the bound is attained."""


def _largest(margins: Tensor) -> Tensor:
    return margins.amax(dim=1)


def _log_odds(margins: Tensor) -> Tensor:
    return margins.logsumexp(dim=1)


def _brier_below(margins: Tensor) -> Tensor:
    """Return the largest Brier loss over all margins at most these.

    In one margin the loss falls first and rises then, so it is largest where each is at its limit or at -inf, and those
    at -inf are the smallest ones: try the largest margin alone, the two largest, ...
    """
    ranked = margins.sort(dim=1, descending=True).values
    top = ranked[:, :1].clamp(min=0.0)
    odds, label = (ranked - top).exp(), (-top).exp()  # over the larger of the label's odds, 1, and all others
    total, squares = odds.cumsum(dim=1), odds.square().cumsum(dim=1)
    return ((total.square() + squares) / (2.0 * (label + total).square())).amax(dim=1)


# Derivations: math §6.3; tests compare each constant with numerical derivatives.
GROWTHS = {
    "margin": Growth(
        pooled=_largest,
        bound=lambda margins: ((1.0 + _largest(margins)) / 2.0).clamp(0.0, 1.0),
        saturation=1.0,
        slope=0.5,
        inflection=1.0,
        is_tight=True,
    ),
    "cross_entropy": Growth(
        pooled=_log_odds,
        bound=lambda margins: (functional.softplus(_log_odds(margins)) / CROSS_ENTROPY_CAP).clamp(max=1.0),
        saturation=math.log(math.expm1(CROSS_ENTROPY_CAP)),
        slope=1.0 / CROSS_ENTROPY_CAP,
        inflection=math.log(math.expm1(CROSS_ENTROPY_CAP)),
        curvature=0.5 / CROSS_ENTROPY_CAP,
    ),
    "brier": Growth(
        pooled=_log_odds,
        bound=_brier_below,
        saturation=_BRIER_SATURATION,
        slope=8.0 / 27.0,
        inflection=math.log(2.0),
        bend=2.0,
        curvature=9.0 / 16.0,
    ),
}


def reach(margins: Tensor, speeds: Tensor, growth: Growth, level: float) -> Tensor:
    """Return the distance at which margins that grow at these speeds reach a level, to rounding and from below.

    Margins and speeds, (num_examples, num_classes), are `-inf` and 0 at the label; the level is one of the loss's
    pooled margins. The distance, (num_examples,), is `inf` where no margin grows enough, 0 where the level is reached
    already.
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
    """Return the bound of the loss within each finite distance, shape of the distances (num_examples, num_distances).

    Margins and speeds are those of `reach`.
    """
    columns = [growth.bound(margins + distance[:, None] * speeds) for distance in distances.T]
    return torch.stack(columns, dim=1)


def distance_grid(growth: Growth, margins: Tensor, speeds: Tensor, *, order: int) -> Tensor:
    """Return distances from 0 to where the loss saturates, (num_examples, num_distances); arguments as of `reach`.

    They are all `inf` for an example that never saturates. The grid is closer near 0, where the square root of a cost
    is steep. It has no points within if the cost is the distance and the loss convex in it: only the ends can matter.
    """
    num_steps = 1 if order == 1 and growth.bend == 0.0 else _NUM_STEPS
    convex_end = reach(margins, speeds, growth, growth.inflection)[:, None]
    convex = convex_end * (torch.arange(num_steps + 1, dtype=torch.float64) / num_steps).square()
    convex = torch.where(torch.isfinite(convex_end), convex, torch.inf)
    if growth.bend == 0.0:
        return convex
    end = reach(margins, speeds, growth, growth.saturation)[:, None]
    shares = torch.arange(1, _NUM_STEPS + 1, dtype=torch.float64) / _NUM_STEPS
    rest = torch.where(torch.isfinite(end), convex_end + (end - convex_end) * shares, torch.inf)
    return torch.cat([convex, rest], dim=1)


def bounding_points(growth: Growth, margins: Tensor, speeds: Tensor, losses: Tensor, *, order: int) -> Points:
    """Return points whose concave hull with (0, loss) is proven to lie above every transport of the example.

    The losses, shape (num_examples,), are those of the unperturbed examples, or bounds of them: what never moves has
    these. The other arguments are those of `reach`.
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
        ahead = [_largest_variances(margins + distance[:, None] * speeds, speeds) for distance in distances[:, 1:].T]
        # A chord of width h may run below a function with second derivative -c by c * h^2 / 8; as the profile does not
        # fall, also by no more than it rises.
        lifts = growth.bend * torch.stack(ahead, dim=1) * distances.diff(dim=1).square() / 8.0
        lifts = lifts.minimum(heights.diff(dim=1))
        left, right = heights[:, :-1] + lifts, heights[:, 1:] + lifts
        # Where the Lipschitz constant says more, it counts for the whole step; always at the example itself, as the
        # profile may start above its loss.
        line = losses[:, None] + growth.slope * speeds.amax(dim=1, keepdim=True) * distances
        is_line = (distances[:, :-1] == 0.0) | (line[:, :-1] + line[:, 1:] <= left + right)
        left, right = torch.where(is_line, line[:, :-1], left), torch.where(is_line, line[:, 1:], right)
        heights = functional.pad(left, (0, 1)).maximum(functional.pad(right, (1, 0)))
    # Heights above 1 stay: cutting them here would pull the chord before them down.
    heights[:, -1] = heights[:, -1].clamp(min=1.0)
    return heights


def _largest_variances(margins: Tensor, speeds: Tensor) -> Tensor:
    """Return upper bounds of the variances of the speeds, 0 at the label, while no margin is larger, shape (num_rows,).

    Some classes may be missing. A class j has at most sigmoid(m_j) of the mass; and a variance is at most a quarter of
    the square of the range.
    """
    return (margins.sigmoid() * speeds.square()).sum(dim=1).minimum(speeds.square().amax(dim=1) / 4.0)
