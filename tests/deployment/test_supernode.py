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
    return state, task


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
    (question,) = state.get_messages_legacy(is_reply=False)
    answer = Message(RecordDict(), reply_to=question)
    answer.metadata.__dict__["_message_id"] = answer.object_id
    state.store_message(answer)
    state.finish_task(task, status, "")
    assert [reply.metadata.message_id for reply in replies(state)] == [answer.object_id]
