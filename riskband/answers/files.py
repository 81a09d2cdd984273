"""Per-client losses from files: CSV files, and those in which other federated frameworks keep what clients measured.

Everything that is wrong with a table is said at once.
"""

from __future__ import annotations

import csv
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

from riskband.answers.counts import share_problem
from riskband.answers.metrics import metric_problem, warn_of_empty
from riskband.answers.responses import WhoAnswered
from riskband.answers.risks import ClientRisks
from riskband.answers.rows import answer_problem, is_of_clients, row_problem
from riskband.checks import MAX_EXAMPLES, FloatArray, clip_rounding
from riskband.wording import in_full

T = TypeVar("T")

MAX_LISTED = 5
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+")
_NO_ANSWER = ("", "-", "na", "n/a", "nan", "none", "null")  # in lower case
_CLIENT_FLAG = "--client "
_WHOLE_NUMBERS = f"whole numbers from 1 to {MAX_EXAMPLES:g}"


class TableError(ValueError):
    """A table that does not hold valid losses; its `problems` are a line each: rule, value, remedy."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


Row = tuple[str, dict[str, str]]
"""Its place in the file, for messages, and the fields by column."""


class Table(NamedTuple):
    """A table with a row per client; where files say so, the clients' names, and how many others gave no answer."""

    header: list[str]
    rows: list[Row]
    names: list[str] | None = None
    num_missing: int = 0


def read_risks(
    path: str | Path,
    *,
    column: str,
    num_examples: str,
    client: str | None = None,
    is_percent: bool = False,
    is_accuracy: bool = False,
    is_binary: bool | None = None,
    noise: str | None = None,
    read: Callable[[Path], Table] | None = None,
    **who: Unpack[WhoAnswered],
) -> ClientRisks:
    """Read one row per client, in the order of the rows, from a CSV file with a header line.

    Raises `TableError` with every problem found, and OSError if the file cannot be read.

    Parameters
    ----------
    path : str or Path
        The file.
    column : str
        Column with the client's mean loss in [0, 1], or with its accuracy; any number if there is noise.
    num_examples : str
        A whole number for all clients, or the name of a column.
    client : str, optional
        Column that names every client once; the answers then have `names`. Without it, see `row_problem`.
    is_percent, is_accuracy : bool
        Whether `column` holds accuracies in percent, or in [0, 1]; the loss is then 1 - value / 100, or 1 - value. The
        second adds nothing to the first.
    read : callable, optional
        What reads another file as a table, such as those in `FRAMEWORKS`.
    is_binary, noise, **who :
        See `ClientRisks`.
    """
    if noise is not None and (is_percent or is_accuracy):
        raise TableError(["--noise needs losses, not accuracies; put 1 - accuracy into the table"])
    if client is not None and (read is not None or client in (column, num_examples)):
        rule = "--client must be a column of a CSV file that says whose a row is, beside the losses and their numbers"
        raise TableError([f"{rule}, got {client!r}; leave it out, or name another"])
    header, rows, names, num_missing = (read or _csv_table)(Path(path))
    has_constant = num_examples.isascii() and num_examples.isdecimal()
    wanted = [each for each in (column, None if has_constant else num_examples, client) if each is not None]
    if not has_constant and math.isfinite(_number(num_examples)):
        raise TableError([f"examples behind each mean must be {_WHOLE_NUMBERS}, or a column, got {num_examples}"])
    absent = [name for name in wanted if header.count(name) != 1]
    if absent:
        found = ", ".join(header) or "none"
        hint = _separator_hint(header)
        raise TableError([f"column {name!r} must be in {path} once; its columns are: {found}{hint}" for name in absent])
    # A decimal comma moves all that follow into the next column.
    remedy = "write numbers with points and without other commas, or put them in quotes"
    too_wide = [place for place, row in rows if None in row]
    problems = _listed(f"every row must have {len(header)} values, as the header has, not more", too_wide, remedy)
    if read is None:
        others = {name: _texts(rows, name) for name in header if name not in (column, num_examples)}
        problems += filter(None, [row_problem(others, lambda row: rows[row][0], client=client, flag=_CLIENT_FLAG)])
        names = None if client is None else others[client]
    if problem := metric_problem(column, binary=is_binary, word="--not-binary"):
        problems.append(problem)
    sizes_said = [] if has_constant else [_number(row.get(num_examples) or "") for _, row in rows]
    named = client or next(filter(is_of_clients, header), "")
    empty = {k: _called(*rows[k], named) for k, size in enumerate(sizes_said) if size == 0}
    rows, names = _without(empty, rows), names and _without(empty, names)
    places, values = _numbers(rows, column, problems)
    if noise is None:
        problems += _outside_scale(values, places, column, is_percent, is_accuracy)
    if has_constant:
        sizes = np.array(float(num_examples))
        if not 1 <= sizes <= MAX_EXAMPLES:
            problems.append(f"examples behind each mean must be {_WHOLE_NUMBERS}, got {num_examples}")
    else:
        places, sizes = _numbers(rows, num_examples, problems)
        is_right = (sizes >= 1) & (sizes <= MAX_EXAMPLES) & (sizes == np.floor(sizes))
        wrong = [f"{at}: {size:g}" for at, size, right in zip(places, sizes, is_right, strict=True) if not right]
        rule = f"numbers of examples in column {num_examples!r} must be {_WHOLE_NUMBERS}"
        problems += _listed(rule, wrong, "count the examples behind each mean")
    if problems:
        raise TableError(problems)
    losses = values
    if is_percent or is_accuracy:
        # From the digits in the table: no other rounding than that of the result.
        shares = [Decimal(repr(value)) / (100 if is_percent else 1) for value in values.tolist()]
        losses = np.array([float(1 - share) for share in shares])
        problem = share_problem(
            np.array(shares, dtype=np.float64),
            np.broadcast_to(sizes, losses.shape).astype(np.int64),
            contamination=who.get("contamination", 0),
            places=places,
            word="--not-binary",
        )
        if problem and is_binary is not False:
            raise TableError([problem])
    warn_of_empty(list(empty.values()), stacklevel=2)
    who["num_missing"] = who.get("num_missing", 0) + num_missing + len(empty)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the summary says it
            answers = ClientRisks(losses, sizes, is_binary, noise=noise, names=names, **who)
    except ValueError as error:
        raise TableError([str(error)]) from error
    if names is None and (doubt := answer_problem(answers.values, answers.num_examples, flag=_CLIENT_FLAG)):
        raise TableError([doubt])
    return answers


def _csv_table(path: Path) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            rows = [(f"line {reader.line_num}", row) for row in reader]
            # A row without any value is no client: spreadsheets leave such rows at the end.
            some = [each for each in rows if None in each[1] or any(map(str.strip, filter(None, each[1].values())))]
            return Table(header, some)
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError([f"{path} must be a CSV file in UTF-8, got {error}; export it again"]) from error


def _separator_hint(header: list[str]) -> str:
    """What to do if the header was not cut where it should be."""
    for separator, words in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if any(separator in name for name in header):
            return f"; they look separated by {words}: save the file with commas between columns and points in numbers"
    return ""


def _without(some: Mapping[int, str], values: list[T]) -> list[T]:
    return [value for k, value in enumerate(values) if k not in some]


def _called(place: str, row: dict[str, str], column: str) -> str:
    """The name of a client, if a column has it, and its place."""
    return f"{row[column]} ({place})" if row.get(column) else place


def _numbers(rows: list[Row], column: str, problems: list[str]) -> tuple[list[str], FloatArray]:
    """Places and numbers of a column, but for cells that hold no number."""
    places, numbers, wrong = [], [], []
    for place, row in rows:
        text = (row.get(column) or "").strip()
        number = _number(text)
        if math.isnan(number):
            wrong.append((place, text))
        else:
            places.append(place)
            numbers.append(number)
    num_empty = sum(text.lower() in _NO_ANSWER for _, text in wrong)
    remedies = []
    if any(_DECIMAL_COMMA.fullmatch(text) for _, text in wrong):
        remedies.append("write a point for a decimal comma, and nothing between thousands")
    elif num_empty < len(wrong):
        remedies.append("write numbers alone, without signs or words")
    if num_empty:
        remedies.append(f"leave rows without an answer out, and count them with --num-missing {num_empty}")
    found = [f"{place}: {text!r}" for place, text in wrong]
    problems += _listed(f"column {column!r} must hold numbers", found, "; ".join(remedies))
    return places, np.array(numbers)


def _number(text: str) -> float:
    """The number that a text says, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _texts(rows: list[Row], column: str) -> list[str]:
    return [(row.get(column) or "").strip() for _, row in rows]


def _outside_scale(
    values: FloatArray, places: list[str], column: str, is_percent: bool, is_accuracy: bool
) -> list[str]:
    shares = clip_rounding(values / (100.0 if is_percent else 1.0))
    outside = [
        f"{place}: {in_full(value)}"
        for place, value, share in zip(places, values, shares, strict=True)
        if not 0.0 <= share <= 1.0
    ]
    if is_percent and values.size and not outside and values.max() <= 1.0:
        return [
            f"--percent was given, but no value of column {column!r} is above 1; drop --percent, and say "
            "--accuracy if they are accuracies"
        ]
    if is_percent:
        return _listed("accuracies in percent must lie in [0, 100]", outside, "correct these rows")
    kind, remedy = "losses", "; divide error rates in percent by 100; scale other losses"
    if is_accuracy:
        kind, remedy = "accuracies", ""
    rule = f"{kind} in column {column!r} must lie in [0, 1]"
    return _listed(rule, outside, f"for accuracies in percent add --percent{remedy}")


def _listed(rule: str, found: list[str], remedy: str) -> list[str]:
    """One problem with the first of the rows where it was found; none if it was not found."""
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return [f"{rule}, got {'; '.join(found[:MAX_LISTED])}{more}; {remedy}"] if found else []


def nvflare_table(path: Path) -> Table:
    """NVFlare's cross_val_results.json, {site: {model: {metric: number}}}; columns are "MODEL/METRIC"."""
    clients = {}
    for site, models in _entries(_read(path), path):
        found = _entries(models, path)
        clients[site] = {f"{model}/{name}": value for model, metrics in found for name, value in metrics.items()}
    return _table(clients)


def fl4health_table(path: Path) -> Table:
    """FL4Health's reports, a folder with one JSON file per client; columns are the metrics of the last evaluation.

    Clients that were not evaluated in the last round in which any was have no answer about its model: they are missing,
    and a `UserWarning` names them.
    """
    evaluated: dict[str, dict[int, Mapping[str, Any]]] = {}
    num_servers = 0
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        report = _read(file)
        if report.get("host_type") == "server":
            num_servers += 1
            continue
        rounds = _entries(report.get("rounds", {} if report.get("host_type") == "client" else None), file)
        metrics = [(number, found.get("eval_round_metrics")) for number, found in rounds]
        evaluated[file.stem] = {_round(number, file): found for number, found in metrics if isinstance(found, Mapping)}
    if num_servers > 1:
        remedy = "put those of each run into a folder of its own"
        raise TableError([f"{path} must hold the reports of one run, got {num_servers} of servers; {remedy}"])
    last = max((number for found in evaluated.values() for number in found), default=None)
    if last is None:
        raise TableError([f"{path} must have a round with eval_round_metrics, got none; evaluate with the clients"])
    clients = {name: found[last] for name, found in evaluated.items() if last in found}
    if missing := [name for name in evaluated if name not in clients]:
        which = f"{len(missing)} of {len(evaluated)} clients were not evaluated in round {last}, the last"
        warnings.warn(f"{which}, and are missing: {', '.join(missing)}", stacklevel=3)
    return _table(clients)._replace(num_missing=len(missing))


def _round(number: str, path: Path) -> int:
    if not number.isdecimal():
        raise TableError([f"rounds in {path} must be numbered, got {number!r}; give what the framework wrote"])
    return int(number)


FRAMEWORKS: Mapping[str, Callable[[Path], Table]] = {"nvflare": nvflare_table, "fl4health": fl4health_table}
"""By name, what reads a framework's file."""


def _table(clients: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (f"client {name}", {column: str(value) for column, value in found.items()}) for name, found in clients.items()
    ]
    return Table(list(dict.fromkeys(column for _, row in rows for column in row)), rows, names=list(clients))


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise TableError([f"{path} must be a JSON object, got {error}; give what the framework wrote"]) from error


def _entries(found: Any, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Items of an object of objects."""
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise TableError([f"{path} must be as the framework writes it, got another structure; see docs/library.md"])
    return list(found.items())
