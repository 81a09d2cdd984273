"""Which radii and how many multipliers to ask every client for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

# Below this, certificates are hardly worth a client's values.
MIN_RADII, MIN_MULTIPLIERS = 10, 6


def radii_grid(cost_budgets: Sequence[float] | np.ndarray, *, num_radii: int) -> np.ndarray:
    """Radii to ask every client, from the budgets of interest only.

    The adversary spends unevenly: some clients get nothing, others many times the mean budget.

    Parameters
    ----------
    cost_budgets : array_like
        In units of the transport cost; at least one must be > 0.
    num_radii : int
        At least 3.

    Returns
    -------
    ndarray, shape (num_radii,)
        0, and a geometric grid from 1/10 of the smallest positive budget to 5 times the largest.

    Raises
    ------
    ValueError
        If no budget is positive or the grid would be too small.
    """
    budgets = np.asarray(cost_budgets, dtype=np.float64)
    positive = budgets[budgets > 0.0]
    if positive.size == 0:
        raise ValueError("cost_budgets must hold at least one budget > 0; a budget of 0 means no shift")
    if num_radii < 3:
        raise ValueError(f"num_radii must be at least 3, got {num_radii}; 100 leave a gap of about 0.0005")
    return np.concatenate([[0.0], np.geomspace(positive.min() / 10.0, positive.max() * 5.0, num_radii - 1)])


def fitted_sizes(
    num_radii: int, num_multipliers: int, *, budgets: Iterable[int | None], num_values: Callable[[int, int], int]
) -> tuple[int, int]:
    """Return how many radii and multipliers fit the smallest query budget that allows a useful question.

    Parameters
    ----------
    num_radii, num_multipliers : int
        What is wanted.
    budgets : iterable of int or None
        Values that each client has left; None: no limit. One that is less than a question of `MIN_RADII` and
        `MIN_MULTIPLIERS` takes is not considered: that client cannot be asked.
    num_values : callable
        What a question takes, from its numbers of radii and multipliers; the more of either, the more.

    Returns
    -------
    num_radii, num_multipliers : int
        What is wanted, or less: the most that fits, both cut towards their minimum by the same share.
    """
    min_radii = min(num_radii, MIN_RADII)
    min_multipliers = min(num_multipliers, MIN_MULTIPLIERS)
    least = num_values(min_radii, min_multipliers)
    smallest = min((left for left in budgets if left is not None and left >= least), default=None)
    num_more = num_radii - min_radii + num_multipliers - min_multipliers
    for more in range(num_more, 0, -1):
        more_radii = more * (num_radii - min_radii) // num_more
        sizes = min_radii + more_radii, min_multipliers + more - more_radii
        if smallest is None or num_values(*sizes) <= smallest:
            return sizes
    return min_radii, min_multipliers
