"""Data and modules of the user's in real runs: real SuperLinks, real SuperNodes, real Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from client.budget import QueryBudget
from protocol.models import build_model, save_checkpoint
from simulations.launcher import COMPLETED, private_superlink

PROJECT = Path(__file__).resolve().parents[2]
TASK = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x.flatten(1))


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    x, y = load_digits(return_X_y=True)
    own = [
        {"img": torch.tensor(image / 16, dtype=torch.float32).reshape(1, 8, 8), "label": int(label)}
        for image, label in zip(x[partition_id::num_partitions], y[partition_id::num_partitions])
    ]
    return DataLoader(own[:-50], batch_size=batch_size, shuffle=True), DataLoader(own[-50:], batch_size=batch_size)
"""


def two_runs(tmp_path, own, **changes):
    """The reports of two runs, one after the other, that ask the same two SuperNodes about the model in model.pt."""
    config = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] | {
        "dataset": "none",
        "x-shape": "5",
        "num-classes": 3,
        "num-unseen": 0,
        "num-clients": 2,
        "client-ids": "any",
        "quorum": 1.0,
        "node-timeout": 180.0,  # SuperNodes start slowly where cores are few
        "model": "mlp",
        "training": "checkpoint",
        "checkpoint": str(tmp_path / "model.pt"),
        **changes,
    }
    with private_superlink(is_simulation=False) as superlink:
        for k in range(2):
            superlink.start_supernode(partition_id=k, num_partitions=2, own=own[k])
        for run in ("first", "second"):
            changed = config | {"output-dir": str(tmp_path / run)}
            superlink.start_run(PROJECT, num_supernodes=None, run_config=changed).wait(200)
            assert superlink.run_status().status == COMPLETED, superlink.log_tail()
    return [json.loads((tmp_path / run / "report.json").read_text()) for run in ("first", "second")]


@pytest.mark.slow
def test_real_nodes_answer_from_their_own_files_and_a_second_run_costs_them_nothing(tmp_path):
    rng = np.random.default_rng(0)
    model = build_model("mlp", x_shape=(5,), num_classes=3, seed=0)
    save_checkpoint(model, tmp_path / "model.pt")
    risks, own = [], []
    for k in range(2):
        x, y = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 3, 40)
        np.savez(tmp_path / f"{k}.npz", x=x, y=y)
        with torch.no_grad():
            risks.append(float((model(torch.from_numpy(x)).argmax(1).numpy() != y).mean()))
        files = f'data="{tmp_path}/{k}.npz" answer-record-file="{tmp_path}/{k}.sqlite"'
        own.append(f'client-id="site-{k}" {files} query-budget=1 query-budget-file="{tmp_path}/{k}.sqlite"')
    first, second = two_runs(tmp_path, own, thresholds=5)
    assert first["network"]["mean_empirical_risk"] == pytest.approx(np.mean(risks), abs=1e-12)
    assert first["network"]["client_ids"] == ["site-0", "site-1"]
    assert second["certificates"] == first["certificates"]  # though each client had one value to give
    for k in range(2):
        assert QueryBudget(f"site-{k}", 1, tmp_path / f"{k}.sqlite").left() == 0


@pytest.mark.slow
def test_a_users_module_and_checkpoint_are_certified_by_one_command(tmp_path, monkeypatch):
    (tmp_path / "users_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    import users_task

    torch.manual_seed(0)
    net = users_task.Net()
    torch.save(ArrayRecord(net.state_dict()).to_torch_state_dict(), tmp_path / "final_model.pt")
    (tmp_path / "mine.toml").write_text(
        'scenario = "mine"\ndataset = "users_task:load_data"\nx-shape = "1,8,8"\nnum-classes = 10\n'
        'model = "users_task:Net"\ntraining = "checkpoint"\nnum-clients = 4\nnum-unseen = 0\nquorum = 1.0\n'
        f'checkpoint = "{tmp_path / "final_model.pt"}"\noutput-dir = "{tmp_path / "out"}"\n'
    )
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "simulations", "--engine", "ray", str(tmp_path / "mine.toml")]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    wrong = [
        [float((net(batch["img"]).argmax(1) != batch["label"]).sum()) for batch in users_task.load_data(k, 4, 32)[1]]
        for k in range(4)
    ]
    assert report["network"]["mean_empirical_risk"] == pytest.approx(sum(map(sum, wrong)) / 200, abs=1e-12)
