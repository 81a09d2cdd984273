"""Secure histograms: the rules of their keys, what a report says of them, and in which words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strategies.asking.replies import RoundOutcome
from strategies.secure.histogram import SIZES, SecureOutcome

STRATEGY = "secure_histogram"

SIZES_RULE = (
    f'use one of {", ".join(SIZES)}; with "private" in the strategy secure_histogram, local is marginal or counted'
)
NEIGHBOURS_RULE = "give an even number; a client shares its secrets with so many others"


def fits_sizes(sizes: str, known: Mapping[str, Any]) -> bool:
    """Return whether numbers of examples may be treated so; `known` are the fields that are not mistakes themselves."""
    is_fine = known.get("strategy") != STRATEGY or sizes == "equal" or known.get("local") not in ("union", "observed")
    return sizes in SIZES and is_fine


def fits_strategy(value: bool | str, known: Mapping[str, Any]) -> bool:
    """Return whether a setting that needs single answers fits the strategy: `resume`, query budgets, or noise."""
    return not value or known.get("strategy") != STRATEGY


def secure_section(outcome: RoundOutcome[Any], *, num_neighbours: int) -> dict[str, Any] | None:
    """Return what a report says of a secure histogram; None for any other outcome.

    Parameters
    ----------
    outcome : RoundOutcome
        Of the run.
    num_neighbours : int
        With how many others a client was to share its secrets.
    """
    if not isinstance(outcome, SecureOutcome):
        return None
    return {
        "num_neighbours": min(num_neighbours, outcome.num_asked - 1),
        "num_late_failures": len(outcome.late_failures),
        "counts": [list(row) for row in outcome.counts],
        # So much may the empirical risks above, which are the upper ends of bins, be too large.
        "bin_width": 1.0 / len(outcome.counts[0]),
    }


def secure_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line about the secure histogram, if there is one."""
    section = report.get("secure_aggregation")
    if section is None:
        return
    what = "risks" if len(section["counts"]) == 1 else "upper limits, lower limits and risks"
    late = section["num_late_failures"]
    yield (
        f"Secure aggregation: of the clients' {what} only the sum of their histograms is known, in bins of width "
        f"{section['bin_width']:g}; each shared its secrets with {section['num_neighbours']} others"
        f"{f'; {late} fell silent after they had been counted' if late else ''}."
    )
