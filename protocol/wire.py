"""The contract between server and client: which message asks which question and gets which answer, and their content.

What a question and its answer mean is said in `protocol.questions` and `protocol.secure.questions`, how they become
records in `protocol.codec`; `docs/protocol.md` describes the messages in words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from protocol import questions
from protocol.codec import decode, encode, plain, read, read_record, to_array_record, to_arrays
from protocol.secure import questions as secure
from riskband.answers.signing import Statement
from riskband.checks import RefusedError, json_object

MESSAGES: Mapping[type, tuple[str, type]] = {
    questions.LossQuery: ("loss", questions.LossAnswer),
    questions.AdversarialQuery: ("adversarial_loss", questions.AdversarialAnswer),
    questions.CandidatesQuery: ("candidates", questions.CandidatesAnswer),
    questions.ComparisonQuery: ("comparison", questions.ComparisonAnswer),
    questions.HelloQuery: ("hello", questions.HelloAnswer),
    secure.KeysQuery: ("secure_keys", secure.KeysAnswer),
    secure.SharesQuery: ("secure_shares", secure.SharesAnswer),
    secure.MaskedQuery: ("secure_histogram", secure.MaskedAnswer),
    secure.ConsistencyQuery: ("secure_consistency", secure.ConsistencyAnswer),
    secure.UnmaskQuery: ("secure_unmask", secure.UnmaskAnswer),
}
"""By question: the action of Flower's message, and what answers it. Those of a secure histogram in order of rounds."""

ARRAYS_RECORD, QUERY_RECORD, ANSWER_RECORD = "arrays", "query", "answer"
KEPT_RECORD, _HASH_KEY = "kept", "model-hash"
SIGNATURE_RECORD, _SIGNATURE_KEY = "signature", "signature"

# A longer text is not read as a refusal: a name, a hash and some lines of words are shorter.
_LONGEST_REFUSAL = 20_000

UNKNOWN_MODEL = "the weights with this hash must be sent: this client does not keep them"

Decoded = TypeVar("Decoded")


@dataclass(frozen=True)
class Refusal:
    """Why a client gives no answer; the text of Flower's error reply, as JSON."""

    client_id: str | None  # the client's name; None if its own config gives it none that is valid
    code_hash: str  # as of `LossAnswer`
    text: str  # which rule was broken, in words that may travel
    signature: bytes = b""


def action(question: type) -> str:
    """Return what Flower's `ClientApp.query` calls a question of this class."""
    return MESSAGES[question][0]


def message_type(query: object) -> str:
    """Return the type of the message that asks `query`."""
    return f"query.{action(type(query))}"


def answer_type(query: object) -> type:
    """Return the class of the answers to `query`."""
    return MESSAGES[type(query)][1]


class UnknownModelError(RefusedError):
    """A client was sent the hash of weights that it does not keep: it is to be sent them; nothing is spent on that."""

    def __init__(self) -> None:
        super().__init__(UNKNOWN_MODEL)


def unguessable(round: str | int) -> str:
    """Return the group id of one message of a round: nobody else knows it, and so neither Flower's id of the message.

    Whoever knows that id can reply to the message, in the name of the node that it went to.
    """
    return f"{round}-{token_hex(16)}"


def round_of(group_id: str) -> str:
    """Return the round of a message."""
    return group_id.partition("-")[0]


def encode_query(query: object, arrays: Mapping[str, np.ndarray] | ArrayRecord | str | None = None) -> RecordDict:
    """Return the content of the message that asks `query`, one of `MESSAGES`.

    With it go the weights of the model that it is about, if it is about one, as `protocol.models.model_arrays` returns
    them, or of several models `protocol.weight_sets.joined`. To a client that keeps them goes their hash.
    """
    content = RecordDict({QUERY_RECORD: encode(query)})
    if isinstance(arrays, str):
        content[KEPT_RECORD] = _kept(arrays)
    elif arrays is not None:
        content[ARRAYS_RECORD] = to_array_record(arrays)
    return content


def decode_query(content: RecordDict, kind: type[Decoded]) -> Decoded:
    """Return the question of this class from a message's content; raises ValueError as `protocol.codec.decode`."""
    return decode(read_record(content, QUERY_RECORD, ConfigRecord), kind, name=QUERY_RECORD)


def decode_weights(content: RecordDict) -> dict[str, np.ndarray]:
    """Return the model's weights from a message's content; raises ValueError if there are none."""
    return to_arrays(read_record(content, ARRAYS_RECORD, ArrayRecord))


def kept_hash(content: RecordDict) -> str | None:
    """Return the hash of weights that a client keeps: in a question in their place, in a reply beside the answer."""
    record = content.get(KEPT_RECORD)
    found = record.get(_HASH_KEY) if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, str) else None


def encode_answer(answer: object, *, kept: str | None = None) -> RecordDict:
    """Return the content of the reply that carries `answer`; with it goes the hash of the weights that are kept."""
    content = RecordDict({ANSWER_RECORD: encode(answer)})
    if kept is not None:
        content[KEPT_RECORD] = _kept(kept)
    return content


def _kept(model_hash: str) -> ConfigRecord:
    return ConfigRecord({_HASH_KEY: model_hash})


def decode_answer(content: RecordDict, kind: type[Decoded]) -> Decoded:
    """Return the answer of this class from a reply's content; raises ValueError as `protocol.codec.decode`.

    Only types and names are checked here; the claims (range, hashes, identity) are by `strategies.asking.rules`, where
    it is known what was asked.
    """
    return decode(read_record(content, ANSWER_RECORD, ConfigRecord), kind, name=ANSWER_RECORD)


def claimed_name(content: RecordDict) -> str | None:
    """Return the name that a reply gives, however wrong the rest of it is; None if there is none that is valid."""
    answer = content.get(ANSWER_RECORD)
    name = answer.get("client-id") if isinstance(answer, ConfigRecord) else None
    return name if isinstance(name, str) and questions.is_name(name) else None


def encode_refusal(refusal: Refusal) -> str:
    """Return the text of the error reply that carries a refusal."""
    signature = {_SIGNATURE_KEY: refusal.signature.hex()} if refusal.signature else {}
    return json.dumps(_fields_of(refusal) | signature, ensure_ascii=False)


def _fields_of(refusal: Refusal) -> dict[str, str]:
    name = {} if refusal.client_id is None else {"client-id": refusal.client_id}
    return {"refusal": refusal.text, **name, "code-hash": refusal.code_hash}


def decode_refusal(reason: str) -> Refusal | None:
    """Return the refusal that the text of an error reply carries, None if it is another text."""
    if len(reason) > _LONGEST_REFUSAL or not reason.startswith("{"):
        return None
    fields = json_object(reason) or {}
    name, code, text = (fields.get(key) for key in ("client-id", "code-hash", "refusal"))
    if not (isinstance(text, str) and isinstance(code, str)):
        return None
    signature = b""
    with suppress(TypeError, ValueError):  # what is no signature is none
        signature = bytes.fromhex(fields.get(_SIGNATURE_KEY, ""))
    return Refusal(name if isinstance(name, str) and questions.is_name(name) else None, code, text, signature)


def statement_of(reply: Message, message: Message) -> Statement | None:
    """Return what a client states that signs a reply to a message; None if that is neither an answer nor a refusal."""
    about, asked, said = message.metadata, message.content.get(QUERY_RECORD), _said(reply)
    question = {"type": about.message_type, **(plain(asked) if isinstance(asked, ConfigRecord) else {})}
    return None if said is None else Statement(str(about.run_id), about.group_id, question, said)


def _said(reply: Message) -> dict[str, Any] | None:
    if reply.has_error():
        refusal = decode_refusal(reply.error.reason or "")
        return None if refusal is None else _fields_of(refusal)
    answer = reply.content.get(ANSWER_RECORD)
    return plain(answer) if isinstance(answer, ConfigRecord) else None


def with_signature(reply: Message, signature: bytes, *, reply_to: Message) -> Message:
    """Return an answer or a refusal with its client's signature."""
    if reply.has_error():
        refusal = decode_refusal(reply.error.reason or "")
        assert refusal is not None
        return Message(
            Error(reply.error.code, encode_refusal(replace(refusal, signature=signature))), reply_to=reply_to
        )
    reply.content[SIGNATURE_RECORD] = ConfigRecord({_SIGNATURE_KEY: signature})
    return reply


def signature_of(reply: Message) -> bytes:
    """Return the signature of an answer or a refusal, empty if there is none that can be read."""
    if reply.has_error():
        refusal = decode_refusal(reply.error.reason or "")
        return b"" if refusal is None else refusal.signature
    record = reply.content.get(SIGNATURE_RECORD)
    found = record.get(_SIGNATURE_KEY) if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, bytes) else b""


def decode_training(content: RecordDict) -> tuple[dict[str, np.ndarray], int]:
    """Return the model's weights and the round number (from 1) from a message of flwr's FedAvg, whose keys these are.

    Raises ValueError if a record or key is missing or ill-typed.
    """
    config = read_record(content, "config", ConfigRecord)
    return decode_weights(content), read(config, "config", "server-round", int)


def encode_trained(arrays: Mapping[str, np.ndarray], *, num_examples: int, loss: float) -> RecordDict:
    """Return the reply that flwr's FedAvg averages with weight `num_examples`; `loss` in nats."""
    metrics = MetricRecord({"train-loss": float(loss), "num-examples": int(num_examples)})
    return RecordDict({ARRAYS_RECORD: to_array_record(arrays), "metrics": metrics})


def num_training_examples(content: RecordDict) -> int:
    """Return how many examples the model in a reply was trained on, 0 where none did; raises ValueError as `read`."""
    metrics: Any = read_record(content, "metrics", MetricRecord)
    return read(metrics, "metrics", "num-examples", int)
