"""A run taken up again after an interruption, and one over processes of their own: the same report as always."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from server.run.folder import read_events
from server.run.ledger import read_ledger
from simulations.launcher import COMPLETED, private_superlink
from tests.end_to_end.test_flwr_run import (
    PROJECT,
    assert_the_engine_gives_the_same_report,
    finish,
    metrics_of,
    start,
)
from tests.waiting import wait_until


def num_answers(folder: Path) -> int:
    ledger = folder / "ledger.jsonl"
    return len(read_ledger(ledger)[1]) if ledger.exists() and ledger.stat().st_size else 0


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sizes = ["num-unseen=0", "training-epochs=1", "examples-per-client=10000", "quorum=1.0"]
    arguments = ["--clients", "80", "--out", str(folder), "--set", *sizes]
    process = start("quickstart", *arguments, home=tmp_path)
    wait_until(lambda: num_answers(folder) >= 10 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status == 128 + signal.SIGINT, err
    before = read_ledger(folder / "ledger.jsonl")[1]
    assert 10 <= len(before) < 80

    status, out, err = finish(start("quickstart", "--resume", *arguments, home=tmp_path))
    assert status == 0, err
    assert "80 expected, 80 asked, 80 answered validly" in out
    after = read_ledger(folder / "ledger.jsonl")[1]
    assert after[: len(before)] == before
    assert len(after) == 80  # nobody was asked twice
    assert_the_engine_gives_the_same_report(folder, tmp_path / "engine", num_clients=80)
    assert metrics_of(folder)["num_answers_in_ledger"] == len(before)
    assert metrics_of(folder)["by_type"]["query.loss"]["num_messages"] == 80 - len(before)
    events = Counter(event["event"] for event in read_events(folder / "events.jsonl"))
    assert (events["run_started"], events["run_resumed"], events["run_ended"]) == (2, 1, 1)  # killed once
    assert len(before) - 1 <= events["answer_accepted"] - (80 - len(before)) <= len(before)  # the ledger comes first


@pytest.mark.slow
def test_clients_in_processes_of_their_own_give_the_same_report(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    config = {
        "strategy": "wasserstein",
        "num-clients": 4,
        "num-unseen": 0,
        "target-sigmas": "",
        "training-epochs": 1,
        "cost-budgets": "5",
        "quorum": 1.0,
        "node-timeout": 180.0,  # SuperNodes start slowly where cores are few
        "output-dir": str(folder),
    }
    with private_superlink(is_simulation=False) as superlink:
        for partition_id in range(4):
            superlink.start_supernode(partition_id=partition_id, num_partitions=4)
        superlink.start_run(PROJECT, num_supernodes=None, run_config=config).wait(200)
        assert superlink.run_status().status == COMPLETED, superlink.log_tail()
    assert json.loads((folder / "report.json").read_text())["network"]["num_answered"] == 4
    assert_the_engine_gives_the_same_report(folder, tmp_path / "engine", num_clients=4)
    assert metrics_of(folder) == metrics_of(tmp_path / "engine")
