"""A run's results: report.json, one file per certificate, a figure.

The same run with the same seed gives the same bytes, apart from the section "timing" of report.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

import riskband as rb
from riskband.certificate import CERTIFICATE
from riskband.plots.bands import band_figure, save_figure, transport_figure
from riskband.verification import why_it_says_nothing
from server.checks.targets import TargetNetwork, check_target
from server.checks.unseen import Check, Unseen
from server.config import RunConfig
from server.privacy import privacy_section
from server.report.dispersion_report import dispersion_sections, report_figure
from server.report.sandwich import attack_note, attacks_section, reached_values, sandwich_section, unit_words
from server.report.selection_report import report_figure as selection_report_figure
from server.report.selection_report import selection_section
from server.run.folder import CERTIFICATE_FOLDER, FIGURE_STEMS, ResultFolder
from server.run.ledger import part_of_a_run
from server.secure import secure_section
from strategies.asking.failures import Failure
from strategies.asking.replies import RoundOutcome
from strategies.dispersion import DispersionResult
from strategies.f_divergence import FDivergenceResult
from strategies.selection import SelectionResult
from strategies.wasserstein import WassersteinResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "riskband.report/1"

Conclusion = FDivergenceResult | WassersteinResult | DispersionResult | SelectionResult


def write_report(
    folder: ResultFolder,
    *,
    config: RunConfig,
    result: Conclusion,
    hashes: Mapping[str, str],
    unseen: Unseen | None,
    checks: Mapping[str, Check],
    targets: Sequence[TargetNetwork] = (),
    metrics: Mapping[str, Any],
    recorded: str | None,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Write the certificates and the figure, then report.json as the sign that all is there.

    Parameters
    ----------
    folder : ResultFolder
        Where to.
    config : RunConfig
        The run's configuration.
    result : FDivergenceResult, WassersteinResult, DispersionResult or SelectionResult
        What the strategy concluded.
    hashes : mapping of str to str
        What was evaluated by what: ``"model"`` and ``"code"``.
    unseen : Unseen or None
        The unseen clients, if they are known.
    checks : mapping of str to Check
        Certificates beside the unseen clients; empty if those are not known.
    targets : sequence of TargetNetwork
        Networks at a known distance, for the strategy "wasserstein".
    metrics : mapping
        What was sent and received: `server.run.traffic.MeteredGrid.metrics`, and how many answers came from the ledger.
    recorded : str or None
        When the configuration was written to the ledger, before any client was asked; None if that is not known.
    seconds : mapping of str to float
        Wall-clock seconds of each part of the run.

    Returns
    -------
    dict
        The content of report.json.
    """
    for name, certificate in result.certificates.items():
        certificate.save(folder.path / CERTIFICATE_FOLDER / f"{name}.json")
        folder.log_event("certificate_written", name=name)
    stem = FIGURE_STEMS[config.strategy]
    figure = _figure(config, result, unseen, checks, targets)
    for suffix in config.figure_format:
        save_figure(figure, folder.path / f"{stem}.{suffix}")
    report = {
        "schema": SCHEMA,
        "scenario": config.scenario,
        "seed": config.seed,
        "config": part_of_a_run(config.to_run_config()),
        "hashes": dict(hashes),
        "network": _network(config, result),
        "secure_aggregation": secure_section(result.outcome, num_neighbours=config.secure_neighbours),
        "privacy": privacy_section(_answered_risks(result).noise),
        "certificates": {
            name: _certificate_entry(name, certificate, checks.get(name))
            for name, certificate in result.certificates.items()
        },
        "breakdowns": _breakdowns(config, result),
        **(_transport_sections(result, unseen, targets) if isinstance(result, WassersteinResult) else {}),
        **(dispersion_sections(config, result, unseen, checks) if isinstance(result, DispersionResult) else {}),
        **({"selection": selection_section(config, result, unseen)} if isinstance(result, SelectionResult) else {}),
        "unseen": _unseen_entry(unseen),
        "figures": [f"{stem}.{suffix}" for suffix in config.figure_format],
        "metrics": dict(metrics),
        "timing": {
            "configuration_recorded": recorded,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "run_id": folder.run_id,
            "seconds": dict(seconds),
            "node_ids_of_failures": _node_ids(result.outcome.failures),
        },
    }
    folder.finish(report)
    return report


def _figure(
    config: RunConfig,
    result: Conclusion,
    unseen: Unseen | None,
    checks: Mapping[str, Check],
    targets: Sequence[TargetNetwork],
) -> Figure:
    if isinstance(result, SelectionResult):
        return selection_report_figure(config, result, unseen)
    title = f"{config.scenario}: {config.loss} risk, delta = {config.delta:g}"
    if isinstance(result, DispersionResult):
        return report_figure(config, result, unseen, title=title)
    if isinstance(result, WassersteinResult):
        worst = {name: check.observed for name, check in checks.items()} if unseen and unseen.curves else {}
        reached = reached_values(result)
        return transport_figure(
            result.certificates["wasserstein_mean"],
            cdf=result.certificates.get("wasserstein_cdf"),
            networks=[target.point for target in targets],
            worst_mean=worst.get("wasserstein_mean"),
            worst_shares=worst.get("wasserstein_cdf"),
            reached_mean=reached.get("wasserstein_mean"),
            reached_shares=reached.get("wasserstein_cdf"),
            unit=result.answers.unit,
            unit_words=unit_words(config.space),
            attack_note=attack_note(attacks_section(result.outcome.answers)),
            title=title,
        )
    return band_figure(
        result.band,
        worst_case=result.certificates.get(f"worst_case_cdf_{config.divergences[0]}"),
        # The figure calls them true risks.
        unseen_risks=unseen.risks if unseen is not None and config.local != "observed" else None,
        title=title,
    )


def _network(config: RunConfig, result: Conclusion) -> dict[str, Any]:
    outcome: RoundOutcome[Any] = result.outcome
    risks = _answered_risks(result).values
    names = [answer.client_id for answer in outcome.answers]
    return {
        "num_clients": config.num_clients,
        "num_asked": outcome.num_asked,
        "num_answered": len(outcome.answers),
        "num_failed": len(outcome.failures),
        "answered_by": config.answered_by,
        "failures": _failures(outcome.failures),
        "mean_empirical_risk": float(risks.mean()),
        "largest_empirical_risk": float(risks.max()),
        # Flower's errors carry no name; where the names are known, so is who is missing.
        "clients_without_answer": None if config.known_clients is None else sorted(config.known_clients - set(names)),
        "client_ids": names,  # in the order of the certificates' answers
    }


def _answered_risks(result: Conclusion) -> rb.ClientRisks:
    if isinstance(result, SelectionResult):
        return result.risks[result.shown]
    return result.answers.clean if isinstance(result, WassersteinResult) else result.risks


def _failures(failures: Iterable[Failure]) -> list[dict[str, str | None]]:
    return [
        {
            "client_id": each.client_id,
            "claimed_name": each.claimed_name,
            "node_name": each.node_name,
            "reason": str(each.reason),
            "detail": each.detail,
        }
        for each in failures
    ]


def _node_ids(failures: Iterable[Failure]) -> list[str | None]:
    """Flower's ids: random, so they stand apart from the failures."""
    return [None if each.node_id is None else str(each.node_id) for each in failures]


def _event(recipe: Mapping[str, Any]) -> str:
    """What a certificate shares its delta with: those of one event hold together."""
    if "groups" in recipe:
        return "groups"
    return "own" if recipe["band"] is None else "band"


def _certificate_entry(name: str, certificate: rb.Certificate, check: Check | None) -> dict[str, Any]:
    entry = certificate.to_dict()
    for key in ("recipe", "details", "schema"):  # they are in the certificate's own file
        del entry[key]
    entry["function"] = certificate.recipe["function"]
    entry["divergence"] = certificate.recipe["arguments"].get("divergence")
    entry["event"] = _event(certificate.recipe)
    entry["file"] = f"{CERTIFICATE_FOLDER}/{name}.json"
    entry["says_nothing"] = why_it_says_nothing(certificate)
    entry["check"] = None if check is None else _check_entry(check)
    return entry


def _check_entry(check: Check) -> dict[str, Any]:
    return {
        "holds": check.holds,
        "smallest_margin": check.smallest_margin if np.isfinite(check.smallest_margin) else None,
        "observed": check.observed.tolist() if np.all(np.isfinite(check.observed)) else None,
    }


def _breakdowns(config: RunConfig, result: Conclusion) -> dict[str, dict[str, Any]]:
    if isinstance(result, DispersionResult | SelectionResult):
        return {}  # nothing shifts there
    return {name: _breakdown_entry(config, result, name) for name in result.breakdowns}


def _breakdown_entry(config: RunConfig, result: FDivergenceResult | WassersteinResult, name: str) -> dict[str, Any]:
    bracket = result.breakdowns[name]
    goal = f"at most {config.breakdown_target:g} of the clients have a risk of {config.breakdown_threshold:g} or more"
    budget, source = "budget", f"worst_case_cdf_{name}"
    if isinstance(result, WassersteinResult):
        budget, source, goal = "cost budget", name, f"the mean risk is at most {config.breakdown_target:g}"
    is_certified = result.certificates[source].validity == CERTIFICATE
    found = f"it is {'certified' if is_certified else 'estimated'} that {goal}"
    if np.isneginf(bracket.lower):
        statement = f"not even without a shift {found.replace('it is', 'is it', 1)}"
    elif np.isposinf(bracket.upper):
        statement = f"up to {budget} {bracket.lower:g} and possibly beyond, {found}"
    else:
        statement = f"up to {budget} {bracket.lower:.4g} {found}"
    ends = {"lower": bracket.lower, "upper": bracket.upper}
    return {"statement": statement, **{end: v if np.isfinite(v) else None for end, v in ends.items()}}


def _transport_sections(
    result: WassersteinResult, unseen: Unseen | None, targets: Sequence[TargetNetwork]
) -> dict[str, Any]:
    answers, empirical = result.answers, result.empirical
    unit = answers.unit
    return {
        "transport": {
            "cost": answers.cost,
            "guarantee": answers.guarantee,
            "mean_cost_that_makes_an_example_wrong": unit,
            "cost_budgets": empirical.cost_budgets.tolist(),
            "cost_budgets_in_that_unit": None if unit is None else (empirical.cost_budgets / unit).tolist(),
            "empirical_worst_mean": {
                "about": empirical.about,
                "lower": empirical.lower.tolist(),
                "upper": empirical.upper.tolist(),
            },
            "attacks": attacks_section(result.outcome.answers),
            "num_rounds": empirical.num_rounds,
            "num_messages": empirical.num_messages,
            "later_failures": _failures(empirical.later_failures),
            "query_budget": {
                "num_radii": result.query_budget.num_radii,
                "num_multipliers": result.query_budget.num_multipliers,
                "clients_left_out": list(result.query_budget.clients_left_out),
                "smallest_left": result.query_budget.smallest_left,
            },
            # Whether the checks are against the worst network that the unseen clients can be made into, or as they are.
            "unseen_are_moved": unseen is not None and bool(unseen.curves),
        },
        "sandwich": sandwich_section(result),
        "targets": [_target_entry(result, target) for target in targets],
    }


def _target_entry(result: WassersteinResult, target: TargetNetwork) -> dict[str, Any]:
    cost, unit = target.point.cost, result.answers.unit
    return {
        "sigma": target.sigma,
        "num_clients": len(target.risks),
        "mean_cost": cost,
        "mean_cost_in_unit": None if unit is None else cost / unit,
        "mean_risk": target.point.mean_risk,
        "checks": {
            name: {"bound": bound.tolist(), **_check_entry(check)}
            for name, (bound, check) in check_target(result, target).items()
        },
        "costs": target.costs.tolist(),
        "risks": target.risks.tolist(),
    }


def _unseen_entry(unseen: Unseen | None) -> dict[str, Any]:
    if unseen is None:
        return {"num_clients": 0, "mean_risk": None, "risks": []}
    risks = unseen.risks
    entry = {"num_clients": len(risks), "mean_risk": float(risks.mean()), "risks": risks.tolist()}
    if unseen.by_candidate:
        entry["risks_by_candidate"] = {name: each.tolist() for name, each in unseen.by_candidate.items()}
    return entry
