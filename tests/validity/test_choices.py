"""Choices made by looking at the answers break a bound: negative controls, and what the certificates say of choices."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

import riskband as rb
from benchmarks.honesty import seeds_experiment, windows_experiment
from riskband.betting import CONSTANT_STAKES, fixed_orders
from tests.validity.coverage import TWO_POINTS, draw_networks, is_rejected

DELTA = 0.05


def test_the_best_of_many_windows_is_false_too_often_and_each_names_its_window():
    found = windows_experiment(100)
    assert is_rejected(found.best_is_false, DELTA)
    assert not is_rejected(found.fixed_is_false, DELTA)
    assert all("chosen before any answer was seen: method truncated:" in line for line in found.assumed)


@pytest.mark.slow
def test_the_best_of_many_seeds_is_false_too_often_and_each_names_its_seed():
    found = seeds_experiment(100)
    assert is_rejected(found.best_is_false, DELTA)
    assert not is_rejected(found.fixed_is_false, DELTA)
    assert all("chosen before any answer was seen: seed " in line for line in found.assumed)


def test_without_a_seed_the_bound_on_the_mean_depends_on_no_order():
    rng = np.random.default_rng(1)
    values = rng.binomial(20, rng.beta(3, 21, 50)) / 20
    bounds = {rb.mean_bound(rb.ClientRisks(rng.permutation(values), 20), delta=DELTA).value for _ in range(20)}
    assert len(bounds) == 1
    seeded = [rb.mean_bound(rb.ClientRisks(values, 20), delta=DELTA, seed=seed).value for seed in range(40)]
    assert np.ptp(seeded) > 0.003  # what a choice of the seed could gain


def wealth(values, mean):
    """Log-capitals of the gambler who plays values through in fixed orders, shape (num_orders, num_values)."""
    played = values[fixed_orders(values.size, num_orders=100)]
    count = np.arange(1, values.size + 1)
    means = (0.5 + np.cumsum(played, axis=1)) / (count + 1)
    spread = (0.25 + np.cumsum((played - means) ** 2, axis=1)) / (count + 1)
    before = np.concatenate([np.full((len(played), 1), 0.25), spread[:, :-1]], axis=1)
    bets = np.minimum(np.sqrt(2.0 * np.log(2.0) / (values.size * before)), 0.9 / (1.0 - mean))
    return np.cumsum(np.log1p(bets * (mean - played)), axis=1)


def test_averages_of_capitals_stopped_at_their_maximum_are_not_valid():
    """Negative control, at delta = 0.7 and coins of probability 0.2; the averages of the final capitals are."""
    rng = np.random.default_rng(3)
    stopped, final = [], []
    for _ in range(600):
        capitals = wealth((rng.random(20) < 0.2).astype(float), 0.2)
        stopped.append(logsumexp(capitals.max(axis=1)) >= np.log(len(capitals) / 0.7))
        final.append(logsumexp(capitals[:, -1]) >= np.log(len(capitals) / 0.7))
    assert is_rejected(stopped, 0.7)
    assert not is_rejected(final, 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [5, 10, 20, 50])
@pytest.mark.parametrize("law", ["coins .5", "coins .1", "coins .9", "uniform", "beta"])
def test_capitals_in_the_fixed_orders_are_fair_on_the_average(law, num_clients):
    """For independent clients as they come; of clients that come sorted it would be true of no fixed order."""
    rng, num_networks = np.random.default_rng(4), 4000
    draw, mean = {
        "coins .5": (lambda size: (rng.random(size) < 0.5).astype(float), 0.5),
        "coins .1": (lambda size: (rng.random(size) < 0.1).astype(float), 0.1),
        "coins .9": (lambda size: (rng.random(size) < 0.9).astype(float), 0.9),
        "uniform": (rng.random, 0.5),
        "beta": (lambda size: rng.beta(3.0, 21.0, size), 0.125),
    }[law]
    capitals = np.array([logsumexp(wealth(draw(num_clients), mean)[:, -1]) for _ in range(num_networks)]) - np.log(100)
    found = np.exp(capitals)
    assert found.mean() < 1.0 + 4.0 * found.std() / np.sqrt(num_networks)
    assert not is_rejected(capitals >= np.log(1.0 / 0.2), 0.2)


@pytest.mark.guard
@pytest.mark.parametrize(
    ("certificate", "named"),
    [
        (lambda risks: rb.mean(rb.band(risks, delta=DELTA, method="truncated:0.9:1")), "method truncated:0.9:1"),
        (lambda risks: rb.mean(rb.band(risks, delta=DELTA, eta=0.1)), "eta 0.1"),
        (lambda risks: rb.mean(rb.band(risks, delta=DELTA, local="observed")), "local observed"),
        (lambda risks: rb.mean_bound(risks, delta=DELTA, method="hoeffding"), "method hoeffding"),
        (lambda risks: rb.mean_bound(risks, delta=DELTA, seed=7), "seed 7"),
        (lambda risks: rb.mean_bound(risks, delta=0.01), "delta 0.01"),
        (lambda risks: rb.quantile(risks, 0.8, delta=DELTA), "level 0.8"),
        (lambda risks: rb.cvar(risks, 0.8, delta=DELTA), "level 0.8"),
        (lambda risks: rb.cvar(risks, 0.8, delta=DELTA, method="band"), "method truncated:0.8:1"),
        (lambda risks: rb.next_clients(risks, delta=DELTA, population=50), "population 50"),
        (
            lambda risks: rb.next_clients(risks, delta=DELTA, population=50, including_seen=True),
            "population 50, including seen yes",
        ),
        (
            lambda risks: (
                rb.select({"a": risks}, objective="mean", delta=DELTA, target=0.5, mean_share=0.5).certificate
            ),
            "target 0.5, mean share 0.5",
        ),
        (
            lambda risks: rb.group_certificate(
                rb.group_bands(risks, ["a", "b"] * 20, delta=DELTA, shares={"a": 0.3, "b": 0.7}), "largest_gap", "mean"
            ),
            "shares of delta a 0.3, b 0.7",
        ),
    ],
)
def test_whatever_is_not_the_default_is_an_assumption_by_name(certificate, named):
    risks = next(draw_networks(TWO_POINTS, num_networks=1, num_clients=40, sizes=20, seed=5))
    made = certificate(risks)
    assert f"chosen before any answer was seen: {named}" in made.assumptions
    assert rb.verify(made).ok


def test_defaults_are_no_choice():
    risks = next(draw_networks(TWO_POINTS, num_networks=1, num_clients=40, sizes=20, seed=5))
    unequal = rb.ClientRisks(risks.values, [20, 40] * 20)
    for answers in (risks, unequal):
        band = rb.band(answers, delta=DELTA)
        for made in (rb.mean_bound(answers, delta=DELTA), rb.mean(band), rb.mean(rb.band(answers, **band.recipe()))):
            assert not any(line.startswith("chosen before") for line in made.assumptions)
    assert rb.mean_bound(risks, delta=DELTA).method == CONSTANT_STAKES
