"""``python requirements.py PYPROJECT``: print what a deployment installs, one requirement per line.

These are the requirements of the extra ``app`` without Flower's simulation extra: Ray is a third of the environment,
and no deployment starts it. `requirements.txt` is made of them, by the command in its header.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def deployed_requirements(pyproject: Path) -> list[str]:
    """Return what a project and its extra ``app`` require, flwr without its extras."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *_of_extra("app", project)]
    return [re.sub(r"^flwr\[[^]]*\]", "flwr", requirement) for requirement in requirements]


def _of_extra(name: str, project: dict[str, Any]) -> Iterator[str]:
    """Requirements of an extra; where it names others of the project, as in ``riskband[plots]``, theirs too."""
    for requirement in project["optional-dependencies"][name]:
        own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
        if own is None:
            yield requirement
            continue
        for extra in own[1].split(","):
            yield from _of_extra(extra.strip(), project)


if __name__ == "__main__":
    print("\n".join(deployed_requirements(Path(sys.argv[1]))))
