"""Where a client keeps its part in a secure histogram, and that it answers each step once.

The part is in Flower's state of the run, on the client's own machine. A SuperNode has this state in its memory, and
gives it to nobody but the ClientApp. Where it is lost, as when the SuperNode restarts between two rounds, the client
refuses the next one, and the others go on without it. The state belongs to a series of runs: each part takes the place
of the one before, whose run is over then.

A SuperNode sends a client's reply before it stores the state that the reply left behind. A process that is started in
between has the old state and would answer once more. Where the owner has named a file that outlives a process, a step
is written there before it is answered, and of two processes one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Context, UserConfig

from client.answer_record import record_from_config
from client.book import note_once, opened
from client.budget import budget_from_config
from client.identity import client_id
from client.refusals import file_errors_withheld
from client.secure.part import CONSISTENCY, MAX_HISTOGRAMS, OVER, UNMASK, Part
from protocol.codec import decode, encode
from riskband.checks import RefusedError

STATE_RECORD = "secure-part"

_VECTOR_SENT = (CONSISTENCY, UNMASK, OVER)


@dataclass(frozen=True, repr=False)
class _Kept:
    """A client's part, and the earlier runs that it took the place of."""

    part: Part
    overtaken_runs: tuple[str, ...]


def part_of(context: Context, run_id: int, *, awaits: str | None) -> Part | None:
    """Return the client's part in a run, which has to await this question.

    None: to begin, before there is a part; or again, for a group, when the vector of the first one was sent.

    Raises ValueError if another question has to come first, this one was asked before, or another run has begun since.
    """
    kept = _read(context)
    if kept is not None and str(run_id) in kept.overtaken_runs:
        raise RefusedError("a run must not go on after another one of its series has begun a secure histogram")
    found = kept.part if kept is not None and kept.part.run_id == str(run_id) else None  # else of an earlier run
    now = None if found is None else found.awaits
    begins_again = awaits is None and found is not None and found.number < MAX_HISTOGRAMS and now in _VECTOR_SENT
    if now != awaits and not begins_again:
        raise RefusedError(
            "a client takes part in a secure histogram once a run, and once more in a group, step by step; it was "
            f"asked for {awaits or 'keys'} and awaits {now or 'the question for keys'}"
        )
    return found


def keep(context: Context, part: Part) -> None:
    """Put the client's part into Flower's state, in place of what was there."""
    before = _read(context)
    overtaken = () if before is None else before.overtaken_runs
    if before is not None and before.part.run_id != part.run_id:
        overtaken += (before.part.run_id,)
    context.state[STATE_RECORD] = encode(_Kept(part, overtaken))


def claim(config: UserConfig, part: Part) -> None:
    """Write down that a step is about to be answered, from the part as it is before the step.

    Without a file of the answer record or of the query budget in the node config nothing is written. Raises ValueError
    if the step is there already, or the config is wrong; RuntimeError if the file cannot be used, without the details.
    """
    name = client_id(config)
    path = record_from_config(config).path or budget_from_config(config).path
    if path is None:
        return
    step = (name, part.run_id, part.secrets.public.encryption, part.awaits)
    with file_errors_withheld("noting the step of a secure histogram"), opened(path) as book:
        is_first = note_once(book, "secure_steps", *step)
    if not is_first:
        raise RefusedError(
            f"a client answers each step of a secure histogram once; it was asked for {part.awaits} twice"
        )


def _read(context: Context) -> _Kept | None:
    if STATE_RECORD not in context.state:
        return None
    return decode(context.state.config_records[STATE_RECORD], _Kept, name=STATE_RECORD)
