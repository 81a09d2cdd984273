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
VERIFICATION_SCHEMA = "riskband.verification/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    parser.add_argument("file", metavar="FILE.json")
    parser.add_argument("--json", help="print the outcome as JSON, and nothing else", action="store_true")


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
    outcomes, unreadable = {}, []
    for name, entry in entries.items():
        try:
            outcomes[name] = rb.verify(entry)
        except ValueError as error:
            unreadable.append(f"{name}: {error}")
            continue
        if not options.json:
            _say(name, entry, outcomes[name])
    is_well = all(outcome.ok for outcome in outcomes.values())
    if unreadable:
        raise TableError(unreadable)
    if options.json:
        found = {name: _plain(entries[name], outcome) for name, outcome in outcomes.items()}
        print(json.dumps({"schema": VERIFICATION_SCHEMA, "ok": is_well, "certificates": found}, indent=1))
    return 0 if is_well else 1


def _plain(entry: Mapping[str, Any], outcome: rb.Verification) -> dict[str, Any]:
    said = {name: entry.get(name) if outcome.ok else None for name in ("statement", "validity")}
    return {"ok": outcome.ok, **said, "problems": list(outcome.problems), "unstated": list(outcome.unstated)}


def _say(name: str, entry: Mapping[str, Any], outcome: rb.Verification) -> None:
    print(f"{name}: {_outcome(entry) if outcome.ok else 'DOES NOT FOLLOW from its answers'}")
    for problem in outcome.problems:
        print(f"  {problem}")
    if outcome.unstated:
        print("  it was made before riskband listed these assumptions, which it needs too:")
        print("\n".join(f"  - {line}" for line in outcome.unstated))


def _outcome(entry: Mapping[str, Any]) -> str:
    """What a certificate that was computed again says, and whether it is one."""
    kinds = {
        "certificate": "",
        "as-published": ", by a formula with a gap in its proof",
        "estimate": ", as an ESTIMATE",
    }
    return f"follows from its answers{kinds[entry['validity']]}: {entry['statement']}"
