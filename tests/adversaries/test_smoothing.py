"""Randomised smoothing: the proof's inequality on all counts, the bounding points, the noise, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from scipy.stats import binom, norm
from torch import nn

import riskband as rb
from protocol.questions import AdversarialQuery
from riskband.adversaries import Batch, adversarial_answers, adversarial_curves
from riskband.adversaries.bounds import smoothing
from riskband.adversaries.bounds.smoothing import LARGEST_SCORE, SmoothingAdversary, bounding_curve
from riskband.adversaries.names import NUM_NOISE_SAMPLES
from riskband.adversaries.problem import TransportProblem
from riskband.answers.concave_curves import upper_hull
from riskband.checks import RefusedError
from tests.adversaries.nets import seeded
from tests.adversaries.test_sandwich import batch_of
from tests.transport import input_problem

_LARGEST = 5.0  # score of a probability of an error beyond which the proof is by monotonicity


def scores(num_samples: int, extra: float) -> np.ndarray:
    """Those of all counts below the largest score, increasing."""
    found = norm.ppf(np.minimum((np.arange(num_samples) + extra) / num_samples, 1.0))
    return found[found < LARGEST_SCORE]


def dominates(num_samples: int, extra: float) -> bool:
    """Whether the mean bound is at least the loss, whatever its probability and the move: math §6.9, steps 3 and 4.

    Both sides fall in the score of the probability, so on a cell the left side is largest at its lower end, the right
    one least at its upper end. A cell on which that does not decide is halved.
    """
    z, counts = scores(num_samples, extra), np.arange(num_samples)
    kept = counts[: len(z)]
    # Row s, column j: what is missing to 1 at the move at which the count j reaches the largest score.
    missing = np.triu(norm.sf(LARGEST_SCORE + z[:, None] - z))

    def excess(left: np.ndarray, score: np.ndarray) -> np.ndarray:
        return np.max(left * (1.0 + 1e-9) / norm.sf(score[:, None] + LARGEST_SCORE - z), axis=1)

    edges = np.linspace(z[0], _LARGEST, 500)
    low, high = edges[:-1], edges[1:]
    while len(low):
        left = binom.pmf(kept, num_samples, norm.cdf(low)[:, None]) @ missing
        is_open = excess(left, high) > 1.0
        left, low, high = left[is_open], low[is_open], high[is_open]
        if len(low) and np.any(excess(left, low) > 1.0):
            return False
        middle = (low + high) / 2.0
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    return beyond(num_samples, z)


def beyond(num_samples: int, z: np.ndarray) -> bool:
    """Whether the same holds where the probability's score is above the largest cell."""
    right = num_samples - np.arange(len(z))  # so many samples are right, at least, where something is missing
    tail = gammaln(num_samples + 1) - gammaln(right + 1) - gammaln(num_samples - right + 1)
    tail += right * norm.logsf(_LARGEST) - norm.logsf(_LARGEST + LARGEST_SCORE - z)
    hazard = np.exp(norm.logpdf(_LARGEST) - norm.logsf(_LARGEST))
    return bool(np.all(tail < 0.0) and np.all((right - 1) * hazard >= LARGEST_SCORE - z))


@pytest.mark.parametrize(
    "num_samples", [pytest.param(m, marks=[pytest.mark.slow] if m > 300 else []) for m in NUM_NOISE_SAMPLES]
)
def test_the_mean_over_the_counts_is_at_least_the_loss(num_samples: int) -> None:
    assert dominates(num_samples, smoothing.EXTRA_ERRORS)


@pytest.mark.parametrize("num_samples", [100, 300])
def test_fewer_extra_errors_do_not(num_samples: int) -> None:
    assert not dominates(num_samples, 0.7)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("num_errors", [0, 1, 7, 150, 290, 299, 300])
def test_the_hull_lies_above_the_bound_and_close_to_it(order: int, num_errors: int) -> None:
    corners = upper_hull(*bounding_curve(num_errors, 300, order))
    score = norm.ppf(min((num_errors + 1) / 300, 1.0))
    moves = np.linspace(0.0, 6.0, 20_001)
    bound = np.where(score + moves > LARGEST_SCORE, 1.0, norm.cdf(score + moves))
    assert np.all(np.interp(moves**order, *corners) >= bound - 1e-12)
    nearest = upper_hull(moves**order, bound)
    assert np.max(np.interp(moves**order, *corners) - np.interp(moves**order, *nearest)) < 0.004


def plane(num_examples: int, seed: int = 0) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """Two classes on both sides of a line, and examples of the first one: their margins are their first entries."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        model.bias.zero_()
    x = np.random.default_rng(seed).normal((0.5, 0.0), 0.4, size=(num_examples, 2))
    return model, x.astype(np.float32), np.zeros(num_examples, dtype=np.int64)


def test_what_is_measured_is_the_probability_of_an_error() -> None:
    model, x, y = plane(40)
    adversary = SmoothingAdversary(model, input_problem("zero_one", 1, adversary="smoothing:0.25:3000"))
    smoothed = next(adversary._smoothed([batch_of(model, x)], 0))
    with torch.no_grad():
        is_swapped = model(torch.from_numpy(x)).argmax(dim=1).numpy() != y  # `batch_of` takes the model's labels
    truth = norm.cdf(np.where(is_swapped, 1.0, -1.0) * x[:, 0] / 0.25)
    counts = np.rint(smoothed.losses.numpy() * 3000)
    tails = 2.0 * np.minimum(binom.cdf(counts, 3000, truth), binom.sf(counts - 1, 3000, truth))
    assert np.all(tails > 1e-4 / 40)  # false alarms: 1e-4


@pytest.mark.parametrize("order", [1, 2])
def test_in_the_mean_over_seeds_the_answers_are_at_least_the_truth(order: int) -> None:
    """Of a linear model, where an example's best move is known; the mean of 30 answers errs by three of its errors."""
    model, x, y = plane(10)
    moves, radii, prices = np.linspace(0.0, 3.0, 1501), np.array([0.02, 0.1]), np.geomspace(0.05, 20.0, 60)
    losses = norm.cdf((moves - x[:, :1]) / 0.25)
    gains = np.array([np.max(losses - price * moves**order, axis=1).mean() for price in prices])
    truth = [np.min(prices * radius + gains) for radius in radii]
    found = []
    for seed in range(30):
        problem = input_problem("zero_one", order, adversary="smoothing:0.25:100", seed=seed)
        curves = adversarial_curves(model, x, y, problem)
        found.append(np.concatenate([curves.values(radii)[1], curves.conjugates(prices[::20])[1]]))
    error = 3.0 * np.std(found, axis=0) / np.sqrt(len(found))
    wanted = np.concatenate([truth, gains[::20]])
    assert np.all(np.mean(found, axis=0) >= wanted - error - 2e-3)
    assert np.all(np.mean(found, axis=0) <= wanted + error + 0.08)


class Residual(nn.Module):
    """A sum of branches, of which no constant is known; in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.inside, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.into(x).relu()
        return self.out(hidden + self.inside(hidden).relu())


def residual() -> tuple[nn.Module, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return seeded(Residual, 3), rng.normal(size=(9, 6)).astype(np.float32), rng.integers(3, size=9)


def answered(seed: int = 0, *, batch_size: int = 512, x: Any = None, sigma: float = 0.5) -> np.ndarray:
    model, own, y = residual()
    problem = input_problem("zero_one", 1, adversary=f"smoothing:{sigma}:100", seed=seed)
    curves = adversarial_curves(model, own if x is None else x, y, problem, batch_size=batch_size)
    assert curves.guarantee == "upper in expectation"
    return np.concatenate([*curves.values([0.0, 0.1, 0.3]), *curves.conjugates([0.5, 2.0])])


def test_any_model_the_same_bytes_whatever_the_batches() -> None:
    assert np.array_equal(answered(), answered(batch_size=1))
    assert np.array_equal(answered(), answered(batch_size=4))
    assert not np.array_equal(answered(), answered(1))


def test_large_inputs_are_shown_in_parts_of_a_size_that_batches_do_not_change(monkeypatch: Any) -> None:
    monkeypatch.setattr(smoothing, "_MAX_NUMBERS", 6 * 7)
    assert np.array_equal(answered(batch_size=1), answered())


def test_other_examples_and_other_places_have_other_noise() -> None:
    """Clients must not share noise, nor examples of one client: their answers are independent given the examples."""
    model, x, _ = residual()
    adversary = SmoothingAdversary(model, input_problem("zero_one", 1, adversary="smoothing:2:3000"))
    equal = np.repeat(x[:1], 9, axis=0)
    shares = next(adversary._smoothed([batch_of(model, equal)], 0)).losses
    assert len(shares.unique()) > 1
    sources = [smoothing._digest([batch_of(model, each)]) for each in (x, x[::-1].copy(), x[:-1], equal)]
    assert len(set(sources)) == 4
    assert smoothing._digest([batch_of(model, x[:4]), batch_of(model, x[4:])]) == sources[0]


def test_the_model_is_left_as_it_was_and_nothing_is_said_of_attacks() -> None:
    model, x, y = residual()
    model.train()
    curves = adversarial_curves(model, x, y, input_problem("zero_one", 2, adversary="smoothing:0.5:100"))
    assert model.training
    assert curves.num_without_gradient is None
    assert curves.adversarial_unit == 0.0
    lower, upper = curves.values([0.0, 0.1])
    assert lower[0] == lower[1] == upper[0] == curves.clean_risk < upper[1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"adversary": "smoothing"}, "must be one of"),
        ({"adversary": "smoothing:much"}, "such as 'smoothing:0.25'"),
        ({"adversary": "smoothing:0"}, "above 0"),
        ({"adversary": "smoothing:-1"}, "above 0"),
        ({"adversary": "smoothing:nan"}, "above 0"),
        ({"adversary": "smoothing:0.25:99"}, "100, 300, 1000, 3000"),
        ({"adversary": "smoothing:0.25:100:1"}, "100, 300, 1000, 3000"),
        ({"adversary": "sandwich:smoothing:0"}, "above 0"),
        ({"adversary": "sandwich:sandwich:smoothing:0.25"}, "must be one of"),
        ({"adversary": "sandwich:smoothing:0.25", "norm": "l1"}, "norm must be 'l2'"),
        ({"norm": "linf"}, "norm must be 'l2'"),
        ({"loss": "brier"}, "loss must be 'zero_one'"),
        ({"space": "layer:1"}, "space must be 'input'"),
        ({"space": "representation"}, "must be one of"),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused(asked: dict[str, Any], words: str) -> None:
    settings = {"loss": "zero_one", "order": 1, "space": "input", "adversary": "smoothing:0.25"} | asked
    with pytest.raises(ValueError, match=words):
        TransportProblem(**settings)


def test_single_batches_and_private_questions_are_refused() -> None:
    model, x, _ = residual()
    problem = input_problem("zero_one", 1, adversary="smoothing:0.5")
    with pytest.raises(RefusedError, match="all examples of a client at once"):
        SmoothingAdversary(model, problem).examine(batch_of(model, x))
    with pytest.raises(RefusedError, match="must be 'smoothing:SIGMA'"):
        SmoothingAdversary(model, input_problem("zero_one", 1))
    with pytest.raises(ValueError, match="with privacy there is no smoothing"):
        AdversarialQuery("mlp", (6,), 3, problem, radii=(0.0,), multipliers=(1.0,), privacy="laplace:1")


def test_logits_that_are_not_finite_are_refused() -> None:
    class Root(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.sqrt())

    x = np.full((2, 6), 0.1, dtype=np.float32)
    with pytest.raises(ValueError, match="finite logits"):
        adversarial_curves(
            Root(6, 2), x, np.zeros(2, dtype=int), input_problem("zero_one", 1, adversary="smoothing:1:100")
        )


def test_answers_say_that_they_are_about_the_smoothed_model() -> None:
    model, x, y = residual()
    answers = adversarial_answers(
        model,
        [(x, y), (x[::-1].copy(), y)],
        radii=[0.0, 0.1],
        loss="zero_one",
        order=1,
        space="input",
        adversary="smoothing:0.5:100",
        seed=11,
    )
    assert "of the smoothed model, with Gaussian noise of standard deviation 0.5" in answers.cost
    assert "100 samples" in answers.cost
    assert "seed 11" in answers.cost
    assert answers.guarantee == "upper in expectation"
    assert not answers.binary  # limits for the law of errors would not hold


@pytest.mark.parametrize("order", [1, 2])
def test_an_attack_on_the_smoothed_model_comes_close_to_what_is_proved_of_a_linear_one(order: int) -> None:
    """There the bound is the truth, and the best move is along the gradient. What is proved does not change."""
    model, x, y = plane(30)
    radii = [0.0, 0.05, 0.1]
    named = ("sandwich:smoothing:0.25:300", "smoothing:0.25:300")
    asked = (input_problem("zero_one", order, adversary=name, seed=1) for name in named)
    attacked, proved = (adversarial_curves(model, x, y, problem) for problem in asked)
    np.testing.assert_array_equal(attacked.values(radii)[1], proved.values(radii)[1])
    lower, upper = attacked.values(radii)
    assert np.all(lower <= upper)
    assert np.all(upper - lower < (0.012 if order == 1 else 0.08))
    assert np.all(proved.values(radii)[0] == lower[0])  # without an attack nothing is reached but the example itself


def test_what_an_attack_on_the_smoothed_model_reaches_is_there() -> None:
    """Its shares are of other noise samples than those of the examples, so they are unbiased: known for a plane."""
    model, x, y = plane(40)
    problem = input_problem("zero_one", 1, adversary="sandwich:smoothing:0.25:3000", distances=(0.1, 0.3))
    adversary = SmoothingAdversary(model, problem)
    batch = Batch(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(40, 2), torch.zeros(40))
    reached = next(adversary._smoothed([batch], 0)).reached.numpy()
    truth = norm.cdf((np.array([0.1, 0.3]) - x[:, :1]) / 0.25)  # the nearest way to the line
    tails = 2.0 * np.minimum(binom.cdf(np.rint(reached * 3000), 3000, truth), 1.0)
    assert np.all(reached <= truth + 5.0 * np.sqrt(truth * (1.0 - truth) / 3000) + 1e-3)
    assert np.all(tails > 1e-4 / 80)  # nor less: the attack found the way; false alarms: 1e-4


def test_attacked_or_not_it_is_the_same_in_batches_of_any_size() -> None:
    model, x, y = residual()
    problem = input_problem("zero_one", 1, adversary="sandwich:smoothing:0.5:100")
    one, other = (adversarial_curves(model, x, y, problem, batch_size=size) for size in (3, 64))
    np.testing.assert_array_equal(one.values([0.0, 0.2]), other.values([0.0, 0.2]))
    assert one.values([0.2])[0] > one.clean_risk


def test_one_answer_may_lie_below_its_truth_and_its_guarantee_says_in_expectation() -> None:
    """Of examples on one side of a line the true risk is known; certificates take the answers for what they are."""
    model, x, y = plane(4)
    truth = float(norm.cdf(-x[:, 0] / 0.25).mean())
    asked = {"loss": "zero_one", "order": 1, "space": "input", "radii": [0.0, 0.1]}
    below = []
    for seed in range(40):
        problem = input_problem("zero_one", 1, adversary="smoothing:0.25:100", seed=seed)
        curves = adversarial_curves(model, x, y, problem)
        below.append(curves.conjugates([1e6])[1][0] < truth)
        assert curves.guarantee == "upper in expectation"
    assert 0 < sum(below) < 20
    answers = adversarial_answers(model, [(x, y)] * 20, **asked, adversary="smoothing:0.25:100")
    assert answers.guarantee == "upper in expectation"
    certificate = rb.wasserstein_mean(answers, delta=0.05, cost_budget=0.05)
    assert certificate.validity == "certificate"
    attacked = adversarial_answers(model, [(x, y)] * 20, **asked, adversary="pgd")
    assert rb.wasserstein_mean(attacked, delta=0.05, cost_budget=0.05).validity == "estimate"
