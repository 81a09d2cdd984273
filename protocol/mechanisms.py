"""Whole-number noise for differentially private answers, drawn exactly: the name of a mechanism, and its noise.

Noise from floating-point arithmetic gives away what it should hide in its last digits (Mironov 2012). So losses are
rounded up to steps, their sum is a whole number, and the noise is one too, drawn with whole numbers only: the discrete
Laplace and Gaussian samplers of Canonne, Kamath and Steinke (2020), Algorithms 1 to 3. docs/privacy.md says what the
mechanisms guarantee; the certificates' side of them is `riskband.AnswerNoise`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from random import Random

LAPLACE, GAUSSIAN = "laplace", "gaussian"
MECHANISMS = {LAPLACE: "epsilon", GAUSSIAN: "rho"}
"""What each mechanism's parameter is called."""

LOSS_STEPS = 2**20
"""A loss that is not 0 or 1 is rounded up to a multiple of one over this."""

SMALLEST_BUDGET, LARGEST_BUDGET = Fraction(1, 10**6), Fraction(10**12)
# In units of its spread: noise of either distribution is larger with a probability below 1e-21.
_LARGEST_NOISE = 50.0
# Few digits: a client takes this text from a stranger, and computes with it exactly.
_NUMBER = re.compile(r"\d{1,13}(\.\d{0,12})?(e[+-]?\d{1,2})?", re.ASCII)
_MOST_DIGITS = 60  # a budget has at most 13 before the point and 30 after it


@dataclass(frozen=True)
class Mechanism:
    """How an answer is made private, and what that spends."""

    # "laplace": an answer is epsilon-differentially private. "gaussian": it is rho-zero-concentrated so. Neighbours
    # differ in one example, replaced by any other.
    name: str
    budget: Fraction  # the epsilon or rho of one answer with all its numbers (or, of a client's budget, of all answers)

    @property
    def unit(self) -> str:
        """What the budget is called: "epsilon" or "rho"."""
        return MECHANISMS[self.name]

    def spread(self, *, num_values: int, num_steps: int) -> float:
        """Return the parameter of the noise in steps: the Laplace scale, or the Gaussian's standard deviation.

        An answer has `num_values` numbers, and `num_steps` steps make up a loss of 1: replacing an example changes each
        number by at most so many.
        """
        if self.name == LAPLACE:
            return float(self._scale(num_values, num_steps))
        return math.sqrt(self._variance(num_values, num_steps))

    def reach(self, *, num_values: int, num_examples: int) -> float:
        """Return how far the noise takes a mean loss at most, but for a probability below 1e-21."""
        return _LARGEST_NOISE * self.spread(num_values=num_values, num_steps=1) / num_examples

    def noise(self, source: Random, *, num_values: int, num_steps: int) -> int:
        """Draw the noise of one number, in steps; the parameters are those of `spread`."""
        if self.name == LAPLACE:
            return discrete_laplace(self._scale(num_values, num_steps), source)
        return discrete_gaussian(self._variance(num_values, num_steps), source)

    def _scale(self, num_values: int, num_steps: int) -> Fraction:
        return num_steps * num_values / self.budget

    def _variance(self, num_values: int, num_steps: int) -> Fraction:
        return num_steps**2 * num_values / (2 * self.budget)


def mechanism_of(text: str) -> Mechanism:
    """Return the mechanism that a text such as "laplace:0.5" or "gaussian:0.1" names.

    The budget, from 1e-6 to 1e12 in decimal digits, is taken exactly. Raises ValueError if the text names none; the
    message has no more than the beginning of it.
    """
    name, _, number = text.partition(":")
    if name in MECHANISMS and _NUMBER.fullmatch(number):
        budget = Fraction(number)
        if SMALLEST_BUDGET <= budget <= LARGEST_BUDGET:
            return Mechanism(name, budget)
    raise ValueError(
        f"privacy must be 'laplace:EPSILON' or 'gaussian:RHO' with a number from 1e-6 to 1e12, got {text[:40]!r}; "
        "such as 'laplace:0.5', or '' for no noise"
    )


def all_digits(budget: Fraction) -> str:
    """Return a budget, or a sum of budgets, as a decimal number that is rounded nowhere: 0.1, 1000000000."""
    with localcontext(prec=_MOST_DIGITS):
        return f"{(Decimal(budget.numerator) / Decimal(budget.denominator)).normalize():f}"


class MayBePrivate:
    """A question whose answer may have noise; raises ValueError if it names a mechanism that there is not."""

    privacy: str

    def __post_init__(self) -> None:
        _ = self.mechanism

    @property
    def num_values(self) -> int:
        """Number of different numbers in an answer; they share what it spends."""
        return 1

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that `privacy` names; None if there is none."""
        return mechanism_of(self.privacy) if self.privacy else None


def steps_of(*, is_binary: bool) -> int:
    """Return how many steps make up a loss of 1: one if a loss is 0 or 1."""
    return 1 if is_binary else LOSS_STEPS


def discrete_laplace(scale: Fraction, source: Random) -> int:
    """Draw N with P(N = k) proportional to exp(-abs(k) / scale), exactly, for a scale above 0.

    The random bits are from `secrets.SystemRandom`, or a seeded source in simulations and tests. Algorithm 2 of
    Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy".
    """
    while True:
        remainder = source.randrange(scale.numerator)
        if not _bernoulli_exp(Fraction(remainder, scale.numerator), source):
            continue
        rounds = 0
        while _bernoulli_exp(Fraction(1), source):
            rounds += 1
        magnitude = (remainder + scale.numerator * rounds) // scale.denominator
        is_negative = source.randrange(2) == 1
        if magnitude or not is_negative:  # 0 has one sign, or it would come twice as often
            return -magnitude if is_negative else magnitude


def discrete_gaussian(variance: Fraction, source: Random) -> int:
    """Draw N with P(N = k) proportional to exp(-k**2 / (2 * variance)), exactly; see `discrete_laplace`.

    The variance is above 0, and nearly that of N. Algorithm 3 of Canonne, Kamath and Steinke (2020).
    """
    scale = Fraction(math.isqrt(math.floor(variance)) + 1)
    while True:
        candidate = discrete_laplace(scale, source)
        if _bernoulli_exp((abs(candidate) - variance / scale) ** 2 / (2 * variance), source):
            return candidate


def _bernoulli_exp(exponent: Fraction, source: Random) -> bool:
    """True with probability exp(-exponent), for an exponent >= 0 (Algorithm 1 of the same paper)."""
    while exponent > 1:
        if not _bernoulli_exp(Fraction(1), source):
            return False
        exponent -= 1
    numerator, denominator = exponent.numerator, exponent.denominator
    count = 1
    while source.randrange(denominator * count) < numerator:
        count += 1
    return count % 2 == 1
