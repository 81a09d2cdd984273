"""What is installed for whom: the library alone is light, and the App has everything that its code imports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house import PRODUCT, ROOT, python_files, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
APP = ("protocol", "worlds", "client", "strategies", "server", "simulations", "deploy")
# Of packages whose distribution has another name.
DISTRIBUTIONS = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "ot": "pot",
    "sklearn": "scikit-learn",
}


def required(*requirements: str) -> set[str]:
    """Names of what these requirements bring, by what is installed here; the project's own are read from its file."""
    seen: set[tuple[str, str]] = set()
    left = [(Requirement(text), "") for text in requirements]
    while left:
        requirement, extra = left.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in {"", *requirement.extras} - {each for known, each in seen if known == name}:
            seen.add((name, wanted))
            left += [(Requirement(text), wanted) for text in _requires(name, wanted)]
    return {name for name, _ in seen} - {"riskband"}


def _requires(name: str, extra: str) -> list[str]:
    project = PROJECT["project"]
    if name == "riskband":
        return list(project["optional-dependencies"][extra] if extra else project["dependencies"])
    return metadata.requires(name) or []


def third_party(path: Path, *, nested: bool) -> Iterator[str]:
    """Top-level packages that a file imports and that are neither ours nor Python's; `nested`: in functions too."""
    tree = tree_of(path)
    for node in ast.walk(tree) if nested else tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        tops = {name.partition(".")[0] for name in names}
        yield from tops - {*PRODUCT, *sys.stdlib_module_names}


@pytest.mark.slow
def test_what_flower_installs_for_a_run_is_what_the_app_imports():
    """Flower calls `uv sync`, which installs the default groups and no extras."""
    groups = [PROJECT["dependency-groups"][name] for name in PROJECT["tool"]["uv"]["default-groups"]]
    installed = required("riskband", *(text for group in groups for text in group))
    imports = {name for path in python_files("riskband", *APP) for name in third_party(path, nested=True)}
    assert {"torch", "flwr", "pydantic", "rich"} <= imports
    missing = {name for name in imports if DISTRIBUTIONS.get(name, name.replace("_", "-")) not in installed}
    # Without them there are no adversaries "foolbox:…", no `riskband.tracking`, and no logs in inspect's own format.
    assert missing == {"foolbox", "inspect_ai", "mlflow", "wandb"}


def test_the_library_imports_only_what_its_base_install_brings():
    assert required("riskband") == {"numpy", "scipy"}
    extras = {"adversaries", "flower", "models"}
    files = [path for path in python_files("riskband") if not extras & set(path.relative_to(ROOT).parts)]
    assert {name for path in files for name in third_party(path, nested=False)} <= {"numpy", "scipy"}


def test_extras_that_other_extras_name_exist():
    extras = PROJECT["project"]["optional-dependencies"]
    for texts in extras.values():
        for requirement in map(Requirement, texts):
            assert requirement.name != "riskband" or requirement.extras <= extras.keys()
    assert {"plots", "report", "torch", "flower", "simulation", "reference", "attacks", "app", "dev"} <= extras.keys()


@pytest.mark.slow
def test_the_base_install_certifies_and_verifies(tmp_path):
    """In an environment of its own: `pip install riskband` as a user has it, without what is installed here."""

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=500)

    assert run(sys.executable, "-m", "venv", "venv").returncode == 0
    python, command = tmp_path / "venv/bin/python", tmp_path / "venv/bin/riskband"
    installed = run(python, "-m", "pip", "install", "--quiet", ROOT)
    assert installed.returncode == 0, installed.stderr
    packages = {each["name"] for each in json.loads(run(python, "-m", "pip", "list", "--format", "json").stdout)}
    assert packages - {"pip", "setuptools"} == {"riskband", "numpy", "scipy"}

    assert run(command, "--version").stdout == f"riskband {PROJECT['project']['version']}\n"
    code = (
        "import riskband as rb; band = rb.band(rb.ClientRisks([0.02, 0.11, 0.05] * 20, 100), delta=0.05);"
        "worst = rb.worst_case_mean(band, divergence='kl', budget=0.1); "
        "print(rb.verify(worst).ok, rb.bound(band, 'gini').value)"
    )
    assert run(python, "-c", code).stdout.startswith("True 0.")
    table = ROOT / "docs" / "examples" / "risks.csv"
    certify = (command, "certify", table, "--num-examples", 100)
    assert run(*certify, "--divergence", "chi2", "--out", "certificate.json").returncode == 0
    assert run(command, "verify", "certificate.json").returncode == 0

    drawn = run(*certify, "--plot", "band.png")
    assert (drawn.returncode, drawn.stdout) == (2, "")
    assert (
        drawn.stderr
        == 'riskband: figures need matplotlib, which is not installed; run: pip install "riskband[plots]"\n'
    )
    reference = run(python, "-c", code.replace("budget=0.1", "budget=0.1, method='reference'"))
    assert reference.stderr.endswith('which is not installed; run: pip install "riskband[reference]"\n')
