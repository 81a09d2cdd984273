"""One exchange of messages: push them all, pull what arrives until the deadline, read every reply."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from client.wire import Answer, HelloAnswer
from strategies.eta import remaining_seconds
from strategies.failures import Failure, FailureReason
from strategies.replies import Check, read_reply

Replies = list[Answer | HelloAnswer | Failure]
"""What came back for one message, repetitions apart."""

# A message outlives the deadline a little, so that the deadline and not Flower's expiry ends a wait.
_TTL_MARGIN = 60.0
# While nothing arrives, progress is reported this often: a pause changes the remaining time.
_REPORT_INTERVAL = 2.0


class Parcel(NamedTuple):
    """One message of an exchange: to which node, of which type, and what a valid answer to it must agree with."""

    node_id: int
    message_type: str
    content: RecordDict
    check: Check


@dataclass(frozen=True)
class Progress:
    """How far a round is.

    Attributes
    ----------
    asked, answered : int
        Number of messages, and of those with a valid answer so far.
    failures : tuple of Failure
        One per message that has failed so far, in order of arrival; after the round also those without a reply.
    round : str
        The group id of the messages.
    eta_seconds : float or None
        Seconds until the round is over, at most until its deadline; None as long as there is no telling.
    """

    asked: int
    answered: int
    failures: tuple[Failure, ...] = ()
    round: str = ""
    eta_seconds: float | None = None

    @property
    def failed(self) -> int:
        """Number of messages that have failed so far."""
        return len(self.failures)


@dataclass(frozen=True)
class Exchange:
    """How to exchange messages; the settings of `strategies.query.QueryStrategy`."""

    reply_timeout: float
    poll_interval: float
    on_answer: Callable[[Any, Any], None] | None = None
    on_progress: Callable[[Progress], None] | None = None

    def run(self, grid: Grid, parcels: Sequence[Parcel], *, round: int) -> list[Replies]:
        """Push the messages and return what came back for each, in their order: at least one entry per message.

        Parameters
        ----------
        grid : Grid
            Flower's connection to the nodes.
        parcels : sequence of Parcel
            The messages.
        round : int
            Sent as their group id.
        """
        ttl = self.reply_timeout + _TTL_MARGIN
        # A list: HttpGrid pushes nothing when given a generator.
        messages = [
            Message(parcel.content, parcel.node_id, parcel.message_type, ttl=ttl, group_id=str(round))
            for parcel in parcels
        ]
        checks = [parcel.check for parcel in parcels]
        # A message the SuperLink did not take has no id; a refused push returns no ids at all.
        message_ids = list(grid.push_messages(messages)) or [""] * len(messages)
        not_sent = Failure(None, FailureReason.NOT_SENT, "the SuperLink did not accept the message")
        silent = Failure(None, FailureReason.NO_REPLY, f"no reply within {self.reply_timeout:g} s")
        check_of = {key: check for key, check in zip(message_ids, checks, strict=True) if key}
        current = _Round(self, messages, check_of)
        for key, check in zip(message_ids, checks, strict=True):
            if not key:
                current.note_failure(not_sent, check)
        current.report()
        while pending := current.open_messages():
            # Only open messages are pulled: the SuperLink forgets a reply once it is delivered.
            arrived = list(grid.pull_messages(pending))
            for reply in arrived:
                current.receive(reply)
            if arrived or current.seconds_since_report() >= _REPORT_INTERVAL:
                current.report()
            if time.monotonic() >= current.deadline:
                break
            if not arrived:
                pause_until(current.deadline, self.poll_interval)
        if pending := current.open_messages():
            for key in pending:
                current.note_failure(silent, check_of[key])
            current.report()
        return [(current.replies[key] or [silent]) if key else [not_sent] for key in message_ids]


class _Round:
    """What has come back so far of the messages of one exchange."""

    def __init__(self, settings: Exchange, messages: Sequence[Message], check_of: dict[str, Check]) -> None:
        self.replies: dict[str, Replies] = {key: [] for key in check_of}
        self.deadline = time.monotonic() + settings.reply_timeout
        self._settings = settings
        self._check_of = check_of
        self._num_messages = len(messages)
        self._group_id = messages[0].metadata.group_id if messages else ""
        self._failures: list[Failure] = []
        self._num_answered = 0
        self._arrivals: list[float] = []
        self._reported = time.monotonic()

    def open_messages(self) -> list[str]:
        """Return the ids of the messages without a reply."""
        return [key for key, received in self.replies.items() if not received]

    def receive(self, reply: Message) -> None:
        """Read a reply; one to nothing that was asked in this round is dropped, and so is a repetition."""
        message_id = reply.metadata.reply_to_message_id
        if message_id not in self.replies:
            return
        check = self._check_of[message_id]
        result = read_reply(reply, check)
        received = self.replies[message_id]
        if result in received:
            return
        received.append(result)
        is_failure = isinstance(result, Failure)
        if len(received) == 1:  # what comes later for the same message changes no count
            self._arrivals.append(time.monotonic())
            if is_failure:
                self.note_failure(result, check)
            else:
                self._num_answered += 1
        if not is_failure and self._settings.on_answer is not None:
            self._settings.on_answer(check.query, result)

    def note_failure(self, failure: Failure, check: Check) -> None:
        """Count a message as failed, under the name of its client where only one may answer."""
        expected = check.expected_client_ids
        if failure.client_id is None and expected is not None and len(expected) == 1:
            failure = replace(failure, client_id=next(iter(expected)))
        self._failures.append(failure)

    def report(self) -> None:
        """Tell whoever watches how far the round is."""
        self._reported = now = time.monotonic()
        if self._settings.on_progress is None:
            return
        num_open = self._num_messages - self._num_answered - len(self._failures)
        seconds = remaining_seconds(self._arrivals, num_open=num_open, now=now)
        self._settings.on_progress(
            Progress(
                asked=self._num_messages,
                answered=self._num_answered,
                failures=tuple(self._failures),
                round=self._group_id,
                eta_seconds=None if seconds is None else min(seconds, max(0.0, self.deadline - now)),
            )
        )

    def seconds_since_report(self) -> float:
        """Return how long ago `report` was called."""
        return time.monotonic() - self._reported


def pause_until(deadline: float, poll_interval: float) -> None:
    """Sleep for a poll interval, but not past the deadline (seconds of `time.monotonic`)."""
    time.sleep(max(0.0, min(poll_interval, deadline - time.monotonic())))


def check_round_settings(
    num_clients: int, quorum: float, node_timeout: float, reply_timeout: float, poll_interval: float
) -> None:
    """Check the settings of a `strategies.query.QueryStrategy`; raises ValueError if one is out of its range."""
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    if not 0 < quorum <= 1:
        raise ValueError(f"quorum must be in (0, 1], got {quorum}; it is a fraction of num_clients, not a count")
    for name, seconds in (("node_timeout", node_timeout), ("reply_timeout", reply_timeout)):
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{name} must be a finite number of seconds >= 0, got {seconds}")
    if not poll_interval > 0:
        raise ValueError(f"poll_interval must be > 0 seconds, got {poll_interval}")
