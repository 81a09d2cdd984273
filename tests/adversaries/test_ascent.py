"""Bounds for smooth losses: never below the truth, seldom far above it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

from riskband.adversaries.norms import DUAL_EXPONENTS
from riskband.adversaries.representation import ascent
from riskband.adversaries.representation.growth import GROWTHS
from riskband.models.evaluation import example_losses, mean_loss
from tests.adversaries.test_exact import COSTS, DoubleLinear, problem
from tests.adversaries.transports import best_transports, cost_matrix, losses_at
from tests.transport import curves_of

SMOOTH = ["margin", "cross_entropy", "brier"]
RADII = np.array([0.0, 0.02, 0.1, 0.4, 1.0, 3.0, 20.0])
GAP_RADII = np.array([0.0, 0.02, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 3.0, 20.0])


@pytest.mark.parametrize(
    "loss", ["margin", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("cross_entropy", "brier"))]
)
@pytest.mark.parametrize(("order", "norm"), COSTS)
def test_the_best_transport_to_a_fine_grid_lies_between_the_bounds(loss, order, norm):
    model, weight, bias, z, y = problem(seed=4, num_examples=5, num_features=2, num_classes=3)
    grid = np.stack(np.meshgrid(np.linspace(-8, 8, 61), np.linspace(-8, 8, 61)), axis=-1).reshape(-1, 2)
    targets = np.concatenate([z, grid])
    losses = np.stack([losses_at(loss, targets @ weight.T + bias, label) for label in y])
    attainable = best_transports(cost_matrix(z, targets, order=order, norm=norm), losses, RADII)
    curves = curves_of(model, z, y, loss=loss, order=order, norm=norm)
    lower, upper = curves.values(RADII)
    assert np.all(upper >= attainable - 1e-9)
    assert np.all(lower <= upper)
    # Bounds that hold but say nothing would pass up to here. Brier's is the widest: see the next test.
    assert np.all(lower >= attainable - {"margin": 0.01, "cross_entropy": 0.01, "brier": 0.05}[loss])
    assert np.all(upper <= attainable + {"margin": 0.05, "cross_entropy": 0.05, "brier": 0.16}[loss])


def largest_gap_of_brier(*, order, norm, num_classes, seeds, radii=GAP_RADII):
    """How far Brier's upper bound lies above the best transport to a fine grid, for crowded heads of two features."""
    largest = 0.0
    grid = np.stack(np.meshgrid(np.linspace(-8, 8, 49), np.linspace(-8, 8, 49)), axis=-1).reshape(-1, 2)
    for seed in seeds:
        model, weight, bias, z, y = problem(seed=seed, num_examples=3, num_features=2, num_classes=num_classes)
        targets = np.concatenate([z, grid])
        losses = np.stack([losses_at("brier", targets @ weight.T + bias, label) for label in y])
        attainable = best_transports(cost_matrix(z, targets, order=order, norm=norm), losses, radii)
        lower, upper = curves_of(model, z, y, loss="brier", order=order, norm=norm).values(radii)
        assert np.all(upper >= attainable - 1e-9)
        largest = max(largest, float((upper - np.maximum(attainable, lower)).max()))
    return largest


def test_the_bound_of_brier_lets_wrong_classes_share(monkeypatch):
    """Negative control: with one class taking all that the label loses, as before, it lies much higher."""
    question = {"order": 1, "norm": "linf", "num_classes": 10, "seeds": [6], "radii": np.array([0.4, 0.7, 1.0])}
    assert largest_gap_of_brier(**question) < 0.24
    alone = replace(GROWTHS["brier"], bound=lambda margins: margins.logsumexp(dim=1).sigmoid().square())
    monkeypatch.setitem(GROWTHS, "brier", alone)
    assert largest_gap_of_brier(**question) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize(("num_classes", "gap"), [(3, 0.217), (10, 0.276)])
def test_how_loose_the_bound_of_brier_is(num_classes, gap):
    """The figures of docs/adversaries.md."""
    found = [
        largest_gap_of_brier(order=order, norm=norm, num_classes=num_classes, seeds=range(8)) for order, norm in COSTS
    ]
    assert max(found) == pytest.approx(gap, abs=2e-3)


def suprema(loss, weight, bias, z, y, multipliers):
    """Means over examples of sup loss - multiplier * squared distance, by scipy from several starts."""

    def supremum(one, label, multiplier):
        def objective(point):
            value = losses_at(loss, (weight @ point + bias)[None], label)[0]
            return multiplier * ((point - one) ** 2).sum() - value

        starts = [one, *(one + np.random.default_rng(s).normal(size=len(one)) for s in range(2))]
        return max(-minimize(objective, start, method="BFGS", options={"gtol": 1e-9}).fun for start in starts)

    return np.array([np.mean([supremum(*pair, m) for pair in zip(z, y, strict=True)]) for m in multipliers])


@pytest.mark.parametrize("loss", ["cross_entropy", "brier"])
def test_where_ascent_is_certified_the_conjugate_is_the_supremum(loss, monkeypatch):
    model, weight, bias, z, y = problem(seed=6)
    spread = np.linalg.eigvalsh((weight - weight.mean(axis=0)) @ (weight - weight.mean(axis=0)).T)[-1]
    curvature = {"cross_entropy": 0.05, "brier": 0.5625}[loss] * spread
    multipliers = curvature / 2.0 * np.array([1.2, 2.0, 5.0])
    truth = suprema(loss, weight, bias, z, y, multipliers)
    curves = curves_of(model, z, y, loss=loss, order=2, multipliers=multipliers)
    lower, upper = curves.conjugates(multipliers)
    np.testing.assert_allclose(upper, truth, atol=1e-6)
    np.testing.assert_allclose(lower, truth, atol=1e-4)  # attained at our own multipliers only
    # Ascent that stops early proves less, but nothing wrong: the gradient that is left is paid for.
    monkeypatch.setattr(ascent, "_NUM_STEPS", 1)
    early = curves_of(model, z, y, loss=loss, order=2, multipliers=multipliers)
    bounds = dict(early.asked_lines)
    assert all(bounds[multiplier] >= value - 1e-12 for multiplier, value in zip(multipliers, truth, strict=True))
    assert bounds[multipliers[0]] > truth[0] + 1e-6


@pytest.mark.parametrize("loss", SMOOTH)
@pytest.mark.parametrize(("order", "norm"), [(1, "l2"), (1, "linf"), (2, "l2")])
def test_two_classes_leave_no_gap(loss, order, norm):
    model, _, _, z, y = problem(seed=7, num_classes=2, num_examples=30)
    curves = curves_of(model, z, y, loss=loss, order=order, norm=norm)
    lower, upper = curves.values(RADII)
    np.testing.assert_allclose(lower, upper, atol=2e-3)


@pytest.mark.parametrize("loss", SMOOTH)
@pytest.mark.parametrize(("order", "norm"), COSTS)
def test_the_upper_bounds_are_never_worse_than_lipschitz(loss, order, norm):
    """sup loss - multiplier * cost <= loss + L^2 / (4 multiplier), order 2; the loss once multiplier >= L, order 1."""
    model, weight, _, z, y = problem(seed=8, num_examples=20)
    distances = torch.cdist(torch.as_tensor(weight), torch.as_tensor(weight), p=DUAL_EXPONENTS[norm]).numpy()
    lipschitz = {"margin": 0.5, "cross_entropy": 0.1, "brier": 8 / 27}[loss] * distances[y].max(axis=1)
    losses = example_losses(model, z, y, loss=loss)
    multipliers = np.geomspace(0.01, 10.0, 15)
    curves = curves_of(model, z, y, loss=loss, order=order, norm=norm, multipliers=multipliers)
    for multiplier, upper in zip(multipliers, curves.conjugates(multipliers)[1], strict=True):
        if order == 2:
            known = np.minimum(1.0, losses + lipschitz**2 / (4.0 * multiplier))
        else:
            known = np.where(multiplier >= lipschitz, losses, 1.0)
        assert upper <= known.mean() + 1e-3


def random_net(seed, *, num_classes):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, num_classes))
    rng = np.random.default_rng(seed)
    num_examples = int(rng.integers(1, 12))
    with torch.no_grad():
        net[2].weight.mul_(10.0 ** rng.uniform(-1.5, 1.5))
        net[2].bias.mul_(10.0 ** rng.uniform(-1.5, 1.0))
    return net, rng.normal(size=(num_examples, 3)), rng.integers(num_classes, size=num_examples)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 5, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_classes=st.integers(2, 5),
    loss=st.sampled_from(["zero_one", *SMOOTH]),
    cost=st.sampled_from(COSTS),
)
def test_laws_on_random_networks(seed, num_classes, loss, cost):
    model, x, y = random_net(seed, num_classes=num_classes)
    order, norm = cost
    multipliers = np.array([0.0, 0.003, 0.03, 0.3, 3.0, 30.0])
    curves = curves_of(model, x, y, loss=loss, order=order, norm=norm, multipliers=multipliers)
    radii = np.linspace(0.0, 3.0 * curves.adversarial_unit + 0.1, 40)
    clean, _ = mean_loss(model, x, y, loss=loss)
    assert curves.clean_risk == clean
    for values in curves.values(radii):
        assert clean - 1e-12 <= values[0]
        assert values.max() <= 1.0
        assert np.all(np.diff(values) >= -1e-12)
        assert np.all(np.diff(values, 2) <= 1e-9)
    for conjugates in curves.conjugates(multipliers):
        assert np.all(np.diff(conjugates) <= 1e-12)
        assert clean - 1e-12 <= conjugates.min() <= conjugates.max() <= 1.0
    (lower, upper), (low, high) = curves.values(radii), curves.conjugates(multipliers)
    assert np.all(lower <= upper)
    assert np.all(low <= high)
    if loss != "zero_one":  # continuous: without a budget nothing changes
        assert upper[0] == pytest.approx(clean, abs=1e-12)
    # Weak duality: no value above any line.
    assert np.all(lower[:, None] <= multipliers * radii[:, None] + high + 1e-9)
    assert np.all(low[:, None] >= lower - multipliers[:, None] * radii - 1e-9)


@settings(max_examples=settings().max_examples * 2 // 5, deadline=None)
@given(seed=st.integers(0, 10**6), loss=st.sampled_from(["zero_one", *SMOOTH]), cost=st.sampled_from(COSTS))
def test_no_random_perturbation_beats_the_upper_bound(seed, loss, cost):
    rng = np.random.default_rng(seed)
    model, weight, bias, z, y = problem(seed=seed, num_examples=4, num_features=3, num_classes=3)
    order, norm = cost
    curves = curves_of(model, z, y, loss=loss, order=order, norm=norm)
    ends = weight[rng.integers(3, size=len(z))] - weight[y] + 0.3 * rng.normal(size=z.shape)
    for scale in 10.0 ** np.linspace(-2.5, 1.5, 15):
        moved = z + scale * ends
        cost_matrix_ = cost_matrix(z, moved, order=order, norm=norm).diagonal()
        losses = [losses_at(loss, (one @ weight.T + bias)[None], label)[0] for one, label in zip(moved, y, strict=True)]
        assert np.mean(losses) <= curves.values([cost_matrix_.mean()])[1][0] + 1e-9


def test_a_saturated_and_a_hopeless_example_do_no_harm():
    model = DoubleLinear(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), np.zeros(3))
    x = np.array([[1e4, -1e4], [-1e4, 1e4], [1e-30, 0.0]])
    for loss in SMOOTH:
        for order in (1, 2):
            curves = curves_of(model, x, np.zeros(3, dtype=np.int64), loss=loss, order=order)
            lower, upper = curves.values([0.0, 1.0, 1e3, 1e12])
            assert np.all(lower <= upper)
            assert upper[-1] == pytest.approx(1.0)
            assert lower[-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("loss", "order"), [("cross_entropy", 2), ("brier", 2), ("cross_entropy", 1)])
def test_values_do_not_depend_on_the_multipliers_that_are_asked(loss, order):
    model, _, _, z, y = problem(seed=2, num_examples=20)
    alone = curves_of(model, z, y, loss=loss, order=order).values(RADII)
    asked = curves_of(model, z, y, loss=loss, order=order, multipliers=[0.01, 0.3, 0.7, 5.0])
    np.testing.assert_array_equal(asked.values(RADII), alone)
