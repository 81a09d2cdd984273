"""Each step of a secure histogram is answered once, also by two processes that were started with the same state.

A SuperNode sends a client's reply before it stores the state that the reply left behind. A process that is started in
between has the old state and would answer once more. Where the owner has named a file that outlives a process, a step
is written there before it is answered, and of two processes one is refused.
"""

from __future__ import annotations

from contextlib import closing

from flwr.app import UserConfig

from client.answer_record import record_from_config
from client.budget import budget_from_config
from client.identity import client_id
from client.private_files import open_private_database
from client.refusals import files_at_hand
from client.secure.part import Part
from riskband.adversaries.problem import RefusedError

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS secure_steps "
    "(client TEXT, run TEXT, key BLOB, step TEXT, PRIMARY KEY (client, run, key, step))"
)


def claim(config: UserConfig, part: Part) -> None:
    """Write down that a step is about to be answered.

    Parameters
    ----------
    config : mapping
        The node config. Without a file of the answer record or of the query budget nothing is written.
    part : Part
        As it is before the step.

    Raises
    ------
    ValueError
        If the step is there already, or the config is wrong.
    RuntimeError
        If the file cannot be used; without the details.
    """
    name = client_id(config)
    path = record_from_config(config, client_id=name).path or budget_from_config(config, client_id=name).path
    if path is None:
        return
    step = (name, str(part.run_id), part.secrets.public.encryption, part.awaits)
    noting = files_at_hand("noting the step of a secure histogram")
    with noting, closing(open_private_database(path, _SCHEMA)) as connection:
        added = connection.execute("INSERT OR IGNORE INTO secure_steps VALUES (?, ?, ?, ?)", step).rowcount
    if added == 0:
        raise RefusedError(
            f"a client answers each step of a secure histogram once; it was asked for {part.awaits} twice"
        )
