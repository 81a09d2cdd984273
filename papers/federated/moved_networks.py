"""Figures 7 and 10 of [RE]: networks whose clients were moved further, within a Wasserstein budget.

Distances are those of the network's representations before its linear head, squared: there the largest 0-1 risk within
a budget is exact. The budget is the measured distance of clients that nobody asks from what they are moved to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import nn

import riskband as rb
from papers.domain_generalisation.domains import seen_by
from papers.experiment import Experiment, Request, Result
from papers.federated import curves
from papers.federated.curves import DELTA, PUBLISHED, SHARP, TRUTH
from papers.federated.unseen_clients import TRAINING_CLIENTS, population_spec, trained_for
from riskband.adversaries.answers import adversarial_answers
from riskband.answers.concave_curves import network_curve
from riskband.checks import FloatArray
from strategies.wasserstein import radii_grid
from worlds.population import Population, PopulationSpec
from worlds.shifts import RowAffineShift
from worlds.targets import transport_cost

_LOG = logging.getLogger(__name__)
FACTORS = (1.25, 1.5, 2.0, 3.0)
RATIOS_OF_FIGURE_7, RATIOS_OF_FIGURE_10 = (1.0,), (0.25, 0.5, 1.0, 2.0)
PANELS = tuple(f"moved-{factor:g}" for factor in FACTORS)

_ORDER, _NORM = 2, "l2"
_NUM_RADII = 100


@dataclass(frozen=True, eq=False)
class Moved:
    """Clients that nobody asked, their shift made stronger: transport costs and risks after it, (num_clients,)."""

    factor: float
    costs: FloatArray
    risks: FloatArray

    @property
    def distance(self) -> float:
        """Mean cost of the moves: it bounds the distance of the networks, up to the sampling of clients."""
        return float(self.costs.mean())


def run(request: Request, *, ratios: tuple[float, ...]) -> Result:
    """Strengthen the shift of unseen clients by every factor; bound their risks from what other clients answered."""
    start = time.process_time()
    dataset = "digits" if request.quick else "cifar10"
    num_clients = request.num_clients(full=300, quick=40)
    chosen = request.chosen(PANELS)
    factors = [factor for factor, name in zip(FACTORS, PANELS, strict=True) if name in chosen]
    model, spec = trained_for(request, dataset, "feature"), population_spec(request, dataset, "feature")
    _LOG.info("moving %d clients by %d factors", num_clients, len(factors))
    networks = moved_networks(model, replace(spec, network="unseen"), factors, num_clients=num_clients)
    budgets = np.unique([ratio * network.distance for network in networks for ratio in ratios])
    source = Population(spec)
    _LOG.info("asking %d clients at %d budgets", num_clients, len(budgets))
    answers = adversarial_answers(
        model,
        ((held.x, held.y) for held in map(source.client, range(num_clients))),
        radii=radii_grid(budgets, num_radii=_NUM_RADII),
        multipliers=rb.default_multipliers(budgets),
        order=_ORDER,
        norm=_NORM,
    )
    panels = [_panel(answers, network, ratios) for network in networks]
    rows = [
        {
            "panel": panel["name"],
            "distance": panel["distance"],
            "accuracy": panel["accuracy"],
            "mean risk": panel["means"]["truth"],
            "certified": panel["means"]["certified"],
            "Theorem 6.3": panel["means"]["published"],
            "bisection": panel["means"]["empirical worst case"],
            "covered": panel["covered"],
        }
        for panel in panels
    ]
    clean = 1.0 - answers.clean.values
    return {
        "delta": DELTA,
        "num_clients": num_clients,
        "num_examples": spec.examples_per_client,
        "source_accuracy": float(clean.mean()),
        "source_accuracy_sd": float(clean.std()),
        "panels": panels,
        "table": rows,
        "seconds": round(time.process_time() - start, 1),
    }


def moved_networks(
    model: nn.Module, spec: PopulationSpec, factors: Sequence[float], *, num_clients: int
) -> list[Moved]:
    """Return, for each factor, the clients of a network whose only shift, row-affine, is that many times as strong.

    Nothing else changes: client k holds the same images, and what it drew is multiplied by the factor.
    """
    (shift,) = spec.shifts
    assert isinstance(shift, RowAffineShift)
    before = Population(spec)
    after = [
        Population(replace(spec, shifts=(RowAffineShift(factor * shift.matrix_std, factor * shift.offset_std),)))
        for factor in factors
    ]
    costs, risks = np.empty((2, len(factors), num_clients))
    for k in range(num_clients):
        held = before.client(k)
        start = seen_by(model, held)
        even = np.full(len(held.y), 1 / len(held.y))
        for row, population in enumerate(after):
            moved = seen_by(model, population.client(k))
            costs[row, k] = transport_cost(start.z, moved.z, held.y, even, order=_ORDER, norm=_NORM)
            risks[row, k] = moved.is_wrong.mean()
    return [Moved(*each) for each in zip(factors, costs, risks, strict=True)]


def _panel(answers: rb.AdversarialAnswers, network: Moved, ratios: tuple[float, ...]) -> dict[str, Any]:
    # Of clients that did not answer: what is asked of the answers must not depend on them. Up to 1, as bounds are
    # above all risks that these clients have.
    thresholds = curves.thresholds_of(np.maximum(network.risks, 1e-6), np.ones(1))
    budgets = np.array(ratios) * network.distance
    found = rb.wasserstein_cdf(answers, delta=DELTA, cost_budget=budgets, thresholds=thresholds)
    truth = curves.curve(TRUTH, curves.share_at_least(network.risks, thresholds), validity="measured by moved clients")
    bounds = [
        curves.curve(SHARP, values, validity=found.validity, budget=budget, ratio=ratio)
        for ratio, budget, values in zip(ratios, budgets.tolist(), np.asarray(found.value), strict=True)
    ]
    plain = [
        curves.curve(
            PUBLISHED,
            plotted_shares(answers, budget, thresholds),
            validity="estimate",
            budget=float(budget),
            ratio=ratio,
        )
        for ratio, budget in zip(ratios, budgets, strict=True)
    ]
    return {
        "name": f"moved-{network.factor:g}",
        "title": f"shift × {network.factor:g}",
        "budgets": "budget ÷ distance",
        "distance": network.distance,
        "accuracy": float(1.0 - network.risks.mean()),
        "accuracy_sd": float(network.risks.std()),
        "thresholds": thresholds.tolist(),
        "curves": [truth, *plain, *bounds],
        "means": _means(answers, network),
        "covered": all(curves.covers(each, truth) for each in bounds if each["ratio"] >= 1.0),
        "covered_below": {f"{each['ratio']:g}": curves.covers(each, truth) for each in bounds if each["ratio"] < 1.0},
    }


def _means(answers: rb.AdversarialAnswers, network: Moved) -> dict[str, float]:
    """Return the mean risk at the network's distance: the truth, certified, as published, and the plug-in value."""
    certified = rb.wasserstein_mean(answers, delta=DELTA, cost_budget=network.distance)
    # The theorem's constant bounds the cost between any two clients; the largest move seen flatters it.
    published = rb.wasserstein_published(
        answers, delta=DELTA, cost_budget=network.distance, cost_bound=float(network.costs.max())
    )
    return {
        "truth": float(network.risks.mean()),
        "certified": float(certified.value),
        "published": float(published.value),
        "empirical worst case": float(network_curve(answers.curves)(network.distance)),
    }


def plotted_shares(answers: rb.AdversarialAnswers, budget: float, thresholds: FloatArray) -> FloatArray:
    """Return what [RE] plots for shares, an estimate: no theorem of the paper is about them.

    The largest share of the clients that answered whose adversarial risk can be made to reach each threshold, with a
    mean budget; with the slacks of [RE] Theorem 4.1, in units of losses in [0, 1].
    """
    term = np.log((answers.num_clients + 2) / DELTA)
    delay = np.sqrt(term / (2.0 * float(answers.num_examples.min())))
    wanted = np.maximum(thresholds - delay, 0.0)
    costs = np.sort([each.inverse(wanted) for each in answers.curves], axis=0)
    spent = np.cumsum(costs, axis=0) / answers.num_clients
    shares = np.mean(spent <= budget, axis=0)
    return np.asarray(np.minimum(shares + np.sqrt(term / (2.0 * answers.num_clients)), 1.0))


def figure(result: Result, *, number: int) -> Figure:
    """Draw one panel for each factor."""
    return curves.panels_figure(
        result["panels"],
        num_columns=min(2, len(result["panels"])),
        title=f"[RE] Figure {number}: networks of moved clients within a Wasserstein budget, with probability 0.95",
    )


FIGURE_7 = Experiment(
    name="fig7",
    paper="[RE] Figure 7: networks of clients that were moved further, at their Wasserstein distance",
    sets=("cifar10",),
    run=partial(run, ratios=RATIOS_OF_FIGURE_7),
    figure=partial(figure, number=7),
    panels=PANELS,
    settings=(TRAINING_CLIENTS,),
)
FIGURE_10 = Experiment(
    name="fig10",
    paper="[RE] Figure 10: the same with four budgets",
    sets=("cifar10",),
    run=partial(run, ratios=RATIOS_OF_FIGURE_10),
    figure=partial(figure, number=10),
    panels=PANELS,
    settings=(TRAINING_CLIENTS,),
)
