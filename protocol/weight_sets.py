"""Several sets of weights of one architecture in one message, each of them once.

On the wire all arrays lie in one record: the array "w" of set 1 is called "1/w". So one hash covers all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from protocol.hashes import model_hash
from protocol.questions import Candidate

Weights = Mapping[str, np.ndarray]


def packed(models: Mapping[str, tuple[Weights, str]]) -> tuple[tuple[Candidate, ...], dict[str, np.ndarray]]:
    """Return candidates, from the weights and loss of each by its name, and the arrays that they need.

    Equal sets of weights, as `protocol.models.model_arrays` returns them, travel once.
    """
    numbers: dict[str, int] = {}
    sets: list[Weights] = []
    candidates = []
    for name, (weights, loss) in models.items():
        key = model_hash(weights)
        if key not in numbers:
            numbers[key] = len(sets)
            sets.append(weights)
        candidates.append(Candidate(name, numbers[key], loss))
    return tuple(candidates), joined(sets)


def joined(sets: Sequence[Weights]) -> dict[str, np.ndarray]:
    """Return all sets of weights in one mapping; `separated` undoes it."""
    return {f"{number}/{name}": array for number, weights in enumerate(sets) for name, array in weights.items()}


def separated(arrays: Weights, *, num_sets: int) -> tuple[dict[str, np.ndarray], ...]:
    """Return the sets of weights in their order; raises ValueError if an array belongs to none of `num_sets` sets."""
    sets: tuple[dict[str, np.ndarray], ...] = tuple({} for _ in range(num_sets))
    number_of = {str(number): number for number in range(num_sets)}
    for key, array in arrays.items():
        prefix, slash, name = key.partition("/")
        if not slash or prefix not in number_of:
            raise ValueError(f"arrays must belong to one of {num_sets} sets of weights, got {key!r}; write '0/{key}'")
        sets[number_of[prefix]][name] = array
    return sets
