"""How many valid answers a round needs, and the error when it has fewer."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from strategies.asking.replies import RoundOutcome


class QuorumError(RuntimeError):
    """Too few valid answers to conclude anything; `outcome` holds all that came."""

    def __init__(self, message: str, outcome: RoundOutcome[Any]) -> None:
        super().__init__(message)
        self.outcome = outcome


def num_needed(num_clients: int, quorum: float) -> int:
    """Return how many valid answers meet the quorum, a fraction of `num_clients` in (0, 1]; at least 1."""
    # 0.07 * 100 is 7.000000000000001 in floating point; that must not ask for an 8th client.
    return max(1, math.ceil(quorum * num_clients - 1e-9))


def require_quorum(outcome: RoundOutcome[Any], *, num_clients: int, quorum: float) -> None:
    """Return if a round met the quorum.

    Parameters
    ----------
    outcome : RoundOutcome
        What the round brought.
    num_clients : int
        How many clients were expected.
    quorum : float, in (0, 1]
        Fraction of them that must have answered validly.

    Raises
    ------
    QuorumError
        If fewer have; it names counts and first failures.
    """
    needed = num_needed(num_clients, quorum)
    if len(outcome.answers) >= needed:
        return
    counts = Counter(failure.reason for failure in outcome.failures)
    reasons = ", ".join(f"{count} x {reason}" for reason, count in sorted(counts.items()))
    first = "; ".join(f"{failure.who}: {failure.detail}" for failure in outcome.failures[:3])
    is_unnamed = any(f.client_id is None and f.node_name is None and f.node_id is not None for f in outcome.failures)
    raise QuorumError(
        f"{needed} of {num_clients} clients must answer validly (quorum {quorum:g}), "
        f"got {len(outcome.answers)} valid answers from {outcome.num_asked} asked: {reasons}. "
        f"First failures: {first}. Repair these clients, wait longer (node-timeout, reply-timeout) "
        f"or lower quorum{'; `flwr supernode list` lists nodes by id' if is_unnamed else ''}",
        outcome,
    )
