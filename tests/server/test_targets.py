"""Target networks and unseen clients as a run sees them; certificates that do not hold are noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import riskband as rb
from protocol.models import build_model
from riskband.answers.concave_curves import ConcaveCurve
from riskband.models.evaluation import example_losses
from server.checks.unseen import Unseen, check_certificates
from server.config import load_config
from server.settings import RunConfig
from server.studies import study_of
from server.studies.study import UnderTest
from server.studies.wasserstein.targets import TargetNetwork, check_target, target_networks
from strategies.asking.replies import RoundOutcome
from strategies.wasserstein import EmpiricalWorstCase, QueryBudgetUse, WassersteinConclusion
from worlds.population import Population, spec_from_config
from worlds.targets import moved_further

BUDGETS, THRESHOLDS = np.array([0.0, 0.5, 2.0]), np.array([0.3, 0.6])


def small(defaults: Mapping[str, Any], **changes: Any) -> RunConfig:
    settings = {"strategy": "wasserstein", "num-unseen": 4, "num-targets": 3, "target-sigmas": "0,0.05,0.1"}
    return load_config({**defaults, **settings, **{key.replace("_", "-"): value for key, value in changes.items()}})


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)


def answers(*, clean_risk: float, flip_cost: float = 10.0, num_clients: int = 200) -> rb.AdversarialAnswers:
    """All clients alike: the rest of their examples flips at one cost."""
    radii = np.linspace(0.0, 4.0 * flip_cost, 50)
    values = np.minimum(clean_risk + radii / flip_cost, 1.0)
    multipliers = rb.default_multipliers(BUDGETS)
    conjugates = np.maximum(clean_risk, 1.0 - multipliers * (1.0 - clean_risk) * flip_cost)
    return rb.AdversarialAnswers(
        radii,
        np.tile(values, (num_clients, 1)),
        1000,
        cost="a cost",
        guarantee="exact",
        binary=True,
        multipliers=multipliers,
        conjugates=np.tile(conjugates, (num_clients, 1)),
    )


def result(found: rb.AdversarialAnswers) -> WassersteinConclusion:
    certificates = {
        "wasserstein_mean": rb.wasserstein_mean(found, delta=0.05, cost_budget=BUDGETS),
        "wasserstein_cdf": rb.wasserstein_cdf(found, delta=0.05, cost_budget=BUDGETS, thresholds=THRESHOLDS),
        "wasserstein_published": rb.wasserstein_published(found, delta=0.05, cost_budget=BUDGETS, cost_bound=5.0),
    }
    empirical = EmpiricalWorstCase("clients", BUDGETS, np.zeros(3), np.ones(3), 1, found.num_clients)
    return WassersteinConclusion(
        outcome=RoundOutcome((), (), 0),
        risks=found.clean,
        certificates=certificates,
        answers=found,
        breakdowns={},
        empirical=empirical,
        query_budget=QueryBudgetUse(3, 3, (), None),
    )


def unseen_clients(config: RunConfig, model: Any) -> Unseen:
    return study_of(config).unseen(config, UnderTest({}, (model,)), None)


def test_targets_are_the_unseen_clients_moved_with_exact_risks(defaults: Mapping[str, Any], model: Any) -> None:
    config = small(defaults)
    networks = target_networks(config, model)
    population = Population(spec_from_config(config.to_run_config(), network="unseen"))
    assert [network.sigma for network in networks] == [0.0, 0.05, 0.1]
    for network in networks:
        for k in range(3):
            client = moved_further(population, k, sigma=network.sigma)
            losses = example_losses(model, client.x, client.y, loss="zero_one")
            assert network.risks[k] == pytest.approx(client.weights @ losses)
    assert networks[0].costs == pytest.approx(np.zeros(3), abs=1e-9)
    np.testing.assert_allclose(networks[0].risks, unseen_clients(config, model).risks[:3])
    assert np.all(networks[2].costs > networks[1].costs)


@pytest.mark.parametrize("loss", ["zero_one", "brier", "margin"])
def test_the_risks_of_unseen_clients_do_not_depend_on_what_else_is_computed(
    defaults: Mapping[str, Any], model: Any, loss: str
) -> None:
    found = unseen_clients(small(defaults, loss=loss, local="observed"), model)
    exact = unseen_clients(small(defaults, loss=loss, strategy="f_divergence"), model)
    np.testing.assert_allclose(found.risks, exact.risks, atol=1e-12)
    assert len(found.curves) == (4 if loss == "zero_one" else 0)


def test_the_distance_is_measured_before_the_head(defaults: Mapping[str, Any], model: Any) -> None:
    # An image that moves by t is, through the layers before the head, further away by their factor.
    (plain,) = target_networks(small(defaults, target_sigmas=0.05), model)
    first = next(module for module in model.modules() if hasattr(module, "weight"))
    kept = first.weight.detach().clone(), first.bias.detach().clone()
    try:
        first.weight.data.mul_(3.0)
        first.bias.data.mul_(3.0)  # relu networks: every representation is three times as large
        (scaled,) = target_networks(small(defaults, target_sigmas=0.05), model)
        (by_distance,) = target_networks(small(defaults, target_sigmas=0.05, transport_order=1), model)
    finally:
        first.weight.data.copy_(kept[0])
        first.bias.data.copy_(kept[1])
    np.testing.assert_allclose(scaled.costs, 9.0 * plain.costs, rtol=1e-3)
    assert np.all(by_distance.costs**2 <= scaled.costs * (1 + 1e-9))  # (E t)² <= E t²


def test_no_sigmas_no_targets(defaults: Mapping[str, Any], model: Any) -> None:
    assert target_networks(small(defaults, target_sigmas=""), model) == ()


def test_a_target_is_compared_at_its_own_distance() -> None:
    whole = result(answers(clean_risk=0.1))
    near = TargetNetwork(0.1, costs=np.full(50, 0.5), risks=np.full(50, 0.15))
    checks = check_target(whole, near)
    for name, certificate in whole.certificates.items():
        bound, check = checks[name]
        np.testing.assert_allclose(bound, certificate.value[1])  # BUDGETS[1] is its distance
        assert check.holds
    assert checks["wasserstein_mean"][1].observed == pytest.approx(0.15)
    np.testing.assert_array_equal(checks["wasserstein_cdf"][1].observed, [0.0, 0.0])


def test_a_bound_for_the_budgets_asked_is_read_at_the_next_of_them() -> None:
    whole = result(answers(clean_risk=0.1))
    shares = whole.certificates["wasserstein_cdf"]
    assert not shares.recipe["arguments"]["every_budget"]
    for cost, index in ((0.0, 0), (BUDGETS[1] - 1e-9, 1), (BUDGETS[1], 1), (BUDGETS[1] + 1e-9, 2)):
        target = TargetNetwork(0.1, costs=np.full(50, cost), risks=np.full(50, 0.15))
        bound, _ = check_target(whole, target)["wasserstein_cdf"]
        np.testing.assert_array_equal(bound, shares.value[index])
    far = TargetNetwork(0.1, costs=np.full(50, 2.0 * BUDGETS[-1]), risks=np.full(50, 1.0))
    bound, check = check_target(whole, far)["wasserstein_cdf"]
    np.testing.assert_array_equal(bound, np.ones(shares.value.shape[1]))
    assert check.holds


def test_a_target_beyond_its_bound_is_noticed() -> None:
    # These costs cannot be true: nothing that close can be that bad.
    checks = check_target(result(answers(clean_risk=0.02)), TargetNetwork(0.1, np.full(50, 0.5), np.full(50, 0.9)))
    assert not checks["wasserstein_mean"][1].holds
    assert not checks["wasserstein_cdf"][1].holds
    assert checks["wasserstein_mean"][1].smallest_margin < -0.5


def test_unseen_clients_are_pushed_to_the_worst_network_within_the_budget() -> None:
    curves = (
        ConcaveCurve(np.array([0.0, 1.0, 4.0]), np.array([0.1, 0.5, 1.0])),
        ConcaveCurve(np.array([0.0, 2.0]), np.array([0.2, 0.4])),
    )
    whole = result(answers(clean_risk=0.9))
    checks = check_certificates(whole.certificates, Unseen(np.array([0.1, 0.2]), curves))
    for row, budget in enumerate(BUDGETS):
        # Spend on pieces (slope, length) of both curves: a linear program, since slopes fall along each curve.
        gains, lengths = np.array([0.4, 0.5 / 3, 0.1]), [1.0, 3.0, 2.0]
        best = linprog(-gains, A_ub=np.ones((1, 3)), b_ub=[2 * budget], bounds=[(0, length) for length in lengths])
        assert checks["wasserstein_mean"].observed[row] == pytest.approx((0.3 - best.fun) / 2)
    # To risk 0.3 it costs 0.5 and 1.0; to 0.6 it costs 1.6, and nothing makes the second client that bad.
    expected = [[0.0, 0.0], [0.75, 1 / 3.2], [1.0, 0.5]]
    np.testing.assert_allclose(checks["wasserstein_cdf"].observed, np.minimum(expected, 1.0), atol=1e-9)


def test_where_the_worst_network_is_not_known_the_unseen_clients_stay_as_they_are() -> None:
    checks = check_certificates(
        {name: result(answers(clean_risk=0.1)).certificates[name] for name in ("wasserstein_mean", "wasserstein_cdf")},
        Unseen(np.array([0.1, 0.2])),
    )
    np.testing.assert_allclose(checks["wasserstein_mean"].observed, [0.15, 0.15, 0.15])
