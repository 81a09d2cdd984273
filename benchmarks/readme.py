"""Every ratio that README.md states, measured again in this run and printed beside it.

    python -m benchmarks.readme [--without-ray]

Times are of two ways to do the same, on this machine in turn, and of each the least of its repetitions. The table "How
sharp, how fast" is that of `benchmarks.tightness` for 500 clients of 100 examples. A figure is *off* if what is
measured is more than a third above or below it. Three minutes on two cores, most of them for runs on Ray.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
_NUMBER = r"([\d,]*\.?\d+)"
# What is said, with a group for each number, in words between which a line may end.
_SENTENCES = {
    ("quickstart on Ray / trivial app", "quickstart on Ray / trivial app with torch"): (
        rf"{_NUMBER} times as long as a trivial Flower app with as many clients, {_NUMBER} times if"
    ),
    ("KL: cvxpy / ours", "χ²: cvxpy / ours"): rf"about {_NUMBER}× and {_NUMBER}× faster than one cvxpy",
    ("adversarial answer / plain loss",): rf"costs a client {_NUMBER} times a plain loss",
}
# Rows of README's table, as `benchmarks.tightness` calls them.
_ROWS = {
    "mean risk": "mean",
    "worst mean, χ² 0.2": "worst mean, χ² 0.2",
    "worst mean, KL 0.1": "worst mean, KL 0.1",
    "CVaR 0.9: mean of the worst tenth": "CVaR 0.9",
    "P(risk ≥ 0.3)": "P(R ≥ 0.3)",
    "P(measured risk ≥ 0.3)": "P(measured ≥ 0.3)",
    "Gini coefficient (width)": "Gini",
    "coefficient of variation (width)": "coefficient of variation",
    "mean, within a transport budget": "mean, transport 0.02",
    "P(risk ≥ 0.3), within a transport budget": "P(R ≥ 0.3), transport 0.002",
}
_COLUMNS = ("published", "one band", "alone")
# The published bound on the mean stands in the row of another: beside "mean" the table has one that nobody has proved.
_PUBLISHED = {"mean": "mean, committed seed"}


@dataclass(frozen=True)
class Figure:
    """A number of README's, and what it is today."""

    what: str
    stated: float
    measured: float

    @property
    def is_off(self) -> bool:
        """Whether the two are more than a third apart; so is what is no number."""
        return not abs(self.measured - self.stated) <= self.stated / 3.0


def stated_ratios(text: str) -> dict[str, float]:
    """Return the ratios of times in a text, by what they compare; raises ValueError if one is not said any more."""
    found = {}
    for names, pattern in _SENTENCES.items():
        match = re.search(pattern.replace(" ", r"\s+"), text)
        if match is None:
            raise ValueError(f"README.md must say {' and '.join(names)} as benchmarks/readme.py reads it: {pattern}")
        found |= dict(zip(names, map(_number, match.groups()), strict=True))
    return found


def stated_widths(text: str) -> dict[tuple[str, str], float]:
    """Return the numbers of the table by row and column; raises ValueError for a row that is not known here."""
    body = text.partition(f"| what is bounded | {' | '.join(_COLUMNS)} |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    found = {}
    for line in filter(None, body.split("\n")):
        name, *cells = map(str.strip, line.strip("|").split("|"))
        if name not in _ROWS:
            raise ValueError(
                f"the row {name!r} of README's table must have a name in benchmarks/readme.py, and has not"
            )
        numbers = {column: re.match(_NUMBER, cell) for column, cell in zip(_COLUMNS, cells, strict=True)}
        found |= {(name, column): _number(number[0]) for column, number in numbers.items() if number}
    return found


def measured_ratios(*, with_ray: bool) -> dict[str, float]:
    """Measure what `stated_ratios` reads; without Ray, all but two."""
    from benchmarks import adversarial_query, floor, reweighting  # here: who only reads README needs no torch

    found = {"adversarial answer / plain loss": adversarial_query.measured()["answer"].ratio}
    by_divergence = reweighting.measured()
    found |= {f"{title}: cvxpy / ours": by_divergence[name].ratio for title, name in (("KL", "kl"), ("χ²", "chi2"))}
    if with_ray:
        taken = floor.seconds_taken(repeats=2, only=(floor.TRIVIAL, floor.TRIVIAL_WITH_TORCH, floor.OURS))
        ours, trivial, with_torch = (min(taken[each]) for each in (floor.OURS, floor.TRIVIAL, floor.TRIVIAL_WITH_TORCH))
        found["quickstart on Ray / trivial app"] = ours / trivial
        found["quickstart on Ray / trivial app with torch"] = ours / with_torch
    return found


def measured_widths() -> dict[tuple[str, str], float]:
    """Measure the table."""
    from benchmarks import tightness

    cells: dict[str, list[str]] = {}
    for line in tightness.table((500,), (100,), num_networks=6):
        name, _, *columns = map(str.strip, line.strip("|").split("|"))
        cells[name] = columns
    found = {}
    for ours, theirs in _ROWS.items():
        band, alone, _ = cells[theirs]
        published = cells[_PUBLISHED.get(theirs, theirs)][2]
        row = zip(_COLUMNS, (published, band, alone), strict=True)
        found |= {(ours, column): _number(cell) for column, cell in row if re.fullmatch(_NUMBER, cell)}
    return found


def compared(stated: Mapping[object, float], measured: Mapping[object, float]) -> Iterator[Figure]:
    """Yield every number that is stated, beside what was measured; nan where nothing was."""
    for what, number in stated.items():
        name = what if isinstance(what, str) else ", ".join(map(str, what))
        yield Figure(name, number, measured.get(what, float("nan")))


def show(figures: Iterable[Figure]) -> None:
    """Print figures, one a line."""
    for each in figures:
        print(f"{each.what:58} {each.stated:9,.4g} {each.measured:9,.4g}{'  off' if each.is_off else ''}", flush=True)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-ray", action="store_true", help="leave out what takes minutes")
    with_ray = not parser.parse_args().without_ray
    text = README.read_text(encoding="utf-8")
    print(f"{'':58} {'README':>9} {'today':>9}")
    show(compared(stated_widths(text), measured_widths()))
    measured = measured_ratios(with_ray=with_ray)
    show(compared({what: ratio for what, ratio in stated_ratios(text).items() if what in measured}, measured))


if __name__ == "__main__":
    main()
