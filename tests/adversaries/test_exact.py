"""Exact adversaries against linear programs over transports, projections and closed forms."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from riskband.models.evaluation import mean_loss
from tests.adversaries.transports import EXPONENTS, best_transports, cost_matrix, losses_at
from tests.transport import curves_of

COSTS = [(1, "l1"), (1, "l2"), (1, "linf"), (2, "l2")]
RADII = np.array([0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 5.0])


class DoubleLinear(nn.Linear):
    """A linear model that computes in double precision, so that tests see no rounding to single."""

    def __init__(self, weight, bias):
        super().__init__(weight.shape[1], weight.shape[0])
        self.double()
        with torch.no_grad():
            self.weight.copy_(torch.as_tensor(weight))
            self.bias.copy_(torch.as_tensor(bias))

    def forward(self, x):
        return super().forward(x.double())


def problem(seed=0, num_examples=7, num_features=3, num_classes=4):
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(num_classes, num_features)), rng.normal(size=num_classes)
    z = rng.normal(size=(num_examples, num_features)).astype(np.float32)
    # Mostly right: there must be something to attack.
    y = (z @ weight.T + bias).argmax(axis=1)
    y[0] = (y[0] + 1) % num_classes
    return DoubleLinear(weight, bias), weight, bias, z.astype(np.float64), y


def nearest_boundary_points(weight, bias, z, label, *, norm):
    """By cvxpy: for each other class, the nearest point that the model does not prefer to it."""
    points = []
    for other in set(range(len(weight))) - {label}:
        point = cp.Variable(len(z))
        beats = (weight[other] - weight[label]) @ point + bias[other] - bias[label] >= 0
        cp.Problem(cp.Minimize(cp.norm(point - z, EXPONENTS[norm])), [beats]).solve(solver=cp.CLARABEL)
        points.append(point.value)
    return np.array(points)


@pytest.mark.parametrize(("order", "norm"), COSTS)
def test_zero_one_is_the_best_of_all_transports(order, norm):
    model, weight, bias, z, y = problem()
    # The targets: a cloud, the examples, and for each example and class the nearest point of that class (cvxpy).
    nearest = [nearest_boundary_points(weight, bias, one, label, norm=norm) for one, label in zip(z, y, strict=True)]
    cloud = np.random.default_rng(1).normal(size=(300, z.shape[1])) * 2.0
    targets = np.concatenate([z, cloud, *nearest])
    costs = cost_matrix(z, targets, order=order, norm=norm)
    logits = targets @ weight.T + bias
    wrong_by = np.stack([np.delete(logits, label, axis=1).max(axis=1) - logits[:, label] for label in y])
    expected = best_transports(costs, (wrong_by >= -1e-6).astype(float), RADII)
    curves = curves_of(model, z, y, loss="zero_one", order=order, norm=norm)
    lower, upper = curves.values(RADII)
    assert curves.guarantee == "exact"
    np.testing.assert_array_equal(lower, upper)
    np.testing.assert_allclose(upper, expected, atol=2e-6)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_flip_costs_are_projections_onto_the_other_classes(norm):
    model, weight, bias, z, y = problem(seed=2, num_examples=5, num_features=4, num_classes=3)
    nearest = [nearest_boundary_points(weight, bias, one, label, norm=norm) for one, label in zip(z, y, strict=True)]
    distances = [
        np.linalg.norm(points - one, ord=EXPONENTS[norm], axis=1).min() for points, one in zip(nearest, z, strict=True)
    ]
    order_1 = curves_of(model, z, y, loss="zero_one", order=1, norm=norm)
    assert order_1.adversarial_unit == pytest.approx(np.mean(distances), abs=1e-6)
    if norm == "l2":
        order_2 = curves_of(model, z, y, loss="zero_one", order=2)
        assert order_2.adversarial_unit == pytest.approx(np.mean(np.square(distances)), abs=1e-6)


@pytest.mark.parametrize(("order", "norm"), COSTS)
def test_two_classes_have_the_closed_form_of_a_linear_classifier(order, norm):
    rng = np.random.default_rng(3)
    w, b = rng.normal(size=5), 0.3
    x = rng.normal(size=(40, 5)).astype(np.float32).astype(np.float64)
    y = (rng.random(40) < 0.5).astype(np.int64)
    model = DoubleLinear(np.stack([np.zeros(5), w]), np.array([0.0, b]))
    margin = np.where(y == 1, 1, -1) * (x @ w + b)
    dual = {"l1": np.abs(w).max(), "l2": np.sqrt(w @ w), "linf": np.abs(w).sum()}[norm]
    distance = (np.maximum(margin, 0.0) / dual) ** order
    curves = curves_of(model, x, y, loss="zero_one", order=order, norm=norm)
    # The conjugate is mean (1 - multiplier * distance)_+; the value at a radius its Legendre transform.
    multipliers = np.array([0.0, 0.1, 0.5, 1.0, 3.0, 10.0])
    expected = np.maximum(1.0 - multipliers[:, None] * distance, 0.0).mean(axis=1)
    np.testing.assert_allclose(curves.conjugates(multipliers)[1], expected, atol=1e-12)
    grid = np.concatenate([[0.0], 1.0 / distance[distance > 0.0]])  # the conjugate bends at these only
    conjugates = np.maximum(1.0 - grid[:, None] * distance, 0.0).mean(axis=1)
    expected = (grid * RADII[:, None] + conjugates).min(axis=1)
    np.testing.assert_allclose(curves.values(RADII)[0], expected, atol=1e-12)
    assert curves.clean_risk == mean_loss(model, x, y, loss="zero_one")[0]


@pytest.mark.slow
def test_the_margin_loss_is_exact_for_order_1():
    model, weight, bias, z, y = problem(seed=4, num_features=2, num_classes=3)
    # Wasserstein-1: an example goes straight to loss 1 or stays; brute force over a fine ring of targets in 2-D.
    grid = np.stack(np.meshgrid(np.linspace(-5, 5, 81), np.linspace(-5, 5, 81)), axis=-1).reshape(-1, 2)
    targets = np.concatenate([z, grid])
    costs = cost_matrix(z, targets, order=1, norm="l2")
    logits = targets @ weight.T + bias
    losses = np.stack([losses_at("margin", logits, label) for label in y])
    expected = best_transports(costs, losses, RADII)
    curves = curves_of(model, z, y, loss="margin", order=1)
    lower, upper = curves.values(RADII)
    assert curves.guarantee == "exact"
    assert np.all(upper >= expected - 1e-9)
    np.testing.assert_allclose(lower, expected, atol=0.02)  # the grid is 0.125 wide


def test_without_a_budget_nothing_moves_and_with_enough_everything_is_wrong():
    model, _, _, z, y = problem(seed=5)
    curves = curves_of(model, z, y, loss="zero_one", order=2)
    lower, _ = curves.values([0.0, 1e9])
    assert lower.tolist() == pytest.approx([curves.clean_risk, 1.0], abs=1e-15)
    assert curves.conjugates([0.0, 1e9])[0].tolist() == pytest.approx([1.0, curves.clean_risk], abs=1e-15)


def test_examples_that_nothing_can_flip_stay_right():
    weight = np.array([[1.0, 0.0], [1.0, 0.0]])  # no z tells the classes apart: class 0 by its bias
    model = DoubleLinear(weight, np.array([1.0, 0.0]))
    x, y = np.zeros((4, 2)), np.array([0, 0, 0, 1])
    for loss in ("zero_one", "margin", "cross_entropy", "brier"):
        curves = curves_of(model, x, y, loss=loss, order=1)
        clean, _ = mean_loss(model, x, y, loss=loss)
        np.testing.assert_allclose(curves.values([0.0, 1.0, 1e9]), clean, atol=1e-12)
    assert curves_of(model, x, y, loss="zero_one", order=2).adversarial_unit == 0.0


def test_a_tie_that_the_model_decides_rightly_costs_nothing_to_flip():
    model = DoubleLinear(np.array([[1.0], [-1.0]]), np.zeros(2))
    curves = curves_of(model, np.zeros((2, 1)), np.zeros(2, dtype=np.int64), loss="zero_one", order=1)
    assert curves.clean_risk == 0.0
    assert curves.values([0.0, 1.0])[0].tolist() == [1.0, 1.0]


def test_an_example_that_is_wrong_already_costs_nothing_even_if_its_rival_cannot_be_moved():
    # Class 0 beats class 1 by its bias, everywhere; class 2 is a finite distance away.
    model = DoubleLinear(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.0, 0.0]))
    x, y = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1, 0])
    curves = curves_of(model, x, y, loss="zero_one", order=1)
    assert curves.adversarial_unit == pytest.approx((0.0 + 2.0 / np.sqrt(2.0)) / 2.0)
