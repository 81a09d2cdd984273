"""Whether a network is still one of those that certificates are about, as further clients answer (math §17).

A certificate says that a mean, or the share of clients beyond a threshold, is at most so much on every network that it
is about. Whoever doubts that bets on one further client after the other, with constant stakes: while it is true, the
capital has mean at most 1, so it ever reaches 1/alpha with probability at most alpha (Ville), whenever anybody looks.
A part of the capital is kept for bets that begin at each later client, so that a network may be as it should for years
before it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from riskband.answers.responses import REPEATS_ARE_DRAWS, check_others
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import CHANGE, RISK, Scale, ScaledAnswers, scale_of
from riskband.certificate import CERTIFICATE, USUAL_DELTA, Certificate, CrossingError
from riskband.checks import FloatArray, IntArray, as_number, check_kind
from riskband.report.findings import Findings, events_of, findings, is_measured
from riskband.report.words import added, bound_in_words
from riskband.wording import confidence, evenly, exactly, rounded_down, rounded_up, rounded_up_strictly, short_delta
from riskband.wording.shown import Shown
from riskband.worst_cases.always_valid import (
    ETAS,
    always_valid,
    batch_sizes,
    capital_with_late_bets,
    look_sorted,
)
from riskband.worst_cases.number import COST, FINITE, ON_SCALE, TARGET, Number

ALARM, NO_ALARM = "ALARM", "NO ALARM"
EXIT_STATUS = {NO_ALARM: 0, ALARM: 4}
"""Of a command that monitors; the others are taken: 1 and 3 by verdicts, 2 by wrong input."""

CHANGED = "the network changed on the way"
MONITOR_SCHEMA = "riskband.monitor/1"
Answered = ClientRisks | ScaledAnswers
_NEW_CLIENTS = (
    "clients that are monitored must not be those of the certificate, of whom panel_change (riskband monitor --panel) "
    "says whether they have become worse"
)
_MOST_POINTS = 5  # of a curve: they share the capital
_MOST_LOOKS = 40  # at the bounds so far


class Claim(NamedTuple):
    """What a certificate says, in a form that further clients can refute: of its largest budget, if it has several."""

    name: str  # of the number, as requirements name it; of a curve that at its middle threshold
    limit: float  # what is certified of it
    bound: str  # the same in words
    scale: Scale
    most: FloatArray  # what is bet on has at most this mean, in [0, 1], shape (num_points,)
    points: FloatArray  # thresholds of shares, shape (num_points,); none of a mean
    is_strict: bool  # whether a client at the threshold does not count
    is_measured: bool  # whether shares are of what clients measure, and not of their true numbers

    @classmethod
    def of(cls, certificate: Certificate) -> Claim:
        """Read it; raises ValueError, with the reason, if it cannot be monitored."""
        (kind, _, where), axes = certificate.kind.partition("@"), certificate.axes
        if kind not in ON_SCALE or where in (COST, TARGET, *FINITE) or not axes.keys() <= {"budget", "threshold"}:
            raise ValueError("no single client speaks against it, as it does against a mean, a share or a quantile")
        if certificate.validity != CERTIFICATE:
            raise ValueError("it is no certificate, so there is nothing to be outside of")
        scale = scale_of(certificate.recipe["answers"]) or RISK
        is_low = scale.is_higher_better and kind != "share"
        bound = np.asarray(certificate.lower if is_low else certificate.value)
        divergence, budgets = certificate.shift or ("", [])
        if "budget" in axes:
            largest = int(np.argmax(budgets))
            bound, budgets = bound[largest], [budgets[largest]]
        where = f"@{divergence}:{exactly(budgets[0])}" if budgets else ""
        bounds = np.atleast_1d(bound)
        most, points = bounds if kind == "share" else scale.to_unit(bounds), np.array([])
        places = np.flatnonzero(most < 1.0)
        places = places[evenly(places.size, _MOST_POINTS)]
        if not places.size:
            raise ValueError("its bound excludes nothing")
        if kind == "share":
            # What holds at a threshold holds at a larger one, with fewer digits.
            points = np.array([float(rounded_up_strictly(each)) for each in axes.get("threshold", np.array([]))])
            points = (points if points.size else np.array([certificate.point]))[places]
        if kind == "quantile":
            most, points = np.array([certificate.point if is_low else 1.0 - certificate.point]), bounds
        middle = places[places.size // 2]
        at = f":{exactly(points[places.size // 2])}" if kind == "share" else ""
        name = f"{kind}{at}{where}" if axes else certificate.name
        limit = float(bounds[middle])
        words = f"at least {rounded_down(limit)}" if is_low else f"at most {rounded_up(limit)}"
        is_score = scale not in (RISK, CHANGE)
        is_strict, measured = kind == "quantile" or scale is CHANGE, is_measured(certificate) or is_score
        return cls(name, limit, words, scale, most[places], points, is_strict, measured)

    @property
    def plain(self) -> str:
        """The number without a shift, which clients of the network show."""
        number = Number.of(self.name)
        return str(number.plain or number)

    def capital(self, answers: Any, sizes: IntArray) -> FloatArray:
        """Return what bets against it have made of a capital of 1 after batches of these sizes."""
        answers = answers.below
        if not self.points.size:
            unit = answers if isinstance(answers, ClientRisks) else answers.unit
            return capital_with_late_bets(unit.values - self.most[:, None], self.most, sizes)
        gains, losses = [], []
        for eta in (0.0,) if self.is_measured else ETAS:
            # Of a client that does not count, the limit does with probability at most eta.
            shares = self.most + eta * (1.0 - self.most)
            limits = answers.lower_limits(eta) if eta else answers.values  # what a client is at least as bad as
            gains += [self._are_beyond(limits, point) - share for point, share in zip(self.points, shares, strict=True)]
            losses.append(shares)
        return capital_with_late_bets(np.array(gains), np.concatenate(losses), sizes)

    def _are_beyond(self, limits: FloatArray, point: float) -> npt.NDArray[np.bool_]:
        is_beyond = limits < point if self.scale.is_higher_better else limits > point
        return is_beyond if self.is_strict else is_beyond | (limits == point)


@dataclass(frozen=True, eq=False, repr=False)
class Monitoring(Shown):
    """What further clients say of certificates, and of their network today.

    Attributes
    ----------
    claims : mapping of str to Claim
        What is monitored, by the names of the certificates.
    left_out : mapping of str to str
        Certificates that are not monitored, with the reason.
    answers : ClientRisks, ClientChanges or ClientScores
        Of the further clients, in the order in which they came.
    alpha : float
        Probability of an alarm at any time, if the network is within all that is monitored.
    delta : float
        Probability that the certificates are wrong, and that today's are.
    sizes : ndarray
        Numbers of clients that had answered at each look, shape (num_looks,).
    capital : ndarray
        What bets against each claim had made of 1 by then: its e-process, shape (num_claims, num_looks).
    """

    claims: Mapping[str, Claim]
    left_out: Mapping[str, str]
    answers: Answered
    alpha: float
    delta: float
    sizes: IntArray
    capital: FloatArray

    shown = ("alpha", "delta")
    unit = "clients"
    note = (
        "All clients so far are taken for draws from one network. If it changed on the way, begin again with those "
        "that came after."
    )

    def _words(self) -> str:
        return f"{self.verdict} after {self.answers.num_clients} clients"

    def __str__(self) -> str:
        return self.statement

    @property
    def e_values(self) -> FloatArray:
        """Evidence against all of it at each look, the mean of the claims' capitals, shape (num_looks,)."""
        return np.asarray(self.capital.mean(axis=0))

    @property
    def alarm_at(self) -> int | None:
        """After how many clients the alarm was raised; None if it was not. It stays, whatever comes later."""
        reached = np.flatnonzero(self.e_values >= 1.0 / self.alpha)
        return int(self.sizes[reached[0]]) if reached.size else None

    @property
    def verdict(self) -> str:
        """ALARM or NO ALARM."""
        return NO_ALARM if self.alarm_at is None else ALARM

    @property
    def exit_status(self) -> int:
        """Status for a command to exit with: 0, or 4 for an alarm."""
        return EXIT_STATUS[self.verdict]

    @property
    def statement(self) -> str:
        """Whether there is an alarm, what that means, and what holds today, in one line."""
        needed, size, e_values = f"{1.0 / self.alpha:.4g}", self.answers.num_clients, self.e_values
        if self.alarm_at is None:
            said = f"e-value {e_values[-1]:.3g} after {size} clients, never above {e_values.max():.3g}"
            return f"{NO_ALARM}: {said}; an alarm needs {needed}. {self.today}"
        at = int(np.flatnonzero(self.sizes == self.alarm_at)[0])
        worst = list(self.claims.values())[int(np.argmax(self.capital[:, at]))]
        return (
            f"{ALARM} at client {self.alarm_at} of {size}: this network is outside of what was certified, above all "
            f"of {worst.name} {worst.bound} (e-value {e_values[at]:.3g}, an alarm needs {needed}; false alarms, ever: "
            f"with probability at most {short_delta(added((self.alpha, self.delta)))}). {self.today}"
        )

    @property
    def today(self) -> str:
        """What today's certificates say, in short, and which are not monitored."""
        said = [f"{name} {bound_in_words(each)}" for name, each in self.certificates.items()]
        sure = f"with probability at least {confidence(self.delta)} at all times: {'; '.join(said)}."
        parts = [f"Today, if all these clients are of one network, {sure}"] if said else []
        if self.contradicted:
            parts.append(f"Bounds of {', '.join(self.contradicted)} contradict each other: {CHANGED}.")
        if self.left_out:
            parts.append(f"Not monitored: {', '.join(self.left_out)}.")
        if self.answers.repeats == "draws":
            parts.append(f"Taken as true: {REPEATS_ARE_DRAWS}.")
        return " ".join(parts)

    @cached_property
    def _today(self) -> dict[str, Certificate | None]:
        names = dict.fromkeys(name for each in self.claims.values() for name in (each.plain, each.name))
        return {name: self._certified(name, self.sizes, delta=self.delta / len(names)) for name in names}

    def _certified(self, name: str, ends: IntArray, *, delta: float) -> Certificate | None:
        """What is certified after the batches that end there; None if its limits contradict each other."""
        sizes = np.diff(ends, prepend=0)
        batches = None if np.all(sizes == 1) else sizes.tolist()
        with suppress(CrossingError):
            return always_valid(joined([self.answers], stop=int(ends[-1])), name, delta=delta, batches=batches)
        return None

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Today's: always valid bounds of the same numbers, and of those without a shift, by name.

        None if any contradict each other: all assume one network.
        """
        return {} if self.contradicted else {name: each for name, each in self._today.items() if each is not None}

    @property
    def contradicted(self) -> list[str]:
        """Numbers whose bounds after some clients contradict others, or what was measured: not of one network."""
        return [name for name, each in self._today.items() if each is None]

    def trajectory(self, number: str, *, most: int = _MOST_LOOKS) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return at most so many numbers of clients, and both ends of one of today's numbers, as certified after each.

        One without a shift, since a worst case has one end. It ends where the ends would contradict each other.
        """
        places, delta = np.flatnonzero(self.sizes > 1), self.delta / len(self._today)
        places = places[evenly(places.size, most)]
        sizes = self.sizes[places]
        looks = (self._certified(number, self.sizes[: place + 1], delta=delta) for place in places.tolist())
        found = list(takewhile(lambda each: each is not None, looks))
        lower, upper = ([getattr(each, end) for each in found] for end in ("lower", "value"))
        return sizes[: len(found)], np.array(lower), np.array(upper)

    def to_document(self) -> dict[str, Any]:
        """Return what `riskband monitor --out` writes: the outcome, and today's certificates, if there are any."""
        today = findings(self.certificates).to_document() if self.certificates else {}
        return {**today, "monitor": self.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data for JSON, without answers and today's certificates."""
        peaks = self.capital.max(axis=1).tolist()
        return {
            "schema": MONITOR_SCHEMA,
            **{name: getattr(self, name) for name in ("verdict", "exit_status", "statement", "alpha", "delta")},
            "num_clients": self.answers.num_clients,
            "alarm_at": self.alarm_at,
            "looks": self.sizes.tolist(),
            "e_values": self.e_values.tolist(),
            "claims": [
                {"certificate": name, "claim": f"{each.name} {each.bound}", "largest_e_value": peak}
                for (name, each), peak in zip(self.claims.items(), peaks, strict=True)
            ],
            "left_out": dict(self.left_out),
            "contradicted": self.contradicted,
        }


def monitor(
    certificates: Certificate | Findings | Mapping[str, Certificate],
    answers: Answered,
    *,
    alpha: float = USUAL_DELTA,
    batches: Sequence[int] | None = None,
) -> Monitoring:
    """Say whether a network is still one of those that certificates are about, however often that is asked.

    Parameters
    ----------
    certificates : Certificate, Findings or mapping of str to Certificate
        Made before, of other clients. Monitored are bounds from the bad end on worst means and worst shares, at their
        largest budgets; if there is none, on means, shares and quantiles.
    answers : ClientRisks, ClientChanges or ClientScores
        Of further clients, all of them so far, in the order in which they came.
    alpha : float
        Probability of an alarm at any time while the network is within all that is monitored, in (0, 1).
    batches : sequence of int, optional
        How many clients came together each time; all of one batch count before one looks. Within a batch they may have
        been drawn without replacement from a finite fleet, and come in any order. By default each came by itself.

    Returns
    -------
    Monitoring
        An alarm, or none yet, and today's certificates. Source: math §17; e-detectors, arXiv 2203.03532.

    Raises
    ------
    ValueError
        If nothing can be monitored, or so much that it need not be true at once, batches are not of all clients, or the
        answers are of another kind, have noise, may be wrong, are missing as the worst, are sorted, or are of clients
        that helped to train the model, or of those of a certificate and repeats are not draws.

    Examples
    --------
    >>> import riskband as rb
    >>> before = rb.mean_bound(rb.ClientRisks([0.02, 0.05, 0.1, 0.04] * 10, num_examples=100), delta=0.05)
    >>> rb.monitor(before, rb.ClientRisks([0.3, 0.25, 0.4, 0.2] * 5, num_examples=100)).verdict
    'ALARM'
    """
    level = check_alpha(alpha)
    if not isinstance(answers, (ClientRisks, ScaledAnswers)):
        raise ValueError(f"answers must be ClientRisks, ClientChanges or ClientScores, got {type(answers).__name__}")
    given: Any = certificates.certificates if isinstance(certificates, Findings) else certificates
    given = given if isinstance(given, Mapping) else {"certificate": given}
    claims, left_out = dict[str, Claim](), dict[str, str]()
    for name, each in given.items():
        check_kind("certificates", each, Certificate, remedy="read them with Certificate.load")
        check_others(each.recipe["answers"].get("names", ()), answers, rule=_NEW_CLIENTS)
        try:
            claim = Claim.of(each)
            _check_measured_alike(claim, each, answers)
        except ValueError as error:
            left_out[name] = str(error)
            continue
        if all(claim.name != other.name for other in claims.values()):  # a requirement has its own copy
            claims[name] = claim
    shifted = next((each.name for each in claims.values() if each.plain != each.name), "")
    for name in [name for name, each in claims.items() if shifted and each.plain == each.name]:
        del claims[name]
        left_out[name] = f"it allows for no shift, as {shifted} does"
    if not claims:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "got none"
        raise ValueError(f"at least one certificate must be of a mean, a share or a quantile, {why}; certify one")
    answers.require_certain_answers("monitoring", "answers that are right, and missing='ignore'")
    if answers.answered_by != "fresh":
        raise ValueError(
            f"clients that are monitored must be fresh, got answered_by={answers.answered_by!r}: those that helped to "
            "train the model say little of others; ask other clients"
        )
    if batches is None and look_sorted(answers):
        raise ValueError(
            f"clients must come in an order that says nothing about their answers, got {len(answers)} that are sorted "
            "by them; give them in the order in which they came, or say that they came together: batches=[…]"
        )
    sizes = batch_sizes(batches, num_clients=len(answers), ask=answers.ask)
    scale = answers.scale if isinstance(answers, ScaledAnswers) else RISK
    other = next((each for each in claims.values() if each.scale != scale), None)
    if other is not None:
        raise ValueError(f"answers must be of what was certified, {other.scale}, got {scale}; monitor those")
    delta = added(each.delta for each in events_of({name: given[name] for name in claims}))
    if delta >= 1.0:
        raise ValueError(f"all certificates must be able to be true at once, got delta {delta:g} in all; monitor fewer")
    return Monitoring(
        claims=claims,
        left_out=left_out,
        answers=answers,
        alpha=level,
        delta=delta,
        sizes=np.cumsum(sizes),
        capital=np.array([each.capital(answers, sizes) for each in claims.values()]),
    )


def check_alpha(alpha: object) -> float:
    """Return a probability of a false alarm; raises ValueError unless it is in (0, 1)."""
    level = as_number(alpha)
    if not 0.0 < level < 1.0:
        raise ValueError(f"alpha must be in (0, 1), got {alpha!r:.80}; it is the probability of a false alarm")
    return level


def _check_measured_alike(claim: Claim, certificate: Certificate, answers: Answered) -> None:
    """Refuse what clients measure on so many examples, where all the new ones do on others: fewer spread risks more."""
    known = set(certificate.recipe["answers"].get("num_examples", ()) if claim.is_measured else ())
    if len(known) == 1 and known.isdisjoint(getattr(answers, "num_examples", np.array([])).tolist()):
        raise ValueError(f"it is of what clients measure on {known.pop()} examples each, and these have other numbers")


def joined(parts: Sequence[Any], *, start: int = 0, stop: int | None = None, **said_now: Any) -> Any:
    """Return answers of one kind as they follow each other, from the client `start` on and up to `stop`.

    Names and groups are kept where all have them; `said_now` holds of all. Raises ValueError if they are of several
    kinds, or a client answers in two of them and repeats are not draws.
    """
    stored, said = zip(*(each.by_client() for each in parts), strict=True)
    columns = set(stored[0]).intersection(*stored)
    num_missing = sum(each.pop("num_missing") for each in said)
    if any(type(each) is not type(parts[0]) for each in parts) or any(each != said[0] for each in said):
        raise ValueError(f"all answers must be of one kind, got {parts[0]!r} and others; keep those apart")
    together = {name: [one for each in stored for one in each[name]][start:stop] for name in columns}
    return type(parts[0])(**together, num_missing=num_missing, **said[0] | said_now)
