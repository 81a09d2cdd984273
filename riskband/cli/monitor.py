"""`riskband monitor`: whether a network is still what a certificate is about, as its clients answer."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import riskband as rb
from riskband.answers.doors import TableError, TooFewError
from riskband.answers.files import UNSAID, read_risks, read_scores
from riskband.answers.ledgers import header_of, is_ledger, model_problems, who_is_asked
from riskband.answers.metrics import first_of
from riskband.answers.scaled import CHANGE, scale_of
from riskband.checks import check_installed
from riskband.cli.certify import add_columns, add_repeats
from riskband.cli.report import checked
from riskband.cli.request import named, output_problems, unsaid, wanted_of
from riskband.cli.verify import read_document
from riskband.report.monitor_page import monitor_page
from riskband.report.monitored import Monitoring, joined
from riskband.report.panels import monitor_panel
from riskband.verification import answers_of

_TABLES = (".csv", ".tsv", ".gz", ".xlsx", ".parquet", ".jsonl")
_REPORT, _LEDGER = "report.json", "ledger.jsonl"  # in the folder of a run that is complete


def run(options: argparse.Namespace) -> int:
    """Look at the answers, once or until there is an alarm; print what they say, and write what was asked for."""
    more = {"page": options.page, "prometheus": options.prometheus}
    problems = output_problems([options.certificate, options.answers], options.out, **more)
    rules = [
        (options.follow and options.json, "--json is for one look: leave --follow out, or take --out"),
        (options.interval < 1, f"--interval must be 1 second or more, got {options.interval}"),
    ]
    problems += [text for is_wrong, text in rules if is_wrong]
    if problems:
        raise TableError(problems)
    entries = read_document(options.certificate)["certificates"]
    certificates = {name: checked(name, entry) for name, entry in entries.items()}
    known = next(iter(certificates.values())).recipe["answers"]
    before, status, has_said, looked_at = None, 0, False, _panel if options.panel else _clients
    with suppress(KeyboardInterrupt):
        while True:
            answers, find = looked_at(options, certificates, known)
            _check_grown(before, answers, options.answers)
            if not has_said or len(answers or ()) > len(before or ()):
                status = _say(options, None if answers is None else find())
            before, has_said = answers, True
            if status or not options.follow:
                break
            time.sleep(options.interval)
    return status


Look = tuple[Any, Callable[[], Monitoring]]
"""The answers so far, None if there are too few, and what finds out what they say."""


def _clients(options: argparse.Namespace, certificates: Mapping[str, rb.Certificate], known: Mapping[str, Any]) -> Look:
    """The answers without those that the certificates were made of, in the batches in which they came."""
    parts, path = _read(options, known), Path(options.answers)
    old = len(known.get("values", ()))
    if path.is_dir():
        parts = [each for each in parts if not old or _rows(each.to_dict()) != _rows(known)]
    batches = [len(each) for each in parts] if path.is_dir() else None
    answers: Any = None
    if parts:
        _check_repeats(parts, options)
        answers = joined(parts, repeats=options.repeats)
    has_old = answers is not None and not path.is_dir() and len(answers) >= old >= 2
    if has_old and _rows(joined(parts, stop=old).to_dict()) == _rows(known):
        answers = joined(parts, start=old, repeats=options.repeats) if len(answers) > old + 1 else None
    return answers, lambda: rb.monitor(certificates, answers, alpha=options.alpha, batches=batches)


def _panel(options: argparse.Namespace, certificates: Mapping[str, rb.Certificate], known: Mapping[str, Any]) -> Look:
    """The evaluations of a panel one after the other: from what the certificates were made of, if it is of them."""
    parts = _read(options, known)
    if not Path(options.answers).is_dir():
        raise TableError([f"--panel needs a folder with a table or a run for each evaluation, got {options.answers}"])
    members = {name for each in parts for name in each.names or ()}
    if members and members <= set(known.get("names", ())):
        first = answers_of(known)
        chosen = [place for place, name in enumerate(first.names) if name in members]
        parts = [first.of_clients(np.array(chosen)), *(each for each in parts if _rows(each.to_dict()) != _rows(known))]
    if len(parts) < 2:
        return None, lambda: monitor_panel(parts[0], parts[1:], alpha=options.alpha)
    answers = joined(parts, repeats="draws")
    return answers, lambda: monitor_panel(parts[0], parts[1:], alpha=options.alpha)


def _read(options: argparse.Namespace, known: Mapping[str, Any]) -> list[Any]:
    """The runs and tables that have two answers or more."""
    parts, path = list[Any](), Path(options.answers)
    ledgers = (each / _LEDGER if each.is_dir() else each for each in _parts(path))
    if problems := model_problems(str(each) for each in ledgers if each.is_file()):
        raise TableError(problems)
    for each in _parts(path):
        try:
            parts.append(_of_run(each) if each.is_dir() else _of_table(each, options, known))
        except TooFewError:
            continue
        except TableError as error:
            raise TableError(named(str(each), error) if path.is_dir() else list(error.problems)) from error
    return parts


def _check_repeats(parts: list[Any], options: argparse.Namespace) -> None:
    """Raise TableError, with what to ask of a panel, if a client is in several parts and repeats are no draws."""
    names = [name for each in parts for name in each.names or ()]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice and options.repeats != "draws":
        raise TableError(
            [
                f"{options.answers} must have every client once, got {first_of(twice)} again and again ({len(names)} "
                f"answers of {len(set(names))} clients): these say how they are, and little of others; say --panel to "
                "ask whether these have become worse, or --repeats draws if each was drawn anew from a fleet, and "
                "measured on new examples"
            ]
        )


def _parts(path: Path) -> list[Path]:
    """The runs and tables in a folder, in the order of their names; or the path itself."""
    if not path.is_dir() or (path / _REPORT).exists():
        return [path]
    return [each for each in sorted(path.iterdir()) if each.suffix.lower() in _TABLES or (each / _REPORT).exists()]


def _of_run(path: Path) -> Any:
    """What clients answered in a run of the App that is complete."""
    certificates = sorted((path / "certificates").glob("*.json"))
    if not certificates:
        raise TableError([f"{path} must be a run with certificates, got none; monitor its ledger"])
    answers = answers_of(rb.Certificate.load(certificates[0]).recipe["answers"])
    answers = answers.clean if isinstance(answers, rb.AdversarialAnswers) else answers
    answers.require_independent("monitoring")
    try:
        report = json.loads((path / _REPORT).read_bytes())
        if "network" not in report or not hasattr(answers, "names"):
            return answers
        said = {"names": report["network"]["client_ids"], "ask": who_is_asked(header_of(path / _LEDGER)["config"])}
        return type(answers)(**{**answers.to_dict(), **said})
    except (ValueError, TypeError, KeyError, OSError) as error:
        rule = f"{path} must be the folder of a run as it was written, got {error!r}"
        raise TableError([f"{rule}; riskband verify says what has changed"]) from error


def _of_table(path: Path, options: argparse.Namespace, known: Mapping[str, Any]) -> Any:
    scale = scale_of(known)
    if scale == CHANGE:
        raise TableError([f"{path} is of one model, and changes were certified; give the folder of runs that compare"])
    if scale is None and (problems := unsaid([str(path)], options)):
        raise TableError(problems)
    is_among_tables = is_ledger(str(path)) and Path(options.answers).is_dir()
    said = UNSAID if is_among_tables else wanted_of(options, options.num_examples or "1")
    wanted = replace(said, is_growing=True, keeps_names=True, is_score=scale is not None)
    if scale is not None:
        ends = (scale.low, scale.high)
        return read_scores(str(path), wanted, higher_is_better=scale.is_higher_better, name=scale.noun, ends=ends)
    if not is_ledger(str(path)) and wanted.binary is None:
        # What is bet on a client must not change with those after it.
        wanted = replace(wanted, binary=known.get("binary"))
    risks = read_risks(str(path), wanted)
    risks.require_independent("monitoring")
    return risks


def _rows(answers: Mapping[str, Any]) -> list[Any]:
    """What clients answered, in whatever order."""
    numbers = answers.get("values", ())
    return sorted(zip(numbers, answers.get("num_examples", numbers), strict=False))


def _columns(answers: Any, stop: int | None = None) -> dict[str, list[Any]]:
    """What each client said, of the first so many."""
    return {name: column[:stop] for name, column in answers.by_client()[0].items()}


def _check_grown(before: Any, answers: Any, path: str) -> None:
    if before is not None and (len(answers or ()) < len(before) or _columns(answers, len(before)) != _columns(before)):
        raise ValueError(
            f"{path} must only grow, and answers that were counted are no longer there, or others; was it truncated or "
            "replaced? What was seen cannot be unseen: begin again with answers that no certificate and no alarm is of"
        )


def _say(options: argparse.Namespace, found: Monitoring | None) -> int:
    """Print and write what was found; return the exit status."""
    if found is None:
        path = Path(options.answers)
        where = f" (tables and complete runs in {path}: {len(_parts(path))})" if path.is_dir() else ""
        said = f"NOTHING YET: fewer than two new clients have answered{where}"
        print(said, file=sys.stderr if options.json else options.live)
        return 0
    text = json.dumps(found.to_document(), indent=1, allow_nan=False) + "\n"
    if options.out:
        _write(options.out, text)
    if options.prometheus:
        _write_metrics(options, found)
    if options.page:
        now = datetime.now(UTC).isoformat(sep=" ", timespec="minutes")
        about = {"Certificate": options.certificate, "Answers": options.answers, "As of": now}
        refresh = None if found.exit_status else options.interval
        _write(options.page, monitor_page(found, title=Path(options.answers).stem, about=about, refresh=refresh))
    print(text if options.json else found, end="" if options.json else "\n", file=options.live, flush=True)
    return found.exit_status


def _write_metrics(options: argparse.Namespace, found: Monitoring) -> None:
    """Write what Prometheus reads through node_exporter's textfile collector."""
    check_installed("prometheus_client", extra="metrics")
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile  # an extra

    registry, about = CollectorRegistry(), "Of clients after a certificate, see docs/monitoring.md"
    numbers = {"alarm": found.exit_status > 0, "e_value": found.e_values[-1], "clients": found.answers.num_clients}
    for name, number in numbers.items():
        gauge = Gauge(f"riskband_monitor_{name}", about, ["answers"], registry=registry)
        gauge.labels(Path(options.answers).name).set(number)
    write_to_textfile(options.prometheus, registry)


def _write(path: str, text: str) -> None:
    """Write a file whole: whoever reads it meanwhile sees the old one."""
    part = Path(f"{path}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    parser.usage = "riskband monitor CERTIFICATE ANSWERS [--num-examples N|COLUMN] [options]"
    add = parser.add_argument
    made = "what `riskband certify --out` wrote, of other clients or of the first"
    add("certificate", metavar="CERTIFICATE", help=made)
    what = "a table that grows, the ledger of a run (.jsonl), or a folder of tables or of runs"
    add("answers", metavar="ANSWERS", help=f"further clients: {what}, in the order of their names")
    add("--num-examples", metavar="N|COLUMN", help="examples behind each mean, as for certify")
    add_columns(parser)
    panel = "the same clients every time, a table each: have these become worse since the certificate or the first?"
    add("--panel", action="store_true", help=panel)
    add_repeats(parser, "that answers again, or that the certificate is of")
    chance = "probability of an alarm, ever, if all is as certified (default: 0.05)"
    add("--alpha", type=float, default=0.05, help=chance)
    add("--follow", action="store_true", help="look again and again, and end with an alarm or at Ctrl-C")
    add("--interval", type=int, default=60, metavar="SECONDS", help="between two looks, also of the page (default: 60)")
    add("--page", metavar="PAGE.html", help="write a page that refreshes itself")
    add("--out", metavar="FILE.json", help="write today's certificates, and what was found")
    add("--prometheus", metavar="FILE.prom", help="write metrics for the textfile collector of Prometheus")
    add("--json", action="store_true", help="print what --out writes, and nothing else")
