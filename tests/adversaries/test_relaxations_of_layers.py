"""Affine bounds of activations and max pools: points of the box lie between them, and a tighter pair is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from riskband.adversaries.bounds.crown import pool_windows, relaxed

LAYERS = [nn.ReLU(), nn.LeakyReLU(0.3), nn.LeakyReLU(-1.5), nn.LeakyReLU(2.0), nn.Tanh(), nn.Sigmoid()]
POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    nn.MaxPool2d((2, 1), stride=1, padding=(1, 0)),
    nn.MaxPool2d(3, stride=2),
]
SHAPE = (2, 5, 4)


def boxes(seed, num_inputs, *, num_boxes=3):
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(num_boxes, num_inputs, generator=generator, dtype=torch.float64) * 2.0
    width = torch.rand(num_boxes, num_inputs, generator=generator, dtype=torch.float64) * 3.0
    width[:, ::4] = 0.0
    return middle - width, middle + width


def inside(low, high, seed, *, num_points=40):
    """Random points of boxes, and corners, (num_points, num_boxes, num_inputs)."""
    generator = torch.Generator().manual_seed(seed + 1)
    share = torch.rand(num_points, *low.shape, generator=generator, dtype=torch.float64)
    share[::2] = share[::2].round()
    return low + share * (high - low)


def broken_rules(found, layer, points, outputs, seed, tolerance=1e-9):
    """Names of the promises of a `Relaxation` that points of the box break."""
    broken = set()
    rows = torch.randn(3, 7, outputs.shape[2], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pulled, constant = found.pulled_back(rows)
    for z, out in zip(points, outputs, strict=True):
        below, above, middle = (
            found.passed(weights, z[:, :, None]).squeeze(2) + offset
            for weights, offset in (
                (found.lower, found.lower_offset),
                (found.upper, found.upper_offset),
                (found.slope, found.center),
            )
        )
        broken |= {"lower"} if bool((below > out + tolerance).any()) else set()
        broken |= {"upper"} if bool((above < out - tolerance).any()) else set()
        broken |= {"error"} if bool(((out - middle).abs() > found.error + tolerance).any()) else set()
        broken |= (
            {"interval"} if bool(((out < found.low - tolerance) | (out > found.high + tolerance)).any()) else set()
        )
        promised = (pulled @ z[:, :, None]).squeeze(2) + constant
        broken |= {"rows"} if bool(((rows @ out[:, :, None]).squeeze(2) > promised + tolerance).any()) else set()
        sizes = found.magnitude(z.abs())
        broken |= {"magnitude"} if bool((out.abs() > sizes).any()) else set()
    return broken


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_activations_lie_between_their_bounds(layer, seed):
    low, high = boxes(seed, 12)
    points = inside(low, high, seed)
    assert broken_rules(relaxed(layer, None, low, high), layer, points, layer(points), seed) == set()


@pytest.mark.parametrize("layer", POOLS, ids=str)
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_max_pools_lie_between_their_bounds(layer, seed):
    low, high = boxes(seed, 40)
    points = inside(low, high, seed)
    outputs = layer(points.reshape(-1, *SHAPE)).reshape(*points.shape[:2], -1)
    sources = pool_windows(layer, SHAPE)
    assert broken_rules(relaxed(layer, sources, low, high), layer, points, outputs, seed) == set()
    seen = torch.where(sources >= 0, points[:, :, sources], -torch.inf).amax(dim=-1)
    torch.testing.assert_close(seen, outputs)


def test_where_nothing_bends_nothing_is_lost():
    low = torch.tensor([[1.0, -3.0]]).double()
    found = relaxed(nn.LeakyReLU(0.1), None, low, low + 1.0)
    assert found.lower.flatten().tolist() == found.upper.flatten().tolist() == pytest.approx([1.0, 0.1])
    assert (found.lower_offset, found.upper_offset, found.error) == pytest.approx((0.0, 0.0, 0.0), abs=0.0)
    pooled = relaxed(nn.MaxPool2d(2), torch.tensor([[0, 1]]), low, low + 1.0)
    assert pooled.upper.flatten().tolist() == [1.0, 0.0]
    assert float(pooled.error) == 0.0


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Tanh(), nn.MaxPool2d(2)], ids=str)
def test_tighter_bounds_are_caught(layer):
    """Negative control: each promise, shrunk by a tenth, is broken by a point of the box."""
    low, high = boxes(0, 40)
    points = inside(low, high, 0, num_points=400)
    is_pool = isinstance(layer, nn.MaxPool2d)
    outputs = layer(points.reshape(-1, *SHAPE)).reshape(*points.shape[:2], -1) if is_pool else layer(points)
    found = relaxed(layer, pool_windows(layer, SHAPE) if is_pool else None, low, high)
    tighter = replace(
        found,
        upper_offset=found.upper_offset - 0.1 * found.error,
        lower_offset=found.lower_offset + 0.2 * found.error,
        error=0.9 * found.error,
        high=found.high - 0.1 * (found.high - found.low),
    )
    assert {"upper", "error", "interval"} <= broken_rules(tighter, layer, points, outputs, 0)
