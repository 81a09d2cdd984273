"""Whose the rows of a table are: every row is of a client, and a client has one row.

Bounds count rows as independent clients. Rows of several rounds, models or examples of a client are not, and more of
them make a bound smaller, but no truer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256

import numpy as np

from riskband.checks import FloatArray, IntArray

# Names of columns and of rows, without capitals, blanks and other signs.
_CLIENT = re.compile(
    r"(client|hospital|site|node|clinic|cent(er|re)|institution|participant|partition|silo)(id|name|no|nr|number|code)?"
    r"|cid|name"
)
_MODEL = re.compile(
    r"((current|server|global|fl|comm|communication|train|training|eval)*(round|epoch)|checkpoint|model|run|(random)?seed|fold)"
    r"(id|name|no|nr|num|number|version)?|rep(eat|etition|licate)?"
)
_COUNT = re.compile(r"n|num(?!ber).*|.*(count|size|examples|samples|patients|correct|wrong|errors)")
_TOTAL = re.compile(
    r"(grand|sub)?totals?(all)?|sum|(weighted|macro|micro|overall|total|grand)?(mean|average|avg)(sd|std)?|overall"
    r"|all(clients|hospitals|sites)?|global|server|federated|centrali[sz]ed|pooled|median|std|stdev"
    r"|summe|gesamt|durchschnitt|mittelwert|moyenne|ø"
)
_ONE_ROW = (
    "one row a client is the rule: the mean over all its examples (rb.ClientRisks.from_examples makes it of single "
    "ones), or the row of the last round, of one model or of one seed"
)
_SOME_ID = 2.0  # 0.0 and 1.0 alone are truth values or shares
_IMPROBABLE = 1e-6  # what is less likely is taken to be no coincidence
_ROUNDED, _NEARLY = 1e-3, 5e-3  # a mean in a row of totals may be rounded to three digits, and examples be missing


def is_of_clients(name: str) -> bool:
    """Whether a column of that name says what clients are called."""
    return _CLIENT.fullmatch(_plain(name)) is not None


def is_telling(name: str) -> bool:
    """Whether a column of that name says whose a row is, or of which model, whatever it holds."""
    return any(kind.fullmatch(_plain(name)) for kind in (_CLIENT, _MODEL))


def row_problem(
    columns: Mapping[str, Sequence[str]], place: Callable[[int], str], *, client: str | None, flag: str
) -> str:
    """Say why rows are not one each of different clients; "" if nothing says so.

    Without a column `client`, one that is called hospital, site or the like must name every client once, and if there
    is none that does, no column of text or whole numbers may have a value twice: it may be what names them.

    Parameters
    ----------
    columns : mapping of str to sequence of str
        All of the table but those of the losses, the numbers of examples and the groups; "" is no value.
    place : callable
        What a row, by number, is called in a message.
    client : str or None
        The column that names each client once, if it was said.
    flag : str
        How to say it: "--client" or "client=".
    """
    named = [name for name in columns if _CLIENT.fullmatch(_plain(name))] if client is None else [client]
    is_named = any("" not in columns[name] for name in named)
    labels = {
        name: values for name, values in columns.items() if (name in named if is_named else _is_label(set(values)))
    }
    for name, values in labels.items():
        row = next((row for row, value in enumerate(values) if _TOTAL.fullmatch(_plain(value))), None)
        if row is not None and _differ(values):
            return f"every row must be a client, got {values[row]!r} in column {name!r} of {place(row)}; leave it out"
    for name in named:
        values = columns[name]
        if twice := _twice(values, place):
            other = f"; then say {flag}{name!r}, or name another column" if client is None else ""
            return f"column {name!r} must name every client once, got {twice}; {_ONE_ROW}{other}"
        if alike := _twice([each.casefold() for each in values], place):
            return f"column {name!r} must name every client in one way, got {alike}, by capitals alone two; rename one"
        if client is not None and "" in values:
            return f"column {name!r} must name every client, got no name in {place(values.index(''))}; name every one"
    if client is not None:
        return ""
    other = f"say {flag}COLUMN, the column that names each once, or leave this one out"
    remedy = f"if every row is another client, {other}; otherwise {_ONE_ROW}"
    for name, values in columns.items():
        if _MODEL.fullmatch(_plain(name)) and _differ(values):
            found = ", ".join(map(repr, list(dict.fromkeys(values))[:3]))
            return f"all rows must be about one model, got {found}, … in column {name!r}; {remedy}"
    if is_named:
        return ""
    for name, values in labels.items():
        is_count = _COUNT.fullmatch(_plain(name)) and all(map(_is_number, filter(None, values)))
        if not is_count and _differ(values) and (twice := _twice(values, place)):
            return f"column {name!r} must not have a value twice if it names clients, got {twice}; {remedy}"
    return ""


def answer_problem(values: FloatArray, num_examples: IntArray, *, flag: str) -> str:
    """Say what the numbers alone, in the order of the rows, have against different clients; "" if nothing."""
    _, counts = np.unique(values + 1j * num_examples, return_counts=True)
    times = int(np.gcd.reduce(counts))
    if float(times) ** (1 - counts.size) < _IMPROBABLE:
        each = f"got each of {counts.size} pairs of loss and number of examples {times} times, or a multiple"
        return f"rows must not be copies of others, {each}; {_ONE_ROW}; if it is chance, say {flag}COLUMN"
    most = int(np.argmax(num_examples))
    rest, sizes, total = np.delete(values, most), np.delete(num_examples, most), num_examples[most]
    is_total = sizes.size > 1 and abs(np.sum(sizes) - total) <= _NEARLY * total
    if is_total and abs(np.average(rest, weights=sizes) - values[most]) <= _ROUNDED:
        return (
            f"every row must be a client, got as many examples, {total}, in one row as in all others, and their mean "
            f"loss; leave it out, or say {flag}COLUMN if it is a client"
        )
    return ""


def seeded_order(names: Iterable[str], *, seed: int | None) -> list[str]:
    """Return names in a random order, in which the place of each before another depends on these two and the seed."""
    return sorted(names, key=lambda name: sha256(f"{seed} {name}".encode()).digest())


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _is_label(values: Collection[str]) -> bool:
    """Whether a column holds text or whole numbers, by which a client may be named; pandas may have made them 7.0."""
    written = [float(each) for each in values if _is_number(each) and not each.lstrip("+-").isdecimal()]
    return not written or (all(map(float.is_integer, written)) and max(written) >= _SOME_ID)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _differ(values: Sequence[str]) -> bool:
    """Whether there are several values; what is the same in all rows says nothing of one."""
    return len(set(values) - {""}) > 1


def _twice(values: Sequence[str], place: Callable[[int], str]) -> str:
    """Name the first value that is there again, and where; "" if none is."""
    first: dict[str, int] = {}
    for row, value in enumerate(values):
        if value and first.setdefault(value, row) != row:
            given = [each for each in values if each]
            where = f"{place(first[value])} and {place(row)}"
            return f"{value!r} in {where} ({len(given)} rows of {len(set(given))})"
    return ""
