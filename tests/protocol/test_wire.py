"""The contract survives flwr's own serialisation, and hashes see every bit."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from hypothesis import given
from hypothesis import strategies as st

import client
from protocol import wire
from protocol.codec import decode, encode, to_array_record, to_arrays
from protocol.hashes import code_hash, model_hash
from protocol.questions import (
    AdversarialAnswer,
    AdversarialQuery,
    Candidate,
    HelloAnswer,
    HelloQuery,
    LossAnswer,
    LossQuery,
)
from protocol.secure.cryptography import PublicKeys
from protocol.secure.questions import (
    ConsistencyAnswer,
    ConsistencyQuery,
    HeldShares,
    HistogramQuery,
    KeysAnswer,
    KeysQuery,
    MaskedAnswer,
    MaskedQuery,
    SharesAnswer,
    SharesQuery,
    UnmaskAnswer,
    UnmaskQuery,
)
from tests.transport import adversarial_query

QUERY = LossQuery(loss="brier", model="cnn", x_shape=(1, 8, 8), num_classes=10)
ARRAYS = {
    "conv.weight": np.random.default_rng(0).normal(size=(4, 1, 3, 3)).astype(np.float32),
    "norm.num_batches_tracked": np.array(7, dtype=np.int64),
    "empty": np.zeros((0, 2)),
}
names = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=100).filter(str.isprintable)


def sent(content):
    """Return what arrives after flwr's protobuf messages were made and read again."""
    return recorddict_from_proto(ProtoRecordDict.FromString(recorddict_to_proto(content).SerializeToString()))


def test_a_query_arrives_as_it_was_sent():
    content = sent(wire.encode_query(QUERY, ARRAYS))
    query, arrays = wire.decode_query(content, LossQuery), wire.decode_weights(content)
    assert query == QUERY
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert model_hash(arrays) == model_hash(ARRAYS)


@given(names, st.floats(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=20), st.none() | names)
def test_an_answer_arrives_as_it_was_sent(client_id, risk, num_examples, loss, group):
    answer = LossAnswer(client_id, risk, num_examples, loss, code_hash="c", model_hash="m", group=group)
    received = wire.decode_answer(sent(wire.encode_answer(answer)), LossAnswer)
    # Bitwise: repr shows the same for NaN and keeps every digit of a float.
    assert repr(received) == repr(answer)


ADVERSARIAL_QUERY = adversarial_query(
    "cross_entropy", "cnn", (1, 8, 8), 10, order=1, norm="linf", radii=(0.0, 0.1, 1 / 3), multipliers=(0.5,), head="9"
)


@pytest.mark.parametrize(
    "query",
    [
        ADVERSARIAL_QUERY,
        adversarial_query("zero_one", "mlp", (2,), 2, order=2),
        adversarial_query("zero_one", "mlp", (2,), 2, order=2, radii=[0, 1e-150, 1e150], adversary="exact"),
        adversarial_query("zero_one", "mlp", (2,), 2, order=1, space="input", box=[0, 1], seed=2**63 - 1),
        adversarial_query("zero_one", "mlp", (2,), 2, order=1, space="layer:1", distances=[0.1, 2], adversary="pgd"),
        adversarial_query("zero_one", "mlp", (2,), 2, order=2, free_distance=0.1),
    ],
)
def test_an_adversarial_query_arrives_as_it_was_sent(query):
    content = sent(wire.encode_query(query, ARRAYS))
    received, arrays = wire.decode_query(content, AdversarialQuery), wire.decode_weights(content)
    assert received == query
    assert model_hash(arrays) == model_hash(ARRAYS)


numbers = st.lists(st.floats(), max_size=5).map(tuple)


@given(names, numbers, numbers, st.floats(), st.none() | st.integers(0, 2**62), st.text(max_size=10), st.none() | names)
def test_an_adversarial_answer_arrives_as_it_was_sent(client_id, lower, upper, unit, left, guarantee, group):
    answer = AdversarialAnswer(
        client_id=client_id,
        num_examples=7,
        loss="brier",
        clean_risk=unit,
        values_lower=lower,
        values_upper=upper,
        conjugates_lower=upper,
        conjugates_upper=lower,
        adversarial_unit=unit,
        guarantee=guarantee,
        code_hash="c",
        model_hash="m",
        budget_left=left,
        group=group,
        num_without_gradient=left,
    )
    assert repr(wire.decode_answer(sent(wire.encode_answer(answer)), AdversarialAnswer)) == repr(answer)


@pytest.mark.parametrize("group", ["", "x" * 101, "two\nlines", 7, True])
def test_a_group_that_is_no_name_is_refused(group):
    content = wire.encode_answer(LossAnswer("a", 0.5, 4, "zero_one", "c", "m"))
    assert "group" not in content["answer"]  # None travels as no key
    content["answer"]["group"] = group
    with pytest.raises(ValueError, match="group"):
        wire.decode_answer(content, LossAnswer)


@pytest.mark.parametrize(
    ("grid", "rule"),
    [
        ((0.0, 0.0), "must increase strictly"),
        ((1.0, 0.5), "must increase strictly"),
        ((-1.0,), "must be 0 or from"),
        ((5e-324,), "must be 0 or from"),
        ((float("nan"),), "must be 0 or from"),
        ((float("inf"),), "must be 0 or from"),
    ],
)
@pytest.mark.parametrize("name", ["radii", "multipliers"])
def test_a_grid_is_checked_on_both_ends(name, grid, rule):
    with pytest.raises(ValueError, match=f"{name} {rule}"):
        adversarial_query("brier", "cnn", (1,), 2, order=1, **{name: grid})
    content = wire.encode_query(ADVERSARIAL_QUERY, ARRAYS)
    content["query"][name] = list(grid)
    with pytest.raises(ValueError, match=f"{name} {rule}"):
        wire.decode_query(content, AdversarialQuery)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("radii", [1, 2], r"query\['radii'\] must be a list of float"),
        ("radii", 0.5, r"query\['radii'\] must be a list of float"),
        ("order", 1.0, r"query\['order'\] must be of type int"),
        ("order", True, r"query\['order'\] must be of type int"),
        ("head", 3, r"query\['head'\] must be of type str"),
        ("box", [0.0, 1.0], "box and distances must not be given in representation space"),
        ("distances", [0.5], "box and distances must not be given in representation space"),
        ("distances", [0.0], "distances must be above 0"),
        ("distances", [2.0, 1.0], "distances must increase strictly"),
        ("distances", 1.0, r"query\['distances'\] must be a list of float"),
        ("box", [1.0, 0.0], "box must be finite with low < high"),
        ("box", [0.0], "box must be two numbers"),
        ("box", ["0", "1"], r"query\['box'\] must be a list of float"),
        ("seed", -1, "seed must be a whole number"),
        ("free-distance", 0.1, "free_distance must be 0 but for the 0-1 loss"),
        ("seed", 1.5, r"query\['seed'\] must be of type int"),
        ("space", "input", "head must be None in the space 'input'"),
        ("space", "layer:2", "head must be None in the space 'layer:2'"),
        ("protocol-version", 1, "protocol-version must be 3"),
    ],
)
def test_an_adversarial_query_that_breaks_the_protocol_is_refused(key, value, text):
    content = wire.encode_query(ADVERSARIAL_QUERY, ARRAYS)
    content["query"][key] = value
    with pytest.raises(ValueError, match=text):
        wire.decode_query(content, AdversarialQuery)


@pytest.mark.parametrize("box", [(1, 0), (0, 0), (0, float("nan")), (float("-inf"), 0), 3, "ab", (0, 1, 2), ("a", 1)])
def test_a_box_that_is_no_interval_is_refused(box):
    with pytest.raises(ValueError, match="box must be"):
        adversarial_query("zero_one", "mlp", (2,), 2, order=1, space="input", box=box)


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, True, None])
def test_a_seed_that_is_no_count_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be a whole number"):
        adversarial_query("zero_one", "mlp", (2,), 2, order=1, space="input", seed=seed)


def test_each_question_has_its_own_message_type():
    assert wire.message_type(QUERY) == "query.loss"
    assert wire.message_type(ADVERSARIAL_QUERY) == "query.adversarial_loss"
    with pytest.raises(ValueError, match="order"):
        wire.decode_query(wire.encode_query(QUERY, ARRAYS), AdversarialQuery)


def test_numpy_numbers_are_encoded_as_numbers():
    answer = LossAnswer("a", np.float64(0.25), np.int64(4), "zero_one", "c", "m")  # type: ignore[arg-type]
    assert wire.decode_answer(wire.encode_answer(answer), LossAnswer).num_examples == 4


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda c: c.pop("query"), "must hold the ConfigRecord 'query'"),
        (lambda c: c.pop("arrays"), "must hold the ArrayRecord 'arrays'"),
        (lambda c: c.update({"query": ArrayRecord()}), "must hold the ConfigRecord 'query', got ArrayRecord"),
        (lambda c: c["query"].update({"protocol-version": 999}), "protocol-version must be 3, got 999"),
        (lambda c: c["query"].pop("protocol-version"), "protocol-version must be 3, got None"),
        (lambda c: c["query"].pop("loss"), r"query\['loss'\] must be of type str, got NoneType"),
        (lambda c: c["query"].update({"model": 3}), r"query\['model'\] must be of type str, got int"),
        (lambda c: c["query"].update({"num-classes": True}), r"query\['num-classes'\] must be of type int"),
        (lambda c: c["query"].update({"x-shape": 8}), r"query\['x-shape'\] must be a list of int"),
        (lambda c: c["query"].update({"x-shape": [1.0]}), r"query\['x-shape'\] must be a list of int"),
        (lambda c: c["query"].update({"more": 1}), "query must have no other keys than a LossQuery has, got 'more'"),
    ],
)
def test_a_query_that_breaks_the_protocol_is_refused(edit, text):
    content = wire.encode_query(QUERY, ARRAYS)
    edit(content)
    with pytest.raises(ValueError, match=text):
        wire.decode_query(content, LossQuery), wire.decode_weights(content)


def test_the_training_messages_use_the_keys_of_flwrs_fedavg():
    content = wire.encode_query(QUERY, ARRAYS)
    content["config"] = ConfigRecord({"server-round": 3})
    arrays, server_round = wire.decode_training(content)
    assert server_round == 3
    reply = wire.encode_trained(arrays, num_examples=5, loss=0.5)
    assert dict(reply["metrics"]) == {"train-loss": 0.5, "num-examples": 5}
    assert model_hash(to_arrays(reply["arrays"])) == model_hash(ARRAYS)


def test_an_array_record_is_passed_through():
    record = ArrayRecord({"w": Array(np.ones(2))})
    assert to_array_record(record) is record


def test_the_model_hash_is_the_sha256_of_a_stream_anyone_can_rebuild():
    arrays = {"w": np.array([[1.0, 2.0]], dtype="<f4"), "b": np.array(3, dtype="<i8")}
    stream = b'["b", "<i8", []]\n' + bytes([3, 0, 0, 0, 0, 0, 0, 0])
    stream += b'["w", "<f4", [1, 2]]\n' + bytes.fromhex("0000803f00000040")
    assert model_hash(arrays) == hashlib.sha256(stream).hexdigest()


BASE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "v": np.zeros(3)}


@pytest.mark.parametrize(
    "other",
    [
        BASE | {"w": np.nextafter(BASE["w"], np.float32(np.inf))},
        BASE | {"w": BASE["w"].reshape(3, 2)},
        BASE | {"w": BASE["w"].astype(np.float64)},
        BASE | {"w": BASE["w"].view(np.int32)},
        BASE | {"v": -BASE["v"]},
        {"w": BASE["w"]},
        {"w2": BASE["w"], "v": BASE["v"]},
        {"w": BASE["v"], "v": BASE["w"]},
    ],
)
def test_the_model_hash_sees_every_difference(other):
    assert model_hash(other) != model_hash(BASE)


def test_the_model_hash_ignores_order_and_memory_layout():
    other = {"v": BASE["v"], "w": np.asfortranarray(BASE["w"])}
    assert model_hash(other) == model_hash(BASE)


def test_the_code_hash_belongs_to_the_text_of_the_sources(tmp_path):
    """A copy elsewhere has the same hash; one changed character in any answering module does not."""
    project = Path(client.__file__).parents[1]
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("client", "protocol", "worlds", "riskband"):
        shutil.copytree(project / package, tmp_path / package, ignore=ignored)
    script = """
from pathlib import Path
from protocol.hashes import code_hash
print(code_hash())
for name in (
    "client/app.py", "protocol/models.py", "worlds/shifts.py", "riskband/models/losses.py",
    "riskband/wording/__init__.py",
):
    Path(name).write_text(Path(name).read_text() + "#")
    code_hash.cache_clear()
    print(code_hash())
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    copied, *others, last = run.stdout.split()
    assert copied == code_hash()
    assert len({copied, *others}) == 5
    assert last == others[-1]  # sentences decide no answer


@given(names, st.one_of(st.none(), st.integers(0, 10**9)))
def test_a_hello_and_its_answer_arrive_as_they_were_sent(name, left):
    assert wire.decode_query(sent(wire.encode_query(HelloQuery())), HelloQuery) == HelloQuery()
    assert wire.decode_query(sent(wire.encode_query(HelloQuery("q"))), HelloQuery) == HelloQuery("q")
    answer = HelloAnswer(name, "code", left, on_record=left == 0)
    assert wire.decode_answer(sent(wire.encode_answer(answer)), HelloAnswer) == answer


def test_less_than_nothing_cannot_be_left():
    with pytest.raises(ValueError, match="budget-left must be at least 0, got -1"):
        wire.decode_answer(wire.encode_answer(HelloAnswer("a", "code", -1)), HelloAnswer)


KEYS = PublicKeys(b"e" * 32, b"m" * 32)
HELD = HeldShares((3, 1), (b"x", b"y"))
HISTOGRAM = HistogramQuery(**vars(QUERY), edges=(0.0, 0.5, 1.0), eta=0.1)
SIGNED = {"client_id": "a", "code_hash": "c"}
SECURE = {
    "secure_keys": (KeysQuery(), KeysAnswer(**SIGNED, keys=KEYS)),
    "secure_shares": (SharesQuery(1, 3, {1: KEYS, 4: KEYS}, is_complete=True), SharesAnswer(**SIGNED, sent=HELD)),
    "secure_histogram": (
        MaskedQuery(HISTOGRAM, HELD),
        MaskedAnswer(**SIGNED, loss="brier", model_hash="m", vector=b"1234", unopened=(2,)),
    ),
    "secure_consistency": (
        ConsistencyQuery((1, 2), ()),
        ConsistencyAnswer(**SIGNED, numbers=(2,), macs=(b"z",)),
    ),
    "secure_unmask": (UnmaskQuery({2: b"z"}), UnmaskAnswer(**SIGNED, seed_shares=(b"s",), key_shares=())),
}


@pytest.mark.parametrize("action", SECURE)
def test_the_messages_of_a_secure_histogram_arrive_as_they_were_sent(action):
    query, answer = SECURE[action]
    assert wire.message_type(query) == f"query.{action}"
    assert wire.decode_query(sent(wire.encode_query(query)), type(query)) == query
    assert wire.decode_answer(sent(wire.encode_answer(answer)), wire.answer_type(query)) == answer


@pytest.mark.parametrize(
    ("action", "key", "value", "text"),
    [
        ("secure_shares", "members-number", [1, 1], "must differ"),
        ("secure_shares", "members-number", [1], "one entry each, got 1, 2"),
        ("secure_shares", "members-masking", [b"m"], "one entry each, got 2, 1"),
        ("secure_shares", "members-masking", ["m", "m"], r"query\['members-masking'\] must be a list of bytes"),
        ("secure_shares", "is-complete", 1, r"query\['is-complete'\] must be of type bool, got int"),
        ("secure_histogram", "numbers", [3, 3], "must differ"),
        ("secure_histogram", "eta", None, "num_examples or eta"),
        ("secure_histogram", "company", "b", "no other keys than a MaskedQuery has, got 'company'"),
        ("secure_unmask", "macs", [], "one entry each, got 1, 0"),
    ],
)
def test_a_secure_question_that_breaks_the_protocol_is_refused(action, key, value, text):
    query = SECURE[action][0]
    content = wire.encode_query(query)
    content["query"].pop(key, None)
    if value is not None:
        content["query"][key] = value
    with pytest.raises(ValueError, match=text):
        wire.decode_query(content, type(query))


@dataclass(frozen=True)
class Outer:
    inner: Candidate
    more: tuple[float, float] | None = None


def test_a_dataclass_within_another_has_its_keys_beside_the_others():
    record = encode(Outer(Candidate("a", 1, "brier"), (0.5, 1.0)))
    assert dict(record) == {"protocol-version": 3, "name": "a", "weights": 1, "loss": "brier", "more": [0.5, 1.0]}
    assert decode(record, Outer, name="outer") == Outer(Candidate("a", 1, "brier"), (0.5, 1.0))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_sampling_weight_that_is_none_is_malformed(weight):
    content = wire.encode_answer(LossAnswer("a", 0.5, 4, "zero_one", "c", "m", sampling_weight=weight))
    with pytest.raises(ValueError, match="sampling-weight must be above 0 and finite"):
        wire.decode_answer(content, LossAnswer)
