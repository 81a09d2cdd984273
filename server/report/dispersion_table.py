"""The sections of a report about dispersion and groups, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from riskband.wording import confidence, rounded_down, rounded_up
from server.report.cells import VERDICTS, number

_NUM_SMALL = 10  # groups that are too small are named up to this many
_SHARE, _LEVELS = 0.5, (0.5, 0.9)  # points of the curves that the table shows


def dispersion_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return one table of measures and curves, and one of groups if there are any; none for other strategies.

    Parameters
    ----------
    report : mapping
        The content of report.json.
    """
    if "dispersion" not in report:
        return []
    num_unseen = report["unseen"]["num_clients"]
    table = Table(title="How unequal the risks of unseen clients are")
    table.add_column("of the clients")
    for header in ("lies between", "measured", *([f"on {num_unseen} unseen"] if num_unseen else [])):
        table.add_column(header, justify="right")
    if num_unseen:
        table.add_column("holds")
    for quantity, ends, measured, unseen in _rows(report):
        checked = [number(unseen["value"]), VERDICTS[unseen["holds"]]] if num_unseen else []
        table.add_row(quantity, _interval(ends), number(measured), *checked)
    return [table, *([_group_table(report)] if "groups" in report else [])]


def dispersion_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What is to be said below the tables, line by line; nothing for other strategies."""
    if "dispersion" not in report:
        return
    unbounded = [each["quantity"] for each in report["dispersion"]["measures"] if each["certificate"] is None]
    if unbounded:
        yield f"Not bounded from above by these answers, so without a certificate: {', '.join(unbounded)}."
    if report["dispersion"]["unseen_stand_for"]:
        yield f"The numbers on unseen clients are {report['dispersion']['unseen_stand_for']}."
    groups = report.get("groups")
    if groups:
        gap = groups["largest_mean_gap"]
        worst = groups["worst_mean"]
        yield (
            f"Groups, all at once with confidence {confidence(groups['delta'])} (delta = {groups['delta']:g}): the "
            f"largest "
            f"gap between two mean risks lies between {_interval(gap)}, the largest mean risk between "
            f"{_interval(worst)}."
        )
        sizes = [f"{name} ({count})" for name, count in groups["too_small"].items()]
        small = ", ".join(sizes[:_NUM_SMALL]) + (f" and {len(sizes) - _NUM_SMALL} more" if sizes[_NUM_SMALL:] else "")
        rest = [f"{groups['num_in_no_group']} clients are in no group"] if groups["num_in_no_group"] else []
        rest += [f"too small to say anything of: {small}"] if small else []
        if rest:
            yield f"Groups: {'; '.join(rest)}."


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], float | None, Mapping[str, Any]]]:
    """Name, bounds, measured value, and value on unseen clients with whether the bounds hold there, of each number."""
    certificates = report["certificates"]
    for each in report["dispersion"]["measures"]:
        validity = certificates[each["certificate"]]["validity"] if each["certificate"] else "certificate"
        label = "" if validity == "certificate" else f" ({validity})"
        quantity = each["quantity"].removeprefix("the ")
        yield (
            f"{quantity[0].upper()}{quantity[1:]}{label}",
            each,
            each["measured"],
            {"value": each["unseen"], "holds": each["holds"]},
        )
    for name, axis, points, text in (
        ("lorenz", "shares", (_SHARE,), "Part of all risk on the best-off half"),
        ("quantiles", "levels", _LEVELS, "Quantile {:g} of the risk"),
    ):
        curve = report[name]
        for point in points:
            index = int(np.argmin(np.abs(np.asarray(curve[axis]) - point)))
            ends = {end: curve[end][index] for end in ("lower", "upper")}
            value = None if curve["unseen"] is None else curve["unseen"][index]
            holds = None if value is None else ends["lower"] - 1e-12 <= value <= ends["upper"] + 1e-12
            yield text.format(curve[axis][index]), ends, curve["measured"][index], {"value": value, "holds": holds}


def _group_table(report: Mapping[str, Any]) -> Table:
    num_unseen = report["unseen"]["num_clients"]
    table = Table(title="Mean risk by group")
    table.add_column("group")
    for header in ("clients", "lies between", "measured", *(["on unseen", "of them"] if num_unseen else [])):
        table.add_column(header, justify="right")
    for name, group in report["groups"]["groups"].items():
        unseen = [number(group["unseen_mean"]), str(group["num_unseen"])] if num_unseen else []
        ends, measured = _interval(group["mean"]), number(group["measured_mean"])
        table.add_row(escape(name), str(group["num_clients"]), ends, measured, *unseen)
    return table


def _interval(ends: Mapping[str, float | None]) -> str:
    lower, upper = ends["lower"], ends["upper"]
    return f"{'–' if lower is None else rounded_down(lower, 3)} and {'∞' if upper is None else rounded_up(upper, 3)}"
