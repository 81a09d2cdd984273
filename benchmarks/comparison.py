"""How wide the bound on the mean change between two models is, against what one would do otherwise.

    python -m benchmarks.comparison [--networks 100]

Risks under the old model ~ Beta(3, 21), 200 examples for each client; the new one repairs a fifth of the errors and
makes one of a hundred right examples wrong. Upper bounds above the true mean change, as means over networks: paired,
and of the new mean from above minus the old one from below, at delta/2 each. And how often the prediction interval of
a random-effects model misses the true change of the next client, where a tenth gets .2 worse, others .02 better.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import t

import riskband as rb
from riskband.checks import FloatArray
from riskband.functionals.functional import interval_of

DELTA, NUM_EXAMPLES, BETTER, WORSE = 0.05, 200, 0.2, 0.01
MEAN_CHANGE = WORSE * 21 / 24 - BETTER * 3 / 24


def upper_bounds(num_clients: int, *, seed: int) -> tuple[float, float]:
    """Paired and unpaired upper bound on the mean change in one network."""
    rng = np.random.default_rng(seed)
    wrong = rng.binomial(NUM_EXAMPLES, rng.beta(3, 21, num_clients))
    worse, better = rng.binomial(NUM_EXAMPLES - wrong, WORSE), rng.binomial(wrong, BETTER)
    changes = rb.ClientChanges.from_counts(worse, better, NUM_EXAMPLES, old_wrong=wrong)
    new, old = (rb.ClientRisks(each, NUM_EXAMPLES, True) for each in (changes.new, changes.old))
    (_, above), (below, _) = (interval_of(each, "mean", delta=DELTA) for each in (new, old))  # DELTA / 2 for each end
    return float(rb.bound(changes, "change", delta=DELTA).value), above - below


def prediction_interval(changes: FloatArray, variances: FloatArray) -> tuple[float, float]:
    """Of a random-effects model (DerSimonian-Laird, quantile of t with K - 2 degrees of freedom), at 1 - DELTA."""
    weights = 1.0 / variances
    excess = weights @ (changes - np.average(changes, weights=weights)) ** 2 - (changes.size - 1.0)
    between = max(float(excess / (weights.sum() - weights @ weights / weights.sum())), 0.0)
    weights = 1.0 / (variances + between)
    centre = float(np.average(changes, weights=weights))
    half = float(t.ppf(1.0 - DELTA / 2.0, changes.size - 2) * np.sqrt(between + 1.0 / weights.sum()))
    return centre - half, centre + half


def is_prediction_false(num_clients: int, *, seed: int) -> bool:
    """Whether the true change of the next client is outside, in one network."""
    rng = np.random.default_rng(seed)
    true = np.where(rng.random(num_clients + 1) < 0.1, 0.2, -0.02)
    worse, better = (rng.binomial(NUM_EXAMPLES, 0.01 + np.maximum(each[1:], 0.0)) for each in (true, -true))
    changes = (worse - better) / NUM_EXAMPLES
    low, high = prediction_interval(changes, ((worse + better + 1.0) / NUM_EXAMPLES - changes**2) / NUM_EXAMPLES)
    return not low <= true[0] <= high


def main() -> None:
    """Print a row for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=100)
    num_networks = parser.parse_args().networks
    for size in (20, 50, 200):
        paired, unpaired = np.mean([upper_bounds(size, seed=i) for i in range(num_networks)], axis=0) - MEAN_CHANGE
        false = np.mean([is_prediction_false(size, seed=i) for i in range(20 * num_networks)])
        print(f"{size} clients: paired {paired:.3f}, unpaired {unpaired:.3f}, ratio {paired / unpaired:.2f};", end=" ")
        print(f"prediction intervals, {DELTA:g}: {false:.3f} are false")


if __name__ == "__main__":
    main()
