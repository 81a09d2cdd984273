"""The sections of a report about dispersion and groups, and its figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

import riskband as rb
from riskband.groups.comparisons import gap_ends
from riskband.plots.dispersion import dispersion_figure
from server.checks.unseen import Check, Unseen
from server.config import RunConfig
from strategies.dispersion import DispersionResult, MeasureBounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def dispersion_sections(
    config: RunConfig, result: DispersionResult, unseen: Unseen | None, checks: Mapping[str, Check]
) -> dict[str, Any]:
    """Return the sections "dispersion", "lorenz" and "quantiles", and with at least two groups "groups".

    Parameters
    ----------
    config : RunConfig
        The run's configuration.
    result : DispersionResult
        What the strategy concluded.
    unseen : Unseen or None
        The unseen clients, if they are known.
    checks : mapping of str to Check
        Certificates beside the unseen clients.

    Returns
    -------
    dict
        Plain data for JSON.
    """
    sections = {
        "dispersion": {
            "method": config.dispersion_method,
            "measures": [_measure_entry(each, checks) for each in result.measures],
            "unseen_stand_for": what_unseen_are(config, unseen),
        },
        "lorenz": _curve_entry(result, checks, name="lorenz", axis="share"),
        "quantiles": _curve_entry(result, checks, name="quantiles", axis="level"),
    }
    if result.group_bands is not None:
        sections["groups"] = _group_section(result, result.group_bands, unseen)
    return sections


def report_figure(config: RunConfig, result: DispersionResult, unseen: Unseen | None, *, title: str) -> Figure:
    """Return the figure of a run, with the exact risks of the unseen clients if they are known.

    Parameters
    ----------
    config, result, unseen :
        See `dispersion_sections`.
    title : str
        Above the figure.
    """
    return dispersion_figure(
        result.band,
        measures=[result.certificates[each.certificate] for each in result.measures if each.certificate is not None],
        lorenz=result.certificates["lorenz"],
        # The figure calls them true risks.
        unseen_risks=unseen.risks if unseen is not None and config.local != "observed" else None,
        title=title,
    )


def _measure_entry(bounds: MeasureBounds, checks: Mapping[str, Check]) -> dict[str, Any]:
    check = None if bounds.certificate is None else checks.get(bounds.certificate)
    return {
        "measure": bounds.measure.name,
        "quantity": bounds.measure.quantity,
        "method": bounds.method,
        **_ends(bounds.interval),
        "plugin": _ends(bounds.published),
        "measured": _number(bounds.measured),
        "unseen": None if check is None else _number(check.observed),
        "holds": None if check is None else check.holds,
        "certificate": bounds.certificate,  # None: nothing bounds the measure from above
    }


def _curve_entry(result: DispersionResult, checks: Mapping[str, Check], *, name: str, axis: str) -> dict[str, Any]:
    certificate, check = result.certificates[name], checks.get(name)
    return {
        f"{axis}s": certificate.axes[axis].tolist(),
        "lower": np.asarray(certificate.lower).tolist(),
        "upper": np.asarray(certificate.value).tolist(),
        "measured": certificate.details["measured"].tolist(),
        "unseen": None if check is None else check.observed.tolist(),
        "holds": None if check is None else check.holds,
    }


def _group_section(result: DispersionResult, bands: rb.GroupBands, unseen: Unseen | None) -> dict[str, Any]:
    intervals = rb.group_intervals(bands, "mean")
    ends = {name: np.array(intervals[name]) for name in bands.names}
    entries = {}
    for name, members in bands.members.items():
        risks = np.empty(0) if unseen is None else unseen.group_risks(name)
        entries[name] = {
            "num_clients": bands.num_clients[name],
            "delta": bands.deltas[name],
            "mean": _ends(intervals[name]),
            "measured_mean": float(result.risks.values[members].mean()),
            "num_unseen": len(risks),
            "unseen_mean": float(risks.mean()) if len(risks) else None,
        }
    counts = Counter(answer.group is None for answer in result.outcome.answers)
    return {
        "delta": bands.delta,
        "groups": entries,
        "mean_gaps": [
            {"groups": [first, second], **_ends(rb.Interval(*gap_ends(*np.stack([ends[first], ends[second]], axis=1))))}
            for first, second in combinations(bands.names, 2)
        ],
        "largest_mean_gap": _certified(result.certificates["group_largest_gap"]),
        "worst_mean": _certified(result.certificates["group_worst"]),
        "num_in_no_group": counts[True],
        "too_small": dict(result.small_groups),
        "assumptions": list(bands.assumptions),
    }


def _certified(certificate: rb.Certificate) -> dict[str, Any]:
    return {"lower": certificate.lower, "upper": certificate.value, "validity": certificate.validity}


def what_unseen_are(config: RunConfig, unseen: Unseen | None) -> str | None:
    """Say what a number of the unseen clients' risks stands for; None if they are not known."""
    if unseen is None:
        return None
    kind = "measured" if config.local == "observed" else "exact"
    return (
        f"those of the {kind} risks of {len(unseen.risks)} clients: an approximation of what is bounded, which is the "
        "same of the meta-distribution that they were drawn from"
    )


def _ends(interval: rb.Interval) -> dict[str, float | None]:
    return {"lower": _number(interval.lower), "upper": _number(interval.upper)}


def _number(value: Any) -> float | None:
    """A number for JSON, which has no infinity."""
    return float(value) if np.isfinite(value) else None
