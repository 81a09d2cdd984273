"""The remaining time of a round: closed forms, and laws that any such estimate has to keep."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.asking.exchange import MIN_REPLIES, remaining_seconds

gaps = st.lists(st.floats(0.01, 100.0), min_size=MIN_REPLIES, max_size=30)


def times(gaps: list[float]) -> list[float]:
    return [math.fsum(gaps[: number + 1]) for number in range(len(gaps))]


@pytest.mark.parametrize("num_replies", [5, 6, 7, 100, 101])
@pytest.mark.parametrize("start", [0.0, 1000.0])
def test_a_constant_rate_goes_on(num_replies: int, start: float) -> None:
    arrivals = [start + 0.5 * number for number in range(num_replies)]
    assert remaining_seconds(arrivals, num_open=30, now=arrivals[-1]) == pytest.approx(15.0)


def test_the_pace_of_the_later_half_counts() -> None:
    arrivals = [60.0, 61.0, 62.0, 62.1, 62.2, 62.3]  # Flower starts for a minute, then the first are slow
    assert remaining_seconds(arrivals, num_open=10, now=62.3) == pytest.approx(1.0)


def test_a_pause_makes_the_rest_longer() -> None:
    arrivals = [float(number) for number in range(10)]
    assert remaining_seconds(arrivals, num_open=4, now=9.0) == pytest.approx(4.0)
    assert remaining_seconds(arrivals, num_open=4, now=14.0) == pytest.approx(8.0)


def test_too_few_replies_say_nothing_and_no_open_ones_take_no_time() -> None:
    assert remaining_seconds([1.0, 2.0, 3.0, 4.0], num_open=1, now=5.0) is None
    assert remaining_seconds([], num_open=1, now=5.0) is None
    assert remaining_seconds([1.0], num_open=0, now=5.0) == 0.0
    assert remaining_seconds([2.0] * 8, num_open=3, now=2.0) is None  # all at once: at no known pace


@given(gaps, st.integers(1, 50), st.floats(0.0, 10.0), st.floats(0.1, 10.0), st.floats(0.0, 1e4))
def test_another_unit_and_another_clock_change_nothing(
    gaps: list[float], num_open: int, pause: float, unit: float, offset: float
) -> None:
    arrivals = times(gaps)
    now = arrivals[-1] + pause
    left = remaining_seconds(arrivals, num_open=num_open, now=now)
    moved = remaining_seconds([offset + unit * a for a in arrivals], num_open=num_open, now=offset + unit * now)
    assert left is not None
    assert moved == pytest.approx(unit * left, rel=1e-6, abs=1e-6)


@given(gaps, st.integers(1, 50), st.floats(0.01, 10.0))
def test_more_open_replies_and_longer_pauses_never_take_less(gaps: list[float], num_open: int, pause: float) -> None:
    arrivals = times(gaps)
    now = arrivals[-1]
    left = remaining_seconds(arrivals, num_open=num_open, now=now)
    assert left is not None
    assert remaining_seconds(arrivals, num_open=2 * num_open, now=now) == pytest.approx(2 * left)
    after_pause = remaining_seconds(arrivals, num_open=num_open, now=now + pause)
    assert after_pause is not None
    assert after_pause > left
