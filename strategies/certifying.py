"""What the strategies share: one question, what is assumed of who answered it, and what the answers certify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import riskband as rb
from protocol.mechanisms import steps_of
from riskband.models.losses import get_loss
from strategies.asking.query import QueryStrategy, RoundOutcome


@dataclass(frozen=True, eq=False, kw_only=True)
class Conclusion:
    """What the answers of a run certify."""

    outcome: RoundOutcome[Any]  # valid answers and failures of the first round, which asks every client
    # What the answers say of the clients' plain risks, in the order of `outcome.answers`; of counts, the upper ends of
    # the clients' bins, in increasing order.
    risks: rb.ClientRisks
    certificates: dict[str, rb.Certificate]  # by the names of their files


@dataclass(eq=False, kw_only=True)
class CertifyingStrategy(QueryStrategy):
    """Ask every client one question and certify from the answers; `start(grid, arrays).conclusion` is a `Conclusion`.

    Raises ValueError if a setting of `QueryStrategy` is out of its range.
    """

    # Probability that what is certified fails, in (0, 1): for each certificate that is made on its own, and for all
    # that are read off one band.
    delta: float
    # What is assumed of who answered; see `riskband.ClientRisks`.
    missing: str = "ignore"
    contamination: int = 0
    answered_by: str = "fresh"
    # Of all that the strategy draws, such as the order in which the bound on the mean looks at the clients. Fixed
    # before any of them is asked.
    seed: int | None = None

    @property
    def who_answered(self) -> dict[str, Any]:
        """What is assumed of who answered, as keyword arguments of `riskband.ClientRisks`."""
        return {"missing": self.missing, "contamination": self.contamination, "answered_by": self.answered_by}

    def client_risks(self, outcome: RoundOutcome[Any], values: Sequence[float], *, loss: str) -> rb.ClientRisks:
        """Return the clients' risks from empirical ones, in the order of `outcome.answers`; failed ones are missing.

        The values have noise if that was asked for, and are means of `loss`. Raises ValueError if there are fewer than
        two answers, or no more than `contamination`.
        """
        is_binary, noise = get_loss(loss).binary, None
        if self.query.privacy:
            num_steps = steps_of(is_binary=is_binary)
            noise = rb.AnswerNoise(self.query.privacy, num_values=self.query.num_values, num_steps=num_steps)
        return rb.ClientRisks(
            values,
            [answer.num_examples for answer in outcome.answers],
            binary=is_binary,
            num_missing=len(outcome.failures),
            noise=noise,
            **self.who_answered,
        )


@dataclass(eq=False, kw_only=True)
class BandStrategy(CertifyingStrategy):
    """Ask every client for its plain loss, and read certificates off one two-sided band of the answers.

    Raises ValueError if the loss is unknown, or a setting of `QueryStrategy` is out of its range.
    """

    # Method and local step of `riskband.band`.
    band: str
    local: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.query = replace(self.query, loss=get_loss(self.query.loss).name)

    @property
    def band_settings(self) -> dict[str, Any]:
        """Keyword arguments of `riskband.band`."""
        return {"delta": self.delta, "method": self.band, "local": self.local}

    @staticmethod
    def can_bet_on(source: object) -> TypeGuard[rb.ClientRisks]:
        """Return whether numbers are bet on, each with a delta of its own, or else are read off the band.

        Bets are sharper, and need every answer as the client measured it.
        """
        return isinstance(source, rb.ClientRisks) and source.are_as_measured

    def plain_risks(self, outcome: RoundOutcome[Any]) -> rb.ClientRisks:
        """Return the risks that the clients answered; see `client_risks`."""
        return self.client_risks(outcome, [answer.risk for answer in outcome.answers], loss=self.query.loss)
