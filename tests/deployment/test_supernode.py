"""What a SuperNode makes of a ClientApp that ended before it had read its question."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from deploy.supernode import NodeState

RUN = 7


def asked(kind: type[InMemoryNodeState]) -> tuple[InMemoryNodeState, int]:
    """A node's state with one question, and the task of the ClientApp that is to answer it, which has been claimed."""
    state = kind(ObjectStoreFactory().store())
    state.set_node_id(1)
    return state, ask(state)


def ask(state: InMemoryNodeState) -> int:
    task = state.create_task(TaskType.CLIENT_APP, RUN)
    assert task is not None
    metadata = Metadata(
        run_id=RUN,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=1,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=600.0,
        message_type="query.loss",
    )
    message = make_message(metadata, content=RecordDict())
    metadata.__dict__["_message_id"] = message.object_id
    state.store_message(message)
    state.claim_task(task)
    return task


def answer(state: InMemoryNodeState) -> Message:
    """Read the question and reply, as a ClientApp does."""
    (question,) = state.get_messages_legacy(is_reply=False)
    reply = Message(RecordDict(), reply_to=question)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    state.store_message(reply)
    return reply


def replies(state: InMemoryNodeState) -> list[Message]:
    return list(state.get_messages_legacy(is_reply=True))


def test_what_was_never_read_gets_an_error_once() -> None:
    state, task = asked(NodeState)
    assert replies(state) == []
    state.finish_task(task, SubStatus.FAILED, "no connection")
    (reply,) = replies(state)
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    state.finish_task(task, SubStatus.FAILED, "no connection")
    assert replies(state) == []


def test_flowers_own_state_waits_for_ever() -> None:
    """If this fails, Flower does it itself: `deploy.supernode` can go."""
    state, task = asked(InMemoryNodeState)
    state.finish_task(task, SubStatus.FAILED, "no connection")
    assert replies(state) == []


@pytest.mark.parametrize("status", [SubStatus.FAILED, SubStatus.COMPLETED])
def test_what_was_replied_to_gets_no_error(status: str) -> None:
    state, task = asked(NodeState)
    state.activate_task(task)
    reply = answer(state)
    state.finish_task(task, status, "")
    assert replies(state) == [reply]


@pytest.mark.parametrize(("kind", "num_replies"), [(NodeState, 1), (InMemoryNodeState, 2)])
def test_a_question_that_was_given_up_is_not_replied_to_in_place_of_the_next(
    kind: type[InMemoryNodeState], num_replies: int
) -> None:
    """The run ended while the node fetched its first question; nobody takes the reply before the second comes."""
    state, _ = asked(kind)
    answer(state)
    ask(state)
    reply = answer(state)
    found = replies(state)
    assert (len(found), found[-1]) == (num_replies, reply)


def test_a_reply_to_a_question_that_was_given_up_is_not_taken() -> None:
    state, _ = asked(NodeState)
    (question,) = state.get_messages_legacy(is_reply=False)
    ask(state)
    late = Message(RecordDict(), reply_to=question)
    late.metadata.__dict__["_message_id"] = late.object_id
    assert state.store_message(late) is None
    assert replies(state) == []


class Watched(dict[str, Any]):
    """Messages that nobody may read or change while another thread could, too: Flower's threads share them."""

    def __init__(self, lock: Any) -> None:
        super().__init__()
        self.lock = lock

    def _check(self) -> None:
        with ThreadPoolExecutor(1) as another:
            is_free = another.submit(lambda: self.lock.acquire(blocking=False) and not self.lock.release()).result()
        assert not is_free, "another thread could have changed the messages"

    def __contains__(self, name: object) -> bool:
        self._check()
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._check()
        return super().__iter__()

    def values(self) -> Any:
        self._check()
        return super().values()


def test_no_other_thread_gets_between_a_question_and_what_is_made_of_it() -> None:
    """A reply that was checked and not yet stored when its question was given up would be the next question's."""
    state = NodeState(ObjectStoreFactory().store())
    state.set_node_id(1)
    state.msg_store = Watched(state.lock_msg_store)
    ask(state)
    reply = answer(state)
    assert replies(state) == [reply]
    task = ask(state)
    state.finish_task(task, SubStatus.FAILED, "no connection")
    (error,) = replies(state)
    assert error.error.code == ErrorCode.CLIENT_APP_CRASHED
