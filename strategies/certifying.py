"""What the strategies share: one question, what is assumed of who answered it, and what the answers certify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeGuard

import riskband as rb
from protocol.mechanisms import steps_of
from riskband.answers.design import SAID_BY_CLIENTS, design_asked
from riskband.answers.scaled import RISK, Scale
from riskband.models.losses import get_loss
from riskband.worst_cases.number import Number
from riskband.worst_cases.requirements import certificates_of, numbers_alone, numbers_behind, read_requirements
from strategies.asking.query import QueryStrategy, RoundOutcome


@dataclass(frozen=True, eq=False, kw_only=True)
class Conclusion:
    """What the answers of a run certify."""

    outcome: RoundOutcome[Any]  # valid answers and failures of the first round, which asks every client
    # What the answers say of the clients' plain risks, in the order of `client_ids`; of counts, the upper ends of
    # the clients' bins, in increasing order.
    risks: rb.ClientRisks
    certificates: dict[str, rb.Certificate]  # by the names of their files
    # What is required, by the names of the numbers; these are among the certificates too.
    required: Mapping[str, rb.Certificate] = field(default_factory=dict)
    band: rb.Band | None = None  # what curves are read off, if it has both sides

    @property
    def client_ids(self) -> tuple[str, ...]:
        """The clients that certificates are made of."""
        return tuple(answer.client_id for answer in self.outcome.answers)


def _design_of(asked: Mapping[str, Any], answers: Sequence[Any]) -> dict[str, Any] | None:
    """The design of the clients that answered; raises ValueError, which names one, if a client did not say its part."""
    found = dict(asked)
    for several, one in map(SAID_BY_CLIENTS.__getitem__, asked):
        found[several] = [getattr(answer, one) for answer in answers]
        if None in found[several]:
            rule = f"every client must say its {one.replace('_', '-')} in its node config"
            raise ValueError(f"{rule}, got none of {answers[found[several].index(None)].client_id}; add it there")
    return found or None


@dataclass(eq=False, kw_only=True)
class CertifyingStrategy(QueryStrategy):
    """Ask every client one question and certify from the answers; `start(grid, arrays).conclusion` is a `Conclusion`.

    Raises ValueError if a setting of `QueryStrategy` is out of its range.
    """

    # Probability that any certificate fails, in (0, 1). Each that is made on its own has an equal part of it, and so
    # have all that are read off one band, together.
    delta: float
    # What is assumed of who answered; see `riskband.ClientRisks`.
    missing: str = "ignore"
    contamination: int = 0
    answered_by: str = "fresh"
    # How the clients were drawn, if not independently; see `design_asked`.
    design: str = ""
    who_is_asked: str = "all"  # `ask` of the answers
    # Of all that the strategy draws, such as the order in which the bound on the mean looks at the clients. Fixed
    # before any of them is asked.
    seed: int | None = None
    # Limits such as "mean<=0.2": the numbers in them are certified from both sides.
    requirements: Sequence[str] = ()
    scale: ClassVar[Scale] = RISK  # of the number that each client has

    def __post_init__(self) -> None:
        super().__post_init__()
        self.numbers_required = numbers_behind(read_requirements(self.requirements, self.scale))

    @staticmethod
    def can_bet_on(source: object) -> TypeGuard[rb.ClientRisks]:
        """Return whether numbers are bet on, each with its own part of delta, or else are read off the band.

        Bets are sharper, and need every answer as the client measured it.
        """
        return isinstance(source, rb.ClientRisks) and source.are_as_measured

    def own_numbers(self, source: object, numbers: Sequence[Number]) -> list[Number]:
        """Return those of the numbers that are bounded by themselves, and not read off a band."""
        return numbers_alone(numbers, can_bet=self.can_bet_on(source))

    def certificates_required(
        self, source: Any, numbers: Sequence[Number], *, delta: float, band: rb.Band | None = None
    ) -> dict[str, rb.Certificate]:
        """Return a certificate of each number that anything bounds, with `delta` for each of its own; or of the band.

        Without a band one is made where it is needed, with `delta` for all that is read off it.
        """
        own = self.own_numbers(source, numbers)
        found, rest = certificates_of(source, own, delta=delta), [each for each in numbers if each not in own]
        if rest and band is None:
            band = rb.band(source, delta=delta, sides="two")
        return found if band is None else found | certificates_of(band, rest, delta=None)

    @property
    def who_answered(self) -> dict[str, Any]:
        """What is assumed of who answered, as keyword arguments of `riskband.ClientRisks`."""
        named = {name: getattr(self, name) for name in ("missing", "contamination", "answered_by")}
        return {**named, "ask": self.who_is_asked}

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
            design=_design_of(design_asked(self.design), outcome.answers),
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
        """Keyword arguments of `riskband.band`, but for delta."""
        return {"method": self.band, "local": self.local}

    def own_numbers(self, source: object, numbers: Sequence[Number]) -> list[Number]:
        """As of every strategy; a local step that was asked for is a band's."""
        return numbers_alone(numbers, can_bet=self.local == "marginal" and self.can_bet_on(source))

    def plain_risks(self, outcome: RoundOutcome[Any]) -> rb.ClientRisks:
        """Return the risks that the clients answered; see `client_risks`."""
        return self.client_risks(outcome, [answer.risk for answer in outcome.answers], loss=self.query.loss)


def by_file(required: Mapping[str, rb.Certificate]) -> dict[str, rb.Certificate]:
    """Return certificates of numbers by the names of their files."""
    return {f"require_{name.replace(':', '_')}": certificate for name, certificate in required.items()}
