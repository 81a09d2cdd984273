"""What `riskband verify` checks of the folder of a run: that log, ledger, report and certificates belong together."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

from riskband.answers.signing import Signed, is_signed

EVENTS, LEDGER, REPORT = "events.jsonl", "ledger.jsonl", "report.json"
_WITHOUT_HASH = {EVENTS, LEDGER, "metrics.prom"}  # the last is made of the events, when the run has ended
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
    files = _files(events)
    yield "events_chained", [*_breaks(folder / EVENTS, events)]
    yield "answers_as_logged", [*_not_logged(folder / LEDGER, events)]
    yield "configuration_recorded_first", [*_late(header, events)]
    if "client_keys" in header and not any("counts" in each for each in entries):  # a sum is nobody's answer
        yield "answers_signed", [*_not_signed(header["client_keys"], said, events)]
    if not files:
        is_cut = (folder / REPORT).exists()
        yield "run_complete", [f"{EVENTS} does not end with the run, whose {REPORT} is there"] if is_cut else None
        return
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    there = {path.relative_to(folder).as_posix() for path in paths if not path.name.startswith(".riskband.")}
    names = {REPORT, *files, *there} - _WITHOUT_HASH
    # A list may name anything, and a link lead anywhere: what is not in the folder is none of its files.
    inside = (name for name in names if Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder)))
    found = {name: sha256((folder / name).read_bytes()).hexdigest() for name in inside if (folder / name).is_file()}
    others = sorted(name for name in names if name not in found or found[name] != files.get(name))
    yield "files_unchanged", [f"{name} was changed, added or removed" for name in others]
    if REPORT in found:
        report = _entries(folder / REPORT, whole=True)[0]
        yield "report_agrees", [*_contradictions(report, header, certificates)]
        yield "nobody_left_out", [*_left_out(report["network"], header, entries, events, certificates)]
        in_ledger = _not_its_sum if any("counts" in each for each in entries) else _not_in_ledger
        yield "answers_in_ledger", [*in_ledger(report["network"]["client_ids"], entries, certificates)]


def last_hash(folder: Path) -> str:
    """Return the SHA-256 of the last event of a run, to which all before it lead."""
    return sha256(_lines(folder / EVENTS)[0][-1]).hexdigest()


def _files(events: Sequence[Entry]) -> Mapping[str, str]:
    """The SHA-256 of each file that a complete run left, by name; empty if it is not complete."""
    written, ended = events[0] if len(events) == 1 else events[-2], events[-1]
    is_over = (written["event"], ended["event"], ended.get("status")) == ("files_written", "run_ended", "completed")
    return written["files"] if is_over else {}


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
    if last < len(place) and _files(events):  # a run that was killed may have logged one answer too few
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


def _left_out(
    network: Entry, header: Entry, entries: Sequence[Entry], events: Sequence[Entry], made: Mapping[str, Entry]
) -> Iterator[str]:
    """Clients that have answered and are neither certified nor failed, and failures that were not logged."""
    answers = {name: entry for entry in entries for name in entry.get("clients", [entry.get("client_id")])}
    group = header["config"].get("target", "").partition("group:")[2]  # the clients of a target network
    target = {name for name, entry in answers.items() if group and entry["group"] == group}
    certified, failed = {*network["client_ids"]}, {each["client_id"] for each in network["failures"]}
    claimed = {each["claimed_name"] for each in network["failures"] if each["reason"] == "claimed-twice"}
    for name in sorted(answers.keys() - certified - failed - claimed - target):
        yield f"{LEDGER} has an answer of {name}, and {REPORT} neither certifies nor fails that client"
    for name in sorted(certified & failed | certified - answers.keys()):
        yield f"{REPORT} certifies {name}, which {'failed' if name in failed else f'has no answer in {LEDGER}'}"
    settled = next((each for each in reversed(events) if each["event"] == "answers_settled"), {})
    keys = ("client_id", "claimed_name", "node_name", "reason")
    logged, reported = ([[each[key] for key in keys] for each in said["failures"]] for said in (settled, network))
    if logged != reported or settled["num_answered"] != network["num_answered"]:
        yield f"{REPORT} has other failures, or another number of answers, than {EVENTS}"
    for name, certificate in made.items():
        for given in _answers_in(certificate):
            if given["num_missing"] != len(reported):
                yield f"certificates/{name}.json has {given['num_missing']} clients missing, and {len(reported)} failed"
        if group and "target" in certificate["recipe"]["arguments"]:
            given = certificate["recipe"]["arguments"]["target"]["answers"]
            if sorted(given["values"]) != sorted(answers[each]["risk"] for each in target - failed):
                yield f"certificates/{name}.json has other answers of the group {group} than {LEDGER}"


def _answers_in(certificate: Entry) -> Iterable[Entry]:
    given = certificate["recipe"]["answers"]
    return [given] if "num_missing" in given else given.values()  # of a selection, by candidate


def _not_in_ledger(names: Sequence[str], entries: Sequence[Entry], made: Mapping[str, Entry]) -> Iterator[str]:
    said = defaultdict[tuple[str, str], set[Any]](set)
    for entry in entries:
        for column, keys in _IN_LEDGER.items():
            said[entry["client_id"], column] |= _numbers([entry[key] for key in keys & entry.keys()])
    for name, certificate in made.items():
        for answers in _answers_in(certificate):
            for column in (each for each in _IN_LEDGER if answers.get(each)):
                for who, cell in zip_longest(names, answers[column]):  # None is nobody's
                    if not _numbers(cell) <= said[who, column]:
                        yield f"certificates/{name}.json has other {column} of {who} than {LEDGER}"


def _not_its_sum(names: Sequence[str], entries: Sequence[Entry], made: Mapping[str, Entry]) -> Iterator[str]:
    """As `_not_in_ledger`, of sums: that of all clients, or if it was wrong those of groups."""
    sums = [each for each in entries[1:] if {*each["clients"]} <= {*names}] or entries[:1]
    counts = [
        [sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*(e["counts"] for e in sums), strict=True)
    ]
    for name, certificate in made.items():
        said = certificate["recipe"]["answers"]["counts"]
        if said != (counts if isinstance(said[0], list) else counts[0]):
            yield f"certificates/{name}.json has other counts than the sums of its clients in {LEDGER}"


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
