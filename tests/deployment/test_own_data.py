"""The insecure overlay on the loopback interface, over clients that bring their own data in files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.models import build_model
from riskband.models.evaluation import mean_loss
from server.run.ledger import read_ledger
from tests.deployment import compose
from tests.deployment.stage import Stage

NUM_CLIENTS, SHAPE, NUM_CLASSES = 4, (1, 8, 8), 3


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
def test_each_client_answers_from_the_files_that_are_mounted_for_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    model = build_model("mlp", x_shape=SHAPE, num_classes=NUM_CLASSES, seed=11)
    deployment = tmp_path / "deployment"
    (deployment / "models").mkdir(parents=True)
    torch.save(model.state_dict(), deployment / "models" / "model.pt")
    expected = {}
    for number in range(1, NUM_CLIENTS + 1):
        num_examples = 20 + number
        x = rng.random((num_examples, *SHAPE), dtype=np.float32)
        y = rng.integers(NUM_CLASSES, size=num_examples)
        folder = deployment / "data" / f"node-{number}"
        folder.mkdir(parents=True)
        np.savez(folder / "examples.npz", x=x, y=y)
        expected[f"client-{number - 1:05d}"] = mean_loss(model, x, y, loss="brier")

    variables = {f"NODE_{number}_CONFIG": 'data="/data/examples.npz"' for number in range(1, NUM_CLIENTS + 1)}
    variables |= {"RISKBAND_UID": "0", "RISKBAND_GID": "0"}
    settings = ["dataset=none", "x-shape=1,8,8", f"num-classes={NUM_CLASSES}", "model=mlp", "training=checkpoint"]
    settings += ["checkpoint=/models/model.pt", "loss=brier", "num-unseen=0", "thresholds=10", "quorum=1.0"]
    settings += ["affine-sigma=0", "dirichlet-concentration=0"]
    with Stage(tmp_path, compose.INSECURE, has_namespaces=False, variables=variables) as stage:
        stage.up()
        process = stage.start("certify", "quickstart", "--set", *settings)
        assert process.wait(200) == 0, stage.tail("certify")
    folder = deployment / "results" / "quickstart"
    assert json.loads((folder / "report.json").read_text())["network"]["num_answered"] == NUM_CLIENTS
    answers = read_ledger(folder / "ledger.jsonl")[1]
    assert {answer.client_id: (answer.risk, answer.num_examples) for answer in answers} == expected
