"""What `riskband certify` prints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import riskband as rb
from riskband.answers.counts import binary_doubt, size_doubt
from riskband.answers.risks import BINARY_LOSS, BOUNDED_LOSS
from riskband.cli.asked import Report
from riskband.verification import why_it_says_nothing
from riskband.wording import CHOSEN_BEFORE, confidence, down_to_digits, exactly, rounded_down, rounded_up
from riskband.worst_cases.requirements import Gate, sizes_in_words

_BY_ITSELF = "each of these by itself:"
_BY_ONE_BAND = "all of these together, by one band:"
_BY_ANOTHER_BAND = "all of these together, by another band, which has both sides:"


def summary(risks: rb.ClientRisks, report: Report, options: argparse.Namespace) -> str:
    """Return what is printed of certificates."""
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
