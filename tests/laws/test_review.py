"""What a review found after the fact: each of these once gave a false certificate, or verified one."""

import json

import numpy as np
import pytest

import riskband as rb
from riskband.answers.risks import EQUAL_BY_DESIGN, default_eta
from riskband.functionals.functional import interval_of, resolve


@pytest.mark.parametrize("num_examples", [3, 10, 100])
def test_counts_in_float32_are_moved_to_counts_however_few_examples(num_examples):
    counts = np.where(np.random.default_rng(0).random(200) < 0.5, num_examples - 1, 1)
    single = rb.ClientRisks((counts / num_examples).astype(np.float32), num_examples)
    assert single.binary
    np.testing.assert_array_equal(single.values, counts / num_examples)
    band = rb.band(single, delta=0.05, local="observed", sides="lower")
    assert rb.survival(band, thresholds=(num_examples - 1) / num_examples).value > 0.5


def test_small_means_in_float16_are_no_counts_of_0():
    values = np.random.default_rng(1).uniform(6e-4, 9.6e-4, 2000).astype(np.float16)
    risks = rb.ClientRisks(values, 100)
    assert not risks.binary
    assert rb.mean_bound(risks, delta=0.05).value > values.astype(float).mean()


def test_equal_numbers_of_examples_choose_the_rank_and_are_an_assumption():
    risks = rb.ClientRisks([0.1, 0.2, 0.3] * 20, 10)
    assert EQUAL_BY_DESIGN in rb.quantile(risks, 0.9, delta=0.05).assumptions
    assert EQUAL_BY_DESIGN not in rb.quantile(risks, 0.9, delta=0.05, local="observed").assumptions


@pytest.mark.parametrize("local", ["counted", "marginal"])
def test_the_error_level_of_groups_does_not_depend_on_how_their_step_is_spelled(local):
    sizes = 100 + np.arange(60)  # which differ: "marginal" uses one error level too
    risks = rb.ClientRisks(np.linspace(0.0, 0.5, 60), sizes, num_missing=400, missing="worst")
    labels = ["few"] * 10 + ["many"] * 50
    bands = [rb.group_bands(risks, labels, delta=0.1, local=name) for name in (local, local.title())]
    assert bands[0] == bands[1]
    assert len({each.eta for each in bands[0].bands.values()}) == 1
    # Not the one for the clients of a group that count: how many of it answered may depend on their risks.
    assert bands[0]["few"].eta == default_eta(460 // 2)


@pytest.mark.parametrize("binary", [False, True])
def test_every_client_has_a_risk_of_at_least_what_rounding_makes_0(binary):
    clean = np.arange(40)[:, None] / 100
    answers = rb.AdversarialAnswers(
        [0.0, 0.5], np.hstack([clean, clean + 0.2]), 100, cost="a cost", guarantee="exact", binary=binary
    )
    for every_budget in (False, True):
        asked = {"delta": 0.05, "every_budget": every_budget}
        found = rb.wasserstein_cdf(answers, cost_budget=0.1, thresholds=[1e-7, 1e-6, 2e-6, 0.9], **asked)
        np.testing.assert_allclose(np.asarray(found.value)[:3], 1.0, rtol=1e-12)
        for threshold in (0.0, 1e-7, 1e-6, 2e-6):
            bracket = rb.wasserstein_breakdown(answers, target=0.9, max_cost_budget=1.0, threshold=threshold, **asked)
            assert bracket == (-np.inf, 0.0)


@pytest.mark.parametrize(
    "measure", ["atkinson:1", "atkinson:2", "mean_log_deviation", "generalised_entropy:-1", "gini", "theil", "hoover"]
)
def test_clients_that_may_all_have_risk_0_may_be_equal(measure):
    band = rb.band(rb.ClientRisks(np.zeros(40), 100), delta=0.05, local="observed")
    assert interval_of(band, measure).lower == 0.0
    assert resolve(measure).value(rb.extremal_distributions(band, measure).most_equal) == 0.0


@pytest.mark.parametrize("num_clients", [2, 40])
@pytest.mark.parametrize("risk", [0.5, 1.0])
def test_clients_that_may_all_have_one_risk_may_be_equal(num_clients, risk):
    band = rb.band(rb.ClientRisks(np.full(num_clients, risk), 100, False), delta=0.5)
    assert interval_of(band, "coefficient_of_variation").lower == 0.0


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.5, 0.99])
def test_a_small_budget_of_squared_hellinger_distance_moves_clients(share):
    budgets = np.array([1e-20, 1e-17, 1e-16, 1e-14])
    # To first order the divergence of a share s + x from s is x² / (4 s (1 - s)).
    moved = 2.0 * np.sqrt(share * (1.0 - share) * budgets)
    found = rb.binary_worst_case(share, divergence="hellinger2", budget=budgets) - share
    np.testing.assert_allclose(found, moved, rtol=1e-4, atol=3e-16)


def test_bands_of_groups_in_a_file_must_be_as_group_bands_makes_them():
    risks = rb.ClientRisks([0.1, 0.2] * 20, 10)
    bands = rb.group_bands(risks, ["a", "b"] * 20, delta=0.1)
    stored = json.loads(rb.group_certificate(bands, "worst_group", "mean").to_json())
    mixed = json.loads(json.dumps(stored))
    mixed["recipe"]["bands"]["b"]["local"] = "observed"
    with pytest.raises(ValueError, match="must be made in one way"):
        rb.verify(mixed)
    doubted = json.loads(json.dumps(stored))
    doubted["recipe"]["answers"] |= {"num_missing": 2, "missing": "worst"}
    for each in doubted["recipe"]["bands"].values():
        each["method"] = "truncated:0.85:1"
    with pytest.raises(ValueError, match="missing='worst' need method"):
        rb.verify(doubted)


def test_worst_means_of_ones_own_are_an_assumption():
    answers = rb.AdversarialAnswers(
        [0.0, 1.0], np.tile([0.5, 0.6], (50, 1)), 10, cost="order 1", guarantee="exact", binary=True
    )
    own = {"delta": 0.05, "cost_budget": 0.1, "cost_bound": 1.0}
    assert not any("bisection" in line for line in rb.wasserstein_published(answers, **own).assumptions)
    told = rb.wasserstein_published(answers, **own, worst_means=0.55)
    assert "the worst means are the upper ends of a bisection over these clients" in told.assumptions


def test_selection_refuses_tuned_bands():
    risks = rb.ClientRisks([0.1, 0.2] * 20, 10)
    with pytest.raises(ValueError, match="band must be the name of a method, got OptimisedLevels"):
        rb.select({"a": risks}, objective="mean", delta=0.1, band=rb.OptimisedLevels([0.1, 0.2], "mean"))


def test_one_quantile_is_about_what_was_asked_for_however_it_is_spelled():
    risks = rb.ClientRisks([0.1, 0.2, 0.3] * 20, 10)
    assert rb.quantile(risks, 0.9, delta=0.05, local="Observed") == rb.quantile(
        risks, 0.9, delta=0.05, local="observed"
    )
