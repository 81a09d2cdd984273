"""The folder that receives a run's results: names of the files, and writing them whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.events import append_event, continue_events
from strategies.exchange import Progress

REPORT_FILE = "report.json"
FAILURE_FILE = "failed.json"
PROGRESS_FILE = "progress.json"
LEDGER_FILE = "ledger.jsonl"
EVENTS_FILE = "events.jsonl"
CERTIFICATE_FOLDER = "certificates"
FIGURE_STEMS = {
    "f_divergence": "band",
    "wasserstein": "transport",
    "dispersion": "dispersion",
    "selection": "selection",
    "secure_histogram": "band",
}
"""By strategy."""
FIGURE_SUFFIXES = ("png", "svg", "pdf")
LOG_FILES = ("superlink.log", "run.log")
_MARKS = (REPORT_FILE, FAILURE_FILE, PROGRESS_FILE, LEDGER_FILE, EVENTS_FILE, *LOG_FILES)


@dataclass(frozen=True)
class ResultFolder:
    """Where one run writes.

    Attributes
    ----------
    path : Path
        Absolute path of the folder.
    """

    path: Path

    def clear(self, *, resume: bool = False) -> None:
        """Create the folder, and remove what an earlier run left in it; ledgers of answers stay.

        Afterwards a report in the folder is the report of this run.

        Parameters
        ----------
        resume : bool
            Whether the earlier run is continued; then its log of events stays too.

        Raises
        ------
        FileExistsError
            If the folder holds files but no results of an earlier run: they may be somebody's own.
        """
        has_files = any(path.is_file() for path in self.path.rglob("*"))
        if has_files and not any((self.path / name).exists() for name in _MARKS):
            raise FileExistsError(f"{self.path} holds files that are not results of a run")
        (self.path / CERTIFICATE_FOLDER).mkdir(parents=True, exist_ok=True)
        old = [self.path / name for name in (REPORT_FILE, FAILURE_FILE, PROGRESS_FILE, *LOG_FILES)]
        old += (self.path / CERTIFICATE_FOLDER).glob("*.json")
        old += [self.path / f"{stem}.{suffix}" for stem in FIGURE_STEMS.values() for suffix in FIGURE_SUFFIXES]
        if resume:
            continue_events(self.path / EVENTS_FILE)
        else:
            old.append(self.path / EVENTS_FILE)
        for path in old:
            path.unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON object; a reader sees the old file or the new one, never a part."""
        path = self.path / name
        temporary = path.with_name(f".{name}.part")
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the folder; empty if there is no such file."""
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return content

    def log_event(self, event: str, **fields: Any) -> None:
        """Add what happened to the log of events; see `server.events.append_event`."""
        append_event(self.path / EVENTS_FILE, event, fields)

    def show_stage(self, stage: str) -> None:
        """Tell whoever watches the folder, and the log, what the run is doing from now on."""
        self.log_event("stage_started", stage=stage)
        self.show_progress(stage)

    def show_progress(self, stage: str, *, detail: str = "", progress: Progress | None = None) -> None:
        """Tell whoever watches the folder where the run stands; see `progress_content`."""
        self.write_json(PROGRESS_FILE, progress_content(stage, detail=detail, progress=progress))

    def show_failure(self, error: Exception) -> None:
        """Write why the run failed."""
        self.write_json(FAILURE_FILE, {"error": type(error).__name__, "reason": str(error)})
        self.end_progress()
        self.log_event("run_ended", status="failed", error=type(error).__name__)

    def finish(self, report: Mapping[str, Any]) -> None:
        """Write the report: the last file of results, and the sign that they are complete."""
        self.end_progress()
        self.write_json(REPORT_FILE, report)
        self.log_event("run_ended", status="completed", error=None)

    def end_progress(self) -> None:
        """Remove the progress file: nothing is running any more."""
        (self.path / PROGRESS_FILE).unlink(missing_ok=True)


def progress_content(stage: str, *, detail: str = "", progress: Progress | None = None) -> dict[str, Any]:
    """Return the content of a progress file.

    Parameters
    ----------
    stage, detail : str
        What the run is doing, in words.
    progress : Progress, optional
        How far the present round of questions is.
    """
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
