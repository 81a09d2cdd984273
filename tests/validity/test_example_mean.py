"""The mean per example holds whatever sizes have to do with risks; the mean over clients is another number."""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from benchmarks.repaired import SHARES, largest_false_rate
from riskband.functionals.functional import interval_of
from tests.validity.coverage import failures, is_rejected, rejected, study

DELTA = 0.05
KINDS = {  # numbers of examples and risks of the two kinds of clients; they measure their risks
    "large ones are worse": ((100, 2000), (0.05, 0.4)),
    "large ones are better": ((20, 2000), (0.9, 0.1)),
    "one example against all": ((1, 100), (0.0, 1.0)),
    "the same the other way round": ((1, 100), (1.0, 0.0)),
}


def truths(kind, shares=SHARES):
    """E[n R] / E[n], by shares of the second kind."""
    sizes, risks = map(np.array, kind)
    weights = np.stack([1 - shares, shares]) * sizes[:, None]
    return risks @ weights / weights.sum(axis=0)


def false_rate(kind, num_clients, bound):
    """Largest probability over all shares, a sum over how many clients are of the second kind."""
    sizes, risks = map(np.array, kind)
    limits = []
    for number in range(num_clients + 1):
        of = (np.arange(num_clients) < number).astype(int)
        limits.append(bound(rb.ClientRisks(risks[of], sizes[of], binary=False)))
    return largest_false_rate(limits, truths(kind), num_clients)


@pytest.mark.parametrize("num_clients", [26, 5, 73])
def test_it_is_false_no_more_often_than_it_says_exactly(num_clients):
    for kind in KINDS.values():
        for most in (max(kind[0]), 4 * max(kind[0])):
            rate = false_rate(
                kind, num_clients, lambda risks, n=most: interval_of(risks, f"example_mean:{n}", delta=DELTA)
            )
            assert rate <= DELTA


def test_the_mean_over_clients_read_as_the_mean_per_example_is_false():
    """Negative control: patients instead of hospitals, where large hospitals are worse."""
    rate = false_rate(KINDS["large ones are worse"], 73, lambda risks: interval_of(risks, "mean", delta=DELTA))
    assert rate > 0.9


def test_a_largest_size_that_the_answers_say_is_false():
    """Negative control of the assumption that it was known beforehand: the large client is the one nobody saw."""

    def by_the_answers(risks):
        return interval_of(risks, f"example_mean:{risks.num_examples.max()}", delta=DELTA)

    assert false_rate(KINDS["one example against all"], 26, by_the_answers) > 0.5


SIZES, RISKS, WEIGHTS = np.array([10, 60, 400]), np.array([0.02, 0.1, 0.5]), np.array([0.5, 0.4, 0.1])


def network(seed):
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, 40, p=WEIGHTS)
    risks = rng.beta(20 * RISKS[kind], 20 * (1 - RISKS[kind]))
    return rb.ClientRisks(rng.binomial(SIZES[kind], risks) / SIZES[kind], SIZES[kind], binary=True)


def fails(risks):
    truth = (WEIGHTS * SIZES) @ RISKS / (WEIGHTS @ SIZES)
    lower, upper = interval_of(risks, "example_mean:400", delta=0.4)
    return {"lower": lower > truth, "upper": upper < truth, "mean": interval_of(risks, "mean", delta=0.4).upper < truth}


@study(100, slow=200)
def test_it_holds_of_clients_that_draw_their_examples(num_networks):
    found = failures(map(network, range(num_networks)), fails)
    assert is_rejected(found.pop("mean"), 0.2)
    assert rejected(found, 0.2) == {}
