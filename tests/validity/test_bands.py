"""The CDF of true risks leaves a band anywhere at all no more often than delta, for every way to build it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import riskband as rb
from benchmarks.ground_truth import AffineGaussian
from riskband.bands.methods import NAMED_LEVELS
from tests.validity.coverage import (
    BETA,
    CONTINUOUS,
    TWO_POINTS,
    ObservedLaw,
    failures_of,
    is_rejected,
    leaves,
    rejected,
    study,
)

METHODS, SIDES = (*NAMED_LEVELS, "truncated:0.5:0.9"), ("two", "lower", "upper")
LOCALS = ("marginal", "counted", "union", "observed")
AFFINE = AffineGaussian(margin=1.5, sigma=0.4)
LAWS = {"beta": BETA, "two points": TWO_POINTS, "affine": AFFINE, "continuous": CONTINUOUS}


@failures_of
def failures(risks, law, *, delta, cases):
    """By case (local, method, sides)."""
    observed = ObservedLaw(law, int(risks.num_examples[0]))
    return {
        (local, method, sides): leaves(
            rb.band(risks, delta=delta, method=method, local=local, sides=sides),
            observed if local == "observed" else law,
        )
        for local, method, sides in cases
    }


@study(60, slow=200)
@pytest.mark.parametrize("law", ["beta", "two points"])
def test_every_band_holds_for_equal_numbers_of_examples(law, num_networks):
    cases = product(LOCALS, METHODS, SIDES)
    found = failures(LAWS[law], num_networks=num_networks, num_clients=50, sizes=20, delta=0.2, seed=1, cases=cases)
    assert rejected(found, 0.2) == {}


@study(100, slow=200)
@pytest.mark.parametrize("sizes", ["unequal", "dependent"])
def test_bands_hold_for_numbers_of_examples_drawn_with_the_client(sizes, num_networks):
    cases = product(("marginal", "counted"), METHODS, ("two", "lower"))
    found = failures(BETA, num_networks=num_networks, num_clients=50, sizes=sizes, delta=0.2, seed=2, cases=cases)
    assert rejected(found, 0.2) == {}


@study(60, slow=120)
def test_bands_hold_for_any_bounded_loss(num_networks):
    cases = product(("marginal", "counted"), ("berk_jones",), ("two",))
    found = failures(CONTINUOUS, num_networks=num_networks, num_clients=40, sizes=20, delta=0.2, seed=3, cases=cases)
    assert rejected(found, 0.2) == {}


@pytest.mark.slow
@study(300)
def test_exact_calibration_shows_where_no_local_step_hides_it(num_networks):
    """The same test has power: for the law of what clients measure, ever finer, Berk-Jones fails nearly delta."""
    cases = [("observed", "berk_jones", sides) for sides in SIDES]
    found = failures(BETA, num_networks=num_networks, num_clients=50, sizes=5000, delta=0.2, seed=4, cases=cases)
    assert rejected(found, 0.2) == {}
    assert min(sum(f) / len(f) for f in found.values()) > 0.13


@pytest.mark.parametrize("sides", SIDES)
def test_bands_hold_when_clients_measure_their_risk_without_noise(sides):
    """A client may evaluate all the data it will ever have: less noise than assumed must never break a bound."""
    failures = []
    for seed in range(60):
        true_risks, _ = TWO_POINTS.draw(np.random.default_rng(seed), num_clients=100, num_examples=1)
        band = rb.band(rb.ClientRisks(true_risks, 20), delta=0.2, sides=sides)
        failures.append(leaves(band, TWO_POINTS))
    assert not is_rejected(failures, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [20, 200])
@pytest.mark.parametrize("num_clients", [50, 500])
@pytest.mark.parametrize("law", ["beta", "two points"])
def test_every_band_holds_in_larger_studies(law, num_clients, sizes):
    num_networks = {50: 300, 500: 100}[num_clients]
    found = failures(
        LAWS[law],
        num_networks=num_networks,
        num_clients=num_clients,
        sizes=sizes,
        delta=0.1,
        seed=5,
        cases=product(LOCALS, METHODS, SIDES),
    )
    assert rejected(found, 0.1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["unequal", "dependent"])
@pytest.mark.parametrize("num_clients", [50, 500])
@pytest.mark.parametrize("law", ["beta", "two points"])
def test_bands_hold_for_drawn_numbers_of_examples_in_larger_studies(law, num_clients, sizes):
    cases = product(("marginal", "counted", "union"), METHODS, SIDES)
    found = failures(LAWS[law], num_networks=300, num_clients=num_clients, sizes=sizes, delta=0.1, seed=6, cases=cases)
    assert rejected(found, 0.1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("law", ["continuous", "affine"])
@pytest.mark.parametrize("sizes", [20, 200])
def test_bands_hold_for_bounded_losses_and_a_real_shift_in_larger_studies(law, sizes):
    cases = product(("marginal", "counted", "union"), METHODS, ("two", "lower"))
    found = failures(LAWS[law], num_networks=250, num_clients=60, sizes=sizes, delta=0.1, seed=7, cases=cases)
    assert rejected(found, 0.1) == {}
