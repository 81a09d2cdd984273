"""Levels of confidence bands: how far the CDF may be from the ranks of K independent values (math §2).

With x_(1) <= ... <= x_(K) the sorted values, lower levels L mean F(x_(i)) >= L_i for all i, upper levels U mean
F(x_(i) -) <= U_i for all i; each function makes its event hold with probability at least 1 - delta. Ties and discrete
laws only help.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv

from riskband.checks import FloatArray
from riskband.crossing import crossing_probability


class Levels(NamedTuple):
    """Lower and upper levels at the sorted values, each of shape (num_values,) or absent."""

    lower: FloatArray | None
    upper: FloatArray | None


def dkw_levels(num_values: int, delta: float, sides: str) -> Levels:
    """Dvoretzky-Kiefer-Wolfowitz levels with Massart's constant.

    Parameters
    ----------
    num_values : int
        Number of independent values.
    delta : float
        Probability that the band fails, in (0, 1).
    sides : {"lower", "upper", "two"}
        Which sides hold; `two` jointly.

    Returns
    -------
    Levels
        i/K minus, and (i - 1)/K plus, sqrt(log(c/delta) / (2 K)), c = 1 or 2 sides. Source: Massart 1990; math §2.

    Notes
    -----
    Massart's one-sided inequality needs delta <= 1/2; for larger delta the band of 1/2 is returned, which is wider.
    """
    num_sides = 2 if sides == "two" else 1
    half_width = np.sqrt(np.log(num_sides / min(delta, 0.5 * num_sides)) / (2.0 * num_values))
    ranks = np.arange(1, num_values + 1) / num_values
    lower = np.clip(ranks - half_width, 0.0, 1.0)
    return _on_sides(lower, np.clip(ranks - 1.0 / num_values + half_width, 0.0, 1.0), sides)


def berk_jones_levels(num_values: int, delta: float, sides: str) -> Levels:
    """Berk-Jones levels: the same tail probability at every order statistic, calibrated exactly.

    Parameters
    ----------
    num_values : int
        Number of independent values.
    delta : float
        Probability that the band fails, in (0, 1).
    sides : {"lower", "upper", "two"}
        Which sides hold; `two` is calibrated on the joint event.

    Returns
    -------
    Levels
        L_i = Beta^{-1}(c; i, K - i + 1) and U_i = 1 - L_{K + 1 - i}, with c from `berk_jones_constant`.
        Source: math §2; [DC] states that two one-sided bounds hold jointly at the same delta, which is false.
    """
    lower = _berk_jones_lower(num_values, berk_jones_constant(num_values, delta, is_two_sided=sides == "two"))
    return _on_sides(lower, 1.0 - lower[::-1], sides)


@lru_cache(maxsize=1024)
def berk_jones_constant(num_values: int, delta: float, *, is_two_sided: bool) -> float:
    """Largest c (up to rounding) whose Berk-Jones boundary is crossed with probability at most `delta`.

    Parameters
    ----------
    num_values : int
        Number of independent values.
    delta : float
        Probability of crossing, in (0, 1).
    is_two_sided : bool
        Whether both boundaries count.

    Returns
    -------
    float
        c in (0, delta], from the safe end of the search: the crossing probability of the boundary is verified to be
        at least 1 - delta. Kept for the life of the process.

    Raises
    ------
    ValueError
        If `delta` is below 1e-9, where rounding would decide.
    RuntimeError
        If the search does not converge, which no valid input is known to cause.
    """
    if delta < 1e-9:
        raise ValueError(
            f"berk_jones needs delta >= 1e-9, got {delta:g}: below it rounding would decide; use method='dkw'"
        )
    allowance = 1e-9 * delta + 1e-12  # far above rounding, far below anything visible in the band
    target = _log_hazard(1.0 - delta + allowance / 2)
    point = target - 2.0 * np.log(np.log(num_values + 2.0)) - (np.log(2.0) if is_two_sided else 0.0)
    low, high = -np.inf, np.inf  # where the boundary is crossed too rarely, and too often
    slope, previous = 1.0, None
    for _ in range(40):
        c = float(-np.expm1(-np.exp(point)))
        coverage = _berk_jones_coverage(num_values, c, is_two_sided=is_two_sided)
        if 0.0 <= coverage - (1.0 - delta) <= allowance:
            return c
        error = _log_hazard(coverage) - target
        low, high = (point, high) if error < 0.0 else (low, point)
        if previous is not None:  # secant on axes where the curve is nearly straight
            slope = (error - previous[1]) / (point - previous[0])
        previous = (point, error)
        step = point - error / slope if slope > 0.0 else np.nan
        point = step if low < step < high else 0.5 * (max(low, point - 1.0) + min(high, point + 1.0))
    raise RuntimeError(f"Berk-Jones calibration did not converge for {num_values} values at delta={delta}")


def _log_hazard(coverage: float) -> float:
    return float(np.log(-np.log(min(max(coverage, 1e-300), 1.0 - 1e-16))))


def _berk_jones_coverage(num_values: int, c: float, *, is_two_sided: bool) -> float:
    lower = _berk_jones_lower(num_values, c)
    return crossing_probability(lower, 1.0 - lower[::-1] if is_two_sided else None)


def _berk_jones_lower(num_values: int, c: float) -> FloatArray:
    rank = np.arange(1.0, num_values + 1.0)
    return np.asarray(betaincinv(rank, num_values - rank + 1.0, c), dtype=np.float64)


def _on_sides(lower: FloatArray, upper: FloatArray, sides: str) -> Levels:
    return Levels(lower if sides != "upper" else None, upper if sides != "lower" else None)
