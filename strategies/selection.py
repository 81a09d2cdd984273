"""One round in which every client judges all candidate models -> the certified best of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import riskband as rb
from protocol.questions import CandidatesAnswer
from riskband.models.losses import get_loss
from riskband.selection import Selection, check_selection
from strategies.asking.query import RoundOutcome
from strategies.certifying import CertifyingStrategy, Conclusion


@dataclass(frozen=True, eq=False, kw_only=True)
class SelectionConclusion(Conclusion):
    """The certificate of the best candidate as "selection"; none if a sequence certifies no candidate."""

    selection: Selection  # the best candidate with its certificate, and the table of all
    # The candidate that numbers about a single one, such as `risks`, are of: the best, or the first if none is
    # certified.
    shown: str
    by_candidate: dict[str, rb.ClientRisks]  # the risks under each candidate, in their order


@dataclass(eq=False, kw_only=True)
class SelectionStrategy(CertifyingStrategy):
    """Ask every client once for its mean loss under each of several candidate models; certify the best of them.

    The candidates of the `query` are fixed before any client is asked. An answer takes one value of a query budget for
    each, and they share the budget of a noise. `start` takes all sets of weights, as `protocol.weight_sets.packed`
    returns them.

    Raises ValueError if a loss is unknown, a candidate or an argument of the selection breaks its rule, or a setting of
    `QueryStrategy` is out of its range: all before anybody is asked.
    """

    objective: str | Mapping[str, float] | rb.Objective  # for example "mean+0.5*gini"
    # Further keyword arguments of `riskband.select`: method, target, order, band, local, dispersion, mean_share and
    # seed.
    selection_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        candidates = tuple(replace(each, loss=get_loss(each.loss).name) for each in self.query.candidates)
        self.query = replace(self.query, candidates=candidates)
        self._arguments = {"objective": rb.Objective(self.objective), "delta": self.delta, **self.selection_settings}
        check_selection([candidate.name for candidate in candidates], **self._arguments)

    def conclude(self, outcome: RoundOutcome[CandidatesAnswer]) -> SelectionConclusion:
        """Return the candidate that the valid answers certify; see `QueryStrategy.conclude`."""
        risks = {
            candidate.name: self.client_risks(
                outcome, [answer.risks[index] for answer in outcome.answers], loss=candidate.loss
            )
            for index, candidate in enumerate(self.query.candidates)
        }
        selection = rb.select(risks, **self._arguments)
        shown = selection.best or next(iter(risks))
        return SelectionConclusion(
            outcome=outcome,
            risks=risks[shown],
            certificates={} if selection.certificate is None else {"selection": selection.certificate},
            selection=selection,
            shown=shown,
            by_candidate=risks,
        )
