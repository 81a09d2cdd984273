"""One exchange of messages: push them all, pull what arrives until the deadline, read every reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from client.wire import Answer, HelloAnswer
from strategies.failures import Failure, FailureReason
from strategies.replies import Check, read_reply

Replies = list[Answer | HelloAnswer | Failure]
"""What came back for one message, repetitions apart."""


@dataclass(frozen=True)
class Progress:
    """How far a round is: counts of messages asked, answered validly so far, and failed so far."""

    asked: int
    answered: int
    failed: int


@dataclass(frozen=True)
class Exchange:
    """How to exchange messages; the settings of `strategies.query.QueryStrategy`."""

    reply_timeout: float
    poll_interval: float
    on_answer: Callable[[Any, Any], None] | None
    on_progress: Callable[[Progress], None] | None

    def run(self, grid: Grid, messages: list[Message], checks: Sequence[Check]) -> list[Replies]:
        """Push the messages and return what came back for each, in their order: at least one entry per message.

        Parameters
        ----------
        grid : Grid
            Flower's connection to the nodes.
        messages : list of Message
            A list: HttpGrid pushes nothing when given a generator.
        checks : sequence of AnswerCheck or HelloCheck
            What a valid answer to each message must agree with.
        """
        # A message the SuperLink did not take has no id; a refused push returns no ids at all.
        message_ids = list(grid.push_messages(messages)) or [""] * len(messages)
        check_of = {key: check for key, check in zip(message_ids, checks, strict=True) if key}
        replies: dict[str, Replies] = {key: [] for key in check_of}
        deadline = time.monotonic() + self.reply_timeout
        self._report(replies)
        while pending := [key for key, received in replies.items() if not received]:
            # Only open messages are pulled: the SuperLink forgets a reply once it is delivered.
            arrived = list(grid.pull_messages(pending))
            for reply in arrived:
                self._receive(reply, replies, check_of)
            if arrived:
                self._report(replies)
            if time.monotonic() >= deadline:
                break
            if not arrived:
                pause_until(deadline, self.poll_interval)
        silent = Failure(None, FailureReason.NO_REPLY, f"no reply within {self.reply_timeout:g} s")
        not_sent = Failure(None, FailureReason.NOT_SENT, "the SuperLink did not accept the message")
        return [(replies[key] or [silent]) if key else [not_sent] for key in message_ids]

    def _receive(self, reply: Message, replies: dict[str, Replies], check_of: Mapping[str, Check]) -> None:
        message_id = reply.metadata.reply_to_message_id
        if message_id not in replies:  # not a reply to anything we asked in this round
            return
        result = read_reply(reply, check_of[message_id])
        if result in replies[message_id]:
            return
        replies[message_id].append(result)
        if not isinstance(result, Failure) and self.on_answer is not None:
            self.on_answer(check_of[message_id].query, result)

    def _report(self, replies: Mapping[str, Replies]) -> None:
        if self.on_progress is None:
            return
        first = [received[0] for received in replies.values() if received]
        num_failed = sum(isinstance(result, Failure) for result in first)
        self.on_progress(Progress(asked=len(replies), answered=len(first) - num_failed, failed=num_failed))


def pause_until(deadline: float, poll_interval: float) -> None:
    """Sleep for a poll interval, but not past the deadline (seconds of `time.monotonic`)."""
    time.sleep(max(0.0, min(poll_interval, deadline - time.monotonic())))
