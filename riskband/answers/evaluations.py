"""Samples that evaluations of language models log, as a table with a row for each user, tenant, subject or language.

Read as the tools write them: inspect's logs (version 2 of its format) and lm-evaluation-harness' `samples_*.jsonl`. A
client is what a sample says under a key; what is bounded is the mean score of a client, and how it differs among them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.doors import TableError
from riskband.answers.frames import means_by_client
from riskband.answers.tables import Table

NUM_EXAMPLES, CLIENT = "num_examples", "client"
_INSPECTS_VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # correct, partial, incorrect, no answer
_INSPECTS_VALUES |= {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}  # however they are written
_TASK = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")


class _Scored(NamedTuple):
    """One sample; several of the same client and key, such as its epochs, are one example."""

    client: str
    key: object
    scores: dict[str, float]


def inspect_table(path: Path, client: str) -> Table:
    """The log of one evaluation by inspect, `.json` or `.eval`; columns are its scorers, and those of their keys.

    `client` is a key of the samples' metadata, "metadata:user", or "task": all samples are one client's. Raises
    `TableError`, and ImportError for an `.eval` without inspect, whose compression Python 3.11 does not know.
    """
    log = _inspects_log(path)
    if log.get("status") != "success":
        raise TableError(
            [f"{path} must be a log that ended with success, got {log.get('status')!r}; run inspect again"]
        )
    source, _, field = client.partition(":")
    if client != "task" and (source != "metadata" or not field):
        raise TableError([f"--client must be metadata:KEY, a key of the samples' metadata, or task, got {client!r}"])
    return _table(_inspects_samples(log, field, path), path)


def _inspects_log(path: Path) -> Mapping[str, Any]:
    if path.suffix != ".eval":
        return object_of(path.read_bytes(), str(path))
    try:
        from inspect_ai.log import read_eval_log  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        remedy = "pip install inspect-ai, or make JSON of it: inspect log convert --to json"
        raise ImportError(f"{path} needs inspect, to uncompress it; {remedy}") from error
    found: Mapping[str, Any] = read_eval_log(path).model_dump(mode="json")
    return found


def _inspects_samples(log: Mapping[str, Any], field: str, path: Path) -> Iterator[_Scored]:
    """The samples of a log, of the client that the field of their metadata names; without one, of its task."""
    for sample in log.get("samples") or []:
        scores: dict[str, float] = {}
        for scorer, found in (sample.get("scores") or {}).items():
            value = found.get("value")
            for key, each in value.items() if isinstance(value, Mapping) else [("", value)]:
                scores[f"{scorer}/{key}" if key else scorer] = _inspects_number(each)
        said = (sample.get("metadata") or {}) if field else log["eval"]
        yield _Scored(_named(said, field or "task", f"sample {sample.get('id')} of {path}"), sample["id"], scores)


def _inspects_number(value: object) -> float:
    if isinstance(value, str):
        value = _INSPECTS_VALUES.get(value, _INSPECTS_VALUES.get(value.lower(), value))
    return _number(value)


def lm_eval_table(path: Path, client: str) -> Table:
    """What lm-evaluation-harness logged with --log_samples into a folder; columns are the metrics.

    `client` is "task", or a field of the documents, "subject". Where several filters were scored, columns are named
    "METRIC,FILTER". Raises `TableError`.
    """
    files = sorted(path.glob("**/samples_*.jsonl")) if path.is_dir() else [path]
    named = [(file, found) for file in files if (found := _TASK.fullmatch(file.name))]
    tasks = [found[1] for _, found in named]
    if not named or len(set(tasks)) < len(tasks):
        got = f"{len(tasks)} files of {len(set(tasks))} tasks"
        rule = f"{path} must have samples_TASK_DATE.jsonl of one run, once of each task, got {got}"
        raise TableError([f"{rule}; run lm_eval with --log_samples and a folder of its own for --output_path"])
    return _table(_harness_samples({found[1]: file for file, found in named}, client), path)


def _harness_samples(files: Mapping[str, Path], client: str) -> Iterator[_Scored]:
    lines = [(task, line) for task, file in files.items() for line in _lines(file)]
    has_filters = len({line.get("filter") for _, line in lines}) > 1
    found: dict[tuple[str, object], _Scored] = {}
    for task, line in lines:
        key = task, line["doc_id"]
        whose = task if client == "task" else _named(line["doc"], client, f"document {key[1]} of {files[task]}")
        suffix = f",{line['filter']}" if has_filters else ""
        scored = found.setdefault(key, _Scored(whose, key, {}))
        scores = {f"{name}{suffix}": _number(line.get(name)) for name in line["metrics"]}
        if scores.keys() & scored.scores.keys():
            raise TableError([f"document {key[1]} of {files[task]} is scored twice; give the samples of one run"])
        scored.scores.update(scores)
    yield from found.values()


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        yield object_of(line, f"line {number} of {file}")


EVALUATIONS: Mapping[str, Callable[[Path, str], Table]] = {"inspect": inspect_table, "lm_eval": lm_eval_table}
"""By name, what reads the samples of an evaluation; the text says whose each is."""


def _table(samples: Iterable[_Scored], path: Path) -> Table:
    """Mean scores and numbers of examples by client; an example that was scored several times counts once."""
    by_example = defaultdict[tuple[str, object], list[Mapping[str, float]]](list)
    try:
        for each in samples:
            by_example[each.client, each.key].append(each.scores)
    except (KeyError, TypeError, AttributeError) as error:
        raise TableError([f"{path} must be as the tool writes it, got a sample without {error}"]) from error
    columns = dict.fromkeys(name for found in by_example.values() for scores in found for name in scores)
    if not columns:
        raise TableError([f"{path} must have samples with scores, got none; log the samples"])
    clients = np.array([client for client, _ in by_example])
    frame: dict[str, Any] = {}
    for column in columns:
        values = np.array([np.mean([each.get(column, np.nan) for each in found]) for found in by_example.values()])
        names, frame[column], frame[NUM_EXAMPLES] = means_by_client(clients, values)
    frame[CLIENT] = list(names)
    return Table(frame, lambda row: f"client {names[row]}", client=CLIENT)


def _number(value: object) -> float:
    """A score as a number; nan, which is missing, for what is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _named(fields: Mapping[str, Any], field: str, place: str) -> str:
    if not isinstance(fields.get(field), (str, int)) or fields[field] == "":
        known = ", ".join(sorted(map(str, fields))) or "nothing"
        raise TableError([f"--client: {place} must say its {field!r}, got {fields.get(field)!r}; it says {known}"])
    return str(fields[field])


def object_of(text: bytes, place: str) -> Mapping[str, Any]:
    """Return the JSON object in a text; raises `TableError` if there is another thing."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError([f"{place} must be a JSON object, got {error}; give what the tool wrote"]) from error
    if not isinstance(found, Mapping):
        raise TableError([f"{place} must be a JSON object, got {found!r:.40}; give what the tool wrote"])
    return found
