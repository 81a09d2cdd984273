"""Exact worst cases of a known distribution μ of the risk over {μ' ≪ μ : D_f(μ'‖μ) ≤ budget}.

With f(t) = t log t ("kl"), (t − 1)² ("chi2") or |t − 1|/2 ("tv"). Each worst case is computed from the
primal optimum, the reweighted distribution itself, by quadrature and root finding on the true distribution; `riskband`
works from the dual and from samples, so agreement between the two says something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from protocol.checks import checked_number

Array = NDArray[np.float64]

# p·f(q/p), written so that it stays finite for the smallest p.
_PERSPECTIVES: dict[str, Callable[[float, float], float]] = {
    "kl": lambda q, p: float(special.rel_entr(q, p)),
    "chi2": lambda q, p: (q - p) ** 2 / p,
    "tv": lambda q, p: abs(q - p) / 2,
}
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)


class RiskDistribution(Protocol):
    """What must be known of a distribution of the risk R: see `worlds.ground_truth.MetaDistribution`."""

    @property
    def breaks(self) -> tuple[float, ...]:
        """Smallest risk, points at which the CDF is not smooth, largest risk; ascending."""

    def survival(self, x: ArrayLike) -> Array:
        """Return μ{R ≥ x}."""

    def risk_quantile(self, p: ArrayLike) -> Array:
        """Return the quantile of order `p`."""

    def mean_risk(self) -> float:
        """Return E_μ R."""


def worst_case_probability(probability: ArrayLike, divergence: str, budget: float) -> Array:
    """Return the largest μ'(E) over the ball, for an event E of probability μ(E).

    Only μ(E) matters: the worst case has one density ratio in E and one outside (data processing inequality), so it is
    max{q ≥ p : p·f(q/p) + (1 − p)·f((1 − q)/(1 − p)) ≤ budget}. An event of probability 0 keeps it, as μ' ≪ μ. The
    probability is in [0, 1], of any shape, which the result has; the divergence is "kl", "chi2" or "tv", the budget ≥ 0
    the radius of the ball, else ValueError is raised.
    """
    perspective, budget = _checked_ball(divergence, budget)

    def enlarged(p: float) -> float:
        def excess(q: float) -> float:
            return perspective(q, p) + perspective(1 - q, 1 - p) - budget

        if p <= 0 or p >= 1 or budget == 0:
            return p
        return 1.0 if excess(1.0) <= 0 else float(optimize.bisect(excess, p, 1.0, xtol=1e-14))

    return np.asarray(np.vectorize(enlarged, otypes=[float])(probability), dtype=np.float64)


def worst_case_mean(law: RiskDistribution, divergence: str, budget: float) -> float:
    """Return the largest E_{μ'} R over the ball, to about 1e-8; the ball is that of `worst_case_probability`.

    Raises ValueError also for a budget so large that only the very top of the risks matters.
    """
    _, budget = _checked_ball(divergence, budget)
    if budget == 0:
        return law.mean_risk()
    return {"kl": _kl_mean, "chi2": _chi2_mean, "tv": _tv_mean}[divergence](law, budget)


def quadrature(points: tuple[float, ...]) -> tuple[Array, Array]:
    """Return nodes and weights, each 400 per gap, of Gauss–Legendre rules between the points.

    Nodes crowd at the points by x = a + (b − a)(1 − cos φ)/2, which smooths the square-root and milder
    singularities that a CDF may have there.
    """
    angle = np.pi * (_NODES + 1) / 2
    nodes, weights = (1 - np.cos(angle)) / 2, np.pi / 4 * _WEIGHTS * np.sin(angle)
    starts, widths = np.asarray(points[:-1]), np.diff(points)
    return (starts[:, None] + widths[:, None] * nodes).ravel(), (widths[:, None] * weights).ravel()


def _kl_mean(law: RiskDistribution, budget: float) -> float:
    """Return the mean of the tilted distribution e^{θR}μ/E e^{θR} whose divergence is the budget."""
    low, high = law.breaks[0], law.breaks[-1]
    x, weights = quadrature(law.breaks)
    mass = weights * law.survival(x)

    def tilted(theta: float) -> tuple[float, float]:
        factor = mass * np.exp(theta * (x - high))  # E h(R) = h(low) + ∫ h'(x) S(x) dx throughout
        normaliser = np.exp(theta * (low - high)) + theta * factor.sum()
        mean = low + ((1 + theta * (x - low)) @ factor) / normaliser
        return mean, theta * (mean - high) - np.log(normaliser)

    theta = 1.0
    while tilted(theta)[1] < budget:
        theta *= 2
        if theta > 1e4:
            raise _budget_too_large(budget)
    return tilted(optimize.bisect(lambda t: tilted(t)[1] - budget, 0, theta, xtol=1e-13))[0]


def _chi2_mean(law: RiskDistribution, budget: float) -> float:
    """Return the mean under the density ratio (R − κ)_+ / E(R − κ)_+, linear in R if κ ≤ the lowest risk."""
    low, high = law.breaks[0], law.breaks[-1]

    def moments(kappa: float) -> tuple[float, float]:
        x, weights = quadrature((kappa, *(point for point in law.breaks if point > kappa)))
        mass = weights * law.survival(x)
        # E(R − κ)_+ and E(R − κ)_+², by parts, for κ ≥ low.
        return float(mass.sum()), float(2 * (x - kappa) @ mass)

    def excess(kappa: float) -> float:
        first, second = moments(kappa)
        # So near the top that the mass underflows, the ratio is larger than any budget.
        return second / first**2 - 1 - budget if first > 1e-150 else np.inf

    if excess(low) >= 0:
        first, second = moments(low)
        return float(low + first + np.sqrt(budget * (second - first**2)))
    gap = high - low
    while excess(high - gap) < 0:
        gap /= 2
        if gap < 1e-4 * (high - low):
            raise _budget_too_large(budget)
    kappa = optimize.bisect(excess, low, high - gap, xtol=1e-13)
    first, second = moments(kappa)
    return float(kappa + second / first)


def _tv_mean(law: RiskDistribution, budget: float) -> float:
    """Return the mean once the lowest share `budget` of the risks has moved to the highest."""
    high = law.breaks[-1]
    if budget >= 1:
        return high
    cut = float(law.risk_quantile(budget))
    x, weights = quadrature((cut, *(point for point in law.breaks if point > cut)))
    return float(cut + budget * (high - cut) + weights @ law.survival(x))


def _checked_ball(divergence: str, budget: float) -> tuple[Callable[[float, float], float], float]:
    if divergence not in _PERSPECTIVES:
        known = ", ".join(_PERSPECTIVES)
        raise ValueError(f"divergence must be one of {known}, got {divergence!r}; choose one of them")
    return _PERSPECTIVES[divergence], checked_number("budget", budget, minimum=0, remedy="0 means no shift")


def _budget_too_large(budget: float) -> ValueError:
    return ValueError(
        f"budget must leave more than the top of the risks relevant, got {budget:g}; the quadrature is not "
        "accurate there: give a smaller one"
    )
