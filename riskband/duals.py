"""Finite grids of duals: what bets on tails, on second moments, on exponentials and on poles are made of (math §2.9).

The number that is asked for is a minimum over a dual variable of an increasing function of E φ(R), with φ convex and
nondecreasing in the risk of a client. The outcome of a client is a number g with E g >= E φ(R), from what it measured:

* for any loss, g = φ(mean loss), by Jensen's inequality;
* for 0-1 losses, unbiased estimates of the powers of the risk, see `unbiased_series`: what a small sample adds to the
  spread of the mean losses is then left out.

Which form is used, and the grids, depend on the question and on the kind of loss, never on the answers.

The bounds themselves know clients that are no independent draws from the network (math §7.6): a unit is then a client,
or a cluster of clients with the mean of their outcomes, and counts with its weight; clients that were asked and did not
answer count with a limit for the mean of all of these. Stakes are constant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, gammaln

from riskband import betting
from riskband.answers.counts import BoolArray
from riskband.answers.risks import EQUAL_BY_DESIGN, ClientRisks
from riskband.betting import Dual
from riskband.checks import FloatArray
from riskband.search import bisect

# Where tails of networks with mean risks between .001 and .9 begin.
CUTS = np.concatenate([[0.0], np.geomspace(1e-3, 0.1, 12), np.linspace(0.12, 0.98, 26)])
_BEYOND = (0.7, 1.1, 1.5)  # standard deviations of a client of that risk
_ENOUGH_CLIENTS = 100  # so many that a bias weighs more than the spread that taking it away adds
_LEAST_GAP = 1e-10  # far above what rounding makes of such sums
_LARGEST_SHIFT = 1e4  # what a larger one would gain could not be seen
_MOST_POWERS = 500  # of a series; what is beyond counts with the last of them
_MOST_AT_ONCE = 10**7  # numbers in memory
# Of delta, for the mean of clients that did not answer. They are fewer than those that did, mostly.
_PART_OF_SILENT = 0.25
UNIFORM = (np.arange(200) + 0.5) / 200  # risks that nobody has seen, to begin with


def unbiased_series(risks: ClientRisks, coefficients: FloatArray) -> FloatArray:
    """From counts of wrong examples, numbers whose mean given the risk R is at least Σ a_j R^j.

    `coefficients`, shape (num_series, num_powers), are a_1, a_2, …, all >= 0. X(X-1)…(X-j+1) / (n(n-1)…(n-j+1)) has
    mean R^j if the loss is 0-1, and powers beyond n are at most R^n. The numbers, shape (num_series, num_clients), lie
    in [0, Σ a_j] and grow with the count. Source: math §2.9.
    """
    values, sizes, which = risks.distinct
    used = np.arange(coefficients.shape[1])
    found = []
    for some in np.array_split(np.arange(values.size), 1 + values.size * used.size // _MOST_AT_ONCE):
        size = sizes[some, None]
        num_wrong = np.rint(values[some, None] * size)
        factors = np.where(used < size, (num_wrong - used) / np.maximum(size - used, 1.0), 1.0)
        found.append(np.cumprod(factors, axis=1) @ coefficients.T)
    return np.asarray(np.concatenate(found)[which].T)


def _outcomes(
    risks: ClientRisks, function: Callable[[FloatArray], FloatArray], coefficients: FloatArray
) -> tuple[FloatArray, list[float]]:
    """Outcomes of convex functions from [0, 1] onto [0, 1] with these power series, and where their means begin.

    The function is from (num_risks,) to (num_series, num_risks); with what the series lack of a sum of 1 they end.
    """
    coefficients[:, -1] += np.maximum(1.0 - coefficients.sum(axis=1), 0.0)
    found = unbiased_series(risks, coefficients) if risks.binary else function(risks.values)
    return np.clip(found, 0.0, 1.0), function(UNIFORM).mean(axis=1).tolist()


def excess_duals(risks: ClientRisks, *, offset: Callable[[float], float], slope: float) -> list[Dual]:
    """For the minimum over cuts c of offset(c) + slope·E (R - c)_+ .

    By Jensen's inequality, and for 0-1 losses and equal numbers of examples also by `late_excesses`.
    """

    def at(cut: float, outcomes: FloatArray) -> Dual:
        start, width = offset(cut), 1.0 - cut
        return Dual(
            outcomes / width,
            lambda mean: start + slope * width * mean,
            lambda value: (value - start) / (slope * width),
            0.5 * width,
        )

    duals = [at(cut, np.maximum(risks.values - cut, 0.0)) for cut in CUTS.tolist()]
    if excess_assumptions(risks):
        num_wrong = np.rint(risks.values * risks.num_examples)
        for cut, first, least in late_excesses(int(risks.num_examples[0])):
            excess = np.where(num_wrong < first, 0.0, np.maximum(risks.values - cut, least))
            duals.append(at(cut, excess))
    return duals


def tail_duals(risks: ClientRisks, level: float) -> list[Dual]:
    """For the mean of the risks beyond the quantile at a level in [0, 1): c + E (R - c)_+ / (1 - level)."""
    return excess_duals(risks, offset=lambda cut: cut, slope=1.0 / (1.0 - level))


def excess_assumptions(risks: ClientRisks) -> tuple[str, ...]:
    """What `excess_duals` assume of the numbers of examples: that they are equal by design, if they use that."""
    is_used = risks.binary and risks.has_equal_sizes and risks.num_clients >= _ENOUGH_CLIENTS
    return (EQUAL_BY_DESIGN,) if is_used else ()


@lru_cache(maxsize=32)
def late_excesses(size: int, cuts: tuple[float, ...] = tuple(CUTS[1:].tolist())) -> list[tuple[float, float, float]]:
    """Numbers (cut, first, least) such that a function h of the count X of wrong examples has E h(X) >= (R - cut)_+ .

    h is 0 below the count `first`, which is beyond the cut, and max(X/n - cut, least) from there on. By noise alone
    clients hardly reach the first count, so the mean of h is nearer to that of (R - cut)_+ than Jensen's (X/n - cut)_+
    is. The least step for which it holds is found exactly: see math §2.9.
    """
    cut, far = (grid.ravel() for grid in np.meshgrid(cuts, _BEYOND))
    first = np.ceil(size * cut + far * np.sqrt(size * cut * (1.0 - cut)))
    cut, first = np.unique(np.stack([cut, first])[:, first <= size], axis=1)

    def is_too_small(least: FloatArray) -> BoolArray:
        return _worst_gap(size, cut, first, least) < _LEAST_GAP

    found = bisect(is_too_small, low=0.0 * cut, high=1.0 - cut, num_steps=16)[1]
    is_enough = ~is_too_small(found)
    return list(zip(*(numbers[is_enough].tolist() for numbers in (cut, first, found)), strict=True))


def _worst_gap(size: int, cut: FloatArray, first: FloatArray, least: FloatArray) -> FloatArray:
    """Smallest value of E h(X) - (R - cut) over the risks from the cut to 1."""

    def sums(risk: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The gap, and the mean of X times what is in it."""
        until = np.ceil(size * (cut + least))
        before, within = _moments_below(size, risk, first), _moments_below(size, risk, until)
        gap, times = (
            (cut + least) * within[power] - within[power + 1] / size - least * before[power] for power in (0, 1)
        )
        return gap, times

    def is_falling(risk: FloatArray) -> BoolArray:
        gap, times = sums(risk)
        return np.asarray(times - (np.floor(size * cut) + 1.0) * gap < -_LEAST_GAP)

    low, high = bisect(is_falling, low=cut, high=np.ones_like(cut), num_steps=26)
    return np.minimum(sums(low)[0], sums(high)[0])


def _moments_below(size: int, risk: FloatArray, end: FloatArray) -> list[FloatArray]:
    """E 1{X < end}, E X 1{X < end} and E X² 1{X < end} of a binomial X."""
    whole = []
    falling = np.ones_like(risk)
    for power in range(3):
        left, trials = end - 1.0 - power, max(size - power, 0)
        inside = np.where(left < 0.0, 0.0, bdtr(np.clip(left, 0.0, trials), trials, risk))
        whole.append(falling * inside)
        falling = falling * (size - power) * risk
    return [whole[0], whole[1], whole[2] + whole[1]]


def square_duals(risks: ClientRisks, budget: float) -> list[Dual]:
    """For the minimum over shifts s of s + sqrt((1 + budget)·E (R - s)_+²).

    Shifts s < 0 need E (R² - 2sR); for s > 0 there are two forms: (mean loss - s)_+², and for 0-1 losses an unbiased
    estimate of (R - s)², which is larger. The best shift is about the mean less the deviation divided by sqrt(budget).
    """
    largest = float(np.clip(0.6 / np.sqrt(budget), 0.1, _LARGEST_SHIFT))
    below = np.geomspace(0.003, largest, 32)[:, None]
    widths = 1.0 + 2.0 * below
    outcomes, starts = _outcomes(
        risks, lambda risk: risk * (risk + 2.0 * below) / widths, np.hstack([2.0 * below, np.ones_like(below)]) / widths
    )

    def at(low: float, row: FloatArray, start: float) -> Dual:
        width = 1.0 + 2.0 * low
        return Dual(
            row,
            lambda mean: np.sqrt((1.0 + budget) * (low**2 + width * mean)) - low,
            lambda value: ((value + low) ** 2 / (1.0 + budget) - low**2) / width,
            start,
        )

    duals = list(map(at, below.ravel().tolist(), outcomes, starts))
    for shift in CUTS.tolist():
        duals.append(_square_dual(budget, shift, np.maximum(risks.values - shift, 0.0) ** 2, low=0.0))
        if risks.binary and risks.below is risks:  # it does not grow with the count
            # X(X-1)/(n(n-1)) - 2·shift·X/n + shift², or (X - shift)² of a client with one example: never below -1/4.
            unbiased = (risks.values - shift) ** 2 - variance_of_examples(risks)
            duals.append(_square_dual(budget, shift, unbiased, low=-0.25))
    return duals


def _square_dual(budget: float, shift: float, squares: FloatArray, *, low: float) -> Dual:
    return Dual.of_range(
        squares,
        low=low,
        high=(1.0 - shift) ** 2 if low == 0.0 else max(shift, 1.0 - shift) ** 2,
        bound=lambda mean: shift + np.sqrt((1.0 + budget) * np.maximum(mean, 0.0)),
        least_mean=lambda value: max(value - shift, 0.0) ** 2 / (1.0 + budget),
        start=float(np.mean(np.maximum(UNIFORM - shift, 0.0 if low == 0.0 else -1.0) ** 2)),
    )


def variance_of_examples(risks: ClientRisks) -> FloatArray:
    """Estimates without bias of the variance of each measured risk for a 0-1 loss; 0 where there is one example."""
    rest = risks.num_examples - 1.0
    return np.where(rest > 0.0, risks.values * (1.0 - risks.values) / np.maximum(rest, 1.0), 0.0)


def exponential_duals(risks: ClientRisks, budget: float) -> list[Dual]:
    """For the minimum over multipliers λ > 0 of λ·budget + λ·log E exp(R/λ): best near deviation / sqrt(2·budget)."""
    usual = 1.0 / np.sqrt(2.0 * budget)
    least, most = np.clip(0.003 * usual, 0.01, 0.1), np.clip(usual, 0.3, _LARGEST_SHIFT)
    multipliers = np.geomspace(least, most, 40)[:, None]
    tops, powers = np.expm1(1.0 / multipliers), _powers(risks)
    outcomes, starts = _outcomes(
        risks,
        lambda risk: np.expm1(risk / multipliers) / tops,
        np.exp(-powers * np.log(multipliers) - gammaln(powers + 1.0)) / tops,
    )

    def at(scale: float, row: FloatArray, start: float) -> Dual:
        top = float(np.expm1(1.0 / scale))
        return Dual(
            row,
            lambda mean: scale * (budget + np.log1p(top * mean)),
            lambda value: float(np.expm1(min(value / scale - budget, 1.0 / scale)) / top),
            start,
        )

    return list(map(at, multipliers.ravel().tolist(), outcomes, starts))


def pole_duals(risks: ClientRisks, budget: float) -> list[Dual]:
    """For the minimum over poles c > 1 of c - (1 - budget/2)_+² / E 1/(c - R): squared Hellinger distance."""
    rest = max(1.0 - budget / 2.0, 0.0) ** 2
    beyond = np.geomspace(1e-3, float(np.clip(1.0 / np.sqrt(budget), 1.0, _LARGEST_SHIFT)), 40)[:, None]
    outcomes, starts = _outcomes(
        risks, lambda risk: beyond * risk / (1.0 + beyond - risk), beyond * (1.0 + beyond) ** -_powers(risks)
    )

    def at(gap: float, row: FloatArray, start: float) -> Dual:
        pole = 1.0 + gap
        return Dual(
            row,
            lambda mean: pole - rest * pole * gap / (gap + mean),
            lambda value: gap * (rest * pole / (pole - min(value, 1.0)) - 1.0),
            start,
        )

    return list(map(at, beyond.ravel().tolist(), outcomes, starts))


def _powers(risks: ClientRisks) -> FloatArray:
    """1, 2, … up to the powers that counts tell of, or to so many that the rest is of no weight."""
    return np.arange(1.0, min(int(risks.num_examples.max()), _MOST_POWERS) + 1.0)


def upper_mean(risks: ClientRisks, outcomes: FloatArray, *, delta: float, is_share: bool = False) -> float:
    """Upper confidence limit for the mean over the network of outcomes in [0, 1], shape (num_clients,).

    It grows with every outcome. Those of a share are 0 and 1, mostly.
    """
    weights, spread = _weights(risks)
    is_share &= risks.design is None or risks.design.weights is None  # with weights, a coin's deviation says nothing
    (values,), rest = _of_units(risks, [outcomes], delta, is_share=is_share)
    return betting.constant_stakes_upper_mean(values, delta=rest, weights=weights, spread=spread, is_share=is_share)


class Limit(NamedTuple):
    """An upper limit by bets, the name of its method, and what that assumes beyond the draw of the clients."""

    value: float
    method: str
    assumptions: tuple[str, ...]

    @classmethod
    def of(cls, value: float, method: str, seed: int | None) -> Limit:
        """With what bets by a method of that name assume."""
        return cls(value, method, betting.betting_assumptions(method, seed))


def mean_upper_limit(risks: ClientRisks, outcomes: FloatArray, *, delta: float, seed: int | None) -> Limit:
    """`upper_mean`; with a seed by bets in its order, if every answer is as it was given."""
    _refuse_order(risks, seed)
    if seed is None or not risks.are_answers_certain:
        return Limit.of(upper_mean(risks, outcomes, delta=delta), betting.CONSTANT_STAKES, seed)
    (found,), name = betting.betting_upper_means([outcomes], delta=delta, seed=seed)
    return Limit.of(max(found, float(outcomes.mean())), name, seed)  # one order may exclude what was measured


def dual_upper_limit(
    risks: ClientRisks,
    duals: Sequence[Dual],
    *,
    delta: float,
    seed: int | None,
    beside: Callable[[float], float] | None = None,
) -> Limit:
    """`betting_upper_bound` from answers; `beside` another gambler only if the clients are independent draws."""
    _refuse_order(risks, seed)
    if risks.are_independent:
        given = risks.values, risks.num_examples
        return Limit.of(*betting.betting_upper_bound(duals, given, delta=delta, seed=seed, beside=beside), seed)
    outcomes, rest = _of_units(risks, [dual.outcomes for dual in duals], delta)
    of_units = [replace(dual, outcomes=values) for dual, values in zip(duals, outcomes, strict=True)]
    weights, spread = _weights(risks)
    found = betting.constant_stakes_upper_bound(of_units, delta=rest, weights=weights, spread=spread)
    return Limit.of(found, betting.CONSTANT_STAKES, seed)


def upper_quantile(risks: ClientRisks, numbers: FloatArray, *, tail: float, delta: float) -> float:
    """Upper confidence limit for the number, of these of clients, shape (num_clients,), beyond which a `tail` lies.

    It is the smallest of them such that the share beyond it is bounded by the tail, or 1.
    """
    points = np.unique(numbers)

    def is_enough(point: float) -> bool:
        return upper_mean(risks, (numbers > point).astype(np.float64), delta=delta, is_share=True) <= tail

    place = bisect_left(points, True, key=is_enough)
    return float(points[place]) if place < points.size else 1.0


def _refuse_order(risks: ClientRisks, seed: int | None) -> None:
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
    limits = [betting.constant_stakes_upper_mean(each, delta=part, odds=odds, is_share=is_share) for each in outcomes]
    silent = [np.append(each, np.full(risks.num_missing, top)) for each, top in zip(outcomes, limits, strict=True)]
    return silent, (1.0 - _PART_OF_SILENT) * delta
