"""A client with data of its own loads nothing of simulated networks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import sys
from protocol.questions import LossAnswer, LossQuery
import client.__main__  # the dry run
from flwr.app import Message
from client.app import app
from protocol import wire
from riskband.flower.testing import InProcessGrid
from protocol.models import build_model, model_arrays

own = {"client-id": "a", "data": sys.argv[1]}
grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
query = LossQuery("zero_one", "mlp", (3,), 2)
content = wire.encode_query(query, model_arrays(build_model("mlp", x_shape=(3,), num_classes=2, seed=0)))
(reply,) = grid.send_and_receive([Message(content, next(iter(grid.get_node_ids())), wire.message_type(query))])
print(wire.decode_answer(reply.content, LossAnswer).num_examples)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("worlds", "simulations")))
"""


@pytest.mark.slow
def test_a_client_that_answers_with_its_own_data_loads_neither_worlds_nor_simulations(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((5, 3), np.float32), y=np.zeros(5, np.int64))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "own.npz")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["5", "[]"]
