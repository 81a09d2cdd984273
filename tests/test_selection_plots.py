"""The figure of a selection: what is drawn is what is certified, and says what it is."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

import riskband as rb
from riskband.plots.bands import save_figure
from riskband.plots.selection import selection_figure
from riskband.wording import rounded_up

NAMES = ["early", "middle", "late"]
FACTORS = (1.0, 0.6, 0.75)
UNSEEN = {name: factor * np.array([0.1, 0.2, 0.3, 0.4]) for name, factor in zip(NAMES, FACTORS, strict=True)}


@pytest.fixture(scope="module")
def answers():
    rng = np.random.default_rng(0)
    abilities = rng.beta(2, 8, 60)
    return {
        name: rb.ClientRisks(rng.binomial(50, factor * abilities) / 50, 50)
        for name, factor in zip(NAMES, FACTORS, strict=True)
    }


def selected(answers, **settings):
    return rb.select(answers, **{"objective": "mean+0.5*gini", "delta": 0.1, **settings})


@pytest.fixture(scope="module")
def selection(answers):
    return selected(answers)


@pytest.fixture(scope="module")
def sequence(answers):
    """The target lies between the bounds of the second and the third in the sequence."""
    bounds = {each.name: each.bound for each in selected(answers, method="fixed_sequence", target=2.0).candidates}
    order = sorted(bounds, key=bounds.get)
    target = (bounds[order[1]] + bounds[order[2]]) / 2
    return selected(answers, method="fixed_sequence", target=target, order=order)


def bars(figure):
    lines = [each for each in figure.axes[0].get_lines() if each.get_linewidth() == 9.0 and len(each.get_ydata())]
    return {each.get_ydata()[0]: (each.get_xdata().tolist(), to_hex(each.get_color())) for each in lines}


def marks(figure, marker):
    lines = [each for each in figure.axes[0].get_lines() if each.get_marker() == marker and len(each.get_ydata())]
    return [each.get_xdata()[0] for each in lines]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_bar_ends_at_the_certified_bound_and_its_number_stands_beside_it(selection):
    figure = selection_figure(selection)
    for row, candidate in enumerate(selection.candidates):
        assert bars(figure)[row][0] == [0.0, candidate.bound]
        assert figure.axes[0].texts[row].get_text() == rounded_up(candidate.bound, 3)
    assert marks(figure, "|") == [candidate.measured for candidate in selection.candidates]
    assert marks(figure, "o") == marks(figure, "D") == []


def test_only_the_chosen_one_is_dark_and_bold_and_named(selection):
    figure = selection_figure(selection)
    chosen = NAMES.index(selection.best)
    colours = [bars(figure)[row][1] for row in range(3)]
    assert colours.count(colours[chosen]) == 1
    labels = figure.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == NAMES
    assert [label.get_fontweight() for label in labels].index("bold") == chosen
    assert f"chosen: {selection.best}" in legend(figure)


def test_the_objective_of_the_unseen_clients_is_that_of_their_risks(selection):
    figure = selection_figure(selection, unseen_risks=UNSEEN)
    # Risks c, 2c, 3c, 4c have mean 2.5c and Gini coefficient 0.25, whatever c is.
    assert marks(figure, "o") == pytest.approx([0.25 * factor + 0.5 * 0.25 for factor in FACTORS])
    assert "true value for 4 unseen clients (simulated)" in legend(figure)


def test_bars_of_a_sequence_end_at_the_target_and_its_bounds_are_no_certificates(sequence):
    certified = [candidate.is_certified for candidate in sequence.candidates]
    assert certified == [True, True, False]
    figure = selection_figure(sequence)
    assert {row: ends for row, (ends, _) in bars(figure).items()} == {k: [0.0, sequence.target] for k in (0, 1)}
    assert marks(figure, "D") == [candidate.bound for candidate in sequence.candidates]
    assert "bound tested against the target: no certificate" in legend(figure)
    assert f"target {sequence.target:g}" in legend(figure)
    assert "certificate: at most the target, all bars at once with probability 0.9 (delta = 0.1)" in legend(figure)


def test_nothing_is_called_a_certificate_where_nothing_is_certified(answers):
    figure = selection_figure(selected(answers, method="fixed_sequence", target=1e-3))
    assert bars(figure) == {}
    assert not any(text.startswith(("certificate", "chosen")) for text in legend(figure))


def test_axes_and_title_say_what_is_shown(selection):
    figure = selection_figure(selection, title="a title")
    assert figure.get_suptitle() == "a title"
    assert figure.axes[0].get_xlabel() == "mean+0.5*gini of the risks (risk: mean loss, 0 to 1); smaller is better"
    words = "at most this for unseen clients, all bars at once with probability 0.9 (delta = 0.1)"
    assert f"certificate: {words}" in legend(figure)
    assert not any("simulated" in text for text in legend(figure))


@pytest.mark.parametrize(
    ("risks", "text"),
    [
        ({"early": [0.1]}, "every candidate, got none for middle, late"),
        (UNSEEN | {"late": [0.1, 1.5]}, "other values for 'late'"),
        (UNSEEN | {"late": [np.nan]}, "other values for 'late'"),
        (UNSEEN | {"late": []}, "other values for 'late'"),
    ],
)
def test_wrong_risks_are_refused(selection, risks, text):
    with pytest.raises(ValueError, match=text):
        selection_figure(selection, unseen_risks=risks)


@pytest.mark.parametrize("num_candidates", [1, 3, 40])
def test_no_text_touches_another_or_leaves_the_frame(answers, num_candidates):
    many = {f"epochs-10,abstain:0.{k:02d}": risks for k, risks in enumerate([answers["late"]] * num_candidates)}
    figure = selection_figure(selected(many, objective="mean"), unseen_risks=dict.fromkeys(many, (0.1, 0.2)), title="T")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    axes = figure.axes[0]
    texts = [*axes.get_yticklabels(), *axes.texts, axes.xaxis.label, *figure.legends[0].get_texts()]
    boxes = [text.get_window_extent(renderer) for text in texts]
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(box.x1 <= axes.bbox.x1 for box in boxes[num_candidates : 2 * num_candidates])


def test_of_very_many_candidates_the_best_are_shown_and_the_title_says_so(answers):
    rng = np.random.default_rng(1)
    many = {f"c{k}": rb.ClientRisks(rng.binomial(50, 0.1 + 0.001 * k, 30) / 50, 50) for k in range(100)}
    selection = selected(many, objective="mean")
    figure = selection_figure(selection, title="T")
    assert figure.get_suptitle() == "T\n60 of 100 candidates: those with the smallest bounds"
    drawn = sorted(ends[1] for ends, _ in bars(figure).values())
    assert drawn == sorted(candidate.bound for candidate in selection.candidates)[:60]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_same_figure_same_bytes(tmp_path, selection, ending):
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        save_figure(selection_figure(selection, unseen_risks=UNSEEN), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
