"""The next clients by ranks: enumeration of all orders, beta-binomial distributions of scipy, integrals."""

import itertools

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, betabinom, binom, hypergeom

import riskband as rb
from riskband.worst_cases.next_clients import chance_above, chance_of_all, most_above

LARGEST = rb.ClientRisks(np.arange(1, 11) / 20, 20)  # ten clients, from .05 to .5


def orders(num_seen, num_next):
    """Of every order of all values from the largest down, how many next ones are above each seen one."""
    for places in itertools.combinations(range(num_seen + num_next), num_seen):
        yield [place - seen for seen, place in enumerate(places)]


@pytest.mark.parametrize(("num_seen", "num_next"), [(5, 4), (4, 5), (1, 3), (3, 1)])
def test_the_walk_counts_what_enumeration_counts(num_seen, num_next):
    above = np.array(list(orders(num_seen, num_next)))
    for most in itertools.combinations_with_replacement(range(num_next + 1), num_seen):
        expected = np.mean(np.all(above <= most, axis=1))
        assert chance_of_all(np.array(most), num_next) == pytest.approx(expected, abs=1e-13)


def test_all_126_paths_of_five_and_four():
    assert len(list(orders(5, 4))) == 126
    assert chance_of_all(4 - np.array([2, 2, 1, 0, 0]), 4) == pytest.approx(99 / 126, abs=1e-13)  # .785714


@pytest.mark.parametrize(
    ("num_seen", "num_next", "chance", "of_ranks"),
    [(14, 6, 0.956424, {1: 2, 3: 4}), (50, 20, 0.950878, {1: 3, 6: 7})],
)
def test_all_ranks_at_once_as_published_in_the_design(num_seen, num_next, chance, of_ranks):
    most = most_above(num_seen, num_next, 0.05)
    assert chance_of_all(most, num_next) == pytest.approx(chance, abs=1e-6)
    assert {rank: most[rank - 1] for rank in of_ranks} == of_ranks


@pytest.mark.parametrize(("num_seen", "num_next"), [(25, 1), (5, 20), (20, 5), (50, 20)])
def test_no_larger_local_level_would_do(num_seen, num_next):
    tails = betabinom.sf(
        np.arange(num_next),
        num_next,
        np.arange(1, num_seen + 1)[:, None],
        num_seen + 1.0 - np.arange(1, num_seen + 1)[:, None],
    )
    most = most_above(num_seen, num_next, 0.05)
    valid = []
    for level in np.unique(tails[tails <= 0.05]):
        limits = np.sum(tails > level * (1 + 1e-12), axis=1)
        if chance_of_all(limits, num_next) >= 0.95:
            valid.append(limits)
    np.testing.assert_array_equal(most, valid[-1])


@pytest.mark.parametrize(("num_seen", "num_next"), [(5, 4), (20, 30), (300, 100)])
def test_without_a_shift_it_is_beta_binomial_and_hypergeometric(num_seen, num_next):
    for rank, k in itertools.product((1, 2, num_seen), (1, 3, num_next)):
        found = chance_above(num_seen, num_next, rank, k)
        above = betabinom.pmf(np.arange(k, num_next + 1), num_next, rank, num_seen + 1 - rank).sum()
        assert found == pytest.approx(above, rel=1e-9)
        among = hypergeom.cdf(rank - 1, num_seen + num_next, num_seen, rank + k - 1)
        assert found == pytest.approx(among, rel=1e-9)


SHIFTS = (("chi2", 0.0), ("chi2", 0.05), ("chi2", 0.2), ("kl", 0.05), ("tv", 0.1))
INTEGRALS = {  # (clients, rank from the smallest, next, at most so many above): by adaptive quadrature
    (10, 10, 1, 0): (0.090909, 0.147171, 0.203432, 0.182265, 0.190909),
    (10, 9, 1, 0): (0.181818, 0.261769, 0.341719, 0.304045, 0.281818),
    (14, 12, 6, 4): (0.007224, 0.023554, 0.059658, 0.037292, 0.023408),
    (20, 19, 5, 1): (0.091304, 0.190960, 0.304848, 0.258324, 0.256575),
    (50, 48, 10, 2): (0.028884, 0.105167, 0.221395, 0.177560, 0.208268),
    (50, 50, 20, 3): (0.005284, 0.035576, 0.100218, 0.082874, 0.214773),
}


@pytest.mark.parametrize("case", INTEGRALS)
def test_shifted_chances_are_the_integrals_from_above(case):
    num_seen, smallest, num_next, most = case
    for (name, size), expected in zip(SHIFTS, INTEGRALS[case], strict=True):
        shift = {"f": rb.DIVERGENCES[name], "size": size}
        found = chance_above(num_seen, num_next, num_seen + 1 - smallest, most + 1, **shift, num_points=2**17)
        assert expected - 1e-6 <= found <= expected * (1.0 + 2e-3) + 1e-6


@pytest.mark.parametrize("name", sorted(rb.DIVERGENCES))
def test_every_divergence_has_its_integral(name):
    f = rb.DIVERGENCES[name]

    def at(share):
        worst = float(rb.binary_worst_case(share, divergence=f, budget=0.1))
        return binom.sf(1, 5, worst) * beta.pdf(share, 2, 19)

    edges = np.linspace(0.0, 1.0, 21)
    expected = sum(quad(at, *ends)[0] for ends in itertools.pairwise(edges))
    found = chance_above(20, 5, 2, 2, f=f, size=0.1)
    assert expected * (1.0 - 1e-6) <= found <= expected * 1.02


def test_a_divergence_of_ones_own_is_as_good():
    own = rb.custom_divergence("own", lambda t: (t - 1.0) ** 2, slope_at_infinity=np.inf)
    found = rb.next_clients(LARGEST, 3, delta=0.3, divergence=own, budget=0.1)
    np.testing.assert_array_equal(
        found.value, rb.next_clients(LARGEST, 3, delta=0.3, divergence="chi2", budget=0.1).value
    )
    assert rb.verify(found, divergences={"own": own}).ok


@pytest.mark.parametrize(("num_seen", "num_next"), [(5, 1), (10, 5), (20, 20), (50, 20)])
def test_a_number_of_clients_is_bounded_by_the_hypergeometric_test(num_seen, num_next):
    """Of s clients above the risk among all, so few (or many) would be among those seen with at most half of delta."""
    size, delta = num_seen + num_next, 0.1
    for seen in range(0, num_seen + 1):
        answers = rb.ClientRisks(np.repeat([0.5, 0.3], [seen, num_seen - seen]), 10)
        found = rb.next_clients(answers, num_next, above=0.3, delta=delta)  # what is 0.3 is not above it
        total = seen + np.arange(num_next + 1)
        is_kept = np.minimum(hypergeom.cdf(seen, size, total, num_seen), hypergeom.sf(seen - 1, size, total, num_seen))
        kept = np.flatnonzero(is_kept > delta / 2.0 * (1.0 + 1e-9))
        assert (found.lower, found.value) == (kept[0], kept[-1])
        others = rb.next_clients(answers, population=size, above=0.3, delta=delta)
        assert (others.lower, others.value) == (kept[0], kept[-1])
        whole = rb.next_clients(answers, population=size, above=0.3, delta=delta, including_seen=True)
        assert (whole.lower, whole.value) == (seen + kept[0], seen + kept[-1])


@pytest.mark.parametrize(
    ("num_seen", "rank", "num_next", "most", "chance"),
    [(14, 3, 6, 4, 0.007224), (20, 2, 5, 1, 0.091304), (50, 3, 10, 2, 0.028884), (50, 1, 20, 3, 0.005284)],
)
def test_a_number_of_clients_at_the_chances_of_the_design(num_seen, rank, num_next, most, chance):
    """One fewer than the rank is above: so many of the next are at most, at twice that chance and no less."""
    answers = rb.ClientRisks(np.repeat([0.5, 0.1], [rank - 1, num_seen - rank + 1]), 10)
    for factor, expected in ((2.002, most), (1.998, most + 1)):
        assert rb.next_clients(answers, num_next, above=0.3, delta=factor * chance).value == expected


def test_answers_in_doubt_count_for_both_ends():
    values = np.repeat([0.5, 0.1], [5, 15])
    doubtful = rb.ClientRisks(values, 10, contamination=2, num_missing=1, missing="worst")
    worse, better = (rb.ClientRisks(np.repeat([0.5, 0.1], [n, 21 - n]), 10) for n in (8, 3))
    found, high, low = (rb.next_clients(each, 5, above=0.3, delta=0.2) for each in (doubtful, worse, better))
    assert (found.lower, found.value) == (low.lower, high.value)


def test_what_ten_hospitals_are_told_of_the_next():
    found = rb.next_clients(LARGEST, 1, rank=1)
    assert (found.value, found.delta) == (0.5, pytest.approx(1 / 11))
    assert "with probability at least 0.909 " in found.statement
    assert "the risk that the next client would measure is at most 0.5000" in found.statement
    shifted = rb.next_clients(LARGEST, 1, rank=1, divergence="chi2", budget=0.2)
    assert shifted.delta == pytest.approx(0.203432, rel=1e-3)
    assert rb.next_clients(LARGEST, 1, delta=0.1).value == 0.5
    assert rb.next_clients(LARGEST, 1, delta=0.09).value == 1.0  # 11 clients would be needed: 1/11 > .09


@pytest.mark.parametrize("num_seen", [9, 19, 49, 99])
def test_a_chance_that_is_delta_is_not_left_to_rounding(num_seen):
    """The largest of K + 1 is the next with probability 1/(K + 1), which is delta itself."""
    answers = rb.ClientRisks(np.arange(num_seen) / 100, 100)
    for arguments in ({}, {"k": 1}, {"divergence": "kl", "budget": 0.0}):
        assert rb.next_clients(answers, 1, delta=1.0 / (num_seen + 1), **arguments).value == answers.values.max()
        assert rb.next_clients(answers, 1, delta=0.999 / (num_seen + 1), **arguments).value == 1.0
    assert most_above(num_seen, 1, 1.0 / (num_seen + 1))[0] == 0


def test_all_k_at_once_are_the_limits_read_the_other_way():
    most, found = most_above(10, 6, 0.2), rb.next_clients(LARGEST, 6, delta=0.2)
    for k, value in enumerate(found.value, start=1):
        ranks = [rank for rank in range(1, 11) if most[rank - 1] < k]
        assert value == (np.sort(LARGEST.values)[-max(ranks)] if ranks else 1.0)
    assert found.details["mean"] == pytest.approx(np.mean(found.value))
    for k in (1, 3, 6):
        assert rb.next_clients(LARGEST, 6, delta=0.2, k=k).value <= found.value[k - 1]


def test_a_whole_population_has_those_asked_too():
    others = rb.next_clients(LARGEST, population=16, delta=0.2)
    np.testing.assert_array_equal(others.value, rb.next_clients(LARGEST, 6, delta=0.2).value)
    whole = rb.next_clients(LARGEST, population=16, delta=0.2, including_seen=True)
    assert whole.value.shape == (16,)
    most, ordered = most_above(10, 6, 0.2), np.sort(LARGEST.values)[::-1]
    for k in range(1, 17):  # r - 1 of those asked and so many of the others are above the r-th largest
        fitting = [ordered[rank - 1] for rank in range(1, 11) if rank - 1 + most[rank - 1] < k]
        assert whole.value[k - 1] == min(fitting, default=1.0)
    assert np.all(whole.value[-10:] <= ordered)  # the others can only move those asked down


def test_doubtful_and_missing_answers_count_as_the_worst():
    doubtful = rb.ClientRisks(LARGEST.values, 20, num_missing=2, missing="worst", contamination=1)
    completed = rb.ClientRisks([*LARGEST.values[1:], 1.0, 1.0, 1.0], 20)
    found = rb.next_clients(doubtful, 6, delta=0.2).value
    np.testing.assert_array_equal(found, rb.next_clients(completed, 6, delta=0.2).value)


@pytest.mark.parametrize("num_next", [4, 6])  # by ranks, and by bets
def test_the_mean_of_answers_in_doubt_of_scores_and_of_noisy_answers(num_next):
    of = {"delta": 0.2, "mean": True, "population": 12 + num_next, "including_seen": True}
    doubtful = rb.ClientRisks(LARGEST.values, 20, num_missing=2, missing="worst", contamination=1)
    doubtful = rb.next_clients(doubtful, **of).value
    assert doubtful == rb.next_clients(rb.ClientRisks([*LARGEST.values[1:], 1.0, 1.0, 1.0], 20), **of).value
    of = {"delta": 0.2, "mean": True, "population": 10 + num_next}
    risks, scores = LARGEST, rb.ClientScores(1.0 - LARGEST.values, higher_is_better=True)
    assert rb.next_clients(scores, **of).lower == pytest.approx(1.0 - rb.next_clients(risks, **of).value)
    noisy = rb.ClientRisks(LARGEST.values, 20, binary=True, noise="laplace:1")
    true = [rb.next_clients(each, local="marginal", **of) for each in (risks, noisy)]
    assert true[0].value < true[1].value < 1.0
    assert rb.verify(true[1]).ok


def test_a_shift_costs_and_true_risks_cost():
    plain, shifted = (
        rb.next_clients(LARGEST, 6, delta=0.3, divergence="chi2", budget=[0.0, 0.1]).value[place] for place in (0, 1)
    )
    assert np.all(plain <= shifted)
    assert np.any(plain < shifted)
    assert np.all(
        rb.next_clients(LARGEST, 6, delta=0.3, local="marginal").value >= rb.next_clients(LARGEST, 6, delta=0.3).value
    )


@pytest.mark.slow
def test_ten_thousand_clients_and_a_thousand_next():
    most = most_above.__wrapped__(10_000, 1_000, 0.05)
    assert 0.95 <= chance_of_all(most, 1_000) < 0.951


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_next": 0, "delta": 0.1}, "num_next must be a whole number >= 1, got 0; it counts"),
        ({"delta": 0.1}, "num_next must be a whole number >= 1, got None"),
        ({"num_next": 2.5, "delta": 0.1}, "num_next must be a whole number"),
        ({"num_next": 3}, "delta must be given, got none; or a rank"),
        ({"num_next": 3, "delta": 5}, r"delta must be in \(0, 1\)"),
        ({"num_next": 3, "delta": 0.1, "k": 4}, "k must be at most the number of clients, 3, got 4"),
        ({"num_next": 3, "delta": 0.1, "k": 0}, "k must be a whole number >= 1"),
        ({"num_next": 3, "delta": 0.1, "budget": 0.1}, "a budget needs a divergence, got budget 0.1; say"),
        ({"num_next": 3, "delta": 0.1, "divergence": "chi2", "budget": -1}, "budget must be finite and >= 0"),
        ({"num_next": 3, "delta": 0.1, "divergence": "chi"}, "divergence"),
        ({"num_next": 3, "delta": 0.1, "local": "union"}, "local must be one of marginal, observed"),
        ({"population": 10, "delta": 0.1}, "population must be above the number of clients asked, 10, got 10"),
        ({"population": 3, "delta": 0.1}, "population must be above the number of clients asked, 10, got 3"),
        ({"population": 11.0, "delta": 0.1}, "population must be a whole number, got 11.0; it counts all clients"),
        ({"population": 12, "num_next": 3, "delta": 0.1}, "there must be a population that has the 10 clients asked"),
        ({"num_next": 3, "including_seen": True, "delta": 0.1}, "there must be a population"),
        (
            {"population": 20, "num_next": 3, "including_seen": True, "delta": 0.1},
            "about all 20 clients, got num_next=3",
        ),
        ({"population": 20, "delta": 0.1, "divergence": "chi2", "budget": 0.1}, "takes no divergence; leave one"),
        ({"num_next": 1, "rank": 11}, "rank must be at most the number of clients, 10, got 11"),
        ({"num_next": 1, "rank": 1, "delta": 0.1}, "a rank, from which delta follows, goes with"),
        ({"num_next": 2, "rank": 1}, "goes with one k"),
        ({"num_next": 1, "rank": 10, "divergence": "tv", "budget": 1.0}, "nothing follows from rank 10"),
        ({"num_next": 9, "delta": 0.1, "mean": True, "k": 2, "divergence": "kl"}, "got k, divergence; leave that out"),
        ({"num_next": 9, "mean": True}, "delta must be given"),
        ({"num_next": 10**6, "delta": 0.1}, "all k at once need .* ask for one k"),
    ],
)
def test_bad_arguments_say_rule_value_and_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        rb.next_clients(LARGEST, **arguments)


@pytest.mark.parametrize("missing", ["ignore", "worst"])
def test_a_population_has_all_who_were_asked(missing):
    of = rb.ClientRisks(LARGEST.values, 20, num_missing=3, missing=missing)  # 10 answered
    with pytest.raises(ValueError, match="population must"):
        rb.next_clients(of, population=12, delta=0.1)
    assert np.shape(rb.next_clients(of, population=14, delta=0.1).value) == ((4,) if missing == "ignore" else ())


def test_noisy_answers_have_no_measured_risks():
    noisy = rb.ClientRisks(LARGEST.values, 20, binary=True, noise="laplace:1")
    with pytest.raises(ValueError, match="use local='marginal'"):
        rb.next_clients(noisy, 3, delta=0.1)
    assert rb.verify(rb.next_clients(noisy, 3, delta=0.1, local="marginal")).ok
