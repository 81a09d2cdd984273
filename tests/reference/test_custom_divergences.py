"""Divergences of one's own: against closed forms and cvxpy, never below the truth, and with no call per budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

import riskband as rb
from riskband.worst_cases.divergences import Polygon, dual_robust_mean, outer_polygon, robust_mean
from riskband.worst_cases.reweighting import reference_robust_mean
from tests.reference.definitions import cubic, le_cam

# the built-in ones as a user might write them: with a slope at 1, and without their closed forms
AS_USERS_WRITE = {
    "kl": (lambda t: xlogy(t, t), np.inf),
    "chi2": (lambda t: t**2 - 1.0, np.inf),
    "tv": (lambda t: np.abs(t - 1.0) / 2.0, 0.5),
    "hellinger2": (lambda t: 2.0 - 2.0 * np.sqrt(t), 0.0),
}
SMOOTH = {
    "le-cam": lambda t: (t - 1.0) ** 2 / (t + 1.0),
    "cubic": lambda t: (t**3 - 3.0 * t + 2.0) / 6.0,
    "-log": lambda t: t - 1.0 - np.log(t),
}


def reverse_kl():
    return rb.custom_divergence(
        "reverse", lambda t: -np.log(t), slope_at_infinity=0.0, cvxpy_generator=lambda cp, t: -cp.log(t)
    )


def kinked():
    """A corner between the points at which the generator is read."""
    return rb.custom_divergence(
        "kinked",
        lambda t: np.square(t - 1.0) + 3.0 * np.maximum(t - 1.37, 0.0),
        slope_at_infinity=np.inf,
        cvxpy_generator=lambda cp, t: cp.square(t - 1.0) + 3.0 * cp.pos(t - 1.37),
    )


def broken_line():
    """The worst case is not unique, and its ratios jump."""
    return rb.custom_divergence(
        "line",
        lambda t: np.abs(t - 1.37) - 0.37,
        slope_at_infinity=1.0,
        cvxpy_generator=lambda cp, t: cp.abs(t - 1.37) - 0.37,
    )


def some_law(num_atoms, *, top_weight):
    rng = np.random.default_rng(5)
    values = np.append(np.sort(rng.random(num_atoms)), 1.0)
    return values, np.append(rng.dirichlet(np.ones(num_atoms)) * (1.0 - top_weight), top_weight)


@pytest.mark.parametrize("top_weight", [0.03, 0.0])
@pytest.mark.parametrize("num_atoms", [5, 200])
@pytest.mark.parametrize("name", AS_USERS_WRITE)
def test_a_built_in_divergence_written_by_a_user_is_met_from_above(name, num_atoms, top_weight):
    generator, slope = AS_USERS_WRITE[name]
    own = rb.custom_divergence(f"own {name}", generator, slope_at_infinity=slope)
    values, weights = some_law(num_atoms, top_weight=top_weight)
    for budget in (1e-12, 1e-8, 1e-4, 0.03, 0.3, 1.0, 8.0):
        exact, _ = robust_mean(values, weights, divergence=rb.DIVERGENCES[name], budget=budget)
        if np.isinf(slope):  # the search of the closed form ends a little above the largest risk
            exact = min(exact, values[weights > 0.0].max())
        value, worst = robust_mean(values, weights, divergence=own, budget=budget)
        assert -1e-12 <= value - exact <= 1e-6
        assert worst @ values == pytest.approx(value, abs=5e-5)
        assert worst.sum() == pytest.approx(1.0, abs=1e-12)
        assert worst.min() >= 0.0


@pytest.mark.parametrize("budget", [1e-3, 0.05, 0.5, 2.0])
@pytest.mark.parametrize("make", [le_cam, cubic, reverse_kl, kinked, broken_line])
def test_the_bound_is_the_optimum_of_cvxpy_to_six_digits_and_never_below(make, budget):
    values, weights = some_law(60, top_weight=0.03)
    divergence = make()
    optimum, _ = reference_robust_mean(values, weights, divergence=divergence, budget=budget)
    value, worst = robust_mean(values, weights, divergence=divergence, budget=budget)
    assert -1e-9 <= value - optimum <= 1e-6
    assert worst @ values == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("name", SMOOTH)
def test_the_polygon_is_below_the_function_but_hardly(name):
    f = SMOOTH[name]
    polygon = outer_polygon(f)
    off_the_grid = np.random.default_rng(6).random(5000)
    for t in (10.0 ** (22.0 * off_the_grid - 11.0), 1.0 + 10.0 ** (4.0 * off_the_grid - 4.0)):
        assert np.all(polygon.height(t) <= f(t))
        assert np.all(polygon.height(t) >= f(t) * (1.0 - 1e-5) - 1e-12 - 1e-13 * t)


def test_a_polygon_by_hand():
    """Corners (0, 1), (1, 0) and (3, 4), and slope 5 from there on."""
    polygon = Polygon(np.array([0.0, 1.0, 3.0]), np.array([1.0, 0.0, 4.0]), np.array([-1.0, 2.0, 5.0]))
    assert polygon.height(np.array([0.0, 0.5, 2.0, 3.0, 5.0, np.inf])).tolist() == [1.0, 0.5, 2.0, 4.0, 14.0, np.inf]
    assert polygon.best_ratio(np.array([-2.0, 0.0, 3.0, 4.9, 6.0])).tolist() == [0.0, 1.0, 3.0, 3.0, np.inf]


@pytest.mark.parametrize("slope", [-3.0, -0.2, 0.0, 0.4, 0.8])
@pytest.mark.parametrize("name", SMOOTH)
def test_the_corners_maximise_the_conjugate(name, slope):
    f = SMOOTH[name]
    polygon = outer_polygon(f)
    conjugate = -minimize_scalar(lambda t: f(t) - slope * t, bounds=(1e-9, 100.0), options={"xatol": 1e-10}).fun
    best = polygon.best_ratio(np.array(slope))
    assert -1e-12 <= slope * best - polygon.height(best) - conjugate <= 1e-5 * (1.0 + abs(conjugate))


def test_a_polygon_through_the_function_would_be_above_it_and_its_bound_too_small():
    """The known wrong formula: chords instead of what lies below them."""
    t = np.concatenate([[0.0], np.geomspace(0.01, 100.0, 40)])
    f = xlogy(t, t) - t + 1.0
    slopes = np.diff(f) / np.diff(t)
    inner = Polygon(t, f, np.append(slopes, np.log(100.0)))
    values, weights = some_law(60, top_weight=0.03)
    shape = {"generator": inner.height, "best_ratio": inner.best_ratio, "slope_at_infinity": float(inner.slopes[-1])}
    exact, _ = robust_mean(values, weights, divergence=rb.DIVERGENCES["kl"], budget=0.05)
    assert dual_robust_mean(values, weights, 0.05, **shape)[0] < exact - 1e-4


def some_band(num_clients):
    rng = np.random.default_rng(7)
    return rb.band(rb.ClientRisks(rng.binomial(100, rng.beta(3, 21, num_clients)) / 100, 100), delta=0.05)


def test_the_generator_is_read_when_the_divergence_is_made_and_not_for_each_budget():
    num_calls = 0

    def generator(t):
        nonlocal num_calls
        num_calls += 1
        return (t - 1.0) ** 2 / (t + 1.0)

    own = rb.custom_divergence("counted", generator, slope_at_infinity=1.0)
    assert 1 <= num_calls <= 10
    num_calls, band = 0, some_band(200)
    rb.worst_case_mean(band, divergence=own, budget=[1e-6, 0.05, 0.2, 1.0])
    rb.breakdown(band, divergence=own, target=0.3)
    assert num_calls == 0
    rb.worst_case_cdf(band, divergence=own, budget=[0.05, 0.2])
    assert 1 <= num_calls <= 130  # two sides of an event, 60 halvings for all thresholds and budgets at once


@pytest.mark.filterwarnings("error")
def test_a_generator_that_leaves_the_floats_far_out_is_good_enough():
    """To put all mass on one of two equal atoms costs (f(2) + f(0))/2."""

    def generator(t):
        return (t**40 - 1.0) / 1560.0

    own = rb.custom_divergence("steep", generator, slope_at_infinity=np.inf)
    law = np.array([0.2, 0.7]), np.array([0.5, 0.5])
    whole = (2.0**40 / 2.0 - 1.0) / 1560.0
    assert robust_mean(*law, divergence=own, budget=1.001 * whole)[0] == pytest.approx(0.7, abs=1e-9)
    assert robust_mean(*law, divergence=own, budget=0.5 * whole)[0] < 0.7 - 1e-3
    with pytest.raises(ValueError, match="slope_at_infinity"):
        rb.custom_divergence("steep", generator, slope_at_infinity=5.0)


def test_both_ends_of_a_breakdown_are_honest():
    band, own = some_band(50), le_cam()
    bracket = rb.breakdown(band, divergence=own, target=0.3)
    low, high = rb.worst_case_mean(band, divergence=own, budget=list(bracket)).value
    assert low <= 0.3 < high
    assert 0.0 < bracket.upper - bracket.lower <= 1e-6 * bracket.upper


def test_a_generator_for_flat_arrays_that_changes_its_argument_is_good_enough():
    def generator(t):
        t -= 1.0
        return np.array([each * each for each in t])

    own = rb.custom_divergence("flat", generator, slope_at_infinity=np.inf)
    probabilities = np.array([[0.1, 0.2], [0.3, 0.4]])
    np.testing.assert_allclose(
        rb.binary_worst_case(probabilities, divergence=own, budget=0.1),
        rb.binary_worst_case(probabilities, divergence="chi2", budget=0.1),
        atol=1e-9,
    )


def square_of_the_first(t):
    return (t[0] - 1.0) ** 2


@pytest.mark.parametrize(
    ("generator", "got"),
    [
        (lambda t: t * math.log(t), "TypeError"),
        (lambda t: 0.0 if t < 1.0 else t - 1.0, "ValueError"),
        (lambda t: None, "None"),
        (lambda t: 0.0, "shape ()"),
        (square_of_the_first, "shape ()"),
        (lambda t: (t - 1.0)[:, np.newaxis] ** 2, "1)"),
        (lambda t: ((t - 1.0) ** 2)[:-1], "shape (800,)"),
        (lambda: 0.0, "TypeError"),
        (lambda t, s: t - s, "TypeError"),
        (lambda t: 1 / 0, "ZeroDivisionError"),
        (lambda t: (t - 1.0) ** 2 + 0j, "0j"),
        (lambda t: t.astype(str), "'0.0'"),
        (lambda t: t > 1.0, "False"),
    ],
)
def test_a_function_that_is_no_generator_is_refused_in_words(generator, got):
    with pytest.raises(ValueError, match="must take an array and return one of the same shape") as caught:
        rb.custom_divergence("own", generator, slope_at_infinity=np.inf)
    assert got in str(caught.value)
    assert "numpy.log and numpy.where" in str(caught.value)


def test_a_generator_without_a_value_at_0_is_refused():
    with pytest.raises(ValueError, match=r"at t = 0.*got nan.*xlogy"):
        rb.custom_divergence("t log t", lambda t: t * np.log(t), slope_at_infinity=np.inf)


def test_a_cvxpy_generator_that_is_no_function_is_refused():
    with pytest.raises(ValueError, match="cvxpy_generator must be"):
        rb.custom_divergence("own", lambda t: (t - 1.0) ** 2, slope_at_infinity=np.inf, cvxpy_generator="square")
