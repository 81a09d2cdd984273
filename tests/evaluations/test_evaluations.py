"""Samples of evaluations of language models: files that the tools wrote themselves, read against a count by hand."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import riskband as rb
from riskband.answers.doors import TableError, Wanted
from riskband.answers.evaluations import inspect_log, lm_eval_log
from riskband.cli import main

HERE = Path(__file__).parent
LM_EVAL = HERE / "lm_eval"


@pytest.fixture
def log(tmp_path):
    """A log that inspect wrote: `write_inspect.py`."""
    path = tmp_path / "log.json"
    path.write_bytes(gzip.decompress((HERE / "inspect.json.gz").read_bytes()))
    return path


@pytest.fixture
def failed_log(tmp_path):
    """One in which a sample of user-3 raised in one of its four epochs: `write_inspect.py`."""
    path = tmp_path / "errors.json"
    path.write_bytes(gzip.decompress((HERE / "inspect_errors.json.gz").read_bytes()))
    return path


def inspect_table(log, client, column="match"):
    return inspect_log(log, client).table(Wanted("num_examples", accuracy=column))


def lm_eval_table(path, client, column="acc"):
    return lm_eval_log(path, client).table(Wanted("num_examples", accuracy=column))


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
    for column, score in {"acc,strict": 0.0, "acc,loose": 1.0}.items():
        table = lm_eval_table(tmp_path, "author", column)
        assert table.frame["num_examples"].tolist() == [2, 2, 2]
        assert table.frame[column].tolist() == [score] * 3


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


@pytest.mark.parametrize(
    ("name", "problem"),
    [("brier", "has the name of a loss, where 0 is best"), ("f1", "names a score (f1) that is no mean")],
)
def test_the_name_of_a_score_may_contradict_that_it_is_an_accuracy(tmp_path, capsys, name, problem):
    for file in LM_EVAL.iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        named = [line | {"metrics": [name], name: line.pop("acc")} for line in lines]
        (tmp_path / file.name).write_text("\n".join(map(json.dumps, named)))
    command = ["certify", str(tmp_path), "--from", "lm-eval", "--client", "author", "--column", name, "--accuracy"]
    assert main(command) == 2
    assert problem in capsys.readouterr().err


OF_USERS = ("--from", "inspect", "--client", "metadata:user", "--column", "match", "--accuracy")


def certified(*arguments, capsys):
    """What the command writes of these."""
    assert main(["certify", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def expected_of(failed_log, errors):
    """The risk of each user and its number of examples, from the scores that inspect wrote: C and I."""
    scores = defaultdict(dict)
    for sample in json.loads(failed_log.read_text())["samples"]:
        score = sample["scores"].get("match")
        if score is not None or errors == "wrong":
            of_example = scores[sample["metadata"]["user"]].setdefault(sample["id"], [])
            of_example.append(float(score is None or score["value"] == "I"))
    if errors == "missing":
        del scores["user-3"]
    means = {user: [np.mean(each) for each in found.values()] for user, found in sorted(scores.items())}
    return {user: (np.mean(each), len(each)) for user, each in means.items()}


STATED = {
    "wrong": "a sample that raised an error, or has no score, counts as wrong: 1 of them",
    "missing": "a client with a sample that raised an error, or has no score, gave no valid answer: 1 of them",
    "leave-out": "whether a sample raises an error, or has no score, says nothing of its loss: 1 of them are left out",
}


@pytest.mark.parametrize("errors", STATED)
def test_what_an_error_counts_as_is_said_and_stands_in_every_certificate(failed_log, capsys, errors):
    """Four epochs of an example are one loss in [0, 1], and no share of examples."""
    found = certified(failed_log, *OF_USERS, "--errors", errors, "--mean", capsys=capsys)
    expected = expected_of(failed_log, errors)
    mean = found["certificates"]["mean"]
    answers = mean["recipe"]["answers"]
    pairs = zip(answers["values"], answers["num_examples"], strict=True)
    assert dict(zip(answers["names"], map(pytest.approx, pairs), strict=True)) == expected
    assert answers["binary"] is False
    assert STATED[errors] in mean["assumptions"]
    assert not any("missing at random" in line for line in mean["assumptions"])  # an error on long prompts is not
    assert (answers["num_missing"], answers.get("missing")) == ((1, "worst") if errors == "missing" else (0, None))
    assert rb.verify(mean).ok
    told = "the 1 clients that were asked but gave no valid answer are missing at random"
    if errors == "missing":  # a user may say so
        random = certified(failed_log, *OF_USERS, "--errors", errors, "--missing", "ignore", "--mean", capsys=capsys)
        assert told in random["certificates"]["mean"]["assumptions"]


def test_left_out_samples_are_averaged_as_inspect_itself_does(failed_log):
    (reduced,) = [each for each in json.loads(failed_log.read_text())["reductions"] if each["scorer"] == "match"]
    means = {each["sample_id"]: each["value"] for each in reduced["samples"]}
    risks = inspect_log(failed_log, "metadata:user").risks("match", on_error="leave_out")
    for name, risk in zip(risks.names, risks.values, strict=True):
        user = name.removeprefix("user-")
        assert risk == pytest.approx(1.0 - (means[f"{user}-0"] + means[f"{user}-1"]) / 2)


def test_whose_every_sample_failed_is_missing_by_name(failed_log):
    def change(content):
        for sample in content["samples"]:
            if sample["metadata"]["user"] == "user-2":
                sample["scores"] = {}

    log = inspect_log(changed(failed_log, change), "metadata:user")
    with pytest.warns(UserWarning, match="1 client counts as missing, .*: user-2"):
        risks = log.risks("match", on_error="leave_out", num_missing=3)
    assert (risks.num_missing, risks.responses.errors) == (4, "leave_out:9")
    assert risks.names == ("user-0", "user-1", "user-3", "user-4")


def test_a_score_that_is_no_mean_has_its_bad_end_where_a_sample_failed(failed_log, capsys):
    asked = [*OF_USERS[:-1], "--errors", "wrong", "--score", "toughness", "--range", "0", "4"]
    for better, worst in (("--higher-is-better", 0.0), ("--lower-is-better", 4.0)):
        found = certified(failed_log, *asked, better, "--mean", capsys=capsys)
        (value,) = [
            value
            for made in list(found["certificates"].values())[:1]
            for name, value in zip(*(made["recipe"]["answers"][each] for each in ("names", "values")), strict=True)
            if name == "user-3"
        ]
        assert value == pytest.approx(((1 + 1 + 1 + 0) / 4 + (1 + worst + 0 + 1) / 4) / 2)


def test_the_model_task_and_date_of_a_log_are_on_the_page_unless_the_user_says_others(log, tmp_path, capsys):
    found, page = tmp_path / "found.json", tmp_path / "page.html"
    command = ["certify", str(log), *OF_USERS, "--mean", "--out", str(found)]
    assert main([*command, "--about", "author=A. Turing", "task=addition"]) == 0
    date = json.loads(log.read_text())["eval"]["created"]
    about = {"model": "mockllm/model", "task": "addition", "date": date, "author": "A. Turing"}
    assert json.loads(found.read_text())["about"] == about
    assert main(["report", str(found), "--out", str(page)]) == 0
    for line in about.values():
        assert line in page.read_text()


def test_lm_evals_model_is_that_of_the_results_beside_the_samples(tmp_path):
    for file in LM_EVAL.iterdir():
        shutil.copy(file, tmp_path)
    date = "2026-11-26T09-35-55.357034"
    about = {"task": "toy_algebra, toy_history, toy_law", "date": date}
    assert lm_eval_log(tmp_path, "author").about == about
    (tmp_path / f"results_{date}.json").write_text(json.dumps({"model_source": "hf", "model_name": "pythia"}))
    assert lm_eval_log(tmp_path, "author").about == {"model": "pythia", **about}


def harness_logs(folder, change):
    """Samples of another model: the same documents, and scores that are changed."""
    folder.mkdir()
    for file in LM_EVAL.iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        (folder / file.name).write_text("".join(json.dumps(change(line)) + "\n" for line in lines))
    return folder


def test_two_logs_are_compared_sample_by_sample(tmp_path, capsys):
    new = harness_logs(tmp_path / "new", lambda line: line | {"acc": 1.0 if line["doc_id"] % 3 else 0.0})
    asked = ["--from", "lm-eval", "--client", "author", "--column", "acc", "--accuracy", "--delta", "0.2"]
    assert main(["compare", str(LM_EVAL), str(new), *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["certificates"]["mean"]
    worse, better, wrong = (dict.fromkeys(("author-0", "author-1", "author-2"), 0) for _ in range(3))
    for file in LM_EVAL.iterdir():
        lines = [
            [json.loads(line) for line in (folder / file.name).read_text().splitlines()] for folder in (LM_EVAL, new)
        ]
        for before, after in zip(*lines, strict=True):
            author = before["doc"]["author"]
            worse[author] += before["acc"] > after["acc"]
            better[author] += before["acc"] < after["acc"]
            wrong[author] += before["acc"] == 0.0
    counts = [list(each.values()) for each in (worse, better)]
    changes = rb.ClientChanges.from_counts(*counts, 6, old_wrong=list(wrong.values()), names=list(worse))
    assert sum(counts[0]) > 0 < sum(counts[1])
    assert found["recipe"]["answers"] == changes.to_dict()
    assert found["value"] == rb.compare(changes, delta=0.2).certificates["mean"].to_dict()["value"]
    assert main(["compare", str(LM_EVAL), str(new), *asked, "--not-binary", "--json"]) == 0
    rough = json.loads(capsys.readouterr().out)["certificates"]["mean"]["recipe"]["answers"]
    assert "num_worse" not in rough


@pytest.mark.parametrize("errors", ["wrong", "missing", "leave_out"])
def test_what_failed_in_one_log_counts_in_both(failed_log, tmp_path, capsys, errors):
    def change(content):
        content["eval"]["model"] = "tired/other"
        for sample in content["samples"]:
            sample["scores"] = {"match": {"value": "C"}}

    new = changed(Path(shutil.copy(failed_log, tmp_path / "new.json")), change)
    asked = [*OF_USERS, "--errors", errors, "--out", str(tmp_path / "found.json")]
    assert main(["compare", str(failed_log), str(new), *asked]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    answers = found["certificates"]["mean"]["recipe"]["answers"]
    expected = expected_of(failed_log, errors)
    assert answers["names"] == list(expected)
    np.testing.assert_allclose(answers["old"], [risk for risk, _ in expected.values()])
    assert answers["new"] == [0.0] * len(expected)
    assert answers["errors"] == f"{errors}:1"
    assert answers["num_missing"] == (errors == "missing")
    assert found["about"]["model"] == "tired/model, then tired/other"
    assert "1 clients" not in capsys.readouterr().err


def other_target(content):
    content["samples"][0]["target"] = "5"


def one_less(content):
    content["samples"] = [sample for sample in content["samples"] if sample["id"] != "4-1"]


def no_number(content):
    content["samples"][0]["scores"]["match"]["value"] = "great"


def beyond(content):  # two that would average to a valid score
    for epoch, value in enumerate((3.0, -2.0)):
        content["samples"][10 * epoch]["scores"]["match"]["value"] = value


@pytest.mark.parametrize(
    ("change", "more", "problem"),
    [
        (
            None,
            (),
            "none where 1 samples of .*errors.json, of user-3, raised .*--errors wrong, missing .*, or leave-out",
        ),
        (None, ("--errors", "wrong", "--binary"), "--binary needs a score of 0 or 1 for each example, in one epoch"),
        (beyond, ("--errors", "wrong"), "scores must be numbers from 0 to 1, got 3.0 of sample '0-0' of client user-0"),
        (no_number, ("--errors", "wrong"), "scores must be numbers from 0 to 1, got 'great' of sample '0-0'"),
        (None, ("--errors", "wrong", "--num-examples", "7"), "--num-examples must be num_examples with --from inspect"),
    ],
)
def test_scores_that_are_no_losses_give_no_number(failed_log, capsys, change, more, problem):
    log = failed_log if change is None else changed(failed_log, change)
    assert main(["certify", str(log), *OF_USERS, *more]) == 2
    out, err = capsys.readouterr()
    assert re.search(problem, err)
    assert out == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [(other_target, r"only in .*: '0-0' of user-0; evaluate"), (one_less, r"only in .*errors.json: '4-1' of user-4;")],
)
def test_logs_of_other_samples_are_not_compared(failed_log, tmp_path, capsys, change, problem):
    new = changed(Path(shutil.copy(failed_log, tmp_path / "new.json")), change)
    assert main(["compare", str(failed_log), str(new), *OF_USERS, "--errors", "wrong"]) == 2
    assert re.search(f"both logs must be of the same samples, .*{problem}", capsys.readouterr().err)


@pytest.mark.parametrize("command", [("certify", "{}"), ("compare", "{}", "{}")])
def test_errors_are_of_logs_and_a_folder_is_no_log(failed_log, capsys, command):
    asked = ["--client", "site", "--num-examples", "1", "--errors", "wrong"]
    assert main([each.format(failed_log) for each in command] + asked) == 2
    assert "--errors needs --from inspect or lm_eval" in capsys.readouterr().err
    assert main([each.format(failed_log.parent) for each in command] + list(OF_USERS)) == 2
    assert "must be one log, got a folder; name a log in it: errors.json" in capsys.readouterr().err


@pytest.mark.parametrize("column", [(), ("--column", "macth"), ("--column", "num_examples")])
def test_who_names_no_score_is_told_which_there_are(log, capsys, column):
    asked = ["--accuracy", "--num-examples", "num_examples", *column]
    assert main(["certify", str(log), "--from", "inspect", "--client", "metadata:user", *asked]) == 2
    (problem,) = capsys.readouterr().err.splitlines()
    assert "--column must be one of match, includes, got" in problem


@pytest.mark.parametrize(
    ("client", "change", "problem"),
    [
        ("metadata:usr", lambda content: None, "must say its 'usr', got None; it says language, user"),
        ("user", lambda content: None, "must be metadata:KEY"),
        (None, lambda content: None, "needs --client"),
        ("metadata:user", lambda content: content.update(status="error"), "got 'error'; run inspect eval-retry"),
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


def test_a_compressed_log_needs_inspect_and_says_what_to_do_without(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)  # as where it is not installed
    (tmp_path / "log.eval").write_bytes(b"PK")
    command = ["certify", str(tmp_path / "log.eval"), "--from", "inspect", "--client", "metadata:user"]
    assert main([*command, "--column", "match", "--accuracy", "--num-examples", "num_examples"]) == 2
    assert "inspect log convert --to json" in capsys.readouterr().err


def test_how_many_examples_there_are_is_counted_and_not_said(log, capsys):
    command = ["certify", str(log), "--from", "inspect", "--client", "metadata:user", "--column", "match", "--accuracy"]
    assert main([*command, "--num-examples", "100"]) == 2
    assert "--num-examples must be num_examples with --from inspect, got 100" in capsys.readouterr().err
