"""Who has signed an answer: forged, replayed and missing signatures, at a server that knows its clients' keys."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from client.refusals import say_refusals
from client.signing import sign_replies
from protocol import wire
from protocol.hashes import code_hash
from riskband.answers.signing import Statement
from riskband.flower.testing import Delivery, InProcessGrid
from tests.strategies.network import (
    ARRAYS,
    NUM_CLIENTS,
    QUERY,
    claiming,
    everyone_but,
    honest_client,
    name_of,
    names,
    network,
    raising,
    reasons,
    strategy,
    twice,
)

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([k + 1] * 32)) for k in range(NUM_CLIENTS)]
LISTED = {name_of(k): key.public_key().public_bytes_raw() for k, key in enumerate(KEYS)}

app = ClientApp(mods=[sign_replies, say_refusals])
app.query("loss")(honest_client)


@pytest.fixture(scope="module")
def own_keys(tmp_path_factory):
    """Node configs with a file for the key of each client."""
    folder = tmp_path_factory.mktemp("keys")
    for k, key in enumerate(KEYS):
        text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / f"{k}.key").write_bytes(text)
    return {k: {"client-id": name_of(k), "signing-key-file": str(folder / f"{k}.key")} for k in range(NUM_CLIENTS)}


def asked(own_keys, behaviours=None, **settings):
    """The outcome of one round with signatures, and what was kept of it."""
    answers, refusals = {}, []

    def keep(query, answer, sender):
        answers[answer.client_id] = sender.signed

    told = {"on_answer": keep, "on_refusal": lambda name, signed: refusals.append(signed)}
    grid = Registered(network(behaviours, client=app, node_configs=own_keys))
    outcome = strategy(**{"client_keys": LISTED, **told} | settings).ask(grid, QUERY, ARRAYS)
    return outcome, answers, refusals


class Registered:
    """A grid whose nodes have keys with names."""

    def __init__(self, grid):
        self._grid = grid

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def get_nodes(self):
        partitions = {node_id: context.node_config["partition-id"] for node_id, context in self._contexts.items()}
        return [NodeInfo(node_id=node_id, name=name_of(k)) for node_id, k in partitions.items()]


def first_only(behave):
    """To the first message of a node something else than to those that follow."""
    seen = []

    def behaviour(message, answer):
        seen.append(message)
        return behave(message, answer) if len(seen) == 1 else [Delivery(answer(message))]

    return behaviour


def signed_by(partition, reply, message, *, statement=None):
    stated = statement or wire.statement_of(reply, message)
    return wire.with_signature(reply, KEYS[partition].sign(stated.to_sign), reply_to=message)


def forged(message, answer):
    """An answer in the name of the client, by somebody who has a key of another."""
    (delivery,) = claiming(risk=1.0)(message, answer)
    return [Delivery(signed_by(7, delivery.reply, message))]


def forged_refusal(message, answer):
    text = wire.encode_refusal(wire.Refusal(name_of(3), code_hash(), "RefusedError: I refuse"))
    reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, text), reply_to=message)
    return [Delivery(signed_by(7, reply, message))]


def crash_report(message, answer):
    return [Delivery(Message(Error(ErrorCode.CLIENT_APP_CRASHED, "it is gone"), reply_to=message))]


def own_name(message, answer):
    """Another client's own answer, signed by it, in the place of the node's."""
    (delivery,) = claiming(client_id=name_of(7))(message, answer)
    return [Delivery(signed_by(7, delivery.reply, message))]


def without_signature(message, answer):
    reply = answer(message)
    del reply.content[wire.SIGNATURE_RECORD]
    return [Delivery(reply)]


def with_junk(message, answer):
    reply = answer(message)
    reply.content[wire.SIGNATURE_RECORD] = ConfigRecord({"signature": "no bytes"})
    return [Delivery(reply)]


def test_honest_answers_are_accepted_with_their_signatures(own_keys):
    outcome, answers, _ = asked(own_keys)
    assert names(outcome) == everyone_but()
    assert all(signed.key == LISTED[name] for name, signed in answers.items())
    assert len({signed.statement.message for signed in answers.values()}) == NUM_CLIENTS


def test_who_knows_all_of_a_message_but_its_token_does_not_know_its_id():
    sent = []

    class Watched(InProcessGrid):
        def push_messages(self, messages):
            sent.extend(messages := list(messages))
            return super().push_messages(messages)

    strategy().ask(Watched(app, num_clients=NUM_CLIENTS, run_config={}), QUERY, ARRAYS)
    asked, *others = sent
    token, message_id = asked.metadata.group_id, asked.metadata.message_id
    assert asked.object_id == message_id
    for guess in ["1", f"1-{32 * '0'}", *(other.metadata.group_id for other in others)]:
        asked.metadata.group_id = guess
        assert asked.object_id != message_id
    asked.metadata.group_id = token
    assert asked.object_id == message_id  # the control: the token was all that was missing


def test_no_two_messages_can_be_told_from_each_other_before_they_are_sent(own_keys):
    tokens = [signed.statement.message for _ in range(2) for signed in asked(own_keys)[1].values()]
    assert len(set(tokens)) == 2 * NUM_CLIENTS
    assert all(wire.round_of(token) == "1" and len(token) == len("1-") + 32 for token in tokens)


@pytest.mark.parametrize("lie", [forged, forged_refusal, crash_report, own_name, without_signature, with_junk])
def test_a_forged_reply_neither_counts_nor_hides_the_honest_one(own_keys, lie):
    outcome, answers, refusals = asked(own_keys, {3: first_only(lie)}, node_timeout=5.0)
    assert names(outcome) == everyone_but()
    assert outcome.failures == ()
    assert outcome.answers[3].risk == 0.3
    assert (answers[name_of(3)].key, refusals) == (LISTED[name_of(3)], [])


@pytest.mark.parametrize("lie", [forged, forged_refusal, crash_report])
def test_the_same_lies_count_where_clients_do_not_sign(own_keys, lie):
    """The control: without the keys each of them is believed."""
    outcome, _, _ = asked(own_keys, {3: first_only(lie)}, client_keys=None)
    assert names(outcome) != everyone_but() or outcome.answers[3].risk == 1.0


@pytest.mark.parametrize("lie", [forged, forged_refusal, own_name, without_signature, with_junk])
def test_who_never_signs_fails_by_its_registered_name_and_nobody_else(own_keys, lie):
    outcome, _, _ = asked(own_keys, {3: lie}, node_timeout=5.0)
    assert names(outcome) == everyone_but(3)
    assert reasons(outcome) == [(name_of(3), "not-signed")]


@pytest.mark.parametrize("other", ["run", "message", "question", "said"])
def test_a_replayed_signature_of_another_run_message_question_or_answer_does_not_count(own_keys, other):
    def replay(message, answer):
        reply = answer(message)
        stated = vars(wire.statement_of(reply, message))
        changed = {
            "run": "2",
            "message": "1-" + 32 * "0",
            "question": stated["question"] | {"loss": "brier"},
            "said": stated["said"] | {"risk": 0.4},
        }
        return [Delivery(signed_by(3, reply, message, statement=Statement(**stated | {other: changed[other]})))]

    outcome, _, _ = asked(own_keys, {3: replay})
    assert reasons(outcome) == [(name_of(3), "not-signed")]
    assert names(outcome) == everyone_but(3)


def test_a_whole_reply_of_an_earlier_run_or_question_does_not_count(own_keys):
    """The client's own signed words, said before: as another run of the same question, and as one of this run."""
    before = []

    def record(message, answer):
        before.append(answer(message).content)
        return [Delivery(Message(before[-1], reply_to=message))]

    def replay(message, answer):
        return [Delivery(Message(before[0], reply_to=message))]

    assert names(asked(own_keys, {3: record})[0]) == everyone_but()
    outcome, _, _ = asked(own_keys, {3: first_only(replay)}, node_timeout=5.0)
    assert names(outcome) == everyone_but()
    outcome, _, _ = asked(own_keys, {3: replay})
    assert reasons(outcome) == [(name_of(3), "not-signed")]


def test_a_forged_second_reply_does_not_void_the_honest_one(own_keys):
    honest = lambda message, answer: [Delivery(answer(message))]  # noqa: E731
    outcome, _, _ = asked(own_keys, {3: twice(honest, lambda m, a: [Delivery(d.reply, 1) for d in forged(m, a)])})
    assert names(outcome) == everyone_but()


def test_a_signed_refusal_is_kept_and_is_the_clients_own(own_keys):
    refusing = ClientApp(mods=[sign_replies, say_refusals])

    @refusing.query("loss")
    def refuse(message, context):
        if context.node_config["partition-id"] == 3:
            raising(message, None)
        return honest_client(message, context)

    refusals = []
    grid = network(None, client=refusing, node_configs=own_keys)
    keep = lambda name, signed: refusals.append((name, signed))  # noqa: E731
    outcome = strategy(client_keys=LISTED, on_refusal=keep).ask(grid, QUERY, ARRAYS)
    assert reasons(outcome) == [(name_of(3), "client-raised")]
    ((name, kept),) = refusals
    assert (name, kept.key) == (name_of(3), LISTED[name_of(3)])
    assert kept.statement.said["refusal"] == "KeyError; the details are in this client's own log"


def test_who_is_not_listed_may_not_answer(own_keys):
    some = {name: key for name, key in LISTED.items() if name != name_of(3)}
    outcome, _, _ = asked(own_keys, client_keys=some)
    assert names(outcome) == everyone_but(3)
    assert [failure.reason for failure in outcome.failures] == ["not-signed"]


def test_a_key_that_is_none_is_said_before_anything_is_answered(own_keys, tmp_path):
    (tmp_path / "key").write_text("none")
    own = own_keys | {3: own_keys[3] | {"signing-key-file": str(tmp_path / "key")}}
    outcome, _, _ = asked(own, client_keys=None)
    (failure,) = outcome.failures
    assert failure.detail.startswith("RefusedError: signing-key-file must hold Ed25519 keys")
