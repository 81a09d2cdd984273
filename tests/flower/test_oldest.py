"""`riskband.flower` with the oldest version of flwr that its extra allows, in an environment of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OLDEST = EXTRAS["flower"][0].removeprefix("flwr>=")


def made_environment(folder: Path) -> Path:
    """The Python of a new environment with the oldest flwr, and the library (not the app) beside it."""
    uv = shutil.which("uv", path=sysconfig.get_path("scripts"))  # flwr 1.41 brings it
    if uv is None:
        pytest.skip("no uv to make an environment with")
    python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
    needs = [f"flwr=={OLDEST}.0", "numpy", "scipy"]
    fetched = subprocess.run([uv, "pip", "install", "-q", "-p", str(python), *needs], capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"flwr {OLDEST} cannot be fetched: {fetched.stderr[-200:]}")
    (folder / "library").mkdir()
    (folder / "library" / "riskband").symlink_to(ROOT / "riskband")
    return python


@pytest.mark.slow
def test_what_any_apps_clients_measured_is_kept_and_bounded_with_the_oldest_flower(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d+\.\d+", OLDEST)
    python = made_environment(tmp_path / "old")
    library = str(tmp_path / "old" / "library")

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PYTHONPATH": library, "HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
        return subprocess.run([python, *arguments], env=environment, capture_output=True, text=True)

    done = said(str(ROOT / "tests" / "flower" / "oldest.py"))
    assert done.stdout.splitlines()[-1:] == [f"works with flwr {OLDEST}.0"], done.stderr[-2000:]
    refused = said("-c", "import riskband.flower.testing")
    assert f"InProcessGrid needs flwr 1.41 or later, got {OLDEST}.0; " in refused.stderr
