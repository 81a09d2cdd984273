"""A Flower Grid that calls the ClientApp in this process: a whole app, also one of your own, without a SuperLink.

It serves tests and quick runs: ``InProcessGrid(client_app, num_clients=10).run_server_app(server_app)``. What a message
meets on a real network is kept: flwr's own code turns it into bytes and back in both directions, node and message ids
are random, replies come in pieces and in random order, a delivered reply is gone, and an exception in a client becomes
Flower's error reply, also SystemExit. Sockets, processes and waiting are left out. Faulty clients go in at this seam
(`Behaviour`). The clients work one after the other: with a `reply_timeout` in a thread beside that of the app, which
can so go on without one that hangs, otherwise in the app's own.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, repeat
from queue import SimpleQueue
from typing import cast

import numpy as np

from riskband.checks import check_installed

check_installed("flwr", extra="flower")
try:
    from flwr.app import Context, Error, Message, RecordDict, UserConfig
    from flwr.clientapp import ClientApp
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    raise ImportError(
        f"InProcessGrid needs flwr 1.41 or later, got {version('flwr')}; upgrade it: pip install -U flwr"
    ) from error

_RUN_ID = 1
_TASK_ID = 1
_WAIT_BETWEEN_PULLS = 0.001
# A pull lets no further node work after so many seconds: answers are kept, and progress is shown, while they come.
_LONGEST_PULL = 1.0
_AT_WORK: set[int] = set()  # threads


@dataclass(frozen=True)
class Delivery:
    """A reply on its way: it arrives at the first pull after `after_pulls` others."""

    reply: Message
    after_pulls: int = 0


Behaviour = Callable[[Message, Callable[[Message], Message]], Iterable[Delivery]]
"""What a node does with a message: (message, answer) -> deliveries, none if it never answers.

`answer(message)` is the honest reply of the node's ClientApp. An exception becomes error code 2.
"""


class _Worker:
    """A thread that does one thing after the other, until it is `None`; one that hangs ends alone, or never."""

    def __init__(self) -> None:
        self._things: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        threading.Thread(target=_do_all, args=(self._things,), name="client", daemon=True).start()
        weakref.finalize(self, self._things.put, None)

    def does(self, thing: Callable[[], None], *, seconds: float) -> bool:
        """Whether a thing is done within so many seconds."""
        is_done = threading.Event()
        self._things.put((thing, is_done))
        # In parts: an interrupt that comes just before one begins is heard at its end.
        return any(map(is_done.wait, chain([seconds % 1.0], repeat(1.0, int(seconds)))))


def _do_all(things: SimpleQueue[tuple[Callable[[], None], threading.Event] | None]) -> None:
    this = threading.get_ident()
    while (following := things.get()) is not None:
        thing, is_done = following
        _AT_WORK.add(this)
        thing()
        _AT_WORK.discard(this)
        is_done.set()
        del following, thing  # which hold the grid, and so this thread


def is_client_at_work() -> bool:
    """Whether a client that was left to its work is still at it; then end this process by `os._exit`.

    Python ends such a thread wherever it is, and within compiled code such as torch's that aborts the process.
    """
    return bool(_AT_WORK)


class InProcessGrid(Grid):
    """A network of `num_clients` nodes in this process; node k holds partition k.

    Parameters
    ----------
    client_app : ClientApp
        What every node runs.
    num_clients : int
        Number of nodes.
    run_config : mapping, optional
        The run config that every node sees: all its keys, as no `pyproject.toml` is read. By default it is empty.
    node_configs : mapping of int to mapping, optional
        Extra node config by partition id, as ``--node-config`` gives it.
    behaviours : mapping of int to Behaviour, optional
        Faulty nodes by partition id; the others answer honestly.
    nodes_ready_after : mapping of int to int, optional
        By partition id, how many times the nodes are listed without this one.
    clients_per_pull : int
        How many waiting nodes get to work during one pull, fewer if they take longer than a second together.
    reply_timeout : float, optional
        Seconds for which replies to a message are waited for. A node that works for more than half of what is left of
        them is left to its work, its reply may come later, and the others go on. By default all are waited for, and
        work in the thread that asks.
    seed : int, optional
        Of the node ids and the order of the replies. None differs from run to run, as reality does.
    """

    def __init__(
        self,
        client_app: ClientApp,
        *,
        num_clients: int,
        run_config: Mapping[str, bool | float | int | str] | None = None,
        node_configs: Mapping[int, UserConfig] | None = None,
        behaviours: Mapping[int, Behaviour] | None = None,
        nodes_ready_after: Mapping[int, int] | None = None,
        clients_per_pull: int = 16,
        reply_timeout: float | None = None,
        seed: int | None = None,
    ) -> None:
        # flwr 1.41 takes the sender of a new Message from the process, which its launcher fills in.
        TaskIdentity.run_id = _RUN_ID
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = _TASK_ID
        self._run = Run.create_empty(_RUN_ID)
        self._run_config = dict(run_config or {})
        self._client_app = client_app
        self._behaviours = behaviours or {}
        self._nodes_ready_after = nodes_ready_after or {}
        self._clients_per_pull = clients_per_pull
        self._reply_timeout = reply_timeout
        self._worker = None if reply_timeout is None else _Worker()
        self._rng = np.random.default_rng(seed)
        self._num_listings = 0
        self._waiting: deque[tuple[str, dict[str, bytes], float]] = deque()  # message id, its parts, when it was sent
        self._deliveries: dict[str, list[Delivery]] = {}
        node_ids = [int(node_id) for node_id in self._rng.integers(2, 2**62, size=num_clients)]
        self._contexts = {
            node_id: Context(
                run_id=_RUN_ID,
                node_id=node_id,
                node_config={
                    "partition-id": partition,
                    "num-partitions": num_clients,
                    **(node_configs or {}).get(partition, {}),
                },
                state=RecordDict(),
                run_config=dict(self._run_config),
            )
            for partition, node_id in enumerate(node_ids)
        }

    def run_server_app(self, server_app: ServerApp) -> None:
        """Run a ServerApp on this network until it ends; what it raises is raised here."""
        context = Context(_RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), dict(self._run_config))
        server_app(self, context)

    def set_run(self, run: Run) -> None:
        """Set the run that `run` returns."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run information."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message; `flwr.app.Message` itself does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that have registered by now."""
        ready_after = self._nodes_ready_after
        node_ids = [
            node_id
            for partition, node_id in enumerate(self._contexts)
            if ready_after.get(partition, 0) <= self._num_listings
        ]
        self._num_listings += 1
        return node_ids

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Serialise the messages and put them in their nodes' queues.

        Returns
        -------
        list of str
            The message ids in order, "" for a message to a node that does not exist.
        """
        parts: dict[str, bytes] = {}  # equal ones are held once, as by the SuperLink: a model is the same for all nodes
        with no_object_id_recompute():
            return [self._push(message, parts) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let some waiting nodes work, then return the replies that have arrived, in random order.

        As at the SuperLink, a message whose replies are all delivered is forgotten: pulling it again
        returns an error reply with code 3.
        """
        started = time.monotonic()
        for _ in range(min(self._clients_per_pull, len(self._waiting))):
            self._work(*self._waiting.popleft())
            if time.monotonic() - started > _LONGEST_PULL:
                break
        replies = [reply for message_id in message_ids for reply in self._arrived(message_id)]
        return [replies[index] for index in self._rng.permutation(len(replies))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push the messages and pull until all are answered or `timeout` seconds have passed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        open_ids = set(self.push_messages(messages)) - {""}
        replies: list[Message] = []
        while open_ids and (deadline is None or time.monotonic() < deadline):
            arrived = list(self.pull_messages(sorted(open_ids)))
            replies.extend(arrived)
            open_ids -= {reply.metadata.reply_to_message_id for reply in arrived}
            if not arrived:
                time.sleep(_WAIT_BETWEEN_PULLS)
        return replies

    def _push(self, message: Message, parts: dict[str, bytes]) -> str:
        if message.metadata.dst_node_id not in self._contexts:
            return ""
        message_id, objects = _deflated(message, parts)
        # As HttpGrid does: the sender reads the id off its own message.
        message.metadata.__dict__["_message_id"] = message_id
        self._waiting.append((message_id, objects, time.monotonic()))
        # No deliveries as long as the node has not worked.
        self._deliveries[message_id] = []
        return message_id

    def _work(self, message_id: str, objects: dict[str, bytes], sent: float) -> None:
        message = _inflated(message_id, objects)
        if self._reply_timeout is None or self._worker is None:
            self._deliver(message_id, message)
            return
        seconds = (sent + self._reply_timeout - time.monotonic()) / 2.0
        if seconds <= 0.0:
            return  # nobody waits any more: all that are left would work at once, and pay for answers that none reads
        if not self._worker.does(lambda: self._deliver(message_id, message), seconds=seconds):
            self._worker = _Worker()  # and the other ends after this message, if it ever does

    def _deliver(self, message_id: str, message: Message) -> None:
        context = self._contexts[message.metadata.dst_node_id]
        partition = int(context.node_config["partition-id"])
        behave = self._behaviours.get(partition, _behave_honestly)
        try:
            deliveries = _carried(behave(message, lambda received: self._client_app(received, context)))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user's, who presses Ctrl-C
            reason = f"{type(error)}:<'{error}'>"
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            deliveries = _carried([Delivery(Message(Error(code=code, reason=reason), reply_to=message))])
        self._deliveries[message_id] = deliveries

    def _arrived(self, message_id: str) -> list[Message]:
        if message_id not in self._deliveries:
            from flwr.server.superlink.linkstate.utils import (  # loads a database
                create_message_error_unavailable_ins_message,
            )

            return [create_message_error_unavailable_ins_message(message_id, _RUN_ID)]
        deliveries = self._deliveries[message_id]
        if not deliveries:
            return []  # a client that was left to its work may deliver from now on, and is not to be overwritten
        arrived = [d.reply for d in deliveries if d.after_pulls == 0]
        on_the_way = [Delivery(d.reply, d.after_pulls - 1) for d in deliveries if d.after_pulls > 0]
        self._deliveries[message_id] = on_the_way
        if arrived and not on_the_way:
            del self._deliveries[message_id]
        return arrived


def node_unavailable(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
    """Behave as a node that went offline: the SuperLink (node 1) answers with error code 5."""
    from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message

    return [Delivery(create_message_error_unavailable_res_message(message.metadata, "node_unavail"))]


def _behave_honestly(message: Message, answer: Callable[[Message], Message]) -> list[Delivery]:
    return [Delivery(answer(message))]


def _carried(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Return replies as they arrive; raises whatever flwr does for what cannot be sent."""
    with no_object_id_recompute():
        return [Delivery(_inflated(*_deflated(each.reply, {})), each.after_pulls) for each in deliveries]


def _deflated(message: Message, parts: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """Return a message's id and its parts as bytes by id, as HttpGrid and the SuperNode send them; note new parts."""
    found = get_all_nested_objects(message)
    parts |= {object_id: part.deflate() for object_id, part in found.items() if object_id not in parts}
    return message.object_id, {object_id: parts[object_id] for object_id in found}


def _inflated(message_id: str, objects: dict[str, bytes]) -> Message:
    """Return the message that arrives: rebuilt from bytes, with the id that does not travel in them."""
    message = cast(Message, inflate_object_from_contents(message_id, dict(objects)))
    message.metadata.__dict__["_message_id"] = message_id
    return message
