"""A synthetic twin of the group table ([DC] Table 1), whose truth is known.

The paper scales the log-odds of a toxicity model by a factor, one hypothesis each, and bounds the mean Brier loss of
four groups plus the largest gap of their smoothed medians. Its comments cannot be had here. In the twin a comment of
group g has log-odds v ~ N(0, spread_g²), and its label is the sign of v, but for a share flipped_g: then the loss, its
mean and its quantiles are known in closed form. Shares and spreads are set so that the truth is about the paper's
"empirical" row. DKW and Berk-Jones are those of the paper; levels tuned on a pilot stand against its NN-Opt., which is
tuned on the very losses that it bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import expit, ndtri

import riskband as rb
from papers.experiment import Experiment, Request, Result
from riskband.plots.bands import blank_figure, draw_legend_below

DELTA, MEDIAN_WIDTH = 0.05, 0.01
MEDIAN = f"smoothed_median:{MEDIAN_WIDTH:g}"
MEASURES = ("mean of groups", "largest gap", "total")
PAPER = {
    ("dkw", 100): (0.36795, 0.90850, 1.27645),
    ("berk_jones", 100): (0.34532, 0.07549, 0.42081),
    ("tuned", 100): (0.32669, 0.01612, 0.34281),
    ("dkw", 200): (0.32236, 0.96956, 1.29193),
    ("berk_jones", 200): (0.31165, 0.00666, 0.31831),
    ("tuned", 200): (0.30619, 0.00292, 0.30911),
}
"""Bounds of [DC] Table 1 on `MEASURES`; "tuned" is its NN-Opt., against levels tuned on a pilot here."""
EMPIRICAL = {100: (0.20395, 0.00004, 0.20399), 200: (0.20148, 0.00010, 0.20158)}


@dataclass(frozen=True)
class Group:
    """Comments of a group."""

    flipped: float
    """Share of labels against the sign of the log-odds, in (0, 0.4)."""
    spread: float
    """Standard deviation of the log-odds."""

    def draw(self, rng: np.random.Generator, number: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Draw |v| of some comments, and whether their labels are flipped; both (number,)."""
        return np.abs(self.spread * rng.standard_normal(number)), rng.random(number) < self.flipped

    def mean(self, factor: float) -> float:
        """Mean loss, exact up to the quadrature over |v|."""
        level = (np.arange(20_000) + 0.5) / 20_000
        size = self.spread * ndtri(0.5 + level / 2)
        right, wrong = (np.mean(expit(sign * factor * size) ** 2) for sign in (-1, 1))
        return float((1 - self.flipped) * right + self.flipped * wrong)

    def smoothed_median(self, factor: float) -> float:
        """Mean of the quantiles around the median, weighted as in the paper.

        Below 1 − flipped, far above the median, quantiles are those of comments whose labels are not flipped.
        """
        level = 0.5 + MEDIAN_WIDTH * np.linspace(-6, 6, 2001)
        quantile = expit(-factor * self.spread * ndtri(1 - level / (2 * (1 - self.flipped)))) ** 2
        return float(np.average(quantile, weights=np.exp(-(((level - 0.5) / MEDIAN_WIDTH) ** 2))))


GROUPS: Mapping[str, Group] = {
    "black female": Group(0.214, 5.0),
    "white female": Group(0.204, 5.2),
    "black male": Group(0.209, 5.1),
    "white male": Group(0.199, 5.3),
}


def loss(size: NDArray[np.float64], flipped: NDArray[np.bool_], factor: float) -> NDArray[np.float64]:
    """Brier loss of comments with log-odds ±`size` times a factor."""
    return np.asarray(expit(np.where(flipped, 1, -1) * factor * size) ** 2)


def truth(factor: float) -> dict[str, float]:
    """Return what is bounded, of one hypothesis."""
    medians = [group.smoothed_median(factor) for group in GROUPS.values()]
    mean, gap = float(np.mean([group.mean(factor) for group in GROUPS.values()])), max(medians) - min(medians)
    return dict(zip(MEASURES, (mean, gap, mean + gap), strict=True))


def run(request: Request) -> Result:
    """Bound every hypothesis by every method at both sizes; each method chooses the smallest of its totals."""
    num_hypotheses = 5 if request.quick else 50
    factors = np.linspace(0.25, 2.0, num_hypotheses)
    sizes = (request.clients,) if request.clients else (100,) if request.quick else (100, 200)
    rows = []
    for number in sizes:
        rng = np.random.default_rng([request.seed, number])
        drawn = {name: group.draw(rng, number) for name, group in GROUPS.items()}
        for method, levels in _methods(rng).items():
            bounds = [_bounds(drawn, factor, levels, delta=DELTA / num_hypotheses) for factor in factors]
            best = int(np.argmin([each["total"][1] for each in bounds]))
            rows.append(_row(number, method, factors[best], bounds[best]))
    return {
        "delta": DELTA,
        "groups": {name: {"flipped": group.flipped, "spread": group.spread} for name, group in GROUPS.items()},
        "validity": "certificate: all hypotheses, groups and measures of one method at once",
        "paper": [{"method": method, "n": number, "bounds": list(row)} for (method, number), row in PAPER.items()],
        "paper_empirical": {str(number): list(row) for number, row in EMPIRICAL.items()},
        "rows": rows,
        "table": [_shown(row) for row in rows],
    }


def _methods(rng: np.random.Generator) -> dict[str, Any]:
    """Levels by name; the last are tuned on comments of their own, which no bound is read off."""
    size, flipped = GROUPS["black female"].draw(rng, 1000)
    tuned = rb.OptimisedLevels(loss(size, flipped, 1.0), {"mean": 1.0, MEDIAN: 1.0})
    return {"dkw": "dkw", "berk_jones": "berk_jones", "tuned": tuned}


def _bounds(
    drawn: Mapping[str, tuple[NDArray[np.float64], NDArray[np.bool_]]], factor: float, method: Any, *, delta: float
) -> dict[str, tuple[float, float]]:
    """Both ends of each of `MEASURES`, all at once."""
    losses = {name: loss(size, flipped, factor) for name, (size, flipped) in drawn.items()}
    answers = rb.ClientRisks(np.concatenate(list(losses.values())), 1, binary=False)
    labels = [name for name, values in losses.items() for _ in values]
    bands = rb.group_bands(answers, labels, delta=delta, local="observed", method=method)
    asked = ("weighted_group_mean", "mean"), ("largest_gap", MEDIAN)
    found = [rb.group_certificate(bands, *each) for each in asked]
    mean, gap = ((float(np.asarray(each.lower)), float(each.value)) for each in found)
    return dict(zip(MEASURES, (mean, gap, (mean[0] + gap[0], mean[1] + gap[1])), strict=True))


def _row(number: int, method: str, factor: float, bounds: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    known = truth(factor)
    return {
        "n": number,
        "method": method,
        "factor": float(factor),
        "bounds": {name: list(ends) for name, ends in bounds.items()},
        "truth": known,
        "holds": all(lower <= known[name] <= upper for name, (lower, upper) in bounds.items()),
    }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    paper = PAPER.get((row["method"], row["n"]))
    found: dict[str, Any] = {"n": row["n"], "method": row["method"]}
    for place, name in enumerate(MEASURES):
        paper_says = "-" if paper is None else paper[place]
        found |= {name: row["bounds"][name][1], f"{name}: truth": row["truth"][name], f"{name}: paper": paper_says}
    return {**found, "holds": row["holds"]}


def figure(result: Result) -> Figure:
    """Draw the certified totals in their two parts, beside the truth and the paper's bounds."""
    drawn = blank_figure(9.0, 3.8)
    rows = result["rows"]
    paper = {(each["method"], each["n"]): each["bounds"] for each in result["paper"]}
    axes = drawn.subplots()
    for place, row in enumerate(reversed(rows)):
        mean, gap = (row["bounds"][name][1] for name in MEASURES[:2])
        is_first = place == 0
        axes.barh(place, mean, color="#3b6ea5", label="certificate: mean of the groups at most" if is_first else "")
        label = "certificate: largest gap of medians at most" if is_first else ""
        axes.barh(place, gap, left=mean, color="#9db8d2", label=label)
        axes.plot(row["truth"]["total"], place, "o", color="#d1701f", mec="white", label="truth" if is_first else "")
        if (row["method"], row["n"]) in paper:
            total = paper[row["method"], row["n"]][2]
            label = "bound of the paper, on its data (as published)" if is_first else ""
            axes.plot(total, place, "k|", ms=14, mew=1.8, label=label)
    names = [f"{row['method'].replace('_', '-')}, n = {row['n']}" for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), names)
    axes.set(xlabel="mean Brier loss of four groups + largest gap of their smoothed medians")
    axes.grid(axis="x", alpha=0.25, lw=0.6)
    axes.set_title(f"the hypothesis with the smallest certified total; delta = {result['delta']:g}", fontsize="medium")
    draw_legend_below(drawn)
    return drawn


GROUP_TABLE = Experiment(
    name="group-table",
    paper="[DC] Table 1: four groups, on a synthetic twin whose truth is known",
    sets=(),
    run=run,
    figure=figure,
)
