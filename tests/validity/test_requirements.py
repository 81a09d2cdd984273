"""Verdicts are wrong with probability at most delta, whatever the truth; measured numbers are wrong far more often.

The worst limits are those at the truth: FAIL is wrong where the truth is just allowed, PASS where it just is not.
"""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from riskband.worst_cases.requirements import Requirement
from tests.validity.coverage import (
    BETA,
    CONTINUOUS,
    TWO_POINTS,
    draw_networks,
    is_rejected,
    study,
    true_cvar,
    true_worst_case_mean,
)

LAWS = {"beta": BETA, "two points": TWO_POINTS, "continuous": CONTINUOUS}
NUDGE = 1e-9


def truths(law):
    share = float(law.survival(0.3))
    return {
        "mean": law.mean_risk(),
        "share:0.3": share,
        "quantile:0.8": float(law.risk_quantile(0.8)),
        "cvar:0.9": true_cvar(law, 0.9),
        "mean@chi2:0.1": true_worst_case_mean(law, "chi2", 0.1),
        "share:0.3@chi2:0.1": share + float(np.sqrt(0.1 * share * (1.0 - share))),
    }


def limits_at(truth):
    """Two requirements that are just met, and two that just are not."""
    met = [f"{name}{sign}" for name, value in truth.items() for sign in (f"<={value + NUDGE}", f">={value - NUDGE}")]
    unmet = [f"{name}{sign}" for name, value in truth.items() for sign in (f"<={value - NUDGE}", f">={value + NUDGE}")]
    return met, unmet


def is_wrong(verdicts, met, unmet):
    return "FAIL" in verdicts[: len(met)] or "PASS" in verdicts[len(met) :] or len(verdicts) != len(met) + len(unmet)


@pytest.mark.parametrize(
    ("law", "sizes"),
    [("beta", 20), pytest.param("two points", 20, marks=pytest.mark.slow), ("continuous", "unequal")],
)
@study(slow=100)
def test_any_wrong_verdict_is_as_rare_as_delta_says(law, sizes, num_networks, monkeypatch):
    monkeypatch.setattr(
        "riskband.worst_cases.requirements._LARGEST_TRIED", 0
    )  # how many clients would do is not asked here
    met, unmet = limits_at(truths(LAWS[law]))
    wrong, of_band = [], []
    networks = draw_networks(LAWS[law], num_networks=num_networks, num_clients=30, sizes=sizes, seed=14)
    for risks in networks:
        gate = rb.require(risks, met + unmet, delta=0.2)
        wrong.append(is_wrong([each.verdict for each in gate.verdicts], met, unmet))
        gate = rb.require(rb.band(risks, delta=0.2), met + unmet)
        of_band.append(is_wrong([each.verdict for each in gate.verdicts], met, unmet))
    assert not is_rejected(wrong, 0.2)
    assert not is_rejected(of_band, 0.2)


def test_measured_numbers_in_place_of_bounds_fail_the_same_test():
    truth = truths(BETA)
    met, unmet = limits_at({name: truth[name] for name in ("mean", "quantile:0.8", "cvar:0.9")})
    wrong = []
    for risks in draw_networks(BETA, num_networks=15, num_clients=30, sizes=20, seed=14):
        asked = [Requirement.of(text) for text in met + unmet]
        measured = [rb.measured_dispersion(risks, str(each.number)) for each in asked]
        verdicts = [each.verdict(value, value) for each, value in zip(asked, measured, strict=True)]
        wrong.append(is_wrong(verdicts, met, unmet))
    assert is_rejected(wrong, 0.2)


def test_what_is_far_from_the_limit_is_decided():
    """With 500 clients at delta = 0.05; the truth is 0.125, 0.197 and 0.149."""
    asked = ["mean<=0.16", "mean<=0.1", "mean>=0.1", "quantile:0.8<=0.05", "mean@chi2:0.1<=0.1"]
    expected = ["PASS", "FAIL", "PASS", "FAIL", "FAIL"]
    for risks in draw_networks(BETA, num_networks=2, num_clients=500, sizes=100, seed=2):
        gate = rb.require(risks, asked, delta=0.05)
        assert [each.verdict for each in gate.verdicts] == expected


@pytest.mark.slow
def test_a_third_of_the_clients_named_rarely_decide_and_three_times_as_many_nearly_always():
    """The estimate against fresh networks of the true law."""
    told = []
    for risks in draw_networks(BETA, num_networks=3, num_clients=60, sizes=100, seed=5):
        (found,) = rb.require(risks, "mean<=0.15", delta=0.05).verdicts
        told.append(60 if found.num_clients is None else found.num_clients)
        assert (found.then is None) == (found.num_clients is None) == (found.verdict != "NOT DECIDED")
    middle = int(np.median(told))
    shares = []
    for size in (middle // 3, 3 * middle):
        networks = draw_networks(BETA, num_networks=10, num_clients=size, sizes=100, seed=6)
        shares.append(np.mean([rb.require(risks, "mean<=0.15", delta=0.05).verdict == "PASS" for risks in networks]))
    assert shares[0] <= 0.3
    assert shares[1] >= 0.8
