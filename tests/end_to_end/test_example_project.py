"""`examples/quickstart-pytorch-certified` as its reader runs it: real SuperLink, real `flwr run`, real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

import riskband as rb
from simulations.launcher import COMPLETED, private_superlink

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "quickstart-pytorch-certified"


@pytest.mark.slow
def test_flwr_run_certifies_the_example(tmp_path):
    sizes = {"num-clients": 12, "num-held-out": 8, "num-server-rounds": 2, "certificate": f"{tmp_path}/found.json"}
    with private_superlink() as superlink:
        superlink.start_run(EXAMPLE, num_supernodes=12, run_config=sizes).wait(200)
        assert superlink.run_status().status == COMPLETED, superlink.log_tail()
    certificate = rb.Certificate.load(tmp_path / "found.json")
    assert certificate.validity == "certificate"
    assert len(certificate.recipe["answers"]["values"]) == 8
    assert rb.verify(certificate).ok
