"""The space at a named layer: the model in two, and the rest of it attacked as any model is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from riskband.adversaries.spaces import points_at, split_at
from riskband.checks import RefusedError
from tests.adversaries.nets import cnn, mlp, seeded
from tests.adversaries.test_exact import COSTS
from tests.adversaries.transports import EXPONENTS
from tests.transport import curves_of

LOSSES = ["zero_one", "margin", "cross_entropy", "brier"]
DUALS = {"l1": np.inf, "l2": 2, "linf": 1}


class Squared(nn.Module):
    """A layer of which nothing is proved."""

    def forward(self, x):
        return x * x


class Pair(nn.Module):
    """A layer whose output is no tensor."""

    def forward(self, x):
        return x, x


def examples(model, num_features, *, seed=0, num_examples=20):
    """Labelled by the model but for the first."""
    x = np.random.default_rng(seed).normal(size=(num_examples, num_features)).astype(np.float32)
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(torch.from_numpy(x))
    y = logits.argmax(dim=1).numpy()
    y[0] = (y[0] + 1) % logits.shape[1]
    return x, y


def in_place(seed=3):
    """Before the head stands a layer that works in place on what the layer before it returns."""
    layers = seeded(lambda: [nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 6), nn.Linear(6, 4)], seed)
    return nn.Sequential(nn.Sequential(*layers[:2]), layers[2], nn.LeakyReLU(0.2, inplace=True), layers[3])


def clear_examples(model):
    """The 40 of 400 with the largest margins for their logits, of which certificates leave some parts in a million."""
    x, y = examples(model, 5, num_examples=400)
    with torch.no_grad():
        logits = model(torch.from_numpy(x)).numpy()
    best, second = np.sort(logits, axis=1)[:, :-3:-1].T
    kept = np.argsort((second - best) / np.abs(logits).max(axis=1))[:40]
    y[kept[0]] = (logits[kept[0]].argmax() + 1) % 4
    return x[kept], y[kept]


@pytest.mark.parametrize("name", ["0", "1", "3", "3.0", "3.1", "3.2", "5", "6", "7"])
def test_the_two_halves_are_the_model(name):
    model = cnn().eval()
    front, tail = split_at(model, name)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 2, 8, 8)).astype(np.float32))
    with torch.no_grad():
        assert torch.equal(tail(points_at(front, x)), model(x))
    leaves = [module for module in model.modules() if type(module) is not nn.Sequential]
    assert [module for half in (front, tail) for module in half.modules() if module in leaves] == leaves
    assert [*front.state_dict(), *tail.state_dict()] == list(model.state_dict())  # under their own names


@pytest.mark.parametrize(("order", "norm"), COSTS)
@pytest.mark.parametrize("adversary", ["wc-dg", "min-norm", "wda-knapsack", "lipschitz", "sandwich:min-norm", "auto"])
def test_before_the_head_all_agree_with_the_exact_adversary(order, norm, adversary):
    model = in_place()
    x, y = clear_examples(model)
    asked = {"loss": "zero_one", "order": order, "norm": norm}
    exact = curves_of(model, x, y, **asked)
    radii = np.linspace(0.0, 2.0, 15) * exact.adversarial_unit
    truth = exact.values(radii)[0]
    curves = curves_of(model, x, y, space="layer:2", adversary=adversary, **asked)
    lower, upper = curves.values(radii)
    if adversary != "lipschitz":
        np.testing.assert_allclose(lower, truth, atol=1e-5)
        assert curves.adversarial_unit == pytest.approx(exact.adversarial_unit, rel=1e-5)
    if curves.guarantee == "upper":
        np.testing.assert_allclose(upper, truth, atol=1e-5 * order)  # a cost squared is rounded twice as much
    assert curves.guarantee == ("upper" if adversary in ("lipschitz", "sandwich:min-norm", "auto") else "lower")


@pytest.mark.parametrize("norm", list(EXPONENTS))
def test_behind_the_last_layer_the_logits_themselves_move(norm):
    """Closed form: to draw level with a rival, the margin over the dual norm of e_j - e_y."""
    model = in_place()
    x, y = clear_examples(model)
    with torch.no_grad():
        logits = model(torch.from_numpy(x)).double().numpy()
    margins = logits[np.arange(len(y)), y][:, None] - logits
    margins[np.arange(len(y)), y] = np.inf
    costs = margins.min(axis=1).clip(0.0) / np.linalg.norm([1.0, -1.0], ord=DUALS[norm])
    curves = curves_of(model, x, y, loss="zero_one", order=1, norm=norm, space="layer:3")
    lower, upper = curves.values([costs.mean()])  # at the mean of all costs, everything is flipped
    assert curves.adversarial_unit == pytest.approx(costs.mean(), rel=1e-5)
    assert (lower[0], upper[0]) == pytest.approx((1.0, 1.0), abs=1e-5)
    few = curves.values([np.sort(costs)[:5].sum() / len(costs)])
    assert (few[0][0], few[1][0]) == pytest.approx((5 / 40, 5 / 40), abs=1e-5)


@pytest.mark.parametrize("adversary", ["pgd", "wc-dg", "wda-knapsack", "lipschitz", "sandwich"])
@pytest.mark.parametrize("loss", [LOSSES[0], *(pytest.param(loss, marks=pytest.mark.slow) for loss in LOSSES[1:])])
def test_a_layers_activations_are_attacked_as_inputs_are(adversary, loss):
    model = in_place()
    x, y = examples(model, 5, num_examples=6)
    front, tail = split_at(model, "0.0")
    activations = points_at(front, torch.from_numpy(x)).numpy()
    asked = {"loss": loss, "order": 2, "adversary": adversary, "seed": 4}
    here = curves_of(model, x, y, space="layer:0.0", **asked)
    there = curves_of(tail, activations, y, space="input", **asked)
    radii = [0.0, 0.01, 0.1, 1.0]
    np.testing.assert_array_equal(here.values(radii), there.values(radii))
    assert here.values(radii)[0][-1] > here.clean_risk or adversary == "lipschitz"
    assert here.adversarial_unit == there.adversarial_unit


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 1000), st.sampled_from(["1", "2", "3"]), st.sampled_from(LOSSES), st.sampled_from(COSTS))
def test_what_is_reached_at_a_layer_lies_below_what_is_proved_there(seed, layer, loss, cost):
    order, norm = cost
    model = mlp(4, 6, 5, 3, seed=seed)
    x, y = examples(model, 4, seed=seed, num_examples=6)
    asked = {"loss": loss, "order": order, "norm": norm, "space": f"layer:{layer}", "adversary": "sandwich:pgd"}
    lower, upper = curves_of(model, x, y, **asked).values(np.geomspace(1e-3, 10.0, 12))
    assert np.all(lower <= upper)
    assert np.all(np.diff(lower) >= -1e-12)


@pytest.mark.parametrize("space", ["input", "layer:0"])
def test_a_first_layer_that_works_in_place_does_not_move_the_examples(space):
    """Negative control: before the examples were copied for it, they were attacked where that layer had left them."""
    rest = mlp(5, 6, 3, seed=1)
    changes, keeps = (nn.Sequential(nn.Identity(), nn.ReLU(inplace=flag), rest) for flag in (True, False))
    x, y = examples(keeps, 5)
    asked = {"loss": "zero_one", "order": 1, "space": space, "adversary": "sandwich:min-norm"}
    radii = [0.0, 0.1, 0.5, 2.0]
    found, expected = (curves_of(model, x, y, **asked).values(radii) for model in (changes, keeps))
    np.testing.assert_array_equal(found, expected)


def test_what_stands_before_the_layer_may_be_anything():
    model = nn.Sequential(Squared(), nn.Dropout(0.5), mlp(5, 6, 3, seed=2))
    x, y = examples(model, 5)
    asked = {"loss": "zero_one", "order": 1, "adversary": "lipschitz"}
    with pytest.raises(RefusedError, match="in the forward of Squared at '0'"):
        curves_of(model, x, y, space="input", **asked)
    assert curves_of(model, x, y, space="layer:1", **asked).guarantee == "upper"
    assert all(module.training for module in model.modules())


def test_a_box_holds_what_the_layer_returns():
    model = mlp(5, 6, 4, seed=5)
    x, y = examples(model, 5)
    asked = {"loss": "zero_one", "order": 1, "space": "layer:1", "adversary": "min-norm"}
    with torch.no_grad():
        largest = float(model[:2](torch.from_numpy(x)).max())
    free = curves_of(model, x, y, **asked)
    boxed = curves_of(model, x, y, box=(0.0, largest), **asked)  # what a ReLU can return, at least
    radii = np.linspace(0.0, 2.0, 12) * free.adversarial_unit
    shortfall = free.values(radii)[0] - boxed.values(radii)[0]
    assert shortfall.min() >= -1e-5  # behind the layer the model is linear, where the free attack is the best one
    assert shortfall.max() > 0.01
    with pytest.raises(RefusedError, match="must lie in the box"):
        curves_of(model, x, y, box=(0.0, largest / 2.0), **asked)


def hooked():
    model = mlp(4, 6, 3)
    model.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    return model


@pytest.mark.parametrize(
    ("model", "space", "rule"),
    [
        (mlp(4, 6, 3), "layer:7", "there is no '7'; there are 0, 1, 2"),
        (mlp(4, 6, 3), "layer:0.weight", "a chain around that layer .*, got Linear"),
        (mlp(4, 6, 3), "layer:", "space must be one of representation, input, layer:NAME"),
        (mlp(4, 6, 3), "layer:.", "there is no ''"),
        (nn.Linear(4, 3), "layer:0", "a chain around that layer .*, got Linear"),
        (hooked(), "layer:0", "without hooks"),
        (nn.Sequential(nn.Flatten(), hooked()), "layer:1.0", "without hooks"),
    ],
)
def test_no_such_layer_is_refused_with_the_names_there_are(model, space, rule):
    x, y = np.zeros((3, 4), dtype=np.float32), np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match=rule):
        curves_of(model, x, y, loss="zero_one", order=1, space=space)


@pytest.mark.parametrize("front", [Pair(), nn.Flatten(start_dim=0), nn.Softmax(dim=1)])
def test_a_layer_that_returns_no_finite_features_is_refused(front):
    x = torch.full((3, 4), torch.inf)
    with pytest.raises(RefusedError, match="finite features"):
        points_at(front, x)


@pytest.mark.parametrize("extra", [{"head": "2"}, {"box": (1.0, 0.0)}, {"distances": (0.0,)}, {"adversary": "exact"}])
def test_what_a_layer_has_not_is_refused(extra):
    model = mlp(4, 6, 3)
    x, y = examples(model, 4)
    with pytest.raises(ValueError, match="must be"):
        curves_of(model, x, y, loss="zero_one", order=1, space="layer:1", **extra)
