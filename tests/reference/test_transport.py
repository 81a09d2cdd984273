"""Knapsacks, envelopes and the meta-problem against linear programs, brute force and each other."""

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import riskband as rb
from riskband.answers.concave_curves import (
    ConcaveCurve,
    inner_curve,
    knapsack_curve,
    network_curve,
    outer_curve,
    rounding_of_curve,
)
from riskband.worst_cases.network_attack import KnownPoints, bisection, dual, one_round

costs_of_a_client = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.7, 1.0, 3.0, np.inf]), min_size=1, max_size=7)


def random_network(seed, num_clients=12, num_examples=15):
    rng = np.random.default_rng(seed)
    is_wrong = rng.random((num_clients, num_examples)) < 0.1
    return np.where(
        is_wrong, 0.0, rng.gamma(2.0, 0.5, (num_clients, num_examples)) * rng.uniform(0.5, 2, (num_clients, 1))
    )


def pooled_knapsack(costs):
    """One knapsack of the examples of all clients, each weighing 1/(num_clients·num_examples_k)."""
    weights = [np.full(len(part), 1.0 / (len(costs) * len(part))) for part in costs]
    return knapsack_curve(np.concatenate(costs), np.concatenate(weights))


def transport_program(points, labels, support, predictions, budget):
    """Largest error over all couplings of the examples with a finite support: the definition, as a linear program.

    `points` (n,) on a line with `labels` (n,); mass may move to any `support` point, at cost |x - x'|.
    """
    n, m = len(points), len(support)
    cost = np.abs(points[:, None] - support[None, :])
    gain = (predictions[None, :] != labels[:, None]).astype(float)
    rows = np.kron(np.eye(n), np.ones(m))
    found = linprog(-gain.ravel(), A_ub=[cost.ravel()], b_ub=[budget], A_eq=rows, b_eq=np.full(n, 1.0 / n))
    assert found.success
    return -found.fun


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [0.0, 0.05, 0.2, 0.6])
def test_knapsack_is_the_transport_program(seed, budget):
    rng = np.random.default_rng(seed)
    support = np.linspace(-2, 2, 41)
    predictions = (support > 0.05).astype(int)
    points = rng.choice(support, size=6)
    labels = rng.integers(0, 2, size=6)
    distances = np.abs(points[:, None] - support[None, :])
    costs = [distances[i, predictions != labels[i]].min() for i in range(6)]
    assert knapsack_curve(costs)(budget) == pytest.approx(
        transport_program(points, labels, support, predictions, budget)
    )


def fractional_knapsack(costs, weights, budget):
    """Greedy, one example after the other, as on paper."""
    total = 0.0
    for cost, weight in sorted(zip(costs, weights, strict=True)):
        if not np.isfinite(cost):
            break
        share = 1.0 if cost == 0.0 else min(1.0, budget / (cost * weight))
        total, budget = total + share * weight, budget - share * cost * weight
        if share < 1.0:
            break
    return total


@given(costs=costs_of_a_client, budget=st.floats(0, 4))
def test_knapsack_is_greedy(costs, budget):
    weights = np.full(len(costs), 1.0 / len(costs))
    assert knapsack_curve(costs)(budget) == pytest.approx(fractional_knapsack(costs, weights, budget))


@given(costs=costs_of_a_client, multiplier=st.floats(1e-3, 50))
def test_conjugate_of_the_knapsack_is_the_mean_of_flips(costs, multiplier):
    wanted = np.mean([max(1.0 - multiplier * cost, 0.0) if np.isfinite(cost) else 0.0 for cost in costs])
    assert knapsack_curve(costs).conjugate(multiplier) == pytest.approx(wanted)


@given(network=st.lists(costs_of_a_client, min_size=1, max_size=5), budget=st.floats(0, 4))
def test_pooled_knapsack_is_the_merged_network(network, budget):
    merged = network_curve([knapsack_curve(costs) for costs in network])
    assert pooled_knapsack(network)(budget) == pytest.approx(float(merged(budget)))


@given(costs=costs_of_a_client, value=st.floats(0, 1))
def test_inverse_is_the_least_budget_that_reaches_a_value(costs, value):
    curve = knapsack_curve(costs)
    budget = float(curve.inverse(value))
    if np.isinf(budget):
        assert curve.values[-1] < value
    else:
        assert curve(budget) >= value - 1e-9
        assert budget == 0.0 or curve(budget * (1 - 1e-6)) <= value


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), num_radii=st.integers(2, 9))
def test_envelopes_enclose_the_curve(seed, num_radii):
    rng = np.random.default_rng(seed)
    curve = knapsack_curve(random_network(seed, 1, 8)[0])
    radii = np.concatenate([[0.0], np.sort(rng.uniform(0.01, 4.0, num_radii - 1))])
    inner, outer = inner_curve(radii, curve(radii)), outer_curve(radii, curve(radii))
    grid = np.linspace(0.0, 6.0, 400)
    assert np.all(inner(grid) <= curve(grid) + 1e-9)
    assert np.all(outer(grid) >= curve(grid) - 1e-9)
    np.testing.assert_allclose(inner(radii), curve(radii), atol=1e-9)


def test_outer_curve_by_hand():
    # Through (0, .2), (1, .5), (2, .6): below .4 + .1 x on [0, 1] and from 2 on, below .2 + .3 x and .6 on [1, 2].
    outer = outer_curve(np.array([0.0, 1.0, 2.0]), np.array([0.2, 0.5, 0.6]))
    np.testing.assert_allclose(outer.budgets, [0.0, 4 / 3, 6.0])
    np.testing.assert_allclose(outer.values, [0.4, 0.6, 1.0])


@given(start=st.floats(0.1, 0.8), slope=st.floats(0.01, 5.0), width=st.floats(1e-9, 1e-4), seed=st.integers(0, 1_000))
def test_radii_so_close_that_rounding_decides_the_slope_enclose_far_away_too(start, slope, width, seed):
    def truth(radii):
        return np.minimum(start + slope * radii, 0.9)

    ways = np.random.default_rng(seed).uniform(0.5, 1.5, 2)
    radii = np.concatenate([[0.0], width * np.cumsum(ways)])
    for measured in (truth(radii).astype(np.float32).astype(float), truth(radii) + 3e-8 * (np.arange(3) < 2)):
        rounding = rounding_of_curve(radii, measured)
        if rounding is not None:  # else it is refused
            outer = outer_curve(radii, measured, rounding=rounding)
            budgets = np.linspace(0.0, 1.0, 50)
            assert np.all(outer(budgets) >= truth(budgets) - 1e-6)


def by_cvxpy(curves, budget):
    """The meta-problem as a concave program: every curve is the minimum of its pieces, extended."""
    radii = cp.Variable(len(curves), nonneg=True)
    values = cp.Variable(len(curves))
    constraints = [cp.sum(radii) / len(curves) <= budget]
    for k, curve in enumerate(curves):
        constraints.append(values[k] <= curve.values[-1])
        slopes = np.diff(curve.values) / np.diff(curve.budgets)
        constraints += [
            values[k] <= y + slope * (radii[k] - x)
            for x, y, slope in zip(curve.budgets, curve.values, slopes, strict=False)
        ]
    problem = cp.Problem(cp.Maximize(cp.sum(values) / len(curves)), constraints)
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [0.02, 0.2, 1.0])
def test_all_routes_agree_with_cvxpy(seed, budget):
    curves = [knapsack_curve(costs) for costs in random_network(seed)]
    truth = by_cvxpy(curves, budget)
    assert network_curve(curves)(budget) == pytest.approx(truth, abs=1e-6)
    found = dual(lambda multiplier: [curve.conjugate(multiplier) for curve in curves], cost_budget=budget)
    assert found == pytest.approx(truth, abs=1e-6)
    halved = bisection(
        lambda clients, radii: [curves[k](radius) for k, radius in zip(clients, radii, strict=True)],
        num_clients=len(curves),
        cost_budget=budget,
        tolerance=1e-7,
    )
    assert halved.bracket.lower - 1e-7 <= truth <= halved.bracket.upper + 1e-7
    assert halved.bracket.upper - halved.bracket.lower <= 1e-6


@pytest.mark.parametrize("budget", [0.02, 0.2, 1.0])
def test_one_round_encloses_and_converges(budget):
    curves = [knapsack_curve(costs) for costs in random_network(0)]
    truth = float(network_curve(curves)(budget))
    gaps = []
    for num_radii in (10, 50, 250):
        radii = np.concatenate([[0.0], np.geomspace(0.001, 8.0, num_radii)])
        lower, upper = one_round(radii, [curve(radii) for curve in curves])
        assert lower(budget) - 1e-9 <= truth <= upper(budget) + 1e-9
        gaps.append(float(upper(budget) - lower(budget)))
    assert gaps[2] < gaps[1] < gaps[0]
    assert gaps[2] < 1e-2


def test_bisection_counts_what_it_asked():
    curves = [knapsack_curve(costs) for costs in random_network(1)]
    asked = []

    def ask(clients, radii):
        asked.append(len(clients))
        return [curves[k](radius) for k, radius in zip(clients, radii, strict=True)]

    brackets = []
    found = bisection(ask, num_clients=len(curves), cost_budget=0.1, on_round=brackets.append)
    assert (found.num_rounds, found.num_answers) == (len(asked), sum(asked))
    assert brackets[-1] == found.bracket
    assert all(b.lower >= a.lower and b.upper <= a.upper for a, b in pairwise(brackets))
    assert found.bracket.upper - found.bracket.lower <= 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: knapsack_curve([-1.0]), ">= 0"),
        (lambda: knapsack_curve([np.nan]), ">= 0"),
        (lambda: knapsack_curve([]), "at least one"),
        (lambda: ConcaveCurve(np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.1, 0.5])), "concave"),
        (lambda: ConcaveCurve(np.array([0.0, 1.0]), np.array([0.5, 0.1])), "nondecreasing"),
        (lambda: ConcaveCurve(np.array([0.1, 1.0]), np.array([0.1, 0.5])), "strictly from 0"),
        (lambda: one_round([0.0, 1.0], [[0.1, 0.2, 0.3]]), "one column per radius"),
        (lambda: bisection(lambda c, r: r, num_clients=2, cost_budget=0.0), "> 0"),
        (lambda: network_curve([]), "at least one curve"),
        (lambda: ConcaveCurve(np.array([0.0, np.nan, 2.0]), np.array([0.1, 0.2, 0.3])), "finite"),
        (lambda: ConcaveCurve(np.array([0.0, 1.0]), np.array([0.1, np.nan])), "finite"),
        (lambda: ConcaveCurve(np.array([0.0, np.inf]), np.array([0.1, 0.2])), "finite"),
        (lambda: ConcaveCurve(np.linspace(0, 1, 2001), np.linspace(0.5, 0.5 - 9e-7, 2001)), "nondecreasing"),
        (lambda: knapsack_curve([1.0, 2.0], [np.nan, 0.5]), "sum to at most 1"),
        (lambda: knapsack_curve([1.0, 2.0], [-0.5, 1.0]), "sum to at most 1"),
        (lambda: knapsack_curve([1.0, 2.0], [1.0, 1.0]), "sum to at most 1"),
        (lambda: one_round([0.0, 0.1], [[0.5, 2.0]]), "0, 1"),
        (lambda: one_round([0.0, 0.1], [[0.1, np.nan]]), "0, 1"),
        (lambda: bisection(lambda c, r: r, num_clients=2, cost_budget=0.1, known=[KnownPoints()]), "every client"),
        (lambda: bisection(lambda c, r: [0.1], num_clients=2, cost_budget=0.1), "one value per client"),
        (lambda: bisection(lambda c, r: r, num_clients=2, cost_budget=[0.1]), "cost_budget must be one"),
        (lambda: bisection(lambda c, r: r, num_clients=2, cost_budget=True), "cost_budget must be one"),
        (lambda: bisection(lambda c, r: r, num_clients=2, cost_budget=0.1, tolerance=np.nan), "tolerance must be"),
        (lambda: one_round([0.0, "x"], [[0.1, 0.2]]), "radii must be"),
        (lambda: dual(lambda m: [0.1, np.nan], cost_budget=0.1), "conjugates must lie"),
        (lambda: dual(lambda m: [], cost_budget=0.1), "one per client"),
        (lambda: dual(lambda m: [0.1], cost_budget="0.1"), "cost_budget must be one"),
        (lambda: dual(lambda m: [0.1], cost_budget=0.1, max_multiplier=np.inf), "max_multiplier must be"),
    ],
)
def test_wrong_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_client_that_falls_silent_widens_the_bracket_and_nothing_else():
    curves = [knapsack_curve(costs) for costs in random_network(2)]
    truth = float(network_curve(curves)(0.1))
    rounds = []

    def ask(clients, radii):
        rounds.append(set(clients.tolist()))
        answers = [curves[k](radius) for k, radius in zip(clients, radii, strict=True)]
        return [np.nan if k == 3 and len(rounds) > 1 else value for k, value in zip(clients, answers, strict=True)]

    found = bisection(ask, num_clients=len(curves), cost_budget=0.1, tolerance=1e-6)
    assert found.bracket.lower - 1e-9 <= truth <= found.bracket.upper + 1e-9
    assert found.bracket.upper - found.bracket.lower > 1e-3
    assert all(3 not in asked for asked in rounds[2:])


def test_another_budget_starts_from_what_is_known():
    curves = [knapsack_curve(costs) for costs in random_network(3)]

    def ask(clients, radii):
        return [curves[k](radius) for k, radius in zip(clients, radii, strict=True)]

    known = [KnownPoints() for _ in curves]
    first = bisection(ask, num_clients=len(curves), cost_budget=0.1, known=known)
    again = bisection(ask, num_clients=len(curves), cost_budget=0.1, known=known)
    assert again.num_answers == 0
    assert again.bracket == first.bracket
    second = bisection(ask, num_clients=len(curves), cost_budget=0.12, known=known)
    fresh = bisection(ask, num_clients=len(curves), cost_budget=0.12)
    assert second.num_answers < fresh.num_answers
    truth = float(network_curve(curves)(0.12))
    assert second.bracket.lower - 1e-9 <= truth <= second.bracket.upper + 1e-9


def test_a_cost_too_small_to_be_seen_is_no_cost():
    assert knapsack_curve([5e-324, 1.0])(0.01) >= 0.5


@pytest.mark.guard
@pytest.mark.parametrize("lie", [5.0, -1.0, np.inf, np.nan, 0.0])
def test_an_impossible_answer_silences_the_client_and_not_the_search(lie):
    curves = [knapsack_curve(costs) for costs in random_network(4)]
    truth = float(network_curve(curves)(0.1))
    known = [KnownPoints() for _ in curves]
    num_asked = 0

    def ask(clients, radii):
        nonlocal num_asked
        num_asked += 1
        answers = np.array([float(curves[k](radius)) for k, radius in zip(clients, radii, strict=True)])
        return np.where((clients == 2) & (num_asked > 2), lie, answers)

    found = bisection(ask, num_clients=len(curves), cost_budget=0.1, tolerance=1e-6, known=known)
    assert found.bracket.lower - 1e-9 <= truth <= found.bracket.upper + 1e-9
    assert [k for k, points in enumerate(known) if points.is_silent] in ([2], [])


# Curves of fewer digits than they were computed with.

DENSE_RADII = np.linspace(0.0, 4.0, 50)
FORMATS = {
    "float32": lambda values: values.astype(np.float32),
    "seven digits": lambda values: np.vectorize(lambda value: float(f"{value:.7g}"))(values),
    "four places": lambda values: np.round(values, 4),
    "float32 in print": lambda values: np.vectorize(lambda value: float(str(np.float32(value))))(values),
}


def dense_values(seed):
    """Exact curves of a network on a dense grid, with straight pieces; and its worst mean over the budget."""
    costs = list(random_network(seed, num_clients=8, num_examples=7))
    return np.array([knapsack_curve(each)(DENSE_RADII) for each in costs]), pooled_knapsack(costs)


def adversarial(values):
    return rb.AdversarialAnswers(DENSE_RADII, values, 100, cost="a cost", guarantee="exact", binary=False)


@pytest.mark.parametrize("name", FORMATS)
def test_rounded_curves_are_no_lie_and_their_bounds_stay_above_the_truth(name):
    budgets = np.linspace(0.0, 5.0, 60)
    for seed in range(15):
        values, worst_mean = dense_values(seed)
        rounded = FORMATS[name](values)
        answers, (lower, upper) = adversarial(rounded), one_round(DENSE_RADII, rounded)
        assert answers.rounding.max() <= 5e-5
        assert answers.rounding.all()
        for curve in (upper, network_curve(answers.curves)):
            assert np.all(curve(budgets) >= worst_mean(budgets) - 1e-12)
        assert np.all(lower(budgets) <= worst_mean(budgets) + 1e-12)
        assert np.max(upper(budgets) - network_curve(adversarial(values).curves)(budgets)) < 2e-3


def test_a_certificate_from_float32_is_not_below_that_from_float64_and_verifies():
    values, _ = dense_values(3)
    prices = np.geomspace(0.05, 2.0, 9)
    conjugates = np.max(values[:, None, :] - prices[:, None] * DENSE_RADII, axis=2)
    made = [
        rb.wasserstein_mean(
            rb.AdversarialAnswers(
                *(DENSE_RADII, values.astype(kind), 100),
                **{"cost": "a cost", "guarantee": "exact", "binary": False},
                **{"multipliers": prices, "conjugates": conjugates.astype(kind)},
            ),
            delta=0.05,
            cost_budget=[0.1, 0.5],
        )
        for kind in (np.float32, np.float64)
    ]
    assert np.all(made[0].value >= made[1].value)
    np.testing.assert_allclose(made[0].value, made[1].value, atol=1e-6)
    assert rb.verify(rb.Certificate.from_json(made[0].to_json())).ok


@pytest.mark.parametrize(
    "values",
    [
        [0.1, 0.2, 0.4],  # convex
        [0.1, 0.2, 0.30021],  # by more than rounding to four places explains
        np.array([0.1, 0.2, 0.301], dtype=np.float32),
        [0.1, 0.3, 0.2998],
    ],
)
def test_what_rounding_does_not_explain_is_refused(values):
    with pytest.raises(ValueError, match="nondecreasing and concave"):
        rb.AdversarialAnswers(
            [0.0, 1.0, 2.0], np.tile(values, (2, 1)), 10, cost="a cost", guarantee="exact", binary=True
        )
