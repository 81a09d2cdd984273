"""Laws of certificates whose answers may be missing or wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riskband as rb
from riskband.bands.levels import dkw_levels
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.betting import adaptive_bets, betting_upper_mean, constant_stakes_upper_mean, reaches_target
from tests.laws.draws import DELTAS, LOCALS, METHODS, POINTS, client_risks


def with_unknown(risks, *, num_missing, contamination):
    return rb.ClientRisks(
        risks.values,
        risks.num_examples,
        binary=risks.binary,
        num_missing=num_missing,
        missing="worst",
        contamination=contamination,
    )


@st.composite
def growing_doubt(draw):
    """The same answers twice, the second time with no fewer missing or wrong ones."""
    risks = draw(client_risks())
    wrong = sorted(draw(st.lists(st.integers(0, risks.num_clients - 1), min_size=2, max_size=2)))
    absent = sorted(draw(st.lists(st.integers(0, 6), min_size=2, max_size=2)))
    return tuple(with_unknown(risks, num_missing=m, contamination=b) for m, b in zip(absent, wrong, strict=True))


@given(growing_doubt(), DELTAS, METHODS, LOCALS)
def test_bands_widen_with_every_answer_that_is_missing_or_wrong(doubt, delta, method, local):
    """With one eta, where one is used: by default it follows the number of clients that count."""
    eta = 0.05 if local == "counted" or (local == "marginal" and not doubt[0].has_equal_sizes) else None
    narrow, wide = (rb.band(risks, delta=delta, method=method, local=local, eta=eta) for risks in doubt)
    assert np.all(wide.lower(POINTS) <= narrow.lower(POINTS) + 1e-9)
    assert np.all(wide.upper(POINTS) >= narrow.upper(POINTS) - 1e-9)


@given(growing_doubt(), DELTAS)
def test_bounds_for_the_mean_grow_with_every_answer_that_is_missing_or_wrong(doubt, delta):
    small, large = (rb.mean_bound(risks, delta=delta, method="hoeffding").value for risks in doubt)
    assert small <= large + 1e-12
    certain = rb.mean_bound(with_unknown(doubt[0], num_missing=0, contamination=0), delta=delta, method="hoeffding")
    assert certain.value <= small + 1e-12


@given(client_risks(), DELTAS, METHODS, LOCALS)
def test_nobody_missing_and_nothing_wrong_changes_nothing(risks, delta, method, local):
    same = with_unknown(risks, num_missing=0, contamination=0)
    for side in ("lower", "upper"):
        expected = getattr(rb.band(risks, delta=delta, method=method, local=local), side)(POINTS)
        np.testing.assert_array_equal(
            getattr(rb.band(same, delta=delta, method=method, local=local), side)(POINTS), expected
        )
    for bound in ("betting", "hoeffding", "empirical_bernstein"):
        expected = rb.mean_bound(risks, delta=delta, method=bound).value
        assert rb.mean_bound(same, delta=delta, method=bound).value == expected


@given(client_risks(), DELTAS, st.integers(1, 5))
def test_the_shift_of_a_dkw_band_is_the_share_of_wrong_answers(risks, delta, num_wrong):
    """For `dkw` the exact shift by b ranks is b/K; for `berk_jones` b/K is no bound (see tests/validity)."""
    num_wrong = min(num_wrong, risks.num_clients - 1)
    settings = {"delta": delta, "method": "dkw", "local": "observed"}
    sure = rb.band(risks, **settings)
    doubtful = rb.band(with_unknown(risks, num_missing=0, contamination=num_wrong), **settings)
    share = num_wrong / risks.num_clients
    points = POINTS[POINTS < 1.0]
    np.testing.assert_allclose(doubtful.lower(points), np.maximum(sure.lower(points) - share, 0.0), atol=1e-12)
    assert np.all(doubtful.upper(points) <= np.minimum(sure.upper(points) + share, 1.0) + 1e-12)


@given(client_risks(kinds=("binary", "bounded")), st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), st.data())
def test_no_lie_lowers_a_certificate_below_that_of_the_truth(risks, lies, data):
    """Any answers are replaced, their numbers of examples too: no certificate gets below that of the right answers."""
    num_wrong = data.draw(st.integers(1, min(3, risks.num_clients - 1)))
    liars = data.draw(st.permutations(range(risks.num_clients)))[:num_wrong]
    values = risks.values.copy()
    values[list(liars)] = lies[:num_wrong]
    sizes = risks.num_examples.copy()
    sizes[list(liars)] = data.draw(st.lists(st.integers(1, 60), min_size=num_wrong, max_size=num_wrong))
    told = rb.ClientRisks(values, sizes, binary=risks.binary, contamination=num_wrong)
    true_band, told_band = (rb.band(answers, delta=0.2) for answers in (risks, told))
    assert np.all(told_band.lower(POINTS) <= true_band.lower(POINTS) + 1e-12)
    assert np.all(told_band.upper(POINTS) >= true_band.upper(POINTS) - 1e-12)
    assert rb.cvar(told_band, level=0.5).value >= rb.cvar(true_band, level=0.5).value - 1e-12
    assert rb.mean_bound(told, delta=0.2).value >= constant_stakes_upper_mean(risks.values, delta=0.2) - 1e-12


def test_a_wrong_number_of_examples_gains_nothing_whatever_the_levels_are():
    """Levels that rise while delta falls, as tuned ones may: unequal numbers must not be sharper than equal ones."""

    def rising(num_values, delta, sides):
        return dkw_levels(num_values, 1.0 - delta, sides)

    values = np.arange(10) / 20
    equal = rb.ClientRisks(values, 20, contamination=1)
    unequal = rb.ClientRisks(values, [40, *[20] * 9], contamination=1)
    for side in ("lower", "upper", "two"):
        honest, told = (
            LOCAL_STEPS["marginal"](risks, delta=0.2, sides=side, levels_of=rising, eta=0.05)
            for risks in (equal, unequal)
        )
        for (_, expected), (_, levels) in zip(honest.lower, told.lower, strict=True):
            assert np.all(levels <= expected)
        for (_, expected), (_, levels) in zip(honest.upper, told.upper, strict=True):
            assert np.all(levels >= expected)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30), st.data())
def test_constant_stakes_grow_with_every_value_and_know_no_order(values, data):
    larger = [data.draw(st.floats(value, 1.0)) for value in values]
    bound = constant_stakes_upper_mean(np.array(values), delta=0.1)
    assert np.mean(values) - 1e-12 <= bound <= constant_stakes_upper_mean(np.array(larger), delta=0.1) + 1e-12
    assert constant_stakes_upper_mean(np.array(values)[::-1], delta=0.1) == pytest.approx(bound, abs=1e-12)


@pytest.mark.parametrize("delta", [0.3, 0.05])
def test_what_bets_that_aim_anew_reach_they_reach_with_larger_means(delta):
    """Why halving finds the largest mean that is not refuted; few clients are bad, after whom bold bets are lost."""
    rng, found = np.random.default_rng(0), []
    for _ in range(40):
        values = np.where(rng.random(30) < 1 / 20, 1.0, rng.beta(1.0, 20.0, 30))
        bets, least = adaptive_bets(values, delta), rng.uniform(0.0, 0.02, 30)  # what every client needs at least
        means = [least + mean * (1.0 - least) for mean in np.linspace(0.0, 0.99, 60).tolist()]
        found.append([reaches_target(each, values, bets, delta=delta) for each in means])
    assert np.all(np.diff(np.array(found, dtype=int)) >= 0)
    assert 0.2 < np.mean(found) < 0.95


def test_adaptive_bets_can_fall_when_a_value_grows():
    """Why bets are fixed where values are replaced by larger ones: calmer values make an adaptive gambler bolder."""
    values, larger = np.array([0.2, *[0.9] * 20]), np.full(21, 0.9)
    assert betting_upper_mean(larger, delta=0.05) < betting_upper_mean(values, delta=0.05) - 1e-3


def answers(**known):
    rows = np.array([[0.1, 0.3, 0.4], [0.0, 0.2, 0.3], [0.3, 0.4, 0.4], [0.2, 0.5, 0.7]])
    settings = {"cost": "order 1", "guarantee": "exact", "binary": True, **known}
    return rb.AdversarialAnswers([0.0, 0.1, 1.0], rows, 40, **settings)


RISKS = rb.ClientRisks(np.arange(12) / 40, 40, num_missing=2, missing="worst", contamination=1)
MADE = {
    "mean": rb.mean_bound(RISKS, delta=0.1),
    "band": rb.cvar(rb.band(RISKS, delta=0.1), level=0.5),
    "dispersion": rb.dispersion_certificate(rb.band(RISKS, delta=0.1), "gini", method="convex_order"),
    "transport": rb.wasserstein_mean(
        answers(num_missing=2, missing="worst", contamination=1), delta=0.1, cost_budget=[0.01, 0.1]
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_certificates_say_who_answered_and_can_be_verified(name):
    certificate = MADE[name]
    assert rb.verify(rb.Certificate.from_json(certificate.to_json())).ok
    assert certificate.recipe["answers"]["missing"] == "worst"
    assumed = "\n".join(certificate.assumptions)
    assert "missing at random" not in assumed
    assert "every answer but at most 1, which may be wrong in any way" in assumed
    assert "were asked, also those that gave no valid answer, are independent" in assumed
    forged = json.loads(certificate.to_json())
    forged["recipe"]["answers"]["contamination"] = 0
    assert not rb.verify(forged).ok


def test_certificates_without_doubt_are_stored_as_before():
    stored = rb.mean_bound(rb.ClientRisks([0.1, 0.2, 0.3], 10, num_missing=1), delta=0.1).recipe["answers"]
    assert stored == {"values": [0.1, 0.2, 0.3], "num_examples": [10, 10, 10], "binary": True, "num_missing": 1}


def test_a_wrong_answer_does_not_decide_what_kind_of_loss_it_is():
    assert rb.ClientRisks([0.1, 0.25, 0.3], 10, binary=True, contamination=1).binary
    assert not rb.ClientRisks([0.1, 0.25, 0.3], 10, contamination=1).binary  # not known: the safer guess
    with pytest.raises(ValueError, match="binary=True needs"):
        rb.ClientRisks([0.1, 0.25, 0.31], 10, binary=True, contamination=1)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"num_missing": -1}, "num_missing must be a whole number >= 0, got -1"),
        ({"num_missing": float("nan")}, "num_missing must be a whole number >= 0, got nan"),
        ({"num_missing": "3"}, "num_missing must be a whole number >= 0, got '3'"),
        ({"missing": "drop"}, "missing must be one of ignore, odds:GAMMA, worst, got 'drop'"),
        ({"contamination": 4}, "contamination must be below the number of clients that answered, 4, got 4"),
        ({"contamination": 0.5}, "contamination must be a whole number >= 0, got 0.5; it counts clients"),
        ({"contamination": [1, 2]}, "contamination must be a whole number"),
        ({"contamination": True}, "contamination must be a whole number"),
        ({"contamination": None}, "contamination must be a whole number"),
    ],
)
def test_wrong_numbers_of_missing_and_wrong_answers_are_refused(known, message):
    for make in (answers, lambda **k: rb.ClientRisks([0.1, 0.2, 0.3, 0.4], 10, **k)):
        with pytest.raises(ValueError, match=message):
            make(**known)


@pytest.mark.parametrize("known", [{"num_missing": 1, "missing": "worst"}, {"contamination": 1}])
def test_formulas_that_do_not_know_missing_or_wrong_answers_refuse_them(known):
    risks = rb.ClientRisks([0.1, 0.2, 0.3, 0.4], 10, **known)
    band = rb.band(risks, delta=0.1)
    makers = [
        lambda: rb.mean_bound(risks, delta=0.1, method="published"),
        lambda: rb.mean_bound(risks, delta=0.1, method="empirical_bernstein"),
        lambda: rb.worst_case_mean(band, divergence="kl", budget=0.1, method="published"),
        lambda: rb.worst_case_cdf(band, divergence="kl", budget=0.1, thresholds=0.5, method="published"),
        lambda: rb.wasserstein_published(answers(**known), delta=0.1, cost_budget=0.1, cost_bound=1.0),
    ]
    for make in makers:
        with pytest.raises(ValueError, match="does not know missing or wrong answers; use"):
            make()
