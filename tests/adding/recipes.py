"""The recipes of the documentation, followed: a copy of the repository with the edits that a page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.house import PRODUCT, ROOT

COPIED = (*(folder for folder in PRODUCT if folder != "deploy"), "tests", "docs/schemas")
_HIDDEN = shutil.ignore_patterns("__pycache__", ".*")


def edits(page: str, heading: str) -> Iterator[tuple[str, str, str]]:
    """Yield the file, the text that goes and what comes in its place, for each edit below a heading of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (chosen,) = (each for each in section if each.startswith(f"{heading}\n"))
    for block in re.findall(r"^ *```diff\n(.*?)^ *```$", chosen, re.DOTALL | re.MULTILINE):
        for of_file in re.split(r"^\+\+\+ ", textwrap.dedent(block), flags=re.MULTILINE)[1:]:
            file, _, hunks = of_file.partition("\n")
            for hunk in hunks.split("@@\n"):
                lines = hunk.splitlines()
                before, after = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
                yield file, f"{before}\n", f"{after}\n"


def copy_with(folder: Path, recipe: list[tuple[str, str, str]]) -> Path:
    """Copy what a recipe may be about into a new folder, and edit it there."""
    for each in COPIED:
        shutil.copytree(ROOT / each, folder / each, ignore=_HIDDEN)
    shutil.copy(ROOT / "pyproject.toml", folder)
    assert recipe, "there is no edit"
    for file, before, after in recipe:
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"the page's edit of {file} must fit in one place: correct\n{before}"
        (folder / file).write_text(text.replace(before, after), encoding="utf-8")
    return folder


def product_files(recipe: list[tuple[str, str, str]]) -> set[str]:
    """Return the files that a recipe edits, beside tests."""
    return {file for file, _, _ in recipe if not file.startswith("tests/")}


def use(copy: Path, function: Callable[[Path], None], folder: Path) -> None:
    """Call a function of a test's module with a folder, in a process that imports everything from the copy."""
    module, name = function.__module__, function.__name__
    in_copy(
        copy,
        "-W",
        "error::RuntimeWarning",
        "-c",
        f"import pathlib, {module} as m; m.{name}(pathlib.Path({str(folder)!r}))",
    )


def in_copy(copy: Path, *arguments: str) -> None:
    """Run Python in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
