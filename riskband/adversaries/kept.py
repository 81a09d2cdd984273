"""What was proved of a model once may be kept from one process to the next, in a store that the caller brings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Store(Protocol):
    """Keeps numbers by name, for the code and the version of torch that found them, to the last bit."""

    def find(self, name: str) -> Sequence[float] | None:
        """Return the numbers of a name; None if it has none, or other ones than were kept."""

    def keep(self, name: str, numbers: Sequence[float]) -> None:
        """Keep numbers under a name."""


_store: ContextVar[Store | None] = ContextVar("store", default=None)


@contextmanager
def kept_in(store: Store | None) -> Iterator[None]:
    """Look constants up in a store before they are computed, in this block; those that are computed go there."""
    before = _store.set(store)
    try:
        yield
    finally:
        _store.reset(before)


def kept(name: str, size: int, computed: Callable[[], Sequence[float]]) -> Sequence[float]:
    """Return the `size` constants of that name, kept or computed; only those that are finite and >= 0 are kept."""

    def are_constants(numbers: Sequence[float]) -> bool:
        return len(numbers) == size and all(0.0 <= number < math.inf for number in numbers)

    store = _store.get()
    found = None if store is None else store.find(name)
    if found is not None and are_constants(found):
        return found
    numbers = computed()
    if store is not None and are_constants(numbers):
        store.keep(name, numbers)
    return numbers
