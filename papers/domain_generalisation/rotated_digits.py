"""Models trained on digits at two angles, by each method of domain generalisation, with DR-DG and without ([DG] §D)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from papers.domain_generalisation.domains import SOURCE_ANGLES
from papers.domain_generalisation.network import rotated_digits_cnn
from papers.domain_generalisation.training import train_on_domains
from papers.experiment import Request
from papers.networks import kept
from protocol.examples import Examples
from protocol.models import build_model
from worlds.datasets import load_dataset
from worlds.versions import Rotation

METHODS = ("wm", "g2dm", "cdan", "vrex")
FACTORS = (0.0, 0.5, 1.0, 1.5)
SETTINGS = ("epochs", "pooling", "weight")
"""Numbers of the training: passes, the paper's 501; how many pixels are averaged on each side first, its 1; the weight
of the worst points in DR-DG, 0.1 in the authors' program and 1 in the paper's text."""


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
        return f"{self.method.upper()} + DR-DG {self.factor:g}" if self.factor else self.method.upper()


ROWS = {row.name: row for row in (Row(method, factor) for method in METHODS for factor in FACTORS)}


def rows_of(request: Request, *, quick: Sequence[str]) -> list[Row]:
    """Return the rows that were asked for by name, as panels; else all, or those named here if the request is quick."""
    names = request.chosen(tuple(ROWS))
    return [ROWS[name] for name in (quick if request.quick and not request.panels else names)]


def training_domains(request: Request) -> list[Examples]:
    """Return 1,000 training images at each source angle, disjoint ones; 400 of the small digits if quick."""
    data = load_dataset(request.dataset("mnist"), seed=request.seed)
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(0,)))
    num_training = 400 if request.quick else 1000
    order = rng.permutation(len(data.y_train))[: num_training * len(SOURCE_ANGLES)]
    return [
        Examples(x=Rotation(angle).apply(data.x_train[own], index=np.arange(len(own))), y=data.y_train[own])
        for angle, own in zip(SOURCE_ANGLES, np.split(order, len(SOURCE_ANGLES)), strict=True)
    ]


def trained(request: Request, row: Row) -> nn.Module:
    """Return the model of a row, in evaluation mode; one in the cache, trained with the same settings, is taken."""
    num_epochs = request.count("epochs", full=501, quick=40)
    pooling = request.count("pooling", full=1, quick=1)
    weight = request.setting("weight", full=0.1, quick=1)  # of few passes a small weight shows little
    model = _model(request, pooling)

    def train() -> None:
        train_on_domains(
            model,
            training_domains(request),
            method=row.method,
            factor=row.factor,
            seed=request.seed,
            num_epochs=num_epochs,
            num_warm_up=min(20, num_epochs // 3),  # the paper's 20
            adversarial_weight=weight,
        )

    arguments = (request.dataset("mnist"), row, num_epochs, pooling, weight, request.seed)
    return kept(model, train, cache=request.cache, arguments=arguments, name=f"dg-{row.name}")


def _model(request: Request, pooling: int) -> nn.Module:
    if request.quick:
        return build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=request.seed)
    name = f"{rotated_digits_cnn.__module__}:{rotated_digits_cnn.__name__}"
    model = build_model(name, x_shape=(1, 28, 28), num_classes=10, seed=request.seed)
    return nn.Sequential(nn.AvgPool2d(pooling), *model.children())
