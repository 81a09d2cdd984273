"""A model travels to each node once: later questions carry its hash, and nothing else of a run changes."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from client.kept_model import KeptModel
from protocol import wire
from protocol.hashes import model_hash
from protocol.models import build_model, model_arrays
from riskband.flower.testing import Behaviour, Delivery
from server.run.ledger import read_ledger
from tests.server.running import run_app

BISECTION: Mapping[str, Any] = {
    "strategy": "wasserstein",
    "protocol": "bisection",
    "num_unseen": 0,
    "bisection_tolerance": 0.01,
    "cost_budgets": "0.1",
    "num_clients": 6,
    "examples_per_client": 20,
}
NUM_CLIENTS = 6
ARRAYS = model_arrays(build_model("mlp", x_shape=(3,), num_classes=2, seed=1))


def owned(folder: Path, partition: int) -> dict[str, Any]:
    path = str(folder / f"client-{partition}.sqlite")
    return {"answer-record-file": path, "query-budget": 10_000, "query-budget-file": path}


class Nodes:
    """Honest nodes that note which questions came with weights, and may forget what they keep before each."""

    def __init__(self, *, before: Callable[[int], object] = lambda partition: None) -> None:
        self.whole: list[int] = []
        self.short: list[int] = []
        self._before = before

    def behaviours(self) -> dict[int, Behaviour]:
        return {partition: self._noting(partition) for partition in range(NUM_CLIENTS)}

    def _noting(self, partition: int) -> Behaviour:
        def behave(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
            (self.whole if wire.ARRAYS_RECORD in message.content else self.short).append(partition)
            self._before(partition)
            return [Delivery(answer(message))]

        return behave


def bisected(folder: Path, defaults: Mapping[str, Any], nodes: Nodes, own: Path | None) -> dict[str, Any]:
    (folder / "run").mkdir(parents=True)
    node_configs = {} if own is None else {partition: owned(own, partition) for partition in range(NUM_CLIENTS)}
    return run_app(folder / "run", defaults, behaviours=nodes.behaviours(), node_configs=node_configs, **BISECTION)


def risks(folder: Path) -> list[Any]:
    """All that was answered, whatever is left of a budget, which clients without one do not say."""
    answers = read_ledger(folder / "run" / "ledger.jsonl")[1]
    return sorted((each.client_id, each.values_lower, each.values_upper, each.model_hash) for each in answers)


@pytest.fixture(scope="module")
def each_time(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """A run whose clients keep nothing."""
    folder, nodes = tmp_path_factory.mktemp("each_time"), Nodes()
    report = bisected(folder, defaults, nodes, None)
    assert nodes.short == []
    assert len(nodes.whole) > NUM_CLIENTS + 2
    return folder, report


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> tuple[Path, dict[str, Any], Nodes]:
    """A run whose clients keep the model."""
    folder, nodes = tmp_path_factory.mktemp("kept"), Nodes()
    return folder, bisected(folder, defaults, nodes, folder), nodes


def without_traffic(report: dict[str, Any]) -> str:
    left = {key: value for key, value in report.items() if key not in ("metrics", "timing")}
    left["transport"] = left["transport"] | {"query_budget": None}
    return json.dumps(left)


def test_clients_with_a_record_fetch_the_model_once_and_answer_the_same(
    each_time: tuple[Path, dict[str, Any]], kept: tuple[Path, dict[str, Any], Nodes]
) -> None:
    folder, report, nodes = kept
    assert sorted(nodes.whole) == list(range(NUM_CLIENTS))
    assert len(nodes.short) == each_time[1]["metrics"]["num_messages"] - NUM_CLIENTS
    assert without_traffic(report) == without_traffic(each_time[1])
    assert risks(folder) == risks(each_time[0])
    assert report["metrics"]["num_messages"] == each_time[1]["metrics"]["num_messages"]
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    size = sum(array.nbytes for array in model_arrays(model).values())
    assert report["metrics"]["bytes_sent"] < each_time[1]["metrics"]["bytes_sent"] - size * len(nodes.short)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "other"])
def test_a_client_that_lost_the_model_is_sent_it_again_loses_no_answer_and_pays_once(
    tmp_path: Path,
    defaults: Mapping[str, Any],
    each_time: tuple[Path, dict[str, Any]],
    kept: tuple[Path, dict[str, Any], Nodes],
    damage: Any,
) -> None:
    def before(partition: int) -> None:
        path = tmp_path / f"client-{partition}.sqlite.model.npz"
        if partition % 2 and path.exists():
            KeptModel(path).keep(ARRAYS) if damage == "other" else damage(path)

    nodes = Nodes(before=before)
    report = bisected(tmp_path, defaults, nodes, tmp_path)
    assert nodes.short
    again = [partition for partition in nodes.short if partition % 2]
    assert again
    assert sorted(nodes.whole) == sorted([*range(NUM_CLIENTS), *again])
    assert without_traffic(report) == without_traffic(each_time[1])
    assert report["transport"]["query_budget"] == kept[1]["transport"]["query_budget"]


def test_a_client_that_says_it_keeps_what_it_does_not_costs_a_short_message_each_time(
    tmp_path: Path, defaults: Mapping[str, Any], each_time: tuple[Path, dict[str, Any]]
) -> None:
    def boasting(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
        reply = answer(message)
        if not reply.has_error():
            sent_hash = model_hash(wire.decode_weights(message.content))
            reply.content[wire.KEPT_RECORD] = ConfigRecord({"model-hash": sent_hash})
        return [Delivery(reply)]

    report = run_app(tmp_path, defaults, behaviours={3: boasting}, **BISECTION)
    assert without_traffic(report) == without_traffic(each_time[1])
    asked = sum(each.client_id == "client-00003" for each in read_ledger(tmp_path / "ledger.jsonl")[1])
    assert report["metrics"]["num_messages"] == each_time[1]["metrics"]["num_messages"] + asked - 1


@pytest.mark.parametrize("value", [7, "0" * 64, ["a"]])
def test_a_reply_that_claims_nonsense_is_no_more_than_one_that_claims_nothing(
    tmp_path: Path, defaults: Mapping[str, Any], each_time: tuple[Path, dict[str, Any]], value: Any
) -> None:
    def confused(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
        reply = answer(message)
        reply.content[wire.KEPT_RECORD] = ConfigRecord({"model-hash": value})
        return [Delivery(reply)]

    report = run_app(tmp_path, defaults, behaviours={3: confused}, **BISECTION)
    assert without_traffic(report) == without_traffic(each_time[1])
    assert report["metrics"]["num_messages"] == each_time[1]["metrics"]["num_messages"]


def test_what_is_kept_is_its_owners_alone_and_counts_by_its_hash(tmp_path: Path) -> None:
    kept = KeptModel(tmp_path / "model.npz")
    with pytest.raises(wire.UnknownModelError):
        kept.find(model_hash(ARRAYS))
    odd = {"file": np.zeros((), dtype=np.int64), "0/a b": np.ones((2, 0), dtype=np.float32), **ARRAYS}
    assert kept.keep(odd)
    found = kept.find(model_hash(odd))
    assert found.keys() == odd.keys()
    assert all(np.array_equal(found[name], odd[name]) and found[name].dtype == odd[name].dtype for name in odd)
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
    assert stat.S_IMODE((tmp_path / "model.npz").stat().st_mode) == 0o600
    with pytest.raises(wire.UnknownModelError):
        kept.find(model_hash(ARRAYS))
    assert not KeptModel(tmp_path / "nowhere" / "model.npz").keep(ARRAYS)
    assert not KeptModel(None).keep(ARRAYS)
