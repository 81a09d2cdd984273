"""Worst cases for an event against scipy.optimize on the definition, and closed forms that are known by heart."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

import riskband as rb
from tests.reference.definitions import (
    GENERATORS,
    SUPERLINEAR,
    cubic,
    le_cam,
    tilted_hellinger,
    worst_event,
)
from tests.sampling import every

BUDGETS = [1e-6, 0.01, 0.1, 0.5, 1.0, 1.9]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", every("divergence", rb.DIVERGENCES))
def test_the_worst_case_of_an_event_solves_its_definition(name, budget):
    probabilities = np.array([1e-9, 1e-4, 0.03, 0.25, 0.5, 0.731, 0.98, 1 - 1e-6])
    expected = [worst_event(p, GENERATORS[name], budget) for p in probabilities]
    found = rb.binary_worst_case(probabilities, divergence=name, budget=budget)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("budget", [1e-30, 1e-22, 1e-17, 1e-14, 1e-9, 1e-4, 0.3, 30.0])
def test_kl_budgets_are_seen_however_small(budget):
    """Against 60 digits: no worst case of an event is wrong by more than its own last digits."""
    probabilities = np.array([1e-15, 1e-9, 0.03, 0.25, 0.5, 0.731, 1 - 1e-6, 1 - 1e-12])
    found = rb.binary_worst_case(probabilities, divergence="kl", budget=budget)
    with localcontext() as context:
        context.prec = 60
        for p, q in zip(map(Decimal, probabilities.tolist()), map(Decimal, found.tolist()), strict=True):
            slack = (q - p) / 10**12 + Decimal(2) / 10**16
            assert q == 1 or kl_of_events(q + slack, p) >= budget
            assert q - slack <= p or kl_of_events(q - slack, p) <= budget


@pytest.mark.parametrize("name", GENERATORS)
def test_the_ends_of_probability_and_budget(name):
    """What cannot happen does not, unless new clients may; what is sure stays sure; no budget goes beyond 1."""
    found = rb.binary_worst_case([[0.0], [0.3], [1.0]], divergence=name, budget=[0.0, 5.0, 1e6])
    most = 0.3 + np.sqrt(5.0 * 0.21) if name == "chi2" else 1.0
    new = 0.0 if name in ("kl", "chi2") else 1.0
    assert found[0].tolist() == [0.0, new, new]
    assert found[2].tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(found[1], [0.3, min(most, 1.0), 1.0], rtol=1e-15)


def kl_of_events(q, p):
    return q * (q / p).ln() + (1 - q) * ((1 - q) / (1 - p)).ln()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chi2", 0.2 + np.sqrt(0.09 * 0.2 * 0.8)),
        ("tv", 0.29),
        ("hellinger2", np.sin(np.arcsin(np.sqrt(0.2)) + np.arccos(1 - 0.045)) ** 2),
    ],
)
def test_closed_forms(name, expected):
    assert rb.binary_worst_case(0.2, divergence=name, budget=0.09) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("budget", BUDGETS)
def test_clients_that_the_source_never_shows_are_possible_only_at_a_finite_slope(budget):
    for name in SUPERLINEAR:
        assert rb.binary_worst_case(0.0, divergence=name, budget=budget) == 0.0
    assert rb.binary_worst_case(0.0, divergence="tv", budget=budget) == pytest.approx(min(budget, 1.0))
    # (sqrt(1-q) - 1)² + q = budget gives q = 1 - (1 - budget/2)²
    hellinger = rb.binary_worst_case(0.0, divergence="hellinger2", budget=budget)
    assert hellinger == pytest.approx(1 - (1 - budget / 2) ** 2, abs=1e-12)
    for name in GENERATORS:
        assert rb.binary_worst_case(1.0, divergence=name, budget=budget) == 1.0


@pytest.mark.parametrize("name", GENERATORS)
def test_built_in_generators_are_the_textbook_ones(name):
    """Up to c·(t - 1), which changes no divergence; the divergence of two Bernoulli laws is enough to see it."""
    target, source = np.array([0.3, 0.9, 0.01]), np.array([0.2, 0.2, 0.5])
    f = GENERATORS[name]
    expected = [p * f(q / p) + (1 - p) * f((1 - q) / (1 - p)) for q, p in zip(target, source, strict=True)]
    np.testing.assert_allclose(rb.DIVERGENCES[name].binary(target, source), expected, rtol=1e-12)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_inverse_of_the_derivative_maximises(name):
    f = rb.DIVERGENCES[name]
    grid = np.linspace(0, 60, 600_001)
    for slope in (-3.0, -0.4, 0.0, 0.3, 0.8):
        if slope >= f.slope_at_infinity:
            continue
        best = float(f.best_ratio(np.array(slope)))
        assert slope * best - float(f.generator(np.array(best))) >= np.max(slope * grid - f.generator(grid)) - 1e-9


@pytest.mark.parametrize("budget", [0.01, 0.2])
@pytest.mark.parametrize(
    ("make", "f"),
    [
        (le_cam, lambda t: (t - 1) ** 2 / (t + 1)),
        (cubic, lambda t: (t**3 - 3 * t + 2) / 6),
    ],
)
def test_a_divergence_of_ones_own_solves_its_definition(make, f, budget):
    probabilities = np.array([0.01, 0.3, 0.9])
    expected = [worst_event(p, f, budget) for p in probabilities]
    np.testing.assert_allclose(
        rb.binary_worst_case(probabilities, divergence=make(), budget=budget), expected, atol=1e-10
    )


@pytest.mark.parametrize("tilt", [-1.0, 0.0, 0.5, 3.0])
def test_a_multiple_of_t_minus_one_changes_nothing(tilt):
    p = np.array([0.0, 0.1, 0.6])
    np.testing.assert_allclose(
        rb.binary_worst_case(p, divergence=tilted_hellinger(tilt), budget=0.1),
        rb.binary_worst_case(p, divergence="hellinger2", budget=0.1),
        atol=1e-8,
    )
