"""The profile of eight clients, as processes: what the compose file says of the second four holds, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.run.ledger import read_ledger
from tests.deployment import compose
from tests.deployment.stage import Stage, can_make_namespaces

NUM_CLIENTS = 8
VARIABLES = {"RISKBAND_UID": "0", "RISKBAND_GID": "0", "NUM_CLIENTS": str(NUM_CLIENTS)}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
def test_eight_clients_answer(tmp_path: Path) -> None:
    settings = ["num-unseen=0", "training-epochs=1", "thresholds=10", "examples-per-client=20", "quorum=1.0"]
    with Stage(tmp_path, compose.SECURE, has_namespaces=can_make_namespaces(), variables=VARIABLES) as stage:
        stage.up("eight")
        process = stage.start("certify", "quickstart", "--set", *settings)
        assert process.wait(300) == 0, stage.tail("certify")
    folder = tmp_path / "deployment" / "results" / "quickstart"
    assert json.loads((folder / "report.json").read_text())["network"]["num_answered"] == NUM_CLIENTS
    names = {answer.client_id for answer in read_ledger(folder / "ledger.jsonl")[1]}
    assert names == {f"client-{number:05d}" for number in range(NUM_CLIENTS)}
