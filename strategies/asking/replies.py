"""What one round's replies are worth: the checks behind `strategies.asking.query`, without any waiting.

Three steps, all pure: a reply is read (`read_reply`), its claims are compared with what was asked
(`AnswerCheck`), and after the round all replies are settled together (`settle`), because a changed answer, or a stolen
name of which nothing is known yet, only shows when the whole round is on the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Generic

import numpy as np
from flwr.app import Message, RecordDict
from typing_extensions import TypeVar

from protocol.records import num_bytes
from protocol.wire import (
    AdversarialAnswer,
    AdversarialQuery,
    Answer,
    CandidatesAnswer,
    CandidatesQuery,
    HelloAnswer,
    HelloQuery,
    LossAnswer,
    Query,
    claimed_name,
    decode_adversarial_answer,
    decode_answer,
    decode_candidates_answer,
    decode_hello_answer,
    decode_refusal,
)
from riskband.adversaries.losses import get_loss
from riskband.answers.risks import is_count
from riskband.checks import MAX_EXAMPLES, float_rounding
from strategies.asking.curve_rules import broken_curve_rules, noise_slack
from strategies.asking.failures import Failure, FailureReason, Node, in_order

# Ray puts a traceback, with process ids, before the words that matter: of a long text keep the end.
_HEAD_LENGTH, _TAIL_LENGTH = 40, 240
# risk·num_examples of an honest 0-1 risk misses a whole number only by rounding, which with noise may be a large one's.
_WHOLE_NUMBER_TOLERANCE, _ROUNDING = 1e-6, 1e-15

# Bytes of a reply for names, hashes, keys and what a later version may add; the numbers that were asked for are extra.
_ROOM = 4096
_BYTES_PER_NUMBER = 8

# Flower's error codes (flwr.common.constant.ErrorCode) that have a reason of their own.
_REASON_OF_CODE = {
    2: FailureReason.CLIENT_RAISED,
    5: FailureReason.NODE_UNAVAILABLE,
    8: FailureReason.CLIENT_CRASHED,
}


AnswerT = TypeVar("AnswerT", bound=Answer | HelloAnswer, default=LossAnswer)


@dataclass(frozen=True)
class RoundOutcome(Generic[AnswerT]):
    """All that one round brought, the same whatever the order of the replies.

    Attributes
    ----------
    answers : tuple of LossAnswer, or of AdversarialAnswer, CandidatesAnswer or HelloAnswer if that was asked
        The valid answers, one per client, sorted by client id.
    failures : tuple of Failure
        One per client that was expected or asked and gave no valid answer, sorted.
    num_asked : int
        Number of nodes a message was made for; nodes that never registered are not among them.
    node_ids : mapping of str to int
        Of the nodes that the answers came from, by client id; random, so not compared.
    """

    answers: tuple[AnswerT, ...]
    failures: tuple[Failure, ...]
    num_asked: int
    node_ids: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class AnswerCheck:
    """What the server knows and a valid answer must agree with.

    Attributes
    ----------
    query : LossQuery, AdversarialQuery or CandidatesQuery
        What was asked.
    model_hash, code_hash : str
        Of the model that was sent and of the code that should have run.
    expected_client_ids : frozenset of str or None
        The clients that may answer; None means any name is accepted.
    """

    query: Query
    model_hash: str
    code_hash: str
    expected_client_ids: frozenset[str] | None

    @property
    def max_bytes(self) -> int:
        """How large a reply may be, which follows from what was asked."""
        num_values = 0
        if isinstance(self.query, CandidatesQuery):
            num_values = len(self.query.candidates)
        elif isinstance(self.query, AdversarialQuery):
            num_values = 2 * (len(self.query.radii) + len(self.query.multipliers))
        return _ROOM + len(self.query.loss) + _BYTES_PER_NUMBER * num_values

    def decode(self, content: RecordDict) -> Answer:
        """Return the answer that a reply's content carries, or raise ValueError."""
        if isinstance(self.query, CandidatesQuery):
            return decode_candidates_answer(content)
        is_adversarial = isinstance(self.query, AdversarialQuery)
        return decode_adversarial_answer(content) if is_adversarial else decode_answer(content)

    def failure(self, answer: Answer) -> Failure | None:
        """Return the first rule that `answer` breaks, or None when it breaks none.

        Identity comes before the numbers: a number computed by other code is not worth judging.
        """
        for reason, detail in self._broken_rules(answer):
            return Failure(answer.client_id, reason, detail)
        return None

    def _broken_rules(self, answer: Answer) -> Iterator[tuple[FailureReason, str]]:
        yield from _broken_identity_rules(answer, self.code_hash, self.expected_client_ids)
        if answer.model_hash != self.model_hash:
            yield FailureReason.WRONG_MODEL, "the client evaluated another model than it was sent"
        if answer.loss != self.query.loss:
            yield FailureReason.WRONG_LOSS, one_line(f"asked for {self.query.loss!r}, got {answer.loss!r}")
        if isinstance(answer, CandidatesAnswer):
            assert isinstance(self.query, CandidatesQuery)
            yield from _broken_candidate_rules(answer, self.query)
        elif isinstance(answer, AdversarialAnswer):
            assert isinstance(self.query, AdversarialQuery)
            yield from _broken_risk_rules(answer.clean_risk, answer.num_examples, self.query.loss, self.query)
            yield from broken_curve_rules(answer, self.query)
        else:
            yield from _broken_risk_rules(answer.risk, answer.num_examples, self.query.loss, self.query)


@dataclass(frozen=True)
class HelloCheck:
    """What the server knows and the answer to a hello must agree with; see `AnswerCheck`."""

    code_hash: str
    expected_client_ids: frozenset[str] | None
    query: HelloQuery = field(default_factory=HelloQuery)

    @property
    def max_bytes(self) -> int:
        """How large a reply may be."""
        return _ROOM

    def decode(self, content: RecordDict) -> HelloAnswer:
        """Return the answer that a reply's content carries, or raise ValueError."""
        return decode_hello_answer(content)

    def failure(self, answer: HelloAnswer) -> Failure | None:
        """Return the first rule that `answer` breaks, or None when it breaks none."""
        for reason, detail in _broken_identity_rules(answer, self.code_hash, self.expected_client_ids):
            return Failure(answer.client_id, reason, detail)
        return None


Check = AnswerCheck | HelloCheck


def read_reply(reply: Message, check: Check, node: Node) -> Any:
    """Return the valid answer that a reply of a node carries, or what is wrong with it."""
    result = _read(reply, check)
    if result.client_id is not None and not node.may_be(result.client_id):
        return node.wrong_name(result.client_id)
    return node.signed(result) if isinstance(result, Failure) else result


def _read(reply: Message, check: Check) -> Any:
    if reply.has_error():
        return _failure_of_error(reply.error.code, reply.error.reason or "", check.code_hash)
    size, name = num_bytes(reply.content), claimed_name(reply.content)
    if size > check.max_bytes:  # Flower has fetched it by now; nothing of it is looked at
        detail = f"a reply to this question must have at most {check.max_bytes} bytes, got {size}"
        return Failure(name, FailureReason.TOO_LARGE, detail)
    try:
        answer: Any = check.decode(reply.content)
    except ValueError as error:
        return Failure(name, FailureReason.MALFORMED, one_line(str(error)))
    return check.failure(answer) or answer


def settle(
    replies_by_message: Iterable[Sequence[Answer | HelloAnswer | Failure]],
    num_asked: int,
    *,
    nodes: Sequence[Node] = (),
    owners: Mapping[str, int] = MappingProxyType({}),
) -> RoundOutcome[Any]:
    """Return the round's outcome from everything that was read, grouped by the message it answers.

    Repeating the same answer to one message changes nothing. Different answers to one message leave nothing to believe.
    Neither does one client id in the replies of two nodes, unless it is known whose it is: that of the one whose key is
    registered under it, or of its owner.

    Parameters
    ----------
    replies_by_message : iterable of sequences
        For each message (and each node that never got one) at least one answer or failure.
    num_asked : int
        See `RoundOutcome.num_asked`.
    nodes : sequence of Node
        Which the messages went to, in the same order.
    owners : mapping of str to int
        Of clients known from before this run: the node id. It decides between nodes that claim one name now.
    """
    groups = list(zip_longest((set(replies) for replies in replies_by_message), nodes))
    # A refused reply's claim counts too: when two nodes use one name, which is genuine is unknown.
    claimants: dict[str, list[Node | None]] = {}
    for group, node in groups:
        for name in {reply.client_id for reply in group if reply.client_id is not None}:
            claimants.setdefault(name, []).append(node)
    answers, failures = [], []
    node_ids: dict[str, int] = {}
    for group, node in groups:
        result = _contested(_settle_message(group, node), node, claimants, owners)
        if isinstance(result, Failure):
            failures.append(result)
        else:
            answers.append(result)
            node_ids |= {} if node is None else {result.client_id: node.id}
    return RoundOutcome(
        answers=tuple(sorted(answers, key=lambda answer: answer.client_id)),
        failures=in_order(failures),
        num_asked=num_asked,
        node_ids=node_ids,
    )


def _contested(
    result: Answer | HelloAnswer | Failure,
    node: Node | None,
    claimants: Mapping[str, Sequence[Node | None]],
    owners: Mapping[str, int],
) -> Answer | HelloAnswer | Failure:
    """What is left of a reply once it is known who else claims its name."""
    name = result.client_id
    if name is None or len(claimants[name]) == 1:
        return result
    owner = _owner(name, claimants[name], owners)
    if node is not None and owner is not None:
        return result if node.id == owner else node.wrong_name(name)
    if isinstance(result, Failure):
        return replace(result, client_id=None, claimed_name=name)
    detail = f"{len(claimants[name])} nodes answered under this name"
    failure = Failure(name, FailureReason.CLAIMED_TWICE, detail)
    return failure if node is None else node.signed(failure)


def _owner(name: str, claimants: Sequence[Node | None], owners: Mapping[str, int]) -> int | None:
    """The one of the nodes that claim a name which it is known to belong to, if there is one."""
    nodes = [node for node in claimants if node is not None]
    registered = [node.id for node in nodes if node.registered_name == name]
    known = [node.id for node in nodes if owners.get(name) == node.id]
    return next((ids[0] for ids in (registered, known) if len(ids) == 1), None)


def one_line(text: str) -> str:
    """Return text from another machine made safe to print: one line, printable, not too long."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(printable.split())
    if len(line) <= _HEAD_LENGTH + _TAIL_LENGTH:
        return line
    return f"{line[:_HEAD_LENGTH]} … {line[-_TAIL_LENGTH:]}"


def _broken_identity_rules(
    answer: Answer | HelloAnswer, code_hash: str, expected: frozenset[str] | None
) -> Iterator[tuple[FailureReason, str]]:
    if expected is not None and answer.client_id not in expected:
        yield FailureReason.UNKNOWN_CLIENT, "this name is not among the expected clients"
    if answer.code_hash != code_hash:
        yield FailureReason.WRONG_CODE, "the client ran other code than the server's bundle"


def _broken_candidate_rules(answer: CandidatesAnswer, query: CandidatesQuery) -> Iterator[tuple[FailureReason, str]]:
    if len(answer.risks) != len(query.candidates):
        detail = f"asked for {len(query.candidates)} risks, got {len(answer.risks)}"
        yield FailureReason.WRONG_LENGTH, detail
    if answer.budget_left is not None and answer.budget_left < 0:
        yield FailureReason.MALFORMED, "budget-left must be at least 0"
    for risk, candidate in zip(answer.risks, query.candidates, strict=False):
        yield from _broken_risk_rules(risk, answer.num_examples, candidate.loss, query)


def _broken_risk_rules(risk: float, num_examples: int, loss: str, query: Query) -> Iterator[tuple[FailureReason, str]]:
    if not math.isfinite(risk):
        yield FailureReason.NOT_FINITE, f"risk must be finite, got {risk}"
    slack = noise_slack(query, num_examples)
    if not -slack <= risk <= 1 + slack:
        yield FailureReason.OUT_OF_RANGE, f"risk must be in [0, 1]{' up to noise' if slack else ''}, got {risk}"
    if num_examples < 1:
        yield FailureReason.NO_EXAMPLES, f"num_examples must be at least 1, got {num_examples}"
    if num_examples > MAX_EXAMPLES:
        yield FailureReason.OUT_OF_RANGE, f"num_examples must be at most {MAX_EXAMPLES:g}, got {num_examples}"
    # With noise the numbers of an adversarial answer are in finer steps, for all losses the same.
    counts_errors = get_loss(loss).binary and not (query.privacy and isinstance(query, AdversarialQuery))
    if counts_errors and not _is_whole(risk, num_examples, is_noisy=bool(query.privacy)):
        yield (
            FailureReason.IMPOSSIBLE_COUNT,
            f"a {loss} risk is a whole number out of num_examples, got {risk} of {num_examples}",
        )


def _settle_message(replies: set[Answer | HelloAnswer | Failure], node: Node | None) -> Answer | HelloAnswer | Failure:
    if len(replies) == 1:
        return next(iter(replies))
    names = {reply.client_id for reply in replies}
    name = names.pop() if len(names) == 1 else None
    failure = Failure(name, FailureReason.CHANGED_ANSWER, "different replies to one message")
    return failure if node is None else node.signed(failure)


def _failure_of_error(code: int, reason: str, code_hash: str) -> Failure:
    kind = _REASON_OF_CODE.get(code, FailureReason.FLOWER_ERROR)
    refusal = decode_refusal(reason)
    if refusal is None:
        return Failure(None, kind, one_line(f"Flower's error {code}: {reason}"))
    other = "" if refusal.code_hash == code_hash else " (it runs other code than the server's bundle)"
    return Failure(refusal.client_id, kind, one_line(refusal.text + other))


def _is_whole(risk: float, num_examples: int, *, is_noisy: bool) -> bool:
    if is_noisy:
        count = risk * num_examples
        return abs(count - round(count)) <= _WHOLE_NUMBER_TOLERANCE + _ROUNDING * abs(count)
    value = np.array([risk])  # a client may compute in float32
    return bool(is_count(value, np.array([num_examples]), float_rounding(value))[0])
