"""`riskband shift`, used as a user would."""

import json
import re

import numpy as np
import pytest

import riskband as rb
from riskband.cli import main
from riskband.cli.verify import stored_certificates
from riskband.report.networks import certified_target
from riskband.wording import short_delta
from riskband.worst_cases.divergence_bounds import rank_test
from tests.ledgers import write_ledger
from tests.one_voice import contradictions

RNG = np.random.default_rng(11)
LOSSES = {
    name: RNG.binomial(100, RNG.beta(a, 21, size)) / 100
    for name, a, size in (("source", 3.0, 40), ("few", 3.3, 10), ("far", 11.0, 40))
}
NETWORKS = {name: rb.ClientRisks(values, 100) for name, values in LOSSES.items()}


def written(path, values):
    path.write_text("\n".join(["site,loss", *(f"{path.stem} {k},{loss}" for k, loss in enumerate(values))]) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, values in LOSSES.items():
        written(tmp_path / f"{name}.csv", values)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shift(*arguments):
    return main(["shift", *map(str, arguments), "--num-examples", "100", "--client", "site"])


def test_certificates_are_those_of_the_library_share_delta_and_verify(folder, capsys):
    asked = ["--divergence", "chi2", "tv", "--budget", 0.1]
    assert shift("source.csv", "few.csv", *asked, "--out", "out.json") == 0
    printed, document = capsys.readouterr().out, json.loads((folder / "out.json").read_text())
    source, few = NETWORKS["source"], NETWORKS["few"]
    distance = rb.divergence_lower_bound(source, few, divergence="tv", delta=0.05 / 3)
    mean = rb.bound((source, few), "mean@target:tv:0.1", delta=0.05 / 3)
    found = document["certificates"]
    assert found["divergence@target:tv"]["lower"] == distance.lower
    assert found["divergence@target:tv"]["value"] is None
    assert found["mean@target:tv:0.1"]["value"] == pytest.approx(mean.value, abs=0.02)  # in another order: of the names
    assert [event["delta"] for event in document["findings"]["events"]] == [0.05 / 3] * 3  # one for both divergences
    assert document["findings"]["delta"] == 0.05
    assert "histogram" not in printed  # of equal networks it may say 0.9, beside a bound of 0
    assert printed.count("nothing bounds a divergence from above") == 1
    p_value = rank_test(source.values, few.values)
    assert found["divergence@target:tv"]["details"]["p_value"] == p_value
    assert printed.count(f"do the networks differ at all? p = {short_delta(p_value)} by an exact test of ranks") == 1
    adds_nothing = mean.value >= float(mean.details["source_alone"])
    assert ("mean@target:tv:0.1: the clients of the target add nothing" in printed) == adds_nothing
    assert "REFUTED" not in printed
    assert contradictions(document, terminal=printed, delta=0.05) == []
    assert main(["verify", "out.json"]) == 0
    document["certificates"]["divergence@target:tv"]["lower"] += 0.01
    (folder / "out.json").write_text(json.dumps(document))
    assert main(["verify", "out.json"]) == 1


@pytest.mark.parametrize("asked", [(), ("--budget", 0.1), ("--require", "mean@target:chi2:0.1<=0.2")], ids=str)
def test_a_page_says_what_its_file_says_of_both_networks(folder, capsys, asked):
    assert shift("source.csv", "few.csv", *asked, "--out", "out.json") in (0, 3)
    printed, document = capsys.readouterr().out, json.loads((folder / "out.json").read_text())
    assert main(["report", "out.json", "-o", "page.html"]) == 0
    page = (folder / "page.html").read_text()
    assert contradictions(document, page=page, terminal=printed, delta=0.05) == []
    assert stored_certificates(page)["certificates"].keys() == document["certificates"].keys()
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    assert "Clients that answered, source 40" in shown
    assert "Clients that answered, target 10" in shown
    assert all(f" few {k} target {loss:.4f} 100 " in shown for k, loss in enumerate(LOSSES["few"]))
    assert all(f" source {k} source {loss:.4f} 100 " in shown for k, loss in enumerate(LOSSES["source"]))
    assert "nothing bounds a divergence from above" in shown
    assert "data-steps" not in page  # which says worst cases of the source alone
    if asked:
        assert f"Measured on the clients of the target that answered: {LOSSES['few'].mean():.4f}." in shown
    assert main(["report", "out.json", "-o", "public.html", "--public"]) == 0
    public = (folder / "public.html").read_text()
    assert not [name for name in ("few 3", "source 3", f"{LOSSES['few'].mean():.4f}") if name in public]
    assert main(["verify", "page.html"]) in (0, 3)


def test_without_a_budget_all_of_delta_is_for_the_distance(folder, capsys):
    assert shift("source.csv", "far.csv", "--json", "--divergence", "chi2", "kl") == 0
    found = json.loads(capsys.readouterr().out)["certificates"]
    assert found.keys() == {"divergence@target:chi2", "divergence@target:kl"}
    for name, each in found.items():
        expected = rb.divergence_lower_bound(
            NETWORKS["source"], NETWORKS["far"], divergence=name.split(":")[1], delta=0.05
        )
        assert each["lower"] == expected.lower > 0.29
        assert each["delta"] == 0.05


@pytest.mark.parametrize(
    ("target", "required", "verdict", "status"),
    [
        ("few", "mean@target:chi2:0.1<=0.3", "PASS", 0),
        ("few", "mean@target:chi2:0.1<=0.02", "FAIL", 1),
        ("few", "mean@target:chi2:0.1<=0.15", "NOT DECIDED", 3),
        ("few", "divergence@target:chi2<=0.1", "NOT DECIDED", 3),
        ("far", "divergence@target:chi2<=0.1", "FAIL", 1),
        ("far", "divergence@target:chi2>=0.1", "PASS", 0),
        ("far", "mean@target:chi2:0.1<=0.9", "NOT DECIDED", 3),  # the budget is refuted
        ("far", "mean@target:chi2:0.1<=0.1", "FAIL", 1),  # by the target's clients alone
    ],
)
def test_requirements_decide_the_exit_status_and_are_verified(folder, capsys, target, required, verdict, status):
    assert shift("source.csv", f"{target}.csv", "--require", required, "--out", "out.json") == status
    printed = capsys.readouterr().out
    assert f"  {verdict}: {required} is required" in printed
    assert ("these answers refute the budget" in printed) == (required.endswith("0.9"))
    assert ("REFUTED" in printed) == (target == "far" and required.startswith("mean@target"))
    assert main(["verify", "out.json"]) == 0
    gate = json.loads((folder / "out.json").read_text())["gate"]
    assert gate["delta"] == 0.05
    assert sum(event["delta"] for event in json.loads((folder / "out.json").read_text())["findings"]["events"]) <= 0.05


def test_a_budget_that_the_answers_contradict_is_an_error_that_names_it(folder, capsys):
    written(folder / "bad.csv", np.full(20, 0.93))
    assert shift("source.csv", "bad.csv", "--budget", 0.1) == 2
    said = capsys.readouterr().err
    assert "must not cross" in said
    assert "the target network is within the stated budget of the source network in χ² divergence" in said
    assert shift("source.csv", "bad.csv") == 0
    assert "do the networks differ at all? p = " in capsys.readouterr().out


@pytest.mark.parametrize("asked", [["--require", "mean@target:chi2:0.1<=0.35"], ["--divergence", "tv"]])
@pytest.mark.parametrize("named", [["--client", "site"], []])
def test_clients_of_the_source_are_no_target(folder, capsys, asked, named):
    """Once PASS, of ten clients who had answered already."""
    lines = (folder / "source.csv").read_text().splitlines()
    (folder / "again.csv").write_text("\n".join([*lines[:11], "new one,0.1"]) + "\n")
    again = ["shift", "source.csv", "again.csv", "--num-examples", "100", *named, *asked]
    assert main(again) == 2
    said = capsys.readouterr().err
    assert "must not be those of the source network, got source 0, source 1" in said
    assert "(10 of 11)" in said
    assert main([*again, "--repeats", "draws", "--out", "out.json"]) == 0
    assert "was drawn anew each time" in capsys.readouterr().out
    assert "was drawn anew each time" in (folder / "out.json").read_text()
    assert main(["verify", "out.json"]) == 0


@pytest.mark.parametrize(
    "number", ["mean@target:chi2:0.1", "share:0.3@target:chi2:0.1", "quantile:0.9@target:chi2:0.1"]
)
def test_the_library_looks_at_names_too(number):
    source, target = (
        rb.ClientRisks(LOSSES["few"], 100, names=[f"c{k + shift}" for k in range(10)]) for shift in (0, 9)
    )
    with pytest.raises(ValueError, match=r"got c9 in both \(1 of 10\)"):
        rb.bound((source, target), number, delta=0.1)
    made = rb.bound((source, rb.ClientRisks(**target.to_dict() | {"repeats": "draws"})), number, delta=0.1)
    assert rb.verify(made).ok


def test_the_next_network_is_bounded_by_its_rank_among_earlier_ones(folder, capsys):
    (folder / "past").mkdir()
    for k in range(9):
        written(folder / "past" / f"{k}.csv", RNG.binomial(100, RNG.beta(3 + k / 4, 21, 30)) / 100)
    assert shift("source.csv", "--past", "past", "--json", "--divergence", "tv", "kl") == 0
    found = json.loads(capsys.readouterr().out)
    estimates = list(found["divergence"]["tv"]["estimates"].values())
    assert len(estimates) == 9
    assert found["divergence"]["tv"]["next_at_most"] == max(estimates)  # nine of ten
    assert found["divergence"]["kl"]["next_at_most"] is None  # some are infinite
    assert shift("source.csv", "--past", "past", "--alpha", 0.5, "--divergence", "tv", "kl") == 0
    printed = capsys.readouterr().out
    assert f"at most {sorted(estimates)[4]:.4g} with probability at least 0.5" in printed
    assert "This is an estimate and no divergence" in printed
    assert shift("source.csv", "--past", *sorted(map(str, (folder / "past").iterdir())), "--alpha", 0.05) == 2
    assert "past networks must be 19 or more for alpha = 0.05, got 9" in capsys.readouterr().err


def test_what_is_wrong_is_said_at_once(folder, capsys):
    (folder / "broken.csv").write_text("site,loss\na,2\nb,0.1\n")
    assert shift("source.csv", "broken.csv", "--require", "mean<=0.2", "x<=1", "--delta", 2, "--budget", -1) == 2
    said = capsys.readouterr().err
    for rule in ("delta must be in", "budget must be finite", "of a target network 'mean@target", "x", "broken.csv:"):
        assert rule in said, rule
    assert shift("source.csv", "few.csv", "--column", "error") == 2
    assert "few.csv: few.csv" not in capsys.readouterr().err
    assert shift("source.csv") == 2
    assert "give either one TARGET, or earlier networks by --past" in capsys.readouterr().err
    assert shift("source.csv", "--past", "few.csv", "--require", "divergence@target:tv<=0.1") == 2
    assert "need a TARGET" in capsys.readouterr().err


def test_numbers_of_a_target_are_refused_where_there_is_none(folder, capsys):
    for required in ("mean@target:chi2:0.1<=0.2", "divergence@target:chi2<=0.1"):
        assert main(["certify", "few.csv", "--num-examples", "100", "--require", required]) == 2
        assert "riskband shift SOURCE TARGET" in capsys.readouterr().err
        with pytest.raises(ValueError, match="riskband shift SOURCE TARGET"):
            rb.require(NETWORKS["few"], required, delta=0.1)
        with pytest.raises(ValueError, match="needs more than the risks of one network"):
            rb.plan(required, prior="beta:0.1:0.05", num_examples=100, num_clients=50, delta=0.1)
    for wrong in ("divergence<=0.1", "divergence@target:no<=0.1", "mean@target:chi2<=0.1"):
        with pytest.raises(ValueError, match=r"cannot be read|divergence must be"):
            certified_target(NETWORKS["source"], NETWORKS["few"], divergence=["tv"], delta=0.1, require=[wrong])


def test_unequal_numbers_of_examples_are_compared_by_true_risks():
    other = rb.ClientRisks(LOSSES["far"], 200, binary=True)
    found = certified_target(NETWORKS["source"], other, divergence=["tv"], delta=0.05).certificates[
        "divergence@target:tv"
    ]
    assert found.recipe["band"]["local"] == "marginal"
    assert (
        0.0
        < found.lower
        < rb.divergence_lower_bound(NETWORKS["source"], NETWORKS["far"], divergence="tv", delta=0.05).lower
    )


def test_a_page_can_be_made_and_verified(folder, capsys):
    shift("source.csv", "few.csv", "--budget", 0.1, "--out", "out.json", "--about", "model=m")
    assert main(["report", "out.json", "-o", "page.html"]) == 0
    assert main(["verify", "page.html"]) == 0
    said = re.sub(r"<[^>]+>", "", (folder / "page.html").read_text())
    assert "χ² divergence of the target network from the source network is at least" in said
    assert "the mean risk of the target network" in said.partition("Who was measured")[0]  # not a distance of 0


def test_ledgers_of_two_runs_say_their_numbers_of_examples(folder, capsys):
    for name in ("source", "few"):
        names = [f"{name} {k}" for k in range(len(LOSSES[name]))]
        write_ledger(folder / f"{name}.jsonl", LOSSES[name], names=names)
    assert shift("source.csv", "few.csv", "--budget", 0.1) == 0
    _, *expected = capsys.readouterr().out.splitlines()
    assert main(["shift", "source.jsonl", "few.jsonl", "--budget", "0.1"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert rest == expected
    assert first.endswith('say answered-by = "trainers" in the configuration of the run')
    assert main(["shift", "source.csv", "few.jsonl", "--client", "site"]) == 2
    assert "--num-examples must say how many examples are behind each mean" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["share:0.3@target", "mean@target", "mean@target:chi2"])
def test_a_number_without_a_budget_is_told_what_it_lacks(wrong):
    with pytest.raises(ValueError, match=r"'.*target:chi2.*', .* a budget"):
        rb.Number.of(wrong)
