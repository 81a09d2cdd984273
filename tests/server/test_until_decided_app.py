"""The whole app with ``ask = "until-decided"``: what its report says, whom it spares, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import riskband as rb
from client.budget import QueryBudget
from protocol.models import build_model, save_checkpoint
from riskband.answers.rows import seeded_order
from riskband.cli import main as riskband_command
from server.config import load_config
from server.problems import ConfigError
from server.report.table import show_outcome
from server.run.ledger import read_ledger
from server.studies import STUDIES
from strategies.asking.query import QuorumError
from tests.server.running import SMALL, printed, run_app
from tests.server.test_events import events_of, named
from tests.server.test_query_budgets import limits, raises_later
from tests.server.test_resume import Counting, assert_same_results, cut_ledger

# The model is hardly trained: about half of the digits are wrong.
FINISHED: dict[str, Any] = {
    "ask": "until-decided",
    "batch_size": 4,
    "num_clients": 40,
    "require": "mean<=0.95,mean@chi2:0.1<=0.99",
}
FINISHED_KEYS = {name.replace("_", "-") for name in FINISHED}
run = partial(run_app, **{**FINISHED, "num_unseen": 0})


def exit_status(report: Mapping[str, Any]) -> int:
    return show_outcome(report, closing="", as_json=True)


def test_the_report_says_how_many_were_asked_and_spared(finished: Path, report: dict[str, Any]) -> None:
    network = report["network"]
    answers = read_ledger(finished / "ledger.jsonl")[1]
    asked = len(answers)
    assert 4 < asked < 36
    assert asked % 4 == 0
    assert (network["num_clients"], network["num_asked"], network["num_unasked"]) == (40, asked, 40 - asked)
    assert sorted(network["client_ids"]) == sorted(answer.client_id for answer in answers)
    assert network["clients_without_answer"] == []
    assert report["gate"]["verdict"] == "PASS"
    assert exit_status(report) == 0
    text, page = printed(report), (finished / "report.html").read_text()
    said = f"it was decided by {asked} of 40 clients; {40 - asked} ({(40 - asked) / 40:.0%}) were spared"
    assert said in text
    assert said in page
    assert "in the order that seed 0 settled before any client answered" in text
    assert "the order in which clients are asked was settled before any of them answered" in text


def test_its_certificates_are_those_of_a_sequence_and_verify(finished: Path, report: dict[str, Any]) -> None:
    by_name = {answer.client_id: answer for answer in read_ledger(finished / "ledger.jsonl")[1]}
    sequence = rb.Sequence(FINISHED["require"].split(","), delta=0.05, order="committed", binary=True)
    for name in report["network"]["client_ids"]:
        sequence.add(values=by_name[name].risk, num_examples=by_name[name].num_examples)
    found = {
        name: rb.Certificate.load(finished / "certificates" / f"require_{name.replace(':', '_')}.json")
        for name in map(str, sequence.numbers)
    }
    assert {name: (c.lower, c.value) for name, c in found.items()} == {
        name: (c.lower, c.value) for name, c in sequence.certificates.items()
    }
    assert set(report["certificates"]) == {f"require_{name.replace(':', '_')}" for name in found}
    for name, entry in report["certificates"].items():
        assert entry["check"]["holds"]
        assert riskband_command(["verify", str(finished / "certificates" / f"{name}.json")]) == 0
    assert riskband_command(["verify", str(finished / "report.html")]) == 0
    assert report["figures"] == []


def test_it_fails_and_is_left_open_with_the_status_of_a_gate(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    failed = run(tmp_path / "failed", defaults, require="mean<=0.05")
    assert (failed["gate"]["verdict"], exit_status(failed)) == ("FAIL", 1)
    assert failed["network"]["num_unasked"] > 0
    mean = failed["network"]["mean_empirical_risk"]
    left_open = run(tmp_path / "open", defaults, require=f"mean<={mean:.3f}", max_clients=10)
    assert (left_open["gate"]["verdict"], exit_status(left_open)) == ("NOT DECIDED", 3)
    assert left_open["network"]["num_asked"] == 10
    assert "it was not decided by 10 of 40 clients; 30 (75%) were spared" in printed(left_open)


def test_the_query_budgets_of_the_others_stay_whole(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    budgets = limits(tmp_path, **{f"_{k}": 3 for k in range(40)})
    report = run(tmp_path / "out", defaults, node_configs=budgets, respect_query_budgets="true")
    asked = set(report["network"]["client_ids"])
    for k in range(40):
        left = QueryBudget(f"client-{k:05d}", 3, tmp_path / "budgets.sqlite").left()
        assert left == (2 if f"client-{k:05d}" in asked else 3)


def test_an_interrupted_run_asks_only_those_who_are_missing(
    finished: Path, report: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    cut_ledger(finished, tmp_path, num_answers=6, torn=b'{"client_id": "cli')
    counting = Counting()
    run_app(tmp_path, defaults, **FINISHED, resume="true", grid_seed=2, behaviours=counting.behaviours(40))
    assert sum(counting.questions().values()) == report["network"]["num_asked"] - 6
    assert_same_results(tmp_path, finished)
    with pytest.raises(ValueError, match="another run: batch-size was 4 and is now 5"):
        run_app(tmp_path, defaults, **{**FINISHED, "batch_size": 5}, resume="true")


def test_what_was_left_open_goes_on_with_more_clients(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    first = run(tmp_path, defaults, max_clients=4, require="mean<=0.6")
    assert first["gate"]["verdict"] == "NOT DECIDED"
    counting = Counting()
    behaviours = counting.behaviours(40)
    second = run(tmp_path, defaults, max_clients=24, require="mean<=0.6", resume="true", behaviours=behaviours)
    assert second["gate"]["verdict"] == "PASS"
    assert second["network"]["client_ids"][:4] == first["network"]["client_ids"]
    assert sum(counting.questions().values()) == second["network"]["num_asked"] - 4


def test_who_failed_in_the_last_batch_is_not_asked_again_because_of_what_the_report_said(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    settings = {"max_clients": 8, "require": "mean<=0.6", "quorum": 0.8}
    last = seeded_order([f"client-{k:05d}" for k in range(40)], seed=0)[7]
    first = run(tmp_path, defaults, behaviours={int(last.removeprefix("client-")): raises_later()}, **settings)
    assert first["network"]["clients_without_answer"] == [last]
    looked_at = named(events_of(tmp_path), "answers_looked_at")
    assert looked_at[-1]["client_id"] == last
    counting = Counting()
    second = run(tmp_path, defaults, resume="true", behaviours=counting.behaviours(40), **settings)
    assert counting.questions() == {}
    assert second["certificates"] == first["certificates"]


def test_who_fails_is_named_and_too_many_end_the_run(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    first = run(tmp_path / "first", defaults)["network"]["client_ids"][0]
    broken = {int(first.removeprefix("client-")): raises_later()}
    report = run(tmp_path / "one", defaults, behaviours=broken)
    assert [each["client_id"] for each in report["network"]["failures"]] == [first]
    assert report["network"]["clients_without_answer"] == [first]
    with pytest.raises(QuorumError, match="must answer validly"):
        run(tmp_path / "all", defaults, behaviours=dict.fromkeys(range(40), raises_later()))
    assert json.loads((tmp_path / "all" / "failed.json").read_text())["error"] == "QuorumError"


def test_of_two_models_as_few_clients_are_asked(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    save_checkpoint(build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0), tmp_path / "same.pt")
    files = {"old_model": str(tmp_path / "same.pt"), "training": "checkpoint", "checkpoint": str(tmp_path / "same.pt")}
    settings = {"strategy": "comparison", "require": "change<=0.2,harmed:0.1<=0.3", "num_unseen": 5}
    report = run(tmp_path / "out", defaults, **files, **settings, figure_format="svg")
    assert report["gate"]["verdict"] == "PASS"
    assert report["network"]["num_unasked"] > 0
    assert len(report["comparison"]["old"]) == report["network"]["num_answered"]
    for name in report["certificates"]:
        assert riskband_command(["verify", str(tmp_path / "out" / "certificates" / f"{name}.json")]) == 0
    assert (tmp_path / "out" / "comparison.svg").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"require": ""},
        {"require": "gini<=0.5"},
        {"require": "count:0.3@next:20<=4"},
        {"target": "affine-sigma:0.3"},
        {"local": "observed"},
        {"missing": "worst"},
        {"answered_by": "trainers"},
        {"contamination": 1},
        {"privacy": "laplace:1"},
        *({"strategy": name} for name, study in STUDIES.items() if not study.can_stop and name != "selection"),
    ],
    ids=str,
)
def test_what_no_sequence_takes_is_refused_with_all_that_does_not_fit(
    defaults: Mapping[str, Any], wrong: dict[str, Any]
) -> None:
    settings = {name.replace("_", "-"): value for name, value in {**FINISHED, **wrong}.items()}
    with pytest.raises(ConfigError) as caught:
        load_config({**defaults, **SMALL, **settings})
    (problem,) = caught.value.problems
    (key,) = settings.keys() - FINISHED_KEYS or {"require"}
    reason = "" if key == "strategy" else f"not with {key} as here; "
    assert problem.startswith(f"ask is not valid, got 'until-decided'; {reason}use \"all\", or")


def test_all_mistakes_are_named_at_once(defaults: Mapping[str, Any]) -> None:
    wrong = {"ask": "until-sure", "batch-size": 0, "max-clients": 1, "require": "mean=0.2"}
    with pytest.raises(ConfigError) as caught:
        load_config({**defaults, **SMALL, **wrong})
    assert {problem.split()[0] for problem in caught.value.problems} == wrong.keys()
    with pytest.raises(ConfigError, match="max-clients is not valid, got 13; of num-clients no more"):
        load_config({**defaults, **SMALL, "max-clients": 13})
