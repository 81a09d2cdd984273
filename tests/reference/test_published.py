"""The published f-divergence theorems against convex programs written from the paper."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq

import riskband as rb

NUM_CLIENTS, DELTA = 60, 0.1


@pytest.fixture(scope="module")
def band():
    rng = np.random.default_rng(12)
    sizes = rng.integers(200, 400, NUM_CLIENTS)
    values = rng.binomial(sizes, rng.beta(3, 9, NUM_CLIENTS)) / sizes
    return rb.band(rb.ClientRisks(values, sizes), delta=DELTA, sides="lower")


def f(name, t):
    return t * np.log(t) if name == "kl" else (t - 1) ** 2


def program(scores, name, budget):
    """max (1/K) Σ a_k v_k s.t. 0 <= a <= Λ, |mean(a) - 1| <= c1 s, mean f(a) <= budget + c2 s; then add s."""
    s = np.sqrt(np.log(NUM_CLIENTS / DELTA) / NUM_CLIENTS)
    largest = brentq(lambda t: f(name, t) - budget / DELTA, 1.0, 1e6)
    c1 = largest - 1
    c2 = (f(name, largest) - f(name, 1 / largest)) / 2 if name == "kl" else (largest - 1) ** 2 / 2
    a = cp.Variable(NUM_CLIENTS, nonneg=True)
    cost = -cp.entr(a) if name == "kl" else cp.square(a - 1)
    problem = cp.Problem(
        cp.Maximize(scores @ a / NUM_CLIENTS),
        [a <= largest, cp.abs(cp.sum(a) / NUM_CLIENTS - 1) <= c1 * s, cp.sum(cost) / NUM_CLIENTS <= budget + c2 * s],
    )
    problem.solve(solver=cp.CLARABEL)
    return min(max(problem.value + s, 0.0), 1.0)


@pytest.mark.parametrize("budget", [1e-4, 1e-3, 0.01])
@pytest.mark.parametrize("name", ["kl", "chi2"])
def test_theorem_5_3_is_the_program_of_the_paper(band, name, budget):
    delay = np.sqrt(np.log((NUM_CLIENTS + 2) / DELTA) / (2 * band.risks.num_examples))
    thresholds = np.array([0.3, 0.4, 0.45, 0.55, 0.9])
    found = rb.worst_case_cdf(band, divergence=name, budget=[budget], thresholds=thresholds, method="published")
    expected = [program((band.risks.values >= t - delay).astype(float), name, budget) for t in thresholds]
    assert np.min(expected) < 0.95  # otherwise clipping at 1 hides everything
    np.testing.assert_allclose(found.value[0], expected, atol=1e-6)
    assert found.validity == "refuted"


@pytest.mark.parametrize("budget", [1e-4, 0.01])
@pytest.mark.parametrize("name", ["kl", "chi2"])
def test_theorem_5_2_is_the_program_of_the_paper(band, name, budget):
    found = rb.worst_case_mean(band, divergence=name, budget=budget, method="published")
    assert found.value == pytest.approx(program(band.risks.values, name, budget), abs=1e-6)
    assert found.validity == "refuted"
    assert found.statement.startswith("By a published formula that is false in general (a counterexample is known)")


def test_no_shift_leaves_the_sampling_slack_only(band):
    s = np.sqrt(np.log(NUM_CLIENTS / DELTA) / NUM_CLIENTS)
    found = rb.worst_case_mean(band, divergence="chi2", budget=0.0, method="published")
    assert found.value == pytest.approx(band.risks.values.mean() + s, abs=1e-6)


def test_only_the_two_divergences_of_the_paper_are_published(band):
    with pytest.raises(ValueError, match="chi2, kl"):
        rb.worst_case_mean(band, divergence="tv", budget=0.1, method="published")
