"""The log of events: complete, in order, free of answers, and readable after any interruption."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from server.run.folder import ResultFolder, read_events
from server.run.ledger import read_ledger
from strategies.asking.query import QuorumError
from tests.server.running import raises, run_app

SOMETIMES = ("stage_started", "client_failed", "replies_received")
HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
CLIENT = {"type": ["string", "null"]}
FAILED = {
    **dict.fromkeys(("client_id", "claimed_name", "node_name", "node"), CLIENT),
    "reason": {"type": "string"},
}
FAILURE = {"type": "object", "properties": FAILED, "required": list(FAILED), "additionalProperties": False}
SETTLED = {
    "num_asked": {"type": "integer"},
    "num_answered": {"type": "integer"},
    "failures": {"type": "array", "items": FAILURE},
}
IN_LEDGER = {"num_answers_in_ledger": {"type": "integer"}, "ledger_hash": HASH}
FIELDS: dict[str, dict[str, Any]] = {
    "run_started": {"run_id": {"type": "string"}, "code_hash": {"type": "string"}, "config": {"type": "object"}},
    "ledger_begun": IN_LEDGER,
    "run_resumed": IN_LEDGER,
    "torn_line_cut": {"num_bytes": {"type": "integer"}},
    "client_met": {
        "client_id": {"type": "string"},
        "node": {"type": "string"},
        "budget_left": {"type": ["integer", "null"]},
    },
    "replies_received": {"num_replies": {"type": "integer"}, "bytes_received": {"type": "integer"}},
    "stage_started": {"stage": {"type": "string"}},
    "model_prepared": {"model_hash": {"type": "string"}},
    "round_asked": {
        "round": {"type": "string"},
        "type": {"type": "string"},
        "num_messages": {"type": "integer"},
        "bytes_sent": {"type": "integer"},
    },
    "answer_accepted": {"ledger_hash": HASH, **{key: {"type": "string"} for key in ("round", "client_id", "node")}},
    "refusal_kept": {"client_id": {"type": "string"}, "ledger_hash": HASH},
    "client_failed": {"round": {"type": "string"}, **FAILED},
    "answers_looked_at": {"client_id": {"type": "string"}},
    "answers_settled": SETTLED,
    "quorum_missed": {"num_needed": {"type": "integer"}, **SETTLED},
    "certificate_written": {"name": {"type": "string"}},
    "files_written": {"files": {"type": "object", "additionalProperties": HASH}},
    "run_ended": {"status": {"enum": ["completed", "failed"]}, "error": {"type": ["string", "null"]}},
}


def events_of(folder: Path) -> list[dict[str, Any]]:
    """The events of a run, each checked for its fields; times never go back."""
    events = read_events(folder / "events.jsonl")
    for event in events:
        properties = {"time": {"type": "string"}, "event": {"type": "string"}, "before": HASH, **FIELDS[event["event"]]}
        schema = {"properties": properties, "required": list(properties), "additionalProperties": False}
        jsonschema.validate(event, schema)
    times = [datetime.fromisoformat(event["time"]) for event in events]
    assert times == sorted(times)
    assert all(time.utcoffset() == timedelta(0) for time in times)
    return events


def named(events: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] in names]


def without_repetitions(events: list[dict[str, Any]]) -> list[str]:
    names = [event["event"] for event in events]
    return [name for name, before in zip(names, ["", *names], strict=False) if name != before]


@pytest.fixture(scope="module")
def with_failures(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("with-failures")
    wrong_name = {3: {"client-id": "hospital-a"}}
    run_app(folder, defaults, behaviours={2: raises}, node_configs=wrong_name, quorum=0.8)
    return folder


def test_a_run_from_start_to_end(with_failures: Path) -> None:
    events = events_of(with_failures)
    report = json.loads((with_failures / "report.json").read_text())
    assert without_repetitions([e for e in events if e["event"] not in SOMETIMES]) == [
        "run_started",
        "model_prepared",
        "ledger_begun",
        "round_asked",
        "answer_accepted",
        "answers_settled",
        "certificate_written",
        "files_written",
        "run_ended",
    ]
    assert events[0]["config"]["seed"] == report["seed"]
    assert events[0]["code_hash"] == report["hashes"]["code"]
    (prepared,) = named(events, "model_prepared")
    assert prepared["model_hash"] == report["hashes"]["model"]
    (asked,) = named(events, "round_asked")
    assert (asked["round"], asked["type"], asked["num_messages"]) == ("1", "query.loss", 12)
    assert asked["bytes_sent"] == report["metrics"]["bytes_sent"]
    accepted = [event["client_id"] for event in named(events, "answer_accepted")]
    assert sorted(accepted) == report["network"]["client_ids"]
    received = named(events, "replies_received")
    assert sum(event["bytes_received"] for event in received) == report["metrics"]["bytes_received"]
    assert sum(event["num_replies"] for event in received) == report["metrics"]["num_replies"] == 12
    assert [event["name"] for event in named(events, "certificate_written")] == list(report["certificates"])
    assert (events[-1]["status"], events[-1]["error"]) == ("completed", None)


def test_failures_are_logged_as_they_come_and_once_more_when_all_is_settled(with_failures: Path) -> None:
    events = events_of(with_failures)
    report = json.loads((with_failures / "report.json").read_text())
    failed = Counter((event["client_id"], event["reason"]) for event in named(events, "client_failed"))
    assert failed == Counter({(None, "client-raised"): 1, ("hospital-a", "unknown-client"): 1})
    (settled,) = named(events, "answers_settled")
    assert Counter((each["client_id"], each["reason"]) for each in settled["failures"]) == failed
    assert settled["num_answered"] == report["network"]["num_answered"] == 10


def test_no_answer_is_in_the_log(with_failures: Path) -> None:
    text = (with_failures / "events.jsonl").read_text()
    for answer in read_ledger(with_failures / "ledger.jsonl")[1]:
        assert json.dumps(answer.risk) not in re.findall(r"[\d.e-]+", text.partition("model_prepared")[2])
    assert "this client is broken" not in text  # a client's own words may hold numbers
    assert "risk" not in text.replace("computing the exact risks", "").partition("model_prepared")[2]


def test_a_failed_run_and_the_resumed_one_are_one_log(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, behaviours=dict.fromkeys(range(4), raises))
    events = events_of(tmp_path)
    (missed,) = named(events, "quorum_missed")
    assert (missed["num_needed"], missed["num_asked"], missed["num_answered"]) == (11, 12, 8)
    assert [each["reason"] for each in missed["failures"]] == ["client-raised"] * 4
    assert (events[-1]["event"], events[-1]["status"], events[-1]["error"]) == ("run_ended", "failed", "QuorumError")

    with (tmp_path / "events.jsonl").open("a") as log:
        log.write('{"time": "2026-01-01T00:0')  # as a crash leaves it
    run_app(tmp_path, defaults, resume="true")
    both = events_of(tmp_path)
    assert both[: len(events)] == events
    resumed = both[len(events) :]
    assert without_repetitions(named(resumed, "run_started", "run_resumed", "round_asked", "run_ended")) == [
        "run_started",
        "run_resumed",
        "round_asked",
        "run_ended",
    ]
    assert named(resumed, "run_resumed")[0]["num_answers_in_ledger"] == 8
    rounds = [(event["round"], event["type"], event["num_messages"]) for event in named(resumed, "round_asked")]
    assert rounds == [("0", "query.hello", 12), ("1", "query.loss", 4)]
    assert {event["client_id"] for event in named(resumed, "answer_accepted")} == {f"client-{k:05d}" for k in range(4)}
    assert named(resumed, "answers_settled")[0]["num_answered"] == 12


def test_no_stage_is_shown_that_there_is_not(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    for num_unseen in (0, 3):
        run_app(tmp_path, defaults, num_unseen=num_unseen)
        stages = [event["stage"] for event in named(events_of(tmp_path), "stage_started")]
        assert ("computing the exact risks of the unseen clients" in stages) == (num_unseen > 0)


def test_a_new_run_begins_a_new_log(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    for _ in range(2):
        with pytest.raises(QuorumError):
            run_app(tmp_path, defaults, num_nodes=3)
    events = events_of(tmp_path)
    assert [event["event"] for event in events].count("run_started") == 1
    assert [each["reason"] for each in named(events, "quorum_missed")[0]["failures"]] == ["node-missing"] * 9


def test_an_error_of_the_server_is_named_without_its_words(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    (tmp_path / "weights.pt").write_text("no weights")
    folder = tmp_path / "out"
    with pytest.raises(ValueError, match="must be a readable state dict"):
        run_app(folder, defaults, training="checkpoint", checkpoint=str(tmp_path / "weights.pt"))
    last = events_of(folder)[-1]
    assert (last["event"], last["status"], last["error"]) == ("run_ended", "failed", "ValueError")
    assert "must be a readable state dict" in json.loads((folder / "failed.json").read_text())["reason"]


def test_rounds_of_a_bisection_are_told_apart(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    settings = {"strategy": "wasserstein", "protocol": "bisection", "cost_budgets": "0.1", "num_unseen": 0}
    report = run_app(tmp_path, defaults, **settings)
    events = events_of(tmp_path)
    rounds = [event["round"] for event in named(events, "round_asked")]
    assert rounds == [str(number) for number in range(1, report["transport"]["num_rounds"] + 1)]
    accepted = Counter(event["round"] for event in named(events, "answer_accepted"))
    assert accepted == {event["round"]: event["num_messages"] for event in named(events, "round_asked")}


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_torn_last_line_is_left_out_and_later_removed_and_said(tmp_path: Path, cut: int) -> None:
    path, folder = tmp_path / "events.jsonl", ResultFolder(tmp_path)
    for number in range(3):
        folder.log_event("run_counted", number=number, word="größer\nals")
    size = len(path.read_bytes().splitlines()[-1]) + 1
    path.write_bytes(path.read_bytes()[:-cut])
    assert [event["number"] for event in read_events(path)] == [0, 1]
    folder.clear(resume=True)
    folder.log_event("run_counted", number=3)
    *_, before, said, last = events = read_events(path)
    assert [event.get("number") for event in events] == [0, 1, None, 3]
    assert (before["number"], last["number"]) == (1, 3)
    assert (said["event"], said["num_bytes"]) == ("torn_line_cut", size - cut)
    assert events[0]["word"] == "größer\nals"
    assert_is_a_chain(path)
    age = datetime.now(UTC) - datetime.fromisoformat(last["time"])
    assert timedelta(0) <= age < timedelta(minutes=1)


def assert_is_a_chain(path: Path) -> None:
    """As coreutils see it: `sed -n 3p events.jsonl | sha256sum` is in line 4."""
    count = len(path.read_bytes().splitlines())
    for number in range(1, count):
        shown = subprocess.run(f"sed -n {number}p {path} | sha256sum", shell=True, capture_output=True, check=True)
        after = json.loads(path.read_bytes().splitlines()[number])
        assert shown.stdout.decode().split()[0] == after["before"]


def test_the_log_is_a_chain_that_begins_with_the_configuration(tmp_path: Path) -> None:
    """A line of any length; an empty file is none."""
    config, folder = {"seed": 1, "loss": "zero_one"}, ResultFolder(tmp_path)
    (tmp_path / "events.jsonl").touch()
    folder.log_event("run_started", config=config)
    for number in (0, 100_000, 0):
        folder.log_event("counted", words="x" * number)
    assert_is_a_chain(tmp_path / "events.jsonl")
    said = hashlib.sha256(b'{"loss": "zero_one", "seed": 1}').hexdigest()
    assert read_events(tmp_path / "events.jsonl")[0]["before"] == said


def test_an_answer_stands_in_the_log_with_the_hash_of_the_ledger_up_to_it(with_failures: Path) -> None:
    """As `head -n K ledger.jsonl | sha256sum` says it; the header too, before anybody was asked."""
    events = named(events_of(with_failures), "ledger_begun", "answer_accepted")
    lines = (with_failures / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    said = [hashlib.sha256(b"".join(lines[: number + 1])).hexdigest() for number in range(len(lines))]
    assert [event["ledger_hash"] for event in events] == said
    assert [event.get("client_id") for event in events] == [json.loads(line).get("client_id") for line in lines]


def test_what_clients_have_left_is_in_the_log_where_they_were_asked_for_it(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    budget = {"query-budget": 2, "query-budget-file": str(tmp_path / "budget")}
    run_app(tmp_path / "out", defaults, respect_query_budgets="true", node_configs={3: budget}, num_unseen=0)
    met = {event["client_id"]: event["budget_left"] for event in named(events_of(tmp_path / "out"), "client_met")}
    assert met == {f"client-{number:05d}": 2 if number == 3 else None for number in range(12)}


def test_there_is_nothing_to_continue_before_the_first_event(tmp_path: Path) -> None:
    ResultFolder(tmp_path).clear(resume=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "certificates"]


@pytest.mark.parametrize("line", [b"no json", b"[1]", b'{"event": "counted"}', b'{"time": "now"}', b"\xff\xfe", b""])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    ResultFolder(tmp_path).log_event("counted", number=0)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError, match=r"line 2 of .*delete that line"):
        read_events(path)
