"""What is certified of a target network of which some clients answered, too: how far it is at least, and its mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from riskband.answers.risks import ClientRisks
from riskband.checks import check_budget, check_delta
from riskband.report.findings import Findings, findings
from riskband.wording import exactly
from riskband.worst_cases.divergence_bounds import bands_of_both, divergence_lower_bound
from riskband.worst_cases.divergences import resolve_divergence
from riskband.worst_cases.requirements import (
    DIVERGENCE,
    TARGET_MEAN,
    Networks,
    Requirement,
    certificates_of,
    read_requirements,
    verdicts_on,
)

NO_UPPER_BOUND = (
    "from samples alone nothing bounds a divergence from above: a budget that is not refuted stays an assumption"
)
REFUTED_BUDGET = "REFUTED: its budget is below the certified divergence, so it says nothing of this target"


def certified_target(
    source: ClientRisks,
    target: ClientRisks,
    *,
    divergence: Iterable[str],
    budget: Sequence[float] = (),
    delta: float,
    require: Sequence[str | Requirement] = (),
) -> Findings:
    """Return lower bounds of each divergence, which share one part of delta, and bounds on the target's mean.

    There is one, with a part of delta of its own, for each divergence and budget, and for each that is required.
    Raises ValueError as the functions that bound them, or if a requirement is about another number.
    """
    asked = target_requirements(require)
    names, required = [resolve_divergence(each).name for each in divergence], [each.name for each in asked]
    sizes = check_budget(np.array(budget)).tolist() if len(budget) else []
    means = [f"{TARGET_MEAN}:{name}:{exactly(size)}" for name in names for size in sizes]
    means = list(dict.fromkeys([*means, *(name for name in required if name.startswith(TARGET_MEAN))]))
    part = check_delta(delta) / (len(means) + 1)
    both = bands_of_both(source, target, delta=part)
    names = list(dict.fromkeys([*names, *(name.split(":")[1] for name in required)]))  # a budget is never unchecked
    found = certificates_of(Networks(source, target), means, delta=part)  # the page begins with the first
    found |= {f"{DIVERGENCE}:{name}": divergence_lower_bound(*both, divergence=name) for name in names}
    gate = verdicts_on(found, asked, delta=delta) if asked else None
    return findings(found, gate=gate, names=source.names)


def target_requirements(require: str | Requirement | Iterable[str | Requirement]) -> list[Requirement]:
    """Return each requirement once; raises ValueError if one cannot be read, or is not about a target network."""
    asked = read_requirements(require)
    if other := [str(each) for each in asked if each.name.partition(":")[0] not in (TARGET_MEAN, DIVERGENCE)]:
        rule = f"of a target network '{TARGET_MEAN}:chi2:0.1<=0.2' or '{DIVERGENCE}:chi2<=0.1' may be required"
        raise ValueError(f"{rule}, got {', '.join(other)}; ask others of its clients alone: riskband certify")
    return asked
