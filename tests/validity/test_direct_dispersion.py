"""Limits for dispersion from answers fail no more often than delta / 2 a side; what looks like them fails."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import riskband as rb
from riskband.functionals import bets, ratios
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import interval_of, resolve
from tests.validity.coverage import failures, is_rejected, rejected, study

DELTA = 0.2
LAWS = {  # risks and their probabilities
    "two points": ([0.1, 0.4], [0.7, 0.3]),
    "all or nothing": ([0.0, 1.0], [0.8, 0.2]),
    "equal": ([0.3], [1.0]),
    "all zero but few": ([0.0, 0.3], [0.9, 0.1]),
    "discrete": ([0.0, 0.02, 0.1, 0.5], [0.4, 0.3, 0.2, 0.1]),
    "one bad": ([0.05, 1.0], [0.97, 0.03]),
}
ALL = [
    "gini",
    "coefficient_of_variation",
    "theil",
    "atkinson:0.5",
    "top_share:0.1",
    "generalised_entropy:3",
    "atkinson:1",
]


def networks(name, *, num_networks, num_clients, num_examples, seed=1):
    atoms, weights = map(np.array, LAWS[name])
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        risks = atoms[rng.choice(atoms.size, num_clients, p=weights)]
        sizes = rng.integers(2, 30, num_clients) if num_examples == "unequal" else num_examples
        yield rb.ClientRisks(rng.binomial(sizes, risks) / sizes, sizes, binary=True)


def truth(name, measure):
    atoms, weights = map(np.array, LAWS[name])
    return resolve(measure).value(RiskDistribution(atoms, np.append(np.cumsum(weights)[:-1], 1.0)))


def fails(answers, law, measures):
    """By measure and side, whether the limit fails."""
    bounds = {measure: interval_of(answers, measure, delta=DELTA) for measure in measures}
    found = {(measure, "lower"): bound.lower > truth(law, measure) + 1e-9 for measure, bound in bounds.items()}
    return found | {(measure, "upper"): bound.upper < truth(law, measure) - 1e-9 for measure, bound in bounds.items()}


@study(60, slow=200)
@pytest.mark.parametrize("num_examples", [5, 20, "unequal"])
@pytest.mark.parametrize("law", LAWS)
def test_gini_coefficients_lie_between_their_limits(law, num_examples, num_networks):
    num_clients = 100 if num_networks > 60 else 40
    drawn = networks(law, num_networks=num_networks, num_clients=num_clients, num_examples=num_examples)
    found = failures(drawn, partial(fails, law=law, measures=["gini"]))
    assert rejected(found, DELTA / 2) == {}


@study(slow=200)
@pytest.mark.parametrize(("num_clients", "num_examples"), [(30, 5), (150, 50)])
@pytest.mark.parametrize("law", ["two points", "discrete", "one bad"])
def test_tangents_of_the_gini_coefficient_give_upper_limits(law, num_clients, num_examples, num_networks):
    found = []
    for answers in networks(law, num_networks=num_networks, num_clients=num_clients, num_examples=num_examples):
        orders = bets.played_orders(answers, num_played=2_000, most=5)
        found.append(ratios.gini_upper_limit(answers, orders, delta=DELTA / 2) < truth(law, "gini") - 1e-9)
    assert not is_rejected(found, DELTA / 2)


@pytest.mark.guard
@pytest.mark.parametrize("has_seen", [True, False])
def test_a_tangent_at_the_client_it_is_used_on_fails(monkeypatch, has_seen):
    if has_seen:
        monkeypatch.setattr(ratios, "looks_at_the_past", lambda size, ratio: (np.arange(size), np.arange(size)))
        monkeypatch.setattr(ratios, "_seen_before", lambda look, kind, shape: np.eye(shape[1], dtype=int)[kind])
    found = []
    for answers in networks("two points", num_networks=6, num_clients=60, num_examples=100):
        orders = bets.played_orders(answers, num_played=2_000, most=5)
        found.append(ratios.gini_upper_limit(answers, orders, delta=DELTA / 2) < truth("two points", "gini"))
    assert is_rejected(found, DELTA / 2) == has_seen


@pytest.mark.slow
@pytest.mark.parametrize(("law", "num_examples"), [("two points", 50), ("all zero but few", 12)])
def test_lower_limits_of_ratios_hold(law, num_examples):
    kinds = {"theil": ratios.theil_ratio(), "atkinson:0.5": ratios.root_ratio(0.5)}
    found = {measure: [] for measure in kinds}
    for answers in networks(law, num_networks=12, num_clients=40, num_examples=num_examples, seed=3):
        for measure, ratio in kinds.items():
            found[measure].append(limits(ratio, answers, ratios.ratio_lower_limit) > truth(law, measure) + 1e-9)
    assert rejected(found, DELTA / 2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("num_clients", "num_examples"), [(30, 5), (30, "unequal"), (60, 20)])
@pytest.mark.parametrize("law", LAWS)
def test_all_measures_lie_between_their_limits(law, num_clients, num_examples):
    drawn = networks(law, num_networks=14, num_clients=num_clients, num_examples=num_examples)
    found = failures(drawn, partial(fails, law=law, measures=ALL))
    assert rejected(found, DELTA / 2) == {}


@pytest.mark.parametrize("measure", ["coefficient_of_variation", "top_share:0.1"])
def test_one_measure_lies_between_its_limits(measure):
    drawn = networks("discrete", num_networks=4, num_clients=40, num_examples=20)
    found = failures(drawn, partial(fails, law="discrete", measures=[measure]))
    assert rejected(found, DELTA / 2) == {}


def limits(ratio, answers, side):
    orders = bets.played_orders(answers, num_played=2_000, most=10)
    return side(ratio, answers, orders, delta=DELTA / 2)


@study(slow=200)
@pytest.mark.parametrize("law", ["two points", "one bad", "discrete"])
def test_upper_limits_of_ratios_hold(law, num_networks):
    kinds = {
        "theil": ratios.theil_ratio(),
        "atkinson:0.5": ratios.root_ratio(0.5),
        "top_share:0.1": ratios.tail_ratio(0.1),
    }
    found = {measure: [] for measure in kinds}
    for answers in networks(law, num_networks=num_networks, num_clients=60, num_examples=50, seed=2):
        for measure, ratio in kinds.items():
            found[measure].append(limits(ratio, answers, ratios.ratio_upper_limit) < truth(law, measure) - 1e-9)
    assert rejected(found, DELTA / 2) == {}


@pytest.mark.parametrize("num_examples", [5, 20])
def test_measured_distances_as_a_lower_side_fail(monkeypatch, num_examples):
    """Jensen's inequality on the wrong side: noise makes measured risks more unequal than true ones."""
    monkeypatch.setattr(
        bets, "_surely_apart", lambda risks, first, second: np.abs(risks.values[first] - risks.values[second])
    )
    monkeypatch.setattr(
        ratios, "surely_apart", lambda size: np.abs(np.subtract.outer(*2 * [np.arange(size + 1)])) / size
    )
    drawn = networks("equal", num_networks=25, num_clients=100, num_examples=num_examples)
    found = [bets.gini(answers, DELTA / 2).lower > 1e-9 for answers in drawn]  # the truth is 0
    assert is_rejected(found, DELTA / 2)


@study(slow=100)
@pytest.mark.parametrize("law", ["two points", "discrete", "one bad", "equal"])
def test_limits_from_quartics_and_late_tails_hold(law, num_networks):
    ratio = ratios.tail_ratio(0.1)
    found = {("gini", "lower"): [], ("gini", "upper"): [], ("top_share:0.1", "upper"): []}
    for answers in networks(law, num_networks=num_networks, num_clients=60, num_examples=10, seed=5):
        gini, share = truth(law, "gini"), truth(law, "top_share:0.1")
        limit = bets.gini(answers, DELTA / 2)
        found["gini", "lower"].append(limit.lower > gini + 1e-9)
        found["gini", "upper"].append(limit.upper < gini - 1e-9)
        found["top_share:0.1", "upper"].append(limits(ratio, answers, ratios.ratio_upper_limit) < share - 1e-9)
    assert rejected(found, DELTA / 2) == {}


@pytest.mark.guard
@pytest.mark.parametrize("is_wrong", [True, False])
def test_plug_in_moments_fail(monkeypatch, is_wrong):
    """(X/n)² in place of X(X - 1)/(n(n - 1))."""
    if is_wrong:
        monkeypatch.setattr(ratios, "_square_at_most", lambda counts: counts.risks**2)
    found = [
        limits(ratios.power_ratio(2.0), answers, ratios.ratio_lower_limit) > 1.0 + 1e-9
        for answers in networks("equal", num_networks=6, num_clients=100, num_examples=5)
    ]
    assert is_rejected(found, DELTA / 2) == is_wrong


def test_a_dual_variable_chosen_by_the_client_it_is_used_on_fails(monkeypatch):
    """A bet that sees the present: for each client the a that is best for it."""

    def of_the_present(outcomes, base, first_outcome, first_base):
        return ratios._Past(outcomes / np.maximum(base, 1e-3), np.full(base.shape, 0.05))

    monkeypatch.setattr(ratios._Past, "of", of_the_present)
    found = [
        limits(ratios.power_ratio(2.0), answers, ratios.ratio_upper_limit)
        < np.sqrt(1 + truth("two points", "coefficient_of_variation") ** 2)
        for answers in networks("two points", num_networks=12, num_clients=200, num_examples=50)
    ]
    assert is_rejected(found, DELTA / 2)
