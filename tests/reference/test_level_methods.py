"""Truncated and tuned levels against closed forms, brute force, finite differences and scipy's own optimisers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import comb
from scipy.stats import beta, binom, ksone, kstwo

import riskband as rb
from riskband.bands.crossing import crossing_gradient, crossing_probability
from riskband.bands.levels import berk_jones_levels, kolmogorov_levels, truncated_levels
from riskband.bands.methods import resolve_level_method
from riskband.bands.pilots import Pilot, _chance_of_inclusion
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.weights import interval_weight, smoothed_median_weight, tail_weight
from riskband.tuning import LevelProblem


def kept_ranks(levels):
    """Ranks at which lower levels rise; the others are constant outside a range."""
    return 1 + np.flatnonzero(np.diff(levels, prepend=0.0))


@pytest.mark.parametrize("sides", ["lower", "upper", "two"])
@pytest.mark.parametrize("num_values", [2, 30, 200])
def test_truncation_to_everything_is_berk_jones_exactly(num_values, sides):
    for ours, theirs in zip(
        truncated_levels(num_values, 0.07, sides, low=0.0, high=1.0),
        berk_jones_levels(num_values, 0.07, sides),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_one_order_statistic_alone_has_its_beta_quantile():
    """For a range so high that no level of 20 values reaches it, the largest value alone is left."""
    levels = truncated_levels(20, 0.05, "lower", low=0.99, high=1.0).lower
    np.testing.assert_allclose(levels, np.append(np.zeros(19), 0.05 ** (1 / 20)), rtol=1e-8)


def published_truncation(num_values, delta, low, high):
    """The ranks and levels of [DC]'s code: the first rank by bisection, calibrated at every step, then the last one."""

    def levels(first, last):
        kept = np.arange(1, num_values + 1).clip(max=last)

        def at(c):
            return np.where(kept < first, 0.0, beta.ppf(c, kept, num_values + 1 - kept))

        return at(brentq(lambda c: crossing_probability(at(c)) - (1.0 - delta), 1e-9, delta * (1 + 1e-9)))

    ranks = range(1, num_values)
    first = 1 + bisect_left(ranks, low, key=lambda i: levels(i, num_values)[i - 1])
    last = first + bisect_left(range(first, num_values), high, key=lambda i: levels(first, i)[i - 1])
    return first, last, levels(first, last)


@pytest.mark.parametrize(
    ("num_values", "delta", "low", "high"), [(30, 0.05, 0.5, 0.9), (50, 0.1, 0.5, 0.95), (100, 0.05, 0.5, 0.9)]
)
def test_a_range_keeps_the_ranks_of_the_paper(num_values, delta, low, high):
    levels = truncated_levels(num_values, delta, "lower", low=low, high=high).lower
    first, last, expected = published_truncation(num_values, delta, low, high)
    assert (kept_ranks(levels)[0], kept_ranks(levels)[-1]) == (first, last)
    np.testing.assert_allclose(levels, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("num_values", "plain", "expected"),
    [(100, 0.1926, 0.1862), pytest.param(500, 0.1711, 0.1684, marks=pytest.mark.slow)],
)
def test_a_range_bounds_its_quantiles_more_sharply_than_the_whole(num_values, plain, expected):
    """Mean of the quantiles from .5 to .9 of Beta(3, 21), over 400 networks, by the code of [DC]: errors below .001."""
    values = np.random.default_rng(7).beta(3, 21, (100, num_values))
    for method, reference in (("berk_jones", plain), ("truncated:0.5:0.9", expected)):
        levels = resolve_level_method(method).levels(num_values, 0.05, "lower").lower
        heights = np.diff(np.clip(np.concatenate([[0.0], levels, [1.0]]), 0.5, 0.9)) / 0.4
        found = np.mean(np.append(np.sort(values), np.ones((100, 1)), axis=1) @ heights)
        assert found == pytest.approx(reference, abs=0.002)


@pytest.mark.parametrize("sides", ["lower", "upper", "two"])
@pytest.mark.parametrize(("low", "high"), [(0.5, 0.9), (0.0, 0.4), (0.31, 0.7)])
def test_levels_reach_both_ends_of_the_range_and_hold_as_often_as_they_say(low, high, sides):
    """By simulation of the event itself; inside, all levels have one tail probability."""
    num_values, delta, num_draws = 40, 0.1, 20_000
    ordered = np.sort(np.random.default_rng(1).random((num_draws, num_values)), axis=1)
    found = truncated_levels(num_values, delta, sides, low=low, high=high)
    failures = np.zeros(num_draws, dtype=bool)
    if found.lower is not None:
        failures |= np.any(ordered < found.lower, axis=1)
        check_kept(found.lower, low, high)
    if found.upper is not None:
        failures |= np.any(ordered > found.upper, axis=1)
        check_kept(1.0 - found.upper[::-1], 1.0 - high, 1.0 - low)
    assert failures.mean() == pytest.approx(delta, abs=5.0 * np.sqrt(delta / num_draws))


def check_kept(levels, low, high):
    """Berk-Jones levels at neighbouring ranks, of which the first and the last alone reach the ends of the range."""
    kept = kept_ranks(levels)
    assert np.all(np.diff(kept) == 1)
    tails = beta.cdf(levels[kept - 1], kept, levels.size + 1 - kept)
    np.testing.assert_allclose(tails, tails[0], rtol=1e-9)
    assert levels[kept[0] - 1] >= low
    assert levels[-1] >= high or kept[-1] == levels.size
    assert levels[kept[-1] - 2] < high


def test_a_shorter_range_has_higher_levels_in_it():
    whole = berk_jones_levels(100, 0.01, "lower").lower
    part = truncated_levels(100, 0.01, "lower", low=0.5, high=0.9).lower
    kept = kept_ranks(part) - 1
    assert np.all(part[kept] > whole[kept])


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
    levels = truncated_levels(3, delta, "lower", low=0.1, high=1.0).lower

    def covered(c):
        a, b = beta.ppf(c, 2, 2), beta.ppf(c, 3, 1)
        return 1.0 - a**3 - 3 * a**2 * (1 - a) - (b**3 - a**3 - 3 * a**2 * (b - a))

    constant = brentq(lambda c: covered(c) - (1.0 - delta), 1e-6, delta)
    np.testing.assert_allclose(levels, [0.0, beta.ppf(constant, 2, 2), beta.ppf(constant, 3, 1)], rtol=1e-7)


@pytest.mark.parametrize("delta", [0.9, 0.05, 1e-3])
@pytest.mark.parametrize(("num_values", "mean_level"), [(1, None), (20, 0.2889), (100, 0.3910), (500, 0.4480)])
def test_kolmogorov_levels_have_the_quantiles_of_his_statistic(num_values, mean_level, delta):
    one, two = (kolmogorov_levels(num_values, delta, sides) for sides in ("lower", "two"))
    assert 1.0 - one.lower[-1] == pytest.approx(ksone.isf(delta, num_values), abs=1e-8)
    assert 1.0 - two.lower[-1] == pytest.approx(kstwo.isf(delta, num_values), abs=1e-8)
    np.testing.assert_allclose(two.upper, 1.0 - two.lower[::-1], atol=1e-12)
    ranks = np.arange(1, num_values + 1) / num_values
    np.testing.assert_allclose(one.lower, np.clip(ranks - ksone.isf(delta, num_values), 0.0, 1.0), atol=1e-8)
    if delta == 0.05 and mean_level is not None:
        assert one.lower.mean() == pytest.approx(mean_level, abs=5.1e-5)
