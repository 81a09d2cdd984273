"""What each function said before there was one door, under the names that numbers have there.

`one_door.json` has an entry for each call: the name of answers in `ANSWERS`, the number as
``FUNCTIONAL[:…][@POPULATION[:…]]``, the terms on which it is bounded, and what came of it. Terms are delta, "sides"
(from the bad end alone, "worse", unless it is "two"; a measure of dispersion has no bad end), "local", "seed", "order"
or "batches" (then it holds at all times), "population", "rank" (in place of delta), and "band", the arguments of the
band that it is read off, which has its own delta. Stored are the ends (null where nothing bounds that one), delta where
it is not that of the terms, the validity unless it is "certificate", the method, keys of the assumptions, and what they
say was chosen before any answer was seen; or the first words of a refusal. ``python -m tests.reference.test_one_door``
says all of it anew, also of an entry that has only its first three fields yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import riskband as rb
from riskband.answers.scaled import ScaledAnswers
from riskband.wording import CHOSEN_BEFORE
from riskband.worst_cases.always_valid import always_valid, is_direct
from riskband.worst_cases.bounds import Networks

FILE = Path(__file__).with_name("one_door.json")
_FIRST_WORDS = 8  # of an error
OF_REQUEST, WORDS = ("answers", "number", "terms"), ("method", "chosen")
# Of 100 examples each, how many are wrong.
OF_THIRTY = [7, 10, 15, 6, 8, 12, 6, 3, 4, 38, 3, 8, 13, 9, 17, 13, 16, 7, 20, 10, 10, 8, 12, 8, 5, 11, 13, 20, 12, 7]
WRONG = np.array([*OF_THIRTY, 5, 10, 3, 15, 4, 8, 9, 8, 19, 38])
NUMBERS = np.arange(WRONG.size)
NAMES = [f"H{number:02}" for number in NUMBERS]
SIZES = 60 + 20 * (NUMBERS % 5)
COUNTED = np.floor(WRONG * SIZES / 100) / SIZES
STRATA = np.where(NUMBERS % 3 == 0, "south", "north")
SHARES = {"north": 0.5, "south": 0.5}
CLUSTERS = [f"chain {number // 2}" for number in NUMBERS]
EDGES = np.linspace(0.0, 1.0, 21)
RADII = np.array([0.0, 0.25, 0.5, 1.0, 2.0])


def risks(wrong: Any = WRONG, num_examples: Any = 100, **said: Any) -> rb.ClientRisks:
    """Error rates of clients, with as many examples each."""
    return rb.ClientRisks(wrong / 100, num_examples, True, **said)


def adversarial(guarantee: str, **said: Any) -> rb.AdversarialAnswers:
    """Concave curves over radii, from the measured risk on."""
    values = np.minimum(WRONG[:, None] / 100 + RADII * (1 + NUMBERS[:, None] % 4) / 10, 1.0)
    return rb.AdversarialAnswers(RADII, values, 100, cost="l2", guarantee=guarantee, binary=True, **said)


ANSWERS: Mapping[str, Any] = {
    "equal": risks(),
    "named": risks(names=NAMES[::-1]),
    "few": risks(WRONG[:8]),
    "sizes": rb.ClientRisks(COUNTED, SIZES, True),
    "rounded": rb.ClientRisks(COUNTED.round(2), SIZES, True),
    "losses": rb.ClientRisks(np.sqrt(WRONG) / 10, 100, False),
    "strata": risks(design={"strata": STRATA, "shares": SHARES}),
    "weights": risks(design={"weights": 1 + NUMBERS % 3, "largest_weight": 4}),
    "clusters": risks(design={"clusters": CLUSTERS}),
    "silent": risks(num_missing=3),
    "silent, worst": risks(num_missing=3, missing="worst"),
    "silent, odds": risks(num_missing=3, missing="odds:2"),
    "contaminated": risks(contamination=1),
    "trainers": risks(answered_by="trainers"),
    "draws": risks(names=NAMES[:-1] + NAMES[:1], repeats="draws"),
    "until decided": risks(ask="until-decided"),
    "noise": rb.ClientRisks(WRONG / 100 + (NUMBERS % 5 - 2) / 47, 100, False, noise="laplace:1"),
    "counts": rb.HistogramRisks(EDGES, rb.risk_histogram(WRONG / 100, 100, edges=EDGES, binary=True), 100, binary=True),
    "counts of limits": rb.HistogramLimits(
        EDGES, rb.risk_histogram(COUNTED, SIZES, edges=EDGES, binary=True, eta=0.1), eta=0.1, binary=True
    ),
    "changes": rb.ClientChanges.from_counts(NUMBERS % 5, NUMBERS % 3, 100, old_wrong=WRONG),
    "changes, losses": rb.ClientChanges(np.sqrt(WRONG) / 10, WRONG / 40, 100, False),
    "changes, silent": rb.ClientChanges(WRONG / 100, WRONG[::-1] / 100, 100, num_missing=2, missing="worst"),
    "auc": rb.ClientScores(1 - WRONG / 100, True, name="AUC"),
    "minutes": rb.ClientScores(WRONG / 2, False, name="waiting time", high=30.0),
    "curves": adversarial("exact"),
    "curves, silent": adversarial("upper", num_missing=2, missing="worst"),
    "attacked": adversarial("lower"),
    "networks": Networks(risks(), risks(WRONG[::4] + 5)),
    "networks, far": Networks(risks(), risks(np.minimum(2 * WRONG, 90))),
    "networks, sizes": Networks(rb.ClientRisks(COUNTED, SIZES, True), risks(WRONG[::4] + 5)),
    "panel": (risks(names=NAMES), [risks(WRONG + 4, names=NAMES), risks((WRONG[:30] + 9), names=NAMES[:30])]),
}


def made(entry: Mapping[str, Any]) -> rb.Certificate:
    """Return the certificate of an entry; raises what the door raises."""
    terms: dict[str, Any] = dict(entry["terms"])
    source = answers_of(entry["answers"], **terms.pop("band", {}))
    if entry["number"].endswith("@panel"):
        return rb.panel_change(*source, **terms)
    if {"order", "batches"} & terms.keys():
        return _at_all_times(source, entry["number"], **terms)
    if "rank" in terms:
        number = rb.Number.of(entry["number"])
        return rb.next_clients(source, number.num_clients, k=int(number.point), **terms)
    return rb.bound(source, entry["number"], **terms)


@cache
def _band(name: str, terms: str) -> Any:
    source = ANSWERS[name]
    both = [rb.band(each, **json.loads(terms)) for each in (source if isinstance(source, Networks) else [source])]
    return both[0] if len(both) == 1 else tuple(both)


def answers_of(name: str, **band: Any) -> Any:
    """Return answers, or the band of them that was asked for."""
    return _band(name, json.dumps(band)) if band else ANSWERS[name]


def _at_all_times(source: Any, number: str, **terms: Any) -> rb.Certificate:
    if isinstance(source, ScaledAnswers) or is_direct(rb.Number.of(number)):
        return always_valid(source, number, **{"sides": "worse"} | terms)
    sequence = rb.Sequence(number, delta=terms["delta"], order=terms.get("order", "arrival"))
    sequence.add(source, batches=terms.get("batches", [1] * len(source)))
    return sequence.certificates[number]


def said(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of an entry's certificate, with its assumptions in words; or of its refusal."""
    try:
        found = made(entry)
    except ValueError as error:
        return {"refused": " ".join(str(error).split()[:_FIRST_WORDS])}
    chosen = [line.removeprefix(CHOSEN_BEFORE) for line in found.assumptions if line.startswith(CHOSEN_BEFORE)]
    return {
        "value": None if found.is_open else np.asarray(found.value).item(),
        "lower": None if found.lower is None else np.asarray(found.lower).item(),
        **({} if found.delta == entry["terms"].get("delta") else {"delta": found.delta}),
        **({} if found.validity == "certificate" else {"validity": found.validity}),
        "method": found.method,
        "assumptions": {line for line in found.assumptions if not line.startswith(CHOSEN_BEFORE)},
        "chosen": sorted(line for line in chosen if not line.startswith("delta ")),
    }


def stored() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the entries, with the keys of their assumptions, and the assumption of each key."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return data["entries"], data["assumptions"]


ENTRIES, ASSUMPTIONS = stored()


def in_words(entry: Mapping[str, Any]) -> str:
    """Return what is asked of which answers, on which terms."""
    terms = json.dumps(entry["terms"]).replace('"', "").strip("{}")
    return f"{entry['number']} of {entry['answers']}, {terms}"


@pytest.mark.guard
@pytest.mark.parametrize("entry", ENTRIES, ids=in_words)
def test_certificates_stay_what_they_are(entry: dict[str, Any]) -> None:
    expected = {name: each for name, each in entry.items() if name not in OF_REQUEST}
    if "assumptions" in expected:
        expected["assumptions"] = {ASSUMPTIONS[key] for key in expected["assumptions"]}
    for name in {"value", "lower", "delta"} & expected.keys():
        if expected[name] is not None:
            expected[name] = pytest.approx(expected[name], rel=1e-12, abs=1e-12)
    now = said(entry)
    words = {name: now.pop(name) for name in WORDS if name in now}
    assert now == {name: each for name, each in expected.items() if name not in WORDS}
    assert words == {name: each for name, each in expected.items() if name in WORDS}


def test_no_entry_is_there_twice_and_all_answers_are_asked() -> None:
    assert len({in_words(entry) for entry in ENTRIES}) == len(ENTRIES)
    assert {entry["answers"] for entry in ENTRIES} == ANSWERS.keys()


def rewrite() -> None:
    """Write what is said now of all entries."""
    lines, rows = dict[str, str](), []
    for entry in ENTRIES:
        now = said(entry)
        if "assumptions" in now:
            keys = {sha256(line.encode()).hexdigest()[:6]: line for line in now["assumptions"]}
            lines, now = lines | keys, now | {"assumptions": sorted(keys)}
        rows.append(json.dumps({name: entry[name] for name in OF_REQUEST} | now, separators=(",", ":")))
    shared = json.dumps(dict(sorted(lines.items())), indent=0)
    listed = ",\n".join(rows)
    FILE.write_text(f'{{"assumptions":{shared},\n"entries":[\n{listed}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    rewrite()
