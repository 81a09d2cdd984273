"""Distance against loss: the numbers of one domain from outside, the data, and the whole experiment, quick."""

from __future__ import annotations

import json

import numpy as np
import ot
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from papers.domain_generalisation.distances import (
    EXPERIMENT,
    PLAIN,
    rank_correlations,
    widest_difference,
)
from papers.domain_generalisation.domains import FRESH, SEVERITIES, distances_of, domains
from papers.experiment import Request
from protocol.examples import Examples
from worlds.corruptions import MNIST_C


def encoder_and_head() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


def test_distance_unit_and_worst_case_are_those_of_brute_force():
    rng, model = np.random.default_rng(0), encoder_and_head()
    x = rng.normal(size=(40, 3)).astype(np.float32)
    with torch.no_grad():
        y = model(torch.from_numpy(x)).argmax(dim=1).numpy()
    y[:4] = 1 - y[:4]  # some are wrong already
    moved = (x + rng.normal(size=x.shape) * 0.5).astype(np.float32)
    source = Examples(x=x, y=y)
    found = distances_of(model, source, {"moved": Examples(x=moved, y=y), "same": source})

    def z(points):
        with torch.no_grad():
            return model[:2](torch.from_numpy(points)).double().numpy()

    cost = 0.0
    for label in (0, 1):
        own = y == label
        share = np.full(own.sum(), 1 / own.sum())
        cost += own.mean() * ot.emd2(share, share, ot.dist(z(x[own]), z(moved[own])))
    weight, bias = (part.detach().double().numpy() for part in model[2].parameters())
    margin = (z(x) @ (weight[0] - weight[1]) + bias[0] - bias[1]) * np.where(y == 0, 1, -1)
    flips = np.maximum(margin, 0) / np.linalg.norm(weight[0] - weight[1])
    assert found["unit"] == pytest.approx(np.sqrt(np.mean(flips**2)), rel=1e-6)
    domain = found["domains"]["moved"]
    assert domain["distance"] == pytest.approx(np.sqrt(cost) / found["unit"], rel=1e-6)
    assert found["domains"]["same"]["distance"] == pytest.approx(0, abs=1e-6)
    assert found["source"]["accuracy"] == pytest.approx(0.9)
    with torch.no_grad():
        logits, labels = model(torch.from_numpy(moved)), torch.from_numpy(y)
        assert domain["cross_entropy"] == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)
        assert domain["accuracy"] == pytest.approx(float((logits.argmax(dim=1) == labels).float().mean()))
    # A budget is best spent on the cheapest flips, the last of them in part.
    cheapest = np.cumsum(np.sort(flips**2)) / len(flips)
    for distance, worst in zip(found["curve"]["distance"], found["curve"]["worst_accuracy"], strict=True):
        budget = min(distance**2, 1) * cheapest[-1]
        flipped = np.interp(budget, cheapest[3:], np.arange(4, 41)) / 40
        assert worst == pytest.approx(1 - flipped, abs=1e-5)  # the model works in float32


def test_domains_have_the_labels_of_the_source_in_its_order():
    given = domains(Request(quick=True))
    assert len(given.others) == 9 * 5 + 1 + 4
    assert all(np.array_equal(each.y, given.source.y) for each in given.others.values())
    assert not np.array_equal(given.others[FRESH].x, given.source.x)
    with pytest.raises(ValueError, match="labels of the source"):
        distances_of(
            nn.Linear(64, 10), Examples(x=np.zeros((2, 64), np.float32), y=np.array([0, 1])),
            {"other": Examples(x=np.zeros((2, 64), np.float32), y=np.array([1, 0]))},
        )  # fmt: skip


def test_rank_correlation_is_scipys_and_equally_far_domains_are_compared():
    rng = np.random.default_rng(3)
    rows = {
        f"{kind}-{severity}": {"distance": float(rng.random()), "accuracy": float(rng.integers(3) / 3)}
        for kind in MNIST_C
        for severity in SEVERITIES
    }
    flat = {f"fog-{severity}": {"distance": 5.0 + severity, "accuracy": 0.5} for severity in SEVERITIES}
    found = rank_correlations(rows | flat)
    assert found["fog"] is None
    shear = [rows[f"shear-{severity}"] for severity in SEVERITIES]
    expected = spearmanr([row["distance"] for row in shear], [1 - row["accuracy"] for row in shear]).statistic
    assert found["shear"] == pytest.approx(expected)
    near = {"a": (1.0, 0.9), "b": (1.04, 0.6), "c": (1.2, 0.1)}
    pairs = {name: {"distance": distance, "accuracy": accuracy} for name, (distance, accuracy) in near.items()}
    assert widest_difference(pairs) == (pytest.approx(0.3), ["a", "b"])


@pytest.mark.slow
def test_error_grows_with_distance_and_no_domain_is_worse_than_the_worst():
    """What [DG] §1 claims of corruptions, and what is proved of every domain."""
    torch.set_num_threads(1)
    result = EXPERIMENT.run(Request(quick=True))
    found = result["models"][PLAIN.name]
    assert list(found["domains"]) == list(domains(Request(quick=True)).others)
    for name, domain in found["domains"].items():
        assert domain["accuracy"] >= domain["worst_accuracy"] - 1e-9, name
    at_unit = found["curve"]["distance"].index(1.0)
    assert found["curve"]["worst_accuracy"][at_unit] == pytest.approx(0, abs=1e-12)
    assert found["curve"]["worst_accuracy"][at_unit - 1] > 0
    assert np.median([value for value in found["rank_correlation"].values() if value is not None]) >= 0.9
    assert found["widest_difference"]["accuracy"] > 0.1  # equally far, and not equally hard
    assert json.dumps(result) == json.dumps(EXPERIMENT.run(Request(quick=True)))
    assert EXPERIMENT.figure(json.loads(json.dumps(result))).axes
