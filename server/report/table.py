"""A report as a table: in plain words what is certified, how sure that is, and who answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from protocol.mechanisms import mechanism_of
from riskband.answers.responses import UNTIL_DECIDED, who_made_the_model
from riskband.report.words import capital
from riskband.wording import TRAINERS_ANSWERED, rounded_up
from server.report.cells import check_lines, num_rounds, reasons, stopped
from server.studies import STUDIES
from strategies.asking.failures import alike

_NUM_FAILURES = 10  # the table shows so many
_DISTRIBUTIONS = {"laplace": "discrete Laplace", "gaussian": "discrete Gaussian"}


def report_table(report: Mapping[str, Any]) -> RenderableType:
    """Return the content of report.json as a table for people, ready for rich to print."""
    certificates, found = report["certificates"], report["findings"]
    study, time = STUDIES[report["config"]["strategy"]], report["timing"]["configuration_recorded"]
    lines = [
        _who(report["network"]),
        *_failed(report),
        f"The configuration was recorded{'' if time is None else f' at {time}'}, before any client was asked.",
        _traffic(report),
        *([f"{capital(stopped(report))}."] if report["config"]["ask"] == UNTIL_DECIDED else []),
        *study.answer_lines(report),
        *([f"{capital(found['statement'])}."] if found else []),
        *_privacy(report.get("privacy")),
        *study.privacy_lines(report),
    ]
    if found:
        lines += [f"{capital(found['more_clients'])}."] if found["more_clients"] else []
        lines += dict.fromkeys(each["statement"] for each in found["breakdowns"])
        lines += [f"Where {name} is 1 it says nothing: {why}." for name, why in found["says_nothing"].items()]
    lines += check_lines(certificates, worst_network=study.worst_network(report))
    lines += study.lines(report)
    lines += ["Assumed:", *(f"  - {text}" for text in found["assumptions"])] if found else []
    text = Text("\n".join([*lines, *_required(report.get("gate"))]))
    text.highlight_words([TRAINERS_ANSWERED], style="bold red")
    text.highlight_regex(r"(?m)^ *FAIL\b", style="bold red")
    return Group(_who_made_the_model(report), *study.tables(report), text)


def print_report(report: Mapping[str, Any]) -> None:
    """Print `report_table` to standard output."""
    Console(width=110).print(report_table(report))


def show_outcome(report: Mapping[str, Any], *, closing: str, as_json: bool = False) -> int:
    """Print the report of a run that has ended, with a last line for people; return the exit status of the command.

    That is 0, or what the verdict on the requirements asks for. With `as_json` standard output is the report alone.
    """
    if as_json:
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        Console().print(report_table(report))
    Console(stderr=as_json).print(closing, soft_wrap=True, highlight=False)
    return int(report["gate"]["exit_status"]) if report.get("gate") else 0


def _who(network: Mapping[str, Any]) -> str:
    asked, expected, answered = (network[key] for key in ("num_asked", "num_clients", "num_answered"))
    failed = reasons(network["failures"])
    return f"Clients: {expected} expected, {asked} asked, {answered} answered validly; failures: {failed}."


def _failed(report: Mapping[str, Any]) -> Iterator[str]:
    """One line for each of the first kinds of failures of clients that were there."""
    failures = report["network"]["failures"]
    nodes = report["timing"].get("nodes_of_failures", [None] * len(failures))
    shown = [(each, node) for each, node in zip(failures, nodes, strict=True) if each["client_id"] or node]
    failed = []
    for each, node in shown:
        name = each.get("node_name")
        registered = "" if name in (None, each["client_id"]) else f", registered as {name!r}"
        failed.append((f"{each['client_id'] or f'node {node}'}{registered}", f"{each['reason']}: {each['detail']}"))
    lines = alike(failed)
    yield from (f"  - {line}" for line in lines[:_NUM_FAILURES])
    if len(lines) > _NUM_FAILURES:
        yield f"  - and {len(lines) - _NUM_FAILURES} more, in report.json."


def _traffic(report: Mapping[str, Any]) -> str:
    metrics, seconds = report["metrics"], report["timing"]["seconds"]["answers"]
    sent, received = decimal(metrics["bytes_sent"]), decimal(metrics["bytes_received"])
    held = metrics["num_answers_in_ledger"]
    return (
        f"Traffic: {num_rounds(metrics['num_rounds'])}, {metrics['num_messages']} messages ({sent}), "
        f"{metrics['num_replies']} replies ({received}); the answers took {seconds:.1f} s"
        f"{f', and {held} were in the ledger' if held else ''}."
    )


def _privacy(section: Mapping[str, Any] | None) -> Iterator[str]:
    """The line about the noise, if there is any."""
    if section is None:
        return
    mechanism = mechanism_of(section["mechanism"])
    numbers = "one number" if section["num_values"] == 1 else f"{section['num_values']} numbers"
    epsilon, delta = rounded_up(section["epsilon"], 2), section["delta"]
    meaning = f", so epsilon = {epsilon} at delta = {delta:g}" if delta else ""
    yield (
        f"Privacy: every answer of {numbers} has {_DISTRIBUTIONS[mechanism.name]} noise, {mechanism.unit} = "
        f"{float(mechanism.budget):g} for each example of a client{meaning}; the bounds allow for the noise."
    )


def _who_made_the_model(report: Mapping[str, Any]) -> Text:
    """Return the first line, above all numbers: in red, if it makes an estimate of everything."""
    answered_by = report["network"]["answered_by"]
    line = who_made_the_model(answered_by, option='answered-by="{}"')
    return Text(f"{line}.", style="bold red" if answered_by == "trainers" else "")


def _required(gate: Mapping[str, Any] | None) -> list[str]:
    """One line for each verdict, and what a command says by its exit status."""
    if gate is None:
        return []
    title = "Required, if what is assumed is true:"
    verdicts = [f"  {each['statement']}" for each in gate["requirements"]]
    return [title, *verdicts, f"{gate['verdict']} (exit status {gate['exit_status']})"]
