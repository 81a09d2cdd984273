"""The network of [RE]'s experiments, and its training on clients of the network "training"."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from protocol.models import build_model, load_weights, save_checkpoint
from worlds.population import Population, PopulationSpec
from worlds.training import train_epochs

MODEL = "papers.networks:paper_cnn"
"""Name of the model in a run config."""

_LOG = logging.getLogger(__name__)
_CHANNELS = (32, 64, 128)
_HIDDEN = 128


class Centred(nn.Module):
    """Maps pixels in [0, 1] to [−1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 2x − 1."""
        return 2 * x - 1


def paper_cnn(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build the authors' network: three 3×3 convolutions, ReLU and a 2×2 maximum after each, and two linear layers."""
    channels = (x_shape[0], *_CHANNELS)
    layers: list[nn.Module] = [Centred()]
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    num_features = _CHANNELS[-1] * (x_shape[1] // 8) * (x_shape[2] // 8)
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(num_features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, num_classes)
    )


def trained(spec: PopulationSpec, *, num_clients: int, num_epochs: int, cache: Path | None = None) -> nn.Module:
    """Return `paper_cnn` trained on clients of the law of `spec` that never answer, in evaluation mode.

    SGD at 0.01 with momentum 0.9 and batches of 100, as the authors'. With a folder `cache` the weights are kept there
    and read from there if they are; see `kept`.
    """
    spec = replace(spec, network="training")
    population = Population(spec)
    data = population.data
    model = build_model(MODEL, x_shape=data.x_train.shape[1:], num_classes=data.num_classes, seed=spec.seed)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # half the time of a forward pass

    def train() -> None:
        clients = [population.training_examples(k) for k in range(num_clients)]
        train_epochs(
            model,
            np.concatenate([client.x for client in clients]),
            np.concatenate([client.y for client in clients]),
            seed=spec.seed,
            num_epochs=num_epochs,
            learning_rate=0.01,
            momentum=0.9,
            batch_size=100,
        )

    return kept(model, train, cache=cache, arguments=(MODEL, spec, num_clients, num_epochs))


def kept(
    model: nn.Module,
    train: Callable[[], None],
    *,
    cache: Path | None,
    arguments: tuple[object, ...],
    name: str = "model",
) -> nn.Module:
    """Return a model after its training, in evaluation mode.

    With a folder `cache` its weights are kept there, under a name that depends on all that the training depends on (the
    `repr` of `arguments`), and read from there if they are.
    """
    digest = hashlib.sha256(repr(arguments).encode()).hexdigest()[:16]
    path = None if cache is None else cache / f"{name}-{digest}.pt"
    if path is not None and path.is_file():
        _LOG.info("%s: trained before, read from %s", name, path)
        load_weights(model, path)
        return model.eval()
    _LOG.info("%s: training", name)
    train()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(model, path)
    return model.eval()
