"""Figures 6 (left) and 9 of [RE]: target networks with other shares of resolutions or colours, in χ² and KL balls.

The truth is exact: a model's loss on every image in every version gives the risk of any client, and a million target
clients the distribution of their risks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import riskband as rb
from papers.experiment import Experiment, Request, Result
from papers.federated import curves
from papers.federated.curves import DELTA, PUBLISHED, SHARP, TRUTH
from papers.networks import trained
from riskband.checks import FloatArray
from worlds.loss_table import LossTable, loss_table
from worlds.population import Population, PopulationSpec
from worlds.shifts import ColourShift, ResolutionShift

_LOG = logging.getLogger(__name__)
KINDS = ("resolution", "colour")
PANELS = tuple(f"{kind}-{divergence}" for kind in KINDS for divergence in ("chi2", "kl"))
BUDGETS_OF_FIGURE_6 = {"resolution-chi2": (0.3,), "resolution-kl": (0.2,), "colour-chi2": (0.7,), "colour-kl": (0.3,)}
BUDGETS_OF_FIGURE_9 = {
    name: (0.1, 0.2, 0.3, 0.5, 0.7) if "chi2" in name else (0.05, 0.1, 0.2, 0.3, 0.5) for name in PANELS
}

_SEARCHED = np.geomspace(1e-4, 10.0, 201)  # budgets, for the least that covers
_STREAM = 7  # of no network of `worlds.population`
_CHUNK = 100_000


def source_spec(request: Request, kind: str) -> PopulationSpec:
    """Return the source network of a kind; the target network is its `reversed` one."""
    shift: ResolutionShift | ColourShift
    if kind == "resolution":
        bundled, shift = "digits", ResolutionShift(levels=(2, 3, 4, 5, 6, 8)) if request.quick else ResolutionShift()
    else:
        # The ranges are read off the authors' figure: about 50 and 200 of 1000 examples on each level.
        levels = (0.0, 0.2, 0.8, 1.0) if request.quick else ColourShift.levels
        bundled, shift = "colour-digits", ColourShift(levels=levels, low=(0.1, 0.3))
    return PopulationSpec(
        dataset=bundled if request.quick else request.dataset("cifar10"),
        seed=request.seed,
        examples_per_client=200 if request.quick else 1000,
        shifts=(shift,),
    )


def looked_up(table: LossTable, population: Population, num_clients: int) -> FloatArray:
    """Return the mean loss of each client's own examples, (num_clients,), from a table of the population's versions."""
    return np.array([table.losses_of(*population.client_rows(k)).mean() for k in range(num_clients)])


def exact_risks(spec: PopulationSpec, table: LossTable, num_clients: int, *, seed: int) -> FloatArray:
    """Return the exact risks of clients drawn as those of a network with one shift of levels, (num_clients,).

    All at once: `Population.shift` draws them one by one, from the same law.
    """
    (shift,) = spec.shifts
    assert isinstance(shift, ResolutionShift | ColourShift)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAM, int(shift.reverse))))
    found = []
    for start in range(0, num_clients, _CHUNK):
        shares = rng.standard_gamma(shift.parameters(rng, num_clients=min(_CHUNK, num_clients - start)))
        found.append(table.risks(None, shares / shares.sum(axis=1, keepdims=True)))
    return np.concatenate(found)


def run(request: Request, *, budgets: Mapping[str, tuple[float, ...]]) -> Result:
    """Measure the source clients of both kinds of shift, and bound the risks of the target network."""
    chosen = request.chosen(PANELS)
    networks = {kind: _networks(request, kind) for kind in KINDS if any(name.startswith(kind) for name in chosen)}
    panels = [_panel(networks[name.partition("-")[0]], name, budgets[name]) for name in chosen]
    rows = [
        {
            "panel": panel["name"],
            "D measured": panel["divergence"]["measured_10"],
            "D exact": panel["divergence"]["exact_10"],
            "50 bins": panel["divergence"]["exact_50"],
            "truth": panel["curves"][0]["mean"],
            "published": [round(each["mean"], 3) for each in panel["curves"] if each["name"] == PUBLISHED],
            "sharp": [round(each["mean"], 3) for each in panel["curves"] if each["name"] == SHARP],
            "largest that fails": panel["largest_failing"][SHARP],
            "sharp covers from": panel["sharp_covers_from"],
        }
        for panel in panels
    ]
    return {
        "delta": DELTA,
        "networks": {kind: each["numbers"] for kind, each in networks.items()},
        "panels": panels,
        "table": rows,
    }


def _networks(request: Request, kind: str) -> dict[str, Any]:
    """Train, make the loss table, and measure both networks."""
    start = time.process_time()
    source = source_spec(request, kind)
    target = replace(source.reversed(), network="target")
    num_training, num_epochs = (10, 20) if request.quick else (25, 5)
    model = trained(source, num_clients=num_training, num_epochs=num_epochs, cache=request.cache)
    trained_at = time.process_time()
    _LOG.info("%s: the loss of every image in every version", kind)
    data = Population(source).data
    table = loss_table(model, data.x_pool, data.y_pool, source.versions)
    num_clients = request.num_clients(full=1000, quick=100)
    measured = [looked_up(table, Population(spec), num_clients) for spec in (source, target)]
    exact = [
        exact_risks(spec, table, 100_000 if request.quick else 1_000_000, seed=request.seed)
        for spec in (source, target)
    ]
    numbers = {
        "num_clients": num_clients,
        "num_examples": source.examples_per_client,
        "accuracy_of_versions": {
            version.name: float(1.0 - losses.mean())
            for version, losses in zip(table.versions, table.losses, strict=True)
        },
        "accuracy_least_median_most": {
            name: np.quantile(1.0 - risks, (0.0, 0.5, 1.0)).tolist()
            for name, risks in zip(("source", "target"), measured, strict=True)
        },
        "seconds": {"training": round(trained_at - start, 1), "other": round(time.process_time() - trained_at, 1)},
    }
    return {"numbers": numbers, "measured": measured, "exact": exact}


def _panel(networks: Mapping[str, Any], name: str, budgets: tuple[float, ...]) -> dict[str, Any]:
    (source, target), exact = networks["measured"], networks["exact"]
    divergence = name.rpartition("-")[2]
    band = rb.band(rb.ClientRisks(source, networks["numbers"]["num_examples"]), delta=DELTA, sides="lower")
    thresholds = curves.thresholds_of(source, target)
    truth = curves.curve(
        TRUTH, curves.share_at_least(exact[1], thresholds), validity="exact risks of the target network"
    )
    bounds = [
        curves.worst_case_curve(method, band, thresholds, divergence=divergence, budget=budget, method=method)
        for method in (PUBLISHED, SHARP)
        for budget in budgets
    ]
    failing = [each for each in bounds if not curves.covers(each, truth)]
    estimate = partial(rb.divergence_estimate, divergence=divergence)
    found = {
        "measured_10": estimate(source, target, bins=10),
        "exact_10": estimate(*exact, bins=10),
        "exact_50": estimate(*(ranks_in(exact[0], risks) for risks in exact), bins=50),
    }
    return {
        "name": name,
        "title": f"{name.partition('-')[0]}, {curves.SYMBOLS[divergence]}",
        "budgets": f"{curves.SYMBOLS[divergence]} budget",
        "thresholds": thresholds.tolist(),
        "curves": [truth, *bounds],
        # Bins are equally wide, but for the last, equally likely in the source. Infinite where one holds target
        # clients only; JSON has no such number.
        "divergence": {key: value if np.isfinite(value) else "infinite" for key, value in found.items()},
        "largest_failing": {
            method: max((each["budget"] for each in failing if each["name"] == method), default=None)
            for method in (PUBLISHED, SHARP)
        },
        "sharp_covers_from": _covers_from(band, thresholds, truth, divergence),
    }


def ranks_in(source: FloatArray, risks: FloatArray) -> FloatArray:
    """Return the share of the source's risks that are at most each risk: bins of these are equally likely there."""
    return np.asarray(np.searchsorted(np.sort(source), risks, side="right") / len(source))


def _covers_from(band: rb.Band, thresholds: FloatArray, truth: Mapping[str, Any], divergence: str) -> float | None:
    """Return the least budget of a fine grid, 0 included, from which on the bound covers the truth; None if none."""
    budgets = np.append(0.0, _SEARCHED)
    bounds = rb.worst_case_cdf(band, divergence=divergence, budget=budgets, thresholds=thresholds)
    is_covering = [curves.covers({"values": row}, truth) for row in np.asarray(bounds.value)]
    first = len(budgets) - next((n for n, good in enumerate(reversed(is_covering)) if not good), len(budgets))
    return float(budgets[first]) if first < len(budgets) else None


def figure(result: Result, *, number: int) -> Figure:
    """Draw one panel for each shift and divergence."""
    return curves.panels_figure(
        result["panels"],
        num_columns=2,
        title=f"[RE] Figure {number}: target networks within f-divergence budgets, δ = 0.05",
    )


FIGURE_6 = Experiment(
    name="fig6",
    paper="[RE] Figure 6 (left): target networks of other resolutions and colours, one budget for each divergence",
    sets=("cifar10",),
    run=partial(run, budgets=BUDGETS_OF_FIGURE_6),
    figure=partial(figure, number=6),
    panels=PANELS,
)
FIGURE_9 = Experiment(
    name="fig9",
    paper="[RE] Figure 9: the same with five budgets for each divergence",
    sets=("cifar10",),
    run=partial(run, budgets=BUDGETS_OF_FIGURE_9),
    figure=partial(figure, number=9),
    panels=PANELS,
)
