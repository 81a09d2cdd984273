"""Ground truth against second derivations: Monte Carlo, brute quadrature, Kummer's function, duality.

Statistical tests are seeded; over all seeds each would fail by chance with probability 1e-3.
"""

from __future__ import annotations

import ast
import math
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats

import benchmarks.ground_truth
from benchmarks.ground_truth import (
    AffineGaussian,
    BetaRisks,
    ContinuousLossRisks,
    MetaDistribution,
    TwoPointRisks,
    worst_case_probability,
)
from worlds.shifts import AffineShift

CONTINUOUS = [
    BetaRisks(3, 21),
    BetaRisks(0.5, 2),
    BetaRisks(2, 2),
    ContinuousLossRisks(2, 5),
    AffineGaussian(margin=2, sigma=0.3),
    AffineGaussian(margin=1, sigma=1),
]
LAWS = [*CONTINUOUS, TwoPointRisks(0.1, 0.4, weight=0.2)]
DIVERGENCES = ["kl", "chi2", "tv"]
BUDGETS = [0.02, 0.2, 0.8]
FALSE_ALARM = 1e-3

probabilities = st.floats(0, 1)
divergences = st.sampled_from(DIVERGENCES)
budgets = st.just(0.0) | st.floats(1e-6, 1)


@lru_cache
def discretised(law: MetaDistribution) -> tuple[np.ndarray, np.ndarray]:
    """Return a discrete law close to `law`: values, and the mass between neighbouring points of a fine grid."""
    steps = (1 - np.cos(np.linspace(0, np.pi, 50_001))) / 2
    grid = np.unique([low + (high - low) * steps for low, high in pairwise(law.breaks)])
    survival = law.survival(grid)
    values = np.append((grid[:-1] + grid[1:]) / 2, grid[-1])
    return values, np.append(-np.diff(survival), survival[-1])


@pytest.mark.parametrize("law", CONTINUOUS, ids=repr)
def test_drawn_risks_follow_the_cdf(law):
    true_risks, _ = law.draw(np.random.default_rng(0), num_clients=5000, num_examples=1)
    # Counts between thresholds; a threshold at ½ would meet rounding (see AffineGaussian).
    edges = np.array([*np.linspace(0, 0.49, 25), *np.linspace(0.51, 1, 25)])
    expected = 5000 * np.diff(law.risk_cdf(edges))
    observed = np.histogram(true_risks, edges)[0]
    large = expected >= 10
    pooled = [[*counts[large], 5000 - counts[large].sum()] for counts in (observed, expected)]
    if pooled[1][-1] < 10:
        pooled = [[*counts[:-2], counts[-2] + counts[-1]] for counts in pooled]
    assert stats.chisquare(*pooled).pvalue > FALSE_ALARM


def test_two_point_draws():
    law = TwoPointRisks(0.1, 0.4, weight=0.2)
    true_risks, _ = law.draw(np.random.default_rng(1), num_clients=5000, num_examples=1)
    assert set(true_risks) == {0.1, 0.4}
    assert stats.binomtest(int((true_risks == 0.4).sum()), 5000, 0.2).pvalue > FALSE_ALARM


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_empirical_risks_scatter_about_the_true_ones(law):
    sizes = np.random.default_rng(2).integers(20, 60, 4000)
    true_risks, empirical_risks = law.draw(np.random.default_rng(3), num_clients=4000, num_examples=sizes)
    variances = true_risks * (1 - true_risks) / sizes
    if isinstance(law, ContinuousLossRisks):
        variances /= law.loss_precision + 1
        assert not np.allclose(empirical_risks * sizes, np.round(empirical_risks * sizes))
    else:
        np.testing.assert_allclose(empirical_risks * sizes, np.round(empirical_risks * sizes), atol=1e-9)
    residuals = empirical_risks - true_risks
    limit = stats.norm.isf(FALSE_ALARM / 2)
    assert abs(residuals.sum() / np.sqrt(variances.sum())) < limit
    spread = residuals**2 - variances
    assert abs(spread.mean() / (spread.std() / np.sqrt(4000))) < limit


def test_the_affine_law_is_that_of_the_affine_shift_on_drawn_data():
    # The shift itself on the line, its risk by counting errors on drawn examples: no formula in common.
    law, rng, num_examples = AffineGaussian(margin=1.5, sigma=0.5), np.random.default_rng(4), 20_000
    y = np.where(rng.random(num_examples) < 0.5, -1, 1)
    x = (y * 1.5 + rng.normal(size=num_examples)).astype(np.float32)[:, None]
    shifts = [AffineShift(0.5).draw(rng, x_shape=(1,), num_classes=2) for _ in range(1000)]
    risks = np.array([np.mean(np.sign(shift.moved(x)[:, 0]) != y) for shift in shifts])
    thresholds = np.array([0.07, 0.08, 0.1, 0.15, 0.25, 0.4, 0.6])
    slack = 5 / np.sqrt(4 * num_examples)  # of the counted risks, whose sd is at most ½/√n
    observed = (risks[:, None] <= thresholds).mean(axis=0)
    limit = stats.norm.isf(FALSE_ALARM / (2 * len(thresholds))) / np.sqrt(4 * 1000)
    assert np.all(observed <= law.risk_cdf(thresholds + slack) + limit)
    assert np.all(observed >= law.risk_cdf(thresholds - slack) - limit)


@settings(max_examples=20, deadline=None)
@given(margin=st.floats(0.3, 3), sigma=st.floats(0.3, 2), x=st.floats(0.01, 0.99))
def test_the_wedge_probability_is_the_gaussian_integral(margin, sigma, x):
    law = AffineGaussian(margin=margin, sigma=sigma)

    def given_scale(a):  # μ{R ≤ x | A = a}: |B| on one side of a point found by bracketing
        scale = 1 + sigma * a
        risk = lambda b: float(law.client_risk(scale, b)) - x  # noqa: E731
        start, end = risk(0.0), risk(1e3 * (1 + abs(scale)))
        if np.sign(start) == np.sign(end):
            return float(start <= 0)
        point = optimize.brentq(risk, 0, 1e3 * (1 + abs(scale)))
        within = 2 * special.ndtr(point / sigma) - 1
        return within if start <= 0 else 1 - within

    brute = sum(
        integrate.quad(lambda a: given_scale(a) * stats.norm.pdf(a), low, high, limit=100, epsabs=1e-7)[0]
        for low, high in ((-9, -1 / sigma), (-1 / sigma, 9))
        if low < high
    )
    assert float(law.risk_cdf(x)) == pytest.approx(brute, abs=1e-5)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_cdf_survival_and_quantile_agree(law):
    x = np.linspace(0, 1, 101)
    cdf, survival = law.risk_cdf(x), law.survival(x)
    assert np.all(np.diff(cdf) >= 0)
    assert cdf[-1] == 1
    assert survival[0] == 1
    if law in CONTINUOUS:
        np.testing.assert_allclose(cdf + survival, 1)
        p = np.linspace(0.01, 0.99, 50)
        p = p[np.abs(law.risk_quantile(p) - 0.5) > 1e-9]  # AffineGaussian: there x has too few digits
        np.testing.assert_allclose(law.risk_cdf(law.risk_quantile(p)), p, atol=1e-9)
    else:
        np.testing.assert_allclose(law.risk_cdf([0.1, 0.2, 0.4]), [0.8, 0.8, 1])
        np.testing.assert_allclose(law.survival([0.1, 0.2, 0.4, 0.41]), [1, 0.2, 0.2, 0])
        np.testing.assert_allclose(law.risk_quantile([0, 0.8, 0.81, 1]), [0.1, 0.1, 0.4, 0.4])


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_mean_risk(law):
    values, masses = discretised(law)
    assert law.mean_risk() == pytest.approx(masses @ values, abs=1e-8)


def test_mean_risk_by_quadrature_of_the_survival_function():
    law = BetaRisks(0.5, 2)
    assert super(BetaRisks, law).mean_risk() == pytest.approx(0.2, abs=1e-12)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("law", LAWS, ids=repr)
class TestWorstCaseMean:
    """Each optimum against its dual, an upper bound that is attained (math: strong duality)."""

    def test_kl(self, law, budget):
        values, masses = discretised(law)

        def dual(log_multiplier):
            multiplier = math.exp(log_multiplier)
            tilted = masses @ np.exp((values - values[-1]) / multiplier)
            return values[-1] + multiplier * (budget + math.log(tilted))

        bound = optimize.minimize_scalar(dual, bounds=(-6, 4), method="bounded", options={"xatol": 1e-7}).fun
        assert law.worst_case_mean("kl", budget) == pytest.approx(bound, abs=1e-7)

    def test_chi2(self, law, budget):
        values, masses = discretised(law)

        def dual(kappa):
            return kappa + math.sqrt((1 + budget) * (masses @ np.maximum(values - kappa, 0) ** 2))

        bound = optimize.minimize_scalar(dual, bounds=(-40, 1), method="bounded", options={"xatol": 1e-8}).fun
        assert law.worst_case_mean("chi2", budget) == pytest.approx(bound, abs=1e-7)

    def test_tv(self, law, budget):
        values, masses = discretised(law)
        moved = np.clip(budget - (np.cumsum(masses) - masses), 0, masses)  # the lowest `budget` of the mass
        expected = (masses - moved) @ values + budget * values[-1]
        assert law.worst_case_mean("tv", budget) == pytest.approx(expected, abs=1e-7)


def test_worst_case_means_in_closed_form():
    # Uniform risks, small budget: χ² shifts the mean by sqrt(budget·variance), TV by budget·(1 − budget/2).
    uniform = BetaRisks(1, 1)
    assert uniform.worst_case_mean("chi2", 0.1) == pytest.approx(0.5 + math.sqrt(0.1 / 12), abs=1e-9)
    assert uniform.worst_case_mean("tv", 0.1) == pytest.approx(0.5 + 0.1 - 0.1**2 / 2, abs=1e-9)
    # KL by Kummer's function: E e^{θR} = 1F1(a; a + b; θ), at the budget that θ = 5 uses up.
    a, b, theta = 3, 21, 5.0
    mean = a / (a + b) * special.hyp1f1(a + 1, a + b + 1, theta) / special.hyp1f1(a, a + b, theta)
    budget = theta * mean - math.log(special.hyp1f1(a, a + b, theta))
    assert BetaRisks(a, b).worst_case_mean("kl", budget) == pytest.approx(mean, abs=1e-8)


@given(p=probabilities, budget=st.floats(0, 3))
def test_worst_case_probabilities_in_closed_form(p, budget):
    inside = 0 < p < 1
    chi2 = min(1, p + math.sqrt(budget * p * (1 - p)))
    assert float(worst_case_probability(p, "chi2", budget)) == pytest.approx(chi2, abs=1e-7)
    tv = min(1, p + budget) if inside else p
    assert float(worst_case_probability(p, "tv", budget)) == pytest.approx(tv, abs=1e-9)


@given(p=st.floats(0.001, 0.999), budget=st.floats(0.001, 3))
def test_the_worst_case_probability_under_kl_uses_up_the_budget(p, budget):
    q = float(worst_case_probability(p, "kl", budget))
    if q == 1:
        assert -math.log(p) <= budget
    else:
        assert stats.entropy([q, 1 - q], [p, 1 - p]) == pytest.approx(budget, abs=1e-6)


@given(divergence=divergences, budget=budgets, more=budgets, law=st.sampled_from(LAWS))
@settings(max_examples=40, deadline=None)
def test_worst_cases_grow_with_the_budget_from_the_plain_values(divergence, budget, more, law):
    thresholds = np.linspace(0, 1, 11)
    assert law.worst_case_mean(divergence, 0) == pytest.approx(law.mean_risk())
    np.testing.assert_array_equal(law.worst_case_survival(thresholds, divergence, 0), law.survival(thresholds))
    small, large = law.worst_case_mean(divergence, budget), law.worst_case_mean(divergence, budget + more)
    assert law.mean_risk() - 1e-9 <= small <= large + 1e-9 <= law.breaks[-1] + 2e-9
    curve = law.worst_case_survival(thresholds, divergence, budget)
    assert np.all(curve <= law.worst_case_survival(thresholds, divergence, budget + more) + 1e-9)
    assert np.all(np.diff(curve) <= 1e-9)
    # E' R = ∫ μ'{R ≥ t} dt, and each ordinate is at most the worst case for its own threshold.
    grid = np.linspace(0, 1, 401)
    assert small <= law.worst_case_survival(grid, divergence, budget).mean() + 2 / 401


def test_a_network_is_decided_by_the_generator():
    for law in LAWS:
        one, other = (law.draw(np.random.default_rng(5), num_clients=9, num_examples=4) for _ in range(2))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BetaRisks(0, 1), "a must be .*> 0, got 0; see"),
        (lambda: BetaRisks(1, math.inf), "b must be"),
        (lambda: ContinuousLossRisks(1, 1, loss_precision=-1), "loss_precision must be"),
        (lambda: TwoPointRisks(0.4, 0.1, weight=0.5), "0 <= low < high <= 1, got 0.4 and 0.1; swap"),
        (lambda: TwoPointRisks(0.1, 0.4, weight=1), r"weight must be in \(0, 1\), got 1; it is"),
        (lambda: AffineGaussian(margin=0, sigma=1), "margin must be"),
        (lambda: AffineGaussian(margin=1, sigma=0.1), "sigma must be .*>= 0.2, got 0.1; give"),
    ],
)
def test_wrong_laws(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("num_examples", [0, 2.5, [1, 2], [], "5", [1, 0, 1], True])
def test_wrong_numbers_of_examples(num_examples):
    with pytest.raises(ValueError, match=r"num_examples must be whole numbers of at least 1.*; each client"):
        BetaRisks(1, 1).draw(np.random.default_rng(0), num_clients=3, num_examples=num_examples)


def test_wrong_arguments():
    law, rng = BetaRisks(3, 21), np.random.default_rng(0)
    with pytest.raises(ValueError, match="num_clients must be"):
        law.draw(rng, num_clients=0, num_examples=1)
    for divergence, budget, message in [
        ("hellinger", 0.1, "divergence must be one of kl, chi2, tv, got 'hellinger'; choose"),
        ("kl", -0.1, "budget must be .*>= 0, got -0.1; 0 means"),
        ("chi2", math.nan, "budget must be"),
        ("kl", 1e3, "budget must leave more .* got 1000; .* smaller one"),
        ("chi2", 1e300, "budget must leave more"),
    ]:
        with pytest.raises(ValueError, match=message):
            law.worst_case_mean(divergence, budget)
    for other in LAWS:
        with pytest.raises(ValueError, match=r"p must be in \[0, 1\]"):
            other.risk_quantile(50)


def test_the_truth_does_not_come_from_the_code_under_test():
    nodes = ast.walk(ast.parse(Path(benchmarks.ground_truth.__file__).read_text()))
    imported = [
        name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
    ]
    assert not [name for name in imported if name.split(".")[0] == "riskband"]
