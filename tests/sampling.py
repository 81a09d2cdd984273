"""Which cases the default suite runs, and which CI: some of each test, and of every entry of a registry at least one.

A test that is about every entry of a registry gets its cases from `every`. However few cases of a test the default
suite runs, one of each entry is among those of all tests; `test_registries.py` fails if an entry has none. Of what is
slow, CI meets every value of every parameter of every test, and leaves further combinations of them to the night.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

import pytest

Entry = tuple[str, str]
"""The kind of a registry, and a name in it."""

# Of every test in these folders the default suite runs so many cases, spread over their list; the others are slow.
# Those of a guard (a test with `pytest.raises`, or marked `guard`) are no repetitions: each is about another rule.
DEFAULT_CASES = {
    "tests/adversaries/": 1,
    "tests/client/": 4,
    "tests/reference/": 3,
    "tests/server/": 2,
    "tests/strategies/": 3,
    "tests/validity/": 1,
}


def every(kind: str, names: Iterable[str], values: Mapping[str, Any] | None = None) -> list[Any]:
    """Return the values of a parameter with which a test is about entries of a registry, marked as such.

    They are the names, with parameters after a colon or without, or what `values` has for them.
    """
    return [
        pytest.param(
            name if values is None else values[name], id=name, marks=pytest.mark.entry(kind, name.partition(":")[0])
        )
        for name in names
    ]


def entries_of(case: pytest.Item) -> set[Entry]:
    """Return the entries that a case is about."""
    return {mark.args for mark in case.iter_markers("entry")}


def repetitions(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases that the default suite does without."""
    fast = [item for item in items if item.get_closest_marker("slow") is None]
    spare = list(_spare(fast))
    left_out = set(spare)
    covered = {entry for item in fast if item not in left_out for entry in entries_of(item)}
    for item in spare:
        if entries_of(item) <= covered:
            yield item
        covered |= entries_of(item)


def combinations(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the slow cases that CI does without: all their values are among those of other cases of their test."""
    slow = (item for item in items if item.get_closest_marker("slow"))
    for same in (same for same in _by_test(slow).values() if len(same) > 1 and not _guards(same)):
        left, seen = {item: _values(item) for item in reversed(same)}, set[object]()  # of studies the larger one first
        while left:
            item = max(left, key=lambda item: len(left[item] - seen))
            if left[item] <= seen:
                break
            seen |= left.pop(item)
        yield from left


def _values(case: Any) -> set[object]:
    """What each `parametrize` of a test has for a case; its cases share these objects."""
    values = dict(case.callspec.params)
    found = set[object]()
    for mark in case.iter_markers("parametrize"):
        names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
        found.add(tuple((name, id(values.pop(name))) for name in names))
    return found | {(name, id(value)) for name, value in values.items()}


def _by_test(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    return cases


def _spare(fast: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases beyond those of `DEFAULT_CASES`."""
    cases = _by_test(fast)
    for folder, most in DEFAULT_CASES.items():
        for same in (same for name, same in cases.items() if name.startswith(folder) and not _guards(same)):
            kept = {(2 * number + 1) * len(same) // (2 * most) for number in range(most)}
            yield from (same[number] for number in range(len(same)) if number not in kept)


def _guards(cases: list[pytest.Item]) -> bool:
    """Whether each case of a test is about another guard: it is marked so, or expects an error."""
    is_marked = cases[0].get_closest_marker("guard") is not None
    return len(cases) > 1 and (is_marked or _raises(cases[0].function.__code__))


def _raises(code: CodeType) -> bool:
    """Whether a function, or one within it, calls `pytest.raises`."""
    within = (each for each in code.co_consts if isinstance(each, CodeType))
    return {"pytest", "raises"} <= {*code.co_names} or any(map(_raises, within))
