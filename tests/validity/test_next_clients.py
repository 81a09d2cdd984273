"""What the next clients measure is above its bounds no more often than delta: exact sums, and simulated networks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import betabinom, binom, hypergeom

import riskband as rb
from riskband.worst_cases.next_clients import most_above
from tests.validity.coverage import BETA, is_rejected

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
    name = ":".join(map(str, ["next", num_next, point, *(shift or ())]))
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
        found = [rb.require(rb.ClientRisks(x, 10, False), "next:5:0.5<=2", delta=DELTA).verdicts[0] for x in seen]
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
