"""A client's own examples from files: .npz, .parquet, or a folder of images.

Texts of refusals name rules only, neither paths nor values: they travel to the server.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from riskband.adversaries.problem import RefusedError

CLASSES_FILE = "classes.txt"
LABEL_COLUMNS = ("label", "labels", "y", "target", "fine_label")
"""What a column of labels may be called."""

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_INPUT_COLUMNS = ("image", "img", "features", "x", "pixel_values")


def read_files(path: Path) -> tuple[Any, Any]:
    """Return the inputs and labels in a file or a folder.

    Parameters
    ----------
    path : Path
        * ``.npz`` with the arrays ``x`` and ``y``;
        * ``.parquet`` with one column of images or features and one of labels (needs pyarrow, and pillow for images);
        * a folder with one such file;
        * a folder with one subfolder of images for each class, named by the number of the class, or by a name that
          stands in ``classes.txt``, one a line in the order of the model's outputs. A client may lack classes, so the
          order of its subfolders alone would not say which class is which.

    Raises
    ------
    ValueError
        If there is nothing of this kind, or it cannot be read.
    """
    if path.is_dir():
        found = sorted([*path.glob("*.npz"), *path.glob("*.parquet")])
        if len(found) > 1:
            raise RefusedError(f"a data folder must hold one .npz or .parquet file, got {len(found)}; name the file")
        return read_files(found[0]) if found else _image_folder(path)
    readers = {".npz": _npz, ".parquet": _parquet}
    if path.suffix not in readers or not path.is_file():
        raise RefusedError(
            "a data file must exist and be .npz or .parquet, got none or another kind; write one with "
            "numpy.savez(path, x=inputs, y=labels)"
        )
    return readers[path.suffix](path)


def _npz(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    except (OSError, EOFError, BadZipFile, ValueError, KeyError) as error:
        raise RefusedError(
            f"an .npz file must hold the arrays x and y, got {type(error).__name__}; write it with "
            "numpy.savez(path, x=inputs, y=labels)"
        ) from error


def _parquet(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RefusedError("a .parquet file needs pyarrow, which is not installed; install it, or use .npz") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise RefusedError(f"a .parquet file must be readable, got {type(error).__name__}; write it again") from error
    inputs = [name for name in table.column_names if name in _INPUT_COLUMNS]
    labels = [name for name in table.column_names if name in LABEL_COLUMNS]
    if len(inputs) != 1 or len(labels) != 1:
        raise RefusedError(
            f"a .parquet file must have one column of {', '.join(_INPUT_COLUMNS)} and one of "
            f"{', '.join(LABEL_COLUMNS)}, got {len(inputs)} and {len(labels)}; rename the columns"
        )
    rows = [_parquet_input(value) for value in table[inputs[0]].to_pylist()]
    return _stacked(rows), np.asarray(table[labels[0]].to_pylist())


def _parquet_input(value: Any) -> NDArray[Any]:
    """An image as Hugging Face datasets store it, or a (nested) list of numbers."""
    if isinstance(value, dict):
        value = value.get("bytes")
    if isinstance(value, bytes):
        return _image(io.BytesIO(value))
    try:
        return np.asarray(value)
    except ValueError as error:
        raise RefusedError("a feature must be a list of numbers, all of one length, got another thing") from error


def _image_folder(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    listed = path / CLASSES_FILE
    names = [line.strip() for line in listed.read_text(encoding="utf-8").splitlines()] if listed.is_file() else None
    images, labels = [], []
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        label = _class_of(folder.name, names)
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() in _IMAGE_SUFFIXES:
                images.append(_image(file))
                labels.append(label)
    return _stacked(images), np.array(labels, dtype=np.int64)


def _class_of(name: str, names: list[str] | None) -> int:
    if names is not None and name in names:
        return names.index(name)
    if names is None and name.isdecimal():
        return int(name)
    raise RefusedError(
        f"a subfolder of images must be named by the number of its class, or by a name in {CLASSES_FILE}, got another; "
        f"write {CLASSES_FILE} with one name a line, in the order of the model's outputs"
    )


def _image(file: Path | io.BytesIO) -> NDArray[Any]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise RefusedError("images need pillow, which is not installed; install it, or use .npz") from error
    try:
        with Image.open(file) as image:
            # A palette's numbers mean nothing by themselves.
            return np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))
    except (OSError, UnidentifiedImageError, ValueError) as error:
        raise RefusedError(
            f"an image must be readable, got {type(error).__name__}; remove it, or save it again"
        ) from error


def _stacked(rows: list[NDArray[Any]]) -> NDArray[Any]:
    if not rows:
        raise RefusedError("a client must hold at least one example, this one holds none")
    if len({row.shape for row in rows}) > 1:
        raise RefusedError("inputs must all be of one size, got different ones; resize them beforehand")
    return np.stack(rows)
