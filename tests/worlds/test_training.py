"""Training: accuracy on held-out digits, the optimum of a convex problem, determinism, checkpoints."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from protocol.models import build_model, load_arrays, load_checkpoint, model_arrays, save_checkpoint
from worlds.datasets import load_dataset
from worlds.population import Population, PopulationSpec
from worlds.shifts import AffineShift
from worlds.training import _Adam, train_centrally, train_epochs

QUICK = {"model": "mlp", "seed": 0, "num_epochs": 2, "learning_rate": 0.003}
STEPS = {"seed": 0, "num_epochs": 1, "learning_rate": 0.01}


def errors(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(torch.tensor(x)).argmax(dim=1).numpy() != y


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = model_arrays(one), model_arrays(other)
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_digits_are_learnt(model):
    data = load_dataset("digits")
    net = train_centrally(data, model=model, seed=0, num_epochs=20, learning_rate=0.005)
    assert errors(net, data.x_pool, data.y_pool).mean() <= 0.05


def test_a_convex_problem_is_solved():
    # Truth: scikit-learn's logistic regression without penalty, on classes that overlap.
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = (rng.normal(size=(300, 2)) + y[:, None] * [[0.8, -0.5]]).astype(np.float32)
    reference = LogisticRegression(C=1e9).fit(x, y)
    optimum = -np.log(reference.predict_proba(x)[np.arange(300), y]).mean()
    loss = train_epochs(nn.Linear(2, 3), x, y, seed=0, num_epochs=600, learning_rate=0.05, batch_size=300)
    assert loss == pytest.approx(optimum, abs=1e-4)
    assert loss >= optimum - 1e-6


def test_the_seed_decides_everything_and_torch_is_left_alone():
    data = load_dataset("digits")
    before = torch.random.get_rng_state()
    first, again, other = (train_centrally(data, **(QUICK | {"seed": seed})) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(first, again)
    assert not same(first, other)


def test_what_a_model_draws_is_decided_by_the_seed_too():
    x, y = np.ones((40, 6), np.float32), np.arange(40) % 2
    nets = []
    for global_seed in (1, 2):
        net = nn.Sequential(nn.Dropout(0.5), build_model("mlp", x_shape=(6,), num_classes=2, seed=0))
        torch.manual_seed(global_seed)
        train_epochs(net, x, y, **STEPS)
        nets.append(net)
    assert same(*nets)


def test_the_pool_is_not_looked_at():
    data = load_dataset("digits")
    changed = replace(data, x_pool=np.zeros_like(data.x_pool))
    assert same(train_centrally(data, **QUICK), train_centrally(changed, **QUICK))


def test_training_does_not_change_its_examples():
    data = load_dataset("digits")
    x, y = data.x_train[:50].copy(), data.y_train[:50].copy()
    train_epochs(build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0), x, y, augment_sigma=0.3, **STEPS)
    np.testing.assert_array_equal(x, data.x_train[:50])
    np.testing.assert_array_equal(y, data.y_train[:50])


def test_augmentation_helps_under_affine_shifts():
    data = load_dataset("digits")
    clients = Population(PopulationSpec(shifts=(AffineShift(0.4),)))
    mean_risks = []
    for sigma in (0.0, 0.4):
        net = train_centrally(data, model="mlp", seed=0, num_epochs=20, learning_rate=0.003, augment_sigma=sigma)
        shifted = [clients.distribution(k) for k in range(20)]
        mean_risks.append(np.mean([client.weights @ errors(net, client.x, client.y) for client in shifted]))
    assert mean_risks[1] < mean_risks[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_epochs": 0}, "num_epochs must be .* at least 1, got 0; give"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"learning_rate": 0}, "learning_rate must be .* got 0; 0.003"),
        ({"learning_rate": float("nan")}, "learning_rate must be"),
        ({"augment_sigma": -1}, "sigma must be"),
        ({"seed": "0"}, "seed must be"),
        ({"margin": -0.5}, "margin must be"),
        ({"noise_sigma": -0.1}, "noise_sigma must be"),
        ({"learning_rate": 1.5}, "learning_rate must be .*> 0 and <= 1, got 1.5"),
    ],
)
def test_wrong_arguments(change, message):
    data = load_dataset("digits")
    with pytest.raises(ValueError, match=message):
        train_centrally(data, **(QUICK | change))


def test_a_margin_lowers_the_logit_of_the_label():
    # Truth: the formula, by numpy, of a model that does not move because its learning rate is almost 0.
    rng = np.random.default_rng(0)
    x, y, net = rng.normal(size=(6, 4)).astype(np.float32), np.arange(6) % 3, nn.Linear(4, 3)
    logits = net(torch.from_numpy(x)).detach().double().numpy()
    for margin in (0.0, 0.7):
        moved = (logits - margin * np.eye(3)[y]) / (0.4 * margin if margin else 1.0)
        truth = np.mean(np.log(np.exp(moved).sum(axis=1)) - moved[np.arange(6), y])
        loss = train_epochs(net, x, y, seed=0, num_epochs=1, learning_rate=1e-9, margin=margin)
        assert loss == pytest.approx(truth, rel=1e-5)


class Spy(nn.Linear):
    """Keeps what it was shown."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [*getattr(self, "seen", []), x.numpy()]
        return super().forward(x)


def test_noise_of_the_training_is_gaussian_of_its_sigma_and_fresh_at_each_step():
    x, y, net = np.full((1000, 4), 3.0, np.float32), np.arange(1000) % 2, Spy(4, 2)
    train_epochs(net, x, y, seed=0, num_epochs=2, batch_size=1000, learning_rate=1e-9, noise_sigma=0.5)
    noises = [(seen - 3.0).ravel() / 0.5 for seen in net.seen]
    assert all(seen.dtype == np.float32 and seen.std() == pytest.approx(0.5, abs=0.02) for seen in net.seen)
    for noise in noises:  # a false alarm of 1e-6 each
        assert scipy.stats.kstest(noise, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noises)[0, 1]) < 0.1


ONE_CYCLE = [
    pytest.param({}, id="adam"),
    pytest.param({"momentum": 0.0}, id="sgd", marks=pytest.mark.slow),  # it loads torch's compiler
    pytest.param({"is_orthogonal": True}, id="orthogonal"),
]


@pytest.mark.parametrize("kind", ONE_CYCLE)
def test_one_cycle_begins_and_ends_slowly(kind):
    x, y, net = np.ones((1, 4), np.float32), np.array([1]), nn.Linear(4, 2)
    biases = [net.bias.detach().clone()]
    settings = {"seed": 0, "num_epochs": 20, "learning_rate": 0.01, "is_one_cycle": True}
    train_epochs(net, x, y, after_epoch=lambda _, model: biases.append(model.bias.detach().clone()), **settings, **kind)
    steps = torch.stack(biases).diff(dim=0).norm(dim=1)
    assert steps[0] == 0.0  # the rate rises from 0
    assert steps.argmax() in (3, 4)  # of 20 steps 15 % are for rising
    assert torch.all(steps[4:].diff() < 0.0)
    assert steps[-1] < 0.1 * steps.max()


def test_wrong_examples():
    net, x = nn.Linear(2, 2), np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="got 3 and 2; give one label for each image"):
        train_epochs(net, x, np.zeros(2, np.int64), **STEPS)
    with pytest.raises(ValueError, match=r"the training loss must stay finite, got .*; lower learning_rate"):
        train_epochs(net, x + np.float32(np.inf), np.zeros(3, np.int64), **STEPS)
    with pytest.raises(ValueError, match="at least 1, got 0 and 0"):
        train_epochs(net, x[:0], np.zeros(0, np.int64), **STEPS)


def test_a_checkpoint_carries_a_model_over(tmp_path):
    one, other = (build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=seed) for seed in (0, 1))
    save_checkpoint(one, tmp_path / "model.pt")
    load_arrays(other, load_checkpoint(tmp_path / "model.pt"))
    assert same(one, other)


class Harmful:
    """Unpickling this creates the file whose path it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_checkpoint_runs_no_code(tmp_path):
    for name, write in {"torch.pt": torch.save, "plain.pkl": _pickle_to}.items():
        write(Harmful(tmp_path / "harm"), tmp_path / name)
        with pytest.raises(ValueError, match="the checkpoint must be a readable state dict"):
            load_checkpoint(tmp_path / name)
        assert not (tmp_path / "harm").exists()


def _pickle_to(value: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=2))


def test_wrong_checkpoints(tmp_path):
    (tmp_path / "text.pt").write_text("not a checkpoint")
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save({"epoch": 3}, tmp_path / "numbers.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    for name in ("absent.pt", "text.pt", "empty.pt", "numbers.pt", "module.pt"):
        with pytest.raises(ValueError, match=r"the checkpoint must be a .*state dict.*; save"):
            load_checkpoint(tmp_path / name)


def test_tensors_that_numpy_does_not_have_are_refused_and_parameters_are_not(tmp_path):
    weights = torch.ones(2, 2)
    for name, odd in {"short.pt": weights.bfloat16(), "sparse.pt": weights.to_sparse()}.items():
        torch.save({"weight": odd}, tmp_path / name)
        with pytest.raises(ValueError, match=rf"dense tensors.*{name}.*float\(\)"):
            load_checkpoint(tmp_path / name)
    torch.save({"weight": nn.Parameter(weights)}, tmp_path / "parameters.pt")
    np.testing.assert_array_equal(load_checkpoint(tmp_path / "parameters.pt")["weight"], weights.numpy())


@pytest.mark.slow  # torch.optim.Adam loads torch's compiler
def test_adam_is_torchs_bit_for_bit(monkeypatch):
    def trained() -> nn.Module:
        return train_centrally(load_dataset("digits"), model="cnn", seed=3, num_epochs=2, learning_rate=0.003)

    ours = trained()
    monkeypatch.setattr(
        "worlds.training._optimizer",
        lambda model, *, learning_rate, **_: torch.optim.Adam(model.parameters(), lr=learning_rate),
    )
    assert same(ours, trained())


def test_adams_first_step_moves_every_weight_by_the_learning_rate():
    weights = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    adam = _Adam([weights, frozen], learning_rate=0.01)
    (weights * torch.tensor([5.0, -0.2, 0.0])).sum().backward()
    adam.step()  # the mean gradient over the root of the mean square is its sign, up to 1e-8 over it
    assert weights.tolist() == pytest.approx([0.99, -1.99, 3.0], abs=1e-6)
    assert frozen.tolist() == [1.0, 1.0]
