"""The figures that `riskband certify` draws of findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import riskband as rb
from riskband.functionals.functional import resolve

if TYPE_CHECKING:
    from riskband.report.findings import Findings


def draw(
    found: Findings,
    *,
    plot: str | None,
    plot_dispersion: str | None,
    measures: Sequence[str],
    title: str,
    say: Callable[[str], None],
) -> None:
    """Write the figures that were asked for, of a band that was made for them."""
    if found.band is None or not (plot or plot_dispersion):
        return
    from riskband.plots.bands import band_figure, save_figure  # loads matplotlib
    from riskband.plots.dispersion import dispersion_figure

    if plot:
        curves = [each for each in found.certificates.values() if each.kind.startswith("share@") and each.axes]
        save_figure(band_figure(found.band, worst_case=curves[0] if curves else None, title=title), plot)
        only = f" (worst cases in {next(iter(found.divergences))} only)" if len(curves) > 1 else ""
        say(f"figure: {plot}{only}")
    if plot_dispersion:
        names = [resolve(name, called="measure").name for name in measures]
        shown = [found.certificates[name] for name in names if name in found.certificates]
        lorenz = rb.lorenz_certificate(found.band)
        save_figure(dispersion_figure(found.band, measures=shown, lorenz=lorenz, title=title), plot_dispersion)
        say(f"figure: {plot_dispersion}")
