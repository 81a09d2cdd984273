"""Flower's records: arrays in and out, and a value of the right type or a `ValueError` that names the key.

No data enters the texts: what a client raises travels to the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = TypeVar("Record", ArrayRecord, MetricRecord, ConfigRecord)
Value = TypeVar("Value", str, int, float)

MAX_NAME_LENGTH = 100


def read_record(content: RecordDict, name: str, kind: type[Record]) -> Record:
    """Return the record of this name.

    Raises
    ------
    ValueError
        If there is none of this kind.
    """
    record = content.get(name)
    if not isinstance(record, kind):
        raise ValueError(
            f"a message must hold the {kind.__name__} {name!r}, got {type(record).__name__}; "
            "the sender does not speak this protocol"
        )
    return record


def read(record: MetricRecord | ConfigRecord, name: str, key: str, kind: type[Value]) -> Value:
    """Return the value under `key` of the record called `name`.

    Raises
    ------
    ValueError
        If it is missing or not of this type.
    """
    value = record.get(key)
    # bool is a subclass of int, but True is not a count.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name}[{key!r}] must be of type {kind.__name__}, got {type(value).__name__}")
    return value


def read_list(record: MetricRecord | ConfigRecord, name: str, key: str, kind: type[Value]) -> tuple[Value, ...]:
    """Return the list under `key` of the record called `name`.

    Raises
    ------
    ValueError
        If it is missing or not a list of this type.
    """
    values = record.get(key)
    if isinstance(values, list):
        typed = tuple(value for value in values if type(value) is kind)
        if len(typed) == len(values):
            return typed
    raise ValueError(f"{name}[{key!r}] must be a list of {kind.__name__}, got {type(values).__name__}")


def read_name(record: ConfigRecord, name: str, key: str) -> str:
    """Return the name under `key` of the record called `name`; raises ValueError if it is missing or not `is_name`."""
    text = read(record, name, key, str)
    if not is_name(text):
        raise ValueError(f"{key} must be 1 to {MAX_NAME_LENGTH} printable characters, got {len(text)} characters")
    return text


def is_name(text: str) -> bool:
    """Return whether a text may name a client, a group or a candidate: 1 to 100 printable characters.

    Names end up in ledgers, tables and figures: no control characters, no novels.
    """
    return 1 <= len(text) <= MAX_NAME_LENGTH and text.isprintable()


def to_array_record(arrays: Mapping[str, np.ndarray] | ArrayRecord) -> ArrayRecord:
    """Return named arrays as Flower's ArrayRecord, names and order kept."""
    if isinstance(arrays, ArrayRecord):
        return arrays
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def to_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the named arrays of an ArrayRecord, names and order kept.

    Raises
    ------
    ValueError
        If the bytes of one are not those of an array.
    """
    return {name: _to_array(array) for name, array in record.items()}


def _to_array(array: Array) -> np.ndarray:
    try:
        values = array.numpy()
    except Exception as error:  # the bytes come from another machine, and numpy's reader raises many things
        raise ValueError(
            f"an array must be bytes that numpy reads without pickle, got {type(error).__name__}; send it again"
        ) from error
    if not isinstance(values, np.ndarray):  # an archive of arrays is not one
        raise ValueError(f"an array must be one array, got {type(values).__name__}; send it again")
    return values


def num_bytes(content: RecordDict) -> int:
    """Return about how many bytes a message's content takes, without a look into its arrays or a copy of it."""
    return sum(_record_bytes(record) for record in content.values())


def _record_bytes(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    if isinstance(record, ArrayRecord):
        return sum(len(name) + len(array.data) for name, array in record.items())
    return sum(len(key) + _value_bytes(value) for key, value in record.items())


def _value_bytes(value: object) -> int:
    if isinstance(value, list):  # Flower's lists are of one type
        return sum(map(len, value)) if value and isinstance(value[0], str | bytes) else 8 * len(value)
    return len(value) if isinstance(value, str | bytes) else 8
