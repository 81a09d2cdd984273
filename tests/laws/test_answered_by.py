"""Every certificate assumes that the model came first; from clients that helped to make it there are estimates only."""

import json
from functools import cache

import numpy as np
import pytest

import riskband as rb
from riskband.answers.histogram import Histogram
from riskband.answers.responses import FRESH_CLIENTS
from riskband.bands.band import Band
from riskband.certificate import CERTIFICATE, ESTIMATE, REFUTED, weakest_validity
from riskband.functionals.dispersion import UnboundedError
from riskband.functionals.weights import QuantileWeight
from riskband.selection import FRESH_FOR_CANDIDATES
from riskband.verification import FUNCTIONS
from riskband.wording import TRAINERS_ANSWERED
from riskband.worst_cases.always_valid import always_valid
from riskband.worst_cases.bounds import BOUNDS, Networks
from riskband.worst_cases.scaled import FRESH_FOR_BOTH
from tests.laws.draws import numbers_of

VALUES = [0.1, 0.2, 0.3, 0.1] * 5
KINDS = {kind: None for row in BOUNDS for kind in row.answers}
UNBOUNDED = ("mean_log_deviation", "quantile_ratio")
LINEAR = QuantileWeight.from_density(np.polynomial.Polynomial([0, 2]), name="linear")


NAMES = [  # of what `certificates` makes; it is made on use, not while tests are collected
    "mean_bound",
    "mean",
    "mean of counts",
    "mean of limits",
    "mean_bound of counts",
    "cvar",
    "quantile",
    "survival",
    "weighted_quantile",
    "worst_case_mean",
    "worst_case_mean as published",
    "bound of two networks",
    "divergence_lower_bound",
    "worst_case_cdf",
    "next_clients",
    "always_valid",
    "bound of changes",
    "bound of scores",
    "dispersion_certificate",
    "lorenz_certificate",
    "quantile_certificate",
    "group_certificate",
    "select",
    "wasserstein_mean",
    "wasserstein_mean of attacks",
    "wasserstein_cdf",
    "wasserstein_published",
]


@cache
def certificates(**known):
    """A certificate of every function that `verify` knows, from answers of each kind."""
    risks = rb.ClientRisks(VALUES, 10, **known)
    band, few = rb.band(risks, delta=0.1), rb.ClientRisks(VALUES[:5], 10, **known)
    counts = rb.HistogramRisks([0.0, 0.15, 1.0], [10, 10], 10, binary=True, **known)
    edges, eta = [0.0, 0.5, 1.0], 0.1
    limits = rb.risk_histogram(VALUES, 10, edges=edges, binary=True, eta=eta)
    limits = rb.HistogramLimits(edges, limits, eta=eta, binary=True, **known)
    curves = {"cost": "order 1", "binary": True, **known}
    exact, attacked = (
        rb.AdversarialAnswers([0.0, 1.0], [[x, x + 0.1] for x in VALUES], 10, guarantee=guarantee, **curves)
        for guarantee in ("exact", "lower")
    )
    ball = {"divergence": "chi2", "budget": 0.1}
    return {
        "mean_bound": rb.mean_bound(risks, delta=0.1),
        "mean": rb.mean(band),
        "mean of counts": rb.mean(rb.band(counts, delta=0.1)),
        "mean of limits": rb.mean(rb.band(limits, delta=0.1)),
        "mean_bound of counts": rb.mean_bound(counts, delta=0.1),
        "cvar": rb.cvar(band, level=0.5),
        "quantile": rb.quantile(band, level=0.5),
        "survival": rb.survival(band, thresholds=[0.2, 0.5]),
        "weighted_quantile": rb.weighted_quantile(band, LINEAR),
        "worst_case_mean": rb.worst_case_mean(band, **ball),
        "worst_case_mean as published": rb.worst_case_mean(band, **ball, method="published"),
        "bound of two networks": rb.bound((risks, few), "quantile:0.5@target:chi2:0.1", delta=0.1),
        "divergence_lower_bound": rb.divergence_lower_bound(risks, few, divergence="chi2", delta=0.1),
        "worst_case_cdf": rb.worst_case_cdf(band, **ball, thresholds=0.2),
        "next_clients": rb.next_clients(risks, 3, delta=0.1, **ball),
        "always_valid": always_valid(risks, "quantile:0.5", delta=0.1),
        "bound of changes": rb.bound(rb.ClientChanges(VALUES, VALUES, 10, **known), "mean", delta=0.1),
        "bound of scores": rb.bound(rb.ClientScores(VALUES, True, **known), "mean", delta=0.1),
        "dispersion_certificate": rb.dispersion_certificate(band, "gini"),
        "lorenz_certificate": rb.lorenz_certificate(band),
        "quantile_certificate": rb.quantile_certificate(band, level=[0.5]),
        "group_certificate": rb.group_certificate(
            rb.group_bands(risks, ["a", "b"] * 10, delta=0.1), "largest_gap", "mean"
        ),
        "select": rb.select({"one": risks, "two": risks}, objective="mean", delta=0.1).certificate,
        "wasserstein_mean": rb.wasserstein_mean(exact, delta=0.1, cost_budget=0.5),
        "wasserstein_mean of attacks": rb.wasserstein_mean(attacked, delta=0.1, cost_budget=0.5),
        "wasserstein_cdf": rb.wasserstein_cdf(exact, delta=0.1, cost_budget=0.5, thresholds=0.4),
        "wasserstein_published": rb.wasserstein_published(exact, delta=0.1, cost_budget=0.5, cost_bound=9.0),
    }


def of_fresh_clients():
    return certificates()


def of_trainers():
    return certificates(answered_by="trainers")


def verified(stored):
    return rb.verify(stored, weights={"linear": LINEAR})


def test_no_function_is_left_out():
    assert list(of_fresh_clients()) == list(of_trainers()) == NAMES
    of_these_very_clients = {"panel_change"}  # whoever they are
    made = {each.recipe["function"] for each in of_fresh_clients().values()}
    assert made == FUNCTIONS.keys() - of_these_very_clients


@pytest.mark.parametrize("name", NAMES)
def test_every_certificate_assumes_that_the_clients_had_no_part_in_the_model(name):
    expected = {"select": FRESH_FOR_CANDIDATES, "bound of changes": FRESH_FOR_BOTH}.get(name, FRESH_CLIENTS)
    assert of_fresh_clients()[name].assumptions.count(expected) == 1
    assert TRAINERS_ANSWERED not in of_fresh_clients()[name].assumptions
    assert "answered_by" not in json.dumps(of_fresh_clients()[name].recipe)  # stored as before
    assert verified(of_fresh_clients()[name].to_dict()).ok


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_made_of_the_answers_of_trainers_is_an_estimate_and_says_why(name):
    made, fresh = of_trainers()[name], of_fresh_clients()[name]
    assert made.validity == ESTIMATE
    assert made.statement.startswith("Estimate, not a proved bound: ")
    assert made.assumptions.count(TRAINERS_ANSWERED) == 1
    assert not {FRESH_CLIENTS, FRESH_FOR_CANDIDATES, FRESH_FOR_BOTH} & set(made.assumptions)
    np.testing.assert_array_equal(made.value, fresh.value)  # the number is what it was, only the word is not
    assert json.loads(made.to_json()) == made.to_dict()
    assert verified(made.to_dict()).ok


@pytest.mark.parametrize("name", NAMES)
def test_an_estimate_that_calls_itself_a_certificate_does_not_verify(name):
    stored, fresh = of_trainers()[name].to_dict(), of_fresh_clients()[name].to_dict()
    assert rb.Certificate.from_dict({**stored, "validity": CERTIFICATE}).validity == ESTIMATE
    if fresh["validity"] != ESTIMATE:
        assert not verified({**stored, "validity": CERTIFICATE}).ok
        assert not verified({**stored, "validity": CERTIFICATE, "statement": fresh["statement"]}).ok
    assert not verified({**stored, "assumptions": fresh["assumptions"]}).ok
    assert not verified({**fresh, "recipe": stored["recipe"]}).ok


@cache
def answers_of(**known):
    """Answers of each kind that the table of bounds has."""
    risks = rb.ClientRisks(VALUES, 10, **known)
    curves = {"cost": "order 1", "binary": True, "guarantee": "exact", **known}
    return {
        rb.ClientRisks: risks,
        rb.ClientChanges: rb.ClientChanges(VALUES, VALUES[::-1], 10, **known),
        rb.ClientScores: rb.ClientScores(VALUES, True, **known),
        Histogram: rb.HistogramRisks([0.0, 0.15, 1.0], [10, 10], 10, binary=True, **known),
        rb.AdversarialAnswers: rb.AdversarialAnswers([0.0, 1.0], [[x, x + 0.1] for x in VALUES], 10, **curves),
        Networks: (risks, rb.ClientRisks(VALUES[:5], 10, **known)),
        Band: rb.band(risks, delta=0.1),
    }


def test_answers_of_every_kind_are_tried():
    assert answers_of().keys() == KINDS.keys()


@pytest.mark.parametrize(("kind", "number"), [(kind, each) for kind in KINDS for each in numbers_of(kind)])
def test_a_number_of_the_table_of_bounds_verifies_and_is_an_estimate_where_trainers_answered(kind, number):
    delta = None if kind is Band else 0.1
    known, trained = answers_of()[kind], answers_of(answered_by="trainers")[kind]
    if number.startswith(UNBOUNDED):  # of so few clients
        with pytest.raises(UnboundedError, match="cannot be bounded"):
            rb.bound(known, number, delta=delta)
        return
    fresh, made = (rb.bound(each, number, delta=delta) for each in (known, trained))
    assert fresh.assumptions.count(FRESH_FOR_BOTH if kind is rb.ClientChanges else FRESH_CLIENTS) == 1
    assert fresh.validity == CERTIFICATE
    assert fresh.name == str(rb.Number.of(number))
    assert rb.verify(json.loads(fresh.to_json())) == (True, ())
    assert made.validity == ESTIMATE
    assert made.assumptions.count(TRAINERS_ANSWERED) == 1
    assert (made.value, made.lower) == (fresh.value, fresh.lower)
    assert rb.verify(made.to_dict() | {"assumptions": fresh.to_dict()["assumptions"]}).ok is False


READ_OFF_A_BAND = {
    "doubtful": rb.ClientRisks(VALUES, 10, num_missing=1, missing="worst", contamination=1),
    "noisy": rb.ClientRisks(VALUES, 10, True, noise="laplace:1"),
}


@pytest.mark.parametrize("number", [each for each in numbers_of(rb.ClientRisks) if not each.startswith(UNBOUNDED)])
@pytest.mark.parametrize("kind", READ_OFF_A_BAND)
def test_a_number_of_doubtful_or_noisy_answers_verifies_or_is_refused(kind, number):
    answers = READ_OFF_A_BAND[kind]
    if number.startswith("example_mean") or (kind == "noisy" and rb.Number.of(number).is_finite):
        with pytest.raises(ValueError, match=r"needs answers without noise|needs answers and a delta"):
            rb.bound(answers, number, delta=0.1)
        return
    made = rb.bound(answers, number, delta=0.1)
    assert made.name == str(rb.Number.of(number))
    assert rb.verify(json.loads(made.to_json())) == (True, ())


def test_the_weakest_validity_wins():
    for validity in (CERTIFICATE, REFUTED, ESTIMATE):
        assert weakest_validity([FRESH_CLIENTS], validity) == validity
        assert weakest_validity([TRAINERS_ANSWERED], validity) == ESTIMATE
    assert of_fresh_clients()["worst_case_mean as published"].validity == REFUTED
    assert of_fresh_clients()["wasserstein_mean of attacks"].validity == ESTIMATE
    assert of_fresh_clients()["mean"].validity == CERTIFICATE


def test_who_answered_survives_a_split_a_selection_and_a_group():
    risks = rb.ClientRisks(VALUES, 10, answered_by="trainers")
    assert rb.split_clients(risks, pilot_share=0.5).rest.answered_by == "trainers"
    assert all(
        band.risks.answered_by == "trainers" for band in rb.group_bands(risks, ["a"] * 20, delta=0.1).bands.values()
    )
    one = {"one": rb.ClientRisks(VALUES, 10), "two": risks}
    chosen = rb.select(one, objective="mean", delta=0.1)
    assert chosen.certificate.validity == ESTIMATE  # one of the candidates was trained by those who answered
    assert "estimated" in chosen.table()
    assert "certified" not in chosen.table()


@pytest.mark.parametrize("value", ["trainer", "", None, True])
def test_who_answered_has_two_values(value):
    with pytest.raises(ValueError, match="answered_by must be one of fresh, trainers"):
        rb.ClientRisks(VALUES, 10, answered_by=value)


def test_a_name_in_another_case_means_the_same():
    risks = rb.ClientRisks(VALUES, 10, answered_by="Trainers")
    assert risks.answered_by == "trainers"
    assert rb.mean_bound(risks, delta=0.1).validity == ESTIMATE


def test_a_keyword_that_answers_do_not_have_is_named():
    with pytest.raises(TypeError, match="no keyword 'contaminated'; who answered is said by num_missing, missing"):
        rb.ClientRisks([0.1, 0.2], 10, contaminated=1)
