"""One honest question to a network in which everything that can go wrong does."""

from __future__ import annotations

import dataclasses
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import example, given
from hypothesis import strategies as st

from client import wire
from client.wire import LossAnswer, LossQuery
from simulations.engine import Delivery, InProcessGrid, node_unavailable
from strategies.query import Failure, FailureReason, Progress, QueryStrategy, QuorumError
from strategies.replies import AnswerCheck, settle

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(2, dtype=np.float32)}
QUERY = LossQuery(loss="zero_one", model="tiny", x_shape=(3,), num_classes=2)
NUM_CLIENTS = 10

app = ClientApp()


@app.query("loss")
def honest_client(message, context):
    query, arrays = wire.decode_query(message.content)
    partition = context.node_config["partition-id"]
    answer = LossAnswer(
        client_id=f"client-{partition:05d}",
        risk=(partition % 11) / 10,
        num_examples=10,
        loss=query.loss,
        code_hash=wire.code_hash(),
        model_hash=wire.model_hash(arrays),
    )
    return Message(wire.encode_answer(answer), reply_to=message)


def expected_answer(partition):
    return LossAnswer(
        client_id=f"client-{partition:05d}",
        risk=(partition % 11) / 10,
        num_examples=10,
        loss="zero_one",
        code_hash=wire.code_hash(),
        model_hash=wire.model_hash(ARRAYS),
    )


class Averaging(QueryStrategy):
    def query(self):
        return QUERY

    def conclude(self, outcome):
        return sum(answer.risk for answer in outcome.answers) / len(outcome.answers)


def strategy(**settings):
    defaults = {
        "num_clients": NUM_CLIENTS,
        "quorum": 0.5,
        "node_timeout": 0.05,
        "reply_timeout": 5.0,
        "poll_interval": 0.001,
    }
    return Averaging(**(defaults | settings))


def network(behaviours=None, **settings):
    defaults = {"num_clients": NUM_CLIENTS, "run_config": {}, "clients_per_pull": 3}
    return InProcessGrid(app, behaviours=behaviours, **(defaults | settings))


def ask(behaviours=None, **settings):
    return strategy(**settings).ask(network(behaviours), QUERY, ARRAYS)


def names(outcome):
    return [answer.client_id for answer in outcome.answers]


def everyone_but(*partitions):
    return [f"client-{k:05d}" for k in range(NUM_CLIENTS) if k not in partitions]


def reasons(outcome):
    return [(failure.client_id, failure.reason.value) for failure in outcome.failures]


# What a node may do.


def claiming(**claims):
    def behave(message, answer):
        honest = wire.decode_answer(answer(message).content)
        content = wire.encode_answer(dataclasses.replace(honest, **claims))
        return [Delivery(Message(content, reply_to=message))]

    return behave


def late(after_pulls):
    return lambda message, answer: [Delivery(answer(message), after_pulls)]


def silent(message, answer):
    return []


def raising(message, answer):
    raise KeyError("no such file\nsecond line\x1b[31m")


def error_reply(code):
    return lambda message, answer: [Delivery(Message(Error(code, "why"), reply_to=message))]


def twice(*behaviours):
    return lambda message, answer: [delivery for each in behaviours for delivery in each(message, answer)]


def replying(edit):
    def behave(message, answer):
        content = answer(message).content
        edit(content)
        return [Delivery(Message(content, reply_to=message))]

    return behave


def test_an_honest_network_is_heard_completely():
    outcome = ask()
    assert outcome.answers == tuple(expected_answer(k) for k in range(NUM_CLIENTS))
    assert outcome.failures == ()
    assert outcome.num_asked == NUM_CLIENTS


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"risk": math.nan}, "not-finite"),
        ({"risk": math.inf}, "not-finite"),
        ({"risk": -0.1}, "out-of-range"),
        ({"risk": 1.1}, "out-of-range"),
        ({"num_examples": 0}, "no-examples"),
        ({"num_examples": -10}, "no-examples"),
        # Client 3 measured 3 errors in 10; 0.3 of 7 or of 101 examples is no whole number of errors.
        ({"num_examples": 7}, "impossible-count"),
        ({"num_examples": 101}, "impossible-count"),
        ({"risk": 0.35}, "impossible-count"),
        ({"loss": "brier"}, "wrong-loss"),
        ({"model_hash": "0" * 64}, "wrong-model"),
        ({"code_hash": "0" * 64}, "wrong-code"),
        ({"code_hash": "0" * 64, "risk": math.nan}, "wrong-code"),
    ],
)
def test_a_claim_that_cannot_be_true_is_refused_and_named(claims, reason):
    outcome = ask({3: claiming(**claims)})
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [("client-00003", reason)]


def test_any_risk_in_range_is_possible_for_a_loss_that_is_not_binary():
    brier = dataclasses.replace(QUERY, loss="brier")
    outcome = strategy().ask(network({3: claiming(risk=0.35, num_examples=7)}), brier, ARRAYS)
    assert outcome.answers[3].risk == 0.35
    assert outcome.failures == ()


@given(num_examples=st.integers(1, 10**7), data=st.data())
def test_every_honest_zero_one_risk_passes_the_count_check(num_examples, data):
    num_errors = data.draw(st.integers(0, num_examples))
    answer = dataclasses.replace(expected_answer(0), risk=num_errors / num_examples, num_examples=num_examples)
    check = AnswerCheck(QUERY, answer.model_hash, answer.code_hash, expected_client_ids=None)
    assert check.failure(answer) is None


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.pop(wire.ANSWER_RECORD),
        lambda content: content.pop(wire.IDENTITY_RECORD),
        lambda content: content[wire.ANSWER_RECORD].pop(wire.RISK_KEY),
        lambda content: content[wire.ANSWER_RECORD].update({wire.RISK_KEY: 0}),
        lambda content: content[wire.ANSWER_RECORD].update({wire.RISK_KEY: [0.3]}),
        lambda content: content[wire.ANSWER_RECORD].update({wire.NUM_EXAMPLES_KEY: 10.0}),
        lambda content: content[wire.IDENTITY_RECORD].update({wire.CLIENT_ID_KEY: ""}),
        lambda content: content[wire.IDENTITY_RECORD].update({wire.CLIENT_ID_KEY: 3}),
        lambda content: content[wire.IDENTITY_RECORD].update({wire.CLIENT_ID_KEY: "evil\nname"}),
        lambda content: content[wire.IDENTITY_RECORD].update({wire.CLIENT_ID_KEY: "x" * 101}),
        lambda content: content[wire.IDENTITY_RECORD].update({wire.VERSION_KEY: 0}),
        lambda content: content.clear(),
        lambda content: content.update({wire.ANSWER_RECORD: ConfigRecord({wire.RISK_KEY: 0.3})}),
        lambda content: content.update({wire.IDENTITY_RECORD: MetricRecord({wire.VERSION_KEY: 1})}),
    ],
)
def test_a_reply_that_breaks_the_protocol_is_refused(edit):
    outcome = ask({3: replying(edit)})
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [(None, "malformed")]


def test_a_client_that_raises_is_a_failure_with_its_text_on_one_printable_line():
    (failure,) = ask({3: raising}).failures
    assert (failure.client_id, failure.reason) == (None, FailureReason.CLIENT_RAISED)
    assert "no such file" in failure.detail
    assert "KeyError" in failure.detail
    assert failure.detail.isprintable()


def test_a_long_error_text_keeps_its_end():
    def shouting(message, answer):
        raise RuntimeError("traceback " * 10_000 + "the reason")

    (failure,) = ask({3: shouting}).failures
    assert len(failure.detail) <= 300
    assert failure.detail.startswith("Flower's error 2")
    assert failure.detail.endswith("the reason'>")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (node_unavailable, "node-unavailable"),
        (error_reply(8), "client-crashed"),
        (error_reply(1), "flower-error"),
        (error_reply(0), "flower-error"),
    ],
)
def test_flowers_errors_keep_their_meaning(behaviour, reason):
    outcome = ask({3: behaviour})
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [(None, reason)]


def test_a_late_answer_before_the_deadline_counts():
    assert names(ask({3: late(20), 7: late(50)})) == everyone_but()


def test_a_client_that_never_answers_is_given_up_at_the_deadline():
    outcome = ask({3: silent}, reply_timeout=0.1)
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [(None, "no-reply")]


def test_an_answer_after_the_deadline_does_not_leak_into_the_next_round():
    asking, grid = strategy(reply_timeout=0.05), network({3: late(10**6)})
    first = asking.ask(grid, QUERY, ARRAYS)
    second = asking.ask(grid, dataclasses.replace(QUERY, loss="brier"), ARRAYS, round=2)
    assert names(first) == names(second) == everyone_but(3)
    assert {answer.loss for answer in second.answers} == {"brier"}


def test_repeating_the_same_answer_changes_nothing():
    received = []
    outcome = ask({3: twice(claiming(), claiming())}, on_answer=lambda query, answer: received.append(answer))
    assert names(outcome) == everyone_but()
    assert sorted(answer.client_id for answer in received) == everyone_but()


@pytest.mark.parametrize("second", [claiming(risk=0.9), claiming(risk=math.nan), error_reply(8)])
def test_two_different_answers_to_one_message_are_both_refused(second):
    outcome = ask({3: twice(claiming(), second)})
    assert names(outcome) == everyone_but(3)
    assert [failure.reason for failure in outcome.failures] == [FailureReason.CHANGED_ANSWER]


def test_a_stolen_client_id_refuses_thief_and_victim_by_name():
    outcome = ask({3: claiming(client_id="client-00005")})
    assert names(outcome) == everyone_but(3, 5)
    assert reasons(outcome) == [("client-00005", "claimed-twice")] * 2


def test_the_same_answer_under_one_name_from_two_nodes_is_still_a_stolen_name():
    outcome = ask({3: claiming(client_id="client-00005", risk=0.5)})
    assert names(outcome) == everyone_but(3, 5)


def test_a_name_is_in_doubt_even_if_the_thiefs_answer_is_refused_for_something_else():
    outcome = ask({3: claiming(client_id="client-00005", risk=math.nan)})
    assert names(outcome) == everyone_but(3, 5)
    assert reasons(outcome) == [("client-00005", "claimed-twice"), ("client-00005", "not-finite")]


def test_a_name_given_in_one_of_two_different_answers_is_in_doubt_too():
    outcome = ask({3: twice(claiming(), claiming(client_id="client-00005"))})
    assert names(outcome) == everyone_but(3, 5)
    assert reasons(outcome) == [(None, "changed-answer"), ("client-00005", "claimed-twice")]


def test_an_unknown_client_is_refused_when_the_names_are_known():
    expected = frozenset(everyone_but())
    outcome = ask({3: claiming(client_id="client-99999")}, expected_client_ids=expected)
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [("client-99999", "unknown-client")]


def test_any_name_is_welcome_when_the_names_are_not_known():
    assert "client-99999" in names(ask({3: claiming(client_id="client-99999")}))


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
        ask(dict.fromkeys(range(5), raising), quorum=1.0, on_answer=lambda query, answer: received.append(answer))
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
        strategy(on_answer=lambda query, answer: received.append(answer)).ask(grid, QUERY, ARRAYS)
    # Two pulls of three clients each came through.
    assert len({answer.client_id for answer in received}) == len(received) == 6


def test_progress_only_grows_and_ends_with_the_whole_round():
    steps = []
    ask({3: raising, 4: silent}, reply_timeout=0.1, on_progress=steps.append)
    assert steps[0] == Progress(asked=10, answered=0, failed=0)
    assert steps[-1] == Progress(asked=10, answered=8, failed=1)
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
    record = wire.to_array_record(ARRAYS)
    result = strategy().start(network(), record)
    assert result.conclusion == pytest.approx(0.45)
    assert names(result.outcome) == everyone_but()
    assert result.arrays == record


@pytest.mark.parametrize("argument", [{"num_rounds": 2}, {"timeout": 5.0}, {"train_config": ConfigRecord()}])
def test_start_refuses_what_a_single_question_cannot_honour(argument):
    with pytest.raises(ValueError, match="asks once"):
        strategy().start(network(), wire.to_array_record(ARRAYS), **argument)


def test_the_training_hooks_do_nothing():
    asking, grid, record = strategy(), network(), wire.to_array_record(ARRAYS)
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
    with pytest.raises(ValueError, match="identity"):
        wire.decode_answer(RecordDict())
