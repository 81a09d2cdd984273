"""What one would do otherwise: how often usual intervals are false of clients that nobody asked, and how wide they are.

    python -m benchmarks.alternatives [--networks 1000] [--figure docs/figures/alternatives.svg]

Networks of K clients with 100 examples each are drawn from distributions of clients whose truth is known. Three
questions: the mean risk over unseen clients, an upper bound at delta = .05; what one next client is like, at the level
1/(K+1) that the largest of K reaches; and how unequal clients are (Gini coefficient, both ends, delta = .05). "Width"
is the mean upper bound, for the Gini coefficient the mean width. Deterministic: the seed of network i is i.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import special, stats

import riskband as rb
from benchmarks.ground_truth import BetaRisks, MetaDistribution, TwoPointRisks
from riskband.checks import FloatArray
from riskband.functionals.functional import interval_of
from riskband.plots.bands import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTA, NUM_EXAMPLES = 0.05, 100
SIZES = (10, 20, 50, 200)
WORLDS: Mapping[str, MetaDistribution] = {
    "Beta(1.2, 8.4)": BetaRisks(1.2, 8.4),
    "Beta(0.4, 4)": BetaRisks(0.4, 4.0),
    "Beta(3, 21)": BetaRisks(3.0, 21.0),
    "rare bad clients": TwoPointRisks(0.05, 0.6, 0.05),
    "two kinds": TwoPointRisks(0.1, 0.5, 0.3),
}
_RESAMPLES = 400
_GRID = (np.arange(20_000) + 0.5) / 20_000


class Network(NamedTuple):
    """What K clients measured, and what the distribution is that they were drawn from."""

    wrong: FloatArray  # shape (num_clients,), numbers of wrong examples, or sums of losses in [0, 1]
    rng: np.random.Generator
    num_examples: FloatArray | int = NUM_EXAMPLES  # one number, or one for each client
    squares: FloatArray | None = None  # sums of squared losses; None: every loss is 0 or 1

    @property
    def measured(self) -> FloatArray:
        """Their measured risks."""
        return np.asarray(self.wrong / self.num_examples)

    @property
    def answers(self) -> rb.ClientRisks:
        """The same for riskband."""
        return rb.ClientRisks(self.measured, self.num_examples, self.is_error)

    @property
    def is_error(self) -> bool:
        """Whether every loss is 0 or 1."""
        return self.squares is None

    @property
    def resampled(self) -> FloatArray:
        """Bootstrap samples of clients, shape (num_resamples, num_clients)."""
        return np.asarray(self.measured[self.rng.integers(0, self.wrong.size, (_RESAMPLES, self.wrong.size))])


def pooled(network: Network) -> tuple[float, float]:
    """Number of wrong examples and of all, as if one sample had been drawn."""
    return float(network.wrong.sum()), float(np.broadcast_to(network.num_examples, network.wrong.shape).sum())


def pooled_exact(network: Network) -> float:
    """Clopper and Pearson's limit of all examples as one sample."""
    wrong, size = pooled(network)
    return float(stats.beta.ppf(1.0 - DELTA, wrong + 1.0, size - wrong)) if wrong < size else 1.0


def pooled_wilson(network: Network) -> float:
    """Wilson's limit of all examples as one sample."""
    wrong, size = pooled(network)
    return float(stats.binomtest(int(wrong), int(size)).proportion_ci(1.0 - 2.0 * DELTA, "wilson").high)


def pooled_normal(network: Network) -> float:
    """The mean of all examples and 1.64 standard errors."""
    total, size = pooled(network)
    squares = total if network.squares is None else float(network.squares.sum())
    error = np.sqrt((squares - total**2 / size) / (size - 1.0) / size)
    return float(total / size + stats.norm.ppf(1.0 - DELTA) * error)


def pooled_bootstrap(network: Network) -> float:
    """Percentile bootstrap over examples."""
    wrong, size = pooled(network)
    return float(np.quantile(network.rng.binomial(int(size), wrong / size, _RESAMPLES) / size, 1.0 - DELTA))


def students_t(network: Network) -> float:
    """Student's t over clients."""
    values = network.measured
    return float(values.mean() + stats.t.ppf(1.0 - DELTA, values.size - 1) * stats.sem(values))


def clustered_errors(network: Network) -> float:
    """Mean of all examples, with standard errors clustered by client as inspect has them, and a normal quantile."""
    (total, size), count = pooled(network), network.wrong.size
    error = np.linalg.norm(network.wrong - network.num_examples * total / size) / size
    return float(total / size + stats.norm.ppf(1.0 - DELTA) * error * np.sqrt(count / (count - 1.0)))


def cluster_bootstrap(network: Network) -> float:
    """Percentile bootstrap over clients."""
    return float(np.quantile(network.resampled.mean(axis=1), 1.0 - DELTA))


def random_effects(network: Network, *, knapp: bool) -> float:
    """Limit of what one more client measures, by DerSimonian and Laird on log odds, or with Hartung and Knapp's error.

    A prediction interval is of its true risk; the noise of its examples, as many as others have, is added by the delta
    method.
    """
    wrong, right = network.wrong + 0.5, network.num_examples - network.wrong + 0.5
    effects, within, count = np.log(wrong / right), 1.0 / wrong + 1.0 / right, network.wrong.size
    weights = 1.0 / within
    heterogeneity = weights @ (effects - np.average(effects, weights=weights)) ** 2 - (count - 1.0)
    between = max(heterogeneity / (weights.sum() - (weights @ weights) / weights.sum()), 0.0)
    weights = 1.0 / (within + between)
    mean = np.average(effects, weights=weights)
    error = 1.0 / weights.sum()
    if knapp:
        error *= weights @ (effects - mean) ** 2 / (count - 1.0)
    chance = special.expit(mean)
    noise = np.mean(1.0 / (wrong + right - 1.0)) / (chance * (1.0 - chance))
    reach = stats.t.ppf(1.0 - 1.0 / (count + 1), count - 2) * np.sqrt(between + error + noise)
    return float(special.expit(mean + reach))


def gini(risks: FloatArray) -> FloatArray:
    """Gini coefficients of rows, 0 where all risks are."""
    ranked, count = np.sort(risks, axis=-1), risks.shape[-1]
    ranks = 2.0 * np.arange(1, count + 1) - count - 1.0
    return np.asarray(ranked @ ranks / (count * np.maximum(ranked.sum(axis=-1), 1e-300)))


def bootstrapped_gini(network: Network) -> tuple[float, float]:
    """Percentile bootstrap over clients of the Gini coefficient of what they measured."""
    low, high = np.quantile(gini(network.resampled), [DELTA / 2.0, 1.0 - DELTA / 2.0])
    return float(low), float(high)


def ends(certificate: rb.Certificate) -> tuple[float, float]:
    """Both ends of a certificate; 0 where it has no lower one."""
    return float(np.asarray(0.0 if certificate.lower is None else certificate.lower)), float(certificate.value)


def published_gini(network: Network) -> tuple[float, float]:
    """The plug-in bound of [DC], on our band."""
    return interval_of(rb.band(network.answers, delta=DELTA, sides="two"), "gini", method="plugin")


MEANS: Mapping[str, Callable[[Network], float]] = {
    "all examples pooled, Clopper-Pearson": pooled_exact,
    "all examples pooled, Wilson": pooled_wilson,
    "all examples pooled, normal": pooled_normal,
    "bootstrap over examples": pooled_bootstrap,
    "t over clients": students_t,
    "clustered standard errors": clustered_errors,
    "bootstrap over clients": cluster_bootstrap,
    "published [RE]": lambda net: float(rb.mean_bound(net.answers, delta=DELTA, method="published").value),
    "riskband": lambda net: float(rb.mean_bound(net.answers, delta=DELTA).value),
}
NEXT: Mapping[str, Callable[[Network], float]] = {
    "random effects, DerSimonian-Laird": lambda net: random_effects(net, knapp=False),
    "random effects, Hartung-Knapp": lambda net: random_effects(net, knapp=True),
    "riskband, the next client (split conformal over clients)": lambda net: float(net.measured.max()),
}
GINI: Mapping[str, Callable[[Network], tuple[float, float]]] = {
    "bootstrap over clients": bootstrapped_gini,
    "published [DC]": published_gini,
    "riskband": lambda net: ends(rb.dispersion_certificate(net.answers, "gini", delta=DELTA)),
}


_POOLED_COUNTS = {
    "all examples pooled, Clopper-Pearson",
    "all examples pooled, Wilson",
    "bootstrap over examples",
}
FOR_ERRORS = {*_POOLED_COUNTS, "random effects, DerSimonian-Laird", "random effects, Hartung-Knapp"}
"""Methods that take a loss for a count."""
OF_EXAMPLES = {*_POOLED_COUNTS, "all examples pooled, normal", "clustered standard errors"}
"""Methods whose estimate is the mean of all examples, in which a client counts by how many it has."""

# Of the figure: the other ways to pool or to resample are hardly told apart from these.
_SHOWN: Mapping[str, tuple[str, str, str]] = {
    "all examples pooled, Clopper-Pearson": ("examples pooled", "#c1272d", "-"),
    "t over clients": ("t over clients", "#e69f00", "-"),
    "bootstrap over clients": ("bootstrap over clients", "#8c6bb1", "--"),
    "published [RE]": ("published [RE]", "#777777", ":"),
    "riskband": ("riskband", "#0b5394", "-"),
}


class Row(NamedTuple):
    """One method on one kind of network."""

    question: str
    world: str
    num_clients: int
    method: str
    share_false: float
    allowed: float
    width: float  # the mean of upper bounds; of the Gini coefficient, of intervals


def networks(law: MetaDistribution, num_clients: int, num_networks: int) -> Iterator[tuple[Network, float]]:
    """Networks, each with what one more client measures."""
    for seed in range(num_networks):
        rng = np.random.default_rng(seed)
        _, measured = law.draw(rng, num_clients=num_clients + 1, num_examples=NUM_EXAMPLES)
        wrong = np.rint(measured * NUM_EXAMPLES)
        yield Network(wrong[:-1], rng), float(measured[-1])


def rows(world: str, num_clients: int, num_networks: int) -> list[Row]:
    """Return how often each method is false, and how wide it is."""
    law = WORLDS[world]
    truth = {"mean": law.mean_risk(), "gini": float(gini(law.risk_quantile(_GRID)))}
    found = Found()
    for network, following in networks(law, num_clients, num_networks):
        found.judge(network, following, truth)
    return found.rows(world, num_clients)


def applicable(
    methods: Mapping[str, Callable[[Network], float]], network: Network
) -> Iterator[tuple[str, Callable[[Network], float]]]:
    """Yield the methods that losses of this kind can be given to."""
    return ((name, method) for name, method in methods.items() if network.is_error or name not in FOR_ERRORS)


class Found:
    """What methods said of networks of one kind, and whether it was false."""

    def __init__(self) -> None:
        self._each: dict[tuple[str, str, float], list[tuple[bool, float]]] = {}

    def add(self, question: str, method: str, *, is_false: bool, width: float, allowed: float = DELTA) -> None:
        """Take down what a method says of one more network."""
        self._each.setdefault((question, method, allowed), []).append((is_false, width))

    def judge(self, network: Network, following: float, truth: Mapping[str, float]) -> None:
        """Ask all methods, where the mean and the Gini coefficient are known and what one more client measures."""
        for method, bound in applicable(MEANS, network):
            value = bound(network)
            self.add("mean", method, is_false=value < truth["mean"], width=value)
            if "mean over examples" in truth and method in OF_EXAMPLES:
                self.add("mean over examples", method, is_false=value < truth["mean over examples"], width=value)
        for method, bound in applicable(NEXT, network):
            value = bound(network)
            rank = 1.0 / (network.wrong.size + 1)
            self.add("next", method, is_false=following > value, width=value, allowed=rank)
        for method, interval in GINI.items():
            low, high = interval(network)
            self.add("gini", method, is_false=not low <= truth["gini"] <= high, width=high - low)

    def rows(self, world: str, num_clients: int) -> list[Row]:
        """Return the share of false statements and the mean width of each method."""
        means = {key: np.mean(each, axis=0).tolist() for key, each in self._each.items()}
        return [
            Row(question, world, num_clients, method, share_false, allowed, width)
            for (question, method, allowed), (share_false, width) in means.items()
        ]


def figure(made: list[Row]) -> Figure:
    """Draw how often bounds on the mean are false, and how far they are above it on average."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(11.0, 6.0), layout="constrained")
    axes = drawn.subplots(2, len(WORLDS), sharex=True, sharey="row")
    for column, (world, law) in enumerate(WORLDS.items()):
        for method, (name, colour, dashes) in _SHOWN.items():
            found = [each for each in made if (each.question, each.world, each.method) == ("mean", world, method)]
            sizes = [each.num_clients for each in found]
            style: dict[str, Any] = {"color": colour, "ls": dashes, "marker": "o", "ms": 3.0, "label": name}
            axes[0, column].plot(sizes, [each.share_false for each in found], **style)
            axes[1, column].plot(sizes, [each.width / law.mean_risk() for each in found], **style)
        axes[0, column].axhline(DELTA, color="#888", lw=0.8)
        axes[0, column].set(title=world, xscale="log", ylim=(-0.02, 0.6))
        axes[1, column].set(yscale="log", xlabel="clients", ylim=(0.9, 12.0), yticks=(1, 2, 5, 10))
        axes[1, column].set_xticks(SIZES, map(str, SIZES), minor=False)
        axes[1, column].set_xticks((), minor=True)
        axes[1, column].set_yticklabels(("1", "2", "5", "10"))
    axes[0, 0].set_ylabel("share of networks where it is false\n(grey: the .05 allowed)")
    axes[1, 0].set_ylabel("mean bound, over the true mean")
    drawn.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_SHOWN), frameon=False)
    return drawn


def main() -> None:
    """Print the table, and draw the figure if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=1000)
    parser.add_argument("--figure", metavar="FILE.svg")
    options = parser.parse_args()
    made = [row for world in WORLDS for size in SIZES for row in rows(world, size, options.networks)]
    print("question | clients are | K | method | false | allowed | width")
    for row in made:
        print(" | ".join(f"{each:.3f}" if isinstance(each, float) else str(each) for each in row))
    if options.figure:
        save_figure(figure(made), options.figure)


if __name__ == "__main__":
    main()
