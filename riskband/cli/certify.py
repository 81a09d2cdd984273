"""`riskband certify`: certificates from a CSV file with one row per client."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import riskband as rb
from riskband.answers.counts import binary_doubt, size_doubt
from riskband.answers.doors import TableError, Wanted
from riskband.answers.files import FRAMEWORKS, number_or_column, read_risks
from riskband.answers.responses import (
    ANSWERED_BY,
    MISSING,
    check_contamination,
    check_num_missing,
    who_made_the_model,
)
from riskband.answers.risks import BINARY_LOSS, BOUNDED_LOSS
from riskband.bands.band import SIDES
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.bands.methods import MOST_FOR_ALL_RANKS, resolve_level_method
from riskband.bands.pilots import check_pilot_share
from riskband.checks import check_budget, check_delta, check_fraction, spelled
from riskband.functionals.dispersion import UnboundedError
from riskband.functionals.functional import resolve, resolve_weight
from riskband.functionals.weights import check_tail_level
from riskband.search import Bracket
from riskband.verification import COLLECTION_SCHEMA, why_it_says_nothing
from riskband.wording import (
    CHOSEN_BEFORE,
    confidence,
    down_to_digits,
    exactly,
    rounded_down,
    rounded_up,
)
from riskband.worst_cases.requirements import Gate, Requirement, require, sizes_in_words

FIGURE_ENDINGS = (".png", ".svg", ".pdf")
DEFAULT_BUDGETS, DEFAULT_PILOT_SHARE = [0.05, 0.1, 0.2], 0.2
_BY_ITSELF = "each of these by itself:"
_BY_ONE_BAND = "all of these together, by one band:"
_BY_ANOTHER_BAND = "all of these together, by another band, which has both sides:"


class Report(NamedTuple):
    """What `riskband certify` found."""

    certificates: dict[str, rb.Certificate]
    breakdowns: dict[str, Bracket]
    band: rb.Band
    two_sided: rb.Band | None = None  # what the measures of dispersion are read off
    unbounded: tuple[str, ...] = ()  # measures that these answers do not bound from above
    gate: Gate | None = None  # the verdicts on what --require asks for

    @property
    def stored(self) -> dict[str, rb.Certificate]:
        """Every certificate, also those that a verdict follows from."""
        return self.certificates | ({} if self.gate is None else self.gate.certificates)


def run(options: argparse.Namespace) -> int:
    """Read the table, make the certificates, print them, and write what was asked for."""
    risks = _checked_risks(options)
    say = partial(print, file=sys.stderr) if options.json else print  # of --json, the output is JSON and nothing else
    say(who_made_the_model(risks.answered_by, option="--answered-by {}"))
    if options.tune:
        seed = 0 if options.seed is None else options.seed
        pilot, risks = rb.split_clients(risks, pilot_share=options.pilot_share, seed=seed)
        options.method = rb.OptimisedLevels(pilot, dict.fromkeys(options.tune, 1.0))
    report = _report(risks, options)
    if options.tune:
        spent = f"{pilot.num_clients} clients, drawn with seed {seed}, are spent on tuning the band for"
        say(f"{spent} {', '.join(options.tune)}; the certificates rest on the others")
    if not options.json:
        say(_summary(risks, report, options))
    if options.json or options.out:
        indent = 1 if risks.num_clients <= MOST_FOR_ALL_RANKS else None  # a million lines take minutes
        text = json.dumps(_document(report), indent=indent, allow_nan=False)
        if options.json:
            print(text)
        if options.out:
            Path(options.out).write_text(text + "\n", encoding="utf-8")
            say(f"\ncertificates: {options.out} (check them with: riskband verify {options.out})")
    _draw(report, options, say)
    return 0 if report.gate is None else report.gate.exit_status


def _document(report: Report) -> dict[str, Any]:
    """What --out and --json write: certificates by name, and the verdicts if any were asked for."""
    return {
        "schema": COLLECTION_SCHEMA,
        "certificates": {name: certificate.to_dict() for name, certificate in report.stored.items()},
        **({} if report.gate is None else {"gate": report.gate.to_dict()}),
    }


def _draw(report: Report, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Write the figures that were asked for."""
    if options.plot:
        from riskband.plots.bands import band_figure, save_figure  # loads matplotlib

        curve = next((c for name, c in report.certificates.items() if name.startswith("worst_case_cdf")), None)
        save_figure(band_figure(report.band, worst_case=curve, title=Path(options.file).name), options.plot)
        only = f" (worst cases in {options.divergence[0]} only)" if len(options.divergence) > 1 else ""
        say(f"figure: {options.plot}{only}")
    if options.plot_dispersion and report.two_sided is not None:
        from riskband.plots.bands import save_figure
        from riskband.plots.dispersion import dispersion_figure

        figure = dispersion_figure(
            report.two_sided,
            measures=[c for c in report.certificates.values() if c.recipe["function"] == "dispersion_certificate"],
            lorenz=rb.lorenz_certificate(report.two_sided),
            title=Path(options.file).name,
        )
        save_figure(figure, options.plot_dispersion)
        say(f"figure: {options.plot_dispersion}")


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
    names_share, names_budget = options.pilot_share != DEFAULT_PILOT_SHARE, options.budget != DEFAULT_BUDGETS
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


def _report(risks: rb.ClientRisks, options: argparse.Namespace) -> Report:
    band = _band(risks, options, sides=options.sides)
    # What stands alone is bounded from the answers, with a delta of its own; all else is read off the band.
    alone: dict[str, Any] = {"delta": options.delta}
    source, terms = (risks, alone) if _stand_alone(options) else (band, {})
    is_bet_on = source is risks and risks.are_as_measured  # bets need every answer as it was given
    seed = {"seed": options.seed} if is_bet_on else {}
    certificates = {"mean": rb.mean_bound(risks, delta=options.delta, seed=options.seed)}
    certificates |= {f"quantile:{exactly(level)}": rb.quantile(source, level, **terms) for level in options.quantile}
    certificates |= {f"cvar:{exactly(level)}": rb.cvar(source, level, **terms, **seed) for level in options.cvar}
    for point in options.survival:
        certificates[f"survival:{exactly(point)}"] = rb.survival(source, thresholds=point, **terms)
    both, unbounded = _two_sided(risks, band, options, is_bet_on=is_bet_on), []
    for name in options.measure:
        try:
            if is_bet_on or both is None:
                found = rb.dispersion_certificate(risks, name, **alone)
            else:
                found = rb.dispersion_certificate(both, name)
        except UnboundedError:
            unbounded.append(name)
        else:
            certificates[f"two-sided {name}" if name in certificates else name] = found
    breakdowns = {}
    budgets = np.array(options.budget)
    for divergence in options.divergence:
        answers, of_answers = (risks, alone | seed) if is_bet_on else (band, {})
        mean = rb.worst_case_mean(answers, divergence=divergence, budget=budgets, **of_answers)
        certificates[f"worst_case_mean_{divergence}"] = mean
        certificates[f"worst_case_cdf_{divergence}"] = rb.worst_case_cdf(band, divergence=divergence, budget=budgets)
        if options.target is not None:
            breakdowns[divergence] = rb.breakdown(
                band, divergence=divergence, target=options.target, threshold=options.at
            )
    gate = None
    if options.require:
        gate = require(risks, options.require, **alone) if both is None or is_bet_on else require(both, options.require)
    return Report(certificates, breakdowns, band, both, tuple(unbounded), gate)


def _two_sided(risks: rb.ClientRisks, band: rb.Band, options: argparse.Namespace, *, is_bet_on: bool) -> rb.Band | None:
    """A band with both sides for what does not stand alone and is bounded from both, and for a figure of measures."""
    if not (options.measure or options.require) or (is_bet_on and not options.plot_dispersion):
        return None
    if options.sides == "two":
        return band
    return _band(risks, options, sides="two")  # it spends a delta of its own


def _band(risks: rb.ClientRisks, options: argparse.Namespace, *, sides: str) -> rb.Band:
    # None is the default, which of very many clients constrains few ranks.
    method = None if options.method == "berk_jones" else options.method
    return rb.band(risks, delta=options.delta, method=method, local=options.local, sides=sides)


def _stand_alone(options: argparse.Namespace) -> bool:
    """Whether each number gets the sharper bound of its own: unless a band for all, or a way to make one, is wanted."""
    is_usual = options.method == "berk_jones" and options.local == "marginal" and options.sides == "lower"
    return bool(is_usual and not options.at_once)


def _summary(risks: rb.ClientRisks, report: Report, options: argparse.Namespace) -> str:
    lines = [
        f"{risks.num_clients} clients with {sizes_in_words(risks)} examples each; {_how_read(options)}",
        f"measured mean loss {risks.values.mean():.4f} (every client counts once), largest {risks.values.max():.4f}; "
        f"{_kind_of_loss(risks, options)}",
        *_who_answered(risks),
        *_heading(risks, options),
    ]
    for title, certificates in _together(report).items():
        is_own = title == _BY_ITSELF
        lines += [title, *(line for each in certificates for line in _lines_of(each, shows_method=is_own))]
        lines += _breakdown_lines(report, options) if title == _BY_ONE_BAND else ()
    for name in report.unbounded:
        lines.append(f"  {name} is not bounded from above by these answers, so it has no certificate")
    lines.append("if all of this is true:")
    assumed = dict.fromkeys(text for c in report.certificates.values() for text in c.assumptions)
    assumed |= dict.fromkeys(report.gate.assumptions if report.gate else ())
    chosen = [text.removeprefix(CHOSEN_BEFORE) for text in assumed if text.startswith(CHOSEN_BEFORE)]
    kept = [text for text in assumed if not text.startswith(CHOSEN_BEFORE)]
    if chosen:
        kept.append(CHOSEN_BEFORE + ", ".join(dict.fromkeys(chosen)))
    if BINARY_LOSS in kept and BOUNDED_LOSS in kept:
        kept.remove(BOUNDED_LOSS)
    return "\n".join([*lines, *(f"  - {text}" for text in kept), *_verdict_lines(report.gate)])


def _verdict_lines(gate: Gate | None) -> list[str]:
    if gate is None:
        return []
    verdicts = [f"  {line}" for line in gate.statement.splitlines()]
    title = "what was required, all of it at once, and if all of the above is true:"
    return ["", title, *verdicts, f"{gate.verdict} (exit status {gate.exit_status})"]


def _together(report: Report) -> dict[str, list[rb.Certificate]]:
    """What holds by itself and what together, after the line that says so; the mean, always by itself, is first."""
    bands = {_BY_ONE_BAND: report.band, _BY_ANOTHER_BAND: report.two_sided}
    stored = {title: band.provenance()["band"] for title, band in bands.items() if band is not None}
    found: dict[str, list[rb.Certificate]] = {}
    for each in report.certificates.values():
        title = next((title for title, band in stored.items() if each.recipe["band"] == band), _BY_ITSELF)
        found.setdefault(title, []).append(each)
    return found


def _lines_of(certificate: rb.Certificate, *, shows_method: bool) -> Iterator[str]:
    quantity, why = certificate.quantity, why_it_says_nothing(certificate)
    kind = f"   [{certificate.validity}{f', {certificate.method}' if shows_method else ''}]"
    if not certificate.axes:
        if why is not None:
            yield f"  {quantity}: no bound below 1; {why}"
            return
        lower = "" if certificate.lower is None else f"{rounded_down(certificate.lower)} <= "
        yield f"  {lower}{quantity} <= {rounded_up(certificate.value)}{kind}"
    elif set(certificate.axes) == {"budget"}:
        yield f"  {quantity}{kind}"
        for budget, value in zip(certificate.axes["budget"], np.asarray(certificate.value), strict=True):
            yield f"    budget {exactly(budget)}: <= {rounded_up(value)}"
        if why is not None:
            yield f"    where the bound is 1 it says nothing: {why}"
    else:
        yield f"  {quantity}: a curve, in --plot and --out{kind}"


def _breakdown_lines(report: Report, options: argparse.Namespace) -> Iterator[str]:
    goal = "the mean risk" if options.at is None else f"the share of clients with a risk of at least {options.at:g}"
    for divergence, bracket in report.breakdowns.items():
        if np.isneginf(bracket.lower):
            yield f"  no {divergence} budget keeps {goal} at most {options.target:g}, not even 0"
        else:
            yield f"  {goal} stays at most {options.target:g} up to {divergence} budget {down_to_digits(bracket.lower)}"


def _how_read(options: argparse.Namespace) -> str:
    if options.percent:
        return f"column {options.column!r} read as accuracies in percent, loss = 1 - value / 100"
    if options.accuracy:
        return f"column {options.column!r} read as accuracies, loss = 1 - value"
    return f"column {options.column!r} read as losses, where 0 is best (for accuracies say --accuracy)"


def _heading(risks: rb.ClientRisks, options: argparse.Namespace) -> list[str]:
    if risks.answered_by == "fresh":
        often = "; more often than every second time they may be false" if options.delta > 0.5 else ""
        return [f"with probability at least {confidence(options.delta)} (delta = {options.delta:g}{often}):"]
    return [
        f"estimates: what delta = {options.delta:g} would certify if these clients had no part in making the model:"
    ]


def _who_answered(risks: rb.ClientRisks) -> list[str]:
    lines = [] if risks.noise is None else [f"all answers have noise ({risks.noise.mechanism}): so have these numbers"]
    if risks.num_missing:
        counted = "with the worst answer possible" if risks.missing == "worst" else "as missing at random"
        lines.append(f"asked, but without an answer: {risks.num_missing}, which count {counted}")
    if risks.contamination:
        lines.append(f"answers that may be wrong, whichever they are: {risks.contamination}")
    return lines


def _kind_of_loss(risks: rb.ClientRisks, options: argparse.Namespace) -> str:
    if not risks.binary:
        if options.binary is not None or risks.noise is not None:
            return "losses anywhere in [0, 1]"
        doubt = binary_doubt(risks.values, risks.num_examples)
        remedy = "for a 0-1 loss say --binary and give all digits, otherwise say --not-binary"
        if not doubt:
            doubt = "those of a cross-entropy do not lie there, unless each was scaled and cut"
            remedy = "if every example's does, say --not-binary"
        return f"losses anywhere in [0, 1] ({doubt}; {remedy})"
    if options.binary:
        return "0-1 losses"
    doubt = size_doubt(risks.values, risks.num_examples)
    remedy = "give the number behind each mean, and all its digits; if they are right, say --binary"
    too_many = f"\nCHECK --num-examples, which may be too large: {doubt}; {remedy}" if doubt else ""
    return f"0-1 losses (inferred from the means; say --not-binary if they are not){too_many}"


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
    levels = again | {"type": float, "nargs": "*", "metavar": "LEVEL", "default": [0.9]}
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
    add("--delta", "probability that a certificate fails (default: 0.05)", type=float, default=0.05)
    methods = "band: berk_jones (default), dkw, kolmogorov or truncated:LOW:HIGH"
    add("--method", methods, type=spelled, default="berk_jones")
    add("--tune", "tune the band on a pilot: cvar:0.9, mean, …", metavar="OBJECTIVE", **words | {"nargs": "+"})
    share = "share of the clients that tuning spends (default: 0.2)"
    add("--pilot-share", share, type=float, default=DEFAULT_PILOT_SHARE)
    add("--local", "step to true risks (default: marginal)", **one_of(sorted(LOCAL_STEPS), "marginal"))
    sides = "sides of the band; lower is enough for every bound and sharper, two draws the whole band"
    at_once = "read all but the mean off one band: wider, but then all of it holds together, for every budget and level"
    add("--at-once", at_once, action="store_true")
    add("--sides", sides, **one_of((side for side in SIDES if side != "upper"), "lower"))
    add("--quantile", "risk that this share of clients does not exceed (default: 0.9)", **levels)
    add("--cvar", "mean of the worst 1 - LEVEL (default: 0.9)", **levels)
    add("--survival", "share of clients with at least this risk", type=float, nargs="*", metavar="RISK", **again)
    add("--measure", "from both sides: gini, atkinson:0.5, hoover, cvar:0.9, share:0.3, …", metavar="NAME", **words)
    required = (
        "PASS, FAIL or NOT DECIDED, and exit status 0, 1 or 3: 'quantile:0.9<=0.3', 'worst_mean:chi2:0.1<=0.2', …"
    )
    add("--require", required, nargs="+", metavar="NAME<=LIMIT", **again)
    add("--divergence", "worst cases over this ball", choices=sorted(rb.DIVERGENCES), **words)
    sizes = again | {"default": DEFAULT_BUDGETS}
    add("--budget", "sizes of the ball (default: 0.05 0.1 0.2)", type=float, nargs="+", metavar="SIZE", **sizes)
    add("--target", "report the largest budget at which the bound still holds", type=float, metavar="BOUND")
    add("--at", "the target is for the share of clients with at least this risk", type=float, metavar="RISK")
    orders = "order in which bets see the clients, if fixed before any answer was seen (default: averaged over orders)"
    add("--seed", f"{orders}; draw of the pilot of --tune (default: 0)", type=int)
    add("--out", "write the certificates, with all that is needed to verify them", metavar="FILE.json")
    add("--json", "print what --out writes, and nothing else", action="store_true")
    add("--plot", "draw the band and the worst cases (.png, .svg or .pdf)", metavar="FILE.png")
    add("--plot-dispersion", "draw quantiles, Lorenz curve and the measures of --measure", metavar="FILE.png")
