"""What a run sends and receives, counted where it passes: a Grid around Flower's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.run import Run

from protocol.wire import round_of


@dataclass
class Traffic:
    """Counts of messages in both directions."""

    num_rounds: int = 0  # how often messages were sent; those of one round once, however many portions they make
    # Messages that Flower took, and replies that it returned, errors and repetitions too.
    num_messages: int = 0
    num_replies: int = 0
    # Of their contents as Flower serialises them; an error has no content. Flower's envelope, ids and times that differ
    # from run to run, is not in it.
    bytes_sent: int = 0
    bytes_received: int = 0


class MeteredGrid(Grid):
    """A Grid that passes everything on and counts it, by type of message.

    `log` is called with "round_asked" and the keywords round, type, num_messages and bytes_sent when
    messages are sent, with "replies_received", num_replies and bytes_received when replies have come.
    """

    def __init__(self, grid: Grid, *, log: Callable[..., None] | None = None) -> None:
        self._grid = grid
        self._log = log
        self._by_type: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._rounds: set[tuple[str, str]] = set()  # (round, type) of all that was sent
        self._type_of: dict[str, str] = {}  # by message id

    def metrics(self) -> dict[str, Any]:
        """Return the counts of `Traffic`, and under "by_type" those of each type of message."""
        by_type = {kind: asdict(traffic) for kind, traffic in sorted(self._by_type.items())}
        total = {each.name: sum(traffic[each.name] for traffic in by_type.values()) for each in fields(Traffic)}
        return {**total, "by_type": by_type}

    def set_run(self, run: Run) -> None:
        """Set the run of the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run of the grid."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message that the grid makes."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids that the grid knows."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what the grid knows of its nodes: their ids, and the names of registered keys."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, count those that were taken, and return their ids as the grid does."""
        messages = list(messages)
        message_ids = list(self._grid.push_messages(messages))
        # A refused push returns no ids at all.
        self._count_sent([message for message, key in zip(messages, message_ids, strict=False) if key])
        self._remember_types(messages, message_ids)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come, counted."""
        replies = list(self._grid.pull_messages(message_ids))
        self._count_received(replies)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and return the replies that came within `timeout` seconds, counted."""
        messages = list(messages)
        self._count_sent(messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        self._remember_types(messages, [message.metadata.message_id for message in messages])
        self._count_received(replies)
        return replies

    def _remember_types(self, messages: Sequence[Message], message_ids: Sequence[str]) -> None:
        """Error replies of Flower's own have another type than the message."""
        for message, key in zip(messages, message_ids, strict=False):
            self._type_of[key] = message.metadata.message_type

    def _count_sent(self, messages: Sequence[Message]) -> None:
        contents = {id(message.content): message.content for message in messages}  # a model is one for all clients
        size_of: dict[str, int] = {}  # a model is one part of many contents
        with no_object_id_recompute():
            sizes = {key: _size(content, size_of) for key, content in contents.items()}
        rounds: dict[tuple[str, str], list[int]] = {}
        for message in messages:
            key = (round_of(message.metadata.group_id), message.metadata.message_type)
            rounds.setdefault(key, []).append(sizes[id(message.content)])
        for (round, kind), sent in rounds.items():
            traffic = self._by_type[kind]
            traffic.num_rounds += not round or (round, kind) not in self._rounds
            self._rounds.add((round, kind))
            traffic.num_messages += len(sent)
            traffic.bytes_sent += sum(sent)
            if self._log is not None:
                self._log("round_asked", round=round, type=kind, num_messages=len(sent), bytes_sent=sum(sent))

    def _count_received(self, replies: Sequence[Message]) -> None:
        sizes = [content_size(reply.content) if reply.has_content() else 0 for reply in replies]
        for reply, size in zip(replies, sizes, strict=True):
            metadata = reply.metadata
            traffic = self._by_type[self._type_of.get(metadata.reply_to_message_id, metadata.message_type)]
            traffic.num_replies += 1
            traffic.bytes_received += size
        if replies and self._log is not None:
            self._log("replies_received", num_replies=len(replies), bytes_received=sum(sizes))


def content_size(content: RecordDict) -> int:
    """Return the number of bytes of a message's content as Flower sends it: its parts serialised, equal ones once."""
    with no_object_id_recompute():
        return _size(content, {})


def _size(content: RecordDict, size_of: dict[str, int]) -> int:
    parts = get_all_nested_objects(content)
    size_of |= {key: len(part.deflate()) for key, part in parts.items() if key not in size_of}
    return sum(size_of[key] for key in parts)
