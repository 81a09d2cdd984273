"""The recipes of docs/adding.md, each followed to the letter, and what they add used as a user would.

The edits are those of the page, made in a copy of the repository (`recipes.py`); `uses.py` runs there, in a process of
its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import riskband as rb
from riskband.functionals.functional import FUNCTIONALS
from tests.adding import uses
from tests.adding.recipes import copy_with, edits, in_copy, product_files, use

DIVERGENCE = list(edits("adding.md", "A divergence"))
FUNCTIONAL = list(edits("adding.md", "A functional of a band"))
SHIFT = list(edits("simulations.md", "Adding one of your own"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all three of them."""
    return copy_with(tmp_path_factory.mktemp("repository"), DIVERGENCE + FUNCTIONAL + SHIFT)


def test_what_is_added_touches_few_files() -> None:
    assert len(product_files(DIVERGENCE)) == len(product_files(FUNCTIONAL)) == 1
    assert len(product_files(SHIFT)) <= 4


def test_an_edit_that_no_longer_fits_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="must fit in one place"):
        copy_with(tmp_path / "copy", [("riskband/worst_cases/divergences.py", "no such line\n", "another\n")])


def test_without_the_recipe_there_is_no_such_thing() -> None:
    for name in ("le_cam", "tilted"):
        assert name not in (*rb.DIVERGENCES, *FUNCTIONALS)


def test_a_new_divergence_bounds_worst_cases(repository: Path, tmp_path: Path) -> None:
    use(repository, uses.le_cam, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("slope_at_infinity=1.0", "slope_at_infinity=0.1"), ("2.0 / np", "1.9 / np"), ("t + 1", "t + 2")],
)
def test_negative_control_a_wrong_divergence_is_noticed(tmp_path: Path, right: str, wrong: str) -> None:
    recipe = [(file, before, after.replace(right, wrong)) for file, before, after in DIVERGENCE]
    with pytest.raises(AssertionError, match=r"uses\.py"):
        use(copy_with(tmp_path / "repository", recipe), uses.le_cam, tmp_path)


def test_a_new_functional_is_read_off_a_band(repository: Path, tmp_path: Path) -> None:
    use(repository, uses.tilted, tmp_path)


def test_the_command_certifies_them(repository: Path, tmp_path: Path) -> None:
    use(repository, uses.the_command, tmp_path)


def test_a_new_shift_makes_networks(repository: Path, tmp_path: Path) -> None:
    use(repository, uses.brightness, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3), ids=["divergence and functional", "selection", "shift"])
def test_a_run_knows_them(repository: Path, tmp_path: Path, number: int) -> None:
    use(repository, (uses.runs, uses.selection, uses.a_bright_run)[number], tmp_path)


@pytest.mark.slow
def test_the_tests_of_all_names_have_cases_of_them(repository: Path) -> None:
    of_all = ("reference/test_divergences", "reference/test_robust_mean", "reference/test_direct_bounds")
    run_tests(repository, *of_all, "worlds/test_population", names="le_cam or tilted or BrightnessShift")
    run_tests(repository, "reference/test_divergence_bounds", "laws/test_functional", "laws/test_schemas", names="")


def run_tests(repository: Path, *files: str, names: str) -> None:
    paths = [f"tests/{file}.py" for file in files]
    in_copy(repository, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", "-k", names, *paths)
