"""Levels at few of many ranks, against the crossing probability of all ranks, SciPy's laws and simulation."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.special import betaincc, betaincinv
from scipy.stats import beta

import riskband as rb
from riskband.answers import risks as answers
from riskband.bands.crossing import RankLevels, crossing_probability, crossing_probability_at
from riskband.bands.levels import (
    berk_jones_constant,
    berk_jones_levels,
    dkw_levels,
    sparse_levels,
    sparse_ranks,
    truncated_levels,
)
from riskband.bands.methods import MOST_FOR_ALL_RANKS, default_method, resolve_level_method
from riskband.betting import constant_stakes_upper_mean
from riskband.search import bisect, root_from_above
from tests.validity.coverage import is_rejected

MANY = MOST_FOR_ALL_RANKS + 1


def carried(constraints, num_values):
    """Lower levels of all ranks that say the same as those of some."""
    levels = np.zeros(num_values)
    for rank, level in zip(*constraints, strict=True):
        levels[rank - 1 :] = level
    return levels


def uniform_order_statistics(rng, ranks, num_values, num_draws):
    """Uniform order statistics at these ranks alone: sums of exponential variables, divided by the sum of all."""
    sums = np.cumsum(rng.standard_gamma(np.diff(ranks, prepend=0), size=(num_draws, ranks.size)), axis=1)
    rest = rng.standard_gamma(num_values + 1 - ranks[-1], size=(num_draws, 1))
    return sums / (sums[:, -1:] + rest)


def test_some_ranks_have_the_probability_of_the_same_event_for_all():
    rng = np.random.default_rng(0)
    for _ in range(30):
        n = int(rng.integers(1, 40))
        ranks = [np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False)) + 1 for _ in range(2)]
        lower, upper = (
            RankLevels(r, np.clip(np.sort(r / (n + 1) + shift * rng.random(r.size)), 0.0, 1.0))
            for r, shift in zip(ranks, (-0.3, 0.3), strict=True)
        )
        reflected = RankLevels(n + 1 - upper.ranks[::-1], 1.0 - upper.levels[::-1])
        everything = carried(lower, n), 1.0 - carried(reflected, n)[::-1]
        exact = crossing_probability(*everything)
        found = crossing_probability_at(n, lower, upper)
        assert exact - 1e-11 <= found <= exact + 1e-15
        assert crossing_probability_at(n, lower) == pytest.approx(crossing_probability(everything[0]), abs=1e-11)


@pytest.mark.parametrize("num_values", [10**4, 10**6, 10**8])
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_one_rank_of_very_many_has_its_beta_distribution_rounded_down(num_values, share):
    rank = round(share * num_values)
    for level in betaincinv(rank, num_values - rank + 1.0, [1e-6, 0.05, 0.5, 0.999]):
        exact = betaincc(rank, num_values - rank + 1.0, level)
        found = crossing_probability_at(num_values, RankLevels(np.array([rank]), np.array([level])))
        assert exact * (1.0 - num_values * 3e-14) - 1e-11 <= found <= exact


@pytest.mark.parametrize("sides", ["lower", "upper", "two"])
@pytest.mark.parametrize("window", [(0.0, 1.0), (0.5, 0.95), (0.9, 1.0)])
@pytest.mark.parametrize("delta", [0.05, 1e-4])
def test_the_levels_of_all_ranks_hold_with_the_stated_probability(sides, window, delta):
    n = 2_000
    lower, upper = sparse_levels(n, delta, sides, low=window[0], high=window[1])
    covered = crossing_probability(np.zeros(n) if lower is None else lower, upper)
    assert 1.0 - delta <= covered <= 1.0 - delta + 2e-7 * delta + 2e-10


def test_the_level_of_the_next_rank_does_not_hold():
    n = 2_000
    lower = sparse_levels(n, 0.05, "lower").lower
    steps = np.flatnonzero(np.diff(lower, append=1.0))
    looser = lower[np.append(steps, n - 1)[np.searchsorted(steps, np.arange(n)) + 1].clip(max=n - 1)]
    assert np.all(looser >= lower)
    assert crossing_probability(looser) < 0.95 - 0.005
    rng = np.random.default_rng(1)
    drawn = np.sort(rng.random((3_000, n)), axis=1)
    assert is_rejected(np.any(drawn < looser, axis=1), 0.05)
    assert not is_rejected(np.any(drawn < lower, axis=1), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("sides", ["lower", pytest.param("two", marks=pytest.mark.slow)])
def test_twenty_thousand_values_lose_at_most_a_twentieth_of_the_slack(sides):
    n = 20_000
    risks = beta.ppf(np.arange(1, n + 1) / (n + 1), 3, 21)
    exact, sparse = (levels(n, 0.05, sides).lower for levels in (berk_jones_levels, sparse_levels))
    means = [np.sum(np.diff(each, prepend=0.0, append=1.0) * np.append(risks, 1.0)) for each in (exact, sparse)]
    assert means[1] - risks.mean() <= 1.05 * (means[0] - risks.mean())
    for threshold in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4):
        first = np.searchsorted(risks, threshold)
        gaps = [first / n - each[first - 1] for each in (exact, sparse)]
        assert gaps[1] <= 1.05 * gaps[0], threshold
    for level in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        found = [risks[np.searchsorted(each, level)] - risks[int(level * n) - 1] for each in (exact, sparse)]
        assert found[1] <= 1.05 * found[0], level


def test_ranks_are_dense_at_both_ends_and_few():
    ranks = sparse_ranks(10**6, 1, 10**6, spacing=0.2)
    assert np.all(np.diff(ranks[:50]) == 1)
    assert np.all(np.diff(ranks[-20:]) == 1)
    assert ranks.size < 16_000
    assert np.all(np.diff(ranks) <= np.maximum(0.2 * np.sqrt(ranks[:-1] * (1.0 - ranks[:-1] / 1e6)), 1.0))


@pytest.mark.parametrize(
    ("num_values", "num_draws"), [(20_000, 400), pytest.param(10**6, 3_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("sides", ["lower", "two"])
def test_so_many_draws_cross_as_often_as_they_should(num_values, num_draws, sides):
    lower, upper = sparse_levels(num_values, 0.05, sides)
    ranks = np.flatnonzero(np.diff(lower, prepend=0.0)) + 1
    both = np.union1d(ranks, num_values + 1 - ranks) if sides == "two" else ranks
    rng, failures = np.random.default_rng(2), []
    for _ in range(num_draws // 100):
        drawn = uniform_order_statistics(rng, both, num_values, 100)
        is_below = np.any(drawn < lower[both - 1], axis=1)
        failures.append(is_below if upper is None else is_below | np.any(drawn > upper[both - 1], axis=1))
    failures = np.concatenate(failures)
    assert not is_rejected(failures, 0.05)
    assert not is_rejected(~failures, 0.95)  # exactly calibrated: not much rarer either


@pytest.mark.slow
def test_a_hundred_thousand_values_are_bounded_more_closely_than_by_dkw_but_in_the_middle():
    n = 100_000
    sparse, dkw = sparse_levels(n, 0.05, "lower").lower, dkw_levels(n, 0.05, "lower").lower
    gap, wider = (np.arange(1, n + 1) / n - each for each in (sparse, dkw))
    assert gap[-1] < 1e-4 < 0.04 * wider[-1]
    assert gap[n // 2] < 1.7 * wider[n // 2]
    # The law of the supremum has no closed form; the constant falls slowly with the number of values.
    exact = berk_jones_constant(20_000, 0.05, is_two_sided=False)
    assert 0.8 * exact < 1.0 - (1.0 - sparse[0]) ** n < exact * 1.05


def test_names_and_the_default():
    for name, plain in (("sparse:truncated:0.5:0.95", (0.5, 0.95)), ("sparse:truncated:0.9:1", (0.9, 1.0))):
        found = resolve_level_method(name).levels(3_000, 0.05, "lower").lower
        exact = truncated_levels(3_000, 0.05, "lower", low=plain[0], high=plain[1]).lower
        kept = (found > 0.0) & (exact > 0.0)
        assert np.sum(kept) > 0.99 * max(np.sum(found > 0.0), np.sum(exact > 0.0))
        assert np.max(np.abs(found - exact)[kept]) < 0.01
    for wrong in ("sparse", "sparse:", "sparse:dkw", "sparse:sparse:berk_jones"):
        with pytest.raises(ValueError, match="sparse:berk_jones"):
            resolve_level_method(wrong).levels(100, 0.05, "lower")
    assert (default_method(MANY - 1), default_method(MANY)) == ("berk_jones", "sparse:berk_jones")
    with pytest.raises(ValueError, match="delta >= 1e-08"):
        sparse_levels(100, 1e-9, "lower")


def test_a_band_of_many_says_how_it_was_made_and_verifies():
    values = np.random.default_rng(3).binomial(20, 0.1, MANY) / 20
    risks = rb.ClientRisks(values, 20)
    band = rb.band(risks, delta=0.05, sides="lower")
    assert band.recipe()["method"] == "sparse:berk_jones"
    exact = rb.band(risks, delta=0.05, sides="lower", method="berk_jones")
    assert exact.recipe()["method"] == "berk_jones"
    for each in (band, exact):
        assert not any("method" in line for line in each.assumptions)
        certificate = rb.survival(each, thresholds=0.3)
        assert rb.verify(certificate).ok
    few = rb.band(rb.ClientRisks(values[:100], 20), delta=0.05, sides="lower", method="sparse:berk_jones")
    assert any("method sparse:berk_jones" in line for line in few.assumptions)


def test_limits_of_many_are_those_of_few():
    rng = np.random.default_rng(4)
    size = answers._MANY + 10
    values = np.concatenate([[0.0, 1.0, 1e-13, 1.0 - 1e-13], rng.beta(0.5, 2.0, size - 4)])
    counts = rng.integers(1, 500, size)
    wrong = rng.binomial(counts, values) / counts
    for eta in (1e-6, 0.02, 0.5, 0.99):
        found = answers._chernoff_limit(values, counts, eta=eta)
        allowed = np.log(1.0 / eta) / counts
        exact = bisect(lambda u, a=allowed: answers.binary_kl(values, u) <= a, low=values, high=np.ones(size))[1]
        assert np.all(found >= exact)
        assert np.max(found - exact) < 5e-12
        limits = answers._clopper_pearson_limit(wrong, counts, eta=eta)
        assert np.array_equal(limits, answers.clopper_pearson(np.rint(wrong * counts), counts, eta))


def test_a_root_from_above_is_that_of_bisection():
    for root, scale in ((0.3, 1e-3), (0.001, 0.1), (0.999, 1.0), (0.5, 1e-5)):
        found = root_from_above(
            lambda x, r=root, s=scale: float(np.expm1((x - r) / s) if x - r < 600.0 * s else np.inf),
            low=0.0,
            high=1.0,
            guess=0.4,
            tolerance=2.0**-36,
        )
        assert root <= found <= root + 2.0**-36
    assert root_from_above(lambda x: -1.0, low=0.0, high=1.0, guess=0.5, tolerance=1e-9) == 1.0


def test_the_mean_of_many_is_bounded_as_that_of_few(monkeypatch):
    values = np.random.default_rng(5).binomial(20, 0.1, 3_000) / 20
    few = constant_stakes_upper_mean(values, delta=0.05)
    monkeypatch.setattr("riskband.betting._MANY", 100)
    monkeypatch.setattr("riskband.betting._MOST_AT_ONCE", 100)
    assert constant_stakes_upper_mean(values, delta=0.05) == pytest.approx(few, abs=2.0**-35)


def test_the_memory_of_a_million_clients_fits(monkeypatch):
    """1,000 bytes per client are 1 GB for a million, where one order of the bets is played at a time."""
    num_clients = 40_000
    rng = np.random.default_rng(6)
    answered = rng.binomial(100, rng.beta(3, 21, num_clients)) / 100
    monkeypatch.setattr("riskband.betting._MOST_AT_ONCE", num_clients)
    sparse_levels(num_clients, 0.05, "two")
    tracemalloc.start()
    try:
        risks = rb.ClientRisks(answered, 100)
        rb.survival(rb.band(risks, delta=0.05), thresholds=0.3)
        rb.mean_bound(risks, delta=0.05)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000 * num_clients
