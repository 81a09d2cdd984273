"""Laws of the certificates that are read off a band."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import riskband as rb
from tests.laws.draws import BUDGETS, DELTAS, DIVERGENCES, LOCALS, METHODS, POINTS, client_risks

ROUNDING = 1e-9  # of the one-dimensional searches


@st.composite
def lower_bands(draw):
    return rb.band(draw(client_risks()), delta=draw(DELTAS), method=draw(METHODS), local=draw(LOCALS), sides="lower")


def readings(band, *, divergence="kl", budget=0.1):
    """Every functional of one band, as one array of numbers that may only grow with risk."""
    at = POINTS[::8]
    return np.concatenate(
        [
            [rb.mean(band).value, rb.cvar(band, level=0.8).value],
            rb.survival(band, thresholds=at).value,
            rb.quantile(band, level=at).value,
            [rb.worst_case_mean(band, divergence=divergence, budget=budget).value],
            rb.worst_case_cdf(band, divergence=divergence, budget=budget, thresholds=at).value,
        ]
    )


@settings(deadline=None, max_examples=settings().max_examples * 3 // 5)
@given(client_risks(), DELTAS, METHODS, LOCALS, st.sampled_from(["kl", "chi2", "tv"]))
def test_a_smaller_delta_never_lowers_a_bound(risks, delta, method, local, divergence):
    def at(delta):
        return readings(rb.band(risks, delta=delta, method=method, local=local, sides="lower"), divergence=divergence)

    assert np.all(at(delta / 3) >= at(delta) - ROUNDING)


@settings(deadline=None, max_examples=settings().max_examples * 3 // 5)
@given(client_risks(max_clients=8), DIVERGENCES, BUDGETS, BUDGETS, METHODS, LOCALS)
def test_a_larger_budget_never_lowers_a_bound(risks, divergence, first, second, method, local):
    band = rb.band(risks, delta=0.1, method=method, local=local, sides="lower")
    budgets = sorted([0.0, first, second])
    mean = rb.worst_case_mean(band, divergence=divergence, budget=budgets).value
    curve = rb.worst_case_cdf(band, divergence=divergence, budget=budgets, thresholds=POINTS).value
    assert np.all(np.diff(mean) >= -ROUNDING)
    assert np.all(np.diff(curve, axis=0) >= -ROUNDING)
    assert np.all((mean >= 0.0) & (mean <= 1.0))
    assert np.all((curve >= 0.0) & (curve <= 1.0))


@settings(deadline=None)
@given(lower_bands(), DIVERGENCES)
def test_no_budget_gives_the_plain_bound(band, divergence):
    mean = rb.worst_case_mean(band, divergence=divergence, budget=0.0)
    assert mean.value == pytest.approx(rb.mean(band).value, abs=1e-12)
    curve = rb.worst_case_cdf(band, divergence=divergence, budget=0.0, thresholds=POINTS)
    np.testing.assert_array_equal(curve.value, rb.survival(band, thresholds=POINTS).value)


@settings(deadline=None)
@given(lower_bands(), st.sampled_from(["kl", "tv", "hellinger2"]))
def test_a_budget_without_limit_gives_the_largest_risk(band, divergence):
    """KL from a finite law is at most -log of its smallest atom; TV and Hellinger are at most 1 and 2."""
    budget = 800.0 if divergence == "kl" else 2.0
    mean = rb.worst_case_mean(band, divergence=divergence, budget=budget)
    assert mean.value == pytest.approx(1.0, abs=1e-6)
    survival = rb.survival(band, thresholds=POINTS).value
    curve = rb.worst_case_cdf(band, divergence=divergence, budget=budget, thresholds=POINTS).value
    np.testing.assert_allclose(curve[survival > 0.0], 1.0)


@settings(deadline=None)
@given(lower_bands(), st.floats(0.0, 0.99), st.floats(0.0, 0.99))
def test_cvar_grows_with_its_level_from_the_mean_to_the_largest_risk(band, first, second):
    low, high = sorted([first, second])
    means = [rb.cvar(band, level=level).value for level in (0.0, low, high)]
    assert means[0] == pytest.approx(rb.mean(band).value, abs=1e-12)
    assert np.all(np.diff(means) >= -1e-12)
    assert means[-1] <= 1.0 + 1e-12


@settings(deadline=None)
@given(lower_bands(), DIVERGENCES, BUDGETS)
def test_survival_curves_fall_from_one(band, divergence, budget):
    curve = rb.worst_case_cdf(band, divergence=divergence, budget=budget, thresholds=POINTS).value
    assert curve[0] == 1.0
    assert np.all(np.diff(curve) <= 1e-12)


@settings(deadline=None, max_examples=40)
@given(client_risks(max_clients=8), st.randoms(use_true_random=False), METHODS, LOCALS, DIVERGENCES)
def test_the_order_of_the_clients_does_not_matter(risks, random, method, local, divergence):
    order = np.array(random.sample(range(risks.num_clients), risks.num_clients))
    shuffled = rb.ClientRisks(risks.values[order], risks.num_examples[order], binary=risks.binary)
    first, second = (rb.band(r, delta=0.1, method=method, local=local, sides="lower") for r in (risks, shuffled))
    np.testing.assert_array_equal(
        readings(first, divergence=divergence), readings(second, divergence=divergence), strict=True
    )
    for kind in ("hoeffding", "empirical_bernstein", "published"):
        values = [rb.mean_bound(r, delta=0.1, method=kind).value for r in (risks, shuffled)]
        assert values[0] == pytest.approx(values[1], abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(client_risks(kinds=("bounded",), max_clients=8), st.randoms(use_true_random=False))
def test_worst_case_weights_follow_their_clients(risks, random):
    assume(len(set(risks.values)) == risks.num_clients)  # tied clients share their weight in any way
    order = np.array(random.sample(range(risks.num_clients), risks.num_clients))
    shuffled = rb.ClientRisks(risks.values[order], risks.num_examples[order], binary=False)
    weights = [
        rb.worst_case_mean(rb.band(r, delta=0.2, sides="lower"), divergence="kl", budget=0.2).details["client_weights"]
        for r in (risks, shuffled)
    ]
    np.testing.assert_allclose(weights[0][order], weights[1], atol=1e-9)


@settings(deadline=None)
@given(client_risks(), st.integers(0, 15), st.floats(0.0, 1.0), METHODS, LOCALS)
def test_one_client_doing_worse_never_lowers_a_bound(risks, client, raised, method, local):
    worse = risks.values.copy()
    client %= risks.num_clients
    worse[client] = max(worse[client], raised)
    if risks.binary:
        worse = np.rint(worse * risks.num_examples) / risks.num_examples
    changed = rb.ClientRisks(worse, risks.num_examples, binary=risks.binary)
    before, after = (rb.band(r, delta=0.1, method=method, local=local, sides="lower") for r in (risks, changed))
    assert np.all(readings(after) >= readings(before) - ROUNDING)


@settings(deadline=None)
@given(client_risks(), DELTAS, st.integers(0, 5))
def test_mean_bounds_lie_between_the_mean_and_one(risks, delta, seed):
    assert 0.0 <= rb.mean_bound(risks, delta=delta, seed=seed).value <= 1.0  # betting may rightly fall below the mean
    for method in ("hoeffding", "empirical_bernstein", "published"):
        bound, looser = (rb.mean_bound(risks, delta=d, method=method).value for d in (delta, delta / 10))
        assert risks.values.mean() - 1e-12 <= bound <= looser <= 1.0


@settings(deadline=None, max_examples=30)
@given(client_risks(max_clients=8), st.sampled_from(["kl", "chi2", "tv"]), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_breakdown_is_the_boundary_of_the_certified_budgets(risks, divergence, target, threshold):
    band = rb.band(risks, delta=0.2, sides="lower")
    bracket = rb.breakdown(band, divergence=divergence, target=target, threshold=threshold)

    def bound(budget):
        return rb.worst_case_cdf(band, divergence=divergence, budget=budget, thresholds=threshold).value

    if np.isfinite(bracket.lower):
        assert bound(bracket.lower) <= target
    if np.isfinite(bracket.upper):
        assert bound(bracket.upper) > target or bracket.lower == -np.inf
    assert bracket.lower <= bracket.upper
