"""The whole app with noise on the answers, over `InProcessGrid`: each strategy, its report, its table and refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import riskband as rb
from riskband.cli import main as riskband_command
from riskband.flower.testing import Delivery
from server.config import load_config
from server.problems import ConfigError
from server.run.ledger import read_ledger
from tests.server.running import SMALL, at_every_budget, printed, run_app
from tests.server.test_resume import assert_same_results, cut_ledger

SETTINGS: dict[str, Any] = {"privacy": "laplace:0.5"}  # with the 40 examples of SMALL
COSTS: dict[str, Any] = {"strategy": "wasserstein", "cost_budgets": "0,0.5,2", "num_multipliers": 5}
CANDIDATES: dict[str, Any] = {"strategy": "selection", "training_epochs": 3, "candidate_epochs": "1,3"}
run = partial(run_app, **SETTINGS)


def answers_of(folder: Path) -> list[Any]:
    return sorted(read_ledger(folder / "ledger.jsonl")[1], key=lambda answer: answer.client_id)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    run(folder, defaults, privacy="")
    return folder


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("private")
    run(folder, defaults)
    return folder


def test_the_answers_differ_from_the_plain_ones_by_whole_numbers_of_mistakes(plain: Path, private: Path) -> None:
    before, after = (np.array([answer.risk for answer in answers_of(folder)]) for folder in (plain, private))
    noise = (after - before) * 40
    np.testing.assert_allclose(noise, np.rint(noise), atol=1e-9)
    assert len(set(np.rint(noise))) > 1
    assert np.abs(noise).max() < 80  # 40 times its scale


def test_every_certificate_accounts_for_the_noise_and_verifies(plain: Path, private: Path) -> None:
    report = json.loads((private / "report.json").read_text())
    without = json.loads((plain / "report.json").read_text())
    assert report["certificates"].keys() == without["certificates"].keys() - {"next_client"}  # that has no noise
    for name, entry in report["certificates"].items():
        text = " ".join(entry["assumptions"])
        assert "discrete Laplace noise of its own (epsilon = 0.5 for an answer of one number" in text, name
        certificate = rb.Certificate.load(private / entry["file"])
        assert certificate.recipe["answers"]["noise"] == {"mechanism": "laplace:0.5", "num_values": 1, "num_steps": 1}
        assert rb.verify(certificate).ok
    assert report["certificates"]["mean"]["value"] > without["certificates"]["mean"]["value"]
    assert report["privacy"] == {"mechanism": "laplace:0.5", "num_values": 1, "epsilon": 0.5, "delta": 0.0}
    assert without["privacy"] is None


def test_a_certificate_without_its_noise_does_not_verify(private: Path, tmp_path: Path) -> None:
    changed = json.loads((private / "certificates" / "survival.json").read_text())
    del changed["recipe"]["answers"]["noise"]
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    assert riskband_command(["verify", str(private / "certificates" / "survival.json")]) == 0
    assert riskband_command(["verify", str(tmp_path / "changed.json")]) == 1


def test_the_table_says_what_the_noise_protects(plain: Path, private: Path) -> None:
    text = printed(json.loads((private / "report.json").read_text()))
    assert "Privacy: every answer of one number has discrete Laplace noise, epsilon = 0.5 for each example" in text
    assert "the bounds allow for the noise" in text
    assert "Privacy" not in printed(json.loads((plain / "report.json").read_text()))


@pytest.mark.slow  # without noise test_app says it by default
def test_the_same_seed_gives_the_same_bytes_whatever_the_network_does(
    private: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    run(tmp_path / "again", defaults, grid_seed=1)
    assert_same_results(tmp_path / "again", private)
    cut_ledger(private, tmp_path / "cut", num_answers=5)
    run(tmp_path / "cut", defaults, grid_seed=2, resume="true")
    assert_same_results(tmp_path / "cut", private)


def test_answers_with_other_noise_are_not_taken_over(
    private: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    cut_ledger(private, tmp_path, num_answers=5)
    with pytest.raises(ValueError, match=r"privacy was 'laplace:0\.5' and is now 'laplace:1'"):
        run(tmp_path, defaults, privacy="laplace:1", resume="true")


@pytest.mark.parametrize("loss", ["zero_one", pytest.param("brier", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("changes", "num_values"),
    [
        ({}, 1),
        pytest.param({"local": "counted", "missing": "worst", "contamination": 1}, 1, marks=pytest.mark.slow),
        pytest.param(
            {"strategy": "dispersion", "dispersion_method": "convex_order", "group_sigmas": "0.1,0.3"},
            1,
            marks=pytest.mark.slow,
        ),
        (CANDIDATES, 2),
        ({**COSTS, "examples_per_client": 4}, 6),
    ],
    ids=["f_divergence", "counted", "dispersion", "selection", "wasserstein"],
)
def test_every_strategy_runs_with_gaussian_noise(
    tmp_path: Path, defaults: Mapping[str, Any], loss: str, changes: dict[str, Any], num_values: int
) -> None:
    report = run(tmp_path, defaults, loss=loss, privacy="gaussian:0.5", num_unseen=4, figure_format="svg", **changes)
    assert report["certificates"]
    for entry in report["certificates"].values():
        assert entry["validity"] == "certificate"
        assert "discrete Gaussian noise" in " ".join(entry["assumptions"])
        assert rb.verify(rb.Certificate.load(tmp_path / entry["file"])).ok
    assert report["privacy"]["num_values"] == num_values
    assert report["privacy"]["epsilon"] == pytest.approx(5.0, abs=0.7)
    assert "rho = 0.5 for each example of a client, so epsilon = " in printed(report)


@pytest.mark.slow
def test_with_noise_the_mean_is_certified_for_transported_networks_and_no_shares(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    report = run(
        tmp_path / "private", defaults, **COSTS, privacy="laplace:10", figure_format="svg", examples_per_client=100
    )
    assert list(report["certificates"]) == ["wasserstein_mean"]
    plain = run(
        tmp_path / "plain", defaults, **COSTS, privacy="", delta=0.05 * 3 / 2, examples_per_client=100
    )  # shares have a part there
    bounds = [np.array(each["certificates"]["wasserstein_mean"]["value"]) for each in (report, plain)]
    assert np.all(np.diff(bounds[0]) >= 0.0)
    assert np.all(bounds[0] >= bounds[1] - 0.01)  # noise moves what a bet in a drawn order makes of its answers
    assert bounds[0][0] < 1.0
    assert report["transport"]["empirical_worst_mean"]["about"] == "noise"
    assert report["transport"]["mean_cost_that_makes_an_example_wrong"] is None
    assert "is only estimated, from answers with noise, from 1 round and 12 messages" in printed(report)
    for noisy, exact in zip(answers_of(tmp_path / "private"), answers_of(tmp_path / "plain"), strict=True):
        assert noisy.values_upper == noisy.values_lower == (noisy.clean_risk,)
        assert noisy.conjugates_lower == noisy.conjugates_upper
        assert (noisy.adversarial_unit, noisy.guarantee) == (0.0, "exact")
        # Laplace noise of scale 6 numbers / epsilon 10 / 100 examples; 40 times that is far enough.
        difference = np.array([noisy.clean_risk, *noisy.conjugates_upper]) - [exact.clean_risk, *exact.conjugates_upper]
        assert np.abs(difference).min() > 0.0
        assert np.abs(difference).max() < 40 * 0.006


@pytest.mark.slow
def test_a_noisy_mean_of_conjugates_is_near_the_mean_without_noise(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    """With next to no noise both questions have the same answer: nothing is lost or counted twice."""
    few = {**COSTS, "loss": "brier", "examples_per_client": 3, "reply_timeout": 300.0}  # ascent, example by example
    noisy = run(tmp_path / "a", defaults, **few, privacy="laplace:1000000")
    exact = run(tmp_path / "b", defaults, **few, privacy="")
    for first, second in zip(answers_of(tmp_path / "a"), answers_of(tmp_path / "b"), strict=True):
        np.testing.assert_allclose(first.conjugates_upper, second.conjugates_upper, atol=2e-4)
        assert first.guarantee == second.guarantee == "upper"
    # From noisy answers a bound holds for every budget; so compare with what holds for every budget without noise.
    plain = at_every_budget(tmp_path / "b", "wasserstein_mean")
    np.testing.assert_allclose(noisy["certificates"]["wasserstein_mean"]["value"], plain, atol=0.02)
    assert np.all(
        np.asarray(exact["certificates"]["wasserstein_mean"]["value"]) <= np.asarray(plain) + 0.1
    )  # by luck of the order


def budgets(folder: Path, text: str) -> dict[int, dict[str, Any]]:
    """A privacy budget for client 3 alone."""
    return {3: {"privacy-budget": text, "privacy-budget-file": str(folder / "privacy.sqlite")}}


@pytest.mark.parametrize(
    ("budget", "rule"),
    [
        ("laplace:0.4", "got epsilon = 0.5 with 0.4 left"),
        pytest.param("gaussian:9", "answers with gaussian noise only", marks=pytest.mark.slow),
    ],
)
def test_a_client_whose_budget_is_too_small_refuses_and_the_others_are_certified(
    tmp_path: Path, defaults: Mapping[str, Any], budget: str, rule: str
) -> None:
    report = run(tmp_path / "out", defaults, node_configs=budgets(tmp_path, budget))
    (failure,) = report["network"]["failures"]
    assert (failure["client_id"], failure["reason"]) == ("client-00003", "client-raised")
    assert rule in failure["detail"]
    assert report["network"]["clients_without_answer"] == ["client-00003"]


def with_risk(risk: float) -> Any:
    def behave(message: Message, answer: Any) -> list[Delivery]:
        reply = answer(message)
        reply.content["answer"]["risk"] = risk
        return [Delivery(reply)]

    return behave


@pytest.mark.guard
@pytest.mark.parametrize(
    ("risk", "reason"),
    [
        pytest.param(-0.2, None, marks=pytest.mark.slow),
        pytest.param(1.2, None, marks=pytest.mark.slow),
        (0.005, "impossible-count"),
        pytest.param(9.0, "out-of-range", marks=pytest.mark.slow),
        pytest.param(np.nan, "not-finite", marks=pytest.mark.slow),
    ],
)
def test_a_noisy_answer_may_leave_the_range_but_not_by_more_than_noise_does(
    tmp_path: Path, defaults: Mapping[str, Any], risk: float, reason: str | None
) -> None:
    report = run(tmp_path, defaults, behaviours={2: with_risk(risk)})
    assert [failure["reason"] for failure in report["network"]["failures"]] == ([reason] if reason else [])
    plain = run(tmp_path, defaults, behaviours={2: with_risk(risk)}, privacy="", quorum=0.5)
    assert len(plain["network"]["failures"]) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": "laplace"},
        {"privacy": "laplace:0"},
        {"privacy": "gauss:1"},
        {"privacy": "laplace:1", "local": "observed"},
        {"privacy": "laplace:1", "local": "union"},
        {"privacy": "laplace:1", "strategy": "wasserstein", "protocol": "bisection"},
        {"privacy": "laplace:1", "strategy": "wasserstein", "cost-bound": 100.0},
        {"privacy": "laplace:1", "strategy": "wasserstein", "space": "layer:0", "box": "0,1"},
    ],
)
def test_what_no_certificate_could_account_for_is_refused_before_anyone_is_asked(
    defaults: Mapping[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as error:
        load_config({**defaults, **SMALL, **changes})
    (problem,) = error.value.problems
    assert "privacy" in problem
    assert 'give "laplace:EPSILON" or "gaussian:RHO"' in problem
