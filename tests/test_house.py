"""The measures of the architecture keep to their bounds, and start-up loads nothing that is slow; seconds are printed
by ``python -m tests.house`` and never asserted."""

from __future__ import annotations

import pytest

from tests import house


@pytest.mark.parametrize("row", house.ROWS, ids=lambda row: row.what)
def test_the_house_keeps_to_its_bounds(row):
    assert row.goal <= row.bound
    assert row.measure() <= row.bound


@pytest.mark.parametrize("code", house.PROGRAMS.values(), ids=house.PROGRAMS)
def test_start_up_loads_nothing_that_is_slow(code):
    assert house.loaded_by(code) == []


def test_what_is_loaded_is_noticed():
    assert house.loaded_by("import riskband, scipy.stats") == ["scipy.stats"]


def test_the_client_app_loads_torch_with_its_first_question():
    """Flower's simulation loads it in the process that starts Ray, too."""
    assert "torch" not in house.loaded_by("import client.app")
    assert "torch" in house.loaded_by("import client.app, client.numbers")


def test_floors_and_circles_of_known_graphs():
    chain = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset(), "d": frozenset("ac")}
    assert (house.floors(chain), house.circles(chain)) == (4, [])
    circle = chain | {"c": frozenset("b")}
    assert (house.floors(circle), house.circles(circle)) == (4, ["b", "c"])
    alone = {"a": frozenset("b"), "b": frozenset(), "c": frozenset("b")}
    assert house.floors(alone) == 2


def test_arrows_are_read_wherever_the_import_is():
    arrows = house.arrows()
    assert "wording" in arrows["checks"]  # at the top of a module
    assert "plots" in arrows["cli"]  # inside a function
    assert "verification" in arrows["cli"]  # through the name `rb.verify`
    assert arrows["wording"] == frozenset()


def test_circles_of_files_count_arrows_for_types():
    name, path = "server.report.report", house.ROOT / "server/report/report.py"
    assert "server.studies.study.Evaluation" in set(house.imported(path, for_types=True)) - set(house.imported(path))
    assert "server.studies.study" in house.file_arrows()[name]
    assert "riskband.means" in house.file_arrows()["strategies.f_divergence"]  # through a name of `rb`


def test_blanks_comments_and_docstrings_are_free(tmp_path):
    file = tmp_path / "sample.py"
    file.write_text(
        '"""Of a module,\ntwo lines."""\n\n# why\nx = 1  # code\n"""Of x."""\ny = (\n    2\n)\nz = """a\n\nb"""\n'
    )
    assert house.lines_of_code(file) == {5, 7, 8, 9, 10, 11, 12}


def test_counts_see_what_is_there():
    assert house.num_calls("sqlite3.connect", *house.EDGE) == 1
    assert house.num_lines(".md", "docs") > 1000
    assert house.base_install() == ["numpy", "scipy"]
