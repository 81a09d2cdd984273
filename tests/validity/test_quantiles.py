"""One quantile and one tail, each with a bound of its own, are false no more often than delta."""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from tests.validity.coverage import (
    BETA,
    CONTINUOUS,
    TWO_POINTS,
    ObservedLaw,
    draw_networks,
    failures_of,
    rejected,
    true_cvar,
)

LEVELS = (0.5, 0.9)
DELTA = 0.2


@failures_of
def failures(risks, law):
    bounds = {level: rb.quantile(risks, level, delta=DELTA).value for level in LEVELS}
    return {level: bound < float(law.risk_quantile(level)) - 1e-9 for level, bound in bounds.items()}


@failures_of
def failures_of_tails(risks, law):
    return {level: rb.cvar(risks, level, delta=DELTA).value < true_cvar(law, level) - 1e-9 for level in LEVELS}


@pytest.mark.parametrize(
    ("law", "sizes"),
    [
        (BETA, 5),
        (TWO_POINTS, "unequal"),
        *(pytest.param(law, 100, marks=pytest.mark.slow) for law in (BETA, TWO_POINTS)),
    ],
    ids=["beta-5", "two points-unequal", "beta-100", "two points-100"],
)
def test_the_bound_on_one_quantile_holds(law, sizes):
    drawn = {"num_clients": 30, "sizes": sizes, "seed": 1}
    assert rejected(failures(law, num_networks=200, **drawn), DELTA) == {}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [5, 20, 100, "unequal"])
@pytest.mark.parametrize("num_clients", [30, 50, 300])
@pytest.mark.parametrize("law", [BETA, TWO_POINTS, CONTINUOUS], ids=["beta", "two points", "continuous"])
def test_the_bound_on_one_quantile_or_tail_holds_in_larger_studies(law, num_clients, sizes):
    drawn = {"num_clients": num_clients, "sizes": sizes, "seed": 2}
    assert rejected(failures(law, num_networks=100, **drawn), DELTA) == {}
    assert rejected(failures_of_tails(law, num_networks=50, **drawn), DELTA) == {}  # bets take a hundred times as long


@pytest.mark.slow
def test_the_quantile_of_measured_risks_holds_and_spends_its_delta():
    """With so many examples that ties are rare, the order statistic fails as often as its binomial probability says."""
    num_examples, num_clients, level = 400, 50, 0.9
    law = ObservedLaw(BETA, num_examples)
    truth = np.searchsorted(np.cumsum(law.masses), level) / num_examples
    networks = draw_networks(BETA, num_networks=2000, num_clients=num_clients, sizes=num_examples, seed=3)
    bounds = [rb.quantile(risks, level, delta=DELTA, local="observed").value for risks in networks]
    assert rejected({"observed": np.array(bounds) < truth}, DELTA) == {}
    assert np.mean(np.array(bounds) < truth) > 0.04


def test_measured_risks_read_as_true_ones_fail():
    """Negative control: the order statistic of measured risks is no bound on a quantile of true ones from below it."""
    law = type(TWO_POINTS)(0.0, 0.3, 0.5)  # every other client has risk 0.3, and measures less half of the time
    networks = draw_networks(law, num_networks=300, num_clients=10, sizes=20, seed=4)
    wrong = [rb.quantile(risks, 0.55, delta=DELTA, local="observed").value < 0.3 for risks in networks]
    assert rejected({"observed": wrong}, DELTA)
    networks = draw_networks(law, num_networks=300, num_clients=10, sizes=20, seed=4)
    right = [rb.quantile(risks, 0.55, delta=DELTA).value < 0.3 for risks in networks]
    assert rejected({"marginal": right}, DELTA) == {}
