"""The soak of benchmarks/soak.py, for as many minutes as RISKBAND_SOAK_MINUTES says."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats

from benchmarks.soak import FAULTS, Soak, judged, largest_unseen, services_for, soaked
from tests.deployment import compose
from tests.reference.test_run_folder import FOLDER

MINUTES = float(os.environ.get("RISKBAND_SOAK_MINUTES", "2"))  # its start and its end take two more
NUM_CLIENTS = 4


def test_the_services_of_eight_clients_are_those_of_the_compose_file() -> None:
    variables = {"NUM_CLIENTS": "8", **{f"NODE_{number}_CONFIG": "x=1" for number in range(1, 9)}}
    theirs = compose.load(compose.SECURE, variables)["services"]
    for spec in theirs.values():
        if spec.get("profiles") == ["eight"]:
            del spec["profiles"]
    assert services_for(8, variables) == theirs


def test_what_is_counted_twice_or_not_in_a_budget_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "deployment" / "results" / "0"
    shutil.copytree(FOLDER, folder)  # of a run that twelve clients answered, the last of them too
    last = (folder / "ledger.jsonl").read_text().splitlines()[-1]
    with (folder / "ledger.jsonl").open("a") as file:
        file.write(last + "\n")
    stage: Any = SimpleNamespace(folder=tmp_path)
    soak = Soak(stage, num_clients=12, seed=1, faults=(), memory=[(1, 0.0, 100.0)])
    soak.names.append("0")
    found = judged(soak)
    assert (found.num_answers, found.num_double, found.num_hostile, found.budget_differences) == (12, 1, 1, 11)


@pytest.mark.parametrize("number", [1, 4, 209])
def test_how_little_a_short_soak_proves_is_the_exact_limit_of_a_share(number: int) -> None:
    exact = stats.binomtest(0, number).proportion_ci(0.9, method="exact").high
    assert largest_unseen(number) == pytest.approx(exact)


def test_the_table_says_it_of_each_fault_unless_something_went_wrong(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "deployment" / "results" / "0")
    soak = Soak(SimpleNamespace(folder=tmp_path), 13, seed=1, faults=FAULTS[:2], memory=[(1, 0.0, 100.0)])  # type: ignore[arg-type]
    soak.names.append("0")
    soak.counts[FAULTS[0].what] = 4
    table = judged(soak).table()
    assert "| fault: SuperNode killed | 4; a defect in up to 53 % of them may have stayed unseen |" in table
    assert "| fault: ClientApp killed | 0 |" in table
    assert "| answers lost | 0 of 12; a defect in up to 22 % of them may have stayed unseen |" in table
    soak.num_lost = 1
    assert "unseen" not in judged(soak).table()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
def test_a_deployment_under_faults_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    found = soaked(tmp_path, minutes=MINUTES, num_clients=NUM_CLIENTS)
    assert sum(found.faults.values()) >= 2 * MINUTES, found.table()
    assert found.num_answers == found.num_runs * (NUM_CLIENTS - 1) > 0, found.table()
    assert not found.num_lost + found.num_double + found.num_hostile + found.num_wrong, found.table()
    assert found.budget_differences == 0, found.table()
