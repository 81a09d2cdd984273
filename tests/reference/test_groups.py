"""Comparisons of groups against convex programs, brute force over boxes, and the definitions of [DC]."""

from __future__ import annotations

import itertools
import json

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import riskband as rb
from riskband.answers.risks import default_eta
from riskband.bands.levels import berk_jones_levels, dkw_levels
from riskband.groups import comparisons
from riskband.groups.comparisons import compared


def answers(num_clients=60, seed=1, **options):
    rng = np.random.default_rng(seed)
    return rb.ClientRisks(rng.binomial(80, rng.beta(1, 7, num_clients)) / 80, 80, **options)


THREE = ["a"] * 20 + ["b"] * 25 + ["c"] * 15
BANDS = rb.group_bands(answers(), THREE, delta=0.1)


def boxes(num_boxes, *, num_groups, seed=2):
    rng = np.random.default_rng(seed)
    for _ in range(num_boxes):
        lower, upper = np.sort(rng.random((2, num_groups)).round(rng.integers(1, 6)), axis=0)
        weights = rng.dirichlet(np.ones(num_groups)) if rng.random() < 0.7 else np.full(num_groups, 1 / num_groups)
        yield lower, upper, weights


def variance(values, weights):
    """Half the mean squared difference of two groups that are drawn independently."""
    return 0.5 * np.sum(weights[:, None] * weights * (values[:, None] - values) ** 2)


def deviation(values, weights, level):
    """[DC] §3.2: min over ρ of ρ + E[T - ρ]_+ / (1 - α), minus E T."""

    def objective(rho):
        return rho + weights @ np.maximum(values - rho, 0.0) / (1.0 - level)

    found = minimize_scalar(objective, bounds=(0, 1), method="bounded", options={"xatol": 1e-12})
    return min(found.fun, *map(objective, values)) - weights @ values


STATISTICS = {
    "largest gap": (
        lambda lower, upper, weights: comparisons.largest_gap_ends(lower, upper),
        lambda values, weights: np.ptp(values),
        lambda values, weights: cp.max(values) - cp.min(values),
    ),
    "variance": (
        comparisons.variance_ends,
        variance,
        lambda values, weights: cp.sum(cp.multiply(weights, cp.square(values - weights @ values))),
    ),
    "CVaR deviation": (
        lambda lower, upper, weights: comparisons.cvar_deviation_ends(lower, upper, weights, level=0.4),
        lambda values, weights: deviation(values, weights, 0.4),
        lambda values, weights: cvar_program(values, weights, 0.4),
    ),
}


def cvar_program(values, weights, level):
    rho = cp.Variable()
    return rho + weights @ cp.pos(values - rho) / (1.0 - level) - weights @ values


@pytest.mark.parametrize("name", STATISTICS)
def test_least_values_are_those_of_the_convex_programs(name):
    ends, _, program = STATISTICS[name]
    for lower, upper, weights in boxes(12, num_groups=5):
        values = cp.Variable(5)
        problem = cp.Problem(cp.Minimize(program(values, weights)), [values >= lower, values <= upper])
        problem.solve(solver=cp.CLARABEL)
        assert ends(lower, upper, weights)[0] == pytest.approx(problem.value, abs=1e-6)


@pytest.mark.parametrize("name", STATISTICS)
def test_largest_values_are_those_of_the_corners(name):
    ends, definition, _ = STATISTICS[name]
    for lower, upper, weights in boxes(12, num_groups=5):
        corners = itertools.product(*zip(lower, upper, strict=True))
        largest = max(definition(np.array(corner), weights) for corner in corners)
        assert ends(lower, upper, weights)[1] == pytest.approx(largest, abs=1e-9)


@pytest.mark.parametrize("name", STATISTICS)
def test_single_points_give_the_definition(name):
    ends, definition, _ = STATISTICS[name]
    for values, _, weights in boxes(20, num_groups=7):
        assert ends(values, values, weights) == pytest.approx((definition(values, weights),) * 2, abs=1e-9)


@pytest.mark.parametrize("name", ["variance", "CVaR deviation"])
@pytest.mark.parametrize("num_groups", [2, 3, 9])
def test_bounds_for_many_groups_lie_just_above_the_corners(name, num_groups, monkeypatch):
    ends, _, _ = STATISTICS[name]
    for lower, upper, weights in boxes(60, num_groups=num_groups, seed=3):
        sharp = ends(lower, upper, weights)
        with monkeypatch.context() as patch:
            patch.setattr(comparisons, "MAX_VERTEX_GROUPS", 0)
            relaxed = ends(lower, upper, weights)
        assert relaxed[0] == sharp[0]
        assert relaxed[1] >= sharp[1] - 1e-12
        if name == "variance":  # only groups with the very same centre can lie between their ends: here, one
            assert relaxed[1] <= sharp[1] + np.max(weights * ((upper - lower) / 2) ** 2) + 1e-12


def test_the_relaxed_variance_is_the_concave_program():
    for lower, upper, weights in boxes(12, num_groups=6, seed=4):
        values = cp.Variable(6)
        chords = cp.multiply(lower + upper, values) - lower * upper
        problem = cp.Problem(
            cp.Maximize(weights @ chords - cp.square(weights @ values)), [values >= lower, values <= upper]
        )
        problem.solve(solver=cp.CLARABEL)
        found = comparisons._variance_relaxation(lower, upper, weights)
        assert found == pytest.approx(problem.value, abs=1e-6)


def test_gaps_of_two_intervals_by_hand():
    def gap(first, second):
        return comparisons.gap_ends(*np.array([first, second]).T)

    assert gap((0.1, 0.2), (0.5, 0.9)) == pytest.approx((0.3, 0.8))
    assert gap((0.5, 0.9), (0.1, 0.2)) == pytest.approx((0.3, 0.8))
    assert gap((0.1, 0.5), (0.4, 0.6)) == pytest.approx((0.0, 0.5))  # they overlap
    assert gap((0.1, 0.9), (0.4, 0.6)) == pytest.approx((0.0, 0.5))  # one inside the other
    wide = np.array([0.0, 0.5]), np.array([1.0, 0.5])
    assert comparisons.largest_gap_ends(*wide) == (0.0, 0.5)  # no pair is a group with itself


def fixed(intervals):
    """A functional that knows the interval of each group from its number of clients."""
    return lambda band: rb.Interval(*intervals[band.risks.num_clients])


def test_comparisons_of_known_intervals_by_hand():
    own = fixed({20: (0.1, 0.2), 25: (0.3, 0.5), 15: (0.15, 0.6)})
    weights = {"a": 0.5, "b": 0.25, "c": 0.25}
    assert compared(BANDS, "group_gap", own, first="a", second="b") == pytest.approx((0.1, 0.4))
    assert compared(BANDS, "group_gap", own, first="a", second="b", squared=True) == pytest.approx((0.01, 0.16))
    assert compared(BANDS, "largest_gap", own) == pytest.approx((0.1, 0.5))
    assert compared(BANDS, "worst_group", own) == pytest.approx((0.3, 0.6))
    assert compared(BANDS, "weighted_group_mean", own, weights=weights) == pytest.approx((0.1625, 0.375))
    assert compared(BANDS, "quadratic_gaps", own).lower == pytest.approx((0.1**2 + 2 * 0.05**2) / 3)
    assert compared(BANDS, "cvar_fairness", own, level=0.0) == pytest.approx((0.0, 0.0))
    # The worst quarter by weight: c at .6, the others at their lower ends.
    assert compared(BANDS, "cvar_fairness", own, level=0.75, weights=weights).upper == pytest.approx(0.6 - 0.275)


def test_every_band_is_that_of_its_clients_at_its_part_of_delta():
    risks = answers()
    shares = {"a": 0.5, "b": 0.3, "c": 0.1}
    bands = rb.group_bands(risks, THREE, delta=0.1, shares=shares, method="dkw", local="counted")
    assert bands.deltas == pytest.approx({"a": 0.05, "b": 0.03, "c": 0.01})
    assert bands.delta == pytest.approx(0.09)
    assert bands.num_clients == {"a": 20, "b": 25, "c": 15}
    alone = rb.band(rb.ClientRisks(risks.values[20:45], 80), delta=0.03, method="dkw", local="counted")
    assert np.array_equal(bands["b"].lower_points, alone.lower_points)
    assert np.array_equal(bands["b"].upper_levels, alone.upper_levels)
    assert BANDS.deltas == pytest.approx(dict.fromkeys("abc", 0.1 / 3))


def test_labels_masks_and_indices_say_the_same():
    labels = np.array(THREE)
    masks = {name: labels == name for name in "cab"}
    indices = {name: np.flatnonzero(labels == name)[::-1].tolist() for name in "bca"}
    texts = {
        rb.group_certificate(rb.group_bands(answers(), groups, delta=0.1), "largest_gap", "gini").to_json()
        for groups in (THREE, labels, masks, indices)
    }
    assert len(texts) == 1


def test_groups_may_overlap_and_leave_clients_out():
    bands = rb.group_bands(answers(), {"few": range(10), "all": np.ones(60, dtype=bool)}, delta=0.1)
    assert bands.num_clients == {"all": 60, "few": 10}
    assert rb.group_bands(answers(), [None] * 50 + ["x"] * 10, delta=0.1).num_clients == {"x": 10}


OPTIONS = {
    "group_gap": {"first": "c", "second": "a", "squared": True},
    "largest_gap": {},
    "quadratic_gaps": {},
    "group_variance": {"weights": {"a": 0.2, "b": 0.3, "c": 0.5}},
    "worst_group": {},
    "weighted_group_mean": {"weights": {"c": 0.2, "b": 0.3, "a": 0.5}},
    "cvar_fairness": {"level": np.float64(0.5)},
}


@pytest.mark.parametrize("functional", ["mean", "cvar:0.9", "quantile:0.5", "smoothed_median:0.1", "atkinson:0.5"])
@pytest.mark.parametrize("comparison", OPTIONS)
def test_certificates_hold_the_interval_and_verify(comparison, functional):
    certificate = rb.group_certificate(BANDS, comparison, functional, **OPTIONS[comparison])
    interval = compared(BANDS, comparison, functional, **OPTIONS[comparison])
    assert (certificate.lower, certificate.value) == pytest.approx(tuple(interval))
    assert certificate.validity == "certificate"
    assert certificate.delta == pytest.approx(0.1)
    stored = json.loads(certificate.to_json())
    assert rb.verify(stored).ok
    assert rb.Certificate.from_dict(stored).to_json() == certificate.to_json()


def test_measured_values_are_those_of_each_group():
    risks = answers()
    details = rb.group_certificate(BANDS, "largest_gap", "mean").details
    by_group = [risks.values[np.array(THREE) == name] for name in "abc"]
    assert details["group_measured"] == pytest.approx([v.mean() for v in by_group])
    worst = [np.sort(v)[::-1] for v in by_group]
    details = rb.group_certificate(BANDS, "largest_gap", "cvar:0.8").details
    assert details["group_measured"] == pytest.approx([v[: v.size // 5].mean() for v in worst])
    details = rb.group_certificate(BANDS, "largest_gap", "quantile:0.5").details
    assert details["group_measured"] == pytest.approx([np.quantile(v, 0.5, method="inverted_cdf") for v in by_group])
    assert details["group_num_clients"].tolist() == [20, 25, 15]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["recipe"]["answers"]["values"].__setitem__(0, 1.0),
        lambda data: data["recipe"]["groups"]["a"].__setitem__(0, 59),
        lambda data: data["recipe"]["bands"]["a"].__setitem__("delta", 0.001),
        lambda data: data.__setitem__("value", 0.0),
    ],
)
def test_verify_notices_a_change(change):
    data = json.loads(rb.group_certificate(BANDS, "largest_gap", "mean").to_json())
    assert rb.verify(data).ok
    change(data)
    assert not rb.verify(data).ok


def test_a_weight_of_ones_own_is_given_to_verify():
    weight = rb.QuantileWeight("rising", lambda p: p**3)
    certificate = rb.group_certificate(BANDS, "worst_group", weight)
    assert rb.verify(certificate, weights={"rising": weight}).ok
    with pytest.raises(ValueError, match="functional must be one of"):
        rb.verify(certificate)


@pytest.mark.parametrize("levels_of", [berk_jones_levels, dkw_levels])
def test_counting_more_missing_clients_only_lowers_the_levels(levels_of):
    """The proof for missing clients of unknown group needs it: the i-th of n + 1 values has a lower level than of n."""
    for delta in (0.001, 0.05, 0.4):
        for n in (2, 3, 5, 10, 30, 31, 100):
            fewer, more = (levels_of(size, delta, "two").lower for size in (n, n + 1))
            assert np.all(more[:n] <= fewer + 1e-12)
            fewer, more = (levels_of(size, delta, "lower").lower for size in (n, n + 1))
            assert np.all(more[:n] <= fewer + 1e-12)


def test_missing_and_wrong_answers_count_in_every_group():
    plain = rb.group_bands(answers(), THREE, delta=0.1)
    for options in ({"num_missing": 3, "missing": "worst"}, {"contamination": 2}):
        bands = rb.group_bands(answers(**options), THREE, delta=0.1)
        x = np.linspace(0, 1, 41)
        for name in "abc":
            assert np.all(bands[name].lower(x) <= plain[name].lower(x))
            assert np.all(bands[name].upper(x) >= plain[name].upper(x))
        certificate = rb.group_certificate(bands, "worst_group", "mean")
        assert rb.verify(certificate).ok
        assert certificate.value > compared(plain, "worst_group", "mean").upper
    with pytest.raises(ValueError, match="group 'c'"):
        rb.group_bands(answers(contamination=15), THREE, delta=0.1)


def test_eta_of_a_group_does_not_depend_on_who_of_it_answered():
    """100 clients were asked in 2 groups; default_eta(100 / 2), whatever the groups' numbers of answers."""
    sizes = np.where(np.arange(60) % 2, 80, 40)
    groups = {"few": range(10), "most": range(10, 60)}
    missing = rb.ClientRisks(answers().values, sizes, num_missing=40, missing="worst")
    known = rb.ClientRisks(answers().values, sizes)
    for local in ("marginal", "counted"):
        etas = {name: b.eta for name, b in rb.group_bands(missing, groups, delta=0.1, local=local).bands.items()}
        assert etas == dict.fromkeys(groups, default_eta(50))
        etas = {name: b.eta for name, b in rb.group_bands(known, groups, delta=0.1, local=local).bands.items()}
        assert etas == {"few": default_eta(10), "most": default_eta(50)}
    assert rb.group_bands(missing, groups, delta=0.1, eta=0.3)["few"].eta == 0.3
    assert default_eta(50 + 40) != default_eta(50)  # what the group with most answers would take by itself


def test_assumptions_speak_of_groups():
    lines = BANDS.assumptions
    assert "fixed before any risk was seen" in lines[0]
    assert any("within each group" in line and "that group" in line for line in lines)
    assert not any("from one meta-distribution" in line for line in lines)
    risks = rb.ClientRisks(answers().values, [80] * 20 + [40] * 20 + [80] * 20)
    by_chance = rb.group_bands(risks, {"first": range(20), "rest": range(20, 60)}, delta=0.1)
    assert any("by design, not by chance" in line for line in by_chance.assumptions)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: rb.group_bands(answers(), THREE[:-1], delta=0.1), r"one label per client \(60\), got 59"),
        (lambda: rb.group_bands(answers(), "a" * 60, delta=0.1), "got str"),
        (lambda: rb.group_bands(answers(), 7, delta=0.1), "got int"),
        (lambda: rb.group_bands(answers(), [1] * 60, delta=0.1), "nonempty text, got 1"),
        (lambda: rb.group_bands(answers(), ["a"] * 59 + [np.nan], delta=0.1), "nonempty text, got nan"),
        (lambda: rb.group_bands(answers(), [None] * 60, delta=0.1), "at least one group"),
        (lambda: rb.group_bands(answers(), ["a"] * 59 + ["b"], delta=0.1), "group 'b' has 1"),
        (lambda: rb.group_bands(answers(), {"a": []}, delta=0.1), "group 'a' has 0"),
        (lambda: rb.group_bands(answers(), {"a": [0, 60]}, delta=0.1), "from 0 to 59"),
        (lambda: rb.group_bands(answers(), {"a": [0, -1]}, delta=0.1), "from 0 to 59"),
        (lambda: rb.group_bands(answers(), {"a": [3, 3]}, delta=0.1), "name each client once"),
        (lambda: rb.group_bands(answers(), {"a": [0.0, 1.0]}, delta=0.1), "a mask of 60 booleans"),
        (lambda: rb.group_bands(answers(), {"a": [True, False]}, delta=0.1), "a mask of 60 booleans"),
        (lambda: rb.group_bands(answers(), {"a": [[0], [1, 2]]}, delta=0.1), "a mask of 60 booleans"),
        (lambda: rb.group_bands(answers(), THREE, delta=1.0), "delta must be in"),
        (lambda: rb.group_bands(answers(), THREE, delta=0.1, shares={"a": 1.0}), "one number for each of a, b, c"),
        (lambda: rb.group_bands(answers(), THREE, delta=0.1, shares=dict.fromkeys("abc", 0.4)), "sum to 1.2"),
        (lambda: rb.group_bands(answers(), THREE, delta=0.1, shares=dict.fromkeys("abc", np.nan)), "sum to nan"),
        (lambda: rb.group_bands(answers(), THREE, delta=0.1, shares=dict.fromkeys("abc", "x")), "must be numbers"),
        (lambda: rb.group_bands(answers(), THREE, delta=0.1, metod="dkw"), "got metod"),
        (
            lambda: rb.group_bands(
                rb.ClientRisks([0.1] * 6, 10, num_missing=1, missing="worst"), list("aaabbb"), delta=0.1,
                method="truncated:0.2:0.8",
            ),
            "need method berk_jones or dkw, got 'truncated",
        ),
        (lambda: BANDS["d"], "one of a, b, c"),
        (lambda: compared(BANDS, "group_gap", "mean", first="a", second="a"), "two different groups"),
        (lambda: compared(BANDS, "group_gap", "mean", first="a", second="d"), "one of a, b, c"),
        (lambda: compared(BANDS, "worst_group", "median"), "functional must be one of"),
        (lambda: compared(BANDS, "worst_group", "cvar"), "too few or too many"),
        (lambda: compared(BANDS, "worst_group", "cvar:x"), "must be numbers"),
        (lambda: compared(BANDS, "worst_group", "cvar:1"), r"in \[0, 1\)"),
        (lambda: compared(BANDS, "worst_group", "quantile:nan"), "level must lie in"),
        (lambda: compared(BANDS, "worst_group", 3), "must be a name"),
        (lambda: compared(BANDS, "worst_group", lambda band: 3), "lower <= upper"),
        (lambda: compared(BANDS, "worst_group", lambda band: (0.5, 0.1)), "lower <= upper"),
        (lambda: compared(BANDS, "worst_group", "mean_log_deviation"), "cannot be bounded in group 'a'"),
        (
            lambda: rb.group_certificate(rb.group_bands(answers(), ["a"] * 60, delta=0.1), "largest_gap", "mean"),
            "at least 2 groups",
        ),
        (lambda: compared(BANDS, "group_variance", "mean", weights={"a": 1.0}), "one number for each"),
        (lambda: compared(BANDS, "group_variance", "mean", weights=dict.fromkeys("abc", 0.3)), "sum to 0.9"),
        (lambda: compared(BANDS, "group_variance", "mean", weights={"a": 1.5, "b": -0.5, "c": 0.0}), "be >= 0"),
        (lambda: compared(BANDS, "cvar_fairness", "mean", level=1.0), r"in \[0, 1\)"),
        (lambda: rb.group_certificate(BANDS, "gap", "mean"), "comparison must be one of"),
        (lambda: rb.group_certificate(BANDS, "largest_gap", fixed({})), "functional with a name"),
        (lambda: rb.group_certificate(BANDS, "largest_gap", "mean", level=0.1), "options of largest_gap do not fit"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
