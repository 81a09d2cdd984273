"""Widths of intervals for what differs between clients, by bound and by band; and what tuning a band gains.

    python -m papers.benchmarks.dispersion [--networks 10] [--sizes 50 200 500 2000] [--largest 10000]

1. Client risks follow Beta(3, 21), measured without noise (`local="observed"`), so that widths are those of the bands.
   Mean widths of intervals: the published plug-in bound and the sharp one on Berk-Jones bands, then the sharp one on
   DKW bands and on bands tuned for "linear" and "mean", on another network of the same size, and on a split: a fifth
   of the clients, which are lost to the certificate.
2. Seconds for each measure at many clients.
3. The setting of [DC] table 2: 100 values, delta = 0.01, Brier-like losses. Mean upper bounds on Berk-Jones, truncated
   and tuned bands: tuned on the law itself, on a separate sample of 100, and on a split (80 of 100 certify). The
   last column is the gain that [DC] report for a band that was tuned on its own data.

Deterministic but for the seconds: the seed of network i is i.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from riskband.functionals.functional import interval_of

LAW = BetaRisks(3.0, 21.0)
DELTA = 0.05
NUM_EXAMPLES = 1000
MEASURES = ("gini", "atkinson:0.5", "hoover", "top_share:0.1", "quantile_range:0.1:0.9")
FUNCTIONALS = ("mean", "cvar:0.75", "smoothed_median:0.05")
TUNED_FOR = ("linear", "mean")

TABLE_2 = {
    "cvar:0.75": ("truncated:0.75:1", 0.062),
    "interval:0.5:0.9": ("truncated:0.5:0.9", 0.142),
    "linear": ("truncated:0:1", 0.064),
    "smoothed_median:0.01": ("truncated:0.4:0.8", 0.447),
}
"""Objective: a truncated band for it, and the gain of the optimised band over Berk-Jones in [DC] table 2."""


def width(interval: rb.Interval) -> float:
    return float(interval.upper - interval.lower)


def observed(values: np.ndarray) -> rb.ClientRisks:
    return rb.ClientRisks(values, NUM_EXAMPLES, binary=False)


def network(num_clients: int, seed: int) -> rb.ClientRisks:
    return observed(LAW.draw(np.random.default_rng(seed), num_clients=num_clients, num_examples=1)[0])


def widths(num_clients: int, seed: int, tuned: dict[int, rb.OptimisedLevels]) -> dict[str, list[float]]:
    """Widths for one network, by measure: plug-in, sharp, DKW, tuned on another network, tuned on a split."""
    risks = network(num_clients, seed)
    # Networks of other seeds are independent of a pilot too: one search serves all networks of a size.
    pilot, rest = rb.split_clients(risks, seed=seed)
    on_other = tuned.setdefault(num_clients, rb.OptimisedLevels(network(num_clients, 10**6), TUNED_FOR))
    on_split = tuned.setdefault(-num_clients, rb.OptimisedLevels(pilot, TUNED_FOR))
    plain, *others = (
        rb.band(answers, delta=DELTA, local="observed", method=method)
        for answers, method in ((risks, "berk_jones"), (risks, "dkw"), (risks, on_other), (rest, on_split))
    )
    found = {
        name: [
            width(interval_of(plain, name, method="plugin")),
            *(width(interval_of(band, name)) for band in (plain, *others)),
        ]
        for name in MEASURES
    }
    for name in FUNCTIONALS:
        found[name] = [np.nan, *(width(interval_of(band, name)) for band in (plain, *others))]
    return found


def compare_widths(sizes: list[int], num_networks: int) -> None:
    tuned: dict[int, rb.OptimisedLevels] = {}
    print(f"mean widths over {num_networks} networks, delta = {DELTA}, tuned for {' and '.join(TUNED_FOR)}")
    tuned_columns = f"{'tuned, other':>14}{'tuned, split':>14}"
    print(f"{'clients':>8} {'measure':<24}{'plug-in':>10}{'Berk-Jones':>12}{'DKW':>10}{tuned_columns}")
    for num_clients in sizes:
        rows: dict[str, list[list[float]]] = {}
        for seed in range(num_networks):
            for name, row in widths(num_clients, seed, tuned).items():
                rows.setdefault(name, []).append(row)
        for name, values in rows.items():
            plugin, sharp, dkw, other, split = np.mean(values, axis=0)
            first = f"{plugin:>10.3f}" if not np.isnan(plugin) else f"{'-':>10}"
            print(
                f"{num_clients:>8} {name:<24}{first}{sharp:>12.3f}{dkw:>10.3f}{other:>14.3f}{split:>14.3f}", flush=True
            )


def time_measures(num_clients: int) -> None:
    risks = network(num_clients, 0)
    start = perf_counter()
    band = rb.band(risks, delta=DELTA, local="observed")
    print(f"\n{num_clients} clients: band {perf_counter() - start:.2f} s", end="")
    for name in (*MEASURES, *FUNCTIONALS):
        start = perf_counter()
        interval_of(band, name)
        print(f", {name} {perf_counter() - start:.2f} s", end="")
    print()


def brier_like(rng: np.random.Generator, num_values: int) -> np.ndarray:
    """Squared errors of an overconfident model, near 0 for most and near 1 for a few, about as large as [DC]'s."""
    logit = rng.normal(-6.2, 3.0, num_values)
    prediction = 1.0 / (1.0 + np.exp(-logit))
    outcome = rng.random(num_values) < 1.0 / (1.0 + np.exp(-0.45 * logit - 0.3))
    return np.asarray((prediction - outcome) ** 2)


def compare_with_table_2(num_networks: int) -> None:
    print(
        f"\nmean upper bounds over {num_networks} samples of 100 Brier-like losses, delta = 0.01; gain over Berk-Jones"
    )
    print(
        f"{'objective':<22}{'Berk-Jones':>11}{'truncated':>16}{'law':>16}{'sample of 100':>16}{'split':>16}{'[DC]':>7}"
    )
    samples = [brier_like(np.random.default_rng([1, seed]), 100) for seed in range(num_networks)]
    law = rb.RiskDistribution.of_values(brier_like(np.random.default_rng(2), 20_000))
    for objective, (truncated, published) in TABLE_2.items():

        def bound(values: np.ndarray, method: object, weight: str = objective) -> float:
            band = rb.band(observed(values), delta=0.01, local="observed", sides="lower", method=method)  # type: ignore[arg-type]
            return float(rb.weighted_quantile(band, weight).value)

        on_law = rb.OptimisedLevels(law, objective)
        others = [rb.OptimisedLevels(brier_like(np.random.default_rng([3, i]), 100), objective) for i in range(5)]
        splits = [rb.OptimisedLevels(brier_like(np.random.default_rng([4, i]), 20), objective) for i in range(5)]
        columns = np.mean(
            [
                [
                    bound(values, "berk_jones"),
                    bound(values, truncated),
                    bound(values, on_law),
                    bound(values, others[i % 5]),
                    bound(values[:80], splits[i % 5]),  # the pilot's 20 are as good as any other 20
                ]
                for i, values in enumerate(samples)
            ],
            axis=0,
        )
        cells = "".join(f"{value:>9.5f}{f'({1.0 - value / columns[0]:.1%})':>7}" for value in columns[1:])
        print(f"{objective:<22}{columns[0]:>11.5f}{cells}{published:>7.1%}", flush=True)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 500, 2000])
    parser.add_argument("--largest", type=int, default=10_000)
    options = parser.parse_args()
    compare_widths(options.sizes, options.networks)
    time_measures(options.largest)
    compare_with_table_2(20 * options.networks)


if __name__ == "__main__":
    main()
