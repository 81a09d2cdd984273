"""Joint bands and the Gini correlation against closed forms, counting, and exact enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

import riskband as rb
from papers.dispersion.gini_correlation import _Differences, gini_correlation, measured_gini_correlation
from papers.dispersion.joint_answers import JointRisks
from papers.dispersion.joint_bands import JointLevels, joint_band, joint_cdf
from riskband.functionals.pairs import Pairs


def answers(num_clients=80, num_losses=2, num_examples=200, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.beta(2, 8, (num_clients, 1))
    rates = np.clip(shared + rng.uniform(-0.1, 0.3, (num_clients, num_losses)), 0, 1)
    return JointRisks(rng.binomial(num_examples, rates) / num_examples, num_examples)


RISKS = answers()
BAND = joint_band(RISKS, delta=0.1)
POINTS = np.array([[0.1, 0.1], [0.3, 0.2], [0.25, 0.4], [0.9, 0.3], [1.0, 0.2], [0.0, 1.0]])


def test_levels_of_the_dkw_inequality_in_closed_form():
    """Fixing one coordinate leaves K - 1 values and a union over K thresholds (K + 1 from above)."""
    num_clients, delta = 50, 0.1
    levels = JointLevels.of_settings(num_clients=num_clients, num_losses=2, delta=delta, method="dkw")
    count = np.arange(num_clients + 1)
    below = (count - 1) / 49 - np.sqrt(np.log(50 / 0.05) / (2 * 49))
    above = np.minimum(count / 49 + np.sqrt(np.log(51 / 0.05) / (2 * 49)), 1)
    assert levels.lower == pytest.approx(np.maximum(below, 0))
    assert levels.upper[:49] == pytest.approx(above[:49])
    assert np.all(levels.upper[49:] == 1)
    three = JointLevels.of_settings(num_clients=num_clients, num_losses=3, delta=delta, method="dkw")
    assert three.lower[50] == pytest.approx(1 - np.sqrt(np.log(50**2 / 0.05) / (2 * 48)))


def test_observed_bounds_by_counting():
    band = joint_band(RISKS, delta=0.1, local="observed", method="dkw")
    single = [rb.band(loss, delta=0.025, local="observed", method="dkw") for loss in RISKS.losses]
    levels = JointLevels.of_settings(num_clients=80, num_losses=2, delta=0.05, method="dkw")
    for point in POINTS:
        count = sum(all(a <= b for a, b in zip(row, point, strict=True)) for row in RISKS.values.tolist())
        sides = [(float(b.lower(x)), float(b.upper(x))) for b, x in zip(single, point, strict=True)]
        lower = max(levels.lower[count], sides[0][0] + sides[1][0] - 1)
        upper = min(levels.upper[count], sides[0][1], sides[1][1])
        assert float(band.lower(point)) == pytest.approx(lower)
        assert float(band.upper(point)) == pytest.approx(upper)


def test_means_in_float32_are_counted_at_their_thresholds():
    """1/3 in float32 is above 1/3: with 30 of 60 clients there, P(both <= 1/3) was bounded by .19."""
    exact = np.repeat([[1 / 3, 1 / 3], [2 / 3, 2 / 3]], 30, axis=0)
    found = [
        joint_cdf(joint_band(JointRisks(values, 3), delta=0.05, local="observed"), thresholds=exact[::30])
        for values in (exact, exact.astype(np.float32))
    ]
    assert found[0].value[0] > 0.5
    assert found[1].value.tolist() == found[0].value.tolist()
    assert found[1].lower.tolist() == found[0].lower.tolist()
    assert found[1].details["measured"].tolist() == [0.5, 1.0]


def test_the_joint_part_and_the_single_losses_are_each_best_somewhere():
    single = np.stack([b.lower(x) for b, x in zip(BAND.marginals, POINTS.T, strict=True)])
    frechet = np.maximum(single.sum(axis=0) - 1, 0)
    assert np.any(BAND.lower(POINTS) > frechet + 1e-6)
    assert np.any(BAND.lower(POINTS) == frechet)


def test_three_losses_and_grids_of_points():
    band = joint_band(answers(num_losses=3), delta=0.1, local="observed")
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 5)] * 3, indexing="ij"), axis=-1)
    lower, upper = band.lower(grid), band.upper(grid)
    assert lower.shape == (5, 5, 5)
    assert np.all(lower <= upper)
    assert lower[-1, -1, -1] == upper[-1, -1, -1] == 1.0
    for axis in range(3):
        assert np.all(np.diff(lower, axis=axis) >= 0)
        assert np.all(np.diff(upper, axis=axis) >= 0)


LAWS = [{(0.1, 0.3): 0.5, (0.4, 0.2): 0.3, (0.6, 0.7): 0.2}, {(0.5, 0.5): 1.0}, {(0.25, 0.4): 1.0}]


@pytest.mark.parametrize("law", LAWS)
def test_limits_of_several_losses_cost_one_error_below_and_all_above(law):
    """The step from limits to true risks, summed exactly over binomial answers that share all randomness or none."""
    n, eta = 12, 0.2
    measured = rb.ClientRisks(np.arange(n + 1) / n, n)
    upper, lower = measured.upper_limits(eta), measured.lower_limits(eta)
    single_error_is_enough = []
    for point in (*itertools.product(np.linspace(0.02, 0.98, 25), repeat=2), *law):
        truth = sum(mass for risks, mass in law.items() if risks[0] <= point[0] and risks[1] <= point[1])
        for is_shared in (False, True):
            of_upper = sum(m * inside(upper, n, r, point, is_shared) for r, m in law.items())
            of_lower = sum(m * inside(lower, n, r, point, is_shared) for r, m in law.items())
            exact = replace(BAND, levels=JointLevels(np.array([of_upper]), np.array([of_lower])))
            assert exact.joint_lower(np.array(0), eta) <= truth + 1e-12
            assert truth <= exact.joint_upper(np.array(0), eta) + 1e-12
            single_error_is_enough.append(truth <= of_lower / (1 - eta) + 1e-12)
    assert all(single_error_is_enough) == (law == LAWS[0])  # the negative control: 1 - eta for both losses fails


def inside(limits, n, risks, point, is_shared):
    """P(both limits are at or below the point): limits grow with the number of wrong answers."""
    first, second = (binom.cdf(np.sum(limits <= x) - 1, n, r) for x, r in zip(point, risks, strict=True))
    return min(first, second) if is_shared else first * second


def test_one_error_level_serves_unequal_sizes():
    risks = JointRisks(RISKS.values, np.where(np.arange(80) < 40, 200, 400))
    band = joint_band(risks, delta=0.1)
    assert band.eta == 0.02
    assert np.all(band.lower(POINTS) <= band.upper(POINTS))
    assert BAND.eta == "every"


def pairwise(values, weights):
    """E[(X - X') sign(Y - Y')] / E|X - X'| in rational arithmetic."""
    top = bottom = Fraction(0)
    for ((x, y), p), ((u, v), q) in itertools.product(zip(values, weights, strict=True), repeat=2):
        top += p * q * (x - u) * ((y > v) - (y < v))
        bottom += p * q * abs(x - u)
    return top / bottom


def test_the_definition_is_a_ratio_of_covariances_with_half_of_each_atom():
    """[DC] example 9; with the whole of an atom in F_Y(Y), as written there, laws with atoms get another number."""
    values = [(Fraction(1, 4), Fraction(1, 2)), (Fraction(1, 2), Fraction(1, 2)), (Fraction(1), Fraction(3, 4))]
    weights = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]

    def covariance(ranked, half):
        cdf = [
            sum(q for v, q in zip(values, weights, strict=True) if v[ranked] < r[ranked])
            + half * sum(q for v, q in zip(values, weights, strict=True) if v[ranked] == r[ranked])
            for r in values
        ]
        mean_x = sum(p * v[0] for v, p in zip(values, weights, strict=True))
        return sum(p * (v[0] - mean_x) * f for v, p, f in zip(values, weights, cdf, strict=True))

    half = covariance(1, Fraction(1, 2)) / covariance(0, Fraction(1, 2))
    assert half == pairwise(values, weights)
    assert covariance(1, 1) / covariance(0, 1) != half
    copies = [v for v, p in zip(values, weights, strict=True) for _ in range(int(6 * p))]
    assert measured_gini_correlation(JointRisks(np.array(copies, dtype=float), 4)) == pytest.approx(float(half))


def test_measured_gini_correlation_by_pairs():
    rows = [(Fraction(str(a)), Fraction(str(b))) for a, b in RISKS.values.round(3).tolist()]
    truth = pairwise(rows, [Fraction(1, 80)] * 80)
    assert measured_gini_correlation(RISKS) == pytest.approx(float(truth), abs=1e-12)
    assert measured_gini_correlation(JointRisks(np.full((4, 2), 0.5), 2)) == 0.0


@pytest.mark.parametrize(("sign", "truth"), [(1, 1.0), (-1, -1.0)])
def test_risks_that_move_together_or_apart(sign, truth):
    x = np.random.default_rng(1).random(600)
    risks = JointRisks(np.stack([x, 0.5 + sign * (x**2) / 2.5], axis=1), 10**9)
    for local in ("observed", "marginal"):
        found = gini_correlation(risks, delta=0.05, local=local)
        assert found.lower <= truth <= found.value
        assert found.value - found.lower < 0.25


@pytest.mark.parametrize("value", [-0.9, -0.3, 0.0, 0.4, 0.9])
def test_gains_from_limits_are_not_above_the_true_ones_on_average(value):
    """Two clients whose second risks are 0.6 and 0.3, measured on 12 examples; the first ones are known."""
    n, eta = 12, 0.01
    loss = rb.ClientRisks(np.arange(n + 1) / n, n)
    low, high = loss.lower_limits(eta), loss.upper_limits(eta)
    chance = binom.pmf(np.arange(n + 1)[:, None], n, 0.6) * binom.pmf(np.arange(n + 1), n, 0.3)
    for first_risk in (0.1, 0.7):
        gap = np.full((n + 1, n + 1), first_risk - 0.4)
        limits = (low[:, None] - high, high[:, None] - low)
        pairs = _Differences(Pairs.of(np.zeros(2), np.ones(2)), (gap, gap), limits, slack=16 * eta)
        truth = gap[0, 0] - value * abs(gap[0, 0])  # the first client has the larger second risk
        assert np.sum(chance * pairs.gains(value)) <= truth
        assert np.sum(chance * pairs.reversed().gains(value)) <= -gap[0, 0] - value * abs(gap[0, 0])
        clear = pairs.gains(value)[-1, 0] + 16 * eta  # 12 of 12 wrong against 0 of 12: nothing is left open
        assert clear == pytest.approx(truth)


def test_nothing_is_said_where_nothing_varies():
    constant = JointRisks(np.full((50, 2), 0.5), 100)
    for local in ("observed", "marginal"):
        found = gini_correlation(constant, delta=0.05, local=local)
        assert (found.lower, found.value) == pytest.approx((-1.0, 1.0), abs=1e-9)


CERTIFICATES = {
    "point": lambda: joint_cdf(BAND, thresholds=[0.3, 0.2]),
    "curve": lambda: joint_cdf(BAND, thresholds=POINTS),
    "three": lambda: joint_cdf(joint_band(answers(num_losses=3), delta=0.2), thresholds=[0.3, 0.3, 0.4]),
    "observed": lambda: joint_cdf(joint_band(RISKS, delta=0.1, local="observed"), thresholds=[0.3, 0.2]),
    "gini correlation": lambda: gini_correlation(RISKS, delta=0.1, local="observed"),
    "of true risks": lambda: gini_correlation(RISKS, delta=0.1, eta=1e-3),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_the_same_answers_give_the_same_bytes(name):
    certificate = CERTIFICATES[name]()
    text = certificate.to_json()
    assert rb.Certificate.from_json(text).to_json() == text
    assert CERTIFICATES[name]().to_json() == text


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: JointRisks([0.1, 0.2], 10), "shape .num_clients, num_losses."),
        (lambda: JointRisks([[0.1], [0.2]], 10), "at least 2 losses"),
        (lambda: JointRisks([[0.1, "x"], [0.2, 0.3]], 10), "must be numbers"),
        (lambda: JointRisks([[0.1, np.nan], [0.2, 0.3]], 10), "must not be NaN"),
        (lambda: JointRisks([[0.1, 1.3], [0.2, 0.3]], 10), r"must lie in \[0, 1\]"),
        (lambda: JointRisks([[0.1, 0.3], [0.2, 0.3]], 10, binary=[True]), "one entry per loss"),
        (lambda: joint_band(RISKS, delta=0.0), "delta must be in"),
        (lambda: joint_band(RISKS, delta=0.1, local="union"), "marginal, observed"),
        (lambda: joint_band(RISKS, delta=0.1, method="ks"), "berk_jones, dkw"),
        (lambda: joint_band(RISKS, delta=0.1, eta=0.7), "eta must be in"),
        (lambda: joint_band(RISKS, delta=0.1, marginal_share=1.0), "marginal_share must be in"),
        (lambda: joint_band(RISKS, delta=0.1, marginal_share=np.nan), "marginal_share must be in"),
        (lambda: joint_band(JointRisks([[0.1, 0.2]] * 2, 10), delta=0.1), "at least 3 clients"),
        (lambda: BAND.lower([0.1]), r"shape \(..., 2\)"),
        (lambda: BAND.upper([0.1, 1.2]), r"must lie in \[0, 1\]"),
        (lambda: joint_cdf(BAND, thresholds=np.zeros((2, 2, 2))), "a list of points"),
        (lambda: joint_cdf(BAND, thresholds=[np.nan, 0.1]), r"must lie in \[0, 1\]"),
        (lambda: gini_correlation(answers(num_losses=3), delta=0.1), "needs 2 losses, got 3"),
        (lambda: gini_correlation(RISKS, delta=2), "delta must be in"),
        (lambda: gini_correlation(RISKS, delta=0.1, eta=0.1), r"eta must be in \(0, 0.01\]"),
        (lambda: gini_correlation(RISKS, delta=0.1, local="counted"), "marginal, observed"),
    ],
)
def test_wrong_input_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_many_clients_that_come_sorted_by_a_risk_have_no_order_to_be_paired_in():
    values = np.random.default_rng(0).random((600, 2))
    for column in (0, 1):
        ordered = JointRisks(values[np.argsort(values[:, column])], 10, binary=[False, False])
        with pytest.raises(ValueError, match="must come in an order that says nothing"):
            gini_correlation(ordered, delta=0.1, local="observed")
    assert gini_correlation(JointRisks(values, 10, binary=[False, False]), delta=0.1).value <= 1.0
