"""Laws of comparisons of groups, whatever the clients answered and however they are grouped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.groups import comparisons
from tests.laws.draws import LOCALS, METHODS, client_risks

FUNCTIONALS = st.sampled_from(["mean", "cvar:0.8", "quantile:0.5", "smoothed_median:0.2", "gini", "mean_range:2"])
COMPARISONS = {
    "largest_gap": comparisons.largest_gap,
    "quadratic_gaps": comparisons.quadratic_gaps,
    "group_variance": comparisons.group_variance,
    "worst_group": comparisons.worst_group,
    "weighted_group_mean": comparisons.weighted_group_mean,
    "cvar_fairness": lambda bands, functional: comparisons.cvar_fairness(bands, functional, level=0.5),
    "group_transform_mean": lambda bands, functional: comparisons.group_transform_mean(
        bands, functional, [0.3, -1.0, 2.0]
    ),
}


@st.composite
def grouped(draw):
    """Answers and overlapping groups of at least two clients."""
    risks = draw(client_risks(max_clients=14))
    clients = st.lists(st.integers(0, risks.num_clients - 1), min_size=2, unique=True)
    return risks, {f"g{i}": draw(clients) for i in range(draw(st.integers(2, 4)))}


@st.composite
def group_bands(draw):
    risks, groups = draw(grouped())
    return rb.group_bands(
        risks, groups, delta=draw(st.sampled_from([0.05, 0.6])), local=draw(LOCALS), method=draw(METHODS)
    )


@st.composite
def boxes(draw):
    size = draw(st.integers(1, 20))
    ends = np.array(draw(st.lists(st.tuples(RISK, RISK), min_size=size, max_size=size)))
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)))
    return ends.min(axis=1), ends.max(axis=1), weights / weights.sum()


RISK = st.floats(0.0, 1.0).map(lambda x: round(x, 6))
STATISTICS = {
    "maximum": (lambda low, high, w: comparisons.maximum_ends(low, high), lambda x, w: x.max()),
    "mean": (comparisons.mean_ends, lambda x, w: w @ x),
    "variance": (comparisons.variance_ends, lambda x, w: w @ (x - w @ x) ** 2),
    "deviation": (
        lambda low, high, w: comparisons.cvar_deviation_ends(low, high, w, level=0.7),
        lambda x, w: min(rho + w @ np.maximum(x - rho, 0) / 0.3 for rho in x) - w @ x,
    ),
}


@settings(max_examples=settings().max_examples * 3 // 2)
@given(boxes(), st.sampled_from(sorted(STATISTICS)), st.integers(0, 2**32 - 1))
def test_no_point_of_the_box_leaves_the_ends(box, name, seed):
    ends, statistic = STATISTICS[name]
    lower, upper, weights = box
    least, most = ends(lower, upper, weights)
    assert least <= most + 1e-12
    rng = np.random.default_rng(seed)
    for _ in range(20):
        point = lower + (upper - lower) * rng.beta(*rng.choice([0.1, 1.0], 2), lower.size)
        assert least - 1e-9 <= statistic(point, weights) <= most + 1e-9


@given(boxes(), st.integers(0, 2**32 - 1))
def test_no_pair_in_the_box_leaves_the_largest_gap(box, seed):
    lower, upper, _ = (np.tile(part, 2) for part in box)
    least, most = comparisons.largest_gap_ends(lower, upper)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        point = rng.uniform(lower, upper)
        assert least - 1e-12 <= np.ptp(point) <= most + 1e-12


@settings(max_examples=settings().max_examples * 3 // 5)
@given(group_bands(), FUNCTIONALS)
def test_comparisons_agree_with_each_other(bands, functional):
    intervals = rb.group_intervals(bands, functional)
    gaps = [
        comparisons.group_gap(bands, a, b, functional) for a in bands.names for b in bands.names if a < b
    ]  # fmt: skip
    largest = comparisons.largest_gap(bands, functional)
    assert largest.lower == pytest.approx(max(gap.lower for gap in gaps), abs=1e-12)
    assert largest.upper == pytest.approx(max(gap.upper for gap in gaps), abs=1e-12)
    worst, average = comparisons.worst_group(bands, functional), comparisons.weighted_group_mean(bands, functional)
    assert average.lower <= worst.lower + 1e-12
    assert average.upper <= worst.upper + 1e-12
    if len(gaps) == 1:
        squared = comparisons.group_gap(bands, *bands.names, functional, squared=True)
        assert comparisons.quadratic_gaps(bands, functional) == pytest.approx(squared, abs=1e-12)
        assert comparisons.group_gap(bands, *bands.names[::-1], functional) == gaps[0]
    assert comparisons.cvar_fairness(bands, functional, level=0.0).upper == pytest.approx(0.0, abs=1e-12)
    variance = comparisons.group_variance(bands, functional)
    second = comparisons.group_transform_mean(bands, functional, [0, 0, 1])
    assert variance.upper <= second.upper + 1e-12  # E T² - (E T)²
    assert all(lower <= upper for lower, upper in intervals.values())


@settings(max_examples=40)
@given(grouped(), FUNCTIONALS, st.sampled_from(sorted(COMPARISONS)), st.randoms(use_true_random=False))
def test_the_order_of_clients_and_groups_changes_nothing(drawn, functional, name, random):
    risks, groups = drawn
    order = list(range(risks.num_clients))
    random.shuffle(order)
    place = {client: new for new, client in enumerate(order)}
    shuffled = rb.ClientRisks(risks.values[order], risks.num_examples[order], risks.binary)
    moved = {group: [place[client] for client in clients] for group, clients in reversed(groups.items())}
    first = COMPARISONS[name](rb.group_bands(risks, groups, delta=0.1), functional)
    second = COMPARISONS[name](rb.group_bands(shuffled, moved, delta=0.1), functional)
    assert first == pytest.approx(second, abs=1e-12)


@settings(max_examples=40)
@given(grouped(), FUNCTIONALS, st.sampled_from(sorted(COMPARISONS)), LOCALS)
def test_a_smaller_delta_gives_a_wider_interval(drawn, functional, name, local):
    wide, narrow = (
        COMPARISONS[name](rb.group_bands(*drawn, delta=delta, local=local), functional) for delta in (0.05, 0.5)
    )
    assert wide.lower <= narrow.lower + 1e-12
    assert wide.upper >= narrow.upper - 1e-12


@settings(max_examples=40)
@given(group_bands(), FUNCTIONALS, st.sampled_from(["largest_gap", "quadratic_gaps", "worst_group", "group_variance"]))
def test_certificates_verify(bands, functional, name):
    certificate = rb.group_certificate(bands, name, functional)
    assert rb.verify(rb.Certificate.from_json(certificate.to_json())).ok
