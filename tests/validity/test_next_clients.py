"""What the next clients measure is above its bounds no more often than delta: exact sums, and simulated networks."""

from __future__ import annotations

from itertools import combinations, permutations
from math import comb

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import betabinom, binom, hypergeom

import riskband as rb
from riskband.betting import log_ratio_of_drawing, others_upper_mean
from riskband.worst_cases.next_clients import most_above
from tests.validity.coverage import BETA, ROUNDING, is_rejected

LOW, HIGH = 0.1, 0.4
SIZES = [(num_seen, num_next) for num_seen in (5, 10, 20, 50) for num_next in (1, 5, 20)]
SHIFTS = [None, ("chi2", 0.05), ("kl", 0.2)]
DELTA = 0.2


def next_clients(values, num_next, shift=None, **arguments):
    answers = rb.ClientRisks(values, 10, binary=False)
    named = {} if shift is None else {"divergence": shift[0], "budget": shift[1]}
    return rb.next_clients(answers, num_next, **{"delta": DELTA} | arguments, **named)


def allowed_high(num_seen, num_next, shift=None, **arguments):
    """For each number of bad clients among those seen, how many bad ones the bounds allow among the next."""
    found = []
    for num_high in range(num_seen + 1):
        values = np.repeat([HIGH, LOW], [num_high, num_seen - num_high])
        bounds = np.atleast_1d(next_clients(values, num_next, shift, **arguments).value)
        found.append(int(np.sum(bounds >= HIGH)))
    return np.array(found)


def false_share(allowed, num_seen, num_next, share, worst):
    """Chance that more of the next clients are bad than is allowed, exactly."""
    return float(binom.pmf(np.arange(num_seen + 1), num_seen, share) @ binom.sf(allowed, num_next, worst))


SHARES = np.linspace(0.005, 0.995, 199)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(("num_seen", "num_next"), SIZES)
def test_two_kinds_of_clients_exactly(num_seen, num_next, shift):
    allowed = allowed_high(num_seen, num_next, shift)
    worst = SHARES if shift is None else rb.binary_worst_case(SHARES, divergence=shift[0], budget=shift[1])
    chances = [false_share(allowed, num_seen, num_next, *each) for each in zip(SHARES, worst, strict=True)]
    assert max(chances) <= DELTA


@pytest.mark.parametrize(("num_seen", "num_next"), SIZES)
def test_two_kinds_of_clients_in_a_finite_federation_exactly(num_seen, num_next):
    allowed, size = allowed_high(num_seen, None, population=num_seen + num_next), num_seen + num_next
    whole = allowed_high(num_seen, None, population=size, including_seen=True)
    for num_high in range(size + 1):
        chances = hypergeom.pmf(np.arange(num_seen + 1), size, num_high, num_seen)
        seen = np.arange(num_seen + 1)
        assert chances @ (num_high - seen > allowed) <= DELTA + 1e-12
        assert chances @ (num_high > whole) <= DELTA + 1e-12


KINDS = {  # a number that the good ones measure, too, and how clients answer
    "risks": (LOW, lambda bad: rb.ClientRisks(np.where(bad, HIGH, LOW), 10, binary=False)),
    "changes": (-0.25, lambda bad: rb.ClientChanges(np.full(bad.size, 0.5), np.where(bad, HIGH, 0.25), 10, False)),
    "scores": (
        60.0,
        lambda bad: rb.ClientScores(np.where(bad, 59.9, 60.0), True, name="minutes", high=1440.0),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(("num_seen", "num_next"), SIZES)
def test_verdicts_on_the_next_clients_exactly(num_seen, num_next, shift, kind, monkeypatch):
    """Every limit at once: FAIL is wrong where no more are bad than are allowed, PASS where more are; both sum up."""
    monkeypatch.setattr("riskband.worst_cases.requirements._LARGEST_TRIED", 0)
    point, answers_of = KINDS[kind]
    name = f"count:{point}@{':'.join(map(str, ['next', num_next, *(shift or ())]))}"
    texts = [f"{name}<={limit}" for limit in range(num_next)]
    least, most = [], []
    for num_high in range(num_seen + 1):
        answers = answers_of(np.arange(num_seen) < num_high)
        said = [each.verdict for each in rb.require(answers, texts, delta=DELTA).verdicts]
        assert said == sorted(said, key=["FAIL", "NOT DECIDED", "PASS"].index)
        least.append(said.count("FAIL"))
        most.append(num_next - said.count("PASS"))
    seen = np.arange(num_seen + 1)
    worst, best = SHARES, SHARES
    if shift is not None:
        worst = rb.binary_worst_case(SHARES, divergence=shift[0], budget=shift[1])
        best = 1.0 - rb.binary_worst_case(1.0 - SHARES, divergence=shift[0], budget=shift[1])
    chances = [
        binom.pmf(seen, num_seen, share)
        @ (binom.sf(most, num_next, high) + binom.cdf(np.array(least) - 1, num_next, low))
        for share, high, low in zip(SHARES, worst, best, strict=True)
    ]
    assert max(chances) <= DELTA
    if shift is None and num_seen == 50:
        assert max(chances) > 0.2 * DELTA  # it is not all left open


LAWS = {
    "continuous": lambda uniform: uniform,
    "tied": lambda uniform: np.round(uniform * 8) / 8,
    "skewed": lambda uniform: uniform**8,
    "two points": lambda uniform: np.where(uniform < 0.8, LOW, HIGH),
}


def failures(seen, following, shift):
    found = []
    for values, after in zip(seen, following, strict=True):
        bounds = np.atleast_1d(next_clients(values, after.size, shift).value)
        found.append(bool(np.any(np.sort(after)[::-1] > bounds)))
    return found


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("num_seen", "num_next"), SIZES)
def test_any_law(num_seen, num_next, law):
    rng = np.random.default_rng(7)
    drawn = LAWS[law](rng.random((60, num_seen + num_next)))
    assert not is_rejected(failures(drawn[:, :num_seen], drawn[:, num_seen:], None), DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(("num_seen", "num_next"), SIZES)
def test_any_law_under_the_worst_shift(num_seen, num_next, shift, law):
    """The next clients come from the network, within the budget, that has most clients above a quantile."""
    rng = np.random.default_rng(8)
    for share in (0.02, *np.arange(1, 10) / 10):
        name, budget = shift or ("chi2", 0.0)
        worst = float(rb.binary_worst_case(share, divergence=name, budget=budget))
        is_above, uniform = rng.random((200, num_next)) < worst, rng.random((200, num_next))
        shifted = np.where(is_above, 1.0 - share * uniform, (1.0 - share) * uniform)
        seen = LAWS[law](rng.random((200, num_seen)))
        assert not is_rejected(failures(seen, LAWS[law](shifted), shift), DELTA), share


def test_all_at_once_use_most_of_delta():
    """A continuous law: the bounds are false with the probability that the calibration says, which is not far below."""
    rng = np.random.default_rng(9)
    most, drawn = most_above(20, 10, DELTA), rng.random((20_000, 30))
    seen, following = np.sort(drawn[:, :20])[:, ::-1], drawn[:, 20:]
    above = (following[:, None, :] > seen[:, :, None]).sum(axis=2)
    assert 0.15 < np.mean(np.any(above > most, axis=1)) < 0.2


# The mean of the others: a ratio of two chances of drawing the clients seen.


@pytest.mark.parametrize(("num_seen", "size"), [(2, 3), (2, 8), (3, 6), (4, 7), (5, 6)])
def test_the_ratio_is_that_of_drawing_one_client_after_the_other(num_seen, size):
    """Brute force over all sets and all orders, each next client drawn in proportion to its rate among those left."""
    rates = np.random.default_rng(20).uniform(0.05, 3.0, size)
    ratios = []
    for chosen in combinations(range(size), num_seen):
        chance = sum(
            np.prod(
                [rates[client] / (rates.sum() - rates[list(order[:place])].sum()) for place, client in enumerate(order)]
            )
            for order in permutations(chosen)
        )
        seen, others = rates[list(chosen)], np.delete(rates, chosen)
        found = log_ratio_of_drawing(seen / others.mean(), np.ones(num_seen, dtype=int), others.size)
        ratios.append(np.exp(found))
        assert ratios[-1] == pytest.approx(comb(size, num_seen) * chance, rel=1e-7)
    assert np.mean(ratios) == pytest.approx(1.0, rel=1e-7)


def mean_limits(num_seen, num_others, low, high, *, whole, **arguments):
    """Limits for the mean, by the number of answers `high` among those seen; the rest are `low`."""
    values = [np.repeat([high, low], [num_high, num_seen - num_high]) for num_high in range(num_seen + 1)]
    of = {"population": num_seen + num_others, "including_seen": whole, "mean": True} | arguments
    return np.array([next_clients(each, None, **of).value for each in values])


def false_means(limits, num_others, low, high, *, whole, is_measured=True):
    """The largest chance over all populations of two kinds that the mean is above its limit, exactly.

    Each client measures its risk, or (not `is_measured`) on one example, and then the mean is that of true risks.
    """
    num_seen, chances = limits.size - 1, []
    size, seen = num_seen + num_others, np.arange(num_seen + 1)
    for num_high in range(size + 1):
        share = np.full(num_seen + 1, num_high / size) if whole else (num_high - seen) / num_others
        is_false = limits[:, None] < low + (high - low) * share - ROUNDING  # by what is measured, and who is seen
        measured = np.eye(num_seen + 1)
        if not is_measured:
            parts = [[binom.pmf(np.arange(n + 1), n, p) for n, p in ((k, high), (num_seen - k, low))] for k in seen]
            measured = np.array([np.convolve(*each) for each in parts]).T
        chances.append(hypergeom.pmf(seen, size, num_high, num_seen) @ (measured * is_false).sum(axis=0))
    return max(chances)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("risks", [(0.0, 1.0), (LOW, HIGH)])
@pytest.mark.parametrize(("num_seen", "num_others"), [*SIZES, (40, 15), (100, 100), (20, 200)])
def test_the_mean_of_two_kinds_of_clients_exactly(num_seen, num_others, risks, whole):
    limits = mean_limits(num_seen, num_others, *risks, whole=whole)
    assert false_means(limits, num_others, *risks, whole=whole) <= DELTA + ROUNDING


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("risks", [(LOW, HIGH), (0.02, 0.9), (0.3, 0.3)])
@pytest.mark.parametrize(("num_seen", "num_others"), [(5, 20), (20, 5), (40, 15)])
def test_the_mean_of_true_risks_exactly(num_seen, num_others, risks, whole):
    limits = mean_limits(num_seen, num_others, 0.0, 1.0, whole=whole, local="marginal")
    assert false_means(limits, num_others, *risks, whole=whole, is_measured=False) <= DELTA + ROUNDING


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("num_seen", "num_next"), SIZES)
def test_the_mean_under_any_law(num_seen, num_next, law):
    drawn = LAWS[law](np.random.default_rng(21).random((60, num_seen + num_next)))
    limits = [next_clients(each, num_next, mean=True).value for each in drawn[:, :num_seen]]
    assert not is_rejected(drawn[:, num_seen:].mean(axis=1) > np.array(limits) + ROUNDING, DELTA)


def test_the_mean_of_others_is_of_the_set_of_values_and_grows_with_each():
    values = np.random.default_rng(22).beta(1.0, 5.0, 30)
    limit = others_upper_mean(values, num_others=20, delta=DELTA)
    assert others_upper_mean(values[::-1], num_others=20, delta=DELTA) == limit
    for place, value in enumerate(values[:5]):
        for larger in (value + 0.01, 0.5 + 0.5 * value, 1.0):
            changed = np.append(np.delete(values, place), larger)
            assert others_upper_mean(changed, num_others=20, delta=DELTA) > limit


@pytest.mark.parametrize("delta", [0.05, 0.5, 0.9])
def test_the_mean_over_all_sets_of_small_populations(delta):
    rng = np.random.default_rng(25)
    for size, num_seen in ((7, 2), (6, 4)):
        values = rng.beta(0.4, 0.6, size)
        is_false = [
            np.delete(values, chosen).mean()
            > others_upper_mean(values[list(chosen)], num_others=size - num_seen, delta=delta)
            for chosen in combinations(range(size), num_seen)
        ]
        assert np.mean(is_false) <= delta


def test_the_mean_of_very_many_others_is_that_of_independent_clients():
    """Of a sum over six fixed c, exp(K mean log((c - x) / (c - m))), solved here."""
    values = np.random.default_rng(26).beta(1.0, 5.0, 30)
    tops = np.maximum(np.geomspace(0.03, 0.5, 6) / np.sqrt(2.0 * np.log(20.0) / 30) + 0.25, 1.0 / 0.99)

    def excess(mean):
        return np.mean([np.prod((c - values) / (c - mean)) for c in tops]) - 20.0

    found = others_upper_mean(values, num_others=10**9, delta=0.05)
    assert found == pytest.approx(brentq(excess, values.mean(), 1.0), abs=1e-6)


@pytest.mark.parametrize(("num_seen", "size", "share"), [(40, 55, 0.75), (100, 200, 0.6)])
def test_the_mean_is_sharper_than_that_of_all_bounds(num_seen, size, share):
    """By the slack above the measured mean, of the others and of all; and never below what is possible."""
    rng = np.random.default_rng(23)
    values = rng.binomial(100, rng.beta(3.0, 21.0, num_seen)) / 100
    for whole in (False, True):
        of = {"population": size, "including_seen": whole, "delta": 0.05}
        sharp, all_at_once = next_clients(values, None, mean=True, **of), next_clients(values, None, **of)
        assert sharp.value - values.mean() < share * (all_at_once.details["mean"] - values.mean())
    # So many of the others may have risk 1 and none of those seen, with more than delta.
    left = size - num_seen
    unseen = max(n for n in range(left) if hypergeom.pmf(0, size, n, num_seen) > 0.05)
    assert others_upper_mean(np.zeros(num_seen), num_others=left, delta=0.05) > unseen / left


def test_few_others_are_bounded_by_ranks():
    values = np.random.default_rng(24).beta(3.0, 21.0, 100)
    three, alone = (next_clients(values, num, mean=True) for num in (3, 1))
    assert three.method == alone.method == "ranks"
    assert three.value == next_clients(values, 3).details["mean"]
    assert alone.value == next_clients(values, 1).value
    whole = next_clients(values, None, population=103, including_seen=True, mean=True).value
    assert whole == pytest.approx((values.sum() + 3 * three.value) / 103)


def test_the_mean_of_next_clients_without_number_is_that_of_very_many():
    """From 10^17 on the bound was 0: of so many, those seen are no part that floats know."""
    risks = rb.ClientRisks([0.0, 0.1, 0.2, 0.1] * 10, 100)
    many, more = (rb.next_clients(risks, num, delta=0.05, mean=True).value for num in (10**9, 10**18))
    assert more == pytest.approx(many, rel=1e-6)
    assert more > 0.1


def test_the_stated_chance_of_a_rank_is_the_chance():
    rng = np.random.default_rng(10)
    found = [rng.random(5).max() > rng.random(10).max() for _ in range(4_000)]
    stated = next_clients(np.arange(10) / 20, 5, delta=None, rank=1, k=1).delta
    assert stated == pytest.approx(1 / 3)  # the largest of 15 is one of 5
    assert np.mean(found) == pytest.approx(stated, abs=0.03)


@pytest.mark.parametrize("sizes", [10, 200])
def test_true_risks_of_the_next_clients(sizes):
    rng = np.random.default_rng(11)
    wrong = []
    for _ in range(100):
        true, values = BETA.draw(rng, num_clients=25, num_examples=np.full(25, sizes))
        bounds = rb.next_clients(rb.ClientRisks(values[:20], sizes), 5, delta=DELTA, local="marginal").value
        wrong.append(bool(np.any(np.sort(true[20:])[::-1] > bounds)))
    assert not is_rejected(wrong, DELTA)


# Known mistakes, which the same tests must reject.


def test_clients_that_were_chosen_are_not_the_next_ones():
    """Those asked are the best ten of twenty, or the next one the worst of five: neither is exchangeable."""
    rng = np.random.default_rng(12)
    drawn, after = np.sort(rng.random((100, 20)), axis=1), rng.random((100, 5))
    assert is_rejected(failures(drawn[:, :10], after[:, :1], None), DELTA)
    fresh = rng.random((100, 10))
    assert is_rejected(failures(fresh, after.max(axis=1, keepdims=True), None), DELTA)
    assert not is_rejected(failures(fresh, after[:, :1], None), DELTA)


def test_a_verdict_on_clients_that_were_chosen():
    """Of the best ten of twenty few are in the upper half; of the next five more than two are, every second time."""
    rng = np.random.default_rng(14)
    drawn, after = np.sort(rng.random((100, 20)), axis=1), rng.random((100, 5))
    bad = np.sum(after > 0.5, axis=1)
    wrong = {}
    for who, seen in (("chosen", drawn[:, :10]), ("fresh", rng.random((100, 10)))):
        found = [rb.require(rb.ClientRisks(x, 10, False), "count:0.5@next:5<=2", delta=DELTA).verdicts[0] for x in seen]
        wrong[who] = [each.verdict == ("FAIL" if n <= 2 else "PASS") for each, n in zip(found, bad, strict=True)]
    assert is_rejected(wrong["chosen"], DELTA / 2)
    assert not is_rejected(wrong["fresh"], DELTA / 2)


def test_a_share_put_into_the_binomial_without_its_doubt():
    """A tenth of ten clients is above the second largest, so "at most 3 of the next 20" by the binomial: false."""
    naive = int(binom.ppf(1.0 - DELTA, 20, 0.1))
    assert naive == 3
    assert betabinom.sf(naive, 20, 2, 9) > 1.8 * DELTA
    allowed = binom.ppf(1.0 - DELTA, 20, np.arange(11) / 10)  # the measured share of bad clients as if it were known
    assert max(false_share(allowed, 10, 20, share, share) for share in SHARES) > 1.5 * DELTA


def test_measured_risks_read_as_true_risks():
    """Of clients that are all alike the best of the next measures little, and its true risk is that of all."""
    rng = np.random.default_rng(13)
    wrong = {"observed": [], "marginal": []}
    for values in rng.binomial(20, 0.3, size=(60, 50)) / 20:
        for local, found in wrong.items():
            found.append(bool(rb.next_clients(rb.ClientRisks(values, 20), 5, delta=DELTA, local=local).value[-1] < 0.3))
    assert is_rejected(wrong["observed"], DELTA)
    assert not is_rejected(wrong["marginal"], DELTA)


@pytest.mark.parametrize(("whole", "num_others", "claimed"), [(False, 6, 100), (True, 80, 10)])
def test_the_mean_for_a_population_of_another_size(whole, num_others, claimed):
    """Of more others than there are each counts less, and of a federation smaller than it is those seen count more."""
    is_false = {
        said: false_means(mean_limits(12, said, 0.0, 1.0, whole=whole), num_others, 0.0, 1.0, whole=whole)
        for said in (num_others, claimed)
    }
    assert is_false[num_others] <= DELTA < 0.5 * is_false[claimed]


def test_bets_on_the_mean_of_the_others_that_look_at_it():
    """It depends on who was seen: with one c for all the ratio has mean 1, with the largest stakes it allows more."""
    risks, found = np.array([0.0, 0.99]), {"fixed": 0.0, "looks": 0.0}
    for seen in range(21):  # of 20 clients of the larger risk, and 20 of the smaller one
        mean, mass = 0.99 * (1.0 - seen / 20), hypergeom.pmf(seen, 40, 20, 20)
        for name, c in (("fixed", 1.01), ("looks", mean + (1.0 - mean) / 0.99)):
            ratio = np.exp(log_ratio_of_drawing((c - risks) / (c - mean), np.array([20 - seen, seen]), 20))
            found[name] += mass * ratio
    assert found["fixed"] == pytest.approx(1.0, abs=1e-8)
    assert found["looks"] > 1.02


def test_the_mean_that_all_would_measure_read_as_that_of_their_true_risks():
    """Nearly all were seen, which says what they measured; all have risk 0.3, on one example each."""
    chances = binom.pmf(np.arange(31), 30, 0.3)
    found = {local: mean_limits(30, 1, 0.0, 1.0, whole=True, local=local) for local in ("observed", "marginal")}
    assert chances @ (found["marginal"] < 0.3) <= DELTA < 0.7 * (chances @ (found["observed"] < 0.3))
