"""A Flower quickstart app as a user has it, certified without a change to it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from server.config import load_config
from server.problems import ConfigError
from server.settings import brings_own_data, is_dataset
from tests.server.running import run_app

NUM_CLIENTS = 6

# In the style of Flower's quickstart-pytorch: Net(), load_data(partition_id, num_partitions, batch_size), dict batches.
TASK = '''
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader


class Net(nn.Module):
    """Model (simple CNN adapted from 'PyTorch: A 60 Minute Blitz')"""

    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 3 * 3, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = x.view(-1, 6 * 3 * 3)
        return self.fc2(F.relu(self.fc1(x)))


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Load a partition of the data: normalised as the model was trained, 80% to train, 20% to test."""
    x, y = load_digits(return_X_y=True)
    own = [
        {"img": torch.tensor(image / 8 - 1, dtype=torch.float32).reshape(1, 8, 8), "label": int(label)}
        for image, label in zip(x[partition_id::num_partitions], y[partition_id::num_partitions])
    ]
    split = int(0.8 * len(own))
    trainloader = DataLoader(own[:split], batch_size=batch_size, shuffle=True)
    testloader = DataLoader(own[split:], batch_size=batch_size)
    return trainloader, testloader


def train(net, trainloader, epochs):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            F.cross_entropy(net(batch["img"]), batch["label"]).backward()
            optimizer.step()
'''


@pytest.fixture(name="quickstart")
def _quickstart(tmp_path, monkeypatch):
    """The user's task module, importable, and the final_model.pt that its server wrote."""
    (tmp_path / "quickstart_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("quickstart_task", None)
    import quickstart_task as task

    torch.manual_seed(0)
    net = task.Net()
    task.train(net, task.load_data(0, 3, 32)[0], epochs=4)
    # What Flower's ServerApp does with result.arrays.
    torch.save(ArrayRecord(net.state_dict()).to_torch_state_dict(), tmp_path / "final_model.pt")
    return task, tmp_path


def settings(folder):
    return {
        "num_clients": NUM_CLIENTS,
        "num_unseen": 0,
        "dataset": "quickstart_task:load_data",
        "x_shape": "1,8,8",
        "num_classes": 10,
        "model": "quickstart_task:Net",
        "training": "checkpoint",
        "checkpoint": str(folder / "final_model.pt"),
    }


def error_rates(task, folder):
    """What the user's own code finds."""
    net = task.Net()
    net.load_state_dict(torch.load(folder / "final_model.pt"))
    rates = []
    for k in range(NUM_CLIENTS):
        batches = list(task.load_data(k, NUM_CLIENTS, 32)[1])
        wrong = [(net(batch["img"]).argmax(1) != batch["label"]).double() for batch in batches]
        rates.append(float(torch.cat(wrong).mean()))
    return rates


def test_the_run_finds_what_the_quickstarts_own_code_finds(quickstart, defaults, tmp_path):
    task, folder = quickstart
    report = run_app(tmp_path / "out", defaults, **settings(folder))
    rates = error_rates(task, folder)
    assert report["network"]["num_answered"] == NUM_CLIENTS
    assert report["network"]["mean_empirical_risk"] == pytest.approx(np.mean(rates), abs=1e-12)
    assert report["network"]["largest_empirical_risk"] == pytest.approx(max(rates), abs=1e-12)
    assert 0 < np.mean(rates) < 0.7
    assert report["unseen"]["num_clients"] == 0


@pytest.mark.parametrize("strategy", ["wasserstein", "dispersion", "selection"])
def test_every_strategy_needs_no_dataset(quickstart, defaults, tmp_path, strategy):
    _, folder = quickstart
    changes = settings(folder) | {"strategy": strategy, "num_radii": 5, "num_multipliers": 3, "candidate_epochs": ""}
    report = run_app(tmp_path / "out", defaults, **changes)
    assert report["network"]["num_answered"] == NUM_CLIENTS
    assert report["certificates"]


def test_simulated_and_owners_data_give_the_same_certificates(quickstart, defaults, tmp_path):
    """As in a deployment: each node's own configuration says where its data are, the run has no dataset."""
    task, folder = quickstart
    simulated = run_app(tmp_path / "simulated", defaults, **settings(folder))
    own = {}
    for k in range(NUM_CLIENTS):
        batches = list(task.load_data(k, NUM_CLIENTS, 32)[1])
        x, y = (np.concatenate([np.asarray(batch[key]) for batch in batches]) for key in ("img", "label"))
        np.savez(folder / f"{k}.npz", x=x, y=y)
        own[k] = {"client-id": f"client-{k:05d}", "data": str(folder / f"{k}.npz")}
        own[k]["allow-modules"] = "quickstart_task"
    del sys.modules["quickstart_task"].load_data  # now nobody can use it
    deployed = run_app(tmp_path / "deployed", defaults, node_configs=own, **settings(folder) | {"dataset": "none"})
    assert deployed["certificates"] == simulated["certificates"]
    assert deployed["network"] == simulated["network"]


def test_a_client_without_data_is_a_failure_with_a_reason(quickstart, defaults, tmp_path):
    _, folder = quickstart
    np.savez(folder / "a.npz", x=np.zeros((9, 1, 8, 8), dtype=np.float32), y=np.arange(9))
    own = {k: {"data": str(folder / "a.npz"), "allow-modules": "quickstart_task"} for k in range(NUM_CLIENTS - 1)}
    changes = settings(folder) | {"dataset": "none", "quorum": 0.5}
    report = run_app(tmp_path / "out", defaults, node_configs=own, **changes)
    (failure,) = report["network"]["failures"]
    assert failure["reason"] == "client-raised"
    assert "the node config must have the key" in failure["detail"]


def test_without_a_dataset_what_needs_one_is_refused_at_once(defaults, tmp_path):
    (tmp_path / "model.pt").write_text("")
    right = {
        "dataset": "none",
        "x-shape": "3,32,32",
        "num-classes": 10,
        "num-unseen": 0,
        "training": "checkpoint",
        "checkpoint": str(tmp_path / "model.pt"),
    }
    config = load_config(defaults | right)
    assert config.model_inputs == ((3, 32, 32), 10)
    assert load_config(config.to_run_config()) == config
    wrong = {"num-unseen": 5, "training": "central", "target-sigmas": "0.1", "group-sigmas": "0.1,0.2"}
    with pytest.raises(ConfigError) as caught:
        load_config(defaults | {"dataset": "none"} | wrong)
    keys = {problem.split(" ")[0] for problem in caught.value.problems}
    assert keys == {"x-shape", "num-classes", *wrong}
    for change in ({"x-shape": "3,0"}, {"x-shape": "a"}, {"num-classes": 1}, {"num-classes": 10**9}):
        with pytest.raises(ConfigError) as caught:
            load_config(defaults | right | change)
        (problem,) = caught.value.problems
        assert problem.startswith(next(iter(change)))


def test_what_a_dataset_is():
    assert all(is_dataset(name) for name in ("digits", "hf:a/b", "none", "my_task:load_data", "a.b.c:load"))
    assert not any(is_dataset(name) for name in ("", "mnist", "npz:/no/such.npz", "npz:x", "hf:", "a b:c", "a:b:c"))
    assert not any(brings_own_data(name) for name in ("digits", "hf:repo", "npz:file"))


def test_the_servers_dataset_stays_what_it_was(defaults):
    shape, num_classes = load_config(defaults).model_inputs
    assert (shape, num_classes) == ((1, 8, 8), 10)
