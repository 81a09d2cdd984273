"""What hypothesis draws for the laws: answers of clients, of every kind that a user may bring."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import riskband as rb
from riskband.functionals.distributions import QuantileLimits, RiskDistribution
from riskband.worst_cases.bounds import BOUNDS
from riskband.worst_cases.number import ALL, COST, DIVERGENCE, NEXT, OTHERS, SHIFTED, TARGET

DELTAS = st.sampled_from([0.001, 0.05, 0.2, 0.5])
METHODS = st.sampled_from(["berk_jones", "dkw"])
LOCALS = st.sampled_from(["marginal", "counted", "union", "observed"])
DIVERGENCES = st.sampled_from(sorted(rb.DIVERGENCES))
BUDGETS = st.floats(0.0, 2.0)
POINTS = np.linspace(0.0, 1.0, 257)

PARAMETERS = {
    **dict.fromkeys(("mean_range", "maximum", "minimum", "generalised_entropy"), ":2"),
    **dict.fromkeys(("cvar", "quantile", "share", "atkinson", "top_share"), ":0.5"),
    **dict.fromkeys(("interval", "quantile_ratio", "quantile_range"), ":0.1:0.9"),
    **{"extended_gini": ":3", "example_mean": ":50", "count": ":0.3", "largest": ":1"},
}
POPULATIONS = {
    **{SHIFTED: "@chi2:0.1", COST: "@cost:0.5", TARGET: "@target:chi2:0.1"},
    **{NEXT: "@next:3", OTHERS: "@others:90", ALL: "@all:90"},
}


def numbers_of(kind):
    """A number for each family and population that the table of bounds has for answers of a kind."""
    rows = [row for row in BOUNDS if kind in row.answers]
    assert rows
    numbers = [
        f"{family}{PARAMETERS.get(family, '')}{POPULATIONS.get(row.where, '')}"
        for row in rows
        for family in row.families
    ]
    return [f"{DIVERGENCE}@target:chi2" if number.startswith(DIVERGENCE) else number for number in numbers]


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
