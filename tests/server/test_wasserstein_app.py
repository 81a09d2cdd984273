"""The whole app with the strategy "wasserstein", over `InProcessGrid`: what a run writes and what it calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from protocol.questions import AdversarialAnswer
from riskband.cli import main as riskband_command
from riskband.flower.testing import Delivery
from server.run.ledger import read_ledger
from tests.server.running import at_every_budget, printed, raises, run_app
from tests.strategies import network

BUDGETS = "0,0.02,0.1,0.4"
NAMES = ["wasserstein_mean", "wasserstein_cdf", "wasserstein_published"]
SETTINGS = {"strategy": "wasserstein", "cost_budgets": BUDGETS, "num_targets": 4}
CNN = {"model": "cnn", "target_sigmas": "0.05,0.1", "cost_bound": 30.0, "figure_format": "png,svg"}
FINISHED = SETTINGS | CNN
run = partial(run_app, **SETTINGS)
claiming = partial(network.claiming, AdversarialAnswer)


def test_free_moves_are_certified_at_cost_0_and_covered(
    report: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    """Every example may move by 0.1: the risks are the same, what is certified is larger, and still holds."""
    free = run(tmp_path, defaults, model="cnn", free_distance=0.1)
    assert free["network"]["mean_empirical_risk"] == report["network"]["mean_empirical_risk"]
    assert "beyond 0.1, up to which every example may move at no cost" in free["transport"]["cost"]
    moved, plain = (each["certificates"]["wasserstein_mean"]["value"] for each in (free, report))
    assert np.all(np.array(moved) >= plain)
    assert moved[0] > plain[0]
    assert all(entry["check"]["holds"] for entry in free["certificates"].values())
    assert {entry["validity"] for entry in free["certificates"].values()} == {"certificate"}


def test_everything_lands_in_the_folder(finished: Path, report: dict[str, Any]) -> None:
    assert report["network"]["num_answered"] == 12
    assert list(report["certificates"]) == NAMES
    assert {path.name for path in (finished / "certificates").iterdir()} == {f"{name}.json" for name in NAMES}
    files = {
        "report.json",
        "report.html",
        "ledger.jsonl",
        "events.jsonl",
        ".riskband.files",
        "certificates",
        "transport.png",
        "transport.svg",
    }
    assert {path.name for path in finished.iterdir()} == files
    assert {entry["delta"] for entry in report["certificates"].values()} == {0.0125}  # the breakdown has its part
    assert set(report["timing"]["seconds"]) == {"model", "answers", "unseen", "targets", "requirements"}


def test_every_saved_certificate_verifies_by_command_and_a_changed_one_does_not(finished: Path, tmp_path: Path) -> None:
    for name in NAMES:
        assert riskband_command(["verify", str(finished / "certificates" / f"{name}.json")]) == 0
    changed = json.loads((finished / "certificates" / "wasserstein_mean.json").read_text())
    changed["value"][1] -= 0.01
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    assert riskband_command(["verify", str(tmp_path / "changed.json")]) != 0


def test_the_ledger_holds_the_answers_behind_the_certificates(finished: Path, report: dict[str, Any]) -> None:
    _, answers = read_ledger(finished / "ledger.jsonl")
    by_name = {answer.client_id: answer for answer in answers}
    stored = json.loads((finished / "certificates" / "wasserstein_mean.json").read_text())["recipe"]["answers"]
    for name, values, conjugates in zip(
        report["network"]["client_ids"], stored["values"], stored["conjugates"], strict=True
    ):
        assert by_name[name].values_upper == tuple(values)
        assert by_name[name].conjugates_upper == tuple(conjugates)


def test_budgets_are_also_given_in_units_of_what_makes_an_example_wrong(finished: Path, report: dict[str, Any]) -> None:
    transport = report["transport"]
    units = [answer.adversarial_unit for answer in read_ledger(finished / "ledger.jsonl")[1]]
    unit = transport["mean_cost_that_makes_an_example_wrong"]
    assert unit == pytest.approx(np.mean(units))
    assert transport["cost_budgets"] == [0.0, 0.02, 0.1, 0.4]
    np.testing.assert_allclose(transport["cost_budgets_in_that_unit"], np.array([0.0, 0.02, 0.1, 0.4]) / unit)


def test_the_worst_case_of_those_who_answered_lies_below_the_certificates(report: dict[str, Any]) -> None:
    lower, upper = (report["transport"]["empirical_worst_mean"][end] for end in ("lower", "upper"))
    assert np.all(np.array(lower) <= np.array(upper) + 1e-12)
    assert np.all(np.array(upper[1:]) - np.array(lower[1:]) < 0.05)
    assert lower[0] == upper[0] == report["network"]["mean_empirical_risk"]
    for name in ("wasserstein_mean", "wasserstein_published"):
        assert np.all(np.array(report["certificates"][name]["value"]) >= np.array(lower) - 1e-12)
    assert (report["transport"]["num_rounds"], report["transport"]["num_messages"]) == (1, 12)


def test_targets_are_reported_with_bound_and_margin(report: dict[str, Any]) -> None:
    assert [target["sigma"] for target in report["targets"]] == [0.05, 0.1]
    thresholds = np.array(report["certificates"]["wasserstein_cdf"]["axes"]["threshold"])
    for target in report["targets"]:
        assert target["mean_cost"] == pytest.approx(np.mean(target["costs"]))
        assert target["mean_risk"] == pytest.approx(np.mean(target["risks"]))
        assert target["num_clients"] == 4
        mean, cdf = target["checks"]["wasserstein_mean"], target["checks"]["wasserstein_cdf"]
        assert mean["smallest_margin"] == pytest.approx(mean["bound"] - target["mean_risk"])
        np.testing.assert_allclose(cdf["observed"], np.mean(np.array(target["risks"])[:, None] >= thresholds, axis=0))
        assert mean["holds"]
        assert cdf["holds"]


def test_the_certificates_hold_on_the_worst_networks_of_unseen_clients(tmp_path: Path, defaults: Any) -> None:
    report = run(tmp_path, defaults, num_clients=60, num_unseen=60, delta=0.01)
    assert report["transport"]["unseen_are_moved"]
    for entry in report["certificates"].values():
        assert entry["check"]["holds"]
    observed = report["certificates"]["wasserstein_mean"]["check"]["observed"]
    assert observed[0] == pytest.approx(report["unseen"]["mean_risk"])
    assert observed[2] > observed[0] + 0.1  # they were moved
    text = printed(report)
    assert "all 2 certificates hold" in text
    assert "on the worst one within the budget" in text


def test_the_table_says_what_each_number_is(report: dict[str, Any]) -> None:
    text = printed(report)
    unit = report["transport"]["mean_cost_that_makes_an_example_wrong"]
    for words in (
        "mean risk ([RE] Theorem 6.3)",
        f"cost ≤ 0.1 ({0.1 / unit:.2g} u)",
        f"1 u = {unit:.4g}, the mean cost that makes an example wrong",
        "all of this holds together (delta = ",
        "from 1 round and 12 messages",
        "Unseen clients, moved further",
        f"{report['targets'][1]['mean_cost']:.3g} ({report['targets'][1]['mean_cost'] / unit:.2g} u)",
    ):
        assert words in text, words


@pytest.mark.slow  # test_app says it by default
def test_the_same_seed_gives_the_same_bytes_whatever_the_network_does(
    finished: Path, report: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    again = run(tmp_path, defaults, **CNN, grid_seed=1)
    for each in (report := dict(report), again):
        del each["timing"]
    assert json.dumps(report) == json.dumps(again)
    for name in ("transport.png", "transport.svg", *(f"certificates/{name}.json" for name in NAMES)):
        assert (finished / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.slow
def test_bisection_and_one_round_give_the_same_number(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    settings = {"num_unseen": 0, "bisection_tolerance": 0.002, "num_radii": 400}
    reports = {
        protocol: run(tmp_path / protocol, defaults, protocol=protocol, **settings)
        for protocol in ("one-round", "bisection")
    }
    once, rounds = (reports[protocol]["transport"] for protocol in ("one-round", "bisection"))
    for end in ("lower", "upper"):
        np.testing.assert_allclose(
            once["empirical_worst_mean"][end], rounds["empirical_worst_mean"][end], atol=0.002 + 1e-9
        )
    # Both brackets hold the truth, so neither may lie beyond the other.
    for one, other in ((once, rounds), (rounds, once)):
        below, above = one["empirical_worst_mean"]["lower"], other["empirical_worst_mean"]["upper"]
        assert np.all(np.array(below) <= np.array(above) + 1e-12)
    assert once["num_messages"] == 12
    assert rounds["num_messages"] > 24
    assert rounds["num_rounds"] > 3
    values = [at_every_budget(tmp_path / protocol, "wasserstein_mean") for protocol in reports]
    np.testing.assert_array_equal(*values)  # multipliers were asked in the first message of either
    shares = [at_every_budget(tmp_path / protocol, "wasserstein_cdf") for protocol in reports]
    assert np.all(shares[1] <= 1.0)  # one proof of the two, with all of delta
    assert np.all(shares[0] <= shares[1] + 0.05)
    # For the budgets asked, bets look at multipliers between those that were asked, of which many radii say more.
    for name, apart in (("wasserstein_mean", 0.01), ("wasserstein_cdf", 0.1)):
        first, second = (np.array(report["certificates"][name]["value"]) for report in reports.values())
        assert np.all(first <= second + apart)


def test_the_bracket_is_shown_while_a_bisection_runs(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    shown = []

    def watch(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
        shown.append(json.loads((tmp_path / "progress.json").read_text())["detail"])
        return [Delivery(answer(message))]

    run(tmp_path, defaults, behaviours={0: watch}, protocol="bisection", num_unseen=0, cost_budgets="0.1")
    assert shown[0] == ""
    brackets = [
        tuple(map(float, re.findall(r"0\.\d+|1\.\d+", line.partition(": ")[2]))) for line in filter(None, shown)
    ]
    assert len(set(brackets)) > 2
    assert all(lower <= upper + 1e-12 for lower, upper in brackets)
    assert brackets[-1][1] - brackets[-1][0] < brackets[0][1] - brackets[0][0]


def test_a_weaker_guarantee_than_was_asked_for_is_one_clients_failure(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    liars = {5: claiming(guarantee="lower"), 6: claiming(guarantee="upper")}
    report = run(tmp_path, defaults, behaviours=liars, quorum=0.8)
    assert [(failure["client_id"], failure["reason"]) for failure in report["network"]["failures"]] == [
        ("client-00005", "wrong-guarantee"),
        ("client-00006", "wrong-guarantee"),
    ]
    assert report["transport"]["guarantee"] == "exact"
    assert {entry["validity"] for entry in report["certificates"].values()} == {"certificate"}


def test_answers_of_an_attack_make_everything_an_estimate(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    attack = {"space": "input", "adversary": "min-norm", "figure_format": "svg"}
    report = run(tmp_path, defaults, **attack, target_sigmas="0.05", breakdown_target=0.9)
    assert report["transport"]["guarantee"] == "lower"
    assert {entry["validity"] for entry in report["certificates"].values()} == {"estimate"}
    assert "it is estimated that" in report["breakdown"]["statement"]
    text = printed(report)
    assert "mean risk (estimate)" in text
    assert "estimates" in text
    assert "certified that" not in text
    assert "estimate: mean risk" in (tmp_path / "transport.svg").read_text()


def test_the_breakdown_is_a_cost(report: dict[str, Any]) -> None:
    assert "the mean risk is at most 0.1" in report["breakdown"]["statement"]


def test_a_curve_that_cannot_be_is_refused_and_named(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    zeros = (0.0,) * defaults["num-radii"]
    report = run(
        tmp_path,
        defaults,
        behaviours={2: claiming(values_lower=zeros, values_upper=zeros), 7: raises},
        quorum=0.8,
    )
    assert report["network"]["num_answered"] == 10
    named = [failure for failure in report["network"]["failures"] if failure["client_id"]]
    assert [failure["client_id"] for failure in named] == ["client-00002"]
    assert report["network"]["clients_without_answer"] == ["client-00002", "client-00007"]


@pytest.mark.parametrize(
    ("loss", "order", "norm", "guarantee"),
    [
        ("zero_one", 1, "linf", "exact"),
        pytest.param("margin", 1, "l1", "exact", marks=pytest.mark.slow),
        pytest.param("brier", 2, "l2", "upper", marks=pytest.mark.slow),
    ],
)
def test_other_losses_and_costs(
    tmp_path: Path, defaults: Mapping[str, Any], loss: str, order: int, norm: str, guarantee: str
) -> None:
    report = run(
        tmp_path, defaults, loss=loss, transport_order=order, transport_norm=norm, target_sigmas="0.05", num_radii=10
    )
    assert report["transport"]["guarantee"] == guarantee
    assert f"order {order}, {norm} distance" in report["transport"]["cost"]
    assert {entry["validity"] for entry in report["certificates"].values()} == {"certificate"}
    assert "wasserstein_cdf" in report["certificates"]
    assert report["transport"]["unseen_are_moved"] == (loss == "zero_one")
    assert all(entry["check"]["holds"] for entry in report["certificates"].values())
    assert ("only known for the 0-1 loss" in printed(report)) == (loss != "zero_one")


def test_a_run_of_another_strategy_removes_the_old_figure(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    run(tmp_path, defaults, num_unseen=0, figure_format="svg")
    report = run_app(tmp_path, defaults, figure_format="svg")
    assert {path.name for path in tmp_path.glob("*.svg")} == {"band.svg"}
    assert "transport" not in report
    assert "targets" not in report
