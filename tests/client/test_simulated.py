"""Who trains: simulated clients that are others than those that answer, unless the run says that they are the same."""

from __future__ import annotations

import numpy as np
import pytest

from client.simulated import local_seed, training_examples
from worlds.datasets import load_dataset
from worlds.population import Population, spec_from_config

CONFIG = {
    "dataset": "digits",
    "seed": 4,
    "examples-per-client": 30,
    "affine-sigma": 0.0,
    "dirichlet-concentration": 0.3,
    "num-clients": 6,
    "num-training-clients": 4,
    "answered-by": "fresh",
}


def label_shares(examples):
    return np.bincount(examples.y, minlength=10) / len(examples.y)


def test_so_many_clients_train_and_no_others():
    assert [training_examples(CONFIG, partition=k) is None for k in range(6)] == [False] * 4 + [True] * 2
    everyone = CONFIG | {"num-training-clients": 0}
    assert [training_examples(everyone, partition=k) is None for k in range(7)] == [False] * 6 + [True]


@pytest.mark.parametrize(("answered_by", "is_same"), [("fresh", False), ("trainers", True)])
def test_those_that_train_are_those_that_answer_only_if_the_run_says_so(answered_by, is_same):
    config = CONFIG | {"examples-per-client": 4000, "answered-by": answered_by}
    answering = Population(spec_from_config(config))
    for k in range(3):
        trained, held = label_shares(training_examples(config, partition=k)), label_shares(answering.client(k))
        # The label shares are drawn from Dirichlet(0.3, …): two clients have different ones, two draws of one do not.
        assert (np.abs(trained - held).sum() < 0.1) == is_same


def test_images_that_are_trained_on_are_not_in_the_pool_that_clients_answer_from():
    data = load_dataset("digits", seed=4)
    pool = {image.tobytes() for image in data.x_pool} - {image.tobytes() for image in data.x_train}
    split = {image.tobytes() for image in data.x_train}
    for answered_by in ("fresh", "trainers"):
        held = training_examples(CONFIG | {"answered-by": answered_by}, partition=1)
        assert {image.tobytes() for image in held.x} <= split
        assert not {image.tobytes() for image in held.x} & pool


def test_the_same_seed_gives_the_same_examples():
    first, again, other = (training_examples(CONFIG | {"seed": seed}, partition=1) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.y, again.y)
    assert not np.array_equal(first.y, other.y)


def test_local_seeds_differ_by_round_and_partition_and_fit_torch():
    seeds = {local_seed(0, round=r, partition=k) for r in range(20) for k in range(20)}
    assert len(seeds) == 400
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
