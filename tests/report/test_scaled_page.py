"""The page of changes between two models and of scores: its numbers, its words, and what it refuses."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import riskband as rb
from riskband.cli import main
from riskband.cli.verify import stored_certificates
from riskband.report.page import report_page
from tests.one_voice import contradictions
from tests.report.test_page import SECTIONS, Read, cells

K, N = 60, 1_000
RNG = np.random.default_rng(30)
WRONG = RNG.binomial(N, RNG.beta(3, 20, K))
WORSE, BETTER = RNG.binomial(N - WRONG, 0.02 * RNG.uniform(0.0, 3.0, K)), RNG.binomial(WRONG, 0.2)
NAMES = [f"Spital <{k}>" for k in range(K)]
CHANGES = rb.ClientChanges.from_counts(WORSE, BETTER, N, old_wrong=WRONG, names=NAMES)
AUC = np.round(1.0 - RNG.beta(3.0, 15.0, K), 6)
SCORES = rb.ClientScores(AUC, higher_is_better=True, name="AUC", names=NAMES)


def written(found, path):
    path.write_text(json.dumps(found.to_document()), encoding="utf-8")
    return str(path)


def body(page):
    """What a reader is told before the certificates in their exact words."""
    return Read(page).shown.partition(SECTIONS[6])[0]


def test_a_comparison_with_requirements_as_a_page(tmp_path, capsys):
    found = rb.compare(CHANGES, require=["change<=0.2", "harmed:0.02<=0.8"])
    file, path = written(found, tmp_path / "change.json"), tmp_path / "page.html"
    assert main(["report", file, "--out", str(path), "--title", "evaluation"]) == 0
    page, said = path.read_text(), body(path.read_text())
    assert said == body(report_page(found, title="evaluation"))
    assert said == body(report_page(found.certificates, require=found.gate, title="evaluation"))
    assert "light green" in page
    assert "Comparison of two models" in said
    measured = (WORSE - BETTER).mean() / N
    share = np.mean((WORSE - BETTER) / N > 0.02)
    assert cells(page, "mean&lt;=")[1] == f"{measured:.4f}"
    assert cells(page, "share:0.02&lt;=")[1] == f"{share:.4f}"
    assert cells(page, "The share of unseen clients")[1] == f"{share:.4f}"
    assert f"Measured on the clients that answered: {measured:.4f}." in said
    (percent,) = re.findall(r"at most ([\d.]+) % of unseen clients get worse by more than 0.02", said)
    assert -1e-9 <= float(percent) / 100 - found.certificates["share:0.02"].value <= 0.001 + 1e-9
    assert "had no part in training, tuning or choosing either model" in said
    assert "the model" not in said.replace("the model is worse", "")
    assert contradictions(found.to_document(), page=page) == []
    assert main(["verify", str(path)]) == 0
    assert "its text is, word for word" in capsys.readouterr().out


def test_clients_stand_with_both_losses_the_worst_change_first():
    page, order = report_page(CHANGES, delta=0.05), np.argsort(-(WORSE - BETTER), kind="stable")
    rows = re.findall(r'<tr><th scope="row">Spital &lt;(\d+)&gt;</th>(.*?)</tr>', page)
    assert [int(k) for k, _ in rows] == order.tolist()
    for k, row in rows:
        old, worse, better = WRONG[int(k)], WORSE[int(k)], BETTER[int(k)]
        losses = [f"{number / N:.4f}" for number in (old, old + worse - better, worse - better)]
        assert re.findall(r"<td[^>]*>(.*?)</td>", row) == [*losses, str(worse), str(better), str(N)]
    num_worse = int(np.sum(WORSE > BETTER))
    assert f"Measured worse: {num_worse} of {K} clients, most of all {NAMES[order[0]]} (+" in Read(page).shown


def test_arrows_lead_from_the_old_to_the_new_loss():
    (figure,) = [each for each in Read(report_page(CHANGES, delta=0.05)).of("figure") if each["id"] == "chart-1"]
    said, order = json.loads(figure["data-chart"])["rows"], np.argsort(-(WORSE - BETTER), kind="stable")
    new = WRONG + WORSE - BETTER
    assert said == [[f"{NAMES[k]}: {WRONG[k] / N:.4f} to {new[k] / N:.4f}"] for k in order]
    page = report_page(CHANGES, delta=0.05)
    starts = {}
    for kind, sign in (("worst-0", 1), ("bound", -1)):
        (path,) = re.findall(rf'<path class="{kind}" d="(M\d[^"]*l[^"]*)"', page)
        arrows = [list(map(float, each)) for each in re.findall(r"M([\d.]+) ([\d.]+)L[\d.]+ ([\d.]+)l", path)]
        assert len(arrows) == np.sum(np.sign(WORSE - BETTER) == sign)
        assert all((start - end) * sign >= 0.0 for _, start, end in arrows)  # an SVG's y axis points downwards
        starts |= {round(x): start for x, start, _ in arrows}
    drawn = [starts[x] for x in sorted(starts)]
    expected = WRONG[order][(WORSE != BETTER)[order]]
    assert np.corrcoef(drawn, expected)[0, 1] == pytest.approx(-1.0, abs=1e-4)


def test_where_only_changes_are_known_no_loss_is_shown():
    page = report_page(rb.ClientChanges.from_counts(WORSE, BETTER, N), delta=0.05)
    assert "Old loss" not in page
    assert "arrows from 0 to their change" in page
    assert "Got worse" in page


@pytest.mark.parametrize("num_clients", [2, 400])
def test_clients_that_all_stay_the_same_and_many_have_a_figure(num_clients):
    same = rb.ClientChanges([0.0] * num_clients, [0.0] * num_clients, 10)
    page = report_page(same, delta=0.05)
    assert ("150 of 400 clients, evenly chosen" in page) == (num_clients == 400)
    assert "Measured worse: 0 of" in page
    assert "nan" not in Read(page).shown.lower()


@pytest.mark.parametrize("kind", ["changes", "scores"])
def test_bounds_on_other_networks_stand_in_section_3_and_nothing_else_is_made(kind):
    answers = CHANGES if kind == "changes" else SCORES
    found = {
        "mean": rb.bound(answers, "mean", delta=0.01),
        "worst": rb.bound(answers, "mean@chi2:0.1", delta=0.01),
        "next": rb.next_clients(answers, 8, delta=0.01, divergence="kl", budget=[0.0, 0.1]),
        "one": rb.next_clients(answers, 1, delta=0.2, divergence="kl", budget=[0.0, 0.05]),
    }
    page = report_page(found)
    third = Read(page).shown.partition(SECTIONS[2])[2].partition(SECTIONS[3])[0]
    bound = found["worst"].value if kind == "changes" else found["worst"].lower
    (said,) = re.findall(r"budget 0\.1 in χ² divergence at (?:most|least) (-?[\d.]+)", third)
    assert abs(float(said) - bound) <= 1.001e-4
    assert re.search(r"would measure, budget 0\.05 at (most|least) -?\d", third)
    assert re.search(
        r"those that measure (a change of the risk above|the AUC below) -?\d\.\d+, budget 0\.1 in KL", third
    )
    assert "network without" not in page
    assert "mean risk" not in body(page)
    assert stored_certificates(page)["certificates"].keys() == found.keys()
    assert contradictions(page=page) == []


def test_a_page_of_scores_never_says_risk_nor_loss_nor_an_end_of_the_range(tmp_path, capsys):
    page, path = report_page(SCORES, delta=0.05, require="mean>=0.7"), tmp_path / "page.html"
    said = body(page)
    assert "Report on the AUC" in said
    assert "light green" in page
    assert not re.findall(r"\b(risks?|loss(es)?)\b", said, re.IGNORECASE)
    assert not re.findall(r"\b[01]\.0000\b", said)
    rows = re.findall(r'<tr><th scope="row">Spital &lt;(\d+)&gt;', page)
    assert list(map(int, rows)) == np.argsort(AUC, kind="stable").tolist()
    assert cells(page, "mean&gt;=")[1] == f"{AUC.mean():.4f}"
    path.write_text(page, encoding="utf-8")
    assert main(["verify", str(path)]) == 0
    # A number that these few cannot bound is said not to be.
    first = rb.bound(rb.ClientScores(AUC[:5], True, name="AUC"), "quantile:0.05", delta=0.05)
    assert "the 0.05 quantile of the AUC that an unseen client would measure is not bounded by these answers" in body(
        report_page(first)
    )


@pytest.mark.parametrize("answers", [CHANGES, SCORES], ids=["changes", "scores"])
def test_a_public_page_shows_no_client(answers, tmp_path, capsys):
    page, path = report_page(answers, delta=0.05, public=True), tmp_path / "page.html"
    assert "Spital" not in page
    assert "<figure" not in page
    assert not [each for each in answers.values.tolist() if abs(each) > 1e-3 and f"{each:.4f}" in page]
    assert "noisy answers" not in page  # neither takes noise
    path.write_text(page, encoding="utf-8")
    assert main(["verify", str(path)]) == 2
    assert "what each client measured was left out" in capsys.readouterr().err


def test_what_fits_no_page_is_refused_with_the_remedy(tmp_path, capsys):
    risks = tmp_path / "risks.json"
    rb.mean_bound(rb.ClientRisks(WRONG / N, N), delta=0.05).save(risks)
    file, out = written(rb.compare(CHANGES), tmp_path / "change.json"), str(tmp_path / "page.html")
    for given, said in (
        ([file, str(risks)], "certificates of a report must be of the same answers"),
        (
            [file, "--require", "gini<=0.2"],
            "'gini' is of risks; of a change of the risk there are mean, quantile, share, also @chi2:0.1, and count",
        ),
        ([file, "--require", "harmed:0.1<=0.2"], "riskband compare --require"),
    ):
        assert main(["report", *given, "--out", out]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match="'change' and 'harmed' are numbers of changes, got the AUC of clients"):
        report_page(SCORES, delta=0.05, require="change<=0.2")
    with pytest.raises(ValueError, match="what compare found of one new model"):
        report_page(rb.compare(rb.ClientRisks(WRONG / N, N), {"a": rb.ClientRisks(WRONG / N, N)}))
    with pytest.raises(ValueError, match="of the same answers"):
        report_page({"a": rb.bound(CHANGES, "mean", delta=0.05), "b": rb.bound(SCORES, "mean", delta=0.05)})


def test_a_score_that_was_changed_makes_no_page(tmp_path, capsys):
    document = {"schema": "riskband.certificates/1", "findings": {}, "certificates": {}}
    certificate = rb.bound(SCORES, "mean", delta=0.05).to_dict()
    certificate["recipe"]["answers"]["values"][0] = 0.999999
    file = tmp_path / "score.json"
    file.write_text(json.dumps(document | {"certificates": {"score": certificate}}), encoding="utf-8")
    assert main(["report", str(file), "--out", str(tmp_path / "page.html")]) == 2
    assert "score does not follow from its answers" in capsys.readouterr().err
    page = report_page(SCORES, delta=0.05)
    path = tmp_path / "page.html"
    path.write_text(page.replace(f'"values": [{AUC[0]}', '"values": [0.999999'), encoding="utf-8")
    assert main(["verify", str(path)]) == 1


def test_a_selection_between_an_old_and_a_new_model_is_no_comparison():
    """The page of a candidate called "old" was refused: its answers were taken for changes."""
    models = {name: rb.ClientRisks([0.1, 0.2, 0.3] * 10, 50) for name in ("old", "new")}
    page = rb.report_page(rb.select(models, objective="mean", delta=0.05).certificate)
    assert "chosen among 2 candidates" in page
    assert "either model" not in page
