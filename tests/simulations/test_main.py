"""`python -m simulations` in this process: what it refuses before it starts Flower."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protocol.models import build_model, save_checkpoint
from server.config import load_config
from simulations import launcher, simulate
from simulations.__main__ import main
from simulations.launcher import Interrupted
from simulations.options import EXIT_FAILED, EXIT_USAGE, chosen_run_config, scenario_parser
from simulations.simulate import default_folder


@pytest.fixture
def folder(tmp_path):
    """A folder of results with an earlier report."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "report.json").write_text("{}")
    return folder


def weights_of_an_mlp(path):
    save_checkpoint(build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0), path)


def weights_of_nan(path):
    model = build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=0)
    model[0].weight.data[0] = torch.nan
    save_checkpoint(model, path)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (weights_of_an_mlp, "a model that does not fit"),
        (weights_of_nan, "got NaN or infinity"),
        (lambda path: path.write_text("no weights"), "must be a readable state dict"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_earlier_results_stay(tmp_path, folder, capsys, write, message):
    path = tmp_path / "weights.pt"
    write(path)
    arguments = ["--clients", "5", "--out", str(folder), "--set", "training=checkpoint", f"checkpoint={path}"]
    assert main(arguments) == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"error: checkpoint '{path}' cannot be evaluated: ")
    assert message in error
    assert [each.name for each in folder.iterdir()] == ["report.json"]


def test_what_cannot_be_resumed_is_refused_and_earlier_results_stay(folder, capsys):
    (folder / "report.json").write_text('{"schema": "riskband.report/1"}')
    assert main(["--clients", "5", "--out", str(folder), "--resume"]) == EXIT_USAGE
    assert "must be the ledger of the interrupted run, but there is none" in capsys.readouterr().err
    assert [each.name for each in folder.iterdir()] == ["report.json"]


def test_all_pairs_that_are_none_are_named(capsys):
    assert main(["--set", "delta", "=3", "seed=1", "--set", "x"]) == EXIT_USAGE
    said = capsys.readouterr().err.splitlines()
    assert said == [f"error: --set needs KEY=VALUE, got '{text}'" for text in ("delta", "=3", "x")]


def test_too_few_answers_are_no_mistake_of_the_program(tmp_path, capsys):
    nothing = ["dataset=none", "evaluator=own", "num-unseen=0", "figure-format=none"]
    assert main(["--clients", "5", "--out", str(tmp_path), "--set", *nothing]) == EXIT_FAILED
    error = capsys.readouterr().err
    assert error.count("5 of 5 clients must answer validly") == 1
    assert "Traceback" not in error


def test_who_interrupts_a_run_is_told_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(config, folder, *, environment):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(simulate, "run_in_process", interrupted)
    assert main(["--clients", "5", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("everything that was started has ended\n")
    (tmp_path / "ledger.jsonl").write_text('{"schema": "riskband.ledger/2"}\n')
    assert main(["--clients", "5", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("has ended; --resume keeps the answers that came\n")


def folder_of(*arguments):
    """The name of the default folder for a command line."""
    return default_folder(load_config(chosen_run_config(scenario_parser("", "").parse_args(arguments)))).name


def test_other_configurations_have_other_default_folders(tmp_path):
    assert folder_of() == "quickstart"
    assert folder_of("both", "--set", "reply-timeout=5", "--resume") == "both"  # what it finds is the same
    own = tmp_path / "own.toml"
    own.write_text('scenario = "both"\nnum-clients = 77\n')  # the name of another
    runs = [("--seed", "1"), ("--seed", "2"), ("--clients", "50"), ("--set", "loss=brier"), (str(own),)]
    names = [folder_of(*arguments) for arguments in runs]
    assert len({"quickstart", "both", *names}) == 7
    assert names[0].startswith("quickstart-seed1-")
    assert names[0] == folder_of("--seed", "1", "--resume")  # the same command finds it again


def test_a_flower_that_does_not_start_leaves_the_reason_and_the_folder_may_be_used_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launcher, "START_TIMEOUT", 0.0)
    # The clients are to train: nothing is prepared meanwhile, which would leave Flower time to start.
    settings = ["--engine", "ray", "--clients", "5", "--out", str(tmp_path / "out"), "--set", "training=fedavg"]
    for _ in range(2):
        assert main(settings) == EXIT_FAILED
        assert "flower-superlink did not start" in capsys.readouterr().err
        failure = json.loads((tmp_path / "out" / "failed.json").read_text())
        assert "flower-superlink did not start" in failure["reason"]
    names = {"certificates", "events.jsonl", "events-1.jsonl", "failed.json", ".riskband.files"}
    assert {each.name for each in (tmp_path / "out").iterdir()} == names


AT_WORK = """
import torch
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from riskband.flower.testing import InProcessGrid, is_client_at_work
from simulations.__main__ import leave

app, size = ClientApp(), torch.ones(64, 1, 8, 8)

@app.query("loss")
def answer(message, context):
    while True:
        torch.cat(torch.split(torch.nn.functional.conv2d(size, torch.ones(16, 1, 3, 3)), 8))

grid = InProcessGrid(app, num_clients=1, reply_timeout=0.4)
(node,) = grid.get_node_ids()
grid.pull_messages(grid.push_messages([Message(RecordDict(), node, "query.loss")]))
print("left" if is_client_at_work() else "not left", end="")
leave(3)
"""


def test_a_process_ends_with_its_status_also_while_a_client_is_in_compiled_code():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", AT_WORK], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout == "left"
    assert done.returncode == 3, done.stderr  # by sys.exit: SIGABRT
