"""One message about several candidates: what travels, and what the real ClientApp answers."""

from __future__ import annotations

import dataclasses
import re
from functools import partial

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from protocol.hashes import code_hash, model_hash
from protocol.models import build_model, model_arrays
from protocol.questions import Candidate, CandidatesAnswer, CandidatesQuery, HelloAnswer, HelloQuery
from protocol.weight_sets import joined, packed, separated
from riskband.adversaries.problem import TransportProblem
from riskband.models.evaluation import mean_loss, mean_losses
from riskband.models.losses import LOSSES
from tests.client import test_app
from tests.client.test_app import CONFIG
from tests.protocol.test_wire import sent
from worlds.population import Population, spec_from_config

FIRST, SECOND = (build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=seed) for seed in (1, 2))
MODELS = {
    "plain": (model_arrays(FIRST), "zero_one"),
    "sure": (model_arrays(FIRST), "abstain:0.15"),
    "other": (model_arrays(SECOND), "brier"),
    "again": (model_arrays(FIRST), "brier"),
}
CANDIDATES, ARRAYS = packed(MODELS)
QUERY = CandidatesQuery("mlp", (1, 8, 8), 10, CANDIDATES)


network = partial(test_app.network, num_clients=1)
send = partial(test_app.send, action="query.candidates")


def test_equal_weights_travel_once():
    assert [candidate.weights for candidate in CANDIDATES] == [0, 0, 1, 0]
    assert len(ARRAYS) == 2 * len(model_arrays(FIRST))
    first, second = separated(ARRAYS, num_sets=2)
    for found, model in ((first, FIRST), (second, SECOND)):
        assert model_hash(found) == model_hash(model_arrays(model))


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers(0, 9).map(np.array), max_size=3), max_size=5))
def test_sets_of_weights_come_apart_as_they_were_joined(sets):
    assert separated(joined(sets), num_sets=len(sets)) == tuple(sets)


@pytest.mark.parametrize("name", ["w", "2/w", "-1/w", "00/w", "/w", "a/w"])
def test_an_array_of_no_set_is_refused(name):
    with pytest.raises(ValueError, match="one of 2 sets of weights"):
        separated({"0/w": np.zeros(1), "1/w": np.zeros(1), name: np.zeros(1)}, num_sets=2)


def test_the_hash_covers_all_sets():
    changed = {name: (dict(arrays), loss) for name, (arrays, loss) in MODELS.items()}
    key = next(iter(changed["other"][0]))
    changed["other"][0][key] = changed["other"][0][key] + 1
    assert model_hash(packed(changed)[1]) != model_hash(ARRAYS)


def test_a_query_arrives_as_it_was_sent():
    content = sent(wire.encode_query(QUERY, ARRAYS))
    query, arrays = wire.decode_query(content, CandidatesQuery), wire.decode_weights(content)
    assert query == QUERY
    assert model_hash(arrays) == model_hash(ARRAYS)
    assert wire.message_type(QUERY) == "query.candidates"


@given(
    st.lists(st.floats(), max_size=5).map(tuple),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(0, 2**62),
    st.none() | st.just("north"),
)
def test_an_answer_arrives_as_it_was_sent(risks, num_examples, left, group):
    named = {"client_id": "a", "loss": "brier,margin", "code_hash": "c", "model_hash": "m"}
    answer = CandidatesAnswer(risks=risks, num_examples=num_examples, **named, budget_left=left, group=group)
    assert repr(wire.decode_answer(sent(wire.encode_answer(answer)), CandidatesAnswer)) == repr(answer)


@pytest.mark.parametrize(
    ("candidates", "text"),
    [
        ((), "one or more"),
        ((Candidate("a", 0, "brier"), Candidate("a", 0, "margin")), "names that differ"),
        ((Candidate("a", 1, "brier"),), "numbered 0, 1"),
        ((Candidate("a", 0, "brier"), Candidate("b", 2, "brier")), "numbered 0, 1"),
        ((Candidate("a", -1, "brier"), Candidate("b", 0, "brier")), "numbered 0, 1"),
        ((Candidate("a", 0, "brier,margin"),), "comma"),
    ],
)
def test_candidates_that_cannot_be_asked_are_refused(candidates, text):
    with pytest.raises(ValueError, match=text):
        CandidatesQuery("mlp", (1, 8, 8), 10, candidates)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("candidates-name", ["a"], "must have one entry each, got 1, 4, 4"),
        ("candidates-name", "a", "must be a list of str"),
        ("candidates-weights", [0.0, 0.0, 1.0, 0.0], "must be a list of int"),
        ("candidates-weights", [0, 0, 2, 0], "numbered 0, 1"),
        ("candidates-loss", ["brier"], "must have one entry each, got 4, 4, 1"),
        ("candidates-loss", ["a,b"] * 4, "must not hold a comma"),
        ("loss", "brier", "no other keys than a CandidatesQuery has, got 'loss'"),
        ("protocol-version", 1, "protocol-version must be 3"),
    ],
)
def test_a_query_that_breaks_the_protocol_is_refused(key, value, text):
    content = wire.encode_query(QUERY, ARRAYS)
    content["query"][key] = value
    with pytest.raises(ValueError, match=text):
        wire.decode_query(content, CandidatesQuery)


def test_losses_of_one_pass_are_those_of_one_pass_each():
    examples = Population(spec_from_config(CONFIG)).client(0)
    names = [*LOSSES, "abstain:0.5"]
    found = mean_losses(FIRST, examples.x, examples.y, losses=names, batch_size=7)
    for name in names:
        assert found[name] == mean_loss(FIRST, examples.x, examples.y, loss=name, batch_size=7)[0]


def test_the_answer_is_the_plain_evaluation_of_every_candidate():
    replies = send(network(num_clients=3), wire.encode_query(QUERY, ARRAYS))
    answers = sorted(
        (wire.decode_answer(reply.content, CandidatesAnswer) for reply in replies), key=lambda a: a.client_id
    )
    for k, answer in enumerate(answers):
        examples = Population(spec_from_config(CONFIG)).client(k)
        pairs = [(FIRST, "zero_one"), (FIRST, "abstain:0.15"), (SECOND, "brier"), (FIRST, "brier")]
        assert answer == CandidatesAnswer(
            client_id=f"client-{k:05d}",
            risks=tuple(mean_loss(model, examples.x, examples.y, loss=loss)[0] for model, loss in pairs),
            num_examples=30,
            loss="zero_one,abstain:0.15,brier,brier",
            code_hash=code_hash(),
            model_hash=model_hash(ARRAYS),
        )


def test_an_answer_spends_one_value_for_each_candidate(tmp_path):
    budget = {"query-budget": 9, "query-budget-file": str(tmp_path / "budget.sqlite"), "group": "north"}
    grid = network(node_configs={0: budget})
    content = wire.encode_query(QUERY, ARRAYS)
    for left in (5, 1):
        answer = wire.decode_answer(send(grid, content)[0].content, CandidatesAnswer)
        assert (answer.budget_left, answer.group) == (left, "north")
    assert "got 4 with 1 left" in send(grid, content)[0].error.reason


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ({"a": (MODELS["plain"][0], "accuracy")}, "loss must be one of"),
        ({"a": (MODELS["plain"][0], "abstain:2")}, "must be in [0, 1]"),
        ({"a": ({"weight": np.zeros(2)}, "brier")}, "does not fit"),
        ({"a": MODELS["plain"], "b": ({"weight": np.zeros(2)}, "brier")}, "does not fit"),
    ],
)
def test_a_client_refuses_what_it_cannot_judge(models, text, tmp_path):
    candidates, arrays = packed(models)
    query = dataclasses.replace(QUERY, candidates=candidates)
    budget = {"query-budget": 2, "query-budget-file": str(tmp_path / "budget.sqlite")}
    grid = network(node_configs={0: budget})
    (reply,) = send(grid, wire.encode_query(query, arrays))
    assert reply.error.code == 2
    assert text in reply.error.reason
    (hello,) = grid.send_and_receive(
        [Message(wire.encode_query(HelloQuery()), next(iter(grid.get_node_ids())), "query.hello")]
    )
    assert wire.decode_answer(hello.content, HelloAnswer).budget_left == 2  # a refusal costs nothing


@pytest.mark.parametrize("adversary", ["auto", "ascent", "exact"])
def test_there_is_no_adversary_for_a_model_that_abstains(adversary):
    with pytest.raises(ValueError, match=re.escape("'abstain:0.8'")):
        TransportProblem(loss="abstain:0.8", order=1, norm="l2", adversary=adversary)
