"""Imports go one way: riskband <- simulations <- client <- strategies <- server."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("riskband", "simulations", "client", "strategies", "server")
DOORS = {"simulations.engine", "simulations.__main__", "simulations.launcher"}  # may look at the whole app
TORCH_HOMES = {"simulations.models", "simulations.training", "simulations.cifar10"}
FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(tree, module):
    """Absolute names of everything a module imports, at its top or inside a function."""
    package = module.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def violations(source, module):
    layer = module.split(".")[0]
    above = set(LAYERS[LAYERS.index(layer) + 1 :]) if module not in DOORS else set()
    found = []
    for name in imported(ast.parse(source), module):
        root = name.split(".")[0]
        if root in above or root == "tests":
            found.append(f"{module} imports {name}")
        if root == "riskband" and module == "simulations.ground_truth":
            found.append(f"{module} imports {name}: the truth must not come from the code under test")
        if root == "torch" and (layer == "riskband" or (layer == "simulations" and module not in TORCH_HOMES)):
            found.append(f"{module} imports {name}")
        if root == "flwr" and (layer == "riskband" or (layer == "simulations" and module not in DOORS)):
            found.append(f"{module} imports {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_module_looks_up(path):
    assert violations(path.read_text(encoding="utf-8"), module_of(path)) == []


def test_every_layer_is_seen():
    assert {module_of(path).split(".")[0] for path in FILES} == set(LAYERS)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("riskband.bands", "import flwr"),
        ("riskband.bands", "def f():\n    from simulations import shifts"),
        ("simulations.models", "from client.wire import code_hash"),
        ("simulations.population", "import torch"),
        ("simulations.datasets", "from flwr.app import Context"),
        ("simulations.ground_truth", "import riskband as rb"),
        ("client.wire", "from strategies import query"),
        ("strategies.query", "import server.app"),
        ("server.app", "from tests.validity import coverage"),
    ],
)
def test_an_import_that_looks_up_is_noticed(module, source):
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("simulations.engine", "from client.app import app\nimport flwr"),
        ("simulations.datasets", "import flwr_datasets"),
        ("simulations.shifts", "from .checks import checked_number"),
        ("strategies.f_divergence", "import riskband as rb"),
    ],
)
def test_an_import_that_looks_down_is_fine(module, source):
    assert violations(source, module) == []
