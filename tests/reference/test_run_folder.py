"""The folder of a run that was written once verifies for ever: `run-0.1.0`.

`python -m tests.reference.test_run_folder` writes it; after the first release it is never made again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

import riskband as rb
from riskband.cli import main
from server.run.folder import LEDGER_FILE, LIST_FILE, REPORT_FILE
from server.run.ledger import read_ledger

FOLDER = Path(__file__).parent / "run-0.1.0"
CERTIFICATES = sorted(FOLDER.glob("certificates/*.json"))
SETTINGS = {
    "num-clients": 12,
    "num-unseen": 0,
    "examples-per-client": 20,
    "training-epochs": 1,
    "thresholds": 3,
    "model": "mlp",
    "figure-format": "none",
    "quorum": 1.0,
}


def test_the_folder_has_every_certificate_of_its_report() -> None:
    said = json.loads((FOLDER / REPORT_FILE).read_text(encoding="utf-8"))["certificates"]
    assert {path.stem for path in CERTIFICATES} == said.keys()
    assert len(said) > 5


@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: path.stem)
def test_a_certificate_of_a_run_of_0_1_0_verifies(path: Path) -> None:
    assert main(["verify", str(path)]) == 0


def test_the_whole_folder_verifies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(FOLDER)]) == 0, capsys.readouterr().out


def test_its_ledger_is_read_and_holds_what_its_certificates_hold() -> None:
    header, answers = read_ledger(FOLDER / LEDGER_FILE)
    assert header["config"]["num-clients"] == len(answers) == SETTINGS["num-clients"]
    mean = rb.Certificate.load(FOLDER / "certificates" / "mean.json")
    assert sorted(mean.recipe["answers"]["values"]) == sorted(answer.risk for answer in answers)


def write() -> None:
    """Write the folder anew. Its page is left out: it is large, and no later version reads it."""
    from client.app import app as client_app
    from riskband.flower.testing import InProcessGrid
    from server.app import app as server_app
    from server.report import report

    report.rb.report_page = lambda *shown, **more: "<!-- left out -->\n"
    project = Path(__file__).parents[2] / "pyproject.toml"
    config = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"] | SETTINGS
    config["output-dir"] = str(place := Path(tempfile.gettempdir()) / FOLDER.name)
    for folder in (place, FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
    grid = InProcessGrid(client_app, num_clients=int(config["num-clients"]), run_config=config, seed=1)
    server_app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    shutil.copytree(place, FOLDER, ignore=shutil.ignore_patterns(f"{LIST_FILE[:-5]}*"))


if __name__ == "__main__":
    write()
