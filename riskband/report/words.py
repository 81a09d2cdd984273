"""The page's standing words: labels of numbers, questions for assumptions, and what no certificate says."""

from __future__ import annotations

import math

from riskband.answers.responses import (
    FIXED_NUMBER,
    FRESH_CLIENTS,
    INDEPENDENT_ASKED,
    INDEPENDENT_CLIENTS,
    INDEPENDENT_EXAMPLES,
    TRUE_ANSWERS,
)
from riskband.wording import CHOSEN_BEFORE, FALSE_IN_GENERAL, rounded_up

LABELS = {"certificate": "certificate", "refuted": f"published, {FALSE_IN_GENERAL}", "estimate": "ESTIMATE"}
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
    "It is about the model that was evaluated, and not about a later version of it.",
)
"""What no certificate says."""

_QUESTIONS = {
    INDEPENDENT_CLIENTS: (
        "Are the clients that answered a fair draw from the kinds of clients that the model will meet, and was none "
        "taken in or left out because of its results?"
    ),
    INDEPENDENT_ASKED: (
        "Are the clients that were asked, also those that gave no answer, a fair draw from the kinds of clients that "
        "the model will meet?"
    ),
    FIXED_NUMBER: "Was it settled before any answer how many clients are asked, and were no more asked since?",
    INDEPENDENT_EXAMPLES: (
        "Is each client's test set a fair draw from its own cases, and was none of it used in training?"
    ),
    FRESH_CLIENTS: "Did the clients that answered have no part in training, tuning or choosing the model?",
    TRUE_ANSWERS: "Did every client report the loss that it really measured?",
}
_WITHIN = "the target network is within the stated "


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
