"""Choose among candidate models, and certify the one that was chosen (math §12; after learn-then-test).

Each candidate gets an upper bound of its own on the objective. The bounds share delta, so they hold together, and with
them the bound of the candidate that looks best, although it was chosen by looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.risks import ClientRisks
from riskband.bands.band import FRESH_CLIENTS
from riskband.bands.band import band as band_of
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.bands.methods import resolve_level_method
from riskband.certificate import CERTIFICATE, Certificate, recipe
from riskband.checks import check_choice, check_delta, check_number, check_own_seed, check_single
from riskband.functionals.dispersion import DISPERSION_METHODS
from riskband.functionals.laws import RiskLaw
from riskband.functionals.objective import Objective
from riskband.means import mean_bound
from riskband.wording import CHOSEN_BEFORE, chosen_before, rounded_up

SELECTION_METHODS = ("bonferroni", "fixed_sequence")
DEFAULT_MEAN_SHARE = 0.25

FRESH_FOR_CANDIDATES = (
    "the clients that answered had no part in training or tuning the candidates; delta covers the choice among them"
)
CANDIDATES_FIXED = "the candidates, their order and the objective were fixed before any of these answers was seen"


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


@dataclass(frozen=True)
class Selection:
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

    @property
    def certified(self) -> tuple[str, ...]:
        """Names of the certified candidates, in their order; all of it holds together."""
        return tuple(candidate.name for candidate in self.candidates if candidate.is_certified)

    def table(self) -> str:
        """All candidates as lines of text: bounds, measured values, bounds on the terms, and how delta was spent."""
        terms = [name for name, _ in self.objective.terms]
        is_proved = self.certificate is None or self.certificate.validity == CERTIFICATE
        header = [
            "candidate",
            "certified" if is_proved else "estimated",
            "bound",
            "measured",
            *(f"{name} <=" for name in terms),
        ]
        rows = [header, *(self._row(candidate, terms) for candidate in self.candidates)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self.spending])

    def _row(self, candidate: CandidateBound, terms: Iterable[str]) -> list[str]:
        mark = "best" if candidate.name == self.best else ("yes" if candidate.is_certified else "no")
        bounds = [rounded_up(candidate.terms[name]) for name in terms]
        return [candidate.name, mark, rounded_up(candidate.bound), f"{candidate.measured:.4f}", *bounds]


@dataclass(frozen=True)
class _Settings:
    """How one candidate's bound is computed; see `select`."""

    objective: Objective
    band: str
    local: str
    dispersion: str
    mean_share: float
    seed: int | None

    def shares(self) -> tuple[float, float]:
        """Parts of a candidate's delta for the mean alone, and for the band."""
        if not self.objective.has_mean or self.mean_share == 0.0:
            return 0.0, 1.0
        return (self.mean_share, 1.0 - self.mean_share) if len(self.objective.terms) > 1 else (1.0, 0.0)

    def spending(self) -> str:
        for_mean, for_band = self.shares()
        if for_mean == 0.0:
            return f"all of it for one {self.band} band"
        if for_band == 0.0:
            return "all of it for the betting bound on the mean"
        return f"{for_mean:g} of it for the betting bound on the mean, {for_band:g} for one {self.band} band"


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
    chosen, delta = Objective(objective), check_delta(delta)
    _check_answers(risks_by_candidate)
    answers = {name: risks_by_candidate[name] for name in _check_order(list(risks_by_candidate), order)}
    method, checked_target = check_choice("method", method, SELECTION_METHODS), _check_method(method, target)
    settings = _check_settings(_Settings(chosen, band, local, dispersion, mean_share, seed))
    candidate_delta = delta / len(answers) if method == "bonferroni" else delta
    bounds, assumptions = zip(*(_bounds(risks, candidate_delta, settings) for risks in answers.values()), strict=True)
    totals = [sum(weight * terms[name] for name, weight in chosen.terms) for terms in bounds]
    passes = [checked_target is None or total <= checked_target for total in totals]
    if method == "fixed_sequence":
        passes = np.logical_and.accumulate(passes).tolist()
    candidates = tuple(
        CandidateBound(name, total, chosen.of_law(RiskLaw.of_values(risks.shown_values)), terms, is_certified)
        for (name, risks), total, terms, is_certified in zip(answers.items(), totals, bounds, passes, strict=True)
    )
    eligible = [candidate for candidate in candidates if candidate.is_certified or method == "bonferroni"]
    best = min(eligible, key=lambda candidate: candidate.bound, default=None)
    arguments = {
        "objective": str(chosen),
        "delta": delta,
        "method": method,
        "target": checked_target,
        "order": list(answers),
        "band": settings.band,
        "local": settings.local,
        "dispersion": settings.dispersion,
        "mean_share": settings.mean_share,
        "seed": settings.seed,
    }
    return Selection(
        best=None if best is None else best.name,
        certificate=None if best is None else _certificate(best, candidates, answers, arguments, assumptions),
        candidates=candidates,
        objective=chosen,
        method=method,
        target=checked_target,
        delta=delta,
        candidate_delta=candidate_delta,
        spending=_spending(method, delta, candidate_delta, len(answers), settings),
    )


def check_selection(
    names: Sequence[str],
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
) -> None:
    """Check the arguments of `select` before there are answers; raises ValueError as `select` does."""
    check_delta(delta)
    _check_order(names, order)
    _check_method(method, target)
    _check_settings(_Settings(Objective(objective), band, local, dispersion, mean_share, seed))


def selection_certificate(risks_by_candidate: Mapping[str, ClientRisks], **arguments: Any) -> Certificate:
    """Return the certificate of `select` with these arguments; raises ValueError if no candidate is certified."""
    certificate = select(risks_by_candidate, **arguments).certificate
    if certificate is None:
        raise ValueError("no candidate is certified to meet the target: there is no certificate")
    return certificate


def _check_answers(answers: Mapping[str, ClientRisks]) -> None:
    if not isinstance(answers, Mapping) or not answers:
        raise ValueError("risks_by_candidate must map the names of one or more candidates to ClientRisks, got none")
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


def _check_method(method: str, target: float | None) -> float | None:
    method = check_choice("method", method, SELECTION_METHODS)
    if target is None:
        if method == "fixed_sequence":
            raise ValueError("method='fixed_sequence' needs a target, got none; it tests candidates against one")
        return None
    try:
        value = check_number("target", target, remedy="it is a value of the objective")
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(f"target must be a finite number, got {target!r:.80}; it is a value of the objective")
    return value


def _check_settings(settings: _Settings) -> _Settings:
    if not isinstance(settings.band, str):
        raise ValueError(f"band must be the name of a method, got {type(settings.band).__name__}; write 'berk_jones'")
    band = resolve_level_method(settings.band).name
    local = check_choice("local", settings.local, LOCAL_STEPS)
    dispersion = check_choice("dispersion", settings.dispersion, DISPERSION_METHODS)
    share = check_single("mean_share", settings.mean_share)
    if share == 1.0:
        raise ValueError("mean_share must be in [0, 1), got 1; the band takes the rest of delta")
    seed = check_own_seed(settings.seed)
    return replace(settings, band=band, local=local, dispersion=dispersion, mean_share=share, seed=seed)


def _bounds(risks: ClientRisks, delta: float, settings: _Settings) -> tuple[dict[str, float], tuple[str, ...]]:
    """Upper bounds on all terms for one candidate, jointly right with probability 1 - delta, and what they assume."""
    objective, (for_mean, for_band) = settings.objective, settings.shares()
    bounds: dict[str, float] = {}
    assumptions: tuple[str, ...] = ()
    if for_band > 0.0:
        found = band_of(
            risks, delta=delta * for_band, method=settings.band, local=settings.local, sides=objective.sides
        )
        bounds = objective.upper_bounds(found, dispersion=settings.dispersion)
        assumptions = found.assumptions
    if for_mean > 0.0:
        betting = mean_bound(risks, delta=delta * for_mean, seed=settings.seed)
        bounds["mean"] = min(float(betting.value), bounds.get("mean", 1.0))
        assumptions += betting.assumptions
    return bounds, assumptions


def _certificate(
    best: CandidateBound,
    candidates: tuple[CandidateBound, ...],
    answers: Mapping[str, ClientRisks],
    arguments: Mapping[str, Any],
    assumptions: Iterable[Iterable[str]],
) -> Certificate:
    is_sequence = arguments["method"] == "fixed_sequence"
    among = f", chosen among {len(candidates)} candidates" if len(candidates) > 1 else ""
    subject = "measured risk of unseen clients" if arguments["local"] == "observed" else "risk of unseen clients"
    return Certificate(
        quantity=f"the objective {arguments['objective']} of the {subject} under {best.name!r}{among},",
        # Candidates in a sequence are only tested against the target: their own bounds do not hold together.
        value=float(arguments["target"]) if is_sequence else best.bound,
        delta=arguments["delta"],
        method=f"{arguments['method']} over {len(candidates)} candidates",
        assumptions=(*_assumptions(chain.from_iterable(assumptions)), *_choices(arguments)),
        validity=CERTIFICATE,
        details={
            "candidate_bounds": np.array([candidate.bound for candidate in candidates]),
            "candidate_measured": np.array([candidate.measured for candidate in candidates]),
        },
        recipe=_recipe(arguments, answers),
    )


def _assumptions(of_bounds: Iterable[str]) -> list[str]:
    """What the bounds assume, in words for candidates, without the choices behind each: they are the selection's."""
    said = {FRESH_CLIENTS: FRESH_FOR_CANDIDATES}
    kept = [said.get(line, line) for line in of_bounds if not line.startswith(CHOSEN_BEFORE)]
    return list(dict.fromkeys([*kept, CANDIDATES_FIXED]))


def _choices(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    return chosen_before(
        method=(arguments["method"], "bonferroni"),
        target=(arguments["target"], None),
        band=(arguments["band"], "berk_jones"),
        local=(arguments["local"], "marginal"),
        dispersion=(arguments["dispersion"], "convex_order"),
        mean_share=(arguments["mean_share"], DEFAULT_MEAN_SHARE),
        seed=(arguments["seed"], None),
    )


def _recipe(arguments: Mapping[str, Any], answers: Mapping[str, ClientRisks]) -> dict[str, Any]:
    recipes = {name: recipe("select", arguments, risks) for name, risks in answers.items()}
    first = next(iter(recipes.values()))
    return {**first, "answers": {name: each["answers"] for name, each in recipes.items()}}


def _spending(method: str, delta: float, candidate_delta: float, num_candidates: int, settings: _Settings) -> str:
    each = f"{candidate_delta:.4g} for each of {num_candidates} candidates"
    how = each if method == "bonferroni" else f"{each}, tested in order against the target until one fails"
    return f"delta {delta:g}: {how}; {settings.spending()}"
