"""A client whose clock differs from the server's: what Flower makes of it, and what the run says."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from simulations.launcher import private_superlink
from tests.deployment.stage import CLOCK
from tests.end_to_end.test_flwr_run import PROJECT
from tests.waiting import wait_until

CONFIG = {"num-clients": 2, "num-unseen": 0, "training-epochs": 1, "model": "mlp", "quorum": 1.0, "node-timeout": 12.0}


def is_in_or_out(node: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether a SuperNode is connected, or has ended because it is not let in."""
    return node.poll() is not None or "SuperNode ID" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "is_refused"), [(600, True), (-600, True), (-60, False)])
def test_a_clock_that_is_wrong_is_named_as_a_possible_reason(tmp_path: Path, seconds: int, is_refused: bool) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK.format(seconds=seconds))
    folder = tmp_path / "out"
    with private_superlink(is_simulation=False) as superlink:
        elsewhere = replace(superlink, environment={**superlink.environment, "PYTHONPATH": str(tmp_path)})
        nodes = [
            here.start_supernode(partition_id=k, num_partitions=2) for k, here in enumerate((superlink, elsewhere))
        ]
        logs = [superlink.home / f"supernode-{k}.log" for k in range(2)]
        wait_until(lambda: all(map(is_in_or_out, nodes, logs)), what=superlink.log_tail)
        config = CONFIG | {"output-dir": str(folder)}
        superlink.start_run(PROJECT, num_supernodes=None, run_config=config).wait(200)
        log = superlink.logs[0].read_text()
    # The second line of the log is the usual first request without a key.
    assert (log.count('/v1/fleet/register-node HTTP/1.1" 200') == 1) == is_refused
    if is_refused:
        failure = json.loads((folder / "failed.json").read_text())
        assert "node-missing" in failure["reason"]
        assert "clock is more than 5 s ahead of the SuperLink's or 5 min behind it" in failure["reason"]
    else:
        assert json.loads((folder / "report.json").read_text())["network"]["num_answered"] == 2
