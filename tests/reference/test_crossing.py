"""Crossing probabilities against rational determinants, SciPy's Kolmogorov-Smirnov laws and simulation."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ksone, kstwo

from riskband.bands.crossing import crossing_probability
from riskband.bands.methods import NAMED_LEVELS
from tests.sampling import every

DENOMINATOR = 24


def determinant(rows):
    """Bareiss elimination over the rationals."""
    matrix = [list(row) for row in rows]
    sign, value = 1, Fraction(1)
    for column in range(len(matrix)):
        pivot = next((r for r in range(column, len(matrix)) if matrix[r][column] != 0), None)
        if pivot is None:
            return Fraction(0)
        if pivot != column:
            matrix[pivot], matrix[column], sign = matrix[column], matrix[pivot], -sign
        value *= matrix[column][column]
        for r in range(column + 1, len(matrix)):
            factor = matrix[r][column] / matrix[column][column]
            matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[column], strict=True)]
    return sign * value


def steck(lower, upper):
    """Steck 1971: n! det[(b_i - a_j)_+^(j-i+1) / (j-i+1)!], exact."""
    n = len(lower)
    if any(a > b for a, b in zip(lower, upper, strict=True)):
        return Fraction(0)

    def entry(i, j):
        power = j - i + 1
        if power < 0:
            return Fraction(0)
        return max(upper[i] - lower[j], Fraction(0)) ** power / factorial(power)

    return factorial(n) * determinant([[entry(i, j) for j in range(n)] for i in range(n)])


@st.composite
def corridors(draw):
    n = draw(st.integers(1, 8))
    lower = sorted(draw(st.lists(st.integers(0, DENOMINATOR - 1), min_size=n, max_size=n)))
    upper = sorted(draw(st.lists(st.integers(1, DENOMINATOR), min_size=n, max_size=n)))
    return [Fraction(a, DENOMINATOR) for a in lower], [Fraction(b, DENOMINATOR) for b in upper]


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        ([0, 0], [0.5, 1], 0.75),
        ([0, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1], 0.840529),
        ([0.02, 0.1, 0.2, 0.35, 0.5], None, 0.796584),
    ],
)
def test_the_reference_numbers_of_the_design(lower, upper, expected):
    assert crossing_probability(lower, upper) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", every("level method", NAMED_LEVELS))
def test_levels_of_every_method_hold_with_their_probability(method):
    for sides, delta in product(("lower", "upper", "two"), (0.01, 0.4)):
        lower, upper = NAMED_LEVELS[method](9, delta, sides)
        corridor = np.zeros(9) if lower is None else lower, np.ones(9) if upper is None else upper
        probability = float(steck(*([Fraction(each) for each in side.tolist()] for side in corridor)))
        assert 1.0 - delta - 1e-12 <= probability <= 1.0 - delta / 8.0


@settings(max_examples=300, deadline=None)
@given(corridors())
def test_rational_corridors_match_stecks_determinant(corridor):
    lower, upper = corridor
    found = crossing_probability([float(a) for a in lower], [float(b) for b in upper])
    assert found == pytest.approx(float(steck(lower, upper)), abs=1e-13)


@settings(max_examples=50, deadline=None)
@given(corridors())
def test_without_an_upper_boundary_it_is_one(corridor):
    lower, _ = corridor
    found = crossing_probability([float(a) for a in lower])
    assert found == pytest.approx(float(steck(lower, [Fraction(1)] * len(lower))), abs=1e-13)


@pytest.mark.guard
@pytest.mark.parametrize(
    ("lower", "upper"),
    [([0.0, 1.0], None), ([0.5, 1.0], None), ([0.0, 0.0], [0.0, 1.0]), ([1.0], [1.0])],
)
def test_a_boundary_that_no_uniform_variable_can_meet_has_probability_zero(lower, upper):
    assert crossing_probability(lower, upper) == 0.0


@pytest.mark.parametrize("n", [1, 2, 10, 100, 1000])
@pytest.mark.parametrize("scaled_width", [0.6, 1.0, 1.6])
def test_dkw_boundaries_have_the_laws_of_kolmogorov_and_smirnov(n, scaled_width):
    ranks, width = np.arange(1, n + 1) / n, scaled_width / np.sqrt(n)
    lower = np.clip(ranks - width, 0.0, 1.0)
    upper = np.clip(ranks - 1 / n + width, 0.0, 1.0)
    if width < 1.0:
        assert crossing_probability(lower) == pytest.approx(ksone.cdf(width, n), abs=1e-11)
        tolerance = 1e-11 if n <= 100 else 1e-7  # beyond, SciPy uses an approximation (Pelz and Good 1976)
        assert crossing_probability(lower, upper) == pytest.approx(kstwo.cdf(width, n), abs=tolerance)
    else:
        assert crossing_probability(lower, upper) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("width", [0.004, 0.008, 0.012])
def test_twenty_thousand_values_are_exact_too(width):
    n = 20_000
    lower = np.clip(np.arange(1, n + 1) / n - width, 0.0, 1.0)
    assert crossing_probability(lower) == pytest.approx(ksone.cdf(width, n), abs=2e-12)


def test_asymmetric_corridors_match_simulation():
    rng = np.random.default_rng(20)
    num_draws = 200_000
    for n in (3, 12, 30):
        ordered = np.sort(rng.random((num_draws, n)), axis=1)
        lower = np.sort(rng.beta(1, 3, n)) * np.arange(1, n + 1) / n
        upper = np.maximum(np.sort(rng.beta(6, 1, n)), lower)
        simulated = np.mean(np.all((ordered >= lower) & (ordered <= upper), axis=1))
        exact = crossing_probability(lower, upper)
        assert 0.01 < exact < 0.99  # otherwise the comparison says nothing
        assert abs(simulated - exact) < 5.0 * np.sqrt(exact * (1.0 - exact) / num_draws)
