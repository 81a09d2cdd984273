"""One share at one threshold, straight from the answers, is false no more often than delta; so is a stepwise bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, binomtest

import riskband as rb
from riskband.functionals import stepwise as steps
from riskband.functionals.functional import interval_of
from tests.validity.coverage import BETA, CONTINUOUS, draw_networks, is_rejected, rejected, study

DELTA = 0.2


class Atoms:
    """Clients with one of a few risks: truth by counting."""

    def __init__(self, risks, weights):
        self.risks, self.weights = np.array(risks), np.array(weights)

    def draw(self, rng, *, num_clients, num_examples):
        true = rng.choice(self.risks, num_clients, p=self.weights)
        return true, rng.binomial(num_examples, true) / num_examples

    def survival(self, at):
        return float(np.sum(self.weights[self.risks >= at]))

    def mean_risk(self):
        return float(self.risks @ self.weights)


LAWS = {
    "at the threshold": (Atoms([0.05, 0.3], [0.8, 0.2]), 0.3),
    "all at the threshold": (Atoms([0.3], [1.0]), 0.3),
    "just above": (Atoms([0.0, 0.31], [0.7, 0.3]), 0.3),
    "few at the threshold": (Atoms([0.02, 0.3], [0.97, 0.03]), 0.3),
    "discrete": (Atoms([0.0, 0.1, 0.2, 0.5, 0.9], [0.5, 0.2, 0.15, 0.1, 0.05]), 0.5),
    "skewed": (BETA, 0.2),
}


def failures_by_law(names, *, num_networks, num_clients, sizes, bound):
    found = {}
    for seed, name in enumerate(names):
        law, threshold = LAWS[name]
        networks = draw_networks(
            law, num_networks=num_networks, num_clients=num_clients, sizes=sizes, seed=(seed, num_clients)
        )
        truth = float(law.survival(threshold))
        found[name] = [bound(risks, threshold) < truth - 1e-9 for risks in networks]
    return found


def share(risks, threshold):
    return rb.survival(risks, thresholds=threshold, delta=DELTA).value


@pytest.mark.parametrize(("num_clients", "sizes"), [(30, 5), (100, 20), (300, 100), (100, "unequal")])
def test_the_bound_on_one_share_holds(num_clients, sizes):
    found = failures_by_law(LAWS, num_networks=60, num_clients=num_clients, sizes=sizes, bound=share)
    assert rejected(found, DELTA) == {}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [5, 20, 100, "unequal", "dependent"])
@pytest.mark.parametrize("num_clients", [30, 100, 500])
def test_the_bound_on_one_share_holds_in_larger_studies(num_clients, sizes):
    found = failures_by_law(LAWS, num_networks=1000, num_clients=num_clients, sizes=sizes, bound=share)
    assert rejected(found, DELTA) == {}


@study(slow=200)
def test_the_bound_on_one_share_holds_for_losses_between_0_and_1(num_networks):
    truth = CONTINUOUS.survival(0.3)
    networks = draw_networks(CONTINUOUS, num_networks=num_networks, num_clients=60, sizes=20, seed=5)
    assert not is_rejected([share(risks, 0.3) < truth for risks in networks], DELTA)


@study(60, slow=200)
def test_missing_and_wrong_clients_are_allowed_for(num_networks):
    """All clients sit at the threshold; the two largest answers are missing, and the next three say 0."""

    def hidden(risks, threshold):
        values = np.sort(risks.values)[:-2]
        values[-3:] = 0.0
        left = rb.ClientRisks(values, 20, binary=True, num_missing=2, missing="worst", contamination=3)
        return share(left, threshold)

    found = failures_by_law(["at the threshold"], num_networks=num_networks, num_clients=50, sizes=20, bound=hidden)
    assert rejected(found, DELTA) == {}


@study(200)
def test_several_thresholds_hold_at_once(num_networks):
    law, at = LAWS["discrete"][0], np.array([0.1, 0.2, 0.5, 0.9])
    truth = [law.survival(t) for t in at]
    networks = draw_networks(law, num_networks=num_networks, num_clients=100, sizes=20, seed=6)
    wrong = [np.any(rb.survival(risks, thresholds=at, delta=DELTA).value < truth) for risks in networks]
    assert not is_rejected(wrong, DELTA)


def test_every_test_function_is_at_least_the_indicator_for_every_risk():
    """Brute force: E[h(X) | r] >= 1 for all r >= t, and h >= 0, for every pair of cuts that is ever used."""
    for num_examples, threshold in product((1, 5, 20, 100), (0.01, 0.3, 0.97, 1.0)):
        counts = np.arange(num_examples + 1)
        clients = steps.Clients.of(rb.ClientRisks(counts / num_examples, num_examples, binary=True), threshold)
        masses = binom.pmf(counts, num_examples, np.append(np.linspace(threshold, 1.0, 60), threshold)[:, None])
        low = np.unique(steps._pairs_of_cuts(threshold, num_examples, is_exact=True)[0])
        assert np.all(low < num_examples * threshold + 1e-9)  # who measures the threshold counts
        ranges = steps.share_ranges(400, threshold, 0.05, num_examples, True)
        for eta, level in {(limit.eta, limit.level) for _, limits in ranges for limit in limits}:
            in_part = clients.no_more > level + steps._ROUNDING
            h = np.where(in_part, 1.0, np.where(clients.no_more > eta, level / (level - eta), 0.0))
            assert np.min(masses @ h) >= 1.0 - 1e-9, (num_examples, threshold, eta, level)
            assert clients.in_part(level).sum() == (0 if level == 1.0 else np.sum(in_part))
            cut = low[np.argmin(np.abs(binom.cdf(low, num_examples, threshold) - eta))]
            assert np.array_equal(clients.no_more > eta, counts > cut)  # no rounding moves a cut


def test_the_parts_of_delta_add_up():
    for ranges in (steps.share_ranges(500, 0.3, DELTA, 20, True), steps.quantile_ranges(500, 0.9, DELTA, 20)):
        lows = [low for low, _ in ranges]
        assert lows == sorted({0.0, *lows}, reverse=True)
        assert all(sum(limit.delta for limit in limits) <= DELTA + 1e-12 for _, limits in ranges)


def test_the_share_of_measured_risks_is_the_exact_binomial_limit():
    risks = next(draw_networks(BETA, num_networks=1, num_clients=80, sizes=20, seed=7))
    for threshold in (0.0, 0.1, 0.3, 1.0):
        above = int(np.sum(risks.values >= threshold))
        expected = binomtest(above, 80).proportion_ci(0.8, method="exact").high  # two-sided: a tenth above
        found = rb.survival(risks, thresholds=threshold, delta=0.1, local="observed")
        assert found.value == pytest.approx(expected, abs=1e-12)
        assert (found.method, rb.verify(found).ok) == ("exact binomial", True)
    in_doubt = rb.ClientRisks(risks.values, 20, num_missing=3, missing="worst", contamination=2)
    above = int(np.sum(risks.values >= 0.3)) + 5
    expected = binomtest(above, 83).proportion_ci(0.8, method="exact").high
    assert rb.survival(in_doubt, thresholds=0.3, delta=0.1, local="observed").value == pytest.approx(expected)


def test_laws_of_the_bound_on_one_share():
    risks = next(draw_networks(BETA, num_networks=1, num_clients=400, sizes=20, seed=8))
    order = np.random.default_rng(0).permutation(400)
    shuffled = rb.ClientRisks(risks.values[order], 20)
    curve = rb.survival(risks, thresholds=[0.4, 0.0, 0.2, 0.3], delta=DELTA)
    assert curve.value[[1, 2, 3, 0]].tolist() == sorted([1.0, *curve.value[[2, 3, 0]]], reverse=True)
    assert rb.verify(curve).ok
    for threshold in (0.2, 0.3, 1.0):
        found = [rb.survival(risks, thresholds=threshold, delta=delta).value for delta in (0.01, 0.05, 0.2)]
        assert found == sorted(found, reverse=True)
        measured = rb.survival(risks, thresholds=threshold, delta=0.05, local="observed").value
        assert measured <= found[1] <= 1.0  # who measures the threshold counts in both
        assert found[1] == rb.survival(shuffled, thresholds=threshold, delta=0.05).value
        band = rb.band(risks, delta=0.05, sides="lower")
        assert found[1] <= 1.05 * rb.survival(band, thresholds=threshold).value
        assert (
            found[1] == interval_of(risks, f"share:{threshold}", delta=0.1).upper
        )  # which takes delta / 2 for each end


@pytest.mark.guard
@pytest.mark.parametrize("bound", ["not divided", "best of all limits"])
def test_shares_that_are_not_paid_for_fail(bound):
    """Negative controls: measured shares read as true ones; the test function chosen on the clients it is used on."""

    def not_divided(risks, threshold):
        return steps.observed_share(risks, threshold, delta=DELTA)

    def best_of_all(risks, threshold):
        etas = {limit.eta for _, limits in steps.share_ranges(100, threshold, DELTA, 20, False) for limit in limits}
        clients = steps.Clients.of(risks, threshold)
        return min(steps._share_limit(clients, steps.Limit(DELTA, eta)) for eta in etas)

    chosen = {"not divided": not_divided, "best of all limits": best_of_all}[bound]
    found = failures_by_law(["all at the threshold"], num_networks=300, num_clients=100, sizes=20, bound=chosen)
    assert rejected(found, DELTA)


def test_ranges_that_are_bisected_as_if_what_is_rejected_were_an_interval_fail():
    """Negative control: the limit depends on the value, so a value may be excluded though a smaller one is not.

    64 ranges, each with a limit of its own, independent of the others, that is 0 with probability delta and else 1.
    """
    rng, truth = np.random.default_rng(9), 0.9
    ranges = [steps.Range(index / 64, (steps.Limit(DELTA, index / 64),)) for index in reversed(range(64))]
    walked, bisected = [], []
    for _ in range(300):
        limits = {index / 64: float(rng.random() >= DELTA) for index in range(64)}
        walked.append(steps.stepwise(ranges, lambda limit, of=limits: of[limit.eta]) < truth)
        low, high = 0, 64
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if limits[middle / 64] > middle / 64 else (low, middle)
        bisected.append(high / 64 < truth)
    assert not is_rejected(walked, DELTA)
    assert is_rejected(bisected, DELTA)


@pytest.mark.parametrize("noise", [None, "laplace:50"])
def test_a_share_at_the_ends_of_the_thresholds_has_a_bound_for_every_loss(noise):
    """At t = 1 no limit below it fails: as sharp as the exact one of measured risks where no client measures 1."""
    values = np.random.default_rng(0).uniform(0.0, 0.9, size=20)
    risks = rb.ClientRisks(values, 10, binary=False, noise=noise)
    found = rb.survival(risks, thresholds=[1e-18, 1.0], delta=0.2).value
    assert found[0] == 1.0
    assert 1.0 - 0.1 ** (1 / 20) - 1e-9 <= found[1] < 0.3
