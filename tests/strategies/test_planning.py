"""What to ask within the clients' query budgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.wasserstein import fitted_sizes

sizes = st.integers(3, 300), st.integers(1, 100)
budgets = st.lists(st.one_of(st.none(), st.integers(0, 500)))


@given(*sizes, budgets, st.sampled_from([1, 2]))
def test_the_question_fits_every_budget_that_allows_the_least_one(num_radii, num_multipliers, budgets, num_bounds):
    def num_values(radii, multipliers):
        return 2 + num_bounds * (radii + multipliers)

    radii, multipliers = fitted_sizes(num_radii, num_multipliers, budgets=budgets, num_values=num_values)
    least = num_values(min(10, num_radii), min(6, num_multipliers))
    useful = [left for left in budgets if left is not None and left >= least]
    assert min(10, num_radii) <= radii <= num_radii
    assert min(6, num_multipliers) <= multipliers <= num_multipliers
    # Nothing that may be asked for is given away.
    most = min([*useful, num_values(num_radii, num_multipliers)])
    assert most - num_bounds < num_values(radii, multipliers) <= most


@pytest.mark.guard
@pytest.mark.parametrize(
    ("budgets", "expected"),
    [([], (100, 24)), ([None, 126], (100, 24)), ([18], (10, 6)), ([17, None], (100, 24)), ([72, 300, 3], (55, 15))],
)
def test_both_are_cut_by_the_same_share(budgets, expected):
    # With 72 values: half of the 108 above the least question, 90 radii and 18 multipliers.
    sizes = fitted_sizes(100, 24, budgets=budgets, num_values=lambda radii, multipliers: 2 + radii + multipliers)
    assert sizes == expected
