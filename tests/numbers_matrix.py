"""What can be asked of which answers, as docs/numbers.md prints it: ``python -m tests.numbers_matrix`` writes the page.

Everything is read off the table of bounds; only the headings and the example of each population are said here.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from riskband.worst_cases.always_valid import is_direct
from riskband.worst_cases.bounds import BOUNDS, CALLED
from riskband.worst_cases.number import ALL, COST, NEXT, OTHERS, SHIFTED, TARGET, UNSEEN, Number

PAGE = Path(__file__).parent.parent / "docs" / "numbers.md"
BEGIN, END = "<!-- written by python -m tests.numbers_matrix -->", "<!-- until here -->"

POPULATIONS = {
    UNSEEN: "unseen clients",
    SHIFTED: "`@chi2:0.1`",
    COST: "`@cost:0.5`",
    TARGET: "`@target:chi2:0.1`",
    NEXT: "`@next:20`",
    OTHERS: "`@others:55`",
    ALL: "`@all:55`",
}


def kinds_of(family: str, where: str) -> tuple[type, ...]:
    """The kinds of answers that a functional of a population can be asked of."""
    rows = [row for row in BOUNDS if row.where == where and family in row.families]
    return tuple(kind for kind in CALLED if any(kind in row.answers for row in rows))


def at_all_times(family: str, where: str) -> str:
    """Whether `rb.Sequence` bounds it, by bets or off a band."""
    if where not in (UNSEEN, SHIFTED):
        return ""
    if is_direct(Number(family, (0.5,), where, None, "chi2" if where else None, 0.1 if where else None)):
        return "by bets"
    return "off bands" if family != "example_mean" else ""


def rows() -> list[tuple[str, ...]]:
    """One row for functionals of one population that can be asked of the same answers."""
    found = []
    for where in POPULATIONS:
        families = list(dict.fromkeys(name for row in BOUNDS if row.where == where for name in row.families))
        for (kinds, always), names in itertools.groupby(
            families, key=lambda family: (kinds_of(family, where), at_all_times(family, where))
        ):
            cells = ["yes" if kind in kinds else "" for kind in CALLED]
            found.append((", ".join(f"`{name}`" for name in names), POPULATIONS[where], *cells, always))
    return found


def matrix() -> str:
    """The table in markdown."""
    heads = ("functional", "of", *CALLED.values(), "at all times")
    lines = [heads, ("---",) * len(heads), *rows()]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  ", "| ") for cells in lines)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{matrix()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    sys.stdout.write(matrix() + "\n")
