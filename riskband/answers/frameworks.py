"""Files in which other federated frameworks keep what every client measured, read as tables with a row per client."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from riskband.answers.csv import Table, TableError


def nvflare_table(path: Path) -> Table:
    """NVFlare's cross_val_results.json, {site: {model: {metric: number}}}; columns are "MODEL/METRIC"."""
    clients = {}
    for site, models in _entries(_read(path), path):
        found = _entries(models, path)
        clients[site] = {f"{model}/{name}": value for model, metrics in found for name, value in metrics.items()}
    return _table(clients)


def fl4health_table(path: Path) -> Table:
    """FL4Health's reports, a folder with one JSON file per client; columns are the metrics of its last evaluation."""
    clients = {}
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        report = _read(file)
        if report.get("host_type") == "server":
            continue
        rounds = [found.get("eval_round_metrics") for _, found in _entries(report.get("rounds"), file)]
        evaluated = [metrics for metrics in rounds if isinstance(metrics, Mapping)]
        if not evaluated:
            raise TableError([f"{file} must have a round with eval_round_metrics, got none; evaluate with this client"])
        clients[file.stem] = evaluated[-1]  # rounds are written as they come
    return _table(clients)


FRAMEWORKS: Mapping[str, Callable[[Path], Table]] = {"nvflare": nvflare_table, "fl4health": fl4health_table}
"""By name, what reads a framework's file."""


def _table(clients: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (f"client {name}", {column: str(value) for column, value in found.items()}) for name, found in clients.items()
    ]
    return Table(list(dict.fromkeys(column for _, row in rows for column in row)), rows, names=list(clients))


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise TableError([f"{path} must be a JSON object, got {error}; give what the framework wrote"]) from error


def _entries(found: Any, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Items of an object of objects."""
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise TableError([f"{path} must be as the framework writes it, got another structure; see docs/library.md"])
    return list(found.items())
