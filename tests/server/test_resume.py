"""An interrupted run, continued from its ledger: the same bytes, and nobody is asked twice."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from flwr.app import Message

from protocol.models import build_model
from riskband.flower.testing import Behaviour, Delivery
from server.run.folder import LOG_FILES, ResultFolder
from server.run.ledger import read_ledger
from server.run.lock import FolderError
from strategies.asking.query import QuorumError
from tests.server.running import raises, run_app

WASSERSTEIN = {"strategy": "wasserstein", "cost_budgets": "0,0.1,0.4", "num_unseen": 0}
RUNS = {
    "f_divergence": {},
    "one-round": {**WASSERSTEIN, "num_radii": 20},
    "bisection": {**WASSERSTEIN, "protocol": "bisection", "bisection_tolerance": 0.01},
}


class Counting:
    """Honest nodes that count the questions they get, by partition and type of message."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[int, str]] = Counter()

    def behaviours(self, num_clients: int = 12) -> dict[int, Behaviour]:
        return {partition: self._noting(partition) for partition in range(num_clients)}

    def _noting(self, partition: int) -> Behaviour:
        def behave(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
            self.asked[partition, message.metadata.message_type] += 1
            return [Delivery(answer(message))]

        return behave

    def questions(self) -> dict[int, int]:
        """Questions about the data by partition."""
        return {partition: count for (partition, kind), count in self.asked.items() if kind != "query.hello"}


def silent(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
    return []


def assert_same_results(folder: Path, other: Path) -> None:
    first, second = (json.loads((each / "report.json").read_text()) for each in (folder, other))
    for report in (first, second):
        del report["timing"], report["metrics"]  # the metrics are of one process, not of the run
    assert json.dumps(first) == json.dumps(second)
    files = [f"certificates/{name}.json" for name in first["certificates"]] + first["figures"]
    for name in files:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in RUNS}
    for name, folder in folders.items():
        run_app(folder, defaults, **RUNS[name])
    return folders


def cut_ledger(source: Path, folder: Path, *, num_answers: int, torn: bytes = b"") -> None:
    """What a run that was killed after some answers leaves behind."""
    lines = (source / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    folder.mkdir(exist_ok=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[: 1 + num_answers]) + torn)


@pytest.mark.usefixtures("idle_clock")
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("failing", "timeout"), [(raises, 300.0), pytest.param(silent, 30.0, marks=pytest.mark.slow)])
def test_a_run_below_its_quorum_is_completed_by_those_who_were_missing(
    tmp_path: Path,
    defaults: Mapping[str, Any],
    uninterrupted: dict[str, Path],
    name: str,
    failing: Behaviour,
    timeout: float,
) -> None:
    broken = dict.fromkeys(range(4), failing)
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, behaviours=broken, reply_timeout=timeout, **RUNS[name])
    answered = {answer.client_id for answer in read_ledger(tmp_path / "ledger.jsonl")[1]}
    assert len(answered) == 8
    counting = Counting()
    run_app(tmp_path, defaults, behaviours=counting.behaviours(), grid_seed=1, resume="true", **RUNS[name])
    assert all(counting.asked[partition, "query.hello"] == 1 for partition in range(12))
    if name != "bisection":  # where those who answered the first question get others
        assert counting.questions() == dict.fromkeys(range(4), 1)
    assert_same_results(tmp_path, uninterrupted[name])
    resumed, whole = (read_ledger(folder / "ledger.jsonl")[1] for folder in (tmp_path, uninterrupted[name]))
    assert Counter(resumed) == Counter(whole)


@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.4, pytest.param(0.9, marks=pytest.mark.slow), 1.0]
)
def test_a_killed_bisection_asks_for_the_missing_points_only(
    tmp_path: Path, defaults: Mapping[str, Any], uninterrupted: dict[str, Path], share: float
) -> None:
    total = len(read_ledger(uninterrupted["bisection"] / "ledger.jsonl")[1])
    assert total > 24
    num_answers = round(share * total)
    cut_ledger(uninterrupted["bisection"], tmp_path, num_answers=num_answers, torn=b'{"client_id": "cli')
    counting = Counting()
    run_app(tmp_path, defaults, behaviours=counting.behaviours(), grid_seed=2, resume=True, **RUNS["bisection"])
    assert sum(counting.questions().values()) == total - num_answers
    assert_same_results(tmp_path, uninterrupted["bisection"])


def test_the_lines_of_a_ledger_are_read_once(
    tmp_path: Path, defaults: Mapping[str, Any], uninterrupted: dict[str, Path]
) -> None:
    cut_ledger(uninterrupted["f_divergence"], tmp_path, num_answers=12)
    readings = []

    def noted(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "_entry":
            readings.append(frame.f_locals["number"])

    sys.setprofile(noted)
    try:
        run_app(tmp_path, defaults, resume="true", **RUNS["f_divergence"])
    finally:
        sys.setprofile(None)
    assert readings == list(range(2, 14))


@pytest.mark.parametrize("name", ["f_divergence", "one-round"])
def test_a_contested_name_is_asked_again(
    tmp_path: Path, defaults: Mapping[str, Any], uninterrupted: dict[str, Path], name: str
) -> None:
    cut_ledger(uninterrupted[name], tmp_path, num_answers=12)
    path = tmp_path / "ledger.jsonl"
    entry = json.loads(path.read_text().splitlines()[5])
    entry["num_examples"] += 1
    path.write_text(path.read_text() + json.dumps(entry) + "\n")
    counting = Counting()
    run_app(tmp_path, defaults, behaviours=counting.behaviours(), resume="true", **RUNS[name])
    assert counting.questions() == {int(entry["client_id"].removeprefix("client-")): 1}
    assert_same_results(tmp_path, uninterrupted[name])


def test_who_has_answered_need_not_be_there_any_more(
    tmp_path: Path, defaults: Mapping[str, Any], uninterrupted: dict[str, Path]
) -> None:
    cut_ledger(uninterrupted["f_divergence"], tmp_path, num_answers=12)
    run_app(tmp_path, defaults, num_nodes=1, resume="true")
    assert_same_results(tmp_path, uninterrupted["f_divergence"])


def test_waiting_times_may_change_but_nothing_else(
    tmp_path: Path, defaults: Mapping[str, Any], uninterrupted: dict[str, Path]
) -> None:
    cut_ledger(uninterrupted["f_divergence"], tmp_path, num_answers=6)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(ValueError, match="another run: examples-per-client was 40 and is now 50; loss was 'zero_one'"):
        run_app(tmp_path, defaults, resume="true", examples_per_client=50, loss="brier")
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    run_app(tmp_path, defaults, resume="true", node_timeout=0.7, reply_timeout=30.0)
    assert_same_results(tmp_path, uninterrupted["f_divergence"])


def test_a_slip_in_a_resumed_configuration_removes_no_earlier_result(
    tmp_path: Path, defaults: Mapping[str, Any], uninterrupted: dict[str, Path]
) -> None:
    shutil.copytree(uninterrupted["f_divergence"], tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FolderError, match="another run: seed was 0 and is now 1"):
        run_app(tmp_path, defaults, resume="true", seed=1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_checkpoint_that_was_replaced_removes_no_earlier_result(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    weights, folder = tmp_path / "weights.pt", tmp_path / "out"
    run = {"training": "checkpoint", "checkpoint": str(weights), "num_unseen": 0}
    for seed in (0, 1):
        model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=seed)
        torch.save(model.state_dict(), weights)
        if seed == 0:
            run_app(folder, defaults, **run)
            before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(FolderError, match="another run: the hash of the model was"):
        run_app(folder, defaults, resume="true", **run)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_another_model_of_the_same_configuration_is_known_when_it_is_there(
    tmp_path: Path, defaults: Mapping[str, Any], uninterrupted: dict[str, Path]
) -> None:
    cut_ledger(uninterrupted["f_divergence"], tmp_path, num_answers=6)
    path = tmp_path / "ledger.jsonl"
    model = json.loads(path.read_text().splitlines()[0])["hashes"]["model"]
    path.write_text(path.read_text().replace(model, "0" * len(model)))
    with pytest.raises(ValueError, match="another run: the hash of the model was '000"):
        run_app(tmp_path, defaults, resume="true")
    assert "the hash of the model" in json.loads((tmp_path / "failed.json").read_text())["reason"]


def test_there_must_be_something_to_resume(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be the ledger of the interrupted run, but there is none"):
        run_app(tmp_path, defaults, resume="true")


@pytest.mark.parametrize("name", LOG_FILES)
def test_a_folder_with_the_logs_of_a_failed_run_may_be_used_again(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-{name}")
    elsewhere.mkdir()
    (elsewhere / name).write_text("Flower did not start")
    ResultFolder(tmp_path).keep_logs([elsewhere / name])
    assert "Flower did not start" in (tmp_path / name).read_text()
    ResultFolder(tmp_path).clear()
    assert not (tmp_path / name).exists()
    (tmp_path / "thesis.tex").write_text("mine")
    shutil.rmtree(tmp_path / "certificates")
    with pytest.raises(FolderError, match="holds files that no run wrote"):
        ResultFolder(tmp_path).clear()
