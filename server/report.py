"""A run's results: report.json, one file per certificate, a figure.

The same run with the same seed gives the same bytes, apart from the section "timing" of report.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

import riskband as rb
from riskband.plots import band_figure, save_figure
from server.config import RunConfig
from server.folder import CERTIFICATE_FOLDER, FIGURE_STEM, ResultFolder
from server.truth import Check
from strategies.f_divergence import FDivergenceResult
from strategies.replies import RoundOutcome

SCHEMA = "riskband.report/1"

# Where a run writes and how long it waits does not change what it finds.
_NOT_REPORTED = ("output-dir", "node-timeout", "reply-timeout")


def write_report(
    folder: ResultFolder,
    *,
    config: RunConfig,
    result: FDivergenceResult,
    hashes: Mapping[str, str],
    unseen: np.ndarray | None,
    checks: Mapping[str, Check],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Write the certificates and the figure, then report.json as the sign that all is there.

    Parameters
    ----------
    folder : ResultFolder
        Where to.
    config : RunConfig
        The run's configuration.
    result : FDivergenceResult
        What the strategy concluded.
    hashes : mapping of str to str
        What was evaluated by what: ``"model"`` and ``"code"``.
    unseen : ndarray, shape (num_unseen,), or None
        Risks of the unseen clients, if they are known.
    checks : mapping of str to Check
        Certificates beside the unseen clients; empty if those are not known.
    seconds : mapping of str to float
        Wall-clock seconds of each part of the run.

    Returns
    -------
    dict
        The content of report.json.
    """
    for name, certificate in result.certificates.items():
        certificate.save(folder.path / CERTIFICATE_FOLDER / f"{name}.json")
    _save_figure(folder, config, result, unseen)
    report = {
        "schema": SCHEMA,
        "scenario": config.scenario,
        "seed": config.seed,
        "config": {key: value for key, value in config.to_run_config().items() if key not in _NOT_REPORTED},
        "hashes": dict(hashes),
        "network": _network(config, result.outcome),
        "certificates": {
            name: _certificate_entry(name, certificate, checks.get(name))
            for name, certificate in result.certificates.items()
        },
        "breakdowns": {name: _breakdown_entry(config, bracket) for name, bracket in result.breakdowns.items()},
        "unseen": _unseen_entry(unseen),
        "figures": [f"{FIGURE_STEM}.{suffix}" for suffix in config.figure_format],
        "timing": {"created": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": dict(seconds)},
    }
    folder.finish(report)
    return report


def _save_figure(folder: ResultFolder, config: RunConfig, result: FDivergenceResult, unseen: np.ndarray | None) -> None:
    figure = band_figure(
        result.band,
        worst_case=result.certificates.get(f"worst_case_cdf_{config.divergences[0]}"),
        unseen_risks=None if config.local == "observed" else unseen,  # the figure calls them true risks
        title=f"{config.scenario}: {config.loss} risk, delta = {config.delta:g}",
    )
    for suffix in config.figure_format:
        save_figure(figure, folder.path / f"{FIGURE_STEM}.{suffix}")


def _network(config: RunConfig, outcome: RoundOutcome) -> dict[str, Any]:
    risks = np.array([answer.risk for answer in outcome.answers])
    names = [answer.client_id for answer in outcome.answers]
    return {
        "num_clients": config.num_clients,
        "num_asked": outcome.num_asked,
        "num_answered": len(outcome.answers),
        "num_failed": len(outcome.failures),
        "failures": [
            {"client_id": failure.client_id, "reason": str(failure.reason), "detail": failure.detail}
            for failure in outcome.failures
        ],
        "mean_empirical_risk": float(risks.mean()),
        "largest_empirical_risk": float(risks.max()),
        # Flower's errors carry no name; where the names are known, so is who is missing.
        "clients_without_answer": None if config.known_clients is None else sorted(config.known_clients - set(names)),
        "client_ids": names,  # in the order of the certificates' answers
    }


def _certificate_entry(name: str, certificate: rb.Certificate, check: Check | None) -> dict[str, Any]:
    entry = certificate.to_dict()
    for key in ("recipe", "details", "schema"):  # they are in the certificate's own file
        del entry[key]
    entry["function"] = certificate.recipe["function"]
    entry["divergence"] = certificate.recipe["arguments"].get("divergence")
    entry["from_band"] = certificate.recipe["band"] is not None
    entry["file"] = f"{CERTIFICATE_FOLDER}/{name}.json"
    entry["check"] = None
    if check is not None:
        entry["check"] = {
            "holds": check.holds,
            "smallest_margin": check.smallest_margin,
            "observed": check.observed.tolist(),
        }
    return entry


def _breakdown_entry(config: RunConfig, bracket: rb.Bracket) -> dict[str, Any]:
    goal = f"at most {config.breakdown_target:g} of the clients have a risk of {config.breakdown_threshold:g} or more"
    if np.isneginf(bracket.lower):
        statement = f"not even without a shift is it certified that {goal}"
    elif np.isposinf(bracket.upper):
        statement = f"up to budget {bracket.lower:g} and possibly beyond, it is certified that {goal}"
    else:
        statement = f"up to budget {bracket.lower:.4g} it is certified that {goal}"
    ends = {"lower": bracket.lower, "upper": bracket.upper}
    return {"statement": statement, **{end: v if np.isfinite(v) else None for end, v in ends.items()}}


def _unseen_entry(unseen: np.ndarray | None) -> dict[str, Any]:
    if unseen is None:
        return {"num_clients": 0, "mean_risk": None, "risks": []}
    return {"num_clients": len(unseen), "mean_risk": float(unseen.mean()), "risks": unseen.tolist()}
