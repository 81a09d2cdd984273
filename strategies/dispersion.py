"""One round of losses -> one two-sided band -> how unequal the risks of unseen clients are, and how groups differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import riskband as rb
from protocol.questions import LossAnswer
from riskband.functionals.dispersion import UnboundedError
from riskband.functionals.functional import Functional, interval_of, method_that_applies, resolve
from riskband.groups.group_bands import GroupBands, smallest_group
from riskband.worst_cases.number import Number
from strategies.asking.query import RoundOutcome
from strategies.certifying import BandStrategy, Conclusion, by_file

BETTING = "betting"
LORENZ_SHARES = np.arange(101) / 100.0
QUANTILE_LEVELS = np.arange(1, 100) / 100.0
"""Without 0 and 1: there a band says no more than that risks lie in [0, 1]."""


@dataclass(frozen=True)
class MeasureBounds:
    """One measure of dispersion, bounded."""

    measure: Functional  # what is bounded
    interval: rb.Interval  # bounds by `method`; `inf` where nothing bounds it
    published: rb.Interval  # the plug-in bounds from the same band
    measured: float  # its value for the measured risks
    method: str  # how, after what `Dispersion.method` says
    certificate: rb.Certificate | None  # None where nothing bounds the measure

    @property
    def key(self) -> str:
        """Name of the certificate among those of the result."""
        return f"dispersion_{self.measure.name.replace(':', '_')}"


@dataclass(frozen=True, eq=False, kw_only=True)
class DispersionConclusion(Conclusion):
    """Certificates "mean", "dispersion_<measure>" for each measure that can be bounded, "lorenz" and "quantiles".

    With groups also "group_largest_gap" and "group_worst", of the mean risk.
    """

    # Two-sided; "lorenz" and "quantiles" are read off it, and so are measures that are not bounded by "betting": all of
    # that holds together. Every other certificate has a part of delta of its own.
    band: rb.Band
    measures: tuple[MeasureBounds, ...]  # as they were asked for
    # One band for each group, all at once with their part of delta; None unless two groups are large enough.
    group_bands: GroupBands | None
    small_groups: Mapping[str, int]  # groups with too few answers to say anything of, and how many they have


@dataclass(eq=False, kw_only=True)
class Dispersion(BandStrategy):
    """Ask every client for its plain loss once; certify how the risks of unseen clients are spread.

    Raises ValueError if a measure is unknown; else see `strategies.certifying.BandStrategy`.
    """

    measures: Sequence[str]  # such as "gini" or "atkinson:0.5"; see `riskband.bound`
    # `BETTING` or a method of `riskband.bound`. Betting gives each measure a part of delta, where `local` is
    # "marginal" and every answer is as the client measured it. For the curves, and else for the measures,
    # "convex_order" takes its place; and where that does not apply, since the clients have different numbers of
    # examples or the measure does not grow in convex order, "sharp".
    method: str = BETTING

    def __post_init__(self) -> None:
        super().__post_init__()
        self._measures = tuple(resolve(name, called="measure") for name in self.measures)

    def conclude(self, outcome: RoundOutcome[LossAnswer]) -> DispersionConclusion:
        """Return the certificates that the valid answers give; see `QueryStrategy.conclude`."""
        risks = self.plain_risks(outcome)
        is_own = self.method == BETTING and self.local == "marginal" and self.can_bet_on(risks)
        of_groups, small = self._grouped(outcome)
        measured = {Number.of(each.name) for each in self._measures}
        required = [number for number in self.numbers_required if number not in measured]
        num_own = len(self._measures) * is_own + len(self.own_numbers(risks, required)) + (of_groups is not None)
        has_mean = Number("mean") not in (*required, *measured)
        part = self.delta / (1 + has_mean + num_own)
        band = rb.band(risks, sides="two", delta=part, **self.band_settings)
        bounds = tuple(self._bounds(band, each, own_delta=part if is_own else None) for each in self._measures)
        found = self.certificates_required(risks, required, delta=part, band=band)
        bounded = {each.measure.name: each.certificate for each in bounds if each.certificate is not None}
        found |= {name: bounded[name] for name in map(str, self.numbers_required) if name in bounded}
        mean = rb.mean_bound(risks, delta=part, seed=self.seed) if has_mean else found.get("mean")
        certificates = {} if mean is None or Number("mean") in measured else {"mean": mean}
        certificates |= {each.key: each.certificate for each in bounds if each.certificate is not None}
        certificates |= by_file({name: found[name] for name in map(str, required) if name in found and name != "mean"})
        # The Lorenz curve grows in convex order as the Gini coefficient does.
        lorenz_method = method_that_applies(band_method(self.method), band, resolve("gini"))
        certificates["lorenz"] = rb.lorenz_certificate(band, shares=LORENZ_SHARES, method=lorenz_method)
        certificates["quantiles"] = rb.quantile_certificate(band, level=QUANTILE_LEVELS)
        groups = None
        if of_groups is not None:
            groups = rb.group_bands(risks, of_groups, delta=part, **self.band_settings)
            certificates["group_largest_gap"] = rb.group_certificate(groups, "largest_gap", "mean")
            certificates["group_worst"] = rb.group_certificate(groups, "worst_group", "mean")
        return DispersionConclusion(
            outcome=outcome,
            risks=risks,
            certificates=certificates,
            required=found,
            band=band,
            measures=bounds,
            group_bands=groups,
            small_groups=small,
        )

    def _bounds(self, band: rb.Band, measure: Functional, *, own_delta: float | None) -> MeasureBounds:
        is_own, delta = own_delta is not None, own_delta
        method = BETTING if is_own else method_that_applies(band_method(self.method), band, measure)
        source = band.risks if is_own else band
        try:
            certificate = rb.dispersion_certificate(source, measure, method=method, delta=delta)
            interval = rb.Interval(*(float(np.asarray(end)) for end in (certificate.lower, certificate.value)))
        except UnboundedError:
            certificate, interval = None, interval_of(source, measure, method=method, delta=delta)
        return MeasureBounds(
            measure=measure,
            interval=interval,
            published=interval_of(band, measure, method="plugin"),
            measured=rb.measured_dispersion(band.risks, measure),
            method=method,
            certificate=certificate,
        )

    def _grouped(self, outcome: RoundOutcome[LossAnswer]) -> tuple[list[str | None] | None, dict[str, int]]:
        """The group of each answer, of those that have enough, if there are two; and the sizes of the other groups."""
        counts = Counter(answer.group for answer in outcome.answers if answer.group is not None)
        least = smallest_group(self.contamination)
        small = {name: count for name, count in sorted(counts.items()) if count < least}
        if len(counts) - len(small) < 2:
            return None, small
        return [None if answer.group in small else answer.group for answer in outcome.answers], small


def band_method(method: str) -> str:
    """Return how bounds are read off a band where this method of `Dispersion` was asked for."""
    return "convex_order" if method == BETTING else method
