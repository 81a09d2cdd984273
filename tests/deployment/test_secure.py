"""Secure aggregation over real SuperNodes: secrets survive from round to round, each a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import riskband as rb
from protocol.models import build_model
from riskband.models.evaluation import mean_loss
from tests.deployment import compose
from tests.deployment.stage import Stage

NUM_CLIENTS, SHAPE, NUM_CLASSES, BINS = 4, (1, 8, 8), 3, 20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
def test_the_counts_are_those_of_the_clients_own_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    model = build_model("mlp", x_shape=SHAPE, num_classes=NUM_CLASSES, seed=11)
    deployment = tmp_path / "deployment"
    (deployment / "models").mkdir(parents=True)
    torch.save(model.state_dict(), deployment / "models" / "model.pt")
    risks = []
    for number in range(1, NUM_CLIENTS + 1):
        x, y = rng.random((30, *SHAPE), dtype=np.float32), rng.integers(NUM_CLASSES, size=30)
        folder = deployment / "data" / f"node-{number}"
        folder.mkdir(parents=True)
        np.savez(folder / "examples.npz", x=x, y=y)
        risks.append(mean_loss(model, x, y, loss="brier")[0])
    own = 'data="/data/examples.npz" secure-min-clients=4 secure-complete-graph=true'
    own += ' secure-clients-file="/keys/clients"'
    variables = {f"NODE_{number}_CONFIG": own for number in range(1, NUM_CLIENTS + 1)}
    variables |= {"RISKBAND_UID": "0", "RISKBAND_GID": "0"}
    settings = ["dataset=none", "x-shape=1,8,8", f"num-classes={NUM_CLASSES}", "model=mlp", "training=checkpoint"]
    settings += ["checkpoint=/models/model.pt", "loss=brier", "num-unseen=0", "thresholds=10", "quorum=1.0"]
    settings += ["affine-sigma=0", "dirichlet-concentration=0", "strategy=secure_histogram"]
    settings += ["examples-per-client=30", f"histogram-bins={BINS}"]
    with Stage(tmp_path, compose.INSECURE, has_namespaces=False, variables=variables) as stage:
        stage.up()
        process = stage.start("certify", "quickstart", "--set", *settings)
        assert process.wait(400) == 0, stage.tail("certify")
    report = json.loads((deployment / "results" / "quickstart" / "report.json").read_text())
    expected = rb.risk_histogram(risks, 30, edges=np.linspace(0.0, 1.0, BINS + 1), binary=False)
    assert report["secure_aggregation"]["counts"] == [expected.tolist()]
