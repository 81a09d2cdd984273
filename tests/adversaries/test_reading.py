"""Models that are no chains: what is read of their forwards, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from riskband.adversaries import margin_constants
from riskband.adversaries.bounds.lipschitz import SequentialLayers
from riskband.adversaries.bounds.sandwich import is_understood
from riskband.checks import RefusedError
from tests.adversaries.nets import quotients, random_pairs, seeded
from tests.adversaries.test_balls import Beside, Residual
from tests.transport import curves_of


class Of(nn.Module):
    """A model with this forward, a linear layer in and one out."""

    def __init__(self, forward):
        super().__init__()
        self.into, self.out, self.given = nn.Linear(3, 4), nn.Linear(4, 2), forward
        self.bend, self.scale = nn.ReLU(inplace=True), nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        self.register_buffer("shift", torch.tensor([0.5, 0.0, -1.0, 2.0]))

    def forward(self, x):
        return self.out(self.given(self, self.into(x)))


def kinds_of(model, shape):
    return [type(layer).__name__ for layer, _ in SequentialLayers(model, shape).body]


class BasicBlock(nn.Module):
    """As in torchvision: sums and activations in place."""

    def __init__(self, num_in, num_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(num_out), nn.BatchNorm2d(num_out)
        self.conv2, self.relu = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False), nn.ReLU(inplace=True)
        shortcut = [nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)]
        self.downsample = nn.Sequential(*shortcut) if stride > 1 else None

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5]).reshape(1, 2, 1, 1))
        self.blocks = nn.Sequential(BasicBlock(2, 2, 1), BasicBlock(2, 4, 2))
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = self.blocks((x - self.mean) / 0.25)
        x = torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.fc(functional.dropout(x, training=self.training))


def test_a_residual_net_as_people_write_it():
    model = seeded(ResNet).eval()
    assert kinds_of(model, (2, 4, 4)) == [
        "Shift", "Scale", "Sum", "ReLU", "Sum", "ReLU", "AdaptiveAvgPool2d", "Reshaped"
    ]  # fmt: skip
    for norm in ("l1", "l2", "linf"):
        largest = quotients(model, *random_pairs((2, 4, 4), seed=0), norm=norm).max(axis=0)
        assert np.all(largest <= margin_constants(model, (2, 4, 4), norm=norm).numpy())
    x = np.random.default_rng(0).uniform(size=(5, 2, 4, 4)).astype(np.float32)
    curves = curves_of(model, x, np.zeros(5, int), loss="zero_one", order=1, space="input", adversary="auto")
    assert curves.guarantee == "upper"
    assert model.blocks[0].relu.inplace  # the model itself was left as it was


@pytest.mark.parametrize(
    ("forward", "kinds"),
    [
        (lambda self, x: x + x, ["Linear", "Sum"]),
        (lambda self, x: (x - self.shift) * self.scale, ["Linear", "Shift", "Scale"]),
        (lambda self, x: 1.0 - x, ["Linear", "Scale", "Shift"]),
        (lambda self, x: self.bend(x) - functional.gelu(2 * x) / 3, "refused"),  # x was overwritten
        (lambda self, x: functional.relu(x) - functional.gelu(2 * x) / 3, ["Linear", "Sum"]),
        (lambda self, x: torch.cat([x[:, :2], x[:, 2:].tanh()], dim=-1), ["Linear", "Concatenation"]),
        (lambda self, x: x.unsqueeze(1).mean(1), ["Linear", "Reshaped", "Mean"]),
        (lambda self, x: x.view(x.size(0), 2, 2).transpose(1, 2).flatten(1),
         ["Linear", "Reshaped", "Permuted", "Reshaped"]),
        (lambda self, x: x + (x + x.relu()), ["Linear", "Sum"]),
    ],
)  # fmt: skip
def test_what_is_read(forward, kinds):
    model = seeded(lambda: Of(forward))
    if kinds == "refused":
        with pytest.raises(RefusedError, match="must not be used again"):
            SequentialLayers(model, (3,))
    else:
        assert kinds_of(model, (3,)) == kinds


def test_constants_of_sums_in_closed_form():
    """x + x, x - x / 2 and [x, x] of a diagonal matrix: 2, 3/2 (a bound: 1/2 is the truth), and the root of 2."""
    diagonal = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        diagonal.weight.copy_(torch.diag(torch.tensor([1.0, -1.0])))

    def constant(module, head):
        model = nn.Sequential(module, head)
        return float(margin_constants(model, (2,), norm="l2")[0, 1])

    base = float(margin_constants(diagonal, (2,), norm="l2")[0, 1])
    np.testing.assert_allclose(constant(Residual(), diagonal), 2.0 * base, rtol=1e-5)
    np.testing.assert_allclose(constant(Residual(by=0.5), diagonal), 1.5 * base, rtol=1e-5)
    wide = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        wide.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]))
    assert constant(Beside(nn.Identity(), nn.Identity()), wide) <= base * 2.0**0.5


def random_noise(self, x):
    return x + torch.randn(4)


def swallowed(self, x):
    """A choice that a trace cannot see: it fails there, and is taken elsewhere."""
    try:
        return 10.0 * x if float(x.sum()) > 0.0 else x
    except TypeError:
        return x


def by_kind(self, x):
    return 10.0 * x if type(x) is torch.Tensor else x


def of_batches(self, x):
    return x / x.shape[0]


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x: x if x.sum() > 0 else -x, "one that torch.fx can trace"),
        (lambda self, x: x if x.shape[0] > 1 else -x, "one that torch.fx can trace"),
        (random_noise, "what torch.fx shows of its forward"),
        (swallowed, "what torch.fx shows|can trace"),
        (by_kind, "what torch.fx shows of its forward"),
        (of_batches, "what torch.fx shows of its forward"),
        (lambda self, x: x * x, "got 'mul' in the model's own forward"),
        (lambda self, x: x.softmax(1), "got 'softmax'"),
        (lambda self, x: x - x.mean(), "got 'sub'|must be left to the examples|one shape|got 'mean'"),
        (lambda self, x: x - x.mean(0, keepdim=True), "must have one shape"),
        (lambda self, x: x.flip(0), "got 'flip'"),
        (lambda self, x: x[[1, 0]] + x, "x_shape must fit"),
        (lambda self, x: x.t().t(), "got 't'"),
        (lambda self, x: functional.dropout(x), "got 'dropout'"),
        (lambda self, x: x + self.scale.sum().item() * x.amax(), "got"),
        (lambda self, x: x.relu_() + x, "must not be used again"),
        (lambda self, x: x + float("nan"), "must be finite"),
        (lambda self, x: x + x[:, :1], "must have one shape"),
    ],
)
def test_what_is_refused(forward, message):
    model = seeded(lambda: Of(forward))
    with pytest.raises(RefusedError, match=message):
        SequentialLayers(model, (3,))
    assert not is_understood(model, (3,))


class Outside(nn.Module):
    """Does something else when it is called than its forward says."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def __call__(self, x):
        return 10.0 * self.forward(x)

    def forward(self, x):
        return self.out(x)


class Steeper(nn.ReLU):
    def forward(self, x):
        return 10.0 * x


def hooked_inside():
    model = nn.Sequential(Residual(nn.Linear(3, 3)), nn.Linear(3, 2))
    model[0].inside.register_forward_hook(lambda module, given, found: 2.0 * found)
    return model


class Attends(nn.Module):
    def __init__(self, *, others=False, **settings):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(4, 2, **settings), nn.Linear(8, 2)
        self.others = others

    def forward(self, x):
        return self.out(self.attention(x, x, 2.0 * x if self.others else x)[0].flatten(1))


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (nn.Sequential(Residual(nn.Linear(2100, 2100)), nn.Linear(2100, 2)), (2100,), "at most 4194304 weights"),
        (Outside(), (3,), "called as torch calls them"),
        (nn.Sequential(Residual(Steeper()), nn.Linear(3, 2)), (3,), "got Steeper at '0.inside.0'"),
        (hooked_inside(), (3,), "'0.inside' with hooks"),
        (Attends(), (2, 4), "batch_first=True"),
        (Attends(batch_first=True, add_bias_kv=True), (2, 4), "no added keys"),
        (Attends(batch_first=True, others=True), (2, 4), "of one sequence to itself"),
        (nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), nn.Flatten(), nn.Linear(4, 2)), (4,),
         "got TransformerEncoderLayer|x_shape must fit|sequences"),
        (nn.Sequential(nn.InstanceNorm2d(2), nn.Flatten(), nn.Linear(8, 2)), (4, 2), "InstanceNorm2d must get images"),
        (nn.Sequential(nn.LayerNorm(3, eps=0.0), nn.Linear(3, 2)), (3,), "eps > 0"),
        (nn.Sequential(nn.RMSNorm(3), nn.Linear(3, 2)), (3,), "eps > 0"),
        (nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten()), (2, 2, 2), "running statistics"),
        (nn.Sequential(nn.LayerNorm(6), nn.Flatten(), nn.Linear(6, 2)), (2, 3), "x_shape must fit"),
        (nn.Sequential(nn.Upsample(scale_factor=2, mode="bicubic"), nn.Flatten()), (1, 2, 2), "nearest or bilinear"),
        (nn.Sequential(nn.CELU(-1.0), nn.Linear(3, 2)), (3,), "alpha > 0"),
    ],
)  # fmt: skip
def test_which_models_are_refused(model, shape, message):
    with pytest.raises(RefusedError, match=message):
        SequentialLayers(model, shape)
    assert not is_understood(model, shape)


def test_attention_has_no_constant():
    model = seeded(lambda: Attends(batch_first=True))
    assert is_understood(model, (2, 4))
    with pytest.raises(RefusedError, match="no Lipschitz constant on the whole space"):
        margin_constants(model, (2, 4), norm="l2")


def test_a_model_that_changes_is_read_anew():
    model = seeded(lambda: nn.Sequential(Residual(nn.Linear(3, 3)), nn.Linear(3, 2)))
    before = margin_constants(model, (3,), norm="l2")
    with torch.no_grad():
        model[0].inside[0].weight.mul_(10.0)
    assert bool((margin_constants(model, (3,), norm="l2")[0, 1] > 2.0 * before[0, 1]).all())


def test_branches_that_part_again_and_again_are_refused():
    """Each way through them is written out: 2**12 of the first layer."""

    def tangled(self, x):
        one, two = x, 2.0 * x
        for _ in range(14):
            one, two = one + two, one.tanh() + two
        return one + two

    with pytest.raises(RefusedError, match="at most 2000 layers"):
        SequentialLayers(seeded(lambda: Of(tangled)), (3,))
