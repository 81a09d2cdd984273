"""Imports go one way: riskband <- protocol <- worlds <- client <- strategies <- server <- simulations <- papers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("riskband", "protocol", "worlds", "client", "strategies", "server", "simulations", "papers")
TORCH_HOMES = (
    *("riskband.adversaries", "riskband.models", "protocol.architectures", "protocol.models", "protocol.guarantees"),
    *(
        "worlds.training",
        "worlds.cifar10",
        "worlds.lipschitz",
        "worlds.orthogonal",
        "worlds.loss_table",
        "worlds.recommendation",
    ),
)
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
    above = set(LAYERS[LAYERS.index(layer) + 1 :])
    found = []
    for name in imported(ast.parse(source), module):
        root = name.split(".")[0]
        if root in above or root == "tests":
            found.append(f"{module} imports {name}")
        if root == "torch" and layer in ("riskband", "protocol", "worlds") and not module.startswith(TORCH_HOMES):
            found.append(f"{module} imports {name}")
        if root == "flwr" and layer in ("riskband", "worlds") and not module.startswith("riskband.flower"):
            found.append(f"{module} imports {name}")
    return found


def test_no_module_looks_up():
    assert [found for path in FILES for found in violations(path.read_text(encoding="utf-8"), module_of(path))] == []


def test_every_layer_is_seen():
    assert {module_of(path).split(".")[0] for path in FILES} == set(LAYERS)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("riskband.bands.band", "import flwr"),
        ("riskband.bands.band", "def f():\n    from worlds import shifts"),
        ("protocol.models", "from client.app import app"),
        ("worlds.population", "import torch"),
        ("worlds.datasets", "from flwr.app import Context"),
        ("client.app", "from strategies import f_divergence"),
        ("strategies.asking.query", "import server.app"),
        ("server.app", "from tests.validity import coverage"),
    ],
)
def test_an_import_that_looks_up_is_noticed(module, source):
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("riskband.flower.testing", "import flwr"),
        ("protocol.wire", "import flwr"),
        ("worlds.datasets", "import flwr_datasets"),
        ("worlds.shifts", "from protocol.checks import checked_number"),
        ("strategies.f_divergence", "import riskband as rb"),
    ],
)
def test_an_import_that_looks_down_is_fine(module, source):
    assert violations(source, module) == []
