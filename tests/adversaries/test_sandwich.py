"""Certificates in input space: exact for linear models, above every attack for others, refused where unknown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from riskband.adversaries import (
    INPUT_ADVERSARIES,
    Batch,
    LipschitzAdversary,
    SandwichAdversary,
    margin_constants,
    wda_attack,
)
from riskband.adversaries.attacks.base import client_curves
from riskband.adversaries.bounds import sandwich
from riskband.adversaries.bounds.sandwich import class_distances
from riskband.adversaries.registry import builder
from riskband.checks import RefusedError
from riskband.models.evaluation import mean_loss
from tests.adversaries.nets import EXPONENTS, batch_of, logits_of, mlp, seeded
from tests.adversaries.transports import best_transports, cost_matrix, losses_at
from tests.transport import curves_of as all_curves_of
from tests.transport import input_problem

COSTS = [(1, "l1"), (1, "l2"), (1, "linf"), (2, "l2")]
RADII = np.array([0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 5.0])
LOSSES = ["zero_one", "margin", "cross_entropy", "brier"]
DUALS = {"l1": np.inf, "l2": 2, "linf": 1}


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
    sandwich = all_curves_of(model, x, y, space="input", adversary="sandwich", **question)
    lower, upper = sandwich.values(RADII)
    assert sandwich.guarantee == "upper"
    np.testing.assert_allclose(lower, truth, atol=1e-5)
    np.testing.assert_allclose(upper, truth, atol=1e-5)
    exact = all_curves_of(model, x, y, **question)  # representation space: the same space here
    np.testing.assert_allclose(exact.values(RADII)[0], truth, atol=1e-5)
    assert sandwich.adversarial_unit == pytest.approx(exact.adversarial_unit, rel=1e-4)


@pytest.mark.parametrize("loss", ["margin", "cross_entropy", "brier"])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_for_a_linear_model_the_bound_is_that_before_a_linear_head(loss, norm):
    model, x, y = problem(seed=1)
    certificate = all_curves_of(model, x, y, loss=loss, order=1, norm=norm, space="input", adversary="lipschitz")
    before_head = all_curves_of(model, x, y, loss=loss, order=1, norm=norm)
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
        certificate = LipschitzAdversary(model, input_problem(**question), method=method)
        upper = curves_of(certificate, model, x, y, loss).values(RADII[1::2])[1]
        assert np.all(upper >= attained - 1e-7)
        assert np.all(np.diff(upper) >= 0.0)


@pytest.mark.parametrize("attack", ["pgd", "min-norm", "wda", "wda-knapsack", "wc-dg"])
@pytest.mark.parametrize("loss", ["zero_one", "cross_entropy"])
def test_every_attack_fits_into_a_sandwich(attack, loss):
    model = nn.Sequential(nn.Flatten(), mlp(8, 6, 3))
    x = np.random.default_rng(0).normal(size=(4, 2, 2, 2)).astype(np.float32)
    y = logits_of(model, x).argmax(axis=1)
    asked = input_problem(loss, 1, "l2")
    below = builder(attack)(model, asked)
    joined = curves_of(SandwichAdversary(below, LipschitzAdversary(model, asked)), model, x, y, loss)
    alone = curves_of(builder(attack)(model, asked), model, x, y, loss)
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
    curves = all_curves_of(model, x, y, loss="brier", order=1, space="input", adversary="lipschitz")
    plain, _ = mean_loss(model, x, y, loss="brier")
    lower, upper = curves.values(RADII)
    np.testing.assert_allclose(lower, plain, rtol=1e-12)
    assert lower[0] <= upper[0] <= lower[0] + 1e-5
    assert curves.adversarial_unit == 0.0


def test_exact_constants_certify_more_than_products_and_a_box_changes_nothing():
    model = mlp(2, 6, 3)
    x = np.random.default_rng(0).random(size=(20, 2)).astype(np.float32)
    y = logits_of(model, x).argmax(axis=1)
    uppers = [
        curves_of(
            LipschitzAdversary(model, input_problem("zero_one", 1, "l2", box=box), method=method),
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
        def geometry(self, batch, reading):
            found = super().geometry(batch, reading)
            return found._replace(speeds=found.speeds / 2.0)

    model, x, y = problem()
    asked = input_problem("zero_one", 1, "l2")
    attack = builder("min-norm")(model, asked)
    curves = curves_of(SandwichAdversary(attack, Halved(model, asked)), model, x, y, "zero_one")
    with pytest.raises(RuntimeError, match="the bound is wrong"):
        curves.values(RADII)


def test_distances():
    margins = torch.tensor(
        [[-2.0, -torch.inf, -1.0], [-1.0, -torch.inf, 0.5], [-1.0, -torch.inf, -1.0], [-1.0, -torch.inf, 0.5]]
    )
    speeds = torch.tensor([[1.0, 0.0, 4.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert class_distances(margins, speeds).amin(dim=1).tolist() == [0.25, 0.0, torch.inf, 0.0]


def test_no_perturbation_within_the_certified_distance_flips_an_example():
    model = mlp(3, 5, 3)
    x = np.random.default_rng(0).normal(size=(40, 3))
    logits = logits_of(model, x)
    labels = logits.argmax(axis=1)
    margins = torch.from_numpy(np.where(np.eye(3)[labels] == 1, -np.inf, logits - logits.max(axis=1, keepdims=True)))
    for norm in ("l1", "l2", "linf"):
        speeds = margin_constants(model, (3,), norm=norm)[labels]
        distances = class_distances(margins, speeds).amin(dim=1).numpy()
        steps = np.random.default_rng(1).normal(size=(200, 40, 3))
        steps *= (distances / np.linalg.norm(steps, ord=EXPONENTS[norm], axis=2))[..., None]
        moved = logits_of(model, (x + steps).reshape(-1, 3)).argmax(axis=1).reshape(200, 40)
        assert np.all(moved == labels)


def test_what_is_not_proved_is_refused():
    model, x, y = problem()
    question = {"order": 1, "space": "input", "adversary": "lipschitz"}
    with pytest.raises(RefusedError, match=r"zero_one, margin, cross_entropy, brier, got 'abstain:0\.5'"):
        all_curves_of(model, x, y, loss="abstain:0.5", **question)
    with pytest.raises(RefusedError, match="got Hardshrink"):
        all_curves_of(nn.Sequential(nn.Hardshrink(), model), x, y, loss="margin", **question)
    with pytest.raises(RefusedError, match="method must be one of"):
        LipschitzAdversary(model, input_problem("zero_one", 1, "l2"), method="best")
    asked = input_problem("zero_one", 1, "l2")
    swapped = SandwichAdversary(LipschitzAdversary(model, asked), builder("min-norm")(model, asked))
    with pytest.raises(RefusedError, match="must prove a bound, got MinNorm"):
        curves_of(swapped, model, x, y, "zero_one")


def cancelling():
    """1e5 is added and taken away again: float32 keeps the logits to 1/128."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(1e5)
        model[2].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[2].bias.copy_(torch.tensor([-1e5, 1e5]))
    return model


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("order", [1, 2])
def test_where_sums_cancel_in_float32_nothing_is_proved_and_nothing_is_refused(loss, order):
    model, x = cancelling(), np.linspace(-0.01, 0.01, 13, dtype=np.float32)[:, None]
    asked = {"loss": loss, "order": order, "space": "input"}
    lower, upper = all_curves_of(model, x, np.zeros(13, dtype=int), adversary="sandwich:pgd", **asked).values(
        [0.0, 1e-9]
    )
    assert np.all(upper >= 12 / 13)  # at 0 the logits are right
    assert lower[0] < upper[0]


def still(speed=0.0):
    """At 0 its margin is -0.925, and float32 makes -0.9375 of that; inputs do nothing to it, or little."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.fill_(speed)
        model[0].bias.fill_(1.0)
        model[2].weight.fill_(2.0**18)
        model[2].bias.copy_(torch.tensor([0.925, 0.0]))
    return model


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("adversary", ["lipschitz", "sandwich:min-norm"])
@pytest.mark.parametrize("speed", [0.0, 1e-4])
def test_the_bound_of_what_hardly_moves_is_about_the_network_and_not_about_float32(loss, order, adversary, speed):
    """At float32's own loss a model of which nothing moves seemed to be proved better than it is."""
    model = still(speed)
    x, y = np.zeros((4, 2), dtype=np.float32), np.zeros(4, dtype=int)
    exact = losses_at(loss, logits_of(model, x), 0)
    rounded, _ = mean_loss(model, x, y, loss=loss)
    assert rounded < exact.mean() - 1e-4 or loss == "zero_one"
    curves = all_curves_of(model, x, y, loss=loss, order=order, space="input", adversary=adversary)
    radii = np.array([0.0, 1e-9, 0.1, 1.0, 100.0])
    _, upper = curves.values(radii)
    assert np.all(upper >= exact.mean() - 1e-12)
    assert np.all(curves.conjugates([1e-9, 1.0, 1e9])[1] >= exact.mean() - 1e-12)
    assert np.all(np.diff(upper) >= 0.0)


def test_an_example_that_float32_does_not_see_costs_the_others_nothing():
    """Where its two logits cancel, a model errs by a large share of them: such an example of a client is enough."""
    model = mlp(20, 64, 1, seed=1)
    model.append(nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        model[3].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[2].bias.sub_(model(torch.zeros(1, 20))[0, 0])
        ends = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
        signs = logits_of(model, ends)[:, 0] > 0.0
    low, high = ends[~signs][0], ends[signs][0]
    for _ in range(60):
        middle = (low + high) / np.float32(2.0)
        low, high = (low, middle) if logits_of(model, middle[None])[0, 0] > 0.0 else (middle, high)
    x = np.concatenate([[high], ends[:4]])
    batch = batch_of(model, x)
    truth = logits_of(model, x)[0]
    assert np.abs(truth - batch.logits[0].numpy()).max() > 1e-3 * np.abs(truth).max()
    adversary = LipschitzAdversary(model, input_problem("zero_one", 1, "l2"))
    costs = adversary.examine(batch).bounding.costs[:, 0]
    assert costs[0] == 0.0
    torch.testing.assert_close(costs[1:], adversary.examine(batch_of(model, x[1:])).bounding.costs[:, 0])
    assert bool((costs[1:] > 0.0).all())


def common_mode():
    """Both logits grow by 1000 per distance, their difference by 1.5: far out, float32 has lost some of it."""
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1000.5, 0.5], [1000.0, -0.5]]))
        model[0].bias.copy_(torch.tensor([0.0, 1.0]))
    return model, np.zeros((50, 2), dtype=np.float32), np.ones(50, dtype=int)


def test_logits_that_grow_on_the_way_are_rounded_to_fewer_digits():
    model, x, y = common_mode()
    asked = {"loss": "zero_one", "order": 1, "norm": "linf", "space": "input"}
    lower, upper = all_curves_of(model, x, y, adversary="sandwich:min-norm", **asked).values([0.3, 0.5, 0.66])
    truth = np.array([0.3, 0.5, 0.66]) / (2.0 / 3.0)
    np.testing.assert_allclose(lower, truth, rtol=1e-3)
    np.testing.assert_allclose(upper, truth, rtol=5e-3)
    assert np.all(lower <= upper)
    assert np.all(truth <= upper)


def test_slack_at_the_example_alone_is_caught_by_an_attack():
    """Negative control: where the walk ends, rounding has made a flip nearer than any is."""

    class Still(LipschitzAdversary):
        def geometry(self, batch, reading):
            found = super().geometry(batch, reading)
            return found._replace(speeds=found.speeds - found.drift)

    model, x, y = common_mode()
    asked = input_problem("zero_one", 1, "linf")
    attack = builder("min-norm")(model, asked, num_steps=20)
    curves = curves_of(SandwichAdversary(attack, Still(model, asked)), model, x, y, "zero_one")
    with pytest.raises(RuntimeError, match="the bound is wrong"):
        curves.values(RADII)


def test_nothing_is_remembered_of_a_model_and_a_batch_stays_as_it_was():
    model = nn.Sequential(nn.LeakyReLU(4.0, inplace=True), mlp(3, 8, 3)).double()
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 3)))
    logits = torch.from_numpy(logits_of(model, x.clone()))
    labels = logits.argmax(dim=1)
    batch = Batch(x=x.clone(), labels=labels, logits=logits, losses=torch.zeros(10).double())
    adversary = LipschitzAdversary(model, input_problem("zero_one", 1, "l2"))
    before = adversary.examine(batch).bounding.costs
    assert torch.equal(batch.x, x)
    with torch.no_grad():
        for parameter in model[1][2].parameters():
            parameter.mul_(-0.5)
    changed = Batch(x=x, labels=(-logits).argmax(dim=1), logits=-0.5 * logits, losses=batch.losses)
    after = adversary.examine(changed).bounding.costs
    fresh = LipschitzAdversary(model, input_problem("zero_one", 1, "l2")).examine(changed).bounding.costs
    assert torch.equal(after, fresh)
    assert not torch.equal(after, before)


def test_a_model_is_read_once_for_all_batches_and_anew_for_every_client(monkeypatch):
    num_read = []
    read = sandwich.lipschitz_constants
    monkeypatch.setattr(sandwich, "has_local_rules", lambda layers: False)
    monkeypatch.setattr(sandwich, "lipschitz_constants", lambda *a, **k: num_read.append(1) or read(*a, **k))
    model, x, y = problem()
    adversary = LipschitzAdversary(model, input_problem("margin", 1, "l2"))
    for _ in range(2):
        client_curves(adversary, model, x, y, loss="margin", batch_size=3)
    assert len(num_read) == 2


def test_a_negative_divisor_is_no_average():
    model = nn.Sequential(nn.AvgPool2d(2, divisor_override=-4), nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="average pools must divide"):
        margin_constants(model, (1, 4, 4), norm="linf")


def test_a_frozen_layer_stays_frozen():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    model[0].eval()
    all_curves_of(model, np.zeros((5, 4), dtype=np.float32), np.zeros(5, dtype=int), loss="zero_one", order=1)
    assert [module.training for module in model.modules()] == [True, False, True]


# The DLR objective needs a third class.
@pytest.mark.parametrize("adversary", [name for name in INPUT_ADVERSARIES if name not in ("apgd-dlr", "autoattack")])
def test_a_model_in_double_precision_is_asked_in_double_precision(adversary):
    """Its examples are those that were given, not what float32 makes of them: 1e-9 decides here."""
    model = seeded(lambda: nn.Linear(2, 2)).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        model.bias.copy_(torch.tensor([-1.0, 0.0]))
    x, y = np.array([[1.0 + 1e-9, 0.0], [1.0 - 1e-9, 0.0], [1.5, 0.5]]), np.array([0, 1, 0])
    asked = {"loss": "zero_one", "order": 1, "norm": "l2"}
    curves = all_curves_of(model, x, y, space="input", adversary=adversary, **asked)
    assert curves.clean_risk == 0.0
    lower, upper = curves.values([0.6])
    assert lower[0] <= 1.0 <= upper[0] + 1e-12
    if adversary != "lipschitz":
        assert lower[0] > 0.99
    if adversary in ("auto", "lipschitz", "sandwich"):
        assert curves.values([0.4 / 3.0])[1][0] == pytest.approx((2 + 0.8) / 3.0, abs=1e-4)
    exact = all_curves_of(model, x, y, **asked)
    assert exact.clean_risk == 0.0
    assert exact.adversarial_unit == pytest.approx((0.5 + 2e-9) / 3.0, rel=1e-12)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_is_refused_in_words(kind):
    model, x, y = (
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(kind),
        np.zeros((2, 3)),
        np.zeros(2, int),
    )
    spaces = [("representation", "auto"), *(("input", name) for name in INPUT_ADVERSARIES), ("layer:1", "pgd")]
    for space, adversary in spaces:
        with pytest.raises(RefusedError, match=r"must be float32 or float64, got b?float16; convert: model\.float"):
            all_curves_of(model, x, y, loss="margin", order=1, space=space, adversary=adversary)
    with pytest.raises(RefusedError, match="must be float32 or float64"):
        wda_attack(model, x, y, norm="linf", radius=0.1, kappa=2.0)
