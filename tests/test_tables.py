"""Tables as people have them, at the real command: each is read as the plain CSV file of the same rows, or refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import riskband as rb
from riskband.cli import main

NUM = 40
LOSSES = np.random.default_rng(0).binomial(200, 0.1, NUM) / 200
FRAME = pd.DataFrame(
    {"hospital": [f"H{k}" for k in range(NUM)], "loss": LOSSES, "n": 200, "ward": [None, "x", "y", "x"] * 10}
)
CSV = FRAME.to_csv(index=False)
FLAGS = ("--num-examples", "n", "--client", "hospital", "--group", "ward")
EXPECTED = rb.ClientRisks.from_frame(FRAME, loss="loss", num_examples="n", client="hospital", group="ward")
IN_ORDER = EXPECTED.in_order_of_names()  # in which certificates hold them


def excel():
    pytest.importorskip("openpyxl")
    file = io.BytesIO()
    FRAME.to_excel(file, index=False)
    return file.getvalue()


def parquet():
    pytest.importorskip("pyarrow")
    return FRAME.to_parquet(index=False)


READ = {
    "UTF-8 with its mark": lambda: CSV.encode("utf-8-sig"),
    "UTF-16": lambda: CSV.encode("utf-16"),
    "UTF-16, big-endian": lambda: b"\xfe\xff" + CSV.encode("utf-16-be"),
    "semicolons": lambda: CSV.replace(",", ";").encode(),
    "semicolons and decimal commas": lambda: FRAME.to_csv(index=False, sep=";", decimal=",").encode(),
    "tabs": lambda: CSV.replace(",", "\t").encode(),
    "sep=;": lambda: b"sep=;\r\n" + CSV.replace(",", ";").encode(),
    "sep=,": lambda: b"sep=,\n" + CSV.encode(),
    "UTF-16 of Excel": lambda: ("sep=\t\r\n" + CSV.replace(",", "\t")).encode("utf-16"),
    "gzip": lambda: gzip.compress(CSV.encode()),
    "xlsx": excel,
    "parquet": parquet,
}


def certified(path, capsys, *flags):
    assert main(["certify", str(path), *FLAGS, *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["certificates"]["mean"]


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("name", ["table.csv", "table", "table.gz.backup"])
def test_a_table_is_read_by_its_content_whatever_it_is_called(tmp_path, capsys, kind, name):
    path = tmp_path / name
    path.write_bytes(READ[kind]())
    found = certified(path, capsys)
    assert rb.ClientRisks(**found["recipe"]["answers"]) == IN_ORDER
    assert found["value"] == rb.mean_bound(EXPECTED, delta=found["delta"]).value


REFUSED = {
    "Latin-1": (
        CSV.replace("H7", "H\xf4pital").encode("latin-1"),
        "UTF-8, got Latin-1 or another code in line 9; save",
    ),
    "UTF-16 without its mark": (CSV.encode("utf-16-le"), "got zero bytes, as in UTF-16; save it as CSV UTF-8"),
    "nothing": (b"", "must have a header and a row for each client, got nothing"),
    "blanks": (b"\n \n", "must have a header and a row for each client, got nothing"),
    "old Excel": (b"\xd0\xcf\x11\xe0" + bytes(600), "got a file of old Excel; save it as xlsx or as CSV UTF-8"),
    "cut gzip": (gzip.compress(CSV.encode())[:-40], "must be whole, got "),
    "thousands": (
        b"hospital;loss;n;ward\na;0,1;1.000;x\nb;0,2;2,000;y\n",
        "column 'n' must hold numbers, got line 2: '1.000'; line 3: '2,000'",
    ),
    "percent with three digits": (
        b"hospital;loss;n;ward\na;12,125;10;x\nb;0,25;10;y\n",
        "column 'loss' must hold numbers, got line 2: '12,125'; write a point for a decimal comma",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_read_is_refused_with_what_to_do(tmp_path, capsys, kind):
    content, rule = REFUSED[kind]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    assert main(["certify", str(path), *FLAGS]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert rule in said.err


def test_labels_of_rows_that_parquet_keeps_are_a_column(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    path = tmp_path / "table.parquet"
    path.write_bytes(FRAME.set_index("hospital").to_parquet())
    assert rb.ClientRisks(**certified(path, capsys)["recipe"]["answers"]) == IN_ORDER


def test_sheets_are_read_alone_and_their_rows_are_counted_as_excel_does(tmp_path, capsys):
    pytest.importorskip("openpyxl")
    path = tmp_path / "book.xlsx"
    with pd.ExcelWriter(path) as book:
        FRAME.assign(loss=[*LOSSES.tolist()[:-1], 7.0]).to_excel(book, sheet_name="risks", index=False)
        pd.DataFrame().to_excel(book, sheet_name="empty")
    assert main(["certify", str(path), *FLAGS]) == 2
    assert "got row 41 of sheet 'risks': 7;" in capsys.readouterr().err
    with pd.ExcelWriter(path) as book:
        for name in ("one", "two"):
            FRAME.to_excel(book, sheet_name=name, index=False)
    assert main(["certify", str(path), *FLAGS]) == 2
    assert "must have rows in one sheet, got one, two; keep one" in capsys.readouterr().err


def test_without_its_packages_a_file_of_pandas_says_what_to_install(tmp_path, capsys, monkeypatch):
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1" + bytes(100))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["certify", str(path), *FLAGS]) == 2
    assert "pip install pandas pyarrow, or save the table as CSV" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert main(["certify", str(path), *FLAGS]) == 2
    assert "must be whole, got " in capsys.readouterr().err


def test_a_folder_is_no_table(tmp_path, capsys):
    assert main(["certify", str(tmp_path), *FLAGS]) == 2
    assert "must be a file, got a folder; name the table in it, or say --from fl4health" in capsys.readouterr().err


def test_python_runs_the_command_which_reads_its_input():
    # In a process of its own, as a user has it: `python -m riskband` is nothing that can be imported.
    command = [sys.executable, "-m", "riskband", "certify", "-", *FLAGS, "--json"]
    ended = subprocess.run(command, input=gzip.compress(CSV.encode()), capture_output=True, check=True, env=os.environ)
    found = json.loads(ended.stdout)["certificates"]["mean"]
    assert rb.ClientRisks(**found["recipe"]["answers"]) == IN_ORDER


def test_rows_without_a_loss_are_dropped_and_counted_at_every_door(tmp_path, capsys):
    silent = FRAME.assign(loss=[None if k % 10 == 3 else loss for k, loss in enumerate(LOSSES)])
    path = tmp_path / "table.csv"
    path.write_text(silent.to_csv(index=False))
    assert main(["certify", str(path), *FLAGS]) == 2
    assert "got none in line 5; line 15; line 25; line 35; --drop-missing drops" in capsys.readouterr().err
    found = rb.ClientRisks(**certified(path, capsys, "--drop-missing", "--num-missing", "2")["recipe"]["answers"])
    settings = {"loss": "loss", "num_examples": "n", "client": "hospital", "group": "ward"}
    assert found == rb.ClientRisks.from_frame(silent, **settings, drop_missing=True, num_missing=2).in_order_of_names()
    kept = [k for k in range(NUM) if k % 10 != 3]
    groups = FRAME["ward"].iloc[kept].tolist()
    names = FRAME["hospital"].iloc[kept].tolist()
    assert found == rb.ClientRisks(LOSSES[kept], 200, names=names, groups=groups, num_missing=6).in_order_of_names()


@pytest.mark.parametrize("flags", [["--accuracy"], ["--percent"]])
def test_accuracies_are_those_of_a_frame_and_of_the_losses(tmp_path, capsys, flags):
    scale = 100 if flags == ["--percent"] else 1
    table = FRAME.assign(acc=[f"{scale * (1 - loss):.10g}" for loss in LOSSES]).drop(columns="loss")
    path = tmp_path / "table.csv"
    path.write_text(table.to_csv(index=False))
    found = rb.ClientRisks(**certified(path, capsys, "--column", "acc", *flags)["recipe"]["answers"])
    assert found == IN_ORDER
    numbers = table.assign(acc=table["acc"].astype(float))
    settings = {"num_examples": "n", "client": "hospital", "group": "ward", "percent": scale == 100}
    assert rb.ClientRisks.from_frame(numbers, accuracy="acc", **settings) == EXPECTED
    single = numbers.assign(acc=(scale * (1 - LOSSES)).astype(np.float32))
    assert rb.ClientRisks.from_frame(single, accuracy="acc", **settings).num_clients == NUM


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, "name one column, with losses or with accuracies"),
        ({"loss": "loss", "accuracy": "loss"}, "name one column, with losses or with accuracies"),
        ({"loss": "loss", "percent": True}, "percent=True is for accuracies; divide others by 100"),
        ({"accuracy": "loss", "noise": "laplace:1"}, "noise= needs losses, not accuracies"),
        ({"loss": "loss", "client": "n"}, "beside those of the losses and their numbers, got n;"),
        ({"loss": "loss", "client": "ward", "group": "ward"}, "got ward and ward; name others"),
    ],
)
def test_what_contradicts_itself_is_refused_at_the_frame(settings, rule):
    with pytest.raises(ValueError, match=rule):
        rb.ClientRisks.from_frame(FRAME, num_examples="n", **settings)


def test_ids_that_pandas_made_floats_name_clients_too(tmp_path, capsys):
    ids = pd.Series([*range(1, NUM), None, *range(1, NUM), None])  # a gap makes whole numbers floats
    twice = pd.concat([FRAME[["loss", "n"]]] * 2, ignore_index=True).assign(ward_no=ids)
    with pytest.raises(
        ValueError, match=r"column 'ward_no' must not have a value twice if it names clients, got '1.0'"
    ):
        rb.ClientRisks.from_frame(twice, loss="loss", num_examples="n")
    path = tmp_path / "table.csv"
    path.write_text(twice.to_csv(index=False))
    assert main(["certify", str(path), "--num-examples", "n"]) == 2
    assert "column 'ward_no' must not have a value twice" in capsys.readouterr().err
    counted, far = [3.0, 4.0] * 20, [np.inf, 2.5] * 20
    other = FRAME[["loss", "n"]].assign(is_large=[0.0, 1.0] * 20, brier=np.round(LOSSES, 1), num_wrong=counted, x=far)
    assert rb.ClientRisks.from_frame(other, loss="loss", num_examples="n").num_clients == NUM


def test_names_that_differ_by_capitals_alone_may_be_one_client(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(CSV.replace("H39", "h7"))
    assert main(["certify", str(path), *FLAGS]) == 2
    rule = "must name every client in one way, got 'h7' in line 9 and line 41 (40 rows of 39), by capitals alone two"
    assert rule in capsys.readouterr().err


def test_a_score_in_a_column_called_loss_is_refused_where_the_table_says_it(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(FRAME.assign(metric="ROC AUC").to_csv(index=False))
    assert main(["certify", str(path), *FLAGS]) == 2
    assert "column 'metric': 'ROC AUC' names a score (roc) that is no mean" in capsys.readouterr().err
    path.write_text(FRAME.assign(metric="error rate").to_csv(index=False))
    assert main(["certify", str(path), *FLAGS]) == 0


def test_rows_sorted_by_loss_get_a_hint(tmp_path, capsys):
    path, rule = tmp_path / "table.csv", "the rows come sorted by loss"
    for frame, flags, is_said in (
        (FRAME.sort_values("loss"), (), True),
        (FRAME.sort_values("loss"), ("--client", "hospital"), False),
        (FRAME, (), False),
    ):
        path.write_text(frame.to_csv(index=False))
        assert main(["certify", str(path), "--num-examples", "n", *flags]) == 0
        assert (rule in capsys.readouterr().out) == is_said


def test_groups_of_a_table_are_said_and_stored_and_on_the_page(tmp_path, capsys):
    path, out, page = tmp_path / "table.csv", tmp_path / "certificate.json", tmp_path / "page.html"
    path.write_text(CSV)
    assert main(["certify", str(path), *FLAGS, "--mean", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    stored = json.loads(out.read_text())["certificates"]
    part = stored["worst group"]["delta"]
    assert part == stored["mean"]["delta"] == 0.025  # the groups are one event, the mean another
    bands = rb.group_bands(IN_ORDER, IN_ORDER.groups, delta=part)
    known = rb.group_certificate(bands, "worst_group", "mean")
    assert stored["worst group"]["value"] == known.value
    for name, size in (("x", 20), ("y", 10)):
        assert f"    {name} ({size} clients): " in said
    assert main(["verify", str(out)]) == 0
    assert main(["report", str(out), "-o", str(page)]) == 0
    assert main(["verify", str(page)]) == 0
    text = page.read_text()
    assert all(f"<td>H{k}</td>" in text or f">H{k}<" in text for k in np.argsort(-LOSSES)[:10])
    assert main(["certify", str(path), "--num-examples", "n", "--client", "hospital", "--mean", "--json"]) == 0
    capsys.readouterr()


def test_without_names_clients_are_rows_below_the_header(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    assert main(["certify", str(path), "--num-examples", "n"]) == 0
    assert f"(row {1 + int(np.argmax(LOSSES))});" in capsys.readouterr().out
    assert main(["certify", str(path), *FLAGS]) == 0
    assert f"(H{int(np.argmax(LOSSES))});" in capsys.readouterr().out


@pytest.mark.usefixtures("coarse_plans")
def test_a_pilot_of_accuracies_plans_as_its_losses_do(tmp_path, capsys):
    path, said = tmp_path / "table.csv", []
    path.write_text(FRAME.assign(acc=[f"{100 * (1 - loss):.10g}" for loss in LOSSES]).to_csv(index=False))
    for flags in ((), ("--column", "acc", "--percent")):
        pilot = ("--pilot", str(path), "--pilot-num-examples", "n", "--client", "hospital", *flags)
        assert main(["plan", "mean<=0.2", *pilot, "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_help_is_by_topic(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["certify", "--help"])
    said = capsys.readouterr().out
    topics = [line for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")]
    names = "the table,who answered,what to certify,shifts,verdicts,output,rarely needed"
    assert topics == ["options:", *(f"{name}:" for name in names.split(","))]
    assert all(said.index(f"  {flag} ") > said.index("rarely needed") for flag in ("--tune", "--local", "--noise"))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mean<0.2", "write 'mean<=0.2'"),
        ("quantile:0.9 > 0.1", "write 'quantile:0.9>=0.1'"),
        ("mean=<0.2", "write 'mean<=0.2'"),
    ],
)
def test_a_requirement_with_another_sign_is_told_the_right_one(tmp_path, capsys, text, rule):
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    assert main(["certify", str(path), *FLAGS, "--require", text]) == 2
    assert rule in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "report"])
def test_a_table_is_no_certificate(tmp_path, capsys, command):
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    assert main([command, str(path), *(["-o", str(tmp_path / "page.html")] if command == "report" else [])]) == 2
    assert f"make certificates of a table by: riskband certify {path} --out certificate.json" in capsys.readouterr().err
    assert main(["verify", str(tmp_path)]) == 2
    assert "give the folder of a run" in capsys.readouterr().err


def refused(path, capsys, *flags):
    assert main(["certify", str(path), *flags]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_a_column_twice_is_refused_in_every_kind_of_file(tmp_path, capsys):
    openpyxl, _ = pytest.importorskip("openpyxl"), pytest.importorskip("pyarrow")
    path = tmp_path / "table"
    header, rows = [*FRAME.columns, "loss"], [[*row, 0.0] for row in FRAME.values.tolist()]
    book = openpyxl.Workbook()
    for row in (header, *rows):
        book.active.append(row)
    book.save(path)
    assert "column 'loss' must be there once" in refused(path, capsys, *FLAGS)
    again = pd.read_csv(io.StringIO("\n".join(",".join(map(str, row)) for row in (header, *rows))))
    assert "loss.1" in again  # as pandas calls it
    settings = {"loss": "loss", "num_examples": "n", "client": "hospital"}
    with pytest.raises(ValueError, match=r"column 'loss' must be there once, got 'loss.1', as"):
        rb.ClientRisks.from_frame(again, **settings)
    again.to_parquet(path, index=False)
    assert "got 'loss.1', as" in refused(path, capsys, *FLAGS)


def test_numbers_with_underscores_are_none(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text("loss,n\n0_1,1_0\n0.2,10\n0.3,10\n")
    said = refused(path, capsys, "--num-examples", "n")
    assert "column 'loss' must hold numbers, got line 2: '0_1'" in said
    assert "column 'n' must hold numbers, got line 2: '1_0'" in said
    path.write_text("loss,n\n0.1,10\n0.2,10\n0.3,10\n")
    assert "must have a column '1_0'" in refused(path, capsys, "--num-examples", "1_0")
    assert "mean<=0_3" in refused(path, capsys, "--num-examples", "10", "--require", "mean<=0_3")


@pytest.mark.parametrize(("flag", "kind"), [("--delta", "float"), ("--cvar", "float"), ("--next", "int")])
def test_options_with_underscores_are_no_numbers(capsys, flag, kind):
    with pytest.raises(SystemExit, match="2"):
        main(["certify", "table.csv", "--num-examples", "n", flag, "0_1"])
    assert f"{flag}: invalid {kind} value: '0_1'" in capsys.readouterr().err


def test_excel_keeps_names_and_counts_marks_as_csv_does(tmp_path, capsys):
    pytest.importorskip("openpyxl")
    names = ["NA", "null", *FRAME["hospital"][2:-1], "007"]
    wards = ["None", *FRAME["ward"][1:]]
    losses = ["-", " n/a ", "", *LOSSES[3:].tolist()]
    frame = FRAME.assign(hospital=names, ward=wards, loss=losses)
    found = []
    for path in (tmp_path / "table.csv", tmp_path / "table.xlsx"):
        write = pd.DataFrame.to_csv if path.suffix == ".csv" else pd.DataFrame.to_excel
        write(frame, path, index=False)
        assert "column 'loss' must have a value in every row, got none in" in refused(path, capsys, *FLAGS)
        answers = rb.ClientRisks(**certified(path, capsys, "--drop-missing")["recipe"]["answers"])
        assert answers.num_missing == 3
        found.append(answers)
        write(frame.assign(loss=LOSSES), path, index=False)
        full = rb.ClientRisks(**certified(path, capsys)["recipe"]["answers"])
        assert sorted(full.names) == sorted(names)
        assert "None" in full.groups
    assert found[0] == found[1]


@pytest.mark.parametrize("before", ["\n", "\r\n \r\n", ",,,\n", "\nsep=,\n", "sep=,\n\n"])
def test_blank_lines_before_the_header_are_skipped_and_counted(tmp_path, capsys, before):
    path = tmp_path / "table.csv"
    path.write_text(before + CSV, newline="")
    assert rb.ClientRisks(**certified(path, capsys)["recipe"]["answers"]) == IN_ORDER
    path.write_text(before + "hospital,loss,n,ward\na,x,10,y\n", newline="")
    assert f"line {before.count(chr(10)) + 2}: 'x'" in refused(path, capsys, *FLAGS)


def test_a_first_column_without_a_name_stays(tmp_path, capsys):
    path = tmp_path / "table.tsv"
    path.write_text(FRAME.to_csv(sep="\t"))  # begins with a tab
    assert rb.ClientRisks(**certified(path, capsys)["recipe"]["answers"]) == IN_ORDER


@pytest.mark.parametrize("name", ["accuracy", "val_acc", "Score", "top5Acc", "MODEL/test_accuracy", "sensitivity"])
def test_scores_are_not_read_as_losses(tmp_path, capsys, name):
    path = tmp_path / "table.csv"
    frame = FRAME.rename(columns={"loss": name})
    path.write_text(frame.to_csv(index=False))
    said = refused(path, capsys, *FLAGS, "--column", name, "--binary")
    assert "has the name of a score, where 1 is best" in said
    assert "say --accuracy (in [0, 1]) or --percent of accuracies; if it holds losses, rename it" in said
    assert main(["certify", str(path), *FLAGS, "--column", name, "--accuracy", "--binary"]) == 0
    settings = {"num_examples": "n", "client": "hospital", "binary": True}
    with pytest.raises(ValueError, match=r"name of a score.*say accuracy= .* if it holds losses, rename it"):
        rb.ClientRisks.from_frame(frame, loss=name, **settings)
    assert rb.ClientRisks.from_frame(frame, accuracy=name, **settings).num_clients == NUM


@pytest.mark.parametrize("name", ["loss", "error", "val_err", "ErrorRate", "wrong"])
def test_losses_are_not_read_as_accuracies(tmp_path, capsys, name):
    path = tmp_path / "table.csv"
    frame = FRAME.rename(columns={"loss": name})
    path.write_text(frame.to_csv(index=False))
    for flag in ("--accuracy", "--percent"):
        said = refused(path, capsys, *FLAGS, "--column", name, flag)
        assert "has the name of a loss, where 0 is best" in said
        assert f"drop {flag}, or name the column with the accuracies; if it holds accuracies, rename it" in said
    settings = {"num_examples": "n", "client": "hospital"}
    with pytest.raises(ValueError, match="has the name of a loss"):
        rb.ClientRisks.from_frame(frame, accuracy=name, **settings)
    assert rb.ClientRisks.from_frame(frame, loss=name, **settings).num_clients == NUM


@pytest.mark.parametrize("name", ["brier_score", "accuracy loss", "x", "hospital_value"])
def test_names_that_say_both_or_nothing_are_read_as_was_said(name):
    frame = FRAME.rename(columns={"loss": name})
    for kind in ("loss", "accuracy"):
        assert rb.ClientRisks.from_frame(frame, **{kind: name}, num_examples="n", client="hospital").num_clients == NUM


@pytest.mark.parametrize(
    ("groups", "got"),
    [
        ([f"g{k}" for k in range(NUM)], "got 40 groups, the smallest of 1"),
        (["x"] * NUM, "got 1 groups, the smallest of 40"),
        (["x"] * 39 + ["y"], "got 2 groups, the smallest of 1"),
        ([None] * NUM, "got 0 groups, the smallest of 0"),
    ],
)
def test_groups_without_bounds_are_said(tmp_path, capsys, groups, got):
    path = tmp_path / "table.csv"
    path.write_text(FRAME.assign(ward=groups).to_csv(index=False))
    assert main(["certify", str(path), *FLAGS]) == 0
    rule = "no group is bounded: that needs 2 to 50 groups of 2 or more clients each"
    assert f"{rule}, {got}" in capsys.readouterr().out
    path.write_text(CSV)
    assert main(["certify", str(path), *FLAGS]) == 0
    assert "no group is bounded" not in capsys.readouterr().out
