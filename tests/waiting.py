"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(
    condition: Callable[[], Any],
    *,
    timeout: float = 300.0,
    every: float = 0.1,
    what: Callable[[], str] = lambda: "waited in vain",
) -> None:
    """Look for something every so many seconds; TimeoutError says what is wrong if it does not come."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what())
        time.sleep(every)
