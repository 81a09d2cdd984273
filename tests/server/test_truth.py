from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import riskband as rb
from protocol.models import build_model
from riskband.models.evaluation import mean_loss
from server.checks.unseen import Unseen, check_certificates, unseen_clients
from server.config import load_config
from server.settings import RunConfig
from server.studies import study_of
from server.studies.study import UnderTest
from worlds.population import Population, spec_from_config

BUDGETS = np.array([0.0, 0.1])
THRESHOLDS = np.array([0.1, 0.25, 0.4])


def small(defaults: Mapping[str, Any], **changes: Any) -> RunConfig:
    return load_config({**defaults, "num-unseen": 4, **{k.replace("_", "-"): v for k, v in changes.items()}})


def certificates(values: np.ndarray) -> dict[str, rb.Certificate]:
    risks = rb.ClientRisks(values, num_examples=1000)
    band = rb.band(risks, delta=0.05, sides="lower")
    return {
        "mean": rb.mean_bound(risks, delta=0.05),
        "survival": rb.survival(band, thresholds=THRESHOLDS),
        "worst_case_mean_kl": rb.worst_case_mean(band, divergence="kl", budget=BUDGETS),
        "worst_case_cdf_chi2": rb.worst_case_cdf(band, divergence="chi2", budget=BUDGETS, thresholds=THRESHOLDS),
    }


def test_exact_risks_are_what_ever_more_examples_approach(defaults: Mapping[str, Any]) -> None:
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    num_examples = 20_000
    config = small(defaults, examples_per_client=num_examples, loss="brier")
    population = Population(spec_from_config(config.to_run_config(), network="unseen"))
    measured = []
    for k in range(config.network.num_unseen):
        examples = population.client(k)
        measured.append(mean_loss(model, examples.x, examples.y, loss="brier")[0])
    # Hoeffding: four means in [0, 1] all stay within this of their expectations, except with probability 1e-6.
    tolerance = np.sqrt(np.log(2 * 4 / 1e-6) / (2 * num_examples))
    np.testing.assert_allclose(unseen_clients(config, model).risks, measured, atol=tolerance)


def test_for_observed_risks_the_unseen_clients_measure_too(defaults: Mapping[str, Any]) -> None:
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    risks = unseen_clients(small(defaults, local="observed", examples_per_client=50), model).risks
    np.testing.assert_allclose(risks * 50, np.round(risks * 50), atol=1e-9)


def test_a_check_compares_with_the_same_quantity_of_the_unseen_network() -> None:
    unseen = np.array([0.05, 0.1, 0.25, 0.5])
    checks = check_certificates(certificates(np.full(50, 0.9)), Unseen(unseen))
    assert checks["mean"].observed == pytest.approx(0.225)
    np.testing.assert_allclose(checks["survival"].observed, [0.75, 0.5, 0.25])
    p = np.array([0.75, 0.5, 0.25])
    # The worst probability in a chi-squared ball is p + sqrt(budget p (1 - p)) as long as that is below 1.
    chi2 = p + np.sqrt(BUDGETS[:, np.newaxis] * p * (1 - p))
    np.testing.assert_allclose(checks["worst_case_cdf_chi2"].observed, chi2, atol=1e-9)

    def tilted_mean(weights: np.ndarray) -> float:
        return -float(weights @ unseen)

    def budget_left(weights: np.ndarray) -> float:
        return float(0.1 - (weights * np.log(np.maximum(weights, 1e-300) * 4)).sum())

    sum_is_one = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
    in_ball = {"type": "ineq", "fun": budget_left}
    worst = minimize(tilted_mean, np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints=[sum_is_one, in_ball])
    np.testing.assert_allclose(checks["worst_case_mean_kl"].observed, [0.225, -worst.fun], atol=1e-5)
    assert all(check.holds for check in checks.values())


def two_sided(values: np.ndarray, groups: list[str | None]) -> dict[str, rb.Certificate]:
    risks = rb.ClientRisks(values, num_examples=1000)
    band = rb.band(risks, delta=0.05)
    bands = rb.group_bands(risks, groups, delta=0.05)
    return {
        "gini": rb.dispersion_certificate(band, "gini"),
        "lorenz": rb.lorenz_certificate(band, shares=[0.0, 0.5, 1.0]),
        "quantiles": rb.quantile_certificate(band, level=[0.25, 0.5]),
        "gap": rb.group_certificate(bands, "largest_gap", "mean"),
        "worst": rb.group_certificate(bands, "worst_group", "mean"),
    }


def test_bounds_from_both_sides_are_compared_with_textbook_values() -> None:
    unseen = Unseen(np.array([0.5, 0.1, 0.3, 0.1]), groups=("a", "b", None, "b"))
    certificates = two_sided(np.tile([0.1, 0.1, 0.3, 0.5], 50), ["b", "b", None, "a"] * 50)
    checks = check_certificates(certificates, unseen)
    assert checks["gini"].observed == pytest.approx((0.2 * 2 + 0.4 * 2 + 0.2) * 2 / 16 / 0.5)
    np.testing.assert_allclose(checks["lorenz"].observed, [0.0, 0.2, 1.0])
    np.testing.assert_array_equal(checks["quantiles"].observed, [0.1, 0.1])
    assert checks["gap"].observed == pytest.approx(0.4)
    assert checks["worst"].observed == pytest.approx(0.5)
    for name, check in checks.items():
        ends = np.asarray(certificates[name].lower), np.asarray(certificates[name].value)
        assert check.holds
        margin = min(np.min(ends[1] - check.observed), np.min(check.observed - ends[0]))
        assert check.smallest_margin == pytest.approx(margin)


@pytest.mark.parametrize("risk", [0.0, 1.0])
def test_a_value_outside_either_end_fails_the_check(risk: float) -> None:
    unseen = Unseen(np.full(40, risk), groups=("a", "b") * 20)
    certificates = two_sided(np.tile([0.1, 0.1, 0.3, 0.5], 50), ["b", "b", None, "a"] * 50)
    for name in ("gini", "quantiles", "worst"):  # all are equal, at a risk far from those that were measured
        check = check_certificates(certificates, unseen)[name]
        assert not check.holds, name
        assert check.smallest_margin < 0


def test_groups_that_no_unseen_client_is_known_to_be_in_are_not_checked() -> None:
    certificates = two_sided(np.tile([0.1, 0.1, 0.3, 0.5], 50), ["b", "b", None, "a"] * 50)
    for groups in ((), ("a", "a"), (None, None)):
        checks = check_certificates(certificates, Unseen(np.array([0.1, 0.2]), groups=groups))
        assert set(checks) == {"gini", "lorenz", "quantiles"}


def test_unseen_clients_carry_the_groups_of_the_simulation(defaults: Mapping[str, Any]) -> None:
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    for strategy in ("dispersion", "wasserstein"):
        config = small(defaults, group_sigmas="0.1,0.4", strategy=strategy)
        unseen = study_of(config).unseen(config, UnderTest({}, (model,)), None)
        spec = spec_from_config(config.to_run_config(), network="unseen")
        assert unseen.groups == tuple(spec.group(k).name for k in range(4))
    assert unseen_clients(small(defaults), model).groups == (None,) * 4


def test_a_certificate_from_better_clients_fails_the_check() -> None:
    checks = check_certificates(certificates(np.full(200, 0.01)), Unseen(np.full(100, 0.3)))
    assert not any(check.holds for check in checks.values())
    assert all(check.smallest_margin < 0 for check in checks.values())


def test_what_cannot_be_checked_is_an_error() -> None:
    risks = rb.ClientRisks(np.full(20, 0.1), num_examples=100)
    certificate = rb.quantile(rb.band(risks, delta=0.1, sides="lower"), level=[0.5])
    with pytest.raises(ValueError, match="quantile"):
        check_certificates({"quantile": certificate}, Unseen(np.full(10, 0.1)))
