"""Noisy answers: the law of the noise against its definition, limits against exact sums and quadrature."""

from __future__ import annotations

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, norm

import riskband as rb
from riskband.answers.noise import cut_values, noisy_upper_limits
from riskband.answers.risks import ETA_GRID

COARSE = [
    rb.AnswerNoise("laplace:0.5", num_steps=1),
    rb.AnswerNoise("laplace:3", num_values=4, num_steps=1),
    rb.AnswerNoise("laplace:80", num_steps=1),
    rb.AnswerNoise("gaussian:0.02", num_steps=1),
    rb.AnswerNoise("gaussian:2", num_values=3, num_steps=2),
    rb.AnswerNoise("gaussian:500", num_steps=1),
]
FINE = [rb.AnswerNoise("laplace:0.5"), rb.AnswerNoise("gaussian:0.02")]


def name_of(noise):
    return f"{noise.mechanism}, {noise.num_values} values, {noise.num_steps} steps"


def masses(noise, end):
    """P(N = k), k = -end .. end, from the definition in the protocol."""
    name, budget = noise.mechanism.split(":")
    k = np.arange(-end, end + 1.0)
    if name == "laplace":
        found = np.exp(-np.abs(k) * float(budget) / (noise.num_steps * noise.num_values))
    else:
        found = np.exp(-(k**2) * float(budget) / (noise.num_steps**2 * noise.num_values))
    return k, found / found.sum()


@pytest.mark.parametrize("noise", COARSE, ids=name_of)
def test_the_law_of_the_noise_is_its_definition(noise):
    k, law = masses(noise, 2000)
    np.testing.assert_allclose(noise.cumulative(k), np.cumsum(law), atol=1e-13)
    for threshold in (0.0, 0.04, 0.5):
        steps = np.floor(threshold * np.array([10, 100]) * noise.num_steps + 1e-9)
        expected = np.maximum(k - steps[:, None], 0.0) @ law / (np.array([10, 100]) * noise.num_steps)
        np.testing.assert_allclose(noise.mean_excess(threshold, np.array([10, 100])), expected, rtol=1e-9, atol=1e-16)
    for level in (0.5, 0.9, 0.999):
        found = np.rint(noise.quantile(level, 100) * 100 * noise.num_steps)
        exact = k[np.searchsorted(np.cumsum(law), level - 1e-12)]
        assert max(exact, 0.0) <= found <= max(exact, 0.0) + (0.0 if noise.is_laplace else 1.0)


def test_wide_gaussian_noise_has_safe_bounds():
    noise = rb.AnswerNoise("gaussian:1e-6", num_values=1000, num_steps=1)  # s = 22,361, above the tables
    k, law = masses(noise, 200_000)
    at = np.arange(-100_000, 100_001, 5_000)
    exact = np.cumsum(law)[at + 200_000]
    assert np.all(noise.cumulative(at.astype(float)) >= exact)
    np.testing.assert_allclose(noise.cumulative(at.astype(float)), exact, atol=2e-5)
    excess = np.maximum(k - 30_000, 0.0) @ law / 1e6
    assert excess <= noise.mean_excess(0.03, np.array([10**6]))[0] <= excess * 1.01


@pytest.mark.parametrize("steps", [1, 2**20])
def test_the_spread_of_the_noise_is_that_of_the_protocol(steps):
    assert rb.AnswerNoise("laplace:0.5", 3, steps).spread == pytest.approx(steps * 6.0)
    assert rb.AnswerNoise("gaussian:0.125", 4, steps).spread == pytest.approx(steps * 4.0)
    assert rb.AnswerNoise("laplace:0.5", 3, steps).scale(200) == pytest.approx(0.03)


def root(excess):
    """Where a decreasing function of the risk crosses 0, or the end of [0, 1] beyond which it does."""
    low, high = 1e-12, 1.0 - 1e-12
    if excess(low) <= 0.0:
        return 0.0
    return 1.0 if excess(high) > 0.0 else brentq(excess, low, high, xtol=1e-13)


@pytest.mark.parametrize("num_examples", [1, 7, 60])
@pytest.mark.parametrize("noise", [noise for noise in COARSE if noise.num_steps == 1], ids=name_of)
def test_binary_limits_invert_the_exact_law(noise, num_examples):
    end = 300
    _, law = masses(noise, end)
    values = np.arange(-end, num_examples + end + 1) / num_examples

    def probability(risk):  # P(answer <= value)
        return np.cumsum(np.convolve(law, binom.pmf(np.arange(num_examples + 1), num_examples, risk)))

    for eta in (1e-4, 0.05, 0.5):
        risks = rb.ClientRisks(values, num_examples, noise=noise)
        upper, lower = risks.upper_limits(eta), risks.lower_limits(eta)
        for index in range(end - 20, end + num_examples + 20, 7):
            exact = root(lambda r, i=index, e=eta: probability(r)[i] - e)
            assert upper[index] == pytest.approx(exact, abs=1e-7)
            assert upper[index] >= exact - 1e-12
        np.testing.assert_allclose(lower, 1.0 - upper[::-1], atol=1e-12)


@pytest.mark.parametrize("eta", [*ETA_GRID, 0.9])
@pytest.mark.parametrize("noise", [COARSE[0], COARSE[3]], ids=name_of)
def test_limits_fail_with_probability_at_most_eta_whatever_the_risk(noise, eta):
    """Exactly, for 0-1 losses: those that know it, and those for any loss."""
    size, end = 25, 150
    _, law = masses(noise, end)
    values = np.arange(-end, size + end + 1) / size
    sizes = np.full(values.size, size)
    exact = noisy_upper_limits(values, sizes, noise, eta=eta, binary=True)
    bounded = noisy_upper_limits(values, sizes, noise, eta=eta, binary=False)
    for risk in np.unique(np.concatenate([np.linspace(0, 1, 101), exact, np.nextafter(exact, 2.0).clip(0, 1)])):
        answers = np.convolve(law, binom.pmf(np.arange(size + 1), size, risk))
        assert answers[exact < risk].sum() <= eta + 1e-9
        assert answers[bounded < risk].sum() <= eta + 1e-9
    assert np.all(exact <= bounded + 1e-9)


@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("name", ["laplace:8", "gaussian:4"])
def test_lower_limits_in_few_steps_fail_with_probability_at_most_eta(name, size):
    """Exactly, for losses a little above 0 and 1/2, which are answered as 1/2 and 1: rounding takes all it can."""
    noise, end = rb.AnswerNoise(name, num_steps=2), 40
    _, law = masses(noise, end)
    values = np.arange(-end, 2 * size + end + 1) / (2 * size)
    for eta in ETA_GRID:
        lower = rb.ClientRisks(values, size, noise=noise).lower_limits(eta)
        for share in (0.1, 0.5, 0.9, 0.999, 1.0 - 1e-6):
            steps = np.append(np.zeros(size), binom.pmf(np.arange(size + 1), size, share))
            assert np.convolve(law, steps)[lower > share / 2].sum() <= eta + 1e-9


@pytest.mark.parametrize("size", [7, 10**4, 10**6])
def test_rounding_an_answer_moves_no_limit_down(size):
    """However many steps there are: `1 - value` rounds the answers near 0 at the first digits of a number near 1."""
    num_steps = 2**20
    noise = rb.AnswerNoise(f"laplace:{num_steps / 4}", num_steps=num_steps)  # four steps wide
    values = np.arange(60) / (size * num_steps)
    sizes = np.full(60, size)
    exact = noisy_upper_limits(values, sizes, noise, eta=0.01, binary=False)
    for moved in (values - 2.0**-53, values + 2.0**-53):
        assert np.all(noisy_upper_limits(moved, sizes, noise, eta=0.01, binary=False) >= exact)


def test_the_wrong_law_for_zero_one_losses_breaks_limits():
    """Why answers that look like counts are refused in smaller steps: the noise is then not what it is taken to be."""
    size, risk, end = 20, 0.01, 40
    told, true = rb.AnswerNoise("laplace:4"), rb.AnswerNoise("laplace:4", num_steps=1)
    values = np.arange(-end, size + end + 1) / size
    answers = np.convolve(masses(true, end)[1], binom.pmf(np.arange(size + 1), size, risk))
    wrong = noisy_upper_limits(values, np.full(values.size, size), told, eta=0.5, binary=False)
    right = noisy_upper_limits(values, np.full(values.size, size), true, eta=0.5, binary=True)
    assert answers[wrong < risk].sum() > 0.8
    assert answers[right < risk].sum() <= 0.5
    with pytest.raises(ValueError, match="say binary=True"):
        rb.ClientRisks(values, size, noise="laplace:4")


def kl(p, q):
    return sum(a * np.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


@pytest.mark.parametrize("num_examples", [20, 200])
@pytest.mark.parametrize("noise", FINE, ids=name_of)
def test_limits_for_any_loss_are_chernoffs_bound_given_the_noise(noise, num_examples):
    """At 2**20 steps the noise is as good as continuous: the same equation, with its density and scipy's quad."""
    scale = float(noise.scale(num_examples))

    def density(z):
        return np.exp(-abs(z) / scale) / (2 * scale) if noise.is_laplace else norm.pdf(z, scale=scale)

    def bound(value, risk):
        def tail(z):
            mean = value - z
            return 1.0 if mean >= risk else 0.0 if mean < 0.0 else np.exp(-num_examples * kl(mean, risk))

        breaks = sorted({value - risk, value, 0.0})
        ends = [-40 * scale, *[b for b in breaks if -40 * scale < b < 40 * scale], 40 * scale]
        return sum(quad(lambda z: tail(z) * density(z), a, b, limit=200)[0] for a, b in pairwise(ends))

    for value, eta in ((-0.02, 0.05), (0.05, 1e-3), (0.05, 0.3), (0.4, 0.01)):
        found = noisy_upper_limits(np.array([value]), np.array([num_examples]), noise, eta=eta, binary=False)[0]
        if found < 1.0 - 1e-6:
            exact = brentq(lambda r, v=value, e=eta: bound(v, r) - e, 1e-9, 1.0 - 1e-9, xtol=1e-9)
            assert exact - 1e-6 <= found <= exact + 0.1 * scale


@pytest.mark.parametrize("eta", [1e-3, 0.05])
@pytest.mark.parametrize("noise", FINE, ids=name_of)
def test_limits_are_not_above_those_of_a_split_error_level(noise, eta):
    """Half of eta for the noise, half for the examples: a bound of the same law, and never a better one."""
    values, size = np.linspace(0.001, 0.501, 11), 100
    moved = np.clip(values + noise.quantile(1.0 - eta / 2, size), 0.0, 1.0)
    split = rb.ClientRisks(moved, size, binary=False).upper_limits(eta / 2)
    found = rb.ClientRisks(values, size, noise=noise).upper_limits(eta)
    assert np.all(found <= split + 0.05 * noise.scale(size))
    assert np.mean(split - found) > 0.1 * noise.scale(size)


def test_lower_limits_allow_for_rounding_up():
    """Losses of 1/8 in steps of 1/2 are answered as 1/2; the limit is for the loss itself."""
    noise = rb.AnswerNoise("laplace:1e6", num_steps=2)
    limits = rb.ClientRisks(np.full(3, 0.5), 10**6, noise=noise).lower_limits(0.05)
    assert np.all(limits <= 0.125)
    np.testing.assert_allclose(limits, 0.0, atol=2e-3)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", ["laplace:1e9", "gaussian:1e12"])
def test_no_noise_to_speak_of_gives_the_limits_without_noise(name, binary):
    values, sizes = np.array([0.05, 0.1, 0.35, 0.95]), np.array([20, 40, 100, 20])
    noisy = rb.ClientRisks(values, sizes, binary=binary, noise=name)
    clean = rb.ClientRisks(values, sizes, binary=binary)
    for eta in (1e-3, 0.2):
        np.testing.assert_allclose(noisy.upper_limits(eta), clean.upper_limits(eta), atol=2e-6)
        np.testing.assert_allclose(noisy.lower_limits(eta), clean.lower_limits(eta), atol=2e-6)
    for method in ("betting", "hoeffding"):
        found, expected = (rb.mean_bound(r, delta=0.1, method=method).value for r in (noisy, clean))
        assert found == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("is_size_fixed", [True, False])
@pytest.mark.parametrize("noise", [noise for noise in COARSE if noise.num_steps == 1], ids=name_of)
@pytest.mark.parametrize("num_examples", [3, 50])
def test_cut_answers_have_at_least_the_risk_as_mean(noise, num_examples, is_size_fixed):
    """Exactly, for every risk; risks near 1 are where cutting takes most away."""
    end = 3000
    _, law = masses(noise, end)
    values = np.arange(-end, num_examples + end + 1) / num_examples
    sizes = np.full(values.size, num_examples)
    cut = cut_values(values, sizes, noise, is_size_fixed=is_size_fixed)
    assert cut.low <= cut.values.min() <= cut.values.max() <= cut.high
    for risk in (0.0, 0.2, 0.9, 0.999, 1.0):
        answers = np.convolve(law, binom.pmf(np.arange(num_examples + 1), num_examples, risk))
        assert answers @ cut.values >= risk - 1e-12
        if is_size_fixed:
            assert answers @ cut.values <= risk + 3e-3 * noise.scale(num_examples) + 1e-12


def test_worst_case_means_of_noisy_answers_solve_the_same_program():
    """Atoms below 0 and above 1: against cvxpy, from the definition."""
    rng = np.random.default_rng(4)
    stop = -np.expm1(-0.25)
    values = (rng.binomial(50, rng.beta(2, 10, 60)) + rng.geometric(stop, 60) - rng.geometric(stop, 60)) / 50
    noise = rb.AnswerNoise("laplace:0.25", num_steps=1)
    band = rb.band(rb.ClientRisks(values, 50, noise=noise), delta=0.1, sides="lower")
    law = band.distribution_for_means
    assert law.risks[0] < 0.0
    assert law.risks[-1] > 1.0
    for name in ("kl", "chi2", "tv"):
        target = cp.Variable(law.risks.size, nonneg=True)
        cost = {
            "kl": cp.sum(cp.kl_div(target, law.weights)),
            "chi2": cp.sum(cp.multiply(1 / law.weights, cp.square(target - law.weights))),
            "tv": cp.norm1(target - law.weights) / 2,
        }[name]
        problem = cp.Problem(cp.Maximize(law.risks @ target), [cp.sum(target) == 1, cost <= 0.2])
        problem.solve(solver=cp.CLARABEL)
        found = rb.worst_case_mean(band, divergence=name, budget=0.2).value
        assert found == pytest.approx(min(problem.value, 1.0), abs=1e-6)
