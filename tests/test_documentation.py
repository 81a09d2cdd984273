"""The Python in the documentation runs, and the links lead somewhere."""

import re
from pathlib import Path

import pytest

from tests import numbers_matrix

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FOLDERS = (
    "riskband",
    "protocol",
    "worlds",
    "client",
    "strategies",
    "server",
    "simulations",
    "benchmarks",
    "tests",
    "docs",
)
HEAVY = ("adversaries.md", "planning.md")  # attacks on networks, and plans: seconds each, run by `-m slow`
MATHEMATICS = ROOT / "docs" / "mathematics.md"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in HEAVY else [])
        for page in PAGES
        if blocks(page)
    ],
)
def test_python_blocks_run(page):
    names = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)


def test_the_table_of_numbers_is_that_of_the_bounds():
    page, written = numbers_matrix.PAGE, f"\n\n{numbers_matrix.matrix()}\n\n"
    assert f"{numbers_matrix.BEGIN}{written}{numbers_matrix.END}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_exist(page):
    for file, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        if file.startswith("http"):
            continue
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} links to {file}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {file}#{anchor}"


def test_references_to_the_mathematics_resolve():
    """Code, pages and tests write `math §N` or `math §N.M`, the page itself `§N.M`: the numbers of its headings."""
    sections = set(re.findall(r"^##+ (\d+(?:\.\d+)?)\b", MATHEMATICS.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"1", "2", "2.1"} <= sections
    for path in (path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.*") if path.suffix in {".py", ".md"}):
        mark = r"(?<!\] )§" if path == MATHEMATICS else r"math §+"
        for number in re.findall(mark + r"(\d+(?:\.\d+)*)", path.read_text(encoding="utf-8")):
            assert number in sections, f"{path.relative_to(ROOT)}: math §{number} is no section of docs/mathematics.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_pages_name_exist(page):
    text = page.read_text(encoding="utf-8")
    folders = "|".join(FOLDERS)
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    for name in re.findall(rf"`((?:{folders})(?:\.[a-z]\w*)+)[`(]", text):
        assert is_module(name) or is_module(name.rpartition(".")[0]), f"{page.name} names {name}"


def is_module(name):
    """Whether there is a module or package of this name."""
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
