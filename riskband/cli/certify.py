"""`riskband certify`: certificates from a table with one row per client."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.evaluations import EVALUATIONS
from riskband.answers.files import FRAMEWORKS
from riskband.answers.ledgers import is_ledger
from riskband.answers.responses import ANSWERED_BY, ERRORS, MISSING, REPEATS
from riskband.bands.band import SIDES
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.bands.methods import MOST_FOR_ALL_RANKS
from riskband.checks import spelled
from riskband.cli.figures import draw
from riskband.cli.request import DEFAULT_PILOT_SHARE, Request, how_read, who_answered
from riskband.cli.terminal import summary, summary_on_scale
from riskband.functionals.bets import has_no_order
from riskband.report.asked import certified
from riskband.report.compared import certified_on_scale
from riskband.report.findings import Findings
from riskband.report.words import about

# What an option says that may be given several times, each with several values.
AGAIN: dict[str, Any] = {"action": "extend", "default": []}
_COMES_SORTED = "the rows come sorted by loss, so no bound relies on their order; with --client some may be sharper"


def run(options: argparse.Namespace) -> int:
    """Read the table, make the certificates, print them, and write what was asked for."""
    request = Request.of(options)
    given = request.given
    if given.score is not None:
        return _run_on_scores(request)
    risks, asked, seed = request.risks(), request.asked, request.asked.seed or 0
    say = partial(print, file=sys.stderr) if given.json else print  # of --json, the output is JSON and nothing else
    say(who_answered([given.file], risks, framework=given.framework))
    if has_no_order(risks):
        say(_COMES_SORTED)
    if given.tune:
        if risks.names is None:  # of the clients that are left, the rows are no longer those of the table
            risks = rb.ClientRisks(**risks.to_dict(), names=[f"row {row + 1}" for row in range(risks.num_clients)])
        pilot, risks = rb.split_clients(risks, pilot_share=given.pilot_share, seed=seed)
        asked = replace(asked, method=rb.OptimisedLevels(pilot, dict.fromkeys(given.tune, 1.0)))
    found = certified(risks, asked)
    if given.tune:
        spent = f"{pilot.num_clients} clients, drawn with seed {seed}, are spent on tuning the band for"
        say(f"{spent} {', '.join(given.tune)}; the certificates rest on the others")
    if not given.json:
        knows_loss = is_ledger(given.file, given.framework)
        binary = risks.binary if knows_loss else request.wanted.binary
        say(summary(found, risks, how_read=how_read(request.wanted), binary=binary))
    indent = 1 if risks.num_clients <= MOST_FOR_ALL_RANKS else None  # a million lines take minutes
    write(found, given, say=say, indent=indent, known=request.about)
    drawn = partial(draw, found, measures=asked.measure, title=Path(given.file).name, say=say)
    drawn(plot=given.plot, plot_dispersion=given.plot_dispersion)
    return 0 if found.gate is None else found.gate.exit_status


def _run_on_scores(request: Request) -> int:
    scores, say = request.scores(), partial(print, file=sys.stderr) if request.given.json else print
    say(who_answered([request.given.file], scores, framework=request.given.framework))
    found = certified_on_scale(scores, **request.of_scores)
    if not request.given.json:
        say(summary_on_scale(found, scores, how_read=f"column {request.wanted.column!r} read as {scores.name}"))
    write(found, request.given, say=say, known=request.about)
    return 0 if found.gate is None else found.gate.exit_status


def write(
    found: Findings,
    request: Any,
    *,
    say: Callable[..., None],
    indent: int | None = 1,
    known: Mapping[str, str] | None = None,
) -> None:
    """Print the findings as JSON and write them to a file, as a command's `json`, `out` and `about` ask.

    `known` is what the files say of the evaluation, unless the user says it.
    """
    if not (request.json or request.out):
        return
    said = {**(known or {}), **about(request.about)}
    text = json.dumps(found.to_document() | ({"about": said} if said else {}), indent=indent, allow_nan=False)
    if request.json:
        print(text)
    if request.out:
        Path(request.out).write_text(text + "\n", encoding="utf-8")
        say(f"\ncertificates: {request.out} (check them with: riskband verify {request.out})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes, by topic."""
    parser.usage = "riskband certify FILE --num-examples N|COLUMN [options]"

    def topic(title: str) -> Callable[..., Any]:
        return parser.add_argument_group(title).add_argument

    def one_of(choices: Iterable[str], default: str) -> dict[str, Any]:
        return {"type": spelled, "choices": tuple(choices), "default": default}

    words = AGAIN | {"type": spelled, "nargs": "*"}
    levels = AGAIN | {"type": float, "nargs": "+"}

    table = parser.add_argument_group("the table")
    add = table.add_argument
    what = "CSV, also gzipped or with semicolons or tabs, xlsx or parquet; - is the standard input"
    add("file", help=f"table with a header and one row per client: {what}", metavar="FILE")
    behind = "examples behind each mean: one number for all clients, or the name of a column"
    add("--num-examples", help=behind, metavar="N|COLUMN")
    add_columns(table)
    column: dict[str, Any] = {"metavar": "COLUMN"}
    add("--group", help="column with the group of each client, if it is in one", **column)
    add("--stratum", help="column with the stratum of each client, within which clients were drawn", **column)
    add("--shares", help="table of the strata: the column of --stratum, and share", metavar="FILE")
    add("--sampling-weight", help="column: clients were drawn in proportion to 1 / weight", **column)
    add("--largest-weight", help="that no client's weight can exceed, asked or not", type=float, metavar="WEIGHT")
    add("--cluster", help="column with the cluster of each client, such as its chain: clusters were drawn", **column)
    frameworks = "FILE is NVFlare's cross_val_results.json, a folder of FL4Health's reports of clients"
    evaluations = "a log of inspect (--client metadata:KEY), a folder of lm_eval's samples (--client task, or a field)"
    add_score(table)
    add_tool(table, f"{frameworks}, {evaluations}", (*FRAMEWORKS, *EVALUATIONS))

    add = topic("who answered")
    fresh = "fresh (default): the clients had no part in training, tuning or choosing the model"
    tools = f"default with --from {' and '.join(FRAMEWORKS)}"
    trainers = f"trainers ({tools}): they had, so nothing is certified and all bounds are estimates"
    add("--answered-by", help=f"{fresh}; {trainers}", type=spelled, choices=ANSWERED_BY)
    more = "clients that were asked and did not answer, beside those that FILE names (default: 0)"
    add("--num-missing", help=more, type=int, metavar="N")
    as_what = (
        "ignore: they are missing at random (default), worst (default with --errors missing), or odds:GAMMA: odds of "
        "answering differ by no more"
    )
    add("--missing", help=as_what, metavar="|".join((*MISSING, "odds:GAMMA")))

    add = topic("what to certify")
    shared = "probability that anything certified fails, shared by what is asked (default: 0.05)"
    add("--delta", help=shared, type=float, default=0.05)
    default = "mean risk (default, if nothing is asked: with --quantile 0.9 and --cvar 0.9, or of few the next client)"
    add("--mean", help=default, action="store_true")
    add("--quantile", help="risk that this share of clients does not exceed", metavar="LEVEL", **levels)
    add("--cvar", help="mean of the worst 1 - LEVEL", metavar="LEVEL", **levels)
    add("--survival", help="share of clients with at least this risk", metavar="RISK", **levels)
    measures = "from both sides: gini, atkinson:0.5, hoover, cvar:0.9, share:0.3, …"
    add("--measure", help=measures, metavar="NAME", **words)
    coming = "largest, second largest, … risk that the next N clients would measure"
    add("--next", help=f"{coming}; with --divergence under shifts, too", type=int, metavar="N")
    finite = "the clients were drawn at random from so many: the next ones are its others, and --mean is theirs"
    add("--population", help=finite, type=int, metavar="N")
    at_once = "read everything off one band, which has all of delta: sharper than a share of it for many numbers"
    add("--at-once", help=at_once, action="store_true")

    add = topic("shifts")
    add("--divergence", help="worst cases over this ball", choices=sorted(rb.DIVERGENCES), **words)
    add("--budget", help="sizes of the ball (default: 0.05 0.1 0.2)", metavar="SIZE", **levels)
    add("--target", help="report the largest budget at which the bound still holds", type=float, metavar="BOUND")
    add("--at", help="the target is for the share of clients with at least this risk", type=float, metavar="RISK")

    add = topic("verdicts")
    status = "PASS, FAIL or NOT DECIDED, and exit status 0, 1 or 3"
    required = f"{status}: 'quantile:0.9<=0.3', 'count:0.3@next:20<=3', 'mean@chi2:0.1<=0.2', …"
    add("--require", help=required, nargs="+", metavar="NUMBER<=LIMIT", **AGAIN)

    add = topic("output")
    add("--out", help="write the certificates, with all that is needed to verify them", metavar="FILE.json")
    add("--json", help="print what --out writes, and nothing else", action="store_true")
    said = "what the page says of the evaluation: model=…, data=…, date=…, author=…, or whatever else"
    add("--about", help=said, nargs="+", metavar="KEY=VALUE", **AGAIN)
    add("--plot", help="draw the band and the worst cases (.png, .svg or .pdf)", metavar="FILE.png")
    dispersion = "draw quantiles, Lorenz curve and the measures of --measure"
    add("--plot-dispersion", help=dispersion, metavar="FILE.png")

    add = topic("rarely needed")
    add("--contamination", help="answers that may be wrong in any way (default: 0)", type=int, metavar="N")
    noisy = "noise in the losses: laplace:EPSILON or gaussian:RHO of this column alone"
    add("--noise", help=noisy, metavar="NAME:BUDGET")
    methods = "band: berk_jones (default), dkw, kolmogorov or truncated:LOW:HIGH"
    add("--method", help=methods, type=spelled, default="berk_jones")
    sides = "sides of the band; lower is enough for every bound and sharper, two draws the whole band"
    add("--sides", help=sides, **one_of((side for side in SIDES if side != "upper"), "lower"))
    add("--local", help="step to true risks (default: marginal)", **one_of(sorted(LOCAL_STEPS), "marginal"))
    add("--tune", help="tune the band on a pilot: cvar:0.9, mean, …", metavar="OBJECTIVE", **words | {"nargs": "+"})
    share = "share of the clients that tuning spends (default: 0.2)"
    add("--pilot-share", help=share, type=float, default=DEFAULT_PILOT_SHARE)
    orders = "order in which bets see the clients, if fixed before any answer was seen (default: averaged over orders)"
    add("--seed", help=f"{orders}; draw of the pilot of --tune (default: 0)", type=int)


def add_tool(group: Any, help: str, tools: Iterable[str]) -> None:
    """Add what says which tool wrote the file, and what errors in it count as."""
    group.add_argument("--from", help=help, dest="framework", type=spelled, choices=tuple(tools))
    what = "samples of a log that raised an error or have no score: they are wrong, their clients missing, or left out"
    group.add_argument("--errors", help=what, dest="on_error", type=spelled, choices=ERRORS)


def add_score(group: Any) -> None:
    """Add what says that a column holds scores."""
    add = group.add_argument
    add("--score", help="the column holds a score that is no mean of losses, called so: AUC, F1, Dice", metavar="NAME")
    better = group.add_mutually_exclusive_group()
    better.add_argument("--higher-is-better", action="store_const", const=True, help="of a score: large ones are good")
    lower: dict[str, Any] = {"dest": "higher_is_better", "action": "store_const", "const": False}
    better.add_argument("--lower-is-better", help="of a score: small ones are good", **lower)
    add("--range", help="of a score (default: 0 1)", type=float, nargs=2, default=[0.0, 1.0], metavar=("LOW", "HIGH"))


def add_repeats(parser: argparse.ArgumentParser, where: str) -> None:
    """Add what is said of clients that answer more than once."""
    drawn = "draws: it was drawn anew each time, and measured on new examples"
    add = parser.add_argument
    add(
        "--repeats",
        type=spelled,
        choices=REPEATS,
        default="refuse",
        help=f"a client {where} (default: refuse); {drawn}",
    )


def add_columns(group: Any) -> None:
    """Add what every command says of the columns of a table."""
    add = group.add_argument
    add("--column", help="column with each client's mean loss, in [0, 1] (default: loss)", default="loss")
    add("--accuracy", help="the column holds accuracies in [0, 1]: loss = 1 - value", action="store_true")
    add("--percent", help="the column holds accuracies in percent: loss = 1 - value / 100", action="store_true")
    kind = group.add_mutually_exclusive_group()
    binary = "every example's loss is 0 or 1 (default: if the means fit; with --noise it must be said)"
    kind.add_argument("--binary", action="store_const", const=True, help=binary)
    other = "losses lie anywhere in [0, 1]"
    kind.add_argument("--not-binary", dest="binary", action="store_const", const=False, help=other)
    once = "column that names every client once: the names are kept and shown, and no other is asked whose a row is"
    add("--client", help=once, metavar="COLUMN")
    add("--drop-missing", help="drop rows without a loss, and count them as missing", action="store_true")
