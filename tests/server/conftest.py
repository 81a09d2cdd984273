import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import run_app

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def defaults() -> dict[str, Any]:
    """The app's run configuration as Flower hands it over when nothing is replaced."""
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


@pytest.fixture(scope="module")
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]
) -> Path:
    """The results of a run with the settings `FINISHED` of the module."""
    folder = tmp_path_factory.mktemp("finished")
    run_app(folder, defaults, **request.module.FINISHED)
    return folder


@pytest.fixture(scope="module")
def report(finished: Path) -> dict[str, Any]:
    """Its report."""
    return json.loads((finished / "report.json").read_text())
