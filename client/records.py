"""Reading Flower's records: a value of the right type, or a `ValueError` that names the key.

No data enters the texts: what a client raises travels to the server.
"""

from __future__ import annotations

from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = TypeVar("Record", ArrayRecord, MetricRecord, ConfigRecord)
Value = TypeVar("Value", str, int, float)


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
