"""The deployment of docker-compose.yml over real processes: TLS, SuperNode authentication, and one fault after another.

One stage serves all tests, which run in the order in which they stand; each leaves every service running again.
A node is held in the middle of a round by stopping (SIGSTOP) its ClientApp's side: its SuperNode stays connected and
has the question, so what happens meanwhile happens in the middle of the round.
"""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import riskband as rb
from client.budget import QueryBudget
from deploy.make_keys import make_deployment
from server.run.ledger import read_ledger
from strategies.asking.failures import node_hash
from tests.deployment import compose
from tests.deployment.stage import Stage, can_make_namespaces
from tests.end_to_end.test_flwr_run import assert_the_engine_gives_the_same_report
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc"),
]
NUM_CLIENTS = 4
SETTINGS = ("num-unseen=0", "training-epochs=1", "thresholds=10", "examples-per-client=40")
NODE_ID = re.compile(r"SuperNode ID: (\d+)")
BUDGET = 'query-budget=100 query-budget-file="/state/query-budget.sqlite"'
VARIABLES = {
    "RISKBAND_UID": "0",
    "RISKBAND_GID": "0",
    **{f"NODE_{number}_CONFIG": BUDGET for number in range(1, NUM_CLIENTS + 1)},
}


def certify(
    stage: Stage, name: str, *settings: str, quorum: float = 1.0, resume: bool = False
) -> subprocess.Popen[bytes]:
    """Start a run; each name has a seed of its own, so a model and a question that no client has met before."""
    stage.log("certify").unlink(missing_ok=True)
    seed = zlib.crc32(name.encode())
    options = ["--seed", str(seed), "--out", f"/results/{name}", *(["--resume"] if resume else [])]
    return stage.start("certify", "quickstart", *options, "--set", *SETTINGS, f"quorum={quorum}", *settings)


def assert_ends_with(process: subprocess.Popen[bytes], status: int, stage: Stage) -> None:
    services = ("certify", "superlink", "serverapp")
    assert process.wait(200) == status, "\n".join(f"--- {name}\n{stage.tail(name)}" for name in services)


def results(stage: Stage, name: str) -> Path:
    return stage.folder / "deployment" / "results" / name


def report_of(stage: Stage, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((results(stage, name) / "report.json").read_text())
    return report


def answers(stage: Stage, name: str) -> tuple[Any, ...]:
    ledger = results(stage, name) / "ledger.jsonl"
    return read_ledger(ledger)[1] if ledger.exists() and ledger.stat().st_size else ()


def spent(stage: Stage) -> list[int]:
    """How many losses each client has answered so far, by its own count."""
    found = []
    for number in range(1, NUM_CLIENTS + 1):
        path = stage.folder / "deployment" / "state" / f"clientapp-{number}" / "query-budget.sqlite"
        found.append(QueryBudget(f"client-{number - 1:05d}", 100, path.absolute()).spent().get("loss", 0))
    return found


def certify_until_all_but_one_have_answered(
    stage: Stage, name: str, *settings: str, quorum: float = 1.0
) -> subprocess.Popen[bytes]:
    """Start a run and hold its last client; return when the other answers are on the disk."""
    stage.signal("clientapp-4", signal.SIGSTOP)
    process = certify(stage, name, *settings, quorum=quorum)
    wait_until(
        lambda: process.poll() is not None or len(answers(stage, name)) == NUM_CLIENTS - 1,
        what=lambda: stage.tail("serverapp"),
    )
    assert process.poll() is None, stage.tail("certify")
    return process


def test_a_deployed_run_gives_the_report_of_the_simulation_to_the_last_digit(stage: Stage, tmp_path: Path) -> None:
    assert_ends_with(certify(stage, "plain"), 0, stage)
    assert report_of(stage, "plain")["network"]["num_answered"] == NUM_CLIENTS
    assert_the_engine_gives_the_same_report(results(stage, "plain"), tmp_path, num_clients=NUM_CLIENTS)
    assert spent(stage) == [1, 1, 1, 1]
    written = [results(stage, "plain"), *results(stage, "plain").rglob("*")]
    assert not [path for path in written if path.stat().st_mode & 0o077]  # their owner's alone
    for entry in report_of(stage, "plain")["certificates"].values():
        assert rb.verify(rb.Certificate.load(results(stage, "plain") / entry["file"])).ok


def test_the_superlink_keeps_neither_messages_nor_models_of_a_run_that_ended(stage: Stage) -> None:
    path = stage.folder / "deployment" / "state" / "superlink" / "superlink.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        tables = ("run", "objects", "run_objects", "message_ins", "message_res")
        counts = {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    assert counts == dict.fromkeys(tables, 0) | {"run": 1}


def test_a_node_that_nobody_registered_is_refused(stage: Stage) -> None:
    make_deployment(stage.folder / "deployment", num_nodes=NUM_CLIENTS + 1)  # a key from the same hand, not registered
    stranger = stage.start("supernode-5")
    assert stranger.wait(60) != 0
    assert "Exit Code: 305" in stage.tail("supernode-5")


def test_a_node_without_a_key_and_one_without_tls_are_refused(stage: Stage) -> None:
    (shell, option, script) = compose.argv(stage.services["supernode-5"])
    without_key = script.replace("--auth-supernode-private-key /keys/node.key", "--max-retries 1")
    assert without_key != script
    assert stage.spawn("supernode-5", [shell, option, without_key]).wait(60) != 0
    assert "must be registered" in stage.tail("supernode-5")
    without_tls = without_key.replace("--root-certificates /keys/ca.crt", "--insecure")
    assert without_tls != without_key
    assert stage.spawn("supernode-5", [shell, option, without_tls]).wait(60) != 0


def test_a_clientapp_reaches_its_own_supernode_and_nobody_else(stage: Stage) -> None:
    if not can_make_namespaces():
        pytest.skip("needs network namespaces")
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"

    def reaches(name: str, host: str, port: str) -> bool:
        return stage.spawn(name, ["python", "-c", connect, host, port]).wait(30) == 0

    assert reaches("clientapp-1", "supernode", "9094")
    assert reaches("supernode-1", "proxy", "8443")
    ports = {"superlink": "8000", "proxy": "8443", "supernode-2": "9094"}
    for name, port in ports.items():
        for host in (name, *stage.addresses(name)):
            assert not reaches("clientapp-1", host, port), host
    for host in ("superlink", *stage.addresses("superlink")):
        assert not reaches("supernode-1", host, "8000"), host


def asked(stage: Stage, name: str, *arguments: str) -> dict[str, tuple[int, bool]]:
    """What `asking.py` in the place of a service was answered: for each route the status, and whether by Flower."""
    log = stage.folder / "asking.json"
    log.unlink(missing_ok=True)
    script = Path(__file__).with_name("asking.py").read_text()  # by its text: a path below /tmp would be the service's
    process = stage.spawn(name, ["python", "-c", script, *arguments], log=log)
    assert process.wait(60) == 0, log.read_text()
    return {route: (status, is_flower) for route, (status, is_flower) in json.loads(log.read_text()).items()}


def test_a_client_reaches_no_call_of_the_operators(stage: Stage) -> None:
    # The operator's own calls first: what is refused below is there, and does what it says.
    direct = asked(stage, "register", "superlink:8000", "/keys/ca.crt")
    worked = [f"POST /v1/control/{name}" for name in ("list-nodes", "register-node", "unregister-node", "start-run")]
    worked += [f"POST /v1/control/{name}" for name in ("list-runs", "stop-run", "stream-logs")]
    assert {route: direct[route] for route in worked} == dict.fromkeys(worked, (200, True))
    assert direct["POST /v1/control/pull-artifacts"][1]  # nobody set up where artifacts are
    assert direct["POST /v1%2fcontrol/list-runs"] == (200, True)
    fleet = {route for route in direct if route.startswith("POST /v1/fleet/")}
    for own_key in ([], ["/keys/node.key"]):
        through = asked(stage, "supernode-1", "proxy:8443", "/keys/ca.crt", *own_key)
        assert set(through) == set(direct)
        others = set(direct) - fleet
        if stage.addresses("supernode-1"):
            assert not through["GET /health"][1]
        assert {route for route in others if through[route] != (403, False)} <= {"GET /health", "HEAD /health"}
        # What says no signature ends at the proxy; whose signature it is, Flower says.
        assert {through[route] for route in fleet} == {(401, bool(own_key))}
    assert "POST /v1/control/list-runs" in stage.log("proxy").read_text()


def test_a_superlink_that_is_stopped_or_killed_and_started_again_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    # Its state is on the disk, and the ServerApp is a process of its own that waits for it.
    before = spent(stage)
    process = certify_until_all_but_one_have_answered(stage, "ended")
    for end in (stage.stop, stage.kill):
        end("superlink")
        stage.start("superlink")
        stage.wait_for("superlink")
    stage.signal("clientapp-4", signal.SIGCONT)
    assert_ends_with(process, 0, stage)
    assert_the_engine_gives_the_same_report(results(stage, "ended"), tmp_path, num_clients=NUM_CLIENTS)
    assert spent(stage) == [count + 1 for count in before]


def test_a_run_whose_server_was_lost_with_the_end_of_its_ledger_is_resumed(stage: Stage, tmp_path: Path) -> None:
    before = spent(stage)
    process = certify_until_all_but_one_have_answered(stage, "lost")
    held = answers(stage, "lost")
    for name in ("serverapp", "superlink"):  # the machine that both are on
        stage.kill(name)
    ledger = results(stage, "lost") / "ledger.jsonl"
    with ledger.open("r+b") as file:
        file.truncate(ledger.stat().st_size - 25)  # as if its last line had not reached the disk whole
    for name in ("superlink", "serverapp"):
        stage.start(name)
        stage.wait_for(name)
    stage.signal("clientapp-4", signal.SIGCONT)
    assert_ends_with(process, 1, stage)
    assert "--resume" in stage.tail("certify")
    assert not (results(stage, "lost") / "report.json").exists()

    assert_ends_with(certify(stage, "lost", resume=True), 0, stage)
    after = answers(stage, "lost")
    assert after[: len(held) - 1] == held[:-1]
    assert set(after) > set(held)  # who was torn out repeats its recorded answer
    assert len(after) == NUM_CLIENTS
    assert_the_engine_gives_the_same_report(results(stage, "lost"), tmp_path, num_clients=NUM_CLIENTS)
    assert spent(stage) == [count + 1 for count in before]  # nobody pays twice; recorded answers are free


def test_a_command_that_is_stopped_leaves_its_run_alone_and_resuming_gives_the_same(
    stage: Stage, tmp_path: Path
) -> None:
    before = spent(stage)
    process = certify_until_all_but_one_have_answered(stage, "left")
    stage.signal("certify", signal.SIGTERM)
    process.wait(30)
    stage.signal("clientapp-4", signal.SIGCONT)
    wait_until((results(stage, "left") / "report.json").exists, what=lambda: stage.tail("serverapp"))
    undisturbed = report_of(stage, "left")
    assert_ends_with(certify(stage, "left", resume=True), 0, stage)
    assert report_of(stage, "left")["certificates"] == undisturbed["certificates"]
    assert_the_engine_gives_the_same_report(results(stage, "left"), tmp_path, num_clients=NUM_CLIENTS)
    assert len(answers(stage, "left")) == NUM_CLIENTS  # the resumed run asked nobody
    assert spent(stage) == [count + 1 for count in before]


def test_a_straggler_holds_nobody_longer_than_the_deadline(stage: Stage) -> None:
    process = certify_until_all_but_one_have_answered(stage, "slow", "reply-timeout=60.0", quorum=0.75)
    stage.signal("supernode-4", signal.SIGSTOP)
    try:
        assert_ends_with(process, 0, stage)  # while the straggler stands still
    finally:
        for name in ("supernode-4", "clientapp-4"):
            stage.signal(name, signal.SIGCONT)
    network = report_of(stage, "slow")["network"]
    assert (network["num_answered"], network["clients_without_answer"]) == (NUM_CLIENTS - 1, ["client-00003"])
    assert {failure["reason"] for failure in network["failures"]} <= {"no-reply", "node-unavailable"}
    wait_until(lambda: stage.is_healthy("supernode-4"), every=0.5, what=lambda: stage.tail("supernode-4"))


def test_a_node_killed_in_the_middle_of_a_round_is_named_and_comes_back_with_its_key(stage: Stage) -> None:
    (own_id,) = NODE_ID.findall(stage.log("supernode-4").read_text())
    process = certify_until_all_but_one_have_answered(stage, "node", "node-timeout=5", quorum=0.75)
    stage.kill("clientapp-4")
    stage.kill("supernode-4")
    assert_ends_with(process, 0, stage)
    network = report_of(stage, "node")["network"]
    assert network["num_answered"] == NUM_CLIENTS - 1
    # It has not answered in this run, but its key has its name.
    assert [(failure["client_id"], failure["node_name"], failure["reason"]) for failure in network["failures"]] == [
        ("client-00003", "client-00003", "node-unavailable")
    ]
    assert report_of(stage, "node")["timing"]["nodes_of_failures"] == [node_hash(int(own_id))]
    assert network["clients_without_answer"] == ["client-00003"]
    start_again(stage, own_id)
    assert_ends_with(certify(stage, "again"), 0, stage)
    assert report_of(stage, "again")["network"]["num_answered"] == NUM_CLIENTS


def test_a_node_answers_under_the_name_of_its_key_only(stage: Stage) -> None:
    own = stage.services["supernode-4"]["environment"]
    honest = own["NODE_CONFIG"]
    (own_id,) = set(NODE_ID.findall(stage.log("supernode-4").read_text()))

    def start_as(config: str) -> None:
        own["NODE_CONFIG"] = config
        for name in ("clientapp-4", "supernode-4"):
            stage.kill(name)
        start_again(stage, own_id)

    start_as(honest.replace("client-00003", "client-00000"))
    try:
        assert_ends_with(certify(stage, "stolen", quorum=0.75), 0, stage)
    finally:
        start_as(honest)
    network = report_of(stage, "stolen")["network"]
    assert network["clients_without_answer"] == ["client-00003"]
    assert [(f["client_id"], f["claimed_name"], f["reason"]) for f in network["failures"]] == [
        ("client-00003", "client-00000", "wrong-name")
    ]


def start_again(stage: Stage, own_id: str) -> None:
    """Start the fourth node and its ClientApp; it is connected, under its old id, when this returns."""
    num_starts = len(NODE_ID.findall(stage.log("supernode-4").read_text())) + 1
    stage.start("supernode-4")

    def is_back() -> bool:
        if stage.processes["supernode-4"].poll() is not None:
            stage.start("supernode-4")  # as `restart: unless-stopped` does; too early, it is refused
        is_new = len(NODE_ID.findall(stage.log("supernode-4").read_text())) >= num_starts
        return is_new and stage.is_healthy("supernode-4")

    wait_until(is_back, timeout=180.0, every=0.5, what=lambda: stage.tail("supernode-4"))
    assert set(NODE_ID.findall(stage.log("supernode-4").read_text())) == {own_id}
    stage.start("clientapp-4")
    stage.wait_for("clientapp-4")


def test_a_node_that_is_killed_and_comes_back_in_the_same_round_is_asked_again(stage: Stage, tmp_path: Path) -> None:
    own_id = NODE_ID.findall(stage.log("supernode-4").read_text())[-1]
    before = spent(stage)
    process = certify_until_all_but_one_have_answered(stage, "returned", "node-timeout=170")
    stage.kill("clientapp-4")
    stage.kill("supernode-4")
    start_again(stage, own_id)
    assert_ends_with(process, 0, stage)
    assert report_of(stage, "returned")["network"]["failures"] == []
    assert_the_engine_gives_the_same_report(results(stage, "returned"), tmp_path, num_clients=NUM_CLIENTS)
    assert spent(stage) == [count + 1 for count in before]


def test_a_node_that_was_away_while_the_serverapp_did_not_look_is_asked_again(stage: Stage, tmp_path: Path) -> None:
    # It says goodbye and is back before anybody asks the SuperLink for its answer: then no error says that it was away.
    own_id = NODE_ID.findall(stage.log("supernode-4").read_text())[-1]
    before = spent(stage)
    process = certify_until_all_but_one_have_answered(stage, "unseen", "reply-timeout=90.0")
    stage.signal("serverapp", signal.SIGSTOP)
    stage.kill("clientapp-4")
    stage.stop("supernode-4")
    start_again(stage, own_id)
    stage.signal("serverapp", signal.SIGCONT)
    assert_ends_with(process, 0, stage)
    assert report_of(stage, "unseen")["network"]["failures"] == []
    assert_the_engine_gives_the_same_report(results(stage, "unseen"), tmp_path, num_clients=NUM_CLIENTS)
    assert spent(stage) == [count + 1 for count in before]
