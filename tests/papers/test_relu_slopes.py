"""Both slopes of the WDA paper's theorem 3.1: what is reached far out, what cannot be exceeded, what was printed."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from torch import nn

from papers.robustness.relu_slopes import growth_slopes, steepest_recession
from riskband.adversaries.bounds.lipschitz import SequentialLayers, margin_constants
from riskband.adversaries.bounds.relu_cells import relu_cells
from riskband.checks import RefusedError
from tests.adversaries.nets import EXPONENTS, logits_of, mlp

NORMS = ["l1", "l2", "linf"]


def uncapped(loss, logits, label):
    """Cross-entropy in nats, or the largest margin: the losses of the theorem."""
    if loss == "cross_entropy":
        return logsumexp(logits, axis=-1) - logits[..., label]
    return np.delete(logits, label, axis=-1).max(axis=-1) - logits[..., label]


def worst_case_far_out(model, slopes, *, loss, norm, budget, reach=1e6):
    """Mean loss without, and after a transport of mean cost `budget` that exists: mass moved along the ray.

    Equation 16 of the paper, for four examples of which the first has the ray's label.
    """
    rng = np.random.default_rng(0)
    ray = slopes.ray
    x = rng.normal(size=(4, len(ray.start)))
    labels = np.array([ray.label, 0, 1, 0])
    logits = logits_of(model, x)
    losses = np.array([uncapped(loss, row, label) for row, label in zip(logits, labels, strict=True)])
    far = ray.start + reach * ray.direction
    share = len(x) * budget / np.linalg.norm(far - x[0], ord=EXPONENTS[norm])
    assert share < 1.0
    gained = uncapped(loss, logits_of(model, far[None])[0], ray.label) - losses[0]
    return losses.mean(), losses.mean() + share * gained / len(x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", ["cross_entropy", pytest.param("margin", marks=pytest.mark.slow)])
def test_a_transport_reaches_the_lower_slope_and_none_the_upper(norm, loss):
    for seed in range(4):
        model = mlp(2, 6, 3, seed=seed)
        slopes = growth_slopes(model, (2,), norm=norm)
        for budget in (0.1, 3.0):
            clean, worst = worst_case_far_out(model, slopes, loss=loss, norm=norm, budget=budget)
            assert worst >= clean + slopes.lower * budget * (1 - 1e-4)
            assert worst <= clean + slopes.upper * budget
        assert np.linalg.norm(slopes.ray.direction, ord=EXPONENTS[norm]) <= 1 + 1e-9


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(max_examples=settings().max_examples // 8)
def test_the_slopes_are_ordered_and_meet_when_aligned(seed):
    model = mlp(2, 5, 3, seed=seed)
    for norm in NORMS:
        slopes = growth_slopes(model, (2,), norm=norm)
        assert 0.0 <= slopes.lower <= slopes.upper
        assert slopes.upper == pytest.approx(float(margin_constants(model, (2,), norm=norm).max()), rel=1e-12)
        if slopes.is_aligned:
            assert slopes.lower == pytest.approx(slopes.upper, rel=2e-6)
        elif norm == "l2":  # the steepest direction is unique: then the condition is necessary too
            assert slopes.lower < slopes.upper * (1 - 2e-6)


@pytest.mark.parametrize(("seed", "is_aligned"), [(2, True), (3, False)])
@pytest.mark.parametrize("norm", NORMS)
def test_the_two_dimensional_example_of_the_paper(seed, is_aligned, norm):
    """Figure 2a: two inputs, two classes, one hidden layer of eight. Its weights are not printed; these are seeded."""
    slopes = growth_slopes(mlp(2, 8, 2, seed=seed), (2,), norm=norm)
    assert slopes.is_aligned is is_aligned
    assert (slopes.lower == pytest.approx(slopes.upper, rel=2e-6)) is is_aligned


@pytest.mark.parametrize("norm", NORMS)
def test_linear_models_are_aligned(norm):
    slopes = growth_slopes(nn.Linear(4, 3), (4,), norm=norm)
    assert slopes.is_aligned
    assert slopes.lower == pytest.approx(slopes.upper, rel=2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_recession_directions_are_the_best_of_the_cone(norm):
    """Against cvxpy."""
    layers = SequentialLayers(mlp(3, 5, 2), (3,))
    for seed, cell in enumerate(relu_cells(layers.body, layers.x_shape)):
        gradient = np.random.default_rng(seed).normal(size=3)
        direction = cp.Variable(3)
        inside = [cell.rows @ direction >= 0, cp.norm(direction, EXPONENTS[norm]) <= 1]
        best = cp.Problem(cp.Maximize(gradient @ direction), inside).solve(solver=cp.CLARABEL)
        found = steepest_recession(cell, gradient, norm=norm)
        assert gradient @ found == pytest.approx(best, abs=1e-6)
        assert np.all(cell.rows @ found >= -1e-9)
        if seed == 12:
            break


def opposed():
    """theta(x) = (x, -x), the example of the erratum."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    return model


def test_the_published_constant_is_too_small_in_l1_and_too_large_in_linf():
    """theta(x) = (x, -x): moving x by t raises a margin by 2t, in every norm of one number."""
    truth = {norm: growth_slopes(opposed(), (1,), norm=norm).upper for norm in NORMS}
    published = {norm: growth_slopes(opposed(), (1,), norm=norm, method="published").upper for norm in NORMS}
    assert truth == pytest.approx(dict.fromkeys(NORMS, 2.0), rel=2e-6)
    assert published == pytest.approx({"l1": 1.0, "l2": 2.0, "linf": 4.0}, rel=1e-9)


def test_a_transport_exceeds_the_published_bound_in_l1():
    """Negative control: the certificate with the published constant fails, by a perturbation that exists."""
    for model, num_inputs in ((opposed(), 1), (mlp(2, 8, 2, seed=1), 2)):
        published = growth_slopes(model, (num_inputs,), norm="l1", method="published")
        sharp = growth_slopes(model, (num_inputs,), norm="l1")
        for loss in ("cross_entropy", "margin"):
            clean, worst = worst_case_far_out(model, sharp, loss=loss, norm="l1", budget=3.0)
            assert worst > clean + published.upper * 3.0 * 1.1
            assert worst <= clean + sharp.upper * 3.0


def test_the_published_norms_are_those_of_brute_force():
    """||J||_{r->s} as the largest ||J u||_s over many ||u||_r = 1 (r = 1, inf: the corners hold the maximum)."""
    model = nn.Linear(3, 4)
    jacobian = model.weight.detach().double().numpy()
    corners = {
        "l1": np.vstack([np.eye(3), -np.eye(3)]),
        "linf": np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T,
    }
    for norm, factor, dual in (("l1", 1.0, np.inf), ("linf", 2.0, 1)):
        largest = np.linalg.norm(corners[norm] @ jacobian.T, ord=dual, axis=1).max()
        published = growth_slopes(model, (3,), norm=norm, method="published").upper
        assert published == pytest.approx(factor * largest, rel=1e-9)
    published = growth_slopes(model, (3,), norm="l2", method="published").upper
    assert published == pytest.approx(np.sqrt(2.0) * np.linalg.svd(jacobian, compute_uv=False)[0], rel=1e-9)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("norm", ["l2", *(pytest.param(norm, marks=pytest.mark.slow) for norm in ("l1", "linf"))])
@pytest.mark.parametrize("activation", [lambda: nn.ELU(1.7), nn.GELU, nn.SiLU])
def test_smooth_activations_grow_far_out_as_relu_does(norm, activation, seed):
    model = mlp(2, 4, 4, 3, seed=seed, activation=activation)
    slopes = growth_slopes(model, (2,), norm=norm)
    assert 0.0 < slopes.lower <= slopes.upper
    assert slopes.lower == growth_slopes(mlp(2, 4, 4, 3, seed=seed), (2,), norm=norm).lower
    ray = slopes.ray
    logits = logits_of(model, ray.start + np.array([[1e6], [3e6]]) * ray.direction)
    margins = logits[:, ray.rival] - logits[:, ray.label]
    assert (margins[1] - margins[0]) / 2e6 == pytest.approx(slopes.lower, rel=1e-4)
    for loss in ("cross_entropy", "margin"):
        clean, worst = worst_case_far_out(model, slopes, loss=loss, norm=norm, budget=3.0)
        assert clean + slopes.lower * 3.0 * (1 - 1e-3) <= worst <= clean + slopes.upper * 3.0


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid])
def test_bounded_activations_do_not_grow_far_out(activation):
    model = nn.Sequential(mlp(2, 30, 5, activation=nn.ReLU), activation(), mlp(5, 3))
    slopes = growth_slopes(model, (2,), norm="l2")
    assert (slopes.lower, slopes.ray, slopes.is_aligned) == (0.0, None, False)
    directions = np.random.default_rng(0).normal(size=(50, 2))
    change = logits_of(model, 1e9 * directions) - logits_of(model, directions)
    assert np.abs(change).max() / 1e9 < 1e-6 < slopes.upper


def test_a_network_that_goes_flat_has_no_ray():
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))  # relu(x) - relu(x - 1): a step
    with torch.no_grad():
        model[0].weight.copy_(torch.ones(2, 1))
        model[0].bias.copy_(torch.tensor([0.0, -1.0]))
        model[2].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    slopes = growth_slopes(model, (1,), norm="l2")
    assert (slopes.lower, slopes.ray, slopes.is_aligned) == (0.0, None, False)
    assert slopes.upper == pytest.approx(1.0, rel=2e-6)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (nn.Linear(2, 2), {"norm": "l0"}, "norm must be one of"),
        (nn.Linear(2, 2), {"method": "printed"}, "method must be 'sharp' or 'published', got 'printed'"),
        (nn.Linear(2, 17), {"method": "published", "norm": "linf"}, "at most 16 classes, got 17"),
        (mlp(2, 17, 2), {}, "at most 16 hidden units, got 17"),
        (nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2)), {"x_shape": (1, 2, 2)}, "got another layer"),
        (mlp(2, 3, 2, activation=nn.GELU), {"method": "published"}, "affine layers and .leaky. ReLU, got another"),
        (mlp(2, 17, 2, activation=nn.GELU), {}, "at most 16 hidden units, got 17"),
    ],
)
def test_wrong_arguments_are_refused(model, settings, message):
    with pytest.raises(RefusedError, match=message):
        growth_slopes(model, **{"x_shape": (2,), "norm": "l2", **settings})
