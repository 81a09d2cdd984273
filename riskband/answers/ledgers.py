"""The ledger of a run of the App as a table: with it comes all that the run says of its clients.

Its configuration says how they were drawn, and what is assumed of who answered. How many are silent says the log of
events beside it; while that does not, so many as are missing of those that the run expects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from riskband.answers.design import SAID_BY_CLIENTS, design_asked
from riskband.answers.doors import TableError
from riskband.answers.responses import UNTIL_DECIDED
from riskband.answers.rows import seeded_order
from riskband.answers.tables import Table

_COLUMNS = {"client": "client_id", "loss": "risk", "num_examples": "num_examples"}  # with what a ledger calls them
_UNSAID = ("accuracy", "group", "stratum", "shares", "sampling_weight", "largest_weight", "cluster")  # but by some
_OF_ALL = ("missing", "contamination", "answered_by")
_BINARY_LOSS = "zero_one"
_GROUP = "group:"  # begins a target network that is a group of the clients that were asked


def is_ledger(path: str, framework: str | None = None) -> bool:
    """Return whether a file is read as the ledger of a run."""
    return framework is None and path.endswith(".jsonl")


def header_of(path: Path) -> dict[str, Any]:
    """Return the header of a ledger; raises ValueError if its first line is no JSON object, and OSError."""
    with path.open("rb") as ledger:
        return dict(json.loads(ledger.readline()))


def who_is_asked(config: Mapping[str, Any]) -> str:
    """Return how a run with this configuration asks: also "all" if those of one batch are all that it ever asks."""
    is_one_batch = config["batch-size"] >= (config["max-clients"] or config["num-clients"])
    return "all" if is_one_batch else str(config["ask"])


def model_problems(files: Iterable[str], *, hashes: Iterable[str] = ("model",)) -> list[str]:
    """Return what differs between the runs whose ledgers are among these files, and may not: their loss, or a hash."""
    places = {"loss": ("config", "loss"), **{name: ("hashes", name) for name in hashes}}
    said: dict[str, dict[str, str]] = {name: {} for name in places}
    for file in filter(is_ledger, files):
        with suppress(ValueError, TypeError, KeyError, OSError):  # whoever reads it says what is wrong
            header = header_of(Path(file))
            for name, (part, key) in places.items():
                said[name].setdefault(str(header[part][key]), f"{header[part][key]!s:.12} in {file}")
    rule = "ledgers that are taken together must be of one"
    differ = [name for name, values in said.items() if len(values) > 1]
    return [f"{rule} {name}, got {' and '.join(said[name].values())}; evaluate it again" for name in differ]


def ledger_table(path: Path) -> Table:
    """Read a header and one answer a line, of which the last may still be being written.

    Raises `TableError` with the reason if it is no ledger of losses, or has what no table of losses can carry.
    """
    log = path.with_name(path.name.replace("ledger", "events"))
    events = _lines(log) if log != path and log.is_file() else []  # first: what is logged is in the ledger already
    lines = _lines(path)
    try:
        header, *entries = (dict(json.loads(line)) for line in lines)
        config, is_known = header["config"], str(header["schema"]).startswith("riskband.ledger/")
        asked, who = design_asked(config["design"]), {name: config[name.replace("_", "-")] for name in _OF_ALL}
        who["ask"] = who_is_asked(config)
        settled = _settled(events, lines)
        failed = {each["client_id"] for each in settled["failures"]} if settled else set()
        said = {number: entry for number, entry in enumerate(entries, 2) if "refusal" not in entry}
        answers = {number: entry for number, entry in said.items() if entry["client_id"] not in failed}
        silent = config["num-clients"] - len(answers) if settled is None else len(settled["failures"])
        if config["ask"] == UNTIL_DECIDED:  # a batch comes in any order, and was asked in this one
            order = seeded_order({each["client_id"] for each in answers.values()}, seed=config["seed"])
            place = {name: number for number, name in enumerate(order)}
            answers = dict(sorted(answers.items(), key=lambda each: place[each[1]["client_id"]]))
        is_grouped = any(each["group"] is not None for each in answers.values())
        drawn = [one for part, (_, one) in SAID_BY_CLIENTS.items() if part in asked]
        named = _COLUMNS | {name: name for name in (*drawn, *["group"] * is_grouped)}
        frame = {name: np.array([each[key] for each in answers.values()]) for name, key in named.items()}
        beyond = {
            "noise in its answers": config["privacy"],
            f"target = {config['target']!r}, whose clients are of two networks": config["target"].startswith(_GROUP),
            "nothing that says how many were asked": settled is None and _needs_log(config, num_answers=len(answers)),
            "other answers than events.jsonl beside it has": settled and settled["num_answered"] != len(answers),
        }
        columns: dict[str, Any] = dict.fromkeys(_UNSAID)
        columns |= {"percent": False, "is_score": False, "binary": config["loss"] == _BINARY_LOSS}
        columns |= {name: name for name in named} | {name: asked[name] for name in asked if name != "clusters"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TableError([f"{path} must be the ledger of a run that asks for losses, got {error!r}"]) from error
    if problems := [what for what, has in beyond.items() if has] if is_known else ["another schema"]:
        rule = f"{path} must be a ledger that a table of losses can carry, got {problems[0]}"
        raise TableError([f"{rule}; see the folder of its run: its certificates, and riskband verify"])
    numbers = list(answers)
    who |= {"num_missing": max(silent, 0), "noise": None}
    return Table(frame, lambda row: f"line {numbers[row]}", "client", columns=columns, who=who)


def _needs_log(config: Mapping[str, Any], *, num_answers: int) -> bool:
    """Whether a run may have asked others than as many as it expects: of these nobody knows who is silent."""
    is_open = config["client-ids"] == "any" and (config["missing"] != "ignore" or num_answers > config["num-clients"])
    return bool(is_open or config["ask"] == UNTIL_DECIDED)


def _lines(path: Path) -> list[bytes]:
    """The complete lines of a file."""
    return path.read_bytes().split(b"\n")[:-1]


def _settled(events: Iterable[bytes], lines: Iterable[bytes]) -> Mapping[str, Any] | None:
    """The event that says who answered and who failed, once all replies were compared; None if it is not there yet.

    One that counts no answers if the log beside the ledger is of others.
    """
    settled, last = None, ""
    for event in map(json.loads, events):
        settled = event if event["event"] in ("answers_settled", "quorum_missed") else settled
        if "ledger_hash" in event:  # another answer has come since
            settled, last = None, event["ledger_hash"]
    digest, digests = sha256(), [""]
    for line in lines:
        digest.update(line + b"\n")
        digests.append(digest.hexdigest())
    if last not in digests:
        return {"num_answered": None, "failures": ()}
    return settled if last == digests[-1] else None
