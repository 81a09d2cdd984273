"""What one evaluation says, it says once: in the file, in the terminal and on the page, by the real commands."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import riskband as rb
from riskband.cli import main
from riskband.functionals.dispersion import dispersion_certificate
from riskband.functionals.functional import interval_of
from riskband.report.findings import findings
from riskband.report.page import report_page
from tests.one_voice import contradictions

ASKED = {
    "nothing": (),
    "worst means": ("--divergence", "chi2", "--budget", "0.05", "0.2"),
    "two divergences and a target": ("--divergence", "chi2", "kl", "--mean", "--target", "0.26"),
    "the same number twice": ("--mean", "--quantile", "0.9", "--measure", "mean", "--require", "quantile:0.9<=0.4"),
    "requirements": ("--require", "mean<=0.2", "mean@chi2:0.1<=0.4", "share:0.3<=0.3", "--divergence", "chi2"),
    "a share at stake": (
        "--require",
        "share:0.3@chi2:0.1<=0.5",
        "--divergence",
        "chi2",
        "--target",
        "0.5",
        "--at",
        "0.3",
    ),
    "all at once": ("--at-once", "--mean", "--divergence", "chi2", "--require", "mean<=0.2", "--measure", "gini"),
    "doubtful answers": (
        "--num-missing",
        "3",
        "--missing",
        "worst",
        "--cvar",
        "0.9",
        "--mean",
        "--require",
        "mean<=0.3",
    ),
    "the next clients": ("--next", "20"),
    "the next clients and a shift": ("--next", "5", "--divergence", "chi2", "kl", "--budget", "0.1", "--mean"),
    "a finite federation": ("--population", "150", "--quantile", "0.9"),
    "answers of trainers": ("--answered-by", "trainers", "--divergence", "kl", "--require", "mean<=0.3"),
    "groups": ("--group", "region", "--mean"),
    "a share at each budget": ("--at-once", "--survival", "0.3", "--divergence", "chi2", "--budget", "0.1", "--mean"),
    "a narrow delta": ("--delta", "0.01", "--measure", "gini", "cvar:0.9", "--divergence", "tv"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(3)
    losses = rng.binomial(100, rng.beta(1.2, 6.0, 60)) / 100
    path = tmp_path_factory.mktemp("answers") / "risks.csv"
    lines = (f"site-{k:03d},{loss},{'north' if k % 2 else 'south'}\n" for k, loss in enumerate(losses))
    path.write_text("site,loss,region\n" + "".join(lines))
    return path


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_file_terminal_and_page_say_the_same(asked, table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("riskband.worst_cases.requirements._LARGEST_TRIED", 100)  # no estimate, which takes time
    out, page = tmp_path / "certificate.json", tmp_path / "page.html"
    assert main(["certify", str(table), "--num-examples", "100", "--client", "site", *asked, "--out", str(out)]) in (
        0,
        1,
        3,
    )
    printed = capsys.readouterr().out
    assert main(["verify", str(out)]) == 0
    assert main(["report", str(out), "-o", str(page)]) == 0
    document, made = json.loads(out.read_text()), page.read_text()
    delta = float(asked[asked.index("--delta") + 1]) if "--delta" in asked else 0.05
    assert contradictions(document, page=made, terminal=printed, delta=delta) == []
    assert document["findings"]["delta"] == pytest.approx(delta, rel=1e-9)
    assert main(["verify", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{document['findings']['statement'][1:]}.") == 0  # the page's own sentence, below
    statement = document["findings"]["statement"]
    assert statement in printed
    assert statement[1:] in re.sub(r"\s+", " ", made)
    worst = f"site-{int(np.argmax(rb.ClientRisks(_losses(table), 100).values)):03d}"
    assert f"({worst})" in printed
    assert worst in made


ON_SCALE = {
    "a new model": ("compare", ("--require", "change<=0.15", "harmed:0.05<=0.5")),
    "the same without verdicts": ("compare", ()),
    "a new model under a shift": ("compare", ("--number", "quantile:0.9", "--divergence", "chi2")),
    "the next changes": ("compare", ("--next", "9", "--divergence", "kl", "--budget", "0", "0.1")),
    "a worst change": ("compare", ("--require", "mean@chi2:0.1<=0.5", "change>=-0.5")),
    "a score": ("--higher-is-better", ("--require", "mean>=0.6", "mean@chi2:0.1>=0.2")),
    "the next scores": ("--higher-is-better", ("--next", "7", "--quantile", "0.5", "--survival", "0.8", "--mean")),
    "a time": ("--lower-is-better", ("--next", "7", "--divergence", "chi2", "--budget", "0", "0.1")),
}


@pytest.mark.parametrize(("kind", "asked"), ON_SCALE.values(), ids=ON_SCALE)
def test_of_changes_and_scores_all_say_the_same(kind, asked, table, tmp_path, capsys):
    out, page, new = tmp_path / "certificate.json", tmp_path / "page.html", tmp_path / "new.csv"
    new.write_text(re.sub(r"site-0(\d)(\d),0.(\d).*", r"site-0\1\2,0.0\3", table.read_text()))
    given = ["compare", str(table), str(new), "--num-examples", "100"]
    if kind != "compare":
        new.write_text(table.read_text().replace("loss", "auc", 1))
        given = ["certify", str(new), "--score", "AUC", kind, "--column", "auc"]
    assert main([*given, "--client", "site", *asked, "--out", str(out)]) in (0, 1, 3)
    printed = capsys.readouterr().out
    assert main(["report", str(out), "-o", str(page)]) == 0
    document, made = json.loads(out.read_text()), page.read_text()
    assert contradictions(document, page=made, terminal=printed, delta=0.05) == []
    assert main(["verify", str(out)]) == main(["verify", str(page)]) == 0
    assert document["findings"]["statement"] in printed
    # Each number that is said is looked at: another one is found, wherever it stands.
    shown = made.partition('<section id="true"')[0]
    for text in set(re.findall(r"(?<!probability )(?:at most|at least) (-?\d\.\d{4})", shown)):
        assert contradictions(document, page=made.replace(text, f"{float(text) + 0.01:.4f}")) != [], text


def _losses(table):
    return [float(line.split(",")[1]) for line in table.read_text().splitlines()[1:]]


def test_without_names_a_client_is_its_row_everywhere(table, tmp_path, capsys):
    out, page = tmp_path / "certificate.json", tmp_path / "page.html"
    assert main(["certify", str(table), "--num-examples", "100", "--mean", "--out", str(out)]) == 0
    row = f"row {int(np.argmax(_losses(table))) + 1}"
    assert f"({row});" in capsys.readouterr().out
    assert (
        main(["certify", str(table), "--num-examples", "100", "--mean", "--tune", "mean", "--pilot-share", "0.5"]) == 0
    )
    (left,) = re.findall(r"largest ([\d.]+) \(row (\d+)\)", capsys.readouterr().out)
    assert _losses(table)[int(left[1]) - 1] == float(left[0])
    assert main(["report", str(out), "-o", str(page)]) == 0
    assert f"<td>{row}</td>" in re.sub(r"<th[^>]*>(.*?)</th>", r"<td>\1</td>", page.read_text())


def test_one_number_has_all_of_delta_and_several_share_it(table, tmp_path):
    risks, out = rb.ClientRisks(_losses(table), 100), tmp_path / "certificate.json"
    usual = ["certify", str(table), "--num-examples", "100", "--out", str(out)]
    for asked, expected in (
        (["--mean"], {"mean": rb.mean_bound(risks, delta=0.05).value}),
        (["--survival", "0.3"], {"share:0.3": rb.survival(risks, thresholds=0.3, delta=0.05).value}),
        (["--require", "mean<=0.9", "mean>=0.01"], {"mean": interval_of(risks, "mean", delta=0.05).upper}),
        (
            ["--mean", "--measure", "gini"],
            {"mean": rb.mean_bound(risks, delta=0.025).value, "gini": interval_of(risks, "gini", delta=0.025).upper},
        ),
        (["--mean", "--at-once"], {"mean": rb.mean(rb.band(risks, delta=0.05, sides="lower")).value}),
    ):
        assert main([*usual, *asked]) == 0
        stored = json.loads(out.read_text())["certificates"]
        assert {name: entry["value"] for name, entry in stored.items()} == expected


def test_a_figure_of_the_band_has_its_share_of_delta_and_is_in_the_file(table, tmp_path):
    out = tmp_path / "certificate.json"
    asked = ["--num-examples", "100", "--mean", "--plot", str(tmp_path / "band.svg"), "--out", str(out)]
    assert main(["certify", str(table), *asked]) == 0
    document = json.loads(out.read_text())
    assert [event["holds"] for event in document["findings"]["events"]] == ["own", "band"]
    band = rb.band(rb.ClientRisks(_losses(table), 100), delta=0.025, sides="lower")
    tails = {
        name: document["certificates"][name]["value"] for name in document["findings"]["events"][1]["certificates"]
    }
    expected = [rb.quantile(band, 0.5), rb.quantile(band, 0.9), rb.cvar(band, 0.9)]
    assert tails == dict(zip(("quantile:0.5", "quantile:0.9", "cvar:0.9"), map(float, expected), strict=True))


def test_a_page_of_answers_spends_one_delta(table):
    risks = rb.ClientRisks(_losses(table), 100, groups=["north", "south"] * 30)
    for required in ((), ["mean<=0.3", "quantile:0.5<=0.3"]):
        page = report_page(risks, delta=0.05, require=required)
        assert contradictions(page=page) == []
        num_numbers = max(len(required), 1) + 2  # and a band, and the groups
        assert f"delta = 0.05, shared among {num_numbers}, 2 of them bands" in page


def wrong(document, page, terminal):
    """The contradictions that were there before, each as what is now said with one number changed."""
    mean = document["certificates"]["mean"]
    larger = mean | {"value": mean["value"] + 0.01, "lower": 0.0}
    yield "two numbers", {**document, "certificates": {**document["certificates"], "again": larger}}, page, terminal
    shown = f"at most {document['certificates']['quantile:0.9']['value']:.3f}"
    yield (
        "a larger bound on the page",
        document,
        re.sub(r"(Nine in ten.*?at most )0\.\d+", r"\g<1>0.9", page, flags=re.S),
        terminal,
    )
    yield (
        "another one in the terminal",
        document,
        page,
        terminal.replace("unseen clients <= 0.", "unseen clients <= 0.9"),
    )
    events = document["findings"]["events"]
    yield (
        "too much delta",
        {**document, "findings": {**document["findings"], "events": [*events, {**events[0]}]}},
        page,
        terminal,
    )
    yield (
        "a wrong verdict",
        {
            **document,
            "gate": {"requirements": [{"requirement": "mean<=0.9", "verdict": "NOT DECIDED", "upper": mean["value"]}]},
        },
        page,
        terminal,
    )
    yield (
        "the sum that is no more",
        document,
        page,
        terminal + "\nAll certificates hold at once with confidence 0.75: their deltas",
    )
    assert shown


def test_each_contradiction_that_was_there_is_found(table, tmp_path, capsys):
    out, path = tmp_path / "certificate.json", tmp_path / "page.html"
    assert main(["certify", str(table), "--num-examples", "100", "--out", str(out)]) == 0
    terminal = capsys.readouterr().out
    assert main(["report", str(out), "-o", str(path)]) == 0
    document, page = json.loads(out.read_text()), path.read_text()
    assert contradictions(document, page=page, terminal=terminal) == []
    for what, *changed in wrong(document, page, terminal):
        report, text, printed = changed
        assert contradictions(report, page=text, terminal=printed, delta=0.05) != [], what


def test_that_nothing_is_certified_is_said_once_whatever_the_divergences(table, tmp_path, capsys):
    out, page = tmp_path / "certificate.json", tmp_path / "page.html"
    asked = ["--mean", "--target", "0.05", "--divergence", "chi2", "tv", "kl", "--out", str(out)]
    assert main(["certify", str(table), "--num-examples", "100", *asked]) == 0
    line = "It is not certified that the mean risk is at most 0.05, not even without a shift."
    assert capsys.readouterr().out.count(line) == 1
    assert main(["report", str(out), "-o", str(page)]) == 0
    assert page.read_text().split("<script")[0].count(line) == 1


def test_the_smaller_of_two_bounds_has_paid_for_both(table):
    risks = rb.ClientRisks(_losses(table), 100)
    two = {
        "hoeffding": rb.mean_bound(risks, delta=0.02, method="hoeffding"),
        "betting": rb.mean_bound(risks, delta=0.03),
        "published": rb.worst_case_mean(rb.band(risks, delta=0.04), divergence="kl", budget=0.1, method="published"),
    }
    found = findings(two)
    assert list(found.certificates) == ["betting", "published"]
    assert found.delta == 0.05  # a formula that is false has none, and nothing more is read off its band
    assert found.band is None
    assert found.statement == (
        "with probability at least 0.95 all of this holds together (delta = 0.05, shared among 2: 0.02 + 0.03)"
    )
    gate = rb.require(risks, "mean<=0.9", delta=0.01)
    assert findings({"mean": two["betting"]}, gate=gate).certificates == gate.certificates
    assert findings({"mean": two["betting"]}, gate=gate).delta == 0.04


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        (("--mean", "--quantile", "0.5", "0.9", "--cvar", "0.9", "--plot", "{}/band.svg"), ["own"] * 4 + ["band"]),
        (("--require", "quantile:0.5<=0.9", "quantile:0.9<=0.9", "cvar:0.9<=0.9", "--plot", "{}/band.svg"), None),
        (("--next", "3", "--method", "dkw"), ["own"]),
        (("--next", "3", "--at-once"), ["own"]),
        (("--next", "3", "--sides", "two"), ["own"]),
    ],
    ids=str,
)
def test_a_band_that_is_used_has_its_part_of_delta_and_no_other_is_made(asked, held, table, tmp_path, monkeypatch):
    monkeypatch.setattr("riskband.worst_cases.requirements._LARGEST_TRIED", 100)
    out = tmp_path / "certificate.json"
    filled = [each.format(tmp_path) for each in asked]
    assert main(["certify", str(table), "--num-examples", "100", *filled, "--out", str(out)]) in (0, 3)
    events = json.loads(out.read_text())["findings"]["events"]
    assert sum(each["delta"] for each in events) == pytest.approx(0.05, rel=1e-9)
    assert held in (None, [each["holds"] for each in events])
    assert main(["verify", str(out)]) == 0


def test_what_is_true_of_measured_risks_is_said_of_them(table, capsys):
    asked = ["cvar:0.9<=0.1", "share:0.05@chi2:0.01<=0.99", "share:0.2>=0.9"]
    main(["certify", str(table), "--num-examples", "100", "--local", "observed", "--require", *asked])
    verdicts = [line for line in capsys.readouterr().out.splitlines() if "is required" in line]
    assert len(verdicts) == 3
    assert all("would measure" in line for line in verdicts)


def test_the_smaller_of_bets_in_two_orders_pays_for_both():
    rng = np.random.default_rng(0)
    losses = rng.binomial(100, rng.beta(1.2, 6.0, 60)) / 100
    made = {
        str(seed): dispersion_certificate(
            rb.ClientRisks(np.random.default_rng(seed).permutation(losses), 100), "atkinson:0.5", delta=0.05
        )
        for seed in range(3)
    }
    found = findings(made)
    assert len({each.value for each in made.values()}) > 1
    assert found.delta == pytest.approx(0.15)
    assert len(found.certificates) == 1
