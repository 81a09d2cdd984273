"""The folder that receives a run's results: names of the files, and writing them whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPORT_FILE = "report.json"
FAILURE_FILE = "failed.json"
PROGRESS_FILE = "progress.json"
LEDGER_FILE = "ledger.jsonl"
CERTIFICATE_FOLDER = "certificates"
FIGURE_STEMS = {
    "f_divergence": "band",
    "wasserstein": "transport",
    "dispersion": "dispersion",
    "selection": "selection",
}
"""By strategy."""
FIGURE_SUFFIXES = ("png", "svg", "pdf")
LOG_FILES = ("superlink.log", "run.log")
_MARKS = (REPORT_FILE, FAILURE_FILE, PROGRESS_FILE, LEDGER_FILE, *LOG_FILES)


@dataclass(frozen=True)
class ResultFolder:
    """Where one run writes.

    Attributes
    ----------
    path : Path
        Absolute path of the folder.
    """

    path: Path

    def clear(self) -> None:
        """Create the folder, and remove what an earlier run left in it; ledgers of answers stay.

        Afterwards a report in the folder is the report of this run.

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

    def show_stage(self, stage: str, *, detail: str = "", asked: int = 0, answered: int = 0, failed: int = 0) -> None:
        """Tell whoever watches the folder what the run is doing, where it stands, and how many clients answered."""
        counts = {"asked": asked, "answered": answered, "failed": failed}
        self.write_json(PROGRESS_FILE, {"stage": stage, "detail": detail, **counts})

    def show_failure(self, error: Exception) -> None:
        """Write why the run failed."""
        self.write_json(FAILURE_FILE, {"error": type(error).__name__, "reason": str(error)})
        self.end_progress()

    def finish(self, report: Mapping[str, Any]) -> None:
        """Write the report: the last file of a run, and the sign that it is complete."""
        self.end_progress()
        self.write_json(REPORT_FILE, report)

    def end_progress(self) -> None:
        """Remove the progress file: nothing is running any more."""
        (self.path / PROGRESS_FILE).unlink(missing_ok=True)
