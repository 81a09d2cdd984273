"""The client's own record of what it has answered: a repeated question gets the recorded answer and spends nothing.

A run that is resumed or a message that is sent again thus costs the client nothing, and tells the server nothing that
it was not told before. The record has answers, hashes and proved constants of models, never examples. The owner chooses
its place; without one nothing is recorded.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from client.book import book_path, has_entry, is_unopened, note_once, opened
from client.identity import client_id
from protocol.codec import field_types
from protocol.hashes import code_hash, model_source_hash
from protocol.questions import AdversarialQuery, CandidatesQuery, LossAnswer, LossQuery, Query
from protocol.wire import answer_type
from riskband.checks import RefusedError, json_object

FILE_KEY = "answer-record-file"

_DAMAGED = f"the file of {FILE_KEY} must hold answers, got another thing; restore it, or name a new one"
# Of constants, 64 MB at the most: a federation in training asks about a new model in every round.
_MOST_KEPT, _MOST_NUMBERS = 64, 2**17
_GUARANTEES = ("exact", "upper", "upper in expectation", "lower")
_DRAWN = {"stratum", "cluster", "sampling_weight"}
_SAID_ANEW = frozenset({"client_id", "loss", "code_hash", "model_hash", "group", "budget_left", *_DRAWN})


@dataclass(frozen=True)
class AnswerRecord:
    """What a client has answered."""

    client_id: str  # whose; clients may share a file
    path: Path | None = None  # The book, see `client.book`. None: nothing is recorded.

    def find(self, question: str) -> dict[str, Any] | None:
        """Return the numbers that a question was answered with, lists as tuples; None if it was not answered.

        Raises sqlite3.Error, ValueError if the file is no record, or its folder does not exist. What it holds then is
        not sent.
        """
        if self.path is None or is_unopened(self.path, FILE_KEY):
            return None
        with opened(self.path) as book:
            return self._read(book, question)

    def note(self, asked: str) -> None:
        """Note that a question has been paid for, under its `asked_hash`."""
        if self.path is not None:
            with opened(self.path) as book:
                note_once(book, "asked", self.client_id, asked)

    def has_noted(self, asked: str) -> bool:
        """Return whether a question has been paid for, whatever the examples were then; asking leaves no trace."""
        return has_entry(self.path, "asked", client=self.client_id, asked=asked)

    def keep(self, question: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Record the numbers that answer a question, on the disk when this returns, and return what is to be sent.

        That is what the record held before, if another process has answered the same question meanwhile: two answers
        to one question, should they differ, would say more than one.
        """
        text = json.dumps(dict(numbers), allow_nan=False)
        if self.path is None:
            return _numbers(text)
        with opened(self.path) as book:
            note_once(book, "answers", self.client_id, question, text)
            found = self._read(book, question)
        assert found is not None
        return found

    @property
    def constants(self) -> KeptConstants | None:
        """What was proved of models, in the same file."""
        return None if self.path is None else KeptConstants(self.path)

    def _read(self, book: sqlite3.Connection, question: str) -> dict[str, Any] | None:
        key = self.client_id, question
        row = book.execute("SELECT answer FROM answers WHERE client = ? AND question = ?", key).fetchone()
        return None if row is None else _numbers(row[0])


@dataclass(frozen=True)
class KeptConstants:
    """Constants of models in a book, a `riskband.adversaries.kept.Store`: those found last, of models not too large.

    An entry counts only under the name, hash of the code and version of torch that it was written for, with a digest of
    these and its numbers: against damage, and not against somebody who may write the file, and so this code. What
    cannot be read, or written, is computed again.
    """

    path: Path

    def find(self, name: str) -> list[float] | None:
        """Return the numbers that were kept under a name; asking leaves no trace."""
        if not self.path.exists():
            return None
        try:
            with opened(self.path) as book:
                full = _full_name(name)
                row = book.execute("SELECT numbers, digest FROM constants WHERE name = ?", (full,)).fetchone()
            is_whole = row is not None and row[1] == _digest(full, row[0])
            numbers: list[float] | None = np.frombuffer(row[0], dtype="<f8").tolist() if is_whole else None
        except (sqlite3.Error, TypeError, ValueError):
            return None
        return numbers

    def keep(self, name: str, numbers: Sequence[float]) -> None:
        """Keep numbers under a name, in place of what was found first if there is too much."""
        if len(numbers) > _MOST_NUMBERS:
            return
        full, values = _full_name(name), np.asarray(numbers, dtype="<f8").tobytes()
        with suppress(sqlite3.Error), opened(self.path, in_one=True) as book:
            book.execute("INSERT OR REPLACE INTO constants VALUES (?, ?, ?)", (full, values, _digest(full, values)))
            last = "SELECT rowid FROM constants ORDER BY rowid DESC LIMIT ?"
            book.execute(f"DELETE FROM constants WHERE rowid NOT IN ({last})", (_MOST_KEPT,))


def _full_name(name: str) -> str:
    return f"{name} {code_hash()} {_torch_version()}"


def _digest(name: str, values: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + values).digest()


def record_from_config(config: Mapping[str, Any]) -> AnswerRecord:
    """Return the record that a client's node config sets: ``answer-record-file``; raises ValueError as `book_path`."""
    return AnswerRecord(client_id(config), book_path(config, FILE_KEY))


def question_hash(query: Query, *, model_hash: str, code_hash: str, examples_hash: str) -> str:
    """Return what tells a question from all others: what is asked, of which model and examples, by which code.

    If the client's examples change, so does the answer, and the question is a new one. The hash is also that of the
    source file of the model's module if it is "module:factory", and of the version of torch.
    """
    return asked_hash(query, model_hash, code_hash, examples_hash, model_source_hash(query.model), _torch_version())


def asked_hash(query: Query, model_hash: str, code_hash: str, *more: str | None) -> str:
    """Return the part of a question that a server knows too, as a hash: what is asked of which model by which code."""
    parts = [type(query).__name__, asdict(query), model_hash, code_hash, *more]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def checked_numbers(query: Query, numbers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return recorded numbers, if they are an answer to the question by their names, types and lengths.

    Raises ValueError if they are not. The text has nothing of them: it travels to the server.
    """
    lengths: dict[str, int] = {}
    if isinstance(query, AdversarialQuery):
        lengths = dict.fromkeys(("values_lower", "values_upper"), len(query.radii))
        lengths |= dict.fromkeys(("conjugates_lower", "conjugates_upper"), len(query.multipliers))
    elif isinstance(query, CandidatesQuery):
        lengths = {"risks": len(query.candidates)}
    answer = LossAnswer if isinstance(query, LossQuery) else answer_type(query)
    kinds = {name: kind for name, kind in field_types(answer).items() if name not in _SAID_ANEW}
    is_answer = (
        numbers.keys() == kinds.keys()
        and all(_fits(numbers[name], kind) for name, kind in kinds.items())
        and all(len(numbers[name]) == length for name, length in lengths.items())
        and numbers.get("guarantee", "exact") in _GUARANTEES
    )
    if not is_answer:
        raise RefusedError(_DAMAGED)
    return numbers


def _fits(value: object, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
    if kind in (int, str, bool):
        return type(value) is kind
    if kind == int | None:
        return value is None or type(value) is int
    return isinstance(value, tuple) and all(_fits(each, float) for each in value)


@cache
def _torch_version() -> str:
    return version("torch")


def _numbers(text: str) -> dict[str, Any]:
    fields = json_object(text)
    if fields is None:
        raise RefusedError(_DAMAGED)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
