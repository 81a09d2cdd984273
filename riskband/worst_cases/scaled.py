"""Bounds on changes between two models, and on scores such as AUC: means, quantiles, shares and worst means.

Each is found on [0, 1], where 1 is the bad end, and moved back to the scale of the answers (math §13). The other end is
that of the mirrored answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.answers.responses import FRESH_CLIENTS
from riskband.answers.risks import BINARY_LOSS, BOUNDED_LOSS, clopper_pearson
from riskband.answers.scaled import ClientChanges, ScaledAnswers, beyond
from riskband.bands.local_steps import OBSERVED_SIZES
from riskband.betting import CONSTANT_STAKES, betting_assumptions, constant_stakes_upper_mean
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_delta
from riskband.functionals.quantiles import SINGLE_LOCAL, quantile_rank
from riskband.functionals.stepwise import counted, order_statistic
from riskband.wording import chosen_before, exactly
from riskband.worst_cases.number import Number
from riskband.worst_cases.reweighting import within, worst_case_mean

SIDES = ("worse", "two")
FRESH_FOR_BOTH = "the clients that answered had no part in training, tuning or choosing either model"
# Of limits of single clients. It widens a share by a quarter, and a smaller one widens what is counted by more, but for
# thousands of examples: the sharpest in most of 36 networks of 20 to 200 clients with 100 to 2,000 examples.
_ETA = 0.2
_METHODS = {"mean": CONSTANT_STAKES, "quantile": "order statistic", "share": "exact binomial"}


def bound_on_scale(answers: ScaledAnswers, number: Number, *, delta: float, sides: str, local: str) -> Certificate:
    """Bound on a mean, quantile or share of changes or scores, or on the worst mean of a shifted network.

    Parameters
    ----------
    answers : ClientChanges or ClientScores
        Of scores the bounds are on what unseen clients would measure; if higher is better, from below.
    number, delta, sides :
        As for `riskband.bound`; a worst mean is bounded from its bad end alone.
    local : {"marginal", "observed"}
        Of a quantile or share: whether it is about the clients' true changes, or those that they would measure. Means
        of both are the same.

    Returns
    -------
    Certificate
        A number. Source: math §13.2, math §13.3.

    Raises
    ------
    ValueError
        If an argument is out of range, or a worst mean is asked of answers that may be wrong or missing.
    """
    delta, scale, local = check_delta(delta), answers.scale, check_choice("local", local, SINGLE_LOCAL)
    number.check(scale)
    eta = _ETA if local == "marginal" and number.family != "mean" else 0.0
    is_from_both = sides == "two" and number.shift is None
    if number.shift is not None:
        answers.require_certain_answers(f"{str(number)!r}", "a mean")
        f, size = number.shift
        worst = worst_case_mean(answers.unit, divergence=f, budget=size, delta=delta)
        low = high = float(answers.from_unit(np.asarray(worst.value)))
        method, of_kind = worst.method, (within(f), *betting_assumptions(worst.method, None))
    else:
        low, high = _ends(answers, number, delta / 2.0 if is_from_both else delta, eta, is_from_both=is_from_both)
        is_measured = local == "observed" and number.family != "mean"
        method, of_kind = _METHODS[number.family], (OBSERVED_SIZES,) if is_measured else ()
    has_bad_end_above = number.family == "share" or not scale.is_higher_better
    return Certificate(
        quantity=number.quantity(scale, local=local),
        value=high if is_from_both or has_bad_end_above else scale.high,
        lower=low if is_from_both or not has_bad_end_above else None,
        delta=delta,
        method=method,
        assumptions=(
            *assumptions_of(answers, needs_binary=eta > 0.0),
            *answers.own_assumptions,
            *of_kind,
            *chosen_before(bound_on=(f"{number}{' from both sides' if is_from_both else ''}", None)),
            *(chosen_before(local=(local, "marginal")) if isinstance(answers, ClientChanges) else ()),
        ),
        recipe=recipe("bound", {}, answers),
    )


def _ends(
    answers: ScaledAnswers, number: Number, part: float, eta: float, *, is_from_both: bool
) -> tuple[float, float]:
    """Both ends of a number, the smaller one first, each with so much of delta; or the bad one as both."""
    scale = answers.scale
    if number.family == "share":
        most = _most(answers, beyond(answers, limits_of(answers, eta), number.point), part, eta)
        if not is_from_both:
            return most, most
        below = answers.lower_limits(eta) if eta and isinstance(answers, ClientChanges) else answers.below.values
        return 1.0 - _most(answers, ~beyond(answers, below, number.point), part, eta), most
    level = 1.0 - number.point if scale.is_higher_better else number.point
    bad = _bad_end(answers, number.family, level, part, eta)
    near = 1.0 - _bad_end(answers.mirrored, number.family, 1.0 - level, part, eta) if is_from_both else bad
    low, high = answers.from_unit(np.array([near, bad])[:: -1 if scale.is_higher_better else 1]).tolist()
    return low, high


def _bad_end(answers: ScaledAnswers, kind: str, level: float, delta: float, eta: float) -> float:
    """Upper limit, on [0, 1], for the mean or a quantile: of limits at error level `eta`, or of what was measured."""
    unit = answers.unit
    if kind == "mean":
        return constant_stakes_upper_mean(unit.worst_completion(unit.values), delta=delta)
    values = answers.scale.to_unit(limits_of(answers, eta))
    rank = quantile_rank(unit.num_counted, level=level_of_limits(level, eta), delta=delta)
    return order_statistic(unit, values, rank)


def limits_of(answers: ScaledAnswers, eta: float) -> FloatArray:
    """Return upper limits of the clients' true changes at error level `eta`; at 0, and of scores, what was measured."""
    return answers.upper_limits(eta) if eta and isinstance(answers, ClientChanges) else answers.values


def _most(answers: ScaledAnswers, some: npt.NDArray[np.bool_], delta: float, eta: float) -> float:
    """Upper limit for the share of clients of which some, by limits at error level `eta`, are those measured."""
    share = float(clopper_pearson(counted(answers.unit, some), answers.num_counted, delta))
    return min(share / (1.0 - eta), 1.0)


def level_of_limits(level: float, eta: float = _ETA) -> float:
    """Return the level of the quantile of limits of single clients that is above one of the clients' true numbers.

    At most a share (1 - level) of the true numbers is above the quantile, of the limits no less than 1 - eta of it.
    """
    return 1.0 - (1.0 - level) * (1.0 - eta)


def assumptions_of(answers: ScaledAnswers, *, needs_binary: bool = False, **known: bool) -> tuple[str, ...]:
    """What every certificate from these answers assumes; arguments are those of `shared_assumptions`."""
    noun, low, high = answers.scale.noun, exactly(answers.scale.low), exactly(answers.scale.high)
    in_range = f"every {noun} lies in [{low}, {high}], a range that was known before any answer"
    of_losses, fresh = in_range, FRESH_CLIENTS
    if isinstance(answers, ClientChanges):
        of_losses, fresh = BINARY_LOSS if needs_binary and answers.binary else BOUNDED_LOSS, FRESH_FOR_BOTH
    lines = answers.responses.assumptions(of_losses, **known)
    return tuple(line.replace("mean loss", noun).replace(FRESH_CLIENTS, fresh) for line in lines)


def on_scale(certificate: Certificate, answers: ScaledAnswers) -> Certificate:
    """Return a certificate of the next clients, of the answers on [0, 1], as one of the answers themselves."""
    scale, bounds = answers.scale, np.asarray(certificate.value)
    moved: dict[str, Any] = {"value": answers.from_unit(bounds)}
    if scale.is_higher_better:
        moved = {"value": np.full(bounds.shape, scale.high), "lower": moved["value"]}
    beyond = f"{scale.noun} {scale.beyond}"
    words = certificate.quantity.replace("largest", scale.worst).replace("risk", scale.noun)
    said = dict(zip(answers.unit.responses.assumptions(BOUNDED_LOSS), assumptions_of(answers), strict=True))
    return replace(
        certificate,
        quantity=words.replace(f"a {scale.noun} above", f"{scale.article} {beyond}"),
        **({} if "above" in certificate.recipe["arguments"] else moved),  # but for a number of clients
        details={name: scale.from_unit(np.asarray(each)) for name, each in certificate.details.items()},
        assumptions=(
            *(said.get(line, line.replace("risk above", beyond)) for line in certificate.assumptions),
            *answers.own_assumptions,
        ),
        recipe={**certificate.recipe, **answers.provenance()},
    )
