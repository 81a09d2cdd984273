"""Models that are no chains: what is read of their forwards, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from riskband.adversaries import margin_constants
from riskband.adversaries.bounds.crown import local_network
from riskband.adversaries.bounds.lipschitz import SequentialLayers
from riskband.adversaries.bounds.sandwich import is_understood
from riskband.checks import RefusedError
from tests.adversaries.nets import quotients, random_pairs, seeded
from tests.adversaries.test_balls import Residual
from tests.transport import curves_of


class Of(nn.Module):
    """A model with this forward, a linear layer in and one out."""

    def __init__(self, forward):
        super().__init__()
        self.into, self.out, self.given = nn.Linear(3, 4), nn.Linear(4, 2), forward
        self.bend, self.scale = nn.ReLU(inplace=True), nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        self.more = nn.Linear(4, 12)
        self.register_buffer("shift", torch.tensor([0.5, 0.0, -1.0, 2.0]))

    def forward(self, x):
        return self.out(self.given(self, self.into(x)))


def kinds_of(model, shape):
    return [type(layer).__name__ for layer, _ in SequentialLayers(model, shape).body]


def swapped(x):
    height, width = x.shape[1:3]
    return x.view(-1, width * height)


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
        (lambda self, x: x.unsqueeze(1).mean(1), ["Linear", "Reshaped", "Mean"]),
        (lambda self, x: x.view(x.size(0), 2, 2).transpose(1, 2).flatten(1),
         ["Linear", "Reshaped", "Permuted", "Reshaped"]),
        (lambda self, x: x + (x + x.relu()), ["Linear", "Sum"]),
        (lambda self, x: x.view(x.shape[0], -1).reshape(x.shape), ["Linear", "Reshaped", "Reshaped"]),
        (lambda self, x: x + self.shift[None].expand(1, -1), ["Linear", "Shift"]),
        (lambda self, x: swapped(x.view(x.shape[0], 2, 2)), ["Linear", "Reshaped", "Reshaped"]),
        (lambda self, x: x.unsqueeze(1).flatten(1, 2), ["Linear", "Reshaped", "Reshaped"]),
        (lambda self, x: functional.softmax(x, dim=-1) + x.log_softmax(1), ["Linear", "Sum"]),
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
    """x + x and x - x / 2 of a diagonal matrix: 2 and 3/2 (a bound: 1/2 is the truth)."""
    diagonal = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        diagonal.weight.copy_(torch.diag(torch.tensor([1.0, -1.0])))

    def constant(module, head):
        model = nn.Sequential(module, head)
        return float(margin_constants(model, (2,), norm="l2")[0, 1])

    base = float(margin_constants(diagonal, (2,), norm="l2")[0, 1])
    np.testing.assert_allclose(constant(Residual(), diagonal), 2.0 * base, rtol=1e-5)
    np.testing.assert_allclose(constant(Residual(by=0.5), diagonal), 1.5 * base, rtol=1e-5)


class Twice(nn.Module):
    """x + B(B(x)) of one layer B."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x + self.layer(torch.tanh(self.layer(x)) if isinstance(self.layer, nn.ReLU) else self.layer(x))


def test_a_layer_that_a_branch_uses_twice_counts_twice():
    """Of x + 2 (2 x) slopes are 5; of x + relu(tanh(relu(x))) the features behind both are what they are."""
    double = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        double.weight.copy_(2.0 * torch.eye(2))
    model = nn.Sequential(Twice(double), nn.Linear(2, 2).double())
    (slopes,) = 5.0 * model[1].weight.detach().diff(dim=0)
    for norm, dual in (("l1", torch.inf), ("l2", 2), ("linf", 1)):
        assert float(margin_constants(model, (2,), norm=norm)[0, 1]) >= float(slopes.norm(dual))
    bent = nn.Sequential(nn.Linear(2, 2), Twice(nn.ReLU()), nn.Linear(2, 2))
    (_, (branched, _)) = SequentialLayers(bent, (2,)).body
    assert [type(layer).__name__ for layer in branched.chains[1]] == ["ReLU", "Tanh", "ReLU"]


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


def stated(x, _):
    """Return x; the other was a statement, whose result is not used."""
    return x


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x: x if x.sum() > 0 else -x, "one that torch.fx can trace"),
        (lambda self, x: x if x.shape[0] > 1 else -x, "one that torch.fx can trace"),
        (random_noise, "what torch.fx shows of its forward"),
        (swallowed, "got 'sum' .* whose result is not used"),
        (by_kind, "what torch.fx shows of its forward"),
        (of_batches, "got 'truediv'"),
        (lambda self, x: x * x, "got 'mul' in the model's own forward"),
        (lambda self, x: x.softmax(0), "within one example, got dim=0"),
        (lambda self, x: torch.stack(x.t().unbind(1)), "got 'unbind'"),
        (lambda self, x: x.t().relu().t(), "got 'relu'|got 't'"),
        (lambda self, x: x.transpose(0, 1).relu().transpose(0, 1), "left to the examples"),
        (lambda self, x: x.unbind(0)[0].expand(x.shape[0], -1), "got 'unbind'"),
        (lambda self, x: functional.linear(x, torch.diag(x[0])), "got"),
        (lambda self, x: functional.linear(x, self.scale.expand(x.shape[0], -1)).repeat(1, 4)[:, :4], "got"),
        (lambda self, x: functional.scaled_dot_product_attention(x, x, x), "got 'scaled_dot_product_attention'"),
        (lambda self, x: (x[:, :, None] @ x[:, None]).mean(1), "got 'getitem'|got 'matmul'"),
        (lambda self, x: x + x[:, :4], "got 'getitem'"),
        (lambda self, x: x + x.chunk(1, 1)[0], "got 'chunk'"),
        (lambda self, x: torch.cat([x, x.tanh()], 1).view(-1, 2, 4).mean(1), "got 'cat'"),
        (lambda self, x: functional.linear(x, torch.diag(self.scale), self.shift), "got 'linear'"),
        (lambda self, x: x + self.shift[None].expand(x.size(0), -1), "got 'expand'"),
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
        (lambda self, x: stated(x, x.masked_fill_(x > 50.0, -50.0)), "got 'masked_fill_' .* result is not used"),
        (lambda self, x: stated(x, x[:, 0].masked_fill_(x[:, 0] > 50.0, -50.0)), "got 'masked_fill_'"),
        (lambda self, x: stated(x, functional.threshold_(x, -30.0, -100.0)), "got 'threshold_'"),
        (lambda self, x: stated(x, functional.hardtanh_(x)), "got 'hardtanh_'"),
        (lambda self, x: stated(x, x.copy_(2.0 * x)), "got 'copy_'"),
        (lambda self, x: stated(x, self.bend(x)), "got 'bend'"),
        (lambda self, x: stated(x, self.shift.add_(x.mean(0))) + self.shift, "got 'add_'"),
        (lambda self, x: x * (x.shape[0] // 3), "got 'floordiv'"),
        (lambda self, x: x * x.shape[0], "got 'mul'"),
        (lambda self, x: x * x.size(-1), "got 'mul'"),
        (lambda self, x: x + self.shift[x.shape[0]], "got 'getitem'"),
        (lambda self, x: x + self.shift[:1].repeat(1, x.shape[0]).sum(), "got 'repeat'"),
        (lambda self, x: x + self.shift.expand(x.shape[0], -1).sum(0), "got 'expand'"),
        (lambda self, x: x.view(-1, x.shape[0], 4).sum(1), "got 'view'|got 'sum'"),
        (lambda self, x: x.view(x.shape[:2][::-1]).view(x.shape), "got 'getitem'"),
        (lambda self, x: x.unsqueeze(1).mean(axis=1), "got 'mean'"),
        (lambda self, x: x.view(3, 4), "failed with RuntimeError"),
        (lambda self, x: torch.flatten(input=x, start_dim=1), "failed with IndexError"),
        (lambda self, x: functional.gelu(input=x), "failed with IndexError"),
        (lambda self, x: x * 10**400, "failed with OverflowError"),
        (lambda self, x: x @ self.scale[:3], "x_shape must fit the model.*with RuntimeError"),
        (lambda self, x: x + (1e308 * x * 1e10 - 1e308 * x * 1e10), "NaN or infinite"),
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


class InHalf(nn.Module):
    """Computes its linear layer in half precision, which neither a trace nor float64 shows."""

    def __init__(self):
        super().__init__()
        self.bend, self.out = nn.ReLU(), nn.Linear(3, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.out(self.bend(x))


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales, self.out = nn.ParameterList([nn.Parameter(torch.ones(3))]), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(x * self.scales[0])


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.dim, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.dim(x, x, x)[0].flatten(1))


def test_parameters_of_a_list_are_read():
    assert kinds_of(seeded(Listed), (3,)) == ["Scale"]


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (nn.Sequential(Residual(nn.Linear(2100, 2100)), nn.Linear(2100, 2)), (2100,), "at most 4194304 weights"),
        (Outside(), (3,), "called as torch calls them"),
        (nn.Sequential(Residual(Steeper()), nn.Linear(3, 2)), (3,), "got Steeper at '0.inside.0'"),
        (hooked_inside(), (3,), "'0.inside' with hooks"),
        (Attends(), (2, 4), "every step of a forward must be known here .* got 'dim' .* use an attack"),
        (nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), nn.Flatten(), nn.Linear(8, 2)), (2, 4),
         "every layer must be one of .* got TransformerEncoderLayer at '0'; .* use an attack"),
        (nn.Sequential(nn.ConvTranspose1d(1, 1, 2), nn.Flatten()), (1, 2), "got ConvTranspose1d at '0'"),
        (nn.Sequential(nn.Upsample(scale_factor=2), nn.Flatten()), (1, 2, 2), "got Upsample at '0'"),
        (InHalf(), (3,), "without autocast"),
        (nn.Sequential(nn.InstanceNorm2d(2), nn.Flatten(), nn.Linear(8, 2)), (4, 2), "InstanceNorm2d must get images"),
        (nn.Sequential(nn.LayerNorm(3, eps=0.0), nn.Linear(3, 2)), (3,), "eps > 0"),
        (nn.Sequential(nn.RMSNorm(3), nn.Linear(3, 2)), (3,), "eps > 0"),
        (nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten()), (2, 2, 2), "running statistics"),
        (nn.Sequential(nn.LayerNorm(6), nn.Flatten(), nn.Linear(6, 2)), (2, 3), "x_shape must fit"),
        (nn.Sequential(nn.CELU(-1.0), nn.Linear(3, 2)), (3,), "alpha > 0"),
    ],
)  # fmt: skip
def test_which_models_are_refused(model, shape, message):
    with pytest.raises(RefusedError, match=message):
        SequentialLayers(model, shape)
    assert not is_understood(model, shape)


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


class Hidden(nn.Module):
    """Multiplies by ten where a trace does not see it, and has one logit that is huge."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 3)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -1e12]))

    def forward(self, x):
        return self.out(10.0 * x if type(x) is torch.Tensor else x) + self.mask


def test_one_large_logit_or_example_hides_no_other():
    with pytest.raises(RefusedError, match="has other logits"):
        SequentialLayers(seeded(Hidden), (2,))
    model = seeded(lambda: nn.Sequential(Residual(nn.Linear(2, 2)), nn.Linear(2, 2)))
    layers = SequentialLayers(model, (2,))
    x = torch.tensor([[0.1, 0.2], [1e9, 1e9]], dtype=torch.float64)
    logits = model.double()(x).detach()
    layers.check_same(x, logits)
    for wrong in (logits + torch.tensor([[1e-3], [0.0]]), logits + torch.tensor([[float("nan")], [0.0]])):
        with pytest.raises(RefusedError, match="has other logits"):
            layers.check_same(x, wrong)


@pytest.mark.parametrize("is_outside", [False, True])
@pytest.mark.parametrize(
    "norm", [lambda: nn.GroupNorm(1, 2), lambda: nn.LayerNorm((4, 4)), lambda: nn.InstanceNorm2d(2)]
)
def test_residuals_within_residuals_with_a_normalisation_are_bounded(norm, is_outside):
    """There are no linear bounds of branches; balls say what they can."""

    def convolution():
        return nn.Conv2d(2, 2, 3, padding=1)

    inner = Residual(norm(), convolution())
    outer = [norm(), convolution(), nn.ReLU(), inner] if is_outside else [convolution(), nn.ReLU(), inner]
    model = seeded(lambda: nn.Sequential(convolution(), Residual(*outer), nn.Flatten(), nn.Linear(32, 3)))
    x = np.random.default_rng(0).normal(size=(4, 2, 4, 4)).astype(np.float32)
    with torch.no_grad():
        y = model(torch.from_numpy(x)).argmax(dim=1).numpy()
    asked = {"loss": "zero_one", "order": 1, "space": "input"}
    curves = curves_of(model, x, y, adversary="lipschitz", **asked)
    attained = curves_of(model, x, y, adversary="pgd", **asked)
    assert curves.guarantee == "upper"
    assert curves.values([1e-5])[1][0] < 0.5
    assert np.all(curves.values([0.0, 0.01, 0.1, 1.0])[1] >= attained.values([0.0, 0.01, 0.1, 1.0])[0])
    with pytest.raises(RefusedError, match=r"local bounds are known for .* got Sum"):
        local_network(SequentialLayers(model, (2, 4, 4)))


class InPlace(nn.Module):
    """Overwrites its own input."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        x -= 0.5
        return self.out(torch.relu_(self.into(x)))


class Copied(InPlace):
    def forward(self, x):
        return self.out(torch.relu(self.into(x - 0.5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_works_in_place_is_what_its_copy_is(dtype):
    """In float64 it was refused for other logits: what it was compared at had been overwritten."""
    one, other = seeded(InPlace).to(dtype), seeded(Copied).to(dtype)
    x = np.random.default_rng(0).normal(size=(5, 3))
    asked = {"loss": "zero_one", "order": 1, "space": "input", "adversary": "auto"}
    found = [curves_of(model, x, np.zeros(5, int), **asked) for model in (one, other)]
    assert [curves.guarantee for curves in found] == ["upper", "upper"]
    np.testing.assert_array_equal(*(curves.values([0.0, 0.1, 0.5]) for curves in found))
