"""The figure of dispersion: what is drawn is the certificate, and says what it is."""

import dataclasses

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import riskband as rb
from riskband.plots.bands import save_figure
from riskband.plots.dispersion import dispersion_figure
from riskband.wording import rounded_down, rounded_up

NAMES = ["gini", "atkinson:0.5", "coefficient_of_variation", "quantile_range:0.25:0.75"]
UNSEEN = np.array([0.9, 0.2, 0.3, 0.0])


@pytest.fixture(scope="module")
def band():
    rng = np.random.default_rng(0)
    return rb.band(rb.ClientRisks(rng.binomial(50, rng.beta(2, 8, 40)) / 50, 50), delta=0.1)


@pytest.fixture(scope="module")
def certificates(band):
    return [rb.dispersion_certificate(band, name) for name in NAMES]


@pytest.fixture(scope="module")
def figure(band, certificates):
    lorenz = rb.lorenz_certificate(band, shares=21)
    return dispersion_figure(band, measures=certificates, lorenz=lorenz, unseen_risks=UNSEEN, title="a title")


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def line(axes, text):
    (found,) = [each for each in axes.get_lines() if text in str(each.get_label())]
    return found


def test_the_quantiles_drawn_are_those_of_the_band(band, figure):
    axes = figure.axes[0]
    drawn = [each for each in axes.get_lines() if each.get_drawstyle() == "steps-post"][:2]
    inside = (np.arange(200) + 0.513) / 200  # between the levels at which a band jumps
    for each, expected in zip(drawn, (band.quantile_lower(inside), band.quantile_upper(inside)), strict=True):
        step = np.searchsorted(each.get_xdata(), inside, side="right") - 1
        np.testing.assert_array_equal(np.asarray(each.get_ydata())[step], expected)
    measured = line(axes, "measured by the 40 clients")
    step = np.searchsorted(measured.get_xdata(), inside, side="right") - 1
    np.testing.assert_array_equal(
        np.asarray(measured.get_ydata())[step], np.quantile(band.risks.values, inside, method="inverted_cdf")
    )


def test_the_lorenz_curve_drawn_is_the_certificate_and_the_unseen_one_is_laid_over(band, figure):
    certificate, axes = rb.lorenz_certificate(band, shares=21), figure.axes[1]
    drawn = [tuple(each.get_ydata()) for each in axes.get_lines()]
    assert tuple(certificate.lower) in drawn
    assert tuple(certificate.value) in drawn
    expected = np.append(0.0, np.cumsum(np.sort(UNSEEN))) / UNSEEN.sum()
    found = line(axes, "4 unseen clients (simulated)")
    np.testing.assert_allclose(found.get_ydata()[[0, 5, 10, 15, 20]], expected, atol=1e-12)
    assert "if all clients had the same risk" in labels(axes)


def test_each_measure_is_a_bar_with_its_numbers_and_the_published_one_is_never_shorter(band, certificates, figure):
    axes = figure.axes[2]
    right = axes.get_xlim()[1]
    bars = {
        each.get_ydata()[0]: each for each in axes.get_lines() if each.get_linewidth() == 7.0 and each.get_ydata().size
    }
    texts = [text.get_text() for text in axes.texts]
    for row, certificate in enumerate(certificates):
        np.testing.assert_allclose(bars[row].get_xdata(), np.minimum([certificate.lower, certificate.value], right))
        assert f"{rounded_down(certificate.lower, 3)} to {rounded_up(certificate.value, 3)}" in texts[row]
    thin = [each for each in axes.get_lines() if each.get_linewidth() == 3.0 and each.get_xdata().size]
    assert len(thin) == 3  # the sharp and the published interval of a quantile range agree
    for each in thin:
        low, high = bars[round(each.get_ydata()[0])].get_xdata()
        assert each.get_xdata()[0] <= low + 1e-12
        assert high <= each.get_xdata()[1] + 1e-12


def test_a_measure_beyond_the_axis_has_an_arrow_and_does_not_squeeze_the_others(band, certificates):
    wide = dataclasses.replace(certificates[2], value=50.0)
    axes = dispersion_figure(band, measures=[certificates[0], wide]).axes[1]
    assert axes.get_xlim() == (0.0, 2.0)
    arrows = [each for each in axes.get_lines() if each.get_marker() == ">"]
    assert 1 in {each.get_ydata()[0] for each in arrows}
    assert "to 50.000" in axes.texts[1].get_text()


@pytest.mark.parametrize("validity", ["certificate", "estimate", "refuted"])
def test_the_legends_say_how_valid_and_how_sure(band, certificates, validity):
    changed = [dataclasses.replace(each, validity=validity) for each in certificates]
    lorenz = dataclasses.replace(rb.lorenz_certificate(band, shares=5), validity=validity)
    quantiles, curve, measures = dispersion_figure(band, measures=changed, lorenz=lorenz).axes
    sure = {
        "certificate": "with probability 0.9",
        "estimate": "not proved",
        "refuted": "false in general (a counterexample is known)",
    }[validity]
    assert "certificate: the curve of unseen clients lies in here,\nwith probability 0.9" in labels(quantiles)
    assert f"{validity}: the curve of unseen clients lies in here,\n{sure}" in labels(curve)
    assert f"{validity}: the value for unseen clients lies in here,\n{sure}" in labels(measures)
    assert not any("simulated" in text for axes in (quantiles, curve, measures) for text in labels(axes))


def test_axes_are_labelled_with_their_units(figure):
    assert figure.get_suptitle() == "a title"
    for axes in figure.axes[:2]:
        assert "0 to 1" in axes.get_xlabel()
        assert "0 to 1" in axes.get_ylabel()
    assert "no unit" in figure.axes[2].get_xlabel()


def test_there_are_as_many_panels_as_things_to_show(band, certificates):
    assert len(dispersion_figure(band).axes) == 1
    assert len(dispersion_figure(band, measures=certificates[:1]).axes) == 2
    one = rb.band(band.risks, delta=0.1, sides="lower")
    with pytest.raises(ValueError, match="no upper side"):
        dispersion_figure(one)


def test_nothing_overlaps(figure):
    """No two texts of a panel touch each other, nor the axis labels the legend."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axes in figure.axes:
        boxes = [text.get_window_extent(renderer) for text in (*axes.texts, axes.xaxis.label, axes.title)]
        boxes.append(axes.get_legend().get_window_extent(renderer))
        assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])
    frame = figure.bbox
    assert all(frame.containsx(box.x1) for axes in figure.axes for box in [axes.get_tightbbox(renderer)])


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_same_figure_same_bytes(tmp_path, band, certificates, ending):
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        save_figure(dispersion_figure(band, measures=certificates[:2]), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
