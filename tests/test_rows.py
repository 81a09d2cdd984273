"""A row is a client: tables with rows of rounds, copies or totals stop, in a CSV file as in a data frame."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

import riskband as rb
from riskband.answers.rows import answer_problem
from riskband.cli import main

HOSPITALS = [f"H{k:02}" for k in range(60)]
RNG = np.random.default_rng(0)
LOSSES = RNG.binomial(100, RNG.beta(3, 21, 60)) / 100
ROUNDS = {"loss": np.concatenate([RNG.binomial(100, LOSSES) / 100 for _ in range(3)]), "n": [100] * 180}
ONCE = {"loss": LOSSES, "n": [100] * 60}


def by_command(tmp_path, table, *flags):
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([table, *zip(*table.values(), strict=True)])
    return main(["certify", str(path), "--num-examples", "n", *flags])


def read(table, **settings):
    return rb.ClientRisks.from_frame(table, loss="loss", num_examples="n", **settings)


@pytest.fixture
def refused(tmp_path, capsys):
    """Return what both doors say of a table that they refuse, which is the same but for the words of the door."""

    def ask(table, client=None):
        flags = [] if client is None else ["--client", client]
        capsys.readouterr()
        assert by_command(tmp_path, table, *flags) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (said,) = captured.err.splitlines()
        with pytest.raises(ValueError, match=r".") as error:
            read(pd.DataFrame(table), client=client)
        for row in range(len(table["loss"]), -1, -1):
            said = said.replace(f"line {row + 2}", f"row {row} (from 0)")
        assert said == f"riskband: {error.value}".replace("client=", "--client ")
        return said

    return ask


@pytest.mark.parametrize(
    "column", ["hospital", "site", "Name", "Client ID", "client_id", "NODE", "hospital-name", "Centre"]
)
def test_a_client_of_several_rounds_is_one_client(refused, column):
    said = refused({column: HOSPITALS * 3, **ROUNDS})
    assert f"column {column!r} must name every client once, got 'H00' in row 0" in said
    assert "(180 rows of 60); one row a client is the rule" in said
    assert f"say --client {column!r}" in said
    refused({"epoch": np.repeat([1, 2, 3], 60), "key": range(180), column: HOSPITALS * 3, **ROUNDS})


@pytest.mark.parametrize("column", ["id", "Krankenhaus", "Unnamed: 0", "x"])
@pytest.mark.parametrize("named", [HOSPITALS, list(range(60))])
def test_any_column_of_text_or_whole_numbers_may_be_what_names_a_client(refused, column, named):
    said = refused({column: named * 3, **ROUNDS})
    assert f"column {column!r} must not have a value twice if it names clients" in said
    assert "if every row is another client, say --client COLUMN" in said


@pytest.mark.parametrize("column", ["round", "Round", "server_round", "epoch", "Model", "model_name", "seed", "fold"])
def test_rows_of_several_rounds_or_models_are_about_no_model(refused, tmp_path, column):
    for first in ({}, {"client": range(60)}):
        said = refused({**first, column: np.repeat([1, 2, 3], 20), **ONCE})
        assert f"all rows must be about one model, got '1', '2', '3', … in column {column!r}" in said
        assert by_command(tmp_path, {**first, column: [3] * 60, **ONCE}) == 0
    assert (
        by_command(tmp_path, {"client": range(60), column: np.repeat([1, 2, 3], 20), **ONCE}, "--client", "client") == 0
    )


@pytest.mark.parametrize("times", [2, 10])
def test_copies_of_all_rows_are_noticed_without_any_name(refused, times):
    losses = np.tile(np.arange(101, 142) / 1000, times)
    said = refused({"loss": losses, "n": [1000] * losses.size})
    assert f"got each of 41 pairs of loss and number of examples {times} times" in said


def test_equal_numbers_of_different_clients_are_no_copies(tmp_path):
    counts = RNG.permutation(np.repeat(np.arange(5), 2 * np.arange(1, 6)))  # even, but so few that it may be chance
    assert by_command(tmp_path, {"loss": counts / 10, "n": [10] * counts.size}) == 0
    assert read({"loss": [0.0] * 100, "n": [10] * 100}).num_clients == 100


DESCRIBED = {
    "region": ["north", "south", "west"] * 20,
    "Beds": [100, 200, 300, 400] * 15,
    "teaching": [True, False] * 30,
    "f1": [0.5, 0.75] * 30,
    "round": [7] * 60,
}


@pytest.mark.parametrize("column", ["hospital", "Client ID", "name"])
def test_what_is_said_of_clients_may_repeat_where_one_column_names_them(tmp_path, column):
    assert by_command(tmp_path, {column: HOSPITALS, **DESCRIBED, **ONCE}) == 0
    answers = read(pd.DataFrame({column: HOSPITALS, **DESCRIBED, **ONCE}))
    assert answers == read(ONCE)  # no names are kept that nobody asked for


@pytest.mark.parametrize("column", ["id", "Ward"])
def test_a_column_that_nobody_can_know_to_name_clients_is_said(refused, tmp_path, column):
    table = {column: list(range(1, 61)), **DESCRIBED, **ONCE}
    assert "column 'region' must not have a value twice" in refused(table)
    assert by_command(tmp_path, table, "--client", column) == 0
    answers = read(pd.DataFrame(table), client=column)
    assert answers == rb.ClientRisks(LOSSES, 100, names=list(map(str, range(1, 61))))
    assert read(pd.DataFrame({"region": table["region"], **ONCE}), group="region").groups == tuple(table["region"])


def test_other_counts_and_other_losses_name_nobody(tmp_path):
    more = {"num_wrong": np.rint(100 * LOSSES).astype(int), "patients": [50, 60] * 30, "brier": np.round(LOSSES, 1)}
    assert by_command(tmp_path, {**ONCE, **more}) == 0
    assert read(pd.DataFrame({**ONCE, **more})) == read(ONCE)


def test_names_are_kept_where_the_column_was_said(tmp_path, capsys):
    worst = {}
    for flags in ([], ["--client", "hospital"]):
        asked = ("--divergence", "chi2", "--at-once", "--json", *flags)
        assert by_command(tmp_path, {"hospital": HOSPITALS, **ONCE}, *asked) == 0
        worst[len(flags)] = json.loads(capsys.readouterr().out)["certificates"]["mean@chi2"]
    assert "names" not in worst[0]["recipe"]["answers"]
    answers = worst[2]["recipe"]["answers"]
    assert dict(zip(answers["names"], answers["values"], strict=True)) == dict(zip(HOSPITALS, LOSSES, strict=True))
    assert worst[2]["value"] == pytest.approx(worst[0]["value"], rel=1e-12)


@pytest.mark.parametrize(
    ("client", "names", "rule"),
    [
        ("ward", [*HOSPITALS[:-1], "H00"], "column 'ward' must name every client once, got 'H00' in row 0"),
        ("ward", [*HOSPITALS[:-1], " "], "column 'ward' must name every client, got no name in row 59"),
        ("ward", [*HOSPITALS[:-1], "All"], "every row must be a client, got 'All' in column 'ward' of row 59"),
    ],
)
def test_the_column_of_clients_names_each_once(refused, client, names, rule):
    assert rule in refused({client: names, **ONCE}, client)


def test_a_column_of_clients_is_another_one_of_a_table(tmp_path, capsys):
    for wrong in ("loss", "n"):
        assert by_command(tmp_path, ONCE, "--client", wrong) == 2
        assert f"beside those of the losses and their numbers, got {wrong};" in capsys.readouterr().err
    assert by_command(tmp_path, ONCE, "--client", "ward") == 2
    assert "must have a column 'ward', got the columns loss, n; name one" in capsys.readouterr().err
    assert by_command(tmp_path, ONCE, "--client", "site", "--from", "nvflare") == 2
    assert "--client is for tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word",
    [
        "TOTAL",
        "Total",
        "mean",
        "Average",
        "all",
        "Overall",
        "sum",
        "grand total",
        "Gesamt",
        "server",
        "Mean (SD)",
    ],
)
@pytest.mark.parametrize("column", ["name", "hospital", "Ward"])
def test_a_row_of_totals_is_no_client(refused, word, column):
    table = {column: [*HOSPITALS, word], "loss": [*LOSSES, LOSSES.mean().round(4)], "n": [*ONCE["n"], 6000]}
    assert refused(table).endswith(
        f"every row must be a client, got {word!r} in column {column!r} of row 60 (from 0); leave it out"
    )


@pytest.mark.parametrize("table", [{}, {"site": [*HOSPITALS, ""]}, {"site": [*HOSPITALS, "Razem"]}])
def test_a_row_of_totals_is_noticed_by_its_numbers(refused, table):
    whole = {**table, "loss": [*LOSSES, LOSSES.mean().round(3)], "n": [*ONCE["n"], 6000]}
    first = {name: [values[-1], *values[:-1]] for name, values in whole.items()}
    for rows in (whole, first):
        assert "got as many examples, 6000, in one row as in all others, and their mean loss" in refused(rows)


def test_a_total_that_misses_some_examples_is_noticed():
    values, sizes = np.append(LOSSES, LOSSES.mean()), np.array([*ONCE["n"], 5997])
    assert "got as many examples, 5997, in one row" in answer_problem(values, sizes, flag="client=")
    assert answer_problem(values, np.array([*ONCE["n"], 3000]), flag="client=") == ""


def test_rows_without_any_value_are_no_clients(tmp_path, capsys):
    table = tmp_path / "sheet.csv"
    table.write_text("hospital,loss,n\nA,0.1,20\nB,0.2,20\n,,\n, ,\n")
    assert main(["certify", str(table), "--num-examples", "n"]) == 0
    assert "2 clients with 20 examples each" in capsys.readouterr().out


def test_words_of_totals_that_all_rows_have_are_no_totals(tmp_path):
    assert by_command(tmp_path, {"subset": ["all"] * 60, **ONCE}) == 0
    assert by_command(tmp_path, {"hospital": HOSPITALS, "subset": ["all", "male"] * 30, **ONCE}) == 0
    assert by_command(tmp_path, {"hospital": ["Allgemeines", "Summa", *HOSPITALS[2:]], **ONCE}) == 0


def test_labels_of_the_rows_of_pandas_are_a_column_too():
    frame = pd.DataFrame({"hospital": HOSPITALS * 3, "round": np.repeat([1, 2, 3], 60), **ROUNDS})
    for keys in ("hospital", ["hospital", "round"]):
        with pytest.raises(ValueError, match="column 'hospital' must name every client once"):
            read(frame.set_index(keys))
    with pytest.raises(ValueError, match="column 'index' must not have a value twice"):
        read(pd.concat([pd.DataFrame(ONCE)] * 3))
    summed = pd.DataFrame(ONCE, index=HOSPITALS)
    assert read(summed) == read(ONCE)
    summed.loc["Total"] = [LOSSES.mean(), 6000]
    with pytest.raises(ValueError, match="got 'Total' in column 'index' of row 60"):
        read(summed)


def test_frames_of_other_kinds_are_looked_at_in_the_same_way():
    pa, columns = pytest.importorskip("pyarrow"), {"Site": HOSPITALS * 3, **ROUNDS}
    rows = np.array(list(zip(*columns.values(), strict=True)), [("Site", "S9"), ("loss", "f8"), ("n", "i4")])
    for frame in (pa.table(columns), rows, columns, pd.DataFrame(columns).astype({"Site": "category"})):
        with pytest.raises(
            ValueError, match=r"column 'Site' must name every client once, got 'H00' in row 0 .* row 60"
        ):
            read(frame)


def test_polars_are_looked_at_in_the_same_way():
    polars = pytest.importorskip("polars")
    with pytest.raises(ValueError, match="column 'Site' must name every client once"):
        read(polars.DataFrame({"Site": HOSPITALS * 3, **ROUNDS}))


@pytest.mark.usefixtures("coarse_plans")
def test_a_pilot_is_read_in_the_same_way(tmp_path, capsys):
    by_command(tmp_path, {"Ward": HOSPITALS, **DESCRIBED, **ONCE})
    pilot = ["plan", "mean<=0.3", "--pilot", str(tmp_path / "table.csv"), "--pilot-num-examples", "n"]
    capsys.readouterr()
    assert main(pilot) == 2
    assert "say --client COLUMN" in capsys.readouterr().err
    assert main([*pilot, "--client", "Ward"]) == 0
