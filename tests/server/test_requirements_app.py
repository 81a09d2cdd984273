"""What a run requires: its verdicts are those of the library, in report, table and exit status; what is refused."""

from __future__ import annotations

import copy
import json

import pytest

import riskband as rb
from riskband.cli import main
from riskband.worst_cases.requirements import certificates_of
from server.config import load_config
from server.problems import ConfigError
from server.report.table import show_outcome
from tests.one_voice import contradictions
from tests.schemas import problems
from tests.server.running import printed, run_app, saved_certificates

WORST = "mean@chi2:0.1"
ASKED = ["mean<=0.95", "mean@chi2:0.1<=0.97", "mean<=0.01", "quantile:0.9<=0.5"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory, defaults):
    """A run that requires something, and its report."""
    folder = tmp_path_factory.mktemp("asked")
    return folder, run_app(folder, defaults, num_unseen=0, require=",".join(ASKED))


def test_the_verdicts_follow_from_certificates_of_the_library_which_share_delta(asked):
    folder, report = asked
    stored = {path.stem: rb.Certificate.load(path) for path in folder.glob("certificates/*.json")}
    answers = rb.ClientRisks(**stored["mean"].recipe["answers"])
    part = stored["mean"].delta
    assert sum(each["delta"] for each in report["findings"]["events"]) == pytest.approx(0.05)
    files = {"mean": "mean", "quantile:0.9": "require_quantile_0.9", WORST: "require_mean@chi2_0.1"}
    for name, expected in certificates_of(answers, map(rb.Number.of, files), delta=part).items():
        found = stored[files[name]]
        assert (found.lower, found.value, found.delta) == (expected.lower, expected.value, part)
        assert rb.verify(found).ok
    assert [each["verdict"] for each in report["gate"]["requirements"]] == ["PASS", "PASS", "FAIL", "NOT DECIDED"]
    assert {name for name in stored if name.startswith("require")} == {*files.values()} - {"mean"}
    assert 0.1 not in stored["worst_case_mean_chi2"].axes["budget"]  # it is said once


@pytest.mark.parametrize(("kept", "status"), [((0, 1), 0), ((0, 2), 1), ((0, 3), 3), ((2, 3), 1)])
def test_the_exit_status_and_the_table_say_the_verdict(asked, capsys, kept, status):
    folder, _ = asked
    stored = rb.Certificate.load(folder / "certificates" / "mean.json")
    gate = rb.require(rb.ClientRisks(**stored.recipe["answers"]), [ASKED[place] for place in kept], delta=0.05)
    report = asked[1] | {"gate": json.loads(json.dumps(gate.to_dict()))}
    assert show_outcome(report, closing="") == status
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{each.verdict}: {each.requirement} is required" in shown for each in gate.verdicts)
    assert f"{gate.verdict} (exit status {status})" in shown
    assert "requirements mean<=0.95" in shown


def test_as_json_standard_output_is_the_report_alone(asked, capsys):
    assert show_outcome(asked[1], closing="5 s; results: here", as_json=True) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == asked[1]
    assert "5 s; results: here" in captured.err


def test_a_run_that_requires_nothing_ends_with_0(asked):
    assert show_outcome(asked[1] | {"gate": None}, closing="") == 0
    assert show_outcome({key: value for key, value in asked[1].items() if key != "gate"}, closing="") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"missing": "worst", "contamination": 1},
        pytest.param({"privacy": "laplace:1"}, marks=pytest.mark.slow),
        pytest.param({"local": "observed"}, marks=pytest.mark.slow),
        {"strategy": "secure_histogram", "secure_neighbours": 10},
        {"strategy": "wasserstein", "num_radii": 4, "num_multipliers": 3},
        pytest.param({"strategy": "dispersion"}, marks=pytest.mark.slow),
    ],
    ids=["doubt", "noise", "observed", "secure", "wasserstein", "dispersion"],
)
def test_every_study_decides_or_says_that_it_does_not(tmp_path, defaults, changes):
    """Of what is not as the clients measured it, and of counts, all is read off one band: no requirement is assumed."""
    report = run_app(tmp_path, defaults, num_unseen=0, require="mean<=0.98,mean<=0.0001", **changes)
    gate = report["gate"]
    assert gate["requirements"][0]["verdict"] == "PASS"
    assert gate["delta"] == 0.05
    is_alone = changes.get("strategy") in ("wasserstein", "dispersion")
    assert any("requirements mean<=0.98" in text for text in gate["assumptions"]) == is_alone
    for path in saved_certificates(tmp_path):
        assert rb.verify(json.loads(path.read_text())).ok


@pytest.mark.parametrize(
    "changes",
    [
        {"num_unseen": 3},
        {"missing": "worst", "contamination": 1},
        {"strategy": "wasserstein", "num_radii": 4, "num_multipliers": 3},
        pytest.param({"strategy": "dispersion"}, marks=pytest.mark.slow),
    ],
    ids=["usual", "doubt", "wasserstein", "dispersion"],
)
def test_next_clients_may_be_required_of_every_study_that_sees_answers(tmp_path, defaults, changes):
    asked = "count:0.99@next:4<=3,mean<=0.98"
    report = run_app(tmp_path, defaults, **{"num_unseen": 0} | changes, require=asked)
    stored = rb.Certificate.load(tmp_path / "certificates" / "require_count_0.99@next_4.json")
    assert rb.verify(stored).ok
    answers = rb.ClientRisks(**stored.recipe["answers"])
    assert stored == rb.bound(answers, "count:0.99@next:4", sides="two", delta=stored.delta)
    assert sum(each["delta"] for each in report["findings"]["events"]) <= 0.05 + 1e-9
    assert report["gate"]["requirements"][0]["upper"] == stored.value
    assert "would measure a risk above 0.99" in report["gate"]["requirements"][0]["statement"]


def test_numbers_of_so_many_clients_and_of_shifted_networks_are_called_what_they_are(tmp_path, defaults):
    finite = ["mean@next:3", "largest:2@next:20", "count:0.5@all:40"]
    shifted = ["quantile:0.5@chi2:0.05", "cvar:0.5@kl:0.01", "count:0.9@next:20:chi2:0.1", "mean@others:40"]
    limits = {"largest:2@next:20": 0.99, "count:0.5@all:40": 39, "count:0.9@next:20:chi2:0.1": 19}
    required = ",".join(f"{name}<={limits.get(name, 0.99)}" for name in finite + shifted)
    report = run_app(tmp_path, defaults, num_unseen=3, require=required)
    files = {name: f"require_{name.replace(':', '_')}" for name in finite + shifted}
    stored = {name: rb.Certificate.load(tmp_path / "certificates" / f"{file}.json") for name, file in files.items()}
    assert {name: rb.Number.of(name).quantity() for name in finite} == {n: stored[n].quantity for n in finite}
    assert all(found.name == name for name, found in stored.items())
    for name, verdict in zip(files, report["gate"]["requirements"], strict=True):
        assert stored[name].quantity in verdict["statement"]
        is_checked = report["certificates"][files[name]]["check"] is not None
        assert is_checked == (not rb.Number.of(name).is_finite)  # unseen clients are another number of them
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert contradictions(report, page=page, terminal=printed(report), delta=0.05) == []
    assert main(["verify", str(tmp_path)]) == 0


def test_trainers_decide_nothing(tmp_path, defaults):
    gate = run_app(tmp_path, defaults, num_unseen=0, answered_by="trainers", require="mean<=0.98")["gate"]
    assert (gate["verdict"], gate["exit_status"]) == ("NOT DECIDED", 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"require": "mean"}, "a requirement must be NUMBER<=LIMIT"),
        ({"require": "mean<=0.2,medain<=0.1"}, "medain"),
        ({"require": "mean<=20"}, "divide a percentage by 100"),
        ({"require": "mean<=0.2", "strategy": "selection"}, "not for selection"),
        (
            {"require": "count:0.3@next:5<=2", "strategy": "secure_histogram"},
            "next clients neither for secure_histogram",
        ),
    ],
)
def test_what_cannot_be_required_is_refused_before_a_client_is_asked(defaults, changes, said):
    with pytest.raises(ConfigError) as caught:
        load_config({**defaults, **changes})
    assert said in str(caught.value)
    assert str(caught.value).startswith("require is not valid, got")


def test_next_clients_are_not_required_of_answers_with_noise(defaults):
    with pytest.raises(ConfigError, match="nor with an evaluator or required next clients"):
        load_config({**defaults, "require": "mean<=0.2,count:0.3@next:5<=2", "privacy": "laplace:1"})


def test_requirements_travel_through_the_run_configuration(defaults):
    config = load_config({**defaults, "require": " Mean <= .2 , quantile:0.9<=0.30"})
    assert config.question.require == ("mean<=0.2", "quantile:0.9<=0.3")
    assert load_config(config.to_run_config()) == config


@pytest.mark.guard
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema",), "riskband.report/2"),
        (("network", "answered_by"), "nobody"),
        (("network", "num_answered"), "12"),
        (("certificates", "mean", "validity"), "proved"),
        (("certificates", "mean", "event"), "all"),
        (("gate", "verdict"), "MAYBE"),
        (("hashes", "model"), "none"),
        (("unseen", "risks"), [1.5]),
        (("metrics", "by_type"), None),
        (("findings", "events"), {}),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, tuple) else "",
)
def test_what_is_no_report_does_not_fit_the_schema(asked, place, value):
    report = copy.deepcopy(asked[1])
    *folders, name = place
    section = report
    for each in folders:
        section = section[each]
    section[name] = value
    assert problems("report", report) != []


def test_the_page_of_the_run_has_the_verdicts(asked):
    page = (asked[0] / "report.html").read_text()
    assert '<div class="light red"' in page
    assert all(each["verdict"] in page for each in asked[1]["gate"]["requirements"])
