"""A loss table: the loss of a model on every image of a pool in every version, from one pass of the model.

Where clients are mixtures of fixed versions of one pool (labels, resolutions, colours, rotations, corruptions), it
holds all there is to know of a model: what each client measures is looked up, its exact risk a weighted mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from riskband.models.evaluation import device_of, example_losses, in_eval_mode, mean_loss
from worlds.population import Population
from worlds.shifts import DrawnShift, check_pairs
from worlds.versions import ImageVersion


@dataclass(frozen=True, eq=False)
class LossTable:
    """Losses of one model on each image in each version, (num_versions, num_images), in [0, 1], and the labels."""

    versions: tuple[ImageVersion, ...]
    losses: NDArray[np.float64]
    y: NDArray[np.int64]

    def losses_of(self, index: NDArray[np.intp], version: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the losses of examples, (num_examples,): images and versions by their numbers in this table."""
        return np.asarray(self.losses[version, index])

    def risk(self, drawn: DrawnShift) -> float:
        """Return the exact risk R(P_k), in [0, 1], of a client under this shift.

        Raises ValueError if the shift has a transform, or a version that is not in the table.
        """
        if drawn.transform is not None:
            raise ValueError(
                "a client of a loss table must be a mixture of versions, got one with a transform of its own; "
                "evaluate the model on its distribution"
            )
        rows = self.positions(drawn.versions_or_original)
        # The weights sum to 1 up to rounding.
        return float(np.clip(drawn.weights_of_versions @ (self.losses[rows] @ drawn.example_weights(self.y)), 0, 1))

    def risks(self, class_weights: ArrayLike | None, version_weights: ArrayLike) -> NDArray[np.float64]:
        """Return the exact risks of many clients, (num_clients,), in [0, 1].

        Weights of classes, (num_clients, num_classes), and of versions, (num_clients, num_versions), are rows that sum
        to 1; None: the proportions of the pool.
        """
        of_versions = np.asarray(version_weights, dtype=float)
        if class_weights is None:
            return np.asarray(np.clip(of_versions @ self.losses.mean(axis=1), 0, 1))
        of_classes = np.asarray(class_weights, dtype=float)
        counts = np.bincount(self.y, minlength=of_classes.shape[1])
        sums = np.stack([np.bincount(self.y, weights=row, minlength=len(counts)) for row in self.losses])
        # As `DrawnShift.example_weights`: a class without images has no part.
        of_classes = of_classes * (counts > 0)
        risks = np.einsum("kv,vc,kc->k", of_versions, sums / np.maximum(counts, 1), of_classes, optimize=True)
        return np.asarray(np.clip(risks / of_classes.sum(axis=1), 0, 1))

    def positions(self, versions: Sequence[ImageVersion]) -> NDArray[np.intp]:
        """Return the numbers in this table of some versions; raises ValueError if one is not in it."""
        numbers = {version: number for number, version in enumerate(self.versions)}
        missing = [version.name for version in versions if version not in numbers]
        if missing:
            raise ValueError(f"versions must be in the loss table, got {', '.join(missing)}; make a table with them")
        return np.array([numbers[version] for version in versions], dtype=np.intp)


def loss_table(
    model: nn.Module,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    versions: Sequence[ImageVersion],
    *,
    loss: str = "zero_one",
    batch_size: int = 512,
) -> LossTable:
    """Run a model on every image of a pool in every version; see `riskband.models.evaluation.example_losses`.

    The versions are different ones, such as `Population.versions`. Raises ValueError as there, or if there is no
    version, or one twice.
    """
    check_pairs(x, y)
    if not versions or len(set(versions)) < len(versions):
        names = [version.name for version in versions]
        raise ValueError(f"versions must be one or more different ones, got {names}; give (Original(),) for none")
    losses = np.empty((len(versions), len(y)))
    for start in range(0, len(y), batch_size):  # images of one batch at a time: a whole pool in float64 is large
        index = np.arange(start, min(start + batch_size, len(y)))
        for row, version in zip(losses, versions, strict=True):
            seen = version.apply(x[index], index=index)
            row[index] = example_losses(model, seen, y[index], loss=loss, batch_size=batch_size)
    return LossTable(versions=tuple(versions), losses=losses, y=y)


class PopulationRisks:
    """The risks of a population's clients under one model: looked up where the client is a mixture of versions.

    Where it has a transform of its own, the model is run on its images. `loss` is a name in
    `riskband.models.losses`.
    """

    def __init__(self, population: Population, model: nn.Module, *, loss: str) -> None:
        self.population = population
        self.model = model
        self.loss = loss

    @cached_property
    def table(self) -> LossTable:
        """The loss of every image of the pool in every version that a client may hold."""
        data = self.population.data
        return loss_table(self.model, data.x_pool, data.y_pool, self.population.versions, loss=self.loss)

    def exact(self, num_clients: int) -> NDArray[np.float64]:
        """Return R(P_k), in [0, 1], of the first clients: every image that client k could hold, by its probability."""
        return self._of_each(self._exact, num_clients)

    def measured(self, num_clients: int) -> NDArray[np.float64]:
        """Return the mean loss of what each of the first clients holds, in [0, 1]."""
        return self._of_each(self._measured, num_clients)

    def _of_each(self, risk: Callable[[int], float], num_clients: int) -> NDArray[np.float64]:
        # One client at a time for each core, and each with as many threads as the caller has: the sums are the same.
        num_workers = (os.cpu_count() or 1) if device_of(self.model).type == "cpu" else 1
        alike = partial(torch.set_num_threads, torch.get_num_threads())
        with in_eval_mode(self.model), ThreadPoolExecutor(num_workers, initializer=alike) as workers:
            return np.fromiter(workers.map(risk, range(num_clients)), dtype=np.float64, count=num_clients)

    def _exact(self, k: int) -> float:
        shift = self.population.shift(k)
        if shift.transform is None:
            return self.table.risk(shift)
        x, y = self.population.data.x_pool, self.population.data.y_pool
        index, risk = np.arange(len(y)), 0.0
        for version in np.flatnonzero(shift.weights_of_versions):  # one at a time: all may not fit into memory
            seen = shift.seen(x, index=index, version=np.full(len(y), version))
            losses = example_losses(self.model, seen, y, loss=self.loss)
            risk += shift.weights_of_versions[version] * float(shift.example_weights(y) @ losses)
        return float(np.clip(risk, 0, 1))  # the weights sum to 1 up to rounding

    def _measured(self, k: int) -> float:
        if self.population.shift(k).transform is None:
            return float(self.table.losses_of(*self.population.client_rows(k)).mean())
        client = self.population.client(k)
        return mean_loss(self.model, client.x, client.y, loss=self.loss)[0]
