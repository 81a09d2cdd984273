"""One round of losses -> one band -> every certificate under f-divergence shifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import riskband as rb
from riskband.answers.histogram import PlainAnswers
from riskband.functionals.quantiles import SINGLE_LOCAL
from riskband.search import Bracket
from strategies.asking.query import RoundOutcome
from strategies.certifying import BandStrategy, Conclusion


@dataclass(frozen=True, eq=False, kw_only=True)
class FDivergenceConclusion(Conclusion):
    """Certificates "mean", "survival", and for each divergence "worst_case_mean_<name>" and "worst_case_cdf_<name>".

    For `local` "marginal" and "observed", unless the answers are counts, "share" is the number of "survival" that is
    asked for: the share of clients at or above the breakdown threshold.
    """

    # Two-sided; "survival" and every "worst_case_cdf_<name>" are read off it, so they hold together, for every
    # threshold and budget. The others hold by themselves: the mean, the share, and for each divergence the worst means
    # at all budgets asked. Where answers are not what the clients measured (noise, counts, clients that are missing and
    # count as the worst, or may be wrong) the worst means are read off the band too.
    band: rb.Band
    # For each divergence, the largest budget at which the share of clients at or above the breakdown threshold is
    # certified to be at most the breakdown target.
    breakdowns: dict[str, Bracket]


@dataclass(eq=False, kw_only=True)
class FDivergence(BandStrategy):
    """Ask every client for its plain loss once; certify unseen clients and reweighted networks."""

    divergences: Sequence[str]  # names in `riskband.DIVERGENCES`
    budgets: Sequence[float]  # sizes of the divergence balls, >= 0
    thresholds: Sequence[float] | np.ndarray  # shape (num_thresholds,), risks in [0, 1] at which curves are read
    # The question that the breakdown budget answers, both in [0, 1].
    breakdown_threshold: float
    breakdown_target: float

    def answered(self, outcome: RoundOutcome[Any]) -> PlainAnswers:
        """Return what the answers say of the clients' risks."""
        return self.plain_risks(outcome)

    def conclude(self, outcome: RoundOutcome[Any]) -> FDivergenceConclusion:
        """Return the certificates that the valid answers give; see `QueryStrategy.conclude`."""
        risks = self.answered(outcome)
        band = rb.band(risks, sides="two", **self.band_settings)
        breakdown = {"threshold": self.breakdown_threshold, "target": self.breakdown_target}
        certificates = {
            "mean": rb.mean_bound(risks, delta=self.delta, seed=self.seed),
            "survival": rb.survival(band, thresholds=self.thresholds),
        }
        if isinstance(risks, rb.ClientRisks) and self.local in SINGLE_LOCAL:
            asked = [self.breakdown_threshold]
            certificates["share"] = rb.survival(risks, thresholds=asked, delta=self.delta, local=self.local)
        for name in self.divergences:
            ball: dict[str, Any] = {"divergence": name, "budget": np.asarray(self.budgets, dtype=np.float64)}
            certificates[f"worst_case_mean_{name}"] = (
                rb.worst_case_mean(risks, **ball, delta=self.delta, seed=self.seed)
                if self.can_bet_on(risks)
                else rb.worst_case_mean(band, **ball)
            )
            certificates[f"worst_case_cdf_{name}"] = rb.worst_case_cdf(band, **ball, thresholds=self.thresholds)
        return FDivergenceConclusion(
            outcome=outcome,
            risks=band.risks,
            certificates=certificates,
            band=band,
            breakdowns={name: rb.breakdown(band, divergence=name, **breakdown) for name in self.divergences},
        )
