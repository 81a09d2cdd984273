"""The example project, through the in-process grid; `tests/end_to_end` has it through Flower."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest
import torch

import riskband as rb
from riskband.flower.testing import InProcessGrid

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "quickstart-pytorch-certified"
CONFIG = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


@pytest.fixture
def project(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    names = ("server_app", "client_app", "task")
    return [importlib.import_module(f"quickstart_certified.{name}") for name in names]


def certified(project, path, **changed):
    torch.manual_seed(0)
    server_app, client_app, _ = project
    config = CONFIG | changed | {"certificate": str(path)}
    grid = InProcessGrid(client_app.app, num_clients=config["num-clients"], run_config=config)
    grid.run_server_app(server_app.app)
    return rb.Certificate.load(path)


def test_the_example_certifies_clients_that_were_held_out(project, tmp_path, capsys):
    sizes = {"num-clients": 16, "num-held-out": 10, "num-server-rounds": 2, "local-epochs": 1}
    certificate = certified(project, tmp_path / "certificate.json", **sizes)
    assert certificate.validity == "certificate"
    assert len(certificate.recipe["answers"]["values"]) == 10
    assert rb.verify(certificate).ok
    printed = capsys.readouterr().out
    assert certificate.statement in printed
    assert "mean<=0.15 is required, and with probability at least 0.95 the mean change of the risk" in printed


@pytest.mark.slow
def test_the_example_at_its_size_is_above_the_risk_of_clients_that_nobody_asked(project, tmp_path):
    _, _, task = project
    nets = []
    load = task.Net.load_state_dict

    class Net(task.Net):
        def load_state_dict(self, weights, *args, **kwargs):
            nets.append(weights)
            return load(self, weights, *args, **kwargs)

    project[1].Net, plain = Net, project[1].Net
    try:
        certificate = certified(project, tmp_path / "certificate.json")
    finally:
        project[1].Net = plain
    assert len(certificate.recipe["answers"]["values"]) == CONFIG["num-held-out"]
    net = task.Net()
    net.load_state_dict(nets[-1])  # the model that was evaluated last
    risks = [1.0 - task.test(net, task.load_data(partition)[1]) for partition in range(1000, 1400)]
    assert sum(risks) / len(risks) < certificate.value < 0.35
