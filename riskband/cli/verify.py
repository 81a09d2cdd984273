"""`riskband verify`: certificates computed again from the answers they store, in a file, a report page or a run."""

from __future__ import annotations

import argparse
import json
import lzma
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.doors import TableError
from riskband.checks import check_delta
from riskband.cli.run_folder import certificates_of_run, checks_of_run, last_hash
from riskband.report.findings import events_of, findings
from riskband.report.page import page_again
from riskband.verification import COLLECTION_SCHEMA, Verification
from riskband.wording import printable
from riskband.worst_cases.number import Number
from riskband.worst_cases.requirements import REQUIRED, Gate, Requirement, numbers_behind, verdicts_on

VERIFICATION_SCHEMA = "riskband.verification/1"
_STORED = re.compile(r'<script type="application/json" id="certificates">(.*?)</script>', re.DOTALL)  # in a report page
_LONG_NUMBER = re.compile(r"\d+\.\d{10,}(?:e[-+]\d+)?")  # its last digits depend on the processor
_LARGEST_UNPACKED = 2**28  # bytes
_Checks = Iterator[tuple[str, bool | None, list[str]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    what = "certificates, a report page (.html) that holds them, or the folder of a run"
    parser.add_argument("file", metavar="FILE.json", help=what)
    parser.add_argument("--expect", metavar="HASH", help="of a run's last event, as it was said before")
    parser.add_argument("--json", help="print the outcome as JSON, and nothing else", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Compute every certificate in a file again; 0 only if all agree, 3 if the text of a page could not be checked."""
    path, is_run = Path(options.file), Path(options.file).is_dir()
    if options.expect and not is_run:
        raise ValueError(f"--expect is of the log of a run, got {path}; give the folder of a run, or leave it out")
    document = {"certificates": certificates_of_run(path)} if is_run else read_document(options.file)
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
    follows: dict[str, bool | None] = {}
    rest = _of_run(path, entries, options.expect) if is_run else _rest(options.file, document) if is_well else ()
    for what, does_follow, said in rest:
        follows[what] = does_follow
        if not options.json:
            print(*map(printable, said), sep="\n")
    status = int(not is_well or False in follows.values()) or 3 * (None in follows.values())  # 3 as for NOT DECIDED
    if options.json:
        found = {name: _plain(entries[name], outcome) for name, outcome in outcomes.items()}
        print(json.dumps({"schema": VERIFICATION_SCHEMA, "ok": not status, **follows, "certificates": found}, indent=1))
    return status


def _of_run(folder: Path, made: Mapping[str, Any], expected: str | None) -> _Checks:
    """As `_rest`, of a run: whether its files belong together."""
    try:
        for what, problems in checks_of_run(folder, made):
            words = ["NOT VERIFIED: it failed, was killed or goes on"] if problems is None else problems or ["yes"]
            said = [f"{what.replace('_', ' ')}: {each}" for each in words]
            yield what, None if problems is None else not problems, said
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"a file in {folder} is not as a run writes it ({error!r}); was it cut?") from error
    is_expected = expected in (None, head := last_hash(folder))
    yield "last_event", is_expected, [f"last event: {head}{'' if is_expected else f', NOT THE EXPECTED {expected}'}"]


def _rest(file: str, document: Mapping[str, Any]) -> _Checks:
    """What a file holds beside its certificates, which follow; whether it does too, `None` if unknown; in lines."""
    certificates, gate = {name: rb.Certificate.from_dict(each) for name, each in document["certificates"].items()}, None
    if "gate" in document:
        gate = gate_again(certificates, document["gate"])
        if gate is None:
            yield "verdicts_follow", False, ["its verdicts DO NOT FOLLOW from its certificates"]
            return
        said = [each.statement for each in gate.verdicts]
        yield "verdicts_follow", True, ["what was required, from them again:", *said]
    if "findings" in document:
        follow = _findings_follow(certificates, gate, document["findings"])
        does = "follows" if follow else "DOES NOT FOLLOW"
        yield "findings_follow", follow, [f"what it says of them all {does} from them"]
    if _is_page(file):
        follows, how = _judged_text(file, document.get("page"), certificates, gate)
        signed = sha256(_STORED.findall(Path(file).read_text(encoding="utf-8"))[0].encode()).hexdigest()
        yield "text_follows", follows, [how, f"SHA-256 of what is signed: {signed}"]


def _findings_follow(certificates: Mapping[str, rb.Certificate], gate: Gate | None, said: Mapping[str, Any]) -> bool:
    try:
        limits = [(each["limit"], each["threshold"]) for each in said["breakdowns"]]
        known = {"unbounded": _unbounded(said["unbounded"], certificates, gate), "names": said["clients"]}
        return _is_same(said, findings(certificates, gate=gate, limits=limits, **known).to_dict())
    except (KeyError, TypeError) as error:
        raise ValueError(f"the findings of the file cannot be read ({error!r}); was it cut?") from error


def _unbounded(said: Iterable[str], certificates: Mapping[str, rb.Certificate], gate: Gate | None) -> list[str]:
    """What has no certificate of what is required or said; what has a largest value always has one."""
    required = numbers_behind(() if gate is None else (each.requirement for each in gate.verdicts))
    missing = [name for name in dict.fromkeys([*map(str, required), *said]) if name not in by_number(certificates)]
    return [name for name in missing if Number.of(name).range()[1] == float("inf")]


def _is_same(stored: object, again: object) -> bool:
    first, second = (_LONG_NUMBER.sub(_rounded, json.dumps(each, sort_keys=True)) for each in (stored, again))
    return first == second


def _judged_text(
    file: str, page: object, certificates: Mapping[str, rb.Certificate], gate: Gate | None
) -> tuple[bool | None, str]:
    """Whether the text of a page is that of the page made again, `None` if this version cannot tell; in words."""
    facts: Mapping[str, Any] = page if isinstance(page, Mapping) else {}
    made_by = facts.get("version")
    unchecked = "NOT VERIFIED, whatever the page says: the text around the certificates was not checked: "
    if made_by != rb.__version__:
        return None, f"{unchecked}riskband {made_by or '(it does not say which)'} made it, and this is {rb.__version__}"
    try:
        again = page_again(facts, certificates, gate)
    except ImportError as error:
        return None, f"{unchecked}{error}"
    found, expected = (_LONG_NUMBER.sub(_rounded, text) for text in (Path(file).read_text(encoding="utf-8"), again))
    if found == expected:
        return True, f"its text is, word for word, what riskband {made_by} makes of them and of the names it was given"
    num_alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False)))
    parts = (repr(text[max(num_alike - 30, 0) : num_alike + 50]) for text in (found, expected))
    return False, "its text WAS CHANGED: it has {}, and made again {}".format(*parts)


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.9g}"


def read_document(file: str) -> dict[str, Any]:
    """Return what a file holds as `riskband certify --out` writes it: certificates by name, and verdicts if it has any.

    Raises ValueError if it holds neither a certificate nor several, as JSON or in a report page.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
        document = stored_certificates(text) if _is_page(file) else json.loads(text)
    except (json.JSONDecodeError, RecursionError, UnicodeDecodeError) as error:
        remedy = f"make certificates of a table by: riskband certify {file} --out certificate.json"
        if Path(file).suffix == ".jsonl":
            remedy = "of a run give its folder, as a whole"
        raise ValueError(f"{file} must be JSON as riskband writes it, got {error}; {remedy}") from error
    if not (isinstance(document, dict) and document.get("schema") == COLLECTION_SCHEMA):
        document = {"certificates": {"certificate": document}}
    if not isinstance(document.get("certificates"), dict) or not document["certificates"]:
        raise ValueError(f"{file} must hold at least one certificate, by name; was it cut?")
    if "schema" in document and not (_is_page(file) or isinstance(document.get("findings"), dict)):
        raise ValueError(f"{file} has no findings: what its certificates say together is missing; was it cut?")
    return document


def stored_certificates(page: str) -> dict[str, Any]:
    """Return the certificates in a report page, as `riskband certify --out` writes them.

    Raises ValueError if the text is no report page, was made with ``public=True``, or its certificates were too large.
    """
    found = _STORED.search(page)
    if found is None:
        raise ValueError("this is no report page of riskband: it holds no certificates")
    document = json.loads(found[1])
    if isinstance(document, dict) and isinstance(document.get("xz"), str):
        try:
            packed = b64decode(document["xz"], validate=True)
            document = json.loads(lzma.LZMADecompressor().decompress(packed, _LARGEST_UNPACKED))
        except (lzma.LZMAError, ValueError) as error:
            raise ValueError(f"the certificates of the page cannot be unpacked ({error}); was it cut?") from error
    if not isinstance(document, dict) or document.get("schema") != COLLECTION_SCHEMA:
        why = document.get("withheld") if isinstance(document, dict) else None
        raise ValueError(f"{why or 'its certificates cannot be read'}; verify the certificates it was made of")
    return document


def gate_again(certificates: Mapping[str, rb.Certificate], said: Mapping[str, Any]) -> Gate | None:
    """Return the verdicts of a file, as they follow from its certificates; `None` if it has others.

    Raises ValueError if they cannot be read.
    """
    try:
        requirements = [Requirement.of(each["requirement"]) for each in said["requirements"]]
        delta = check_delta(said["delta"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the verdicts of the file cannot be read ({error!r}); was it cut?") from error
    known, bounded = by_number(certificates), (each for each in requirements if each.number.range()[1] < float("inf"))
    needed = set(map(str, numbers_behind(bounded)))  # what always has a certificate
    if not requirements or not known.keys() >= needed:
        return None
    gate = verdicts_on(known, requirements, delta=delta)
    spent = sum(each.delta for each in events_of(gate.certificates))
    return gate if _is_same(said, gate.to_dict()) and spent <= delta * (1.0 + 1e-9) else None


def by_number(certificates: Mapping[str, rb.Certificate]) -> dict[str, rb.Certificate]:
    """Return certificates by the number that they bound; of two, that which verdicts are said to follow from."""
    in_order = sorted(certificates.items(), key=lambda item: item[0].startswith(REQUIRED))
    return {each.name: each for _, each in in_order}


def _is_page(file: str) -> bool:
    return Path(file).suffix.lower() in (".html", ".htm")


def _plain(entry: Mapping[str, Any], outcome: Verification) -> dict[str, Any]:
    said = {name: entry.get(name) if outcome.ok else None for name in ("statement", "validity")}
    return {"ok": outcome.ok, **said, "problems": list(outcome.problems)}


def _say(name: str, entry: Mapping[str, Any], outcome: Verification) -> None:
    # Of a refuted formula its statement says what it is.
    kind = ", as an ESTIMATE" if entry.get("validity") == "estimate" else ""
    said = f"follows from its answers{kind}: {entry['statement']}" if outcome.ok else "DOES NOT FOLLOW from its answers"
    print(*map(printable, [f"{name}: {said}", *outcome.problems]), sep="\n  ")
