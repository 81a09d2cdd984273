"""The server gets the sum, and nothing else: whoever drops out, whatever a client sends, whatever a server asks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message

import riskband as rb
from protocol import wire
from protocol.secure.cryptography import KEY_BYTES, SEED_BYTES, WORD
from protocol.secure.questions import MaskedAnswer, SharesAnswer
from riskband.flower.testing import Delivery
from strategies.asking.query import QuorumError
from strategies.secure.secure_sum import neighbourhoods
from tests.strategies.network import name_of
from tests.strategies.secure_network import (
    ACTIONS,
    NUM_EXAMPLES,
    Recording,
    adding,
    changing,
    raising_in,
    risk_of,
    run,
    silent_in,
    strategy,
)

NUM = 10
TOLERATED = 3  # of 10 members, 7 must give their shares
LATE = ("secure_consistency", "secure_unmask")  # the vector has been sent


def plain_counts(partitions, num_bins=NUM_EXAMPLES + 1):
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    return rb.risk_histogram([risk_of(k) for k in partitions], NUM_EXAMPLES, edges=edges, binary=True)


def plain_band(partitions, **who):
    risks = rb.ClientRisks([risk_of(k) for k in partitions], NUM_EXAMPLES, True, **who)
    return rb.band(risks, delta=0.1 / 2, method="dkw")  # the mean has the other half


def bytes_of(message):
    """Every list of bytes and every bytes that a message carries."""
    for record in message.content.config_records.values():
        for value in record.values():
            parts = value if isinstance(value, list) else [value]
            yield from (part for part in parts if isinstance(part, bytes))


def masked_answers(grid):
    replies = [reply for reply in grid.replies if not reply.has_error()]
    of_round = "query.secure_histogram"
    found = [wire.decode_answer(r.content, MaskedAnswer) for r in replies if r.metadata.message_type == of_round]
    return {answer.client_id: np.frombuffer(answer.vector, dtype=WORD) for answer in found}


@pytest.mark.parametrize("num_gone", [0, 1, TOLERATED])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_sum_is_that_of_those_who_sent_a_vector(action, num_gone):
    gone = range(num_gone)
    found, grid = run(NUM, {k: raising_in(action) for k in gone})
    counted = range(NUM) if action in LATE else range(num_gone, NUM)
    assert found.outcome.counts == (tuple(plain_counts(counted).tolist()),)
    assert [answer.client_id for answer in found.outcome.answers] == [name_of(k) for k in counted]
    assert len(found.outcome.failures) == NUM - len(counted)
    assert len(found.outcome.late_failures) == (num_gone if action in LATE else 0)
    plain = plain_band(counted, num_missing=NUM - len(counted))
    np.testing.assert_allclose(found.band.lower(np.linspace(0, 1, 101)), plain.lower(np.linspace(0, 1, 101)), atol=1e-9)
    np.testing.assert_allclose(found.band.upper(np.linspace(0, 1, 101)), plain.upper(np.linspace(0, 1, 101)), atol=1e-9)
    assert len(grid.replies) == sum(NUM - (num_gone if done else 0) for done in gone_before(action))
    assert_nothing_but_the_sum_is_told(grid, counted)


def gone_before(action):
    """For each round, whether those who drop out in that of `action` are no longer asked."""
    return [ACTIONS.index(action) < number for number in range(5)]


def assert_nothing_but_the_sum_is_told(grid, counted):
    """Of all bytes that reached the server: no plain vector, no secret, no share of both kinds of one client's."""
    received = b"|".join(part for reply in grid.replies if not reply.has_error() for part in bytes_of(reply))
    masked = masked_answers(grid)
    for partition in counted:
        plain = plain_counts([partition]).astype(WORD)
        assert plain.tobytes() not in received
        assert not np.any(masked[name_of(partition)] == plain)  # 21 coincidences in 2**32
    sum_of_masked = np.sum([masked[name_of(k)] for k in counted], axis=0, dtype=WORD)
    assert not np.any(sum_of_masked == plain_counts(counted))
    secrets = {
        state["secure-part"][key]
        for state in grid.states
        if "secure-part" in state
        for key in ("encryption", "masking", "seed")
    } - {b""}
    assert len(secrets) == 3 * sum("secure-part" in state for state in grid.states[-NUM:])
    assert not any(secret in received for secret in secrets)
    assert_shares_of_one_kind(grid, received)


def assert_shares_of_one_kind(grid, received):
    held = [state["secure-part"]["held"] for state in grid.states if "secure-part" in state]
    of_both_kinds = {(s[:SEED_BYTES], s[SEED_BYTES:]) for shares in held for s in shares}
    assert {len(key) for _, key in of_both_kinds} == {KEY_BYTES}
    assert not any(seed in received and key in received for seed, key in of_both_kinds)


def test_the_state_of_all_who_finished_holds_no_secret():
    _, grid = run(NUM)
    for state in grid.states[-NUM:]:
        assert state["secure-part"]["awaits"] == "over"
        assert not any(state["secure-part"][key] for key in ("encryption", "masking", "seed"))
        assert state["secure-part"]["held"] == []


def test_masked_vectors_look_random_and_are_new_in_every_run():
    """Bits of 30 vectors of 500 words are fair to 5 standard deviations, also where the plain vector has its one."""
    first, second = (masked_answers(run(30, num_bins=500, num_examples=None, num_neighbours=6)[1]) for _ in range(2))
    vectors = np.stack([first[name] for name in sorted(first)])
    assert vectors.shape == (30, 1500)
    for words in (vectors, vectors - np.stack([second[name] for name in sorted(second)])):
        bits = np.unpackbits(words.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)
    edges = np.linspace(0.0, 1.0, 501)
    plain = np.stack(
        [rb.risk_histogram([risk_of(k)], NUM_EXAMPLES, edges=edges, binary=True, eta=0.05).ravel() for k in range(30)]
    )
    at_ones = vectors[plain == 1].astype(np.float64) / 2**32
    assert abs(at_ones.mean() - 0.5) < 5 / np.sqrt(12 * at_ones.size)
    correlations = [
        np.corrcoef(vector.astype(np.float64), one)[0, 1] for vector, one in zip(vectors, plain, strict=True)
    ]
    assert abs(np.mean(correlations)) < 5 / np.sqrt(30 * 1500)


@pytest.mark.parametrize("action", ACTIONS[1:])
def test_one_drop_out_too_many_and_nothing_is_concluded(action):
    with pytest.raises(QuorumError, match=r"valid answers|must give their share|must hold a share"):
        run(NUM, {k: raising_in(action) for k in range(TOLERATED + 1)})


@pytest.mark.usefixtures("idle_clock")
def test_silent_clients_are_waited_for_and_then_left_out():
    found, _ = run(NUM, {0: silent_in("secure_histogram"), 1: silent_in("secure_unmask")}, reply_timeout=4.0)
    assert found.outcome.counts == (tuple(plain_counts(range(1, NUM)).tolist()),)
    assert [(f.client_id, f.reason.value) for f in found.outcome.failures] == [(name_of(0), "no-reply")]
    assert [(f.client_id, f.reason.value) for f in found.outcome.late_failures] == [(name_of(1), "no-reply")]


@pytest.mark.parametrize("action", ACTIONS[1:])
def test_neighbourhoods_give_the_same_sum_with_drop_outs(action):
    gone = (3, 11)
    found, grid = run(24, {k: raising_in(action) for k in gone}, num_neighbours=8, quorum=0.9)
    counted = [k for k in range(24) if k not in gone or action in LATE]
    assert found.outcome.counts == (tuple(plain_counts(counted).tolist()),)
    sent = [r for r in grid.replies if r.metadata.message_type == "query.secure_shares"]
    assert {len(wire.decode_answer(r.content, SharesAnswer).sent.shares) for r in sent if not r.has_error()} == {8}


def test_private_numbers_of_examples_give_the_band_of_their_limits():
    found, _ = run(NUM, num_examples=None, num_bins=1000)
    histogram = found.band.answers
    edges = np.linspace(0.0, 1.0, 1001)
    risks = [risk_of(k) for k in range(NUM)]
    expected = rb.risk_histogram(risks, NUM_EXAMPLES, edges=edges, binary=True, eta=histogram.eta)
    np.testing.assert_array_equal(histogram.counts, expected)
    assert all(rb.verify(certificate).ok for certificate in found.certificates.values())


def test_certificates_do_not_depend_on_masks_or_on_the_order_of_replies():
    texts = [
        {name: each.to_json() for name, each in run(NUM, grid=Recording(NUM, seed=seed))[0].certificates.items()}
        for seed in (1, 2)
    ]
    assert texts[0] == texts[1]
    assert all('"certificate"' in text for text in texts[0].values())


# Clients that lie.


@pytest.mark.parametrize("change", [{0: 1}, {0: -1}, {0: 5, 1: -4}, {3: 2**31}], ids=str)
def test_counts_that_do_not_add_up_end_the_run(change):
    with pytest.raises(ValueError, match="do not add up"):
        run(NUM, {4: adding(change)})


def test_a_count_below_zero_ends_the_run_even_if_the_sum_is_right():
    empty = int(np.flatnonzero(plain_counts(range(NUM)) == 0)[0])
    with pytest.raises(ValueError, match="do not add up"):
        run(NUM, {4: adding({empty: -1, 0: 1})})


def test_counts_that_one_client_moves_go_unnoticed_and_contamination_covers_them():
    """What is not protected: the sum stays right. It is as many wrong answers as counts are moved."""
    counts = plain_counts(range(NUM))
    worst, best = int(np.flatnonzero(counts)[-1]), 0
    found, _ = run(NUM, {4: adding({worst: -1, best: 1})}, contamination=1)
    assert found.outcome.counts != (tuple(counts.tolist()),)
    true_band = plain_band(range(NUM))
    points = np.linspace(0.0, 1.0, 201)
    assert np.all(found.band.lower(points) <= true_band.lower(points) + 1e-9)
    assert np.all(found.band.upper(points) >= true_band.upper(points) - 1e-9)


def test_wrong_shares_end_the_run():
    def spoil(record):
        record["seed-shares"] = [bytes(SEED_BYTES)] * len(record["seed-shares"])
        record["key-shares"] = [bytes(KEY_BYTES)] * len(record["key-shares"])

    with pytest.raises(ValueError, match="do not add up"):
        run(NUM, {0: changing("secure_unmask", spoil)})
    with pytest.raises(ValueError, match="do not add up"):
        run(NUM, {0: changing("secure_unmask", spoil), 9: raising_in("secure_histogram")})


def drop_last(key):
    def change(record):
        record[key] = record[key][:-1]

    return change


MALFORMED = {
    "keys of nobody": ("secure_keys", lambda r: r.pop("masking"), "malformed"),
    "a share too few": ("secure_shares", drop_last("shares"), "malformed"),
    "shares for others": (
        "secure_shares",
        lambda r: r.update({"numbers": [n + 100 for n in r["numbers"]]}),
        "wrong-length",
    ),
    "a short vector": ("secure_histogram", drop_last("vector"), "wrong-length"),
    "text for a vector": ("secure_histogram", lambda r: r.update({"vector": "x"}), "malformed"),
}


@pytest.mark.guard
@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_answers_are_refused_and_the_others_counted(what):
    action, change, reason = MALFORMED[what]
    found, _ = run(NUM, {2: changing(action, change)})
    assert [failure.reason.value for failure in found.outcome.failures] == [reason]
    assert found.outcome.counts == (tuple(plain_counts([k for k in range(NUM) if k != 2]).tolist()),)


def test_short_shares_are_a_late_failure():
    found, _ = run(NUM, {2: changing("secure_unmask", drop_last("seed-shares"))})
    assert [failure.reason.value for failure in found.outcome.late_failures] == ["wrong-length"]


def about_another_model(message, answer):
    reply = answer(message)
    if message.metadata.message_type == "query.secure_histogram":
        found = wire.decode_answer(reply.content, MaskedAnswer)
        reply = Message(wire.encode_answer(replace(found, model_hash="x")), reply_to=message)
    return [Delivery(reply)]


def test_a_vector_about_another_model_is_not_added():
    found, _ = run(NUM, {2: about_another_model})
    assert [failure.reason.value for failure in found.outcome.failures] == ["wrong-model"]


# Servers that ask too much.


def test_a_client_answers_once_a_run_and_once_more():
    """The second time as in a group, which looks like all to it."""
    grid = Recording(NUM)
    for _ in range(2):
        assert len(run(NUM, grid=grid)[0].outcome.answers) == NUM
    with pytest.raises(QuorumError, match="once a run"):
        run(NUM, grid=grid)


def test_clients_that_want_more_company_refuse():
    grid = Recording(NUM, node_config={"secure-min-clients": NUM + 1})
    with pytest.raises(QuorumError, match="at least 11 clients must take part"):
        run(NUM, grid=grid)
    with pytest.raises(QuorumError, match="at least 10 clients must take part"):
        run(6, grid=Recording(6, node_config={}))


@pytest.mark.parametrize("setting", [{"privacy": "laplace:1"}, {"respect_budgets": True}], ids=str)
def test_what_needs_single_answers_is_refused(setting):
    with pytest.raises(ValueError, match="no single answer is ever seen"):
        strategy(NUM, **setting)


# Neighbourhoods.


@pytest.mark.parametrize(("num_clients", "num_neighbours"), [(2, 2), (7, 6), (7, 8), (25, 6), (101, 50)])
def test_neighbourhoods_are_symmetric_regular_and_connected(num_clients, num_neighbours):
    found = neighbourhoods(num_clients, num_neighbours=num_neighbours, rng=np.random.default_rng(0))
    assert set(found) == set(range(1, num_clients + 1))
    size = min(num_clients, num_neighbours + 1)
    for number, members in found.items():
        assert len(set(members)) == size
        assert number in members
        assert list(members) == sorted(members)
        assert all(number in found[member] for member in members)
    reached, new = {1}, {1}
    while new:
        new = {member for number in new for member in found[number]} - reached
        reached |= new
    assert len(reached) == num_clients


def test_neighbourhoods_are_random():
    first, second = (neighbourhoods(60, num_neighbours=4, rng=np.random.default_rng(seed)) for seed in (0, 1))
    assert Counter(first.values()) != Counter(second.values())


@pytest.mark.parametrize(("num_clients", "num_neighbours"), [(5, 3), (5, 0), (1, 2)])
def test_impossible_neighbourhoods_are_refused(num_clients, num_neighbours):
    with pytest.raises(ValueError, match="must be even"):
        neighbourhoods(num_clients, num_neighbours=num_neighbours, rng=np.random.default_rng(0))
