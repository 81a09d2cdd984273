"""Tables of other people: columns of any data frame as arrays.

A frame is whatever gives a column by ``frame[name]`` that numpy can read: of pandas, polars or pyarrow, a structured
array, a mapping of names to lists. No package of frames is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.checks import as_written

_NOTHING = ("NAType", "NaTType")  # what pandas writes for a missing value besides None and NaN
AnyArray = npt.NDArray[Any]


def column(frame: Any, name: str, *, called: str = "the frame") -> AnyArray:
    """Return a column of a frame, shape (num_rows,); raises ValueError if there is not one of that name."""
    try:
        values = as_array(frame[name])
    except Exception as error:
        is_of_polars = "ColumnNotFound" in type(error).__name__  # polars derives its own errors from Exception alone
        if not (is_of_polars or isinstance(error, (LookupError, ValueError, TypeError, AttributeError))):
            raise
        found, got, remedy = _names_of(frame), type(frame).__name__, "give a frame, or a mapping of names to lists"
        if found is not None:
            got, remedy = f"the columns {', '.join(map(str, found)) or '(none)'}", "name one of these"
        raise ValueError(f"{called} must have a column {name!r}, got {got}; {remedy}") from error
    if values.ndim != 1:
        raise ValueError(f"column {name!r} must be there once and hold one value a row, got shape {values.shape}")
    if (again := f"{name}.1") in (_names_of(frame) or ()):
        raise ValueError(f"column {name!r} must be there once, got {again!r}, as pandas calls a second one; rename one")
    return values


def as_array(values: Any) -> AnyArray:
    """Return values as an array, None where they are masked."""
    array = np.asanyarray(values)
    masked = isinstance(array, np.ma.MaskedArray)
    return np.array(array.tolist(), dtype=object) if masked else np.asarray(array)


def _names_of(frame: Any) -> list[Any] | None:
    """Names of the columns; `None` where the frame does not say them."""
    for found in (
        getattr(frame, "column_names", None),
        getattr(frame, "columns", None),
        getattr(getattr(frame, "dtype", None), "names", None),
        frame.keys() if isinstance(frame, Mapping) else None,
    ):
        if found is not None:
            return list(found)
    return None


def table_of_metric_frame(frame: Any, *, group: str | None) -> tuple[Any, str]:
    """Return the table of fairlearn's `MetricFrame` with a row per client, and the column that names these.

    A second feature is the `group`; what no example has both of is no client.
    """
    by_group: Any = getattr(frame, "by_group", None)
    if not hasattr(by_group, "columns"):  # of one metric that is not named it is a series
        raise ValueError(
            "frame must be a MetricFrame of fairlearn with named metrics, got another thing; make it with "
            "metrics={'error': zero_one_loss, 'n': count}"
        )
    features = list(by_group.index.names)
    clients = [each for each in features if each != group]
    if len(clients) != 1:
        raise ValueError(
            "frame must have one sensitive feature, whose values are the clients, got "
            f"{', '.join(map(str, features))}; join them, or name the other one with group="
        )
    table = by_group if group is None else by_group.dropna(how="all")
    return table.reset_index(), str(clients[0])


def numbers(name: str, values: AnyArray, *, remedy: str) -> npt.NDArray[np.float64]:
    """Return a column as floats; raises ValueError with the first row where there is no number, or none at all."""
    refuse_missing(name, values, remedy=remedy)
    found, wrong = numbers_or_nan(values)
    if wrong:
        row, value = next(iter(wrong.items()))
        raise ValueError(
            f"{name} must hold numbers, got {value!r:.40} in row {row} (from 0) and no number in {len(wrong)} of "
            f"{values.size} rows; turn text into numbers, and truth values of right answers into errors"
        )
    return found


def numbers_or_nan(values: AnyArray) -> tuple[npt.NDArray[np.float64], dict[int, object]]:
    """A column as floats, NaN where a value is missing; and by row what is no number, in whose place NaN stands too."""
    if values.dtype.kind in "iuf":
        return as_written(values), {}
    cells = [None if _is_missing(each) else each for each in values.tolist()]
    wrong = {row: each for row, each in enumerate(cells) if each is not None and not _is_number(each)}
    return np.array([np.nan if each is None or row in wrong else float(each) for row, each in enumerate(cells)]), wrong


def _is_number(value: object) -> bool:
    is_huge = isinstance(value, int) and value.bit_length() > 1023  # for a float, as JSON may have it
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_)) and not is_huge


def refuse_missing(name: str, values: AnyArray, *, remedy: str) -> None:
    """Raise ValueError if a value of a column is missing: None, NaN, or what a package of frames writes for it."""
    if values.dtype.kind in "iubSU":  # what is never missing
        return
    if values.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(values))
    else:
        missing = np.array([row for row, each in enumerate(values.tolist()) if _is_missing(each)], dtype=np.int64)
    if missing.size:
        raise ValueError(
            f"{name} must have a value in every row, got none in {missing.size} of {values.size} rows, the first of "
            f"them row {missing[0]} (from 0); {remedy}"
        )


def _is_missing(value: object) -> bool:
    return value is None or type(value).__name__ in _NOTHING or (isinstance(value, float) and value != value)


def refuse_other_order(**columns: Any) -> None:
    """Raise ValueError if columns of pandas have the same rows in another order: no row is looked up by its label."""
    indices: list[tuple[str, Any]] = [(name, getattr(each, "index", None)) for name, each in columns.items()]
    labelled = [(name, index) for name, index in indices if hasattr(index, "equals")]
    for name, index in labelled[1:]:
        first, expected = labelled[0]
        if not index.equals(expected) and set(index) == set(expected):
            raise ValueError(
                f"{first} and {name} must be in one order, got the same labels in different orders, from "
                f"{expected[0]!r:.40} and from {index[0]!r:.40} on; write {name}.loc[{first}.index]"
            )


def all_columns(frame: Any) -> Iterator[tuple[str, AnyArray]]:
    """Columns of a frame by name, and the labels of its rows if it is of pandas."""
    index: Any = getattr(frame, "index", None)
    for level, name in enumerate(getattr(index, "names", ())):
        yield str(name or "index"), np.asarray(index.get_level_values(level))
    for name in _names_of(frame) or ():
        try:
            yield str(name), column(frame, name)
        except ValueError:  # is there twice, or has other things than values: nobody asked for it
            continue


def has_fractions(values: AnyArray) -> bool:
    """Whether a column holds numbers that are not whole."""
    return values.dtype.kind == "c" or (values.dtype.kind == "f" and bool(np.any(values[np.isfinite(values)] % 1.0)))


def labels_or_none(values: AnyArray) -> tuple[str | None, ...]:
    """Return a column of names as text, and None where one is missing."""
    if values.dtype.kind in "iubU":  # what is never missing
        return tuple(map(str, values.tolist()))
    return tuple(None if _is_missing(each) else str(each) for each in _texts(values).tolist())


def _texts(values: AnyArray) -> AnyArray:
    return values.astype(np.str_) if values.dtype.kind == "S" else values


def means_by_client(
    clients: AnyArray, values: npt.NDArray[np.float64]
) -> tuple[tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the names of the clients in rising order, the mean of each one's values, and how many these are.

    The order of the rows is of no consequence, not even for the last digit.
    """
    named = _texts(clients)
    if named.dtype.kind == "O":  # of mixed kinds, which do not compare
        named = np.array([str(each) for each in named.tolist()])
    names, which = np.unique(named, return_inverse=True)
    order = np.lexsort((values, which))
    counts = np.bincount(which, minlength=names.size)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    means = np.add.reduceat(values[order], starts) / counts
    return tuple(str(each) for each in names.tolist()), means, counts
