"""Every rule that an answer may break, and the sentence that it is refused with: several rules share one reason."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.questions import (
    AdversarialAnswer,
    Candidate,
    CandidatesAnswer,
    CandidatesQuery,
    ComparisonAnswer,
    ComparisonQuery,
    LossAnswer,
    LossQuery,
)
from riskband.adversaries.answers import joined_answers
from riskband.answers.concave_curves import knapsack_curve
from strategies.asking import rules
from strategies.asking.replies import answer_check
from tests.transport import adversarial_query, changed

SIGNED = {"client_id": "a", "num_examples": 10, "code_hash": "c", "model_hash": "m"}
MODEL = {"model": "tiny", "x_shape": (3,), "num_classes": 2}

CURVE, KNOTS = knapsack_curve(0.4 * np.arange(10)), (0.0, 0.04, 0.12, 0.24)
CURVES = adversarial_query(
    "zero_one", *MODEL.values(), order=1, radii=(0.0, 0.1, 0.2, 0.5), multipliers=(0.25, 0.5, 2.0)
)
VALUES, CONJUGATES = (tuple(each.tolist()) for each in (CURVE(CURVES.radii), CURVE.conjugate(CURVES.multipliers)))
ATTACKED = changed(CURVES, space="input", adversary="pgd")
BOUNDED = changed(CURVES, loss="brier", adversary="ascent")
NOISY = changed(ATTACKED, radii=(0.0,), privacy="laplace:100")


def values(*numbers: float) -> dict[str, Any]:
    return dict.fromkeys(("values_lower", "values_upper"), numbers)


def conjugates(*numbers: float) -> dict[str, Any]:
    return dict.fromkeys(("conjugates_lower", "conjugates_upper"), numbers)


CURVES_SAID = AdversarialAnswer(
    **SIGNED,
    **values(*VALUES),
    **conjugates(*CONJUGATES),
    loss="zero_one",
    clean_risk=0.1,
    adversarial_unit=1.8,
    guarantee="exact",
)
NOISY_SAID = dataclasses.replace(CURVES_SAID, **values(0.1), guarantee="lower", adversarial_unit=0.0)
HONEST = {
    "loss": (LossQuery("zero_one", **MODEL), LossAnswer(**SIGNED, risk=0.3, loss="zero_one")),
    "noisy loss": (
        LossQuery("zero_one", **MODEL, privacy="laplace:1"),
        LossAnswer(**SIGNED, risk=-0.1, loss="zero_one"),
    ),
    "brier": (LossQuery("brier", **MODEL), LossAnswer(**SIGNED, risk=0.35, loss="brier")),
    "candidates": (
        asked := CandidatesQuery(**MODEL, candidates=(Candidate("e", 0, "zero_one"), Candidate("b", 0, "brier"))),
        CandidatesAnswer(**SIGNED, risks=(0.3, 0.123), loss=asked.loss),
    ),
    "comparison": (
        ComparisonQuery("zero_one", **MODEL),
        ComparisonAnswer(**SIGNED, old_risk=0.4, new_risk=0.3, num_worse=2, loss="zero_one"),
    ),
    "comparison by brier": (
        ComparisonQuery("brier", **MODEL),
        ComparisonAnswer(**SIGNED, old_risk=0.41, new_risk=0.32, num_worse=None, loss="brier"),
    ),
    "curves": (CURVES, CURVES_SAID),
    "attacked": (ATTACKED, dataclasses.replace(CURVES_SAID, guarantee="lower", num_without_gradient=3)),
    "bounded": (BOUNDED, dataclasses.replace(CURVES_SAID, guarantee="upper", loss="brier")),
    "noisy curves": (NOISY, NOISY_SAID),
}

NOT_CONCAVE = ("not-concave", "values must be nondecreasing and concave in the radius")
OUTSIDE = "out-of-range"
BELOW = ("contradiction", "no adversarial risk may lie below the clean risk")
CROSSED = ("contradiction", "no lower bound may lie above its upper bound")
ONCE = ("contradiction", "with noise a number must be sent once for both bounds, and no unit")
NO_GRADIENTS = ("contradiction", "num-without-gradient must be left out with noise, and where no attack follows")

LIES = [
    ("loss", {"code_hash": "d", "risk": math.nan}, "wrong-code", "the client ran other code"),
    ("loss", {"model_hash": "d", "loss": "brier"}, "wrong-model", "the client evaluated another model"),
    ("loss", {"loss": "brier"}, "wrong-loss", "asked for 'zero_one', got 'brier'"),
    ("loss", {"risk": math.nan}, "not-finite", "risk must be finite, got nan"),
    ("loss", {"risk": 1.1}, OUTSIDE, "risk must be in [0, 1], got 1.1"),
    ("loss", {"risk": -0.1}, OUTSIDE, "risk must be in [0, 1], got -0.1"),
    ("noisy loss", {"risk": 30.0}, OUTSIDE, "risk must be in [0, 1] up to noise, got 30.0"),
    ("noisy loss", {"risk": 0.35}, "impossible-count", "got 0.35 of 10"),
    ("loss", {"num_examples": 0}, "no-examples", "num_examples must be at least 1, got 0"),
    ("brier", {"num_examples": 2**63}, OUTSIDE, "num_examples must be at most"),
    ("loss", {"risk": 0.35}, "impossible-count", "a zero_one risk is a whole number out of num_examples, got 0.35 of"),
    ("candidates", {"risks": (0.3,)}, "wrong-length", "asked for 2 risks, got 1"),
    ("candidates", {"risks": (0.35, 0.123)}, "impossible-count", "a zero_one risk is a whole number"),
    ("candidates", {"risks": (0.3, 1.5)}, OUTSIDE, "risk must be in [0, 1], got 1.5"),
    ("comparison", {"old_risk": 0.45}, "impossible-count", "got 0.45 of 10"),
    ("comparison", {"new_risk": 0.35}, "impossible-count", "got 0.35 of 10"),
    ("comparison", {"num_worse": None}, "contradiction", "num-worse must be there for a loss of 0 or 1, and for no"),
    ("comparison by brier", {"num_worse": 1}, "contradiction", "num-worse must be there for a loss of 0 or 1, and for"),
    ("comparison", {"num_worse": 4}, "impossible-count", "4 wrong before and 3 now, 4 got worse: no examples are so"),
    ("comparison", {"old_risk": 0.0}, "impossible-count", "0 wrong before and 3 now, 2 got worse: no examples are so"),
    ("curves", {"clean_risk": math.nan}, "not-finite", "risk must be finite"),
    ("curves", {"clean_risk": 1.5}, OUTSIDE, "risk must be in [0, 1], got 1.5"),
    ("curves", {"clean_risk": 0.15}, "impossible-count", "got 0.15 of 10"),
    ("curves", {"num_examples": 7}, "impossible-count", "got 0.1 of 7"),
    ("curves", {"guarantee": "certain"}, "malformed", "guarantee must be one of"),
    ("curves", {"guarantee": "upper"}, "wrong-guarantee", "gives 'exact', got 'upper'"),
    ("curves", {"guarantee": "lower"}, "wrong-guarantee", "gives 'exact', got 'lower'"),
    ("attacked", {"guarantee": "exact"}, "contradiction", "the adversary 'pgd' gives 'lower', got 'exact'"),
    ("curves", {"is_unsteady": True}, "contradiction", "of an unsteady model nothing is proved"),
    ("attacked", {"num_without_gradient": 11}, OUTSIDE, "num-without-gradient must be from 0 to num-examples, got 11"),
    ("attacked", {"num_without_gradient": -1}, OUTSIDE, "num-without-gradient must be from 0 to num-examples, got -1"),
    ("curves", {"num_without_gradient": 3}, *NO_GRADIENTS),  # of a representation
    ("noisy curves", {"num_without_gradient": 3}, *NO_GRADIENTS),
    ("curves", values(0.1, 0.2, 0.3), "wrong-length", "asked for 4 values, got 3 lower and 3 upper"),
    ("curves", {"values_upper": (*VALUES, 1.0)}, "wrong-length", "asked for 4 values, got 4 lower and 5 upper"),
    ("curves", {"conjugates_lower": (1.0,)}, "wrong-length", "asked for 3 conjugates, got 1 lower and 3 upper"),
    ("curves", values(0.1, 0.2, math.nan, 0.4), "not-finite", "values must be finite"),
    ("curves", {"conjugates_upper": (math.inf, 0.5, 0.1)}, "not-finite", "conjugates must be finite"),
    ("curves", values(0.1, 0.2, 0.3, 1.01), OUTSIDE, "values must be in [0, 1]"),
    ("curves", {"conjugates_lower": (-0.1, -0.1, -0.1)}, OUTSIDE, "conjugates must be in [0, 1]"),
    ("curves", {"adversarial_unit": math.nan}, OUTSIDE, "adversarial_unit must be a cost or 0, got nan"),
    ("curves", {"adversarial_unit": math.inf}, OUTSIDE, "adversarial_unit must be a cost or 0, got inf"),
    ("curves", {"adversarial_unit": -1.0}, OUTSIDE, "adversarial_unit must be a cost or 0, got -1"),
    ("curves", values(0.1, 0.2, 0.4, 0.41), *NOT_CONCAVE),
    ("curves", values(0.1, 0.3, 0.2, 0.4), *NOT_CONCAVE),
    ("curves", values(0.1, 0.3, 0.3 - 1e-8 / 3, 0.3), *NOT_CONCAVE),
    ("curves", {"values_lower": (0.1, 0.3, 0.2, 0.4)}, "not-concave", "the lower values must be"),
    ("curves", {"values_upper": (0.2, 0.3, 0.5, 0.6)}, "not-concave", "the upper values must be"),
    ("curves", {"clean_risk": 0.2}, *BELOW),
    ("curves", conjugates(0.5, 0.2, 0.0), *BELOW),
    ("curves", {"values_lower": (1.0, 1.0, 1.0, 1.0)}, *CROSSED),
    ("curves", {"conjugates_lower": (1.0, 1.0, 1.0)}, *CROSSED),
    ("curves", conjugates(0.5, 0.6, 0.7), "contradiction", "conjugates must not increase with the multiplier"),
    ("attacked", {"conjugates_lower": (0.1, 0.11, 0.1)}, "contradiction", "conjugates must not increase with the"),
    ("attacked", values(0.2, 0.3, 0.4, 0.5), "contradiction", "no conjugate may lie below the value at radius 0"),
    ("bounded", {"values_upper": (0.2, 0.4, 0.5, 0.7)}, "contradiction", "no conjugate may lie below the value at"),
    ("curves", conjugates(0.1, 0.1, 0.1), "contradiction", "no value may exceed multiplier * radius + conjugate"),
    ("curves", {"values_lower": (0.1, 0.1, 0.1, 0.1)}, "contradiction", "bounds of an exact answer must be equal"),
    ("curves", {"conjugates_lower": (0.1, 0.1, 0.1)}, "contradiction", "bounds of an exact answer must be equal"),
    ("noisy curves", conjugates(0.1, 0.1), "wrong-length", "asked for 1 value and 3 conjugates, got 1 and 2"),
    ("noisy curves", conjugates(0.1, math.nan, 0.1), "not-finite", "conjugates must be finite"),
    ("noisy curves", conjugates(0.1, 0.1, -30.0), OUTSIDE, "conjugates must be in [0, 1] up to noise"),
    ("noisy curves", {"conjugates_lower": (0.1, 0.1, 0.1)}, *ONCE),
    ("noisy curves", {"values_lower": (0.2,)}, *ONCE),
    ("noisy curves", values(0.2), *ONCE),
    ("noisy curves", {"adversarial_unit": 1.0}, *ONCE),
]


def check_of(name: str, query: Any = None) -> Any:
    return answer_check(query or HONEST[name][0], "m", "c", None)


@pytest.mark.guard
@pytest.mark.parametrize("name", HONEST)
def test_what_is_honest_breaks_no_rule(name: str) -> None:
    assert check_of(name).failure(HONEST[name][1]) is None


@given(
    st.sampled_from(["curves", "attacked", "bounded"]),
    st.tuples(*[st.sampled_from([0.0, 0.1])] * 4),
    st.dictionaries(st.integers(0, 13), st.sampled_from([9e-7, -9e-7, 1.1e-6, -1.1e-6]), max_size=4),
)
@example("curves", (0.0,) * 4, {5: 9e-7, 10: -9e-7, 13: -9e-7})  # two errors of rounding that add up
def test_what_breaks_no_rule_ends_nobodys_run(name: str, shifts: tuple[float, ...], errors: dict[int, float]) -> None:
    """All clients go into one object, which refuses them all for one that contradicts itself."""
    query = changed(HONEST[name][0], radii=KNOTS, multipliers=(0.7, 1.0, 2.0))  # where rules hold with equality
    exact = {**values(*CURVE(KNOTS).tolist()), **conjugates(*CURVE.conjugate(query.multipliers).tolist())}
    honest = dataclasses.replace(HONEST[name][1], **exact)
    numbers = [each + shift for ends, shift in zip(exact.values(), shifts, strict=True) for each in ends]
    moved = iter(min(each + errors.get(place, 0.0), 1.0) for place, each in enumerate(numbers))
    answer = dataclasses.replace(honest, **{key: tuple(islice(moved, len(ends))) for key, ends in exact.items()})
    assert check_of(name, query).failure(honest) is None
    if check_of(name, query).failure(answer) is None:
        joined_answers([honest, answer], query.problem, radii=query.radii, multipliers=query.multipliers)


@pytest.mark.guard
@pytest.mark.parametrize(("name", "claims", "reason", "sentence"), LIES)
def test_a_lie_is_refused_in_the_words_of_the_rule_that_it_breaks(
    name: str, claims: dict[str, Any], reason: str, sentence: str
) -> None:
    failure = check_of(name).failure(dataclasses.replace(HONEST[name][1], **claims))
    assert failure.reason == reason
    assert sentence in failure.detail


def place_of(broken: Any) -> int | None:
    """The line of the first rule that is broken, which a generator within `broken` may have yielded."""
    next(broken, None)
    innermost = broken
    while innermost.gi_yieldfrom is not None:
        innermost = innermost.gi_yieldfrom
    return innermost.gi_frame and innermost.gi_frame.f_lineno


def test_each_rule_has_a_lie_that_breaks_it_first() -> None:
    lies = ((HONEST[name][0], dataclasses.replace(HONEST[name][1], **claims)) for name, claims, *_ in LIES)
    broken = {place_of(rules.broken_rules(answer, query, model_hash="m")) for query, answer in lies}
    written = {node.lineno for node in ast.walk(ast.parse(inspect.getsource(rules))) if isinstance(node, ast.Yield)}
    assert len(written) > 20
    assert written <= broken
