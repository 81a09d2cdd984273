"""What a user asks of `riskband certify`, taken out of the options once, and all that is wrong with it at once."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import riskband as rb
from riskband.answers.doors import TableError, Wanted
from riskband.answers.evaluations import EVALUATIONS
from riskband.answers.files import FRAMEWORKS, UNSAID, number_or_column, read_risks, read_scores
from riskband.answers.ledgers import is_ledger
from riskband.answers.responses import (
    ANSWERED_BY,
    Answers,
    WhoAnswered,
    check_contamination,
    check_missing,
    check_num_missing,
    who_made_the_model,
)
from riskband.bands.methods import resolve_level_method
from riskband.bands.pilots import check_pilot_share
from riskband.checks import check_budget, check_count, check_delta, check_fraction
from riskband.functionals.functional import resolve_weight
from riskband.functionals.weights import check_tail_level
from riskband.report.asked import DEFAULT_BUDGETS, Asked
from riskband.report.words import about
from riskband.worst_cases.number import Number
from riskband.worst_cases.requirements import Requirement, read_requirements

T = TypeVar("T")
_OF_A_RUN = 'answered-by = "{}" in the configuration of the run'
_OF_SCORES = ("delta", "mean", "quantile", "survival", "require", "divergence", "budget", "next", "population")
_OF_LOSSES = {"num_examples": 1.0, "group": None, "accuracy": None, "percent": False, "binary": None}
_OF_DESIGN = ("stratum", "shares", "sampling_weight", "largest_weight", "cluster")
_OF_LOSSES |= dict.fromkeys(_OF_DESIGN)
FIGURE_ENDINGS = (".png", ".svg", ".pdf")
DEFAULT_PILOT_SHARE = 0.2  # of the clients; the bounds, which are made of the others, widen by about a tenth


@dataclass(frozen=True)
class Request:
    """A table, who answered, what is asked of the answers, and what is written."""

    given: argparse.Namespace  # all options, of several equal values of one the first
    wanted: Wanted
    who: WhoAnswered
    asked: Asked
    about: dict[str, str] = field(default_factory=dict)  # what the file says of the evaluation, once it is read

    @classmethod
    def of(cls, options: argparse.Namespace) -> Request:
        """Take the options apart."""
        given: dict[str, Any] = {
            name: tuple(dict.fromkeys(each)) if isinstance(each, list) and name != "range" else each
            for name, each in vars(options).items()
        }
        said = {name: given[name] for name in WhoAnswered.__annotations__ if given.get(name) is not None}
        who: Any = {"answered_by": "trainers"} if options.framework in FRAMEWORKS else {}
        who |= ({"missing": "worst"} if options.on_error == "missing" else {}) | said  # errors are no chance
        band = "two" if options.plot_dispersion else "lower" if options.plot else ""
        given |= {"band": band, "groups": options.group is not None, "budget": given["budget"] or DEFAULT_BUDGETS}
        asked = Asked(**{each.name: given[each.name] for each in fields(Asked)})
        if options.score is None and (problems := unsaid([options.file], options)):
            raise TableError(problems)
        return cls(argparse.Namespace(**given), wanted_of(options, options.num_examples or "1"), who, asked)

    def risks(self) -> rb.ClientRisks:
        """Read the table; raises `TableError` with all that is wrong with it and with what is asked."""
        problems = problems_of(self._checks()) + score_problems(self.given, self.wanted) + self._contradictions()
        said = self.given
        read = partial(read_risks, said.file, self.wanted, noise=said.noise, **self._of_file, **self.who)
        return answers_of(read, problems)

    def scores(self) -> rb.ClientScores:
        """Read a table of scores; raises `TableError` with all that is wrong with it and with what is asked."""
        usual, said = Asked(delta=self.asked.delta), self.given
        refused = [each.name for each in fields(Asked) if each.name not in _OF_SCORES]
        given = [name for name in refused if getattr(self.asked, name) != getattr(usual, name)]
        given += [name for name in ("noise", "tune", "plot", "plot_dispersion") if getattr(said, name)]
        given = [name for name in given if name not in ("band", "groups")]
        problems = self._contradictions()
        problems += problems_of(self._checks())
        if len(self.asked.divergence) > 1:
            problems.append(f"--score takes one --divergence, got {', '.join(self.asked.divergence)}; ask for each")
        problems += score_problems(said, self.wanted, given)
        read = partial(read_scores, said.file, self.wanted, name=str(said.score), **self._of_file, **self.who)
        return answers_of(partial(read, higher_is_better=bool(said.higher_is_better), ends=tuple(said.range)), problems)

    @property
    def _of_file(self) -> dict[str, Any]:
        return {"framework": self.given.framework, "on_error": self.given.on_error, "about": self.about}

    @property
    def of_scores(self) -> dict[str, Any]:
        """What is asked of scores, as `certified_on_scale` takes it."""
        asked = self.asked
        levels = [Number("quantile", (level,)) for level in asked.quantile]
        shares = [Number("share", (threshold,)) for threshold in asked.survival]
        numbers = [*[Number("mean")] * (asked.mean and not asked.mean_of_others), *levels, *shares]
        shift = {"divergence": asked.divergence[0], "budget": list(asked.budget)} if asked.divergence else {}
        of_next = {"num_next": asked.next, "population": asked.population, "mean_of_others": asked.mean_of_others}
        return {"delta": asked.delta, "numbers": numbers, "require": asked.require, **of_next, **shift}

    def _checks(self) -> list[Callable[[], object]]:
        asked, said = self.asked, self.given
        single = {"--target": asked.target, "--at": asked.at}
        return [
            partial(check_delta, asked.delta),
            partial(resolve_level_method, asked.method),
            *(partial(resolve_weight, name, called="an objective") for name in said.tune),
            *([partial(check_pilot_share, said.pilot_share)] if said.tune else []),
            partial(check_budget, asked.budget),
            partial(check_fraction, "--quantile", asked.quantile),
            *([partial(check_fraction, "--survival", asked.survival)] if said.score is None else []),
            *(partial(Number.of, name) for name in asked.measure),
            *(partial(read_requirements if said.score is None else Requirement.of, text) for text in asked.require),
            *(partial(check_tail_level, level) for level in asked.cvar),
            *(partial(check_fraction, name, value) for name, value in single.items() if value is not None),
            partial(about, said.about),
            *(
                partial(check_count, name, value, minimum=1, remedy="it counts clients")
                for name, value in (("--next", asked.next), ("--population", asked.population))
                if value is not None
            ),
            partial(check_missing, self.who.get("missing", "ignore")),
            partial(check_num_missing, self.who.get("num_missing", 0)),
            partial(check_contamination, self.who.get("contamination", 0)),
        ]

    def _contradictions(self) -> list[str]:
        """What does not go together, or could not be written in the end, found before anything is computed."""
        asked, said, has_ball = self.asked, self.given, bool(self.asked.divergence)
        tunes, missing = bool(said.tune), self.who.get("missing", "ignore")
        is_counted = "num_missing" in self.who or self.wanted.drop_missing or is_ledger(said.file, said.framework)
        method_too = f"--tune makes the band, so it cannot be {asked.method!r} too; leave out one of the two"
        target, at = asked.target is not None, asked.at is not None
        pilot, dispersion = said.pilot_share != DEFAULT_PILOT_SHARE, said.plot_dispersion is not None
        is_counted |= said.on_error is not None
        blind = missing != "ignore" and not is_counted
        rules = [
            (tunes and asked.method != "berk_jones", method_too),
            (at and not target, "--at needs --target: it says which share of clients the target is for"),
            (asked.budget != DEFAULT_BUDGETS and not has_ball, "--budget needs --divergence: it is its size"),
            (
                asked.population is not None and has_ball,
                "--population takes no --divergence: the other clients are what they are; leave one of the two out",
            ),
            (pilot and not tunes, "--pilot-share needs --tune: it is the share of the clients that tuning spends"),
            (target and not has_ball, "--target needs --divergence: it asks how much shift the bound allows"),
            (
                target and has_ball and asked.has_next and not (asked.mean or at),
                "--target needs --mean beside --next: it asks how much shift the bound on the mean allows; add --mean",
            ),
            (blind, f"--missing {missing} needs --num-missing: how many were asked and did not answer"),
            (
                said.on_error is not None and said.framework not in EVALUATIONS,
                f"--errors needs --from {' or '.join(EVALUATIONS)}: tables hold no errors",
            ),
            (dispersion and not asked.measure, "--plot-dispersion needs --measure: it draws these, such as gini"),
        ]
        tables = [said.file, *([self.wanted.shares] if isinstance(self.wanted.shares, str) else [])]
        unwritable = output_problems(tables, said.out, plot=said.plot, plot_dispersion=said.plot_dispersion)
        return [text for is_wrong, text in rules if is_wrong] + unwritable


def wanted_of(options: argparse.Namespace, num_examples: str) -> Wanted:
    """Return what the options say of a table's columns."""
    is_accuracy = options.accuracy or options.percent
    names = ("client", "percent", "drop_missing", "binary", "group", *_OF_DESIGN)
    said: dict[str, Any] = {name: getattr(options, name, None) for name in names}
    return Wanted(
        number_or_column(num_examples),
        loss=None if is_accuracy else options.column,
        accuracy=options.column if is_accuracy else None,
        is_score=getattr(options, "score", None) is not None,
        **said,
    )


def score_problems(options: Any, wanted: Wanted, given: Iterable[str] = ()) -> list[str]:
    """Return why `score`, `higher_is_better` and `range` do not go together, or with what else is given."""
    if options.score is None:
        is_said = options.higher_is_better is not None or list(options.range) != [0.0, 1.0]
        rule = "--higher-is-better, --lower-is-better and --range need --score; of accuracies say --accuracy"
        return [rule] if is_said else []
    names = [*given, *(name for name, unsaid in _OF_LOSSES.items() if getattr(wanted, name) != unsaid)]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    problems = [f"{flags} needs losses with their numbers of examples: not for --score"] if flags else []
    if options.higher_is_better is None:
        problems.append("--score needs --higher-is-better or --lower-is-better: which end is the bad one")
    return problems


def risks_of(files: Iterable[str], wanted: Wanted, problems: list[str], **who: Any) -> list[rb.ClientRisks]:
    """Read tables of the same columns, and ledgers, which know theirs.

    Of `who` answered only what is said. Raises `TableError` with the problems and those that reading meets.
    """
    found, files = [], list(files)
    said = {name: value for name, value in who.items() if value is not None}
    has_tables = not all(map(is_ledger, files))
    for file in files:
        try:
            found.append(read_risks(file, UNSAID if has_tables and is_ledger(file) else wanted, **said))
        except TableError as error:
            problems += named(file, error)
    return answers_of(lambda: found, problems)


def unsaid(files: Iterable[str], options: Any) -> list[str]:
    """Return what must be said of tables, and is not; the ledger of a run knows it."""
    rule = "--num-examples must say how many examples are behind each mean, got none; the ledger of a run knows it"
    framework = getattr(options, "framework", None)
    has_tables = framework not in EVALUATIONS and not all(is_ledger(file, framework) for file in files)
    return [rule] if options.num_examples is None and has_tables else []


def named(file: str, error: TableError) -> list[str]:
    """Return its problems, each with the file that it is of; what begins with an option is of all files."""
    return [line if line.startswith(("--", file)) else f"{file}: {line}" for line in error.problems]


def who_answered(files: Iterable[str], *answers: Answers, framework: str | None = None) -> str:
    """Return who is taken to have answered, trainers as soon as any did, and how to say otherwise."""
    by_whom = max((each.answered_by for each in answers), key=ANSWERED_BY.index)
    are_ledgers = all(is_ledger(file, framework) for file in files)
    return who_made_the_model(by_whom, option=_OF_A_RUN if are_ledgers else "--answered-by {}")


def how_read(wanted: Wanted) -> str:
    """Return how the losses were read, as a part of a sentence."""
    if wanted.accuracy is None:
        return f"column {wanted.column!r} read as losses, where 0 is best (for accuracies say --accuracy)"
    unit, value = ("accuracies in percent", "value / 100") if wanted.percent else ("accuracies", "value")
    return f"column {wanted.column!r} read as {unit}, loss = 1 - {value}"


def figure_problems(flag: str, path: str | None) -> list[str]:
    """Return why no figure can be written where a flag says; none without the flag."""
    if path is None:
        return []
    problems = _file_problems(flag, path)
    if Path(path).suffix.lower() not in FIGURE_ENDINGS:
        problems.append(f"{flag} must end in one of {', '.join(FIGURE_ENDINGS)}, got {path!r}")
    if importlib.util.find_spec("matplotlib") is None:
        problems.append('figures need matplotlib, which is not installed; run: pip install "riskband[plots]"')
    return problems


def output_problems(
    tables: list[str], out: str | None, *, page: str | None = None, prometheus: str | None = None, **plots: str | None
) -> list[str]:
    """Return what could not be written in the end: no folder, another ending, or one file would overwrite another."""
    written = {"--out": out, "--page": page, "--prometheus": prometheus}
    problems = [line for flag, path in written.items() if path is not None for line in _file_problems(flag, path)]
    for name, path in plots.items():
        problems += figure_problems(f"--{name.replace('_', '-')}", path)
    named = list(filter(None, [*tables, *written.values(), *plots.values()]))
    if len({Path(path).resolve() for path in named}) < len(named):
        problems.append(f"tables and what is written must be different files, got {', '.join(named)}; name others")
    return problems


def _file_problems(flag: str, path: str) -> list[str]:
    if not path or Path(path).is_dir():
        return [f"{flag} must be a file, got {path!r}; add a name for it"]
    folder = Path(path).parent
    if folder.is_dir() and os.access(folder, os.W_OK):
        return []
    rule = f"{flag} must be in a folder that exists and can be written"
    return [f"{rule}, got {path!r}; make {folder} first"]


def answers_of(read: Callable[[], T], problems: list[str]) -> T:
    """Return what is read; raises `TableError` with the problems and those that reading meets, each once."""
    try:
        answers = read()
    except TableError as error:
        problems += error.problems
    if problems:
        raise TableError(list(dict.fromkeys(problems)))  # some checks see the same mistake
    return answers


def problems_of(checks: list[Callable[[], object]]) -> list[str]:
    """Return what each check that fails says."""
    problems = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            problems.append(str(error))
    return problems
