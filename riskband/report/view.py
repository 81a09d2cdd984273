"""What the report page says: certificates turned into words, rows and charts; the markup is elsewhere.

Every number is one of a certificate and keeps its label. What the page reads off a band is a certificate too, and is
stored in the page with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from riskband.answers.scaled import CHANGE, ClientChanges, ScaledAnswers, is_scaled, rebuilt, scale_of
from riskband.checks import FloatArray, IntArray
from riskband.report import words
from riskband.report.asked import TAILS
from riskband.report.charts import Arrows, Chart, Curve, thinned
from riskband.report.findings import is_measured
from riskband.report.networks import of_networks
from riskband.report.shifts import cost_shift, divergence_shift
from riskband.report.words import LABELS, capital, measured, percent
from riskband.verification import why_it_says_nothing
from riskband.wording import TRAINERS_ANSWERED, confidence, evenly, exactly, rounded_down, short_delta
from riskband.worst_cases.divergences import resolve_divergence
from riskband.worst_cases.number import TARGET
from riskband.worst_cases.requirements import FAIL, PASS

if TYPE_CHECKING:
    from riskband.bands.band import Band
    from riskband.certificate import Certificate
    from riskband.report.findings import Findings
    from riskband.worst_cases.requirements import Gate

    Certificates = Mapping[str, Certificate]

_TAILS = {
    str(TAILS[0]): "Half of the unseen clients have a risk of",
    str(TAILS[1]): "Nine in ten unseen clients have a risk of",
    str(TAILS[2]): "The mean risk of the worst-off tenth of unseen clients is",
}
_HOLDS = {"groups": "with those of the same groups", "band": "with all of its band", "own": "by itself"}
_MOST_ARROWS = 150  # of one chart: more would touch
_MOST_CLIENTS_LISTED = 1_000  # those with the largest losses; a row is 130 bytes of a page of 1 MB


@dataclass(frozen=True)
class RunFacts:
    """What is known beside the certificates."""

    about: Mapping[str, str] = field(default_factory=dict)  # of the evaluation: its model, data, date, author
    # By the beginning of an assumption: how the run's own record answers it.
    answered: Mapping[str, str] = field(default_factory=dict)
    who: Mapping[str, str] = field(default_factory=dict)  # lines about who was asked and who answered
    hashes: Mapping[str, str] = field(default_factory=dict)  # what was evaluated by what
    notes: tuple[str, ...] = ()  # sentences for the section on who suffers
    names: tuple[str, ...] = ()  # of the clients, in the order of the answers
    threshold: float | None = None  # a risk at which a client counts as failing
    limits: tuple[tuple[float, float | None], ...] = ()  # of which it was asked up to which shift they are kept


class Light(NamedTuple):
    """The traffic light: its colour, a sign that needs no colour, and what it says."""

    colour: str
    sign: str
    word: str
    reason: str


class Row(NamedTuple):
    """One number of a table: what it is of, its bound, and what kind of bound that is."""

    quantity: str
    bound: str
    measured: str  # on the clients that answered
    label: str
    note: str = ""


class Client(NamedTuple):
    """A line about one client."""

    name: str
    group: str
    numbers: dict[str, str]  # by the head of their column


def view_of(found: Findings, *, title: str, facts: RunFacts, public: bool = False) -> dict[str, Any]:
    """Work out what the page says, under the names in its template; see `riskband.report.page.report_page`."""
    certificates, gate = found.certificates, found.gate
    if public:
        certificates = {name: each for name, each in certificates.items() if not _is_loss_of_client(each)}
        if not certificates:
            raise ValueError(
                "a public page must have a certificate that is no client's loss, got only those of next clients; "
                "certify the mean, too, or leave public out"
            )
    threshold = found.threshold if facts.threshold is None else facts.threshold
    joint = {name: each for name, each in certificates.items() if name not in found.beside}
    main = min(joint.values(), key=lambda each: bool(each.axes))  # the first of one number, if there is one
    light = _light(gate, found.answered_by)
    scaled = rebuilt(found.answers) if is_scaled(found.answers) else None
    shifts = cost_shift(certificates)
    if not (shifts or scaled):  # those are of risks; a worst change or score stands among the certificates
        shifts = divergence_shift(found, threshold=threshold, public=public)
    tails = {} if scaled else _tails(found, threshold)
    verdicts = () if gate is None else gate.verdicts
    shifted = {name: each for name, each in joint.items() if _is_of_other_networks(each, is_scaled=scaled is not None)}
    left = ((name, each) for name, each in joint.items() if each.axes or each is not main)
    others = [each for name, each in left if not (name in shifted or each.name in tails)]
    kind, number, example = words.subject_of(found.answers)
    of_these = partial(words.about_these, answers=found.answers)
    return {
        "title": title,
        "is_public": public,
        "kind": kind,
        "number": number,
        "example": example,
        "light": light._replace(reason=of_these(light.reason)),
        "sentence": capital(main.statement),
        "label": LABELS[main.validity],
        "together": f"{capital(found.statement)}.",
        "beside": [each.statement for name, each in found.beside.items() if name in certificates],
        "measured": _measured_first(main, found),
        "about": {capital(what): said for what, said in facts.about.items()},
        "unsaid": [what for what in words.USUAL_ABOUT if what not in map(str.lower, facts.about)],
        "attack": words.attack(found.answers),
        "has_measured": any(map(is_measured, certificates.values())) and "higher_is_better" not in found.answers,
        "gate": gate,
        "verdicts": [(each, _measured(str(each.requirement.number), found)) for each in verdicts],
        "sure": "" if gate is None else confidence(gate.delta),
        "who": words.told(found.who, public=public) | ({} if public else dict(facts.who)),
        "who_made_it": of_these("Did they make the model?"),
        "answered_by": of_these(words.WHO_ANSWERED[found.answered_by]),
        "clients": () if public else tuple(_clients(found, scaled)),
        "num_unlisted": 0 if public else max(0, words.num_clients_of(found.answers) - _MOST_CLIENTS_LISTED),
        "shifts": shifts,
        "breaks": list(dict.fromkeys(each.statement for each in found.breakdowns)),
        "rows": list(tails.values()),
        "shifted": [row for each in shifted.values() for row in _rows(each, found, public=public)],
        "of_networks": list(map(capital, of_networks(found))),
        "others": [row for each in others for row in _rows(each, found, public=public)],
        "groups": next(filter(None, map(words.group_rows, certificates.values())), ()),
        "carriers": "" if public else _who_gets_worse(found, scaled) if scaled else _carriers(found, certificates),
        "charts": tuple(_charts(found, scaled, public=public)),
        "harm": [line for line in map(words.harm, certificates.values()) if line],
        "notes": [
            *(line for line in map(capital, () if public else facts.notes) if line != capital(main.statement)),
            *([f"{capital(found.more_clients)}."] if found.more_clients else []),
        ],
        "premise": _premise(certificates.values()),
        "questions": [(of_these(asked), *rest) for asked, *rest in _questions(found.assumptions, facts.answered)],
        "limits": list(map(of_these, words.LIMITS)),
        "hashes": {} if public else facts.hashes,
        "certificates": certificates,
        "holds": {name: _HOLDS[each.event] for name, each in certificates.items()},
        "deltas": {name: short_delta(each.delta) for name, each in certificates.items()},
    }


def _is_loss_of_client(certificate: Certificate) -> bool:
    """Whether bounds are what clients measured: what the next ones do by ranks, unless it is counted or a mean."""
    return certificate.family == "largest"


def _light(gate: Gate | None, answered_by: str) -> Light:
    if answered_by == "trainers":
        why = "Clients that helped to train the model answered: nothing is certified."
        return Light("red", "✖", "ESTIMATE ONLY", why)
    if gate is None:
        why = "The page reports bounds. Whether they are good enough, nobody said."
        return Light("grey", "○", "NO REQUIREMENT SET", why)
    if gate.verdict == FAIL:
        return Light("red", "✖", "FAIL", "It is certified that a requirement is not met.")
    if gate.verdict == PASS and answered_by == "fresh":
        return Light("green", "✔", "PASS", "It is certified that every requirement is met, if section 5 holds.")
    why = "Neither that the requirements are met nor that they are not is certified: more clients may decide it."
    if gate.verdict == PASS:
        why = "The bounds are within the limits, but it is not stated whether those who answered had made the model."
    return Light("amber", "▲", "NOT DECIDED", why)


def _clients(found: Findings, scaled: ScaledAnswers | None) -> Iterator[Client]:
    """One line for each client with numbers of its own, the worst first."""
    if found.target is not None:  # first, since a source has many clients
        for k in np.argsort(-np.asarray(found.target["values"]), kind="stable")[:_MOST_CLIENTS_LISTED].tolist():
            name = found.target["names"][k] if found.target.get("names") else f"row {k + 1}"
            mean, size = found.target["values"][k], found.target["num_examples"][k]
            yield Client(name, "target", {"Mean loss": f"{mean:.4f}", "Examples": f"{size}"})
    values = np.asarray(found.answers.get("values", ())) if scaled is None else scaled.values
    if values.ndim != 1 or not (scaled or "num_examples" in found.answers):
        return
    columns: dict[str, Any] = {"Mean loss" if scaled is None else capital(scaled.scale.noun): values}
    if isinstance(scaled, ClientChanges):
        columns = {"Old loss": scaled.old, "New loss": scaled.new} if scaled.has_levels else {}
        columns |= {"Change": values, "Got worse": scaled.num_worse, "Got better": scaled.num_better}
    columns["Examples"] = found.answers.get("num_examples")
    known = {head: np.broadcast_to(each, values.shape) for head, each in columns.items() if each is not None}
    groups = found.answers.get("groups") or ([] if found.target is None else ["source"] * values.size)
    for index in _worst_first(values, scaled)[:_MOST_CLIENTS_LISTED].tolist():
        numbers = {head: f"{n[index]:.4f}" if n.dtype.kind == "f" else f"{n[index]}" for head, n in known.items()}
        yield Client(found.called(index), (groups[index] or "") if groups else "", numbers)


def _worst_first(values: FloatArray, scaled: ScaledAnswers | None) -> IntArray:
    return np.argsort(-(values if scaled is None else scaled.scale.to_unit(values)), kind="stable")


def _tails(found: Findings, threshold: float | None) -> dict[str, Row]:
    """The middle, the tail and the share that fails, by name, of those that are certified."""
    rows: dict[str, Row] = {}
    wanted = dict(_TAILS)
    if threshold is not None:
        wanted[f"share:{exactly(threshold)}"] = f"The share of unseen clients with a risk of {threshold:g} or more is"
    for name, said in wanted.items():
        if (each := found.named(name)) is not None:
            is_quantile = each.kind == "quantile"  # "nine in ten have at most"
            row = _row(replace(each, lower=None) if is_quantile else each, found)
            rows[name] = row._replace(quantity=words.about_measured(said, is_measured(each)))
    return rows


def _measured_first(main: Certificate, found: Findings) -> str:
    """What was measured of the number at the top, or else of the mean, which it is a worst case of."""
    scale = scale_of(found.answers)
    own, mean = _measured(main.name, found), measured("mean", found.answers)
    whose = f"their mean {'change' if scale is CHANGE else 'score'}" if scale else "the mean risk"
    whose += " without any change" if scale is None and main.family != "largest" else ""
    said = own if own != words.NOTHING or mean == words.NOTHING else f"{mean}, {whose}"
    return f"Measured on the clients{'' if found.target is None else ' of the target'} that answered: {said}."


def _measured(name: str, found: Findings) -> str:
    """A number as measured; of a target network on its own clients."""
    functional, _, population = name.partition("@")
    is_of_target = found.target is not None and population.startswith(f"{TARGET}:")
    return measured(functional, found.target or {}) if is_of_target else measured(name, found.answers)


def _is_of_other_networks(certificate: Certificate, *, is_scaled: bool) -> bool:
    """Whether it is a row of section 3: of risks a worst case stands in the table of its budgets."""
    if not is_scaled:
        return certificate.kind.endswith(f"@{TARGET}")
    return certificate.shift is not None


def _rows(certificate: Certificate, found: Findings, *, public: bool) -> list[Row]:
    """Rows on a number, or on the next clients, whose bounds are losses of clients."""
    if not certificate.axes:
        return [_row(certificate, found)]
    return [] if public else list(_rows_of_next(certificate))


def _row(certificate: Certificate, found: Findings) -> Row:
    nothing, lower = why_it_says_nothing(certificate), certificate.lower
    bound = words.bound_in_words(certificate)
    if nothing is not None:
        bound = "not bounded by these answers" if lower is None else f"at least {rounded_down(lower)}"
    known = _measured(certificate.name, found)
    return Row(capital(certificate.quantity), bound, known, LABELS[certificate.validity], capital(nothing or ""))


def _rows_of_next(certificate: Certificate) -> Iterator[Row]:
    divergence = "" if certificate.shift is None else certificate.shift[0]
    for budget, above, most in words.rows_of_next(certificate):
        shift = f", budget {budget} in {resolve_divergence(divergence).title}" if budget else ""
        yield Row(f"Of the next clients, those that {above}{shift}", most, "–", LABELS[certificate.validity])
    if certificate.family == "largest" and set(certificate.axes) == {"budget"}:  # of one next client
        for size, one in words.over_budget(certificate):
            said = capital(f"{certificate.quantity}, budget {exactly(size)}")
            yield Row(said, words.bound_in_words(one), "–", LABELS[certificate.validity])


def _who_gets_worse(found: Findings, answers: ScaledAnswers) -> str:
    """Who gets worse among those that were measured; of scores, nothing."""
    if not isinstance(answers, ClientChanges):
        return ""
    worse = [k for k in _worst_first(answers.values, answers).tolist() if answers.values[k] > 0.0]
    most = ", ".join(f"{found.called(k)} ({answers.values[k]:+.4f})" for k in worse[:5])
    return f"Measured worse: {len(worse)} of {answers.num_clients} clients{', most of all ' if most else ''}{most}."


def _carriers(found: Findings, certificates: Certificates) -> str:
    """Which clients carry most of the worst case, and how much it weighs them."""
    weighed = [c for c in certificates.values() if "client_weights" in c.details and "values" in c.recipe["answers"]]
    if not weighed:
        return ""
    weights = np.atleast_2d(weighed[0].details["client_weights"])[-1]
    order = np.argsort(-weights, kind="stable")[:5].tolist()
    divergence, budgets = weighed[0].shift or ("", [])
    budget, measured_in = max(budgets), resolve_divergence(divergence).title
    unseen = float(np.atleast_1d(weighed[0].details["unseen_weight"])[-1])
    names = weighed[0].recipe["answers"].get("names") or [found.called(index) for index in range(weights.size)]
    which = ", ".join(f"{names[index]} ({percent(weights[index])})" for index in order)
    return (
        f"At budget {budget:g} ({measured_in}) the worst case puts {percent(unseen)} of all weight on clients worse "
        f"than any that was seen, and most of the rest on {which}; without a shift all clients count the same."
    )


def _charts(found: Findings, scaled: ScaledAnswers | None, *, public: bool) -> Iterator[Chart]:
    """The band, and what is bounded from both sides along one axis; nothing in public, since bands show the losses.

    Of changes and scores, the clients that were measured.
    """
    if public:
        return
    if scaled is not None:
        yield _client_chart(found, scaled)
        return
    if found.band is not None:
        yield _band_chart(found.band)
    for name, each in found.certificates.items():
        if len(each.axes) != 1 or each.lower is None:
            continue
        ((axis, points),) = each.axes.items()
        values, label = np.asarray(each.value), LABELS[each.validity]
        curve = Curve(f"{label}, between", "bound", values, np.asarray(each.lower))
        top = max(1.0, float(values.max()))
        said = f"{capital(each.quantity)}, certified at the marked points."
        yield Chart(capital(name.replace("_", " ")), said, axis.replace("_", " "), "bound", points, (curve,), top=top)


def _client_chart(found: Findings, answers: ScaledAnswers) -> Chart:
    """Clients from the worst to the best: arrows from the old to the new loss, or bars at their scores."""
    order, end = _worst_first(answers.values, answers), answers.values
    order = order[evenly(order.size, _MOST_ARROWS)]
    title, noun, what, start = "What clients measured", answers.scale.noun, f"their {answers.scale.noun}", end
    kinds = {"as measured": ("bound", np.full(order.size, True))}
    if isinstance(answers, ClientChanges):
        title, what, start = "Who gets worse, among those measured", "arrows from 0 to their change", np.zeros_like(end)
        if answers.has_levels:
            noun, what, start, end = "mean loss", "from the old to the new model", answers.old, answers.new
        signs = np.sign(answers.values)[order]
        signed = (("got worse", "worst-0", 1), ("got better", "bound", -1), ("the same", "measured", 0))
        kinds = {name: (kind, signs == sign) for name, kind, sign in signed}
    before = "" if start is end else "{:.4f} to "
    shown = np.concatenate([start[order], end[order]])
    step = 10.0 ** np.floor(np.log10(np.ptp(shown) or 1.0))
    bottom = float(np.floor(shown.min() / step) * step)
    some = f"{order.size} of {end.size} clients, evenly chosen" if order.size < end.size else "All clients"
    return Arrows(
        title,
        f"{some}, the worst first: {what}; measured, and not certified.",
        "client, the worst first",
        noun,
        np.arange(1.0, order.size + 1.0),
        tuple(Curve(name, kind, np.where(of, end[order], np.nan)) for name, (kind, of) in kinds.items() if np.any(of)),
        "at",
        top=max(float(np.ceil(shown.max() / step) * step), bottom + step),
        bottom=bottom,
        start=start[order],
        words=tuple(f"{found.called(k)}: {before.format(start[k])}{end[k]:.4f}" for k in order.tolist()),
    )


def _band_chart(band: Band) -> Chart:
    values = np.sort(band.risks.shown_values)
    widest = float(max(values.max(initial=0.0), band.lower_points.max(initial=0.0)))
    right = min(1.0, float(np.ceil((widest + 0.02) * 10.0) / 10.0))
    x = thinned(np.concatenate([band.lower_points, band.upper_points]), right)
    label = LABELS["estimate" if TRAINERS_ANSWERED in band.assumptions else "certificate"]
    has_both, is_measured = band.sides == "two", band.local == "observed"
    upper = band.upper(x) if has_both else np.ones_like(x)
    share = np.searchsorted(values, x, side="right") / values.size
    curves = (
        Curve(f"{label}: share of unseen clients", "bound", upper, band.lower(x)),
        Curve("share of the clients that answered, as measured", "measured", share),
    )
    said = (
        f"The shaded band holds the share of unseen clients {'that would measure' if is_measured else 'with'} at most "
        "the risk below, everywhere at once"
        f"{'' if TRAINERS_ANSWERED in band.assumptions else f', with probability at least {confidence(band.delta)}'}."
    )
    return Chart(
        "Who does how badly",
        said,
        f"{'measured ' if is_measured else ''}risk of a client (mean loss, 0 to 1)",
        "share of clients",
        x,
        curves,
        "after",
    )


def _premise(certificates: Iterable[Certificate]) -> str:
    are_proved = {each.validity == "certificate" for each in certificates}
    if are_proved == {True}:
        return "The bounds hold if each answer below is yes."
    if are_proved == {False}:
        return "The numbers are no certificates: they need not hold even if each answer below is yes."
    return "What is labelled certificate holds if each answer below is yes; other numbers need not hold even then."


def _questions(assumptions: Iterable[str], answered: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Each assumption once: a question, its exact words and what answers it; the one that makes estimates is none."""
    return tuple(
        (words.question(line), line, next((said for start, said in answered.items() if line.startswith(start)), ""))
        for line in dict.fromkeys(assumptions)
        if line != TRAINERS_ANSWERED
    )
