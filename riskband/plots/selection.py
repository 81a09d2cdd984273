"""Figure of a choice among candidates: what is certified for each, what was measured, and which one was chosen.

Needs matplotlib, which is loaded on use; `riskband.plots.bands.save_figure` writes the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from riskband.functionals.distributions import RiskDistribution
from riskband.plots.bands import BOUNDS, MEASURED_POINT, UNSEEN_POINT, blank_figure, draw_legend_below, titled
from riskband.selection import CandidateBound, Selection
from riskband.wording import confidence, rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OTHERS = "#9db8d2"
_TARGET = "#96234a"
_TESTED: Mapping[str, Any] = {"color": "#444444", "marker": "D", "mfc": "white", "ms": 6, "ls": ""}
_ROW, _FRAME = 0.42, 2.2  # inches
_MOST_SHOWN = 60  # of more candidates, the figure shows those with the smallest bounds


def selection_figure(
    selection: Selection, *, unseen_risks: Mapping[str, npt.ArrayLike] | None = None, title: str = ""
) -> Figure:
    """One row for each candidate: the certified bound on its objective, the measured value, and the chosen one.

    Parameters
    ----------
    selection : Selection
        From `select`. In a fixed sequence nothing smaller than the target is certified: bars end there, and the bounds
        that were tested against it are hollow marks.
    unseen_risks : mapping of str to array_like, shape (num_unseen,), optional
        Under each candidate, true risks of clients that never answered (a simulation knows them).
    title : str
        Above the figure; of more than 60 candidates, those with the smallest bounds are shown, and it says so.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with `save_figure`.

    Raises
    ------
    ValueError
        If `unseen_risks` lacks a candidate, or risks are not in [0, 1].
    """
    unseen = None if unseen_risks is None else _unseen_values(selection, unseen_risks)
    candidates = _shown(selection)
    figure = blank_figure(8.6, _FRAME + _ROW * len(candidates))
    axes = figure.add_subplot()
    is_sequence = selection.method == "fixed_sequence"
    for row, candidate in enumerate(candidates):
        certified = certified_of(selection, candidate)
        if certified is not None:
            color = BOUNDS if candidate.name == selection.best else _OTHERS
            axes.plot([0.0, certified], [row, row], color=color, lw=9.0, solid_capstyle="butt")
            axes.annotate(rounded_up(certified, 3), (certified, row), (5, 0), textcoords="offset points", va="center")
        if is_sequence:
            axes.plot([candidate.bound], [row], **_TESTED)
        if unseen is not None:
            axes.plot([unseen[candidate.name]], [row], **UNSEEN_POINT)
        axes.plot([candidate.measured], [row], **MEASURED_POINT)
    num_unseen = max(map(np.size, unseen_risks.values())) if unseen_risks else 0
    _draw_legend(axes, selection, num_unseen=num_unseen)
    names = [candidate.name for candidate in candidates]
    axes.set_yticks(range(len(names)), names)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name == selection.best else "normal")
    ends = [candidate.bound for candidate in candidates] + [(unseen or {}).get(name, 0.0) for name in names]
    axes.set(xlim=(0.0, 1.12 * max([*ends, selection.target or 0.0])), ylim=(len(names) - 0.4, -0.6))
    axes.set_xlabel(f"{selection.objective} of the risks (risk: mean loss, 0 to 1); smaller is better")
    axes.grid(axis="x", alpha=0.25, lw=0.6)
    axes.set_axisbelow(True)
    num_hidden = len(selection.candidates) - len(candidates)
    hidden = f"{len(candidates)} of {len(selection.candidates)} candidates: those with the smallest bounds"
    whole_title = "\n".join(filter(None, [title, hidden if num_hidden else ""]))
    figure.suptitle(
        **titled("t", whole_title, () if selection.certificate is None else selection.certificate.assumptions)
    )
    draw_legend_below(figure)
    return figure


def _unseen_values(selection: Selection, unseen_risks: Mapping[str, npt.ArrayLike]) -> dict[str, float]:
    missing = [each.name for each in selection.candidates if each.name not in unseen_risks]
    if missing:
        raise ValueError(f"unseen_risks must hold every candidate, got none for {', '.join(missing)}; add them")
    values = {}
    for each in selection.candidates:
        risks = np.asarray(unseen_risks[each.name], dtype=np.float64)
        if risks.ndim != 1 or not risks.size or not np.all((risks >= 0.0) & (risks <= 1.0)):
            raise ValueError(f"unseen_risks must be risks in [0, 1], got other values for {each.name!r}; check them")
        values[each.name] = selection.objective.of_distribution(RiskDistribution.of_values(risks))
    return values


def _shown(selection: Selection) -> list[CandidateBound]:
    """The candidates with the smallest bounds, and the chosen one, in their order."""
    ranked = sorted(selection.candidates, key=lambda candidate: (candidate.name != selection.best, candidate.bound))
    names = {candidate.name for candidate in ranked[:_MOST_SHOWN]}
    return [candidate for candidate in selection.candidates if candidate.name in names]


def certified_of(selection: Selection, candidate: CandidateBound) -> float | None:
    """Return what the objective of a candidate is certified to be at most, None if nothing is.

    Bounds in a sequence do not hold together: there only the target is certified.
    """
    if selection.method == "fixed_sequence":
        return selection.target if candidate.is_certified else None
    return candidate.bound


def _draw_legend(axes: Axes, selection: Selection, *, num_unseen: int) -> None:
    """Labels of what was drawn, and the line of the target."""
    sure = f"probability {confidence(selection.delta)} (delta = {selection.delta:g})"
    is_sequence = selection.method == "fixed_sequence"
    what = "at most the target" if is_sequence else "at most this for unseen clients"
    if selection.best is not None:
        axes.plot([], [], color=BOUNDS, lw=9.0, label=f"chosen: {selection.best}")
    if selection.certificate is not None:
        label = f"{selection.certificate.validity}: {what}, all bars at once with {sure}"
        axes.plot([], [], color=_OTHERS, lw=9.0, label=label)
    if is_sequence:
        axes.plot([], [], label="bound tested against the target: no certificate", **_TESTED)
    if selection.target is not None:
        axes.axvline(selection.target, color=_TARGET, lw=1.2, ls="--", label=f"target {selection.target:g}")
    axes.plot([], [], label="measured by the clients that answered", **MEASURED_POINT)
    if num_unseen:
        axes.plot([], [], label=f"true value for {num_unseen} unseen clients (simulated)", **UNSEEN_POINT)
