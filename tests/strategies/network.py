"""A small network of honest clients, and what a node of it may do instead."""

from __future__ import annotations

import dataclasses

import numpy as np
from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from protocol import wire
from protocol.hashes import code_hash, model_hash
from protocol.questions import LossAnswer, LossQuery
from riskband.flower.testing import Delivery, InProcessGrid
from strategies.asking.query import QueryStrategy

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(2, dtype=np.float32)}
QUERY = LossQuery(loss="zero_one", model="tiny", x_shape=(3,), num_classes=2)
NUM_CLIENTS = 10

app = ClientApp()


def name_of(partition):
    return f"client-{partition:05d}"


class Asking(QueryStrategy):
    """Concludes what it heard."""

    def conclude(self, outcome):
        return outcome


@app.query("loss")
def honest_client(message, context):
    query, arrays = wire.decode_query(message.content, LossQuery), wire.decode_weights(message.content)
    partition = context.node_config["partition-id"]
    answer = LossAnswer(
        client_id=name_of(partition),
        risk=(partition % 11) / 10,
        num_examples=10,
        loss=query.loss,
        code_hash=code_hash(),
        model_hash=model_hash(arrays),
    )
    return Message(wire.encode_answer(answer), reply_to=message)


def expected_answer(partition):
    return LossAnswer(
        client_id=name_of(partition),
        risk=(partition % 11) / 10,
        num_examples=10,
        loss="zero_one",
        code_hash=code_hash(),
        model_hash=model_hash(ARRAYS),
    )


class Averaging(QueryStrategy):
    def conclude(self, outcome):
        return sum(answer.risk for answer in outcome.answers) / len(outcome.answers)


def strategy(**settings):
    defaults = {
        "num_clients": NUM_CLIENTS,
        "quorum": 0.5,
        "node_timeout": 0.05,
        "reply_timeout": 5.0,
        "poll_interval": 0.001,
    }
    return Averaging(QUERY, **(defaults | settings))


def network(behaviours=None, *, client=app, **settings):
    defaults = {"num_clients": NUM_CLIENTS, "run_config": {}, "clients_per_pull": 3}
    return InProcessGrid(client, behaviours=behaviours, **(defaults | settings))


def ask(behaviours=None, **settings):
    return strategy(**settings).ask(network(behaviours), QUERY, ARRAYS)


def names(outcome):
    return [answer.client_id for answer in outcome.answers]


def everyone_but(*partitions, num_clients=NUM_CLIENTS):
    return [name_of(k) for k in range(num_clients) if k not in partitions]


def reasons(outcome):
    return [(failure.client_id, failure.reason.value) for failure in outcome.failures]


# What a node may do.


def claiming(kind=LossAnswer, /, **claims):
    """Answers of a kind in which something else stands than an honest client says."""

    def behave(message, answer):
        honest = wire.decode_answer(answer(message).content, kind)
        content = wire.encode_answer(dataclasses.replace(honest, **claims))
        return [Delivery(Message(content, reply_to=message))]

    return behave


def late(after_pulls):
    return lambda message, answer: [Delivery(answer(message), after_pulls)]


def silent(message, answer):
    return []


def raising(message, answer):
    raise KeyError("no such file\nsecond line\x1b[31m")


def error_reply(code):
    return lambda message, answer: [Delivery(Message(Error(code, "why"), reply_to=message))]


def twice(*behaviours):
    return lambda message, answer: [delivery for each in behaviours for delivery in each(message, answer)]


def replying(edit):
    def behave(message, answer):
        content = answer(message).content
        edit(content)
        return [Delivery(Message(content, reply_to=message))]

    return behave
