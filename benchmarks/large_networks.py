"""Seconds and memory of everything that is done with the answers of very many clients, and what few ranks cost.

python -m benchmarks.large_networks [--clients 20000 1000000] [--only NAME ...]

Every call is timed in a process of its own, so that the memory is its own (peak, with the answers and the modules).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy.stats import beta

import riskband as rb
from riskband.bands.levels import berk_jones_levels, sparse_levels
from riskband.functionals.functional import interval_of

DELTA, NUM_EXAMPLES = 0.05, 100
LOSSES = ("0-1", "bounded", "0-1, unequal n", "bounded, unequal n")


def answers(num_clients: int, loss: str) -> rb.ClientRisks:
    """Risks ~ Beta(3, 21), measured on 100 examples or on 20 to 200."""
    rng = np.random.default_rng(0)
    risks = rng.beta(3, 21, num_clients)
    sizes = rng.integers(20, 200, num_clients) if "unequal" in loss else np.full(num_clients, NUM_EXAMPLES)
    if loss.startswith("0-1"):
        return rb.ClientRisks(rng.binomial(sizes, risks) / sizes, sizes)
    spread = np.sqrt(risks * (1.0 - risks) / sizes / 2.0)
    return rb.ClientRisks(np.clip(rng.normal(risks, spread), 0.0, 1.0), sizes, binary=False)


def _of_band(read: Callable[[rb.Band], object], **settings: str) -> Callable[[rb.ClientRisks], object]:
    return lambda risks: read(rb.band(risks, delta=DELTA, **settings))


CALLS: dict[str, Callable[[rb.ClientRisks], object]] = {
    "answers alone": lambda risks: risks,
    "band, one-sided": _of_band(lambda band: band, sides="lower"),
    "band, two-sided": _of_band(lambda band: band),
    "band, dkw": _of_band(lambda band: band, sides="lower", method="dkw"),
    "band, sparse:truncated:0.5:0.95": _of_band(lambda b: b, sides="lower", method="sparse:truncated:0.5:0.95"),
    "band, sparse:truncated:0.9:1": _of_band(lambda b: b, sides="lower", method="sparse:truncated:0.9:1"),
    "band, counted": _of_band(lambda band: band, sides="lower", local="counted"),
    "band and survival": _of_band(lambda band: rb.survival(band, thresholds=[0.1, 0.3]), sides="lower"),
    "band and quantiles": _of_band(lambda band: rb.quantile(band, [0.5, 0.9]), sides="lower"),
    "band and CVaR": _of_band(lambda band: rb.cvar(band, 0.9), sides="lower"),
    "band and Gini": _of_band(lambda band: interval_of(band, "gini")),
    "band and worst mean, chi2": _of_band(
        lambda band: rb.worst_case_mean(band, divergence="chi2", budget=[0.1, 0.2]), sides="lower"
    ),
    "band and worst mean, kl": _of_band(
        lambda band: rb.worst_case_mean(band, divergence="kl", budget=[0.1, 0.2]), sides="lower"
    ),
    "band and worst CDF, kl": _of_band(
        lambda band: rb.worst_case_cdf(band, divergence="kl", budget=[0.1, 0.2]), sides="lower"
    ),
    "mean, bets averaged": lambda risks: rb.mean_bound(risks, delta=DELTA),
    "mean, bets in one order": lambda risks: rb.mean_bound(risks, delta=DELTA, seed=0),
    "worst mean chi2, bets": lambda risks: rb.worst_case_mean(risks, divergence="chi2", budget=0.2, delta=DELTA),
    "CVaR, bets": lambda risks: rb.cvar(risks, 0.9, delta=DELTA),
    "quantile of its own": lambda risks: rb.quantile(risks, 0.9, delta=DELTA),
    "mean, to JSON and back": lambda risks: rb.Certificate.from_json(rb.mean_bound(risks, delta=DELTA).to_json()),
    "mean, verified": lambda risks: rb.verify(rb.mean_bound(risks, delta=DELTA)),
}


def measure(call: str, num_clients: int, loss: str) -> None:
    """Print one line of the table: seconds of processor time without the answers, and the peak of memory."""
    made = time.process_time()
    risks = answers(num_clients, loss)
    start = time.process_time()
    CALLS[call](risks)
    now = time.process_time()
    seconds = now - (made if call == "answers alone" else start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB, as Linux has it
    print(f"| {num_clients:>9,} | {loss:<18} | {call:<32} | {seconds:6.2f} | {peak:5.2f} |", flush=True)


def ratios(num_clients: int) -> None:
    """Print what levels at few ranks lose of the slack of levels at all ranks, at risks ~ Beta(3, 21)."""
    ranks = np.arange(1, num_clients + 1)
    risks = beta.ppf(ranks / (num_clients + 1), 3, 21)
    for sides in ("lower", "two"):
        start = time.process_time()
        all_ranks = berk_jones_levels(num_clients, DELTA, sides).lower
        middle = time.process_time()
        few = sparse_levels(num_clients, DELTA, sides).lower
        end = time.process_time()
        atoms = np.append(risks, 1.0)
        means = [np.diff(level, prepend=0.0, append=1.0) @ atoms - risks.mean() for level in (all_ranks, few)]
        gaps = [ranks / num_clients - level for level in (all_ranks, few)]
        inner = slice(num_clients // 1_000, -num_clients // 1_000)
        print(
            f"K = {num_clients:,}, {sides}: {middle - start:.2f} s at all ranks, {end - middle:.2f} s at few; slack of "
            f"the mean x {means[1] / means[0]:.3f}, of the CDF x {np.mean(gaps[1] / gaps[0]):.3f} on average and "
            f"x {np.max((gaps[1] / gaps[0])[inner]):.3f} at most"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--only", nargs="+", choices=list(CALLS), default=list(CALLS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--one", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.one:
        measure(options.only[0], options.clients[0], options.losses[0])
        return
    ratios(20_000)
    print(f"\n| {'clients':>9} | {'loss':<18} | {'call':<32} | {'CPU s':>6} | {'GiB':>5} |\n|---|---|---|---|---|")
    for num_clients in options.clients:
        for loss in options.losses:
            for call in options.only:
                command = [sys.executable, "-m", "benchmarks.large_networks", "--one", "--clients", str(num_clients)]
                subprocess.run([*command, "--only", call, "--losses", loss], check=False)


if __name__ == "__main__":
    main()
