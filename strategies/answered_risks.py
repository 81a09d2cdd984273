"""What the valid answers of a round say about the clients' risks, with what is assumed of who answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import riskband as rb
from protocol.noise import steps_of
from protocol.questions import Query
from riskband.adversaries.losses import get_loss
from strategies.asking.replies import RoundOutcome


def client_risks(
    outcome: RoundOutcome[Any],
    values: Sequence[float],
    *,
    query: Query,
    loss: str,
    missing: str,
    contamination: int,
    answered_by: str,
) -> rb.ClientRisks:
    """Return the clients' risks.

    Parameters
    ----------
    outcome : RoundOutcome
        Valid answers and failures; the failures count as missing clients.
    values : sequence of float, one per answer
        Empirical risks, with noise if that was asked for, in the order of `outcome.answers`.
    query : LossQuery or CandidatesQuery
        What was asked, and with which noise.
    loss : str
        What the values are means of.
    missing, contamination, answered_by :
        See `riskband.ClientRisks`.

    Raises
    ------
    ValueError
        If there are fewer than two answers, or no more than `contamination`.
    """
    is_binary = get_loss(loss).binary
    noise = None
    if query.privacy:
        noise = rb.AnswerNoise(query.privacy, num_values=query.num_values, num_steps=steps_of(is_binary=is_binary))
    return rb.ClientRisks(
        values,
        [answer.num_examples for answer in outcome.answers],
        binary=is_binary,
        num_missing=len(outcome.failures),
        missing=missing,
        contamination=contamination,
        noise=noise,
        answered_by=answered_by,
    )
