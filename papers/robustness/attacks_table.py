"""A table of attacks and proofs: what each leaves standing of models that people use, and what is certified of them.

*Pointwise* every image may move within a distance; *transported* (W_1), the mean distance is bounded, and mass may be
shared out. Attacks are estimates from below of what can go wrong, certificates bounds from above: whatever a proof says
of an order between two columns is checked, and so is the order that the attacks' papers report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from papers.experiment import Experiment, Request, Result
from papers.robustness.a3 import A3, A3PlusPlus
from papers.robustness.networks import (
    Network,
    Training,
    lipschitz_by_design,
    of_checkpoint,
    published_cifar10,
)
from riskband.adversaries import Adversary, LipschitzAdversary, TransportProblem, adversarial_curves, wda_accuracy
from riskband.adversaries.attacks.apgd import Apgd
from riskband.adversaries.attacks.wda import Wda
from riskband.adversaries.base import Batch
from riskband.adversaries.curves import Pool
from riskband.adversaries.names import SANDWICH_PREFIX, SMOOTHING_PREFIX
from riskband.adversaries.registry import builder
from riskband.adversaries.spaces import point_batches
from riskband.checks import RefusedError
from riskband.models.evaluation import chosen_device
from riskband.plots.bands import blank_figure, draw_legend_below

_LOG = logging.getLogger(__name__)

BOX = (0.0, 1.0)
KAPPAS = (1.0, 2.0, 3.0, 4.0, 5.0)
STEPS = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 1.0)
"""Of WDA, in units of the ball: the paper's l2 steps from .005 to .5 in a ball of .5."""
_TOLERANCE = 1e-9  # a sum of shares
_ROUNDING = 1.0 + 1e-4
"""Images are in single precision, so a distance in a picture may be off by so much; proofs look as far."""

CLEAN, OURS, OURS_W1, CERTIFICATE, CERTIFICATE_W1 = "clean", "ours", "ours, W1", "certificate", "certificate, W1"
_POINTWISE = ("APGD-CE", "APGD-DLR", "WDA 1", "AA", "A3", "A3++", OURS)
PROVED_ORDER = (
    *((name, CLEAN) for name in (*_POINTWISE, "WDA 2", OURS_W1)),
    *((CERTIFICATE, name) for name in (CLEAN, *_POINTWISE)),
    *((CERTIFICATE_W1, name) for name in (CERTIFICATE, OURS_W1, "WDA 2")),
    (OURS_W1, OURS),
)
"""(lower, higher): a theorem, so whatever breaks it is a bug."""
REPORTED_ORDER = (
    ("A3++", "A3"),
    ("A3++", "WDA 1"),
    ("AA", "APGD-DLR"),
    ("AA", "APGD-CE"),
    ("WDA 1", "APGD-DLR"),
    ("APGD-DLR", "APGD-CE"),
    *((OURS, name) for name in _POINTWISE[:-1]),
    (OURS_W1, "WDA 2"),
    ("WDA 2", "WDA 1"),
)
"""(lower, higher): what papers report on CIFAR-10, and what ours is meant to be; another model may break it."""

Build = Callable[[nn.Module, TransportProblem], Adversary]


@dataclass(frozen=True)
class Row:
    """A model with the images it is examined on, and norm and distance of the balls in which it is attacked.

    At the budgets, mean ℓ2 distances, risks are attacked, and proved by "lipschitz", or "smoothing:SIGMA" of the
    smoothed model. `network` raises ValueError where a file is missing.
    """

    name: str
    network: Network
    balls: tuple[tuple[str, float], ...]
    budgets: tuple[float, float, float]
    proof: str = "lipschitz"


_RESIDUAL = "protocol.architectures:preact_resnet_8"
_DIGITS = (("linf", 0.1), ("l2", 0.5))
ROWS = (
    Row("digits-cnn", Training("cnn"), _DIGITS, (0.05, 0.1, 0.2)),
    Row("digits-residual", Training(_RESIDUAL, noise=0.25), _DIGITS, (0.05, 0.1, 0.2), proof="smoothing:0.25"),
    Row("mnist-cnn", Training("cnn", "mnist", num_epochs=5), (("linf", 0.1), ("l2", 1.0)), (0.1, 0.2, 0.4)),
    Row(
        "mnist-robust",
        Training("cnn", "mnist", num_epochs=5, fgsm_radius=0.2),
        (("linf", 0.1), ("l2", 1.0)),
        (0.1, 0.2, 0.4),
    ),
    Row("digits-lipschitz", partial(lipschitz_by_design, dataset="digits"), (("l2", 0.5),), (0.05, 0.1, 0.2)),
    Row("mnist-lipschitz", partial(lipschitz_by_design, dataset="mnist"), (("l2", 1.0),), (0.1, 0.2, 0.4)),
    Row("cifar10-lipschitz", partial(lipschitz_by_design, dataset="cifar10"), (("l2", 36 / 255),), (0.01, 0.03, 0.1)),
    Row("cifar10", published_cifar10, (("linf", 1 / 255), ("linf", 2 / 255)), (0.01, 0.03, 0.1)),
)
CHECKPOINT = Row("checkpoint", of_checkpoint, (("linf", 8 / 255), ("l2", 0.5)), (0.05, 0.1, 0.25))
PANELS = (*(row.name for row in ROWS), CHECKPOINT.name)


def attacks(request: Request) -> dict[str, Build]:
    """Return the pointwise attacks by the name of their column; the ensembles take most of the time."""
    num_steps = request.count("steps", full=100, quick=10)
    single: dict[str, Build] = {
        "APGD-CE": partial(Apgd, objective="cross_entropy", num_steps=num_steps),
        "APGD-DLR": partial(Apgd, objective="dlr", num_steps=num_steps),
        "WDA 1": builder("wda"),
    }
    ensembles = {"AA": builder("autoattack"), "A3": A3, "A3++": A3PlusPlus}
    return {**single, **ensembles} if request.setting("ensembles", full=1, quick=0) else single


def broken_orders(accuracy: Mapping[str, float]) -> list[str]:
    """Return a sentence for every order that the columns of a line break; none where all is as expected."""
    return [
        f"{lower} {accuracy[lower]:.4g} is above {higher} {accuracy[higher]:.4g}, which {words}"
        for order, words in ((PROVED_ORDER, "cannot be: a bug"), (REPORTED_ORDER, "papers report otherwise"))
        for lower, higher in order
        if lower in accuracy and higher in accuracy and accuracy[lower] > accuracy[higher] + _TOLERANCE
    ]


@dataclass(frozen=True)
class Standing:
    """What an adversary leaves standing: shares of images, after moves within a distance, or within it in the mean."""

    pointwise: float
    transported: float
    seconds: float


def standing(adversary: Adversary, batches: Sequence[Batch], *, distance: float) -> Standing:
    """Return the accuracy that an attack leaves, or that a proof certifies, within a distance (0-1 loss, order 1)."""
    start, pool, reaches = time.process_time(), Pool(), []
    is_proved = False
    for batch in batches:
        evidence = adversary.examine(batch)
        is_proved = evidence.bounding is not None
        points = evidence.attained if evidence.bounding is None else evidence.bounding
        losses = batch.losses if evidence.unmoved is None else evidence.unmoved
        pool.add(losses, points)
        nearest = torch.where(points.losses >= 1.0, points.costs, torch.inf).amin(dim=1)
        reaches.append(torch.where(losses >= 1.0, 0.0, nearest))
    is_standing = torch.cat(reaches) > distance * _ROUNDING
    curve = pool.curve(round_up=is_proved)
    return Standing(
        pointwise=float(is_standing.double().mean()),
        transported=round(max(0.0, 1.0 - float(curve(distance * _ROUNDING))), 12),
        seconds=round(time.process_time() - start, 2),
    )


def run(request: Request) -> Result:
    """Examine every model that is there; say which are not. Raises ValueError if none is."""
    chosen, device = request.chosen(PANELS), chosen_device(request.device)
    found, remarks = [], []
    for row in _rows(request, chosen):
        try:
            model, data = row.network(request)
        except ValueError as error:
            if row is CHECKPOINT:
                raise
            remarks.append(f"{row.name} is skipped: {error}")
            continue
        num_images = request.count("images", full=100, quick=20)
        found.append(examined(row, model.to(device), data.x_pool[:num_images], data.y_pool[:num_images], request))
    if not found:
        raise ValueError("\n".join(remarks) or "the panel checkpoint needs a model, got none; give --checkpoint FILE")
    lines = [line for each in found for line in each["lines"]]
    for line in lines:
        remarks += [f"{line['row']}, {line['norm']} {line['distance']:.3g}: {broken}" for broken in line["broken"]]
    return {
        "validity": {
            "attacks": "estimate",
            "certificate": "proved of these images",
            "smoothing": "mean over its noise",
        },
        "models": found,
        "table": [_shown(line) for line in lines],
        "remarks": remarks,
    }


def _rows(request: Request, chosen: Sequence[str]) -> Iterator[Row]:
    yield from (row for row in ROWS if row.name in chosen and not (request.quick and "digits" not in row.name))
    if request.checkpoint is not None and CHECKPOINT.name in chosen:
        yield CHECKPOINT


def examined(row: Row, model: nn.Module, x: np.ndarray, y: np.ndarray, request: Request) -> dict[str, Any]:
    """Return every line of a model, and its risks at the budgets."""
    # All at once: A3 chooses its next steps by all images that it sees.
    batches = list(point_batches(model, x, y, loss="zero_one", batch_size=len(y)))
    lines = []
    for norm, distance in row.balls[: 1 if request.quick else None]:
        _LOG.info("%s, %s %.3g", row.name, norm, distance)
        lines.append(_line(row, model, batches, norm=norm, distance=distance, request=request))
    return {
        "name": row.name,
        "num_images": len(y),
        "lines": lines,
        "steps": [_by_step(model, batches, norm="l2", distance=radius) for norm, radius in row.balls if norm == "l2"],
        "risks": _risks(row, model, x, y, seed=request.seed),
    }


def _line(
    row: Row, model: nn.Module, batches: Sequence[Batch], *, norm: str, distance: float, request: Request
) -> dict[str, Any]:
    """Every column of one model and one ball; what refuses the model is left out, with its words."""
    found: dict[str, Standing] = {}
    refused: dict[str, str] = {}
    for name, (build, kappas) in _builders(request, is_first=(norm, distance) == row.balls[0]).items():
        distances = tuple(kappa * distance for kappa in kappas)
        problem = TransportProblem("zero_one", 1, norm, "input", box=BOX, distances=distances, seed=request.seed)
        try:
            found[name] = standing(build(model, problem), batches, distance=distances[0])
            _LOG.info("%s: %.3f in %.0f s", name, found[name].pointwise, found[name].seconds)
        except RefusedError as error:
            refused[name] = str(error)
    clean = 1.0 - float(torch.cat([batch.losses for batch in batches]).mean())
    accuracy = {CLEAN: clean, **{name: each.pointwise for name, each in found.items()}}
    for kappa in KAPPAS:  # a share 1/kappa of the mass moves, so far
        if (name := f"WDA {kappa:g}") in found:
            accuracy[name] = wda_accuracy(clean, found[name].pointwise, kappa=kappa)
    accuracy |= {f"{name}, W1": found[name].transported for name in (OURS, CERTIFICATE) if name in found}
    return {
        "row": row.name,
        "norm": norm,
        "distance": distance,
        "accuracy": accuracy,
        "seconds": {name: each.seconds for name, each in found.items()},
        "refused": refused,
        "broken": broken_orders(accuracy),
    }


def _by_step(model: nn.Module, batches: Sequence[Batch], *, norm: str, distance: float) -> dict[str, Any]:
    """Accuracy that WDA with kappa 1 leaves, by the length of its steps."""
    problem = TransportProblem("zero_one", 1, norm, "input", box=BOX, distances=(distance,))
    left = [standing(Wda(model, problem, step=step), batches, distance=distance).pointwise for step in STEPS]
    return {"norm": norm, "distance": distance, "accuracy": left}


def _builders(request: Request, *, is_first: bool) -> dict[str, tuple[Build, tuple[float, ...]]]:
    """By column, who examines and in which balls, in units of the distance; large kappas in the first ball only."""
    kappas = KAPPAS[1:] if is_first else KAPPAS[1:2]
    return {
        **{name: (build, (1.0,)) for name, build in attacks(request).items()},
        **{f"WDA {kappa:g}": (builder("wda"), (kappa,)) for kappa in kappas},
        OURS: (builder("wda-knapsack"), (1.0, 2.0)),
        CERTIFICATE: (LipschitzAdversary, (1.0,)),
    }


def _risks(row: Row, model: nn.Module, x: np.ndarray, y: np.ndarray, *, seed: int) -> dict[str, Any]:
    """What attacks reach and what is certified of the 0-1 risk, within mean l2 distances."""

    def values(adversary: str) -> tuple[list[float], list[float]]:
        box = None if SMOOTHING_PREFIX in adversary else BOX
        problem = TransportProblem("zero_one", 1, "l2", "input", adversary, box=box, seed=seed)
        lower, upper = adversarial_curves(model, x, y, problem).values((0.0, *row.budgets))
        return lower.round(12).tolist(), upper.round(12).tolist()

    is_smoothed = row.proof.startswith(SMOOTHING_PREFIX)  # then attacks are on the smoothed model, too
    attack = f"{SANDWICH_PREFIX}{row.proof}" if is_smoothed else "wda-knapsack"
    try:
        certified, why = values(row.proof)[1], ""
    except RefusedError as error:
        certified, why = None, str(error)
    return {
        "budgets": [0.0, *row.budgets],
        "attacked": values(attack)[0],
        "proof": row.proof,
        "certified": certified,
        "unproved": why,
    }


def _shown(line: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the printed table."""
    accuracy = {name: line["accuracy"].get(name, "-") for name in COLUMNS}
    kept = "as expected" if not line["broken"] else f"broken: {len(line['broken'])}"
    seconds = round(sum(line["seconds"].values()))
    return {
        "model": line["row"],
        "norm": line["norm"],
        "distance": line["distance"],
        **accuracy,
        "order": kept,
        "seconds": seconds,
    }


def figure(result: Result) -> Figure:
    """Draw what stands of every line, and below it WDA at several kappas and the seconds of each column."""
    lines = [line for each in result["models"] for line in each["lines"]]
    drawn = blank_figure(11.5, 4.6 + 0.34 * len(lines))
    grid = drawn.add_gridspec(2, 3, height_ratios=(0.34 * len(lines) + 0.4, 2.8))
    _draw_standing(drawn.add_subplot(grid[0, :]), lines)
    _draw_kappas(drawn.add_subplot(grid[1, 0]), [line for line in lines if "WDA 3" in line["accuracy"]])
    _draw_steps(drawn.add_subplot(grid[1, 1]), result["models"])
    _draw_seconds(drawn.add_subplot(grid[1, 2]), lines)
    draw_legend_below(drawn)
    return drawn


_STYLES: dict[str, dict[str, Any]] = {
    CLEAN: {"marker": "|", "color": "#222222", "ms": 11, "mew": 1.6},
    "APGD-CE": {"marker": "o", "color": "#9db8d2"},
    "APGD-DLR": {"marker": "o", "color": "#5f8fbf"},
    "AA": {"marker": "s", "color": "#1f4e79"},
    "A3": {"marker": "^", "color": "#b98a2f"},
    "A3++": {"marker": "v", "color": "#8a5a00"},
    "WDA 1": {"marker": "D", "color": "#6aa84f"},
    "WDA 2": {"marker": "D", "color": "#38761d", "mfc": "none"},
    OURS: {"marker": "X", "color": "#d1701f"},
    OURS_W1: {"marker": "X", "color": "#d1701f", "mfc": "none"},
    CERTIFICATE: {"marker": ">", "color": "#7a2f8f"},
    CERTIFICATE_W1: {"marker": ">", "color": "#7a2f8f", "mfc": "none"},
}
COLUMNS = tuple(_STYLES)
"""Of the printed table, in its order."""


def _draw_standing(axes: Axes, lines: Sequence[Mapping[str, Any]]) -> None:
    for name, style in _STYLES.items():
        points = [
            (line["accuracy"][name], place) for place, line in enumerate(reversed(lines)) if name in line["accuracy"]
        ]
        if points:
            axes.plot(*zip(*points, strict=True), ls="", label=name, **{"ms": 6, **style})
    names = [f"{line['row']}, {line['norm']} {line['distance']:.3g}" for line in reversed(lines)]
    axes.set_yticks(range(len(lines)), names)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(lines) - 0.4))
    axes.set_xlabel("accuracy left by an attack (estimates), or certified (proved); hollow: mean distance (W_1)")
    axes.grid(alpha=0.25, lw=0.6)


def _draw_kappas(axes: Axes, lines: Sequence[Mapping[str, Any]]) -> None:
    for number, line in enumerate(lines):
        points = [(kappa, line["accuracy"].get(f"WDA {kappa:g}")) for kappa in KAPPAS]
        axes.plot(*zip(*points, strict=True), "o-", color=f"C{number}", ms=4, lw=1.2)
        axes.axhline(line["accuracy"][OURS_W1], color=f"C{number}", lw=0.9, ls=":")
    axes.set(xlabel="kappa of WDA; dotted: ours", ylabel="accuracy (mean distance)", ylim=(-0.03, 1.03))
    axes.set_xticks(KAPPAS)
    axes.grid(alpha=0.25, lw=0.6)


def _draw_steps(axes: Axes, models: Sequence[Mapping[str, Any]]) -> None:
    for number, found in enumerate(models):
        for ball in found["steps"]:
            axes.plot(STEPS, ball["accuracy"], "o-", color=f"C{number}", ms=4, lw=1.2)
    names = [axes.plot([], [], "-", color=f"C{number}", label=found["name"])[0] for number, found in enumerate(models)]
    axes.legend(handles=names, fontsize=6, title="both panels on the left", title_fontsize=6)
    for line in names:
        line.set_label("_")  # not in the figure's own legend
    axes.set(xscale="log", xlabel="l2 step of WDA, in units of the ball", ylabel="accuracy", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.25, lw=0.6)


def _draw_seconds(axes: Axes, lines: Sequence[Mapping[str, Any]]) -> None:
    names = [name for name in COLUMNS if any(name in line["seconds"] for line in lines)]
    for place, name in enumerate(reversed(names)):
        seconds = [max(line["seconds"][name], 0.01) for line in lines if name in line["seconds"]]
        axes.plot(seconds, [place] * len(seconds), ls="", **{"ms": 5, **_STYLES[name]})
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set(xscale="log", xlabel="CPU seconds of a line of the table")
    least, most = axes.get_xlim()
    axes.set_xlim(10 ** np.floor(np.log10(least)), 10 ** np.ceil(np.log10(most)))  # whole decades, however few lines
    axes.minorticks_off()
    axes.grid(alpha=0.25, lw=0.6)


ATTACKS_TABLE = Experiment(
    name="attacks-table",
    paper="[WDA] Table 1 and Figure 3, of our own models: attacks, certificates, seconds",
    sets=(),
    run=run,
    figure=figure,
    panels=PANELS,
    settings=("images", "steps", "ensembles", "epochs"),
    has_clients=False,
    has_checkpoint=True,
)
