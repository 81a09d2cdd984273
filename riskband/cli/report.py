"""`riskband report`: certificates as a page for the person who signs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.scaled import CHANGE, RISK, scale_of
from riskband.cli.verify import by_number, gate_again, read_document
from riskband.report import words
from riskband.report.findings import findings
from riskband.report.page import report_page
from riskband.report.view import RunFacts
from riskband.worst_cases.requirements import (
    REQUIRED,
    Gate,
    Requirement,
    certificates_of,
    numbers_behind,
    verdicts_on,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    add = parser.add_argument
    add("files", help="certificates of one evaluation; the first is on top", metavar="FILE.json", nargs="+")
    add("-o", "--out", help="where to write the page", metavar="PAGE.html", required=True)
    add("--title", help="what was evaluated (default: the name of the first file)")
    required = 'such as "mean<=0.2", of numbers that the files certify; fixed before any answer was seen'
    add("--require", help=required, metavar="REQUIREMENT", nargs="+", default=[])
    about = "what is said of the evaluation: model=…, data=…, date=…, author=…; in place of what the file says"
    add("--about", help=about, metavar="KEY=VALUE", nargs="+", action="extend", default=[])
    public = "without what clients measured; such a page cannot be computed again"
    add("--public", help=public, action="store_true")
    add("--json", help="print what the page says as JSON, and nothing else", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Compute every certificate again, then write the page."""
    out, sources = Path(options.out), {Path(file).resolve() for file in options.files}
    if out.suffix.lower() not in (".html", ".htm") or out.resolve() in sources:
        raise ValueError(f"--out must be a new page that ends in .html, got {options.out!r}")
    requirements = [Requirement.of(text) for text in options.require]
    entries, gates, said, about = _read(options.files)
    certificates = {name: checked(name, entry) for name, entry in entries.items()}
    gate = _gate(certificates, gates, requirements)
    own = {name: each for name, each in certificates.items() if not name.startswith(REQUIRED)}
    title = options.title or Path(options.files[0]).stem
    limits = {(each["limit"], each["threshold"]): None for each in said.get("breakdowns", ())}
    about |= words.about(options.about)
    facts = RunFacts(names=tuple(said.get("clients", ())), limits=tuple(limits), about=about)
    page = report_page(own or certificates, title=title, require=gate or (), facts=facts, public=options.public)
    out.write_text(page, encoding="utf-8")
    if options.json:
        said = {name: each.statement for name, each in certificates.items()}
        verdicts = None if gate is None else gate.to_dict()
        print(json.dumps({"page": str(out), "public": options.public, "statements": said, "gate": verdicts}, indent=1))
    else:
        holds = "it holds what each client measured; --public leaves it out"
        if options.public:
            holds = "without what each client measured; exact bounds, quantiles above all, may still tell some of it"
        print(f"report: {options.out} ({holds})", *([] if gate is None else [gate]), sep="\n")
    return 0


# Those of each file that has any, after names of its certificates.
_Verdicts = list[tuple[list[str], Mapping[str, Any]]]


def _read(files: list[str]) -> tuple[dict[str, Any], _Verdicts, Mapping[str, Any], dict[str, str]]:
    """Certificates by name, in the order of the files, their verdicts, what the first says together, and `about`."""
    if len({Path(file).resolve() for file in files}) < len(files):
        raise ValueError(f"every file may be given once, got {', '.join(files)}")
    entries: dict[str, Any] = {}
    gates: _Verdicts = []
    said: Mapping[str, Any] = {}
    about: dict[str, str] = {}
    for file in files:
        document = read_document(file)
        names = []
        for name, entry in document["certificates"].items():
            called = Path(file).stem if name == "certificate" else name
            names.append(called if called not in entries else f"{called} of {file}")
            entries[names[-1]] = entry
        gates += [(names, document["gate"])] if "gate" in document else []
        said = said or document.get("findings", {})
        about = document.get("about", {}) | about
    return entries, gates, said, about


def checked(name: str, entry: Any) -> rb.Certificate:
    """Return the certificate, if it follows from its answers; raises ValueError otherwise."""
    outcome = rb.verify(entry)
    if not outcome.ok:
        raise ValueError(f"{name} does not follow from its answers, so it is not used: {outcome.problems[0]}")
    return rb.Certificate.from_dict(entry)


def _gate(certificates: Mapping[str, rb.Certificate], gates: _Verdicts, asked: list[Requirement]) -> Gate | None:
    """The verdicts, computed again: those that a file holds, or on what is asked now."""
    if gates and asked:
        raise ValueError("the file has requirements already, which were fixed before its answers; leave out --require")
    if len(gates) > 1:
        raise ValueError("requirements of two files have no delta in common; make a page for each")
    if not gates and not asked:
        return None
    if gates:
        [(names, stored)] = gates  # another file may bound the same numbers with other parts of delta
        gate = gate_again({name: certificates[name] for name in names}, stored)
        if gate is None:
            raise ValueError("the verdicts of the file do not follow from its certificates, so no page is made of them")
        return gate
    found = findings(certificates)
    band = found.band
    known = by_number(certificates)
    missing = [each for each in numbers_behind(asked) if str(each) not in known]
    command = "compare" if scale_of(found.answers) is CHANGE else "certify"
    for requirement in asked:
        requirement.check(scale_of(found.answers) or RISK)
    if missing and (band is None or band.sides != "two"):
        raise ValueError(
            f"the files hold no certificate of {' and '.join(map(str, missing))}, and no band with both sides to read "
            "it off; "
            f"ask for it when the certificates are made: riskband {command} --require"
        )
    read = {} if band is None else certificates_of(band, missing, delta=None)
    return verdicts_on(known | read, asked, delta=found.delta)
