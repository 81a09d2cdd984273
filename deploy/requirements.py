"""``python requirements.py PYPROJECT``: print what a deployment installs, one requirement per line.

These are the project's dependencies without Flower's simulation extra: Ray is a third of the environment, and no
deployment starts it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def deployed_requirements(pyproject: Path) -> list[str]:
    """Return the dependencies of a project, flwr without its extras."""
    dependencies: list[str] = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    return [re.sub(r"^flwr\[[^]]*\]", "flwr", dependency) for dependency in dependencies]


if __name__ == "__main__":
    print("\n".join(deployed_requirements(Path(sys.argv[1]))))
