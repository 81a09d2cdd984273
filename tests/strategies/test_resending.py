"""A message lost with its node is sent again when the node is back: in time, not for ever, and counted once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.proto.node_pb2 import NodeInfo

from client.app import app as client_app
from client.budget import QueryBudget
from protocol.models import build_model, model_arrays
from protocol.questions import LossQuery
from riskband.flower.testing import Delivery, InProcessGrid, node_unavailable
from strategies.asking import exchange
from tests.strategies.network import (
    ARRAYS,
    NUM_CLIENTS,
    QUERY,
    app,
    claiming,
    error_reply,
    everyone_but,
    expected_answer,
    name_of,
    names,
    reasons,
    strategy,
)
from tests.strategies.secure_network import run as run_secure

AWAY = 3


class Failing:
    """Node 3 loses its first messages; after each it is away from the next listings of the nodes."""

    def __init__(self, num_lost, *, num_away=5, lose=node_unavailable, client=app, **settings):
        self.num_messages, self.num_listings = 0, 0
        self._num_lost, self._num_away, self._lose = num_lost, num_away, lose
        self._away_until = 0
        outer = self

        class Grid(InProcessGrid):
            def get_node_ids(self):
                outer.num_listings += 1
                here = list(super().get_node_ids())
                return [node for k, node in enumerate(here) if k != AWAY or outer.num_listings >= outer._away_until]

        defaults = {"num_clients": NUM_CLIENTS, "run_config": {}, "behaviours": {AWAY: self._behave}}
        self.grid = Grid(client, **(defaults | settings))

    def _behave(self, message, answer):
        self.num_messages += 1
        if self.num_messages > self._num_lost:
            return [Delivery(answer(message))]
        self._away_until = self.num_listings + 1 + self._num_away
        return self._lose(message, answer)


def patient(**settings):
    return strategy(**({"node_timeout": 2.0} | settings))


@pytest.mark.parametrize("num_lost", [1, exchange.MAX_RESENDS])
def test_a_node_that_comes_back_is_asked_again_and_counted_once(num_lost):
    nodes, received, steps = Failing(num_lost), [], []
    asking = patient(on_answer=lambda query, answer, node_id: received.append(answer), on_progress=steps.append)
    outcome = asking.ask(nodes.grid, QUERY, ARRAYS)
    assert outcome.answers == tuple(expected_answer(k) for k in range(NUM_CLIENTS))
    assert (outcome.failures, outcome.num_asked) == ((), NUM_CLIENTS)
    assert nodes.num_messages == num_lost + 1
    assert sorted(answer.client_id for answer in received) == everyone_but()
    assert (steps[-1].asked, steps[-1].answered, steps[-1].failed) == (NUM_CLIENTS, NUM_CLIENTS, 0)


def test_a_node_that_is_back_before_the_superlink_missed_it_is_asked_again(monkeypatch):
    monkeypatch.setattr(exchange, "_LOOK_INTERVAL", 0.0)
    nodes = Failing(1, num_away=0, lose=lambda message, answer: [])
    nodes.grid.get_nodes = lambda: [
        NodeInfo(node_id=node_id, last_activated_at=str(nodes.num_messages if k == AWAY else 0))
        for k, node_id in enumerate(InProcessGrid.get_node_ids(nodes.grid))
    ]
    outcome = patient(reply_timeout=2.0).ask(nodes.grid, QUERY, ARRAYS)
    assert outcome.answers == tuple(expected_answer(k) for k in range(NUM_CLIENTS))
    assert nodes.num_messages == 2


def test_no_message_is_sent_for_ever():
    nodes = Failing(10**6)
    outcome = patient().ask(nodes.grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(AWAY)
    assert reasons(outcome) == [(None, "node-unavailable")]
    assert nodes.num_messages == 1 + exchange.MAX_RESENDS


def test_a_node_that_stays_away_is_given_up_after_the_node_timeout_and_not_at_the_deadline(idle_clock):
    nodes = Failing(1, num_away=10**9)
    outcome = patient(node_timeout=0.3, reply_timeout=60.0).ask(nodes.grid, QUERY, ARRAYS)
    assert 0.3 <= idle_clock.now < 1.0
    assert reasons(outcome) == [(None, "node-unavailable")]
    assert nodes.num_messages == 1


def test_the_deadline_holds_for_a_node_that_is_away(idle_clock):
    nodes = Failing(1, num_away=10**9)
    outcome = patient(node_timeout=60.0, reply_timeout=0.3).ask(nodes.grid, QUERY, ARRAYS)
    assert 0.3 <= idle_clock.now < 1.0
    assert reasons(outcome) == [(None, "node-unavailable")]


def test_an_answer_to_the_message_that_was_given_up_does_not_count():
    def lost_and_late(message, answer):
        (late,) = claiming(risk=0.9)(message, answer)
        return [*node_unavailable(message, answer), Delivery(late.reply, 3)]

    nodes, received = Failing(1, num_away=20, lose=lost_and_late), []
    asking = patient(on_answer=lambda query, answer, node_id: received.append(answer))
    outcome = asking.ask(nodes.grid, QUERY, ARRAYS)
    assert outcome.answers == tuple(expected_answer(k) for k in range(NUM_CLIENTS))
    assert {answer.risk for answer in received if answer.client_id == "client-00003"} == {0.3}


@pytest.mark.parametrize("code", [2, 5, 8])
def test_an_error_that_does_not_come_from_the_superlink_is_final(code):
    nodes = Failing(10**6, num_away=0, lose=error_reply(code))
    assert names(patient().ask(nodes.grid, QUERY, ARRAYS)) == everyone_but(AWAY)
    assert nodes.num_messages == 1


def test_a_question_by_name_is_sent_again_to_the_same_node():
    nodes = Failing(0)
    asking = patient()
    asking.ask(nodes.grid, QUERY, ARRAYS)
    nodes.num_messages, nodes._num_lost = 0, 1
    outcome = asking.ask_each(nodes.grid, {"client-00003": QUERY, "client-00004": QUERY}, ARRAYS, round=2)
    assert names(outcome) == ["client-00003", "client-00004"]
    assert nodes.num_messages == 2


# What it costs a client that had answered before it was lost.

MODEL = build_model("mlp", x_shape=(2,), num_classes=2, seed=0)


def answered_and_lost(message, answer):
    answer(message)
    return node_unavailable(message, answer)


@pytest.mark.parametrize(
    ("has_record", "privacy", "num_counted"), [(True, "", 1), (False, "", 2), (True, "laplace:1", 1)]
)
def test_an_answer_that_was_lost_costs_nothing_again_only_if_it_is_on_record(
    tmp_path: Path, has_record, privacy, num_counted
):
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(20, 2)), y=np.arange(20) % 2)
    budget = tmp_path / "budget.sqlite"
    own = {"client-id": "a", "data": str(tmp_path / "own.npz"), "query-budget": 9, "query-budget-file": str(budget)}
    if has_record:
        own["answer-record-file"] = str(tmp_path / "record.sqlite")
    if privacy:
        own |= {"privacy-budget": "laplace:1", "privacy-budget-file": str(budget)}  # enough for one answer
    nodes = Failing(
        1,
        lose=answered_and_lost,
        client=client_app,
        num_clients=4,
        run_config={"dataset": "none"},
        node_configs={k: own | {"client-id": f"a{k}"} for k in range(4)},
    )
    query = LossQuery("zero_one", "mlp", (2,), 2, privacy)
    outcome = patient(num_clients=4).ask(nodes.grid, query, model_arrays(MODEL))
    assert names(outcome) == ["a0", "a1", "a2", "a3"]
    assert [QueryBudget(f"a{k}", 9, budget).spent()["loss"] for k in range(4)] == [1, 1, 1, num_counted]


def test_nothing_of_a_secure_histogram_is_sent_again():
    asked = []

    def lost(message, answer):
        asked.append(message.metadata.message_type)
        return node_unavailable(message, answer)

    found, _ = run_secure(6, {AWAY: lost})
    assert asked == ["query.secure_keys"]
    assert [failure.reason.value for failure in found.outcome.failures] == ["node-unavailable"]
    assert name_of(AWAY) not in names(found.outcome)
