"""Functionals of a band against a case worked in fractions, and CVaR against its two textbook formulas."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scipy.integrate import quad
from scipy.optimize import linprog
from scipy.stats import binom

import riskband as rb
from riskband.functionals.weights import interval_weight

RISKS = [Fraction(i, 10) for i in range(1, 9)]
# DKW with K = 8 and delta = 1/e: F >= i/8 - 1/4 at the i-th risk, so the largest law has these atoms.
ATOMS = [*((risk, Fraction(1, 8)) for risk in RISKS[2:]), (Fraction(1), Fraction(1, 4))]


@pytest.fixture
def eight():
    risks = rb.ClientRisks([float(risk) for risk in RISKS], 10)
    return rb.band(risks, delta=np.exp(-1.0), method="dkw", local="observed", sides="lower")


def close(value):
    return pytest.approx(float(value), abs=1e-12)


def test_the_mean_in_fractions(eight):
    expected = sum(risk * mass for risk, mass in ATOMS)
    assert expected == Fraction(53, 80)
    assert rb.mean(eight).value == close(expected)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0.0, Fraction(53, 80)),
        (0.5, Fraction(7, 8)),
        (0.75, 1),
        (0.7, Fraction(29, 30)),
    ],
)
def test_cvar_in_fractions(eight, level, expected):
    assert rb.cvar(eight, level=level).value == close(expected)


def test_survival_and_quantiles_in_fractions(eight):
    survival = rb.survival(eight, thresholds=[0.0, 0.3, 0.5, 0.55, 0.85, 1.0])
    np.testing.assert_allclose(survival.value, [1, 1, 3 / 4, 5 / 8, 1 / 4, 1 / 4], atol=1e-12)
    assert list(survival.axes) == ["threshold"]
    quantiles = rb.quantile(eight, level=[0.0, 0.1, 0.2, 0.6, 0.76])
    np.testing.assert_allclose(quantiles.value, [0, 0.3, 0.4, 0.7, 1.0], atol=1e-12)
    assert rb.survival(eight, thresholds=0.5).value == close(0.75)
    assert rb.quantile(eight, level=0.2).value == close(0.4)


def test_worst_cases_in_fractions(eight):
    assert rb.worst_case_cdf(eight, divergence="tv", budget=0.125, thresholds=0.5).value == close(0.875)
    chi2 = rb.worst_case_cdf(eight, divergence="chi2", budget=0.12, thresholds=0.5).value
    assert chi2 == close(0.75 + 0.15)  # sqrt(0.12 · 3/4 · 1/4) = 0.15
    moved = Fraction(53, 80) + Fraction(1, 8) * (1 - Fraction(3, 10))  # the lowest eighth goes to risk 1
    assert rb.worst_case_mean(eight, divergence="tv", budget=0.125).value == close(moved)
    mean = float(Fraction(53, 80))
    deviation = np.sqrt(float(sum(mass * risk**2 for risk, mass in ATOMS)) - mean**2)
    assert rb.worst_case_mean(eight, divergence="chi2", budget=0.04).value == close(mean + 0.2 * deviation)


def test_weighted_quantile_integrals_in_fractions(eight):
    interval = rb.weighted_quantile(eight, interval_weight(0.25, 0.5))
    assert interval.value == close(Fraction(11, 20))  # the fifth and the sixth risk
    ends = [sum((mass for _, mass in ATOMS[:i]), Fraction(0)) for i in range(len(ATOMS) + 1)]
    linear = sum(risk * (ends[i + 1] ** 2 - ends[i] ** 2) for i, (risk, _) in enumerate(ATOMS))
    for density in (Polynomial([0.0, 2.0]), lambda p: 2.0 * p):
        weight = rb.QuantileWeight.from_density(density, name="linear")
        assert rb.weighted_quantile(eight, weight).value == pytest.approx(float(linear), abs=1e-9)


def test_a_curve_without_thresholds_is_the_whole_curve(eight):
    curve = rb.worst_case_cdf(eight, divergence="kl", budget=0.1)
    at = np.linspace(0.0, 1.0, 401)
    direct = rb.worst_case_cdf(eight, divergence="kl", budget=0.1, thresholds=at).value
    last_threshold = np.searchsorted(curve.axes["threshold"], at, side="right") - 1
    np.testing.assert_allclose(curve.value[last_threshold], direct, atol=1e-12)


@pytest.mark.parametrize("level", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("local", ["marginal", "counted", "union", "observed"])
def test_cvar_is_rockafellars_minimum_and_a_linear_program(level, local):
    rng = np.random.default_rng(8)
    risks = rb.ClientRisks(rng.binomial(40, rng.beta(2, 8, 40)) / 40, 40)
    band = rb.band(risks, delta=0.1, local=local, sides="lower")
    atoms, weights = band.distribution_for_means.risks, band.distribution_for_means.weights
    minimum = min(t + weights @ np.maximum(atoms - t, 0.0) / (1 - level) for t in atoms)
    program = linprog(-atoms, bounds=[(0, w / (1 - level)) for w in weights], A_eq=[np.ones(atoms.size)], b_eq=[1.0])
    value = rb.cvar(band, level=level).value
    assert value == pytest.approx(minimum, abs=1e-12)
    assert value == pytest.approx(-program.fun, abs=1e-9)


@pytest.mark.parametrize("local", ["counted", "union", "observed"])
def test_spectral_functionals_integrate_the_quantile_bound(local):
    rng = np.random.default_rng(9)
    sizes = np.where(np.arange(15) < 7, 50, 60)  # of equal ones, measured risks would make the mean smaller
    risks = rb.ClientRisks(rng.binomial(sizes, 0.2) / sizes, sizes)
    band = rb.band(risks, delta=0.2, local=local, sides="lower")
    corners = sorted({0.0, *band.lower_levels, 1.0})
    steps = [(a, b, float(band.quantile_upper((a + b) / 2))) for a, b in pairwise(corners)]
    assert rb.mean(band).value == pytest.approx(sum((b - a) * height for a, b, height in steps), abs=1e-12)
    squared = rb.QuantileWeight.from_density(Polynomial([0.0, 0.0, 3.0]), name="squared")
    expected = sum(quad(lambda p: 3 * p**2, a, b)[0] * height for a, b, height in steps)
    assert rb.weighted_quantile(band, squared).value == pytest.approx(expected, abs=1e-12)


def test_breakdown_is_where_the_bound_meets_the_target(eight):
    bracket = rb.breakdown(eight, divergence="chi2", target=0.9, threshold=0.5)
    assert bracket.lower <= 0.12 + 1e-12  # 0.75 + sqrt(0.12 · 3/16) = 0.9
    assert bracket.upper >= 0.12 - 1e-12
    assert 0.0 <= bracket.upper - bracket.lower <= 1e-6 * bracket.upper
    mean = rb.breakdown(eight, divergence="tv", target=0.75)
    assert mean.lower <= 0.125 + 1e-12
    assert mean.upper >= 0.125 - 1e-12
    assert mean.upper - mean.lower <= 1e-6 * mean.upper
    assert rb.breakdown(eight, divergence="kl", target=0.5) == (-np.inf, 0.0)
    assert rb.breakdown(eight, divergence="kl", target=1.0).upper == np.inf


@pytest.mark.parametrize("level", [0.0, 0.12, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("delta", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("num_clients", [2, 14, 29, 50, 300])
def test_one_quantile_of_measured_risks_is_the_order_statistic_of_the_binomial_test(num_clients, delta, level):
    risks = rb.ClientRisks(np.linspace(0.0, 0.9, num_clients), 10**6, binary=False)
    bound, values = rb.quantile(risks, level, delta=delta, local="observed").value, risks.values
    # The i-th smallest of K is below the quantile only if i or more of them are: Bin(K, level) >= i.
    valid = [i for i in range(1, num_clients + 1) if binom.sf(i - 1, num_clients, level) <= delta]
    assert bound == (values[valid[0] - 1] if valid else 1.0)
    needed = rb.num_clients_needed(level, delta=delta)
    assert bool(valid) == (num_clients >= needed)


def test_too_few_clients_bound_no_quantile_of_true_risks():
    """All of them may be below it (level^K > delta), whatever they measure."""
    for num_clients, level in [(2, 0.9), (20, 0.9), (28, 0.9), (300, 0.999), (300, 1.0)]:
        assert level**num_clients > 0.05
        best = rb.ClientRisks(np.zeros(num_clients), 10**6)
        assert rb.quantile(best, level, delta=0.05).value == 1.0, (num_clients, level)


def test_wrong_and_missing_answers_move_the_order_statistic():
    values = np.linspace(0.0, 0.49, 50)
    plain = rb.quantile(rb.ClientRisks(values, 10**6, binary=False), 0.5, delta=0.05, local="observed")
    doubted = rb.ClientRisks(values, 10**6, binary=False, num_missing=3, missing="worst", contamination=2)
    rank = next(i for i in range(1, 54) if binom.sf(i - 1, 53, 0.5) <= 0.05)
    assert rb.quantile(doubted, 0.5, delta=0.05, local="observed").value == values[rank + 2 - 1]
    assert plain.value < values[rank + 2 - 1]
    assert rb.quantile(doubted, 0.95, delta=0.05, local="observed").value == 1.0


def test_few_hospitals_get_a_quantile_and_a_tail():
    rng = np.random.default_rng(5)
    risks = rb.ClientRisks(rng.binomial(100, rng.beta(3, 21, 50)) / 100, 100)
    band = rb.band(risks, delta=0.05, sides="lower")
    assert rb.quantile(band, 0.9).value == rb.cvar(band, 0.9).value == 1.0
    assert rb.quantile(risks, 0.9, delta=0.05).value < 0.5
    assert rb.cvar(risks, 0.9, delta=0.05).value < 0.9
    for certificate in (rb.quantile(risks, 0.9, delta=0.05), rb.cvar(risks, 0.9, delta=0.05)):
        assert rb.verify(certificate).ok
        assert any("0.9" in line for line in certificate.assumptions if line.startswith("chosen before"))
