"""The ledger of a run at every command: what it says of its clients comes with their answers, or it is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import riskband as rb
from riskband.answers.doors import TableError
from riskband.answers.files import UNSAID, read_risks
from riskband.cli import main
from tests.ledgers import write_ledger

RISKS = [0.05] * 30 + [0.6] * 10  # true means .05 and .6: of the network .3 * .05 + .7 * .6 = .435
STRATA = ["north"] * 30 + ["south"] * 10
SHARES = {"north": 0.3, "south": 0.7}
CHAINS = [f"chain {k // 2}" for k in range(40)]
WEIGHTS = [1.0 + k % 4 for k in range(40)]
NAMES = [f"client-{k:05d}" for k in range(40)]
STRATIFIED = {"said": {"stratum": STRATA}, "design": "strata:north=0.3,south=0.7"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, {}),
        (STRATIFIED, {"design": {"strata": STRATA, "shares": SHARES}}),
        ({"said": {"cluster": CHAINS}, "design": "clusters"}, {"design": {"clusters": CHAINS}}),
        (
            {"said": {"cluster": CHAINS, "stratum": STRATA}, "design": "clusters,strata:north=0.3,south=0.7"},
            {"design": {"clusters": CHAINS, "strata": STRATA, "shares": SHARES}},
        ),
        (
            {"said": {"sampling_weight": WEIGHTS}, "design": "weights:5"},
            {"design": {"weights": WEIGHTS, "largest_weight": 5.0}},
        ),
        ({"said": {"cluster": CHAINS}}, {}),  # the run took them for independent, as its certificates say
        ({"said": {"group": [None, *STRATA[1:]]}}, {"groups": [None, *STRATA[1:]]}),
        ({"answered_by": "trainers"}, {"answered_by": "trainers"}),
        ({"num_clients": 45, "missing": "worst"}, {"num_missing": 5, "missing": "worst"}),
        ({"num_clients": 45, "missing": "odds:3"}, {"num_missing": 5, "missing": "odds:3"}),
        ({"client_ids": "any", "num_clients": 45}, {"num_missing": 5}),
        ({"contamination": 2}, {"contamination": 2}),
        ({"loss": "brier"}, {"binary": False}),
    ],
)
def test_all_that_a_run_says_of_its_clients_comes_with_their_answers(tmp_path, written, expected):
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS, **written)
    assert read_risks(str(path), UNSAID) == rb.ClientRisks(RISKS, 100, **{"binary": True, "names": NAMES, **expected})


def test_the_mean_of_strata_is_that_of_the_network(tmp_path, capsys):
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS, **STRATIFIED)
    assert main(["certify", str(path), "--mean", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["certificates"]["mean"]
    design = {"strata": STRATA, "shares": SHARES}
    assert said["value"] == rb.mean_bound(rb.ClientRisks(RISKS, 100, design=design), delta=0.05).value
    assert 0.435 <= said["value"] <= 0.5471
    assert rb.mean_bound(rb.ClientRisks(RISKS, 100), delta=0.05).value < 0.3  # as if clients were independent: false


def test_clients_that_trained_make_estimates_at_every_command(tmp_path, capsys):
    rng = np.random.default_rng(0)
    drawn = {name: rng.integers(0, 30, 40) / 100 for name in ("old", "new")}
    old, new = (
        write_ledger(tmp_path / f"{name}.jsonl", each.tolist(), answered_by="trainers") for name, each in drawn.items()
    )
    other = write_ledger(tmp_path / "other.jsonl", [0.1, 0.2] * 20, names=[f"other {k}" for k in range(40)])
    for words in (["certify", old], ["compare", old, new], ["shift", old, other, "--budget", "0.1"]):
        assert main([*map(str, words), "--json"]) == 0
        captured = capsys.readouterr()
        document = json.loads(captured.out)
        assert {rb.Certificate.from_dict(each).validity for each in document["certificates"].values()} == {"estimate"}
        assert captured.err.startswith("NOTHING IS CERTIFIED")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"answered_by": "trainers"}, "must be fresh"),
        (STRATIFIED, "a design of strata"),
        ({"said": {"cluster": CHAINS}, "design": "clusters"}, "a design of clusters"),
        ({"num_clients": 45, "missing": "worst"}, "missing='ignore'"),
        ({"contamination": 1}, "contamination=0"),
        ({"ask": "until-decided"}, "nothing that says how many were asked"),
        ({"privacy": "laplace:1"}, "noise in its answers"),
    ],
)
def test_what_cannot_be_monitored_is_refused_by_name(tmp_path, written, said, capsys):
    made = tmp_path / "made.json"
    rb.mean_bound(rb.ClientRisks([0.1, 0.2] * 30, 100), delta=0.05).save(made)
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS, **written)
    assert main(["monitor", str(made), str(path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"privacy": "laplace:1"}, "noise in its answers"),
        ({"target": "group:old"}, "whose clients are of two networks"),
        ({"ask": "until-decided"}, "nothing that says how many were asked"),
        ({"client_ids": "any", "num_clients": 45, "missing": "worst"}, "nothing that says how many were asked"),
        ({"client_ids": "any", "num_clients": 30}, "nothing that says how many were asked"),
        ({"said": {"stratum": [None, *STRATA[1:]]}, "design": STRATIFIED["design"]}, "got none in line 2"),
        ({"design": "strata:north=0.3"}, "got none in line 2"),
        ({"design": "by chance"}, "a design must be"),
        ({"answered_by": "nobody"}, "answered_by must be one of"),
        ({"names": ["twice", "twice", *NAMES[2:]]}, "must name every client once"),
    ],
)
def test_what_a_table_of_losses_cannot_carry_is_refused_by_name(tmp_path, written, said):
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS, **written)
    with pytest.raises(TableError, match=said):
        read_risks(str(path), UNSAID)


def test_a_ledger_that_does_not_say_who_answered_is_refused(tmp_path):
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS)
    path.write_text(path.read_text().replace('"answered-by"', '"answered"', 1))
    with pytest.raises(TableError, match=r"KeyError.*answered-by"):
        read_risks(str(path), UNSAID)


CONTRADICTIONS = {
    "--answered-by trainers": "--answered-by must be as",
    "--missing worst --num-missing 3": "--missing must be as",
    "--num-missing 3": "--num-missing must be as",
    "--contamination 1": "--contamination must be as",
    "--noise laplace:1": "--noise must be as",
    "--stratum region": "--stratum must be as",
    "--cluster chain": "--cluster must be as",
    "--sampling-weight w": "--sampling-weight must be as",
    "--shares shares.csv": "--shares must be as",
    "--largest-weight 3": "--largest-weight must be as",
    "--client site": "--client must be as",
    "--group site": "--group must be as",
    "--column risk": "--column must be as",
    "--accuracy": "--accuracy must be as",
    "--percent": "--percent must be as",
    "--not-binary": "--binary must be as",
    "--num-examples 100": "--num-examples must be as",
    "--score AUC --higher-is-better": "--score must be as",
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_options_that_contradict_a_ledger_are_errors(tmp_path, words, capsys):
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS, **STRATIFIED)
    assert main(["certify", str(path), *words.split()]) == 2
    captured = capsys.readouterr()
    assert f"{CONTRADICTIONS[words]} {path} has it" in captured.err
    assert "certificates" not in captured.out


def test_options_that_say_what_a_ledger_has_change_nothing(tmp_path, capsys):
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS, num_clients=43, **STRATIFIED)
    words = "--answered-by fresh --missing ignore --num-missing 3 --stratum stratum --client client --binary"
    found = []
    for more in ([], [*words.split(), "--num-examples", "num_examples"]):
        assert main(["certify", str(path), "--mean", *more]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert "the 3 clients that were asked but gave no valid answer are missing at random" in found[0]


def test_columns_of_a_table_are_not_those_of_a_ledger_beside_it(tmp_path, capsys):
    table = tmp_path / "source.csv"
    table.write_text("site,error,n\n" + "".join(f"s{k},0.{k % 3 + 1},100\n" for k in range(40)))
    path = write_ledger(tmp_path / "target.jsonl", [0.1, 0.3] * 10)
    columns = ["--column", "error", "--client", "site", "--num-examples", "n"]
    assert main(["shift", str(table), str(path), *columns, "--budget", "0.1", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)["certificates"]["mean@target:chi2:0.1"]["recipe"]
    assert {*recipe["answers"]["names"]} == {f"s{k}" for k in range(40)}
    assert recipe["arguments"]["target"]["answers"]["names"] == NAMES[:20]


@pytest.mark.parametrize("written", [STRATIFIED, {"num_clients": 45, "missing": "odds:3"}])
def test_what_a_target_network_cannot_be_compared_with_is_refused(tmp_path, written, capsys):
    path = write_ledger(tmp_path / "ledger.jsonl", RISKS, **written)
    other = write_ledger(tmp_path / "other.jsonl", RISKS, names=[f"other {k}" for k in range(40)])
    for words in ([path, other], [other, path], [other, "--past", path, "--alpha", "0.5"]):
        assert main(["shift", *map(str, words)]) == 2
        assert "must be of clients that are independent draws from one network" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "is_refused"), [("shift", True), ("compare", False), ("monitor", True)])
def test_ledgers_that_are_taken_together_are_of_one_model_and_loss(tmp_path, command, is_refused, capsys):
    made, folder = tmp_path / "made.json", tmp_path / "ledgers"
    folder.mkdir()
    rb.mean_bound(rb.ClientRisks([0.6, 0.7] * 30, 100), delta=0.05).save(made)
    names = [f"other {k}" for k in range(40)] if command == "shift" else NAMES
    for loss, model, status in (("zero_one", "new", 2 if is_refused else 0), ("brier", "m", 2)):
        first = write_ledger(folder / "first.jsonl", RISKS)
        second = write_ledger(folder / "second.jsonl", RISKS, names=names, loss=loss, model=model)
        words = [made, folder] if command == "monitor" else [first, second]
        assert main([command, *map(str, words)]) == status
        said = capsys.readouterr().err
        assert ("must be of one model" in said) == (is_refused and model == "new")
        assert ("must be of one loss" in said) == (loss == "brier")
