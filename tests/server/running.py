"""Run the whole app, ServerApp and ClientApps, over `InProcessGrid`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from rich.console import Console

import riskband as rb
from client.app import app as client_app
from riskband.flower.testing import Behaviour, InProcessGrid
from server.app import app as server_app
from server.report.table import report_table
from tests.schemas import problems

SMALL = {
    "num-clients": 12,
    "num-unseen": 8,
    "examples-per-client": 40,
    "training-epochs": 1,
    "thresholds": 10,
    "model": "mlp",
    "figure-format": "none",  # drawing takes most of so small a run; tests of figures ask for them
    "node-timeout": 0.5,
    "reply-timeout": 300.0,  # a slow machine is no reason to fail
}


def run_app(
    folder: Path,
    defaults: Mapping[str, Any],
    *,
    grid_seed: int = 0,
    behaviours: Mapping[int, Behaviour] | None = None,
    num_nodes: int | None = None,
    node_configs: Mapping[int, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Run the app in this process and return its report, which fits the published schema."""
    config = {**defaults, **SMALL, "output-dir": str(folder)}
    config |= {key.replace("_", "-"): value for key, value in changes.items()}
    size = config["num-clients"] if num_nodes is None else num_nodes
    grid = InProcessGrid(
        client_app,
        num_clients=size,
        run_config=config,
        node_configs=node_configs,
        behaviours=behaviours,
        seed=grid_seed,
        clients_per_pull=5,
        reply_timeout=config["reply-timeout"],
    )
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server_app(grid, context)
    report = json.loads((folder / "report.json").read_text())
    assert problems("report", report) == []
    return report


def at_every_budget(folder: Path, name: str) -> np.ndarray:
    """What the answers behind a run's certificate bound for every budget at once: the multipliers alone matter."""
    recipe = rb.Certificate.load(folder / "certificates" / f"{name}.json").recipe
    arguments = {**recipe["arguments"], "every_budget": True}
    return np.asarray(getattr(rb, name)(rb.AdversarialAnswers(**recipe["answers"]), **arguments).value)


def saved_certificates(folder: Path) -> list[Path]:
    """The files of the certificates of a run, of which there is one at least."""
    found = sorted((folder / "certificates").iterdir())
    assert found
    return found


def raises(message: Any, answer: Any) -> list[Any]:
    raise ValueError("this client is broken")


def printed(report: Mapping[str, Any], *, width: int = 400) -> str:
    """What a run prints of its report."""
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(report_table(report))
    return capture.get()
