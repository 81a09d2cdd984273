"""The noise that clients add to their answers for differential privacy: its law, for the certificates to allow for.

A client of n examples rounds its losses up to steps, sums them to a whole number S, and answers Y = (S + N) / (n·steps)
with whole-number noise N: discrete Laplace or discrete Gaussian ([CKS] Canonne, Kamath and Steinke 2020). Y is not cut
to [0, 1]: its mean is then exactly that of the rounded losses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from riskband.checks import FloatArray, IntArray, check_count, check_kind

PARAMETERS = {"laplace": "epsilon", "gaussian": "rho"}
"""Mechanisms, and what the budget of each is called."""

LOSS_STEPS = 2**20
"""A loss that is not 0 or 1 is rounded up to a multiple of one over this."""

SMALLEST_BUDGET, LARGEST_BUDGET = 1e-6, 1e12

# As clients read a budget: what they refuse cannot have been the noise of an answer.
_NUMBER = re.compile(r"\d{1,13}(\.\d{0,12})?(e[+-]?\d{1,2})?", re.ASCII)

_LARGEST_TABLE = 1e4  # standard deviation in steps up to which the law of discrete Gaussian noise is summed up


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
        """Return the noise of answers from what was said about it.

        Parameters
        ----------
        noise : AnswerNoise, str or mapping
            The noise, the mechanism alone, or what `to_dict` returned.
        is_binary : bool
            Whether the loss is 0-1; then a mechanism alone has steps of 1.
        num_values : int
            How many numbers of each answer there are: a mechanism's budget is shared by so many.

        Returns
        -------
        AnswerNoise
            Noise that at least so many numbers share.

        Raises
        ------
        ValueError
            If it is no noise, or fewer numbers share its budget.
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
        """P(N <= k), never below it.

        Parameters
        ----------
        counts : ndarray
            Whole numbers k.

        Returns
        -------
        ndarray
            Probabilities: exact, but for Gaussian noise with s > 10,000, where it is Phi((k + 1)/s).
        """
        if self.is_laplace:
            decay = np.exp(-np.maximum(np.where(counts < 0.0, -counts, counts + 1.0), 0.0) / self.spread)
            tail = decay / (1.0 + np.exp(-1.0 / self.spread))
            return np.asarray(np.where(counts < 0.0, tail, 1.0 - tail))
        if self.spread > _LARGEST_TABLE:
            return np.asarray(ndtr((counts + 1.0) / self.spread))
        return _at(_gaussian_tables(self.spread)[0], counts)

    def quantile(self, level: float, num_examples: npt.ArrayLike) -> FloatArray:
        """Amount in units of the risk that the noise exceeds with probability at most 1 - level.

        Parameters
        ----------
        level : float
            In [0.5, 1).
        num_examples : array_like
            Numbers of examples.

        Returns
        -------
        ndarray
            >= 0, of the shape of `num_examples`; the smallest one for Laplace noise, up to a step more for Gaussian.
        """
        if self.is_laplace:  # P(N > k) = q^(k + 1) / (1 + q) with q = exp(-1/t)
            steps = np.ceil(-self.spread * np.log((1.0 - level) * (1.0 + np.exp(-1.0 / self.spread))) - 1.0)
        else:  # P(N > k) <= P(G > k) for a Gaussian G of the same parameter, [CKS]
            steps = np.ceil(self.spread * ndtri(level))
        return np.asarray(max(steps, 0.0) / (np.asarray(num_examples, dtype=np.float64) * self.num_steps))

    def mean_excess(self, threshold: float, num_examples: IntArray) -> FloatArray:
        """Upper bound on E(Z - threshold)_+ of the noise Z in units of the risk.

        Parameters
        ----------
        threshold : float
            >= 0.
        num_examples : ndarray, shape (num_clients,)
            Numbers of examples.

        Returns
        -------
        ndarray, shape (num_clients,)
            The mean, with the threshold rounded down to a step; for Gaussian noise with s > 10,000 to the step below.
            Source: math §8.3.
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
