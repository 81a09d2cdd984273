"""Certificates in input space: exact for linear models, above every attack for others, refused where unknown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from client.adversaries import (
    INPUT_ADVERSARIES,
    InputProblem,
    LipschitzAdversary,
    SandwichAdversary,
    adversarial_curves,
    margin_constants,
)
from client.adversaries.inputs import client_curves
from client.adversaries.lipschitz import certified_distances
from client.evaluation import mean_loss
from client.questions import RefusedError
from tests.client.adversaries.nets import EXPONENTS, logits_of, mlp, seeded
from tests.client.adversaries.transports import best_transports, cost_matrix, losses_at

COSTS = [(1, "l1"), (1, "l2"), (1, "linf"), (2, "l2")]
RADII = np.array([0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 5.0])
LOSSES = ["zero_one", "margin", "cross_entropy", "brier"]
DUALS = {"l1": np.inf, "l2": 2, "linf": 1}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As in clients: with small tensors, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem(num_inputs=3, num_classes=4, num_examples=12, seed=0):
    """A linear model and examples of which most are right."""
    model = seeded(lambda: nn.Linear(num_inputs, num_classes), seed)
    x = np.random.default_rng(seed).normal(size=(num_examples, num_inputs)).astype(np.float32)
    y = logits_of(model, x).argmax(axis=1)
    y[0] = (y[0] + 1) % num_classes
    return model, x, y


def curves_of(adversary, model, x, y, loss):
    return client_curves(adversary, model, x, y, loss=loss)


def closed_form_knapsack(model, x, y, radii, *, order, norm):
    """Worst 0-1 risk of a linear model: distances |margin| / ||w_j - w_y||, bought from the cheapest on."""
    logits, weight = logits_of(model, x), model.weight.detach().double().numpy()
    costs = []
    for row, label in zip(logits, y, strict=True):
        others = np.delete(np.arange(len(row)), label)
        speeds = np.linalg.norm(weight[others] - weight[label], ord=DUALS[norm], axis=1)
        costs.append(np.max([0.0, np.min((row[label] - row[others]) / speeds)]) ** order)
    num_wrong = sum(cost == 0.0 for cost in costs)
    spent = np.cumsum(np.sort(costs))[max(num_wrong - 1, 0) :]
    return np.interp(radii * len(x), spent, np.arange(num_wrong, len(x) + 1)) / len(x)


@pytest.mark.parametrize(("order", "norm"), COSTS)
def test_for_a_linear_model_attack_truth_and_certificate_agree(order, norm):
    model, x, y = problem()
    question = {"loss": "zero_one", "order": order, "norm": norm}
    truth = closed_form_knapsack(model, x, y, RADII, order=order, norm=norm)
    sandwich = adversarial_curves(model, x, y, space="input", adversary="sandwich", **question)
    lower, upper = sandwich.values(RADII)
    assert sandwich.guarantee == "upper"
    np.testing.assert_allclose(lower, truth, atol=1e-5)
    np.testing.assert_allclose(upper, truth, atol=1e-5)
    exact = adversarial_curves(model, x, y, **question)  # representation space: the same space here
    np.testing.assert_allclose(exact.values(RADII)[0], truth, atol=1e-5)
    assert sandwich.adversarial_unit == pytest.approx(exact.adversarial_unit, rel=1e-4)


@pytest.mark.parametrize("loss", ["margin", "cross_entropy", "brier"])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_for_a_linear_model_the_bound_is_that_before_a_linear_head(loss, norm):
    model, x, y = problem(seed=1)
    certificate = adversarial_curves(model, x, y, loss=loss, order=1, norm=norm, space="input", adversary="lipschitz")
    before_head = adversarial_curves(model, x, y, loss=loss, order=1, norm=norm)
    np.testing.assert_allclose(certificate.values(RADII)[1], before_head.values(RADII)[1], atol=1e-5)


@pytest.mark.parametrize(("order", "norm"), COSTS)
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6))
def test_no_transport_exceeds_the_certificate_of_a_small_network(order, norm, loss, seed):
    """All transports to a cloud of points, by linear programming."""
    model = mlp(2, 4, 3, seed=seed)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5, 2)).astype(np.float32)
    y = logits_of(model, x).argmax(axis=1)
    y[0] = (y[0] + 1) % 3
    targets = np.concatenate([x, rng.normal(size=(60, 2)) * 10.0 ** rng.uniform(-1, 1.5, size=(60, 1))])
    costs = cost_matrix(x.astype(np.float64), targets, order=order, norm=norm)
    losses = np.stack([losses_at(loss, logits_of(model, targets), label) for label in y])
    attained = best_transports(costs, losses, RADII[1::2])
    question = {"loss": loss, "order": order, "norm": norm}
    for method in ("exact", "product"):
        certificate = LipschitzAdversary(model, InputProblem(**question), method=method)
        upper = curves_of(certificate, model, x, y, loss).values(RADII[1::2])[1]
        assert np.all(upper >= attained - 1e-7)
        assert np.all(np.diff(upper) >= 0.0)


@pytest.mark.parametrize("attack", ["pgd", "min-norm", "wda", "wda-knapsack", "wc-dg"])
@pytest.mark.parametrize("loss", ["zero_one", "cross_entropy"])
def test_every_attack_fits_into_a_sandwich(attack, loss):
    model = nn.Sequential(nn.Flatten(), mlp(8, 6, 3))
    x = np.random.default_rng(0).normal(size=(4, 2, 2, 2)).astype(np.float32)
    y = logits_of(model, x).argmax(axis=1)
    asked = InputProblem(loss, 1, "l2", multipliers=(0.1, 1.0))
    below = INPUT_ADVERSARIES[attack](model, asked)
    joined = curves_of(SandwichAdversary(below, LipschitzAdversary(model, asked)), model, x, y, loss)
    alone = curves_of(INPUT_ADVERSARIES[attack](model, asked), model, x, y, loss)
    certificate = curves_of(LipschitzAdversary(model, asked), model, x, y, loss)
    (lower, upper), prices = joined.values(RADII), (0.01, 0.1, 1.0)
    np.testing.assert_array_equal(lower, alone.values(RADII)[0])
    np.testing.assert_array_equal(upper[1:], certificate.values(RADII)[1][1:])
    assert np.all(lower <= upper)
    assert np.all(joined.conjugates(prices)[0] <= joined.conjugates(prices)[1])
    assert (alone.guarantee, certificate.guarantee, joined.guarantee) == ("lower", "upper", "upper")
    assert joined.adversarial_unit == alone.adversarial_unit


def test_a_certificate_alone_attains_the_plain_risk_only():
    model, x, y = problem()
    curves = adversarial_curves(model, x, y, loss="brier", order=1, space="input", adversary="lipschitz")
    plain, _ = mean_loss(model, x, y, loss="brier")
    lower, upper = curves.values(RADII)
    np.testing.assert_allclose(lower, plain, rtol=1e-12)
    assert upper[0] == lower[0]
    assert curves.adversarial_unit == 0.0


def test_exact_constants_certify_more_than_products_and_a_box_changes_nothing():
    model = mlp(2, 6, 3)
    x = np.random.default_rng(0).random(size=(20, 2)).astype(np.float32)
    y = logits_of(model, x).argmax(axis=1)
    uppers = [
        curves_of(
            LipschitzAdversary(model, InputProblem("zero_one", 1, "l2", box=box), method=method),
            model,
            x,
            y,
            "zero_one",
        ).values(RADII)[1]
        for method, box in (("exact", None), ("product", None), ("exact", (0.0, 1.0)))
    ]
    assert np.all(uppers[0] <= uppers[1])
    assert np.any(uppers[0] < uppers[1] - 0.05)
    np.testing.assert_array_equal(uppers[0], uppers[2])


def test_halved_constants_are_caught_by_an_attack():
    """Negative control: a certificate that is wrong by a factor of two contradicts what was attained."""

    class Halved(LipschitzAdversary):
        def geometry(self, batch):
            margins, speeds = super().geometry(batch)
            return margins, speeds / 2.0

    model, x, y = problem()
    asked = InputProblem("zero_one", 1, "l2")
    attack = INPUT_ADVERSARIES["min-norm"](model, asked)
    curves = curves_of(SandwichAdversary(attack, Halved(model, asked)), model, x, y, "zero_one")
    with pytest.raises(RuntimeError, match="the bound is wrong"):
        curves.values(RADII)


def test_distances():
    margins = torch.tensor(
        [[-2.0, -torch.inf, -1.0], [-1.0, -torch.inf, 0.5], [-1.0, -torch.inf, -1.0], [-1.0, -torch.inf, 0.5]]
    )
    speeds = torch.tensor([[1.0, 0.0, 4.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert certified_distances(margins, speeds).tolist() == [0.25, 0.0, torch.inf, 0.0]


def test_no_perturbation_within_the_certified_distance_flips_an_example():
    model = mlp(3, 5, 3)
    x = np.random.default_rng(0).normal(size=(40, 3))
    logits = logits_of(model, x)
    labels = logits.argmax(axis=1)
    margins = torch.from_numpy(np.where(np.eye(3)[labels] == 1, -np.inf, logits - logits.max(axis=1, keepdims=True)))
    for norm in ("l1", "l2", "linf"):
        speeds = margin_constants(model, (3,), norm=norm)[labels]
        distances = certified_distances(margins, speeds).numpy()
        steps = np.random.default_rng(1).normal(size=(200, 40, 3))
        steps *= (distances / np.linalg.norm(steps, ord=EXPONENTS[norm], axis=2))[..., None]
        moved = logits_of(model, (x + steps).reshape(-1, 3)).argmax(axis=1).reshape(200, 40)
        assert np.all(moved == labels)


def test_what_is_not_proved_is_refused():
    model, x, y = problem()
    question = {"order": 1, "space": "input", "adversary": "lipschitz"}
    with pytest.raises(RefusedError, match=r"zero_one, margin, cross_entropy, brier, got 'abstain:0\.5'"):
        adversarial_curves(model, x, y, loss="abstain:0.5", **question)
    with pytest.raises(RefusedError, match="got GELU"):
        adversarial_curves(nn.Sequential(nn.GELU(), model), x, y, loss="margin", **question)
    with pytest.raises(RefusedError, match="order must be 1 or 2, got 3"):
        LipschitzAdversary(model, InputProblem("zero_one", 3, "l2"))
    with pytest.raises(RefusedError, match="norm must be one of"):
        LipschitzAdversary(model, InputProblem("zero_one", 1, "l3"))
    with pytest.raises(RefusedError, match="method must be one of"):
        LipschitzAdversary(model, InputProblem("zero_one", 1, "l2"), method="best")
    asked = InputProblem("zero_one", 1, "l2")
    swapped = SandwichAdversary(LipschitzAdversary(model, asked), INPUT_ADVERSARIES["min-norm"](model, asked))
    with pytest.raises(RefusedError, match="must prove a bound, got MinNorm"):
        curves_of(swapped, model, x, y, "zero_one")


def test_sums_that_cancel_in_float32_prove_nothing():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(1e5)
        model[2].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[2].bias.copy_(torch.tensor([-1e5, 1e5]))
    x = np.linspace(-0.01, 0.01, 13, dtype=np.float32)[:, None]
    with pytest.raises(ValueError, match="normalise the inputs"):
        adversarial_curves(
            model, x, np.zeros(13, dtype=int), loss="zero_one", order=1, space="input", adversary="lipschitz"
        )


def test_a_negative_divisor_is_no_average():
    model = nn.Sequential(nn.AvgPool2d(2, divisor_override=-4), nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="average pools must divide"):
        margin_constants(model, (1, 4, 4), norm="linf")


def test_a_frozen_layer_stays_frozen():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    model[0].eval()
    adversarial_curves(model, np.zeros((5, 4), dtype=np.float32), np.zeros(5, dtype=int), loss="zero_one", order=1)
    assert [module.training for module in model.modules()] == [True, False, True]
