"""Digits at angles as domains, and models that were trained on two of them ([DG] Appendix D.1, D.2).

At full scale the images are MNIST's, and every angle has images of its own: 1,000 to train, 1,000 to test, a hundred of
each class. Quick: the 8 x 8 digits of scikit-learn and the small model "cnn".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from protocol.examples import Examples
from protocol.models import build_model, load_arrays, load_checkpoint, save_checkpoint
from simulations.experiments.experiment import Request
from worlds.datasets import load_dataset
from worlds.domain_generalisation.network import rotated_digits_cnn
from worlds.domain_generalisation.training import train_on_domains
from worlds.versions import ImageVersion, Rotation

SOURCE_ANGLES = (0.0, 15.0)
TARGET_ANGLES = (30.0, 45.0, 60.0, 75.0)
METHODS = ("wm", "g2dm", "cdan", "vrex")
FACTORS = (0.0, 0.5, 1.0, 1.5)
SETTINGS = ("epochs", "pooling")
"""Numbers of the training: passes, the paper's 501; and how many pixels are averaged on each side first, its 1."""


@dataclass(frozen=True)
class Row:
    """One trained model: a method, with the game of DR-DG if its factor is above 0."""

    method: str
    factor: float

    @property
    def name(self) -> str:
        """Such as "wm" or "wm+0.5"."""
        return f"{self.method}+{self.factor:g}" if self.factor else self.method

    @property
    def label(self) -> str:
        """Such as "WM + DR-DG 0.5"."""
        name = {"vrex": "VREX"}.get(self.method, self.method.upper())
        return f"{name} + DR-DG {self.factor:g}" if self.factor else name


ROWS = {row.name: row for row in (Row(method, factor) for method in METHODS for factor in FACTORS)}


@dataclass(frozen=True, eq=False)
class Digits:
    """The images of one request; parts are disjoint.

    Attributes
    ----------
    sources
        What each source angle has for training.
    pools
        Upright images to test with, for the sources ("sources") and each target angle ("30", …); all have the same
        labels in the same order, the same number of each class.
    """

    sources: tuple[Examples, ...]
    pools: dict[str, Examples]

    def tested(self, angle: float | None = None) -> Examples:
        """Return the test images of a target angle; None: of the sources, half the images of a class at each angle."""
        if angle is not None:
            return turned(self.pools[f"{angle:g}"], Rotation(angle))
        return self.corrupted()

    def corrupted(self, *after: ImageVersion) -> Examples:
        """Return the test images of the sources, in further versions."""
        pool = self.pools["sources"]
        x, index = pool.x, np.arange(len(pool.y))
        parts = [Rotation(angle).apply(x, index=index) for angle in SOURCE_ANGLES]
        x = np.where((index % len(SOURCE_ANGLES) == 0)[:, None, None, None], *parts)
        for version in after:
            x = version.apply(x, index=index)
        return Examples(x=x, y=pool.y)


def digits(request: Request) -> Digits:
    """Return the images; raises `MissingDataError` unless the request is quick."""
    data = load_dataset(request.dataset("mnist"), seed=request.seed)
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(0,)))
    num_training, num_per_class = (400, 16) if request.quick else (1000, 100)
    order = rng.permutation(len(data.y_train))[: num_training * len(SOURCE_ANGLES)]
    training = [Examples(x=data.x_train[own], y=data.y_train[own]) for own in np.split(order, len(SOURCE_ANGLES))]
    names = ["sources", *(f"{angle:g}" for angle in TARGET_ANGLES)]
    rows = _balanced(data.y_pool, num_per_class, len(names), rng)
    return Digits(
        sources=tuple(turned(each, Rotation(angle)) for each, angle in zip(training, SOURCE_ANGLES, strict=True)),
        pools={name: Examples(x=data.x_pool[own], y=data.y_pool[own]) for name, own in zip(names, rows, strict=True)},
    )


def turned(examples: Examples, version: ImageVersion) -> Examples:
    """Return the examples with every image in a version."""
    return Examples(x=version.apply(examples.x, index=np.arange(len(examples.y))), y=examples.y)


def trained(request: Request, row: Row, sources: Sequence[Examples]) -> nn.Module:
    """Return the model of a row, in evaluation mode; one in the cache, trained with the same settings, is taken."""
    num_epochs = int(request.setting("epochs", full=501, quick=30))
    pooling = int(request.setting("pooling", full=1, quick=1))
    model = _model(request, pooling)
    kind = "quick" if request.quick else "full"
    path = request.cache and request.cache / f"dg-{row.name}-{kind}-{num_epochs}-{pooling}-{request.seed}.pt"
    if path and path.is_file():
        load_arrays(model, load_checkpoint(path))
        return model.eval()
    train_on_domains(
        model,
        sources,
        method=row.method,
        factor=row.factor,
        seed=request.seed,
        num_epochs=num_epochs,
        num_warm_up=min(20, num_epochs // 3),
    )
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(model, path)
    return model.eval()


def _model(request: Request, pooling: int) -> nn.Sequential:
    if request.quick:
        return build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=request.seed)  # type: ignore[return-value]
    name = f"{rotated_digits_cnn.__module__}:{rotated_digits_cnn.__name__}"
    model = build_model(name, x_shape=(1, 28, 28), num_classes=10, seed=request.seed)
    return nn.Sequential(nn.AvgPool2d(pooling), *model)  # type: ignore[misc]


def _balanced(y: NDArray[np.int64], num_per_class: int, num_parts: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Rows of disjoint parts, (num_parts, num_classes * num_per_class), the classes in order."""
    size = num_parts * num_per_class
    chosen = [rng.permutation(np.flatnonzero(y == label))[:size].reshape(num_parts, -1) for label in np.unique(y)]
    return np.concatenate(chosen, axis=1)
