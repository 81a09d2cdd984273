"""What is said of the same clients at later times: exact sums over all answers of small panels, and a seeded study."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom

import riskband as rb
from riskband.worst_cases.panels import Evaluations, late_capital, panel_change, panel_evidence, panel_of
from tests.validity.coverage import is_rejected

NAMES = ("a", "b")
SIZES = (1, 2)  # examples of each client


def panel(risks, rng, num_examples=100):
    names = [f"s{k}" for k in range(len(risks))]
    return rb.ClientRisks(rng.binomial(num_examples, risks) / num_examples, num_examples, True, names=names)


SAME = panel([0.3] * 5, np.random.default_rng(1), 1000)


def evaluation(values, num_examples=SIZES, names=NAMES):
    return rb.ClientRisks(values, num_examples, binary=False, names=names)


def outcomes(risks, sizes=SIZES):
    """All answers of clients with these risks, with their probabilities."""
    for counts in product(*(range(size + 1) for size in sizes)):
        yield np.array(counts) / sizes, float(np.prod(binom.pmf(counts, sizes, risks)))


@pytest.mark.parametrize(
    "risks",
    [
        [(0.2, 0.2), (0.2, 0.2), (0.2, 0.2)],
        [(0.0, 0.6), (0.5, 0.1), (0.3, 0.3)],  # each client changes, and their mean does not
        [(0.9, 0.1), (0.1, 0.9), (0.2, 0.3)],
    ],
)
def test_evidence_has_mean_one_at_most_and_alarms_their_probability_exactly(risks):
    alpha, total, alarms, naive = 0.2, np.zeros(2), 0.0, 0.0
    for (first, p), (second, q), (third, r) in product(*(outcomes(each) for each in risks)):
        seen = Evaluations(*(np.mean([first, second, third], axis=1),) * 2, np.full(3, 2.0))
        evidence = panel_evidence(seen)
        total += p * q * r * evidence
        alarms += p * q * r * float(evidence.max() >= 1.0 / alpha)
        # The first answers taken for the risks at the beginning: a bet at one stake against their mean.
        grown = 2.0 * (0.7 * seen.low[1] - np.log1p(seen.low[0] * np.expm1(0.7)))
        naive += p * q * r * np.exp(grown)
    assert np.all(total <= 1.0)
    assert alarms <= alpha
    assert naive > 1.0 or risks[0] == (0.9, 0.1)  # negative control; clients that differ so much hardly vary


@pytest.mark.parametrize("delta", [0.1, 0.4])
@pytest.mark.parametrize("risks", [[(0.3, 0.5)] * 2, [(0.05, 0.4), (0.9, 0.6)], [(0.5, 0.5), (0.1, 0.1)]])
def test_intervals_fail_with_their_probability_at_most_exactly(risks, delta):
    sizes, truth, wrong = (2, 2), float(np.mean(risks[1]) - np.mean(risks[0])), 0.0
    for (first, p), (second, q) in product(*(outcomes(each, sizes) for each in risks)):
        if p * q > 1e-4:
            made = panel_change(evaluation(first, 2), [evaluation(second, 2)], delta=delta)
            wrong += p * q * (not made.lower <= truth <= made.value)
    assert wrong <= delta


def drifting(rng, *, later, shift=0.0, size=12):
    """Clients whose risks wander, with a mean that does not but for the shift; by `later` evaluations."""
    risks = rng.beta(2, 8, size)
    moves = rng.normal(0.0, 0.03, (later, size))
    moves -= moves.mean(axis=1, keepdims=True)
    first, *others = (np.clip(each, 0.0, 1.0) for each in (risks, *(risks + moves + shift)))
    truth = np.mean(others, axis=1) - np.mean(first)
    return panel(first, rng), [panel(each, rng) for each in others], truth


@pytest.mark.slow
def test_of_200_panels_that_wander_few_intervals_fail_at_any_time():
    rng, failed = np.random.default_rng(0), []
    for _ in range(200):
        first, others, truth = drifting(rng, later=12, shift=0.02)
        failed.append(False)
        for size in (1, 3, 6, 12):
            made = panel_change(first, others[:size], delta=0.1)
            failed[-1] |= not made.lower <= np.mean(truth[:size]) <= made.value
    assert not is_rejected(failed, 0.1)


def panels_evaluated(shift, *, num_panels, seed, later=12):
    rng = np.random.default_rng(seed)
    for _ in range(num_panels):
        first, others, _ = drifting(rng, later=later, shift=shift)
        yield panel_of(first, others)[0]


def test_a_panel_that_became_worse_is_found_and_one_that_did_not_is_left_alone():
    assert all(panel_evidence(seen).max() >= 10.0 for seen in panels_evaluated(0.1, num_panels=4, seed=1))
    assert not any(panel_evidence(seen).max() >= 10.0 for seen in panels_evaluated(0.0, num_panels=10, seed=2))


def test_what_the_panel_measured_first_is_not_taken_for_its_risk():
    """Without the bet on its beginning, alarms come far too often."""
    found = panels_evaluated(0.0, num_panels=40, seed=3, later=60)
    alone = [late_capital(seen, 60)(float(seen.low[0])) >= np.log(10.0) for seen in found]
    assert is_rejected(alone, 0.1)


def test_the_least_over_the_beginning_is_the_least_that_another_search_finds():
    seen, _ = panel_of(evaluation([0.3, 0.1], 50), [evaluation([0.5, 0.4], 40), evaluation([0.6, 0.4], 60)])
    stakes = np.geomspace(0.003, 3.0, 14)

    def bet(y, n, v):
        return n * (stakes * y - np.log(1.0 - v + v * np.exp(stakes)))

    def log_both(value):
        v = float(value[0])
        before = np.mean(np.exp(bet(0.8, 100.0, 1.0 - v)))
        first, second = bet(0.45, 80.0, v), bet(0.5, 120.0, v)
        kept = 1.0 / (1.0 + np.log1p([0, 1, 2]))
        parts = [
            np.mean(np.exp(first + second)) * (1.0 - kept[1]),
            np.mean(np.exp(second)) * (kept[1] - kept[2]),
            kept[2],
        ]
        return np.log(before * sum(parts))

    least = min(minimize(log_both, [start], method="Nelder-Mead").fun for start in (0.25, 0.4))
    assert np.log(panel_evidence(seen)[1]) == pytest.approx(least, abs=1e-4)


def test_clients_of_the_panel_that_are_silent_count_against_what_is_said_and_others_are_left_out():
    first = evaluation([0.1, 0.2], 100)
    seen, others = panel_of(first, [evaluation([0.3, 0.9], 80, names=("a", "c"))])
    assert others == ["c"]
    assert seen.low.tolist() == pytest.approx([0.15, 0.15])  # 0.3 and 0, of two
    assert seen.high.tolist() == pytest.approx([0.15, 0.65])
    assert seen.weights.tolist() == [200.0, 160.0]


@pytest.mark.parametrize(
    ("first", "later", "problem"),
    [
        (evaluation([0.1, 0.2]), [], "at least twice"),
        (rb.ClientRisks([0.1, 0.2], 10), [evaluation([0.1, 0.2])], "must have a name"),
        (evaluation([0.1, 0.2]), [evaluation([0.1, 0.2], names=("c", "d"))], "clients of the panel, got c, d"),
        (rb.ClientRisks([0.1] * 2, 10, names=("a", "a"), repeats="draws"), [evaluation([0.1, 0.2])], "once"),
        (rb.ClientScores([0.1, 0.2], True, names=NAMES), [evaluation([0.1, 0.2])], "ClientRisks"),
        (SAME, [panel([0.3] * 5, np.random.default_rng(0)), SAME], "number 1 and in number 3"),
    ],
)
def test_what_is_no_panel_is_refused(first, later, problem):
    with pytest.raises(ValueError, match=problem):
        panel_change(first, later, delta=0.1)


def test_a_certificate_of_a_panel_verifies_and_says_what_it_is_about():
    zeros = evaluation([0.0, 0.0], 100)
    made = panel_change(zeros, [zeros, evaluation([0.5, 0.4], 100)], delta=0.1)  # twice 0 is no coincidence to refuse
    assert made.lower > 0.0
    assert made.is_always_valid
    assert rb.verify(made).ok
    assert "nothing is said of other clients" in made.assumptions[0]
    assert not any("one meta-distribution" in line for line in made.assumptions)
    stored = made.to_dict()
    stored["recipe"]["arguments"]["later"][1]["answers"]["values"][0] = 0.1
    assert not rb.verify(stored).ok
