"""Slack of our bounds and of the published ones, above the truth, on the same networks.

    python -m benchmarks.tightness [--networks 20]

Client risks follow Beta(3, 21) (mean 0.125), n examples with 0-1 loss each. For every quantity the table gives the mean
slack (bound minus truth) of the published formula ([RE] Theorems 4.1, 5.2, 5.3) and of ours, and their ratio.
Deterministic: the seed of network i is i.
"""

from __future__ import annotations

import argparse

import numpy as np

import riskband as rb
from worlds.ground_truth import BetaRisks

LAW = BetaRisks(3.0, 21.0)
THRESHOLDS = (0.2, 0.3, 0.4)
BUDGET = 0.1
DELTA = 0.05

METHODS = ("published", "sharp")

Bounds = dict[str, tuple[float, ...]]
"""Truth, published bound, our bound, by name of the quantity."""


def bounds(risks: rb.ClientRisks) -> Bounds:
    """Every compared quantity on one network."""
    ours = rb.band(risks, delta=DELTA, sides="lower")
    published = rb.band(risks, delta=DELTA, method="dkw", local="union", sides="lower")
    found: Bounds = {
        "mean risk": (
            LAW.mean_risk(),
            float(rb.mean_bound(risks, delta=DELTA, method="published").value),
            float(rb.mean_bound(risks, delta=DELTA).value),
        )
    }
    for threshold in THRESHOLDS:
        found[f"P(risk >= {threshold})"] = (
            float(LAW.survival(threshold)),
            float(rb.survival(published, thresholds=threshold).value),
            float(rb.survival(ours, thresholds=threshold).value),
        )
    for name in ("kl", "chi2"):
        shift = {"divergence": name, "budget": BUDGET}
        found[f"worst mean, {name} {BUDGET}"] = (
            LAW.worst_case_mean(name, BUDGET),
            *(float(rb.worst_case_mean(ours, **shift, method=m).value) for m in METHODS),
        )
        for threshold in THRESHOLDS:
            found[f"worst P(risk >= {threshold}), {name} {BUDGET}"] = (
                float(LAW.worst_case_survival(threshold, name, BUDGET)),
                *(float(rb.worst_case_cdf(ours, **shift, thresholds=threshold, method=m).value) for m in METHODS),
            )
    return found


def compare(num_clients: int, num_examples: int, num_networks: int) -> None:
    """Print the table for one size of network."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(num_networks):
        _, empirical = LAW.draw(np.random.default_rng(seed), num_clients=num_clients, num_examples=num_examples)
        for name, row in bounds(rb.ClientRisks(empirical, num_examples)).items():
            rows.setdefault(name, []).append(row)
    print(f"\nK = {num_clients} clients, n = {num_examples} examples, delta = {DELTA}, {num_networks} networks")
    print(f"{'quantity':<36}{'truth':>8}{'published':>11}{'ours':>8}{'slack ratio':>13}")
    for name, values in rows.items():
        truth, published, ours = np.mean(values, axis=0)
        print(f"{name:<36}{truth:>8.3f}{published:>11.3f}{ours:>8.3f}{(published - truth) / (ours - truth):>12.1f}x")


def main() -> None:
    """Run the comparison for four sizes of network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20)
    networks = parser.parse_args().networks
    for num_clients, num_examples in ((50, 200), (500, 100), (500, 1000), (5000, 1000)):
        compare(num_clients, num_examples, networks if num_clients < 5000 else min(networks, 3))


if __name__ == "__main__":
    main()
