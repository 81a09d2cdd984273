"""Seconds for a worst-case CDF at 50 thresholds: ours against one cvxpy solve per threshold, in the same run.

    python -m benchmarks.reweighting [--clients 1000]

The band is given to both. The cvxpy side solves, at each threshold, the same program as ours: the largest weight of the
clients at or above the threshold, over density ratios within the divergence ball of the band's largest law.
"""

from __future__ import annotations

import argparse
import time

import cvxpy as cp
import numpy as np

import riskband as rb
from riskband.worst_cases.divergences import FDivergence
from worlds.ground_truth import BetaRisks

NUM_THRESHOLDS = 50
BUDGET = 0.1


def by_cvxpy(band: rb.Band, divergence: FDivergence, thresholds: np.ndarray) -> np.ndarray:
    """One program per threshold, compiled once: the thresholds only change the objective."""
    law = band.distribution_for_means
    ratio = cp.Variable(law.weights.size, nonneg=True)
    in_event = cp.Parameter(law.weights.size, nonneg=True)
    generator = divergence.cvxpy_generator
    assert generator is not None
    scaled = law.weights.size * law.weights  # the solver fails on weights of the order 1/K
    constraints = [
        scaled @ (ratio - 1.0) == 0.0,
        scaled @ generator(cp, ratio) <= BUDGET * law.weights.size,
    ]
    problem = cp.Problem(cp.Maximize(in_event @ cp.multiply(scaled, ratio)), constraints)
    values = []
    for threshold in thresholds:
        in_event.value = (law.risks >= threshold).astype(float)
        values.append(problem.solve(solver=cp.CLARABEL) / law.weights.size)
    return np.array(values)


def main() -> None:
    """Print both times, their ratio, and the largest difference of the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    num_clients = parser.parse_args().clients
    law = BetaRisks(3.0, 21.0)
    risks, _ = law.draw(np.random.default_rng(0), num_clients=num_clients, num_examples=100)
    answers = rb.ClientRisks(risks, 100, binary=False)
    start = time.perf_counter()
    rb.band(answers, delta=0.05, sides="lower")
    first_band = time.perf_counter() - start
    band = rb.band(answers, delta=0.05, local="observed", sides="lower")
    thresholds = np.linspace(0.02, 0.35, NUM_THRESHOLDS)
    print(f"{num_clients} clients, {NUM_THRESHOLDS} thresholds, budget {BUDGET}; first band {first_band:.2f} s")
    for name in ("kl", "chi2"):
        divergence = rb.DIVERGENCES[name]
        ours, times = np.empty(0), []
        for _ in range(20):
            start = time.perf_counter()
            certificate = rb.worst_case_cdf(band, divergence=divergence, budget=BUDGET, thresholds=thresholds)
            times.append(time.perf_counter() - start)
            ours = np.asarray(certificate.value)
        start = time.perf_counter()
        theirs = by_cvxpy(band, divergence, thresholds)
        slow, fast = time.perf_counter() - start, float(np.median(times))
        worst = np.max(np.abs(ours - theirs))
        print(f"{name:>5}: ours {1e3 * fast:.3f} ms, cvxpy {slow:.2f} s, ratio {slow / fast:,.0f}x, apart {worst:.0e}")


if __name__ == "__main__":
    main()
