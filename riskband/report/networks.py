"""What is certified of a target network of which some clients answered, too: how far it is at least, and its risks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from riskband.answers.responses import check_others
from riskband.answers.risks import ClientRisks
from riskband.certificate import Certificate, CrossingError
from riskband.checks import check_budget, check_delta
from riskband.report.findings import Findings, findings
from riskband.report.words import of_two_networks
from riskband.wording import exactly
from riskband.worst_cases.bounds import Networks
from riskband.worst_cases.divergences import resolve_divergence
from riskband.worst_cases.number import DIVERGENCE, TARGET, Number
from riskband.worst_cases.requirements import (
    Requirement,
    certificates_of,
    is_budget_refuted,
    read_requirements,
    verdicts_on,
)
from riskband.worst_cases.target_networks import OTHER_CLIENTS

NO_UPPER_BOUND = (
    "from samples alone nothing bounds a divergence from above: a budget that is not refuted stays an assumption"
)
_REFUTED_BUDGET = "REFUTED: its budget is below the certified divergence, so it says nothing of this target"


def certified_target(
    source: ClientRisks,
    target: ClientRisks,
    *,
    divergence: Iterable[str],
    budget: Sequence[float] = (),
    number: Iterable[str] = ("mean",),
    delta: float,
    require: Sequence[str | Requirement] = (),
    leaves_out: bool = False,
) -> Findings:
    """Return lower bounds of each divergence, which share one part of delta, and bounds on numbers of the target.

    There is one, with a part of delta of its own, for each number ("mean", "share:0.3", "quantile:0.9"), divergence and
    budget, and for each that is required. Raises ValueError as the functions that bound them, or if a requirement is
    about another number; with `leaves_out`, numbers whose bounds contradict their budget are left out instead.
    """
    asked = target_requirements(require)
    names, required = [resolve_divergence(each).name for each in divergence], [each.number for each in asked]
    sizes = check_budget(np.array(budget)).tolist() if len(budget) else []
    within = [Number.of(f"{each}@{TARGET}:{f}:{exactly(size)}") for each in number for f in names for size in sizes]
    asked_within = list(dict.fromkeys([*within, *(each for each in required if each.family != DIVERGENCE)]))
    names += [each.divergence or "" for each in (*required, *asked_within)]
    far = [Number(DIVERGENCE, where=TARGET, divergence=name) for name in dict.fromkeys(names)]  # no budget is unchecked
    part = check_delta(delta) / (len(asked_within) + 1)
    check_others(source.names or (), target, rule=OTHER_CLIENTS)
    found = dict[str, Certificate]()
    for each in asked_within:  # the page begins with the first
        with suppress(*([CrossingError] if leaves_out else [])):
            found |= certificates_of(Networks(source, target), [each], delta=part)
    found |= certificates_of(Networks(source, target), far, delta=part)
    gate = verdicts_on(found, asked, delta=delta) if asked else None
    return findings(found, gate=gate, names=source.names)


def of_networks(found: Findings) -> Iterator[str]:
    """Return what is said of a target network beside its certificates.

    Which budgets are refuted, where its clients add nothing, whether it differs at all, and that no budget is proved.
    """
    given = found.certificates
    yield from (f"{name}: {_REFUTED_BUDGET}" for name, each in given.items() if is_budget_refuted(each, given))
    yield from of_two_networks(given)
    if found.target is not None:
        yield NO_UPPER_BOUND


def target_requirements(require: str | Requirement | Iterable[str | Requirement]) -> list[Requirement]:
    """Return each requirement once; raises ValueError if one cannot be read, or is not about a target network."""
    asked = read_requirements(require)
    if other := [str(each) for each in asked if each.number.where != TARGET]:
        rule = "of a target network 'mean@target:chi2:0.1<=0.2' or 'divergence@target:chi2<=0.1' may be required"
        raise ValueError(f"{rule}, got {', '.join(other)}; ask others of its clients alone: riskband certify")
    return asked
