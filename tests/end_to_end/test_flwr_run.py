"""`python -m simulations` as a user runs it: real SuperLink, real `flwr run`, real Ray, real signals.

Slow by nature (about ten seconds for Flower and Ray to start), so each run serves several tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import riskband as rb
from client.app import app as client_app
from riskband.flower.testing import Behaviour, InProcessGrid
from server.app import app as server_app
from server.run.folder import read_events
from server.run.ledger import read_ledger
from server.run.lock import LOCK_FILE
from simulations.__main__ import main
from simulations.launcher import COMPLETED, private_superlink
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")

PROJECT = Path(__file__).resolve().parents[2]
LOOPBACK = re.compile(r"0100007F|0000000000000000FFFF00000100007F|0{24}01000000")
LISTENING = "0A"

SMALL = ["num-unseen=10", "examples-per-client=40", "training-epochs=1", "thresholds=10", "quorum=1.0", "seed=3"]


def start(*arguments: str, home: Path, engine: str = "ray") -> subprocess.Popen[str]:
    """Start ``python -m simulations`` with a home folder of its own; what is looked at here is Flower and Ray."""
    command = [sys.executable, "-m", "simulations", "--engine", engine, *arguments]
    environment = {**os.environ, "HOME": str(home)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str], *, timeout: float = 300.0) -> tuple[int, str, str]:
    """Wait for the end; return exit status, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, err


def stat_of(pid: int) -> tuple[str, int, str] | None:
    """State, parent and start time of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1]), fields[19]


def descendants(pid: int) -> dict[int, str]:
    """Ids and start times of all processes below a process (itself excluded)."""
    found = {int(path.name): stat_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    below, parents = {}, {pid}
    while children := {p for p, s in found.items() if s is not None and s[1] in parents and p not in below}:
        below |= {child: found[child][2] for child in children}  # type: ignore[index]
        parents = children
    return below


def is_alive(pid: int, started: str) -> bool:
    """Whether this very process still runs: no other with its id, and no dead one that waits to be counted."""
    stat = stat_of(pid)
    return stat is not None and stat[2] == started and stat[0] != "Z"


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """Local addresses (hexadecimal, as the kernel shows them) that these processes listen on."""
    sockets = set()
    for pid in pids:
        try:
            sockets |= {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
        except FileNotFoundError:
            continue
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                addresses.add(fields[1].partition(":")[0])
    return addresses


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One complete run with 50 clients; what it said, left and started."""
    home = tmp_path_factory.mktemp("home")
    process = start("quickstart", "--clients", "50", "--out", str(home / "out"), "--set", *SMALL, home=home)
    seen: dict[int, str] = {}
    listened: set[str] = set()
    while process.poll() is None and (home / "out" / "report.json").exists() is False:
        now = descendants(process.pid)
        seen |= now
        listened |= listening_addresses(list(now))
        time.sleep(0.2)
    status, out, err = finish(process)
    return {"status": status, "out": out, "err": err, "home": home, "seen": seen, "listened": listened}


def test_a_run_succeeds_and_its_results_are_in_the_users_folder(run: dict[str, Any]) -> None:
    assert run["status"] == 0, run["err"]
    folder = run["home"] / "out"
    report = json.loads((folder / "report.json").read_text())
    assert report["network"]["num_answered"] == 50
    assert len(read_ledger(folder / "ledger.jsonl")[1]) == 50
    for name, entry in report["certificates"].items():
        assert rb.verify(rb.Certificate.load(folder / entry["file"])).ok, name
    names = {"report.json", "report.html", "ledger.jsonl", "events.jsonl", "certificates", "band.png", "band.svg"}
    assert {path.name for path in folder.iterdir()} == names | {".riskband.files"}
    assert not (run["home"] / ".flwr").exists()


def test_a_run_says_what_it_does_and_what_it_found(run: dict[str, Any]) -> None:
    for stage in ("starting Flower", "preparing the model", "asking the clients", "unseen clients"):
        assert stage in run["err"]
    assert "50 expected, 50 asked, 50 answered validly" in run["out"]
    assert "mean risk" in run["out"]


def test_a_run_leaves_no_process_behind(run: dict[str, Any]) -> None:
    assert len(run["seen"]) > 5  # SuperLink, SuperExec, simulation, Ray and its workers
    wait_until(lambda: not [pid for pid, started in run["seen"].items() if is_alive(pid, started)], timeout=20)


def test_a_run_listens_on_the_loopback_interface_only(run: dict[str, Any]) -> None:
    assert run["listened"]
    assert all(LOOPBACK.fullmatch(address) for address in run["listened"]), run["listened"]


def test_flower_and_the_in_process_engine_give_the_same_report(run: dict[str, Any], tmp_path: Path) -> None:
    assert_the_engine_gives_the_same_report(run["home"] / "out", tmp_path, num_clients=50)
    assert metrics_of(run["home"] / "out") == metrics_of(tmp_path)


def test_ray_and_the_command_in_one_process_give_the_same_bytes(run: dict[str, Any], tmp_path: Path) -> None:
    arguments = ["quickstart", "--clients", "50", "--out", str(tmp_path / "out"), "--set", *SMALL]
    status, out, err = finish(start(*arguments, home=tmp_path, engine="in-process"))
    assert status == 0, err
    assert "asking the clients" in err
    assert out.splitlines()[:20] == run["out"].splitlines()[:20]  # the table
    here, there = tmp_path / "out", run["home"] / "out"
    assert {path.name for path in here.iterdir()} == {path.name for path in there.iterdir()}
    reports = [json.loads((folder / "report.json").read_text()) for folder in (here, there)]
    for report in reports:
        del report["timing"]
    assert json.dumps(reports[0]) == json.dumps(reports[1])
    for name in ("band.png", "band.svg", *(entry["file"] for entry in reports[0]["certificates"].values())):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    assert not (tmp_path / ".flwr").exists()


@pytest.mark.slow
def test_an_interrupted_run_in_one_process_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    size = ["--clients", "60", "--out", str(folder), "--set", "examples-per-client=20000", "num-unseen=0"]
    size += ["model=mlp", "training-epochs=1", "figure-format=svg"]
    process = start(*size, home=tmp_path, engine="in-process")
    ledger = folder / "ledger.jsonl"
    wait_until(lambda: ledger.exists() and ledger.read_text().count("\n") > 5)
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process, timeout=60)
    assert status == 130
    assert "interrupted by SIGINT" in err
    assert not {"report.json", "progress.json", LOCK_FILE} & {path.name for path in folder.iterdir()}
    status, _, err = finish(start(*size, "--resume", home=tmp_path, engine="in-process"))
    assert status == 0, err
    report = json.loads((folder / "report.json").read_text())
    assert report["network"]["num_answered"] == 60
    assert 0 < report["metrics"]["by_type"]["query.loss"]["num_messages"] < 60


@pytest.mark.slow
def test_a_failing_server_app_in_one_process_is_a_failing_command(tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_text("no arrays")
    arguments = ["--clients", "2", "--out", str(tmp_path / "out"), "--set", f"dataset=npz:{broken}"]
    status, _, err = finish(start(*arguments, home=tmp_path, engine="in-process"))
    assert status == 1
    assert "Traceback" in err
    reason = json.loads((tmp_path / "out" / "failed.json").read_text())["reason"]
    assert f"the run failed: {reason}" in err
    assert "broken.npz" in reason


@pytest.mark.slow
def test_transport_certificates_through_flower_and_through_the_engine_are_the_same(tmp_path: Path) -> None:
    sizes = ["num-unseen=5", "num-targets=3", "training-epochs=1", "quorum=1.0", "target-sigmas=0.02"]
    arguments = ["--clients", "20", "--out", str(tmp_path / "out"), "--set", *sizes]
    status, out, err = finish(start("wasserstein-affine", *arguments, home=tmp_path))
    assert status == 0, err
    assert "moving unseen clients further" in err
    assert "20 expected, 20 asked, 20 answered validly" in out
    assert "Unseen clients, moved further" in out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["transport"]["num_messages"] == 20
    for name, entry in report["certificates"].items():
        assert rb.verify(rb.Certificate.load(tmp_path / "out" / entry["file"])).ok, name
    assert_the_engine_gives_the_same_report(tmp_path / "out", tmp_path / "engine", num_clients=20)


def assert_the_engine_gives_the_same_report(folder: Path, other: Path, *, num_clients: int) -> None:
    reports = [
        json.loads((folder / "report.json").read_text()),
        report_of_the_engine(folder, other, num_clients=num_clients),
    ]
    for report in reports:
        del report["timing"], report["metrics"]  # a resumed run sends less
    assert json.dumps(reports[0]) == json.dumps(reports[1])
    for entry in reports[0]["certificates"].values():
        assert (folder / entry["file"]).read_bytes() == (other / entry["file"]).read_bytes()


def report_of_the_engine(
    folder: Path, other: Path, *, num_clients: int, behaviours: Mapping[int, Behaviour] | None = None
) -> dict[str, Any]:
    """Run in another folder, in this process, what was run in a folder."""
    config = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= json.loads((folder / "report.json").read_text())["config"]
    config["output-dir"] = str(other)
    grid = InProcessGrid(client_app, num_clients=num_clients, run_config=config, behaviours=behaviours)
    server_app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    report: dict[str, Any] = json.loads((other / "report.json").read_text())
    return report


def metrics_of(folder: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((folder / "report.json").read_text())["metrics"]
    return metrics


@pytest.mark.slow
def test_a_failing_server_app_is_a_failing_command(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    broken = tmp_path / "broken.npz"
    broken.write_text("no arrays")
    status, _, err = finish(
        start("--clients", "2", "--out", str(folder), "--set", f"dataset=npz:{broken}", home=tmp_path)
    )
    assert status == 1
    assert "finished:failed" in err
    assert "broken.npz" in err
    assert "--- superlink.log" in err
    assert {path.name for path in folder.iterdir()} == {
        "failed.json",
        "events.jsonl",
        ".riskband.files",
        "certificates",
        "superlink.log",
        "run.log",
        "ray.log",
    }
    assert "broken.npz" in json.loads((folder / "failed.json").read_text())["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [{"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1000"}, {"RAY_OVERRIDE_RESOURCES": '{"CPU": 0}'}]
)
def test_a_ray_that_cannot_start_leaves_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, str]
) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "out"
    status, _, err = finish(start("--clients", "4", "--out", str(folder), "--set", *SMALL, home=tmp_path))
    assert status == 1
    failure = json.loads((folder / "failed.json").read_text())
    assert "Ray, which runs" in failure["reason"]
    assert "run again" in failure["reason"]
    # Whoever notices first writes it, launcher or ServerApp; both say what broke down.
    assert "Ray, which runs" in err
    # Without memory Ray ends while it starts, before Flower knows of the run or after.
    assert failure["run_id"] or "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES" in setting
    assert not {"report.json", "progress.json", LOCK_FILE} & {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_of_two_runs_into_one_folder_the_second_is_refused_and_others_have_folders_of_their_own(tmp_path: Path) -> None:
    settings = ["--clients", "10", "--set", *SMALL[:-1]]
    runs = [start("--seed", seed, *settings, home=tmp_path) for seed in ("1", "2")]
    results = tmp_path / "riskband-results"
    wait_until(lambda: len(list(results.glob(f"*/{LOCK_FILE}"))) == 2)
    status, _, err = finish(start("--seed", "2", *settings, home=tmp_path))
    assert status == 2
    assert f"process {runs[1].pid} on" in err
    for run, seed in zip(runs, (1, 2), strict=True):
        status, out, err = finish(run)
        assert status == 0, err
        (folder,) = results.glob(f"quickstart-seed{seed}-*")
        assert str(folder) in out
        report = json.loads((folder / "report.json").read_text())
        assert report["seed"] == seed
        # The run whose table was printed; the launcher's lock lets its ServerApp in and is gone with it.
        assert report["timing"]["run_id"] == read_events(folder / "events.jsonl")[0]["run_id"]
        assert not (folder / LOCK_FILE).exists()


def wait_for_workers(process: subprocess.Popen[str]) -> dict[int, str]:
    def has_workers() -> bool:
        for pid in descendants(process.pid):
            with suppress(OSError):  # it may have ended by now
                if b"ClientAppActor" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
        return False

    wait_until(lambda: process.poll() is not None or has_workers())
    return descendants(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_everything_it_started(tmp_path: Path, signum: signal.Signals) -> None:
    folder = tmp_path / "out"
    process = start("--clients", "50", "--out", str(folder), "--set", "examples-per-client=20000", home=tmp_path)
    started = wait_for_workers(process)
    homes = {cwd.readlink() for pid in started if (cwd := Path(f"/proc/{pid}/cwd")).exists()}
    (home,) = {path for path in homes if path.name.startswith("riskband-")}
    process.send_signal(signum)
    time.sleep(0.2)
    process.send_signal(signum)  # an impatient user
    status, _, err = finish(process, timeout=120)
    assert status == 128 + signum, err
    assert f"interrupted by {signum.name}" in err
    assert not [pid for pid, begun in started.items() if is_alive(pid, begun)]
    assert not home.exists()
    assert not {"report.json", "progress.json"} & {path.name for path in folder.iterdir()}


def test_a_wrong_configuration_exits_2_with_all_mistakes_and_starts_nothing(tmp_path: Path) -> None:
    process = start("--clients", "0", "--set", "delta=2", "loss=mse", "foo=1", home=tmp_path)
    status, _, err = finish(process, timeout=120)
    assert status == 2
    assert [line.split()[1] for line in err.splitlines()] == ["num-clients", "loss", "delta", "foo"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "use one of affine, both, "),
        (["--set", "delta"], "KEY=VALUE"),
        (["--out", "/proc/nowhere"], "output-dir must be a folder that can be written"),
    ],
)
def test_a_wrong_command_line_exits_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "num_clients"), [("quickstart", 300), ("both", 500)])
def test_flwr_run_by_hand_with_a_scenario_file_misses_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, num_clients: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with private_superlink() as superlink:
        command = ["flwr", "run", ".", "private", "--stream", "-c", f"simulations/scenarios/{scenario}.toml"]
        command += ["--federation-config", f"num-supernodes={num_clients} client-resources-num-cpus=1"]
        subprocess.run(command, cwd=PROJECT, env=dict(superlink.environment), check=True, capture_output=True)
        assert superlink.run_status().status == COMPLETED
    report = json.loads((tmp_path / "riskband-results" / scenario / "report.json").read_text())
    assert report["network"]["num_answered"] == num_clients
