"""Figure of how unequal client risks are: quantiles, Lorenz curve and measures, each with its bounds.

Needs matplotlib, which is loaded on use; `riskband.plots.bands.save_figure` writes the figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from riskband.bands.band import Band
from riskband.certificate import Certificate, weakest_validity
from riskband.checks import FloatArray
from riskband.functionals.dispersion import lorenz_of_distribution
from riskband.functionals.distributions import QuantileLimits, RiskDistribution
from riskband.functionals.functional import interval_of, resolve
from riskband.plots import bands
from riskband.wording import rounded_down, rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PUBLISHED = "#9db8d2"
_LARGEST_SHOWN = 2.0  # most measures lie in [0, 1]; one that does not must not squeeze the others


def dispersion_figure(
    band: Band,
    *,
    measures: Sequence[Certificate] = (),
    lorenz: Certificate | None = None,
    unseen_risks: npt.ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Quantile function, Lorenz curve and measures of dispersion of client risks, with bounds from both sides.

    Parameters
    ----------
    band : Band
        With both sides; its bounds on the quantile function are drawn.
    measures : sequence of Certificate
        From `dispersion_certificate`, of this band or of its answers; one row each, and beside it the plug-in interval
        of the band where that is another one.
    lorenz : Certificate, optional
        From `lorenz_certificate`.
    unseen_risks : array_like, shape (num_unseen,), optional
        True risks of clients that the band never saw (a simulation knows them).
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with `save_figure`.

    Raises
    ------
    ValueError
        If the band has only one side, or a certificate is of another kind, or of another band or other answers.
    """
    limits = QuantileLimits.of_band(band)
    unseen = None if unseen_risks is None else RiskDistribution.of_values(unseen_risks)
    if isinstance(measures, Certificate) or not isinstance(measures, Sequence):
        raise ValueError(f"measures must be a list of certificates, got {type(measures).__name__}; write [certificate]")
    for certificate in measures:
        _check_source("measures", certificate, band, "bound", "dispersion_certificate")
    if lorenz is not None:
        _check_source("lorenz", lorenz, band, "lorenz_certificate")
    num_panels = 1 + (lorenz is not None) + bool(measures)
    figure = bands.blank_figure(5.2 * num_panels, 5.6)
    panels = list(figure.subplots(1, num_panels, squeeze=False)[0])
    _draw_quantiles(panels.pop(0), band, limits, unseen)
    if lorenz is not None:
        _draw_lorenz(panels.pop(0), band, lorenz, unseen)
    if measures:
        _draw_measures(panels.pop(0), band, measures, unseen)
    for axes in figure.axes:
        axes.set_axisbelow(True)
        bands.legend_under(axes, 0.13)
    figure.suptitle(**bands.titled("t", title, band.assumptions))
    return figure


def _check_source(name: str, certificate: object, band: Band, function: str, *others: str) -> None:
    expected = band.provenance()
    found = certificate.recipe if isinstance(certificate, Certificate) else {}
    if found.get("function") not in (function, *others):
        got = found.get("function", type(certificate).__name__)
        raise ValueError(f"{name} must come from {function}, got {got!r:.80}; make it with {function}(band, ...)")
    if found.get("band") is None:  # a bound of its own, from the answers alone
        expected = {"answers": expected["answers"]}
    if any(found.get(part) != stored for part, stored in expected.items()):
        raise ValueError(f"{name} must be of the band that is drawn, got another; make it with {function}(band, ...)")


def _draw_quantiles(axes: Axes, band: Band, limits: QuantileLimits, unseen: RiskDistribution | None) -> None:
    ends = np.append(limits.lower, limits.lower[-1]), np.append(limits.upper, limits.upper[-1])
    _draw_region(axes, limits.edges, ends, weakest_validity(band.assumptions), band.delta, step="post")
    for known, style in _known_distributions(band, unseen):
        axes.step(np.append(0.0, known.levels), np.append(known.risks, known.risks[-1]), where="post", **style)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, _top(limits, band, unseen)), title="Quantiles of the risk")
    axes.set_xlabel("share of clients, best-off first (0 to 1)")
    axes.set_ylabel("largest risk in this share (mean loss, 0 to 1)")


def _draw_region(
    axes: Axes, x: FloatArray, ends: tuple[npt.ArrayLike, npt.ArrayLike], validity: str, delta: float, step: Any = None
) -> None:
    label = f"{validity}: the curve of unseen clients lies in here,\n{bands.how_sure(validity, delta)}"
    axes.fill_between(x, ends[0], ends[1], step=step, color=bands.BOUNDS, alpha=0.25, lw=0, label=label)
    for end in ends:
        axes.plot(x, end, drawstyle="steps-post" if step else "default", color=bands.BOUNDS, lw=1.2)


def _draw_lorenz(axes: Axes, band: Band, lorenz: Certificate, unseen: RiskDistribution | None) -> None:
    shares = lorenz.axes["share"]
    assert lorenz.lower is not None
    _draw_region(axes, shares, (lorenz.lower, lorenz.value), lorenz.validity, lorenz.delta)
    for known, style in _known_distributions(band, unseen):
        axes.plot(shares, lorenz_of_distribution(known, shares), **style)
    axes.plot([0.0, 1.0], [0.0, 1.0], color="#999999", lw=0.9, label="if all clients had the same risk")
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), title="Lorenz curve of the risk")
    axes.set_xlabel("share of clients, best-off first (0 to 1)")
    axes.set_ylabel("their part of all risk (0 to 1)")


def _draw_measures(axes: Axes, band: Band, measures: Sequence[Certificate], unseen: RiskDistribution | None) -> None:
    largest = max(float(certificate.value) for certificate in measures)
    right = 1.0 if largest <= 1.0 else min(float(np.ceil((largest + 0.02) * 10) / 10), _LARGEST_SHOWN)
    kinds = dict.fromkeys((each.validity, each.delta, each.recipe["band"] is None) for each in measures)
    is_published_wider = False
    for row, certificate in enumerate(measures):
        name = certificate.name
        lower, upper = float(certificate.lower or 0.0), float(certificate.value)
        is_of_risks = not resolve(name).counts_examples  # a band says nothing else
        published = np.array(
            interval_of(band, name, method="plugin") if is_of_risks else [lower, upper], dtype=np.float64
        )
        if not np.allclose(published, [lower, upper]):
            is_published_wider = True
            _draw_interval(axes, row + 0.15, published[0], published[1], right, color=_PUBLISHED, lw=3.0)
        _draw_interval(axes, row, lower, upper, right, color=bands.BOUNDS, lw=7.0)
        if unseen is not None and is_of_risks:
            _draw_point(axes, row, resolve(name).value(unseen), right, bands.UNSEEN_POINT)
        _draw_point(axes, row, float(certificate.details["measured"]), right, bands.MEASURED_POINT)
        axes.annotate(_row_label(name, lower, upper), (0.0, row - 0.22), (3, 0), textcoords="offset points", fontsize=9)
    for validity, delta, is_own in kinds:
        by_itself = ", each by itself" if is_own and len(measures) > 1 else ""
        label = f"{validity}: the value for unseen clients lies in here,\n{bands.how_sure(validity, delta)}{by_itself}"
        axes.plot([], [], color=bands.BOUNDS, lw=7.0, label=label)
    if is_published_wider:
        axes.plot([], [], color=_PUBLISHED, lw=3.0, label="the same by the published plug-in formula")
    axes.plot([], [], label=bands.measured_label(band), **bands.MEASURED_POINT)
    if unseen is not None:
        axes.plot([], [], label=bands.truth_label(unseen.risks.size), **bands.UNSEEN_POINT)
    axes.set(xlim=(0.0, right), ylim=(len(measures) - 0.4, -0.6), yticks=[], title="How unequal the risks are")
    axes.set_xlabel("value (no unit; ranges: in units of the loss)")


def _draw_interval(axes: Axes, row: float, lower: float, upper: float, right: float, *, color: str, lw: float) -> None:
    axes.plot([min(lower, right), min(upper, right)], [row, row], color=color, lw=lw, solid_capstyle="butt")
    if upper > right:  # it goes on beyond the axis
        axes.plot([right], [row], ">", color=color, ms=lw + 3.0, clip_on=False)


def _draw_point(axes: Axes, row: float, value: float, right: float, style: Mapping[str, Any]) -> None:
    if value <= right:
        axes.plot([value], [row], **style)


def _row_label(name: str, lower: float, upper: float) -> str:
    quantity = resolve(name).quantity.removeprefix("the ")
    return f"{quantity[0].upper()}{quantity[1:]}: {rounded_down(lower, 3)} to {rounded_up(upper, 3)}"


def _known_distributions(band: Band, unseen: RiskDistribution | None) -> list[tuple[RiskDistribution, dict[str, Any]]]:
    """Known distributions of risks and how their curves are drawn."""
    drawn = {"color": bands.ANSWERS, "lw": 1.4, "ls": ":", "label": bands.measured_label(band)}
    distributions = [(RiskDistribution.of_values(band.risks.shown_values), drawn)]
    if unseen is not None:
        label = bands.truth_label(unseen.risks.size)
        distributions.append((unseen, {"color": bands.UNSEEN, "lw": 2.0, "label": label}))
    return distributions


def _top(limits: QuantileLimits, band: Band, unseen: RiskDistribution | None) -> float:
    """Show what happens, not an empty half of the axis: at the last level the upper bound is always 1."""
    seen = [float(band.risks.shown_values.max()), float(np.max(limits.upper[limits.upper < 1.0], initial=0.0))]
    return bands.end_of_axis(*seen, 0.0 if unseen is None else float(unseen.risks[-1]))
