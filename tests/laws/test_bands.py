"""Laws of every band, whatever the clients answered."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.answers.risks import ETA_GRID, default_eta
from tests.laws.draws import DELTAS, LOCALS, METHODS, POINTS, client_risks

ROUNDING, SEARCH = 1e-12, 1e-11


def build(risks, *, sides="lower", **options):
    return rb.band(risks, sides=sides, **options)


@settings(deadline=None)
@given(client_risks(), DELTAS, METHODS, LOCALS)
def test_a_smaller_delta_gives_a_wider_band(risks, delta, method, local):
    for sides in ("lower", "upper"):
        tight = build(risks, delta=delta, method=method, local=local, sides=sides)
        wide = build(risks, delta=delta / 3, method=method, local=local, sides=sides)
        if sides == "lower":
            assert np.all(wide.lower(POINTS) <= tight.lower(POINTS) + ROUNDING)
        else:
            assert np.all(wide.upper(POINTS) >= tight.upper(POINTS) - ROUNDING)


@settings(deadline=None)
@given(client_risks(max_clients=10), st.sampled_from([0.01, 0.1]), METHODS, LOCALS)
def test_the_sides_enclose_a_cdf_and_one_side_alone_is_tighter(risks, delta, method, local):
    both = build(risks, delta=delta, method=method, local=local, sides="two")
    lower, upper = both.lower(POINTS), both.upper(POINTS)
    assert np.all((lower >= 0.0) & (lower <= upper) & (upper <= 1.0))
    assert np.all(np.diff(lower) >= 0.0)
    assert np.all(np.diff(upper) >= 0.0)
    assert lower[-1] == upper[-1] == 1.0
    assert np.all(build(risks, delta=delta, method=method, local=local).lower(POINTS) >= lower - ROUNDING)
    alone = build(risks, delta=delta, method=method, local=local, sides="upper")
    assert np.all(alone.upper(POINTS) <= upper + ROUNDING)


@settings(deadline=None)
@given(client_risks(max_clients=10), METHODS, LOCALS)
def test_bounds_are_right_continuous_and_their_left_limits_come_before(risks, method, local):
    both = build(risks, delta=0.1, method=method, local=local, sides="two")
    knots = np.unique(np.concatenate([[0.0], both.lower_points, both.upper_points, [1.0]]))
    is_alone = (np.diff(knots)[:-1] > 1e-9) & (np.diff(knots)[1:] > 1e-9)  # not two knots one rounding apart
    knots = knots[1:-1][is_alone]
    for bound in (both.lower, both.upper):
        np.testing.assert_array_equal(bound(np.nextafter(knots, 1.0)), bound(knots))
    np.testing.assert_array_equal(both.lower_left_limit(knots), both.lower(np.nextafter(knots, 0.0)))


@settings(max_examples=20)
@given(client_risks(max_clients=10), METHODS, LOCALS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_quantile_bounds_are_the_generalised_inverses(risks, method, local, x, p):
    """q(p) <= x if and only if p <= F(x): the Galois connection, on either side."""
    both = build(risks, delta=0.1, method=method, local=local, sides="two")
    grid = [x, *both.lower_points, *both.upper_points]
    levels = [p, *both.lower_levels, *both.upper_levels]
    for level in levels:
        np.testing.assert_array_equal(both.quantile_upper(level) <= grid, level <= both.lower(grid))
        np.testing.assert_array_equal(both.quantile_lower(level) <= grid, level <= both.upper(grid))


@settings(deadline=None)
@given(client_risks(), st.randoms(use_true_random=False), METHODS, LOCALS)
def test_the_order_of_the_clients_does_not_matter(risks, random, method, local):
    order = list(range(risks.num_clients))
    random.shuffle(order)
    shuffled = rb.ClientRisks(risks.values[order], risks.num_examples[order], binary=risks.binary)
    for sides in ("lower", "upper"):
        first = build(risks, delta=0.1, method=method, local=local, sides=sides)
        second = build(shuffled, delta=0.1, method=method, local=local, sides=sides)
        np.testing.assert_array_equal(first.lower_points, second.lower_points)
        np.testing.assert_array_equal(first.lower_levels, second.lower_levels)
        np.testing.assert_array_equal(first.upper_points, second.upper_points)
        np.testing.assert_array_equal(first.upper_levels, second.upper_levels)


@settings(deadline=None)
@given(client_risks(kinds=("bounded",)), st.integers(2, 50), METHODS)
def test_more_examples_at_the_same_risks_give_a_tighter_band(risks, factor, method):
    more = rb.ClientRisks(risks.values, risks.num_examples * factor, binary=False)
    few, many = (build(r, delta=0.1, method=method, sides="lower") for r in (risks, more))
    assert np.all(many.lower(POINTS) >= few.lower(POINTS) - ROUNDING)
    few, many = (build(r, delta=0.1, method=method, sides="upper") for r in (risks, more))
    assert np.all(many.upper(POINTS) <= few.upper(POINTS) + ROUNDING)


@settings(deadline=None)
@given(client_risks(kinds=("binary", "binary, unequal")), st.integers(2, 50), st.sampled_from([1e-3, 0.05, 0.3]))
def test_more_examples_give_tighter_binomial_limits(risks, factor, eta):
    more = rb.ClientRisks(risks.values, risks.num_examples * factor, binary=True)
    assert np.all(more.upper_limits(eta) <= risks.upper_limits(eta) + ROUNDING)
    assert np.all(more.lower_limits(eta) >= risks.lower_limits(eta) - ROUNDING)


@settings(deadline=None)
@given(client_risks(kinds=("binary", "bounded")), METHODS, st.sampled_from(ETA_GRID))
def test_dividing_by_one_minus_eta_is_tighter_than_subtracting_eta_everywhere(risks, method, eta):
    """The subtractive version of the design, F >= G - eta, from the same limits and levels."""
    observed = build(risks, delta=0.1, method=method, local="observed", sides="lower")
    limits = np.sort(risks.upper_limits(eta))
    reached = limits[:, None] <= POINTS
    levels = observed.lower(np.sort(risks.values))  # ties take their largest level, as they may
    subtractive = np.max(np.where(reached, levels[:, None] - eta, 0.0), axis=0)
    assert np.all(build(risks, delta=0.1, method=method, eta=eta).lower(POINTS) >= subtractive - ROUNDING)
    assert np.all(build(risks, delta=0.1, method=method).lower(POINTS) >= subtractive - ROUNDING)

    observed = build(risks, delta=0.1, method=method, local="observed", sides="upper")
    limits = np.sort(risks.lower_limits(eta))
    levels = observed.upper(np.nextafter(np.sort(risks.values), -1.0).clip(0.0))
    levels[np.sort(risks.values) <= 0.0] = 1.0
    subtractive = np.min(np.where(limits[:, None] > POINTS, levels[:, None] + eta, 1.0), axis=0)
    assert np.all(build(risks, delta=0.1, method=method, sides="upper").upper(POINTS) <= subtractive + ROUNDING)


@settings(deadline=None)
@given(client_risks(kinds=("binary", "bounded")), METHODS)
def test_all_etas_together_are_at_least_as_tight_as_each(risks, method):
    every = build(risks, delta=0.1, method=method).lower(POINTS)
    for eta in (*ETA_GRID, default_eta(risks.num_clients)):
        assert np.all(every >= build(risks, delta=0.1, method=method, eta=eta).lower(POINTS))


@settings(deadline=None)
@given(client_risks(), METHODS, LOCALS)
def test_the_law_for_means_is_a_law(risks, method, local):
    law = build(risks, delta=0.1, method=method, local=local).distribution_for_means
    assert np.all(np.diff(law.risks) >= 0.0)
    assert law.risks[-1] == 1.0
    assert np.all(law.weights >= 0.0)
    assert abs(law.weights.sum() - 1.0) < 1e-12
    assert set(law.clients.tolist()) == set(range(risks.num_clients))


@settings(deadline=None)
@given(client_risks(kinds=("binary", "bounded")), DELTAS, METHODS, st.sampled_from(["two", "lower", "upper"]))
def test_the_closed_form_is_nowhere_wider_than_the_grid_of_etas(risks, delta, method, sides):
    """And it holds the band for what was measured, so that clients that measure their risk exactly cannot break it."""
    every, grid = (build(risks, delta=delta, method=method, sides=sides, eta=eta) for eta in (None, "grid"))
    observed = build(risks, delta=delta, method=method, sides=sides, local="observed")
    knots = [band_knots for b in (every, grid, observed) for band_knots in (b.lower_points, b.upper_points)]
    at = np.unique(np.concatenate([*knots, POINTS]))
    at = at[(at > 1e-9) & (at < 1.0 - 1e-9)]
    if sides != "upper":
        assert np.all(every.lower(np.minimum(at + SEARCH, 1.0)) >= grid.lower(at) - ROUNDING)
        assert np.all(every.lower(at) <= observed.lower(np.minimum(at + SEARCH, 1.0)) + ROUNDING)
    if sides != "lower":
        assert np.all(every.upper(np.maximum(at - SEARCH, 0.0)) <= grid.upper(at) + ROUNDING)
        assert np.all(every.upper(np.minimum(at + SEARCH, 1.0)) >= observed.upper(at) - ROUNDING)
