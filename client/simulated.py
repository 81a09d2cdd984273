"""The data source of a simulated client: its examples, its group, and its part in federated training.

The only module of the client that knows `worlds`, and only a run with a simulated network loads it: a client with data
of its own does without. Plain functions, no Flower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from client.refusals import details_withheld
from protocol.examples import Examples
from protocol.hashes import model_hash
from protocol.models import build_model, is_lipschitz, load_arrays, model_arrays
from riskband.models.evaluation import chosen_device
from worlds.datasets import load_dataset
from worlds.loss_table import LossTable, PopulationRisks
from worlds.population import Population, PopulationSpec, spec_from_config
from worlds.training import train_epochs

# Apart from the streams of `worlds.population` and `worlds.targets`.
_EXAMPLE_ORDER_STREAM = 3


class SimulatedExamples:
    """What a simulated client holds: images are made, and a model is run on them, only where that is needed.

    The losses of a client without a transform of its own are read off a loss table of the pool, which a process makes
    once for each model and loss, if that takes no more than running the model on the examples of all clients. Which of
    the two it is depends on the run config alone, never on what a process has done before.
    """

    def __init__(self, population: Population, k: int, *, model: str, num_clients: int) -> None:
        self.population, self.k, self.model = population, k, model
        table_size = len(population.versions) * len(population.data.y_pool)
        is_table_smaller = table_size <= num_clients * population.spec.examples_per_client
        self.is_looked_up = is_table_smaller and population.shift(k).transform is None

    @cached_property
    def _held(self) -> Examples:
        return self.population.client(self.k)

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        return self.population.client_rows(self.k)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.population.data.x_pool.shape[1:]

    @property
    def x(self) -> np.ndarray:
        """Inputs (num_examples, *x_shape)."""
        return self._held.x

    @property
    def y(self) -> np.ndarray:
        """Labels (num_examples,)."""
        return np.asarray(self.population.data.y_pool[self._rows[0]])

    def mean_losses(self, model: nn.Module, *, losses: Collection[str]) -> dict[str, float]:
        """Return the mean of each of several losses of a model, by name."""
        if not self.is_looked_up:
            return self._held.mean_losses(model, losses=losses)
        weights = model_hash(model_arrays(model))
        tables = {
            loss: _kept_table((self.population.spec, self.model, weights, loss), self.population, model)
            for loss in losses
        }
        return {loss: float(table.losses_of(*self._rows).mean()) for loss, table in tables.items()}


_TABLES: dict[tuple[PopulationSpec, str, str, str], LossTable] = {}
_MOST_LOSSES = 2**25  # 256 MB; a limit on their number would make candidates push each other out, client by client


def _kept_table(key: tuple[PopulationSpec, str, str, str], population: Population, model: nn.Module) -> LossTable:
    """Return the loss table of a population, model (name and hash of its weights) and loss, made once in a process."""
    if key not in _TABLES:
        made = PopulationRisks(population, model, loss=key[-1]).table
        while _TABLES and made.losses.size + sum(each.losses.size for each in _TABLES.values()) > _MOST_LOSSES:
            _TABLES.pop(next(iter(_TABLES)))
        _TABLES[key] = made
    return _TABLES[key]


def examples(config: Mapping[str, Any], *, partition: int, model: str) -> SimulatedExamples:
    """Return what client number `partition` of the run's network holds; raises ValueError as `spec_from_config`.

    `model` is the name of the model that it is asked about.
    """
    population = Population(spec_from_config(config))
    return SimulatedExamples(population, partition, model=model, num_clients=int(config.get("num-clients", 0)))


def group_name(config: Mapping[str, Any], *, partition: int) -> str | None:
    """Return the group of client number `partition` of the run's network, None if it has no groups."""
    group = spec_from_config(config).group(partition)
    return None if group is None else group.name


def own_weights(
    config: Mapping[str, Any], *, partition: int, device: str, network: str = "source"
) -> dict[str, np.ndarray]:
    """Return the weights of a model that client number `partition` of a network has `trained` for itself alone."""
    data, seed = load_dataset(str(config["dataset"]), seed=int(config["seed"])), int(config["seed"])
    first = build_model(str(config["model"]), x_shape=data.x_train.shape[1:], num_classes=data.num_classes, seed=seed)
    own = Population(spec_from_config(config, network=network)).training_examples(partition)
    return trained(model_arrays(first), config, partition=partition, server_round=0, device=device, own=own)[0]


def trained(
    arrays: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    *,
    partition: int,
    server_round: int,
    device: str,
    own: Examples | None = None,
) -> tuple[dict[str, np.ndarray], int, float]:
    """Train a model on what the client that trains on a node, numbered from 0, holds; rounds are numbered from 1.

    The device is a name in `riskband.models.evaluation.DEVICES`. Returns the model's weights, as they came where
    no client trains; the number of examples, 0 where none does; and the loss of the last epoch, in nats.
    """
    torch.set_num_threads(1)
    with details_withheld("loading this client's training examples"):
        data = load_dataset(str(config["dataset"]), seed=int(config["seed"]))
        own = own or training_examples(config, partition=partition)
    model = build_model(str(config["model"]), x_shape=data.x_train.shape[1:], num_classes=data.num_classes, seed=0)
    load_arrays(model, arrays)
    if own is None:
        return model_arrays(model), 0, 0.0
    with details_withheld("training the model"):
        loss = train_epochs(
            model.to(chosen_device(device)),
            own.x,
            own.y,
            seed=local_seed(int(config["seed"]), round=server_round, partition=partition),
            num_epochs=int(config["training-epochs"]),
            learning_rate=float(config["learning-rate"]),
            is_orthogonal=is_lipschitz(str(config["model"])),
            margin=float(config["training-margin"]),
            noise_sigma=float(config["training-noise"]),
        )
    return model_arrays(model), len(own.y), loss


def training_examples(config: Mapping[str, Any], *, partition: int) -> Examples | None:
    """Return what the client that trains on a node holds.

    A certificate needs clients that had no part in training, so those that train are others than those that answer:
    the network "training" of the same meta-distribution, one client on each of the first nodes. With `answered-by`
    "trainers" they are the clients of the source network, which also answer; then nothing is certified.

    Returns images of the training split; None where no client trains. Raises ValueError if a key of the population
    breaks its rule, or the dataset cannot be loaded.
    """
    if partition >= (int(config["num-training-clients"]) or int(config["num-clients"])):
        return None
    network = "source" if config["answered-by"] == "trainers" else "training"
    return Population(spec_from_config(config, network=network)).training_examples(partition)


def local_seed(seed: int, *, round: int, partition: int) -> int:
    """Return the seed of one client's training in one round, in 0..2**63 - 1."""
    sequence = np.random.SeedSequence(seed, spawn_key=(_EXAMPLE_ORDER_STREAM, round, partition))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
