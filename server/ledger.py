"""Every valid answer on disk the moment it arrives, so that no failure later costs a client's work.

One JSON object a line: a header that says which run it is, then the answers in order of arrival. Lines
are only ever added, and each is on the disk before the next answer is looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from client.wire import AdversarialAnswer, Answer, LossAnswer

SCHEMA = "riskband.ledger/1"


class Ledger:
    """An append-only file of answers, open for one run; use it as a context manager.

    A ledger that is already at `path` belongs to an earlier run and is kept: it gets the first free
    number (``ledger-1.jsonl``, ``ledger-2.jsonl``, …). Answers are never overwritten.

    Parameters
    ----------
    path : Path
        The file.
    header : mapping
        What tells this run from others, as plain data for JSON: hashes of model and code, the configuration.
    """

    def __init__(self, path: Path, *, header: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.rename(_first_free(path))
        self.path = path
        self._file = path.open("x", encoding="utf-8", newline="\n")
        self._write({"schema": SCHEMA, **header})

    def append(self, answer: Answer) -> None:
        """Write one answer; it is on the disk when this returns."""
        self._write(asdict(answer))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_ledger(path: Path) -> tuple[dict[str, Any], tuple[Answer, ...]]:
    """Return the header of a ledger and its answers, in order of arrival.

    A last line that a crash cut off is left out: that answer was never complete.

    Parameters
    ----------
    path : Path
        A file that `Ledger` wrote.

    Raises
    ------
    ValueError
        If the file is not a ledger, or a complete line of it is damaged.
    """
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # after the last newline: nothing, or a torn line
    entries = [_entry(path, number, line) for number, line in enumerate(lines, start=1)]
    if not entries or entries[0].get("schema") != SCHEMA:
        raise ValueError(f"{path} must start with a header of {SCHEMA!r}; it is not a ledger of this version")
    try:
        return entries[0], tuple(_answer(entry) for entry in entries[1:])
    except TypeError as error:
        raise ValueError(f"{path} holds a line that is not an answer: {error}; restore the file") from None


def _answer(entry: dict[str, Any]) -> Answer:
    if "guarantee" not in entry:
        return LossAnswer(**entry)
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
    return AdversarialAnswer(**values)


def _entry(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        entry = None
    if not isinstance(entry, dict):
        raise ValueError(f"line {number} of {path} is not a JSON object; restore the file, or delete that line")
    return entry


def _first_free(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())
