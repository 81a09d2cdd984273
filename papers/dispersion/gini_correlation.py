"""Gini correlation of two risks of the same client ([DC] appendix C, example 9), with bounds from pairs of clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.dispersion.joint_answers import JointRisks, check_joint_risks
from papers.dispersion.joint_bands import JOINT_LOCAL_STEPS, subject_of_risks
from riskband.answers.risks import shared_assumptions
from riskband.bands.local_steps import OBSERVED_SIZES
from riskband.betting import ORDER_IS_UNINFORMATIVE
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_delta, check_number
from riskband.functionals.pairs import Pairs
from riskband.search import bisect_number
from riskband.wording import chosen_before

DEFAULT_ETA, MAX_ETA = 1e-4, 0.01


def gini_correlation(
    risks: JointRisks, *, delta: float, local: str = "marginal", eta: float = DEFAULT_ETA
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

    Returns
    -------
    Certificate
        Both ends, in [-1, 1]; `details["measured"]` is the value for the measured risks. A Gini correlation above g
        means E[(X - X') sign(Y - Y') - g|X - X'|] > 0, which bets on all pairs of clients test. Source: math §11.4.

    Raises
    ------
    ValueError
        If there are not two losses, an argument is out of its range or unknown, or so many clients that not all pairs
        can be tried come sorted by their risks.
    """
    check_joint_risks(risks)
    delta = check_delta(delta)
    local = check_choice("local", local, JOINT_LOCAL_STEPS)
    if risks.num_losses != 2:
        raise ValueError(f"a Gini correlation needs 2 losses, got {risks.num_losses}; choose two columns")
    eta = check_number("eta", eta, remedy="it is the error level of one client's limit")
    if not 0.0 < eta <= MAX_ETA:
        raise ValueError(f"eta must be in (0, {MAX_ETA}], got {eta}; it is the error level of one client's limit")
    chosen = Pairs.of(risks.values, risks.num_examples)
    if chosen is None:
        raise ValueError(
            f"the {risks.num_clients} clients must come in an order that says nothing about their risks, got them "
            "sorted; put them into the order of their names"
        )
    pairs = _Differences.of_risks(risks, chosen, local=local, eta=eta)
    observed = local == "observed"
    assumptions = dict.fromkeys(line for r in risks.losses for line in shared_assumptions(r, needs_binary=not observed))
    lower, upper = _largest_rejected(pairs, delta / 2), -_largest_rejected(pairs.reversed(), delta / 2)
    quantity = f"the Gini correlation of the first with the second of {subject_of_risks(local)}"
    return Certificate(
        quantity=quantity,
        lower=lower,
        value=upper,
        delta=delta,
        method="betting on pairs of clients with constant stakes",
        assumptions=(
            *assumptions,
            *((OBSERVED_SIZES,) if observed else ()),
            *(() if chosen.is_complete else (ORDER_IS_UNINFORMATIVE,)),
            *chosen_before(local=(local, "marginal"), eta=(eta, DEFAULT_ETA)),
        ),
        details={"measured": np.array(measured_gini_correlation(risks))},
        recipe=recipe("gini_correlation", {"delta": delta, "local": local, "eta": eta}, risks),
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


class _Differences(NamedTuple):
    """Differences X - X' and Y - Y' of pairs of clients, as intervals; arrays of shape (num_pairs,)."""

    pairs: Pairs
    x: tuple[FloatArray, FloatArray]
    y: tuple[FloatArray, FloatArray]
    slack: float  # by which gains are lowered, for limits that fail

    @classmethod
    def of_risks(cls, risks: JointRisks, pairs: Pairs, *, local: str, eta: float) -> _Differences:
        first, second = pairs.first, pairs.second
        is_exact, ends = local == "observed", []
        for loss in risks.losses:
            low, high = (loss.values, loss.values) if is_exact else (loss.lower_limits(eta), loss.upper_limits(eta))
            ends.append((low[first] - high[second], high[first] - low[second]))
        # Any of 8 limits fails with probability 8 eta at most, and then the gain is off by 2 at most.
        return cls(pairs, ends[0], ends[1], slack=0.0 if is_exact else 16.0 * eta)

    def reversed(self) -> _Differences:
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


def _largest_rejected(differences: _Differences, delta: float) -> float:
    """Largest value such that smaller Gini correlations are all rejected; -1 if none is.

    A correlation of at most `value` makes the mean gain at most 0, so that the capital has mean at most 1. Without
    limits, a gain over its largest loss falls with the value, and with them a gain: so does the capital.
    """

    def is_rejected(value: float) -> bool:
        largest_loss = 1.0 + value if differences.slack == 0.0 else 2.0 + differences.slack
        return differences.pairs.log_excess(differences.gains(value), largest_loss=largest_loss, delta=delta) >= 0.0

    return bisect_number(is_rejected, low=-1.0, high=1.0, num_steps=40).lower
