"""Training that keeps layers orthogonal: polar factors by scipy, operators by numpy's Fourier transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import polar
from torch import nn

from protocol.models import build_model, load_arrays, model_arrays
from riskband.adversaries import margin_constants
from worlds import lipschitz
from worlds.datasets import load_dataset
from worlds.orthogonal import OrthogonalDescent, orthogonalised
from worlds.training import train_centrally, train_epochs

SQRT_2 = 2.0**0.5
DIGITS = {"seed": 0, "learning_rate": 0.02, "batch_size": 64, "margin": 0.5}


def singular_values(weight, size=8):
    """Of a matrix, or of a convolution on a torus of size x size."""
    weight = weight.detach().double().numpy()
    if weight.ndim == 2:
        return np.linalg.svd(weight, compute_uv=False)
    return np.linalg.svd(np.fft.fft2(weight, (size, size)).transpose(2, 3, 0, 1), compute_uv=False).ravel()


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (4, 6, 1, 1)])
def test_the_steps_lead_a_matrix_to_its_polar_factor(shape):
    weight = torch.tensor(np.random.default_rng(0).normal(size=shape))
    weight = weight / torch.linalg.matrix_norm(weight.flatten(1), ord=2)
    found = weight
    for _ in range(40):
        found = orthogonalised(found)
    np.testing.assert_allclose(found.flatten(1).numpy(), polar(weight.flatten(1).numpy())[0], atol=1e-9)


def test_one_step_is_as_near_as_it_says():
    rotation = torch.tensor(polar(np.random.default_rng(0).normal(size=(6, 6)))[0])
    for scale in (0.98, 1.02):
        assert np.abs(singular_values(orthogonalised(scale * rotation)) - 1.0).max() < 0.001


@pytest.mark.parametrize("shape", [(6, 6, 3, 3), (8, 4, 3, 3), (4, 8, 3, 3)])
def test_the_steps_keep_a_convolution_nearly_orthogonal(shape):
    model = build_model("lipschitz-cnn", x_shape=(2, 8, 8), num_classes=3, seed=0)
    assert singular_values(model[1].weight) == pytest.approx(np.ones(8 * 8 * 8), abs=1e-5)  # from the start
    rng = np.random.default_rng(0)
    kernel = torch.zeros(shape, dtype=torch.float64)
    for channel in range(min(shape[:2])):
        kernel[channel, channel, channel % 3, (channel // 3) % 3] = 1.0
    strained = kernel + 0.03 * torch.tensor(rng.normal(size=shape))
    spreads = [np.ptp(singular_values(strained))]
    for _ in range(5):
        strained = orthogonalised(strained)
        spreads.append(np.ptp(singular_values(strained)))
    assert spreads[-1] < 0.15 * spreads[0]
    assert spreads[1] < 0.7 * spreads[0]


def test_training_keeps_the_constant_near_sqrt_2_and_adam_does_not():
    data, constants = load_dataset("digits"), []
    for is_orthogonal in (True, False):
        model = build_model("lipschitz-cnn", x_shape=(1, 8, 8), num_classes=10, seed=0)
        settings = DIGITS | ({} if is_orthogonal else {"learning_rate": 0.003})
        train_epochs(
            model, data.x_train[:448], data.y_train[:448], num_epochs=2, is_orthogonal=is_orthogonal, **settings
        )
        constants.append(float(margin_constants(model, (1, 8, 8), norm="l2").max()))
    assert constants[0] < 1.1 * SQRT_2
    assert constants[1] > 2.0 * SQRT_2


def test_a_model_of_this_name_is_trained_so_and_learns_and_the_mean_of_two_is_no_steeper():
    """As in a round of FedAvg: a mean of matrices of norm at most 1 has norm at most 1."""
    data, nets = load_dataset("digits"), []
    for seed in (0, 1):
        model = train_centrally(data, model="lipschitz-mlp", num_epochs=4, is_one_cycle=True, **DIGITS | {"seed": seed})
        with torch.no_grad():
            is_right = model(torch.tensor(data.x_pool)).argmax(dim=1).numpy() == data.y_pool
        assert is_right.mean() > 0.9
        matrices = [each for each in model.parameters() if each.dim() > 1]
        assert len(matrices) > 1
        assert all(np.abs(singular_values(each) - 1.0).max() < 0.01 for each in matrices)
        nets.append(model_arrays(model))
    mean = build_model("lipschitz-mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    load_arrays(mean, {name: (nets[0][name] + nets[1][name]) / 2 for name in nets[0]})
    assert float(margin_constants(mean, (1, 8, 8), norm="l2").max()) < 1.01 * SQRT_2


def test_what_has_no_gradient_stays():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    before = model_arrays(model)
    optimizer = OrthogonalDescent(model, learning_rate=0.1)
    optimizer.zero_grad()
    optimizer.step()
    assert all(np.array_equal(before[name], array) for name, array in model_arrays(model).items())


def test_images_are_moved_and_mirrored_and_stay_images():
    images = np.random.default_rng(0).random((400, 2, 8, 6), dtype=np.float32)
    before = images.copy()
    moved = lipschitz.cropped_and_mirrored(images, np.random.default_rng(1))
    np.testing.assert_array_equal(images, before)
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    seen = set()
    for image, wide in zip(moved, padded, strict=True):
        seen |= {
            (row, column, step)
            for row in range(5)
            for column in range(5)
            for step in (1, -1)
            if np.array_equal(image[:, :, ::step], wide[:, row : row + 8, column : column + 6])
        }
    assert len(seen) == 50
