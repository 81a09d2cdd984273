"""Every entry of every registry has a case in the default suite, however many there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from riskband import DIVERGENCES
from riskband.adversaries.names import INPUT_ADVERSARIES
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.bands.methods import NAMED_LEVELS
from riskband.functionals.functional import FUNCTIONALS
from riskband.models.losses import LOSSES
from server.studies import STUDIES
from tests.house import ROOT
from tests.sampling import combinations, entries_of, every, repetitions
from worlds.shifts import Shift


def shifts(kind: type[Shift] = Shift) -> Iterator[str]:
    """Yield the names of the shifts that one can take: those that are no kind of shift for others to refine."""
    for each in kind.__subclasses__():
        yield from shifts(each)
        if each.__module__.startswith("worlds.") and not each.__subclasses__():
            yield each.__name__


REGISTRIES: Mapping[str, Iterable[str]] = {
    "adversary": INPUT_ADVERSARIES,
    "divergence": DIVERGENCES,
    "functional": FUNCTIONALS,
    "level method": NAMED_LEVELS,
    "local step": LOCAL_STEPS,
    "loss": LOSSES,
    "scenario": sorted(path.stem for path in (ROOT / "simulations" / "scenarios").glob("*.toml")),
    "shift": sorted(shifts()),
    "study": STUDIES,
}


def without_case(items: Iterable[pytest.Item], registries: Mapping[str, Iterable[str]]) -> set[tuple[str, str]]:
    """Return the entries that none of these cases is about."""
    known = {(kind, name) for kind, registry in registries.items() for name in registry}
    return known - {entry for item in items for entry in entries_of(item)}


def test_every_entry_has_a_case_and_a_new_one_would_be_missed(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    if {*request.config.args} != {"tests"} or request.config.option.keyword:
        pytest.skip("of the whole suite: pytest without a file or a word")
    fast = [item for item in items if item.get_closest_marker("slow") is None]
    assert without_case(fast, REGISTRIES) == set()
    grown = {kind: [*registry, "newcomer"] for kind, registry in REGISTRIES.items()}
    assert without_case(fast, grown) == {(kind, "newcomer") for kind in REGISTRIES}


class Case:
    """What the choice of cases reads of an item."""

    def __init__(self, name: str, marks: Iterable[Any] = ()) -> None:
        self.nodeid, self.function = name, lambda: None
        self.marks = [each if isinstance(each, pytest.Mark) else each.mark for each in marks]

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (mark for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(self.iter_markers(name), None)


@pytest.mark.parametrize("num_entries", [1, 2, 15, 40])
def test_of_every_entry_one_case_is_kept_however_few_of_a_test(num_entries: int) -> None:
    names = [f"name-{number}" for number in range(num_entries)]

    def cases(folder: str, *marks: pytest.MarkDecorator) -> list[Any]:
        return [
            Case(f"{folder}/test_file.py::test_{test}[{param.id}-{size}]", [*param.marks, *marks])
            for test in ("first", "second")
            for param in every("adversary", names)
            for size in range(3)
        ]

    plain: list[Any] = [Case(f"tests/adversaries/test_file.py::test_third[{size}]") for size in range(50)]
    items = [*cases("tests/adversaries"), *plain]
    left_out = set(repetitions(items))
    kept = [item for item in items if item not in left_out]
    assert without_case(kept, {"adversary": names}) == set()
    assert len(kept) <= num_entries + 2
    assert len(left_out & {*plain}) == 49
    assert not list(repetitions(cases("tests/worlds")))  # where nothing is left out
    assert not list(repetitions(cases("tests/adversaries", pytest.mark.slow)))


@pytest.mark.parametrize("marks", [[pytest.mark.slow], [pytest.mark.slow, pytest.mark.guard], []])
def test_ci_meets_every_value_of_a_slow_test_and_leaves_combinations(marks: list[pytest.MarkDecorator]) -> None:
    laws, sizes = ["beta", "two points", "skewed"], [(30, 5), (100, 20)]
    by = [pytest.mark.parametrize("law", laws), pytest.mark.parametrize(("num_clients", "num_examples"), sizes)]
    cases: list[Any] = []
    for law, (num_clients, num_examples) in product(laws, sizes):
        case = Case(f"tests/validity/test_file.py::test_it[{law}-{num_clients}-{num_examples}]", [*marks, *by])
        values = {"law": law, "num_clients": num_clients, "num_examples": num_examples}
        vars(case)["callspec"] = SimpleNamespace(params=values)
        cases.append(case)
    left_out = list(combinations([*cases, Case("tests/validity/test_file.py::test_alone", marks)]))  # type: ignore[list-item]
    kept = [case.callspec.params for case in cases if case not in left_out]
    assert {values["law"] for values in kept} == {*laws}
    assert {(values["num_clients"], values["num_examples"]) for values in kept} == {*sizes}
    assert len(kept) == (3 if len(marks) == 1 else 6)
