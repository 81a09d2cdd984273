"""One exchange of messages: push them, pull what arrives until the deadline, read every reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid

from protocol.wire import kept_hash, message_type, signature_of, statement_of, unguessable
from riskband.answers.signing import Signed, Statement, is_signed
from strategies.asking.failures import Failure, FailureReason, Node
from strategies.asking.replies import Check, Received, dead_worker, lacks_model, not_signed, read_reply
from strategies.asking.sizes import small_replies

Replies = list[Received]
"""What came back for one message, repetitions apart."""

# A message outlives the deadline a little, so that the deadline and not Flower's expiry ends a wait.
_TTL_MARGIN = 60.0
# While nothing arrives, progress is reported this often: a pause changes the remaining time.
_REPORT_INTERVAL = 2.0
# Where messages are sent in portions, the next does not wait longer for the one before.
_PATIENCE = 10.0
# How often it is looked for nodes that were started again; the SuperLink misses a node for half a minute at least.
_LOOK_INTERVAL = 10.0
# How often one message is sent again: a client without a record of its answers pays for each.
MAX_RESENDS = 2
ENDED_ITS_WORKER = "the Ray worker that ran this client ended with it, and clients that it was given later failed too"
"""What a failure says where a simulated client's process ended."""
MIN_REPLIES = 5
"""With fewer replies nothing is said about when the rest will be there."""


class Sender(NamedTuple):
    """Where an answer came from."""

    node_id: int
    signed: Signed | None = None  # None: clients do not sign


class Parcel(NamedTuple):
    """One message of an exchange: to which node, its content, and what a valid answer to it must agree with."""

    node: Node
    content: RecordDict
    check: Check
    # What is sent instead if the client turns out not to keep the weights of which `content` has the hash.
    whole: RecordDict | None = None


@dataclass(frozen=True)
class Progress:
    """How far a round is."""

    # Number of messages, and of those with a valid answer so far.
    asked: int
    answered: int
    # One per message that has failed so far, in order of arrival; after the round also those without a reply.
    failures: tuple[Failure, ...] = ()
    round: str = ""
    # Seconds until the round is over, at most until its deadline; None as long as there is no telling.
    eta_seconds: float | None = None

    @property
    def failed(self) -> int:
        """Number of messages that have failed so far."""
        return len(self.failures)


class _Lost(NamedTuple):
    """A message that was lost with its node: until when that may return, and the failure if it does not."""

    until: float
    failure: Failure


@dataclass(eq=False)
class Exchange:
    """One exchange of messages, by their places in the list of parcels.

    A message that was lost with its node is sent again when the node is back within `return_timeout` seconds, before
    the deadline, and no more than `MAX_RESENDS` times. A `return_timeout` of 0 means never.

    With `keys`, the public keys of clients by name, a reply counts only with its client's signature. Any other is
    treated as lost: the message is sent again, with another id, as often as one that was lost with its node.

    `reply_timeout`, `poll_interval`, `max_open`, `on_answer`, `on_refusal`, `on_progress`: see
    `strategies.asking.query.QueryStrategy`.
    """

    grid: Grid  # Flower's connection to the nodes
    parcels: Sequence[Parcel]
    round: int
    reply_timeout: float
    poll_interval: float
    max_open: int | None = None
    keys: Mapping[str, bytes] | None = None
    on_refusal: Callable[[str, Signed], None] | None = None
    on_answer: Callable[[Any, Any, Any], None] | None = None
    on_progress: Callable[[Progress], None] | None = None
    return_timeout: float = 0.0

    def __post_init__(self) -> None:
        self._parcels = list(self.parcels)
        self._replies: list[Replies] = [[] for _ in self.parcels]
        self.kept: dict[int, str | None] = {}  # by node id, the hash of the weights that its client says it keeps
        self._deadline = time.monotonic() + self.reply_timeout
        self._num_sent = 0  # of the parcels, which are sent in their order
        self._portion = len(self.parcels) if self.max_open is None else self.max_open
        self._place_of: dict[str, int] = {}  # by message id, of a message sent again only the last
        self._messages: dict[str, Message] = {}  # by message id
        self._lost: dict[int, _Lost] = {}
        self._looked = -_LOOK_INTERVAL
        self._starts: dict[str, str] = {}  # by message id, when its node had been connected
        self._dead_workers: set[str] = set()
        self._num_resends = [0] * len(self.parcels)
        self._failures: list[Failure] = []
        self._num_answered = 0
        self._arrivals: list[float] = []
        self._reported = self._sent = time.monotonic()

    def run(self) -> list[Replies]:
        """Push the messages and return what came back for each, in their order: at least one entry per message."""
        self._send_more()
        self._report()
        max_bytes = max((parcel.check.max_bytes for parcel in self.parcels), default=0)
        while not all(self._replies):
            self._send_more()
            self._look_for_restarts()
            # Only open messages are pulled: the SuperLink forgets a reply once it is delivered.
            pending = self._open_messages()
            with small_replies(self.grid, max_bytes=max_bytes):
                arrived = list(self.grid.pull_messages(pending)) if pending else []
            arrived.sort(key=lambda reply: reply.metadata.created_at if dead_worker(reply) else 0.0)
            for reply in arrived:
                self._receive(reply)
            has_news = self._send_again() or bool(arrived)
            if has_news or time.monotonic() - self._reported >= _REPORT_INTERVAL:
                self._report()
            if time.monotonic() >= self._deadline:
                break
            if not has_news:
                pause_until(self._deadline, self.poll_interval)
        if not all(self._replies):
            self._close()
            self._report()
        return self._replies

    def _open_messages(self) -> list[str]:
        """The ids of the messages that are under way."""
        return [key for key, place in self._place_of.items() if not self._replies[place]]

    def _send_more(self) -> None:
        """Push the next messages once half of a portion is answered; a portion that was too small is twice as large."""
        if self._num_sent == len(self.parcels):
            return
        num_open = len(self._open_messages())
        # The nodes have nothing left to do, or many of them take long or hang: others need not wait for these.
        is_small = num_open == 0 or time.monotonic() - self._sent >= _PATIENCE
        if self._num_sent and is_small:
            self._portion *= 2
        if num_open <= self._portion // 2:
            end = min(self._num_sent + self._portion - num_open, len(self.parcels))
            self._send(range(self._num_sent, end))
            self._num_sent, self._sent = end, time.monotonic()

    def _send(self, places: Sequence[int]) -> None:
        """Push the messages at these places; those that the SuperLink does not take have failed."""
        ttl = max(0.0, self._deadline - time.monotonic()) + _TTL_MARGIN
        messages = [
            Message(content, node.id, message_type(check.query), ttl=ttl, group_id=unguessable(self.round))
            for node, content, check, _ in (self._parcels[place] for place in places)
        ]
        # A list: HttpGrid pushes nothing when given a generator. A message the SuperLink did not take has no id; a
        # refused push returns no ids at all.
        message_ids = list(self.grid.push_messages(messages)) or [""] * len(messages)
        for place, message, message_id in zip(places, messages, message_ids, strict=True):
            if message_id:
                self._place_of[message_id] = place
                self._messages[message_id] = message
            else:
                self._fail(place, Failure(None, FailureReason.NOT_SENT, "the SuperLink did not accept the message"))

    def _receive(self, reply: Message) -> None:
        """Read a reply; one to nothing that was asked in this round is dropped, and so is a repetition."""
        message_id = reply.metadata.reply_to_message_id
        place = self._place_of.get(message_id)
        if place is None:
            return
        parcel, received = self._parcels[place], self._replies[place]
        signed = self._signed(reply, parcel)
        # Only the SuperLink itself sends what is from its own node.
        is_genuine = self.keys is None or signed is not None or reply.metadata.src_node_id == SUPERLINK_NODE_ID
        if received and not is_genuine:
            return
        if is_genuine and parcel.whole is not None and not received and lacks_model(reply):
            del self._place_of[message_id]
            self._parcels[place] = Parcel(parcel.node, parcel.whole, parcel.check)
            self._send([place])
            return
        result = read_reply(reply, parcel.check, parcel.node)
        if not is_genuine:
            result = not_signed(result, reply, parcel.node)
        if result in received:
            return
        worker = dead_worker(reply)
        if worker is not None and worker not in self._dead_workers:  # the first one had it; later ones never reached it
            self._dead_workers.add(worker)
            result = replace(result, reason=FailureReason.CLIENT_CRASHED, detail=ENDED_ITS_WORKER)
        if self._is_lost(reply, result, place, is_genuine=is_genuine):
            del self._place_of[message_id]  # an answer that comes to it after all counts no more
            self._lost[place] = _Lost(time.monotonic() + self.return_timeout, result)
            return
        if not received:
            self._arrivals.append(time.monotonic())
        if isinstance(result, Failure):
            self._fail(place, result)
            if signed is not None and reply.has_error() and self.on_refusal is not None:
                self.on_refusal(_signer(parcel.node, signed.statement), signed)
        else:
            self.kept[parcel.node.id] = kept_hash(reply.content)
            self._accept(place, result, signed)

    def _signed(self, reply: Message, parcel: Parcel) -> Signed | None:
        """What a reply says under the signature of its client; None if it has none that counts."""
        if self.keys is None:
            return None
        statement = statement_of(reply, self._messages[reply.metadata.reply_to_message_id])
        if statement is None:
            return None
        key = self.keys.get(_signer(parcel.node, statement))
        signed = None if key is None else Signed(statement, signature_of(reply), key)
        return signed if signed is not None and is_signed(signed) else None

    def _look_for_restarts(self) -> None:
        """Count as lost what went to a node that was away and is back so soon that the SuperLink never said so."""
        now = time.monotonic()
        if self.return_timeout == 0.0 or now - self._looked < _LOOK_INTERVAL:
            return
        self._looked = now
        starts = {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}
        for message_id in self._open_messages():
            place = self._place_of[message_id]
            start = starts.get(self._parcels[place].node.id)
            is_back = start is not None and self._starts.setdefault(message_id, start) != start
            if is_back and self._num_resends[place] < MAX_RESENDS:
                del self._place_of[message_id]
                away = Failure(None, FailureReason.NODE_UNAVAILABLE, "the node was away")
                self._lost[place] = _Lost(now + self.return_timeout, away)

    def _send_again(self) -> bool:
        """Send what was lost with nodes that are back, give up those that stay away, and return whether any was."""
        if not self._lost:
            return False
        now, here = time.monotonic(), set(self.grid.get_node_ids())
        back = [place for place in self._lost if self.parcels[place].node.id in here]
        gone = [place for place, lost in self._lost.items() if place not in back and now >= lost.until]
        for place in gone:
            self._fail(place, self._lost.pop(place).failure)
        for place in back:
            del self._lost[place]
            self._num_resends[place] += 1
        if back:
            self._send(back)
        return bool(back or gone)

    def _close(self) -> None:
        """Note that clients without a reply have failed."""
        silent = Failure(None, FailureReason.NO_REPLY, f"no reply within {self.reply_timeout:g} s")
        late = Failure(None, FailureReason.NOT_SENT, f"it was not this client's turn within {self.reply_timeout:g} s")
        for place, received in enumerate(self._replies):
            if not received:
                unanswered = silent if place < self._num_sent else late
                self._fail(place, self._lost[place].failure if place in self._lost else unanswered)

    def _report(self) -> None:
        """Report how far the round is."""
        self._reported = now = time.monotonic()
        if self.on_progress is None:
            return
        num_open = len(self.parcels) - self._num_answered - len(self._failures)
        seconds = remaining_seconds(self._arrivals, num_open=num_open, now=now)
        self.on_progress(
            Progress(
                asked=len(self.parcels),
                answered=self._num_answered,
                failures=tuple(self._failures),
                round=str(self.round),
                eta_seconds=None if seconds is None else min(seconds, max(0.0, self._deadline - now)),
            )
        )

    def _is_lost(self, reply: Message, result: Received, place: int, *, is_genuine: bool) -> bool:
        """Whether the message may be sent again; only the SuperLink knows that a node is away."""
        is_away = isinstance(result, Failure) and result.reason is FailureReason.NODE_UNAVAILABLE
        return (
            ((is_away and reply.metadata.src_node_id == SUPERLINK_NODE_ID) or not is_genuine)
            and not self._replies[place]
            and self.return_timeout > 0.0
            and self._num_resends[place] < MAX_RESENDS
        )

    def _accept(self, place: int, answer: Any, signed: Signed | None) -> None:
        parcel = self.parcels[place]
        if not self._replies[place]:  # what comes later for the same message changes no count
            self._num_answered += 1
        self._replies[place].append(answer)
        if self.on_answer is not None:
            self.on_answer(parcel.check.query, answer, Sender(parcel.node.id, signed))

    def _fail(self, place: int, failure: Failure) -> None:
        named = self.parcels[place].node.named(failure)
        if not self._replies[place]:
            self._failures.append(named)
        self._replies[place].append(named)


def _signer(node: Node, statement: Statement) -> str:
    """Who must have signed a statement from a node: its client, or where that is not known the one that it names."""
    return node.client_id or str(statement.said.get("client-id"))


def remaining_seconds(arrivals: Sequence[float], *, num_open: int, now: float) -> float | None:
    """Return the seconds until the open replies are there, if they come as the later half of the replies did.

    What the first half waited for (clients that start, a model that travels) is over and does not count; a pause since
    the last reply does. `arrivals` and `now` are in seconds of one clock, the former nondecreasing. None with fewer
    than `MIN_REPLIES` replies, or where the later half came in no time.
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
