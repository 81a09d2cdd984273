"""One run at a time in a folder: a lock of the operating system's, which ends with the process that holds it.

Who begins a run needs the lock for itself. A launcher then shares it with one ServerApp, its own, which knows it by a
token in its environment: the folder stays locked as long as either of them lives. `flwr run` by hand has no launcher;
there the ServerApp keeps the lock for itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from riskband.checks import json_object

LOCK_FILE = ".riskband.lock"
UNWRITABLE = "output-dir must be a folder that can be written"
"""How the text of an error begins that says so: a ServerApp's reaches who submitted its run as text alone."""
TOKEN_VARIABLE = "RISKBAND_LOCK_TOKEN"
# Another process may hold the lock for a moment, to see whether it is free.
_PATIENCE, _PAUSE = 0.3, 0.02


class FolderError(ValueError):
    """A folder cannot be used for results; the message names what is in the way, and the remedy."""


@contextmanager
def writing_results() -> Iterator[None]:
    """Raise FolderError in place of what the operating system says of a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        remedy = "choose another (--out, output-dir), or let the user of the ServerApp write there"
        raise FolderError(f"{UNWRITABLE}, got {error}; {remedy}") from None


@contextmanager
def lock_for_launcher(folder: Path) -> Iterator[Mapping[str, str]]:
    """Keep a folder, made if it is not there, for a run that this process starts in another.

    Yields what the environment of that run must hold, for `lock_for_run` to let it in. Raises FolderError if another
    run has the folder.
    """
    token = secrets.token_hex(16)
    with _locked(folder, fcntl.LOCK_EX) as file:
        _write(file, {"token": token})
        _flock(file, fcntl.LOCK_SH, folder)
        yield {TOKEN_VARIABLE: token}


@contextmanager
def lock_for_run(folder: Path, *, run_id: str) -> Iterator[None]:
    """Keep a folder, made if it is not there, for the run of this process; those who find it locked are told the run.

    Raises FolderError if another run has the folder.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    mine = token is not None and _holder(folder).get("token") == token
    with _locked(folder, fcntl.LOCK_SH if mine else fcntl.LOCK_EX) as file:
        if mine and _holder(folder).get("token") != token:
            raise _busy(folder)  # the launcher is gone, and another run came first
        _write(file, {**(_holder(folder) if mine else {}), "run_id": run_id})
        yield


def require_free(folder: Path) -> None:
    """Raise FolderError if a run has the folder now, as far as this process can see; nothing is written."""
    with suppress(FileNotFoundError), (folder / LOCK_FILE).open("rb") as file:
        _flock(file, fcntl.LOCK_EX, folder)


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[IO[bytes]]:
    file = _open_locked(folder, kind)
    try:
        yield file
    finally:
        # The last one removes the file; who has opened it and waits will see that it is another one by then.
        with file, suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / LOCK_FILE).unlink()


@writing_results()
def _open_locked(folder: Path, kind: int) -> IO[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.fdopen(os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
        try:
            _flock(file, kind, folder)
            if os.path.samestat(os.fstat(file.fileno()), (folder / LOCK_FILE).stat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _flock(file: IO[bytes], kind: int, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _busy(folder) from None
        except OSError as error:
            problem = f"{folder} must be on a file system that can lock files, got {error}; choose another folder"
            raise FolderError(problem) from None
        time.sleep(_PAUSE)


def _busy(folder: Path) -> FolderError:
    holder = _holder(folder)
    if "pid" not in holder:
        who = "a process that has not said which it is"
    else:
        run = f" (run {holder['run_id']})" if holder.get("run_id") else ""
        who = f"process {holder['pid']} on {holder['host']}, started {holder['started']}{run}"
    return FolderError(
        f"{folder} must be used by one run at a time, and {who} is using it; wait for its end, end it, or choose "
        "another folder (--out, output-dir)"
    )


def _holder(folder: Path) -> dict[str, Any]:
    """What is known of the run that has the folder, or had it last."""
    try:
        holder = json_object((folder / LOCK_FILE).read_bytes()) or {}
    except OSError:
        return {}
    return holder if {"pid", "host", "started"} <= holder.keys() else {}


def _write(file: IO[bytes], fields: Mapping[str, Any]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    who = {"pid": os.getpid(), "host": socket.gethostname(), "started": now}
    file.seek(0)
    file.truncate()
    file.write(json.dumps({**who, **fields}).encode() + b"\n")
    file.flush()
