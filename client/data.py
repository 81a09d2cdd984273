"""The examples that a client brings itself: from a function of its owner's, or from files.

What is raised here may travel to the server, so it names rules only: no paths, no names of files, no values.
"""

from __future__ import annotations

import importlib
import inspect
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.privacy import LIMIT_KEY as PRIVACY_KEY
from client.privacy import is_private
from protocol.examples import Examples
from riskband.checks import RefusedError, kind_of

DATA_KEY, DATASET_KEY = "data", "dataset"
NO_DATASET = "none"
"""The run config's ``dataset`` of a run in which every client brings its own examples."""

EVALUATOR_KEY = "evaluator"
"""Of the node config and of the run config: "module:function"; see `client.evaluator`."""

ALLOW_KEY = "allow-run-dataset"
"""The node config's leave, ``true``, for a run config to name files, repositories or functions to answer from."""

MODULES_KEY = "allow-modules"
"""Of the node config: the modules and packages, separated by commas, whose code a message may name."""

CLASSES_FILE = "classes.txt"
LABEL_COLUMNS = ("label", "labels", "y", "target", "fine_label")
"""What a column of labels may be called."""

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_INPUT_COLUMNS = ("image", "img", "features", "x", "pixel_values")

_BUNDLED_DATASETS = ("digits", "colour-digits")  # of `worlds.datasets`, which a client with own data does not load
_BATCH_SIZE = 32
_LONGEST_SHOWN = 100  # characters of a name from a message


def is_function_name(place: str) -> bool:
    """Return whether a text has the form "module:function"."""
    module, _, function = place.partition(":")
    return function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def has_own_data(node_config: Mapping[str, Any]) -> bool:
    """Return whether a client answers about data of its owner's, and not of a simulated population, by its node config.

    Its owner names them, or a function that knows them, or lets the run name them.
    """
    return bool({DATA_KEY, EVALUATOR_KEY} & node_config.keys()) or node_config.get(ALLOW_KEY) is True


def require_allowed(place: str, node_config: Mapping[str, Any]) -> None:
    """Raise ValueError if a server names "module:function" and the owner of a client's data does not allow the module.

    Importing a module runs it, so this comes first. What the node config names is the owner's own choice, and not asked
    about here.
    """
    module, colon, _ = place.partition(":")
    allowed = (each.strip() for each in str(node_config.get(MODULES_KEY, "")).split(","))
    is_allowed = any(each and f"{module}.".startswith(f"{each}.") for each in allowed)
    if colon and has_own_data(node_config) and not is_allowed:
        raise RefusedError(
            f"a module that a server names must be one that {MODULES_KEY} of the node config allows on a client with "
            f"data of its own, got {module[:_LONGEST_SHOWN]!r}; the client's owner may add it there, or its package"
        )


def is_bundled(run_config: Mapping[str, Any]) -> bool:
    """Return whether a run's dataset comes with its libraries, so that its examples are public."""
    return run_config.get("dataset") in _BUNDLED_DATASETS


def data_place(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> str | None:
    """Return where a client's own examples are, or None if they come from the simulated population.

    The owner's key ``data`` comes first. A ``dataset`` of the server's of the form "module:function" stands for
    ``data`` on every client that has none, as in a simulation, whose nodes have no configuration of their own. A client
    with a ``client-id`` or an ``evaluator`` of its own is no simulation's: there a dataset other than the bundled ones
    needs the node config's ``allow-run-dataset=true``. To a client with a privacy budget no run names another one: its
    config also says how many examples are drawn from how few, and the budget pays for one example that counts once.

    Raises ValueError if the run has no dataset and the client no data, or the client does not let the run choose its
    dataset, or as `require_allowed`.
    """
    if DATA_KEY in node_config:
        return str(node_config[DATA_KEY])
    dataset = str(run_config.get("dataset", NO_DATASET))
    if dataset == NO_DATASET:
        raise RefusedError(
            f"the node config must have the key {DATA_KEY!r} in a run without a dataset, got none; "
            'give "module:function" or the absolute path of a file or a folder'
        )
    if is_private(node_config) and not is_bundled(run_config):
        raise RefusedError(
            f"the node config must have {DATA_KEY!r} beside a {PRIVACY_KEY}, got none: a run that names the dataset "
            "also chooses how often an example counts"
        )
    is_simulated = "client-id" not in node_config and EVALUATOR_KEY not in node_config
    is_free = is_bundled(run_config) or is_simulated or node_config.get(ALLOW_KEY) is True
    if not is_free:
        raise RefusedError(
            f"the node config must have {DATA_KEY!r}, or {ALLOW_KEY}=true, in a run whose config names files, a "
            "repository or a function as its dataset: it is not for a server to choose what a client reads"
        )
    if not is_function_name(dataset):
        return None
    require_allowed(dataset, node_config)
    return dataset


def load_data(place: str, node_config: Mapping[str, Any], *, is_owners: bool = True) -> tuple[Any, Any]:
    """Return a client's own inputs and labels, as they are: `fitted` checks them.

    The place is the absolute path of a file or a folder (`read_files`), or "module:function". The function is called
    with those of ``node_config``, ``partition_id``, ``num_partitions`` and ``batch_size`` that it has parameters for.
    It returns two arrays or tensors (x, y), or what Flower's quickstarts do: a loader of batches, or a pair of loaders
    for training and testing, of which the second is taken. A batch is a pair (x, y) or a mapping of an input and a
    label.

    If the server wrote the place, and not the client's owner, only functions that take a ``node_config`` or a
    ``partition_id`` are called: nothing else is meant to give one client's examples. Raises ValueError if there is no
    such function or file, or it does not give examples.
    """
    path = Path(place).expanduser()
    if path.is_absolute() and is_owners:
        return read_files(path)
    if not is_function_name(place):
        raise RefusedError(
            f'{DATA_KEY!r} must be "module:function" or an absolute path, got neither; Flower chooses a client\'s '
            "working directory"
        )
    key = DATA_KEY if is_owners else DATASET_KEY
    return _arrays(_call(imported(place, key=key), node_config, key=key))


def read_files(path: Path) -> tuple[Any, Any]:
    """Return the inputs and labels in a file or a folder; raises ValueError if there is nothing of this kind.

    * ``.npz`` with the arrays ``x`` and ``y``;
    * ``.parquet`` with one column of images or features and one of labels (needs pyarrow, and pillow for images);
    * a folder with one such file;
    * a folder with one subfolder of images for each class, named by the number of the class, or by a name that stands
      in ``classes.txt``, one a line in the order of the model's outputs. A client may lack classes, so the order of its
      subfolders alone would not say which class is which.
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


def fitted(
    x: Any, y: Any, *, x_shape: tuple[int, ...], num_classes: int | None = None, check_values: bool = True
) -> Examples:
    """Return examples in the form that a model of these inputs takes, or refuse them.

    Parameters
    ----------
    x : array_like, shape (num_examples, *x_shape)
        uint8 is divided by 255, other numbers stay as they are. Images (height, width) and (height, width, channels)
        are turned into (channels, height, width) if, and only if, that is `x_shape`.
    y : array_like of int, shape (num_examples,)
        From 0 on.
    x_shape : tuple of int
        Of one example, as the model takes it.
    num_classes : int, optional
        Labels must be below it. None: that is left to the evaluation of the model, where a client leaves it, since that
        is counted: refusals that cost nothing would tell a server which labels occur.
    check_values : bool
        Whether inputs must be finite and labels at least 0. False: that is left to the evaluation, too. An answer with
        noise counts such an example as a loss of 1; a refusal would tell without noise that it is there.

    Raises
    ------
    ValueError
        If the arrays do not fit by their dtypes and shapes, or by their values if these are checked.
    """
    inputs, labels = _numbers(x, "inputs"), _numbers(y, "labels")
    if labels.ndim != 1 or inputs.ndim < 2 or len(inputs) != len(labels):
        raise RefusedError(
            "a client's data must be inputs (num_examples, ...) and one label each, got arrays of "
            f"{inputs.ndim} and {labels.ndim} dimensions; return x and y of the same length"
        )
    if len(inputs) == 0:
        raise RefusedError("a client must hold at least one example, this one holds none")
    if labels.dtype.kind not in "iu":
        raise RefusedError(f"labels must be whole numbers, got dtype {labels.dtype}; number the classes 0, 1, 2, …")
    if inputs.dtype == np.uint8:
        inputs = inputs / np.float32(255)
    inputs = _arranged(inputs, x_shape)
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is refused as such
        inputs = np.ascontiguousarray(inputs, dtype=np.float32)
    if check_values and not np.all(np.isfinite(inputs)):
        raise RefusedError("inputs must be finite, got NaN or infinity; drop or repair those examples")
    if check_values and labels.min() < 0:
        raise RefusedError("labels must be at least 0; number the classes 0, 1, 2, …")
    if num_classes is not None and labels.max() >= num_classes:
        raise RefusedError(f"labels must lie in 0 .. {num_classes - 1}, the classes of the model; renumber them")
    return Examples(inputs, np.ascontiguousarray(labels, dtype=np.int64))


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a model most likely takes examples of a given shape in: images channels first.

    A guess for who has no model at hand; `fitted` does not guess.
    """
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) == 3 and shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4):
        return (shape[2], *shape[:2])
    return shape


def _arranged(inputs: NDArray[Any], x_shape: tuple[int, ...]) -> NDArray[Any]:
    if inputs.shape[1:] == x_shape:
        return inputs
    if inputs.ndim == 3 and (1, *inputs.shape[1:]) == x_shape:
        return inputs[:, None]
    if inputs.ndim == 4 and (inputs.shape[3], *inputs.shape[1:3]) == x_shape:
        return np.moveaxis(inputs, -1, 1)
    raise RefusedError(
        f"the model takes inputs of shape {x_shape}, this client's have shape {inputs.shape[1:]}: "
        "a model that does not fit"
    )


def _numbers(values: Any, what: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        array = np.array(None)
    if array.dtype.kind not in "fiub":
        raise RefusedError(
            f"a client's {what} must be an array of numbers, got another thing; return arrays or tensors"
        )
    if isinstance(values, list | tuple):
        _check_bytes_alone(values)
    return array


def _check_bytes_alone(parts: Sequence[Any]) -> None:
    """Raise RefusedError if some parts are bytes, which `fitted` divides by 255, and others are not.

    In one array all would be taken for other numbers: one example would decide what the others are.
    """
    if len({np.asarray(part).dtype == np.uint8 for part in parts}) > 1:
        raise RefusedError("a client's examples must be all of uint8 or none, got both; convert them to one dtype")


def imported(place: str, *, key: str) -> Callable[..., Any]:
    """Return the function at "module:function", which a key of a configuration names; raises ValueError without one."""
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a module does when it is imported, even to end the process
        raise RefusedError(
            f"the function of {key!r} must be importable, got {kind_of(error)}; "
            "put its module where the client runs, for instance on PYTHONPATH, and name a function in it"
        ) from error
    if not callable(function):
        raise RefusedError(f"{key!r} must name a function, got {type(function).__name__}; name one")
    return function  # type: ignore[no-any-return]


def _call(function: Callable[..., Any], node_config: Mapping[str, Any], *, key: str) -> Any:
    known = {
        "node_config": dict(node_config),
        "partition_id": node_config.get("partition-id"),
        "num_partitions": node_config.get("num-partitions"),
        "batch_size": _BATCH_SIZE,
    }
    try:
        signature = inspect.signature(function)
        arguments = {name: each for name, each in known.items() if name in signature.parameters and each is not None}
        signature.bind(**arguments)
    except (TypeError, ValueError):
        raise RefusedError(
            f"the function of {key!r} must need no arguments but {', '.join(known)}, got one that does; "
            "give the others defaults, and partition-id and num-partitions in the node config if it needs them"
        ) from None
    if key == DATASET_KEY and arguments.keys().isdisjoint({"node_config", "partition_id"}):
        raise RefusedError(
            "a function that the server names must take node_config or partition_id, got one that does not"
        )
    return function(**arguments)


def _arrays(given: Any) -> tuple[Any, Any]:
    """Return (x, y) from what a function returned."""
    if isinstance(given, tuple | list) and len(given) == 2:
        return _of_loader(given[1]) if _is_loader(given[1]) else (given[0], given[1])
    if _is_loader(given):
        return _of_loader(given)
    raise RefusedError(
        f"the function of {DATA_KEY!r} must return (x, y), a loader or two loaders, got {type(given).__name__}; "
        "return two arrays"
    )


def _is_loader(given: Any) -> bool:
    is_array = hasattr(given, "__array__") or isinstance(given, list | tuple | str | Mapping)
    return isinstance(given, Iterable) and not is_array


def _of_loader(loader: Iterable[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    batches = [_pair(batch) for batch in loader]
    if not batches:
        raise RefusedError("a client must hold at least one example, this one holds none")
    _check_bytes_alone([x for x, _ in batches])
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def _pair(batch: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(batch, Mapping):
        labels = [key for key in batch if key in LABEL_COLUMNS]
        inputs = [key for key in batch if key not in LABEL_COLUMNS]
        if len(labels) == len(inputs) == 1:
            batch = batch[inputs[0]], batch[labels[0]]
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise RefusedError(
            f"a batch must be (x, y), or a mapping of one input and one of {', '.join(LABEL_COLUMNS)}; "
            "return two arrays instead of a loader"
        )
    return np.asarray(batch[0]), np.asarray(batch[1])


def _npz(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    except Exception as error:  # the readers of zip files and of arrays raise many things
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
        from PIL import Image
    except ImportError as error:
        raise RefusedError("images need pillow, which is not installed; install it, or use .npz") from error
    try:
        with Image.open(file) as image:
            # A palette's numbers mean nothing by themselves.
            return np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))
    except Exception as error:  # pillow has a reader for each format, and each raises things of its own
        raise RefusedError(
            f"an image must be readable, got {type(error).__name__}; remove it, or save it again"
        ) from error


def _stacked(rows: list[NDArray[Any]]) -> NDArray[Any]:
    if not rows:
        raise RefusedError("a client must hold at least one example, this one holds none")
    if len({row.shape for row in rows}) > 1:
        raise RefusedError("inputs must all be of one size, got different ones; resize them beforehand")
    return np.stack(rows)
