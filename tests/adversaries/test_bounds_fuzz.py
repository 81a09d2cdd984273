"""Bounds of random networks out of every known kind of layer, against what is found in float64: none may be exceeded.

Everything is seeded, and no check has a false-alarm rate: a single excess is a wrong bound.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from riskband.adversaries import Batch, LipschitzAdversary, margin_constants
from riskband.adversaries.bounds.layer_norms import RULES
from riskband.adversaries.bounds.lipschitz import SequentialLayers
from riskband.adversaries.norms import lengths, steepest
from riskband.models.group_sort import GroupSort
from riskband.models.losses import get_loss
from tests.adversaries.nets import EXPONENTS, seeded
from tests.transport import input_problem

NORMS = list(EXPONENTS)
COSTS = [(1, "l1"), (1, "l2"), (1, "linf"), (2, "l2")]
LOSSES = ["zero_one", "margin", "cross_entropy", "brier"]
DUALS = {"l1": np.inf, "l2": 2.0, "linf": 1.0}
ROUNDING = 1e-9
NUM_PAIRS = 200
SHARES = (0.3, 0.8, 1.0 - 1e-6)
BENT = (nn.ReLU, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid)
ACTIVATIONS = (*BENT, nn.ELU, nn.GELU, nn.SiLU)
REARRANGING = (GroupSort, nn.PixelShuffle, nn.PixelUnshuffle, nn.Flatten, nn.Unflatten)
POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d)
MADE = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, *POOLS, *REARRANGING, *ACTIVATIONS)
"""Kinds of layers in the networks here; others of `RULES` have tests of their own."""


def random_activation(rng, kinds=ACTIVATIONS):
    kind = kinds[rng.integers(len(kinds))]
    if kind is nn.LeakyReLU:
        return kind(float(rng.choice([0.01, 0.3, 1.7, -0.5])))
    if kind is nn.ELU:
        return kind(float(rng.choice([0.5, 1.0, 2.5])))
    return kind()


def random_norm(rng, kind, num_channels):
    layer = kind(num_channels, affine=bool(rng.integers(2)))
    with torch.no_grad():
        layer.running_var.copy_(torch.tensor(10.0 ** rng.uniform(-1.5, 1.0, num_channels)))
        layer.running_mean.copy_(torch.tensor(rng.normal(size=num_channels)))
        if layer.affine:
            layer.weight.copy_(torch.tensor(rng.normal(size=num_channels)))
    return layer


def random_image_layer(rng, shape, kinds):
    channels, size = shape[0], min(shape[1:])
    kind, kernel = rng.integers(10), int(rng.integers(1, min(size, 3) + 1))
    if kind <= 1:
        groups = int(rng.choice([g for g in (1, 2) if channels % g == 0]))
        padding = ["same", "valid", 0, 1][rng.integers(4)]
        step = 1 if isinstance(padding, str) else int(rng.integers(1, 3))
        dilation = 2 if 2 * (kernel - 1) < size and rng.integers(3) == 0 else 1
        width = 2 * int(rng.integers(1, 3))
        return nn.Conv2d(channels, width, kernel, step, padding, dilation, groups, bias=bool(rng.integers(2)))
    if kind == 2:
        return random_norm(rng, nn.BatchNorm2d, channels)
    if kind == 3:
        padding, is_ceiled = int(rng.integers(kernel // 2 + 1)), bool(rng.integers(2))
        return nn.MaxPool2d(kernel, int(rng.integers(1, 3)), padding, ceil_mode=is_ceiled)
    if kind in (4, 5):
        divisor = int(rng.integers(1, 4)) if rng.integers(3) == 0 else None
        settings = {"count_include_pad": bool(rng.integers(2)), "divisor_override": divisor}
        padding, is_ceiled = int(rng.integers(kernel // 2 + 1)), bool(rng.integers(2))
        return nn.AvgPool2d(kernel, int(rng.integers(1, 3)), padding, ceil_mode=is_ceiled, **settings)
    if kind == 6:
        return nn.AdaptiveAvgPool2d((int(rng.integers(1, size + 1)), int(rng.integers(1, size + 1))))
    if kind in (7, 8):
        return random_rearrangement(rng, shape)
    return nn.Dropout2d() if rng.integers(4) == 0 else random_activation(rng, kinds)


def random_rearrangement(rng, shape):
    """A layer that sorts or moves what it gets, of those that fit."""
    channels, height, width = shape
    if channels % 4 == 0 and rng.integers(2):
        return nn.PixelShuffle(2)
    if height % 2 == width % 2 == 0 and rng.integers(2):
        return nn.PixelUnshuffle(2)
    return GroupSort(int(rng.choice([size for size in range(1, channels + 1) if channels % size == 0])))


def random_vector_layer(rng, size, kinds):
    kind = rng.integers(4)
    if kind == 0:
        return nn.Linear(size, int(rng.integers(2, 7)), bias=bool(rng.integers(2)))
    if kind == 1:
        return random_norm(rng, nn.BatchNorm1d, size)
    if rng.integers(4) == 0:
        return GroupSort(int(rng.choice([group for group in range(1, size + 1) if size % group == 0])))
    return nn.Dropout() if rng.integers(8) == 0 else random_activation(rng, kinds)


def shape_behind(layer, shape):
    with torch.no_grad():
        return tuple(layer.eval()(torch.zeros(1, *shape)).shape[1:])


def random_net(seed):
    """A chain of known layers in float64 and the shape of one input."""
    rng = np.random.default_rng(seed)
    is_image, kinds = bool(rng.integers(2)), (BENT, ACTIVATIONS)[rng.integers(2)]
    x_shape = (int(rng.integers(1, 3)), *rng.integers(3, 7, 2).tolist()) if is_image else (int(rng.integers(1, 7)),)

    def build():
        shape, layers = x_shape, []
        for _ in range(int(rng.integers(1, 5)) if is_image else 0):
            layers.append(random_image_layer(rng, shape, kinds))
            shape = shape_behind(layers[-1], shape)
        layers += [nn.Flatten()] if is_image else [nn.Identity()]
        size = int(np.prod(shape))
        if rng.integers(6) == 0:  # there and back: nothing moves
            layers += [nn.Unflatten(1, (1, 1, size)), nn.Flatten()]
        for _ in range(int(rng.integers(0, 4))):
            layers.append(random_vector_layer(rng, size, kinds))
            (size,) = shape_behind(layers[-1], (size,))
        layers.append(nn.Linear(size, int(rng.integers(2, 5))))
        if rng.integers(5) == 0:  # the same layer twice, and no linear one at the end
            layers += [
                random_activation(rng, kinds),
                shared := nn.Linear(layers[-1].out_features, layers[-1].out_features),
            ]
            layers += [nn.Tanh(), shared, nn.Tanh()]
        cut = int(rng.integers(len(layers)))
        return nn.Sequential(nn.Sequential(*layers[:cut]), *layers[cut:]).double().eval()

    return seeded(build, seed), x_shape


def evaluated(function, x):
    with torch.no_grad():
        return function(x)


def excesses_of_layer(layer, shape, rng):
    """By how much, relatively, a layer moves pairs that ascent found further apart than its rule says."""
    rule, flat = RULES[type(layer)], int(np.prod(shape))
    x = torch.tensor(rng.normal(size=(NUM_PAIRS, *shape)) * 10.0 ** rng.uniform(-1, 1, (NUM_PAIRS, *[1] * len(shape))))
    step = torch.tensor(rng.normal(size=x.shape) * 10.0 ** rng.uniform(-4, 0.5, (NUM_PAIRS, *[1] * len(shape))))
    found = []
    bound = rule.spectral(layer, shape)
    for _ in range(12):  # power iteration on the difference: from below, so it can only miss an excess
        step = step.detach().requires_grad_()
        length = lengths(step.flatten(1), "l2")
        change = lengths((layer(x + step) - layer(x)).flatten(1), "l2")
        ratio = float((change / length).detach().max())
        found.append(ratio / bound - 1.0 if bound > 0.0 else ratio)
        (gradient,) = torch.autograd.grad(change.sum(), step)
        size = lengths(gradient.flatten(1), "l2")
        scale = torch.where(size > 0.0, length / size, 0.0).detach().reshape(-1, *[1] * len(shape))
        step = torch.where(scale > 0.0, gradient * scale, step.detach())
    moved = (evaluated(layer, x + step.detach()) - evaluated(layer, x)).abs()
    allowed = rule.spread(layer, step.detach().abs())
    found.append(float((moved - allowed * (1.0 + ROUNDING)).max() - 1e-12))
    if rule.is_linear and flat <= 80:  # the whole operator, by torch itself
        units, zero = torch.eye(flat).double().reshape(-1, *shape), torch.zeros(1, *shape).double()
        columns = evaluated(layer, units) - evaluated(layer, zero)
        norm = float(torch.linalg.matrix_norm(columns.flatten(1), ord=2))
        found.append(norm / bound - 1.0 if bound > 0.0 else norm)
    return [value for value in found if value > 1e-7]


def attack(function, x, radii, norm, *, num_steps=12):
    """Return points within the radii where ascent of a function (num_rows,) got furthest."""
    flat, best = torch.zeros_like(x).flatten(1), x.clone()
    highest = evaluated(function, x)
    for number in range(num_steps):
        points = (x + flat.reshape(x.shape)).requires_grad_()
        values = function(points)
        (gradient,) = torch.autograd.grad(values.sum(), points)
        is_better = values.detach() > highest
        highest = torch.where(is_better, values.detach(), highest)
        best = torch.where(is_better.reshape(-1, *[1] * (x.dim() - 1)), points.detach(), best)
        share = 1.0 if number < 2 else 2.0 / (number + 2.0)
        flat = (1.0 - share) * flat + share * radii[:, None] * steepest(gradient.flatten(1), norm)
    return best


def margin_towards(model, labels, rivals):
    return lambda x: (model(x).gather(1, rivals[:, None]) - model(x).gather(1, labels[:, None])).squeeze(1)


def attacked_points(model, batch, radii, norm):
    """Points within the radii, one for each example and rival: ascent of each margin, in float64."""
    num_classes = batch.logits.shape[1]
    for shift in range(1, num_classes):
        yield attack(margin_towards(model, batch.labels, (batch.labels + shift) % num_classes), batch.x, radii, norm)


def batch_of(model, x, loss, rng):
    logits = evaluated(model, x)
    labels = logits.argmax(dim=1)
    if loss != "zero_one":  # some that are wrong to begin with
        labels[::4] = torch.tensor(rng.integers(logits.shape[1], size=len(labels[::4])))
    return Batch(x=x, labels=labels, logits=logits, losses=get_loss(loss).per_example(logits, labels))


def excesses_of_constants(model, shape, rng, *, constants=margin_constants):
    """By how much gradients of margins exceed the constants."""
    found, x = [], torch.tensor(rng.normal(size=(40, *shape)) * 10.0 ** rng.uniform(-1, 1, (40, *[1] * len(shape))))
    x = x.requires_grad_()
    logits = model(x)
    for j in range(logits.shape[1] - 1):
        (slopes,) = torch.autograd.grad((logits[:, j] - logits[:, j + 1]).sum(), x, retain_graph=True)
        for norm in NORMS:
            largest = float(torch.linalg.vector_norm(slopes.flatten(1), ord=DUALS[norm], dim=1).max())
            bound = float(constants(model, shape, norm=norm)[j, j + 1])
            found.append(largest - bound * (1.0 + ROUNDING))
    return [value for value in found if value > 0.0]


def flips_inside(model, x, rng, *, order, norm, method="auto"):
    """Count the certified distances, and the examples that flip within theirs."""
    batch = batch_of(model, x, "zero_one", rng)
    adversary = LipschitzAdversary(model, input_problem("zero_one", order, norm), method=method)
    radii = adversary.examine(batch).bounding.costs[:, 0].pow(1.0 / order)
    is_asked = (radii > 0.0) & torch.isfinite(radii)
    radii = torch.where(is_asked, radii, 0.0)
    is_flipped = torch.zeros(len(x), dtype=torch.bool)
    for share in SHARES:
        for points in attacked_points(model, batch, share * radii, norm):
            inside = lengths((points - x).flatten(1), norm) <= radii
            is_flipped |= inside & (evaluated(model, points).argmax(dim=1) != batch.labels)
    return int(is_asked.sum()), int((is_flipped & is_asked).sum())


def excesses_of_curve(model, x, rng, *, loss, order, norm):
    """By how much transports of some of the examples, to where ascent led, exceed the upper curve."""
    batch = batch_of(model, x, loss, rng)
    curves = LipschitzAdversary(model, input_problem(loss, order, norm)).curves([batch])
    scale = float(rng.choice([0.01, 0.1, 1.0]))
    budgets, reached = [], []
    for points in attacked_points(model, batch, torch.full((len(x),), scale, dtype=torch.float64), norm):
        costs = lengths((points - x).flatten(1), norm).pow(order).numpy()
        gains = (get_loss(loss).per_example(evaluated(model, points), batch.labels) - batch.losses).numpy()
        best = np.argsort(-gains / np.maximum(costs, 1e-300))
        budgets += (costs[best].cumsum() / len(x)).tolist()
        reached += (float(batch.losses.mean()) + gains[best].cumsum() / len(x)).tolist()
    return [value for value in np.array(reached) - curves.values(budgets)[1] if value > ROUNDING]


def looked_at(seed):
    """Look at everything about one network: a count of what was looked at, and of what was wrong."""
    model, shape = random_net(seed)
    rng, count = np.random.default_rng(seed + 10**6), Counter(nets=1)
    layers = SequentialLayers(model, shape)
    for layer, layer_shape in layers.body:
        count[type(layer).__name__] += 1
        count.update(layers=1, wrong_layers=bool(excesses_of_layer(layer, layer_shape, rng)))
    count["wrong_constants"] += len(excesses_of_constants(model, shape, rng))
    x = torch.tensor(rng.normal(size=(8, *shape)))
    for order, norm in COSTS:
        certified, flipped = flips_inside(model, x, rng, order=order, norm=norm)
        count.update(distances=certified, wrong_distances=flipped)
        loss = LOSSES[rng.integers(len(LOSSES))]
        count["wrong_curves"] += len(excesses_of_curve(model, x, rng, loss=loss, order=order, norm=norm))
    return count


def wrong(count):
    return {key: value for key, value in count.items() if key.startswith("wrong") and value}


def test_a_few_networks():
    count = sum((looked_at(seed) for seed in (15, 24)), Counter())
    assert not wrong(count)
    assert count["distances"] >= 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_many_networks():
    """Half a minute of one core."""
    count = sum((looked_at(seed) for seed in range(1000, 1075)), Counter())
    assert not wrong(count)
    assert (count["nets"], count["layers"] > 300, count["distances"] > 2000) == (75, True, True)
    assert not [kind for kind in MADE if not count[kind.__name__]]


AXES = {1: (2, 5), 2: (2, 5, 4), 3: (2, 3, 4, 3)}
ONE_BY_ONE = (nn.Softmax(1), nn.Softmin(-1), nn.LogSoftmax(1), nn.RReLU(0.5, 2.5))


def random_layer_of_axes(rng, axes):
    """A layer that torch has for one, two and three axes."""
    kernel, stride, pad = (int(value) for value in rng.integers([1, 1, 0], [4, 3, 2]))
    named = lambda name: getattr(nn, f"{name}{axes}d")  # noqa: E731
    convolution = {"stride": stride, "padding": pad, "groups": int(rng.integers(1, 3))}
    sizes = [int(value) for value in rng.integers(1, 7, axes)]
    return [
        lambda: named("Conv")(2, 4, kernel, **convolution),
        lambda: named("MaxPool")(kernel, stride, kernel // 2, ceil_mode=bool(rng.integers(2))),
        lambda: named("AvgPool")(kernel, stride, kernel // 2, ceil_mode=bool(rng.integers(2))),
        lambda: named("AdaptiveAvgPool")(sizes),
        lambda: named("AdaptiveMaxPool")(sizes),
        lambda: named(str(rng.choice(["ReflectionPad", "ReplicationPad", "CircularPad", "ZeroPad"])))(kernel - 1),
        lambda: random_norm(rng, named("BatchNorm"), 2) if axes > 1 else nn.ReflectionPad1d(2),
        lambda: ONE_BY_ONE[rng.integers(4)],
    ][rng.integers(8)]()


def random_net_of_axes(seed):
    """A chain of such layers, in float64, and the shape of one input."""
    rng = np.random.default_rng(seed)
    axes = int(rng.integers(1, 4))

    def build():
        first = random_layer_of_axes(rng, axes)
        layers, shape = [first, random_activation(rng)], shape_behind(first, AXES[axes])
        if shape[0] == 2 and min(shape[1:]) >= 3 and rng.integers(2):
            layers.append(random_layer_of_axes(rng, axes))
            shape = shape_behind(layers[-1], shape)
        layers += [nn.Flatten(), nn.Linear(int(np.prod(shape)), 3)]
        return nn.Sequential(*layers).double().eval()

    return seeded(build, seed), AXES[axes]


def looked_at_axes(seed):
    """Look at layers, constants and certified distances of one such network."""
    model, shape = random_net_of_axes(seed)
    rng, count = np.random.default_rng(seed + 10**6), Counter(nets=1)
    for layer, layer_shape in SequentialLayers(model, shape).body:
        count[type(layer).__name__] += 1
        count.update(wrong_layers=bool(excesses_of_layer(layer, layer_shape, rng)))
    count["wrong_constants"] += len(excesses_of_constants(model, shape, rng))
    x, (order, norm) = torch.tensor(rng.normal(size=(4, *shape))), COSTS[rng.integers(len(COSTS))]
    certified, flipped = flips_inside(model, x, rng, order=order, norm=norm)
    count.update(distances=certified, wrong_distances=flipped)
    return count


def test_a_few_networks_of_each_number_of_axes():
    count = sum((looked_at_axes(seed) for seed in range(8)), Counter())
    assert not wrong(count)
    assert count["distances"] >= 20


@pytest.mark.slow
def test_many_networks_of_each_number_of_axes():
    count = sum((looked_at_axes(seed) for seed in range(1000, 1150)), Counter())
    assert not wrong(count)
    assert (count["nets"], count["distances"] > 500) == (150, True)
    names = ("Conv", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "ReflectionPad")
    assert not [f"{name}{axes}d" for name in names for axes in (1, 2, 3) if not count[f"{name}{axes}d"]]


def test_softmax_in_closed_form():
    """At p = (1/2, 1/2): slopes of 1/4 each way, 1/2 along (1, -1). Of log-softmax at p = (1, 0, 0): root 3."""
    bound = RULES[nn.Softmax].spectral(nn.Softmax(1), (2,))
    jacobian = torch.autograd.functional.jacobian(nn.Softmax(0), torch.zeros(2).double())
    assert bound == pytest.approx(float(torch.linalg.matrix_norm(jacobian, ord=2)), rel=1e-12)
    spread = RULES[nn.Softmax].spread(nn.Softmax(1), torch.ones(1, 2).double())
    assert spread.flatten().tolist() == pytest.approx(jacobian.abs().sum(dim=1).tolist())
    far = torch.tensor([60.0, 0.0, 0.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(nn.LogSoftmax(0), far)
    assert RULES[nn.LogSoftmax].spectral(nn.LogSoftmax(1), (3,)) == pytest.approx(
        float(jacobian.norm()) / (4 / 3) ** 0.5
    )
    assert float(torch.linalg.matrix_norm(jacobian, ord=2)) == pytest.approx(3.0**0.5, rel=1e-9)


SHRUNK = [
    (nn.Linear(3, 4), (3,)),
    (nn.Conv2d(1, 2, 2, padding=1), (1, 4, 3)),
    (nn.BatchNorm1d(3), (3,)),
    (nn.BatchNorm2d(2), (2, 3, 3)),
    (nn.AvgPool2d(2, 1), (1, 4, 4)),
    (nn.AdaptiveAvgPool2d(2), (1, 5, 5)),
    (nn.MaxPool2d(2, 2), (1, 4, 4)),
    (nn.Flatten(), (1, 2, 2)),
    (nn.PixelUnshuffle(2), (1, 4, 2)),
    (nn.PixelShuffle(2), (4, 2, 1)),
    (GroupSort(), (4,)),
    (nn.Conv3d(1, 2, 2), (1, 2, 3, 2)),
    (nn.MaxPool1d(2, 1), (1, 4)),
    (nn.AdaptiveMaxPool2d(1), (1, 3, 2)),
    (nn.ReflectionPad1d(1), (1, 3)),
    (nn.ReLU(), (3,)),
    (nn.LeakyReLU(2.0), (3,)),
    (nn.Tanh(), (3,)),
    (nn.Sigmoid(), (3,)),
    (nn.ELU(), (3,)),
    (nn.GELU(), (3,)),
    (nn.SiLU(), (3,)),
]


@pytest.mark.guard
@pytest.mark.parametrize(("layer", "shape"), SHRUNK, ids=lambda part: str(part).partition("(")[0])
def test_a_norm_of_a_layer_that_is_1_percent_too_small_is_seen(layer, shape, monkeypatch):
    """Negative control."""
    layer, rule = layer.double().eval(), RULES[type(layer)]
    assert not excesses_of_layer(layer, shape, np.random.default_rng(0))
    monkeypatch.setitem(RULES, type(layer), replace(rule, spectral=lambda *given: 0.99 * rule.spectral(*given)))
    assert excesses_of_layer(layer, shape, np.random.default_rng(0))


def test_a_max_pool_that_forgets_that_windows_overlap_is_seen(monkeypatch):
    """Negative control: the norm of a max pool is 1 if no two windows share an entry only."""
    monkeypatch.setitem(RULES, nn.MaxPool2d, replace(RULES[nn.MaxPool2d], spectral=lambda *_: 1.0))
    assert excesses_of_layer(nn.MaxPool2d(3, 1), (1, 5, 5), np.random.default_rng(0))


def test_distances_and_curves_that_promise_too_much_are_seen(monkeypatch):
    """Negative control: as if margins grew at four fifths of their speeds."""
    model, x = seeded(lambda: nn.Linear(3, 3)).double(), torch.tensor(np.random.default_rng(0).normal(size=(8, 3)))
    geometry = LipschitzAdversary.geometry

    def slower(self, batch, layers):
        found = geometry(self, batch, layers)
        return found._replace(speeds=0.8 * found.speeds)

    for is_slower in (False, True):
        with monkeypatch.context() as patched:
            if is_slower:
                patched.setattr(LipschitzAdversary, "geometry", slower)
            for order, norm in ((1, "linf"), (2, "l2")):
                rng = np.random.default_rng(1)
                assert (flips_inside(model, x, rng, order=order, norm=norm)[1] > 0) == is_slower
                assert bool(excesses_of_curve(model, x, rng, loss="margin", order=order, norm=norm)) == is_slower


@pytest.mark.guard
@pytest.mark.parametrize("share", [1.0, 0.99])
def test_constants_that_are_1_percent_too_small_are_seen(share):
    """Negative control."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))).double()

    def constants(model, shape, *, norm):
        return share * margin_constants(model, shape, norm=norm)

    found = excesses_of_constants(model, (3,), np.random.default_rng(0), constants=constants)
    assert bool(found) == (share < 1.0)
