"""The plain evaluation of a model on one client's examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from riskband.models.evaluation import computed, example_losses, mean_loss
from riskband.models.losses import LOSSES

RNG = np.random.default_rng(2)
X = RNG.normal(size=(101, 5)).astype(np.float32)
Y = RNG.integers(3, size=101)


def linear():
    model = nn.Linear(5, 3)
    with torch.no_grad():
        model.weight.copy_(torch.as_tensor(RNG.normal(size=(3, 5))))
    return model


def test_the_risk_is_the_share_of_errors_of_a_linear_model():
    model = linear()
    logits = X @ model.weight.detach().numpy().T + model.bias.detach().numpy()
    num_errors = int((logits.argmax(axis=1) != Y).sum())
    assert mean_loss(model, X, Y, loss="zero_one") == (num_errors / 101, 101)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_batch_size_does_not_change_the_losses(loss):
    model = linear()
    whole = example_losses(model, X, Y, loss=loss)
    assert whole.shape == (101,)
    assert whole.dtype == np.float64
    np.testing.assert_allclose(example_losses(model, X, Y, loss=loss, batch_size=7), whole, atol=1e-6)


def test_a_model_is_evaluated_in_eval_mode_and_left_as_it_was():
    model = nn.Sequential(nn.Dropout(0.9), linear()).train()
    first = example_losses(model, X, Y, loss="brier")
    np.testing.assert_array_equal(example_losses(model, X, Y, loss="brier"), first)
    assert model.training


class Failing(nn.Module):
    def forward(self, x):
        raise ArithmeticError


def test_a_model_that_raises_is_left_in_its_mode():
    model = Failing().train()
    with pytest.raises(ArithmeticError):
        mean_loss(model, X, Y, loss="brier")
    assert model.training


class Infinite(nn.Module):
    def forward(self, x):
        return torch.full((len(x), 3), torch.nan)


@pytest.mark.parametrize(
    ("model", "x", "y", "loss", "text"),
    [
        (linear(), X, Y, "accuracy", "loss must be one of"),
        (linear(), X[:0], Y[:0], "brier", "at least one example"),
        (linear(), X, Y[:-1], "brier", "same length, got 101 and 100"),
        (linear(), X, Y + 1, "brier", r"labels must lie in 0\.\.2"),
        (linear(), X, Y - 1, "zero_one", r"labels must lie in 0\.\.2"),
        (Infinite(), X, Y, "zero_one", "finite logits"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(model, x, y, loss, text):
    with pytest.raises(ValueError, match=text):
        mean_loss(model, x, y, loss=loss)


class InPlace(nn.Module):
    def forward(self, x):
        return x.mul_(0.0)[:, :3]


def test_the_examples_may_be_read_only_and_stay_as_they_are():
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    assert mean_loss(InPlace(), x, y, loss="zero_one")[0] == (y != 0).mean()
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.complex64])
def test_a_model_in_another_precision_is_refused(kind):
    with pytest.raises(ValueError, match=rf"float32 or float64, got {str(kind)[6:]}; convert: model\.float"):
        mean_loss(nn.Linear(2, 2, dtype=kind), np.zeros((1, 2)), np.zeros(1, int), loss="brier")


def test_a_model_in_double_precision_gets_its_examples_in_double_precision():
    model, x = nn.Linear(1, 2).double(), np.array([[1.0 + 1e-12]])
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [0.0]]))
        model.bias.copy_(torch.tensor([-1.0, 0.0]))
    assert mean_loss(model, x, np.array([1]), loss="zero_one") == (1.0, 1)
    assert mean_loss(model, 2.0 - x, np.array([1]), loss="zero_one") == (0.0, 1)


def test_a_model_of_two_precisions_that_fails_is_refused_in_words():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"has both and fails; convert it: model\.float"):
        mean_loss(model, np.zeros((1, 2)), np.zeros(1, int), loss="brier")


class OwnPool(nn.Module):
    """Pools in its forward, as its arguments say, with gradients or without."""

    def __init__(self, *args, **named):
        super().__init__()
        self.args, self.named, self.weight = args, named, nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return functional.max_pool2d(x, *self.args, **self.named).flatten(1)


POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d((2, 2), stride=(2, 2), padding=(0, 0)),
    nn.MaxPool2d(2, stride=1),
    nn.MaxPool2d((2, 1)),
    nn.MaxPool2d(2, padding=1),
    nn.MaxPool2d(2, dilation=2),
    nn.MaxPool2d(3),
    OwnPool(2, 2, 0, 1, True, False),
    OwnPool(kernel_size=2),
]


@pytest.mark.parametrize("shape", [(2, 4, 6), (1, 5, 4), (3, 7, 7)], ids=str)
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_pools_without_gradients_give_the_bits_of_torch(pool, shape):
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 0], x[1, 0, :2, 1], x[2, :, :2, :2] = torch.nan, -torch.inf, 0.5
    with torch.no_grad():
        expected = pool(x)
        assert computed(pool, x).numpy().tobytes() == expected.numpy().tobytes()
        swapped = x.to(memory_format=torch.channels_last)
        assert torch.equal(computed(pool, swapped).nan_to_num(7.0), expected.nan_to_num(7.0))


def test_pools_without_gradients_fail_as_in_torch():
    for x in (torch.zeros(1, 1, 0, 4), torch.zeros(1, 2)):
        with torch.no_grad(), pytest.raises(RuntimeError):
            computed(nn.MaxPool2d(2), x)


def test_gradients_of_pools_are_those_of_torch():
    x, own = (torch.full((1, 1, 4, 4), 0.5, requires_grad=True) for _ in range(2))
    nn.MaxPool2d(2)(x).sum().backward()
    computed(nn.MaxPool2d(2), own).sum().backward()
    assert torch.equal(x.grad, own.grad)
