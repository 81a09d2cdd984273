"""The folder that receives a run's results: names of the files, and writing them whole or not at all.

A run keeps a list of what it wrote there, with SHA-256 (`LIST_FILE`, in the form that ``sha256sum --check`` reads). The
next run in the folder removes what is on that list and still is as it was written, and nothing else.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.questions import Answer, HelloAnswer, HelloQuery, Query
from riskband.answers.signing import Signed
from riskband.checks import json_object
from server.run.events import append_event
from server.run.ledger import Ledger, first_free
from server.run.lock import FolderError, writing_results
from strategies.asking.exchange import ENDED_ITS_WORKER, Progress, Sender
from strategies.asking.failures import Failure, FailureReason, node_hash
from strategies.asking.replies import QuorumError, RoundOutcome

REPORT_FILE = "report.json"
PAGE_FILE = "report.html"
FAILURE_FILE = "failed.json"
PROGRESS_FILE = "progress.json"
LEDGER_FILE = "ledger.jsonl"
EVENTS_FILE = "events.jsonl"
METRICS_FILE = "metrics.prom"
CERTIFICATE_FOLDER = "certificates"
PROGRESS_SCHEMA, FAILURE_SCHEMA = "riskband.progress/1", "riskband.failure/1"
_HIDDEN = ".riskband."  # how files begin that are no results, as the lock
LIST_FILE = f"{_HIDDEN}files"
_PART = f"{_HIDDEN}part"  # a file that is being written, with the ending that it will have
FIGURE_SUFFIXES = ("png", "svg", "pdf")
LOG_FILES = ("superlink.log", "run.log", "ray.log")

# What the files that grow, and so have no hash, have near their beginning.
_GROWING = {LEDGER_FILE: b'"schema": "riskband.', EVENTS_FILE: b'"event": "run_'}
_SIGN_RANGE = 16_384
_ASKING = "asking the clients"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RAY_REMEDY = (
    "this happens where the machine is busy, or short of memory, processors or disk, or has less than one client is to "
    "get (--client-cpus, --client-gpus): run again when it has more room, with --resume to keep the answers that came"
)
_CLOCK_OF_NODE = (
    "Of clients on other machines compare the clocks too: Flower refuses a SuperNode whose clock is more than 5 s "
    "ahead of the SuperLink's or 5 min behind it (status 401 in the SuperLink's log), and the SuperNode ends"
)
_CLOCK_OF_SERVER = (
    "Compare the clocks of ServerApp and SuperLink too: a message from a ServerApp whose clock is behind expires "
    "early, or at once"
)


@dataclass(frozen=True)
class ResultFolder:
    """Where one run writes."""

    path: Path  # absolute path of the folder
    # Flower's id of the run, which its files hold; "" for whoever reads them, whatever run they are of.
    run_id: str = ""
    on_event: Callable[[Mapping[str, Any]], None] | None = None  # called with each event, once it is in the log

    @writing_results()
    def clear(self, *, resume: bool = False, figures: Iterable[str] = ()) -> None:
        """Create the folder, and remove what an earlier run wrote there; ledgers of answers and logs of events stay.

        Afterwards a report in the folder is the report of this run, which will draw figures of these names. The log is
        continued if that run is resumed, and otherwise gets the first free number (``events-1.jsonl``), as a ledger
        does. Raises FolderError if something has the name of a result and is not what a run wrote, or was changed
        since, if the folder holds files but no results, which may be somebody's own, or if it cannot be written. Then
        nothing is removed.
        """
        listed = self._listed()
        names = dict.fromkeys((*self._names_of_results(), *_figures(listed), *figures))
        found = [name for name in names if os.path.lexists(self.path / name)]
        for name in found:
            self._require_ours(name, listed)
        has_files = any(path.is_file() and not path.name.startswith(_HIDDEN) for path in self.path.rglob("*"))
        earlier = [*(self.path / name for name in found), *self.path.glob(f"{Path(EVENTS_FILE).stem}-*.jsonl")]
        if has_files and not any(path.stat().st_size for path in earlier):
            raise FolderError(
                f"{self.path} must be an empty folder or one of results, and holds files that no run wrote; choose "
                "another folder (--out, output-dir)"
            )
        (self.path / CERTIFICATE_FOLDER).mkdir(parents=True, exist_ok=True)
        events = self.path / EVENTS_FILE
        if events.exists() and not resume:
            events.rename(first_free(events))
        for name in found:
            if name not in _GROWING:
                (self.path / name).unlink()
        (self.path / LIST_FILE).unlink(missing_ok=True)
        self._remove_parts()

    def _names_of_results(self) -> Iterator[str]:
        """Names of the files that a run replaces or continues."""
        yield from (REPORT_FILE, FAILURE_FILE, PROGRESS_FILE, LEDGER_FILE, EVENTS_FILE, PAGE_FILE)
        yield from (METRICS_FILE, *LOG_FILES)
        yield from (f"{CERTIFICATE_FOLDER}/{path.name}" for path in (self.path / CERTIFICATE_FOLDER).glob("*.json"))

    def _require_ours(self, name: str, listed: Mapping[str, str]) -> None:
        """Raise FolderError unless a run of this user wrote a file so; of one that grows, its beginning says so."""
        path = self.path / name
        problem = "is no file"
        if path.is_file() and path.stat().st_uid != os.geteuid():
            problem = "belongs to another user"
        elif path.is_file():
            # What a crash of the machine left empty holds nothing that could be lost.
            is_ours = name in listed and (_sha256(path) == listed[name] or not path.stat().st_size)
            if name in _GROWING:
                with path.open("rb") as file:
                    is_ours = _GROWING[name] in file.read(_SIGN_RANGE)
            if is_ours:
                return
            problem = "is not as a run wrote it"
        remedy = "move it away, or choose another folder (--out, output-dir)"
        raise FolderError(f"{path} is in the way: it {problem}; {remedy}")

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield where to write a file; then it gets its name and its place on the list of what this run wrote.

        A reader sees the old file or the new one, never a part.
        """
        part = self.path / f"{_PART}{Path(name).suffix}"
        yield part
        self._list(name, _sha256(part))
        part.replace(self.path / name)

    def _list(self, name: str, digest: str) -> None:
        """Note what a file holds: on its line, if it has one, so that a disk that is full has room for it."""
        with os.fdopen(os.open(self.path / LIST_FILE, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            before, after = file.read(), f"  {name}\n".encode()
            place = before.find(after)
            file.seek(len(before) if place < 0 else place - len(digest))
            file.write(digest.encode() + after)

    def _listed(self) -> dict[str, str]:
        """What earlier runs noted: SHA-256 by name."""
        path = self.path / LIST_FILE
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON object."""
        with self.writing(name) as path:
            path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the folder; empty if there is none to read, or it is of another run."""
        try:
            content = json_object((self.path / name).read_bytes()) or {}
        except FileNotFoundError:
            return {}
        timing = content.get("timing")
        run_id = timing.get("run_id") if isinstance(timing, dict) else content.get("run_id")
        return content if self.run_id in ("", run_id) else {}

    def log_event(self, event: str, **fields: Any) -> None:
        """Add what happened to the log of events, with the time and more about it as plain data for JSON.

        The log is for programs, and a chain (`server.run.events`). Metrics are made of the same events. What a client
        answered is not in it, neither its risk nor a refusal's words, which may hold a number: answers are in the
        ledger, words in the report.
        """
        logged = append_event(self.path / EVENTS_FILE, event, **fields)
        if self.on_event is not None:
            self.on_event(logged)

    def show_stage(self, stage: str) -> None:
        """Write to the folder and the log what the run is doing from now on."""
        self.log_event("stage_started", stage=stage)
        self.show_progress(stage)

    def show_progress(self, stage: str, *, detail: str = "", progress: Progress | None = None) -> None:
        """Write to the folder where the run stands; see `progress_content`."""
        content = progress_content(stage, detail=detail, progress=progress)
        self.write_json(PROGRESS_FILE, {"schema": PROGRESS_SCHEMA, "run_id": self.run_id, **content})

    def show_failure(self, error: Exception) -> None:
        """Write why the run failed, in words; where not even that can be written, nothing is raised."""
        kind = type(error).__name__
        with suppress(OSError):
            self.end_progress()  # first: on a full disk that is room for what follows
            reason = _reason(error, self.path)
            failure = {"schema": FAILURE_SCHEMA, "run_id": self.run_id, "error": kind, "reason": reason}
            self.write_json(FAILURE_FILE, failure)
            self.log_event("run_ended", status="failed", error=kind)

    def finish(self, report: Mapping[str, Any]) -> None:
        """Write the report: the last file of results, and the sign that they are complete."""
        self.end_progress()
        self.write_json(REPORT_FILE, report)
        with suppress(OSError):  # the report is there, also if the disk has no room for one more line
            files = {name: digest for name, digest in self._listed().items() if (self.path / name).exists()}
            earlier = (path for name in _GROWING for path in self.path.glob(f"{Path(name).stem}-*.jsonl"))
            self.log_event("files_written", files=files | {path.name: _sha256(path) for path in earlier})
            self.log_event("run_ended", status="completed", error=None)  # so that something follows the hashes

    def end_progress(self) -> None:
        """Remove the progress file, and parts of files: nothing is running any more."""
        (self.path / PROGRESS_FILE).unlink(missing_ok=True)
        self._remove_parts()

    def _remove_parts(self) -> None:
        for path in self.path.glob(f"{_PART}*"):
            path.unlink()

    def keep_logs(self, logs: Iterable[Path]) -> None:
        """Copy Flower's logs of a run that failed, each under its name."""
        for log in logs:
            with self.writing(log.name) as path:
                path.write_bytes(log.read_bytes() if log.exists() else b"")


class RunDisplay:
    """What a strategy calls while it asks: answers go to the ledger, progress and events to the folder."""

    def __init__(self, folder: ResultFolder, ledger: Ledger) -> None:
        self._folder = folder
        self._ledger = ledger
        self._detail = ""
        self._progress = Progress(asked=0, answered=0)

    def accept(self, query: Query, answer: Answer, sender: Sender | None) -> None:
        """Keep a valid answer; it is on the disk when this returns."""
        self._ledger.append(query, answer, sender)
        node = None if sender is None else node_hash(sender.node_id)
        who = {"round": self._progress.round, "client_id": answer.client_id, "node": node}
        self._folder.log_event("answer_accepted", **who, ledger_hash=self._ledger.hash)

    def refuse(self, client_id: str, refusal: Signed) -> None:
        """Keep a refusal that its client has signed; it is on the disk when this returns."""
        self._ledger.append_refusal(client_id, refusal)
        self._folder.log_event("refusal_kept", client_id=client_id, ledger_hash=self._ledger.hash)

    def meet(self, query: HelloQuery, answer: HelloAnswer, sender: Sender) -> None:
        """Note that a client is there, and what it says is left of its query budget."""
        who = {"client_id": answer.client_id, "node": node_hash(sender.node_id)}
        self._folder.log_event("client_met", **who, budget_left=answer.budget_left)

    def show_progress(self, progress: Progress) -> None:
        """Show how far the round is, and log the failures that are new.

        Raises RuntimeError if this process is ending: in a simulation the ServerApp is a thread, which Flower leaves
        behind when Ray breaks down, and nobody would answer it any more.
        """
        if not threading.main_thread().is_alive():
            raise RuntimeError(
                "Flower's simulation ended while the clients were asked: Ray, which runs them, did not start or broke "
                f"down, and Flower's log says how; {RAY_REMEDY}"
            )
        known = self._progress.failed if progress.round == self._progress.round else 0
        for failure in progress.failures[known:]:
            self._folder.log_event("client_failed", round=progress.round, **failure_fields(failure))
        self._progress = progress
        self._folder.show_progress(_ASKING, detail=self._detail, progress=progress)

    def show_detail(self, detail: str) -> None:
        """Show how far a strategy is, in its own words."""
        self._detail = detail
        self._folder.show_progress(_ASKING, detail=detail, progress=self._progress)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: Exception, path: Path) -> str:
    """Why a run failed, and what to do if that does not follow from it."""
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return (
            f"there was no room left to write ({error}); make room on the disk of {path} and run again with --resume, "
            f"which keeps the answers in {LEDGER_FILE}, or choose a folder on another disk (--out, output-dir)"
        )
    if isinstance(error, QuorumError):
        hints = set(filter(None, map(_hint, error.outcome.failures)))
        return ". ".join([str(error), *sorted(hints)])
    return str(error)


def _hint(failure: Failure) -> str:
    """What may have caused a failure, by what Flower 1.41 does without Ray and to requests from another time; or ""."""
    if failure.reason in (FailureReason.NODE_MISSING, FailureReason.NODE_UNAVAILABLE):
        return _CLOCK_OF_NODE
    if failure.detail == ENDED_ITS_WORKER or "ray.exceptions" in failure.detail:
        return f"Ray, which runs the simulated clients, broke down; {RAY_REMEDY}"
    is_unknown = failure.reason is FailureReason.FLOWER_ERROR and failure.detail.startswith("Flower's error 3:")
    return _CLOCK_OF_SERVER if is_unknown or failure.reason is FailureReason.NOT_SENT else ""


def progress_content(stage: str, *, detail: str = "", progress: Progress | None = None) -> dict[str, Any]:
    """Return the content of a progress file: what the run is doing, in words, and how far the present round is."""
    now = progress or Progress(asked=0, answered=0)
    return {
        "stage": stage,
        "detail": detail,
        **{name: getattr(now, name) for name in ("round", "asked", "answered", "failed")},
        "eta_seconds": None if now.eta_seconds is None else math.ceil(now.eta_seconds),
    }


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log in their order.

    A last line that is not complete, since a crash cut it off or it is being written, is left out.

    Raises ValueError if a complete line is not a JSON object with a "time" and an "event".
    """
    events = []
    lines = path.read_bytes().split(b"\n")[:-1]  # after the last newline: nothing, or a torn line
    for number, line in enumerate(lines, start=1):
        event = json_object(line)
        if event is None or not {"time", "event"} <= event.keys():
            raise ValueError(f"line {number} of {path} is not an event; delete that line to read the others")
        events.append(event)
    return events


def settled(outcome: RoundOutcome[Any]) -> dict[str, Any]:
    """Return the fields that say who answered and who failed why, once all replies were compared."""
    return {
        "num_asked": outcome.num_asked,
        "num_answered": len(outcome.answers),
        "failures": [failure_fields(each) for each in outcome.failures],
    }


def failure_fields(failure: Failure) -> dict[str, str | None]:
    """Return what the log says of a failure: which client and node, and why."""
    return {
        "client_id": failure.client_id,
        "claimed_name": failure.claimed_name,
        "node_name": failure.node_name,
        "node": failure.node,
        "reason": str(failure.reason),
    }


def _figures(listed: Iterable[str]) -> list[str]:
    """Those of the names that are figures in the folder itself."""
    return [name for name in listed if Path(name).name == name and Path(name).suffix[1:] in FIGURE_SUFFIXES]
