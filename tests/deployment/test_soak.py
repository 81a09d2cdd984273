"""The soak of benchmarks/soak.py, for as many minutes as RISKBAND_SOAK_MINUTES says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.soak import soaked

MINUTES = float(os.environ.get("RISKBAND_SOAK_MINUTES", "2"))  # its start and its end take two more
NUM_CLIENTS = 4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
def test_a_deployment_under_faults_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    found = soaked(tmp_path, minutes=MINUTES, num_clients=NUM_CLIENTS)
    assert sum(found.faults.values()) >= 2 * MINUTES, found.table()
    assert found.num_answers == found.num_runs * (NUM_CLIENTS - 1) > 0, found.table()
    assert not found.num_lost + found.num_double + found.num_hostile + found.num_wrong, found.table()
    assert found.budget_differences == 0, found.table()
