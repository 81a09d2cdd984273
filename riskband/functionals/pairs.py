"""Bets on all pairs of clients at once, with constant stakes: free of orders (math §2.6, §5.6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from riskband.betting import come_sorted, fixed_orders, log_capital, sharpest_stakes
from riskband.checks import FloatArray, IntArray

_MOST_KINDS, _NUM_PAIRS = 500, 125_000  # of pairs, more take time and hardly make a limit sharper
_DEVIATIONS = np.geomspace(0.07, 0.2, 3)  # of gains of pairs; beyond the first, stakes are cut to what may be lost


class Pairs(NamedTuple):
    """Pairs of clients, by index, shape (num_pairs,), and how often each stands for pairs that answered alike.

    All gains of pairs are symmetric in the two clients.
    """

    first: IntArray
    second: IntArray
    weights: FloatArray | None
    num_bets: int  # the most disjoint pairs

    @property
    def is_complete(self) -> bool:
        """Whether these are all pairs; otherwise they depend on the order of the clients."""
        return self.weights is not None

    @classmethod
    def of(cls, risks: FloatArray, num_examples: IntArray) -> Pairs | None:
        """All pairs of clients, who measured risks of shape (num_clients,), or several each: (num_clients, num_risks).

        Of more clients than can all be paired, unless few of their answers differ, so many neighbours on a circle of
        the clients in one fixed order; None if they come sorted by their risks.
        """
        num_clients, answers = len(risks), np.column_stack([risks, num_examples])
        _, representative, counts = np.unique(answers, axis=0, return_index=True, return_counts=True)
        if counts.size <= _MOST_KINDS:
            first, second = np.triu_indices(counts.size)
            sizes = counts.astype(np.float64)
            ways = sizes[first] * np.where(first == second, 0.5 * (sizes[second] - 1.0), sizes[second])
            some = np.flatnonzero(ways)
            return cls(representative[first[some]], representative[second[some]], ways[some], num_clients // 2)
        if any(map(come_sorted, answers[:, :-1].T)):
            return None
        # With a distance that has no common divisor with their number, they all stand on one circle, whose pairs of
        # neighbours are an average over disjoint ones. Neighbours in the input may be alike, as those of one region.
        order = fixed_orders(num_clients, num_orders=1)[0]
        far = np.arange(1, num_clients)
        distances = far[np.gcd(far, num_clients) == 1][: -(-_NUM_PAIRS // num_clients)]
        second = (np.arange(num_clients) + distances[:, None]) % num_clients
        first = np.broadcast_to(np.arange(num_clients), second.shape)
        return cls(order[first.ravel()], order[second.ravel()], None, num_clients // 2)

    def log_excess(self, gains: FloatArray, *, largest_loss: float, delta: float) -> float:
        """By how much the logarithm of the capital exceeds that of 1/delta: what it rejects is >= 0."""
        stakes = sharpest_stakes(self.num_bets, delta, _DEVIATIONS)
        earned = log_capital(gains, stakes, num_bets=self.num_bets, largest_loss=largest_loss, weights=self.weights)
        return float(earned - np.log(1.0 / delta))
