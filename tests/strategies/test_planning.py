"""What to ask within the clients' query budgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.planning import fitted_sizes

sizes = st.integers(3, 300), st.integers(1, 100)
budgets = st.lists(st.one_of(st.none(), st.integers(0, 500)))


@given(*sizes, budgets)
def test_the_question_fits_every_budget_that_allows_the_least_one(num_radii, num_multipliers, budgets):
    radii, multipliers = fitted_sizes(num_radii, num_multipliers, budgets=budgets)
    least = 1 + min(10, num_radii) + min(6, num_multipliers)
    useful = [left for left in budgets if left is not None and left >= least]
    assert min(10, num_radii) <= radii <= num_radii
    assert min(6, num_multipliers) <= multipliers <= num_multipliers
    # Nothing that may be asked for is given away.
    assert 1 + radii + multipliers == min([*useful, 1 + num_radii + num_multipliers])


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [([], (100, 24)), ([None, 125], (100, 24)), ([17], (10, 6)), ([16, None], (100, 24)), ([71, 300, 3], (55, 15))],
)
def test_both_are_cut_by_the_same_share(budgets, expected):
    # With 71 values: half of the 108 above the least question, 90 radii and 18 multipliers.
    assert fitted_sizes(100, 24, budgets=budgets) == expected
