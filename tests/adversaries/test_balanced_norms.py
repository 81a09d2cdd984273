"""Weighted norms of a network's first layers: above every quotient, and blind to how hidden channels are scaled."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from riskband.adversaries.bounds.layer_norms import RULES, balanced_prefixes, plain_prefixes
from riskband.adversaries.bounds.lipschitz import SequentialLayers, half_masked_constants
from tests.adversaries.nets import cnn, padded_cnn, quotients, random_pairs, seeded


def normalised(seed=0):
    """Inputs (2, 6, 6), 3 classes, batch norms in front of, between and behind other layers."""
    model = seeded(
        lambda: nn.Sequential(
            nn.BatchNorm2d(2),
            nn.Conv2d(2, 4, 3),
            nn.ReLU(),
            nn.BatchNorm2d(4),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 3, 2),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.BatchNorm1d(3),
            nn.Linear(3, 3),
        ),
        seed,
    )
    generator = torch.Generator().manual_seed(seed)
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            with torch.no_grad():
                layer.running_var.copy_(torch.rand(layer.running_var.shape, generator=generator) + 0.1)
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
    return model


def rescaled(model, factors):
    """The same function: channels of the first convolution times factors > 0, the batch norm behind made to undo it."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[1].weight.mul_(factors[:, None, None, None])
        other[1].bias.mul_(factors)
        other[3].weight.div_(factors)
        other[3].running_mean.mul_(factors)
    return other


@pytest.mark.parametrize(("build", "x_shape"), [(normalised, (2, 6, 6)), (cnn, (2, 8, 8)), (padded_cnn, (2, 6, 6))])
@settings(max_examples=6)
@given(seed=st.integers(0, 10**6))
def test_every_prefix_bounds_how_far_its_features_move(build, x_shape, seed):
    model = build(seed).double().eval()
    layers = SequentialLayers(model, x_shape)
    x, moved = (torch.from_numpy(points) for points in random_pairs(x_shape, seed=seed, num_points=100))
    distance = (moved - x).flatten(1).norm(dim=1)
    for chain in (plain_prefixes(layers.body), balanced_prefixes(layers.body, layers.head)):
        assert len(chain) == len(layers.body) + 1
        before, after = x, moved
        for index, (bound, weights) in enumerate(chain):
            change = ((after - before) * weights).flatten(1).norm(dim=1)
            assert bool((change <= bound * distance * (1 + 1e-9) + 1e-12).all())
            if index < len(layers.body):
                with torch.no_grad():
                    before, after = layers.body[index][0](before), layers.body[index][0](after)
    largest = quotients(model, x.numpy(), moved.numpy(), norm="l2").max(axis=0)
    assert np.all(largest <= half_masked_constants(layers, norm="l2").numpy() * (1 + 1e-9))


def test_how_hidden_channels_are_scaled_does_not_matter():
    """Weights cannot be told from the scale; the product of spectral norms can, and grows with it."""
    model = normalised()
    other = rescaled(model, torch.tensor([1e3, 1.0, 1e-2, 30.0]))
    x, moved = random_pairs((2, 6, 6), seed=0)
    np.testing.assert_allclose(*(quotients(each, x, moved, norm="l2") for each in (model, other)), rtol=1e-2, atol=1e-3)
    one, two = (SequentialLayers(each, (2, 6, 6)) for each in (model, other))
    bounds = [balanced_prefixes(each.body, each.head)[-1].bound for each in (one, two)]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-4)
    assert plain_prefixes(two.body)[-1].bound > 30.0 * plain_prefixes(one.body)[-1].bound


def test_plain_prefixes_are_products_of_spectral_norms():
    layers = SequentialLayers(normalised(), (2, 6, 6))
    norms = [RULES[type(layer)].spectral(layer, shape) for layer, shape in layers.body]
    np.testing.assert_allclose(
        [bound for bound, _ in plain_prefixes(layers.body)], np.cumprod([1.0, *norms]), rtol=1e-12
    )


def test_a_batch_norm_that_is_ignored_would_prove_too_little():
    """Negative control: the weights in front of a batch norm, kept behind it, are broken by quotients."""
    model = normalised().double().eval()
    layers = SequentialLayers(model, (2, 6, 6))
    chain = balanced_prefixes(layers.body, layers.head)
    x, moved = (torch.from_numpy(points) for points in random_pairs((2, 6, 6), seed=0))
    with torch.no_grad():
        change = model[0](moved) - model[0](x)
    distance = (moved - x).flatten(1).norm(dim=1)
    assert bool(((change * chain[0].weights).flatten(1).norm(dim=1) > chain[0].bound * distance * 1.1).any())
    assert bool(((change * chain[1].weights).flatten(1).norm(dim=1) <= chain[1].bound * distance * (1 + 1e-9)).all())
