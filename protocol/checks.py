"""Checks of arguments outside of the library: each error says the rule, the value and the remedy."""

from __future__ import annotations

import math
import operator


def checked_count(name: str, value: object, *, minimum: int, remedy: str) -> int:
    """Return `value` as an int of at least `minimum`.

    Raises ValueError if `value` is not a whole number (booleans and floats are not) or is below `minimum`.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}; {remedy}")
    return number


def checked_seed(value: object) -> int:
    """Return `value` as a seed that numpy and torch both take.

    Raises ValueError if `value` is not a whole number in 0 .. 2**63 − 1.
    """
    seed = checked_count("seed", value, minimum=0, remedy="give any non-negative integer")
    if seed >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {seed}; give a smaller one")
    return seed


def checked_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    remedy: str,
) -> float:
    """Return `value` as a finite float, strictly over `above`, at least `minimum` and at most `maximum`.

    Raises ValueError if `value` is not a finite number in that range.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    is_number = not isinstance(value, bool | str) and math.isfinite(number)
    if not (is_number and number > above and minimum <= number <= maximum):
        bounds = [(">", above), (">=", minimum), ("<=", maximum)]
        limits = " and".join(f" {sign} {limit:g}" for sign, limit in bounds if math.isfinite(limit))
        raise ValueError(f"{name} must be a finite number{limits}, got {value!r}; {remedy}")
    return number
