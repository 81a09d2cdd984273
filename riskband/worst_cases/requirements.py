"""Requirements such as "quantile:0.9<=0.3", and what answers say of them: PASS, FAIL or NOT DECIDED.

A requirement passes if the certified bound meets it, and fails if the certified bound from the other side shows the
opposite. Whatever the truth is, all verdicts together are right with probability at least 1 - delta; not to decide is
never wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.responses import ODDS
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import CHANGE, RISK, Scale, ScaledAnswers, scale_of
from riskband.bands.band import Band, band_alone, own_delta, subject_of
from riskband.bands.band import band as band_of
from riskband.certificate import CERTIFICATE, Certificate, check_ends
from riskband.checks import as_spelled, check_budget, check_count, check_number, float_of, set_fields
from riskband.functionals.dispersion import UnboundedError, dispersion_certificate
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import resolve
from riskband.search import largest_where, smallest_size
from riskband.wording import chosen_before, confidence, exactly, in_full, rounded_down, rounded_up
from riskband.wording.shown import Shown, shortened
from riskband.worst_cases.divergence_bounds import divergence_lower_bound
from riskband.worst_cases.divergences import FDivergence, binary_worst_case, resolve_divergence, robust_mean
from riskband.worst_cases.next_clients import check_above, next_clients
from riskband.worst_cases.reweighting import worst_case_cdf, worst_case_mean
from riskband.worst_cases.scaled import CHANGES, SCORES, ScaledNumber, change_bound, families_of, score_bound
from riskband.worst_cases.target_networks import TARGET_NUMBERS, TargetNumber, target_bound


class Networks(NamedTuple):
    """Answers of clients of a source network, and of some of a target network."""

    source: ClientRisks
    target: ClientRisks


Source = Band | ClientRisks | ScaledAnswers | Networks

PASS, FAIL, NOT_DECIDED = "PASS", "FAIL", "NOT DECIDED"
EXIT_STATUS: Mapping[str, int] = {FAIL: 1, NOT_DECIDED: 3, PASS: 0}
"""Of a command that asks for requirements, by verdict: the first that any of them has counts. 2 is for wrong input."""

GATE_SCHEMA = "riskband.gate/1"
REQUIRED = "require "
"""Begins the name of a certificate that a verdict follows from."""

WORST_MEAN, WORST_SHARE, NEXT = "worst_mean", "worst_share", "next"
DIVERGENCE = "divergence"
OF_TARGETS = (DIVERGENCE, *TARGET_NUMBERS)
"""Families of what is said of a target network of which some clients answered."""
_MEANT = re.compile(r"\s*([^<>=]+?)\s*(=<|=>|<|>)\s*([^<>=]+?)\s*")
_WRITTEN = re.compile(r"\s*(.+?)\s*(<=|>=)\s*(.+?)\s*")
_LARGEST_TRIED = 4_096  # clients
_MOST_LOG_ODDS, _NUM_ODDS = math.log(1e3), 14  # beyond such odds, clients that are silent may as well be the worst
_FINENESS = 8  # the number of clients that would decide is found to one part in so many


class Number(NamedTuple):
    """What can be required: a functional, a worst mean or share over shifted networks, or a number of next clients."""

    name: str
    quantity: str  # in a sentence
    range: tuple[float, float]
    certificate: Callable[..., Certificate]  # of a source at a delta; UnboundedError where nothing bounds it
    value: Callable[[RiskDistribution], float]  # of a network whose risks are known; of next clients, what is expected
    plain: str = ""  # of a worst case, the number without a shift, which bounds it from below
    threshold: float | None = None  # the risk from which on a share counts clients
    shift: tuple[str, float] | None = None  # name of the divergence and the budget, within which any network may be
    counts_examples: bool = False  # as of a `Functional`
    most_clients: float = math.inf  # that can be asked


@dataclass(frozen=True)
class Requirement:
    """A limit that a number must keep to.

    Attributes
    ----------
    name : str
        Of the number: a functional, as `bound` reads it, "worst_mean:DIVERGENCE:BUDGET",
        "worst_share:RISK:DIVERGENCE:BUDGET", or "next:CLIENTS:RISK", how many of so many next clients measure more
        than the risk (of changes and scores: worse than that); "next:CLIENTS:RISK:DIVERGENCE:BUDGET" if they come from
        a target network; or "next:all:CLIENTS:RISK", how many of all clients of a finite federation of so many.
    relation : {"<=", ">="}
        Whether the limit is the largest or the smallest value allowed.
    limit : float
        Some values of the number are within it and some are not.

    Raises
    ------
    ValueError
        If the name or relation is unknown, or every value or no value of the number is within the limit.
    """

    name: str
    relation: str
    limit: float

    def __post_init__(self) -> None:
        number = self.number
        if self.relation not in ("<=", ">="):
            raise ValueError(f"relation of a requirement must be <= or >=, got {self.relation!r:.80}")
        limit = check_number("limit of a requirement", self.limit, remedy="write 'quantile:0.9<=0.3'")
        set_fields(self, name=number.name, limit=limit)
        in_percent = "losses are in [0, 1], so divide a percentage by 100"
        self.require_open(*number.range, "it is for a number of clients" if number.range[1] > 1.0 else in_percent)

    def require_open(self, low: float, high: float, remedy: str) -> None:
        """Raise ValueError if every number in this range is within the limit, or none."""
        if not (low <= self.limit < high if self.relation == "<=" else low < self.limit <= high):
            raise ValueError(
                f"limit of {self.name!r} must allow some of its values from {low:g} to {high:g} and not all, "
                f"got {self.relation} {self.limit:g}; {remedy}"
            )

    @classmethod
    def of(cls, text: str | Requirement) -> Requirement:
        """Read "NAME<=NUMBER" or "NAME>=NUMBER"; raises ValueError for anything else."""
        if isinstance(text, Requirement):
            return text
        found = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            meant = _MEANT.fullmatch(text) if isinstance(text, str) else None
            remedy = f"write '{meant[1]}{'<=' if '<' in meant[2] else '>='}{meant[3]}'" if meant else _EXAMPLE
            raise ValueError(f"a requirement must be NAME<=NUMBER or NAME>=NUMBER, got {text!r:.80}; {remedy}")
        try:
            limit = float_of(found[3])
        except ValueError as error:
            remedy = "give several requirements one by one, without commas" if "," in text else _EXAMPLE
            raise ValueError(f"the limit of {text!r:.80} must be a number, got {found[3]!r:.80}; {remedy}") from error
        return cls(found[1], found[2], limit)

    @property
    def number(self) -> Number:
        """What the limit is for."""
        return number_of(self.name)

    def __str__(self) -> str:
        """The requirement as `of` reads it."""
        return f"{self.name}{self.relation}{exactly(self.limit)}"

    def verdict(self, lower: float, upper: float) -> str:
        """What follows if the number lies between these ends: "PASS", "FAIL" or "NOT DECIDED"."""
        limit, is_upper = self.limit, self.relation == "<="
        sure, refuted = (upper <= limit, lower > limit) if is_upper else (lower >= limit, upper < limit)
        return PASS if sure else FAIL if refuted else NOT_DECIDED


_EXAMPLE = "write 'quantile:0.9<=0.3'"


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Shown):
    """What answers say of one requirement.

    Attributes
    ----------
    requirement : Requirement
        What was required.
    verdict : {"PASS", "FAIL", "NOT DECIDED"}
        Whether the certified bound meets it, the other one refutes it, or neither.
    quantity : str
        The number that was required, as the subject of a sentence.
    lower, upper : float
        What was certified of the number; the end of its range, or infinity, where nothing was.
    delta : float
        Of all requirements that were asked together.
    certificates : tuple of Certificate
        What the verdict follows from.
    why : str
        If it is not decided: what that comes from, and how many clients would decide by an estimate. Of clients that
        answer with odds that were said: up to which odds it is decided.
    num_clients : int or None
        If it is not decided: a new evaluation of about so many clients would decide it, if they answer as these did. An
        estimate, found by repeating the answers; `None` if it was not found or is of no use. To ask more clients until
        it is decided is another matter: each certificate holds for a number of clients that no answer has influenced.
    then : str or None
        What they would decide.
    """

    requirement: Requirement
    verdict: str
    quantity: str
    lower: float
    upper: float
    delta: float
    certificates: tuple[Certificate, ...]
    why: str = ""
    num_clients: int | None = None
    then: str | None = None

    shown = ("lower", "upper", "delta")

    def _words(self) -> str:
        return f"{self.verdict}: {self.requirement}"

    def __str__(self) -> str:
        return self.statement

    @property
    def statement(self) -> str:
        """The verdict and what it follows from, as one sentence."""
        why = f"; {self.why}" if self.why else ""
        return f"{self.verdict}: {self.requirement} is required, and {self._known}{why}."

    @property
    def _known(self) -> str:
        """What was certified of the number; an end of its range is none."""
        (low, high), limit = self.requirement.number.range, self.requirement.limit
        scale = scale_of(self.certificates[0].recipe["answers"]) if self.certificates and math.isinf(low) else None
        low, high = (low, high) if scale is None else (scale.low, scale.high)
        if self.lower <= low and self.upper >= high:
            return f"these answers do not bound {self.quantity}"
        digits = self.certificates[0].num_digits if self.certificates else 4
        least, most = _shown(self.lower, rounded_down, limit, digits), _shown(self.upper, rounded_up, limit, digits)
        if self.upper >= high:
            said = f"is at least {least}, and nothing bounds it from above"
        else:
            said = f"is at most {most}" if self.lower <= low else f"lies between {least} and {most}"
        is_proved = all(each.validity == CERTIFICATE for each in self.certificates)
        sure = f"with probability at least {confidence(self.delta)}" if is_proved else "by an estimate"
        return f"{sure} {self.quantity} {said}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data for JSON, without its certificates; an end that is infinite is None."""
        return {
            "requirement": str(self.requirement),
            "verdict": self.verdict,
            "lower": self.lower if math.isfinite(self.lower) else None,
            "upper": self.upper if math.isfinite(self.upper) else None,
            "statement": self.statement,
            "num_clients_estimate": self.num_clients,
            "verdict_then": self.then,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Gate(Shown):
    """What answers say of several requirements, all at once.

    Attributes
    ----------
    verdicts : tuple of Verdict
        One for each requirement, in their order.
    delta : float
        Probability that any of them is a wrong PASS or a wrong FAIL.
    assumptions : tuple of str
        What must be true for that.
    """

    verdicts: tuple[Verdict, ...]
    delta: float
    assumptions: tuple[str, ...]

    shown = ("delta",)

    def _words(self) -> str:
        return shortened(f"{self.verdict}: {', '.join(f'{each.requirement} {each.verdict}' for each in self.verdicts)}")

    def __str__(self) -> str:
        return self.statement

    @property
    def verdict(self) -> str:
        """FAIL if any requirement fails, otherwise NOT DECIDED if any is not decided, otherwise PASS."""
        return next(verdict for verdict in EXIT_STATUS if any(each.verdict == verdict for each in self.verdicts))

    @property
    def exit_status(self) -> int:
        """Status for a command to exit with: 0 for PASS, 1 for FAIL, 3 for NOT DECIDED."""
        return EXIT_STATUS[self.verdict]

    @property
    def statement(self) -> str:
        """One line for each requirement."""
        return "\n".join(each.statement for each in self.verdicts)

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Every certificate that a verdict follows from, by the number that it bounds."""
        return {f"{REQUIRED}{made.name}": made for each in self.verdicts for made in each.certificates}

    def to_dict(self) -> dict[str, Any]:
        """Return the verdicts as plain data for JSON, without the certificates, which verify one by one."""
        return {
            "schema": GATE_SCHEMA,
            "verdict": self.verdict,
            "exit_status": self.exit_status,
            "delta": self.delta,
            "requirements": [each.to_dict() for each in self.verdicts],
            "assumptions": list(self.assumptions),
        }


def require(
    source: Source, requirements: str | Requirement | Sequence[str | Requirement], *, delta: float | None = None
) -> Gate:
    """Say whether unseen clients meet requirements: PASS, FAIL or NOT DECIDED.

    Parameters
    ----------
    source : ClientRisks, ClientChanges, ClientScores or Band
        Answers: the numbers that are required share delta equally, each is bounded by itself, and the requirements
        must be fixed before any answer was seen. Or a band with both sides: all is read off it and holds at once.
    requirements : str, Requirement or sequence of them
        "NAME<=NUMBER" or "NAME>=NUMBER", where NAME is a functional as `bound` reads it ("quantile:0.9", "mean",
        "share:0.3", "gini"), a worst mean, "worst_mean:chi2:0.1", a worst share, "worst_share:0.3:chi2:0.1", or how
        many of the next 20 clients measure more than a risk, "next:20:0.3", which needs the answers themselves. Of
        changes and scores one as `change_bound` or `score_bound` reads it: "change<=0.01", "harmed:0.02<=0.1".
    delta : float, optional
        With answers: probability that any verdict is a wrong PASS or FAIL, in (0, 1).

    Returns
    -------
    Gate
        With the verdicts and their certificates. What was only estimated, since the clients that answered helped to
        train the model, is never decided. Sources: `dispersion_certificate`, `worst_case_mean`, `worst_case_cdf`.

    Raises
    ------
    ValueError
        If there is no requirement or one cannot be read, delta is given with a band or not with answers, or the answers
        have noise or are in doubt: make a band of them then.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = rb.ClientRisks([0.02, 0.05, 0.1, 0.04] * 10, num_examples=100)
    >>> rb.require(answers, "mean<=0.2", delta=0.05).verdict
    'PASS'
    """
    asked = read_requirements(requirements, source if isinstance(source, ScaledAnswers) else None)
    if not asked:
        raise ValueError(f"at least one requirement must be given, got none; {_EXAMPLE}")
    names = numbers_behind(asked)
    if isinstance(source, (ClientRisks, ScaledAnswers)):
        whole = own_delta(delta)
        part: float | None = whole / len(names)
    else:
        whole, part = band_alone(source, delta=delta).delta, None
    return verdicts_on(certificates_of(source, names, delta=part), asked, delta=whole)


def read_requirements(
    given: str | Requirement | Iterable[str | Requirement], answers: ScaledAnswers | None = None
) -> list[Requirement]:
    """Return each requirement once; raises ValueError for anything else, or for what is none of changes or scores."""
    several = [given] if isinstance(given, (str, Requirement)) else given
    if not isinstance(several, Iterable):
        raise ValueError(f"requirements must be text or a list of it, got {given!r:.80}; {_EXAMPLE}")
    found = list(dict.fromkeys(map(Requirement.of, several)))
    scale = RISK if answers is None else answers.scale
    for each in found:
        if is_of_next(each):
            _check_point(each.name, scale)
        elif answers is not None:
            ScaledNumber.of(each.name, families_of(answers))  # raises ValueError, with the numbers that there are
            if math.isinf(each.number.range[0]):
                each.require_open(scale.low, scale.high, f"that is the range of the {scale.noun}")
    return found


def numbers_behind(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    """Return the numbers that verdicts follow from: what is required, and what bounds a worst case from below.

    That is the same number without a shift, since the network without one is within every budget.
    """
    names = (name for each in requirements for name in (each.name, each.number.plain))
    return tuple(dict.fromkeys(filter(None, names)))


def is_of_next(name: str | Requirement) -> bool:
    """Return whether a number or requirement is about the next clients, of whom no band says anything."""
    return str(name).startswith(f"{NEXT}:")


def is_of_target(name: str | Requirement) -> bool:
    """Return whether a number or requirement is about a target network of which some clients answered."""
    return str(name).partition(":")[0] in OF_TARGETS


def numbers_alone(names: Iterable[str], *, can_bet: bool) -> list[str]:
    """Return the numbers that answers bound by themselves; the others are read off a band.

    Worst shares need one, and so does all but next clients where nothing can be bet on answers.
    """
    return [each for each in names if is_of_next(each) or (can_bet and not each.startswith(WORST_SHARE))]


def budgets_beside(names: Collection[str], *, divergence: str, budgets: Iterable[float]) -> list[float]:
    """Return the budgets of which no worst mean is among the numbers: what is required is certified once."""
    return [size for size in budgets if _worst_mean_name(divergence, size) not in names]


def certificates_of(
    source: Source,
    names: Iterable[str],
    *,
    delta: float | None,
    population: int | None = None,
    local: str | None = None,
) -> dict[str, Certificate]:
    """Return a certificate of each number, with that delta for each if the source is answers.

    With a population the next clients are others of it; `local` is that of `change_bound`. What nothing bounds from
    above has no certificate: not even of its lower end, since a certificate is finite.
    """
    found = {}
    for name in names:
        with suppress(UnboundedError):
            what, how = ("population", population) if is_of_next(name) else ("local", local)
            found[name] = number_of(name).certificate(source, delta=delta, **({} if how is None else {what: how}))
    return found


def verdicts_on(certificates: Mapping[str, Certificate], requirements: Iterable[Requirement], *, delta: float) -> Gate:
    """Return what certificates, by the names of their numbers, say of requirements; `delta` is that of all of them."""
    verdicts = tuple(_verdict(certificates, each, delta=delta) for each in requirements)
    lines = [line for each in verdicts for made in each.certificates for line in made.assumptions]
    if any(made.event == "own" for each in verdicts for made in each.certificates):
        # A band bounds every number at once, also one that was picked later.
        lines += chosen_before(requirements=(", ".join(str(each.requirement) for each in verdicts), None))
    return Gate(verdicts, delta, tuple(dict.fromkeys(lines)))


def ends_of(answers: ClientRisks | ScaledAnswers, requirement: Requirement, *, delta: float) -> tuple[float, float]:
    """Return both ends that answers give for what is required, with all of delta for it."""
    names = numbers_behind([requirement])
    found = certificates_of(answers, names, delta=delta / len(names))
    return _ends(found, requirement.number)[:2]


def _ends(certificates: Mapping[str, Certificate], number: Number) -> tuple[float, float, tuple[Certificate, ...]]:
    """Both ends for a number, the end of its range where nothing bounds it, and the certificates that they are of."""
    upper, plain = (certificates.get(name) for name in (number.name, number.plain or number.name))
    (low, high), found = number.range, tuple(dict.fromkeys(filter(None, (upper, plain))))
    # The worst is the smallest.
    if upper is not None and plain is not None and number.plain and upper.lower is not None:
        return float(upper.lower), float(plain.value), found
    lower_end = low if plain is None or plain.lower is None else float(plain.lower)
    return lower_end, high if upper is None else float(upper.value), found


def _verdict(certificates: Mapping[str, Certificate], requirement: Requirement, *, delta: float) -> Verdict:
    number = requirement.number
    lower, upper, found = _ends(certificates, number)
    quantity = found[0].quantity if found and not number.shift else number.quantity
    if any((each.recipe.get("band") or {}).get("local") == "observed" for each in found):
        quantity = quantity.replace("with a risk", "that would measure a risk")
    check_ends(
        quantity, lower, upper, assumptions=list(dict.fromkeys(line for one in found for line in one.assumptions))
    )
    of = partial(Verdict, requirement, quantity=quantity, lower=lower, upper=upper, delta=delta, certificates=found)
    if any(each.validity != CERTIFICATE for each in found):
        why = "an estimate decides nothing: the clients that answered helped to train the model"
        return of(verdict=NOT_DECIDED, why=why)
    verdict = requirement.verdict(lower, upper)
    if verdict == PASS and any(is_budget_refuted(each, certificates) for each in found):
        return of(verdict=NOT_DECIDED, why="these answers refute the budget, so the bound says nothing of the target")
    kept = _kept_up_to(certificates, requirement, found)
    if verdict != NOT_DECIDED or kept:
        return of(verdict=verdict, why=kept)
    if found and all(each.is_always_valid for each in found):
        return of(verdict=verdict, why="further clients may be asked until it is decided")
    risks = _growing(found)
    if risks is None or 2 * risks.num_clients > _LARGEST_TRIED:
        return of(verdict=verdict, why="how many clients would decide it was not estimated")
    enough, then = _enough(certificates, requirement, risks)
    size, sizes = risks.num_clients, sizes_in_words(risks)
    like = f"{enough:,} clients that answer as these {size} did, from {sizes} examples each,"
    if then == NOT_DECIDED:
        why = f"not even a new evaluation of {like} would decide it (an estimate)"
        more = "" if is_of_next(number.name) else "; more examples of each client may"
        return of(verdict=verdict, why=f"{why}{more}")
    why = f"a new evaluation of about {like} would decide it, as {then} (an estimate; to add clients to these until it "
    why += "is decided is not certified)"
    return of(verdict=verdict, why=why, num_clients=enough, then=then)


def number_of(name: object) -> Number:
    """Return what a name is of; raises ValueError if it is of nothing."""
    head, *parameters = name.split(":") if isinstance(name, str) else ("",)
    special = {WORST_MEAN: _worst_mean, WORST_SHARE: _worst_share, NEXT: _next, DIVERGENCE: _divergence}
    special |= dict.fromkeys(TARGET_NUMBERS, _target) | dict.fromkeys((*CHANGES, *SCORES), _scaled)
    found = as_spelled(head, tuple(special))
    if found is not None:
        return special[found](name, parameters)
    chosen = resolve(name, called=f"what is required, but for {WORST_MEAN}, {WORST_SHARE} and {NEXT},")
    family, _, point = chosen.name.partition(":")
    threshold = float(point) if family == "share" else None
    quantity = chosen.of(subject_of("marginal"))
    of = (chosen.name, quantity, chosen.range, partial(dispersion_certificate, measure=chosen.name), chosen.value)
    return Number(*of, threshold=threshold, counts_examples=chosen.counts_examples)


def _scaled(name: object, parameters: Sequence[str]) -> Number:
    """A number of changes or scores; a worst mean is bounded from its good end by the mean without a shift."""
    number = ScaledNumber.of(name, {**CHANGES, **SCORES})
    of, scale = (
        (change_bound, CHANGE) if number.family in CHANGES else (score_bound, Scale("score", -math.inf, math.inf))
    )
    ends = (0.0, 1.0) if number.kind == "share" else (scale.low, scale.high)

    def certificate(source: Any, delta: float | None, **local: str) -> Certificate:
        return of(source, str(number), delta=own_delta(delta), sides="two", **local)

    def value(distribution: RiskDistribution) -> float:
        what = "changes" if number.family in CHANGES else "scores"
        or_prior = ", or with prior='change:MEAN:SD:DIFFER'" if what == "changes" else ""
        raise ValueError(f"{number} is of {what}, and not of risks; plan it with a pilot of them{or_prior}")

    plain = number.family.removeprefix("worst_") if number.kind == "worst" else ""
    return Number(str(number), number.quantity(scale, local="marginal"), ends, certificate, value, plain=plain)


def _worst_mean(name: object, parameters: Sequence[str]) -> Number:
    f, size = _shift(name, parameters, example=f"{WORST_MEAN}:chi2:0.1")
    above = partial(worst_case_mean, divergence=f, budget=size)

    def value(distribution: RiskDistribution) -> float:
        # Clients that the network does not have may have any risk, up to 1.
        risks, weights = np.append(distribution.risks, 1.0), np.append(distribution.weights, 0.0)
        return min(robust_mean(risks, weights, divergence=f, budget=size)[0], 1.0)

    quantity = f"the largest mean risk over the clients of {_any_network(f, size)}"
    called = _worst_mean_name(f.name, size)
    return Number(called, quantity, (0.0, 1.0), above, value, plain="mean", shift=(f.name, size))


def _worst_mean_name(divergence: str, budget: float) -> str:
    return f"{WORST_MEAN}:{divergence}:{exactly(budget)}"


def _target(name: object, parameters: Sequence[str]) -> Number:
    asked = TargetNumber.of(name)

    def above(source: Any, delta: float | None) -> Certificate:
        return target_bound(*_both(source), asked, delta=own_delta(delta))

    return Number(str(asked), asked.quantity, (0.0, 1.0), above, _of_two)


def _divergence(name: object, parameters: Sequence[str]) -> Number:
    if len(parameters) != 1:
        raise ValueError(f"{name!r:.80} cannot be read: write '{DIVERGENCE}:chi2', one divergence")
    f = resolve_divergence(parameters[0])

    def below(source: Any, delta: float | None) -> Certificate:
        return divergence_lower_bound(*_both(source), divergence=f, delta=delta)

    quantity = f"the {f.title} of the target network from the source network"
    return Number(f"{DIVERGENCE}:{f.name}", quantity, (0.0, math.inf), below, _of_two)


def _both(source: Any) -> Networks:
    if isinstance(source, Networks):
        return source
    raise ValueError("what is said of a target network needs answers of both: riskband shift SOURCE TARGET --require …")


def _of_two(distribution: RiskDistribution) -> float:
    raise ValueError("a number of a target network needs answers of both networks; one distribution does not say it")


def _worst_share(name: object, parameters: Sequence[str]) -> Number:
    f, size = _shift(name, parameters[1:], example=f"{WORST_SHARE}:0.3:chi2:0.1")
    share = resolve(f"share:{parameters[0]}", called="the number of a requirement")
    threshold = float(share.name.partition(":")[2])

    def above(source: Band | ClientRisks, delta: float | None) -> Certificate:
        band = source if isinstance(source, Band) else band_of(source, delta=own_delta(delta), sides="lower")
        return worst_case_cdf(band, divergence=f, budget=size, thresholds=threshold)

    def value(distribution: RiskDistribution) -> float:
        return float(binary_worst_case(min(share.value(distribution), 1.0), divergence=f, budget=size))

    quantity = f"the largest share of clients with a risk of at least {exactly(threshold)} in {_any_network(f, size)}"
    called = f"{WORST_SHARE}:{exactly(threshold)}:{f.name}:{exactly(size)}"
    of = (called, quantity, (0.0, 1.0), above, value)
    return Number(*of, plain=share.name, threshold=threshold, shift=(f.name, size))


def _next(name: object, parameters: Sequence[str]) -> Number:
    remedy = f"write '{NEXT}:20:0.3', how many come next and the risk that is counted above, or '{NEXT}:all:55:0.3'"
    is_whole = [*parameters[:1]] == ["all"]
    try:
        count, point, *shift = parameters[is_whole:]
        num_next, above = check_count("the number of next clients", int(count), minimum=1, remedy=remedy), float(point)
    except ValueError as error:
        raise ValueError(f"{name!r:.80} cannot be read: {remedy}") from error
    f, size = _shift(name, shift, example=f"{NEXT}:20:0.3:chi2:0.1") if shift else (None, 0.0)
    within: dict[str, Any] = {} if f is None else {"divergence": f.name, "budget": size}
    if is_whole:
        if f is not None or num_next < 3:
            raise ValueError(f"{name!r:.80} must be of a federation of 3 or more, as it is, without a shift; {remedy}")
        within = {"population": num_next, "including_seen": True}

    def certificate(source: Any, delta: float | None, population: int | None = None) -> Certificate:
        if not isinstance(source, (ClientRisks, ScaledAnswers)) or getattr(source, "noise", None) is not None:
            raise ValueError(f"{called} needs what each client measured, without noise, and no band; ask for a share")
        given = {"population": population} | within
        return next_clients(source, None if is_whole else num_next, above=above, delta=own_delta(delta), **given)

    def value(distribution: RiskDistribution) -> float:
        _check_point(called, RISK)
        share = float(np.sum(distribution.weights[distribution.risks > above]))
        return num_next * (share if f is None else float(binary_worst_case(share, divergence=f, budget=size)))

    which, counted = ([NEXT, "all"], "all") if is_whole else ([NEXT], "the next")
    called = ":".join([*which, str(num_next), exactly(above), *([] if f is None else [f.name, exactly(size)])])
    quantity = f"the number of clients, of {counted} {num_next}, that would measure a risk above {exactly(above)}"
    most = num_next - 1 if is_whole else math.inf
    return Number(called, quantity, (0.0, float(num_next)), certificate, value, most_clients=most)


def _check_point(name: str, scale: Scale) -> None:
    """Raise ValueError if no next client can measure worse than what is counted."""
    point = name.removeprefix(f"{NEXT}:all:").removeprefix(f"{NEXT}:").split(":")[1]
    check_above(f"what is counted in {name!r:.80}", float(point), scale)


def _shift(name: object, parameters: Sequence[str], *, example: str) -> tuple[FDivergence, float]:
    try:
        divergence, budget = parameters
        size = float(check_budget(float(budget)))
    except ValueError as error:
        raise ValueError(f"{name!r:.80} cannot be read: write {example!r}, a divergence and a budget last") from error
    return resolve_divergence(divergence), size


def _any_network(divergence: FDivergence, budget: float) -> str:
    return f"any network within budget {exactly(budget)} in {divergence.title}"


def sizes_in_words(risks: ClientRisks) -> str:
    """How many examples clients have: one number, or the smallest and the largest."""
    smallest, largest = risks.num_examples.min(), risks.num_examples.max()
    return f"{smallest}" if smallest == largest else f"{smallest} to {largest}"


def is_budget_refuted(certificate: Certificate, certificates: Mapping[str, Certificate]) -> bool:
    """Whether a bound on a target network assumes a budget below what is certified of its divergence beside it."""
    if certificate.kind not in TARGET_NUMBERS:
        return False
    asked = TargetNumber.of(certificate.name)
    distance = certificates.get(f"{DIVERGENCE}:{asked.divergence.name}")
    return distance is not None and distance.lower is not None and bool(asked.budget < distance.lower)


def _growing(certificates: Sequence[Certificate]) -> ClientRisks | None:
    """The answers behind certificates, if more like them can be made.

    Not of counts, nor for levels that were tuned, nor of a finite population.
    """
    recipe = certificates[0].recipe if certificates else {"answers": {}, "arguments": {}}
    is_tuned = not isinstance((recipe.get("band") or {}).get("method", ""), str)
    is_of_risks = {"values", "num_examples"} <= recipe["answers"].keys()
    is_open = not is_tuned and not {"population", "target"} & recipe["arguments"].keys()
    return ClientRisks(**recipe["answers"]) if is_of_risks and is_open else None


def _enough(certificates: Mapping[str, Certificate], requirement: Requirement, risks: ClientRisks) -> tuple[int, str]:
    """About how many clients decide a requirement, and how: the answers are repeated, twice as often until it is."""

    @cache
    def then(num_clients: int) -> str:
        return _again(certificates, requirement, risks.resized(num_clients))

    enough = smallest_size(
        risks.num_clients, lambda size: then(size) != NOT_DECIDED, most=_LARGEST_TRIED, fineness=_FINENESS
    )
    return (_LARGEST_TRIED, NOT_DECIDED) if enough is None else (enough, then(enough))


def _again(certificates: Mapping[str, Certificate], requirement: Requirement, other: ClientRisks) -> str:
    """What the same certificates of other answers say of a requirement."""
    number, found = requirement.number, dict[str, Certificate]()
    for name in filter(None, (number.name, number.plain)):
        made = certificates[name]
        source = band_of(other, **made.recipe["band"]) if made.event == "band" else other
        found |= certificates_of(source, [name], delta=made.delta if source is other else None)
    lower, upper, _ = _ends(found, number)
    return requirement.verdict(lower, upper)


def _kept_up_to(certificates: Mapping[str, Certificate], requirement: Requirement, ends: Sequence[Certificate]) -> str:
    """Up to which odds of answering a requirement is decided, in words; "" where no odds were said."""
    stored = ends[0].recipe["answers"] if ends else {}
    if not str(stored.get("missing")).startswith(ODDS) or not stored["num_missing"]:
        return ""

    @cache
    def at(log_odds: float) -> str:
        return _again(certificates, requirement, ClientRisks(**stored | {"missing": f"odds:{math.exp(log_odds)}"}))

    found = largest_where(
        lambda log_odds: at(log_odds) != NOT_DECIDED, most=_MOST_LOG_ODDS, num_steps=_NUM_ODDS, relative_tolerance=1e-3
    )
    if found.lower < 0.0:
        return "it would not be decided if the silent clients were missing at random"
    most = f"{math.floor(100.0 * math.exp(found.lower) + 1e-6) / 100.0:g}"
    return f"with odds of answering that differ by a factor of up to {most} it is {at(found.lower)}"


def _shown(value: float, rounded: Callable[[float, int], str], limit: float, num_digits: int) -> str:
    """A rounded end, or all its digits if it would look as if it were on the other side of the limit."""
    if not math.isfinite(value):
        return exactly(value)
    text = rounded(value, num_digits)
    is_same = (float(text) < limit, float(text) > limit) == (value < limit, value > limit)
    return text if is_same else in_full(value)
