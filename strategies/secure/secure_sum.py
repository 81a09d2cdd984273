"""The server's side of secure aggregation: shares, masked vectors, confirmations, unmasking; and who is in the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict

from protocol.questions import HelloAnswer
from protocol.secure import wire
from protocol.secure.cryptography import KEY_BYTES, MAC_BYTES, SEALED_BYTES, SEED_BYTES, WORD, threshold_of
from protocol.secure.questions import (
    ConsistencyAnswer,
    ConsistencyQuery,
    HeldShares,
    KeysAnswer,
    MaskedAnswer,
    SharesAnswer,
    SharesQuery,
    UnmaskAnswer,
    UnmaskQuery,
)
from strategies.asking.failures import Failure, FailureReason
from strategies.asking.replies import HelloCheck
from strategies.secure.neighbourhoods import neighbourhoods
from strategies.secure.unmasking import UnmaskingError, unmasked_sum
from strategies.secure.unopened_shares import left_out

_NUMBER_BYTES = 8  # of a client's number on the wire

Rule = Callable[[Any], tuple[FailureReason, str] | None]
"""From an answer to what is wrong with it, if anything."""


@dataclass(frozen=True, kw_only=True)
class SecureCheck(HelloCheck):
    """What an answer of a secure round must agree with; see `strategies.asking.replies.AnswerCheck`."""

    decoder: Callable[[RecordDict], HelloAnswer]
    rule: Rule = lambda answer: None
    num_bytes: int = 0

    @property
    def max_bytes(self) -> int:
        """How large a reply may be: what any may have, and the bytes that were asked for."""
        return super().max_bytes + self.num_bytes

    def decode(self, content: RecordDict) -> HelloAnswer:
        """Return the answer that a reply's content carries, or raise ValueError."""
        return self.decoder(content)

    def failure(self, answer: HelloAnswer) -> Failure | None:
        """Return the first rule that `answer` breaks, or None when it breaks none."""
        broken = self.rule(answer)
        return super().failure(answer) or (None if broken is None else Failure(answer.client_id, *broken))


@dataclass(frozen=True)
class Asked:
    """What one client is asked in one round; `num_bytes` is about how long the answer is."""

    action: str
    content: RecordDict
    decoder: Callable[[RecordDict], HelloAnswer]
    rule: Rule
    num_bytes: int


Ask = Callable[[Mapping[str, Asked], int], tuple[dict[str, Any], list[Failure]]]
"""From questions by client id, and the number of the round, to valid answers by client id, and named failures."""


@dataclass(frozen=True)
class MaskedQuestion:
    """The question whose answers are added up.

    Attributes
    ----------
    num_values : int
        Length of the vector that answers.
    loss, model_hash : str
        What it is about.
    digest : bytes
        What masks depend on: `protocol.secure.questions.HistogramQuery.digest`.
    content : callable
        From the shares that a client is to hold to the content of its message.
    """

    num_values: int
    loss: str
    model_hash: str
    digest: bytes
    content: Callable[[HeldShares], RecordDict]

    def rule(self, answer: MaskedAnswer) -> tuple[FailureReason, str] | None:
        """Return what is wrong with a masked answer; of its numbers nothing can be seen."""
        if answer.model_hash != self.model_hash:
            return FailureReason.WRONG_MODEL, "the client evaluated another model than it was sent"
        if answer.loss != self.loss:
            return FailureReason.WRONG_LOSS, "the client computed another loss than it was asked for"
        if len(answer.vector) != self.num_values * WORD.itemsize:
            return FailureReason.WRONG_LENGTH, f"asked for {self.num_values} counts, got {len(answer.vector)} bytes"
        return None


class SecureSum:
    """Rounds 2 to 5 of secure aggregation, to one sum.

    Parameters
    ----------
    keys : mapping of str to KeysAnswer
        Of the first round: the participants.
    ask : callable
        Asks clients by name.
    num_neighbours : int
        See `strategies.secure.neighbourhoods`.
    rng : Generator
        Of the neighbourhoods.

    Attributes
    ----------
    failures : list of Failure
        Participants whose vector is not in the sum.
    late_failures : list of Failure
        Participants whose vector is in the sum and who gave no shares in the end; the others' were enough.
    """

    def __init__(
        self, keys: Mapping[str, KeysAnswer], ask: Ask, *, num_neighbours: int, rng: np.random.Generator
    ) -> None:
        self._names = dict(enumerate(sorted(keys), start=1))
        self._public = {number: keys[name].keys for number, name in self._names.items()}
        self._members = neighbourhoods(len(keys), num_neighbours=num_neighbours, rng=rng)
        self._ask = ask
        self._sent: dict[int, dict[int, bytes]] = {}
        self._held: dict[int, set[int]] = {}
        self.failures: list[Failure] = []
        self.late_failures: list[Failure] = []

    def collect(self, question: MaskedQuestion) -> dict[str, MaskedAnswer]:
        """Let the participants share their secrets, ask the question, and return the masked vectors that came.

        Of two participants that disagree about a share between them, one is left out: see `left_out`.
        """
        questions = {number: self._shares_question(number) for number in self._members}
        shared: dict[int, SharesAnswer] = self._ask_numbers(questions, 2, self.failures)
        self._sent = {
            number: dict(zip(answer.sent.numbers, answer.sent.shares, strict=True)) for number, answer in shared.items()
        }
        questions = {number: self._masked_question(question, number) for number in shared}
        masked: dict[int, MaskedAnswer] = self._ask_numbers(questions, 3, self.failures)
        self._held = {
            number: {number, *self._senders(number)} - set(answer.unopened) for number, answer in masked.items()
        }
        disputes = {number: masked.keys() & set(answer.unopened) for number, answer in masked.items()}
        for number, num_others in left_out(disputes).items():
            detail = f"shares between this client and {num_others} others did not open: sealed or opened wrongly"
            self.failures.append(Failure(self._names[number], FailureReason.CONTRADICTION, detail))
            del masked[number]
        return {self._names[number]: answer for number, answer in masked.items()}

    def total(self, question: MaskedQuestion, masked: Mapping[str, MaskedAnswer]) -> np.ndarray:
        """Return the sum of the vectors, shape (num_values,), modulo 2**32.

        Parameters
        ----------
        question : MaskedQuestion
            What was asked.
        masked : mapping of str to MaskedAnswer
            What `collect` returned.

        Raises
        ------
        UnmaskingError
            If too few participants are left to unmask it.
        """
        vectors = {number: masked[name].vector for number, name in self._names.items() if name in masked}
        lists = ConsistencyQuery(tuple(sorted(vectors)), tuple(sorted(self._sent.keys() - vectors.keys())))
        self._require_holders(lists)
        questions = {number: self._consistency_question(lists, number) for number in vectors}
        confirmed: dict[int, ConsistencyAnswer] = self._ask_numbers(questions, 4, self.late_failures)
        macs = {number: dict(zip(answer.numbers, answer.macs, strict=True)) for number, answer in confirmed.items()}
        questions = {number: self._unmask_question(lists, macs, number) for number in macs}
        answers: dict[int, UnmaskAnswer] = self._ask_numbers(questions, 5, self.late_failures)
        seeds: dict[int, dict[int, bytes]] = {number: {} for number in lists.survivors}
        keys: dict[int, dict[int, bytes]] = {}
        for holder, answer in answers.items():
            for number, share in zip(self._of_held(holder, lists.survivors), answer.seed_shares, strict=True):
                seeds[number][holder] = share
            for number, share in zip(self._of_held(holder, lists.dropped), answer.key_shares, strict=True):
                keys.setdefault(number, {})[holder] = share
        return unmasked_sum(
            vectors,
            question=question.digest,
            neighbourhoods=self._members,
            held=self._held,
            public=self._public,
            seed_shares=seeds,
            key_shares=keys,
        )

    def _senders(self, number: int) -> tuple[int, ...]:
        """Those whose shares a participant is sent."""
        return tuple(member for member in self._members[number] if member != number and member in self._sent)

    def _of_held(self, number: int, listed: tuple[int, ...]) -> list[int]:
        """Those in a list whose shares a participant holds, in increasing order."""
        return [other for other in listed if other in self._held[number]]

    def _require_holders(self, lists: ConsistencyQuery) -> None:
        """Raise UnmaskingError if the masks of a participant without a vector can never be found."""
        for number in lists.dropped:
            num_holders = sum(number in self._held[other] for other in lists.survivors)
            needed = threshold_of(len(self._members[number]))
            if 0 < num_holders < needed:
                raise UnmaskingError(
                    f"{needed} of {len(self._members[number])} members must hold a share of {self._names[number]}'s "
                    f"key, got {num_holders}: it sealed its shares wrongly, or too many others dropped out; run again"
                )

    def _shares_question(self, number: int) -> Asked:
        members = self._members[number]
        query = SharesQuery(
            number,
            threshold_of(len(members)),
            {member: self._public[member] for member in members},
            is_complete=len(members) == len(self._members),
        )
        others = tuple(member for member in members if member != number)

        def rule(answer: SharesAnswer) -> tuple[FailureReason, str] | None:
            if answer.sent.numbers == others and {*map(len, answer.sent.shares)} <= {SEALED_BYTES}:
                return None
            return (
                FailureReason.WRONG_LENGTH,
                f"asked for {len(others)} shares of {SEALED_BYTES} bytes for neighbours, got others",
            )

        num_bytes = len(others) * (_NUMBER_BYTES + SEALED_BYTES)
        return Asked(wire.SHARES_ACTION, wire.encode_shares_query(query), wire.decode_shares_answer, rule, num_bytes)

    def _masked_question(self, question: MaskedQuestion, number: int) -> Asked:
        senders = self._senders(number)
        held = HeldShares(senders, tuple(self._sent[sender][number] for sender in senders))

        def rule(answer: MaskedAnswer) -> tuple[FailureReason, str] | None:
            if not set(answer.unopened) <= set(senders):
                return FailureReason.CONTRADICTION, "shares that did not open must be among those that were sent"
            return question.rule(answer)

        num_bytes = question.num_values * WORD.itemsize + len(senders) * _NUMBER_BYTES
        return Asked(wire.HISTOGRAM_ACTION, question.content(held), wire.decode_masked_answer, rule, num_bytes)

    def _consistency_question(self, lists: ConsistencyQuery, number: int) -> Asked:
        others = tuple(other for other in self._of_held(number, lists.survivors) if other != number)

        def rule(answer: ConsistencyAnswer) -> tuple[FailureReason, str] | None:
            if answer.numbers == others and {*map(len, answer.macs)} <= {MAC_BYTES}:
                return None
            return FailureReason.WRONG_LENGTH, f"asked for confirmations for {len(others)} neighbours, got others"

        content = wire.encode_consistency_query(lists)
        num_bytes = len(others) * (_NUMBER_BYTES + MAC_BYTES)
        return Asked(wire.CONSISTENCY_ACTION, content, wire.decode_consistency_answer, rule, num_bytes)

    def _unmask_question(self, lists: ConsistencyQuery, macs: Mapping[int, Mapping[int, bytes]], number: int) -> Asked:
        query = UnmaskQuery({other: sent[number] for other, sent in macs.items() if number in sent})
        num_seeds, num_keys = (len(self._of_held(number, listed)) for listed in (lists.survivors, lists.dropped))
        wanted = ([SEED_BYTES] * num_seeds, [KEY_BYTES] * num_keys)

        def rule(answer: UnmaskAnswer) -> tuple[FailureReason, str] | None:
            if (list(map(len, answer.seed_shares)), list(map(len, answer.key_shares))) == wanted:
                return None
            return FailureReason.WRONG_LENGTH, f"asked for {num_seeds + num_keys} shares, got others"

        num_bytes = sum(map(sum, wanted))
        return Asked(wire.UNMASK_ACTION, wire.encode_unmask_query(query), wire.decode_unmask_answer, rule, num_bytes)

    def _ask_numbers(self, questions: Mapping[int, Asked], round: int, failures: list[Failure]) -> dict[int, Any]:
        answers, failed = self._ask({self._names[number]: asked for number, asked in questions.items()}, round)
        failures += failed
        return {number: answers[self._names[number]] for number in questions if self._names[number] in answers}
