"""The Square Attack: the published schedule and change, closed forms on linear models, models that show no gradient.

No two CPUs need follow the same path: what is asserted are bounds that any path obeys, and margins far wider than luck.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from riskband.adversaries.attacks.base import client_curves
from riskband.adversaries.attacks.pgd import Pgd
from riskband.adversaries.attacks.square import Square, Windows, hill_and_valley
from riskband.adversaries.names import input_adversary
from tests.adversaries.nets import mlp, seeded
from tests.adversaries.test_attacks import flip_distances
from tests.adversaries.test_exact import DoubleLinear, problem
from tests.adversaries.test_inputs import Rounded, witness_of
from tests.adversaries.transports import EXPONENTS
from tests.transport import curves_of, input_problem

NORMS = ["l1", "l2", "linf"]
SHAPES = [(12,), (3, 4), (2, 4, 5)]
BOX = (0.0, 1.0)


class Quantised(nn.Module):
    """A network that rounds its inputs to 16 levels: its gradient is 0 everywhere."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(8.0 * torch.round(15.0 * x) / 15.0 - 4.0)


def quantised(num_examples=30, *, shape=(12,), seed=0):
    """A quantised network, inputs in the box, and its own labels but for the first."""
    size = int(np.prod(shape))
    net = Quantised(nn.Sequential(nn.Flatten(), mlp(size, 16, 4, seed=seed)))
    x = np.random.default_rng(seed).uniform(0.0, 1.0, (num_examples, *shape)).astype(np.float32)
    y = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    y[0] = (y[0] + 1) % 4
    return net, x, y


def windows_of(shape, norm, *, num_steps=100):
    net, x, y = quantised(5, shape=shape)
    return Windows.drawn(witness_of(net, x, y, norm=norm, box=BOX), np.arange(5), 0, num_steps=num_steps)


def test_windows_narrow_as_published():
    """Halvings after 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000 of 10,000 steps, from a share of 0.8."""
    windows = windows_of((100, 100), "linf")
    ends = [10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000]
    sides = [round(np.sqrt(0.8 / 2**k * 1e4)) for k in range(10)]
    assert [windows.side(done=(end - 5) / 1e4) for end in [*ends, 10_000]] == sides
    assert [windows.side(done=(end + 5) / 1e4) for end in [0, *ends]] == sides
    odd = [max(3, side // 2 * 2 + 1) for side in sides]  # for l2 the side is odd
    assert [windows_of((100, 100), "l2").side(done=(end + 5) / 1e4) for end in [0, *ends]] == odd


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 2), (3, 3), (5, 5), (8, 8), (9, 1), (1, 4)])
def test_a_bump_is_the_published_one(height, width):
    """By the paper's construction: nested rectangles around the middle of each half, the k-th of height 1/k²."""
    expected = np.zeros((height, width))
    for first, last, sign in ((0, height // 2, 1.0), (height // 2, height, -1.0)):
        middle = (last - first) // 2, width // 2
        for k in range(max((last - first) // 2, width // 2) + 1):
            rows = slice(max(first, first + middle[0] - k), min(last, first + middle[0] + k + 1))
            columns = slice(max(0, middle[1] - k), middle[1] + k + 1)
            expected[rows, columns] += sign / (k + 1) ** 2
    np.testing.assert_allclose(hill_and_valley(height, width), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", NORMS)
def test_moves_fill_the_ball_and_change_in_windows_only(norm, shape):
    windows, radii = windows_of(shape, norm), torch.linspace(0.1, 0.5, 5)
    net, x, y = quantised(5, shape=shape)
    witness = witness_of(net, x, y, norm=norm, box=None)
    moves = windows.first(radii)
    for step in range(0, 100, 9):
        np.testing.assert_allclose(np.linalg.norm(moves, ord=EXPONENTS[norm], axis=1), radii, rtol=1e-4)
        changed = windows.changed(witness, moves, radii, step=step)
        side = windows.side(done=step / 100)
        size = shape[0] * side**2 if len(shape) == 3 else side ** len(shape)
        if norm == "linf":
            num_changed = (changed != moves).sum(dim=1)
            assert bool(((num_changed > 0) & (num_changed <= size)).all())
            torch.testing.assert_close(changed.abs(), radii[:, None].expand_as(changed))
        moves = changed


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", NORMS)
def test_what_it_shows_lies_in_ball_and_box(norm, shape):
    net, x, y = quantised(5, shape=shape)
    witness = witness_of(net, x, y, norm=norm, loss="margin", box=BOX)
    Square(net, input_problem("margin", 1, norm, box=BOX, distances=(0.3,)), num_steps=30).perturb(witness)
    costs = witness.points().costs
    assert costs.shape[1] == 31
    assert bool((costs[torch.isfinite(costs)] <= 0.3 * (1.0 + 1e-5)).all())
    assert costs[torch.isfinite(costs)].max() > 0.2


@pytest.mark.parametrize("norm", NORMS)
def test_on_a_linear_model_never_nearer_than_the_exact_distance_and_near_it(norm):
    model, weight, bias, x, y = problem(seed=3, num_examples=12, num_features=6, num_classes=3)
    exact = flip_distances(weight, bias, x, y, norm)
    witness = witness_of(model, x, y, norm=norm, box=None)
    Square(model, input_problem("zero_one", 1, norm)).perturb(witness)
    ratios = witness.distances.numpy()[exact > 0.0] / exact[exact > 0.0]
    assert np.all(ratios >= 1.0 - 1e-5)
    assert np.median(ratios) < 1.15


def random_risk(net, x, y, *, radius, norm, num_queries):
    """Share of the examples that are wrong somewhere among random points of a sphere, cut to the box."""
    rng, is_wrong = np.random.default_rng(1), np.zeros(len(x), dtype=bool)
    for _ in range(num_queries):
        step = rng.choice([-1.0, 1.0], size=x.shape) if norm == "linf" else rng.normal(size=x.shape)
        step = step * radius / np.linalg.norm(step, ord=EXPONENTS[norm], axis=1, keepdims=True)
        shown = torch.from_numpy((x + step).clip(*BOX).astype(np.float32))
        is_wrong |= (net(shown).argmax(dim=1) != torch.from_numpy(y)).numpy()
    return is_wrong.mean()


@pytest.mark.parametrize(("norm", "radius"), [pytest.param("linf", 0.06, marks=pytest.mark.slow), ("l2", 0.2)])
def test_where_inputs_are_rounded_attacks_along_gradients_see_nothing_and_say_so(norm, radius):
    """The first is the negative control: it reaches no more than the clean risk."""
    net, x, y = quantised(20)
    asked = {"loss": "zero_one", "order": 1, "norm": norm, "space": "input", "box": BOX, "distances": (radius,)}
    blind, strongest = (curves_of(net, x, y, adversary=name, **asked) for name in ("apgd", "wda-knapsack"))
    assert blind.values([1.0])[0][0] == blind.clean_risk
    assert blind.num_without_gradient == strongest.num_without_gradient == 19  # all that are right as they are
    randomly = random_risk(net, x, y, radius=radius, norm=norm, num_queries=400)
    assert randomly > blind.clean_risk + 0.1
    assert strongest.values([radius])[0][0] >= randomly - 1e-9


def test_the_attack_by_its_own_name_finds_as_much_and_says_nothing_of_gradients():
    net, x, y = quantised(20, shape=(3, 4))
    asked = {"loss": "zero_one", "order": 1, "norm": "linf", "space": "input", "box": BOX}
    alone = curves_of(net, x, y, adversary="square", **asked)
    randomly = random_risk(net, x.reshape(20, 12), y, radius=0.06, norm="linf", num_queries=400)
    assert alone.values([0.06])[0][0] >= randomly - 1e-9
    assert alone.num_without_gradient is None


class Misleading(nn.Module):
    """Rounds its inputs, and has next to nothing left of them, with the other sign: all of the gradient points back."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(torch.round(8.0 * x) / 8.0 - 1e-3 * x)


@pytest.mark.slow  # 12 s; that it takes over where there is no gradient is below, by default
def test_gradients_that_mislead_are_noticed_and_searched_everywhere():
    """The negative control follows them: it reaches half of what random search does, and flags nothing."""
    model = Misleading(mlp(6, 16, 3, seed=1))
    x = np.random.default_rng(0).uniform(-1.0, 1.0, size=(20, 6)).astype(np.float32)
    with torch.no_grad():
        y = model(torch.from_numpy(x)).argmax(dim=1).numpy()
    asked = {"loss": "zero_one", "order": 1, "space": "input", "box": (-1.0, 1.0)}
    along, searched, found = (curves_of(model, x, y, adversary=name, **asked) for name in ("pgd", "square", "auto"))
    reached = [curves.values([0.1])[0][0] for curves in (along, searched, found)]
    assert along.num_without_gradient == 0
    assert reached[0] < 0.7 * reached[1]
    assert reached[2] >= 0.95 * reached[1]
    assert found.num_without_gradient >= 10
    batched = curves_of(model, x, y, adversary="auto", batch_size=3, **asked)
    assert batched.num_without_gradient >= 8
    plain = mlp(6, 16, 3, seed=1)
    assert curves_of(plain, x, y, adversary="auto", **asked).num_without_gradient == 0


@pytest.mark.parametrize("loss", ["zero_one", "margin", "cross_entropy"])
def test_it_takes_over_where_a_model_has_no_gradient_at_all(loss):
    net = seeded(lambda: Rounded(4, 3), seed=1)
    with torch.no_grad():
        net.bias.copy_(-0.5 * net.weight.sum(dim=1))  # all classes meet in the middle of the box
    x = np.random.default_rng(0).uniform(size=(6, 4)).astype(np.float32)
    y = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    asked = {"loss": loss, "order": 1, "space": "input", "box": BOX, "distances": (1.0,)}
    curves = curves_of(net, x, y, **asked)
    assert curves.num_without_gradient == 6
    assert curves.values([1.0])[0][0] > curves.clean_risk + 0.01


class Probable(nn.Module):
    """Probabilities instead of logits, so sure that a step of any length leaves them as they are."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return (1000.0 * self.net(x)).softmax(dim=1)


def test_a_gradient_that_has_vanished_is_none_and_one_of_a_linear_model_of_any_scale_is_one():
    net = mlp(12, 16, 4, seed=2)
    with torch.no_grad():
        net[2].weight.mul_(10.0)
    x = np.random.default_rng(2).uniform(size=(20, 12)).astype(np.float32)
    y = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    gaps = net(torch.from_numpy(x)).topk(2, dim=1).values
    is_sure = gaps[:, 0] - gaps[:, 1] > 0.1  # 100 for the softmax
    assert is_sure.sum() > 10
    for box in (None, BOX):
        assert not witness_of(net, x, y, box=box).is_blind.any()
        assert witness_of(Probable(net), x, y, box=box).is_blind[is_sure].all()
    for scale in (1e-6, 1.0, 1e6):
        _, weight, bias, points, labels = problem(seed=3, num_examples=9, num_features=6, num_classes=3)
        assert not witness_of(DoubleLinear(scale * weight, scale * bias), points, labels, box=None).is_blind.any()
    wrong = (y + 1) % 4  # nothing is left to reach
    assert not witness_of(Probable(net), x, wrong, box=BOX).is_blind.any()


def test_a_sandwich_says_what_its_attack_saw_and_bounds_alone_say_nothing():
    net = mlp(12, 16, 4, seed=2)
    with torch.no_grad():
        net[2].weight.zero_()  # a known layer of a constant model
        net[2].bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    x, y = np.zeros((5, 12), dtype=np.float32), np.array([0, 0, 0, 0, 1])
    asked = {"loss": "zero_one", "order": 1, "space": "input"}
    counts = {
        name: curves_of(net, x, y, adversary=name, **asked).num_without_gradient
        for name in ("sandwich:pgd", "auto", "lipschitz")
    }
    assert counts == {"sandwich:pgd": 4, "auto": 4, "lipschitz": None}
    assert curves_of(net, x, y, loss="zero_one", order=1).num_without_gradient is None
    assert input_adversary("sandwich:pgd").needs_gradients
    searching = ("auto", "sandwich", "wda-knapsack", "sandwich:square")
    assert not any(input_adversary(name).needs_gradients for name in searching)


@pytest.mark.parametrize("shape", [(12,), (3, 4)])
def test_the_same_bytes_however_often_and_the_same_draws_however_batched(shape):
    net, x, y = quantised(9, shape=shape)
    asked = input_problem("zero_one", 1, "l2", box=BOX, distances=(0.3,), seed=4)
    first, again = (
        client_curves(Square(net, asked, num_steps=20), net, x, y, loss="zero_one").values([0.1])[0] for _ in range(2)
    )
    assert first.tobytes() == again.tobytes()
    whole, part = (
        Windows.drawn(witness_of(net, x[rows], y[rows], box=BOX), np.arange(9)[rows], 1, num_steps=7)
        for rows in (slice(0, 9), slice(4, 6))
    )
    for name in ("order", "signs", "first_draws", "step_draws"):
        all_drawn, drawn = getattr(whole, name), getattr(part, name)
        assert (drawn is None and len(shape) > 1) or torch.equal(all_drawn[4:6], drawn)
    sizes = (9, 4)
    counts = [
        client_curves(Pgd(net, asked), net, x, y, loss="zero_one", batch_size=size).num_without_gradient
        for size in sizes
    ]
    assert counts == [8, 8]


def test_settings_are_checked():
    with pytest.raises(ValueError, match="num_steps must be a whole number >= 1"):
        Square(mlp(2, 3), input_problem("zero_one", 1, "l2"), num_steps=0)
