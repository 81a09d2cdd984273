"""Whole bands against formulas and small cases worked by hand.

Eight clients and delta = 1/e give DKW a half-width of exactly 1/4 on one side; so does delta = 2/e on two.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binom

import riskband as rb
from riskband.bands.levels import berk_jones_levels, dkw_levels
from riskband.bands.local_steps import OBSERVED_SIZES, RANDOM_SIZES

EIGHT = np.arange(1, 9) / 10
ONE_SIDED, TWO_SIDED = np.exp(-1.0), 2.0 * np.exp(-1.0)


def test_an_observed_dkw_band_worked_by_hand():
    band = rb.band(rb.ClientRisks(EIGHT, 10), delta=TWO_SIDED, method="dkw", local="observed")
    at = [0.0, 0.25, 0.3, 0.55, 0.8, 0.99, 1.0]
    np.testing.assert_allclose(band.lower(at), [0, 0, 1 / 8, 3 / 8, 6 / 8, 6 / 8, 1], atol=1e-12)
    np.testing.assert_allclose(band.upper(at), [2 / 8, 4 / 8, 5 / 8, 7 / 8, 1, 1, 1], atol=1e-12)
    np.testing.assert_allclose(band.lower_left_limit(at), [0, 0, 0, 3 / 8, 5 / 8, 6 / 8, 6 / 8], atol=1e-12)
    levels = [0.0, 0.1, 0.5, 0.7, 0.8, 1.0]
    np.testing.assert_allclose(band.quantile_upper(levels), [0, 0.3, 0.6, 0.8, 1, 1], atol=1e-12)
    np.testing.assert_allclose(band.quantile_lower(levels), [0, 0, 0.2, 0.4, 0.5, 0.6], atol=1e-12)


def test_a_marginal_band_worked_by_hand():
    """One example each: the upper limit after a right answer is 1 - eta, the lower one after a wrong answer is eta."""
    lower = rb.band(rb.ClientRisks([0] * 6 + [1] * 2, 1), delta=ONE_SIDED, method="dkw", eta=0.25, sides="lower")
    np.testing.assert_allclose(lower.lower([0.7499, 0.7501, 0.9]), [0, 1 / 3, 1 / 3], atol=1e-12)
    upper = rb.band(rb.ClientRisks([0] * 2 + [1] * 6, 1), delta=ONE_SIDED, method="dkw", eta=0.25, sides="upper")
    np.testing.assert_allclose(upper.upper([0.0, 0.2499, 0.2501]), [2 / 3, 2 / 3, 1], atol=1e-12)


def simple_lower(points, levels, at):
    """Largest level among the knots at or below each point, one by one."""
    return np.array([max([0.0, *(v for p, v in zip(points, levels, strict=True) if p <= x)]) for x in at])


def simple_upper(points, levels, at):
    return np.array([min([1.0, *(v for p, v in zip(points, levels, strict=True) if p > x)]) for x in at])


AT = np.linspace(0.0, 0.999, 333)


@pytest.mark.parametrize("method", ["dkw", "berk_jones"])
def test_marginal_at_the_etas_of_the_grid_is_the_best_of_them(method):
    from riskband.answers.risks import ETA_GRID

    rng = np.random.default_rng(3)
    wrong = np.sort(rng.binomial(30, rng.beta(3, 9, 60)))
    band = rb.band(rb.ClientRisks(rng.permutation(wrong) / 30, 30), delta=0.1, method=method, eta="grid")
    levels = {"dkw": dkw_levels, "berk_jones": berk_jones_levels}[method](60, 0.1, "two")
    lower, upper = np.zeros(AT.size), np.ones(AT.size)
    for eta in ETA_GRID:
        limits = np.where(wrong < 30, beta.ppf(1 - eta, wrong + 1, np.maximum(30 - wrong, 1)), 1.0)
        lower = np.maximum(lower, simple_lower(limits, (levels.lower - eta) / (1 - eta), AT))
        limits = np.where(wrong > 0, beta.ppf(eta, np.maximum(wrong, 1), 31 - wrong), 0.0)
        upper = np.minimum(upper, simple_upper(limits, levels.upper / (1 - eta), AT))
    np.testing.assert_allclose(band.lower(AT), lower, atol=1e-9)
    np.testing.assert_allclose(band.upper(AT), upper, atol=1e-9)
    assert band.eta == "grid"
    assert RANDOM_SIZES not in band.assumptions


def test_marginal_with_unequal_sizes_shares_delta_between_limits_and_means():
    rng = np.random.default_rng(4)
    sizes = rng.integers(10, 60, 40)
    wrong = rng.binomial(sizes, 0.2)
    band = rb.band(rb.ClientRisks(wrong / sizes, sizes), delta=0.1, method="dkw", sides="two", eta=0.03)
    levels = np.arange(1, 41) / 40 - np.sqrt(np.log(3 / 0.1) / 80)
    limits = np.sort(beta.ppf(0.97, wrong + 1, sizes - wrong))
    np.testing.assert_allclose(band.lower(AT), simple_lower(limits, (levels - 0.03) / 0.97, AT), atol=1e-9)
    law = band.distribution_for_means
    np.testing.assert_allclose(law.risks[:-1], np.sort(wrong / sizes))
    np.testing.assert_allclose(law.weights, np.diff(np.maximum(levels, 0), prepend=0, append=1), atol=1e-12)
    assert RANDOM_SIZES in band.assumptions


@pytest.mark.parametrize(("sides", "share"), [("lower", 1), ("two", 2)])
def test_counted_shifts_the_band_by_the_number_of_limits_that_may_fail(sides, share):
    rng = np.random.default_rng(5)
    sizes = rng.integers(10, 60, 80)
    wrong = rng.binomial(sizes, 0.3)
    band = rb.band(
        rb.ClientRisks(wrong / sizes, sizes), delta=0.1, method="dkw", local="counted", sides=sides, eta=0.02
    )
    num_wrong = int(binom.ppf(1 - 0.01 / share, 80, 0.02))
    assert 1 < num_wrong < 10
    width = np.sqrt(np.log(share / 0.09) / 160)
    ranks = np.arange(1, 81)
    limits = np.sort(beta.ppf(0.98, wrong + 1, sizes - wrong))
    levels = np.where(ranks > num_wrong, (ranks - num_wrong) / 80 - width, 0.0)
    np.testing.assert_allclose(band.lower(AT), simple_lower(limits, levels, AT), atol=1e-9)
    if sides == "two":
        limits = np.sort(np.where(wrong > 0, beta.ppf(0.02, np.maximum(wrong, 1), sizes - wrong + 1), 0.0))
        levels = np.minimum((ranks - 1 + num_wrong) / 80 + width, 1.0)
        np.testing.assert_allclose(band.upper(AT), simple_upper(limits, levels, AT), atol=1e-9)


def test_union_with_dkw_is_theorem_4_1():
    rng = np.random.default_rng(6)
    sizes = rng.integers(100, 600, 50)
    values = rng.binomial(sizes, 0.2) / sizes
    band = rb.band(rb.ClientRisks(values, sizes), delta=0.1, method="dkw", local="union", sides="lower")
    limits = np.sort(values + np.sqrt(np.log(52 / 0.1) / (2 * sizes)))
    levels = np.arange(1, 51) / 50 - np.sqrt(np.log(52 / 0.2) / 100)
    np.testing.assert_allclose(band.lower(AT), simple_lower(limits, levels, AT), atol=1e-12)


def test_observed_says_which_numbers_of_examples_it_is_about():
    band = rb.band(rb.ClientRisks(EIGHT, 10), delta=0.1, local="observed")
    assert OBSERVED_SIZES in band.assumptions
    assert "measure" in band.subject


def test_clients_that_did_not_answer_become_an_assumption():
    band = rb.band(rb.ClientRisks(EIGHT, 10, num_missing=3), delta=0.1)
    assert any("3 clients" in assumption and "missing at random" in assumption for assumption in band.assumptions)


@pytest.mark.parametrize("num_clients", [30, 100, 1000])
def test_clients_that_look_more_alike_than_chance_still_give_a_band(num_clients):
    """Nothing varies: the two sides, each from its own eta, must not cross (or all of them would be refused)."""
    band = rb.band(rb.ClientRisks(np.full(num_clients, 0.5), 20), delta=0.05)
    assert np.all(band.lower(AT) <= band.upper(AT))
