"""Dataclasses as Flower's records and back: the fields and their types say all that a message may hold.

The field `num_classes` has the key "num-classes". By its type a record has

* of str, bytes, bool, int and float the value, and of a tuple of these a list;
* of None, where the type allows it, nothing;
* of a dataclass its fields, beside those of the dataclass that it is a field of;
* of a tuple of dataclasses a list for each of their fields: "candidates-name", "candidates-loss";
* of a dict by int its keys ("members-number") and its values, as if these were a tuple.

An annotated type, such as `protocol.questions.Name`, is checked by its annotation, and what a dataclass checks itself
it checks here too. No data enters the texts of errors: what a client raises travels to the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protocol.questions import check_columns

PROTOCOL_VERSION = 3
VERSION_KEY = "protocol-version"

Record = TypeVar("Record", ArrayRecord, MetricRecord, ConfigRecord)
Decoded = TypeVar("Decoded")


def encode(value: Any) -> ConfigRecord:
    """Return a dataclass as a record, with the version of the protocol."""
    return ConfigRecord({VERSION_KEY: PROTOCOL_VERSION, **_entries("", type(value), value)})


def decode(record: ConfigRecord, kind: type[Decoded], *, name: str) -> Decoded:
    """Return the dataclass of this kind that a record holds, which errors call `name`.

    It is from another machine: nothing about it is believed. Raises ValueError if the record is of another version of
    the protocol, lacks a key, has another key or a value of another type, or breaks a rule of the dataclass.
    """
    left = dict(record)
    version = left.pop(VERSION_KEY, None)
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise ValueError(
            f"{VERSION_KEY} must be {PROTOCOL_VERSION}, got {version!r}; "
            "install the same riskband on the server and on the clients"
        )
    found: Decoded = _taken(left, name, "", kind)
    if left:
        raise ValueError(f"{name} must have no other keys than a {kind.__name__} has, got {min(left)[:40]!r}")
    return found


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by their names, with their annotations."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def read_record(content: RecordDict, name: str, kind: type[Record]) -> Record:
    """Return the record of this name; raises ValueError if there is none of this kind."""
    record = content.get(name)
    if not isinstance(record, kind):
        raise ValueError(
            f"a message must hold the {kind.__name__} {name!r}, got {type(record).__name__}; "
            "the sender does not speak this protocol"
        )
    return record


def read(record: Mapping[str, Any], name: str, key: str, kind: type[Decoded]) -> Decoded:
    """Return the value under `key` of the record called `name`; raises ValueError if it is not of this very type."""
    value = record.get(key)
    if type(value) is not kind:
        raise ValueError(f"{name}[{key!r}] must be of type {kind.__name__}, got {type(value).__name__}")
    return value


def plain(record: ConfigRecord) -> dict[str, Any]:
    """Return the entries of a record as plain data for JSON, bytes as hexadecimal digits."""
    return {key: [*map(_text, value)] if isinstance(value, list) else _text(value) for key, value in record.items()}


def to_array_record(arrays: Mapping[str, np.ndarray] | ArrayRecord) -> ArrayRecord:
    """Return named arrays as Flower's ArrayRecord, names and order kept."""
    if isinstance(arrays, ArrayRecord):
        return arrays
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def to_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the named arrays of an ArrayRecord, names and order kept; raises ValueError if one is no array."""
    return {name: _to_array(array) for name, array in record.items()}


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


@cache
def _kind(hint: Any) -> tuple[Any, Any, bool, tuple[Any, ...]]:
    """Take a type apart: the plain type; that of the values, of a tuple or dict; may it be None; its annotations."""
    is_optional = get_origin(hint) in (Union, UnionType)
    if is_optional:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    checks = hint.__metadata__ if get_origin(hint) is Annotated else ()
    plain = hint.__origin__ if checks else hint
    container = get_origin(plain)
    of = None if container is None else get_args(plain)[container is dict]
    return container or plain, of, is_optional, checks


def _is_nested(kind: Any) -> bool:
    return is_dataclass(kind)


def _tuple_of(kind: Any) -> Any:
    return tuple.__class_getitem__((kind, ...))


def _entries(key: str, hint: Any, value: Any) -> dict[str, Any]:
    """What a value of this type puts into a record."""
    kind, of, _, _ = _kind(hint)
    if value is None:
        return {}
    if kind is dict:
        return _entries(f"{key}-number", tuple[int, ...], value) | _entries(key, _tuple_of(of), value.values())
    if _is_nested(of):
        columns = {name: tuple(getattr(row, name) for row in value) for name in field_types(of)}
        return _merged(
            _entries(f"{key}-{_dashed(name)}", _tuple_of(each), columns[name]) for name, each in field_types(of).items()
        )
    if _is_nested(kind):
        return _merged(_entries(_dashed(name), each, getattr(value, name)) for name, each in field_types(kind).items())
    return {key: [_native(of, each) for each in value] if kind is tuple else _native(kind, value)}


def _taken(left: dict[str, Any], name: str, key: str, hint: Any) -> Any:
    """Take a value of this type out of what is left of the record called `name`."""
    kind, of, is_optional, checks = _kind(hint)
    if is_optional and key not in left:
        return None
    if kind is dict:
        numbers = _taken(left, name, f"{key}-number", tuple[int, ...])
        values = _taken(left, name, key, _tuple_of(of))
        check_columns(f"{name}[{key!r}]", numbers, values, numbers=numbers)
        return dict(zip(numbers, values, strict=True))
    if _is_nested(of):
        columns = [_taken(left, name, f"{key}-{_dashed(each)}", _tuple_of(it)) for each, it in field_types(of).items()]
        check_columns(f"{name}[{key!r}]", *columns)
        return tuple(of(*row) for row in zip(*columns, strict=True))
    if _is_nested(kind):
        return kind(**{each: _taken(left, name, _dashed(each), it) for each, it in field_types(kind).items()})
    if kind is tuple:
        values = left.pop(key, None)
        if not isinstance(values, list) or any(type(value) is not of for value in values):
            raise ValueError(f"{name}[{key!r}] must be a list of {of.__name__}, got {type(values).__name__}")
        return tuple(values)
    value = read(left, name, key, kind)
    for check in checks:
        check(key, value)
    return left.pop(key)


def _text(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _native(kind: Any, value: Any) -> Any:
    return kind(value) if kind in (int, float) else value  # Flower takes none of numpy's numbers


def _dashed(name: str) -> str:
    return name.replace("_", "-")
