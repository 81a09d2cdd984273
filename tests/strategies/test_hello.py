"""Hello before the question: who is where, who is asked again after an interruption, and who is not."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from protocol import wire
from protocol.codec import to_array_record
from protocol.hashes import code_hash, model_hash
from protocol.questions import HelloAnswer, HelloQuery, LossAnswer, LossQuery
from riskband.flower.testing import Delivery, InProcessGrid
from strategies.asking.query import QuorumError
from strategies.asking.resume import EarlierAnswer
from tests.strategies.network import Asking, name_of, raising, reasons

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
QUERY = LossQuery(loss="zero_one", model="tiny", x_shape=(3,), num_classes=2)
NUM_CLIENTS = 6

app = ClientApp()


def honest_answer(partition):
    return LossAnswer(name_of(partition), partition / 10, 10, "zero_one", code_hash(), model_hash(ARRAYS))


@app.query("loss")
def plain(message, context):
    return Message(wire.encode_answer(honest_answer(context.node_config["partition-id"])), reply_to=message)


@app.query("hello")
def hello(message, context):
    wire.decode_query(message.content, HelloQuery)
    answer = HelloAnswer(name_of(context.node_config["partition-id"]), code_hash(), context.node_config.get("left"))
    return Message(wire.encode_answer(answer), reply_to=message)


def strategy(**settings):
    defaults = {"num_clients": NUM_CLIENTS, "quorum": 1.0, "node_timeout": 0.02, "reply_timeout": 0.5}
    return Asking(QUERY, **(defaults | {"poll_interval": 0.001} | settings))


class Network:
    """Counts the questions that each node gets."""

    def __init__(self, behaviours=None, num_clients=NUM_CLIENTS, **settings):
        self.asked = {"query.hello": [], "query.loss": []}
        noting = {k: self.noting(k, (behaviours or {}).get(k)) for k in range(num_clients)}
        self.grid = InProcessGrid(app, num_clients=num_clients, run_config={}, behaviours=noting, **settings)

    def noting(self, partition, behaviour):
        def behave(message, answer):
            self.asked[message.metadata.message_type].append(partition)
            return [Delivery(answer(message))] if behaviour is None else behaviour(message, answer)

        return behave


def run(network, **settings):
    return strategy(**settings).start(network.grid, to_array_record(ARRAYS)).conclusion


def earlier(*partitions):
    return [EarlierAnswer(honest_answer(k)) for k in partitions]


def greeting(**claims):
    def behave(message, answer):
        reply = answer(message)
        if message.metadata.message_type == "query.hello":
            greeted = dataclasses.replace(wire.decode_answer(reply.content, HelloAnswer), **claims)
            reply = Message(wire.encode_answer(greeted), reply_to=message)
        return [Delivery(reply)]

    return behave


ALL = run(Network())


def test_without_a_reason_nobody_says_hello():
    network = Network()
    assert run(network).num_asked == NUM_CLIENTS
    assert network.asked["query.hello"] == []


def test_meeting_tells_who_is_where_and_what_is_left():
    network, asking = Network(node_configs={2: {"left": 7}}), strategy()
    outcome = asking.meet(network.grid)
    assert outcome.answers == tuple(
        HelloAnswer(name_of(k), code_hash(), 7 if k == 2 else None) for k in range(NUM_CLIENTS)
    )
    assert asking.ask_each(network.grid, {name_of(4): QUERY}, ARRAYS, round=1).answers == (honest_answer(4),)
    assert network.asked["query.loss"] == [4]


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"code_hash": "0" * 64}, (name_of(2), "wrong-code")),
        ({"client_id": "stranger"}, ("stranger", "unknown-client")),
        ({"budget_left": -1}, (name_of(2), "malformed")),
    ],
)
def test_a_greeting_that_cannot_be_is_refused_and_the_client_not_asked(claims, reason):
    network = Network({2: greeting(**claims)})
    known = frozenset(map(name_of, range(NUM_CLIENTS)))
    outcome = run(network, respect_budgets=True, quorum=0.5, expected_client_ids=known)
    assert reasons(outcome) == [reason]
    assert sorted(network.asked["query.loss"]) == [0, 1, 3, 4, 5]
    assert outcome.num_asked == NUM_CLIENTS


def test_who_has_answered_is_not_asked_again_and_the_outcome_is_the_same():
    network = Network()
    assert run(network, earlier=earlier(0, 2, 5)) == ALL
    assert sorted(network.asked["query.loss"]) == [1, 3, 4]


@pytest.mark.parametrize(
    "network",
    [Network(num_clients=5), Network({5: raising}), Network({5: greeting(code_hash="other")})],
    ids=["away", "broken", "other code"],
)
def test_who_has_answered_may_go_away(network):
    assert run(network, earlier=earlier(5)) == ALL


def test_new_answers_only_are_handed_over():
    received = []
    run(Network(), earlier=earlier(0, 2, 5), on_answer=lambda query, answer, node_id: received.append((query, answer)))
    assert sorted(received, key=lambda pair: pair[1].client_id) == [(QUERY, honest_answer(k)) for k in (1, 3, 4)]


def test_a_contested_name_is_asked_again_and_a_repeated_answer_is_not():
    network = Network()
    other = dataclasses.replace(honest_answer(3), risk=0.9)
    assert run(network, earlier=[*earlier(2, 2, 3), EarlierAnswer(other)]) == ALL
    assert sorted(network.asked["query.loss"]) == [0, 1, 3, 4, 5]


def test_a_name_that_two_nodes_claim_is_not_believed_although_it_has_answered():
    outcome = run(Network({4: greeting(client_id=name_of(1))}), earlier=earlier(1), quorum=0.5)
    assert [answer.client_id for answer in outcome.answers] == [name_of(k) for k in (0, 2, 3, 5)]
    assert reasons(outcome) == [(name_of(1), "claimed-twice")] * 2


def test_nobody_is_asked_in_vain():
    network = Network(num_clients=4)
    with pytest.raises(QuorumError, match=r"got 1 valid answers from 4 asked: 2 x node-missing"):
        run(network, earlier=earlier(0))
    assert network.asked["query.loss"] == []


def test_a_client_without_anything_left_is_named_and_not_asked():
    network = Network(node_configs={1: {"left": 0}, 2: {"left": 1}})
    outcome = run(network, respect_budgets=True, quorum=0.5, reply_timeout=60.0)
    assert reasons(outcome) == [(name_of(1), "budget-spent")]
    assert sorted(network.asked["query.loss"]) == [0, 2, 3, 4, 5]


def test_who_has_the_answer_on_record_is_asked_although_nothing_is_left():
    network = Network({2: greeting(budget_left=0, on_record=True), 3: greeting(budget_left=0)})
    outcome = run(network, respect_budgets=True, quorum=0.5)
    assert sorted(network.asked["query.loss"]) == [0, 1, 2, 4, 5]
    assert reasons(outcome) == [(name_of(3), "budget-spent")]


@pytest.mark.usefixtures("idle_clock")
def test_a_run_says_at_once_that_there_are_fewer_nodes_than_clients(caplog):
    network = Network(num_clients=2)
    strategy(num_clients=5, quorum=0.4).meet(network.grid)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["2 of num-clients = 5 SuperNodes are here; waiting for the others for 0.02 s (node-timeout)"]
