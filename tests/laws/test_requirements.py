"""Requirements: how they are read, what follows from two ends, and what a gate says of several."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy.stats import hypergeom

import riskband as rb
from riskband.functionals.functional import interval_of
from riskband.wording import CHOSEN_BEFORE
from riskband.worst_cases.requirements import EXIT_STATUS, Requirement

RNG = np.random.default_rng(14)
LARGEST_TRIED = "riskband.worst_cases.requirements._LARGEST_TRIED"  # 0: nothing is estimated
RISKS = rb.ClientRisks(RNG.binomial(100, RNG.beta(3, 21, 80)) / 100, 100)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("quantile:0.9<=0.3", "quantile:0.9<=0.3"),
        ("  Mean >=  .25 ", "mean>=0.25"),
        ("share:.3<=1e-2", "share:0.3<=0.01"),
        ("theil<=2.5", "generalised_entropy:1<=2.5"),
        ("Mean@CHI2:0.10<=0.2", "mean@chi2:0.1<=0.2"),
        ("share:.3@Chi2:0.10<=0.2", "share:0.3@chi2:0.1<=0.2"),
        ("Count:.30@Next:20 <= 3", "count:0.3@next:20<=3"),
        ("count:0@next:5:KL:.20>=1", "count:0@next:5:kl:0.2>=1"),
        ("change<=.01", "mean<=0.01"),
        ("harmed:.02@KL:.1<=.1", "share:0.02@kl:0.1<=0.1"),
        ("count:.30@all:55<=5", "count:0.3@all:55<=5"),
    ],
)
def test_requirements_are_read_and_written(text, written):
    requirement = Requirement.of(text)
    assert str(requirement) == written
    assert Requirement.of(written) == requirement == Requirement.of(requirement)


@pytest.mark.parametrize(
    ("text", "rule", "value"),
    [
        ("quantile:0.9", "NUMBER<=LIMIT or NUMBER>=LIMIT", "'quantile:0.9'"),
        ("mean<0.1", "write 'mean<=0.1'", "'mean<0.1'"),
        (None, "NUMBER<=LIMIT", "None"),
        ("mean<=low", "must be a number", "'low'"),
        ("mean<=0.2,gini<=0.5", "must be a number", "one by one, without commas"),
        ("mean<=30", "divide a percentage by 100", "<= 30"),
        ("mean<=1", "some of its values from 0 to 1 and not all", "<= 1"),
        ("mean>=0", "and not all", ">= 0"),
        ("mean<=-0.1", "allow some", "-0.1"),
        ("mean<=nan", "allow some", "nan"),
        ("theil<=inf", "allow some", "inf"),
        ("ginny<=0.1", "number must be one of", "'ginny'"),
        ("quantile:2<=0.1", "level must lie in [0, 1]", "2"),
        ("mean@chi2<=0.1", "mean@chi2:0.1", "'mean@chi2'"),
        ("mean@chi2:-1<=0.1", "budget must be finite and >= 0", "-1"),
        ("mean@renyi:0.1<=0.1", "must be one of kl, chi2, tv, hellinger2 with a budget", "'renyi:0.1'"),
        ("share@chi2:0.1<=0.1", "as in 'share:0.3'", "'share@chi2:0.1'"),
        ("gini@chi2:0.1<=0.1", "nothing bounds", "'gini@chi2:0.1'"),
        ("mean@target:chi2:0.1<=0.2", "nothing bounds", "'mean@target:chi2:0.1' of risks"),
        ("mean@target:chi2<=0.2", "whose numbers have a budget", "'mean@target:chi2'"),
        ("mean@cost:0.5<=0.2", "nothing bounds", "'mean@cost:0.5' of risks"),
        ("mean@cost<=0.2", "mean@cost:0.5", "'mean@cost'"),
        ("harmed:0.1<=0.2", "got the risk of clients", "ask for 'share:0.1'"),
        ("share:30@chi2:0.1<=0.1", "must lie in [0, 1]", "30"),
        ("count:0.3@next:2.5<=3", "count:0.3@next:20", "'count:0.3@next:2.5'"),
        ("count:0.3@next:0<=0", "count:0.3@next:20", "'count:0.3@next:0'"),
        ("count:1@next:20<=3", "must be in [0, 1)", "got 1"),
        ("count:nan@next:20<=3", "its parameter must be finite", "'count:nan@next:20'"),
        ("count:0.3@next:20<=20", "from 0 to 20 and not all", "<= 20"),
        ("count:0.3@next:20:chi2<=3", "count:0.3@next:20", "'count:0.3@next:20:chi2'"),
        ("count@next:20<=3", "count:0.3@next:20", "'count@next:20'"),
        ("count:0.3<=3", "count:0.3@next:20", "'count:0.3'"),
        ("quantile:0.9@next:20<=0.3", "there are count, largest and mean", "'quantile:0.9@next:20'"),
        ("largest:21@next:20<=0.3", "largest of 20 risks", "'21'"),
        ("count:0.3@next:all<=3", "must be a whole one", "'count:0.3@next:all'"),
        ("count:0.3@all:55:chi2:0.1<=3", "count:0.3@all:20", "'count:0.3@all:55:chi2:0.1'"),
        ("count:0.3@all:80<=3", "population must be above the number of clients asked, 80", "got 80"),
    ],
)
def test_what_is_no_requirement_is_refused_with_rule_value_and_remedy(text, rule, value):
    with pytest.raises(ValueError, match=re.escape(rule)) as caught:
        rb.require(RISKS, [text], delta=0.1)
    assert value in str(caught.value)


FORMER = {
    "worst_mean:chi2:0.1": "mean@chi2:0.1",
    "Worst-Mean:kl:0.1": "mean@kl:0.1",
    "worst_change:chi2:0.1": "mean@chi2:0.1",
    "worst_score:chi2:0.1": "mean@chi2:0.1",
    "worst_share:0.3:chi2:0.1": "share:0.3@chi2:0.1",
    "worst_share:chi2:0.1": "share:0.3@chi2:0.1",
    "worst_share": "share:0.3@chi2:0.1",
    "next:20:0.3": "count:0.3@next:20",
    "next:20:0.3:kl:0.1": "count:0.3@next:20:kl:0.1",
    "next:20": "count:0.3@next:20",
    "next:all:55:0.3": "count:0.3@all:55",
    "target_mean:chi2:0.1": "mean@target:chi2:0.1",
    "target_share:0.3:chi2:0.1": "share:0.3@target:chi2:0.1",
    "target_quantile:0.9:tv:0.1": "quantile:0.9@target:tv:0.1",
    "divergence:chi2": "divergence@target:chi2",
    "score": "mean",
    "score_quantile:0.1": "quantile:0.1",
    "score_share:0.8": "share:0.8",
    "change_quantile:0.9": "quantile:0.9",
}


@pytest.mark.parametrize(("before", "now"), FORMER.items(), ids=FORMER)
def test_a_former_spelling_is_refused_with_the_present_one(before, now):
    with pytest.raises(ValueError, match=re.escape(f"{before!r} cannot be read: it is written {now!r} now")):
        Requirement.of(f"{before}<=0.2")
    assert str(rb.Number.of(now)) == now


def test_requirements_come_with_answers_and_delta_or_with_a_band():
    for call, rule in (
        (lambda: rb.require(RISKS, "mean<=0.2"), "delta must be"),
        (lambda: rb.require(rb.band(RISKS, delta=0.1), "mean<=0.2", delta=0.1), "delta must be left out with a band"),
        (lambda: rb.require(RISKS, [], delta=0.1), "at least one requirement"),
        (lambda: rb.require(RISKS, "mean<=0.2", delta=1.5), r"in \(0, 1\)"),
        (lambda: rb.require([0.1, 0.2], "mean<=0.2", delta=0.1), "a bound must be of risks, .* a band, got list"),
        (lambda: Requirement(rb.Number.of("mean"), "<", 0.1), "relation of a requirement"),
    ):
        with pytest.raises(ValueError, match=rule):
            call()


@pytest.mark.parametrize(
    ("relation", "lower", "upper", "verdict"),
    [
        ("<=", 0.1, 0.3, "PASS"),
        ("<=", 0.3, 0.4, "NOT DECIDED"),
        ("<=", 0.300001, 0.4, "FAIL"),
        (">=", 0.3, 0.4, "PASS"),
        (">=", 0.1, 0.3, "NOT DECIDED"),
        (">=", 0.1, 0.299999, "FAIL"),
    ],
)
def test_what_follows_from_two_ends(relation, lower, upper, verdict):
    assert Requirement(rb.Number.of("mean"), relation, 0.3).verdict(lower, upper) == verdict


def test_verdicts_are_read_off_the_bounds_of_the_library():
    """One number has all of delta, two share it; what is asked twice of a number costs nothing."""
    for asked, part in ((["quantile:0.8<=0.3"], 0.1), (["quantile:0.8<=0.3", "quantile:0.8>=0.01", "gini<=0.9"], 0.05)):
        found = rb.require(RISKS, asked, delta=0.1).verdicts[0]
        assert (found.lower, found.upper) == interval_of(RISKS, "quantile:0.8", delta=part)
    band = rb.band(RISKS, delta=0.1)
    found = rb.require(band, ["quantile:0.8<=0.3", "gini<=0.9"]).verdicts[1]
    assert (found.lower, found.upper) == interval_of(band, "gini")
    (worst,) = rb.require(RISKS, "mean@kl:0.1<=0.3", delta=0.1).verdicts
    assert worst.upper == rb.worst_case_mean(RISKS, divergence="kl", budget=0.1, delta=0.05).value
    assert worst.lower == interval_of(RISKS, "mean", delta=0.05).lower
    (worst,) = rb.require(RISKS, "share:0.3@kl:0.1<=0.6", delta=0.1).verdicts
    share = rb.survival(RISKS, thresholds=0.3, delta=0.05).value
    assert worst.upper == rb.binary_worst_case(share, divergence="kl", budget=0.1)
    half = rb.band(RISKS, delta=0.05, sides="lower")
    assert worst.upper < rb.worst_case_cdf(half, divergence="kl", budget=0.1, thresholds=0.3).value
    assert worst.lower == interval_of(RISKS, "share:0.3", delta=0.05).lower


def test_next_clients_are_counted_from_the_answers_themselves(monkeypatch):
    monkeypatch.setattr(LARGEST_TRIED, 0)
    doubtful = rb.ClientRisks(RISKS.values, 100, contamination=1)
    for answers in (doubtful, RISKS):
        gate = rb.require(
            answers, ["count:0.3@next:20<=6", "count:0.3@next:20<=2", "count:0.05@next:20<=2"], delta=0.05
        )
        assert [each.verdict for each in gate.verdicts] == ["PASS", "NOT DECIDED", "FAIL"]
        assert all(rb.verify(each).ok for each in gate.certificates.values())
    of_twenty = "the number of clients, of the next 20, that would measure a risk above 0.3 is at most 4."
    assert of_twenty in gate.verdicts[0].statement
    noisy = rb.ClientRisks(RISKS.values, 100, binary=True, noise="laplace:5")
    for source, delta, rule in (
        (rb.band(RISKS, delta=0.05), None, "nothing bounds 'count:0.3@next:20' of a band"),
        (noisy, 0.05, "needs answers without noise"),
    ):
        with pytest.raises(ValueError, match=rule):
            rb.require(source, "count:0.3@next:20<=3", delta=delta)


def test_all_clients_of_a_federation_are_counted():
    """Of 100, 80 answered and two of them measure more: few more do, by the hypergeometric test."""
    assert np.sum(RISKS.values > 0.3) == 2
    most = np.arange(101)[hypergeom.cdf(2, 100, np.arange(101), 80) > 0.025].max()
    # Repeated to see how many would decide it, they would be more than the federation has.
    gate = rb.require(RISKS, [f"count:0.3@all:100<={limit}" for limit in (most, most - 1, 1)], delta=0.05)
    assert [each.verdict for each in gate.verdicts] == ["PASS", "NOT DECIDED", "FAIL"]
    assert (gate.verdicts[0].lower, gate.verdicts[0].upper) == (2, most)
    assert "how many clients would decide it was not estimated" in gate.verdicts[1].statement
    (made,) = gate.certificates.values()
    assert (made.name, rb.verify(made).ok) == ("count:0.3@all:100", True)


@pytest.mark.parametrize("source", ["answers", "band"])
def test_every_verdict_follows_from_certificates_that_verify(source, monkeypatch):
    monkeypatch.setattr(LARGEST_TRIED, 0)
    asked = [
        "mean<=0.3",
        "cvar:0.9<=0.3",
        "mean@chi2:0.1<=0.4",
        "share:0.3<=0.001",
        "share:0.3@kl:0.1<=0.5",
    ]
    gate = (
        rb.require(RISKS, asked, delta=0.05) if source == "answers" else rb.require(rb.band(RISKS, delta=0.05), asked)
    )
    assert list(gate.certificates) == [
        f"require {name}" for name in ("mean", "cvar:0.9", "mean@chi2:0.1", "share:0.3", "share:0.3@kl:0.1")
    ]  # the mean is also what bounds the worst mean from below: one number, one certificate
    for certificate in gate.certificates.values():
        assert rb.verify(rb.Certificate.from_json(certificate.to_json())).ok
        assert set(certificate.assumptions) <= set(gate.assumptions)
    fixed = [line for line in gate.assumptions if line.startswith(f"{CHOSEN_BEFORE}requirements")]
    assert fixed == ([f"{CHOSEN_BEFORE}requirements {', '.join(asked)}"] if source == "answers" else [])


def test_the_worst_verdict_is_that_of_the_gate():
    sure, refuted, open_ = "mean<=0.5", "mean<=0.01", "mean<=0.125"
    for asked, verdict in (
        ([sure], "PASS"),
        ([sure, open_], "NOT DECIDED"),
        ([open_, refuted, sure], "FAIL"),
    ):
        gate = rb.require(RISKS, asked, delta=0.05)
        assert (gate.verdict, gate.exit_status) == (verdict, EXIT_STATUS[verdict])
        assert [line.split(":")[0] for line in gate.statement.splitlines()] == [v.verdict for v in gate.verdicts]
    assert dict(EXIT_STATUS) == {"PASS": 0, "FAIL": 1, "NOT DECIDED": 3}


def test_an_estimate_decides_nothing():
    trainers = rb.ClientRisks(RISKS.values, 100, answered_by="trainers")
    gate = rb.require(trainers, ["mean<=0.5", "mean<=0.01"], delta=0.05)
    assert [each.verdict for each in gate.verdicts] == ["NOT DECIDED"] * 2
    assert all("by an estimate" in each.statement and each.num_clients is None for each in gate.verdicts)
    assert not any("with probability" in each.statement for each in gate.verdicts)


def test_where_nothing_is_bounded_no_number_is_shown(monkeypatch):
    monkeypatch.setattr(LARGEST_TRIED, 0)
    gate = rb.require(RISKS, ["quantile:0.999<=0.9", "mean_log_deviation<=0.5", "cvar:0.9>=0.01"], delta=0.05)
    assert [each.verdict for each in gate.verdicts] == ["NOT DECIDED", "NOT DECIDED", "PASS"]
    quantile, deviation, _ = gate.verdicts
    assert "nothing bounds it from above" in quantile.statement
    assert "these answers do not bound the mean log deviation" in deviation.statement
    assert "1.0000" not in gate.statement
    assert "inf" not in json.dumps(gate.to_dict(), allow_nan=False)
    assert gate.to_dict()["requirements"][1]["upper"] is None


def test_the_number_of_clients_is_that_of_which_the_repeated_answers_decide():
    limit = interval_of(RISKS, "mean", delta=0.05).upper - 0.01
    (found,) = rb.require(RISKS, f"mean<={limit}", delta=0.05).verdicts
    assert found.then == "PASS"
    assert found.num_clients > 80
    repeated = np.repeat(np.sort(RISKS.values), 2 * found.num_clients // 80)
    assert rb.require(rb.ClientRisks(repeated, 100), f"mean<={limit}", delta=0.05).verdict == "PASS"
    assert f"about {found.num_clients:,} clients that answer as these 80 did" in found.statement
    doubtful = rb.ClientRisks(RISKS.values, 100, num_missing=4, missing="worst", contamination=2)
    (of_band,) = rb.require(rb.band(doubtful, delta=0.05), "mean<=0.25").verdicts
    assert of_band.num_clients > found.num_clients
    (never,) = rb.require(RISKS, f"mean<={RISKS.values.mean()}", delta=0.05).verdicts
    assert (never.num_clients, never.then) == (None, None)
    assert "not even a new evaluation of 4,096 clients" in never.statement


def test_numbers_in_a_sentence_stay_on_their_side_of_the_limit():
    (found,) = rb.require(RISKS, "mean<=0.5", delta=0.05).verdicts
    limit = found.lower - 1e-7
    (close,) = rb.require(RISKS, f"mean<={limit!r}", delta=0.05).verdicts
    assert close.verdict == "FAIL"
    shown = float(close.statement.split("between ")[1].split(" and")[0])
    assert shown > limit
