"""Shares, quantiles and tails of networks within a divergence: against convex programs, grids and binomial limits."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

import riskband as rb
from riskband.functionals.distributions import RiskDistribution
from tests.reference.definitions import FINITE_SLOPE, GENERATORS, SUPERLINEAR, program_cost, worst_event

NAMES = sorted(rb.DIVERGENCES)
NUM_CLIENTS, DELTA = 60, 0.05
RISKS = np.array([0.02, 0.1, 0.25, 0.4, 0.7])
LAWS = {"skewed": np.array([0.4, 0.3, 0.2, 0.07, 0.03]), "rare": np.array([0.55, 0.3, 0.14, 0.009, 0.001])}


def largest(values, weights, name, budget, *, tail=None):
    """Largest mean over new weights, or mean of the worst `tail` of clients, of whom each is in that tail at most."""
    target, part = cp.Variable(values.size, nonneg=True), cp.Variable(values.size, nonneg=True)
    within = [cp.sum(target) == 1, program_cost(target, weights, name) <= budget]
    of_tail = [part == target] if tail is None else [cp.sum(part) == 1, part * tail <= target]
    problem = cp.Problem(cp.Maximize(values @ part), [*within, *of_tail])
    problem.solve(solver=cp.CLARABEL)
    return problem.value


def least_share(share, name, budget):
    """The share of clients that can be this one within the budget, and no smaller one."""
    f = GENERATORS[name]
    if name in FINITE_SLOPE and worst_event(1e-12, f, budget) >= share:
        return 0.0
    return brentq(lambda p: worst_event(p, f, budget) - share, 1e-12, share, xtol=1e-15)


def with_new_clients(weights, name):
    """Risks and weights of a network, with clients that it does not have at risk 1 where the divergence allows them."""
    return (RISKS, weights) if name in SUPERLINEAR else (np.append(RISKS, 1.0), np.append(weights, 0.0))


@pytest.mark.parametrize(("name", "law"), list(product(NAMES, LAWS)))
def test_what_a_network_says_of_those_around_it_is_what_a_convex_program_says(name, law):
    weights = LAWS[law]
    network = RiskDistribution(RISKS, np.append(np.cumsum(weights)[:-1], 1.0))
    risks, masses = with_new_clients(weights, name)
    for budget in (0.02, 0.3):
        for level in (0.5, 0.9):
            tail = rb.Number.of(f"cvar:{level}@{name}:{budget}").value(network)
            assert tail == pytest.approx(largest(risks, masses, name, budget, tail=1.0 - level), abs=2e-6)
        above = [largest(1.0 * (risks > risk), masses, name, budget) for risk in risks]
        for level in (0.5, 0.8, 0.96):
            quantile = rb.Number.of(f"quantile:{level}@{name}:{budget}").value(network)
            assert quantile == risks[np.argmax(np.array(above) <= 1.0 - level)], (budget, level)
        for risk, share in zip(risks, above, strict=True):  # a share counts who is at the threshold, too
            found = rb.Number.of(f"share:{risk + 1e-9:.10g}@{name}:{budget}").value(network) if risk < 1.0 else 0.0
            assert found == pytest.approx(share, abs=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_quantile_of_two_kinds_is_what_a_grid_of_networks_says(name):
    """It is the larger risk where any of 1,000 networks that are within the budget has more such clients than 0.1."""
    shares, q, seen = np.linspace(0.001, 0.099, 14), np.linspace(1e-9, 1.0 - 1e-9, 1_000), set()
    f = np.vectorize(GENERATORS[name], otypes=[float])
    for budget in (0.005, 0.05):
        for p in shares.tolist():
            reach = q[p * f(q / p) + (1.0 - p) * f((1.0 - q) / (1.0 - p)) <= budget].max()
            if abs(reach - 0.1) > 2e-3:
                found = rb.Number.of(f"quantile:0.9@{name}:{budget}").value(
                    RiskDistribution([0.2, 0.7], [1.0 - p, 1.0])
                )
                assert found == (0.7 if reach > 0.1 else 0.2)
                seen.add(found)
    assert seen == {0.2, 0.7}


def answers_of(kind):
    wrong = np.random.default_rng(7).binomial(100, np.random.default_rng(8).beta(3, 12, NUM_CLIENTS))
    if kind == "risks":
        return rb.ClientRisks(wrong / 100, 100), wrong / 100, {"local": "observed"}
    if kind == "changes":
        changes = rb.ClientChanges.from_counts(wrong, wrong[::-1], 200)
        return changes, (wrong - wrong[::-1]) / 200, {"local": "observed"}
    return rb.ClientScores(1.0 - wrong / 100, kind == "higher", name="AUC"), 1.0 - wrong / 100, {}


@pytest.mark.parametrize("kind", ["risks", "changes", "higher", "lower"])
@pytest.mark.parametrize("name", NAMES)
def test_a_quantile_and_a_share_within_a_budget_are_those_of_one_network_moved_as_far_as_it_allows(name, kind):
    """Order statistics and limits of shares by scipy's binomial law; from the bad end."""
    answers, values, terms = answers_of(kind)
    ordered, ranks = np.sort(values), np.arange(1, NUM_CLIENTS + 1)
    for budget, tail in product((0.0, 0.02, 0.1), (0.2, 0.4)):
        least = least_share(tail, name, budget) if budget else tail
        # The k-th from the bad end is beyond a quantile unless k or more are: of each the chance is at least `least`.
        kth = ranks[binom.cdf(ranks - 1, NUM_CLIENTS, least) <= DELTA][-1:]
        level = tail if kind == "higher" else 1.0 - tail
        found = rb.bound(answers, f"quantile:{level}@{name}:{budget}", delta=DELTA, **terms)
        end, bad = (found.lower, 0.0) if kind == "higher" else (found.value, 1.0)
        expected = bad if not kth.size else ordered[kth[0] - 1] if kind == "higher" else ordered[-kth[0]]
        assert end == pytest.approx(expected, abs=1e-12)
    threshold = float(ordered[15 if kind == "higher" else -15])
    plain = float(rb.bound(answers, f"share:{threshold}", delta=DELTA, **terms).value)
    assert 0.0 < plain < 1.0
    for budget in (0.0, 0.02, 0.1):
        found = rb.bound(answers, f"share:{threshold}@{name}:{budget}", delta=DELTA, **terms)
        assert found.value == pytest.approx(worst_event(plain, GENERATORS[name], budget) if budget else plain, abs=1e-9)
        assert f"in any network within budget {budget:g}" in found.quantity


@pytest.mark.parametrize("name", NAMES)
def test_a_tail_within_a_budget_is_that_of_the_largest_network_of_a_band(name):
    band = rb.band(answers_of("risks")[0], delta=DELTA, sides="lower")
    worst = band.distribution_for_means
    kept = np.ones(worst.risks.size, bool) if name in FINITE_SLOPE else worst.weights > 0.0
    for level, budget in ((0.5, 0.02), (0.8, 0.2)):
        found = rb.bound(band, f"cvar:{level}@{name}:{budget}").value
        program = largest(worst.risks[kept], worst.weights[kept], name, budget, tail=1.0 - level)
        assert found == pytest.approx(program, abs=1e-5)
        assert found >= program - 1e-7
