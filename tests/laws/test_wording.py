"""Numbers in sentences never say more than the numbers behind them."""

import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riskband as rb
from riskband.wording import down_to_digits, exactly, rounded_down, rounded_up, rounded_up_strictly


@given(st.floats(0, 1), st.integers(1, 8))
def test_rounded_bounds_hold(value, num_digits):
    up, down = float(rounded_up(value, num_digits)), float(rounded_down(value, num_digits))
    assert down - 1e-9 <= value <= up + 1e-9
    assert up - down <= 10.0**-num_digits * (1 + 1e-6)


@given(st.integers(0, 10_000))
def test_numbers_with_few_digits_stay_as_they_are(count):
    assert rounded_up(count / 10_000) == rounded_down(count / 10_000) == f"{count / 10_000:.4f}"


@pytest.mark.parametrize("shift", [0, 3, -2, 1440, 10**8])
def test_a_number_rounded_up_strictly_is_the_smallest_of_four_digits_that_is_not_below(shift):
    """Also one unit in the last place beside those of four digits, where a product with 10,000 misleads."""
    for step in range(0, 10_001, 1 if shift == 0 else 97):
        exact = shift + Decimal(step).scaleb(-4)
        above, below = (float(np.nextafter(float(exact), end)) for end in (np.inf, -np.inf))
        assert Decimal(rounded_up_strictly(float(exact))) == exact
        assert Decimal(rounded_up_strictly(below)) == exact
        assert Decimal(rounded_up_strictly(above)) == exact + Decimal("0.0001")


@given(st.floats(-1e300, 1e300))
def test_no_number_rounded_up_strictly_is_below_itself(value):
    assert float(rounded_up_strictly(value)) >= value
    assert rounded_up_strictly(value) != "-0"


@given(st.floats(1e-6, 1e3))
def test_a_budget_is_never_said_to_be_larger_than_it_is(budget):
    said = float(down_to_digits(budget))
    assert budget * (1.0 - 1.001e-3) <= said <= budget


def test_a_budget_keeps_the_digits_that_it_has():
    assert [down_to_digits(each) for each in (0.0, 0.3, 1e3, np.inf)] == ["0", "0.3", "1000", "inf"]
    assert down_to_digits(3.45678e-5) == "3.456e-05"


def test_tiny_bounds_are_not_nothing():
    assert rounded_up(2.3e-5) == "0.0001"
    assert exactly(0.33333349) == "0.33333349"
    assert exactly(np.linspace(0, 1, 11)[3]) == "0.3"


@pytest.fixture
def curve():
    network = rb.AdversarialAnswers(
        [0.0, 1e-9, 1e-8],
        np.tile([0.1, 0.2, 0.3], (40, 1)),
        50,
        cost="order 1",
        guarantee="exact",
        binary=True,
    )
    return rb.wasserstein_mean(network, delta=1e-9, cost_budget=[1e-11, 5e-11]).to_dict()


@pytest.mark.parametrize(
    ("field", "value"), [("axes", {"cost_budget": [5e-10, 9e-10]}), ("delta", 1e-30), ("value", [0.2, 0.3])]
)
def test_verify_sees_a_change_however_small_the_unit(curve, field, value):
    assert rb.verify(json.loads(json.dumps(curve))).ok
    assert not rb.verify({**curve, field: value}).ok
