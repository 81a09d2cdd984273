"""What `test_answer_record` runs in processes of its own; apart, since they start sooner without torch."""

from __future__ import annotations

from client.answer_record import AnswerRecord
from client.budget import QueryBudget, Request


def spend_and_keep(folder, process, queue):
    """Answer questions 0 to 29, each process with a number of its own."""
    budget, record = QueryBudget("a", 1000, folder / "b.sqlite"), AnswerRecord("a", folder / "r.sqlite")
    kept = []
    for number in range(30):
        budget.spend(Request(losses=1), question=str(number))
        kept.append(record.keep(str(number), {"risk": number + process / 2})["risk"])
    queue.put(kept)
