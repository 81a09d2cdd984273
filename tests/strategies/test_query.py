"""One honest question to a network in which everything that can go wrong does: what is believed, and of whom."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from protocol.codec import num_bytes
from protocol.questions import AdversarialAnswer, Candidate, CandidatesAnswer, CandidatesQuery
from riskband.flower.testing import node_unavailable
from strategies.asking import replies
from strategies.asking.failures import Node, node_hash
from strategies.asking.query import FailureReason
from strategies.asking.replies import answer_check, read_reply
from tests.strategies.network import (
    ARRAYS,
    NUM_CLIENTS,
    QUERY,
    ask,
    claiming,
    error_reply,
    everyone_but,
    expected_answer,
    late,
    names,
    network,
    raising,
    reasons,
    replying,
    silent,
    strategy,
    twice,
)
from tests.transport import adversarial_query

pytestmark = pytest.mark.usefixtures("idle_clock")  # what Flower loads at its first error takes seconds


def test_an_honest_network_is_heard_completely():
    outcome = ask()
    assert outcome.answers == tuple(expected_answer(k) for k in range(NUM_CLIENTS))
    assert outcome.failures == ()
    assert outcome.num_asked == NUM_CLIENTS


@pytest.mark.guard
@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"risk": math.nan}, "not-finite"),
        ({"risk": math.inf}, "not-finite"),
        ({"risk": -0.1}, "out-of-range"),
        ({"risk": 1.1}, "out-of-range"),
        ({"num_examples": 0}, "no-examples"),
        ({"num_examples": -10}, "no-examples"),
        # Client 3 measured 3 errors in 10; 0.3 of 7 or of 101 examples is no whole number of errors.
        ({"num_examples": 7}, "impossible-count"),
        ({"num_examples": 101}, "impossible-count"),
        ({"risk": 0.35}, "impossible-count"),
        ({"loss": "brier"}, "wrong-loss"),
        ({"model_hash": "0" * 64}, "wrong-model"),
        ({"code_hash": "0" * 64}, "wrong-code"),
        ({"code_hash": "0" * 64, "risk": math.nan}, "wrong-code"),
    ],
)
def test_a_claim_that_cannot_be_true_is_refused_and_named(claims, reason):
    outcome = ask({3: claiming(**claims)})
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [("client-00003", reason)]


def test_any_risk_in_range_is_possible_for_a_loss_that_is_not_binary():
    brier = dataclasses.replace(QUERY, loss="brier")
    outcome = strategy().ask(network({3: claiming(risk=0.35, num_examples=7)}), brier, ARRAYS)
    assert outcome.answers[3].risk == 0.35
    assert outcome.failures == ()


@given(num_examples=st.integers(1, 10**7), data=st.data())
def test_every_honest_zero_one_risk_passes_the_count_check(num_examples, data):
    num_errors = data.draw(st.integers(0, num_examples))
    answer = dataclasses.replace(expected_answer(0), risk=num_errors / num_examples, num_examples=num_examples)
    check = answer_check(QUERY, answer.model_hash, answer.code_hash, expected_client_ids=None)
    assert check.failure(answer) is None


@pytest.mark.guard
@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (lambda content: content.pop("answer"), None),
        (lambda content: content["answer"].update({"more": 1}), "client-00003"),
        (lambda content: content["answer"].pop("risk"), "client-00003"),
        (lambda content: content["answer"].update({"risk": 0}), "client-00003"),
        (lambda content: content["answer"].update({"risk": [0.3]}), "client-00003"),
        (lambda content: content["answer"].update({"num-examples": 10.0}), "client-00003"),
        (lambda content: content["answer"].update({"client-id": ""}), None),
        (lambda content: content["answer"].update({"client-id": 3}), None),
        (lambda content: content["answer"].update({"client-id": "evil\nname"}), None),
        (lambda content: content["answer"].update({"client-id": "x" * 101}), None),
        (lambda content: content["answer"].update({"protocol-version": 0}), "client-00003"),
        (lambda content: content.clear(), None),
        (lambda content: content.update({"answer": ConfigRecord({"risk": 0.3})}), None),
        (lambda content: content.update({"answer": MetricRecord({"protocol-version": 1})}), None),
    ],
)
def test_a_reply_that_breaks_the_protocol_is_refused(edit, name):
    grid = network({3: replying(edit)})
    outcome = strategy().ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [(name, "malformed")]
    assert outcome.failures[0].node == node_hash(list(grid.get_node_ids())[3])


@pytest.mark.guard
@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.update({"more": ConfigRecord({"x": ["ab"] * 5000})}),
        lambda content: content.update({"more": ConfigRecord({"x" * 10_000: 1})}),
        lambda content: content.update({"more": MetricRecord({"x": [1] * 2000})}),
        lambda content: content.update({"more": ArrayRecord({"w": Array(np.zeros(1000))})}),
        lambda content: content["answer"].update({"risk": [0.3] * 100_000}),
        lambda content: content["answer"].update({"loss": "z" * 10_000}),
    ],
)
def test_a_reply_larger_than_its_question_allows_is_refused_alone(edit):
    outcome = ask({3: replying(edit)})
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [("client-00003", "too-large")]
    assert re.search(r"must have at most \d+ bytes, got \d{4,}$", outcome.failures[0].detail)


def test_arrays_of_a_reply_that_is_too_large_are_not_read(monkeypatch):
    monkeypatch.setattr(Array, "numpy", lambda array: pytest.fail("an array was read"))
    monkeypatch.setattr(replies, "decode_answer", lambda content, kind: pytest.fail("the answer was read"))
    check = answer_check(QUERY, "", "", None)
    content = RecordDict({"w": ArrayRecord({"w": Array(np.zeros(1000))})})
    message = Message(RecordDict(), 2, "query.loss")
    assert read_reply(Message(content, reply_to=message), check, Node(2)).reason == "too-large"


@pytest.mark.parametrize("num_values", [1, 10, 10_000])
def test_the_limit_grows_with_the_question_and_every_honest_answer_is_below_it(num_values):
    grid = tuple(np.linspace(0.0, 1.0, num_values).tolist())
    query = adversarial_query("zero_one", "tiny", (3,), 2, order=1, radii=grid, multipliers=grid)
    candidates = tuple(Candidate(str(k), 0, "abstain:0.123456789") for k in range(num_values))
    name, values = "x" * 100, (0.1,) * num_values
    rest = {"client_id": name, "group": name, "num_examples": 2**53, "code_hash": "0" * 64, "model_hash": "0" * 64}
    asked = CandidatesQuery("tiny", (3,), 2, candidates)
    answers = {
        query: AdversarialAnswer(
            clean_risk=0.1,
            values_lower=values,
            values_upper=values,
            conjugates_lower=values,
            conjugates_upper=values,
            adversarial_unit=0.1,
            guarantee="exact",
            loss="zero_one",
            budget_left=2**62,
            **rest,
        ),
        asked: CandidatesAnswer(risks=values, loss=asked.loss, budget_left=2**62, **rest),
    }
    for question, answer in answers.items():
        size, limit = num_bytes(wire.encode_answer(answer)), answer_check(question, "", "", None).max_bytes
        assert size <= limit <= size + 5000


def test_a_client_that_raises_is_a_failure_with_its_text_on_one_printable_line():
    (failure,) = ask({3: raising}).failures
    assert (failure.client_id, failure.reason) == (None, FailureReason.CLIENT_RAISED)
    assert "no such file" in failure.detail
    assert "KeyError" in failure.detail
    assert failure.detail.isprintable()


def test_a_long_error_text_keeps_its_end():
    def shouting(message, answer):
        raise RuntimeError("traceback " * 10_000 + "the reason")

    (failure,) = ask({3: shouting}).failures
    assert len(failure.detail) <= 300
    assert failure.detail.startswith("Flower's error 2")
    assert failure.detail.endswith("the reason'>")


@pytest.mark.guard
@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (node_unavailable, "node-unavailable"),
        (error_reply(8), "client-crashed"),
        (error_reply(1), "flower-error"),
        (error_reply(0), "flower-error"),
    ],
)
def test_flowers_errors_keep_their_meaning(behaviour, reason):
    outcome = ask({3: behaviour})
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [(None, reason)]


def test_a_late_answer_before_the_deadline_counts():
    assert names(ask({3: late(20), 7: late(50)})) == everyone_but()


@pytest.mark.usefixtures("idle_clock")
def test_a_client_that_never_answers_is_given_up_at_the_deadline():
    outcome = ask({3: silent}, reply_timeout=1.0)
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [(None, "no-reply")]


@pytest.mark.usefixtures("idle_clock")
def test_an_answer_after_the_deadline_does_not_leak_into_the_next_round():
    asking, grid = strategy(reply_timeout=1.0), network({3: late(10**6)})
    first = asking.ask(grid, QUERY, ARRAYS)
    second = asking.ask(grid, dataclasses.replace(QUERY, loss="brier"), ARRAYS, round=2)
    assert names(first) == names(second) == everyone_but(3)
    assert {answer.loss for answer in second.answers} == {"brier"}


def test_repeating_the_same_answer_changes_nothing():
    received = []
    outcome = ask({3: twice(claiming(), claiming())}, on_answer=lambda query, answer, node_id: received.append(answer))
    assert names(outcome) == everyone_but()
    assert sorted(answer.client_id for answer in received) == everyone_but()


@pytest.mark.parametrize("second", [claiming(risk=0.9), claiming(risk=math.nan), error_reply(8)])
def test_two_different_answers_to_one_message_are_both_refused(second):
    outcome = ask({3: twice(claiming(), second)})
    assert names(outcome) == everyone_but(3)
    assert [failure.reason for failure in outcome.failures] == [FailureReason.CHANGED_ANSWER]


def test_a_stolen_client_id_refuses_thief_and_victim_by_name():
    outcome = ask({3: claiming(client_id="client-00005")})
    assert names(outcome) == everyone_but(3, 5)
    assert reasons(outcome) == [("client-00005", "claimed-twice")] * 2


def test_the_same_answer_under_one_name_from_two_nodes_is_still_a_stolen_name():
    outcome = ask({3: claiming(client_id="client-00005", risk=0.5)})
    assert names(outcome) == everyone_but(3, 5)


def test_a_name_is_in_doubt_even_if_the_thiefs_answer_is_refused_for_something_else():
    outcome = ask({3: claiming(client_id="client-00005", risk=math.nan)})
    assert names(outcome) == everyone_but(3, 5)
    assert reasons(outcome) == [(None, "not-finite"), ("client-00005", "claimed-twice")]
    assert outcome.failures[0].claimed_name == "client-00005"


def test_a_name_given_in_one_of_two_different_answers_is_in_doubt_too():
    outcome = ask({3: twice(claiming(), claiming(client_id="client-00005"))})
    assert names(outcome) == everyone_but(3, 5)
    assert reasons(outcome) == [(None, "changed-answer"), ("client-00005", "claimed-twice")]


def test_an_unknown_client_is_refused_when_the_names_are_known():
    expected = frozenset(everyone_but())
    outcome = ask({3: claiming(client_id="client-99999")}, expected_client_ids=expected)
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [("client-99999", "unknown-client")]


def test_any_name_is_welcome_when_the_names_are_not_known():
    assert "client-99999" in names(ask({3: claiming(client_id="client-99999")}))
