"""Numbers from counts lie on the right side of what they stand for, by sums over all counts; and laws of the limits."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import cumulative_simpson, simpson
from scipy.stats import beta, binom

import riskband as rb
from riskband.answers.risks import EQUAL_BY_DESIGN
from riskband.functionals import bets, ratios
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import interval_of, resolve
from tests.validity.coverage import BETA, draw_networks

RISKS = np.concatenate([np.geomspace(1e-4, 0.1, 15), np.linspace(0.12, 1.0, 23)])
RATIOS = {
    "generalised_entropy:2": (ratios.power_ratio(2.0), lambda v: np.sqrt(1 + 2 * v)),
    "generalised_entropy:1.5": (ratios.power_ratio(1.5), lambda v: (1 + 0.75 * v) ** (1 / 1.5)),
    "generalised_entropy:2.5": (ratios.power_ratio(2.5), lambda v: (1 + 3.75 * v) ** (1 / 2.5)),
    "generalised_entropy:3": (ratios.power_ratio(3.0), lambda v: (1 + 6 * v) ** (1 / 3)),
    "generalised_entropy:4.5": (ratios.power_ratio(4.5), lambda v: (1 + 15.75 * v) ** (1 / 4.5)),
    "atkinson:0.5": (ratios.root_ratio(0.5), lambda v: v),
    "atkinson:0.9": (ratios.root_ratio(0.1), lambda v: v),
    "theil": (ratios.theil_ratio(), lambda v: v),
    "mean_log_deviation": (ratios.log_ratio(), lambda v: v),
    "top_share:0.1": (ratios.tail_ratio(0.1), lambda v: v),
}
MEASURES = ["gini", "coefficient_of_variation", "theil", "atkinson:0.5", "top_share:0.1"]
ANSWERS = next(draw_networks(BETA, num_networks=1, num_clients=60, sizes=50, seed=1))


def masses(num_examples):
    """P(counts | risk), shape (num_risks, num_examples + 1)."""
    return binom.pmf(np.arange(num_examples + 1), num_examples, RISKS[:, None])


def counts_of(num_examples):
    return ratios.Counts(np.arange(num_examples + 1.0), np.full(num_examples + 1, float(num_examples)))


@pytest.mark.parametrize("name", RATIOS)
def test_a_measure_is_the_least_ratio(name):
    ratio, of_value = RATIOS[name]
    atoms, weights = np.array([0.02, 0.1, 0.11, 0.4, 0.9]), np.array([0.3, 0.3, 0.2, 0.15, 0.05])
    law = RiskDistribution(atoms, np.cumsum(weights))
    points = np.unique(np.concatenate([np.geomspace(1e-3, 1.0, 6_001), atoms]))
    means = [np.sum(weights * ratio.above(point, atoms)) for point in points]
    assert min(means) / np.sum(weights * ratio.base(atoms)) == pytest.approx(
        of_value(resolve(name).value(law)), rel=1e-5
    )


@pytest.mark.parametrize("num_examples", [1, 2, 3, 5, 9, 10, 20, 100])
@pytest.mark.parametrize("name", RATIOS)
def test_numbers_from_counts_are_below_what_they_stand_for(name, num_examples):
    ratio, _ = RATIOS[name]
    for low, high in [*pairwise(ratio.points[::6]), (0.1, 0.11), (0.3, 0.30001)]:
        cell = ratio.below(counts_of(num_examples))(max(low, 1e-3 * (ratio.largest_mean is not None)), high)
        for ends in ((low, high), (low, low), (high, high), (0.5 * (low + high), high)):
            mean = masses(num_examples) @ cell.at_least(*ends)
            for point in np.linspace(*ends, 4):
                truth = ratio.above(point, RISKS)
                assert np.all(mean <= truth + 1e-9 * (1 + np.abs(truth))), (ends, point)


@pytest.mark.parametrize(("num_examples", "part"), [(9, 1.0), (10, 0.98), (20, 0.9), (100, 0.2)])
@pytest.mark.parametrize("name", ["theil", "atkinson:0.5", "atkinson:0.9", "generalised_entropy:1.5"])
def test_power_series_are_above_what_they_stand_for_and_nearer_than_measured_risks(name, num_examples, part):
    ratio, _ = RATIOS[name]
    counts = counts_of(num_examples)
    numbers = ratio.of_counts(counts)
    for point in (0.001, 0.1, 0.7):
        mean, plain = (masses(num_examples) @ each for each in (numbers(point), ratio.above(point, counts.risks)))
        truth = ratio.above(point, RISKS)
        assert np.all(mean >= truth - 1e-9 * (1 + np.abs(truth)))
        inner = (RISKS > 0.1) & (RISKS < 0.95)
        assert np.max((mean - truth)[inner]) <= part * np.max((plain - truth)[inner]) + 1e-12


@pytest.mark.parametrize("num_examples", [2, 3, 20, 100, 2_000])
def test_tangents_of_the_gini_coefficient_have_the_mean_they_stand_for(num_examples):
    """E|r - Y| - E|Y - Y'|/2 by quadrature of the CDF of a mixture of betas, which is at least E|R - R'|/2."""
    degree = min(num_examples, ratios._DEGREE)
    risks = rb.ClientRisks(np.arange(num_examples + 1) / num_examples, num_examples)
    game = ratios._Tangents.of(risks)
    seen = np.random.default_rng(0).multinomial(40, np.full(num_examples + 1, 1 / (num_examples + 1)), size=2)
    seen[1] = 0
    seen[1, num_examples // 10] = 7
    found = game.at(seen, 100, 0.05)
    total = ratios._START + seen.sum(axis=1)
    mixtures = game._mixture(seen, total, (ratios._START / 2 + seen @ game.kinds) / total)
    x = np.linspace(0.0, 1.0, 2_001)
    atoms = np.array([0.05, 0.1, 0.3, 0.9])
    for mixture, numbers, size, foreseen in zip(mixtures, found.numbers, found.sizes, found.foreseen, strict=True):
        assert mixture.min() >= 0.0
        assert mixture.sum() == pytest.approx(1.0)
        k = np.arange(degree - 1)[:, None]
        cdf = mixture @ beta.cdf(x, k + 1, degree - 1 - k)
        below, above = (cumulative_simpson(each, x=x, initial=0.0) for each in (cdf, 1.0 - cdf))
        distance = np.interp(RISKS, x, below + above[-1] - above)
        truth = distance - simpson(cdf * (1.0 - cdf), x=x)
        assert masses(num_examples) @ numbers == pytest.approx(truth, abs=2e-6)
        at_atoms = np.interp(atoms, RISKS, masses(num_examples) @ numbers)
        assert at_atoms.mean() >= np.abs(atoms[:, None] - atoms).mean() / 2 - 1e-5
        assert size * np.max(numbers - foreseen * game.kinds) <= 0.99 + 1e-9


def test_numbers_from_counts_come_near_what_they_stand_for():
    for name in ("theil", "atkinson:0.5", "generalised_entropy:3"):
        ratio, _ = RATIOS[name]
        mean = masses(100) @ ratio.below(counts_of(100))(0.1, 0.11).at_least(0.105, 0.105)
        plain = masses(100) @ ratio.above(0.105, np.arange(101) / 100)
        truth = ratio.above(0.105, RISKS)
        inner = (RISKS > 0.1) & (RISKS < 0.95)
        assert np.max((truth - mean)[inner]) < 0.2 * np.max((plain - truth)[inner])


@pytest.mark.parametrize("sizes", [(1, 1), (5, 5), (20, 20), (5, 20), (1, 7)])
def test_numbers_of_pairs_are_below_the_distance(sizes):
    first, second = np.meshgrid(*(np.arange(size + 1) for size in sizes), indexing="ij")
    values = np.concatenate([first.ravel() / sizes[0], second.ravel() / sizes[1]])
    risks = rb.ClientRisks(values, np.repeat(sizes, first.size), binary=True)
    at = np.arange(first.size)
    numbers = bets._surely_apart(risks, at, at + first.size).reshape(first.shape)
    means = masses(sizes[0]) @ numbers @ masses(sizes[1]).T
    assert np.all(means <= np.abs(RISKS[:, None] - RISKS) + 1e-12)
    for value in (0.0, 0.2, 0.6, 1.0):
        limit = bets._apart_limit(rb.ClientRisks([0.0, 1.0], sizes, binary=True))(value)
        assert np.max(value * (first / sizes[0] + second / sizes[1]) - numbers) <= limit + 1e-12


@pytest.mark.parametrize("size", [8, 20, 100])
def test_quartics_of_pairs_are_below_the_distance_and_nearer_than_signs(size):
    numbers, count = ratios.surely_apart(size), np.arange(size + 1)
    distance = np.abs(RISKS[:, None] - RISKS)
    below = distance - masses(size) @ numbers @ masses(size).T
    assert np.min(below) >= -1e-12
    limit = bets._limit_of_table(numbers)
    for value in (0.0, 0.3, 1.0):
        assert limit(value) == pytest.approx(np.max(value * np.add.outer(count, count) / size - numbers), abs=1e-12)
    # Clients at risks evenly between .2 and .6: what is lost of their mean distance.
    risks = rb.ClientRisks(np.tile(count / size, 2), size)
    first, second = np.meshgrid(count, count + size + 1, indexing="ij")
    law = binom.pmf(count, size, np.linspace(0.2, 0.6, 401)[:, None]).mean(axis=0)
    lost = [
        law @ (np.abs(count[:, None] - count) / size - each) @ law
        for each in (numbers, bets._surely_apart(risks, first, second))
    ]
    noise = law @ np.abs(count[:, None] - count) @ law / size - 0.4 / 3.0
    assert size < 100 or lost[0] - noise < 0.8 * (lost[1] - noise)


@pytest.mark.parametrize("size", [5, 20, 100])
def test_late_tails_are_above_what_they_stand_for(size):
    ratio, counts = RATIOS["top_share:0.1"][0], counts_of(size)
    numbers_at = ratio.of_counts(counts)
    is_nearer = []
    for point in ratio.points[::2]:
        mean, truth = masses(size) @ numbers_at(point), ratio.above(point, RISKS)
        assert np.all(mean >= truth - 1e-9), point
        is_nearer.append(np.any(mean < masses(size) @ ratio.above(point, counts.risks) - 1e-3))
    assert np.any(is_nearer)


@pytest.mark.parametrize("name", ["theil", "top_share:0.1", "generalised_entropy:2", "atkinson:0.5"])
def test_no_bet_can_lose_everything(name):
    risks = rb.ClientRisks(np.arange(31) % 11 / 10, 10)
    orders = bets.played_orders(risks, num_played=2_000, most=5)
    game = ratios._Below(RATIOS[name][0], risks, orders, 0.05)
    possible = ratios._possible_counts(risks)
    base = game.ratio.base(possible.risks)
    for gambler in game.gamblers[::5]:
        least = game.ratio.below(possible)(gambler.low, gambler.high).at_least(gambler.low, gambler.high)
        worst = np.min(least[:, None] - base[:, None] * gambler.foreseen.ravel(), axis=0)
        assert np.min(gambler.bets.ravel() * worst) >= -0.99 - 1e-9


def test_no_bet_on_a_top_share_can_lose_everything_by_any_of_many_counts():
    """Numbers jump from one count to the next: those of 2,000 counts did not show how much could be lost."""
    size = 3_000
    risks = rb.ClientRisks(np.full(300, 0.4), size)
    game = ratios._Below(RATIOS["top_share:0.1"][0], risks, bets.played_orders(risks, num_played=600, most=2), 0.05)
    for gambler in game.gamblers[::8]:
        least = game.ratio.below(counts_of(size))(gambler.low, gambler.high).at_least(gambler.low, gambler.high)
        for value, bet in zip(gambler.foreseen[0, ::30], gambler.bets[0, ::30], strict=True):
            assert bet * np.min(least - counts_of(size).risks * value) >= -0.99 - 1e-9


@pytest.mark.parametrize("name", MEASURES)
def test_laws_of_limits_from_answers(name):
    lower, upper = interval_of(ANSWERS, name, delta=0.1)
    low, high = resolve(name).range
    assert low <= lower <= rb.measured_dispersion(ANSWERS, name) <= upper <= high
    wider = interval_of(ANSWERS, name, delta=0.02)
    assert wider.lower <= lower
    assert upper <= wider.upper
    certificate = rb.dispersion_certificate(ANSWERS, name, delta=0.1)
    assert (certificate.lower, certificate.value, certificate.method) == (lower, upper, "betting")
    assert f"measure {resolve(name).name}" in certificate.assumptions[-2]
    assert rb.verify(json.loads(certificate.to_json())).ok


def test_what_bets_are_not_known_for_is_read_off_a_band():
    band = rb.band(ANSWERS, delta=0.1)
    assert interval_of(ANSWERS, "hoover", delta=0.1) == interval_of(band, "hoover", method="convex_order")
    certificate = rb.dispersion_certificate(ANSWERS, "hoover", delta=0.1)
    assert certificate.method == "convex_order bound from the berk_jones band"
    assert rb.verify(certificate).ok
    bounded = rb.ClientRisks(ANSWERS.values * 0.999, ANSWERS.num_examples, binary=False)
    certificate = rb.dispersion_certificate(bounded, "gini", delta=0.1)
    assert certificate.method == "betting above, convex_order bound from the berk_jones band below"
    assert rb.verify(certificate).ok
    assert rb.dispersion_certificate(bounded, "coefficient_of_variation", delta=0.1).method == "betting"


def test_what_answers_cannot_give_is_refused():
    for wrong, words in (
        ({"num_missing": 1, "missing": "worst"}, "missing='worst'"),
        ({"contamination": 1}, "contamination=1"),
        ({"noise": "laplace:1"}, "noise"),
    ):
        with pytest.raises(ValueError, match=words):
            interval_of(rb.ClientRisks([0.1, 0.2, 0.3], 10, **wrong), "gini", delta=0.1)
    with pytest.raises(ValueError, match="delta must be given"):
        interval_of(ANSWERS, "gini")
    with pytest.raises(ValueError, match="must be 'betting' with answers"):
        interval_of(ANSWERS, "gini", delta=0.1, method="sharp")
    with pytest.raises(ValueError, match="delta must be left out"):
        interval_of(rb.band(ANSWERS, delta=0.1), "gini", delta=0.1)
    with pytest.raises(ValueError, match="cannot be bounded"):
        rb.dispersion_certificate(rb.ClientRisks([0.0, 0.0, 0.0], 10), "theil", delta=0.1)


@pytest.mark.parametrize("name", ["mean", "gini", "cvar:0.9", "quantile"])
def test_a_weight_of_ones_own_is_never_taken_for_the_functional_of_its_name(name):
    weight = rb.QuantileWeight.from_density(np.polynomial.Polynomial([0, 0, 0, 4]), name=name)
    other = rb.QuantileWeight(name="of another name", cumulative=weight.cumulative)
    assert interval_of(ANSWERS, weight, delta=0.1) == interval_of(ANSWERS, other, delta=0.1)


@pytest.mark.parametrize(
    ("measure", "assumed"),
    [("mean", False), ("gini", True), ("theil", True), ("share:0.3", True), ("quantile:0.8", True)],
)
def test_certificates_from_answers_say_what_they_assume_of_the_numbers_of_examples(measure, assumed):
    certificate = rb.dispersion_certificate(ANSWERS, measure, delta=0.1)
    assert (EQUAL_BY_DESIGN in certificate.assumptions) == assumed


@pytest.mark.parametrize(
    "name", ["generalised_entropy:1.000001", "generalised_entropy:500", "atkinson:0.01", "top_share:0.002"]
)
def test_where_a_band_is_sharper_it_is_read(name):
    band = rb.band(ANSWERS, delta=0.1)
    assert interval_of(ANSWERS, name, delta=0.1) == interval_of(band, name, method="convex_order")


@pytest.mark.parametrize("measure", ["gini", "theil"])
def test_very_many_examples_per_client_need_no_table_of_all_counts(measure):
    tracemalloc.start()
    found = interval_of(rb.ClientRisks([0.25, 0.5, 0.75, 0.5] * 8, 10**9, binary=True), measure, delta=0.2)
    assert tracemalloc.get_traced_memory()[1] < 300e6
    tracemalloc.stop()
    assert 0.0 <= found.lower < resolve(measure).value(RiskDistribution.of_values([0.25, 0.5, 0.5, 0.75])) < found.upper
