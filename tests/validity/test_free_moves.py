"""Moves that are free: W-infinity balls, and mean budgets beyond them, of linear models whose truth scipy integrates.

A client holds x ~ N(m, 1) with label 1, m being 1 or 2, and the model predicts 1 where x > 0: x is misclassified after
a move by x. So what free moves by t reach is Phi(t - m). False-alarm rate of each test: 1e-4.
"""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import riskband as rb
from riskband.adversaries import TransportProblem, adversarial_answers, adversarial_curves
from riskband.answers.concave_curves import knapsack_curve
from tests.validity.coverage import is_rejected, study

MEANS, FREE, BUDGETS, DELTA = (1.0, 2.0), 0.5, np.array([0.0, 0.05]), 0.2


def worst_mean(budget, free):
    """min over multipliers of multiplier * budget + E (1 - multiplier * (x - free)_+)_+."""

    def dual(log_price):
        price = np.exp(log_price)
        parts = [
            norm.cdf(free - m) + quad(lambda x: (1 - price * (x - free)) * norm.pdf(x - m), free, free + 1 / price)[0]  # noqa: B023
            for m in MEANS
        ]
        return price * budget + np.mean(parts)

    if budget == 0.0:
        return float(np.mean(norm.cdf(free - np.array(MEANS))))
    return float(minimize_scalar(dual, bounds=(-6, 6), method="bounded").fun)


@pytest.fixture(scope="module")
def model():
    layer = torch.nn.Linear(1, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [1.0]]))
        layer.bias.zero_()
    return torch.nn.Sequential(layer)


def networks(model, *, num_networks, free, seed=3, num_clients=40, num_examples=15):
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        rng = np.random.default_rng(child)
        means = rng.choice(MEANS, num_clients)
        clients = [(rng.normal(m, 1.0, (num_examples, 1)), np.ones(num_examples, dtype=int)) for m in means]
        yield adversarial_answers(model, clients, radii=[0.0, *BUDGETS[1:]], order=1, free_distance=free)


@study(slow=40)
def test_certificates_beyond_free_moves_cover(model, num_networks):
    means = np.array([worst_mean(budget, FREE) for budget in BUDGETS])
    assert means[0] == pytest.approx(np.mean(norm.cdf([-0.5, -1.5])))
    failed = []
    for answers in networks(model, num_networks=num_networks, free=FREE):
        mean = rb.wasserstein_mean(answers, delta=DELTA, cost_budget=BUDGETS, seed=0)
        share = rb.wasserstein_cdf(answers, delta=DELTA, cost_budget=0.0, thresholds=0.3, seed=0)  # of those with m = 1
        assert mean.validity == "certificate"
        assert mean.value[0] < worst_mean(FREE, 0.0)  # it says something
        failed.append((bool(np.any(mean.value < means - 1e-9)), float(share.value) < 0.5))
    assert not any(is_rejected(column, DELTA) for column in np.transpose(failed))


def test_negative_control_a_mean_budget_is_no_largest_one(model):
    """Mass may be shared out of a mean budget: the worst mean is then far larger than if each moves so far."""
    truth = worst_mean(FREE, 0.0)
    found = [
        float(rb.wasserstein_mean(answers, delta=DELTA, cost_budget=0.0, seed=0).value) < truth
        for answers in networks(model, num_networks=6, free=FREE)
    ]
    assert is_rejected(found, DELTA)


def test_negative_control_the_largest_risk_within_a_mean_cost_is_no_mean():
    """A client's own curve at one radius lies below that of its law in the mean (Jensen): no risk to certify."""
    rng = np.random.default_rng(0)
    of_samples = [knapsack_curve(np.maximum(rng.normal(1.0, 1.0, 3), 0.0))(FREE) for _ in range(2000)]
    of_law = knapsack_curve(np.maximum(norm.ppf((np.arange(10_000) + 0.5) / 10_000, loc=1.0), 0.0))(FREE)
    assert np.mean(of_samples) + 5.0 * np.std(of_samples) / np.sqrt(2000) < of_law


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("space", "adversary"), [("representation", "auto"), ("input", "sandwich:min-norm")])
def test_free_moves_come_off_every_distance(space, adversary, order):
    """Against distances to the boundaries of a linear model, by hand; an attack and a proof find the same."""
    rng = np.random.default_rng(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3)).double()
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    model[0].weight.data, model[0].bias.data = torch.tensor(weight), torch.tensor(bias)
    x = rng.normal(size=(60, 4))
    logits = x @ weight.T + bias
    y = logits.argmax(axis=1)
    y[:5] = (y[:5] + 1) % 3
    gaps = logits[np.arange(60), y][:, None] - logits
    speeds = np.linalg.norm(weight[y][:, None] - weight, axis=2)
    distances = np.where(speeds > 0, np.maximum(gaps, 0) / np.where(speeds > 0, speeds, 1), np.inf).min(axis=1)
    curves = adversarial_curves(
        model, x, y, TransportProblem("zero_one", order, "l2", space, adversary, free_distance=0.3)
    )
    for bound in curves.values([0.0]):
        assert bound[0] == pytest.approx(np.mean(distances <= 0.3))
    assert curves.clean_risk == pytest.approx(5 / 60)
    expected = np.maximum(1 - 4 * np.maximum(distances - 0.3, 0) ** order, 0).mean()
    for bound in curves.conjugates([4.0]):
        assert bound[0] == pytest.approx(expected, abs=1e-4)


def test_what_is_proved_contains_free_moves_that_nobody_found():
    """The attack is none, and the proof alone still counts every example that a free move may misclassify."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 2))
    model[0].weight.data, model[0].bias.data = torch.tensor([[0.0], [1.0]]), torch.zeros(2)
    x = np.array([[0.1], [0.2], [0.4], [0.8], [-1.0]])
    problem = TransportProblem("zero_one", 1, "l2", "input", "lipschitz", free_distance=0.3)
    curves = adversarial_curves(model, x, np.ones(5, dtype=int), problem)
    lower, upper = curves.values([0.0])
    assert (lower[0], upper[0]) == (0.2, 0.6)
    assert curves.guarantee == "upper"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"loss": "brier"}, "free_distance must be 0 but for the 0-1 loss"),
        ({"space": "input", "adversary": "smoothing:0.25"}, "free_distance must be 0 but for the 0-1 loss"),
        ({"free_distance": -0.1}, "free_distance must be 0 or from"),
    ],
)
def test_free_distances_that_make_no_sense_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        TransportProblem(**{"loss": "zero_one", "order": 1, "free_distance": 0.3, **changes})
