"""Clients that are no independent draws: exact sums over two kinds of clients, and worlds where i.i.d. is false.

Of two kinds of clients, who measure their risks, every number is a function of how many of each kind answered; its
probability of error is an exact sum over these, here the largest one over many networks.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom, hypergeom, multinomial

import riskband as rb
from benchmarks.repaired import drawn, stratified_ledger
from riskband.functionals.functional import interval_of
from tests.validity.coverage import is_rejected

DELTA = 0.2
LOW, HIGH, BETWEEN = 0.1, 0.6, 0.3  # the risks of both kinds, and a threshold between them
SHARES = np.linspace(0.02, 0.98, 25)
CVAR, LEVEL, SIZE = 0.8, 0.7, 0.1
EXAMPLES = 1000  # so many that limits of single clients are between the two kinds


def risks_of(num_low, num_high, **how):
    kinds = np.repeat([LOW, HIGH], [num_low, num_high])
    return rb.ClientRisks(kinds, EXAMPLES, False, **how)


NUMBERS = {  # by name: the limit of answers, and the truth by the share of the clients of high risk
    "mean": (lambda r: rb.mean_bound(r, delta=DELTA).value, lambda p: LOW + (HIGH - LOW) * p),
    "mean below": (lambda r: 1 - interval_of(r, "mean", delta=2 * DELTA).lower, lambda p: 1 - LOW - (HIGH - LOW) * p),
    "share": (lambda r: rb.survival(r, thresholds=BETWEEN, delta=DELTA).value, lambda p: p),
    "share below": (lambda r: 1 - interval_of(r, f"share:{BETWEEN}", delta=2 * DELTA).lower, lambda p: 1 - p),
    "measured share": (
        lambda r: rb.survival(r, thresholds=BETWEEN, delta=DELTA, local="observed").value,
        lambda p: p,
    ),
    "quantile": (
        lambda r: rb.quantile(r, LEVEL, delta=DELTA).value,
        lambda p: np.where(1 - p >= LEVEL, LOW, HIGH),
    ),
    "quantile below": (
        lambda r: 1 - interval_of(r, f"quantile:{LEVEL}", delta=2 * DELTA).lower,
        lambda p: np.where(1 - p >= LEVEL, 1 - LOW, 1 - HIGH),
    ),
    "cvar": (
        lambda r: rb.cvar(r, CVAR, delta=DELTA).value,
        lambda p: LOW + (HIGH - LOW) * np.minimum(p / (1 - CVAR), 1.0),
    ),
    "worst mean": (
        lambda r: rb.worst_case_mean(r, divergence="chi2", budget=SIZE, delta=DELTA).value,
        lambda p: LOW + (HIGH - LOW) * rb.binary_worst_case(p, divergence="chi2", budget=SIZE),
    ),
}
FAST = ["mean", "mean below", "share", "measured share", "quantile"]
CASES = [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in NUMBERS]


def strata(name, num_first, num_second, share, *, is_known=True):
    """Largest probability of error over the shares of bad clients in two strata, and the largest of i.i.d. bounds."""
    limit, truth = NUMBERS[name]
    labels = ["a"] * num_first + ["b"] * num_second
    found = np.empty((num_first + 1, num_second + 1))
    for i in range(num_first + 1):
        for j in range(num_second + 1):
            kinds = np.concatenate([np.arange(num_first) < i, np.arange(num_second) < j])
            design = {"strata": labels, "shares": {"a": share, "b": 1 - share}} if is_known else None
            answers = rb.ClientRisks(np.where(kinds, HIGH, LOW), EXAMPLES, False, design=design)
            found[i, j] = limit(answers)
    first = binom.pmf(np.arange(num_first + 1)[:, None], num_first, SHARES)
    second = binom.pmf(np.arange(num_second + 1)[:, None], num_second, SHARES)
    return max(
        float(first[:, a] @ (found < truth(share * p + (1 - share) * q) - 1e-9) @ second[:, b])
        for a, p in enumerate(SHARES)
        for b, q in enumerate(SHARES)
    )


@pytest.mark.parametrize("name", CASES)
def test_strata_of_known_shares(name):
    for num_first, num_second, share in ((3, 9, 0.7), (6, 4, 0.5)):
        assert strata(name, num_first, num_second, share) <= DELTA


def test_strata_that_were_sampled_out_of_proportion_taken_for_one_sample_are_false():
    """Negative control: few clients were asked where most are."""
    assert strata("mean", 3, 9, 0.7, is_known=False) > 0.8


@pytest.mark.parametrize("name", CASES)
def test_sampling_weights(name):
    limit, truth = NUMBERS[name]
    size = 14
    for low, high, most in ((1.0, 5.0, 5.0), (3.0, 1.0, 4.0)):
        found = np.array(
            [
                limit(
                    risks_of(
                        size - bad,
                        bad,
                        design={"weights": [low] * (size - bad) + [high] * bad, "largest_weight": most},
                    )
                )
                for bad in range(size + 1)
            ]
        )
        truths = truth(SHARES * high / (SHARES * high + (1 - SHARES) * low))
        chances = binom.pmf(np.arange(size + 1)[:, None], size, SHARES)
        assert np.max(np.sum((found[:, None] < truths - 1e-9) * chances, axis=0)) <= DELTA


def test_clients_that_were_drawn_with_weights_taken_for_equal_are_false():
    """Negative control: bad clients were drawn five times less often."""
    found = np.array([rb.mean_bound(risks_of(30 - bad, bad), delta=DELTA).value for bad in range(31)])
    truths = LOW + (HIGH - LOW) * SHARES * 5 / (SHARES * 5 + 1 - SHARES)
    assert np.max(np.sum((found[:, None] < truths) * binom.pmf(np.arange(31)[:, None], 30, SHARES), axis=0)) > 0.8


def chains(name, num_chains, size, *, is_known):
    """Chains whose clients are alike, of different sizes."""
    limit, truth = NUMBERS[name]
    found = []
    for bad in range(num_chains + 1):
        sizes = [size + chain % 2 for chain in range(num_chains)]
        kinds = np.repeat(np.arange(num_chains) < bad, sizes)
        clusters = np.repeat([f"chain {chain}" for chain in range(num_chains)], sizes)
        design = {"clusters": clusters} if is_known else None
        found.append(limit(rb.ClientRisks(np.where(kinds, HIGH, LOW), EXAMPLES, False, design=design)))
    chances = binom.pmf(np.arange(num_chains + 1)[:, None], num_chains, SHARES)
    return float(np.max(np.sum((np.array(found)[:, None] < truth(SHARES) - 1e-9) * chances, axis=0)))


@pytest.mark.parametrize("name", CASES)
def test_clusters_whose_clients_are_alike(name):
    assert chains(name, 12, 2, is_known=True) <= DELTA


def test_clients_of_chains_taken_for_independent_are_false():
    """Negative control: of a chain, ten clients say no more than one."""
    assert chains("mean", 12, 10, is_known=False) > 0.3


ODDS = 4.0


@cache
def limits_of_silent(name, num_asked, missing):
    """By how many of each kind answered, of at least two."""
    limit = NUMBERS[name][0]
    return {
        (low, high): limit(risks_of(low, high, num_missing=num_asked - low - high, missing=missing))
        for low in range(num_asked + 1)
        for high in range(num_asked + 1 - low)
        if low + high >= 2
    }


def silent(name, num_asked, missing):
    """Largest probability of error where good clients' odds of answering are four times those of bad ones."""
    truth, found, worst = NUMBERS[name][1], limits_of_silent(name, num_asked, missing), 0.0
    kinds = np.array(list(found))
    counts = np.column_stack([kinds, num_asked - kinds.sum(axis=1)])
    for share in SHARES[::2]:
        for answers in (0.3, 0.6, 0.9):
            bad_answers = answers / (answers + ODDS * (1 - answers))
            chances = np.array([(1 - share) * answers, share * bad_answers])
            law = multinomial(num_asked, [*chances, 1 - chances.sum()])
            is_false = np.array(list(found.values())) < truth(share) - 1e-9
            worst = max(worst, float(law.pmf(counts) @ is_false))
    return worst


@pytest.mark.parametrize("name", CASES)
def test_silent_clients_within_the_odds(name):
    assert silent(name, 10, f"odds:{ODDS}") <= DELTA


def test_silent_clients_taken_to_be_missing_at_random_are_false():
    """Negative control: of good clients six in ten answer, and of bad ones by odds that are four times smaller."""
    rng, false = np.random.default_rng(0), dict.fromkeys(("ignore", "odds:1.2", f"odds:{ODDS}"), 0)
    for _ in range(50):
        is_bad = rng.random(400) < 0.4
        has_answered = rng.random(400) < np.where(is_bad, 0.6 / (0.6 + ODDS * 0.4), 0.6)
        bad, silent_ones = int(np.sum(is_bad & has_answered)), int(np.sum(~has_answered))
        for missing in false:
            answers = risks_of(400 - silent_ones - bad, bad, num_missing=silent_ones, missing=missing)
            false[missing] += rb.mean_bound(answers, delta=DELTA).value < LOW + (HIGH - LOW) * 0.4
    assert (false["ignore"], false["odds:1.2"] > 40, false[f"odds:{ODDS}"] <= 10) == (50, True, True)


@pytest.mark.parametrize("name", CASES)
def test_finite_strata_without_replacement(name):
    """Of 8 and 12 clients 6 and 3 are asked; over all numbers of bad ones in both, the number of all 20 is bounded."""
    (limit, truth), sizes, asked = NUMBERS[name], (8, 12), (6, 3)
    labels = np.repeat(["a", "b"], asked)
    found = np.empty((asked[0] + 1, asked[1] + 1))
    for i, j in np.ndindex(found.shape):
        kinds = np.concatenate([np.arange(asked[0]) < i, np.arange(asked[1]) < j])
        design = {"strata": labels, "shares": {"a": 0.4, "b": 0.6}}
        found[i, j] = limit(rb.ClientRisks(np.where(kinds, HIGH, LOW), EXAMPLES, False, design=design))
    chances = []
    for bad in np.ndindex(sizes[0] + 1, sizes[1] + 1):
        first, second = (hypergeom.pmf(np.arange(n + 1), m, b, n) for n, m, b in zip(asked, sizes, bad, strict=True))
        is_false = found < float(truth(np.float64(sum(bad) / 20))) - 1e-9
        chances.append(float(first @ is_false @ second))
    assert max(chances) <= DELTA


def test_the_ledger_of_a_stratified_run_is_read_with_its_strata():
    as_alike, as_drawn = drawn(stratified_ledger, 40)
    assert as_alike > 0.9
    assert not is_rejected([1] * round(40 * as_drawn) + [0] * round(40 * (1 - as_drawn)), 0.05)
