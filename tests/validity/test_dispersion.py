"""Dispersion intervals miss the truth no more often than delta, and known mistakes are noticed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import betaln, digamma
from scipy.stats import beta

import riskband as rb
from benchmarks.ground_truth import BetaRisks, TwoPointRisks
from riskband.bands.levels import berk_jones_levels
from riskband.functionals.functional import interval_of
from tests.reference.dispersion_definitions import DEFINITIONS
from tests.validity.coverage import BETA, TWO_POINTS, ObservedLaw, draw_networks, failures, is_rejected, rejected

UNIFORM = BetaRisks(1.0, 1.0)
BOUNDED = [name for name in DEFINITIONS if not name.startswith("quantile")]
QUANTILES = [name for name in DEFINITIONS if name.startswith("quantile")]


@dataclass(frozen=True)
class BetaTruth:
    """Measures of Beta(a, b) in closed form, but two by quadrature."""

    a: float
    b: float

    def moment(self, order):
        return np.exp(betaln(self.a + order, self.b) - betaln(self.a, self.b)) if self.a + order > 0 else np.inf

    def survival_integral(self, power):
        return quad(lambda x: beta.sf(x, self.a, self.b) ** power, 0, 1)[0]

    def value(self, name):
        a, b = self.a, self.b
        kind, *parameters = name.split(":")
        p = [float(parameter) for parameter in parameters]
        m = a / (a + b)
        mean_log = digamma(a) - digamma(a + b)
        if kind == "gini":
            return 2 / a * np.exp(betaln(2 * a, 2 * b) - 2 * betaln(a, b))
        if kind == "extended_gini":
            return 1 - self.survival_integral(p[0]) / m
        if kind == "hoover":
            return beta.cdf(m, a, b) - beta.cdf(m, a + 1, b)
        if kind == "top_share":
            return beta.sf(beta.isf(p[0], a, b), a + 1, b)
        if kind == "coefficient_of_variation":
            return beta.std(a, b) / m
        if kind == "mean_range":
            largest = quad(lambda x: 1 - beta.cdf(x, a, b) ** p[0], 0, 1)[0]
            return largest - self.survival_integral(p[0])
        if kind == "theil":
            return digamma(a + 1) - digamma(a + b + 1) - np.log(m)
        if kind == "mean_log_deviation":
            return np.log(m) - mean_log
        if kind == "atkinson":
            order = 1 - p[0]
            return 1 - (np.exp(mean_log) if order == 0 else self.moment(order) ** (1 / order)) / m
        if kind == "generalised_entropy":
            return (self.moment(p[0]) / m ** p[0] - 1) / (p[0] * (p[0] - 1))
        low, high = beta.ppf(p, a, b)
        return high / low if kind == "quantile_ratio" else high - low


@cache
def true_values(law):
    """Every measure of the law of true risks, or of that of measured ones."""
    if isinstance(law, BetaRisks):
        return {name: float(BetaTruth(law.a, law.b).value(name)) for name in DEFINITIONS}
    if isinstance(law, TwoPointRisks):
        atoms, weights = np.array([law.low, law.high]), np.array([1 - law.weight, law.weight])
    else:
        atoms, weights = np.arange(law.num_examples + 1) / law.num_examples, law.masses
    return {name: float(definition(atoms, weights)) for name, definition in DEFINITIONS.items()}


def test_the_closed_forms_agree_with_the_definitions():
    for law in (BETA, UNIFORM):
        atoms = law.risk_quantile((np.arange(1500) + 0.5) / 1500)
        for name, definition in DEFINITIONS.items():
            if name not in ("atkinson:2", "generalised_entropy:-1"):  # infinite, or nearly, for the uniform law
                assert true_values(law)[name] == pytest.approx(
                    float(definition(atoms, np.full(1500, 1 / 1500))), rel=0.01
                )


def misses(interval, truth):
    return interval.lower > truth + 1e-9 * (1 + abs(truth)) or interval.upper < truth - 1e-9 * (1 + abs(truth))


def failures_by_name(law, *, local, method, names, num_networks, num_clients=40, sizes=30, delta=0.2, seed=1):
    truth = true_values(ObservedLaw(law, sizes) if local == "observed" else law)

    def fails(risks):
        band = rb.band(risks, delta=delta, local=local)
        found = {name: misses(interval_of(band, name, method=method), truth[name]) for name in names}
        return found | {"any of them": any(found.values())}

    drawn = draw_networks(law, num_networks=num_networks, num_clients=num_clients, sizes=sizes, seed=seed)
    return failures(drawn, fails)


@pytest.mark.parametrize(
    "law",
    [BETA, *(pytest.param(law, marks=pytest.mark.slow) for law in (TWO_POINTS, UNIFORM))],
    ids=["beta", "two points", "uniform"],
)
def test_intervals_for_true_risks_hold(law):
    found = failures_by_name(law, local="marginal", method="convex_order", names=BOUNDED, num_networks=60)
    assert rejected(found, 0.2) == {}
    found = failures_by_name(law, local="marginal", method="sharp", names=QUANTILES, num_networks=60)
    assert rejected(found, 0.2) == {}


@pytest.mark.parametrize("law", [BETA, TWO_POINTS], ids=["beta", "two points"])
def test_intervals_for_measured_risks_hold(law):
    found = failures_by_name(law, local="observed", method="sharp", names=list(DEFINITIONS), num_networks=100, seed=2)
    assert rejected(found, 0.2) == {}


@pytest.mark.slow
@pytest.mark.parametrize("local", ["marginal", "counted", "union", "observed"])
@pytest.mark.parametrize("law", [BETA, TWO_POINTS, UNIFORM], ids=["beta", "two points", "uniform"])
def test_intervals_hold_in_larger_studies(law, local):
    for num_clients, sizes in ((30, 10), (200, 100)):
        found = failures_by_name(
            law, local=local, method="sharp", names=list(DEFINITIONS), num_networks=150, num_clients=num_clients,
            sizes=sizes, delta=0.1, seed=3,
        )  # fmt: skip
        assert rejected(found, 0.1) == {}


def test_measured_risks_read_as_true_risks():
    """Noise inflates every measure, so intervals for measured risks lie too high."""
    truth = true_values(BETA)
    found = {name: [] for name in ("gini", "atkinson:0.5", "hoover", "coefficient_of_variation", "mean_range:5")}
    for risks in draw_networks(BETA, num_networks=60, num_clients=200, sizes=10, seed=4):
        band = rb.band(risks, delta=0.1, local="observed")
        for name, missed in found.items():
            missed.append(misses(interval_of(band, name), truth[name]))
    assert set(rejected(found, 0.1)) == set(found)


def point_networks(law, *, num_networks, num_clients, seed=5):
    """Two-point risks known without noise: only the number of clients of the second kind matters.

    Every network that differs, and how many are like it.
    """
    counts = np.random.default_rng(seed).binomial(num_clients, law.weight, num_networks)
    for count, repeats in zip(*np.unique(counts, return_counts=True), strict=True):
        values = np.where(np.arange(num_clients) < count, law.high, law.low)
        yield rb.ClientRisks(values, 1), int(repeats)


def shifted_by_one(band):
    """[DC], Lemma 1 of the main text: the upper level of x_(i) is used up to x_(i+1)."""
    levels = berk_jones_levels(band.risks.num_clients, band.delta, "two").upper
    return replace(band, upper_points=np.sort(band.risks.values)[1:], upper_levels=levels[:-1])


def test_lemma_1_of_the_main_text_makes_the_gini_coefficient_fail():
    """Risks 0 and 1: the Gini coefficient is P(0), just above the level that should hold when two clients have risk 1.

    Off by one, that level is used when only one has: far more often than delta.
    """
    num_clients, delta = 40, 0.01
    weight = 1.0 - float(berk_jones_levels(num_clients, delta, "two").upper[-2]) - 1e-6
    law = TwoPointRisks(0.0, 1.0, weight)
    wrong, right = [], []
    for risks, repeats in point_networks(law, num_networks=3000, num_clients=num_clients):
        band = rb.band(risks, delta=delta, local="observed")
        right += repeats * [misses(interval_of(band, "gini"), 1.0 - weight)]
        wrong += repeats * [misses(interval_of(shifted_by_one(band), "gini"), 1.0 - weight)]
    assert is_rejected(wrong, delta)
    assert not is_rejected(right, delta)


def quantiles_are_missed(band):
    """Whether any quantile of the uniform law leaves its interval: the worst levels are those of the band's knots."""
    at = np.concatenate([band.lower_levels, np.nextafter(band.upper_levels, 1.0)])
    found = rb.quantile_certificate(band, level=at[(at > 0) & (at < 1)])
    truth = at[(at > 0) & (at < 1)]
    return bool(np.any(found.lower > truth + 1e-12) or np.any(found.value < truth - 1e-12))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["one-sided pair", "lemma 1"])
def test_quantile_intervals_of_wrong_bands_fail_together(mistake):
    """Two one-sided bounds at delta each, and Lemma 1: every quantile interval at once is what a band promises."""
    num_clients, delta = 60, 0.05
    rng = np.random.default_rng(6)
    wrong, right = [], []
    for _ in range(1500):
        risks = rb.ClientRisks(rng.random(num_clients), 1000, binary=False)
        band = rb.band(risks, delta=delta, local="observed")
        right.append(quantiles_are_missed(band))
        if mistake == "lemma 1":
            wrong.append(quantiles_are_missed(shifted_by_one(band)))
        else:
            sides = [rb.band(risks, delta=delta, local="observed", sides=side) for side in ("lower", "upper")]
            wrong.append(
                quantiles_are_missed(
                    replace(
                        band,
                        lower_points=sides[0].lower_points,
                        lower_levels=sides[0].lower_levels,
                        upper_points=sides[1].upper_points,
                        upper_levels=sides[1].upper_levels,
                    )
                )
            )
    assert is_rejected(wrong, delta)
    assert not is_rejected(right, delta)
