"""What the clients hold and the model takes: a dataset that the server knows too, or data that each client brings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.data import NO_DATASET, is_function_name
from protocol.models import MAX_NUM_CLASSES
from worlds.datasets import load_dataset

if TYPE_CHECKING:
    from server.config import RunConfig

DATASET_RULE = (
    'use "digits", "npz:/absolute/path.npz" (a file that exists), "hf:OWNER/NAME", "none" (each client brings its own '
    'data) or "module:function" (which gives them)'
)
X_SHAPE_RULE = 'give the shape of one input such as "3,32,32"; needed where the server has no dataset'
NUM_CLASSES_RULE = f"give the number of classes, 2 to {MAX_NUM_CLASSES}; needed where the server has no dataset"
NUM_UNSEEN_RULE = "0 means: do not check the certificates on unseen clients; 0 where the server has no dataset"
TRAINING_RULE = 'use "central", "fedavg" or "checkpoint"; where the server has no dataset, "checkpoint"'


_WITHOUT_DATASET = {"num_unseen": 0, "training": "checkpoint", "target_sigmas": (), "group_sigmas": ()}


def is_dataset(value: str) -> bool:
    """Return whether the run configuration's ``dataset`` is one."""
    kind, _, rest = value.partition(":")
    is_file = kind == "npz" and is_absolute(rest) and Path(rest).expanduser().is_file()
    is_hugging_face = kind == "hf" and bool(rest)
    return value == "digits" or is_file or is_hugging_face or brings_own_data(value)


def brings_own_data(dataset: str) -> bool:
    """Return whether the clients have examples that the server cannot know."""
    is_function = is_function_name(dataset) and dataset.partition(":")[0] not in ("npz", "hf")
    return dataset == NO_DATASET or is_function


def fits_dataset(key: str, value: Any, dataset: str) -> bool:
    """Return whether a setting is possible with a dataset: without one, nothing can be trained, moved or checked."""
    if not brings_own_data(dataset):
        return True
    if key == "x_shape":
        return len(value) > 0
    if key == "num_classes":
        return int(value) >= 2
    return bool(value == _WITHOUT_DATASET[key])


def model_inputs(config: RunConfig) -> tuple[tuple[int, ...], int]:
    """Return the shape of one input and the number of classes of the model that a run evaluates."""
    if brings_own_data(config.dataset):
        return config.x_shape, config.num_classes
    data = load_dataset(config.dataset, seed=config.seed)
    return data.x_train.shape[1:], data.num_classes


def is_absolute(path: str) -> bool:
    """Return whether a path is absolute once ~ is replaced."""
    try:
        return Path(path).expanduser().is_absolute()
    except RuntimeError:  # "~nobody": there is no such user
        return False
