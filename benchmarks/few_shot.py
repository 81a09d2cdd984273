"""What a few clients of the target network add to a source network's certificate within a budget.

    python -m benchmarks.few_shot [--networks 40]

Upper bounds on the target's mean risk, on a share and on a quantile at delta = .05, 200 clients of the source and few
of the target, 100 examples each, Beta(3, 21), as means over networks: of the source within the budget alone, of the
target's clients alone, the smaller of both at delta/2 each, and both together (`rb.bound` of both). The target is the
source network itself, or the worst one within the budget for its mean; how often "together" is below the truth is
counted.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from riskband.worst_cases.divergences import resolve_divergence, robust_mean

DELTA, NUM_SOURCE, NUM_EXAMPLES, LAW = 0.05, 200, 100, BetaRisks(3.0, 21.0)
_POOL = 20_000  # clients that stand for the network, of which the worst one within the budget is drawn


def answers(risks: np.ndarray, rng: np.random.Generator) -> rb.ClientRisks:
    """What clients of these true risks measure."""
    return rb.ClientRisks(rng.binomial(NUM_EXAMPLES, risks) / NUM_EXAMPLES, NUM_EXAMPLES, binary=True)


def alone(answers: rb.ClientRisks, number: str, *, delta: float, budget: float = 0.0) -> float:
    """What one network's answers bound within a budget."""
    return float(rb.bound(answers, f"{number}@chi2:{budget}", delta=delta).value)


def bounds(
    number: str, budget: float, num_target: int, *, is_worst: bool, num_networks: int
) -> tuple[list[float], int]:
    """Mean bounds by the four ways, and how often the last is false."""
    rng, found, num_false = np.random.default_rng(0), [], 0
    pool = LAW.risk_quantile((np.arange(_POOL) + 0.5) / _POOL)
    even = np.full(_POOL, 1.0 / _POOL)
    _, worst = robust_mean(pool, even, divergence=resolve_divergence("chi2"), budget=budget)
    weights = worst / worst.sum() if is_worst else even
    family, _, point = number.partition(":")
    if family == "quantile":
        truth = pool[np.searchsorted(np.cumsum(weights), float(point))]
    else:
        truth = weights @ (pool if family == "mean" else pool >= float(point))
    for _ in range(num_networks):
        source = answers(rng.choice(pool, NUM_SOURCE), rng)
        few = answers(rng.choice(pool, num_target, p=weights), rng)

        together = float(rb.bound((source, few), f"{number}@target:chi2:{budget}", delta=DELTA).value)
        both, halves = (
            [alone(source, number, delta=part, budget=budget), alone(few, number, delta=part)]
            for part in (DELTA, DELTA / 2)
        )
        found.append((*both, min(halves), together))
        num_false += together < truth
    return np.mean(found, axis=0).tolist(), num_false


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=40)
    num_networks = parser.parse_args().networks
    print("number | budget | of the target | it is | source alone | target alone | smaller of both | together | false")
    for number, budget in product(("mean", "share:0.3", "quantile:0.9"), (0.1, 0.2)):
        for num_target in (5, 10, 20):
            for is_worst in (False, True):
                means, num_false = bounds(number, budget, num_target, is_worst=is_worst, num_networks=num_networks)
                numbers = " | ".join(f"{mean:.4f}" for mean in means)
                which = "the worst" if is_worst else "the source"
                print(
                    f"{number} | {budget} | {num_target} | {which} | {numbers} | {num_false}/{num_networks}", flush=True
                )


if __name__ == "__main__":
    main()
