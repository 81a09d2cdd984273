"""What is asked of answers: certificates that share one delta, verdicts, and figures of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

import riskband as rb
from riskband.certificate import USUAL_DELTA
from riskband.functionals.functional import resolve
from riskband.verification import COLLECTION_SCHEMA
from riskband.wording import exactly
from riskband.worst_cases.requirements import (
    Requirement,
    certificates_of,
    numbers_behind,
    read_requirements,
    verdicts_on,
)

if TYPE_CHECKING:
    from riskband.report.findings import Findings

DEFAULT_BUDGETS = (0.05, 0.1, 0.2)
_UNASKED = ("mean", "quantile:0.9", "cvar:0.9")  # what is bounded where no number was asked for


@dataclass(frozen=True)
class Asked:
    """What is asked of answers, by the names of the command's options."""

    delta: float = USUAL_DELTA  # of everything together
    mean: bool = False
    quantile: tuple[float, ...] = ()
    cvar: tuple[float, ...] = ()
    survival: tuple[float, ...] = ()
    measure: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    divergence: tuple[str, ...] = ()
    budget: tuple[float, ...] = DEFAULT_BUDGETS
    target: float | None = None
    at: float | None = None
    method: Any = "berk_jones"  # of the band: a name or levels that were tuned
    local: str = "marginal"
    sides: str = "lower"
    at_once: bool = False
    seed: int | None = None
    plot: str | None = None
    plot_dispersion: str | None = None

    @cached_property
    def requirements(self) -> list[Requirement]:
        """What is required, each once."""
        return read_requirements(self.require)

    @cached_property
    def from_both_sides(self) -> list[str]:
        """The numbers that are bounded from both sides."""
        measures = (resolve(name, called="measure").name for name in self.measure)
        return list(dict.fromkeys([*numbers_behind(self.requirements), *measures]))

    @cached_property
    def from_above(self) -> list[str]:
        """The numbers that are bounded from above alone."""
        levels = {"quantile": self.quantile, "cvar": self.cvar, "share": self.survival}
        named = [f"{kind}:{exactly(level)}" for kind, given in levels.items() for level in given]
        asked = ["mean"] * self.mean + named
        if not (asked or self.from_both_sides or self.divergence):
            asked = list(_UNASKED)
        return [name for name in dict.fromkeys(asked) if name not in self.from_both_sides]

    @cached_property
    def budgets(self) -> dict[str, list[float]]:
        """For each divergence the budgets of its worst mean that is bounded; not those of a worst mean required."""
        left = {
            name: [size for size in self.budget if f"worst_mean:{name}:{exactly(size)}" not in self.from_both_sides]
            for name in self.divergence
        }
        return {name: sizes for name, sizes in left.items() if sizes}

    @property
    def is_alone(self) -> bool:
        """Whether each number has the sharper bound of its own: unless one band, or a way to make one, is wanted."""
        is_usual = (self.method, self.local, self.sides) == ("berk_jones", "marginal", "lower")
        return is_usual and not self.at_once


def certified(risks: rb.ClientRisks, asked: Asked) -> Findings:
    """Return certificates of what is asked: each number has an equal share of delta, and so has a band if there is one.

    A band is made for what is to hold at once, for what needs one (doubtful answers from both sides, a share of a
    shifted network), and for a figure of it.
    """
    risks = risks.in_order_of_names()  # in which certificates that bet on them hold them
    is_bet_on = asked.is_alone and risks.are_as_measured  # bets need every answer as it was given
    both, above, budgets = asked.from_both_sides, asked.from_above, asked.budgets
    has_pictures = bool(asked.plot or asked.plot_dispersion)
    needs_band = not asked.is_alone or has_pictures or asked.at is not None or not (is_bet_on or not (both or budgets))
    num_alone = len(above) * asked.is_alone + (len(both) + len(budgets)) * is_bet_on
    # By name: an import would make the house one floor higher (tests/house.py).
    report = import_module("riskband.report.findings")
    part = asked.delta / (num_alone + needs_band + report.has_groups(risks))
    has_both_sides = asked.sides == "two" or asked.plot_dispersion or (both and not is_bet_on)
    band = _band(risks, asked, delta=part, sides="two" if has_both_sides else "lower") if needs_band else None
    alone: dict[str, Any] = {"delta": part, "seed": asked.seed if risks.are_as_measured else None}
    # Where there is no band, nothing needs one.
    single = risks if asked.is_alone or band is None else band
    source, terms = (risks, alone) if is_bet_on or band is None else (band, {})
    found = {name: _above(name, single, **alone) for name in above}
    found |= certificates_of(source, both, delta=terms.get("delta")) | report.of_groups(risks, delta=part)
    for divergence, sizes in budgets.items():
        mean = rb.worst_case_mean(source, divergence=divergence, budget=sizes, **terms)
        found[f"worst_mean:{divergence}"] = mean
        if band is not None:
            found[f"worst_share:{divergence}"] = rb.worst_case_cdf(band, divergence=divergence, budget=sizes)
    if band is not None and band.provenance()["band"] not in [each.recipe["band"] for each in found.values()]:
        steps = np.unique([0.0, *np.nextafter(band.lower_points, 1.0), 1.0])  # a band that is drawn is in the file too
        found["share"] = rb.survival(band, thresholds=steps)
    gate = verdicts_on(found, asked.requirements, delta=asked.delta) if asked.require else None
    made: Findings = report.findings(
        found,
        gate=gate,
        limits=() if asked.target is None else [(asked.target, asked.at)],
        unbounded=[name for name in both if name not in found],
        names=risks.names,
        band=band,
    )
    return made


def _above(name: str, source: rb.ClientRisks | rb.Band, *, delta: float, seed: int | None) -> rb.Certificate:
    """The sharpest bound from above, from answers with so much of delta, or off a band."""
    kind, _, point = name.partition(":")
    if kind == "mean":
        return rb.mean(source) if isinstance(source, rb.Band) else rb.mean_bound(source, delta=delta, seed=seed)
    own, order = (None, None) if isinstance(source, rb.Band) else (delta, seed)
    if kind == "cvar":
        return rb.cvar(source, float(point), delta=own, seed=order)
    if kind == "quantile":
        return rb.quantile(source, float(point), delta=own)
    return rb.survival(source, thresholds=float(point), delta=own)


def _band(risks: rb.ClientRisks, asked: Asked, *, delta: float, sides: str) -> rb.Band:
    # None is the default, which of very many clients constrains few ranks.
    method = None if asked.method == "berk_jones" else asked.method
    return rb.band(risks, delta=delta, method=method, local=asked.local, sides=sides)


def document(found: Findings) -> dict[str, Any]:
    """Return what --out and --json write: findings, certificates by name, and the verdicts if any were asked for."""
    return {
        "schema": COLLECTION_SCHEMA,
        "findings": found.to_dict(),
        "certificates": {name: certificate.to_dict() for name, certificate in found.certificates.items()},
        **({} if found.gate is None else {"gate": found.gate.to_dict()}),
    }


def draw(found: Findings, asked: Asked, *, title: str, say: Callable[[str], None]) -> None:
    """Write the figures that were asked for."""
    band = found.band
    if asked.plot and band is not None:
        from riskband.plots.bands import band_figure, save_figure  # loads matplotlib

        curve = next((each for each in found.certificates.values() if each.kind == "worst_share" and each.axes), None)
        save_figure(band_figure(band, worst_case=curve, title=title), asked.plot)
        only = f" (worst cases in {asked.divergence[0]} only)" if len(asked.divergence) > 1 else ""
        say(f"figure: {asked.plot}{only}")
    if asked.plot_dispersion and band is not None:
        from riskband.plots.bands import save_figure
        from riskband.plots.dispersion import dispersion_figure

        names = [resolve(name, called="measure").name for name in asked.measure]
        figure = dispersion_figure(
            band,
            measures=[found.certificates[name] for name in names if name in found.certificates],
            lorenz=rb.lorenz_certificate(band),
            title=title,
        )
        save_figure(figure, asked.plot_dispersion)
        say(f"figure: {asked.plot_dispersion}")
