"""Choose among candidate models, and certify the one that was chosen (math §12; after learn-then-test).

Each candidate gets an upper bound of its own on the objective. The bounds share delta, so they hold together, and with
them the bound of the candidate that looks best, although it was chosen by looking.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.responses import FRESH_CLIENTS
from riskband.answers.risks import ClientRisks
from riskband.bands.band import Band
from riskband.bands.band import band as band_of
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.bands.methods import resolve_level_method
from riskband.certificate import CERTIFICATE, Certificate, recipe
from riskband.checks import as_number, check_choice, check_delta, check_number, check_optional_seed, check_single
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import (
    BOUND_METHODS,
    OF_RISKS,
    Functional,
    interval_of,
    method_that_applies,
    resolve,
)
from riskband.means import mean_bound
from riskband.wording import CHOSEN_BEFORE, chosen_before, in_full, rounded_up
from riskband.wording.shown import Shown

SELECTION_METHODS = ("bonferroni", "fixed_sequence")
DEFAULT_MEAN_SHARE = 0.25
_PLUS = re.compile(r"(?<!\d[eE])\+")  # not the plus of a number such as 1e+3

FRESH_FOR_CANDIDATES = (
    "the clients that answered had no part in training or tuning the candidates; delta covers the choice among them"
)
CANDIDATES_FIXED = "the candidates, their order and the objective were fixed before any of these answers was seen"


@dataclass(frozen=True, init=False)
class Objective:
    """A weighted sum of functionals of the risk of unseen clients, such as mean + 0.5 Gini; the smaller, the better.

    Parameters
    ----------
    terms : str, mapping of str to float, or Objective
        "mean+0.5*gini", or ``{"mean": 1.0, "gini": 0.5}``: functionals of `bound` that are bounded.
    **weights : float
        The same as keywords, for functionals without a parameter: ``Objective(mean=1.0, gini=0.5)``.

    Attributes
    ----------
    terms : tuple of (str, float)
        Functionals and their weights, finite and > 0.

    Raises
    ------
    ValueError
        If there is no term, a term is unknown, unbounded or there twice, or a weight is not finite and > 0.
    """

    terms: tuple[tuple[str, float], ...]

    def __init__(self, terms: str | Mapping[str, float] | Objective = (), /, **weights: float) -> None:  # type: ignore[assignment]
        if isinstance(terms, Objective):
            pairs = list(terms.terms)
        elif isinstance(terms, str):
            pairs = [_parsed(part, terms) for part in _PLUS.split(terms)]
        elif isinstance(terms, Mapping) or (isinstance(terms, tuple) and not terms):
            pairs = list(dict(terms).items())
        else:
            raise ValueError(f"an objective must be text or a mapping, got {terms!r:.80}; write 'mean+0.5*gini'")
        checked = tuple((_term(name).name, _weight(name, weight)) for name, weight in [*pairs, *weights.items()])
        names = [name for name, _ in checked]
        if not names:
            raise ValueError("an objective must have at least one term, got none; write 'mean+0.5*gini'")
        if len(set(names)) < len(names):
            raise ValueError(f"an objective must name each measure once, got {', '.join(names)}; add up the weights")
        object.__setattr__(self, "terms", checked)

    def __str__(self) -> str:
        """Text from which the same objective is made again."""
        return "+".join(name if weight == 1.0 else f"{in_full(weight)}*{name}" for name, weight in self.terms)

    @property
    def has_mean(self) -> bool:
        """Whether the mean risk is one of the terms."""
        return any(name == "mean" for name, _ in self.terms)

    @property
    def sides(self) -> str:
        """Sides that a band must have: "lower", which is tighter, if all terms grow with every risk, or "two"."""
        return "lower" if all(resolve(name).grows_with_risk for name, _ in self.terms) else "two"

    def of_distribution(self, distribution: RiskDistribution) -> float:
        """Value for an explicit distribution of risks, for example `RiskDistribution.of_values` of measured ones."""
        return sum(weight * resolve(name).value(distribution) for name, weight in self.terms)

    def upper_bounds(self, band: Band, *, dispersion: str = "sharp") -> dict[str, float]:
        """Upper bounds on every term, without its weight, for every distribution of a band.

        `dispersion` is the method of `bound`; "sharp" takes the place of "convex_order" where that does not apply. The
        bounds hold together. Raises ValueError if the band lacks a side that `sides` says, or the method is unknown.
        """
        chosen = {name: resolve(name) for name, _ in self.terms}
        return {
            name: float(interval_of(band, each, method=method_that_applies(dispersion, band, each)).upper)
            for name, each in chosen.items()
        }


def _parsed(part: str, text: str) -> tuple[str, float]:
    factor, star, name = part.strip().rpartition("*")
    try:
        return name.strip(), float(factor) if star else 1.0
    except ValueError as error:
        raise ValueError(
            f"a term of an objective must be a measure or a number times a measure, got {part!r} in {text!r}; "
            "write for example 'mean+0.5*gini'"
        ) from error


def _weight(name: str, weight: float) -> float:
    remedy = "an upper bound on an objective adds up upper bounds, and a term of weight 0 is left out"
    value = check_number(f"the weight of {name!r}", weight, remedy=f"finite and > 0: {remedy}")
    if not 0.0 < value < np.inf:
        raise ValueError(f"the weight of {name!r} must be finite and > 0, got {weight!r}; {remedy}")
    return value


def _term(name: str) -> Functional:
    if not isinstance(name, str):
        raise ValueError(f"a term of an objective must be the name of a measure, got {name!r}")
    found = resolve(name, called="a term of an objective", among=OF_RISKS)
    if not np.isfinite(found.range[1]):
        raise ValueError(
            f"a term of an objective must be bounded, got {found.name!r}, which can be infinite; take for example "
            "gini, hoover, top_share:0.1 or atkinson:0.5"
        )
    return found


class CandidateBound(NamedTuple):
    """What the answers say about one candidate.

    Attributes
    ----------
    name : str
        The candidate.
    bound : float
        Upper bound on its objective, right with probability 1 - `Selection.candidate_delta`.
    measured : float
        The objective of the measured risks: no bound.
    terms : mapping of str to float
        Upper bound on each term of the objective, without its weight.
    is_certified : bool
        Whether its objective is certified to be at most the target; without a target, always true (by its bound).
    """

    name: str
    bound: float
    measured: float
    terms: Mapping[str, float]
    is_certified: bool


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Shown):
    """The outcome of `select`.

    Attributes
    ----------
    best : str or None
        The candidate with the smallest bound; in a sequence among the certified ones, `None` if there are none.
    certificate : Certificate or None
        For the objective of `best`.
    candidates : tuple of CandidateBound
        All of them, in their order.
    objective : Objective
        What they are compared by.
    method : str
        "bonferroni" or "fixed_sequence".
    target : float or None
        What the objective is to be at most, if anything.
    delta : float
        Probability that anything certified here fails.
    candidate_delta : float
        The part of it that each candidate's bound took.
    spending : str
        The same in words.
    """

    best: str | None
    certificate: Certificate | None
    candidates: tuple[CandidateBound, ...]
    objective: Objective
    method: str
    target: float | None
    delta: float
    candidate_delta: float
    spending: str

    shown = ("target", "delta", "method")

    def _words(self) -> str:
        bound = "" if self.certificate is None else f" at most {rounded_up(self.certificate.value)}"
        best = "none" if self.best is None else self.best
        return f"{best} of {len(self.candidates)} candidates, {self.objective}{bound}"

    @property
    def certified(self) -> tuple[str, ...]:
        """Names of the certified candidates, in their order; all of it holds together."""
        return tuple(candidate.name for candidate in self.candidates if candidate.is_certified)

    def table(self) -> str:
        """All candidates as lines of text: bounds, measured values, bounds on the terms, and how delta was spent."""
        terms = [name for name, _ in self.objective.terms]
        is_proved = self.certificate is None or self.certificate.validity == CERTIFICATE
        kind = "certified" if is_proved else "estimated"
        header = ["candidate", kind, "bound", "measured", *(f"{name} <=" for name in terms)]
        rows = [header, *(self._row(candidate, terms) for candidate in self.candidates)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self.spending])

    def _row(self, candidate: CandidateBound, terms: Iterable[str]) -> list[str]:
        mark = "best" if candidate.name == self.best else ("yes" if candidate.is_certified else "no")
        bounds = [rounded_up(candidate.terms[name]) for name in terms]
        return [candidate.name, mark, rounded_up(candidate.bound), f"{candidate.measured:.4f}", *bounds]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How candidates are bounded and compared: the arguments of `select`."""

    objective: Objective
    delta: float
    method: str = "bonferroni"
    target: float | None = None
    order: Sequence[str] | None = None
    band: str = "berk_jones"
    local: str = "marginal"
    dispersion: str = "convex_order"
    mean_share: float = DEFAULT_MEAN_SHARE
    seed: int | None = None

    def shares(self) -> tuple[float, float]:
        """Parts of a candidate's delta for the mean alone, and for the band."""
        if not self.objective.has_mean or self.mean_share == 0.0:
            return 0.0, 1.0
        return (self.mean_share, 1.0 - self.mean_share) if len(self.objective.terms) > 1 else (1.0, 0.0)

    def spending(self, candidate_delta: float, num_candidates: int) -> str:
        """How delta was spent, in words."""
        each = f"{candidate_delta:.4g} for each of {num_candidates} candidates"
        how = each if self.method == "bonferroni" else f"{each}, tested in order against the target until one fails"
        for_mean, for_band = self.shares()
        if for_mean == 0.0:
            what = f"all of it for one {self.band} band"
        elif for_band == 0.0:
            what = "all of it for the betting bound on the mean"
        else:
            what = f"{for_mean:g} of it for the betting bound on the mean, {for_band:g} for one {self.band} band"
        return f"delta {self.delta:g}: {how}; {what}"

    def arguments(self) -> dict[str, Any]:
        """Plain data for a recipe."""
        return asdict(self) | {"objective": str(self.objective), "order": list(self.order or ())}


def select(
    risks_by_candidate: Mapping[str, ClientRisks],
    *,
    objective: str | Mapping[str, float] | Objective,
    delta: float,
    method: str = "bonferroni",
    target: float | None = None,
    order: Sequence[str] | None = None,
    band: str = "berk_jones",
    local: str = "marginal",
    dispersion: str = "convex_order",
    mean_share: float = DEFAULT_MEAN_SHARE,
    seed: int | None = None,
) -> Selection:
    """Certified best among candidate models, for the risks of unseen clients.

    Parameters
    ----------
    risks_by_candidate : mapping of str to ClientRisks
        The clients' answers for each candidate. The clients may be the same for all (usual), or not.
    objective : str, mapping or Objective
        For example "mean+0.5*gini"; see `Objective`. Smaller is better.
    delta : float
        Probability that anything certified fails, in (0, 1).
    method : {"bonferroni", "fixed_sequence"}
        `bonferroni`: delta/M for each of M candidates; all bounds hold together. `fixed_sequence`: the candidates are
        tested in `order`, each at the full delta, until the first whose bound is above the target; those before it are
        certified to be at most the target, and nothing smaller.
    target : float, optional
        What the objective is to be at most; needed by `fixed_sequence`.
    order : sequence of str, optional
        All candidates, in an order fixed beforehand. Default: that of the mapping.
    band, local : str
        Method and local step of `riskband.band`.
    dispersion : {"sharp", "plugin", "convex_order"}
        How measures of dispersion are bounded; see `Objective.upper_bounds`. The default is never wider than `sharp`.
    mean_share : float
        In [0, 1): part of a candidate's delta for a betting bound on the mean, which is sharper than that of the band.
        0: everything is read off one band, and nothing is split. If the mean is the only term it takes all, unless 0.
    seed : int, optional
        Of the betting bound, fixed before any answer was seen; see `mean_bound`.

    Returns
    -------
    Selection
        The best, its certificate, and the table of all candidates. Source: math §12; the
        sequence is fixed-sequence testing as in learn-then-test (Angelopoulos et al. 2021).

    Raises
    ------
    ValueError
        If an argument is unknown or out of its range, or the order does not name every candidate once.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = {"early": rb.ClientRisks([0.3, 0.2, 0.4], 10), "late": rb.ClientRisks([0.1, 0.0, 0.2], 10)}
    >>> rb.select(answers, objective="mean", delta=0.1).best
    'late'
    """
    objective, delta = Objective(objective), check_delta(delta)
    _check_answers(risks_by_candidate)
    plan = check_selection(
        list(risks_by_candidate),
        objective=objective,
        delta=delta,
        method=method,
        target=target,
        order=order,
        band=band,
        local=local,
        dispersion=dispersion,
        mean_share=mean_share,
        seed=seed,
    )
    answers = {name: risks_by_candidate[name] for name in plan.order or ()}
    candidate_delta = delta / len(answers) if plan.method == "bonferroni" else delta
    bounds, assumptions = zip(*(_bounds(risks, candidate_delta, plan) for risks in answers.values()), strict=True)
    totals = [sum(weight * terms[name] for name, weight in objective.terms) for terms in bounds]
    passes = [plan.target is None or total <= plan.target for total in totals]
    if plan.method == "fixed_sequence":
        passes = np.logical_and.accumulate(passes).tolist()
    candidates = tuple(
        CandidateBound(
            name, total, objective.of_distribution(RiskDistribution.of_values(risks.shown_values)), terms, is_certified
        )
        for (name, risks), total, terms, is_certified in zip(answers.items(), totals, bounds, passes, strict=True)
    )
    eligible = [candidate for candidate in candidates if candidate.is_certified or plan.method == "bonferroni"]
    best = min(eligible, key=lambda candidate: candidate.bound, default=None)
    return Selection(
        best=None if best is None else best.name,
        certificate=None if best is None else _certificate(best, candidates, answers, plan, assumptions),
        candidates=candidates,
        objective=objective,
        method=plan.method,
        target=plan.target,
        delta=delta,
        candidate_delta=candidate_delta,
        spending=plan.spending(candidate_delta, len(answers)),
    )


def check_selection(names: Sequence[str], **arguments: Any) -> _Plan:
    """Check the arguments of `select` before there are answers; raises ValueError as `select` does."""
    plan = _Plan(**arguments | {"objective": Objective(arguments["objective"])})
    check_delta(plan.delta)
    order = _check_order(names, plan.order)
    method = check_choice("method", plan.method, SELECTION_METHODS)
    target = _check_target(method, plan.target)
    if not isinstance(plan.band, str):
        raise ValueError(f"band must be the name of a method, got {type(plan.band).__name__}; write 'berk_jones'")
    checked = replace(
        plan,
        order=order,
        method=method,
        target=target,
        band=resolve_level_method(plan.band).name,
        local=check_choice("local", plan.local, LOCAL_STEPS),
        dispersion=check_choice("dispersion", plan.dispersion, BOUND_METHODS),
        mean_share=check_single("mean_share", plan.mean_share),
        seed=check_optional_seed(plan.seed),
    )
    if checked.mean_share == 1.0:
        raise ValueError("mean_share must be in [0, 1), got 1; the band takes the rest of delta")
    return checked


def selection_certificate(risks_by_candidate: Mapping[str, ClientRisks], **arguments: Any) -> Certificate:
    """Return the certificate of `select` with these arguments; raises ValueError if no candidate is certified."""
    certificate = select(risks_by_candidate, **arguments).certificate
    if certificate is None:
        raise ValueError("no candidate is certified to meet the target: there is no certificate")
    return certificate


def _check_answers(answers: Mapping[str, ClientRisks]) -> None:
    if not isinstance(answers, Mapping) or not answers:
        raise ValueError(
            f"risks_by_candidate must map the names of one or more candidates to ClientRisks, got {answers!r:.80}; "
            "write {'first': ClientRisks(...), 'second': ClientRisks(...)}"
        )
    for name, risks in answers.items():
        if not isinstance(name, str) or not isinstance(risks, ClientRisks):
            raise ValueError(
                f"risks_by_candidate must map names to ClientRisks, got {name!r}: {type(risks).__name__}; "
                "make one with ClientRisks(values, num_examples)"
            )


def _check_order(names: Sequence[str], order: Sequence[str] | None) -> Sequence[str]:
    if order is None:
        return names
    try:
        named = [] if isinstance(order, str) else list(order)
    except TypeError:
        named = []
    if not all(isinstance(name, str) for name in named) or sorted(named) != sorted(names):
        raise ValueError(
            f"order must name every candidate once, got {order!r:.80}; the candidates are {', '.join(names)}"
        )
    return named


def _check_target(method: str, target: float | None) -> float | None:
    if target is None:
        if method == "fixed_sequence":
            raise ValueError("method='fixed_sequence' needs a target, got none; it tests candidates against one")
        return None
    value = as_number(target)
    if not np.isfinite(value):
        raise ValueError(f"target must be a finite number, got {target!r:.80}; it is a value of the objective")
    return value


def _bounds(risks: ClientRisks, delta: float, plan: _Plan) -> tuple[dict[str, float], tuple[str, ...]]:
    """Upper bounds on all terms for one candidate, jointly right with probability 1 - delta, and what they assume."""
    objective, (for_mean, for_band) = plan.objective, plan.shares()
    bounds: dict[str, float] = {}
    assumptions: tuple[str, ...] = ()
    if for_band > 0.0:
        sides = objective.sides
        found = band_of(risks, delta=delta * for_band, method=plan.band, local=plan.local, sides=sides)
        bounds = objective.upper_bounds(found, dispersion=plan.dispersion)
        assumptions = found.assumptions
    if for_mean > 0.0:
        betting = mean_bound(risks, delta=delta * for_mean, seed=plan.seed)
        bounds["mean"] = min(float(betting.value), bounds.get("mean", 1.0))
        assumptions += betting.assumptions
    return bounds, assumptions


def _certificate(
    best: CandidateBound,
    candidates: tuple[CandidateBound, ...],
    answers: Mapping[str, ClientRisks],
    plan: _Plan,
    assumptions: Iterable[Iterable[str]],
) -> Certificate:
    among = f", chosen among {len(candidates)} candidates" if len(candidates) > 1 else ""
    subject = "measured risk of unseen clients" if plan.local == "observed" else "risk of unseen clients"
    recipes = {name: recipe("select", plan.arguments(), risks) for name, risks in answers.items()}
    return Certificate(
        quantity=f"the objective {plan.objective} of the {subject} under {best.name!r}{among},",
        # Candidates in a sequence are only tested against the target: their own bounds do not hold together.
        value=best.bound if plan.target is None or plan.method != "fixed_sequence" else plan.target,
        delta=plan.delta,
        method=f"{plan.method} over {len(candidates)} candidates",
        assumptions=(*_assumptions(chain.from_iterable(assumptions)), *_choices(plan)),
        validity=CERTIFICATE,
        details={
            "candidate_bounds": np.array([candidate.bound for candidate in candidates]),
            "candidate_measured": np.array([candidate.measured for candidate in candidates]),
        },
        recipe={**recipes[best.name], "answers": {name: each["answers"] for name, each in recipes.items()}},
    )


def _assumptions(of_bounds: Iterable[str]) -> list[str]:
    """What the bounds assume, in words for candidates, without the choices behind each: they are the selection's."""
    said = {FRESH_CLIENTS: FRESH_FOR_CANDIDATES}
    kept = [said.get(line, line) for line in of_bounds if not line.startswith(CHOSEN_BEFORE)]
    return list(dict.fromkeys([*kept, CANDIDATES_FIXED]))


def _choices(plan: _Plan) -> tuple[str, ...]:
    named = ("method", "target", "band", "local", "dispersion", "mean_share", "seed")
    defaults = _Plan(objective=plan.objective, delta=plan.delta)
    return chosen_before(**{name: (getattr(plan, name), getattr(defaults, name)) for name in named})
