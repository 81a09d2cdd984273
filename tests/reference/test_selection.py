"""Objectives and selections against definitions by numpy and scipy, and against bounds put together by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import riskband as rb
from riskband.functionals.functional import interval_of
from tests.laws.draws import client_risks

RNG = np.random.default_rng(0)


def candidate(mean, num_clients=80, num_examples=50, **settings):
    risks = RNG.beta(20 * mean, 20 * (1 - mean), num_clients)
    return rb.ClientRisks(RNG.binomial(num_examples, risks) / num_examples, num_examples, **settings)


CANDIDATES = {"early": candidate(0.3), "middle": candidate(0.15), "late": candidate(0.2)}


def gini_of(values):
    """Mean absolute difference over twice the mean."""
    return np.abs(values[:, None] - values[None, :]).mean() / (2 * values.mean())


DEFINITIONS = {
    "mean": np.mean,
    "gini": gini_of,
    "cvar:0.9": lambda values: np.sort(values)[-8:].mean(),  # the worst tenth of 80
    "quantile:0.5": lambda values: np.quantile(values, 0.5, method="inverted_cdf"),
    "atkinson:0.5": lambda values: 1 - np.sqrt(values).mean() ** 2 / values.mean(),
    "top_share:0.25": lambda values: np.sort(values)[-20:].sum() / values.sum(),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_measured_values_are_their_definitions(name):
    for found in rb.select(CANDIDATES, objective=f"2*{name}", delta=0.1).candidates:
        assert found.measured == pytest.approx(2 * DEFINITIONS[name](CANDIDATES[found.name].values), rel=1e-12)


def test_a_sum_of_terms_is_their_weighted_sum():
    law = rb.RiskDistribution.of_values(CANDIDATES["early"].values)
    weights = dict(zip(DEFINITIONS, (1.0, 0.5, 2.0, 1e-3, 3.0, 0.1), strict=True))
    expected = sum(weight * DEFINITIONS[name](CANDIDATES["early"].values) for name, weight in weights.items())
    assert rb.Objective(weights).of_distribution(law) == pytest.approx(expected, rel=1e-12)


def test_bounds_share_delta_as_the_selection_says():
    found = rb.select(CANDIDATES, objective="mean+0.5*gini+0.2*quantile:0.9", delta=0.12, dispersion="sharp")
    assert found.candidate_delta == pytest.approx(0.04)
    for row in found.candidates:
        answers = CANDIDATES[row.name]
        band = rb.band(answers, delta=0.03)
        betting = rb.mean_bound(answers, delta=0.01).value
        mean = min(betting, interval_of(band, "mean").upper)
        gini, quantile = interval_of(band, "gini").upper, rb.quantile(band, level=0.9).value
        assert row.terms == pytest.approx({"mean": mean, "gini": gini, "quantile:0.9": quantile})
        assert row.bound == pytest.approx(mean + 0.5 * gini + 0.2 * quantile)
    assert found.best == min(found.candidates, key=lambda row: row.bound).name
    assert found.certificate.value == min(row.bound for row in found.candidates)


def test_without_a_share_for_the_mean_all_terms_are_read_off_one_band():
    found = rb.select(CANDIDATES, objective="mean+cvar:0.8", delta=0.1, mean_share=0, dispersion="convex_order")
    for row in found.candidates:
        band = rb.band(CANDIDATES[row.name], delta=0.1 / 3, sides="lower")
        assert row.terms["cvar:0.8"] == pytest.approx(min(rb.cvar(band, level=0.8).value, 1.0))
        assert row.terms["mean"] == pytest.approx(rb.mean(band).value)


def test_sharp_takes_the_place_of_a_convex_order_that_does_not_apply():
    answers = CANDIDATES["early"]
    unequal = rb.ClientRisks(answers.values, np.where(np.arange(80) < 40, 50, 100))
    for risks, objective in ((unequal, "gini"), (answers, "quantile_range:0.1:0.9")):
        sharp, other = (
            rb.select({"only": risks}, objective=objective, delta=0.1, dispersion=dispersion).candidates[0].bound
            for dispersion in ("sharp", "convex_order")
        )
        assert other == sharp
    tighter = rb.select({"only": answers}, objective="gini", delta=0.1, dispersion="convex_order").candidates[0].bound
    assert tighter == interval_of(rb.band(answers, delta=0.1), "gini", method="convex_order").upper


def test_the_mean_alone_is_a_betting_bound_with_all_of_the_share():
    found = rb.select(CANDIDATES, objective="mean", delta=0.3)
    for row in found.candidates:
        assert row.bound == rb.mean_bound(CANDIDATES[row.name], delta=0.1).value


def test_a_sequence_stops_at_its_first_failure():
    bounds = {name: rb.mean_bound(answers, delta=0.1).value for name, answers in CANDIDATES.items()}
    target = (bounds["late"] + bounds["early"]) / 2
    arguments = {"objective": "mean", "delta": 0.1, "method": "fixed_sequence", "target": target}
    found = rb.select(CANDIDATES, order=["late", "middle", "early"], **arguments)
    assert found.certified == ("late", "middle")
    assert found.best == "middle"
    assert found.certificate.value == target
    stopped = rb.select(CANDIDATES, order=["late", "early", "middle"], **arguments)
    assert stopped.certified == ("late",)
    none = rb.select(CANDIDATES, **arguments)  # "early" comes first
    assert (none.certified, none.best, none.certificate) == ((), None, None)
    assert "0.1 for each of 3 candidates, tested in order" in none.spending


def test_a_target_marks_the_candidates_that_meet_it():
    found = rb.select(CANDIDATES, objective="mean", delta=0.1, target=0.21)
    assert found.certified == tuple(row.name for row in found.candidates if row.bound <= 0.21)
    assert found.best == "middle"


def test_the_table_shows_every_candidate_and_how_delta_was_spent():
    found = rb.select(CANDIDATES, objective="mean+0.5*gini", delta=0.1)
    header, *rows, spending = found.table().splitlines()
    assert header.split() == ["candidate", "certified", "bound", "measured", "mean", "<=", "gini", "<="]
    assert [row.split()[0] for row in rows] == list(CANDIDATES)
    assert sum(" best " in row for row in rows) == 1
    assert spending == (
        "delta 0.1: 0.03333 for each of 3 candidates; 0.25 of it for the betting bound on the mean, 0.75 for one "
        "berk_jones band"
    )


def test_the_assumptions_say_that_the_candidates_were_fixed_and_who_is_missing():
    answers = CANDIDATES | {"other": candidate(0.4, num_missing=3)}
    assumptions = rb.select(answers, objective="mean+gini", delta=0.1).certificate.assumptions
    assert any("fixed before" in line for line in assumptions)
    assert any("3 clients" in line for line in assumptions)
    assert len(set(assumptions)) == len(assumptions)


@pytest.mark.parametrize(
    "arguments",
    [
        {"objective": "mean"},
        {"objective": "mean+0.5*gini", "dispersion": "convex_order", "seed": 3},
        {"objective": "0.5*cvar:0.9+quantile:0.5", "order": ["late", "early", "middle"], "local": "counted"},
        {"objective": "mean+gini", "method": "fixed_sequence", "target": 2.0, "band": "dkw"},
    ],
)
def test_a_certificate_is_verified_from_all_stored_answers(arguments):
    certificate = rb.select(CANDIDATES, delta=0.1, **arguments).certificate
    stored = json.loads(certificate.to_json())
    assert rb.verify(stored).ok
    assert rb.verify(json.loads(json.dumps(stored, sort_keys=True))).ok  # the order of keys means nothing
    for lie in (("value", certificate.value - 0.001), ("delta", 0.01), ("quantity", "the best")):
        assert not rb.verify(stored | dict([lie])).ok
    first = next(iter(stored["recipe"]["answers"]))
    stored["recipe"]["answers"][first]["values"][0] = 0.98
    assert not rb.verify(stored).ok
    del stored["recipe"]["answers"][first]
    with pytest.raises(ValueError, match="order must name every candidate once"):
        rb.verify(stored)


@settings(max_examples=25)
@given(st.lists(client_risks(max_clients=8), min_size=1, max_size=4), st.sampled_from(["mean", "mean+hoover"]))
def test_more_candidates_cost_and_their_order_does_not_matter(drawn, objective):
    answers = {f"m{i}": risks for i, risks in enumerate(drawn)}
    found = rb.select(answers, objective=objective, delta=0.1)
    reverse = rb.select(dict(reversed(answers.items())), objective=objective, delta=0.1)
    assert sorted(found.candidates) == sorted(reverse.candidates)
    fewer = rb.select({"m0": answers["m0"]}, objective=objective, delta=0.1)
    assert fewer.candidates[0].bound <= found.candidates[0].bound + 1e-12


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("mean", (("mean", 1.0),)),
        (" mean + 0.5 * gini ", (("mean", 1.0), ("gini", 0.5))),
        ("1e+3*mean+1E-2*cvar:.9", (("mean", 1000.0), ("cvar:0.9", 0.01))),
        ("quantile:1+atkinson:.5+mean_range:3", (("quantile:1", 1.0), ("atkinson:0.5", 1.0), ("mean_range:3", 1.0))),
    ],
)
def test_objectives_are_read_and_written(text, terms):
    objective = rb.Objective(text)
    assert objective.terms == terms
    assert rb.Objective(str(objective)) == objective == rb.Objective(dict(terms)) == rb.Objective(objective)


def test_an_objective_by_keywords():
    assert rb.Objective(mean=1.0, gini=0.5) == rb.Objective("mean+0.5*gini")


@pytest.mark.parametrize(
    ("terms", "rule"),
    [
        ("", "must be one of"),
        ({}, "at least one term"),
        ("mean+", "must be one of"),
        ("mean+mean", "each measure once"),
        ("atkinson:0.5+atkinson:.5", "each measure once"),
        ("variance", "must be one of"),
        ("mean:2", "too few or too many"),
        ("theil", "must be bounded"),
        ("coefficient_of_variation", "must be bounded"),
        ("cvar", "too few or too many"),
        ("cvar:1", "in \\[0, 1\\)"),
        ("quantile:90", "level must lie in"),
        ("quantile:nan", "level must lie in"),
        ("quantile:0.1:0.9", "too few or too many"),
        ("half*mean", "a number times a measure"),
        ("-1*mean", "finite and > 0"),
        ("0*mean", "finite and > 0"),
        ("nan*mean", "finite and > 0"),
        ({"mean": "much"}, "finite and > 0"),
        ({3: 1.0}, "name of a measure"),
        (5, "text or a mapping"),
        (None, "text or a mapping"),
    ],
)
def test_an_objective_that_cannot_be_bounded_is_refused(terms, rule):
    with pytest.raises(ValueError, match=rule):
        rb.Objective(terms)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"delta": 0.0}, "delta must be in"),
        ({"delta": float("nan")}, "delta must be in"),
        ({"method": "holm"}, "bonferroni, fixed_sequence"),
        ({"method": "fixed_sequence"}, "needs a target"),
        ({"target": float("nan")}, "target must be a finite number"),
        ({"target": "low"}, "target must be a finite number"),
        ({"order": ["early"]}, "every candidate once"),
        ({"order": ["early", "early", "late"]}, "every candidate once"),
        ({"band": "ks"}, "berk_jones"),
        ({"local": "global"}, "marginal"),
        ({"dispersion": "wide"}, "convex_order"),
        ({"mean_share": 1.0}, "mean_share must be in"),
        ({"mean_share": -0.1}, "mean_share must lie in"),
        ({"mean_share": float("nan")}, "mean_share must lie in"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_a_selection_that_means_nothing_is_refused(arguments, rule):
    with pytest.raises(ValueError, match=rule):
        rb.select(CANDIDATES, **({"objective": "mean+gini", "delta": 0.1} | arguments))


@pytest.mark.parametrize("answers", [{}, [], None, {"a": [0.1, 0.2]}, {1: CANDIDATES["early"]}])
def test_answers_must_be_risks_by_name(answers):
    with pytest.raises(ValueError, match="risks_by_candidate must map"):
        rb.select(answers, objective="mean", delta=0.1)


def test_a_sharper_bound_on_dispersion_never_hurts():
    sharp, plugin = (rb.select(CANDIDATES, objective="gini", delta=0.1, dispersion=d) for d in ("sharp", "plugin"))
    assert_allclose([row.bound for row in sharp.candidates] <= np.array([row.bound for row in plugin.candidates]), True)
    assert replace(sharp, best=None).table().count(" best ") == 0
