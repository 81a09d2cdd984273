"""What is certified of a target network holds on the worst network within the budget, and wrong practices do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

import riskband as rb
from benchmarks.ground_truth import BetaRisks, TwoPointRisks
from riskband.answers.risks import EQUAL_BY_DESIGN
from riskband.bands.local_steps import RANDOM_SIZES
from riskband.betting import KEPT_OF_FIRST, doubt_of_mean, with_another
from riskband.certificate import CrossingError
from riskband.worst_cases.divergence_bounds import bound_by_ranks, next_estimate, rank_test
from riskband.worst_cases.target_networks import adds_nothing, chance_of_so_few
from tests.validity.coverage import ROUNDING, rejected, study

DELTA = 0.2


def two_kinds(num_high, num_clients, *, low=0.1, high=0.5):
    """Answers of clients of two kinds, who measure their risk exactly, sorted: then no bet looks at their order."""
    return rb.ClientRisks(np.repeat([low, high], [num_clients - num_high, num_high]), 10, binary=False)


@pytest.mark.parametrize("name", ["chi2", "kl", "tv", "hellinger2"])
def test_a_lower_bound_of_two_kinds_of_clients_fails_no_more_often_than_delta_exactly(name):
    num_source, num_target, f = 30, 12, rb.DIVERGENCES[name]
    sizes = ((num_source, range(num_source + 1)), (num_target, range(num_target + 1)))
    bands = [[rb.band(two_kinds(k, size), delta=DELTA / 4, local="observed") for k in counts] for size, counts in sizes]
    ranks = {"divergence": f, "delta": DELTA / 2}
    bounds = np.array([[rb.divergence_lower_bound(s, t, **ranks).lower for t in bands[1]] for s in bands[0]])
    answers = two_kinds(3, num_source), two_kinds(11, num_target)
    assert rb.divergence_lower_bound(*answers, divergence=f, delta=DELTA).lower == bounds[3, 11] > 0.02
    for p in (0.05, 0.3, 0.6):
        for q in (p, 0.5, 0.9):
            chances = np.outer(binom.pmf(sizes[0][1], num_source, p), binom.pmf(sizes[1][1], num_target, q))
            truth = float(f.binary(np.array(q), np.array(p)))
            assert chances[bounds > truth + ROUNDING].sum() <= DELTA


@pytest.mark.parametrize("name", ["chi2", "kl", "tv", "hellinger2"])
def test_ranks_bound_a_divergence_falsely_no_more_often_than_delta_exactly(name):
    """Of two kinds; to take the divergence of all clients together for that of one is false 30 times as often."""
    num_source, num_target, f = 30, 12, rb.DIVERGENCES[name]
    counts = range(num_source + 1), range(num_target + 1)
    answers = [[two_kinds(k, size).values for k in each] for each, size in zip(counts, (30, 12), strict=True)]
    p_values = [[rank_test(source, target) for target in answers[1]] for source in answers[0]]
    right, of_all = (
        np.array([[bound_by_ranks(each, f, num_clients=size, delta=DELTA) for each in row] for row in p_values])
        for size in (num_target, 1)
    )
    largest, largest_of_all = 0.0, 0.0
    for p, q in ((0.05, 0.05), (0.3, 0.3), (0.1, 0.4), (0.1, 0.6), (0.3, 0.6), (0.3, 0.8), (0.8, 0.4)):
        truth = float(f.binary(np.array(q), np.array(p))) + ROUNDING
        chances = np.outer(binom.pmf(counts[0], num_source, p), binom.pmf(counts[1], num_target, q))
        largest = max(largest, chances[right > truth].sum())
        largest_of_all = max(largest_of_all, chances[of_all > truth].sum())
    assert 0.0 < largest <= DELTA
    assert largest_of_all > 30 * largest or name == "tv"  # of which no event of probability delta says much


def test_few_clients_show_that_a_network_is_far_where_bands_of_them_show_nothing():
    """Beta(3, 21) and Beta(6, 21), χ² 2.98: ten clients among 60, by ranks and by bands with all of delta."""
    found, by_bands = [], []
    for rng in map(np.random.default_rng, range(10)):
        answers = [
            rb.ClientRisks(rng.binomial(100, rng.beta(a, 21, size)) / 100, 100) for a, size in ((3, 60), (6, 10))
        ]
        found.append(rb.divergence_lower_bound(*answers, divergence="chi2", delta=0.05).lower)
        bands = [rb.band(each, delta=0.025, local="observed") for each in answers]
        by_bands.append(rb.divergence_lower_bound(*bands, divergence="chi2").lower)
    assert np.sum(np.array(found) > 0.0) >= 8
    assert np.sum(np.array(by_bands) > 0.0) <= 3
    assert np.median(found) > 0.03 > 0.0 == np.median(by_bands)
    assert max(found) < 2.98


def worst_share(p, budget):
    return p + np.sqrt(budget * p * (1 - p))  # χ²


def false_means(num_source, num_target, *, p, budget, low=0.1, high=0.5):
    """Exact probability that the bound is below the mean of the worst network: it grows with both numbers of kinds."""
    share = worst_share(p, budget)
    truth, failed, most = low + share * (high - low), 0.0, num_source
    for num_high in range(num_target + 1):
        target = two_kinds(num_high, num_target)

        def is_false(source_high, target=target):
            source = two_kinds(source_high, num_source)
            found = rb.bound((source, target), f"mean@target:chi2:{budget}", delta=DELTA)
            return found.value < truth - ROUNDING

        least = -1  # the largest number in the source with which it is false falls as that in the target grows
        while most > least:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if is_false(middle) else (least, middle - 1)
        failed += binom.pmf(num_high, num_target, share) * binom.cdf(most, num_source, p)
    return failed


def test_two_gamblers_have_together_a_capital_of_mean_at_most_one_exactly():
    """Of clients of risk 0 or 1; where they doubt a larger mean, or saw the same clients, it is above one."""
    p, sizes = 0.2, (40, 7)
    counts = [binom.pmf(range(size + 1), size, p) for size in sizes]

    def together(mean, *, is_twice=False):
        """Mean of the capital of both; or of one gambler and of a second one who saw the same clients."""
        doubts = [[doubt_of_mean(np.arange(n) < k, delta=DELTA)(mean) for k in range(n + 1)] for n in sizes]
        excess, others = np.array(doubts[0]) + np.log(DELTA), np.array(doubts[0 if is_twice else 1])
        found = np.array(
            [[with_another(lambda _, a=a: a, lambda _, b=b: b, DELTA)(mean) for b in others] for a in excess]
        )
        chances = np.diag(counts[0]) if is_twice else np.outer(*counts)
        return float(np.sum(chances * np.exp(found)) / DELTA), float(np.sum(chances[found >= 0.0]))

    mean, failed = together(p)
    assert 0.9 < mean <= 1.0
    assert 0.0 < failed <= DELTA
    assert together(p - 0.05)[0] < mean < 1.0 < together(p + 0.05)[0]
    assert together(p, is_twice=True)[0] > 1.5


def test_two_counts_are_so_small_no_more_often_than_their_chance_says_exactly():
    """Whatever the weights: also where the first network says nothing, and of the better of two weights it is false."""
    for sizes, least in (((40, 6), (0.1, 0.3)), ((25, 9), (0.0, 0.4)), ((60, 4), (0.5, 0.97)), ((30, 30), (0.2, 0.2))):
        counts = [np.arange(size + 1) for size in sizes]
        found = np.array([[chance_of_so_few((k, j), sizes, least, delta=DELTA) for j in counts[1]] for k in counts[0]])
        chances = np.outer(*(binom.pmf(count, size, p) for count, size, p in zip(counts, sizes, least, strict=True)))
        for level in (0.01, DELTA, 0.7):
            assert chances[found <= level].sum() <= level + ROUNDING
        assert np.all(np.diff(found, axis=0) >= -ROUNDING)
        assert np.all(np.diff(found, axis=1) >= -ROUNDING)
        rare = binom.cdf(counts[0], sizes[0], least[0]) <= KEPT_OF_FIRST * DELTA
        assert np.all(found[rare] <= DELTA)  # whatever the second network says
        more = np.outer(*(binom.pmf(c, n, p + 0.02) for c, n, p in zip(counts, sizes, least, strict=True)))
        assert more[found <= DELTA].sum() <= DELTA
    alone = [binom.cdf(counts[i], sizes[i], least[i]) for i in (0, 1)]  # the control: the smaller of two chances
    assert chances[np.minimum.outer(*alone) <= DELTA].sum() > 1.1 * DELTA


@pytest.mark.slow
@pytest.mark.parametrize("family", ["share", "quantile"])
def test_shares_and_quantiles_of_the_worst_network_fail_no_more_often_than_delta_exactly(family):
    """Clients of two kinds that measure exactly; the share of the worse is just above a quantile's tail."""
    p, budget, sizes = 0.06, 0.1, (40, 6) if family == "share" else (90, 6)
    share = worst_share(p, budget)
    level = 1.0 - share + 1e-9
    number = f"{family}:{0.5 if family == 'share' else float(level)!r}@target:chi2:{budget}"
    truth, failed = (share if family == "share" else 0.9), 0.0
    for k in range(sizes[0] + 1):
        for j in range(sizes[1] + 1):
            answers = [two_kinds(count, size, high=0.9) for count, size in zip((k, j), sizes, strict=True)]
            try:
                is_false = float(rb.bound(tuple(answers), number, delta=DELTA).value) < truth - 1e-6
            except CrossingError:  # the truth is within the budget: one of the ends is false
                is_false = True
            if is_false:
                failed += binom.pmf(k, sizes[0], p) * binom.pmf(j, sizes[1], share)
    assert 0.0 < failed <= DELTA


@pytest.mark.parametrize("number", ["share:0.25", "quantile:0.9"])
def test_few_clients_tighten_shares_and_quantiles_beyond_either_network_alone(number):
    law = BetaRisks(3.0, 21.0)

    def typical(num_clients):
        return rb.ClientRisks(np.rint(100 * law.risk_quantile((np.arange(num_clients) + 0.5) / num_clients)) / 100, 100)

    source, few = typical(200), typical(30)

    def bound(budget, target=few):
        return float(rb.bound((source, target), f"{number}@target:chi2:{budget}", delta=0.05).value)

    truth = 0.0492 if "share" in number else law.risk_quantile(np.array(0.9))
    assert truth < bound(0.1) < min(bound(0.1, typical(2)), bound(10.0))  # a far network says nothing of it
    assert bound(0.0) < bound(0.1) < bound(0.3)
    certificate = rb.bound((source, few), f"{number}@target:chi2:0.1", delta=0.05)
    assert certificate.assumptions.count(EQUAL_BY_DESIGN) == 1  # limits are chosen for that number
    unequal = rb.ClientRisks(few.values, np.arange(30) + 100, binary=False)
    assert RANDOM_SIZES in rb.bound((source, unequal), f"{number}@target:chi2:0.1", delta=0.05).assumptions


@pytest.mark.parametrize("number", ["mean", "share:0.3", "quantile:0.9"])
def test_clients_of_a_target_that_is_worse_widen_a_bound_by_no_more_than_a_part_of_delta_does(number):
    values = np.rint(100 * BetaRisks(3.0, 21.0).risk_quantile((np.arange(150) + 0.5) / 150)) / 100
    source, worse = rb.ClientRisks(values, 100), rb.ClientRisks(np.linspace(0.2, 0.35, 8).round(2), 100)
    found, at_part = (rb.bound((source, worse), f"{number}@target:chi2:0.1", delta=d) for d in (0.1, 0.018))
    assert adds_nothing(found)
    assert float(found.details["source_alone"]) <= found.value <= 1.02 * float(at_part.details["source_alone"])
    alike = rb.ClientRisks(values[::5], 100)
    assert not adds_nothing(rb.bound((source, alike), f"{number}@target:chi2:0.1", delta=0.1))
    if number == "mean":
        alone = rb.worst_case_mean(source, divergence="chi2", budget=0.1, delta=0.1).value
        assert float(found.details["source_alone"]) == alone


@pytest.mark.slow
@pytest.mark.parametrize(("num_target", "p", "budget"), [(3, 0.3, 0.1), (6, 0.4, 0.3)])
def test_bounds_on_the_worst_network_of_two_kinds_are_false_no_more_often_than_delta_exactly(num_target, p, budget):
    failed = false_means(50, num_target, p=p, budget=budget)
    assert 0.0 < failed <= DELTA


KINDS = {
    "two kinds": (TwoPointRisks(0.1, 0.6, 0.2), "chi2", 0.2),
    "rare kind": (TwoPointRisks(0.0, 0.9, 0.05), "kl", 0.3),
    "the same network": (TwoPointRisks(0.1, 0.6, 0.4), "chi2", 0.0),
}


@pytest.mark.parametrize("case", KINDS)
@study(slow=200)
def test_bounds_on_the_worst_network_hold(case, num_networks):
    law, name, budget = KINDS[case]
    truth = law.worst_case_mean(name, budget) if budget else law.mean_risk()
    worst = TwoPointRisks(law.low, law.high, (truth - law.low) / (law.high - law.low))
    found = {side: [] for side in ("above", "below")}
    for rng in map(np.random.default_rng, np.random.SeedSequence(17).spawn(num_networks)):
        source, few = (
            rb.ClientRisks(each.draw(rng, num_clients=size, num_examples=20)[1], 20)
            for each, size in ((law, 40), (worst, 8))
        )
        bound = rb.bound((source, few), f"mean@target:{name}:{budget}", delta=DELTA)
        found["above"].append(bound.value < truth - ROUNDING)
        found["below"].append(bound.lower > truth + ROUNDING)
    assert rejected(found, DELTA) == {}


def test_few_clients_tighten_it_and_neither_network_alone_is_sharper_with_its_share():
    law, rng, delta = BetaRisks(3.0, 21.0), np.random.default_rng(5), 0.05
    settings = {"divergence": "chi2", "budget": 0.2, "delta": delta}
    source = rb.ClientRisks(law.draw(rng, num_clients=60, num_examples=50)[1], 50)
    alone = rb.worst_case_mean(source, **settings).value
    for num_target, a in ((10, 3.0), (20, 1.0), (5, 9.0)):
        few = rb.ClientRisks(rng.binomial(50, rng.beta(a, 21, num_target)) / 50, 50)
        both = rb.bound((source, few), "mean@target:chi2:0.2", delta=delta)
        assert (both.value < alone) == (a < 9.0)
        # The target's own bets, made for 90 % of delta, have to earn ten times as much.
        assert doubt_of_mean(few.values, delta=0.9 * delta)(both.value - 1e-6) < np.log(10.0 / (0.9 * delta))
    for first, other in ((1.0 / KEPT_OF_FIRST, 1e-30), (1e-30, 10.0 / delta)):
        excess = with_another(lambda _, first=first: np.log(first), lambda _, other=other: np.log(other), delta)
        assert excess(0.5) == pytest.approx(0.0, abs=1e-9)


def test_the_smaller_of_two_certificates_that_have_all_of_delta_each_fails():
    """Exactly: of 300 and of 40 clients, with exact limits of a share, the target at the edge of the budget."""
    budget, delta, sizes = 0.1, 0.1, (300, 40)
    worst = []
    for part in (delta, delta / 2):
        above, own = (
            np.array(
                [rb.survival(two_kinds(k, n), thresholds=0.5, delta=part, local="observed").value for k in range(n)]
            )
            for n in sizes
        )
        failed = []
        for p in np.linspace(0.18, 0.24, 41):
            q = worst_share(p, budget)
            chances = (
                binom.pmf(range(300), 300, p) @ (worst_share(above, budget) < q),
                binom.pmf(range(40), 40, q) @ (own < q),
            )
            failed.append(1 - (1 - chances[0]) * (1 - chances[1]))
        worst.append(max(failed))
    assert worst[0] > 1.5 * delta
    assert worst[1] <= delta


def test_the_next_estimate_is_bounded_as_often_as_it_says():
    values = np.array([0.3, 0.1, 0.7, 0.2, 0.5, np.inf, 0.4, 0.6, 0.05, 0.9])  # any of ten may be the next one
    for alpha in (0.1, 0.25, 0.5, 0.9):
        held = [next_estimate(np.delete(values, k), alpha=alpha) >= values[k] for k in range(values.size)]
        assert np.mean(held) == np.ceil(values.size * (1 - alpha) - 1e-9) / values.size >= 1 - alpha
    plugged = [np.quantile(np.delete(values, k), 0.9, method="inverted_cdf") >= values[k] for k in range(values.size)]
    assert np.mean(plugged) >= 0.9  # of nine the ninth: no less
    plugged = [np.quantile(np.delete(values, k), 0.75, method="inverted_cdf") >= values[k] for k in range(values.size)]
    assert np.mean(plugged) < 0.75  # not the quantile of those seen


def test_too_few_past_networks_are_refused_with_the_number_needed():
    for alpha, needed in ((0.05, 19), (0.1, 9), (0.3, 3)):
        with pytest.raises(ValueError, match=f"past networks must be {needed} or more"):
            next_estimate(np.ones(needed - 1), alpha=alpha)
        assert next_estimate(np.arange(needed), alpha=alpha) == needed - 1
    for wrong in (-1.0, np.nan):
        with pytest.raises(ValueError, match="estimates must be one number >= 0 for each past network, got"):
            next_estimate([wrong, 0.2], alpha=0.5)
