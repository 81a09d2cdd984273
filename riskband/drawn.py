"""Bounds from answers of clients however they were drawn: by one bet on all units at constant stakes (math §7.6).

Where clients are not independent draws from the network, a unit is a client, or a cluster of clients with the mean of
their outcomes. It counts with its weight; clients that were asked and did not answer count with a limit for the mean of
all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from riskband.answers.risks import ClientRisks
from riskband.betting import (
    CONSTANT_STAKES,
    Dual,
    betting_upper_bound,
    constant_stakes_upper_bound,
    constant_stakes_upper_mean,
)
from riskband.checks import FloatArray

# Of delta, for the mean of clients that did not answer. They are fewer than those that did, mostly.
_PART_OF_SILENT = 0.25


def upper_mean(risks: ClientRisks, outcomes: FloatArray, *, delta: float, is_share: bool = False) -> float:
    """Upper confidence limit for the mean over the network of outcomes in [0, 1], shape (num_clients,).

    It grows with every outcome. Those of a share are 0 and 1, mostly.
    """
    weights, spread = _weights(risks)
    is_share &= risks.design is None or risks.design.weights is None  # with weights, a coin's deviation says nothing
    (values,), rest = _of_units(risks, [outcomes], delta, is_share=is_share)
    return constant_stakes_upper_mean(values, delta=rest, weights=weights, spread=spread, is_share=is_share)


def dual_upper_bound(risks: ClientRisks, duals: Sequence[Dual], *, delta: float, seed: int | None) -> tuple[float, str]:
    """`betting_upper_bound` from answers, and the name of its method."""
    if risks.are_independent:
        return betting_upper_bound(duals, (risks.values, risks.num_examples), delta=delta, seed=seed)
    refuse_order(risks, seed)
    outcomes, rest = _of_units(risks, [dual.outcomes for dual in duals], delta)
    of_units = [replace(dual, outcomes=values) for dual, values in zip(duals, outcomes, strict=True)]
    weights, spread = _weights(risks)
    return constant_stakes_upper_bound(of_units, delta=rest, weights=weights, spread=spread), CONSTANT_STAKES


def upper_quantile(risks: ClientRisks, numbers: FloatArray, *, tail: float, delta: float) -> float:
    """Upper confidence limit for the number, of these of clients, shape (num_clients,), beyond which a `tail` lies.

    It is the smallest of them such that the share beyond it is bounded by the tail, or 1.
    """
    points = np.unique(numbers)
    low, high = 0, points.size
    while low < high:
        middle = (low + high) // 2
        is_enough = upper_mean(risks, (numbers > points[middle]).astype(np.float64), delta=delta, is_share=True) <= tail
        low, high = (low, middle) if is_enough else (middle + 1, high)
    return float(points[low]) if low < points.size else 1.0


def refuse_order(risks: ClientRisks, seed: int | None) -> None:
    """Raise ValueError for a seed where clients are not independent draws: bets in an order are not derived there."""
    if seed is not None:
        risks.require_independent(f"seed={seed}, a bound by bets in an order,")


def _weights(risks: ClientRisks) -> tuple[FloatArray | float, float]:
    return (1.0, 1.0) if risks.design is None else (risks.design.unit_weights, risks.design.spread)


def _of_units(
    risks: ClientRisks, outcomes: list[FloatArray], delta: float, *, is_share: bool = False
) -> tuple[list[FloatArray], float]:
    """Outcomes of units, also of those that did not answer, and what is left of delta."""
    odds = risks.silent_odds
    if risks.design is not None:
        return [risks.design.per_unit(each) for each in outcomes], delta
    if not 1.0 < odds < np.inf:
        return [risks.worst_completion(each) for each in outcomes], delta
    part = _PART_OF_SILENT * delta / len(outcomes)
    limits = [constant_stakes_upper_mean(each, delta=part, odds=odds, is_share=is_share) for each in outcomes]
    silent = [np.append(each, np.full(risks.num_missing, top)) for each, top in zip(outcomes, limits, strict=True)]
    return silent, (1.0 - _PART_OF_SILENT) * delta
