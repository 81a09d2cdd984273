"""Runs within the clients' query budgets: what is asked, who is left out, and what the report says of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import riskband as rb
from riskband.flower.testing import Delivery
from server.run.ledger import read_ledger
from strategies.asking.query import QuorumError
from tests.server.running import printed, raises, run_app
from tests.server.test_resume import Counting, assert_same_results

SETTINGS = {"strategy": "wasserstein", "cost_budgets": "0,0.1,0.4", "num_unseen": 0, "quorum": 0.8}
run = partial(run_app, **SETTINGS, respect_query_budgets="true")


def limits(folder: Path, **budgets: int) -> dict[int, dict[str, Any]]:
    """Query budgets by partition: limits(folder, _3=60) gives client 3 a budget of 60 values."""
    file = str(folder / "budgets.sqlite")
    return {int(key[1:]): {"query-budget": limit, "query-budget-file": file} for key, limit in budgets.items()}


def test_the_question_fits_the_smallest_budget_and_who_has_too_little_is_left_out(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    report = run(tmp_path / "out", defaults, node_configs=limits(tmp_path, _3=72, _5=500, _7=17))
    budget = report["transport"]["query_budget"]
    assert budget == {
        "num_radii": 55,
        "num_multipliers": 15,
        "clients_left_out": ["client-00007"],
        "smallest_left": 0,
    }
    assert [(f["client_id"], f["reason"]) for f in report["network"]["failures"]] == [("client-00007", "budget-spent")]
    assert report["network"]["clients_without_answer"] == ["client-00007"]
    answers = {answer.client_id: answer for answer in read_ledger(tmp_path / "out" / "ledger.jsonl")[1]}
    assert len(answers["client-00000"].values_upper) == 55
    assert [answers[f"client-{k:05d}"].budget_left for k in (0, 3, 5)] == [None, 0, 428]
    assert rb.verify(rb.Certificate.load(tmp_path / "out" / "certificates" / "wasserstein_mean.json")).ok
    text = printed(report)
    assert "asked for 55 radii and 15 multipliers; 1 clients left out; the smallest budget left is 0." in text


def test_without_limits_the_whole_question_is_asked(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run(tmp_path, defaults)
    budget = report["transport"]["query_budget"]
    assert (budget["num_radii"], budget["num_multipliers"]) == (100, 24)
    assert (budget["clients_left_out"], budget["smallest_left"]) == ([], None)
    assert "Query budgets" not in printed(report)


def test_unless_told_to_the_run_says_no_hello_and_clients_refuse(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    counting = Counting()
    configs = limits(tmp_path, _3=72)
    report = run(
        tmp_path / "out",
        defaults,
        behaviours=counting.behaviours(),
        node_configs=configs,
        respect_query_budgets="false",
    )
    assert {kind for _, kind in counting.asked} == {"query.adversarial_loss"}
    assert [f["reason"] for f in report["network"]["failures"]] == ["client-raised"]


def test_the_quorum_decides_before_anybody_spends(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    counting = Counting()
    configs = limits(tmp_path, _1=3, _2=4, _3=200)
    with pytest.raises(QuorumError, match="2 x budget-spent"):
        run(tmp_path / "out", defaults, behaviours=counting.behaviours(), node_configs=configs, quorum=1.0)
    assert counting.questions() == {}


def test_a_resumed_run_asks_the_same_question_although_less_is_left(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    run(tmp_path / "whole", defaults, quorum=0.9, node_configs=limits(tmp_path, _3=72, _7=17))
    (tmp_path / "b").mkdir()
    configs, folder = limits(tmp_path / "b", _3=72, _7=17), tmp_path / "cut"
    with pytest.raises(QuorumError):
        run(folder, defaults, quorum=0.9, node_configs=configs, behaviours={0: raises_later(), 1: raises_later()})
    counting = Counting()
    run(folder, defaults, quorum=0.9, node_configs=configs, behaviours=counting.behaviours(), resume="true")
    assert counting.questions() == {0: 1, 1: 1}
    assert_same_results(folder, tmp_path / "whole")


def raises_later() -> Any:
    """A node that greets and then fails."""

    def behave(message: Any, answer: Any) -> list[Any]:
        return (
            [Delivery(answer(message))] if message.metadata.message_type == "query.hello" else raises(message, answer)
        )

    return behave


@pytest.mark.parametrize(
    ("respect", "num_multipliers", "num_questions"),
    # The first message takes 1 + 2 + 24 + 1 values, every later one 3. Unplanned, two of them fit into what client 4
    # has; a plan asks all for fewer multipliers, so that more fit.
    [pytest.param("false", 24, 3, marks=pytest.mark.slow), ("true", 9, 8)],
)
def test_a_bisection_stops_asking_a_client_whose_budget_is_spent(
    tmp_path: Path, defaults: Mapping[str, Any], respect: str, num_multipliers: int, num_questions: int
) -> None:
    counting = Counting()
    report = run(
        tmp_path / "out",
        defaults,
        behaviours=counting.behaviours(),
        node_configs=limits(tmp_path, _4=28 + 2 * 3 + 1),
        protocol="bisection",
        bisection_tolerance=0.001,
        respect_query_budgets=respect,
    )
    assert counting.questions()[4] == num_questions
    assert max(counting.questions().values()) > num_questions
    assert report["transport"]["query_budget"]["num_multipliers"] == num_multipliers
    (failure,) = report["transport"]["later_failures"]
    assert (failure["client_id"], failure["reason"]) == ("client-00004", "budget-spent")
    assert report["transport"]["query_budget"]["smallest_left"] == 1
    ends = report["transport"]["empirical_worst_mean"]
    assert all(lower <= upper + 1e-12 for lower, upper in zip(ends["lower"], ends["upper"], strict=True))  # two sums


def test_the_other_strategy_leaves_out_who_has_nothing_left(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run_app(
        tmp_path / "out",
        defaults,
        node_configs=limits(tmp_path, _2=0, _3=1),
        respect_query_budgets="true",
        num_unseen=0,
    )
    assert [(f["client_id"], f["reason"]) for f in report["network"]["failures"]] == [("client-00002", "budget-spent")]


def recorded(folder: Path, **budgets: int) -> dict[int, dict[str, Any]]:
    """As `limits`, with an answer record for each of these clients."""
    file = str(folder / "answers.sqlite")
    return {k: {**own, "answer-record-file": file} for k, own in limits(folder, **budgets).items()}


@pytest.mark.parametrize(
    ("settings", "num_values"),
    [
        pytest.param({"strategy": "f_divergence"}, 1, marks=pytest.mark.slow),
        ({"strategy": "wasserstein", "num_radii": 12, "num_multipliers": 8}, 1 + 12 + 8 + 1),
    ],
)
def test_what_is_on_record_is_asked_again_although_the_budget_is_spent(
    tmp_path: Path, defaults: Mapping[str, Any], settings: dict[str, Any], num_values: int
) -> None:
    settings = {**settings, "node_configs": recorded(tmp_path, _2=num_values), "quorum": 1.0}
    first, second = (run(tmp_path / name, defaults, **settings) for name in "ab")
    assert first["network"]["num_answered"] == second["network"]["num_answered"] == 12
    assert_same_results(tmp_path / "a", tmp_path / "b")
    with pytest.raises(QuorumError, match="1 x budget-spent"):  # another model is another question
        run(tmp_path / "c", defaults, **settings, seed=5)


def test_a_question_that_was_fitted_anew_is_not_on_record(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    """Client 2 has answered the whole question; client 3 can answer a part only, and so that is asked of all."""
    sizes = {"num_radii": 12, "num_multipliers": 8}
    spent = recorded(tmp_path, _2=22)
    run(tmp_path / "a", defaults, **sizes, node_configs=spent)
    report = run(tmp_path / "b", defaults, **sizes, node_configs=spent | recorded(tmp_path, _3=20))
    assert [(f["client_id"], f["reason"]) for f in report["network"]["failures"]] == [("client-00002", "budget-spent")]
    budget = report["transport"]["query_budget"]
    assert budget["num_radii"] + budget["num_multipliers"] == 18
