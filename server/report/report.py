"""A run's results: report.json, one file per certificate, a figure if wanted, and report.html for the person who signs.

The same run with the same seed gives the same bytes, apart from the section "timing" of report.json and, on the page,
when the configuration was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

import riskband as rb
from client.privacy import epsilon_at
from protocol.mechanisms import GAUSSIAN, mechanism_of
from riskband.answers.responses import FIXED_NUMBER, UNTIL_DECIDED
from riskband.answers.risks import EQUAL_BY_DESIGN
from riskband.plots.bands import save_figure
from riskband.report.findings import findings
from riskband.report.view import RunFacts
from riskband.report.words import about
from riskband.selection import CANDIDATES_FIXED
from riskband.wording import CHOSEN_BEFORE
from riskband.worst_cases.always_valid import ORDERS
from server.report.cells import check_lines, loss_in_words, reasons, stopped
from server.run.folder import CERTIFICATE_FOLDER, PAGE_FILE, ResultFolder, failure_fields
from server.run.ledger import part_of_a_run
from server.settings import brings_own_data
from strategies.asking.failures import Failure
from strategies.certifying import by_file

if TYPE_CHECKING:
    from server.checks.unseen import Check, Unseen
    from server.studies.study import Evaluation

SCHEMA = "riskband.report/1"

_NOISE_DELTA = 1e-6  # at which a rho is also said as an epsilon


def write_report(
    folder: ResultFolder,
    evaluation: Evaluation,
    *,
    hashes: Mapping[str, str],
    metrics: Mapping[str, Any],
    recorded: str | None,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Write the certificates, the figure and the page, then report.json as the sign that all is there; return that.

    Parameters
    ----------
    folder, evaluation
        Where to, and what was found.
    hashes
        What was evaluated by what: ``"model"`` and ``"code"``.
    metrics
        What was sent and received: `server.run.traffic.MeteredGrid.metrics`, and how many answers came from the ledger.
    recorded
        When the configuration was written to the ledger, before any client was asked; None if that is not known.
    seconds
        Wall-clock seconds of each part of the run.
    """
    config, result, study = evaluation.config, evaluation.conclusion, evaluation.study
    names = result.client_ids
    found = None  # a sequence of tests may certify no candidate
    if all_found := study.certificates(evaluation):
        given: dict[str, Any] = {"gate": evaluation.gate, "limits": study.limits(config)}
        found = findings(all_found, **given, names=names, band=result.band)
    certificates = {} if found is None else found.certificates
    required = by_file(result.required)
    for name, certificate in certificates.items():
        with folder.writing(f"{CERTIFICATE_FOLDER}/{name}.json") as path:
            certificate.save(path)
        folder.log_event("certificate_written", name=name)
    if figures := study.figure_names(config):
        figure = study.figure(evaluation)
        for name in figures:
            with folder.writing(name) as path:
                save_figure(figure, path)
    report = {
        "schema": SCHEMA,
        "scenario": config.run.scenario,
        "seed": config.run.seed,
        "config": part_of_a_run(config.to_run_config()),
        "hashes": dict(hashes),
        "network": _network(evaluation, names),
        "secure_aggregation": None,
        "privacy": _privacy(result.risks.noise),
        "certificates": {
            name: _certificate_entry(name, certificate, evaluation.checks.get(name))
            for name, certificate in certificates.items()
        },
        "findings": None if found is None else found.to_dict(),
        "gate": None if evaluation.gate is None else evaluation.gate.to_dict(),
        **study.sections(evaluation),
        "unseen": _unseen_entry(evaluation.unseen),
        "figures": figures,
        "metrics": dict(metrics),
        "timing": {
            "configuration_recorded": recorded,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "run_id": folder.run_id,
            "seconds": dict(seconds),
            "nodes_of_failures": [each.node for each in result.outcome.failures],
        },
    }
    if found is not None:
        facts = _facts(evaluation, report)
        shown = {name: each for name, each in certificates.items() if name not in required} or certificates
        page = rb.report_page(shown, require=evaluation.gate or (), title=config.run.scenario, facts=facts)
        with folder.writing(PAGE_FILE) as path:
            path.write_text(page, encoding="utf-8")
    folder.finish(report)
    return report


def _network(evaluation: Evaluation, names: Sequence[str]) -> dict[str, Any]:
    config, outcome = evaluation.config, evaluation.conclusion.outcome
    risks = evaluation.conclusion.risks.values
    return {
        "num_clients": config.network.num_clients,
        "num_asked": outcome.num_asked,
        "num_answered": len(outcome.answers),
        "num_failed": len(outcome.failures),
        "num_unasked": len(outcome.unasked),  # since it was decided
        "answered_by": config.asking.answered_by,
        "failures": failure_entries(outcome.failures),
        "mean_empirical_risk": float(risks.mean()),
        "largest_empirical_risk": float(risks.max()),
        # Flower's errors carry no name; where the names are known, so is who is missing.
        "clients_without_answer": None
        if config.known_clients is None
        else sorted(config.known_clients.difference(names, outcome.unasked)),
        "client_ids": list(names),  # in the order of the certificates' answers
    }


def _privacy(noise: rb.AnswerNoise | None) -> dict[str, Any] | None:
    """What is said of the noise on the answers; "epsilon" and "delta" mean approximate differential privacy."""
    if noise is None:
        return None
    mechanism = mechanism_of(noise.mechanism)
    return {
        "mechanism": noise.mechanism,
        "num_values": noise.num_values,
        "epsilon": epsilon_at(mechanism, delta=_NOISE_DELTA),
        "delta": _NOISE_DELTA if mechanism.name == GAUSSIAN else 0.0,
    }


def failure_entries(failures: Iterable[Failure]) -> list[dict[str, str | None]]:
    """Return what a report says of failures, as plain data."""
    entries = [failure_fields(each) | {"detail": each.detail} for each in failures]
    return [{key: value for key, value in entry.items() if key != "node"} for entry in entries]  # that is random


def _certificate_entry(name: str, certificate: rb.Certificate, check: Check | None) -> dict[str, Any]:
    entry = certificate.to_dict()
    for key in ("recipe", "details", "schema"):  # they are in the certificate's own file
        del entry[key]
    entry["divergence"] = None if certificate.shift is None else certificate.shift[0]
    entry["event"] = certificate.event
    entry["file"] = f"{CERTIFICATE_FOLDER}/{name}.json"
    entry["check"] = None if check is None else check_entry(check)
    return entry


def check_entry(check: Check) -> dict[str, Any]:
    """Return what a report says of a check, as plain data."""
    return {
        "holds": check.holds,
        "smallest_margin": check.smallest_margin if np.isfinite(check.smallest_margin) else None,
        "observed": check.observed.tolist() if np.all(np.isfinite(check.observed)) else None,
    }


def _unseen_entry(unseen: Unseen | None) -> dict[str, Any]:
    if unseen is None:
        return {"num_clients": 0, "mean_risk": None, "risks": []}
    risks = unseen.risks
    entry = {"num_clients": len(risks), "mean_risk": float(risks.mean()), "risks": risks.tolist()}
    if unseen.by_candidate:
        entry["risks_by_candidate"] = {name: each.tolist() for name, each in unseen.by_candidate.items()}
    return entry


def _facts(evaluation: Evaluation, report: Mapping[str, Any]) -> RunFacts:
    study, limits = evaluation.study, evaluation.study.limits(evaluation.config)
    recorded = report["timing"]["configuration_recorded"]
    fixed = f"It is fixed in the run's configuration, recorded at {recorded}, before any client was asked."
    chosen = (CHOSEN_BEFORE, FIXED_NUMBER, CANDIDATES_FIXED, ORDERS["committed"]) if recorded else ()
    planned = (EQUAL_BY_DESIGN,) if chosen and not brings_own_data(report["config"]["dataset"]) else ()
    checked = check_lines(report["certificates"], worst_network=study.worst_network(report))
    return RunFacts(
        who=dict(_who_answered(report)),
        about=dict(_about(report)) | about(evaluation.config.run.about),
        answered=dict.fromkeys(chosen + planned, fixed),
        hashes={"Hash of the code": report["hashes"]["code"]},
        notes=(*study.lines(report), *study.privacy_lines(report), *checked),
        limits=tuple(limits),
        names=tuple(report["network"]["client_ids"]),
        threshold=next((at for _, at in limits), None),
    )


def _who_answered(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    network, config = report["network"], report["config"]
    yield "Clients that answered", f"{network['num_answered']} of {network['num_asked']} that were asked"
    if config["ask"] == UNTIL_DECIDED:
        yield "Asked", stopped(report)
    if network["failures"]:
        yield "Failures", reasons(network["failures"])
    if config["design"]:
        yield "How clients were drawn", config["design"]
    if network["num_failed"] and config["missing"] != "ignore":
        yield "Clients without an answer", f"counted as {config['missing']}"
    yield "Loss", loss_in_words(config["loss"])


def _about(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    config, recorded = report["config"], report["timing"]["configuration_recorded"]
    if config["evaluator"]:  # whose model the server never saw
        yield "model", f"each client's own function ({config['evaluator']}); nothing ties the answers to one model"
    else:
        yield "model", f"{config['model']}, training: {config['training']}"
        yield "hash of the model", report["hashes"]["model"]
    yield "data", config["dataset"] if config["dataset"] != "none" else "each client's own"
    if recorded:
        yield "date", recorded
