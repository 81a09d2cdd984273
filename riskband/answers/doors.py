"""One row a client, whatever holds the rows: what every table is asked before answers are made of it.

All that is wrong with a table is said at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskband.answers import frames
from riskband.answers.counts import BoolArray, share_problem
from riskband.answers.frames import AnyArray
from riskband.answers.metrics import direction_problem, metric_problem, score_said, warn_of_empty
from riskband.answers.rows import is_of_clients, is_telling, row_problem
from riskband.checks import MAX_EXAMPLES, FloatArray, clip_rounding, in_decimals
from riskband.wording import in_full

MAX_LISTED = 5  # rows named for one problem: enough to find the cause, and the message stays short
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+")
_WHOLE_NUMBERS = f"whole numbers from 1 to {MAX_EXAMPLES:g}"


class TableError(ValueError):
    """A table that does not hold valid losses; its `problems` are a line each: rule, value, remedy."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class TooFewError(TableError):
    """A table that is still growing has fewer clients than answers are made of."""


class Door(NamedTuple):
    """What a table and its rows are called in messages, and how something is said at this door."""

    table: str = "the frame"
    place: Callable[[int], str] = "row {} (from 0)".format
    client: str = "client="
    binary: str = "binary=False"
    drop: str = "drop_missing=True"
    accuracy: str = "accuracy="
    percent: str = "percent=True"
    noise: str = "noise="


@dataclass(frozen=True)
class Wanted:
    """What is read of a table; see `riskband.ClientRisks.from_frame`."""

    num_examples: str | float
    loss: str | None = None
    accuracy: str | None = None
    client: str | None = None
    group: str | None = None
    percent: bool = False
    drop_missing: bool = False
    binary: bool | None = None
    is_score: bool = False  # the column holds a score that is no mean, of any range
    stratum: str | None = None  # this column and those below: see `riskband.answers.design`
    shares: Mapping[str, float] | str | None = None  # of the strata, or a file with them
    sampling_weight: str | None = None
    largest_weight: float | None = None
    cluster: str | None = None
    is_growing: bool = False  # rows are still added: the last line counts once it has an end
    keeps_names: bool = False  # also of a column that is called hospital, site or the like

    @property
    def column(self) -> str:
        """The column with the losses or the accuracies."""
        return str(self.loss if self.accuracy is None else self.accuracy)

    @property
    def of_design(self) -> dict[str, str]:
        """The columns that say how the clients were drawn, by the name that a design has for them."""
        named = {"strata": self.stratum, "weights": self.sampling_weight, "clusters": self.cluster}
        return {name: column for name, column in named.items() if column is not None}

    def problems(self, door: Door, *, is_noisy: bool) -> list[str]:
        """What is wrong with it, whatever the table."""
        labels = [each for each in (self.client, self.group, *self.of_design.values()) if each is not None]
        used = [self.column, self.num_examples, *labels]
        another = "labels of clients must be named by columns beside those of the losses and their numbers, got"
        rules = [
            ((self.loss is None) == (self.accuracy is None), "name one column, with losses or with accuracies"),
            (self.percent and self.accuracy is None, f"{door.percent} is for accuracies; divide others by 100"),
            (is_noisy and self.accuracy is not None, f"{door.noise} needs losses, not accuracies: 1 - accuracy"),
            (any(used.count(each) > 1 for each in labels), f"{another} {' and '.join(labels)}; name others"),
        ]
        found = [text for is_wrong, text in rules if is_wrong]
        read = "" if self.accuracy is None else door.percent if self.percent else door.accuracy
        said = (
            metric_problem(self.column, binary=self.binary, word=door.binary),
            direction_problem(self.column, read, remedy=f"{door.accuracy} (in [0, 1]) or {door.percent}"),
        )
        return found + ([] if self.is_score else list(filter(None, said)))


def read_columns(frame: Any, wanted: Wanted, door: Door, *, is_noisy: bool, contamination: int) -> dict[str, Any]:
    """Read what is wanted of a frame, as arguments of `ClientRisks`; raises `TableError`, with every problem found.

    The values are losses, or accuracies in [0, 1]; `num_missing` counts the rows that were left out. Clients with 0
    examples are missing, and a `UserWarning` names them; so are those without a loss, if that was said.
    """
    problems = wanted.problems(door, is_noisy=is_noisy)
    size, columns = wanted.num_examples, {}
    for name in (wanted.column, size, wanted.client, wanted.group, *wanted.of_design.values()):
        if isinstance(name, str):
            try:
                columns[name] = frames.column(frame, name, called=door.table)
            except ValueError as error:
                problems.append(str(error))
    if problems:
        raise TableError(problems)
    others = _labels(frame, wanted)
    said = row_problem(others, door.place, client=wanted.client, flag=door.client), score_said(others)
    problems += filter(None, said)
    values = _numbers(wanted.column, columns[wanted.column], door, problems)
    sizes = _numbers(size, columns[size], door, problems) if isinstance(size, str) else np.full(values.shape, size)
    is_kept = sizes != 0.0 if isinstance(size, str) else np.ones(values.shape, dtype=bool)
    if len(sizes) != len(values):
        raise TableError([f"{door.table} must have one row per client, got columns of {values.size} and {sizes.size}"])
    client = wanted.client or next(filter(is_of_clients, others), "")
    known = others.get(client, [""] * values.size)
    empty = np.flatnonzero(~is_kept).tolist()
    if wanted.drop_missing:
        is_kept &= ~np.isnan(values)
    rows = np.flatnonzero(is_kept).tolist()
    dropped = f"{door.drop} drops such rows and counts them as missing"
    problems += _missing(wanted.column, values, is_kept, door, dropped)
    problems += [] if is_noisy or wanted.is_score else _outside(values, is_kept, wanted, door)
    if isinstance(size, str):
        remedy = "count the examples behind each mean"
        problems += _missing(size, sizes, is_kept, door, remedy)
        wrong = np.flatnonzero(is_kept & ~np.isnan(sizes) & ~_are_sizes(sizes)).tolist()
        odd = {row: f"{sizes[row]:g}" for row in wrong}
        problems += _listed(f"numbers of examples in column {size!r} must be {_WHOLE_NUMBERS}", odd, door, remedy)
    elif not np.all(_are_sizes(sizes)):
        problems.append(f"examples behind each mean must be {_WHOLE_NUMBERS}, or a column, got {size}")
    design: dict[str, Any] = {}
    for name, each in wanted.of_design.items():
        labels = [(label or "").strip() for label in frames.labels_or_none(columns[each])]
        absent = {row: "" for row in rows if not labels[row]}
        rule = f"column {each!r} must have a value in every row"
        problems += _listed(rule, absent, door, "say it of every client", got="got none in")
        design[name] = [labels[row] for row in rows]
        if name == "weights":
            design[name] = _numbers(each, columns[each], door, problems)[rows]
    if problems:
        raise TableError(problems)
    warn_of_empty([known[row] or door.place(row) for row in empty], stacklevel=4)
    values, sizes = values[is_kept], sizes[is_kept].astype(np.int64)
    if wanted.is_growing and values.size < 2:
        raise TooFewError([f"{door.table or 'the table'} must have two clients or more, got {values.size} so far"])
    if wanted.accuracy is not None and not wanted.is_score:
        values, places = in_decimals(values / (100.0 if wanted.percent else 1.0)), list(map(door.place, rows))
        problem = share_problem(values, sizes, contamination=contamination, places=places, word=door.binary)
        if problem and wanted.binary is not False:
            raise TableError([problem])
    found = {"values": values, "num_examples": sizes, "num_missing": is_kept.size - len(rows)}
    if wanted.client is not None or (wanted.keeps_names and client and "" not in known):
        found["names"] = [known[row] for row in rows]
    if wanted.group is not None:
        groups = frames.labels_or_none(columns[wanted.group][is_kept])
        found["groups"] = [(each or "").strip() or None for each in groups]
    of_all = {name: value for name in ("shares", "largest_weight") if (value := getattr(wanted, name)) is not None}
    if design or of_all:
        found["design"] = {**design, **of_all}
    return found


def _labels(frame: Any, wanted: Wanted) -> dict[str, list[str]]:
    """All other columns as text that may say whose a row is: numbers with a fraction do not, unless by their name."""
    but = (wanted.column, wanted.num_examples, wanted.group, *wanted.of_design.values())
    found = {name: values for name, values in frames.all_columns(frame) if name not in but}
    return {
        name: [(each or "").strip() for each in frames.labels_or_none(values)]
        for name, values in found.items()
        if name == wanted.client or is_telling(name) or not frames.has_fractions(values)
    }


def _numbers(name: str, values: AnyArray, door: Door, problems: list[str]) -> FloatArray:
    """Numbers of a column, NaN where there is none; 1, of which nothing more is said, where there is another thing."""
    numbers, wrong = frames.numbers_or_nan(values)
    remedy = "write numbers alone, without signs, words or truth values"
    if any(isinstance(each, str) and DECIMAL_COMMA.fullmatch(each) for each in wrong.values()):
        remedy = "write a point for a decimal comma, and nothing between thousands"
    found = {row: f"{each!r:.40}" for row, each in wrong.items()}
    problems += _listed(f"column {name!r} must hold numbers", found, door, remedy)
    numbers[list(wrong)] = 1.0
    return numbers


def _missing(name: str, values: FloatArray, is_kept: BoolArray, door: Door, remedy: str) -> list[str]:
    found = dict.fromkeys(np.flatnonzero(is_kept & np.isnan(values)).tolist(), "")
    return _listed(f"column {name!r} must have a value in every row", found, door, remedy, got="got none in")


def _are_sizes(numbers: FloatArray) -> BoolArray:
    return np.asarray((numbers >= 1) & (numbers <= MAX_EXAMPLES) & (numbers == np.floor(numbers)))


def _outside(values: FloatArray, is_kept: BoolArray, wanted: Wanted, door: Door) -> list[str]:
    shares = clip_rounding(values / (100.0 if wanted.percent else 1.0))
    wrong = np.flatnonzero(is_kept & ((shares < 0.0) | (shares > 1.0))).tolist()
    found = {row: in_full(values[row]) for row in wrong}
    if wanted.percent and not found and np.max(values, where=is_kept, initial=0.0) <= 1.0:
        remedy = f"drop {door.percent}, and say {door.accuracy} if they are accuracies"
        return [f"{door.percent} was given, but no value of column {wanted.column!r} is above 1; {remedy}"]
    if wanted.percent:
        return _listed("accuracies in percent must lie in [0, 100]", found, door, "correct these rows")
    within = f"in column {wanted.column!r} must lie in [0, 1]"
    if wanted.accuracy is not None:
        return _listed(f"accuracies {within}", found, door, f"for accuracies in percent add {door.percent}")
    remedy = f"say {door.accuracy} or {door.percent} of accuracies, divide error rates in percent by 100"
    return _listed(f"losses {within}", found, door, f"{remedy}; scale other losses")


def _listed(rule: str, found: Mapping[int, str], door: Door, remedy: str, got: str = "got") -> list[str]:
    """One problem with the first of the rows where it was found; none if it was not found."""
    if not found:
        return []
    said = [": ".join(filter(None, [door.place(row), text])) for row, text in list(found.items())[:MAX_LISTED]]
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return [f"{rule}, {got} {'; '.join(said)}{more}; {remedy}"]
