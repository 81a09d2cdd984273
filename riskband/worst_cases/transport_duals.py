"""What is bet on for moved networks: outcomes whose mean, and a price of the budget, bound a mean risk or a share.

All grids are fixed before any answer, by the budgets, thresholds and numbers of examples alone (math §4.3, §4.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import betainc

from riskband.answers.adversarial import AdversarialAnswers
from riskband.answers.concave_curves import ConcaveCurve
from riskband.bands.levels import berk_jones_levels
from riskband.checks import FloatArray, IntArray
from riskband.worst_cases.transport_bets import TransportDuals

ROUNDING = 1e-6
"""A client may sit exactly at a threshold, and its answer be rounded: risks are looked at so far below."""

LIMIT_ETAS = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Error levels of the limits of one client that a gambler may choose from."""

_SLOPES = np.geomspace(1.0, 30.0, 9)  # of a hinge that bounds the indicator of a risk, in units of 1 / threshold
_CAPS = (0.0, 1.0, 2.0, np.inf)  # above 1, in standard deviations that the examples of a client may add
_MOST_SIZES, _LARGEST_SIZE = 8, 1_000  # of Berk-Jones levels for the costs of one client's examples


def multiplier_grid(budgets: FloatArray, *, ratio: float) -> FloatArray:
    """Multipliers a ratio apart, from 1/100 of what the largest budget can be worth to what the smallest one can.

    With 0, as if the budget had no end, and `inf`, as if there were none.
    """
    positive = budgets[budgets > 0.0]
    if positive.size == 0:
        return np.array([0.0, np.inf])
    low, high = 0.01 / positive.max(), 1.0 / positive.min()
    return np.concatenate([[0.0], np.geomspace(low, high, 2 + int(np.log(high / low) / np.log(ratio))), [np.inf]])


def conjugates_with_ends(answers: AdversarialAnswers, multipliers: FloatArray) -> FloatArray:
    """Upper bounds on phi_k, shape (num_clients, num_multipliers); at `inf` the risk without an adversary."""
    clean = np.minimum([curve.values[0] for curve in answers.curves], 1.0)
    is_finite = np.isfinite(multipliers)
    found = np.repeat(clean[:, np.newaxis], multipliers.size, axis=1)
    found[:, is_finite] = answers.least_conjugates(multipliers[is_finite])
    return found


def mean_duals(answers: AdversarialAnswers, multipliers: FloatArray) -> TransportDuals:
    """The worst mean is at most multiplier * budget + E phi, for every multiplier. Source: math §4.3."""
    return TransportDuals(conjugates_with_ends(answers, multipliers), multipliers, np.ones(multipliers.size))


def hinge_duals(
    phi: FloatArray, multipliers: FloatArray, num_examples: IntArray, *, threshold: float
) -> TransportDuals:
    """The share of clients at the threshold or above is at most a·multiplier·budget + E min(cap, (1 + a(phi - t))_+).

    For every slope a >= 0 and multiplier, if what the cap may take away from the mean is added. Any loss. Source:
    math §4.4.
    """
    spread = np.sqrt(threshold * (1.0 - threshold) / num_examples)[:, np.newaxis]
    families = []
    for slope in _SLOPES / threshold:
        hinge, top = np.maximum(1.0 + slope * (phi - threshold), 0.0), 1.0 + slope * (1.0 - threshold)
        prices = np.multiply(slope, multipliers)
        for cap in _CAPS:
            most = np.minimum(1.0 + cap * slope * spread, top) if np.isfinite(cap) else np.full_like(spread, top)
            lost = slope * binomial_excess(num_examples, threshold, threshold + (most[:, 0] - 1.0) / slope)
            outcomes = np.minimum(hinge, most) + lost[:, np.newaxis]
            scale = float(np.max(most[:, 0] + lost))
            families.append(TransportDuals(outcomes / scale, prices, np.full(prices.size, scale)))
    return TransportDuals.joined(families)


def binomial_excess(num_examples: IntArray, mean: float, point: FloatArray) -> FloatArray:
    """E(X/n - point)_+ for binomial X: the largest for any mean of n independent numbers in [0, 1] of this mean."""
    count = num_examples * point
    first = np.floor(count) + 1.0
    whole = _binomial_survival(num_examples - 1, mean, first - 1.0)
    excess = mean * whole - point * _binomial_survival(num_examples, mean, first)
    return np.maximum(excess, 0.0)


def _binomial_survival(num_trials: IntArray, chance: float, least: FloatArray) -> FloatArray:
    """P(Binomial >= least), elementwise."""
    inside = (least > 0.0) & (least <= num_trials)
    found = betainc(np.where(inside, least, 1.0), np.where(inside, num_trials - least + 1.0, 1.0), chance)
    return np.where(inside, found, least <= 0.0)


def limit_duals(
    curves: Sequence[ConcaveCurve],
    multipliers: FloatArray,
    num_examples: IntArray,
    *,
    threshold: float,
    etas: Sequence[float],
) -> TransportDuals:
    """The share is at most multiplier·budget + E(1 - multiplier·R)_+ / (1 - eta), R a client's limit at level eta.

    For a 0-1 loss. Source: math §4.4.
    """
    prices = multipliers[multipliers > 0.0]
    is_finite = np.isfinite(prices)
    families = []
    for eta in etas:
        for cost in _cost_limits(curves, num_examples, threshold=threshold, eta=eta):
            outcomes = np.repeat((cost <= 0.0).astype(np.float64)[:, np.newaxis], prices.size, axis=1)
            outcomes[:, is_finite] = np.maximum(1.0 - cost[:, np.newaxis] * prices[is_finite], 0.0)
            families.append(TransportDuals(outcomes, prices, np.full(prices.size, 1.0 / (1.0 - eta))))
    return TransportDuals.joined(families)


def _cost_limits(
    curves: Sequence[ConcaveCurve], num_examples: IntArray, *, threshold: float, eta: float
) -> Iterator[FloatArray]:
    """Lower limits at level eta for the cost of pushing each client to the threshold, from two bands of its costs."""
    margins = np.sqrt(np.log(1.0 / eta) / (2.0 * num_examples))
    yield np.array([float(curve.inverse(threshold - tau)) for curve, tau in zip(curves, margins, strict=True)])
    sizes = np.unique(num_examples)
    if sizes.size <= _MOST_SIZES and sizes[-1] <= _LARGEST_SIZE:
        weights = {size: _partial_sum_weights(size, threshold, eta) for size in sizes.tolist()}
        yield np.array(
            [_cost_by_ranks(curve, weights[n]) for curve, n in zip(curves, num_examples.tolist(), strict=True)]
        )


def _partial_sum_weights(num_examples: int, threshold: float, eta: float) -> FloatArray:
    """Weights >= 0 of the sums of the i smallest costs in a lower limit for the cost of pushing a client.

    A Berk-Jones band says P(D < i-th smallest cost) <= level_i for all i. The stochastically smallest distribution of
    costs D in it puts level_{i+1} - level_i on the i-th; these fall with i, so what they weigh is a sum of partial sums
    with weights >= 0, and a client's curve gives lower bounds for these. Where rounding makes them rise, mass costs
    nothing.
    """
    upper = berk_jones_levels(num_examples, eta, "upper").of_one_side
    steps = np.minimum.accumulate(np.diff(upper, append=1.0))
    free = 1.0 - float(steps.sum())
    masses = np.diff(np.minimum(free + np.cumsum(steps), threshold), prepend=min(free, threshold))
    return np.asarray(-np.diff(masses, append=0.0))


def _cost_by_ranks(curve: ConcaveCurve, weights: FloatArray) -> float:
    """A weighted sum of the sums of the i smallest costs: n times what it costs to make i of n examples wrong."""
    ranks = np.flatnonzero(weights > 0.0)
    costs = curve.inverse((ranks + 1.0) / weights.size - ROUNDING)
    return float(weights.size * (weights[ranks] @ costs))
