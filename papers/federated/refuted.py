"""Theorems 5.2 and 5.3 of [RE] are false: the truth, the published bound and ours, over the number of clients.

Some clients have risk 1, all others 0. What K clients answer is then the number of bad ones alone, so that nothing is
simulated: how often a bound is false is a sum of binomial probabilities. Source: math §3.5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binom

import riskband as rb
from papers.experiment import Experiment, Request, Result
from papers.federated.curves import COLOURS, DELTA, PUBLISHED, SHARP, SYMBOLS, TRUTH, label
from riskband.plots.bands import blank_figure

SIZES = 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000
_NUM_EXAMPLES, _THRESHOLD = 1_000, 0.5
_USUAL = 0.05, 0.5, 0.95  # quantiles of the number of bad clients, between which a bound is drawn
_RARE = 1e-9  # numbers of bad clients that are less probable are left out
_ROUNDING = 1e-9


class Case(NamedTuple):
    """A divergence ball around a network with a share of bad clients."""

    divergence: str
    budget: float
    share: float
    of: str  # "mean risk" (Theorem 5.2) or "share of clients with risk ≥ 0.5" (Theorem 5.3): here the same number

    @property
    def truth(self) -> float:
        """Largest share of bad clients, which is also their mean risk, of a network in the ball."""
        return float(rb.binary_worst_case(self.share, divergence=self.divergence, budget=self.budget))

    def bound(self, num_bad: int, num_clients: int, method: str) -> float:
        """Return the bound that this network's answers give."""
        ball: dict[str, Any] = {"divergence": self.divergence, "budget": self.budget, "method": method}
        if self.of == MEAN:
            return float(rb.worst_case_mean(_band(num_bad, num_clients), **ball).value)
        return float(rb.worst_case_cdf(_band(num_bad, num_clients), **ball, thresholds=_THRESHOLD).value)


MEAN, SHARE = "mean risk", f"share of clients with risk ≥ {_THRESHOLD:g}"
CASES = {
    "kl-mean": Case("kl", 2.0, 0.01, MEAN),
    "kl-share": Case("kl", 1.0, 0.02, SHARE),
    "chi2-mean": Case("chi2", 4.0, 0.01, MEAN),
    "chi2-share": Case("chi2", 8.0, 0.02, SHARE),
}


@cache
def _band(num_bad: int, num_clients: int) -> rb.Band:
    risks = np.repeat([1.0, 0.0], [num_bad, num_clients - num_bad])
    return rb.band(rb.ClientRisks(risks, _NUM_EXAMPLES, binary=True), delta=DELTA, sides="lower")


def run(request: Request) -> Result:
    """Compute what networks of every size make of every case."""
    sizes = (request.clients,) if request.clients else SIZES[:3] if request.quick else SIZES
    panels = [_panel(name, CASES[name], sizes) for name in request.chosen(tuple(CASES))]
    rows = [
        {
            "panel": panel["name"],
            "clients": size,
            "truth": panel["truth"],
            **{bound["name"]: bound["median"][k] for bound in panel["bounds"]},
            **{f"{bound['name']} false": bound["false"][k] for bound in panel["bounds"]},
        }
        for panel in panels
        for k, size in enumerate(sizes)
    ]
    return {"delta": DELTA, "sizes": sizes, "panels": panels, "table": rows}


def _panel(name: str, case: Case, sizes: tuple[int, ...]) -> dict[str, Any]:
    bounds = []
    for method, validity in ((PUBLISHED, "refuted"), (SHARP, "certificate")):
        usual = [[case.bound(int(binom.ppf(q, n, case.share)), n, method) for n in sizes] for q in _USUAL]
        found = dict(zip(("low", "median", "high"), usual, strict=True))
        false = [failure_probability(case, n, method) for n in sizes]
        bounds.append({"name": method, "validity": validity, **found, "false": false})
    return {"name": name, **case._asdict(), "truth": case.truth, "bounds": bounds}


def failure_probability(case: Case, num_clients: int, method: str) -> float:
    """Return the share of networks whose bound is below the truth; bounds grow with the number of bad clients."""
    first, last = (int(binom.ppf(q, num_clients, case.share)) for q in (_RARE, 1.0 - _RARE))
    counts, least = range(first, last + 1), case.truth - _ROUNDING
    place = bisect_left(counts, least, key=lambda count: case.bound(count, num_clients, method))
    return float(binom.cdf(first + place - 1, num_clients, case.share))


def figure(result: Result) -> Figure:
    """Draw the bounds of each case over the number of clients, and below how often each is false."""
    panels, sizes = result["panels"], result["sizes"]
    drawn = blank_figure(2.9 * len(panels) + 0.8, 5.4)
    above, below = drawn.subplots(2, len(panels), sharex=True, squeeze=False, height_ratios=(3, 2))
    for bounds, shares, panel in zip(above, below, panels, strict=True):
        _draw(bounds, shares, panel, sizes)
        shares.axhline(result["delta"], color="#777777", ls=":", lw=1.2, label=f"δ = {result['delta']:g}")
    above[0].set_ylabel("worst network in the ball")
    below[0].set_ylabel("share of networks in which\nthe bound is false")
    entries = [entry for axes in (above[0], below[0]) for entry in zip(*axes.get_legend_handles_labels(), strict=True)]
    drawn.legend(*zip(*entries, strict=True), loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    drawn.suptitle(
        "[RE] Theorems 5.2 and 5.3 claim probability 0.95: with more clients they fail more often", fontsize="medium"
    )
    return drawn


def _draw(bounds: Axes, shares: Axes, panel: Mapping[str, Any], sizes: list[int]) -> None:
    bounds.axhline(panel["truth"], color=COLOURS[TRUTH], lw=2.2, label="truth, exact")
    for each in panel["bounds"]:
        color = COLOURS[each["name"]]
        bounds.plot(sizes, each["median"], color=color, lw=1.6, label=f"{label(each)} (median and 90 % of networks)")
        bounds.fill_between(sizes, each["low"], each["high"], color=color, alpha=0.2, lw=0)
        shares.plot(sizes, each["false"], color=color, lw=1.6, marker="o", ms=3)
    ball = f"{SYMBOLS[panel['divergence']]} ≤ {panel['budget']:g}, {panel['share']:.0%} of clients at risk 1"
    bounds.set_title(f"{panel['of']}\n{ball}", fontsize="small")
    shares.set(xscale="log", xlabel="clients")
    for axes in (bounds, shares):
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.25, lw=0.6)


REFUTED = Experiment(
    name="refuted",
    paper="[RE] Theorems 5.2 and 5.3: false, and with more clients more often",
    sets=(),
    run=run,
    figure=figure,
    panels=tuple(CASES),
)
