"""Gini correlation of two risks of the same client ([DC] appendix C, example 9), with bounds from pairs of clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from riskband.answers.joint import JointRisks, check_joint_risks
from riskband.answers.risks import shared_assumptions
from riskband.bands.joint import JOINT_LOCAL_STEPS, subject_of_risks
from riskband.bands.local_steps import OBSERVED_SIZES
from riskband.betting import sorted_orders
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_delta, check_number, check_optional_seed
from riskband.search import bisect_number
from riskband.wording import chosen_before

NUM_PAIRINGS = 32
"""So often the clients are paired at random; the mean of the capitals is what is tested, so more only costs time."""

BETS = np.array([0.9, 0.45, 0.225, 0.11, 0.055, 0.027])
"""Shares of the capital at stake: a scaled gain is at least -1, or -1 - 8 eta for limits, where eta is at most 0.01."""

DEFAULT_ETA, MAX_ETA = 1e-4, 0.01


def gini_correlation(
    risks: JointRisks, *, delta: float, local: str = "marginal", eta: float = DEFAULT_ETA, seed: int | None = None
) -> Certificate:
    """Certificate for the Gini correlation E[(X - X') sign(Y - Y')] / E|X - X'| of the first risk X with the second Y.

    It is Cov(X, G(Y)) / Cov(X, F(X)) with F and G the CDFs of X and Y, half of an atom counted ([DC] example 9): 1 if
    X grows with Y, -1 if it falls, 0 if they are independent or X is constant.

    Parameters
    ----------
    risks : JointRisks
        The clients' answers for two losses.
    delta : float
        Probability that the bounds fail, in (0, 1); half for each end.
    local : {"marginal", "observed"}
        Whether it is about the true risks, or about those that an unseen client would measure.
    eta : float
        Error level of the local limits for `local="marginal"`, in (0, 0.01], fixed before any risk was seen.
    seed : int, optional
        Of the pairings of the clients, fixed before any answer was seen. By default the pairings are fixed ones of the
        sorted answers, so that the bounds depend neither on a seed nor on the order of the answers.

    Returns
    -------
    Certificate
        Both ends, in [-1, 1]; `details["measured"]` is the value for the measured risks. A Gini correlation above g
        means E[(X - X') sign(Y - Y') - g|X - X'|] > 0, which bets on disjoint pairs of clients test. Source:
        math §11.4.

    Raises
    ------
    ValueError
        If there are not two losses, or an argument is out of its range or unknown.
    """
    check_joint_risks(risks)
    delta, seed = check_delta(delta), check_optional_seed(seed)
    local = check_choice("local", local, JOINT_LOCAL_STEPS)
    if risks.num_losses != 2:
        raise ValueError(f"a Gini correlation needs 2 losses, got {risks.num_losses}; choose two columns")
    eta = check_number("eta", eta, remedy="it is the error level of one client's limit")
    if not 0.0 < eta <= MAX_ETA:
        raise ValueError(f"eta must be in (0, {MAX_ETA}], got {eta}; it is the error level of one client's limit")
    pairs = _Pairs.of_risks(risks, local=local, eta=eta, seed=seed)
    observed = local == "observed"
    assumptions = dict.fromkeys(line for r in risks.losses for line in shared_assumptions(r, needs_binary=not observed))
    lower = _largest_rejected(pairs, delta / 2)
    return Certificate(
        quantity=f"the Gini correlation of the first with the second of {subject_of_risks(local)}",
        lower=lower,
        value=max(-_largest_rejected(pairs.reversed(), delta / 2), lower),
        delta=delta,
        method=f"bets on {NUM_PAIRINGS} {'fixed' if seed is None else 'random'} pairings of the clients",
        assumptions=(
            *assumptions,
            *((OBSERVED_SIZES,) if observed else ()),
            *chosen_before(local=(local, "marginal"), eta=(eta, DEFAULT_ETA), seed=(seed, None)),
        ),
        details={"measured": np.array(measured_gini_correlation(risks))},
        recipe=recipe("gini_correlation", {"delta": delta, "local": local, "eta": eta, "seed": seed}, risks),
    )


def measured_gini_correlation(risks: JointRisks) -> float:
    """Return the Gini correlation of the first two measured `risks`: no bound, and noise pulls it towards 0."""
    check_joint_risks(risks)
    x, y = risks.values[:, 0], risks.values[:, 1]

    def covariance_with_ranks(values: FloatArray) -> float:  # from 1, the mean of theirs where values are tied
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        return float(np.cov(x, (np.cumsum(counts) - (counts - 1) / 2.0)[which])[0, 1])

    own, other = covariance_with_ranks(x), covariance_with_ranks(y)
    return other / own if own > 0.0 else 0.0


class _Pairs(NamedTuple):
    """Differences X - X' and Y - Y' of pairs of clients, as intervals; arrays of shape (NUM_PAIRINGS, num_pairs)."""

    x: tuple[FloatArray, FloatArray]
    y: tuple[FloatArray, FloatArray]
    slack: float  # by which gains are lowered, for limits that fail

    @classmethod
    def of_risks(cls, risks: JointRisks, *, local: str, eta: float, seed: int | None) -> _Pairs:
        if seed is None:
            orders = sorted_orders((*risks.values.T, risks.num_examples), num_orders=NUM_PAIRINGS)
        else:
            rng = np.random.default_rng(seed)
            orders = np.stack([rng.permutation(risks.num_clients) for _ in range(NUM_PAIRINGS)])
        half = risks.num_clients // 2
        first, second = orders[:, :half], orders[:, half : 2 * half]
        is_exact, ends = local == "observed", []
        for loss in risks.losses:
            low, high = (loss.values, loss.values) if is_exact else (loss.lower_limits(eta), loss.upper_limits(eta))
            ends.append((low[first] - high[second], high[first] - low[second]))
        # Any of 8 limits fails with probability 8 eta at most, and then the gain is off by 2 at most.
        return cls(ends[0], ends[1], slack=0.0 if is_exact else 16.0 * eta)

    def reversed(self) -> _Pairs:
        """The same pairs with -Y instead of Y, whose Gini correlation is the negative one."""
        return self._replace(y=(-self.y[1], -self.y[0]))

    def gains(self, value: float) -> FloatArray:
        """Smallest (X - X') s - value |X - X'| with s = sign(Y - Y'); it grows with (X - X') s, for |value| <= 1."""
        if_larger = self.x[0] - value * np.abs(self.x[0])
        if_smaller = -self.x[1] - value * np.abs(self.x[1])
        if_tied = -value * np.abs(self.x[0])
        is_tied = (self.y[0] == self.y[1]) & (self.slack == 0.0)
        open_sign = np.where(is_tied, if_tied, np.minimum(if_larger, if_smaller))
        return np.where(self.y[0] > 0.0, if_larger, np.where(self.y[1] < 0.0, if_smaller, open_sign)) - self.slack


def _largest_rejected(pairs: _Pairs, delta: float) -> float:
    """Largest value such that smaller Gini correlations are all rejected; -1 if none is.

    A correlation of at most `value` makes the mean gain at most 0, so that each capital has mean at most 1.
    """
    count = NUM_PAIRINGS * BETS.size

    def is_rejected(value: float) -> bool:
        # Without limits, a gain over its largest loss 1 + value falls with the value too, and more can be at stake.
        gains = pairs.gains(value) / (1.0 + value if pairs.slack == 0.0 else 2.0)
        capitals = np.stack([np.sum(np.log1p(bet * gains), axis=1) for bet in BETS])
        return bool(logsumexp(capitals) >= np.log(count / delta))

    return bisect_number(is_rejected, low=-1.0, high=1.0, num_steps=40).lower
