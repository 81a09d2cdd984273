"""Attacks on linear models against closed forms and cvxpy; attacks of every kind against each other."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.pgd import Pgd
from riskband.adversaries.attacks.witness import Witness
from riskband.adversaries.names import INPUT_ADVERSARIES
from riskband.adversaries.registry import builder
from tests.adversaries.nets import batch_of, mlp
from tests.adversaries.test_exact import COSTS, DoubleLinear, nearest_boundary_points, problem
from tests.adversaries.test_inputs import examples_of, small_net, witness_of
from tests.adversaries.transports import EXPONENTS, best_transports, losses_at
from tests.sampling import every
from tests.transport import curves_of, input_problem

DUALS = {"l1": np.inf, "l2": 2, "linf": 1}
RADII = np.linspace(0.0, 3.0, 25)


def flip_distances(weight, bias, x, y, norm):
    """Closed form: margin over the dual norm of the difference of rows, least over the other classes."""
    logits = x @ weight.T + bias
    found = []
    for row, label in zip(logits, y, strict=True):
        speeds = np.linalg.norm(weight - weight[label], ord=DUALS[norm], axis=1)
        found.append(min(max(row[label] - row[j], 0.0) / speeds[j] for j in range(len(weight)) if j != label))
    return np.array(found)


def knapsack(costs, radii):
    """Share of unit masses that a mean budget flips, the cheapest first, the last one in part."""
    costs = np.sort(costs) / len(costs)
    spent = np.concatenate([[0.0], np.cumsum(costs)])
    return np.array(
        [np.max([k + (r - spent[k]) / costs[k] for k in range(len(costs)) if spent[k] <= r < spent[k + 1]] or
                [len(costs) if r >= spent[-1] else 0]) / len(costs) for r in radii]
    )  # fmt: skip


@pytest.mark.parametrize(("order", "norm"), COSTS)
@pytest.mark.parametrize("adversary", ["min-norm", "wda-knapsack", "wc-dg"])
def test_flips_of_linear_models_are_exact(order, norm, adversary):
    model, weight, bias, x, y = problem(seed=3, num_examples=25, num_features=6, num_classes=5)
    costs = flip_distances(weight, bias, x, y, norm) ** order
    assert costs[0] == 0.0  # one example is misclassified as it is
    curves = curves_of(model, x, y, loss="zero_one", order=order, norm=norm, space="input", adversary=adversary)
    np.testing.assert_allclose(curves.values(RADII)[0], knapsack(costs, RADII), atol=1e-5)
    assert curves.adversarial_unit == pytest.approx(costs.mean(), rel=1e-5)


@pytest.mark.parametrize("adversary", every("adversary", INPUT_ADVERSARIES))
def test_every_adversary_brackets_the_truth_of_a_linear_model(adversary):
    """Attacks find all flips within the largest budget; where a bound is proved, it is exact there."""
    _, weight, bias, x, y = problem(seed=3, num_examples=4, num_features=3, num_classes=3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(weight))
        model[0].bias.copy_(torch.from_numpy(bias))
    truth = knapsack(flip_distances(weight, bias, x, y, "l2"), RADII)
    settings = {"loss": "zero_one", "order": 1, "norm": "l2", "space": "input", "distances": (2.0,)}
    lower, upper = curves_of(model, x, y, adversary=adversary, **settings).values(RADII)
    assert np.all(lower <= truth + 1e-6)
    if INPUT_ADVERSARIES[adversary].proves:
        np.testing.assert_allclose(upper, truth, atol=1e-5)
    if adversary != "lipschitz":
        assert lower[0] == truth[0] < lower[1] < lower[-1] == 1.0


@pytest.mark.parametrize("norm", list(EXPONENTS))
def test_flips_of_linear_models_in_a_box_are_exact(norm):
    model, weight, bias, x, y = problem(seed=4, num_examples=8, num_features=5, num_classes=3)
    low, high = -0.5, 0.75
    x = x.clip(low, high)  # some entries can move one way only
    expected = []
    for row, label in zip(x, y, strict=True):
        lengths = []
        for other in set(range(3)) - {label}:
            point = cp.Variable(5)
            beats = (weight[other] - weight[label]) @ point + bias[other] - bias[label] >= 0
            task = cp.Problem(cp.Minimize(cp.norm(point - row, EXPONENTS[norm])), [beats, point >= low, point <= high])
            task.solve(solver=cp.CLARABEL)
            lengths.append(task.value if task.status == "optimal" else np.inf)
        expected.append(min(lengths))
    expected = np.array(expected)
    free = [
        np.linalg.norm(nearest_boundary_points(weight, bias, row, label, norm=norm) - row, EXPONENTS[norm], axis=1)
        for row, label in zip(x, y, strict=True)
    ]
    assert np.any(np.min(free, axis=1) < expected - 1e-3)  # the box is in the way
    curves = curves_of(
        model, x, y, loss="zero_one", order=1, norm=norm, space="input", adversary="min-norm", box=(low, high)
    )
    reached = expected[np.isfinite(expected)]
    assert curves.adversarial_unit == pytest.approx(reached.mean(), rel=1e-4)
    assert curves.values([1e3])[0][0] == pytest.approx(len(reached) / len(x))


@pytest.mark.parametrize("norm", list(EXPONENTS))
@pytest.mark.parametrize("objective", ["margin", "cross_entropy"])
@pytest.mark.parametrize("loss", ["margin", "cross_entropy", "brier"])
def test_pgd_on_two_classes_attains_the_worst_loss_in_every_ball(norm, objective, loss):
    rng = np.random.default_rng(6)
    weight, bias = rng.normal(size=(2, 4)), rng.normal(size=2)
    x = rng.normal(size=(6, 4)).astype(np.float32)
    y = rng.integers(2, size=6)
    distances = (0.1, 0.4, 1.0)
    attack = Pgd(DoubleLinear(weight, bias), input_problem(loss, 1, norm, distances=distances), objective=objective)
    witness = witness_of(attack.model, x, y, loss=loss, norm=norm, box=None)
    attack.perturb(witness)
    points = witness.points()
    speed = np.linalg.norm(weight[1] - weight[0], ord=DUALS[norm])
    for row, label in enumerate(y):
        margin = (x[row] @ weight.T + bias)[[1 - label, label]] @ [1.0, -1.0]
        for distance in distances:
            worst = losses_at(loss, np.array([[0.0, margin + distance * speed]]), 0)[0]
            within = points.losses[row][points.costs[row] <= distance]
            assert within.max().item() == pytest.approx(worst, abs=1e-5)


@pytest.mark.parametrize(
    "loss", ["margin", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("cross_entropy", "brier"))]
)
@pytest.mark.parametrize(
    ("order", "norm"), [pytest.param(*cost, marks=[pytest.mark.slow] if cost[1] != "l2" else []) for cost in COSTS]
)
def test_attacks_come_close_to_exact_and_stay_below_what_is_proven(loss, order, norm):
    """A linear model's inputs are its representations: there bounds are proven."""
    model, _, _, x, y = problem(seed=8, num_examples=6, num_features=4, num_classes=3)
    lower, upper = curves_of(model, x, y, loss=loss, order=order, norm=norm).values(RADII)
    for adversary in ("pgd", "wc-dg", "wda", "min-norm", "wda-knapsack"):
        curves = curves_of(model, x, y, loss=loss, order=order, norm=norm, space="input", adversary=adversary)
        attained = curves.values(RADII)[0]
        assert np.all(attained <= upper + 1e-9)
    assert np.all(attained >= lower - (1e-4 if loss == "margin" and order == 1 else 0.02))


@pytest.mark.slow
def test_brier_in_the_plane_is_the_best_of_all_transports():
    """Brute force: a linear program over all transports to a grid on the box."""
    net = small_net(11)
    x, y = examples_of(net, 11, num_examples=4)
    ticks = np.linspace(-1.0, 1.0, 41)
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2).astype(np.float32)
    targets = np.concatenate([x, grid])
    logits = net.eval()(torch.from_numpy(targets)).double().detach().numpy()
    costs = np.linalg.norm(targets[None].astype(float) - x[:, None], axis=2)
    losses = np.stack([losses_at("brier", logits, label) for label in y])
    radii = [0.0, 0.1, 0.3, 0.6, 1.0]
    truth = best_transports(costs, losses, radii)
    attained = curves_of(net, x, y, loss="brier", order=1, space="input", box=(-1, 1)).values(radii)[0]
    np.testing.assert_allclose(attained, truth, atol=0.01)


@pytest.mark.parametrize("loss", ["zero_one", "abstain:0.8"])
def test_misclassified_examples_and_flat_models_are_left_where_they_are(loss):
    model = DoubleLinear(np.zeros((3, 4)), np.array([1.0, 0.0, 0.0]))
    x, y = np.zeros((4, 4)), np.array([0, 0, 1, 2])
    curves = curves_of(model, x, y, loss=loss, order=1, space="input")
    assert curves.values([0.0, 10.0])[0].tolist() == pytest.approx([curves.clean_risk] * 2)
    assert curves.adversarial_unit == 0.0


def test_many_classes_are_attacked_at_the_likeliest_rivals():
    model, weight, bias, x, y = problem(seed=13, num_examples=6, num_features=8, num_classes=40)
    batch = batch_of(model, x, y)
    witness = Witness(model, batch, input_problem("zero_one", 1, "l2"))
    assert witness.rivals.shape == (9, 6)
    wrong = np.where(np.eye(40)[y] == 1, -np.inf, batch.logits.numpy())
    assert np.array_equal(np.sort(witness.rivals.numpy().T), np.sort(np.argsort(-wrong, axis=1)[:, :9]))
    attack = builder("min-norm")(model, input_problem("zero_one", 1, "l2"))
    attack.perturb(witness)
    exact = flip_distances(weight, bias, x, y, "l2")
    assert np.all(witness.distances.numpy() >= exact - 1e-6)
    assert np.median(witness.distances.numpy() - exact) < 0.06


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_slides_find_nearer_flips_than_the_linear_steps_before_them_and_never_lose_one(norm):
    net = mlp(20, 60, 60, 10, seed=0)
    x = np.random.default_rng(2).uniform(-1.0, 1.0, (40, 20)).astype(np.float32)
    y = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    asked = input_problem("zero_one", 1, norm, box=(-1.0, 1.0))
    distances = []
    for num_slides in (1, 20):
        witness = witness_of(net, x, y, norm=norm)
        MinNorm(net, asked, num_slides=num_slides).perturb(witness)
        distances.append(witness.distances)
    before, after = distances
    assert bool((after <= before * (1.0 + 1e-3)).all())
    assert float((after < 0.9999 * before).double().mean()) > 0.2
    assert float(after.mean()) < 0.995 * float(before.mean())
