"""Figures of bands and worst cases. Needs matplotlib, which is loaded on use; nothing is drawn on a screen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from riskband.bands.band import Band
from riskband.certificate import ESTIMATE, REFUTED, Certificate, weakest_validity
from riskband.checks import FloatArray, check_installed
from riskband.wording import FALSE_IN_GENERAL, TRAINERS_ANSWERED, confidence, rounded_up
from riskband.worst_cases.divergences import DIVERGENCES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from riskband.groups.group_bands import GroupBands

BOUNDS, ANSWERS, UNSEEN, TARGET = "#3b6ea5", "#444444", "#d1701f", "#2e8b57"
MEASURED_POINT: Mapping[str, Any] = {"color": "black", "marker": "|", "ms": 13, "mew": 1.8, "ls": ""}
UNSEEN_POINT: Mapping[str, Any] = {"color": UNSEEN, "marker": "o", "mec": "white", "ms": 8, "ls": ""}
SHARES = ("#9dbfe0", "#3b6ea5", "#1b3a5c", "#7a8794")  # darker as the threshold grows
WORST = ("#dd94a6", "#c05a76", "#96234a", "#5c0f2e")  # darker as the budget grows


def band_figure(
    band: Band,
    *,
    worst_case: Certificate | None = None,
    unseen_risks: npt.ArrayLike | None = None,
    target_risks: npt.ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Empirical CDF of the answers, the band, worst-case curves, and the risks of other clients where known.

    Parameters
    ----------
    band : Band
        The band to draw.
    worst_case : Certificate, optional
        From `worst_case_cdf`, over one or several budgets; drawn as lower bounds on the CDF of the target network.
    unseen_risks : array_like, shape (num_unseen,), optional
        True risks of clients that the band never saw (a simulation knows them).
    target_risks : array_like, shape (num_targets,), optional
        True risks of clients of a target network.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with `save_figure`.
    """
    others = (unseen_risks, UNSEEN, "unseen clients"), (target_risks, TARGET, "clients of the target network")
    known = [Known(np.asarray(risks, dtype=np.float64), *rest) for risks, *rest in others if risks is not None]
    figure = blank_figure(8.0, 5.0)
    draw_band(figure.add_subplot(), band, known, worst_case=worst_case, title=title)
    draw_legend_below(figure)
    return figure


class Known(NamedTuple):
    """True risks of clients that never answered, and how their curve is drawn."""

    risks: FloatArray  # shape (num_clients,)
    color: str
    whose: str


def draw_band(
    axes: Axes, band: Band, known: Sequence[Known] = (), *, worst_case: Certificate | None = None, title: str = ""
) -> None:
    """Draw what `band_figure` shows on axes, without the legend."""
    seen = [band.risks.shown_values, band.lower_points, *(each.risks for each in known)]
    right = end_of_axis(*(float(np.max(values, initial=0.0)) for values in seen))
    grid = np.unique(np.concatenate([[0.0, right], band.lower_points, band.upper_points]))
    grid = grid[grid <= right]
    grid = grid[np.diff(np.floor(grid / right * 1000.0), prepend=-1.0) > 0]  # steps narrower than a pixel are one
    _draw_band(axes, band, grid)
    _draw_cdf(axes, band.risks.shown_values, color=ANSWERS, lw=1.2, ls=":", label=measured_label(band))
    if worst_case is not None:
        draw_worst_cases(axes, worst_case)
    for risks, color, whose in known:
        _draw_cdf(axes, risks, color=color, lw=2.0, label=truth_label(risks.size, whose))
    axes.set_title(**titled("label", title, band.assumptions))
    label_cdf(axes, right)


def draw_group_bands(axes: Axes, bands: GroupBands) -> None:
    """Draw the band of each group in a colour of its own, without the legend."""
    seen = [points for each in bands.bands.values() for points in (each.risks.shown_values, each.lower_points)]
    right = end_of_axis(*(float(np.max(points, initial=0.0)) for points in seen))
    for number, (name, band) in enumerate(bands.bands.items()):
        steps, color = band.steps, f"C{number % 10}"
        sides = [steps[side] for side in ("lower", "upper") if side in steps]
        for side in sides:
            axes.step(steps["risk"], side, where="post", color=color, lw=1.2)
        label = f"{name}: {band.risks.num_clients} clients"
        axes.fill_between(steps["risk"], sides[0], sides[-1], step="post", color=color, alpha=0.2, label=label)
    sure = how_sure(weakest_validity(bands.assumptions), bands.delta)
    axes.set_title(**titled("label", f"all groups at once, {sure}", bands.assumptions))
    label_cdf(axes, right)


def label_cdf(axes: Axes, right: float) -> None:
    """Name and limit the axes of a CDF of risks that is shown up to `right`."""
    axes.set(xlim=(0.0, right), ylim=(0.0, 1.005))
    axes.set_xlabel("risk of a client (mean loss, 0 to 1)")
    axes.set_ylabel("share of clients with at most this risk")
    axes.grid(alpha=0.25, lw=0.6)


def blank_figure(width: float, height: float) -> Figure:
    """Empty figure of that size in inches; the extra ``plots`` is needed from here on."""
    check_installed("matplotlib", extra="plots")
    from matplotlib.figure import Figure  # a heavy import that only figures need

    return Figure(figsize=(width, height), layout="constrained")


def how_sure(validity: str, delta: float) -> str:
    """Return how sure a bound of this validity is, for a legend; the probability is only proved of a certificate."""
    sure = f"with probability {confidence(delta)}"
    return {ESTIMATE: "not proved", REFUTED: FALSE_IN_GENERAL}.get(validity, sure)


def titled(argument: str, title: str, assumptions: Collection[str]) -> dict[str, Any]:
    """Return keyword arguments of a title, `argument` its text, that says in red if the clients helped to train."""
    if TRAINERS_ANSWERED not in assumptions:
        return {argument: title}
    warning = fill(f"{ESTIMATE}: {TRAINERS_ANSWERED}", width=70)
    return {argument: f"{title}\n{warning}".lstrip(), "color": "red"}


def draw_legend_below(figure: Figure) -> None:
    """Draw the legend of a figure below its axes: in two columns, or in one where two are wider than the figure."""
    for num_columns in (2, 1):
        legend = figure.legend(loc="outside lower center", ncols=num_columns, fontsize="small", frameon=False)
        if num_columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def transport_figure(
    mean: Certificate,
    *,
    cdf: Certificate | None = None,
    networks: Sequence[TransportPoint] = (),
    worst_mean: npt.ArrayLike | None = None,
    worst_shares: npt.ArrayLike | None = None,
    reached_mean: npt.ArrayLike | None = None,
    reached_shares: npt.ArrayLike | None = None,
    unit: float | None = None,
    unit_words: str = "the mean cost that makes an example wrong",
    attack_note: str = "",
    title: str = "",
) -> Figure:
    """Certified mean risk and, beside it, certified shares of failing clients, over the cost budget.

    Parameters
    ----------
    mean : Certificate
        From `wasserstein_mean`, over several cost budgets.
    cdf : Certificate, optional
        From `wasserstein_cdf`, over several cost budgets; one curve for each threshold.
    networks : sequence of TransportPoint
        Networks whose distance and risks are known, drawn as points: where they lie, not a proof of anything.
    worst_mean : array_like, shape (num_budgets,), optional
        At the budgets of `mean`, the largest mean risk of any network that clients who never answered can be made into
        (a simulation knows it).
    worst_shares : array_like, shape (num_budgets, num_thresholds), optional
        The same for the shares, at the budgets and thresholds of `cdf`.
    reached_mean : array_like, shape (num_budgets,), optional
        Estimates from what attacks reached, at the budgets of `mean`; the gap below the certificate is shaded.
    reached_shares : array_like, shape (num_budgets, num_thresholds), optional
        The same for the shares.
    unit : float, optional
        A mean cost; adds an axis in these units.
    unit_words : str
        What the unit is.
    attack_note : str
        What the legend is to say of estimates, such as how many examples attacks could not see.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with `save_figure`.
    """
    figure = blank_figure(*((8.0, 5.0) if cdf is None else (11.0, 5.2)))
    panels = figure.subplots(1, 1 if cdf is None else 2, squeeze=False)[0]
    draw_transport_mean(panels[0], mean, networks, worst_mean)
    if reached_mean is not None:
        _draw_reached(panels[0], mean, np.asarray(reached_mean)[:, np.newaxis], colors=(BOUNDS,))
    panels[0].set_title(_headline(mean, reached_mean), fontsize="medium")
    if attack_note:
        panels[0].plot([], [], " ", label=f"estimate: {attack_note}")  # an entry of the legend without a mark
    if cdf is not None:
        draw_transport_shares(panels[1], cdf, networks, worst_shares)
        if reached_shares is not None:
            _draw_reached(panels[1], cdf, np.asarray(reached_shares), colors=SHARES)
    for axes in panels:
        label_costs(axes, mean)
        legend_under(axes, 0.22)
        if unit is not None:
            functions = (lambda cost: np.divide(cost, unit), lambda ratio: np.multiply(ratio, unit))
            second = axes.secondary_xaxis("top", functions=functions)
            second.set_xlabel(f"in units of {unit_words}", fontsize="small")
    figure.suptitle(**titled("t", title, mean.assumptions))
    return figure


class TransportPoint(NamedTuple):
    """A network whose distance from the source network is known."""

    cost: float  # mean transport cost, or an upper bound on it, >= 0
    risks: FloatArray  # true risks of its clients, shape (num_clients,)

    @property
    def mean_risk(self) -> float:
        """Mean of `risks`."""
        return float(np.mean(self.risks))


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a path that ends in .png, .svg or .pdf; the same figure gives the same bytes, in SVG too.

    Raises ValueError if matplotlib does not know the ending.
    """
    write_figure(figure, path, ending=Path(path).suffix.lower())


def write_figure(figure: Figure, target: str | Path | BytesIO, *, ending: str) -> None:
    """Write a figure into a file that is open or not, in the format of an ending such as ".svg"."""
    import matplotlib as mpl

    metadata = {  # says where it is from, and not when
        ".png": {"Source": "riskband"},
        ".svg": {"Source": "riskband", "Date": None},
        ".pdf": {"Keywords": "riskband", "CreationDate": None},
    }.get(ending, {})
    chosen = ending[1:] if isinstance(target, BytesIO) else None  # of a file, its name says it
    with mpl.rc_context({"svg.hashsalt": "riskband"}):
        figure.savefig(target, dpi=150, metadata=metadata, format=chosen)


def end_of_axis(*seen: float) -> float:
    """Return where an axis of risks ends: it shows the whole of what is seen, and no empty half."""
    return float(min(1.0, np.ceil((max(seen) + 0.02) * 20) / 20))


def truth_label(num_clients: int, whose: str = "unseen clients") -> str:
    """Name the true risks of simulated clients in a legend."""
    return f"true risks of {num_clients} {whose} (simulated)"


def legend_under(axes: Axes, distance: float) -> None:
    """Draw the legend of one of several panels below it, and its grid."""
    axes.grid(alpha=0.25, lw=0.6)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -distance), fontsize="small", frameon=False)


def label_costs(axes: Axes, certificate: Certificate) -> None:
    """Name the axis of cost budgets, with the cost that the certificate is about."""
    axes.set_ylim(-0.02, 1.02)  # points on the axis stay visible
    cost = certificate.recipe["answers"]["cost"]
    axes.set_xlabel(f"cost budget: how far examples may move on average\n(transport cost: {cost})")


def _draw_cdf(axes: Axes, values: FloatArray, **style: Any) -> None:
    share = np.arange(1, values.size + 1) / values.size
    axes.step([0.0, *np.sort(values), 1.0], [0.0, *share, 1.0], where="post", **style)


def measured_label(band: Band) -> str:
    """Name what the clients answered in a legend, with what lies between it and what they measured."""
    noise = "" if band.risks.noise is None else ", with noise"
    rounding = "" if band.answers is band.risks else ", rounded up to bins"
    return f"measured by the {band.risks.num_clients} clients that answered{noise}{rounding}"


def _draw_band(axes: Axes, band: Band, grid: FloatArray) -> None:
    validity = weakest_validity(band.assumptions)
    sure, verb = how_sure(validity, band.delta), "would measure" if band.local == "observed" else "has"
    if band.sides == "two":
        whose = "that would measure at most this risk" if band.local == "observed" else "with at most this risk"
        label = f"{validity}: the share of unseen clients {whose} lies in the band,\n{sure}"
        axes.fill_between(
            grid, band.lower(grid), band.upper(grid), step="post", color=BOUNDS, alpha=0.25, lw=0, label=label
        )
    for side, bound, words, lw in (("lower", band.lower, "at least", 1.6), ("upper", band.upper, "at most", 1.0)):
        if band.sides in (side, "two"):
            label = f"{validity}: {words} this share of unseen clients {verb} at most this risk,\n{sure}"
            label = "" if band.sides == "two" else label
            axes.step(grid, bound(grid), where="post", color=BOUNDS, lw=lw, label=label)


def _headline(mean: Certificate, reached: npt.ArrayLike | None) -> str:
    """Say one point of the curve: the last budget up to which the mean risk is at most a half, or else the first."""
    budgets, bounds = mean.axes["cost_budget"], np.asarray(mean.value)
    index = int(max(np.flatnonzero(bounds <= 0.5), default=0))
    words = f"{mean.validity}: mean risk at most {rounded_up(float(bounds[index]), 3)} up to cost {budgets[index]:g}"
    return words if reached is None else f"{words}; attacks reach {np.asarray(reached)[index]:.3f}"


def draw_transport_mean(
    axes: Axes, mean: Certificate, networks: Sequence[TransportPoint], worst: npt.ArrayLike | None
) -> None:
    """Draw the certified mean risk over the cost budget, as `transport_figure` does."""
    budgets = mean.axes["cost_budget"]
    label = f"{mean.validity}: mean risk at most this, {how_sure(mean.validity, mean.delta)}"
    axes.plot(budgets, mean.value, color=BOUNDS, lw=2.0, marker=".", label=label)
    if worst is not None:
        label = "worst network that unseen clients can be made into (simulated)"
        axes.plot(budgets, np.asarray(worst), color=UNSEEN, lw=1.4, label=label)
    if networks:
        costs, risks = [network.cost for network in networks], [network.mean_risk for network in networks]
        label = (
            "other clients, moved at random (simulated): their true mean risk, at the\n"
            "distance measured; random moves harm less than the worst ones of that cost"
        )
        axes.plot(costs, risks, "o", color=UNSEEN, mec="white", ms=7, label=label)
    axes.set_ylabel("mean risk of all clients (mean loss, 0 to 1)")


def draw_transport_shares(
    axes: Axes, cdf: Certificate, networks: Sequence[TransportPoint], worst: npt.ArrayLike | None
) -> None:
    """Draw the certified shares of failing clients over the cost budget, as `transport_figure` does."""
    budgets, thresholds = cdf.axes["cost_budget"], cdf.axes["threshold"]
    for index, threshold in enumerate(thresholds):
        color = SHARES[index % len(SHARES)]
        label = f"{cdf.validity}: share with risk ≥ {threshold:g} at most this, {how_sure(cdf.validity, cdf.delta)}"
        axes.plot(budgets, np.asarray(cdf.value)[:, index], color=color, lw=2.0, ls="--", marker=".", label=label)
        if worst is not None:
            axes.plot(budgets, np.asarray(worst)[:, index], color=color, lw=1.2)
        for network in networks:
            axes.plot(network.cost, np.mean(network.risks >= threshold), "o", color=UNSEEN, mec=color, ms=6)
    if worst is not None:
        axes.plot([], [], color=SHARES[1], lw=1.2, label="the same on the worst network (simulated)")
    if networks:
        label = "the same of clients moved at random (simulated), one dot per threshold"
        axes.plot([], [], "o", color=UNSEEN, mec=SHARES[1], ms=6, label=label)
    axes.set_ylabel("share of clients (0 to 1)")


def _draw_reached(axes: Axes, certificate: Certificate, reached: FloatArray, *, colors: Sequence[str]) -> None:
    """Estimates below the columns of a certificate, and the gap in between."""
    budgets, bounds = certificate.axes["cost_budget"], np.asarray(certificate.value).reshape(reached.shape)
    for index, (below, above) in enumerate(zip(reached.T, bounds.T, strict=True)):
        color, is_last = colors[index % len(colors)], index == reached.shape[1] - 1
        label = "gap: neither reached nor excluded" if is_last else ""
        axes.fill_between(budgets, below, above, color=color, alpha=0.18, lw=0, label=label)
        label = "estimate: what attacks reached" if is_last else ""
        axes.plot(budgets, below, color=color, lw=1.4, ls=":", marker="v", ms=4, label=label)


def draw_worst_cases(axes: Axes, worst_case: Certificate) -> None:
    """Draw worst cases over thresholds as lower bounds on the CDF of the target network."""
    if "threshold" not in worst_case.axes:
        raise ValueError(f"the worst case of a band figure needs several thresholds, got {worst_case.quantity!r}")
    thresholds = np.asarray(worst_case.axes["threshold"])
    curves = np.atleast_2d(worst_case.value)
    name, budgets = worst_case.shift or ("", [])
    divergence = DIVERGENCES[name].title if name in DIVERGENCES else name
    for index, (budget, curve) in enumerate(zip(budgets, curves, strict=True)):
        # S(t) <= s says F(x) >= 1 - s for every x >= t: the bound holds from t on.
        label = f"{worst_case.validity}: at least this share in any network within {budget:g} in {divergence}"
        label += f",\n{FALSE_IN_GENERAL}" if worst_case.validity == REFUTED else ""
        color = WORST[index % len(WORST)]
        axes.step(thresholds, 1.0 - curve, where="post", color=color, lw=1.4, ls="--", label=label)
