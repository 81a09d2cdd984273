"""Requirements such as "quantile:0.9<=0.3", and what answers say of them: PASS, FAIL or NOT DECIDED.

A requirement passes if the certified bound meets it, and fails if the certified bound from the other side shows the
opposite. Whatever the truth is, all verdicts together are right with probability at least 1 - delta; not to decide is
never wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from riskband.answers.responses import ODDS
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import RISK, Scale, ScaledAnswers, scale_of
from riskband.bands.band import Band, band_alone, own_delta
from riskband.bands.band import band as band_of
from riskband.certificate import CERTIFICATE, Certificate, check_ends
from riskband.checks import check_number, float_of, set_fields
from riskband.functionals.dispersion import UnboundedError
from riskband.search import largest_where, smallest_size
from riskband.wording import chosen_before, confidence, exactly, in_full, rounded_down, rounded_up
from riskband.wording.shown import Shown, shortened
from riskband.worst_cases.bounds import Source, bound, is_read_off_a_band
from riskband.worst_cases.number import DIVERGENCE, NEXT, TARGET, Number

PASS, FAIL, NOT_DECIDED = "PASS", "FAIL", "NOT DECIDED"
EXIT_STATUS: Mapping[str, int] = {FAIL: 1, NOT_DECIDED: 3, PASS: 0}
"""Of a command that asks for requirements, by verdict: the first that any of them has counts. 2 is for wrong input."""

GATE_SCHEMA = "riskband.gate/1"
REQUIRED = "require "
"""Begins the name of a certificate that a verdict follows from."""

_MEANT = re.compile(r"\s*([^<>=]+?)\s*(=<|=>|<|>)\s*([^<>=]+?)\s*")
_WRITTEN = re.compile(r"\s*(.+?)\s*(<=|>=)\s*(.+?)\s*")
_LARGEST_TRIED = 4_096  # clients
_MOST_LOG_ODDS, _NUM_ODDS = math.log(1e3), 14  # beyond such odds, clients that are silent may as well be the worst
_FINENESS = 8  # the number of clients that would decide is found to one part in so many


@dataclass(frozen=True)
class Requirement:
    """A limit that a number must keep to.

    Attributes
    ----------
    number : Number
        What the limit is for.
    relation : {"<=", ">="}
        Whether the limit is the largest or the smallest value allowed.
    limit : float
        Some values of the number are within it and some are not.

    Raises
    ------
    ValueError
        If the relation is unknown, or the limit is none.
    """

    number: Number
    relation: str
    limit: float

    def __post_init__(self) -> None:
        if self.relation not in ("<=", ">="):
            raise ValueError(f"relation of a requirement must be <= or >=, got {self.relation!r:.80}")
        limit = check_number("limit of a requirement", self.limit, remedy="write 'quantile:0.9<=0.3'")
        set_fields(self, limit=limit)

    def check(self, scale: Scale) -> None:
        """Raise ValueError if clients on this scale have no such number, or all of its values are allowed, or none."""
        self.number.check(scale)
        low, high = self.number.range(scale)
        if not (low <= self.limit < high if self.relation == "<=" else low < self.limit <= high):
            remedy = f"that is the range of the {scale.noun}"
            if scale is RISK:
                remedy = "losses are in [0, 1], so divide a percentage by 100"
            remedy = "it is for a number of clients" if self.number.is_count else remedy
            raise ValueError(
                f"limit of '{self.number}' must allow some of its values from {low:g} to {high:g} and not all, "
                f"got {self.relation} {self.limit:g}; {remedy}"
            )

    @classmethod
    def of(cls, text: str | Requirement) -> Requirement:
        """Read "NUMBER<=LIMIT" or "NUMBER>=LIMIT"; raises ValueError for anything else."""
        if isinstance(text, Requirement):
            return text
        found = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            meant = _MEANT.fullmatch(text) if isinstance(text, str) else None
            remedy = f"write '{meant[1]}{'<=' if '<' in meant[2] else '>='}{meant[3]}'" if meant else _EXAMPLE
            raise ValueError(f"a requirement must be NUMBER<=LIMIT or NUMBER>=LIMIT, got {text!r:.80}; {remedy}")
        try:
            limit = float_of(found[3])
        except ValueError as error:
            remedy = "give several requirements one by one, without commas" if "," in text else _EXAMPLE
            raise ValueError(f"the limit of {text!r:.80} must be a number, got {found[3]!r:.80}; {remedy}") from error
        return cls(Number.of(found[1]), found[2], limit)

    def __str__(self) -> str:
        """The requirement as `of` reads it."""
        return f"{self.number}{self.relation}{exactly(self.limit)}"

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
        limit = self.requirement.limit
        low, high = self.requirement.number.range(_scale_behind(self.certificates))
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
    source : answers, a pair of them, or Band
        As for `bound`. Of answers, the numbers that are required share delta equally, each is bounded by itself, and
        the requirements must be fixed before any answer was seen. Or a band with both sides: all is read off it and
        holds at once.
    requirements : str, Requirement or sequence of them
        "NUMBER<=LIMIT" or "NUMBER>=LIMIT", with a number as `bound` reads it: "quantile:0.9<=0.3",
        "mean@chi2:0.1<=0.2", "count:0.3@next:20<=3"; of changes also "change<=0.01" and "harmed:0.02<=0.1".
    delta : float, optional
        With answers: probability that any verdict is a wrong PASS or FAIL, in (0, 1).

    Returns
    -------
    Gate
        With the verdicts and their certificates. What was only estimated, since the clients that answered helped to
        train the model, is never decided. Source: `bound`.

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
    asked = read_requirements(requirements, getattr(source, "scale", RISK))
    if not asked:
        raise ValueError(f"at least one requirement must be given, got none; {_EXAMPLE}")
    numbers = numbers_behind(asked)
    if isinstance(source, Band):
        whole, part = band_alone(source, delta=delta).delta, None
    else:
        whole = own_delta(delta)
        part = whole / len(numbers)
    return verdicts_on(certificates_of(source, numbers, delta=part), asked, delta=whole)


def read_requirements(
    given: str | Requirement | Iterable[str | Requirement], scale: Scale | None = RISK
) -> list[Requirement]:
    """Return each requirement once; raises ValueError for anything else, or for what is none of such answers.

    Nothing is checked of answers of which the scale is not known yet.
    """
    several = [given] if isinstance(given, (str, Requirement)) else given
    if not isinstance(several, Iterable):
        raise ValueError(f"requirements must be text or a list of it, got {given!r:.80}; {_EXAMPLE}")
    found = list(dict.fromkeys(map(Requirement.of, several)))
    if scale is not None:
        for requirement in found:
            requirement.check(scale)
    return found


def numbers_behind(requirements: Iterable[Requirement]) -> tuple[Number, ...]:
    """Return the numbers that verdicts follow from: what is required, and what bounds a worst case from below.

    That is the same number without a shift, since the network without one is within every budget.
    """
    numbers = (number for each in requirements for number in (each.number, each.number.plain))
    return tuple(dict.fromkeys(filter(None, numbers)))


def numbers_alone(numbers: Iterable[Number], *, can_bet: bool) -> list[Number]:
    """Return the numbers that answers bound by themselves; the others are read off a band.

    No band says anything of the next clients, and so all do where nothing can be bet on answers but these.
    """
    return [each for each in numbers if each.is_finite or (can_bet and not is_read_off_a_band(each))]


def certificates_of(
    source: Source,
    numbers: Iterable[Number],
    *,
    delta: float | None,
    population: int | None = None,
    local: str | None = None,
) -> dict[str, Certificate]:
    """Return a certificate of each number from both its ends, with that delta for each if the source is answers.

    With a population the next clients are others of it; `local` is that of `bound`. What nothing bounds from above has
    no certificate: not even of its lower end, since a certificate is finite.
    """
    found = {}
    for number in numbers:
        terms = {"population": population} if number.where == NEXT else {} if number.is_finite else {"local": local}
        with suppress(UnboundedError):
            known = {name: term for name, term in terms.items() if term is not None}
            sides = "two" if number.has_both_ends else "worse"
            found[str(number)] = bound(source, number, delta=delta, sides=sides, **known)
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
    numbers = numbers_behind([requirement])
    found = certificates_of(answers, numbers, delta=delta / len(numbers))
    return _ends(found, requirement.number)[:2]


def _ends(certificates: Mapping[str, Certificate], number: Number) -> tuple[float, float, tuple[Certificate, ...]]:
    """Both ends for a number, the end of its range where nothing bounds it, and the certificates that they are of."""
    upper, plain = (certificates.get(str(each)) for each in (number, number.plain or number))
    found = tuple(dict.fromkeys(filter(None, (upper, plain))))
    low, high = number.range(_scale_behind(found))
    # The worst is the smallest.
    if upper is not None and plain is not None and number.plain and upper.lower is not None:
        return float(upper.lower), float(plain.value), found
    lower_end = low if plain is None or plain.lower is None else float(plain.lower)
    return lower_end, high if upper is None else float(upper.value), found


def _scale_behind(certificates: Sequence[Certificate]) -> Scale:
    """The scale of what was certified."""
    return (certificates and scale_of(certificates[0].recipe["answers"])) or RISK


def _verdict(certificates: Mapping[str, Certificate], requirement: Requirement, *, delta: float) -> Verdict:
    number = requirement.number
    lower, upper, found = _ends(certificates, number)
    is_said = found and (number.is_finite or not number.shift)
    quantity = found[0].quantity if is_said else number.quantity(_scale_behind(found))
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
    risks = None if number.is_finite or number.where == TARGET else _growing(found)
    if risks is None or 2 * risks.num_clients > _LARGEST_TRIED:
        return of(verdict=verdict, why="how many clients would decide it was not estimated")
    enough, then = _enough(certificates, requirement, risks)
    size, sizes = risks.num_clients, sizes_in_words(risks)
    like = f"{enough:,} clients that answer as these {size} did, from {sizes} examples each,"
    if then == NOT_DECIDED:
        why = f"not even a new evaluation of {like} would decide it (an estimate)"
        more = "" if number.is_finite else "; more examples of each client may"
        return of(verdict=verdict, why=f"{why}{more}")
    why = f"a new evaluation of about {like} would decide it, as {then} (an estimate; to add clients to these until it "
    why += "is decided is not certified)"
    return of(verdict=verdict, why=why, num_clients=enough, then=then)


def sizes_in_words(risks: ClientRisks) -> str:
    """How many examples clients have: one number, or the smallest and the largest."""
    smallest, largest = risks.num_examples.min(), risks.num_examples.max()
    return f"{smallest}" if smallest == largest else f"{smallest} to {largest}"


def is_budget_refuted(certificate: Certificate, certificates: Mapping[str, Certificate]) -> bool:
    """Whether a bound on a target network assumes a budget below what is certified of its divergence beside it."""
    divergence, budgets = certificate.shift or ("", [])
    if not certificate.kind.endswith(f"@{TARGET}"):
        return False
    distance = certificates.get(str(Number(DIVERGENCE, where=TARGET, divergence=divergence)))
    return distance is not None and distance.lower is not None and any(size < distance.lower for size in budgets)


def _growing(certificates: Sequence[Certificate]) -> ClientRisks | None:
    """The answers behind certificates, if more like them can be made: not of counts, nor for levels that were tuned."""
    recipe = certificates[0].recipe if certificates else {"answers": {}, "arguments": {}}
    is_tuned = not isinstance((recipe.get("band") or {}).get("method", ""), str)
    is_of_risks = {"values", "num_examples"} <= recipe["answers"].keys()
    return ClientRisks(**recipe["answers"]) if is_of_risks and not is_tuned else None


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
    for each in filter(None, (number, number.plain)):
        made = certificates[str(each)]
        source = band_of(other, **made.recipe["band"]) if made.event == "band" else other
        found |= certificates_of(source, [each], delta=made.delta if source is other else None)
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
