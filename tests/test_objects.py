"""Answers, bands and certificates as objects: how they are shown, compared, drawn and put into tables."""

import re

import numpy as np
import pandas as pd
import pytest

import riskband as rb
from riskband.plots.bands import band_figure
from riskband.wording import TRAINERS_ANSWERED

RNG = np.random.default_rng(0)
LOSSES = RNG.binomial(100, RNG.beta(3, 21, size=300)) / 100


NO_CLIENTS = ("GroupBands", "Gate", "Verdict", "Selection")  # in their line


def risks(**who):
    return rb.ClientRisks(LOSSES, 100, **who)


def curves():
    values = np.tile(np.minimum(0.1 + np.linspace(0.0, 20.0, 40) / 10.0, 1.0), (300, 1))
    return rb.AdversarialAnswers(
        np.linspace(0.0, 20.0, 40), values, 1000, cost="a cost", guarantee="exact", binary=True
    )


def objects():
    """One of every kind, made anew in each call."""
    answers = risks()
    band = rb.band(answers, delta=0.05)
    return {
        "ClientRisks": answers,
        "AdversarialAnswers": curves(),
        "HistogramRisks": rb.HistogramRisks(np.linspace(0, 1, 11), [30] * 10, 100, binary=True),
        "Band": band,
        "GroupBands": rb.group_bands(answers, ["a"] * 100 + ["b"] * 200, delta=0.1),
        "Certificate": rb.worst_case_cdf(band, divergence="kl", budget=[0.1, 0.2]),
        "Gate": rb.require(answers, ["mean<=0.2", "gini<=0.9"], delta=0.05),
        "Verdict": rb.require(answers, "mean<=0.2", delta=0.05).verdicts[0],
        "Selection": rb.select({"one": answers, "two": risks(num_missing=1)}, objective="mean", delta=0.1),
    }


@pytest.fixture(scope="module")
def made():
    return objects()


def test_every_object_is_one_line_that_says_what_it_is_how_many_and_how_sure(made):
    for kind, thing in made.items():
        line = repr(thing)
        assert line.startswith(f"{kind}("), line
        assert "\n" not in line
        assert len(line) < 400, line
        assert "300 clients" in line or kind in NO_CLIENTS, line
        assert "delta=" in line or not hasattr(thing, "delta"), line
    assert "num_clients={a: 100, b: 200}" in repr(made["GroupBands"])
    assert "method='berk_jones'" in repr(made["Band"])
    assert repr(made["Gate"]) == "Gate(PASS: mean<=0.2 PASS, gini<=0.9 PASS, delta=0.05)"
    assert str(made["Gate"]) == made["Gate"].statement
    assert repr(made["Verdict"]).startswith("Verdict(PASS: mean<=0.2, lower=0.1")


def test_a_line_says_who_answered_and_rounds_no_bound_down():
    assert "answered_by='trainers'" in repr(risks(answered_by="trainers"))
    assert "contamination=3" in repr(risks(contamination=3))
    number = rb.mean_bound(risks(), delta=0.05)
    assert float(re.search(r"at most ([0-9.]+)", repr(number)).group(1)) >= number.value
    estimate = rb.mean_bound(risks(answered_by="trainers"), delta=0.05)
    assert "validity='estimate'" in repr(estimate)


def test_equal_content_is_equal_and_hashes_alike_for_every_kind(made):
    for kind, again in objects().items():
        first = made[kind]
        assert first is not again
        assert first == again, kind
        assert hash(first) == hash(again), kind
        assert first != 1
        assert all(first != other for name, other in made.items() if name != kind)
    assert rb.group_bands(risks(), ["a"] * 101 + ["b"] * 199, delta=0.1) != made["GroupBands"]
    assert rb.select({"one": risks(), "two": risks()}, objective="mean", delta=0.1) != made["Selection"]


def test_answers_have_a_length_and_names_are_content():
    assert len(risks(num_missing=4)) == 300
    assert len(curves()) == 300
    names = [f"client {index}" for index in range(300)]
    assert rb.ClientRisks(LOSSES, 100, names=names) != risks()


def test_a_certificate_is_its_sentence_and_one_number_is_a_float(made):
    number = rb.mean_bound(risks(), delta=0.05)
    assert str(number) == f"{number}" == number.statement
    assert float(number) == number.value
    with pytest.raises(TypeError, match="a curve over budget and threshold; read `value`"):
        float(made["Certificate"])
    with pytest.raises(TypeError, match="got two ends; read `lower` or `value`"):
        float(rb.dispersion_certificate(made["Band"], "gini"))


def test_the_sentence_of_a_band_says_which_sides_hold_and_what_is_no_certificate():
    assert "with probability at least 0.95" in rb.band(risks(), delta=0.05).statement
    assert "nowhere below the band" in rb.band(risks(), delta=0.05, sides="lower").statement
    assert "nowhere above the band" in rb.band(risks(), delta=0.05, sides="upper").statement
    trained = rb.band(risks(answered_by="trainers"), delta=0.05)
    assert trained.statement.startswith("Estimate, not a proved bound: ")


def test_a_page_has_the_sentence_every_assumption_and_a_figure():
    band = rb.band(rb.ClientRisks([0.1, 0.2, 0.3, 0.2] * 5, 10, answered_by="trainers"), delta=0.1)
    page = band._repr_html_()
    assert f"<strong>{band.statement}</strong>" in page
    assert page.count("<li>") == len(band.assumptions)
    assert TRAINERS_ANSWERED in page
    assert page.count("<svg ") == page.count("</svg>") == 1
    assert page == band._repr_html_()  # the same again


def test_a_page_without_matplotlib_has_no_figure_and_escapes_what_others_wrote(monkeypatch):
    monkeypatch.setattr("riskband.wording.shown.find_spec", lambda name: None)
    foreign = rb.Certificate("<b>risk</b>", 0.5, 0.05, "by hand", ("a < b",), {})
    page = foreign._repr_html_()
    assert "&lt;b&gt;risk" in page
    assert "a &lt; b" in page
    assert "<b>" not in page
    assert "<svg" not in page


def test_a_band_is_drawn_as_its_figure_draws_it(made):
    ours, theirs = made["Band"].plot(), band_figure(made["Band"]).axes[0]
    for drawn, expected in zip(ours.get_lines(), theirs.get_lines(), strict=True):
        np.testing.assert_array_equal(drawn.get_xydata(), expected.get_xydata())
    assert ours.get_xlabel() == theirs.get_xlabel()


def drawn_by(certificate, ax=None):
    return [np.asarray(line.get_ydata()) for line in certificate.plot(ax).get_lines()]


def test_what_is_drawn_of_a_certificate_is_its_bound(made):
    band = made["Band"]
    for drawn, curve in zip(drawn_by(made["Certificate"]), made["Certificate"].value, strict=True):
        np.testing.assert_allclose(drawn, 1.0 - curve)  # on the CDF
    worst = rb.worst_case_mean(band, divergence="kl", budget=[0.1, 0.2])
    np.testing.assert_array_equal(drawn_by(worst)[0], worst.value)
    lorenz = rb.lorenz_certificate(band)
    for drawn, side in zip(drawn_by(lorenz), (lorenz.value, lorenz.lower), strict=True):
        np.testing.assert_array_equal(drawn, side)
    transport = rb.wasserstein_mean(curves(), delta=0.1, cost_budget=[0.5, 1.0])
    np.testing.assert_array_equal(drawn_by(transport)[0], transport.value)
    number = rb.dispersion_certificate(band, "gini")
    bar = number.plot().get_lines()[0]
    np.testing.assert_array_equal(bar.get_xdata(), [number.lower, number.value])


def test_a_figure_of_ones_own_is_drawn_into_and_an_estimate_says_so():
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    estimate = rb.mean_bound(risks(answered_by="trainers"), delta=0.05)
    assert estimate.plot(ax) is ax
    assert TRAINERS_ANSWERED in ax.get_title().replace("\n", " ")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["estimate: at most this, not proved"]


def test_bands_of_groups_are_drawn_and_tabled_as_each_band_is(made):
    bands = made["GroupBands"]
    table, lines = bands.to_frame(), bands.plot().get_lines()
    assert list(table.columns) == ["group", "risk", "lower", "upper"]
    assert bands.statement.startswith("with probability at least 0.9 ")
    assert "in every group at once, the CDF" in bands.statement
    assert f"<strong>{bands.statement}</strong>" in bands._repr_html_()
    for number, (name, band) in enumerate(bands.bands.items()):
        rows, between = table[table["group"] == name], np.linspace(0, 1, 397)
        np.testing.assert_array_equal(rows["lower"], band.lower(rows["risk"]))
        pd.testing.assert_frame_equal(rows.drop(columns="group").reset_index(drop=True), band.to_frame())
        last = np.searchsorted(rows["risk"], between, side="right") - 1  # a step holds up to the next
        for side, line in zip(("lower", "upper"), lines[2 * number :], strict=False):
            np.testing.assert_array_equal(rows[side].to_numpy()[last], getattr(band, side)(between))
            np.testing.assert_array_equal(line.get_ydata(), rows[side])
    lower = rb.group_bands(risks(answered_by="trainers"), ["a"] * 100 + ["b"] * 200, delta=0.1, sides="lower")
    assert list(lower.to_frame().columns) == ["group", "risk", "lower"]
    assert lower.statement.startswith("Estimate, not a proved bound: ")
    assert "not proved" in lower.plot().get_title()


def test_a_number_that_nothing_bounds_from_above_is_a_sentence_without_a_figure():
    distance = rb.divergence_lower_bound(
        risks(), rb.ClientRisks(LOSSES[::-1] ** 2, 100, binary=False), divergence="tv", delta=0.1
    )
    with pytest.raises(ValueError, match="nothing bounds this number from above; read `lower`"):
        distance.plot()
    assert "at least 0." in distance._repr_html_()
    assert "<svg" not in distance._repr_html_()
    assert distance.to_frame()["lower"].tolist() == [distance.lower]
    with pytest.raises(TypeError, match="two ends"):
        float(distance)


def test_more_than_two_axes_are_no_figure_but_a_table():
    axes = {"budget": np.arange(2.0), "level": np.arange(3.0), "threshold": np.arange(4.0)}
    value = np.arange(24.0).reshape(2, 3, 4)
    many = rb.Certificate("a number", value, 0.05, "by hand", (), {}, axes=axes)
    with pytest.raises(ValueError, match="one or two axes, got budget and level and threshold; take to_frame"):
        many.plot()
    assert "<svg" not in many._repr_html_()
    table = many.to_frame().set_index(["budget", "level", "threshold"])["value"]
    assert all(table[place] == value[tuple(map(int, place))] for place in table.index)


def test_the_table_of_a_certificate_says_what_it_is_in_every_row(made):
    number = rb.dispersion_certificate(made["Band"], "gini")
    table = number.to_frame()
    assert table.to_dict("records") == [
        {
            "lower": number.lower,
            "value": number.value,
            "quantity": number.quantity,
            "delta": 0.05,
            "validity": "certificate",
            "method": number.method,
        }
    ]
    assert pd.concat([table, made["Certificate"].to_frame()])["validity"].eq("certificate").all()


def test_without_pandas_an_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr("riskband.wording.shown.find_spec", lambda name: None)
    for thing in (risks(), rb.mean_bound(risks(), delta=0.05)):
        with pytest.raises(ImportError, match="pip install pandas"):
            thing.to_frame()
