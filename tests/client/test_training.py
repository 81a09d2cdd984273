"""Shares of the training split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.training import local_seed, training_partition

LABELS = np.random.default_rng(0).integers(5, size=403)


def shares(labels=LABELS, *, num_partitions, concentration, seed=0):
    return [
        training_partition(labels, partition=k, num_partitions=num_partitions, concentration=concentration, seed=seed)
        for k in range(num_partitions)
    ]


@settings(deadline=None)
@given(st.integers(1, 100), st.sampled_from([0.0, 1e-3, 0.1, 1.0, 100.0]), st.integers(0, 2**32))
def test_shares_are_disjoint_and_cover_the_split(num_partitions, concentration, seed):
    parts = shares(num_partitions=num_partitions, concentration=concentration, seed=seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(403))


def test_even_shares_differ_by_at_most_one_example():
    sizes = [len(part) for part in shares(num_partitions=10, concentration=0.0)]
    assert max(sizes) - min(sizes) <= 1


def test_a_small_concentration_gives_each_class_to_few_clients():
    def largest_share(concentration):
        parts = shares(num_partitions=10, concentration=concentration)
        counts = np.array([np.bincount(LABELS[part], minlength=5) for part in parts])
        return (counts.max(axis=0) / counts.sum(axis=0)).mean()

    assert largest_share(0.01) > 0.8
    assert largest_share(1000.0) < 0.15


def test_the_seed_decides_the_shares():
    first, again, other = (shares(num_partitions=4, concentration=1.0, seed=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"partition": 4}, r"partition must be in 0\.\.3, got 4"),
        ({"partition": -1}, r"partition must be in 0\.\.3, got -1"),
        ({"concentration": -0.1}, "concentration must be at least 0"),
        ({"concentration": float("nan")}, "concentration must be at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(setting, text):
    defaults = {"partition": 0, "num_partitions": 4, "concentration": 1.0, "seed": 0}
    with pytest.raises(ValueError, match=text):
        training_partition(LABELS, **(defaults | setting))


def test_local_seeds_differ_by_round_and_partition_and_fit_torch():
    seeds = {local_seed(0, round=r, partition=k) for r in range(20) for k in range(20)}
    assert len(seeds) == 400
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
