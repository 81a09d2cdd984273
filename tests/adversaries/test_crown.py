"""Local bounds against the exact distance by enumeration, against attacks, and against global constants."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protocol.models import build_model
from riskband.adversaries import LipschitzAdversary
from riskband.adversaries.bounds.crown import AUTO_WORK, is_cheap, local_distances, local_network
from riskband.adversaries.bounds.lipschitz import SequentialLayers
from riskband.adversaries.bounds.relu_cells import relu_cells
from riskband.adversaries.registry import builder
from riskband.checks import RefusedError
from riskband.models.group_sort import GroupSort
from tests.adversaries.nets import EXPONENTS, batch_of, logits_of, mlp, padded_cnn, seeded
from tests.transport import input_problem

NORMS = ["l1", "l2", "linf"]
DUALS = {"l1": np.inf, "l2": 2, "linf": 1}


def certified(model, batch, *, norm, method, order=1):
    adversary = LipschitzAdversary(model, input_problem("zero_one", order, norm), method=method)
    return adversary.examine(batch).bounding.costs[:, 0]


def reached(model, batch, *, norm):
    return builder("min-norm")(model, input_problem("zero_one", 1, norm)).examine(batch).flip_costs


def distance_by_enumeration(model, x, label, *, norm):
    """The nearest point at which a rival is not below the label: a convex program on every cell of a ReLU network."""
    layers = SequentialLayers(model, x.shape)
    nearest = np.inf
    for cell in relu_cells(layers.body, layers.x_shape):
        logits = logits_of(model, cell.point[None])[0]
        jacobian = (layers.head @ cell.jacobian).numpy()
        for rival in np.delete(np.arange(len(logits)), label):
            point = cp.Variable(len(x))
            pull = jacobian[rival] - jacobian[label]
            margin = logits[rival] - logits[label] + pull @ (point - cell.point)
            problem = cp.Problem(
                cp.Minimize(cp.norm(point - x, EXPONENTS[norm])), [cell.rows @ point + cell.offsets >= 0, margin >= 0]
            )
            problem.solve(solver=cp.CLARABEL)
            nearest = min(nearest, problem.value) if problem.status == "optimal" else nearest
    return nearest


@pytest.mark.parametrize(
    ("norm", "seeds"),
    [("l2", [1]), *(pytest.param(norm, range(3), marks=pytest.mark.slow) for norm in NORMS)],
)
def test_never_above_the_exact_distance_of_a_small_network_and_near_it(norm, seeds):
    shares = []
    for seed in seeds:
        model = mlp(2, 4, 3, 3, seed=seed)
        x = np.random.default_rng(seed).normal(size=(2, 2)).astype(np.float32)
        batch = batch_of(model, x)
        found = certified(model, batch, norm=norm, method="local")
        for row, label, distance in zip(x.astype(float), batch.labels.tolist(), found.tolist(), strict=True):
            truth = distance_by_enumeration(model, row, label, norm=norm)
            assert 0.0 < distance <= truth * (1 + 1e-6)
            shares.append(distance / truth if np.isfinite(truth) else 1.0)
    assert np.median(shares) > 0.8


@pytest.mark.parametrize("norm", NORMS)
def test_of_a_linear_model_the_distance_is_exact(norm):
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Linear(5, 4)))
    batch = batch_of(model, np.random.default_rng(0).normal(size=(9, 2, 3)))
    weight = (model[2].weight @ model[1].weight).detach().double().numpy()
    logits = logits_of(model, batch.x)
    for row, label, found in zip(
        logits, batch.labels.tolist(), certified(model, batch, norm=norm, method="local").tolist(), strict=True
    ):
        others = np.delete(np.arange(4), label)
        speeds = np.linalg.norm(weight[others] - weight[label], ord=DUALS[norm], axis=1)
        assert found == pytest.approx(np.min((row[label] - row[others]) / speeds), rel=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=settings().max_examples // 13)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, "leaky", "pools"]))
def test_no_attack_comes_nearer_and_constants_alone_say_less(norm, seed, kind):
    rng = np.random.default_rng(seed)
    if kind == "pools":
        model, x = padded_cnn(seed), rng.normal(size=(12, 2, 6, 6))
    else:
        activation = (lambda: nn.LeakyReLU(rng.choice([-0.5, 0.3, 1.7]))) if kind == "leaky" else kind
        model, x = mlp(4, 12, 12, 3, seed=seed, activation=activation), rng.normal(size=(12, 4))
    batch = batch_of(model, x)
    found = certified(model, batch, norm=norm, method="local")
    alone = certified(model, batch, norm=norm, method="product")
    if kind is not nn.Sigmoid:  # there attacks look beyond the largest float32, where slopes vanish
        assert bool((found <= reached(model, batch, norm=norm) * (1 + 1e-6)).all())
    assert bool((found >= alone).all())
    torch.testing.assert_close(certified(model, batch, norm=norm, method="auto"), found)
    steps = torch.from_numpy(rng.normal(size=(100, *batch.x.shape)))
    lengths = torch.linalg.vector_norm(steps.flatten(2), ord=EXPONENTS[norm], dim=2)
    scale = (torch.where(torch.isfinite(found), found, 1.0) / lengths).reshape(
        *lengths.shape, *[1] * (batch.x.dim() - 1)
    )
    moved = logits_of(model, (batch.x.double() + scale * steps).flatten(0, 1)).argmax(axis=1)
    assert np.array_equal(moved.reshape(100, -1), np.tile(batch.labels.numpy(), (100, 1)))


def test_much_more_is_certified_of_a_convolutional_network():
    model = build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=0)
    batch = batch_of(model, np.random.default_rng(0).random((6, 1, 8, 8)))
    found, alone = (certified(model, batch, norm="linf", method=method) for method in ("auto", "product"))
    assert float((found / alone).min()) > 2.0
    assert bool((found <= reached(model, batch, norm="linf")).all())


def test_mistakes_and_ties_have_no_distance_and_order_two_squares_it():
    model = mlp(4, 6, 3)
    x = np.random.default_rng(0).normal(size=(5, 4))
    right = batch_of(model, x)
    wrong = batch_of(model, x, (right.labels + 1) % 3)
    assert certified(model, wrong, norm="l2", method="local").tolist() == [0.0] * 5
    once = certified(model, right, norm="l2", method="local")
    torch.testing.assert_close(certified(model, right, norm="l2", method="local", order=2), once.square())


def test_slack_and_drift_are_taken_off_every_margin():
    model = mlp(3, 8, 2)
    batch = batch_of(model, np.random.default_rng(0).normal(size=(6, 3)))
    network = local_network(SequentialLayers(model, (3,)))
    tiny = torch.where(torch.nn.functional.one_hot(batch.labels, 2) == 1, torch.inf, 1e-6).double()

    def distances(slack, drift=0.0):
        amounts = torch.full((6, 1), slack).double()
        rates = torch.full((6, 2), drift).double()
        return local_distances(network, batch.x, batch.labels, norm="l2", slack=amounts, drift=rates, reach=tiny)

    gap = (batch.logits.amax(dim=1) - batch.logits.amin(dim=1)).min()
    assert bool((distances(0.3 * float(gap)) < distances(0.0)).all())
    assert bool((distances(0.0, 0.3) < distances(0.0)).all())
    for least in (distances(1e9), distances(0.0, 1e9)):
        torch.testing.assert_close(least, torch.full((6,), 1e-6).double())


def test_sizes_alone_decide_what_is_cheap():
    for model, shape in (
        (mlp(4, 6, 3), (4,)),
        (padded_cnn(), (2, 6, 6)),
        (build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=0), (1, 8, 8)),
        (mlp(200, 200, 200, 200, 3), (200,)),
        (mlp(700, 700, 700, 3), (700,)),
    ):
        layers = SequentialLayers(model, shape)
        assert is_cheap(layers) == (local_network(layers).work <= AUTO_WORK)
    assert not is_cheap(layers)
    # Terabytes if it were unrolled.
    images = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert not is_cheap(SequentialLayers(images, (3, 224, 224)))
    wide = mlp(3 * 224 * 224, 2, 2)  # few weights, but as many unit vectors as inputs
    assert not is_cheap(SequentialLayers(wide, (3 * 224 * 224,)))
    with pytest.raises(RefusedError, match="at most 4096 inputs of the network and its affine layers, got 150528"):
        local_network(SequentialLayers(wide, (3 * 224 * 224,)))
    # The product of all three is small, that of the first two is not.
    narrow = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )
    with pytest.raises(RefusedError, match=f"when unrolled, got {1024 * 64 * 1024}"):
        local_network(SequentialLayers(narrow, (1, 32, 32)))


def test_terms_that_cancel_between_affine_layers_are_carried_along():
    """Rounding in a product of matrices is a share of |A||B|, not of |AB|."""
    model = mlp(3, 5, 4, 6, 2)
    del model[1], model[4]  # two affine layers, a ReLU, and two more
    network = local_network(SequentialLayers(model, (3,)))
    weights, biases = (
        [getattr(model[i], name).detach().double().numpy() for i in (0, 1, 3, 4)] for name in ("weight", "bias")
    )
    for stage, first, second in ((network.stages[0], 0, 1), (network.stages[1], 2, 3)):
        for found, sign in ((stage.matrix, lambda values: values), (stage.terms, np.abs)):
            np.testing.assert_allclose(found, sign(weights[second]) @ sign(weights[first]), rtol=1e-12)
        for found, sign in ((stage.offset, lambda values: values), (stage.offset_terms, np.abs)):
            np.testing.assert_allclose(
                found, sign(weights[second]) @ sign(biases[first]) + sign(biases[second]), rtol=1e-12
            )
    assert bool((network.stages[0].matrix.abs() < 0.5 * network.stages[0].terms).any())


def test_what_is_too_large_or_unknown_falls_back_or_is_refused():
    wide = seeded(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    )
    smooth, sorts = (
        seeded(lambda bend=bend: nn.Sequential(nn.Linear(4, 4), bend(), nn.Linear(4, 2)))
        for bend in (nn.GELU, GroupSort)
    )
    for model, shape, message in (
        (wide, (1, 40, 40), "at most 4194304 weights when unrolled, got 9241600"),
        (smooth, (4,), "known for affine layers, .* got GELU; use the method 'auto' or 'product'"),
        (sorts, (4,), "got GroupSort"),
    ):
        batch = batch_of(model, np.random.default_rng(0).normal(size=(3, *shape)))
        with pytest.raises(RefusedError, match=message):
            certified(model, batch, norm="linf", method="local")
        alone = certified(model, batch, norm="linf", method="product")
        assert torch.equal(certified(model, batch, norm="linf", method="auto"), alone)
