"""Projections and shortest moves against cvxpy, and steepest directions against the dual norm."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from riskband.adversaries.norms import DUALS, lengths, project, shortest_move, shrink, steepest
from tests.adversaries.transports import EXPONENTS

NORMS = list(EXPONENTS)


def rows(seed, num_rows=6, num_features=5):
    return np.random.default_rng(seed).normal(size=(num_rows, num_features))


def solved(objective, constraints):
    cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)


def nearest(v, radius, norm, room):
    d = cp.Variable(len(v))
    within = [cp.norm(d, EXPONENTS[norm]) <= radius]
    solved(cp.sum_squares(d - v), within + ([cp.abs(d) <= room] if np.isfinite(room).all() else []))
    return d.value


@pytest.mark.parametrize("norm", NORMS)
def test_projections_are_the_nearest_points(norm):
    vectors, radii = rows(0), np.array([0.1, 0.5, 1.0, 2.0, 4.0, 50.0])
    room = np.full(vectors.shape, np.inf)
    found = project(torch.tensor(vectors), torch.tensor(radii), norm, room=torch.tensor(room))
    expected = [nearest(*one, norm, gap) for *one, gap in zip(vectors, radii, room, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_projections_in_a_box_are_the_nearest_points(norm):
    vectors, radii = rows(1), np.array([0.1, 0.5, 1.0, 2.0, 4.0, 50.0])
    room = np.random.default_rng(2).uniform(0.0, 0.6, vectors.shape)
    found = project(torch.tensor(vectors), torch.tensor(radii), norm, room=torch.tensor(room))
    expected = [nearest(*one, norm, gap) for *one, gap in zip(vectors, radii, room, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@given(st.integers(0, 10**6), st.sampled_from(NORMS), st.floats(0.0, 5.0))
def test_projections_stay_within_ball_and_box(seed, norm, radius):
    vectors = torch.tensor(rows(seed))
    room = torch.tensor(np.random.default_rng(seed).choice([0.0, 0.3, np.inf], vectors.shape))
    found = project(vectors, torch.full((6,), radius), norm, room=room)
    assert bool((lengths(found, norm) <= radius * (1.0 + 1e-6) + 1e-12).all())
    assert bool(((found.abs() <= room) & (found * vectors >= 0.0)).all())


@pytest.mark.parametrize("norm", NORMS)
def test_the_steepest_direction_attains_the_dual_norm(norm):
    gradients = torch.tensor(rows(3))
    directions = steepest(gradients, norm)
    torch.testing.assert_close(lengths(directions, norm), torch.ones(6).double())
    torch.testing.assert_close((directions * gradients).sum(dim=-1), lengths(gradients, DUALS[norm]))
    assert not bool(steepest(torch.zeros(2, 5), norm).any())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("has_box", [False, True])
def test_shortest_moves_are_those_of_cvxpy(norm, has_box):
    gradients, gains = rows(4), np.array([0.0, 0.1, -0.3, 1.0, -1.5, 0.7])
    size = np.random.default_rng(5).uniform(0.3, 0.9, (2, *gradients.shape)) if has_box else np.full((2, 1, 5), np.inf)
    low, high = -size[0], size[1]
    found = shortest_move(
        torch.tensor(gradients), torch.tensor(gains), norm, low=torch.tensor(low), high=torch.tensor(high)
    ).numpy()
    np.testing.assert_allclose((found * gradients).sum(axis=1), gains, atol=1e-9)
    assert np.all((found >= low) & (found <= high))
    for number, (gradient, gain) in enumerate(zip(gradients, gains, strict=True)):
        d = cp.Variable(5)
        inside = [d >= low[number], d <= high[number]] if has_box else []
        solved(cp.norm(d, EXPONENTS[norm]), [gradient @ d == gain, *inside])
        length = np.linalg.norm(found[number], EXPONENTS[norm])
        assert length == pytest.approx(np.linalg.norm(d.value, EXPONENTS[norm]), abs=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_a_gain_out_of_reach_moves_to_the_corner_of_the_box(norm):
    gradient = torch.tensor([[1.0, -2.0, 0.0]]).double()
    low, high = torch.full((1, 3), -0.5).double(), torch.full((1, 3), 0.25).double()
    found = shortest_move(gradient, torch.tensor([100.0]), norm, low=low, high=high)
    assert found.tolist() == [[0.25, -0.5, 0.0]]
    assert shortest_move(torch.zeros(1, 3), torch.tensor([1.0]), norm, low=low, high=high).tolist() == [[0.0] * 3]


@pytest.mark.parametrize("norm", NORMS)
def test_shrinking_minimises_distance_and_price(norm):
    vectors, thresholds = rows(6), np.array([0.0, 0.1, 0.5, 1.0, 2.0, 30.0])
    found = shrink(torch.tensor(vectors), torch.tensor(thresholds), norm)
    for v, threshold, d in zip(vectors, thresholds, found.numpy(), strict=True):
        x = cp.Variable(5)
        solved(cp.sum_squares(x - v) / 2 + threshold * cp.norm(x, EXPONENTS[norm]), [])
        np.testing.assert_allclose(d, x.value, atol=1e-4)
