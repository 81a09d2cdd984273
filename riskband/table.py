"""Read per-client losses from a CSV file, and say everything that is wrong with it at once."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

import numpy as np

from riskband.checks import MAX_EXAMPLES, FloatArray
from riskband.risks import ClientRisks

MAX_LISTED = 5
_WHOLE_NUMBERS = f"whole numbers from 1 to {MAX_EXAMPLES:g}"


class TableError(ValueError):
    """A table that does not hold valid losses.

    Attributes
    ----------
    problems : tuple of str
        One line for each problem: rule, value, remedy.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def read_risks(
    path: str | Path,
    *,
    column: str,
    num_examples: str,
    is_percent: bool = False,
    is_binary: bool | None = None,
    num_missing: int = 0,
    missing: str = "ignore",
    contamination: int = 0,
    noise: str | None = None,
) -> ClientRisks:
    """Read one row per client.

    Parameters
    ----------
    path : str or Path
        CSV file with a header line.
    column : str
        Column with the client's mean loss in [0, 1], or with its accuracy in percent; any number if there is noise.
    num_examples : str
        A whole number for all clients, or the name of a column.
    is_percent : bool
        Whether `column` holds accuracies in percent; the loss is then 1 - value / 100.
    is_binary, num_missing, missing, contamination, noise : optional
        See `ClientRisks`.

    Returns
    -------
    ClientRisks
        The answers, in the order of the rows.

    Raises
    ------
    TableError
        With every problem found.
    OSError
        If the file cannot be read.
    """
    if noise is not None and is_percent:
        raise TableError(["--noise needs losses, not accuracies in percent; put 1 - accuracy / 100 into the table"])
    header, rows = _read_rows(path)
    has_constant = num_examples.isascii() and num_examples.isdecimal()
    wanted = [column] if has_constant else [column, num_examples]
    absent = [name for name in wanted if header.count(name) != 1]
    if absent:
        found = ", ".join(header) or "none"
        raise TableError([f"column {name!r} must be in {path} once; its columns are: {found}" for name in absent])
    problems: list[str] = []
    lines, values = _numbers(rows, column, problems)
    if noise is None:
        _check_scale(values, lines, column, is_percent, problems)
    if has_constant:
        sizes = np.array(float(num_examples))
        if not 1 <= sizes <= MAX_EXAMPLES:
            problems.append(f"examples behind each mean must be {_WHOLE_NUMBERS}, got {num_examples}")
    else:
        lines, sizes = _numbers(rows, num_examples, problems)
        _check_sizes(sizes, lines, num_examples, problems)
    if problems:
        raise TableError(problems)
    losses = np.round(1.0 - values / 100.0, 12) if is_percent else values
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the summary says it
            return ClientRisks(
                losses,
                sizes,
                binary=is_binary,
                num_missing=num_missing,
                missing=missing,
                contamination=contamination,
                noise=noise,
            )
    except ValueError as error:
        raise TableError([str(error)]) from error


Row = tuple[int, dict[str, str]]
"""Line number in the file, and the fields by column."""


def _read_rows(path: str | Path) -> tuple[list[str], list[Row]]:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = list(reader.fieldnames or [])
            return header, [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError([f"{path} must be a CSV file in UTF-8, got {error}; export it again"]) from error


def _numbers(rows: list[Row], column: str, problems: list[str]) -> tuple[list[int], FloatArray]:
    """Lines and numbers of a column, but for cells that hold no number."""
    lines, numbers, wrong = [], [], []
    for line, row in rows:
        text = (row[column] or "").strip()
        try:
            numbers.append(float(text))
            lines.append(line)
        except ValueError:
            wrong.append(f"line {line}: {text!r}")
    _list_problems(f"column {column!r} must hold numbers", wrong, "fill in or remove these rows", problems)
    return lines, np.array(numbers)


def _check_sizes(sizes: FloatArray, lines: list[int], column: str, problems: list[str]) -> None:
    is_right = (sizes >= 1) & (sizes <= MAX_EXAMPLES) & (sizes == np.floor(sizes))
    wrong = [f"line {n}: {size:g}" for n, size, right in zip(lines, sizes, is_right, strict=True) if not right]
    rule = f"numbers of examples in column {column!r} must be {_WHOLE_NUMBERS}"
    _list_problems(rule, wrong, "leave out clients without examples", problems)


def _check_scale(values: FloatArray, lines: list[int], column: str, is_percent: bool, problems: list[str]) -> None:
    top = 100.0 if is_percent else 1.0
    outside = [f"line {n}: {value:g}" for n, value in zip(lines, values, strict=True) if not 0.0 <= value <= top]
    if is_percent:
        _list_problems("accuracies in percent must lie in [0, 100]", outside, "correct these rows", problems)
        if values.size and not outside and values.max() <= 1.0:
            problems.append(f"--percent was given, but no value of column {column!r} is above 1; drop --percent")
    else:
        remedy = "for accuracies in percent add --percent; divide error rates in percent by 100; scale other losses"
        _list_problems(f"losses in column {column!r} must lie in [0, 1]", outside, remedy, problems)


def _list_problems(rule: str, found: list[str], remedy: str, problems: list[str]) -> None:
    if found:
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        problems.append(f"{rule}, got {'; '.join(found[:MAX_LISTED])}{more}; {remedy}")
