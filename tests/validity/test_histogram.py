"""Certificates from counts fail no more often than delta, and those from counts that are read wrongly fail more often.

A case is rejected if as many failures or more had probability below 1e-4 (`coverage.FALSE_ALARM`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import riskband as rb
from riskband.answers.histogram import bin_ends
from riskband.betting import betting_upper_mean
from tests.validity.coverage import (
    BETA,
    CONTINUOUS,
    TWO_POINTS,
    ObservedLaw,
    draw_networks,
    is_exceeded,
    is_rejected,
    leaves,
    rejected,
    study,
)

DELTA, ETA = 0.2, 0.05
LAWS = {"beta": BETA, "two points": TWO_POINTS, "continuous": CONTINUOUS}


def counted(risks, num_bins, eta=None):
    """What a server that sees sums only knows of these clients."""
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    settings = {"edges": edges, "binary": risks.binary}
    if eta is None:
        counts = rb.risk_histogram(risks.values, risks.num_examples, **settings)
        return rb.HistogramRisks(edges, counts, int(risks.num_examples[0]), binary=risks.binary)
    counts = rb.risk_histogram(risks.values, risks.num_examples, **settings, eta=eta)
    return rb.HistogramLimits(edges, counts, eta=eta, binary=risks.binary)


def networks(law, *, num_networks, sizes, seed, num_clients=50):
    return draw_networks(LAWS[law], num_networks=num_networks, num_clients=num_clients, sizes=sizes, seed=seed)


@study(60, slow=150)
@pytest.mark.parametrize("law", ["beta", "two points", pytest.param("continuous", marks=pytest.mark.slow)])
def test_bands_of_counted_risks_hold(law, num_networks):
    cases = {(local, bins): [] for local in ("marginal", "counted", "union", "observed") for bins in (7, 30)}
    for risks in networks(law, num_networks=30 if law == "continuous" else num_networks, sizes=20, seed=1):
        for (local, bins), found in cases.items():
            if local == "observed" and law == "continuous":
                continue  # its law of measured risks has no closed form
            truth = ObservedLaw(LAWS[law], 20) if local == "observed" else LAWS[law]
            found.append(leaves(rb.band(counted(risks, bins), delta=DELTA, local=local), truth))
    assert rejected(cases, DELTA) == {}


@study(80, slow=200)
@pytest.mark.parametrize("sizes", ["unequal", "dependent", 20])
def test_bands_of_counted_limits_hold(sizes, num_networks):
    cases = {(local, bins): [] for local in ("marginal", "counted") for bins in (7, 50)}
    for risks in networks("beta", num_networks=num_networks, sizes=sizes, seed=2):
        for (local, bins), found in cases.items():
            found.append(leaves(rb.band(counted(risks, bins, ETA), delta=DELTA, local=local), BETA))
    assert rejected(cases, DELTA) == {}


@pytest.mark.parametrize("eta", [None, ETA])
def test_everything_that_is_read_off_them_holds(eta):
    sizes = 20 if eta is None else "unequal"
    failures = [
        is_exceeded(rb.band(counted(risks, 20, eta), delta=DELTA, sides="lower"), BETA)
        for risks in networks("beta", num_networks=60, sizes=sizes, seed=3)
    ]
    assert not is_rejected(failures, DELTA)


@study(100, slow=200)
@pytest.mark.parametrize("eta", [None, ETA])
@pytest.mark.parametrize("method", ["betting", "hoeffding"])
def test_bounds_on_the_mean_hold(method, eta, num_networks):
    sizes = 20 if eta is None else "unequal"
    failures = [
        rb.mean_bound(counted(risks, 25, eta), delta=DELTA, method=method).value < BETA.mean_risk()
        for risks in networks("beta", num_networks=num_networks, sizes=sizes, seed=4)
    ]
    assert not is_rejected(failures, DELTA)


def test_an_observed_band_of_one_bin_per_multiple_has_power():
    """Where nothing is rounded the same test comes near delta, so a wrong rounding could be seen."""
    failures = [
        leaves(rb.band(counted(risks, 2001), delta=DELTA, local="observed"), BETA)
        for risks in networks("beta", num_networks=300, sizes=2000, seed=5)
    ]
    assert not is_rejected(failures, DELTA)
    assert np.mean(failures) > 0.11


# Known mistakes: each must be rejected.


def test_risks_rounded_to_the_wrong_side_fail():
    failures = []
    for risks in networks("beta", num_networks=60, sizes=2000, seed=6):
        histogram = counted(risks, 20)
        swapped = rb.HistogramRisks(histogram.edges, histogram.counts, 2000, binary=True)
        object.__setattr__(swapped, "above", histogram.below)
        object.__setattr__(swapped, "below", histogram.above)
        failures.append(leaves(rb.band(swapped, delta=DELTA, local="observed", sides="lower"), BETA))
    assert is_rejected(failures, DELTA)


def test_limits_rounded_to_the_wrong_side_fail():
    failures = []
    for risks in networks("beta", num_networks=60, sizes=5000, seed=7, num_clients=200):
        histogram = counted(risks, 10, ETA)
        bottoms, _ = bin_ends(histogram.edges)
        band = rb.band(histogram, delta=DELTA, sides="lower")
        down = np.repeat(bottoms, histogram.counts[0])
        levels = band.lower(np.repeat(histogram.edges[1:], histogram.counts[0]))  # moved to the left by a bin
        failures.append(leaves(replace(band, lower_points=down, lower_levels=levels), BETA))
    assert is_rejected(failures, DELTA)


def test_counts_of_limits_read_as_if_the_limits_never_failed_fail():
    """Without the eta: limits of two values of risk, at an eta that is far from harmless."""
    eta, failures = 0.5, []
    for risks in networks("two points", num_networks=60, sizes=50, seed=8, num_clients=400):
        histogram = counted(risks, 400, eta)
        as_risks = rb.HistogramRisks(histogram.edges, histogram.counts[0], 50, binary=False)
        failures.append(leaves(rb.band(as_risks, delta=DELTA, local="observed", sides="lower"), TWO_POINTS))
    assert is_rejected(failures, DELTA)


def test_counts_of_measured_risks_read_as_true_risks_fail():
    failures = [
        leaves(rb.band(counted(risks, 100), delta=DELTA, local="observed", sides="lower"), BETA)
        for risks in networks("beta", num_networks=60, sizes=20, seed=9, num_clients=200)
    ]
    assert is_rejected(failures, DELTA)


def test_adaptive_bets_on_sorted_counts_would_fail():
    """Why counts take constant stakes: the clients come out of the bins in increasing order."""
    failures = [
        betting_upper_mean(counted(risks, 21).above.values, delta=0.5) < BETA.mean_risk()
        for risks in networks("beta", num_networks=60, sizes=20, seed=10)
    ]
    assert is_rejected(failures, 0.5)
