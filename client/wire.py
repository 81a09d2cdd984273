"""The contract between server and client: queries and answers as Flower records.

Every string key that crosses the network is written here and nowhere else. A question and its
answer form a pair (`LossQuery`, `LossAnswer`), each with an ``encode_`` and a ``decode_`` function;
a new kind of question is a new pair that reuses the readers at the end of this file.
`docs/protocol.md` describes the messages in words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

import simulations

PROTOCOL_VERSION = 1

LOSS_ACTION = "loss"
LOSS_MESSAGE_TYPE = f"query.{LOSS_ACTION}"

ARRAYS_RECORD = "arrays"
QUERY_RECORD = "query"
ANSWER_RECORD = "answer"
IDENTITY_RECORD = "identity"

# Federated training speaks to flwr's own FedAvg, so these names are Flower's.
FEDAVG_ARRAYS_RECORD = "arrays"
FEDAVG_CONFIG_RECORD = "config"
FEDAVG_METRICS_RECORD = "metrics"
FEDAVG_ROUND_KEY = "server-round"
FEDAVG_LOSS_KEY = "train-loss"

VERSION_KEY = "protocol-version"
LOSS_KEY = "loss"
MODEL_KEY = "model"
X_SHAPE_KEY = "x-shape"
NUM_CLASSES_KEY = "num-classes"
RISK_KEY = "risk"
NUM_EXAMPLES_KEY = "num-examples"
CLIENT_ID_KEY = "client-id"
CODE_HASH_KEY = "code-hash"
MODEL_HASH_KEY = "model-hash"

# What decides a client's answer besides client/ itself; both ends must run the same text.
_ANSWERING_MODULES = ("checks.py", "datasets.py", "models.py", "population.py", "shifts.py")

_MAX_CLIENT_ID_LENGTH = 100

Record = TypeVar("Record", ArrayRecord, MetricRecord, ConfigRecord)
Value = TypeVar("Value", str, int, float)


@dataclass(frozen=True)
class LossQuery:
    """The question "what is this model's mean loss on your examples?".

    Attributes
    ----------
    loss : str
        A name in `client.losses.LOSSES`.
    model : str
        The architecture, a name that `simulations.models.build_model` knows.
    x_shape : tuple of int
        Shape of one example, such as ``(1, 8, 8)``.
    num_classes : int
        Number of classes the model tells apart.
    """

    loss: str
    model: str
    x_shape: tuple[int, ...]
    num_classes: int


@dataclass(frozen=True)
class LossAnswer:
    """One client's answer to a `LossQuery`; what it claims, not yet checked.

    Attributes
    ----------
    client_id : str
        The client's stable name (Flower's node ids change with every run).
    risk : float
        Mean loss on the client's examples; an honest one lies in [0, 1].
    num_examples : int
        How many examples the mean was taken over.
    loss : str
        The loss that was computed.
    code_hash, model_hash : str
        What computed it: `code_hash` and `model_hash` as seen by the client.
    """

    client_id: str
    risk: float
    num_examples: int
    loss: str
    code_hash: str
    model_hash: str


def encode_query(query: LossQuery, arrays: Mapping[str, np.ndarray] | ArrayRecord) -> RecordDict:
    """Return the content of the message that asks `query` about the model with these weights.

    Parameters
    ----------
    query : LossQuery
        The question.
    arrays : mapping of str to ndarray, or ArrayRecord
        The weights by name, as `simulations.models.model_arrays` returns them.
    """
    record = ConfigRecord(
        {
            VERSION_KEY: PROTOCOL_VERSION,
            LOSS_KEY: query.loss,
            MODEL_KEY: query.model,
            X_SHAPE_KEY: list(query.x_shape),
            NUM_CLASSES_KEY: query.num_classes,
        }
    )
    return RecordDict({ARRAYS_RECORD: to_array_record(arrays), QUERY_RECORD: record})


def decode_query(content: RecordDict) -> tuple[LossQuery, dict[str, np.ndarray]]:
    """Return the question and the model's weights from a message's content.

    Raises
    ------
    ValueError
        If a record or key is missing or ill-typed, or the sender speaks another protocol version.
    """
    record = _read_record(content, QUERY_RECORD, ConfigRecord)
    _check_version(record)
    query = LossQuery(
        loss=_read(record, QUERY_RECORD, LOSS_KEY, str),
        model=_read(record, QUERY_RECORD, MODEL_KEY, str),
        x_shape=_read_ints(record, QUERY_RECORD, X_SHAPE_KEY),
        num_classes=_read(record, QUERY_RECORD, NUM_CLASSES_KEY, int),
    )
    return query, to_arrays(_read_record(content, ARRAYS_RECORD, ArrayRecord))


def encode_answer(answer: LossAnswer) -> RecordDict:
    """Return the content of the reply that carries `answer`."""
    numbers = MetricRecord({RISK_KEY: float(answer.risk), NUM_EXAMPLES_KEY: int(answer.num_examples)})
    identity = ConfigRecord(
        {
            VERSION_KEY: PROTOCOL_VERSION,
            CLIENT_ID_KEY: answer.client_id,
            LOSS_KEY: answer.loss,
            CODE_HASH_KEY: answer.code_hash,
            MODEL_HASH_KEY: answer.model_hash,
        }
    )
    return RecordDict({ANSWER_RECORD: numbers, IDENTITY_RECORD: identity})


def decode_answer(content: RecordDict) -> LossAnswer:
    """Return the answer from a reply's content.

    The types are checked here, the claims (range, hashes, identity) by
    `strategies.query.QueryStrategy`, which knows what was asked.

    Raises
    ------
    ValueError
        If a record or key is missing or ill-typed, or the client speaks another protocol version.
    """
    identity = _read_record(content, IDENTITY_RECORD, ConfigRecord)
    _check_version(identity)
    numbers = _read_record(content, ANSWER_RECORD, MetricRecord)
    return LossAnswer(
        client_id=_read_client_id(identity),
        risk=_read(numbers, ANSWER_RECORD, RISK_KEY, float),
        num_examples=_read(numbers, ANSWER_RECORD, NUM_EXAMPLES_KEY, int),
        loss=_read(identity, IDENTITY_RECORD, LOSS_KEY, str),
        code_hash=_read(identity, IDENTITY_RECORD, CODE_HASH_KEY, str),
        model_hash=_read(identity, IDENTITY_RECORD, MODEL_HASH_KEY, str),
    )


def decode_training(content: RecordDict) -> tuple[dict[str, np.ndarray], int]:
    """Return the model's weights and the round number (from 1) from a message of flwr's FedAvg.

    Raises
    ------
    ValueError
        If a record or key is missing or ill-typed.
    """
    config = _read_record(content, FEDAVG_CONFIG_RECORD, ConfigRecord)
    server_round = _read(config, FEDAVG_CONFIG_RECORD, FEDAVG_ROUND_KEY, int)
    return to_arrays(_read_record(content, FEDAVG_ARRAYS_RECORD, ArrayRecord)), server_round


def encode_trained(arrays: Mapping[str, np.ndarray], *, num_examples: int, loss: float) -> RecordDict:
    """Return the reply that flwr's FedAvg averages with weight `num_examples`; `loss` in nats."""
    metrics = MetricRecord({FEDAVG_LOSS_KEY: float(loss), NUM_EXAMPLES_KEY: int(num_examples)})
    return RecordDict({FEDAVG_ARRAYS_RECORD: to_array_record(arrays), FEDAVG_METRICS_RECORD: metrics})


def to_array_record(arrays: Mapping[str, np.ndarray] | ArrayRecord) -> ArrayRecord:
    """Return named arrays as Flower's ArrayRecord, names and order kept."""
    if isinstance(arrays, ArrayRecord):
        return arrays
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def to_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the named arrays of an ArrayRecord, names and order kept."""
    return {name: array.numpy() for name, array in record.items()}


def model_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a model's weights: names, dtypes, shapes and bytes, in order of name.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The weights by name.

    Returns
    -------
    str
        64 hexadecimal digits; equal exactly when the models are equal bit for bit.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # The JSON line fixes the number of bytes that follow, so no two models share a stream.
        digest.update(json.dumps([name, array.dtype.str, np.shape(arrays[name])]).encode() + b"\n")
        digest.update(array.tobytes())
    return digest.hexdigest()


@cache
def code_hash() -> str:
    """Return the SHA-256 of the source text that computes an answer.

    That is every module of ``client`` and what builds a client's examples and model in
    ``simulations``. The server compares it with its own: Flower's simulation imports top-level
    packages from the SuperLink's working directory first, so another project's ``client`` can run
    in place of ours without any error.
    """
    client_folder = Path(__file__).parent
    simulations_folder = Path(simulations.__file__).parent
    files = {f"client/{p.relative_to(client_folder).as_posix()}": p for p in client_folder.rglob("*.py")}
    files |= {f"simulations/{name}": simulations_folder / name for name in _ANSWERING_MODULES}
    digest = hashlib.sha256()
    for name in sorted(files):
        text = files[name].read_bytes()
        digest.update(json.dumps([name, len(text)]).encode() + b"\n")
        digest.update(text)
    return digest.hexdigest()


def _check_version(record: ConfigRecord) -> None:
    version = record.get(VERSION_KEY)
    if version != PROTOCOL_VERSION:
        raise ValueError(
            f"{VERSION_KEY} must be {PROTOCOL_VERSION}, got {version!r}; "
            "install the same riskband on the server and on the clients"
        )


def _read_client_id(identity: ConfigRecord) -> str:
    client_id = _read(identity, IDENTITY_RECORD, CLIENT_ID_KEY, str)
    # Names end up in ledgers, tables and figures: no control characters, no novels.
    if not 1 <= len(client_id) <= _MAX_CLIENT_ID_LENGTH or not client_id.isprintable():
        raise ValueError(
            f"{CLIENT_ID_KEY} must be 1 to {_MAX_CLIENT_ID_LENGTH} printable characters, "
            f"got {len(client_id)} characters"
        )
    return client_id


def _read_record(content: RecordDict, name: str, kind: type[Record]) -> Record:
    record = content.get(name)
    if not isinstance(record, kind):
        raise ValueError(
            f"a message must hold the {kind.__name__} {name!r}, got {type(record).__name__}; "
            "the sender does not speak this protocol"
        )
    return record


def _read(record: MetricRecord | ConfigRecord, name: str, key: str, kind: type[Value]) -> Value:
    value = record.get(key)
    # bool is a subclass of int, but True is not a count.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name}[{key!r}] must be of type {kind.__name__}, got {type(value).__name__}")
    return value


def _read_ints(record: ConfigRecord, name: str, key: str) -> tuple[int, ...]:
    values = record.get(key)
    if isinstance(values, list):
        ints = tuple(value for value in values if type(value) is int)
        if len(ints) == len(values):
            return ints
    raise ValueError(f"{name}[{key!r}] must be a list of int, got {type(values).__name__}")
