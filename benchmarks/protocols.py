"""Rounds, messages and seconds of one round against the bisection, on the same network; and against plain losses.

    python -m benchmarks.protocols [--clients 300] [--losses-only-clients 500]

Runs `python -m simulations` (a private SuperLink, Ray) four times: the Wasserstein strategy by one round and by
bisection at three cost budgets, and one round of 50 radii beside plain losses on more clients. The seconds are those
between the first question and the last answer, start-up of Ray included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NO_CHECKS = ("num-unseen=0", "target-sigmas=")


def run(scenario: str, num_clients: int, *settings: str) -> dict[str, Any]:
    """Run a scenario and return its report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simulations", scenario, "--clients", str(num_clients), "--out", folder]
        subprocess.run([*command, "--set", *NO_CHECKS, *settings], check=True, capture_output=True)
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


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--losses-only-clients", type=int, default=500)
    options = parser.parse_args()
    compare_protocols(options.clients)
    compare_with_plain_losses(options.losses_only_clients)


if __name__ == "__main__":
    main()
