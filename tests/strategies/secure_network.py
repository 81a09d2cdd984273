"""A small network of clients that answer secure histograms only, and a grid that remembers all that it delivers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from flwr.app import Message
from flwr.clientapp import ClientApp

from client.app import answer_hello
from client.secure import rounds
from protocol import wire
from protocol.codec import to_array_record
from protocol.questions import HelloQuery, LossQuery
from protocol.secure.questions import ConsistencyQuery, KeysQuery, MaskedQuery, SharesQuery, UnmaskQuery
from riskband.flower.testing import Delivery, InProcessGrid
from strategies.secure.histogram import SecureHistogram

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
NUM_EXAMPLES = 20
ACTIONS = ("secure_keys", "secure_shares", "secure_histogram", "secure_consistency", "secure_unmask")

app = ClientApp()


def masked_answer(query, message, context):
    def numbers(query, arrays):
        return {"risk": risk_of(context.node_config["partition-id"]), "num_examples": NUM_EXAMPLES}

    return rounds.masked_answer(query, message, context, numbers)


def reply(message, context, *, kind, answer):
    query = wire.decode_query(message.content, kind)
    return Message(wire.encode_answer(answer(query, message, context)), reply_to=message)


for _kind, _answer in {
    HelloQuery: answer_hello,
    KeysQuery: rounds.keys_answer,
    SharesQuery: rounds.shares_answer,
    MaskedQuery: masked_answer,
    ConsistencyQuery: rounds.consistency_answer,
    UnmaskQuery: rounds.unmask_answer,
}.items():
    app.query(wire.action(_kind))(partial(reply, kind=_kind, answer=_answer))


def risk_of(partition):
    return (3 * partition % 7) / NUM_EXAMPLES


class Recording(InProcessGrid):
    """Remembers every reply that the server gets, and the clients' state after each.

    The node config is that of all clients, or a function of the partition.
    """

    def __init__(self, num_clients, behaviours=None, node_config=None, **settings):
        own = {"secure-min-clients": 3} if node_config is None else node_config
        super().__init__(
            app,
            num_clients=num_clients,
            run_config={},
            behaviours=behaviours or {},
            node_configs={k: own(k) if callable(own) else own for k in range(num_clients)},
            **settings,
        )
        self.replies = []
        self.states = []

    def pull_messages(self, message_ids):
        arrived = list(super().pull_messages(message_ids))
        self.replies += arrived
        self.states += [dict(context.state.config_records) for context in self._contexts.values()]
        return arrived


def strategy(num_clients, *, privacy="", **changes):
    settings = {
        "delta": 0.1,
        "band": "dkw",
        "local": "marginal",
        "divergences": ["chi2"],
        "budgets": [0.1],
        "thresholds": [0.3, 0.9],
        "breakdown_threshold": 0.9,
        "num_bins": NUM_EXAMPLES + 1,  # one for every multiple of 1 / NUM_EXAMPLES
        "num_examples": NUM_EXAMPLES,
        "num_neighbours": 30,
        "group_size": 0,
        "seed": 0,
        "num_clients": num_clients,
        "quorum": 0.5,
        "node_timeout": 0.05,
        "reply_timeout": 60.0,
        "poll_interval": 0.001,
    }
    return SecureHistogram(LossQuery("zero_one", "tiny", (3,), 2, privacy), **(settings | changes))


def run(num_clients, behaviours=None, *, grid=None, **changes):
    """The conclusion of a run, and the grid that it ran on."""
    grid = grid or Recording(num_clients, behaviours)
    return strategy(num_clients, **changes).start(grid, to_array_record(ARRAYS)).conclusion, grid


# What a node may do.


def silent_in(action):
    def behave(message, answer):
        return [] if message.metadata.message_type == f"query.{action}" else [Delivery(answer(message))]

    return behave


def raising_in(action):
    def behave(message, answer):
        if message.metadata.message_type == f"query.{action}":
            raise KeyError("gone")
        return [Delivery(answer(message))]

    return behave


def changing(action, change):
    """Change the answer's record of one round."""

    def behave(message, answer):
        reply = answer(message)
        if message.metadata.message_type == f"query.{action}":
            change(reply.content["answer"])
            return [Delivery(Message(reply.content, reply_to=message))]
        return [Delivery(reply)]

    return behave


def adding(numbers: Mapping[int, int]):
    """Add to some counts of the masked vector."""

    def change(record):
        vector = np.frombuffer(record["vector"], dtype="<u4").astype(np.int64)
        for index, number in numbers.items():
            vector[index] += number
        record["vector"] = (vector % 2**32).astype("<u4").tobytes()

    return changing("secure_histogram", change)
