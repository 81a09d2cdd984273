"""Checks of user input: every message says the rule, the value and the remedy.

A function that passed these checks never has to look again, and bad input never becomes a number.
"""

import builtins
import json
from collections.abc import Collection
from decimal import Decimal
from importlib.util import find_spec
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.wording import in_full

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class RefusedError(ValueError):
    """A refusal whose text names rules and settings only: a client may send it to the server as it is."""


SMALLEST_COST, LARGEST_COST = 1e-150, 1e150
"""Between them a cost, and a slope over so short or long a way, is a number that floats can multiply."""

MAX_EXAMPLES = 10**12
"""Beyond it, floats times the number of examples can hardly be told from whole numbers."""

LARGEST_NOISY_RISK = 1e9
"""No noise that is of any use takes a mean loss further away from 0."""

MAX_POINTS = 10**6
"""More points of a grid than that are a mistake."""

_NUM_DECIMALS, _NEXT_TO = 12, 1e-15  # some roundings of numbers in [-1, 1]
_SINGLE_DIGITS = 9  # a float32 is printed with so many significant digits at most


def check_delta(delta: float) -> float:
    """Return `delta` as a float; raises ValueError unless it is one number in (0, 1)."""
    number = as_number(delta)
    if not 0.0 < number < 1.0:
        raise ValueError(
            f"delta must be in (0, 1), got {delta!r:.80}; delta is the probability that the certificate fails, "
            "so confidence 0.95 is delta=0.05"
        )
    return number


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return the one of `choices` that `value` names, as `as_spelled` reads it; raises ValueError if there is none."""
    found = as_spelled(value, choices)
    if found is None:
        raise ValueError(f"{name} must be one of {', '.join(sorted(choices))}, got {value!r:.80}")
    return found


def as_spelled(value: object, choices: Collection[str]) -> str | None:
    """Return the one of `choices` that a name stands for, whatever its case and hyphens; None if there is none."""
    if not isinstance(value, str):
        return None
    return value if value in choices else {spelled(each): each for each in choices}.get(spelled(value))


def spelled(name: str) -> str:
    """Return a name in lower case and with underscores; parameters after a colon stay as they are."""
    head, *parameters = name.split(":")
    return ":".join([head.lower().replace("-", "_"), *parameters])


def float_of(text: str) -> float:
    """Return the number in a text; raises ValueError for anything else, and for 0_1, which Python takes for 1."""
    if "_" in text:
        raise ValueError(f"a number must have no underscore, got {text!r:.40}; write a point for the decimals")
    return float(text)


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if there is another thing, also one that is nested too deeply to read."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check_kind(name: str, value: object, kind: type, *, remedy: str) -> None:
    """Raise ValueError unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be of type {kind.__name__}, got {type(value).__name__}; {remedy}")


def check_callable(name: str, value: object, *, remedy: str) -> None:
    """Raise ValueError unless `value` can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be a function, got {type(value).__name__}; {remedy}")


def check_numbers(name: str, values: object, *, remedy: str) -> FloatArray:
    """Return `values` as an array of floats of any shape, NaN and infinity included.

    Raises ValueError for text, truth values, complex numbers, other objects, a masked array or a ragged list.
    """
    array = _as_numbers(values)
    if array is None:
        raise ValueError(f"{name} must be numbers in a plain array, got {values!r:.80}; {remedy}")
    return array


def check_number(name: str, value: object, *, remedy: str) -> float:
    """Return `value` as one float, which may be NaN or infinite; raises ValueError for anything else."""
    number = _as_numbers(value)
    if number is None or number.ndim:
        raise ValueError(f"{name} must be one number, got {value!r:.80}; {remedy}")
    return float(number)


def check_count(name: str, value: object, *, minimum: int, remedy: str) -> int:
    """Return `value` as an int; raises ValueError unless it is one whole number >= minimum, in any numeric type."""
    number = as_number(value)
    if not np.isfinite(number) or number % 1 != 0 or number < minimum:
        raise ValueError(f"{name} must be a whole number >= {minimum}, got {value!r:.80}; {remedy}")
    return int(np.asarray(value))


def check_num_points(name: str, value: object, *, minimum: int, remedy: str) -> int:
    """Return `value` as an int; raises ValueError unless it is an integer from `minimum` to `MAX_POINTS`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not minimum <= int(value) <= MAX_POINTS:
        raise ValueError(f"{name} must be a whole number from {minimum} to {MAX_POINTS}, got {value!r:.80}; {remedy}")
    return int(value)


def check_seed(seed: object) -> int:
    """Return `seed` as an int; raises ValueError unless it is an integer >= 0."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed must be a whole number >= 0, got {seed!r:.80}; fix it before looking at the answers")
    return int(seed)


def check_optional_seed(seed: object) -> int | None:
    """As `check_seed`, for a seed that may be left out: None, where nothing is to depend on one."""
    return None if seed is None else check_seed(seed)


def check_fraction(
    name: str, value: npt.ArrayLike, *, remedy: str = "it is a share or a mean loss, never a percentage"
) -> FloatArray:
    """Return `value` as an array of floats in [0, 1]; raises ValueError for anything else."""
    array = check_numbers(name, value, remedy=remedy)
    wrong = array[~((array >= 0.0) & (array <= 1.0))]
    if wrong.size:
        raise ValueError(f"{name} must lie in [0, 1], got {in_full(wrong.flat[0])}; {remedy}")
    return array


def check_points(name: str, value: npt.ArrayLike) -> FloatArray:
    """Return `value` as one number or a flat, nonempty array of numbers in [0, 1]; raises ValueError otherwise."""
    return _check_flat(name, check_fraction(name, value))


def _check_flat(name: str, array: FloatArray) -> FloatArray:
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"{name} must be one number or a flat list of numbers, got shape {array.shape}; flatten it")
    return array


def check_shares(shares: npt.ArrayLike) -> FloatArray:
    """Return shares of clients in [0, 1], shape (num_shares,); an integer >= 2 is how many to space evenly.

    Raises ValueError for more than `MAX_POINTS`, and as `check_points`.
    """
    if isinstance(shares, Integral) and not isinstance(shares, bool):
        remedy = "it counts points of the curve; write shares as floats"
        return in_decimals(np.linspace(0.0, 1.0, check_num_points("shares", shares, minimum=2, remedy=remedy)))
    return np.atleast_1d(check_points("shares", shares))


def check_single(name: str, value: npt.ArrayLike) -> float:
    """Return `value` as one number in [0, 1]; raises ValueError for anything else."""
    array = check_points(name, value)
    if array.ndim:
        raise ValueError(f"{name} must be one number, got {array.size}; ask for one at a time")
    return float(array)


def check_budget(budget: npt.ArrayLike) -> FloatArray:
    """Return `budget` as finite numbers >= 0, shape () or (num_budgets,), at least one; raises ValueError otherwise."""
    array = _check_flat(
        "budget", check_numbers("budget", budget, remedy="it bounds a divergence, and 0 means no shift")
    )
    wrong = array[~(np.isfinite(array) & (array >= 0.0))]
    if wrong.size:
        raise ValueError(
            f"budget must be finite and >= 0, got {in_full(wrong.flat[0])}; it bounds the divergence between the "
            "target and the source network, and 0 means no shift"
        )
    return array


def check_installed(package: str, *, extra: str) -> None:
    """Raise an ImportError that names the extra, if one of its packages is not installed."""
    if find_spec(package) is None:
        raise ImportError(f'this needs {package}, which is not installed; run: pip install "riskband[{extra}]"')


def set_fields(instance: object, **fields: object) -> None:
    """Set the fields of a frozen dataclass that makes them itself, and make arrays among them read-only."""
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        object.__setattr__(instance, name, value)


def check_flag(name: str, value: object) -> bool:
    """Return `value` if it is True or False; raises ValueError for anything else, however true it looks."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r:.80}; say it in so many words")
    return bool(value)


def check_eta(eta: object) -> float:
    """Return the error level of a client's limit as a float; raises ValueError unless it is in (0, 0.5]."""
    number = as_number(eta)
    if not 0.0 < number <= 0.5:
        raise ValueError(f"eta must be in (0, 0.5], got {eta!r:.80}; it is the error level of one client's limit")
    return number


def check_cost(name: str, value: object, *, remedy: str) -> float:
    """Return `value` as one number within `SMALLEST_COST` and `LARGEST_COST`; raises ValueError for anything else."""
    number = as_number(value)
    if not SMALLEST_COST <= number <= LARGEST_COST:
        raise ValueError(f"{name} must be one finite number > 0, got {value!r}; {remedy}")
    return number


def check_costs(name: str, values: object, *, remedy: str) -> FloatArray:
    """Return `values` as an array of costs, or of prices of a unit of cost, of shape () or (num_costs,), at least one.

    Raises ValueError unless each is 0 or within `SMALLEST_COST` and `LARGEST_COST`.
    """
    array = _as_numbers(values)
    if array is None or array.ndim > 1 or array.size == 0:
        raise ValueError(f"{name} must be one number or a flat list of numbers, got {values!r}; {remedy}")
    wrong = array[~((array == 0.0) | ((array >= SMALLEST_COST) & (array <= LARGEST_COST)))]
    if wrong.size:
        raise ValueError(f"{name} must be finite and >= 0, got {in_full(wrong.flat[0])}; {remedy}")
    return array


def as_number(value: object) -> float:
    """Return the value as one float; NaN, which no range contains, for anything else."""
    number = _as_numbers(value)
    return np.nan if number is None or number.ndim else float(number)


def _as_numbers(values: object) -> FloatArray | None:
    """The values as floats; None for truth values, text, masked arrays, ragged lists and the like."""
    try:
        if not _is_plain(values):
            return None
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # what does not convert, or a list that contains itself
        return None
    # A copy: a certificate must not change when its input does.
    return array.astype(np.float64) if array.dtype.kind in "iuf" else None


def _is_plain(values: object) -> bool:
    """Whether there is no truth value and no masked array, which numpy would turn into numbers without a word."""
    if isinstance(values, (list, tuple)):
        return all(map(_is_plain, values))
    if isinstance(values, np.ndarray):
        return not isinstance(values, np.ma.MaskedArray) and values.dtype.kind != "b"
    return not isinstance(values, (bool, np.bool_))


def kind_of(error: BaseException, *more: type) -> str:
    """Return what an exception is called where that may travel: by the nearest class of Python itself or of `more`.

    Anybody else may have made the name of a class of anything, such as an example.
    """
    known = [*vars(builtins).values(), *more]
    return next(kind.__name__ for kind in type(error).__mro__ if kind in known)


def as_written(array: npt.NDArray[Any]) -> FloatArray:
    """Return real numbers of any type as floats of 64 bits, in a new array; decimals of fewer bits as these decimals.

    A loss of 0.7 in 32 bits is 0.69999999 in 64, and would be below a threshold of 0.7. It is 0.7 if rounding to the
    digits that a type holds for sure gives all numbers of the type again; else they are what was computed.
    """
    numbers = np.array(array, dtype=np.float64)
    if array.dtype.kind != "f" or array.dtype.itemsize >= numbers.dtype.itemsize:
        return numbers
    digits = np.finfo(array.dtype).precision
    decimals = np.array([float(f"{each:.{digits}g}") for each in numbers.ravel().tolist()]).reshape(numbers.shape)
    return decimals if np.array_equal(decimals.astype(array.dtype), array) else numbers


def in_decimals(numbers: npt.ArrayLike) -> FloatArray:
    """Return numbers that were computed of others without what floats add: what is next to a decimal is that decimal.

    Of numbers with up to 12 digits after the point, sums, differences and quotients with as many are then exactly what
    their decimals are: 0.12 - 0.1 is 0.02, and 1 - 0.8 is 0.2. Whatever is computed of given numbers and then compared
    with a threshold goes through here, and so does what was given, as it may have been computed: no tie is decided by
    a rounding.
    """
    computed = np.asarray(numbers, dtype=np.float64)
    decimals = np.round(computed, _NUM_DECIMALS)
    return np.where(np.isclose(computed, decimals, rtol=0.0, atol=_NEXT_TO) & (decimals != 0.0), decimals, computed)


def float_rounding(values: FloatArray) -> FloatArray:
    """How far finite numbers near [0, 1] may be from what was computed, by the float type that they seem to come from.

    It is the distance from 1 to the next number of float32 where the value is one, otherwise of float64: four roundings
    of numbers below 1.
    """
    return np.where(values == values.astype(np.float32), np.finfo(np.float32).eps, np.finfo(np.float64).eps)


def digit_rounding(values: FloatArray) -> FloatArray:
    """How far numbers in [0, 1] may be from what was computed, if rounded to the digits that all have in print.

    It is half a unit of the last place, and not less than the rounding of float32; both for so many places after the
    point, and for so many significant digits, as any of the values has. 0 if one has more than nine digits.
    """
    distinct, which = np.unique(values, return_inverse=True)
    decimals = []
    for value in distinct.tolist():
        decimals.append(Decimal(repr(value)).normalize())
        if len(decimals[-1].as_tuple().digits) > _SINGLE_DIGITS:
            return np.zeros(values.shape)
    num_places = max((-int(each.as_tuple().exponent) for each in decimals), default=0)
    num_digits = max((len(each.as_tuple().digits) for each in decimals), default=1)
    least = max(0.5 * 10.0**-num_places, float(np.finfo(np.float32).eps))
    # What rounds to 1 has the digits of what is below it.
    halves = [0.5 * 10.0 ** (min(each.adjusted(), -1) + 1 - num_digits) if each else 0.0 for each in decimals]
    return np.asarray(np.maximum(np.array(halves), least)[which.reshape(values.shape)])


def check_losses(values: npt.ArrayLike, *, is_noisy: bool = False) -> FloatArray:
    """Return empirical risks of at least two clients as a float array, shape (num_clients,).

    Raises ValueError unless they lie in [0, 1]; noisy ones, within `LARGEST_NOISY_RISK` of 0.
    """
    remedy = "leave out clients without a mean loss, and give text as numbers and data frames to ClientRisks.from_frame"
    array = check_numbers("risks", values, remedy=remedy)
    if array.ndim != 1:
        raise ValueError(f"risks must have shape (num_clients,), got {array.shape}; give one mean loss per client")
    if array.size < 2:
        raise ValueError(
            f"at least 2 clients are needed, got {array.size}; the spread between clients cannot be seen in one"
        )
    if np.isnan(array).any():
        raise ValueError(
            f"risks must not be NaN, got {int(np.isnan(array).sum())} NaN of {array.size}; leave out clients that "
            "did not answer, and say so, or count their loss as 1"
        )
    if is_noisy:
        wrong = array[np.abs(array) > LARGEST_NOISY_RISK]
        if wrong.size:
            raise ValueError(
                f"noisy risks must lie in [-1e9, 1e9], got {in_full(wrong[0])}; leave out what is no mean loss"
            )
        return array
    array = in_decimals(clip_rounding(as_written(np.asarray(values))))
    above = array[array > 1.0]
    if above.size:
        raise ValueError(
            f"risks must lie in [0, 1], got {in_full(above.max())}; divide a percentage by 100, turn an accuracy into "
            "an error rate, and scale a loss by a known upper limit"
        )
    below = array[array < 0.0]
    if below.size:
        raise ValueError(
            f"risks must lie in [0, 1], got {in_full(below.min())}; scale the loss so that its least value is 0"
        )
    return array


def clip_rounding(values: FloatArray) -> FloatArray:
    """Return values with those moved to 0 or 1 that are outside of [0, 1] by no more than their float type rounds."""
    clipped = np.clip(values, 0.0, 1.0)
    return np.where(np.abs(values - clipped) <= 2.0 * float_rounding(values), clipped, values)


def check_num_examples(num_examples: npt.ArrayLike, *, num_clients: int) -> IntArray:
    """Return numbers of examples of shape () or (num_clients,) as an integer array of the latter shape.

    Raises ValueError unless they are whole numbers from 1 to `MAX_EXAMPLES`.
    """
    as_float = check_numbers("num_examples", num_examples, remedy="leave out clients without examples")
    if as_float.shape not in ((), (num_clients,)):
        raise ValueError(
            f"num_examples must be one number or one per client ({num_clients}), got shape {as_float.shape}"
        )
    wrong = as_float[~((as_float >= 1) & (as_float <= MAX_EXAMPLES) & (as_float == np.floor(as_float)))]
    if wrong.size:
        raise ValueError(
            f"num_examples must be whole numbers from 1 to {MAX_EXAMPLES:g}, got {in_full(wrong.flat[0])}; "
            "leave out clients without examples"
        )
    return np.broadcast_to(as_float.astype(np.int64), (num_clients,)).copy()
