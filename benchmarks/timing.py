"""How long plain functions take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def least_seconds(functions: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Least CPU seconds of each function, called one after the other: what else the machine does counts little."""
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.process_time()
            function()
            least[name] = min(least[name], time.process_time() - start)
    return least
