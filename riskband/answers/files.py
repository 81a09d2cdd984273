"""Per-client losses from files: tables, and those in which other federated frameworks keep what clients measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from riskband.answers import frames
from riskband.answers.doors import Door, TableError, Wanted, read_columns
from riskband.answers.evaluations import EVALUATIONS, NUM_EXAMPLES, evaluation, object_of
from riskband.answers.ledgers import is_ledger, ledger_table
from riskband.answers.metrics import loss_problem
from riskband.answers.responses import WhoAnswered
from riskband.answers.risks import ClientRisks, risks_of_table
from riskband.answers.scaled import ClientScores
from riskband.answers.tables import Table, read_table
from riskband.checks import float_of

_LOSS = "loss"  # the column of losses that scores of evaluations become
_SHARE = "share"  # the column of shares in a table of strata
_NAMES = "client"  # the column that has the names of the clients in what frameworks write
_FLAGS = {"loss": "column", "is_score": "score"}  # what options are called that no column has the name of
UNSAID = Wanted(1, loss="loss")
"""What the options of a command say of columns where they say nothing."""
COMMAND = Door("", str, "--client ", "--not-binary", "--drop-missing", "--accuracy", "--percent", "--noise")


def read_risks(
    path: str,
    wanted: Wanted,
    *,
    framework: str | None = None,
    on_error: str | None = None,
    about: dict[str, str] | None = None,
    noise: str | None = None,
    **who: Unpack[WhoAnswered],
) -> ClientRisks:
    """Read one row per client, in the order of the rows: of a table, or of what a framework of `FRAMEWORKS` wrote.

    Raises `TableError` with every problem found, OSError if the file cannot be read, and ImportError if a package is
    not there that it needs. For `on_error` see `Evaluation.table`; `about` is filled with what the file says of the
    evaluation. For `noise` and `who`, which have only what is said, see `ClientRisks`.
    """
    said: dict[str, Any] = {**who, **({} if noise is None else {"noise": noise})}
    table, wanted, door, said = _opened(path, wanted, framework, said, on_error=on_error, about=about)
    with warnings.catch_warnings():
        # The summary says it.
        warnings.filterwarnings("ignore", "the losses are taken|num_examples may be", UserWarning)
        try:
            return risks_of_table(table.frame, wanted, door, **said)
        except TableError:
            raise
        except ValueError as error:
            raise TableError([str(error)]) from error


def read_scores(
    path: str,
    wanted: Wanted,
    *,
    framework: str | None = None,
    on_error: str | None = None,
    about: dict[str, str] | None = None,
    higher_is_better: bool,
    name: str,
    ends: tuple[float, float],
    **who: Unpack[WhoAnswered],
) -> ClientScores:
    """Read scores that are no means, one row per client, as `read_risks` reads losses; raises its errors."""
    worst = ends[0] if higher_is_better else ends[1]
    table, wanted, door, said = _opened(path, wanted, framework, who, on_error=on_error, about=about, worst=worst)
    if problem := loss_problem(wanted.column, name) if higher_is_better else "":
        raise TableError([problem])
    found = read_columns(table.frame, wanted, door, is_noisy=False, contamination=said.get("contamination", 0))
    said["num_missing"] += found["num_missing"]
    labels = {each: found.get(each) for each in ("names", "groups")}
    of_score: dict[str, Any] = {"name": name, "low": ends[0], "high": ends[1], **labels}
    try:
        return ClientScores(found["values"], higher_is_better, **of_score, **said)
    except ValueError as error:
        raise TableError([str(error)]) from error


def _refuse_contradictions(path: str, said: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise `TableError` where options say otherwise than their file."""
    differs = [name for name in said if name in known and said[name] != known[name]]
    flags = {name: f"--{_FLAGS.get(name, name).replace('_', '-')} must be as {path} has it" for name in differs}
    if problems := [f"{flags[name]}, {known[name]!r}, got {said[name]!r}; leave it out" for name in differs]:
        raise TableError(problems)


def _opened(
    path: str,
    wanted: Wanted,
    framework: str | None,
    who: Mapping[str, Any],
    *,
    on_error: str | None,
    about: dict[str, str] | None,
    worst: float = 0.0,
) -> tuple[Table, Wanted, Door, dict[str, Any]]:
    """The table, what is read of it, what it is called, and what is said of who answered: here and by the file."""
    if is_ledger(path, framework):
        table = ledger_table(Path(path))
        of_columns = {each.name: getattr(wanted, each.name) for each in fields(Wanted)}
        of_columns = {name: value for name, value in of_columns.items() if value not in (None, getattr(UNSAID, name))}
        _refuse_contradictions(path, {**of_columns, **who}, {**table.columns, **table.who})
        wanted = Wanted(**table.columns, is_growing=wanted.is_growing)
        return table, wanted, COMMAND._replace(table=path, place=table.place), {**who, **table.who}
    if isinstance(wanted.shares, str) and wanted.stratum is not None:
        wanted = replace(wanted, shares=_read_shares(wanted.shares, wanted.stratum))
    named = (wanted.column, wanted.num_examples, wanted.sampling_weight)
    numbers = [each for each in named if isinstance(each, str)]
    if framework is None:
        table = read_table(path, numbers, is_growing=wanted.is_growing)
    elif framework in EVALUATIONS:
        table = evaluation(framework, path, wanted).table(wanted, on_error=on_error, worst=worst)
        wanted = replace(wanted, client=table.client, num_examples=1 if wanted.is_score else NUM_EXAMPLES)
        if not wanted.is_score:  # as losses, which are no accuracies that somebody has rounded
            wanted = replace(wanted, binary=wanted.binary if table.are_binary else False)
            if problems := wanted.problems(COMMAND, is_noisy=False):
                raise TableError(problems)
            frame = dict(table.frame)
            frame[_LOSS] = 1.0 - frame.pop(wanted.column)
            table, wanted = table._replace(frame=frame), replace(wanted, loss=_LOSS, accuracy=None, percent=False)
    else:
        if wanted.client is not None:
            raise TableError([f"--client is for tables, got {wanted.client!r} with --from, which knows the names"])
        table = FRAMEWORKS[framework](Path(path))
        wanted = replace(wanted, client=table.client)
    if about is not None:
        about |= table.about
    door = COMMAND._replace(table="the standard input" if path == "-" else path, place=table.place)
    return table, wanted, door, {**who, **table.who, "num_missing": who.get("num_missing", 0) + table.num_missing}


def _read_shares(path: str, stratum: str) -> dict[str, float]:
    """Shares of strata from a table with a row for each: a column called as that of the clients' strata, and "share".

    Raises `TableError` and OSError.
    """
    table = read_table(path, [_SHARE])
    try:
        names, shares = (frames.column(table.frame, name, called=path) for name in (stratum, _SHARE))
        values = frames.numbers(
            f"column {_SHARE!r} of {path}", shares, remedy="say the share of every stratum"
        ).tolist()
    except ValueError as error:
        raise TableError([str(error)]) from error
    labels = [(each or "").strip() for each in frames.labels_or_none(names)]
    if twice := [each for each in labels if labels.count(each) > 1]:
        raise TableError([f"{path} must name every stratum once, got {twice[0]!r} again; add its shares up"])
    return dict(zip(labels, values, strict=True))


def number_or_column(text: str) -> float | str:
    """What a text says of the numbers of examples: a number for all clients, or the name of a column."""
    try:
        return float_of(text)
    except ValueError:
        return text


def nvflare_table(path: Path) -> Table:
    """NVFlare's cross_val_results.json, {site: {model: {metric: number}}}; columns are "MODEL/METRIC"."""
    clients = {}
    for site, models in _entries(object_of(path.read_bytes(), str(path)), path):
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
        report = object_of(file.read_bytes(), str(file))
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
    """The metrics of each client, by its name; what one has not measured is missing."""
    columns = dict.fromkeys(column for found in clients.values() for column in found)
    frame = {each: np.array([found.get(each) for found in clients.values()], dtype=object) for each in columns}
    names = list(clients)
    return Table({**frame, _NAMES: names}, lambda row: f"client {names[row]}", client=_NAMES)


def _entries(found: Any, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Items of an object of objects."""
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise TableError([f"{path} must be as the framework writes it, got another structure; see docs/library.md"])
    return list(found.items())
