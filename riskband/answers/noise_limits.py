"""What noisy answers say about true risks: limits for each client, and bounded numbers for means.

Proofs: math §8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import betaincc, entr, gammaln

from riskband.answers.noise import AnswerNoise
from riskband.checks import FloatArray, IntArray
from riskband.search import bisect

USUAL_SIZE = 100
"""Number of examples that answers are cut for, where the clients' own ones may depend on their risks."""

_CUT_LEVEL = 0.999  # share of noise that is not cut; constant, since it must not depend on the answers
_NUM_HALVINGS = 26  # of [0, 1]; the upper end counts
_NUM_CELLS = 300
_MAX_WINDOW = 4096  # of noise values that are summed one by one
_MAX_ELEMENTS = 2**15  # of arrays, which then stay in the cache
_ROUNDING, _ROUNDING_STEPS = 2.0**-49, 1e-6  # of an answer, in units of the larger of it and 1, and in steps


class BoundedValues(NamedTuple):
    """One number from each client in a known range, whose mean for a client is not below what it stands for.

    Attributes
    ----------
    values : ndarray, shape (num_clients,)
        The numbers.
    low, high : float
        Ends of their range, which do not depend on the answers.
    """

    values: FloatArray
    low: float
    high: float

    @property
    def in_unit(self) -> FloatArray:
        """The numbers, scaled so that their range becomes [0, 1]."""
        return (self.values - self.low) / (self.high - self.low)

    def from_unit(self, bound: float) -> float:
        """Return a bound for the scaled numbers as one for the numbers."""
        return self.low + (self.high - self.low) * bound


def cut_values(values: FloatArray, num_examples: IntArray, noise: AnswerNoise, *, is_size_fixed: bool) -> BoundedValues:
    """Cut noisy answers to a range, and add what cutting from above may take away from their means.

    Parameters
    ----------
    values : ndarray, shape (num_clients,)
        Noisy answers.
    num_examples : ndarray, shape (num_clients,)
        Numbers of examples.
    noise : AnswerNoise
        Their noise.
    is_size_fixed : bool
        Whether all numbers of examples are one number, fixed by design: then the range is made for it, else for
        `USUAL_SIZE`. Where a client has so much more noise that cutting takes away more than the range, it counts as 1.

    Returns
    -------
    BoundedValues
        With E(value of a client) >= its risk. Source: math §8.3.
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
    """Upper confidence limits of risks from noisy answers, each wrong with probability at most `eta`.

    The largest r at which an answer so small has probability above eta: exactly, for 0-1 losses; otherwise with
    Chernoff's bound for the mean loss given the noise.

    Parameters
    ----------
    values : ndarray, shape (num_clients,)
        Noisy answers.
    num_examples : ndarray, shape (num_clients,)
        Numbers of examples.
    noise : AnswerNoise
        Their noise.
    eta : float
        Error level of one limit, in (0, 1).
    binary : bool
        Whether losses are 0 or 1.

    Returns
    -------
    ndarray, shape (num_clients,)
        In (0, 1], nondecreasing in the answer. Source: math §8.1.
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
