"""Every certificate, and what one would do otherwise, on natural federations: how often false, and how wide.

    python -m worlds.federations --fetch
    python -m benchmarks.natural [--clients 40] [--draws 200] [--figure docs/figures/natural.svg] [FEDERATION ...]

A third of the clients have trained the model. In each draw 40 of the others, or half where there are fewer than 80, are
asked at random and answer from half of their examples; the truth is all examples of all who did not train. At delta =
.05 ten of 200 draws may be false, and 18 are with a probability of 1 in 100. A second table draws whole clusters of
clients, which breaks the assumption that clients are independent. Deterministic: the seed of draw i is i.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

import riskband as rb
from benchmarks.alternatives import DELTA, MEANS, Found, Network, Row, applicable, ends, gini, students_t
from riskband.answers.design import Design
from riskband.checks import FloatArray
from riskband.cli.request import figure_problems
from riskband.plots.bands import save_figure
from worlds.federations import FEDERATIONS, EvaluatedClients, evaluated, examples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_NEXT, BUDGET = 20, 0.1


def worst_mean(risks: FloatArray) -> float:
    """Return the largest mean of a reweighted network within the chi2 budget, by cvxpy."""
    weights = cp.Variable(risks.size, nonneg=True)  # the ratio to the network's own
    within = [cp.sum(weights) == risks.size, cp.sum_squares(weights - 1.0) <= BUDGET * risks.size]
    return float(cp.Problem(cp.Maximize(weights @ risks / risks.size), within).solve(solver=cp.CLARABEL))


TRUTHS: Mapping[str, Callable[[FloatArray], float]] = {
    "quantile:0.9": lambda risks: float(np.quantile(risks, 0.9, method="inverted_cdf")),
    "cvar:0.9": lambda risks: float(
        np.mean(np.quantile(risks, np.linspace(0.9, 1.0, 20_001)[1:], method="inverted_cdf"))
    ),
    f"mean@chi2:{BUDGET}": worst_mean,
}
"""Numbers that only certificates are of, and what they are of clients whose risks are known."""


def draws(
    clients: EvaluatedClients, num_clients: int, num_draws: int, *, in_clusters: bool = False
) -> Iterator[tuple[Network, FloatArray, NDArray[np.int64]]]:
    """Yield networks, what the clients that were not asked would measure, and which were asked."""
    sizes = np.array([losses.size for losses in clients.losses])
    losses, owner, halves = np.concatenate(clients.losses), np.repeat(np.arange(sizes.size), sizes), sizes // 2
    starts = np.cumsum(sizes) - sizes
    answers_first = np.arange(losses.size) - np.repeat(starts, sizes) < np.repeat(halves, sizes)
    for seed in range(num_draws):
        rng = np.random.default_rng(seed)
        shuffled = losses[np.lexsort((rng.random(losses.size), owner))]
        sums, squares = (np.add.reduceat(shuffled**power * answers_first, starts) for power in (1, 2))
        order = rng.permutation(sizes.size)
        if in_clusters and clients.clusters is not None:
            names, number = np.unique(clients.clusters, return_inverse=True)
            place = rng.permutation(names.size)[number]  # of the cluster, among all
            order = order[np.argsort(place[order], kind="stable")]
            num_asked = int(np.sum(place <= np.sort(place)[num_clients - 1]))
        else:
            num_asked = num_clients
        asked, others = order[:num_asked], order[num_asked:]
        spread = None if clients.is_error else squares[asked]
        yield Network(sums[asked], rng, halves[asked], spread), (sums / halves)[others], asked


def rows(name: str, num_clients: int, num_draws: int) -> list[Row]:
    """Return what all methods said of draws of so many clients, or half, of a federation."""
    clients = evaluated(name)
    risks = clients.risks
    num_clients = min(num_clients, risks.size // 2)
    threshold = round(float(np.quantile(risks, 0.8)), 2)
    of_examples = float(np.concatenate(clients.losses).mean())
    truth = {"mean": float(risks.mean()), "mean over examples": of_examples, "gini": float(gini(risks))}
    alone = {number: of(risks) for number, of in TRUTHS.items()}
    alone[f"share:{threshold}"] = float(np.mean(risks >= threshold))
    ranked = np.sort(risks)
    found = Found()
    for network, others, _ in draws(clients, num_clients, num_draws):
        found.judge(network, float(others[0]), truth)
        answers = network.answers
        for number, value in alone.items():
            sides = "worse" if "@" in number else "two"
            low, high = ends(rb.bound(answers, number, delta=DELTA, sides=sides))
            found.add(number.partition(":")[0], "riskband", is_false=not low <= value <= high, width=high)
        band = rb.band(answers, delta=DELTA)
        below, until = (np.searchsorted(ranked, ranked, side=side) / ranked.size for side in ("left", "right"))
        is_false = np.any(band.upper(ranked) < until) or np.any(band.lower_left_limit(ranked) > below)
        found.add("the CDF everywhere", "riskband", is_false=bool(is_false), width=float(band.quantile_upper(0.5)))
        worse = int(np.sum(others[:NUM_NEXT] > threshold))
        low, high = ends(rb.next_clients(answers, min(NUM_NEXT, others.size), above=threshold, delta=DELTA))
        found.add(f"next {NUM_NEXT}", "riskband", is_false=not low <= worse <= high, width=high)
        rest = rb.next_clients(answers, population=risks.size, mean=True, delta=DELTA)
        found.add("mean of all others", "riskband", is_false=others.mean() > rest.value, width=float(rest.value))
    return found.rows(name, num_clients)


def rows_in_clusters(name: str, num_clients: int, num_draws: int) -> list[Row]:
    """Return what methods said of the mean where clients were drawn by whole clusters, at least so many."""
    clients = evaluated(name)
    risks = clients.risks
    names = np.array(clients.clusters)
    by_cluster = float(np.mean([risks[names == each].mean() for each in np.unique(names)]))
    found = Found()
    for network, _, asked in draws(clients, num_clients, num_draws, in_clusters=True):
        for method, bound in applicable(MEANS, network):
            value = bound(network)
            found.add("mean", method, is_false=value < risks.mean(), width=value)
        stated = {"t over clusters": 1.0, "riskband of clusters, stated": 1.0}  # of one cluster nothing follows
        if len(clusters := np.unique(names[asked])) > 1:
            means = np.array([network.measured[names[asked] == each].mean() for each in clusters])
            stated["t over clusters"] = students_t(Network(means, network.rng, 1))
            grouped = rb.ClientRisks(
                network.measured, network.num_examples, network.is_error, design=Design(clusters=names[asked].tolist())
            )
            stated["riskband of clusters, stated"] = float(rb.mean_bound(grouped, delta=DELTA).value)
        for method, value in stated.items():
            found.add("mean", method, is_false=value < by_cluster, width=value)
    return found.rows(name, num_clients)


_SHOWN: Mapping[str, tuple[str, str]] = {
    "all examples pooled, normal": ("#c1272d", "s"),
    "t over clients": ("#e69f00", "^"),
    "bootstrap over clients": ("#8c6bb1", "v"),
    "riskband": ("#0b5394", "o"),
}


def figure(made: list[Row]) -> Figure:
    """Draw for each federation how often bounds on the mean are false, and how far they are above it on average."""
    from matplotlib.figure import Figure

    means = [row for row in made if row.question == "mean"]
    names = list(dict.fromkeys(row.world for row in means))
    drawn = Figure(figsize=(10.0, 1.5 + 0.28 * len(names)), layout="constrained")
    left, right = drawn.subplots(1, 2, sharey=True)
    for method, (colour, marker) in _SHOWN.items():
        rows_of = [row for row in means if row.method == method]
        places = [names.index(row.world) for row in rows_of]
        truths = [evaluated(row.world).risks.mean() for row in rows_of]
        widths = [row.width / truth for row, truth in zip(rows_of, truths, strict=True)]
        left.plot([row.share_false for row in rows_of], places, marker, color=colour, ms=5.0, label=method)
        right.plot(widths, places, marker, color=colour, ms=5.0)
    left.axvline(DELTA, color="#888", lw=0.8)
    left.set(xlabel=f"share of draws where the bound is false (grey: the {DELTA} allowed)", xlim=(-0.02, None))
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    right.set(xlabel="mean bound, over the true mean", xlim=(0.85, None))
    for axes in (left, right):
        axes.grid(axis="y", lw=0.4, color="#ddd")
    drawn.legend(loc="outside lower center", ncols=len(_SHOWN), frameon=False)
    return drawn


def leaderboard(made: list[Row]) -> Iterator[str]:
    """Yield tables in Markdown: how often something is false, and in brackets the mean bound."""
    tables: dict[str, dict[str, dict[str, Row]]] = {}  # title, federation, column
    for row in made:
        is_compared = row.question in ("mean", "mean over examples", "next", "gini")
        title, column = (row.question, row.method) if is_compared else ("riskband, other numbers", row.question)
        tables.setdefault(title, {}).setdefault(row.world, {})[column] = row
    for title, lines in tables.items():
        columns = list(dict.fromkeys(column for line in lines.values() for column in line))
        yield f"\n**{title}**\n"
        yield f"| federation | mean risk | asked | allowed | {' | '.join(columns)} |"
        yield "|---|" + "---|" * (len(columns) + 3)
        for name, line in lines.items():
            any_row = next(iter(line.values()))
            mean = evaluated(name).risks.mean()
            said = [f"{row.share_false:.3f} ({row.width:.3f})" if (row := line.get(each)) else "" for each in columns]
            yield f"| `{name}` | {mean:.3f} | {any_row.num_clients} | {any_row.allowed:.3f} | {' | '.join(said)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and draw the figure if it is asked for; exits with status 2 if what is asked cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("federations", nargs="*", metavar="FEDERATION", default=list(FEDERATIONS))
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--figure", metavar="FILE.svg")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.federations if name not in FEDERATIONS]
    rules = [
        (unknown, f"FEDERATION must be one of {', '.join(FEDERATIONS)}, got {', '.join(unknown)}"),
        (options.clients < 2, f"--clients must be at least 2, got {options.clients}; ask more"),
        (options.draws < 1, f"--draws must be at least 1, got {options.draws}; draw more"),
    ]
    problems = [text for is_wrong, text in rules if is_wrong] + figure_problems("--figure", options.figure)
    try:
        asked = [FEDERATIONS[name] for name in options.federations if name not in unknown]
        for card in {card.package: card for card in asked}.values():  # is each package there?
            examples(card)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        parser.error("; ".join(problems))
    clustered = [name for name in options.federations if FEDERATIONS[name].cluster]
    with ProcessPoolExecutor() as pool:
        each = pool.map(partial(rows, num_clients=options.clients, num_draws=options.draws), options.federations)
        of_clusters = partial(rows_in_clusters, num_clients=options.clients, num_draws=options.draws)
        in_clusters = pool.map(of_clusters, clustered)
        made = []
        for found in each:
            print(f"{found[0].world}: done", file=sys.stderr, flush=True)
            made += found
        print("Share of draws in which a bound is false, and in brackets the mean bound")
        print("\n".join(leaderboard(made)))
        if clustered:
            print("\n\nThe same, of clients drawn by whole clusters")
            print("\n".join(leaderboard([row for found in in_clusters for row in found])))
    if options.figure:
        save_figure(figure(made), options.figure)


if __name__ == "__main__":
    main()
