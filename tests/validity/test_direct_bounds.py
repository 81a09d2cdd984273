"""Bounds that stand alone hold: worst-case means at fixed budgets and CVaR, by betting on duals (math §2.9)."""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from riskband.betting import Dual, betting_upper_bound
from riskband.duals import excess_duals, square_duals
from tests.validity.coverage import (
    BETA,
    CONTINUOUS,
    TWO_POINTS,
    draw_networks,
    is_rejected,
    rejected,
    study,
    true_cvar,
    true_worst_case_mean,
)
from worlds.ground_truth import BetaRisks, TwoPointRisks

RARE = TwoPointRisks(0.0, 0.9, 0.02)
HALF = BetaRisks(5.0, 5.0)
SKEWED = BetaRisks(0.5, 2.5)
BALLS = [("chi2", 0.2), ("chi2", 0.01), ("kl", 0.1), ("tv", 0.1), ("hellinger2", 0.02)]
LAWS = {"beta": BETA, "two points": TWO_POINTS, "rare": RARE, "half": HALF, "skewed": SKEWED, "continuous": CONTINUOUS}


def failures(law, *, num_networks, num_clients, sizes, delta, seed, own_seed=None, balls=BALLS):
    """Failures by certificate: each of them has the whole delta for itself."""
    found = {}
    for risks in draw_networks(law, num_networks=num_networks, num_clients=num_clients, sizes=sizes, seed=seed):
        for ball in balls:
            if ball[0] == "hellinger2" and law is not BETA:
                continue  # no closed form of the truth
            bound = rb.worst_case_mean(risks, divergence=ball[0], budget=ball[1], delta=delta, seed=own_seed).value
            found.setdefault(ball, []).append(bound < true_worst_case_mean(law, *ball) - 1e-9)
        for level in (0.5, 0.9):
            bound = rb.cvar(risks, level, delta=delta, seed=own_seed).value
            found.setdefault(("cvar", level), []).append(bound < true_cvar(law, level) - 1e-9)
    return found


@pytest.mark.parametrize(
    ("law", "sizes"),
    [("beta", 5), ("two points", 20), ("continuous", 20), ("half", "unequal"), ("rare", "dependent"), ("skewed", 20)],
)
@study(12, slow=400)
def test_bounds_that_stand_alone_hold(law, sizes, num_networks):
    found = failures(LAWS[law], num_networks=num_networks, num_clients=30, sizes=sizes, delta=0.2, seed=1, own_seed=0)
    assert rejected(found, 0.2) == {}


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize("sizes", [5, 20, 100, "unequal", "dependent"])
@pytest.mark.parametrize("num_clients", [30, 100, 1000])
@pytest.mark.parametrize("law", LAWS)
def test_bounds_that_stand_alone_hold_in_larger_studies(law, num_clients, sizes, delta):
    for own_seed in (None, 0):
        found = failures(
            LAWS[law],
            num_networks=120 if own_seed is None else 300,
            num_clients=num_clients,
            sizes=sizes,
            delta=delta,
            seed=2,
            own_seed=own_seed,
        )
        assert rejected(found, delta) == {}
