"""One round of losses -> one two-sided band -> how unequal the risks of unseen clients are, and how groups differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import riskband as rb
from protocol.questions import LossAnswer, LossQuery
from riskband.adversaries.losses import get_loss
from riskband.functionals.functional import method_that_applies, resolve
from strategies.answered_risks import client_risks
from strategies.asking.query import QueryStrategy, RoundOutcome

LORENZ_SHARES = np.arange(101) / 100.0
QUANTILE_LEVELS = np.arange(1, 100) / 100.0
"""Without 0 and 1: there a band says no more than that risks lie in [0, 1]."""


@dataclass(frozen=True)
class MeasureBounds:
    """One measure of dispersion, bounded.

    Attributes
    ----------
    measure : riskband.Functional
        What is bounded.
    interval : riskband.Interval
        Bounds by `method`; `inf` where nothing bounds it.
    published : riskband.Interval
        The plug-in bounds from the same band.
    measured : float
        Its value for the measured risks.
    method : str
        How: that of the strategy, but "sharp" where "convex_order" does not apply.
    certificate : str or None
        Key in the certificates of the result; None where nothing bounds the measure, so that there is none.
    """

    measure: rb.Functional
    interval: rb.Interval
    published: rb.Interval
    measured: float
    method: str
    certificate: str | None


@dataclass(frozen=True, eq=False)
class DispersionResult:
    """What the answers of one round certify.

    Attributes
    ----------
    outcome : RoundOutcome
        Valid answers and failures.
    risks : riskband.ClientRisks
        The valid answers, in the order of `outcome.answers`.
    band : riskband.Band
        Two-sided; all but "mean" and the groups is read off it, so it holds together.
    certificates : dict of str to riskband.Certificate
        "mean", "dispersion_<measure>" for each measure that can be bounded, "lorenz", "quantiles"; with groups also
        "group_largest_gap" and "group_worst", of the mean risk.
    measures : tuple of MeasureBounds
        As they were asked for.
    group_bands : riskband.GroupBands or None
        One band for each group, all at once at a delta of their own; None unless two groups are large enough.
    small_groups : dict of str to int
        Groups with too few answers to say anything of, and how many they have.
    """

    outcome: RoundOutcome[LossAnswer]
    risks: rb.ClientRisks
    band: rb.Band
    certificates: dict[str, rb.Certificate]
    measures: tuple[MeasureBounds, ...]
    group_bands: rb.GroupBands | None = None
    small_groups: Mapping[str, int] = field(default_factory=dict)


class Dispersion(QueryStrategy):
    """Ask every client for its plain loss once; certify how the risks of unseen clients are spread.

    `start(grid, arrays).conclusion` is a `DispersionResult`.

    Parameters
    ----------
    model, x_shape, num_classes :
        The architecture to evaluate; see `protocol.questions.LossQuery`.
    loss : str
        A name in `riskband.adversaries.losses.LOSSES`.
    delta : float
        Probability that the certificates fail, in (0, 1): once for "mean", once for all that is read off the band,
        once for all that is said of groups.
    band, local : str
        Method and local step of `riskband.band`.
    measures : sequence of str
        Measures of dispersion such as "gini" or "atkinson:0.5"; see `riskband.bound`.
    method : {"sharp", "plugin", "convex_order"}
        See `riskband.bound`. Where `convex_order` does not apply, since the clients have different
        numbers of examples or the measure does not grow in convex order, `sharp` takes its place.
    missing, contamination, answered_by :
        What is assumed of who answered; see `riskband.ClientRisks`.
    privacy : str
        Noise that the clients are to add; see `protocol.questions.LossQuery`. The certificates account for it.
    seed : int, optional
        Of the order in which the bound on the mean looks at the clients, fixed before any of them is asked; see
        `riskband.mean_bound`.
    **settings
        Of `QueryStrategy`.

    Raises
    ------
    ValueError
        If the loss or a measure is unknown, or a setting of `QueryStrategy` is out of its range.
    """

    def __init__(
        self,
        *,
        model: str,
        x_shape: Sequence[int],
        num_classes: int,
        loss: str,
        delta: float,
        band: str,
        local: str,
        measures: Sequence[str],
        method: str = "sharp",
        missing: str = "ignore",
        contamination: int = 0,
        answered_by: str = "fresh",
        privacy: str = "",
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._query = LossQuery(get_loss(loss).name, model, tuple(x_shape), num_classes, privacy)
        self.delta = delta
        self.band = band
        self.local = local
        self.measures = tuple(resolve(name, called="measure") for name in measures)
        self.method = method
        self.missing = missing
        self.contamination = contamination
        self.seed = seed
        self.answered_by = answered_by

    def query(self) -> LossQuery:
        """Return the plain loss query."""
        return self._query

    def conclude(self, outcome: RoundOutcome[LossAnswer]) -> DispersionResult:
        """Return the certificates that the valid answers give.

        Raises
        ------
        ValueError
            If there are fewer than two answers, or an argument of a certificate is out of its range.
        """
        risks = client_risks(
            outcome,
            [answer.risk for answer in outcome.answers],
            query=self._query,
            loss=self._query.loss,
            missing=self.missing,
            contamination=self.contamination,
            answered_by=self.answered_by,
        )
        band = rb.band(risks, delta=self.delta, method=self.band, local=self.local, sides="two")
        bounds = tuple(_bounds(band, each, method_that_applies(self.method, band, each)) for each in self.measures)
        certificates = {"mean": rb.mean_bound(risks, delta=self.delta, seed=self.seed)}
        for each in bounds:
            if each.certificate is not None:
                certificates[each.certificate] = rb.dispersion_certificate(band, each.measure, method=each.method)
        lorenz_method = method_that_applies(self.method, band, rb.functional("gini"))  # both grow in convex order
        certificates["lorenz"] = rb.lorenz_certificate(band, shares=LORENZ_SHARES, method=lorenz_method)
        certificates["quantiles"] = rb.quantile_certificate(band, level=QUANTILE_LEVELS)
        groups, small = self._group_bands(outcome, risks)
        if groups is not None:
            certificates["group_largest_gap"] = rb.group_certificate(groups, "largest_gap", "mean")
            certificates["group_worst"] = rb.group_certificate(groups, "worst_group", "mean")
        return DispersionResult(outcome, risks, band, certificates, bounds, groups, small)

    def _group_bands(
        self, outcome: RoundOutcome[LossAnswer], risks: rb.ClientRisks
    ) -> tuple[rb.GroupBands | None, dict[str, int]]:
        """Bands of the groups that have enough answers, if there are two, and the sizes of the other groups."""
        counts = Counter(answer.group for answer in outcome.answers if answer.group is not None)
        smallest = max(2, self.contamination + 1)
        small = {name: count for name, count in sorted(counts.items()) if count < smallest}
        if len(counts) - len(small) < 2:
            return None, small
        labels = [None if answer.group in small else answer.group for answer in outcome.answers]
        return rb.group_bands(risks, labels, delta=self.delta, method=self.band, local=self.local), small


def _bounds(band: rb.Band, measure: rb.Functional, method: str) -> MeasureBounds:
    interval = rb.bound(band, measure, method=method)
    return MeasureBounds(
        measure=measure,
        interval=interval,
        published=rb.bound(band, measure, method="plugin"),
        measured=rb.measured_dispersion(band.risks, measure),
        method=method,
        certificate=f"dispersion_{measure.name.replace(':', '_')}" if np.isfinite(interval.upper) else None,
    )
