"""Whether mean losses count wrong examples, and what suggests that they do, or of fewer examples than are said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from riskband.checks import FloatArray, IntArray, digit_rounding, float_rounding, in_decimals
from riskband.wording import in_full

BoolArray = npt.NDArray[np.bool_]

_IMPROBABLE = 1e-6  # the same where a wrong guess would make limits too low
_DOUBLE = float(np.finfo(np.float64).eps)
_EXACT, _LARGEST_DOUBT = 1e-6, 0.25  # in counts: how far exact ones may be off, and how far rounding may take others
_FEW = 5  # clients at each end that make it odd that none lies between
_SUMMED = 1e-6  # how far float32 may be off in a mean of the means of batches: some roundings
_MOST = 0.9  # share of clients whose means are counts that makes the others look like slips


def is_count(values: FloatArray, num_examples: IntArray, rounding: npt.ArrayLike = _DOUBLE) -> BoolArray:
    """Whether each mean loss counts wrong examples: times `num_examples` it is a whole number, but for rounding.

    `rounding`, shape () or (num_clients,), is how far a value may be from what was measured. Where it leaves more than
    one count open, values must be exact.
    """
    allowed = num_examples * np.asarray(rounding, dtype=np.float64)
    allowed = np.where(allowed <= _LARGEST_DOUBT, allowed + _EXACT, _EXACT)
    return np.asarray(_distance_to_counts(values, num_examples) <= allowed)


def binary_doubt(values: FloatArray, num_examples: IntArray) -> str:
    """Say what suggests that mean losses not taken for counts of wrong examples are such; "" if nothing does."""
    if np.all(num_examples == 1):
        return "every client has 1 example, as if num_examples were the number of batches"
    rounding = _rounding(values)
    if np.all(_distance_to_counts(values, num_examples) <= num_examples * rounding + _EXACT):
        return (
            "values * num_examples are whole numbers up to the rounding of the values, but with so few digits or "
            "clients, or so many examples, that may be chance"
        )
    is_whole = is_count(values, num_examples, rounding)
    chance = _chance(values[is_whole], num_examples[is_whole], rounding[is_whole])
    if np.mean(is_whole) < _MOST or chance >= _IMPROBABLE:
        return ""
    first = int(np.argmin(is_whole))
    return (
        f"values * num_examples are whole numbers for {np.sum(is_whole)} of {values.size} clients, but not for "
        f"{in_full(values[first])} of {num_examples[first]} examples"
    )


def size_doubt(values: FloatArray, num_examples: IntArray) -> str:
    """Say what suggests that counts of wrong examples are of fewer examples, or were rounded; "" if nothing does."""
    counts = np.rint(values * num_examples).astype(np.int64)
    is_inside = (counts > 0) & (counts < num_examples)
    if not np.any(is_inside):
        num_ones = int(np.sum(counts > 0))
        is_single = min(num_ones, values.size - num_ones) >= _FEW and np.all(num_examples > 1)
        return "every mean is 0 or 1, as the loss of a single example is" if is_single else ""
    counts, sizes = counts[is_inside], num_examples[is_inside]
    step = int(np.gcd(np.gcd.reduce(counts), np.gcd.reduce(sizes)))
    num_pairs = np.unique(counts + 1j * sizes).size if step > 1 else 0  # equal means may have one cause
    if float(step) ** -num_pairs >= _IMPROBABLE:
        return ""
    cause = f"as if there were {step} times fewer examples, or the means were rounded"
    return f"values * num_examples are multiples of {step} for every client, {cause}"


def share_problem(
    values: FloatArray,
    num_examples: IntArray,
    *,
    contamination: int = 0,
    places: Sequence[str] = (),
    word: str = "binary=False",
) -> str:
    """Say which shares of examples, right or wrong ones, are of no whole number of them; "" if all can be.

    Up to `contamination` of them may be wrong. However a value was rounded, and in whatever float type it was summed:
    what is named here is proved to be no share.
    """
    least, most, _ = counts_that_round(values, num_examples)
    wrong = np.flatnonzero(least > most)
    if wrong.size <= contamination:
        return ""
    first = int(wrong[0])
    where, size = f"{places[first]}: " if places else "", int(num_examples[first])
    share = f"{where}{in_full(in_decimals(values)[first])} of {size} example{'s' if size > 1 else ''}"
    return (
        f"{share} is impossible (as in {wrong.size} of {values.size} clients): is num_examples the number of batches? "
        "If it is right, the metric is no share of these examples: give that, or say "
        f"{word} if it is their mean of other numbers in [0, 1]"
    )


def rounding_of_counts(num_examples: IntArray) -> FloatArray:
    """How far a share times so many examples may be from the count that it is."""
    return np.asarray(_EXACT + 4.0 * _DOUBLE * num_examples)


def counts_that_round(shares: FloatArray, num_examples: IntArray) -> tuple[FloatArray, FloatArray, float | None]:
    """Return the least and the most examples of which the share is as was given, but for its float type or its digits.

    Where no count is, the least is above the most. Last comes by how much shares may have been rounded, if any was, or
    if that leaves more than one count open anywhere.
    """
    shares = in_decimals(shares)
    # What is only 0 and 1 shows no digits that it was rounded to.
    rounding = _rounding(shares) if np.any((shares > 0.0) & (shares < 1.0)) else float_rounding(shares)
    slack = rounding_of_counts(num_examples)

    def ends(rounding: FloatArray) -> tuple[FloatArray, FloatArray]:
        reach = num_examples * rounding + slack
        low, high = np.ceil(shares * num_examples - reach), np.floor(shares * num_examples + reach)
        return np.maximum(low, 0.0), np.minimum(high, num_examples)

    least, most = ends(rounding)
    rounding = np.where(least > most, rounding + _SUMMED, rounding)
    least, most = ends(rounding)
    of_floats = num_examples * (float_rounding(shares) + _SUMMED) + slack
    is_rounded = (least < most) | (_distance_to_counts(shares, num_examples) > of_floats)
    return least, most, float(np.max(rounding[is_rounded])) if np.any(is_rounded & (least <= most)) else None


def rounded_counts(
    values: FloatArray, num_examples: IntArray, is_whole: BoolArray, *, is_sure: bool
) -> tuple[FloatArray, BoolArray, float | None]:
    """Move values that are counts but for their float type or digits to count / num_examples; say which are counts.

    If it is sure that they are counts, to the largest that rounds to the value, unless all are counts as they stand;
    last comes what `counts_that_round` says of the rounding. Otherwise to the nearest, and only if all are counts, and
    a mean of other losses would hardly be by chance.
    """
    if is_sure and not np.all(is_whole):
        least, most, open_by = counts_that_round(values, num_examples)
        return np.where(least <= most, most / num_examples, values), least <= most, open_by
    rounding, counts = _rounding(values), np.rint(values * num_examples)
    # What is not 0 or 1 as it was given was not rounded to it: a small mean of another loss is no count of 0.
    is_inside = (counts > 0.0) & (counts < num_examples)
    is_near = is_whole | (is_inside & is_count(values, num_examples, rounding))
    is_shown = np.all(is_near) and _chance(values, num_examples, rounding) < _IMPROBABLE
    if not (is_shown or np.all(is_whole)):
        return values, is_whole, None
    return np.where(is_near, counts / num_examples, values), is_near, None


def _rounding(values: FloatArray) -> FloatArray:
    """How far values may be from what was measured, by their float type or their digits."""
    half = np.zeros(values.shape)
    if np.all(values == values.astype(np.float16)):
        half = float(np.finfo(np.float16).eps) * np.maximum(np.abs(values), float(np.finfo(np.float16).tiny))
    return np.maximum(np.maximum(float_rounding(values), digit_rounding(values)), half)


def _distance_to_counts(values: FloatArray, num_examples: IntArray) -> FloatArray:
    counts = values * num_examples
    return np.asarray(np.abs(counts - np.rint(counts)))


def _chance(values: FloatArray, num_examples: IntArray, rounding: FloatArray) -> float:
    """Probability that means of other losses, anywhere between two counts, are all so near to counts."""
    is_telling = (values > 0.0) & (values < 1.0)  # any loss may be 0 everywhere
    pairs, place = np.unique(values[is_telling] + 1j * num_examples[is_telling], return_index=True)  # by both parts
    shares = 2.0 * pairs.imag * rounding[is_telling][place]  # equal means may have one cause: they count once
    return float(np.prod(np.clip(shares, 2.0 * _EXACT, 1.0)))
