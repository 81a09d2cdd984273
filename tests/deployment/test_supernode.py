"""What a SuperNode makes of a ClientApp that ended before it had read its question."""

from __future__ import annotations

import time

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
