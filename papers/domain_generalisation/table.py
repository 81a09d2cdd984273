"""[DG] Table 1, its columns of rotated digits: accuracy, loss, and the worst loss of any distribution so far away.

The worst loss is what WC-DG reaches on 1,000 test images of the sources, in nats without a cap: an estimate from below
of what the sample allows, no certificate. The paper's other columns need PACS and a network trained on ImageNet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from papers.domain_generalisation.domains import distances_of, domains
from papers.domain_generalisation.rotated_digits import ROWS, SETTINGS, Row, rows_of, trained
from papers.domain_generalisation.unbounded import worst_mean_losses
from papers.experiment import Experiment, Request, Result
from protocol.examples import Examples
from riskband.plots.bands import blank_figure, draw_legend_below

ANGLES = ("30°", "45°")
PAPER = {
    "wm": ((0.9211, 0.26, 1.87), (0.6559, 1.21, 3.76)),
    "wm+0.5": ((0.8961, 0.38, 0.85), (0.6112, 1.24, 2.02)),
    "wm+1": ((0.8825, 0.52, 0.80), (0.5426, 1.36, 1.78)),
    "wm+1.5": ((0.8690, 0.61, 0.87), (0.5446, 1.41, 1.77)),
    "g2dm": ((0.9386, 0.24, 4.54), (0.7058, 1.25, 7.21)),
    "g2dm+0.5": ((0.9324, 0.23, 3.27), (0.6923, 1.14, 5.34)),
    "g2dm+1": ((0.9043, 0.31, 2.24), (0.6372, 1.24, 4.06)),
    "g2dm+1.5": ((0.8794, 0.39, 1.48), (0.6008, 1.25, 2.84)),
}
"""The paper's accuracy, loss and worst-case loss at each of `ANGLES`; their gaps are rounded differences."""


def run(request: Request) -> Result:
    """Train the models, or read them, and measure them at both angles."""
    given = domains(request)
    others = {angle: given.others[angle] for angle in ANGLES}
    rows = rows_of(request, quick=("wm", "wm+1.5"))
    models = {row.name: measured(trained(request, row), row, given.source, others) for row in rows}
    return {
        "validity": "estimate",
        "models": models,
        "table": [
            {"model": found["label"], "angle": angle} | found["angles"][angle] | _published(name, k)
            for name, found in models.items()
            for k, angle in enumerate(ANGLES)
        ],
    }


def measured(model: nn.Module, row: Row, source: Examples, others: dict[str, Examples]) -> dict[str, Any]:
    """Return the numbers of one model at each angle; losses are in nats, distances in units of ρ_adv."""
    found = distances_of(model, source, others)
    far = np.array([found["domains"][angle]["distance"] for angle in others])
    worst = worst_mean_losses(model, source.x, source.y, loss="nats", distances=far * found["unit"])
    angles = {}
    for angle, value in zip(others, worst, strict=True):
        here = found["domains"][angle]
        angles[angle] = {
            "distance": here["distance"],
            "accuracy": here["accuracy"],
            "loss": here["cross_entropy"],
            "worst_loss": float(value),
            "gap": float(value) - here["cross_entropy"],
        }
    return {"label": row.label, "source": found["source"], "unit": found["unit"], "angles": angles}


def _published(name: str, angle: int) -> dict[str, float | str]:
    values = PAPER[name][angle] if name in PAPER else ("", "", "")
    return dict(zip(("paper_accuracy", "paper_loss", "paper_worst_loss"), values, strict=True))


def figure(result: Result) -> Figure:
    """Draw worst loss against accuracy at each angle: ours filled, the paper's hollow, factors of a method joined."""
    page = blank_figure(9.0, 5.0)
    for k, (angle, axes) in enumerate(zip(ANGLES, page.subplots(1, len(ANGLES)), strict=True)):
        _draw(axes, result["models"], angle, k, is_named=k == 0)
        axes.set(xlabel="accuracy", title=f"digits at {angle}", ylim=(0, None))
        axes.grid(alpha=0.25, lw=0.6)
        if k == 0:
            axes.set_ylabel("worst mean cross-entropy at that distance\n(nats; estimate)")
    draw_legend_below(page)
    return page


_COLOURS = {"wm": "#3b6ea5", "g2dm": "#d1701f", "cdan": "#4f8f4f", "vrex": "#7a5ea8"}


def _draw(axes: Axes, models: dict[str, Any], angle: str, k: int, *, is_named: bool) -> None:
    for method, colour in _COLOURS.items():
        own = [name for name in models if ROWS[name].method == method]
        if not own:
            continue
        here = [models[name]["angles"][angle] for name in own]
        label = f"{method.upper()}, ours (F = {', '.join(f'{ROWS[name].factor:g}' for name in own)})"
        points = ([each["accuracy"] for each in here], [each["worst_loss"] for each in here])
        axes.plot(*points, "o-", color=colour, label=label if is_named else None)
        paper = [PAPER[name][k] for name in own if name in PAPER]
        if paper:
            points = ([row[0] for row in paper], [row[2] for row in paper])
            label = f"{method.upper()}, the paper"
            axes.plot(*points, "o--", color=colour, mfc="white", alpha=0.8, label=label if is_named else None)


EXPERIMENT = Experiment(
    name="dg-table",
    paper="[DG] Table 1, rotated digits: accuracy and worst-case loss with DR-DG and without",
    sets=("mnist",),
    run=run,
    figure=figure,
    panels=tuple(ROWS),
    settings=SETTINGS,
    has_clients=False,
)
