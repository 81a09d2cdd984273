"""Who shares masks and secrets with whom in a secure sum: everybody, or random neighbourhoods of one size."""

from __future__ import annotations

import numpy as np


def neighbourhoods(num_clients: int, *, num_neighbours: int, rng: np.random.Generator) -> dict[int, tuple[int, ...]]:
    """Return the members of each client's neighbourhood, itself among them.

    Parameters
    ----------
    num_clients : int
        They have the numbers 1 to num_clients.
    num_neighbours : int
        Even, 2 at least. With no more clients than that, or one more, all are neighbours.
    rng : Generator
        Puts the clients on a circle, where the nearest on both sides are neighbours. Who is nobody's secret.

    Returns
    -------
    dict of int to tuple of int
        Numbers in increasing order. Neighbours are so of each other, and unless num_neighbours / 2 clients in a row
        drop out, the others stay connected. Source: Bell et al. 2020, SecAgg+ (Harary graphs).

    Raises
    ------
    ValueError
        If num_neighbours is odd or below 2, or there are fewer than 2 clients.
    """
    if num_neighbours < 2 or num_neighbours % 2 or num_clients < 2:
        raise ValueError(
            f"num_neighbours must be even and at least 2, of at least 2 clients, got {num_neighbours} of {num_clients}"
        )
    if num_clients <= num_neighbours + 1:
        everybody = tuple(range(1, num_clients + 1))
        return dict.fromkeys(everybody, everybody)
    circle = rng.permutation(num_clients)
    steps = np.arange(-(num_neighbours // 2), num_neighbours // 2 + 1)
    return {
        int(circle[place]) + 1: tuple(np.sort(circle[(place + steps) % num_clients] + 1).tolist())
        for place in range(num_clients)
    }
