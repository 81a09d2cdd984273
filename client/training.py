"""Which simulated client trains on a node, for federated training. Plain functions, no Flower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from worlds.population import Examples, Population, spec_from_config

# Apart from the streams of `worlds.population` and `worlds.targets`.
_EXAMPLE_ORDER_STREAM = 3


def training_examples(config: Mapping[str, Any], *, partition: int) -> Examples | None:
    """Return what the client that trains on a node holds.

    A certificate needs clients that had no part in training, so those that train are others than those that answer:
    the network "training" of the same meta-distribution, one client on each of the first nodes. With `answered-by`
    "trainers" they are the clients of the source network, which also answer; then nothing is certified.

    Parameters
    ----------
    config : mapping
        The run config: the keys of `worlds.population.spec_from_config`, "num-clients", "num-training-clients"
        (0: as many as clients) and "answered-by".
    partition : int
        Number of the node, from 0.

    Returns
    -------
    Examples or None
        Of images of the training split; None where no client trains.

    Raises
    ------
    ValueError
        If a key of the population breaks its rule, or the dataset cannot be loaded.
    """
    if partition >= (int(config["num-training-clients"]) or int(config["num-clients"])):
        return None
    network = "source" if config["answered-by"] == "trainers" else "training"
    return Population(spec_from_config(config, network=network)).training_examples(partition)


def local_seed(seed: int, *, round: int, partition: int) -> int:
    """Return the seed of one client's training in one round, in 0..2**63 - 1."""
    sequence = np.random.SeedSequence(seed, spawn_key=(_EXAMPLE_ORDER_STREAM, round, partition))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
