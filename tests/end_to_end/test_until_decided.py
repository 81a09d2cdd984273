"""Asking until it is decided by one command: wrong ones, in this process and on Ray, and over real SuperNodes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from client.budget import QueryBudget
from protocol.models import build_model, save_checkpoint
from simulations.__main__ import main
from simulations.launcher import COMPLETED, private_superlink

PROJECT = Path(__file__).resolve().parents[2]


def test_a_command_that_cannot_decide_names_all_mistakes_and_starts_nothing(tmp_path, capsys):
    wrong = ["missing=worst", "batch-size=0", "max-clients=501"]
    assert main(["until-decided", "--out", str(tmp_path / "out"), "--set", *wrong]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines] == [["error:", key] for key in ("ask", "batch-size", "max-clients")]
    assert "missing ignore" in lines[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_processes_of_ray_are_asked_in_the_same_order_as_clients_in_this_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = []
    changes = ["num-unseen=0", "training-epochs=2", "require=mean<=0.9"]
    for engine in ("ray", "in-process"):
        folder = tmp_path / engine
        arguments = ["--engine", engine, "--clients", "40", "--out", str(folder), "--set", *changes]
        assert main(["until-decided", *arguments]) == 0
        report = json.loads((folder / "report.json").read_text())
        assert report["network"]["num_unasked"] >= 20
        assert report["metrics"]["by_type"]["query.loss"]["num_messages"] == report["network"]["num_asked"]
        found.append({key: report[key] for key in ("network", "certificates", "gate", "hashes")})
    assert found[0] == found[1]


@pytest.mark.slow
def test_real_nodes_that_were_not_asked_have_their_budgets_whole(tmp_path):
    rng = np.random.default_rng(0)
    model = build_model("mlp", x_shape=(5,), num_classes=3, seed=0)
    save_checkpoint(model, tmp_path / "model.pt")
    config = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] | {
        "dataset": "none",
        "x-shape": "5",
        "num-classes": 3,
        "num-unseen": 0,
        "num-clients": 4,
        "client-ids": "any",
        "node-timeout": 240.0,
        "model": "mlp",
        "training": "checkpoint",
        "checkpoint": str(tmp_path / "model.pt"),
        "ask": "until-decided",
        "batch-size": 1,
        "require": "mean<=0.95",
        "output-dir": str(tmp_path / "out"),
    }
    with private_superlink(is_simulation=False) as superlink:
        for k in range(4):
            x = rng.normal(size=(200, 5)).astype(np.float32)
            with torch.no_grad():
                np.savez(tmp_path / f"{k}.npz", x=x, y=model(torch.from_numpy(x)).argmax(1).numpy())  # never wrong
            own = f'client-id="site-{k}" data="{tmp_path}/{k}.npz" query-budget=1 query-budget-file="{tmp_path}/{k}.db"'
            superlink.start_supernode(partition_id=k, num_partitions=4, own=own)
        superlink.start_run(PROJECT, num_supernodes=None, run_config=config).wait(400)
        assert superlink.run_status().status == COMPLETED, superlink.log_tail()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["gate"]["verdict"] == "PASS"
    asked = report["network"]["client_ids"]
    assert 2 <= len(asked) < 4
    left = {f"site-{k}": QueryBudget(f"site-{k}", 1, tmp_path / f"{k}.db").left() for k in range(4)}
    assert left == {name: 0 if name in asked else 1 for name in left}
