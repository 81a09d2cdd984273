"""Two models on real SuperNodes, whose owners have models of their own, and on Ray."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from client.budget import QueryBudget
from protocol.models import build_model, save_checkpoint
from simulations.__main__ import main
from tests.end_to_end.test_own_data import two_runs


@pytest.mark.slow
def test_real_nodes_compare_with_models_of_their_own_and_a_second_run_costs_them_nothing(tmp_path):
    rng = np.random.default_rng(0)
    new, *local = (build_model("mlp", x_shape=(5,), num_classes=3, seed=seed) for seed in range(3))
    save_checkpoint(new, tmp_path / "model.pt")
    counts, own = [], []
    for k in range(2):
        x, y = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 3, 40)
        np.savez(tmp_path / f"{k}.npz", x=x, y=y)
        save_checkpoint(local[k], tmp_path / f"local-{k}.pt")
        with torch.no_grad():
            before, after = (model(torch.from_numpy(x)).argmax(1).numpy() != y for model in (local[k], new))
        counts.append((int(np.sum(after & ~before)), int(np.sum(before & ~after))))
        files = (
            f'data="{tmp_path}/{k}.npz" local-model="{tmp_path}/local-{k}.pt" answer-record-file="{tmp_path}/{k}.db"'
        )
        own.append(f'client-id="site-{k}" {files} query-budget=3 query-budget-file="{tmp_path}/{k}.db"')
    first, second = two_runs(tmp_path, own, strategy="comparison", **{"old-model": "local"})
    section = first["comparison"]
    assert list(zip(section["num_worse"], section["num_better"], strict=True)) == counts
    assert second["comparison"] == section
    assert all(QueryBudget(f"site-{k}", 3, tmp_path / f"{k}.db").left() == 0 for k in range(2))


@pytest.mark.slow
def test_sixty_clients_in_processes_of_ray_say_what_they_say_in_this_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = []
    for engine in ("ray", "in-process"):
        changes = ["num-unseen=5", "figure-format=none", "training-epochs=2"]
        assert main(["comparison", "--engine", engine, "--out", str(tmp_path / engine), "--set", *changes]) == 0
        report = json.loads((tmp_path / engine / "report.json").read_text())
        found.append({key: report[key] for key in ("comparison", "certificates", "hashes", "unseen")})
    assert len(found[0]["comparison"]["new"]) == 60
    assert found[0] == found[1]
