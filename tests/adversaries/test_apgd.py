"""Auto-PGD: closed forms on linear models of any scale, its laws, and what plain ascent of the cross-entropy misses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from riskband.adversaries.attacks.apgd import Apgd, _checks, auto_pgd
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.pgd import Pgd
from riskband.adversaries.attacks.witness import OBJECTIVES, TARGETED_OBJECTIVES, Witness, logits_ratio, logits_ratio_of
from riskband.adversaries.norms import lengths, project, steepest
from riskband.checks import RefusedError
from tests.adversaries.nets import mlp
from tests.adversaries.test_attacks import flip_distances
from tests.adversaries.test_exact import DoubleLinear, problem
from tests.adversaries.test_inputs import examples_of, small_net, witness_of
from tests.transport import curves_of, input_problem

NORMS = ["l1", "l2", "linf"]
NAMES = [*OBJECTIVES, *TARGETED_OBJECTIVES]


def inputs_and_net(seed, *, num_examples=8, num_features=6, num_classes=5):
    net = small_net(seed, num_features=num_features, num_classes=num_classes)
    return net, *examples_of(net, seed, num_examples=num_examples, num_features=num_features)


def test_the_checks_of_a_hundred_steps_are_the_published_ones():
    """Croce and Hein 2020, section 3.2: p = 0, 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99."""
    assert list(_checks(100)) == [22, 41, 57, 70, 80, 87, 93, 99]


@pytest.mark.parametrize(
    "scale", [pytest.param(1e-3, marks=pytest.mark.slow), 1.0, pytest.param(1e3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("objective", NAMES)
def test_it_flips_a_linear_model_just_beyond_the_exact_distance_and_never_before(norm, objective, scale):
    """Two classes but for the DLR objectives, whose slopes go elsewhere when a third class is near."""
    _, weight, bias, x, y = problem(seed=3, num_examples=15, num_features=6, num_classes=4)
    y = y % 2
    # The last two classes are far below.
    weight, bias = scale * weight, scale * bias - max(scale, 1.0) * np.array([0.0, 0.0, 60.0, 80.0])
    model = DoubleLinear(weight, bias)
    exact = flip_distances(weight, bias, x, y, norm)
    for share, is_found in ((1.0 + 1e-5, True), (1.0 - 1e-5, False)):
        witness = witness_of(model, x, y, norm=norm, box=None)
        attack = Apgd(model, input_problem("zero_one", 1, norm), objective=objective)
        radii = torch.from_numpy(exact * share)
        attack._search(witness, witness.x.new_zeros(attack._num_candidates(witness), *x.shape), radii)
        found = witness.distances.numpy()
        assert np.all((found[exact > 0.0] <= radii.numpy()[exact > 0.0] * (1.0 + 1e-6)) == is_found)


@pytest.mark.parametrize("norm", NORMS)
def test_the_nearest_of_five_classes_is_found_to_1e_5(norm):
    model, weight, bias, x, y = problem(seed=5, num_examples=25, num_features=6, num_classes=5)
    exact = flip_distances(1e3 * weight, 1e3 * bias, x, y, norm)
    model = DoubleLinear(1e3 * weight, 1e3 * bias)
    curves = curves_of(model, x, y, loss="zero_one", order=1, norm=norm, space="input", adversary="apgd")
    assert curves.adversarial_unit == pytest.approx(exact.mean(), rel=1e-5)


class Scaled(nn.Sequential):
    """A network whose logits are multiplied by a number."""

    def __init__(self, net, scale):
        super().__init__(net)
        self.scale = scale

    def forward(self, x):
        return self.scale * super().forward(x)


def cross_entropy_ascent(model, x, y, *, radius, norm, num_steps):
    """PGD as published: projected steps along the slope of the cross-entropy, in single precision."""
    moves = torch.zeros_like(x)
    for _ in range(num_steps):
        at = (x + moves).requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model(at), y, reduction="sum"), at)
        moves = moves + 2.5 * radius / num_steps * steepest(slope, norm)
        moves = project(moves, torch.full((len(x),), radius), norm, room=torch.tensor(math.inf))
    return model(x + moves).argmax(dim=1) != y


@pytest.mark.parametrize("norm", NORMS)
def test_where_the_slope_of_the_cross_entropy_fades_plain_ascent_stalls_and_this_does_not(norm):
    """Logits times 1e3: in single precision the cross-entropy is 0 and flat at almost every example."""
    net = Scaled(mlp(6, 12, 5, seed=1), 10.0)  # margins as of a trained network
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(60, 6)).astype(np.float32))
    y = net(x).argmax(dim=1)
    scaled = Scaled(net, 1e3)
    radius = {"l1": 1.2, "l2": 0.6, "linf": 0.3}[norm]
    plain = cross_entropy_ascent(net, x, y, radius=radius, norm=norm, num_steps=36).double().mean()
    stalled = cross_entropy_ascent(scaled, x, y, radius=radius, norm=norm, num_steps=36).double().mean()
    witness = witness_of(scaled, x.numpy(), y.numpy(), norm=norm, box=None)
    Apgd(scaled, input_problem("zero_one", 1, norm, distances=(radius,)), objective="dlr").perturb(witness)
    found = torch.isfinite(witness.distances).double().mean()
    assert stalled < plain - 0.2
    assert found >= plain


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from(NORMS), st.sampled_from(list(OBJECTIVES)), st.integers(1, 12))
@settings(max_examples=15)
def test_the_climb_never_ends_below_its_start_and_stays_in_ball_and_box(seed, norm, objective, num_steps):
    net, x, y = inputs_and_net(seed)
    witness = witness_of(net, x, y, norm=norm, loss="margin")
    rng = np.random.default_rng(seed)
    radii = torch.from_numpy(rng.uniform(0.05, 1.0, len(x)))
    drawn = torch.from_numpy(rng.normal(size=x.shape).astype(np.float32))
    start = project(drawn, radii, norm, room=witness.room(drawn))
    raised = OBJECTIVES[objective]
    values = raised(witness(witness.x + start), witness.labels)
    seen = witness.fresh()
    moves, best = auto_pgd(seen, raised, start, radii, num_steps=num_steps)
    assert bool((best >= values - 1e-6).all())
    torch.testing.assert_close(best, raised(witness(witness.x + moves), witness.labels))
    points = witness.x + moves
    assert bool((points.abs() <= 1.0 + 1e-6).all())
    assert bool((lengths(moves, norm) <= radii * (1.0 + 1e-6)).all())
    costs = seen.points().costs
    assert bool((costs[torch.isfinite(costs)].numpy() <= np.broadcast_to(radii[:, None] * (1.0 + 1e-5), costs.shape)[
        torch.isfinite(costs).numpy()]).all())  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
def test_the_search_among_rivals_flips_more_than_pgd_with_as_many_steps(norm):
    net = mlp(20, 60, 60, 10, seed=0)
    x = np.random.default_rng(2).uniform(-1.0, 1.0, (150, 20)).astype(np.float32)
    y = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    radius = {"l1": 1.5, "l2": 0.4, "linf": 0.1}[norm]
    asked = input_problem("zero_one", 1, norm, box=(-1.0, 1.0), distances=(radius,))
    flips = []
    for attack in (Pgd(net, asked, num_steps=108, num_restarts=0), Apgd(net, asked, num_steps=36)):  # three rounds
        witness = witness_of(net, x, y, norm=norm)
        attack.perturb(witness)
        flips.append(int(torch.isfinite(witness.distances).sum()))
    assert flips[1] > flips[0] > 50


class Counted(nn.Sequential):
    """A network that counts the inputs it is asked about."""

    num_inputs = 0

    def forward(self, x):
        self.num_inputs += len(x)
        return super().forward(x)


def test_an_example_is_left_alone_once_it_flips():
    """In single precision a flip on the surface of a ball seems to lie outside of it."""
    net = Counted(mlp(20, 60, 60, 10, seed=0))
    x = np.random.default_rng(2).uniform(-1.0, 1.0, (50, 20)).astype(np.float32)
    y = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    witness = witness_of(net, x, y, norm="linf")
    before = net.num_inputs
    Apgd(net, input_problem("zero_one", 1, "linf", distances=(1.0,))).perturb(witness)
    assert torch.isfinite(witness.distances).all()
    assert net.num_inputs - before <= 6 * len(x)  # one round of 4 steps towards one rival, for nearly all


@pytest.mark.parametrize("norm", NORMS)
def test_a_refinement_only_brings_flips_nearer(norm):
    net = mlp(20, 40, 40, 10, seed=3)
    x = np.random.default_rng(3).uniform(-1.0, 1.0, (60, 20)).astype(np.float32)
    y = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    y[0] = (y[0] + 1) % 10  # misclassified as it is
    asked = input_problem("zero_one", 1, norm, box=(-1.0, 1.0))
    witness = witness_of(net, x, y, norm=norm)
    Apgd(net, asked).refine(witness)  # knows no flip, hence no ball
    assert torch.isinf(witness.distances[1:]).all()
    MinNorm(net, asked, num_steps=3).perturb(witness)
    before = witness.distances.clone()
    Apgd(net, asked).refine(witness)
    assert witness.distances[0] == 0.0
    assert bool((witness.distances <= before).all())
    assert (witness.distances < before).double().mean() > 0.3
    found = torch.isfinite(witness.distances)  # three steps may be too few for an example or two
    assert found.double().mean() > 0.9
    margins = OBJECTIVES["margin"](net(witness.closest), torch.from_numpy(y))
    assert bool((margins > -1e-5)[found].all())  # in another batch they are rounded differently
    found[0] = False
    torch.testing.assert_close(lengths(witness.closest - witness.x, norm)[found], witness.distances[found])


@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(-50.0, 50.0))
def test_dlr_objectives_do_not_change_when_logits_are_scaled_or_shifted(seed, scale, shift):
    rng = np.random.default_rng(seed)
    logits, labels = torch.from_numpy(rng.normal(size=(7, 5))), torch.from_numpy(rng.integers(5, size=7))
    rivals = (labels + 1) % 5
    moved = scale * logits + shift
    torch.testing.assert_close(logits_ratio(moved, labels), logits_ratio(logits, labels))
    torch.testing.assert_close(logits_ratio_of(rivals)(moved, labels), logits_ratio_of(rivals)(logits, labels))


def test_dlr_objectives_by_hand():
    logits = torch.tensor([[4.0, 3.0, 1.0, 0.0], [4.0, 3.0, 1.0, 0.0]]).double()
    labels = torch.tensor([0, 2])
    assert logits_ratio(logits, labels).tolist() == pytest.approx([-1.0 / 3.0, 3.0 / 3.0])
    rivals = torch.tensor([2, 1])
    assert logits_ratio_of(rivals)(logits, labels).tolist() == pytest.approx([-3.0 / 3.5, 2.0 / 3.5])
    three = logits_ratio_of(rivals[:1])(logits[:1, :3], labels[:1])  # no fourth class: less the third
    assert three.tolist() == pytest.approx([-1.0])
    assert logits_ratio(torch.zeros(1, 3).double(), labels[:1]).tolist() == [0.0]


@pytest.mark.parametrize("objective", ["dlr", "targeted_dlr"])
def test_dlr_needs_a_third_class(objective):
    net, x, y = inputs_and_net(1, num_classes=2)
    attack = Apgd(net, input_problem("zero_one", 1, "l2", distances=(0.5,)), objective=objective)
    with pytest.raises(RefusedError, match="at least 3 classes, got 2"):
        attack.perturb(witness_of(net, x, y))


@pytest.mark.slow
@pytest.mark.parametrize("norm", [*(pytest.param(norm, marks=pytest.mark.slow) for norm in ("l1", "linf")), "l2"])
@pytest.mark.parametrize("loss", [pytest.param("zero_one", marks=pytest.mark.slow), "margin"])
def test_the_same_bytes_however_often_and_no_more_than_is_possible_however_batched(norm, loss):
    """Sums are rounded as the batch and the CPU have it, and a climb may part ways there: batchings need not agree."""
    net, x, y = inputs_and_net(7, num_examples=11)
    asked = {"loss": loss, "order": 1, "norm": norm, "space": "input", "box": (-1.0, 1.0)}
    radii = np.linspace(0.0, 1.0, 9)
    first, again, parts = (
        curves_of(net, x, y, **asked, adversary="apgd", batch_size=size).values(radii)[0] for size in (11, 11, 6)
    )
    assert first.tobytes() == again.tobytes()
    proved = curves_of(net, x, y, **asked, adversary="lipschitz").values(radii)[1]
    for reached in (first, parts):
        assert np.all(reached <= proved + 1e-6)
        assert reached[-1] > reached[0] + 0.1


def test_a_witness_of_some_rows_sees_what_the_whole_one_would():
    net, x, y = inputs_and_net(4)
    rows = torch.tensor([1, 4, 6])
    shown = torch.from_numpy(np.random.default_rng(0).uniform(-1.0, 1.0, (3, 8, 6)).astype(np.float32))
    for loss in ("zero_one", "margin"):
        whole, direct = witness_of(net, x, y, loss=loss), witness_of(net, x, y, loss=loss)
        assert whole.units.shape == (8,)  # cached before
        part = whole.select(rows)
        part(shown[:, rows])
        torch.testing.assert_close(part.units, whole.units[rows])
        whole.absorb(part, rows)
        direct(shown)
        torch.testing.assert_close(whole.distances[rows], direct.distances[rows])
        others = [row for row in range(1, 8) if row not in rows]
        assert torch.isinf(whole.distances[others]).all()
        costs, expected = (witness.points().costs for witness in (whole, direct))
        assert torch.isinf(costs[others]).all()
        for row in rows:
            torch.testing.assert_close(costs[row][torch.isfinite(costs[row])], expected[row])
        assert isinstance(part, Witness)


@pytest.mark.parametrize(
    ("chosen", "rule"),
    [
        ({"objective": "hinge"}, "objective must be one of margin, .*targeted_dlr, got 'hinge'"),
        ({"objective": ""}, "objective must be one of"),
        ({"num_steps": 0}, "num_steps must be a whole number >= 1"),
    ],
)
def test_settings_are_checked(chosen, rule):
    with pytest.raises(ValueError, match=rule):
        Apgd(small_net(8), input_problem("zero_one", 1, "l2"), **chosen)
