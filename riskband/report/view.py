"""What the report page says: certificates turned into words, rows and charts; the markup is elsewhere.

Every number is one of a certificate and keeps its label. What the page reads off a band is a certificate too, and is
stored in the page with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from riskband.groups.comparisons import group_certificate
from riskband.groups.group_bands import group_bands
from riskband.report.charts import Chart, Curve, thinned
from riskband.report.shifts import cost_shift, divergence_shift
from riskband.report.words import LABELS, LIMITS, WHO_ANSWERED, about_measured, capital, percent, question
from riskband.verification import FUNCTIONS, band_behind, why_it_says_nothing
from riskband.wording import TRAINERS_ANSWERED, confidence, rounded_down, rounded_up
from riskband.worst_cases.divergences import resolve_divergence
from riskband.worst_cases.requirements import FAIL, PASS

if TYPE_CHECKING:
    from riskband.answers.risks import ClientRisks
    from riskband.bands.band import Band
    from riskband.certificate import Certificate
    from riskband.worst_cases.requirements import Gate

    Certificates = Mapping[str, Certificate]

_TAILS = (
    ("Half of the unseen clients have a risk of", "quantile", 0.5),
    ("Nine in ten unseen clients have a risk of", "quantile", 0.9),
    ("The mean risk of the worst-off tenth of unseen clients is", "cvar", 0.9),
)
_HOLDS = {"groups": "with those of the same groups", "band": "with all of its band", "own": "by itself"}
_MOST_CLIENTS_LISTED, _MOST_GROUPS = 1_000, 50
_MOST_FOR_A_BAND = 20_000  # beyond, only what is in the certificates is shown


@dataclass(frozen=True)
class RunFacts:
    """What the server of a run knows beside its certificates."""

    who: Mapping[str, str] = field(default_factory=dict)  # lines about who was asked and who answered
    hashes: Mapping[str, str] = field(default_factory=dict)  # what was evaluated by what
    notes: tuple[str, ...] = ()  # sentences for the section on who suffers
    breaks: tuple[str, ...] = ()  # sentences that say up to which shift a goal is met
    names: tuple[str, ...] = ()  # of the clients, in the order of the answers
    threshold: float | None = None  # a risk at which a client counts as failing


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
    label: str
    note: str = ""


class Client(NamedTuple):
    """A line about one client."""

    name: str
    group: str
    loss: str
    num_examples: int


def view_of(
    certificates: Certificates,
    *,
    title: str,
    gate: Gate | None = None,
    answers: ClientRisks | None = None,
    facts: RunFacts,
    public: bool = False,
) -> dict[str, Any]:
    """Work out what the page says, under the names in its template; see `riskband.report.page.report_page`."""
    threshold = _threshold(gate) if facts.threshold is None else facts.threshold
    given = {**certificates, **({} if gate is None else gate.certificates)}
    band, source_name = _band(certificates)
    answered_by = _answered_by(given.values())
    main = next(iter(certificates.values()))
    names = _names(certificates, answers, facts)
    together = _together(band, source_name)
    made: dict[str, Certificate] = {}
    shifts = cost_shift(certificates, facts.breaks)
    if not shifts and band is not None:
        shifts, made = divergence_shift(
            certificates, band, gate, threshold=threshold, breaks=facts.breaks, public=public, together=together
        )
    rows: tuple[Row, ...] = ()
    if band is not None:
        rows, tails = _tails(certificates, band, threshold)
        made |= tails
    of_groups = _group_certificate(certificates, answers, main.delta)
    made |= of_groups
    groups, groups_together = _groups([*certificates.values(), *of_groups.values()])
    everything = {**given, **{_unused(name, given): each for name, each in made.items()}}
    assumed = () if gate is None else gate.assumptions
    shown = {_certified(certificates, name, {"level": level}) for _, name, level in _TAILS} | {main}
    return {
        "title": title,
        "is_public": public,
        "light": _light(gate, answered_by),
        "sentence": capital(main.statement),
        "label": LABELS[main.validity],
        "has_measured": any(map(_is_measured, everything.values())),
        "gate": gate,
        "who": _who(main, facts),
        "answered_by": WHO_ANSWERED[answered_by],
        "clients": () if public else tuple(_clients(main, names, answers)),
        "num_unlisted": 0 if public else max(0, _num_clients(main) - _MOST_CLIENTS_LISTED),
        "shifts": shifts,
        "rows": rows,
        "others": tuple(_row(each) for each in certificates.values() if each not in shown and not each.axes),
        "groups": groups,
        "groups_together": groups_together,
        "carriers": "" if public else _carriers(made, names),
        "charts": tuple(_charts(certificates, band, public=public)),
        "notes": facts.notes,
        "premise": _premise(everything.values()),
        "questions": _questions([*assumed, *(line for each in everything.values() for line in each.assumptions)]),
        "limits": LIMITS,
        "hashes": facts.hashes,
        "certificates": everything,
        "holds": {name: _HOLDS[each.event] for name, each in everything.items()},
        "made_here": tuple(made),
    }


def _unused(name: str, taken: Certificates) -> str:
    return f"{name} (for this page)" if name in taken else name


def _answered_by(certificates: Iterable[Certificate]) -> str:
    """Who made the model: never guessed in anybody's favour."""
    listed = [set(each.assumptions) for each in certificates]
    if any(TRAINERS_ANSWERED in lines for lines in listed):
        return "trainers"
    are_fresh = all(any("had no part in" in line for line in lines) for lines in listed)
    return "fresh" if are_fresh else "not stated"


def _light(gate: Gate | None, answered_by: str) -> Light:
    if answered_by == "trainers":
        return Light(
            "red", "✖", "ESTIMATE ONLY", "Clients that helped to train the model answered: nothing is certified."
        )
    if gate is None:
        return Light(
            "grey", "○", "NO REQUIREMENT SET", "The page reports bounds. Whether they are good enough, nobody said."
        )
    if gate.verdict == FAIL:
        return Light("red", "✖", "FAIL", "It is certified that a requirement is not met.")
    if gate.verdict == PASS and answered_by == "fresh":
        return Light("green", "✔", "PASS", "It is certified that every requirement is met, if section 5 holds.")
    why = "Neither that the requirements are met nor that they are not is certified: more clients may decide it."
    if gate.verdict == PASS:
        why = "The bounds are within the limits, but it is not stated whether those who answered had made the model."
    return Light("amber", "▲", "NOT DECIDED", why)


def _band(certificates: Certificates) -> tuple[Band | None, str]:
    """The band that the page reads numbers off, and the certificate that has it; "" if it was made for the page."""
    with_band = ((name, each) for name, each in certificates.items() if each.recipe.get("band"))
    for name, certificate in (*with_band, *certificates.items()):
        if _num_clients(certificate) > _MOST_FOR_A_BAND:
            return None, ""
        found = None if "groups" in certificate.recipe else band_behind(certificate)
        if found is not None:
            return found, name if certificate.recipe["band"] else ""
    return None, ""


def _together(band: Band | None, source_name: str) -> str:
    if band is None:
        return ""
    sure = f"hold at once with probability at least {confidence(band.delta)}"
    if TRAINERS_ANSWERED in band.assumptions:
        sure = "are estimates, read off one band"
    whose = "that of the certificates" if source_name else "made for this page from the same answers"
    return (
        f"All numbers here that are read off one band ({whose}), for every budget and threshold, {sure}. "
        "Numbers of other certificates have their own probability of error, which adds to it; a number that is bounded "
        "by itself, as in section 1, is bounded more sharply."
    )


def _threshold(gate: Gate | None) -> float | None:
    """The risk at which a client fails, if a requirement names one."""
    points = () if gate is None else [each.requirement.number.threshold for each in gate.verdicts]
    return next((point for point in points if point is not None), None)


def _num_clients(certificate: Certificate) -> int:
    answers = certificate.recipe.get("answers", {})
    values = answers.get("values", ())
    return int(np.sum(np.atleast_2d(answers["counts"])[0])) if "counts" in answers else len(values)


def _who(main: Certificate, facts: RunFacts) -> dict[str, str]:
    answers = main.recipe.get("answers", {})
    lines = dict(facts.who)
    if num_clients := _num_clients(main):
        lines.setdefault("Clients that answered", f"{num_clients:,}")
    if answers.get("num_missing"):
        as_what = (
            "counted as the worst possible" if answers.get("missing") == "worst" else "taken to be missing by chance"
        )
        lines["Clients asked without a valid answer"] = f"{answers['num_missing']:,}, {as_what}"
    if np.size(answers.get("num_examples", ())):
        sizes = np.asarray(answers["num_examples"])
        same = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
        lines["Test examples of each client"] = same
    if answers.get("contamination"):
        lines["Answers that may be wrong in any way"] = f"up to {answers['contamination']}, which the bounds allow for"
    if answers.get("noise"):
        lines["Noise for privacy"] = "on every answer; the bounds allow for it"
    return lines


def _clients(main: Certificate, names: Sequence[str], answers: ClientRisks | None) -> Iterator[Client]:
    """One line for each client with a plain loss, the worst first."""
    stored = main.recipe.get("answers", {})
    values = np.asarray(stored.get("values", ()))
    if values.ndim != 1 or "num_examples" not in stored:
        return
    groups = None if answers is None else answers.groups
    for index in np.argsort(-values, kind="stable")[:_MOST_CLIENTS_LISTED].tolist():
        size = int(np.broadcast_to(stored["num_examples"], values.shape)[index])
        yield Client(names[index], (groups[index] or "") if groups else "", f"{values[index]:.4f}", size)


def _names(certificates: Certificates, answers: ClientRisks | None, facts: RunFacts) -> Sequence[str]:
    """Names of the clients, from whoever knows them; otherwise their numbers."""
    stored = [each.recipe.get("answers", {}).get("names") for each in certificates.values()]
    known = [facts.names, answers.names if answers is not None else None, *stored]
    numbered = [f"client {index + 1}" for index in range(_num_clients(next(iter(certificates.values()))))]
    return next((names for names in known if names and len(names) == len(numbered)), numbered)


def _tails(
    certificates: Certificates, band: Band, threshold: float | None
) -> tuple[tuple[Row, ...], dict[str, Certificate]]:
    """The middle, the tail and the share that fails: as certified already, else read off the band and returned too."""
    rows: list[Row] = []
    made: dict[str, Certificate] = {}
    wanted = [(words, name, {"level": level}) for words, name, level in _TAILS]
    if threshold is not None:
        words = f"The share of unseen clients with a risk of {threshold:g} or more is"
        wanted.append((words, "survival", {"thresholds": threshold}))
    for words, function, at in wanted:
        found = _certified(certificates, function, at)
        if found is None:
            ((_, point),) = at.items()
            found = made[f"{function}:{point:g}"] = FUNCTIONS[function](band, **at)
        row, words = _row(found), about_measured(words, _is_measured(found))
        alone = "" if found.recipe.get("band") else "By itself, with its own probability of error"
        rows.append(row._replace(quantity=words, note=row.note or alone))
    return tuple(rows), made


def _certified(certificates: Certificates, function: str, at: Mapping[str, float]) -> Certificate | None:
    """The certificate of a function at a point, if there is one already."""
    return next(
        (
            each
            for each in certificates.values()
            if each.recipe["function"] == function
            and np.size(each.value) == 1
            and all(np.array_equal(np.ravel(each.recipe["arguments"].get(name)), [value]) for name, value in at.items())
        ),
        None,
    )


def _row(certificate: Certificate) -> Row:
    nothing = why_it_says_nothing(certificate)
    upper, lower = rounded_up(np.asarray(certificate.value).item()), certificate.lower
    bound = f"at most {upper}" if lower is None else f"{rounded_down(np.asarray(lower).item())} to {upper}"
    if nothing is not None:
        bound = "not bounded by these answers"
    return Row(capital(certificate.quantity), bound, LABELS[certificate.validity], capital(nothing or ""))


def _is_measured(certificate: Certificate) -> bool:
    """Whether it is about the risks that clients would measure, and not about their true ones."""
    made_with = certificate.recipe.get("band") or certificate.recipe["arguments"]
    return bool(made_with.get("local") == "observed")


def _is_of_groups(certificate: Certificate) -> bool:
    return "group_lower" in certificate.details and "groups" in certificate.recipe


def _group_certificate(certificates: Certificates, answers: ClientRisks | None, delta: float) -> dict[str, Certificate]:
    """A certificate of the groups' mean risks, if there is none yet and the answers have groups that allow for one."""
    if answers is None or answers.groups is None or any(map(_is_of_groups, certificates.values())):
        return {}
    counts = {name: answers.groups.count(name) for name in answers.groups if name is not None}
    if not (1 < len(counts) <= _MOST_GROUPS and min(counts.values()) > 1):
        return {}
    bands = group_bands(answers, answers.groups, delta=delta)
    return {"worst group": group_certificate(bands, "worst_group", "mean")}


def _groups(certificates: Iterable[Certificate]) -> tuple[tuple[tuple[str, str, str], ...], str]:
    """For each group its name, number of clients and interval for the mean risk."""
    found = next(filter(_is_of_groups, certificates), None)
    if found is None or found.recipe["arguments"].get("functional") != "mean":
        return (), ""
    sizes, lower, upper = (found.details[f"group_{name}"] for name in ("num_clients", "lower", "upper"))
    rows = tuple(
        (name, f"{int(size):,}", f"{rounded_down(low)} to {rounded_up(high)}")
        for name, size, low, high in zip(sorted(found.recipe["groups"]), sizes, lower, upper, strict=True)
    )
    sure = f"with probability at least {confidence(found.delta)}" if found.validity == "certificate" else "as estimates"
    return rows, f"The intervals of all groups hold at once, {sure}; this has its own probability of error."


def _carriers(certificates: Certificates, names: Sequence[str]) -> str:
    """Which clients carry most of the worst case, and how much it weighs them."""
    weighed = [c for c in certificates.values() if "client_weights" in c.details and "values" in c.recipe["answers"]]
    if not weighed:
        return ""
    weights = np.atleast_2d(weighed[0].details["client_weights"])[-1]
    order = np.argsort(-weights, kind="stable")[:5].tolist()
    budget = np.max(weighed[0].recipe["arguments"]["budget"])
    measured_in = resolve_divergence(weighed[0].recipe["arguments"]["divergence"]).title
    unseen = float(np.atleast_1d(weighed[0].details["unseen_weight"])[-1])
    which = ", ".join(f"{names[index]} ({percent(weights[index])})" for index in order)
    return (
        f"At budget {budget:g} ({measured_in}) the worst case puts {percent(unseen)} of all weight on clients worse "
        f"than any that was seen, and most of the rest on {which}; without a shift all clients count the same."
    )


def _charts(certificates: Certificates, band: Band | None, *, public: bool) -> Iterator[Chart]:
    """The band, and what is bounded from both sides along one axis; nothing in public, since bands show the losses."""
    if public:
        return
    if band is not None:
        yield _band_chart(band)
    for name, each in certificates.items():
        if len(each.axes) != 1 or each.lower is None:
            continue
        ((axis, points),) = each.axes.items()
        values, label = np.asarray(each.value), LABELS[each.validity]
        curve = Curve(f"{label}, between", "bound", values, np.asarray(each.lower))
        top = max(1.0, float(values.max()))
        words = f"{capital(each.quantity)}, certified at the marked points."
        yield Chart(name.replace("_", " "), words, axis.replace("_", " "), "bound", points, (curve,), top=top)


def _band_chart(band: Band) -> Chart:
    measured = np.sort(band.risks.shown_values)
    widest = float(max(measured.max(initial=0.0), band.lower_points.max(initial=0.0)))
    right = min(1.0, float(np.ceil((widest + 0.02) * 10.0) / 10.0))
    x = thinned(np.concatenate([band.lower_points, band.upper_points]), right)
    label = LABELS["estimate" if TRAINERS_ANSWERED in band.assumptions else "certificate"]
    has_both, is_measured = band.sides == "two", band.local == "observed"
    upper = band.upper(x) if has_both else np.ones_like(x)
    share = np.searchsorted(measured, x, side="right") / measured.size
    curves = (
        Curve(f"{label}: share of unseen clients", "bound", upper, band.lower(x)),
        Curve("share of the clients that answered, as measured", "measured", share),
    )
    words = (
        f"The shaded band holds the share of unseen clients {'that would measure' if is_measured else 'with'} at most "
        "the risk below, everywhere at once"
        f"{'' if TRAINERS_ANSWERED in band.assumptions else f', with probability at least {confidence(band.delta)}'}."
    )
    return Chart(
        "Who does how badly",
        words,
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


def _questions(assumptions: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Each assumption once, as a question beside its exact words; the one that makes estimates is none."""
    return tuple((question(line), line) for line in dict.fromkeys(assumptions) if line != TRAINERS_ANSWERED)
