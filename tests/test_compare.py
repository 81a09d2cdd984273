"""`riskband compare` and `riskband certify --score`, used as a user would."""

import json
import re
import shutil

import numpy as np
import pytest
from scipy.stats import beta

import riskband as rb
from riskband.cli import main
from riskband.wording import rounded_down, rounded_up

K, N = 40, 500
RNG = np.random.default_rng(7)
WRONG = RNG.binomial(N, RNG.beta(3, 20, K))
WORSE, BETTER = RNG.binomial(N - WRONG, 0.01), RNG.binomial(WRONG, 0.3)
NAMES = [f"site {k}" for k in range(K)]
AUC = np.round(RNG.beta(20, 4, 14), 3)


def table(path, columns):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def old(tmp_path):
    return table(tmp_path / "old.csv", {"site": NAMES, "loss": (WRONG / N).tolist(), "n": [N] * K})


@pytest.fixture
def new(tmp_path):
    order = RNG.permutation(K)
    losses = ((WRONG + WORSE - BETTER) / N)[order]
    return table(tmp_path / "new.csv", {"site": [NAMES[k] for k in order], "loss": losses.tolist(), "n": [N] * K})


@pytest.fixture
def scores(tmp_path):
    return table(tmp_path / "auc.csv", {"site": NAMES[:14], "auc": AUC.tolist()})


def compare(*arguments):
    return main(["compare", *map(str, arguments), "--client", "site", "--num-examples", "n"])


def test_clients_are_matched_by_name_and_certificates_are_those_of_the_library(tmp_path, old, new, capsys):
    out = tmp_path / "change.json"
    assert compare(old, new, "--out", out) == 0
    changes = rb.ClientChanges((WRONG / N), (WRONG + WORSE - BETTER) / N, N, names=NAMES)
    found = json.loads(out.read_text())["certificates"]
    expected = rb.compare(changes, delta=0.05).certificates
    assert list(found) == list(expected) == ["mean", "share:0.05"]
    for name, each in expected.items():
        assert found[name]["value"] == each.value
        assert each.delta == 0.025
    assert main(["verify", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"measured mean change of the risk {changes.values.mean():.4f} (every" in printed
    assert f"better at {(WORSE < BETTER).sum()}" in printed
    assert "with probability at least 0.95 all of this holds together (delta = 0.05, shared among 2" in printed


@pytest.mark.parametrize(
    ("requirements", "status", "word"),
    [(["change<=0.2", "harmed:0.02<=0.7"], 0, "PASS"), (["change>=0.5"], 1, "FAIL"), (["change<=0"], 3, "NOT DECIDED")],
)
def test_requirements_end_the_command(old, new, capsys, requirements, status, word):
    assert compare(old, new, "--require", *requirements) == status
    assert f"{word} (exit status {status})" in capsys.readouterr().out


def test_several_new_models_share_delta(tmp_path, old, new, capsys):
    again = tmp_path / "again.csv"
    again.write_text(old.read_text())
    assert compare(old, new, again, "--number", "change") == 0
    printed = capsys.readouterr().out
    assert printed.count("with probability at least 0.975 this holds") == 2
    of_all = (
        "\nwith probability at least 0.95 all that is said of these 2 new models holds (delta = 0.05, shared among 2"
    )
    assert printed.count(of_all) == 1
    few = {"site": NAMES[:9], "n": [N] * 9}
    loss = (WRONG[:9] / N).tolist()
    one = table(tmp_path / "one.csv", {"loss": loss, **few})
    others = [table(tmp_path / f"{k}.csv", {"loss": [loss[0] + 1 / N, *loss[1:]], **few}) for k in range(2)]
    assert compare(one, *others) == 0  # the largest of nine is below the next one with probability 1/10
    printed = capsys.readouterr().out
    assert printed.count("with probability at least 0.975 this holds (delta = 0.025)") == 2
    assert printed.count("(by itself with probability at least 0.9: by its rank") == 2
    assert printed.count(of_all) == 1
    assert "measured worse at 1 client, better at 0, the same at the others" in printed
    assert compare(old, new, again, "--json") == 2
    assert "--out, --json and --plot are for one new model" in capsys.readouterr().err


def test_the_next_changes_under_a_shift(old, new, capsys):
    assert compare(old, new, "--next", 3, "--divergence", "chi2", "--budget", 0, 0.1) == 0
    printed = capsys.readouterr().out
    assert "budget 0: at most 1 of 3 measure a change of the risk above" in printed


def test_how_many_of_the_next_get_worse_is_required(tmp_path, old, new, scores, capsys):
    out, worse = tmp_path / "next.json", np.sum((WORSE - BETTER) / N > 0.002)
    changes = rb.ClientChanges(WRONG / N, (WRONG + WORSE - BETTER) / N, N, names=NAMES)
    bound = rb.bound(changes, "count:0.002@next:20", sides="two", delta=0.05)
    assert bound.value > 20 * worse / K > bound.lower
    for asked, status, verdict in (
        (f"count:0.002@next:20<={bound.value:g}", 0, "PASS"),
        (f"count:0.002@next:20<={bound.lower:g}", 3, "NOT DECIDED"),
        ("count:-0.5@next:20<=9", 1, "FAIL"),
    ):
        assert compare(old, new, "--require", asked, "--out", out) == status
        printed = capsys.readouterr().out
        assert f"{verdict}: {asked} is required" in printed
        assert "of the next 20, that would measure a change of the risk above " in printed
        assert (f" <= {bound.value:g}\n" in printed) == (status != 1)
        assert main(["verify", str(out)]) == 0
        assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
        capsys.readouterr()
    auc = rb.next_clients(rb.ClientScores(AUC, True), 5, above=0.8, delta=0.05)
    assert score(scores, "--higher-is-better", "--require", f"count:0.8@next:5<={auc.value:g}") == 0
    assert "that would measure the AUC below 0.8 <= " in capsys.readouterr().out
    assert compare(old, new, "--require", "count:1@next:20<=3") == 2
    assert score(scores, "--higher-is-better", "--require", "count:0@next:20<=3") == 2


def test_changes_that_clients_measure_are_counted_by_clopper_and_pearson(tmp_path, old, new, capsys):
    out, worse = tmp_path / "observed.json", int(np.sum((WORSE - BETTER) / N > 0.002))
    numbers = ["--number", "harmed:0.002", "quantile:0.8", "--require", "harmed:0.004<=0.9"]
    assert compare(old, new, "--local", "observed", *numbers, "--out", out) == 0
    printed, found = capsys.readouterr().out, json.loads(out.read_text())["certificates"]
    assert found["share:0.002"]["value"] == pytest.approx(beta.isf(0.05 / 3, worse + 1, K - worse))
    assert "the share of unseen clients whose measured risk rises by more than 0.002 <= " in printed
    assert "the 0.8 quantile of the change of the risk that an unseen client would measure <= " in printed
    assert (
        "probability at least 0.95 the share of unseen clients whose measured risk rises by more than 0.004" in printed
    )
    assert main(["verify", str(out)]) == 0
    changes = rb.ClientChanges(WRONG / N, (WRONG + WORSE - BETTER) / N, N, names=NAMES)
    for asked in ({"numbers": ["harmed:0.002"]}, {"require": ["harmed:0.002<=0.9"]}):
        (made,) = rb.compare(changes, local="observed", **asked).certificates.values()
        sides = "two" if "require" in asked else "worse"
        assert made == rb.bound(changes, "harmed:0.002", delta=0.05, local="observed", sides=sides)
    few = rb.compare(changes.between(*[rb.ClientRisks([0.1] * 9, 50)] * 2), local="observed")
    assert "a bound of what nine in ten unseen clients would measure needs 36 clients or more" in few.more_clients
    assert few.more_clients.endswith("and 29 if it alone is asked for")


def test_the_others_of_a_federation_are_drawn_by_lot_in_what_is_required_too(tmp_path, old, new, capsys):
    """Until this test the next of a population were taken to be drawn from a meta-distribution."""
    out = tmp_path / "others.json"
    for command in (
        ["compare", old, new, "--client", "site", "--num-examples", "n"],
        ["certify", new, "--num-examples", "n"],
    ):
        asked = ["--population", 52, "--require", "count:0.3@next:12<=11", "--out", out]
        assert main(list(map(str, [*command, *asked]))) == 0
        (found,) = json.loads(out.read_text())["certificates"].values()
        assert "of 12 others of 52, that would measure" in found["quantity"]
        assert found["delta"] == 0.05
        assert "drawn from the population at random" in found["assumptions"][0]
        assert main(["verify", str(out)]) == 0
        assert main(list(map(str, [*command, "--population", 52, "--require", "count:0.3@next:13<=11"]))) == 2
        assert "must be a population that has the 40 clients asked and the next, 13, got 52" in capsys.readouterr().err


def test_the_figure_is_drawn(tmp_path, old, new, capsys):
    pytest.importorskip("matplotlib")
    assert compare(old, new, "--plot", tmp_path / "change.svg") == 0
    drawn = (tmp_path / "change.svg").read_text()
    assert f"{(WORSE < BETTER).sum()} of {K} clients: better" in drawn
    assert compare(old, new, "--plot", tmp_path / "change.doc") == 2
    assert "--plot must end in one of" in capsys.readouterr().err


def test_other_clients_other_sizes_and_the_same_file_are_refused(tmp_path, old, new, capsys):
    short = table(tmp_path / "short.csv", {"site": NAMES[2:], "loss": [0.1] * (K - 2), "n": [N] * (K - 2)})
    assert compare(old, short) == 2
    assert (
        "both evaluations must have the same clients, got site 0, site 1 only in the old one" in capsys.readouterr().err
    )
    larger = table(tmp_path / "larger.csv", {"site": NAMES, "loss": [0.1] * K, "n": [N] * 3 + [2 * N] * (K - 3)})
    assert compare(old, larger) == 2
    assert f"got other numbers of them in {K - 3} clients, first site 3" in capsys.readouterr().err
    assert compare(old, old) == 2
    assert "must be different files" in capsys.readouterr().err
    twice = table(tmp_path / "twice.csv", {"site": NAMES[:1] * K, "loss": [0.1] * K, "n": [N] * K})
    assert compare(twice, new) == 2
    assert f"{twice}" in capsys.readouterr().err
    assert compare(old, new, "--require", "gini<=0.1") == 2
    assert "of a change of the risk there are mean, quantile, share" in capsys.readouterr().err


def score(scores, *arguments):
    return main(["certify", str(scores), "--column", "auc", "--score", "AUC", *map(str, arguments)])


def test_scores_are_bounded_from_their_bad_end_and_never_called_a_risk(tmp_path, scores, capsys):
    out = tmp_path / "auc.json"
    asked = ["--higher-is-better", "--client", "site", "--next", 5, "--survival", 0.6, "--require", "mean>=0.5"]
    assert score(scores, *asked, "--delta", 0.1, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "measure the AUC below" in printed
    assert " risk " not in printed
    document = json.loads(out.read_text())
    assert " risk" not in " ".join(each["statement"] for each in document["certificates"].values())
    answers = rb.ClientScores(AUC, True, name="AUC", names=NAMES[:14])
    expected = rb.bound(answers, "mean", delta=0.1 / 3, sides="two")
    assert document["certificates"]["mean"]["lower"] == expected.lower
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--score needs --higher-is-better or --lower-is-better"),
        (["--higher-is-better", "--measure", "gini"], "--measure needs losses with their numbers of examples"),
        (["--higher-is-better", "--range", 0, 0.5], "every AUC must lie in [0, 0.5]"),
        (["--higher-is-better", "--next", 0], "must be a whole number >= 1"),
        (["--higher-is-better", "--population", 10], "population must be above the number of clients asked, 14"),
        (["--higher-is-better", "--require", "change<=0.2"], "are numbers of changes"),
        (["--higher-is-better", "--require", "gini<=0.2"], "of the AUC there are mean, quantile, share"),
    ],
)
def test_what_needs_losses_or_contradicts_the_scores_is_refused(scores, capsys, arguments, message):
    assert score(scores, *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_score_is_still_refused_as_a_loss_and_sizes_are_needed_for_losses(scores, capsys):
    assert main(["certify", str(scores), "--column", "auc", "--num-examples", "100"]) == 2
    assert "names a score" in capsys.readouterr().err
    assert main(["certify", str(scores), "--column", "auc"]) == 2
    assert "--num-examples must say" in capsys.readouterr().err


def test_of_few_clients_the_next_one_stands_beside_the_mean(tmp_path, scores, capsys):
    assert score(scores, "--higher-is-better", "--client", "site") == 0
    mean, beside = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")][:2]
    assert (
        f"{AUC.min():.4f} <= the AUC that the next client would measure (by itself with probability at least 0.933"
        in beside
    )
    assert "<= the mean AUC over unseen clients" in mean
    few = {"site": NAMES[:12], "n": [N] * 12}
    old = table(tmp_path / "old12.csv", {"loss": (WRONG[:12] / N).tolist(), **few})
    new = table(tmp_path / "new12.csv", {"loss": ((WRONG + WORSE - BETTER)[:12] / N).tolist(), **few})
    assert compare(old, new) == 0
    largest = ((WORSE - BETTER)[:12] / N).max()
    assert f"the change of the risk that the next client would measure <= {largest:.4f}" in capsys.readouterr().out
    assert compare(old, new, "--next", 0) == 2
    assert "must be a whole number >= 1" in capsys.readouterr().err


def test_the_next_score_under_a_shift_is_said_from_its_bad_end(scores, capsys):
    shift = {"divergence": "chi2", "budget": [0.001, 0.2]}
    asked = ["--next", 1, "--divergence", "chi2", "--budget", 0.001, 0.2, "--delta", 0.3]
    assert score(scores, "--higher-is-better", *asked) == 0
    printed = capsys.readouterr().out
    near, far = rb.next_clients(rb.ClientScores(AUC, True), 1, delta=0.3, **shift).lower
    assert near > far == 0.0
    assert f"): at least {near:.4f}\n" in printed
    assert "): not bounded by these answers\n" in printed
    assert "1.0000" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "site"], "--group needs losses"),
        (["--num-examples", 100, "--binary"], "--num-examples, --binary needs losses"),
        (["--accuracy"], "--accuracy needs losses"),
        (["--not-binary"], "--binary needs losses"),
        (["--pilot-share", 0.3], "--pilot-share needs --tune"),
        (["--budget", 0.3], "--budget needs --divergence"),
        (["--missing", "worst"], "--missing worst needs --num-missing"),
        (["--require", "share:60<=0.2"], "the threshold of 'share:60' must lie in [0, 1]"),
    ],
)
def test_no_option_of_losses_is_ignored_of_scores(scores, capsys, arguments, message):
    """Until this test they were taken and not used, or read the AUC as an accuracy of one example."""
    assert score(scores, "--higher-is-better", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "of 1 example" not in error


@pytest.mark.parametrize("arguments", [["--higher-is-better"], ["--lower-is-better"], ["--range", 0, 5]])
def test_the_direction_of_a_score_is_no_direction_of_a_loss(old, capsys, arguments):
    """Accuracies with --higher-is-better alone were read as losses."""
    assert main(["certify", str(old), "--num-examples", "n", *map(str, arguments)]) == 2
    assert "--range need --score; of accuracies say --accuracy" in capsys.readouterr().err


def test_shares_of_scores_are_asked_in_the_unit_of_the_score(tmp_path, capsys):
    wait = table(tmp_path / "wait.csv", {"site": NAMES, "auc": [100.0] * 39 + [250.0]})
    asked = ["--lower-is-better", "--range", 0, 1440, "--survival", 240]
    assert score(wait, *asked) == 0
    expected = beta.ppf(0.95, 2, K - 1)  # Clopper-Pearson's limit: one of K
    printed = capsys.readouterr().out
    assert "a measured AUC of 240 or more <= " in printed
    assert float(printed.split("240 or more <= ")[1].split()[0]) == pytest.approx(expected, abs=1e-4)


def test_a_second_divergence_and_a_file_that_would_be_overwritten_are_refused(tmp_path, old, new, capsys):
    """The last divergence was taken and the first forgotten; --out took the place of a table."""
    before = new.read_text()
    assert compare(old, new, "--divergence", "chi2", "--divergence", "kl", "--out", new) == 2
    error = capsys.readouterr().err
    assert "one --divergence at a time, got chi2, kl" in error
    assert "must be different files" in error
    assert new.read_text() == before
    assert compare(old, new, "--out", tmp_path / "no" / "change.json") == 2
    assert "--out must be in a folder that exists" in capsys.readouterr().err
    third = shutil.copy(old, tmp_path / "third.csv")
    assert compare(old, new, third, "--delta", 1.5) == 2  # each of the two would have had .75
    assert "delta must" in capsys.readouterr().err


def test_a_rise_in_percent_is_no_rise_of_a_risk(old, new, capsys):
    """harmed:5 passed, as if it were 5 %: no risk rises by 5."""
    assert compare(old, new, "--require", "harmed:5<=0.1") == 2
    assert "must lie in [-1, 1], the range of the change of the risk" in capsys.readouterr().err


def test_nothing_that_is_assumed_of_scores_speaks_of_their_risks(scores, capsys):
    for more in (["--divergence", "chi2"], ["--answered-by", "trainers"]):
        assert score(scores, "--higher-is-better", *more) == 0
        assert "risks" not in capsys.readouterr().out


def test_a_page_of_two_files_of_one_score_takes_the_verdict_of_its_file(tmp_path, scores, capsys):
    """The verdicts were said not to follow from the file, since another bounds the same number more sharply."""
    gate, other, page = (tmp_path / name for name in ("gate.json", "other.json", "page.html"))
    assert score(scores, "--higher-is-better", "--require", "mean>=0.3", "share:0.1<=0.5", "--out", gate) == 0
    assert score(scores, "--higher-is-better", "--mean", "--out", other) == 0
    lower = [json.loads(each.read_text())["certificates"]["mean"]["lower"] for each in (gate, other)]
    assert lower[0] < lower[1]
    for files in ((gate, other), (other, gate)):
        assert main(["report", *map(str, files), "-o", str(page)]) == 0
        assert f"he mean AUC over unseen clients lies between {rounded_down(lower[0])} and" in page.read_text()
        assert main(["verify", str(page)]) == 0
    assert score(scores, "--higher-is-better", "--mean", "--quantile", 0.3, "--out", gate) == 0
    for files in ((gate, other), (other, gate)):
        assert main(["report", *map(str, files), "-o", str(page)]) == 0
        assert f"he mean AUC over unseen clients is at least {rounded_down(lower[1])}" in page.read_text()
        assert main(["verify", str(page)]) == 0
        capsys.readouterr()


def test_no_end_of_a_range_is_said_as_a_bound(tmp_path, scores, capsys):
    """Verification and verdicts said "between 0.0000 and" of a quantile that 14 clients do not bound from below."""
    out = tmp_path / "auc.json"
    required = ["quantile:0.1>=0.5", "share:0.1<=0.01"]
    assert score(scores, "--higher-is-better", "--require", *required, "--out", out) == 3
    assert main(["verify", str(out)]) == 0
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    printed, page = capsys.readouterr().out, (tmp_path / "page.html").read_text()
    quantile, share = (rb.Certificate.from_dict(each) for each in json.loads(out.read_text())["certificates"].values())
    assert quantile.lower == share.lower == 0.0
    assert printed.count(f"would measure is at most {rounded_up(quantile.value)}") == 4  # three verdicts, and to verify
    for text in (printed, page, str(quantile), repr(quantile), str(share)):
        assert "between 0.0000" not in text
    minutes = rb.ClientScores(AUC, False, high=1440.0)
    assert "is not bounded by these answers." in rb.bound(minutes, "quantile:0.99", delta=0.05).statement
    said = rb.require(minutes, "quantile:0.99<=3", delta=0.05).statement
    assert re.search(r"unseen client would measure is at least 0\.\d+, and nothing bounds it from above", said)
    same = rb.ClientRisks(WRONG / N, N)
    assert "rises by more than 0.9 is at most" in rb.compare(same, same, require="harmed:0.9<=0.01").gate.statement


def test_a_page_as_json_says_no_end_of_a_range(tmp_path, scores, capsys):
    """It said "at least 0.0000" of a quantile that 14 clients do not bound."""
    out = tmp_path / "auc.json"
    assert score(scores, "--higher-is-better", "--quantile", 0.1, "--out", out) == 0
    capsys.readouterr()
    assert main(["report", str(out), "-o", str(tmp_path / "auc.html"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["statements"]["quantile:0.1"]
    assert "not bounded by these answers" in said
    assert "0.0000" not in said
