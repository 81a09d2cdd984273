"""The cells of small ReLU networks: counted by formula, entered by points, and none missed, however thin."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

from riskband.adversaries.bounds.lipschitz import SequentialLayers, margin_constants
from riskband.adversaries.bounds.relu_cells import hidden_units, is_proved_empty, relu_cells
from tests.adversaries.nets import logits_of, mlp


def cells_of(model, num_inputs):
    layers = SequentialLayers(model, (num_inputs,))
    return list(relu_cells(layers.body, layers.x_shape)), layers.head


def contains(cell, x):
    return np.all(cell.rows @ x + cell.offsets > 0.0)


@pytest.mark.parametrize(("num_inputs", "num_units"), [(1, 6), (2, 6), (3, 5), (5, 4)])
def test_general_hyperplanes_cut_space_into_as_many_cells_as_schlaefli_counted(num_inputs, num_units):
    cells, _ = cells_of(mlp(num_inputs, num_units, 2), num_inputs)
    assert len(cells) == sum(comb(num_units, i) for i in range(num_inputs + 1))
    assert all(cell.point is not None for cell in cells)


def test_hyperplanes_through_the_origin_make_cones_only():
    """Here every sum of signs holds with equality at 0: only an exact proof can tell those patterns from cells."""
    cells, _ = cells_of(mlp(2, 7, 3, bias=False), 2)
    assert len(cells) == 2 * 7
    cells, _ = cells_of(mlp(3, 5, 3, bias=False), 3)
    assert len(cells) == 2 * sum(comb(4, i) for i in range(3))


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), sizes=st.sampled_from([(2, 5, 3), (2, 3, 3, 2), (3, 4, 2)]))
@settings(max_examples=12)
def test_the_network_is_what_its_cells_say(seed, sizes):
    model = mlp(*sizes, seed=seed, activation=lambda: nn.LeakyReLU(0.25))
    cells, head = cells_of(model, sizes[0])
    x = np.random.default_rng(seed).normal(size=(60, sizes[0])) * 5.0
    owners = [[cell for cell in cells if contains(cell, point)] for point in x]
    assert [len(found) for found in owners] == [1] * len(x)
    # Jacobians by central differences, within the cell of a witness.
    for cell in cells:
        room = np.min(cell.rows @ cell.point + cell.offsets) / 2.0
        for axis in range(sizes[0]):
            ends = cell.point + room * np.array([[1.0], [-1.0]]) * np.eye(sizes[0])[axis]
            high, low = logits_of(model, ends)
            np.testing.assert_allclose(
                (high - low) / (2.0 * room), (head @ cell.jacobian)[:, axis], atol=1e-9 / min(room, 1.0)
            )


def thin_step(width):
    """1e8 * relu(x) - 1e8 * relu(x - width): flat, but for a cell of this width."""
    model = nn.Sequential(nn.Linear(1, 2).double(), nn.ReLU(), nn.Linear(2, 2).double())
    with torch.no_grad():
        model[0].weight.copy_(torch.ones(2, 1))
        model[0].bias.copy_(torch.tensor([0.0, -width], dtype=torch.float64))
        model[2].weight.copy_(torch.tensor([[1e8, -1e8], [0.0, 0.0]]))
    return model


@pytest.mark.parametrize("width", [1e-3, 1e-7, 1e-9, 1e-12, 1e-200])
def test_no_cell_is_too_thin_to_count(width):
    constants = margin_constants(thin_step(width), (1,), norm="l2", method="exact")
    assert float(constants[0, 1]) == pytest.approx(1e8, rel=2e-6)


@pytest.mark.parametrize("scale", [1e-290, 1e-200, 1.0, 1e200])
def test_units_of_any_size_are_told_apart(scale):
    model = mlp(2, 4, 2).double()
    with torch.no_grad():
        model[0].weight[0] *= scale
        model[0].bias[1] *= scale
    with np.errstate(all="raise", under="ignore"):
        cells, _ = cells_of(model, 2)
    assert sum(cell.point is not None for cell in cells) <= 11 <= len(cells)


def test_a_linear_program_alone_would_miss_a_thin_cell():
    """Negative control: the deepest point of {x > 0, 1e-9 - x > 0} is within a solver's tolerance of the boundary."""
    deepest = linprog([0.0, -1.0], A_ub=[[-1.0, 1.0], [1.0, 1.0]], b_ub=[0.0, 1e-9], bounds=[(None, None), (None, 1.0)])
    assert deepest.x[1] < 1e-7  # the usual test for an interior


def test_what_is_proved_empty_is_empty():
    def exact(rows):
        return np.array([[Fraction(value) for value in row] for row in rows], dtype=object)

    def numbers(values):
        return np.array([Fraction(value) for value in values], dtype=object)

    opposite = exact([[1.0, 2.0], [-1.0, -2.0]])
    assert is_proved_empty(opposite, numbers([0.0, 0.0]))
    assert is_proved_empty(opposite, numbers([0.1, -0.1]))
    assert not is_proved_empty(opposite, numbers([0.1, -np.nextafter(0.1, 0.0)]))  # one ulp wide
    assert is_proved_empty(exact([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), numbers([0.0, 0.0, 0.0]))
    assert not is_proved_empty(exact([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), numbers([0.0, 0.0, 2.0**-1000]))
    assert not is_proved_empty(exact([[1.0, 0.0], [0.0, 1.0]]), numbers([-5.0, -5.0]))
    assert not is_proved_empty(exact([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), numbers([0.0, 0.0, 0.0]))  # two relations


def test_units_that_never_bend_do_not_split():
    model = mlp(2, 3, 2)
    with torch.no_grad():
        model[0].weight[1] = 0.0
    for bias in (-1.0, 0.0, 1.0):
        with torch.no_grad():
            model[0].bias[1] = bias
        assert len(cells_of(model, 2)[0]) == 4


def test_a_constant_unit_is_what_it_is_to_the_layers_behind_it():
    model = mlp(2, 3, 3, 2, seed=4)
    with torch.no_grad():
        model[0].weight[1] = 0.0
        model[0].bias[1] = -3.0
    cells, _ = cells_of(model, 2)
    hidden = model[:3]
    for x in np.random.default_rng(0).normal(size=(40, 2)) * 3.0:
        (owner,) = [cell for cell in cells if contains(cell, x)]
        same_signs = np.sign(logits_of(hidden, owner.point[None])) == np.sign(logits_of(hidden, x[None]))
        assert np.all(same_signs)


def test_units_are_counted_where_they_can_be():
    assert hidden_units(SequentialLayers(mlp(3, 4, 5, 2), (3,)).body) == 9
    assert hidden_units(SequentialLayers(nn.Linear(3, 2), (3,)).body) == 0
    assert hidden_units(SequentialLayers(mlp(3, 4, 2, activation=nn.Tanh), (3,)).body) is None
    convolved = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    assert hidden_units(SequentialLayers(convolved, (1, 3, 3)).body) == 8
    pooled = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2))
    assert hidden_units(SequentialLayers(pooled, (1, 2, 2)).body) is None
