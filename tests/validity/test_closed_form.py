"""Coverage of the within-client step in closed form, and of the means of `counted` and `union` by measured risks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

import riskband as rb
from benchmarks.ground_truth import BetaRisks, ContinuousLossRisks, TwoPointRisks
from riskband.bands.levels import berk_jones_levels
from tests.validity.coverage import BETA, TWO_POINTS, draw_networks, is_exceeded, is_rejected, leaves, rejected, study

DELTA = 0.2
# Counts of 5, 20 and 100 examples whose bounds jump are at .2, .4, .6: laws with atoms there, and just beside.
LAWS = {
    "beta": BETA,
    "skewed": BetaRisks(0.5, 2.0),
    "at counts": TwoPointRisks(0.2, 0.6, 0.3),
    "beside counts": TwoPointRisks(0.2 - 1e-6, 0.4 + 1e-6, 0.1),
    "rarely high": TwoPointRisks(0.0, 0.4, 0.05),
}


@study(slow=200)
@pytest.mark.parametrize("num_examples", [5, 20, 100])
def test_the_joint_band_holds_at_few_and_many_examples_also_where_counts_jump(num_examples, num_networks):
    found = {}
    for index, (name, law) in enumerate(LAWS.items()):
        networks = draw_networks(
            law, num_networks=num_networks, num_clients=50, sizes=num_examples, seed=(11, num_examples, index)
        )
        found[name] = [leaves(rb.band(answers, delta=DELTA), law) for answers in networks]
    assert rejected(found, DELTA) == {}


@study(slow=200)
@pytest.mark.parametrize("num_examples", [5, 100])
def test_the_joint_band_holds_for_losses_between_0_and_1(num_examples, num_networks):
    law = ContinuousLossRisks(2.0, 6.0)
    networks = draw_networks(law, num_networks=num_networks, num_clients=50, sizes=num_examples, seed=12)
    assert not is_rejected([leaves(rb.band(answers, delta=DELTA), law) for answers in networks], DELTA)


WRONG_WAYS = {
    "P(X >= j)": lambda counts, levels, n, at: (levels, binom.sf(np.arange(n) - 1, n, at)),
    "the empirical CDF for the level": lambda counts, levels, n, at: (
        np.array([np.mean(counts <= j) for j in range(n)]),
        binom.sf(np.arange(n), n, at),
    ),
}


@pytest.mark.guard
@pytest.mark.parametrize("way", ["right", *WRONG_WAYS])
def test_the_formula_with_a_wrong_side_or_without_a_band_fails(way):
    """The share of clients at .4 or above, of two points; ten examples, where a single count weighs most."""
    n, num_clients, at = 10, 200, 0.4
    of_order = berk_jones_levels(num_clients, DELTA, "lower").lower
    failures = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        counts = rng.binomial(n, np.where(rng.random(num_clients) < 0.3, 0.4, 0.1))
        levels = np.array([np.append(0.0, of_order)[np.sum(counts <= j)] for j in range(n)])
        levels, above = WRONG_WAYS.get(way, lambda c, values, *_: (values, binom.sf(np.arange(n), n, at)))(
            counts, levels, n, at
        )
        failures.append(np.min((1.0 - levels) / above) < 0.3)
    assert is_rejected(failures, DELTA) == (way != "right")


def test_levels_beyond_the_measured_risk_fail_where_clients_measure_exactly():
    """Why a value gives no level before its own risk: twenty examples, of risks .1 and .4 without any noise."""
    n, num_clients, at = 20, 100, 0.4
    of_order = berk_jones_levels(num_clients, DELTA, "lower").lower
    failures = []
    for seed in range(30):
        risks, _ = TWO_POINTS.draw(np.random.default_rng(seed), num_clients=num_clients, num_examples=1)
        levels = np.array([np.append(0.0, of_order)[np.sum(risks * n <= j + 1e-9)] for j in range(n)])
        failures.append(np.min((1.0 - levels) / binom.sf(np.arange(n), n, at)) < TWO_POINTS.weight)
    assert is_rejected(failures, DELTA)


@study(slow=200)
@pytest.mark.parametrize("local", ["counted", "union"])
def test_means_by_measured_risks_hold_with_the_rest_of_the_band(local, num_networks):
    found = {}
    for name, law in {"beta": BETA, "two points": TWO_POINTS}.items():
        networks = draw_networks(law, num_networks=num_networks, num_clients=60, sizes=20, seed=13)
        bands = [rb.band(answers, delta=DELTA, local=local, sides="lower") for answers in networks]
        found[name] = [leaves(band, law) or is_exceeded(band, law) for band in bands]
    assert rejected(found, DELTA) == {}
