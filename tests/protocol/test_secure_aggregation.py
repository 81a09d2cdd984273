"""Masks cancel in the sum and hide everything else; shares give a secret from the threshold on; one client's vector."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st

from client.answer_record import question_hash
from client.secure.part import HistogramAmong, check_own_size, own_vector
from protocol.questions import LossQuery
from protocol.secure import cryptography as secure
from protocol.secure.questions import HistogramQuery
from riskband.answers.histogram import risk_histogram

QUESTION, OTHER_QUESTION = b"q" * 32, b"o" * 32
ROUTE = {"route": (1, 2), "group": b"g" * 32}


# Primitives.


@given(secret=st.binary(min_size=32, max_size=32), num=st.integers(2, 6), data=st.data())
@settings(max_examples=20)
def test_a_secret_comes_back_from_any_shares_at_the_threshold_and_from_no_fewer(secret, num, data):
    threshold = data.draw(st.integers(2, num))
    shares = secure.shares_of(secure.Secrets(bytes(32), secret, secret[:16]), range(num), threshold=threshold)
    held = data.draw(st.permutations(range(num)))[:threshold]
    seeds, keys = ({n + 1: shares[n][part] for n in held} for part in (slice(16), slice(16, None)))
    assert secure.combined(seeds) == secret[:16]
    assert secure.combined(keys) == secret
    if threshold > 2:
        assert secure.combined(dict(list(keys.items())[:-1])) != secret


@pytest.mark.parametrize("num", range(2, 40))
def test_the_threshold_is_more_than_two_thirds_and_leaves_a_server_short_of_both_secrets(num):
    """With c colluding members, both kinds of share need 2 (t - c) honest members of n - c: more than there are."""
    threshold, colluding = secure.threshold_of(num), (num - 1) // 3
    assert 2 * num / 3 < threshold <= num
    assert 2 * (threshold - colluding) > num - colluding
    # An honest survivor that does not confirm still shares a mask with one that does: 2 t - n - c >= 1.
    assert 2 * threshold - num - colluding >= 1


def test_a_mask_is_the_aes_counter_stream_of_its_key():
    """From the definition: AES of the counters 0, 1, … as big-endian blocks."""
    key = secure._derived(b"s" * 16, b"own mask" + QUESTION + secure.digest(3, [1, 2, 3]))
    encryptor = Cipher(AES(key), ECB()).encryptor()
    blocks = encryptor.update(b"".join(counter.to_bytes(16, "big") for counter in range(3)))
    found = secure.own_mask(b"s" * 16, 10, own=3, held={3, 1, 2}, question=QUESTION)
    np.testing.assert_array_equal(found, np.frombuffer(blocks, dtype="<u4")[:10])


def test_masks_of_a_pair_cancel_and_differ_for_every_pair_purpose_question_and_company():
    first, second, third = (secure.Secrets.fresh() for _ in range(3))
    own = {"own": 1, "held": {1, 2}, "question": QUESTION}
    forth = secure.pair_mask(first.masking, second.public.masking, 100, route=(1, 2), question=QUESTION)
    back = secure.pair_mask(second.masking, first.public.masking, 100, route=(2, 1), question=QUESTION)
    assert not np.any(forth + back)
    masks = [
        forth,
        secure.pair_mask(first.masking, second.public.masking, 100, route=(1, 2), question=OTHER_QUESTION),
        secure.pair_mask(first.masking, third.public.masking, 100, route=(1, 3), question=QUESTION),
        secure.own_mask(second.seed, 100, **own),
        *(
            secure.own_mask(first.seed, 100, **(own | change))
            for change in ({}, {"own": 2}, {"held": {1, 2, 3}}, {"question": OTHER_QUESTION})
        ),
    ]
    assert all(np.mean(a == b) < 0.05 for a, b in itertools.combinations(masks, 2))


def test_a_sealed_share_opens_on_its_route_only():
    sender, recipient, other = (secure.Secrets.fresh() for _ in range(3))
    message = secure.sealed(b"x" * secure.SHARE_BYTES, sender, recipient.public, **ROUTE)
    assert len(message) == secure.SEALED_BYTES
    assert secure.opened(message, recipient, sender.public, **ROUTE) == b"x" * secure.SHARE_BYTES
    with pytest.raises(ValueError, match="must open"):
        secure.opened(message, recipient, sender.public, route=(1, 2), group=b"h" * 32)
    changed = message[:-1] + bytes([message[-1] ^ 1])
    for arguments, route in (
        ((message, recipient, sender.public), (2, 1)),
        ((message, recipient, sender.public), (3, 2)),
        ((message, other, sender.public), (1, 2)),
        ((message, recipient, other.public), (1, 2)),
        ((changed, recipient, sender.public), (1, 2)),
        ((b"", recipient, sender.public), (1, 2)),
    ):
        with pytest.raises(ValueError, match="must open"):
            secure.opened(*arguments, route=route, group=ROUTE["group"])


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), b"short"])
def test_a_public_key_that_gives_a_known_secret_is_refused(key):
    """The points 0 and 1 have a small order: every private key gives the secret 0 with them."""
    with pytest.raises(ValueError, match="public key"):
        secure.pair_mask(secure.Secrets.fresh().masking, key, 4, route=(1, 2), question=QUESTION)
    assert not secure.is_public_key(key)


# The vector.


def query(**changes):
    fields = {"edges": (0.0, 0.25, 0.5, 1.0), "num_examples": 20}
    fields |= {"loss": "zero_one", "model": "mlp", "x_shape": (2,), "num_classes": 2}
    return HistogramQuery(**(fields | changes))


@pytest.mark.parametrize("eta", [None, 0.1])
def test_one_clients_vector_is_its_own_histogram(eta):
    sizes = {"num_examples": 20} if eta is None else {"num_examples": None, "eta": eta}
    asked = query(**sizes)
    vector = own_vector(asked, 0.3, 20, binary=True)
    expected = risk_histogram([0.3], 20, edges=asked.edges, binary=True, eta=eta)
    assert vector.tolist() == expected.ravel().tolist()
    assert len(vector) == asked.num_values
    assert vector.sum() == asked.num_rows


def test_a_client_with_another_number_of_examples_refuses_and_does_not_say_which():
    check_own_size(query(), 20)
    check_own_size(query(num_examples=None, eta=0.1), 7)
    with pytest.raises(ValueError, match="another number") as error:
        check_own_size(query(), 1234)
    assert "1234" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"edges": (0.0, 1.0, 0.5)},
        {"edges": (0.0, 0.5)},
        {"edges": (0.0,)},
        {"edges": (0.0, float("nan"), 1.0)},
        {"num_examples": None},
        {"eta": 0.1},
        {"num_examples": 0},
        {"num_examples": None, "eta": 0.9},
        {"num_examples": None, "eta": float("nan")},
        {"privacy": "laplace:1"},
    ],
)
def test_a_question_that_is_none_is_refused(changes):
    with pytest.raises(ValueError, match="must"):
        query(**changes)


def test_a_histogram_and_a_loss_are_different_questions_to_the_answer_record():
    asked = query()
    base = LossQuery(asked.loss, asked.model, asked.x_shape, asked.num_classes)
    hashes = {"model_hash": "m", "code_hash": "c", "examples_hash": "e"}
    found = {question_hash(each, **hashes) for each in (asked, base, query(edges=(0.0, 0.3, 1.0)))}
    assert len(found) == 3


def test_in_another_company_a_histogram_is_another_question():
    hashes = {"model_hash": "m", "code_hash": "c"}
    first, second = (HistogramAmong(**vars(query()), partners=name) for name in "ab")
    assert question_hash(first, **hashes, examples_hash="e") != question_hash(second, **hashes, examples_hash="e")


@pytest.mark.parametrize(
    "changes",
    [
        {"edges": (0.0, 0.25, 0.5000001, 1.0)},
        {"num_examples": 21},
        {"num_examples": None, "eta": 0.1},
        {"loss": "brier"},
        {"model": "cnn"},
        {"x_shape": (3,)},
        {"num_classes": 3},
        {"model_hash": "other"},
        {"code_hash": "other"},
        {"version": 2},
    ],
    ids=str,
)
def test_all_that_a_question_says_is_in_its_digest(changes):
    about = {"version": 1, "model_hash": "m", "code_hash": "c"}
    changed_about = {name: value for name, value in changes.items() if name in about}
    changed = {name: value for name, value in changes.items() if name not in about}
    assert query(**changed).digest(**(about | changed_about)) != query().digest(**about)
