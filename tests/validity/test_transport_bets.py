"""Coverage of bets on the dual for moved networks, on laws of few kinds of clients and few costs: the truth is exact.

A client of a kind makes each example wrong at one of a few costs (0: it is wrong already); the adversary of the network
moves every client as the worst case does. False-alarm rate of each test: 1e-4 (see `tests.validity.coverage`).
"""

from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, norm

import riskband as rb
from riskband.answers.concave_curves import knapsack_curve
from riskband.bands.levels import berk_jones_levels
from riskband.worst_cases.transport_bets import TransportBets, TransportDuals
from riskband.worst_cases.transport_duals import (
    _cost_limits,
    binomial_excess,
    conjugates_with_ends,
    hinge_duals,
    multiplier_grid,
)
from tests.validity.coverage import is_rejected, study

BUDGETS = np.array([0.0, 0.02, 0.1, 0.4])
RADII = np.concatenate([[0.0], np.geomspace(1e-3, 20.0, 24)])
DELTA = 0.2


@dataclass(frozen=True)
class FewCosts:
    """Kinds of clients: shares, and for each kind the costs of its examples and their probabilities."""

    shares: tuple[float, ...]
    costs: tuple[tuple[float, ...], ...]
    masses: tuple[tuple[float, ...], ...]

    def curves(self):
        return [knapsack_curve(cost, mass) for cost, mass in zip(self.costs, self.masses, strict=True)]

    def worst_mean(self, budget):
        """The knapsack over all examples of all kinds."""
        costs = np.concatenate(self.costs)
        masses = np.concatenate([share * np.array(mass) for share, mass in zip(self.shares, self.masses, strict=True)])
        return float(knapsack_curve(costs, masses)(budget))

    def worst_share(self, budget, threshold):
        """The knapsack over the clients, of what it costs to push each to the threshold."""
        pushes = [float(curve.inverse(threshold - 1e-12)) for curve in self.curves()]
        return float(knapsack_curve(pushes, self.shares)(budget))

    def draw(self, rng, num_clients, num_examples, radii=RADII, **changes):
        sizes = np.broadcast_to(num_examples, num_clients)
        kinds = rng.choice(len(self.shares), num_clients, p=self.shares)
        rows = [
            knapsack_curve(rng.choice(self.costs[kind], size, p=self.masses[kind]))(radii)
            for kind, size in zip(kinds.tolist(), sizes.tolist(), strict=True)
        ]
        settings = {"cost": "order 1", "guarantee": "exact", "binary": True, **changes}
        return rb.AdversarialAnswers(radii, rows, sizes, **settings)


LAWS = {
    # Two kinds that differ in everything.
    "two kinds": FewCosts((0.7, 0.3), ((0.0, 1.0), (0.0, 0.1)), ((0.05, 0.95), (0.3, 0.7))),
    # One client in twenty is fragile, and nearly always unseen in a small network.
    "a rare kind": FewCosts((0.95, 0.05), ((0.0, 5.0), (0.0, 0.01)), ((0.01, 0.99), (0.2, 0.8))),
    # Every client sits at the threshold 0.2: about half of them measure less.
    "at the threshold": FewCosts((1.0,), ((0.0, 2.0),), ((0.2, 0.8),)),
    # Costs over four orders of magnitude.
    "skewed": FewCosts(
        (0.5, 0.5), ((0.0, 0.01, 0.3, 10.0), (0.0, 0.03, 1.0)), ((0.1, 0.1, 0.3, 0.5), (0.05, 0.15, 0.8))
    ),
}
THRESHOLDS = np.array([0.2, 0.5])


def networks(law, *, num_networks, num_clients, num_examples, seed=1):
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        yield law.draw(np.random.default_rng(child), num_clients, num_examples)


def failures(law, make, truth, **sizes):
    return [bool(np.any(np.asarray(make(network)) < truth - 1e-9)) for network in networks(law, **sizes)]


def true_means(law):
    return np.array([law.worst_mean(budget) for budget in BUDGETS])


def true_shares(law):
    return np.array([[law.worst_share(budget, threshold) for threshold in THRESHOLDS] for budget in BUDGETS])


def mean_of(network, **settings):
    return rb.wasserstein_mean(network, delta=DELTA, cost_budget=BUDGETS, **settings).value


def shares_of(network, **settings):
    return rb.wasserstein_cdf(network, delta=DELTA, cost_budget=BUDGETS, thresholds=THRESHOLDS, **settings).value


SIZES = [
    (30, 5),
    (60, 20),
    pytest.param(100, 5, marks=pytest.mark.slow),
    pytest.param(200, 100, marks=pytest.mark.slow),
]


@study(slow=50)
@pytest.mark.parametrize(("num_clients", "num_examples"), SIZES)
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_bets_in_one_order_cover(law, num_clients, num_examples, num_networks):
    """One order, in which the largest capital counts, fails more often than the average over many."""
    alone = partial(rb.wasserstein_mean, delta=DELTA, cost_budget=BUDGETS[2], seed=0)
    means, shares = true_means(law), true_shares(law)
    sizes = {"num_networks": num_networks, "num_clients": num_clients, "num_examples": num_examples}
    assert not is_rejected(failures(law, lambda network: mean_of(network, seed=0), means, **sizes), DELTA)
    assert not is_rejected(failures(law, lambda network: alone(network).value, means[2], **sizes), DELTA)
    for local in ("average", "limits"):
        found = failures(law, lambda network: shares_of(network, seed=0, local=local), shares, **sizes)  # noqa: B023
        assert not is_rejected(found, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_bets_averaged_over_orders_cover(law):
    means, shares = true_means(law), true_shares(law)
    sizes = {"num_networks": 50, "num_clients": 30, "num_examples": 20}
    assert not is_rejected(failures(law, mean_of, means, **sizes), DELTA)
    assert not is_rejected(failures(law, shares_of, shares, **sizes), DELTA)


@study(slow=40)
def test_breakdowns_cover(num_networks):
    """What is certified at the budget found is not below the truth there."""
    law = LAWS["two kinds"]
    too_large = []
    for network in networks(law, num_networks=num_networks, num_clients=60, num_examples=20):
        settings = {"delta": DELTA, "max_cost_budget": 1.0, "seed": 0}
        of_mean = rb.wasserstein_breakdown(network, target=0.6, **settings).lower
        of_share = rb.wasserstein_breakdown(network, target=0.6, threshold=0.5, **settings).lower
        too_large.append((law.worst_mean(max(of_mean, 0.0)) > 0.6, law.worst_share(max(of_share, 0.0), 0.5) > 0.6))
    assert not any(is_rejected(column, DELTA) for column in np.transpose(too_large))


@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_other_losses_and_numbers_of_examples_cover(sizes):
    """A loss of 0.8 for every wrong example; clients with 5, 20 or 80 examples."""
    law, scale = LAWS["two kinds"], 0.8
    truth = np.array([[law.worst_share(budget, threshold) for threshold in THRESHOLDS] for budget in BUDGETS])
    found = []
    for child in np.random.SeedSequence(5).spawn(12):
        rng = np.random.default_rng(child)
        counts = 20 if sizes == "equal" else rng.choice([5, 20, 80], 40)
        plain = law.draw(rng, 40, counts)
        settings = {"cost": "order 1", "guarantee": "exact", "binary": False}
        network = rb.AdversarialAnswers(RADII, scale * plain.values, plain.num_examples, **settings)
        made = rb.wasserstein_cdf(
            network, delta=DELTA, cost_budget=BUDGETS, thresholds=scale * THRESHOLDS, seed=0, local="best"
        )
        found.append(bool(np.any(made.value < truth - 1e-9)))
    assert not is_rejected(found, DELTA)


def share_with(network, duals, budgets=BUDGETS):
    bets = TransportBets(network.num_clients, seed=0)
    return bets.upper_bounds(duals, budgets, delta=DELTA)


AT = LAWS["at the threshold"]
SIZES_OF_CONTROLS = {"num_networks": 12, "num_clients": 100, "num_examples": 20}
PRICES = multiplier_grid(BUDGETS, ratio=1.5)


def test_negative_control_the_radius_of_the_sample_needs_its_limit():
    def plug_in(network):
        pushes = np.array([float(curve.inverse(0.2 - 1e-6)) for curve in network.curves])
        outcomes = np.maximum(1.0 - np.outer(pushes, PRICES[1:-1]), 0.0)
        return share_with(network, TransportDuals(outcomes, PRICES[1:-1], np.ones(PRICES.size - 2)), BUDGETS[1:])

    truth = np.array([AT.worst_share(budget, 0.2) for budget in BUDGETS[1:]])
    assert is_rejected(failures(AT, plug_in, truth, **SIZES_OF_CONTROLS), DELTA)


def test_negative_control_limits_that_fail_must_be_paid_for():
    """Limits at level 0.3 without the factor 1/(1 - eta): three clients in ten look safe that are not."""
    margin = norm.isf(0.3) * np.sqrt(0.2 * 0.8 / 100)

    def unpaid(network):
        is_there = (network.values[:, :1] >= 0.2 - margin).astype(np.float64)
        return share_with(network, TransportDuals(is_there, np.zeros(1), np.ones(1)), np.zeros(1))

    assert is_rejected(failures(AT, unpaid, 1.0, num_networks=10, num_clients=100, num_examples=100), DELTA)


def test_negative_control_a_cap_must_be_paid_for():
    """Without what the cap takes away from the mean: clients at the threshold count as less than one."""

    def unpaid(network):
        phi = conjugates_with_ends(network, PRICES)
        hinge = np.clip(1.0 + 20.0 * (phi - 0.2), 0.0, 1.0)
        return share_with(network, TransportDuals(hinge, 20.0 * PRICES, np.ones(PRICES.size)))

    truth = np.array([AT.worst_share(budget, 0.2) for budget in BUDGETS])
    assert is_rejected(failures(AT, unpaid, truth, **SIZES_OF_CONTROLS), DELTA)


def test_negative_control_the_multiplier_must_not_be_chosen_by_the_client_it_is_used_on():
    """For each client the multiplier that is best for it, as if that were one outcome."""
    law, budget, prices = LAWS["skewed"], 0.1, PRICES[1:-1]
    found = []
    for child in np.random.SeedSequence(1).spawn(12):
        rng = np.random.default_rng(child)
        kinds = rng.choice(len(law.shares), 2000, p=law.shares)
        costs = np.array([rng.choice(law.costs[kind], 5, p=law.masses[kind]) for kind in kinds])
        phi = np.maximum(1.0 - costs[:, :, np.newaxis] * prices, 0.0).mean(axis=1)
        late = TransportDuals(np.min(prices * budget + phi, axis=1)[:, np.newaxis], np.zeros(1), np.ones(1))
        bound = TransportBets(len(phi), seed=0).upper_bounds(late, np.array([budget]), delta=DELTA)[0]
        found.append(bool(bound < law.worst_mean(budget)))
    assert is_rejected(found, DELTA)


def test_the_excess_of_a_binomial_is_its_sum():
    for size, mean, point in product((1, 5, 40), (0.0, 0.2, 0.55, 1.0), (0.0, 0.2, 0.37, 0.9, 1.0)):
        counts = np.arange(size + 1)
        expected = binom.pmf(counts, size, mean) @ np.maximum(counts / size - point, 0.0)
        found = binomial_excess(np.array([size]), mean, np.array([point]))
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.97])
@pytest.mark.parametrize("size", [1, 5, 50])
def test_every_hinge_is_at_least_the_share_in_the_mean(threshold, size):
    """For examples of two values, exactly: E outcome >= min(1, (1 + a(phi - t))_+) whatever phi is."""
    counts = np.arange(size + 1)
    for low, high in ((0.0, 1.0), (0.1, 0.6), (0.0, threshold)):
        phi = (low + (high - low) * counts / size)[:, np.newaxis]
        duals = hinge_duals(phi, np.ones(1), np.full(size + 1, size), threshold=threshold)
        for chance in np.linspace(0.0, 1.0, 21):
            mean = low + (high - low) * chance
            needed = np.clip(1.0 + duals.prices * (mean - threshold), 0.0, 1.0)  # prices are slopes here
            found = binom.pmf(counts, size, chance) @ duals.outcomes * duals.scales
            assert np.all(found >= needed - 1e-12)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 1.0])
def test_limits_are_the_knapsack_over_the_smallest_law_of_the_band(threshold):
    rng = np.random.default_rng(0)
    for size in (5, 40):
        costs = np.sort(np.where(rng.random(size) < 0.2, 0.0, rng.exponential(size=size)))
        levels = berk_jones_levels(size, 0.1, "upper").upper
        smallest = knapsack_curve(np.append(0.0, costs), np.diff(levels, prepend=0.0, append=1.0))
        found = list(_cost_limits([knapsack_curve(costs)], np.array([size]), threshold=threshold, eta=0.1))[1]
        np.testing.assert_allclose(found, smallest.inverse(threshold), atol=1e-4)


def test_bounds_grow_with_the_budget_and_fall_with_the_threshold():
    network = LAWS["two kinds"].draw(np.random.default_rng(0), 50, 20)
    mean, shares = mean_of(network), shares_of(network)
    assert np.all(np.diff(mean) >= 0.0)
    assert np.all(np.diff(shares, axis=0) >= 0.0)
    assert np.all(np.diff(shares, axis=1) <= 0.0)


def test_clients_that_come_sorted_are_noticed_and_every_budget_is_bounded():
    network = LAWS["two kinds"].draw(np.random.default_rng(0), 50, 20)
    rows = network.values[np.argsort(network.values[:, 0], kind="stable")]
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True}
    up, down = (rb.AdversarialAnswers(RADII, each, 20, **settings) for each in (rows, rows[::-1]))
    found = [rb.wasserstein_mean(each, delta=DELTA, cost_budget=BUDGETS) for each in (up, down)]
    np.testing.assert_allclose(found[0].value, found[1].value, atol=1e-9)
    assert found[0].method == "betting with constant stakes"
    assert np.all(found[0].value >= rb.wasserstein_mean(network, delta=DELTA, cost_budget=BUDGETS).value - 0.02)
    assert rb.verify(found[0]).ok


@pytest.mark.parametrize(("name", "num_clients"), [("two kinds", 100), ("skewed", 60)])
def test_what_is_asked_is_hardly_ever_wider_than_every_budget(name, num_clients):
    network = LAWS[name].draw(np.random.default_rng(2), num_clients, 50)
    for make in (mean_of, shares_of):
        every = make(network, every_budget=True)
        asked = make(network)
        assert np.all(asked <= every + 0.05)
        assert np.mean(asked) <= np.mean(every)


def test_both_kinds_verify_and_say_which_they_are():
    network = LAWS["two kinds"].draw(np.random.default_rng(0), 30, 20)
    for certify, more in ((rb.wasserstein_mean, {}), (rb.wasserstein_cdf, {"thresholds": 0.5})):
        settings = {"delta": 0.1, "cost_budget": 0.1, **more}
        asked, every = certify(network, **settings), certify(network, **settings, every_budget=True)
        seeded = certify(network, **settings, seed=3)
        assert all(rb.verify(made).ok for made in (asked, every, seeded))
        assert "dual variable from the clients before" in asked.method
        assert "dual variable" not in every.method
        assert "chosen before any answer was seen: seed 3" in seeded.assumptions
        assert "chosen before any answer was seen: seed 3" not in asked.assumptions
        assert any("cost budget 0.1" in line for line in asked.assumptions)


def test_doubtful_answers_take_what_holds_for_every_budget():
    plain = LAWS["two kinds"].draw(np.random.default_rng(0), 30, 20)
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True, "contamination": 1}
    network = rb.AdversarialAnswers(RADII, plain.values, 20, **settings)
    for make in (mean_of, shares_of):
        np.testing.assert_array_equal(make(network), make(network, every_budget=True))
    settings = {"delta": DELTA, "target": 0.9, "max_cost_budget": 1.0}
    assert rb.wasserstein_breakdown(network, **settings) == rb.wasserstein_breakdown(
        network, every_budget=True, **settings
    )


def test_chords_of_answered_conjugates_are_used_between_them():
    """Two radii say little; the conjugates at some multipliers bound those between them, since phi is convex."""
    law, rng = LAWS["skewed"], np.random.default_rng(0)
    full = law.draw(rng, 20, 50)
    prices = np.geomspace(0.01, 100.0, 12)
    few = RADII[[0, -1]]
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True}
    answered = full.conjugates_at(prices)
    network = rb.AdversarialAnswers(
        few, full.values[:, [0, -1]], 50, multipliers=prices, conjugates=answered, **settings
    )
    between = np.geomspace(0.02, 50.0, 30)
    found = network.least_conjugates(between)
    assert np.all(found >= full.conjugates_at(between) - 1e-9)
    assert np.mean(found) < np.mean(network.conjugates_at(between)) - 0.05
