"""Lower confidence bounds of a divergence exceed the truth at most as often as delta says; estimates do not hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from tests.validity.coverage import ROUNDING, ObservedLaw, is_rejected, rejected, study

DELTA = 0.2
SOURCE = BetaRisks(3.0, 21.0)
TARGETS = {"same": SOURCE, "near": BetaRisks(4.0, 21.0), "far": BetaRisks(6.0, 18.0)}
NUM_EXAMPLES = 30


def measured_truth(target, name):
    p, q = (ObservedLaw(law, NUM_EXAMPLES).masses for law in (SOURCE, target))
    return float(rb.DIVERGENCES[name].between(q, p))


def true_kl(target):
    def integrand(x):
        log_ratio = beta.logpdf(x, target.a, target.b) - beta.logpdf(x, SOURCE.a, SOURCE.b)
        return beta.pdf(x, target.a, target.b) * log_ratio

    return quad(integrand, 0, 1)[0]


def bands(rng, target, *, local, num_clients=(60, 40)):
    for law, number in zip((SOURCE, target), num_clients, strict=True):
        _, values = law.draw(rng, num_clients=number, num_examples=NUM_EXAMPLES)
        yield rb.band(rb.ClientRisks(values, NUM_EXAMPLES), delta=DELTA / 2, local=local)


@study(slow=200)
def test_a_lower_bound_exceeds_the_truth_at_most_as_often_as_delta_says(num_networks):
    failures: dict[tuple[str, ...], list[bool]] = {}
    found: dict[str, list[float]] = {}
    for case, target in TARGETS.items():
        for rng in map(np.random.default_rng, np.random.SeedSequence(11).spawn(num_networks)):
            measured = tuple(bands(rng, target, local="observed"))
            for name in rb.DIVERGENCES:
                value = rb.divergence_lower_bound(*measured, divergence=name).lower
                failures.setdefault((case, name), []).append(value > measured_truth(target, name) + ROUNDING)
                found.setdefault(case, []).append(value)
            true = rb.divergence_lower_bound(*bands(rng, target, local="marginal"), divergence="kl").lower
            failures.setdefault((case, "true risks"), []).append(true > true_kl(target) + ROUNDING)
    assert rejected(failures, DELTA) == {}
    assert np.mean(found["far"]) > 0.05  # it says something


def true_divergence(target, name):
    def integrand(x):
        p, q = (beta.pdf(x, law.a, law.b) for law in (SOURCE, target))
        return float(p * rb.DIVERGENCES[name].generator(np.array(q / p)))

    return quad(integrand, 0, 1)[0]


@study(60, slow=200)
def test_certificates_at_the_divergence_of_the_risks_cover_the_target(num_networks):
    target, thresholds = TARGETS["near"], np.linspace(0.02, 0.6, 30)
    budgets = {name: true_divergence(target, name) for name in ("kl", "chi2")}
    failures = {name: [] for name in budgets}
    for rng in map(np.random.default_rng, np.random.SeedSequence(13).spawn(num_networks)):
        _, values = SOURCE.draw(rng, num_clients=60, num_examples=NUM_EXAMPLES)
        band = rb.band(rb.ClientRisks(values, NUM_EXAMPLES), delta=DELTA, local="marginal")
        for name, budget in budgets.items():
            bound = rb.worst_case_cdf(band, divergence=name, budget=budget, thresholds=thresholds).value
            failures[name].append(bool(np.any(bound < target.survival(thresholds) - ROUNDING)))
    assert rejected(failures, DELTA) == {}


@pytest.mark.guard
@pytest.mark.parametrize("case", ["same", "near"])
def test_wrong_formulas_are_rejected(case):
    target, failures = TARGETS[case], {"histogram": [], "corners swapped": []}
    for rng in map(np.random.default_rng, np.random.SeedSequence(12).spawn(25)):
        source_band, target_band = bands(rng, target, local="observed")
        truth = measured_truth(target, "chi2") + ROUNDING
        histogram = rb.divergence_estimate(source_band.risks.values, target_band.risks.values, divergence="chi2")
        failures["histogram"].append(histogram > truth)
        risk = np.linspace(0, 1, 200)  # S' from above and S from below: the farthest members in place of the nearest
        wrong = rb.DIVERGENCES["chi2"].binary(
            1 - target_band.lower(risk), np.maximum(1 - source_band.upper(risk), 1e-9)
        )
        failures["corners swapped"].append(wrong.max() > truth)
    assert all(is_rejected(each, DELTA) for each in failures.values())
