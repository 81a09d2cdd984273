"""Read per-client losses from a CSV file, and say everything that is wrong with it at once."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from riskband.risks import ClientRisks

MAX_LISTED = 5


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
) -> ClientRisks:
    """Read one row per client.

    Parameters
    ----------
    path : str or Path
        CSV file with a header line.
    column : str
        Column with the client's mean loss in [0, 1], or with its accuracy in percent.
    num_examples : str
        A whole number for all clients, or the name of a column.
    is_percent : bool
        Whether `column` holds accuracies in percent; the loss is then 1 - value / 100.
    is_binary : bool, optional
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
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        header, rows = reader.fieldnames or [], list(reader)
    wanted = [column] if num_examples.isdigit() else [column, num_examples]
    absent = [name for name in wanted if name not in header]
    if absent:
        raise TableError([f"column {name!r} is not in {path}; its columns are: {', '.join(header)}" for name in absent])
    problems: list[str] = []
    values = _numbers(rows, column, problems)
    sizes = np.array([float(num_examples)]) if num_examples.isdigit() else _numbers(rows, num_examples, problems)
    _check_scale(values, column, is_percent, problems)
    if problems:
        raise TableError(problems)
    losses = np.round(1.0 - values / 100.0, 12) if is_percent else values
    try:
        return ClientRisks(losses, sizes[0] if sizes.size == 1 else sizes, binary=is_binary)
    except ValueError as error:
        raise TableError([str(error)]) from error


def _numbers(rows: list[dict[str, str]], column: str, problems: list[str]) -> np.ndarray:
    numbers, wrong = [], []
    for line, row in enumerate(rows, start=2):
        text = (row[column] or "").strip()
        try:
            numbers.append(float(text))
        except ValueError:
            wrong.append(f"line {line}: {text!r}")
    _list_problems(f"column {column!r} must hold numbers", wrong, "fill in or remove these rows", problems)
    return np.array(numbers)


def _check_scale(values: np.ndarray, column: str, is_percent: bool, problems: list[str]) -> None:
    top = 100.0 if is_percent else 1.0
    outside = [f"line {line}: {value:g}" for line, value in enumerate(values, start=2) if not 0.0 <= value <= top]
    if is_percent:
        _list_problems("accuracies in percent must lie in [0, 100]", outside, "correct these rows", problems)
        if values.size and not outside and values.max() <= 1.0:
            problems.append(f"--percent was given, but no value of column {column!r} is above 1; drop --percent")
    else:
        remedy = "if the column holds accuracies in percent, add --percent; otherwise scale the loss to [0, 1]"
        _list_problems(f"losses in column {column!r} must lie in [0, 1]", outside, remedy, problems)


def _list_problems(rule: str, found: list[str], remedy: str, problems: list[str]) -> None:
    if found:
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        problems.append(f"{rule}, got {'; '.join(found[:MAX_LISTED])}{more}; {remedy}")
