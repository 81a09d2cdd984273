"""Berk-Jones and DKW levels against published constants, closed forms and exact crossing probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta

import riskband as rb
from riskband.bands import levels as calibration
from riskband.bands.crossing import crossing_probability
from riskband.bands.levels import berk_jones_constant, berk_jones_levels, dkw_levels


@pytest.mark.parametrize(
    ("num_values", "delta", "one_sided", "two_sided"),
    [
        (20, 0.05, 0.00521688, 0.00238535),
        (20, 0.01, 0.00086672, 0.00041013),
        (100, 0.05, 0.00246093, 0.00109764),
        (100, 0.01, 0.00038696, 0.00017941),
        (500, 0.05, 0.00145579, None),
    ],
)
def test_the_constants_of_the_design_to_eight_digits(num_values, delta, one_sided, two_sided):
    assert berk_jones_constant(num_values, delta, is_two_sided=False) == pytest.approx(one_sided, abs=5.1e-9)
    if two_sided is not None:
        assert berk_jones_constant(num_values, delta, is_two_sided=True) == pytest.approx(two_sided, abs=5.1e-9)


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.05, 1e-3])
def test_one_and_two_values_in_closed_form(delta):
    def excess_of_two(c):
        """P(U_(1) >= a, U_(2) >= b) = (1 - a)² - (b - a)², with L = (1 - sqrt(1 - c), sqrt(c))."""
        a, b = 1.0 - np.sqrt(1.0 - c), np.sqrt(c)
        return (1.0 - a) ** 2 - (b - a) ** 2 - (1.0 - delta)

    two = brentq(excess_of_two, 1e-12, delta, xtol=1e-15)
    assert berk_jones_constant(1, delta, is_two_sided=False) == pytest.approx(delta, rel=1e-7)
    assert berk_jones_constant(1, delta, is_two_sided=True) == pytest.approx(delta / 2, rel=1e-7)
    assert berk_jones_constant(2, delta, is_two_sided=False) == pytest.approx(two, rel=1e-7)


@pytest.mark.parametrize("num_values", [2, 20, 100, 500, 3000])
@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01, 1e-6])
def test_the_joint_coverage_is_the_nominal_one_from_the_safe_side(num_values, delta):
    one = berk_jones_levels(num_values, delta, "lower")
    two = berk_jones_levels(num_values, delta, "two")
    for coverage in (crossing_probability(one.lower), crossing_probability(two.lower, two.upper)):
        assert 0.0 <= coverage - (1.0 - delta) < 1e-8 * delta + 1e-11


@pytest.mark.parametrize("is_two_sided", [False, True])
@pytest.mark.parametrize("num_values", [2, 3, 20, 100, 500, 3000])
@pytest.mark.parametrize("delta", [0.9, 0.3, 0.05, 1e-3, 1e-6])
def test_a_calibration_takes_at_most_ten_crossing_probabilities(monkeypatch, num_values, delta, is_two_sided):
    exact, num_calls = calibration.crossing_probability, []

    def counted(*boundaries):
        num_calls.append(1)
        return exact(*boundaries)

    monkeypatch.setattr(calibration, "crossing_probability", counted)
    berk_jones_constant.__wrapped__(num_values, delta, is_two_sided=is_two_sided)
    assert 1 <= len(num_calls) <= 10


def test_the_same_band_is_never_calibrated_twice():
    risks = rb.ClientRisks(np.linspace(0.0, 0.4, 41), num_examples=100)
    rb.band(risks, delta=0.0731)
    before = berk_jones_constant.cache_info()
    rb.band(risks, delta=0.0731)
    rb.band(risks, delta=0.0731, local="observed")
    after = berk_jones_constant.cache_info()
    assert after.misses == before.misses
    assert after.hits == before.hits + 2


def test_berk_jones_levels_are_beta_quantiles():
    c = berk_jones_constant(30, 0.1, is_two_sided=True)
    levels, rank = berk_jones_levels(30, 0.1, "two"), np.arange(1, 31)
    np.testing.assert_allclose(levels.lower, beta.ppf(c, rank, 31 - rank), rtol=1e-12)
    np.testing.assert_allclose(levels.upper, beta.ppf(1.0 - c, rank, 31 - rank), rtol=1e-9)


@pytest.mark.parametrize("num_values", [5, 200])
@pytest.mark.parametrize("delta", [0.3, 0.01])
def test_dkw_levels_are_massarts_formula_and_at_least_nominal(num_values, delta):
    rank = np.arange(1, num_values + 1)
    one, two = np.sqrt(np.log(1 / delta) / (2 * num_values)), np.sqrt(np.log(2 / delta) / (2 * num_values))
    lower = dkw_levels(num_values, delta, "lower")
    both = dkw_levels(num_values, delta, "two")
    np.testing.assert_allclose(lower.lower, np.clip(rank / num_values - one, 0, 1), atol=1e-15)
    np.testing.assert_allclose(both.lower, np.clip(rank / num_values - two, 0, 1), atol=1e-15)
    np.testing.assert_allclose(both.upper, np.clip((rank - 1) / num_values + two, 0, 1), atol=1e-15)
    assert lower.upper is None
    assert crossing_probability(lower.lower) >= 1.0 - delta
    assert crossing_probability(both.lower, both.upper) >= 1.0 - delta


@pytest.mark.parametrize("delta", [0.51, 0.9, 0.999])
def test_one_sided_dkw_stays_valid_where_massarts_constant_does_not_reach(delta):
    assert crossing_probability(dkw_levels(3, delta, "lower").lower) >= 1.0 - delta
