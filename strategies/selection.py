"""One round in which every client judges all candidate models -> the certified best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import riskband as rb
from protocol.questions import Candidate, CandidatesAnswer, CandidatesQuery
from riskband.adversaries.losses import get_loss
from riskband.selection import check_selection
from strategies.answered_risks import client_risks
from strategies.asking.query import QueryStrategy, RoundOutcome


@dataclass(frozen=True)
class SelectionResult:
    """What the answers of one round certify.

    Attributes
    ----------
    outcome : RoundOutcome
        Valid answers and failures.
    risks : dict of str to riskband.ClientRisks
        By candidate, in their order: the valid answers, in the order of `outcome.answers`.
    selection : riskband.Selection
        The best candidate with its certificate, and the table of all.
    """

    outcome: RoundOutcome[CandidatesAnswer]
    risks: dict[str, rb.ClientRisks]
    selection: rb.Selection

    @property
    def certificates(self) -> dict[str, rb.Certificate]:
        """The certificate of the best candidate as "selection"; none if a sequence certifies no candidate."""
        certificate = self.selection.certificate
        return {} if certificate is None else {"selection": certificate}

    @property
    def shown(self) -> str:
        """The candidate that numbers about a single one are of: the best, or the first if none is certified."""
        return self.selection.best or next(iter(self.risks))


class SelectionStrategy(QueryStrategy):
    """Ask every client once for its mean loss under each of several candidate models; certify the best of them.

    `start(grid, arrays).conclusion` is a `SelectionResult`; `arrays` holds all sets of weights, as
    `protocol.weight_sets.packed` returns them.

    Parameters
    ----------
    model, x_shape, num_classes :
        The architecture of all candidates; see `protocol.questions.CandidatesQuery`.
    candidates : sequence of protocol.questions.Candidate
        Fixed before any client is asked. An answer takes one value of a query budget for each.
    objective : str, mapping or riskband.Objective
        For example "mean+0.5*gini".
    delta : float
        Probability that anything certified fails, in (0, 1).
    missing, contamination, answered_by :
        What is assumed of who answered; see `riskband.ClientRisks`.
    privacy : str
        Noise that the clients are to add, with a budget that the candidates share; see `protocol.questions.LossQuery`.
    selection_settings : mapping, optional
        Further keyword arguments of `riskband.select`: method, target, order, band, local, dispersion, mean_share and
        seed.
    **settings
        Of `QueryStrategy`.

    Raises
    ------
    ValueError
        If a loss is unknown, a candidate or an argument of the selection breaks its rule, or a setting of
        `QueryStrategy` is out of its range: all before anybody is asked.
    """

    def __init__(
        self,
        *,
        model: str,
        x_shape: Sequence[int],
        num_classes: int,
        candidates: Sequence[Candidate],
        objective: str | Mapping[str, float] | rb.Objective,
        delta: float,
        missing: str = "ignore",
        contamination: int = 0,
        answered_by: str = "fresh",
        privacy: str = "",
        selection_settings: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        named = tuple(replace(candidate, loss=get_loss(candidate.loss).name) for candidate in candidates)
        self._query = CandidatesQuery(model, tuple(x_shape), num_classes, named, privacy)
        self.missing = missing
        self.contamination = contamination
        self.answered_by = answered_by
        self._arguments = {"objective": rb.Objective(objective), "delta": delta, **(selection_settings or {})}
        check_selection([candidate.name for candidate in named], **self._arguments)

    def query(self) -> CandidatesQuery:
        """Return the question about all candidates."""
        return self._query

    def conclude(self, outcome: RoundOutcome[CandidatesAnswer]) -> SelectionResult:
        """Return the candidate that the valid answers certify.

        Raises
        ------
        ValueError
            If there are fewer than two answers, or what is assumed of the clients cannot be.
        """
        risks = {
            candidate.name: client_risks(
                outcome,
                [answer.risks[index] for answer in outcome.answers],
                query=self._query,
                loss=candidate.loss,
                missing=self.missing,
                contamination=self.contamination,
                answered_by=self.answered_by,
            )
            for index, candidate in enumerate(self._query.candidates)
        }
        return SelectionResult(outcome, risks, rb.select(risks, **self._arguments))
