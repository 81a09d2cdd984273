"""Where a client keeps its part in a secure histogram: in Flower's state of the run, on its own machine.

A SuperNode has this state in its memory, and gives it to nobody but the ClientApp. Where it is lost, as when the
SuperNode restarts between two rounds, the client refuses the next one, and the others go on without it.

The state belongs to a series of runs: each part takes the place of the one before, whose run is over then.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context

from client.secure.part import Part
from protocol.records import read, read_list
from protocol.secure.cryptography import Secrets
from protocol.secure.questions import HeldShares
from protocol.secure.wire import (
    lists_record,
    members_record,
    read_bytes,
    read_flag,
    read_lists,
    read_members,
    read_shares,
    shares_record,
)
from riskband.adversaries.problem import RefusedError

STATE_RECORD = "secure-aggregation"
_MEMBERS, _HELD, _LISTS = (f"{STATE_RECORD}-{name}" for name in ("members", "held", "lists"))
_OVERTAKEN_KEY = "overtaken-runs"


def part_of(context: Context, run_id: int, *, awaits: str | None) -> Part | None:
    """Return the client's part in a run, which has to await this question.

    Parameters
    ----------
    context : Context
        The client's, with Flower's state.
    run_id : int
        Flower's number of the run.
    awaits : str or None
        What is asked; None: to begin, which needs that there is no part yet.

    Returns
    -------
    Part or None
        None if there is none.

    Raises
    ------
    ValueError
        If another question has to come first, this one was asked before, or another run has begun since.
    """
    found = _read(context) if STATE_RECORD in context.state else None
    if str(run_id) in _overtaken(context):
        raise RefusedError("a run must not go on after another one of its series has begun a secure histogram")
    if found is not None and found.run_id != run_id:  # of an earlier run
        found = None
    now = None if found is None else found.awaits
    if now != awaits:
        raise RefusedError(
            f"a client takes part in a secure histogram once a run, step by step; it was asked for "
            f"{awaits or 'keys'} and awaits {now or 'the question for keys'}"
        )
    return found


def keep(context: Context, part: Part) -> None:
    """Put the client's part into Flower's state, in place of what was there."""
    overtaken = _overtaken(context)
    if STATE_RECORD in context.state and (before := _read(context).run_id) != part.run_id:
        overtaken.append(str(before))
    record = ConfigRecord(
        {
            "run-id": str(part.run_id),  # an unsigned number of 64 bits
            "awaits": part.awaits,
            "own": part.own,
            "threshold": part.threshold,
            "encryption": part.secrets.encryption,
            "masking": part.secrets.masking,
            "seed": part.secrets.seed,
            "is-complete": part.is_complete,
            "question": part.question,
            _OVERTAKEN_KEY: overtaken,
        }
    )
    context.state[STATE_RECORD] = record
    context.state[_MEMBERS] = members_record(part.members)
    context.state[_HELD] = shares_record(HeldShares(tuple(part.held), tuple(part.held.values())))
    context.state[_LISTS] = lists_record(part.lists)


def _overtaken(context: Context) -> list[str]:
    if STATE_RECORD not in context.state:
        return []
    return list(read_list(context.state.config_records[STATE_RECORD], STATE_RECORD, _OVERTAKEN_KEY, str))


def _read(context: Context) -> Part:
    names = (STATE_RECORD, _MEMBERS, _HELD, _LISTS)
    record, members, held, lists = (context.state.config_records[name] for name in names)
    shares = read_shares(held)
    return Part(
        run_id=int(read(record, STATE_RECORD, "run-id", str)),
        awaits=read(record, STATE_RECORD, "awaits", str),
        secrets=Secrets(*(read_bytes(record, key) for key in ("encryption", "masking", "seed"))),
        own=read(record, STATE_RECORD, "own", int),
        threshold=read(record, STATE_RECORD, "threshold", int),
        members=read_members(members),
        is_complete=read_flag(record, "is-complete"),
        held=dict(zip(shares.numbers, shares.shares, strict=True)),
        question=read_bytes(record, "question"),
        lists=read_lists(lists),
    )
