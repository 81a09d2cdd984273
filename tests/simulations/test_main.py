"""`python -m simulations` in this process: what it refuses before it starts Flower."""

from __future__ import annotations

import pytest
import torch

from simulations.__main__ import EXIT_USAGE, main
from simulations.models import build_model
from simulations.training import save_checkpoint


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
