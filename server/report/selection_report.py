"""The section of a report about a choice among candidates, and its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import riskband as rb
from riskband.functionals.laws import RiskLaw
from riskband.plots.selection import selection_figure
from server.checks.unseen import Unseen, compare
from server.config import RunConfig
from server.report.dispersion_report import what_unseen_are
from strategies.selection import SelectionResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def selection_section(config: RunConfig, result: SelectionResult, unseen: Unseen | None) -> dict[str, Any]:
    """Return the section "selection": the table of all candidates, which was chosen, and how delta was spent.

    Parameters
    ----------
    config : RunConfig
        The run's configuration.
    result : SelectionResult
        What the strategy concluded.
    unseen : Unseen or None
        The unseen clients under every candidate, if they are known.

    Returns
    -------
    dict
        Plain data for JSON.
    """
    selection = result.selection
    return {
        "objective": str(selection.objective),
        "method": selection.method,
        "target": selection.target,
        "best": selection.best,
        "certificate": next(iter(result.certificates), None),  # None: a sequence that certifies no candidate
        "shown": result.shown,  # "network" and "unseen" are about this candidate
        "delta": selection.delta,
        "candidate_delta": selection.candidate_delta,
        "spending": selection.spending,
        "candidates": [_candidate_entry(selection, each, unseen) for each in selection.candidates],
        "unseen_stand_for": what_unseen_are(config, unseen),
    }


def report_figure(config: RunConfig, result: SelectionResult, unseen: Unseen | None) -> Figure:
    """Return the figure of a run, with the objectives of the unseen clients if they are known.

    Parameters
    ----------
    config, result, unseen :
        See `selection_section`.
    """
    return selection_figure(
        result.selection,
        # The figure calls them true risks.
        unseen_risks=unseen.by_candidate if unseen is not None and config.local != "observed" else None,
        title=f"{config.scenario}: which candidate has the smallest {result.selection.objective}?",
    )


def _candidate_entry(selection: rb.Selection, candidate: rb.CandidateBound, unseen: Unseen | None) -> dict[str, Any]:
    certified: float | None = candidate.bound
    if selection.method == "fixed_sequence":  # its own bounds do not hold together: only the target is certified
        certified = selection.target if candidate.is_certified else None
    value = holds = None
    if unseen is not None:
        value = selection.objective.of_law(RiskLaw.of_values(unseen.by_candidate[candidate.name]))
        holds = None if certified is None else compare(certified, np.asarray(value)).holds
    return {
        "candidate": candidate.name,
        "bound": candidate.bound,
        "certified_at_most": certified,
        "meets_target": None if selection.target is None else candidate.is_certified,
        "measured": candidate.measured,
        "unseen": value,
        "holds": holds,
        "terms": dict(candidate.terms),
    }
