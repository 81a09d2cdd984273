"""`riskband verify`: certificates computed again from the answers they store, in a file of them or a report page."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.files import TableError
from riskband.verification import COLLECTION_SCHEMA, band_behind, source_of
from riskband.worst_cases.requirements import REQUIRED, Gate, Requirement, require

VERIFICATION_SCHEMA = "riskband.verification/1"
_STORED = re.compile(r'<script type="application/json" id="certificates">(.*?)</script>', re.DOTALL)  # in a report page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    parser.add_argument("file", metavar="FILE.json", help="certificates, or a report page (.html) that holds them")
    parser.add_argument("--json", help="print the outcome as JSON, and nothing else", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Compute every certificate in a file again; 0 only if all agree."""
    document = read_document(options.file)
    entries = document["certificates"]
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
    verdicts = {}
    if is_well and "gate" in document:
        gate = gate_again({name: rb.Certificate.from_dict(each) for name, each in entries.items()}, document["gate"])
        is_well, verdicts = gate is not None, {"verdicts_follow": gate is not None}
        if not options.json:
            follow = "its verdicts DO NOT FOLLOW from its answers"
            print(follow if gate is None else f"what was required, from the same answers again:\n{gate.statement}")
    if not options.json and _is_page(options.file):
        print("the text around the certificates was not checked; make the page again to compare")
    if options.json:
        found = {name: _plain(entries[name], outcome) for name, outcome in outcomes.items()}
        print(json.dumps({"schema": VERIFICATION_SCHEMA, "ok": is_well, **verdicts, "certificates": found}, indent=1))
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
        document = stored_certificates(text) if _is_page(file) else json.loads(text)
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


def gate_again(certificates: Mapping[str, rb.Certificate], said: Mapping[str, Any]) -> Gate | None:
    """Return the verdicts of a file, computed again; `None` if it has others than its answers give.

    Raises
    ------
    ValueError
        If they cannot be read, or the certificates are not of plain losses.
    """
    required = (each for name, each in certificates.items() if name.startswith(REQUIRED))
    first = next(required, None) or next(iter(certificates.values()))
    source = source_of(first)
    if not isinstance(source, (rb.Band, rb.ClientRisks)):
        source = band_behind(first)
    try:
        if isinstance(source, rb.Band) and source.delta != said["delta"]:
            source = source.answers  # of a band for one requirement, which had a part of delta
        verdicts = {each["requirement"]: each["verdict"] for each in said["requirements"]}
        gate = gate_of(source, list(map(Requirement.of, verdicts)), delta=said["delta"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the verdicts of the file cannot be read ({error!r}); was it cut?") from error
    return gate if {str(each.requirement): each.verdict for each in gate.verdicts} == verdicts else None


def gate_of(source: object, requirements: list[Requirement], *, delta: float) -> Gate:
    """Return the verdicts on answers or a band; raises ValueError for anything else."""
    if not isinstance(source, (rb.Band, rb.ClientRisks)):
        raise ValueError("requirements need the plain losses of one model, and these certificates have others")
    return require(source, requirements, delta=delta if isinstance(source, rb.ClientRisks) else None)


def _is_page(file: str) -> bool:
    return Path(file).suffix.lower() in (".html", ".htm")


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
