"""Target networks: their distances against scipy's linear programs, and what moving may and may not change."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from worlds.population import Population, PopulationSpec
from worlds.shifts import AffineShift, DirichletLabelShift
from worlds.targets import moved_further, transport_cost

COSTS = [(2, "l2"), (1, "l1"), (1, "l2"), (1, "linf")]
ENDS = {"l1": 1, "l2": 2, "linf": np.inf}


def ground_costs(points: np.ndarray, moved: np.ndarray, *, order: int, norm: str) -> np.ndarray:
    return np.linalg.norm(points[:, None] - moved[None], ord=ENDS[norm], axis=-1) ** order


def by_linear_program(costs: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Transport as one program over all pairs of examples; mass between classes is forbidden."""
    num = len(y)
    pairs = np.eye(num)
    from_each, to_each = np.kron(pairs, np.ones(num)), np.kron(np.ones(num), pairs)
    limits = [(0, None if y[i] == y[j] else 0) for i in range(num) for j in range(num)]
    solution = linprog(
        costs.ravel(), A_eq=np.vstack([from_each, to_each]), b_eq=np.concatenate([weights, weights]), bounds=limits
    )
    assert solution.success
    return float(solution.fun)


@pytest.mark.parametrize(("order", "norm"), COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_cost_is_that_of_the_best_transport_within_classes(order: int, norm: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
    weights = rng.dirichlet(np.ones(len(y)))
    points, moved = rng.normal(size=(2, len(y), 3))
    expected = by_linear_program(ground_costs(points, moved, order=order, norm=norm), y, weights)
    assert transport_cost(points, moved, y, weights, order=order, norm=norm) == pytest.approx(expected, rel=1e-6)


def test_images_that_change_places_within_a_class_have_not_moved() -> None:
    rng = np.random.default_rng(0)
    points, y, weights = rng.normal(size=(6, 2)), np.array([0, 0, 0, 1, 1, 1]), np.full(6, 1 / 6)
    assert transport_cost(points, points[[1, 2, 0, 5, 3, 4]], y, weights, order=2, norm="l2") == pytest.approx(0)
    across = points[[3, 4, 5, 0, 1, 2]]
    assert transport_cost(points, across, y, weights, order=2, norm="l2") > 0.1


@pytest.mark.parametrize(("order", "norm"), COSTS)
@pytest.mark.parametrize("sigma", [0.1, 10.0])
def test_moving_each_image_to_its_own_is_a_plan_and_may_not_be_the_best(order: int, norm: str, sigma: float) -> None:
    population = Population(PopulationSpec(shifts=(DirichletLabelShift(0.5),), network="unseen"))
    before, after = population.distribution(2), moved_further(population, 2, sigma=sigma)
    points, moved = (x.reshape(len(x), -1).astype(float) for x in (before.x, after.x))
    identity = before.weights @ np.diagonal(ground_costs_of_rows(points, moved, order=order, norm=norm))
    cost = transport_cost(points, moved, before.y, before.weights, order=order, norm=norm)
    assert 0 < cost <= identity * (1 + 1e-9)
    if sigma == 10.0 and order == 2:
        assert cost < identity * (1 - 1e-6)  # I + A is no longer monotone: the transport is another one


def ground_costs_of_rows(points: np.ndarray, moved: np.ndarray, *, order: int, norm: str) -> np.ndarray:
    metric = {"l1": "cityblock", "l2": "euclidean", "linf": "chebyshev"}[norm]
    return cdist(points, moved, metric) ** order


def test_moving_keeps_labels_and_weights_and_scales_with_sigma() -> None:
    population = Population(PopulationSpec(shifts=(AffineShift(0.2), DirichletLabelShift(1.0)), network="unseen"))
    before = population.distribution(5)
    small, large = (moved_further(population, 5, sigma=sigma) for sigma in (0.1, 0.2))
    for client in (small, large):
        np.testing.assert_array_equal(client.y, before.y)
        np.testing.assert_array_equal(client.weights, before.weights)
    np.testing.assert_allclose(large.x - before.x, 2 * (small.x - before.x), atol=1e-5)
    np.testing.assert_array_equal(moved_further(population, 5, sigma=0.0).x, before.x)


def test_every_client_moves_its_own_way_and_not_as_it_was_shifted() -> None:
    spec = PopulationSpec(shifts=(AffineShift(0.2),), network="unseen")
    population, plain = Population(spec), Population(PopulationSpec(shifts=(), network="unseen"))
    moves = [moved_further(plain, k, sigma=0.2).x - plain.distribution(k).x for k in (0, 1)]
    shifts = [population.distribution(k).x - plain.distribution(k).x for k in (0, 1)]
    flat = np.stack([change.ravel() for change in (*moves, *shifts)])
    # Were two of them the same draw, they would correlate fully; independent ones share only the image.
    assert np.all(np.abs(np.corrcoef(flat)[np.triu_indices(4, 1)]) < 0.5)


def test_rows_that_do_not_fit_and_unknown_norms_are_refused() -> None:
    points, y, weights = np.zeros((3, 2)), np.zeros(3, dtype=int), np.full(3, 1 / 3)
    with pytest.raises(ValueError, match="rows of one client"):
        transport_cost(points, points[:2], y, weights, order=1, norm="l2")
    with pytest.raises(ValueError, match="rows of one client"):
        transport_cost(points, points, y[:2], weights, order=1, norm="l2")
    with pytest.raises(ValueError, match="norm must be one of l1, l2, linf, got 'l3'"):
        transport_cost(points, points, y, weights, order=1, norm="l3")
