"""`riskband compare`: whether a new model is worse than an old one at clients that nobody has asked."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import riskband as rb
from riskband.answers.doors import Wanted
from riskband.answers.evaluations import EVALUATIONS, changes_between, evaluation
from riskband.answers.files import COMMAND
from riskband.answers.ledgers import is_ledger, model_problems
from riskband.answers.responses import ANSWERED_BY
from riskband.checks import check_delta, spelled
from riskband.cli.certify import AGAIN, add_columns, add_tool, write
from riskband.cli.request import (
    answers_of,
    how_read,
    output_problems,
    problems_of,
    risks_of,
    unsaid,
    wanted_of,
    who_answered,
)
from riskband.cli.terminal import summary_on_scale
from riskband.functionals.quantiles import SINGLE_LOCAL
from riskband.plots.bands import save_figure
from riskband.plots.changes import changes_figure
from riskband.report.words import about, together
from riskband.worst_cases.requirements import EXIT_STATUS

_BUDGETS = (0.05, 0.1)  # the smaller ones of `certify`: changes are bounded less sharply than risks


def run(options: argparse.Namespace) -> int:
    """Read the tables, compare each new model with the old one, print that, and write what was asked for."""
    wanted, files = wanted_of(options, options.num_examples or "1"), [options.old, *options.new]
    many = len(options.new) > 1
    problems = problems_of([partial(about, options.about), partial(check_delta, options.delta)])
    problems += output_problems(files, options.out, plot=options.plot)
    problems += unsaid(files, options) + model_problems(files, hashes=())
    if options.client is None and options.framework is None and not all(map(is_ledger, files)):
        rule = "--client must name the column by which clients are matched, got none"
        problems.append(f"{rule}; the ledger of a run knows it")
    if len(options.divergence) > 1:
        problems.append(f"one --divergence at a time, got {', '.join(options.divergence)}; ask for each")
    if many and (options.out or options.json or options.plot):
        rule = "--out, --json and --plot are for one new model"
        problems.append(f"{rule}; say --delta 0.05 / (number of models) for each")
    changes_of_all, known = _read(options, wanted, problems)
    say = partial(print, file=sys.stderr) if options.json else print
    say(who_answered(files, *changes_of_all))
    asked = {name: getattr(options, name) for name in ("require", "population", "local")}
    asked |= {"numbers": options.number, "num_next": options.next, "divergence": next(iter(options.divergence), None)}
    asked["budget"] = options.budget or (list(_BUDGETS) if options.divergence else 0.0)
    statuses, models = [], []
    for file, changes in zip(options.new, changes_of_all, strict=True):
        found = rb.compare(changes, delta=options.delta / len(options.new), **asked)
        title = f"{Path(options.old).name} to {Path(file).name}, {how_read(wanted)}"
        say(summary_on_scale(found, changes, how_read=title))
        statuses.append(0 if found.gate is None else found.gate.exit_status)
        models.append(("own", found.delta))
        write(found, options, say=say, known=known)
        if options.plot:
            shown = [made for made in found.certificates.values() if not made.axes]
            figure = changes_figure(changes.values, old_risks=changes.old, certificates=shown, title=Path(file).name)
            save_figure(figure, options.plot)
            say(f"figure: {options.plot}")
    if many:
        what = f"all that is said of these {len(models)} new models holds"
        say(f"\n{together(models, what=what, validity=found.validity, answered_by=found.answered_by)}")
    return next(status for status in EXIT_STATUS.values() if status in statuses)


def _read(
    options: argparse.Namespace, wanted: Wanted, problems: list[str]
) -> tuple[list[rb.ClientChanges], dict[str, str]]:
    """The changes to each new model, and what the files say of the evaluation; raises `TableError`."""
    files = [options.old, *options.new]
    who: dict[str, Any] = {"answered_by": options.answered_by, "num_missing": options.num_missing}
    if options.framework is None:
        if options.on_error is not None:
            problems.append(f"--errors needs --from {' or '.join(EVALUATIONS)}: tables hold no errors")
        old, *new = risks_of(files, wanted, problems, **who)
        return [rb.ClientChanges.between(old, each) for each in new], {}
    problems += wanted.problems(COMMAND, is_noisy=False)
    first, *others = answers_of(lambda: [evaluation(options.framework, file, wanted) for file in files], problems)
    who = {name: value for name, value in who.items() if value is not None}
    who |= {"on_error": options.on_error, "missing": "worst" if options.on_error == "missing" else "ignore"}
    said = {key: [log.about[key] for log in (first, *others) if key in log.about] for key in first.about}
    known = {key: ", then ".join(dict.fromkeys(values)) for key, values in said.items()}
    return [changes_between(first, log, wanted, **who) for log in others], known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser of the sub-command what it takes."""
    parser.usage = "riskband compare OLD NEW [NEW ...] --client COLUMN --num-examples N|COLUMN [options]"
    add = parser.add_argument
    add("old", help="table with one row per client, or a log, measured with the old model", metavar="OLD")
    add("new", nargs="+", help="the same clients with a new model; several share delta", metavar="NEW")
    add("--num-examples", metavar="N|COLUMN", help="of tables: examples behind each mean, the same in both")
    add_columns(parser)
    add_tool(parser, "OLD and NEW are logs of this tool, of the same samples; for --client see certify", EVALUATIONS)
    add("--answered-by", type=spelled, choices=ANSWERED_BY, help="as for certify (default: fresh)")
    add("--num-missing", type=int, metavar="N", help="clients that were asked and did not answer")
    add("--delta", type=float, default=0.05, help="probability that anything certified fails (default: 0.05)")
    numbers = "from above: change (the mean), harmed:0.05 (clients that get worse by more; both are the default), "
    add("--number", help=f"{numbers}quantile:0.9, mean@chi2:0.1", **AGAIN, nargs="+", metavar="NUMBER")
    local = "of harmed and quantile: true changes (marginal, default) or those that clients measure (observed)"
    add("--local", type=spelled, choices=SINGLE_LOCAL, default="marginal", help=local)
    add("--next", type=int, metavar="N", help="the largest, second largest, ... change that the next N would measure")
    add("--population", type=int, metavar="N", help="the clients were drawn at random from so many")
    add("--divergence", type=spelled, choices=sorted(rb.DIVERGENCES), **AGAIN, nargs="+", help="worst cases within it")
    add("--budget", type=float, nargs="+", metavar="SIZE", help=f"its sizes (default: {' '.join(map(str, _BUDGETS))})")
    required = (
        "PASS, FAIL or NOT DECIDED: 'change<=0.01' (non-inferiority), 'harmed:0.02<=0.1', 'count:0.02@next:20<=3'"
    )
    add("--require", help=f"{required} (no harm): exit status 0, 1 or 3", **AGAIN, nargs="+", metavar="NUMBER<=LIMIT")
    add("--out", help="write the certificates, with all that is needed to verify them", metavar="FILE.json")
    add("--plot", help="draw each client from its old risk to its new one (.png, .svg or .pdf)", metavar="FILE.png")
    add("--json", help="print what --out writes, and nothing else", action="store_true")
    add("--about", help="what the page says of the evaluation: model=...", **AGAIN, nargs="+", metavar="KEY=VALUE")
