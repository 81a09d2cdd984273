"""Meta-distributions whose distribution of the client risk is known exactly: the truth in coverage tests.

Each can draw a network and says what any certificate about it must not exceed: the CDF of the true
risks, and worst cases over the networks μ' within a budget of μ. Nothing is imported from `riskband`,
so that the code under test is never compared with itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from protocol.checks import checked_count, checked_number
from worlds.worst_cases import Array, quadrature, worst_case_mean, worst_case_probability


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
        """Return the largest μ'{R ≥ threshold} over the ball; see `worlds.worst_cases.worst_case_probability`."""
        return worst_case_probability(self.survival(threshold), divergence, budget)

    def worst_case_mean(self, divergence: str, budget: float) -> float:
        """Return the largest E_{μ'} R over the ball; see `worlds.worst_cases.worst_case_mean`."""
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

    Attributes
    ----------
    margin
        > 0, distance of the class means from the threshold, in standard deviations.
    sigma
        ≥ 0.2, strength of the shift; below, the mass of the risks over ½ is lost to rounding.

    Raises
    ------
    ValueError
        If a parameter breaks its rule.

    Notes
    -----
    Risks within 1e-16 of ½ are drawn as ½: compare a sample with the distribution at thresholds other than ½.
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
