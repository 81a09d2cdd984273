"""What the processes of `test_privacy_budget` run: a module that loads neither torch nor pytest."""

from __future__ import annotations

from multiprocessing.queues import Queue
from pathlib import Path

from client.privacy import PrivacyBudget, PrivacyBudgetError
from protocol.mechanisms import mechanism_of


def spend_many(path: Path, queue: Queue[int]) -> None:
    """Try to spend 0.1 of a budget of 5, 30 times, and report how often that was allowed."""
    budget = PrivacyBudget("a", mechanism_of("laplace:5"), path)
    num_answered = 0
    for _ in range(30):
        try:
            budget.spend(mechanism_of("laplace:0.1"))
            num_answered += 1
        except PrivacyBudgetError:
            pass
    queue.put(num_answered)
