"""Who trains: simulated clients that are others than those that answer, unless the run says that they are the same."""

from __future__ import annotations

import numpy as np
import pytest

from client import simulated
from client.simulated import examples, local_seed, training_examples
from protocol.models import build_model
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


MIXTURE = CONFIG | {"num-clients": 40, "examples-per-client": 100, "resolution-alphas": "1,2,2,3"}
MIXTURE |= {"resolution-levels": "4,5,7,8", "rotation-angles": ""}


@pytest.mark.parametrize("model_seed", [0, 1])
def test_looked_up_losses_are_those_of_running_the_model(model_seed):
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=model_seed)
    losses = ("zero_one", "brier")
    for k in (0, 7):
        held = examples(MIXTURE, partition=k, model="mlp")
        assert held.is_looked_up
        found = held.mean_losses(model, losses=losses)
        assert "_held" not in vars(held)  # no image was made
        plain = Population(spec_from_config(MIXTURE)).client(k)
        expected = plain.mean_losses(model, losses=losses)
        assert found["zero_one"] == expected["zero_one"]
        assert found["brier"] == pytest.approx(expected["brier"], abs=1e-6)
        assert held.x.tobytes() == plain.x.tobytes()
        assert held.y.tobytes() == plain.y.tobytes()
        assert held.x_shape == (1, 8, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"affine-sigma": 0.1},  # images of its own
        {"row-affine-stds": "0.1,0.1"},
        {"num-clients": 20},  # all examples are fewer than images in versions
    ],
)
def test_nothing_is_looked_up_where_images_are_a_clients_own_or_few(change):
    held = examples(MIXTURE | change, partition=3, model="mlp")
    assert not held.is_looked_up
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    plain = Population(spec_from_config(MIXTURE | change)).client(3)
    assert held.mean_losses(model, losses=["brier"]) == plain.mean_losses(model, losses=["brier"])


def test_tables_of_forty_candidates_are_all_kept():
    """If each pushed out an earlier one, every client would make all of them anew."""
    config = {**CONFIG, "num-clients": 1000}
    for seed in range(100, 140):
        model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=seed)
        examples(config, partition=0, model="mlp").mean_losses(model, losses=["zero_one"])
    assert sum(spec == spec_from_config(config) for spec, *_ in simulated._TABLES) >= 40
