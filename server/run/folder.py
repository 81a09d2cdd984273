"""The folder that receives a run's results: names of the files, and writing them whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.questions import Answer, Query
from server.run.ledger import Ledger, cut_torn_line
from server.run.lock import LOCK_FILE, FolderError
from strategies.asking.exchange import Progress
from strategies.asking.failures import Failure, FailureReason
from strategies.asking.replies import QuorumError, RoundOutcome

REPORT_FILE = "report.json"
PAGE_FILE = "report.html"
FAILURE_FILE = "failed.json"
PROGRESS_FILE = "progress.json"
LEDGER_FILE = "ledger.jsonl"
EVENTS_FILE = "events.jsonl"
CERTIFICATE_FOLDER = "certificates"
PROGRESS_SCHEMA, FAILURE_SCHEMA = "riskband.progress/1", "riskband.failure/1"
_JSON_FILES = (REPORT_FILE, FAILURE_FILE, PROGRESS_FILE)
FIGURE_SUFFIXES = ("png", "svg", "pdf")
LOG_FILES = ("superlink.log", "run.log", "ray.log")
LOG_HEADER = "riskband: Flower's log of a run that failed"
"""The first line of `LOG_FILES`."""

# What a file of ours has near its beginning, or a PDF near its end; the page as a figure.
_SCHEMA_SIGN, _EVENTS_SIGN, _FIGURE_SIGN = b'"schema": "riskband.', b'"event": "run_', b"riskband"
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

    def clear(self, *, resume: bool = False) -> None:
        """Create the folder, and remove what an earlier run left in it; ledgers of answers stay.

        Afterwards a report in the folder is the report of this run. What is of an earlier run is told by its content,
        not by its name. If that is resumed, its log of events stays too. Raises FolderError if something that no run
        wrote has the name of a result, or the folder holds files but no results of an earlier run: they may be
        somebody's own. Nothing is removed then.
        """
        signs = self._signs()
        found = [path for path in signs if path.exists() or path.is_symlink()]
        for path in found:
            _require_ours(path, signs[path])
        has_files = any(path.is_file() and path.name != LOCK_FILE for path in self.path.rglob("*"))
        if has_files and not any(path.stat().st_size for path in found):
            raise FolderError(
                f"{self.path} must be an empty folder or one of results, and holds files that no run wrote; choose "
                "another folder (--out, output-dir)"
            )
        (self.path / CERTIFICATE_FOLDER).mkdir(parents=True, exist_ok=True)
        kept = {LEDGER_FILE, EVENTS_FILE} if resume else {LEDGER_FILE}
        if resume and (self.path / EVENTS_FILE).exists():
            cut_torn_line(self.path / EVENTS_FILE)  # the next event begins a line
        for path in found:
            if path.name not in kept:
                path.unlink()
        self.end_progress()

    def _signs(self) -> dict[Path, bytes]:
        """What the files that a run replaces or continues must hold, by their paths."""
        names = [REPORT_FILE, FAILURE_FILE, PROGRESS_FILE, LEDGER_FILE]
        signs = {self.path / name: _SCHEMA_SIGN for name in names}
        signs |= dict.fromkeys((self.path / CERTIFICATE_FOLDER).glob("*.json"), _SCHEMA_SIGN)
        signs[self.path / EVENTS_FILE] = _EVENTS_SIGN
        signs |= {self.path / name: LOG_HEADER.encode() for name in LOG_FILES}
        # Imported here: the studies need torch, and who only reads a folder does not.
        from server.studies import STUDIES

        figures = [f"{study.figure_stem}.{suffix}" for study in STUDIES.values() for suffix in FIGURE_SUFFIXES]
        return signs | {self.path / name: _FIGURE_SIGN for name in (*figures, PAGE_FILE)}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON object; a reader sees the old file or the new one, never a part."""
        path = self.path / name
        temporary = path.with_name(f".{name}.part")
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the folder; empty if there is none to read, or it is of another run."""
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        if not isinstance(content, dict):
            return {}
        timing = content.get("timing")
        run_id = timing.get("run_id") if isinstance(timing, dict) else content.get("run_id")
        return content if self.run_id in ("", run_id) else {}

    def log_event(self, event: str, **fields: Any) -> None:
        """Add what happened to the log of events, with the time and more about it as plain data for JSON.

        The log is for programs: one JSON object a line, in the order in which things happened. What a client answered
        is not in it, neither its risk nor a refusal's words, which may hold a number: answers are in the ledger, words
        in the report.
        """
        line = json.dumps({"time": datetime.now(UTC).isoformat(), "event": event, **fields}, allow_nan=False)
        with (self.path / EVENTS_FILE).open("a", encoding="utf-8", newline="\n") as file:
            file.write(line + "\n")

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
            self.log_event("run_ended", status="completed", error=None)

    def end_progress(self) -> None:
        """Remove the progress file, and parts of files: nothing is running any more."""
        for path in (self.path / PROGRESS_FILE, *(self.path / f".{name}.part" for name in _JSON_FILES)):
            path.unlink(missing_ok=True)

    def keep_logs(self, logs: Iterable[Path]) -> None:
        """Copy Flower's logs of a run that failed, each under its name below a line that says what it is."""
        for log in logs:
            text = log.read_bytes() if log.exists() else b""
            (self.path / log.name).write_bytes(LOG_HEADER.encode() + b"\n" + text)


class RunDisplay:
    """What a strategy calls while it asks: answers go to the ledger, progress and events to the folder."""

    def __init__(self, folder: ResultFolder, ledger: Ledger) -> None:
        self._folder = folder
        self._ledger = ledger
        self._detail = ""
        self._progress = Progress(asked=0, answered=0)

    def accept(self, query: Query, answer: Answer, node_id: int) -> None:
        """Keep a valid answer; it is on the disk when this returns."""
        self._ledger.append(query, answer, node_id=node_id)
        round = self._progress.round
        self._folder.log_event("answer_accepted", round=round, client_id=answer.client_id, node_id=str(node_id))

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


def _require_ours(path: Path, sign: bytes) -> None:
    """Raise FolderError unless a run of ours wrote this file, as its content says; an empty file is not ours."""
    problem = "is no file"
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(_SIGN_RANGE)
            file.seek(max(0, path.stat().st_size - _SIGN_RANGE))
            if not head or sign in head or (sign == _FIGURE_SIGN and sign in file.read()):
                return
        problem = "was not written by a run of this version"
    raise FolderError(f"{path} is in the way: it {problem}; move it away, or choose another folder (--out, output-dir)")


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
    if failure.reason is FailureReason.FLOWER_ERROR and "ray.exceptions" in failure.detail:
        return f"Ray, which runs the simulated clients, broke down; {RAY_REMEDY}"
    is_unknown = failure.reason is FailureReason.FLOWER_ERROR and failure.detail.startswith("Flower's error 3:")
    return _CLOCK_OF_SERVER if is_unknown or failure.reason is FailureReason.NOT_SENT else ""


def progress_content(stage: str, *, detail: str = "", progress: Progress | None = None) -> dict[str, Any]:
    """Return the content of a progress file: what the run is doing, in words, and how far the present round is."""
    now = progress or Progress(asked=0, answered=0)
    return {
        "stage": stage,
        "detail": detail,
        "round": now.round,
        "asked": now.asked,
        "answered": now.answered,
        "failed": now.failed,
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
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not {"time", "event"} <= event.keys():
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
    """Return what the log says of a failure: which client and node, and why; the node's id as a text."""
    return {
        "client_id": failure.client_id,
        "claimed_name": failure.claimed_name,
        "node_name": failure.node_name,
        "node_id": None if failure.node_id is None else str(failure.node_id),
        "reason": str(failure.reason),
    }
