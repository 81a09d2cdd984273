"""f-divergences as data (math §3).

A divergence is D_f(target || source) = E_source f(density ratio), with f convex and f(1) = 0. Every generator here is
normalised to have its minimum at 1 (adding c·(t - 1) to f changes no divergence), so it is >= 0.

To add one: write its generator, its slope at infinity and the inverse of its derivative. Closed forms of the two worst
cases are optional and only make it faster. A user's own needs none of this: `riskband.custom_divergence`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import xlogy

from riskband.answers.risks import binary_kl
from riskband.checks import FloatArray, as_spelled, check_budget, check_fraction, check_numbers
from riskband.search import bisect
from riskband.worst_cases.robust_means import (
    RobustMean,
    chi2_robust_mean,
    dual_robust_mean,
    kl_robust_mean,
    tv_robust_mean,
)


@dataclass(frozen=True, eq=False)
class FDivergence:
    """An f-divergence.

    Attributes
    ----------
    name : str
        What the user types, and what recipes store.
    title : str
        For reports.
    generator : callable
        f, vectorised over t >= 0, with f >= 0 = f(1).
    slope_at_infinity : float
        Limit of f(t)/t; finite when the target may hold clients that the source never shows (then mass up to
        budget / slope may sit there), `inf` when it may not.
    best_ratio : callable
        s -> argmax over t >= 0 of s·t - f(t), vectorised: the inverse of f'. `inf` where there is no maximum.
        Only `dual_robust_mean` reads it, so for a divergence with its own `robust_mean` an approximation will do.
    binary_inverse : callable, optional
        (p, budget) -> worst case for an event of probability p, in closed form.
    robust_mean : callable, optional
        (values, weights, budget) -> worst-case mean of a discrete law and its worst-case weights.
    cvxpy_generator : callable, optional
        (cvxpy, expression) -> f(expression), for the reference solver. The module is an argument so that cvxpy is
        loaded only where it is used.
    """

    name: str
    title: str
    generator: Callable[[FloatArray], FloatArray]
    slope_at_infinity: float
    best_ratio: Callable[[FloatArray], FloatArray]
    binary_inverse: Callable[[FloatArray, FloatArray], FloatArray] | None = None
    robust_mean: Callable[[FloatArray, FloatArray, float], RobustMean] | None = None
    cvxpy_generator: Callable[[Any, Any], Any] | None = None

    def binary(self, target: FloatArray, source: FloatArray) -> FloatArray:
        """Divergence of Bernoulli(target) from Bernoulli(source), elementwise."""
        return self._part(target, source) + self._part(1.0 - target, 1.0 - source)

    def _part(self, target: FloatArray, source: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):  # 0/0 and 0·inf are decided by the two conditions
            new_mass = np.where(target > 0.0, target * self.slope_at_infinity, 0.0)
            return np.where(
                source > 0.0, source * self.generator(target / np.where(source > 0.0, source, 1.0)), new_mass
            )


def binary_worst_case(p: npt.ArrayLike, *, divergence: str | FDivergence, budget: npt.ArrayLike) -> FloatArray:
    """Largest probability an event can have on a target network within the budget: inv_f(p, budget).

    Parameters
    ----------
    p : array_like
        Probability of the event on the source network, in [0, 1].
    divergence : str or FDivergence
        A name in `DIVERGENCES`, or your own.
    budget : array_like
        Size of the ball, >= 0; broadcast against `p`.

    Returns
    -------
    ndarray
        max{q >= p : p f(q/p) + (1 - p) f((1 - q)/(1 - p)) <= budget}, in [p, 1], from the safe end of the search.
        Reweighting inside and outside the event only is optimal (data processing). Source: math §3.1.

    Raises
    ------
    ValueError
        If `p` or `budget` is out of range, or the divergence is unknown.
    """
    probability = check_fraction("p", p)
    size = check_numbers("budget", budget, remedy="0 means no shift")
    check_budget(size.ravel())
    probability, size = np.broadcast_arrays(probability, size)
    f = resolve_divergence(divergence)
    if f.binary_inverse is not None:
        worst = f.binary_inverse(probability, size)
    else:
        worst = bisect(lambda q: f.binary(q, probability) <= size, low=probability, high=np.ones_like(probability))[1]
    return np.where(size == 0.0, probability, np.clip(worst, probability, 1.0))


def robust_mean(values: FloatArray, weights: FloatArray, *, divergence: FDivergence, budget: float) -> RobustMean:
    """Worst-case mean of a discrete law over the divergence ball, and the weights that attain it.

    Parameters
    ----------
    values, weights : ndarray, shape (num_atoms,)
        Risks in [0, 1] and their probabilities; the largest risk must be what a new client could have at worst.
    divergence : FDivergence
        The divergence.
    budget : float
        Size of the ball, >= 0.

    Returns
    -------
    value : float
        From the dual, so it is never below the true worst case by more than rounding.
    worst : ndarray, shape (num_atoms,)
        Weights of the worst case, with sum 1.

    Notes
    -----
    For any multiplier > 0 and shift: E_target R <= multiplier·budget + shift + multiplier·E f*((R - shift)/multiplier).
    Source: math §3.1.
    """
    if budget == 0.0:
        return float(values @ weights), weights
    if divergence.robust_mean is not None:
        value, worst = divergence.robust_mean(values, weights, budget)
    else:
        value, worst = dual_robust_mean(
            values,
            weights,
            budget,
            generator=divergence.generator,
            best_ratio=divergence.best_ratio,
            slope_at_infinity=divergence.slope_at_infinity,
        )
    return min(value, float(values.max())), worst


def _kl_binary_inverse(p: FloatArray, budget: FloatArray) -> FloatArray:
    worst = bisect(lambda q: binary_kl(q, p) <= budget, low=p, high=np.ones_like(p))[1]
    with np.errstate(divide="ignore"):
        is_whole = -np.log(p) <= budget
    return np.where(p == 0.0, 0.0, np.where(is_whole, 1.0, worst))


def _hellinger_binary_inverse(p: FloatArray, budget: FloatArray) -> FloatArray:
    """With p = sin² a, the divergence of sin² b is 2 - 2 cos(b - a)."""
    turn = np.arccos(np.clip(1.0 - budget / 2.0, -1.0, 1.0))
    return np.asarray(np.sin(np.minimum(np.arcsin(np.sqrt(p)) + turn, np.pi / 2)) ** 2)


def _hellinger_best_ratio(slope: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.where(slope < 1.0, 1.0 / np.square(1.0 - np.minimum(slope, 1.0)), np.inf)


KL = FDivergence(
    name="kl",
    title="KL divergence",
    generator=lambda t: xlogy(t, t) - t + 1.0,
    slope_at_infinity=np.inf,
    best_ratio=np.exp,
    binary_inverse=_kl_binary_inverse,
    robust_mean=kl_robust_mean,
    cvxpy_generator=lambda cp, t: cp.kl_div(t, 1.0),
)
CHI2 = FDivergence(
    name="chi2",
    title="χ² divergence",
    generator=lambda t: np.square(t - 1.0),
    slope_at_infinity=np.inf,
    best_ratio=lambda s: np.maximum(1.0 + s / 2.0, 0.0),
    binary_inverse=lambda p, budget: p + np.sqrt(budget * p * (1.0 - p)),
    robust_mean=chi2_robust_mean,
    cvxpy_generator=lambda cp, t: cp.square(t - 1.0),
)
TV = FDivergence(
    name="tv",
    title="total variation",
    generator=lambda t: np.abs(t - 1.0) / 2.0,
    slope_at_infinity=0.5,
    best_ratio=lambda s: np.where(s > 0.5, np.inf, np.where(s < -0.5, 0.0, 1.0)),
    binary_inverse=lambda p, budget: p + budget,
    robust_mean=tv_robust_mean,
    cvxpy_generator=lambda cp, t: cp.abs(t - 1.0) / 2.0,
)
HELLINGER2 = FDivergence(
    name="hellinger2",
    title="squared Hellinger distance",
    generator=lambda t: np.square(np.sqrt(t) - 1.0),
    slope_at_infinity=1.0,
    best_ratio=_hellinger_best_ratio,
    binary_inverse=_hellinger_binary_inverse,
    cvxpy_generator=lambda cp, t: t + 1.0 - 2.0 * cp.sqrt(t),
)

DIVERGENCES: Mapping[str, FDivergence] = {f.name: f for f in (KL, CHI2, TV, HELLINGER2)}
"""The built-in divergences by name."""


def resolve_divergence(divergence: str | FDivergence) -> FDivergence:
    """Return the divergence of that name, or the one given; raises ValueError for an unknown name."""
    if isinstance(divergence, FDivergence):
        return divergence
    name = as_spelled(divergence, DIVERGENCES)
    if name is None:
        known = ", ".join(sorted(DIVERGENCES))
        raise ValueError(f"divergence must be one of {known} or an FDivergence, got {divergence!r:.80}")
    return DIVERGENCES[name]
