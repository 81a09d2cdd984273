"""One client's numbers must not end a run: what the library would refuse, the server refuses first, and names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from protocol import wire
from protocol.questions import AdversarialAnswer, LossAnswer
from riskband.flower.testing import Behaviour, Delivery
from tests.server.running import run_app


def answering(kind: type, **claims: Any) -> Behaviour:
    def behave(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
        honest: Any = wire.decode_answer(answer(message).content, kind)
        return [Delivery(Message(wire.encode_answer(dataclasses.replace(honest, **claims)), reply_to=message))]

    return behave


@pytest.mark.guard
@pytest.mark.parametrize(
    ("settings", "behaviour"),
    [
        ({}, answering(LossAnswer, num_examples=10**15)),
        ({"strategy": "dispersion"}, answering(LossAnswer, num_examples=10**15)),
        ({"strategy": "wasserstein"}, answering(AdversarialAnswer, num_examples=10**13)),
        ({"strategy": "wasserstein"}, answering(AdversarialAnswer, adversarial_unit=1e308)),
    ],
)
def test_a_number_beyond_all_sense_is_refused_and_the_run_goes_on(
    tmp_path: Path, defaults: Mapping[str, Any], settings: Mapping[str, Any], behaviour: Behaviour
) -> None:
    report = run_app(tmp_path, defaults, behaviours={3: behaviour}, num_unseen=0, **settings)
    (failure,) = report["network"]["failures"]
    assert (failure["client_id"], failure["reason"]) == ("client-00003", "out-of-range")
    assert report["network"]["num_answered"] == 11


def test_a_poisoned_ledger_is_not_believed(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    run_app(tmp_path, defaults, num_unseen=0)
    path = tmp_path / "ledger.jsonl"
    header, first, *rest = path.read_text().splitlines()
    poisoned = json.loads(first) | {"num_examples": 10**15}
    path.write_text("\n".join([header, json.dumps(poisoned), *rest[:5]]) + "\n")
    (tmp_path / "report.json").unlink()
    report = run_app(tmp_path, defaults, num_unseen=0, resume="true")
    assert report["network"]["num_answered"] == 12
