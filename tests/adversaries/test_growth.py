"""The constants that the bounds rest on, against numerical derivatives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from riskband.adversaries.representation.ascent import GRADIENTS
from riskband.adversaries.representation.growth import GROWTHS, bounding_points, radial_profile, reach
from riskband.models.losses import CROSS_ENTROPY_CAP, get_loss

CURVED = ["brier", "cross_entropy"]


def smooth(loss, logits, labels):
    """The loss without its cap, which only lowers it."""
    if loss == "cross_entropy":
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none") / CROSS_ENTROPY_CAP
    return get_loss(loss).per_example(logits, labels)


def margins_of(logits, labels):
    margins = logits - logits.gather(1, labels[:, None])
    return margins.scatter(1, labels[:, None], -torch.inf)


def random_logits(seed, num_rows, num_classes, scale):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(num_rows, num_classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(num_classes, (num_rows,), generator=generator)


@pytest.mark.parametrize("loss", CURVED)
@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_no_hessian_exceeds_the_curvature(loss, num_classes):
    worst = 0.0
    for scale in (0.3, 1.0, 3.0):
        logits, labels = random_logits(0, 150, num_classes, scale)
        for row, label in zip(logits, labels, strict=True):
            hessian = torch.autograd.functional.hessian(lambda u, y=label: smooth(loss, u[None], y[None]).sum(), row)
            worst = max(worst, float(torch.linalg.eigvalsh(hessian)[-1]))
    bound = GROWTHS[loss].curvature
    assert worst <= bound
    assert worst >= 0.5 * bound  # not idly large


def test_the_curvature_of_cross_entropy_is_attained():
    hessian = torch.autograd.functional.hessian(
        lambda u: smooth("cross_entropy", u[None], torch.tensor([0])).sum(), torch.zeros(2, dtype=torch.float64)
    )
    assert float(torch.linalg.eigvalsh(hessian)[-1]) == pytest.approx(GROWTHS["cross_entropy"].curvature, rel=1e-12)


@pytest.mark.parametrize("loss", sorted(GROWTHS))
@settings(max_examples=settings().max_examples * 3 // 5, deadline=None)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(2, 6), scale=st.floats(0.1, 5.0))
def test_a_loss_changes_by_at_most_its_slope_times_the_largest_change_of_a_margin(loss, seed, num_classes, scale):
    logits, labels = random_logits(seed, 200, num_classes, scale)
    step = random_logits(seed + 1, 200, num_classes, 10.0 ** np.random.default_rng(seed).uniform(-3, 1))[0]
    per_example = get_loss(loss).per_example
    change = (per_example(logits + step, labels) - per_example(logits, labels)).abs()
    largest = (step - step.gather(1, labels[:, None])).abs().amax(dim=1)
    assert torch.all(change <= GROWTHS[loss].slope * largest + 1e-12)


@pytest.mark.parametrize(("loss", "where"), [("cross_entropy", 9.0), ("brier", np.log(2.0)), ("margin", 0.0)])
def test_the_slopes_are_attained(loss, where):
    logits = torch.tensor([[0.0, where], [0.0, where + 1e-6]], dtype=torch.float64)
    low, high = get_loss(loss).per_example(logits, torch.zeros(2, dtype=torch.int64))
    assert float(high - low) / 1e-6 == pytest.approx(GROWTHS[loss].slope, rel=1e-3)


def test_the_slope_of_brier_is_the_maximum_of_its_two_parameter_bound():
    """math §6.3 reduces all class counts to G(s, b) on 0 <= s <= 1 - b; its maximum is 8/27."""
    b = np.linspace(0.0, 1.0, 1501)[:, None]
    s = np.linspace(0.0, 1.0, 1501) * (1.0 - b)
    g = s**2 * (2 - 2 * s - b) + 2 * s * b * (1 - b) - b * (1 - b) ** 2
    assert g.max() == pytest.approx(8 / 27, abs=1e-6)
    assert g.max() <= 8 / 27 + 1e-12


@pytest.mark.parametrize("loss", sorted(GROWTHS))
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(2, 6))
def test_the_bound_by_margins_holds_and_bends_no_more_than_said(loss, seed, num_classes):
    growth = GROWTHS[loss]
    logits, labels = random_logits(seed, 50, num_classes, 3.0)
    margins = margins_of(logits, labels)
    bound = growth.bound(margins)
    losses = get_loss(loss).per_example(logits, labels)
    assert torch.all(losses <= bound + 1e-12)
    if growth.is_tight:
        torch.testing.assert_close(losses, bound)
    speeds = torch.rand(50, num_classes, dtype=torch.float64).scatter(1, labels[:, None], 0.0)
    ends = reach(margins, speeds, growth, growth.saturation)
    steps = torch.linspace(0.0, 1.0, 400, dtype=torch.float64) * ends[:, None]
    profile = radial_profile(growth, margins, speeds, steps)
    curved = growth.bend * (speeds.amax(dim=1, keepdim=True) * steps[:, 1:2]).square() / 4.0
    assert torch.all(profile.diff(n=2, dim=1) >= -curved - 1e-12)
    assert torch.all(profile.diff(dim=1) >= -1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(2, 6), scale=st.sampled_from([0.5, 2.0, 5.0]))
def test_the_bound_of_brier_is_its_largest_value_over_all_smaller_margins(seed, num_classes, scale):
    logits, labels = random_logits(seed, 30, num_classes, scale)
    margins = margins_of(logits, labels)
    bound = GROWTHS["brier"].bound(margins)
    chosen = torch.tensor(list(itertools.product((0.0, torch.inf), repeat=num_classes)), dtype=torch.float64)
    lowered = (logits[:, None] - chosen).scatter(2, labels[:, None, None].expand(-1, len(chosen), 1), 0.0)
    lowered = lowered - logits.gather(1, labels[:, None])[:, None]
    lowered = lowered.scatter(2, labels[:, None, None].expand(-1, len(chosen), 1), 0.0)
    values = [
        get_loss("brier").per_example(rows, label.expand(len(rows)))
        for rows, label in zip(lowered, labels, strict=True)
    ]
    torch.testing.assert_close(bound, torch.stack(values).amax(dim=1), rtol=1e-12, atol=1e-14)
    fall = -5.0 * torch.rand(200, *logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for step in fall.scatter(2, labels[None, :, None].expand(200, -1, 1), 0.0):
        assert torch.all(get_loss("brier").per_example(logits + step, labels) <= bound + 1e-12)


@pytest.mark.parametrize("loss", sorted(GROWTHS))
@settings(max_examples=settings().max_examples * 2 // 5, deadline=None)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(2, 6), order=st.sampled_from([1, 2]))
def test_the_hull_lies_above_every_perturbation(loss, seed, num_classes, order):
    """Perturb the margins by up to distance * speed each; the hull of the bounding points is never exceeded."""
    growth = GROWTHS[loss]
    logits, labels = random_logits(seed, 30, num_classes, 3.0)
    margins = margins_of(logits, labels)
    speeds = torch.rand(30, num_classes, dtype=torch.float64).scatter(1, labels[:, None], 0.0)
    losses = get_loss(loss).per_example(logits, labels)
    points = bounding_points(growth, margins, speeds, losses, order=order)
    ends = reach(margins, speeds, growth, growth.saturation)
    for share in (1e-4, 1e-3, 0.01, 0.1, 0.3, 0.6, 0.9, 0.999, 1.1):
        distance = share * ends
        moved = logits + distance[:, None] * speeds
        value = get_loss(loss).per_example(moved, labels)
        for row in range(30):
            costs = torch.cat([torch.zeros(1, dtype=torch.float64), points.costs[row]]).numpy()
            heights = torch.cat([losses[row : row + 1], points.losses[row]]).numpy()
            # The hull at a cost: the least line above all points, over all slopes through pairs; by its dual.
            cost = float(distance[row]) ** order
            slopes = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 400)])
            hull = (slopes * cost + (heights - slopes[:, None] * costs).max(axis=1)).min()
            assert float(value[row]) <= hull + 1e-9


@pytest.mark.parametrize("loss", CURVED)
def test_gradients_are_those_of_autograd(loss):
    logits, labels = random_logits(3, 40, 4, 2.0)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(smooth(loss, logits, labels).sum(), logits)
    torch.testing.assert_close(GRADIENTS[loss](logits.detach(), labels), expected)


def test_reach_is_the_distance_from_below():
    growth = GROWTHS["cross_entropy"]
    margins = torch.tensor([[-torch.inf, -3.0, 1.0], [-torch.inf, 20.0, 0.0], [-torch.inf, 0.0, 0.0]]).double()
    speeds = torch.tensor([[0.0, 2.0, 0.5], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]).double()
    distances = reach(margins, speeds, growth, growth.saturation)
    reached = torch.logsumexp(margins[0] + distances[0] * speeds[0], 0)
    assert float(reached) == pytest.approx(np.log(np.expm1(10.0)), rel=1e-12)
    assert float(reached) <= growth.saturation
    assert distances[1:].tolist() == [0.0, np.inf]
