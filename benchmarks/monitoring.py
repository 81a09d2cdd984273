"""``python -m benchmarks.monitoring``: how often `riskband.monitor` raises a false alarm, and how soon a true one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.stats import binom

import riskband as rb

ALPHA, BEFORE, AFTER, NUM_EXAMPLES, NUM_RUNS = 0.05, 300, 500, 100, 100
MEANS = {"as certified": 0.125, "a mean of 0.2": 0.2, "a mean of 0.35": 0.35}
"""What happens, by the mean of the Beta distribution of risks, whose parameters add up to 24."""


def draw(rng: np.random.Generator, mean: float, size: int) -> np.ndarray:
    """Return what so many clients of a network of that mean measure."""
    return rng.binomial(NUM_EXAMPLES, rng.beta(24.0 * mean, 24.0 * (1.0 - mean), size=size)) / NUM_EXAMPLES


CERTIFICATES: dict[str, Callable[[rb.ClientRisks], rb.Certificate]] = {
    "mean": partial(rb.mean_bound, delta=0.05),
    "quantile:0.9": lambda answers: rb.quantile(answers, 0.9, delta=0.05),
    "mean@chi2:0.1": partial(rb.worst_case_mean, divergence="chi2", budget=0.1, delta=0.05),
    "worst shares, chi2:0.1": lambda answers: rb.worst_case_cdf(
        rb.band(answers, delta=0.05, sides="lower"), divergence="chi2", budget=0.1
    ),
}
"""What 200 clients certify."""


def delays(name: str, mean: float, before: int, num_runs: int = NUM_RUNS) -> np.ndarray:
    """Return after how many clients of that mean, which follow others, each run raised an alarm; infinity for none."""
    found = []
    for child in np.random.SeedSequence(1).spawn(num_runs):
        rng = np.random.default_rng(child)
        made = CERTIFICATES[name](rb.ClientRisks(draw(rng, MEANS["as certified"], 200), NUM_EXAMPLES, True))
        values = np.append(draw(rng, MEANS["as certified"], before), draw(rng, mean, AFTER))
        at = rb.monitor(made, rb.ClientRisks(values, NUM_EXAMPLES, True), alpha=ALPHA).alarm_at
        found.append(np.inf if at is None else at - before)
    return np.array(found)


def usual_false_alarms(num_runs: int = 2_000) -> float:
    """Return how often a binomial test alarms that is made again after each of 800 clients, of which a tenth fail."""
    size = BEFORE + AFTER
    failed = np.random.default_rng(2).random((num_runs, size)) < 0.1
    p_values = binom.sf(np.cumsum(failed, axis=1) - 1, np.arange(1, size + 1), 0.1)
    return float(np.mean(np.any(p_values <= ALPHA, axis=1)))


def main() -> None:
    """Print a table, a line for each certificate, what happens, and how many clients come before."""
    print("| certificate | what happens | clients before | alarms | median delay | 90 % within |")
    print("|---|---|---|---|---|---|")
    for name in CERTIFICATES:
        for what, mean in MEANS.items():
            for before in (0, BEFORE)[: 1 if what == "as certified" else 2]:
                found = delays(name, mean, before)
                often = f"{np.mean(np.isfinite(found)):.3f}"
                middle, most = (np.quantile(found, level, method="inverted_cdf") for level in (0.5, 0.9))
                print(f"| {name} | {what} | {before} | {often} | {middle:g} | {most:g} |", flush=True)
    print(f"\nAn exact binomial test, made again after each client: {usual_false_alarms():.3f} false alarms.")


if __name__ == "__main__":
    main()
