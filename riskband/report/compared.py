"""What is asked of changes between two models, or of scores, and the findings: they share one delta."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import ClientChanges, ClientScores, ScaledAnswers
from riskband.certificate import USUAL_DELTA, Certificate
from riskband.checks import check_choice, check_delta
from riskband.functionals.quantiles import SINGLE_LOCAL
from riskband.report.asked import are_few, is_one_next, next_of_few
from riskband.report.findings import Findings, findings
from riskband.worst_cases import requirements
from riskband.worst_cases.bounds import bound
from riskband.worst_cases.next_clients import next_clients
from riskband.worst_cases.number import Number
from riskband.worst_cases.requirements import Requirement, certificates_of, numbers_behind

USUAL_CHANGES = ("mean", "share:0.05")  # where nothing is asked; a rise by 0.05 is five more errors in a hundred
_UNASKED = {ClientChanges: USUAL_CHANGES, ClientScores: ("mean",)}


def compare(
    old: ClientRisks | ClientChanges,
    new: ClientRisks | Mapping[str, ClientRisks] | None = None,
    *,
    delta: float = USUAL_DELTA,
    numbers: Iterable[str | Number] = (),
    require: Iterable[str | Requirement] | str = (),
    num_next: int | None = None,
    population: int | None = None,
    divergence: str | None = None,
    budget: float | list[float] = 0.0,
    local: str = "marginal",
) -> Any:
    """Say how much worse, or better, a new model is than an old one at clients that nobody has asked.

    Parameters
    ----------
    old, new : ClientRisks
        What the same clients measured of either model. Or `old` alone: `ClientChanges`. Or several new models by name:
        they share delta equally, and the outcome is a mapping.
    delta : float
        Probability that anything of it fails, in (0, 1); shared equally by what is asked. If nothing is, and few
        clients answered, what their ranks say of the next one stands beside it, with a probability of its own.
    numbers : iterable of str
        What is bounded from above, as `bound` reads it. By default, if nothing else is asked, the mean change
        and the share of clients that get worse by more than 0.05; of few clients the next one instead of the latter.
    require : iterable of str
        Requirements such as "change<=0.01" (non-inferiority) and "harmed:0.02<=0.1" (do no harm).
    num_next, population, divergence, budget :
        As for `next_clients`; with a divergence and without these two, the worst mean change at each budget.
    local : {"marginal", "observed"}
        Whether shares and quantiles are of the clients' true changes, or of those that they would measure.

    Returns
    -------
    Findings
        Certificates by name, the verdicts, and the assumptions of all of it; of several models one for each name.

    Raises
    ------
    ValueError
        As for `ClientChanges.between`, `bound`, `next_clients` and `require`.

    Examples
    --------
    >>> import riskband as rb
    >>> old = rb.ClientRisks([0.10, 0.20, 0.15, 0.12] * 10, 100)
    >>> new = rb.ClientRisks([0.08, 0.19, 0.15, 0.10] * 10, 100)
    >>> rb.compare(old, new, require=["change<=0.1"]).gate.verdict
    'PASS'
    """
    asked: dict[str, Any] = {"numbers": numbers, "require": require, "num_next": num_next, "population": population}
    asked |= {"divergence": divergence, "budget": budget, "local": check_choice("local", local, SINGLE_LOCAL)}
    if isinstance(new, Mapping):
        if not new:
            raise ValueError("there must be a new model, got an empty mapping; give new models by name")
        part = check_delta(delta) / len(new)
        return {name: compare(old, each, delta=part, **asked) for name, each in new.items()}
    if new is None:
        if not isinstance(old, ClientChanges):
            raise ValueError("a comparison needs two models, got answers of one; give ClientChanges, or old and new")
        return certified_on_scale(old, delta=delta, **asked)
    if isinstance(old, ClientChanges):
        raise ValueError("changes are of two models already; leave the second argument out")
    return certified_on_scale(ClientChanges.between(old, new), delta=delta, **asked)


def certified_on_scale(
    answers: ScaledAnswers,
    *,
    delta: float,
    numbers: Iterable[str | Number] = (),
    require: Iterable[str | Requirement] | str = (),
    num_next: int | None = None,
    population: int | None = None,
    divergence: str | None = None,
    budget: float | list[float] = 0.0,
    local: str | None = None,
    mean_of_others: bool = False,
) -> Findings:
    """Return what is found of changes or scores: each number, and the next clients, with an equal part of delta.

    `local` is for changes alone: nothing but what clients measure is known of scores.
    """
    check_delta(delta)
    gated = requirements.read_requirements(require, answers.scale)
    behind = numbers_behind(gated)
    several = [numbers] if isinstance(numbers, str) or not isinstance(numbers, Iterable) else numbers
    asked = list(map(Number.of, several))
    for number in asked:
        number.check(answers.scale)
    is_next_required = any(each.number.is_finite for each in gated)
    has_next = num_next is not None or (population is not None and not is_next_required)
    is_unasked, found = not (asked or gated or has_next or divergence), dict[str, Certificate]()
    is_of_few = is_unasked and are_few(answers, delta=delta / len(_UNASKED[ClientChanges]))
    if is_unasked:
        asked = list(map(Number.of, _UNASKED[type(answers)]))[: 1 if is_of_few else None]
    if divergence is not None and not has_next:
        asked += [Number.of(f"mean@{divergence}:{size:.15g}") for size in np.ravel(budget).tolist() if size]
    if not has_next and (divergence is None) == np.any(budget):
        raise ValueError(
            f"a divergence and a budget above 0 go together, got {divergence!r:.80} and {budget!r:.80}; say "
            "divergence='chi2', budget=0.1"
        )
    asked = [number for number in dict.fromkeys(asked) if number not in behind]
    mean_of_others &= not (has_next and is_one_next(answers, num_next, population))
    part = delta / (len(asked) + len(behind) + has_next + mean_of_others)
    of_true = {} if local is None else {"local": local}
    found |= {str(number): bound(answers, number, delta=part, **of_true) for number in asked}
    found |= certificates_of(answers, behind, delta=part, population=population, local=local)
    shift: dict[str, Any] = {} if divergence is None else {"divergence": divergence, "budget": budget}
    for more in [shift] * has_next + [{"mean": True}] * mean_of_others:
        of_next = next_clients(answers, num_next, delta=part, population=population, **more)
        found[of_next.name] = of_next
    found |= next_of_few(answers) if is_of_few else {}
    gate = requirements.verdicts_on(found, gated, delta=delta) if gated else None
    return findings(found, gate=gate, names=answers.names)
