"""WC-DG by name, with the objectives of Mehra et al. (2022, appendix B.1): in input space and at a layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import nn

from riskband.adversaries.attacks.wc_dg import surrogate
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.spaces import points_at, split_at
from tests.adversaries.nets import mlp
from tests.adversaries.test_spaces import examples
from tests.adversaries.transports import losses_at
from tests.transport import curves_of

SPACES = ["input", "layer:1"]
PRICES = np.array([0.05, 0.2, 0.6, 2.0])


def linear_where_it_moves(space, num_examples=12):
    """A model whose logits are linear in what moves, its examples, these points, and the linear layer."""
    model = nn.Linear(4, 3) if space == "input" else mlp(5, 4, 3, seed=1)
    if space == "input":
        with torch.no_grad():
            model.weight.copy_(torch.tensor(np.random.default_rng(2).normal(size=(3, 4))))
    x, y = examples(model, 4 if space == "input" else 5, num_examples=num_examples)
    front, _ = split_at(model, None if space == "input" else "1")
    head = model if space == "input" else model[2]
    weight, bias = head.weight.detach().double().numpy(), head.bias.detach().double().numpy()
    return model, x, y, points_at(front, torch.from_numpy(x)).double().numpy(), (weight, bias)


def test_the_margin_loss_is_climbed_as_the_modified_hinge():
    """Equation 3, max(0, 1 - t) - alpha max(0, t - 1) with alpha = 0.1: ours is half of it, and capped at 1."""
    logits = np.random.default_rng(0).normal(size=(200, 4)) * 2.0
    labels = np.random.default_rng(1).integers(4, size=200)
    label = logits[np.arange(200), labels]
    others = logits.copy()
    others[np.arange(200), labels] = -np.inf
    t = label - others.max(axis=1)
    published = np.maximum(0.0, 1.0 - t) - 0.1 * np.maximum(0.0, t - 1.0)
    found = surrogate("margin")(torch.from_numpy(logits), torch.from_numpy(labels)).numpy()
    assert t.min() < -1.0 < 1.0 < t.max()  # all three pieces are seen
    np.testing.assert_allclose(found, np.minimum(published / 2.0, 1.0), atol=1e-12)


@pytest.mark.parametrize("space", SPACES)
def test_examples_far_from_any_loss_are_reached_through_the_leak(space):
    """Where the margin loss is 0 it has no slope: plain ascent of it would never move."""
    model, x, y, _, _ = linear_where_it_moves(space)
    with torch.no_grad():
        for parameter in (model if space == "input" else model[2]).parameters():
            parameter.mul_(300.0)
    keep = np.arange(len(y)) > 0
    asked = {"loss": "margin", "order": 2, "space": space, "adversary": "wc-dg"}
    curves = curves_of(model, x[keep], y[keep], **asked)
    assert curves.clean_risk < 0.1
    assert curves.values([1e3])[0][0] == pytest.approx(1.0)


@pytest.mark.parametrize("num_examples", [2, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("space", SPACES)
def test_the_cross_entropys_conjugates_are_those_of_a_general_optimiser(space, num_examples):
    """sup over z of loss - multiplier ||z - z_0||^2 of each example, by scipy from several starts."""
    model, x, y, points, (weight, bias) = linear_where_it_moves(space, num_examples=num_examples)
    curves = curves_of(model, x, y, loss="cross_entropy", order=2, space=space, adversary="wc-dg")
    lower, _ = curves.conjugates(PRICES)
    rng = np.random.default_rng(3)

    def best(point, label, price):
        def lack(z):
            value = losses_at("cross_entropy", (weight @ z + bias)[None], label)[0]
            return price * np.sum((z - point) ** 2) - value

        steps = rng.normal(size=(8, len(point))) * rng.choice([0.3, 1.0, 3.0], size=(8, 1))
        found = [minimize(lack, point + step, method="Nelder-Mead", options={"maxfev": 400}).fun for step in steps]
        return max(-min(found), -lack(point))

    truth = [np.mean([best(z, label, price) for z, label in zip(points, y, strict=True)]) for price in PRICES]
    assert np.all(lower <= np.array(truth) + 1e-4)  # the optimiser may stop short, too
    np.testing.assert_allclose(lower, truth, atol=0.01)


@pytest.mark.parametrize("space", SPACES)
def test_the_margin_losss_conjugates_are_their_closed_form(space):
    """Towards each rival alone its margin grows at ||w_j - w_y||: best at distance speed / (4 multiplier), or at 1."""
    model, x, y, points, (weight, bias) = linear_where_it_moves(space)
    logits = points @ weight.T + bias
    margins = logits - logits[np.arange(len(y)), y][:, None]
    margins[np.arange(len(y)), y] = -np.inf
    speeds = np.linalg.norm(weight[y][:, None] - weight[None], axis=2)
    with np.errstate(divide="ignore"):
        until_one = np.where(speeds > 0.0, (1.0 - margins).clip(0.0) / speeds, 0.0)
    curves = curves_of(model, x, y, loss="margin", order=2, space=space, adversary="wc-dg")
    lower, _ = curves.conjugates(PRICES)

    def gain(distances, price):
        return (((1.0 + margins + speeds * distances) / 2.0).clip(0.0, 1.0) - price * distances**2).max(axis=1)

    truth = [
        np.maximum(gain(0.0 * speeds, price), gain(np.minimum(speeds / (4.0 * price), until_one), price)).mean()
        for price in PRICES
    ]
    assert np.all(lower <= np.array(truth) + 1e-6)
    np.testing.assert_allclose(lower, truth, atol=0.03)  # ascent stays with the rival that leads where it comes by


@pytest.mark.parametrize("space", SPACES)
def test_zero_one_is_the_published_closed_form(space):
    """Equations 4 and 5: sup = max(0, 1 - multiplier * cost of the nearest flip), minimised over the multiplier."""
    model, x, y, points, (weight, bias) = linear_where_it_moves(space)
    logits = points @ weight.T + bias
    gaps = (logits[np.arange(len(y)), y][:, None] - logits).clip(0.0)
    norms = np.linalg.norm(weight[y][:, None] - weight[None], axis=2)
    distances = np.where(norms > 0.0, gaps / np.where(norms > 0.0, norms, 1.0), np.inf).min(axis=1)
    curves = curves_of(model, x, y, loss="zero_one", order=2, space=space, adversary="wc-dg")
    expected = [np.maximum(0.0, 1.0 - price * distances**2).mean() for price in PRICES]
    np.testing.assert_allclose(curves.conjugates(PRICES)[0], expected, atol=1e-5)
    for radius in np.array([0.02, 0.1, 0.5]) * np.mean(distances**2):

        def dual(price, radius=radius):
            return price * radius + np.maximum(0.0, 1.0 - price * distances**2).mean()

        found = minimize_scalar(dual, bounds=(1e-20, 100.0), method="bounded", options={"xatol": 1e-9})
        assert 1e-3 < found.x < 99.0  # the published range is no restriction here
        assert curves.values([radius])[0][0] == pytest.approx(found.fun, abs=1e-5)


@pytest.mark.parametrize("adversary", ["wc-dg", "wda-knapsack"])
@pytest.mark.parametrize("loss", ["cross_entropy", "margin", pytest.param("zero_one", marks=pytest.mark.slow)])
def test_the_multipliers_asked_do_not_change_the_curve(adversary, loss):
    """A bisection asks for radii first with multipliers, then without: its answers must be of one curve."""
    model = mlp(4, 6, 3)
    x, y = examples(model, 4)
    asked = {"loss": loss, "order": 2, "space": "input", "adversary": adversary}
    plain, more = (curves_of(model, x, y, multipliers=prices, **asked) for prices in ((), (0.1, 1.0, 30.0)))
    radii = np.geomspace(1e-3, 10.0, 9)
    np.testing.assert_array_equal(plain.values(radii), more.values(radii))


@pytest.mark.slow
def test_small_radii_are_reached_without_being_asked_for():
    """Twenty times as many multipliers of each example's own add next to nothing."""
    import riskband.adversaries.attacks.wc_dg as module

    model = mlp(20, 32, 5, seed=1)
    x, y = examples(model, 20, num_examples=60)
    asked = {"loss": "brier", "order": 2, "space": "input", "adversary": "wc-dg"}
    few = curves_of(model, x, y, **asked)
    before = module._FACTORS
    module._FACTORS = tuple(np.geomspace(0.05, 200.0, 160))
    try:
        many = curves_of(model, x, y, **asked)
    finally:
        module._FACTORS = before
    radii = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]) * few.adversarial_unit
    assert np.max(many.values(radii)[0] - few.values(radii)[0]) < 0.01


def test_the_cross_entropy_that_is_climbed_is_the_bounded_one():
    """A certificate needs losses in [0, 1]: without the cap, of a model of large weights, these would be thousands."""
    model, x, y, points, (weight, bias) = linear_where_it_moves("input")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1000.0)
    asked = {"loss": "cross_entropy", "order": 2, "space": "input", "adversary": "sandwich:wc-dg"}
    lower, upper = curves_of(model, x, y, **asked).values([0.0, 0.1, 1.0, 1e4])
    logits = 1000.0 * (points @ weight.T + bias)
    nats = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    nats -= logits[np.arange(len(y)), y]
    assert nats.max() > 100.0
    assert lower[0] == pytest.approx((np.minimum(nats, 10.0) / 10.0).mean(), abs=1e-6)
    assert np.all((lower >= 0.0) & (lower <= upper) & (upper <= 1.0))
    assert upper[-1] == pytest.approx(1.0, abs=1e-12)
    assert surrogate("cross_entropy")(torch.tensor([[0.0, 1e4]]), torch.tensor([0])).item() == 1.0


@pytest.mark.parametrize("loss", ["nats", "hinge"])
def test_losses_without_a_bound_cannot_be_asked_of_an_adversary(loss):
    """They are an estimate of their own (`representation.unbounded`); no answer and no certificate can hold them."""
    with pytest.raises(ValueError, match=rf"got '{loss}'"):
        TransportProblem(loss, 2, "l2", "input", "wc-dg")
