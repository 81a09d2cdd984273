"""The study "dispersion": how unequal the risks of unseen clients are, and how groups of them differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field
from rich.markup import escape
from rich.table import Table

import riskband as rb
from riskband.functionals.functional import BOUND_METHODS, OF_RISKS, resolve
from riskband.groups.comparisons import gap_ends
from riskband.groups.group_bands import GroupBands
from riskband.plots.dispersion import dispersion_figure
from riskband.report.words import capital
from server.checks.unseen import Check, Unseen
from server.report.cells import VERDICTS, interval, new_table, number, unseen_headers
from server.sections import Names, Section, is_distinct, one_of, rule
from server.settings import RunConfig
from server.studies.study import Evaluation, Study, UnderTest, finite, finite_ends, loss_query
from strategies.dispersion import BETTING, Dispersion, DispersionConclusion, MeasureBounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUM_SMALL = 10  # groups that are too small are named up to this many
_CURVES = ("lorenz", "quantiles")
_SHARE, _LEVELS = 0.5, (0.5, 0.9)  # points of the curves that the table shows


class Settings(Section):
    """What is measured, and how it is bounded."""

    measures: Annotated[
        Names, rule(lambda names: is_distinct([resolve(name, among=OF_RISKS).name for name in names]))
    ] = Field(
        description=f'give different ones such as "gini,atkinson:0.5"; the names are {", ".join(sorted(OF_RISKS))}'
    )
    dispersion_method: Annotated[str, one_of((BETTING, *BOUND_METHODS))] = Field(
        description=f"use {BETTING} for the measures one by one, or for all of them at once {', '.join(BOUND_METHODS)}"
    )


class DispersionStudy(Study):
    """How unequal the risks of unseen clients are, and how groups of them differ."""

    settings = Settings
    figure_stem = "dispersion"

    def strategy(self, config: RunConfig, tested: UnderTest, asking: dict[str, Any]) -> Dispersion:
        """Return what asks for losses."""
        chosen = config.of(Settings)
        return Dispersion(
            loss_query(config),
            **config.question.model_dump(include={"band", "local"}),
            measures=chosen.measures,
            method=chosen.dispersion_method,
            **asking,
        )

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the sections "dispersion", "lorenz" and "quantiles", and with at least two groups "groups"."""
        result, checks = evaluation.conclusion, evaluation.checks
        found = {
            "dispersion": {
                "method": evaluation.config.of(Settings).dispersion_method,
                "measures": [_measure_entry(each, checks) for each in result.measures],
                "unseen_stand_for": evaluation.unseen_stand_for,
            },
            "lorenz": _curve_entry(result, checks, name="lorenz", axis="share"),
            "quantiles": _curve_entry(result, checks, name="quantiles", axis="level"),
        }
        if result.group_bands is not None:
            found["groups"] = _group_section(result, result.group_bands, evaluation.unseen)
        return found

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of the measures and the Lorenz curve."""
        result = evaluation.conclusion
        return dispersion_figure(
            result.band,
            measures=[each.certificate for each in result.measures if each.certificate is not None],
            lorenz=result.certificates["lorenz"],
            unseen_risks=None if evaluation.truth is None else evaluation.truth.risks,
            title=evaluation.title,
        )

    def tables(self, report: Mapping[str, Any]) -> list[Table]:
        """Return the table of certificates, one of measures and curves, and one of groups if there are any."""
        of_unseen = unseen_headers(report)
        headers = "of the clients", ">lies between", ">measured", *of_unseen
        table = new_table("How unequal the risks of unseen clients are", *headers)
        for quantity, ends, measured, unseen in _rows(report):
            checked = [number(unseen["value"]), VERDICTS[unseen["holds"]]] if of_unseen else []
            table.add_row(quantity, interval(ends), number(measured), *checked)
        groups = [_group_table(report)] if "groups" in report else []
        return [*super().tables(report), table, *groups]

    def elsewhere(self, report: Mapping[str, Any]) -> list[str]:
        """Return the measures, the curves and what is said of groups."""
        measures = [each["certificate"] for each in report["dispersion"]["measures"] if each["certificate"]]
        return [*measures, *_CURVES, *(["group_largest_gap", "group_worst"] if "groups" in report else [])]

    def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is to be said below the tables."""
        unbounded = [each["quantity"] for each in report["dispersion"]["measures"] if each["certificate"] is None]
        if unbounded:
            yield f"Not bounded from above by these answers, so without a certificate: {', '.join(unbounded)}."
        if report["dispersion"]["unseen_stand_for"]:
            yield f"The numbers on unseen clients are {report['dispersion']['unseen_stand_for']}."
        groups = report.get("groups")
        if groups:
            gap, worst = groups["largest_mean_gap"], groups["worst_mean"]
            yield (
                f"Groups: the largest gap between two mean risks lies between {interval(gap)}, the largest mean risk "
                f"between {interval(worst)}."
            )
            sizes = [f"{name} ({count})" for name, count in groups["too_small"].items()]
            more = f" and {len(sizes) - _NUM_SMALL} more" if sizes[_NUM_SMALL:] else ""
            rest = [f"{groups['num_in_no_group']} clients are in no group"] if groups["num_in_no_group"] else []
            rest += [f"too small to say anything of: {', '.join(sizes[:_NUM_SMALL])}{more}"] if sizes else []
            if rest:
                yield f"Groups: {'; '.join(rest)}."


def _measure_entry(bounds: MeasureBounds, checks: Mapping[str, Check]) -> dict[str, Any]:
    check = checks.get(bounds.key)
    return {
        "measure": bounds.measure.name,
        "quantity": bounds.measure.quantity,
        "method": bounds.method,
        **finite_ends(bounds.interval),
        "plugin": finite_ends(bounds.published),
        "measured": finite(bounds.measured),
        "unseen": None if check is None else finite(check.observed),
        "holds": None if check is None else check.holds,
        # None: nothing bounds the measure from above.
        "certificate": None if bounds.certificate is None else bounds.key,
    }


def _curve_entry(result: DispersionConclusion, checks: Mapping[str, Check], *, name: str, axis: str) -> dict[str, Any]:
    certificate, check = result.certificates[name], checks.get(name)
    return {
        f"{axis}s": certificate.axes[axis].tolist(),
        "lower": np.asarray(certificate.lower).tolist(),
        "upper": np.asarray(certificate.value).tolist(),
        "measured": certificate.details["measured"].tolist(),
        "unseen": None if check is None else check.observed.tolist(),
        "holds": None if check is None else check.holds,
    }


def _group_section(result: DispersionConclusion, bands: GroupBands, unseen: Unseen | None) -> dict[str, Any]:
    intervals = rb.group_intervals(bands, "mean")
    both = {pair: [intervals[name] for name in pair] for pair in combinations(bands.names, 2)}
    gaps = {pair: gap_ends(*np.array(ends).T) for pair, ends in both.items()}
    entries = {}
    for name, members in bands.members.items():
        risks = np.empty(0) if unseen is None else unseen.group_risks(name)
        entries[name] = {
            "num_clients": bands.num_clients[name],
            "delta": bands.deltas[name],
            "mean": finite_ends(intervals[name]),
            "measured_mean": float(result.risks.values[members].mean()),
            "num_unseen": len(risks),
            "unseen_mean": float(risks.mean()) if len(risks) else None,
        }
    counts = Counter(answer.group is None for answer in result.outcome.answers)
    return {
        "delta": bands.delta,
        "groups": entries,
        "mean_gaps": [{"groups": list(pair), **finite_ends(rb.Interval(*gap))} for pair, gap in gaps.items()],
        "largest_mean_gap": _certified(result.certificates["group_largest_gap"]),
        "worst_mean": _certified(result.certificates["group_worst"]),
        "num_in_no_group": counts[True],
        "too_small": dict(result.small_groups),
        "assumptions": list(bands.assumptions),
    }


def _certified(certificate: rb.Certificate) -> dict[str, Any]:
    return {"lower": certificate.lower, "upper": certificate.value, "validity": certificate.validity}


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], float | None, Mapping[str, Any]]]:
    """Name, bounds, measured value, and value on unseen clients with whether the bounds hold there, of each number."""
    certificates = report["certificates"]
    for each in report["dispersion"]["measures"]:
        validity = certificates[each["certificate"]]["validity"] if each["certificate"] else "certificate"
        label = "" if validity == "certificate" else f" ({validity})"
        quantity = capital(each["quantity"].removeprefix("the ")) + label
        yield quantity, each, each["measured"], {"value": each["unseen"], "holds": each["holds"]}
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
    of_unseen = [">on unseen", ">of them"] if num_unseen else []
    table = new_table("Mean risk by group", "group", ">clients", ">lies between", ">measured", *of_unseen)
    for name, group in report["groups"]["groups"].items():
        unseen = [number(group["unseen_mean"]), str(group["num_unseen"])] if num_unseen else []
        ends, measured = interval(group["mean"]), number(group["measured_mean"])
        table.add_row(escape(name), str(group["num_clients"]), ends, measured, *unseen)
    return table
