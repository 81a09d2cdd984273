"""How far a domain is, and how much a model loses on it ([DG] Figures 1, 4 and 9), below the worst case ([DG] eq. 2).

Domains are the source's own test images under nine corruptions of five severities, and other images at other angles.
Their distance from the source is W_2 in the model's representation space, class by class and exact, in units of the
distance at which no example need be classified correctly any more. At every distance the largest 0-1 loss of any
distribution so near is known exactly (math §6.2): it is exactly 1 at distance 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import rankdata
from torch import nn

from protocol.examples import Examples
from protocol.models import build_model
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves
from riskband.adversaries.representation.exact import LinearHead
from simulations.experiments.experiment import Experiment, Request, Result
from worlds.corruptions import MNIST_C, Corruption
from worlds.datasets import load_dataset
from worlds.targets import transport_cost
from worlds.training import train_epochs
from worlds.versions import Rotation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROBLEM = TransportProblem("zero_one", 2, "l2", "representation", "exact")
SOURCE_ANGLES = (0.0, 15.0)
TARGET_ANGLES = (30.0, 45.0, 60.0, 75.0)
SEVERITIES = (1, 2, 3, 4, 5)
FRESH = "sources, other images"
_CURVE = np.linspace(0, 1.5, 61)
_NEAR = 0.05
"""Domains whose distances differ by at most this count as equally far."""


class Seen(NamedTuple):
    """Examples as a model sees them: representations (num, num_features), logits (num, num_classes), labels (num,)."""

    z: NDArray[np.float64]
    logits: NDArray[np.float64]
    y: NDArray[np.int64]

    @property
    def is_wrong(self) -> NDArray[np.bool_]:
        """Whether each example is misclassified."""
        return np.asarray(self.logits.argmax(axis=1) != self.y)

    @property
    def cross_entropy(self) -> float:
        """Mean cross-entropy, in nats, without a cap."""
        return float(np.mean(logsumexp(self.logits, axis=1) - self.logits[np.arange(len(self.y)), self.y]))


def seen_by(model: nn.Module, examples: Examples) -> Seen:
    """Return what the last linear layer of a model is given, and what it returns.

    Raises `riskband.RefusedError` unless the logits are the output of an `nn.Linear`.
    """
    with LinearHead(model) as head:
        batches = list(head.batches(examples.x, examples.y, loss="zero_one"))
    z = np.concatenate([batch.x.double().numpy() for batch in batches])
    return Seen(z=z, logits=np.concatenate([batch.logits.numpy() for batch in batches]), y=examples.y)


def distances_of(model: nn.Module, source: Examples, domains: Mapping[str, Examples]) -> dict[str, Any]:
    """Return how far domains are from a source for a model, what it loses there, and at worst at every distance.

    Parameters
    ----------
    model
        Any encoder with an `nn.Linear` as its head, in evaluation mode.
    source
        Examples, all equally likely.
    domains
        By name; each with the labels of the source in the same order.

    Returns
    -------
    dict
        Plain JSON. "unit": W_2(source, nearest misclassified points); "source"; "domains": for each its "distance" in
        that unit, its "accuracy", its "cross_entropy" in nats, and the "worst_accuracy" of any distribution that is
        no further; "curve" of these. Raises ValueError if the labels differ.
    """
    found = adversarial_curves(model, source.x, source.y, PROBLEM, multipliers=())
    unit, start = found.adversarial_unit, seen_by(model, source)
    weights = np.full(len(source.y), 1 / len(source.y))

    def worst_accuracy(costs: NDArray[np.float64]) -> list[float]:
        return [float(value) for value in 1 - found.values(costs)[1]]

    rows = {}
    for name, examples in domains.items():
        if not np.array_equal(examples.y, source.y):
            raise ValueError(f"the domain {name!r} must have the labels of the source, in the same order")
        there = seen_by(model, examples)
        cost = transport_cost(start.z, there.z, source.y, weights, order=2, norm="l2")
        rows[name] = {
            "distance": float(np.sqrt(cost / unit)),
            **_performance(there),
            "worst_accuracy": worst_accuracy(np.array([cost]))[0],
        }
    return {
        "unit": float(np.sqrt(unit)),
        "source": _performance(start),
        "domains": rows,
        "curve": {"distance": _CURVE.tolist(), "worst_accuracy": worst_accuracy(_CURVE**2 * unit)},
    }


def _performance(seen: Seen) -> dict[str, float]:
    return {"accuracy": float(1 - seen.is_wrong.mean()), "cross_entropy": seen.cross_entropy}


@dataclass(frozen=True, eq=False)
class Domains:
    """The images of a request; no image is in two of the three.

    Attributes
    ----------
    training, source
        Both half at one source angle, half at the other.
    others
        By name: corruptions of the source's images, and fresh images at the source's and at other angles. All have the
        labels of the source, in the same order.
    """

    training: Examples
    source: Examples
    others: dict[str, Examples]


def domains(request: Request) -> Domains:
    """Return the domains of [DG] §D.1 (MNIST, 1,000 images each, 100 of each class), or small ones of the digits."""
    data = load_dataset(request.dataset("mnist"), seed=request.seed)
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(0,)))
    num_training, num_per_class = (len(data.y_train), 14) if request.quick else (2000, 100)
    training = np.sort(rng.permutation(len(data.y_train))[:num_training])
    rows = _balanced(data.y_pool, num_per_class, 2 + len(TARGET_ANGLES), rng)
    source = at_source_angles(data.x_pool, data.y_pool, rows[0])
    named = [Corruption(kind, severity) for kind in MNIST_C for severity in SEVERITIES]
    corrupted = {each.name: Examples(x=each.apply(source.x, index=rows[0]), y=source.y) for each in named}
    fresh = {FRESH: at_source_angles(data.x_pool, data.y_pool, rows[1])}
    turned = {
        f"{angle:g}°": Examples(x=Rotation(angle).apply(data.x_pool[own], index=own), y=data.y_pool[own])
        for angle, own in zip(TARGET_ANGLES, rows[2:], strict=True)
    }
    return Domains(at_source_angles(data.x_train, data.y_train, training), source, corrupted | fresh | turned)


def at_source_angles(x: NDArray[np.float32], y: NDArray[np.int64], rows: NDArray[np.intp]) -> Examples:
    """Return these rows, every second image at the second source angle."""
    first, second = (Rotation(angle).apply(x[rows], index=rows) for angle in SOURCE_ANGLES)
    is_second = (np.arange(len(rows)) % 2 == 1)[:, None, None, None]
    return Examples(x=np.where(is_second, second, first), y=y[rows])


def _balanced(y: NDArray[np.int64], num_per_class: int, num_parts: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the rows of disjoint parts, (num_parts, num_classes * num_per_class), with their classes in one order."""
    size = num_parts * num_per_class
    chosen = [rng.permutation(np.flatnonzero(y == label))[:size].reshape(num_parts, -1) for label in np.unique(y)]
    return np.concatenate(chosen, axis=1)


def plain_model(training: Examples, *, seed: int, num_epochs: int) -> nn.Module:
    """Return a model trained on the sources as if they were one, in evaluation mode."""
    model = build_model("cnn", x_shape=training.x.shape[1:], num_classes=10, seed=seed)
    train_epochs(model, training.x, training.y, seed=seed, num_epochs=num_epochs, learning_rate=0.001, batch_size=50)
    return model.eval()


def rank_correlations(domains: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Return Spearman's rank correlation of distance and error over the severities of each corruption.

    None where all severities have the same error.
    """
    found: dict[str, float | None] = {}
    for kind in MNIST_C:
        rows = [domains[Corruption(kind, severity).name] for severity in SEVERITIES]
        ranks = [rankdata([row["distance"] for row in rows]), rankdata([-row["accuracy"] for row in rows])]
        found[kind] = float(np.corrcoef(*ranks)[0, 1]) if np.ptp(ranks[1]) > 0 else None
    return found


def widest_difference(domains: Mapping[str, Mapping[str, float]]) -> tuple[float, list[str]]:
    """Return the largest difference of accuracy between two domains that are equally far, and their names."""
    names, rows = list(domains), list(domains.values())
    distance, accuracy = (np.array([row[key] for row in rows]) for key in ("distance", "accuracy"))
    differences = accuracy[:, None] - accuracy
    differences[np.abs(distance[:, None] - distance) > _NEAR] = -1
    better, worse = np.unravel_index(differences.argmax(), differences.shape)
    return float(differences[better, worse]), [names[better], names[worse]]


def run(request: Request) -> Result:
    """Measure all domains for the plainly trained model."""
    given = domains(request)
    model = plain_model(given.training, seed=request.seed, num_epochs=int(request.setting("epochs", full=40, quick=40)))
    found = distances_of(model, given.source, given.others)
    accuracy, pair = widest_difference(found["domains"])
    found["rank_correlation"] = rank_correlations(found["domains"])
    found["widest_difference"] = {"accuracy": accuracy, "domains": pair, "within": _NEAR}
    source = {"distance": 0.0, **found["source"], "worst_accuracy": found["curve"]["worst_accuracy"][0]}
    rows = {"source": source, **found["domains"]}
    return {
        "source_angles": list(SOURCE_ANGLES),
        "models": {"plain": found},
        "table": [{"model": "plain", "domain": name} | row for name, row in rows.items()],
    }


def figure(result: Result) -> Figure:
    """Draw accuracy and cross-entropy against distance, a row of two panels for each model."""
    from riskband.plots.bands import blank_figure, draw_legend_below

    models = result["models"]
    page = blank_figure(10.0, 1.6 + 4.2 * len(models))
    grid = page.subplots(len(models), 2, squeeze=False)
    for row, (name, found) in enumerate(models.items()):
        left, right = grid[row]
        _draw_domains(left, found["domains"], "accuracy", is_named=row == 0)
        _draw_domains(right, found["domains"], "cross_entropy", is_named=False)
        curve = found["curve"]
        left.plot(curve["distance"], curve["worst_accuracy"], color="black", lw=1.8, label=_WORST if row == 0 else None)
        left.set(ylabel="accuracy", ylim=(0, 1), title=f"{name} model")
        right.set(ylabel="mean cross-entropy (nats)", title=f"{name} model")
        for axes in (left, right):
            axes.set(xlabel=r"$W_2$ from the sources / $\rho_{adv}$, in representation space")
            axes.set_xlim(left=0)
            axes.grid(alpha=0.25, lw=0.6)
    draw_legend_below(page)
    return page


_WORST = "smallest accuracy of any distribution so near (exact for these images)"
_COLOURS = ("#3b6ea5", "#d1701f", "#4f8f4f", "#b03a48", "#7a5ea8", "#8a6d4b", "#d37fb5", "#7f7f7f", "#a8a032")


def _draw_domains(axes: Axes, domains: Mapping[str, Mapping[str, float]], key: str, *, is_named: bool) -> None:
    """Draw a line for each corruption, a triangle for each angle, and a star for other images of the sources."""
    for kind, colour in zip(MNIST_C, _COLOURS, strict=True):
        rows = [domains[Corruption(kind, severity).name] for severity in SEVERITIES]
        label = kind.replace("-", " ") if is_named else None
        axes.plot(
            [row["distance"] for row in rows], [row[key] for row in rows], "o-", color=colour, ms=3.5, label=label
        )
    angles = [domains[f"{angle:g}°"] for angle in TARGET_ANGLES]
    marks = ((angles, "^", f"{', '.join(f'{angle:g}°' for angle in TARGET_ANGLES)}"), ([domains[FRESH]], "*", FRESH))
    for rows, marker, label in marks:
        axes.plot(*_at(rows, key), marker, color="black", ms=8, mec="white", label=label if is_named else None)


def _at(rows: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    return [row["distance"] for row in rows], [row[key] for row in rows]


EXPERIMENT = Experiment(
    name="distances",
    paper="[DG] Figures 1 and 4: accuracy and loss of domains at their distance from the source",
    sets=("mnist",),
    run=run,
    figure=figure,
)
