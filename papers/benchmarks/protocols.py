"""Rounds, messages and seconds of one round against the bisection, on the same network; and against plain losses.

    python -m papers.benchmarks.protocols [--clients 300] [--losses-only-clients 500] [--deployed-clients 0]

Runs `python -m simulations` (a private SuperLink, Ray) four times: the Wasserstein strategy by one round and by
bisection at three cost budgets, and one round of 50 radii beside plain losses on more clients. The seconds are those
between the first question and the last answer, start-up of Ray included. With `--deployed-clients 4`, instead: both
protocols at one cost budget over a SuperLink and one SuperNode process per client on the loopback interface, where
every message starts a ClientApp process; the simulated network, which is asked last, must give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from simulations.launcher import PrivateSuperLink, private_superlink

NO_CHECKS = ("num-unseen=0", "target-sigmas=")
DEPLOYED_SETTINGS = {"cost-budgets": "5", "bisection-tolerance": 0.01, "training-epochs": 2}
DEPLOYED_SCENARIO = {"strategy": "wasserstein", "dirichlet-concentration": 0.0, "num-unseen": 0, "target-sigmas": ""}


def run(scenario: str, num_clients: int, *settings: str) -> dict[str, Any]:
    """Run a scenario and return its report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simulations", scenario, "--engine", "ray", "--clients", str(num_clients)]
        subprocess.run([*command, "--out", folder, "--set", *NO_CHECKS, *settings], check=True, capture_output=True)
        report: dict[str, Any] = json.loads((Path(folder) / "report.json").read_text())
        return report


def compare_protocols(num_clients: int) -> None:
    """Print what each protocol found, and what it took."""
    found = {}
    for protocol in ("one-round", "bisection"):
        report = run("wasserstein-affine", num_clients, f"protocol={protocol}", "cost-budgets=1,5,20")
        found[protocol] = report["transport"]
        worst = report["transport"]["empirical_worst_mean"]
        cost = f"{report['transport']['num_rounds']} rounds, {report['transport']['num_messages']} messages"
        seconds = report["timing"]["seconds"]["answers"]
        ends = ", ".join(f"{low:.4f} to {high:.4f}" for low, high in zip(worst["lower"], worst["upper"], strict=True))
        print(f"{protocol:>10}: {cost}, {seconds:.1f} s: {ends}")
    uppers = [found[protocol]["empirical_worst_mean"]["upper"] for protocol in found]
    print(f"upper ends apart by at most {max(abs(a - b) for a, b in zip(*uppers, strict=True)):.5f}")


def compare_with_plain_losses(num_clients: int) -> None:
    """Print the seconds of 50 radii for every client beside one plain loss for every client."""
    plain = run("affine", num_clients)["timing"]["seconds"]
    radii = run("wasserstein-affine", num_clients, "num-radii=50")["timing"]["seconds"]
    ratio = sum(radii.values()) / sum(plain.values())
    print(f"{num_clients} clients: plain losses {plain['answers']:.1f} s, 50 radii {radii['answers']:.1f} s")
    print(f"the whole ServerApp {sum(plain.values()):.1f} s and {sum(radii.values()):.1f} s, ratio {ratio:.2f}")


def run_deployed(
    superlink: PrivateSuperLink, num_clients: int, protocol: str, folder: Path
) -> tuple[dict[str, Any], float]:
    """Run one protocol and return its report and the seconds of the whole `flwr run`."""
    config = {
        **DEPLOYED_SCENARIO,
        **DEPLOYED_SETTINGS,
        "num-clients": num_clients,
        "protocol": protocol,
        "output-dir": str(folder),
    }
    started = time.monotonic()
    superlink.start_run(Path(__file__).parent.parent, num_supernodes=None, run_config=config).wait()
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


def compare_deployed(num_clients: int) -> None:
    """Run both protocols over processes, then the simulation."""
    with tempfile.TemporaryDirectory() as out, private_superlink(is_simulation=False) as superlink:
        for partition_id in range(num_clients):
            superlink.start_supernode(partition_id=partition_id, num_partitions=num_clients)
        for protocol in ("one-round", "bisection"):
            report, seconds = run_deployed(superlink, num_clients, protocol, Path(out) / protocol)
            print(f"deployed, {protocol}: {describe(report)}; whole run {seconds:.0f} s", flush=True)
    settings = [f"{key}={value}" for key, value in DEPLOYED_SETTINGS.items()]
    for protocol in ("one-round", "bisection"):
        report = run("wasserstein-affine", num_clients, f"protocol={protocol}", *settings)
        print(f"simulated, {protocol}: {describe(report)}")


def main() -> None:
    """Run both comparisons, or the one over processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--losses-only-clients", type=int, default=500)
    parser.add_argument("--deployed-clients", type=int, default=0)
    options = parser.parse_args()
    if options.deployed_clients:
        compare_deployed(options.deployed_clients)
    else:
        compare_protocols(options.clients)
        compare_with_plain_losses(options.losses_only_clients)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.stderr.decode()) from error
