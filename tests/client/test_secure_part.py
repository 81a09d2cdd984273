"""A client's part in a secure histogram: step by step, and what it refuses a server in each."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto

from client.secure.part import (
    CONSISTENCY,
    HISTOGRAM,
    MAX_HISTOGRAMS,
    OVER,
    UNMASK,
    Part,
    begun,
    confirmed,
    hidden,
    holding,
    min_clients_of,
    needs_complete_graph,
    revealed,
    shared,
)
from client.secure.state import keep, part_of
from protocol.secure import cryptography as secure
from protocol.secure.questions import ConsistencyQuery, HeldShares, SharesQuery, UnmaskQuery

NUM = 5
EVERYBODY = tuple(range(1, NUM + 1))
THRESHOLD = 4
VECTORS = {number: np.eye(8, dtype=np.int64)[number] for number in EVERYBODY}
QUESTION, OTHER_QUESTION = b"q" * 32, b"o" * 32


def shares_query(parts, own, **changes):
    members = {n: part.secrets.public for n, part in parts.items()}
    fields = {"own": own, "threshold": THRESHOLD, "members": members, "is_complete": True}
    return SharesQuery(**(fields | changes))


def after_shares():
    """The parts of all clients and what each sent, after the second round."""
    parts = {number: begun(1) for number in EVERYBODY}
    results = {number: shared(part, shares_query(parts, number), min_clients=3) for number, part in parts.items()}
    sent = {number: dict(zip(held.numbers, held.shares, strict=True)) for number, (_, held) in results.items()}
    return {number: part for number, (part, _) in results.items()}, sent


def received(sent, number, *, without=()):
    senders = tuple(other for other in EVERYBODY if other != number and other not in without)
    return HeldShares(senders, tuple(sent[sender][number] for sender in senders))


def held(part, shares, *, question=QUESTION, min_clients=3):
    return holding(part, shares, question=question, min_clients=min_clients)


def after_masks():
    parts, sent = after_shares()
    return {number: held(part, received(sent, number))[0] for number, part in parts.items()}


def confirmations(parts, lists, number):
    """What the others confirm to one, each by its own list."""
    macs = {other: confirmed(parts[other], lists[other], min_clients=3)[1] for other in lists if other != number}
    return UnmaskQuery({other: sent[number] for other, sent in macs.items() if number in sent})


def after_lists(lists):
    """The first client's part when all were told the same, and what the others confirm to it."""
    parts = after_masks()
    part, _ = confirmed(parts[1], lists, min_clients=3)
    return part, confirmations(parts, dict.fromkeys(lists.survivors, lists), 1)


# A client's part.


def test_the_masked_vectors_add_up_to_the_sum_under_own_masks():
    parts = after_masks()
    total = sum(np.frombuffer(hidden(part, VECTORS[number]), dtype=secure.WORD) for number, part in parts.items())
    own = sum(
        secure.own_mask(part.secrets.seed, 8, own=number, held=EVERYBODY, question=QUESTION)
        for number, part in parts.items()
    )
    np.testing.assert_array_equal(total - own, sum(VECTORS.values()))


def test_a_masked_vector_is_as_random_without_its_own_mask_and_without_its_neighbours_masks():
    part, zeros = after_masks()[1], np.zeros(20_000, dtype=np.int64)
    masked = np.frombuffer(hidden(part, zeros), dtype=secure.WORD)
    own = secure.own_mask(part.secrets.seed, zeros.size, own=1, held=EVERYBODY, question=QUESTION)
    for left in (masked, masked - own, own):
        bits = np.unpackbits(left.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005  # 10 standard deviations
        assert np.unique(left).size > 19_990


def test_only_secrets_of_one_kind_are_revealed_and_then_all_are_forgotten():
    part, query = after_lists(ConsistencyQuery(survivors=(1, 2, 3, 4), dropped=(5,)))
    after, seeds, keys = revealed(part, query)
    assert seeds == [part.held[n][: secure.SEED_BYTES] for n in (1, 2, 3, 4)]
    assert keys == [part.held[5][secure.SEED_BYTES :]]
    assert after == Part("1", OVER, secure.Secrets(b"", b"", b""))


UNFIT_MEMBERS = {
    "too few": lambda parts, q: {n: q.members[n] for n in (1, 2)},
    "without itself": lambda parts, q: {n: q.members[n] for n in (2, 3, 4, 5)},
    "other keys for itself": lambda parts, q: q.members | {1: secure.Secrets.fresh().public},
    "a key twice": lambda parts, q: q.members | {2: q.members[3]},
    "a key for both purposes": lambda parts, q: (
        q.members | {2: secure.PublicKeys(q.members[2].masking, q.members[2].masking)}
    ),
    "out of order": lambda parts, q: dict(reversed(q.members.items())),
}


@pytest.mark.parametrize("what", UNFIT_MEMBERS)
def test_members_that_do_not_fit_are_refused(what):
    parts = {number: begun(1) for number in EVERYBODY}
    query = shares_query(parts, 1)
    members = UNFIT_MEMBERS[what](parts, query)
    changed = SharesQuery(1, secure.threshold_of(len(members)), members, is_complete=True)
    with pytest.raises(ValueError, match="must"):
        shared(parts[1], changed, min_clients=3)


@pytest.mark.parametrize("threshold", [1, 2, 3, 5, 6])
def test_a_threshold_of_the_servers_choice_is_refused(threshold):
    parts = {number: begun(1) for number in EVERYBODY}
    with pytest.raises(ValueError, match="threshold"):
        shared(parts[1], shares_query(parts, 1, threshold=threshold), min_clients=3)


def test_shares_of_too_few_or_of_strangers_are_refused():
    parts, sent = after_shares()
    with pytest.raises(ValueError, match="at least 4 clients"):
        held(parts[1], received(sent, 1, without=(2, 3)))
    with pytest.raises(ValueError, match="at least 5 clients"):
        held(parts[1], received(sent, 1, without=(2,)), min_clients=5)
    assert held(parts[1], received(sent, 1, without=(2,)), min_clients=4)[0].awaits == CONSISTENCY
    with pytest.raises(ValueError, match="members"):
        held(parts[1], HeldShares((2, 3, 4, 9), (b"",) * 4))


def test_senders_whose_shares_do_not_open_are_named_and_share_no_mask():
    parts, sent = after_shares()
    wrong = received(sent, 1)
    part, unopened = held(parts[1], HeldShares(wrong.numbers, (b"", *wrong.shares[1:])))
    assert unopened == (2,)
    assert sorted(part.held) == [1, 3, 4, 5]
    without, _ = held(parts[1], received(sent, 1, without=(2,)))
    assert hidden(part, VECTORS[1]) == hidden(without, VECTORS[1])
    with pytest.raises(ValueError, match="at least 4 clients"):
        held(parts[1], HeldShares(wrong.numbers, wrong.shares[::-1]))


def test_shares_of_clients_that_were_told_other_members_do_not_open():
    """All have genuine keys; the third was told of a sixth client, and the others were not."""
    parts = {number: begun(1) for number in (*EVERYBODY, 6)}
    of_five = {number: parts[number] for number in EVERYBODY}
    lists = {number: parts if number == 3 else of_five for number in EVERYBODY}
    sent = {}
    for number in EVERYBODY:
        asked = shares_query(lists[number], number, threshold=secure.threshold_of(len(lists[number])))
        parts[number], shares = shared(parts[number], asked, min_clients=3)
        sent[number] = dict(zip(shares.numbers, shares.shares, strict=True))
    assert held(parts[1], received(sent, 1))[1] == (3,)
    with pytest.raises(ValueError, match="at least 5 clients"):
        held(parts[3], received(sent, 3))


@pytest.mark.parametrize(
    ("survivors", "dropped"),
    [
        ((1, 2, 3, 4, 5), (5,)),
        ((1, 2, 3, 4), (4, 5)),
        ((1, 2, 3, 4), ()),
        ((1, 1, 2, 3, 4), ()),
        ((1, 2, 3, 4), (5, 5)),
        ((2, 3, 4, 5), (1,)),
        ((1, 2, 3), (4, 5)),
        ((), (1, 2, 3, 4, 5)),
    ],
)
def test_lists_that_would_unmask_one_client_are_not_confirmed(survivors, dropped):
    with pytest.raises(ValueError, match="must"):
        confirmed(after_masks()[1], ConsistencyQuery(survivors, dropped), min_clients=3)


def test_a_survivor_whose_shares_a_client_does_not_hold_is_refused():
    parts, sent = after_shares()
    part, _ = held(parts[1], received(sent, 1, without=(2,)))
    with pytest.raises(ValueError, match="no mask"):
        confirmed(part, ConsistencyQuery(EVERYBODY, ()), min_clients=3)
    confirmed(part, ConsistencyQuery((1, 3, 4, 5), (2,)), min_clients=3)


ALL = ConsistencyQuery(EVERYBODY, ())
ONE_LESS = ConsistencyQuery((1, 2, 3, 4), (5,))
ONE_MORE = ConsistencyQuery(EVERYBODY, (6,))


@pytest.mark.parametrize("num_same", range(5))
def test_shares_are_revealed_when_the_threshold_confirms_the_same_lists(num_same):
    parts = after_masks()
    own, _ = confirmed(parts[1], ALL, min_clients=3)
    told = {other: ALL if place < num_same else ONE_MORE for place, other in enumerate((2, 3, 4, 5))}
    query = confirmations(parts, told, 1)
    if 1 + num_same >= THRESHOLD:
        assert len(revealed(own, query)[1]) == 5
    else:
        with pytest.raises(ValueError, match=f"got {1 + num_same}"):
            revealed(own, query)


def test_a_confirmation_counts_for_its_sender_recipient_question_and_group_only():
    parts, sent = after_shares()
    masks = {n: held(part, received(sent, n))[0] for n, part in parts.items()}
    own, _ = confirmed(masks[1], ALL, min_clients=3)
    right = confirmations(masks, dict.fromkeys((2, 3, 4, 5), ALL), 1)
    assert len(revealed(own, right)[1]) == 5
    asked_otherwise = {n: held(part, received(sent, n), question=OTHER_QUESTION)[0] for n, part in parts.items()}
    on_a_circle = {n: dataclasses.replace(part, is_complete=False) for n, part in masks.items()}
    wrong = {
        "nobody": {},
        "strangers": {number + 10: mac for number, mac in right.macs.items()},
        "its own": {1: right.macs[2], 2: right.macs[2], 3: right.macs[3]},
        "swapped": dict(zip(right.macs, reversed(right.macs.values()), strict=True)),
        "to another": confirmations(masks, dict.fromkeys((2, 3, 4, 5), ALL), 2).macs,
        "its own to others": confirmed(masks[1], ALL, min_clients=3)[1],
        "another question": confirmations(asked_otherwise, dict.fromkeys((2, 3, 4, 5), ALL), 1).macs,
        "another group": confirmations(on_a_circle, dict.fromkeys((2, 3, 4, 5), ALL), 1).macs,
        "short": {number: mac[:-1] for number, mac in right.macs.items()},
    }
    for macs in wrong.values():
        with pytest.raises(ValueError, match="must have confirmed"):
            revealed(own, UnmaskQuery(macs))


@pytest.mark.parametrize("least", [2, 0, -1, 2.5, "10", True])
def test_a_minimum_that_protects_nobody_is_refused(least):
    with pytest.raises(ValueError, match="secure-min-clients"):
        min_clients_of({"secure-min-clients": least})


def test_an_owner_may_insist_on_having_all_as_neighbours():
    parts = {number: begun(1) for number in EVERYBODY}
    on_a_circle = shares_query(parts, 1, is_complete=False)
    assert shared(parts[1], on_a_circle, min_clients=3)[0].awaits == HISTOGRAM
    with pytest.raises(ValueError, match="all participants must be neighbours"):
        shared(parts[1], on_a_circle, min_clients=3, needs_complete=True)
    assert needs_complete_graph({"secure-complete-graph": True})
    assert not needs_complete_graph({})
    with pytest.raises(ValueError, match="true or false"):
        needs_complete_graph({"secure-complete-graph": "yes"})


def test_the_minimum_is_the_owners_or_ten():
    assert min_clients_of({}) == 10
    assert min_clients_of({"secure-min-clients": 3}) == 3


# The state between rounds.


def context():
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def test_the_state_survives_flowers_serialisation():
    for part in (begun(2**64 - 1), *after_shares()[0].values(), *after_masks().values(), after_lists(ONE_LESS)[0]):
        before = context()
        keep(before, part)
        after = context_from_proto(context_to_proto(before))
        assert part_of(after, part.run_id, awaits=part.awaits) == part


def test_steps_come_once_and_in_order_in_each_run():
    here = context()
    assert part_of(here, 1, awaits=None) is None
    keep(here, begun(1))
    for wrong in (None, HISTOGRAM, CONSISTENCY, UNMASK, OVER):
        with pytest.raises(ValueError, match="once a run"):
            part_of(here, 1, awaits=wrong)
    for before in (after_shares()[0][1], begun(1, number=2)):
        keep(here, before)
        with pytest.raises(ValueError, match="once a run"):
            part_of(here, 1, awaits=None)


def test_a_client_begins_once_more_in_a_run_when_its_vector_was_sent():
    here = context()
    lists, _ = after_lists(ALL)
    over = revealed(*after_lists(ALL))[0]
    for part in (after_masks()[1], lists, over):
        keep(here, part)
        assert part_of(here, 1, awaits=None).number == 1
        keep(here, dataclasses.replace(part, number=MAX_HISTOGRAMS))
        with pytest.raises(ValueError, match="once a run"):
            part_of(here, 1, awaits=None)


def test_a_run_that_another_one_of_its_series_has_overtaken_does_not_go_on():
    here = context()
    for run_id in (1, 2, 3):
        assert part_of(here, run_id, awaits=None) is None
        keep(here, begun(run_id))
        for earlier in range(1, run_id):
            for awaits in (None, "shares"):
                with pytest.raises(ValueError, match="another one of its series"):
                    part_of(here, earlier, awaits=awaits)
        assert part_of(here, run_id, awaits="shares").run_id == str(run_id)


def test_no_text_shows_a_secret():
    part = after_masks()[1]
    for secret in (part.secrets.seed, part.secrets.masking, part.secrets.encryption):
        assert repr(secret) not in repr(part) + repr(part.secrets)
