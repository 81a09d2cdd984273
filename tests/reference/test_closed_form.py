"""The within-client step in closed form: against scipy, a linear program over all laws of risks, and the older grid."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

import riskband as rb
from riskband.bands.closed_form import MeasuredBand
from riskband.bands.levels import berk_jones_levels
from riskband.bands.local_steps import ClientAtoms


def levels_of_counts(counts, n, levels):
    """Lower levels for P(X <= j), j = 0 .. n - 1."""
    return np.array([np.append(0.0, levels)[np.sum(counts <= j)] for j in range(n)])


def largest_share(n, levels, at):
    """Largest P(R >= at) over all laws on a grid of risks whose counts have these levels, by linear programming."""
    risks = np.unique(np.append(np.linspace(0.0, 1.0, 41), at))
    cdf = binom.cdf(np.arange(n)[:, None], n, risks)
    found = linprog(
        -(risks >= at).astype(float), A_ub=-cdf, b_ub=-levels, A_eq=np.ones((1, risks.size)), b_eq=[1.0], bounds=(0, 1)
    )
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize("n", [5, 20, 60])
def test_no_law_that_agrees_with_the_counts_has_more_clients_above_a_risk_and_one_has_as_many(n):
    rng = np.random.default_rng(n)
    counts = rng.binomial(n, rng.beta(3, 21, 200))
    band = rb.band(rb.ClientRisks(counts / n, n), delta=0.05, sides="lower")
    levels = levels_of_counts(counts, n, berk_jones_levels(200, 0.05, "lower").lower)
    num_sharp = 0
    for at in band.lower_points[np.linspace(0, band.lower_points.size - 2, 25).astype(int)]:
        share, most = 1.0 - float(band.lower(at)), largest_share(n, levels, at)
        assert share >= most - 1e-6
        bounds = (1.0 - levels) / binom.sf(np.arange(n), n, at)
        if np.argmin(bounds) <= n * at:  # otherwise the bound is kept valid for clients that measure their risk exactly
            assert share - most <= min(0.0025, 0.011 * share) + 1e-6  # the step of the grid of levels
            num_sharp += 1
    assert num_sharp >= 10


@pytest.mark.parametrize("n", [5, 20])
def test_at_a_count_the_bound_is_the_largest_share_of_clients_that_sample_or_measure_exactly(n):
    """A linear program over laws of both kinds: an exact client's count is n times its risk."""
    rng = np.random.default_rng(n)
    counts = rng.binomial(n, rng.beta(3, 9, 300))
    band = rb.band(rb.ClientRisks(counts / n, n), delta=0.05, sides="lower")
    levels = levels_of_counts(counts, n, berk_jones_levels(300, 0.05, "lower").lower)
    risks = np.linspace(0.0, 1.0, 4 * n + 1)
    of_sampling = binom.cdf(np.arange(n)[:, None], n, risks)
    of_exact = (n * risks <= np.arange(n)[:, None] + 1e-9).astype(float)
    for at in np.unique(counts)[2:6] / n:
        above = np.tile(risks >= at - 1e-9, 2).astype(float)
        ones = np.ones((1, above.size))
        found = linprog(-above, A_ub=-np.hstack([of_sampling, of_exact]), b_ub=-levels, A_eq=ones, b_eq=[1.0])
        assert 1.0 - band.lower_left_limit(at) == pytest.approx(-found.fun, abs=1e-6)


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("sides", ["lower", "upper"])
def test_every_step_is_on_the_curve_of_the_formula(is_binary, sides):
    """The smallest of all (1 - level) / P(x > v | R = t), one by one; kl for losses that are not 0-1."""
    rng = np.random.default_rng(7)
    n, risks = 20, rng.beta(3, 9, 60)
    values = rng.binomial(n, risks) / n if is_binary else risks
    answers = rb.ClientRisks(values, n, binary=is_binary)
    band = rb.band(answers, delta=0.1, sides=sides)
    levels = getattr(berk_jones_levels(60, 0.1, sides), sides)
    if sides == "upper":
        values, levels = 1.0 - values, 1.0 - levels[::-1]
    values = np.sort(values)

    def formula(at):
        if is_binary:
            above = binom.sf(np.rint(values * n), n, at)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                kl = values * np.log(values / at) + (1 - values) * np.log((1 - values) / (1 - at))
            above = 1.0 - np.exp(-n * kl)
        allowed = (values <= at) & (above > 0.0)
        return np.max(1.0 - (1.0 - levels[allowed]) / above[allowed], initial=0.0)

    points = np.linspace(0.02, 0.9, 200)
    best = np.array([formula(at) for at in points])
    found = band.lower(points) if sides == "lower" else 1.0 - band.upper(np.nextafter(1.0 - points, 0.0))
    assert np.all(found <= best + 1e-9)
    assert np.all(best - found <= np.minimum(0.0025, 0.011 * (1.0 - best)) + 1e-9)  # the step of the grid of levels


@pytest.mark.parametrize(
    ("num_examples", "grid", "every"),
    [
        (20, [0.864, 0.646, 0.405, 0.254, 0.089], [0.812, 0.534, 0.331, 0.187, 0.064]),
        (100, [0.667, 0.387, 0.204, 0.102, 0.028], [0.648, 0.372, 0.196, 0.098, 0.026]),
    ],
)
def test_the_table_of_the_mathematics(num_examples, grid, every):
    """math §2.4: P(R > t), K = 500, risks ~ Beta(3, 21), delta = .05, mean of 10 networks."""
    found = {"grid": [], "every": []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        answers = rb.ClientRisks(rng.binomial(num_examples, rng.beta(3, 21, 500)) / num_examples, num_examples)
        for eta, shares in found.items():
            shares.append(1.0 - rb.band(answers, delta=0.05, sides="lower", eta=eta).lower([0.15, 0.2, 0.25, 0.3, 0.4]))
    np.testing.assert_allclose(np.mean(found["grid"], axis=0), grid, atol=6e-4)
    np.testing.assert_allclose(np.mean(found["every"], axis=0), every, atol=6e-4)


def test_a_law_below_two_laws_is_below_both_and_above_what_is_below_both():
    rng = np.random.default_rng(0)
    for _ in range(50):
        first, second = (
            ClientAtoms(np.append(np.sort(rng.random(6)), 1.0), rng.dirichlet(np.ones(7)), rng.permutation(6))
            for _ in range(2)
        )
        both = first.smaller(second)
        at = np.unique(np.concatenate([first.risks, second.risks, rng.random(20), [0.0]]))
        least = np.minimum(first.excess(at), second.excess(at))
        assert np.all(both.excess(at) <= least + 1e-12)
        assert both.weights.sum() == pytest.approx(1.0)
        assert np.all(both.weights >= 0.0)
        # Nothing larger is convex: each value lies on a chord between two points where the smaller of both is reached.
        chords = [
            np.min(
                [
                    ((x - a) * fb + (b - x) * fa) / (b - a)
                    for a, fa in zip(at, least, strict=True)
                    for b, fb in zip(at, least, strict=True)
                    if a < x < b
                ]
                + [f]
            )
            for x, f in zip(at, least, strict=True)
        ]
        np.testing.assert_allclose(both.excess(at), chords, atol=1e-12)


@pytest.mark.parametrize("local", ["counted", "union"])
def test_measured_risks_lower_the_means_of_counted_and_union_bands(local):
    rng = np.random.default_rng(2)
    answers = rb.ClientRisks(rng.binomial(100, rng.beta(3, 21, 500)) / 100, 100)
    measured = rb.band(answers, delta=0.05, local=local)
    # What the limits alone say: the integral of the bound on quantiles.
    by_limits = np.diff(measured.lower_levels, prepend=0.0, append=1.0) @ np.append(measured.lower_points, 1.0)
    assert rb.mean(measured).value - 0.125 < 0.05 < 0.12 < by_limits - 0.125
    assert rb.verify(rb.cvar(measured, level=0.9)).ok
    weights = rb.worst_case_mean(measured, divergence="chi2", budget=0.2).details
    assert weights["client_weights"].shape == (500,)
    assert weights["client_weights"].sum() + weights["unseen_weight"] == pytest.approx(1.0)


def test_of_many_values_some_are_kept_with_their_levels():
    """A quarter at either end, the others evenly between: fewer values can only make a bound larger."""
    values, levels = np.linspace(0.0, 1.0, 101) ** 2, np.linspace(0.01, 0.99, 101)
    whole = MeasuredBand(values, levels, 100, True)
    assert whole.thinned(101) is whole
    thin = whole.thinned(12)
    kept = np.searchsorted(values, thin.values)
    assert kept.tolist() == [0, 1, 2, 3, 21, 40, 59, 78, 97, 98, 99, 100]
    assert np.array_equal(thin.values, values[kept])
    assert np.array_equal(thin.levels, levels[kept])
