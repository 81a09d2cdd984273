"""The whole app with the strategy "dispersion", over `InProcessGrid`: what a run writes and what it calls it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from protocol import wire
from protocol.questions import LossAnswer
from riskband.cli import main as riskband_command
from riskband.flower.testing import Delivery
from riskband.wording import rounded_down, rounded_up
from server.checks.unseen import Unseen
from server.problems import ConfigError
from server.run.ledger import read_ledger
from tests.server.running import printed, raises, run_app, saved_certificates
from tests.server.test_resume import assert_same_results, cut_ledger

MEASURES = "gini,atkinson:0.5,hoover"
NAMES = ["mean", "dispersion_gini", "dispersion_atkinson_0.5", "dispersion_hoover", "lorenz", "quantiles"]
GROUP_NAMES = ["group_largest_gap", "group_worst"]
SETTINGS = {"strategy": "dispersion", "measures": MEASURES, "num_clients": 24, "num_unseen": 20}
FINISHED = {**SETTINGS, "group_sigmas": "0.05,1.5", "figure_format": "png,svg"}
run = partial(run_app, **SETTINGS)


def test_everything_lands_in_the_folder(finished: Path, report: dict[str, Any]) -> None:
    assert list(report["certificates"]) == [*NAMES, *GROUP_NAMES]
    assert {path.name for path in (finished / "certificates").iterdir()} == {
        f"{name}.json" for name in report["certificates"]
    }
    files = {
        "certificates",
        "report.json",
        "report.html",
        "ledger.jsonl",
        "events.jsonl",
        ".riskband.files",
        "dispersion.png",
        "dispersion.svg",
    }
    assert {path.name for path in finished.iterdir()} == files
    assert report["findings"]["breakdowns"] == []


def test_every_saved_certificate_verifies_by_command_and_a_changed_one_does_not(finished: Path, tmp_path: Path) -> None:
    for path in saved_certificates(finished):
        assert riskband_command(["verify", str(path)]) == 0
        changed = json.loads(path.read_text())
        changed["recipe"]["answers"]["values"][0] = 1.0 - changed["recipe"]["answers"]["values"][0]
        (tmp_path / "changed.json").write_text(json.dumps(changed))
        assert riskband_command(["verify", str(tmp_path / "changed.json")]) == 1


def test_the_sections_hold_the_certificates_and_the_definitions(finished: Path, report: dict[str, Any]) -> None:
    answers = {answer.client_id: answer.risk for answer in read_ledger(finished / "ledger.jsonl")[1]}
    measured = np.array([answers[name] for name in report["network"]["client_ids"]])
    unseen = np.array(report["unseen"]["risks"])

    def gini(risks: np.ndarray) -> float:
        return float(np.abs(risks[:, None] - risks).mean() / (2.0 * risks.mean()))

    def hoover(risks: np.ndarray) -> float:
        return float(np.abs(risks - risks.mean()).mean() / (2.0 * risks.mean()))

    entries = {entry["measure"]: entry for entry in report["dispersion"]["measures"]}
    assert list(entries) == MEASURES.split(",")
    for name, definition in (("gini", gini), ("hoover", hoover)):
        assert entries[name]["measured"] == pytest.approx(definition(measured))
        assert entries[name]["unseen"] == pytest.approx(definition(unseen))
    for entry in entries.values():
        certificate = report["certificates"][entry["certificate"]]
        assert (entry["lower"], entry["upper"]) == (certificate["lower"], certificate["value"])
        assert entry["plugin"]["lower"] <= entry["lower"] + 1e-12
        assert entry["upper"] <= entry["plugin"]["upper"] + 1e-12
        assert entry["holds"] == (entry["lower"] <= entry["unseen"] <= entry["upper"])
    ordered = np.sort(unseen)
    lorenz = np.append(0.0, np.cumsum(ordered)) / ordered.sum()
    found = np.interp(report["lorenz"]["shares"], np.arange(21) / 20, lorenz)
    np.testing.assert_allclose(report["lorenz"]["unseen"], found, atol=1e-12)
    levels = report["quantiles"]["levels"]
    np.testing.assert_array_equal(report["quantiles"]["unseen"], np.quantile(unseen, levels, method="inverted_cdf"))
    assert "20 clients: an approximation" in report["dispersion"]["unseen_stand_for"]


def test_groups_are_those_of_the_simulation_and_their_gap_is_certified(finished: Path, report: dict[str, Any]) -> None:
    answers = read_ledger(finished / "ledger.jsonl")[1]
    groups = report["groups"]["groups"]
    assert list(groups) == ["sigma-0.05", "sigma-1.5"]
    for name, group in groups.items():
        risks = [answer.risk for answer in answers if answer.group == name]
        assert group["num_clients"] == len(risks) >= 2
        assert group["measured_mean"] == pytest.approx(np.mean(risks))
        assert group["mean"]["lower"] <= group["unseen_mean"] <= group["mean"]["upper"]
    assert sum(group["num_unseen"] for group in groups.values()) == 20
    assert report["groups"]["delta"] == pytest.approx(0.05 / 6)  # the mean, three measures, a band, and the groups
    (gap,) = report["groups"]["mean_gaps"]
    assert gap["groups"] == list(groups)
    assert (gap["lower"], gap["upper"]) == pytest.approx(
        (report["groups"]["largest_mean_gap"]["lower"], report["groups"]["largest_mean_gap"]["upper"])
    )
    means = [group["unseen_mean"] for group in groups.values()]
    for name, observed in zip(GROUP_NAMES, (abs(means[0] - means[1]), max(means)), strict=True):
        assert report["certificates"][name]["check"]["observed"] == pytest.approx(observed)


def test_the_table_says_what_each_number_is(report: dict[str, Any]) -> None:
    text = printed(report)
    gini = report["dispersion"]["measures"][0]
    for words in (
        "mean risk",
        f"{rounded_down(gini['lower'], 3)} and {rounded_up(gini['upper'], 3)}",
        f"{gini['measured']:.3f}",
        "Gini coefficient",
        "Atkinson index (aversion 0.5)",
        "Part of all risk on the best-off half",
        "Quantile 0.9 of the risk",
        "sigma-1.5",
        "With probability at least 0.95 all of this holds together (delta = 0.05, shared among 6, 2 of them bands:",
        "Check: all 8 certificates hold on the unseen clients, at every point of every curve.",
        "an approximation of what is bounded",
        "Groups: the largest gap between two mean risks",
        "within each group",
    ):
        assert words in text, words


def test_a_value_outside_its_interval_is_not_hidden(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report))
    changed["dispersion"]["measures"][0]["holds"] = False
    changed["certificates"]["dispersion_gini"]["check"]["holds"] = False
    text = printed(changed)
    assert "NO" in text
    assert "NO" not in printed(report)
    assert "the unseen clients are outside of dispersion_gini." in text


@pytest.mark.slow  # test_app says it by default
def test_the_same_seed_gives_the_same_bytes_whatever_the_network_does(
    finished: Path, report: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    again = run(tmp_path, defaults, group_sigmas="0.05,1.5", figure_format="png,svg", grid_seed=1)
    first = dict(report)
    for each in (first, again):
        del each["timing"]
    assert json.dumps(first) == json.dumps(again)
    for name in ("dispersion.png", "dispersion.svg", *(f"certificates/{name}.json" for name in first["certificates"])):
        assert (finished / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.slow  # test_resume and test_comparison_app say it by default
def test_an_interrupted_run_is_continued_with_the_groups_of_its_ledger(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    cut_ledger(finished, tmp_path, num_answers=15)
    run(tmp_path, defaults, group_sigmas="0.05,1.5", figure_format="png,svg", resume="true", grid_seed=2)
    assert_same_results(tmp_path, finished)


def test_without_groups_nothing_is_said_of_them(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run(tmp_path, defaults, num_unseen=0, dispersion_method="convex_order")
    assert list(report["certificates"]) == NAMES
    assert "groups" not in report
    assert {entry["method"] for entry in report["dispersion"]["measures"]} == {"convex_order"}
    assert report["lorenz"]["unseen"] is None
    text = printed(report)
    assert "holds on" not in text
    assert "roup" not in text


def test_owners_name_groups_that_no_unseen_client_is_known_to_be_in(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    owners = {k: {"group": "[bold]city" if k % 2 else "rural"} for k in range(20)} | {20: {"group": "farm"}}
    report = run(tmp_path, defaults, node_configs=owners, figure_format="svg")
    assert {name: group["num_clients"] for name, group in report["groups"]["groups"].items()} == {
        "[bold]city": 10,
        "rural": 10,
    }
    assert report["groups"]["too_small"] == {"farm": 1}
    assert report["groups"]["num_in_no_group"] == 3
    assert all(report["certificates"][name]["check"] is None for name in GROUP_NAMES)
    text = printed(report)
    assert "Check: all 6 certificates hold" in text
    assert "3 clients are in no group; too small to say anything of: farm (1)" in text
    assert "[bold]city" in text  # a name is a name, not markup


def test_a_group_that_is_no_name_is_malformed(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    def behave(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
        honest = wire.decode_answer(answer(message).content, LossAnswer)
        content = wire.encode_answer(dataclasses.replace(honest, group="x" * 101))
        return [Delivery(Message(content, reply_to=message))]

    report = run(tmp_path, defaults, behaviours={3: behave}, num_unseen=0)
    assert [failure["reason"] for failure in report["network"]["failures"]] == ["malformed"]


@pytest.mark.parametrize("strategy", ["dispersion", "f_divergence", "wasserstein"])
def test_missing_and_wrong_answers_can_be_counted_as_worst(
    tmp_path: Path, defaults: Mapping[str, Any], strategy: str
) -> None:
    settings = {"strategy": strategy, "behaviours": {2: raises}, "quorum": 0.8, "num_unseen": 0}
    settings |= {"cost_budgets": "0,0.1", "num_radii": 10, "num_multipliers": 5, "num_clients": 12}
    plain = run(tmp_path / "plain", defaults, **settings)
    careful = run(tmp_path / "careful", defaults, **settings, missing="worst", contamination=1, figure_format="svg")
    need_answers_as_they_are = {"share", "next_client"}
    assert set(plain["certificates"]) - set(careful["certificates"]) <= need_answers_as_they_are
    if strategy == "f_divergence":
        events = [each["certificates"]["worst_case_mean_kl"]["event"] for each in (plain, careful)]
        assert events == ["own", "band"]
    for name, entry in careful["certificates"].items():
        assert not any("missing at random" in line for line in entry["assumptions"])
        assert any("missing at random" in line for line in plain["certificates"][name]["assumptions"])
        if entry["event"] == plain["certificates"][name]["event"]:
            assert np.all(np.array(entry["value"]) >= np.array(plain["certificates"][name]["value"]) - 1e-12)
        assert riskband_command(["verify", str(tmp_path / "careful" / "certificates" / f"{name}.json")]) == 0


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"measures": "gini,ginny"}, "measures"),
        ({"measures": "theil,generalised_entropy:1"}, "measures"),
        ({"measures": ""}, "measures"),
        ({"measures": "atkinson:-1"}, "measures"),
        ({"dispersion_method": "dull"}, "dispersion-method"),
        ({"group_sigmas": "0.1,0.1"}, "group-sigmas"),
        ({"group_sigmas": "0.1,1e9"}, "group-sigmas"),
        ({"missing": "maybe"}, "missing"),
        ({"contamination": -1}, "contamination"),
        ({"contamination": 22}, "contamination"),
        ({"strategy": "wasserstein", "cost_bound": 1.0, "contamination": 1}, "contamination"),
        ({"strategy": "wasserstein", "cost_bound": 1.0, "missing": "worst"}, "missing"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_anybody_is_asked(
    tmp_path: Path, defaults: Mapping[str, Any], wrong: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, defaults, **wrong)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} ")
    assert not list(tmp_path.iterdir())


def test_unseen_clients_of_a_group_are_found_by_name() -> None:
    unseen = Unseen(np.array([0.1, 0.2, 0.4]), groups=("a", None, "a"))
    np.testing.assert_array_equal(unseen.group_risks("a"), [0.1, 0.4])
    assert unseen.group_risks("b").size == 0
    assert Unseen(np.array([0.1])).group_risks("a").size == 0
