"""The levels that make quantile integrals of a given law as tight as possible ([DC] §4.3; math §2.3).

With the gaps d_i = x_(i+1) - x_(i) between the values that are expected, lower levels L bound the integral of the
quantile function against a weight with cumulative C by x_(K+1) - sum d_i C(L_i): one term per level. What couples the
levels is P(U_(i) >= L_i for all i) >= 1 - delta alone. The levels that satisfy it are a convex set, since that
probability is log-concave in L (Prékopa): for the mean, a local optimum is the global one.

The search runs over the tail probabilities of the levels on the probit scale, where the Berk-Jones levels are a
constant. A constant added to all of them meets the constraint exactly, which leaves an unconstrained problem with an
exact gradient. Levels out of order are the same event as their running maximum, so nothing has to keep them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # loads its modules on use
from scipy.special import betaincinv, betaln, ndtr, ndtri, xlog1py, xlogy

from riskband.bands.crossing import crossing_gradient, crossing_probability
from riskband.bands.levels import Levels, berk_jones_constant, largest_valid
from riskband.checks import FloatArray
from riskband.tuning.descent import descend

_GRID = np.linspace(0.0, 1.0, 4097)  # a smoothed median of width 0.01 is 40 cells wide
_WIDTHS = (1.0, 0.3, 0.1, 0.03)  # of the smoothed weights, in units of 1/sqrt(K), about half the width of a band
_MAX_ITERATIONS = (40, 150)  # for a smoothed weight, and for the weight itself
_REVIVED = 2.0  # how far below Berk-Jones a tail may start on the probit scale: levels of nearly 0 have no slope
_FULL_SEARCH = 1000  # number of values above which there are fewer iterations, so that a search takes a minute or two
_LARGEST_LEVEL = 1.0 - 1e-15  # no uniform variable reaches 1, so that a level that rounds to it would be impossible
_LEAST_TAIL = -20.0  # on the probit scale: it costs nothing, and below -22 SciPy's beta quantiles may be NaN

Cumulative = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class LevelProblem:
    """Maximise the gaps times C(L) for lower levels, and the gaps times 1 - C(U) for upper ones, that hold jointly.

    Attributes
    ----------
    gaps : ndarray, shape (num_sides, num_values)
        What raising C(L_i), and lowering C(U_i), is worth; >= 0. The row of the upper side, if any, is the last one,
        and in reverse order: an upper level is one minus a lower level of the reflected values.
    cumulative : callable
        C: nondecreasing from 0 on [0, 1], vectorised.
    delta : float
        Probability that the levels may fail, in (0, 1).
    sides : {"lower", "upper", "two"}
        Which sides there are.
    """

    gaps: FloatArray
    cumulative: Cumulative
    delta: float
    sides: str

    def best_levels(self) -> Levels:
        """Levels that are worth most, as far as the search goes, and hold with probability 1 - delta.

        Returns
        -------
        Levels
            Never worth less than those of Berk-Jones; their crossing probability is verified to be at least 1 - delta.
            Source: [DC] §4.3 and appendix A.2.2.
        """
        num_values = self.gaps.shape[1]
        constant = berk_jones_constant(num_values, self.delta, is_two_sided=self.sides == "two")
        start = np.full(self.gaps.shape, ndtri(constant))
        share = min(1.0, _FULL_SEARCH / num_values)
        first, last = (max(20, round(iterations * share)) for iterations in _MAX_ITERATIONS)
        weight = _smoothed(self.cumulative, 0.0)
        found = [self._search(weight, start, num_iterations=last)]
        guided = start
        for width in _WIDTHS:  # a narrow weight has no slope at most levels; a wide one shows the way
            smoothed = _smoothed(self.cumulative, min(0.1, width / np.sqrt(num_values)))
            guided = self._search(smoothed, guided, num_iterations=first)
            guided = np.maximum(guided, start - _REVIVED)
        found.append(self._search(weight, guided, num_iterations=last))
        candidates = [self._sides(start), *(self._sides(self._made_valid(tails)) for tails in found)]
        return self._as_levels(max(candidates, key=lambda sides: self._worth(self.cumulative, sides)))

    def _search(
        self, weight: scipy.interpolate.PchipInterpolator, start: FloatArray, *, num_iterations: int
    ) -> FloatArray:
        slope = weight.derivative()
        # The largest tail probability is at most delta, and all of them together at least (the union bound).
        least, most = ndtri(self.delta / start.size), ndtri(self.delta)
        shift = float(start.max())

        def loss(flat: FloatArray) -> tuple[float, FloatArray]:
            nonlocal shift  # of the largest tail, where the constraint was met last: from there it takes two steps
            tails = flat.reshape(start.shape) - flat.max()
            for _ in range(30):
                raw, rate = _beta_quantiles_and_slopes(tails + shift)
                probability, by_level = self._crossing_gradient(raw)
                by_tail = by_level * rate
                step = _newton_step(probability, float(by_tail.sum()), self.delta)
                if abs(step) < 1e-5:
                    break
                shift = float(np.clip(shift + np.clip(step, -1.0, 1.0), least, most))
            worth_by_tail = self.gaps * slope(self._levels_from_above(raw)) * rate
            price = worth_by_tail.sum() / by_tail.sum()
            worth = self._worth(weight, raw) + worth_by_tail.sum() * step  # what is left of the shift, to first order
            return -worth, -(worth_by_tail - price * by_tail).ravel()

        best = descend(loss, start.ravel(), num_iterations=num_iterations).reshape(start.shape)
        return np.asarray(best - best.max() + shift)

    def _made_valid(self, tails: FloatArray) -> FloatArray:
        """Shift the tails so that the levels hold with probability 1 - delta, and hardly more."""

        def coverage(shift: float) -> float:
            lower, upper = self._as_levels(self._sides(tails + shift))
            return crossing_probability(np.zeros(tails.shape[1]) if lower is None else lower, upper)

        return np.asarray(tails + largest_valid(coverage, self.delta))

    def _crossing_gradient(self, raw: FloatArray) -> tuple[float, FloatArray]:
        sides = np.maximum.accumulate(raw, axis=-1)
        if len(sides) == 1:  # one side is the reflection of the other
            found = crossing_gradient(sides[0])
            return found.probability, found.lower[None, :]
        found = crossing_gradient(sides[0], 1.0 - sides[1][::-1])
        return found.probability, np.stack([found.lower, -found.upper[::-1]])

    def _sides(self, tails: FloatArray) -> FloatArray:
        return np.asarray(np.maximum.accumulate(_beta_quantiles(tails), axis=-1))

    def _as_levels(self, sides: FloatArray) -> Levels:
        upper = None if self.sides == "lower" else 1.0 - sides[-1][::-1]
        return Levels(None if self.sides == "upper" else sides[0], upper)

    def _levels_from_above(self, raw: FloatArray) -> FloatArray:
        """Turn the last row, if it is the upper side, from levels of reflected values into upper levels."""
        return raw if self.sides == "lower" else np.concatenate([raw[:-1], 1.0 - raw[-1:]])

    def _worth(self, cumulative: Cumulative, raw: FloatArray) -> float:
        values = np.asarray(cumulative(self._levels_from_above(raw)))
        if self.sides != "lower":
            values = np.concatenate([values[:-1], cumulative(np.ones(1)) - values[-1:]])
        return float(np.sum(self.gaps * values))


def _newton_step(probability: float, growth: float, delta: float) -> float:
    """Change of the shift that takes the coverage to 1 - delta, on axes where it is nearly straight."""
    if probability <= 0.0 or probability >= 1.0 or growth >= 0.0:  # by rounding, far from the goal
        return -1.0 if probability < 1.0 - delta else 1.0
    hazard = -np.log(probability)
    return float(np.log(-np.log1p(-delta) / hazard) * hazard * probability / -growth)


def _smoothed(cumulative: Cumulative, width: float) -> scipy.interpolate.PchipInterpolator:
    table = np.asarray(cumulative(_GRID), dtype=np.float64)
    if width > 0.0:
        table = scipy.ndimage.gaussian_filter1d(table, width / _GRID[1], mode="nearest")
    return scipy.interpolate.PchipInterpolator(_GRID, table)


def _beta_quantiles(tails: FloatArray) -> FloatArray:
    rank = np.arange(1.0, tails.shape[-1] + 1.0)
    return np.minimum(betaincinv(rank, rank[::-1], ndtr(np.maximum(tails, _LEAST_TAIL))), _LARGEST_LEVEL)


def _beta_quantiles_and_slopes(tails: FloatArray) -> tuple[FloatArray, FloatArray]:
    levels, rank = _beta_quantiles(tails), np.arange(1.0, tails.shape[-1] + 1.0)
    log_density = xlogy(rank - 1.0, levels) + xlog1py(rank[::-1] - 1.0, -levels) - betaln(rank, rank[::-1])
    log_normal = -0.5 * tails**2 - 0.5 * np.log(2.0 * np.pi)
    is_inside = (levels > 0.0) & (levels < _LARGEST_LEVEL) & (tails > _LEAST_TAIL)
    return levels, np.exp(np.where(is_inside, log_normal - log_density, -np.inf))
