"""What a run says of its traffic: exact counts, and bytes that Flower itself counts at the other end."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto

from protocol.codec import to_array_record
from protocol.models import build_model
from protocol.questions import LossQuery
from protocol.wire import encode_query
from riskband.flower.testing import Behaviour, Delivery, InProcessGrid, _deflated
from server.run.traffic import MeteredGrid, content_size
from strategies.asking.query import QuorumError
from tests.server.running import raises, run_app

COUNTS = {
    "type": "object",
    "properties": {
        name: {"type": "integer", "minimum": 0}
        for name in ("num_rounds", "num_messages", "num_replies", "bytes_sent", "bytes_received")
    },
}
COUNTS["required"] = list(COUNTS["properties"])
SCHEMA = {
    **COUNTS,
    "properties": {
        **COUNTS["properties"],
        "num_answers_in_ledger": {"type": "integer", "minimum": 0},
        "by_type": {"type": "object", "additionalProperties": {**COUNTS, "additionalProperties": False}},
    },
    "required": [*COUNTS["required"], "num_answers_in_ledger", "by_type"],
    "additionalProperties": False,
}


class Weighing:
    """Nodes that weigh what they get and give, as bytes of Flower's objects without the message's own."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._failing = failing

    def behaviours(self, num_clients: int) -> dict[int, Behaviour]:
        return {partition: self._weighing(partition) for partition in range(num_clients)}

    def _weighing(self, partition: int) -> Behaviour:
        def behave(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
            kind = message.metadata.message_type
            self.received[kind] += weight(message)
            if partition in self._failing:
                raise ValueError("this client is broken")
            reply = answer(message)
            self.sent[kind] += weight(reply)
            return [Delivery(reply)]

        return behave


def weight(message: Message) -> int:
    message_id, objects = _deflated(message, {})
    return sum(len(content) for key, content in objects.items() if key != message_id)


def test_counts_and_bytes_of_a_run_with_two_failures(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    nodes = Weighing(failing=frozenset({4, 11}))
    report = run_app(tmp_path, defaults, num_clients=20, behaviours=nodes.behaviours(20))
    metrics = report["metrics"]
    counts = {
        "num_rounds": 1,
        "num_messages": 20,
        "num_replies": 20,
        "bytes_sent": nodes.received["query.loss"],
        "bytes_received": nodes.sent["query.loss"],
    }
    assert metrics == {**counts, "num_answers_in_ledger": 0, "by_type": {"query.loss": counts}}
    network = report["network"]
    assert (network["num_asked"], network["num_answered"], network["num_failed"]) == (20, 18, 2)
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    num_bytes = 4 * sum(weights.numel() for weights in model.parameters())  # float32
    assert num_bytes < metrics["bytes_sent"] / 20 < num_bytes + 3000
    jsonschema.validate(metrics, SCHEMA)


def test_training_and_hello_count(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    nodes = Weighing()
    settings = {"training": "fedavg", "training_rounds": 2, "respect_query_budgets": "true"}
    metrics = run_app(tmp_path, defaults, behaviours=nodes.behaviours(12), **settings)["metrics"]
    jsonschema.validate(metrics, SCHEMA)
    by_type = metrics["by_type"]
    assert {kind: (each["num_rounds"], each["num_messages"]) for kind, each in by_type.items()} == {
        "train": (2, 24),
        "query.hello": (1, 12),
        "query.loss": (1, 12),
    }
    assert (metrics["num_rounds"], metrics["num_messages"], metrics["num_replies"]) == (4, 48, 48)
    assert {kind: each["bytes_sent"] for kind, each in by_type.items()} == nodes.received
    assert {kind: each["bytes_received"] for kind, each in by_type.items()} == nodes.sent


def test_every_round_of_a_bisection_counts(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    settings = {"strategy": "wasserstein", "protocol": "bisection", "cost_budgets": "0.1", "num_unseen": 0}
    report = run_app(tmp_path, defaults, **settings)
    metrics, transport = report["metrics"], report["transport"]
    assert transport["num_rounds"] > 3
    assert metrics["num_rounds"] == transport["num_rounds"]
    assert metrics["num_messages"] == metrics["num_replies"] == transport["num_messages"]


def test_a_resumed_run_says_what_it_did_itself(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, behaviours=dict.fromkeys(range(4), raises))
    report = run_app(tmp_path, defaults, resume="true")
    by_type = report["metrics"]["by_type"]
    assert by_type["query.hello"]["num_messages"] == 12
    assert by_type["query.loss"]["num_messages"] == by_type["query.loss"]["num_replies"] == 4
    assert report["metrics"]["num_answers_in_ledger"] == 8
    assert report["network"]["num_answered"] == 12


@pytest.mark.usefixtures("idle_clock")
def test_silent_clients_get_messages_and_send_none(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    silent = dict.fromkeys(range(2), lambda message, answer: [])
    metrics = run_app(tmp_path, defaults, behaviours=silent, quorum=0.8, reply_timeout=30.0)["metrics"]
    assert (metrics["num_messages"], metrics["num_replies"]) == (12, 10)


def test_a_content_weighs_its_protobuf_and_little_more() -> None:
    arrays = to_array_record({"a": np.zeros(200_000, np.float32), "b": np.arange(5000.0)})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"risk": 0.25, "num-examples": 100})})
    plain = len(recorddict_to_proto(content).SerializeToString())
    assert plain < content_size(content) < plain + 1500


def test_the_metrics_are_in_the_part_of_the_report_that_a_seed_determines(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    reports = [
        run_app(tmp_path / str(seed), defaults, grid_seed=seed, respect_query_budgets="true", num_unseen=0)
        for seed in (0, 1)
    ]
    assert json.dumps(reports[0]["metrics"]) == json.dumps(reports[1]["metrics"])


def test_a_model_is_serialised_once_whatever_is_asked_of_how_many_nodes() -> None:
    model = to_array_record({"w": np.random.default_rng(0).random(500_000)})  # 4 MB
    nodes = InProcessGrid(ClientApp(), num_clients=40)
    grid = MeteredGrid(nodes)
    contents = [
        encode_query(LossQuery("zero_one", "mlp", (number,), 2), model) for number, _ in enumerate(nodes.get_node_ids())
    ]
    messages = [
        Message(content, node, "query.loss") for content, node in zip(contents, nodes.get_node_ids(), strict=True)
    ]
    tracemalloc.start()
    grid.push_messages(messages)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * 4_000_000
    assert grid.metrics()["bytes_sent"] == sum(map(content_size, contents)) > 40 * 4_000_000
