"""What holds for every adversary: pooling, batches, guarantees, and the refusal of evidence that contradicts itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from riskband.adversaries import Adversary, Batch, Evidence, Points
from riskband.adversaries.curves import concave_pieces
from riskband.adversaries.problem import TransportProblem
from riskband.answers.concave_curves import ConcaveCurve, network_curve
from tests.adversaries.test_exact import COSTS, problem
from tests.transport import curves_of


def batch_of(losses):
    losses = torch.tensor(losses, dtype=torch.float64)
    labels = torch.zeros(len(losses), dtype=torch.int64)
    return Batch(x=torch.zeros(len(losses), 1), labels=labels, logits=torch.zeros(len(losses), 2), losses=losses)


def points_of(costs, losses):
    return Points(torch.tensor(costs, dtype=torch.float64), torch.tensor(losses, dtype=torch.float64))


class Reporting(Adversary):
    """Reports the evidence it was made with."""

    def __init__(self, *evidence):
        self.evidence = iter(evidence)

    def examine(self, batch):
        return next(self.evidence)


FLIPS = torch.tensor([0.5, torch.inf], dtype=torch.float64)
ATTAINED = points_of([[0.5, 1.0], [2.0, torch.inf]], [[0.5, 0.6], [0.8, 0.0]])
ABOVE = points_of([[0.4, 1.0], [1.0, 3.0]], [[0.6, 0.7], [0.8, 1.0]])


def test_the_guarantee_follows_from_the_evidence():
    exact = Reporting(Evidence(ATTAINED, ATTAINED, FLIPS)).curves([batch_of([0.1, 0.2])])
    upper = Reporting(Evidence(ATTAINED, ABOVE, FLIPS)).curves([batch_of([0.1, 0.2])])
    lower = Reporting(Evidence(ATTAINED, None, FLIPS)).curves([batch_of([0.1, 0.2])])
    assert [curves.guarantee for curves in (exact, upper, lower)] == ["exact", "upper", "lower"]
    radii = [0.0, 0.3, 2.0]
    np.testing.assert_array_equal(exact.values(radii)[0], exact.values(radii)[1])
    np.testing.assert_array_equal(upper.values(radii)[0], exact.values(radii)[0])
    np.testing.assert_array_equal(lower.values(radii)[0], exact.values(radii)[0])
    assert upper.values(radii)[1][0] == upper.values(radii)[0][0]  # without a budget nothing moves
    # An attack proves nothing: its upper values are 1, which always holds.
    assert lower.values(radii)[1].tolist() == [1.0, 1.0, 1.0]
    assert lower.conjugates([0.0, 9.0])[1].tolist() == [1.0, 1.0]
    assert exact.adversarial_unit == 0.5  # over the examples that can be flipped


def test_a_supremum_bounds_values_and_larger_multipliers():
    evidence = Evidence(ATTAINED, ABOVE, FLIPS, {0.2: torch.tensor([0.5, 0.56], dtype=torch.float64)})
    without = Reporting(Evidence(ATTAINED, ABOVE, FLIPS)).curves([batch_of([0.1, 0.2])])
    curves = Reporting(evidence).curves([batch_of([0.1, 0.2])])
    radii = np.array([0.1, 1.0, 3.0])
    np.testing.assert_allclose(curves.values(radii)[1], np.minimum(without.values(radii)[1], 0.2 * radii + 0.53))
    assert without.conjugates([0.21])[1][0] > 0.53
    np.testing.assert_allclose(curves.conjugates([0.1, 0.2, 0.21])[1], [without.conjugates([0.1])[1][0], 0.53, 0.53])


def test_a_bound_below_what_was_attained_is_refused():
    wrong = points_of([[0.4, 1.0], [1.0, 3.0]], [[0.2, 0.2], [0.3, 0.3]])
    curves = Reporting(Evidence(ATTAINED, wrong, FLIPS)).curves([batch_of([0.1, 0.2])])
    with pytest.raises(RuntimeError, match="the bound is wrong"):
        curves.values([2.0])
    with pytest.raises(RuntimeError, match="the bound is wrong"):
        curves.conjugates([0.0])


@pytest.mark.parametrize(
    "points",
    [
        points_of([[-0.1], [0.0]], [[0.5], [0.5]]),
        points_of([[torch.nan], [0.0]], [[0.5], [0.5]]),
        points_of([[0.1], [0.0]], [[1.5], [0.5]]),
        points_of([[0.1], [0.0]], [[torch.nan], [0.5]]),
        points_of([[0.1], [0.0]], [[0.5, 0.5], [0.5, 0.5]]),
    ],
)
def test_points_that_cannot_be_are_refused(points):
    with pytest.raises(RuntimeError, match="an adversary must report"):
        Reporting(Evidence(points, None, FLIPS)).curves([batch_of([0.1, 0.2])])


def test_one_guarantee_holds_for_all_examples():
    mixed = Reporting(Evidence(ATTAINED, ABOVE, FLIPS), Evidence(ATTAINED, None, FLIPS))
    with pytest.raises(RuntimeError, match="one guarantee"):
        mixed.curves([batch_of([0.1, 0.2])] * 2)


points = st.tuples(st.just(0.0) | st.floats(1e-6, 10), st.floats(0, 1))
rows = st.lists(st.lists(points, min_size=3, max_size=3), min_size=1, max_size=5)


@given(rows, st.floats(0, 1))
def test_pooled_hulls_are_riskbands_network_of_single_curves(examples, clean):
    """A second way: each example's hull by brute force over chords, shared out by `network_curve`."""
    points = Points(
        torch.tensor([[c for c, _ in row] for row in examples], dtype=torch.float64),
        torch.tensor([[v for _, v in row] for row in examples], dtype=torch.float64),
    )
    batch = batch_of([clean] * len(examples))
    curves = Reporting(Evidence(points, None, torch.zeros(len(examples)))).curves([batch])
    singles = []
    for row in examples:
        known = [(0.0, clean), *row]
        knots = sorted({0.0, *(cost for cost, _ in row)})
        heights = [
            max(
                v if x == c else v + (w - v) * (x - c) / (d - c)
                for c, v in known
                for d, w in known
                if (c == x == d and v == w) or (c <= x <= d and c < d)
            )
            for x in knots
        ]
        reached = [max(v for c, v in known if c <= x) for x in knots]
        heights = np.maximum.accumulate(np.maximum(heights, reached))
        singles.append(ConcaveCurve(np.array(knots), heights))
    radii = np.linspace(0.0, 10.0, 30)
    np.testing.assert_allclose(curves.values(radii)[0], network_curve(singles)(radii), atol=1e-7)


def test_pieces_are_cut_at_loss_1():
    start, runs, rises = concave_pieces(torch.tensor([0.5]).double(), points_of([[1.0, 3.0]], [[0.8, 1.2]]))
    assert start.tolist() == [0.5]
    assert runs.tolist() == pytest.approx([1.0, 1.0])
    assert rises.tolist() == pytest.approx([0.3, 0.2])


@pytest.mark.parametrize(
    "loss", ["zero_one", "margin", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("cross_entropy", "brier"))]
)
@pytest.mark.parametrize(("order", "norm"), COSTS)
def test_batches_do_not_change_the_answer(loss, order, norm):
    model, _, _, z, y = problem(seed=9, num_examples=23)
    whole = curves_of(model, z, y, loss=loss, order=order, norm=norm)
    parts = curves_of(model, z, y, loss=loss, order=order, norm=norm, batch_size=4)
    radii, multipliers = np.linspace(0, 3, 20), np.geomspace(0.01, 5.0, 9)
    np.testing.assert_allclose(whole.values(radii), parts.values(radii), atol=1e-12)
    np.testing.assert_allclose(whole.conjugates(multipliers), parts.conjugates(multipliers), atol=1e-12)
    assert (parts.clean_risk, parts.num_examples) == (pytest.approx(whole.clean_risk), 23)


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor with more than one dimension that any operation returned."""

    def __init__(self, examples):
        super().__init__()
        self.shape, self.size = examples.shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            # But for the client's examples themselves.
            if isinstance(tensor, torch.Tensor) and tensor.ndim > 1 and tensor.shape != self.shape:
                self.size = max(self.size, tensor.numel())
        return out


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["zero_one", pytest.param("cross_entropy", marks=pytest.mark.slow)])
def test_memory_is_bounded_by_the_batch_size(loss):
    model, _, _, z, y = problem(seed=10, num_examples=300)
    with LargestTensor(z) as whole:
        curves_of(model, z, y, loss=loss, order=2, batch_size=300)
    with LargestTensor(z) as parts:
        curves_of(model, z, y, loss=loss, order=2, batch_size=16)
    assert parts.size * 300 == whole.size * 16


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"loss": "hinge"}, "loss must be one of"),
        ({"order": 3}, "order must be one of 1, 2, got 3"),
        ({"norm": "l3"}, "norm must be one of l1, l2, linf, got 'l3'"),
        ({"order": 2, "norm": "linf"}, "norm must be 'l2' when order is 2"),
        ({"adversary": "pgd"}, "adversary must be one of auto, exact, ascent, got 'pgd'"),
        ({"adversary": "exact", "loss": "brier"}, "no exact adversary for the loss 'brier'"),
        ({"adversary": "exact", "loss": "margin", "order": 2}, "no exact adversary for the loss 'margin'"),
        ({"adversary": "ascent"}, "needs a loss with slopes, got 'zero_one'"),
        ({"space": "pixels"}, "space must be one of representation, input, layer:NAME, got 'pixels'"),
    ],
)
def test_what_does_not_exist_is_refused(change, rule):
    with pytest.raises(ValueError, match=rule):
        TransportProblem(**({"loss": "zero_one", "order": 1, "norm": "l2", "adversary": "auto"} | change))


def test_ascent_on_a_loss_with_an_exact_adversary_agrees_with_it():
    model, _, _, z, y = problem(seed=11)
    exact = curves_of(model, z, y, loss="margin", order=1)
    ascent = curves_of(model, z, y, loss="margin", order=1, adversary="ascent")
    radii = np.linspace(0, 3, 20)
    assert ascent.guarantee == "upper"
    np.testing.assert_allclose(ascent.values(radii), exact.values(radii), atol=1e-9)
