"""Counts of clients in bins: against the band of the clients' own numbers, and against counting by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riskband as rb
from riskband.betting import constant_stakes_upper_mean
from tests.laws.draws import DELTAS, LOCALS, METHODS, POINTS

LIMIT_LOCALS = st.sampled_from(["marginal", "counted"])
SIDES = ("two", "lower", "upper")


def grid(num_bins):
    return np.linspace(0.0, 1.0, num_bins + 1)


def points_of(*bands):
    """Every point where one of the bands has a knot, just beside it, and some between."""
    knots = np.concatenate([POINTS, *(np.concatenate([b.lower_points, b.upper_points]) for b in bands)])
    return np.unique(np.clip(np.concatenate([knots, knots - 1e-7, knots + 1e-7]), 0.0, 1.0))


def assert_same_band(first, second):
    points = points_of(first, second)
    for side in ("lower", "upper"):
        if first.sides in (side, "two"):
            np.testing.assert_allclose(getattr(first, side)(points), getattr(second, side)(points), atol=1e-9)


def assert_no_tighter(wide, narrow, *, but_for=1e-12):
    points = points_of(wide, narrow)
    assert np.all(wide.lower(points) <= narrow.lower(points) + but_for)
    assert np.all(wide.upper(points) >= narrow.upper(points) - but_for)


STEP = 1 / 400  # of the levels at which a closed form is inverted: every band from counts is rounded outwards by less


def test_counts_by_hand():
    values = [0.0, 0.1, 0.25, 0.26, 0.5, 1.0]
    found = rb.risk_histogram(values, 100, edges=[0.0, 0.25, 0.5, 1.0], binary=False)
    assert found.tolist() == [3, 2, 1]  # an edge belongs to the bin below it, and 0 to the first bin


def test_counts_of_limits_by_hand():
    """Clopper-Pearson with n = 1: the upper limit of 0 is 1 - eta, of 1 it is 1; the lower ones are 0 and eta."""
    found = rb.risk_histogram([0.0, 1.0, 1.0], 1, edges=[0.0, 0.09, 0.5, 0.95, 1.0], binary=True, eta=0.1)
    assert found.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0], [1, 0, 0, 2]]


def test_a_lower_limit_on_an_edge_rounds_down_to_itself():
    eta = 0.125
    found = rb.risk_histogram([1.0], 1, edges=[0.0, 1.0 - (1.0 - eta), 1.0], binary=True, eta=eta)
    assert found[1].tolist() == [0, 1]


@given(
    values=st.lists(st.integers(0, 60), min_size=2, max_size=20),
    num_bins=st.integers(1, 80),
    eta=st.sampled_from([None, 0.01, 0.3]),
)
def test_histograms_of_single_clients_add_up_to_that_of_all(values, num_bins, eta):
    risks, settings = np.array(values) / 60, {"edges": grid(num_bins), "binary": True, "eta": eta}
    one_by_one = sum(rb.risk_histogram([risk], 60, **settings) for risk in risks)
    np.testing.assert_array_equal(one_by_one, rb.risk_histogram(risks, 60, **settings))


@given(
    wrong=st.lists(st.integers(0, 40), min_size=2, max_size=12),
    delta=DELTAS,
    method=METHODS,
    local=LOCALS,
    sides=st.sampled_from(SIDES),
)
def test_a_bin_for_every_multiple_gives_the_plain_band_of_a_binary_loss(wrong, delta, method, local, sides):
    values, settings = np.array(wrong) / 40, {"delta": delta, "method": method, "local": local, "sides": sides}
    edges = grid(41)  # each bin holds exactly one multiple of 1/40
    counts = rb.risk_histogram(values, 40, edges=edges, binary=True)
    assert counts.max() == np.unique(values, return_counts=True)[1].max()
    histogram = rb.HistogramRisks(edges, counts, 40, binary=True)
    np.testing.assert_array_equal(histogram.above.values, np.sort(values))
    np.testing.assert_array_equal(histogram.below.values, np.sort(values))
    assert_same_band(rb.band(histogram, **settings), rb.band(rb.ClientRisks(values, 40, True), **settings))


@pytest.mark.parametrize("local", ["marginal", "counted", "union", "observed"])
def test_fine_bins_give_the_plain_band_of_any_loss(local):
    values = np.random.default_rng(0).beta(2, 6, size=30)
    edges = np.unique(np.concatenate([[0.0, 1.0], values, values - 1e-12]))
    counts = rb.risk_histogram(values, 25, edges=edges, binary=False)
    binned, plain = (
        rb.band(answers, delta=0.1, local=local, sides="two")
        for answers in (rb.HistogramRisks(edges, counts, 25, binary=False), rb.ClientRisks(values, 25, binary=False))
    )
    for points, others in ((binned.lower_points, plain.lower_points), (binned.upper_points, plain.upper_points)):
        np.testing.assert_allclose(points, others, atol=1e-9)
    np.testing.assert_allclose(binned.lower_levels, plain.lower_levels, atol=1e-12)
    np.testing.assert_allclose(binned.upper_levels, plain.upper_levels, atol=1e-12)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("local", ["marginal", "counted"])
def test_limits_on_edges_give_the_plain_band_of_unequal_numbers_of_examples(local, sides):
    rng, eta = np.random.default_rng(1), 0.05
    sizes = rng.integers(10, 80, size=24)
    risks = rb.ClientRisks(rng.binomial(sizes, 0.2) / sizes, sizes, True)
    ends = [risks.upper_limits(eta), risks.lower_limits(eta), risks.values]
    edges = np.unique(np.concatenate([[0.0, 1.0], *ends]))
    counts = rb.risk_histogram(risks.values, sizes, edges=edges, binary=True, eta=eta)
    histogram = rb.HistogramLimits(edges, counts, eta=eta, binary=True)
    settings = {"delta": 0.1, "local": local, "sides": sides}
    binned, plain = rb.band(histogram, **settings), rb.band(risks, eta=eta, **settings)
    assert_same_band(binned, plain)
    assert binned.eta == eta
    if sides != "upper":
        smallest = edges[1]  # a risk of exactly 0 is in the bin up to the first edge
        np.testing.assert_allclose(
            rb.mean(binned).value, rb.mean(rb.band(risks, eta=eta, **settings)).value, atol=smallest + 1e-9
        )


@given(
    wrong=st.lists(st.integers(0, 40), min_size=2, max_size=12),
    num_bins=st.integers(1, 30),
    factor=st.integers(2, 4),
    local=LOCALS,
    binary=st.booleans(),
)
def test_coarser_bins_are_never_tighter(wrong, num_bins, factor, local, binary):
    values = np.array(wrong) / 40
    answers = [rb.ClientRisks(values, 40, binary)]
    for edges in (grid(num_bins * factor), grid(num_bins * factor)[::factor]):
        counts = rb.risk_histogram(values, 40, edges=edges, binary=binary)
        answers.append(rb.HistogramRisks(edges, counts, 40, binary=binary))
    plain, fine, coarse = (rb.band(each, delta=0.1, local=local) for each in answers)
    assert_no_tighter(fine, plain, but_for=STEP)
    assert_no_tighter(coarse, fine, but_for=STEP)
    if local == "marginal":
        plain, fine, coarse = (rb.band(each, delta=0.1, eta=0.1) for each in answers)
        assert_no_tighter(fine, plain)
        assert_no_tighter(coarse, fine)
    plain, fine, coarse = (rb.mean_bound(each, delta=0.1, method="hoeffding").value for each in answers)
    assert plain <= fine + 1e-12
    assert fine <= coarse + 1e-12


@given(seed=st.integers(0, 1000), num_bins=st.integers(1, 30), local=LIMIT_LOCALS)
def test_coarser_bins_of_limits_are_never_tighter(seed, num_bins, local):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 60, size=10)
    values, eta = rng.random(10), 0.1
    answers = []
    for edges in (grid(num_bins * 3), grid(num_bins * 3)[::3]):
        counts = rb.risk_histogram(values, sizes, edges=edges, binary=False, eta=eta)
        answers.append(rb.HistogramLimits(edges, counts, eta=eta, binary=False))
    fine, coarse = (rb.band(each, delta=0.1, local=local) for each in answers)
    assert_no_tighter(coarse, fine)
    assert_no_tighter(fine, rb.band(rb.ClientRisks(values, sizes, False), delta=0.1, local=local, eta=eta))


@pytest.mark.parametrize("who", [{"num_missing": 3, "missing": "worst"}, {"contamination": 2}, {"num_missing": 5}])
def test_missing_clients_and_wrong_counts_are_those_of_plain_answers(who):
    values = np.random.default_rng(2).binomial(20, 0.3, size=30) / 20
    counts = rb.risk_histogram(values, 20, edges=grid(21), binary=True)
    histogram = rb.HistogramRisks(grid(21), counts, 20, binary=True, **who)
    plain = rb.ClientRisks(values, 20, True, **who)
    assert_same_band(rb.band(histogram, delta=0.1), rb.band(plain, delta=0.1))
    found = rb.mean_bound(histogram, delta=0.1)
    assert found.value == pytest.approx(constant_stakes_upper_mean(plain.worst_completion(plain.values), delta=0.1))


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_wrong_counts_that_move_one_client_are_covered_by_contamination(step):
    """However one client is moved, the band with contamination=1 contains that of the true counts."""
    rng = np.random.default_rng(3)
    edges = grid(10)
    counts = rb.risk_histogram(rng.beta(2, 6, size=20), 30, edges=edges, binary=False)
    true_band = rb.band(rb.HistogramRisks(edges, counts, 30, binary=False), delta=0.1)
    for source in np.flatnonzero(counts):
        for target in range(0, 10, step):
            moved = counts.copy()
            moved[source] -= 1
            moved[target] += 1
            safe = rb.HistogramRisks(edges, moved, 30, binary=False, contamination=1)
            assert_no_tighter(rb.band(safe, delta=0.1), true_band)


@pytest.mark.parametrize("local", ["marginal", "counted", "union", "observed"])
def test_wrong_counts_in_an_impossible_bin_are_no_tighter_than_in_any_other(local):
    """The bin (0.25, 0.3] has no quarter: whoever is there is one of the wrong ones, and may be anywhere."""
    edges, counts = [0.0, 0.25, 0.3, 0.5, 1.0], np.array([9, 0, 4, 2])

    def band(counts):
        return rb.band(
            rb.HistogramRisks(edges, counts, 4, binary=True, contamination=2), delta=0.2, method="dkw", local=local
        )

    wrong = band([9, 2, 4, 2])
    for first in (0, 2, 3):
        for second in (0, 2, 3):
            moved = np.bincount([first, second], minlength=4)
            assert_no_tighter(wrong, band(counts + moved))
    with pytest.raises(ValueError, match="no more clients than contamination, got 3"):
        band([8, 3, 4, 2])


HISTOGRAMS = {
    "risks": rb.HistogramRisks([0.0, 0.1, 0.3, 1.0], [12, 6, 2], 50, binary=True, num_missing=2),
    "limits": rb.HistogramLimits(
        [0.0, 0.1, 0.3, 1.0], [[2, 12, 6], [18, 1, 1], [12, 6, 2]], eta=0.05, binary=False, missing="worst",
        num_missing=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HISTOGRAMS)
def test_every_certificate_of_a_histogram_is_verified_and_stored_without_a_single_client(kind):
    band = rb.band(HISTOGRAMS[kind], delta=0.1)
    made = [
        rb.mean_bound(HISTOGRAMS[kind], delta=0.1),
        rb.survival(band, thresholds=[0.2, 0.5]),
        rb.quantile(band, level=0.5),
        rb.cvar(band, level=0.5),
        rb.worst_case_mean(band, divergence="chi2", budget=0.1),
        rb.worst_case_cdf(band, divergence="kl", budget=0.1, thresholds=[0.3]),
        rb.dispersion_certificate(band, "gini"),
        *([rb.dispersion_certificate(band, "gini", method="convex_order")] if kind == "risks" else []),
    ]
    assert rb.breakdown(band, divergence="kl", target=0.99, threshold=0.9).lower > 0.0
    for certificate in made:
        stored = json.loads(certificate.to_json())
        assert rb.verify(stored).ok
        assert "values" not in stored["recipe"]["answers"]
        assert any("counted once" in assumption for assumption in stored["assumptions"])
    stored = made[0].to_dict()
    stored["recipe"]["answers"]["edges"][1] = 0.2
    assert not rb.verify(stored).ok


REFUSED = {
    "edges that do not start at 0": lambda: rb.HistogramRisks([0.1, 1.0], [2], 10, binary=True),
    "edges that fall": lambda: rb.HistogramRisks([0.0, 0.6, 0.5, 1.0], [1, 1, 1], 10, binary=True),
    "a negative count": lambda: rb.HistogramRisks([0.0, 0.5, 1.0], [3, -1], 10, binary=True),
    "half a client": lambda: rb.HistogramRisks([0.0, 0.5, 1.0], [1.5, 1.5], 10, binary=True),
    "a count modulo 2**32": lambda: rb.HistogramRisks([0.0, 0.5, 1.0], [3, 2**32 - 1], 10, binary=True),
    "one client": lambda: rb.HistogramRisks([0.0, 0.5, 1.0], [1, 0], 10, binary=True),
    "an impossible bin": lambda: rb.HistogramRisks([0.0, 0.02, 0.04, 1.0], [1, 1, 1], 10, binary=True),
    "one row of limits": lambda: rb.HistogramLimits([0.0, 1.0], [3], eta=0.1, binary=True),
    "rows that add up to different numbers": lambda: rb.HistogramLimits(
        [0.0, 1.0], [[3], [3], [2]], eta=0.1, binary=True
    ),
    "upper limits below the risks": lambda: rb.HistogramLimits(
        [0.0, 0.5, 1.0], [[3, 0], [3, 0], [0, 3]], eta=0.1, binary=True
    ),
    "unequal sizes without eta": lambda: rb.risk_histogram([0.1, 0.1], [10, 20], edges=[0.0, 1.0], binary=True),
    "union from limits": lambda: rb.band(HISTOGRAMS["limits"], delta=0.1, local="union"),
    "another eta": lambda: rb.band(HISTOGRAMS["limits"], delta=0.1, eta=0.2),
    "a published mean": lambda: rb.mean_bound(HISTOGRAMS["risks"], delta=0.1, method="published"),
    "groups of nobody": lambda: rb.group_bands(HISTOGRAMS["risks"], ["a"] * 20, delta=0.1),
    "a split of nobody": lambda: rb.split_clients(HISTOGRAMS["risks"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_counts_cannot_say_is_refused(what):
    with pytest.raises(ValueError, match=r"must|needs|needed"):
        REFUSED[what]()
