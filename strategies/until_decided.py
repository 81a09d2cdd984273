"""Clients asked batch by batch, in an order that the seed settles, until what is required is decided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from flwr.serverapp import Grid

import riskband as rb
from protocol.questions import Query
from riskband.answers.rows import seeded_order
from riskband.answers.scaled import CHANGE, Scale
from strategies.asking.failures import Failure, FailureReason, in_order
from strategies.asking.query import Arrays, RoundOutcome
from strategies.asking.replies import num_needed
from strategies.certifying import CertifyingStrategy, Conclusion

_PASSED = "its batch was looked at without it before the run was interrupted"


@runtime_checkable
class Reader(Protocol):
    """What can be made of answers: the `FDivergence` or `Comparison` that would ask all clients the same."""

    scale: ClassVar[Scale]

    def answered(self, outcome: RoundOutcome[Any]) -> Any:
        """Return what the answers say of the clients, in the order of `outcome.answers`."""

    def concluded(self, outcome: RoundOutcome[Any], answers: Any, found: Mapping[str, rb.Certificate]) -> Conclusion:
        """Return a conclusion with these certificates of what is required, by its names."""


@dataclass(eq=False, kw_only=True)
class UntilDecided(CertifyingStrategy):
    """Ask as few clients as decide what is required; all others are left alone.

    A hello first tells which clients there are. The place of each in the order follows from the seed and its name,
    whoever else is there and whatever node it connects from. After every batch a `riskband.Sequence` looks at the
    answers in that order, not in that of their arrival. The quorum is a fraction of the clients whose turn has come:
    while too few of these have answered, further ones are asked.

    Raises ValueError if nothing is required, or a setting of `QueryStrategy` is out of its range.
    """

    reader: Reader
    batch_size: int
    max_clients: int = 0  # not more of them are asked; 0: all
    # Called before the answers are looked at, with the last client in the order whose turn has come as `client_id`; and
    # those with which it was called in the interrupted run.
    on_look: Callable[..., None] | None = None
    looked_at: Collection[str] = ()

    def __post_init__(self) -> None:
        self.earlier = self.earlier or ()  # so that it says hello
        super().__post_init__()
        self._num_taken, self._last = 0, ""  # of the order
        # Refuses what it cannot decide before anybody is asked.
        answers = rb.ClientChanges if self.scale is CHANGE else rb.ClientRisks
        rb.Sequence(self.requirements, delta=self.delta, of=answers)

    @property
    def scale(self) -> Scale:  # type: ignore[override]
        """That of the reader's answers."""
        return self.reader.scale

    @property
    def num_expected(self) -> int:
        """All clients, and as soon as any is asked those whose turn has come."""
        return self._num_taken or super().num_expected

    def ask_in_turn(self, grid: Grid, queries: Mapping[str, Query], arrays: Arrays, *, round: int) -> RoundOutcome[Any]:
        """Ask as `ask_unanswered` batch by batch, until it is decided; the answers are in the order of asking."""
        order = seeded_order(queries, seed=self.seed)
        limit, found = min(self.max_clients or len(order), len(order)), RoundOutcome[Any]((), (), 0)
        held = self._earlier.names(self.query)
        # What is looked at again must begin with what was looked at: who was missing then stays missing.
        seen = seeded_order({*order, *self.looked_at}, seed=self.seed)
        passed = {*seen[: max((seen.index(name) + 1 for name in self.looked_at), default=0)]} - held
        while self._num_taken < limit and not self._is_over(found, limit):
            batch = order[self._num_taken : min(self._num_taken + self.batch_size, limit)]
            due = {name: queries[name] for name in batch if name not in passed}
            asked = self.ask_unanswered(grid, due, arrays, round=round)
            late = [Failure(name, FailureReason.NO_REPLY, _PASSED) for name in batch if name in passed]
            answers = {answer.client_id: answer for answer in asked.answers}
            found = RoundOutcome(
                answers=(*found.answers, *(answers[name] for name in batch if name in answers)),
                failures=in_order((*found.failures, *asked.failures, *late)),
                num_asked=found.num_asked + asked.num_asked,
                node_ids={**found.node_ids, **asked.node_ids},
            )
            self._num_taken, self._last, round = self._num_taken + len(batch), batch[-1], round + 1
        return replace(found, unasked=tuple(sorted({*order[self._num_taken :]} - held)))

    def conclude(self, outcome: RoundOutcome[Any]) -> Conclusion:
        """Return the certificates of what is required, which hold however many were asked."""
        answers = self.reader.answered(outcome)
        return self.reader.concluded(outcome, answers, self._sequence(answers).certificates)

    def _is_over(self, found: RoundOutcome[Any], limit: int) -> bool:
        """Whether it is decided, or more have failed than a quorum of all would leave out."""
        num_answered = len(found.answers)
        if self._num_taken - num_answered > limit - num_needed(limit, self.quorum):
            return True
        if num_answered < max(2, self.num_needed):  # nothing is certified of one client
            return False
        sequence = self._sequence(self.reader.answered(found))
        if self.on_detail is not None and sequence.gate is not None:
            said = ", ".join(f"{each.requirement} {each.verdict}" for each in sequence.gate.verdicts)
            self.on_detail(f"{self._num_taken} of at most {limit} clients asked: {said}")
        return sequence.is_decided

    def _sequence(self, answers: Any) -> rb.Sequence:
        """All answers so far in their order, which was settled before any of them came."""
        if self.on_look is not None:
            self.on_look(client_id=self._last)
        sequence = rb.Sequence(self.requirements, delta=self.delta, of=type(answers), order="committed")
        sequence.add(answers)
        return sequence
