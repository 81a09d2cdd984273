"""What holds for every adversary in input space: points are real, inside the box, and the model is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from riskband.adversaries import Batch, InputAdversary
from riskband.adversaries.attacks.base import client_curves
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.pgd import Pgd
from riskband.adversaries.attacks.wda import Wda
from riskband.adversaries.attacks.witness import Witness
from riskband.adversaries.registry import builder
from riskband.checks import RefusedError
from riskband.models.evaluation import mean_loss
from riskband.models.losses import get_loss
from tests.adversaries.nets import batch_of, seeded
from tests.adversaries.test_exact import COSTS
from tests.adversaries.transports import EXPONENTS, losses_at
from tests.transport import curves_of, input_problem

ATTACKS = ["min-norm", "pgd", "apgd", "wc-dg", "wda", "wda-knapsack"]
LOSSES = ["zero_one", "margin", "cross_entropy", "brier"]
RADII = np.linspace(0.0, 1.5, 12)


def small_net(seed, *, num_features=2, num_classes=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(num_features, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, num_classes))


def examples_of(net, seed, *, num_examples=6, num_features=2):
    """Examples in the box [-1, 1], labelled by the net but for the first."""
    x = np.random.default_rng(seed).uniform(-1.0, 1.0, (num_examples, num_features)).astype(np.float32)
    logits = net.eval()(torch.from_numpy(x))
    net.train()
    y = logits.argmax(dim=1).numpy()
    y[0] = (y[0] + 1) % logits.shape[1]
    return x, y


def witness_of(net, x, y, *, loss="zero_one", order=1, norm="l2", box=(-1.0, 1.0)):
    return Witness(net, batch_of(net, x, y, loss=loss), input_problem(loss, order, norm, box=box))


@given(st.integers(0, 1000), st.sampled_from(LOSSES[1:]), st.sampled_from(COSTS))
@settings(max_examples=15)
def test_points_cost_and_lose_what_they_claim(seed, loss, cost):
    order, norm = cost
    net = small_net(seed)
    x, y = examples_of(net, seed)
    witness = witness_of(net, x, y, loss=loss, order=order, norm=norm)
    shown = np.random.default_rng(seed).normal(size=(4, *x.shape)).astype(np.float32)
    logits = witness(torch.from_numpy(shown)).detach().numpy()
    inside = shown.clip(-1.0, 1.0)
    np.testing.assert_allclose(logits, net(torch.from_numpy(inside)).detach(), atol=1e-6)
    points = witness.points()
    distances = np.linalg.norm(inside.astype(float) - x, ord=EXPONENTS[norm], axis=2)
    np.testing.assert_allclose(points.costs, distances.T**order, rtol=1e-6)
    for row, label in enumerate(y):
        np.testing.assert_allclose(points.losses[row], losses_at(loss, logits[:, row], label), atol=1e-9)
    is_wrong = logits.argmax(axis=2) != y
    expected = np.where(is_wrong, distances, np.inf).min(axis=0)
    np.testing.assert_allclose(witness.distances[1:], expected[1:])
    assert witness.distances[0] == 0.0


def grid_distances(net, x, y, norm, *, num_steps=241):
    """Distance to the nearest misclassified point of a grid on the box, and how far that may be from the truth."""
    ticks = np.linspace(-1.0, 1.0, num_steps)
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2).astype(np.float32)
    predicted = net.eval()(torch.from_numpy(grid)).argmax(dim=1).numpy()
    distances = np.linalg.norm(grid[None] - x[:, None], ord=EXPONENTS[norm], axis=2)
    cell = np.linalg.norm([ticks[1] - ticks[0]] * 2, ord=EXPONENTS[norm])
    return np.where(predicted != y[:, None], distances, np.inf).min(axis=1), cell


@given(st.integers(0, 1000), st.sampled_from(["l1", "l2", "linf"]), st.sampled_from(ATTACKS))
@settings(max_examples=settings().max_examples // 10)
def test_attacks_lie_below_the_truth_in_the_plane(seed, norm, adversary):
    """Brute force over a grid. A flipped region may be thinner than a cell, so the truth is known to a cell only."""
    net = small_net(seed)
    x, y = examples_of(net, seed)
    truth, cell = grid_distances(net, x, y, norm)
    attack = builder(adversary)(net, input_problem("zero_one", 1, norm, box=(-1.0, 1.0)))
    witness = witness_of(net, x, y, norm=norm)
    attack.perturb(witness)
    found = witness.distances.numpy()
    assert np.all(found[1:] >= truth[1:] - cell)
    if adversary == "wda-knapsack":  # and they find what there is, as a rule
        assert np.median(found[np.isfinite(truth)] - truth[np.isfinite(truth)]) <= cell


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("adversary", ATTACKS)
def test_curves_are_lower_bounds_that_grow(loss, adversary):
    net = small_net(1)
    x, y = examples_of(net, 1, num_examples=12)
    curves = curves_of(net, x, y, loss=loss, order=1, space="input", adversary=adversary, box=(-1, 1))
    lower, upper = curves.values(RADII)
    assert curves.guarantee == "lower"
    assert lower[0] == pytest.approx(curves.clean_risk)
    assert lower[-1] > lower[0] + 0.04
    assert np.all(np.diff(lower) >= -1e-12)
    assert np.all(upper == 1.0)


SLOW = ("wda", "wda-knapsack")


@pytest.mark.parametrize(
    "adversary", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in ATTACKS]
)
def test_the_same_seed_gives_the_same_answer_and_no_more_than_is_possible_however_it_is_batched(adversary):
    """Rounding differs with the batch and the CPU, and a path splits at a rounding: batchings need not agree."""
    net = small_net(2, num_features=4)
    x, y = examples_of(net, 2, num_examples=9, num_features=4)
    settings = {"loss": "cross_entropy", "order": 2, "space": "input", "seed": 5}
    state = torch.random.get_rng_state()
    first, again, parts = (
        curves_of(net, x, y, **settings, adversary=adversary, batch_size=batch_size).values(RADII)[0]
        for batch_size in (9, 9, 5)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    assert first.tolist() == again.tolist()
    proved = curves_of(net, x, y, **settings, adversary="lipschitz").values(RADII)[1]
    for reached in (first, parts):
        assert np.all(reached <= proved + 1e-6)
        assert reached[-1] > reached[0] + 0.01


@pytest.mark.parametrize(
    "adversary", ["min-norm", "pgd", "apgd", "wc-dg", pytest.param("wda-knapsack", marks=pytest.mark.slow)]
)
def test_where_the_best_point_is_the_only_one_every_batching_finds_it(adversary):
    """Two classes and a linear model: whatever is rounded, each example's worst case is where its gradient points."""
    net = seeded(lambda: nn.Linear(4, 2))
    x, y = examples_of(net, 2, num_examples=9, num_features=4)
    asked = {"loss": "cross_entropy", "order": 2, "space": "input", "adversary": adversary}
    whole, parts = (curves_of(net, x, y, **asked, batch_size=size).values(RADII)[0] for size in (9, 2))
    np.testing.assert_allclose(parts, whole, atol=1e-4)


def test_random_starts_are_those_of_an_example_however_batched():
    net = small_net(2, num_features=4)
    x, y = examples_of(net, 2, num_examples=7, num_features=4)
    attack = Pgd(net, input_problem("zero_one", 1, "l1", seed=3))
    whole = attack.noise(witness_of(net, x, y), 2)
    attack.restart()
    parts = [attack.noise(witness_of(net, x[rows], y[rows]), 2) for rows in (slice(0, 3), slice(3, 4), slice(4, 7))]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_the_model_is_left_as_it_was():
    net = small_net(3)
    net[0].weight.requires_grad_(False)
    net[2].eval()
    x, y = examples_of(net, 3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net[2].eval()
    flags = [parameter.requires_grad for parameter in net.parameters()]
    attack = builder("wda-knapsack")(net, input_problem("margin", 1, "l2"))
    logits = net.eval()(torch.from_numpy(x)).double().detach()
    net.train()
    net[2].eval()
    labels = torch.from_numpy(y)
    attack.examine(Batch(torch.from_numpy(x), labels, logits, get_loss("margin").per_example(logits, labels)))
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    assert [module.training for module in net.modules()] == [True, True, True, False, True]
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_model_that_works_in_place_is_attacked_all_the_same():
    net = nn.Sequential(nn.ReLU(inplace=True), small_net(4)).eval()
    x, y = examples_of(net, 4)
    kept = x.copy()
    curves = curves_of(net, x, y, loss="zero_one", order=1, space="input", adversary="pgd")
    assert curves.values([1.0])[0][0] > curves.clean_risk
    np.testing.assert_array_equal(x, kept)


class Far(InputAdversary):
    """Shows one input far outside any box."""

    def perturb(self, witness):
        witness(witness.x + 100.0)


def test_whatever_is_shown_is_kept_in_the_box():
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        net.bias.copy_(torch.tensor([1.0, 0.0]))
    x, y = np.zeros((1, 2), dtype=np.float32), np.array([0])
    far = Far(net, input_problem("zero_one", 1, "l1", box=(-1.0, 0.75)))
    logits = torch.tensor([[1.0, 0.0]]).double()
    batch = Batch(torch.from_numpy(x), torch.from_numpy(y), logits, torch.zeros(1).double())
    evidence = far.examine(batch)
    # At the corner (0.75, 0.75); then shortened to x1 + x2 = 1, where class 1 draws level.
    assert evidence.guarantee == "lower"
    assert evidence.flip_costs.item() == pytest.approx(1.0, abs=1e-5)
    tight = Far(net, input_problem("zero_one", 1, "l1", box=(-1.0, 0.45)))
    assert tight.examine(batch).flip_costs.item() == np.inf


class Idle(InputAdversary):
    """Shows the examples themselves, or nothing."""

    def perturb(self, witness):
        if self.problem.seed:
            witness(witness.x)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("loss", [*LOSSES, "abstain:0.5"])
def test_an_attack_that_moves_nothing_attains_what_was_there(seed, loss):
    net = small_net(9)
    x, y = examples_of(net, 9)
    curves = client_curves(Idle(net, input_problem(loss, 1, "l2", seed=seed)), net, x, y, loss=loss)
    assert curves.values([0.0, 1.0, 100.0])[0].tolist() == pytest.approx([mean_loss(net, x, y, loss=loss)[0]] * 3)
    assert curves.adversarial_unit == 0.0


def test_the_example_itself_is_no_point():
    """Its loss is known; in another batch it may differ by rounding, and would be a gain for nothing."""
    net = small_net(9)
    witness = witness_of(net, *examples_of(net, 9), loss="margin")
    witness(witness.x)
    assert torch.isinf(witness.points().costs).all()


@pytest.mark.parametrize("shown", [torch.zeros(5, 2), torch.zeros(6, 3), torch.full((6, 2), torch.nan)])
def test_inputs_that_cannot_be_are_the_attacks_fault(shown):
    net = small_net(5)
    with pytest.raises(RuntimeError, match="an attack must show finite inputs"):
        witness_of(net, *examples_of(net, 5))(shown)


class Overflowing(nn.Linear):
    """Infinite beyond 2 in the first entry."""

    def forward(self, x):
        return super().forward(x) + torch.where(x[:, :1] > 2.0, torch.inf, 0.0)


def test_where_a_model_overflows_it_gives_no_evidence():
    net = Overflowing(2, 2)
    x, y = np.zeros((3, 2), dtype=np.float32), np.zeros(3, dtype=np.int64)
    witness = witness_of(net, x, y, loss="margin", box=None)
    witness(torch.full((3, 2), 50.0))
    assert torch.isinf(witness.points().costs).all()
    assert torch.isfinite(witness.points().losses).all()


def test_examples_outside_the_box_are_refused_without_telling_them():
    net = small_net(6)
    x, y = examples_of(net, 6)
    x[2, 1] = 7.25
    with pytest.raises(RefusedError, match="must lie in the box") as refusal:
        curves_of(net, x, y, loss="zero_one", order=1, space="input", box=(-1.0, 1.0))
    assert "7.25" not in str(refusal.value)


class Rounded(nn.Linear):
    """Has no gradient in its inputs."""

    def forward(self, x):
        return super().forward(x.detach()).detach()


@pytest.mark.parametrize("adversary", ["pgd", "min-norm", "sandwich:apgd"])
def test_a_model_without_gradients_is_refused_by_attacks_that_follow_them(adversary):
    net = Rounded(2, 3)
    x, y = np.zeros((3, 2), dtype=np.float32), np.zeros(3, dtype=np.int64)
    with pytest.raises(RefusedError, match="differentiable in its inputs"):
        curves_of(net, x, y, loss="zero_one", order=1, space="input", adversary=adversary)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"box": (1.0, 0.0)}, "box must be finite with low < high"),
        ({"box": (0.0, np.nan)}, "box must be finite with low < high"),
        ({"box": 3.0}, "box must be two numbers"),
        ({"box": "ab"}, "box must be two numbers"),
        ({"distances": (0.0,)}, "distances must be above 0"),
        ({"distances": "near"}, "distances must be a list of numbers"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": "one"}, "seed must be a whole number from 0"),
        ({"head": "0"}, "head must be None in the space 'input'"),
        ({"adversary": "exact"}, "adversary must be one of auto, .*pgd.*, got 'exact'"),
        ({"adversary": None}, "adversary must be one of"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"order": 2, "norm": "l1"}, "norm must be 'l2' when order is 2"),
        ({"space": "representation"}, "box and distances must not be given"),
    ],
)
def test_what_makes_no_sense_is_refused(change, rule):
    net = small_net(7)
    x, y = examples_of(net, 7)
    asked = {"loss": "zero_one", "order": 1, "space": "input", "box": (-1.0, 1.0)} | change
    with pytest.raises(ValueError, match=rule):
        curves_of(net, x, y, **asked)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda net, problem: Pgd(net, problem, num_steps=0), "num_steps must be a whole number >= 1"),
        (lambda net, problem: Pgd(net, problem, num_restarts=True), "num_restarts must be a whole number >= 0"),
        (lambda net, problem: Pgd(net, problem, objective="hinge"), "objective must be one of margin, cross_entropy"),
        (lambda net, problem: MinNorm(net, problem, num_targets=1.5), "num_targets must be a whole number >= 1"),
        (lambda net, problem: Wda(net, problem, num_steps=3, num_probes=4), "num_probes must be at most num_steps"),
    ],
)
def test_settings_of_attacks_are_checked(make, rule):
    with pytest.raises(ValueError, match=rule):
        make(small_net(8), input_problem("zero_one", 1, "l2"))


ROWLESS = {
    "one logit": lambda: nn.Sequential(nn.Linear(2, 1)),
    "a number": lambda: nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)),
    "one row for all": lambda: nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.Unflatten(0, (1, -1))),
}


@pytest.mark.parametrize("made", ROWLESS.values(), ids=ROWLESS)
@pytest.mark.parametrize(
    ("space", "adversary"),
    [
        *(("input", name) for name in ("auto", "lipschitz", "square", "apgd", "smoothing:0.25:100")),
        *(("representation", name) for name in ("exact", "ascent")),
    ],
)
def test_what_returns_no_row_of_two_logits_is_refused_with_the_remedy(made, space, adversary):
    loss = "margin" if adversary == "ascent" else "zero_one"
    with pytest.raises(RefusedError, match=r"row of at least 2 logits .* return \(0, z\)"):
        curves_of(made(), np.zeros((4, 2)), np.zeros(4, int), loss=loss, order=1, space=space, adversary=adversary)
