"""How far above the truth every certificate is, in units of what the central limit theorem would allow.

    python -m benchmarks.tightness [--networks 6] [--quick]

Client risks follow Beta(3, 21) (mean 0.125), each client has n examples with 0-1 loss, delta = 0.05. Of every
certificate the table gives the mean slack (bound minus truth) over z * sd / sqrt(K), the slack of a normal limit that
knows the distribution: z is the 0.95 quantile of the normal distribution and sd the standard deviation of the
functional's influence function under Beta(3, 21), as if every client knew its true risk; for the means, which are those
of measured risks too, as measured on n examples. For measures of dispersion, which are bounded from both sides, it is
the width of the interval over the width of the normal one. Cells say K = 50 / 500 / 5,000.

* band: read off one band, together with everything else that it says (for transport: at once for every budget).
* direct: the one number asked, with a delta of its own.
* best known: Clopper-Pearson for measured shares; for the mean the Monte Carlo bound of Gaffke (2005), which nobody
  has proved; for CVaR the DKW order statistics of Thomas and Learned-Miller (2019); else the published bounds, [RE]
  Theorems 4.1, 5.2, 5.3 and 6.3 and the plug-in bounds of [DC].

A dash: in at least one network no number below 1 (of a measure of dispersion: no upper end). Deterministic: the seed of
network i is i.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from scipy import optimize, special, stats

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from riskband.answers.concave_curves import knapsack_curve
from riskband.functionals.functional import interval_of

LAW = BetaRisks(3.0, 21.0)
DELTA = 0.05
SIZES, NUM_EXAMPLES = (50, 500, 5000), (20, 100, 1000)
THRESHOLD, LEVEL = 0.3, 0.9
RADII = np.concatenate([[0.0], np.geomspace(0.0002, 0.5, 40)])
COST_BUDGET, SHARE_BUDGET = 0.02, 0.002

Array = np.ndarray
Bound = Callable[["Network"], float]


@dataclass(frozen=True)
class Truth:
    """A number of the distribution, and its influence function."""

    value: float
    influence: Array
    """How much a client at each of `atoms()` changes the number; the mean over the atoms is 0."""
    extra_variance: float = 0.0
    """Of the influence, given the client's risk: that of what the client measures."""
    chance: Callable[[Network], float] | None = None
    """What the clients of a network add to the number by chance, by what they measure; None: by their true risks."""

    @property
    def spread(self) -> float:
        """Standard deviation of the influence."""
        return float(np.sqrt(np.mean(self.influence**2) + self.extra_variance))

    def luck(self, network: Network) -> float:
        """What these clients add to the number by chance, of mean 0: left in, it would be most of the error."""
        return float(
            np.interp(network.true, atoms(), self.influence).mean() if self.chance is None else self.chance(network)
        )


@dataclass(frozen=True)
class Row:
    """A certificate: its truth, for clients of so many examples, and the ways to bound it."""

    truth: Callable[[int], Truth]
    band: Bound
    direct: Bound | None = None
    best_known: Bound | None = None
    is_width: bool = False  # the bounds are widths of intervals


class Network:
    """The answers of one network; what several certificates need is made once."""

    def __init__(self, *, num_clients: int, num_examples: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.true, self.measured = LAW.draw(rng, num_clients=num_clients, num_examples=num_examples)
        self.risks = rb.ClientRisks(self.measured, num_examples)
        self.band = cache(self._band)
        self.costs = cache(partial(self._costs, rng))
        self.adversarial = cache(self._adversarial)

    def _band(self, method: str = "berk_jones", local: str = "marginal", sides: str = "lower") -> rb.Band:
        return rb.band(self.risks, delta=DELTA, method=method, local=local, sides=sides)

    def _costs(self, rng: np.random.Generator) -> Array:
        """Of every example of each client, the cost at which it is wrong: 0 where it is, else uniform on [0, 1]."""
        num_examples = int(self.risks.num_examples[0])
        num_wrong = np.round(self.measured * num_examples)[:, np.newaxis]
        return np.where(np.arange(num_examples) < num_wrong, 0.0, rng.random((self.measured.size, num_examples)))

    def conjugates(self, multiplier: float) -> Array:
        """What every client measures at a multiplier."""
        return np.maximum(1.0 - multiplier * self.costs(), 0.0).mean(axis=1)

    def _adversarial(self) -> rb.AdversarialAnswers:
        """Exact answers at the multipliers that are asked for either budget."""
        multipliers = np.union1d(*map(rb.default_multipliers, (SHARE_BUDGET, COST_BUDGET)))
        conjugates = np.stack([self.conjugates(each) for each in multipliers], axis=1)
        values = [knapsack_curve(costs)(RADII) for costs in self.costs()]
        answers = {"multipliers": multipliers, "conjugates": conjugates, "binary": True}
        return rb.AdversarialAnswers(
            RADII, values, self.costs().shape[1], cost="unit cost", guarantee="exact", **answers
        )


# Truths: all by a fine midpoint rule over the quantiles of Beta(3, 21).


@cache
def atoms() -> Array:
    return LAW.risk_quantile((np.arange(200_000) + 0.5) / 200_000)


def of_mean(outcomes: Array, value: float | None = None) -> Truth:
    """Of a mean over clients, or of a number that changes like it."""
    mean = float(outcomes.mean())
    return Truth(mean if value is None else value, outcomes - mean)


def mean_truth(num_examples: int) -> Truth:
    found, variance = of_mean(atoms()), float(np.mean(atoms() * (1.0 - atoms()))) / num_examples
    return replace(found, extra_variance=variance, chance=lambda network: network.measured.mean() - found.value)


def share_truth() -> Truth:
    """Of P(R >= THRESHOLD)."""
    return of_mean((atoms() >= THRESHOLD).astype(float), float(LAW.survival(THRESHOLD)))


def measured_share_truth(num_examples: int) -> Truth:
    """Of the share of clients that measure so much on their examples."""
    given = stats.binom.sf(np.ceil(THRESHOLD * num_examples - 1e-9) - 1, num_examples, atoms())
    return Truth(float(given.mean()), given - given.mean(), float(np.mean(given * (1.0 - given))))


def worst_share_truth(name: str, budget: float) -> Truth:
    share, step = share_truth(), 1e-5
    near = share.value + np.array([-step, 0.0, step])
    below, value, above = rb.binary_worst_case(near, divergence=name, budget=budget)
    return Truth(float(value), (above - below) / (2.0 * step) * share.influence)


def worst_mean_truth(name: str, budget: float) -> Truth:
    value, risks = LAW.worst_case_mean(name, budget), atoms()
    if name == "chi2":
        root = np.sqrt(1.0 + budget)
        squares = lambda kappa: np.maximum(risks - kappa, 0.0) ** 2  # noqa: E731
        best = optimize.minimize_scalar(
            lambda kappa: kappa + root * np.sqrt(squares(kappa).mean()), bounds=(-2.0, 0.5), method="bounded"
        )
        found = squares(best.x)
        return of_mean(root * found / (2.0 * np.sqrt(found.mean())), value)
    best = optimize.minimize_scalar(
        lambda scale: scale * (budget + np.log(np.mean(np.exp(risks / scale)))), bounds=(1e-3, 10.0), method="bounded"
    )
    ratio = np.exp(risks / best.x)
    return of_mean(best.x * ratio / ratio.mean(), value)


def excess() -> Array:
    return np.maximum(atoms() - LAW.risk_quantile(LEVEL), 0.0)


def cvar_truth() -> Truth:
    return of_mean(excess() / (1.0 - LEVEL), float(LAW.risk_quantile(LEVEL) + excess().mean() / (1.0 - LEVEL)))


def quantile_truth() -> Truth:
    value = float(LAW.risk_quantile(LEVEL))
    return of_mean((atoms() > value) / stats.beta.pdf(value, LAW.a, LAW.b), value)


def ratio_truth(numerator: float, influence: Array) -> Truth:
    """Of a numerator over the mean risk; `influence` is that of the numerator, up to a constant."""
    mean = float(atoms().mean())
    return of_mean(influence / mean - numerator * atoms() / mean**2, numerator / mean)


def gini_truth() -> Truth:
    risks = atoms()
    below = np.cumsum(risks) / risks.size
    ranks = (np.arange(risks.size) + 0.5) / risks.size
    distance = risks * (2.0 * ranks - 1.0) + below[-1] - 2.0 * below  # E|x - R|
    return ratio_truth(float(distance.mean()) / 2.0, distance)


def atkinson_truth() -> Truth:
    roots = np.sqrt(atoms())
    kept = ratio_truth(float(roots.mean()) ** 2, 2.0 * roots.mean() * roots)
    return Truth(1.0 - kept.value, -kept.influence)


def top_share_truth() -> Truth:
    total = (1.0 - LEVEL) * float(LAW.risk_quantile(LEVEL)) + float(excess().mean())
    return ratio_truth(total, excess())


def variation_truth() -> Truth:
    squares = (atoms() - atoms().mean()) ** 2
    deviation = float(np.sqrt(squares.mean()))
    return ratio_truth(deviation, squares / (2.0 * deviation))


def best_multiplier(outcomes: Callable[[float], Array], budget: float) -> float:
    """The multiplier m of the least m * budget + the mean outcome at m."""
    found = optimize.minimize_scalar(
        lambda log: np.exp(log) * budget + outcomes(np.exp(log)).mean(), bounds=(-5.0, 12.0), method="bounded"
    )
    return float(np.exp(found.x))


def transport_truth(outcomes: Callable[[float], Array], budget: float) -> Truth:
    """Of the least, over multipliers m, of m * budget + the mean outcome at m."""
    best = best_multiplier(outcomes, budget)
    return of_mean(outcomes(best), best * budget + float(outcomes(best).mean()))


def conjugate(multiplier: float, power: int = 1) -> Array:
    """Mean of a power of (1 - m c)_+ over a client's examples, c the cost at which one becomes wrong."""
    gain = (1.0 - max(1.0 - multiplier, 0.0) ** (power + 1)) / ((power + 1) * multiplier)
    return atoms() + (1.0 - atoms()) * gain


def transported_mean_truth(num_examples: int) -> Truth:
    best = best_multiplier(conjugate, COST_BUDGET)
    expected = conjugate(best)
    return replace(
        transport_truth(conjugate, COST_BUDGET),
        extra_variance=float(np.mean(conjugate(best, power=2) - expected**2)) / num_examples,
        chance=lambda network: network.conjugates(best).mean() - expected.mean(),
    )


def pushed(multiplier: float) -> Array:
    """(1 - m r)_+, r the least cost at which a client reaches the threshold."""
    cost = np.maximum(THRESHOLD - atoms(), 0.0) ** 2 / (2.0 * (1.0 - atoms()))
    return np.maximum(1.0 - multiplier * cost, 0.0)


# The best known alternatives.


def gaffke(network: Network, num_draws: int = 2000) -> float:
    """The 1 - delta quantile of the mean of the sorted risks and 1 under random weights (Dirichlet with all ones)."""
    rng = np.random.default_rng(0)
    points = np.append(np.sort(network.measured), 1.0)
    weights = rng.standard_exponential((num_draws, points.size))
    return float(np.quantile(weights @ points / weights.sum(axis=1), 1.0 - DELTA, method="higher"))


def clopper_pearson(network: Network) -> float:
    count, size = int(np.sum(network.measured >= THRESHOLD - 1e-12)), network.measured.size
    return float(special.betaincinv(count + 1.0, size - count, 1.0 - DELTA)) if count < size else 1.0


def value(certificate: rb.Certificate) -> float:
    return float(certificate.value)


def width(interval: rb.Interval | rb.Certificate) -> float:
    lower, upper = (interval.lower, interval.value) if isinstance(interval, rb.Certificate) else interval
    assert lower is not None
    return float(upper) - float(lower)


def worst_mean(name: str, budget: float) -> Row:
    ball = {"divergence": name, "budget": budget}
    return Row(
        lambda n: worst_mean_truth(name, budget),
        lambda net: value(rb.worst_case_mean(net.band(), **ball)),
        lambda net: value(rb.worst_case_mean(net.risks, **ball, delta=DELTA)),
        lambda net: value(rb.worst_case_mean(net.band("dkw", "union"), **ball, method="published")),
    )


def worst_share(name: str, budget: float) -> Row:
    ball = {"divergence": name, "budget": budget, "thresholds": THRESHOLD}
    return Row(
        lambda n: worst_share_truth(name, budget),
        lambda net: value(rb.worst_case_cdf(net.band(), **ball)),
        None,
        lambda net: value(rb.worst_case_cdf(net.band("dkw", "union"), **ball, method="published")),
    )


def dispersion(measure: str, truth: Callable[[], Truth]) -> Row:
    return Row(
        lambda n: truth(),
        lambda net: width(interval_of(net.band(sides="two"), measure)),
        lambda net: width(rb.dispersion_certificate(net.risks, measure, delta=DELTA)),
        lambda net: width(interval_of(net.band(sides="two"), measure, method="plugin")),
        is_width=True,
    )


def rows() -> Mapping[str, Row]:
    """Every certificate, by name."""
    at, observed = {"thresholds": THRESHOLD}, {"local": "observed"}
    moved = {"delta": DELTA, "cost_budget": COST_BUDGET}
    shares = {"delta": DELTA, "cost_budget": SHARE_BUDGET, "thresholds": THRESHOLD}
    return {
        "mean": Row(
            mean_truth,
            lambda net: value(rb.mean(net.band())),
            lambda net: value(rb.mean_bound(net.risks, delta=DELTA)),
            gaffke,
        ),
        "mean, committed seed": Row(
            mean_truth,
            lambda net: value(rb.mean(net.band())),
            lambda net: value(rb.mean_bound(net.risks, delta=DELTA, seed=0)),
            lambda net: value(rb.mean_bound(net.risks, delta=DELTA, method="published")),
        ),
        "worst mean, χ² 0.2": worst_mean("chi2", 0.2),
        "worst mean, KL 0.1": worst_mean("kl", 0.1),
        "CVaR 0.9": Row(
            lambda n: cvar_truth(),
            lambda net: value(rb.cvar(net.band(), LEVEL)),
            lambda net: value(rb.cvar(net.risks, LEVEL, delta=DELTA)),
            lambda net: value(rb.cvar(net.band("dkw"), LEVEL)),
        ),
        "P(R ≥ 0.3)": Row(
            lambda n: share_truth(),
            lambda net: value(rb.survival(net.band(), **at)),
            lambda net: value(rb.survival(net.risks, **at, delta=DELTA)),
            lambda net: value(rb.survival(net.band("dkw", "union"), **at)),
        ),
        "P(measured ≥ 0.3)": Row(
            measured_share_truth,
            lambda net: value(rb.survival(net.band(**observed), **at)),
            lambda net: value(rb.survival(net.risks, **at, delta=DELTA, **observed)),
            clopper_pearson,
        ),
        "quantile 0.9": Row(
            lambda n: quantile_truth(),
            lambda net: value(rb.quantile(net.band(), LEVEL)),
            lambda net: value(rb.quantile(net.risks, LEVEL, delta=DELTA)),
            lambda net: value(rb.quantile(net.band("dkw", "union"), LEVEL)),
        ),
        "P(R ≥ 0.3) in χ² 0.2": worst_share("chi2", 0.2),
        "P(R ≥ 0.3) in KL 0.1": worst_share("kl", 0.1),
        "Gini": dispersion("gini", gini_truth),
        "Atkinson 0.5": dispersion("atkinson:0.5", atkinson_truth),
        "top share 0.1": dispersion("top_share:0.1", top_share_truth),
        "coefficient of variation": dispersion("coefficient_of_variation", variation_truth),
        "mean, transport 0.02": Row(
            transported_mean_truth,
            lambda net: value(rb.wasserstein_mean(net.adversarial(), **moved, every_budget=True)),
            lambda net: value(rb.wasserstein_mean(net.adversarial(), **moved)),
            lambda net: value(rb.wasserstein_published(net.adversarial(), **moved, cost_bound=1.0)),
        ),
        "mean, transport 0.02, committed seed": Row(
            transported_mean_truth,
            lambda net: value(rb.wasserstein_mean(net.adversarial(), **moved, every_budget=True, seed=0)),
            lambda net: value(rb.wasserstein_mean(net.adversarial(), **moved, seed=0)),
        ),
        "P(R ≥ 0.3), transport 0.002": Row(
            lambda n: transport_truth(pushed, SHARE_BUDGET),
            lambda net: value(rb.wasserstein_cdf(net.adversarial(), **shares, every_budget=True)),
            lambda net: value(rb.wasserstein_cdf(net.adversarial(), **shares)),
        ),
    }


def units(bound: Bound | None, row: Row, networks: list[Network], num_examples: int) -> str:
    """Mean slack (or width) over that of a normal limit."""
    if bound is None:
        return ""
    found = np.array([bound(network) for network in networks])
    if not np.all(np.isfinite(found)) or (not row.is_width and np.any(found >= 1.0 - 1e-9)):
        return "–"
    truth, root = row.truth(num_examples), np.sqrt(networks[0].true.size)
    if row.is_width:
        return f"{found.mean() * root / (2.0 * stats.norm.isf(DELTA / 2) * truth.spread):.2f}"
    slack = np.mean(found - [truth.value + truth.luck(network) for network in networks])
    return f"{slack * root / (stats.norm.isf(DELTA) * truth.spread):.2f}"


def table(sizes: tuple[int, ...], num_examples: tuple[int, ...], num_networks: int) -> Iterator[str]:
    """Lines of the table in Markdown."""
    yield "| certificate | n | band | direct | best known |"
    yield "|---|---|---|---|---|"
    for size in num_examples:
        networks = [
            [
                Network(num_clients=num_clients, num_examples=size, seed=seed)
                for seed in range(num_networks if num_clients < 5000 else max(1, num_networks // 3))
            ]
            for num_clients in sizes
        ]
        for name, row in rows().items():
            columns = [
                " / ".join(units(bound, row, each, size) for each in networks)
                for bound in (row.band, row.direct, row.best_known)
            ]
            yield f"| {name} | {size:,} | " + " | ".join(each.strip("/ ") for each in columns) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=6, help="a third as many of 5,000 clients")
    parser.add_argument("--quick", action="store_true", help="3 networks, K = 50 and 500, n = 100 only")
    options = parser.parse_args()
    sizes, examples, networks = (SIZES, NUM_EXAMPLES, options.networks)
    if options.quick:
        sizes, examples, networks = (50, 500), (100,), 3
    for line in table(sizes, examples, networks):
        print(line, flush=True)


if __name__ == "__main__":
    main()
