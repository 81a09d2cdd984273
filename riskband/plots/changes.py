"""Figure of two models on the same clients: each client from its old risk to its new one, and what is certified.

Needs matplotlib, which is loaded on use; `riskband.plots.bands.save_figure` writes the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from riskband.certificate import Certificate
from riskband.plots.bands import ANSWERS, BOUNDS, WORST, blank_figure, draw_legend_below, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _PER_LINE = 9.0, 105  # inches, and characters below the figure


def changes_figure(
    changes: npt.ArrayLike,
    *,
    old_risks: npt.ArrayLike | None = None,
    certificates: Sequence[Certificate] = (),
    title: str = "",
) -> Figure:
    """Each client as an arrow from its old risk to its new one, from who gained most to who lost most.

    Parameters
    ----------
    changes : array_like, shape (num_clients,)
        New risk less old one of each client, in [-1, 1].
    old_risks : array_like, shape (num_clients,), optional
        In [0, 1]. Without them arrows begin at 0.
    certificates : sequence of Certificate
        What is said of unseen clients, in words below the arrows.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with `save_figure`.
    """
    change = np.asarray(changes, dtype=np.float64)
    old = np.zeros(change.size) if old_risks is None else np.asarray(old_risks, dtype=np.float64)
    order = np.lexsort((old, change))
    change, old = change[order], old[order]
    figure = blank_figure(_WIDTH, 4.6 + 0.3 * len(certificates))
    axes, place = figure.add_subplot(), np.arange(1, change.size + 1)
    size = float(np.clip(400.0 / change.size, 2.0, 8.0))  # so that neighbours of many do not cover each other
    for word, color, marker, which in (
        ("better", BOUNDS, "v", change < 0.0),
        ("as before", ANSWERS, "_", change == 0.0),
        ("worse", WORST[2], "^", change > 0.0),
    ):
        if np.any(which):
            x, low, high = place[which], old[which], (old + change)[which]
            axes.vlines(x, low, high, color=color, lw=min(2.0, 0.4 * size))
            label = f"{np.sum(which)} of {change.size} clients: {word}"
            axes.plot(x, high, color=color, marker=marker, ms=size, ls="", label=label)
    said = [fill(each.statement, _PER_LINE) for each in certificates]
    axes.set(xlabel="\n".join(["clients, from who gained most to who lost most", *said]), xticks=[])
    axes.set_ylabel("change of the risk" if old_risks is None else "risk (mean loss), from old to new")
    axes.grid(axis="y", alpha=0.25, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_title(**titled("label", title, certificates[0].assumptions if certificates else ()))
    draw_legend_below(figure)
    return figure
