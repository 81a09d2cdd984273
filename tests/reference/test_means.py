"""Bounds for the mean alone: formulas by hand, and betting against a plain implementation over a grid of means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

import riskband as rb
from riskband.betting import betting_upper_mean
from riskband.functionals.functional import interval_of
from tests.sampling import every

CELLS = np.arange(4000) / 4000


def aims_anew(lacking, num_left, variance):
    return math.sqrt(2 * lacking / (num_left * variance))


def bolder_when_ahead(lacking, num_left, variance):
    return 4 / lacking**4


def refuted(values, delta, stake_for):
    """Whether each mean of the grid is refuted, played client by client: the capital gets to 1/delta at some time."""
    found = np.zeros(CELLS.size, dtype=bool)
    for place, m in enumerate(CELLS.tolist()):
        capital, total, square = 1.0, 0.5, 0.25
        for seen, x in enumerate(values, start=1):
            lacking = math.log(1 / delta) - math.log(capital)
            stake = stake_for(lacking, len(values) - seen + 1, square / seen)
            capital *= 1 + min(stake, 0.99 / (1 - m)) * (m - x)
            if capital >= 1 / delta:
                found[place] = True
                break
            total += x
            square += (x - total / (seen + 1)) ** 2
    return found


@pytest.mark.parametrize("delta", [0.3, 0.05, 0.001])
@pytest.mark.parametrize("seed", range(4))
def test_betting_ends_above_the_largest_mean_that_is_not_refuted(delta, seed):
    rng = np.random.default_rng(seed)
    values = [rng.beta(3, 21, 60), rng.random(12), rng.binomial(1, 0.1, 40), np.full(25, 0.25)][seed].astype(float)
    order = np.random.default_rng(7).permutation(values.size)
    certificate = rb.mean_bound(rb.ClientRisks(values, 1, binary=False), delta=delta, seed=7)
    largest = CELLS[~refuted(values[order].tolist(), delta, aims_anew)].max()
    assert largest <= certificate.value <= largest + 1 / 4000 + 1e-9


def test_negative_control_halving_finds_too_small_a_mean_where_stakes_grow_with_what_was_won():
    """Stakes that aim anew refute an interval of means, which halving relies on; others need not."""
    values = [*[0.0] * 18, 1.0, *[0.0] * 10]
    found = refuted(values, 0.05, bolder_when_ahead)
    low, high = 0, CELLS.size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found[middle] else (middle, high)
    assert CELLS[high] < CELLS[~found].max() - 0.2
    assert np.all(np.diff(refuted(values, 0.05, aims_anew).astype(int)) >= 0)


@pytest.mark.parametrize(
    ("seed", "num_clients", "delta", "limit"),
    [(0, 50, 0.05, 0.187053), (1, 50, 0.2, 0.140532), (2, 500, 0.05, 0.131714)],
)
def test_limits_of_another_implementation(seed, num_clients, delta, limit):
    """Of the same rule, for whole networks at once (the prototype in the design of this library)."""
    rng = np.random.default_rng(seed)
    values = rng.binomial(100, rng.beta(3, 21, num_clients)) / 100
    assert betting_upper_mean(values, delta=delta) == pytest.approx(limit, abs=2e-6)


def test_hoeffding_by_hand():
    risks = rb.ClientRisks([0.0, 0.2, 0.1, 0.1], 10)
    assert rb.mean_bound(risks, delta=math.exp(-2.0), method="hoeffding").value == pytest.approx(0.1 + 0.5)


def test_empirical_bernstein_by_hand():
    values = [0.0, 0.2] * 500  # sample variance 0.01 · 1000/999, log(2/delta) = 2
    expected = 0.1 + math.sqrt(2 * (0.01 * 1000 / 999) * 2 / 1000) + 7 * 2 / (3 * 999)
    risks = rb.ClientRisks(values, 10)
    assert rb.mean_bound(risks, delta=2 * math.exp(-2.0), method="empirical_bernstein").value == pytest.approx(expected)


def test_theorem_4_1_by_hand():
    """log((K + 1)/delta) = 2 with K = 4: between clients sqrt(2/8) = 0.5, within sqrt(2/200) = 0.1 and 0.05."""
    risks = rb.ClientRisks([0.1, 0.2, 0.0, 0.1], [100, 100, 400, 400])
    published = rb.mean_bound(risks, delta=5 * math.exp(-2.0), method="published")
    assert published.value == pytest.approx(0.1 + 0.5 + 0.075)


def test_bounds_never_exceed_one():
    risks = rb.ClientRisks([0.9, 1.0], 10)
    for method in ("betting", "hoeffding", "empirical_bernstein", "published"):
        assert rb.mean_bound(risks, delta=0.01, method=method).value <= 1.0


def test_betting_has_the_smallest_slack_in_the_designs_example():
    """K = 500, n = 100, risks ~ Beta(3, 21): slacks over the normal one were 64, 11, 5.2, 4.8 and 1.8."""
    rng = np.random.default_rng(11)
    values = rng.binomial(100, rng.beta(3, 21, 500)) / 100
    risks = rb.ClientRisks(values, 100)
    normal = 1.645 * values.std() / math.sqrt(500)
    slack = {
        method: (rb.mean_bound(risks, delta=0.05, method=method).value - values.mean()) / normal
        for method in ("published", "hoeffding", "empirical_bernstein", "betting")
    }
    slack["band"] = (rb.mean(rb.band(risks, delta=0.05, sides="lower")).value - values.mean()) / normal
    expected = {"published": 64, "hoeffding": 11, "empirical_bernstein": 5.2, "band": 4.8, "betting": 1.8}
    for method, ratio in expected.items():
        assert slack[method] == pytest.approx(ratio, rel=0.15)


def weighted_limit(losses, weights, delta):
    """Root of the capital of six constant stakes, multiplied out, on weights times (v - loss)."""
    stakes = np.sqrt(2 * np.log(1 / delta) / len(losses)) / (0.03 * (0.5 / 0.03) ** (np.arange(6) / 5))

    def excess(v):
        cut = np.minimum(stakes, 0.99 / (1 - v))[:, None]
        return np.mean(np.prod(1 + cut * weights * (v - losses), axis=1)) - 1 / delta

    return brentq(excess, np.average(losses, weights=weights), 1 - 1e-9, xtol=1e-12)


@pytest.mark.parametrize("name", every("functional", ["example_mean:90", "example_mean:400"]))
def test_example_means_are_roots_of_the_capital(name):
    rng = np.random.default_rng(5)
    sizes = rng.integers(10, 91, 80)
    wrong = rng.binomial(sizes, rng.beta(1 + sizes / 30, 8))
    found = interval_of(rb.ClientRisks(wrong / sizes, sizes, binary=True), name, delta=0.1)
    weights = sizes / float(name.partition(":")[2])
    assert found.upper == pytest.approx(weighted_limit(wrong / sizes, weights, 0.05), abs=1e-9)
    assert found.lower == pytest.approx(1 - weighted_limit(1 - wrong / sizes, weights, 0.05), abs=1e-9)
