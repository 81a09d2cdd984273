"""A report as a table: in plain words what is certified, how sure that is, and who answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from riskband.certificate import ESTIMATE
from riskband.wording import TRAINERS_ANSWERED, confidence, rounded_up
from server.privacy import privacy_lines
from server.report.cells import VERDICTS
from server.report.dispersion_table import dispersion_lines, dispersion_tables
from server.report.sandwich import attack_lines, sandwich_lines, sandwich_tables, unit_words
from server.report.selection_table import selection_lines, selection_tables
from server.secure import secure_lines

_MEAN, _SHARE = "mean risk", "P(risk ≥ {threshold:g})"
_QUANTITIES = {
    **dict.fromkeys(("mean_bound", "worst_case_mean", "wasserstein_mean", "wasserstein_published"), _MEAN),
    **dict.fromkeys(("survival", "worst_case_cdf", "wasserstein_cdf"), _SHARE),
}
_NUM_COSTS = 5  # of a long list of cost budgets, the table shows this many
_NUM_FAILURES = 10  # and of failures so many


def report_table(report: Mapping[str, Any]) -> RenderableType:
    """Return a report as a table for people, ready for rich to print.

    Curves over the risk are shown at one point, the run's ``breakdown-threshold``; curves over the transport cost at
    a few.

    Parameters
    ----------
    report : mapping
        The content of report.json.
    """
    config, certificates, unseen = report["config"], report["certificates"], report["unseen"]
    has_checks = unseen["num_clients"] > 0
    transport = report.get("transport", {})
    unit = transport.get("mean_cost_that_makes_an_example_wrong")
    said = "estimated" if certificates and _are_estimates(certificates) else "certified"
    table = Table(title=f"{report['scenario']}: {said} for clients and networks that nobody has measured")
    table.add_column("of the clients")
    table.add_column("on any network")
    table.add_column("is at most", justify="right")
    if has_checks:
        table.add_column(f"on {unseen['num_clients']} unseen", justify="right")
        table.add_column("holds")
    for entry in certificates.values():
        if "lower" in entry or entry["function"] == "select":  # they have tables of their own
            continue
        for quantity, networks, bound, observed in _rows(entry, threshold=config["breakdown-threshold"], unit=unit):
            checked = [f"{observed:.3f}", VERDICTS[bool(observed <= bound + 1e-12)]]
            table.add_row(quantity, networks, rounded_up(bound, 3), *(checked if has_checks else []))
    lines = [
        _who(report["network"]),
        *_failed(report),
        _recorded(report["timing"]["configuration_recorded"]),
        _traffic(report),
        *_transport(transport, space=config.get("space", "representation")),
        *_guarantees(certificates),
        *privacy_lines(report),
        *secure_lines(report),
    ]
    lines += [f"Breakdown, {name}: {entry['statement']}." for name, entry in report["breakdowns"].items()]
    lines += [
        f"Where {name} is 1 it says nothing: {entry['says_nothing']}."
        for name, entry in certificates.items()
        if entry["says_nothing"]
    ]
    if any(entry["check"] is not None for entry in certificates.values()):
        lines.append(_verdict(certificates, are_shifted=transport.get("unseen_are_moved", True)))
    lines += [*sandwich_lines(report), *attack_lines(report), *dispersion_lines(report), *selection_lines(report)]
    tables = [
        *([table] if table.row_count else []),
        *sandwich_tables(report),
        *dispersion_tables(report),
        *selection_tables(report),
        *([_target_table(report["targets"], unit=unit)] if report.get("targets") else []),
    ]
    text = Text("\n".join([*lines, *_assumptions(certificates)]))
    text.highlight_words([TRAINERS_ANSWERED], style="bold red")
    return Group(*_warnings(report), *tables, text)


def print_report(report: Mapping[str, Any]) -> None:
    """Print `report_table` to standard output."""
    Console(width=110).print(report_table(report))


def _rows(entry: Mapping[str, Any], *, threshold: float, unit: float | None) -> Iterator[tuple[str, str, float, float]]:
    """The numbers of a certificate to show: (quantity, networks, bound, observed)."""
    axes = {name: np.asarray(points) for name, points in entry["axes"].items()}
    shown: dict[str, Sequence[int]] = {name: range(len(points)) for name, points in axes.items()}
    if "threshold" in axes:
        # The bound at the last grid point at or below the threshold also bounds the share above the threshold.
        shown["threshold"] = [max(0, int(np.searchsorted(axes["threshold"], threshold, side="right")) - 1)]
    if "cost_budget" in axes:
        last = len(axes["cost_budget"]) - 1
        shown["cost_budget"] = sorted({round(i) for i in np.linspace(0, last, _NUM_COSTS).tolist()})
    bounds = np.asarray(entry["value"])
    observed = np.asarray(entry["check"]["observed"]) if entry["check"] else np.full(bounds.shape, np.nan)
    for index in product(*shown.values()):
        point = {name: axes[name][i] for name, i in zip(axes, index, strict=True)}
        label = "" if entry["validity"] == "certificate" else f" ({entry['validity']})"
        quantity = _QUANTITIES[entry["function"]].format(**point) + label
        yield quantity, _networks(entry, point, unit), float(bounds[index]), float(observed[index])


def _networks(entry: Mapping[str, Any], point: Mapping[str, float], unit: float | None) -> str:
    if "budget" in point:
        return f"within {entry['divergence']} {point['budget']:g}"
    if "cost_budget" in point:
        return f"cost ≤ {_cost(point['cost_budget'], unit)}"
    return "like the source"


def _cost(cost: float, unit: float | None) -> str:
    return f"{cost:.3g}" + ("" if unit is None else f" ({cost / unit:.2g} u)")


def _target_table(targets: Sequence[Mapping[str, Any]], *, unit: float | None) -> Table:
    table = Table(title="Unseen clients, moved further: the distance is measured, the risks are exact")
    table.add_column("sigma", justify="right")
    table.add_column("mean cost")
    for header in ("mean risk", "is at most"):
        table.add_column(header, justify="right")
    table.add_column("holds")
    for target in targets:
        checks = target["checks"]
        holds = all(check["holds"] for check in checks.values())
        distance, bound = _cost(target["mean_cost"], unit), checks["wasserstein_mean"]["bound"]
        numbers = f"{target['mean_risk']:.3f}", rounded_up(bound, 3)
        table.add_row(f"{target['sigma']:g}", distance, *numbers, VERDICTS[holds])
    return table


def _who(network: Mapping[str, Any]) -> str:
    asked, expected, answered = (network[key] for key in ("num_asked", "num_clients", "num_answered"))
    reasons = Counter(failure["reason"] for failure in network["failures"])
    failed = ", ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items())) or "none"
    return f"Clients: {expected} expected, {asked} asked, {answered} answered validly; failures: {failed}."


def _failed(report: Mapping[str, Any]) -> Iterator[str]:
    """One line for each of the first failures of a client that was there, and how to find a node without a name."""
    failures = report["network"]["failures"]
    node_ids = report["timing"].get("node_ids_of_failures", [None] * len(failures))
    shown = [(each, node_id) for each, node_id in zip(failures, node_ids, strict=True) if each["client_id"] or node_id]
    for each, node_id in shown[:_NUM_FAILURES]:
        registered = f", registered as {each['node_name']!r}" if each.get("node_name") else ""
        who = each["client_id"] or f"node {node_id}"
        yield f"  - {who}{registered}: {each['reason']}: {each['detail']}"
    if len(shown) > _NUM_FAILURES:
        yield f"  - and {len(shown) - _NUM_FAILURES} more, in report.json."
    if any(not (each["client_id"] or each.get("node_name")) for each, _ in shown):
        yield "  `flwr supernode list` says of a node's id whether it is connected; events.jsonl has the ids of all."


def _recorded(time: str | None) -> str:
    return f"The configuration was recorded{'' if time is None else f' at {time}'}, before any client was asked."


def _traffic(report: Mapping[str, Any]) -> str:
    metrics, seconds = report["metrics"], report["timing"]["seconds"]["answers"]
    sent, received = decimal(metrics["bytes_sent"]), decimal(metrics["bytes_received"])
    held = metrics["num_answers_in_ledger"]
    return (
        f"Traffic: {_rounds(metrics['num_rounds'])}, {metrics['num_messages']} messages ({sent}), "
        f"{metrics['num_replies']} replies ({received}); the answers took {seconds:.1f} s"
        f"{f', and {held} were in the ledger' if held else ''}."
    )


def _rounds(num_rounds: int) -> str:
    return "1 round" if num_rounds == 1 else f"{num_rounds} rounds"


_SCOPES = {
    "own": "on its own",
    "band": "all at once, from one band",
    "groups": "all at once, from the bands of all groups",
}
_SUBJECTS = {
    "clients": "The worst mean risk of the clients that answered",
    "upper-bounds": "The worst mean of the upper bounds that the clients answered (no more than a bound of their risk)",
    "attacks": "The worst mean that the clients' attacks reached (no bound of their risk)",
    "noise": "The worst mean risk of the clients that answered",
}


def _transport(transport: Mapping[str, Any], *, space: str) -> Iterator[str]:
    if not transport:
        return
    unit, ends = transport["mean_cost_that_makes_an_example_wrong"], transport["empirical_worst_mean"]
    if unit is not None:
        yield f"Costs: {transport['cost']}; 1 u = {unit:.4g}, {unit_words(space)}."
    gap = max(np.subtract(ends["upper"], ends["lower"]))
    rounds = _rounds(transport["num_rounds"])
    subject, num_messages = _SUBJECTS[ends["about"]], transport["num_messages"]
    known = "only estimated, from answers with noise" if ends["about"] == "noise" else f"known to within {gap:.2g}"
    yield f"{subject} is {known}, from {rounds} and {num_messages} messages."
    later = transport["later_failures"]
    if later:
        reasons = Counter(failure["reason"] for failure in later)
        found = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        yield f"Clients that fell silent after the first round: {len(later)} ({found}); what they had said counts."
    budget = transport["query_budget"]
    left_out, left = len(budget["clients_left_out"]), budget["smallest_left"]
    if left_out or left is not None:
        yield (
            f"Query budgets: asked for {budget['num_radii']} radii and {budget['num_multipliers']} multipliers; "
            f"{left_out} clients left out; the smallest budget left is {'unlimited' if left is None else left}."
        )


def _guarantees(certificates: Mapping[str, Any]) -> Iterator[str]:
    """One line for each kind of guarantee: how valid, how sure, together with which others."""
    groups: dict[tuple[str, float, str], list[str]] = {}
    for name, entry in certificates.items():
        groups.setdefault((entry["validity"], entry["delta"], entry["event"]), []).append(name)
    for (validity, delta, event), names in groups.items():
        sure = f"{validity}, confidence {confidence(delta)} (delta = {delta:g})"
        yield f"Validity: {sure}, {_SCOPES[event]}: {', '.join(names)}."


def _are_estimates(certificates: Mapping[str, Any]) -> bool:
    return all(entry["validity"] == ESTIMATE for entry in certificates.values())


def _warnings(report: Mapping[str, Any]) -> list[Text]:
    """What makes an estimate of everything, in red and above all numbers."""
    if report["network"].get("answered_by") != "trainers":
        return []
    return [Text(f"NOTHING IS CERTIFIED: {TRAINERS_ANSWERED}.", style="bold red")]


def _verdict(certificates: Mapping[str, Any], *, are_shifted: bool) -> str:
    checked = {name: entry for name, entry in certificates.items() if entry["check"] is not None}
    failed = [name for name, entry in checked.items() if not entry["check"]["holds"]]
    if failed:
        outside = [name for name in failed if "lower" in checked[name]]
        above = [name for name in failed if name not in outside]
        words = [f"exceed {', '.join(above)}"] if above else []
        words += [f"are outside of {', '.join(outside)}"] if outside else []
        return f"Check: the unseen clients {' and '.join(words)}."
    is_any_shifted = any(entry["axes"].keys() & {"budget", "cost_budget"} for entry in checked.values())
    has_curves = any(entry["axes"] for entry in checked.values())
    network = "for a shifted network: on the worst one within the budget that they can be made into"
    if not are_shifted:
        known = "only known for the 0-1 loss in representation space"
        network = f"as they are; the worst network that they can be made into is {known}"
    kind = "estimate" if _are_estimates(checked) else "certificate"
    holds = f"the {kind} holds" if len(checked) == 1 else f"all {len(checked)} {kind}s hold"
    return (
        f"Check: {holds} on the unseen clients"
        f"{', at every point of every curve' if has_curves else ''}{f' ({network})' if is_any_shifted else ''}."
    )


def _assumptions(certificates: Mapping[str, Any]) -> list[str]:
    distinct = dict.fromkeys(text for entry in certificates.values() for text in entry["assumptions"])
    return ["Assumed:", *(f"  - {text}" for text in distinct)] if distinct else []
