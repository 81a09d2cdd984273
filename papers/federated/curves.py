"""Panels of curves: shares of clients whose risk is at least a threshold, the truth beside bounds of it.

A panel is plain JSON: {"name", "thresholds", "curves"}; a curve {"name", "validity", "values", "mean"}, its mean over
the thresholds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import riskband as rb
from riskband.certificate import REFUTED
from riskband.checks import FloatArray
from riskband.plots.bands import BOUNDS, UNSEEN, blank_figure
from riskband.wording import FALSE_IN_GENERAL

DELTA = 0.05
TRUTH, PUBLISHED, SHARP = "truth", "published", "sharp"
_NUM_THRESHOLDS = 50  # as in the authors' code
COLOURS = {TRUTH: UNSEEN, PUBLISHED: "#96234a", SHARP: BOUNDS}
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)))
SYMBOLS = {"chi2": "χ²", "kl": "KL"}
_ROUNDING = 1e-9  # of a share


def thresholds_of(*risks: FloatArray) -> FloatArray:
    """Return 50 equally spaced thresholds from the smallest to the largest of all these risks."""
    joined = np.concatenate(risks)
    return np.linspace(joined.min(), joined.max(), _NUM_THRESHOLDS)


def share_at_least(risks: FloatArray, thresholds: FloatArray) -> FloatArray:
    """Return the share of `risks` (num_clients,) that are at least each threshold, (num_thresholds,)."""
    below = np.searchsorted(np.sort(risks), thresholds, side="left")
    return np.asarray(1.0 - below / len(risks))


def curve(name: str, values: FloatArray, *, validity: str, **more: Any) -> dict[str, Any]:
    """Return a curve as plain JSON; `more` are plain values that say what it is a curve of."""
    return {"name": name, "validity": validity, **more, "mean": float(values.mean()), "values": values.tolist()}


def survival_curve(name: str, band: rb.Band, thresholds: FloatArray, **more: Any) -> dict[str, Any]:
    """Return the bound that a band gives for clients of the network it was made from."""
    return curve(name, 1.0 - band.lower_left_limit(thresholds), validity="certificate", **more)


def worst_case_curve(
    name: str, band: rb.Band, thresholds: FloatArray, *, divergence: str, budget: float, method: str
) -> dict[str, Any]:
    """Return the bound for every network within an f-divergence budget; see `riskband.worst_case_cdf`."""
    found = rb.worst_case_cdf(band, divergence=divergence, budget=budget, thresholds=thresholds, method=method)
    values = np.asarray(found.value, dtype=np.float64)
    return curve(name, values, validity=found.validity, divergence=divergence, budget=budget)


def covers(bound: Mapping[str, Any], truth: Mapping[str, Any]) -> bool:
    """Return whether a bound lies nowhere below the truth."""
    return bool(np.all(np.array(bound["values"]) >= np.array(truth["values"]) - _ROUNDING))


def largest_excess(truth: Mapping[str, Any], bounds: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return by how much the truth exceeds a bound of that name at most; below 0 where it never does."""
    found = [np.max(np.array(truth["values"]) - np.array(each["values"])) for each in bounds if each["name"] == name]
    return float(max(found))


def panels_figure(panels: Sequence[Mapping[str, Any]], *, num_columns: int, title: str) -> Figure:
    """Draw panels in rows; a curve with "drawn": False is left out.

    The legend, below, names each curve once, with its validity. Curves of one name, at several budgets, differ by their
    dashes, which a panel's own legend explains: "budgets" says in a panel of what kind they are.
    """
    num_rows = -(-len(panels) // num_columns)
    figure = blank_figure(3.6 * num_columns, 2.7 * num_rows + 0.9)
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    labels: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        labels = _draw_panel(axes, panel, only=len(panels) == 1) | labels
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize="medium")
    for axes in grid[-1]:
        axes.set_xlabel("risk (mean 0-1 loss of a client)", fontsize="small")
    for axes in grid[:, 0]:
        axes.set_ylabel("share of clients with\nat least this risk", fontsize="small")
    style: dict[str, Any] = {"ncols": num_columns, "fontsize": "small", "frameon": False}
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", **style)
    return figure


def label(bound: Mapping[str, Any]) -> str:
    """Return what a bound is, and of what, for the legend."""
    of = f", {bound['of']}" if "of" in bound else ""
    return f"{bound['name']}{of}: {FALSE_IN_GENERAL if bound['validity'] == REFUTED else bound['validity']}"


def _draw_panel(axes: Axes, panel: Mapping[str, Any], *, only: bool) -> dict[str, Any]:
    """Draw one panel; returns a line for each entry of the figure's legend."""
    labels: dict[str, Any] = {}
    count: Counter[str] = Counter()
    steps: list[str] = []
    for each in panel["curves"]:
        if not each.get("drawn", True):
            continue
        name = each["name"]
        dashes = _DASHES[count[name] % len(_DASHES)]
        count[name] += 1
        words = f"{name} ({each['validity']})" if name == TRUTH else label(each)
        budget = f", {SYMBOLS[each['divergence']]} {each['budget']:g}" if only and "divergence" in each else ""
        style: dict[str, Any] = {
            "color": COLOURS.get(name, "#444444"),
            "ls": dashes,
            "lw": 2.2 if name == TRUTH else 1.4,
        }
        (line,) = axes.plot(panel["thresholds"], each["values"], **style)
        labels.setdefault(words + budget, line)
        if name == SHARP:
            steps.append(f"{each.get('ratio', each.get('budget', 0.0)):g}")
    axes.set_title(fill(panel.get("title", panel["name"]), 48), fontsize="small")
    axes.set_ylim(-0.02, 1.03)
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.25, lw=0.6)
    if len(steps) > 1:
        keys = [axes.plot([], [], color="#444444", lw=1.4, ls=dashes)[0] for dashes in _DASHES[: len(steps)]]
        small = {"fontsize": "x-small", "title_fontsize": "x-small", "handlelength": 3.6}
        axes.legend(keys, steps, title=panel["budgets"], loc="best", **small)
    return labels
