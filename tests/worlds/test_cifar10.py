"""The CIFAR-10 network: made-up weights against Keras's layers in numpy, the trained ones where the files are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from protocol.codec import to_array_record, to_arrays
from protocol.models import build_model, load_arrays, load_checkpoint, model_arrays
from tests.transport import curves_of
from worlds.cifar10 import MODEL, accuracy, load_network, main, network, write_checkpoint
from worlds.datasets import load_dataset

FOLDER = Path.home() / ".cache" / "riskband-data"
WEIGHTS, IMAGES = FOLDER / "cifar10_cnn.npz", FOLDER / "cifar10.npz"
SHAPES = {"x_shape": (3, 32, 32), "num_classes": 10}

CONVOLUTIONS = ((3, 64), (64, 64), (64, 128), (128, 128), (128, 64), (64, 64))
DENSE = ((64, 1024), (1024, 512), (512, 10))


def numbered(kind, number):
    return f"{kind}_{number}" if number else kind


def made_up(seed=0):
    """Weights named and laid out as Keras writes them: kernels (height, width, in, out) and (in, out)."""
    rng = np.random.default_rng(seed)
    found = {}

    def put(layer, part, values):
        found[f"{layer}.{layer}.{part}:0"] = values.astype(np.float32)

    for number, (before, after) in enumerate(CONVOLUTIONS):
        scale = (1 / 255 if number == 0 else 1.0) / np.sqrt(9 * before)
        put(numbered("conv2d", number), "kernel", scale * rng.normal(size=(3, 3, before, after)))
        put(numbered("conv2d", number), "bias", 0.1 * rng.normal(size=after))
        norm = numbered("batch_normalization", number)
        put(norm, "gamma", rng.uniform(0.5, 1.5, after))
        put(norm, "beta", 0.1 * rng.normal(size=after))
        put(norm, "moving_mean", rng.uniform(0, 0.5, after))
        put(norm, "moving_variance", rng.uniform(0.001, 0.2, after))  # small ones show the constant added to them
    for number, (before, after) in enumerate(DENSE):
        put(numbered("dense", number), "kernel", rng.normal(size=(before, after)) / np.sqrt(before))
        put(numbered("dense", number), "bias", 0.1 * rng.normal(size=after))
    return found


def keras_logits(weights, images):
    """The layers of the published model as Keras defines them, in float64, without the final ReLU.

    Images are raw, (num_images, height, width, 3) in 0 .. 255.
    """

    def part(layer, name):
        return weights[f"{layer}.{layer}.{name}:0"].astype(float)

    x = images.astype(float)
    for number in range(6):
        layer, norm = numbered("conv2d", number), numbered("batch_normalization", number)
        windows = sliding_window_view(x, (3, 3), axis=(1, 2))  # (n, height, width, in, 3, 3): padding "valid"
        x = np.einsum("nhwcij,ijco->nhwo", windows, part(layer, "kernel"), optimize=True) + part(layer, "bias")
        x = np.maximum(x, 0)
        deviation = np.sqrt(part(norm, "moving_variance") + 0.001)
        x = (x - part(norm, "moving_mean")) / deviation * part(norm, "gamma") + part(norm, "beta")
        if number in (1, 3):
            n, height, width, channels = x.shape
            x = x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
    x = x.reshape(len(x), -1)
    for number in range(3):
        layer = numbered("dense", number)
        x = x @ part(layer, "kernel") + part(layer, "bias")
        if number < 2:
            x = np.maximum(x, 0)
    return x


def raw_images(num=3, seed=1):
    return np.random.default_rng(seed).integers(0, 256, size=(num, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module", name="weights")
def _weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("cifar10") / "weights.npz"
    np.savez(path, **made_up())
    return path


@pytest.fixture(name="images")
def _images(tmp_path, weights):
    """A dataset file whose labels are what the network of `weights` says, except for the last of five."""
    images = raw_images(5)
    labels = keras_logits(made_up(), images).argmax(axis=1)
    labels[-1] = (labels[-1] + 1) % 10
    path = tmp_path / "images.npz"
    # The training part is not looked at; it has one image of each class, as the pool must have as well.
    pool, classes = np.concatenate([images, raw_images(10, seed=2)]), np.arange(10)
    np.savez(path, x_train=raw_images(10), y_train=classes, x_test=pool, y_test=np.concatenate([labels, classes]))
    return path


def test_the_network_is_that_of_keras_on_our_images(weights, images):
    data = load_dataset(f"npz:{images}")  # channels first, in [0, 1]
    with torch.no_grad():
        logits = load_network(weights)(torch.from_numpy(data.x_pool.copy())).numpy()
    expected = keras_logits(made_up(), np.load(images)["x_test"])
    assert expected.std() > 0.1
    assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())


def test_accuracy_is_the_share_of_labels_that_are_the_largest_logit(weights, images, capsys):
    data = load_dataset(f"npz:{images}")
    expected = (keras_logits(made_up(), np.load(images)["x_test"]).argmax(axis=1) == data.y_pool).mean()
    assert accuracy(load_network(weights), data.x_pool, data.y_pool, batch_size=4) == pytest.approx(expected)
    assert accuracy(load_network(weights), data.x_pool[:5], data.y_pool[:5]) == pytest.approx(0.8)
    assert main(["--weights", str(weights), "--data", str(images)]) == 0
    assert f"15 test images: {100 * expected:.2f} %" in capsys.readouterr().out


def test_the_checkpoint_gives_every_client_the_same_network(weights, tmp_path):
    before = torch.random.get_rng_state()
    write_checkpoint(weights, tmp_path / "model.pt")
    assert main(["--weights", str(weights), "--out", str(tmp_path / "again.pt")]) == 0
    assert torch.equal(torch.random.get_rng_state(), before)
    arrays = load_checkpoint(tmp_path / "model.pt")
    for name, array in load_checkpoint(tmp_path / "again.pt").items():
        assert_array_equal(array, arrays[name])
    model = build_model(MODEL, seed=3, **SHAPES)
    load_arrays(model, to_arrays(to_array_record(arrays)))  # as it travels
    expected = model_arrays(load_network(weights))
    for name, array in model_arrays(model).items():
        assert_array_equal(array, expected[name])


def test_the_head_is_found_so_that_representation_space_works(weights):
    x = np.random.default_rng(0).random((6, 3, 32, 32), dtype=np.float32)
    curves = curves_of(load_network(weights), x, np.arange(6), loss="zero_one", order=2)
    assert curves.guarantee == "exact"
    assert list(network(**SHAPES).named_modules())[-1][0] == "dense_2"


def test_it_is_made_of_layers_that_every_tool_knows():
    known = (nn.Conv2d, nn.ReLU, nn.BatchNorm2d, nn.MaxPool2d, nn.Flatten, nn.Linear)
    model = network(**SHAPES)
    assert type(model) is nn.Sequential
    assert {type(layer) for layer in model} == set(known)


def changed(name, change):
    weights = made_up()
    weights[name] = change(weights[name])
    return weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda: {}, r"'conv2d\.conv2d\.kernel:0' is missing"),
        (lambda: made_up() | {"dense_3.dense_3.bias:0": np.zeros(10)}, r"'dense_3\.dense_3\.bias:0' is no part of it"),
        (lambda: changed("dense_2.dense_2.kernel:0", np.transpose), r"has shape \(10, 512\) instead of \(512, 10\)"),
        (lambda: changed("conv2d.conv2d.kernel:0", lambda a: a.ravel()), r"shape \(1728,\) instead of \(3, 3, 3, 64\)"),
        (
            lambda: changed("dense.dense.bias:0", lambda a: a * np.nan),
            r"'dense\.dense\.bias:0' has values that are not",
        ),
        (lambda: changed("dense.dense.bias:0", lambda a: a.astype(str)), "has values that are not finite numbers"),
        (
            lambda: changed("batch_normalization.batch_normalization.moving_variance:0", np.negative),
            "has variances below 0",
        ),
    ],
)
def test_weights_of_something_else_are_refused(tmp_path, weights, message):
    np.savez(tmp_path / "weights.npz", **weights())
    with pytest.raises(ValueError, match=f"weights must be .*{message}.*; "):
        write_checkpoint(tmp_path / "weights.npz", tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_files_that_cannot_be_read_are_refused(tmp_path, content, capsys):
    path = tmp_path / "weights.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"readable \.npz file"):
        load_network(path)
    with pytest.raises(SystemExit, match="2"):
        main(["--weights", str(path), "--out", str(tmp_path / "model.pt")])
    assert "readable .npz file" in capsys.readouterr().err


def test_a_command_line_that_asks_for_nothing_or_cannot_write_is_refused(weights, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--weights", str(weights)])
    with pytest.raises(SystemExit, match="2"):
        main(["--weights", str(weights), "--out", str(tmp_path / "no" / "folder" / "model.pt")])
    assert "must be in a folder that exists" in capsys.readouterr().err


@pytest.mark.parametrize("x_shape", [(3, 28, 28), (1, 32, 32), (3072,)])
def test_other_images_are_refused(x_shape):
    with pytest.raises(ValueError, match=r"needs inputs of shape \(3, 32, 32\), got"):
        network(x_shape=x_shape, num_classes=10)


@pytest.mark.parametrize(("x", "y"), [(np.zeros((0, 3, 32, 32)), np.zeros(0)), (np.zeros((2, 3, 32, 32)), np.zeros(1))])
def test_accuracy_needs_one_label_for_each_image(x, y):
    with pytest.raises(ValueError, match="the same length of at least 1"):
        accuracy(nn.Flatten(), x.astype(np.float32), y.astype(int))


@pytest.mark.slow
@pytest.mark.skipif(not (WEIGHTS.exists() and IMAGES.exists()), reason="CIFAR-10 or its network is not on this machine")
def test_the_published_accuracy_is_reproduced():
    data = load_dataset(f"npz:{IMAGES}")
    assert len(data.y_pool) == 10_000
    assert round(10_000 * accuracy(load_network(WEIGHTS), data.x_pool, data.y_pool)) == 8014
