"""Laws of bounds that stand alone: worst-case means at fixed budgets and CVaR, straight from the answers."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import riskband as rb
from riskband.functionals.functional import interval_of

RNG = np.random.default_rng(3)
COUNTED = rb.ClientRisks(RNG.binomial(40, RNG.beta(3, 21, 60)) / 40, 40)
UNEQUAL = rb.ClientRisks(RNG.binomial(np.arange(1, 61), 0.3) / np.arange(1, 61), np.arange(1, 61), binary=True)
OTHER = rb.ClientRisks(RNG.beta(1, 4, 50), RNG.integers(1, 90, 50), binary=False)
ANSWERS = [COUNTED, UNEQUAL, OTHER]
OWN = rb.custom_divergence("own", lambda t: np.where(t > 1, 2.0, 1.0) * (t - 1.0) ** 2, slope_at_infinity=np.inf)
BALLS = [(name, 0.1) for name in rb.DIVERGENCES]


def bounds(risks, *, delta=0.05, seed=None):
    means = [rb.worst_case_mean(risks, divergence=name, budget=size, delta=delta, seed=seed) for name, size in BALLS]
    return np.array([each.value for each in [*means, rb.cvar(risks, 0.8, delta=delta, seed=seed)]])


@pytest.mark.parametrize("risks", ANSWERS, ids=["counted", "unequal", "other"])
def test_they_lie_between_the_bound_on_the_mean_and_one_and_grow_with_confidence(risks):
    at_20, at_5 = bounds(risks, delta=0.2), bounds(risks, delta=0.05)
    assert np.all((np.mean(risks.values) < at_20) & (at_20 < at_5) & (at_5 <= 1.0))


@pytest.mark.parametrize("risks", ANSWERS, ids=["counted", "unequal", "other"])
def test_with_names_the_order_of_the_rows_is_of_no_consequence(risks):
    order = np.random.default_rng(0).permutation(risks.num_clients)
    names = np.array([f"client {number}" for number in range(risks.num_clients)])
    named = rb.ClientRisks(risks.values, risks.num_examples, binary=risks.binary, names=names)
    shuffled = named.of_clients(order)
    assert bounds(shuffled).tolist() == (of_named := bounds(named)).tolist()
    theil = rb.dispersion_certificate(named, "theil", delta=0.1)
    assert interval_of(shuffled, "theil", delta=0.1) == (theil.lower, theil.value)
    assert rb.verify(theil).ok
    drawn, again = (rb.cvar(each, 0.8, delta=0.05, seed=1).value for each in (shuffled, named))
    assert drawn != again
    assert rb.cvar(risks.of_clients(order), 0.8, delta=0.05).value != of_named[-1]


def test_budget_zero_is_the_mean_and_several_budgets_share_delta():
    for seed in (None, 2):
        curve = rb.worst_case_mean(COUNTED, divergence="kl", budget=[0.0, 0.05, 0.2, 1.0], delta=0.2, seed=seed)
        assert curve.value[0] == rb.mean_bound(COUNTED, delta=0.05, seed=seed).value
        alone = rb.worst_case_mean(COUNTED, divergence="kl", budget=0.2, delta=0.05, seed=seed)
        assert curve.value[2] == alone.value
        assert np.all(np.diff(curve.value) > 0.0)
        assert curve.delta == 0.2


def test_a_tail_of_everybody_is_the_mean_and_ever_thinner_tails_are_worse():
    tails = [rb.cvar(COUNTED, level, delta=0.05).value for level in (0.0, 0.3, 0.6, 0.8)]
    assert np.all(np.diff(tails) > 0.0)
    assert tails[0] == pytest.approx(rb.mean_bound(COUNTED, delta=0.05).value, abs=0.005)


def test_they_are_sharper_than_what_is_read_off_a_band():
    band = rb.band(COUNTED, delta=0.05, sides="lower")
    direct = [rb.worst_case_mean(COUNTED, divergence=name, budget=0.1, delta=0.05).value for name in rb.DIVERGENCES]
    read = [rb.worst_case_mean(band, divergence=name, budget=0.1).value for name in rb.DIVERGENCES]
    assert np.all(np.less(direct, read))
    assert rb.cvar(COUNTED, 0.8, delta=0.05).value < rb.cvar(COUNTED, 0.8, delta=0.05, method="band").value


def test_certificates_say_how_they_were_made_and_verify():
    own = rb.worst_case_mean(OTHER, divergence=OWN, budget=[0.1, 0.3], delta=0.1, seed=0)
    assert rb.verify(own, divergences={"own": OWN}).ok
    for certificate in (
        rb.worst_case_mean(UNEQUAL, divergence="tv", budget=0.1, delta=0.05, seed=5),
        rb.worst_case_mean(OTHER, divergence="hellinger2", budget=[0.0, 0.1], delta=0.05),
        rb.cvar(COUNTED, 0.9, delta=0.05),
        rb.cvar(OTHER, 0.9, delta=0.05, seed=1),
        rb.cvar(OTHER, 0.9, delta=0.05, method="band"),
    ):
        assert rb.verify(json.loads(certificate.to_json())) == (True, ())
        assert certificate.method == {1: "betting", 5: "betting"}.get(
            certificate.recipe["arguments"].get("seed"), certificate.method
        )
    assert "chosen before any answer was seen: shift in own, budget 0.1 to 0.3 (2)" in own.assumptions
    assert own.method == "betting"
    assert certificate.method == "truncated:0.9:1 band"


def test_equal_numbers_of_examples_are_assumed_by_design_where_they_are_used():
    line = "the same number of examples for all clients was planned, and is no accident"
    many = rb.ClientRisks(np.tile(COUNTED.values, 2), 40)
    for risks, is_used in ((many, True), (UNEQUAL, False), (OTHER, False)):
        assert (line in rb.cvar(risks, 0.9, delta=0.05).assumptions) == is_used
        assert (line in rb.worst_case_mean(risks, divergence="tv", budget=0.1, delta=0.05).assumptions) == is_used
        assert line not in rb.worst_case_mean(risks, divergence="chi2", budget=0.1, delta=0.05).assumptions


DOUBTFUL = [
    rb.ClientRisks(COUNTED.values, 40, num_missing=2, missing="worst"),
    rb.ClientRisks(COUNTED.values, 40, contamination=1),
    rb.ClientRisks(COUNTED.values, 40, noise="laplace:0.5", binary=True),
]


@pytest.mark.parametrize("risks", DOUBTFUL, ids=["missing", "contaminated", "noisy"])
def test_answers_that_are_not_certain_need_a_band(risks):
    with pytest.raises(ValueError, match=r"use a band, rb\.band"):
        rb.worst_case_mean(risks, divergence="chi2", budget=0.1, delta=0.05)
    with pytest.raises(ValueError, match="use method='band'"):
        rb.cvar(risks, 0.9, delta=0.05, method="betting")
    assert rb.cvar(risks, 0.9, delta=0.05).method == "truncated:0.9:1 band"


def test_clients_that_are_missing_at_random_change_nothing_but_an_assumption():
    risks = rb.ClientRisks(COUNTED.values, 40, num_missing=3)
    found = rb.worst_case_mean(risks, divergence="chi2", budget=0.1, delta=0.05)
    assert found.value == rb.worst_case_mean(COUNTED, divergence="chi2", budget=0.1, delta=0.05).value
    assert any("missing at random" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "delta must be given with answers"),
        ({"delta": 1.5}, r"delta must be in \(0, 1\)"),
        ({"delta": 0.05, "method": "sharp"}, "method must be 'betting' with answers, got 'sharp'; make a band"),
        ({"delta": 0.05, "seed": -1}, "seed must be a whole number"),
    ],
)
def test_what_answers_need_is_said(settings, message):
    with pytest.raises(ValueError, match=message):
        rb.worst_case_mean(COUNTED, divergence="chi2", budget=0.1, **settings)


def test_what_a_band_has_cannot_be_given_with_it():
    band = rb.band(COUNTED, delta=0.05)
    for name, value in (("delta", 0.05), ("seed", 1)):
        with pytest.raises(ValueError, match=f"{name} must be left out with a band"):
            rb.worst_case_mean(band, divergence="chi2", budget=0.1, **{name: value})
        with pytest.raises(ValueError, match=f"{name} must be left out with a band"):
            rb.cvar(band, 0.9, **{name: value})
    with pytest.raises(ValueError, match="method must be left out with a band"):
        rb.cvar(band, 0.9, method="band")
    with pytest.raises(ValueError, match="method must be one of"):
        rb.worst_case_mean(band, divergence="chi2", budget=0.1, method="betting")


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 30])
def test_networks_where_all_clients_agree(value, size):
    risks = rb.ClientRisks([value] * 60, size, binary=True)
    found = bounds(risks)
    assert np.all(found <= 1.0)
    assert np.all(found > 0.0) if value == 0.0 else np.all(found == 1.0)


def test_tiny_and_huge_budgets_are_bounded_all_the_same():
    mean = rb.mean_bound(COUNTED, delta=0.05).value
    for name in rb.DIVERGENCES:
        tiny = rb.worst_case_mean(COUNTED, divergence=name, budget=1e-12, delta=0.05).value
        assert mean - 0.01 < tiny < mean + 0.01
        assert rb.worst_case_mean(COUNTED, divergence=name, budget=1e6, delta=0.05).value > 0.99


def test_a_divergence_is_what_it_is_not_what_it_is_called():
    risks = rb.ClientRisks(np.arange(60) % 9 / 20, 20)
    own = dataclasses.replace(OWN, name="kl")
    bounds = [rb.worst_case_mean(risks, divergence=f, budget=0.2, delta=0.1).value for f in (own, OWN)]
    assert bounds[0] == bounds[1]


def test_several_budgets_list_what_each_of_their_bounds_assumes():
    for budgets in ([0.1, 0.0], [0.0, 0.1]):
        certificate = rb.worst_case_mean(COUNTED, divergence="chi2", budget=budgets, delta=0.05)
        assert "betting with constant stakes" in certificate.method
        assert "betting averaged over fixed orders" in certificate.method
        assert any("order of the clients" in line for line in certificate.assumptions)
        assert rb.verify(certificate).ok
