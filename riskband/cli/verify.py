"""`riskband verify`: certificates computed again from the answers they store, in a file of them or a report page."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.csv import TableError
from riskband.verification import COLLECTION_SCHEMA

VERIFICATION_SCHEMA = "riskband.verification/1"
_STORED = re.compile(r'<script type="application/json" id="certificates">(.*?)</script>', re.DOTALL)  # in a report page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    parser.add_argument("file", metavar="FILE.json", help="certificates, or a report page (.html) that holds them")
    parser.add_argument("--json", help="print the outcome as JSON, and nothing else", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Compute every certificate in a file again; 0 only if all agree."""
    entries = read_document(options.file)["certificates"]
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


def read_document(file: str) -> dict[str, Any]:
    """Return what a file holds as `riskband certify --out` writes it: certificates by name, and verdicts if it has any.

    Raises
    ------
    ValueError
        If it holds neither a certificate nor several, as JSON or in a report page.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
        document = stored_certificates(text) if Path(file).suffix.lower() in (".html", ".htm") else json.loads(text)
    except (json.JSONDecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} must be JSON as riskband writes it: {error}") from error
    if not (isinstance(document, dict) and document.get("schema") == COLLECTION_SCHEMA):
        document = {"certificates": {"certificate": document}}
    if not isinstance(document.get("certificates"), dict) or not document["certificates"]:
        raise ValueError(f"{file} must hold at least one certificate, by name; was it cut?")
    return document


def stored_certificates(page: str) -> dict[str, Any]:
    """Return the certificates in a report page, as `riskband certify --out` writes them.

    Raises
    ------
    ValueError
        If the text is no report page, was made with ``public=True``, or its certificates were too large for it.
    """
    found = _STORED.search(page)
    if found is None:
        raise ValueError("this is no report page of riskband: it holds no certificates")
    document = json.loads(found[1])
    if not isinstance(document, dict) or document.get("schema") != COLLECTION_SCHEMA:
        why = document.get("withheld") if isinstance(document, dict) else None
        raise ValueError(f"{why or 'its certificates cannot be read'}; verify the certificates it was made of")
    return document


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
