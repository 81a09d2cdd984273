"""A3: exact where the model is linear, restarts lose nothing, and nobody is lost by discarding."""

from __future__ import annotations

import pytest
import torch

from papers.robustness import a3
from papers.robustness.a3 import A3, A3PlusPlus
from riskband.adversaries.attacks.witness import Witness
from tests.adversaries.nets import batch_of
from tests.adversaries.test_ensembles import (
    BOX,
    DISTANCES,
    check_on_a_linear_model,
    found_by,
    trained_like_batch,
)
from tests.transport import input_problem


@pytest.mark.parametrize("kind", [A3, A3PlusPlus])
@pytest.mark.parametrize("norm", ["l2", "linf", pytest.param("l1", marks=pytest.mark.slow)])
def test_on_a_linear_model_what_stands_is_what_stands(kind, norm):
    check_on_a_linear_model(kind, norm, num_restarts=3)


@pytest.mark.parametrize("kind", [A3, A3PlusPlus])
def test_a_further_restart_never_loses_a_misclassified_point(kind):
    net, batch = trained_like_batch()
    radius = DISTANCES["linf"]
    few, many = (found_by(kind, net, batch, norm="linf", distances=(radius,), num_restarts=count) for count in (1, 4))
    assert bool((many <= few).all())
    assert int(torch.isfinite(many).sum()) > 0


def test_discarded_examples_stand_and_only_the_nearest_go_on(monkeypatch):
    """One example goes on at a time; the rest, never attacked again, are reported as standing."""
    monkeypatch.setattr(a3, "_FEWEST", 1)
    monkeypatch.setattr(a3, "_FEW", 0.0)
    net, batch = trained_like_batch(num_examples=30)
    radius = 0.4 * DISTANCES["l2"]
    asked = input_problem("zero_one", 1, "l2", box=BOX, distances=(radius,))
    witness = Witness(net, batch, asked)
    attack = A3(net, asked, num_restarts=5)
    attack.perturb(witness)
    standing = torch.isinf(witness.distances)
    assert 0 < int(standing.sum()) < 30
    kept = a3._nearest(witness, 0.1)
    assert len(kept) == max(1, int(0.1 * int(standing.sum())))
    assert witness.highest[kept].min() >= witness.highest[standing].sort(descending=True).values[len(kept) - 1]
    curve = curves_of_batch(A3, net, batch, asked, num_restarts=5)
    assert curve == pytest.approx(1.0 - float(standing.double().mean()))


def curves_of_batch(kind, net, batch, asked, **counts):
    return float(kind(net, asked, **counts).curves([batch]).lower.values[-1])


@pytest.mark.parametrize("kind", [A3, A3PlusPlus])
def test_the_same_seed_gives_the_same_bytes_and_another_batch_other_starts_only(kind):
    net, batch = trained_like_batch()
    first, again = (found_by(kind, net, batch, norm="l2", distances=(0.35,), num_restarts=3) for _ in range(2))
    assert torch.equal(first, again)
    # Two restarts learn nothing from the others: but for rounding the batch does not matter.
    parts = [batch_of(net, batch.x[rows], batch.labels[rows]) for rows in (slice(0, 15), slice(15, 40))]
    problem_asked = input_problem("zero_one", 1, "l2", box=BOX, distances=(0.35,))
    whole = kind(net, problem_asked, num_restarts=2).curves([batch]).lower.values[-1]
    split = kind(net, problem_asked, num_restarts=2).curves(parts).lower.values[-1]
    assert whole == pytest.approx(split, abs=1.5 / len(batch.x))


def test_starts_follow_what_misclassified():
    learned = a3._Learned(label=1.0, rival=-2.0)
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
    short, long = torch.tensor(a3._sizes(8)), torch.tensor(a3._sizes(60))
    assert short[0] == long[0] == 1.0
    assert bool((short.diff() < 0.0).all())
    assert 0.1 < short[-1] < 0.25
    assert 0.001 < long[-1] < 0.01
