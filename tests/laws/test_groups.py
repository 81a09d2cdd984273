"""Laws of comparisons of groups, whatever the clients answered and however they are grouped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.groups import comparisons
from riskband.groups.comparisons import compared
from tests.laws.draws import LOCALS, METHODS, client_risks

FUNCTIONALS = st.sampled_from(["mean", "cvar:0.8", "quantile:0.5", "smoothed_median:0.2", "gini", "mean_range:2"])
OPTIONS = {
    "largest_gap": {},
    "quadratic_gaps": {},
    "group_variance": {},
    "worst_group": {},
    "weighted_group_mean": {},
    "cvar_fairness": {"level": 0.5},
}


def between(bands, first, second, functional, **options):
    return compared(bands, "group_gap", functional, first=first, second=second, **options)


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
        compared(bands, "group_gap", functional, first=a, second=b) for a in bands.names for b in bands.names if a < b
    ]  # fmt: skip
    largest = compared(bands, "largest_gap", functional)
    assert largest.lower == pytest.approx(max(gap.lower for gap in gaps), abs=1e-12)
    assert largest.upper == pytest.approx(max(gap.upper for gap in gaps), abs=1e-12)
    worst, average = compared(bands, "worst_group", functional), compared(bands, "weighted_group_mean", functional)
    assert average.lower <= worst.lower + 1e-12
    assert average.upper <= worst.upper + 1e-12
    if len(gaps) == 1:
        squared = between(bands, *bands.names, functional, squared=True)
        assert compared(bands, "quadratic_gaps", functional) == pytest.approx(squared, abs=1e-12)
        assert between(bands, *bands.names[::-1], functional) == gaps[0]
    assert compared(bands, "cvar_fairness", functional, level=0.0).upper == pytest.approx(0.0, abs=1e-12)
    assert all(lower <= upper for lower, upper in intervals.values())


@settings(max_examples=40)
@given(grouped(), FUNCTIONALS, st.sampled_from(sorted(OPTIONS)), st.randoms(use_true_random=False))
def test_the_order_of_clients_and_groups_changes_nothing(drawn, functional, name, random):
    risks, groups = drawn
    order = list(range(risks.num_clients))
    random.shuffle(order)
    place = {client: new for new, client in enumerate(order)}
    shuffled = rb.ClientRisks(risks.values[order], risks.num_examples[order], risks.binary)
    moved = {group: [place[client] for client in clients] for group, clients in reversed(groups.items())}
    first = compared(rb.group_bands(risks, groups, delta=0.1), name, functional, **OPTIONS[name])
    second = compared(rb.group_bands(shuffled, moved, delta=0.1), name, functional, **OPTIONS[name])
    assert first == pytest.approx(second, abs=1e-12)


@settings(max_examples=40)
@given(grouped(), FUNCTIONALS, st.sampled_from(sorted(OPTIONS)), LOCALS)
def test_a_smaller_delta_gives_a_wider_interval(drawn, functional, name, local):
    wide, narrow = (
        compared(rb.group_bands(*drawn, delta=delta, local=local), name, functional, **OPTIONS[name])
        for delta in (0.05, 0.5)
    )
    assert wide.lower <= narrow.lower + 1e-12
    assert wide.upper >= narrow.upper - 1e-12


@settings(max_examples=40)
@given(group_bands(), FUNCTIONALS, st.sampled_from(["largest_gap", "quadratic_gaps", "worst_group", "group_variance"]))
def test_certificates_verify(bands, functional, name):
    certificate = rb.group_certificate(bands, name, functional)
    assert rb.verify(rb.Certificate.from_json(certificate.to_json())).ok
