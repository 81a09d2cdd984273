"""Samples that evaluations of language models log: the mean score of each user, tenant, subject or language.

Read as the tools write them: inspect's logs (version 2 of its format) and lm-evaluation-harness' `samples_*.jsonl`. A
client is what a sample says under a key; what is bounded is the mean score of a client, and how it differs among them.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from riskband.answers.doors import TableError, Wanted
from riskband.answers.frames import AnyArray, means_by_client
from riskband.answers.metrics import first_of
from riskband.answers.responses import WhoAnswered
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import ClientChanges
from riskband.answers.tables import Table
from riskband.checks import FloatArray

NUM_EXAMPLES, CLIENT = "num_examples", "client"
_INSPECTS_VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # correct, partial, incorrect, no answer
_INSPECTS_VALUES |= {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}  # however they are written
_TASK = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_Key = tuple[str, str, str]  # of an example: its client, its name, and what its target or document is


class _Scored(NamedTuple):
    """One sample; several of one key, such as epochs, are one example."""

    key: _Key
    scores: dict[str, object]


class _Examples(NamedTuple):
    """One score of every example that counts."""

    clients: AnyArray  # of each example, shape (num_examples,)
    scores: FloatArray  # means over epochs, a column for each log, shape (num_examples, num_logs)
    are_single: bool  # whether each is of one sample, and 0 or 1
    num_missing: int
    errors: str


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation logged: the scores of samples by example, and what was evaluated."""

    path: Path
    about: Mapping[str, str]
    """The model, the task and the date, as far as the log says them."""
    samples: Mapping[_Key, Sequence[Mapping[str, object]]]
    """By client and example the scores of its samples: several, if there were epochs."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores."""
        return tuple(dict.fromkeys(name for found in self.samples.values() for scores in found for name in scores))

    def table(self, wanted: Wanted, *, on_error: str | None = None, worst: float = 0.0) -> Table:
        """Return the mean score that is wanted, not in percent, and the number of examples of each client.

        `on_error`, one of `riskband.answers.responses.ERRORS`, says what samples count as that raised an error or have
        no score; `worst` is the worst score there is. Raises `TableError`.
        """
        found = _examples([self], wanted, on_error, worst)
        names, means, sizes = means_by_client(found.clients, found.scores[:, 0])
        frame = {wanted.column: means, NUM_EXAMPLES: sizes, CLIENT: list(names)}
        of_all: dict[str, Any] = {"num_missing": found.num_missing, "about": self.about}
        of_all["who"] = {"errors": found.errors} if found.errors else {}
        return Table(frame, lambda row: f"client {names[row]}", CLIENT, are_binary=found.are_single, **of_all)

    def risks(self, column: str, *, on_error: str | None = None, **who: Unpack[WhoAnswered]) -> ClientRisks:
        """Return the mean loss of each client, 1 minus that score; for `on_error` see `table`. Raises `TableError`."""
        table = self.table(Wanted(NUM_EXAMPLES, accuracy=column), on_error=on_error)
        who["num_missing"] = who.get("num_missing", 0) + table.num_missing
        who["errors"] = table.who.get("errors", "")
        binary, losses = None if table.are_binary else False, 1.0 - table.frame[column]
        return ClientRisks(losses, table.frame[NUM_EXAMPLES], binary, names=table.frame[CLIENT], **who)


def changes_between(
    old: Evaluation, new: Evaluation, wanted: Wanted, *, on_error: str | None, **who: Unpack[WhoAnswered]
) -> ClientChanges:
    """Changes of the loss, 1 minus the score, of each client from one log to another one of the same samples.

    Where every loss is 0 or 1, it is counted how many only the new model gets wrong. Raises `TableError`.
    """
    found = _examples([old, new], wanted, on_error, 0.0)
    losses = 1.0 - found.scores
    names, before, sizes = means_by_client(found.clients, losses[:, 0])
    who["num_missing"] = who.get("num_missing", 0) + found.num_missing
    who["errors"] = found.errors
    if not found.are_single or wanted.binary is False:
        _, after, _ = means_by_client(found.clients, losses[:, 1])
        return ClientChanges(before, after, sizes, False, names=names, **who)
    gained = losses[:, 1] - losses[:, 0]
    worse, better, wrong = (
        np.rint(means_by_client(found.clients, each.astype(np.float64))[1] * sizes)
        for each in (gained > 0.0, gained < 0.0, losses[:, 0] > 0.0)
    )
    return ClientChanges.from_counts(worse, better, sizes, old_wrong=wrong, names=names, **who)


def _examples(logs: Sequence[Evaluation], wanted: Wanted, on_error: str | None, worst: float) -> _Examples:
    """Means over the epochs of each example in each of these logs of the same samples."""
    samples, place = _scores(logs, wanted), "of " + " and ".join(str(log.path) for log in logs)
    clients = np.array([client for client, *_ in logs[0].samples])
    counts = np.array([sum(int(np.sum(np.isnan(each))) for each in of_logs) for of_logs in samples])
    num_errors, failed = int(np.sum(counts)), clients[counts > 0]
    if num_errors and on_error is None:
        which = f"{num_errors} samples {place}, of {first_of(sorted(set(failed)))}, raised an error or have no score"
        remedy = "--errors wrong, missing (their clients are), or leave-out"
        raise TableError([f"every sample must have a score, got none where {which}; say what they count as: {remedy}"])
    if on_error == "leave_out":
        samples = [[each[~np.isnan(each)] for each in of_logs] for of_logs in samples]
    is_out = np.array([any(each.size == 0 for each in of_logs) for of_logs in samples])
    is_out |= np.isin(clients, failed) & (on_error == "missing")
    if is_out.all():
        what = "raised an error, or has no score; evaluate again, or say --errors wrong"
        raise TableError([f"some sample must count, got none {place}: each {what}"])
    if missing := sorted(set(clients) - set(clients[~is_out])):
        are = "client counts" if len(missing) == 1 else "clients count"
        why = "samples raised an error, or have no score"
        warnings.warn(f"{len(missing)} {are} as missing, as {why}: {first_of(missing)}", stacklevel=5)
    kept = [[np.where(np.isnan(each), worst, each) for each in samples[row]] for row in np.flatnonzero(~is_out)]
    scores = np.array([[np.mean(each) for each in of_logs] for of_logs in kept]).reshape(-1, len(logs))
    are_single = all(each.size == 1 and each[0] in (0.0, 1.0) for of_logs in kept for each in of_logs)
    if wanted.binary and not are_single:
        rule = "--binary needs a score of 0 or 1 for each example, in one epoch"
        raise TableError([f"{rule}, got others, or means over epochs {place}; leave it out"])
    counted = len(missing) if on_error == "missing" else num_errors
    return _Examples(clients[~is_out], scores, are_single, len(missing), f"{on_error}:{counted}" if num_errors else "")


def _scores(logs: Sequence[Evaluation], wanted: Wanted) -> list[list[FloatArray]]:
    """The wanted score of each sample, not in percent, NaN where it has none: arrays by example and log."""
    first, *others = logs
    for log in others:
        for one, other in ((first, log), (log, first)):
            if only := sorted(one.samples.keys() - other.samples.keys()):
                rule = "both logs must be of the same samples, with the same ids and targets"
                which = first_of([f"{name} of {client}" for client, name, _ in only])
                raise TableError([f"{rule}, got only in {one.path}: {which}; evaluate both models on the same"])
    for log in logs:
        if wanted.column not in log.columns:
            named = ", ".join(log.columns)
            raise TableError([f"--column must be one of {named}, got {wanted.column!r}; name a score of {log.path}"])
    most, found = 100.0 if wanted.percent else 1.0, list[list[FloatArray]]()
    for key in first.samples:
        found.append([])
        for log in logs:
            scores = [each.get(wanted.column, np.nan) for each in log.samples[key]]
            for each in scores:
                if not isinstance(each, float) or (not wanted.is_score and (each < 0.0 or each > most)):
                    rule = f"scores must be {'numbers' if wanted.is_score else f'numbers from 0 to {most:g}'}"
                    where = f"of sample {key[1]} of client {key[0]} in {log.path}"
                    remedy = "name another --column, or say --percent or --score NAME if they are such"
                    raise TableError([f"{rule}, got {each!r:.40} {where}; {remedy}"])
            found[-1].append(np.array(scores) / most)
    return found


def inspect_log(path: Path, client: str) -> Evaluation:
    """The log of one evaluation by inspect, `.json` or `.eval`; columns are its scorers, and those of their keys.

    `client` is a key of the samples' metadata, "metadata:user", or "task": all samples are one client's. Raises
    `TableError`, and ImportError for an `.eval` without inspect, whose compression Python 3.11 does not know.
    """
    if path.is_dir():
        logs = sorted(each.name for each in path.iterdir() if each.suffix in (".json", ".eval"))
        raise TableError([f"{path} must be one log, got a folder; name a log in it: {first_of(logs[::-1]) or 'none'}"])
    log = _inspects_log(path)
    if log.get("status") != "success":
        remedy = "run inspect eval-retry; with --no-fail-on-error a sample that raises an error does not end it"
        raise TableError([f"{path} must be a log that ended with success, got {log.get('status')!r}; {remedy}"])
    source, _, field = client.partition(":")
    if client != "task" and (source != "metadata" or not field):
        raise TableError([f"--client must be metadata:KEY, a key of the samples' metadata, or task, got {client!r}"])
    of = _mapping(log.get("eval"))
    said = of.get("model"), of.get("task"), _mapping(of.get("dataset")).get("name"), of.get("created")
    return _evaluation(_inspects_samples(log, field, path), path, *said)


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
        scores: dict[str, object] = {}
        for scorer, found in ({} if sample.get("invalidation") else sample.get("scores") or {}).items():
            value = found.get("value")
            for key, each in value.items() if isinstance(value, Mapping) else [("", value)]:
                scores[f"{scorer}/{key}" if key else scorer] = _inspects_number(each)
        said = (sample.get("metadata") or {}) if field else log["eval"]
        whose = _named(said, field or "task", f"sample {sample.get('id')} of {path}")
        yield _Scored((whose, repr(sample["id"]), json.dumps(sample.get("target"))), scores)


def _inspects_number(value: object) -> object:
    if isinstance(value, str):
        value = _INSPECTS_VALUES.get(value, _INSPECTS_VALUES.get(value.lower(), value))
    return _number(value)


def lm_eval_log(path: Path, client: str) -> Evaluation:
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
    dates = sorted({found[2] for _, found in named})
    results = [named[0][0].with_name(f"results_{date}.json") for date in dates]  # lies beside the samples
    models = {object_of(file.read_bytes(), str(file)).get("model_name") for file in results if file.is_file()}
    said = ", ".join(sorted(map(str, models - {None}))), ", ".join(tasks), None, ", ".join(dates)
    return _evaluation(_harness_samples({found[1]: file for file, found in named}, client), path, *said)


def _harness_samples(files: Mapping[str, Path], client: str) -> Iterator[_Scored]:
    lines = [(task, line) for task, file in files.items() for line in _lines(file)]
    has_filters = len({line.get("filter") for _, line in lines}) > 1
    found: dict[tuple[str, object], _Scored] = {}
    for task, line in lines:
        key = task, line["doc_id"]
        whose = task if client == "task" else _named(line["doc"], client, f"document {key[1]} of {files[task]}")
        suffix = f",{line['filter']}" if has_filters else ""
        scored = found.setdefault(key, _Scored((whose, f"{key[1]} of {task}", str(line.get("doc_hash"))), {}))
        scores = {f"{name}{suffix}": _number(line.get(name)) for name in line["metrics"]}
        if scores.keys() & scored.scores.keys():
            raise TableError([f"document {key[1]} of {files[task]} is scored twice; give the samples of one run"])
        scored.scores.update(scores)
    yield from found.values()


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        yield object_of(line, f"line {number} of {file}")


EVALUATIONS: Mapping[str, Callable[[Path, str], Evaluation]] = {"inspect": inspect_log, "lm_eval": lm_eval_log}
"""By name, what reads the samples of an evaluation; the text says whose each is."""


def evaluation(tool: str, path: str, wanted: Wanted) -> Evaluation:
    """Read the log of a tool for scores that are wanted of it; raises `TableError`."""
    if tool not in EVALUATIONS:
        raise TableError([f"the tool must be one of {', '.join(EVALUATIONS)}, got {tool!r}; say which wrote {path}"])
    if wanted.client is None:
        raise TableError([f"--from {tool} needs --client: what a sample says of whose it is"])
    if not isinstance(wanted.num_examples, str) and wanted.num_examples != 1:  # what is not said is 1
        rule = f"--num-examples must be num_examples with --from {tool}, got {wanted.num_examples}"
        raise TableError([f"{rule}; how many examples each client has is counted in the file"])
    if wanted.accuracy is None and not wanted.is_score:
        rule = f"scores of {tool} are largest where the answer is right: say --accuracy"
        raise TableError([f"{rule}, or for another metric --score NAME --lower-is-better"])
    return EVALUATIONS[tool](Path(path), wanted.client)


def _evaluation(samples: Iterable[_Scored], path: Path, *about: object) -> Evaluation:
    """The samples by example, with the model, task, data and date that the log says."""
    by_example = defaultdict[_Key, list[Mapping[str, object]]](list)
    try:
        for each in samples:
            by_example[each.key].append(each.scores)
    except (KeyError, TypeError, AttributeError) as error:
        raise TableError([f"{path} must be as the tool writes it, got a sample without {error}"]) from error
    said = {name: str(value) for name, value in zip(("model", "task", "data", "date"), about, strict=True) if value}
    found = Evaluation(path, said, dict(by_example))
    if not found.columns:
        raise TableError([f"{path} must have samples with scores, got none; log the samples"])
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> object:
    """A score as a number, NaN if there is none; what cannot be one as it is."""
    try:
        return np.nan if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return value


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
