"""The contract between server and client: queries and answers as Flower records.

Every string key that crosses the network is written here and nowhere else (those of federated training, which are
Flower's, in `protocol.fedavg`); what a question and its answer mean is said in `protocol.questions`. `docs/protocol.md`
describes the messages in words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protocol.fedavg import decode_training, encode_trained
from protocol.hashes import code_hash, model_hash
from protocol.questions import (
    AdversarialAnswer,
    AdversarialQuery,
    Answer,
    Candidate,
    CandidatesAnswer,
    CandidatesQuery,
    HelloAnswer,
    HelloQuery,
    LossAnswer,
    LossQuery,
    Query,
    candidates_of,
)
from protocol.records import is_name, read, read_list, read_name, read_record, to_array_record, to_arrays
from riskband.adversaries.problem import TransportProblem, checked_box

__all__ = [
    "AdversarialAnswer",
    "AdversarialQuery",
    "Answer",
    "Candidate",
    "CandidatesAnswer",
    "CandidatesQuery",
    "HelloAnswer",
    "HelloQuery",
    "LossAnswer",
    "LossQuery",
    "Query",
    "Refusal",
    "claimed_name",
    "code_hash",
    "decode_adversarial_answer",
    "decode_adversarial_query",
    "decode_answer",
    "decode_candidates_answer",
    "decode_candidates_query",
    "decode_hello",
    "decode_hello_answer",
    "decode_query",
    "decode_refusal",
    "decode_training",
    "encode_answer",
    "encode_hello",
    "encode_hello_answer",
    "encode_query",
    "encode_refusal",
    "encode_trained",
    "is_name",
    "message_type",
    "model_hash",
    "to_array_record",
    "to_arrays",
]

PROTOCOL_VERSION = 2

LOSS_ACTION = "loss"
LOSS_MESSAGE_TYPE = f"query.{LOSS_ACTION}"
ADVERSARIAL_ACTION = "adversarial_loss"
ADVERSARIAL_MESSAGE_TYPE = f"query.{ADVERSARIAL_ACTION}"
CANDIDATES_ACTION = "candidates"
CANDIDATES_MESSAGE_TYPE = f"query.{CANDIDATES_ACTION}"
HELLO_ACTION = "hello"
HELLO_MESSAGE_TYPE = f"query.{HELLO_ACTION}"

ARRAYS_RECORD = "arrays"
QUERY_RECORD = "query"
ANSWER_RECORD = "answer"
IDENTITY_RECORD = "identity"

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
PRIVACY_KEY = "privacy"

ORDER_KEY = "order"
NORM_KEY = "norm"
RADII_KEY = "radii"
MULTIPLIERS_KEY = "multipliers"
HEAD_KEY = "head"
SPACE_KEY = "space"
ADVERSARY_KEY = "adversary"
BOX_KEY = "box"
SEED_KEY = "seed"
DISTANCES_KEY = "distances"
CLEAN_RISK_KEY = "clean-risk"
VALUES_LOWER_KEY = "values-lower"
VALUES_UPPER_KEY = "values-upper"
CONJUGATES_LOWER_KEY = "conjugates-lower"
CONJUGATES_UPPER_KEY = "conjugates-upper"
ADVERSARIAL_UNIT_KEY = "adversarial-unit"
NUM_WITHOUT_GRADIENT_KEY = "num-without-gradient"
GUARANTEE_KEY = "guarantee"
BUDGET_LEFT_KEY = "budget-left"
QUESTION_KEY = "question"
ON_RECORD_KEY = "on-record"
GROUP_KEY = "group"
CANDIDATE_NAMES_KEY = "candidate-names"
CANDIDATE_WEIGHTS_KEY = "candidate-weights"
RISKS_KEY = "risks"
REFUSAL_KEY = "refusal"

# A longer text is not read as a refusal: a name, a hash and some lines of words are shorter.
_LONGEST_REFUSAL = 20_000


@dataclass(frozen=True)
class Refusal:
    """Why a client gives no answer; the text of Flower's error reply, as JSON.

    Attributes
    ----------
    client_id : str or None
        The client's name; None if its own config gives it none that is valid.
    code_hash : str
        As of `LossAnswer`.
    text : str
        Which rule was broken, in words that may travel.
    """

    client_id: str | None
    code_hash: str
    text: str


def message_type(query: Query) -> str:
    """Return the type of the message that asks `query`."""
    if isinstance(query, CandidatesQuery):
        return CANDIDATES_MESSAGE_TYPE
    return ADVERSARIAL_MESSAGE_TYPE if isinstance(query, AdversarialQuery) else LOSS_MESSAGE_TYPE


def encode_query(query: Query, arrays: Mapping[str, np.ndarray] | ArrayRecord) -> RecordDict:
    """Return the content of the message that asks `query` about the model with these weights.

    Parameters
    ----------
    query : LossQuery, AdversarialQuery or CandidatesQuery
        The question.
    arrays : mapping of str to ndarray, or ArrayRecord
        The weights by name, as `protocol.models.model_arrays` returns them; for candidates as
        `protocol.weight_sets.packed` does.
    """
    record = ConfigRecord(
        {
            VERSION_KEY: PROTOCOL_VERSION,
            LOSS_KEY: query.loss,
            MODEL_KEY: query.model,
            X_SHAPE_KEY: list(query.x_shape),
            NUM_CLASSES_KEY: query.num_classes,
            PRIVACY_KEY: query.privacy,
        }
    )
    if isinstance(query, AdversarialQuery):
        problem = query.problem
        record[ORDER_KEY] = problem.order
        record[NORM_KEY] = problem.norm
        record[RADII_KEY] = [float(radius) for radius in query.radii]
        record[MULTIPLIERS_KEY] = [float(multiplier) for multiplier in query.multipliers]
        record[HEAD_KEY] = problem.head or ""
        record[SPACE_KEY] = problem.space
        record[ADVERSARY_KEY] = problem.adversary
        record[BOX_KEY] = list(problem.box or ())
        record[SEED_KEY] = problem.seed
        record[DISTANCES_KEY] = list(problem.distances)
    if isinstance(query, CandidatesQuery):
        record[CANDIDATE_NAMES_KEY] = [candidate.name for candidate in query.candidates]
        record[CANDIDATE_WEIGHTS_KEY] = [candidate.weights for candidate in query.candidates]
    return RecordDict({ARRAYS_RECORD: to_array_record(arrays), QUERY_RECORD: record})


def decode_query(content: RecordDict) -> tuple[LossQuery, dict[str, np.ndarray]]:
    """Return the question and the model's weights from a message's content.

    Raises
    ------
    ValueError
        If a record or key is missing or ill-typed, or the sender speaks another protocol version.
    """
    return LossQuery(**_read_question(content)), to_arrays(read_record(content, ARRAYS_RECORD, ArrayRecord))


def decode_adversarial_query(content: RecordDict) -> tuple[AdversarialQuery, dict[str, np.ndarray]]:
    """Return the question and the model's weights from a message's content.

    Raises ValueError as `decode_query`, or if the question breaks a rule of `AdversarialQuery`.
    """
    question = _read_question(content)
    record = read_record(content, QUERY_RECORD, ConfigRecord)
    problem = TransportProblem(
        question.pop("loss"),
        order=read(record, QUERY_RECORD, ORDER_KEY, int),
        norm=read(record, QUERY_RECORD, NORM_KEY, str),
        head=read(record, QUERY_RECORD, HEAD_KEY, str) or None,
        space=read(record, QUERY_RECORD, SPACE_KEY, str),
        adversary=read(record, QUERY_RECORD, ADVERSARY_KEY, str),
        box=checked_box(ends) if (ends := read_list(record, QUERY_RECORD, BOX_KEY, float)) else None,
        seed=read(record, QUERY_RECORD, SEED_KEY, int),
        distances=read_list(record, QUERY_RECORD, DISTANCES_KEY, float),
    )
    query = AdversarialQuery(
        **question,
        problem=problem,
        radii=read_list(record, QUERY_RECORD, RADII_KEY, float),
        multipliers=read_list(record, QUERY_RECORD, MULTIPLIERS_KEY, float),
    )
    return query, to_arrays(read_record(content, ARRAYS_RECORD, ArrayRecord))


def decode_candidates_query(content: RecordDict) -> tuple[CandidatesQuery, dict[str, np.ndarray]]:
    """Return the question and all sets of weights, still in one mapping, from a message's content.

    Raises ValueError as `decode_query`, or if the candidates break their rules.
    """
    question = _read_question(content)
    record = read_record(content, QUERY_RECORD, ConfigRecord)
    candidates = candidates_of(
        read_list(record, QUERY_RECORD, CANDIDATE_NAMES_KEY, str),
        read_list(record, QUERY_RECORD, CANDIDATE_WEIGHTS_KEY, int),
        question.pop("loss").split(","),
    )
    arrays = to_arrays(read_record(content, ARRAYS_RECORD, ArrayRecord))
    return CandidatesQuery(**question, candidates=candidates), arrays


def encode_answer(answer: Answer) -> RecordDict:
    """Return the content of the reply that carries `answer`."""
    identity = ConfigRecord(
        {
            VERSION_KEY: PROTOCOL_VERSION,
            CLIENT_ID_KEY: answer.client_id,
            LOSS_KEY: answer.loss,
            CODE_HASH_KEY: answer.code_hash,
            MODEL_HASH_KEY: answer.model_hash,
        }
    )
    if answer.group is not None:
        identity[GROUP_KEY] = answer.group
    if isinstance(answer, LossAnswer):
        numbers = MetricRecord({RISK_KEY: float(answer.risk), NUM_EXAMPLES_KEY: int(answer.num_examples)})
        return RecordDict({ANSWER_RECORD: numbers, IDENTITY_RECORD: identity})
    if isinstance(answer, CandidatesAnswer):
        numbers = MetricRecord({RISKS_KEY: [float(risk) for risk in answer.risks]})
        numbers[NUM_EXAMPLES_KEY] = int(answer.num_examples)
        return RecordDict({ANSWER_RECORD: _with_budget(numbers, answer.budget_left), IDENTITY_RECORD: identity})
    identity[GUARANTEE_KEY] = answer.guarantee
    numbers = MetricRecord(
        {
            NUM_EXAMPLES_KEY: int(answer.num_examples),
            CLEAN_RISK_KEY: float(answer.clean_risk),
            VALUES_LOWER_KEY: [float(value) for value in answer.values_lower],
            VALUES_UPPER_KEY: [float(value) for value in answer.values_upper],
            CONJUGATES_LOWER_KEY: [float(value) for value in answer.conjugates_lower],
            CONJUGATES_UPPER_KEY: [float(value) for value in answer.conjugates_upper],
            ADVERSARIAL_UNIT_KEY: float(answer.adversarial_unit),
        }
    )
    if answer.num_without_gradient is not None:
        numbers[NUM_WITHOUT_GRADIENT_KEY] = int(answer.num_without_gradient)
    return RecordDict({ANSWER_RECORD: _with_budget(numbers, answer.budget_left), IDENTITY_RECORD: identity})


def decode_answer(content: RecordDict) -> LossAnswer:
    """Return the answer to a `LossQuery` from a reply's content.

    The types are checked here, the claims (range, hashes, identity) by
    `strategies.asking.query.QueryStrategy`, which knows what was asked.

    Raises
    ------
    ValueError
        If a record or key is missing or ill-typed, or the client speaks another protocol version.
    """
    identity = _read_identity(content)
    numbers = read_record(content, ANSWER_RECORD, MetricRecord)
    return LossAnswer(
        **identity,
        risk=read(numbers, ANSWER_RECORD, RISK_KEY, float),
        num_examples=read(numbers, ANSWER_RECORD, NUM_EXAMPLES_KEY, int),
    )


def decode_adversarial_answer(content: RecordDict) -> AdversarialAnswer:
    """Return the answer to an `AdversarialQuery` from a reply's content; raises ValueError as `decode_answer` does."""
    identity = _read_identity(content)
    numbers = read_record(content, ANSWER_RECORD, MetricRecord)
    return AdversarialAnswer(
        **identity,
        guarantee=read(read_record(content, IDENTITY_RECORD, ConfigRecord), IDENTITY_RECORD, GUARANTEE_KEY, str),
        num_examples=read(numbers, ANSWER_RECORD, NUM_EXAMPLES_KEY, int),
        clean_risk=read(numbers, ANSWER_RECORD, CLEAN_RISK_KEY, float),
        values_lower=read_list(numbers, ANSWER_RECORD, VALUES_LOWER_KEY, float),
        values_upper=read_list(numbers, ANSWER_RECORD, VALUES_UPPER_KEY, float),
        conjugates_lower=read_list(numbers, ANSWER_RECORD, CONJUGATES_LOWER_KEY, float),
        conjugates_upper=read_list(numbers, ANSWER_RECORD, CONJUGATES_UPPER_KEY, float),
        adversarial_unit=read(numbers, ANSWER_RECORD, ADVERSARIAL_UNIT_KEY, float),
        budget_left=_read_budget(numbers),
        num_without_gradient=(
            read(numbers, ANSWER_RECORD, NUM_WITHOUT_GRADIENT_KEY, int) if NUM_WITHOUT_GRADIENT_KEY in numbers else None
        ),
    )


def decode_candidates_answer(content: RecordDict) -> CandidatesAnswer:
    """Return the answer to a `CandidatesQuery` from a reply's content; raises ValueError as `decode_answer` does."""
    identity = _read_identity(content)
    numbers = read_record(content, ANSWER_RECORD, MetricRecord)
    return CandidatesAnswer(
        **identity,
        risks=read_list(numbers, ANSWER_RECORD, RISKS_KEY, float),
        num_examples=read(numbers, ANSWER_RECORD, NUM_EXAMPLES_KEY, int),
        budget_left=_read_budget(numbers),
    )


def encode_hello(question: str = "") -> RecordDict:
    """Return the content of the message that asks a `HelloQuery`: no weights, so it is small."""
    return RecordDict({QUERY_RECORD: ConfigRecord({VERSION_KEY: PROTOCOL_VERSION, QUESTION_KEY: question})})


def decode_hello(content: RecordDict) -> HelloQuery:
    """Return the question from a message's content.

    Raises
    ------
    ValueError
        If the record is missing, the question is no text, or the sender speaks another protocol version.
    """
    record = read_record(content, QUERY_RECORD, ConfigRecord)
    _check_version(record)
    return HelloQuery(read(record, QUERY_RECORD, QUESTION_KEY, str) if QUESTION_KEY in record else "")


def encode_hello_answer(answer: HelloAnswer) -> RecordDict:
    """Return the content of the reply that carries `answer`."""
    identity = ConfigRecord(
        {VERSION_KEY: PROTOCOL_VERSION, CLIENT_ID_KEY: answer.client_id, CODE_HASH_KEY: answer.code_hash}
    )
    numbers = MetricRecord({ON_RECORD_KEY: int(answer.on_record)})
    return RecordDict({ANSWER_RECORD: _with_budget(numbers, answer.budget_left), IDENTITY_RECORD: identity})


def decode_hello_answer(content: RecordDict) -> HelloAnswer:
    """Return the answer to a `HelloQuery` from a reply's content; see `decode_answer`.

    Raises
    ------
    ValueError
        If a record or key is missing or ill-typed, the client speaks another protocol version, or a number is out of
        its range.
    """
    identity = read_record(content, IDENTITY_RECORD, ConfigRecord)
    _check_version(identity)
    numbers = read_record(content, ANSWER_RECORD, MetricRecord)
    budget_left = _read_budget(numbers)
    if budget_left is not None and budget_left < 0:
        raise ValueError(f"{BUDGET_LEFT_KEY} must be at least 0, got {budget_left}")
    on_record = read(numbers, ANSWER_RECORD, ON_RECORD_KEY, int)
    if on_record not in (0, 1):
        raise ValueError(f"{ON_RECORD_KEY} must be 0 or 1, got {on_record}")
    return HelloAnswer(
        client_id=read_name(identity, IDENTITY_RECORD, CLIENT_ID_KEY),
        code_hash=read(identity, IDENTITY_RECORD, CODE_HASH_KEY, str),
        budget_left=budget_left,
        on_record=on_record == 1,
    )


def encode_refusal(refusal: Refusal) -> str:
    """Return the text of the error reply that carries a refusal."""
    name = {} if refusal.client_id is None else {CLIENT_ID_KEY: refusal.client_id}
    return json.dumps({REFUSAL_KEY: refusal.text, **name, CODE_HASH_KEY: refusal.code_hash}, ensure_ascii=False)


def decode_refusal(reason: str) -> Refusal | None:
    """Return the refusal that the text of an error reply carries, None if it is another text."""
    if len(reason) > _LONGEST_REFUSAL or not reason.startswith("{"):
        return None
    try:
        fields = json.loads(reason)
    except (ValueError, RecursionError):
        return None
    text, code = fields.get(REFUSAL_KEY), fields.get(CODE_HASH_KEY)
    name = fields.get(CLIENT_ID_KEY)
    if not (isinstance(text, str) and isinstance(code, str)):
        return None
    return Refusal(name if isinstance(name, str) and is_name(name) else None, code, text)


def claimed_name(content: RecordDict) -> str | None:
    """Return the name that a reply gives, however wrong the rest of it is; None if there is none that is valid."""
    identity = content.get(IDENTITY_RECORD)
    name = identity.get(CLIENT_ID_KEY) if isinstance(identity, ConfigRecord) else None
    return name if isinstance(name, str) and is_name(name) else None


def _with_budget(numbers: MetricRecord, budget_left: int | None) -> MetricRecord:
    if budget_left is not None:
        numbers[BUDGET_LEFT_KEY] = int(budget_left)
    return numbers


def _read_budget(numbers: MetricRecord) -> int | None:
    return read(numbers, ANSWER_RECORD, BUDGET_LEFT_KEY, int) if BUDGET_LEFT_KEY in numbers else None


def _check_version(record: ConfigRecord) -> None:
    version = record.get(VERSION_KEY)
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise ValueError(
            f"{VERSION_KEY} must be {PROTOCOL_VERSION}, got {version!r}; "
            "install the same riskband on the server and on the clients"
        )


def _read_question(content: RecordDict) -> dict[str, Any]:
    """The part that both questions share."""
    record = read_record(content, QUERY_RECORD, ConfigRecord)
    _check_version(record)
    return {
        "loss": read(record, QUERY_RECORD, LOSS_KEY, str),
        "model": read(record, QUERY_RECORD, MODEL_KEY, str),
        "x_shape": read_list(record, QUERY_RECORD, X_SHAPE_KEY, int),
        "num_classes": read(record, QUERY_RECORD, NUM_CLASSES_KEY, int),
        "privacy": read(record, QUERY_RECORD, PRIVACY_KEY, str),
    }


def _read_identity(content: RecordDict) -> dict[str, Any]:
    """The part that both answers share."""
    identity = read_record(content, IDENTITY_RECORD, ConfigRecord)
    _check_version(identity)
    return {
        "client_id": read_name(identity, IDENTITY_RECORD, CLIENT_ID_KEY),
        "loss": read(identity, IDENTITY_RECORD, LOSS_KEY, str),
        "code_hash": read(identity, IDENTITY_RECORD, CODE_HASH_KEY, str),
        "model_hash": read(identity, IDENTITY_RECORD, MODEL_HASH_KEY, str),
        "group": read_name(identity, IDENTITY_RECORD, GROUP_KEY) if GROUP_KEY in identity else None,
    }
