"""Commands whose output goes into a pipe, such as ``| head``."""

from __future__ import annotations

import sys
from collections.abc import Callable


def read_by_a_pipe(main: Callable[[], int]) -> int:
    """Return the exit status of a command; 0, without a traceback, if the reader of its output has seen enough."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout, status = None, 0  # or else Python writes what is left, at its end
    return status
