"""One search for every monotone question: bisection that returns both ends of the bracket.

A certificate must come from the safe end of a bracket, never from its middle, so the caller always gets both.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from riskband.checks import FloatArray

_MOST_TRIES = 150


class Bracket(NamedTuple):
    """Two ends that enclose the answer of a search.

    Attributes
    ----------
    lower : float
        Largest point found where the property still holds; `-inf` if it holds nowhere.
    upper : float
        Smallest point found where it fails; `inf` if it was never seen to fail.
    """

    lower: float
    upper: float


def bisect(
    holds: Callable[[FloatArray], npt.NDArray[np.bool_]],
    *,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    num_steps: int = 60,
) -> tuple[FloatArray, FloatArray]:
    """Narrow `low <= boundary <= high`, elementwise, for a property that holds below the boundary and not above.

    `holds` maps an array of points to booleans of the same shape; `low` is taken to hold, `high` to fail, and both are
    broadcast against each other. 60 halvings reach the resolution of a float. Of the narrowed bracket that is returned,
    `holds(low)` was true or `low` is the given one; likewise `high`.
    """
    low, high = (np.array(end, dtype=np.float64) for end in np.broadcast_arrays(low, high))
    for _ in range(num_steps):
        if np.all(high <= low):
            break
        middle = 0.5 * (low + high)
        is_below = holds(middle)
        low = np.where(is_below, middle, low)
        high = np.where(is_below, high, middle)
    return low, high


def bisect_number(
    holds: Callable[[float], bool], *, low: float, high: float, num_steps: int = 60, relative_tolerance: float = 0.0
) -> Bracket:
    """As `bisect`, for one number; it ends where the bracket is at most `relative_tolerance` of its upper end wide."""
    for _ in range(num_steps):
        if high - low <= relative_tolerance * abs(high):
            break
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Bracket(low, high)


def largest_where(
    holds: Callable[[float], bool], *, most: float, num_steps: int = 60, relative_tolerance: float = 0.0
) -> Bracket:
    """Bracket of the largest number from 0 to `most` at which a property holds; the rest as for `bisect_number`."""
    if not holds(0.0):
        return Bracket(-np.inf, 0.0)
    if holds(most):
        return Bracket(most, np.inf)
    return bisect_number(holds, low=0.0, high=most, num_steps=num_steps, relative_tolerance=relative_tolerance)


def smallest_size(
    too_few: int, suffices: Callable[[int], bool], *, most: int, fineness: int | None = None, reach: int | None = None
) -> int | None:
    """Smallest size above `too_few` that suffices, by doubling and then halving; None if not even `most` does.

    Exact, or with a `fineness` to one part in so many. What is doubled is the `reach` of a step, at first `too_few`.
    """
    reach = reach or too_few
    while not suffices(enough := min(too_few + reach, most)):
        if enough == most:
            return None
        too_few, reach = enough, 2 * reach
    while enough - too_few > (max(too_few // fineness, 1) if fineness else 1):
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough


def root_from_above(
    excess: Callable[[float], float], *, low: float, high: float, guess: float, tolerance: float
) -> float:
    """Smallest point found at which an increasing function is at least 0, within `tolerance` of one where it is not.

    For a function that is costly and smooth: false position (Illinois) from a bracket around the guess, and every
    fourth time a halving, in a third of the steps of `bisect`. `low` is taken to be below the root, and `high`, which
    is returned if nothing better is found, above it.
    """
    ends, reach = [(low, np.nan), (high, np.nan)], (high - low) / 256.0
    point, last = guess, -1
    for num_tries in range(_MOST_TRIES):
        value = excess(point)
        side = int(value >= 0.0)
        ends[side] = (point, value)
        (low, below), (high, above) = ends
        if high - low <= tolerance:
            break
        if np.isnan(below) or np.isnan(above) or not np.isfinite(above - below):  # one end is not yet known
            point = float(np.clip(point + (reach if side == 0 else -reach), 0.5 * (low + point), 0.5 * (high + point)))
            reach *= 4.0
        elif num_tries % 4 == 3:  # whatever the shape of the function is
            point = 0.5 * (low + high)
        else:
            if side == last:  # the other end has stayed: count half of it
                other = 1 - side
                ends[other] = (ends[other][0], 0.5 * ends[other][1])
                (low, below), (high, above) = ends
            inner = min(0.5 * tolerance, 0.25 * (high - low))
            point = float(np.clip(low - below * (high - low) / (above - below), low + inner, high - inner))
        last = side
    return high
