"""`riskband verify`: certificates computed again from the answers they store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.csv import TableError

COLLECTION_SCHEMA = "riskband.certificates/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    parser.add_argument("file", metavar="FILE.json")


def run(options: argparse.Namespace) -> int:
    """Compute every certificate in a file again; 0 only if all agree."""
    try:
        document = json.loads(Path(options.file).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{options.file} must be JSON as riskband writes it: {error}") from error
    is_collection = isinstance(document, dict) and document.get("schema") == COLLECTION_SCHEMA
    entries = document.get("certificates") if is_collection else {"certificate": document}
    if not isinstance(entries, dict) or not entries:
        raise ValueError(f"{options.file} must hold at least one certificate, by name; was it cut?")
    status, unreadable = 0, []
    for name, entry in entries.items():
        try:
            outcome = rb.verify(entry)
        except ValueError as error:
            unreadable.append(f"{name}: {error}")
            continue
        print(f"{name}: {_outcome(entry) if outcome.ok else 'DOES NOT FOLLOW from its answers'}")
        for problem in outcome.problems:
            print(f"  {problem}")
        if outcome.unstated:
            print("  it was made before riskband listed these assumptions, which it needs too:")
            print("\n".join(f"  - {line}" for line in outcome.unstated))
        status = status if outcome.ok else 1
    if unreadable:
        raise TableError(unreadable)
    return status


def _outcome(entry: Mapping[str, Any]) -> str:
    """What a certificate that was computed again says, and whether it is one."""
    kinds = {
        "certificate": "",
        "as-published": ", by a formula with a gap in its proof",
        "estimate": ", as an ESTIMATE",
    }
    return f"follows from its answers{kinds[entry['validity']]}: {entry['statement']}"
