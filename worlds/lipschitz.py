"""``python -m worlds.lipschitz``: train models that are Lipschitz by design, and say what is certified of them.

    python -m worlds.lipschitz digits --out model.pt
    python -m worlds.lipschitz cifar10 --data npz:cifar10.npz --out model.pt

writes a checkpoint for ``model = "lipschitz-cnn"`` and ``training = "checkpoint"``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.models import build_model, save_checkpoint
from riskband.adversaries import LipschitzAdversary, TransportProblem, margin_constants
from riskband.adversaries.spaces import point_batches
from riskband.models.evaluation import mean_loss
from worlds.datasets import BaseData, load_dataset
from worlds.training import train_epochs

DISTANCES: Mapping[str, tuple[float, ...]] = {
    "digits": (0.1, 0.2, 0.5),
    "mnist": (0.3, 1.0, 1.58),
    "cifar10": (36 / 255, 72 / 255, 108 / 255),
}
"""In l2, at which certified accuracy is printed; pixels lie in [0, 1]."""

Augmentation = Callable[[NDArray[np.float32], np.random.Generator], NDArray[np.float32]]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, by `worlds.training.train_epochs`."""

    num_epochs: int
    learning_rate: float
    batch_size: int
    margin: float
    augment: Augmentation = lambda images, _: images


def cropped(images: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return images (num_examples, channels, height, width), each moved by up to two pixels; the edges are mirrored."""
    height, width = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    rows, columns = rng.integers(0, 5, (2, len(images)))
    return np.ascontiguousarray(windows[np.arange(len(images)), :, rows, columns])


def cropped_and_mirrored(images: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the same, every second one as in a mirror."""
    moved = cropped(images, rng)
    is_mirrored = rng.random(len(moved)) < 0.5
    moved[is_mirrored] = moved[is_mirrored, :, :, ::-1]
    return moved


RECIPES: Mapping[str, Recipe] = {
    "digits": Recipe(num_epochs=40, learning_rate=0.02, batch_size=64, margin=0.5),
    "mnist": Recipe(num_epochs=5, learning_rate=0.02, batch_size=256, margin=1.0, augment=cropped),
    "cifar10": Recipe(num_epochs=24, learning_rate=0.02, batch_size=256, margin=0.5, augment=cropped_and_mirrored),
}


def trained(data: BaseData, recipe: Recipe, *, seed: int) -> nn.Module:
    """Return a "lipschitz-cnn" trained on the training split, and print a line after each pass."""
    model = build_model("lipschitz-cnn", x_shape=data.x_train.shape[1:], num_classes=data.num_classes, seed=seed)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third of the time on a CPU
    started = time.process_time()

    def say(epoch: int, model: nn.Module) -> None:
        risk, _ = mean_loss(model, data.x_pool[:1000], data.y_pool[:1000], loss="zero_one")
        print(f"epoch {epoch}: {time.process_time() - started:.0f} s, accuracy {1.0 - risk:.3f}", flush=True)

    settings = {name: value for name, value in vars(recipe).items() if name != "augment"}
    train_epochs(
        model,
        data.x_train,
        data.y_train,
        **settings,
        seed=seed,
        is_orthogonal=True,
        is_one_cycle=True,
        change=lambda _model, images, _labels, rng: recipe.augment(images, rng),
        after_epoch=say,
    )
    return model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


def certified_distances(model: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for each image a proved l2 distance below which it has its label, (num_examples,); 0 if it has another."""
    adversary = LipschitzAdversary(model, TransportProblem("zero_one", 1, "l2", "input", "lipschitz"), method="product")
    found = []
    for batch in point_batches(model, x, y, loss="zero_one"):
        bounding = adversary.examine(batch).bounding
        assert bounding is not None
        found.append(bounding.costs[:, 0].numpy())
    return np.concatenate(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m worlds.lipschitz", description="Train a lipschitz-cnn.")
    parser.add_argument("recipe", choices=RECIPES, help="how it is trained")
    parser.add_argument("--data", metavar="NAME", help='a dataset such as "npz:cifar10.npz"; of digits not needed')
    parser.add_argument("--out", metavar="FILE", help="write a checkpoint for training = checkpoint")
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over the images, if not those of the recipe")
    parser.add_argument("--seed", type=int, default=0, help="decides all that is random (default: 0)")
    options = parser.parse_args(arguments)
    if options.data is None and options.recipe != "digits":
        parser.error(f"the images of {options.recipe} are read from a file; give --data npz:FILE")
    if options.out and not Path(options.out).absolute().parent.is_dir():
        parser.error(f"the checkpoint must be in a folder that exists, got {options.out!r}; make the folder first")
    recipe = RECIPES[options.recipe]
    try:
        data = load_dataset(options.data or options.recipe, seed=options.seed)
        recipe = recipe if options.epochs is None else replace(recipe, num_epochs=options.epochs)
        model = trained(data, recipe, seed=options.seed)
    except ValueError as error:
        parser.error(str(error))
    if options.out:
        save_checkpoint(model, options.out)
        print(f"checkpoint: {options.out}")
    print(summary(model, data, DISTANCES[options.recipe]))
    return 0


def summary(model: nn.Module, data: BaseData, distances: Sequence[float]) -> str:
    """Return what is measured and certified of a model on the pool, in a few lines."""
    largest = float(margin_constants(model, data.x_pool.shape[1:], norm="l2", method="product").max())
    found = certified_distances(model, data.x_pool, data.y_pool)
    shares = ", ".join(f"{np.mean(found > distance):.4f} within {distance:.3f}" for distance in distances)
    risk, number = mean_loss(model, data.x_pool, data.y_pool, loss="zero_one")
    return (
        f"{number} images that were not trained on: accuracy {1.0 - risk:.4f}; certified in l2: {shares}\n"
        f"largest constant of a margin: {largest:.4f}; sqrt 2 is that of an orthogonal model"
    )


if __name__ == "__main__":
    raise SystemExit(main())
