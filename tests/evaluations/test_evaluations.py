"""Samples of evaluations of language models: files that the tools wrote themselves, read against a count by hand."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from riskband.answers.doors import TableError
from riskband.answers.evaluations import inspect_table, lm_eval_table
from riskband.cli import main

HERE = Path(__file__).parent
LM_EVAL = HERE / "lm_eval"


@pytest.fixture
def log(tmp_path):
    """A log that inspect wrote: `write_inspect.py`."""
    path = tmp_path / "log.json"
    path.write_bytes(gzip.decompress((HERE / "inspect.json.gz").read_bytes()))
    return path


def changed(log, change):
    content = json.loads(log.read_text())
    change(content)
    log.write_text(json.dumps(content))
    return log


@pytest.mark.parametrize("key", ["user", "language"])
def test_the_means_of_users_are_those_of_inspects_own_reduction_over_epochs(log, key):
    content, table = json.loads(log.read_text()), inspect_table(log, f"metadata:{key}")
    (reduced,) = [each["samples"] for each in content["reductions"] if each["scorer"] == "match"]
    clients = {sample["id"]: sample["metadata"][key] for sample in content["samples"]}
    expected = defaultdict(list)
    for each in reduced:  # inspect's own means over the epochs of each sample
        expected[clients[each["sample_id"]]].append(each["value"])
    assert table.frame["client"] == sorted(expected)
    np.testing.assert_allclose(table.frame["match"], [np.mean(expected[each]) for each in sorted(expected)])
    assert table.frame["num_examples"].tolist() == [len(expected[each]) for each in sorted(expected)]  # epochs are one
    accuracy = content["results"]["scores"][0]["metrics"]["accuracy"]["value"]
    assert np.average(table.frame["match"], weights=table.frame["num_examples"]) == pytest.approx(accuracy)


def test_values_count_as_inspect_counts_them(log):
    """By its own `value_to_float`: C, P, I, N, yes and no, truth values, numbers and numbers as text."""
    values = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "Yes": 1.0, "FALSE": 0.0, "0.25": 0.25, True: 1.0, 0.75: 0.75}
    for value, number in values.items():

        def change(content, value=value):
            for sample in content["samples"]:
                sample["scores"]["match"]["value"] = value

        assert inspect_table(changed(log, change), "metadata:user").frame["match"].tolist() == [number] * 8


def test_the_means_of_tasks_are_those_that_the_harness_printed_and_other_clients_are_fields_of_documents():
    table = lm_eval_table(LM_EVAL, "task")
    lines = {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in LM_EVAL.iterdir()}
    assert table.frame["client"] == ["toy_algebra", "toy_history", "toy_law"]
    for name, mean in zip(table.frame["client"], table.frame["acc"], strict=True):
        (found,) = [each for file, each in lines.items() if name in file]
        assert mean == np.mean([each["acc"] for each in found])
    assert lm_eval_table(LM_EVAL, "subject").frame["client"] == ["algebra", "history", "law"]
    authors = lm_eval_table(LM_EVAL, "author")
    assert authors.frame["num_examples"].tolist() == [6, 6, 6]
    everyone = [each for found in lines.values() for each in found if each["doc"]["author"] == "author-1"]
    assert authors.frame["acc"][1] == np.mean([each["acc"] for each in everyone])


def test_several_filters_of_a_document_are_columns_of_their_own(tmp_path):
    (file,) = LM_EVAL.glob("samples_toy_law*")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    both = [line | {"filter": name, "acc": acc} for line in lines for name, acc in (("strict", 0.0), ("loose", 1.0))]
    (tmp_path / file.name).write_text("\n".join(map(json.dumps, both)))
    table = lm_eval_table(tmp_path, "author")
    assert table.frame["num_examples"].tolist() == [2, 2, 2]
    assert table.frame["acc,strict"].tolist() == [0.0] * 3
    assert table.frame["acc,loose"].tolist() == [1.0] * 3


def test_the_command_certifies_either_and_takes_the_users_for_fresh_clients(log, capsys):
    asked = ["--accuracy", "--num-examples", "num_examples", "--delta", "0.2", "--mean"]
    assert (
        main(["certify", str(log), "--from", "inspect", "--client", "metadata:user", "--column", "match", *asked]) == 0
    )
    printed = capsys.readouterr().out
    assert "8 clients with 4 examples each" in printed
    assert "the mean risk over unseen clients" in printed
    assert "had no part in training" in printed
    asked[2] = "1"  # what is counted in the file counts
    assert main(["certify", str(LM_EVAL), "--from", "lm-eval", "--client", "author", "--column", "acc", *asked]) == 0
    assert "3 clients with 6 examples each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "tool", "client"), [(None, "inspect", "metadata:user"), (LM_EVAL, "lm-eval", "author")]
)
def test_scores_are_not_read_as_losses(log, capsys, path, tool, client):
    column = "match" if path is None else "acc"
    command = ["certify", str(path or log), "--from", tool, "--client", client, "--column", column]
    assert main([*command, "--num-examples", "num_examples"]) == 2
    assert "say --accuracy" in capsys.readouterr().err


@pytest.mark.parametrize("column", [(), ("--column", "macth"), ("--column", "num_examples")])
def test_who_names_no_score_is_told_which_there_are(log, capsys, column):
    asked = ["--accuracy", "--num-examples", "num_examples", *column]
    assert main(["certify", str(log), "--from", "inspect", "--client", "metadata:user", *asked]) == 2
    (problem,) = capsys.readouterr().err.splitlines()
    assert "--column must be one of match, includes, got" in problem


def remove_score(content):
    content["samples"][5]["scores"].pop("match")


@pytest.mark.parametrize(
    ("client", "change", "problem"),
    [
        ("metadata:usr", lambda content: None, "must say its 'usr', got None; it says language, user"),
        ("user", lambda content: None, "must be metadata:KEY"),
        (None, lambda content: None, "needs --client"),
        ("metadata:user", lambda content: content.update(status="error"), "ended with success, got 'error'"),
        ("metadata:user", lambda content: content.update(samples=None), "must have samples with scores"),
        ("metadata:user", lambda content: content["samples"][0].pop("id"), "a sample without 'id'"),
        ("metadata:user", lambda content: content["samples"][0]["scores"]["match"].update(value="x"), "client user-"),
    ],
)
def test_what_is_no_log_or_does_not_say_whose_a_sample_is_gives_no_number(log, capsys, client, change, problem):
    said = [] if client is None else ["--client", client]
    command = ["certify", str(changed(log, change)), "--from", "inspect", *said, "--column", "match", "--accuracy"]
    assert main([*command, "--num-examples", "num_examples"]) == 2
    out, err = capsys.readouterr()
    assert problem in err
    assert out == ""


def test_a_sample_that_one_epoch_left_without_a_score_is_not_the_mean_of_the_others(log):
    sample = json.loads(log.read_text())["samples"][5]
    table = inspect_table(changed(log, remove_score), "metadata:user")
    assert np.isnan(table.frame["match"][table.frame["client"].index(sample["metadata"]["user"])])


def test_two_runs_in_one_folder_are_refused_and_so_is_what_no_harness_wrote(tmp_path):
    (file,) = LM_EVAL.glob("samples_toy_law*")
    shutil.copy(file, tmp_path)
    shutil.copy(file, tmp_path / file.name.replace("2026", "2027"))
    with pytest.raises(TableError, match="2 files of 1 tasks"):
        lm_eval_table(tmp_path, "task")
    with pytest.raises(TableError, match="0 files"):
        lm_eval_table(tmp_path / "nowhere", "task")
    (tmp_path / file.name.replace("2026", "2027")).unlink()
    (tmp_path / file.name).write_text("[]\n")
    with pytest.raises(TableError, match="must be a JSON object"):
        lm_eval_table(tmp_path, "task")


def test_a_document_that_is_scored_twice_is_refused_and_the_last_does_not_win(tmp_path):
    lines = [
        {"doc_id": 0, "doc": {"subject": "x"}, "filter": "none", "metrics": ["acc"], "acc": acc} for acc in (1.0, 0.0)
    ]
    file = tmp_path / "samples_t_2025-01-01T00-00-00.1.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TableError, match="is scored twice"):
        lm_eval_table(file, "subject")


def test_a_compressed_log_needs_inspect_and_says_what_to_do_without(tmp_path, capsys):
    if importlib.util.find_spec("inspect_ai"):
        pytest.skip("inspect is installed")
    (tmp_path / "log.eval").write_bytes(b"PK")
    command = ["certify", str(tmp_path / "log.eval"), "--from", "inspect", "--client", "metadata:user"]
    assert main([*command, "--column", "match", "--accuracy", "--num-examples", "num_examples"]) == 2
    assert "inspect log convert --to json" in capsys.readouterr().err


def test_how_many_examples_there_are_is_counted_and_not_said(log, capsys):
    command = ["certify", str(log), "--from", "inspect", "--client", "metadata:user", "--column", "match", "--accuracy"]
    assert main([*command, "--num-examples", "100"]) == 2
    assert "--num-examples must be num_examples with --from inspect, got 100" in capsys.readouterr().err
