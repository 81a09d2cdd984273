"""The report page of a run: its certificates, and what the server knows beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import riskband as rb
from riskband.report.view import RunFacts
from server.report.cells import check_lines, reasons

if TYPE_CHECKING:
    from server.studies.study import Evaluation, Study


def run_page(evaluation: Evaluation, report: Mapping[str, Any]) -> str:
    """Return the page of a run.

    It holds no time, so that the same run gives the same page; report.json has them.

    Parameters
    ----------
    evaluation : Evaluation
        With at least one certificate, and the verdicts if any were required.
    report : mapping
        The content of report.json.
    """
    return rb.report_page(
        evaluation.conclusion.certificates,
        require=evaluation.gate or (),
        title=report["scenario"],
        facts=_facts(evaluation.config.study, report),
    )


def _facts(study: Study, report: Mapping[str, Any]) -> RunFacts:
    breakdowns = report["breakdowns"]
    checked = check_lines(report["certificates"], worst_network=study.worst_network(report))
    return RunFacts(
        who=dict(_who(report)),
        hashes=_hashes(report),
        notes=(*study.lines(report), *study.privacy_lines(report), *checked),
        breaks=tuple(f"For {name}, {entry['statement']}." for name, entry in breakdowns.items()),
        names=tuple(report["network"]["client_ids"]),
        threshold=report["config"]["breakdown-threshold"] if breakdowns else None,
    )


def _hashes(report: Mapping[str, Any]) -> dict[str, str]:
    """What was evaluated by what; an evaluator's model has no hash, since the server never saw it."""
    of_model = {} if report["config"]["evaluator"] else {"Hash of the model": report["hashes"]["model"]}
    return {**of_model, "Hash of the code": report["hashes"]["code"]}


def _who(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    network, config = report["network"], report["config"]
    yield "Clients that answered", f"{network['num_answered']} of {network['num_asked']} that were asked"
    if network["failures"]:
        yield "Failures", reasons(network["failures"])
    yield "Loss", config["loss"].replace("_", " ")
    if config["evaluator"]:
        yield "Model", f"each client's own function ({config['evaluator']}); nothing ties the answers to one model"
    else:
        yield "Model", f"{config['model']}, training: {config['training']}"
    yield "Data", config["dataset"] if config["dataset"] != "none" else "each client's own"
