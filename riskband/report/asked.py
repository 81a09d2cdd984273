"""What is asked of answers, and the findings: certificates that share one delta, and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

import riskband as rb
from riskband.answers.scaled import ScaledAnswers
from riskband.certificate import USUAL_DELTA
from riskband.groups.group_bands import smallest_group
from riskband.report.findings import Findings, findings
from riskband.report.words import TAIL_LEVEL
from riskband.worst_cases import requirements
from riskband.worst_cases.number import SHIFTED, Number
from riskband.worst_cases.requirements import Requirement, certificates_of, numbers_behind, verdicts_on

DEFAULT_BUDGETS = (0.05, 0.1, 0.2)  # in chi2 a tenth of the clients may become 0.17, 0.19 and 0.23 of them
TAILS = tuple(map(Number.of, ("quantile:0.5", "quantile:0.9", "cvar:0.9")))
"""What is read off a band that is wanted for itself, unless it was asked for."""

# What is bounded where no number was asked for.
_UNASKED = (Number("mean"), Number("quantile", (TAIL_LEVEL,)), Number("cvar", (TAIL_LEVEL,)))
_CURVE = np.arange(1, 20) / 20  # risks at which a band that is only drawn stands in the file
_MOST_GROUPS = 50  # all share one part of delta; of more, a band of each would say next to nothing


@dataclass(frozen=True)
class Asked:
    """What is asked of answers, by the names of the options of `riskband certify`."""

    delta: float = USUAL_DELTA  # of everything together
    mean: bool = False
    quantile: tuple[float, ...] = ()
    cvar: tuple[float, ...] = ()
    survival: tuple[float, ...] = ()
    measure: tuple[str, ...] = ()
    require: tuple[str | Requirement, ...] = ()
    divergence: tuple[str, ...] = ()
    budget: tuple[float, ...] = DEFAULT_BUDGETS
    next: int | None = None  # so many clients that come next; on shifted networks, if a divergence is named
    population: int | None = None  # of a finite federation: then the next are its others
    target: float | None = None
    at: float | None = None
    method: Any = "berk_jones"  # of the band: a name or levels that were tuned
    local: str = "marginal"
    sides: str = "lower"
    at_once: bool = False
    seed: int | None = None
    band: str = ""  # sides of a band that is wanted for itself: it has a part of delta, too
    groups: bool = False  # whether the groups of the clients have a part, if they allow for one

    @cached_property
    def requirements(self) -> list[Requirement]:
        """What is required, each once."""
        return requirements.read_requirements(self.require)

    @cached_property
    def from_both_sides(self) -> list[Number]:
        """The numbers that are bounded from both sides."""
        measures = map(Number.of, self.measure)
        return list(dict.fromkeys([*numbers_behind(self.requirements), *measures]))

    @cached_property
    def from_above(self) -> list[Number]:
        """The numbers that are bounded from above alone."""
        levels = {"quantile": self.quantile, "cvar": self.cvar, "share": self.survival}
        numbers = [Number(family, (level,)) for family, given in levels.items() for level in given]
        asked = [Number("mean")] * (self.mean and not self.mean_of_others) + numbers
        is_open = not (asked or self.from_both_sides or self.divergence or self.has_next)
        return [each for each in dict.fromkeys(_UNASKED if is_open else asked) if each not in self.from_both_sides]

    @cached_property
    def shifts(self) -> list[dict[str, Any]]:
        """Each divergence and the budget or budgets of its worst mean, but for those of a worst mean required."""
        left = {
            name: budgets_beside(self.from_both_sides, divergence=name, budgets=self.budget)
            for name in (() if self.has_next and not self.mean else self.divergence)
        }
        return [{"divergence": name, "budget": each if each[1:] else each[0]} for name, each in left.items() if each]

    @property
    def has_next(self) -> bool:
        """Whether the next clients are asked for, beside what is required of them."""
        is_required = any(each.number.is_finite for each in self.requirements)
        return self.next is not None or (self.population is not None and not is_required)

    @property
    def mean_of_others(self) -> bool:
        """Whether the mean that is asked for is that of the others of a finite federation."""
        return self.mean and self.population is not None

    @property
    def is_alone(self) -> bool:
        """Whether each number has the sharper bound of its own: unless one band, or a way to make one, is wanted."""
        is_usual = (self.method, self.local, self.sides) == ("berk_jones", "marginal", "lower")
        return is_usual and not self.at_once


def budgets_beside(numbers: Collection[Number], *, divergence: str, budgets: Iterable[float]) -> list[float]:
    """Return the budgets of which no worst mean is among the numbers: what is required is certified once."""
    worst_mean = partial(Number, "mean", where=SHIFTED, divergence=divergence)
    return [size for size in budgets if worst_mean(budget=size) not in numbers]


def certified(answers: rb.ClientRisks, asked: Asked) -> Findings:
    """Return what is found: each number has an equal share of delta, and so has a band if there is one.

    A band is made for what is to hold at once, for what needs one (doubtful answers from both sides, shares of a
    shifted network), and where it is wanted for itself.
    """
    risks = answers.in_order_of_names() if asked.is_alone else answers  # as certificates that bet on them hold them
    is_bet_on = asked.is_alone and risks.are_as_measured  # bets need every answer as it was given
    above, shifts, is_of_groups = asked.from_above, asked.shifts, asked.groups and not groups_problem(risks)
    bet_on = requirements.numbers_alone(asked.from_both_sides, can_bet=is_bet_on)
    off_band = [each for each in asked.from_both_sides if each not in bet_on]
    is_read = (above and not asked.is_alone) or (shifts and not is_bet_on) or asked.at is not None
    is_needed = bool(off_band or asked.band or is_read)
    num_alone = len(above) * asked.is_alone + len(bet_on) + len(shifts) * is_bet_on + is_of_groups
    of_next = (asked.divergence or (None,)) if asked.has_next else ()
    mean_of_others = asked.mean_of_others and not (of_next and is_one_next(risks, asked.next, asked.population))
    num_parts = num_alone + len(of_next) + mean_of_others + is_needed
    is_of_few = above == list(_UNASKED) and asked.is_alone and are_few(risks, delta=asked.delta / num_parts)
    above, num_parts = ([Number("mean")], num_parts - len(_UNASKED) + 1) if is_of_few else (above, num_parts)
    found, part = dict[str, rb.Certificate](), asked.delta / num_parts
    has_both_sides = "two" in (asked.sides, asked.band) or (off_band and not is_bet_on)
    band = _band(risks, asked, delta=part, sides="two" if has_both_sides else "lower") if is_needed else None
    alone: dict[str, Any] = {"delta": part, "seed": asked.seed if risks.are_as_measured else None}
    found |= {str(each): _above(each, risks if asked.is_alone or band is None else band, **alone) for each in above}
    found |= certificates_of(risks, bet_on, delta=part, population=asked.population)
    source, terms = (risks, alone) if is_bet_on or band is None else (band, {})
    found |= _by_name(rb.worst_case_mean(source, **shift, **terms) for shift in shifts)
    if band is not None:
        found |= certificates_of(band, off_band, delta=None)
        found |= _by_name(rb.worst_case_cdf(band, **shift) for shift in shifts)
        tails = TAILS[: 1 if is_of_few else None] if asked.band else ()
        found |= {str(each): rb.bound(band, each) for each in tails if str(each) not in found}
        if not any(each.event == "band" for each in found.values()):  # what is drawn has its part of delta in the file
            found["curve"] = rb.survival(band, thresholds=_CURVE)
    found |= _by_name(_next(risks, asked, divergence, delta=part) for divergence in of_next)
    if mean_of_others:
        found |= _by_name([_next(risks, asked, None, delta=part, mean=True)])
    if is_of_groups:
        bands = rb.group_bands(risks, risks.groups or (), delta=part)
        found["worst group"] = rb.group_certificate(bands, "worst_group", "mean")
    found |= next_of_few(risks) if is_of_few else {}
    return findings(
        found,
        gate=verdicts_on(found, asked.requirements, delta=asked.delta) if asked.requirements else None,
        limits=() if asked.target is None else [(asked.target, asked.at)],
        unbounded=[name for name in map(str, asked.from_both_sides) if name not in found],
        names=risks.names,
        band=band,
    )


def is_one_next(answers: rb.ClientRisks | ScaledAnswers, num_next: int | None, population: int | None) -> bool:
    """Return whether one client is next: the mean of those that are next is then their largest."""
    return (num_next or (population or 0) - answers.num_clients) == 1


def are_few(risks: rb.ClientRisks | ScaledAnswers, *, delta: float) -> bool:
    """Return whether clients are too few for a bound on their tail with this part of delta: then the next one is said.

    That is bounded by ranks, which need every answer as it was measured.
    """
    is_ranked = risks.are_independent and risks.are_as_measured
    return is_ranked and risks.num_clients < rb.num_clients_needed(TAIL_LEVEL, delta=delta)


def next_of_few(answers: rb.ClientRisks | ScaledAnswers) -> dict[str, rb.Certificate]:
    """Return what the next client measures by the first rank, which nobody's delta pays for: it stands beside that."""
    return {"next_client": rb.next_clients(answers, 1, rank=1)}


def _by_name(certificates: Iterable[rb.Certificate]) -> dict[str, rb.Certificate]:
    return {each.name: each for each in certificates}


def _next(
    risks: rb.ClientRisks, asked: Asked, divergence: str | None, *, delta: float, mean: bool = False
) -> rb.Certificate:
    """What the next clients would measure, without a shift and with each budget; of noisy answers their true risks."""
    budget = 0.0 if divergence is None else list(dict.fromkeys([0.0, *asked.budget]))
    local = "observed" if risks.noise is None else "marginal"
    shift: dict[str, Any] = {"divergence": divergence, "budget": budget, "population": asked.population}
    return rb.next_clients(risks, asked.next, delta=delta, local=local, mean=mean, **shift)


def _above(number: Number, source: rb.ClientRisks | rb.Band, *, delta: float, seed: int | None) -> rb.Certificate:
    """The sharpest bound from above, from answers with so much of delta, or off a band."""
    if isinstance(source, rb.Band):
        return rb.bound(source, number)
    order: dict[str, Any] = {"seed": seed} if number.family in ("mean", "cvar") else {}
    return rb.bound(source, number, delta=delta, **order)


def groups_problem(risks: rb.ClientRisks) -> str:
    """Say why no groups of the clients can be bounded; "" if they can."""
    sizes, least = Counter(filter(None, risks.groups or ())).values(), smallest_group(risks.contamination)
    if 1 < len(sizes) <= _MOST_GROUPS and min(sizes) >= least:
        return ""
    rule = f"that needs 2 to {_MOST_GROUPS} groups of {least} or more clients each"
    return f"{rule}, got {len(sizes)} groups, the smallest of {min(sizes, default=0)}"


def _band(risks: rb.ClientRisks, asked: Asked, *, delta: float, sides: str) -> rb.Band:
    # None is the default, which of very many clients constrains few ranks.
    method = None if asked.method == "berk_jones" else asked.method
    return rb.band(risks, delta=delta, method=method, local=asked.local, sides=sides)
