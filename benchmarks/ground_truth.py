"""Meta-distributions whose distribution of the client risk is known exactly: the truth in coverage tests.

Each can draw a network and says what any certificate about it must not exceed: the CDF of the true
risks, and worst cases over the networks {μ' ≪ μ : D_f(μ'‖μ) ≤ budget}, with f(t) = t log t ("kl"), (t − 1)² ("chi2") or
|t − 1|/2 ("tv"). Each worst case is computed from the primal optimum, the reweighted distribution itself, by quadrature
and root finding on the true distribution; `riskband` works from the dual and from samples, so agreement between the two
says something. Nothing is imported from it, so that the code under test is never compared with itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from protocol.checks import checked_count, checked_number

Array = NDArray[np.float64]

# p·f(q/p), written so that it stays finite for the smallest p.
_PERSPECTIVES: dict[str, Callable[[float, float], float]] = {
    "kl": lambda q, p: float(special.rel_entr(q, p)),
    "chi2": lambda q, p: (q - p) ** 2 / p,
    "tv": lambda q, p: abs(q - p) / 2,
}
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)


class MetaDistribution(ABC):
    """A distribution μ of clients with a known distribution of the true risk R."""

    @property
    @abstractmethod
    def breaks(self) -> tuple[float, ...]:
        """Smallest risk, points at which the CDF is not smooth, largest risk; ascending."""

    @abstractmethod
    def risk_cdf(self, x: ArrayLike) -> Array:
        """Return F(x) = μ{R ≤ x}, of the shape of `x`."""

    @abstractmethod
    def survival(self, x: ArrayLike) -> Array:
        """Return S(x) = μ{R ≥ x}, of the shape of `x`."""

    @abstractmethod
    def risk_quantile(self, p: ArrayLike) -> Array:
        """Return the smallest x with F(x) ≥ p, of the shape of `p`; `p` in [0, 1]."""

    @abstractmethod
    def _draw(self, rng: np.random.Generator, num_clients: int, num_examples: NDArray[np.int64]) -> tuple[Array, Array]:
        """Draw as `draw` says; `num_examples` has shape (num_clients,)."""

    def draw(self, rng: np.random.Generator, *, num_clients: int, num_examples: ArrayLike) -> tuple[Array, Array]:
        """Draw a network: clients from μ, then the examples of each.

        There is at least one client, and `num_examples` is ≥ 1, one number for all clients or one each, (num_clients,).
        Returns true and empirical risks, both (num_clients,), in [0, 1].
        """
        num_clients = checked_count("num_clients", num_clients, minimum=1, remedy="a network has clients")
        sizes = np.asarray(num_examples)
        if sizes.shape not in {(), (num_clients,)} or sizes.dtype.kind not in "iu" or sizes.min() < 1:
            raise ValueError(
                "num_examples must be whole numbers of at least 1, one or one for each client, "
                f"got {num_examples!r}; each client holds examples"
            )
        return self._draw(rng, num_clients, np.broadcast_to(sizes.astype(np.int64), num_clients))

    def mean_risk(self) -> float:
        """Return E_μ R."""
        x, weights = quadrature(self.breaks)
        return float(self.breaks[0] + weights @ self.survival(x))

    def worst_case_survival(self, threshold: ArrayLike, divergence: str, budget: float) -> Array:
        """Return the largest μ'{R ≥ threshold} over the ball; see `worst_case_probability`."""
        return worst_case_probability(self.survival(threshold), divergence, budget)

    def worst_case_mean(self, divergence: str, budget: float) -> float:
        """Return the largest E_{μ'} R over the ball; see `worst_case_mean`."""
        return worst_case_mean(self, divergence, budget)


@dataclass(frozen=True)
class BetaRisks(MetaDistribution):
    """R ~ Beta(a, b) with a, b > 0, and zero-one losses: a client's empirical risk is Binomial(n, R)/n."""

    a: float
    b: float

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            checked_number(name, getattr(self, name), above=0, remedy="see scipy.stats.beta")

    @property
    def breaks(self) -> tuple[float, ...]:
        """(0, 1)."""
        return (0.0, 1.0)

    def risk_cdf(self, x: ArrayLike) -> Array:
        """Return F(x), the regularised incomplete beta function."""
        return np.asarray(stats.beta.cdf(np.asarray(x, dtype=np.float64), self.a, self.b))

    def survival(self, x: ArrayLike) -> Array:
        """Return S(x) = 1 − F(x), without cancellation."""
        return np.asarray(stats.beta.sf(np.asarray(x, dtype=np.float64), self.a, self.b))

    def risk_quantile(self, p: ArrayLike) -> Array:
        """Return the quantile of order `p`."""
        return np.asarray(stats.beta.ppf(_checked_probability(p), self.a, self.b))

    def mean_risk(self) -> float:
        """Return a/(a + b)."""
        return self.a / (self.a + self.b)

    def _draw(self, rng: np.random.Generator, num_clients: int, num_examples: NDArray[np.int64]) -> tuple[Array, Array]:
        risks = rng.beta(self.a, self.b, size=num_clients)
        return risks, rng.binomial(num_examples, risks) / num_examples


@dataclass(frozen=True)
class ContinuousLossRisks(BetaRisks):
    """R ~ Beta(a, b), and inside a client losses ~ Beta(c·R, c·(1 − R)): mean R, any value in [0, 1].

    The losses of a client have variance R(1 − R)/(c + 1), c > 0 being `loss_precision`. Empirical risks are not
    multiples of 1/n, so no binomial confidence limit applies to them.
    """

    loss_precision: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_number("loss_precision", self.loss_precision, above=0, remedy="2 is a usual choice")

    def _draw(self, rng: np.random.Generator, num_clients: int, num_examples: NDArray[np.int64]) -> tuple[Array, Array]:
        risks = rng.beta(self.a, self.b, size=num_clients)
        # A risk may round to 0 or 1, where the distribution of the losses is degenerate; numpy wants parameters > 0.
        inside = np.clip(risks, 1e-12, 1 - 1e-12)[:, None]
        size = (num_clients, int(num_examples.max()))
        losses = rng.beta(self.loss_precision * inside, self.loss_precision * (1 - inside), size=size)
        return risks, _mean_of_first(losses, num_examples)


@dataclass(frozen=True)
class TwoPointRisks(MetaDistribution):
    """Clients of risk `low` and `high`, 0 ≤ low < high ≤ 1, with zero-one losses: discrete, full of ties.

    `weight`, in (0, 1), is μ{R = high}.
    """

    low: float
    high: float
    weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(
                f"low and high must satisfy 0 <= low < high <= 1, got {self.low} and {self.high}; swap them?"
            )
        if not 0 < self.weight < 1:
            raise ValueError(f"weight must be in (0, 1), got {self.weight}; it is the share of bad clients")

    @property
    def breaks(self) -> tuple[float, ...]:
        """(low, high)."""
        return (self.low, self.high)

    def risk_cdf(self, x: ArrayLike) -> Array:
        """Return F(x): 0, 1 − weight or 1."""
        return np.where(np.less(x, self.low), 0.0, np.where(np.less(x, self.high), 1 - self.weight, 1.0))

    def survival(self, x: ArrayLike) -> Array:
        """Return S(x): 1, weight or 0."""
        return np.where(np.greater(x, self.high), 0.0, np.where(np.greater(x, self.low), self.weight, 1.0))

    def risk_quantile(self, p: ArrayLike) -> Array:
        """Return `low` for p ≤ 1 − weight, otherwise `high`."""
        return np.where(_checked_probability(p) <= 1 - self.weight, self.low, self.high)

    def mean_risk(self) -> float:
        """Return low + weight·(high − low)."""
        return self.low + self.weight * (self.high - self.low)

    def worst_case_mean(self, divergence: str, budget: float) -> float:
        """Return low + q·(high − low), with q the worst-case share of the clients of risk `high`."""
        share = float(self.worst_case_survival(self.high, divergence, budget))
        return self.low + share * (self.high - self.low)

    def _draw(self, rng: np.random.Generator, num_clients: int, num_examples: NDArray[np.int64]) -> tuple[Array, Array]:
        risks = np.where(rng.random(num_clients) < self.weight, self.high, self.low)
        return risks, rng.binomial(num_examples, risks) / num_examples


@dataclass(frozen=True)
class AffineGaussian(MetaDistribution):
    """A threshold classifier on Gaussian data, each client under its own `AffineShift(sigma)`.

    Labels are −1 or +1 with probability ½ each, x | y ~ N(y·margin, 1) on the line; client k sees
    (1 + A)x + B with A, B ~ N(0, sigma²) and predicts its sign. Given A and B, with τ = |B/(1 + A)|,

        R = g(τ) if 1 + A > 0, otherwise 1 − g(τ),   g(τ) = ½Φ(−margin − τ) + ½Φ(τ − margin),

    and g increases. So R ≤ x is the event that (A, B) lies in a wedge with its apex at (−1, 0), whose
    Gaussian probability is closed form by Owen's T: the wedge is {U ≥ 0, V ≥ 0} for a bivariate normal
    with equal means and Φ₂(h, h; ρ) = Φ(h) − 2T(h, sqrt((1 − ρ)/(1 + ρ))) (Owen 1956).

    The margin > 0 is the distance of the class means from the threshold, in standard deviations; sigma ≥ 0.2 the
    strength of the shift: below, the mass of the risks over ½ is lost to rounding. Risks within 1e-16 of ½ are drawn as
    ½: compare a sample with the distribution at thresholds other than ½.
    """

    margin: float
    sigma: float

    def __post_init__(self) -> None:
        checked_number("margin", self.margin, above=0, remedy="the classes must be apart")
        checked_number("sigma", self.sigma, minimum=0.2, remedy="give a stronger shift")

    @property
    def breaks(self) -> tuple[float, ...]:
        """(Φ(−margin), ½, Φ(margin)); at ½ the sign of 1 + A changes."""
        return (float(special.ndtr(-self.margin)), 0.5, float(special.ndtr(self.margin)))

    def risk_cdf(self, x: ArrayLike) -> Array:
        """Return F(x), by Owen's T."""
        x = np.asarray(x, dtype=np.float64)
        height, twice_t = self._wedge(np.minimum(x, 1 - x))
        inside = np.where(x < 0.5, special.ndtr(height) - twice_t, special.ndtr(height) + twice_t)
        return np.where(x < self.breaks[0], 0.0, np.where(x > self.breaks[-1], 1.0, inside))

    def survival(self, x: ArrayLike) -> Array:
        """Return S(x) = 1 − F(x), by Owen's T."""
        x = np.asarray(x, dtype=np.float64)
        height, twice_t = self._wedge(np.minimum(x, 1 - x))
        inside = np.where(x < 0.5, special.ndtr(-height) + twice_t, special.ndtr(-height) - twice_t)
        return np.where(x < self.breaks[0], 1.0, np.where(x > self.breaks[-1], 0.0, np.maximum(inside, 0)))

    def risk_quantile(self, p: ArrayLike) -> Array:
        """Return the quantile of order `p`, by bisection on the CDF."""
        p = _checked_probability(p)
        return _bisected(lambda x: self.risk_cdf(x) >= p, np.full(p.shape, self.breaks[0]), self.breaks[-1])

    def client_risk(self, scale: ArrayLike, offset: ArrayLike) -> Array:
        """Return the true risk of a client that sees scale·x + offset, by Φ; scale ≠ 0."""
        ratio = np.abs(np.asarray(offset) / np.asarray(scale))
        return np.asarray(np.where(np.greater(scale, 0), self._risk(ratio), 1 - self._risk(ratio)))

    def _risk(self, ratio: Array) -> Array:
        return np.asarray((special.ndtr(-self.margin - ratio) + special.ndtr(ratio - self.margin)) / 2)

    def _wedge(self, x: Array) -> tuple[Array, Array]:
        """Return h and 2T(h, 1/τ) of the wedge g(|B/(1 + A)|) ≤ x, that is τ = g⁻¹(x), for x ≤ ½.

        Its half with 1 + A > 0 has probability Φ(h) − 2T, the opposite half Φ(−h) − 2T.
        """
        largest = self.margin + 40.0  # g(largest) = ½ in double precision
        ratio = _bisected(lambda tau: self._risk(tau) >= x, np.zeros(x.shape), largest)
        slope = np.divide(1, ratio, out=np.full(x.shape, np.inf), where=ratio > 0)
        slope = np.where(x < 0.5, slope, 0.0)  # at ½ exactly, τ = ∞
        height = 1 / (self.sigma * np.hypot(1, slope))
        return height, np.asarray(2 * special.owens_t(height, slope))

    def _draw(self, rng: np.random.Generator, num_clients: int, num_examples: NDArray[np.int64]) -> tuple[Array, Array]:
        scale = 1 + self.sigma * rng.standard_normal(num_clients)
        offset = self.sigma * rng.standard_normal(num_clients)
        size = (num_clients, int(num_examples.max()))
        y = np.where(rng.random(size) < 0.5, -1.0, 1.0)
        x = y * self.margin + rng.standard_normal(size)
        errors = np.sign(scale[:, None] * x + offset[:, None]) != y
        return self.client_risk(scale, offset), _mean_of_first(errors.astype(np.float64), num_examples)


def _bisected(is_reached: Callable[[Array], NDArray[np.bool_]], low: Array, high: float) -> Array:
    """Return, entry by entry, the smallest point of [low, high] from which on `is_reached` holds."""
    high_end = np.full(low.shape, high)
    for _ in range(100):
        middle = (low + high_end) / 2
        reached = is_reached(middle)
        low, high_end = np.where(reached, low, middle), np.where(reached, middle, high_end)
    return high_end


def _mean_of_first(losses: Array, num_examples: NDArray[np.int64]) -> Array:
    """Return the mean of the first num_examples[k] entries of row k."""
    is_held = np.arange(losses.shape[1]) < num_examples[:, None]
    return np.asarray((losses * is_held).sum(axis=1) / num_examples)


def _checked_probability(p: ArrayLike) -> Array:
    p = np.asarray(p, dtype=np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"p must be in [0, 1], got {p}; it is a probability, not a percentage")
    return p


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


def worst_case_mean(law: MetaDistribution, divergence: str, budget: float) -> float:
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


def _kl_mean(law: MetaDistribution, budget: float) -> float:
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


def _chi2_mean(law: MetaDistribution, budget: float) -> float:
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


def _tv_mean(law: MetaDistribution, budget: float) -> float:
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
