"""What `riskband verify` checks of the folder of a run: that log, ledger, report and certificates belong together."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

from riskband.answers.signing import Signed, is_signed

EVENTS, LEDGER, REPORT = "events.jsonl", "ledger.jsonl", "report.json"
Entry = Mapping[str, Any]

# What a certificate keeps of an answer, and what the ledger calls it.
_IN_LEDGER = {
    "values": {"risk", "risks", "clean_risk", "values_lower", "values_upper"},
    "conjugates": {"conjugates_lower", "conjugates_upper"},
    "old": {"old_risk"},
    "new": {"new_risk"},
    "num_worse": {"num_worse"},
    "num_examples": {"num_examples"},
}


def certificates_of_run(folder: Path) -> dict[str, Entry]:
    """Return the certificates in the folder of a run, by name."""
    return {path.stem: _entries(path, whole=True)[0] for path in sorted(folder.glob("certificates/*.json"))}


def checks_of_run(folder: Path, certificates: Mapping[str, Entry]) -> Iterator[tuple[str, list[str] | None]]:
    """Yield what is checked of a run and what is wrong with it, in words; None where the run is not complete."""
    events, (header, *entries) = _entries(folder / EVENTS), _entries(folder / LEDGER)
    said, entries = entries, [entry for entry in entries if "refusal" not in entry]
    files = events[-1].get("files")  # only the last event of a run that is complete has some
    yield "events_chained", [*_breaks(folder / EVENTS, events)]
    yield "answers_as_logged", [*_not_logged(folder / LEDGER, events)]
    yield "configuration_recorded_first", [*_late(header, events)]
    if "client_keys" in header and not any("counts" in each for each in entries):  # a sum is nobody's answer
        yield "answers_signed", [*_not_signed(header["client_keys"], said, events)]
    if not files:
        is_cut = (folder / REPORT).exists()
        yield "run_complete", [f"{EVENTS} does not end with the run, whose {REPORT} is there"] if is_cut else None
        return
    names = {REPORT, *files, *(f"certificates/{each}.json" for each in certificates)}
    # A list may name anything, and a link lead anywhere: what is not in the folder is none of its files.
    inside = (name for name in names if Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder)))
    found = {name: sha256((folder / name).read_bytes()).hexdigest() for name in inside if (folder / name).is_file()}
    others = sorted(name for name in names if name not in found or found[name] != files.get(name))
    yield "files_unchanged", [f"{name} was changed, added or removed" for name in others]
    if REPORT in found:
        report = _entries(folder / REPORT, whole=True)[0]
        yield "report_agrees", [*_contradictions(report, header, certificates)]
        if not any("counts" in each for each in entries):  # where the server sees only sums, so does the ledger
            yield "answers_in_ledger", [*_not_in_ledger(report["network"]["client_ids"], entries, certificates)]


def last_hash(folder: Path) -> str:
    """Return the SHA-256 of the last event of a run, to which all before it lead."""
    return sha256(_lines(folder / EVENTS)[0][-1]).hexdigest()


def _breaks(path: Path, events: Sequence[Entry]) -> Iterator[str]:
    lines, torn = _lines(path)
    before = json.dumps(events[0].get("config", {}), sort_keys=True).encode()
    for number, (line, event) in enumerate(zip(lines, events, strict=True), start=1):
        if event["before"] != sha256(before).hexdigest():
            yield f"line {number} of {EVENTS} does not follow from the one before: one of them, or one between, changed"
        before = line
    if torn:
        yield f"the last line of {EVENTS} is torn, as a killed run leaves it; --resume cuts and logs that"


def _not_logged(path: Path, events: Sequence[Entry]) -> Iterator[str]:
    so_far, place, last = sha256(), dict[str, int](), 0
    for number, line in enumerate(_lines(path)[0], start=1):
        so_far.update(line)
        place[so_far.hexdigest()] = number
    for event in (each for each in events if "ledger_hash" in each):
        if event["ledger_hash"] not in place:
            yield f"line {last + 1} of {LEDGER} is not what was logged ({event.get('client_id', event['event'])})"
            return
        last = place[event["ledger_hash"]]
    if last < len(place) and events[-1].get("files"):  # a run that was killed may have logged one answer too few
        yield f"line {last + 1} of {LEDGER} was never logged"


def _not_signed(keys: Mapping[str, str], entries: Sequence[Entry], events: Sequence[Entry]) -> Iterator[str]:
    """Answers and refusals that their clients have not signed, for a run of this log and each another message."""
    runs = {event.get("run_id") for event in events if event["event"] == "run_started"}
    others, messages = {"node", "signed", "asked"}, set[str]()
    for number, entry in enumerate(entries, start=2):
        stored, name = entry.get("signed", {}), entry["client_id"]
        version = stored.get("question", {}).get("protocol-version")
        answer = {
            key.replace("_", "-"): value for key, value in entry.items() if key not in others and value is not None
        }
        try:
            signed = Signed.from_dict(stored, entry.get("refusal", {"protocol-version": version, **answer}))
            is_well = stored["key"] == keys.get(name) and stored["run"] in runs and is_signed(signed)
        except (KeyError, TypeError, ValueError):
            is_well = False
        if not is_well or stored["message"] in messages:
            yield f"line {number} of {LEDGER} is not signed by {name} as an answer to a question of this run"
        messages.add(str(stored.get("message")))


def _late(header: Entry, events: Sequence[Entry]) -> Iterator[str]:
    told = (each.get("type", each["event"]) for each in events)  # what was asked, or what else happened
    if next((each for each in told if each == "ledger_begun" or each.startswith("query.")), "") != "ledger_begun":
        yield f"{EVENTS} does not say that {LEDGER} was begun before the first question"
    if events[0].get("config") != header["config"]:
        yield f"{EVENTS} begins with another configuration than {LEDGER}"


def _contradictions(report: Entry, header: Entry, certificates: Mapping[str, Entry]) -> Iterator[str]:
    if not (report["config"].items() <= header["config"].items() and report["hashes"] == header["hashes"]):
        yield f"{REPORT} has another configuration, or other hashes, than {LEDGER}"
    for name in sorted(report["certificates"].keys() | certificates.keys()):
        said, made = report["certificates"].get(name), certificates.get(name)
        if not (said and made) or any(said[key] != made[key] for key in said.keys() & made.keys()):
            yield f"{REPORT} and certificates/{name}.json differ"


def _not_in_ledger(names: Sequence[str], entries: Sequence[Entry], made: Mapping[str, Entry]) -> Iterator[str]:
    said = defaultdict[tuple[str, str], set[Any]](set)
    for entry in entries:
        for column, keys in _IN_LEDGER.items():
            said[entry["client_id"], column] |= _numbers([entry[key] for key in keys & entry.keys()])
    for name, certificate in made.items():
        given = certificate["recipe"]["answers"]
        for answers in [given] if "num_missing" in given else given.values():  # of a selection, by candidate
            for column in (each for each in _IN_LEDGER if answers.get(each)):
                for who, cell in zip_longest(names, answers[column]):  # None is nobody's
                    if not _numbers(cell) <= said[who, column]:
                        yield f"certificates/{name}.json has other {column} of {who} than {LEDGER}"


def _numbers(cell: Any) -> set[Any]:
    return set().union(*map(_numbers, cell)) if isinstance(cell, list) else {cell}


def _lines(path: Path) -> tuple[list[bytes], bytes]:
    """The complete lines of a file, with their ends, and what is torn after them."""
    if path.exists() and not path.is_file():
        raise OSError("no regular file, which may never end")
    *lines, torn = path.read_bytes().split(b"\n")
    return [line + b"\n" for line in lines], torn


def _entries(path: Path, *, whole: bool = False) -> list[Entry]:
    """The JSON objects in the lines of a file, or in the whole; raises ValueError if it has none, or others."""
    try:
        lines, torn = _lines(path)
        found = [json.loads(text) for text in ([b"".join(lines) + torn] if whole else lines)]
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be as a run writes it, got {error}; give the folder of a run, whole") from None
    if not found or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{path} must hold JSON objects, got none or others; give the folder of a run, whole")
    return found
