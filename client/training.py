"""A client's share of the training split, for federated training. Plain functions, no Flower."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Apart from the streams (0, k) and (1, k) that build the source and the unseen network's clients.
_PARTITION_STREAM = 2
_EXAMPLE_ORDER_STREAM = 3


def training_partition(
    labels: NDArray[np.int64], *, partition: int, num_partitions: int, concentration: float, seed: int
) -> NDArray[np.int64]:
    """Return the indices of one client's training examples.

    The partitions are disjoint and cover the split. Each client can compute its own, since all of
    them follow from the same arguments.

    Parameters
    ----------
    labels : ndarray of int, shape (num_examples,)
        Labels of the whole training split.
    partition, num_partitions : int
        Which share, of how many.
    concentration : float, >= 0
        0 shares the examples out evenly at random. Otherwise each class is shared out in
        proportions drawn from Dirichlet(concentration, ..., concentration), as in Hsu, Qi and Brown
        (2019), arXiv:1909.06335; then a client may get few examples, or none.
    seed : int
        Decides the shares.

    Returns
    -------
    ndarray of int, shape (num_own_examples,)
        Sorted.

    Raises
    ------
    ValueError
        If there is no such partition or the concentration is negative.
    """
    if not 0 <= partition < num_partitions:
        raise ValueError(
            f"partition must be in 0..{num_partitions - 1}, got {partition}; partitions are numbered from 0"
        )
    if not concentration >= 0:
        raise ValueError(f"concentration must be at least 0, got {concentration}; give 0 for even shares")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_PARTITION_STREAM,)))
    if concentration == 0:
        return np.sort(np.array_split(rng.permutation(len(labels)), num_partitions)[partition])
    own = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_partitions, concentration))
        ends = np.rint(np.cumsum(shares) * len(members)).astype(np.int64)
        own.append(np.split(members, ends[:-1])[partition])
    return np.sort(np.concatenate(own))


def local_seed(seed: int, *, round: int, partition: int) -> int:
    """Return the seed of one client's training in one round, in 0..2**63 - 1."""
    sequence = np.random.SeedSequence(seed, spawn_key=(_EXAMPLE_ORDER_STREAM, round, partition))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
