"""`riskband plan`: how many clients, with how many examples each, a requirement needs to pass."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

import riskband as rb
from riskband.answers.files import read_risks
from riskband.cli.certify import add_columns
from riskband.cli.request import figure_problems, wanted_of
from riskband.worst_cases.planning import DEFAULT_POWER, MOST_CLIENTS, Option, Plan


def run(options: argparse.Namespace) -> int:
    """Read the pilot, if there is one, make the plan, and print it."""
    if problems := figure_problems("--plot", options.plot):
        raise ValueError("\n".join(problems))
    plan = rb.plan(
        options.target,
        delta=options.delta,
        shift=options.shift,
        prior=options.prior,
        pilot=_pilot(options),
        num_examples=options.num_examples,
        num_clients=options.num_clients,
        power=options.power,
        cost=options.cost,
        binary=options.binary,
        seed=options.seed,
        say=partial(print, file=sys.stderr),
    )
    print(json.dumps(plan.to_dict(), indent=1, allow_nan=False) if options.json else _summary(plan))
    if options.plot:
        from riskband.plots.bands import save_figure  # loads matplotlib

        save_figure(plan.plot().get_figure(root=True), options.plot)  # type: ignore[arg-type]
        print(f"figure: {options.plot}", file=sys.stderr)
    return 0


def _pilot(options: argparse.Namespace) -> rb.ClientRisks | None:
    if options.pilot is None:
        return None
    if options.pilot_num_examples is None:
        raise ValueError("--pilot needs --pilot-num-examples: a whole number for all clients, or the name of a column")
    return read_risks(options.pilot, wanted_of(options, options.pilot_num_examples))


def _summary(plan: Plan) -> str:
    lines = [plan.statement]
    if len(plan.options) > 1:
        lines += ["clients and examples of each that are enough:", *map(_line, plan.options)]
    lines += [f"  with {size:,} examples each, no number of clients up to {MOST_CLIENTS:,} is" for size in plan.too_few]
    return "\n".join([*lines, "if all of this is true:", *(f"  - {line}" for line in plan.assumptions)])


def _line(option: Option) -> str:
    price = "" if option.cost is None else f", cost {option.cost:,.15g}"
    chance = f"PASS with probability about {option.power:.2f}"
    return f"  {option.num_clients:>6,} with {option.num_examples:,}: {chance}{price}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    add = parser.add_argument
    add("target", metavar="NAME<=LIMIT", help="what is to pass: 'share:0.3<=0.1', 'mean<=0.2', 'next:20:0.3<=3', …")
    add("--shift", help="for every network within it, as in chi2:0.1 (for means and shares)", metavar="NAME:BUDGET")
    source = parser.add_mutually_exclusive_group(required=True)
    prior = "how the risks of clients are distributed: beta:MEAN:SD"
    source.add_argument("--prior", help=prior, metavar="beta:MEAN:SD")
    source.add_argument("--pilot", help="or a table of earlier answers, as certify reads it", metavar="FILE.csv")
    pilot = parser.add_argument_group("the pilot; of the loss also without one, which is then 0-1 by default")
    pilot.add_argument("--pilot-num-examples", help="examples behind each mean", metavar="N|COLUMN")
    add_columns(pilot)
    sizes = "examples of each client; several make a frontier (default: the median of the pilot)"
    add("--num-examples", help=sizes, type=int, nargs="+", metavar="N")
    add("--num-clients", help="how many clients you have", type=int, metavar="K")
    add("--power", help="probability of PASS that is wanted (default: 0.8)", type=float, default=DEFAULT_POWER)
    add("--cost", help="of a client, and of an example", type=float, nargs=2, metavar=("CLIENT", "EXAMPLE"))
    add("--delta", help="of the gate (default: 0.05)", type=float, default=0.05)
    add("--seed", help="of the networks that are drawn (default: 0)", type=int, default=0)
    add("--json", help="print the plan as JSON, and nothing else", action="store_true")
    add("--plot", help="draw the frontier, or the power (.png, .svg or .pdf)", metavar="FILE.png")
