"""Certificates as files: round trips without loss, and verification that notices every change."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.certificate import CrossingError
from riskband.cli.terminal import summary
from riskband.functionals.weights import interval_weight
from riskband.report.findings import findings
from riskband.report.page import report_page
from riskband.report.words import bound_in_words
from riskband.tracking import _numbers
from riskband.wording import rounded_down, rounded_up
from riskband.worst_cases.always_valid import always_valid
from tests.laws.draws import DELTAS, DIVERGENCES, LOCALS, METHODS, client_risks

LEVELS = [0.0, 0.2, 0.5, 0.9, 1.0]
MAKERS = {
    "mean": lambda band, divergence: rb.mean(band),
    "cvar": lambda band, divergence: rb.cvar(band, level=0.9),
    "quantile": lambda band, divergence: rb.quantile(band, level=0.5),
    "quantiles": lambda band, divergence: rb.quantile(band, level=LEVELS),
    "survival": lambda band, divergence: rb.survival(band, thresholds=0.3),
    "survivals": lambda band, divergence: rb.survival(band, thresholds=LEVELS),
    "worst mean": lambda band, divergence: rb.worst_case_mean(band, divergence=divergence, budget=0.1),
    "worst means": lambda band, divergence: rb.worst_case_mean(band, divergence=divergence, budget=[0.0, 0.3]),
    "worst share": lambda band, divergence: rb.worst_case_cdf(band, divergence=divergence, budget=0.1, thresholds=0.2),
    "worst shares": lambda band, divergence: rb.worst_case_cdf(
        band, divergence=divergence, budget=[0.1, 0.2], thresholds=LEVELS
    ),
    "whole curve": lambda band, divergence: rb.worst_case_cdf(band, divergence=divergence, budget=0.1),
}


@st.composite
def certificates(draw):
    risks = draw(client_risks(max_clients=8))
    if draw(st.integers(0, 4)) == 0:
        method = draw(st.sampled_from(["betting", "hoeffding", "empirical_bernstein", "published"]))
        return rb.mean_bound(risks, delta=draw(DELTAS), method=method, seed=draw(st.integers(0, 9)))
    band = rb.band(risks, delta=draw(DELTAS), method=draw(METHODS), local=draw(LOCALS), sides="lower")
    return MAKERS[draw(st.sampled_from(sorted(MAKERS)))](band, draw(DIVERGENCES))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(certificates())
def test_a_round_trip_keeps_every_byte_and_verifies(certificate):
    text = certificate.to_json()
    loaded = rb.Certificate.from_json(text)
    assert loaded.to_json() == text
    assert loaded == certificate
    assert hash(loaded) == hash(certificate)
    assert loaded.statement == certificate.statement
    verification = rb.verify(loaded)
    assert verification.ok, verification.problems
    assert verification.problems == ()


@pytest.mark.parametrize("divergence", rb.DIVERGENCES)
@pytest.mark.parametrize("number", ["mean", "share:0.2", "quantile:0.5"])
def test_bounds_that_cross_are_an_error_that_says_which_budget_is_false(divergence, number):
    """40 clients of a source at .09 and 20 of a target at .93: a bound of each network, and no value between them."""
    source = rb.ClientRisks((np.arange(40) % 10) / 50, 100)
    far = rb.ClientRisks(0.9 + np.arange(20) / 200, 200)
    with pytest.raises(CrossingError, match=r"must not cross, .* within the stated budget .*Do without what is false"):
        rb.bound((source, far), f"{number}@target:{divergence}:0.01", delta=0.05)
    assert rb.divergence_lower_bound(source, far, divergence=divergence, delta=0.05).lower > 0.01


def test_rounding_is_no_crossing_and_a_stored_crossing_is_refused():
    stored = rb.dispersion_certificate(rb.ClientRisks([0.1, 0.2, 0.3] * 9, 100), "gini", delta=0.1).to_dict()
    loaded = rb.Certificate.from_dict(stored | {"lower": stored["value"] + 1e-12})
    assert loaded.lower == loaded.value == stored["value"]
    with pytest.raises(CrossingError, match="independent draws"):
        rb.Certificate.from_dict(stored | {"lower": stored["value"] + 1e-6})


@pytest.mark.parametrize("number", ["mean", "mean@chi2:0.1"])
@pytest.mark.parametrize("sides", ["two", "worse"])
def test_no_always_valid_bound_excludes_the_mean_of_what_it_has_measured(number, sides):
    values = np.sort(np.random.default_rng(0).beta(0.4, 2.0, 400)).round(2)
    for risks in (rb.ClientRisks(values, 100), rb.ClientScores(1.0 - values, True), rb.ClientScores(values, False)):
        with pytest.raises(CrossingError, match="says nothing about their answers"):
            always_valid(risks, number, delta=0.05, sides=sides)


def test_no_order_of_bets_excludes_the_mean_of_what_was_measured():
    for seed in range(8):
        coins = (np.random.default_rng(seed).random(40) < 0.3) * 1.0
        risks = rb.ClientRisks(coins, 1, binary=True)
        assert rb.mean_bound(risks, delta=0.6, seed=seed).value >= coins.mean()
        assert rb.worst_case_mean(risks, divergence="kl", budget=0.001, delta=0.6, seed=seed).value >= coins.mean()


def test_a_saved_file_is_the_same_certificate(tmp_path, certificate):
    certificate.save(tmp_path / "certificate.json")
    assert rb.Certificate.load(tmp_path / "certificate.json").to_json() == certificate.to_json()


def test_the_same_answers_give_the_same_bytes(certificate):
    assert make().to_json() == certificate.to_json()


def make(**options):
    rng = np.random.default_rng(2)
    risks = rb.ClientRisks(rng.binomial(50, rng.beta(3, 12, 30)) / 50, 50, num_missing=2)
    band = rb.band(risks, delta=0.05, sides="lower", **options)
    return rb.worst_case_mean(band, divergence="chi2", budget=[0.05, 0.2])


@pytest.fixture
def certificate():
    return make()


def place(data, path):
    for step in path[:-1]:
        data = data[step]
    return data, path[-1]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (("value", 0), lambda v: v - 1e-6),
        (("value", 1), lambda v: v + 1e-6),
        (("delta",), lambda v: 0.01),
        (("quantity",), lambda v: v.replace("mean", "smallest")),
        (("method",), lambda v: v + " (improved)"),
        (("validity",), lambda v: "refuted"),
        (("assumptions",), lambda v: v[:-1]),
        (("assumptions", 0), lambda v: "none"),
        (("axes", "budget", 1), lambda v: 0.9),
        (("details", "client_weights", 0, 3), lambda v: v + 1e-6),
        (("details", "unseen_weight", 0), lambda v: 0.0),
        (("recipe", "band", "delta"), lambda v: 0.1),
        (("recipe", "band", "method"), lambda v: "dkw"),
        (("recipe", "arguments", "divergence"), lambda v: "kl"),
        (("recipe", "arguments", "budget", 0), lambda v: 0.051),
        (("recipe", "answers", "values", 7), lambda v: v + 0.02),
        (("recipe", "answers", "num_missing"), lambda v: 0),
    ],
)
def test_verification_notices_every_change(certificate, path, change):
    data = json.loads(certificate.to_json())
    parent, name = place(data, path)
    parent[name] = change(parent[name])
    verification = rb.verify(rb.Certificate.from_json(json.dumps(data)))
    assert not verification.ok
    assert verification.problems


def test_a_local_step_that_could_not_have_been_asked_for_is_refused(certificate):
    data = json.loads(certificate.to_json())
    data["recipe"]["band"]["local"] = "union"
    with pytest.raises(ValueError, match="local='union' has no eta"):
        rb.verify(rb.Certificate.from_json(json.dumps(data)))


def test_a_statement_that_promises_more_is_noticed(certificate):
    data = json.loads(certificate.to_json())
    data["statement"] = re.sub("0.95", "0.999", data["statement"])
    assert data["statement"] != certificate.statement
    assert not rb.verify(data).ok


def test_num_examples_matter_where_local_limits_do():
    rng = np.random.default_rng(2)
    risks = rb.ClientRisks(rng.binomial(50, 0.2, 30) / 50, 50)
    curve = rb.survival(rb.band(risks, delta=0.05, sides="lower"), thresholds=np.linspace(0, 1, 20))
    data = json.loads(curve.to_json())
    data["recipe"]["answers"]["num_examples"] = [500] * 30
    assert not rb.verify(rb.Certificate.from_json(json.dumps(data))).ok


def test_divergences_and_weights_of_ones_own_can_be_verified():
    own = rb.custom_divergence("cubic", lambda t: (t**3 - 3 * t + 2) / 6, slope_at_infinity=np.inf)
    band = rb.band(rb.ClientRisks([0.1, 0.2, 0.3], 10), delta=0.1, sides="lower")
    share = rb.worst_case_cdf(band, divergence=own, budget=0.1, thresholds=0.5)
    assert rb.verify(share, divergences={"cubic": own}).ok
    with pytest.raises(ValueError, match="cubic"):
        rb.verify(share)
    weight = rb.QuantileWeight("square", np.square)
    integral = rb.weighted_quantile(band, weight)
    assert rb.verify(integral, weights={"square": weight}).ok
    with pytest.raises(ValueError, match=r"weight must be one of .*, got 'square'"):
        rb.verify(integral)


def test_a_weight_with_a_name_is_verified_by_it():
    """By all of its digits: cut to six, the name would be that of another weight."""
    band = rb.band(rb.ClientRisks([0.1, 0.2, 0.3], 10), delta=0.1, sides="lower")
    integral = rb.weighted_quantile(band, interval_weight(0.123456789, 0.9))
    assert rb.verify(integral).ok
    assert integral == rb.weighted_quantile(band, "interval:0.123456789:0.9")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"schema": "riskband.certificate/999"}', '{"schema": "riskband.certificate/1"}']
)
def test_other_files_are_refused(text):
    with pytest.raises(ValueError, match=r"JSON|schema|field"):
        rb.Certificate.from_json(text)


def test_a_number_that_is_not_finite_never_becomes_a_certificate(certificate):
    data = json.loads(certificate.to_json())
    data["value"][0] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        rb.Certificate.from_dict(data)


def test_a_certificate_does_not_change_when_its_input_does():
    values = np.array([0.1, 0.2, 0.3])
    risks = rb.ClientRisks(values, 10)
    before = rb.mean(rb.band(risks, delta=0.1, sides="lower")).to_json()
    values[:] = 0.9
    assert rb.mean(rb.band(risks, delta=0.1, sides="lower")).to_json() == before
    with pytest.raises(ValueError, match="read-only"):
        risks.values[0] = 0.5


def test_statements_say_what_holds_and_how_sure_it_is(certificate):
    assert "with probability at least 0.95" in certificate.statement
    assert "for every budget at once" in certificate.statement
    number = rb.mean_bound(rb.ClientRisks([0.1, 0.2], 10), delta=0.1)
    assert f"is at most {rounded_up(number.value)}" in number.statement
    assert "with probability at least 0.9 " in number.statement


def test_the_statement_of_a_curve_names_numbers_that_hold():
    band = rb.band(rb.ClientRisks([0.1, 0.2, 0.4, 0.3] * 20, 20), delta=0.1, sides="lower")
    curve = rb.worst_case_cdf(band, divergence="kl", budget=[0.05, 0.1])
    found = re.findall(r"([0-9.]+) at budget ([0-9.]+) and threshold ([0-9.]+)", curve.statement.rstrip("."))
    assert len(found) == 3
    assert {budget for _, budget, _ in found} == {"0.05", "0.1"}
    for value, budget, threshold in found:
        there = rb.worst_case_cdf(band, divergence="kl", budget=float(budget), thresholds=float(threshold))
        assert 0.0 < there.value <= float(value) < 1.0
    both = rb.quantile_certificate(rb.band(band.risks, delta=0.1), level=[0.25, 0.5])
    assert f": {rounded_down(both.lower[0])} to {rounded_up(both.value[0])} at level 0.25; " in both.statement


def test_a_threshold_just_above_a_measured_risk_is_rounded_up():
    band = rb.band(rb.ClientRisks([0.1, 0.3] * 20, 10), delta=0.1, sides="lower", local="observed")
    points = np.nextafter(np.array([0.1, 0.3]), 1.0)
    curve = rb.survival(band, thresholds=points)
    assert curve.value[0] < rb.survival(band, thresholds=0.1).value
    assert f"{rounded_up(curve.value[0])} at threshold 0.1001" in curve.statement


def test_the_sentence_of_a_curve_must_name_its_numbers(certificate):
    data = json.loads(certificate.to_json())
    data["statement"] = data["statement"].split(": ")[0] + "."
    assert data["statement"] != certificate.statement
    assert not rb.verify(data).ok


@pytest.mark.parametrize("delta", [1e-17, 1e-12])
def test_no_probability_is_said_to_be_one(delta):
    number = rb.mean_bound(rb.ClientRisks([0.1, 0.2] * 30, 10), delta=delta)
    assert f"with probability at least 1 - {delta:g} over" in number.statement
    assert rb.verify(json.loads(number.to_json())).ok


def test_equal_content_is_equal_and_other_content_is_not():
    risks = [rb.ClientRisks([0.1, 0.2, 0.4], 10, num_missing=number) for number in (0, 0, 1)]
    bands = [rb.band(each, delta=0.1) for each in risks]
    means = [rb.mean(band) for band in bands]
    for first, second, other in (risks, bands, means):
        assert first is not second
        assert first == second != other
        assert len({first, second, other}) == 2
        assert first != 1


def test_a_certificate_is_not_changed_by_its_inputs_nor_by_hand():
    risks = rb.ClientRisks([0.1, 0.2, 0.4, 0.3], 20)
    budgets, thresholds = np.array([0.1, 0.2]), np.array([0.3, 0.5])
    band = rb.band(risks, delta=0.1)
    made = rb.worst_case_cdf(band, divergence="kl", budget=budgets, thresholds=thresholds)
    budgets[0] = thresholds[0] = 0.9
    assert rb.verify(made).ok
    for array in (made.value, made.axes["budget"], band.lower_points, band.lower_levels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


@pytest.mark.parametrize("delta", [np.float32(0.05), np.array(0.05)])
def test_numbers_of_other_types_give_certificates_that_verify(delta):
    risks = rb.ClientRisks([0.1, 0.2, 0.4, 0.3], 20)
    band = rb.band(risks, delta=delta, eta=np.float32(0.01))
    for made in (
        rb.mean_bound(risks, delta=delta),
        rb.survival(band, thresholds=0.5),
        rb.cvar(band, level=np.float32(0.5)),
    ):
        assert rb.verify(json.loads(made.to_json())).ok


def test_a_number_in_quotes_is_not_a_number(certificate):
    data = json.loads(certificate.to_json())
    data["value"] = [str(value) for value in data["value"]]
    with pytest.raises(ValueError, match="value of a certificate must be numbers"):
        rb.verify(data)


def test_a_file_of_several_certificates_is_told_apart():
    several = {"schema": "riskband.certificates/1", "certificates": {}}
    with pytest.raises(ValueError, match="it holds several, so give one of its 'certificates' to"):
        rb.Certificate.from_dict(several)


ZERO_RISKS = rb.ClientRisks(np.linspace(0.0, 0.3, 12), 100)
ZERO = rb.dispersion_certificate(rb.band(ZERO_RISKS, delta=0.05, method="dkw"), "share:0.3")


def test_a_lower_end_that_is_exactly_zero_is_an_end_wherever_it_is_read():
    assert ZERO.lower == 0.0
    said = f"lies between 0.0000 and {rounded_up(ZERO.value)}"
    assert said in ZERO.statement
    assert said in repr(ZERO)
    assert bound_in_words(ZERO) == f"0.0000 to {rounded_up(ZERO.value)}"
    assert ZERO.ends[0] == 0.0
    with pytest.raises(TypeError, match="got two ends"):
        float(ZERO)
    assert ZERO.to_frame()["lower"].tolist() == [0.0]
    stored = ZERO.to_dict()
    assert stored["lower"] == 0.0
    again = rb.Certificate.from_dict(stored)
    assert again == ZERO
    assert again != dataclasses.replace(ZERO, lower=None)
    assert rb.verify(stored).ok
    assert "lower: missing" in rb.verify({name: each for name, each in stored.items() if name != "lower"}).problems
    assert "lower: stored 0.01, recomputed 0.0" in rb.verify({**stored, "lower": 0.01}).problems
    assert f"0.0000 <= {ZERO.quantity} <= " in summary(findings({"share": ZERO}), ZERO_RISKS, how_read="", binary=None)
    page = report_page({"mean": rb.mean_bound(ZERO_RISKS, delta=0.05), "share": ZERO}, title="zero")
    assert f">0.0000 to {rounded_up(ZERO.value)}</td>" in page
    assert dict(_numbers("share", ZERO)) == {
        "riskband/share/certificate/upper": ZERO.value,
        "riskband/share/certificate/lower": 0.0,
    }
    assert f"0.0000 to {rounded_up(ZERO.value)}" in {text.get_text() for text in ZERO.plot().texts}
    with pytest.raises(ValueError, match="must not cross, got 0 below"):
        dataclasses.replace(ZERO, value=-0.1, lower=0.0)


def test_of_two_bounds_on_a_score_the_larger_lower_end_is_kept_also_if_it_is_zero():
    scores = rb.ClientScores(np.linspace(0.2, 0.8, 30), higher_is_better=True, low=-1.0, high=1.0)
    made = rb.bound(scores, "mean", delta=0.05, sides="two")
    pair = {"zero": dataclasses.replace(made, lower=0.0), "below": dataclasses.replace(made, lower=-0.4)}
    for order in (pair, dict(reversed(pair.items()))):
        assert list(findings(order).certificates) == ["zero"]
