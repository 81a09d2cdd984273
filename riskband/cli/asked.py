"""What was asked of answers: certificates of it, the verdicts, and the figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import riskband as rb
from riskband.functionals.dispersion import UnboundedError
from riskband.search import Bracket
from riskband.verification import COLLECTION_SCHEMA
from riskband.wording import exactly
from riskband.worst_cases.requirements import Gate, require


class Report(NamedTuple):
    """What `riskband certify` found."""

    certificates: dict[str, rb.Certificate]
    breakdowns: dict[str, Bracket]
    band: rb.Band
    two_sided: rb.Band | None = None  # what the measures of dispersion are read off
    unbounded: tuple[str, ...] = ()  # measures that these answers do not bound from above
    gate: Gate | None = None  # the verdicts on what --require asks for

    @property
    def stored(self) -> dict[str, rb.Certificate]:
        """Every certificate, also those that a verdict follows from."""
        return self.certificates | ({} if self.gate is None else self.gate.certificates)


def certified(risks: rb.ClientRisks, options: argparse.Namespace) -> Report:
    """Return the certificates of what was asked."""
    band = _band(risks, options, sides=options.sides)
    # What stands alone is bounded from the answers, with a delta of its own; all else is read off the band.
    alone: dict[str, Any] = {"delta": options.delta}
    source, terms = (risks, alone) if _stand_alone(options) else (band, {})
    is_bet_on = source is risks and risks.are_as_measured  # bets need every answer as it was given
    seed = {"seed": options.seed} if is_bet_on else {}
    certificates = {"mean": rb.mean_bound(risks, delta=options.delta, seed=options.seed)}
    certificates |= {f"quantile:{exactly(level)}": rb.quantile(source, level, **terms) for level in options.quantile}
    certificates |= {f"cvar:{exactly(level)}": rb.cvar(source, level, **terms, **seed) for level in options.cvar}
    for point in options.survival:
        certificates[f"survival:{exactly(point)}"] = rb.survival(source, thresholds=point, **terms)
    both, unbounded = _two_sided(risks, band, options, is_bet_on=is_bet_on), []
    for name in options.measure:
        try:
            if is_bet_on or both is None:
                found = rb.dispersion_certificate(risks, name, **alone)
            else:
                found = rb.dispersion_certificate(both, name)
        except UnboundedError:
            unbounded.append(name)
        else:
            certificates[f"two-sided {name}" if name in certificates else name] = found
    breakdowns = {}
    budgets = np.array(options.budget)
    for divergence in options.divergence:
        answers, of_answers = (risks, alone | seed) if is_bet_on else (band, {})
        mean = rb.worst_case_mean(answers, divergence=divergence, budget=budgets, **of_answers)
        certificates[f"worst_case_mean_{divergence}"] = mean
        certificates[f"worst_case_cdf_{divergence}"] = rb.worst_case_cdf(band, divergence=divergence, budget=budgets)
        if options.target is not None:
            breakdowns[divergence] = rb.breakdown(
                band, divergence=divergence, target=options.target, threshold=options.at
            )
    gate = None
    if options.require:
        gate = require(risks, options.require, **alone) if both is None or is_bet_on else require(both, options.require)
    return Report(certificates, breakdowns, band, both, tuple(unbounded), gate)


def _two_sided(risks: rb.ClientRisks, band: rb.Band, options: argparse.Namespace, *, is_bet_on: bool) -> rb.Band | None:
    """A band with both sides for what does not stand alone and is bounded from both, and for a figure of measures."""
    if not (options.measure or options.require) or (is_bet_on and not options.plot_dispersion):
        return None
    if options.sides == "two":
        return band
    return _band(risks, options, sides="two")  # it spends a delta of its own


def _band(risks: rb.ClientRisks, options: argparse.Namespace, *, sides: str) -> rb.Band:
    # None is the default, which of very many clients constrains few ranks.
    method = None if options.method == "berk_jones" else options.method
    return rb.band(risks, delta=options.delta, method=method, local=options.local, sides=sides)


def _stand_alone(options: argparse.Namespace) -> bool:
    """Whether each number gets the sharper bound of its own: unless a band for all, or a way to make one, is wanted."""
    is_usual = options.method == "berk_jones" and options.local == "marginal" and options.sides == "lower"
    return bool(is_usual and not options.at_once)


def document(report: Report) -> dict[str, Any]:
    """What --out and --json write: certificates by name, and the verdicts if any were asked for."""
    return {
        "schema": COLLECTION_SCHEMA,
        "certificates": {name: certificate.to_dict() for name, certificate in report.stored.items()},
        **({} if report.gate is None else {"gate": report.gate.to_dict()}),
    }


def draw(report: Report, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Write the figures that were asked for."""
    if options.plot:
        from riskband.plots.bands import band_figure, save_figure  # loads matplotlib

        curve = next((c for name, c in report.certificates.items() if name.startswith("worst_case_cdf")), None)
        save_figure(band_figure(report.band, worst_case=curve, title=Path(options.file).name), options.plot)
        only = f" (worst cases in {options.divergence[0]} only)" if len(options.divergence) > 1 else ""
        say(f"figure: {options.plot}{only}")
    if options.plot_dispersion and report.two_sided is not None:
        from riskband.plots.bands import save_figure
        from riskband.plots.dispersion import dispersion_figure

        figure = dispersion_figure(
            report.two_sided,
            measures=[c for c in report.certificates.values() if c.recipe["function"] == "dispersion_certificate"],
            lorenz=rb.lorenz_certificate(report.two_sided),
            title=Path(options.file).name,
        )
        save_figure(figure, options.plot_dispersion)
        say(f"figure: {options.plot_dispersion}")
