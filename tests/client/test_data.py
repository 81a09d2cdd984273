"""Clients that bring their own examples: functions, loaders and files in, checked arrays or a rule out."""

from __future__ import annotations

import io
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from client.data import data_place, fitted, is_function_name, load_data
from riskband.checks import RefusedError

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, size=(7, 6, 5, 3), dtype=np.uint8)  # (N, H, W, C)
LABELS = np.array([0, 1, 2, 0, 1, 2, 2])
X = RNG.normal(size=(7, 3)).astype(np.float32)

MODULE = """
import numpy as np, torch
from pathlib import Path
X, Y = np.load(Path(__file__).with_name("x.npy")), np.array([0, 1, 2, 0, 1, 2, 2])
def plain(): return X, Y
def tensors(): return torch.from_numpy(X), torch.from_numpy(Y)
def by_config(node_config): return X * node_config["scale"], Y
def by_partition(partition_id, num_partitions, batch_size):
    own = slice(partition_id, None, num_partitions)
    return [[("wrong", "split")]], loader(X[own], Y[own], batch_size)
def loader(x=X, y=Y, batch_size=3):
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(data, batch_size=batch_size)
def mappings(): return iter([{"img": torch.from_numpy(X[:4]), "label": torch.from_numpy(Y[:4])},
                             {"img": torch.from_numpy(X[4:]), "label": torch.from_numpy(Y[4:])}])
def empty(): return iter([])
def mixed(): return iter([(X[:4].astype(np.uint8), Y[:4]), (X[4:], Y[4:])])
def three(): return 1, 2, 3
def needs(path): return X, Y
def strange(): return iter([{"a": X, "b": Y}])
number = 3
"""


@pytest.fixture(name="module")
def _module(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "own_examples.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_examples", raising=False)
    return "own_examples"


@pytest.mark.parametrize("function", ["plain", "tensors", "loader", "mappings"])
def test_a_function_gives_its_arrays_whatever_their_wrapping(module, function):
    examples = fitted(*load_data(f"{module}:{function}", {}), x_shape=(3,), num_classes=3)
    np.testing.assert_array_equal(examples.x, X)
    np.testing.assert_array_equal(examples.y, LABELS)
    assert (examples.x.dtype, examples.y.dtype) == (np.float32, np.int64)


def test_a_function_is_called_with_what_it_asks_for(module):
    x, _ = load_data(f"{module}:by_config", {"scale": 2})
    np.testing.assert_array_equal(x, 2 * X)
    x, y = load_data(
        f"{module}:by_partition", {"partition-id": 1, "num-partitions": 3}
    )  # of two loaders the test split
    np.testing.assert_array_equal(x, X[1::3])
    np.testing.assert_array_equal(y, LABELS[1::3])


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        ("needs", "must need no arguments but node_config"),
        ("by_partition", "must need no arguments but"),  # and there is no partition
        ("three", "must return"),
        ("empty", "at least one example"),
        ("mixed", "all of uint8 or none"),
        ("strange", "a batch must be"),
        ("number", "must name a function, got int"),
        ("absent", "must be importable, got AttributeError; .* and name a function in it"),
    ],
)
def test_a_function_that_gives_no_examples_is_refused(module, function, rule):
    with pytest.raises(RefusedError, match=rule):
        load_data(f"{module}:{function}", {})


@pytest.mark.parametrize("place", ["", "nothing", "relative/path.npz", "a b:c", "os:", ":load"])
def test_a_place_is_a_function_or_an_absolute_path(place):
    with pytest.raises(RefusedError, match='must be "module:function" or an absolute path'):
        load_data(place, {})


def test_a_function_that_the_server_names_must_be_about_one_client(module, tmp_path):
    load_data(f"{module}:by_config", {"scale": 1}, is_owners=False)
    with pytest.raises(RefusedError, match="must take node_config or partition_id"):
        load_data(f"{module}:plain", {}, is_owners=False)
    with pytest.raises(RefusedError):  # the server names no files
        load_data(str(tmp_path / "x.npz"), {}, is_owners=False)


def test_the_owners_data_come_before_the_servers():
    assert data_place({"data": "/x"}, {"dataset": "digits"}) == "/x"
    assert data_place({"data": "/x"}, {"dataset": "other:load"}) == "/x"
    assert data_place({}, {"dataset": "own:load"}) == "own:load"
    named = {"client-id": "a"}
    assert data_place(named | {"data": "/x"}, {"dataset": "other:load"}) == "/x"
    assert data_place(named, {"dataset": "digits"}) is None
    for dataset, place in {"own:load": "own:load", "npz:/a/b.npz": None, "hf:a/b": None}.items():
        assert data_place(named | {"allow-run-dataset": True, "allow-modules": "own"}, {"dataset": dataset}) == place
        for refusing in (named, named | {"allow-run-dataset": False}, named | {"allow-run-dataset": "yes"}):
            with pytest.raises(RefusedError, match="not for a server to choose what a client reads"):
                data_place(refusing, {"dataset": dataset})
    assert data_place({}, {"dataset": "digits"}) is None
    assert data_place({}, {"dataset": "npz:/a/b.npz"}) is None
    with pytest.raises(RefusedError, match="must have the key 'data'"):
        data_place({}, {"dataset": "none"})
    assert is_function_name("a.b:c")
    assert not is_function_name("npz:/a")


def write(kind, folder):
    """Write IMAGES and LABELS in one of the ways that are read, and return the place."""
    if kind == "npz":
        np.savez(folder / "a.npz", x=IMAGES, y=LABELS)
        return folder / "a.npz"
    if kind == "folder with an npz":
        return write("npz", folder).parent
    if kind == "parquet":
        files = []
        for image in IMAGES:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, format="PNG")
            files.append({"bytes": buffer.getvalue(), "path": None})
        parquet.write_table(pa.table({"img": files, "label": LABELS}), folder / "a.parquet")
        return folder / "a.parquet"
    names = {"0": "0", "1": "1", "2": "2"} if kind == "numbered" else {"0": "zebra", "1": "ant", "2": "mole"}
    if kind == "named":
        (folder / "classes.txt").write_text("zebra\nant\nmole\n")
    for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        (folder / names[str(label)]).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / names[str(label)] / f"{number}.png")
    return folder


@pytest.mark.parametrize("kind", ["npz", "folder with an npz", "parquet", "numbered", "named"])
def test_files_give_images_channels_first_in_the_unit_range(tmp_path, kind):
    examples = fitted(*load_data(str(write(kind, tmp_path)), {}), x_shape=(3, 6, 5), num_classes=3)
    order = np.arange(7) if kind not in ("numbered", "named") else None
    expected = np.moveaxis(IMAGES, -1, 1) / np.float32(255)
    if order is None:  # folders are read name by name
        names = ["0", "1", "2"] if kind == "numbered" else ["ant", "mole", "zebra"]
        classes = {"ant": 1, "mole": 2, "zebra": 0, "0": 0, "1": 1, "2": 2}
        order = np.concatenate([np.flatnonzero(classes[name] == LABELS) for name in names])
    np.testing.assert_array_equal(examples.x, expected[order])
    np.testing.assert_array_equal(examples.y, LABELS[order])


def test_lists_of_features_in_a_parquet_file(tmp_path):
    parquet.write_table(pa.table({"features": X.tolist(), "label": LABELS}), tmp_path / "a.parquet")
    examples = fitted(*load_data(str(tmp_path), {}), x_shape=(3,), num_classes=3)
    np.testing.assert_array_equal(examples.x, X)


def broken_files(folder):
    np.savez(folder / "keys.npz", a=X)
    (folder / "text.npz").write_text("no archive")
    np.savez(folder / "pickled.npz", x=np.array([object()]), y=LABELS)
    (folder / "text.parquet").write_text("no table")
    parquet.write_table(pa.table({"z": [1]}), folder / "columns.parquet")
    parquet.write_table(pa.table({"x": [[1], [1, 2]], "y": [0, 1]}), folder / "ragged.parquet")
    for name in ("unnamed/cat", "words/0", "empty", "two"):
        (folder / name).mkdir(parents=True)
    (folder / "unnamed/cat/a.png").write_text("x")
    (folder / "words/0/a.png").write_text("x")
    np.savez(folder / "two/a.npz", x=X, y=LABELS)
    np.savez(folder / "two/b.npz", x=X, y=LABELS)
    return [*sorted(p for p in folder.iterdir()), folder / "absent.npz", folder / "absent.csv"]


def test_files_that_cannot_be_read_are_refused_without_naming_them(tmp_path):
    places = broken_files(tmp_path)
    assert len(places) == 12
    for place in places:
        with pytest.raises(RefusedError) as caught:
            load_data(str(place), {})
        text = str(caught.value)
        assert "must" in text, text
        for word in (str(tmp_path), place.stem + ".", "cat"):
            assert word not in text, (place, text)


@pytest.mark.parametrize(
    ("x", "y", "rule"),
    [
        (X, LABELS[:5], "inputs .* and one label each"),
        (X, LABELS[:, None], "inputs .* and one label each"),
        (X[:0], LABELS[:0], "at least one example"),
        (X, LABELS + 0.5, "labels must be whole numbers, got dtype float64"),
        (X, LABELS == 1, "labels must be whole numbers, got dtype bool"),
        (X, LABELS - 1, "labels must be at least 0"),
        (X, LABELS + 1, r"labels must lie in 0 \.\. 2"),
        (np.where(X > 0, np.nan, X), LABELS, "inputs must be finite"),
        (X.astype(np.float64) * 1e300, LABELS, "inputs must be finite"),
        (X[:, :2], LABELS, "a model that does not fit"),
        (np.array([["secret"] * 3] * 7), LABELS, "inputs must be an array of numbers"),
        ([[1, 2], [3]], [0, 1], "inputs must be an array of numbers"),
        ([np.zeros(3, np.uint8), np.zeros(3, np.float32)], [0, 1], "all of uint8 or none, got both"),
        ([np.zeros(3, np.uint8), [200, 0, 0]], [0, 1], "all of uint8 or none, got both"),
        (X, None, "labels must be an array of numbers"),
        (None, LABELS, "inputs must be an array of numbers"),
    ],
)
def test_examples_that_do_not_fit_are_refused_by_rule(x, y, rule):
    with pytest.raises(RefusedError, match=rule):
        fitted(x, y, x_shape=(3,), num_classes=3)


@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    target=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_examples_take_the_models_shape_or_none(shape, target):
    x = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    moved = {2: [1, *shape], 3: [shape[-1], *shape[:-1]]}.get(len(shape), shape)
    if target not in (shape, moved):
        with pytest.raises(RefusedError, match="a model that does not fit"):
            fitted(x, [0, 1], x_shape=tuple(target), num_classes=2)
        return
    examples = fitted(x, [0, 1], x_shape=tuple(target), num_classes=2)
    expected = x if target == shape else np.transpose(x, (0, 3, 1, 2)) if len(shape) == 3 else x[:, None]
    np.testing.assert_array_equal(examples.x, expected)


def test_tensors_on_the_way_of_gradients_are_refused_and_not_a_crash():
    with pytest.raises(RefusedError, match="array of numbers"):
        fitted(torch.ones(2, 3, requires_grad=True), [0, 1], x_shape=(3,), num_classes=2)
