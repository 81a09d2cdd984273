"""What one example adds to a noisy adversarial answer, whatever the adversary finds out about it."""

from __future__ import annotations

from functools import partial
from random import Random

import numpy as np
import pytest

from client.numbers import Noise, noisy_curves
from protocol.mechanisms import mechanism_of
from protocol.models import build_model
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves

MODEL = build_model("mlp", x_shape=(3,), num_classes=2, seed=3)
MULTIPLIERS = (0.1, 2.0)
NEARLY_NONE = Noise(mechanism_of("laplace:1e9"), Random(0))
ATTACK = {"loss": "zero_one", "adversary": "pgd", "space": "input"}
BOUND = {"loss": "brier", "adversary": "ascent"}


def answer(settings, *, declared):
    """The noisy answer, and the curves of all examples at once."""
    rng = np.random.default_rng(1)
    examples = rng.normal(size=(6, 3)).astype(np.float32), rng.integers(0, 2, 6)
    curves_of = partial(adversarial_curves, problem=TransportProblem(order=1, **settings), multipliers=MULTIPLIERS)
    found = noisy_curves(MODEL, curves_of, *examples, multipliers=MULTIPLIERS, guarantee=declared, noise=NEARLY_NONE)
    assert found["guarantee"] == declared
    assert found["conjugates_lower"] == found["conjugates_upper"]
    return found, curves_of(MODEL, *examples)


@pytest.mark.parametrize(("settings", "declared"), [(ATTACK, "upper"), (ATTACK, "exact"), (BOUND, "exact")])
def test_an_example_about_which_less_is_proved_than_declared_counts_with_one(settings, declared):
    found, curves = answer(settings, declared=declared)
    np.testing.assert_allclose(found["conjugates_upper"], 1.0, atol=1e-6)
    assert found["clean_risk"] == pytest.approx(curves.clean_risk, abs=1e-5)
    assert curves.conjugates(MULTIPLIERS)[0].min() < 0.9  # 1 is not what the adversary found


@pytest.mark.parametrize(("settings", "declared"), [(ATTACK, "lower"), (BOUND, "upper"), (BOUND, "lower")])
def test_otherwise_the_bound_that_was_declared_is_sent(settings, declared):
    found, curves = answer(settings, declared=declared)
    lower, upper = curves.conjugates(MULTIPLIERS)
    gap = np.max(upper - lower)
    assert gap > 1e-4
    np.testing.assert_allclose(found["conjugates_upper"], lower if declared == "lower" else upper, atol=gap / 20)
