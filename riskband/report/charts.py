"""Charts of the report page: curves as paths of an SVG, in the colours of the page, whose points a reader can hover.

Matplotlib's SVG has its colours written in, which a dark page or a printed one cannot change, and no data to read off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from riskband.wording import rounded_down, rounded_up

WIDTH, HEIGHT = 680, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 46
_MOST_TICKS = 7
_HALF_HEAD = 3.5  # pixels: half the width of an arrow's head
_MOST_POINTS = 400  # of a curve: steps narrower than a pixel are one


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a chart, or an area if it has two sides."""

    name: str  # what stands in the legend
    kind: str  # its CSS class: "bound", "worst-0" to "worst-3", "measured"
    y: np.ndarray[Any, Any]  # shape (num_points,), its values at the chart's points; of an area the upper side
    lower: np.ndarray[Any, Any] | None = None  # shape (num_points,), the lower side of an area


@dataclass(frozen=True, eq=False)
class Chart:
    """Curves over one axis."""

    title: str  # this and the description: for the caption, and for who cannot see it
    description: str
    x_label: str
    y_label: str
    x: np.ndarray[Any, Any]  # shape (num_points,), increasing
    curves: tuple[Curve, ...]  # in the order of the legend
    # "after", "before", "": whether a value holds from its point to the next, from the one before to its point, or at
    # the points alone.
    steps: str = ""
    top: float = 1.0  # where the y axis ends
    bottom: float = 0.0  # and begins

    @property
    def view_box(self) -> str:
        """The size of the drawing."""
        return f"0 0 {WIDTH} {HEIGHT}"

    @property
    def frame(self) -> dict[str, float]:
        """Where the axes lie in it."""
        return {"left": _LEFT, "right": WIDTH - _RIGHT, "top": _TOP, "bottom": HEIGHT - _BOTTOM}

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Places and texts below the axis."""
        return [(self._across(at), f"{at:g}") for at in _round_numbers(float(self.x[0]), float(self.x[-1]))]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Places and texts beside the axis."""
        return [(self._up(at), f"{at:g}") for at in _round_numbers(self.bottom, self.top)]

    def path(self, curve: Curve) -> str:
        """Return the line of a curve, or the outline of an area, as the `d` of a path."""
        points = self._points(curve.y)
        if curve.lower is not None:
            points += self._points(curve.lower)[::-1]
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if curve.lower is not None else "")

    def dots(self, curve: Curve) -> list[tuple[float, float]]:
        """Return where the points of a curve lie that holds at its points alone."""
        return [] if self.steps else self._points(curve.y) + ([] if curve.lower is None else self._points(curve.lower))

    def data(self) -> dict[str, Any]:
        """Return what the page's script reads: points, the bounds there in words, rounded safely, and the frame."""
        return {
            "x": self.x.tolist(),  # all digits: the bounds are those at these points
            "rows": [self._said_at(index) for index in range(self.x.size)],
            "x_label": self.x_label,
            "steps": self.steps,
            "frame": self.frame,
        }

    def _said_at(self, index: int) -> list[str]:
        return [_said(curve, index) for curve in self.curves]

    def _points(self, values: np.ndarray[Any, Any]) -> list[tuple[float, float]]:
        places = [(self._across(x), self._up(y)) for x, y in zip(self.x.tolist(), values.tolist(), strict=True)]
        if not self.steps:
            return places
        corners = [places[0]]
        for (x, y), (next_x, next_y) in pairwise(places):
            corners += [(next_x, y), (next_x, next_y)] if self.steps == "after" else [(x, next_y), (next_x, next_y)]
        return corners

    def _across(self, x: float) -> float:
        low, high = float(self.x[0]), float(self.x[-1])
        return float(_LEFT + (x - low) / ((high - low) or 1.0) * (WIDTH - _LEFT - _RIGHT))

    def _up(self, y: float) -> float:
        share = min(max((y - self.bottom) / (self.top - self.bottom), 0.0), 1.0)
        return float(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM))


@dataclass(frozen=True, eq=False)
class Arrows(Chart):
    """Clients beside each other, each an arrow from one number to another, or a bar where both are one."""

    start: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0))  # shape (num_points,), where arrows begin
    words: tuple[str, ...] = ()  # what is said of each client

    def path(self, curve: Curve) -> str:
        """Return the arrows that end at a curve; NaN is none."""
        parts = []
        for x, start, end in zip(self.x.tolist(), self.start.tolist(), curve.y.tolist(), strict=True):
            if end == end:  # no NaN
                tip, back = f"{self._across(x):.1f} {self._up(end):.1f}", _HALF_HEAD * np.sign(end - start)
                head = f"l-{_HALF_HEAD} {back:g}M{tip}l{_HALF_HEAD} {back:g}"  # an SVG's y axis points downwards
                parts.append(f"M{self._across(x):.1f} {self._up(start):.1f}L{tip}{head}")
        return "".join(parts)

    def _said_at(self, index: int) -> list[str]:
        return [self.words[index]]


def _round_numbers(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two ends: at most eight, with the ends if they are such."""
    size = 10.0 ** np.floor(np.log10(high - low)) if high > low else 1.0
    step = next(step for part in (0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / (step := part * size) <= _MOST_TICKS)
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    return [float(round(index * step, 12)) + 0.0 for index in np.arange(first, last + 1)]


def thinned(points: np.ndarray[Any, Any], right: float) -> np.ndarray[Any, Any]:
    """Return increasing points from 0 to `right` with all jumps, but one for each pixel."""
    grid = np.unique(np.clip(np.concatenate([[0.0], points, [right]]), 0.0, right))
    kept = np.diff(np.floor(grid / right * _MOST_POINTS), prepend=-1.0) > 0
    kept[-1] = True
    return np.asarray(grid[kept])


def _said(curve: Curve, index: int) -> str:
    upper = f"{curve.name}: {rounded_up(curve.y[index])}"
    if curve.lower is None:
        return upper if curve.kind != "measured" else f"{curve.name}: {curve.y[index]:.4f}"
    return f"{curve.name}: {rounded_down(curve.lower[index])} to {rounded_up(curve.y[index])}"


def over_budgets(x: Sequence[float], uppers: Sequence[tuple[str, np.ndarray[Any, Any]]], **words: Any) -> Chart | None:
    """Return the chart of upper bounds over a budget: between two the larger one holds. Two have none."""
    if len(x) < 3:
        return None
    curves = tuple(Curve(name, f"worst-{index % 4}", y) for index, (name, y) in enumerate(uppers))
    highest = max(float(y.max()) for _, y in uppers)
    top = min(1.0, (np.floor(highest * 5.0) + 1.0) / 5.0)
    return Chart(x=np.asarray(x, dtype=float), curves=curves, steps="before", top=top, **words)
