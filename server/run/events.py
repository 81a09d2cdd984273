"""The log of a run for programs: one JSON object a line, in the order in which things happened.

What a client answered is not in it, neither its risk nor a refusal's words, which may hold a number: answers are in the
ledger, words in the report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from server.run.ledger import cut_torn_line
from strategies.asking.failures import Failure
from strategies.asking.replies import RoundOutcome


def append_event(path: Path, event: str, fields: Mapping[str, Any]) -> None:
    """Add one event to a log, with the time.

    Parameters
    ----------
    path : Path
        The log; made if it is not there.
    event : str
        What happened.
    fields : mapping
        More about it, as plain data for JSON.
    """
    line = json.dumps({"time": datetime.now(UTC).isoformat(), "event": event, **fields}, allow_nan=False)
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(line + "\n")


def continue_events(path: Path) -> None:
    """Make a log ready for the events of a resumed run: the next one begins a line."""
    if path.exists():
        cut_torn_line(path)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log in their order.

    A last line that is not complete, since a crash cut it off or it is being written, is left out.

    Parameters
    ----------
    path : Path
        A file that `append_event` wrote.

    Raises
    ------
    ValueError
        If a complete line is not a JSON object with a "time" and an "event".
    """
    events = []
    lines = path.read_bytes().split(b"\n")[:-1]  # after the last newline: nothing, or a torn line
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not {"time", "event"} <= event.keys():
            raise ValueError(f"line {number} of {path} is not an event; delete that line to read the others")
        events.append(event)
    return events


def settled(outcome: RoundOutcome[Any]) -> dict[str, Any]:
    """Return the fields that say who answered and who failed why, once all replies were compared."""
    return {
        "num_asked": outcome.num_asked,
        "num_answered": len(outcome.answers),
        "failures": [failure_fields(each) for each in outcome.failures],
    }


def failure_fields(failure: Failure) -> dict[str, str | None]:
    """Return what the log says of a failure: which client and node, and why; the node's id as a text."""
    return {
        "client_id": failure.client_id,
        "claimed_name": failure.claimed_name,
        "node_name": failure.node_name,
        "node_id": None if failure.node_id is None else str(failure.node_id),
        "reason": str(failure.reason),
    }
