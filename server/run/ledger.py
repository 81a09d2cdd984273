"""Every valid answer on disk the moment it arrives, so that no failure later costs a client's work.

One JSON object a line: a header that says which run it is, then the answers in order of arrival. Lines
are only ever added, and each is on the disk before the next answer is looked at. An adversarial answer stands beside
what was asked ("asked"), since that differs within a run; any answer beside the node that it came from ("node", see
`node_hash`). Where clients sign, the header has their keys ("client_keys"), an answer its signature and what else was
signed ("signed"), and signed refusals are lines too ("refusal").
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json

from protocol import questions
from protocol.client_keys import keys_by_name
from protocol.hashes import code_hash
from riskband.answers.signing import Signed
from riskband.checks import json_object
from server.run.lock import FolderError
from strategies.asking.exchange import Sender
from strategies.asking.failures import node_hash
from strategies.asking.resume import EarlierAnswer, OpenedSum

Value = TypeVar("Value")

SCHEMA = "riskband.ledger/2"
KEYS_KEY = "client-keys"
_PLACES = ("output-dir", KEYS_KEY, "metrics-port", "metrics-address")
NOT_PART_OF_A_RUN = ("node-timeout", "reply-timeout", "resume", "max-clients", *_PLACES)
"""Keys of the configuration that may change when a run is resumed: they do not change what it finds, but how far it
goes until it is decided, which its certificates allow."""


# By a key that no other kind of answer has.
_TOLD_BY = {"risks": questions.CandidatesAnswer, "num_worse": questions.ComparisonAnswer, "counts": OpenedSum}


class Ledger:
    """An append-only file of answers, open for one run; use it as a context manager.

    A ledger that is already at `path` belongs to an earlier run and is kept: it gets the first free number
    (``ledger-1.jsonl``, ``ledger-2.jsonl``, …), unless the run is resumed, which continues it. Answers are never
    overwritten. The header tells this run from others: "hashes" of model and code, the "config".

    Raises ValueError if there is no ledger to resume, or it is damaged or of another run.
    """

    def __init__(self, path: Path, *, header: Mapping[str, Any], resume: bool = False) -> None:
        self.path = path
        # When the header, and with it the configuration, was written: before any question to a client. Earlier versions
        # did not note it.
        self.recorded: str | None = datetime.now(UTC).isoformat(timespec="seconds")
        self.earlier: tuple[EarlierAnswer, ...] | None = None  # what a resumed ledger held, in order of arrival
        self._sha256 = sha256()
        if resume:
            self.recorded, self.earlier = _earlier(path, header)
            complete, newline, _ = path.read_bytes().rpartition(b"\n")
            os.truncate(path, len(complete + newline))  # the next answer must begin a line, whatever a crash left
            self._sha256.update(complete + newline)
            self._file = path.open("ab")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.rename(first_free(path))
        self._file = path.open("xb")
        self._write({"schema": SCHEMA, "recorded": self.recorded, **header})

    @property
    def hash(self) -> str:
        """SHA-256 of the file so far, as `sha256sum` says it."""
        return self._sha256.hexdigest()

    def append(self, query: questions.Query, answer: questions.Answer, sender: Sender | None = None) -> None:
        """Write one answer to a question, and where it came from; it is on the disk when this returns."""
        entry = asdict(answer)
        if sender is not None:
            entry["node"] = node_hash(sender.node_id)
        if sender is not None and sender.signed is not None:
            entry["signed"] = sender.signed.to_dict()
        if isinstance(query, questions.AdversarialQuery):
            entry["asked"] = {"radii": query.radii, "multipliers": query.multipliers}
        self._write(entry)

    def append_refusal(self, client_id: str, refusal: Signed) -> None:
        """Write a refusal that a client has signed; it is on the disk when this returns."""
        self._write({"client_id": client_id, "refusal": refusal.statement.said, "signed": refusal.to_dict()})

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._sha256.update(line)


def header_of(config: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return what tells a run with this configuration from others, the keys of its clients among it if they sign."""
    path = str(config.get(KEYS_KEY, ""))
    keys = {name: key.hex() for name, key in keys_by_name(path, called=KEYS_KEY).items()} if path else None
    return {"hashes": hashes, "config": config, **({} if keys is None else {"client_keys": keys})}


def read_ledger(path: Path) -> tuple[dict[str, Any], tuple[questions.Answer, ...]]:
    """Return the header of a ledger and its answers, in order of arrival.

    A last line that a crash cut off is left out: that answer was never complete. Raises ValueError if the file is not a
    ledger, or a complete line of it is damaged.
    """
    header, entries = _read(path)
    return header, tuple(entry.answer for entry in entries)


def require_resumable(path: Path, config: Mapping[str, Any], *, model: str | None = None) -> None:
    """Raise FolderError if a run with this configuration is to be resumed, and cannot be from the ledger at `path`.

    For before anything of an earlier run is removed. `model` is the hash of the model; None if it is not prepared yet:
    that it is another shows later then.
    """
    if config["resume"]:
        try:
            hashes = _read(path)[0].get("hashes", {}) if path.exists() else {}
            known = {"code": code_hash()} | ({} if model is None else {"model": model})
            _earlier(path, header_of(config, {**hashes, **known}))
        except (OSError, ValueError) as error:
            raise FolderError(str(error)) from None


def _read(path: Path) -> tuple[dict[str, Any], tuple[EarlierAnswer, ...]]:
    return _found_in(path.read_bytes(), path)


@lru_cache(maxsize=1)  # a run that is resumed looks several times before it asks anybody
def _found_in(text: bytes, path: Path) -> tuple[dict[str, Any], tuple[EarlierAnswer, ...]]:
    lines = text.split(b"\n")[:-1]  # after the last newline: nothing, or a torn line
    header = _header(path, lines[0] if lines else b"")
    entries = (_entry(path, number, line) for number, line in enumerate(lines[1:], start=2))
    return header, tuple(entry for entry in entries if entry is not None)


def _header(path: Path, line: bytes) -> dict[str, Any]:
    header = json_object(line)
    if header is None or header.get("schema") != SCHEMA:
        raise ValueError(
            f"line 1 of {path} must be the header of a ledger, with the schema {SCHEMA!r}, and is not; restore the "
            "file, or move it away and leave resume out"
        )
    if not all(isinstance(header.get(key, {}), dict) for key in ("hashes", "config", "client_keys")):
        problem = f"hashes, config and client_keys in line 1 of {path} must be JSON objects, got others"
        raise ValueError(f"{problem}; restore the file")
    if not isinstance(header.get("recorded", ""), str):
        raise ValueError(f"line 1 of {path} must say when it was recorded, as text; restore the file")
    return header


def _entry(path: Path, number: int, line: bytes) -> EarlierAnswer | None:
    """The answer in a line; None if it is a refusal."""
    entry = json_object(line)
    if entry is None:
        raise ValueError(f"line {number} of {path} is not a JSON object; restore the file, or delete that line")
    try:
        return None if "refusal" in entry else _entry_of(entry)
    except ValueError as error:
        reason = _first_problem(error) if isinstance(error, ValidationError) else str(error)
        problem = f"line {number} of {path} is not an answer: {reason}; restore the file, or delete that line"
        raise ValueError(problem) from None


def _entry_of(entry: dict[str, Any]) -> EarlierAnswer:
    node = entry.pop("node", None)
    if node is not None and not isinstance(node, str):
        raise ValueError("node must be the hash of Flower's number of a node, as text")
    entry.pop("signed", None)
    told = [kind for key, kind in _TOLD_BY.items() if key in entry]
    if told or "guarantee" not in entry:
        return EarlierAnswer(_checked([*told, questions.LossAnswer][0], entry), node=node)
    asked = _checked(_Asked, entry.pop("asked", None))
    for name, values in asdict(asked).items():
        if list(values) != sorted(set(values)) or min(values, default=0.0) < 0.0:
            raise ValueError(f"asked.{name} must increase from >= 0")
    return EarlierAnswer(_checked(questions.AdversarialAnswer, entry), asked.radii, asked.multipliers, node)


@dataclass(frozen=True)
class _Asked:
    radii: tuple[float, ...]
    multipliers: tuple[float, ...]


def _checked(kind: Any, entry: object) -> Any:
    """Return the dataclass `kind` with these fields. A text is no number here, nor is infinity."""
    return _adapter(kind).validate_json(to_json([entry], inf_nan_mode="constants"))[0]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Of a tuple: pydantic passes a dataclass the settings of what it is in, and takes none for itself.
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(map(str, problem["loc"][1:])) or "it"
    return f"{place}: {problem['msg'].replace('Input should', 'must', 1)}"


def _earlier(path: Path, header: Mapping[str, Any]) -> tuple[str | None, tuple[EarlierAnswer, ...]]:
    """When the ledger of a run that is to be resumed with this header was begun, and its answers."""
    if not path.exists():
        raise ValueError(f"{path} must be the ledger of the interrupted run, but there is none; leave resume out")
    found, entries = _read(path)
    before, now = _identity(found), _identity(header)
    differences = [
        f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if differences:
        raise ValueError(
            f"{path} is the ledger of another run: {'; '.join(differences)}; resume with the settings, the model and "
            "the code of that run, or leave resume out"
        )
    return found.get("recorded"), entries


def _identity(header: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **part_of_a_run(header.get("config", {})),
        **{f"the hash of the {name}": value for name, value in header.get("hashes", {}).items()},
        **{f"the key of {name}": key for name, key in header.get("client_keys", {}).items()},
    }


def part_of_a_run(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return the keys of a run configuration that decide what the run finds."""
    return {key: value for key, value in config.items() if key not in NOT_PART_OF_A_RUN}


def first_free(path: Path) -> Path:
    """Return where a file of an earlier run goes: beside it, with the first number that is free."""
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())
