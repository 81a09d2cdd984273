"""The adversarial question, to all clients and to each its own, in a network that lies about curves."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from protocol.codec import to_array_record
from protocol.hashes import code_hash, model_hash
from protocol.questions import AdversarialAnswer, AdversarialQuery, LossAnswer, LossQuery
from riskband.answers.concave_curves import inner_curve, is_concave, knapsack_curve
from riskband.flower.testing import Delivery, node_unavailable
from strategies.asking.query import QuorumError
from strategies.asking.replies import answer_check
from tests.strategies import network as shared
from tests.strategies.network import Asking, names, raising
from tests.transport import adversarial_query

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
PLAIN = LossQuery(loss="zero_one", model="tiny", x_shape=(3,), num_classes=2)
RADII = (0.0, 0.1, 0.2, 0.5)
QUERY = adversarial_query("zero_one", "tiny", (3,), 2, order=1, radii=RADII, multipliers=(0.25, 0.5, 2.0))
NUM_CLIENTS = 6

app = ClientApp()


def curve(partition):
    """Client k's examples cost 0, 0.1 (k + 1), 0.2 (k + 1), ... to flip."""
    return knapsack_curve(0.1 * (partition + 1) * np.arange(10))


def honest_answer(partition, query, arrays=ARRAYS):
    values = tuple(curve(partition)(query.radii).tolist())
    conjugates = tuple(curve(partition).conjugate(query.multipliers).tolist())
    return AdversarialAnswer(
        client_id=f"client-{partition:05d}",
        num_examples=10,
        loss=query.loss,
        clean_risk=0.1,
        values_lower=values,
        values_upper=values,
        conjugates_lower=conjugates,
        conjugates_upper=conjugates,
        adversarial_unit=0.45 * (partition + 1),
        guarantee="exact",
        code_hash=code_hash(),
        model_hash=model_hash(arrays),
    )


@app.query("adversarial_loss")
def adversarial(message, context):
    query, arrays = wire.decode_query(message.content, AdversarialQuery), wire.decode_weights(message.content)
    answer = honest_answer(context.node_config["partition-id"], query, arrays)
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query("loss")
def plain(message, context):
    query, arrays = wire.decode_query(message.content, LossQuery), wire.decode_weights(message.content)
    client_id = f"client-{context.node_config['partition-id']:05d}"
    answer = LossAnswer(client_id, 0.1, 10, query.loss, code_hash(), model_hash(arrays))
    return Message(wire.encode_answer(answer), reply_to=message)


def strategy(**settings):
    defaults = {"num_clients": NUM_CLIENTS, "quorum": 0.5, "node_timeout": 0.05, "reply_timeout": 5.0}
    return Asking(QUERY, **(defaults | {"poll_interval": 0.001} | settings))


network = partial(shared.network, client=app, num_clients=NUM_CLIENTS)
everyone_but = partial(shared.everyone_but, num_clients=NUM_CLIENTS)
claiming = partial(shared.claiming, AdversarialAnswer)


def test_an_honest_network_is_heard_completely():
    outcome = strategy().ask(network(), QUERY, ARRAYS)
    assert outcome.answers == tuple(honest_answer(k, QUERY) for k in range(NUM_CLIENTS))
    assert outcome.failures == ()


def test_start_asks_the_question_of_the_subclass():
    result = strategy().start(network(), to_array_record(ARRAYS))
    assert names(result.conclusion) == everyone_but()


HONEST = honest_answer(3, QUERY)


def both(name, *numbers):
    return dict.fromkeys((f"{name}_lower", f"{name}_upper"), numbers)


@pytest.mark.guard
@pytest.mark.parametrize(
    ("claims", "reason", "sentence"),  # all rules of an answer that can be read are in test_rules.py
    [
        (both("values", 0.1, 0.2, 0.4, 0.41), "not-concave", "the lower values must be nondecreasing and concave"),
        (both("values"), "wrong-length", "asked for 4 values, got 0 lower and 0 upper"),
        (both("conjugates", 0.5, 0.6, 0.7), "contradiction", "conjugates must not increase with the multiplier"),
        ({"guarantee": "certain"}, "malformed", "guarantee must be one of"),
        ({"budget_left": -1}, "malformed", "budget"),
        ({"code_hash": "0" * 64, **both("values", 0.5, 0.4, 0.3, 0.2)}, "wrong-code", "the client ran other code"),
    ],
)
def test_a_claim_that_cannot_be_true_is_refused_and_named(claims, reason, sentence):
    outcome = strategy().ask(network({3: claiming(**claims)}), QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3)
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason.value) == ("client-00003", reason)
    assert sentence in failure.detail


def test_a_plain_answer_to_an_adversarial_question_is_malformed_and_the_other_way_round():
    def answering_plainly(message, answer):
        content = LossAnswer("client-00003", 0.1, 10, "zero_one", code_hash(), model_hash(ARRAYS))
        return [Delivery(Message(wire.encode_answer(content), reply_to=message))]

    def answering_too_much(message, answer):
        return [Delivery(Message(wire.encode_answer(HONEST), reply_to=message))]

    for query, behaviour in ((QUERY, answering_plainly), (PLAIN, answering_too_much)):
        outcome = strategy().ask(network({3: behaviour}), query, ARRAYS)
        assert [(f.client_id, f.reason.value) for f in outcome.failures] == [("client-00003", "malformed")]


prices = st.one_of(st.just(0.0), st.floats(1e-150, 10))


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=30),
    st.lists(prices, max_size=20, unique=True),
    st.lists(prices, max_size=10, unique=True),
    st.sampled_from([np.float64, np.float32]),
)
def test_every_honest_curve_passes(costs, radii, multipliers, kind):
    query = dataclasses.replace(QUERY, radii=sorted(radii), multipliers=sorted(multipliers))
    honest = knapsack_curve(costs)

    def sent(values):  # on the wire every number is a float64
        return tuple(np.asarray(values, dtype=kind).tolist())

    answer = dataclasses.replace(
        HONEST,
        num_examples=len(costs),
        clean_risk=sent([np.mean(np.equal(costs, 0.0))])[0],
        values_lower=sent(honest(query.radii)),
        values_upper=sent(honest(query.radii)),
        conjugates_lower=sent(honest.conjugate(query.multipliers)),
        conjugates_upper=sent(honest.conjugate(query.multipliers)),
    )
    check = answer_check(query, answer.model_hash, answer.code_hash, None)
    assert check.failure(answer) is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(0, 10**6))
def test_what_passes_the_concavity_check_is_a_curve_to_riskband(numbers, seed):
    rng = np.random.default_rng(seed)
    radii = np.concatenate([[0.0], np.cumsum(rng.uniform(0.01, 1.0, size=len(numbers) - 1))])
    for candidate in (numbers, sorted(numbers), np.sqrt(radii / radii[-1]), np.cumsum(sorted(numbers, reverse=True))):
        if is_concave(np.array(radii), np.array(candidate)):
            inner_curve(radii, np.asarray(candidate))
        else:
            with pytest.raises(ValueError, match="nondecreasing and concave"):
                inner_curve(radii, np.asarray(candidate))


# Each client its own question.


def own_questions(*partitions):
    return {f"client-{k:05d}": dataclasses.replace(QUERY, radii=(0.05 * k + 0.01,)) for k in partitions}


def test_each_client_gets_its_own_question_and_nobody_else_is_asked():
    asked = []

    def noting(message, answer):
        asked.append(wire.decode_query(message.content, AdversarialQuery).radii)
        return [Delivery(answer(message))]

    asking, grid = strategy(), network(dict.fromkeys(range(NUM_CLIENTS), noting))
    asking.ask(grid, QUERY, ARRAYS)
    asked.clear()
    questions = own_questions(1, 4)
    outcome = asking.ask_each(grid, questions, ARRAYS, round=2)
    assert outcome.answers == tuple(honest_answer(k, questions[f"client-{k:05d}"]) for k in (1, 4))
    assert (outcome.failures, outcome.num_asked) == ((), 2)
    assert sorted(asked) == sorted(question.radii for question in questions.values())


def test_a_plain_first_round_tells_who_is_where():
    asking, grid = strategy(), network(seed=3)
    asking.ask(grid, PLAIN, ARRAYS)
    assert names(asking.ask_each(grid, own_questions(0, 5), ARRAYS, round=2)) == ["client-00000", "client-00005"]
    assert names(asking.ask_each(grid, {"client-00002": PLAIN}, ARRAYS, round=3)) == ["client-00002"]


def test_nobody_can_be_asked_for_nothing():
    asking, grid = strategy(), network()
    asking.ask(grid, PLAIN, ARRAYS)
    outcome = asking.ask_each(grid, {}, ARRAYS, round=2)
    assert (outcome.answers, outcome.failures, outcome.num_asked) == ((), (), 0)


@pytest.mark.usefixtures("idle_clock")
def test_a_client_that_fails_later_is_named_and_the_others_are_heard():
    class FailingLater:
        def __init__(self, behaviour):
            self.behaviour = behaviour
            self.num_messages = 0

        def __call__(self, message, answer):
            self.num_messages += 1
            return [Delivery(answer(message))] if self.num_messages == 1 else self.behaviour(message, answer)

    behaviours = {
        1: FailingLater(raising),
        2: FailingLater(lambda message, answer: []),
        3: FailingLater(node_unavailable),
        4: FailingLater(claiming(client_id="client-00005")),
    }
    asking, grid = strategy(reply_timeout=1.0), network(behaviours)
    asking.ask(grid, QUERY, ARRAYS)
    outcome = asking.ask_each(grid, own_questions(*range(5)), ARRAYS, round=2)
    assert names(outcome) == ["client-00000"]
    assert [(f.client_id, f.reason.value) for f in outcome.failures] == [
        ("client-00001", "client-raised"),
        ("client-00002", "no-reply"),
        ("client-00003", "node-unavailable"),
        ("client-00004", "wrong-name"),
    ]
    assert outcome.failures[-1].claimed_name == "client-00005"


def test_only_clients_that_answered_can_be_asked_by_name():
    asking, grid = strategy(), network({2: raising})
    asking.ask(grid, QUERY, ARRAYS)
    with pytest.raises(ValueError, match=r"only clients that answered an earlier round .* got 'client-00002' and 0"):
        asking.ask_each(grid, own_questions(1, 2), ARRAYS, round=2)


def test_a_name_that_two_nodes_claimed_can_not_be_asked():
    asking, grid = strategy(), network({2: claiming(client_id="client-00001")})
    asking.ask(grid, QUERY, ARRAYS)
    with pytest.raises(ValueError, match="got 'client-00001'"):
        asking.ask_each(grid, own_questions(1), ARRAYS, round=2)


def test_answers_are_handed_over_in_later_rounds_too():
    received = []
    asking, grid = strategy(on_answer=lambda query, answer, node_id: received.append(answer)), network()
    asking.ask(grid, PLAIN, ARRAYS)
    asking.ask_each(grid, own_questions(1), ARRAYS, round=2)
    assert [type(answer) for answer in received] == [LossAnswer] * NUM_CLIENTS + [AdversarialAnswer]


def test_below_the_quorum_an_adversarial_round_stops_like_any_other():
    with pytest.raises(QuorumError, match="4 x client-raised"):
        strategy().ask(network(dict.fromkeys(range(4), raising)), QUERY, ARRAYS)
