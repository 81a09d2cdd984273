"""Limits for a client's true change, and numbers of two models and of scores: scipy's, and sums over all outcomes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import rel_entr
from scipy.stats import beta, binom, binomtest, multinomial

import riskband as rb
from riskband.worst_cases.scaled import _ETA

COUNTS = [(100, 3, 5), (100, 0, 5), (100, 0, 0), (500, 10, 20), (20, 20, 0), (20, 0, 20), (1, 1, 0), (1, 0, 0)]
KNOWN = {(100, 3, 5): 0.0687, (100, 0, 5): 0.0198, (100, 0, 0): 0.0362, (500, 10, 20): 0.0119}  # at eta = .05


def counted(n, b, c, **more):
    return rb.ClientChanges.from_counts([b, b], [c, c], n, **more)


@pytest.mark.parametrize(("n", "b", "c"), COUNTS)
@pytest.mark.parametrize("eta", [0.05, 0.2])
def test_limits_of_a_change_are_those_of_two_clopper_pearson_intervals(n, b, c, eta):
    """Intervals of scipy at confidence 1 - eta, whose ends fail with eta / 2 each."""
    worse, better = (binomtest(each, n).proportion_ci(1.0 - eta, method="exact") for each in (b, c))
    changes = counted(n, b, c)
    assert changes.upper_limits(eta)[0] == pytest.approx(worse.high - better.low, abs=1e-12)
    assert -changes.mirrored.upper_limits(eta)[0] == pytest.approx(worse.low - better.high, abs=1e-12)
    if eta == 0.05 and (n, b, c) in KNOWN:
        assert changes.upper_limits(eta)[0] == pytest.approx(KNOWN[n, b, c], abs=5e-5)


def test_without_the_counts_the_limits_are_those_of_both_error_rates():
    changes = rb.ClientChanges([0.2, 0.1], [0.18, 0.3], [100, 50])
    above, below = beta.ppf(0.9, [19, 16], [82, 35]), beta.ppf(0.1, [20, 5], [81, 46])
    np.testing.assert_allclose(changes.upper_limits(0.2), above - below, atol=1e-12)
    known = rb.ClientChanges([0.2, 0.1], [0.18, 0.3], [100, 50], num_worse=[0, 10])
    assert np.all(known.upper_limits(0.2) < changes.upper_limits(0.2))


def test_limits_of_losses_other_than_0_and_1_are_chernoffs():
    def kl(p, q):
        return rel_entr(p, q) + rel_entr(1.0 - p, 1.0 - q) - np.log(2.0 / 0.2) / 30

    changes = rb.ClientChanges([0.21, 0.3], [0.13, 0.4], 30, binary=False)
    above = [brentq(lambda q, p=p: kl(p, q), p, 1.0 - 1e-9) for p in (0.13, 0.4)]
    below = [brentq(lambda q, p=p: kl(p, q), 1e-9, p) for p in (0.21, 0.3)]
    np.testing.assert_allclose(changes.upper_limits(0.2), np.subtract(above, below), atol=1e-9)


RATES = [0.0, 0.02, 0.1, 0.3, 0.5]


@pytest.mark.parametrize("n", [1, 7, 25])
def test_limits_fail_with_probability_eta_at_most_exactly(n):
    """By all outcomes of a trinomial distribution; both limits, where the discordant examples are counted."""
    outcomes = np.array([(b, c, n - b - c) for b in range(n + 1) for c in range(n + 1 - b)])
    changes = rb.ClientChanges.from_counts(outcomes[:, 0], outcomes[:, 1], n)
    for eta, worse, better in itertools.product((0.05, _ETA), RATES, RATES):
        chances = multinomial.pmf(outcomes, n, [worse, better, 1.0 - worse - better])
        for limits, truth in ((changes, worse - better), (changes.mirrored, better - worse)):
            assert chances @ (limits.upper_limits(eta) < truth - 1e-12) <= eta + 1e-12


@pytest.mark.parametrize("both", [0.0, 0.1, 0.3])
def test_limits_from_error_rates_hold_whatever_depends_on_what(both):
    """Four outcomes of an example: wrong under both models, the new one, the old one, or neither."""
    n = 10
    outcomes = np.array([each for each in itertools.product(range(n + 1), repeat=3) if sum(each) <= n])
    outcomes = np.column_stack([outcomes, n - outcomes.sum(axis=1)])
    old, new = outcomes[:, 0] + outcomes[:, 2], outcomes[:, 0] + outcomes[:, 1]
    below = rb.ClientChanges(old / n, new / n, n, True).upper_limits(_ETA)
    for worse, better in itertools.product([0.0, 0.1, 0.35], repeat=2):
        chances = multinomial.pmf(outcomes, n, [both, worse, better, 1.0 - both - worse - better])
        assert chances @ (below < worse - better - 1e-12) <= _ETA + 1e-12


OUTCOMES = {n: np.array([(b, c, n - b - c) for b in range(n + 1) for c in range(n + 1 - b)]) for n in (20, 100)}


def share_above(n, rates, threshold):
    """Chance that the limit of a client of these rates is above a threshold, by all outcomes."""
    limits = rb.ClientChanges.from_counts(OUTCOMES[n][:, 0], OUTCOMES[n][:, 1], n).upper_limits(_ETA)
    return float(multinomial.pmf(OUTCOMES[n], n, [*rates, 1.0 - sum(rates)]) @ (limits > threshold))


@pytest.mark.parametrize("num_clients", [5, 10, 20, 50])
def test_the_share_of_harmed_clients_is_false_no_more_often_than_delta_exactly(num_clients):
    """The harmed are just above the threshold, where limits fail most often; the others do not change at all."""
    bounds = []
    for num_above in range(num_clients + 1):  # as many clients that all got worse, and others that all got better
        worse, better = np.repeat([[20, 0], [0, 20]], [num_above, num_clients - num_above], axis=0).T
        found = rb.bound(rb.ClientChanges.from_counts(worse, better, 20), "harmed:0.02", delta=0.05)
        bounds.append(float(found.value))
    rates = []
    for n, share in itertools.product((20, 100), (0.05, 0.3, 0.7)):
        for of_harmed in ((0.021, 0.0), (0.06, 0.03), (0.3, 0.279)):
            above = share * share_above(n, of_harmed, 0.02) + (1.0 - share) * share_above(n, (0.0, 0.0), 0.02)
            rates.append(binom.pmf(np.arange(num_clients + 1), num_clients, above) @ (np.array(bounds) < share))
    assert max(rates) <= 0.05


@pytest.mark.parametrize("num_clients", [20, 50])
def test_a_quantile_of_changes_is_false_no_more_often_than_delta_exactly(num_clients):
    """All clients at or above the quantile are at it, where their limits fail most often, and the others far below."""
    rates = []
    for level in (0.3, 0.5, 0.8):
        bounds = []
        for num_below in range(num_clients + 1):
            worse, better = np.repeat([[0, 20], [20, 0]], [num_below, num_clients - num_below], axis=0).T
            changes = rb.ClientChanges.from_counts(worse, better, 20)
            bounds.append(rb.bound(changes, f"quantile:{level}", delta=0.05).value)
        for n, at in itertools.product((20, 100), ((0.02, 0.0), (0.06, 0.03), (0.3, 0.279))):
            below = level + (1.0 - level) * (1.0 - share_above(n, at, at[0] - at[1] - 1e-12))
            chances = binom.pmf(np.arange(num_clients + 1), num_clients, below)
            rates.append(chances @ (np.array(bounds) < 0.0))
    assert 0.005 < max(rates) <= 0.05


def test_a_share_counts_the_clients_above_and_not_those_at_the_threshold():
    """Two of 100 worse is 0.02, as it is written; a score at the threshold counts, from either end."""
    changes = rb.ClientChanges.from_counts([2, 3, 2, 0], [0, 0, 0, 1], 100)
    found = rb.bound(changes, "harmed:0.02", delta=0.2, sides="two", local="observed")
    assert (found.lower, found.value) == pytest.approx(binomtest(1, 4).proportion_ci(0.8, method="exact"))
    for higher, num_beyond in ((True, 3), (False, 2)):
        scores = rb.ClientScores([0.7, 0.6, 0.3, 0.9], higher)
        found = rb.bound(scores, "share:0.7", delta=0.2, sides="two")
        assert (found.lower, found.value) == pytest.approx(binomtest(num_beyond, 4).proportion_ci(0.8, method="exact"))


@pytest.mark.parametrize("size", [4, 50, 100, 250, 1000])
def test_no_rounding_moves_a_change_across_a_threshold(size):
    for count in range(1, min(size, 40)):
        changes = rb.ClientChanges.from_counts([count, count], [0, 0], size)
        for number, expected in ((count / size, 0.0), ((count - 0.5) / size, 1.0)):
            of_none = rb.bound(changes, f"harmed:{number!r}", delta=0.5, local="observed").value
            assert (of_none == 1.0) == bool(expected), (count, size)
        assert np.all(rb.ClientChanges([0.0] * 2, [count / size] * 2, size).values == count / size)


@pytest.mark.parametrize("num_clients", [5, 30, 60])
def test_quantiles_of_scores_are_order_statistics_from_the_bad_end(num_clients):
    """The rank is the least i with P(Bin(K, level) >= i) <= delta; there may be none, and then nothing is said."""
    values = np.random.default_rng(1).permutation(np.linspace(13.0, 1_300.0, num_clients).round(1))
    for level, higher in itertools.product((0.1, 0.5, 0.9), (True, False)):
        scores = rb.ClientScores(values, higher, name="minutes", low=0.0, high=1440.0)
        found = rb.bound(scores, f"quantile:{level}", delta=0.1, sides="two")
        ends = [0.0, *np.sort(values), 1440.0]
        above = next(i for i in range(1, num_clients + 2) if binom.sf(i - 1, num_clients, level) <= 0.05)
        below = (
            num_clients
            + 1
            - next(i for i in range(1, num_clients + 2) if binom.sf(i - 1, num_clients, 1.0 - level) <= 0.05)
        )
        assert (found.lower, found.value) == (ends[below], ends[above])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1440.0), (-7.3, -1.1), (0.0, 1.0), (1e6, 1e6 + 1.0)])
def test_bounds_are_what_clients_measured_to_the_last_digit(low, high):
    values = low + (high - low) * np.random.default_rng(2).random(40)
    for higher in (True, False):
        scores = rb.ClientScores(values, higher, low=low, high=high)
        found = rb.bound(scores, "quantile:0.5", delta=0.1, sides="two")
        following = rb.next_clients(scores, 5, delta=0.1)
        following = np.asarray(following.lower if higher else following.value)
        assert {found.lower, found.value, *following.tolist()} <= {*values.tolist(), low, high}


def test_a_number_is_what_its_certificate_names_to_the_last_digit():
    """A threshold is written with 15 digits: at .30000000000000004 clients at .3, which the words count, were not."""
    scores = rb.ClientScores([0.3] * 20, False)
    found = rb.bound(scores, "share:0.30000000000000004", delta=0.05)
    assert found.name == "share:0.3"
    assert found.value == 1.0
    assert rb.verify(found.to_dict()) == (True, ())
