"""An existing Ray cluster: two nodes (raylets) on the loopback interface, one of which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.ray_cluster import reached_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc"),
]

PROJECT = Path(__file__).resolve().parents[2]
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
if sys.stdin.readline() == "kill\\n":
    cluster.remove_node(second, allow_graceful=False)
    print("killed", flush=True)
    sys.stdin.readline()
cluster.shutdown()
"""
# As the launcher's own Ray: no other interface, and no report to Ray's makers.
ENVIRONMENT = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class TwoNodes:
    """A cluster of two nodes with one CPU each, in a process that ends with a line on its standard input."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            env=ENVIRONMENT,
        )
        self.address = self._next_line()

    def kill_one(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        assert self._next_line() == "killed"

    def end(self) -> None:
        self.process.communicate("end\n", timeout=60)

    def _next_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def cluster() -> Iterator[TwoNodes]:
    nodes = TwoNodes()
    try:
        yield nodes
    finally:
        nodes.end()


def start(cluster: TwoNodes, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "simulations", "--ray-address", cluster.address, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=PROJECT, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def homes_of_workers() -> set[int]:
    """The processes (raylets) that started the workers which run clients now."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::ClientAppActor" in (folder / "cmdline").read_bytes():
                found.add(int((folder / "stat").read_text().rpartition(")")[2].split()[1]))
        except OSError:
            continue
    return found


def wait_for_answers(ledger: Path, *, process: subprocess.Popen[str], num_answers: int) -> None:
    while not (ledger.exists() and ledger.read_text().count("\n") > num_answers):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)


def test_a_node_that_has_just_died_is_not_counted(cluster: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert len(reached_cluster(cluster.address).nodes) == 2
    cluster.kill_one()  # Ray itself says for some seconds that both are alive
    assert len(reached_cluster(cluster.address).nodes) == 1


def test_clients_run_on_all_nodes_and_the_death_of_one_fails_the_run_which_is_resumed(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    process = start(cluster, "--client-gpus", "1", "--out", str(tmp_path / "none"))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert f"must fit on one node of {cluster.address}, got 1 CPU and 1 GPU" in err

    folder, before = tmp_path / "out", homes_of_workers()
    size = ["--clients", "20", "--out", str(folder), "--set", "num-unseen=0", "training-epochs=1", "quorum=1"]
    size += ["examples-per-client=5000", "figure-format=svg"]
    process = start(cluster, *size)
    wait_for_answers(folder / "ledger.jsonl", process=process, num_answers=6)
    assert len(homes_of_workers() - before) == 2
    cluster.kill_one()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    reason = json.loads((folder / "failed.json").read_text())["reason"]
    assert "Ray" in reason
    assert "--resume" in reason

    process = start(cluster, *size, "--resume")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    report = json.loads((folder / "report.json").read_text())
    assert report["network"]["num_answered"] == 20
    assert 0 < report["metrics"]["by_type"]["query.loss"]["num_messages"] < 15
