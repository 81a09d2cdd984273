"""Laws of dispersion measures and their intervals, whatever the clients answered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial

import riskband as rb
from papers.dispersion.transforms import (
    absolute_transform,
    polynomial_transform,
    smooth_transform,
    transformed_quantile_interval,
)
from riskband.functionals import dispersion as rd
from riskband.functionals.distributions import QuantileLimits, RiskDistribution
from riskband.functionals.functional import MEASURES, interval_of, resolve
from riskband.functionals.weights import LINEAR, maximum_weight, minimum_weight, smoothed_median_weight
from tests.laws.draws import LOCALS, METHODS, client_risks, random_member

NAMES = [
    "gini",
    "extended_gini:1.3",
    "extended_gini:3",
    "atkinson:0.3",
    "atkinson:1",
    "atkinson:2.5",
    "generalised_entropy:2",
    "generalised_entropy:4",
    "generalised_entropy:0.3",
    "generalised_entropy:-1",
    "theil",
    "mean_log_deviation",
    "hoover",
    "coefficient_of_variation",
    "top_share:0.1",
    "quantile_ratio:0.2:0.8",
    "quantile_range:0.2:0.8",
    "mean_range:3",
]
MEASURE_NAMES = st.sampled_from(NAMES)
DELTAS = st.sampled_from([0.05, 0.5, 0.9])


@st.composite
def bands(draw, *, max_clients=12, equal=False):
    """Two-sided bands, those of unequal sizes and of zero-one losses included."""
    risks = draw(client_risks(max_clients=max_clients, kinds=("binary", "bounded") if equal else LAW_KINDS))
    local = "marginal" if equal else draw(LOCALS)
    return rb.band(risks, delta=draw(DELTAS), method=draw(METHODS), local=local)


LAW_KINDS = ("binary", "binary, unequal", "bounded", "bounded, unequal")


def slack(value):
    return 1e-9 * (1.0 + abs(value)) if np.isfinite(value) else 0.0


def is_within(inner, outer):
    return inner[0] >= outer[0] - slack(outer[0]) and inner[1] <= outer[1] + slack(outer[1])


def test_every_kind_of_measure_is_drawn():
    assert {name.split(":")[0] for name in NAMES} == set(MEASURES)


@settings(deadline=None, max_examples=settings().max_examples * 2)
@given(bands(), MEASURE_NAMES)
def test_sharp_lies_within_plug_in_and_within_the_range(band, name):
    sharp, published = (interval_of(band, name, method=method) for method in ("sharp", "plugin"))
    assert is_within(sharp, published)
    assert is_within(published, resolve(name).range)
    assert sharp.lower <= sharp.upper + slack(sharp.upper)


@settings(deadline=None, max_examples=settings().max_examples * 2)
@given(bands(), MEASURE_NAMES, st.integers(0, 2**32 - 1))
def test_no_member_of_the_band_leaves_the_sharp_interval(band, name, seed):
    rng = np.random.default_rng(seed)
    interval, measure = interval_of(band, name), resolve(name)
    for _ in range(20):
        value = measure.of_distribution(random_member(band, rng))
        assert is_within((value, value), interval)


def is_member(law, band):
    """Its CDF stays within the band at every point where either jumps, and just before it.

    Bands that allow a mean below 1e-9 are read as allowing 0; of these the quantiles are compared.
    """
    if QuantileLimits.of_band(band).allow_all_zero:
        middles = law.levels - law.weights / 2
        is_above = np.all(law.risks >= band.quantile_lower(middles) - 1e-9 / law.weights.min())
        return is_above and np.all(law.risks <= band.quantile_upper(middles))
    points = np.unique(np.concatenate([law.risks, band.lower_points, band.upper_points, [0.0, 1.0]]))
    levels = np.concatenate([[0.0], law.levels])
    cdf = levels[np.searchsorted(law.risks, points, side="right")]
    before = levels[np.searchsorted(law.risks, points, side="left")]
    is_above = np.all(cdf >= band.lower(points) - 1e-12) and np.all(before >= band.lower_left_limit(points) - 1e-12)
    return is_above and np.all(cdf <= band.upper(points) + 1e-12)


@settings(deadline=None, max_examples=settings().max_examples * 2)
@given(bands(), MEASURE_NAMES)
def test_both_ends_are_attained_by_laws_of_the_band(band, name):
    interval, measure, laws = (
        interval_of(band, name),
        resolve(name),
        rd.extremal_distributions(band, name),
    )
    assert measure.of_distribution(laws.most_equal) == pytest.approx(interval.lower, rel=0, abs=1e-14)
    assert is_member(laws.most_equal, band)
    if laws.most_unequal is None:  # then laws within the band come as near as one likes, or grow without limit
        assert interval.upper == measure.range[1]
        limits = QuantileLimits.of_band(band)
        cuts = [1.0 - 2.0**-k for k in (5, 15, 30, 45)]
        values = [measure.of_distribution(limits.most_unequal(cut)) for cut in cuts]
        assert all(is_member(limits.most_unequal(cut), band) for cut in cuts)
        assert values == sorted(values)
        assert values[-1] > (0.9 * interval.upper if np.isfinite(interval.upper) else 3.0)
    else:
        assert measure.of_distribution(laws.most_unequal) == pytest.approx(interval.upper, rel=0, abs=1e-14)
        assert is_member(laws.most_unequal, band)


@settings(deadline=None)
@given(bands(equal=True), MEASURE_NAMES.filter(lambda name: not name.startswith("quantile")))
def test_convex_order_only_tightens_the_upper_end(band, name):
    sharp, tighter = (interval_of(band, name, method=method) for method in ("sharp", "convex_order"))
    assert tighter.lower == sharp.lower
    assert tighter.upper <= sharp.upper


@settings(deadline=None)
@given(client_risks(max_clients=12), MEASURE_NAMES, METHODS, LOCALS)
def test_a_smaller_delta_gives_a_wider_interval(risks, name, method, local):
    wide, narrow = (interval_of(rb.band(risks, delta=delta, method=method, local=local), name) for delta in (0.05, 0.5))
    assert is_within(narrow, wide)


RISKS = st.lists(st.floats(0.0, 1.0).map(lambda x: round(x, 6)), min_size=1, max_size=12)


@given(RISKS, st.floats(1e-3, 1.0), MEASURE_NAMES)
def test_relative_measures_do_not_depend_on_the_scale(values, scale, name):
    measure = resolve(name)
    small, large = (
        measure.of_distribution(RiskDistribution.of_values(np.array(values) * factor)) for factor in (scale, 1.0)
    )
    if measure.is_relative:
        assert small == pytest.approx(large, rel=1e-7, abs=1e-7)
    else:
        assert small == pytest.approx(scale * large, rel=1e-7, abs=1e-12)


@given(RISKS, st.integers(2, 5), st.randoms(use_true_random=False), MEASURE_NAMES)
def test_replicas_and_the_order_of_clients_change_nothing(values, num_copies, random, name):
    if name.startswith("quantile"):  # a quantile jumps at a level that is a multiple of 1/K
        name = name.replace("0.2:0.8", "0.2123:0.8321")
    copies = values * num_copies
    random.shuffle(copies)
    measure = resolve(name)
    once, often = (measure.of_distribution(RiskDistribution.of_values(v)) for v in (values, copies))
    assert often == pytest.approx(once, rel=1e-9, abs=1e-9)


@given(RISKS, st.floats(0.0, 1.0), MEASURE_NAMES.filter(lambda name: not name.startswith("quantile")))
def test_moving_every_risk_towards_the_mean_makes_them_more_equal(values, share, name):
    risks, measure = np.array(values), resolve(name)
    nearer = np.clip(risks + share * (risks.mean() - risks), 0.0, 1.0)
    before, after = (measure.of_distribution(RiskDistribution.of_values(v)) for v in (risks, nearer))
    assert after <= before + max(1e-7, slack(before))


@given(RISKS)
def test_named_measures_agree_with_the_families_they_belong_to(values):
    law = RiskDistribution.of_values(values)

    def value(name):
        return resolve(name).of_distribution(law)

    assert value("gini") == pytest.approx(value("extended_gini:2"), abs=1e-9)
    assert value("theil") == pytest.approx(value("generalised_entropy:1"), abs=1e-12)
    assert value("mean_log_deviation") == value("generalised_entropy:0")
    assert value("coefficient_of_variation") ** 2 == pytest.approx(2 * value("generalised_entropy:2"), abs=1e-9)
    assert value("mean_range:2") == pytest.approx(2 * value("gini") * law.mean, abs=1e-9)


@settings(deadline=None, max_examples=settings().max_examples * 3 // 5)
@given(bands(), st.integers(0, 2**32 - 1))
def test_lorenz_curves_of_members_stay_within_the_bounds(band, seed):
    shares = np.linspace(0, 1, 9)
    curve = rb.lorenz_certificate(band, shares=shares)
    published = rb.lorenz_certificate(band, shares=shares, method="plugin")
    assert np.all(curve.lower >= published.lower - 1e-9)
    assert np.all(curve.value <= published.value + 1e-9)
    assert np.all(published.value <= shares + 1e-9)
    for bound in (curve.lower, curve.value):
        assert np.all(np.diff(bound) >= -1e-9)
        assert bound[0] == 0.0
        assert bound[-1] == 1.0
    law = random_member(band, np.random.default_rng(seed))
    if law.mean > 0:
        points = np.concatenate([[0.0], np.cumsum(law.weights * law.risks)]) / law.mean
        values = np.interp(shares, np.concatenate([[0.0], law.levels]), points)
        assert np.all((values >= curve.lower - 1e-9) & (values <= curve.value + 1e-9))


TRANSFORMS = {
    "cubic": polynomial_transform(Polynomial([0.1, -2.0, 5.0, -3.0])),
    "absolute": absolute_transform(0.35),
    "wave": smooth_transform(lambda s: np.sin(9 * s), lambda s: 9 * np.cos(9 * s), name="wave"),
}
SIGNED = polynomial_transform(Polynomial([0, 1, -3, 2]))


@settings(deadline=None)
@given(bands(), st.sampled_from(sorted(TRANSFORMS)), st.booleans(), st.integers(0, 2**32 - 1))
def test_transformed_quantiles_of_members_stay_within_every_bound(band, name, is_signed, seed):
    transform, weight = TRANSFORMS[name], SIGNED if is_signed else LINEAR
    methods = ("pointwise", "jordan", *(("monomials",) if transform.coefficients else ()))
    found = {method: transformed_quantile_interval(band, transform, weight=weight, method=method) for method in methods}
    law = random_member(band, np.random.default_rng(seed))
    sums = weight.function if is_signed else weight.cumulative
    value = np.sum(transform.function(law.risks) * np.diff(sums(np.concatenate([[0.0], law.levels]))))
    assert is_within((value, value), found["pointwise"])
    assert all(is_within(found["pointwise"], interval) for interval in found.values())


@settings(deadline=None)
@given(bands(), st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_quantile_measures_of_members_stay_within_their_intervals(band, seed, level):
    law = random_member(band, np.random.default_rng(seed))
    ends = np.concatenate([[0.0], law.levels])
    for weight in (LINEAR, maximum_weight(3), minimum_weight(3), smoothed_median_weight(0.1)):
        value = np.sum(law.risks * np.diff(weight.cumulative(ends)))
        assert is_within((value, value), interval_of(band, weight))
    assert is_within((float(law.quantile(level)),) * 2, interval_of(band, f"quantile:{level!r}")) or level == 0.0
