"""One round of losses -> one band -> every certificate under f-divergence shifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import riskband as rb
from protocol.questions import LossQuery
from riskband.adversaries.losses import get_loss
from strategies.answered_risks import client_risks
from strategies.asking.query import QueryStrategy, RoundOutcome

Answers = rb.ClientRisks | rb.HistogramRisks | rb.HistogramLimits


@dataclass(frozen=True)
class FDivergenceResult:
    """What the answers of one round certify.

    Attributes
    ----------
    outcome : RoundOutcome
        Valid answers and failures.
    risks : riskband.ClientRisks
        The valid answers, in the order of `outcome.answers`; of counts, the upper ends of the clients' bins, in
        increasing order.
    band : riskband.Band
        Two-sided; every certificate but "mean" is read off it, so they hold together.
    certificates : dict of str to riskband.Certificate
        "mean", "survival", and for each divergence "worst_case_mean_<name>" and "worst_case_cdf_<name>".
    breakdowns : dict of str to riskband.Bracket
        For each divergence, the largest budget at which the share of clients at or above the breakdown threshold is
        certified to be at most the breakdown target.
    """

    outcome: RoundOutcome
    risks: rb.ClientRisks
    band: rb.Band
    certificates: dict[str, rb.Certificate]
    breakdowns: dict[str, rb.Bracket]


class FDivergence(QueryStrategy):
    """Ask every client for its plain loss once; certify unseen clients and reweighted networks.

    `start(grid, arrays).conclusion` is a `FDivergenceResult`.

    Parameters
    ----------
    model, x_shape, num_classes :
        The architecture to evaluate; see `protocol.questions.LossQuery`.
    loss : str
        A name in `riskband.adversaries.losses.LOSSES`.
    delta : float
        Probability that the certificates fail, in (0, 1): once for "mean", once for all the others together.
    band, local : str
        Method and local step of `riskband.band`.
    divergences : sequence of str
        Names in `riskband.DIVERGENCES`.
    budgets : sequence of float
        Sizes of the divergence balls, >= 0.
    thresholds : array_like, shape (num_thresholds,)
        Risks in [0, 1] at which curves are read.
    breakdown_threshold, breakdown_target : float
        The question that the breakdown budget answers, both in [0, 1].
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
        If the loss is unknown, or a setting of `QueryStrategy` is out of its range.
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
        divergences: Sequence[str],
        budgets: Sequence[float],
        thresholds: Sequence[float] | np.ndarray,
        breakdown_threshold: float,
        breakdown_target: float,
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
        self.divergences = tuple(divergences)
        self.budgets = np.asarray(budgets, dtype=np.float64)
        self.thresholds = np.asarray(thresholds, dtype=np.float64)
        self.breakdown_threshold = breakdown_threshold
        self.breakdown_target = breakdown_target
        self.missing = missing
        self.contamination = contamination
        self.seed = seed
        self.answered_by = answered_by

    def query(self) -> LossQuery:
        """Return the plain loss query."""
        return self._query

    def conclude(self, outcome: RoundOutcome) -> FDivergenceResult:
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
        return self.certified(outcome, risks)

    def certified(self, outcome: RoundOutcome, risks: Answers) -> FDivergenceResult:
        """Return the certificates that risks, or counts of clients in bins, give.

        Parameters
        ----------
        outcome : RoundOutcome
            Where they are from.
        risks : ClientRisks, HistogramRisks or HistogramLimits
            What the clients' answers say.
        """
        band = rb.band(risks, delta=self.delta, method=self.band, local=self.local, sides="two")
        certificates = {
            "mean": rb.mean_bound(risks, delta=self.delta, seed=self.seed),
            "survival": rb.survival(band, thresholds=self.thresholds),
        }
        for name in self.divergences:
            certificates[f"worst_case_mean_{name}"] = rb.worst_case_mean(band, divergence=name, budget=self.budgets)
            certificates[f"worst_case_cdf_{name}"] = rb.worst_case_cdf(
                band, divergence=name, budget=self.budgets, thresholds=self.thresholds
            )
        breakdowns = {
            name: rb.breakdown(band, divergence=name, target=self.breakdown_target, threshold=self.breakdown_threshold)
            for name in self.divergences
        }
        return FDivergenceResult(outcome, band.risks, band, certificates, breakdowns)
