"""`riskband plan`: how many clients, with how many examples each, a requirement needs to pass."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

import riskband as rb
from riskband.answers.files import read_scores
from riskband.answers.ledgers import is_ledger
from riskband.cli.certify import add_columns, add_score
from riskband.cli.request import answers_of, figure_problems, problems_of, risks_of, score_problems, wanted_of
from riskband.worst_cases.planning import DEFAULT_POWER, Option, Pilot, Plan, checks_of


def run(options: argparse.Namespace) -> int:
    """Read the pilot, if there is one, make the plan, and print it."""
    names = ("delta", "shift", "prior", "num_examples", "num_clients", "population", "power", "cost", "seed")
    asked: dict[str, Any] = {name: getattr(options, name) for name in names}
    asked["binary"] = None if options.pilot else options.binary  # the pilot knows it
    problems = figure_problems("--plot", options.plot) + problems_of(checks_of(options.target, asked))
    plan = rb.plan(options.target, pilot=_pilot(options, problems), say=partial(print, file=sys.stderr), **asked)
    print(json.dumps(plan.to_dict(), indent=1, allow_nan=False) if options.json else _summary(plan))
    if options.plot:
        from riskband.plots.bands import save_figure  # loads matplotlib

        save_figure(plan.plot().get_figure(root=True), options.plot)  # type: ignore[arg-type]
        print(f"figure: {options.plot}", file=sys.stderr)
    return 0


def _pilot(options: argparse.Namespace, problems: list[str]) -> Pilot | None:
    files, size, is_score = options.pilot or [], options.pilot_num_examples, options.score is not None
    wanted, sizes = wanted_of(options, size or "1"), "a whole number for all clients, or the name of a column"
    lacks_size = size is None and not all(map(is_ledger, files))
    rules = [
        (is_score and len(files) != 1, "--score needs one --pilot, a table with the score of each client"),
        (lacks_size and not is_score, f"--pilot needs --pilot-num-examples: {sizes}"),
        (len(files) > 2, f"--pilot takes one table, or two of an old and a new model, got {len(files)}"),
        (len(files) == 2 and not wanted.client, "--pilot OLD NEW needs --client: the column by which rows match"),
    ]
    problems += [text for is_wrong, text in rules if is_wrong]
    problems += score_problems(options, wanted, ["pilot_num_examples"] if size else [])
    if is_score and files:
        read = partial(read_scores, files[0], wanted, name=options.score, ends=tuple(options.range))
        return answers_of(partial(read, higher_is_better=bool(options.higher_is_better)), problems)
    tables = risks_of(files, wanted, problems)
    if len(tables) > 1:
        return rb.ClientChanges.between(*tables)
    return tables[0] if tables else None


def _summary(plan: Plan) -> str:
    lines = [plan.statement]
    if len(plan.options) > 1:
        lines += ["clients and examples of each that are enough:", *map(_line, plan.options)]
    lines += [f"  with {size:,} examples each, no number of clients that can be tried is" for size in plan.too_few]
    return "\n".join([*lines, "if all of this is true:", *(f"  - {line}" for line in plan.assumptions)])


def _line(option: Option) -> str:
    price = "" if option.cost is None else f", cost {option.cost:,.15g}"
    chance = f"PASS with probability about {option.power:.2f}"
    return f"  {option.num_clients:>6,} with {option.num_examples:,}: {chance}{price}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    add = parser.add_argument
    what = (
        "what is to pass: 'share:0.3<=0.1', 'mean<=0.2', 'count:0.3@next:20<=3', 'change<=0.01', 'harmed:0.02<=0.1', …"
    )
    add("target", metavar="NUMBER<=LIMIT", help=what)
    add("--shift", help="for every network within it, as in chi2:0.1 (for means and shares)", metavar="NAME:BUDGET")
    source = parser.add_mutually_exclusive_group(required=True)
    prior = "how risks of clients are distributed, or how the change between two models is: its mean and standard "
    prior += "deviation, and the share of examples that only one gets wrong; change:MEAN:SD:DIFFER:OLD with the risk "
    prior += "of the old one, if clients give two mean losses and not how many examples got worse"
    source.add_argument("--prior", help=prior, metavar="beta:MEAN:SD|change:MEAN:SD:DIFFER")
    earlier = "or a table of earlier answers, as certify reads it, or two of an old and a new model, as compare does"
    source.add_argument("--pilot", help=earlier, nargs="+", metavar="FILE.csv")
    pilot = parser.add_argument_group("the pilot; of the loss also without one, which is then 0-1 by default")
    pilot.add_argument("--pilot-num-examples", help="examples behind each mean", metavar="N|COLUMN")
    add_columns(pilot)
    add_score(pilot)
    sizes = "examples of each client; several make a frontier (default: the median of the pilot)"
    add("--num-examples", help=sizes, type=int, nargs="+", metavar="N")
    add("--num-clients", help="how many clients you have", type=int, metavar="K")
    finite = "those asked and those of 'count:0.3@next:20<=3' are drawn from so many; of all say 'count:0.3@all:55<=5'"
    add("--population", help=finite, type=int, metavar="N")
    add("--power", help="probability of PASS that is wanted (default: 0.8)", type=float, default=DEFAULT_POWER)
    add("--cost", help="of a client, and of an example", type=float, nargs=2, metavar=("CLIENT", "EXAMPLE"))
    add("--delta", help="of the gate (default: 0.05)", type=float, default=0.05)
    add("--seed", help="of the networks that are drawn (default: 0)", type=int, default=0)
    add("--json", help="print the plan as JSON, and nothing else", action="store_true")
    add("--plot", help="draw the frontier, or the power (.png, .svg or .pdf)", metavar="FILE.png")
