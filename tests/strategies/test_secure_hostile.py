"""A server that tells clients different things learns nothing; a client that does not play by the rules goes alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from flwr.app import Message

from client.secure.part import begun, confirmed, hidden, holding, revealed, shared
from protocol.codec import to_array_record
from protocol.hashes import model_hash
from protocol.secure import cryptography as secure
from protocol.secure.questions import ConsistencyQuery, HeldShares, HistogramQuery, SharesQuery, UnmaskQuery
from riskband.flower.testing import Delivery
from strategies.asking.query import QuorumError
from strategies.secure.secure_sum import left_out
from tests.strategies.network import name_of
from tests.strategies.secure_network import ARRAYS, NUM_EXAMPLES, Recording, changing, risk_of, run

NUM = 10
TARGET = 3
# All multiples of 1 / NUM_EXAMPLES but 1 are in the first bin.
BLIND = (0.0, *np.linspace(0.999999, 1.0, NUM_EXAMPLES + 1).tolist())


def is_about(message, action):
    return message.metadata.message_type == f"query.{action}"


# Servers that do not ask all the same.


def asked_with_other_edges(message, answer):
    if is_about(message, "secure_histogram"):
        message.content["query"]["edges"] = list(BLIND)
    return [Delivery(answer(message))]


def asked_about_another_model(message, answer):
    if not is_about(message, "secure_histogram"):
        return [Delivery(answer(message))]
    message.content["arrays"] = to_array_record({name: array + 1 for name, array in ARRAYS.items()})
    reply = answer(message)
    reply.content["answer"]["model-hash"] = model_hash(ARRAYS)  # a server that asks so does not mind
    return [Delivery(Message(reply.content, reply_to=message))]


def all_but_the_target(behave):
    return {k: behave for k in range(NUM) if k != TARGET}


@pytest.mark.parametrize("behave", [asked_with_other_edges, asked_about_another_model])
@pytest.mark.parametrize("others", [all_but_the_target, lambda behave: {TARGET: behave}], ids=["others", "one"])
def test_a_server_that_asks_one_client_another_question_gets_no_counts(behave, others):
    with pytest.raises(ValueError, match="do not add up"):
        run(NUM, others(behave))


def test_without_the_question_in_the_masks_it_would_read_the_one_clients_bin(monkeypatch):
    """The negative control of the test above: NUM - 1 clients are sure to be in the first bin."""
    monkeypatch.setattr(HistogramQuery, "digest", lambda query, **about: b"same")
    found, _ = run(NUM, all_but_the_target(asked_with_other_edges))
    counts = np.array(found.outcome.counts[0])
    counts[0] -= NUM - 1
    assert np.flatnonzero(counts).tolist() == [round(risk_of(TARGET) * NUM_EXAMPLES)]


@pytest.mark.parametrize("num_other", [4, 6])
def test_clients_that_were_asked_different_questions_do_not_unmask(num_other):
    with pytest.raises(QuorumError, match="different lists, or questions"):
        run(NUM, dict.fromkeys(range(num_other), asked_with_other_edges))


# Servers that tell different stories about who dropped out.

CLIENTS, THRESHOLD = range(1, 14), secure.threshold_of(13)
COLLUDING = (11, 12, 13)  # fewer than a third
VICTIMS = (2, 3, 4, 5, 6)
HONEST = range(2, 11)
PARTNERS = (*VICTIMS, *COLLUDING)
"""With these only the first client shares masks: the server says that nobody else sent it a share."""


def stories():
    """For each honest client, who is said to have dropped out: each victim to as many as give its key."""
    told = {number: [] for number in HONEST}
    for victim in VICTIMS:
        for number in sorted(told.keys() - {victim}, key=lambda n: len(told[n]))[: THRESHOLD - len(COLLUDING)]:
            told[number].append(victim)
    assert max(map(len, told.values())) <= len(CLIENTS) - THRESHOLD
    return {
        number: ConsistencyQuery(tuple(n for n in CLIENTS if n not in dropped), tuple(dropped))
        for number, dropped in told.items()
    }


def after_masks():
    """Parts of all after the third round, and the masked vector of the first client, whose bin is the sixth."""
    parts, sent = {number: begun(1) for number in CLIENTS}, {}
    public = {number: part.secrets.public for number, part in parts.items()}
    for number in CLIENTS:
        query = SharesQuery(number, THRESHOLD, public, is_complete=True)
        parts[number], shares = shared(parts[number], query, min_clients=3)
        sent[number] = dict(zip(shares.numbers, shares.shares, strict=True))
    for number in CLIENTS:
        senders = PARTNERS if number == 1 else [n for n in CLIENTS if n != number]
        received = HeldShares(tuple(senders), tuple(sent[sender][number] for sender in senders))
        parts[number], unopened = holding(parts[number], received, question=b"q" * 32, min_clients=3)
        assert unopened == ()
    masked = hidden(parts[1], np.eye(8, dtype=np.int64)[5])
    return parts, np.frombuffer(masked, dtype=secure.WORD)


def secret_of(number, parts, holders, kind):
    return secure.combined({n: parts[n].held[number][kind] for n in sorted(holders)[:THRESHOLD]})


def test_different_stories_would_isolate_a_client_but_nobody_confirms_them():
    parts, masked = after_masks()
    told = stories()
    # What the server could compute if each honest client answered by its own story, as it may look on its own.
    seed = secret_of(1, parts, [*HONEST, *COLLUDING], slice(secure.SEED_BYTES))
    plain = masked - secure.own_mask(seed, 8, own=1, held={1, *PARTNERS}, question=b"q" * 32)
    for partner in PARTNERS:
        holders = [number for number in HONEST if partner in told[number].dropped]
        key = (
            parts[partner].secrets.masking
            if partner in COLLUDING
            else secret_of(partner, parts, [*holders, *COLLUDING], slice(secure.SEED_BYTES, None))
        )
        route = (1, partner)
        plain = plain - secure.pair_mask(key, parts[1].secrets.public.masking, 8, route=route, question=b"q" * 32)
    assert plain.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]

    after = {number: confirmed(parts[number], told[number], min_clients=3) for number in HONEST}
    for number in HONEST:
        macs = {other: after[other][1][number] for other in HONEST if number in after[other][1]}
        # Who works with the server confirms whatever it likes.
        macs |= {other: confirmed(parts[other], told[number], min_clients=3)[1][number] for other in COLLUDING}
        with pytest.raises(ValueError, match="must have confirmed the same lists"):
            revealed(after[number][0], UnmaskQuery(macs))


def test_a_client_that_was_kept_from_a_survivor_does_not_confirm():
    parts, _ = after_masks()
    with pytest.raises(ValueError, match="no mask with others"):
        confirmed(parts[1], ConsistencyQuery(tuple(CLIENTS), ()), min_clients=3)


# Servers that meet a process with the state of before.


def asked_twice_from_one_state(grid, action, second):
    """Answer, then answer again with the state of before and a message that `second` has changed."""

    def behave(message, answer):
        if not is_about(message, action):
            return [Delivery(answer(message))]
        context = grid._contexts[message.metadata.dst_node_id]
        before, again = copy.deepcopy(context.state), copy.deepcopy(message)
        first = answer(message)
        context.state, after = before, context.state
        second(again.content["query"])
        try:
            grid.twice.append(answer(again))
        except ValueError as error:
            grid.twice.append(error)
        context.state = after
        return [Delivery(first)]

    return behave


TWICE = {
    "secure_shares": lambda record: None,
    "secure_histogram": lambda record: record.update({"edges": list(BLIND)}),
    "secure_consistency": lambda record: record.update({"dropped": [99]}),
    "secure_unmask": lambda record: None,
}


@pytest.mark.parametrize("file", ["answer-record-file", "query-budget-file", None])
@pytest.mark.parametrize("action", TWICE)
def test_a_step_is_answered_once_from_one_state_if_there_is_a_file(tmp_path, action, file):
    own = {"secure-min-clients": 3} | ({} if file is None else {file: str(tmp_path / "own.sqlite")})
    own |= {"query-budget": 9} if file == "query-budget-file" else {}
    grid = Recording(4, node_config=own)
    grid.twice = []
    grid._behaviours = {1: asked_twice_from_one_state(grid, action, TWICE[action])}
    found, _ = run(4, grid=grid)
    assert len(found.outcome.answers) == 4
    (second,) = grid.twice
    if file is not None:
        assert "once; it was asked for" in str(second)
        return
    # The negative control, and what remains without a file: of two vectors only noise can be seen.
    assert isinstance(second, Message)
    if action == "secure_histogram":
        (sent,) = [
            reply.content["answer"]["vector"]
            for reply in grid.replies
            if is_about(reply, action) and reply.content["answer"]["client-id"] == name_of(1)
        ]
        first, other = (
            np.frombuffer(vector, dtype=secure.WORD) for vector in (sent, second.content["answer"]["vector"])
        )
        assert np.abs((first - other).astype(np.int32)).min() > 1  # fails by chance once in 6e7 runs


# Clients that do not play by the rules.


def with_shares(change):
    return changing("secure_shares", lambda record: record.update({"shares": change(record["shares"])}))


GARBAGE = bytes(secure.SEALED_BYTES)
GO_ALONE = {
    "a key of zeros": (
        changing("secure_keys", lambda r: r.update({"masking": bytes(32)})),
        "malformed",
    ),
    "a short key": (changing("secure_keys", lambda r: r.update({"encryption": b"x"})), "malformed"),
    "a key for both": (
        changing("secure_keys", lambda r: r.update({"masking": r["encryption"]})),
        "malformed",
    ),
    "garbage for all": (with_shares(lambda shares: [GARBAGE] * len(shares)), "contradiction"),
    "long shares": (with_shares(lambda shares: [bytes(10_000)] * len(shares)), "too-large"),
    "a false accusation of all": (
        changing("secure_histogram", lambda r: r.update({"unopened": [1, 2, 4, 5, 6, 7, 8, 9, 10]})),
        "contradiction",
    ),
    "an accusation of a stranger": (
        changing("secure_histogram", lambda r: r.update({"unopened": [99]})),
        "contradiction",
    ),
}


@pytest.mark.parametrize("what", GO_ALONE)
def test_who_breaks_a_rule_is_named_and_the_others_are_counted(what):
    behave, reason = GO_ALONE[what]
    found, _ = run(NUM, {2: behave})
    assert [(failure.client_id, failure.reason.value) for failure in found.outcome.failures] == [(name_of(2), reason)]
    counted = [round(risk_of(k) * NUM_EXAMPLES) for k in range(NUM) if k != 2]
    assert found.outcome.counts == (tuple(np.bincount(counted, minlength=NUM_EXAMPLES + 1).tolist()),)


def test_who_seals_wrongly_for_too_many_to_do_without_is_named():
    with pytest.raises(QuorumError, match=rf"share of {name_of(2)}'s key, got 5") as error:
        run(NUM, {2: with_shares(lambda shares: [GARBAGE] * 4 + shares[4:])})
    assert [failure.client_id for failure in error.value.outcome.failures] == [name_of(2)]


def test_two_clients_with_one_key_are_both_left_out():
    key = secure.Secrets.fresh().public.masking
    behave = changing("secure_keys", lambda record: record.update({"masking": key}))
    found, _ = run(NUM, {2: behave, 5: behave})
    assert [(f.client_id, f.reason.value) for f in found.outcome.failures] == [
        (name_of(2), "claimed-twice"),
        (name_of(5), "claimed-twice"),
    ]


@pytest.mark.parametrize("num", [1, 3])
def test_false_confirmations_do_not_stop_the_others(num):
    def spoil(record):
        record["macs"] = [bytes(secure.MAC_BYTES)] * len(record["macs"])

    found, _ = run(NUM, dict.fromkeys(range(num), changing("secure_consistency", spoil)))
    assert len(found.outcome.answers) == NUM
    assert not found.outcome.late_failures


# Clients that say falsely of others that their shares do not open, and such that seal wrongly.

MANY = 15  # of whom 4 may be missing in the end


def accusing(*partitions):
    """Of clients by partition, whose numbers begin with 1."""
    return changing("secure_histogram", lambda record: record.update({"unopened": [k + 1 for k in partitions]}))


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 2])
def test_colluders_take_as_many_honest_clients_with_them_and_none_of_these_is_named_alone(num):
    """Each accuses all of the same honest ones, which come first in the order of names."""
    honest, liars = range(num), range(num, 2 * num)
    found, _ = run(MANY, {k: accusing(*honest) for k in liars})
    failures = {failure.client_id: failure for failure in found.outcome.failures}
    assert failures.keys() == {name_of(k) for k in (*honest, *liars)}
    pairs = set()
    for name, failure in failures.items():
        (other,) = (each for each in failures if each in failure.detail)
        assert failure.reason.value == "contradiction"
        assert f"between this client and {other} did not open: one of these two sealed" in failure.detail
        pairs.add(frozenset((name, other)))
    assert len(pairs) == num
    assert all(len(pair & {name_of(k) for k in liars}) == 1 for pair in pairs)
    counted = [round(risk_of(k) * NUM_EXAMPLES) for k in range(2 * num, MANY)]
    assert found.outcome.counts == (tuple(np.bincount(counted, minlength=NUM_EXAMPLES + 1).tolist()),)


def test_who_seals_wrongly_for_few_goes_with_one_of_them():
    found, _ = run(NUM, {2: with_shares(lambda shares: [GARBAGE] * 2 + shares[2:])})
    assert [failure.client_id for failure in found.outcome.failures] == [name_of(0), name_of(2)]
    assert all("one of these two" in failure.detail for failure in found.outcome.failures)


@pytest.mark.slow
def test_so_many_colluders_that_too_few_are_left_end_the_run_and_nobody_is_blamed_alone():
    with pytest.raises(QuorumError) as error:
        run(NUM, {k: accusing(0, 1) for k in (2, 3)})
    assert all("one of these two" in failure.detail for failure in error.value.outcome.failures)


LIMITS = dict.fromkeys(range(1, 11), 3)


@pytest.mark.guard
@pytest.mark.parametrize(
    ("unopened", "expected"),
    [
        ({}, {}),
        ({1: [], 2: []}, {}),
        ({1: [2]}, {1: (2,), 2: (1,)}),
        ({1: [2], 2: [1]}, {1: (2,), 2: (1,)}),
        ({1: [2], 3: [2]}, {1: (2,), 2: (1,)}),
        ({1: [2, 3, 4]}, {1: (2,), 2: (1,)}),
        ({1: [2, 3, 4, 5]}, {1: (2, 3, 4, 5)}),
        ({2: [1], 3: [1], 4: [1], 5: [1]}, {1: (2, 3, 4, 5)}),
        ({1: [2], 3: [2], 4: [5]}, {1: (2,), 2: (1,), 4: (5,), 5: (4,)}),
    ],
)
def test_of_two_in_dispute_both_go_and_alone_who_is_in_dispute_with_more_than_may_lie(unopened, expected):
    assert left_out(unopened, limits=LIMITS) == expected


@pytest.mark.parametrize("num", [2, 3])
def test_among_two_or_three_who_can_do_without_nobody_one_accusation_names_nobody_alone(num):
    assert left_out({1: [2]}, limits=dict.fromkeys(range(1, num + 1), 0)) == {1: (2,), 2: (1,)}


@pytest.mark.parametrize("num_liars", [1, 2, 3])
def test_whatever_liars_do_no_more_honest_clients_go_and_none_alone(num_liars):
    """Every dispute has a liar in it; if no more lie than the protocol bears."""
    rng = np.random.default_rng(num_liars)
    for _ in range(200):
        liars = set(rng.choice(np.arange(1, 11), num_liars, replace=False).tolist())
        pairs = [(a, b) for a in range(1, 11) for b in range(1, 11) if a != b and {a, b} & liars]
        unopened = {a: [] for a in range(1, 11)}
        for a, b in pairs:
            unopened[a] += [b] if rng.random() < 0.4 else []
        found = left_out(unopened, limits=LIMITS)
        assert not [a for a, others in unopened.items() for b in others if not {a, b} & found.keys()]
        assert len(found.keys() - liars) <= num_liars
        for number, others in found.items():
            assert number in liars or (len(others) == 1 and others[0] in liars and found[others[0]] == (number,))
