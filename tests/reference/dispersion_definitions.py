"""Dispersion measures of discrete laws, from their textbook definitions, and bands given by their quantile limits.

Risks have shape (..., num_atoms), sorted or not; weights (num_atoms,). Nothing here looks at riskband's formulas.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

import riskband as rb


def mean(x, w):
    return np.sum(x * w, axis=-1)


def relative(part, x, w):
    m = mean(x, w)
    return np.where(m > 0, part / np.where(m > 0, m, 1), 0.0)


def gini(x, w):
    """E|X - X'| / (2 E X), by all pairs."""
    distances = np.abs(x[..., :, None] - x[..., None, :])
    return relative(np.sum(distances * w[:, None] * w, axis=(-2, -1)) / 2, x, w)


def survival_integral(x, w, power):
    """∫(1 - F)^power over [0, 1], F the CDF of sorted atoms."""
    steps = np.diff(x, axis=-1, prepend=0.0)
    above = np.clip(1 - np.concatenate([[0.0], np.cumsum(w)[:-1]]), 0, 1)
    return np.sum(steps * above**power, axis=-1)


def extended_gini(aversion):
    """1 - E min over `aversion` draws / E X for a whole number of draws: ∫(1 - F)^ν / E X."""
    return lambda x, w: relative(mean(x, w) - survival_integral(x, w, aversion), x, w)


def mean_range(k):
    """∫ 1 - F^k - (1 - F)^k."""

    def value(x, w):
        steps = np.diff(x, axis=-1)
        below = np.clip(np.cumsum(w)[:-1], 0, 1)
        return np.sum(steps * (1 - below**k - (1 - below) ** k), axis=-1)

    return value


def atkinson(aversion):
    def value(x, w):
        with np.errstate(divide="ignore"):
            if aversion == 1:
                equal = np.exp(mean(np.log(x), w))
            else:
                equal = mean(x ** (1.0 - aversion), w) ** (1 / (1 - aversion))
        return np.where(mean(x, w) > 0, 1 - relative(equal, x, w), 0.0)

    return value


def entropy(order):
    def value(x, w):
        m = mean(x, w)
        ratio = x / np.where(m > 0, m, 1)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if order == 0:
                terms = -np.log(ratio)
            elif order == 1:
                terms = np.where(ratio > 0, ratio * np.log(ratio), 0.0)
            else:
                terms = (ratio**order - 1) / (order * (order - 1))
        return np.where(m > 0, mean(np.where(w > 0, terms, 0.0), w), 0.0)

    return value


def hoover(x, w):
    return relative(mean(np.abs(x - mean(x, w)[..., None]), w) / 2, x, w)


def variation(x, w):
    return relative(np.sqrt(mean((x - mean(x, w)[..., None]) ** 2, w)), x, w)


def top_share(share):
    """Risk of the worst-off share, the last client counted in part; sorted atoms."""

    def value(x, w):
        from_top = np.cumsum(w[::-1])[::-1]
        counted = np.clip(share - (from_top - w), 0, w)
        return np.where(mean(x, w) > 0, relative(mean(x, counted), x, w), share)

    return value


def quantile(x, w, level):
    return x[..., np.searchsorted(np.cumsum(w), level - 1e-12)]


def quantile_ratio(low, high):
    def value(x, w):
        a, b = quantile(x, w, low), quantile(x, w, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(b > 0, b / a, 1.0)

    return value


def quantile_range(low, high):
    return lambda x, w: quantile(x, w, high) - quantile(x, w, low)


DEFINITIONS = {
    "gini": gini,
    "extended_gini:1.5": extended_gini(1.5),
    "extended_gini:4": extended_gini(4),
    "atkinson:0": atkinson(0),
    "atkinson:0.5": atkinson(0.5),
    "atkinson:1": atkinson(1),
    "atkinson:2": atkinson(2),
    "generalised_entropy:2": entropy(2),
    "generalised_entropy:3.5": entropy(3.5),
    "generalised_entropy:0.5": entropy(0.5),
    "generalised_entropy:-1": entropy(-1),
    "theil": entropy(1),
    "mean_log_deviation": entropy(0),
    "hoover": hoover,
    "coefficient_of_variation": variation,
    "top_share:0.3": top_share(0.3),
    "quantile_ratio:0.25:0.75": quantile_ratio(0.25, 0.75),
    "quantile_range:0.25:0.75": quantile_range(0.25, 0.75),
    "mean_range:2": mean_range(2),
    "mean_range:5": mean_range(5),
}


def band_with_limits(levels, lower, upper):
    """Band whose quantile function lies between `lower` and `upper` on the steps that end at `levels` (the last 1)."""
    any_band = rb.band(rb.ClientRisks([0.2, 0.4], 10), delta=0.5, method="dkw", local="observed")
    levels = np.asarray(levels, dtype=float)
    return replace(
        any_band,
        lower_points=np.asarray(upper, dtype=float),
        lower_levels=levels,
        upper_points=np.asarray(lower, dtype=float),
        upper_levels=np.concatenate([[0.0], levels[:-1]]),
    )


def nondecreasing_selections(lower, upper):
    """All nondecreasing rows with lower <= row <= upper and entries among all values of the limits.

    Every vertex of the polytope of nondecreasing functions within the limits is among them.
    """
    values = np.unique(np.concatenate([lower, upper]))
    rows = [(value,) for value in values if lower[0] <= value <= upper[0]]
    for low, high in zip(lower[1:], upper[1:], strict=True):
        rows = [(*row, value) for row in rows for value in values if low <= value <= high and value >= row[-1]]
    return np.array(rows)


def refined(levels, lower, upper, points):
    """Widths and limits on steps cut further at `points`."""
    edges = np.unique(np.concatenate([[0.0], levels, [p for p in points if 0 < p < 1]]))
    ends = np.array([right for _, right in pairwise(edges)])
    step = np.searchsorted(levels, ends)
    return np.diff(edges), np.asarray(lower)[step], np.asarray(upper)[step]


def integral(function, band):
    knots = np.unique(np.concatenate([[0.0], band.lower_levels, band.upper_levels, [1.0]]))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    p = (knots[:-1, None] + knots[1:, None]) / 2 + np.diff(knots)[:, None] / 2 * nodes
    return float(np.sum(function(p) * weights * np.diff(knots)[:, None] / 2))
