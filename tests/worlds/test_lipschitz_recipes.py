"""``python -m worlds.lipschitz`` from the keyboard: a checkpoint, what is certified of it, and wrong input."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from protocol.models import build_model, load_arrays, load_checkpoint
from worlds.datasets import load_dataset
from worlds.lipschitz import certified_distances, main


def test_digits_by_one_command(tmp_path, capsys):
    path = tmp_path / "model.pt"
    assert main(["digits", "--epochs", "1", "--out", str(path)]) == 0
    said = capsys.readouterr().out
    model, data = build_model("lipschitz-cnn", x_shape=(1, 8, 8), num_classes=10, seed=7), load_dataset("digits")
    load_arrays(model, load_checkpoint(path))
    with torch.no_grad():
        is_right = model(torch.tensor(data.x_pool)).argmax(dim=1).numpy() == data.y_pool
    distances = certified_distances(model, data.x_pool, data.y_pool)
    assert np.all(distances[~is_right] == 0.0)
    accuracy, *certified = (float(number) for number in re.findall(r"(0\.\d{4})(?:;| within)", said))
    assert accuracy == pytest.approx(is_right.mean(), abs=1e-4)
    assert certified == pytest.approx([np.mean(distances > t) for t in (0.1, 0.2, 0.5)], abs=1e-4)
    assert accuracy > certified[0] > certified[1] > certified[2]
    assert re.search(r"largest constant of a margin: 1\.\d+; sqrt 2", said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist"], "are read from a file; give --data"),
        (["cifar10", "--data", "npz:nowhere.npz"], "nowhere.npz"),
        (["digits", "--out", "/no/such/folder/model.pt"], "in a folder that exists"),
        (["digits", "--epochs", "0"], "num_epochs must be .* at least 1, got 0"),
        (["imagenet"], "invalid choice: 'imagenet'"),
    ],
)
def test_wrong_input_is_said_before_anything_is_trained(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr()
    assert re.search(message, said.err)
    assert "epoch" not in said.out
