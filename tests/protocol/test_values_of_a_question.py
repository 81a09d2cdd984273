"""What a question takes of a query budget, against the numbers that answers to it really hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from client.budget import Request, request_of
from protocol.questions import Candidate, CandidatesQuery, ComparisonQuery, LossQuery
from riskband.adversaries.registry import adversarial_curves
from tests.transport import adversarial_query, changed

NUM_RADII, NUM_MULTIPLIERS = 8, 5
QUERY = adversarial_query(
    "brier",
    "mlp",
    (3,),
    3,
    order=1,
    radii=tuple(np.geomspace(0.001, 0.05, NUM_RADII)),
    multipliers=tuple(np.geomspace(0.1, 3.0, NUM_MULTIPLIERS)),
)
ONE_BOUND = Request(losses=1, radii=NUM_RADII, multipliers=NUM_MULTIPLIERS, units=1)
TWO_BOUNDS = Request(losses=1, radii=2 * NUM_RADII, multipliers=2 * NUM_MULTIPLIERS, units=1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss": "zero_one"}, ONE_BOUND),
        ({"order": 2}, TWO_BOUNDS),
        ({"space": "input", "adversary": "min-norm"}, dataclasses.replace(ONE_BOUND, counts=2)),
        ({"space": "input", "adversary": "auto"}, dataclasses.replace(TWO_BOUNDS, counts=2)),
        ({"space": "input", "adversary": "sandwich:pgd"}, dataclasses.replace(TWO_BOUNDS, counts=2)),
        ({"space": "layer:1", "adversary": "auto"}, dataclasses.replace(TWO_BOUNDS, counts=2)),
    ],
    ids=str,
)
def test_as_many_values_are_counted_as_numbers_may_differ(changes: dict[str, object], expected: Request) -> None:
    query = changed(QUERY, **changes)
    assert request_of(query) == expected
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    rng = np.random.default_rng(2)
    x, y = rng.uniform(size=(30, 3)).astype(np.float32), rng.integers(3, size=30)
    curves = adversarial_curves(model, x, y, query.problem, multipliers=query.multipliers)
    ends = [curves.values(query.radii), curves.conjugates(query.multipliers)]
    counts = {curves.num_without_gradient} - {None}
    numbers = {
        curves.clean_risk,
        curves.adversarial_unit,
        *counts,
        *np.concatenate([end for pair in ends for end in pair]),
    }
    assert len(numbers - {1.0}) <= expected.size
    assert expected.counts == 2 * len(counts)  # with each goes whether the model is unsteady
    if expected.radii == TWO_BOUNDS.radii:  # once for each radius and multiplier would be too few
        assert len(numbers - {1.0}) > ONE_BOUND.size


def test_losses_and_noise() -> None:
    plain = LossQuery("zero_one", "mlp", (3,), 3)
    assert request_of(plain).size == request_of(dataclasses.replace(plain, privacy="laplace:0.5")).size == 1
    candidates = tuple(Candidate(name, 0, "zero_one") for name in "abc")
    assert request_of(CandidatesQuery("mlp", (3,), 3, candidates)).size == 3
    for is_old_local in (False, True):
        assert request_of(ComparisonQuery("zero_one", "mlp", (3,), 3, is_old_local)) == Request(losses=2, counts=1)
        assert request_of(ComparisonQuery("brier", "mlp", (3,), 3, is_old_local)) == Request(losses=2)
    noisy = dataclasses.replace(QUERY, radii=(0.0,), privacy="laplace:0.5")
    assert request_of(noisy).size == noisy.num_values == 1 + NUM_MULTIPLIERS
