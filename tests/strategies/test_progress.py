"""What an exchange tells whoever watches it: counts, names, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from flwr.app import Message

from riskband.flower.testing import InProcessGrid
from strategies.asking import exchange
from strategies.asking.exchange import Progress
from tests.strategies.network import ARRAYS, NUM_CLIENTS, QUERY, app, network, raising, silent, strategy


class Slow(InProcessGrid):
    """Every pull takes its time."""

    seconds_per_pull = 0.05

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        time.sleep(self.seconds_per_pull)
        return super().pull_messages(message_ids)


def watched(grid: InProcessGrid, **settings: object) -> list[Progress]:
    steps: list[Progress] = []
    strategy(on_progress=steps.append, **settings).ask(grid, QUERY, ARRAYS)
    return steps


def test_the_rest_of_a_steady_round_is_foreseen() -> None:
    num_clients = 40
    grid = Slow(app, num_clients=num_clients, run_config={}, clients_per_pull=1)
    steps = watched(grid, num_clients=num_clients)
    assert all(step.eta_seconds is None for step in steps if step.answered < 5)
    known = [step for step in steps if 10 <= step.answered < num_clients]
    assert len(known) == 30
    for step in known:  # at least the pauses are left; how much more depends on the machine
        assert 0.9 * (num_clients - step.answered) * Slow.seconds_per_pull <= step.eta_seconds < 3600.0
    assert steps[-1].eta_seconds == 0.0


@pytest.mark.usefixtures("idle_clock")
def test_no_round_is_foreseen_to_last_beyond_its_deadline() -> None:
    steps = watched(network({9: silent}, clients_per_pull=1), reply_timeout=1.0)
    assert steps[-2].answered == 9
    foreseen = [step.eta_seconds for step in steps if step.eta_seconds is not None]
    assert foreseen
    assert max(foreseen) <= 1.0


@pytest.mark.usefixtures("idle_clock")
def test_a_pause_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_REPORT_INTERVAL", 0.1)
    steps = watched(network({9: silent}), reply_timeout=1.0)
    waiting = [step.eta_seconds for step in steps if step.answered == 9 and not step.failures]
    assert len(waiting) > 4
    assert waiting[3] > waiting[1]  # the rest, at the pace so far, takes longer the longer nothing comes


def test_a_message_that_was_not_sent_has_failed_from_the_start() -> None:
    class Refusing(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            return ["", *super().push_messages(list(messages)[1:])]

    steps = watched(Refusing(app, num_clients=NUM_CLIENTS, run_config={}))
    assert (steps[0].asked, steps[0].answered, steps[0].failed) == (10, 0, 1)
    assert (steps[-1].asked, steps[-1].answered, steps[-1].failed) == (10, 9, 1)


def test_who_was_asked_by_name_fails_under_that_name() -> None:
    steps: list[Progress] = []
    asking = strategy(on_progress=steps.append)
    grid = network()
    asking.ask(grid, QUERY, ARRAYS)
    grid._behaviours = {2: raising}
    steps.clear()
    asking.ask_each(grid, {"client-00002": QUERY, "client-00005": QUERY}, ARRAYS, round=7)
    assert [(failure.client_id, failure.reason) for failure in steps[-1].failures] == [
        ("client-00002", "client-raised")
    ]
    assert {step.round for step in steps} == {"7"}
