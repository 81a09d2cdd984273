"""Clients that say their stratum, weight or cluster in their node config; odds of answering; what a run refuses."""

from __future__ import annotations

import pytest

import riskband as rb
from riskband.answers.design import design_asked
from riskband.functionals.functional import interval_of
from server.config import load_config
from server.problems import ConfigError
from tests.server.running import printed, raises, run_app

SIZE = 12
OWN = {
    number: {
        "stratum": "north" if number % 3 else "south",
        "cluster": f"chain {number // 2}",
        "sampling-weight": 1 + number % 3,
    }
    for number in range(SIZE)
}
STRATA = "strata:north=0.4, south=0.6"
DESIGNS = {
    STRATA: {"strata": "stratum", "shares": {"north": 0.4, "south": 0.6}},
    "weights:4": {"weights": "sampling-weight", "largest_weight": 4.0},
    "clusters": {"clusters": "cluster"},
}


@pytest.mark.parametrize("text", DESIGNS)
def test_a_run_certifies_by_what_clients_say_of_themselves(tmp_path, defaults, text):
    report = run_app(tmp_path, defaults, node_configs=OWN, num_unseen=0, design=text, require="mean<=0.9")
    assert sorted(report["certificates"]) == ["mean", "share", "worst_case_mean_chi2", "worst_case_mean_kl"]
    stored = {name: rb.Certificate.load(tmp_path / "certificates" / f"{name}.json") for name in report["certificates"]}
    assert all(rb.verify(each).ok for each in stored.values())
    assert sum(each["delta"] for each in report["findings"]["events"]) == pytest.approx(0.05)
    answers = rb.ClientRisks(**stored["mean"].recipe["answers"])
    numbers = [int(name.removeprefix("client-")) for name in report["network"]["client_ids"]]
    expected = {
        name: [OWN[number][said] for number in numbers] if isinstance(said, str) else said
        for name, said in DESIGNS[text].items()
    }
    again = rb.ClientRisks(answers.values, answers.num_examples, answers.binary, design=expected)
    assert answers == again
    assert stored["mean"].value == interval_of(again, "mean", delta=stored["mean"].delta).upper
    assert {*answers.responses.assumptions(knows_draws=True)} <= {*report["findings"]["assumptions"]}
    assert "How clients were drawn" in (tmp_path / "report.html").read_text()
    assert "PASS: mean<=0.9" in printed(report)


def test_a_client_that_does_not_say_its_part_is_named(tmp_path, defaults):
    with pytest.raises(ValueError, match="its stratum in its node config, got none of client-00004"):
        run_app(tmp_path, defaults, node_configs=OWN | {4: {}}, num_unseen=0, design=STRATA)


def test_clients_that_fail_count_by_the_odds_of_answering(tmp_path, defaults):
    report = run_app(tmp_path, defaults, missing="odds:2", behaviours={3: raises}, quorum=0.8)
    mean = rb.Certificate.load(tmp_path / "certificates" / "mean.json")
    said = mean.recipe["answers"]
    assert (said["num_missing"], said["missing"]) == (1, "odds:2")
    ignored, worst = (
        rb.mean_bound(rb.ClientRisks(**said | {"missing": missing}), delta=mean.delta).value
        for missing in ("ignore", "worst")
    )
    assert ignored < mean.value < worst
    assert "survival" not in report["certificates"]  # which is read off a band
    assert any("differ by at most a factor of 2" in line for line in report["findings"]["assumptions"])
    assert "counted as odds:2" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("design", {"design": "strata:north"}),
        ("design", {"design": "strata:north=0.4,south"}),
        ("design", {"design": "weights:many"}),
        ("design", {"design": "chains"}),
        ("design", {"design": "clusters"}),  # beside unseen clients, which are drawn alike
        ("design", {"design": "clusters", "num-unseen": 0, "missing": "worst"}),
        ("design", {"design": "clusters", "num-unseen": 0, "strategy": "dispersion"}),
        ("design", {"design": "clusters", "num-unseen": 0, "contamination": 1}),
        ("missing", {"missing": "odds:2", "strategy": "dispersion"}),
        ("missing", {"missing": "odds:0.5"}),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anybody_is_asked(defaults, key, changes):
    with pytest.raises(ConfigError, match=key):
        load_config({**defaults, "num-unseen": 10, **changes})


def test_a_design_is_read_from_one_text():
    assert design_asked("") == {}
    assert design_asked("clusters,strata:a=0.25,b=0.75") == {"clusters": True, "shares": {"a": 0.25, "b": 0.75}}
    assert design_asked("weights:2.5") == {"largest_weight": 2.5}
