"""Missing and wrong answers against brute force: every truth that the answers leave possible, one certificate each.

The truth is a full set of K + m right answers; what is certified from K of them, b of which may be wrong, must be the
worst of the certificates of all these truths, no less (it would be wrong) and no more (it would be wasteful).
"""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import logsumexp

import riskband as rb
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.betting import constant_stakes_upper_mean
from riskband.functionals.functional import interval_of
from tests.sampling import every

SEEN = np.array([0.1, 0.4, 0.4, 0.7])
NUM_EXAMPLES = 10
GUESSES = (0.0, 0.5, 1.0)
POINTS = np.linspace(0.0, 0.99, 67)  # F(1) = 1 needs no data
UNKNOWN = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]  # wrong, missing


def uncertain(num_wrong, num_missing):
    return rb.ClientRisks(SEEN, NUM_EXAMPLES, num_missing=num_missing, missing="worst", contamination=num_wrong)


def possible_truths(num_wrong, num_missing):
    """Every choice of the wrong answers, with every guess at what these and the missing clients would have said."""
    for wrong in combinations(range(SEEN.size), num_wrong):
        for guess in product(GUESSES, repeat=num_wrong + num_missing):
            yield wrong, guess


def true_risks(wrong, guess):
    values = np.append(SEEN, guess[len(wrong) :])
    values[list(wrong)] = guess[: len(wrong)]
    return rb.ClientRisks(values, NUM_EXAMPLES)


@pytest.mark.parametrize(("num_wrong", "num_missing"), UNKNOWN)
@pytest.mark.parametrize("method", ["dkw", "berk_jones"])
@pytest.mark.parametrize("local", every("local step", LOCAL_STEPS))
def test_each_side_is_the_worst_over_all_possible_truths(local, method, num_wrong, num_missing):
    settings = {"delta": 0.4, "local": local, "method": method}
    if local == "counted":
        settings["eta"] = 0.06  # at which more limits may fail of 6 clients than of 4
    for side in ("lower", "upper"):
        ours = getattr(rb.band(uncertain(num_wrong, num_missing), sides=side, **settings), side)(POINTS)
        curves = [
            getattr(rb.band(true_risks(*truth), sides=side, **settings), side)(POINTS)
            for truth in possible_truths(num_wrong, num_missing)
        ]
        worst = np.min(curves, axis=0) if side == "lower" else np.max(curves, axis=0)
        np.testing.assert_allclose(ours, worst, atol=1e-12)


@pytest.mark.parametrize(("num_wrong", "num_missing"), UNKNOWN)
def test_what_is_read_off_the_lower_side_is_the_worst_over_all_possible_truths(num_wrong, num_missing):
    def bounds(risks):
        band = rb.band(risks, delta=0.4, sides="lower")
        shifted = rb.worst_case_mean(band, divergence="chi2", budget=0.1).value
        return rb.mean(band).value, rb.cvar(band, level=0.5).value, rb.quantile(band, level=0.4).value, shifted

    possible = [bounds(true_risks(*truth)) for truth in possible_truths(num_wrong, num_missing)]
    np.testing.assert_allclose(bounds(uncertain(num_wrong, num_missing)), np.max(possible, axis=0), atol=1e-9)


@pytest.mark.parametrize(("num_wrong", "num_missing"), [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("measure", ["gini", "atkinson:0.5", "hoover"])
def test_dispersion_holds_the_interval_of_every_possible_truth(measure, num_wrong, num_missing):
    def interval(risks):
        return interval_of(rb.band(risks, delta=0.4), measure)

    lower, upper = interval(uncertain(num_wrong, num_missing))
    for truth in possible_truths(num_wrong, num_missing):
        found = interval(true_risks(*truth))
        assert lower <= found.lower + 1e-9
        assert found.upper <= upper + 1e-9


@pytest.mark.parametrize(("num_wrong", "num_missing"), [pair for pair in UNKNOWN if pair != (0, 0)])
def test_means_are_the_worst_over_all_possible_truths(num_wrong, num_missing):
    risks = uncertain(num_wrong, num_missing)
    truths = [true_risks(*truth) for truth in possible_truths(num_wrong, num_missing)]
    hoeffding = max(rb.mean_bound(truth, delta=0.4, method="hoeffding").value for truth in truths)
    assert rb.mean_bound(risks, delta=0.4, method="hoeffding").value == pytest.approx(hoeffding, abs=1e-12)
    betting = max(constant_stakes_upper_mean(truth.values, delta=0.4) for truth in truths)
    assert rb.mean_bound(risks, delta=0.4).value == pytest.approx(betting, abs=1e-12)


def adversarial(rows, **known):
    rows = np.asarray(rows)
    phi = [np.max(row[:, None] - np.outer(RADII, PRICES), axis=0) for row in rows]
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True, "multipliers": PRICES, "conjugates": phi}
    return rb.AdversarialAnswers(RADII, rows, 200, **settings, **known)


RADII, PRICES = np.array([0.0, 0.2, 1.0]), np.array([0.3, 1.0, 4.0])
ROWS = np.array([[0.0, 0.2, 0.4], [0.1, 0.3, 0.9], [0.2, 0.5, 0.6], [0.4, 0.4, 0.4]])
GUESSED_ROWS = np.array([[0.0, 0.0, 0.0], [0.1, 0.6, 0.8], [1.0, 1.0, 1.0]])


def possible_networks(num_wrong, num_missing):
    for wrong in combinations(range(len(ROWS)), num_wrong):
        for guess in product(GUESSED_ROWS, repeat=num_wrong + num_missing):
            rows = np.concatenate([np.delete(ROWS, wrong, axis=0), np.reshape(guess, (-1, RADII.size))])
            yield adversarial(rows)


def share_bound(network):
    found = rb.wasserstein_cdf(network, delta=0.4, cost_budget=[0.0, 0.01, 0.1], thresholds=[0.6, 0.9], method="dkw")
    return found.value


def hoeffding_mean(network):
    return rb.wasserstein_mean(network, delta=0.4, cost_budget=[0.01, 0.1], method="hoeffding").value


def betting_mean(network):
    """By means at equal parts of delta for certain answers too, so that the worst of them can be compared."""
    share = 0.4 / PRICES.size
    bounds = [constant_stakes_upper_mean(column, delta=share) for column in network.conjugates.T]
    return [min(1.0, np.min(PRICES * budget + bounds)) for budget in (0.01, 0.1)]


@pytest.mark.parametrize(("num_wrong", "num_missing"), [(1, 0), (0, 1), (1, 1), (2, 1)])
def test_transport_certificates_are_the_worst_over_all_possible_truths(num_wrong, num_missing):
    seen = adversarial(ROWS, num_missing=num_missing, missing="worst", contamination=num_wrong)
    truths = list(possible_networks(num_wrong, num_missing))
    for bound in (share_bound, hoeffding_mean):
        np.testing.assert_allclose(bound(seen), np.max([bound(truth) for truth in truths], axis=0), atol=1e-9)
    ours = rb.wasserstein_mean(seen, delta=0.4, cost_budget=[0.01, 0.1])
    worst = np.max([betting_mean(truth) for truth in truths], axis=0)
    assert np.all(ours.value >= worst - 1e-9)  # each price has its own worst truth
    np.testing.assert_allclose(ours.value, worst, atol=0.005)


@pytest.mark.parametrize(("num_values", "delta"), [(50, 0.3), (200, 0.05), (2_000, 0.05)])
def test_constant_stakes_share_the_capital(num_values, delta):
    """Six gamblers with equal parts, each with the best stake for one deviation of the values."""
    values = np.random.default_rng(0).beta(2, 5, num_values)
    deviations = 0.03 * (0.5 / 0.03) ** (np.arange(6) / 5)

    def excess(candidate):
        stakes = [min(np.sqrt(2 * np.log(1 / delta) / num_values) / s, 0.99 / (1 - candidate)) for s in deviations]
        return logsumexp([np.sum(np.log1p(stake * (candidate - values))) for stake in stakes]) - np.log(6 / delta)

    expected = brentq(excess, values.mean(), values.mean() + 0.3, xtol=1e-12)
    assert constant_stakes_upper_mean(values, delta=delta) == pytest.approx(expected, abs=1e-9)
    assert constant_stakes_upper_mean(np.ones(50), delta=0.5) == 1.0
