"""Bounds on changes between two models, and on scores such as AUC, by name: "harmed:0.02", "score_quantile:0.1".

Each is found on [0, 1], where 1 is the bad end, and moved back to the scale of the answers (math §13). The other end is
that of the mirrored answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from riskband.answers.responses import FRESH_CLIENTS
from riskband.answers.risks import BINARY_LOSS, BOUNDED_LOSS, clopper_pearson
from riskband.answers.scaled import ClientChanges, ClientScores, Scale, ScaledAnswers
from riskband.bands.local_steps import OBSERVED_SIZES
from riskband.betting import CONSTANT_STAKES, betting_assumptions, constant_stakes_upper_mean
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, as_spelled, check_budget, check_choice, check_delta, check_kind, float_of
from riskband.functionals.quantiles import SINGLE_LOCAL, quantile_rank
from riskband.functionals.stepwise import counted, order_statistic
from riskband.wording import chosen_before, exactly
from riskband.worst_cases.divergences import FDivergence, resolve_divergence
from riskband.worst_cases.reweighting import within, worst_case_mean

SIDES = ("worse", "two")
FRESH_FOR_BOTH = "the clients that answered had no part in training, tuning or choosing either model"
CHANGES = {"change": "mean", "change_quantile": "quantile", "harmed": "share", "worst_change": "worst"}
SCORES = {"score": "mean", "score_quantile": "quantile", "score_share": "share", "worst_score": "worst"}
"""Names of the numbers of each kind of answers, with what they are."""

_EXAMPLES = {
    **{"change": "change", "change_quantile": "change_quantile:0.9", "harmed": "harmed:0.02"},
    **{"worst_change": "worst_change:chi2:0.1", "score": "score", "score_quantile": "score_quantile:0.1"},
    **{"score_share": "score_share:0.7", "worst_score": "worst_score:chi2:0.1"},
}
# Of limits of single clients. It widens a share by a quarter, and a smaller one widens what is counted by more, but for
# thousands of examples: the sharpest in most of 36 networks of 20 to 200 clients with 100 to 2,000 examples.
_ETA = 0.2
_METHODS = {"mean": CONSTANT_STAKES, "quantile": "order statistic", "share": "exact binomial"}


def families_of(answers: ScaledAnswers) -> Mapping[str, str]:
    """Return `CHANGES` or `SCORES`: the numbers that such answers have."""
    return CHANGES if isinstance(answers, ClientChanges) else SCORES


class ScaledNumber(NamedTuple):
    """What is bounded: a mean, a quantile, a share of clients, or the worst mean over shifted networks."""

    family: str  # one of `CHANGES` or `SCORES`
    kind: str  # "mean", "quantile", "share" or "worst"
    point: float = math.nan  # level of a quantile, or threshold of a share
    shift: tuple[FDivergence, float] | None = None

    @classmethod
    def of(cls, name: object, among: Mapping[str, str]) -> ScaledNumber:
        """Read a name; raises ValueError if it is none of these families with its parameters."""
        head, *parameters = name.split(":") if isinstance(name, str) else ("",)
        family = as_spelled(head, among)
        kind = among.get(str(family))
        try:
            if family is None or kind is None or len(parameters) != {"mean": 0, "worst": 2}.get(kind, 1):
                raise ValueError("no number of such answers, or not its parameters")
            if kind == "mean":
                return cls(family, kind)
            if kind == "worst":
                size = float(check_budget(float_of(parameters[1])))
                return cls(family, kind, shift=(resolve_divergence(parameters[0]), size))
            point = float(exactly(float_of(parameters[0])))  # the number that the certificate names
            if not (math.isfinite(point) if family == "score_share" else -float(family == "harmed") < point < 1.0):
                raise ValueError("a level lies between 0 and 1, a rise between -1 and 1, and a threshold is finite")
        except ValueError as error:
            examples = " or ".join(repr(_EXAMPLES[each]) for each in among)
            raise ValueError(f"the number {name!r:.80} cannot be read: {error}; write {examples}") from error
        return cls(family, kind, point)

    def __str__(self) -> str:
        shift = [] if self.shift is None else [self.shift[0].name, exactly(self.shift[1])]
        return ":".join([self.family, *([] if math.isnan(self.point) else [exactly(self.point)]), *shift])

    def measured(self, answers: ScaledAnswers) -> float:
        """Return its value for the clients that answered, as they measured; raises ValueError for a worst case."""
        if self.kind == "mean":
            return float(np.mean(answers.values))
        if self.kind == "quantile":
            levels = np.arange(1, answers.num_clients + 1) / answers.num_clients  # numpy's own get 0.28 of 25 wrong
            return float(np.sort(answers.values)[np.searchsorted(levels, self.point)])
        if self.kind == "share":
            return float(np.mean(beyond(answers, answers.values, self.point)))
        raise ValueError(f"{self} is a worst case, which no client measures")

    def quantity(self, scale: Scale, *, local: str) -> str:
        """What it is, as the subject of a sentence."""
        is_measured, at = local == "observed", exactly(self.point)
        if self.family == "harmed":
            return f"the share of unseen clients whose {'measured ' * is_measured}risk rises by more than {at}"
        if self.kind == "share":
            or_worse = "less" if scale.is_higher_better else "more"
            return f"the share of unseen clients with a measured {scale.noun} of {at} or {or_worse}"
        if self.kind == "quantile":
            at_client = "that an unseen client would measure" if is_measured else "at an unseen client"
            return f"the {at} quantile of the {scale.noun} {at_client}"
        if self.shift is not None:
            f, size = self.shift
            where = f"the clients of any network within budget {exactly(size)} in {f.title}"
            return f"the {scale.worst} mean {scale.noun} over {where}"
        return f"the mean {scale.noun} over unseen clients"


def change_bound(
    changes: ClientChanges, number: str, *, delta: float, sides: str = "worse", local: str = "marginal"
) -> Certificate:
    """Bound on how much worse a new model is than an old one at unseen clients.

    Parameters
    ----------
    changes : ClientChanges
        The clients' answers.
    number : str
        "change" (its mean), "change_quantile:LEVEL", "harmed:T" (the share of clients that get worse by more than T),
        or "worst_change:DIVERGENCE:BUDGET" (the largest mean over shifted networks); fixed before any answer was seen.
    delta : float
        Probability that the bound fails, in (0, 1).
    sides : {"worse", "two"}
        Whether it is bounded from above only, or from both sides at delta/2 each; a worst mean only from above.
    local : {"marginal", "observed"}
        Of a quantile or a share: whether it is about the clients' true changes, or those that they would measure. Means
        of both are the same.

    Returns
    -------
    Certificate
        A number. Source: math §13.2.

    Raises
    ------
    ValueError
        If an argument is unknown or out of range, or a worst mean is asked of answers that may be wrong or missing.

    Examples
    --------
    >>> import riskband as rb
    >>> changes = rb.ClientChanges.from_counts([1, 0, 2, 1] * 10, [3, 5, 2, 4] * 10, 100)
    >>> rb.change_bound(changes, "change", delta=0.05).value <= 0.06
    True
    """
    check_kind("changes", changes, ClientChanges, remedy="make them with ClientChanges.between(old, new)")
    local = check_choice("local", local, SINGLE_LOCAL)
    return _bound(changes, "change_bound", ScaledNumber.of(number, CHANGES), delta, sides, local)


def score_bound(scores: ClientScores, number: str, *, delta: float, sides: str = "worse") -> Certificate:
    """Bound on the score that unseen clients would measure, from its bad end.

    Parameters
    ----------
    scores : ClientScores
        The clients' answers.
    number : str
        "score" (its mean), "score_quantile:LEVEL", "score_share:T" (the share of clients that measure T or worse), or
        "worst_score:DIVERGENCE:BUDGET" (the worst mean over shifted networks); fixed before any answer was seen.
    delta, sides :
        As for `change_bound`. If higher is better, a mean and a quantile are bounded from below: `lower` is the bound.

    Returns
    -------
    Certificate
        A number. Source: math §13.3.

    Raises
    ------
    ValueError
        As for `change_bound`.
    """
    check_kind("scores", scores, ClientScores, remedy="make them with ClientScores(values, higher_is_better=...)")
    return _bound(scores, "score_bound", ScaledNumber.of(number, SCORES), delta, sides, "observed")


def _bound(
    answers: ScaledAnswers, function: str, number: ScaledNumber, delta: float, sides: str, local: str
) -> Certificate:
    delta, sides, scale = check_delta(delta), check_choice("sides", sides, SIDES), answers.scale
    if number.kind == "share" and not scale.low <= number.point <= scale.high:
        ends = f"[{scale.low:g}, {scale.high:g}], the range of the {scale.noun}"
        raise ValueError(f"the threshold of '{number}' must lie in {ends}; give it in the unit of the answers")
    eta = _ETA if local == "marginal" and number.kind in ("quantile", "share") else 0.0
    is_from_both = sides == "two" and number.kind != "worst"
    if number.shift is not None:
        answers.require_certain_answers(f"{str(number)!r}", "a mean")
        f, size = number.shift
        worst = worst_case_mean(answers.unit, divergence=f, budget=size, delta=delta)
        low = high = float(answers.from_unit(np.asarray(worst.value)))
        method, of_kind = worst.method, (within(f), *betting_assumptions(worst.method, None))
    else:
        low, high = _ends(answers, number, delta / 2.0 if is_from_both else delta, eta, is_from_both=is_from_both)
        is_measured = local == "observed" and number.kind != "mean"
        method, of_kind = _METHODS[number.kind], (OBSERVED_SIZES,) if is_measured else ()
    has_bad_end_above = number.kind == "share" or not scale.is_higher_better
    arguments = {"number": str(number), "delta": delta, "sides": sides}
    arguments |= {"local": local} if function == "change_bound" else {}
    return Certificate(
        quantity=number.quantity(scale, local=local),
        value=high if is_from_both or has_bad_end_above else 1.0 if number.kind == "share" else scale.high,
        lower=low if is_from_both or not has_bad_end_above else None,
        delta=delta,
        method=method,
        assumptions=(
            *assumptions_of(answers, needs_binary=eta > 0.0),
            *answers.own_assumptions,
            *of_kind,
            *chosen_before(bound_on=(f"{number}{' from both sides' if is_from_both else ''}", None)),
            *(chosen_before(local=(local, "marginal")) if function == "change_bound" else ()),
        ),
        recipe=recipe(function, arguments, answers),
    )


def _ends(
    answers: ScaledAnswers, number: ScaledNumber, part: float, eta: float, *, is_from_both: bool
) -> tuple[float, float]:
    """Both ends of a number, the smaller one first, each with so much of delta; or the bad one as both."""
    scale = answers.scale
    if number.kind == "share":
        most = _most(answers, beyond(answers, limits_of(answers, eta), number.point), part, eta)
        if not is_from_both:
            return most, most
        below = answers.lower_limits(eta) if eta and isinstance(answers, ClientChanges) else answers.below.values
        return 1.0 - _most(answers, ~beyond(answers, below, number.point), part, eta), most
    level = 1.0 - number.point if scale.is_higher_better else number.point
    bad = _bad_end(answers, number.kind, level, part, eta)
    near = 1.0 - _bad_end(answers.mirrored, number.kind, 1.0 - level, part, eta) if is_from_both else bad
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


def beyond(answers: ScaledAnswers, values: FloatArray, threshold: float) -> npt.NDArray[np.bool_]:
    """Return which values are beyond a threshold: a change if it is above it, a score also if equal."""
    if isinstance(answers, ClientChanges):
        return values > threshold
    return values <= threshold if answers.scale.is_higher_better else values >= threshold


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
