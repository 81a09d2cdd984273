"""Who is left out when shares did not open: the sender sealed them wrongly, or the recipient says so falsely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def left_out(unopened: Mapping[int, Iterable[int]]) -> dict[int, int]:
    """Return clients without whom no share is in dispute.

    Two clients of which one has no mask with the other cannot both be in the sum. Who is in dispute with most others
    goes first: a client that seals wrongly, or accuses falsely, more than once goes alone. Of two in dispute with each
    other only, nobody can tell which is at fault, and both go: else a client could have any other one left out.

    Parameters
    ----------
    unopened : mapping of int to iterable of int
        For clients with a vector, the senders with a vector whose shares they could not open.

    Returns
    -------
    dict of int to int
        The clients to leave out, and with how many others each was in dispute then.
    """
    disputes = {frozenset((sender, recipient)) for recipient, senders in unopened.items() for sender in senders}
    found: dict[int, int] = {}
    while disputes:
        counts = Counter(number for pair in disputes for number in pair)
        worst = max(sorted(counts), key=lambda number: counts[number])
        gone = {worst} if counts[worst] > 1 else set(counts)
        found |= {number: counts[number] for number in gone}
        disputes = {pair for pair in disputes if not pair & gone}
    return found
