"""Tables in files, whatever these are called: CSV in several spellings, gzip, xlsx and parquet."""

from __future__ import annotations

import codecs
import csv
import gzip
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from io import BytesIO, StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.doors import DECIMAL_COMMA, TableError
from riskband.checks import float_of

STDIN = "-"
_NO_ANSWER = ("", "-", "na", "n/a", "nan", "none", "null")  # in lower case
_OF_THOUSANDS = 3  # digits between two signs, of which one may be a decimal comma
_SEPARATORS = ",;\t|"
# Blank lines before the header, among which may be the one of Excel that says the separator.
_BEFORE_HEADER = re.compile(r'(?:[^\S\n]*\n)*(?:"?sep=(.)"?\r?\n)?(?:[\s,;|]*\n)?', re.IGNORECASE)
_UTF = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}  # before UTF-16, whose mark begins the first
_UTF |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_GZIP, _PARQUET, _ZIP, _OLD_EXCEL = b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"\xd0\xcf\x11\xe0"


class Table(NamedTuple):
    """A frame with a row per client, and what else its file says, which no option may contradict."""

    frame: Any
    place: Callable[[int], str]  # what each row is called
    client: str | None = None  # the column that names them
    num_missing: int = 0  # how many others are known
    columns: Mapping[str, Any] = MappingProxyType({})  # by the fields of `Wanted`
    who: Mapping[str, Any] = MappingProxyType({})  # answered, by keywords of answers
    are_binary: bool | None = None  # whether the losses of examples are 0 or 1, if the file says each
    about: Mapping[str, str] = MappingProxyType({})  # what was evaluated


def read_table(path: str, numbers: Collection[str], *, is_growing: bool = False) -> Table:
    """Read a table, or standard input if the path is "-"; what it is says its content, not its name.

    Cells of the columns `numbers` are numbers, None where there is no answer, or else text. Of text that is growing,
    what follows the end of the last line is left out: it is being written. Raises `TableError` if it
    cannot be read, OSError if it is not there, and ImportError, with what to do, without the packages that it needs.
    """
    name = "the standard input" if path == STDIN else path
    if path != STDIN and Path(path).is_dir():
        raise TableError([f"{name} must be a file, got a folder; name the table in it, or say --from fl4health"])
    content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    try:
        content = gzip.decompress(content) if content.startswith(_GZIP) else content
        if content.startswith(_PARQUET):
            return _of_pandas(_pandas("pyarrow").read_parquet(BytesIO(content)), "row {}".format, first=1)
        if content.startswith(_ZIP):
            return _excel_table(name, content, numbers)
    except (ImportError, TableError):
        raise
    except Exception as error:  # of gzip, and whatever pandas and its engines raise
        raise TableError([f"{name} must be whole, got {error}; save it again, or as CSV"]) from error
    if content.startswith(_OLD_EXCEL):
        raise TableError([f"{name} must be a table, got a file of old Excel; save it as xlsx or as CSV UTF-8"])
    text = _text(name, content)
    text = text[: text.rfind("\n") + 1] if is_growing else text
    if not text.strip():
        raise TableError([f"{name} must have a header and a row for each client, got nothing; was it saved?"])
    try:
        return _csv_table(name, text, numbers)
    except csv.Error as error:
        raise TableError([f"{name} must be a CSV file, got {error}; save it again as CSV UTF-8"]) from error


def _pandas(engine: str) -> Any:
    try:
        import_module(engine)
        return import_module("pandas")
    except ImportError as error:
        need = f"such files need pandas and {engine}: run pip install pandas {engine}, or save the table as CSV"
        raise ImportError(need) from error


def _excel_table(name: str, content: bytes, numbers: Collection[str]) -> Table:
    # pandas would rename what is there twice in a header, and take a client called NA for none.
    as_is = {"header": None, "keep_default_na": False, "na_values": [""], "dtype": object}
    sheets = _pandas("openpyxl").read_excel(BytesIO(content), sheet_name=None, engine="openpyxl", **as_is)
    filled = {each: cells for each, frame in sheets.items() if len(cells := frame.dropna(how="all")) > 1}
    if len(filled) != 1:
        raise TableError([f"{name} must have rows in one sheet, got {', '.join(filled) or 'none'}; keep one"])
    ((sheet, cells),) = filled.items()
    named = cells.iloc[0].notna()
    header = [str(each).strip() if named[at] else f"Unnamed: {at}" for at, each in cells.iloc[0].items()]
    frame = cells.iloc[1:].set_axis(header, axis=1)
    for each in set(numbers) & set(header):
        frame[each] = [_cell(cell.strip()) if isinstance(cell, str) else cell for cell in frame[each]]
    return _of_pandas(frame.infer_objects(), f"row {{}} of sheet {sheet!r}".format, first=1)


def _of_pandas(frame: Any, place: Callable[[int], str], *, first: int) -> Table:
    """A frame without rows that hold nothing; its rows are counted as its file shows them."""
    frame = frame.reset_index() if any(frame.index.names) else frame
    frame = frame.rename(columns=lambda name: str(name).strip()).dropna(how="all")
    rows = frame.index.tolist() if frame.index.dtype.kind == "i" else range(len(frame))
    return Table(frame, lambda row: place(rows[row] + first))


def _text(name: str, content: bytes) -> str:
    encoding = next((found for mark, found in _UTF.items() if content.startswith(mark)), "utf-8-sig")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        remedy = f"save it as CSV UTF-8, or run: iconv -f WINDOWS-1252 -t UTF-8 {name} > new.csv"
        problem = f"{name} must be text in UTF-8, got Latin-1 or another code in line {line}; {remedy}"
        raise TableError([problem]) from error
    if "\0" in text:
        raise TableError([f"{name} must be text in UTF-8, got zero bytes, as in UTF-16; save it as CSV UTF-8"])
    return text


def _csv_table(name: str, text: str, numbers: Collection[str]) -> Table:
    before = _BEFORE_HEADER.match(text)
    num_before, text = (before[0].count("\n"), text[before.end() :]) if before else (0, text)
    first = text.partition("\n")[0]
    separator = (before and before[1]) or max(_SEPARATORS, key=first.count)
    reader = csv.DictReader(StringIO(text, newline=""), delimiter=separator)
    header = reader.fieldnames = [each.strip() for each in reader.fieldnames or []]
    rows = [(reader.line_num + num_before, row) for row in reader]
    # A row without any value is no client: spreadsheets leave such rows at the end.
    rows = [each for each in rows if None in each[1] or any(map(str.strip, filter(None, each[1].values())))]
    if too_wide := [line for line, row in rows if None in row]:
        rule = f"every row must have {len(header)} values, as the header has, got more in line {too_wide[0]}"
        remedy = "write numbers with points and without other commas, or put them in quotes"  # 0,5 is two of them
        raise TableError([f"{rule} ({len(too_wide)} such rows); {remedy}"])
    if twice := [each for each in numbers if header.count(each) > 1]:
        raise TableError([f"{name} must have a column {twice[0]!r} once; rename the others"])
    columns: dict[str, Any] = {each: [row[each] or "" for _, row in rows] for each in header if header.count(each) == 1}
    written = {each: [text.strip() for text in columns[each]] for each in columns.keys() & set(numbers)}
    has_commas = separator != "," and any(DECIMAL_COMMA.fullmatch(text) for texts in written.values() for text in texts)
    for each, texts in written.items():
        cells = [_cell(text, has_commas=has_commas) for text in texts]
        columns[each] = np.array(cells, dtype=float if set(map(type, cells)) == {float} else object)
    lines = [line for line, _ in rows]
    return Table(columns, lambda row: f"line {lines[row]}")


def _cell(text: str, *, has_commas: bool = False) -> float | str | None:
    """A number, None for no answer, or the text; where commas are decimal, no sign may stand between thousands."""
    if text.lower() in _NO_ANSWER:
        return None
    whole, comma, digits = text.partition(",")
    if has_commas and ("." in text or (len(digits) == _OF_THOUSANDS and whole not in ("", "0"))):
        return text
    try:
        number = float_of(f"{whole}.{digits}" if has_commas and comma else text)
    except ValueError:
        return text
    return text if math.isnan(number) else number
