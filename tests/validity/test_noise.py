"""Coverage of certificates from noisy answers, and formulas that forget what the noise does.

Noise is drawn from its definition, independently of the code under test and of the client's sampler. False-alarm rate
of each test: 1e-4 (see `tests.validity.coverage`).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.isotonic import isotonic_regression

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from riskband.answers.noise import cut_values
from riskband.betting import betting_upper_mean
from tests.validity.coverage import BETA, CONTINUOUS, draw_networks, is_exceeded, is_rejected, leaves, rejected, study
from tests.validity.test_wasserstein import BUDGETS, KINDS, TRUE_MEANS, flip_costs

DELTA = 0.2
HIGH = BetaRisks(60.0, 1.0)
"""Risks near 1: cutting noisy answers to [0, 1] takes away from their mean."""


def draw_noise(rng, mechanism, *, num_values, num_steps, size):
    """Whole-number noise from the protocol's definition; two geometric draws differ by a discrete Laplace one."""
    name, budget = mechanism.split(":")
    if name == "laplace":
        stop = -np.expm1(-float(budget) / (num_steps * num_values))
        return rng.geometric(stop, size) - rng.geometric(stop, size)
    variance = num_steps**2 * num_values / (2.0 * float(budget))
    if num_steps > 1:  # in so many steps the discrete law is the rounded continuous one, to 1e-12
        return np.rint(rng.normal(scale=np.sqrt(variance), size=size))
    k = np.arange(-200, 201)
    masses = np.exp(-(k**2) / (2.0 * variance))
    return rng.choice(k, size, p=masses / masses.sum())


def with_noise(rng, risks, mechanism):
    """What the clients answer: whole steps, rounded up, plus noise."""
    steps = 1 if risks.binary else 2**20
    sums = np.ceil(risks.values * risks.num_examples * steps - 1e-6)
    drawn = draw_noise(rng, mechanism, num_values=1, num_steps=steps, size=risks.num_clients)
    return rb.ClientRisks(
        (sums + drawn) / (risks.num_examples * steps), risks.num_examples, risks.binary, noise=mechanism
    )


def noisy_networks(law, mechanism, *, seed, **settings):
    clean = draw_networks(law, seed=seed, **settings)
    for risks, child in zip(clean, np.random.SeedSequence(seed + 10**6).spawn(settings["num_networks"]), strict=True):
        yield with_noise(np.random.default_rng(child), risks, mechanism)


LOSSES = {"0-1": BETA, "continuous": CONTINUOUS}


@study(slow=60)
@pytest.mark.parametrize("mechanism", ["laplace:0.5", "gaussian:0.05"])
@pytest.mark.parametrize("loss", LOSSES)
def test_bands_and_all_that_is_read_off_them_cover(loss, mechanism, num_networks):
    failures = {}
    for sizes, local in ((20, "marginal"), ("unequal", "marginal"), ("unequal", "counted")):
        drawn = {"num_networks": num_networks, "num_clients": 50, "sizes": sizes, "seed": 1}
        networks = noisy_networks(LOSSES[loss], mechanism, **drawn)
        bands = [rb.band(network, delta=DELTA, local=local) for network in networks]
        failures[sizes, local] = [leaves(band, LOSSES[loss]) or is_exceeded(band, LOSSES[loss]) for band in bands]
    assert rejected(failures, DELTA) == {}


@study(slow=100)
@pytest.mark.parametrize(
    ("law", "mechanism"),
    [
        (BETA, "laplace:0.2"),
        pytest.param(BETA, "gaussian:0.02", marks=pytest.mark.slow),
        pytest.param(CONTINUOUS, "laplace:0.2", marks=pytest.mark.slow),
        (CONTINUOUS, "gaussian:0.02"),
        (HIGH, "laplace:0.2"),
        pytest.param(HIGH, "gaussian:0.02", marks=pytest.mark.slow),
    ],
)
def test_means_cover(law, mechanism, num_networks):
    failures = {}
    cases = product((20, 100, "unequal"), ("betting", "hoeffding"), (0, 2))
    for sizes, method, wrong in cases:
        networks = noisy_networks(law, mechanism, num_networks=num_networks, num_clients=50, sizes=sizes, seed=2)
        failures[sizes, method, wrong] = [
            rb.mean_bound(spoiled(network, wrong), delta=DELTA, method=method).value < law.mean_risk()
            for network in networks
        ]
    assert rejected(failures, DELTA) == {}


def spoiled(risks, num_wrong):
    """The network after so many of its largest answers were replaced by very low ones, and said to be."""
    values = risks.values.copy()
    values[np.argsort(values)[values.size - num_wrong :]] = -5.0
    return rb.ClientRisks(values, risks.num_examples, risks.binary, noise=risks.noise, contamination=num_wrong)


@pytest.mark.slow
def test_means_cover_where_numbers_of_examples_depend_on_the_risk():
    networks = noisy_networks(BETA, "laplace:0.2", num_networks=100, num_clients=200, sizes="dependent", seed=3)
    failures = [rb.mean_bound(network, delta=DELTA).value < BETA.mean_risk() for network in networks]
    assert not is_rejected(failures, DELTA)


def test_negative_control_limits_that_forget_the_noise():
    law, failures = BetaRisks(40.0, 60.0), []
    for network in noisy_networks(law, "laplace:0.2", num_networks=40, num_clients=200, sizes=20, seed=4):
        forgetful = rb.ClientRisks(network.shown_values, 20, binary=True)
        failures.append(leaves(rb.band(forgetful, delta=DELTA), law))
    assert is_rejected(failures, DELTA)


def test_negative_control_answers_cut_to_the_unit_interval_without_the_term_for_it():
    failures = []
    for network in noisy_networks(HIGH, "laplace:0.2", num_networks=40, num_clients=200, sizes=20, seed=5):
        failures.append(betting_upper_mean(network.shown_values, delta=DELTA) < HIGH.mean_risk())
    assert is_rejected(failures, DELTA)


MULTIPLIERS = rb.default_multipliers(BUDGETS, num_multipliers=12)


def adversarial_networks(mechanism, *, num_networks, num_clients, num_examples, seed):
    """Noisy conjugates of the clients of `tests.validity.test_wasserstein`, and one noisy plain risk."""
    steps, num_values = 2**20, MULTIPLIERS.size + 1
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        costs = np.array(list(flip_costs(rng, num_clients, num_examples)))
        losses = np.maximum(1.0 - costs[:, :, None] * np.append(MULTIPLIERS, 1e12), 0.0)
        sums = np.ceil(losses * steps).sum(axis=1)
        drawn = draw_noise(rng, mechanism, num_values=num_values, num_steps=steps, size=sums.shape)
        numbers = (sums + drawn) / (num_examples * steps)
        yield rb.AdversarialAnswers(
            [0.0],
            numbers[:, -1:],
            num_examples,
            cost="order 1",
            guarantee="exact",
            binary=True,
            multipliers=MULTIPLIERS,
            conjugates=numbers[:, :-1],
            noise=rb.AnswerNoise(mechanism, num_values),
        )


@pytest.mark.parametrize("mechanism", ["laplace:2", "gaussian:0.1"])
@pytest.mark.parametrize("method", ["betting", "hoeffding"])
def test_transport_means_cover(method, mechanism):
    failures = []
    for answers in adversarial_networks(mechanism, num_networks=60, num_clients=100, num_examples=50, seed=6):
        found = rb.wasserstein_mean(answers, delta=DELTA, cost_budget=BUDGETS, method=method, seed=0)
        failures.append(np.any(found.value < TRUE_MEANS - 1e-9))
    assert not is_rejected(failures, DELTA)


@pytest.mark.slow
@study(slow=100)
def test_transport_means_cover_near_one_where_all_numbers_share_the_budget_that_was_named(num_networks):
    """Negative control: noise that is taken for that of a budget for each number is cut away too far."""
    rng, risk, num_clients, size, steps = np.random.default_rng(9), 0.97, 300, 100, 2**20
    num_values, failures, forgetful = MULTIPLIERS.size + 1, [], []
    for _ in range(num_networks):
        sums = rng.binomial(size, risk, (num_clients, 1)) * steps  # no move makes such an example right
        drawn = draw_noise(rng, "laplace:1", num_values=num_values, num_steps=steps, size=(num_clients, num_values))
        numbers = (sums + drawn) / (size * steps)
        answers = rb.AdversarialAnswers(
            [0.0],
            numbers[:, :1],
            size,
            cost="order 1",
            guarantee="exact",
            binary=True,
            multipliers=MULTIPLIERS,
            conjugates=numbers[:, 1:],
            noise="laplace:1",
        )
        failures.append(rb.wasserstein_mean(answers, delta=DELTA, cost_budget=0.0).value < risk)
        alone = cut_values(numbers[:, 1], answers.num_examples, rb.AnswerNoise("laplace:1"), is_size_fixed=True)
        forgetful.append(alone.from_unit(betting_upper_mean(alone.in_unit, delta=DELTA)) < risk)
    assert not is_rejected(failures, DELTA)
    assert is_rejected(forgetful, DELTA)


@study(12)
def test_negative_control_curves_of_clients_made_monotone_before_the_mean(num_networks):
    """Conjugates fall with the multiplier, noisy ones need not; to mend that client by client biases their means."""
    truth = float(np.mean([error for error, _ in KINDS]))  # nearly what is left at the largest multiplier
    failures = []
    for answers in adversarial_networks(
        "laplace:2", num_networks=num_networks, num_clients=300, num_examples=50, seed=7
    ):
        monotone = np.array([isotonic_regression(row, increasing=False) for row in answers.conjugates])
        column = monotone[:, -1]
        low, high = column.min() - 1.0, column.max() + 1.0  # any range will do to bet on
        bound = low + (high - low) * betting_upper_mean((column - low) / (high - low), delta=DELTA)
        failures.append(bound < truth)
    assert is_rejected(failures, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize(("num_clients", "num_networks"), [(50, 60), (500, 30)])
@pytest.mark.parametrize("mechanism", ["laplace:0.5", "gaussian:0.05"])
@pytest.mark.parametrize("loss", LOSSES)
def test_bands_and_means_cover_in_larger_studies(loss, mechanism, num_clients, num_networks):
    law, bands, means = LOSSES[loss], {}, {}
    for sizes in (20, 200, "unequal"):
        settings = {"num_networks": num_networks, "num_clients": num_clients, "sizes": sizes, "seed": 8}
        networks = noisy_networks(law, mechanism, **settings)
        bands[sizes], means[sizes] = [], []
        for network in networks:
            band = rb.band(network, delta=0.1, sides="lower")
            bands[sizes].append(leaves(band, law) or is_exceeded(band, law))
            means[sizes].append(rb.mean_bound(network, delta=0.1).value < law.mean_risk())
    assert rejected(bands, 0.1) == {}
    assert rejected(means, 0.1) == {}
