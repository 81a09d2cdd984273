"""The two sides of a client's answers, for networks drawn at random: their order, and what is made of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protocol.questions import AdversarialAnswer, AdversarialQuery
from riskband.adversaries.answers import without_gradient
from riskband.adversaries.registry import adversarial_curves
from riskband.answers.adversarial import GUARANTEES
from strategies.asking.replies import RoundOutcome
from strategies.asking.rules import broken_curve_rules
from strategies.wasserstein import reached_answers, usable_answers
from tests.transport import adversarial_query, changed

RADII, MULTIPLIERS = (0.0, 0.05, 0.2, 1.0), (0.1, 1.0, 10.0)


def query(**changes: Any) -> AdversarialQuery:
    asked: dict[str, Any] = {"order": 1, "norm": "l2", "space": "input", "adversary": "sandwich"} | changes
    return adversarial_query("zero_one", "mlp", (3,), 3, radii=RADII, multipliers=MULTIPLIERS, **asked)


def answer_of(model: nn.Module, x: np.ndarray, y: np.ndarray, asked: AdversarialQuery) -> AdversarialAnswer:
    curves = adversarial_curves(model, x, y, asked.problem, multipliers=asked.multipliers)
    numbers = dataclasses.asdict(curves.at(asked.radii, asked.multipliers))
    return AdversarialAnswer(client_id="a", loss=asked.loss, code_hash="c", model_hash="m", **numbers)


def drawn(seed: int) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    rng = np.random.default_rng(seed)
    return model, rng.uniform(size=(5, 3)).astype(np.float32), rng.integers(3, size=5)


def outcome_of(*answers: AdversarialAnswer) -> RoundOutcome[AdversarialAnswer]:
    return RoundOutcome(answers=answers, failures=(), num_asked=len(answers))


@settings(max_examples=settings().max_examples // 8)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(1, "l1"), (1, "l2"), (1, "linf"), (2, "l2")]),
    st.sampled_from([None, (0.0, 1.0)]),
)
def test_what_was_reached_is_never_above_what_is_proved(seed: int, cost: tuple[int, str], box: Any) -> None:
    asked = query(order=cost[0], norm=cost[1], box=box, seed=seed, adversary="sandwich:min-norm")
    answer = answer_of(*drawn(seed), asked)
    assert np.all(np.array(answer.values_lower) <= answer.values_upper)
    assert np.all(np.array(answer.conjugates_lower) <= answer.conjugates_upper)
    assert answer.guarantee == "upper"
    assert list(broken_curve_rules(answer, asked)) == []
    outcome = outcome_of(answer, answer)
    above = usable_answers(outcome, asked, missing="ignore", contamination=0)
    below = reached_answers(outcome, asked, missing="ignore", contamination=0)
    assert above.guarantee == "upper"
    np.testing.assert_array_equal(above.values, [answer.values_upper] * 2)
    if below is not None:
        assert below.guarantee == "lower"
        assert np.all(below.values <= above.values)
        assert below.conjugates is not None
        assert above.conjugates is not None
        assert np.all(below.conjugates <= above.conjugates)


def made_up(guarantee: str, *, reached: float = 0.5, proved: float = 0.9) -> AdversarialAnswer:
    lower = (0.1, *(min(0.1 + reached * radius, 1.0) for radius in RADII[1:]))
    upper = (0.1, *(min(0.1 + proved * radius, 1.0) for radius in RADII[1:]))
    numbers = (10, 0.1, lower, upper, (0.6, 0.1, 0.1), (0.9, 0.1, 0.1), 2.0, guarantee)
    return AdversarialAnswer(*numbers, client_id="a", loss="zero_one", code_hash="", model_hash="")


@pytest.mark.parametrize(
    ("answers", "has_two_sides"),
    [
        ([made_up("upper"), made_up("upper")], True),
        ([made_up("upper"), made_up("exact", proved=0.5)], True),
        ([made_up("upper in expectation")] * 2, True),
        ([made_up("upper"), made_up("lower")], False),
        ([made_up("lower"), made_up("lower")], False),
        ([made_up("exact", proved=0.5)] * 2, False),
        ([made_up("upper", reached=0.0)] * 2, False),  # a bound alone
        ([made_up("upper", reached=0.0), made_up("upper")], True),
    ],
)
def test_there_are_two_sides_if_something_was_reached_and_all_was_proved(
    answers: list[AdversarialAnswer], has_two_sides: bool
) -> None:
    outcome, asked = outcome_of(*answers), query()
    found = reached_answers(outcome, asked, missing="ignore", contamination=0)
    assert (found is not None) == has_two_sides
    weakest = max((answer.guarantee for answer in answers), key=GUARANTEES.index)
    usable = usable_answers(outcome, asked, missing="worst", contamination=1)
    assert (usable.guarantee, usable.missing, usable.contamination) == (weakest, "worst", 1)
    believed = [a.conjugates_lower if a.guarantee == "lower" else a.conjugates_upper for a in answers]
    np.testing.assert_array_equal(usable.conjugates, believed)


def test_the_box_is_named_where_it_limits_the_statement() -> None:
    outcome, asked = outcome_of(made_up("upper"), made_up("upper")), query(box=(0.0, 1.0))
    settings = {"missing": "ignore", "contamination": 0}
    assert usable_answers(outcome, asked, **settings).cost == "order 1, l2 distance, in input space"
    found = reached_answers(outcome, asked, **settings)
    assert found is not None
    assert found.cost == "order 1, l2 distance, in input space, inputs in [0, 1]"
    attacked = outcome_of(made_up("lower"), made_up("lower"))
    assert usable_answers(attacked, asked, **settings).cost == found.cost


def test_an_estimate_says_at_how_many_examples_its_attacks_were_blind_and_a_certificate_does_not() -> None:
    settings = {"missing": "ignore", "contamination": 0}
    blind, seeing = (dataclasses.replace(made_up("lower"), num_without_gradient=count) for count in (3, 0))
    assert list(broken_curve_rules(blind, query(adversary="pgd"))) == []
    words = "; attacks found no gradient to follow, or a misleading one, at 3 of 20 examples"
    assert usable_answers(outcome_of(blind, seeing), query(), **settings).cost.endswith(words)
    assert "gradient" not in usable_answers(outcome_of(seeing, seeing), query(), **settings).cost
    assert without_gradient([made_up("lower")]) is None
    proved = outcome_of(*[dataclasses.replace(made_up("upper"), num_without_gradient=3)] * 2)
    assert "gradient" not in usable_answers(proved, query(), **settings).cost
    found = reached_answers(proved, query(), **settings)
    assert found is not None
    assert found.cost.endswith("at 6 of 20 examples")


def test_an_estimate_says_of_how_many_clients_the_model_was_unsteady_and_nothing_of_it_may_be_proved() -> None:
    settings = {"missing": "ignore", "contamination": 0}
    unsteady, proved = (dataclasses.replace(made_up(guarantee), is_unsteady=True) for guarantee in ("lower", "upper"))
    assert list(broken_curve_rules(unsteady, query(adversary="pgd"))) == []
    cost = usable_answers(outcome_of(unsteady, made_up("lower")), query(), **settings).cost
    assert "for 1 of 2 clients the model is random or its logits depend on the batch" in cost
    ((reason, words),) = broken_curve_rules(proved, query(adversary="lipschitz"))
    assert reason.value == "contradiction"
    assert "unsteady" in words


def test_an_answer_about_a_layer_says_so() -> None:
    asked, settings = query(space="layer:1", box=(0.0, 9.0)), {"missing": "ignore", "contamination": 0}
    outcome = outcome_of(*[answer_of(*drawn(seed), asked) for seed in (1, 2)])
    assert usable_answers(outcome, asked, **settings).cost == "order 1, l2 distance, at the output of layer 1"
    found = reached_answers(outcome, asked, **settings)
    assert found is not None
    assert found.cost == "order 1, l2 distance, at the output of layer 1, outputs in [0, 9]"


@pytest.mark.guard
@pytest.mark.parametrize("space", ["input", "layer:1"])
@pytest.mark.parametrize(
    ("loss", "adversary", "strongest"),
    [
        ("zero_one", "auto", "upper"),
        ("zero_one", "sandwich:pgd", "upper"),
        ("zero_one", "sandwich:foolbox:L2PGD", "upper"),
        ("abstain:0.8", "auto", "lower"),
        ("zero_one", "pgd", "lower"),
        ("zero_one", "foolbox:L2PGD", "lower"),
    ],
)
def test_no_answer_may_claim_more_than_its_adversary_can_prove(
    space: str, loss: str, adversary: str, strongest: str
) -> None:
    asked = changed(query(space=space, adversary=adversary), loss=loss)
    for guarantee in ("exact", "upper", "lower"):
        found = broken_curve_rules(made_up(guarantee), asked)
        broken = [detail for reason, detail in found if reason.value == "contradiction" and " gives " in detail]
        assert bool(broken) == (GUARANTEES.index(guarantee) < GUARANTEES.index(strongest))


@pytest.mark.parametrize(
    ("settings", "accepted"),
    [
        ({"space": "representation", "order": 1}, {"exact"}),
        ({"space": "representation", "order": 1, "adversary": "ascent", "loss": "brier"}, {"upper"}),
        ({"space": "input"}, {"upper"}),
        ({"space": "layer:1"}, {"upper"}),
        ({"space": "input", "model": "tests.transport:not_understood"}, {"lower"}),
        ({"space": "layer:1", "model": "tests.transport:not_understood"}, {"upper"}),  # what follows is understood
        ({"space": "input", "model": "tests.transport:not_understood", "adversary": "lipschitz"}, {"upper"}),
        ({"space": "input", "model": "not_here:Net"}, {"upper", "lower"}),
        ({"space": "input", "adversary": "pgd"}, {"lower"}),
        ({"space": "input", "adversary": "smoothing:0.25"}, {"upper in expectation"}),
    ],
)
def test_an_answer_has_the_guarantee_of_the_adversary_that_was_asked_for(
    settings: dict[str, Any], accepted: set[str]
) -> None:
    asked = changed(query(adversary="auto"), **settings)
    broken = {
        guarantee: any(" gives " in detail for _, detail in broken_curve_rules(made_up(guarantee), asked))
        for guarantee in GUARANTEES
    }
    assert {guarantee for guarantee, is_broken in broken.items() if not is_broken} == accepted
