"""The protocol "bisection" over `InProcessGrid`: what a run says of clients that stop making sense half-way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from protocol import wire
from protocol.questions import AdversarialAnswer
from riskband.cli import main as riskband_command
from riskband.flower.testing import Behaviour, Delivery
from tests.server.running import raises
from tests.server.test_wasserstein_app import printed, run

BISECTION: Mapping[str, Any] = {"protocol": "bisection", "num_unseen": 0, "bisection_tolerance": 0.002}
FEW_ROUNDS: Mapping[str, Any] = {"bisection_tolerance": 0.02, "cost_budgets": "0.1"}


def later(change: Callable[[AdversarialAnswer], AdversarialAnswer]) -> Behaviour:
    """A node that answers the first question honestly and changes what it says to every other one."""
    num_asked = 0

    def behave(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
        nonlocal num_asked
        num_asked += 1
        honest = answer(message)
        if num_asked == 1:
            return [Delivery(honest)]
        changed = change(wire.decode_answer(honest.content, AdversarialAnswer))
        return [Delivery(Message(wire.encode_answer(changed), reply_to=message))]

    return behave


def raises_after_the_first() -> Behaviour:
    num_asked = 0

    def behave(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
        nonlocal num_asked
        num_asked += 1
        return [Delivery(answer(message))] if num_asked == 1 else raises(message, answer)

    return behave


def with_values(*values: float) -> Callable[[AdversarialAnswer], AdversarialAnswer]:
    return lambda answer: dataclasses.replace(answer, values_lower=values, values_upper=values)


def one_more_wrong(answer: AdversarialAnswer) -> AdversarialAnswer:
    value = answer.clean_risk + 1.0 / answer.num_examples
    return dataclasses.replace(with_values(1.0)(answer), clean_risk=value)


@pytest.mark.guard
@pytest.mark.parametrize("rounds", [FEW_ROUNDS, pytest.param({}, marks=pytest.mark.slow)], ids=["few", "all"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            lambda answer: dataclasses.replace(answer, guarantee="upper"), "wrong-guarantee", marks=pytest.mark.slow
        ),
        pytest.param(
            lambda answer: dataclasses.replace(answer, num_examples=2 * answer.num_examples),
            "changed-answer",
            marks=pytest.mark.slow,
        ),
        (one_more_wrong, "changed-answer"),
        pytest.param(lambda answer: with_values(answer.clean_risk)(answer), "not-concave", marks=pytest.mark.slow),
        (None, "client-raised"),
    ],
)
def test_who_stops_making_sense_is_named_and_asked_no_more(
    tmp_path: Path, defaults: Mapping[str, Any], change: Any, reason: str, rounds: Mapping[str, Any]
) -> None:
    behaviour = raises_after_the_first() if change is None else later(change)
    report = run(tmp_path, defaults, behaviours={5: behaviour}, **{**BISECTION, **rounds})
    (failure,) = report["transport"]["later_failures"]
    assert (failure["client_id"], failure["reason"]) == ("client-00005", reason)
    assert f"fell silent after the first round: 1 (1 {reason})" in printed(report)
    assert report["network"]["num_answered"] == 12  # its first answer counts
    ends = report["transport"]["empirical_worst_mean"]
    assert np.all(np.array(ends["lower"]) <= np.array(ends["upper"]) + 1e-12)


@pytest.mark.slow
def test_the_published_bound_is_that_of_one_round(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    settings = {"num_radii": 400, "cost_bound": 0.001, "num_clients": 60, "examples_per_client": 400, "delta": 0.5}
    settings |= {"cost_budgets": "0,0.002"}
    values = {}
    for protocol in ("one-round", "bisection"):
        report = run(tmp_path / protocol, defaults, **{**BISECTION, **settings, "protocol": protocol})
        entry = report["certificates"]["wasserstein_published"]
        assert entry["validity"] == "certificate"
        values[protocol] = np.array(entry["value"])
        path = tmp_path / protocol / "certificates" / "wasserstein_published.json"
        assert riskband_command(["verify", str(path)]) == 0
    assert values["one-round"][1] < 1.0
    np.testing.assert_allclose(values["bisection"], values["one-round"], atol=0.002 + 1e-3)


@pytest.mark.slow
def test_where_clients_know_only_upper_bounds_the_bracket_is_about_those(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    settings = {**BISECTION, "loss": "brier", "cost_budgets": "0.02,0.1"}
    rounds = run(tmp_path / "rounds", defaults, **settings)
    once = run(tmp_path / "once", defaults, **{**settings, "protocol": "one-round", "num_radii": 300})
    assert rounds["transport"]["empirical_worst_mean"]["about"] == "upper-bounds"
    assert "the upper bounds that the clients answered" in printed(rounds)
    assert rounds["transport"]["later_failures"] == []  # all answers of a client belong to one curve
    one, other = (each["transport"]["empirical_worst_mean"] for each in (once, rounds))
    # One round also knows bounds at multipliers, which may be below those at radii.
    assert np.all(np.array(other["upper"]) >= np.array(one["lower"]))
    assert np.all(np.array(other["lower"]) <= np.array(one["upper"]) + 0.05)


@pytest.mark.slow
def test_an_unfinished_bisection_goes_on(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    whole = run(tmp_path / "whole", defaults, **BISECTION)
    ledger = (tmp_path / "whole" / "ledger.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "ledger.jsonl").write_text("".join(ledger[:40]))
    again = run(tmp_path / "cut", defaults, resume="true", **BISECTION)
    assert json.dumps(again["transport"]) == json.dumps(whole["transport"])
