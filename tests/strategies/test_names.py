"""Whose failure it is: every hostile reply is named by its node and, where it is known, its client; so is a refusal."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo

from protocol import wire
from protocol.hashes import code_hash
from riskband.flower.testing import Delivery, InProcessGrid, node_unavailable
from strategies.asking.failures import node_hash
from strategies.asking.resume import EarlierAnswer
from tests.strategies.mutations import HARMFUL
from tests.strategies.network import (
    ARRAYS,
    NUM_CLIENTS,
    QUERY,
    claiming,
    error_reply,
    everyone_but,
    expected_answer,
    name_of,
    names,
    network,
    raising,
    reasons,
    silent,
    strategy,
    twice,
)
from tests.strategies.test_fuzz import ARRAYS as FUZZ_ARRAYS
from tests.strategies.test_fuzz import QUERIES, edited, honest_answer, stealing
from tests.strategies.test_fuzz import app as fuzz_app
from tests.strategies.test_hello import Network, earlier, greeting, run

NUM_HONEST = 6


def with_two_answers(message, answer):
    other = answer(message)
    other.content["answer"]["code-hash"] = "0"
    return [Delivery(Message(other.content, reply_to=message)), Delivery(answer(message))]


def everything_hostile(kind):
    """What nodes 6, 7, … do, each another thing."""
    first = NUM_HONEST
    mutations = [edited(each, np.random.default_rng(3), k) for k, each in enumerate(HARMFUL[kind], start=first)]
    others = [stealing(5), raising, silent, node_unavailable, error_reply(8), error_reply(99), with_two_answers]
    return dict(enumerate([*mutations, *others], start=first))


def hostile_round(kind, *, says_hello):
    """The failures of a round, and all nodes by partition."""
    behaviours = everything_hostile(kind)
    num_clients = NUM_HONEST + len(behaviours)
    grid = InProcessGrid(fuzz_app, num_clients=num_clients, run_config={})
    asking = strategy(num_clients=num_clients, quorum=0.01, reply_timeout=0.4)
    if says_hello:
        asking.meet(grid)
    grid._behaviours = behaviours
    outcome = asking.ask(grid, QUERIES[kind], FUZZ_ARRAYS)
    believed = range(NUM_HONEST if says_hello else NUM_HONEST - 1)  # else who is robbed is refused with the thief
    assert outcome.answers == tuple(honest_answer(kind, k) for k in believed)
    return outcome.failures, [*map(node_hash, grid.get_node_ids())]


KINDS = [kind for kind in HARMFUL if kind != "hello"]


@pytest.mark.usefixtures("idle_clock")
@pytest.mark.parametrize("kind", KINDS)
def test_who_said_hello_fails_under_its_own_name_whatever_it_replies(kind):
    failures, nodes = hostile_round(kind, says_hello=True)
    assert len(failures) >= 20
    assert {(f.client_id, f.node) for f in failures} == {(name_of(k), nodes[k]) for k in range(NUM_HONEST, len(nodes))}


@pytest.mark.usefixtures("idle_clock")
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_met_for_the_first_time_is_named_by_its_node_and_by_no_name_that_is_not_its(kind):
    failures, nodes = hostile_round(kind, says_hello=False)
    assert sorted(failure.node for failure in failures) == sorted(nodes[NUM_HONEST - 1 :])
    for failure in failures:
        own = name_of(nodes.index(failure.node))
        is_theft = failure.reason in ("claimed-twice", "unknown-client")
        made_up = not (failure.client_id or "").startswith("client-000")
        assert failure.client_id in (None, own) or is_theft or made_up, failure
    assert sum(failure.client_id is not None for failure in failures) >= 8


def test_of_two_unknown_nodes_with_one_name_both_are_refused_and_both_nodes_named():
    grid = network({3: claiming(client_id="client-00005")})
    outcome = strategy().ask(grid, QUERY, ARRAYS)
    nodes = [*map(node_hash, grid.get_node_ids())]
    assert reasons(outcome) == [("client-00005", "claimed-twice")] * 2
    assert {failure.node for failure in outcome.failures} == {nodes[3], nodes[5]}


@pytest.mark.parametrize("lie", [{}, {"risk": 0.9}, {"risk": np.nan}], ids=str)
def test_a_name_that_was_heard_before_stays_with_its_node_and_the_thiefs_reply_reaches_nobody(lie):
    received = []
    asking, grid = strategy(on_answer=lambda query, answer, node_id: received.append(answer)), network()
    asking.ask(grid, QUERY, ARRAYS)
    grid._behaviours = {3: claiming(client_id="client-00005", **lie)}
    received.clear()
    outcome = asking.ask(grid, QUERY, ARRAYS, round=2)
    assert outcome.answers == tuple(expected_answer(k) for k in range(NUM_CLIENTS) if k != 3)
    assert sorted(received, key=lambda answer: answer.client_id) == list(outcome.answers)
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason, failure.claimed_name) == ("client-00003", "wrong-name", "client-00005")
    assert failure.detail.endswith("but this node's name is 'client-00003'")


def test_a_newcomer_that_claims_a_known_name_is_refused_alone():
    asking, grid = strategy(), network(nodes_ready_after={9: 10**6})
    asking.ask(grid, QUERY, ARRAYS)
    grid._nodes_ready_after, grid._behaviours = {}, {9: claiming(client_id="client-00005")}
    outcome = asking.ask(grid, QUERY, ARRAYS, round=2)
    assert names(outcome) == everyone_but(9)
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason, failure.claimed_name) == (None, "wrong-name", "client-00005")
    assert failure.node == node_hash(list(grid.get_node_ids())[9])


def test_a_node_may_not_change_its_name_within_a_run():
    asking, grid = strategy(), network()
    asking.ask(grid, QUERY, ARRAYS)
    grid._behaviours = {3: claiming(client_id="somebody else")}
    outcome = asking.ask(grid, QUERY, ARRAYS, round=2)
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [("client-00003", "wrong-name")]


# What the ledger of an interrupted run knows.


def from_nodes(network, *partitions):
    nodes = [*map(node_hash, network.grid.get_node_ids())]
    return [
        dataclasses.replace(entry, node=nodes[k]) for k, entry in zip(partitions, earlier(*partitions), strict=True)
    ]


def test_the_ledger_decides_between_two_nodes_that_claim_one_name():
    network = Network({4: greeting(client_id=name_of(1))})
    outcome = run(network, earlier=from_nodes(network, 1), quorum=0.5)
    assert [answer.client_id for answer in outcome.answers] == [name_of(k) for k in (0, 1, 2, 3, 5)]
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason, failure.claimed_name) == (None, "wrong-name", name_of(1))
    assert failure.node == node_hash(list(network.grid.get_node_ids())[4])
    assert sorted(network.asked["query.loss"]) == [0, 2, 3, 5]


def test_a_node_that_has_another_name_in_a_later_run_is_welcome_if_nobody_else_claims_it():
    network = Network({4: greeting(client_id="renamed")})
    entry = dataclasses.replace(earlier(1)[0], node=node_hash(list(network.grid.get_node_ids())[4]))
    assert "renamed" in [answer.client_id for answer in strategy(earlier=[entry]).meet(network.grid).answers]


def test_who_is_silent_in_the_hello_has_the_name_of_its_earlier_answer():
    network = Network({4: silent})
    other_question = dataclasses.replace(from_nodes(network, 4)[0], radii=(0.5,))
    outcome = run(network, earlier=[other_question], quorum=0.5)
    assert reasons(outcome) == [(name_of(4), "no-reply")]


def test_a_ledger_with_two_nodes_of_one_name_decides_nothing():
    network = Network({4: greeting(client_id=name_of(1))})
    nodes = list(network.grid.get_node_ids())
    entries = [EarlierAnswer(earlier(1)[0].answer, node=node_hash(nodes[k])) for k in (1, 4)]
    outcome = run(network, earlier=entries, quorum=0.5)
    assert reasons(outcome) == [(name_of(1), "claimed-twice")] * 2


# Registered keys.


def with_keys(grid, name):
    """A network whose operator registered the key of each node under a name, by partition; "" is none."""
    names_of = {node_id: name(k) for k, node_id in enumerate(grid._contexts)}
    grid.get_nodes = lambda: [NodeInfo(node_id=node_id, name=names_of[node_id]) for node_id in grid.get_node_ids()]
    return grid


def registered(name, behaviours=None, **settings):
    return with_keys(network(behaviours, **settings), name)


@pytest.mark.usefixtures("idle_clock")
def test_the_name_of_the_registered_key_is_that_of_the_client_in_every_failure():
    grid = registered(name_of, {2: silent, 3: raising, 4: claiming(risk=np.nan)})
    outcome = strategy(reply_timeout=0.3).ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(2, 3, 4)
    assert [(f.client_id, f.node_name, f.reason.value) for f in outcome.failures] == [
        (name_of(2), name_of(2), "no-reply"),
        (name_of(3), name_of(3), "client-raised"),
        (name_of(4), name_of(4), "not-finite"),
    ]


THEFT = [{}, {"risk": 0.9}, {"risk": np.nan}]


@pytest.mark.parametrize("lie", THEFT, ids=str)
@pytest.mark.parametrize("is_away", [False, True], ids=["here", "away"])
def test_a_key_answers_under_its_own_name_alone_whoever_comes_first(is_away, lie):
    grid = registered(
        name_of, {3: claiming(client_id=name_of(5), **lie)}, nodes_ready_after={5: 10**6} if is_away else {}
    )
    outcome = strategy().ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3, 5) if is_away else everyone_but(3)
    (failure,) = [failure for failure in outcome.failures if failure.node is not None]
    assert (failure.client_id, failure.reason, failure.claimed_name) == (name_of(3), "wrong-name", name_of(5))
    assert failure.detail.endswith(f"but this node's name is {name_of(3)!r}")


@pytest.mark.guard
@pytest.mark.parametrize("lie", THEFT, ids=str)
def test_a_key_without_a_name_does_not_answer_under_that_of_another_key(lie):
    grid = registered(lambda k: "" if k == 3 else name_of(k), {3: claiming(client_id=name_of(5), **lie)})
    outcome = strategy().ask(grid, QUERY, ARRAYS)
    assert outcome.answers == tuple(expected_answer(k) for k in range(NUM_CLIENTS) if k != 3)
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason, failure.claimed_name) == (None, "wrong-name", name_of(5))
    assert failure.node == node_hash(list(grid.get_node_ids())[3])


@pytest.mark.parametrize("claim", [name_of(5), name_of(3), "somebody else"])
def test_of_two_keys_registered_under_one_name_neither_answers_under_any(claim):
    grid = registered(lambda k: name_of(5 if k == 3 else k), {3: claiming(client_id=claim)})
    outcome = strategy().ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3, 5)
    assert {failure.node for failure in outcome.failures} == {node_hash(list(grid.get_node_ids())[k]) for k in (3, 5)}
    assert {failure.node_name for failure in outcome.failures} == {name_of(5)}
    own = next(failure for failure in outcome.failures if failure.node == node_hash(list(grid.get_node_ids())[5]))
    assert (own.reason, own.detail) == (
        "claimed-twice",
        f"two keys or more are registered under the name {name_of(5)!r}",
    )


def test_a_key_that_is_registered_under_the_name_of_a_client_of_an_earlier_round_stops_both():
    asking, grid = strategy(), registered(lambda k: name_of(5 if k == 3 else k), nodes_ready_after={5: 10**6})
    grid._behaviours = {3: claiming(client_id=name_of(5))}
    assert names(asking.ask(grid, QUERY, ARRAYS)) == everyone_but(3)  # the other key is not to be seen yet
    grid._nodes_ready_after = {}
    assert names(asking.ask(grid, QUERY, ARRAYS, round=2)) == everyone_but(3, 5)


@pytest.mark.parametrize("greeted", [name_of(5), name_of(3)])
def test_a_client_that_answered_before_and_is_away_is_not_missing_whoever_claims_its_name(greeted):
    network = Network({3: greeting(client_id=greeted)}, nodes_ready_after={5: 10**6})
    with_keys(network.grid, name_of)
    outcome = run(network, earlier=earlier(0, 1, 2, 4, 5), quorum=0.5)
    assert [answer.client_id for answer in outcome.answers] == [
        name_of(k) for k in range(6) if k != 3 or greeted == name_of(3)
    ]
    assert reasons(outcome) == ([] if greeted == name_of(3) else [(name_of(3), "wrong-name")])


def test_what_was_answered_before_under_a_name_of_two_keys_is_not_believed():
    network = Network({4: greeting(client_id=name_of(1))})
    with_keys(network.grid, lambda k: name_of(1 if k == 4 else k))
    outcome = run(network, earlier=from_nodes(network, 1), quorum=0.5)
    assert [answer.client_id for answer in outcome.answers] == [name_of(k) for k in (0, 2, 3, 5)]
    assert [failure.reason for failure in outcome.failures] == ["claimed-twice"] * 2
    assert sorted(network.asked["query.loss"]) == [0, 2, 3, 5]


# Refusals.


def refusing(name, text="no more", *, code=2):
    refusal = wire.encode_refusal(wire.Refusal(name, code_hash(), text))
    return lambda message, answer: [Delivery(Message(Error(code, refusal), reply_to=message))]


def test_a_refusal_is_named_and_its_words_stand_alone():
    outcome = strategy().ask(
        network({3: refusing("client-00003", "RefusedError: 'no' \"more\"\nthan\x1b[31m 4")}), QUERY, ARRAYS
    )
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason) == ("client-00003", "client-raised")
    assert failure.detail == "RefusedError: 'no' \"more\" than\\x1b[31m 4"


@pytest.mark.parametrize("code", [2, 5, 8, 99])
def test_an_error_under_the_name_of_another_takes_nothing_from_it(code):
    grid = network({3: refusing("client-00005", code=code)})
    unknown = strategy().ask(grid, QUERY, ARRAYS)
    assert names(unknown) == everyone_but(3)
    (failure,) = unknown.failures
    assert (failure.client_id, failure.claimed_name) == (None, "client-00005")
    assert failure.node == node_hash(list(grid.get_node_ids())[3])
    asking, grid = strategy(), network()
    asking.ask(grid, QUERY, ARRAYS)
    grid._behaviours = {3: refusing("client-00005", code=code)}
    known = asking.ask(grid, QUERY, ARRAYS, round=2)
    assert names(known) == everyone_but(3)
    assert reasons(known) == [("client-00003", "wrong-name")]


def test_an_error_under_the_name_of_another_key_is_that_of_its_own():
    outcome = strategy().ask(registered(name_of, {3: refusing(name_of(5))}), QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3)
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason, failure.claimed_name) == (name_of(3), "wrong-name", name_of(5))


def test_of_two_errors_under_one_name_neither_is_known_to_be_its_clients():
    outcome = strategy().ask(network({3: refusing("client-00005"), 5: refusing("client-00005")}), QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3, 5)
    assert [(f.client_id, f.claimed_name) for f in outcome.failures] == [(None, "client-00005")] * 2


def test_a_refusal_by_other_code_says_so():
    refusal = wire.encode_refusal(wire.Refusal("client-00003", "0" * 64, "what is that?"))
    behave = lambda message, answer: [Delivery(Message(Error(2, refusal), reply_to=message))]  # noqa: E731
    (failure,) = strategy().ask(network({3: behave}), QUERY, ARRAYS).failures
    assert failure.detail == "what is that? (it runs other code than the server's bundle)"


@pytest.mark.guard
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        '{"refusal": 3, "code-hash": "a"}',
        '{"refusal": "no"}',
        '{"refusal": "no", "code-hash": "a", "client-id": "b\\nc"}',
        '{"refusal": "no", "code-hash": "a", "client-id": ["b"]}',
        "{" * 20_000,
        '{"a":' * 3_000,
        '{"refusal": "' + "x" * 100_000 + '", "code-hash": "a", "client-id": "client-00005"}',
    ],
    ids=lambda text: text[:40],
)
def test_what_only_looks_like_a_refusal_names_nobody(text):
    behave = lambda message, answer: [Delivery(Message(Error(2, text), reply_to=message))]  # noqa: E731
    outcome = strategy().ask(network({3: behave}), QUERY, ARRAYS)
    assert names(outcome) == everyone_but(3)
    (failure,) = outcome.failures
    assert (failure.client_id, failure.reason) == (None, "client-raised")
    assert len(failure.detail) < 400
    assert failure.detail.isprintable()


def test_two_replies_one_of_which_is_a_refusal_are_none():
    outcome = strategy().ask(network({3: twice(claiming(), refusing("client-00003"))}), QUERY, ARRAYS)
    assert reasons(outcome) == [("client-00003", "changed-answer")]
