"""Worst-case means against convex programs: cvxpy over density ratios, and linear programs for total variation."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

import riskband as rb
from riskband.worst_cases.divergences import robust_mean
from tests.reference.definitions import GENERATORS, cubic, distance, le_cam, program_cost, tilted_hellinger, worst_event

NAMES = sorted(rb.DIVERGENCES)


def some_band(num_clients, *, num_examples=100, seed=0, shape=(3, 21), delta=0.05):
    rng = np.random.default_rng(seed)
    values = rng.binomial(num_examples, rng.beta(*shape, num_clients)) / num_examples
    return rb.band(rb.ClientRisks(values, num_examples), delta=delta, sides="lower")


def direct_program(values, weights, name, budget):
    """max E_target R over new weights, written from the definition: perspectives instead of density ratios."""
    target = cp.Variable(values.size, nonneg=True)
    cost = program_cost(target, weights, name)
    problem = cp.Problem(cp.Maximize(values @ target), [cp.sum(target) == 1, cost <= budget])
    problem.solve(solver=cp.CLARABEL)
    return problem.value


@pytest.mark.parametrize("name", NAMES)
def test_the_distance_of_two_laws_is_that_of_its_definition(name):
    laws = {
        "overlapping": ([0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.5, 0.0]),
        "apart": ([0.0, 0.4, 0.6, 0.0], [1.0, 0.0, 0.0, 0.0]),
        "with new clients": ([0.2, 0.5, 0.3], [0.6, 0.4, 0.0]),
    }
    for what, (target, source) in laws.items():
        pair = np.array(target), np.array(source)
        assert rb.DIVERGENCES[name].between(*pair) == pytest.approx(distance(*pair, name)), what


@pytest.mark.parametrize("budget", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_small_law_matches_a_program_written_from_the_definition(name, budget):
    rng = np.random.default_rng(1)
    values = np.append(np.sort(rng.random(25)), 1.0)
    weights = rng.dirichlet(np.ones(26))
    value, worst = robust_mean(values, weights, divergence=rb.DIVERGENCES[name], budget=budget)
    assert value == pytest.approx(direct_program(values, weights, name, budget), abs=1e-6)
    assert worst @ values == pytest.approx(value, abs=1e-5)
    assert worst.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.all(worst >= 0.0)


@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.3, 6.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_worst_weights_are_a_network_within_the_budget(name, budget):
    """By the definition of the ball; with clients that do not occur at the largest and the smallest risk."""
    rng = np.random.default_rng(2)
    values = np.concatenate([[0.0], np.sort(rng.random(12)), [1.0]])
    weights = np.concatenate([[0.0], rng.dirichlet(np.ones(12)), [0.0]])
    value, worst = robust_mean(values, weights, divergence=rb.DIVERGENCES[name], budget=budget)
    assert worst @ values == pytest.approx(value, abs=1e-7)
    assert worst.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.all(worst >= 0.0)
    assert distance(worst, weights, name) <= budget * (1.0 + 1e-3) + 1e-12
    assert value >= weights @ values + (1e-5 if name != "tv" else 1e-7)
    if name in ("kl", "chi2"):  # nobody new
        assert value <= values[-2]
    if name == "kl" and budget == 6.0:
        assert budget > -np.log(weights[-2])  # all of them may be at the largest risk there is
        assert value == values[-2]


@pytest.mark.parametrize("budget", [1e-6, 0.3, 6.0])
@pytest.mark.parametrize("name", NAMES)
def test_clients_that_are_all_alike_stay_as_they_are(name, budget):
    weights = np.array([0.2, 0.3, 0.5])
    value, worst = robust_mean(np.full(3, 0.25), weights, divergence=rb.DIVERGENCES[name], budget=budget)
    assert value == pytest.approx(0.25, abs=1e-12)
    assert worst.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("budget", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("num_clients", [50, 250, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_the_dual_is_the_reference_to_six_digits(name, num_clients, budget):
    band = some_band(num_clients)
    sharp = rb.worst_case_mean(band, divergence=name, budget=budget)
    reference = rb.worst_case_mean(band, divergence=name, budget=budget, method="reference")
    assert sharp.value == pytest.approx(reference.value, abs=1e-6)
    assert sharp.value >= reference.value - 1e-7


@pytest.mark.parametrize("budget", [0.05, 0.5])
@pytest.mark.parametrize("make", [le_cam, cubic])
def test_a_divergence_of_ones_own_matches_cvxpy(make, budget):
    band = some_band(60)
    sharp = rb.worst_case_mean(band, divergence=make(), budget=budget)
    reference = rb.worst_case_mean(band, divergence=make(), budget=budget, method="reference")
    assert sharp.value == pytest.approx(reference.value, abs=1e-6)


def test_kl_written_by_a_user_is_the_built_in_kl():
    """t log t has slope 1 at t = 1: the normalisation has to take it out."""
    own = rb.custom_divergence("t log t", lambda t: t * np.log(np.maximum(t, 1e-300)), slope_at_infinity=np.inf)
    band = some_band(30)
    mine = rb.worst_case_mean(band, divergence=own, budget=0.2)
    assert mine.value == pytest.approx(rb.worst_case_mean(band, divergence="kl", budget=0.2).value, abs=1e-6)


@pytest.mark.parametrize("tilt", [0.9, 1.5])
def test_the_reference_solves_the_same_program_for_a_tilted_generator(tilt):
    band = some_band(40)
    plain = rb.worst_case_mean(band, divergence="hellinger2", budget=0.1, method="reference")
    assert rb.worst_case_mean(
        band, divergence=tilted_hellinger(tilt), budget=0.1, method="reference"
    ).value == pytest.approx(plain.value, abs=1e-6)


@pytest.mark.parametrize("budget", [1e-4, 0.05, 0.6, 1.5])
@pytest.mark.parametrize("name", NAMES)
def test_two_kinds_of_clients_reduce_to_one_event(name, budget):
    value, _ = robust_mean(np.array([0.2, 1.0]), np.array([0.7, 0.3]), divergence=rb.DIVERGENCES[name], budget=budget)
    assert value == pytest.approx(0.2 + 0.8 * worst_event(0.3, GENERATORS[name], budget), abs=1e-7)


@pytest.mark.parametrize("budget", [0.02, 0.35])
def test_total_variation_is_a_linear_program(budget):
    rng = np.random.default_rng(2)
    values, weights = np.append(np.sort(rng.random(12)), 1.0), rng.dirichlet(np.ones(13))
    # target = weights + up - down, with up and down of total mass at most the budget
    result = linprog(
        np.concatenate([-values, values]),
        A_ub=np.vstack([np.append(np.ones(13), np.zeros(13)), np.hstack([-np.eye(13), np.eye(13)])]),
        b_ub=np.append(budget, weights),
        A_eq=[np.append(np.ones(13), -np.ones(13))],
        b_eq=[0.0],
    )
    value, _ = robust_mean(values, weights, divergence=rb.DIVERGENCES["tv"], budget=budget)
    assert value == pytest.approx(values @ weights - result.fun, abs=1e-9)


@pytest.mark.parametrize("budget", [1e-12, 1e-8, 1e-4])
def test_tiny_budgets_have_the_variance_expansion(budget):
    """Worst-case mean = mean + sqrt(2·budget/f''(1)·variance) + o(sqrt(budget)): f'' is 1, 2 and 1/2."""
    rng = np.random.default_rng(3)
    values, weights = np.append(np.sort(rng.random(40)), 1.0), np.full(41, 1 / 41)
    mean = values @ weights
    deviation = np.sqrt(weights @ (values - mean) ** 2)
    for name, curvature in (("kl", 1.0), ("chi2", 2.0), ("hellinger2", 0.5)):
        value, _ = robust_mean(values, weights, divergence=rb.DIVERGENCES[name], budget=budget)
        expected = np.sqrt(2 * budget / curvature) * deviation
        assert value - mean == pytest.approx(expected, rel=0.05, abs=2e-7)


def test_weights_name_the_clients_that_carry_the_risk():
    risks = rb.ClientRisks([0.9, 0.1, 0.5, 0.0, 0.3], 10)
    certificate = rb.worst_case_mean(rb.band(risks, delta=0.3, sides="lower"), divergence="kl", budget=[0.0, 0.2])
    weights, unseen = certificate.details["client_weights"], certificate.details["unseen_weight"]
    assert weights.shape == (2, 5)
    np.testing.assert_allclose(weights.sum(axis=1) + unseen, 1.0, atol=1e-9)
    np.testing.assert_allclose(weights @ risks.values + unseen, certificate.value, atol=1e-6)
    ratio = weights[1] / weights[0]
    assert ratio.argmax() == 0
    assert ratio.argmin() == 3
