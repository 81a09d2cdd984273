"""The report page: its numbers are certificates', its light is never too green, and it holds nothing foreign."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import riskband as rb
from riskband.answers.responses import FRESH_CLIENTS
from riskband.answers.risks import BOUNDED_LOSS
from riskband.cli import main
from riskband.cli.verify import stored_certificates
from riskband.report.findings import findings
from riskband.report.page import page_again, report_page
from riskband.report.view import RunFacts
from riskband.report.words import Line, who_answered

HOSTILE = ("<script>alert(1)</script>", '" onload="alert(2)', "</script><img src=x>", "{{ 7 * 7 }}", "O'Brien & Sons")
SECTIONS = (
    "1. The answer",
    "2. Who was measured",
    "3. What may change",
    "4. Who suffers",
    "5. What must be true",
    "6. What this does not say",
    "7. For the auditor",
)


def answers_of(num_clients, **more):
    rng = np.random.default_rng(num_clients)
    return rb.ClientRisks(rng.binomial(200, rng.beta(3, 27, num_clients)) / 200, 200, **more)


class Read(HTMLParser):
    """What a page shows, by a parser that knows nothing of how it was made."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.scripts, self._inside = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data):
        (self.scripts if self._inside else self.text).append(data)

    @property
    def shown(self):
        return re.sub(r"\s+", " ", " ".join(self.text))

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def page():
    return report_page(answers_of(300), delta=0.05, require=["mean<=0.15", "share:0.3<=0.2"])


def test_the_sections_stand_in_their_order_once_each(page):
    shown = Read(page).shown
    assert [shown.count(title) for title in SECTIONS] == [1] * 7
    assert sorted(SECTIONS, key=shown.index) == list(SECTIONS)


def test_clients_have_a_column_of_groups_only_where_one_is_in_a_group(page):
    assert " Client Mean loss Examples " in Read(page).shown
    grouped = report_page(answers_of(60, groups=["north", None] * 30), delta=0.05)
    assert " Client Group Mean loss Examples " in Read(grouped).shown


def test_what_a_kind_of_client_may_become_is_the_closed_form(page):
    steps = json.loads(Read(page).of("table")[2]["data-steps"])
    for budget, kinds, _ in steps:
        for share, said in zip((0.01, 0.1, 0.3), kinds, strict=True):
            exact = min(share + math.sqrt(float(budget) * share * (1 - share)), 1.0)
            assert exact <= float(said.removesuffix("\u00a0%")) / 100 + 1e-12 <= exact + 0.001 + 1e-9
    assert ["0.2", "23.5\u00a0%"] in [[budget, kinds[1]] for budget, kinds, _ in steps]


def test_bounds_over_the_budget_are_those_of_the_band_and_break_where_the_formula_does(page):
    band = rb.band(answers_of(300), delta=0.05 / 3)  # which two numbers that are required share with it
    steps = json.loads(Read(page).of("table")[2]["data-steps"])
    for budget, _, (mean, share) in steps[10::10]:
        exact = rb.worst_case_mean(band, divergence="chi2", budget=float(budget)).value
        assert exact <= float(mean) <= exact + 1.001e-4
        exact = rb.worst_case_cdf(band, divergence="chi2", budget=float(budget), thresholds=0.3).value
        assert exact <= float(share) <= exact + 1.001e-4
    p = rb.survival(band, thresholds=0.3).value
    exact = (0.2 - p) ** 2 / (p * (1 - p))  # where p + sqrt(budget p (1 - p)) is 0.2
    found = re.search(
        r"Up to budget ([\d.]+) in χ² divergence it is certified that the share of clients", Read(page).shown
    )
    assert exact - 1.2e-4 <= float(found[1]) <= exact


@pytest.mark.parametrize(
    ("required", "who", "colour"),
    [
        ((), {}, "grey"),
        ("mean<=0.2", {}, "green"),
        ("mean<=0.05", {}, "red"),
        ("mean<=0.105", {}, "amber"),
        (["mean<=0.2", "mean<=0.05"], {}, "red"),
        (["mean<=0.2", "mean<=0.105"], {}, "amber"),
        ("mean<=0.2", {"answered_by": "trainers"}, "red"),
        ((), {"answered_by": "trainers"}, "red"),
    ],
)
def test_the_light_is_green_only_for_a_certified_pass_of_fresh_clients(required, who, colour, monkeypatch):
    monkeypatch.setattr("riskband.worst_cases.requirements._LARGEST_TRIED", 100)  # no estimate, which takes time
    found = Read(report_page(answers_of(80, **who), delta=0.05, require=required))
    assert [each["class"] for each in found.of("div") if each.get("class", "").startswith("light")] == [
        f"light {colour}"
    ]
    labels = [each["class"] for each in found.of("span") if each.get("class", "").startswith("label")]
    assert set(labels) == ({"label estimate"} if who else {"label"})  # by trainers, nothing is called a certificate
    assert ("it is certified" in found.shown) <= (not who)


def test_a_pass_is_not_green_where_nobody_said_who_made_the_model():
    risks = answers_of(80)
    gate = rb.require(risks, "mean<=0.2", delta=0.05)
    certificate = rb.mean_bound(risks, delta=0.05)
    lines = tuple(line for line in certificate.assumptions if line != FRESH_CLIENTS)
    found = Read(report_page(replace(certificate, assumptions=lines), require=gate))
    assert "light amber" in [each.get("class") for each in found.of("div")]
    assert "not stated whether" in found.shown


def test_names_that_users_give_are_text_wherever_they_stand():
    risks = answers_of(
        60, names=[f"{HOSTILE[k % 5]}{k}" for k in range(60)], groups=[HOSTILE[k % 5] for k in range(60)]
    )
    facts = RunFacts(who={HOSTILE[0]: HOSTILE[2]}, notes=HOSTILE, hashes={"model": HOSTILE[1]})
    found = Read(report_page(risks, delta=0.05, title=HOSTILE[2], facts=facts))
    plain = Read(report_page(answers_of(60), delta=0.05))
    assert len(found.of("script")) == len(plain.of("script")) == 2
    assert not found.of("img")
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    for name in HOSTILE:
        assert name in found.shown  # as it was written: neither run, nor cut


def test_nothing_is_fetched_and_only_its_own_script_and_style_may_run(page):
    found = Read(page)
    assert not any(attrs.keys() & {"src", "srcset", "action", "background"} for _, attrs in found.tags)
    assert all(attrs["href"].startswith("#") for _, attrs in found.tags if "href" in attrs)
    assert not any("style" in attrs for _, attrs in found.tags)  # the policy would refuse them
    (policy,) = [each["content"] for each in found.of("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    for element in ("style", "script"):
        text = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        (digest,) = {base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in text}
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_input_has_a_label_and_every_table_a_caption(page):
    found = Read(page)
    labelled = {each.get("for") for each in found.of("label")}
    assert all("aria-label" in each or each["id"] in labelled for each in found.of("input"))
    assert len(found.of("caption")) == len(found.of("table"))
    assert all("aria-label" in each or "aria-hidden" in each for each in found.of("svg"))
    assumptions = {line for each in stored_certificates(page)["certificates"].values() for line in each["assumptions"]}
    said = assumptions - {BOUNDED_LOSS}  # which that of a 0-1 loss says too
    said = [line for line in said if not line.startswith("chosen before")]
    assert len([each for each in found.of("input") if each["type"] == "checkbox"]) == len(said) + 1 > 4


def test_the_page_holds_its_certificates_and_they_verify(page, tmp_path, capsys):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    assert main(["verify", str(path)]) == 0
    assert "mean@chi2: follows from its answers" in capsys.readouterr().out
    value = re.findall(r'"value": (0\.\d+)', page)[0]
    path.write_text(page.replace(f'"value": {value}', '"value": 0.99'), encoding="utf-8")
    assert main(["verify", str(path)]) == 1
    path.write_text("<!doctype html><p>nothing", encoding="utf-8")
    assert main(["verify", str(path)]) == 2
    assert "this is no report page" in capsys.readouterr().err


def test_a_public_page_has_no_losses_and_says_that_it_cannot_be_computed_again(tmp_path, capsys):
    losses = np.round(np.random.default_rng(0).uniform(0.05, 0.4, 40), 7)
    risks = rb.ClientRisks(losses, 73, binary=False, names=[f"Spital-{k}" for k in range(40)])
    page = report_page(risks, delta=0.05, public=True)
    assert "Spital-" not in page
    assert not [loss for loss in losses if str(loss) in page]
    assert not [word for word in ('"values"', "recipe", "SHA-256") if word in page]  # a hash lets few losses be guessed
    shown = Read(page).shown
    assert "This version cannot be verified" in shown
    assert "It still has the names, sizes and intervals of groups" in shown
    assert "from a quantile that of one client, however many there are" in shown
    path = tmp_path / "public.html"
    path.write_text(page, encoding="utf-8")
    assert main(["verify", str(path)]) == 2
    assert "what each client measured was left out" in capsys.readouterr().err
    whole = report_page(risks, delta=0.05)
    assert "Spital-" in whole
    assert str(losses[0]) in whole


@pytest.mark.parametrize("num_clients", [5, 500, pytest.param(5_000, marks=pytest.mark.slow)])
def test_a_page_stays_below_a_megabyte_and_can_be_verified(num_clients, tmp_path, capsys):
    path = tmp_path / "report.html"
    band = rb.band(answers_of(num_clients), delta=0.05)
    page = report_page(
        {name: rb.worst_case_mean(band, divergence=name, budget=[0.1, 0.2]) for name in ("kl", "chi2", "tv")}
    )
    path.write_text(page, encoding="utf-8")
    assert len(page.encode()) < 1_000_000
    assert ("riskband.packed" in page) == (num_clients > 500)
    assert "1.0000" not in Read(page).shown.split(SECTIONS[6])[0]  # a bound of 1 is none, and says so
    assert main(["verify", str(path)]) == 0
    assert "its text is, word for word" in capsys.readouterr().out


def test_what_is_packed_is_what_it_was_and_a_cut_page_is_refused(tmp_path, capsys, monkeypatch):
    risks, path = answers_of(40, names=[f"N{k}" for k in range(40)], groups=["a", "b"] * 20), tmp_path / "report.html"
    whole = stored_certificates(report_page(risks, delta=0.05, require="mean<=0.2"))
    monkeypatch.setattr("riskband.report.page._LARGEST_STORED", 15_000)
    page = report_page(risks, delta=0.05, require="mean<=0.2")
    packed = stored_certificates(page)
    assert packed == whole
    path.write_text(page, encoding="utf-8")
    assert main(["verify", str(path)]) == 0
    path.write_text(page.replace("Nine in ten", "Most"), encoding="utf-8")
    assert main(["verify", str(path)]) == 1
    path.write_text(re.sub(r'"xz": "[^"]{50}', '"xz": "', page), encoding="utf-8")
    assert main(["verify", str(path)]) == 2
    assert "cannot be unpacked" in capsys.readouterr().err
    monkeypatch.setattr("riskband.report.page._LARGEST_STORED", 200)
    path.write_text(report_page(risks, delta=0.05), encoding="utf-8")
    assert main(["verify", str(path)]) == 2
    assert "too large for this page" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "other"),
    [("at most", "at least"), ("Yes", "No"), ("0.15", "0.16"), ('class="light green"', 'class="light amber"')],
)
def test_one_changed_word_of_the_text_is_found(page, word, other, tmp_path, capsys):
    path, (text, stored) = tmp_path / "report.html", page.split('<script type="application/json"')
    path.write_text(text.replace(word, other, 1) + '<script type="application/json"' + stored, encoding="utf-8")
    assert main(["verify", str(path)]) == 1
    said = capsys.readouterr().out
    assert "its text WAS CHANGED" in said
    assert repr(other)[1:-1] in said
    assert main(["verify", "--json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["text_follows"] is False


def test_the_text_of_another_version_is_not_verified_and_last_digits_may_differ(page, tmp_path, capsys):
    path = tmp_path / "report.html"
    for version, said in (('"0.0.9"', "riskband 0.0.9 made it"), ("null", "riskband (it does not say which) made it")):
        older = re.sub(r'"page": {"version": "[^"]+"', f'"page": {{"version": {version}', page)
        path.write_text(older.replace("Who suffers", "Who gains"), encoding="utf-8")
        assert main(["verify", str(path)]) == 3
        printed = capsys.readouterr().out
        assert "mean: follows from its answers" in printed
        assert "NOT VERIFIED" in printed
        assert f"was not checked: {said}, and this is {rb.__version__}" in printed
        assert main(["verify", str(path), "--json"]) == 3
        found = json.loads(capsys.readouterr().out)
        assert (found["ok"], found["text_follows"], found["certificates"]["mean"]["ok"]) == (False, None, True)
    text, mark, stored = page.partition('<script type="application/json"')
    number = re.search(r"\d\.\d{14,}", text)[0]
    path.write_text(text.replace(number, number[:-1], 1) + mark + stored, encoding="utf-8")
    assert main(["verify", str(path)]) == 0
    path.write_text(page.replace('"of": ["mean"', '"of": ["median"'), encoding="utf-8")
    assert main(["verify", str(path)]) == 2
    assert "what the page was made of cannot be read" in capsys.readouterr().err


def test_every_divergence_has_its_table_and_a_public_page_one():
    band = rb.band(answers_of(60), delta=0.05)
    two = {name: rb.worst_case_mean(band, divergence=name, budget=0.1) for name in ("kl", "tv")}
    gate = rb.require(band, "share:0.3@chi2:0.1<=0.9")
    found = Read(report_page(two, require=gate))
    tables = [each for each in found.of("table") if "data-steps" in each]
    assert [each["id"] for each in tables] == ["steps", "steps-2", "steps-3"]
    for divergence, table in zip(("kl", "tv", "chi2"), tables, strict=True):
        ((_, (_, kind, _), (bound,)),) = [step for step in json.loads(table["data-steps"]) if step[0] == "0.1"]
        exact = rb.worst_case_mean(band, divergence=divergence, budget=0.1).value
        if divergence == "chi2":  # what is certified is a share
            exact = rb.worst_case_cdf(band, divergence=divergence, budget=0.1, thresholds=0.3).value
        assert exact <= float(bound) <= exact + 1.001e-4
        share = 100 * rb.binary_worst_case(0.1, divergence=divergence, budget=0.1)
        assert share - 1e-9 <= float(kind.removesuffix("\u00a0%")) <= share + 0.1
    for unit in ("KL divergence", "total variation", "χ² divergence"):
        assert f"What may happen within each budget of the {unit}." in found.shown
        assert re.search(rf"Up to budget [\d.]+ in {unit} it is certified that the share of clients", found.shown)
    assert len([each for each in Read(report_page(two, public=True)).of("table") if "data-steps" in each]) == 1


def test_names_that_a_certificate_holds_are_shown_and_left_out_of_a_public_page():
    risks = answers_of(40, names=[f"Spital-{k}" for k in range(40)])
    worst = rb.worst_case_mean(rb.band(risks, delta=0.05), divergence="kl", budget=[0.1, 0.2])
    certificates = {"mean": rb.mean_bound(risks, delta=0.05), "worst": worst}
    assert "Spital-7" in report_page(certificates)
    assert "Spital-" not in report_page(certificates, public=True)


def test_groups_have_intervals_of_their_own():
    risks = answers_of(60, groups=["city", "country"] * 30)
    expected = rb.group_intervals(rb.group_bands(risks, risks.groups, delta=0.05 / 3), "mean")  # mean, band, groups
    shown = Read(report_page(risks, delta=0.05)).shown
    for name, (lower, upper) in expected.items():
        found = re.search(rf"{name} 30 ([\d.]+) to ([\d.]+)", shown)
        assert lower - 1e-4 <= float(found[1]) <= lower
        assert upper <= float(found[2]) <= upper + 1e-4


def test_the_command_makes_a_page_of_what_certify_wrote(tmp_path, capsys):
    table, out, page = tmp_path / "risks.csv", tmp_path / "out.json", tmp_path / "report.html"
    table.write_text("loss\n" + "\n".join(map(str, answers_of(80).values)) + "\n")
    usual = ["certify", str(table), "--num-examples", "200", "--out", str(out)]
    assert main([*usual, "--divergence", "kl", "--require", "mean<=0.2"]) == 0
    assert main(["report", str(out), "-o", str(page), "--title", "Ward 7"]) == 0
    found = Read(page.read_text())
    assert "light green" in [each.get("class") for each in found.of("div")]
    assert all(words in found.shown for words in ("Ward 7", "KL divergence", "shared among 2: 0.025 each"))
    capsys.readouterr()


def test_what_makes_no_honest_page_is_refused_with_a_reason(tmp_path, capsys):
    risks, page = answers_of(30), tmp_path / "report.html"
    good, changed, other, gated = (tmp_path / f"{name}.json" for name in ("good", "changed", "other", "gated"))
    rb.mean_bound(risks, delta=0.05).save(good)
    changed.write_text(json.dumps(rb.mean_bound(risks, delta=0.05).to_dict() | {"value": 0.01, "statement": "fine"}))
    rb.mean_bound(answers_of(31), delta=0.05).save(other)
    gate = rb.require(risks, "mean<=0.3", delta=0.05)
    document = findings({}, gate=gate).to_document()
    document["gate"]["requirements"][0]["requirement"] = "mean<=0.01"  # and still "PASS"
    gated.write_text(json.dumps(document))
    for files, message in (
        ([changed], "does not follow from its answers"),
        ([good, other], "must be of the same answers"),
        ([good, good], "may be given once"),
        ([gated], "verdicts of the file do not follow"),
        ([good, "--require", "mean<=20"], "limit of 'mean' must"),
        ([tmp_path / "nowhere.json"], "cannot use"),
    ):
        assert main(["report", "-o", str(page), *map(str, files)]) == 2
        assert message in capsys.readouterr().err
        assert not page.exists()
    assert main(["report", "-o", str(tmp_path / "page.pdf"), str(good)]) == 2
    assert "must be a new page that ends in .html" in capsys.readouterr().err
    for wrong, message in (
        (lambda: report_page({}), "at least one certificate"),
        (lambda: report_page(risks), "delta must be given"),
        (lambda: report_page(rb.band(risks, delta=0.05)), "must be of type Certificate, got Band; or answers with"),
        (lambda: report_page([rb.mean_bound(risks, delta=0.05)]), "must be of type Certificate, got list"),
        (lambda: report_page(rb.mean_bound(risks, delta=0.05), require="mean<=0.2"), "are for answers"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


@pytest.mark.slow
def test_a_stored_certificate_of_every_function_makes_a_page():
    stored = sorted((Path(__file__).parents[1] / "laws" / "stored").glob("*.json"))
    entries = [entry for path in stored for entry in json.loads(path.read_text())["certificates"].values()]
    by_function = {entry["recipe"]["function"]: entry for entry in entries}
    assert len(by_function) > 10
    for name, entry in by_function.items():
        certificate = rb.Certificate.from_dict(entry)
        assert certificate.statement[1:] in Read(report_page(certificate, title=name)).shown, name


def test_a_worst_share_that_is_required_is_what_the_page_is_about():
    answers = answers_of(100)
    said = Read(report_page(answers, delta=0.05, require="share:0.3@kl:0.1<=0.4"))
    assert "says how far (KL divergence)" in said.shown
    steps = json.loads(said.of("table")[2]["data-steps"])
    ((_, _, (mean, share)),) = [step for step in steps if step[0] == "0.1"]
    part = 0.05 / 3  # for it, for the share without a shift, and for the band
    found = rb.bound(answers, "share:0.3@kl:0.1", delta=part).value
    band = rb.band(answers, delta=part)
    assert found < rb.worst_case_cdf(band, divergence="kl", budget=0.1, thresholds=0.3).value
    assert found <= float(share) <= found + 1.001e-4
    assert 0.0 < float(mean) <= 1.0
    (budget,) = re.findall(
        r"Up to budget ([\d.]+) in KL divergence it is certified that the share of clients with a risk of 0.3",
        said.shown,
    )
    breaks = rb.breakdown(band, divergence="kl", target=0.4, threshold=0.3).lower
    assert breaks * (1 - 1e-3) <= float(budget) <= breaks


def test_a_share_that_is_certified_already_is_the_one_that_is_shown():
    answers = answers_of(40)
    band = rb.band(answers, delta=0.05)
    share = rb.survival(answers, thresholds=[0.3], delta=0.05)
    worst = rb.worst_case_mean(band, divergence="kl", budget=[0.05, 0.1])
    assert share.value[0] < 0.9 * rb.survival(band, thresholds=0.3).value
    page = report_page({"worst": worst, "share": share}, facts=RunFacts(threshold=0.3))
    (shown,) = re.findall(r"or more is at most ([\d.]+)", Read(page).shown)
    assert share.value[0] <= float(shown) < share.value[0] + 1e-3


def test_of_measured_risks_the_page_says_nothing_of_true_ones():
    measured = np.random.default_rng(0).binomial(5, 0.25, 400) / 5  # every true risk is 0.25
    band = rb.band(rb.ClientRisks(measured, 5), delta=0.05, local="observed")
    gate = rb.require(band, ["share:0.3<=0.9", "quantile:0.5<=0.21"])
    said = Read(report_page(rb.quantile(band, level=0.5), require=gate)).shown
    assert not re.search(r"(have|with|whose) (a )?risk (is )?(of|at most)", said)  # half have one of at most 0.2: false
    assert "Half of the unseen clients would measure a risk of at most 0.2000" in said
    assert "share of clients that would measure a risk of 0.3 or more is at most 0.9" in said
    assert "its true risk may be higher or lower" in said
    assert "would measure" not in Read(report_page(answers_of(60), delta=0.05, require="share:0.3<=0.9")).shown


def adversarial_answers(cost="order 1, l2 distance, in input space", guarantee="exact", **who):
    curves = [[risk, risk + 0.1] for risk in [0.1, 0.2, 0.3, 0.1] * 10]
    return rb.AdversarialAnswers([0.0, 1.0], curves, 10, cost=cost, guarantee=guarantee, binary=True, **who)


@pytest.mark.parametrize(("guarantee", "who"), [("lower", {}), ("exact", {"answered_by": "trainers"}), ("exact", {})])
def test_an_estimate_has_no_probability_and_no_answer_of_section_5_makes_it_hold(guarantee, who):
    worst = rb.wasserstein_mean(adversarial_answers(guarantee=guarantee, **who), delta=0.05, cost_budget=[0.0, 0.1])
    is_estimate = worst.validity == "estimate"
    said = Read(report_page(worst)).shown
    assert is_estimate == (guarantee == "lower" or bool(who))
    assert ("for every cost at once, with probability at least 0.95" in said) == (not is_estimate)
    assert ("The bounds hold if each answer below is yes" in said) == (not is_estimate)
    assert ("need not hold even if each answer below is yes" in said) == is_estimate
    assert ("a movement of examples that it did not find may be worse" in said) == (guarantee == "lower")


def test_a_transport_budget_is_said_with_its_order_norm_and_space():
    for cost, is_squared in (("order 1, linf distance, in input space", False), ("order 2, l2 distance", True)):
        said = Read(report_page(rb.wasserstein_mean(adversarial_answers(cost), delta=0.05, cost_budget=[0.0, 0.1])))
        assert f"mean transport cost of that change ({cost})" in said.shown
        assert ("A cost of order 2 is a squared distance" in said.shown) == is_squared
        assert "moved on average" not in said.shown


def test_verdicts_of_other_answers_make_no_page():
    gate = rb.require(answers_of(60), "mean<=0.2", delta=0.05)
    with pytest.raises(ValueError, match="must be of the same answers"):
        report_page(rb.mean_bound(answers_of(61), delta=0.05), require=gate)
    attacked = adversarial_answers()
    worst = rb.wasserstein_mean(attacked, delta=0.05, cost_budget=[0.0, 0.1])
    with pytest.raises(ValueError, match="must be of the same answers"):
        report_page(worst, require=gate)
    assert "PASS" in report_page(worst, require=rb.require(attacked.clean, "mean<=0.6", delta=0.05))


@pytest.mark.parametrize("required", [["mean<=0.05"], ["share:0.3@kl:0.1<=0.9", "mean<=0.2"]])
def test_verify_computes_the_verdicts_of_a_page_again_and_its_text(required, tmp_path, capsys):
    page, path = report_page(answers_of(80), delta=0.05, require=required), tmp_path / "report.html"
    verdict = "FAIL" if len(required) == 1 else "PASS"
    path.write_text(page.replace("light red", "light green").replace("✖ FAIL", "✔ PASS"), encoding="utf-8")
    assert main(["verify", str(path)]) == (1 if verdict == "FAIL" else 0)  # of a PASS nothing was replaced
    said = capsys.readouterr().out
    assert all(f"{verdict}: {each} is required" in said for each in required)
    assert ("its text WAS CHANGED" in said) == (verdict == "FAIL")
    other = {"FAIL": "PASS", "PASS": "FAIL"}[verdict]
    path.write_text(page.replace(f'"verdict": "{verdict}"', f'"verdict": "{other}"'), encoding="utf-8")
    assert main(["verify", str(path)]) == 1
    assert "verdicts DO NOT FOLLOW" in capsys.readouterr().out


def test_verdicts_read_off_a_band_are_computed_again_off_the_same_band(tmp_path):
    band = rb.band(answers_of(60), delta=0.05, local="observed")
    gate, path = rb.require(band, ["share:0.3<=0.5", "gini<=0.5"]), tmp_path / "report.html"
    path.write_text(report_page(rb.quantile(band, level=0.5), require=gate), encoding="utf-8")
    assert main(["verify", str(path)]) == 0


@pytest.mark.parametrize(
    ("require", "said"),
    [((), "No limit was set"), ("quantile:0.9<=0.5", "Where the required limits break is not shown here")],
)
def test_a_required_limit_is_not_said_to_be_none(require, said):
    shown = Read(report_page(answers_of(60), delta=0.05, require=require)).shown
    assert said in shown
    assert ("No limit was set" in shown) == (not require)


def test_the_readout_has_the_budget_of_its_bound_with_all_digits():
    budgets = [0.0, 0.0123456, 0.01234567891]
    worst = rb.wasserstein_mean(adversarial_answers(), delta=0.05, cost_budget=budgets)
    (chart,) = [each["data-chart"] for each in Read(report_page(worst)).of("figure") if each["id"] == "shift-chart"]
    assert json.loads(chart)["x"] == budgets


@pytest.mark.parametrize("hashes", [5, [[1]]])
def test_facts_that_no_page_can_be_made_of_are_a_readable_mistake(hashes):
    """The template fails for them, with an error of its own."""
    certificates = {"mean": rb.mean_bound(rb.ClientRisks([0.1, 0.2] * 10, 9, binary=False), delta=0.05)}
    page = {"of": ["mean"], "title": "x", "facts": {"hashes": hashes}}
    with pytest.raises(ValueError, match="was it cut"):
        page_again(page, certificates, None)


def cells(page, row):
    """The cells of the row of a table that begins with these words."""
    (found,) = re.findall(rf"<tr><th scope=\"row\"[^>]*>(?:<code>)?{row}.*?</tr>", page)
    return re.findall(r"<td[^>]*>(.*?)</td>", found)


def test_what_was_measured_stands_beside_what_is_guaranteed():
    risks = answers_of(300, groups=["city", "country"] * 150)
    page = report_page(risks, delta=0.05, require=["mean<=0.15", "share:0.2<=0.3", "mean@chi2:0.1<=0.9"])
    worst_first, mean = np.sort(risks.values)[::-1], f"{risks.values.mean():.4f}"
    share = f"{np.mean(risks.values >= 0.2):.4f}"
    assert f"Measured on the clients that answered: {mean}." in Read(page).shown
    assert cells(page, "Half of the unseen")[1] == f"{worst_first[150]:.4f}"  # the 150th from below
    assert cells(page, "Nine in ten")[1] == f"{worst_first[30]:.4f}"
    assert cells(page, "The mean risk of the worst-off tenth")[1] == f"{worst_first[:30].mean():.4f}"
    assert cells(page, "The share of unseen clients")[1] == share
    assert [cells(page, name)[1] for name in ("mean&lt;=", "share:0.2&lt;=", "mean@chi2:0.1&lt;=")] == [
        mean,
        share,
        "–",
    ]
    assert cells(page, "Measured") == ["–", "–", "–", mean, share]
    for group, values in (("city", risks.values[::2]), ("country", risks.values[1::2])):
        assert cells(page, f"{group}<")[2] == f"{values.mean():.4f}"
    public = Read(report_page(risks, delta=0.05, public=True)).shown.partition(SECTIONS[4])[0]
    assert "Measured" not in public  # a measured quantile is the loss of one client
    noisy = report_page(rb.ClientRisks(risks.values + 0.01, 200, noise="laplace:20", binary=True), delta=0.05)
    assert "Measured on the clients that answered: –." in Read(noisy).shown


def test_a_worst_case_stands_beside_the_mean_that_was_measured():
    worst = rb.worst_case_mean(rb.band(answers_of(60), delta=0.05), divergence="kl", budget=0.1)
    expected = f"answered: {answers_of(60).values.mean():.4f}, the mean risk without any change."
    assert expected in Read(report_page(worst)).shown
    moved = rb.wasserstein_mean(adversarial_answers(), delta=0.05, cost_budget=[0.0, 0.1])
    assert cells(report_page(moved), "Measured") == ["0.1750"]  # of 0.1, 0.2, 0.3, 0.1 without a movement


def test_what_is_said_about_the_evaluation_is_stored_and_made_again(tmp_path, capsys):
    table, out, path = tmp_path / "risks.csv", tmp_path / "out.json", tmp_path / "report.html"
    table.write_text("loss\n" + "\n".join(map(str, answers_of(80).values)) + "\n")
    usual = ["certify", str(table), "--num-examples", "200", "--out", str(out), "--mean"]
    assert main([*usual, "--about", "model=alert 7", "author=A. <b>", "--about", "date=yesterday"]) == 0
    assert main(["report", str(out), "-o", str(path), "--about", "date=2026-11-20"]) == 0
    page = path.read_text()
    for name, text in (("Model", "alert 7"), ("Author", "A. &lt;b&gt;"), ("Date", "2026-11-20")):
        assert f"<dt>{name}</dt><dd>{text}</dd>" in page
    assert "Not stated: data." in page
    assert main(["verify", str(out)]) == main(["verify", str(path)]) == 0
    path.write_text(page.replace("<dd>2026-11-20", "<dd>2026-11-21"), encoding="utf-8")
    assert main(["verify", str(path)]) == 1
    capsys.readouterr()
    for wrong in (["author"], ["author="], ["=A"], ["author=A", "author=B"]):
        assert main([*usual, "--about", *wrong]) == main(["report", str(out), "-o", str(path), "--about", *wrong]) == 2
        assert capsys.readouterr().err.count("about must be KEY=VALUE, each key once, got") == 2


@pytest.mark.parametrize("most", [700_000, 20_000, 200])
def test_what_is_signed_has_its_hash_on_every_printed_page(most, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("riskband.report.page._LARGEST_STORED", most)
    page, path = report_page(answers_of(40), delta=0.05, require="mean<=0.2"), tmp_path / "report.html"
    (held,) = re.findall(r'<script type="application/json" id="certificates">(.*?)</script>', page)
    digest = hashlib.sha256(held.encode()).hexdigest()
    assert f'@bottom-left {{ content: "SHA-256 {digest}"' in page
    assert Read(page).shown.count(digest) == 1
    assert all(word in Read(page).shown.split(digest)[0][-300:] for word in ("Name", "Date", "Signature"))
    path.write_text(page, encoding="utf-8")
    if most > 200:
        assert main(["verify", str(path)]) == 0
        assert f"SHA-256 of what is signed: {digest}" in capsys.readouterr().out
    else:  # then the hashes of the certificates are what is held
        assert set(json.loads(held)["sha256"]) >= {"mean"}
        assert json.loads(held)["page"]["title"] == "Evaluation"


def test_what_the_record_of_a_run_answers_is_no_question_for_an_owner():
    certificate = rb.quantile(answers_of(60), level=0.7, delta=0.05)
    said = "It is fixed in the configuration."
    before, after = (
        report_page(certificate, facts=RunFacts(answered=answered))
        for answered in ({}, {"chosen before any answer was seen: ": said})
    )
    assert "Answered by the record" not in before
    assert Read(after).shown.count(said) == 1
    boxes = [sum(each.get("type") == "checkbox" for each in Read(page).of("input")) for page in (before, after)]
    assert boxes == [boxes[1] + 1, boxes[1]]
    assert cells(after, "Was this fixed before any answer") == [said]


@pytest.mark.parametrize(
    ("guarantee", "said"),
    [
        ("exact", "the largest loss that such movements can cause, exactly"),
        ("upper", "a proved upper bound on the loss"),
        ("upper in expectation", "the number of one client may be too low"),
        ("lower", "they can show that a model breaks, and never that it does not"),
    ],
)
def test_an_attack_is_told_in_plain_words(guarantee, said):
    worst = rb.wasserstein_mean(adversarial_answers(guarantee=guarantee), delta=0.05, cost_budget=[0.0, 0.1])
    shown = Read(report_page(worst)).shown
    assert "No limit was set" not in shown  # a run says in section 4 how far its limit is kept
    assert all(words in shown for words in ("Who attacks", "it cannot change their labels", said))
    assert "Who attacks" not in Read(report_page(answers_of(30), delta=0.05)).shown


def test_the_next_clients_are_said_by_risks_but_not_in_public():
    answers = answers_of(40)
    found = {
        "next": rb.next_clients(answers, 20, delta=0.02, divergence="chi2", budget=[0.0, 0.1]),
        "one": rb.next_clients(answers, 1, delta=0.03),
    }
    text = " ".join(Read(report_page(found)).text)
    assert re.search(
        r"Of the next clients, those that measure a risk above 0\.\d{4}, budget 0\.1 in χ² divergence", text
    )
    assert "examples, the risk that the next client would measure is at most" in text  # the page begins with one number
    assert "at most the given curve" not in text.partition("Who was measured")[0]
    losses = {f"{value:.4f}" for value in (*found["next"].value.ravel(), float(found["one"].value)) if value < 1.0}
    assert len(losses) > 3
    beside = {**found, "mean": rb.mean_bound(answers, delta=0.05)}
    assert losses <= {*re.findall(r"0\.\d{4}", report_page(beside))}
    assert losses.isdisjoint(re.findall(r"0\.\d{4}", report_page(beside, public=True)))
    with pytest.raises(ValueError, match="no client's loss"):
        report_page(found, public=True)


def test_the_page_of_few_clients_has_the_next_one_beside_what_holds_together_and_no_ones():
    answers = answers_of(12)
    shown = Read(report_page(answers, delta=0.05)).shown
    largest = f"{answers.values.max():.4f}"
    one = f"with probability at least 0.923 over the draw of the clients and their examples, the risk that the next client would measure is at most {largest}."  # noqa: E501
    assert f"Beside that, by itself: {one}" in shown
    assert re.search(
        r"(With probability at least 0\.95 [^:]*?)all of this holds together \(delta = 0\.05, shared", shown
    )
    assert "needs 42 clients or more beside the other numbers at delta = 0.05, and 29 if it alone is asked for" in shown
    assert "Nine in ten unseen clients" not in shown
    assert "clients are too few" not in shown
    public = Read(report_page(answers, delta=0.05, public=True)).shown
    assert "the next client would measure" not in public  # it is the loss of a client


def test_a_line_on_who_answered_is_private_unless_it_says_otherwise(monkeypatch):
    known = list(who_answered(answers_of(40).to_dict()))
    monkeypatch.setattr(
        "riskband.report.findings.who_answered",
        lambda answers, **_: iter([*known, Line("Ward", "seven"), Line("Country", "CH", is_public=True)]),
    )
    facts = RunFacts(who={"Asked by": "night shift"}, notes=("A note of the run.",), hashes={"Hash of data": "abc123"})
    certificate = rb.mean_bound(answers_of(40), delta=0.05)
    whole, public = (Read(report_page(certificate, facts=facts, public=public)).shown for public in (False, True))
    for private in ("Ward seven", "night shift", "A note of the run", "abc123"):
        assert private in whole
        assert private not in public
    assert "Country CH" in public
