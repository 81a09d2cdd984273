"""The messages of a secure histogram as Flower records; their keys are written here, beside those of `protocol.wire`.

`docs/protocol.md` describes them in words. Nothing that is decoded here is believed: the rules that a client holds a
server to are in `client.secure.part`, and the server's in `strategies.secure.secure_sum`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from protocol import wire
from protocol.questions import HelloAnswer
from protocol.records import read, read_list, read_record
from protocol.secure.cryptography import PublicKeys
from protocol.secure.questions import (
    ConsistencyAnswer,
    ConsistencyQuery,
    HeldShares,
    HistogramQuery,
    KeysAnswer,
    MaskedAnswer,
    SharesAnswer,
    SharesQuery,
    UnmaskAnswer,
    UnmaskQuery,
)

KEYS_ACTION = "secure_keys"
SHARES_ACTION = "secure_shares"
HISTOGRAM_ACTION = "secure_histogram"
CONSISTENCY_ACTION = "secure_consistency"
UNMASK_ACTION = "secure_unmask"
ACTIONS = (KEYS_ACTION, SHARES_ACTION, HISTOGRAM_ACTION, CONSISTENCY_ACTION, UNMASK_ACTION)
"""In the order of the rounds."""

SECURE_RECORD = "secure"

OWN_KEY = "own-number"
NUMBERS_KEY = "numbers"
THRESHOLD_KEY = "threshold"
IS_COMPLETE_KEY = "is-complete"
ENCRYPTION_KEYS_KEY = "encryption-keys"
MASKING_KEYS_KEY = "masking-keys"
SHARES_KEY = "shares"
EDGES_KEY = "edges"
NUM_EXAMPLES_KEY = "num-examples"
ETA_KEY = "eta"
VECTOR_KEY = "vector"
UNOPENED_KEY = "unopened"
SURVIVORS_KEY = "survivors"
DROPPED_KEY = "dropped"
MACS_KEY = "macs"
SEED_SHARES_KEY = "seed-shares"
KEY_SHARES_KEY = "key-shares"


def message_type(action: str) -> str:
    """Return the type of the message that asks for an action."""
    return f"query.{action}"


def encode_keys_query() -> RecordDict:
    """Return the question for public keys."""
    return wire.encode_hello()


def decode_keys_query(content: RecordDict) -> None:
    """Raise ValueError unless a message's content is the question for public keys."""
    wire.decode_hello(content)


def encode_keys_answer(answer: KeysAnswer) -> RecordDict:
    """Return the content of the reply with a client's public keys."""
    return _reply(answer, members_record({0: answer.keys}))


def decode_keys_answer(content: RecordDict) -> KeysAnswer:
    """Return a client's public keys; raises ValueError for anything else."""
    identity, members = wire.decode_hello_answer(content), read_members(_secure(content))
    if len(members) != 1:
        raise ValueError(f"a client must send its own keys only, got {len(members)}")
    return KeysAnswer(identity.client_id, identity.code_hash, keys=next(iter(members.values())))


def encode_shares_query(query: SharesQuery) -> RecordDict:
    """Return the question for shares."""
    record = members_record(query.members)
    record[OWN_KEY] = query.own
    record[THRESHOLD_KEY] = query.threshold
    record[IS_COMPLETE_KEY] = query.is_complete
    return _question(record)


def decode_shares_query(content: RecordDict) -> SharesQuery:
    """Return the question for shares; raises ValueError for anything else."""
    decode_keys_query(content)
    record = _secure(content)
    own, threshold = (read(record, SECURE_RECORD, key, int) for key in (OWN_KEY, THRESHOLD_KEY))
    return SharesQuery(own, threshold, read_members(record), is_complete=read_flag(record, IS_COMPLETE_KEY))


def encode_shares_answer(answer: SharesAnswer) -> RecordDict:
    """Return the content of the reply with a client's encrypted shares."""
    return _reply(answer, shares_record(answer.sent))


def decode_shares_answer(content: RecordDict) -> SharesAnswer:
    """Return a client's encrypted shares; raises ValueError for anything else."""
    identity = wire.decode_hello_answer(content)
    return SharesAnswer(identity.client_id, identity.code_hash, sent=read_shares(_secure(content)))


def encode_histogram_query(
    query: HistogramQuery, held: HeldShares, arrays: Mapping[str, np.ndarray] | ArrayRecord
) -> RecordDict:
    """Return the question for a masked histogram, with the shares that neighbours sent to the client."""
    content = wire.encode_query(query, arrays)
    record = shares_record(held)
    record[EDGES_KEY] = list(query.edges)
    if query.num_examples is not None:
        record[NUM_EXAMPLES_KEY] = query.num_examples
    if query.eta is not None:
        record[ETA_KEY] = query.eta
    content[SECURE_RECORD] = record
    return content


def decode_histogram_query(content: RecordDict) -> tuple[HistogramQuery, HeldShares, dict[str, np.ndarray]]:
    """Return the question, the encrypted shares and the model's weights; raises ValueError for anything else."""
    base, arrays = wire.decode_query(content)
    record = _secure(content)
    query = HistogramQuery(
        **vars(base),
        edges=read_list(record, SECURE_RECORD, EDGES_KEY, float),
        num_examples=read(record, SECURE_RECORD, NUM_EXAMPLES_KEY, int) if NUM_EXAMPLES_KEY in record else None,
        eta=read(record, SECURE_RECORD, ETA_KEY, float) if ETA_KEY in record else None,
    )
    return query, read_shares(record), arrays


def encode_masked_answer(answer: MaskedAnswer) -> RecordDict:
    """Return the content of the reply with a masked histogram."""
    content = _reply(answer, ConfigRecord({VECTOR_KEY: answer.vector, UNOPENED_KEY: list(answer.unopened)}))
    identity = read_record(content, wire.IDENTITY_RECORD, ConfigRecord)
    identity[wire.LOSS_KEY] = answer.loss
    identity[wire.MODEL_HASH_KEY] = answer.model_hash
    return content


def decode_masked_answer(content: RecordDict) -> MaskedAnswer:
    """Return a masked histogram; raises ValueError for anything else."""
    identity, record = wire.decode_hello_answer(content), _secure(content)
    about = read_record(content, wire.IDENTITY_RECORD, ConfigRecord)
    return MaskedAnswer(
        client_id=identity.client_id,
        code_hash=identity.code_hash,
        loss=read(about, wire.IDENTITY_RECORD, wire.LOSS_KEY, str),
        model_hash=read(about, wire.IDENTITY_RECORD, wire.MODEL_HASH_KEY, str),
        vector=read_bytes(record, VECTOR_KEY),
        unopened=read_list(record, SECURE_RECORD, UNOPENED_KEY, int),
    )


def encode_consistency_query(query: ConsistencyQuery) -> RecordDict:
    """Return the question for confirmations."""
    return _question(lists_record(query))


def decode_consistency_query(content: RecordDict) -> ConsistencyQuery:
    """Return the question for confirmations; raises ValueError for anything else."""
    decode_keys_query(content)
    return read_lists(_secure(content))


def encode_consistency_answer(answer: ConsistencyAnswer) -> RecordDict:
    """Return the content of the reply with a client's confirmations."""
    return _reply(answer, _macs_record(answer.numbers, answer.macs))


def decode_consistency_answer(content: RecordDict) -> ConsistencyAnswer:
    """Return a client's confirmations; raises ValueError for anything else."""
    identity = wire.decode_hello_answer(content)
    numbers, macs = _read_macs(_secure(content))
    return ConsistencyAnswer(identity.client_id, identity.code_hash, numbers=numbers, macs=macs)


def encode_unmask_query(query: UnmaskQuery) -> RecordDict:
    """Return the question for shares of seeds and keys."""
    return _question(_macs_record(tuple(query.macs), tuple(query.macs.values())))


def decode_unmask_query(content: RecordDict) -> UnmaskQuery:
    """Return the question for shares of seeds and keys; raises ValueError for anything else."""
    decode_keys_query(content)
    return UnmaskQuery(dict(zip(*_read_macs(_secure(content)), strict=True)))


def encode_unmask_answer(answer: UnmaskAnswer) -> RecordDict:
    """Return the content of the reply with shares of seeds and keys."""
    seeds, keys = list(answer.seed_shares), list(answer.key_shares)
    return _reply(answer, ConfigRecord({SEED_SHARES_KEY: seeds, KEY_SHARES_KEY: keys}))


def decode_unmask_answer(content: RecordDict) -> UnmaskAnswer:
    """Return shares of seeds and keys; raises ValueError for anything else."""
    identity, record = wire.decode_hello_answer(content), _secure(content)
    seeds, keys = (read_byte_list(record, key) for key in (SEED_SHARES_KEY, KEY_SHARES_KEY))
    return UnmaskAnswer(identity.client_id, identity.code_hash, seed_shares=seeds, key_shares=keys)


def members_record(members: Mapping[int, PublicKeys]) -> ConfigRecord:
    """Return public keys by number as a record."""
    return ConfigRecord(
        {
            NUMBERS_KEY: list(members),
            ENCRYPTION_KEYS_KEY: [keys.encryption for keys in members.values()],
            MASKING_KEYS_KEY: [keys.masking for keys in members.values()],
        }
    )


def read_members(record: ConfigRecord) -> dict[int, PublicKeys]:
    """Return public keys by number; raises ValueError if numbers repeat or there are not two keys for each."""
    numbers = read_list(record, SECURE_RECORD, NUMBERS_KEY, int)
    columns = [read_byte_list(record, key) for key in (ENCRYPTION_KEYS_KEY, MASKING_KEYS_KEY)]
    _check_numbered(numbers, *columns)
    return {number: PublicKeys(*keys) for number, *keys in zip(numbers, *columns, strict=True)}


def shares_record(shares: HeldShares) -> ConfigRecord:
    """Return shares by number as a record."""
    return ConfigRecord({NUMBERS_KEY: list(shares.numbers), SHARES_KEY: list(shares.shares)})


def read_shares(record: ConfigRecord) -> HeldShares:
    """Return shares by number; raises ValueError if numbers repeat or there is not one share for each."""
    numbers = read_list(record, SECURE_RECORD, NUMBERS_KEY, int)
    shares = read_byte_list(record, SHARES_KEY)
    _check_numbered(numbers, shares)
    return HeldShares(numbers, shares)


def lists_record(lists: ConsistencyQuery) -> ConfigRecord:
    """Return who is in the sum and who is not as a record."""
    return ConfigRecord({SURVIVORS_KEY: list(lists.survivors), DROPPED_KEY: list(lists.dropped)})


def read_lists(record: ConfigRecord) -> ConsistencyQuery:
    """Return who is in the sum and who is not; raises ValueError if these are no lists of numbers."""
    return ConsistencyQuery(*(read_list(record, SECURE_RECORD, key, int) for key in (SURVIVORS_KEY, DROPPED_KEY)))


def read_flag(record: ConfigRecord, key: str) -> bool:
    """Return a truth value of a record; raises ValueError for anything else."""
    value = record.get(key)
    if not isinstance(value, bool):
        raise ValueError(f"{SECURE_RECORD}[{key!r}] must be true or false, got {type(value).__name__}")
    return value


def read_bytes(record: ConfigRecord, key: str) -> bytes:
    """Return bytes of a record; raises ValueError for anything else."""
    value = record.get(key)
    if not isinstance(value, bytes):
        raise ValueError(f"{SECURE_RECORD}[{key!r}] must be bytes, got {type(value).__name__}")
    return value


def read_byte_list(record: ConfigRecord, key: str) -> tuple[bytes, ...]:
    """Return a list of bytes of a record; raises ValueError for anything else."""
    values = record.get(key)
    if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
        raise ValueError(f"{SECURE_RECORD}[{key!r}] must be a list of bytes, got {type(values).__name__}")
    return tuple(value for value in values if isinstance(value, bytes))


def _macs_record(numbers: Sequence[int], macs: Sequence[bytes]) -> ConfigRecord:
    return ConfigRecord({NUMBERS_KEY: list(numbers), MACS_KEY: list(macs)})


def _read_macs(record: ConfigRecord) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    numbers, macs = read_list(record, SECURE_RECORD, NUMBERS_KEY, int), read_byte_list(record, MACS_KEY)
    _check_numbered(numbers, macs)
    return numbers, macs


def _check_numbered(numbers: Sequence[int], *columns: Sequence[bytes]) -> None:
    if len(set(numbers)) < len(numbers) or any(len(column) != len(numbers) for column in columns):
        raise ValueError(
            f"{NUMBERS_KEY} must differ and have one entry each, got {len(numbers)} of them with "
            f"{', '.join(str(len(column)) for column in columns)} entries"
        )


def _question(record: ConfigRecord) -> RecordDict:
    content = encode_keys_query()
    content[SECURE_RECORD] = record
    return content


def _reply(answer: HelloAnswer, record: ConfigRecord) -> RecordDict:
    content = wire.encode_hello_answer(answer)
    content[SECURE_RECORD] = record
    return content


def _secure(content: RecordDict) -> ConfigRecord:
    return read_record(content, SECURE_RECORD, ConfigRecord)
