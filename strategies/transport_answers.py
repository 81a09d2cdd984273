"""Adversarial answers as the mathematics takes them: what is proved of the clients, and what was only reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import riskband as rb
from protocol.wire import AdversarialAnswer, AdversarialQuery
from riskband.adversaries.losses import get_loss
from riskband.answers.adversarial import GUARANTEES
from strategies.asking.replies import RoundOutcome
from strategies.rounds import curve_values

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
    guarantee = max((answer.guarantee for answer in outcome.answers), key=GUARANTEES.index)
    return _answers(outcome, query, guarantee, curve_values, conjugates, **who_answered)


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

    def values_lower(answer: AdversarialAnswer) -> tuple[float, ...]:
        return answer.values_lower

    def conjugates_lower(answer: AdversarialAnswer) -> tuple[float, ...]:
        return answer.conjugates_lower

    return _answers(outcome, query, "lower", values_lower, conjugates_lower, **who_answered)


def without_gradient(answers: Iterable[AdversarialAnswer]) -> tuple[int, int] | None:
    """Return at how many examples of all clients attacks found no gradient to follow, and of how many.

    None if no client said: nothing was attacked, or by what needs no gradient, or the answers have noise.
    """
    counts = [
        (answer.num_without_gradient, answer.num_examples)
        for answer in answers
        if answer.num_without_gradient is not None
    ]
    return (sum(count for count, _ in counts), sum(size for _, size in counts)) if counts else None


def conjugates(answer: AdversarialAnswer) -> tuple[float, ...]:
    """Return the conjugates that belong to `curve_values`."""
    return answer.conjugates_lower if answer.guarantee == "lower" else answer.conjugates_upper


def _answers(
    outcome: RoundOutcome[AdversarialAnswer],
    query: AdversarialQuery,
    guarantee: str,
    values_of: Callable[[AdversarialAnswer], tuple[float, ...]],
    conjugates_of: Callable[[AdversarialAnswer], tuple[float, ...]],
    **who_answered: Any,
) -> rb.AdversarialAnswers:
    replies = outcome.answers
    units = [answer.adversarial_unit for answer in replies if answer.adversarial_unit > 0.0]
    problem, layer = query.problem, query.problem.layer
    place = f"in {problem.space} space" if layer is None else f"at the output of layer {layer}"
    cost = f"order {problem.order}, {problem.norm} distance, {place}"
    if problem.box is not None and guarantee == "lower":  # what is proved is proved of all inputs, or outputs
        cost += f", {'inputs' if layer is None else 'outputs'} in [{problem.box[0]:g}, {problem.box[1]:g}]"
    blind = without_gradient(replies)
    if blind is not None and blind[0] > 0 and guarantee == "lower":  # what is proved needs no gradient
        cost += f"; attacks found no gradient to follow at {blind[0]} of {blind[1]} examples"
    return rb.AdversarialAnswers(
        query.radii,
        [values_of(answer) for answer in replies],
        [answer.num_examples for answer in replies],
        cost=cost,
        guarantee=guarantee,
        binary=get_loss(query.loss).binary,
        multipliers=query.multipliers,
        conjugates=[conjugates_of(answer) for answer in replies],
        unit=float(np.mean(units)) if units else None,
        num_missing=len(outcome.failures),
        noise=rb.AnswerNoise(query.privacy, num_values=query.num_values) if query.privacy else None,
        **who_answered,
    )
