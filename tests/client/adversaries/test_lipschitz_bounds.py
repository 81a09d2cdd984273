"""Constants of whole networks: above every difference quotient, exact where they say so, and refused where unknown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from client.adversaries.lipschitz_bounds import SequentialLayers, half_masked_constants, margin_constants
from client.questions import RefusedError
from simulations.models import build_model
from tests.client.adversaries.nets import EXPONENTS, cnn, mlp, quotients, random_pairs, seeded

NORMS = ["l1", "l2", "linf"]
DUALS = {"l1": np.inf, "l2": 2, "linf": 1}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", ["auto", "product", "exact"])
def test_linear_models_are_exact(norm, method):
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4)))
    weight = model[1].weight.detach().double().numpy()
    truth = np.linalg.norm(weight[:, None] - weight[None], ord=DUALS[norm], axis=2)
    found = margin_constants(model, (2, 3), norm=norm, method=method).numpy()
    np.testing.assert_allclose(found, truth, rtol=2e-6)
    assert np.all(found >= truth)


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), depth=st.integers(1, 2), leak=st.sampled_from([0.0, 0.2, -1.5]))
def test_no_difference_quotient_exceeds_a_constant_and_exact_is_below_product(norm, seed, depth, leak):
    model = mlp(3, *[3] * depth, 3, seed=seed, activation=lambda: nn.LeakyReLU(leak) if leak else nn.ReLU())
    exact = margin_constants(model, (3,), norm=norm, method="exact").numpy()
    product = margin_constants(model, (3,), norm=norm, method="product").numpy()
    largest = quotients(model, *random_pairs((3,), seed=seed), norm=norm).max(axis=0)
    assert np.all(largest <= exact)
    assert np.all(exact <= product * (1 + 1e-9))
    np.testing.assert_array_equal(exact, exact.T)
    np.testing.assert_array_equal(margin_constants(model, (3,), norm=norm).numpy(), exact)  # small: auto is exact


@pytest.mark.parametrize("norm", NORMS)
def test_an_exact_constant_is_attained(norm):
    """By hand: 3 relu(x1) - 2 relu(x1 - x2 - 1) against 0 has gradients (0, 0), (3, 0), (1, 2) and (-2, 2)."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, -1.0]]))
        model[0].bias.copy_(torch.tensor([0.0, -1.0]))
        model[2].weight.copy_(torch.tensor([[3.0, -2.0], [0.0, 0.0]]))
    truth = max(np.linalg.norm(gradient, ord=DUALS[norm]) for gradient in [(3.0, 0.0), (1.0, 2.0), (-2.0, 2.0)])
    found = margin_constants(model, (2,), norm=norm, method="exact")
    assert float(found[0, 1]) == pytest.approx(truth, rel=2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_every_known_layer_is_bounded(norm):
    for seed in range(3):
        model = cnn(seed)
        constants = margin_constants(model, (2, 8, 8), norm=norm).numpy()
        for pairs_seed in range(3):
            largest = quotients(model, *random_pairs((2, 8, 8), seed=pairs_seed), norm=norm).max(axis=0)
            assert np.all(largest <= constants)
        assert np.all(constants[~np.eye(4, dtype=bool)] < np.inf)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid])
def test_smooth_activations_have_product_bounds(activation):
    model = mlp(3, 6, 3, activation=activation)
    for norm in NORMS:
        largest = quotients(model, *random_pairs((3,), seed=0), norm=norm).max(axis=0)
        assert np.all(largest <= margin_constants(model, (3,), norm=norm).numpy())


def test_the_paths_are_never_worse_than_the_products_of_operator_norms():
    model = mlp(5, 7, 6, 4)
    first, second, head = (model[i].weight.detach().double().numpy() for i in (0, 2, 4))
    for norm in ("l1", "linf"):
        exponent = EXPONENTS[norm]
        layers = np.linalg.norm(first, ord=exponent) * np.linalg.norm(second, ord=exponent)
        pulls = np.linalg.norm(head[:, None] - head[None], ord=DUALS[norm], axis=2)
        assert np.all(margin_constants(model, (5,), norm=norm).numpy() <= pulls * layers * (1 + 2e-6))


@pytest.mark.parametrize("leak", [0.0, 0.3, 1.0, -1.5])
def test_half_of_each_mask_is_known(leak):
    """Never above the product of spectral norms, and exact where the slopes are 1 on both sides."""
    model = mlp(5, 7, 6, 4, activation=lambda: nn.LeakyReLU(leak))
    first, second, head = (model[i].weight.detach().double().numpy() for i in (0, 2, 4))
    rows, rate = head[:, None] - head[None], max(1.0, abs(leak)) ** 2
    spectral = np.linalg.norm(first, ord=2) * np.linalg.norm(second, ord=2) * rate
    for norm in NORMS:
        found = half_masked_constants(SequentialLayers(model, (5,)), norm=norm).numpy()
        products = np.linalg.norm(rows, axis=2) * spectral * (np.sqrt(5) if norm == "linf" else 1.0)
        assert np.all(found <= products * (1 + 1e-9))
        if leak == 1.0:
            np.testing.assert_allclose(found, np.linalg.norm(rows @ second @ first, ord=DUALS[norm], axis=2), rtol=1e-9)
        elif leak >= 0.0:
            assert np.all(found[~np.eye(4, dtype=bool)] < 0.9 * products[~np.eye(4, dtype=bool)])
        largest = quotients(model, *random_pairs((5,), seed=0), norm=norm).max(axis=0)
        assert np.all(largest <= found * (1 + 1e-9))


def test_a_layer_that_comes_twice_counts_twice():
    """torch lists shared modules once: a reader that forgets the second would certify a network that is not there."""
    shared, relu = seeded(lambda: nn.Linear(3, 3, bias=False)), nn.ReLU()
    with torch.no_grad():
        shared.weight.copy_(2.0 * torch.eye(3))
    model = nn.Sequential(shared, relu, shared, relu, shared)
    for method in ("exact", "product"):
        constants = margin_constants(model, (3,), norm="l1", method=method).numpy()
        np.testing.assert_allclose(constants[0, 1], 8.0, rtol=2e-6)


def test_our_own_models_and_logits_without_a_linear_layer():
    for name, shape in (("cnn", (1, 8, 8)), ("mlp", (1, 8, 8))):
        model = build_model(name, x_shape=shape, num_classes=10, seed=0)
        assert margin_constants(model, shape, norm="l2").shape == (10, 10)
    pooled = seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    largest = quotients(pooled, *random_pairs((1, 4, 4), seed=0), norm="linf").max(axis=0)
    assert np.all(largest <= margin_constants(pooled, (1, 4, 4), norm="linf").numpy())


class Twice(nn.Linear):
    """Does more than its type shows."""

    def forward(self, x):
        return 2.0 * super().forward(x)


def hooked():
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, inputs, output: 2.0 * output)
    return model


def hooked_outside():
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    return model


def broken():
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    return model


@pytest.mark.parametrize(
    ("model", "shape", "settings", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), (3,), {}, "got GELU at '1'"),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Softmax(1))), (3,), {}, r"got Softmax at '0\.1'"),
        (nn.Sequential(Twice(3, 2)), (3,), {}, "got Twice at '0'"),
        (hooked(), (3,), {}, "'0' with hooks"),
        (hooked_outside(), (3,), {}, "'Sequential' with hooks"),
        (broken(), (3,), {}, "finite, got NaN or infinity at 'Linear'"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (3,), {}, "got ParametrizedLinear"),
        (nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)), (3,), {}, "running statistics"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), (1, 4, 4), {}, "padding_mode='reflect'"),
        (nn.MaxPool2d(2, dilation=2), (1, 4, 4), {}, "dilation 1"),
        (nn.Linear(3, 2), (4,), {}, "x_shape must fit the model"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(3, 2)), (3,), {}, "x_shape must fit the model"),
        (nn.Conv2d(1, 2, 3), (1, 5, 5), {}, r"features of shape \(2, 3, 3\)"),
        (nn.Linear(3, 2), 3, {}, "x_shape must be the sizes"),
        (nn.Linear(3, 2), (0,), {}, "x_shape must be the sizes"),
        (nn.Linear(3, 2), ("3",), {}, "x_shape must be the sizes"),
        ("linear", (3,), {}, "must be a torch.nn.Module, got str"),
        (nn.Linear(3, 2), (3,), {"norm": "l3"}, "norm must be one of l1, l2, linf"),
        (nn.Linear(3, 2), (3,), {"method": "power"}, "method must be one of auto, product, exact"),
        (mlp(3, 17, 2), (3,), {"method": "exact"}, "at most 16 hidden units, got 17"),
        (mlp(3, 4, 2, activation=nn.Tanh), (3,), {"method": "exact"}, "affine layers and"),
    ],
)
def test_what_is_not_understood_is_refused(model, shape, settings, message):
    with pytest.raises(RefusedError, match=message):
        margin_constants(model, shape, **{"norm": "l2", **settings})


def test_the_model_is_left_as_it_was():
    model = cnn().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    margin_constants(model, (2, 8, 8), norm="l2")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
