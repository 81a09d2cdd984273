"""``python supernode.py …``: Flower's `flower-supernode`, which gives up a question that its ClientApp will never read.

A SuperNode of Flower 1.41 answers one question at a time. If the process of the ClientApp fails before it has read its
question (no connection yet, no memory), nobody replies, and the SuperNode waits for ever: connected, healthy and deaf.
"""

from __future__ import annotations

from flwr.app import Error
from flwr.common.constant import SubStatus
from flwr.supernode.cli import flower_supernode
from flwr.supernode.nodestate import nodestate_factory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState


class NodeState(InMemoryNodeState):
    """Flower's, in which whatever a ClientApp that failed has not replied to gets an error as its reply."""

    def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
        """Note the end of a process; the error comes at once, as for one that gave no sign of life."""
        finished = super().finish_task(task_id, sub_status, details)
        if finished and sub_status == SubStatus.FAILED:
            self._on_task_tokens_expired(list(self.get_tasks(task_ids=[task_id])))
        return finished

    def _store_error_replies(self, run_ids: set[int], error: Error) -> None:
        with self.lock_msg_store:
            for entry in self.msg_store.values():
                # Flower's own method leaves out what was not read.
                question = entry.message.metadata
                entry.is_retrieved |= question.run_id in run_ids and not question.reply_to_message_id
            super()._store_error_replies(run_ids, error)


if __name__ == "__main__":
    nodestate_factory.InMemoryNodeState = NodeState  # type: ignore[attr-defined]
    flower_supernode()
