"""Coverage of certificates of smoothed linear models, whose worst network has a closed form; two wrong ones fail.

A client is of one of two kinds, which differ in how far its examples are from the plane between two classes: the
probability of an error is Phi(-distance / sigma), and moving towards the plane is best. False-alarm rate of each test:
1e-4 (see `tests.validity.coverage`).
"""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import riskband as rb
from riskband.adversaries import adversarial_answers
from riskband.adversaries.bounds import smoothing
from tests.adversaries.test_smoothing import plane
from tests.validity.coverage import is_rejected, study

DELTA = 0.2
SIGMA = 0.25
DISTANCES = np.array([3.2, 2.8]) * SIGMA  # of the two kinds, equally likely
BUDGETS = np.array([0.25, 0.5])
NUM_CLIENTS, NUM_EXAMPLES = 60, 2


def worst_means(order):
    """The least price of the budget and mean of the largest gain, for the law of the examples."""
    moves = np.linspace(0.0, 3.0, 6001)
    losses = norm.cdf((moves - DISTANCES[:, None]) / SIGMA)

    def bound(log_price, budget):
        price = np.exp(log_price)
        return price * budget + np.max(losses - price * moves**order, axis=1).mean()

    return np.array(
        [minimize_scalar(bound, bounds=(-6.0, 6.0), args=(budget,), method="bounded").fun for budget in BUDGETS]
    )


def network(rng):
    """Clients whose examples differ in what the model does not look at: each has noise of its own."""
    kinds = rng.integers(2, size=NUM_CLIENTS)
    away = DISTANCES[kinds][:, None].repeat(NUM_EXAMPLES, axis=1)
    x = np.stack([away, rng.normal(size=away.shape)], axis=-1).astype(np.float32)
    return [(each, np.zeros(NUM_EXAMPLES, dtype=np.int64)) for each in x]


def failures(order, num_networks):
    model, _, _ = plane(1)
    truth, found = worst_means(order), []
    for seed, child in enumerate(np.random.SeedSequence(2).spawn(num_networks)):
        answers = adversarial_answers(
            model,
            network(np.random.default_rng(child)),
            radii=np.append(0.0, np.geomspace(0.01, 3.0, 12)),
            multipliers=np.geomspace(0.1, 10.0, 12),
            loss="zero_one",
            order=order,
            space="input",
            adversary=f"smoothing:{SIGMA}:100",
            seed=seed,
        )
        certificate = rb.wasserstein_mean(answers, delta=DELTA, cost_budget=BUDGETS, seed=0)
        assert certificate.validity == "certificate"
        found.append(bool(np.any(certificate.value < truth - 1e-6)))
    return found


@study(slow=30)
@pytest.mark.parametrize("order", [1, 2])
def test_certificates_of_the_smoothed_model_cover(order, num_networks):
    assert not is_rejected(failures(order, num_networks), DELTA)


def test_the_measured_share_in_place_of_one_error_more_is_rejected(monkeypatch):
    monkeypatch.setattr(smoothing, "EXTRA_ERRORS", 1e-9)
    assert is_rejected(failures(1, 6), DELTA)


@pytest.mark.slow
def test_a_bound_for_more_noise_than_there_is_is_rejected(monkeypatch):
    found = smoothing.bounding_curve

    def wrong(num_errors, num_samples, order):
        costs, losses = found(num_errors, num_samples, order)
        return costs * 1.5**order, losses

    monkeypatch.setattr(smoothing, "bounding_curve", wrong)
    assert is_rejected(failures(1, 6), DELTA)
