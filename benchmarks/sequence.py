"""How many clients are asked until it is decided, against fixed plans that know the distribution beforehand.

    python -m benchmarks.sequence [--networks 200]

Clients with 100 examples each; required is "mean<=LIMIT" at delta = .05. Asked one by one, by `rb.Sequence`, which may
end with PASS or FAIL and is certain of each at delta/2: how many clients as a median, as a mean and in nine of ten
networks, and how often that ends with the wrong verdict. The best fixed plan is the smallest number of clients of which
`rb.mean_bound` certifies the truth in nine of ten networks, with all of delta for the end that will be needed. Only who
knows the distribution can fix it; too few decide nothing, and whoever then asks more has no certificate. The gate with
so many clients ("fixed, both ends") spends delta on both ends, as the sequence does.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Callable

import numpy as np

import riskband as rb
from riskband.checks import FloatArray

DELTA, NUM_EXAMPLES, POWER, MOST = 0.05, 100, 0.9, 2_000


def beta(a: float, b: float) -> Callable[[np.random.Generator], FloatArray]:
    """Risks of clients of which none stands out."""
    return lambda rng: rng.beta(a, b, MOST)


def rare(rng: np.random.Generator) -> FloatArray:
    """One client in twenty is bad."""
    return np.where(rng.random(MOST) < 0.05, rng.beta(16, 4, MOST), rng.beta(2, 38, MOST))


WORLDS = (
    ("Beta(3, 21)", beta(3, 21), 0.125, 0.2),
    ("Beta(3, 21)", beta(3, 21), 0.125, 0.15),
    ("Beta(3, 21)", beta(3, 21), 0.125, 0.1),
    ("Beta(1.2, 8.4)", beta(1.2, 8.4), 0.125, 0.2),
    ("1 in 20 is bad", rare, 0.05 * 0.8 + 0.95 * 0.05, 0.15),
)


def asked_until_decided(values: FloatArray, limit: float) -> tuple[int, str]:
    """Number of clients asked one by one, and the verdict: what is decided once stays so."""

    def gate(number: int) -> rb.Gate:
        sequence = rb.Sequence(f"mean<={limit}", delta=DELTA, order="committed", binary=True)
        sequence.add(values=values[:number], num_examples=[NUM_EXAMPLES] * number)
        assert sequence.gate is not None
        return sequence.gate

    size = 16
    while size < values.size and gate(size).verdict == "NOT DECIDED":
        size *= 2
    size = min(size, values.size)
    first = bisect_left(range(2, size), True, key=lambda number: gate(number).verdict != "NOT DECIDED") + 2
    return first, gate(first).verdict


def fixed_plan(networks: list[FloatArray], limit: float, *, is_true: bool, delta: float) -> int:
    """Smallest number of clients of which the truth is certified in `POWER` of the networks."""

    def is_enough(number: int) -> bool:
        found = 0
        for values in networks:
            shown = values[:number] if is_true else 1.0 - values[:number]
            bound = float(rb.mean_bound(rb.ClientRisks(shown, NUM_EXAMPLES, binary=True), delta=delta))
            found += bound <= limit if is_true else bound < 1.0 - limit
        return found >= POWER * len(networks)

    size = 16
    while size < MOST and not is_enough(size):
        size *= 2
    return bisect_left(range(2, size), True, key=is_enough) + 2


def main() -> None:
    """Print a row for each world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=200)
    num_networks = parser.parse_args().networks
    print(
        "world            limit  truth | until decided: median   mean    9/10  wrong | fixed  ratio | both ends  ratio"
    )
    for name, draw, mean, limit in WORLDS:
        rngs = [np.random.default_rng(seed) for seed in range(num_networks)]
        networks = [rng.binomial(NUM_EXAMPLES, draw(rng)) / NUM_EXAMPLES for rng in rngs]
        found = [asked_until_decided(values, limit) for values in networks]
        sizes, truth = np.array([size for size, _ in found]), "PASS" if mean <= limit else "FAIL"
        wrong = np.mean([verdict not in (truth, "NOT DECIDED") for _, verdict in found])
        one, both = (fixed_plan(networks, limit, is_true=truth == "PASS", delta=d) for d in (DELTA, DELTA / 2.0))
        median = float(np.median(sizes))
        row = f"{name:<16} {limit:>5g}  {truth:<5} | {median:>21g} {sizes.mean():>6.0f} {np.quantile(sizes, 0.9):>7.0f}"
        print(f"{row} {wrong:>6.3f} | {one:>5} {median / one:>6.2f} | {both:>9} {median / both:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
