"""What an honest answer obeys, whatever the data; of adversarial answers see math §4.2.

The rules come in order of checking: the first one that is broken is the one to report, and those after it may rely on
those before. Identity comes before the numbers: a number computed by other code is not worth judging.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from protocol import questions
from protocol.guarantees import possible_guarantees
from riskband.adversaries.names import REPRESENTATION
from riskband.answers.adversarial import GUARANTEES
from riskband.answers.concave_curves import rounding_of_curve
from riskband.answers.counts import is_count
from riskband.checks import LARGEST_COST, LARGEST_NOISY_RISK, MAX_EXAMPLES, SMALLEST_COST, float_rounding
from riskband.models.losses import get_loss
from strategies.asking.failures import FailureReason

# How far two numbers of one client may contradict each other by rounding, losses lie in [0, 1]: less than
# `AdversarialAnswers` allows, so that what passes here ends nobody's run there.
_TOLERANCE = 1e-6
# risk·num_examples of an honest 0-1 risk misses a whole number only by rounding, which with noise may be a large one's.
_WHOLE_NUMBER_TOLERANCE, _ROUNDING = 1e-6, 1e-15

Rule = tuple[FailureReason, str]
"""A rule that is broken, in one word and in a line."""


def broken_rules(answer: questions.Answer, query: questions.Query, *, model_hash: str) -> Iterator[Rule]:
    """Yield each rule that an answer to `query` breaks; its types have been checked, the hash is of the model sent."""
    if answer.model_hash != model_hash:
        yield FailureReason.WRONG_MODEL, "the client evaluated another model than it was sent"
    if answer.loss != query.loss:
        yield FailureReason.WRONG_LOSS, f"asked for {query.loss!r}, got {answer.loss!r}"
    if isinstance(answer, questions.CandidatesAnswer):
        assert isinstance(query, questions.CandidatesQuery)
        if len(answer.risks) != len(query.candidates):
            yield FailureReason.WRONG_LENGTH, f"asked for {len(query.candidates)} risks, got {len(answer.risks)}"
        for risk, candidate in zip(answer.risks, query.candidates, strict=False):
            yield from _broken_risk_rules(risk, answer.num_examples, candidate.loss, query)
    elif isinstance(answer, questions.AdversarialAnswer):
        assert isinstance(query, questions.AdversarialQuery)
        yield from _broken_risk_rules(answer.clean_risk, answer.num_examples, query.loss, query)
        yield from broken_curve_rules(answer, query)
    elif isinstance(answer, questions.ComparisonAnswer):
        for risk in (answer.old_risk, answer.new_risk):
            yield from _broken_risk_rules(risk, answer.num_examples, query.loss, query)
        yield from _broken_change_rules(answer, counts_errors=get_loss(query.loss).binary)
    else:
        yield from _broken_risk_rules(answer.risk, answer.num_examples, query.loss, query)


def noise_slack(query: questions.Query, num_examples: int) -> float:
    """Return how far outside of [0, 1] noise may take a number of a correct answer; 0 if there is none."""
    if query.mechanism is None:
        return 0.0
    reach = query.mechanism.reach(num_values=query.num_values, num_examples=max(num_examples, 1))
    return min(reach, LARGEST_NOISY_RISK - 1.0)


def broken_curve_rules(answer: questions.AdversarialAnswer, query: questions.AdversarialQuery) -> Iterator[Rule]:
    """Yield each rule that the curves of an answer break, whose clean risk and identity have been checked."""
    if answer.guarantee not in GUARANTEES:
        yield FailureReason.MALFORMED, f"guarantee must be one of {', '.join(GUARANTEES)}, got another word"
    else:
        yield from _broken_guarantee_rules(answer.guarantee, query)
    if answer.is_unsteady and answer.guarantee != "lower":
        yield FailureReason.CONTRADICTION, "of an unsteady model nothing is proved, and the guarantee must be 'lower'"
    if answer.num_without_gradient is not None:
        yield from _broken_count_rules(answer.num_without_gradient, answer, query)
    if query.mechanism is not None:
        yield from _broken_noise_rules(answer, query)
        return
    yield from _broken_number_rules("values", answer.values_lower, answer.values_upper, num_asked=len(query.radii))
    conjugates = answer.conjugates_lower, answer.conjugates_upper
    yield from _broken_number_rules("conjugates", *conjugates, num_asked=len(query.multipliers))
    unit = answer.adversarial_unit
    if unit != 0.0 and not SMALLEST_COST <= unit <= LARGEST_COST:
        yield FailureReason.OUT_OF_RANGE, f"adversarial_unit must be a cost or 0, got {unit}"
    for name, values in (("lower", answer.values_lower), ("upper", answer.values_upper)):
        if rounding_of_curve(np.array(query.radii), np.array(values)) is None:
            yield FailureReason.NOT_CONCAVE, f"the {name} values must be nondecreasing and concave in the radius"
    yield from _contradictions(answer, query)


def _broken_guarantee_rules(guarantee: str, query: questions.AdversarialQuery) -> Iterator[Rule]:
    """A weaker guarantee would weaken that of the whole network; a stronger one is not to be had."""
    possible = possible_guarantees(query)
    if guarantee not in possible:
        is_weaker = GUARANTEES.index(guarantee) > GUARANTEES.index(possible[-1])
        given = " or ".join(map(repr, possible))
        detail = f"the adversary {query.problem.adversary!r} gives {given}, got {guarantee!r}"
        yield FailureReason.WRONG_GUARANTEE if is_weaker else FailureReason.CONTRADICTION, detail


def _broken_count_rules(
    num_without_gradient: int, answer: questions.AdversarialAnswer, query: questions.AdversarialQuery
) -> Iterator[Rule]:
    if not 0 <= num_without_gradient <= answer.num_examples:
        detail = f"num-without-gradient must be from 0 to num-examples, got {num_without_gradient}"
        yield FailureReason.OUT_OF_RANGE, detail
    if query.mechanism is not None or query.problem.space == REPRESENTATION:
        detail = "num-without-gradient must be left out with noise, and where no attack follows gradients"
        yield FailureReason.CONTRADICTION, detail


def _broken_noise_rules(answer: questions.AdversarialAnswer, query: questions.AdversarialQuery) -> Iterator[Rule]:
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
    clean = (answer.clean_risk,)
    is_one = answer.conjugates_lower == conjugates and answer.values_lower == answer.values_upper == clean
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


def _contradictions(answer: questions.AdversarialAnswer, query: questions.AdversarialQuery) -> Iterator[Rule]:
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
    if query.radii[:1] == (0.0,) and np.any(np.array(answer.conjugates) < answer.values[0] - _TOLERANCE):
        yield FailureReason.CONTRADICTION, "no conjugate may lie below the value at radius 0"
    lines = np.outer(query.multipliers, query.radii) + conjugates[1][:, None]
    if np.any(ends[0] > lines + _TOLERANCE):
        yield FailureReason.CONTRADICTION, "no value may exceed multiplier * radius + conjugate"
    is_equal = np.allclose(ends[0], ends[1], rtol=0.0, atol=_TOLERANCE)
    is_equal = is_equal and np.allclose(conjugates[0], conjugates[1], rtol=0.0, atol=_TOLERANCE)
    if answer.guarantee == "exact" and not is_equal:
        yield FailureReason.CONTRADICTION, "lower and upper bounds of an exact answer must be equal"


def _broken_risk_rules(risk: float, num_examples: int, loss: str, query: questions.Query) -> Iterator[Rule]:
    if not math.isfinite(risk):
        yield FailureReason.NOT_FINITE, f"risk must be finite, got {risk}"
    slack = noise_slack(query, num_examples)
    if not -slack <= risk <= 1 + slack:
        yield FailureReason.OUT_OF_RANGE, f"risk must be in [0, 1]{' up to noise' if slack else ''}, got {risk}"
    if num_examples < 1:
        yield FailureReason.NO_EXAMPLES, f"num_examples must be at least 1, got {num_examples}"
    if num_examples > MAX_EXAMPLES:
        yield FailureReason.OUT_OF_RANGE, f"num_examples must be at most {MAX_EXAMPLES:g}, got {num_examples}"
    # With noise the numbers of an adversarial answer are in finer steps, for all losses the same.
    counts_errors = get_loss(loss).binary
    if isinstance(query, questions.AdversarialQuery):
        counts_errors = query.problem.is_binary and not query.privacy
    if counts_errors and not _is_whole(risk, num_examples, is_noisy=bool(query.privacy)):
        detail = f"a {loss} risk is a whole number out of num_examples, got {risk} of {num_examples}"
        yield FailureReason.IMPOSSIBLE_COUNT, detail


def _broken_change_rules(answer: questions.ComparisonAnswer, *, counts_errors: bool) -> Iterator[Rule]:
    """What the number of examples that got worse cannot be, beside risks that have been checked."""
    if (answer.num_worse is not None) != counts_errors:
        yield FailureReason.CONTRADICTION, "num-worse must be there for a loss of 0 or 1, and for no other"
    elif answer.num_worse is not None:
        old, new = (round(risk * answer.num_examples) for risk in (answer.old_risk, answer.new_risk))
        if not max(0, new - old) <= answer.num_worse <= min(new, answer.num_examples - old):
            counts = f"{old} wrong before and {new} now, {answer.num_worse} got worse: no examples are so"
            yield FailureReason.IMPOSSIBLE_COUNT, f"of {answer.num_examples} examples, {counts}"


def _is_whole(risk: float, num_examples: int, *, is_noisy: bool) -> bool:
    if is_noisy:
        count = risk * num_examples
        return abs(count - round(count)) <= _WHOLE_NUMBER_TOLERANCE + _ROUNDING * abs(count)
    value = np.array([risk])  # a client may compute in float32
    return bool(is_count(value, np.array([num_examples]), float_rounding(value))[0])
