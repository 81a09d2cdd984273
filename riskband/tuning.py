"""Levels tuned for what will be read off the band: tighter where it matters, valid for everything (math §2.3).

With the gaps d_i = x_(i+1) - x_(i) between the values that are expected, lower levels L bound the integral of the
quantile function against a weight with cumulative C by x_(K+1) - sum d_i C(L_i): one term per level. What couples the
levels is P(U_(i) >= L_i for all i) >= 1 - delta alone. The levels that satisfy it are a convex set, since that
probability is log-concave in L (Prékopa): for the mean, a local optimum is the global one.

The search runs over the tail probabilities of the levels on the probit scale, where the Berk-Jones levels are a
constant. A constant added to all of them meets the constraint exactly, which leaves an unconstrained problem with an
exact gradient. Levels out of order are the same event as their running maximum, so nothing has to keep them in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy  # loads its modules on use
from scipy.special import betaincinv, betaln, ndtr, ndtri, xlog1py, xlogy

from riskband.answers.risks import ClientRisks
from riskband.bands.band import SIDES
from riskband.bands.crossing import crossing_gradient
from riskband.bands.levels import Levels, berk_jones_constant, berk_jones_levels, largest_valid
from riskband.bands.methods import TunedMethod, level_key
from riskband.bands.pilots import Pilot
from riskband.checks import (
    FloatArray,
    check_choice,
    check_delta,
    check_num_points,
    check_number,
    check_numbers,
    set_fields,
)
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import resolve_weight
from riskband.functionals.weights import MEAN, QuantileWeight

Cumulative = Callable[[FloatArray], FloatArray]
Loss = Callable[[FloatArray], tuple[float, FloatArray]]
Objectives = str | QuantileWeight | Sequence[str | QuantileWeight] | Mapping[str | QuantileWeight, float]

SHARE_OF_MEAN = 0.01
"""Weight of the mean beside the objectives, so that the band stays useful where they do not look."""

_GRID = np.linspace(0.0, 1.0, 4097)  # a smoothed median of width 0.01 is 40 cells wide
_WIDTHS = (1.0, 0.3, 0.1, 0.03)  # of the smoothed weights, in units of 1/sqrt(K), about half the width of a band
_MAX_ITERATIONS = (40, 150)  # for a smoothed weight, and for the weight itself
_REVIVED = 2.0  # how far below Berk-Jones a tail may start on the probit scale: levels of nearly 0 have no slope
_FULL_SEARCH = 1000  # number of values above which there are fewer iterations, so that a search takes a minute or two
_LARGEST_LEVEL = 1.0 - 1e-15  # no uniform variable reaches 1, so that a level that rounds to it would be impossible
_LEAST_TAIL = -20.0  # on the probit scale: it costs nothing, and below -22 SciPy's beta quantiles may be NaN
_MEMORY = 30
_DECREASE, _CURVATURE = 1e-4, 0.9  # constants of the weak Wolfe conditions
_MAX_TRIALS = 25  # of a line search
_LEAST_DECREASE = 1e-10  # in units of the loss or 1: by less, the search has ended


@dataclass(frozen=True, eq=False, init=False)
class OptimisedLevels(TunedMethod):
    """Band method with levels tuned on a pilot; give it to `band` as `method`.

    The levels minimise the upper bounds on the objectives (for a band with both sides, the widths of their intervals;
    for an upper side alone, they maximise the lower bounds) that are to be expected for clients like those of the
    pilot. Each objective is measured in units of what Berk-Jones levels lose on it. Whatever the pilot is, the band
    holds with probability 1 - delta for clients that are not in it; a pilot unlike them only makes it wider.

    Parameters
    ----------
    pilot : ClientRisks, RiskDistribution or array_like, shape (num_pilot_clients,)
        Risks that other clients measured (see `split_clients`), or a distribution that was fixed before.
    objectives : str, QuantileWeight, or several
        What will be read off the band: "mean", "cvar:0.9", "interval:0.5:0.9", "linear", "smoothed_median:0.01",
        "maximum:10", "minimum:10" or your own weights. A mapping gives each a factor > 0.

    Attributes
    ----------
    pilot : Pilot
        What the levels are tuned on.
    weights : tuple of (QuantileWeight, float)
        The objectives with their factors.
    objectives : mapping of str to float
        The same by name.

    Raises
    ------
    ValueError
        If the pilot is not valid risks, or an objective is unknown, there twice, or has a factor that is not > 0.

    Notes
    -----
    Levels are computed once for each number of values, delta and sides: a second for 100 values, some ten for 500,
    minutes for some thousands. A certificate stores them, so nothing is tuned again to verify it.
    """

    pilot: Pilot
    weights: tuple[tuple[QuantileWeight, float], ...]
    objectives: Mapping[str, float]

    def __init__(self, pilot: ClientRisks | RiskDistribution | npt.ArrayLike, objectives: Objectives) -> None:
        weights = _as_weights(objectives)
        set_fields(self, pilot=_as_pilot(pilot), weights=weights, objectives={w.name: factor for w, factor in weights})

    def levels(self, num_values: int, delta: float, sides: str) -> Levels:
        """Tuned levels for the sorted values of independent clients, "lower", "upper" or both jointly ("two").

        Their crossing probability is verified to be at least 1 - delta, for delta in [1e-9, 1). Raises ValueError if an
        argument is out of its range or unknown. Source: [DC] §4.3; math §2.3.
        """
        check_num_points("num_values", num_values, minimum=1, remedy="it counts clients")
        sides = check_choice("sides", sides, SIDES)
        delta = check_delta(delta)
        key = level_key(num_values, delta, sides)
        if key not in self._known:
            expected = self.pilot.expected_values(num_values)
            gaps = {"lower": np.diff(expected, append=1.0), "upper": np.diff(expected, prepend=0.0)[::-1]}
            rows = np.stack([gaps[side] for side in ("lower", "upper") if sides in (side, "two")])
            start = berk_jones_levels(num_values, delta, sides)
            cumulative = self._combined(rows, start, sides)
            self._known[key] = (
                start if cumulative is None else LevelProblem(rows, cumulative, delta, sides).best_levels()
            )
        return self._known[key]

    @cached_property
    def _known(self) -> dict[str, Levels]:
        """Levels that were computed before, by `level_key`."""
        return {}

    def _combined(self, gaps: FloatArray, start: Levels, sides: str) -> Callable[[FloatArray], FloatArray] | None:
        """Sum of the objectives, each over what the levels of Berk-Jones lose on it; None if they lose nothing."""
        ranks = np.arange(1, gaps.shape[1] + 1) / gaps.shape[1]
        terms: list[tuple[QuantileWeight, float]] = []
        for weight, factor in (*self.weights, (MEAN, SHARE_OF_MEAN * sum(factor for _, factor in self.weights))):
            lost = 0.0
            if start.lower is not None:
                lost += float(gaps[0] @ (weight.cumulative(ranks) - weight.cumulative(start.lower)))
            if start.upper is not None:
                before = weight.cumulative(np.append(0.0, ranks[:-1]))
                lost += float(gaps[-1][::-1] @ (weight.cumulative(start.upper) - before))
            if lost > 1e-12:
                terms.append((weight, factor / lost))
        if not terms:
            return None
        return lambda p: np.asarray(sum(scale * weight.cumulative(p) for weight, scale in terms))


def _as_pilot(pilot: ClientRisks | RiskDistribution | npt.ArrayLike) -> Pilot:
    if isinstance(pilot, Pilot):
        return pilot
    if isinstance(pilot, ClientRisks):
        return Pilot.of_risks(pilot)
    if isinstance(pilot, RiskDistribution):
        return Pilot.of_distribution(pilot.risks, pilot.levels)
    return Pilot.of_values(
        check_numbers("a pilot", pilot, remedy="give ClientRisks, a RiskDistribution or an array of risks")
    )


def _as_weights(objectives: Objectives) -> tuple[tuple[QuantileWeight, float], ...]:
    if isinstance(objectives, (str, QuantileWeight)):
        objectives = (objectives,)
    try:
        pairs = objectives.items() if isinstance(objectives, Mapping) else [(one, 1.0) for one in objectives]
        remedy = "1 is usual"
        found = tuple(
            (
                resolve_weight(one, called="an objective"),
                check_number("a factor of an objective", factor, remedy=remedy),
            )
            for one, factor in pairs
        )
    except TypeError as error:
        raise ValueError(f"objectives must be names or weights, got {objectives!r:.80}") from error
    names = [weight.name for weight, _ in found]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"objectives must be at least one, each once, got {', '.join(names) or 'none'}")
    if not all(0.0 < factor < np.inf for _, factor in found):
        raise ValueError(f"factors of objectives must be finite and > 0, got {[factor for _, factor in found]}")
    return found


@dataclass(frozen=True, eq=False)
class LevelProblem:
    """Maximise the gaps times C(L) for lower levels, and the gaps times 1 - C(U) for upper ones, that hold jointly.

    The gaps are what raising C(L_i), and lowering C(U_i), is worth; >= 0. The row of the upper side, if any, is the
    last one, and in reverse order: an upper level is one minus a lower level of the reflected values.
    """

    gaps: FloatArray  # shape (num_sides, num_values)
    cumulative: Cumulative  # C, nondecreasing from 0 on [0, 1], vectorised
    delta: float
    sides: str

    def best_levels(self) -> Levels:
        """Levels that are worth most, as far as the search goes, and never less than those of Berk-Jones.

        Their crossing probability is verified to be at least 1 - delta. Source: [DC] §4.3 and appendix A.2.2.
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
        return Levels.of_lower(max(candidates, key=lambda sides: self._worth(self.cumulative, sides)), self.sides)

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
            return Levels.of_lower(self._sides(tails + shift), self.sides).coverage

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


def descend(loss: Loss, start: FloatArray, *, num_iterations: int) -> FloatArray:
    """Point of a low loss, by L-BFGS with a line search that brackets the weak Wolfe conditions, on one thread.

    `loss` gives a finite value and gradient at a point, `start` has shape (num_variables,). The result is not above the
    start. SciPy's L-BFGS-B spends vectors as short as these on threaded linear algebra: on a busy machine that takes
    fifty times as long as the function itself. Source: Nocedal and Wright 2006, chapter 7; line search of Lewis and
    Overton 2013.
    """
    point, (value, gradient) = start, loss(start)
    pairs: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=_MEMORY)
    for _ in range(num_iterations):
        direction = -_scaled(gradient, pairs)
        slope = float(direction @ gradient)
        if slope >= 0.0:
            break
        low, high, step = 0.0, np.inf, 1.0 if pairs else min(1.0, 1.0 / float(np.linalg.norm(gradient)))
        for _ in range(_MAX_TRIALS):
            trial = point + step * direction
            new_value, new_gradient = loss(trial)
            if new_value > value + _DECREASE * step * slope:
                high = step
            elif float(new_gradient @ direction) < _CURVATURE * slope:
                low = step
            else:
                break
            step = 2.0 * low if np.isinf(high) else 0.5 * (low + high)
        if not new_value < value:  # nor if it is NaN
            break
        move, change = trial - point, new_gradient - gradient
        if float(move @ change) > 1e-14 * float(move @ move):
            pairs.append((move, change))
        decrease = value - new_value
        point, value, gradient = trial, new_value, new_gradient
        if decrease <= _LEAST_DECREASE * max(1.0, abs(value)):
            break
    return point


def _scaled(gradient: FloatArray, pairs: deque[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Product of the gradient with the inverse Hessian that the pairs of moves and changes suggest."""
    product, shares = gradient.copy(), []
    for move, change in reversed(pairs):
        shares.append(float(move @ product) / float(move @ change))
        product -= shares[-1] * change
    if pairs:
        move, change = pairs[-1]
        product *= float(move @ change) / float(change @ change)
    for (move, change), share in zip(pairs, reversed(shares), strict=True):
        product += (share - float(change @ product) / float(move @ change)) * move
    return product
