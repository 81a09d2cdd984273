"""Files that only their owner may read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_lock = threading.Lock()


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
