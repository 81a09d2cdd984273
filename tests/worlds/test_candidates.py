"""Candidates from one training run."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.models import build_model, load_arrays, model_arrays
from protocol.weight_sets import packed
from riskband.models.evaluation import mean_loss
from riskband.models.losses import get_loss
from worlds.candidates import candidate_models, checkpoints
from worlds.datasets import load_dataset
from worlds.training import train_centrally

TRAINING = {"model": "mlp", "seed": 3, "learning_rate": 0.003, "augment_sigma": 0.1}
DATA = load_dataset("digits", seed=0)


@pytest.fixture(scope="module")
def kept():
    return checkpoints(DATA, epochs=(3, 1, 2), **TRAINING)


def test_a_checkpoint_is_the_model_that_was_trained_so_long(kept):
    model = train_centrally(DATA, num_epochs=2, **TRAINING)
    for name, array in model_arrays(model).items():
        np.testing.assert_array_equal(kept[2][name], array)


def test_checkpoints_are_kept_in_order_and_do_not_share_memory(kept):
    assert list(kept) == [1, 2, 3]
    assert not np.array_equal(next(iter(kept[1].values())), next(iter(kept[3].values())))


def test_candidates_travel_with_one_set_of_weights_per_checkpoint(kept):
    models = candidate_models(kept, loss="zero_one", thresholds=(0, 0.5, 0.9))
    candidates, arrays = packed(models)
    assert [(candidate.name, candidate.weights, candidate.loss) for candidate in candidates] == [
        ("epochs-1", 0, "zero_one"),
        ("epochs-2", 1, "zero_one"),
        ("epochs-3", 2, "zero_one"),
        ("epochs-3,abstain:0.0", 2, "abstain:0.0"),
        ("epochs-3,abstain:0.5", 2, "abstain:0.5"),
        ("epochs-3,abstain:0.9", 2, "abstain:0.9"),
    ]
    assert len(arrays) == 3 * len(kept[1])
    assert all(get_loss(candidate.loss).name == candidate.loss for candidate in candidates)


def test_a_threshold_trades_errors_for_abstentions(kept):
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    load_arrays(model, kept[1])
    names = ("zero_one", "abstain:0.2", "abstain:1.0")
    errors, some, always = (mean_loss(model, DATA.x_pool, DATA.y_pool, loss=name)[0] for name in names)
    assert some < errors  # after one epoch the model is often unsure, and then often wrong
    assert always == 0.25


@pytest.mark.parametrize("epochs", [(), (0,), (1.5,), (2, 2), (True,)])
def test_epochs_that_cannot_be_kept_are_refused(epochs):
    with pytest.raises(ValueError, match="epoch"):
        checkpoints(DATA, epochs=epochs, **TRAINING)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"thresholds": (1.2,)}, "threshold"),
        ({"thresholds": (float("nan"),)}, "threshold"),
        ({"thresholds": (0.5, 0.50)}, "must differ"),
    ],
)
def test_thresholds_that_mean_nothing_are_refused(kept, settings, text):
    with pytest.raises(ValueError, match=text):
        candidate_models(kept, loss="zero_one", **settings)
    with pytest.raises(ValueError, match="at least one checkpoint"):
        candidate_models({}, loss="zero_one")
