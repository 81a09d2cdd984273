"""Seconds for exact crossing probabilities and Berk-Jones calibrations.

python -m benchmarks.crossing
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv

from riskband import crossing_probability
from riskband.bands import levels as calibration


def seconds(call: Callable[[], object], repeat: int = 5) -> float:
    """Median wall-clock of a call."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    """Print one line per number of clients."""
    crossing_probability([0.1], [0.9])  # compile
    for num_clients in (100, 500, 1000, 2000, 5000, 20_000):
        rank = np.arange(1, num_clients + 1)
        lower = betaincinv(rank, num_clients - rank + 1, 0.001)
        one = seconds(lambda lower=lower: crossing_probability(lower))
        two = seconds(lambda lower=lower: crossing_probability(lower, 1 - lower[::-1]))
        calibration.berk_jones_constant.cache_clear()
        fit = seconds(lambda k=num_clients: calibration.berk_jones_constant(k, 0.05, is_two_sided=True), repeat=1)
        print(
            f"K = {num_clients:>6}: one side {1e3 * one:8.1f} ms, two sides {1e3 * two:8.1f} ms, "
            f"two-sided calibration {fit:6.3f} s"
        )


if __name__ == "__main__":
    main()
