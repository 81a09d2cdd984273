"""Betting on duals against plain loops, what outcomes expect over all counts, and the best dual against the primal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, betabinom, binom

import riskband as rb
from riskband.betting import Dual, betting_upper_bound, fixed_orders
from riskband.duals import (
    CUTS,
    excess_duals,
    exponential_duals,
    late_excesses,
    pole_duals,
    square_duals,
    unbiased_series,
)
from riskband.worst_cases.divergences import robust_mean
from riskband.worst_cases.reweighting import BUILT_IN, custom_duals

DUALS = [
    Dual(np.array([0.0, 0.1, 0.9, 0.2, 0.0, 0.3, 0.1]), lambda mean: 0.1 + 0.9 * mean, lambda v: (v - 0.1) / 0.9, 0.4),
    Dual(np.array([0.0, 0.01, 0.8, 0.04, 0.0, 0.09, 0.01]), np.sqrt, lambda v: v * v, 0.3),
    Dual(np.array([0.2, 0.3, 0.9, 0.4, 0.2, 0.5, 0.3]), lambda mean: mean, lambda v: v, 0.5),
]
ANSWERS = DUALS[0].outcomes


def log_capitals(order, value, delta):
    """The capital after each client, in logarithms: one client after the other, everything from those before it."""
    rate, capital, found = math.log(1 / delta) / len(order), 0.0, []
    for seen, client in enumerate(order):
        promises = []
        for dual in DUALS:
            past = [float(dual.outcomes[k]) for k in order[:seen]]
            mean = (0.3 * dual.start + math.fsum(past)) / (0.3 + seen)
            square = (0.3 * dual.start**2 + math.fsum(x * x for x in past)) / (0.3 + seen)
            variance = max(square - mean**2, 0.0)
            slack = max(math.sqrt(2 * rate * variance), rate)
            bet = math.sqrt(2 * rate * (seen + 1) / (0.25 + seen * variance))
            promises.append((float(dual.bound(np.array(min(mean + slack, 1.0)))), bet, dual))
        _, bet, dual = min(promises, key=lambda each: each[0])
        needed = min(max(dual.least_mean(value), 0.0), 1.0)
        bet = min(bet, 0.99 / (1 - needed)) if needed < 1 else bet
        capital += math.log1p(bet * (needed - float(dual.outcomes[client])))
        found.append(capital)
    return found


@pytest.mark.parametrize("delta", [0.3, 0.05])
def test_the_bound_is_where_plain_loops_refute(delta):
    by_seed = np.random.default_rng(4).permutation(ANSWERS.size).tolist()
    found, name = betting_upper_bound(DUALS, [ANSWERS], delta=delta, seed=4)
    assert name == "betting"
    assert max(log_capitals(by_seed, found + 1e-9, delta)) >= math.log(1 / delta)
    assert found == 1.0 or max(log_capitals(by_seed, found - 1e-9, delta)) < math.log(1 / delta)

    orders = fixed_orders(ANSWERS.size, num_orders=200).tolist()
    found, name = betting_upper_bound(DUALS, [ANSWERS], delta=delta, seed=None)
    assert name == "betting averaged over fixed orders"
    means = [
        np.mean([math.exp(log_capitals(order, found + step, delta)[-1]) for order in orders[:200]])
        for step in (1e-9, -1e-9)
    ]
    assert means[0] >= 1 / delta > means[1]


def expected(outcomes_of, size, risk):
    """Mean over all counts of outcomes, shape (num_duals, size + 1), of clients with so many examples."""
    return outcomes_of @ binom.pmf(np.arange(size + 1), size, risk)


def all_counts(size):
    return rb.ClientRisks(np.arange(size + 1) / size, size, binary=True)


@pytest.mark.parametrize("size", [1, 2, 5, 30, 700])
def test_powers_of_the_risk_are_estimated_without_bias(size):
    coefficients = np.array([[0.3, 0.7, 0.0], [0.2, 0.2, 0.6]])
    found = unbiased_series(all_counts(size), coefficients)
    assert np.all((found >= 0.0) & (found <= 1.0))
    assert np.all(np.diff(found, axis=1) >= 0.0)
    for risk in (0.0, 0.01, 0.3, 0.9, 1.0):
        means = expected(found, size, risk)
        powers = coefficients @ risk ** np.minimum([1, 2, 3], size)
        assert means == pytest.approx(powers, abs=1e-12)


@pytest.mark.parametrize("budget", [0.01, 3.0])
@pytest.mark.parametrize("size", [1, 2, 7, 60])
def test_outcomes_expect_at_least_what_the_dual_needs(size, budget):
    """Whatever the risk of a client, the bound at its mean outcome is not below the bound at risks known exactly."""
    risks = np.linspace(0.0, 1.0, 21)
    known = rb.ClientRisks(risks, 1, binary=False)
    for make in BUILT_IN.values():
        counted, exact = make(all_counts(size), budget), make(known, budget)
        exact = [dual for dual in exact for _ in range(2 if make is square_duals and dual in exact[32:] else 1)]
        for dual, other in zip(counted, exact, strict=make is not BUILT_IN[rb.DIVERGENCES["tv"]]):
            means = np.array([expected(dual.outcomes, size, risk) for risk in risks.tolist()])
            assert np.all(dual.bound(means) >= other.bound(other.outcomes) - 1e-9)


@pytest.mark.parametrize("size", [2, 5, 20, 100])
def test_late_excesses_expect_at_least_the_excess_and_hardly_more_than_they_must(size):
    count, risks = np.arange(size + 1), np.sin(np.linspace(0.0, np.pi / 2, 4001)) ** 2
    masses = binom.pmf(count, size, risks[:, None])
    found = late_excesses(size)
    assert len(found) > 10
    for cut, first, least in found:
        needed = np.maximum(risks - cut, 0.0)
        gaps = [
            np.min(masses @ np.where(count < first, 0.0, np.maximum(count / size - cut, step)) - needed)
            for step in (least, least - 1e-3)
        ]
        assert gaps[0] >= -1e-12
        assert gaps[1] < -1e-12 or least < first / size - cut + 0.002  # where no client is at the step, it is free


def test_a_late_excess_is_less_biased_than_the_plain_one():
    """Of clients with 100 examples and risks ~ Beta(3, 21): half of the bias of the measured risks."""
    count = np.arange(101)
    masses, cut = betabinom.pmf(count, 100, 3, 21), float(CUTS[np.argmin(np.abs(CUTS - 0.215))])
    truth = beta.expect(lambda r: max(r - cut, 0.0), (3, 21), lb=cut, ub=1.0)
    plain = masses @ np.maximum(count / 100 - cut, 0.0) - truth
    late = min(
        masses @ np.where(count < first, 0.0, np.maximum(count / 100 - cut, least)) - truth
        for at, first, least in late_excesses(100)
        if at == cut
    )
    assert 0.0 < late < 0.55 * plain


@pytest.mark.parametrize("budget", [1e-4, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("name", rb.DIVERGENCES)
def test_the_best_dual_of_the_grid_is_next_to_the_worst_case(name, budget):
    """At the mean outcomes of a known distribution: never below the primal, and above it by no more than is stated."""
    f = rb.DIVERGENCES[name]
    own = rb.custom_divergence("own", f.generator, slope_at_infinity=f.slope_at_infinity)
    makers = [(custom_duals(own), 1e-2), *([(BUILT_IN[f], 1e-3)] if f in BUILT_IN else [])]
    for seed, law in enumerate([(3, 21), (0.5, 2), (5, 5)]):
        values = np.random.default_rng(seed).beta(*law, size=100)
        risks = rb.ClientRisks(values, 1, binary=False)
        known, weights = np.append(values, 1.0), np.append(np.full(100, 1 / 100), 0.0)
        worst, _ = robust_mean(known, weights, divergence=f, budget=budget)
        for make, gap in makers:
            best = min(float(dual.bound(np.mean(dual.outcomes))) for dual in make(risks, budget))
            assert worst - 1e-7 <= best <= worst + gap


def test_the_tail_of_known_risks_is_bounded_by_the_best_cut():
    values = np.random.default_rng(0).beta(3, 21, size=500)
    duals = excess_duals(rb.ClientRisks(values, 1, binary=False), offset=lambda cut: cut, slope=10.0)
    worst = np.sort(values)[-50:].mean()
    assert worst - 1e-12 <= min(float(dual.bound(np.mean(dual.outcomes))) for dual in duals) <= worst + 2e-3


@pytest.mark.parametrize("budget", [1e-8, 0.2, 1.9, 50.0])
@pytest.mark.parametrize("make", [square_duals, exponential_duals, pole_duals, BUILT_IN[rb.DIVERGENCES["tv"]]])
def test_least_means_invert_bounds(make, budget):
    values = np.linspace(0.0, 1.0, 12)
    for dual in make(rb.ClientRisks(values, 10, binary=False), budget):
        means = np.linspace(0.02, 1.0, 9)
        bounds = np.asarray(dual.bound(means))
        assert np.all(np.diff(bounds) >= -1e-12)
        inside = bounds <= 1.0
        found = [dual.least_mean(value) for value in bounds[inside].tolist()]
        assert np.asarray(dual.bound(np.clip(found, 0.0, 1.0))) == pytest.approx(bounds[inside], abs=1e-7)
