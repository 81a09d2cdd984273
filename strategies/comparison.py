"""One round in which every client tries a new model beside an old one -> how much worse it is, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import riskband as rb
from protocol.questions import ComparisonAnswer
from riskband.answers.scaled import CHANGE
from riskband.models.losses import get_loss
from strategies.asking.query import RoundOutcome
from strategies.certifying import CertifyingStrategy, Conclusion, by_file


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparisonConclusion(Conclusion):
    """What `riskband.compare` certifies of the changes; `risks` are those of the new model."""

    changes: rb.ClientChanges  # in the order of `outcome.answers`


@dataclass(eq=False, kw_only=True)
class Comparison(CertifyingStrategy):
    """Ask every client once for the losses of a new and an old model, and on how many examples the new one is worse.

    `start` takes the weights of both as `protocol.weight_sets.joined` returns them, the new ones first; the new ones
    alone if the old model is the client's own.

    Raises ValueError if a setting of `QueryStrategy` is out of its range.
    """

    scale = CHANGE

    def answered(self, outcome: RoundOutcome[ComparisonAnswer]) -> rb.ClientChanges:
        """Return the changes that the valid answers say."""
        said = ("old_risk", "new_risk", "num_examples", "num_worse")
        old, new, sizes, worse = ([getattr(answer, name) for answer in outcome.answers] for name in said)
        is_binary, who = get_loss(self.query.loss).binary, {"num_missing": len(outcome.failures), **self.who_answered}
        return rb.ClientChanges(old, new, sizes, is_binary, num_worse=worse if is_binary else None, **who)

    def conclude(self, outcome: RoundOutcome[ComparisonAnswer]) -> ComparisonConclusion:
        """Return the certificates that the valid answers give; see `QueryStrategy.conclude`."""
        changes = self.answered(outcome)
        found = rb.compare(changes, delta=self.delta, require=self.requirements)
        return self.concluded(outcome, changes, found.certificates)

    def concluded(
        self, outcome: RoundOutcome[ComparisonAnswer], changes: rb.ClientChanges, found: Mapping[str, rb.Certificate]
    ) -> ComparisonConclusion:
        """Return a conclusion with these certificates by name, of what is required and what is not."""
        required = {name: found[name] for name in map(str, self.numbers_required) if name in found}
        others = {name.replace(":", "_"): each for name, each in found.items() if name not in required}
        new = [answer.new_risk for answer in outcome.answers]
        return ComparisonConclusion(
            outcome=outcome,
            risks=self.client_risks(outcome, new, loss=self.query.loss),
            certificates=others | by_file(required),
            required=required,
            changes=changes,
        )
