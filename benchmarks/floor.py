"""What a simulation takes above Flower's floor: a trivial app with as many clients, by the same launcher, in one run.

    python -m benchmarks.floor [--clients 300] [--repeats 3]

The trivial app sends one message to every client, which answers with a constant; it imports Flower alone, or torch too,
as every app does that evaluates a model. Flower starts Ray for it when its run begins; or the launcher does so before
(`starts_ray`), as for ours. Ours is the quickstart without unseen clients (`num-unseen = 0`), as it stands, and in this
process instead of Ray. They take turns; of the repetitions the median is shown, in seconds from the command to its end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
TRIVIAL, TRIVIAL_WITH_TORCH = "a trivial Flower app, on Ray", "the same, and it imports torch"
OURS = "ours on Ray, no unseen"
PROJECT = """
[project]
name = "trivial"
version = "0.0.0"
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "trivial_app:server"
clientapp = "trivial_app:client"
[tool.flwr.app.config]
num-clients = 0
"""
APP = """
import time
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def answer(message, context):
    return Message(RecordDict({"answer": MetricRecord({"loss": 0.5})}), reply_to=message)

@server.main()
def main(grid, context):
    num_clients = context.run_config["num-clients"]
    while len(nodes := list(grid.get_node_ids())) < num_clients:
        time.sleep(0.1)
    question = RecordDict({"question": MetricRecord({"round": 1})})
    replies = list(grid.send_and_receive([Message(question, node, "query") for node in nodes]))
    if len(replies) != num_clients or any(reply.has_error() for reply in replies):
        raise RuntimeError(f"{num_clients} clients must answer, got {len(replies)}")
"""
LAUNCH = """
import sys
from pathlib import Path
from simulations.launcher import COMPLETED, private_superlink

num_clients = int(sys.argv[2])
with private_superlink(starts_ray=sys.argv[3:] == ["ray"]) as superlink:
    superlink.start_run(Path(sys.argv[1]), num_supernodes=num_clients, run_config={"num-clients": num_clients}).wait()
    status = superlink.run_status()
sys.exit(status.status != COMPLETED)
"""


def run_trivial(folder: Path, *options: str, num_clients: int, imports: str = "") -> None:
    """Run the trivial app by our launcher; with the option "ray", on a Ray that it has started beforehand."""
    project = folder / "trivial"
    project.mkdir(exist_ok=True)
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "trivial_app.py").write_text(imports + APP)
    subprocess.run([sys.executable, "-c", LAUNCH, str(project), str(num_clients), *options], cwd=ROOT, check=True)


def run_ours(folder: Path, *options: str, num_clients: int) -> None:
    """Run the quickstart."""
    command = [sys.executable, "-m", "simulations", "--clients", str(num_clients), "--out", str(folder / "out")]
    subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True)


def seconds_of(run: Callable[[], None]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def seconds_taken(*, num_clients: int = 300, repeats: int, only: Sequence[str] = ()) -> dict[str, list[float]]:
    """Return the seconds of each repetition of every run, or of some by their names."""
    without_unseen = ("--set", "num-unseen=0")
    with tempfile.TemporaryDirectory() as name:
        folder, size = Path(name), {"num_clients": num_clients}
        runs: dict[str, Callable[[], None]] = {
            TRIVIAL: lambda: run_trivial(folder, **size),
            TRIVIAL_WITH_TORCH: lambda: run_trivial(folder, **size, imports="import torch\n"),
            "the trivial app, Ray beforehand": lambda: run_trivial(folder, "ray", **size),
            OURS: lambda: run_ours(folder, "--engine", "ray", *without_unseen, **size),
            "ours in process, no unseen": lambda: run_ours(folder, "--engine", "in-process", *without_unseen, **size),
            "ours in process": lambda: run_ours(folder, "--engine", "in-process", **size),
        }
        taken: dict[str, list[float]] = {each: [] for each in only or runs}
        for _ in range(repeats):
            for each, seconds in taken.items():
                seconds.append(seconds_of(runs[each]))
    return taken


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    taken = seconds_taken(num_clients=options.clients, repeats=options.repeats)
    floor = median(taken[TRIVIAL])
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[2]:.1f}"
    print(
        f"{options.clients} clients, median of {options.repeats}, seconds, and as a multiple of the trivial app; {load}"
    )
    for each, seconds in taken.items():
        print(f"{each:32} {median(seconds):6.1f} {median(seconds) / floor:6.2f}")


if __name__ == "__main__":
    main()
