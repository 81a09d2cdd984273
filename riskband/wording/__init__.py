"""Numbers and choices in sentences: a rounded bound must not say more than was proved."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from unicodedata import category

import numpy as np
import numpy.typing as npt

CHOSEN_BEFORE = "chosen before any answer was seen: "
"""Begins the assumption that names every choice that could have been made by looking at the answers."""

TRAINERS_ANSWERED = (
    "the clients that answered helped to train the model: their answers say little about clients that did not"
)
"""The assumption that makes an estimate of whatever was computed."""

WITHIN = "the target network is within the stated budget of the source network"
"""Begins the assumption on how far a target network is."""

ORDER_TELLS_NOTHING = "says nothing about their answers"
"""Is said of the order of the clients, where bets are made in it."""

IN_BATCHES = "the clients come in batches"
"""Begins the assumption in place of that of an order, where those of a batch come in any."""

DOUBTED_FIRST = (WITHIN, ORDER_TELLS_NOTHING, IN_BATCHES)
"""What assumptions say that are more likely to be false than the others."""

FALSE_IN_GENERAL = "false in general (a counterexample is known)"
"""What is said of a published number whose validity is "refuted", wherever it is shown; math §3.5."""

_SMALLEST_SHOWN_DELTA = 1e-9  # of 1 - delta, a smaller one is too many nines to read

_ROUNDING = 1e-9  # of a float: 0.25 is not rounded up to 0.2501 for its last digit


def printable(text: str) -> str:
    """Return a text as one line that no terminal obeys: what would move its cursor, or break the line, is written out.

    For what is printed of files that others wrote, such as the name of a client.
    """
    return "".join(each if each.isprintable() or category(each) == "Zs" else repr(each)[1:-1] for each in text)


def exactly(value: float) -> str:
    """Return a number with every digit that it was given with: for thresholds, budgets and levels."""
    return f"{value:.15g}"


def kth_largest(k: int) -> str:
    """Return "largest", "2nd largest", "11th largest"."""
    ending = "th" if 10 <= k % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return "largest" if k == 1 else f"{k}{ending} largest"


def in_short(numbers: npt.NDArray[np.float64]) -> str:
    """Return one number in full, or the ends of several and how many they are."""
    if numbers.size == 1:
        return exactly(float(numbers.flat[0]))
    return f"{numbers.min():g} to {numbers.max():g} ({numbers.size})"


def in_full(value: float) -> str:
    """Return a number with all its digits, so that one just beyond a limit does not look like the limit."""
    return repr(float(value)).removesuffix(".0")


def short_delta(delta: float) -> str:
    """Return a probability of error with three digits, rounded up: a share of one has as many as a float holds."""
    shown = float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(exactly(delta)))
    return exactly(shown if shown < 1.0 else delta)


def confidence(delta: float) -> str:
    """Return the probability 1 - delta, rounded down; as a difference where it would look like 1."""
    shown = short_delta(delta)
    return exactly(1.0 - float(shown)) if delta >= _SMALLEST_SHOWN_DELTA else f"1 - {shown}"


def rounded_up(value: npt.ArrayLike, num_digits: int = 4) -> str:
    """Return an upper bound with so many digits after the point, rounded up."""
    scale = 10.0**num_digits
    return f"{math.ceil(float(np.asarray(value)) * scale - _ROUNDING) / scale:.{num_digits}f}"


def rounded_up_strictly(value: float) -> str:
    """Return a number with four digits after the point that is not smaller, not even by rounding."""
    rounded = Decimal(repr(float(value))).quantize(Decimal("0.0001"), ROUND_CEILING, Context(prec=400))
    return in_full(float(rounded) + 0.0)


def rounded_down(value: npt.ArrayLike, num_digits: int = 4) -> str:
    """Return a lower bound with so many digits after the point, rounded down."""
    scale = 10.0**num_digits
    return f"{math.floor(float(np.asarray(value)) * scale + _ROUNDING) / scale:.{num_digits}f}"


def down_to_digits(value: float) -> str:
    """Return the largest budget that is certified with four significant digits, rounded down: it may be tiny."""
    rounded = Context(prec=4, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))
    return f"{float(rounded):.4g}"


def evenly(num_places: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most so many of the places 0, 1, ..., num_places - 1, the first and the last among them."""
    return np.unique(np.linspace(0, num_places - 1, min(num_places, most)).round().astype(np.int64))


def chosen_before(**choices: tuple[object, object]) -> tuple[str, ...]:
    """Return the assumption that choices were made before any answer was seen; none if all are defaults.

    The best of many windows, seeds or error levels is no bound of probability 1 - delta, though each of them is one:
    whatever is not the default may have been picked by its result. Each argument is a choice and its default.
    """
    named = [
        f"{name.replace('_', ' ')} {exactly(choice) if isinstance(choice, float) else choice}"
        for name, (choice, default) in choices.items()
        if choice != default
    ]
    return (CHOSEN_BEFORE + ", ".join(named),) if named else ()
