"""Whether what is said of one evaluation agrees: a file of certificates or report.json, the terminal and the page.

A number is read where a reader meets it, so this knows the sentences and tables and nothing of how they were made.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import riskband as rb

_ROUNDING = 1.01e-4  # bounds are shown with four digits, rounded outwards
_WORST_MEANS = {f"mean@{name}" for name in rb.DIVERGENCES}
Numbers = dict[tuple[str, float | None], set[float]]


def contradictions(
    report: Mapping[str, Any] | None = None, *, page: str = "", terminal: str = "", delta: float | None = None
) -> list[str]:
    """Return what does not agree, one line each; an empty list is what a test wants.

    Parameters
    ----------
    report : mapping, optional
        A file of certificates, or the report.json of a run: bounds by name under "certificates", "gate" if there is
        one, and "findings" if it has any.
    page : str
        The HTML of its page; the certificates that it holds are read too.
    terminal : str
        What was printed.
    delta : float, optional
        Of everything together; default: what the findings say.
    """
    found = dict(report or {})
    entries: dict[str, Any] = dict(found.get("certificates", {}))
    stored = _stored(page)
    problems = [f"JSON and page: {line}" for line in _two_numbers({**entries, **_renamed(stored)})]
    problems += [
        f"{name} has {end} {entry[end]} in JSON and {stored[name].get(end)} on the page"
        for name, entry in entries.items()
        for end in ("value", "lower")
        if name in stored
        and entry.get(end) is not None
        and not np.allclose(entry[end], stored[name][end], rtol=0.0, atol=1e-9)
    ]
    problems += _shares(found, entries, delta=delta)
    problems += _wrong_verdicts(found.get("gate"), entries)
    best = _bounds({**entries, **_renamed(stored)})
    for place, text in (("page", _shown(page)), ("terminal", terminal)):
        problems += [f"{place}: {line}" for line in _two_voices(text, best)]
        problems += [f"{place}: {line}" for line in _on_scale(text, {**entries, **_renamed(stored)})]
        problems += [f"{place}: {line}" for line in re.findall(r"[^.\n]*hold at once with confidence[^.\n]*", text)]
    problems += [f"page: {line}" for line in _table_of_budgets(page, best)]
    if entries and page:
        claims = found.get("monitor", {}).get("claims", ())  # of the certificates that are monitored
        certified = [float(number) for each in claims for number in re.findall(r"\d\.\d+$", each["claim"])]
        problems += [f"page: {line}" for line in _uncertified(page, entries, stored, certified)]
    return problems


def _stored(page: str) -> dict[str, Any]:
    from riskband.cli.verify import stored_certificates

    if "riskband.certificates" not in page and "riskband.packed" not in page:
        return {}
    return dict(stored_certificates(page)["certificates"])


def _renamed(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name} (page)": entry for name, entry in entries.items()}


def _name(entry: Mapping[str, Any]) -> str:
    """What a certificate bounds; of an entry of report.json, which has no recipe, as far as it says that."""
    if "recipe" in entry:
        return rb.Certificate.from_dict(entry).name
    if entry["kind"] == "mean" or set(entry["axes"]) == {"budget"}:
        return str(entry["kind"])
    return str(entry["quantity"])


def _bounds(entries: Mapping[str, Any]) -> Numbers:
    """By quantity, and budget if there is one, every upper bound; of what is true of measured risks none."""
    found: Numbers = {}
    for entry in entries.values():
        made_with = entry.get("recipe", {}).get("band") or entry.get("recipe", {}).get("arguments", {})
        if entry["validity"] == "refuted" or made_with.get("local") == "observed" or entry["value"] is None:
            continue
        axes, values, name = entry["axes"], np.asarray(entry["value"]), _name(entry)
        if not axes or set(axes) == {"budget"}:
            budgets = axes.get("budget", [_own_budget(entry)])
            for budget, value in zip(budgets, values.ravel().tolist(), strict=True):
                plain = name if budget is None else name.removesuffix(f":{budget:.15g}")
                # A worst mean without a shift is the mean.
                key = ("mean", None) if budget == 0.0 and plain in _WORST_MEANS else (plain, budget)
                found.setdefault(key, set()).add(value)
    return found


def _own_budget(entry: Mapping[str, Any]) -> float | None:
    shift = rb.Certificate.from_dict(entry).shift if "recipe" in entry else None
    return None if shift is None or not shift[1] else shift[1][0]


def _is_shifted(entry: Mapping[str, Any]) -> bool:
    return "recipe" in entry and rb.Certificate.from_dict(entry).kind.partition("@")[2] in rb.DIVERGENCES


def _two_numbers(entries: Mapping[str, Any]) -> Iterator[str]:
    """A quantity with two bounds."""
    for (name, budget), values in _bounds(entries).items():
        if max(values) - min(values) > 1e-9:
            at = "" if budget is None else f" at budget {budget:g}"
            yield f"{name}{at} has the bounds {', '.join(f'{value:.4f}' for value in sorted(values))}"


def _shares(report: Mapping[str, Any], entries: Mapping[str, Any], *, delta: float | None) -> Iterator[str]:
    """Parts of delta that add up to more than it; certificates in no event, or with another delta than theirs.

    What holds beside that is a next client by the first of its K ranks, with its own probability of 1 / (K + 1).
    """
    findings = report.get("findings")
    if findings is None:
        return
    whole = findings["delta"] if delta is None else delta
    spent = sum(event["delta"] for event in findings["events"])
    if spent > whole * (1.0 + 1e-9):
        yield f"the events have deltas that add up to {spent:g}, more than {whole:g}"
    for name in findings["beside"]:
        odds = 1.0 / entries[name]["delta"]  # of K clients, one in K + 1
        if "the next client would measure" not in entries[name]["quantity"] or abs(odds - round(odds)) > 1e-6:
            yield f"{name} stands beside the others and is no next client by its rank"
    named = [name for event in findings["events"] for name in event["certificates"]] + findings["beside"]
    proved = [name for name, entry in entries.items() if entry["validity"] != "refuted"]
    if sorted(named) != sorted(proved):
        yield f"events name {sorted(named)}, and the certificates are {sorted(proved)}"
    for event in findings["events"]:
        for name in event["certificates"]:
            if entries.get(name, event)["delta"] != event["delta"]:
                yield f"{name} has delta {entries[name]['delta']:g}, and its event {event['delta']:g}"


def _wrong_verdicts(gate: Mapping[str, Any] | None, entries: Mapping[str, Any]) -> Iterator[str]:
    """Verdicts that the certificates of what is required do not give."""
    by_name = {_name(entry): entry for entry in entries.values() if "recipe" in entry}
    for each in () if gate is None else gate["requirements"]:
        name, relation, limit = re.fullmatch(r"(.+?)(<=|>=)(.+)", each["requirement"]).groups()  # type: ignore[union-attr]
        entry, limit = by_name.get(name), float(limit)
        if entry is None:
            continue
        value = np.asarray(entry["value"]).item()
        # Its upper end is that of the mean.
        is_from_below = _is_shifted(entry) and entry["recipe"]["answers"].get("higher_is_better", False)
        if each["upper"] is not None and abs(each["upper"] - value) > 1e-12 and not is_from_below:
            yield f"the verdict on {each['requirement']} reads {each['upper']}, and the certificate says {value}"
        is_met = value <= limit if relation == "<=" else entry.get("lower", -np.inf) >= limit
        if (each["verdict"] == "PASS") != is_met and entry["validity"] == "certificate":
            yield f"{each['requirement']} is {each['verdict']}, and its certificate says at most {value}"


_SAID = {  # how sentences begin that say a bound of a quantity that a certificate may have
    r"the mean risk over unseen clients (?:is at most|<=) (0\.\d+)": "mean",
    r"(?:, |^ *|<= )the mean risk over unseen clients (?:lies between 0\.\d+ and|<=) (0\.\d+)": "mean",
    r"worst-off tenth of unseen clients is (?:at most|0\.\d+ to) (0\.\d+)": "cvar:0.9",
    r"the mean risk of the worst 0\.1 of unseen clients (?:is at most|<=) (0\.\d+)": "cvar:0.9",
    r"Nine in ten unseen clients have a risk of at most (0\.\d+)": "quantile:0.9",
    r"Half of the unseen clients have a risk of at most (0\.\d+)": "quantile:0.5",
    r"the 0\.9 quantile of the risk of an unseen client (?:is at most|<=) (0\.\d+)": "quantile:0.9",
    r"the Gini coefficient of the risk of an unseen client (?:lies between 0\.\d+ and|<=|0\.\d+ to) (0\.\d+)": "gini",
}


def _two_voices(text: str, best: Numbers) -> Iterator[str]:
    """Sentences that say another bound than the certificate of the same quantity."""
    for pattern, name in _SAID.items():
        for said in {float(each) for each in re.findall(pattern, text, re.IGNORECASE)}:
            certified = best.get((name, None), set())
            if not any(0.0 <= said - value + 1e-9 <= _ROUNDING for value in certified):
                yield f"{name} is said to be at most {said}, and certified: {sorted(certified)}"


_SAID_ALONE = r"(?<!probability )(?:at most|at least|between) (-?\d\.\d{4})(?!\d)"
_SAID_OF_BOTH = r"(-?\d\.\d{4}) (?:to|and) (-?\d\.\d{4})(?!\d)"


def _uncertified(
    page: str, entries: Mapping[str, Any], stored: Mapping[str, Any], others: Sequence[float]
) -> Iterator[str]:
    """Bounds on the page, with four digits, that no certificate of the file has: a page computes nothing."""
    ends = [1.0, *others]  # 1 is no bound
    for name, entry in entries.items():
        details = entry.get("details", stored.get(name, {}).get("details", {}))
        among = (entry.get("value"), entry.get("lower"), *(v for k, v in details.items() if k.startswith("group_")))
        ends += [float(number) for each in among if each is not None for number in np.ravel(each)]
    said = re.findall(_SAID_ALONE, text := _shown(page).partition("What must be true")[0])
    said += [number for both in re.findall(_SAID_OF_BOTH, text) for number in both]
    said += [bound for _, table in _tables(page) for _, _, bounds in table for bound in bounds if bound[0].isdigit()]
    certified = np.array(ends)
    for number in dict.fromkeys(said):
        if not np.any(np.abs(certified - float(number)) <= _ROUNDING):
            yield f"{number} is said to be a bound, and no certificate of the file has it"


_BOUND = r"(?: is| lies)?(?: (at most|at least|between|<=))? (-?\d+\.\d+)(?: (?:to|and) (-?\d+\.\d+))?(?=[^\d%]|$)"
_SHARE = r"at most ([\d.]+) % of unseen clients (?:get worse|would measure a risk that rises) by more than (\d[\d.]*\d)"
_NEXT = (
    r"those that (?:measure|have) (?:a|the) (?:change of the risk|{noun}) (?:above|below) (-?\d+\.\d+)"
    r"(?:, budget ([\d.]+) in [^,.]*? divergence)? at most (\d+) of \d+"
)


def _on_scale(text: str, entries: Mapping[str, Any]) -> Iterator[str]:
    """Bounds on changes and scores that are said otherwise than they are certified."""
    for name, entry in entries.items():
        answers = entry.get("recipe", {}).get("answers", {})
        if not {"old", "higher_is_better"} & answers.keys():
            continue
        value, lower = np.asarray(entry["value"]), np.asarray(entry.get("lower", -np.inf))
        if "old" in answers and _name(entry).startswith("share:"):
            shares = [float(share) for share, at in re.findall(_SHARE, text) if f"share:{at}" == _name(entry)]
            yield from (f"{name} is said to be {s} %" for s in shares if not -1e-9 <= s / 100 - value <= 0.001 + 1e-9)
        if not entry["axes"]:
            before = re.findall(rf"(-?\d+\.\d+) <= {re.escape(entry['quantity'])}", text, re.IGNORECASE)
            said = [("at least", each, "") for each in before]
            for word, first, second in said + re.findall(re.escape(entry["quantity"]) + _BOUND, text, re.IGNORECASE):
                low, high = (first, "") if word == "at least" else (first, second) if second else ("", first)
                if second and _is_shifted(entry):  # the other end is that of the mean
                    low, high = (low, "") if answers.get("higher_is_better") else ("", high)
                is_right = not low or -1e-9 <= lower - float(low) <= _ROUNDING
                if not (is_right and (not high or -1e-9 <= float(high) - value <= _ROUNDING)):
                    yield f"{name} is said to be {word} {first} {second}, and certified: {lower} to {value}"
        elif "k" in entry["axes"]:
            is_from_below = answers.get("higher_is_better", False)
            bad, budgets = np.atleast_2d(lower if is_from_below else value), entry["axes"].get("budget", [0.0])
            for said_at, budget, most in re.findall(_NEXT.format(noun=re.escape(answers.get("name", ""))), text):
                bound = bad[budgets.index(float(budget or 0.0)), int(most)]  # at most n are above the (n + 1)-th
                if not -1e-9 <= (bound - float(said_at)) * (1 if is_from_below else -1) <= _ROUNDING:
                    yield f"{name}: at most {most} are said to be beyond {said_at}, and {bound} is certified"


def _table_of_budgets(page: str, best: Numbers) -> Iterator[str]:
    """Rows of the tables over budgets with another bound than the certificate has there."""
    for unit, table in _tables(page):
        for budget, _, bounds in table:
            at = float(budget)
            said = 1.0 if bounds[0] == "not bounded" else float(bounds[0])
            keys = [("mean", None)] if at == 0.0 else [(f"mean@{unit}", at)]
            certified = {value for key in keys for value in best.get(key, ())}
            if certified and not any(said - value <= _ROUNDING for value in certified):
                yield f"at budget {budget} the mean is said to be at most {said}, and certified: {sorted(certified)}"


def _tables(page: str) -> Iterator[tuple[str, Any]]:
    from riskband.worst_cases.divergences import DIVERGENCES

    titles = {each.title: name for name, each in DIVERGENCES.items()}
    shown = [html.unescape(each) for each in re.findall(r'data-steps="([^"]*)"', page)]
    units = re.findall(r"budget \(([^)]*)\)</text>", page)
    for unit, table in zip(units, shown, strict=False):
        if unit in titles:
            yield titles[unit], json.loads(table)


def _shown(page: str) -> str:
    text = re.sub(r"<(script|style|svg).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))
