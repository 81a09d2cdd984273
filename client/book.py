"""A client's book: an SQLite file that only its owner may read, with what was answered, paid for, spent and claimed.

The owner names it in the node config (never the server, in the run config), once for each rule that is kept in it:
`client.budget`, `client.privacy`, `client.answer_record` and `client.secure.state`. The rules may share one file, and
so may clients: every entry begins with the name of its client, but for the constants of models, which are the same for
all. Tables keep their form: what an earlier version has counted still counts.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from riskband.checks import RefusedError

_TABLES = {
    "answered": "client TEXT, kind TEXT, number INTEGER, PRIMARY KEY (client, kind)",
    "paid": "client TEXT, question TEXT, PRIMARY KEY (client, question)",
    # One row for each client: what one mechanism spends does not add up with what another does.
    "privacy": "client TEXT PRIMARY KEY, mechanism TEXT, spent TEXT",
    "answers": "client TEXT, question TEXT, answer TEXT, PRIMARY KEY (client, question)",
    "asked": "client TEXT, asked TEXT, PRIMARY KEY (client, asked)",
    "constants": "name TEXT PRIMARY KEY, numbers BLOB, digest BLOB",
    "secure_steps": "client TEXT, run TEXT, key BLOB, step TEXT, PRIMARY KEY (client, run, key, step)",
}
_LOCK_TIMEOUT = 60.0

_lock = threading.Lock()


def book_path(config: Mapping[str, Any], key: str) -> Path | None:
    """Return the file that a node config names under a key, None if it names none; raises ValueError if relative."""
    if key not in config:
        return None
    path = Path(str(config[key]))
    if not path.is_absolute():
        raise RefusedError(f"{key} must be an absolute path: Flower chooses a client's working directory")
    return path


def is_unopened(path: Path, key: str) -> bool:
    """Return whether a book has not been made yet; who only asks leaves no trace. Raises ValueError without a folder.

    That is said now, before anything is spent on an answer that could not be counted or kept.
    """
    if not path.parent.is_dir():
        raise RefusedError(f"the folder of {key} must exist, and this client's does not; make it")
    return not path.exists()


@contextmanager
def opened(path: Path, *, in_one: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a book in a folder that exists; it is made, for its owner alone, if it is not there.

    With `in_one` all statements are one transaction, which counts only if no error ends it: of two processes that spend
    the last of a budget at once, one is refused. Otherwise each statement stands for itself. Raises sqlite3.Error if
    the file cannot be opened or is no database.
    """
    _make_private(path)
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT, isolation_level=None)) as book, book:
        for table, columns in _TABLES.items():
            book.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        if in_one:  # by hand: the module's own transaction would begin only at the first write, after the reading
            book.execute("BEGIN IMMEDIATE")
        yield book


def note_once(book: sqlite3.Connection, table: str, *entry: str | bytes) -> bool:
    """Add an entry unless it is there already, and return whether it is new."""
    places = ", ".join("?" * len(entry))
    return book.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", entry).rowcount == 1


def has_entry(path: Path | None, table: str, **entry: str) -> bool:
    """Return whether an entry was noted, by its columns; asking leaves no trace."""
    if path is None or not path.exists():
        return False
    with opened(path) as book:
        where = " AND ".join(f"{column} = ?" for column in entry)
        return book.execute(f"SELECT 1 FROM {table} WHERE {where}", tuple(entry.values())).fetchone() is not None


def _make_private(path: Path) -> None:
    """Make an empty file that only its owner may read or write; one that is there keeps its permissions.

    To SQLite an empty file is a new database, and its journals get the file's permissions. A file that cannot be made
    is left to SQLite, to say so in its words.
    """
    # A process that closes a file gives up all its locks on it (POSIX), also those of its other threads. So a file that
    # is there is not opened here, and under the lock no other thread uses a new one before it is closed.
    with _lock:
        try:
            # O_EXCL follows no link: one whose file is not made yet would be left to SQLite, and to everybody.
            os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return
