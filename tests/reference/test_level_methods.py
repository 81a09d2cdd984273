"""Truncated and tuned levels against closed forms, brute force, finite differences and scipy's own optimisers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import comb
from scipy.stats import beta, binom

import riskband as rb
from riskband.bands.crossing import crossing_gradient, crossing_probability
from riskband.bands.levels import berk_jones_levels, truncated_levels
from riskband.bands.pilots import Pilot, _chance_of_inclusion
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.weights import interval_weight, smoothed_median_weight, tail_weight
from riskband.tuning import LevelProblem


def kept_ranks(num_values, low, high):
    return [i for i in range(1, num_values + 1) if low <= i / num_values <= high]


@pytest.mark.parametrize("sides", ["lower", "upper", "two"])
@pytest.mark.parametrize("num_values", [2, 30, 200])
def test_truncation_to_everything_is_berk_jones_exactly(num_values, sides):
    for ours, theirs in zip(
        truncated_levels(num_values, 0.07, sides, low=0.0, high=1.0),
        berk_jones_levels(num_values, 0.07, sides),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rank", [1, 7, 20])
def test_one_order_statistic_alone_has_its_beta_quantile(rank):
    levels = truncated_levels(20, 0.05, "lower", low=(rank - 0.5) / 20, high=(rank + 0.5) / 20 if rank < 20 else 1.0)
    expected = np.where(np.arange(1, 21) >= rank, beta.ppf(0.05, rank, 21 - rank), 0.0)
    np.testing.assert_allclose(levels.lower, expected, rtol=1e-8)


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.95), (0.0, 0.4), (0.31, 1.0)])
def test_truncated_levels_hold_as_often_as_they_say(low, high):
    """By simulation of the reduced event itself: the kept order statistics against beta quantiles."""
    num_values, delta, num_draws = 23, 0.1, 200_000
    ordered = np.sort(np.random.default_rng(1).random((num_draws, num_values)), axis=1)
    kept = np.array(kept_ranks(num_values, low, high))
    levels = truncated_levels(num_values, delta, "lower", low=low, high=high).lower
    tails = beta.cdf(levels[kept - 1], kept, num_values + 1 - kept)
    np.testing.assert_allclose(tails, tails[0], rtol=1e-9)  # Berk-Jones inside
    failures = np.any(ordered[:, kept - 1] < levels[kept - 1], axis=1)
    assert failures.mean() == pytest.approx(delta, abs=5.0 * np.sqrt(delta / num_draws))
    assert np.all(levels[: kept[0] - 1] == 0.0)
    assert np.all(levels[kept[-1] :] == levels[kept[-1] - 1])


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.95), (0.0, 0.4), (0.31, 1.0)])
def test_upper_levels_are_kept_where_the_empirical_cdf_before_them_is_in_the_range(low, high):
    num_values, delta, num_draws = 23, 0.1, 200_000
    ordered = np.sort(np.random.default_rng(2).random((num_draws, num_values)), axis=1)
    kept = np.array([i for i in range(1, num_values + 1) if low <= (i - 1) / num_values <= high])
    one, two = (truncated_levels(num_values, delta, sides, low=low, high=high) for sides in ("upper", "two"))
    failures = np.any(ordered[:, kept - 1] > one.upper[kept - 1], axis=1)
    assert failures.mean() == pytest.approx(delta, abs=5.0 * np.sqrt(delta / num_draws))
    joint = np.any(ordered > two.upper, axis=1) | np.any(ordered < two.lower, axis=1)
    assert joint.mean() == pytest.approx(delta, abs=5.0 * np.sqrt(delta / num_draws))
    assert np.all(one.upper[kept[-1] :] == 1.0)
    assert np.all(one.upper[: kept[0] - 1] == one.upper[kept[0] - 1])
    # Reflecting the values swaps the sides.
    reflected = truncated_levels(num_values, delta, "lower", low=1.0 - high, high=1.0 - low).lower
    np.testing.assert_allclose(one.upper, 1.0 - reflected[::-1], atol=1e-12)


def test_a_shorter_range_has_higher_levels_in_it():
    whole = berk_jones_levels(100, 0.01, "lower").lower
    part = truncated_levels(100, 0.01, "lower", low=0.5, high=0.9).lower
    assert np.all(part[49:90] > whole[49:90])


def numeric_derivative(function, points, index, *, width=1e-6):
    """Central difference in one coordinate, keeping the coordinates in order by a running maximum."""
    moved = []
    for change in (width, -width):
        shifted = points.copy()
        shifted[index] += change
        moved.append(function(np.maximum.accumulate(shifted)))
    return (moved[0] - moved[1]) / (2.0 * width)


@pytest.mark.parametrize("num_values", [1, 2, 5, 40, 300])
@pytest.mark.parametrize("is_two_sided", [False, True])
def test_the_gradient_matches_finite_differences(num_values, is_two_sided):
    start = berk_jones_levels(num_values, 0.3, "two")
    lower = start.lower * np.linspace(0.9, 1.0, num_values)
    upper = start.upper if is_two_sided else None
    found = crossing_gradient(lower, upper)
    assert found.probability == pytest.approx(crossing_probability(lower, upper), abs=1e-13)
    for i in range(0, num_values, max(1, num_values // 7)):
        by_lower = numeric_derivative(lambda a: crossing_probability(a, upper), lower, i)
        assert found.lower[i] == pytest.approx(by_lower, rel=1e-5, abs=1e-6)
        if is_two_sided:  # reflected, so that a running maximum keeps the order
            by_upper = numeric_derivative(
                lambda a: crossing_probability(lower, 1.0 - a[::-1]), 1.0 - upper[::-1], num_values - 1 - i
            )
            assert found.upper[i] == pytest.approx(-by_upper, rel=1e-5, abs=1e-6)


def test_the_gradient_is_the_density_of_an_order_statistic_where_only_one_is_bound():
    """P(U_(i) >= a) has the derivative -beta density, and what hides below a running maximum costs nothing."""
    lower = np.array([0.0, 0.0, 0.0, 0.4, 0.4, 0.4])
    found = crossing_gradient(lower)
    np.testing.assert_allclose(found.lower, [0, 0, 0, -beta.pdf(0.4, 4, 3), 0, 0], rtol=1e-12)


def lower_problem(gaps, cumulative, delta):
    return LevelProblem(np.asarray(gaps)[None, :], cumulative, delta, "lower")


@pytest.mark.parametrize("delta", [0.3, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_for_the_mean_it_is_scipys_constrained_optimum(seed, delta):
    """The problem is convex; SLSQP with the iterated integral as the probability of four values is the reference."""
    gaps = np.random.default_rng(seed).uniform(0.05, 1.0, 4)
    reference = minimize(
        lambda a: -gaps @ a,
        berk_jones_levels(4, delta, "lower").lower,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 4,
        constraints={"type": "ineq", "fun": lambda a: four_values(np.maximum.accumulate(a)) - (1.0 - delta)},
        options={"maxiter": 500, "ftol": 1e-9},  # below that, its numerical slopes are noise and the search may stall
    )
    assert reference.success
    found = lower_problem(gaps, lambda p: p, delta).best_levels().lower
    assert gaps @ found == pytest.approx(-reference.fun, abs=2e-5)


def four_values(a):
    """P(U_(i) >= a_i, i <= 4): the iterated integral over ordered values, by polynomials."""
    density = np.polynomial.Polynomial([1.0])
    for bound in a:
        density = density.integ(lbnd=bound)
    return 24.0 * density(1.0)


@pytest.mark.parametrize("delta", [0.2, 0.02])
def test_two_values_against_every_pair_of_levels(delta):
    """Brute force: the constraint (1 - a)² - (b - a)² = 1 - delta gives b for every a on a fine grid."""
    a = np.linspace(0.0, 1.0 - np.sqrt(1.0 - delta), 200_001)
    b = a + np.sqrt(np.maximum((1.0 - a) ** 2 - (1.0 - delta), 0.0))
    for gaps in ([0.2, 0.8], [0.9, 0.1], [0.5, 0.5]):
        for cumulative in (lambda p: p, lambda p: p**2):
            best = np.max(gaps[0] * cumulative(a) + gaps[1] * cumulative(np.maximum(a, b)))
            found = lower_problem(gaps, cumulative, delta).best_levels().lower
            assert np.dot(gaps, cumulative(found)) == pytest.approx(best, abs=5e-6)


@pytest.mark.parametrize("num_values", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_for_one_quantile_it_binds_the_order_statistic_that_the_binomial_law_names(num_values):
    """The smallest i with P(U_(i) >= p) >= 1 - delta bounds the p-quantile; a narrow weight must find it."""
    delta, level, width = 0.05, 0.5, 2e-3
    best = next(i for i in range(1, num_values + 1) if binom.cdf(i - 1, num_values, level) >= 1.0 - delta)
    weight = smoothed_median_weight(width)
    method = rb.OptimisedLevels(RiskDistribution.of_values(np.linspace(0.0, 1.0, 20_001)), weight)
    levels = method.levels(num_values, delta, "lower").lower
    assert np.searchsorted(levels, level) + 1 in (best, best + 1)  # the weight is not a point


@pytest.mark.parametrize("sides", ["lower", "upper", "two"])
@pytest.mark.parametrize(
    ("num_values", "delta"), [(2, 0.4), (60, 0.01), pytest.param(150, 0.9, marks=pytest.mark.slow)]
)
def test_tuned_levels_hold_exactly_and_are_never_worse_than_berk_jones_on_the_pilot(num_values, delta, sides):
    pilot = np.random.default_rng(3).beta(0.4, 2.0, 80)
    method = rb.OptimisedLevels(pilot, {"cvar:0.75": 1.0, "interval:0.5:0.9": 2.0})
    found, start = method.levels(num_values, delta, sides), berk_jones_levels(num_values, delta, sides)
    lower = np.zeros(num_values) if found.lower is None else found.lower
    assert 0.0 <= crossing_probability(lower, found.upper) - (1.0 - delta) < 1e-8
    expected = Pilot.of_values(pilot).expected_values(num_values)
    slack = []
    for levels in (found, start):
        lost = 0.0
        for weight, factor in ((tail_weight(0.75), 1.0), (interval_weight(0.5, 0.9), 2.0)):
            lost += factor * loss_of(levels, weight.cumulative, expected) / loss_of(start, weight.cumulative, expected)
        slack.append(lost)
    assert slack[0] <= slack[1] + 0.03  # the mean has a share of one percent


def loss_of(levels, cumulative, expected):
    """What the sides lose against the expected quantile function, straight from its definition."""
    ranks, lost = np.arange(1, expected.size + 1) / expected.size, 0.0
    if levels.lower is not None:
        lost += np.diff(expected, append=1.0) @ (cumulative(ranks) - cumulative(levels.lower))
    if levels.upper is not None:
        lost += np.diff(expected, prepend=0.0) @ (cumulative(levels.upper) - cumulative(ranks - 1.0 / expected.size))
    return lost


def test_the_middle_of_two_valid_levels_is_valid():
    """The probability is log-concave in the levels (Prékopa): why the search cannot stop at a poor optimum."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        first, second = (np.sort(rng.random(12)) * rng.uniform(0.2, 0.9) for _ in range(2))
        middle = crossing_probability((first + second) / 2)
        assert middle**2 >= crossing_probability(first) * crossing_probability(second) * (1.0 - 1e-9)


def test_expected_values_of_a_law_are_the_means_of_its_order_statistics():
    law = RiskDistribution(np.array([0.1, 0.3, 0.8]), np.array([0.5, 0.9, 1.0]))
    drawn = np.sort(np.random.default_rng(5).choice(law.risks, size=(200_000, 7), p=law.weights), axis=1)
    found = Pilot.of_distribution(law.risks, law.levels).expected_values(7)
    np.testing.assert_allclose(found, drawn.mean(axis=0), atol=5 * 0.4 / np.sqrt(200_000))
    uniform = Pilot.of_distribution(np.linspace(0.0, 1.0, 100_001), np.linspace(0.0, 1.0, 100_001))
    np.testing.assert_allclose(uniform.expected_values(9), np.arange(1, 10) / 10, atol=1e-5)


def test_the_chance_of_inclusion_is_that_of_dealing_answers_at_random():
    distinct = {f"value {i}": 1 for i in range(10)}
    part = dict(list(distinct.items())[:4])  # four pairs of equal answers must be dealt one to each side, six stay
    expected = 2**4 / comb(14, 4)
    assert _chance_of_inclusion(Counter(part), Counter(distinct)) == pytest.approx(expected, rel=1e-9)
    rng, pool = np.random.default_rng(6), np.array([0] * 9 + [1] * 3)
    dealt = np.array([rng.permutation(pool) for _ in range(40_000)])
    ones = dealt[:, :4].sum(axis=1)
    simulated = np.mean((ones <= 3 - ones) & (4 - ones <= 9 - (4 - ones)))
    found = _chance_of_inclusion(Counter({0: 3, 1: 1}), Counter({0: 6, 1: 2}))
    assert found == pytest.approx(simulated, abs=5 * 0.5 / np.sqrt(40_000))


def test_the_calibration_of_a_range_in_closed_form_for_two_of_three():
    """K = 3, ranks 2 and 3: P(U_(2) >= a, U_(3) >= b) by integrating the joint density."""
    delta = 0.1
    levels = truncated_levels(3, delta, "lower", low=0.5, high=1.0).lower

    def covered(c):
        a, b = beta.ppf(c, 2, 2), beta.ppf(c, 3, 1)
        return 1.0 - a**3 - 3 * a**2 * (1 - a) - (b**3 - a**3 - 3 * a**2 * (b - a))

    constant = brentq(lambda c: covered(c) - (1.0 - delta), 1e-6, delta)
    np.testing.assert_allclose(levels, [0.0, beta.ppf(constant, 2, 2), beta.ppf(constant, 3, 1)], rtol=1e-7)
