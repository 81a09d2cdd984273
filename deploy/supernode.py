"""``python supernode.py …``: Flower's `flower-supernode`, without two ways in which it becomes deaf until a restart.

A SuperNode of Flower 1.41 takes one question and waits for a reply, to whichever question. If the process of the
ClientApp fails before it has read the question (no connection yet, no memory), nobody replies: it waits for ever. If a
run ends while the question is being fetched, the reply comes after all: from then on every question gets the reply to
the one before, too late.
"""

from __future__ import annotations

from flwr.app import Error, Message
from flwr.common.constant import SubStatus
from flwr.supernode.cli import flower_supernode
from flwr.supernode.nodestate import nodestate_factory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState


class NodeState(InMemoryNodeState):
    """Flower's, with one question at a time, which gets an error as its reply if the ClientApp failed without one."""

    def store_message(self, message: Message) -> str | None:
        """Store a question and forget those before it, or store a reply to the question; None for any other reply."""
        with self.lock_msg_store:
            question = message.metadata.reply_to_message_id
            if question and question not in self.msg_store:
                return None
            for stale in () if question else list(self.msg_store):
                self.delete_messages(message_ids=[stale])
                self.object_store.delete(stale)
            return super().store_message(message)

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
