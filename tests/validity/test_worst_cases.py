"""Everything that is read off one band holds together: survival, quantiles, CVaR and worst cases for every budget."""

from __future__ import annotations

from itertools import product

import pytest

import riskband as rb
from tests.validity.coverage import BETA, CONTINUOUS, TWO_POINTS, failures_of, is_exceeded, rejected

LAWS = {"beta": BETA, "two points": TWO_POINTS, "continuous": CONTINUOUS}


@failures_of
def failures(risks, law, *, delta, cases, divergences=("kl", "chi2")):
    """By case (local, method); a network counts as soon as one of its certificates is exceeded."""
    bands = {case: rb.band(risks, delta=delta, local=case[0], method=case[1], sides="lower") for case in cases}
    return {case: is_exceeded(band, law, divergences=divergences) for case, band in bands.items()}


@pytest.mark.parametrize(
    ("law", "sizes"),
    [
        ("beta", 20),
        pytest.param("beta", "dependent", marks=pytest.mark.slow),
        pytest.param("two points", 20, marks=pytest.mark.slow),
        ("two points", "dependent"),
    ],
)
def test_all_certificates_of_a_band_hold_together(law, sizes):
    cases = [("marginal", "berk_jones"), ("counted", "berk_jones")]
    found = failures(LAWS[law], num_networks=80, num_clients=50, sizes=sizes, delta=0.2, seed=1, cases=cases)
    assert rejected(found, 0.2) == {}


def test_they_hold_for_total_variation_and_hellinger_too():
    found = failures(
        BETA,
        num_networks=40,
        num_clients=50,
        sizes=20,
        delta=0.3,
        seed=2,
        cases=[("marginal", "berk_jones")],
        divergences=("tv", "hellinger2"),
    )
    assert rejected(found, 0.3) == {}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [20, 200, "unequal", "dependent"])
@pytest.mark.parametrize(("law", "num_clients"), list(product(["beta", "two points"], [50, 500])))
def test_all_certificates_hold_together_in_larger_studies(law, num_clients, sizes):
    cases = [("marginal", "berk_jones"), ("marginal", "dkw"), ("counted", "berk_jones"), ("union", "dkw")]
    found = failures(LAWS[law], num_networks=150, num_clients=num_clients, sizes=sizes, delta=0.1, seed=3, cases=cases)
    assert rejected(found, 0.1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [20, 200])
def test_all_certificates_hold_together_for_any_bounded_loss(sizes):
    cases = product(("marginal", "counted"), ("berk_jones", "dkw"))
    found = failures(CONTINUOUS, num_networks=200, num_clients=50, sizes=sizes, delta=0.1, seed=4, cases=cases)
    assert rejected(found, 0.1) == {}
