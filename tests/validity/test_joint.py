"""Joint bands and Gini correlations miss the truth no more often than delta; a constant for large K alone is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, multivariate_normal, norm

from papers.dispersion.gini_correlation import gini_correlation, measured_gini_correlation
from papers.dispersion.joint_answers import JointRisks
from papers.dispersion.joint_bands import JointLevels, joint_band
from tests.validity.coverage import is_rejected, study

GRID = np.stack(np.meshgrid(np.linspace(0.05, 0.5, 10), np.linspace(0.05, 0.5, 10)), axis=-1).reshape(-1, 2)


def draw_true_risks(rng, num_clients, *, correlation):
    """Beta(2, 8) and Beta(1, 5) risks with a Gaussian copula."""
    z = rng.standard_normal((num_clients, 2))
    z[:, 1] = correlation * z[:, 0] + np.sqrt(1 - correlation**2) * z[:, 1]
    return np.stack([beta.ppf(norm.cdf(z[:, 0]), 2, 8), beta.ppf(norm.cdf(z[:, 1]), 1, 5)], axis=1)


def true_cdf(correlation):
    z = np.stack([norm.ppf(beta.cdf(GRID[:, 0], 2, 8)), norm.ppf(beta.cdf(GRID[:, 1], 1, 5))], axis=1)
    return multivariate_normal(cov=[[1, correlation], [correlation, 1]]).cdf(z)


def joint_failures(*, correlation, num_networks, num_clients, num_examples, delta, seed, **settings):
    truth, missed = true_cdf(correlation), []
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        rates = draw_true_risks(rng, num_clients, correlation=correlation)
        risks = JointRisks(rng.binomial(num_examples, rates) / num_examples, num_examples, [True, True])
        band = joint_band(risks, delta=delta, **settings)
        missed.append(np.any(band.lower(GRID) > truth + 1e-6) or np.any(band.upper(GRID) < truth - 1e-6))
    return missed


@study(slow=100)
@pytest.mark.parametrize("correlation", [-0.9, pytest.param(0.7, marks=pytest.mark.slow)])
def test_joint_bands_hold(correlation, num_networks):
    missed = joint_failures(
        correlation=correlation,
        num_networks=num_networks,
        num_clients=60,
        num_examples=3000,
        delta=0.3,
        seed=1,
        method="dkw",
    )
    assert not is_rejected(missed, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dkw", "berk_jones"])
@pytest.mark.parametrize("correlation", [-0.95, 0.0, 0.9])
def test_joint_bands_hold_in_larger_studies(correlation, method):
    missed = joint_failures(
        correlation=correlation, num_networks=100, num_clients=200, num_examples=1000, delta=0.2, seed=2, method=method
    )
    assert not is_rejected(missed, 0.2)


def anti_diagonal_misses(half_width_below, half_width_above, *, num_networks=2000, num_clients=500, seed=3):
    """Risks (U, 1 - U): their joint CDF is the mass of intervals, and its error is Kuiper's statistic.

    For counts of m of K values within an interval of mass p, `half_width_below(m)` and `..._above(m)` bound p; only
    the widest excess and deficit matter, found from the running extremes.
    """
    u = np.sort(np.random.default_rng(seed).random((num_networks, num_clients)), axis=1)
    i = np.arange(1, num_clients + 1)
    # Closed intervals [u_a, u_b] hold b - a + 1 values: excess over their mass. Open ones (u_a, u_b): deficit.
    above, below = i / num_clients - u, (i - 1) / num_clients - u
    excess = np.max(above - np.minimum.accumulate(below, axis=1), axis=1)
    deficit = np.max(np.maximum.accumulate(above, axis=1) - below, axis=1)
    return (excess > half_width_below) | (deficit > half_width_above)


def test_the_constant_2d_is_refuted_by_intervals_and_ours_holds():
    """2d exp(-2Kε²) would be the Dvoretzky-Kiefer-Wolfowitz inequality with a constant that does not grow with K.

    For (U, 1 - U) its failures are several times delta (Kuiper: the tail is about (8Kε² - 2) exp(-2Kε²)).
    """
    num_clients, delta = 500, 0.05
    constant = np.sqrt(np.log(2 * 2 / delta) / (2 * num_clients))
    assert is_rejected(anti_diagonal_misses(constant, constant), delta)
    levels = JointLevels.of_settings(num_clients=num_clients, num_losses=2, delta=delta, method="dkw")
    count = np.arange(num_clients + 1) / num_clients
    below = np.min((count - levels.lower)[levels.lower > 0])
    above = np.min((levels.upper - count)[levels.upper < 1])
    assert not is_rejected(anti_diagonal_misses(below, above), delta)


def gini_failures(*, correlation, num_networks, num_clients, num_examples, delta, seed, local):
    """Truth by 400,000 clients; its error of 0.002 is far below the width of any interval here."""
    rng = np.random.default_rng(seed)
    many = draw_true_risks(rng, 400_000, correlation=correlation)
    if local == "observed":
        many = rng.binomial(num_examples, many) / num_examples
    truth = measured_gini_correlation(JointRisks(many, num_examples, [False, False]))
    missed = []
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        rates = draw_true_risks(rng, num_clients, correlation=correlation)
        risks = JointRisks(rng.binomial(num_examples, rates) / num_examples, num_examples, [True, True])
        found = gini_correlation(risks, delta=delta, local=local)
        missed.append(not found.lower - 0.003 <= truth <= found.value + 0.003)
    return missed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("local", "num_examples"), [pytest.param("observed", 50, marks=pytest.mark.slow), ("marginal", 10**5)]
)
def test_gini_correlations_hold(local, num_examples):
    missed = gini_failures(
        correlation=0.7, num_networks=30, num_clients=400, num_examples=num_examples, delta=0.3, seed=4, local=local
    )
    assert not is_rejected(missed, 0.3)


@pytest.mark.slow
def test_the_correlation_of_measured_risks_is_not_that_of_true_risks():
    """The negative control: few examples pull the correlation towards 0, so "observed" fails for true risks."""
    rng = np.random.default_rng(5)
    truth = measured_gini_correlation(JointRisks(draw_true_risks(rng, 400_000, correlation=0.9), 10, [False, False]))
    missed = []
    for _ in range(12):
        rates = draw_true_risks(rng, 600, correlation=0.9)
        risks = JointRisks(rng.binomial(8, rates) / 8, 8)
        found = gini_correlation(risks, delta=0.1, local="observed")
        missed.append(not found.lower <= truth <= found.value)
    assert is_rejected(missed, 0.1)
