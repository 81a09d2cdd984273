"""How far a target network is, against cvxpy, closed forms and single events."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import riskband as rb
from riskband.worst_cases.divergence_bounds import taut_string
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
    assert (bound.name, bound.value, bound.to_dict()["value"]) == ("divergence:kl", np.inf, None)
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
