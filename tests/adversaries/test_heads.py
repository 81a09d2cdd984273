"""Finding the linear head of other people's models, without touching them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from protocol.models import build_model
from riskband.adversaries.representation.exact import LinearHead
from tests.transport import curves_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 4)).astype(np.float32)
Y = RNG.integers(3, size=20)


def answer(model, **settings):
    return curves_of(model, X, Y, loss="zero_one", order=1, **settings).values(np.linspace(0, 1, 5))[0]


class Composed(nn.Module):
    """Layers in an order that is not that of the forward pass, and one that is never called."""

    def __init__(self):
        super().__init__()
        self.classify = nn.Linear(5, 3)
        self.unused = nn.Linear(5, 3)
        self.embed = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
        self.auxiliary = nn.Linear(5, 3)

    def forward(self, x):
        z = self.embed(x)
        self.auxiliary(z)
        logits = self.classify(z)
        self.auxiliary(z)
        return logits


def test_the_layer_that_returned_the_logits_is_the_head():
    torch.manual_seed(0)
    model = Composed()
    np.testing.assert_array_equal(answer(model), answer(model, head="classify"))
    with LinearHead(model) as head:
        head.check(model(torch.as_tensor(X)).double())
        torch.testing.assert_close(head.weight, model.classify.weight.detach().double())


def test_another_layer_is_not_the_head():
    with pytest.raises(ValueError, match=r"must be the output of one nn\.Linear"):
        answer(Composed(), head="auxiliary")


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_our_own_models_have_one(name):
    model = build_model(name, x_shape=(1, 8, 8), num_classes=10, seed=0)
    x, y = RNG.random((6, 1, 8, 8)), RNG.integers(10, size=6)
    assert curves_of(model, x, y, loss="zero_one", order=2).num_examples == 6


def test_the_model_is_left_as_it_was():
    model = Composed().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    answer(model)
    with pytest.raises(ValueError, match="must be the output"):
        answer(nn.Sequential(model, nn.Softmax(dim=1)))
    assert model.training
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


class Adapted(nn.Linear):
    """Returns more than its weight says, as a layer with a low-rank adapter does."""

    def forward(self, x):
        return super().forward(x) + 0.1 * x[:, :3]


class TwiceCalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x).relu())


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)),
        nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.ReLU()),
        Adapted(4, 3),
        nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 3, 1), nn.Flatten()),
    ],
)
def test_logits_that_no_linear_layer_returned_are_refused(model):
    with pytest.raises(ValueError, match=r"nn\.Linear"):
        answer(model)


class Halved(nn.Linear):
    """Returns less than its weight says."""

    def forward(self, x):
        return 0.5 * super().forward(x)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_a_head_is_told_by_digits_not_by_the_size_of_its_logits(size):
    torch.manual_seed(3)
    for head in (nn.Linear(4, 3), Halved(4, 3)):
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.mul_(size)
        if isinstance(head, Halved):
            with pytest.raises(ValueError, match=r"nn\.Linear"):
                answer(head)
        else:
            assert answer(head).shape == (5,)


def test_a_layer_that_is_called_twice_counts_as_called_last():
    torch.manual_seed(1)
    model = TwiceCalled()
    z = model.layer(torch.as_tensor(X)).relu()
    expected = curves_of(model.layer, z.detach().numpy(), Y, loss="zero_one", order=1)
    np.testing.assert_allclose(answer(model), expected.values(np.linspace(0, 1, 5))[0], atol=1e-6)


def test_a_head_that_is_no_linear_layer_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"got 'embed'; its linear layers are classify, unused, embed\.0, auxiliary"):
        answer(Composed(), head="embed")


class Bent(nn.Linear):
    """Returns what its weight says and a little more, which large terms common to all logits would hide."""

    def forward(self, z):
        return super().forward(z) + 0.5 * torch.tanh(z[:, 2:3]) * torch.tensor([1.0, -1.0])


@pytest.mark.parametrize("kind", [nn.Linear, Bent])
def test_terms_that_cancel_hide_nothing(kind):
    head = kind(3, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1e4, -1e4, 0.01], [1e4, -1e4, -0.01]]))
        head.bias.zero_()
    z = np.column_stack([np.ones((20, 2)), np.linspace(-3, 3, 20)]).astype(np.float32)
    settings = {"loss": "zero_one", "order": 1}
    if kind is Bent:
        with pytest.raises(ValueError, match=r"nn\.Linear"):
            curves_of(head, z, np.zeros(20, dtype=int), **settings)
    else:
        assert curves_of(head, z, np.zeros(20, dtype=int), **settings).guarantee == "exact"


def test_a_temperature_behind_the_head_is_seen():
    class Tempered(nn.Linear):
        def forward(self, z):
            return 1.0001 * super().forward(z)

    with pytest.raises(ValueError, match=r"nn\.Linear"):
        answer(Tempered(4, 3))
