"""CPU seconds for a worst-case CDF at 50 thresholds: ours against one cvxpy solve per threshold, in the same run.

    python -m benchmarks.reweighting [--clients 1000]

The band is given to both. The cvxpy side solves, at each threshold, the same program as ours: the largest weight of the
clients at or above the threshold, over density ratios within the divergence ball of the band's largest law.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import cvxpy as cp
import numpy as np

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from benchmarks.timing import least_seconds
from riskband.worst_cases.divergences import FDivergence

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


@dataclass(frozen=True)
class Costs:
    """CPU seconds of both sides, and the largest difference of their results."""

    ours: float
    cvxpy: float
    apart: float

    @property
    def ratio(self) -> float:
        """How many times as long the program of cvxpy takes."""
        return self.cvxpy / self.ours


def measured(*, num_clients: int = 1000) -> dict[str, Costs]:
    """Return the costs for both divergences, by name."""
    risks, _ = BetaRisks(3.0, 21.0).draw(np.random.default_rng(0), num_clients=num_clients, num_examples=100)
    answers = rb.ClientRisks(risks, 100, binary=False)
    band = rb.band(answers, delta=0.05, local="observed", sides="lower")
    thresholds = np.linspace(0.02, 0.35, NUM_THRESHOLDS)
    found = {}
    for name in ("kl", "chi2"):
        ball = {"divergence": rb.DIVERGENCES[name], "budget": BUDGET, "thresholds": thresholds}
        ours = partial(rb.worst_case_cdf, band, **ball)
        reference = partial(by_cvxpy, band, rb.DIVERGENCES[name], thresholds)
        found[name] = Costs(
            **least_seconds({"ours": ours}, repeats=100),
            **least_seconds({"cvxpy": reference}, repeats=3),
            apart=float(np.max(np.abs(np.asarray(ours().value) - reference()))),
        )
    return found


def main() -> None:
    """Print both times, their ratio, and the largest difference of the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    num_clients = parser.parse_args().clients
    print(f"{num_clients} clients, {NUM_THRESHOLDS} thresholds, budget {BUDGET}")
    for name, costs in measured(num_clients=num_clients).items():
        print(
            f"{name:>5}: ours {1e3 * costs.ours:.3f} ms, cvxpy {costs.cvxpy:.2f} s, ratio {costs.ratio:,.0f}x, "
            f"apart {costs.apart:.0e}"
        )


if __name__ == "__main__":
    main()
