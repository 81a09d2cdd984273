"""Ensembles: never weaker than their parts, exact where the model is linear, and nobody is lost by discarding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from riskband.adversaries.attacks import ensembles
from riskband.adversaries.attacks.ensembles import InOrder
from riskband.adversaries.registry import builder
from riskband.checks import RefusedError
from tests.adversaries.nets import batch_of, mlp
from tests.adversaries.test_attacks import flip_distances
from tests.adversaries.test_exact import problem
from tests.transport import curves_of, input_problem

BOX = (-1.0, 1.0)
DISTANCES = {"l1": 1.2, "l2": 0.35, "linf": 0.09}


def trained_like_batch(*, num_examples=40):
    net = mlp(20, 60, 60, 10, seed=0)
    x = torch.from_numpy(np.random.default_rng(2).uniform(-1.0, 1.0, (num_examples, 20)).astype(np.float32))
    return net, batch_of(net, x)


def found_by(build, net, batch, *, norm, distances, box=BOX, seed=0, **counts):
    asked = input_problem("zero_one", 1, norm, box=box, distances=distances, seed=seed)
    return build(net, asked, **counts).examine(batch).flip_costs


def check_on_a_linear_model(build, norm, **counts):
    """What falls is what does by the closed form. Three classes, the third far below: the DLR objective needs one."""
    model, weight, bias, x, y = problem(seed=3, num_examples=30, num_features=6, num_classes=3)
    with torch.no_grad():
        head = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
        head.bias[2] -= 60.0
    bias = bias - np.array([0.0, 0.0, 60.0])
    y = y % 2
    exact = flip_distances(weight, bias, x, y, norm)
    distance = float(np.median(exact[exact > 0.0]))
    batch = batch_of(model, torch.from_numpy(x), y)
    for share in (1.0 + 1e-4, 1.0 - 1e-4):
        radius = distance * share
        found = found_by(build, model, batch, norm=norm, distances=(radius,), box=None, **counts)
        assert np.array_equal(found.numpy() <= radius, exact <= radius)


def short_autoattack(net, asked, **counts):
    """The parts of AutoAttack in order, with a tenth of the steps."""
    apgd, targeted, fab, square = ensembles.AUTOATTACK
    parts = [
        lambda net, ball: apgd(net, ball, num_steps=10),
        lambda net, ball: targeted(net, ball, num_steps=30),
        lambda net, ball: fab(net, ball, num_steps=10),
        lambda net, ball: square(net, ball, num_steps=200),
    ]
    return InOrder(net, asked, name="short", parts=parts)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", *(pytest.param(norm, marks=pytest.mark.slow) for norm in ("l1", "l2"))])
def test_in_order_is_never_weaker_than_a_part_at_any_distance_asked(norm):
    net, batch = trained_like_batch()
    distances = (0.6 * DISTANCES[norm], DISTANCES[norm])
    asked = input_problem("zero_one", 1, norm, box=BOX, distances=distances)
    whole = short_autoattack(net, asked).examine(batch).flip_costs
    for part in ensembles.AUTOATTACK:
        alone = part(net, asked, num_steps=10).examine(batch).flip_costs
        for distance in distances:
            assert int((whole <= distance).sum()) >= int((alone <= distance).sum())
    assert 4 <= int((whole <= distances[-1]).sum()) < len(whole)


def test_square_comes_last_and_reaches_where_no_gradient_leads():
    class Rounded(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(torch.round(7 * x) / 7 + 0.0 * x)

    net, _ = trained_like_batch()
    net = Rounded(net)
    x = torch.from_numpy(np.random.default_rng(2).uniform(-1.0, 1.0, (30, 20)).astype(np.float32))
    batch = batch_of(net, x)
    asked = input_problem("zero_one", 1, "linf", box=BOX, distances=(0.2,))
    blind = builder("apgd-ce")(net, asked).examine(batch).flip_costs
    found = short_autoattack(net, asked).examine(batch).flip_costs
    square = builder("square")(net, asked, num_steps=200, num_refinements=0).examine(batch).flip_costs
    assert int((square <= 0.2).sum()) > int((blind <= 0.2).sum())
    assert bool((torch.isfinite(found) >= torch.isfinite(square)).all())  # the same seeds where nothing fell before


@pytest.mark.parametrize("name", ["apgd-ce", "apgd-dlr"])
@pytest.mark.parametrize("norm", ["l2", "linf", pytest.param("l1", marks=pytest.mark.slow)])
def test_on_a_linear_model_what_stands_is_what_stands(name, norm):
    check_on_a_linear_model(builder(name), norm)


def test_autoattack_is_exact_on_a_linear_model():
    model, weight, bias, x, y = problem(seed=3, num_examples=15, num_features=6, num_classes=4)
    exact = flip_distances(weight, bias, x, y, "linf")
    radius = float(np.median(exact)) * 1.0001
    asked = input_problem("zero_one", 1, "linf", distances=(radius,))
    found = short_autoattack(model, asked).examine(batch_of(model, torch.from_numpy(x), y)).flip_costs
    assert np.array_equal(found.numpy() <= radius, exact <= radius)


@pytest.mark.parametrize("name", ["autoattack", "square:5000"])
def test_attacks_within_balls_need_distances(name):
    net, batch = trained_like_batch(num_examples=3)
    with pytest.raises(RefusedError, match="distances must be given for"):
        curves_of(net, batch.x.numpy(), batch.labels.numpy(), loss="zero_one", order=1, space="input", adversary=name)


@pytest.mark.parametrize("name", ["square:", "square:0", "square:-5", "square:1e3", "square:5000000", "square:²"])
def test_a_number_of_queries_that_cannot_be_is_refused(name):
    with pytest.raises(ValueError, match="square must be 'square:QUERIES', a whole number from 1 to 100000"):
        input_problem("zero_one", 1, "l2", adversary=name)


def test_the_published_square_looks_in_the_balls_asked_alone():
    net, batch = trained_like_batch(num_examples=20)
    asked = input_problem("zero_one", 1, "linf", box=BOX, distances=(0.15,), adversary="square:300")
    found = builder("square:300")(net, asked).examine(batch).flip_costs
    here = found[torch.isfinite(found)]
    assert 0 < len(here) < 20
    assert bool((here <= 0.15 * (1.0 + 1e-6)).all())
