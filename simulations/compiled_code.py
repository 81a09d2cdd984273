"""Where a run on Ray finds the machine code of numba's loops: beside our own sources.

Flower copies the app into a new folder for every run, where numba would compile the same loops again, for seconds.
The launcher does not load this module, numba does: by its name in an environment variable.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numba.core.caching import InTreeCacheLocator

from simulations.options import APP_FOLDER_VARIABLE


class OriginalCacheLocator(InTreeCacheLocator):
    """The cache beside the file of ours that a source file is a copy of; the two hold the same."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Return the locator of a function; None if its file is no copy of ours, or nothing can be written there."""
        original = _original(Path(py_file))
        return None if original is None else super().from_function(py_func, str(original))  # type: ignore[no-untyped-call]


def _original(copy: Path) -> Path | None:
    """Return the file below our folder whose path ends as that of `copy`, from its last "riskband" on."""
    folder = os.environ.get(APP_FOLDER_VARIABLE)
    if folder is None or "riskband" not in copy.parts:
        return None
    start = len(copy.parts) - 1 - copy.parts[::-1].index("riskband")
    original = Path(folder, *copy.parts[start:])
    return original if original.is_file() and original.read_bytes() == copy.read_bytes() else None
