"""What is said of findings, wherever it is said: what holds with what, who answered, how far a goal is certified.

Also the page's standing words: labels of numbers, questions for assumptions, and what no certificate says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from riskband import wording
from riskband.answers import responses
from riskband.answers.design import Design
from riskband.answers.responses import FIXED_NUMBER, FRESH_CLIENTS, TRUE_ANSWERS
from riskband.answers.risks import BINARY_LOSS, BOUNDED_LOSS
from riskband.answers.scaled import CHANGE, RISK, is_scaled, rebuilt, scale_of
from riskband.certificate import CERTIFICATE, USUAL_DELTA, Certificate, as_sentence
from riskband.functionals.functional import resolve
from riskband.functionals.quantiles import num_clients_needed
from riskband.wording import CHOSEN_BEFORE, confidence, evenly, exactly, rounded_down, rounded_up, short_delta
from riskband.worst_cases.divergences import binary_worst_case, resolve_divergence
from riskband.worst_cases.number import Number
from riskband.worst_cases.scaled import level_of_limits
from riskband.worst_cases.target_networks import adds_nothing

LABELS = {"certificate": "certificate", "refuted": f"published, {wording.FALSE_IN_GENERAL}", "estimate": "ESTIMATE"}
"""What stands beside a number, by the validity of its certificate."""

WHO_ANSWERED = {
    "fresh": "They had no part in training, tuning or choosing the model, as whoever ran the evaluation declared.",
    "trainers": (
        "They helped to train the model. Their results say little about clients that did not, so nothing on this page "
        "is certified: all numbers are estimates."
    ),
    "not stated": "It is not stated whether they had a part in making the model. If they had, nothing is certified.",
}
"""What is said of who made the model."""

LIMITS = (
    "It says nothing about one particular client or person: bounds are about means, shares and tails of many clients.",
    "It does not say how far the world will shift. A budget is a question that you ask, not a forecast.",
    "It is about the one loss that was measured. What this loss does not count is not bounded: which errors do harm, "
    "for example.",
    "It cannot see whether clients told the truth, nor whether the answers of section 5 are right. If one is no, "
    "the stated probability does not hold.",
    "The probability is over which clients and examples happened to be drawn, once. Evaluate again and again until a "
    "result pleases, and one will.",
    "It is about what was evaluated, and not about a later version of it.",
)
"""What no certificate says."""

_QUESTIONS = {
    responses.INDEPENDENT_CLIENTS: (
        "Are the clients that answered a fair draw from the kinds of clients that the model will meet, and was none "
        "taken in or left out because of its results?"
    ),
    responses.INDEPENDENT_ASKED: (
        "Are the clients that were asked, also those that gave no answer, a fair draw from the kinds of clients that "
        "the model will meet?"
    ),
    FIXED_NUMBER: "Was it settled before any answer how many clients are asked, and were no more asked since?",
    responses.INDEPENDENT_EXAMPLES: (
        "Is each client's test set a fair draw from its own cases, and was none of it used in training?"
    ),
    FRESH_CLIENTS: "Did the clients that answered have no part in training, tuning or choosing the model?",
    TRUE_ANSWERS: "Did every client report the loss that it really measured?",
}
TAIL_LEVEL = 0.9
"""Of nine in ten clients: the tail that is asked for where nothing is."""
_MOST_OF_NEXT = 5  # lines on the next clients
_WITHIN = "the target network is within the stated "

NOTHING = "–"  # where a number was not measured
USUAL_ABOUT = ("model", "data", "date", "author")
"""What whoever signs wants to know of an evaluation, beside its certificates."""

_MOVED = {
    "exact": "Every client computed the largest loss that such movements can cause, exactly.",
    "upper": "Every client computed a proved upper bound on the loss that such movements can cause.",
    "upper in expectation": (
        "Every client drew random noise and computed a number that in the mean over this noise is at least the largest "
        "loss that such movements can cause. That suffices for a certificate; the number of one client may be too low."
    ),
    "lower": (
        "Every client looked for the worst movement by an attack, and may have missed a worse one. The numbers are "
        "estimates: they can show that a model breaks, and never that it does not."
    ),
}


def question(assumption: str) -> str:
    """Return an assumption as a question that somebody can answer with yes."""
    if assumption in _QUESTIONS:
        return _QUESTIONS[assumption]
    if assumption.startswith(CHOSEN_BEFORE):
        return f"Was this fixed before any answer was seen: {assumption.removeprefix(CHOSEN_BEFORE)}?"
    if assumption.startswith(_WITHIN):
        which = assumption.removeprefix(_WITHIN)
        return (
            f"Will the clients where the model is used differ from these by no more than the {which} that you rely on?"
        )
    return f"Is it true that {assumption}?"


def about(lines: Iterable[str]) -> dict[str, str]:
    """Return what lines KEY=VALUE say of an evaluation; raises ValueError if one is none or repeats a key."""
    said: dict[str, str] = {}
    for line in lines:
        key, _, value = (part.strip() for part in line.partition("="))
        if not (key and value) or key in said:
            raise ValueError(f"about must be KEY=VALUE, each key once, got {line!r}; say for example author=A. Turing")
        said[key] = value
    return said


def bound_in_words(certificate: Certificate) -> str:
    """Return one number's bounds, each rounded to its safe side: "at most 0.1", "0.6 to 0.8", "at least 0.6"."""
    digits, (lower, upper) = certificate.num_digits, certificate.ends
    low = "" if lower is None else rounded_down(lower.item(), digits)
    high = "" if upper is None else rounded_up(upper.item(), digits)
    if low and high:
        return f"{low} to {high}"
    return f"at least {low}" if low else f"at most {high}" if high else "not bounded by these answers"


def over_budget(certificate: Certificate) -> Iterator[tuple[float, Certificate]]:
    """Return each budget of a curve over budgets alone, with the certificate of one number that it is there."""
    for n, budget in enumerate(certificate.axes["budget"].tolist()):
        lower = None if certificate.lower is None else float(np.asarray(certificate.lower)[n])
        yield budget, replace(certificate, axes={}, value=float(np.asarray(certificate.value)[n]), lower=lower)


def harm(certificate: Certificate) -> str:
    """Return what is certified of the share of clients that get worse, as a sentence; "" if it is of something else."""
    share = float(np.max(certificate.value))
    if certificate.kind != "share" or scale_of(certificate.recipe["answers"]) is not CHANGE or share >= 1.0:
        return ""
    is_measured = certificate.recipe["arguments"].get("local") == "observed"
    verb = "would measure a risk that rises" if is_measured else "get worse"
    claim = f"at most {percent(share)} of unseen clients {verb} by more than {certificate.name.partition(':')[2]}"
    return capital(as_sentence(claim, delta=certificate.delta, validity=certificate.validity))


def subject_of(answers: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return what kind of report there is of these answers, what number each client has, and a requirement on it."""
    scale = scale_of(answers)
    if scale is None:
        return "Risk report", "A risk is the mean loss of the model on one client, from 0 (no error) to 1.", "mean<=0.2"
    if scale is CHANGE:
        number = (
            "A change of the risk is the mean loss of the new model on one client minus that of the old one, on the "
            "same examples: above 0 where the new model is worse."
        )
        return "Comparison of two models", number, "change<=0.01"
    better, sign = ("larger", ">=") if scale.is_higher_better else ("smaller", "<=")
    number = (
        f"The {scale.noun} of a client lies between {scale.low:g} and {scale.high:g}; a {better} one is better. "
        "Bounds are about what unseen clients would measure."
    )
    return f"Report on the {scale.noun}", number, f"mean{sign}{(scale.low + scale.high) / 2:g}"


def about_these(text: str, answers: Mapping[str, Any]) -> str:
    """Return words on one model's losses as words on both models, or on scores."""
    text = text.replace("the model", "either model") if scale_of(answers) is CHANGE else text
    return text.replace("loss", "score") if "higher_is_better" in answers else text


def measured(name: str, answers: Mapping[str, Any], members: Sequence[int] | None = None) -> str:
    """Return a number of the clients that answered, or of some of them, as measured; a dash where none was."""
    scaled = rebuilt(answers) if is_scaled(answers) else None
    values = np.asarray(answers.get("values", ()))
    values = values[:, 0] if "radii" in answers else values  # without a movement
    if scaled is None and (values.ndim != 1 or not values.size or answers.get("noise")):
        return NOTHING
    try:
        if scaled is not None:
            return f"{Number.of(name).measured(scaled):.4f}"
        some, sizes = slice(None) if members is None else members, np.asarray(answers["num_examples"])
        return f"{resolve(name).measured(values[some], sizes[some]):.4f}"
    except ValueError:  # a worst case is nothing that clients measure
        return NOTHING


def attack(answers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in plain words what an adversary may do, and what clients computed against it; nothing without one."""
    if "radii" not in answers:
        return ()
    unit = answers.get("unit")
    return (
        "The adversary knows the model, and moves the clients' test examples so that the loss rises; it cannot change "
        "their labels. It need not be somebody: "
        "whatever else changes examples at no more cost, such as a new device, is counted too.",
        "The budget is the mean cost over all examples of all clients. The adversary may spend it as it likes: a few "
        "examples may move far, and the others not at all.",
        *([] if unit is None else [f"Making an example wrong costs {unit:.3g} on average."]),
        _MOVED[answers["guarantee"]],
    )


def about_measured(words: str, is_measured: bool) -> str:
    """Return words on the clients that have a risk; if measured risks were bounded, as words on these."""
    if not is_measured:
        return words
    return words.replace("have a risk", "would measure a risk").replace("with a risk", "that would measure a risk")


def upper(bound: float) -> str:
    """Return an upper bound of a risk or share; 1 is none."""
    return "not bounded" if bound >= 1.0 else rounded_up(bound)


def percent(share: float) -> str:
    """Return a share of clients in percent, rounded up."""
    return f"{math.ceil(float(share) * 1000.0 - 1e-6) / 10.0:g}\u00a0%"


def capital(text: str) -> str:
    """Return a text with its first letter as a sentence has it."""
    return text[:1].upper() + text[1:]


def together(events: Sequence[tuple[str, float]], *, what: str, validity: str, answered_by: str) -> str:
    """Return how sure all that was found is, from how each event holds ("own", "band" or "groups") and its delta."""
    delta, parts = added(each for _, each in events), [short_delta(each) for _, each in events]
    num_bands, shared = sum(holds != "own" for holds, _ in events), f"delta = {short_delta(delta)}"
    if len(parts) > 1:
        of_bands = ("", ", one of them a band")[num_bands] if num_bands < 2 else f", {num_bands} of them bands"
        shares = f"{parts[0]} each" if len(set(parts)) == 1 else " + ".join(parts)
        shared += f", shared among {len(parts)}{of_bands}: {shares}"
    elif num_bands:
        shared += " for one band, off which all is read"
    if validity == CERTIFICATE:
        often = "; more often than every second time it may be false" if delta > 0.5 else ""
        return f"with probability at least {confidence(delta)} {what} ({shared}{often})"
    if answered_by == "trainers":
        return f"estimates of what would be certified if these clients had no part in making the model ({shared})"
    return "estimates, which are not proved"


def added(deltas: Iterable[float]) -> float:
    """Return the sum of parts of delta, without what floats add to it in its last digits."""
    return float(f"{sum(deltas):.12g}")


def said_of_breakdown(goal: str, *, divergence: str, budget: float | None, beyond: float | None, validity: str) -> str:
    """Return up to which budget a goal is certified; `beyond` is the least budget known at which it is not, if any."""
    found, unit = "certified" if validity == CERTIFICATE else "estimated", resolve_divergence(divergence).title
    if budget is None:
        least = f" within budget {exactly(beyond)} in {unit}, the least that was asked for" if beyond else ""
        return f"It is not {found} that {goal}{least or ', not even without a shift'}."
    more = "and no more beyond"
    if beyond is None:
        more = "and larger budgets were not asked for"
    elif beyond > budget * (1.0 + 1e-3):  # a band is bracketed more closely
        more = f"and not within {exactly(beyond)}, the next that was asked for"
    within = f"Up to budget {wording.down_to_digits(budget)} in {unit}" if budget else f"Without a shift in {unit}"
    return f"{within} it is {found} that {goal}, {more}."


def goal_in_words(limit: float, threshold: float | None, *, is_measured: bool = False) -> str:
    """Return what a goal is: a limit for the mean risk, or for a share of clients."""
    what = "the mean risk" if threshold is None else f"the share of clients with a risk of {threshold:g} or more"
    return f"{about_measured(what, is_measured)} is at most {limit:g}"


def may_become(divergence: str, budget: float, share: float = 0.1) -> str:
    """Return what a kind of client that is so frequent today may become within a budget."""
    most = float(binary_worst_case(share, divergence=divergence, budget=budget))
    return f"{percent(share)} of the clients may become {percent(most)}"


_MISSING = {"ignore": "taken to be missing by chance", "worst": "counted as the worst possible"}


class Line(NamedTuple):
    """A line about who answered; on a public page it stands only if it says so."""

    what: str
    said: str
    is_public: bool = False


def who_answered(answers: Mapping[str, Any], *, network: str = "") -> Iterator[Line]:
    """Return lines about who answered and how far the answers can be relied on, from the answers in a recipe."""
    sizes, whose = np.asarray(answers.get("num_examples", ())), f", {network}" if network else ""
    if num_clients := num_clients_of(answers):
        yield Line(f"Clients that answered{whose}", f"{num_clients:,}", is_public=True)
    if answers.get("num_missing"):
        as_what = _MISSING.get(missing := answers.get("missing", "ignore")) or (
            f"with odds of answering that differ by at most a factor of {missing.partition(':')[2]}"
        )
        silent = f"{answers['num_missing']:,}, {as_what}"
        yield Line(f"Clients asked without a valid answer{whose}", silent, is_public=True)
    if "design" in answers:
        yield Line("How clients were drawn", f"by {Design(**answers['design']).kind}", is_public=True)
    if sizes.size:
        same = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
        yield Line(f"Test examples of each client{whose}", same, is_public=True)
    if answers.get("contamination"):
        wrong = f"up to {answers['contamination']}, which the bounds allow for"
        yield Line(f"Answers that may be wrong in any way{whose}", wrong, is_public=True)
    if answers.get("noise"):
        noisy = f"{answers['noise']['mechanism']}, on every answer; the bounds allow for it"
        yield Line("Noise for privacy", noisy, is_public=True)


def told(lines: Iterable[Line], *, public: bool) -> dict[str, str]:
    """Return the lines that may be told, by what they are about."""
    return {line.what: line.said for line in lines if line.is_public or not public}


def num_clients_of(answers: Mapping[str, Any]) -> int:
    """Return how many clients answered, from the answers in a recipe; 0 if they do not say."""
    if "counts" in answers:
        return int(np.sum(np.atleast_2d(answers["counts"])[0]))
    return len(answers.get("values", answers.get("new", ())))


def group_rows(certificate: Certificate) -> tuple[tuple[str, str, str, str], ...]:
    """Return for each group its name, number of clients, and mean risk as bounded and as measured."""
    if "group_lower" not in certificate.details or certificate.recipe["arguments"].get("functional") != "mean":
        return ()
    answers, groups = certificate.recipe["answers"], certificate.recipe["groups"]
    sizes, lower, upper = (certificate.details[f"group_{name}"] for name in ("num_clients", "lower", "upper"))
    return tuple(
        (name, f"{int(size):,}", f"{rounded_down(low)} to {rounded_up(high)}", measured("mean", answers, groups[name]))
        for name, size, low, high in zip(sorted(groups), sizes, lower, upper, strict=True)
    )


def of_rank(certificate: Certificate) -> str:
    """Return how sure a bound is that is one of the measured risks, whose delta follows from its rank; or ""."""
    if "rank" not in certificate.recipe["arguments"]:
        return ""
    rank = f"by its rank among {num_clients_of(certificate.recipe['answers'])} clients"
    return f"by itself with probability at least {confidence(certificate.delta)}: {rank}"


def of_two_networks(certificates: Mapping[str, Certificate]) -> list[str]:
    """Return to which bounds the target's clients add nothing, and whether the networks differ at all, by a test."""
    lines = [
        f"{name}: the clients of the target add nothing" for name, each in certificates.items() if adds_nothing(each)
    ]
    for each in certificates.values():
        if "p_value" in each.details:
            p_value = short_delta(float(each.details["p_value"]))
            test = f"p = {p_value} by an exact test of ranks (Mann and Whitney, two-sided, ties against a difference)"
            return [
                *lines,
                f"do the networks differ at all? {test}; it has no part of delta and changes no number here",
            ]
    return lines


def of_few(certificates: Iterable[Certificate], *, delta: float, num_parts: int) -> str:
    """Return what more clients would allow, where the next one is said beside `num_parts` of delta; or ""."""
    some = tuple(certificates)
    if not any(map(of_rank, some)) or any(each.name.endswith(f"quantile:{exactly(TAIL_LEVEL)}") for each in some):
        return ""
    scale, level, have, num_more = scale_of(some[0].recipe["answers"]), TAIL_LEVEL, "have", 2  # the worst tenth's mean
    if scale is not None:
        means = [each.recipe["arguments"] for each in some if each.kind == "mean"]
        is_true = scale is CHANGE and all(given.get("local", "marginal") == "marginal" for given in means)
        level, have, num_more = (level_of_limits(level), have, 1) if is_true else (level, "would measure", 1)
    beside, alone = (num_clients_needed(level, delta=delta / parts) for parts in (num_parts + num_more, 1))
    needed = f"{beside} clients or more beside the other numbers at delta = {short_delta(delta)}"
    return f"a bound of what nine in ten unseen clients {have} needs {needed}, and {alone} if it alone is asked for"


def rows_of_next(certificate: Certificate) -> tuple[tuple[str, str, str], ...]:
    """Return for each budget, or "", lines on the next clients, if it is of several: how many of them are above a risk.

    That the k-th largest is at most a risk is said as: at most k - 1 are above it; of one risk only the least of these.
    """
    if certificate.family != "largest" or "k" not in certificate.axes:
        return ()
    budgets = certificate.axes.get("budget", np.array([np.nan])).tolist()
    verb = "measure" if certificate.recipe["arguments"]["local"] == "observed" else "have"
    scale = scale_of(certificate.recipe["answers"]) or RISK
    bad, rounded = (certificate.lower, rounded_down) if scale.is_higher_better else (certificate.value, rounded_up)
    found = []
    for budget, values in zip(budgets, np.atleast_2d(np.asarray(bad)), strict=True):
        shares = scale.to_unit(values)
        first = np.flatnonzero((shares < 1.0) & (np.diff(shares, prepend=np.inf) < 0.0))
        shown = first[evenly(first.size, _MOST_OF_NEXT)]
        size = "" if math.isnan(budget) else exactly(budget)
        for n in shown:
            above = f"{scale.article} {scale.noun} {scale.beyond} {rounded(values[n])}"
            found.append((size, f"{verb} {above}", f"at most {n} of {values.size}"))
        if not shown.size:
            found.append((size, f"{verb} any {scale.noun}", f"all {values.size} may"))
    return tuple(found)


def said_once(things: Iterable[Any], *, delta: float) -> tuple[str, ...]:
    """Return what certificates and verdicts assume, each once, all choices in one line."""
    assumed = dict.fromkeys(line for each in things for line in each.assumptions)
    chosen = [line.removeprefix(CHOSEN_BEFORE) for line in assumed if line.startswith(CHOSEN_BEFORE)]
    chosen = [line for line in chosen if not line.startswith("delta ")]  # its parts follow from what was asked for
    chosen += [f"delta {short_delta(delta)}"] if delta != USUAL_DELTA else []
    weaker = BOUNDED_LOSS if BINARY_LOSS in assumed else ""
    kept = [line for line in assumed if not line.startswith(CHOSEN_BEFORE) and line != weaker]
    return (*kept, *([CHOSEN_BEFORE + ", ".join(dict.fromkeys(chosen))] if chosen else ()))
