"""Figures: what is drawn is the certificate, and says what it is."""

import numpy as np
import pytest

import riskband as rb
from riskband.plots.bands import TransportPoint, band_figure, measured_label, save_figure, transport_figure
from riskband.plots.changes import changes_figure
from riskband.plots.dispersion import dispersion_figure
from riskband.plots.selection import selection_figure
from riskband.wording import TRAINERS_ANSWERED


@pytest.fixture
def band():
    rng = np.random.default_rng(0)
    return rb.band(rb.ClientRisks(rng.binomial(50, rng.beta(2, 8, 40)) / 50, 50), delta=0.1)


def texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_worst_case_curves_are_the_certificates(band):
    worst = rb.worst_case_cdf(band, divergence="chi2", budget=[0.1, 0.3], thresholds=np.linspace(0, 1, 21))
    axes = band_figure(band, worst_case=worst).axes[0]
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert len(dashed) == 2
    for line, curve in zip(dashed, worst.value, strict=True):
        np.testing.assert_allclose(line.get_ydata(), 1.0 - curve)
        assert line.get_drawstyle() == "steps-post"  # S(t) <= s bounds F from t on


def test_worst_case_curves_lie_below_the_band(band):
    for thresholds in (None, np.linspace(0, 1, 7)):
        worst = rb.worst_case_cdf(band, divergence="kl", budget=[0.0, 0.1], thresholds=thresholds)
        axes = band_figure(band, worst_case=worst).axes[0]
        dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
        assert len(dashed) == 2
        for line in dashed:
            x = np.linspace(0, 1, 997)
            drawn = np.asarray(line.get_ydata())[np.searchsorted(line.get_xdata(), x, side="right") - 1]
            assert np.all(drawn <= band.lower(x) + 1e-12)


def test_default_thresholds_give_the_whole_curve(band):
    worst = rb.worst_case_cdf(band, divergence="kl", budget=0.0)
    x = np.linspace(0, 1, 997)
    drawn = 1.0 - worst.value[np.searchsorted(worst.axes["threshold"], x, side="right") - 1]
    away_from_jumps = ~np.isin(x, band.lower_points)
    np.testing.assert_allclose(drawn[away_from_jumps][:-1], band.lower(x)[away_from_jumps][:-1], atol=1e-12)


def test_legend_carries_the_label_and_delta(band):
    figure = band_figure(band, worst_case=rb.worst_case_cdf(band, divergence="kl", budget=0.1))
    labels = texts(figure)
    words = "certificate: the share of unseen clients with at most this risk lies in the band,\nwith probability 0.9"
    assert words in labels
    assert any("0.1 in KL divergence" in label for label in labels)


def test_published_curves_are_not_called_certificates(band):
    worst = rb.worst_case_cdf(band, divergence="kl", budget=0.1, method="published")
    labels = texts(band_figure(band, worst_case=worst))
    words = "refuted: at least this share in any network within 0.1 in KL divergence,\nfalse in general"
    assert any(label.startswith(words) for label in labels)


def figures_of(answered_by):
    risks = rb.ClientRisks([0.1, 0.2, 0.3, 0.2] * 5, 10, answered_by=answered_by)
    curves = rb.AdversarialAnswers(
        [0.0, 1.0], [[0.1, 0.2]] * 20, 10, cost="order 1", guarantee="exact", binary=True, answered_by=answered_by
    )
    band, one_sided = (rb.band(risks, delta=0.1, sides=sides) for sides in ("two", "lower"))
    worst = rb.worst_case_cdf(one_sided, divergence="kl", budget=0.1)
    measures = [rb.dispersion_certificate(band, "gini")]
    mean = rb.wasserstein_mean(curves, delta=0.1, cost_budget=[0.5, 1.0])
    selection = rb.select({"one": risks, "two": risks}, objective="mean", delta=0.1)
    return {
        "band": band_figure(band, title="mine"),
        "one-sided": band_figure(one_sided, worst_case=worst, title="mine"),
        "transport": transport_figure(mean, title="mine"),
        "dispersion": dispersion_figure(band, measures=measures, lorenz=rb.lorenz_certificate(band), title="mine"),
        "selection": selection_figure(selection, title="mine"),
    }


def title_and_legends(figure):
    """The title and its colour, and all labels of the legends."""
    title = figure._suptitle or figure.axes[0].title
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    labels = [text.get_text() for legend in legends for text in legend.get_texts()]
    return title.get_text().replace("\n", " "), title.get_color(), labels


@pytest.mark.parametrize(
    "kind",
    [
        "transport",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("band", "one-sided", "dispersion", "selection")),
    ],
)
def test_figures_of_the_answers_of_trainers_say_so_in_red(kind):
    title, color, labels = title_and_legends(figures_of("trainers")[kind])
    assert (title, color) == (f"mine estimate: {TRAINERS_ANSWERED}", "red")
    assert any(label.startswith("estimate: ") for label in labels)
    assert not any("certificate" in label for label in labels)
    title, color, labels = title_and_legends(figures_of("fresh")[kind])
    assert (title, color != "red") == ("mine", True)
    assert any(label.startswith("certificate: ") for label in labels)


def test_unseen_risks_are_laid_over(band):
    unseen = np.array([0.9, 0.2, 0.3])
    axes = band_figure(band, unseen_risks=unseen).axes[0]
    drawn = [line for line in axes.get_lines() if "unseen clients (simulated)" in line.get_label()]
    assert len(drawn) == 1
    np.testing.assert_array_equal(drawn[0].get_xdata()[1:-1], np.sort(unseen))
    assert axes.get_xlim()[1] >= 0.9


@pytest.mark.parametrize("sides", ["lower", "upper"])
def test_one_sided_bands_are_drawn(band, sides):
    one = rb.band(band.risks, delta=0.1, sides=sides)
    figure = band_figure(one)
    amount = {"lower": "at least", "upper": "at most"}[sides]
    words = f"certificate: {amount} this share of unseen clients has at most this risk,\nwith probability 0.9"
    (line,) = [each for each in figure.axes[0].get_lines() if each.get_label() == words]
    x = np.asarray(line.get_xdata())
    np.testing.assert_array_equal(line.get_ydata(), (one.lower if sides == "lower" else one.upper)(x))
    assert not any("bound for the risk" in label for label in texts(figure))


@pytest.mark.parametrize("local", ["marginal", "observed"])
@pytest.mark.parametrize("sides", ["lower", "two"])
def test_the_legend_is_within_the_figure(sides, local):
    band = rb.band(rb.ClientRisks([0.1, 0.2, 0.15, 0.3, 0.05, 0.12], 100), delta=0.05, sides=sides, local=local)
    worst = rb.worst_case_cdf(band, divergence="chi2", budget=[0.123456789, 0.2])
    for figure in (
        band_figure(band, worst_case=rb.worst_case_cdf(band, divergence="kl", budget=[0.1])),
        band_figure(band, worst_case=worst, unseen_risks=[0.1, 0.3], title="a title"),
        band_figure(band),
    ):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        extent, page = legend.get_window_extent(), figure.bbox
        assert page.x0 <= extent.x0 < extent.x1 <= page.x1
        assert page.y0 <= extent.y0 < extent.y1 <= figure.axes[0].get_tightbbox().y0 + 1e-6


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_same_figure_same_bytes(tmp_path, band, ending):
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        save_figure(band_figure(band), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_axes_are_labelled_with_their_units(band):
    axes = band_figure(band, title="a title").axes[0]
    assert "0 to 1" in axes.get_xlabel()
    assert "share of clients" in axes.get_ylabel()
    assert axes.get_title() == "a title"


BUDGETS = [0.0, 1.0, 3.0]


def transport_certificates(guarantee="exact"):
    radii = np.linspace(0.0, 20.0, 40)
    values = np.minimum(0.1 + radii / 10.0, 1.0)
    answers = rb.AdversarialAnswers(
        radii, np.tile(values, (100, 1)), 1000, cost="a cost", guarantee=guarantee, binary=True, unit=4.0
    )
    mean = rb.wasserstein_mean(answers, delta=0.1, cost_budget=BUDGETS)
    return mean, rb.wasserstein_cdf(answers, delta=0.1, cost_budget=BUDGETS, thresholds=[0.5, 0.8])


def lines_of(axes, text):
    return [line for line in axes.get_lines() if text in str(line.get_label())]


def test_transport_curves_are_the_certificates():
    mean, cdf = transport_certificates()
    left, right = transport_figure(mean, cdf=cdf).axes
    (line,) = lines_of(left, "certificate: mean risk at most this, with probability 0.9")
    np.testing.assert_array_equal(line.get_xdata(), BUDGETS)
    np.testing.assert_array_equal(line.get_ydata(), mean.value)
    for index, threshold in enumerate([0.5, 0.8]):
        (line,) = lines_of(right, f"certificate: share with risk ≥ {threshold}")
        np.testing.assert_array_equal(line.get_ydata(), cdf.value[:, index])


def test_known_networks_are_points_at_their_cost_and_the_worst_one_is_a_line():
    mean, cdf = transport_certificates()
    networks = [TransportPoint(cost, np.array([0.1, 0.6, 0.9])) for cost in (0.5, 2.0)]
    worst_shares = np.array([[0.0, 0.0], [0.4, 0.1], [0.9, 0.2]])
    figure = transport_figure(mean, cdf=cdf, networks=networks, worst_mean=[0.1, 0.2, 0.3], worst_shares=worst_shares)
    left, right = figure.axes
    (points,) = lines_of(left, "moved at random")
    np.testing.assert_allclose(points.get_xydata(), [[0.5, 1.6 / 3], [2.0, 1.6 / 3]])
    (worst,) = lines_of(left, "worst network")
    np.testing.assert_array_equal(worst.get_ydata(), [0.1, 0.2, 0.3])
    drawn = [tuple(line.get_ydata()) for line in right.get_lines()]
    assert all(tuple(curve) in drawn for curve in worst_shares.T)
    assert drawn.count((2 / 3,)) == 2
    assert drawn.count((1 / 3,)) == 2


def test_estimates_are_called_estimates_in_the_figure_of_transport():
    mean, cdf = transport_certificates("lower")
    left, right = transport_figure(mean, cdf=cdf).axes
    assert not lines_of(left, "certificate")
    assert not lines_of(right, "certificate")
    assert lines_of(left, "estimate: mean risk")
    assert len(lines_of(right, "estimate: share")) == 2
    drawn = [str(line.get_label()) for axes in (left, right) for line in axes.get_lines()]
    assert all(label.endswith("at most this, not proved") for label in drawn)


def test_what_attacks_reached_is_an_estimate_below_each_certificate_and_the_gap_is_shaded():
    mean, cdf = transport_certificates()
    below = 0.8 * np.asarray(cdf.value)
    left, right = transport_figure(mean, cdf=cdf, reached_mean=[0.1, 0.2, 0.3], reached_shares=below).axes
    (line,) = lines_of(left, "estimate: what attacks reached")
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([BUDGETS, [0.1, 0.2, 0.3]]))
    (gap,) = [each for each in left.collections if each.get_label() == "gap: neither reached nor excluded"]
    corners = {tuple(corner) for corner in gap.get_paths()[0].vertices.tolist()}
    ends = [*zip(BUDGETS, [0.1, 0.2, 0.3], strict=True), *zip(BUDGETS, mean.value.tolist(), strict=True)]
    assert corners == {(float(x), float(y)) for x, y in ends}
    drawn = [tuple(line.get_ydata()) for line in right.get_lines()]
    assert all(tuple(column) in drawn for column in below.T)
    assert len(right.collections) == 2
    for axes in (left, right):
        labels = [str(text.get_text()) for text in axes.get_legend().get_texts()]
        assert [label for label in labels if "attacks" in label] == ["estimate: what attacks reached"]
    assert not lines_of(transport_figure(mean, cdf=cdf).axes[0], "attacks")


def test_costs_are_also_shown_in_units_of_a_wrong_example():
    figure = transport_figure(transport_certificates()[0], unit=4.0)
    (axes,) = figure.axes
    (second,) = axes.child_axes
    figure.draw_without_rendering()
    np.testing.assert_allclose(np.array(axes.get_xlim()) / 4.0, second.get_xlim())


def test_a_legend_says_what_lies_between_the_dots_and_what_clients_measured():
    plain = rb.band(rb.ClientRisks([0.1, 0.2, 0.3], 10), delta=0.1)
    noisy = rb.band(rb.ClientRisks([0.1, 0.2, 0.3], 10, binary=True, noise="laplace:1"), delta=0.1)
    counted = rb.band(rb.HistogramRisks([0.0, 0.25, 1.0], [2, 1], 10, binary=True), delta=0.1)
    assert measured_label(plain) == "measured by the 3 clients that answered"
    assert measured_label(noisy).endswith("answered, with noise")
    assert measured_label(counted).endswith("answered, rounded up to bins")


def test_the_next_clients_are_drawn_in_steps_from_the_largest():
    found = rb.next_clients(rb.ClientRisks(np.arange(40) / 100, 100), 20, delta=0.1, divergence="chi2", budget=[0, 0.1])
    axes = found.plot()
    for line, bounds in zip(axes.get_lines(), found.value, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 21))
        np.testing.assert_array_equal(line.get_ydata(), bounds)
        assert line.get_drawstyle() == "steps-mid"
    assert "largest" in axes.get_xlabel()
    assert "at most" in axes.get_ylabel()


@pytest.mark.parametrize("has_risks", [True, False])
def test_clients_go_from_their_old_risk_to_their_new_one(has_risks):
    old, new = np.array([0.1, 0.3, 0.2, 0.5]), np.array([0.2, 0.1, 0.2, 0.45])
    changes = rb.ClientChanges(old, new, 20)
    harmed = rb.bound(changes, "harmed:0.05", delta=0.1)
    figure = changes_figure(
        changes.values, old_risks=old if has_risks else None, certificates=[harmed], title="of old and new"
    )
    (axes,) = figure.axes
    ends = sorted(tuple(line[:, 1]) for each in axes.collections for line in each.get_segments())
    expected = zip(old, new, strict=True) if has_risks else zip([0.0] * 4, new - old, strict=True)
    np.testing.assert_allclose(ends, sorted(expected), atol=1e-12)
    places = {line.get_marker(): line.get_xdata().tolist() for line in axes.get_lines()}
    assert places == {"v": [1, 2], "_": [3], "^": [4]}  # who gained most comes first
    assert texts(figure) == ["2 of 4 clients: better", "1 of 4 clients: as before", "1 of 4 clients: worse"]
    assert harmed.statement in axes.get_xlabel().replace("\n", " ")
    assert axes.get_title() == "of old and new"


def test_changes_at_trainers_are_drawn_as_an_estimate():
    changes = rb.ClientChanges([0.1, 0.2], [0.1, 0.3], 10, answered_by="trainers")
    figure = changes_figure(changes.values, certificates=[rb.bound(changes, "change", delta=0.1)])
    assert TRAINERS_ANSWERED in figure.axes[0].get_title().replace("\n", " ")
