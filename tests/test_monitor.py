"""`riskband monitor`, used as a user would: files that grow, folders, ledgers and runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import riskband as rb
from riskband.cli import main
from riskband.report.monitor_page import monitor_page
from riskband.report.words import bound_in_words
from tests.ledgers import write_ledger
from tests.one_voice import contradictions
from tests.schemas import problems

N = 100
HEAD = "hospital,loss,n"
SHUFFLED = np.random.default_rng(7).permutation(40) / 100


def rows(risks, *, first=1, seed=0):
    wrong = np.random.default_rng(seed).binomial(N, risks)
    return [f"h{first + k},{each / N},{N}" for k, each in enumerate(wrong.tolist())]


def good(size, seed=0):
    return np.random.default_rng(seed).beta(3, 21, size)


def bad(size, seed=0):
    return np.random.default_rng(seed).beta(3, 6, size)


def write(path, lines):
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    table, made = write(folder / "before.csv", rows(good(80), seed=1)), folder / "certificate.json"
    asked = ["--num-examples", "n", "--mean", "--quantile", "0.9", "--cvar", "0.9", "--out", str(made)]
    assert main(["certify", str(table), *asked]) == 0
    return made


@pytest.fixture
def answers(tmp_path):
    return write(tmp_path / "answers.csv", rows(good(40, 2), first=100, seed=2))


def monitor(*arguments):
    return main(["monitor", *map(str, arguments)])


def of_csv(*arguments):
    return monitor(*arguments, "--num-examples", "n")


def test_the_outcome_is_that_of_the_library_and_todays_certificates_verify(tmp_path, certificate, answers, capsys):
    out = tmp_path / "today.json"
    assert of_csv(certificate, answers, "--out", out) == 0
    printed = capsys.readouterr().out
    values = np.loadtxt(answers, delimiter=",", skiprows=1, usecols=1)
    stored = json.loads(certificate.read_text())["certificates"]
    before = {name: rb.Certificate.from_dict(each) for name, each in stored.items()}
    found = rb.monitor(before, rb.ClientRisks(values, N, True))
    assert printed == f"{found}\n"
    assert printed.startswith("NO ALARM: e-value ")
    document = json.loads(out.read_text())
    assert document["monitor"] == found.to_dict()
    assert problems("certificates", document) == []
    assert list(document["monitor"]["left_out"]) == ["cvar:0.9"]
    assert main(["verify", str(out)]) == 0
    assert main(["verify", str(certificate)]) == 0


def test_the_largest_e_value_of_a_claim_is_the_peak_of_the_bets_against_it_alone():
    """Bad clients come first, and with the good ones after them the bets lose again."""
    risks = rb.ClientRisks(np.repeat([0.6, 0.0], [3, 30]), N)
    before = rb.ClientRisks(np.linspace(0.0, 0.3, 40), N)
    made = {"m": rb.mean_bound(before, delta=0.05), "q": rb.quantile(before, 0.5, delta=0.05)}
    alone = {name: rb.monitor(each, risks).e_values for name, each in made.items()}
    assert all(each.argmax() == 2 and each[2] > each[-1] > 0.0 for each in alone.values())
    said = rb.monitor(made, risks).to_dict()["claims"]
    assert [each["certificate"] for each in said] == ["m", "q"]
    assert [each["largest_e_value"] for each in said] == pytest.approx([each[2] for each in alone.values()], rel=1e-12)
    assert said[0]["largest_e_value"] != pytest.approx(said[1]["largest_e_value"], rel=1e-3)


@pytest.mark.parametrize("thresholds", [None, [0.1, 0.2, 0.3], 0.3])
@pytest.mark.parametrize("budget", [0.05, [0.05], [0.02, 0.05]])
def test_a_worst_cdf_is_monitored_at_its_largest_budget_also_if_there_is_one(budget, thresholds):
    band = rb.band(rb.ClientRisks(np.linspace(0.0, 0.3, 80), N), delta=0.05)
    made = rb.worst_case_cdf(band, divergence="chi2", budget=budget, thresholds=thresholds)
    found = rb.monitor(made, rb.ClientRisks([0.1] * 20, N))
    (claim,) = found.claims.values()
    threshold = float(claim.plain.removeprefix("share:"))
    assert claim.name == f"share:{threshold:g}@chi2:0.05"
    assert thresholds is None or threshold == 0.3
    at_one_point = rb.worst_case_cdf(band, divergence="chi2", budget=0.05, thresholds=threshold)
    assert claim.limit == pytest.approx(at_one_point.value, abs=1e-12)
    assert list(found.certificates) == [claim.plain, claim.name]
    (plain,) = rb.monitor(rb.survival(band, thresholds=[0.3]), rb.ClientRisks([0.1] * 20, N)).claims.values()
    assert plain.name == "share:0.3"


def test_an_alarm_has_its_own_status_and_stays(tmp_path, certificate, capsys):
    path = write(tmp_path / "answers.csv", rows(np.concatenate([good(40), bad(30), good(60)]), first=100))
    page = tmp_path / "monitor.html"
    assert of_csv(certificate, path, "--page", page) == 4
    printed = capsys.readouterr().out
    place = int(printed.removeprefix("ALARM at client ").partition(" ")[0])
    assert 40 < place <= 70
    text = page.read_text()
    assert f"ALARM at client {place} of 130" in text
    assert 'http-equiv="refresh"' not in text
    assert text.count('<svg viewBox="0 0 680 340"') == 3


def test_a_page_without_alarm_reads_itself_again(tmp_path, certificate, answers):
    page, out = tmp_path / "monitor.html", tmp_path / "today.json"
    assert of_csv(certificate, answers, "--page", page, "--interval", 7, "--out", out) == 0
    assert '<meta http-equiv="refresh" content="7">' in page.read_text()
    document = json.loads(out.read_text())
    assert contradictions(document, page=page.read_text()) == []
    said = bound_in_words(rb.Certificate.from_dict(document["certificates"]["mean"]))
    assert said in page.read_text()
    assert contradictions(document, page=page.read_text().replace(said, "0.1234 to 0.5678")) != []
    assert not list(tmp_path.glob("*.part"))


def test_json_is_the_document_alone(certificate, answers, capsys):
    assert of_csv(certificate, answers, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert problems("certificates", document) == []


def test_half_a_last_line_waits_for_its_end(tmp_path, certificate, answers, capsys):
    whole = answers.read_text()
    of_csv(certificate, answers)
    expected = capsys.readouterr().out
    for half in ("h900,0.1", "h900", "h900,1,10", '"h9'):
        answers.write_text(whole + half)
        assert of_csv(certificate, answers) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize("num_rows", [0, 1])
def test_fewer_than_two_clients_say_nothing_yet(tmp_path, certificate, num_rows, capsys):
    path = write(tmp_path / "answers.csv", rows(good(num_rows)))
    assert of_csv(certificate, path) == 0
    assert capsys.readouterr().out.startswith("NOTHING YET")


def test_the_rows_that_were_certified_are_not_new(tmp_path, certificate, answers, capsys):
    of_csv(certificate, answers)
    expected = capsys.readouterr().out
    first = (certificate.parent / "before.csv").read_text()
    path = tmp_path / "all.csv"
    path.write_text(first)
    assert of_csv(certificate, path) == 0
    assert capsys.readouterr().out.startswith("NOTHING YET")
    path.write_text(first + answers.read_text().partition("\n")[2])
    assert of_csv(certificate, path) == 0
    assert capsys.readouterr().out == expected


def test_days_in_a_folder_follow_each_other_and_a_client_may_be_drawn_again(tmp_path, certificate, answers, capsys):
    lines, days = answers.read_text().splitlines()[1:], tmp_path / "days"
    days.mkdir()
    for day in range(4):
        drawn = [line.partition(",")[2] for line in lines[10 * day : 10 * day + 10]]
        write(days / f"2026-11-0{day + 1}.csv", [f"h{k},{line}" for k, line in enumerate(drawn)])
    (days / "notes.txt").write_text("none of this")
    assert of_csv(certificate, days) == 2
    said = capsys.readouterr().err
    assert "got h0, h1, h2, h3, h4, h5, h6, h7, h8, h9 again and again (40 answers of 10 clients)" in said
    assert "--panel" in said
    draws = "--repeats", "draws"
    assert of_csv(certificate, days, *draws) == 0
    assert "Taken as true: a client that answered more than once was drawn anew each time" in capsys.readouterr().out
    assert of_csv(certificate, days, "--json", *draws) == 0
    whole = json.loads(capsys.readouterr().out)
    found = whole["monitor"]
    assert whole["certificates"]["mean"]["recipe"]["arguments"]["batches"] == [10] * 4
    assert sum("was drawn anew" in line for line in whole["certificates"]["mean"]["assumptions"]) == 1
    assert found["looks"] == [10, 20, 30, 40]
    (days / "2026-10-31.csv").write_text(
        (certificate.parent / "before.csv").read_text()
    )  # what was certified is not new
    assert of_csv(certificate, days, "--json", *draws) == 0
    assert json.loads(capsys.readouterr().out)["monitor"] == found


def test_a_ledger_and_a_folder_of_runs(tmp_path, certificate, answers, capsys):
    of_csv(certificate, answers)
    expected = capsys.readouterr().out
    values = np.loadtxt(answers, delimiter=",", skiprows=1, usecols=1).tolist()
    ledger, runs = write_ledger(tmp_path / "ledger.jsonl", values, N), tmp_path / "runs"
    ledger.write_text(ledger.read_text() + '{"client_id": "c')
    assert monitor(certificate, ledger) == 0
    assert capsys.readouterr().out == expected
    for day, chosen in enumerate((values[:25], values[25:])):
        folder = runs / f"day-{day}" / "certificates"
        folder.mkdir(parents=True)
        found = rb.mean_bound(rb.ClientRisks(chosen, N, names=[f"c{k}" for k in range(len(chosen))]), delta=0.05)
        found.save(folder / "mean.json")
        (folder.parent / "report.json").write_text("{}")
    (runs / "day-2" / "certificates").mkdir(parents=True)  # a run that is not complete
    assert monitor(certificate, runs) == 2
    assert "40 answers of 25 clients" in capsys.readouterr().err
    assert monitor(certificate, runs, "--repeats", "draws") == 0
    assert capsys.readouterr().out.startswith("NO ALARM: e-value")


def days_of(folder, *risks_by_day, first=1):
    """A table for each day, all of the same clients."""
    folder.mkdir(exist_ok=True)
    for day, risks in enumerate(risks_by_day, start=1):
        write(folder / f"day-{day:02}.csv", rows(risks, first=first, seed=day))
    return folder


def test_the_same_twelve_every_day_are_a_panel_and_not_a_network(tmp_path, certificate, capsys):
    """Once 360 clients, and an interval for their network that missed the truth in half of such panels."""
    panel = np.random.default_rng(0).beta(2, 8, 12)
    days = days_of(tmp_path / "days", *[panel] * 6, first=501)
    assert of_csv(certificate, days) == 2
    said = capsys.readouterr().err
    assert "(72 answers of 12 clients)" in said
    assert "--panel" in said
    out, page = tmp_path / "panel.json", tmp_path / "panel.html"
    assert of_csv(certificate, days, "--panel", "--out", out, "--page", page) == 0
    printed = capsys.readouterr().out
    assert "after 5 later evaluations of this panel of 12 clients" in printed
    document = json.loads(out.read_text())
    made = document["certificates"]["panel_change"]
    assert made["lower"] < 0.0 < made["value"]
    assert problems("certificates", document) == []
    assert main(["verify", str(out)]) == 0
    assert "It is about these clients alone" in page.read_text()
    assert "draws from one network" not in page.read_text()
    capsys.readouterr()
    write(days / "day-07.csv", [*rows(panel + 0.2, first=501, seed=7), "h999,0.9,100"])
    assert of_csv(certificate, days, "--panel") == 4
    printed = capsys.readouterr().out
    assert printed.startswith("ALARM at later evaluation 6 of 6: this panel of 12 clients has become worse")
    assert "Not of the panel, and left out: h999" in printed


def test_a_panel_that_was_certified_begins_with_its_certificate(tmp_path, certificate, capsys):
    panel = good(80)  # h1 to h80, of whom the certificate is
    days = days_of(tmp_path / "days", panel[:30] + 0.15)
    made, before = tmp_path / "named.json", certificate.parent / "before.csv"
    main(["certify", str(before), "--num-examples", "n", "--client", "hospital", "--out", str(made)])
    capsys.readouterr()
    assert of_csv(made, days) == 2
    assert "must not be those of the certificate, of whom panel_change" in capsys.readouterr().err
    assert of_csv(made, days, "--panel") == 4
    assert "at later evaluation 1 of 1: this panel of 30 clients" in capsys.readouterr().out
    assert of_csv(made, days / "day-01.csv", "--panel") == 2
    assert "--panel needs a folder" in capsys.readouterr().err
    assert of_csv(certificate, days, "--panel") == 0  # which has no names
    assert "NOTHING YET" in capsys.readouterr().out


def test_clients_of_the_certificate_are_no_others(certificate):
    named = rb.ClientRisks(SHUFFLED, N, names=[f"c{k}" for k in range(40)])
    before, draws = rb.mean_bound(named, delta=0.05), rb.ClientRisks(**named.to_dict() | {"repeats": "draws"})
    with pytest.raises(ValueError, match=r"got c0, c1, c10, .*40 of 40.*repeats='draws'"):
        rb.monitor(before, named)
    found = rb.monitor(before, draws)
    assert found.verdict == "NO ALARM"
    assert "Taken as true: a client that answered more than once was drawn anew" in found.statement


def test_a_table_that_is_sorted_says_nothing_one_by_one(tmp_path, certificate, answers, capsys):
    head, *lines = answers.read_text().splitlines()
    answers.write_text("\n".join([head, *sorted(lines, key=lambda line: -float(line.split(",")[1]))]) + "\n")
    assert of_csv(certificate, answers) == 2
    assert "got 40 that are sorted by them" in capsys.readouterr().err


def test_scores_of_which_more_is_better(tmp_path, capsys):
    rng, made = np.random.default_rng(3), tmp_path / "auc.json"
    before, path = tmp_path / "before.csv", tmp_path / "auc.csv"
    before.write_text("site,auc\n" + "".join(f"s{k},{v:.3f}\n" for k, v in enumerate(rng.beta(20, 4, 60))))
    asked = ["--score", "AUC", "--higher-is-better", "--column", "auc", "--out", str(made)]
    assert main(["certify", str(before), *asked, "--mean", "--quantile", "0.1", "--survival", "0.7"]) == 0
    path.write_text("site,auc\n" + "".join(f"t{k},{v:.3f}\n" for k, v in enumerate(rng.beta(20, 4, 60))))
    assert monitor(made, path, "--column", "auc") == 0
    path.write_text("site,auc\n" + "".join(f"t{k},{v:.3f}\n" for k, v in enumerate(rng.beta(6, 4, 60))))
    capsys.readouterr()
    assert monitor(made, path, "--column", "auc") == 4
    assert "quantile:0.1 at least 0." in capsys.readouterr().out
    path.write_text("site,loss,auc\n" + "t,0.1,0.9\nu,0.1,0.9\n")  # until it was refused, losses were read as scores
    for command in (["monitor", str(made), str(path)], ["certify", str(path), *asked[:3]]):
        assert main(command) == 2
        assert (
            "column 'loss' has the name of a loss, where 0 is best, so it cannot be read as AUC"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (f"{HEAD}\nh1,0.1,100\nh1,0.2,100\nh2,0.2,100\n", [], "must name every client once"),
        ("hospital,error,n\nh1,0.1,100\nh2,0.2,100\n", [], "column 'loss'"),
        (f"{HEAD}\nh1,0.1,100\nh2,1.2,100\n", [], "must lie in [0, 1]"),
        (f"{HEAD}\nh1,0.1234,100\nh2,0.2,100\n", [], "binary"),
        (f"{HEAD}\nh1,0.1,100\nh2,0.2,100\n", ["--alpha", "0"], "alpha must be in (0, 1)"),
        (f"{HEAD}\nh1,0.1,100\nh2,0.2,100\n", ["--interval", "0"], "--interval must be 1 second or more"),
        (f"{HEAD}\nh1,0.1,100\nh2,0.2,100\n", ["--follow", "--json"], "--json is for one look"),
        (f"{HEAD}\nh1,0.1,100\nh2,0.2,100\n", ["--page", "nowhere/page.html"], "--page must be in a folder"),
    ],
)
def test_wrong_input_in_words(tmp_path, certificate, text, options, said, capsys):
    path = tmp_path / "answers.csv"
    path.write_text(text)
    assert of_csv(certificate, path, *options) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_what_cannot_be_monitored_is_refused_with_the_reason(tmp_path, answers, capsys):
    risks = rb.ClientRisks(SHUFFLED, N)
    path = tmp_path / "made.json"
    trained = rb.ClientRisks(SHUFFLED, N, answered_by="trainers")
    refused = {
        "no single client speaks against it": rb.cvar(rb.band(risks, delta=0.05), 0.9),
        "it is no certificate": rb.mean_bound(trained, delta=0.05),
        "its bound excludes nothing": rb.mean_bound(rb.ClientRisks([1.0] * 5, N), delta=0.05),
    }
    for why, made in refused.items():
        made.save(path)
        assert of_csv(path, answers) == 2
        assert why in capsys.readouterr().err
    path.write_text(replace(rb.mean_bound(risks, delta=0.05), value=0.9).to_json())
    assert of_csv(path, answers) == 2
    assert "does not follow from its answers" in capsys.readouterr().err
    with pytest.raises(ValueError, match="must be fresh"):
        rb.monitor(rb.mean_bound(risks, delta=0.05), trained)
    with pytest.raises(ValueError, match="batches must be numbers of clients, 40 in all"):
        rb.monitor(rb.mean_bound(risks, delta=0.05), risks, batches=[10, 20])
    with pytest.raises(ValueError, match="must be of what was certified"):
        rb.monitor(rb.mean_bound(risks, delta=0.05), rb.ClientScores([0.1, 0.2], False))


def test_what_is_not_monitored_and_what_is_taken_as_true_are_said(certificate, answers, capsys):
    assert of_csv(certificate, answers) == 0
    said = capsys.readouterr().out
    assert said.endswith(" Not monitored: cvar:0.9.\n")
    assert "Today, if all these clients are of one network, with probability" in said


def test_a_folder_of_other_files_is_seen_to_be_one_and_endings_may_be_capitals(tmp_path, certificate, answers, capsys):
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "notes.txt").write_text("h")
    assert of_csv(certificate, tmp_path / "days") == 0
    assert "(tables and complete runs in " in (said := capsys.readouterr().out)
    assert said.endswith(": 0)\n")
    answers.rename(tmp_path / "days" / "1.CSV")
    assert of_csv(certificate, tmp_path / "days") == 0
    assert "NO ALARM" in capsys.readouterr().out


def test_a_wrong_day_is_named(tmp_path, certificate, capsys):
    for day, number in ("1", "0.1"), ("2", "7"):
        write(tmp_path / f"{day}.csv", ["a,0.1,100", f"b,{number},100"])
    assert of_csv(certificate, tmp_path) == 2
    assert f"{tmp_path / '2.csv'}: losses in column 'loss' must lie in [0, 1]" in capsys.readouterr().err


def test_only_worst_cases_are_monitored_where_there_are_some():
    """Until the rule was made, a network within its budget raised an alarm against the mean without a shift."""
    risks = rb.ClientRisks(SHUFFLED, N)
    shifted = rb.worst_case_mean(risks, divergence="chi2", budget=[0.1, 0.2], delta=0.05)
    made = {"mean": rb.mean_bound(risks, delta=0.05), "worst": shifted}
    within = rb.ClientRisks([(made["mean"].value + shifted.value[1]) / 2] * 300, N, binary=False)
    found = rb.monitor(made, within)
    assert rb.monitor(made["mean"], within).verdict == "ALARM"
    assert (found.verdict, list(found.claims), found.delta) == ("NO ALARM", ["worst"], 0.05)
    assert found.claims["worst"].limit == shifted.value[1] > shifted.value[0]
    assert "allows for no shift" in found.left_out["mean"]


def test_what_clients_measure_is_monitored_for_as_many_examples_alone():
    """A share of measured risks alarmed at the fourth client of the same network, with 10 examples instead of 1,000."""
    rng = np.random.default_rng(0)
    before = rb.ClientRisks(rng.binomial(1000, 0.05, 200) / 1000, 1000)
    certificate = rb.survival(before, thresholds=0.1, delta=0.05, local="observed")
    few, same = (rb.ClientRisks(rng.binomial(size, 0.05, 60) / size, size) for size in (10, 1000))
    with pytest.raises(ValueError, match="what clients measure on 1000 examples each, and these have other"):
        rb.monitor(certificate, few)
    assert rb.monitor(certificate, same).verdict == "NO ALARM"


def test_certificates_that_need_not_ever_be_true_at_once_are_too_many():
    """Until it was refused, something held with probability at least -0.25."""
    risks = rb.ClientRisks(SHUFFLED, N)
    many = {f"{level:g}": rb.quantile(risks, level, delta=0.05) for level in np.linspace(0.02, 0.5, 25)}
    with pytest.raises(ValueError, match=r"got delta 1\.25 in all; monitor fewer"):
        rb.monitor(many, risks)


def test_bounds_that_contradict_each_other_after_a_change_are_said(tmp_path):
    """Until they were caught, the alarm ended in an error: bounds that hold at all times are false after a change."""
    before = rb.mean_bound(rb.ClientRisks(SHUFFLED, N), delta=0.05)
    changed = rb.ClientRisks(np.repeat([0.1, 0.9], [300, 100]), N, binary=False)
    found = rb.monitor(before, changed)
    assert found.verdict == "ALARM"
    assert 300 < found.alarm_at < 315
    assert found.statement.endswith("Bounds of mean contradict each other: the network changed on the way.")
    assert found.to_document().keys() == {"monitor"}
    worst = rb.worst_case_mean(rb.ClientRisks(SHUFFLED, N), divergence="chi2", budget=0.1, delta=0.05)
    assert rb.monitor(worst, changed).certificates == {}  # once of a worst mean, far below today's mean
    sizes, lower, upper = found.trajectory("mean")
    assert sizes[-1] < 400
    assert np.all(lower <= upper)
    page = monitor_page(found, title="A fleet", about={})
    assert "contradictory: the network changed on the way" in page
    assert "extra &lt;" in monitor_page(found, title="extra <", about={})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("survival", ("share:0.3", False)),
        ("curve", ("share:0.3", False)),
        ("worst_share", ("share:0.3@kl:0.2", False)),
        ("observed", ("share:0.3", True)),
        ("harmed", ("share:0.05", False)),
        ("change_quantile", ("quantile:0.9", False)),
        ("worst_change", ("mean@chi2:0.1", False)),
        ("always", ("share:0.3@chi2:0.1", False)),
    ],
)
def test_what_a_certificate_claims(given, expected):
    risks = rb.ClientRisks(np.random.default_rng(8).permutation(80) / 400, 400)
    band = rb.band(risks, delta=0.05)
    changes = rb.ClientChanges.from_counts([1] * 80, [3] * 80, 400)
    made = {
        "survival": lambda: rb.survival(band, thresholds=0.3),
        "curve": lambda: rb.survival(band, thresholds=[0.29, 0.3, 0.4]),
        "worst_share": lambda: rb.worst_case_cdf(band, divergence="kl", budget=[0.1, 0.2], thresholds=[0.25, 0.3, 0.4]),
        "observed": lambda: rb.survival(risks, thresholds=0.3, delta=0.05, local="observed"),
        "harmed": lambda: rb.bound(changes, "harmed:0.05", delta=0.05, sides="two"),
        "change_quantile": lambda: rb.bound(changes, "quantile:0.9", delta=0.05),
        "worst_change": lambda: rb.bound(changes, "mean@chi2:0.1", delta=0.05),
        "always": lambda: rb.Sequence("share:0.3@chi2:0.1", delta=0.05),
    }[given]()
    answers = changes if "change" in given or given == "harmed" else risks
    if given == "always":
        made.add(risks)
        (made,) = made.certificates.values()
    found = rb.monitor(made, answers)
    (claim,) = found.claims.values()
    assert (claim.name, claim.is_measured) == expected
    assert claim.limit == np.ravel(made.value)[-2 if np.size(made.value) > 1 else 0]
    assert found.verdict == "NO ALARM"
    assert set(found.certificates) == {claim.name, claim.plain}
    worse = (
        rb.ClientChanges([0.1] * 60, [0.8] * 60, 400)
        if isinstance(answers, rb.ClientChanges)
        else rb.ClientRisks([0.8] * 60, 400)
    )
    assert rb.monitor(made, worse).verdict == "ALARM"


def following(monkeypatch, certificate, answers, *between):
    """Follow a file that is changed between the looks; the last one must end it."""
    changes = iter(between)
    monkeypatch.setattr(time, "sleep", lambda seconds: next(changes)())
    return of_csv(certificate, answers, "--follow")


def test_following_says_what_is_new_and_ends_with_the_alarm(monkeypatch, certificate, answers, capsys):
    first = answers.read_text()
    alarm = "\n".join(rows(bad(40), first=500)) + "\n"
    one_more = first + "h99,0.1,100\n"
    looks = [f"{HEAD}\nh100,0.1,1", first, one_more[:-4], one_more, one_more, one_more + alarm]
    changes = [partial(answers.write_text, text) for text in looks]
    answers.write_text(f"{HEAD}\n")
    assert following(monkeypatch, certificate, answers, *changes) == 4
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("NOTHING YET")
    assert "after 40 clients" in lines[1]
    assert "after 41 clients" in lines[2]
    assert lines[3].startswith("ALARM at client ")


def test_following_ends_where_answers_that_were_seen_are_no_longer_there(monkeypatch, certificate, answers, capsys):
    first = answers.read_text()
    other = f"{HEAD}\n" + "\n".join(rows(good(60, 9), first=100, seed=9)) + "\n"
    for change, said in {
        partial(answers.write_text, f"{HEAD}\n"): "must only grow",
        partial(answers.write_text, "\n".join(first.splitlines()[:20]) + "\n"): "must only grow",
        partial(answers.write_text, other): "must only grow",
        partial(answers.write_text, first.replace("loss", "error")): "column 'loss'",
        answers.unlink: "cannot use",
    }.items():
        answers.write_text(first)
        assert following(monkeypatch, certificate, answers, change) == 2
        assert said in capsys.readouterr().err


def test_ctrl_c_ends_following_quietly(monkeypatch, certificate, answers, capsys):
    def interrupt():
        raise KeyboardInterrupt

    assert following(monkeypatch, certificate, answers, interrupt) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_what_is_followed_is_said_at_once(certificate, answers):
    command = [sys.executable, "-m", "riskband", "monitor", certificate, answers, "--num-examples", "n"]
    with subprocess.Popen([*command, "--follow", "--interval", "1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("NO ALARM: e-value")
        with answers.open("a") as file:
            file.write("\n".join(rows(bad(40), first=500)) + "\n")
        assert process.stdout.readline().startswith("ALARM at client ")
        assert process.wait(timeout=60) == 4
