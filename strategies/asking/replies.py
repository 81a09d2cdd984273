"""What one round's replies are worth: the checks behind `strategies.asking.query`, without any waiting.

Three steps, all pure: a reply is read (`read_reply`), its claims are compared with what was asked (`Check`), and after
the round all replies are settled together (`settle`), because a changed answer, or a stolen name of which nothing is
known yet, only shows when the whole round is on the table. Then the strategy says whether they are enough.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Any, Generic

from flwr.app import Message
from typing_extensions import TypeVar

from protocol.codec import num_bytes
from protocol.questions import AdversarialQuery, Answer, CandidatesQuery, LossAnswer, Query, SignedAnswer
from protocol.wire import UNKNOWN_MODEL, answer_type, claimed_name, decode_answer, decode_refusal
from riskband.wording import printable
from strategies.asking.failures import Failure, FailureReason, Node, in_order, node_hash
from strategies.asking.rules import Rule, broken_rules

# Ray puts a traceback, with process ids, before the words that matter: of a long text keep the end.
_HEAD_LENGTH, _TAIL_LENGTH = 40, 240
# Bytes of a reply for names, hashes, keys and what a later version may add; the numbers that were asked for are extra.
_ROOM = 4096
_BYTES_PER_NUMBER = 8

# Flower's error codes (flwr.common.constant.ErrorCode) that have a reason of their own.
_REASON_OF_CODE = {
    2: FailureReason.CLIENT_RAISED,
    5: FailureReason.NODE_UNAVAILABLE,
    8: FailureReason.CLIENT_CRASHED,
}
_OF_ERRORS = frozenset({*_REASON_OF_CODE.values(), FailureReason.FLOWER_ERROR})


# What Flower's simulation sends in place of a reply when Ray's worker is gone, which it gives further messages too.
_DEAD_WORKER, _ACTOR = "ActorDiedError", re.compile(r"actor_id: (\w+)")

Received = Answer | SignedAnswer | Failure
"""What may be read from a reply."""

AnswerT = TypeVar("AnswerT", bound=Answer | SignedAnswer, default=LossAnswer)


@dataclass(frozen=True)
class RoundOutcome(Generic[AnswerT]):
    """All that one round brought, the same whatever the order of the replies."""

    # The valid answers, one per client, sorted by client id, or in an order that was settled before any came.
    answers: tuple[AnswerT, ...]
    failures: tuple[Failure, ...]  # one per client that was expected or asked and gave no valid answer, sorted
    num_asked: int  # number of nodes a message was made for; nodes that never registered are not among them
    # Of the nodes that the answers came from, by client id; random, so not compared.
    node_ids: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False, kw_only=True)
    unasked: tuple[str, ...] = field(default=(), kw_only=True)  # clients that were left alone, as nothing was open


@dataclass(frozen=True)
class Check:
    """What the server knows and a valid answer must agree with."""

    query: Any  # what was asked, of `protocol.wire.MESSAGES`
    code_hash: str  # of the code that should have run
    expected_client_ids: frozenset[str] | None  # the clients that may answer; None means any name is accepted
    # From an answer of the right type to the rules that it breaks beside these.
    broken_rules: Callable[[Any], Iterable[Rule]] = field(default=lambda answer: (), compare=False)
    num_bytes: int = 0  # about how long the numbers of an answer are

    @property
    def max_bytes(self) -> int:
        """How large a reply may be, which follows from what was asked."""
        return _ROOM + self.num_bytes

    def failure(self, answer: Answer | SignedAnswer) -> Failure | None:
        """Return the first rule that `answer` breaks, or None when it breaks none."""
        for reason, detail in chain(self._broken_identity_rules(answer), self.broken_rules(answer)):
            return Failure(answer.client_id, reason, one_line(detail))
        return None

    def _broken_identity_rules(self, answer: Answer | SignedAnswer) -> Iterator[Rule]:
        if self.expected_client_ids is not None and answer.client_id not in self.expected_client_ids:
            yield FailureReason.UNKNOWN_CLIENT, "this name is not among the expected clients"
        if answer.code_hash != self.code_hash:
            yield FailureReason.WRONG_CODE, "the client ran other code than the server's bundle"


def answer_check(query: Query, model_hash: str, code_hash: str, expected_client_ids: frozenset[str] | None) -> Check:
    """Return the check of the answers to a question about the model with this hash; see `Check`."""
    num_values = 0
    if isinstance(query, CandidatesQuery):
        num_values = len(query.candidates)
    elif isinstance(query, AdversarialQuery):
        num_values = 2 * (len(query.radii) + len(query.multipliers))
    rules = partial(broken_rules, query=query, model_hash=model_hash)
    num_bytes = len(query.loss) + _BYTES_PER_NUMBER * num_values
    return Check(query, code_hash, expected_client_ids, rules, num_bytes)


def read_reply(reply: Message, check: Check, node: Node) -> Any:
    """Return the valid answer that a reply of a node carries, or what is wrong with it."""
    result = _read(reply, check)
    if result.client_id is not None and not node.may_be(result.client_id):
        return node.wrong_name(result.client_id)
    return node.named(result) if isinstance(result, Failure) else result


def _read(reply: Message, check: Check) -> Any:
    if reply.has_error():
        return _failure_of_error(reply.error.code, reply.error.reason or "", check.code_hash)
    size, name = num_bytes(reply.content), claimed_name(reply.content)
    if size > check.max_bytes:  # Flower has fetched it by now; nothing of it is looked at
        detail = f"a reply to this question must have at most {check.max_bytes} bytes, got {size}"
        return Failure(name, FailureReason.TOO_LARGE, detail)
    try:
        answer: Any = decode_answer(reply.content, answer_type(check.query))
    except ValueError as error:
        return Failure(name, FailureReason.MALFORMED, one_line(str(error)))
    return check.failure(answer) or answer


def not_signed(result: Received, reply: Message, node: Node) -> Failure:
    """Return the failure of a reply, read as `result`, that its node's client has not signed."""
    if isinstance(result, Failure) and reply.has_error() and decode_refusal(reply.error.reason or "") is None:
        return replace(result, detail=f"{result.detail} (not signed)")  # Flower's own, as of a process that ended
    detail = (
        "replies to this client must be signed with the key that is listed for it, and this one is not: the client "
        "signs with none or another, or somebody else replied"
    )
    return node.named(Failure(None, FailureReason.NOT_SIGNED, detail))


def dead_worker(reply: Message) -> str | None:
    """Return which of Ray's workers was gone instead of a reply; None if none was."""
    # Not one expression for both: a client's text would make it look from each of the first to the end.
    reason = (reply.error.reason or "") if reply.has_error() else ""
    found = _ACTOR.search(reason.partition(_DEAD_WORKER)[2])
    return None if found is None else found[1]


def lacks_model(reply: Message) -> bool:
    """Return whether a client says that it does not keep the weights of which it was sent the hash."""
    refusal = decode_refusal(reply.error.reason or "") if reply.has_error() else None
    return refusal is not None and UNKNOWN_MODEL in refusal.text


def settle(
    replies_by_message: Iterable[Sequence[Received]],
    num_asked: int,
    *,
    nodes: Sequence[Node] = (),
    owners: Mapping[str, str] = MappingProxyType({}),
) -> RoundOutcome[Any]:
    """Return the round's outcome from everything that was read, grouped by the message it answers.

    Repeating the same answer to one message changes nothing. Different answers to one message leave nothing to believe.
    Neither does one client id in the answers of two nodes, unless it is known whose it is. An error that has the name
    of an answer leaves the answer as it is.

    Parameters
    ----------
    replies_by_message, num_asked
        For each message (and each node that never got one) at least one answer or failure; `RoundOutcome.num_asked`.
    nodes : sequence of Node
        Which the messages went to, in the same order.
    owners : mapping of str to str
        Of clients known from before this run: `node_hash` of the node. It decides between nodes that claim a name now.
    """
    groups = list(zip_longest((set(replies) for replies in replies_by_message), nodes))
    # A refused reply's claim counts too: when two nodes use one name, which is genuine is unknown.
    claimants: dict[str, list[Node | None]] = {}
    for group, node in groups:
        for name in {reply.client_id for reply in group if reply.client_id is not None}:
            claimants.setdefault(name, []).append(node)
    answers, failures = [], []
    node_ids: dict[str, int] = {}
    num_answers = Counter(name for group, _ in groups for name in {r.client_id for r in group if not _is_error(r)})
    for group, node in groups:
        result = _contested(_settle_message(group, node), node, claimants, num_answers, owners)
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
    result: Received,
    node: Node | None,
    claimants: Mapping[str, Sequence[Node | None]],
    num_answers: Mapping[str | None, int],
    owners: Mapping[str, str],
) -> Received:
    """What is left of a reply once it is known who else claims its name."""
    name = result.client_id
    if name is None or len(claimants[name]) == 1:
        return result
    owner = owners.get(name)
    if node is not None and owner in [node_hash(each.id) for each in claimants[name] if each is not None]:
        return result if node_hash(node.id) == owner else node.wrong_name(name)
    if isinstance(result, Failure):
        return replace(result, client_id=None, claimed_name=name)
    if num_answers[name] == 1:
        return result
    detail = f"{num_answers[name]} nodes answered under this name"
    failure = Failure(name, FailureReason.CLAIMED_TWICE, detail)
    return failure if node is None else node.named(failure)


def _is_error(received: Received) -> bool:
    """Whether it is from an error, which anybody may send in anybody's name, and not from an answer."""
    return isinstance(received, Failure) and received.reason in _OF_ERRORS


class QuorumError(RuntimeError):
    """Too few valid answers to conclude anything; `outcome` holds all that came."""

    def __init__(self, message: str, outcome: RoundOutcome[Any]) -> None:
        super().__init__(message)
        self.outcome = outcome


def num_needed(num_clients: int, quorum: float) -> int:
    """Return how many valid answers meet the quorum, a fraction of `num_clients` in (0, 1]; at least 1."""
    # 0.07 * 100 is 7.000000000000001 in floating point; that must not ask for an 8th client.
    return max(1, math.ceil(quorum * num_clients - 1e-9))


def one_line(text: str) -> str:
    """Return text from another machine made safe to print: one line, printable, not too long."""
    line = printable(" ".join(text.split()))
    if len(line) <= _HEAD_LENGTH + _TAIL_LENGTH:
        return line
    return f"{line[:_HEAD_LENGTH]} … {line[-_TAIL_LENGTH:]}"


def _settle_message(replies: set[Received], node: Node | None) -> Received:
    if len(replies) == 1:
        return next(iter(replies))
    names = {reply.client_id for reply in replies}
    name = names.pop() if len(names) == 1 else None
    failure = Failure(name, FailureReason.CHANGED_ANSWER, "different replies to one message")
    return failure if node is None else node.named(failure)


def _failure_of_error(code: int, reason: str, code_hash: str) -> Failure:
    kind = _REASON_OF_CODE.get(code, FailureReason.FLOWER_ERROR)
    refusal = decode_refusal(reason)
    if refusal is None:
        return Failure(None, kind, one_line(f"Flower's error {code}: {reason}"))
    other = "" if refusal.code_hash == code_hash else " (it runs other code than the server's bundle)"
    return Failure(refusal.client_id, kind, one_line(refusal.text + other))
