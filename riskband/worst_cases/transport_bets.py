"""Bets on numbers that a cost budget and the mean outcome of an unseen client bound together (math §4.3, §4.4).

If a number V(c), such as the worst mean risk within a cost budget c, is at most `price * c + scale * E outcome` for
every one of many duals, a gambler who doubts that V(c) is at least v may bet against the outcome of another dual at
every client, as long as the clients before it alone say which. Nothing is paid for the number of duals.

What the gambler stakes does not depend on c: one gambler tests every budget on one event, best the one it plays for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from riskband.betting import (
    AVERAGED_BETS,
    LARGEST_SHARE,
    Played,
    fixed_orders,
    log_growth,
    looks_at_the_past,
    reaches_target,
)
from riskband.checks import FloatArray
from riskband.search import Bracket, bisect_number, largest_where

# As many orders as cost little time. Past clients are looked at again when a fifth more of them are known.
_NUM_ORDERS, _NUM_PLAYED, _RATIO = (20, 40), 20_000, 1.2
_NUM_DIGITS = 7  # of what duals promise: sums differ in the last digits from one machine to the next, choices must not
_REACH = (-10.0, 2.0)  # between these, how far beyond the end of a search a dual reaches is told apart
# Of few clients, gamblers play for budgets that are so far apart, in logarithms; the nearest of them test a budget.
_LARGEST_STEP, _NUM_FEW, _NUM_NEAREST = 0.8, 200, 3


@dataclass(frozen=True, eq=False)
class TransportDuals:
    """Duals fixed before any answer: V(c) <= prices * c + scales * (mean outcome of an unseen client), for each."""

    outcomes: FloatArray  # in [0, 1], shape (num_clients, num_duals); their expectation is the mean, or is not below it
    prices: FloatArray  # of a unit of cost, >= 0, shape (num_duals,); `inf`: it says something without a budget only
    scales: FloatArray  # above 0, shape (num_duals,)

    def charges(self, budget: float) -> FloatArray:
        """What each dual adds for the budget."""
        return np.zeros_like(self.prices) if budget == 0.0 else self.prices * budget

    @classmethod
    def joined(cls, families: Sequence[TransportDuals]) -> TransportDuals:
        """All duals of several families."""
        return cls(
            np.concatenate([each.outcomes for each in families], axis=1),
            np.concatenate([each.prices for each in families]),
            np.concatenate([each.scales for each in families]),
        )


class _Past(NamedTuple):
    """What the clients before show of every outcome when it is looked at, shape (num_orders, num_looks, num_duals)."""

    mean: FloatArray
    variance: FloatArray


class TransportBets:
    """Gamblers that see the clients of one network in the same orders; `name` is that of the method.

    `seed` is that of one order, in which the largest capital on the way counts, and a gambler who is alone aims anew at
    every client; None: the average of the final capitals in fixed orders of the clients counts, who do not come sorted.
    `largest_share`, in (0, 1), is what of the capital one client may cost.
    """

    def __init__(self, num_clients: int, *, seed: int | None, largest_share: float = LARGEST_SHARE) -> None:
        self._largest_share = largest_share
        if seed is None:
            num_orders = int(np.clip(_NUM_PLAYED // num_clients, *_NUM_ORDERS))
            self._orders = fixed_orders(num_clients, num_orders=num_orders)
        else:
            self._orders = np.random.default_rng(seed).permutation(num_clients)[None]
        self._is_average, self.name = seed is None, AVERAGED_BETS if seed is None else "betting"
        self._looks, self._times = looks_at_the_past(num_clients, ratio=_RATIO)

    def upper_bounds(self, duals: TransportDuals, budgets: FloatArray, *, delta: float) -> FloatArray:
        """Upper confidence limits in [0, 1] for V at every budget, which hold at once with probability 1 - delta.

        Gamblers that play for a few budgets share the starting capital, and the sum of the nearest is tested. Which
        budgets these are is decided by `budgets` and the number of clients alone. Source: math §4.3.
        """
        designs = design_budgets(budgets, self._orders.shape[1])
        past, share = self._past(duals), delta / designs.size
        promised = self._promised(duals, past, share)
        played = [self._play(duals, past, promised + duals.charges(float(each)), share) for each in designs]
        values = np.zeros(budgets.size)
        for index in np.argsort(budgets, kind="stable"):
            budget, least = float(budgets[index]), float(values.max())
            near = np.argsort(np.abs(np.log(np.maximum(designs, 1e-300) / max(budget, 1e-300))), kind="stable")
            tests = [played[each] for each in near[:_NUM_NEAREST]]
            values[index] = self._limit(duals, tests, budget, delta=share, least=least)
        return values

    def largest_budget(self, duals: TransportDuals, *, target: float, largest: float, delta: float) -> Bracket:
        """Bracket of the largest budget at which V is found to be at most the target.

        One gambler plays for that budget, and tests every budget up to `largest` on one event.
        """
        past = self._past(duals)
        room = target - self._promised(duals, past, delta)
        # In units of the largest one; a dual without a budget reaches none, one without a price all.
        prices = np.maximum(duals.prices * largest, np.finfo(float).tiny)
        with np.errstate(over="ignore"):
            reach = np.where(np.isfinite(prices), np.clip(room / prices, *_REACH), _REACH[0])
        played = self._play(duals, past, -reach, delta)

        def meets(budget: float) -> bool:
            return not self._survives(duals, [played], budget, target, delta)

        return largest_where(meets, most=largest, num_steps=40)

    def _past(self, duals: TransportDuals) -> _Past:
        """Means and variances of the outcomes before every look, with one more outcome: 1/2, and of variance 1/4."""
        count = self._looks[:, None]
        positions = np.argsort(self._orders, axis=1)
        outcomes, squares = duals.outcomes, duals.outcomes**2
        means, variances = [], []
        for position in positions:
            is_before = (position < count).astype(np.float64)
            sums = is_before @ outcomes
            spread = is_before @ squares - sums**2 / np.maximum(count, 1)
            means.append((0.5 + sums) / (count + 1))
            variances.append((0.25 + np.maximum(spread, 0.0)) / (count + 1))
        return _Past(np.stack(means), np.stack(variances))

    def _promised(self, duals: TransportDuals, past: _Past, delta: float) -> FloatArray:
        """What each dual promises without a budget: the mean so far and the slack that bets will leave, in its scale.

        It is the mean that bets will just not reject, about, by Bernstein's inequality.
        """
        rate = np.log(1.0 / delta) / self._orders.shape[1]
        return np.asarray(duals.scales * np.minimum(past.mean + np.sqrt(2.0 * rate * past.variance) + rate / 3.0, 1.0))

    def _play(self, duals: TransportDuals, past: _Past, promises: FloatArray, delta: float) -> Played:
        """Bet against the dual of the smallest promise, by the variance of its outcomes before."""
        best = np.argmin(np.round(promises, _NUM_DIGITS), axis=2)
        variance = np.take_along_axis(past.variance, best[:, :, None], axis=2)[:, :, 0]
        chosen = best[:, self._times]
        bets = np.sqrt(2.0 * np.log(1.0 / delta) / (self._orders.shape[1] * variance))[:, self._times]
        return Played(chosen, duals.outcomes[self._orders, chosen], bets)

    def _limit(
        self, duals: TransportDuals, tests: Sequence[Played], budget: float, *, delta: float, least: float
    ) -> float:
        """The rejected end of the bracket of V at the budget; `least` is where the search starts."""

        def survives(value: float) -> bool:
            return self._survives(duals, tests, budget, value, delta)

        return bisect_number(survives, low=least, high=1.0, num_steps=34).upper

    def _survives(
        self, duals: TransportDuals, tests: Sequence[Played], budget: float, value: float, delta: float
    ) -> bool:
        """Whether the gamblers together do not earn 1/delta times what each began with."""
        needed, largest = np.clip((value - duals.charges(budget)) / duals.scales, 0.0, 1.0), self._largest_share
        if len(tests) == 1 and not self._is_average:
            means, outcomes, bets = needed[tests[0].chosen[0]], tests[0].outcomes[0], tests[0].bets[0]
            return not reaches_target(means, outcomes, bets, delta=delta, largest_share=largest)
        capitals = [log_growth(needed[each.chosen], each.outcomes, each.bets, largest) for each in tests]
        if self._is_average:
            earned = np.logaddexp.reduce([np.logaddexp.reduce(each.sum(axis=1)) for each in capitals])
            return bool(earned < np.log(len(self._orders) / delta))
        on_the_way = np.logaddexp.reduce([np.cumsum(each[0]) for each in capitals], axis=0)
        return bool(on_the_way.max() < np.log(1.0 / delta))


def design_budgets(budgets: FloatArray, num_clients: int) -> FloatArray:
    """Budgets that gamblers play for: one for each group of near ones, nearer the more clients there are; and 0.

    What a gambler for a budget next to the one that is asked loses does not fall with the number of clients, as all
    else does; but every gambler more takes its share of delta.
    """
    ratio = np.exp(_LARGEST_STEP * min(1.0, (_NUM_FEW / num_clients) ** 0.25))
    designs: list[float] = []
    first = 0.0
    for budget in np.unique(budgets).tolist():
        if first > 0.0 and budget <= ratio * first:
            designs[-1] = float(np.sqrt(first * budget))
        else:
            first = budget
            designs.append(budget)
    return np.array(designs)
