"""Base arrays by name: a training split for the model, and a pool that clients are built from.

The two never share an image, so no client is ever built from an image the model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.checks import checked_count, checked_seed


@dataclass(frozen=True, eq=False)
class BaseData:
    """Images and labels in two disjoint parts; raises ValueError if one breaks these rules.

    Images are float32 in [0, 1], (num_examples, *x_shape), as (channels, height, width); labels int64 in 0 ..
    num_classes − 1.
    """

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_pool: NDArray[np.float32]
    y_pool: NDArray[np.int64]
    num_classes: int
    """≥ 2; every class has an image in the pool, so that a label shift can reach it."""

    def __post_init__(self) -> None:
        checked_count("num_classes", self.num_classes, minimum=2, remedy="check the labels")
        _check_part("train", self.x_train, self.y_train, num_classes=self.num_classes)
        _check_part("pool", self.x_pool, self.y_pool, num_classes=self.num_classes)
        if self.x_train.shape[1:] != self.x_pool.shape[1:]:
            raise ValueError(
                f"both parts must have images of one shape, got {self.x_train.shape[1:]} and "
                f"{self.x_pool.shape[1:]}; resize them beforehand"
            )
        missing = sorted(set(range(self.num_classes)) - set(np.unique(self.y_pool).tolist()))
        if missing:
            raise ValueError(
                f"every class must have an image in the pool, got none of the classes {missing}; "
                "number the labels 0, 1, 2, … without gaps"
            )


@lru_cache(maxsize=4)
def load_dataset(name: str, *, seed: int = 0) -> BaseData:
    """Load base arrays by name; the result is cached and its arrays are read-only.

    * ``"digits"``: the 1,797 handwritten digits that come with scikit-learn, (1, 8, 8); a stratified half, chosen by
      the seed ≥ 0, is the training split, the other half the pool.
    * ``"colour-digits"``: the same in coloured ink, (3, 8, 8); see `_coloured`.
    * ``"npz:PATH"``: arrays ``x_train, y_train, x_test, y_test``, images uint8 or floats in [0, 1] as (N, H, W),
      (N, H, W, C), (N, C, H, W) or vectors (N, d); the test part is the pool.
    * ``"hf:REPO"`` or ``"hf:REPO#image,label"``: splits "train" and "test" of a Hugging Face dataset or local folder,
      read through flwr-datasets, from the columns named after the ``#``.

    Raises ValueError if the name is unknown, or the data cannot be read or break the rules of `BaseData`.
    """
    seed = checked_seed(seed)
    kind, _, place = str(name).partition(":")
    if name in BUNDLED_DATASETS:
        data = BUNDLED_DATASETS[name](seed)
    elif kind in _LOADERS and place:
        data = _LOADERS[kind](place)
    else:
        raise ValueError(
            f"dataset must be 'digits', 'colour-digits', 'npz:PATH' or 'hf:REPO', got {name!r}; "
            "for files of your own write an .npz with x_train, y_train, x_test and y_test"
        )
    for array in (data.x_train, data.y_train, data.x_pool, data.y_pool):
        array.flags.writeable = False
    return data


def npz_arrays(path: str | Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name, all or those of these names; one that is none raises many things."""
    with np.load(Path(path).expanduser(), allow_pickle=False) as archive:
        return {name: archive[name] for name in (archive.files if names is None else names)}


def _digits(seed: int) -> BaseData:
    # scikit-learn's own file: importing its loader takes seconds, in the server and in every worker of a simulation.
    place = find_spec("sklearn")
    if place is None or place.origin is None:
        raise ValueError('the digits come with scikit-learn, got none installed; pip install "riskband[app]"')
    rows = np.loadtxt(Path(place.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x = (rows[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = rows[:, -1].astype(np.int64)
    train, pool = _stratified_halves(y, np.random.default_rng(seed))
    return BaseData(x[train], y[train], x[pool], y[pool], num_classes=10)


def _colour_digits(seed: int) -> BaseData:
    grey = _digits(seed)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    train, pool = (_coloured(x, y, rng) for x, y in ((grey.x_train, grey.y_train), (grey.x_pool, grey.y_pool)))
    return BaseData(train, grey.y_train, pool, grey.y_pool, num_classes=10)


def _coloured(x: NDArray[np.float32], y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return grey digits in ink of a fully saturated hue: that of class c is c/10 + N(0, 0.05²), on the circle.

    So the colour says something of the label, not all, and a model that relies on it errs on grey versions.
    """
    hue = y / 10 + 0.05 * rng.standard_normal(len(y))
    ink = np.clip(np.abs((hue[:, np.newaxis] * 6 + [0, 4, 2]) % 6 - 3) - 1, 0, 1)  # HSV to RGB
    return np.asarray(ink[:, :, np.newaxis, np.newaxis] * x, dtype=np.float32)


def _stratified_halves(y: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    shuffled = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    first = np.concatenate([index[: len(index) // 2] for index in shuffled])
    second = np.concatenate([index[len(index) // 2 :] for index in shuffled])
    return np.sort(first), np.sort(second)


def _npz(path: str) -> BaseData:
    keys = ("x_train", "y_train", "x_test", "y_test")
    try:
        arrays = npz_arrays(path, keys)
    except Exception as error:
        raise ValueError(
            f"npz:PATH must be a readable .npz file with the arrays {', '.join(keys)}, got {path!r} "
            f"({type(error).__name__}); clients resolve the path in their own process: give an absolute one"
        ) from error
    return _base_data(*(arrays[key] for key in keys))


def _hugging_face(place: str) -> BaseData:
    from flwr_datasets import FederatedDataset

    repository, _, columns = place.partition("#")
    image, _, label = (columns or "image,label").partition(",")
    parts: list[ArrayLike] = []
    try:
        source = FederatedDataset(dataset=repository, partitioners={}, shuffle=False)
        for split in ("train", "test"):
            rows = source.load_split(split)
            parts += [np.stack([np.asarray(value) for value in rows[image]]), np.asarray(rows[label])]
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"hf:REPO must be a dataset with the splits train and test, the columns {image!r} and {label!r} "
            f"and images of one size, got {place!r} ({type(error).__name__}: {error}); "
            "name other columns as in hf:cifar10#img,label"
        ) from error
    return _base_data(*parts)


BUNDLED_DATASETS: dict[str, Callable[[int], BaseData]] = {"digits": _digits, "colour-digits": _colour_digits}
"""Those that come with the libraries, so that their examples are public, by name: from a seed to the data."""

_LOADERS: dict[str, Callable[[str], BaseData]] = {"npz": _npz, "hf": _hugging_face}


def _base_data(x_train: ArrayLike, y_train: ArrayLike, x_pool: ArrayLike, y_pool: ArrayLike) -> BaseData:
    train, pool = _labels(y_train), _labels(y_pool)
    num_classes = int(max(train.max(initial=0), pool.max(initial=0))) + 1
    return BaseData(_images(x_train), train, _images(x_pool), pool, num_classes=num_classes)


def _labels(values: ArrayLike) -> NDArray[np.int64]:
    labels = np.asarray(values)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers, got dtype {labels.dtype}; number the classes 0, 1, 2, …")
    return labels.astype(np.int64)


def _images(values: ArrayLike) -> NDArray[np.float32]:
    """Return images as float32 in [0, 1], channels first."""
    images = np.asarray(values)
    if images.dtype == np.uint8:
        images = images / np.float32(255)
    if not np.issubdtype(images.dtype, np.floating):
        raise ValueError(f"images must be uint8 or floats in [0, 1], got dtype {images.dtype}; rescale them")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[-1] in (1, 3, 4):
        images = np.moveaxis(images, -1, 1)
    return np.ascontiguousarray(images, dtype=np.float32)


def _check_part(part: str, x: NDArray[np.float32], y: NDArray[np.int64], *, num_classes: int) -> None:
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or x.size == 0:
        raise ValueError(
            f"the {part} part must hold images (N, ...) and labels (N,) with N >= 1, "
            f"got shapes {x.shape} and {y.shape}; give one label for each image"
        )
    if x.dtype != np.float32 or y.dtype != np.int64:
        raise ValueError(
            f"the {part} part must be float32 images and int64 labels, got {x.dtype} and {y.dtype}; convert them"
        )
    if not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(
            f"the {part} images must lie in [0, 1], got [{x.min():g}, {x.max():g}]; divide by the largest value"
        )
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(
            f"the {part} labels must lie in 0 .. {num_classes - 1}, got {y.min()} .. {y.max()}; renumber them"
        )
