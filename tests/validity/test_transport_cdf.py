"""The share of clients above a risk, on moved networks: both proofs against closed forms, and what they need.

The network and its adversary are those of `tests.validity.test_wasserstein`. False-alarm rate of each coverage test:
1e-4.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riskband as rb
from riskband.answers.concave_curves import knapsack_curve
from riskband.bands.levels import berk_jones_levels
from riskband.bands.local_steps import ClientAtoms
from riskband.worst_cases.wasserstein import _least_share
from tests.validity.coverage import is_rejected
from tests.validity.test_wasserstein import BUDGETS, RADII, THRESHOLDS, answers, failures, flip_costs, true_worst_share

SHRUNK = 0.8  # a loss of 0.8 for every wrong example: no 0-1 loss, and its worst case is known all the same
MULTIPLIERS = rb.default_multipliers(BUDGETS)
# A threshold at which clients sit: their share must be counted although half of them measure less.
AT_CLIENTS = np.array([0.2, 0.5])


def true_shares(thresholds, scale=1.0):
    return np.array([[true_worst_share(budget, t / scale) for t in thresholds] for budget in BUDGETS])


def shrunk_answers(rng, num_clients, num_examples):
    curves = [knapsack_curve(costs) for costs in flip_costs(rng, num_clients, num_examples)]
    return rb.AdversarialAnswers(
        RADII,
        [SHRUNK * curve(RADII) for curve in curves],
        num_examples,
        cost="order 1",
        guarantee="exact",
        binary=False,
        multipliers=MULTIPLIERS,
        conjugates=[SHRUNK * curve.conjugate(MULTIPLIERS / SHRUNK) for curve in curves],
    )


@pytest.mark.parametrize("local", ["average", "limits"])
@pytest.mark.parametrize(("num_clients", "num_examples"), [(50, 20), pytest.param(150, 100, marks=pytest.mark.slow)])
def test_each_proof_covers(local, num_clients, num_examples):
    def make(network):
        found = rb.wasserstein_cdf(network, delta=0.2, cost_budget=BUDGETS, thresholds=AT_CLIENTS, local=local, seed=0)
        return found.value, true_shares(AT_CLIENTS)

    found = failures(
        make, num_networks=40 if num_clients > 50 else 12, num_clients=num_clients, num_examples=num_examples, seed=11
    )
    assert not is_rejected(found, 0.2)


@pytest.mark.parametrize(("num_clients", "num_examples"), [(50, 20), pytest.param(150, 100, marks=pytest.mark.slow)])
def test_other_losses_are_covered(num_clients, num_examples):
    found = []
    for child in np.random.SeedSequence(12).spawn(40 if num_clients > 50 else 12):
        network = shrunk_answers(np.random.default_rng(child), num_clients, num_examples)
        made = rb.wasserstein_cdf(network, delta=0.2, cost_budget=BUDGETS, thresholds=SHRUNK * AT_CLIENTS, seed=0)
        found.append(bool(np.any(made.value < true_shares(AT_CLIENTS) - 1e-9)))
    assert not is_rejected(found, 0.2)


@pytest.mark.slow
def test_negative_control_a_share_may_not_be_capped_before_the_mean():
    """min(1, 1 + a(x - t)) is not convex: clients at the threshold, half of which measure less, would be missed."""
    levels = berk_jones_levels(500, 0.2 / MULTIPLIERS.size, "lower").lower
    steepness = np.geomspace(5.0, 500.0, 30)

    def capped(network):
        bounds = []
        for price in MULTIPLIERS:
            law = ClientAtoms.from_levels(network.conjugates_at(np.array([price]))[:, 0], levels)
            excess = np.clip(1.0 + steepness[:, None] * (law.risks - 0.2), 0.0, 1.0) @ law.weights
            bounds.append(np.min(np.outer(BUDGETS, steepness * price) + excess, axis=1))
        return np.min(bounds, axis=0), true_shares([0.2])[:, 0]

    assert is_rejected(failures(capped, num_networks=8, num_clients=500, num_examples=100, seed=13), 0.2)


def test_negative_control_the_mean_over_the_sample_is_no_bound():
    def averaged(network):
        phi = network.conjugates_at(MULTIPLIERS)
        weights = np.append(np.full(len(phi), 1.0 / len(phi)), 0.0)
        laws = [ClientAtoms(np.append(np.sort(column), 1.0), weights, np.arange(len(phi))) for column in phi.T]
        bounds = [
            [_least_share(law, BUDGETS * m, t) for law, m in zip(laws, MULTIPLIERS, strict=True)] for t in AT_CLIENTS
        ]
        return np.min(bounds, axis=1).T, true_shares(AT_CLIENTS)

    assert is_rejected(failures(averaged, num_networks=40, num_clients=50, num_examples=500, seed=14), 0.2)


atoms = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


@given(atoms, st.floats(0.05, 1.0), st.floats(0.0, 2.0), st.integers(0, 10**6))
def test_the_least_over_the_steepness_is_that_of_a_fine_grid(risks, threshold, charge, seed):
    rng = np.random.default_rng(seed)
    law = ClientAtoms(np.append(np.sort(risks), 1.0), rng.dirichlet(np.ones(len(risks) + 1)), np.arange(len(risks)))
    found = float(_least_share(law, np.array([charge]), threshold)[0])
    below = law.risks[law.risks < threshold]
    gaps = threshold - below
    grid = np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 2000), 1.0 / gaps[gaps > 1e-9]])
    values = charge * grid + np.maximum(1.0 + np.outer(grid, law.risks - threshold), 0.0).T.T @ law.weights
    assert found <= values.min() * (1 + 1e-9) + 1e-9
    assert found >= values.min() * (1 - 1e-2) - 1e-6


def test_for_every_budget_the_default_is_the_better_of_two_halves_of_delta():
    network = answers(np.random.default_rng(3), 200, 100)
    settings = {"cost_budget": BUDGETS, "thresholds": THRESHOLDS, "every_budget": True}
    best = rb.wasserstein_cdf(network, delta=0.1, **settings)
    halves = [rb.wasserstein_cdf(network, delta=0.05, local=local, **settings).value for local in ("average", "limits")]
    np.testing.assert_array_equal(best.value, np.minimum(*halves))
    assert np.any(halves[0] < halves[1] - 0.01)
    assert np.any(halves[1] < halves[0] - 0.01)


def test_what_the_certificate_assumes_is_what_it_used():
    binary = answers(np.random.default_rng(3), 20, 30)
    settings = {"delta": 0.1, "cost_budget": 0.1, "thresholds": 0.5}
    words = "every example's loss is 0 or 1"
    assert words in rb.wasserstein_cdf(binary, **settings).assumptions
    assert words not in rb.wasserstein_cdf(binary, **settings, local="average").assumptions
    other = shrunk_answers(np.random.default_rng(3), 20, 30)
    made = rb.wasserstein_cdf(other, **settings)
    assert words not in made.assumptions
    assert made.value == rb.wasserstein_cdf(other, **settings, local="average").value
    assert rb.verify(made).ok
    with pytest.raises(ValueError, match="local='limits' needs answers of a 0-1 loss"):
        rb.wasserstein_cdf(other, **settings, local="limits")
    with pytest.raises(ValueError, match="local must be one of"):
        rb.wasserstein_cdf(other, **settings, local="marginal")


@pytest.mark.parametrize("num_examples", [5, 6, 10, 30, 49])  # 6 and more: so many times 1/n is not 1 in floats
@pytest.mark.parametrize("local", ["best", "average", "limits"])
def test_clients_that_are_always_wrong_are_counted_at_risk_one(num_examples, local):
    """Whatever its sums round to, half of the clients has risk 1, and the least charge is none."""
    curves = [knapsack_curve(np.full(num_examples, cost)) for cost in (0.0, 1.0) for _ in range(100)]
    network = rb.AdversarialAnswers(
        RADII, [curve(RADII) for curve in curves], num_examples, cost="order 1", guarantee="exact", binary=True
    )
    settings = {"cost_budget": [0.0, 0.1], "thresholds": [0.5, 1.0], "multipliers": [0.0, 0.1, 10.0], "local": local}
    assert np.all(rb.wasserstein_cdf(network, delta=0.05, **settings).value >= 0.5)


def test_conjugates_that_rounding_made_too_small_are_raised_to_what_the_values_imply():
    values = np.ones((40, RADII.size))
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True, "multipliers": [0.1, 10.0]}
    network = rb.AdversarialAnswers(RADII, values, 10, conjugates=np.full((40, 2), 0.99999994), **settings)
    assert rb.wasserstein_cdf(network, delta=0.05, cost_budget=0.0, thresholds=1.0).value == 1.0
    assert rb.wasserstein_mean(network, delta=0.05, cost_budget=0.0, method="hoeffding").value == 1.0
