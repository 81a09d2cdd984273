"""What an evaluation found, as data: what holds with what, verdicts, breakdowns, and what says nothing.

Whoever says something of certificates reads it from here: the terminal, the page and JSON. A quantity has one number,
of its sharpest certificate; a band says numbers only for what has no certificate of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from riskband.bands.band import Band
from riskband.certificate import CERTIFICATE, ESTIMATE, REFUTED, Certificate
from riskband.report.words import (
    Line,
    added,
    goal_in_words,
    num_clients_of,
    of_few,
    of_rank,
    said_of_breakdown,
    said_once,
    together,
    who_answered,
)
from riskband.verification import COLLECTION_SCHEMA, source_of, why_it_says_nothing
from riskband.wording import TRAINERS_ANSWERED, exactly
from riskband.worst_cases.divergences import DIVERGENCES
from riskband.worst_cases.number import SHIFTED, UNSEEN, Number
from riskband.worst_cases.requirements import Gate
from riskband.worst_cases.reweighting import breakdown

_USUAL_DIVERGENCE = "chi2"  # where none was asked for: in it a share of clients has a worst case in closed form


@dataclass(frozen=True)
class Event:
    """Certificates that hold or fail together, and the probability that they fail."""

    holds: str  # by what: "own" (it is one certificate), a "band", or the bands of all "groups"
    delta: float
    validity: str
    certificates: tuple[str, ...]  # their names


@dataclass(frozen=True)
class Breakdown:
    """How far a network may shift while a limit is certified to be kept."""

    limit: float
    threshold: float | None  # the limit is for the share of clients with at least this risk; None: for the mean
    divergence: str
    budget: float | None  # the largest within which it is certified; None: there is none
    beyond: float | None  # the smallest known at which it is not; None: nothing larger was looked at
    statement: str


@dataclass(frozen=True)
class Findings:
    """What certificates of one evaluation say.

    Attributes
    ----------
    certificates : mapping of str to Certificate
        By name, in the order in which they were given, one for each quantity.
    events : tuple of Event
        What holds with what.
    answered_by : str
        Who made the model, never guessed in anybody's favour: "fresh", "trainers" or "not stated".
    answers : mapping
        What the clients answered, as the first certificate holds it.
    gate : Gate or None
        The verdicts, which follow from certificates among these.
    limits : tuple of (float, float or None)
        What the mean risk must not exceed, or with a threshold the share of clients with at least that risk.
    unbounded : tuple of str
        What was asked for and is not bounded from above by these answers.
    names : tuple of str
        Of the clients, in the order of the answers; none if they are not known.
    band : Band or None
        A band that certificates were read off; more can be read off it on the same event.
    """

    certificates: Mapping[str, Certificate]
    events: tuple[Event, ...]
    answered_by: str
    answers: Mapping[str, Any]
    gate: Gate | None = None
    limits: tuple[tuple[float, float | None], ...] = ()
    unbounded: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    band: Band | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return this as plain data for JSON, without answers, certificates and verdicts, which stand on their own."""
        return {
            "statement": self.statement,
            "delta": self.delta,
            "events": [asdict(each) | {"certificates": list(each.certificates)} for each in self.events],
            "beside": list(self.beside),
            "answered_by": self.answered_by,
            "assumptions": list(self.assumptions),
            "breakdowns": [asdict(each) for each in self.breakdowns],
            "says_nothing": dict(self.says_nothing),
            "more_clients": self.more_clients,
            "unbounded": list(self.unbounded),
            "clients": list(self.names),
        }

    def to_document(self) -> dict[str, Any]:
        """Return all of it as plain data: what `riskband certify --out` writes."""
        return {
            "schema": COLLECTION_SCHEMA,
            "findings": self.to_dict(),
            "certificates": {name: each.to_dict() for name, each in self.certificates.items()},
            **({} if self.gate is None else {"gate": self.gate.to_dict()}),
        }

    @property
    def validity(self) -> str:
        """What may be said of all of it: "certificate" if any of it is one."""
        return CERTIFICATE if any(each.validity == CERTIFICATE for each in self.events) else ESTIMATE

    @property
    def delta(self) -> float:
        """Probability that any certificate fails, or any estimate if none is one: what the events add up to."""
        return added(each.delta for each in self.events if each.validity == self.validity)

    @property
    def statement(self) -> str:
        """How sure all of it is, and how delta is shared."""
        parts = [(each.holds, each.delta) for each in self.events if each.validity == self.validity]
        what = "this holds" if len(self.certificates) - len(self.beside) == 1 else "all of this holds together"
        if len(parts) < len(self.events):
            what = "all that is certified here holds together"
        return together(parts, what=what, validity=self.validity, answered_by=self.answered_by)

    @property
    def target(self) -> Mapping[str, Any] | None:
        """What the clients of a target network answered, if the certificates are about one."""
        of_both = (each.recipe["arguments"].get("target") for each in self.certificates.values())
        return next((each["answers"] for each in of_both if isinstance(each, Mapping)), None)

    @property
    def who(self) -> Iterator[Line]:
        """Lines about who answered, of both networks if there are two."""
        yield from who_answered(self.answers, network="" if self.target is None else "source")
        yield from who_answered(self.target or {}, network="target")

    @cached_property
    def beside(self) -> dict[str, Certificate]:
        """By name, what holds by itself at a level that follows from a rank, and so is no part of delta."""
        of_events = {name for event in self.events for name in event.certificates}
        return {name: c for name, c in self.certificates.items() if of_rank(c) and name not in of_events}

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true, each once."""
        return said_once((*self.certificates.values(), *filter(None, (self.gate,))), delta=self.delta)

    @cached_property
    def says_nothing(self) -> dict[str, str]:
        """By name of a certificate, why its bound is 1 somewhere."""
        found = {name: why_it_says_nothing(each) for name, each in self.certificates.items()}
        return {name: why for name, why in found.items() if why is not None}

    @property
    def more_clients(self) -> str:
        """What more clients would allow to bound, if there are so few that the next one is said; or ""."""
        return of_few(self.certificates.values(), delta=self.delta, num_parts=len(self.events))

    @cached_property
    def breakdowns(self) -> tuple[Breakdown, ...]:
        """For each limit and each of the `divergences`, how far it is kept."""
        found = (self.breakdown(divergence, *limit) for divergence in self.divergences for limit in self.limits)
        return tuple(filter(None, found))

    def called(self, client: int) -> str:
        """Return what a client is called, by its place among the answers: by its name, or by its row."""
        return self.names[client] if self.names else f"row {client + 1}"

    @property
    def threshold(self) -> float | None:
        """The risk from which on a client fails, if a requirement or a limit names one."""
        points = [] if self.gate is None else [_threshold(each.requirement.number) for each in self.gate.verdicts]
        return next((point for point in (*points, *(at for _, at in self.limits)) if point is not None), None)

    @property
    def divergences(self) -> dict[str, list[float]]:
        """The divergences that the certificates are about, with their budgets; χ² if there is only a band."""
        found: dict[str, list[float]] = {}
        for each in self.certificates.values():
            if each.shift is not None and each.shift[0] in DIVERGENCES and each.validity != REFUTED:
                found.setdefault(each.shift[0], []).extend(each.shift[1])
        return found or ({_USUAL_DIVERGENCE: []} if self.band is not None else {})

    def named(self, name: str) -> Certificate | None:
        """Return the certificate of a number, if there is one."""
        with_name = (e for e in self.certificates.values() if e.name == name and e.validity != REFUTED)
        return next((each for each in with_name if np.size(each.value) == 1), None)

    def over_budgets(self, divergence: str, threshold: float | None = None) -> dict[float, float]:
        """Return the bounds on the worst mean by budget, or on the worst share with at least a risk of `threshold`.

        That of budget 0 is of the network without a shift. A curve over risks is read at the last one up to it.
        """
        without = self.named("mean" if threshold is None else f"share:{exactly(threshold)}")
        found = {} if without is None else {0.0: float(np.asarray(without.value).item())}
        for each in self._worst_cases(divergence, threshold):
            points = each.axes.get("threshold", [each.point])
            at = 0 if threshold is None else np.searchsorted(points, threshold, side="right") - 1
            budgets = [] if each.shift is None else each.shift[1]
            bounds = np.asarray(each.value).reshape(len(budgets), -1)[:, at].tolist() if at >= 0 else []
            found |= {size: min(bound, found.get(size, 1.0)) for size, bound in zip(budgets, bounds, strict=False)}
        return dict(sorted(found.items()))

    def band_over_budgets(self, divergence: str, threshold: float | None = None) -> Band | None:
        """Return the band off which the same bounds can be read at other budgets; None if they are no band's."""
        shifted = self._worst_cases(divergence, threshold)
        of_band = {} if self.band is None else self.band.provenance()["band"]
        if not shifted or any(each.recipe["band"] == of_band for each in shifted):
            return self.band
        sources = map(source_of, shifted)
        return next((each for each in sources if isinstance(each, Band)), None)

    def _worst_cases(self, divergence: str, threshold: float | None) -> list[Certificate]:
        kind = f"{'mean' if threshold is None else 'share'}@{divergence}"
        return [each for each in self.certificates.values() if each.kind == kind and each.validity != REFUTED]

    def breakdown(self, divergence: str, limit: float, threshold: float | None) -> Breakdown | None:
        """Return how far a limit is kept, by the band or else by certificates at their budgets; None if by neither."""
        points, band = self.over_budgets(divergence, threshold), self.band_over_budgets(divergence, threshold)
        if band is None and not any(points):  # nothing at a budget above 0
            return None
        kept = [budget for budget, bound in points.items() if bound <= limit]
        broken = [budget for budget in points if budget not in kept]
        if band is not None:
            found = breakdown(band, divergence=divergence, target=limit, threshold=threshold)
            kept, broken = [*kept, float(found.lower)], [0.0, *broken, float(found.upper)]
        last = max(filter(np.isfinite, kept), default=None)
        beyond = min((size for size in broken if np.isfinite(size) and (last is None or size > last)), default=None)
        goal = goal_in_words(limit, threshold, is_measured=band is not None and band.local == "observed")
        said = said_of_breakdown(goal, divergence=divergence, budget=last, beyond=beyond, validity=self.validity)
        return Breakdown(limit, threshold, divergence, last, beyond, said)


def findings(
    certificates: Mapping[str, Certificate],
    *,
    gate: Gate | None = None,
    limits: Sequence[tuple[float, float | None]] = (),
    unbounded: Sequence[str] = (),
    names: Sequence[str] | None = None,
    band: Band | None = None,
) -> Findings:
    """Work out what certificates of one evaluation say.

    Parameters
    ----------
    certificates : mapping of str to Certificate
        By name; those that verdicts follow from need not be among them.
    gate : Gate, optional
        The verdicts.
    limits : sequence of (limit, threshold), optional
        Limits of the mean risk, or of the share of clients with a risk of at least the threshold, beside those that are
        required, of which a breakdown is wanted.
    unbounded : sequence of str, optional
        What was asked for and has no certificate.
    names : sequence of str, optional
        Of the clients, in the order of the answers of the first certificate; taken if no certificate holds names.
    band : Band, optional
        A band that certificates were read off, if it is at hand: it need not be made again.

    Returns
    -------
    Findings
        Of two certificates of one quantity only one is among them: that which a verdict follows from, otherwise the
        sharper one. Both have their parts of delta.
    """
    required = {} if gate is None else gate.certificates
    known = set(map(id, certificates.values()))
    everything = {**certificates, **{name: each for name, each in required.items() if id(each) not in known}}
    given = _one_each(everything, required)
    band = _band(given) if band is None else band
    joint = {name: each for name, each in everything.items() if not of_rank(each)} or everything
    events = events_of(joint, None if band is None else band.provenance()["band"])
    return Findings(
        certificates=given,
        # Of two bounds the smaller one holds if both do: what is not said has its part of delta, too.
        events=tuple(replace(e, certificates=tuple(filter(given.__contains__, e.certificates))) for e in events),
        answered_by=_answered_by(everything.values()),
        answers=next(iter(given.values())).recipe.get("answers", {}),
        gate=gate,
        limits=tuple(dict.fromkeys([*((limit, at) for limit, at in limits), *_required_limits(gate)])),
        unbounded=tuple(unbounded),
        names=_names(given.values(), names),
        band=band,
    )


def events_of(certificates: Mapping[str, Certificate], band: object = None) -> tuple[Event, ...]:
    """Return what holds with what; published formulas that are false are no part of it.

    What is read off `band`, by its recipe, is said to hold by it; a number with a band of its own holds by itself.
    """
    events: dict[str, Event] = {}
    answers: dict[str, Any] = {}
    for name, each in certificates.items():
        if each.validity != REFUTED:
            key, given = _event_key(each), each.recipe.get("answers")
            while key in events and answers[key] != given:  # bets on the same clients in another order are others
                key += " "
            before, answers[key] = events.get(key), given
            is_own = each.event == "band" and each.recipe["band"] != band and "target" not in each.recipe["arguments"]
            names = (name,) if before is None else (*before.certificates, name)
            events[key] = Event("own" if is_own else each.event, each.delta, each.validity, names)
    return tuple(events.values())


def _event_key(certificate: Certificate) -> str:
    same = certificate.recipe.get({"band": "band", "groups": "bands"}.get(certificate.event, "arguments"))
    return json.dumps([certificate.event, same, certificate.name if certificate.event == "own" else ""], sort_keys=True)


def _one_each(certificates: Mapping[str, Certificate], required: Mapping[str, Certificate]) -> dict[str, Certificate]:
    """One certificate for each quantity: of two, that of a verdict, or else the one with the smaller bound."""
    found: dict[Any, tuple[Any, str]] = {}
    behind = set(map(id, required.values()))
    for name, each in certificates.items():
        axes = {axis: np.asarray(points).tolist() for axis, points in each.axes.items() if len(points) > 1}
        quantity = each.name, is_measured(each), each.is_published, str(axes)
        is_from_below = each.recipe.get("answers", {}).get("higher_is_better") and each.lower is not None
        is_count = each.family == "share" or not each.num_digits  # of clients, in a score's two directions the same
        bad = -np.asarray(each.lower) if is_from_below and not is_count else np.asarray(each.value)
        rank = id(each) not in behind, float(np.sum(bad))
        found[quantity] = min(found.get(quantity, (rank, name)), (rank, name))
    kept = {name for _, name in found.values()}
    return {name: each for name, each in certificates.items() if name in kept}


def is_measured(certificate: Certificate) -> bool:
    """Return whether it is about the risks that clients would measure, and not about their true ones."""
    made_with = certificate.recipe.get("band") or certificate.recipe.get("arguments", {})
    return bool(made_with.get("local") == "observed")


def _answered_by(certificates: Iterable[Certificate]) -> str:
    listed = [set(each.assumptions) for each in certificates]
    if any(TRAINERS_ANSWERED in lines for lines in listed):
        return "trainers"
    are_fresh = all(any("had no part in" in line for line in lines) for lines in listed)
    return "fresh" if are_fresh else "not stated"


def _names(certificates: Iterable[Certificate], given: Sequence[str] | None) -> tuple[str, ...]:
    answers = [each.recipe.get("answers", {}) for each in certificates]
    # Others may hold the same answers in another order: only names of the same rows are those of the first.
    held = (each.get("names") for each in answers if each.get("values") == answers[0].get("values"))
    known = (names for names in (*held, given) if names and len(names) == num_clients_of(answers[0]))
    return tuple(next(known, ()))


def _band(certificates: Mapping[str, Certificate]) -> Band | None:
    """The band that most certificates were read off, if it has a lower side, which bounds need.

    Not one that was made for a single tail.
    """
    off: dict[str, list[Certificate]] = {}
    for each in certificates.values():
        of_one = "target" not in each.recipe["arguments"]  # network: two have two bands
        if each.event == "band" and of_one and not each.is_published:  # which has no part of delta
            off.setdefault(_event_key(each), []).append(each)
    several = [each for each in off.values() if len(each) > 1 or "truncated" not in str(each[0].recipe["band"])]
    sources = (source_of(each[0]) for each in sorted(several, key=len, reverse=True))
    return next((each for each in sources if isinstance(each, Band) and each.sides != "upper"), None)


def _required_limits(gate: Gate | None) -> Iterator[tuple[float, float | None]]:
    for each in () if gate is None else gate.verdicts:
        number = each.requirement.number
        is_limit = number.where in (UNSEEN, SHIFTED) and number.family in ("mean", "share")
        if each.requirement.relation == "<=" and is_limit:
            yield each.requirement.limit, _threshold(number)


def _threshold(number: Number) -> float | None:
    """The risk from which on a share counts clients; None of any other number."""
    return number.point if number.family == "share" and number.where in (UNSEEN, SHIFTED) else None
