"""What "auto" chooses, and sandwiches by name: the same wherever `adversarial_curves` is called, library or client."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from riskband.adversaries.names import INPUT_ADVERSARIES, NORMS, REPRESENTATION_ADVERSARIES, SLOPED_LOSSES
from riskband.adversaries.norms import EXPONENTS
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import _BEFORE_HEAD, BUILDERS, builder
from riskband.adversaries.representation.growth import GROWTHS
from riskband.checks import RefusedError
from tests.adversaries.nets import mlp
from tests.adversaries.test_spaces import Squared, examples
from tests.transport import curves_of, input_problem

RADII = [0.0, 0.05, 0.3, 1.0]
CHAIN = mlp(4, 6, 3, seed=1)
UNKNOWN = nn.Sequential(Squared(), mlp(4, 6, 3, seed=1))


@pytest.mark.parametrize(
    ("model", "space", "loss", "same_as"),
    [
        (CHAIN, "input", "zero_one", "sandwich"),
        (CHAIN, "layer:1", "cross_entropy", "sandwich"),
        (CHAIN, "input", "abstain:0.8", "wda-knapsack"),  # no bound is known for the loss
        (UNKNOWN, "input", "zero_one", "wda-knapsack"),  # nor for a layer
        (UNKNOWN, "layer:0", "zero_one", "sandwich"),  # which does not matter when it comes before what moves
    ],
)
def test_it_is_the_sandwich_where_a_bound_is_known_and_else_the_strongest_attack(model, space, loss, same_as):
    x, y = examples(model, 4)
    asked = {"loss": loss, "order": 1, "space": space}
    chosen, named = (curves_of(model, x, y, adversary=name, **asked) for name in ("auto", same_as))
    assert chosen.guarantee == named.guarantee == ("upper" if same_as == "sandwich" else "lower")
    np.testing.assert_array_equal(chosen.values(RADII), named.values(RADII))
    # What a server may expect: never less than what a client can find out.
    assert chosen.guarantee in ("lower", TransportProblem(loss, 1, space=space).best_guarantee)


def test_it_is_the_attack_where_a_pool_gets_no_channels():
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    x = np.random.default_rng(0).normal(size=(10, 8, 8)).astype(np.float32)
    asked = {"loss": "zero_one", "order": 1, "space": "input"}
    y = np.arange(10) % 3
    chosen, attack = (curves_of(model, x, y, adversary=name, **asked) for name in ("auto", "wda-knapsack"))
    assert chosen.guarantee == "lower"
    np.testing.assert_array_equal(chosen.values(RADII), attack.values(RADII))
    with pytest.raises(RefusedError, match="MaxPool2d must get images"):
        curves_of(model, x, y, adversary="lipschitz", **asked)


def test_every_name_has_a_builder_and_every_loss_with_slopes_its_growth():
    assert BUILDERS.keys() == INPUT_ADVERSARIES.keys()
    assert set(REPRESENTATION_ADVERSARIES) == _BEFORE_HEAD.keys()
    assert set(SLOPED_LOSSES) == GROWTHS.keys()
    assert set(NORMS) == EXPONENTS.keys()


@pytest.mark.parametrize("name", list(INPUT_ADVERSARIES))
def test_nothing_to_look_at_is_an_error_in_the_same_words(name):
    adversary = builder(name)(CHAIN, input_problem("zero_one", 1, "l2"))
    with pytest.raises(RuntimeError, match="must give one guarantee"):
        adversary.curves([])


ENSEMBLES = ("autoattack",)
ATTACKS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in ENSEMBLES))
    for name, kind in INPUT_ADVERSARIES.items()
    if not kind.proves
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_sandwich_is_named_with_the_attack_below(attack):
    x, y = examples(CHAIN, 4)
    asked = {"loss": "margin", "order": 1, "space": "input", "seed": 2, "distances": (0.3,)}
    names = (f"sandwich:{attack}", attack, "lipschitz")
    joined, below, above = (curves_of(CHAIN, x, y, adversary=name, **asked) for name in names)
    np.testing.assert_array_equal(joined.values(RADII)[0], below.values(RADII)[0])
    np.testing.assert_array_equal(joined.values(RADII)[1], above.values(RADII)[1])
    assert joined.adversarial_unit == below.adversarial_unit


@pytest.mark.slow
def test_without_a_name_below_it_is_the_strongest():
    x, y = examples(CHAIN, 4)
    asked = {"loss": "zero_one", "order": 1, "space": "input"}
    found = [curves_of(CHAIN, x, y, adversary=f"sandwich{name}", **asked) for name in ("", ":wda-knapsack")]
    np.testing.assert_array_equal(*[curves.values(RADII) for curves in found])


@pytest.mark.parametrize(
    ("adversary", "space", "rule"),
    [
        ("sandwich:", "input", "adversary must be one of auto, .*sandwich:ATTACK, .*got 'sandwich:'"),
        ("sandwich:ATTACK", "input", "got 'sandwich:ATTACK'"),
        ("sandwich:lipschitz", "input", "got 'sandwich:lipschitz'"),
        ("sandwich:sandwich:pgd", "layer:1", "got 'sandwich:sandwich:pgd'"),
        pytest.param("sandwich:" * 2000, "input", "got 'sandwich:sandwich:", id="thousands"),
        ("sandwich:auto", "layer:1", "got 'sandwich:auto'"),
        ("sandwich:pgd", "representation", "adversary must be one of auto, exact, ascent, got"),
    ],
)
def test_only_an_attack_goes_below(adversary, space, rule):
    x, y = examples(CHAIN, 4)
    with pytest.raises(ValueError, match=rule):
        curves_of(CHAIN, x, y, loss="zero_one", order=1, adversary=adversary, space=space)


def test_a_sandwich_that_was_named_is_refused_where_no_bound_is_known():
    x, y = examples(UNKNOWN, 4)
    with pytest.raises(RefusedError, match="in the forward of Squared at '0'"):
        curves_of(UNKNOWN, x, y, loss="zero_one", order=1, adversary="sandwich:pgd", space="input")
    with pytest.raises(RefusedError, match="bounds are known for the losses"):
        curves_of(CHAIN, x, y, loss="abstain:0.8", order=1, adversary="sandwich:pgd", space="input")
