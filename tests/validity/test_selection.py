"""The bound of the candidate that was chosen by looking fails no more often than delta; without delta/M it does.

Every test here raises a false alarm with probability at most `FALSE_ALARM` (1e-4) if the claim is true.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import betaln
from scipy.stats import beta

import riskband as rb
from tests.validity.coverage import BETA, is_rejected, study

DELTA = 0.2


@cache
def true_value(term):
    """Terms of an objective for Beta risks, in closed form or by quadrature."""
    a, b = BETA.a, BETA.b
    kind, *parameters = term.split(":")
    if kind == "mean":
        return a / (a + b)
    if kind == "gini":
        return 2 / a * np.exp(betaln(2 * a, 2 * b) - 2 * betaln(a, b))
    level = float(parameters[0])
    if kind == "quantile":
        return beta.ppf(level, a, b)
    return quad(lambda p: beta.ppf(p, a, b), level, 1)[0] / (1 - level)


def truth(objective):
    return sum(weight * true_value(name) for name, weight in rb.Objective(objective).terms)


def equal_candidates(rng, *, num_candidates, num_clients, num_examples, paired=False):
    """Candidates whose true risks follow one law: whichever is chosen, the truth is the same.

    Paired: the same clients, with a rotation of their risks' ranks that keeps each candidate's law and ties them all.
    """
    shape = num_candidates, num_clients
    levels = rng.random(shape)
    if paired:
        levels = (rng.random(num_clients)[None, :] + 0.02 * np.arange(num_candidates)[:, None]) % 1.0
    risks = beta.ppf(levels, BETA.a, BETA.b)
    values = rng.binomial(num_examples, risks) / num_examples
    return {f"candidate-{m}": rb.ClientRisks(row, num_examples) for m, row in enumerate(values)}


def networks(num_networks, *, seed, **settings):
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        yield equal_candidates(np.random.default_rng(child), **settings)


def failures_of_select(objective, found, **arguments):
    failures = []
    for answers in found:
        certificate = rb.select(answers, objective=objective, delta=DELTA, **arguments).certificate
        failures.append(certificate is not None and certificate.value < truth(objective) - 1e-9)
    return failures


@study(slow=100)
@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("objective", ["mean", "mean+0.5*gini", "quantile:0.8+cvar:0.9"])
def test_the_bound_of_the_chosen_candidate_holds(objective, paired, num_networks, seed):
    found = networks(num_networks, seed=1, num_candidates=8, num_clients=40, num_examples=30, paired=paired)
    assert not is_rejected(failures_of_select(objective, found, seed=seed), DELTA)


@pytest.mark.slow
@study(slow=150)
@pytest.mark.parametrize("dispersion", [pytest.param("sharp", marks=pytest.mark.slow), "plugin"])
def test_the_bound_holds_with_every_bound_on_dispersion(dispersion, num_networks):
    found = networks(num_networks, seed=2, num_candidates=8, num_clients=40, num_examples=30)
    assert not is_rejected(failures_of_select("mean+0.5*gini", found, dispersion=dispersion, seed=0), DELTA)


MANY = {"num_candidates": 30, "num_clients": 200, "num_examples": 200}
TARGET = truth("mean") + 0.03


@cache
def sequences(num_networks):
    """Selections among many candidates by a sequence: its table holds the bounds at the full delta."""
    arguments = {"objective": "mean", "delta": DELTA, "method": "fixed_sequence", "target": TARGET, "seed": 0}
    return [rb.select(answers, **arguments) for answers in networks(num_networks, seed=3, **MANY)]


@pytest.mark.slow
@study(10)
def test_the_best_of_many_bounds_at_the_full_delta_fails(num_networks):
    """Negative control: delta instead of delta/M; with delta/M the same networks are fine."""
    wrong = [min(c.bound for c in found.candidates) < truth("mean") for found in sequences(num_networks)]
    assert is_rejected(wrong, DELTA)
    right = failures_of_select("mean", networks(num_networks, seed=3, **MANY), seed=0)
    assert not is_rejected(right, DELTA)


@study(10)
def test_the_best_measured_candidate_with_its_own_bound_fails(num_networks):
    """Negative control: choose by the measured value, then certify with the same answers at the full delta."""
    chosen = [min(found.candidates, key=lambda candidate: candidate.measured) for found in sequences(num_networks)]
    assert is_rejected([candidate.bound < truth("mean") for candidate in chosen], DELTA)


@study(10)
def test_the_own_bound_of_a_candidate_in_a_sequence_is_no_certificate(num_networks):
    """Negative control: the smallest bound of those that met the target, reported instead of the target."""
    successes = [found for found in sequences(num_networks) if found.certified]
    bounds = [min(c.bound for c in found.candidates if c.is_certified) for found in successes]
    assert is_rejected([bound < truth("mean") for bound in bounds], DELTA)
    assert all(found.certificate.value == TARGET for found in successes)


@study(10)
def test_testing_on_after_a_failure_certifies_wrongly(num_networks):
    """Negative control: the sequence goes on at the full delta; here whoever passes is certified wrongly."""
    target = truth("mean") - 1e-9
    assert is_rejected([any(c.bound <= target for c in found.candidates) for found in sequences(num_networks)], DELTA)


@study(60, slow=200)
@pytest.mark.parametrize("margin", [-1e-9, pytest.param(0.004, marks=pytest.mark.slow)])
def test_a_sequence_certifies_no_candidate_wrongly(margin, num_networks):
    """A target just below the truth, where everything certified is wrong, and one above it."""
    found = networks(num_networks, seed=5, **(MANY | {"num_candidates": 6}))
    arguments = {"method": "fixed_sequence", "target": truth("mean") + margin}
    assert not is_rejected(failures_of_select("mean", found, **arguments), DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [1, 200])
@pytest.mark.parametrize("num_candidates", [2, 12])
@pytest.mark.parametrize("mean_share", [0.0, 0.5])
def test_the_bound_holds_in_larger_studies(num_candidates, num_examples, mean_share):
    settings = {"num_candidates": num_candidates, "num_clients": 100, "num_examples": num_examples}
    for seed, objective in enumerate(["mean", "mean+gini", "mean+quantile:0.9"], start=8):
        found = networks(80, seed=seed, **settings)
        assert not is_rejected(failures_of_select(objective, found, mean_share=mean_share), DELTA)
