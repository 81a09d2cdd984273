"""Coverage studies: draw networks from a known law, count certificates that the truth exceeds, test the count.

The test is one-sided and exact: a certificate whose failure probability is at most delta is wrongly rejected with
probability at most `FALSE_ALARM`. Seeds are fixed, so a test that passes once passes always.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import betabinom, binom

import riskband as rb
from benchmarks.ground_truth import BetaRisks, ContinuousLossRisks, TwoPointRisks

FALSE_ALARM = 1e-4
ROUNDING = 1e-9  # of searches and quadratures; far below any visible violation

BETA = BetaRisks(3.0, 21.0)
TWO_POINTS = TwoPointRisks(0.1, 0.4, 0.3)
CONTINUOUS = ContinuousLossRisks(2.0, 6.0)


def study(default=None, *, slow=None):
    """Draw so many networks in the default suite, and so many in the slow one.

    False alarms are as rare with any number; what grows is the power. At delta = 0.2, a certificate that fails three
    times as often is rejected with probability 0.997 by 60 networks, one that fails twice as often with 0.76 by 100 and
    0.99 by 200; 30 see it with 0.1, and are no study. By default there are exact sums (`test_exact_scan`), and of
    negative controls as many networks as still reject.
    """
    sizes = [] if default is None else [default]
    return pytest.mark.parametrize(
        "num_networks", sizes if slow is None else [*sizes, pytest.param(slow, marks=pytest.mark.slow)]
    )


def is_rejected(failures, delta):
    """Whether so many failures would happen with probability below FALSE_ALARM if each had probability delta."""
    failures = np.asarray(failures, dtype=bool)
    return bool(binom.sf(failures.sum() - 1, failures.size, delta) < FALSE_ALARM)


def rejected(failures_by_case, delta):
    """Cases whose failures reject the certificate, with their failure rates; empty if all is well."""
    return {case: np.mean(f) for case, f in failures_by_case.items() if is_rejected(f, delta)}


def draw_networks(law, *, num_networks, num_clients, sizes, seed):
    """Answers of fresh networks, one after the other.

    `sizes` is a number of examples, "unequal" (drawn with the client, unrelated to its risk) or "dependent" (clients
    of high risk have few examples).
    """
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        if sizes == "dependent":
            true_risks, _ = law.draw(rng, num_clients=num_clients, num_examples=1)
            counts = np.where(true_risks > law.mean_risk(), 15, 150)
            values = rng.binomial(counts, true_risks) / counts
        else:
            counts = rng.integers(10, 200, num_clients) if sizes == "unequal" else np.full(num_clients, sizes)
            _, values = law.draw(rng, num_clients=num_clients, num_examples=counts)
        yield rb.ClientRisks(values, counts, binary=not isinstance(law, ContinuousLossRisks))


def failures(networks, fails):
    """By case, of each network whether the case fails: `fails` says it of one network."""
    found = {}
    for network in networks:
        for case, is_failure in fails(network).items():
            found.setdefault(case, []).append(is_failure)
    return found


def failures_of(fails):
    """`failures` of networks that are drawn from a law: `fails(risks, law, **settings)` says it of one of them."""

    def found(law, *, num_networks, num_clients, sizes, seed, **settings):
        drawn = draw_networks(law, num_networks=num_networks, num_clients=num_clients, sizes=sizes, seed=seed)
        return failures(drawn, lambda risks: fails(risks, law, **settings))

    return found


@dataclass(frozen=True)
class ObservedLaw:
    """The law of empirical risks of zero-one losses on `num_examples` examples, exactly."""

    law: BetaRisks | TwoPointRisks
    num_examples: int

    @property
    def masses(self):
        wrong, n = np.arange(self.num_examples + 1), self.num_examples
        if isinstance(self.law, TwoPointRisks):
            low, high = (binom.pmf(wrong, n, risk) for risk in (self.law.low, self.law.high))
            return (1.0 - self.law.weight) * low + self.law.weight * high
        return betabinom.pmf(wrong, n, self.law.a, self.law.b)

    def risk_cdf(self, x):
        wrong = np.floor(np.asarray(x) * self.num_examples + 1e-9).astype(int)
        return np.append(np.cumsum(self.masses), 0.0)[wrong]

    def survival(self, x):
        fewer = np.ceil(np.asarray(x) * self.num_examples - 1e-9).astype(int)
        return 1.0 - np.concatenate([[0.0], np.cumsum(self.masses)])[fewer]


def leaves(band, law):
    """Whether the CDF of the law leaves the band anywhere: only the knots can be worst, so this is exact."""
    is_below = np.any(band.lower_levels > law.risk_cdf(band.lower_points) + ROUNDING)
    is_above = np.any(1.0 - law.survival(band.upper_points) > band.upper_levels + ROUNDING)
    return bool(is_below or is_above)


THRESHOLDS = np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
LEVELS = np.array([0.1, 0.5, 0.69, 0.71, 0.9, 0.99])
BUDGETS = np.array([0.0, 0.02, 0.1, 0.4])


@cache
def true_worst_case_mean(law, divergence, budget):
    if divergence == "hellinger2":
        return hellinger_worst_case_mean(law, budget)
    return law.worst_case_mean(divergence, budget)


@cache
def true_worst_case_survival(law, divergence, budget):
    if divergence != "hellinger2":
        return law.worst_case_survival(THRESHOLDS, divergence, budget)
    return np.array([hellinger_worst_event(float(p), budget) for p in law.survival(THRESHOLDS)])


@cache
def true_cvar(law, level):
    """Rockafellar's formula at the quantile, with the excess as an integral of the survival function."""
    cut = float(law.risk_quantile(level))
    points = [point for point in law.breaks if cut < point < 1.0]
    return cut + quad(lambda x: float(law.survival(x)), cut, 1.0, points=points or None, limit=200)[0] / (1.0 - level)


def hellinger_worst_event(p, budget):
    """max q with (sqrt(q) - sqrt(p))² + (sqrt(1-q) - sqrt(1-p))² <= budget, by root finding."""
    if budget == 0.0 or p in (0.0, 1.0):
        return p

    def excess(q):
        return (np.sqrt(q) - np.sqrt(p)) ** 2 + (np.sqrt(1 - q) - np.sqrt(1 - p)) ** 2 - budget

    return 1.0 if excess(1.0) <= 0 else brentq(excess, p, 1.0)


def hellinger_worst_case_mean(law, budget):
    """For Beta risks: the optimal density ratio is (s / (1 - R))², and what is missing to 1 goes to risk 1."""
    if budget == 0.0:
        return law.mean_risk()
    first = (law.a + law.b - 1) / (law.b - 1)  # E 1/(1 - R)
    second = first * (law.a + law.b - 2) / (law.b - 2)  # E 1/(1 - R)²
    scale = (1 - budget / 2) / first  # from 2 - 2 E sqrt(ratio) = budget
    new_mass = 1 - scale**2 * second
    assert new_mass > 0  # a smaller budget has another optimum
    return scale**2 * (second - first) + new_mass


def is_exceeded(band, law, *, divergences=("kl", "chi2")):
    """Whether the truth exceeds any certificate of the band: all of them share one event, so any counts as failure."""
    checks = [
        rb.survival(band, thresholds=THRESHOLDS).value - law.survival(THRESHOLDS),
        rb.quantile(band, level=LEVELS).value - law.risk_quantile(LEVELS),
        [rb.mean(band).value - law.mean_risk()],
        [rb.cvar(band, level=level).value - true_cvar(law, level) for level in (0.5, 0.9)],
    ]
    for divergence in divergences:
        means = [true_worst_case_mean(law, divergence, budget) for budget in BUDGETS.tolist()]
        checks.append(rb.worst_case_mean(band, divergence=divergence, budget=BUDGETS).value - means)
        curves = np.array([true_worst_case_survival(law, divergence, budget) for budget in BUDGETS.tolist()])
        found = rb.worst_case_cdf(band, divergence=divergence, budget=BUDGETS, thresholds=THRESHOLDS)
        checks.append((found.value - curves).ravel())
    return bool(np.min(np.concatenate(checks)) < -1e-7)
