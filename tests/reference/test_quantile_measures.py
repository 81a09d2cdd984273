"""Intervals for integrals of quantiles, and of functions of them: by quadrature and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scipy.integrate import quad

import riskband as rb
from papers.dispersion.transforms import (
    absolute_transform,
    polynomial_transform,
    smooth_transform,
    transformed_quantile_interval,
)
from riskband.functionals.functional import interval_of
from riskband.functionals.weights import (
    LINEAR,
    MEAN,
    interval_weight,
    maximum_weight,
    minimum_weight,
    smoothed_median_weight,
)
from tests.reference.dispersion_definitions import band_with_limits, integral


def test_weighted_intervals_by_quadrature(hundred):
    weights = {
        "mean": (MEAN, lambda p: 1.0 + 0 * p),
        "interval": (interval_weight(0.5, 0.9), None),
        "linear": (LINEAR, lambda p: 2 * p),
        "maximum": (maximum_weight(4), lambda p: 4 * p**3),
        "minimum": (minimum_weight(4), lambda p: 4 * (1 - p) ** 3),
        "median": (smoothed_median_weight(0.2), lambda p: np.exp(-(((p - 0.5) / 0.2) ** 2))),
    }
    for name, (weight, density) in weights.items():
        if density is None:
            continue
        scale = quad(lambda p, f=density: float(f(np.float64(p))), 0, 1)[0]
        found = interval_of(hundred, weight)
        for side, value in zip((hundred.quantile_lower, hundred.quantile_upper), found, strict=True):
            expected = integral(lambda p, f=density, s=side: f(p) * s(p), hundred) / scale
            assert value == pytest.approx(expected, rel=1e-9), name
    found = interval_of(hundred, weights["interval"][0])
    grid = np.linspace(0.5, 0.9, 400_001)
    np.testing.assert_allclose(
        found, [hundred.quantile_lower(grid).mean(), hundred.quantile_upper(grid).mean()], atol=1e-5
    )


def test_the_smoothed_median_is_symmetric_and_narrow():
    weight = smoothed_median_weight()
    p = np.linspace(0.0, 0.5, 101)
    np.testing.assert_allclose(weight.cumulative(p) + weight.cumulative(1.0 - p), 1.0, atol=1e-14)
    assert weight.cumulative(np.array(0.48)) < 0.003
    with pytest.raises(ValueError, match="width"):
        smoothed_median_weight(0.0)


def test_intervals_agree_with_the_certificates_of_their_upper_ends(hundred):
    assert interval_of(hundred, "mean").upper == pytest.approx(rb.mean(hundred).value)
    assert interval_of(hundred, "cvar:0.8").upper == pytest.approx(rb.cvar(hundred, level=0.8).value)
    assert interval_of(hundred, "quantile:0.3").upper == rb.quantile(hundred, level=0.3).value
    assert rb.quantile_certificate(hundred, level=[0.1, 0.2]).lower.shape == (2,)
    marginal = rb.band(hundred.risks, delta=0.1)
    assert interval_of(marginal, "mean").lower == pytest.approx(interval_of(hundred, "mean").lower)


def test_variation_by_quadrature_of_the_slope():
    cubic = Polynomial([0.1, 1.0, -4.0, 3.0])
    wave = smooth_transform(lambda s: np.sin(9 * s), lambda s: 9 * np.cos(9 * s), name="wave")
    cases = [
        (polynomial_transform(cubic), cubic.deriv()),
        (absolute_transform(0.3), lambda s: np.sign(s - 0.3)),
        (wave, lambda s: 9 * np.cos(9 * s)),
    ]
    for transform, slope in cases:
        for end in (0.0, 0.2, 0.7, 1.0):
            breaks = [t for t in transform.turning_points if t < end] or None
            expected = quad(lambda s, f=slope: abs(f(s)), 0, end, points=breaks, limit=200)[0]
            assert transform.variation(end) == pytest.approx(expected, abs=1e-7)


def test_extremes_of_a_transform_by_a_fine_grid():
    rng = np.random.default_rng(0)
    low = rng.random(50)
    high = low + rng.random(50) * (1 - low)
    cosh = smooth_transform(lambda s: np.exp(s) + np.exp(-s), lambda s: np.exp(s) - np.exp(-s), name="cosh")
    wave = smooth_transform(lambda s: np.sin(20 * s), lambda s: 20 * np.cos(20 * s), name="wave")
    for transform in (cosh, wave, polynomial_transform(Polynomial([0, 1, -3, 2.5])), absolute_transform(0.4)):
        values = transform.function(low + (high - low) * np.linspace(0, 1, 20_001)[:, None])
        least, most = transform.extremes(low, high)
        np.testing.assert_allclose(least, values.min(axis=0), atol=1e-4)
        np.testing.assert_allclose(most, values.max(axis=0), atol=1e-4)


def test_transformed_quantiles_by_hand():
    """q in [.2, .6] on half of the levels, [.4, .8] on the other; ξ(s) = (s - .5)² = .25 - s + s²."""
    band = band_with_limits([0.5, 1.0], [0.2, 0.4], [0.6, 0.8])
    square = polynomial_transform(Polynomial([0.25, -1, 1]))
    assert transformed_quantile_interval(band, square) == pytest.approx((0.0, (0.09 + 0.09) / 2))
    jordan = transformed_quantile_interval(band, square, method="jordan")
    assert jordan == pytest.approx(((0.09 - 0.1 + 0.01 - 0.1) / 2, (0.09 + 0.1 + 0.01 + 0.1) / 2))
    monomials = transformed_quantile_interval(band, square, method="monomials")
    assert monomials.upper == pytest.approx((0.25 - 0.2 + 0.36 + 0.25 - 0.4 + 0.64) / 2)
    assert monomials.lower == pytest.approx((0.25 - 0.6 + 0.04 + 0.25 - 0.8 + 0.16) / 2)
    signed = polynomial_transform(Polynomial([0, -0.5, 0.5]))  # integral of p - 1/2: negative on the first half
    identity = polynomial_transform(Polynomial([0, 1]))
    found = transformed_quantile_interval(band, identity, weight=signed)
    assert found == pytest.approx((0.125 * (0.4 - 0.6), 0.125 * (0.8 - 0.2)))


def test_transforms_that_do_not_fit_are_refused(hundred):
    with pytest.raises(ValueError, match="does not fit"):
        smooth_transform(lambda s: s**2, lambda s: 3 * s, name="wrong slope")
    with pytest.raises(ValueError, match="oscillates"):
        smooth_transform(lambda s: np.sin(90 * s), lambda s: 90 * np.cos(90 * s), name="coarse", num_points=16)
    with pytest.raises(ValueError, match="needs a polynomial"):
        transformed_quantile_interval(hundred, absolute_transform(0.5), method="monomials")
    with pytest.raises(ValueError, match="centre"):
        absolute_transform(1.5)
    with pytest.raises(ValueError, match="num_clients"):
        maximum_weight(0)
