"""`riskband certify`: certificates from a CSV file with one row per client."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.doors import TableError, Wanted
from riskband.answers.files import FRAMEWORKS, number_or_column, read_risks
from riskband.answers.responses import (
    ANSWERED_BY,
    MISSING,
    check_contamination,
    check_num_missing,
    who_made_the_model,
)
from riskband.bands.band import SIDES
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.bands.methods import MOST_FOR_ALL_RANKS, resolve_level_method
from riskband.bands.pilots import check_pilot_share
from riskband.checks import check_budget, check_delta, check_fraction, spelled
from riskband.cli.asked import DEFAULT_BUDGETS, Asked, certified, document, draw
from riskband.cli.terminal import summary
from riskband.functionals.functional import resolve, resolve_weight
from riskband.functionals.weights import check_tail_level
from riskband.worst_cases.requirements import Requirement

FIGURE_ENDINGS = (".png", ".svg", ".pdf")
DEFAULT_PILOT_SHARE = 0.2


def run(options: argparse.Namespace) -> int:
    """Read the table, make the certificates, print them, and write what was asked for."""
    risks = _checked_risks(options)
    say = partial(print, file=sys.stderr) if options.json else print  # of --json, the output is JSON and nothing else
    say(who_made_the_model(risks.answered_by, option="--answered-by {}"))
    if options.tune:
        seed = 0 if options.seed is None else options.seed
        pilot, risks = rb.split_clients(risks, pilot_share=options.pilot_share, seed=seed)
        options.method = rb.OptimisedLevels(pilot, dict.fromkeys(options.tune, 1.0))
    asked = Asked(**{each.name: _fixed(getattr(options, each.name)) for each in fields(Asked)})
    found = certified(risks, asked)
    if options.tune:
        spent = f"{pilot.num_clients} clients, drawn with seed {seed}, are spent on tuning the band for"
        say(f"{spent} {', '.join(options.tune)}; the certificates rest on the others")
    if not options.json:
        say(summary(found, risks, how_read=_how_read(options), binary=options.binary))
    if options.json or options.out:
        indent = 1 if risks.num_clients <= MOST_FOR_ALL_RANKS else None  # a million lines take minutes
        text = json.dumps(document(found), indent=indent, allow_nan=False)
        if options.json:
            print(text)
        if options.out:
            Path(options.out).write_text(text + "\n", encoding="utf-8")
            say(f"\ncertificates: {options.out} (check them with: riskband verify {options.out})")
    draw(found, asked, title=Path(options.file).name, say=say)
    return 0 if found.gate is None else found.gate.exit_status


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _checked_risks(options: argparse.Namespace) -> rb.ClientRisks:
    """Check the options and read the table, so that the user sees everything that is wrong at once."""
    problems: list[str] = []

    def attempt(check: Callable[[], object]) -> object:
        try:
            return check()
        except TableError as error:
            problems.extend(error.problems)
        except ValueError as error:
            problems.append(str(error))
        return None

    num_missing = options.num_missing or 0
    checks: list[Callable[[], object]] = [
        partial(check_delta, options.delta),
        partial(resolve_level_method, options.method),
        *(partial(resolve_weight, name, called="an objective") for name in options.tune),
        *([partial(check_pilot_share, options.pilot_share)] if options.tune else []),
        partial(check_budget, options.budget),
        partial(check_fraction, "--quantile", options.quantile),
        partial(check_fraction, "--survival", options.survival),
        *(partial(resolve, name, called="measure") for name in options.measure),
        *(partial(Requirement.of, text) for text in options.require),
        *(partial(check_tail_level, level) for level in options.cvar),
        *(partial(check_fraction, name, value) for name, value in _given(options, "target", "at")),
        partial(check_num_missing, num_missing),
        partial(check_contamination, options.contamination),
    ]
    for check in checks:
        attempt(check)
    problems += _wrong_combinations(options) + _wrong_outputs(options)
    risks = attempt(
        lambda: read_risks(
            options.file,
            wanted_of(options),
            framework=options.framework,
            num_missing=num_missing,
            missing=options.missing,
            contamination=options.contamination,
            noise=options.noise,
            answered_by=options.answered_by or ("trainers" if options.framework else "fresh"),
        )
    )
    if problems or not isinstance(risks, rb.ClientRisks):
        raise TableError(list(dict.fromkeys(problems)))  # some checks see the same mistake
    return risks


def wanted_of(options: argparse.Namespace) -> Wanted:
    """What the options say of the table."""
    is_accuracy = options.accuracy or options.percent
    return Wanted(
        number_or_column(options.num_examples),
        loss=None if is_accuracy else options.column,
        accuracy=options.column if is_accuracy else None,
        client=options.client,
        group=options.group,
        percent=options.percent,
        drop_missing=options.drop_missing,
        binary=options.binary,
    )


def _given(options: argparse.Namespace, *names: str) -> list[tuple[str, Any]]:
    """Return the flags among these that were given, with their values."""
    pairs = ((f"--{name.replace('_', '-')}", getattr(options, name)) for name in names)
    return [(flag, value) for flag, value in pairs if value is not None]


def _wrong_combinations(options: argparse.Namespace) -> list[str]:
    tunes, has_ball, has_target = bool(options.tune), bool(options.divergence), options.target is not None
    names_share, names_budget = options.pilot_share != DEFAULT_PILOT_SHARE, options.budget != list(DEFAULT_BUDGETS)
    method_too = f"--tune makes the band, so it cannot be {options.method!r} too; leave out one of the two"
    is_blind = options.missing == "worst" and options.num_missing is None
    rules = [
        (tunes and options.method != "berk_jones", method_too),
        (
            options.at is not None and not has_target,
            "--at needs --target: it says which share of clients the target is for",
        ),
        (names_budget and not has_ball, "--budget needs --divergence: it is the size of a ball in that divergence"),
        (names_share and not tunes, "--pilot-share needs --tune: it is the share of the clients that tuning spends"),
        (has_target and not has_ball, "--target needs --divergence: it asks how much shift the bound allows"),
        (is_blind, "--missing worst needs --num-missing: how many clients were asked and did not answer"),
        (
            options.plot_dispersion and not options.measure,
            "--plot-dispersion needs --measure: it draws the measures, for example gini",
        ),
    ]
    return [text for is_wrong, text in rules if is_wrong]


def _wrong_outputs(options: argparse.Namespace) -> list[str]:
    """What could not be written in the end, found before anything is computed."""
    problems = [] if options.out is None else _file_problems("--out", options.out)
    problems += figure_problems("--plot", options.plot) + figure_problems("--plot-dispersion", options.plot_dispersion)
    named = [options.file, *(path for _, path in _given(options, "out", "plot", "plot_dispersion") if path)]
    if len({Path(path).resolve() for path in named}) < len(named):
        files = "the table, --out, --plot and --plot-dispersion"
        problems.append(f"{files} must be different files; one would overwrite another")
    return problems


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


def _file_problems(flag: str, path: str) -> list[str]:
    if not path or Path(path).is_dir():
        return [f"{flag} must be a file, got {path!r}; add a name for it"]
    folder = Path(path).parent
    if folder.is_dir() and os.access(folder, os.W_OK):
        return []
    rule = f"{flag} must be in a folder that exists and can be written"
    return [f"{rule}, got {path!r}; make {folder} first"]


def _how_read(options: argparse.Namespace) -> str:
    if options.percent:
        return f"column {options.column!r} read as accuracies in percent, loss = 1 - value / 100"
    if options.accuracy:
        return f"column {options.column!r} read as accuracies, loss = 1 - value"
    return f"column {options.column!r} read as losses, where 0 is best (for accuracies say --accuracy)"


class _Collect(argparse.Action):
    """Values of a flag that may be given several times; the first time replaces the default."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        earlier = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if earlier is self.default else earlier), *values])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""

    def add(flag: str, help: str, **settings: Any) -> None:
        parser.add_argument(flag, help=help, **settings)

    def one_of(choices: Iterable[str], default: str) -> dict[str, Any]:
        return {"type": spelled, "choices": tuple(choices), "default": default}

    again = {"action": _Collect, "default": []}  # these may be given several times
    words = again | {"type": spelled, "nargs": "*"}
    levels = again | {"type": float, "nargs": "+"}
    add("file", "table with a header line and one row per client", metavar="FILE.csv")
    frameworks = "FILE is NVFlare's cross_val_results.json, or a folder of FL4Health's reports of clients"
    add("--from", frameworks, dest="framework", type=spelled, choices=tuple(FRAMEWORKS))
    add("--column", "column with each client's mean loss, in [0, 1] (default: loss)", default="loss")
    behind = "examples behind each mean: one number for all clients, or the name of a column"
    add("--num-examples", behind, required=True, metavar="N|COLUMN")
    once = (
        "column that names every client once: the answers keep the names, and no other column is asked whose a row is"
    )
    add("--client", once, metavar="COLUMN")
    add("--group", "column with the group of each client, or nothing", metavar="COLUMN")
    add("--drop-missing", "drop rows without a loss, and count them as missing", action="store_true")
    add("--accuracy", "the column holds accuracies in [0, 1]: loss = 1 - value", action="store_true")
    add("--percent", "the column holds accuracies in percent: loss = 1 - value / 100", action="store_true")
    binary = "every example's loss is 0 or 1 (default: if the means fit; with --noise it must be said)"
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--binary", action="store_const", const=True, help=binary)
    not_binary = "losses lie anywhere in [0, 1]"
    kind.add_argument("--not-binary", dest="binary", action="store_const", const=False, help=not_binary)
    more = "clients that were asked and did not answer, beside those that FILE names (default: 0)"
    add("--num-missing", more, type=int, metavar="N")
    add("--missing", "count them as missing at random (default), or as worst", **one_of(MISSING, "ignore"))
    add("--contamination", "answers that may be wrong in any way (default: 0)", type=int, default=0, metavar="N")
    fresh = "fresh (default, but with --from): the clients had no part in training, tuning or choosing the model"
    trainers = "trainers: they had, so nothing is certified and all bounds are estimates"
    add("--answered-by", f"{fresh}; {trainers}", type=spelled, choices=ANSWERED_BY)
    add("--noise", "noise in the losses: laplace:EPSILON or gaussian:RHO of this column alone", metavar="NAME:BUDGET")
    add(
        "--delta",
        "probability that anything certified fails, shared by what is asked (default: 0.05)",
        type=float,
        default=0.05,
    )
    methods = "band: berk_jones (default), dkw, kolmogorov or truncated:LOW:HIGH"
    add("--method", methods, type=spelled, default="berk_jones")
    add("--tune", "tune the band on a pilot: cvar:0.9, mean, …", metavar="OBJECTIVE", **words | {"nargs": "+"})
    share = "share of the clients that tuning spends (default: 0.2)"
    add("--pilot-share", share, type=float, default=DEFAULT_PILOT_SHARE)
    add("--local", "step to true risks (default: marginal)", **one_of(sorted(LOCAL_STEPS), "marginal"))
    sides = "sides of the band; lower is enough for every bound and sharper, two draws the whole band"
    at_once = "read everything off one band, which has all of delta: sharper than a share of it for many numbers"
    add("--at-once", at_once, action="store_true")
    add("--sides", sides, **one_of((side for side in SIDES if side != "upper"), "lower"))
    add("--mean", "mean risk (default, with --quantile 0.9 and --cvar 0.9, if nothing is asked)", action="store_true")
    add("--quantile", "risk that this share of clients does not exceed", metavar="LEVEL", **levels)
    add("--cvar", "mean of the worst 1 - LEVEL", metavar="LEVEL", **levels)
    add("--survival", "share of clients with at least this risk", metavar="RISK", **levels)
    add("--measure", "from both sides: gini, atkinson:0.5, hoover, cvar:0.9, share:0.3, …", metavar="NAME", **words)
    required = (
        "PASS, FAIL or NOT DECIDED, and exit status 0, 1 or 3: 'quantile:0.9<=0.3', 'worst_mean:chi2:0.1<=0.2', …"
    )
    add("--require", required, nargs="+", metavar="NAME<=LIMIT", **again)
    add("--divergence", "worst cases over this ball", choices=sorted(rb.DIVERGENCES), **words)
    sizes = again | {"default": list(DEFAULT_BUDGETS)}
    add("--budget", "sizes of the ball (default: 0.05 0.1 0.2)", type=float, nargs="+", metavar="SIZE", **sizes)
    add("--target", "report the largest budget at which the bound still holds", type=float, metavar="BOUND")
    add("--at", "the target is for the share of clients with at least this risk", type=float, metavar="RISK")
    orders = "order in which bets see the clients, if fixed before any answer was seen (default: averaged over orders)"
    add("--seed", f"{orders}; draw of the pilot of --tune (default: 0)", type=int)
    add("--out", "write the certificates, with all that is needed to verify them", metavar="FILE.json")
    add("--json", "print what --out writes, and nothing else", action="store_true")
    add("--plot", "draw the band and the worst cases (.png, .svg or .pdf)", metavar="FILE.png")
    add("--plot-dispersion", "draw quantiles, Lorenz curve and the measures of --measure", metavar="FILE.png")
