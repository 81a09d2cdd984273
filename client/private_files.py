"""Files that only their owner may read, and the SQLite databases in them."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

_LOCK_TIMEOUT = 60.0

_lock = threading.Lock()


def open_private_database(path: Path, *tables: str) -> sqlite3.Connection:
    """Open an SQLite database that only its owner may read, with these tables; both are made if they are not there.

    Each statement stands for itself. A transaction is begun by hand, with BEGIN IMMEDIATE: the module's own would begin
    only at the first write, after the reading.

    Parameters
    ----------
    path : Path
        In a folder that exists. Several kinds of tables may share a file.
    tables : str
        Statements that make a table unless it is there.

    Raises
    ------
    sqlite3.Error
        If the file cannot be opened or is no database.
    """
    make_private_file(path)
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT, isolation_level=None)
    for table in tables:
        connection.execute(table)
    return connection


def make_private_file(path: Path) -> None:
    """Make an empty file that only its owner may read or write; one that is there keeps its permissions.

    To SQLite an empty file is a new database, and its journals get the file's permissions. A file that cannot be made
    is left to whoever opens it next, to say so in their words.

    Parameters
    ----------
    path : Path
        In a folder that exists.
    """
    # A process that closes a file gives up all its locks on it (POSIX), also those of its other threads. So a file that
    # is there is not opened here, and under the lock no other thread uses a new one before it is closed.
    with _lock:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return
