"""Always valid bounds, after every client of whole trajectories; and what is false when it is looked at so."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import beta, binom

import riskband as rb
from riskband.bands.levels import checkpoint, stitched_levels
from riskband.certificate import CrossingError
from riskband.functionals.distributions import RiskDistribution
from riskband.worst_cases.always_valid import _STAKES, DIRECT, always_valid
from riskband.worst_cases.number import ON_SCALE, Number
from tests.validity.coverage import ROUNDING, failures, rejected, study
from tests.validity.test_two_models import ATOMS, LAWS, MASSES

DELTA, NUM_CLIENTS = 0.2, 60

NETWORKS = {  # kinds of clients: how frequent each is, its risk, and its number of examples
    "two points": ((0.7, 0.1, 20), (0.3, 0.4, 20)),
    "coins": ((0.9, 0.0, 1), (0.1, 1.0, 1)),
    "few examples where it is bad": ((0.85, 0.02, 200), (0.15, 0.5, 8)),
    "tied": ((0.4, 0.2, 10), (0.4, 0.2, 10), (0.2, 0.3, 10)),
}
NUMBERS = (
    *("mean", "share:0.4", "share:0.35", "share:0.2", "quantile:0.8", "quantile:0.3", "cvar:0.8"),
    *("mean@chi2:0.2", "mean@kl:0.1", "mean@tv:0.1", "mean@hellinger2:0.05"),
    *("mean@chi2:0", "share:0.35@chi2:0.1", "quantile:0.8@chi2:0.1"),
)


def test_every_number_with_bets_of_its_own_is_tried():
    assert {Number.of(name).family for name in NUMBERS} == {*DIRECT}
    for names in (NUMBERS, OF_CHANGES, OF_SCORES):
        tried = {(Number.of(name).family, Number.of(name).where) for name in names}
        assert {*product(ON_SCALE, ("", "shifted"))} <= tried


@cache
def truth(network, name):
    """The smallest and the largest value that the number may be said to have: a quantile of a few atoms has several."""
    weights, risks, _ = (np.array(each) for each in zip(*NETWORKS[network], strict=True))
    return ends(name, risks, weights)


def ends(name, atoms, weights):
    order, number = np.argsort(atoms, kind="stable"), Number.of(name)
    below = np.cumsum(weights[order])
    if number.family == "quantile" and number.shift is None:
        level = number.point
        return [atoms[order][np.searchsorted(below, level + e).clip(max=atoms.size - 1)] for e in (-1e-9, 1e-9)]
    return [number.value(RiskDistribution(atoms[order], np.append(below[:-1], 1.0)))] * 2


def drawn(network, rng):
    weights, risks, sizes = (np.array(each) for each in zip(*NETWORKS[network], strict=True))
    kind = rng.choice(weights.size, NUM_CLIENTS, p=weights)
    return rb.ClientRisks(rng.binomial(sizes[kind], risks[kind]) / sizes[kind], sizes[kind], binary=True)


def are_false(answers, truths):
    """Of each number's ends, whether it ever was: bounds after the last client are the sharpest (`test_sequences`)."""
    found = {}
    for name, (low, high) in truths.items():
        try:
            made = always_valid(answers, name, delta=DELTA)
        except CrossingError:  # one end has passed the other, or what was measured: one may be false
            found |= {(name, end): True for end in ("above", *["below"] * has_two_ends(name))}
            continue
        found[name, "above"] = made.value < high - ROUNDING
        if made.lower is not None:
            found[name, "below"] = made.lower > low + ROUNDING
    return found


def has_two_ends(name):
    return Number.of(name).family in ON_SCALE and Number.of(name).shift is None


def rejected_ends(found):
    """Cases that are rejected: two ends have half of delta each, a single one all of it."""
    both = {case: each for case, each in found.items() if has_two_ends(case[0])}
    one = {case: each for case, each in found.items() if not has_two_ends(case[0])}
    return rejected(both, DELTA / 2) | rejected(one, DELTA)


@study(slow=100)
@pytest.mark.parametrize("network", NETWORKS)
def test_risks_looked_at_after_every_client(network, num_networks):
    """Two ends have half of delta each. A correct bound is rejected with probability 1e-4."""

    truths = {name: truth(network, name) for name in NUMBERS}
    rng = np.random.default_rng(31)
    found = failures((drawn(network, rng) for _ in range(num_networks)), lambda risks: are_false(risks, truths))
    assert {name for name, end in found if end == "below"} == {*filter(has_two_ends, NUMBERS)}
    assert rejected_ends(found) == {}


SHIFT = {"divergence": "chi2", "budget": 0.1}
OF_CHANGES = (
    "change",
    "harmed:0.02",
    "quantile:0.8",
    *(f"{n}@chi2:0.1" for n in ("mean", "harmed:0.02", "quantile:0.8")),
)


@study(slow=100)
@pytest.mark.parametrize("law", LAWS)
def test_changes_looked_at_after_every_client(law, num_networks):
    kinds = LAWS[law]
    harmed = kinds.weights @ (kinds.changes > 0.02)
    known = {
        "change": [kinds.weights @ kinds.changes] * 2,
        "harmed:0.02": [harmed] * 2,
        "quantile:0.8": ends("quantile:0.8", kinds.changes, kinds.weights),
        "harmed:0.02@chi2:0.1": [rb.binary_worst_case(harmed, **SHIFT)] * 2,
    }
    for number in ("mean@chi2:0.1", "quantile:0.8@chi2:0.1"):
        known[number] = [2.0 * value - 1.0 for value in ends(number, (kinds.changes + 1.0) / 2.0, kinds.weights)]
    assert known.keys() == {*OF_CHANGES}
    rng = np.random.default_rng(32)
    networks = (kinds.draw(rng, NUM_CLIENTS) for _ in range(num_networks))
    assert rejected_ends(failures(networks, lambda changes: are_false(changes, known))) == {}


OF_SCORES = ("mean", "share:0.61", "quantile:0.2", *(f"{n}@chi2:0.1" for n in ("mean", "share:0.61", "quantile:0.2")))


@study(slow=100)
@pytest.mark.parametrize("higher", [True, False])
def test_scores_looked_at_after_every_client(higher, num_networks):
    bad = 1.0 - ATOMS if higher else ATOMS
    share = MASSES @ (ATOMS <= 0.61 if higher else ATOMS >= 0.61)
    known = {
        "mean": [ATOMS @ MASSES] * 2,
        "share:0.61": [share] * 2,
        "quantile:0.2": [0.5, 0.61],
        "share:0.61@chi2:0.1": [rb.binary_worst_case(share, **SHIFT)] * 2,
    }
    for number in ("mean@chi2:0.1", "quantile:0.2@chi2:0.1"):
        worst = ends(number.replace("0.2", "0.8") if higher else number, bad, MASSES)[0]
        known[number] = [1.0 - worst if higher else worst] * 2
    assert known.keys() == {*OF_SCORES}
    rng = np.random.default_rng(33)
    networks = (rb.ClientScores(rng.choice(ATOMS, NUM_CLIENTS, p=MASSES), higher) for _ in range(num_networks))
    assert rejected_ends(failures(networks, lambda scores: are_false(scores, known))) == {}


def chance_ever(is_excluded, share, num_clients):
    """Probability that a rule ever excludes the share, exactly: paths of the number of bad clients that reach it stop.

    `is_excluded(k, counts)` says it for each number of bad clients among the first k.
    """
    alive, reached = np.array([1.0]), 0.0
    for k in range(1, num_clients + 1):
        alive = np.append(alive, 0.0) * (1.0 - share) + np.append(0.0, alive) * share
        out = is_excluded(k, np.arange(k + 1))
        reached += alive[out].sum()
        alive[out] = 0.0
    return reached


def log_capital(k, counts, share, stakes):
    """Of a gambler on k coins who doubts that the share is so large, where so many have come up."""
    stakes = np.minimum(stakes, 0.99 / (1.0 - share))[:, None]
    return logsumexp(
        counts * np.log1p(stakes * (share - 1.0)) + (k - counts) * np.log1p(stakes * share), axis=0
    ) - np.log(len(stakes))


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_coins_exactly(share):
    """Over all trajectories of 300 coins; and the bound excludes the share where this capital has reached 1/delta."""
    needed = np.log(1.0 / DELTA)
    assert chance_ever(lambda k, counts: log_capital(k, counts, share, _STAKES) >= needed, share, 300) <= DELTA
    rng, seen = np.random.default_rng(34), set()
    for frequency in (0.2 * share, 0.6 * share, share):
        for _ in range(4):
            coins = (rng.random(60) < frequency) * 1.0
            peak = max(log_capital(k + 1, coins[: k + 1].sum(), share, _STAKES)[()] for k in range(60))
            with suppress(CrossingError):  # below what was measured, which once in a while an early peak excludes
                made = always_valid(rb.ClientRisks(coins, 1, binary=True), "mean", delta=DELTA, sides="worse")
                seen.add(bool(peak >= needed))
                assert (made.value <= share) == (peak >= needed)
    assert seen == {True, False} or share < 0.05


# At once for all numbers of clients up to this one, over all sequences of coins; delta is large enough to be spent.
NUM_COINS, LARGE_DELTA = 6, 0.5
SHARES = np.linspace(0.02, 0.98, 49)


@pytest.mark.parametrize("name", NUMBERS)
def test_over_every_sequence_of_coins(name):
    """Exactly, at every share of bad clients: no bound is ever false with more than the delta of its ends."""
    rows = np.array(list(product([0.0, 1.0], repeat=NUM_COINS)))
    ever = {"above": np.zeros((len(rows), SHARES.size), bool), "below": np.zeros((len(rows), SHARES.size), bool)}
    truths = np.array([ends(name, np.array([0.0, 1.0]), np.array([1.0 - share, share])) for share in SHARES.tolist()])
    for place, row in enumerate(rows):
        try:
            made = always_valid(rb.ClientRisks(row, 1, binary=True), name, delta=LARGE_DELTA)
        except ValueError:  # one end has passed the other: one of them is false
            ever["above"][place] = True
            continue
        ever["above"][place] = made.value < truths[:, 1] - ROUNDING
        ever["below"][place] = made.lower is not None and made.lower > truths[:, 0] + ROUNDING
    num_bad = rows.sum(axis=1)[:, None]
    chances = SHARES**num_bad * (1.0 - SHARES) ** (NUM_COINS - num_bad)
    false = {end: float(np.max(np.sum(chances * are, axis=0))) for end, are in ever.items()}
    assert max(false.values()) <= LARGE_DELTA
    assert false["below"] <= LARGE_DELTA / 2
    assert false["above"] <= (LARGE_DELTA / 2 if false["below"] > 0.0 else LARGE_DELTA)


# Known mistakes.


def test_a_limit_for_a_fixed_number_is_false_when_it_is_looked_at_after_every_client():
    """Clopper and Pearson's, which is exact for each of 300 numbers of clients by itself."""
    share, delta = 0.1, 0.05

    def exact(k, counts):
        return (counts < k) & (beta.ppf(1.0 - delta, counts + 1.0, np.maximum(k - counts, 1)) < share)

    assert max(binom.pmf(np.arange(k + 1), k, share)[exact(k, np.arange(k + 1))].sum() for k in (30, 100, 300)) <= delta
    assert chance_ever(exact, share, 300) > 3.5 * delta


# The band of the first 16, 32, 64, … clients.


@pytest.mark.parametrize("sides", ["two", "lower"])
def test_the_bands_of_all_checkpoints_share_delta(sides):
    sizes = [16 * 2**j for j in range(7)]
    spent = [1.0 - stitched_levels(size, DELTA, sides).coverage for size in sizes]
    allowed = DELTA * 6.0 / (np.pi * np.arange(1, 8)) ** 2
    assert np.all(np.array(spent) <= allowed + 1e-12)
    assert np.all(np.array(spent) >= 0.99 * allowed)
    assert [checkpoint(size) for size in (15, 16, 31, 32, 1_000)] == [0, 16, 16, 32, 512]
