"""Bounds that stand alone hold: worst-case means at fixed budgets and CVaR, by betting on duals (math §2.9)."""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from benchmarks.ground_truth import BetaRisks, TwoPointRisks
from riskband.betting import Dual, adaptive_bets, betting_upper_bound, log_growth
from riskband.search import bisect
from tests.validity.coverage import (
    BETA,
    CONTINUOUS,
    TWO_POINTS,
    draw_networks,
    failures_of,
    is_rejected,
    rejected,
    study,
    true_cvar,
    true_worst_case_mean,
)

RARE = TwoPointRisks(0.0, 0.9, 0.02)
HALF = BetaRisks(5.0, 5.0)
SKEWED = BetaRisks(0.5, 2.5)
BALLS = [("chi2", 0.2), ("chi2", 0.01), ("kl", 0.1), ("tv", 0.1), ("hellinger2", 0.02)]
LAWS = {"beta": BETA, "two points": TWO_POINTS, "rare": RARE, "half": HALF, "skewed": SKEWED, "continuous": CONTINUOUS}


@failures_of
def failures(risks, law, *, delta, own_seed=None, balls=BALLS):
    """By certificate: each of them has the whole delta for itself."""
    found = {}
    for ball in balls:
        if ball[0] == "hellinger2" and law is not BETA:
            continue  # no closed form of the truth
        bound = rb.worst_case_mean(risks, divergence=ball[0], budget=ball[1], delta=delta, seed=own_seed).value
        found[ball] = bound < true_worst_case_mean(law, *ball) - 1e-9
    for level in (0.5, 0.9):
        found["cvar", level] = rb.cvar(risks, level, delta=delta, seed=own_seed).value < true_cvar(law, level) - 1e-9
    return found


@pytest.mark.parametrize(
    ("law", "sizes"),
    [("beta", 5), ("two points", 20), ("continuous", 20), ("half", "unequal"), ("rare", "dependent"), ("skewed", 20)],
)
@study(slow=200)
def test_bounds_that_stand_alone_hold(law, sizes, num_networks):
    found = failures(LAWS[law], num_networks=num_networks, num_clients=30, sizes=sizes, delta=0.2, seed=1, own_seed=0)
    assert rejected(found, 0.2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("num_clients", "sizes"), [(30, 5), (30, "unequal"), (100, 20), (1000, 100)])
@pytest.mark.parametrize("law", LAWS)
def test_bounds_that_stand_alone_hold_in_larger_studies(law, num_clients, sizes):
    for own_seed, num_networks in ((None, 12), (0, 50)):
        found = failures(
            LAWS[law],
            num_networks=num_networks,
            num_clients=num_clients,
            sizes=sizes,
            delta=0.2,
            seed=2,
            own_seed=own_seed,
        )
        assert rejected(found, 0.2) == {}


def square_duals_less_bias(risks, budget, *, times):
    """Duals of the χ² worst case from (mean loss - s)², less the within-client variance so many times; right: once."""
    means, size = risks.values, risks.num_examples
    variance = means * (1.0 - means) / (size - 1)

    def at(shift):
        return Dual.of_range(
            means**2 - times * variance - 2.0 * shift * means + shift**2,
            low=-1.0,
            high=max(abs(shift), abs(1.0 - shift)) ** 2,
            bound=lambda mean: shift + np.sqrt((1.0 + budget) * np.maximum(mean, 0.0)),
            least_mean=lambda value: max(value - shift, 0.0) ** 2 / (1.0 + budget),
        )

    return [at(shift) for shift in np.linspace(-1.0, 0.35, 12).tolist()]


@pytest.mark.parametrize("times", [1, 2])
def test_a_second_moment_with_the_bias_taken_off_twice_fails(times):
    law = BetaRisks(8.0, 12.0)
    found = []
    for risks in draw_networks(law, num_networks=25, num_clients=300, sizes=5, seed=3):
        duals = square_duals_less_bias(risks, 0.2, times=times)
        bound, _ = betting_upper_bound(duals, [risks.values], delta=0.2, seed=0)
        found.append(bound < true_worst_case_mean(law, "chi2", 0.2) - 1e-9)
    assert is_rejected(found, 0.2) == (times == 2)


def chosen_with_the_present(duals, *, delta):
    """Betting against the dual that bounds best by the clients before and the present one: too late to choose."""
    outcomes = np.stack([dual.outcomes for dual in duals])
    means = np.cumsum(outcomes, axis=1) / np.arange(1, outcomes.shape[1] + 1)
    chosen = np.argmin(np.stack([dual.bound(row) for dual, row in zip(duals, means, strict=True)]), axis=0)
    index = chosen, np.arange(chosen.size)
    values, bets = outcomes[index], adaptive_bets(outcomes, delta)[index]

    def survives(value):
        return np.asarray(np.cumsum(log_growth(value, values, bets)).max() < np.log(1.0 / delta))

    return float(bisect(survives, low=0.0, high=1.0, num_steps=30)[1])


def test_a_dual_must_be_chosen_before_the_client_it_bets_against():
    """Twenty losses of one mean are twenty duals of one number: the best of all, and looking ahead, fail."""
    found = {"before": [], "averaged": [], "at the end": [], "with the present": []}
    for child in np.random.SeedSequence(5).spawn(25):
        losses = np.random.default_rng(child).beta(3.0, 7.0, size=(20, 40))
        duals = [Dual(row, lambda mean: mean, lambda value: value) for row in losses]
        for name, seed in (("before", 0), ("averaged", None)):
            found[name].append(betting_upper_bound(duals, losses, delta=0.2, seed=seed)[0] < 0.3)
        each = [betting_upper_bound([dual], losses, delta=0.2, seed=0)[0] for dual in duals]
        found["at the end"].append(min(each) < 0.3)
        found["with the present"].append(chosen_with_the_present(duals, delta=0.2) < 0.3)
    assert sorted(rejected(found, 0.2)) == ["at the end", "with the present"]


def test_betting_on_duals_is_not_needlessly_wide():
    """A bound of 1 would pass every coverage test; where the best dual is seen soon, one fails now and then."""
    law, found = TwoPointRisks(0.2, 0.9, 0.4), []
    for risks in draw_networks(law, num_networks=60, num_clients=300, sizes=100, seed=7):
        bound = rb.worst_case_mean(risks, divergence="chi2", budget=0.05, delta=0.3, seed=0).value
        found.append(bound < true_worst_case_mean(law, "chi2", 0.05))
    assert not is_rejected(found, 0.3)
    assert np.mean(found) > 0.03
