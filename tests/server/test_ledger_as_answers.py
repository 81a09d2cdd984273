"""Ledgers of real runs: their answers with all that was said of them, as the certificates of the runs have it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import riskband as rb
from protocol.models import build_model, save_checkpoint
from riskband.answers.doors import TableError
from riskband.answers.files import UNSAID, read_risks
from riskband.answers.rows import seeded_order
from riskband.cli import main
from tests.server.running import raises, run_app


def of_run(folder, name="mean"):
    return rb.Certificate.load(folder / "certificates" / f"{name}.json").recipe["answers"]


def of_ledger(folder, order=None):
    """The answers in the order of these names, or else as they arrived."""
    risks = read_risks(str(folder / "ledger.jsonl"), UNSAID)
    return (risks if order is None else risks.of_clients(np.array([*map(risks.names.index, order)]))).to_dict()


def test_who_is_silent_is_said_by_the_log_beside_it(tmp_path, defaults):
    changes = {"missing": "worst", "quorum": 0.5, "num_clients": 9, "client_ids": "any", "answered_by": "trainers"}
    report = run_app(tmp_path, defaults, num_nodes=12, behaviours={3: raises, 5: raises}, **changes)
    found = of_ledger(tmp_path, report["network"]["client_ids"])
    assert found.pop("names") == report["network"]["client_ids"]
    assert found == of_run(tmp_path)
    assert (found["num_missing"], found["missing"], found["answered_by"]) == (2, "worst", "trainers")
    (tmp_path / "events.jsonl").rename(tmp_path / "log.jsonl")
    with pytest.raises(TableError, match="nothing that says how many were asked"):
        of_ledger(tmp_path)


def test_a_ledger_without_an_answer_that_was_counted_is_refused(tmp_path, defaults):
    run_app(tmp_path, defaults)
    ledger, lines = tmp_path / "ledger.jsonl", (tmp_path / "ledger.jsonl").read_text().splitlines(keepends=True)
    worst = max(lines[1:], key=lambda line: json.loads(line)["risk"])
    for changed in (lines[:9], [line for line in lines if line != worst], [line.replace("0", "1") for line in lines]):
        ledger.write_text("".join(changed))
        with pytest.raises(TableError, match="other answers than"):
            of_ledger(tmp_path)


def test_while_a_run_goes_on_those_who_have_not_answered_are_silent(tmp_path, defaults):
    run_app(tmp_path, defaults)
    ledger, log = tmp_path / "ledger.jsonl", tmp_path / "events.jsonl"
    events = log.read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(events, 1) if "answer_accepted" in line]
    whole, lines = of_ledger(tmp_path), ledger.read_text().splitlines(keepends=True)
    for num_logged, num_answers in ((8, 8), (8, 9), (12, 12)):  # what is logged is on the disk before
        log.write_text("".join(events[: ends[num_logged - 1]]))
        ledger.write_text("".join(lines[: 1 + num_answers]))
        found = of_ledger(tmp_path)
        assert found["values"] == whole["values"][:num_answers]
        assert found["num_missing"] == 12 - num_answers


def test_of_clients_asked_until_it_was_decided_only_what_holds_at_all_times_is_certified(tmp_path, defaults, capsys):
    folder, made = tmp_path / "runs" / "first", tmp_path / "made.json"
    changes = {"ask": "until-decided", "batch_size": 4, "num_clients": 40, "require": "mean<=0.7", "num_unseen": 0}
    report = run_app(folder, defaults, **changes)
    found, names = of_ledger(folder), report["network"]["client_ids"]
    assert len(names) < 36
    assert found.pop("names") == seeded_order(names, seed=0)
    assert found == of_run(folder, "require_mean")
    assert found["ask"] == "until-decided"
    rb.mean_bound(rb.ClientRisks([0.9, 0.95] * 30, 100), delta=0.05).save(made)
    ledger, all_asked = str(folder / "ledger.jsonl"), str(tmp_path / "other.csv")
    again = str(shutil.copytree(folder, tmp_path / "again") / "ledger.jsonl")
    (tmp_path / "other.csv").write_text("site,loss,n\n" + "".join(f"s{k},0.{k % 3 + 1},100\n" for k in range(40)))
    capsys.readouterr()
    for words in (
        ["certify", ledger],
        ["certify", ledger, "--next", "3"],
        ["certify", ledger, "--measure", "gini"],
        ["certify", ledger, "--at-once"],
        ["compare", ledger, again],
        ["shift", all_asked, ledger, "--num-examples", "n", "--budget", "0.1"],
        ["shift", ledger, all_asked, "--num-examples", "n", "--budget", "0.1"],
    ):
        assert main(words) == 2
        assert "a number of clients that no answer had influenced" in capsys.readouterr().err
    assert main(["monitor", str(made), ledger]) in (0, 4)
    assert f"after {len(names)} clients" in capsys.readouterr().out
    assert main(["monitor", str(made), str(folder.parent)]) == 2
    assert "batches must be of sizes that no answer has influenced" in capsys.readouterr().err


def test_a_sample_of_a_fleet_in_one_batch_is_of_a_number_that_was_fixed(tmp_path, defaults, capsys):
    runs, made, model = tmp_path / "days", tmp_path / "made.json", tmp_path / "model.pt"
    save_checkpoint(build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0), model)
    changes = {"ask": "until-decided", "num_clients": 24, "batch_size": 6, "max_clients": 6, "num_unseen": 0}
    changes |= {"training": "checkpoint", "checkpoint": str(model)}
    for seed in (1, 2):
        run_app(runs / f"day-{seed}", defaults, seed=seed, quorum=0.25, require="mean<=0.99", **changes)
        assert "ask" not in of_ledger(runs / f"day-{seed}")
    rb.mean_bound(rb.ClientRisks([0.95, 0.99] * 30, 100), delta=0.05).save(made)
    capsys.readouterr()
    assert main(["certify", str(runs / "day-1" / "ledger.jsonl"), "--mean"]) == 0
    assert main(["monitor", str(made), str(runs), "--repeats", "draws"]) == 0  # simulated clients have the same names
    said = capsys.readouterr()
    assert "after 12 clients" in said.out, said.err
