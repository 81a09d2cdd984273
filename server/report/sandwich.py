"""The sandwich: between what attacks reached of the clients and what is certified lies what nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from protocol.questions import AdversarialAnswer
from riskband.adversaries.answers import without_gradient
from riskband.adversaries.problem import REPRESENTATION
from riskband.adversaries.registry import input_adversary
from riskband.wording import rounded_up
from strategies.wasserstein import WassersteinResult

_NUM_COSTS = 7  # of a long list of cost budgets, the table shows this many


def unit_words(space: str) -> str:
    """Return what the unit of costs is: known before the model's head, elsewhere only an upper bound of it."""
    makes = "that makes an example" if space == REPRESENTATION else "at which attacks made an example"
    return f"the mean cost {makes} wrong"


def reached_values(result: WassersteinResult) -> dict[str, np.ndarray]:
    """Return the estimates under the names of the certificates, of their shapes, nowhere above them; or nothing.

    A certificate from upper bounds also bounds what attacks reached. So where its formula, whose bets depend on the
    data, happens to give less than the estimate's own, that is the better estimate.
    """
    certificates = result.certificates
    return {name: np.minimum(found.value, certificates[name].value) for name, found in result.reached.items()}


def sandwich_section(result: WassersteinResult) -> dict[str, Any] | None:
    """Return the section ``sandwich`` of a report as plain data; None where the answers have no two sides.

    ``network`` is about the mean risk of a network within each cost budget, at the same delta on both sides;
    ``clients`` about the mean over the clients that answered, when each may spend the same radius.
    """
    reached = reached_values(result)
    if not reached:
        return None
    estimates, certified = reached["wasserstein_mean"], np.asarray(result.certificates["wasserstein_mean"].value)
    replies = result.outcome.answers
    ends = {
        "lower": np.mean([answer.values_lower for answer in replies], axis=0),
        "upper": np.mean([answer.values_upper for answer in replies], axis=0),
    }
    budgets = result.certificates["wasserstein_mean"].axes["cost_budget"]
    return {
        "estimate_is_about": result.reached["wasserstein_mean"].quantity,
        "certificate_is_about": result.certificates["wasserstein_mean"].quantity,
        "network": [
            {"cost_budget": budget, "certificate": above, "estimate": below, "gap": above - below}
            for budget, above, below in zip(budgets.tolist(), certified.tolist(), estimates.tolist(), strict=True)
        ],
        "clients": {"radii": result.answers.radii.tolist(), **{side: each.tolist() for side, each in ends.items()}},
    }


def attacks_section(answers: Iterable[AdversarialAnswer]) -> dict[str, int] | None:
    """Return what is known of how well attacks could see, as plain data; None if no client said."""
    found = without_gradient(answers)
    return None if found is None else {"num_examples_without_gradient": found[0], "num_examples": found[1]}


def attack_note(section: Mapping[str, int] | None) -> str:
    """Return what a legend says of an estimate whose attacks found no gradient at some examples; else nothing."""
    if section is None or section["num_examples_without_gradient"] == 0:
        return ""
    count, size = section["num_examples_without_gradient"], section["num_examples"]
    return f"attacks found no gradient to follow at {count} of {size} examples"


def attack_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to say below the tables if attacks found no gradient at some examples."""
    note = attack_note(report.get("transport", {}).get("attacks"))
    if not note:
        return
    adversary = report["config"]["adversary"]
    kind = input_adversary(adversary)
    if kind is not None and not kind.needs_gradients:
        detail = "random search (the Square Attack) looked there instead, and may miss much"
    else:
        detail = f'{adversary!r} is blind there, and its estimate says nothing of them; use "auto" or "square"'
    yield f"Estimate: {note}; {detail}."


def sandwich_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the table of the sandwich, if a report has one."""
    section = report.get("sandwich")
    if section is None:
        return
    table = Table(title="The sandwich: mean risk on any network within a cost budget")
    table.add_column("cost ≤")
    table.add_column("estimate: what attacks reached", justify="right")
    table.add_column("certificate: is at most", justify="right")
    table.add_column("gap", justify="right")
    rows = section["network"]
    for index in sorted({round(i) for i in np.linspace(0, len(rows) - 1, _NUM_COSTS).tolist()}):
        row = rows[index]
        above = rounded_up(row["certificate"], num_digits=3)  # a bound is never shown smaller than it is
        table.add_row(f"{row['cost_budget']:.3g}", f"{row['estimate']:.3f}", above, f"{row['gap']:.3f}")
    yield table


def sandwich_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to say below the tables, if a report has a sandwich."""
    section = report.get("sandwich")
    if section is not None:
        widest = max(section["network"], key=lambda row: row["gap"])
        yield (
            f"Sandwich: the widest gap is {widest['gap']:.3f}, at cost {widest['cost_budget']:.3g}: attacks reached no "
            "more, and nothing less was proved. Only the upper end is a certificate."
        )
