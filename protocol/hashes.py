"""What computed an answer, as hashes: the weights, and the source text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

# What decides a client's answer; both ends must run the same text.
_ANSWERING_FILES = {
    "client": ("**/*.py",),
    "protocol": ("**/*.py",),
    "worlds": (
        "cifar10.py",
        "corruptions.py",
        "datasets.py",
        "loss_table.py",
        "population.py",
        "shifts.py",
        "versions.py",
    ),
    "riskband": (
        "adversaries/**/*.py",
        "answers/concave_curves.py",
        "answers/histogram.py",
        "answers/risks.py",
        "answers/signing.py",
        "checks.py",
        "models/*.py",
        "search.py",
    ),
}


def model_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a model's weights: names, dtypes, shapes and bytes, in order of name.

    The hexadecimal digits are equal exactly when the models are equal bit for bit.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # The JSON line fixes the number of bytes that follow, so no two models share a stream.
        digest.update(json.dumps([name, array.dtype.str, np.shape(arrays[name])]).encode() + b"\n")
        digest.update(array.tobytes())
    return digest.hexdigest()


def examples_hash(x: np.ndarray, y: np.ndarray) -> str:
    """Return the SHA-256 of a client's examples: dtypes, shapes and bytes, in their order.

    It stays on the client, where it tells whether an answer is still about the same examples.
    """
    return model_hash({"x": x, "y": y})


def model_source_hash(model: str) -> str | None:
    """Return the SHA-256 of the source text of the top-level package, or module, that a model "module:factory" is from.

    A package counts whole, by the names and texts of its modules: which of them a model imports may depend on what it
    is asked, and on what was imported before. None for the models that come with this code, which `code_hash` covers,
    and for a module without a source file.
    """
    module, _, attribute = model.partition(":")
    if not attribute:
        return None
    try:
        spec = find_spec(module.partition(".")[0])
        if spec is None or spec.origin in ("built-in", "frozen"):
            return None
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        files = {path.relative_to(folder).as_posix(): path for folder in folders for path in folder.rglob("*.py")}
        if not folders and spec.origin is not None:
            files = {Path(spec.origin).name: Path(spec.origin)}
        return _files_hash(files) if files else None
    except (ImportError, ValueError, OSError):
        return None


@cache
def code_hash() -> str:
    """Return the SHA-256 of the source text that computes an answer.

    That is every module of ``client`` and ``protocol``, what builds a simulated client's examples in ``worlds``, and
    the losses, adversaries and curves of ``riskband``. The server compares it with its own: Flower's simulation imports
    top-level packages from the SuperLink's working directory first, so another project's ``client`` can run in place
    of ours without any error.
    """
    folders = {package: _folder_of(package) for package in _ANSWERING_FILES}
    return _files_hash(
        {
            f"{package}/{path.relative_to(folders[package]).as_posix()}": path
            for package, patterns in _ANSWERING_FILES.items()
            for pattern in patterns
            for path in folders[package].glob(pattern)
        }
    )


def _files_hash(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        text = files[name].read_bytes()
        digest.update(json.dumps([name, len(text)]).encode() + b"\n")
        digest.update(text)
    return digest.hexdigest()


def _folder_of(package: str) -> Path:
    # Found, not imported: a client that is asked for plain losses need not wait for the library to load.
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the package {package!r} must be installed, or in the app's folder, where a client runs")
    return Path(spec.origin).parent
