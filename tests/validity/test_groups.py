"""Comparisons of groups miss the truth no more often than delta; bands at the full delta each do not hold together."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from scipy.special import betaln

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from riskband.groups.comparisons import compared
from tests.validity.coverage import failures, is_rejected, leaves, rejected, study, true_cvar

LAWS = {"calm": BetaRisks(3.0, 21.0), "mixed": BetaRisks(1.5, 8.0), "rough": BetaRisks(1.0, 3.0)}
WEIGHTS = {"calm": 0.5, "mixed": 0.3, "rough": 0.2}
W = np.array(list(WEIGHTS.values()))


@cache
def true_value(law, functional):
    kind, *level = functional.split(":")
    if kind == "mean":
        return law.a / (law.a + law.b)
    if kind == "gini":  # of Beta(a, b)
        return 2 / law.a * float(np.exp(betaln(2 * law.a, 2 * law.b) - 2 * betaln(law.a, law.b)))
    if kind == "quantile":
        return float(law.risk_quantile(float(level[0])))
    return true_cvar(law, float(level[0]))


def comparisons(values):
    """The truth of every comparison of the three groups, from its definition."""
    gaps = np.array([abs(a - b) for i, a in enumerate(values) for b in values[:i]])
    worst_first = sorted(zip(values, W, strict=True), reverse=True)
    tail, left = 0.0, 0.4
    for value, weight in worst_first:
        tail, left = tail + value * min(weight, left), left - min(weight, left)
    return {
        "group_gap": abs(values[0] - values[2]),
        "largest_gap": gaps.max(),
        "quadratic_gaps": np.mean(gaps**2),
        "group_variance": W @ values**2 - (W @ values) ** 2,
        "worst_group": max(values),
        "weighted_group_mean": W @ values,
        "cvar_fairness": tail / 0.4 - W @ values,
    }


def intervals(bands, functional):
    return {
        "group_gap": compared(bands, "group_gap", functional, first="calm", second="rough"),
        "largest_gap": compared(bands, "largest_gap", functional),
        "quadratic_gaps": compared(bands, "quadratic_gaps", functional),
        "group_variance": compared(bands, "group_variance", functional, weights=WEIGHTS),
        "worst_group": compared(bands, "worst_group", functional),
        "weighted_group_mean": compared(bands, "weighted_group_mean", functional, weights=WEIGHTS),
        "cvar_fairness": compared(bands, "cvar_fairness", functional, level=0.6, weights=WEIGHTS),
    }


FUNCTIONALS = ("mean", "gini", "quantile:0.5", "cvar:0.8")


def networks(*, num_networks, num_clients, num_examples, seed):
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        drawn = [law.draw(rng, num_clients=num_clients, num_examples=num_examples)[1] for law in LAWS.values()]
        yield rb.ClientRisks(np.concatenate(drawn), num_examples, binary=True)


def fails(risks, **settings):
    """By comparison, and for any at all: they share one event."""
    bands = rb.group_bands(risks, np.repeat(list(LAWS), risks.num_clients // len(LAWS)).tolist(), **settings)
    found = {}
    for functional in FUNCTIONALS:
        truth = comparisons(np.array([true_value(law, functional) for law in LAWS.values()]))
        for name, (lower, upper) in intervals(bands, functional).items():
            found[f"{name} of {functional}"] = lower > truth[name] + 1e-9 or upper < truth[name] - 1e-9
    return found | {"any": any(found.values())}


@study(slow=100)
def test_every_comparison_holds(num_networks):
    """33 tests: some is wrongly rejected with probability below 0.0033."""
    drawn = networks(num_networks=num_networks, num_clients=60, num_examples=400, seed=1)
    found = failures(drawn, partial(fails, delta=0.2))
    assert rejected(found, 0.2) == {}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"method": "dkw"}, {"local": "counted"}, {"shares": WEIGHTS}], ids=str)
def test_every_comparison_holds_in_larger_studies(settings):
    drawn = networks(num_networks=100, num_clients=200, num_examples=1000, seed=2)
    found = failures(drawn, partial(fails, delta=0.1, **settings))
    assert rejected(found, 0.1) == {}


@pytest.mark.slow
@study(150)
def test_bands_at_the_full_delta_each_do_not_hold_together(num_networks):
    """The negative control: six groups, each band at delta instead of delta / 6."""
    delta, uniform = 0.1, BetaRisks(1.0, 1.0)
    labels = [f"g{i % 6}" for i in range(180)]
    rng = np.random.default_rng(3)
    right, wrong = [], []
    for _ in range(num_networks):
        risks = rb.ClientRisks(rng.random(180), 1000, binary=False)
        bands = rb.group_bands(risks, labels, delta=delta, local="observed")
        right.append(any(leaves(band, uniform) for band in bands.bands.values()))
        full = (
            rb.band(rb.ClientRisks(risks.values[i::6], 1000, binary=False), delta=delta, local="observed")
            for i in range(6)
        )
        wrong.append(any(leaves(band, uniform) for band in full))
    assert is_rejected(wrong, delta)
    assert not is_rejected(right, delta)
