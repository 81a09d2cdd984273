"""One round in which every client tries a new model beside an old one -> how much worse it is, and for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import riskband as rb
from protocol.questions import ComparisonAnswer
from riskband.models.losses import get_loss
from strategies.asking.query import RoundOutcome
from strategies.certifying import CertifyingStrategy, Conclusion


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparisonConclusion(Conclusion):
    """What `riskband.compare` certifies of the changes; `risks` are those of the new model."""

    changes: rb.ClientChanges
    old_risks: np.ndarray  # shape (num_clients,), in the order of `outcome.answers`


@dataclass(eq=False, kw_only=True)
class Comparison(CertifyingStrategy):
    """Ask every client once for the losses of a new and an old model, and on how many examples the new one is worse.

    `start` takes the weights of both as `protocol.weight_sets.joined` returns them, the new ones first; the new ones
    alone if the old model is the client's own.

    Raises ValueError if a setting of `QueryStrategy` is out of its range.
    """

    def conclude(self, outcome: RoundOutcome[ComparisonAnswer]) -> ComparisonConclusion:
        """Return the certificates that the valid answers give; see `QueryStrategy.conclude`."""
        answers = outcome.answers
        sizes = [answer.num_examples for answer in answers]
        who = {"num_missing": len(outcome.failures), **self.who_answered}
        if get_loss(self.query.loss).binary:
            counts = [answer.num_worse or 0 for answer in answers], [answer.num_better for answer in answers]
            changes = rb.ClientChanges.from_counts(*counts, sizes, **who)
        else:
            changes = rb.ClientChanges([answer.new_risk - answer.old_risk for answer in answers], sizes, **who)
        found = rb.compare(changes, delta=self.delta, require=self.requirements)
        return ComparisonConclusion(
            outcome=outcome,
            risks=self.client_risks(outcome, [answer.new_risk for answer in answers], loss=self.query.loss),
            certificates=dict(found.certificates),
            required={} if found.gate is None else found.gate.certificates,
            changes=changes,
            old_risks=np.array([answer.old_risk for answer in answers]),
        )
