"""Coverage of the Wasserstein certificates on networks whose worst case is known in closed form.

A client is wrong on a share e of its examples, and the others can be made wrong at a cost of s·U, U uniform on (0, 1):
four kinds of clients (e, s), equally likely. Against every network stands an adversary that knows this law: it moves
every client exactly as the worst case does, so the truth is the supremum itself and not an attack.
False-alarm rate of each test: 1e-4 (see `tests.validity.coverage`).
"""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import ksone

import riskband as rb
from riskband.answers.concave_curves import knapsack_curve, network_curve
from tests.validity.coverage import is_rejected, study

KINDS = tuple(product((0.05, 0.2), (0.5, 2.0)))
BUDGETS = np.array([0.0, 0.01, 0.05, 0.2])
THRESHOLDS = np.array([0.15, 0.25, 0.4, 0.7])
RADII = np.concatenate([[0.0], np.geomspace(5e-4, 4.0, 49)])


def flip_costs(rng, num_clients, num_examples):
    for kind in rng.integers(0, len(KINDS), num_clients):
        error, scale = KINDS[kind]
        yield np.where(rng.random(num_examples) < error, 0.0, scale * rng.random(num_examples))


def answers(rng, num_clients, num_examples, **changes):
    curves = [knapsack_curve(costs) for costs in flip_costs(rng, num_clients, num_examples)]
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True, **changes}
    return rb.AdversarialAnswers(RADII, [curve(RADII) for curve in curves], num_examples, **settings)


def mean_conjugate(multiplier):
    """E phi(P, multiplier): e + (1 - e) E(1 - multiplier·s·U)_+, averaged over the kinds."""
    total = 0.0
    for error, scale in KINDS:
        price = multiplier * scale
        total += error + (1 - error) * (1 - price / 2 if price <= 1 else 1 / (2 * price))
    return total / len(KINDS)


def true_worst_mean(budget):
    if budget == 0.0:
        return float(np.mean([error for error, _ in KINDS]))
    found = minimize_scalar(lambda x: np.exp(x) * budget + mean_conjugate(np.exp(x)), bounds=(-8, 8), method="bounded")
    return min(found.fun, mean_conjugate(0.0))


def true_worst_share(budget, threshold):
    """Greedy by hand: pushing a client of kind (e, s) to risk t costs s·(t - e)²/(2(1 - e))."""
    costs = sorted(s * max(threshold - e, 0.0) ** 2 / (2 * (1 - e)) for e, s in KINDS)
    share, left = 0.0, budget
    for cost in costs:
        part = 1.0 if cost == 0.0 else min(1.0, left * len(KINDS) / cost)
        share, left = share + part / len(KINDS), left - part * cost / len(KINDS)
        if part < 1.0:
            break
    return share


TRUE_MEANS = np.array([true_worst_mean(budget) for budget in BUDGETS])
TRUE_SHARES = np.array([[true_worst_share(budget, t) for t in THRESHOLDS] for budget in BUDGETS])


def test_truth_agrees_with_a_large_network():
    """The closed forms against the pooled knapsack of 1,000 clients with 1,000 examples each."""
    curves = [knapsack_curve(costs) for costs in flip_costs(np.random.default_rng(0), 1000, 1000)]
    np.testing.assert_allclose(network_curve(curves)(BUDGETS), TRUE_MEANS, atol=0.01)
    for j, threshold in enumerate(THRESHOLDS):
        pushed = knapsack_curve([float(curve.inverse(threshold)) for curve in curves])
        np.testing.assert_allclose(pushed(BUDGETS), TRUE_SHARES[:, j], atol=0.04)


def failures(make, *, num_networks, num_clients, num_examples, seed):
    found = []
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        value, truth = make(answers(np.random.default_rng(child), num_clients, num_examples))
        found.append(bool(np.any(np.asarray(value) < truth - 1e-9)))
    return found


@pytest.mark.parametrize(
    ("method", "seed", "num_networks"),
    [
        ("betting", 0, 30),
        ("hoeffding", None, 30),
        *(
            pytest.param(*each, 60, marks=pytest.mark.slow)
            for each in [("betting", 0), ("betting", None), ("hoeffding", None)]
        ),
    ],
)
@pytest.mark.parametrize(("num_clients", "num_examples"), [(50, 20), pytest.param(200, 50, marks=pytest.mark.slow)])
def test_mean_covers(method, seed, num_networks, num_clients, num_examples):
    def make(network):
        found = rb.wasserstein_mean(network, delta=0.2, cost_budget=BUDGETS, method=method, seed=seed)
        return found.value, TRUE_MEANS

    found = failures(make, num_networks=num_networks, num_clients=num_clients, num_examples=num_examples, seed=1)
    assert not is_rejected(found, 0.2)


@study(slow=100)
@pytest.mark.parametrize(("num_clients", "num_examples"), [(50, 20), pytest.param(200, 200, marks=pytest.mark.slow)])
def test_cdf_covers(num_clients, num_examples, num_networks):
    def make(network):
        found = rb.wasserstein_cdf(network, delta=0.2, cost_budget=BUDGETS, thresholds=THRESHOLDS, seed=0)
        return found.value, TRUE_SHARES

    found = failures(make, num_networks=num_networks, num_clients=num_clients, num_examples=num_examples, seed=2)
    assert not is_rejected(found, 0.2)


def test_negative_control_the_worst_case_of_the_sample_is_no_certificate():
    """The curve of the clients that answered, read as a bound: it fails about every second time."""

    def make(network):
        return network_curve(network.curves)(BUDGETS), TRUE_MEANS

    assert is_rejected(failures(make, num_networks=60, num_clients=50, num_examples=50, seed=3), 0.2)


@study(slow=100)
def test_theorem_6_3_covers_by_its_first_slack_alone(num_networks):
    """The proof of math §4.5 needs neither its constant, next to 0 here, nor the slack of the examples."""

    def make(network):
        found = rb.wasserstein_published(network, delta=0.2, cost_budget=BUDGETS[:3], cost_bound=1e-9)
        return np.asarray(found.value) - np.sqrt(np.log(51 / 0.2) / (2 * 1000)), TRUE_MEANS[:3]

    assert np.all(make(answers(np.random.default_rng(0), 50, 1000))[0] < 0.9)  # so that nothing was cut at 1
    assert not is_rejected(failures(make, num_networks=num_networks, num_clients=50, num_examples=1000, seed=4), 0.2)


@pytest.mark.parametrize(("num_clients", "worst"), [(1, 0.83), (2, 0.58), (4, 0.37), (20, 0.10)])
def test_the_slack_of_theorem_6_3_suffices_for_few_clients(num_clients, worst):
    """min_a E(D - a)_+ / (x - a) is at most that part of delta, D with the exact law of Kolmogorov's statistic."""
    points = np.linspace(0.0, 1.0, 2001)
    survival = ksone.sf(points, num_clients)
    excess = np.cumsum(survival[::-1])[::-1] / 2000  # E(D - a)_+, from above
    for delta in (0.001, 0.05, 0.2, 0.5, 0.8, 0.99):
        slack = np.sqrt(np.log((num_clients + 1) / delta) / (2 * num_clients))
        below = points < min(slack, 1.0) - 1e-3
        assert slack >= 1.0 or np.min(excess[below] / (slack - points[below])) <= worst * delta


@study(12)
def test_negative_control_the_law_of_costs_needs_its_local_limit(num_networks):
    """r_k(t) of the sample instead of r_k(t - tau): clients look harder to push than they are, or easier, at random."""

    def make(network):
        columns = [knapsack_curve([float(curve.inverse(t)) for curve in network.curves])(BUDGETS) for t in THRESHOLDS]
        return np.stack(columns, axis=-1), TRUE_SHARES

    assert is_rejected(failures(make, num_networks=num_networks, num_clients=200, num_examples=20, seed=5), 0.2)


@pytest.mark.slow
def test_means_cover_in_a_larger_study():
    def mean(network):
        return rb.wasserstein_mean(network, delta=0.1, cost_budget=BUDGETS).value, TRUE_MEANS

    assert not is_rejected(failures(mean, num_networks=100, num_clients=500, num_examples=20, seed=6), 0.1)


def test_attacks_give_estimates_and_proofs_give_certificates():
    rng = np.random.default_rng(0)
    for guarantee, validity in (("exact", "certificate"), ("upper", "certificate"), ("lower", "estimate")):
        network = answers(rng, 20, 30, guarantee=guarantee)
        for made in (
            rb.wasserstein_mean(network, delta=0.1, cost_budget=0.1),
            rb.wasserstein_cdf(network, delta=0.1, cost_budget=0.1, thresholds=0.5),
            rb.wasserstein_published(network, delta=0.1, cost_budget=0.1, cost_bound=2.0),
        ):
            assert made.validity == validity
            assert made.statement.startswith("Estimate") == (validity == "estimate")


def test_budget_zero_is_the_bound_without_a_shift_and_bounds_grow():
    network = answers(np.random.default_rng(1), 100, 50)
    mean = rb.wasserstein_mean(network, delta=0.1, cost_budget=BUDGETS)
    assert np.all(np.diff(mean.value) >= 0.0)
    assert mean.value[0] >= network.values[:, 0].mean()
    shares = rb.wasserstein_cdf(network, delta=0.1, cost_budget=BUDGETS, thresholds=THRESHOLDS).value
    assert np.all(np.diff(shares, axis=0) >= -1e-12)
    assert np.all(np.diff(shares, axis=1) <= 1e-12)


def test_answered_multipliers_are_used_and_are_sharper():
    rng = np.random.default_rng(2)
    curves = [knapsack_curve(costs) for costs in flip_costs(rng, 100, 50)]
    coarse = np.array([0.0, 0.05, 2.0])
    multipliers = rb.default_multipliers(BUDGETS)
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True}
    values = [curve(coarse) for curve in curves]
    phi = [curve.conjugate(multipliers) for curve in curves]
    with_prices = rb.AdversarialAnswers(coarse, values, 50, multipliers=multipliers, conjugates=phi, **settings)
    without = rb.AdversarialAnswers(coarse, values, 50, **settings)
    sharp = rb.wasserstein_mean(with_prices, delta=0.1, cost_budget=BUDGETS)
    assert np.all(sharp.value <= rb.wasserstein_mean(without, delta=0.1, cost_budget=BUDGETS).value + 1e-12)
    assert rb.verify(sharp).ok


@pytest.mark.parametrize("threshold", [None, 0.4])
def test_breakdown_is_the_last_budget_that_meets_the_target(threshold):
    network = answers(np.random.default_rng(3), 100, 200)
    multipliers = rb.default_multipliers([0.001, 1.0])

    def bound(budget):
        if threshold is None:
            settings = {"multipliers": multipliers, "every_budget": True}
            found = rb.wasserstein_mean(network, delta=0.1, cost_budget=budget, **settings)
        else:
            found = rb.wasserstein_cdf(
                network, delta=0.1, cost_budget=budget, thresholds=threshold, multipliers=multipliers, every_budget=True
            )
        return found.value

    settings = {"delta": 0.1, "max_cost_budget": 1.0, "threshold": threshold}
    bracket = rb.wasserstein_breakdown(network, target=0.5, every_budget=True, **settings)
    assert bound(bracket.lower) <= 0.5 < bound(bracket.upper)
    assert bracket.upper - bracket.lower < 1e-9
    direct = rb.wasserstein_breakdown(network, target=0.5, **settings)
    assert direct.lower > bracket.lower
    assert direct.upper - direct.lower < 1e-9
    for every_budget in (False, True):
        nothing = rb.wasserstein_breakdown(network, target=0.001, every_budget=every_budget, **settings)
        assert nothing == (-np.inf, 0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a: rb.wasserstein_mean(a, delta=0.0, cost_budget=0.1), "delta must be in"),
        (lambda a: rb.wasserstein_mean(a, delta=0.1, cost_budget=-1.0), "budget must be finite"),
        (
            lambda a: rb.wasserstein_mean(a, delta=0.1, cost_budget=0.0, every_budget=True),
            "at least one cost budget must be > 0",
        ),
        (lambda a: rb.wasserstein_mean(a, delta=0.1, cost_budget=0.1, multipliers=[-1.0]), ">= 0"),
        (lambda a: rb.wasserstein_cdf(a, delta=0.1, cost_budget=0.1, thresholds=[0.5, 0.4]), "increase"),
        (lambda a: rb.wasserstein_cdf(a, delta=0.1, cost_budget=0.1, thresholds=0.0), "> 0"),
        (lambda a: rb.wasserstein_cdf(a, delta=0.1, cost_budget=0.1, thresholds=0.5, eta=0.7), "0.5"),
        (lambda a: rb.wasserstein_mean(a, delta=0.1, cost_budget="0.1"), "cost_budget must be"),
        (lambda a: rb.wasserstein_mean(a, delta=0.1, cost_budget=[[0.1], [0.1, 0.2]]), "cost_budget must be"),
        (
            lambda a: rb.wasserstein_breakdown(a, delta=0.1, target=0.5, max_cost_budget=[0.1]),
            "max_cost_budget must be",
        ),
        (lambda a: rb.wasserstein_breakdown(a, delta=0.1, target=0.5, max_cost_budget=0.0), "max_cost_budget must be"),
        (lambda a: rb.default_multipliers([0.1], num_multipliers=0), "num_multipliers must be"),
        (lambda a: rb.default_multipliers([0.1], num_multipliers=-1), "num_multipliers must be"),
        (lambda a: rb.default_multipliers([0.1], num_multipliers=2.0), "num_multipliers must be"),
        (lambda a: rb.default_multipliers([5e-324]), "cost_budgets must be"),
        (lambda a: rb.wasserstein_published(a, delta=0.1, cost_budget=0.1, cost_bound="x"), "cost_bound must be"),
        (
            lambda a: rb.wasserstein_published(a, delta=0.1, cost_budget=0.1, cost_bound=1.0, worst_means=[0.1]),
            "one value per cost budget",
        ),
        (
            lambda a: rb.wasserstein_published(a, delta=0.1, cost_budget=0.1, cost_bound=0.0),
            "cost_bound must be one finite number > 0",
        ),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(answers(np.random.default_rng(0), 5, 10))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": [[0.1, 0.2, 0.9], [0.1, 0.2, 0.25]]}, "concave"),
        ({"values": [[0.3, 0.2, 0.2], [0.1, 0.2, 0.25]]}, "nondecreasing"),
        ({"values": [[0.1, 0.2, 1.2], [0.1, 0.2, 0.25]]}, "0, 1"),
        ({"values": [[0.1, 0.2, 0.25]]}, "at least 2 clients"),
        ({"radii": [0.0, 0.1]}, "one column|shape"),
        ({"radii": [0.1, 0.2, 0.3]}, "strictly from 0"),
        ({"radii": [0.0, np.nan, 0.3]}, "radii must be finite"),
        ({"radii": [0.0, 0.1, np.inf]}, "radii must be finite"),
        ({"radii": [0.0, 1e-200, 0.3]}, "radii must be finite"),
        ({"radii": ["a", "b", "c"]}, "radii must be"),
        ({"unit": True}, "unit must be one"),
        ({"unit": "1.0"}, "unit must be one"),
        ({"unit": [1.0]}, "unit must be one"),
        ({"num_missing": "two"}, "num_missing must be"),
        ({"num_missing": None}, "num_missing must be"),
        ({"multipliers": [1e308], "conjugates": [[0.5], [0.5]]}, "multipliers must be"),
        ({"radii": [0.0, 0.1, 0.1]}, "strictly from 0"),
        ({"multipliers": [1.0, 2.0], "conjugates": [[0.0, 0.0], [0.0, 0.0]]}, "without an adversary"),
        ({"multipliers": [1.0, 2.0], "conjugates": [[0.2, 0.4], [0.2, 0.4]]}, "must not grow"),
        ({"multipliers": [0.1, 0.2], "conjugates": [[0.15, 0.12], [0.15, 0.12]]}, "mixed up"),
        ({"guarantee": "sure"}, "guarantee must be one of"),
        ({"unit": 0.0}, "unit must be one finite number > 0"),
        ({"multipliers": [1.0]}, "belong together"),
        ({"multipliers": [1.0], "conjugates": [[0.5, 0.4], [0.5, 0.4]]}, "shape"),
    ],
)
def test_wrong_answers_are_refused(changes, message):
    good = {
        "radii": [0.0, 0.1, 0.3],
        "values": [[0.1, 0.2, 0.25], [0.0, 0.2, 0.3]],
        "num_examples": 20,
        "cost": "order 1",
        "guarantee": "exact",
        "binary": True,
    }
    rb.AdversarialAnswers(**good)
    with pytest.raises(ValueError, match=message):
        rb.AdversarialAnswers(**{**good, **changes})


def test_answers_cannot_be_changed_after_their_check():
    network = answers(np.random.default_rng(0), 5, 10)
    with pytest.raises(ValueError, match="read-only"):
        network.values[:] = 0.0
