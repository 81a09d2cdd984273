"""Why a client that was expected is not among the answers, and which node that was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256


class FailureReason(StrEnum):
    """Why a client that was expected is not among the answers."""

    NODE_MISSING = "node-missing"
    NOT_SENT = "not-sent"
    NO_REPLY = "no-reply"
    NODE_UNAVAILABLE = "node-unavailable"
    CLIENT_RAISED = "client-raised"
    CLIENT_CRASHED = "client-crashed"
    FLOWER_ERROR = "flower-error"
    TOO_LARGE = "too-large"
    MALFORMED = "malformed"
    NOT_FINITE = "not-finite"
    OUT_OF_RANGE = "out-of-range"
    NO_EXAMPLES = "no-examples"
    WRONG_LENGTH = "wrong-length"
    NOT_CONCAVE = "not-concave"
    NOT_SIGNED = "not-signed"
    CONTRADICTION = "contradiction"
    IMPOSSIBLE_COUNT = "impossible-count"
    WRONG_LOSS = "wrong-loss"
    WRONG_GUARANTEE = "wrong-guarantee"
    WRONG_MODEL = "wrong-model"
    WRONG_CODE = "wrong-code"
    UNKNOWN_CLIENT = "unknown-client"
    WRONG_NAME = "wrong-name"
    CLAIMED_TWICE = "claimed-twice"
    CHANGED_ANSWER = "changed-answer"
    BUDGET_SPENT = "budget-spent"
    WRONG_SUM = "wrong-sum"
    NO_SUM = "no-sum"


def node_hash(node_id: int) -> str:
    """Return what a node is called in files that others see: 16 hexadecimal digits of the SHA-256 of Flower's id.

    Who knows the id itself has half of what it takes to reply in the node's place.
    """
    return sha256(b"%d" % node_id).hexdigest()[:16]


@dataclass(frozen=True)
class Failure:
    """A client without a valid answer."""

    # The client: the name of its node's key, or under which its node is known from earlier in the run, else the name
    # that the reply gave and that no other node claims; None where none is there.
    client_id: str | None
    reason: FailureReason  # the rule that was broken
    detail: str  # One line for people. Node and message ids never appear: they are random.
    # A name that the reply gave and that is not known to be its client's: it belongs to another node, or another claims
    # it too.
    claimed_name: str | None = None
    # The name under which the operator registered the node's key; None where keys are not registered.
    node_name: str | None = None
    # `node_hash` of the node; None if no node was there. It is random, so it is not compared.
    node: str | None = field(default=None, compare=False, repr=False)

    @property
    def who(self) -> str:
        """The client in words, by the best name that is known of it."""
        node = f"node {self.node}" if self.node_name is None else f"the node registered as {self.node_name!r}"
        return self.client_id or ("a client" if self.node is None and self.node_name is None else node)


@dataclass(frozen=True)
class Node:
    """A node that is asked, and what is known of it."""

    id: int  # Flower's id, which the SuperLink vouches for
    registered_name: str | None = None  # see `Failure.node_name`
    # The client: the registered name; without one, who answered from this node earlier in the run.
    client_id: str | None = None
    # Node ids by the names of keys and of all clients that have answered in this run; None: of several keys.
    owners: Mapping[str, int | None] = field(default_factory=dict, compare=False, repr=False)

    def may_be(self, name: str) -> bool:
        """Return whether the node may answer under a name: its own if that is known, else one of no other node."""
        return self.client_id in (None, name) and self.owners.get(name, self.id) == self.id

    def wrong_name(self, name: str) -> Failure:
        """Return the failure of a reply under a name that the node may not answer under."""
        if self.client_id == name:
            detail = f"two keys or more are registered under the name {name!r}"
            return self.named(Failure(None, FailureReason.CLAIMED_TWICE, detail, claimed_name=name))
        known = "it is another node's" if self.client_id is None else f"this node's name is {self.client_id!r}"
        detail = f"the reply claims the name {name!r}, but {known}"
        return self.named(Failure(None, FailureReason.WRONG_NAME, detail, claimed_name=name))

    def named(self, failure: Failure) -> Failure:
        """Return a failure of this node with all that is known of the node."""
        client_id = failure.client_id if self.client_id is None else self.client_id
        return replace(failure, client_id=client_id, node=node_hash(self.id), node_name=self.registered_name)


def alike(failures: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines about failures, (who, why) each: those that failed alike are one line, by their first."""
    whose: dict[str, list[str]] = {}
    for who, why in failures:
        whose.setdefault(why, []).append(who)
    more = {why: f" and {len(names) - 1} more" if names[1:] else "" for why, names in whose.items()}
    return [f"{names[0]}{more[why]}: {why}" for why, names in whose.items()]


def in_order(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures in the order of an outcome: those without a name first, then by name, reason and detail."""
    return tuple(
        sorted(failures, key=lambda f: (f.client_id or "", f.reason, f.detail, f.claimed_name or "", f.node_name or ""))
    )
