"""What `riskband certify` prints of findings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import riskband as rb
from riskband.answers.counts import binary_doubt, size_doubt
from riskband.answers.scaled import ClientChanges, ScaledAnswers
from riskband.report import words
from riskband.report.asked import groups_problem
from riskband.report.findings import Findings
from riskband.report.networks import of_networks
from riskband.wording import exactly, printable, rounded_down, rounded_up
from riskband.worst_cases.number import DIVERGENCE
from riskband.worst_cases.requirements import sizes_in_words


def summary(found: Findings, risks: rb.ClientRisks, *, how_read: str, binary: bool | None) -> str:
    """Return what is printed of risks; `binary` is what was said of the loss."""
    worst, kind = found.called(int(np.argmax(found.answers["values"]))), _kind_of_loss(risks, binary)
    lines = [
        f"{risks.num_clients} clients with {sizes_in_words(risks)} examples each; {how_read}",
        f"measured mean loss {risks.values.mean():.4f} (every client counts once), largest {risks.values.max():.4f} "
        f"({worst}); {kind[0]}",
        *kind[1:],
    ]
    no_group = risks.groups is not None and "worst group" not in found.certificates
    more = [f"  no group is bounded: {groups_problem(risks)}"] if no_group else []
    return "\n".join(map(printable, [*lines, *_found(found, more)]))


def summary_on_scale(found: Findings, answers: ScaledAnswers, *, how_read: str) -> str:
    """Return what is printed of changes or scores."""
    bad, scale = answers.scale.to_unit(answers.values), answers.scale
    lines = [
        f"{answers.num_clients} clients; {how_read}",
        f"measured mean {scale.noun} {answers.values.mean():.4f} (every client counts once), {scale.worst} "
        f"{answers.values[np.argmax(bad)]:.4f} ({found.called(int(np.argmax(bad)))})",
    ]
    if isinstance(answers, ClientChanges):
        worse, better = (np.flatnonzero(sign * answers.values > 0.0) for sign in (1, -1))
        clients = "1 client" if worse.size == 1 else f"{worse.size} clients"
        lines.append(f"measured worse at {clients}, better at {better.size}, the same at the others")
    return "\n".join(map(printable, [*lines, *_found(found, [])]))


def summary_on_networks(found: Findings, source: rb.ClientRisks, target: rb.ClientRisks, *, how_read: str) -> str:
    """Return what is printed of a target network beside its source."""
    both = {"source": source, "target": target}
    sizes = [f"{each.num_clients} of the {name} with {sizes_in_words(each)} examples" for name, each in both.items()]
    means = [f"{each.shown_values.mean():.4f} in the {name}" for name, each in both.items()]
    lines = [
        f"clients: {sizes[0]}, {sizes[1]} each; {how_read}",
        f"measured mean loss {means[0]}, {means[1]} (every client counts once)",
    ]
    return "\n".join(map(printable, [*lines, *_found(found, [f"  {line}" for line in of_networks(found)])]))


def _found(found: Findings, more: list[str]) -> list[str]:
    """The lines on what was found, whatever was answered, with more about what is not bounded."""
    lines = [f"{line.what}: {line.said}" for line in found.who if not line.what.startswith(_SAID)]
    lines.append(f"{found.statement}:")
    by_band = [name for each in found.events for name in each.certificates if each.holds == "band"]
    for name in found.certificates:
        if name not in (*by_band, *found.beside):
            lines += _lines_of(found, name)
    if by_band:
        of = "both networks" if by_band[0].startswith(DIVERGENCE) else "one band"
        lines += [f"read off {of}:"] if len(by_band) < len(found.certificates) else []
        lines += [line for name in by_band for line in _lines_of(found, name)]
    none = "not bounded from above by these answers, so without a certificate"
    lines += [f"  {each}: {none}" for each in found.unbounded]
    lines += ["beside that, and no part of it:"] * bool(found.beside)
    lines += [line for name in found.beside for line in _lines_of(found, name)]
    lines += [f"  {found.more_clients}"] if found.more_clients else []
    lines += more
    lines += dict.fromkeys(f"  {each.statement}" for each in found.breakdowns)
    lines += ["if all of this is true:", *(f"  - {line}" for line in found.assumptions)]
    if found.gate is not None:
        lines += ["", "what was required, if all of the above is true:"]
        lines += [f"  {line}" for line in found.gate.statement.splitlines()]
        lines.append(f"{found.gate.verdict} (exit status {found.gate.exit_status})")
    return lines


_SAID = ("Clients that answered", "Test examples of each client")  # in the first line


def _lines_of(found: Findings, name: str) -> Iterator[str]:
    certificate, why = found.certificates[name], found.says_nothing.get(name)
    quantity, (divergence, budgets) = certificate.quantity, certificate.shift or ("", [])
    if not certificate.axes:
        low, high = certificate.ends
        digits = certificate.num_digits
        lower = "" if low is None else f"{rounded_down(low, digits)} <= "
        bound = f": no bound below 1; {why}" if why else "" if high is None else f" <= {rounded_up(high, digits)}"
        bound = ": not bounded by these answers" if low is None and high is None else bound
        itself = f" ({said})" if (said := words.of_rank(certificate)) else ""
        become = _become(divergence, *budgets) if budgets else ""
        yield f"  {lower}{quantity}{become}{bound}{itself}"
        for group, size, bounds, measured in words.group_rows(certificate):
            yield f"    {group} ({size} clients): {bounds}, measured {measured}"
    elif set(certificate.axes) == {"budget"}:
        yield f"  {quantity}"
        for budget, one in words.over_budget(certificate):
            yield f"    budget {exactly(budget)}{_become(divergence, budget)}: {words.bound_in_words(one)}"
        if why is not None:
            yield f"    where the bound is 1 it says nothing: {why}"
    elif rows := words.rows_of_next(certificate):
        yield f"  {quantity}; in other words"
        for size, above, most in rows:
            yield f"    {f'budget {size}: ' if size else ''}{most} {above}"
    else:
        yield f"  {quantity}: a curve, see --plot and --out"


def _become(divergence: str, budget: float) -> str:
    return f" ({words.may_become(divergence, budget)})"


def _kind_of_loss(risks: rb.ClientRisks, binary: bool | None) -> list[str]:
    if not risks.binary:
        if binary is not None or risks.noise is not None:
            return ["losses anywhere in [0, 1]"]
        doubt = binary_doubt(risks.values, risks.num_examples)
        remedy = "for a 0-1 loss say --binary and give all digits, otherwise say --not-binary"
        if not doubt:
            doubt = "those of a cross-entropy do not lie there, unless each was scaled and cut"
            remedy = "if every example's does, say --not-binary"
        return [f"losses anywhere in [0, 1] ({doubt}; {remedy})"]
    if binary:
        return ["0-1 losses"]
    doubt = size_doubt(risks.values, risks.num_examples)
    remedy = "give the number behind each mean, and all its digits; if they are right, say --binary"
    too_many = [f"CHECK --num-examples, which may be too large: {doubt}; {remedy}"] if doubt else []
    return ["0-1 losses (inferred from the means; say --not-binary if they are not)", *too_many]
