"""Figure 4 of [RE]: bounds for the risks of unseen clients of the same network, under three kinds of shift."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import nn

import riskband as rb
from papers.experiment import Experiment, Request, Result
from papers.federated import curves
from papers.federated.curves import DELTA, PUBLISHED, SHARP, TRUTH
from papers.networks import trained
from riskband.checks import FloatArray
from worlds.loss_table import PopulationRisks
from worlds.population import Population, PopulationSpec
from worlds.shifts import DirichletLabelShift, RowAffineShift, Shift

_LOG = logging.getLogger(__name__)
SETS = ("cifar10", "mnist", "fashion_mnist")
SHIFTS = ("feature", "label", "both")
TRAINING_CLIENTS = "training-clients"
"""Setting: how many clients train the network; with fewer it is ready sooner."""

_BUDGETS = {"chi2": 0.2, "kl": 0.2}


@dataclass(frozen=True)
class Setting:
    """What differs between data sets: the strength of the row-affine shift, and how the network is trained."""

    affine_std: float
    num_training_clients: int
    num_epochs: int = 5
    num_examples: int = 1000


# The authors' strengths for CIFAR-10 and EMNIST; the grey sets, which are easier, train on fewer clients.
SETTINGS = {
    "cifar10": Setting(0.05, 50),
    "mnist": Setting(0.1, 10),
    "fashion_mnist": Setting(0.1, 10),
    "digits": Setting(0.05, 10, num_epochs=20, num_examples=100),
}


def shifts_of(name: str, setting: Setting) -> tuple[Shift, ...]:
    """Return the shifts of a kind in `SHIFTS`."""
    feature, label = RowAffineShift(setting.affine_std, setting.affine_std), DirichletLabelShift(0.4)
    return {"feature": (feature,), "label": (label,), "both": (feature, label)}[name]


def population_spec(request: Request, dataset: str, kind: str) -> PopulationSpec:
    """Return the network of measured clients of a panel."""
    setting = SETTINGS[dataset]
    return PopulationSpec(
        dataset=request.dataset(dataset),
        seed=request.seed,
        examples_per_client=setting.num_examples,
        shifts=shifts_of(kind, setting),
    )


def trained_for(request: Request, dataset: str, kind: str) -> nn.Module:
    """Return the network of a panel, trained on clients of its law; that of "both" is the one of "feature"."""
    setting = SETTINGS[dataset]
    spec = population_spec(request, dataset, "label" if kind == "label" else "feature")
    usual = setting.num_training_clients
    num_clients = request.count(TRAINING_CLIENTS, full=usual, quick=usual)
    return trained(spec, num_clients=num_clients, num_epochs=setting.num_epochs, cache=request.cache)


def run(request: Request) -> Result:
    """Measure seen and unseen clients of every panel, and bound the one by the other."""
    names = ("digits",) if request.quick else SETS
    chosen = request.chosen(tuple(f"{dataset}-{kind}" for dataset in names for kind in SHIFTS))
    panels = [_panel(request, name) for name in chosen]
    rows = [
        {
            "panel": panel["name"],
            "clients": panel["num_clients"],
            "accuracy": panel["accuracy"],
            "sd": panel["accuracy_sd"],
            **{each["name"]: each["mean"] for each in panel["curves"] if "divergence" not in each},
            "truth over sharp": panel["excess"][SHARP],
            "its sampling error": panel["sampling_error"],
        }
        for panel in panels
    ]
    return {"delta": DELTA, "panels": panels, "table": rows}


def _panel(request: Request, name: str) -> dict[str, Any]:
    start = time.process_time()
    dataset, _, kind = name.partition("-")
    spec = population_spec(request, dataset, kind)
    model = trained_for(request, dataset, kind)
    num_clients = request.num_clients(full=500, quick=40)
    _LOG.info("%s: measuring %d + %d clients", name, num_clients, num_clients)
    seen, unseen = (
        PopulationRisks(Population(replace(spec, network=network)), model, loss="zero_one").measured(num_clients)
        for network in ("source", "unseen")
    )
    accuracy = 1.0 - np.concatenate([seen, unseen])
    drawn = _curves(seen, unseen, num_examples=spec.examples_per_client)
    return {
        "name": name,
        "num_clients": num_clients,
        "num_examples": spec.examples_per_client,
        "accuracy": float(accuracy.mean()),
        "accuracy_sd": float(accuracy.std()),
        "thresholds": curves.thresholds_of(seen).tolist(),
        "curves": drawn,
        "excess": {name: curves.largest_excess(drawn[0], drawn[1:], name) for name in (PUBLISHED, SHARP)},
        "sampling_error": float(np.sqrt(np.log(20) / (2 * num_clients))),
        "seconds": round(time.process_time() - start, 1),
    }


def _curves(seen: FloatArray, unseen: FloatArray, *, num_examples: int) -> list[dict[str, Any]]:
    """Return the truth first: what unseen clients measured on as many examples, as the paper draws it.

    Drawn are bounds of one thing, the true risk: what the published one is of.
    """
    answers, thresholds = rb.ClientRisks(seen, num_examples), curves.thresholds_of(seen)
    published = rb.band(answers, delta=DELTA, method="dkw", local="union", sides="lower")  # [RE] Theorem 4.1
    observed = rb.band(answers, delta=DELTA, local="observed", sides="lower")
    true_risks = rb.band(answers, delta=DELTA, sides="lower")
    found = [
        curves.curve(TRUTH, curves.share_at_least(unseen, thresholds), validity="measured by unseen clients"),
        curves.survival_curve(PUBLISHED, published, thresholds, of="true risk"),
        curves.survival_curve(SHARP, true_risks, thresholds, of="true risk"),
        curves.survival_curve("sharp, measured risk", observed, thresholds, of="measured risk", drawn=False),
    ]
    for divergence, budget in _BUDGETS.items():
        for name in (PUBLISHED, SHARP):
            ball: dict[str, Any] = {"divergence": divergence, "budget": budget, "method": name}
            worst = curves.worst_case_curve(name, true_risks, thresholds, **ball)
            found.append({**worst, "of": "true risk", "drawn": False})
    return found


def figure(result: Result) -> Figure:
    """Draw one panel for each data set and shift."""
    return curves.panels_figure(
        result["panels"],
        num_columns=min(3, len(result["panels"])),
        title="Unseen clients of the same network: bounds for their true risks, with probability 0.95",
    )


FIGURE_4 = Experiment(
    name="fig4",
    paper="[RE] Figure 4: bounds for the risks of unseen clients under feature, label and both shifts",
    sets=SETS,
    run=run,
    figure=figure,
    panels=tuple(f"{dataset}-{kind}" for dataset in (*SETS, "digits") for kind in SHIFTS),
    settings=(TRAINING_CLIENTS,),
)
