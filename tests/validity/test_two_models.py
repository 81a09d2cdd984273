"""Bounds on changes between two models, and on scores, in networks whose truth is known; and what is false instead."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import binomtest, multinomial

import riskband as rb
from benchmarks.comparison import is_prediction_false, prediction_interval
from riskband.functionals.functional import interval_of
from tests.validity.coverage import failures, is_rejected, rejected, study
from tests.validity.test_next_clients import SHARES, false_share

DELTA = 0.2
SIZES = (5, 10, 20, 50)


class Kinds(NamedTuple):
    """Kinds of clients: how frequent each is, its chances that an example gets worse and better, and its examples."""

    weights: np.ndarray
    worse: np.ndarray
    better: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, *kinds):
        return cls(*(np.array(each) for each in zip(*kinds, strict=True)))

    @property
    def changes(self):
        return self.worse - self.better

    @property
    def measured(self):
        """What unseen clients measure, as atoms and their masses."""
        atoms, masses = [], []
        for weight, worse, better, size in zip(*self, strict=True):
            outcomes = np.array([(b, c, size - b - c) for b in range(size + 1) for c in range(size + 1 - b)])
            atoms.append((outcomes[:, 0] - outcomes[:, 1]) / size)
            masses.append(weight * multinomial.pmf(outcomes, size, [worse, better, 1.0 - worse - better]))
        return np.concatenate(atoms), np.concatenate(masses)

    def draw(self, rng, num_clients):
        kind = rng.choice(self.weights.size, num_clients, p=self.weights)
        size, worse, better = self.sizes[kind], self.worse[kind], self.better[kind]
        got_worse = rng.binomial(size, worse)
        return rb.ClientChanges.from_counts(got_worse, rng.binomial(size - got_worse, better / (1.0 - worse)), size)


_SKEWED = np.arange(1, 21) / 21
LAWS = {
    "two points": Kinds.of((0.7, 0.0, 0.1, 30), (0.3, 0.3, 0.02, 30)),
    "tied": Kinds.of((0.5, 0.02, 0.02, 5), (0.5, 0.021, 0.0, 5)),
    "skewed": Kinds.of(*((0.05, 0.5 * each**6, 0.1 * each, 20) for each in _SKEWED.tolist())),
    "few examples where it gets worse": Kinds.of((0.8, 0.0, 0.05, 40), (0.2, 0.25, 0.0, 8)),
}
NUMBERS = [
    ("change", "marginal"),
    *product(("quantile:0.8", "quantile:0.3", "harmed:0.02", "harmed:-0.05"), ("marginal", "observed")),
]


def quantile_ends(atoms, masses, level):
    """All quantiles of a discrete law at a level, rounding allowed for."""
    order = np.argsort(atoms, kind="stable")
    below = np.cumsum(masses[order])
    return tuple(float(atoms[order][np.searchsorted(below, level + e).clip(max=order.size - 1)]) for e in (-1e-9, 1e-9))


@cache
def truths(law):
    """The smallest and the largest value that each number may be said to have."""
    kinds, found = LAWS[law], {}
    for number, local in NUMBERS:
        atoms, masses = (kinds.changes, kinds.weights) if local == "marginal" else kinds.measured
        family, _, point = number.partition(":")
        if family == "change":
            found[number, local] = (float(kinds.weights @ kinds.changes),) * 2
        elif family == "harmed":
            found[number, local] = (float(masses @ (atoms > float(point) + 1e-12)),) * 2
        else:
            found[number, local] = quantile_ends(atoms, masses, float(point))
    return found


def fails(changes, law):
    found = {}
    for (number, local), (low, high) in truths(law).items():
        made = rb.bound(changes, number, delta=DELTA, sides="two", local=local)
        found[number, local, "above"] = made.value < high - 1e-9
        found[number, local, "below"] = made.lower > low + 1e-9
    return found


@study(slow=150)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("num_clients", SIZES)
def test_changes(num_clients, law, num_networks):
    """Each end has half of delta. A correct bound is rejected with probability 1e-4."""
    rng = np.random.default_rng(21)
    networks = (LAWS[law].draw(rng, num_clients) for _ in range(num_networks))
    assert rejected(failures(networks, lambda changes: fails(changes, law)), DELTA / 2) == {}


def doubtful(rng, num_clients):
    """Two answers are wrong, in the way that hides most, and two clients that did worst gave none."""
    kinds = LAWS["two points"]
    changes = kinds.draw(rng, num_clients + 2)
    order = np.argsort(changes.values)
    kept = order[:-2]
    worse, better, size = (
        np.array(each)[kept] for each in (changes.num_worse, changes.num_better, changes.num_examples)
    )
    worse[-2:], better[-2:] = 0, size[-2:]
    return rb.ClientChanges.from_counts(worse, better, size, num_missing=2, missing="worst", contamination=2)


def test_changes_of_which_some_are_wrong_and_some_missing():
    rng = np.random.default_rng(22)
    networks = (doubtful(rng, 18) for _ in range(25))
    assert rejected(failures(networks, lambda changes: fails(changes, "two points")), DELTA / 2) == {}


ATOMS, MASSES = np.array([0.2, 0.5, 0.61, 0.62, 0.9]), np.array([0.05, 0.15, 0.3, 0.3, 0.2])
SCORES = {
    "mean": (float(ATOMS @ MASSES),) * 2,
    "quantile:0.2": (0.5, 0.61),  # a fifth is at .5 or below: all numbers between are quantiles
    "quantile:0.9": (0.9, 0.9),
    **{f"share:{at}": {True: (below, below), False: (above, above)} for at, below, above in ((0.61, 0.5, 0.8),)},
}


@study(slow=200)
@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("num_clients", SIZES)
def test_scores(num_clients, higher, num_networks):
    def fails(values):
        scores, found = rb.ClientScores(values, higher), {}
        for number, known in SCORES.items():
            low, high = known[higher] if isinstance(known, dict) else known
            made = rb.bound(scores, number, delta=DELTA, sides="two")
            found[number] = made.value < high - 1e-9, made.lower > low + 1e-9
        return {(number, end): each[end] for number, each in found.items() for end in (0, 1)}

    rng = np.random.default_rng(23)
    networks = (rng.choice(ATOMS, num_clients, p=MASSES) for _ in range(num_networks))
    assert rejected(failures(networks, fails), DELTA / 2) == {}


def next_bounds(bad, *, of, num_next, **arguments):
    """Bounds on the next clients' numbers, and what a bad one measures, where so many of those asked are bad."""
    if of == "changes":
        worse, better = np.where(bad, 3, 0), np.where(bad, 0, 3)
        answers, worst = rb.ClientChanges.from_counts(worse, better, 10), 0.3
    else:
        worst = -5.0 if of == "higher" else 2.0
        answers = rb.ClientScores(np.where(bad, worst, -1.5), of == "higher", low=-5.0, high=2.0)
    found = rb.next_clients(answers, num_next, delta=DELTA, **arguments)
    return np.asarray(found.value if found.lower is None else found.lower), worst


@pytest.mark.parametrize("of", ["changes", "higher", "lower"])
@pytest.mark.parametrize(("num_seen", "num_next"), list(product(SIZES, (1, 5))))
def test_next_clients_of_two_kinds_exactly(num_seen, num_next, of):
    """Without a shift, and in the network within each of two budgets that has the most bad clients."""
    for budget in (0.0, 0.05, 0.2):
        allowed = []
        for num_bad in range(num_seen + 1):
            shift = {"divergence": "chi2", "budget": budget} if budget else {}
            bounds, worst = next_bounds(np.arange(num_seen) < num_bad, of=of, num_next=num_next, **shift)
            allowed.append(int(np.sum(bounds <= worst if of == "higher" else bounds >= worst)))
        shares = rb.binary_worst_case(SHARES, divergence="chi2", budget=budget)
        chances = [
            false_share(np.array(allowed), num_seen, num_next, *each) for each in zip(SHARES, shares, strict=True)
        ]
        assert max(chances) <= DELTA


# Known mistakes, which the same tests must reject.


def test_a_next_client_that_was_picked_for_its_change_is_not_the_next_one():
    """The worst of five that could be next, as if it were the only one."""
    rng, chosen, fresh = np.random.default_rng(24), [], []
    for _ in range(100):
        drawn = rng.binomial(1_000, 0.2 + 0.2 * rng.random(25))
        changes = rb.ClientChanges.from_counts(drawn[:20], np.zeros(20), 1_000)
        bound = rb.next_clients(changes, 1, delta=DELTA).value
        chosen.append(drawn[20:].max() / 1_000 > bound)
        fresh.append(drawn[20] / 1_000 > bound)
    assert is_rejected(chosen, DELTA)
    assert not is_rejected(fresh, DELTA)


def test_the_old_model_as_it_was_measured_is_not_its_mean():
    """Certified of the new model, and measured of the old one: false in 37 %. From both ends of both it is wide."""
    rng, mixed, unpaired, paired = np.random.default_rng(25), [], [], []
    for _ in range(40):
        before = np.where(rng.random(500) < 0.5, 0.0, 0.8)
        old = rb.ClientRisks(rng.binomial(200, before) / 200, 200, True)
        new = rb.ClientRisks(rng.binomial(200, 0.4, 500) / 200, 200, True)  # the mean change is 0
        (_, above), (below, _) = (interval_of(each, "mean", delta=2 * 0.05) for each in (new, old))
        mixed.append(above - old.values.mean() < 0.0)
        (_, above), (below, _) = (interval_of(each, "mean", delta=0.05) for each in (new, old))
        unpaired.append(above - below < 0.0)
        paired.append(rb.bound(rb.ClientChanges.between(old, new), "change", delta=0.05).value < 0.0)
    assert is_rejected(mixed, 0.05)
    assert np.mean(mixed) > 0.25
    assert not is_rejected(unpaired, 0.05)
    assert not is_rejected(paired, 0.05)


def test_examples_of_all_clients_in_one_pot_are_not_a_sample_of_networks():
    """McNemar's exact test: half of all clients get .1 worse, half better, and "better on the whole" in 37 %."""
    rng, mcnemar, certified = np.random.default_rng(26), [], []
    for _ in range(60):
        harmed = rng.random(20) < 0.5
        worse, better = (rng.binomial(500, np.where(each, 0.12, 0.02)) for each in (harmed, ~harmed))
        both = int(worse.sum() + better.sum())
        mcnemar.append(binomtest(int(worse.sum()), both, alternative="less").pvalue <= 0.05)
        changes = rb.ClientChanges.from_counts(worse, better, 500)
        certified.append(rb.require(changes, "change<=-0.0001", delta=0.05).verdict == "PASS")
    assert np.mean(mcnemar) == pytest.approx(0.37, abs=0.15)
    assert is_rejected(mcnemar, 0.05)
    assert not is_rejected(certified, 0.05)


def test_a_random_effects_prediction_interval_misses_the_next_client_too_often():
    """A tenth of all clients gets worse by .2: the interval of DerSimonian and Laird misses one in ten, not in 20."""
    missed = [is_prediction_false(50, seed=seed) for seed in range(1_500)]
    assert is_rejected(missed, 0.05)
    assert np.mean(missed) == pytest.approx(0.11, abs=0.03)


def test_that_interval_holds_where_changes_are_normal():
    """So it is the formula that its authors mean: the quantile, and the spread between clients, are right."""
    rng, missed = np.random.default_rng(27), []
    for _ in range(1_000):
        true = rng.normal(0.0, 0.1, 51)
        low, high = prediction_interval(rng.normal(true[1:], 0.05), np.full(50, 0.05**2))
        missed.append(not low <= true[0] <= high)
    assert np.mean(missed) == pytest.approx(0.05, abs=0.02)


def test_limits_at_eta_without_its_price():
    """Counting the limits above a threshold bounds the share of harmed clients only after division by 1 - eta."""
    rng, forgotten, divided = np.random.default_rng(28), [], []
    for _ in range(60):
        worse = rng.binomial(1_000, np.where(rng.random(100) < 0.9, 0.0205, 0.0))
        changes = rb.ClientChanges.from_counts(worse, np.zeros(100), 1_000)
        found = rb.bound(changes, "harmed:0.02", delta=DELTA).value
        divided.append(found < 0.9)
        forgotten.append(0.8 * found < 0.9)
    assert is_rejected(forgotten, DELTA)
    assert not is_rejected(divided, DELTA)
