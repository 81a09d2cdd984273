"""Why a client that was expected is not among the answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class FailureReason(StrEnum):
    """Why a client that was expected is not among the answers."""

    NODE_MISSING = "node-missing"
    NOT_SENT = "not-sent"
    NO_REPLY = "no-reply"
    NODE_UNAVAILABLE = "node-unavailable"
    CLIENT_RAISED = "client-raised"
    CLIENT_CRASHED = "client-crashed"
    FLOWER_ERROR = "flower-error"
    MALFORMED = "malformed"
    NOT_FINITE = "not-finite"
    OUT_OF_RANGE = "out-of-range"
    NO_EXAMPLES = "no-examples"
    WRONG_LENGTH = "wrong-length"
    NOT_CONCAVE = "not-concave"
    CONTRADICTION = "contradiction"
    IMPOSSIBLE_COUNT = "impossible-count"
    WRONG_LOSS = "wrong-loss"
    WRONG_GUARANTEE = "wrong-guarantee"
    WRONG_MODEL = "wrong-model"
    WRONG_CODE = "wrong-code"
    UNKNOWN_CLIENT = "unknown-client"
    CLAIMED_TWICE = "claimed-twice"
    CHANGED_ANSWER = "changed-answer"
    BUDGET_SPENT = "budget-spent"


@dataclass(frozen=True)
class Failure:
    """A client without a valid answer.

    Attributes
    ----------
    client_id : str or None
        The name that the reply claimed; None when nothing readable came.
    reason : FailureReason
        The rule that was broken.
    detail : str
        One line for people. Node and message ids never appear: they are random.
    """

    client_id: str | None
    reason: FailureReason
    detail: str


def in_order(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures in the order of an outcome: those without a name first, then by name, reason and detail."""
    return tuple(sorted(failures, key=lambda failure: (failure.client_id or "", failure.reason, failure.detail)))
