"""[DG] Figures 2, 3, 5 and 6: the worst loss at every distance, above the losses of corrupted and rotated domains.

Three losses: cross-entropy in nats and the modified hinge, which are no losses in [0, 1] and give estimates only, and
the 0-1 loss, whose worst case is exact for the sample and exactly 1 at distance 1. Distances and domains are those of
`papers.domain_generalisation.domains` (Figures 1 and 4), for each method's own representation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from papers.domain_generalisation.domains import Domains, Seen, distances_of, domains
from papers.domain_generalisation.rotated_digits import ROWS, SETTINGS, Row, rows_of, trained
from papers.domain_generalisation.unbounded import UNBOUNDED_LOSSES, worst_mean_losses
from papers.experiment import Experiment, Request, Result
from riskband.plots.bands import blank_figure, draw_legend_below

LOSSES = {
    "cross_entropy": "mean cross-entropy (nats)\nworst case: estimate",
    "hinge": "mean modified hinge\nworst case: estimate",
    "error": "share of errors\nworst case: exact for the sample",
}
_CURVE = np.linspace(0, 2, 21)
"""The paper's 0, 0.2, …, 2, and the middles."""


def run(request: Request) -> Result:
    """Train the models, or read them, and measure every domain and the worst case at every distance."""
    given = domains(request)
    models = {row.name: measured(trained(request, row), row, given) for row in rows_of(request, quick=("wm", "wm+1.5"))}
    return {
        "validity": {"cross_entropy": "estimate", "hinge": "estimate", "error": "exact for the sample"},
        "models": models,
        "table": [_summary(found) for found in models.values()],
    }


def measured(model: nn.Module, row: Row, given: Domains) -> dict[str, Any]:
    """Return every domain's distance, in units of ρ_adv, and losses, and the curves of the worst ones."""
    found = distances_of(model, given.source, given.others, more=_hinge)
    rows = {
        name: {
            "distance": here["distance"],
            "cross_entropy": here["cross_entropy"],
            "hinge": here["hinge"],
            "error": 1 - here["accuracy"],
        }
        for name, here in found["domains"].items()
    }
    far = np.array([each["distance"] for each in rows.values()])
    asked = np.concatenate([_CURVE, far])
    worst = {
        "cross_entropy": _worst(model, given, "nats", asked * found["unit"]),
        "hinge": _worst(model, given, "hinge", asked * found["unit"]),
        "error": 1 - np.interp(asked, found["curve"]["distance"], found["curve"]["worst_accuracy"]),
    }
    exact = [1 - each["worst_accuracy"] for each in found["domains"].values()]
    worst["error"][len(_CURVE) :] = exact
    return {
        "label": row.label,
        "unit": found["unit"],
        "source": found["source"],
        "domains": {
            name: each | {f"worst_{loss}": float(worst[loss][len(_CURVE) + k]) for loss in LOSSES}
            for k, (name, each) in enumerate(rows.items())
        },
        "curve": {"distance": _CURVE.tolist(), **{loss: worst[loss][: len(_CURVE)].tolist() for loss in LOSSES}},
    }


def _hinge(seen: Seen) -> dict[str, float]:
    """Mean modified hinge."""
    hinge = UNBOUNDED_LOSSES["hinge"].per_example
    return {"hinge": float(hinge(torch.from_numpy(seen.logits), torch.from_numpy(seen.y)).mean())}


def _worst(model: nn.Module, given: Domains, loss: str, distances: np.ndarray) -> np.ndarray:
    return worst_mean_losses(model, given.source.x, given.source.y, loss=loss, distances=distances)


def _summary(found: Mapping[str, Any]) -> dict[str, Any]:
    rows, curve = found["domains"].values(), found["curve"]
    row: dict[str, Any] = {"model": found["label"], "unit": found["unit"]}
    for loss in LOSSES:
        row[f"{loss}_at_1"] = curve[loss][curve["distance"].index(1.0)]
        row[f"above_{loss}"] = sum(each[loss] > each[f"worst_{loss}"] + 1e-9 for each in rows)
    return row


def figure(result: Result) -> Figure:
    """Draw a column for each model and a row for each loss."""
    models = result["models"]
    page = blank_figure(3.4 * len(models) + 0.8, 9.0)
    grid = page.subplots(len(LOSSES), len(models), squeeze=False, sharex=True, sharey="row")
    for column, found in enumerate(models.values()):
        for row, (loss, words) in enumerate(LOSSES.items()):
            axes, is_named = grid[row, column], row == 0 and column == 0
            curve = found["curve"]
            axes.plot(
                curve["distance"],
                curve[loss],
                color="black",
                lw=1.8,
                label="worst case so far away" if is_named else None,
            )
            for is_angle, marker, colour, label in (
                (False, "o", "#3b6ea5", "corrupted sources, and other images"),
                (True, "^", "#d1701f", "30°, 45°, 60°, 75°"),
            ):
                own = [each for name, each in found["domains"].items() if name.endswith("°") == is_angle]
                own = [each for each in own if each["distance"] <= _CURVE[-1]]  # farther ones are in the numbers
                points = ([each["distance"] for each in own], [each[loss] for each in own])
                axes.plot(*points, marker, color=colour, ms=4, label=label if is_named else None)
            axes.grid(alpha=0.25, lw=0.6)
            axes.set_xlim(0, 2)
            if column == 0:
                axes.set_ylabel(words)
            if row == 0:
                axes.set_title(found["label"])
        grid[-1, column].set_xlabel(r"$W_2$ from the sources / $\rho_{adv}$")
    draw_legend_below(page)
    return page


EXPERIMENT = Experiment(
    name="dg-figures",
    paper="[DG] Figures 2, 3, 5, 6: worst-case loss at every distance, and domains below it",
    sets=("mnist",),
    run=run,
    figure=figure,
    panels=tuple(ROWS),
    settings=SETTINGS,
    has_clients=False,
)
