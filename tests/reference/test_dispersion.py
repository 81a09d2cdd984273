"""Dispersion: the numbers of the design, textbook definitions, brute force and cvxpy on tiny bands."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import beta as beta_function
from scipy.stats import beta

import riskband as rb
from riskband.functionals import dispersion as rd
from riskband.functionals.distributions import QuantileLimits, RiskDistribution
from riskband.functionals.functional import MEASURES, interval_of, resolve
from tests.reference.dispersion_definitions import (
    DEFINITIONS,
    band_with_limits,
    integral,
    nondecreasing_selections,
    refined,
)

# levels, lower and upper limits of tiny bands, with zeros, ties, an overlap (one risk may serve all) and none
TINY = {
    "apart": ([0.3, 0.55, 1.0], [0.1, 0.3, 0.6], [0.25, 0.5, 0.9]),
    "overlap": ([0.2, 0.7, 1.0], [0.05, 0.1, 0.35], [0.4, 0.6, 1.0]),
    "zeros": ([0.25, 0.5, 0.8, 1.0], [0.0, 0.0, 0.2, 0.2], [0.15, 0.3, 0.3, 0.7]),
    "all zero allowed": ([0.5, 1.0], [0.0, 0.0], [0.4, 0.8]),
    "zeros for sure": ([0.3, 0.6, 1.0], [0.0, 0.1, 0.3], [0.0, 0.4, 0.5]),
    "one law": ([0.25, 0.5, 1.0], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7]),
}


@pytest.fixture(params=TINY)
def tiny(request):
    levels, lower, upper = TINY[request.param]
    return np.array(levels), np.array(lower), np.array(upper)


def test_the_band_helper_has_the_limits_it_is_given(tiny):
    limits = QuantileLimits.of_band(band_with_limits(*tiny))
    levels = (np.concatenate([[0.0], tiny[0][:-1]]) + tiny[0]) / 2
    step = np.searchsorted(limits.levels, levels)
    np.testing.assert_array_equal(limits.lower[step], tiny[1])
    np.testing.assert_array_equal(limits.upper[step], tiny[2])


def test_the_numbers_of_the_design():
    """math §5.4: n = 100, Beta(.5, 2), delta = .05; they are those of the first seed."""
    risks = rb.ClientRisks(np.random.default_rng(1).beta(0.5, 2, 100), 100, binary=False)
    band = rb.band(risks, delta=0.05, local="observed")
    limits = QuantileLimits.of_band(band)
    expected = {
        "gini": (0.585, 0.404, 0.736, 3.21),
        "atkinson:0.5": (0.320, 0.176, 0.507, 0.786),
        "hoover": (0.454, 0.286, 0.624, 1.68),
    }
    for name, numbers in expected.items():
        found = (rd.measured_dispersion(risks, name), *interval_of(band, name))
        np.testing.assert_allclose(found, numbers[:3], atol=5.1e-4)
        assert resolve(name).plug_in(limits)[1] == pytest.approx(numbers[3], abs=5.1e-3)
        assert interval_of(band, name, method="plugin").upper == min(1.0, resolve(name).plug_in(limits)[1])


@pytest.mark.parametrize("name", DEFINITIONS)
def test_measures_of_a_law_follow_their_definitions(name):
    rng = np.random.default_rng(0)
    for atoms in ([0.3, 0.3], [0.0, 0.0, 1.0], rng.random(7), np.sort(rng.random(40)) ** 4, [0.0, 0.2, 0.4, 0.4]):
        x = np.sort(atoms)
        expected = DEFINITIONS[name](x, np.full(x.size, 1 / x.size))
        found = resolve(name).of_distribution(RiskDistribution.of_values(atoms))
        assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


def test_every_kind_of_measure_is_defined_here():
    assert {name.split(":")[0] for name in DEFINITIONS} == set(MEASURES)


@pytest.mark.parametrize(("a", "b"), [(0.5, 2.0), (3.0, 21.0), (1.0, 1.0)])
def test_fine_laws_have_the_textbook_values_of_the_beta_law(a, b):
    levels = (np.arange(40_000) + 0.5) / 40_000
    law, m = RiskDistribution.of_values(beta.ppf(levels, a, b)), a / (a + b)
    expected = {
        "gini": 2 * beta_function(2 * a, 2 * b) / (a * beta_function(a, b) ** 2),
        "hoover": beta.cdf(m, a, b) - beta.cdf(m, a + 1, b),
        "coefficient_of_variation": beta.std(a, b) / m,
        "top_share:0.1": beta.sf(beta.ppf(0.9, a, b), a + 1, b),
        "atkinson:0.5": 1 - (beta_function(a + 0.5, b) / beta_function(a, b)) ** 2 / m,
        "mean_range:4": quad(lambda x: 1 - beta.cdf(x, a, b) ** 4 - beta.sf(x, a, b) ** 4, 0, 1)[0],
        "quantile_range:0.2:0.7": beta.ppf(0.7, a, b) - beta.ppf(0.2, a, b),
    }
    for name, value in expected.items():
        assert resolve(name).of_distribution(law) == pytest.approx(value, rel=2e-3), name


@pytest.mark.parametrize("name", DEFINITIONS)
def test_no_law_of_a_tiny_band_is_more_unequal(name, tiny):
    """The measures are quasi-convex, so their largest value on fixed steps is at a vertex: all of them are tried."""
    band = band_with_limits(*tiny)
    cut = resolve(name).cut(QuantileLimits.of_band(band))
    widths, low, high = refined(*tiny, [0.25, 0.75, cut, 0.15, 0.42, 0.9])
    values = DEFINITIONS[name](nondecreasing_selections(low, high), widths)
    interval = interval_of(band, name)
    if rd.extremal_distributions(band, name).most_unequal is None:
        assert interval.upper == resolve(name).range[1] > np.max(values)
    else:
        assert interval.upper == pytest.approx(np.max(values), rel=1e-9, abs=1e-12)
    assert interval.lower <= np.min(values) + 1e-12


@pytest.mark.parametrize("num_cuts", [501, pytest.param(2001, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_no_other_cut_is_better(name, tiny, num_cuts):
    band, limits = band_with_limits(*tiny), QuantileLimits.of_band(band_with_limits(*tiny))
    measure, upper = resolve(name), interval_of(band, name).upper
    values = [measure.of_distribution(limits.most_unequal(cut)) for cut in np.linspace(0, 1, num_cuts)]
    assert max(values) <= upper + 1e-12
    if rd.extremal_distributions(band, name).most_unequal is not None and np.isfinite(upper):
        assert max(values) >= upper - 0.01 * max(upper, 1.0)  # the grid comes near


def entropy_program(order):
    return lambda q, w: w @ cp.power(q, order)


# convex in q at mean 1, with the measure as a function of the optimum
PROGRAMS = {
    "gini": (lambda q, w: q @ np.diff(np.cumsum([0, *w]) ** 2 - np.cumsum([0, *w])), lambda v: v),
    "extended_gini:4": (lambda q, w: -(q @ -np.diff((1 - np.cumsum([0, *w])) ** 4)), lambda v: 1 + v),
    "atkinson:0.5": (lambda q, w: -(w @ cp.sqrt(q)), lambda v: 1 - v**2),
    "atkinson:1": (lambda q, w: -(w @ cp.log(q)), lambda v: 1 - np.exp(-v)),
    "atkinson:2": (lambda q, w: w @ cp.inv_pos(q), lambda v: 1 - 1 / v),
    "generalised_entropy:2": (lambda q, w: w @ cp.square(q), lambda v: (v - 1) / 2),
    "generalised_entropy:3.5": (lambda q, w: w @ cp.power(q, 3.5), lambda v: (v - 1) / 8.75),
    "generalised_entropy:0.5": (lambda q, w: -(w @ cp.sqrt(q)), lambda v: 4 * (1 + v)),
    "theil": (lambda q, w: -(w @ cp.entr(q)), lambda v: v),
    "mean_log_deviation": (lambda q, w: -(w @ cp.log(q)), lambda v: v),
    "hoover": (lambda q, w: w @ cp.abs(q - 1) / 2, lambda v: v),
    "coefficient_of_variation": (lambda q, w: w @ cp.square(q), lambda v: np.sqrt(max(v - 1, 0))),
    "top_share:0.3": (lambda q, w: q @ np.diff(np.maximum(np.cumsum([0, *w]) - 0.7, 0)), lambda v: v),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("case", ["apart", "overlap", "zeros"])
def test_the_most_equal_law_solves_the_convex_program(name, case):
    """Scale the law to mean 1: the program is convex, cvxpy knows nothing of clipping."""
    levels, lower, upper = (np.array(part) for part in TINY[case])
    widths, low, high = refined(levels, lower, upper, [0.7, 0.35])
    q, scale = cp.Variable(widths.size), cp.Variable(nonneg=True)
    objective, measure = PROGRAMS[name]
    constraints = [widths @ q == 1, q >= scale * low, q <= scale * high, cp.diff(q) >= 0]
    problem = cp.Problem(cp.Minimize(objective(q, widths)), constraints)
    problem.solve(solver=cp.CLARABEL)
    found = interval_of(band_with_limits(levels, lower, upper), name).lower
    assert found == pytest.approx(float(measure(problem.value)), abs=2e-4 if name.startswith("coef") else 1e-6)


def test_the_smallest_mean_range_solves_a_linear_program(tiny):
    levels, lower, upper = tiny
    for k in (2, 5):
        edges = np.concatenate([[0.0], levels])
        q = cp.Variable(levels.size)
        cost = np.diff(edges**k + (1 - edges) ** k)
        problem = cp.Problem(cp.Minimize(cost @ q), [q >= lower, q <= upper, cp.diff(q) >= 0])
        problem.solve(solver=cp.CLARABEL)
        assert interval_of(band_with_limits(*tiny), f"mean_range:{k}").lower == pytest.approx(problem.value, abs=1e-7)


def test_the_extremum_may_lie_inside_a_step():
    """Gini over q in [.1, 1]: the cut solves p = (1 + G)/2 with G = p·.9(1-p)/(1 - .9p)."""
    band = band_with_limits([1.0], [0.1], [1.0])
    root = (1 - math.sqrt(0.1)) / 0.9  # .9p² - 2p + 1 = 0
    assert resolve("gini").cut(QuantileLimits.of_band(band)) == pytest.approx(root, abs=1e-7)
    assert interval_of(band, "gini").upper == pytest.approx(2 * root - 1, abs=1e-12)


@pytest.mark.parametrize("num_zero", [0, 1, 11, 19, 20])
def test_the_gini_coefficient_of_risks_zero_and_one_is_the_share_of_zeros(num_zero):
    """So its interval is that of the levels at the jump: c = .00238535 for K = 20 (math §2.1), by scipy's beta."""
    risks = rb.ClientRisks(np.where(np.arange(20) < num_zero, 0.0, 1.0), 1)
    low = beta.ppf(0.00238535, num_zero, 21 - num_zero) if num_zero > 0 else 0.0
    high = beta.isf(0.00238535, num_zero + 1, 20 - num_zero) if num_zero < 20 else 1.0
    found = interval_of(rb.band(risks, delta=0.05, local="observed"), "gini")
    assert found == pytest.approx((low if num_zero < 20 else 0.0, high), abs=1e-6)


def test_plug_in_formulas_by_quadrature_of_the_quantile_functions(hundred):
    low, high, limits = hundred.quantile_lower, hundred.quantile_upper, QuantileLimits.of_band(hundred)
    low_mean, high_mean = integral(low, hundred), integral(high, hundred)

    def power_mean(side):
        return integral(lambda p: np.sqrt(side(p)), hundred) ** 2

    def theil_moment(p):
        return np.maximum(low(p) * np.log(np.maximum(low(p), 1e-300)), high(p) * np.log(high(p)))

    deviation = integral(lambda p: np.maximum(np.abs(high(p) - low_mean), np.abs(low(p) - high_mean)), hundred)
    theil = integral(theil_moment, hundred)
    expected = {
        "gini": 2 * integral(lambda p: p * high(p), hundred) / low_mean - 1,
        "extended_gini:3": 1 - 3 * integral(lambda p: (1 - p) ** 2 * low(p), hundred) / high_mean,
        "atkinson:0.5": 1 - power_mean(low) / high_mean,
        "generalised_entropy:2": (integral(lambda p: high(p) ** 2, hundred) / low_mean**2 - 1) / 2,
        "hoover": deviation / (2 * low_mean),
        "mean_range:3": 3 * integral(lambda p: p**2 * high(p) - (1 - p) ** 2 * low(p), hundred),
        "theil": max(theil / m - math.log(m) for m in np.linspace(low_mean, high_mean, 10_001)),
    }
    for name, value in expected.items():
        assert resolve(name).plug_in(limits)[1] == pytest.approx(value, rel=1e-6), name


def test_the_published_mean_range_is_not_the_mean_range():
    """Erratum of [DC] example 8: for uniform risks it gives k/((k+1)(k+2)), the truth is (k-1)/(k+1)."""
    k, p = 2, (np.arange(1000) + 0.5) / 1000
    printed = k * np.mean(p * (p ** (k - 1) - p**k))
    assert printed == pytest.approx(1 / 6, abs=1e-4)
    assert resolve("mean_range:2").of_distribution(RiskDistribution.of_values(p)) == pytest.approx(1 / 3, abs=1e-3)


def test_measures_that_zero_risks_make_vacuous_say_so():
    band = band_with_limits([0.3, 1.0], [0.0, 0.4], [0.2, 0.6])
    for aversion in (1.0, 2.0):
        certificate = rd.dispersion_certificate(band, f"atkinson:{aversion}")
        assert certificate.value == 1.0
        assert "risk 0" in certificate.method
    assert interval_of(band, "mean_log_deviation").upper == np.inf
    assert interval_of(band, "generalised_entropy:-0.5").upper == np.inf
    with pytest.raises(ValueError, match="risk 0"):
        rd.dispersion_certificate(band, "mean_log_deviation")
    assert "risk 0" not in rd.dispersion_certificate(band, "gini").method


def test_no_risk_at_all_is_no_inequality():
    band = band_with_limits([1.0], [0.0], [0.0])
    for name in DEFINITIONS:
        no_inequality = resolve(name).range[0]
        for method in ("sharp", "plugin"):
            assert interval_of(band, name, method=method) == pytest.approx((no_inequality, no_inequality))
    np.testing.assert_allclose(rb.lorenz_certificate(band, shares=[0, 0.3, 1]).value, [0, 0.3, 1])


def test_the_lorenz_curve_of_one_law(tiny):
    levels, _, upper = tiny
    curve = rb.lorenz_certificate(band_with_limits(levels, upper, upper), shares=[0.0, *levels])
    widths = np.diff(levels, prepend=0)
    expected = np.concatenate([[0], np.cumsum(widths * upper)]) / np.sum(widths * upper)
    np.testing.assert_allclose(curve.lower, expected, atol=1e-12)
    np.testing.assert_allclose(curve.value, expected, atol=1e-12)


def test_the_name_of_a_measure_keeps_every_digit():
    for name in ("atkinson:0.3333333333333333", "top_share:1e-05", "quantile_ratio:0.1:0.7000000000000001", "gini"):
        assert resolve(name).name == name
    assert resolve("theil").name == "generalised_entropy:1"


def test_certificates_survive_json(hundred):
    certificate = rd.dispersion_certificate(hundred, "atkinson:0.5", method="plugin")
    assert rb.Certificate.from_json(certificate.to_json()).to_json() == certificate.to_json()
    assert certificate.recipe["arguments"] == {"measure": "atkinson:0.5", "method": "plugin"}
    assert certificate.lower <= certificate.details["measured"] <= certificate.value
    assert "Atkinson index (aversion 0.5)" in certificate.statement


@pytest.mark.parametrize("method", ["sharp", "plugin", "convex_order"])
def test_certificates_are_verified(method):
    risks = rb.ClientRisks(np.arange(30) / 100, 100)
    certificate = rd.dispersion_certificate(rb.band(risks, delta=0.1), "atkinson:0.3333333333333333", method=method)
    assert rb.verify(rb.Certificate.from_json(certificate.to_json())).ok
    assert not rb.verify({**certificate.to_dict(), "lower": certificate.lower + 0.01}).ok


WRONG_MEASURES = [
    "ginni",
    "atkinson",
    "atkinson:x",
    "gini:2",
    "atkinson:-1",
    "extended_gini:1",
    "top_share:1",
    "quantile_ratio:0.5",
    "quantile_range:0.9:0.1",
    "mean_range:1.5",
    "generalised_entropy:nan",
]


@pytest.mark.parametrize("wrong", WRONG_MEASURES)
def test_wrong_measures_are_refused(hundred, wrong):
    with pytest.raises(ValueError, match=r"measure|must|need"):
        rb.dispersion_certificate(hundred, wrong)


def test_wrong_bands_and_methods_are_refused(hundred):
    with pytest.raises(ValueError, match="method must be one of"):
        interval_of(hundred, "gini", method="loose")
    with pytest.raises(ValueError, match="local='marginal'"):
        interval_of(hundred, "gini", method="convex_order")
    one_sided = rb.band(hundred.risks, delta=0.1, sides="lower")
    with pytest.raises(ValueError, match="no upper side"):
        interval_of(one_sided, "gini")
