"""The attacks table: its measures on a model whose truth is known, its order, and a small version end to end."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from papers import __main__ as command
from papers.experiment import Request
from papers.robustness import attacks_table
from papers.robustness.attacks_table import Row, broken_orders, examined, standing
from papers.robustness.networks import fgsm_from_random_start
from riskband.adversaries import LipschitzAdversary, TransportProblem
from riskband.adversaries.registry import builder
from riskband.adversaries.spaces import point_batches

DISTANCE = 0.2


@pytest.fixture(scope="module", name="line")
def _line():
    """A linear model of two classes, examples, and the exact l2 distance from each to its nearest error."""
    rng = np.random.default_rng(0)
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
        model.bias.copy_(torch.tensor([0.0, -3.5]))
    x = rng.uniform(0.2, 0.8, size=(40, 2)).astype(np.float32)
    margins = x.astype(np.float64) @ [3.0, 4.0] - 3.5
    y = (margins > 0).astype(np.int64)
    y[:4] = 1 - y[:4]  # misclassified as they are
    distances = np.abs(margins) / 5.0
    distances[:4] = 0.0
    return model.eval(), x, y, distances


def worst_accuracy(distances: np.ndarray, budget: float) -> float:
    """Of examples that are made wrong in the order of their cost, until the mean cost is spent."""
    spent, wrong = 0.0, 0.0
    for distance in np.sort(distances):
        share = 1.0 if distance == 0.0 else min(1.0, (budget * len(distances) - spent) / distance)
        spent, wrong = spent + share * distance, wrong + share
    return 1.0 - wrong / len(distances)


def test_an_attack_and_a_proof_meet_at_the_truth_of_a_linear_model(line):
    model, x, y, distances = line
    batches = list(point_batches(model, x, y, loss="zero_one", batch_size=len(y)))
    problem = TransportProblem("zero_one", 1, "l2", "input", "wda-knapsack", distances=(DISTANCE,))
    attack = standing(builder("wda-knapsack")(model, problem), batches, distance=DISTANCE)
    proof = standing(LipschitzAdversary(model, problem), batches, distance=DISTANCE)
    for found in (attack, proof):
        assert found.pointwise == (distances > DISTANCE).mean()
        assert found.transported == pytest.approx(worst_accuracy(distances, DISTANCE), abs=1e-3)
    assert proof.transported <= attack.transported


def test_a_broken_order_is_said_and_a_proved_one_is_a_bug():
    kept = {"clean": 0.9, "APGD-CE": 0.6, "AA": 0.5, "A3++": 0.5, "ours": 0.5, "ours, W1": 0.2, "certificate": 0.1}
    assert broken_orders(kept) == []
    assert broken_orders(kept | {"certificate": 0.55}) == [
        f"certificate 0.55 is above {name} 0.5, which cannot be: a bug" for name in ("AA", "A3++", "ours")
    ]
    assert broken_orders(kept | {"AA": 0.65}) == ["AA 0.65 is above APGD-CE 0.6, which papers report otherwise"]


def test_training_images_move_within_the_ball_and_the_box_and_raise_the_loss():
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    x, y = rng.uniform(size=(50, 1, 2, 2)).astype(np.float32), rng.integers(3, size=50)
    moved = fgsm_from_random_start(model, x, y, rng, radius=0.1)
    assert np.abs(moved - x).max() <= 0.1 + 1e-6
    assert moved.min() >= 0.0
    assert moved.max() <= 1.0
    losses = [nn.functional.cross_entropy(model(torch.from_numpy(z)), torch.from_numpy(y)).item() for z in (x, moved)]
    assert losses[0] < losses[1]


def test_a_row_of_a_linear_model_has_every_column_and_a_figure(line):
    model, x, y, distances = line
    row = Row("line", lambda request: (model, None), (("l2", DISTANCE),), (0.05, 0.1, 0.2))
    found = examined(row, model, x, y, Request(quick=True))
    ((table_line,), risks) = (found[name] for name in ("lines", "risks"))
    assert not any("a bug" in broken for broken in table_line["broken"])
    truth = (distances > DISTANCE).mean()
    assert table_line["accuracy"]["certificate"] == table_line["accuracy"]["ours"] == truth
    assert min(table_line["accuracy"][name] for name in ("APGD-CE", "WDA 1")) >= truth
    assert_allclose(risks["attacked"], [1 - worst_accuracy(distances, b) for b in risks["budgets"]], atol=1e-3)
    assert_allclose(risks["certified"], risks["attacked"], atol=2e-3)
    attacks_table.figure(json.loads(json.dumps({"models": [found]})))


@pytest.mark.slow
def test_the_small_table_runs_and_keeps_its_proved_order(tmp_path, capsys):
    asked = [
        "attacks-table",
        "--out",
        str(tmp_path),
        "--quick",
        "--panels",
        "digits-cnn",
        "--set",
        "images=6",
        "steps=5",
    ]
    assert command.main(asked) == 0
    assert "digits-cnn" in capsys.readouterr().out
    result = json.loads((tmp_path / "attacks-table.json").read_text())["result"]
    ((line,), risks) = (result["models"][0][name] for name in ("lines", "risks"))
    assert not any("a bug" in broken for broken in line["broken"])
    assert {"clean", "APGD-CE", "ours", "certificate"} <= set(line["accuracy"])
    assert risks["attacked"][0] == 1.0 - line["accuracy"]["clean"]
    assert all(low <= high for low, high in zip(risks["attacked"], risks["certified"], strict=True))
    assert (tmp_path / "attacks-table.svg").stat().st_size > 10_000


def test_a_model_without_its_data_is_skipped_by_name_and_without_any_there_is_no_table(tmp_path, line, monkeypatch):
    with pytest.raises(ValueError, match=r"mnist-cnn is skipped: .*mnist\.npz is missing; .*fetch mnist"):
        attacks_table.run(Request(data=tmp_path, panels=("mnist-cnn",)))
    with pytest.raises(ValueError, match="needs a model, got none; give --checkpoint FILE"):
        attacks_table.run(Request(data=tmp_path, panels=("checkpoint",)))
    rows = {row.name: row for row in attacks_table.ROWS}
    data = SimpleNamespace(x_pool=line[1], y_pool=line[2])
    own = Row("digits-line", lambda request: (line[0], data), (("l2", DISTANCE),), (0.05, 0.1, 0.2))
    monkeypatch.setattr(attacks_table, "ROWS", (rows["mnist-cnn"], own))
    monkeypatch.setattr(attacks_table, "PANELS", ("mnist-cnn", "digits-line"))
    result = attacks_table.run(Request(data=tmp_path, settings={"images": 3, "steps": 2, "ensembles": 0}))
    assert result["remarks"][0].startswith("mnist-cnn is skipped: ")
    assert [row["model"] for row in result["table"]] == ["digits-line"]


def test_a_checkpoint_is_checked_before_anything_runs(tmp_path, capsys):
    wrong = ["--out", str(tmp_path), "--quick", "--checkpoint", str(tmp_path / "none.pt")]
    assert command.main(["attacks-table", *wrong]) == 2
    assert "checkpoint must be a file" in capsys.readouterr().err
    assert command.main(["group-table", *wrong]) == 2
    assert "checkpoint must be left out: group-table" in capsys.readouterr().err
