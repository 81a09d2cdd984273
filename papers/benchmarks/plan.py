"""The power that a plan claims, against networks that are drawn without it.

    python -m papers.benchmarks.plan [--networks 4000]

At each of 20 settings `rb.plan` names a number of clients and the probability that they pass. As many clients are then
drawn anew, from numpy's Beta and binomial distributions, and bounded by the library's own functions; the share of
networks that meet the limit has a standard error of about 0.6 percentage points. The last line names the largest
difference, and how many are beyond two points.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np

import riskband as rb


class Setting(NamedTuple):
    """One question to a plan."""

    target: str
    mean: float
    spread: float
    num_examples: int
    delta: float = 0.05
    power: float = 0.8


SETTINGS = [
    Setting("mean<=0.15", 0.125, 0.066, 100),
    Setting("mean<=0.16", 0.125, 0.066, 20),
    Setting("mean<=0.16", 0.125, 0.066, 500, power=0.9),
    Setting("mean<=0.2", 0.12, 0.1, 50, delta=0.1),
    Setting("mean<=0.3", 0.2, 0.15, 100, delta=0.01),
    Setting("mean<=0.05", 0.03, 0.02, 200),
    Setting("mean>=0.1", 0.125, 0.066, 100),
    Setting("mean<=0.45", 0.4, 0.1, 30, power=0.5),
    Setting("gini<=0.5", 0.125, 0.066, 100),
    Setting("gini<=0.6", 0.2, 0.15, 100, delta=0.1),
    Setting("share:0.3<=0.12", 0.125, 0.066, 100),
    Setting("share:0.5<=0.2", 0.2, 0.15, 50),
    Setting("share:0.2<=0.1", 0.1, 0.03, 400, delta=0.1),
    Setting("share:0.3<=0.2", 0.125, 0.066, 30, power=0.9),
    Setting("quantile:0.9<=0.4", 0.125, 0.066, 100),
    Setting("quantile:0.5<=0.2", 0.125, 0.066, 100, delta=0.1),
    Setting("mean@chi2:0.1<=0.22", 0.125, 0.066, 100),
    Setting("mean@kl:0.1<=0.3", 0.125, 0.066, 50, delta=0.1),
    Setting("share:0.3@chi2:0.1<=0.25", 0.125, 0.066, 100),
    Setting("share:0.4@kl:0.05<=0.2", 0.125, 0.066, 50),
]


def passes(risks: rb.ClientRisks, target: str, delta: float) -> bool:
    """Whether the bound of the library keeps to the limit, as the gate reads it."""
    sign = "<=" if "<=" in target else ">="
    name, limit = target.split(sign)
    if "@" in name:
        return bool(rb.bound(risks, name, delta=delta / 2).value <= float(limit))
    found = rb.bound(risks, name, delta=delta, sides="two")
    return bool(found.value <= float(limit) if sign == "<=" else found.lower >= float(limit))


def simulated_power(setting: Setting, num_clients: int, *, num_networks: int, seed: int) -> float:
    """Share of fresh networks that pass."""
    total = setting.mean * (1.0 - setting.mean) / setting.spread**2 - 1.0
    passed = 0
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        true = rng.beta(setting.mean * total, (1.0 - setting.mean) * total, size=num_clients)
        values = rng.binomial(setting.num_examples, true) / setting.num_examples
        passed += passes(rb.ClientRisks(values, setting.num_examples, True), setting.target, setting.delta)
    return passed / num_networks


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=4000, help="drawn at each setting (default: 4000)")
    num_networks = parser.parse_args().networks
    print("| target | Beta mean, sd | examples | delta | clients | claimed | simulated | difference | seconds of CPU |")
    print("|---|---|---|---|---|---|---|---|---|")
    differences = []
    for place, setting in enumerate(SETTINGS):
        start = time.process_time()
        prior = f"beta:{setting.mean:g}:{setting.spread:g}"
        best = rb.plan(
            setting.target, prior=prior, num_examples=setting.num_examples, delta=setting.delta, power=setting.power
        ).best
        seconds = time.process_time() - start
        found = simulated_power(setting, best.num_clients, num_networks=num_networks, seed=1_000 + place)
        differences.append(best.power - found)
        law = f"{setting.mean:g}, {setting.spread:g} | {setting.num_examples} | {setting.delta:g}"
        numbers = f"{best.num_clients:,} | {best.power:.3f} | {found:.3f} | {differences[-1]:+.3f} | {seconds:.0f}"
        print(f"| `{setting.target}` | {law} | {numbers} |", flush=True)
    beyond = int(np.sum(np.abs(differences) > 0.02))
    print(f"largest difference {np.abs(differences).max():.3f}; {beyond} of {len(differences)} are beyond 0.02")


if __name__ == "__main__":
    main()
