"""The private SuperLink with stand-ins for Flower's commands: the ways a start or an end can go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from simulations import launcher
from simulations.launcher import (
    Interrupted,
    LaunchError,
    PrivateSuperLink,
    free_port,
    private_superlink,
    processes_of,
    signals_as_exceptions,
)
from tests.waiting import wait_until

HEALTHY = """
import http.server, sys

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


RAY = """
import os, socket, sys, time

assert "RAY_ADDRESS" not in os.environ
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while not os.path.exists("end"):
    time.sleep(0.05)
"""


def superlink_with(tmp_path: Path, script: str | None, *, ray: str | None = None) -> PrivateSuperLink:
    """Make a SuperLink whose ``flower-superlink`` and ``ray`` are Python scripts of ours, or not there at all."""
    commands, home = tmp_path / "bin", tmp_path / "home"
    commands.mkdir()
    home.mkdir()
    for name, text in (("flower-superlink", script), ("ray", ray)):
        if text is not None:
            command = commands / name
            command.write_text(f"#!{sys.executable}\n{text}")
            command.chmod(0o755)
    environment = {"PATH": str(commands), "FLWR_HOME": str(home / "flwr"), "RAY_ADDRESS": "127.0.0.1:1"}
    ray_port = None if ray is None else free_port()
    return PrivateSuperLink(home=home, environment=environment, port=free_port(), ray_port=ray_port)


def test_where_no_port_is_free_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def no_port() -> int:
        raise LaunchError("no free port")

    monkeypatch.setattr(launcher, "free_port", no_port)
    with pytest.raises(LaunchError, match="no free port"), private_superlink(starts_ray=True):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"flower-superlink was not found.*flwr\[simulation\]"):
        superlink_with(tmp_path, None).start(is_simulation=True)


def test_a_superlink_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    superlink = superlink_with(tmp_path, "raise SystemExit('the port is taken')")
    with pytest.raises(LaunchError, match=r"did not start(.|\n)*the port is taken"):
        superlink.start(is_simulation=True)


def test_a_ray_beside_it_that_fails_to_start_is_reported_with_its_log(tmp_path: Path) -> None:
    superlink = superlink_with(tmp_path, HEALTHY, ray="raise SystemExit('no memory')")
    try:
        with pytest.raises(LaunchError, match=r"Ray, which runs(.|\n)*did not start(.|\n)*--- ray.log\nno memory"):
            superlink.start(is_simulation=True)
    finally:
        superlink.stop()


def test_a_ray_beside_it_that_ends_later_is_noticed_and_said(tmp_path: Path) -> None:
    """Flower itself would go on trying to reach it."""
    superlink = superlink_with(tmp_path, HEALTHY, ray=RAY)
    started = []
    try:
        superlink.start(is_simulation=True, meanwhile=lambda: started.extend(superlink.children))
        assert len(started) == 2  # while both start
        assert not superlink.has_lost_ray()
        assert superlink.simulation_problem() == ""
        (superlink.home / "end").touch()
        wait_until(superlink.has_lost_ray, timeout=60)
        problem = superlink.simulation_problem()
        assert "Ray, which runs the simulated clients, failed: it ended before the run did" in problem
        assert "--resume" in problem
    finally:
        superlink.stop()


def test_stop_ends_stubborn_orphaned_and_unrecognisable_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "STOP_TIMEOUT", 1.0)
    monkeypatch.setattr(launcher, "START_TIMEOUT", 2.0)
    # It ignores SIGTERM, has started a process in a session of its own whose parent is gone, and one
    # without FLWR_HOME in its environment, as Ray's agents are once they have changed their title.
    superlink = superlink_with(
        tmp_path,
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={})\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "time.sleep(600)\n",
    )
    with pytest.raises(LaunchError):
        superlink.start(is_simulation=True)
    sessions = set(processes_of(superlink.home).values())
    assert len(sessions) == 2
    assert len(processes_of(superlink.home)) == 2
    assert len(processes_of(superlink.home, sessions=sessions)) == 3
    superlink.stop()
    assert processes_of(superlink.home, sessions=sessions) == {}


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "\x1b[91mERROR \x1b[0m:     An exception occured!! The current node timed out during startup. This could "
            "happen because some of the raylet failed to startup or the GCS has become overloaded.\n",
            "Ray, which runs the simulated clients, failed: it did not start in time (The current node timed out",
        ),
        (
            "ERROR: An exception occured!! ActorPool is empty. Stopping\nTraceback\n",
            "failed: ActorPool is empty. Stopping;",
        ),
        ("ValueError: the ServerApp raised\n", ""),
        (None, ""),
    ],
)
def test_a_simulation_that_broke_down_is_told_from_its_log(tmp_path: Path, log: str | None, words: str) -> None:
    superlink = superlink_with(tmp_path, None)
    if log is not None:
        superlink.logs[1].write_text(log)
    problem = superlink.simulation_problem()
    assert words in problem
    assert bool(words) == ("run again when it has more room, with --resume" in problem)


def test_processes_of_others_are_not_ours(tmp_path: Path) -> None:
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "other" / "flwr")}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as other:
        assert processes_of(tmp_path / "home") == {}
        assert list(processes_of(tmp_path / "other")) == [other.pid]
        assert other.stdin is not None
        other.stdin.write(b"\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_an_exception_and_the_old_handler_comes_back(signum: signal.Signals) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(Interrupted) as caught, signals_as_exceptions():
        signal.raise_signal(signum)
    assert caught.value.signum == signum
    assert signal.getsignal(signum) is before


def test_a_listing_that_says_nothing_is_a_launch_error(tmp_path: Path) -> None:
    superlink = superlink_with(tmp_path, None)
    command = Path(superlink.environment["PATH"]) / "flwr"
    command.write_text(f"#!{sys.executable}\nprint('no runs')")
    command.chmod(0o755)
    with pytest.raises(LaunchError, match="did not start the run"):
        superlink.run_status()
