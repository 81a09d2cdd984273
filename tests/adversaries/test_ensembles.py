"""Ensembles: never weaker than their parts, exact where the model is linear, and nobody is lost by discarding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from riskband.adversaries.attacks import ensembles
from riskband.adversaries.attacks.ensembles import A3, A3PlusPlus, InOrder
from riskband.adversaries.attacks.witness import Witness
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


@pytest.mark.parametrize("name", ["apgd-ce", "apgd-dlr", "a3", "a3++"])
@pytest.mark.parametrize("norm", ["l2", "linf", pytest.param("l1", marks=pytest.mark.slow)])
def test_on_a_linear_model_what_stands_is_what_stands(name, norm):
    """Three classes, the third far below: the DLR objective needs one."""
    model, weight, bias, x, y = problem(seed=3, num_examples=30, num_features=6, num_classes=3)
    with torch.no_grad():
        head = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
        head.bias[2] -= 60.0
    bias = bias - np.array([0.0, 0.0, 60.0])
    y = y % 2
    exact = flip_distances(weight, bias, x, y, norm)
    distance = float(np.median(exact[exact > 0.0]))
    batch = batch_of(model, torch.from_numpy(x), y)
    build = builder(name)
    for share in (1.0 + 1e-4, 1.0 - 1e-4):
        radius = distance * share
        counts = {"num_restarts": 3} if name.startswith("a3") else {}
        found = found_by(build, model, batch, norm=norm, distances=(radius,), box=None, **counts)
        assert np.array_equal(found.numpy() <= radius, exact <= radius)


def test_autoattack_is_exact_on_a_linear_model():
    model, weight, bias, x, y = problem(seed=3, num_examples=15, num_features=6, num_classes=4)
    exact = flip_distances(weight, bias, x, y, "linf")
    radius = float(np.median(exact)) * 1.0001
    asked = input_problem("zero_one", 1, "linf", distances=(radius,))
    found = short_autoattack(model, asked).examine(batch_of(model, torch.from_numpy(x), y)).flip_costs
    assert np.array_equal(found.numpy() <= radius, exact <= radius)


@pytest.mark.parametrize("kind", [A3, A3PlusPlus])
def test_a_further_restart_never_loses_a_misclassified_point(kind):
    net, batch = trained_like_batch()
    radius = DISTANCES["linf"]
    few, many = (found_by(kind, net, batch, norm="linf", distances=(radius,), num_restarts=count) for count in (1, 4))
    assert bool((many <= few).all())
    assert int(torch.isfinite(many).sum()) > 0


def test_discarded_examples_stand_and_only_the_nearest_go_on(monkeypatch):
    """One example goes on at a time; the rest, never attacked again, are reported as standing."""
    monkeypatch.setattr(ensembles, "_FEWEST", 1)
    monkeypatch.setattr(ensembles, "_FEW", 0.0)
    net, batch = trained_like_batch(num_examples=30)
    radius = 0.4 * DISTANCES["l2"]
    asked = input_problem("zero_one", 1, "l2", box=BOX, distances=(radius,))
    witness = Witness(net, batch, asked)
    attack = A3(net, asked, num_restarts=5)
    attack.perturb(witness)
    standing = torch.isinf(witness.distances)
    assert 0 < int(standing.sum()) < 30
    kept = ensembles._nearest(witness, 0.1)
    assert len(kept) == max(1, int(0.1 * int(standing.sum())))
    assert witness.highest[kept].min() >= witness.highest[standing].sort(descending=True).values[len(kept) - 1]
    curve = curves_of_batch(A3, net, batch, asked, num_restarts=5)
    assert curve == pytest.approx(1.0 - float(standing.double().mean()))


def curves_of_batch(kind, net, batch, asked, **counts):
    return float(kind(net, asked, **counts).curves([batch]).lower.values[-1])


@pytest.mark.parametrize("name", ["a3", "a3++"])
def test_the_same_seed_gives_the_same_bytes_and_another_batch_other_starts_only(name):
    net, batch = trained_like_batch()
    kind = {"a3": A3, "a3++": A3PlusPlus}[name]
    first, again = (found_by(kind, net, batch, norm="l2", distances=(0.35,), num_restarts=3) for _ in range(2))
    assert torch.equal(first, again)
    # Two restarts learn nothing from the others: but for rounding the batch does not matter.
    parts = [batch_of(net, batch.x[rows], batch.labels[rows]) for rows in (slice(0, 15), slice(15, 40))]
    problem_asked = input_problem("zero_one", 1, "l2", box=BOX, distances=(0.35,))
    whole = kind(net, problem_asked, num_restarts=2).curves([batch]).lower.values[-1]
    split = kind(net, problem_asked, num_restarts=2).curves(parts).lower.values[-1]
    assert whole == pytest.approx(split, abs=1.5 / len(batch.x))


def test_starts_follow_what_misclassified():
    learned = ensembles._Learned(label=1.0, rival=-2.0)
    net, batch = trained_like_batch(num_examples=5)
    witness = Witness(net, batch, input_problem("zero_one", 1, "linf", box=BOX))
    drawn = torch.full((5, 10), 0.5)
    assert bool((learned.weights(witness, drawn, 1) == 0.0).all())  # random, whatever was learned
    weights = learned.weights(witness, drawn, 2)
    rows = torch.arange(5)
    torch.testing.assert_close(weights[rows, batch.labels], torch.full((5,), 0.2).double())  # U(-.1, .5) in the middle
    torch.testing.assert_close(weights[rows, witness.rivals[0]], torch.full((5,), -0.8).double())
    weights = learned.weights(witness, drawn, 3)  # the next rival
    torch.testing.assert_close(weights[rows, witness.rivals[1]], torch.full((5,), -0.8).double())
    learned.is_quick = True
    assert bool((learned.weights(witness, drawn, 11)[rows, batch.labels] == 0.0).all())


def test_steps_fall_from_the_radius():
    short, long = torch.tensor(ensembles._sizes(8)), torch.tensor(ensembles._sizes(60))
    assert short[0] == long[0] == 1.0
    assert bool((short.diff() < 0.0).all())
    assert 0.1 < short[-1] < 0.25
    assert 0.001 < long[-1] < 0.01


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
