"""What the numbers of a correct adversarial answer obey, whatever the data (math §4.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from protocol.guarantees import possible_guarantees
from protocol.wire import AdversarialAnswer, AdversarialQuery, Query
from riskband.adversaries.problem import REPRESENTATION
from riskband.answers.adversarial import GUARANTEES
from riskband.answers.concave_curves import rounding_of_curve
from riskband.checks import LARGEST_COST, LARGEST_NOISY_RISK, SMALLEST_COST
from strategies.asking.failures import FailureReason

# How far two numbers of one client may contradict each other by rounding; losses lie in [0, 1].
_TOLERANCE = 1e-6

Rule = tuple[FailureReason, str]


def noise_slack(query: Query, num_examples: int) -> float:
    """Return how far outside of [0, 1] noise may take a number of a correct answer; 0 if there is none."""
    if query.mechanism is None:
        return 0.0
    reach = query.mechanism.reach(num_values=query.num_values, num_examples=max(num_examples, 1))
    return min(reach, LARGEST_NOISY_RISK - 1.0)


def broken_curve_rules(answer: AdversarialAnswer, query: AdversarialQuery) -> Iterator[Rule]:
    """Yield each rule that the curves of an answer break, in order of checking; the first one is the one to report.

    Parameters
    ----------
    answer : AdversarialAnswer
        Its clean risk and identity have been checked.
    query : AdversarialQuery
        What was asked.
    """
    if answer.guarantee not in GUARANTEES:
        yield FailureReason.MALFORMED, f"guarantee must be one of {', '.join(GUARANTEES)}, got another word"
    else:
        yield from _broken_guarantee_rules(answer.guarantee, query)
    if answer.budget_left is not None and answer.budget_left < 0:
        yield FailureReason.MALFORMED, "budget-left must be at least 0"
    if answer.num_without_gradient is not None:
        yield from _broken_count_rules(answer.num_without_gradient, answer, query)
    if query.mechanism is not None:
        yield from _broken_noise_rules(answer, query)
        return
    yield from _broken_number_rules("values", answer.values_lower, answer.values_upper, num_asked=len(query.radii))
    num_multipliers = len(query.multipliers)
    yield from _broken_number_rules(
        "conjugates", answer.conjugates_lower, answer.conjugates_upper, num_asked=num_multipliers
    )
    unit = answer.adversarial_unit
    if unit != 0.0 and not SMALLEST_COST <= unit <= LARGEST_COST:
        yield FailureReason.OUT_OF_RANGE, f"adversarial_unit must be a cost or 0, got {unit}"
    for name, values in (("lower", answer.values_lower), ("upper", answer.values_upper)):
        if rounding_of_curve(np.array(query.radii), np.array(values)) is None:
            detail = f"the {name} values must be nondecreasing and concave in the radius"
            yield FailureReason.NOT_CONCAVE, detail
    yield from _contradictions(answer, query)


def _broken_guarantee_rules(guarantee: str, query: AdversarialQuery) -> Iterator[Rule]:
    """A weaker guarantee would weaken that of the whole network; a stronger one is not to be had."""
    possible = possible_guarantees(query)
    strength = GUARANTEES.index(guarantee)
    if strength < GUARANTEES.index(possible[0]):
        detail = f"the adversary {query.problem.adversary!r} gives no more than {possible[0]!r}, got {guarantee!r}"
        yield FailureReason.CONTRADICTION, detail
    if strength > GUARANTEES.index(possible[-1]):
        detail = f"the adversary {query.problem.adversary!r} gives {possible[-1]!r} at least, got {guarantee!r}"
        yield FailureReason.WRONG_GUARANTEE, detail


def _broken_count_rules(
    num_without_gradient: int, answer: AdversarialAnswer, query: AdversarialQuery
) -> Iterator[Rule]:
    if not 0 <= num_without_gradient <= answer.num_examples:
        detail = f"num-without-gradient must be from 0 to num-examples, got {num_without_gradient}"
        yield FailureReason.OUT_OF_RANGE, detail
    if query.mechanism is not None or query.problem.space == REPRESENTATION:
        detail = "num-without-gradient must be left out with noise, and where no attack follows gradients"
        yield FailureReason.CONTRADICTION, detail


def _broken_noise_rules(answer: AdversarialAnswer, query: AdversarialQuery) -> Iterator[Rule]:
    """What noise leaves of the rules: curves need be neither monotone nor in [0, 1]."""
    conjugates, num_multipliers = answer.conjugates_upper, len(query.multipliers)
    if not (len(answer.values_upper) == 1 and len(conjugates) == num_multipliers):
        sizes = f"{len(answer.values_upper)} and {len(conjugates)}"
        yield FailureReason.WRONG_LENGTH, f"asked for 1 value and {num_multipliers} conjugates, got {sizes}"
    if not np.all(np.isfinite(conjugates)):
        yield FailureReason.NOT_FINITE, "conjugates must be finite"
    slack = noise_slack(query, answer.num_examples)
    if any(not -slack <= conjugate <= 1.0 + slack for conjugate in conjugates):
        yield FailureReason.OUT_OF_RANGE, "conjugates must be in [0, 1] up to noise"
    is_one = (answer.conjugates_lower, answer.values_lower, answer.values_upper) == (
        conjugates,
        (answer.clean_risk,),
        (answer.clean_risk,),
    )
    if not (is_one and answer.adversarial_unit == 0.0):
        yield FailureReason.CONTRADICTION, "with noise a number must be sent once for both bounds, and no unit"


def _broken_number_rules(
    name: str, lower: tuple[float, ...], upper: tuple[float, ...], *, num_asked: int
) -> Iterator[Rule]:
    if not len(lower) == len(upper) == num_asked:
        yield FailureReason.WRONG_LENGTH, f"asked for {num_asked} {name}, got {len(lower)} lower and {len(upper)} upper"
    numbers = np.array([*lower, *upper], dtype=np.float64)
    if not np.all(np.isfinite(numbers)):
        yield FailureReason.NOT_FINITE, f"{name} must be finite"
    if np.any((numbers < 0.0) | (numbers > 1.0)):
        yield FailureReason.OUT_OF_RANGE, f"{name} must be in [0, 1]"


def _contradictions(answer: AdversarialAnswer, query: AdversarialQuery) -> Iterator[Rule]:
    """What cannot be true of one client at once. The lengths have been checked."""
    ends = np.array([answer.values_lower, answer.values_upper])
    conjugates = np.array([answer.conjugates_lower, answer.conjugates_upper])
    least = answer.clean_risk - _TOLERANCE
    if np.any(ends[0] < least) or np.any(conjugates[0] < least):
        yield FailureReason.CONTRADICTION, "no adversarial risk may lie below the clean risk"
    if np.any(ends[0] > ends[1] + _TOLERANCE) or np.any(conjugates[0] > conjugates[1] + _TOLERANCE):
        yield FailureReason.CONTRADICTION, "no lower bound may lie above its upper bound"
    if np.any(conjugates > np.minimum.accumulate(conjugates, axis=1) + _TOLERANCE):
        yield FailureReason.CONTRADICTION, "conjugates must not increase with the multiplier"
    lines = np.outer(query.multipliers, query.radii) + conjugates[1][:, None]
    if np.any(ends[0] > lines + _TOLERANCE):
        yield FailureReason.CONTRADICTION, "no value may exceed multiplier * radius + conjugate"
    is_equal = np.allclose(ends[0], ends[1], rtol=0.0, atol=_TOLERANCE)
    is_equal = is_equal and np.allclose(conjugates[0], conjugates[1], rtol=0.0, atol=_TOLERANCE)
    if answer.guarantee == "exact" and not is_equal:
        yield FailureReason.CONTRADICTION, "lower and upper bounds of an exact answer must be equal"
