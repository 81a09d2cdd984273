"""Minimisation of a smooth function by limited-memory BFGS, on one thread.

The vectors here are short, and SciPy's L-BFGS-B spends them on threaded linear algebra: on a busy machine that takes
fifty times as long as the function itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from riskband.checks import FloatArray

Loss = Callable[[FloatArray], tuple[float, FloatArray]]

_MEMORY = 30
_DECREASE, _CURVATURE = 1e-4, 0.9  # constants of the weak Wolfe conditions
_MAX_TRIALS = 25  # of a line search


def descend(loss: Loss, start: FloatArray, *, num_iterations: int, tolerance: float = 1e-10) -> FloatArray:
    """Point of a low loss, by L-BFGS with a line search that brackets the weak Wolfe conditions.

    Parameters
    ----------
    loss : callable
        Value and gradient at a point, both finite.
    start : ndarray, shape (num_variables,)
        Where to start.
    num_iterations : int
        At most so many.
    tolerance : float
        A decrease by less than this, relative to the loss or 1, ends the search.

    Returns
    -------
    ndarray, shape (num_variables,)
        The best point found; its loss is at most that of the start. Source: Nocedal and Wright 2006, chapter 7; line
        search of Lewis and Overton 2013.
    """
    point, (value, gradient) = start, loss(start)
    pairs: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=_MEMORY)
    for _ in range(num_iterations):
        direction = -_scaled(gradient, pairs)
        slope = float(direction @ gradient)
        if slope >= 0.0:
            break
        low, high, step = 0.0, np.inf, 1.0 if pairs else min(1.0, 1.0 / float(np.linalg.norm(gradient)))
        for _ in range(_MAX_TRIALS):
            trial = point + step * direction
            new_value, new_gradient = loss(trial)
            if new_value > value + _DECREASE * step * slope:
                high = step
            elif float(new_gradient @ direction) < _CURVATURE * slope:
                low = step
            else:
                break
            step = 2.0 * low if np.isinf(high) else 0.5 * (low + high)
        if not new_value < value:  # nor if it is NaN
            break
        move, change = trial - point, new_gradient - gradient
        if float(move @ change) > 1e-14 * float(move @ move):
            pairs.append((move, change))
        decrease = value - new_value
        point, value, gradient = trial, new_value, new_gradient
        if decrease <= tolerance * max(1.0, abs(value)):
            break
    return point


def _scaled(gradient: FloatArray, pairs: deque[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Product of the gradient with the inverse Hessian that the pairs of moves and changes suggest."""
    product, shares = gradient.copy(), []
    for move, change in reversed(pairs):
        shares.append(float(move @ product) / float(move @ change))
        product -= shares[-1] * change
    if pairs:
        move, change = pairs[-1]
        product *= float(move @ change) / float(change @ change)
    for (move, change), share in zip(pairs, reversed(shares), strict=True):
        product += (share - float(change @ product) / float(move @ change)) * move
    return product
