"""Alarms while a network is as certified come with the stated probability at most, whenever anybody looks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

import riskband as rb
from riskband.certificate import CrossingError
from riskband.report.monitored import Claim
from riskband.worst_cases.always_valid import always_valid
from tests.validity.coverage import is_rejected

ALPHA, K, N = 0.1, 150, 50
BEFORE = rb.ClientRisks(np.linspace(0.0, 0.3, 40), 100, binary=False)
BINARY = rb.ClientRisks(np.arange(40) / 100, 100)
BAND = rb.band(BINARY, delta=0.05)
MEAN = replace(rb.mean_bound(BEFORE, delta=0.05), value=0.2)
SHARE = replace(rb.survival(BAND, thresholds=0.3), value=0.1)
CURVE = replace(rb.survival(BAND, thresholds=[0.1, 0.2, 0.3]), value=[0.9, 0.5, 0.1])
QUANTILE = replace(rb.quantile(BINARY, 0.9, delta=0.05), value=0.25)
WORST = replace(rb.worst_case_mean(BEFORE, divergence="chi2", budget=[0.1, 0.2], delta=0.05), value=[0.15, 0.2])
OBSERVED = replace(rb.survival(BINARY, thresholds=0.3, delta=0.05, local="observed"), value=0.1)


def at_the_limit(certificate, rng, num_clients=K):
    """Answers of a network that is just within the certificate."""
    if certificate in (MEAN, WORST):
        return rb.ClientRisks(rng.binomial(1, 0.2, num_clients).astype(float), 1000, binary=False)
    if certificate is OBSERVED:
        return rb.ClientRisks(np.where(rng.random(num_clients) < 0.1, 0.3, 0.28), 100, binary=True)
    bad = 0.3 if certificate is SHARE else 0.9
    risks = np.where(rng.random(num_clients) < 0.1, bad, 0.2999 if certificate is SHARE else 0.0999)
    return rb.ClientRisks(rng.binomial(N, risks) / N, N, binary=True)


@pytest.mark.slow
@pytest.mark.parametrize("certificate", [MEAN, WORST, SHARE, CURVE, QUANTILE, OBSERVED], ids=lambda each: each.name)
def test_500_networks_at_the_limit_with_a_look_after_every_client(certificate):
    rng = np.random.default_rng(1)
    alarms = [rb.monitor(certificate, at_the_limit(certificate, rng), alpha=ALPHA).alarm_at for _ in range(500)]
    assert not is_rejected([each is not None for each in alarms], ALPHA)


@pytest.mark.parametrize("mean", [0.02, 0.2, 0.7])
def test_capital_has_mean_one_and_alarms_their_probability_exactly(mean):
    """All sequences of answers 0 and 1 of a network whose mean is what was certified."""
    claim, size, alpha, each = Claim.of(replace(MEAN, value=mean)), 9, 0.3, np.ones(9, dtype=int)
    total, alarms = np.zeros(size), 0.0
    for ones in product((0.0, 1.0), repeat=size):
        likely = float(np.prod(np.where(ones, mean, 1.0 - mean)))
        capital = claim.capital(rb.ClientRisks(ones, 10, binary=False), each)
        total += likely * capital
        alarms += likely * float(np.max(capital) >= 1.0 / alpha)
    assert total == pytest.approx(np.ones(size), abs=1e-12)
    assert alarms <= alpha


@pytest.mark.parametrize("risk", [0.05, 0.2, 0.29999])
@pytest.mark.parametrize("num_examples", [3, 20, 200])
def test_of_clients_that_do_not_count_few_limits_do(risk, num_examples):
    """The worst network: all that may is at 1, all others are just below the threshold; sums over all counts."""
    counts = np.arange(num_examples + 1)
    answers = rb.ClientRisks(counts / num_examples, num_examples, binary=True)
    weights = 0.1 * (counts == num_examples) + 0.9 * binom.pmf(counts, num_examples, risk)
    first = np.array([Claim.of(SHARE).capital(joined(answers, k), ONE)[0] for k in range(counts.size)])
    assert np.sum(weights * first) <= 1.0 + 1e-12
    measured = np.array([Claim.of(OBSERVED).capital(joined(answers, k), ONE)[0] for k in range(counts.size)])
    assert np.sum(weights * measured) > 1.0 or risk < 0.29  # what clients measure is above more often


ONE = np.array([1])


def joined(answers, first):
    return answers.of_clients(np.array([first, 0]))


def test_looking_every_day_at_an_exact_test_alarms_far_too_often():
    """What is usual: a binomial test that is right once, made again after each client."""
    rng = np.random.default_rng(2)
    wrong = rng.random((500, K)) < 0.2
    p_values = binom.sf(np.cumsum(wrong, axis=1) - 1, np.arange(1, K + 1), 0.2)
    assert np.mean(p_values[:, -1] <= ALPHA) <= ALPHA
    assert is_rejected(np.any(p_values <= ALPHA, axis=1), ALPHA)


def test_measured_risks_taken_for_true_ones_alarm_at_once():
    rng = np.random.default_rng(3)
    answers = rb.ClientRisks(rng.binomial(10, np.full(60, 0.29)) / 10, 10, binary=True)  # no client is at 0.3
    wrong = Claim.of(SHARE)._replace(is_measured=True)
    assert wrong.capital(answers, np.ones(60, dtype=int)).max() >= 1e3
    assert rb.monitor(SHARE, answers).alarm_at is None


def test_a_change_after_long_is_found_as_soon_as_one_at_the_beginning_or_nearly():
    """The capital of bets that all began at the first client is gone by then."""
    rng = np.random.default_rng(4)
    good, bad = rng.beta(3, 27, 2000), rng.beta(3, 7, 100)
    delays = []
    for before in (0, 2000):
        values = np.append(good[:before], bad)
        delays.append(rb.monitor(MEAN, rb.ClientRisks(values, 100, binary=False)).alarm_at - before)
    assert delays[0] < 40
    assert delays[1] < 80
    stakes = np.geomspace(0.02, 30.0, 12)
    bets = np.minimum(stakes, 0.99 / 0.2)[:, None]
    capital = np.log1p(bets * (np.append(good, bad) - 0.2)).cumsum(axis=1)
    assert capital[:, 2000:].max() < np.log(20.0)  # never an alarm


@pytest.mark.parametrize("num_bad", [2, 5])
def test_batches_may_be_drawn_without_replacement_and_come_sorted(num_bad):
    """Of a fleet of 10 four answer a day, the bad ones first: bets on single clients do not stand that. Exact sums."""
    mean, (size, alpha) = num_bad / 10, (4, 0.3)
    claim, batches = Claim.of(replace(MEAN, value=mean)), np.array([size, size])
    odds = [hypergeom.pmf(k, 10, num_bad, size) for k in range(size + 1)]
    total = alone = alarms = 0.0
    for days in product(range(size + 1), repeat=2):
        likely = float(np.prod([odds[k] for k in days]))
        values = np.concatenate([np.repeat([1.0, 0.0], [k, size - k]) for k in days])
        answers = rb.ClientRisks(values, 10, binary=False)
        capital = claim.capital(answers, batches)
        total += likely * capital
        alarms += likely * float(np.max(capital) >= 1.0 / alpha)
        alone += likely * claim.capital(answers, np.ones(2 * size, dtype=int))
    assert np.all(total <= 1.0 + 1e-12)
    assert alarms <= alpha
    assert np.max(alone) > 1.0


def is_false(answers, number, truth, *, delta, batches):
    """Whether it is, or would be if it were said: it excludes what was measured, and is refused."""
    try:
        return always_valid(answers, number, delta=delta, sides="worse", batches=batches).value < truth
    except CrossingError:
        return True


@pytest.mark.parametrize(
    ("number", "truth"), [("mean", 0.2), ("share:0.5", 0.2), ("cvar:0.5", 0.4), ("mean@chi2:0.1", 0.3264)]
)
def test_bounds_after_batches_that_come_sorted(number, truth):
    """Of coins, the good ones first; exact sums. Looked at within a batch, they are nearly always false."""
    sizes, delta = [24, 4], 0.2
    odds = [binom.pmf(np.arange(size + 1), size, 0.2) for size in sizes]
    wrong, within = 0.0, 0.0
    for first, second in product(np.flatnonzero(odds[0] > 1e-4).tolist(), range(5)):
        values = np.concatenate(
            [np.repeat([0.0, 1.0], [24 - first, first]), np.repeat([0.0, 1.0], [4 - second, second])]
        )
        answers, likely = rb.ClientRisks(values, 1000, binary=False), odds[0][first] * odds[1][second]
        wrong += likely * is_false(answers, number, truth, delta=delta, batches=sizes)
        within += likely * is_false(answers, number, truth, delta=delta, batches=[2] * 14)
    assert wrong <= delta
    assert within > 2.0 * delta


def test_what_is_certified_today_is_of_whole_batches():
    """Until it was, clients of a day that came sorted made it false nearly every time."""
    rng = np.random.default_rng(5)
    days = np.sort(rng.random((6, 50)) < 0.2, axis=1).astype(float)
    found = rb.monitor(MEAN, rb.ClientRisks(days.ravel(), 1000, binary=False), batches=[50] * 6)
    today = found.certificates["mean"]
    assert today.lower < 0.2 < today.value
    assert today.recipe["arguments"]["batches"] == [50] * 6
    assert not any("independent draws from one meta" in line for line in today.assumptions)
    assert rb.verify(today).ok
    sizes, lower, upper = found.trajectory("mean")
    assert sizes.tolist() == [50, 100, 150, 200, 250, 300]
    assert np.all((lower < 0.2) & (upper > 0.2))
    assert upper[-1] == today.value
    assert "if all these clients are of one network" in found.statement
