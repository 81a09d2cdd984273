"""One honest question to a network in which everything that can go wrong does: when a round ends, and with what."""

from __future__ import annotations

import dataclasses
import math
import random
from fractions import Fraction

import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import example, given
from hypothesis import strategies as st

from protocol import wire
from protocol.codec import to_array_record
from protocol.questions import LossAnswer
from riskband.flower.testing import InProcessGrid, node_unavailable
from strategies.asking import exchange
from strategies.asking.query import Failure, FailureReason, Progress, QuorumError
from strategies.asking.replies import settle
from tests.strategies.network import (
    ARRAYS,
    NUM_CLIENTS,
    QUERY,
    app,
    ask,
    claiming,
    everyone_but,
    expected_answer,
    late,
    names,
    network,
    raising,
    reasons,
    replying,
    silent,
    strategy,
    twice,
)


def test_nodes_that_register_late_are_waited_for():
    grid = network(nodes_ready_after={k: 2 * k for k in range(NUM_CLIENTS)})
    outcome = strategy(node_timeout=5.0).ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but()


def test_missing_nodes_are_counted_and_the_run_goes_on_above_the_quorum():
    grid = network(nodes_ready_after={3: 10**6, 8: 10**6})
    outcome = strategy().ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3, 8)
    assert reasons(outcome) == [(None, "node-missing")] * 2
    assert outcome.num_asked == 8


def test_nobody_is_asked_when_too_few_nodes_registered():
    asked = []

    def noting(message, answer):
        asked.append(message)
        return []

    grid = network(dict.fromkeys(range(4), noting), nodes_ready_after=dict.fromkeys(range(4, 10), 10**6))
    with pytest.raises(QuorumError, match=r"5 of 10 clients .* got 0 valid answers from 0 asked.*6 x node-missing"):
        strategy().ask(grid, QUERY, ARRAYS)
    assert asked == []


def test_messages_that_the_superlink_refuses_are_failures():
    class Refusing(InProcessGrid):
        """HttpGrid logs and returns no ids when a push is too large."""

        def push_messages(self, messages):
            assert isinstance(messages, list)  # HttpGrid pushes nothing when given a generator
            return []

    grid = Refusing(app, num_clients=NUM_CLIENTS, run_config={})
    with pytest.raises(QuorumError, match="10 x not-sent"):
        strategy().ask(grid, QUERY, ARRAYS)


def test_messages_to_nodes_that_left_before_the_push_are_failures():
    class Leaving(InProcessGrid):
        def get_node_ids(self):
            return [*super().get_node_ids(), 12345, 54321]

    grid = Leaving(app, num_clients=NUM_CLIENTS - 2, run_config={})
    outcome = strategy().ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(8, 9)
    assert reasons(outcome) == [(None, "not-sent")] * 2
    assert outcome.num_asked == 10


def test_the_quorum_is_met_by_exactly_enough_answers_and_missed_by_one_fewer():
    failing = dict.fromkeys(range(3), raising)
    assert len(ask(failing, quorum=0.7).answers) == 7
    with pytest.raises(QuorumError) as caught:
        ask(failing, quorum=0.71)
    text = str(caught.value)
    assert "8 of 10 clients" in text
    assert "got 7 valid answers from 10 asked" in text
    assert "3 x client-raised" in text
    assert "no such file" in text
    assert [answer.client_id for answer in caught.value.outcome.answers] == everyone_but(0, 1, 2)


@given(percent=st.integers(1, 100), num_clients=st.integers(1, 2000))
@example(percent=7, num_clients=100)  # 0.07 * 100 is 7.000000000000001 in floating point
def test_the_number_needed_is_the_exact_ceiling(percent, num_clients):
    exact = max(1, math.ceil(Fraction(percent, 100) * num_clients))
    assert strategy(num_clients=num_clients, quorum=percent / 100).num_needed == exact


def test_at_least_one_answer_is_needed_however_small_the_quorum():
    assert strategy(quorum=1e-12).num_needed == 1


def test_below_the_quorum_every_valid_answer_was_handed_over():
    received = []
    with pytest.raises(QuorumError):
        ask(
            dict.fromkeys(range(5), raising),
            quorum=1.0,
            on_answer=lambda query, answer, node_id: received.append(answer),
        )
    assert sorted(received, key=lambda a: a.client_id) == [expected_answer(k) for k in range(5, 10)]


def test_answers_are_handed_over_before_the_network_breaks():
    class Breaking(InProcessGrid):
        num_pulls = 0

        def pull_messages(self, message_ids):
            self.num_pulls += 1
            if self.num_pulls > 2:
                raise ConnectionError("the SuperLink is gone")
            return super().pull_messages(message_ids)

    received = []
    grid = Breaking(app, num_clients=NUM_CLIENTS, run_config={}, clients_per_pull=3)
    with pytest.raises(ConnectionError):
        strategy(on_answer=lambda query, answer, node_id: received.append(answer)).ask(grid, QUERY, ARRAYS)
    # Two pulls of three clients each came through.
    assert len({answer.client_id for answer in received}) == len(received) == 6


@pytest.mark.usefixtures("idle_clock")
def test_progress_only_grows_and_ends_with_the_whole_round():
    steps = []
    ask({3: raising, 4: silent}, reply_timeout=1.0, on_progress=steps.append)
    assert steps[0] == Progress(asked=10, answered=0, round="1")
    assert (steps[-1].asked, steps[-1].answered, steps[-1].failed) == (10, 8, 2)
    assert [failure.reason for failure in steps[-1].failures] == ["client-raised", "no-reply"]
    settled = [step.answered + step.failed for step in steps]
    assert settled == sorted(settled)
    assert len(steps) > 3  # replies come in pieces, and each piece is shown


HOSTILE = {
    0: raising,
    1: node_unavailable,
    2: claiming(risk=math.nan),
    3: claiming(client_id="client-00007"),
    4: twice(claiming(), claiming(risk=0.9)),
    5: late(9),
    6: replying(lambda content: content.clear()),
}


@pytest.mark.parametrize("clients_per_pull", [1, 4, 10])
def test_the_outcome_does_not_depend_on_node_ids_or_the_order_of_replies(clients_per_pull):
    outcomes = []
    for seed in range(5):
        grid = network(HOSTILE, seed=seed, clients_per_pull=clients_per_pull)
        outcomes.append(strategy(quorum=0.1).ask(grid, QUERY, ARRAYS))
    assert set(outcomes) == {outcomes[0]}
    assert names(outcomes[0]) == ["client-00005", "client-00008", "client-00009"]
    assert len(outcomes[0].failures) == 7


@given(st.randoms(use_true_random=False))
def test_settling_a_round_ignores_every_order(rng: random.Random):
    a, b = expected_answer(1), expected_answer(2)
    unreadable = Failure(None, FailureReason.MALFORMED, "text")
    thief = dataclasses.replace(b, risk=0.0)
    changed = dataclasses.replace(expected_answer(4), risk=0.0)
    groups = [[a, a], [b], [thief], [unreadable], [expected_answer(4), changed], [expected_answer(5)]]
    expected = settle(groups, num_asked=6)
    shuffled = [rng.sample(group, len(group)) for group in groups]
    rng.shuffle(shuffled)
    assert settle(shuffled, num_asked=6) == expected
    assert expected.answers == (a, expected_answer(5))
    assert len(expected.failures) == 4


def test_nothing_random_enters_the_failures():
    grid = network(HOSTILE)
    node_ids = [str(node_id) for node_id in grid.get_node_ids()]
    text = repr(strategy(quorum=0.1).ask(grid, QUERY, ARRAYS))
    assert not any(node_id in text for node_id in node_ids)


def test_start_asks_once_and_returns_the_conclusion():
    record = to_array_record(ARRAYS)
    result = strategy().start(network(), record)
    assert result.conclusion == pytest.approx(0.45)
    assert names(result.outcome) == everyone_but()
    assert result.arrays == record


@pytest.mark.parametrize("argument", [{"num_rounds": 2}, {"timeout": 5.0}, {"train_config": ConfigRecord()}])
def test_start_refuses_what_a_single_question_cannot_honour(argument):
    with pytest.raises(ValueError, match="asks once"):
        strategy().start(network(), to_array_record(ARRAYS), **argument)


def test_the_training_hooks_do_nothing():
    asking, grid, record = strategy(), network(), to_array_record(ARRAYS)
    assert list(asking.configure_train(1, record, ConfigRecord(), grid)) == []
    assert asking.aggregate_train(1, []) == (None, None)
    assert list(asking.configure_evaluate(1, record, ConfigRecord(), grid)) == []
    assert asking.aggregate_evaluate(1, []) is None


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ({"num_clients": 0}, "num_clients must be at least 1"),
        ({"quorum": 0.0}, "quorum must be in"),
        ({"quorum": 90}, "a fraction of num_clients, not a count"),
        ({"quorum": math.nan}, "quorum must be in"),
        ({"node_timeout": -1.0}, "node_timeout must be a finite number"),
        ({"reply_timeout": math.inf}, "reply_timeout must be a finite number"),
        ({"poll_interval": 0.0}, "poll_interval must be > 0"),
    ],
)
def test_settings_out_of_range_are_refused(setting, rule):
    with pytest.raises(ValueError, match=rule):
        strategy(**setting)


def test_an_empty_record_dict_is_no_answer():
    with pytest.raises(ValueError, match="answer"):
        wire.decode_answer(RecordDict(), LossAnswer)


class Counting(InProcessGrid):
    """Notes the size of every push, and how many messages are under way after it."""

    def __init__(self, behaviours=None, **settings):
        super().__init__(app, num_clients=NUM_CLIENTS, run_config={}, behaviours=behaviours, **settings)
        self.num_open, self.pushes = 0, []

    def push_messages(self, messages):
        messages = list(messages)
        self.num_open += len(messages)
        self.pushes.append((len(messages), self.num_open))
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        self.num_open -= len(replies)
        return replies


def test_messages_sent_in_portions_bring_the_same_answers():
    grid, progress = Counting(clients_per_pull=1), []
    whole = strategy().ask(network(), QUERY, ARRAYS)
    outcome = strategy(max_open=4, on_progress=progress.append).ask(grid, QUERY, ARRAYS)
    assert (outcome.answers, outcome.failures) == (whole.answers, whole.failures)
    # Four at first; the next once half of these are answered, so that four are under way again.
    assert [under_way for _, under_way in grid.pushes] == [4] * len(grid.pushes)
    assert [num_sent for num_sent, _ in grid.pushes] == [4, 2, 2, 2]
    assert {each.asked for each in progress} == {NUM_CLIENTS}  # as many as will be, not as are under way


def test_a_portion_that_leaves_the_nodes_idle_is_doubled():
    grid = Counting(clients_per_pull=NUM_CLIENTS)
    assert names(strategy(max_open=1).ask(grid, QUERY, ARRAYS)) == everyone_but()
    assert [num_sent for num_sent, _ in grid.pushes] == [1, 2, 4, 3]


def test_clients_that_hang_do_not_keep_the_others_waiting(monkeypatch):
    monkeypatch.setattr(exchange, "_PATIENCE", 0.05)
    grid = Counting(dict.fromkeys(range(NUM_CLIENTS // 2), silent))
    outcome = strategy(max_open=4, reply_timeout=1.0).ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(*range(NUM_CLIENTS // 2))
    assert {reason for _, reason in reasons(outcome)} == {"no-reply"}


def test_a_client_whose_turn_did_not_come_was_not_asked():
    grid = Counting(dict.fromkeys(range(NUM_CLIENTS), silent))
    with pytest.raises(QuorumError) as caught:
        strategy(max_open=4, reply_timeout=0.1).ask(grid, QUERY, ARRAYS)
    assert [reason for _, reason in reasons(caught.value.outcome)] == ["no-reply"] * 4 + ["not-sent"] * 6
    with pytest.raises(ValueError, match="max_open must be at least 1 or None, got 0"):
        strategy(max_open=0)
