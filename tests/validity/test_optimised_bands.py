"""Bands that are truncated, or tuned on other clients, hold; tuned on the clients they certify they must not.

Client risks are measured without noise here (`local="observed"`, or uniform values), so that nothing hides a failure.
"""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from riskband import tuning
from riskband.bands.levels import truncated_levels
from tests.validity.coverage import BETA, ObservedLaw, draw_networks, is_rejected, leaves, study

NUM_CLIENTS, DELTA = 25, 0.2
OBJECTIVES = {"cvar": "cvar:0.75", "interval": "interval:0.5:0.9", "several": ["mean", "smoothed_median:0.05"]}


def uniform_failures(levels, *, num_networks, seed):
    """How often sorted uniform values leave the levels."""
    num_values = (levels.lower if levels.lower is not None else levels.upper).size
    ordered = np.sort(np.random.default_rng(seed).random((num_networks, num_values)), axis=1)
    failures = np.zeros(num_networks, dtype=bool)
    if levels.lower is not None:
        failures |= np.any(ordered < levels.lower, axis=1)
    if levels.upper is not None:
        failures |= np.any(ordered > levels.upper, axis=1)
    return failures


@pytest.mark.parametrize("sides", ["lower", pytest.param("upper", marks=pytest.mark.slow), "two"])
@pytest.mark.parametrize("objectives", OBJECTIVES)
def test_tuned_levels_fail_as_often_as_they_say(objectives, sides):
    pilot = BETA.draw(np.random.default_rng(1), num_clients=30, num_examples=1)[0]
    levels = rb.OptimisedLevels(pilot, OBJECTIVES[objectives]).levels(NUM_CLIENTS, DELTA, sides)
    failures = uniform_failures(levels, num_networks=20_000, seed=2)
    assert not is_rejected(failures, DELTA)
    assert failures.mean() > DELTA - 5 * np.sqrt(DELTA / failures.size)  # exact: nothing is given away


@study(60, slow=200)
@pytest.mark.parametrize("local", ["marginal", pytest.param("counted", marks=pytest.mark.slow), "observed"])
@pytest.mark.parametrize("method", ["truncated:0.5:0.9", "tuned"])
def test_bands_from_a_split_hold(method, local, num_networks):
    failures = []
    truth = ObservedLaw(BETA, 50) if local == "observed" else BETA
    for i, risks in enumerate(draw_networks(BETA, num_networks=num_networks, num_clients=50, sizes=50, seed=3)):
        pilot, rest = rb.split_clients(risks, seed=i)
        # One search serves all networks of the same pilot: what is tested is the band, not the time it takes.
        chosen = shared_method(pilot, i) if method == "tuned" else method
        failures.append(leaves(rb.band(rest, delta=DELTA, method=chosen, local=local), truth))
    assert not is_rejected(failures, DELTA)


METHODS: dict[int, rb.OptimisedLevels] = {}


def shared_method(pilot, i):
    """The method of every thirtieth network, whose pilot is independent of the networks after it."""
    if i % 100 == 0:
        METHODS[0] = rb.OptimisedLevels(pilot, "cvar:0.9")
    return METHODS[0]


def tuned_on(values):
    """Levels tuned for the mean of exactly these values, unsmoothed: what `band` makes impossible."""
    gaps = np.diff(np.sort(values), append=1.0)[None, :]
    return tuning.LevelProblem(gaps, lambda p: p, DELTA, "lower").best_levels().lower


@pytest.mark.slow
def test_levels_tuned_on_their_own_values_fail_too_often(monkeypatch):
    """The negative control: the same search, on the values it certifies, and the same with other values of the law."""
    monkeypatch.setattr(tuning, "_WIDTHS", ())  # the mean is a convex problem: a short search will do
    monkeypatch.setattr(tuning, "_MAX_ITERATIONS", (0, 25))
    own, other, rng = [], [], np.random.default_rng(4)
    for _ in range(500):
        first, second = np.sort(rng.random((2, 12)))
        levels = tuned_on(first)
        own.append(np.any(first < levels))
        other.append(np.any(second < levels))
    assert is_rejected(own, DELTA)
    assert not is_rejected(other, DELTA)


def test_a_range_chosen_on_the_values_it_certifies_fails_too_often():
    """Truncated levels whose range gives the smallest bound on these values, out of 20 ranges, and on other values."""
    num_values, rng = 60, np.random.default_rng(5)
    ends = [(low, low + 0.25) for low in np.linspace(0.0, 0.75, 20)]
    family = np.array([truncated_levels(num_values, DELTA, "lower", low=low, high=high).lower for low, high in ends])
    own, other = [], []
    for _ in range(2000):
        first, second = np.sort(rng.random((2, num_values)))
        gains = family @ np.diff(first, append=1.0)
        chosen = family[np.argmax(gains)]
        own.append(np.any(first < chosen))
        other.append(np.any(second < chosen))
    assert is_rejected(own, DELTA)
    assert not is_rejected(other, DELTA)
