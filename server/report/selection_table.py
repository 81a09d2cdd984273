"""The section of a report about a choice among candidates, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from server.report.cells import VERDICTS, number, upper_bound

_MET = {True: "yes", False: "no"}
_CHOSEN = " *"
_WIDEST_NAME = 30  # longer ones are folded, none is cut


def selection_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return one table of all candidates; none for other strategies.

    Parameters
    ----------
    report : mapping
        The content of report.json.
    """
    if "selection" not in report:
        return []
    selection, num_unseen = report["selection"], report["unseen"]["num_clients"]
    is_sequence, has_target = selection["method"] == "fixed_sequence", selection["target"] is not None
    # Bounds in a sequence are tested one by one and do not hold together: no "≤" for them.
    terms = [] if is_sequence else list(selection["candidates"][0]["terms"])
    table = Table(title=f"{report['scenario']}: {selection['objective']} of the risks of unseen clients, by candidate")
    longest = max(len(each["candidate"]) + len(_CHOSEN) for each in selection["candidates"])
    table.add_column(f"candidate ({_CHOSEN.strip()} chosen)", overflow="fold", no_wrap=longest <= _WIDEST_NAME)
    for header in ("is at most", *(["tested"] if is_sequence else []), *(f"{name} ≤" for name in terms), "measured"):
        table.add_column(header, justify="right")
    if has_target:
        table.add_column("target met")
    if num_unseen:
        table.add_column(f"on {num_unseen} unseen", justify="right")
        table.add_column("holds")
    for each in selection["candidates"]:
        bounds = [each["bound"]] if is_sequence else [each["terms"][name] for name in terms]
        met = [_MET[each["meets_target"]]] if has_target else []
        checked = [number(each["unseen"]), VERDICTS[each["holds"]]] if num_unseen else []
        name = escape(each["candidate"]) + (_CHOSEN if each["candidate"] == selection["best"] else "")
        table.add_row(
            name, *map(upper_bound, [each["certified_at_most"], *bounds]), number(each["measured"]), *met, *checked
        )
    return [table]


def selection_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What is to be said below the table, line by line; nothing for other strategies."""
    if "selection" not in report:
        return
    selection = report["selection"]
    if selection["certificate"] is None:
        yield (
            f"No candidate is certified to have {selection['objective']} of at most {selection['target']:g}: there is "
            "no certificate, and the bounds that were tested are none."
        )
    else:
        yield report["certificates"][selection["certificate"]]["statement"]
    yield f"How delta was spent: {selection['spending']}."
    if selection["unseen_stand_for"]:
        yield f"The numbers on unseen clients are {selection['unseen_stand_for']}."
