"""How far a target network is, against cvxpy, closed forms and single events."""

from __future__ import annotations

from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest
from scipy.stats import mannwhitneyu

import riskband as rb
from riskband.worst_cases.divergence_bounds import (
    BOTH_NETWORKS,
    bound_by_ranks,
    chance_of_so_few_pairs,
    chernoff_of_pairs,
    rank_test,
    taut_string,
)
from tests.reference.definitions import program_cost


def measured_band(values, *, delta=0.3, num_examples=100, **settings):
    answers = rb.ClientRisks(values, num_examples, binary=False)
    return rb.band(answers, delta=delta, local="observed", **settings)


def two_bands(seed, *, num_source=12, num_target=9, target=(5.0, 12.0)):
    rng = np.random.default_rng(seed)
    return measured_band(rng.beta(3, 21, num_source)), measured_band(rng.beta(*target, num_target))


def nearest_members(source, target, name):
    """The smallest divergence of members of both bands, by a convex program over the mass between knots."""
    knots = [points for band in (source, target) for points in (band.lower_points, band.upper_points)]
    risk = np.unique(np.concatenate([[0.0], *knots]))
    p, q = (cp.Variable(risk.size + 1, nonneg=True) for _ in range(2))
    inside = [cp.sum(p) == 1, cp.sum(q) == 1]
    for band, mass in ((source, p), (target, q)):
        cdf = cp.cumsum(mass)[:-1]
        inside += [cdf >= band.lower(risk), cdf <= band.upper(risk)]
    problem = cp.Problem(cp.Minimize(program_cost(q, p, name)), inside)
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_smallest_divergence_between_members_of_both_bands(seed):
    source, target = two_bands(seed)
    found = {name: rb.divergence_lower_bound(source, target, divergence=name).lower for name in rb.DIVERGENCES}
    for name, value in found.items():
        assert value == pytest.approx(nearest_members(source, target, name), abs=2e-5), name
    assert found["chi2"] > 0.01


def test_no_single_event_says_more():
    source, target = two_bands(7, num_source=200, num_target=150)
    risk = np.linspace(0, 1, 500)
    for name, f in rb.DIVERGENCES.items():
        found = rb.divergence_lower_bound(source, target, divergence=name).lower
        up = f.binary(np.maximum(target.lower(risk), source.upper(risk)), source.upper(risk))
        down = f.binary(np.minimum(target.upper(risk), source.lower(risk)), source.lower(risk))
        assert found >= max(up.max(), down.max()) - 1e-9, name


def test_shortest_curves_by_hand():
    ends = np.array([[0.0, 0.0], [1.0, 1.0]])
    nothing = np.empty((0, 2))
    assert np.array_equal(taut_string(nothing, nothing), ends)
    assert np.array_equal(taut_string(np.array([[0.4, 0.3]]), np.array([[0.5, 0.6]])), ends)  # the diagonal passes
    assert np.array_equal(taut_string(np.array([[0.4, 0.7]]), nothing), [[0, 0], [0.4, 0.7], [1, 1]])
    assert np.array_equal(taut_string(nothing, np.array([[0.4, 0.1]])), [[0, 0], [0.4, 0.1], [1, 1]])
    both = taut_string(np.array([[0.3, 0.5]]), np.array([[0.6, 0.55]]))
    assert np.array_equal(both, [[0, 0], [0.3, 0.5], [0.6, 0.55], [1, 1]])
    # A jump where the source has no mass, and a part of the source that the target never shows.
    assert np.array_equal(taut_string(np.array([[0.0, 0.2]]), nothing), [[0, 0], [0, 0.2], [1, 1]])
    assert np.array_equal(taut_string(nothing, np.array([[1.0, 0.7]])), [[0, 0], [1, 0.7], [1, 1]])


def test_known_distributions_have_the_divergence_of_their_histogram():
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.1, 0.2, 0.7])
    curve = np.cumsum([p, q], axis=1).T[:-1]
    path = taut_string(curve, curve)
    assert np.allclose(path, [[0, 0], *curve, [1, 1]])
    width, height = np.diff(path, axis=0).T
    assert rb.DIVERGENCES["kl"].between(height, width) == pytest.approx(np.sum(q * np.log(q / p)))
    assert rb.DIVERGENCES["chi2"].between(height, width) == pytest.approx(np.sum((q - p) ** 2 / p))


def test_an_estimate_is_the_plug_in_of_a_histogram():
    source, target = np.repeat([0.1, 0.5, 0.9], [5, 3, 2]), np.repeat([0.1, 0.5, 0.9], [1, 3, 6])
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
    for bins in (3, 10, 50):
        assert rb.divergence_estimate(source, target, divergence="chi2", bins=bins) == pytest.approx(
            np.sum((q - p) ** 2 / p)
        )
    assert rb.divergence_estimate(source, target, divergence="kl") == pytest.approx(np.sum(q * np.log(q / p)))
    assert rb.divergence_estimate(source, target, divergence="tv", bins=1) == 0
    assert rb.divergence_estimate([0.1, 0.2], [0.1, 0.9], divergence="kl") == np.inf
    assert rb.divergence_estimate([0.1, 0.1], [0.1, 0.1], divergence="kl") == 0


def test_laws():
    source, target = two_bands(3, num_source=100, num_target=80)
    bound = rb.divergence_lower_bound(source, target, divergence="kl")
    assert bound.delta == pytest.approx(0.6)
    assert bound.validity == "certificate"
    assert "the KL divergence of the target network from the source network is at least 0." in bound.statement
    assert (bound.name, bound.value, bound.to_dict()["value"]) == ("divergence@target:kl", np.inf, None)
    assert rb.Certificate.from_json(bound.to_json()) == bound
    assert rb.divergence_lower_bound(source, source, divergence="kl").lower == 0
    sure = rb.band(source.risks, delta=0.01, local="observed")
    assert rb.divergence_lower_bound(sure, target, divergence="kl").lower < bound.lower
    custom = rb.custom_divergence("squares", lambda t: (t - 1) ** 2, slope_at_infinity=np.inf)
    squares = rb.divergence_lower_bound(source, target, divergence=custom).lower
    assert squares == pytest.approx(rb.divergence_lower_bound(source, target, divergence="chi2").lower)


def test_helpers_who_trained_make_it_an_estimate():
    source, target = two_bands(1)
    trained = measured_band(source.risks.values)
    answers = rb.ClientRisks(source.risks.values, 100, binary=False, answered_by="trainers")
    trained = rb.band(answers, delta=0.3, local="observed")
    assert rb.divergence_lower_bound(trained, target, divergence="tv").validity == "estimate"


def test_the_noise_of_measuring_is_no_divergence():
    rng = np.random.default_rng(0)
    few, many = (rb.ClientRisks(rng.binomial(n, 0.1, size=300) / n, n) for n in (5, 2000))
    with pytest.raises(ValueError, match="5 for each client of the source and 2000 of the target"):
        rb.divergence_lower_bound(
            *(rb.band(risks, delta=0.01, local="observed") for risks in (few, many)), divergence="chi2"
        )
    assert (
        rb.divergence_lower_bound(*(rb.band(risks, delta=0.01) for risks in (few, many)), divergence="chi2").lower == 0
    )


@pytest.mark.parametrize(("num_source", "num_target"), [(7, 3), (3, 7), (5, 5), (1, 4), (4, 1)])
def test_ranks_are_tested_by_all_choices_of_the_target_clients(num_source, num_target):
    values = np.random.default_rng(num_source).permutation(np.arange(num_source + num_target) / 10.0)

    def fewest(chosen):
        target, source = values[list(chosen)], np.delete(values, list(chosen))
        before = int(np.sum(source[:, None] > target))
        return min(before, source.size * target.size - before)

    choices = list(combinations(range(values.size), num_target))
    pairs = np.array([fewest(each) for each in choices])
    for chosen in choices[:: max(len(choices) // 7, 1)]:
        found = rank_test(np.delete(values, list(chosen)), values[list(chosen)])
        assert found == pytest.approx(min(np.mean(pairs <= fewest(chosen)), 1.0))


def test_ranks_agree_with_scipy_and_ties_only_make_them_say_less():
    rng = np.random.default_rng(1)
    source, target = rng.random(40), rng.random(12) + 0.3
    exact = mannwhitneyu(source, target, method="exact").pvalue
    assert rank_test(source, target) == pytest.approx(exact)
    assert rank_test(np.append(source, target[:3]), target) > rank_test(np.append(source, target[:3] - 1e-9), target)
    assert rank_test([0.1, 0.1], [0.1, 0.1]) == 1.0
    for num_pairs in (0, 60, 150, 230):
        chance = chance_of_so_few_pairs(num_pairs, 40, 12)
        assert chance <= chernoff_of_pairs(num_pairs, 40, 12) <= 12.0 * chance


def test_a_rare_event_of_many_clients_bounds_the_divergence_of_one():
    """With the largest probability that it can have within the bound, by root finding on the product's divergence."""
    chance, delta, num = 1e-4, 0.025, 10
    chi2 = bound_by_ranks(chance, rb.DIVERGENCES["chi2"], num_clients=num, delta=delta)
    assert chance + np.sqrt(((1 + chi2) ** num - 1) * chance * (1 - chance)) == pytest.approx(delta)
    tv = bound_by_ranks(chance, rb.DIVERGENCES["tv"], num_clients=num, delta=delta)
    assert chance + 1 - (1 - tv) ** num == pytest.approx(delta)
    kl = bound_by_ranks(chance, rb.DIVERGENCES["kl"], num_clients=num, delta=delta)
    expected = delta * np.log(delta / chance) + (1 - delta) * np.log((1 - delta) / (1 - chance))
    assert num * kl == pytest.approx(expected)
    affinity = np.sqrt(delta * chance) + np.sqrt((1 - delta) * (1 - chance))
    hellinger = bound_by_ranks(chance, rb.DIVERGENCES["hellinger2"], num_clients=num, delta=delta)
    assert (1 - hellinger / 2) ** num == pytest.approx(affinity)
    for name, f in rb.DIVERGENCES.items():
        assert bound_by_ranks(delta, f, num_clients=num, delta=delta) == 0.0, name
        assert bound_by_ranks(0.0, f, num_clients=500, delta=delta) < np.inf, name


def test_ranks_need_measured_risks():
    source, target = two_bands(0)
    with_ranks = rb.divergence_lower_bound(source, target, divergence="kl", delta=0.1)
    assert with_ranks.delta == source.delta + target.delta + 0.1
    assert BOTH_NETWORKS in with_ranks.assumptions
    assert BOTH_NETWORKS not in rb.divergence_lower_bound(source, target, divergence="kl").assumptions
    of_true_risks = [rb.band(each.risks, delta=0.1) for each in (source, target)]
    with pytest.raises(ValueError, match="delta with bands is that of ranks, and needs bands with local='observed'"):
        rb.divergence_lower_bound(*of_true_risks, divergence="kl", delta=0.1)
    unequal = rb.ClientRisks(source.risks.values, np.arange(12) + 50, binary=False)
    found = rb.divergence_lower_bound(unequal, target.risks, divergence="kl", delta=0.1)
    assert "p_value" not in found.details
    assert found.delta == pytest.approx(0.1)


def test_wrong_input():
    source, target = two_bands(0)
    with pytest.raises(ValueError, match="about the same risks"):
        rb.divergence_lower_bound(source, rb.band(target.risks, delta=0.1), divergence="kl")
    with pytest.raises(ValueError, match="no upper side"):
        rb.divergence_lower_bound(measured_band([0.1, 0.2], sides="lower"), target, divergence="kl")
    with pytest.raises(ValueError, match="divergence must be one of"):
        rb.divergence_lower_bound(source, target, divergence="nothing")
    with pytest.raises(ValueError, match="bins"):
        rb.divergence_estimate([0.1, 0.1], [0.2, 0.2], divergence="kl", bins=0)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        rb.divergence_estimate([0.1, 0.1], [0.1, 1.2], divergence="kl")
