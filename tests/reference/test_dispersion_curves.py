"""Certificates for whole curves: the definitions from outside, what they store, and that `verify` follows them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

import riskband as rb
from riskband.functionals.dispersion import lorenz_of_distribution
from riskband.functionals.distributions import RiskDistribution
from tests.reference.dispersion_definitions import band_with_limits

SHARES = np.linspace(0.0, 1.0, 11)
LEVELS, LOWER, UPPER = np.array([0.3, 0.55, 1.0]), np.array([0.1, 0.3, 0.6]), np.array([0.25, 0.5, 0.9])


@pytest.fixture
def band():
    rng = np.random.default_rng(4)
    return rb.band(rb.ClientRisks(rng.binomial(50, rng.beta(2, 8, 60)) / 50, 50), delta=0.1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1))
def test_the_lorenz_curve_is_the_integral_of_the_quantile_function(values, share):
    law = RiskDistribution.of_values(values)
    found = lorenz_of_distribution(law, share)
    if law.mean == 0.0:
        assert found == share
        return
    jumps = [level for level in law.levels if level < share]
    borne = quad(lambda p: float(law.quantile(p)), 0.0, share, points=jumps or None, limit=100)[0]
    assert found == pytest.approx(borne / np.mean(values), abs=1e-6)


def test_a_lorenz_certificate_is_the_smallest_and_the_largest_curve_of_a_tiny_band():
    """On steps of equal quantile, any member is between; the ends are those of brute force over a grid of members."""
    certificate = rb.lorenz_certificate(band_with_limits(LEVELS, LOWER, UPPER), shares=SHARES)
    grid = [np.linspace(low, high, 21) for low, high in zip(LOWER, UPPER, strict=True)]
    members = [np.array(q) for q in np.stack(np.meshgrid(*grid), axis=-1).reshape(-1, 3) if np.all(np.diff(q) >= 0)]
    curves = np.array([lorenz_of_distribution(RiskDistribution(member, LEVELS), SHARES) for member in members])
    at_steps = [3]  # 0.3 is the end of a step: there no member inside a step does better
    assert np.all(curves >= certificate.lower - 1e-12)
    assert np.all(curves <= certificate.value + 1e-12)
    np.testing.assert_allclose(curves.min(axis=0)[at_steps], certificate.lower[at_steps], atol=1e-12)
    np.testing.assert_allclose(curves.max(axis=0)[at_steps], certificate.value[at_steps], atol=1e-12)


def test_the_quantiles_are_those_of_the_band(band):
    levels = [0.1, 0.5, 0.9]
    certificate = rb.quantile_certificate(band, level=levels)
    np.testing.assert_array_equal(certificate.lower, band.quantile_lower(levels))
    np.testing.assert_array_equal(certificate.value, band.quantile_upper(levels))
    measured = np.quantile(band.risks.values, levels, method="inverted_cdf")
    np.testing.assert_array_equal(certificate.details["measured"], measured)
    assert certificate.delta == band.delta
    assert "lies between the given curves, for every level at once" in certificate.statement


@pytest.mark.parametrize("method", ["sharp", "plugin", "convex_order"])
def test_both_verify_and_a_changed_curve_does_not(band, method):
    for certificate in (
        rb.lorenz_certificate(band, shares=SHARES, method=method),
        rb.lorenz_certificate(band, shares=5),
        rb.quantile_certificate(band, level=[0.25, 0.75]),
    ):
        stored = json.loads(certificate.to_json())
        assert rb.verify(stored).ok
        assert np.all(certificate.lower <= certificate.details["measured"] + 1e-12)
        stored["lower"][1] += 0.01
        assert not rb.verify(stored).ok


@pytest.mark.parametrize("shares", [[0.2, 1.2], [np.nan], [[0.1, 0.2]], []])
def test_what_is_no_share_is_refused(band, shares):
    with pytest.raises(ValueError, match=r"shares must|\[0, 1\]"):
        rb.lorenz_certificate(band, shares=shares)
    with pytest.raises(ValueError, match=r"level must|\[0, 1\]"):
        rb.quantile_certificate(band, level=shares)


def test_one_side_is_not_enough(band):
    one = rb.band(band.risks, delta=0.1, sides="lower")
    with pytest.raises(ValueError, match="no upper side"):
        rb.lorenz_certificate(one)
    with pytest.raises(ValueError, match="no upper side"):
        rb.quantile_certificate(one, level=[0.5])
