"""Adversarial answers as the mathematics takes them: what is proved of the clients, and what was only reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import riskband as rb
from protocol.questions import AdversarialAnswer, AdversarialQuery
from riskband.adversaries.answers import joined_answers
from riskband.adversaries.curves import CurveNumbers
from riskband.answers.adversarial import GUARANTEES
from strategies.asking.replies import RoundOutcome

# Rounding apart, an attack that raised no value by more than this has reached nothing.
_NEGLIGIBLE = 1e-9


def usable_answers(
    outcome: RoundOutcome[AdversarialAnswer], query: AdversarialQuery, **who_answered: Any
) -> rb.AdversarialAnswers:
    """Return the numbers to certify from: of each client what is proved, or else what an attack reached.

    Parameters
    ----------
    outcome : RoundOutcome
        Of the round that asked `query`.
    query : AdversarialQuery
        The question.
    **who_answered
        missing, contamination and answered_by of `riskband.AdversarialAnswers`.

    Raises
    ------
    ValueError
        If there are fewer than two answers.
    """
    return _answers(outcome, query, [_numbers(answer) for answer in outcome.answers], **who_answered)


def reached_answers(
    outcome: RoundOutcome[AdversarialAnswer], query: AdversarialQuery, **who_answered: Any
) -> rb.AdversarialAnswers | None:
    """Return what was reached of clients that also proved a bound: the other side of `usable_answers`.

    None if the answers are exact, if something was proved of some clients only, or if nothing was reached: there is
    then no second side.
    """
    if max((answer.guarantee for answer in outcome.answers), key=GUARANTEES.index) != "upper":
        return None
    if all(max(answer.values_lower) <= answer.clean_risk + _NEGLIGIBLE for answer in outcome.answers):
        return None
    reached = [_numbers(answer)._replace(guarantee="lower") for answer in outcome.answers]
    return _answers(outcome, query, reached, **who_answered)


def conjugates(answer: AdversarialAnswer) -> tuple[float, ...]:
    """Return the conjugates that belong to `curve_values`."""
    return answer.conjugates_lower if answer.guarantee == "lower" else answer.conjugates_upper


def _numbers(answer: AdversarialAnswer) -> CurveNumbers:
    return CurveNumbers(*(getattr(answer, name) for name in CurveNumbers._fields))


def _answers(
    outcome: RoundOutcome[AdversarialAnswer],
    query: AdversarialQuery,
    clients: Sequence[CurveNumbers],
    **who_answered: Any,
) -> rb.AdversarialAnswers:
    return joined_answers(
        clients,
        query.problem,
        radii=query.radii,
        multipliers=query.multipliers,
        num_missing=len(outcome.failures),
        noise=rb.AnswerNoise(query.privacy, num_values=query.num_values) if query.privacy else None,
        **who_answered,
    )
