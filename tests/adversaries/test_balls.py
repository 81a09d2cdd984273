"""Bounds of models that are trees of layers, read from their forwards, against what is found in float64.

Everything is seeded, and no check has a false-alarm rate: a single excess is a wrong bound.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from riskband.adversaries import TransportProblem, adversarial_curves
from riskband.adversaries.bounds import balls, lipschitz
from riskband.adversaries.bounds.balls import Balls, Moves
from riskband.adversaries.bounds.layer_norms import NORMALISATIONS, RULES, LayerRule, chain_spectral
from riskband.adversaries.bounds.lipschitz import SequentialLayers
from riskband.adversaries.bounds.parts import Sum
from riskband.adversaries.norms import lengths
from tests.adversaries.nets import seeded
from tests.adversaries.test_bounds_fuzz import (
    ACTIVATIONS,
    COSTS,
    LOSSES,
    attack,
    excesses_of_constants,
    excesses_of_curve,
    flips_inside,
    margin_towards,
    random_activation,
    wrong,
)

SMOOTH = (nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.ReLU6, nn.CELU, nn.SELU, nn.PReLU, nn.Softsign)
KINDS = (nn.ReLU, nn.ReLU, *ACTIVATIONS, *SMOOTH, nn.Softshrink, nn.Tanhshrink, nn.LogSigmoid)
SCALES = (0.003, 0.03, 0.3, 3.0)


class Residual(nn.Module):
    def __init__(self, *inside, by=1.0):
        super().__init__()
        self.inside, self.by = nn.Sequential(*inside), by

    def forward(self, x):
        return x * self.by + self.inside(x)


def with_weights(layer, rng):
    if getattr(layer, "weight", None) is not None:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(rng.normal(size=layer.weight.shape)))
    return layer


def normalisation(rng, shape):
    eps = float(rng.choice([1e-5, 1e-2, 1.0]))
    kinds = [nn.LayerNorm(shape[-1:], eps=eps), nn.RMSNorm(shape[-1:], eps=eps), nn.LayerNorm(shape, eps=eps)]
    if len(shape) == 3:
        groups = int(rng.choice([each for each in (1, 2, 4) if shape[0] % each == 0]))
        kinds = [nn.GroupNorm(groups, shape[0], eps=eps), nn.InstanceNorm2d(shape[0], eps=eps, affine=True), kinds[2]]
    return with_weights(kinds[rng.integers(3)], rng)


def vector_layer(rng, size):
    kind = rng.integers(5)
    if kind == 0:
        return Residual(nn.Linear(size, size), random_activation(rng, KINDS), by=float(rng.choice([1.0, -0.5])))
    if kind == 1:
        return Residual(normalisation(rng, (size,)), nn.Linear(size, 3), nn.ReLU(), nn.Linear(3, size))
    return [normalisation(rng, (size,)), nn.Linear(size, 5), random_activation(rng, KINDS)][kind - 2]


def image_layer(rng, shape):
    channels, kind = shape[0], rng.integers(6)
    convolution = nn.Conv2d(channels, channels, 3, padding=1)
    if kind <= 1:
        return Residual(normalisation(rng, shape), convolution, random_activation(rng, KINDS))
    if kind == 2:
        return Residual(convolution, nn.ReLU(), nn.Conv2d(channels, channels, 1))
    return [normalisation(rng, shape), nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(channels, 8, 1), nn.PixelShuffle(2))][kind - 3]  # fmt: skip


def random_tree(seed):
    """A model with sums of branches, in float64, and the shape of one input."""
    rng = np.random.default_rng(seed)
    is_image = bool(rng.integers(2))
    shape = (2, 4, int(rng.integers(4, 6))) if is_image else (int(rng.integers(2, 7)),)

    def build():
        layers, here = [], shape
        for _ in range(int(rng.integers(1, 4))):
            layers.append(image_layer(rng, here) if is_image else vector_layer(rng, *here))
            with torch.no_grad():
                here = tuple(layers[-1].eval()(torch.zeros(2, *here)).shape[1:])
        if is_image:
            layers.append(nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(int(np.prod(here)), int(rng.integers(2, 4)))).double().eval()

    return seeded(build, seed), shape


def around(layers, model, x, labels, norm):
    """Balls, and the margins of the examples."""
    with torch.no_grad():
        logits = model(x)
    margins = logits - logits.gather(1, labels[:, None])
    return Balls(layers, x, labels, norm=norm, margins=margins, rounding=0.0), margins


def excesses(model, x, norm, scale, layers=None):
    """By how much margins rise, where ascent led within balls, above what `Balls` allows."""
    layers = layers or SequentialLayers(model, x.shape[1:])
    num_classes = len(layers.head)
    labels = torch.arange(len(x)) % num_classes
    ball, margins = around(layers, model, x, labels, norm)
    radii, found = torch.full((len(x),), scale, dtype=torch.float64), []
    allowed = ball.rises(radii)
    for shift in range(1, num_classes):
        rivals = (labels + shift) % num_classes
        rise = margin_towards(model, labels, rivals)
        points = attack(rise, x, radii, norm, num_steps=8)
        assert (lengths((points - x).flatten(1), norm) <= scale * (1.0 + 1e-9)).all()
        with torch.no_grad():
            risen = rise(points) - margins.gather(1, rivals[:, None]).squeeze(1)
        excess = risen - allowed.gather(1, rivals[:, None]).squeeze(1)
        found += excess[excess > 1e-9 * (1.0 + risen.abs())].tolist()
    return found


def looked_at(seed):
    """Look at a model's rises within two balls, and at what adversaries make of them or at constants."""
    model, shape = random_tree(seed)
    rng, count = np.random.default_rng(seed + 10**6), Counter(nets=1)
    layers = SequentialLayers(model, shape)
    count.update(type(part).__name__ for layer, _ in layers.body for part in layer.modules())
    x = torch.tensor(rng.normal(size=(5, *shape)) * 10.0 ** rng.uniform(-1.5, 1.0, (5, *[1] * len(shape))))
    for scale in rng.choice(SCALES, 2, replace=False):
        norm = ("l1", "l2", "linf")[rng.integers(3)]
        count["wrong_rises"] += len(excesses(model, x, norm, float(scale), layers))
    order, norm = COSTS[rng.integers(len(COSTS))]
    if seed % 3 == 0:
        certified, flipped = flips_inside(model, x, rng, order=order, norm=norm)
        count.update(distances=certified, wrong_distances=flipped)
    elif seed % 3 == 1:
        loss = LOSSES[rng.integers(1, len(LOSSES))]
        count.update(curves=1, wrong_curves=len(excesses_of_curve(model, x, rng, loss=loss, order=order, norm=norm)))
    else:
        count.update(constants=1, wrong_constants=len(excesses_of_constants(model, shape, rng)))
    return count


def test_a_few_trees():
    count = sum((looked_at(seed) for seed in range(12)), Counter())
    assert not wrong(count)
    assert count["distances"] >= 10


@pytest.mark.slow
def test_many_trees():
    count = sum((looked_at(seed) for seed in range(1000, 1150)), Counter())
    assert not wrong(count)
    assert (count["nets"], count["distances"] > 150, count["curves"], count["constants"] > 25) == (150, True, 50, True)
    drawn = (*NORMALISATIONS, *SMOOTH, nn.PixelShuffle, nn.ZeroPad2d)
    names = {kind.__name__ for kind in drawn} - {"InstanceNorm1d", "InstanceNorm3d"} | {"Sum"}
    assert not [name for name in names if not count[name]]


def small_deviations():
    """Examples whose deviation is hardly larger than the radius: there the rule of a normalisation must give way."""
    x = torch.tensor(np.random.default_rng(0).normal(size=(6, 4)))
    return 0.2 * (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)


def caught(model, x, scale):
    return bool(excesses(model.double().eval(), x, "l2", scale))


def test_a_normalisation_whose_deviation_does_not_shrink_is_seen(monkeypatch):
    """Negative control: the constant at the example itself, as a gradient there would say."""
    model = seeded(lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2, bias=False)))
    assert not caught(model, small_deviations(), 0.36)
    still = lambda layer, x, moves: Moves(  # noqa: E731
        torch.full_like(x, torch.inf), moves.lengths * rate(layer, x), moves.largest
    )
    rate = lambda layer, x: (x.var(dim=1, correction=0) + layer.eps).rsqrt()  # noqa: E731
    monkeypatch.setitem(balls._LOCAL, nn.LayerNorm, still)
    assert caught(model, small_deviations(), 0.36)


def test_a_sum_that_takes_the_larger_branch_is_seen(monkeypatch):
    """Negative control, for balls and for constants."""
    model = seeded(lambda: nn.Sequential(Residual(nn.Linear(3, 3)), nn.Linear(3, 2)))
    with torch.no_grad():
        model[0].inside[0].weight.copy_(torch.eye(3))
    model, x = model.double().eval(), torch.tensor(np.random.default_rng(0).normal(size=(6, 3)))
    assert not caught(model, x, 0.3)
    assert not excesses_of_constants(model, (3,), np.random.default_rng(0))
    larger = lambda parts: (  # noqa: E731
        sum(y for y, _ in parts),
        Moves(*(torch.stack(each).amax(dim=0) for each in zip(*(moves for _, moves in parts), strict=True))),
    )
    monkeypatch.setattr(balls, "_added", larger)
    assert caught(model, x, 0.3)
    spread = RULES[Sum].spread  # of x + inside(x)
    smaller = LayerRule(
        lambda layer, moves: (spread(layer, moves) - moves).maximum(moves),
        lambda layer, shape: max(chain_spectral(each, shape) for each in layer.chains),
        is_linear=False,
    )
    monkeypatch.setitem(RULES, Sum, smaller)
    lipschitz._constants.cache_clear()
    assert excesses_of_constants(model, (3,), np.random.default_rng(0))
    lipschitz._constants.cache_clear()


def test_what_rounding_leaves_before_a_normalisation_is_no_certificate():
    """A bias of 1e8 that the next layer takes back: multiples of 1.5e-8 are left, and eps is too small to hide them."""
    there, back, last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(there, back, nn.LayerNorm(2, eps=1e-14), last).double().eval()
    with torch.no_grad():
        for layer, bias in ((there, 1e8), (back, -1e8)):
            layer.weight.copy_(torch.eye(2))
            layer.bias.fill_(bias)
        last.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        last.bias.copy_(torch.tensor([0.25, -0.25]))
    x = torch.zeros(1, 2, dtype=torch.float64)
    problem = TransportProblem(loss="zero_one", order=1, norm="l2", space="input", adversary="lipschitz")
    label = model(x).argmax(dim=1)
    moves = torch.linspace(0.0, 1.7e-8, 200, dtype=torch.float64)[:, None] * torch.tensor([[-1.0, 1.0]]) / 2.0**0.5
    assert bool((model(moves).argmax(dim=1) != label).any())
    found = adversarial_curves(model, x.numpy(), label.numpy(), problem)
    assert found.values([1.7e-8])[1] == 1.0
    with torch.no_grad():
        there.bias.fill_(0.0)
        back.bias.fill_(0.0)
    assert adversarial_curves(model, x.numpy(), label.numpy(), problem).values([1.7e-8])[1] < 1.0
