"""Worst mean losses outside [0, 1]: the dual over a fine grid of the plane, and the capped losses' bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from papers.domain_generalisation.unbounded import UNBOUNDED_LOSSES, worst_mean_losses
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves

DISTANCES = np.array([0.0, 0.3, 1.2])


def small(num_classes: int, num_examples: int, num_features: int = 2) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """A linear model, and points of which most are right."""
    rng = np.random.default_rng(num_classes)
    head = nn.Linear(num_features, num_classes).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor(1.5 * rng.standard_normal((num_classes, num_features))))
        head.bias.copy_(torch.tensor(0.2 * rng.standard_normal(num_classes)))
    x = rng.standard_normal((num_examples, num_features))
    y = head(torch.tensor(x)).argmax(dim=1).numpy()
    y[0] = (y[0] + 1) % num_classes
    return nn.Sequential(head), x, y


def dual(model: nn.Module, x: np.ndarray, y: np.ndarray, loss: str, distance: float) -> float:
    """The paper's equation 2: for each price the largest loss - price * squared distance, over a grid of the plane."""
    side = np.linspace(-8, 8, 241)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    with torch.no_grad():
        logits = model(torch.tensor(grid))
    per_example = UNBOUNDED_LOSSES[loss].per_example
    losses = [per_example(logits, torch.full((len(grid),), int(label))).numpy() for label in y]
    squares = [((grid - each) ** 2).sum(axis=1) for each in x]

    def value(log_price: float) -> float:
        price = np.exp(log_price)
        suprema = [np.max(own - price * square) for own, square in zip(losses, squares, strict=True)]
        return price * distance**2 + float(np.mean(suprema))

    return float(minimize_scalar(value, bounds=(-3, 4), method="bounded", options={"xatol": 1e-4}).fun)


@pytest.mark.parametrize("loss", ["nats", "hinge"])
def test_the_paper_s_dual_is_reached(loss):
    # Truth: brute force over the plane. Its grid is coarse near the example, so it lies a little below.
    model, x, y = small(num_classes=3, num_examples=5)
    found = worst_mean_losses(model, x, y, loss=loss, distances=DISTANCES)
    for distance, value in zip(DISTANCES[1:], found[1:], strict=True):
        assert value == pytest.approx(dual(model, x, y, loss, distance), abs=0.01)
    with torch.no_grad():
        clean = UNBOUNDED_LOSSES[loss].per_example(model(torch.tensor(x)), torch.tensor(y))
    assert found[0] == pytest.approx(float(clean.mean()), abs=1e-12)
    assert np.all(np.diff(found) > 0)


def test_nats_agree_with_the_capped_loss_where_nothing_is_capped():
    model, x, y = small(num_classes=4, num_examples=20, num_features=6)
    distances = np.array([0.05, 0.1, 0.3])
    curves = adversarial_curves(model, x, y, TransportProblem(loss="cross_entropy", order=2))
    lower, upper = curves.values(distances**2)
    found = worst_mean_losses(model, x, y, loss="nats", distances=distances)
    assert np.all(found <= 10 * upper + 1e-9)
    assert found == pytest.approx(10 * lower, rel=0.01)


def test_the_hinge_is_below_zero_where_the_margin_is_large_and_no_shift_of_all_logits_counts():
    logits = torch.tensor([[3.0, 0.0], [0.5, 0.0], [0.0, 2.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0])
    hinge = UNBOUNDED_LOSSES["hinge"].per_example
    assert hinge(logits, labels).tolist() == pytest.approx([-0.2, 0.5, 3.0])
    assert hinge(logits + 5, labels).tolist() == pytest.approx([-0.2, 0.5, 3.0])


def test_what_cannot_be_asked_is_said():
    model, x, y = small(num_classes=3, num_examples=5)
    with pytest.raises(ValueError, match="loss must be one of nats, hinge"):
        worst_mean_losses(model, x, y, loss="margin", distances=[0.1])
    with pytest.raises(ValueError, match="distances must be finite numbers >= 0"):
        worst_mean_losses(model, x, y, loss="nats", distances=[-0.1])
