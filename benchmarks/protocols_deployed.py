"""Rounds, messages and seconds of one round against the bisection, over processes of their own.

    python -m benchmarks.protocols_deployed [--clients 4]

A SuperLink and one SuperNode process per client, on the loopback interface; `flwr run` twice, once with each protocol,
at one cost budget. Every message starts a ClientApp process: that is what a round costs here. The simulated network,
which is asked last, must give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.protocols import run
from simulations.launcher import PrivateSuperLink, private_superlink

APP_FOLDER = Path(__file__).parent.parent
SETTINGS = {"cost-budgets": "5", "bisection-tolerance": 0.01, "training-epochs": 2}
SCENARIO = {"strategy": "wasserstein", "dirichlet-concentration": 0.0, "num-unseen": 0, "target-sigmas": ""}


def run_deployed(
    superlink: PrivateSuperLink, num_clients: int, protocol: str, folder: Path
) -> tuple[dict[str, Any], float]:
    """Run one protocol and return its report and the seconds of the whole `flwr run`."""
    config = {**SCENARIO, **SETTINGS, "num-clients": num_clients, "protocol": protocol, "output-dir": str(folder)}
    started = time.monotonic()
    superlink.start_run(APP_FOLDER, num_supernodes=None, run_config=config).wait()
    if not (folder / "report.json").exists():
        raise SystemExit(superlink.log_tail())
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report, time.monotonic() - started


def describe(report: dict[str, Any]) -> str:
    """Return what a run took, and the bracket that it found."""
    transport, seconds = report["transport"], report["timing"]["seconds"]["answers"]
    worst = transport["empirical_worst_mean"]
    return (
        f"{transport['num_rounds']} rounds, {transport['num_messages']} messages, answers in {seconds:.1f} s; "
        f"worst mean {worst['lower'][0]:.4f} to {worst['upper'][0]:.4f}"
    )


def main() -> None:
    """Run both protocols over processes, then the simulation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4)
    num_clients = parser.parse_args().clients
    with tempfile.TemporaryDirectory() as out, private_superlink(is_simulation=False) as superlink:
        for partition_id in range(num_clients):
            superlink.start_supernode(partition_id=partition_id, num_partitions=num_clients)
        for protocol in ("one-round", "bisection"):
            report, seconds = run_deployed(superlink, num_clients, protocol, Path(out) / protocol)
            print(f"deployed, {protocol}: {describe(report)}; whole run {seconds:.0f} s", flush=True)
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    for protocol in ("one-round", "bisection"):
        report = run("wasserstein-affine", num_clients, f"protocol={protocol}", *settings)
        print(f"simulated, {protocol}: {describe(report)}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.stderr.decode()) from error
