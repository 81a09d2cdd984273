"""One exchange of messages: push them all, pull what arrives until the deadline, read every reply."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid

from protocol.wire import message_type
from strategies.asking.failures import Failure, FailureReason, Node
from strategies.asking.replies import Check, Received, read_reply

Replies = list[Received]
"""What came back for one message, repetitions apart."""

# A message outlives the deadline a little, so that the deadline and not Flower's expiry ends a wait.
_TTL_MARGIN = 60.0
# While nothing arrives, progress is reported this often: a pause changes the remaining time.
_REPORT_INTERVAL = 2.0
# How often one message is sent again: a client without a record of its answers pays for each.
MAX_RESENDS = 2
MIN_REPLIES = 5
"""With fewer replies nothing is said about when the rest will be there."""


class Parcel(NamedTuple):
    """One message of an exchange: to which node, its content, and what a valid answer to it must agree with."""

    node: Node
    content: RecordDict
    check: Check

    @property
    def message_type(self) -> str:
        """Flower's type of the message."""
        return message_type(self.check.query)


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
    """How to exchange messages; the settings of `strategies.asking.query.QueryStrategy`.

    A message that was lost with its node is sent again when the node is back within `return_timeout` seconds, before
    the deadline, and no more than `MAX_RESENDS` times. A `return_timeout` of 0 means never.
    """

    reply_timeout: float
    poll_interval: float
    on_answer: Callable[[Any, Any, int], None] | None = None
    on_progress: Callable[[Progress], None] | None = None
    return_timeout: float = 0.0

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
        current = _Round(self, grid, parcels, str(round))
        current.send(range(len(parcels)))
        current.report()
        while current.has_open():
            # Only open messages are pulled: the SuperLink forgets a reply once it is delivered.
            arrived = list(grid.pull_messages(pending)) if (pending := current.open_messages()) else []
            for reply in arrived:
                current.receive(reply)
            has_news = current.send_again() or bool(arrived)
            if has_news or current.seconds_since_report() >= _REPORT_INTERVAL:
                current.report()
            if time.monotonic() >= current.deadline:
                break
            if not has_news:
                pause_until(current.deadline, self.poll_interval)
        if current.has_open():
            current.close()
            current.report()
        return current.replies


class _Lost(NamedTuple):
    """A message that was lost with its node: until when that may return, and the failure if it does not."""

    until: float
    failure: Failure


class _Round:
    """What has come back so far of the messages of one exchange, by their places in its list of parcels."""

    def __init__(self, settings: Exchange, grid: Grid, parcels: Sequence[Parcel], group_id: str) -> None:
        self.replies: list[Replies] = [[] for _ in parcels]
        self.deadline = time.monotonic() + settings.reply_timeout
        self._settings = settings
        self._grid = grid
        self._parcels = parcels
        self._group_id = group_id
        self._place_of: dict[str, int] = {}  # by message id, of a message sent again only the last
        self._lost: dict[int, _Lost] = {}
        self._num_resends = [0] * len(parcels)
        self._failures: list[Failure] = []
        self._num_answered = 0
        self._arrivals: list[float] = []
        self._reported = time.monotonic()

    def send(self, places: Sequence[int]) -> None:
        """Push the messages at these places; those that the SuperLink does not take have failed."""
        ttl = max(0.0, self.deadline - time.monotonic()) + _TTL_MARGIN
        messages = [
            Message(parcel.content, parcel.node.id, parcel.message_type, ttl=ttl, group_id=self._group_id)
            for parcel in (self._parcels[place] for place in places)
        ]
        # A list: HttpGrid pushes nothing when given a generator. A message the SuperLink did not take has no id; a
        # refused push returns no ids at all.
        message_ids = list(self._grid.push_messages(messages)) or [""] * len(messages)
        for place, message_id in zip(places, message_ids, strict=True):
            if message_id:
                self._place_of[message_id] = place
            else:
                self._fail(place, Failure(None, FailureReason.NOT_SENT, "the SuperLink did not accept the message"))

    def has_open(self) -> bool:
        """Return whether a message has no reply yet."""
        return not all(self.replies)

    def open_messages(self) -> list[str]:
        """Return the ids of the messages that a reply may still come to."""
        return [key for key, place in self._place_of.items() if not self.replies[place]]

    def receive(self, reply: Message) -> None:
        """Read a reply; one to nothing that was asked in this round is dropped, and so is a repetition."""
        message_id = reply.metadata.reply_to_message_id
        place = self._place_of.get(message_id)
        if place is None:
            return
        parcel, received = self._parcels[place], self.replies[place]
        result = read_reply(reply, parcel.check, parcel.node)
        if result in received:
            return
        if self._is_lost(reply, result, place):
            del self._place_of[message_id]  # an answer that comes to it after all counts no more
            self._lost[place] = _Lost(time.monotonic() + self._settings.return_timeout, result)
            return
        if not received:
            self._arrivals.append(time.monotonic())
        if isinstance(result, Failure):
            self._fail(place, result)
        else:
            self._accept(place, result)

    def send_again(self) -> bool:
        """Send what was lost with nodes that are back, give up those that stay away, and return whether any was."""
        if not self._lost:
            return False
        now, here = time.monotonic(), set(self._grid.get_node_ids())
        back = [place for place in self._lost if self._parcels[place].node.id in here]
        gone = [place for place, lost in self._lost.items() if place not in back and now >= lost.until]
        for place in gone:
            self._fail(place, self._lost.pop(place).failure)
        for place in back:
            del self._lost[place]
            self._num_resends[place] += 1
        if back:
            self.send(back)
        return bool(back or gone)

    def close(self) -> None:
        """Note that clients without a reply have failed."""
        silent = Failure(None, FailureReason.NO_REPLY, f"no reply within {self._settings.reply_timeout:g} s")
        for place, received in enumerate(self.replies):
            if not received:
                self._fail(place, self._lost[place].failure if place in self._lost else silent)

    def report(self) -> None:
        """Report how far the round is."""
        self._reported = now = time.monotonic()
        if self._settings.on_progress is None:
            return
        num_open = len(self._parcels) - self._num_answered - len(self._failures)
        seconds = remaining_seconds(self._arrivals, num_open=num_open, now=now)
        self._settings.on_progress(
            Progress(
                asked=len(self._parcels),
                answered=self._num_answered,
                failures=tuple(self._failures),
                round=self._group_id,
                eta_seconds=None if seconds is None else min(seconds, max(0.0, self.deadline - now)),
            )
        )

    def seconds_since_report(self) -> float:
        """Return how long ago `report` was called."""
        return time.monotonic() - self._reported

    def _is_lost(self, reply: Message, result: Received, place: int) -> bool:
        """Whether the message may be sent again; only the SuperLink knows that a node is away."""
        return (
            isinstance(result, Failure)
            and result.reason is FailureReason.NODE_UNAVAILABLE
            and reply.metadata.src_node_id == SUPERLINK_NODE_ID
            and not self.replies[place]
            and self._settings.return_timeout > 0.0
            and self._num_resends[place] < MAX_RESENDS
        )

    def _accept(self, place: int, answer: Any) -> None:
        parcel = self._parcels[place]
        if not self.replies[place]:  # what comes later for the same message changes no count
            self._num_answered += 1
        self.replies[place].append(answer)
        if self._settings.on_answer is not None:
            self._settings.on_answer(parcel.check.query, answer, parcel.node.id)

    def _fail(self, place: int, failure: Failure) -> None:
        signed = self._parcels[place].node.signed(failure)
        if not self.replies[place]:
            self._failures.append(signed)
        self.replies[place].append(signed)


def remaining_seconds(arrivals: Sequence[float], *, num_open: int, now: float) -> float | None:
    """Return the seconds until the open replies are there, if they come as the later half of the replies did.

    What the first half waited for (clients that start, a model that travels) is over and does not count; a pause since
    the last reply does.

    Parameters
    ----------
    arrivals : sequence of float
        When each reply came, in seconds of one clock, nondecreasing.
    num_open : int
        Number of replies that are missing.
    now : float
        The time on that clock, at or after the last arrival.

    Returns
    -------
    float or None
        Seconds >= 0; None with fewer than `MIN_REPLIES` replies, or where the later half came in no time.
    """
    if num_open == 0:
        return 0.0
    num_replies = len(arrivals)
    if num_replies < MIN_REPLIES:
        return None
    num_early = num_replies // 2
    elapsed = now - arrivals[num_early - 1]
    return num_open * elapsed / (num_replies - num_early) if elapsed > 0 else None


def pause_until(deadline: float, poll_interval: float) -> None:
    """Sleep for a poll interval, but not past the deadline (seconds of `time.monotonic`)."""
    time.sleep(max(0.0, min(poll_interval, deadline - time.monotonic())))


def check_round_settings(
    num_clients: int, quorum: float, node_timeout: float, reply_timeout: float, poll_interval: float
) -> None:
    """Check the settings of a `strategies.asking.query.QueryStrategy`; raises ValueError if one is out of its range."""
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    if not 0 < quorum <= 1:
        raise ValueError(f"quorum must be in (0, 1], got {quorum}; it is a fraction of num_clients, not a count")
    for name, seconds in (("node_timeout", node_timeout), ("reply_timeout", reply_timeout)):
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{name} must be a finite number of seconds >= 0, got {seconds}")
    if not poll_interval > 0:
        raise ValueError(f"poll_interval must be > 0 seconds, got {poll_interval}")
