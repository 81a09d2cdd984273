"""The log of events as a chain: each line carries the hash of the line before it.

Whoever knows the hash of one line can tell whether it, or any line before it, was changed.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO


def append_event(path: Path, event: str, **fields: Any) -> dict[str, Any]:
    """Add an event to the log at `path`, with the time and the SHA-256 of the line before it ("before"); return it.

    The first line carries the hash of the configuration in it, as JSON with its keys sorted. What a crash left of a
    line is removed first, and an event of its own says so.
    """
    with path.open("a+b") as file:
        last, num_torn = _last_line(file)
        if num_torn:
            file.truncate(file.tell() - num_torn)
            last = _write(file, {"event": "torn_line_cut", "num_bytes": num_torn}, last)
        logged: dict[str, Any] = json.loads(_write(file, {"event": event, **fields}, last))
        return logged


def _last_line(file: BinaryIO) -> tuple[bytes, int]:
    """The last complete line, and how many bytes come after it; the file is at its end then."""
    if not (size := file.seek(0, os.SEEK_END)):
        return b"", 0
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as log:
        end = log.rfind(b"\n") + 1
        return log[log.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end], size - end


def _write(file: BinaryIO, event: Mapping[str, Any], last: bytes) -> bytes:
    before = sha256(last or json.dumps(event.get("config", {}), sort_keys=True).encode()).hexdigest()
    entry = {"time": datetime.now(UTC).isoformat(), **event, "before": before}
    line = json.dumps(entry, allow_nan=False).encode() + b"\n"
    file.write(line)
    return line
