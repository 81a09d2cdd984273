"""Limits for one client's true risk, against scipy.stats.beta, root finding and exact binomial coverage."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, binom

import riskband as rb
from riskband.answers.risks import ETA_GRID, default_eta

ETAS = (*ETA_GRID, 0.9)


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("num_examples", [1, 7, 200])
def test_binary_limits_are_clopper_and_pearsons(num_examples, eta):
    wrong = np.arange(num_examples + 1)
    risks = rb.ClientRisks(wrong / num_examples, num_examples)
    upper = np.append(beta.ppf(1.0 - eta, wrong[:-1] + 1, num_examples - wrong[:-1]), 1.0)
    lower = np.append(0.0, beta.ppf(eta, wrong[1:], num_examples - wrong[1:] + 1))
    np.testing.assert_allclose(risks.upper_limits(eta), upper, rtol=1e-10)
    np.testing.assert_allclose(risks.lower_limits(eta), lower, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("num_examples", [1, 7, 60])
def test_binary_limits_fail_with_probability_at_most_eta_whatever_the_risk(num_examples, eta):
    wrong = np.arange(num_examples + 1)
    risks = rb.ClientRisks(wrong / num_examples, num_examples)
    upper, lower = risks.upper_limits(eta), risks.lower_limits(eta)
    true_risks = np.unique(np.concatenate([np.linspace(0, 1, 401), upper, np.nextafter(upper, 2).clip(0, 1), lower]))
    mass = binom.pmf(wrong[:, None], num_examples, true_risks)
    assert np.max(np.sum(mass * (upper[:, None] < true_risks), axis=0)) <= eta + 1e-9
    assert np.max(np.sum(mass * (lower[:, None] > true_risks), axis=0)) <= eta + 1e-9


def chernoff(risk, num_examples, eta):
    """Largest u with n·kl(risk, u) <= log(1/eta), by scipy.optimize.brentq."""

    def excess(u):
        parts = [p * np.log(p / q) for p, q in ((risk, u), (1.0 - risk, 1.0 - u)) if p > 0.0]
        return num_examples * sum(parts) - np.log(1.0 / eta)

    end = 1.0 - 1e-15
    return 1.0 if risk == 1.0 or excess(end) < 0.0 else brentq(excess, risk, end, xtol=1e-15)


@pytest.mark.parametrize("eta", [1e-4, 0.05, 0.7])
@pytest.mark.parametrize("num_examples", [2, 50, 3000])
def test_limits_for_any_bounded_loss_solve_the_kl_equation(num_examples, eta):
    values = np.array([0.0, 1e-4, 0.037, 0.3, 0.5, 0.871, 0.9999, 1.0])
    risks = rb.ClientRisks(values, num_examples, binary=False)
    upper = np.array([chernoff(value, num_examples, eta) for value in values])
    lower = np.array([1.0 - chernoff(1.0 - value, num_examples, eta) for value in values])
    np.testing.assert_allclose(risks.upper_limits(eta), upper, atol=1e-9)
    np.testing.assert_allclose(risks.lower_limits(eta), lower, atol=1e-9)


def test_kl_limits_lie_between_clopper_pearson_and_hoeffding():
    values, num_examples, eta = np.arange(51) / 50, 50, 0.01
    exact = rb.ClientRisks(values, num_examples).upper_limits(eta)
    chernoff_limits = rb.ClientRisks(values, num_examples, binary=False).upper_limits(eta)
    hoeffding = np.minimum(values + np.sqrt(np.log(1 / eta) / (2 * num_examples)), 1.0)
    assert np.all(exact <= chernoff_limits + 1e-12)
    assert np.all(chernoff_limits <= hoeffding + 1e-12)


def test_every_client_has_its_own_number_of_examples():
    risks = rb.ClientRisks([0.5, 0.5, 0.25], [2, 200, 40])
    expected = beta.ppf(0.95, [2, 101, 11], [1, 100, 30])
    np.testing.assert_allclose(risks.upper_limits(0.05), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "num_examples", "is_binary"),
    [
        ([0.1, 0.2], 10, True),
        ([0.1, 0.25], 10, False),
        ([1 / 3, 2 / 3], 3, True),
        ([0.5, 0.5], [2, 3], False),
    ],
)
def test_zero_one_losses_are_recognised_by_whole_counts(values, num_examples, is_binary):
    assert rb.ClientRisks(values, num_examples).binary is is_binary


def test_the_default_error_level_is_a_quarter_of_the_bands_resolution():
    assert {default_eta(num_clients) for num_clients in range(2, 5000, 7)} <= set(ETA_GRID)
    assert default_eta(500) == 1e-2  # 0.25 / sqrt(500) = 0.0112
    assert default_eta(25) == 5e-2


FORMATS = {
    "float32": lambda values: values.astype(np.float32),
    "float32 in print": lambda values: [float(str(value)) for value in values.astype(np.float32)],
    "float32 arithmetic": lambda values: np.float32(1.0) - (1.0 - values).astype(np.float32),
    "three significant digits": lambda values: [float(f"{value:.3g}") for value in values],
    "four places": lambda values: np.round(values, 4),
}


@pytest.mark.parametrize("binary", [None, True])
@pytest.mark.parametrize("name", FORMATS)
def test_counts_are_recognised_behind_the_rounding_of_a_format(name, binary):
    rng = np.random.default_rng(1)
    for num_examples in (np.full(60, 15), np.full(60, 99), rng.integers(10, 120, 60)):
        wrong = rng.binomial(num_examples, rng.beta(2, 8, 60))
        risks = rb.ClientRisks(FORMATS[name](wrong / num_examples), num_examples, binary)
        assert risks.binary
        np.testing.assert_allclose(risks.values * num_examples, wrong, rtol=0.0, atol=1e-6)
        assert rb.ClientRisks(risks.values, num_examples).binary


def test_a_risk_of_float32_gives_the_certificate_of_float64():
    rng = np.random.default_rng(0)
    for num_examples in (100, 50_000):
        values = rng.binomial(num_examples, rng.beta(3, 21, 60)) / num_examples
        bounds = [
            rb.survival(rb.band(rb.ClientRisks(each, num_examples), delta=0.05), thresholds=0.3).value
            for each in (values, values.astype(np.float32))
        ]
        assert bounds[0] == bounds[1]


@pytest.mark.parametrize("name", FORMATS)
def test_no_other_loss_passes_for_counts_by_rounding(name):
    # Each of 900 draws may fail with probability 1e-6 by design, and each is one of means that are anywhere.
    rng = np.random.default_rng(2)
    for _ in range(300):
        num_clients = int(rng.integers(2, 12))
        for num_examples in (33, 1_003, 10**7 + 1):
            means = FORMATS[name](rng.beta(2, 8, num_clients))
            if not np.all(np.abs(np.asarray(means, dtype=float) * num_examples % 1.0 - 0.5) > 0.5 - 1e-6):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    assert not rb.ClientRisks(means, num_examples).binary


@pytest.mark.guard
@pytest.mark.parametrize(
    ("values", "num_examples", "words"),
    [
        ([0.12, 0.21, 0.33], 33, "that may be chance"),  # 4, 7 and 11 of 33, or many other means
        (np.linspace(0.1, 0.2, 50, dtype=np.float32), 10**7 + 1, "that may be chance"),
        ([*np.arange(1, 40) / 97, 0.1234567891234], 97, "39 of 40 clients, but not for 0.1234567891234 of 97"),
    ],
)
def test_what_looks_like_counts_without_showing_it_is_said(values, num_examples, words):
    with pytest.warns(UserWarning, match=words) as found:
        risks = rb.ClientRisks(values, num_examples)
    assert not risks.binary
    assert "say binary=True" in str(found[0].message)
    rb.ClientRisks(values, num_examples, binary=False)  # no warning: pytest makes an error of it
    assert rb.verify(rb.mean(rb.band(risks, delta=0.1))).ok


@pytest.mark.guard
@pytest.mark.parametrize(
    ("values", "num_examples", "words"),
    [
        (np.arange(5, 17) / 100, 1_000, "multiples of 10 for every client"),  # of 100 examples, or rounded
        (np.arange(30) / 30, [120, 60] * 15, "multiples of 2 for every client"),
        ([0, 1] * 5, 50, "every mean is 0 or 1, as the loss of a single example is"),
    ],
)
def test_what_looks_like_fewer_examples_is_said(values, num_examples, words):
    with pytest.warns(UserWarning, match=f"num_examples may be too large: .*{words}"):
        assert rb.ClientRisks(values, num_examples).binary
    rb.ClientRisks(values, num_examples, binary=True)  # no warning: pytest makes an error of it


@pytest.mark.guard
@pytest.mark.parametrize(
    ("values", "num_examples"),
    [
        ([0.1, 0.2, 0.3] * 20, 100),
        ([0.0] * 50, 100),
        ([0, 1] * 5, 1),
        ([0, 0, 0, 1], 50),
        (np.arange(5, 17) / 100, 100),
    ],
)
def test_what_may_well_be_chance_is_no_doubt_about_the_number_of_examples(values, num_examples):
    assert rb.ClientRisks(values, num_examples).binary


def test_what_could_be_several_counts_is_no_count():
    """But the most that rounds to each value, if they are said to be counts: 0.125 of 99 is 12.4."""
    found = rb.ClientRisks([0.12, 0.21, 0.33], 99, binary=True)
    assert found.rounding == 0.005
    np.testing.assert_array_equal(found.values, np.array([12, 21, 33]) / 99)
