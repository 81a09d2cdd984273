"""What printed tables share: cells of numbers and verdicts, and the table of certificates with upper bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from rich.table import Table

from riskband.certificate import ESTIMATE, PUBLISHED
from riskband.report.words import capital
from riskband.wording import evenly, rounded_down, rounded_up, short_delta
from riskband.worst_cases.requirements import NOT_DECIDED

VERDICTS = {True: "yes", False: "[bold red]NO[/]", None: "–"}
"""Whether a bound holds on unseen clients; None where that is not known."""

_QUANTITIES = {"mean": "mean risk", "share": "P(risk ≥ {threshold:g})"}
_DELTAS = {"own": "its own", "band": "the band's", "groups": "the groups'"}
_NUM_COSTS = 5  # of a long list of cost budgets, the table shows this many


def loss_in_words(name: str) -> str:
    """Return the name of a loss as readers know it: "0-1", "cross-entropy"."""
    return name.replace("zero_one", "0-1").replace("_", "-")


def number(value: float | None) -> str:
    """Return a measured number, a dash for none."""
    return "–" if value is None else f"{value:.3f}"


def upper_bound(value: float | None) -> str:
    """Return an upper bound, rounded up; a dash for none."""
    return "–" if value is None else rounded_up(value, 3)


def interval(ends: Mapping[str, float | None]) -> str:
    """Return both ends of an interval, rounded outwards; None is no bound."""
    lower, upper = ends["lower"], ends["upper"]
    return f"{'–' if lower is None else rounded_down(lower, 3)} and {'∞' if upper is None else rounded_up(upper, 3)}"


def num_rounds(number: int) -> str:
    """Return a number of rounds in words."""
    return "1 round" if number == 1 else f"{number} rounds"


def reasons(failures: Sequence[Mapping[str, Any]]) -> str:
    """Return how many failed for which reason; "none" if nobody did."""
    counts = Counter(failure["reason"] for failure in failures)
    return ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.items())) or "none"


def stopped(report: Mapping[str, Any]) -> str:
    """Return when a run stopped that asked until it was decided, and whom that spared."""
    config, network = report["config"], report["network"]
    asked, unasked = network["num_asked"], network["num_unasked"]
    end = "it was not decided by" if report["gate"]["verdict"] == NOT_DECIDED else "it was decided by"
    spared = f"; {unasked} ({unasked / (asked + unasked):.0%}) were spared, with their query budgets" if unasked else ""
    return (
        f"in batches of {config['batch-size']}, in the order that seed {report['seed']} settled before any client "
        f"answered: {end} {asked} of {asked + unasked} clients{spared}"
    )


def are_estimates(certificates: Mapping[str, Any]) -> bool:
    """Return whether nothing here is certified."""
    return all(entry["validity"] == ESTIMATE for entry in certificates.values())


def new_table(title: str, *headers: str) -> Table:
    """Return a table without rows; a column whose header begins with ">" is flush right, as numbers are."""
    table = Table(title=title)
    for header in headers:
        table.add_column(header.removeprefix(">"), justify="right" if header.startswith(">") else "left")
    return table


def unseen_headers(report: Mapping[str, Any]) -> list[str]:
    """Return the headers of the last columns, a value on the unseen clients and whether a bound holds, if any are."""
    num_unseen = report["unseen"]["num_clients"]
    return [f">on {num_unseen} unseen", "holds"] if num_unseen else []


def certificate_table(
    report: Mapping[str, Any],
    within: Callable[[Mapping[str, Any], Mapping[str, float]], str],
    *,
    without: Collection[str] = (),
) -> Table:
    """Return the table of the upper bounds of all certificates, `without` those that stand in another one.

    Curves over the risk are shown at one point, the run's ``breakdown-threshold``; curves over the transport cost at
    a few. `within` says, of a certificate and a point on its axes, which networks it is about there.
    """
    certificates, of_unseen = report["certificates"], unseen_headers(report)
    said = "estimated" if certificates and are_estimates(certificates) else "certified"
    title = f"{report['scenario']}: {said} for clients and networks that nobody has measured"
    table = new_table(title, "of the clients", "on any network", ">is at most", "part of delta", *of_unseen)
    alone = {(entry["kind"], entry["divergence"]) for entry in certificates.values() if entry["event"] == "own"}
    for name, entry in certificates.items():
        has_sharper = entry["event"] == "band" and (entry["kind"], entry["divergence"]) in alone
        if name in without or has_sharper:
            continue
        for point, bound, observed in _points(entry, threshold=report["config"]["breakdown-threshold"]):
            label = "" if entry["validity"] == "certificate" else f" ({entry['validity']})"
            family = entry["kind"].partition("@")[0]
            # Of all else the quantity says what it is of.
            is_short = bool(point) or entry["quantity"].startswith("the mean risk over unseen clients")
            named = _QUANTITIES[family].format(**point) if is_short else capital(entry["quantity"])
            quantity = named + _published(entry) + label
            known = None if np.isnan(observed) else observed
            checked = [number(known), VERDICTS[None if known is None else known <= bound + 1e-12]] if of_unseen else []
            on = within(entry, point) if is_short else ""
            digits = 0 if family == "count" else 3
            is_beside = name in report["findings"]["beside"]
            of_delta = f"beside: {short_delta(entry['delta'])}, by its rank" if is_beside else None
            table.add_row(quantity, on, rounded_up(bound, digits), of_delta or _DELTAS[entry["event"]], *checked)
    return table


def _published(entry: Mapping[str, Any]) -> str:
    return f" ({entry['method']})" if entry["method"].startswith(PUBLISHED) else ""


def _points(entry: Mapping[str, Any], *, threshold: float) -> Iterator[tuple[dict[str, float], float, float]]:
    """The numbers of a certificate to show: (point on its axes, bound, observed)."""
    axes = {name: np.asarray(points) for name, points in entry["axes"].items()}
    shown: dict[str, Sequence[int]] = {name: range(len(points)) for name, points in axes.items()}
    if "threshold" in axes:
        # The bound at the last grid point at or below the threshold also bounds the share above the threshold.
        shown["threshold"] = [max(0, int(np.searchsorted(axes["threshold"], threshold, side="right")) - 1)]
    if "cost_budget" in axes:
        shown["cost_budget"] = evenly(len(axes["cost_budget"]), _NUM_COSTS).tolist()
    bounds = np.asarray(entry["value"])
    observed = np.asarray(entry["check"]["observed"]) if entry["check"] else np.full(bounds.shape, np.nan)
    for index in product(*shown.values()):
        point = {name: axes[name][i] for name, i in zip(axes, index, strict=True)}
        yield point, float(bounds[index]), float(observed[index])


def check_lines(certificates: Mapping[str, Any], *, worst_network: str) -> list[str]:
    """Return what the unseen clients of a simulation say of the certificates of a report; nothing without any."""
    checked = {name: entry for name, entry in certificates.items() if entry["check"] is not None}
    if not checked:
        return []
    failed = [name for name, entry in checked.items() if not entry["check"]["holds"]]
    if failed:
        outside = [name for name in failed if "lower" in checked[name]]
        above = [name for name in failed if name not in outside]
        words = [f"exceed {', '.join(above)}"] if above else []
        words += [f"are outside of {', '.join(outside)}"] if outside else []
        return [f"Check: the unseen clients {' and '.join(words)}."]
    is_any_shifted = any(entry["axes"].keys() & {"budget", "cost_budget"} for entry in checked.values())
    has_curves = any(entry["axes"] for entry in checked.values())
    kind = "estimate" if are_estimates(checked) else "certificate"
    holds = f"the {kind} holds" if len(checked) == 1 else f"all {len(checked)} {kind}s hold"
    everywhere = ", at every point of every curve" if has_curves else ""
    return [f"Check: {holds} on the unseen clients{everywhere}{f' ({worst_network})' if is_any_shifted else ''}."]
