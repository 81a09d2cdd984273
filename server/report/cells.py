"""Cells that every printed table has: numbers, bounds that are rounded to the safe side, and verdicts."""

from __future__ import annotations

from riskband.wording import rounded_up

VERDICTS = {True: "yes", False: "[bold red]NO[/]", None: "–"}
"""Whether a bound holds on unseen clients; None where that is not known."""


def number(value: float | None) -> str:
    """Return a measured number, a dash for none."""
    return "–" if value is None else f"{value:.3f}"


def upper_bound(value: float | None) -> str:
    """Return an upper bound, rounded up; a dash for none."""
    return "–" if value is None else rounded_up(value, 3)
