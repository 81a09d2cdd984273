"""The one door: `bound` makes a certificate of any number, by the one table of what can be asked of which answers.

A row of `BOUNDS` says of which functionals, of which population and from which answers its function makes a
certificate. Whoever asks (a requirement, a sequence, a command, a run) comes through here, `verify` follows the recipe
"number, answers and terms" through it again, and the documentation prints the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, NamedTuple

from riskband.answers.adversarial import AdversarialAnswers
from riskband.answers.histogram import Histogram
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import RISK, ClientChanges, ClientScores, ScaledAnswers, scale_of
from riskband.bands.band import Band, band_alone, own_delta
from riskband.bands.band import band as band_of
from riskband.certificate import Certificate
from riskband.checks import check_choice
from riskband.functionals.dispersion import dispersion_certificate
from riskband.functionals.functional import MEASURES, OF_RISKS
from riskband.functionals.quantiles import cvar, mean, quantile, survival
from riskband.means import mean_bound
from riskband.wording import CHOSEN_BEFORE, chosen_before
from riskband.worst_cases.divergence_bounds import divergence_lower_bound
from riskband.worst_cases.divergences import binary_worst_case, robust_tail_mean
from riskband.worst_cases.next_clients import next_clients
from riskband.worst_cases.number import (
    ALL,
    COST,
    COUNT,
    DIVERGENCE,
    LARGEST,
    NEXT,
    ON_SCALE,
    OTHERS,
    SHIFTED,
    TARGET,
    UNSEEN,
    Number,
    least_share,
)
from riskband.worst_cases.reweighting import within, worst_case_cdf, worst_case_mean
from riskband.worst_cases.scaled import SIDES, bound_on_scale
from riskband.worst_cases.target_networks import target_bound
from riskband.worst_cases.wasserstein import wasserstein_cdf, wasserstein_mean


class Networks(NamedTuple):
    """Answers of clients of a source network, and of some of a target network; or a band of each."""

    source: ClientRisks | Band
    target: ClientRisks | Band


Answers = ClientRisks | ScaledAnswers | Histogram | AdversarialAnswers | Networks
Source = Answers | Band


def bound(
    source: Source | tuple[ClientRisks, ClientRisks],
    number: str | Number,
    *,
    delta: float | None = None,
    sides: str = "worse",
    **terms: Any,
) -> Certificate:
    """Bound a number of clients that nobody has measured.

    Parameters
    ----------
    source : answers of clients, or Band
        `ClientRisks`, `ClientChanges`, `ClientScores`, `AdversarialAnswers`, counts of clients, or a pair: answers of a
        source and of a target network. The number then has delta for itself. Or a band: all that is read off it holds
        at once.
    number : str or Number
        "mean", "quantile:0.9", "share:0.3", "mean@chi2:0.1", "count:0.3@next:20", …: see `Number`, and the table of
        what can be asked of which answers in docs/numbers.md. Fixed before any answer was seen, but for a band.
    delta : float, optional
        With answers: probability that the bound fails, in (0, 1).
    sides : {"worse", "two"}
        Whether the bad end alone is bounded, with all of delta, or both ends, with half of it each. A measure of
        dispersion has no bad end, so both are; a worst case has no other.
    **terms :
        ``local="observed"`` for a quantile or a share of what clients would measure; ``seed=…``, of the one order in
        which bets see the clients, for means and tails of risks; ``population=55`` for next clients of a finite
        federation.

    Returns
    -------
    Certificate
        A number. Source: of each row of the table its own.

    Raises
    ------
    ValueError
        If the number cannot be read, these answers say nothing of it, or an argument is out of range or of no use.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = rb.ClientRisks([0.02, 0.05, 0.10, 0.04] * 10, num_examples=100)
    >>> rb.bound(answers, "mean", delta=0.05).value < rb.bound(answers, "mean@chi2:0.1", delta=0.05).value < 0.2
    True
    """
    asked, sides = Number.of(number), check_choice("sides", sides, SIDES)
    if isinstance(source, tuple) and not isinstance(source, Networks):
        source = Networks(*source)
    if sides == "two" and not asked.has_both_ends:
        remedy = f"its other end is that of '{asked.unshifted}'" if asked.where == SHIFTED else "leave sides out"
        raise ValueError(f"'{asked}' is bounded from its bad end alone, got sides='two'; {remedy}")
    certify = row_of(asked, source)
    takes = signature(certify).parameters
    if "terms" not in takes and (unused := sorted(terms.keys() - takes.keys())):
        known = ", ".join(name for name in takes if name not in ("source", "number", "delta", "sides"))
        raise ValueError(
            f"'{asked}' of {_called(source)} takes {known or 'no further terms'}, got {', '.join(unused)}; leave it out"
        )
    if isinstance(source, Band):
        band_alone(source, delta=delta)
    elif not (isinstance(source, Networks) and isinstance(source.source, Band)):
        terms["delta"] = own_delta(delta)
    elif delta is not None:
        terms["delta"] = delta  # of ranks, beside that of the bands
    made = certify(source, asked, sides=sides, **terms)
    own = made.recipe["arguments"]
    if made.recipe["band"]:  # of which it is made again: it has delta and local, but for the delta of ranks
        terms = {"delta": own["delta"]} if own.get("delta") else {}
    given = {"number": str(asked), "sides": sides, **terms}
    if isinstance(source, Networks):
        given["target"] = own.get("target", source.target.provenance())
    return replace(made, recipe={**made.recipe, "function": "bound", "arguments": given})


class Row(NamedTuple):
    """Of which numbers a function makes certificates, and from which answers."""

    families: tuple[str, ...]
    where: str
    answers: tuple[type, ...]
    certify: Callable[..., Certificate]


def _is_bet_on(source: object) -> bool:
    return isinstance(source, ClientRisks) and source.are_as_measured


def _band_of(source: Any, delta: float | None, sides: str = "lower", **local: str) -> Band:
    return source if isinstance(source, Band) else band_of(source, delta=own_delta(delta), sides=sides, **local)


def _mean(source: Any, number: Number, *, sides: str, delta: float, seed: int | None = None) -> Certificate:
    """A mean, or that of a tail."""
    if sides == "two":
        return _both_ends(source, number, sides=sides, delta=delta)
    if number.family == "mean":
        return mean_bound(source, delta=delta, seed=seed)
    if isinstance(source, Histogram):
        return _of_band(_band_of(source, delta), number, sides=sides)
    return cvar(source, number.point, delta=delta, seed=seed)


def _point(source: Any, number: Number, *, sides: str, delta: float, local: str = "marginal") -> Certificate:
    """A point of the CDF: a quantile or a share."""
    if sides == "two":
        return _both_ends(source, number, sides=sides, delta=delta, local=local)
    if isinstance(source, Histogram):
        return _of_band(_band_of(source, delta, local=local), number, sides=sides)
    if number.family == "quantile":
        return quantile(source, number.point, delta=delta, local=local)
    return survival(source, thresholds=number.point, delta=delta, local=local)


def _both_ends(
    source: Any, number: Number, *, sides: str, delta: float | None = None, local: str = "marginal"
) -> Certificate:
    """By bets, which need every answer as it was measured, or off a band."""
    if _is_bet_on(source) and local == "marginal":
        return dispersion_certificate(source, number.functional, delta=delta)
    return dispersion_certificate(_band_of(source, delta, "two", local=local), number.functional)


def _growing(source: Any, number: Number, *, sides: str, delta: float) -> Certificate:
    """What grows with every risk: off a band that has all of delta at its bad end, unless there are bets."""
    if sides == "two" or number.functional.of_answers is not None:
        return _both_ends(source, number, sides=sides, delta=delta)
    return dispersion_certificate(_band_of(source, delta), number.functional)


def _of_band(source: Band, number: Number, *, sides: str) -> Certificate:
    bad_end: Mapping[str, Callable[[], Certificate]] = {
        "mean": lambda: mean(source),
        "cvar": lambda: cvar(source, number.point),
        "quantile": lambda: quantile(source, number.point),
        "share": lambda: survival(source, thresholds=number.point),
    }
    if sides == "worse" and number.family in bad_end:
        return bad_end[number.family]()
    return dispersion_certificate(source, number.functional)


def _shifted_mean(
    source: Any, number: Number, *, sides: str, delta: float | None = None, seed: int | None = None
) -> Certificate:
    if _is_bet_on(source):
        return worst_case_mean(source, **number.ball, delta=delta, seed=seed)
    return worst_case_mean(_band_of(source, delta), **number.ball)


def _shifted_share_of_band(source: Band, number: Number, *, sides: str) -> Certificate:
    return worst_case_cdf(source, **number.ball, thresholds=number.point)


def _shifted_tail(source: Any, number: Number, *, sides: str, delta: float | None = None) -> Certificate:
    band = _band_of(source, delta)
    plain, atoms = cvar(band, number.point), band.distribution_for_means
    value = robust_tail_mean(atoms.risks, atoms.weights, level=number.point, **number.ball)
    return _moved(plain, number, min(value, 1.0))


def _shifted_share(source: Any, number: Number, *, sides: str, **terms: Any) -> Certificate:
    """The share of a network within a budget grows with that of the source, by a formula for two kinds of clients."""
    plain = bound(source, number.unshifted, **terms)
    if plain.event == "band":  # of which it is made again
        return _shifted_share_of_band(_band_of(source, **terms), number, sides=sides)
    return _moved(plain, number, float(binary_worst_case(float(plain.value), **number.ball)))


def _shifted_quantile(source: Any, number: Number, *, sides: str, **terms: Any) -> Certificate:
    """A quantile within a budget is one of the source, at the level beyond which the least share lies."""
    is_low = isinstance(source, ScaledAnswers) and source.scale.is_higher_better
    least = float(least_share(number.point if is_low else 1.0 - number.point, **number.ball))
    plain = bound(source, Number("quantile", (least if is_low else 1.0 - least,)), **terms)
    return _moved(plain, number, plain.value, lower=plain.lower)


def _moved(plain: Certificate, number: Number, value: Any, *, lower: Any = None) -> Certificate:
    """The certificate of a shifted network that follows from one of the network without a shift."""
    scale, local = scale_of(plain.recipe["answers"]) or RISK, plain.recipe["arguments"].get("local", "marginal")
    lines = [line for line in plain.assumptions if plain.event == "band" or not line.startswith(CHOSEN_BEFORE)]
    if plain.event != "band":
        lines += chosen_before(bound_on=(str(number), None), local=(local, "marginal"))
    return replace(
        plain,
        quantity=number.quantity(scale, local=local),
        value=value,
        lower=lower,
        details={},
        assumptions=(*lines, within(number.ball["divergence"])),
    )


def _finite(
    source: Any, number: Number, *, sides: str, delta: float, population: int | None = None, local: str = "observed"
) -> Certificate:
    what: dict[str, Any] = {"mean": True}
    if number.family == COUNT:
        what = {"above": number.point, "sides": sides}
    elif number.family == LARGEST:
        what = {"k": int(number.point)}
    what |= number.ball if number.shift else {}
    if number.where != NEXT:
        what |= {"including_seen": number.where == ALL}
        population = number.num_clients
    next_ones = number.num_clients if number.where == NEXT else None
    return next_clients(source, next_ones, delta=delta, population=population, local=local, **what)


def _of_changes(source: Any, number: Number, *, sides: str, delta: float, local: str = "marginal") -> Certificate:
    return bound_on_scale(source, number, delta=delta, sides=sides, local=local)


def _of_scores(source: Any, number: Number, *, sides: str, delta: float) -> Certificate:
    return bound_on_scale(source, number, delta=delta, sides=sides, local="observed")


def _by_moved_examples(
    source: Any, number: Number, *, sides: str, delta: float, seed: int | None = None
) -> Certificate:
    cost: dict[str, Any] = {"delta": delta, "cost_budget": number.budget, "seed": seed}
    if number.family == "mean":
        return wasserstein_mean(source, **cost)
    return wasserstein_cdf(source, thresholds=number.point, **cost)


def _of_target(source: Networks, number: Number, *, sides: str, delta: float | None = None) -> Certificate:
    source_answers, target = source
    return target_bound(source_answers, target, number, delta=own_delta(delta))  # type: ignore[arg-type]  # it refuses bands


def _distance(source: Networks, number: Number, *, sides: str, delta: float | None = None) -> Certificate:
    return divergence_lower_bound(*source, divergence=number.divergence or "", delta=delta)


_TAILS = ("mean", "cvar", "quantile", "share")
_MEASURES = tuple(MEASURES)
_INTEGRALS = tuple(name for name in OF_RISKS if name not in (*_TAILS, *_MEASURES))
_RISKS, _SCALED = (ClientRisks, Histogram), (ClientChanges, ClientScores)

BOUNDS: tuple[Row, ...] = (
    Row(("mean", "cvar"), UNSEEN, _RISKS, _mean),
    Row(("quantile", "share"), UNSEEN, _RISKS, _point),
    Row(_INTEGRALS, UNSEEN, _RISKS, _growing),
    Row(("example_mean",), UNSEEN, (ClientRisks,), _growing),
    Row(_MEASURES, UNSEEN, _RISKS, _both_ends),
    Row((*_TAILS, *_INTEGRALS, *_MEASURES), UNSEEN, (Band,), _of_band),
    Row(ON_SCALE, UNSEEN, (ClientChanges,), _of_changes),
    Row(ON_SCALE, UNSEEN, (ClientScores,), _of_scores),
    Row(("mean",), SHIFTED, (*_RISKS, Band), _shifted_mean),
    Row(("mean",), SHIFTED, (ClientChanges,), _of_changes),
    Row(("mean",), SHIFTED, (ClientScores,), _of_scores),
    Row(("cvar",), SHIFTED, (*_RISKS, Band), _shifted_tail),
    Row(("share",), SHIFTED, (*_RISKS, *_SCALED), _shifted_share),
    Row(("share",), SHIFTED, (Band,), _shifted_share_of_band),
    Row(("quantile",), SHIFTED, (*_RISKS, *_SCALED, Band), _shifted_quantile),
    *(Row((COUNT, LARGEST, "mean"), where, (ClientRisks, *_SCALED), _finite) for where in (NEXT, OTHERS, ALL)),
    Row(("mean", "share"), COST, (AdversarialAnswers,), _by_moved_examples),
    Row(("mean", "share", "quantile"), TARGET, (Networks,), _of_target),
    Row((DIVERGENCE,), TARGET, (Networks,), _distance),
)
"""What can be asked of which answers."""

CALLED: Mapping[type, str] = {
    ClientRisks: "risks",
    ClientChanges: "changes",
    ClientScores: "scores",
    Histogram: "counts of clients",
    AdversarialAnswers: "adversarial losses",
    Networks: "two networks",
    Band: "a band",
}


def row_of(number: Number, source: object) -> Callable[..., Certificate]:
    """Return what makes certificates of a number; raises ValueError, with the numbers there are, if nothing does."""
    rows = [row for row in BOUNDS if isinstance(source, row.answers)]
    if not rows:
        kinds = ", ".join(CALLED.values())
        raise ValueError(f"a bound must be of {kinds}, got {type(source).__name__}; make them, or a band of them")
    if not isinstance(source, (Networks, Band)):
        number.check(getattr(source, "scale", RISK))
    found = [row.certify for row in rows if _is_of(row, number)]
    if not found:
        where = defaultdict[str, list[str]](list)
        for row in rows:
            where["chi2:0.1" if row.where == SHIFTED else row.where] += row.families
        known = "; ".join(f"{', '.join(names)}{f' @{place}' * bool(place)}" for place, names in where.items())
        have = {CALLED[kind] for row in BOUNDS if _is_of(row, number) for kind in row.answers}
        where_else = f", but of {' and '.join(sorted(have))}" if have else ""
        where_else += ": riskband shift SOURCE TARGET, rb.bound((source, target), …)" * (number.where == TARGET)
        raise ValueError(f"nothing bounds '{number}' of {_called(source)}{where_else}; of these there are {known}")
    return found[0]


def _is_of(row: Row, number: Number) -> bool:
    return row.where == number.where and number.family in row.families


def is_read_off_a_band(number: Number) -> bool:
    """Whether a number of risks has no bets, so that answers make a band for it."""
    return number.family == "cvar" and number.where == SHIFTED


def _called(source: object) -> str:
    return next((words for kind, words in CALLED.items() if isinstance(source, kind)), type(source).__name__)
