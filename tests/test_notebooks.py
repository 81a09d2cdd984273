"""The notebooks of the documentation: kept without outputs; `mkdocs build` runs them and looks at these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_has_no_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


FIGURE = {"data": {"image/png": ""}}
BOUND = {"name": "stdout", "text": "... with probability at least 0.95, the mean risk ..."}


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ([FIGURE, BOUND], ""),
        ([BOUND], "must show a figure"),
        ([FIGURE], "must print the sentence"),
        (
            [FIGURE, BOUND, {"name": "stderr", "text": "RuntimeWarning: divide"}],
            "must warn of nothing, got RuntimeWarning",
        ),
    ],
)
def test_a_page_needs_a_figure_a_bound_and_no_warning(outputs, problem):
    pytest.importorskip("nbclient", reason="the packages that run notebooks are not installed")
    pages = pytest.importorskip("docs.notebook_pages", reason="mkdocs is not installed")
    assert pages.output_problem(outputs).startswith(problem)
    assert bool(pages.output_problem(outputs)) == bool(problem)
