"""What the valid answers of a round say about the clients' risks, with what is assumed of who answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import riskband as rb
from client.losses import get_loss
from strategies.replies import RoundOutcome


def client_risks(
    outcome: RoundOutcome[Any], values: Sequence[float], *, loss: str, missing: str, contamination: int
) -> rb.ClientRisks:
    """Return the clients' risks.

    Parameters
    ----------
    outcome : RoundOutcome
        Valid answers and failures; the failures count as missing clients.
    values : sequence of float, one per answer
        Empirical risks, in the order of `outcome.answers`.
    loss : str
        What they are means of.
    missing, contamination :
        See `riskband.ClientRisks`.

    Raises
    ------
    ValueError
        If there are fewer than two answers, or no more than `contamination`.
    """
    return rb.ClientRisks(
        values,
        [answer.num_examples for answer in outcome.answers],
        binary=get_loss(loss).binary,
        num_missing=len(outcome.failures),
        missing=missing,
        contamination=contamination,
    )
