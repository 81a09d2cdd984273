"""How long a round still takes, from the replies it has had so far."""

from __future__ import annotations

from collections.abc import Sequence

MIN_REPLIES = 5
"""With fewer replies nothing is said about the rest."""


def remaining_seconds(arrivals: Sequence[float], *, num_open: int, now: float) -> float | None:
    """Return the seconds until the open replies are there, if they come as the later half of the replies did.

    What the first half waited for (clients that start, a model that travels) is over and does not count; a pause since
    the last reply does.

    Parameters
    ----------
    arrivals : sequence of float
        When each reply came, in seconds of one clock, nondecreasing.
    num_open : int
        Number of replies that are missing.
    now : float
        The time on that clock, at or after the last arrival.

    Returns
    -------
    float or None
        Seconds >= 0; None with fewer than `MIN_REPLIES` replies, or where the later half came in no time.
    """
    if num_open == 0:
        return 0.0
    num_replies = len(arrivals)
    if num_replies < MIN_REPLIES:
        return None
    num_early = num_replies // 2
    elapsed = now - arrivals[num_early - 1]
    return num_open * elapsed / (num_replies - num_early) if elapsed > 0 else None
