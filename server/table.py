"""A report as a table: in plain words what is certified, how sure that is, and who answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

_MEAN, _SHARE = "mean risk", "P(risk ≥ {threshold:g})"
_QUANTITIES = {"mean_bound": _MEAN, "worst_case_mean": _MEAN, "survival": _SHARE, "worst_case_cdf": _SHARE}


def report_table(report: Mapping[str, Any]) -> RenderableType:
    """Return a report as a table for people, ready for rich to print.

    Curves over the risk are shown at one point, the run's ``breakdown-threshold``.

    Parameters
    ----------
    report : mapping
        The content of report.json.
    """
    config, certificates, unseen = report["config"], report["certificates"], report["unseen"]
    has_checks = unseen["num_clients"] > 0
    table = Table(title=f"{report['scenario']}: certified for clients and networks that nobody has measured")
    table.add_column("of the clients")
    table.add_column("on any network")
    table.add_column("is at most", justify="right")
    if has_checks:
        table.add_column(f"on {unseen['num_clients']} unseen", justify="right")
        table.add_column("holds")
    for entry in certificates.values():
        for quantity, networks, bound, observed in _rows(entry, threshold=config["breakdown-threshold"]):
            checked = [f"{observed:.3f}", "yes" if observed <= bound + 1e-12 else "[bold red]NO[/]"]
            table.add_row(quantity, networks, f"{bound:.3f}", *(checked if has_checks else []))
    lines = [_who(report["network"]), *_guarantees(certificates)]
    lines += [f"Breakdown, {name}: {entry['statement']}." for name, entry in report["breakdowns"].items()]
    if has_checks:
        lines.append(_verdict(certificates))
    return Group(table, Text("\n".join([*lines, *_assumptions(certificates)])))


def print_report(report: Mapping[str, Any]) -> None:
    """Print `report_table` to standard output."""
    Console(width=110).print(report_table(report))


def _rows(entry: Mapping[str, Any], *, threshold: float) -> Iterator[tuple[str, str, float, float]]:
    """The numbers of a certificate to show: (quantity, networks, bound, observed)."""
    axes = {name: np.asarray(points) for name, points in entry["axes"].items()}
    shown: dict[str, Sequence[int]] = {name: range(len(points)) for name, points in axes.items()}
    if "threshold" in axes:
        # The bound at the last grid point at or below the threshold also bounds the share above the threshold.
        shown["threshold"] = [max(0, int(np.searchsorted(axes["threshold"], threshold, side="right")) - 1)]
    bounds = np.asarray(entry["value"])
    observed = np.asarray(entry["check"]["observed"]) if entry["check"] else np.full(bounds.shape, np.nan)
    for index in product(*shown.values()):
        point = {name: axes[name][i] for name, i in zip(axes, index, strict=True)}
        networks = f"within {entry['divergence']} {point['budget']:g}" if "budget" in point else "like the source"
        quantity = _QUANTITIES[entry["function"]].format(**point)
        yield quantity, networks, float(bounds[index]), float(observed[index])


def _who(network: Mapping[str, Any]) -> str:
    asked, expected, answered = (network[key] for key in ("num_asked", "num_clients", "num_answered"))
    reasons = Counter(failure["reason"] for failure in network["failures"])
    failed = ", ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items())) or "none"
    return f"Clients: {expected} expected, {asked} asked, {answered} answered validly; failures: {failed}."


def _guarantees(certificates: Mapping[str, Any]) -> Iterator[str]:
    """One line for each kind of guarantee: how valid, how sure, together with which others."""
    groups: dict[tuple[str, float, bool], list[str]] = {}
    for name, entry in certificates.items():
        groups.setdefault((entry["validity"], entry["delta"], entry["from_band"]), []).append(name)
    for (validity, delta, from_band), names in groups.items():
        scope = "all at once, from one band" if from_band else "on its own"
        yield f"Validity: {validity}, confidence {1 - delta:g} (delta = {delta:g}), {scope}: {', '.join(names)}."


def _verdict(certificates: Mapping[str, Any]) -> str:
    failed = [name for name, entry in certificates.items() if not entry["check"]["holds"]]
    if failed:
        return f"Check: the unseen clients exceed {', '.join(failed)}."
    return (
        f"Check: all {len(certificates)} certificates hold on the unseen clients, at every point of every curve "
        "(for a shifted network: on their worst reweighting within the budget)."
    )


def _assumptions(certificates: Mapping[str, Any]) -> list[str]:
    distinct = dict.fromkeys(text for entry in certificates.values() for text in entry["assumptions"])
    return ["Assumed:", *(f"  - {text}" for text in distinct)]
