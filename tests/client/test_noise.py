"""The noise has the law that it says, to the last whole number, and the text that names it is read with care."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from secrets import SystemRandom

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

import riskband.answers.noise
from client.privacy import epsilon_at
from protocol.mechanisms import LOSS_STEPS, Mechanism, discrete_gaussian, discrete_laplace, mechanism_of, steps_of

NUM_DRAWS = 20_000
LAPLACE_SCALES = (Fraction(1, 3), Fraction(2), Fraction(7, 2), Fraction(40))
GAUSSIAN_VARIANCES = (Fraction(1, 4), Fraction(2), Fraction(63, 5), Fraction(900))


def laplace_masses(scale, ends):
    """P(N = k) in closed form: tanh(1 / 2t) exp(-abs(k) / t)."""
    return math.tanh(0.5 / float(scale)) * np.exp(-np.abs(ends) / float(scale))


def gaussian_masses(variance, ends):
    weights = np.exp(-(ends**2) / (2.0 * float(variance)))
    far = np.arange(-2000, 2001)
    return weights / np.exp(-(far**2) / (2.0 * float(variance))).sum()


def p_value(draws, masses_of):
    """Of a chi-square test of draws against a law on the whole numbers, which `masses_of` gives."""
    end = int(np.abs(draws).max()) + 1
    values = np.arange(-end, end + 1)
    expected = masses_of(values) * len(draws)
    is_frequent = expected >= 10.0
    observed = np.array([np.sum(draws == value) for value in values[is_frequent]])
    observed = np.append(observed, len(draws) - observed.sum())
    expected = np.append(expected[is_frequent], len(draws) - expected[is_frequent].sum())
    return chisquare(observed, expected).pvalue


# Fixed seeds: each of these tests would fail by chance with probability 0.001 on the day its seed was chosen.
@pytest.mark.parametrize("scale", LAPLACE_SCALES)
def test_laplace_noise_has_its_law(scale):
    source = Random(11)
    draws = np.array([discrete_laplace(scale, source) for _ in range(NUM_DRAWS)])
    assert p_value(draws, lambda k: laplace_masses(scale, k)) > 1e-3
    assert p_value(draws, lambda k: laplace_masses(scale * Fraction(11, 10), k)) < 1e-3  # the test can tell


@pytest.mark.parametrize("variance", GAUSSIAN_VARIANCES)
def test_gaussian_noise_has_its_law(variance):
    source = Random(12)
    draws = np.array([discrete_gaussian(variance, source) for _ in range(NUM_DRAWS)])
    assert p_value(draws, lambda k: gaussian_masses(variance, k)) > 1e-3
    assert p_value(draws, lambda k: gaussian_masses(variance * Fraction(6, 5), k)) < 1e-3


def test_the_noise_of_the_operating_system_has_the_same_law():
    source = SystemRandom()  # fails by chance with probability 2e-6
    draws = np.array([discrete_laplace(Fraction(3), source) for _ in range(5000)])
    assert p_value(draws, lambda k: laplace_masses(Fraction(3), k)) > 1e-6
    draws = np.array([discrete_gaussian(Fraction(9), source) for _ in range(5000)])
    assert p_value(draws, lambda k: gaussian_masses(Fraction(9), k)) > 1e-6


@pytest.mark.parametrize("text", ["laplace:0.5", "laplace:7", "gaussian:0.1", "gaussian:3"])
@pytest.mark.parametrize("steps", [1, LOSS_STEPS])
def test_an_answers_noise_is_centred_with_the_spread_that_the_certificates_know(text, steps):
    mechanism, source = mechanism_of(text), Random(5)
    draws = np.array([mechanism.noise(source, num_values=4, num_steps=steps) for _ in range(NUM_DRAWS)], dtype=float)
    known = riskband.answers.noise.AnswerNoise(text, num_values=4, num_steps=steps)
    spread = mechanism.spread(num_values=4, num_steps=steps)
    assert spread == pytest.approx(known.spread, rel=1e-12)
    # The largest variance of both laws: 2 t² (discrete Laplace is a little below), s².
    deviation = spread * (math.sqrt(2.0) if mechanism.name == "laplace" else 1.0)
    assert abs(draws.mean()) < 4.0 * deviation / math.sqrt(NUM_DRAWS)
    quarter = np.quantile(np.abs(draws), 0.5)
    expected = spread * (math.log(2.0) if mechanism.name == "laplace" else norm.ppf(0.75))
    assert quarter == pytest.approx(expected, rel=0.05, abs=1.0)
    assert np.mean(draws <= -2.0) == pytest.approx(float(known.cumulative(np.array(-2.0))), abs=0.015)


def test_both_sides_mean_the_same_by_a_budget():
    assert riskband.answers.noise.LOSS_STEPS == LOSS_STEPS == steps_of(is_binary=False)
    assert steps_of(is_binary=True) == 1
    for mechanism, parameter in riskband.answers.noise.PARAMETERS.items():
        assert mechanism_of(f"{mechanism}:2").unit == parameter
        for budget in ("1e-6", "0.1", "1e12"):
            text = f"{mechanism}:{budget}"
            assert riskband.answers.noise.AnswerNoise(text).budget == pytest.approx(
                float(mechanism_of(text).budget), rel=1e-15
            )


def test_the_same_seed_gives_the_same_noise():
    def drawn(seed):
        source = Random(seed)
        mechanisms = map(mechanism_of, ("laplace:0.3", "gaussian:0.02") * 20)
        return [each.noise(source, num_values=3, num_steps=LOSS_STEPS) for each in mechanisms]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("text", ["laplace:0.123456789012", "gaussian:0.123456789012"])
def test_few_draws_make_the_noise_of_a_number_whatever_the_digits_of_its_budget(text):
    class Counted(Random):
        num_draws = 0

        def randrange(self, *limits):
            self.num_draws += 1
            return super().randrange(*limits)

    source, mechanism = Counted(0), mechanism_of(text)
    for _ in range(200):
        mechanism.noise(source, num_values=40, num_steps=LOSS_STEPS)
    assert 200 * 3 < source.num_draws < 200 * 20


@given(digits=st.integers(1, 10**13 - 1), places=st.integers(0, 12))
def test_a_budget_is_taken_exactly(digits, places):
    number = f"{digits // 10**places}.{digits % 10**places:0{places}d}" if places else str(digits)
    exact = Fraction(digits, 10**places)
    if Fraction(1, 10**6) <= exact <= 10**12:
        assert mechanism_of(f"gaussian:{number}") == Mechanism("gaussian", exact)
    else:
        with pytest.raises(ValueError, match="from 1e-6 to 1e12"):
            mechanism_of(f"gaussian:{number}")


@pytest.mark.parametrize(
    "text",
    [
        *("", "laplace", "laplace:", "laplace:0", "laplace:0.0000001", "laplace:-1", "laplace:+1", "laplace:nan"),
        *("laplace:inf", "laplace:1e13", "laplace:1e-7", "laplace:1e999999999", "laplace:1/3", "laplace: 1", "gauss:1"),
        *("laplace:1_0", "laplace:1 ", "laplace:٣", "Laplace:1", "laplace:1:1", "laplace:0x1", ":1", "laplace:.5"),
        "laplace:" + "1" * 100_000,
    ],
)
def test_what_names_no_mechanism_is_refused_in_few_words(text):
    with pytest.raises(ValueError, match="privacy must be 'laplace:EPSILON' or 'gaussian:RHO'") as error:
        mechanism_of(text)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("rho", [0.001, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-3])
def test_what_a_rho_means_is_near_what_is_true_of_a_gaussian_and_below_the_simple_formula(rho, delta):
    """Balle and Wang (2018) give the exact delta of a Gaussian mechanism, Bun and Steinke (2016) a simple epsilon."""
    epsilon = epsilon_at(Mechanism("gaussian", Fraction(rho)), delta=delta)
    ratio = math.sqrt(2.0 * rho)  # sensitivity over standard deviation
    exact = norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)
    assert exact <= delta * (1.0 + 1e-9)
    assert epsilon <= rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta)) + 1e-12
    smaller = 0.7 * epsilon
    assert norm.cdf(ratio / 2 - smaller / ratio) - math.exp(smaller) * norm.cdf(-ratio / 2 - smaller / ratio) > delta


def test_an_epsilon_means_itself():
    assert epsilon_at(mechanism_of("laplace:0.7"), delta=1e-6) == 0.7
