"""What hypothesis draws for the laws: answers of clients, of every kind that a user may bring."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import riskband as rb
from riskband.functionals.distributions import QuantileLimits, RiskDistribution

DELTAS = st.sampled_from([0.001, 0.05, 0.2, 0.5])
METHODS = st.sampled_from(["berk_jones", "dkw"])
LOCALS = st.sampled_from(["marginal", "counted", "union", "observed"])
DIVERGENCES = st.sampled_from(sorted(rb.DIVERGENCES))
BUDGETS = st.floats(0.0, 2.0)
POINTS = np.linspace(0.0, 1.0, 257)


@st.composite
def client_risks(draw, *, max_clients=16, kinds=("binary", "binary, unequal", "bounded", "bounded, unequal")):
    """Answers with ties, zeros and ones, of equal or unequal numbers of examples."""
    kind = draw(st.sampled_from(kinds))
    num_clients = draw(st.integers(2, max_clients))
    size = st.integers(1, 60)
    sizes = draw(st.lists(size, min_size=num_clients, max_size=num_clients))
    if "unequal" not in kind:
        sizes = [sizes[0]] * num_clients
    fractions = draw(st.lists(st.floats(0.0, 1.0), min_size=num_clients, max_size=num_clients))
    values = np.array(fractions)
    if "binary" in kind:
        values = np.rint(values * sizes) / sizes
    return rb.ClientRisks(values, sizes, binary="binary" in kind)


def random_member(band, rng):
    """A law within the band, of one side or two: random quantiles on random cuts of its steps, made nondecreasing."""
    limits = QuantileLimits.of_band(band, one_side=True)
    levels = np.unique(np.concatenate([limits.levels, rng.random(rng.integers(0, 5))]))
    levels = levels[levels > 0]
    step = np.searchsorted(limits.levels, levels)
    low, high = limits.lower[step], limits.upper[step]
    shape = rng.choice([0.2, 1.0, 5.0], size=2)
    return RiskDistribution(np.maximum.accumulate(low + (high - low) * rng.beta(*shape, size=levels.size)), levels)
