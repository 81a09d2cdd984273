"""[DG] Figures 1, 4 and 9: accuracy and loss of domains against their distance from the sources, for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import rankdata
from torch import nn

from papers.domain_generalisation.domains import (
    FRESH,
    SEVERITIES,
    SOURCE_ANGLES,
    TARGET_ANGLES,
    Domains,
    distances_of,
    domains,
)
from papers.domain_generalisation.rotated_digits import ROWS, SETTINGS, Row, trained
from papers.experiment import Experiment, Request, Result
from riskband.plots.bands import blank_figure, draw_legend_below
from worlds.corruptions import MNIST_C, Corruption

PLAIN = Row("erm", 0.0)
MODELS = {PLAIN.name: PLAIN, **ROWS}
_NEAR = 0.05
"""Domains whose distances differ by at most this count as equally far."""


def rank_correlations(domains: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Return Spearman's rank correlation of distance and error over the severities of each corruption.

    None where all severities have the same error.
    """
    found: dict[str, float | None] = {}
    for kind in MNIST_C:
        rows = [domains[Corruption(kind, severity).name] for severity in SEVERITIES]
        ranks = np.stack([rankdata([row["distance"] for row in rows]), rankdata([-row["accuracy"] for row in rows])])
        found[kind] = float(np.asarray(np.corrcoef(ranks))[0, 1]) if np.ptp(ranks[1]) > 0 else None
    return found


def widest_difference(domains: Mapping[str, Mapping[str, float]]) -> tuple[float, list[str]]:
    """Return the largest difference of accuracy between two domains that are equally far, and their names."""
    names, rows = list(domains), list(domains.values())
    distance, accuracy = (np.array([row[key] for row in rows]) for key in ("distance", "accuracy"))
    differences = accuracy[:, None] - accuracy
    differences[np.abs(distance[:, None] - distance) > _NEAR] = -1
    better, worse = np.unravel_index(differences.argmax(), differences.shape)
    return float(differences[better, worse]), [names[better], names[worse]]


def run(request: Request) -> Result:
    """Measure all domains for the models that the request names as panels; for the plain one if it names none."""
    given = domains(request)
    models = {name: measured(trained(request, MODELS[name]), given) for name in request.panels or (PLAIN.name,)}
    return {
        "source_angles": list(SOURCE_ANGLES),
        "models": models,
        "table": [_summary(name, found) for name, found in models.items()],
    }


def measured(model: nn.Module, given: Domains) -> dict[str, Any]:
    """Return `distances_of` a model, with its rank correlations and the widest difference of equally far domains."""
    found = distances_of(model, given.source, given.others)
    difference, pair = widest_difference(found["domains"])
    found["rank_correlation"] = rank_correlations(found["domains"])
    found["widest_difference"] = {"accuracy": difference, "domains": pair, "within": _NEAR}
    return found


def _summary(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    known = [value for value in found["rank_correlation"].values() if value is not None]
    rows = found["domains"]
    return {
        "model": MODELS[name].label,
        "unit": found["unit"],
        "accuracy": found["source"]["accuracy"],
        "rank correlation, median": float(np.median(known)),
        "least": min(known),
        "widest difference": found["widest_difference"]["accuracy"],
        "other images at": rows[FRESH]["distance"],
        "domains within 1": sum(row["distance"] <= 1 for row in rows.values()),
        "below the worst case": sum(row["accuracy"] < row["worst_accuracy"] - 1e-9 for row in rows.values()),
    }


def figure(result: Result) -> Figure:
    """Draw accuracy and cross-entropy against distance, a row of two panels for each model."""
    models = result["models"]
    page = blank_figure(10.0, 1.6 + 3.6 * len(models))
    grid = page.subplots(len(models), 2, squeeze=False)
    for row, (name, found) in enumerate(models.items()):
        left, right = grid[row]
        _draw_domains(left, found["domains"], "accuracy", is_named=row == 0)
        _draw_domains(right, found["domains"], "cross_entropy", is_named=False)
        curve = found["curve"]
        left.plot(curve["distance"], curve["worst_accuracy"], color="black", lw=1.8, label=_WORST if row == 0 else None)
        left.set(ylabel="accuracy", ylim=(0, 1), title=MODELS[name].label)
        right.set(ylabel="mean cross-entropy (nats)", title=MODELS[name].label)
        for axes in (left, right):
            axes.set(xlabel=r"$W_2$ from the sources / $\rho_{adv}$, in representation space")
            axes.set_xlim(left=0)
            axes.grid(alpha=0.25, lw=0.6)
    draw_legend_below(page)
    return page


_WORST = "smallest accuracy of any distribution so near (exact for these images)"
_COLOURS = ("#3b6ea5", "#d1701f", "#4f8f4f", "#b03a48", "#7a5ea8", "#8a6d4b", "#d37fb5", "#7f7f7f", "#a8a032")


def _draw_domains(axes: Axes, domains: Mapping[str, Mapping[str, float]], key: str, *, is_named: bool) -> None:
    """Draw a line for each corruption, a triangle for each angle, and a star for other images of the sources."""
    for kind, colour in zip(MNIST_C, _COLOURS, strict=True):
        rows = [domains[Corruption(kind, severity).name] for severity in SEVERITIES]
        label = kind.replace("-", " ") if is_named else None
        axes.plot(*_at(rows, key), "o-", color=colour, ms=3.5, label=label)
    angles = [domains[f"{angle:g}°"] for angle in TARGET_ANGLES]
    marks = ((angles, "^", f"{', '.join(f'{angle:g}°' for angle in TARGET_ANGLES)}"), ([domains[FRESH]], "*", FRESH))
    for rows, marker, label in marks:
        axes.plot(*_at(rows, key), marker, color="black", ms=8, mec="white", label=label if is_named else None)


def _at(rows: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    return [row["distance"] for row in rows], [row[key] for row in rows]


EXPERIMENT = Experiment(
    name="distances",
    paper="[DG] Figures 1 and 4: accuracy and loss of domains at their distance from the source",
    sets=("mnist",),
    run=run,
    figure=figure,
    panels=tuple(MODELS),
    settings=SETTINGS,
    has_clients=False,
)
