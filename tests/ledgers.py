"""Ledgers as a run of the App writes them, without a run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protocol.questions import LossAnswer
from server.run.ledger import SCHEMA
from tests.house import ROOT

CONFIG: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def write_ledger(
    path: Path,
    risks: Sequence[float],
    num_examples: int = 100,
    *,
    names: Iterable[str] | None = None,
    said: Mapping[str, Sequence[Any]] | None = None,
    model: str = "m",
    **config: Any,
) -> Path:
    """Write the ledger of a run with this configuration; `said` has what each client says of itself, by field."""
    called = [f"client-{k:05d}" for k in range(len(risks))] if names is None else list(names)
    hashes = {"code_hash": "c", "model_hash": model}
    answers = [
        LossAnswer(
            name, risk, num_examples, "zero_one", **hashes, **{key: each[k] for key, each in (said or {}).items()}
        )
        for k, (name, risk) in enumerate(zip(called, risks, strict=True))
    ]
    changes = {key.replace("_", "-"): value for key, value in config.items()}
    header = {"schema": SCHEMA, "recorded": "2026-11-26T10:03:24+00:00", "hashes": {"model": model, "code": "c"}}
    header |= {"config": {**CONFIG, "num-clients": len(risks), "loss": "zero_one", **changes}}
    lines = [header, *({**asdict(each), "node_id": str(k)} for k, each in enumerate(answers, 1))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
