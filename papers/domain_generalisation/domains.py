"""Domains of digits, how far each is for a model, how much the model loses on it, and at worst so far away ([DG]).

Domains are the source's own test images under nine corruptions of five severities, and other images at other angles.
Their distance from the source is W_2 in the model's representation space, class by class and exact, in units of the
distance at which no example need be classified correctly any more. At every distance the largest 0-1 loss of any
distribution so near is known exactly (math §6.2): it is exactly 1 at distance 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import nn

from papers.experiment import Request
from protocol.examples import Examples
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves
from riskband.adversaries.representation.exact import LinearHead
from worlds.corruptions import MNIST_C, Corruption
from worlds.datasets import load_dataset
from worlds.targets import transport_cost
from worlds.versions import Rotation

PROBLEM = TransportProblem("zero_one", 2, "l2", "representation", "exact")
_LOG = logging.getLogger(__name__)
SOURCE_ANGLES = (0.0, 15.0)
TARGET_ANGLES = (30.0, 45.0, 60.0, 75.0)
SEVERITIES = (1, 2, 3, 4, 5)
FRESH = "sources, other images"
_CURVE = np.linspace(0, 1.5, 61)


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

    Raises `riskband.checks.RefusedError` unless the logits are the output of an `nn.Linear`.
    """
    with LinearHead(model) as head:
        batches = list(head.batches(examples.x, examples.y, loss="zero_one"))
    z = np.concatenate([batch.x.double().numpy() for batch in batches])
    return Seen(z=z, logits=np.concatenate([batch.logits.numpy() for batch in batches]), y=examples.y)


def distances_of(
    model: nn.Module,
    source: Examples,
    domains: Mapping[str, Examples],
    *,
    more: Callable[[Seen], dict[str, float]] = lambda seen: {},
) -> dict[str, Any]:
    """Return how far domains are from a source for a model, what it loses there, and at worst at every distance.

    The model is any encoder with an `nn.Linear` as its head, in evaluation mode. Examples of the source are equally
    likely; each domain has its labels in the same order, else ValueError is raised. `more` measures something else on
    each domain, as plain numbers by name.

    Returns plain JSON. "unit": W_2(source, nearest misclassified points); "source"; "domains": for each its "distance"
    in that unit, its "accuracy", its "cross_entropy" in nats, and the "worst_accuracy" of any distribution that is no
    further; "curve" of these.
    """
    _LOG.info("measuring %d domains", len(domains))
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
            **more(there),
        }
    return {
        "unit": float(np.sqrt(unit)),
        "source": {"distance": 0.0, **_performance(start), "worst_accuracy": worst_accuracy(np.zeros(1))[0]},
        "domains": rows,
        "curve": {"distance": _CURVE.tolist(), "worst_accuracy": worst_accuracy(_CURVE**2 * unit)},
    }


def _performance(seen: Seen) -> dict[str, float]:
    return {"accuracy": float(1 - seen.is_wrong.mean()), "cross_entropy": seen.cross_entropy}


@dataclass(frozen=True, eq=False)
class Domains:
    """The test images of a request: the source, half at one source angle, half at the other, and other domains by name.

    Those are corruptions of the source's images, and fresh images at the source's and at other angles. All have the
    labels of the source, in the same order.
    """

    source: Examples
    others: dict[str, Examples]


def domains(request: Request) -> Domains:
    """Return the domains of [DG] §D.1 (MNIST, 1,000 images each, 100 of each class), or small ones of the digits."""
    data = load_dataset(request.dataset("mnist"), seed=request.seed)
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(0,)))
    rows = _balanced(data.y_pool, 14 if request.quick else 100, 2 + len(TARGET_ANGLES), rng)
    source = at_source_angles(data.x_pool, data.y_pool, rows[0])
    named = [Corruption(kind, severity) for kind in MNIST_C for severity in SEVERITIES]
    corrupted = {each.name: Examples(x=each.apply(source.x, index=rows[0]), y=source.y) for each in named}
    fresh = {FRESH: at_source_angles(data.x_pool, data.y_pool, rows[1])}
    turned = {
        f"{angle:g}°": Examples(x=Rotation(angle).apply(data.x_pool[own], index=own), y=data.y_pool[own])
        for angle, own in zip(TARGET_ANGLES, rows[2:], strict=True)
    }
    return Domains(source, corrupted | fresh | turned)


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
