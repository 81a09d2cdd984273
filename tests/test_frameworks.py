"""`riskband certify --from`: files as NVFlare and FL4Health write them, against the same numbers in a CSV file."""

from __future__ import annotations

import json

import pytest

import riskband as rb
from riskband.cli import main

ACCURACIES = [75.0, 77.0, 80.5, 66.0, 91.25, 70.0]


def nvflare_file(folder):
    """cross_val_results.json of NVFlare's cross-site evaluation, whose hello-pt example has accuracies in percent."""
    models = ("SRV_FL_global_model.pt", "SRV_best_FL_global_model.pt")
    found = {f"site-{k + 1}": {model: {"accuracy": value} for model in models} for k, value in enumerate(ACCURACIES)}
    path = folder / "cross_val_results.json"
    path.write_text(json.dumps(found))
    return path


def fl4health_folder(folder):
    """Reports of FL4Health's JsonReporter: a file for each client and one for the server."""
    reports = folder / "reports"
    reports.mkdir()
    for k, value in enumerate(ACCURACIES):
        rounds = {
            "1": {"fit_round_losses": {"backward": 0.7}, "eval_round_metrics": {"val - prediction - accuracy": 0.1}},
            "2": {
                "eval_round_loss": 0.5,
                "eval_round_metrics": {"val - prediction - accuracy": value / 100, "val - num_examples": 400},
            },
        }
        (reports / f"client_{k}.json").write_text(json.dumps({"host_type": "client", "rounds": rounds}))
    (reports / "server.json").write_text(json.dumps({"host_type": "server", "rounds": {}}))
    return reports


def certified(capsys, *arguments):
    assert main(["certify", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["certificates"]


@pytest.fixture
def of_csv(tmp_path, capsys):
    """What the command certifies from a table of the same clients, called so."""

    def read(names):
        table = tmp_path / "same.csv"
        rows = [f"{name},{accuracy}" for name, accuracy in zip(names, ACCURACIES, strict=True)]
        table.write_text("\n".join(["site,accuracy", *rows]))
        who = ["--client", "site", "--answered-by", "trainers"]
        return certified(capsys, table, "--column", "accuracy", "--percent", "--num-examples", 400, *who)

    return read


def test_nvflares_results_are_those_of_the_same_table_and_an_estimate(tmp_path, capsys, of_csv):
    column = "SRV_FL_global_model.pt/accuracy"
    path = nvflare_file(tmp_path)
    found = certified(capsys, path, "--from", "nvflare", "--column", column, "--percent", "--num-examples", 400)
    assert found == of_csv([f"site-{number}" for number in range(1, 7)])
    assert {each["validity"] for each in found.values()} == {"estimate"}


def test_fl4healths_last_evaluation_is_read_with_its_number_of_examples(tmp_path, capsys, of_csv):
    asked = ["--column", "val - prediction - accuracy", "--accuracy", "--num-examples", "val - num_examples"]
    assert certified(capsys, fl4health_folder(tmp_path), "--from", "fl4health", *asked) == of_csv(
        [f"client_{number}" for number in range(6)]
    )


def test_a_worst_mean_names_the_sites(tmp_path, capsys):
    asked = [
        "--column",
        "SRV_FL_global_model.pt/accuracy",
        "--percent",
        "--num-examples",
        "400",
        "--answered-by",
        "fresh",
    ]
    path = str(nvflare_file(tmp_path))
    assert main(["certify", path, "--from", "nvflare", *asked, "--divergence", "chi2", "--at-once", "--json"]) == 0
    worst = json.loads(capsys.readouterr().out)["certificates"]["mean@chi2"]
    assert worst["validity"] == "certificate"
    assert sorted(worst["recipe"]["answers"]["names"]) == [f"site-{k + 1}" for k in range(len(ACCURACIES))]


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("[1]", "a", "must be a JSON object"),
        ('{"site-1": 3}', "a", "must be as the framework writes it"),
        ('{"site-1": {"m": {"accuracy": 0.5}}}', "accuracy", "got the columns m/accuracy, client"),
        ('{"a": {"m": {"accuracy": 0.5}}, "b": {}}', "m/accuracy", "got none in client b;"),
        ('{"a": {"m": {"accuracy": null}}, "b": {}}', "m/accuracy", "got none in client a; client b;"),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, text, column, said):
    path = tmp_path / "results.json"
    path.write_text(text)
    flags = ["--from", "nvflare", "--column", column, "--accuracy", "--num-examples", "10"]
    assert main(["certify", str(path), *flags]) == 2
    assert said in capsys.readouterr().err


def evaluated(*rounds, host="client", **found):
    metrics = {"eval_round_metrics": {"acc": 0.91, "n": 100}}
    return {"host_type": host, "rounds": {str(each): metrics for each in rounds} | found}


BEFORE = {  # clients that were not evaluated in round 10, the last one
    "a": evaluated(1, 2),
    "b": evaluated(1, 9, **{"10": {"fit_round_metrics": {"acc": 1.0}}}),
    "c": evaluated(**{"10": {"eval_round_metrics": None}}),
    "d": {"host_type": "client"},
}
FL4HEALTH = ["--from", "fl4health", "--column", "acc", "--accuracy", "--num-examples", "n"]


def reports(folder, clients):
    for name, report in clients.items():
        (folder / f"{name}.json").write_text(json.dumps(report))
    return folder


@pytest.mark.parametrize("missing", [*BEFORE, "abcd"])
@pytest.mark.parametrize("said", [[], ["--num-missing", "2"], ["--num-missing", "1", "--missing", "worst"]])
def test_clients_without_an_evaluation_in_the_last_round_are_missing_by_name(tmp_path, capsys, missing, said):
    present = {f"client_{k}": evaluated(10, 9, 1) for k in range(8)}  # as written, not as they came
    folder = reports(tmp_path, {**present, **{name: BEFORE[name] for name in missing}})
    asked = [folder, *FL4HEALTH, *said, "--json"]
    assert main(["certify", *map(str, asked)]) == 0
    printed = capsys.readouterr()
    which = f"{len(missing)} of {8 + len(missing)} clients were not evaluated in round 10, the last, and are missing"
    assert f"riskband: warning: {which}: {', '.join(missing)}\n" in printed.err
    mean = json.loads(printed.out)["certificates"]["mean"]
    num_missing = len(missing) + int(said[1] if said else 0)
    how = "worst" if "worst" in said else "ignore"
    expected = rb.ClientRisks([0.09] * 8, 100, num_missing=num_missing, missing=how, answered_by="trainers")
    # Of few clients only the mean has a part of delta; ranks of the next one need every answer.
    part = 0.05 if how == "ignore" else 0.05 / 3
    assert mean["value"] == rb.mean_bound(expected, delta=part).value
    assert mean["recipe"]["answers"]["num_missing"] == num_missing
    assert mean["recipe"]["answers"]["values"] == pytest.approx([0.09] * 8)


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        (BEFORE | {"b": {"host_type": "client"}, "a": evaluated()}, "must have a round with eval_round_metrics"),
        ({"x": evaluated(1), "y": evaluated("last")}, "y.json must be numbered, got 'last'"),
        ({"x": evaluated(1), "y": {"rounds": None}}, "y.json must be as the framework writes it"),
        (
            {"x": evaluated(1), "y": evaluated(1), "s": evaluated(host="server"), "t": evaluated(host="server")},
            "must hold the reports of one run, got 2 of servers",
        ),
    ],
)
def test_reports_that_are_about_no_model_are_refused(tmp_path, capsys, clients, said):
    assert main(["certify", str(reports(tmp_path, clients)), *FL4HEALTH]) == 2
    assert said in capsys.readouterr().err


def test_sites_without_examples_are_missing_by_name(tmp_path, capsys, of_csv):
    folder = fl4health_folder(tmp_path)
    found = {"val - prediction - accuracy": None, "val - num_examples": 0}
    report = {"host_type": "client", "rounds": {"2": {"eval_round_metrics": found}}}
    (folder / "client_empty.json").write_text(json.dumps(report))
    asked = ["--column", "val - prediction - accuracy", "--accuracy", "--num-examples", "val - num_examples"]
    assert main(["certify", str(folder), "--from", "fl4health", *asked, "--json"]) == 0
    said = capsys.readouterr()
    assert "1 client has 0 examples and counts as missing: client_empty\n" in said.err
    mean = json.loads(said.out)["certificates"]["mean"]
    of_six = of_csv([f"client_{number}" for number in range(6)])["mean"]
    assert (mean["value"], mean["recipe"]["answers"]["num_missing"]) == (of_six["value"], 1)
