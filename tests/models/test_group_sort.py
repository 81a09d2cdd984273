"""GroupSort, and models that are Lipschitz by design: sorting by hand, gradients and attacks in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protocol.models import build_model
from riskband.adversaries import LipschitzAdversary, margin_constants
from riskband.adversaries.bounds.layer_norms import RULES
from riskband.adversaries.registry import builder
from riskband.checks import RefusedError
from riskband.models.group_sort import GroupSort
from tests.adversaries.nets import EXPONENTS, batch_of, quotients, random_pairs, seeded
from tests.transport import input_problem

NORMS = list(EXPONENTS)
SQRT_2 = 2.0**0.5


def by_hand(x, size):
    """Sorted in Python, group by group."""
    found = np.empty_like(x)
    num_groups = x.shape[1] // size
    for example, *place in np.ndindex(len(x), *x.shape[2:]):
        for group in range(num_groups):
            channels = [group + num_groups * number for number in range(size)]
            values = sorted((x[(example, channel, *place)] for channel in channels), reverse=True)
            for channel, value in zip(channels, values, strict=True):
                found[(example, channel, *place)] = value
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [(6,), (6, 2, 3)])
def test_groups_are_sorted(size, shape):
    x = np.random.default_rng(0).normal(size=(5, *shape)).round(1)  # some values are equal
    found = GroupSort(size)(torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), by_hand(x, size), rtol=1e-12, atol=1e-15)


def test_gradients_go_where_the_values_came_from():
    x = torch.tensor(np.random.default_rng(0).normal(size=(3, 8, 2)), requires_grad=True)
    weights = torch.tensor(np.random.default_rng(1).normal(size=(3, 8, 2)))
    by_torch = x.unflatten(1, (2, 4)).sort(dim=1, descending=True).values.flatten(1, 2)
    found, truth = (torch.autograd.grad((out * weights).sum(), x)[0] for out in (GroupSort()(x), by_torch))
    torch.testing.assert_close(found, truth)


@given(seed=st.integers(0, 10**6), size=st.sampled_from([1, 2, 3, 4, 12]))
@settings(max_examples=20)
def test_sorting_lengthens_no_distance_and_moves_no_channel_further_than_its_rule_says(seed, size):
    layer = GroupSort(size)
    x, moved = (torch.from_numpy(points) for points in random_pairs((12,), seed=seed, num_points=40))
    change = layer(moved) - layer(x)
    for norm, exponent in EXPONENTS.items():
        before, after = (torch.linalg.vector_norm(move, ord=exponent, dim=1) for move in (moved - x, change))
        assert bool((after <= before * (1 + 1e-9)).all()), norm
    allowed = RULES[GroupSort].spread(layer, (moved - x).abs())
    assert bool((change.abs() <= allowed * (1 + 1e-9) + 1e-12).all())
    shuffled = (moved - x).abs().unflatten(1, (size, -1)).flip(1).flatten(1, 2)  # the other members of a group matter
    torch.testing.assert_close(RULES[GroupSort].spread(layer, shuffled), allowed)


def sorting_net(seed=0):
    """Every kind of layer of a Lipschitz model; inputs (1, 4, 4), 3 classes; nothing is orthogonal here."""
    return seeded(
        lambda: nn.Sequential(
            nn.PixelUnshuffle(2), nn.Conv2d(4, 6, 3, padding=1), GroupSort(), nn.Conv2d(6, 4, 2), GroupSort(4),
            nn.PixelShuffle(2), nn.Flatten(), nn.Linear(4, 6), GroupSort(3), nn.Linear(6, 3),
        ),
        seed,
    )  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
def test_no_difference_quotient_exceeds_a_constant(norm):
    for seed in range(4):
        constants = margin_constants(sorting_net(seed), (1, 4, 4), norm=norm).numpy()
        largest = quotients(sorting_net(seed), *random_pairs((1, 4, 4), seed=seed), norm=norm).max(axis=0)
        assert np.all(largest <= constants)
        assert np.all(np.isfinite(constants))


def largest_slopes(model, x_shape, *, seed=0, num_points=64):
    """The largest l2 gradient of each margin z_0 - z_k at random points, in float64."""
    x = torch.tensor(np.random.default_rng(seed).normal(size=(num_points, *x_shape)), requires_grad=True)
    logits = model.double()(x)
    slopes = []
    for k in range(1, logits.shape[1]):
        (gradient,) = torch.autograd.grad((logits[:, 0] - logits[:, k]).sum(), x, retain_graph=True)
        slopes.append(float(gradient.flatten(1).norm(dim=1).max()))
    return np.array(slopes)


# Going back, where there are as many inputs as hidden units nothing is lost; of others, random weights lose a share.
BY_DESIGN = [
    ("lipschitz-mlp", (70,), 0.9999),
    ("lipschitz-mlp", (1, 8, 8), 0.9999),
    ("lipschitz-mlp", (5,), 0.2),
    ("lipschitz-cnn", (1, 8, 8), 0.2),
    ("lipschitz-cnn", (3, 10, 8), 0.2),
]


@pytest.mark.parametrize(("name", "shape", "attained"), BY_DESIGN)
def test_by_design_the_constant_of_a_margin_is_sqrt_2(name, shape, attained):
    model = build_model(name, x_shape=shape, num_classes=4, seed=1)
    constants = margin_constants(model, shape, norm="l2").numpy()[0, 1:]
    assert np.all(constants <= SQRT_2 * (1 + 1e-4))
    slopes = largest_slopes(model, shape)
    assert np.all(slopes <= constants)
    assert slopes.max() >= attained * constants.max()


def test_a_rule_that_claims_half_for_max_min_is_seen(monkeypatch):
    """Negative control."""
    model = build_model("lipschitz-mlp", x_shape=(70,), num_classes=4, seed=0)
    rule, slopes = RULES[GroupSort], largest_slopes(model, (70,))
    for share in (1.0, 0.5):
        halved = replace(rule, spectral=lambda *_, share=share: share)
        monkeypatch.setitem(RULES, GroupSort, halved)
        with torch.no_grad():
            model[-1].bias.add_(share)  # another model: what is remembered is of the one before
        constants = margin_constants(model, (70,), norm="l2").numpy()[0, 1:]
        assert bool(np.any(slopes > constants)) == (share < 1.0)


@pytest.mark.parametrize(("name", "share"), [("lipschitz-mlp", 0.5), ("lipschitz-cnn", 0.1)])
def test_no_attack_comes_nearer_than_what_is_certified(name, share):
    model = build_model(name, x_shape=(1, 8, 8), num_classes=4, seed=3).double().eval()
    x = torch.tensor(np.random.default_rng(0).random((12, 1, 8, 8)))
    batch = batch_of(model, x)
    problem = input_problem("zero_one", 1, "l2")
    certified = LipschitzAdversary(model, problem).examine(batch).bounding.costs[:, 0]
    reached = builder("min-norm")(model, problem).examine(batch).flip_costs
    assert bool((certified > 0.0).all())
    assert bool((certified <= reached).all())
    assert float((certified / reached).median()) > share


@pytest.mark.parametrize("size", [0, 2.0, True, "2"])
def test_a_group_has_a_whole_number_of_channels(size):
    with pytest.raises(ValueError, match=r"group_size must be a whole number >= 1, got .*; 2 is MaxMin"):
        GroupSort(size)


def test_what_is_no_group_is_refused():
    with pytest.raises(RefusedError, match="x_shape must fit the model, got an input of shape"):
        margin_constants(nn.Sequential(GroupSort(), nn.Linear(3, 2)), (3,), norm="l2")
    changed = GroupSort()
    changed.group_size = 2.0
    with pytest.raises(RefusedError, match=r"group_size must be a whole number, got 2\.0"):
        margin_constants(nn.Sequential(changed, nn.Linear(4, 2)), (4,), norm="l2")
