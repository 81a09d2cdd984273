"""`riskband shift`: how far a target network is at least, and what few of its clients add to bounds on its risks."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import riskband as rb
from riskband.answers.ledgers import model_problems
from riskband.answers.responses import ANSWERED_BY
from riskband.checks import check_budget, check_delta, spelled
from riskband.cli.certify import AGAIN, add_columns, add_repeats, write
from riskband.cli.request import how_read, output_problems, problems_of, risks_of, unsaid, wanted_of, who_answered
from riskband.cli.terminal import summary_on_networks
from riskband.report.networks import certified_target, target_requirements
from riskband.report.words import about
from riskband.wording import confidence
from riskband.worst_cases.divergence_bounds import next_estimate
from riskband.worst_cases.number import Number

_USUAL = ["chi2"]
_NUMBERS = "what is bounded of the target: mean, share:0.3, quantile:0.9;"
_INFINITE = " (bins with clients of one network alone; tv and hellinger2 are always finite)"
_OF_ESTIMATES = (
    "This is an estimate and no divergence: it holds if the next network is exchangeable with these, and as many "
    "clients of it are asked."
)


def run(options: argparse.Namespace) -> int:
    """Read the tables, certify what they say of the target network, print that, and write what was asked for."""
    wanted = replace(wanted_of(options, options.num_examples or "1"), keeps_names=True)
    past, who = _files(options.past), {"answered_by": options.answered_by, "repeats": options.repeats}
    files = [options.source, *([options.target] if options.target else []), *past]
    problems = problems_of(
        [
            partial(about, options.about),
            partial(check_delta, options.delta),
            *([partial(check_budget, options.budget)] if options.budget else []),
            *(partial(target_requirements, text) for text in options.require),
            *(partial(Number.of, f"{text}@target:chi2:0") for text in options.number),
        ]
    )
    problems += output_problems(files, options.out)
    problems += unsaid(files, options) + model_problems(files)
    if (options.target is None) != bool(past):
        problems.append("give either one TARGET, or earlier networks by --past; they are two questions")
    if options.number and not options.budget:
        problems.append("--number needs --budget: nothing is said of the target's risks but within a budget")
    if past and (options.out or options.require or options.budget):
        problems.append("--out, --require and --budget need a TARGET: what --past bounds is an estimate")
    source, *others = risks_of(files, wanted, problems, **who)
    if past:
        return _say_next(options, source, dict(zip(past, others, strict=True)))
    say = partial(print, file=sys.stderr) if options.json else print
    (target,) = others
    say(who_answered(files, source, target))
    names = options.divergence or ([] if options.require and not options.budget else _USUAL)
    asked = {"divergence": names, "budget": options.budget, "require": options.require}
    asked |= {"number": options.number or ["mean"]}
    found = certified_target(source, target, delta=options.delta, **asked)
    say(summary_on_networks(found, source, target, how_read=how_read(wanted)))
    write(found, options, say=say)
    return 0 if found.gate is None else found.gate.exit_status


def _files(past: list[str]) -> list[str]:
    """The files, with those of a folder one by one."""
    return [str(each) for path in map(Path, past) for each in (sorted(path.glob("*.*")) if path.is_dir() else [path])]


def _say_next(options: argparse.Namespace, source: rb.ClientRisks, past: dict[str, rb.ClientRisks]) -> int:
    found: dict[str, Any] = {}
    for answers in (source, *past.values()):
        answers.require_independent("an estimate of a divergence")
        answers.responses.require_fixed_number("an estimate of a divergence")
    for name in options.divergence or _USUAL:
        estimates = [rb.divergence_estimate(source.values, each.values, divergence=name) for each in past.values()]
        bound = next_estimate(estimates, alpha=options.alpha)
        known = [each if np.isfinite(each) else None for each in (*estimates, bound)]
        found[name] = {"estimates": dict(zip(past, known, strict=False)), "next_at_most": known[-1]}
        if not options.json:
            among = f"{name}, estimated by histograms of 10 bins, {min(estimates):.4g} to {max(estimates):.4g} so far"
            sure = f"of the next network at most {bound:.4g} with probability at least {confidence(options.alpha)}"
            print(f"{among}: {sure}{_INFINITE * bool(np.isinf(bound))}")
    print(json.dumps({"alpha": options.alpha, "divergence": found}, indent=1) if options.json else _OF_ESTIMATES)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    parser.usage = "riskband shift SOURCE (TARGET | --past FILE ...) [--num-examples N|COLUMN] [options]"
    add = parser.add_argument
    add("source", help="table with one row per client of the source network, or the ledger of a run", metavar="SOURCE")
    add("target", help="the same of some clients of the target network", metavar="TARGET", nargs="?")
    past = "tables of earlier networks, or a folder of them: what is estimated of the next one"
    add("--past", help=past, metavar="FILE", **AGAIN, nargs="+")
    add("--alpha", type=float, default=0.1, help="with --past: probability that the next is larger (default: 0.1)")
    add("--num-examples", metavar="N|COLUMN", help="examples behind each mean, but for ledgers of runs (.jsonl)")
    add_columns(parser)
    add("--answered-by", type=spelled, choices=ANSWERED_BY, help="as for certify (default: fresh)")
    add_repeats(parser, "in both networks")
    add("--delta", type=float, default=0.05, help="probability that anything certified fails (default: 0.05)")
    add("--divergence", type=spelled, choices=sorted(rb.DIVERGENCES), **AGAIN, nargs="+", help="default: chi2")
    within = "if the target is within it: bounds on its risks, and whether the answers refute it"
    add("--budget", type=float, **AGAIN, nargs="+", metavar="SIZE", help=within)
    required = "'mean@target:chi2:0.1<=0.2', 'divergence@target:chi2<=0.1' (FAIL: refuted): exit status 0, 1 or 3"
    add("--number", **AGAIN, nargs="+", metavar="NUMBER", help=f"{_NUMBERS} within each budget (default: mean)")
    add("--require", help=f"PASS, FAIL or NOT DECIDED: {required}", **AGAIN, nargs="+", metavar="NUMBER<=LIMIT")
    add("--out", help="write the certificates, with all that is needed to verify them", metavar="FILE.json")
    add("--json", help="print what --out writes, and nothing else", action="store_true")
    add("--about", help="what the page says of the evaluation: model=...", **AGAIN, nargs="+", metavar="KEY=VALUE")
