"""Upper bounds of layers against the singular values of their matrices, built one unit vector at a time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from riskband.adversaries.bounds.layer_norms import RULES, gram_bound, mixed_bound, svd_norm, torus_bound


def matrix_of(layer, shape):
    """The layer's matrix by numpy, from its own forward pass: column i is layer(e_i) - layer(0)."""
    layer = copy.deepcopy(layer).double().eval()
    basis = torch.eye(int(np.prod(shape)), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return (layer(basis) - layer(torch.zeros_like(basis))).flatten(1).T.numpy()


def power_iteration(matrix, num_steps, seed=0):
    """What is often called the spectral norm: a value of ||A v|| for some unit vector v, so never above it."""
    v = np.random.default_rng(seed).normal(size=matrix.shape[1])
    for _ in range(num_steps):
        v = matrix.T @ (matrix @ v)
        v /= np.linalg.norm(v)
    return np.linalg.norm(matrix @ v)


def seeded(kind, *arguments, seed=0, **settings):
    torch.manual_seed(seed)
    return kind(*arguments, **settings)


@given(
    seed=st.integers(0, 10**6),
    groups=st.sampled_from([1, 2]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    dilation=st.integers(1, 2),
    size=st.tuples(st.integers(7, 8), st.integers(5, 6)),
)
@settings(max_examples=25)
def test_bounds_of_convolutions_lie_above_the_svd_of_the_unrolled_operator(
    seed, groups, kernel, stride, padding, dilation, size
):
    layer = seeded(nn.Conv2d, 2, 4, kernel, seed=seed, stride=stride, padding=padding, dilation=dilation, groups=groups)
    shape = (2, *size)
    truth = np.linalg.svd(matrix_of(layer, shape), compute_uv=False)[0]
    assert RULES[nn.Conv2d].spectral(layer, shape) == pytest.approx(truth, rel=1e-9)  # small: exact
    assert torus_bound(layer, shape) >= truth * (1 - 1e-9)
    assert mixed_bound(layer, shape) >= truth * (1 - 1e-9)


def test_a_torus_without_the_padding_would_be_too_small():
    """Differences of a column of three, padded: sqrt(2 + 2 cos(pi/4)); a torus of three only has sqrt(3)."""
    layer = nn.Conv2d(1, 1, (2, 1), padding=(1, 0))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -1.0]).reshape(1, 1, 2, 1))
    truth = np.sqrt(2.0 + 2.0 * np.cos(np.pi / 4.0))
    assert np.linalg.svd(matrix_of(layer, (1, 3, 1)), compute_uv=False)[0] == pytest.approx(truth, rel=1e-12)
    assert truth <= torus_bound(layer, (1, 3, 1)) <= 2.0


@pytest.mark.parametrize("padding", [(2, 2), (0, 1), "same", "valid"])
def test_the_padding_that_counts_is_the_one_that_is_used(padding):
    for seed in range(5):
        layer = seeded(nn.Conv2d, 1, 1, 3, seed=seed, dilation=(1, 2), bias=False)
        layer.padding = padding  # also if it was another when the layer was made
        truth = np.linalg.svd(matrix_of(layer, (1, 6, 7)), compute_uv=False)[0]
        assert torus_bound(layer, (1, 6, 7)) >= truth * (1 - 1e-9)


def test_same_padding_and_large_convolutions():
    layer, shape = seeded(nn.Conv2d, 3, 8, 3, padding="same"), (3, 16, 16)
    truth = np.linalg.svd(matrix_of(layer, shape), compute_uv=False)[0]
    bound = RULES[nn.Conv2d].spectral(layer, shape)  # too large to be unrolled
    assert truth < bound < 1.05 * truth
    assert bound < mixed_bound(layer, shape) / 1.5


def test_on_the_torus_nothing_is_lost():
    """A strided convolution with circular padding (Sedghi et al. 2019) attains the bound of the one without."""
    layer = seeded(nn.Conv2d, 2, 3, 3, stride=2, bias=False)
    circular = seeded(nn.Conv2d, 2, 3, 3, stride=2, bias=False, padding=1, padding_mode="circular")
    truth = np.linalg.svd(matrix_of(circular, (2, 8, 8)), compute_uv=False)[0]
    assert torus_bound(layer, (2, 8, 8)) == pytest.approx(truth, rel=1e-9)


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 12), columns=st.integers(1, 12), scale=st.floats(-30, 30))
def test_gram_iteration_comes_down_to_the_norm_from_above(seed, rows, columns, scale):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns)) * 10.0**scale
    truth = np.linalg.svd(matrix, compute_uv=False)[0]
    bounds = [gram_bound(torch.from_numpy(matrix), num_squarings=number) for number in (0, 2, 4, 8)]
    assert svd_norm(torch.from_numpy(matrix)) == pytest.approx(truth, rel=1e-9)
    assert min(bounds) >= truth * (1 - 1e-12)
    assert bounds == sorted(bounds, reverse=True) or np.ptp(bounds) <= 1e-9 * truth
    assert bounds[-1] <= truth * min(rows, columns) ** (1 / 2**10) * (1 + 1e-9)


def test_gram_iteration_of_nothing():
    assert gram_bound(torch.zeros(3, 4).double()) == 0.0


def test_power_iteration_certifies_nothing():
    """Negative control: stopped early, it lies below the norm by percents, and every bound of ours above."""
    values = []
    for seed in range(12):
        matrix = np.random.default_rng(seed).normal(size=(40, 40))
        truth = np.linalg.svd(matrix, compute_uv=False)[0]
        values.append(power_iteration(matrix, 5, seed) / truth)
        assert gram_bound(torch.from_numpy(matrix)) >= truth * (1 - 1e-12)
    assert max(values) < 1.0
    assert min(values) < 0.95


@pytest.mark.parametrize(
    "layer", [nn.AvgPool2d(2), nn.AvgPool2d(3, stride=2, padding=1), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten()]
)
def test_average_pools(layer):
    truth = np.linalg.svd(matrix_of(layer, (2, 6, 7)), compute_uv=False)[0]
    assert RULES[type(layer)].spectral(layer, (2, 6, 7)) == pytest.approx(truth, rel=1e-9)
    assert mixed_bound(layer, (2, 6, 7)) >= truth * (1 - 1e-9)


def test_batch_norm_is_its_largest_scale():
    layer = seeded(nn.BatchNorm2d, 3)
    layer.running_var.uniform_(0.1, 2.0)
    layer.running_mean.normal_()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, -9.0, 0.1]))
    truth = np.linalg.svd(matrix_of(layer, (3, 2, 2)), compute_uv=False)[0]
    assert RULES[nn.BatchNorm2d].spectral(layer, (3, 2, 2)) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("layer", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=1), nn.MaxPool2d(3, 2, 1, ceil_mode=True)])
def test_max_pools_move_at_most_as_far_as_their_bound(layer):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 1, 6, 6, generator=generator, dtype=torch.float64)
    step = torch.randn(2000, 1, 6, 6, generator=generator, dtype=torch.float64) * 0.1
    step[::2] = step[::2] * torch.nn.functional.one_hot(torch.arange(1000) % 36, 36).reshape(-1, 1, 6, 6)
    moved = (layer(x + step) - layer(x)).abs()
    bound = RULES[nn.MaxPool2d].spectral(layer, (1, 6, 6))
    ratios = moved.flatten(1).norm(dim=1) / step.flatten(1).norm(dim=1)
    assert float(ratios.max()) <= bound * (1 + 1e-12)
    assert bool((moved <= RULES[nn.MaxPool2d].spread(layer, step.abs()) + 1e-12).all())
    # Attained: all windows see one entry that towers above the others.
    peak = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    peak[0, 0, 3, 3] = 1.0
    assert float(layer(peak).norm()) <= bound
    assert layer.padding == 1 or float(layer(peak).norm()) == pytest.approx(bound)
