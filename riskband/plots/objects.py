"""Figures of one object: what `plot` of a band or a certificate draws, and the picture in a notebook."""

from __future__ import annotations

from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from riskband.bands.band import Band
from riskband.certificate import Certificate
from riskband.plots import bands
from riskband.wording import rounded_down, rounded_up
from riskband.worst_cases.planning import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from riskband.groups.group_bands import GroupBands

_TITLE_WIDTH = 75  # characters
_ROUND_COUNTS = (5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 4_000)  # clients on an axis


def plot(thing: Band | GroupBands | Certificate | Plan, ax: Axes | None = None) -> Axes:
    """Draw a band, those of groups, a certificate or a plan on axes, or on those of a new figure; see `Band.plot`."""
    is_number = isinstance(thing, Certificate) and not thing.axes
    axes = bands.blank_figure(8.0, 2.4 if is_number else 5.0).add_subplot() if ax is None else ax
    if isinstance(thing, Band):
        bands.draw_band(axes, thing)
    elif isinstance(thing, Plan):
        _draw_plan(axes, thing)
    elif isinstance(thing, Certificate):
        _draw_certificate(axes, thing)
    else:
        bands.draw_group_bands(axes, thing)
    if ax is None:
        bands.draw_legend_below(_figure_of(axes))
    else:
        bands.legend_under(axes, 0.22)
    return axes


def inline_svg(thing: Band | GroupBands | Certificate | Plan) -> str:
    """Return the figure as an element of a page."""
    buffer = BytesIO()
    bands.write_figure(_figure_of(plot(thing)), buffer, ending=".svg")
    text = buffer.getvalue().decode("utf-8")
    return text[text.index("<svg") :].replace("<svg ", '<svg role="img" style="max-width: 100%; height: auto" ', 1)


def _figure_of(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def _draw_certificate(axes: Axes, certificate: Certificate) -> None:
    names, function = tuple(certificate.axes), certificate.recipe.get("function")
    if len(names) > 2:
        raise ValueError(
            f"a figure needs a certificate over one or two axes, got {' and '.join(names)}; take to_frame()"
        )
    if function == "worst_case_cdf" and "threshold" in names:
        bands.draw_worst_cases(axes, certificate)
        bands.label_cdf(axes, 1.0)
    elif function == "wasserstein_mean" and names:
        bands.draw_transport_mean(axes, certificate, (), None)
        bands.label_costs(axes, certificate)
    elif function == "wasserstein_cdf" and len(names) == 2:
        bands.draw_transport_shares(axes, certificate, (), None)
        bands.label_costs(axes, certificate)
    elif names:
        _draw_curves(axes, certificate)
    else:
        _draw_number(axes, certificate)
    lines = [fill(text, _TITLE_WIDTH) for text in (certificate.quantity, certificate.remark) if text]
    axes.set_title(**bands.titled("label", "\n".join(lines), certificate.assumptions))


def _draw_plan(axes: Axes, plan: Plan) -> None:
    """Clients over examples where there is a frontier, otherwise power over clients; and what there is."""
    is_frontier = len(plan.options) > 1
    best, across = plan.best, axes.axhline if is_frontier else axes.axvline
    (_draw_frontier if is_frontier else _draw_power)(axes, plan)
    words = f"{'cheapest' if plan.cost else 'fewest'}: {best.who}"
    place = (best.num_examples, best.num_clients) if is_frontier else (best.num_clients, best.power)
    axes.plot(*place, "o", color=bands.WORST[2], ms=11, mec="white", label=words)
    for here in plan.at_hand[:1]:
        across(here.num_clients, color=bands.UNSEEN, ls="--", lw=1.4, label=f"you have {here.num_clients:,}")
    axes.set_title(f"{plan.requirement}, delta = {plan.delta:g}")
    axes.grid(alpha=0.25, lw=0.6)


def _draw_frontier(axes: Axes, plan: Plan) -> None:
    sizes, counts = [each.num_examples or 0 for each in plan.options], [each.num_clients for each in plan.options]
    label = f"estimate: so many clients pass with probability {plan.power:g}"
    axes.plot(sizes, counts, color=bands.BOUNDS, marker="o", lw=1.6, label=label)
    for size, count in zip(sizes, counts, strict=True):
        axes.annotate(f"{count:,}", (size, count), (0, 11), textcoords="offset points", ha="center")
    axes.set(xscale="log", xlabel="examples of each client", ylabel="clients", ylim=(0.0, 1.2 * max(counts)))
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()


def _draw_power(axes: Axes, plan: Plan) -> None:
    tried = [each for each in plan.tried if each.num_examples == plan.best.num_examples]
    counts = [each.num_clients for each in tried]
    label = "estimate: probability of PASS"
    axes.plot(counts, [each.power for each in tried], color=bands.BOUNDS, marker=".", lw=1.6, label=label)
    axes.axhline(plan.power, color=bands.ANSWERS, ls=":", lw=1.0, label=f"wanted: {plan.power:g}")
    axes.set(xscale="log", ylim=(-0.02, 1.05), xlabel="clients", ylabel="probability of PASS")
    shown = [count for count in _ROUND_COUNTS if min(counts) <= count <= max(counts)]
    axes.set_xticks(shown, [f"{count:,}" for count in shown])
    axes.minorticks_off()


def _draw_curves(axes: Axes, certificate: Certificate) -> None:
    """Curves over the last axis, one for each point of the one before."""
    *before, (name, points) = certificate.axes.items()
    uppers = np.reshape(certificate.value, (-1, len(points)))
    lowers = [None] * len(uppers) if certificate.lower is None else np.reshape(certificate.lower, uppers.shape)
    # What falls in steps holds from each threshold to the next, and an upper bound on it too.
    style: dict[str, Any] = {"drawstyle": "steps-post", "lw": 1.6}
    step: Any = "post"
    if name == "k":
        style["drawstyle"] = "steps-mid"  # a step for each of the next clients
    elif name != "threshold":  # certified at the points; the thin line between them only leads the eye
        style, step = {"marker": ".", "lw": 0.7, "ls": ":"}, None
    for index, (lower, upper) in enumerate(zip(lowers, uppers, strict=True)):
        color = bands.WORST[index % len(bands.WORST)] if before else bands.BOUNDS
        at = f"{_spaced(before[0][0])} {before[0][1][index]:g}: " if before else ""
        axes.plot(points, upper, color=color, label=f"{at}{_label(certificate)}", **style)
        if lower is not None:
            axes.fill_between(points, lower, upper, step=step, color=color, alpha=0.25, lw=0)
            axes.plot(points, lower, color=color, **style)
    axes.set(xlabel=_spaced(name), ylabel="bound")
    if name == "k":
        axes.set(
            xlabel="k, from the largest risk of the next clients to the smallest", ylabel="k-th largest risk, at most"
        )
        axes.locator_params(axis="x", integer=True)
        axes.set(xlim=(0.5, len(points) + 0.5), ylim=(0.0, bands.end_of_axis(float(uppers.max()))))


def _draw_number(axes: Axes, certificate: Certificate) -> None:
    """A bar over what is left possible, with the measured value where the certificate has it."""
    if certificate.is_open:
        raise ValueError("a figure needs an upper bound, and nothing bounds this number from above; read `lower`")
    upper = float(certificate.value)
    lower = min(0.0, upper) if certificate.lower is None else float(certificate.lower)
    axes.plot([lower, upper], [0.0, 0.0], color=bands.BOUNDS, lw=12.0, solid_capstyle="butt", label=_label(certificate))
    words = rounded_up(upper) if certificate.lower is None else f"{rounded_down(lower)} to {rounded_up(upper)}"
    axes.annotate(words, (upper, 0.0), (0, 14), textcoords="offset points", ha="right")
    if "measured" in certificate.details and not np.ndim(certificate.details["measured"]):
        axes.plot([float(certificate.details["measured"])], [0.0], label="measured", **bands.MEASURED_POINT)
    right = bands.end_of_axis(upper) if upper <= 1.0 else 1.1 * upper
    axes.set(xlim=(min(0.0, 1.1 * lower), right), ylim=(-1.0, 1.0), yticks=[], xlabel="value")


def _label(certificate: Certificate) -> str:
    """What the coloured line or area is, and how sure."""
    where = "at most this" if certificate.lower is None else "in here"
    return f"{certificate.validity}: {where}, {bands.how_sure(certificate.validity, certificate.delta)}"


def _spaced(name: str) -> str:
    return name.replace("_", " ")
