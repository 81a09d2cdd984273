"""Answers from other people's tables: a row per client, or a row per example."""

import html
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import riskband as rb
from riskband.verification import why_it_says_nothing

TABLE = pd.DataFrame(
    {"hospital": ["A", "B", "C"], "loss": [0.1, 0.25, 0.3], "n": [10, 20, 30], "ward": ["x", None, "y"]}
)
COLUMNS = {"loss": "loss", "num_examples": "n", "client": "hospital"}
EXPECTED = rb.ClientRisks([0.1, 0.25, 0.3], [10, 20, 30], names=["A", "B", "C"])


class Columns:
    """As little of a frame as is needed, and errors of its own as in polars."""

    def __init__(self, columns):
        self.data, self.columns = columns, list(columns)

    def __getitem__(self, name):
        if name not in self.data:
            raise type("ColumnNotFoundError", (Exception,), {})(name)
        return self.data[name]


def kinds():
    plain = TABLE.drop(columns="ward")
    types = {"hospital": "category", "loss": "Float64", "n": "Int64"}
    rows = np.array(list(plain.itertuples(index=False, name=None)), [("hospital", "S9"), ("loss", "f8"), ("n", "i4")])
    return {
        "pandas": plain,
        "pandas with types of its own": plain.astype(types),
        "pyarrow": pa.Table.from_pandas(plain),
        "structured array": rows,
        "mapping": plain.to_dict("list"),
        "something else": Columns({name: plain[name].to_numpy() for name in plain}),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_frame_gives_the_same_answers(kind):
    frame = kinds()[kind]
    assert rb.ClientRisks.from_frame(frame, **COLUMNS) == EXPECTED
    with pytest.raises(ValueError, match=r"must have a column 'Loss', got .*hospital, loss, n; name one of these"):
        rb.ClientRisks.from_frame(frame, loss="Loss", num_examples=10)


def test_columns_in_different_orders_are_refused():
    examples = pd.DataFrame({"ward": ["a", "b", "b", "b", "c", "c"], "wrong": [0, 1, 0, 0, 1, 0]})
    means, sizes = examples.groupby("ward")["wrong"].mean(), examples["ward"].value_counts()  # the largest first
    with pytest.raises(ValueError, match=r"in one order, .* from 'a' and from 'b' on; write num_examples.loc\["):
        rb.ClientRisks(means, sizes)
    answers = rb.ClientRisks(means, sizes.loc[means.index])
    assert answers.num_examples.tolist() == [1, 3, 2]
    assert answers == rb.ClientRisks(means, [1, 3, 2]) == rb.ClientRisks(means, pd.Series([1, 3, 2]))
    with pytest.raises(ValueError, match="clients and losses must be in one order"):
        rb.ClientRisks.from_examples(clients=examples["ward"], losses=examples["wrong"].sort_values())


def test_what_is_no_frame_is_told_what_one_is():
    for wrong, kind in (("risks.csv", "str"), (np.ones((3, 2)), "ndarray")):
        with pytest.raises(ValueError, match=f"got {kind}; give a frame, or a mapping of names to lists"):
            rb.ClientRisks.from_frame(wrong, loss="loss", num_examples="n")


def test_a_frame_of_polars_gives_the_same_answers():
    polars = pytest.importorskip("polars")
    assert rb.ClientRisks.from_frame(polars.DataFrame(kinds()["mapping"]), **COLUMNS) == EXPECTED


def test_a_table_there_and_back_is_the_same():
    answers = rb.ClientRisks.from_frame(TABLE, **COLUMNS, group="ward", num_missing=2)
    assert answers.groups == ("x", None, "y")
    again = rb.ClientRisks.from_frame(
        answers.to_frame(), loss="loss", num_examples="num_examples", client="client", group="group", num_missing=2
    )
    assert again == answers


def test_a_column_of_groups_is_read_as_those_of_a_frame_are():
    answers, column = rb.ClientRisks([0.1, 0.2, 0.3, 0.4, 0.5], 20), pd.Series(["x", "y", None, "x", "y"])
    assert rb.group_bands(answers, column, delta=0.1) == rb.group_bands(answers, ["x", "y", None, "x", "y"], delta=0.1)
    with pytest.raises(ValueError, match="one label per client"):
        rb.group_bands(answers, column[:4], delta=0.1)


@pytest.mark.parametrize(("wrong", "right"), [("names", "client"), ("groups", "group")])
def test_columns_named_as_the_fields_of_answers_are_told_their_keyword(wrong, right):
    with pytest.raises(TypeError, match=f"no keyword '{wrong}'; name the column with {right}="):
        rb.ClientRisks.from_frame(TABLE, loss="loss", num_examples="n", **{wrong: "hospital"})


def test_what_is_said_of_the_answers_goes_through():
    answers = rb.ClientRisks.from_frame(TABLE, loss="loss", num_examples=20, binary=False, answered_by="trainers")
    assert answers == rb.ClientRisks(TABLE["loss"], 20, False, answered_by="trainers")


def test_certificates_hold_names_and_groups_and_are_else_the_same():
    named = rb.ClientRisks.from_frame(TABLE, **COLUMNS, group="ward")
    plain = rb.ClientRisks(TABLE["loss"], TABLE["n"])
    made = [
        lambda risks: rb.mean_bound(risks, delta=0.1),
        lambda risks: rb.survival(rb.band(risks, delta=0.1), thresholds=[0.2, 0.5]),
        lambda risks: rb.worst_case_cdf(rb.band(risks, delta=0.1), divergence="kl", budget=0.1),
        lambda risks: rb.worst_case_mean(rb.band(risks, delta=0.1), divergence="kl", budget=0.1, method="published"),
    ]
    for make in made:
        certificate = json.loads(make(named).to_json())
        assert rb.verify(certificate).ok
        answers = certificate["recipe"]["answers"]
        assert (answers.pop("names"), answers.pop("groups")) == (["A", "B", "C"], ["x", None, "y"])
        assert certificate == json.loads(make(plain).to_json())


def test_names_stay_with_their_answers_where_their_hash_orders_them():
    names = [f"H{k:02}" for k in range(40)]
    answers = rb.ClientRisks(np.arange(40) / 100, 100, names=names, groups=[name[-1] for name in names])
    stored = rb.cvar(answers, 0.9, delta=0.1).recipe["answers"]
    assert stored["names"] != names  # the order of the bets
    for name, group, value in zip(stored["names"], stored["groups"], stored["values"], strict=True):
        assert (value, group) == (int(name[1:]) / 100, name[-1])


@pytest.mark.parametrize("budget", [0.3, [0.3, 0.1]])
def test_the_clients_with_the_largest_losses_carry_the_worst_case_by_name(budget):
    rng = np.random.default_rng(3)
    losses, names = rng.permutation(np.arange(40)) / 40, [f"<H{k}>" for k in range(40)]
    named = rb.ClientRisks(losses, 100_000, False, names=names)
    worst = rb.worst_case_mean(rb.band(named, delta=0.1, local="observed"), divergence="chi2", budget=budget)
    order = [names[k] for k in np.argsort(-losses)]
    assert list(worst.carried_by) == order[: len(worst.carried_by)]
    assert 5 < len(worst.carried_by) < 35
    weights = np.atleast_2d(worst.details["client_weights"])[0]
    assert list(worst.carried_by.values()) == sorted(weights, reverse=True)[: len(worst.carried_by)]
    assert min(worst.carried_by.values()) > 1 / 40 >= max(w for w in weights if w not in worst.carried_by.values())
    assert f"is carried by {len(worst.carried_by)} of 40 clients, most of all {order[0]} (weight 0" in str(worst)
    assert str(worst).startswith(worst.statement)
    assert html.escape(order[0]) in worst._repr_html_()
    assert order[0] in worst.plot().get_title()
    assert rb.verify(rb.Certificate.from_json(worst.to_json())).ok
    stored = json.loads(worst.to_json())
    stored["recipe"]["answers"]["names"][0] = names[1]  # twice
    with pytest.raises(ValueError, match="names must differ"):
        rb.verify(stored)


def test_how_many_clients_would_bound_the_worst_case_is_said_of_clients_with_names_too():
    losses = np.linspace(0.7, 0.95, 4)
    said = set()
    for names in (None, list("abcd")):
        band = rb.band(rb.ClientRisks(losses, 20, names=names), delta=0.05)
        said.add(why_it_says_nothing(rb.worst_case_mean(band, divergence="chi2", budget=5.0)))
    assert len(said) == 1
    assert "clients are too few; with" in said.pop()


def test_without_names_or_without_a_shift_nobody_is_named():
    plain = rb.ClientRisks(TABLE["loss"], TABLE["n"])
    named = rb.ClientRisks.from_frame(TABLE, **COLUMNS)
    for risks, budget in ((plain, 0.1), (named, 0.0)):
        worst = rb.worst_case_mean(rb.band(risks, delta=0.1), divergence="kl", budget=budget)
        assert (worst.carried_by, worst.remark, str(worst)) == ({}, "", worst.statement)


def test_names_and_groups_stay_with_their_clients():
    answers = rb.ClientRisks.from_frame(TABLE, **COLUMNS, group="ward")
    part = answers.of_clients(np.array([2, 0]))
    assert (part.names, part.groups, part.values.tolist()) == (("C", "A"), ("y", "x"), [0.3, 0.1])
    wide = rb.ClientRisks([0.1, 0.2, 0.3, 0.4], 10, groups=["x", "y", "x", "y"])
    assert rb.group_bands(wide, wide.groups, delta=0.1).num_clients == {"x": 2, "y": 2}


@pytest.mark.parametrize(
    ("column", "values", "rule"),
    [
        (
            "loss",
            [0.1, np.nan, 0.2],
            "column 'loss' must have a value in every row, got none in row 1 .*drop_missing=True drops such rows",
        ),
        ("loss", pd.array([0.1, 0.2, None], dtype="Float64"), "got none in row 2 .*counts them as missing"),
        ("loss", [0.1, None, "x"], "got row 2 .*: 'x'.*\n.*got none in row 1"),
        ("loss", [0.1, 0.2, -0.1], r"must lie in \[0, 1\], got row 2 .*: -0.1"),
        (
            "loss",
            [12.0, 3.0, 20.0],
            r"must lie in \[0, 1\], .*: 20; say accuracy= or percent=True of acc.*divide error rates in percent",
        ),
        ("loss", [0.1, np.inf, 0.2], r"must lie in \[0, 1\], got row 1 .*: inf"),
        ("loss", ["0.1", "0.2", "0.3"], "must hold numbers, got row 0 .*: '0.1'"),
        ("loss", [True, False, True], "must hold numbers, got row 0 .*: True"),
        ("n", pd.array([1, None, 2], dtype="Int64"), "column 'n' must have a value in every row"),
        ("n", [10, 0.5, 10], "numbers of examples in column 'n' must be whole numbers from 1 .*: 0.5; count"),
        (
            "hospital",
            ["A", "B", "A"],
            "column 'hospital' must name every client once, got 'A' in row 0 .*from_examples",
        ),
        ("hospital", ["A", None, "B"], "column 'hospital' must name every client, got no name in row 1"),
    ],
)
def test_wrong_tables_are_refused_in_words(column, values, rule):
    with pytest.raises(ValueError, match=rule):
        rb.ClientRisks.from_frame(TABLE.assign(**{column: values}), **COLUMNS)


@pytest.mark.parametrize("of_nothing", [np.nan, None, 0.0, 7.0])
@pytest.mark.parametrize("made", [pd.DataFrame, dict, pa.table])
def test_clients_without_examples_are_missing_by_name(of_nothing, made):
    columns = {"hospital": ["A", "B", "C"], "loss": [0.1, of_nothing, 0.3], "n": [10, 0, 30], "ward": ["x", "x", "y"]}
    with pytest.warns(UserWarning, match="1 client has 0 examples and counts as missing: B$") as found:
        answers = rb.ClientRisks.from_frame(made(columns), **COLUMNS, group="ward", num_missing=2)
    assert answers == rb.ClientRisks([0.1, 0.3], [10, 30], names=["A", "C"], groups=["x", "y"], num_missing=3)
    assert found[0].filename == __file__
    unnamed = {"loss": [0.1, of_nothing, None], "n": [10, 0, 30]}
    with pytest.raises(ValueError, match=r"got none in row 2 \(from 0\)"):
        rb.ClientRisks.from_frame(unnamed, loss="loss", num_examples="n")
    with (
        pytest.warns(UserWarning, match=r"as missing: row 1 \(from 0\)$"),
        pytest.raises(ValueError, match="2 clients"),
    ):
        rb.ClientRisks.from_frame(unnamed, loss="loss", num_examples="n", drop_missing=True)
    with pytest.raises(ValueError, match="one row per client, got columns of 3 and 4"):
        rb.ClientRisks.from_frame({"loss": [0.1, 0.2, 0.3], "n": [10, 20, 30, 0]}, loss="loss", num_examples="n")


def test_masked_values_are_missing():
    hidden = np.ma.masked_array([0.1, 0.7, 0.3], mask=[False, True, False])
    frame = {"loss": hidden, "n": np.array([10, 20, 30])}
    with pytest.raises(ValueError, match="column 'loss' must have a value in every row, got none in row 1"):
        rb.ClientRisks.from_frame(frame, loss="loss", num_examples="n")
    found = rb.ClientRisks.from_frame(frame, loss="loss", num_examples="n", drop_missing=True)
    assert found == rb.ClientRisks([0.1, 0.3], [10, 30], num_missing=1)
    with pytest.raises(ValueError, match="losses must have a value in every row"):
        rb.ClientRisks.from_examples(clients=["a", "a", "b"], losses=hidden)


def test_the_users_frame_stays_as_it_is():
    frame = {"loss": np.array([0.1, 0.7, 0.3]), "n": np.array([10, 0, 30])}
    with pytest.warns(UserWarning, match="0 examples"):
        rb.ClientRisks.from_frame(frame, loss="loss", num_examples="n")
    assert frame["loss"].tolist() == [0.1, 0.7, 0.3]


def test_a_column_that_is_there_twice_is_refused():
    with pytest.raises(ValueError, match="column 'loss' must be there once"):
        rb.ClientRisks.from_frame(pd.concat([TABLE, TABLE], axis=1), **COLUMNS)


def test_examples_are_averaged_as_pandas_does_whatever_their_order():
    rng = np.random.default_rng(1)
    clients, losses = rng.integers(0, 40, 2000), rng.random(2000)
    answers = rb.ClientRisks.from_examples(clients=clients, losses=losses)
    expected = pd.Series(losses).groupby(clients).agg(["mean", "size"])
    np.testing.assert_allclose(answers.values, expected["mean"], rtol=1e-13)
    np.testing.assert_array_equal(answers.num_examples, expected["size"])
    assert answers.names == tuple(map(str, expected.index))
    assert not answers.binary
    order = rng.permutation(2000)
    assert rb.ClientRisks.from_examples(clients=clients[order], losses=losses[order]) == answers


def test_right_answers_are_no_losses():
    clients = ["b", "a", "b", "a", "b"]
    right = [True, False, True, True, False]
    answers = rb.ClientRisks.from_examples(clients=clients, correct=right, num_missing=1)
    assert answers == rb.ClientRisks([1 / 2, 1 / 3], [2, 3], True, names=["a", "b"], num_missing=1)
    for same in (np.array(right, dtype=int), pd.Series(right), pd.array(right, dtype="boolean")):
        assert rb.ClientRisks.from_examples(clients=pd.Series(clients), correct=same, num_missing=1) == answers
    errors = [float(not each) for each in right]
    assert rb.ClientRisks.from_examples(clients=clients, losses=errors, num_missing=1) == answers


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, "either losses or correct, got neither"),
        ({"losses": [0.1] * 4, "correct": [1] * 4}, "either losses or correct, got both"),
        ({"losses": [True, False, True, True]}, "got truth values; say correct="),
        ({"losses": [0.1, 0.2, 0.3, 1.5]}, r"in \[0, 1\] for each example, got 1.5"),  # though every mean is below 1
        ({"losses": [0.1, 0.2, 0.3, -0.5]}, "got -0.5"),
        ({"losses": [0.1, np.nan, 0.3, 0.5]}, "losses must have a value in every row"),
        ({"losses": [0.5, 0.0, 1.0, 0.0], "binary": True}, "binary=True needs losses of 0 or 1"),
        ({"losses": [[0.1], [0.2], [0.3], [0.4]]}, r"got shape \(4, 1\)"),
        ({"correct": [0.5, 1.0, 0.0, 1.0]}, "correct must be True or False"),
        ({"correct": ["yes", 1, 0, 1]}, "correct must be True or False"),
        ({"correct": [True, None, False, True]}, "correct must have a value in every row"),
        ({"correct": [1, 1, 0, 0], "binary": False}, "correct makes the loss binary"),
        ({"correct": [1, 1, 0]}, r"clients must name one for each of the 3 examples, .* got shape \(4,\)"),
        ({"correct": [1, 1, 0, 1], "clients": ["a", None, "b", "b"]}, "clients must have a value in every row"),
        ({"correct": [1, 1, 0, 1], "clients": ["a"] * 4}, "at least 2 clients are needed"),
        ({"correct": [], "clients": []}, "there must be some"),
    ],
)
def test_wrong_examples_are_refused_in_words(given, rule):
    with pytest.raises(ValueError, match=rule):
        rb.ClientRisks.from_examples(**({"clients": ["a", "a", "b", "b"]} | given))


@pytest.mark.parametrize("names", [["a"], "ab", ["a", None], [["a"], ["b"]]])
def test_names_are_one_each(names):
    with pytest.raises(ValueError, match="names must"):
        rb.ClientRisks([0.1, 0.2], 10, names=names)
