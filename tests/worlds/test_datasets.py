"""Base arrays: what scikit-learn, numpy and flwr-datasets hold must arrive unchanged, in one layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from worlds.datasets import BaseData, load_dataset


def rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the examples as sorted rows, for comparing two sets that may hold an example twice."""
    table = np.column_stack([x.reshape(len(x), -1), y])
    return table[np.lexsort(table.T)]


def arrays(shape: tuple[int, ...] = (6, 5), *, num_classes: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (9, *shape), dtype=np.uint8),
        "y_train": (np.arange(9) % num_classes).astype(np.uint8),
        "x_test": rng.integers(0, 256, (7, *shape), dtype=np.uint8),
        "y_test": (np.arange(7) % num_classes).astype(np.uint8),
    }


def saved(folder: Path, **changed: np.ndarray) -> str:
    path = folder / "data.npz"
    np.savez(path, **(arrays() | changed))
    return f"npz:{path}"


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_digits_are_split_in_two_disjoint_stratified_halves(seed):
    data = load_dataset("digits", seed=seed)
    pixels, labels = load_digits(return_X_y=True)
    both = rows(np.concatenate([data.x_train, data.x_pool]), np.concatenate([data.y_train, data.y_pool]))
    # Together they are all the digits, each once: so no image is in both.
    np.testing.assert_allclose(both, rows((pixels / 16).astype(np.float32), labels))
    assert data.x_pool.shape[1:] == (1, 8, 8)
    assert data.num_classes == 10
    difference = np.bincount(data.y_pool) - np.bincount(data.y_train)
    assert set(difference) <= {0, 1}


def test_digits_have_no_twin_across_the_split():
    data = load_dataset("digits")
    assert not {x.tobytes() for x in data.x_train} & {x.tobytes() for x in data.x_pool}


def test_the_seed_decides_the_split():
    load_dataset.cache_clear()
    first = load_dataset("digits", seed=1)
    load_dataset.cache_clear()
    np.testing.assert_array_equal(first.x_pool, load_dataset("digits", seed=1).x_pool)
    assert not np.array_equal(first.x_pool[:800], load_dataset("digits", seed=2).x_pool[:800])


def test_cached_arrays_cannot_be_changed():
    data = load_dataset("digits")
    assert load_dataset("digits", seed=0).num_classes == 10
    for array in (data.x_train, data.y_train, data.x_pool, data.y_pool):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6, 5), (1, 6, 5)), ((6, 5, 3), (3, 6, 5)), ((6, 5, 1), (1, 6, 5)), ((3, 6, 5), (3, 6, 5)), ((30,), (30,))],
)
def test_npz_layouts(tmp_path, shape, expected):
    given_arrays = arrays(shape)
    np.savez(tmp_path / "data.npz", **given_arrays)
    data = load_dataset(f"npz:{tmp_path / 'data.npz'}")
    assert data.x_train.shape == (9, *expected)
    assert data.x_pool.shape == (7, *expected)
    assert (data.x_pool.dtype, data.y_pool.dtype) == (np.float32, np.int64)
    pixels = given_arrays["x_test"] / 255
    channels_first = pixels.transpose(0, 3, 1, 2) if len(shape) == 3 and shape != expected else pixels
    np.testing.assert_allclose(data.x_pool.reshape(7, -1), channels_first.reshape(7, -1), rtol=1e-6)
    np.testing.assert_array_equal(data.y_pool, given_arrays["y_test"])
    assert data.num_classes == 3


def test_npz_floats_are_taken_as_they_are(tmp_path):
    values = np.random.default_rng(1).random((7, 6, 5))
    data = load_dataset(saved(tmp_path, x_test=values))
    np.testing.assert_array_equal(data.x_pool[:, 0], values.astype(np.float32))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_test": np.full((7, 6, 5), 255.0)}, r"pool images must lie in \[0, 1\], got \[255, 255\]; divide"),
        ({"x_test": np.full((7, 6, 5), np.nan)}, r"pool images must lie in \[0, 1\]"),
        ({"x_test": np.zeros((7, 6, 5), int)}, "images must be uint8 or floats .* got dtype int64; rescale"),
        ({"x_test": np.zeros((7, 4, 4))}, r"images of one shape, got \(1, 6, 5\) and \(1, 4, 4\); resize"),
        ({"x_test": np.zeros((6, 6, 5))}, "pool part must hold .*; give one label for each image"),
        ({"x_train": np.zeros((0, 6, 5)), "y_train": np.zeros(0, int)}, "train part must hold"),
        ({"y_test": np.arange(7) / 2}, "labels must be integers, got dtype float64; number"),
        ({"y_test": np.array([0, 1, 2, 0, 1, 2, -1])}, r"pool labels must lie in 0 .. 2, got -1 .. 2; renumber"),
        ({"y_test": np.zeros(7, int)}, r"every class .* got none of the classes \[1, 2\]; number"),
        (
            {"y_train": np.zeros(9, int), "y_test": np.zeros(7, int)},
            "num_classes must be .* at least 2, got 1; check the labels",
        ),
    ],
)
def test_npz_with_wrong_arrays(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(saved(tmp_path, **changed))


def test_npz_that_cannot_be_read(tmp_path):
    np.savez(tmp_path / "short.npz", x_train=np.zeros(1))
    np.savez(tmp_path / "object.npz", **(arrays() | {"x_test": np.array([{}, None], dtype=object)}))
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("not an archive")
    for name in ("absent.npz", "short.npz", "object.npz", "plain.npy", "text.npz"):
        with pytest.raises(ValueError, match=r"npz:PATH must be a readable .npz file.*give an absolute one"):
            load_dataset(f"npz:{tmp_path / name}")


@pytest.mark.parametrize("name", ["", "digit", "npz:", "hf:", "npz", "csv:data", "digits:1", None])
def test_unknown_names(name):
    with pytest.raises(
        ValueError, match=r"dataset must be 'digits', 'colour-digits', 'npz:PATH' or 'hf:REPO', got .*; for files"
    ):
        load_dataset(name)


@pytest.mark.parametrize("seed", [-1, 0.5, "0", 2**63])
def test_wrong_seeds(seed):
    with pytest.raises(ValueError, match="seed must be"):
        load_dataset("digits", seed=seed)


def test_base_data_wants_the_stated_types():
    good = load_dataset("digits")
    with pytest.raises(ValueError, match=r"train part must be float32 images .* got float64 and int64; convert"):
        BaseData(good.x_train.astype(float), good.y_train, good.x_pool, good.y_pool, num_classes=10)


@pytest.fixture(name="repository")
def _repository(tmp_path, monkeypatch) -> Path:
    """A folder laid out like a Hugging Face image dataset, and nothing that could reach the network."""
    datasets = pytest.importorskip("datasets")
    image_module = pytest.importorskip("PIL.Image")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    (tmp_path / "repository").mkdir()
    for split in ("train", "test"):
        images = [image_module.fromarray(image) for image in arrays((6, 5, 3))[f"x_{split}"]]
        labels = arrays()[f"y_{split}"].tolist()
        table = datasets.Dataset.from_dict({"img": images, "label": labels}, features=features)
        table.to_parquet(tmp_path / "repository" / f"{split}.parquet")
    return tmp_path / "repository"


def test_hugging_face_images_arrive_unchanged(repository):
    data = load_dataset(f"hf:{repository}#img,label")
    expected = arrays((6, 5, 3))
    for x, y, part in ((data.x_train, data.y_train, "train"), (data.x_pool, data.y_pool, "test")):
        np.testing.assert_array_equal(np.round(x * 255).transpose(0, 2, 3, 1), expected[f"x_{part}"])
        np.testing.assert_array_equal(y, expected[f"y_{part}"])


def test_hugging_face_errors(repository):
    for place in (str(repository), f"{repository}#img,class", f"{repository}-absent", f"{repository}#img"):
        with pytest.raises(ValueError, match=r"hf:REPO must be .*; name other columns as in"):
            load_dataset(f"hf:{place}")
    (repository / "test.parquet").unlink()
    with pytest.raises(ValueError, match="splits train and test"):
        load_dataset(f"hf:{repository}#img,label")
