"""The noise that clients add to their answers for differential privacy, and what noisy answers say of true risks.

A client of n examples rounds its losses up to steps, sums them to a whole number S, and answers Y = (S + N) / (n·steps)
with whole-number noise N: discrete Laplace or discrete Gaussian ([CKS] Canonne, Kamath and Steinke 2020). Y is not cut
to [0, 1]: its mean is then exactly that of the rounded losses. Proofs: math §8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaincc, entr, gammaln, log_ndtr, ndtr, ndtri

from riskband.checks import FloatArray, IntArray, check_count, check_kind
from riskband.search import bisect

PARAMETERS = {"laplace": "epsilon", "gaussian": "rho"}
"""Mechanisms, and what the budget of each is called."""

LOSS_STEPS = 2**20
"""A loss that is not 0 or 1 is rounded up to a multiple of one over this."""

SMALLEST_BUDGET, LARGEST_BUDGET = 1e-6, 1e12

# As clients read a budget: what they refuse cannot have been the noise of an answer.
_NUMBER = re.compile(r"\d{1,13}(\.\d{0,12})?(e[+-]?\d{1,2})?", re.ASCII)

_LARGEST_TABLE = 1e4  # standard deviation in steps up to which the distribution of Gaussian noise is summed up

USUAL_SIZE = 100
"""Number of examples that answers are cut for, where the clients' own ones may depend on their risks."""

_CUT_LEVEL = 0.999  # share of noise that is not cut; constant, since it must not depend on the answers
_NUM_HALVINGS = 26  # of [0, 1]; the upper end counts
_NUM_CELLS = 300
_MAX_WINDOW = 4096  # of noise values that are summed one by one
_MAX_ELEMENTS = 2**15  # of arrays, which then stay in the cache
_ROUNDING, _ROUNDING_STEPS = 2.0**-49, 1e-6  # of an answer, in units of the larger of it and 1, and in steps


@dataclass(frozen=True)
class AnswerNoise:
    """Noise that makes each client's answer differentially private, when any one example is replaced.

    Attributes
    ----------
    mechanism : str
        "laplace:EPSILON" (an answer is epsilon-differentially private) or "gaussian:RHO" (rho-zero-concentrated): the
        budget of ONE answer, all its numbers together, from 1e-6 to 1e12.
    num_values : int
        How many numbers an answer has, each of which one example changes by at most 1 / num_examples.
    num_steps : int
        Losses are rounded up to multiples of 1 / num_steps before they are summed: 1 for 0-1 losses.

    Raises
    ------
    ValueError
        If the mechanism is unknown, its budget out of range, or a count is no whole number >= 1.
    """

    mechanism: str
    num_values: int = 1
    num_steps: int = LOSS_STEPS

    def __post_init__(self) -> None:
        _parsed(self.mechanism)
        object.__setattr__(self, "mechanism", self.mechanism.lower())
        for name, remedy in (("num_values", "it counts the numbers of one answer"), ("num_steps", "1 for 0-1 losses")):
            object.__setattr__(self, name, check_count(name, getattr(self, name), minimum=1, remedy=remedy))
            if getattr(self, name) > 2**40:
                raise ValueError(f"{name} must be at most 2**40, got {getattr(self, name)}; {remedy}")

    @classmethod
    def of(
        cls, noise: AnswerNoise | str | Mapping[str, object], *, is_binary: bool, num_values: int = 1
    ) -> AnswerNoise:
        """Return noise that at least `num_values` numbers share, from the mechanism alone or what `to_dict` returned.

        Raises ValueError if it is no noise, or fewer numbers share its budget.
        """
        if isinstance(noise, str):
            return cls(noise, num_values, 1 if is_binary else LOSS_STEPS)
        if isinstance(noise, Mapping):  # as `to_dict` writes it
            try:
                noise = cls(**noise)  # type: ignore[arg-type]
            except TypeError as error:
                raise ValueError(f"noise must have the fields of AnswerNoise, got {noise!r:.80}") from error
        check_kind("noise", noise, cls, remedy="write 'laplace:0.5', or make it with AnswerNoise")
        if noise.num_values < num_values:
            raise ValueError(
                f"noise must have num_values >= {num_values}, as an answer has so many numbers that share its budget, "
                f"got {noise.num_values}; use AnswerNoise(..., num_values={num_values})"
            )
        return noise

    def to_dict(self) -> dict[str, object]:
        """Return the noise as plain data."""
        return asdict(self)

    @property
    def is_laplace(self) -> bool:
        """Whether the noise is discrete Laplace, not discrete Gaussian."""
        return _parsed(self.mechanism)[0] == "laplace"

    @property
    def budget(self) -> float:
        """Epsilon or rho of one answer."""
        return _parsed(self.mechanism)[1]

    @property
    def words(self) -> str:
        """What the noise is, for the assumptions of a certificate."""
        name, parameter = ("Laplace", "epsilon") if self.is_laplace else ("Gaussian", "rho")
        steps = "" if self.num_steps == 1 else f", of losses rounded up to multiples of 1/{self.num_steps}"
        numbers = "one number" if self.num_values == 1 else f"{self.num_values} numbers"
        return (
            f"discrete {name} noise of its own ({parameter} = {self.budget:g} for an answer of {numbers}{steps}), "
            "which the bound allows for"
        )

    @property
    def spread(self) -> float:
        """In steps: t of P(N = k) ~ exp(-abs(k) / t) for Laplace noise, s of exp(-k² / (2 s²)) for Gaussian noise."""
        if self.is_laplace:
            return self.num_steps * self.num_values / self.budget
        return float(self.num_steps * np.sqrt(self.num_values / (2.0 * self.budget)))

    def scale(self, num_examples: npt.ArrayLike) -> FloatArray:
        """`spread` in units of the risk, for clients with so many examples."""
        return np.asarray(self.spread / (np.asarray(num_examples, dtype=np.float64) * self.num_steps))

    def cumulative(self, counts: FloatArray) -> FloatArray:
        """P(N <= k) for whole numbers k: exact, but for Gaussian noise with s > 10,000, where it is Phi((k + 1)/s)."""
        if self.is_laplace:
            decay = np.exp(-np.maximum(np.where(counts < 0.0, -counts, counts + 1.0), 0.0) / self.spread)
            tail = decay / (1.0 + np.exp(-1.0 / self.spread))
            return np.asarray(np.where(counts < 0.0, tail, 1.0 - tail))
        if self.spread > _LARGEST_TABLE:
            return np.asarray(ndtr((counts + 1.0) / self.spread))
        return _at(_gaussian_tables(self.spread)[0], counts)

    def quantile(self, level: float, num_examples: npt.ArrayLike) -> FloatArray:
        """Amount >= 0, in units of the risk, that the noise exceeds with probability <= 1 - level; level in [0.5, 1).

        The smallest one for Laplace noise, up to a step more for Gaussian; of the shape of `num_examples`.
        """
        if self.is_laplace:  # P(N > k) = q^(k + 1) / (1 + q) with q = exp(-1/t)
            steps = np.ceil(-self.spread * np.log((1.0 - level) * (1.0 + np.exp(-1.0 / self.spread))) - 1.0)
        else:  # P(N > k) <= P(G > k) for a Gaussian G of the same parameter, [CKS]
            steps = np.ceil(self.spread * ndtri(level))
        return np.asarray(max(steps, 0.0) / (np.asarray(num_examples, dtype=np.float64) * self.num_steps))

    def mean_excess(self, threshold: float, num_examples: IntArray) -> FloatArray:
        """Upper bound on E(Z - threshold)_+ of the noise Z in units of the risk, shape (num_clients,); threshold >= 0.

        It is the mean with the threshold rounded down to a step; for Gaussian noise with s > 10,000 to the step below.
        """
        per_risk = np.asarray(num_examples, dtype=np.float64) * self.num_steps
        steps = np.floor(threshold * per_risk * (1.0 + 1e-12))  # a whole number may have been rounded down
        if self.is_laplace:
            excess = np.exp(-(steps + 1.0) / self.spread) / -np.expm1(-2.0 / self.spread)
        elif self.spread <= _LARGEST_TABLE:
            excess = _at(_gaussian_tables(self.spread)[1], steps)
        else:
            ratio = (steps - 1.0) / self.spread
            excess = self.spread * (np.exp(-0.5 * ratio**2) / np.sqrt(2.0 * np.pi) - ratio * np.exp(log_ndtr(-ratio)))
        return np.asarray(excess / per_risk)


def _parsed(mechanism: object) -> tuple[str, float]:
    name, _, number = mechanism.lower().partition(":") if isinstance(mechanism, str) else ("", "", "")
    if name in PARAMETERS and _NUMBER.fullmatch(number) and SMALLEST_BUDGET <= Fraction(number) <= LARGEST_BUDGET:
        return name, float(number)
    raise ValueError(
        "noise must be 'laplace:EPSILON' or 'gaussian:RHO' with a budget from 1e-6 to 1e12 of at most 12 decimals, "
        f"got {mechanism!r:.80}; write 'laplace:0.5'"
    )


@lru_cache(maxsize=16)
def _gaussian_tables(spread: float) -> tuple[FloatArray, FloatArray]:
    """P(N <= k) and E(N - k)_+ of discrete Gaussian noise for k = -m .. m; beyond, its probability is below 1e-30."""
    end = np.ceil(12.0 * spread) + 1.0
    masses = np.exp(-0.5 * (np.arange(-end, end + 1.0) / spread) ** 2)
    masses /= masses.sum()
    beyond = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)  # P(N > k)
    return np.minimum(np.cumsum(masses), 1.0), np.cumsum(beyond[::-1])[::-1]


def _at(table: FloatArray, counts: FloatArray) -> FloatArray:
    """Entries of a table over -m .. m; those at its ends for what lies beyond."""
    middle = table.size // 2
    return np.asarray(table[np.clip(counts + middle, 0, table.size - 1).astype(np.int64)])


class BoundedValues(NamedTuple):
    """One number from each client in a known range, whose mean for a client is not below what it stands for."""

    values: FloatArray  # shape (num_clients,)
    low: float  # ends of their range, which do not depend on the answers
    high: float

    @property
    def in_unit(self) -> FloatArray:
        """The numbers, scaled so that their range becomes [0, 1]."""
        return (self.values - self.low) / (self.high - self.low)

    def from_unit(self, bound: float) -> float:
        """Return a bound for the scaled numbers as one for the numbers."""
        return self.low + (self.high - self.low) * bound


def cut_values(values: FloatArray, num_examples: IntArray, noise: AnswerNoise, *, is_size_fixed: bool) -> BoundedValues:
    """Cut noisy answers, shape (num_clients,), to a range, and add what cutting from above may take from their means.

    If all numbers of examples are one number, fixed by design (`is_size_fixed`), the range is made for it, otherwise
    for `USUAL_SIZE`: a client with so much more noise that cutting takes away more than the range then counts as 1.
    The mean of a client's number is not below its risk.
    """
    reach = float(noise.quantile(_CUT_LEVEL, num_examples[0] if is_size_fixed else USUAL_SIZE))
    reach = reach if is_size_fixed else max(reach, 1.0 / USUAL_SIZE)
    lost = noise.mean_excess(reach, num_examples)
    largest = float(lost[0]) if is_size_fixed else reach
    cut = np.clip(values, -reach, 1.0 + reach) + lost
    return BoundedValues(np.where(lost > largest, 1.0, cut), -reach, 1.0 + reach + largest)


def noisy_upper_limits(
    values: FloatArray, num_examples: IntArray, noise: AnswerNoise, *, eta: float, binary: bool
) -> FloatArray:
    """Upper confidence limits of risks from noisy answers, each wrong with probability at most `eta` in (0, 1).

    The largest r at which an answer so small has probability above eta: exactly, for 0-1 losses; otherwise with
    Chernoff's bound for the mean loss given the noise. Shape (num_clients,), in (0, 1], nondecreasing in the answer.
    """
    is_exact = binary and _window(noise) <= _MAX_WINDOW
    # Clients of one size with one answer have one limit.
    pairs, place = np.unique(np.column_stack([values, num_examples]), axis=0, return_inverse=True)
    width = min(2.0 * _window(noise), float(pairs[:, 1].max())) + 1.0 if is_exact else _NUM_CELLS
    tail_of = _binomial_tail if is_exact else _bounded_tail
    found = []
    for part in np.array_split(pairs, int(np.ceil(len(pairs) * width / _MAX_ELEMENTS))):
        tail = tail_of(part[:, :1], part[:, 1:], noise)
        found.append(_largest_risks(tail, eta, num_clients=len(part)))
    return np.concatenate(found)[place.ravel()]


Tail = Callable[[FloatArray], FloatArray]
"""From a risk for each client, shape (num_clients, 1), to a bound on P(answer <= the one given), (num_clients,)."""


def _largest_risks(tail: Tail, eta: float, *, num_clients: int) -> FloatArray:
    """Risks from which on the tail is at most `eta`, rounded up."""
    low = np.zeros(num_clients)
    return bisect(lambda risk: tail(risk[:, None]) > eta, low=low, high=1.0, num_steps=_NUM_HALVINGS)[1]


def _window(noise: AnswerNoise) -> float:
    """Steps within which the noise lies but with a probability below 2e-11 (which is added)."""
    return float(np.ceil((25.0 if noise.is_laplace else 7.0) * noise.spread))


def _binomial_tail(values: FloatArray, sizes: FloatArray, noise: AnswerNoise) -> Tail:
    """Sum over the number of errors k of P(k) P(N <= count - k), where the noise matters."""
    count, window = np.rint(values * sizes), _window(noise)
    first = np.clip(count - window, 0.0, sizes + 1.0)  # fewer errors: nearly any noise will do
    num_terms = int(min(2.0 * window, sizes.max())) + 1
    errors = first + np.arange(num_terms)
    is_term = (errors <= sizes) & (errors <= count + window)
    errors = np.where(is_term, errors, 0.0)
    weights = np.where(is_term, noise.cumulative(count - errors), 0.0)
    logs = gammaln(sizes + 1.0) - gammaln(errors + 1.0) - gammaln(sizes - errors + 1.0)
    beyond = float(noise.cumulative(np.array(-window - 1.0)))

    def tail(risk: FloatArray) -> FloatArray:
        masses = np.exp(logs + errors * np.log(risk) + (sizes - errors) * np.log1p(-risk))
        is_inside = (first >= 1.0) & (first <= sizes)
        fewer = betaincc(np.where(is_inside, first, 1.0), np.where(is_inside, sizes - first + 1.0, 1.0), risk)
        fewer = np.where(is_inside, fewer, np.where(first < 1.0, 0.0, 1.0))
        return np.asarray(np.sum(masses * weights, axis=1) + fewer[:, 0] + beyond)

    return tail


def _bounded_tail(values: FloatArray, sizes: FloatArray, noise: AnswerNoise) -> Tail:
    """Sum over cells of the noise of P(cell) exp(-n·kl(answer - noise, r)), with the least noise of each cell."""
    reach = np.arcsinh(_window(noise) / noise.spread)
    ends = np.unique(np.rint(noise.spread * np.sinh(np.linspace(-reach, reach, _NUM_CELLS))))
    weights = np.diff(np.append(noise.cumulative(ends), 1.0))
    below = float(noise.cumulative(ends[0]))
    per_risk = sizes * noise.num_steps
    steps = values * per_risk
    # Rounding, as in 1 - value, may leave a whole number of steps a little too small, and that would lose a cell.
    rounding = np.maximum(_ROUNDING_STEPS, _ROUNDING * per_risk * np.maximum(np.abs(values), 1.0))
    steps = np.maximum(steps, np.floor(steps + rounding))
    means = (steps - ends - 1.0) / per_risk
    inside = np.clip(means, 0.0, 1.0)
    entropy = entr(inside) + entr(1.0 - inside)

    def tail(risk: FloatArray) -> FloatArray:
        exponent = sizes * (entropy + inside * np.log(risk) + (1.0 - inside) * np.log1p(-risk))
        bound = np.where(means >= risk, 1.0, np.where(means < 0.0, 0.0, np.exp(np.minimum(exponent, 0.0))))
        return np.asarray(bound @ weights + below)

    return tail
